//! Real servers that make a cluster over real sockets.
//!
//! `fleet` has the processes, `proxy` stands between them and cuts, `clients` work while something happens, and `ledger` counts every job and
//! says what must hold. `faults`: nodes that are killed, stopped or parted; `restarts`: all of them at once, with the log; `epochs`: what a
//! node may say that has lost nothing, or all. `SHARDQ_TEST_SCALE` makes more rounds.

mod clients;
mod epochs;
mod faults;
mod fleet;
mod ledger;
mod proxy;
mod restarts;
#[path = "../support/mod.rs"]
mod support;

use std::collections::BTreeSet;
use std::fs;
use std::time::Duration;

use support::{Server, Setup, call, eventually, jobs, scaled};
use tools::client::Client;

fn text(server: &Server, line: &str) -> String {
    let reply = call(&mut server.client(), line);
    reply.text().expect("a text").to_owned()
}

fn alive(server: &Server) -> usize {
    text(server, "CLUSTER NODES").matches(" noflags ").count()
}

#[test]
fn servers_meet_hold_copies_and_are_found_again_after_kill_9() {
    let flags = "--cluster-node-timeout 2000 --shards 2";
    let mut servers: Vec<Server> = (0..3).map(|_| Server::start(flags)).collect();
    for other in &servers[1..] {
        let port = other.port();
        assert_eq!(text(&servers[0], &format!("CLUSTER MEET 127.0.0.1 {port}")), "OK");
    }
    eventually("a full mesh", || servers.iter().all(|server| alive(server) == 2));
    eventually("links of all shards", || {
        let reachable = |server: &Server| server.info("cluster", "cluster_reachable_nodes") == "2";
        servers.iter().all(reachable)
    });
    let id = text(&servers[1], "ADDJOB q body 5000 REPLICATE 3");
    assert!(id.starts_with("D-"), "{id}");

    let killed = servers.remove(2);
    let (port, node) = (killed.port(), text(&killed, "CLUSTER MYID"));
    killed.signal(libc::SIGKILL);
    let folder = killed.into_folder();
    eventually("it is failed", || {
        servers
            .iter()
            .all(|server| text(server, "CLUSTER NODES").contains(" fail "))
    });
    servers.push(Setup::flags(flags).start_at(port, folder));
    eventually("it is back", || servers.iter().all(|server| alive(server) == 2));
    assert_eq!(text(&servers[2], "CLUSTER MYID"), node);

    assert_eq!(text(&servers[0], &format!("CLUSTER FORGET {node}")), "OK");
    eventually("all have forgotten it", || {
        alive(&servers[0]) == 1 && alive(&servers[1]) == 1 && alive(&servers[2]) == 0
    });
    assert_eq!(text(&servers[1], "CLUSTER RESET HARD"), "OK");
    eventually("nobody knows another", || {
        servers.iter().all(|server| alive(server) == 0)
    });
    let conf = fs::read_to_string(servers[0].path("nodes.conf")).expect("it was written");
    assert_eq!(conf.matches("vars ban ").count(), 2, "{conf}");
}

/// A cluster of so many nodes, each with links to all others.
fn cluster(nodes: usize, flags: &str) -> Vec<Server> {
    let servers: Vec<Server> = (0..nodes).map(|_| Server::start(flags)).collect();
    for other in &servers[1..] {
        let port = other.port();
        assert_eq!(text(&servers[0], &format!("CLUSTER MEET 127.0.0.1 {port}")), "OK");
    }
    all_reach(&servers);
    servers
}

fn all_reach(servers: &[Server]) {
    let others = (servers.len() - 1).to_string();
    eventually("links of all shards", || {
        let reachable = |server: &Server| server.info("cluster", "cluster_reachable_nodes") == others;
        servers.iter().all(reachable)
    });
}

/// Fetches and acknowledges at a server until nothing comes any more; what came, doubles included.
fn drain(server: &Server, queues: &str) -> Vec<String> {
    let mut client = server.client();
    let mut got = Vec::new();
    loop {
        let reply = call(
            &mut client,
            &format!("GETJOB TIMEOUT 2500 COUNT 50 FROM {queues}"),
        );
        let fetched = jobs(&reply);
        if fetched.is_empty() {
            return got;
        }
        for (_, id, _) in fetched {
            call(&mut client, &format!("ACKJOB {id}"));
            got.push(id);
        }
    }
}

fn nothing_is_left(servers: &[Server]) {
    eventually("all nodes are empty", || {
        let of = |server: &Server, field: &str| server.info("jobs", field) == "0";
        servers
            .iter()
            .all(|server| of(server, "registered_jobs") && of(server, "acked_jobs"))
    });
}

