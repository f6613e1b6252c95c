//! CLUSTER: which nodes there are, and who comes and goes (reference, 1.11).
//!
//! What is shown is what shard 0 knows. Changes are made by shard 0; FORGET, RESET, LEAVING and SAVECONFIG are answered when
//! `nodes.conf` holds them, MEET at once, as in the original: its end stands in the server's log, and CLUSTER INFO counts failures.

use super::view::Part;
use super::{Finish, Gather, Plan, hello, words};
use crate::bus::PeerState;
use crate::cluster::is_host;
use crate::cluster::view::ClusterView;
use crate::core::Core;
use crate::error::CommandError;
use crate::id::NodeId;
use crate::node::{Change, ClusterChange};
use crate::session::Session;
use crate::settings::BUS_PORT_DISTANCE;
use crate::wire::Args;
use crate::wire::number::parse_i64;

/// Grammar.
pub fn plan(_: &Core, _: &Session, args: &Args<'_>) -> Result<Plan, CommandError> {
    match (words::lowercase(&args[1]).as_str(), args.len()) {
        ("myid", 2) => Ok(Plan::Local(|call| {
            call.session.encoder().blob(&call.core.node_text);
            Ok(())
        })),
        ("nodes", 2) => Ok(ask(|call| {
            let text = view_of(call).nodes();
            call.reply().bulk(text);
        })),
        ("info", 2) => Ok(ask(|call| {
            let text = info(&view_of(call));
            call.reply().bulk(text);
        })),
        ("leaving", 2) => Ok(Plan::Local(|call| {
            let leaving = call.core.home.peers.leaving;
            call.reply().simple(if leaving { "yes" } else { "no" });
            Ok(())
        })),
        ("leaving", 3) => match words::lowercase(&args[2]).as_str() {
            "yes" => Ok(change(ClusterChange::Leaving(true))),
            "no" => Ok(change(ClusterChange::Leaving(false))),
            _ => Err(CommandError::other("LEAVING wants yes or no")),
        },
        ("meet", 4 | 5) => meet(args).map(change),
        ("forget", 3) => match NodeId::parse(&args[2]) {
            Some(id) => Ok(change(ClusterChange::Forget(id))),
            None => {
                let shown = String::from_utf8_lossy(&args[2][..args[2].len().min(128)]).into_owned();
                Err(CommandError::other(format!("Unknown node {shown}")))
            }
        },
        ("reset", 2) => Ok(change(ClusterChange::Reset { hard: false })),
        ("reset", 3) => match words::lowercase(&args[2]).as_str() {
            "soft" => Ok(change(ClusterChange::Reset { hard: false })),
            "hard" => Ok(change(ClusterChange::Reset { hard: true })),
            _ => Err(CommandError::other("RESET is SOFT or HARD")),
        },
        ("saveconfig", 2) => Ok(change(ClusterChange::Save)),
        ("help", 2) => Ok(Plan::Local(|call| {
            words::write_help(&mut call.reply(), "CLUSTER", HELP);
            Ok(())
        })),
        (
            subcommand @ ("myid" | "nodes" | "info" | "leaving" | "meet" | "forget" | "reset" | "saveconfig"
            | "help"),
            _,
        ) => Err(words::arity("cluster", subcommand)),
        _ => Err(words::unknown_subcommand("cluster", args)),
    }
}

const HELP: &[(&str, &str)] = &[
    ("MYID", "Tell the ID of this node."),
    ("NODES", "List the nodes, one a line."),
    ("INFO", "Tell about the cluster."),
    (
        "MEET <host> <port> [<bus-port>]",
        "Join the node at this address, and all that it knows.",
    ),
    ("FORGET <id>", "Take a node out of the cluster, on all nodes."),
    (
        "RESET [SOFT|HARD]",
        "Leave the cluster and delete all jobs; HARD also takes a new ID.",
    ),
    (
        "LEAVING [yes|no]",
        "Tell whether this node is leaving, or make it so.",
    ),
    ("SAVECONFIG", "Write the cluster's configuration to disk."),
];

fn change(change: ClusterChange) -> Plan {
    Plan::Change {
        change: Change::Cluster(change),
        finish: |call: &mut Finish<'_>, _| call.reply().simple("OK"),
    }
}

