//! Real servers that make a cluster over real sockets.

mod support;

use std::fs;

use support::{Server, Setup, call, eventually};

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