#[test]
fn nothing_confirmed_is_lost_with_a_node_that_is_killed() {
    let flags = "--cluster-node-timeout 1000 --rejoin-wait 500 --shards 2";
    let mut servers = cluster(3, flags);
    let mut confirmed = BTreeSet::new();
    let many = scaled(300);
    for number in 0..many {
        if number == many / 2 {
            // Its memory is gone with it.
            servers[2].signal(libc::SIGKILL);
        }
        let server = &servers[if number < many / 2 { number % 3 } else { number % 2 }];
        let line = format!("ADDJOB q{} body{number} 5000 REPLICATE 2 RETRY 2", number % 7);
        let id = text(server, &line);
        assert!(id.starts_with("D-"), "{id}");
        assert!(confirmed.insert(id));
    }
    let queues = "q0 q1 q2 q3 q4 q5 q6";
    let mut got: BTreeSet<String> = BTreeSet::new();
    eventually("all come", || {
        for server in &servers[..2] {
            got.extend(drain(server, queues));
        }
        confirmed.is_subset(&got)
    });
    let dead = servers.remove(2);
    let port = dead.port();
    let folder = dead.into_folder();
    servers.push(Setup::flags(flags).start_at(port, folder));
    all_reach(&servers);
    nothing_is_left(&servers);
}

#[test]
fn jobs_with_retry_0_go_where_consumers_are_through_a_kill() {
    let flags = "--cluster-node-timeout 2000 --shards 2";
    let mut servers = cluster(2, flags);
    for server in &servers {
        assert_eq!(text(server, "CONFIG SET appendonly yes"), "OK");
        eventually("its log counts", || {
            server.info("persistence", "aof_state") == "on"
        });
    }
    let many = scaled(100);
    let added: BTreeSet<String> = (0..many)
        .map(|number| {
            text(
                &servers[0],
                &format!("ADDJOB q{} body{number} 5000 RETRY 0", number % 3),
            )
        })
        .collect();
    let mut got = Vec::new();
    let mut client = servers[1].client();
    let mut fetch = |got: &mut Vec<String>| {
        let reply = call(&mut client, "GETJOB TIMEOUT 500 COUNT 10 FROM q0 q1 q2");
        got.extend(jobs(&reply).into_iter().map(|(_, id, _)| id));
    };
    while got.len() < many / 3 {
        fetch(&mut got);
    }
    let killed = servers.remove(0);
    killed.signal(libc::SIGKILL);
    let (port, folder) = (killed.port(), killed.into_folder());
    let flags = format!("{flags} --appendonly yes");
    servers.insert(0, Setup::flags(&flags).start_at(port, folder));
    eventually("all come", || {
        fetch(&mut got);
        got.len() >= many
    });
    fetch(&mut got);
    let came: BTreeSet<String> = got.iter().cloned().collect();
    assert_eq!(got.len(), came.len(), "none comes twice");
    assert_eq!(came, added);
    eventually("nothing is left there", || {
        servers[0].info("jobs", "registered_jobs") == "0"
    });
}

#[test]
fn consumers_get_jobs_of_any_node_and_a_node_that_leaves_is_emptied() {
    let servers = cluster(3, "--cluster-node-timeout 2000");
    let waits = {
        let address = servers[1].address();
        std::thread::spawn(move || {
            let mut client = Client::connect(&address, Duration::from_secs(20)).expect("it accepts");
            call(&mut client, "GETJOB TIMEOUT 15000 FROM far")
        })
    };
    eventually("it waits", || {
        servers[1].info("clients", "blocked_clients") == "1"
    });
    let id = text(&servers[0], "ADDJOB far body 5000");
    let got = jobs(&waits.join().expect("the consumer ends"));
    assert_eq!(got.iter().map(|(_, id, _)| id).collect::<Vec<_>>(), [&id]);
    // A third node, whether it holds the job or not.
    call(&mut servers[2].client(), &format!("ACKJOB {id}"));
    nothing_is_left(&servers);

    for number in 0..50 {
        text(
            &servers[0],
            &format!("ADDJOB q body{number} 5000 REPLICATE {}", 1 + number % 3),
        );
    }
    for number in 0..10 {
        text(&servers[0], &format!("ADDJOB q once{number} 5000 RETRY 0"));
    }
    assert_eq!(text(&servers[0], "CLUSTER LEAVING yes"), "OK");
    eventually("it is empty", || {
        servers[0].info("jobs", "registered_jobs") == "0"
    });
    let mut client = servers[0].client();
    let refused = client.call(&["GETJOB", "FROM", "q"]).expect("it answers");
    assert!(format!("{refused:?}").contains("LEAVING"), "{refused:?}");
    let got: BTreeSet<String> = drain(&servers[1], "q").into_iter().collect();
    assert_eq!(got.len(), 60);
    nothing_is_left(&servers[1..]);
}