fn meet(args: &Args<'_>) -> Result<ClusterChange, CommandError> {
    let host = std::str::from_utf8(&args[2]).ok().filter(|host| is_host(host));
    let port = |at: usize, most: u16| {
        let port = args
            .get(at)
            .and_then(parse_i64)
            .and_then(|port| u16::try_from(port).ok());
        port.filter(|port| (1..=most).contains(port))
    };
    let most = if args.len() == 5 {
        u16::MAX
    } else {
        u16::MAX - BUS_PORT_DISTANCE
    };
    let (host, port, bus_port) = host
        .zip(port(3, most))
        .and_then(|(host, client)| {
            let bus = if args.len() == 5 {
                port(4, u16::MAX)?
            } else {
                client + BUS_PORT_DISTANCE
            };
            Some((host.to_owned(), client, bus))
        })
        .ok_or_else(|| CommandError::other("Invalid node address specified"))?;
    Ok(ClusterChange::Meet { host, port, bus_port })
}

/// Asks shard 0 for what it knows.
pub(super) fn ask(finish: fn(&mut Finish<'_>)) -> Plan {
    Plan::Gather {
        ask: Gather::Cluster,
        question: None,
        finish,
    }
}

/// What shard 0 said. A node that does not know its own address shows the one at which the client reached it.
pub(super) fn view_of(call: &mut Finish<'_>) -> ClusterView {
    let mut view = std::mem::take(&mut call.parts)
        .into_iter()
        .find_map(|part| match part {
            Part::Cluster(view) => view,
            _ => None,
        })
        .map(|view| *view)
        .expect("shard 0 gives a view");
    if view.me.host.is_empty() {
        view.me.host = hello::local_ip(call.session);
    }
    view
}

/// The fields of the original, then our own.
fn info(view: &ClusterView) -> String {
    let (alive, suspect, failed) = (
        view.count(PeerState::Alive),
        view.count(PeerState::Suspect),
        view.count(PeerState::Failed),
    );
    let size = 1 + view.others.len();
    let state = if suspect + failed == 0 { "ok" } else { "degraded" };
    let reachable = view
        .others
        .iter()
        .filter(|node| node.state == PeerState::Alive && node.connected && !node.leaving)
        .count();
    let fields = [
        ("state", state.to_owned()),
        ("known_nodes", (size as u64 + view.meets).to_string()),
        ("reachable_nodes", reachable.to_string()),
        ("size", size.to_string()),
        ("stats_messages_sent", view.sent.to_string()),
        ("stats_messages_received", view.received.to_string()),
        ("stats_messages_ignored", view.ignored.to_string()),
        ("alive_nodes", alive.to_string()),
        ("suspected_nodes", suspect.to_string()),
        ("failed_nodes", failed.to_string()),
        ("forgotten_nodes", view.banned.to_string()),
        ("meets_under_way", view.meets.to_string()),
        ("meets_failed", view.meets_failed.to_string()),
    ];
    let line = |(name, value): &(&str, String)| format!("cluster_{name}:{value}\r\n");
    fields.iter().map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::testing::with_args;

    #[test]
    fn info_has_the_fields_of_the_reference() {
        let view = ClusterView::alone(NodeId::from_bytes([1; 20]), String::new(), 7711);
        let text = info(&view);
        let names: Vec<&str> = text
            .lines()
            .filter_map(|line| line.split(':').next())
            .take(6)
            .collect();
        assert_eq!(
            names,
            [
                "cluster_state",
                "cluster_known_nodes",
                "cluster_reachable_nodes",
                "cluster_size",
                "cluster_stats_messages_sent",
                "cluster_stats_messages_received"
            ]
        );
        assert!(text.starts_with(
            "cluster_state:ok\r\ncluster_known_nodes:1\r\ncluster_reachable_nodes:0\r\ncluster_size:1\r\n"
        ));
    }

    #[test]
    fn meet_takes_addresses_and_names() {
        let met = |words: &str| {
            let words: Vec<&str> = words.split(' ').collect();
            with_args(&words, |args| meet(&args))
        };
        let is = |host: &str, port, bus_port| {
            Ok(ClusterChange::Meet {
                host: host.to_owned(),
                port,
                bus_port,
            })
        };
        assert_eq!(met("CLUSTER MEET 10.0.0.1 7711"), is("10.0.0.1", 7711, 17_711));
        assert_eq!(
            met("CLUSTER MEET node-1.example.org 60000 7"),
            is("node-1.example.org", 60_000, 7)
        );
        for words in ["a_b! 1", "h 0", "h x", "h 55536", "h 1 0", "h 1 65536", "h -1"] {
            let error = met(&format!("CLUSTER MEET {words}")).unwrap_err();
            assert_eq!(error.to_string(), "ERR Invalid node address specified", "{words}");
        }
    }
}
