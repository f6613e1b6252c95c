//! CLUSTER MYID, NODES, INFO, LEAVING: the truth about a node that is alone. What would change the cluster is refused.

use super::{Call, Plan, hello, words};
use crate::core::Core;
use crate::error::CommandError;
use crate::session::Session;
use crate::wire::Args;

/// Grammar.
pub fn plan(_: &Core, _: &Session, args: &Args<'_>) -> Result<Plan, CommandError> {
    match (words::lowercase(&args[1]).as_str(), args.len()) {
        ("myid", 2) => Ok(Plan::Local(|call| {
            call.session.encoder().blob(&call.core.node_text);
            Ok(())
        })),
        ("nodes", 2) => Ok(Plan::Local(run_nodes)),
        ("info", 2) => Ok(Plan::Local(|call| {
            call.reply().bulk(INFO);
            Ok(())
        })),
        ("leaving", 2) => Ok(Plan::Local(|call| {
            call.reply().simple("no");
            Ok(())
        })),
        ("help", 2) => Ok(Plan::Local(|call| {
            words::write_help(&mut call.reply(), "CLUSTER", HELP);
            Ok(())
        })),
        ("meet" | "forget" | "reset" | "saveconfig" | "leaving", _) => Err(CommandError::other(
            "this version runs as a single node: there is no cluster to change",
        )),
        (subcommand @ ("myid" | "nodes" | "info" | "help"), _) => Err(words::arity("cluster", subcommand)),
        _ => Err(words::unknown_subcommand("cluster", args)),
    }
}

const HELP: &[(&str, &str)] = &[
    ("MYID", "Tell the ID of this node."),
    ("NODES", "List the nodes, one a line."),
    ("INFO", "Tell about the cluster."),
    ("LEAVING", "Tell whether this node is leaving."),
];

const INFO: &str = "cluster_state:ok\r\ncluster_known_nodes:1\r\ncluster_reachable_nodes:0\r\ncluster_size:1\r\n\
                    cluster_stats_messages_sent:0\r\ncluster_stats_messages_received:0\r\n";

fn run_nodes(call: &mut Call<'_>) -> Result<(), CommandError> {
    let line = node_line(
        &call.core.node_text,
        &hello::local_ip(call.session),
        call.core.settings.port,
    );
    call.reply().bulk(line);
    Ok(())
}

/// The line of the only node (reference, 7.2).
fn node_line(node: &[u8], ip: &str, port: u64) -> String {
    format!(
        "{} {ip}:{port} myself 0 0 connected\n",
        String::from_utf8_lossy(node)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_line_of_the_reference() {
        let line = node_line(&[b'a'; 40], "10.0.0.1", 7711);
        assert_eq!(
            line,
            format!("{} 10.0.0.1:7711 myself 0 0 connected\n", "a".repeat(40))
        );
        assert_eq!(line.trim_end().split(' ').count(), 6);
    }

    #[test]
    fn info_has_the_fields_of_the_reference() {
        let names: Vec<&str> = INFO.lines().filter_map(|line| line.split(':').next()).collect();
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
    }
}
