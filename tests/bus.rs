//! Several real processes: they meet, prove themselves, copy jobs to each other, and find each other again after one was killed.

mod support;

use std::net::TcpStream;

use support::{Server, Setup, add, call, end, eventually};
use tools::client::Client;

fn meet(one: &Server, other: &Server) {
    call(
        &mut one.client(),
        &format!("CLUSTER MEET 127.0.0.1 {}", other.port()),
    );
}

/// How many nodes each server can put a copy on, itself included.
fn see_each_other(servers: &[&Server], nodes: usize) {
    for server in servers {
        eventually("it reaches all nodes, from each of its shards", || {
            let mut client = server.client();
            // From several queues, so from several shards.
            (0..8).all(|queue| {
                let words = format!("ADDJOB seen:{queue} x 1000 REPLICATE {nodes} TTL 60");
                let words: Vec<&str> = words.split(' ').collect();
                client.call_ok(&words).is_ok()
            })
        });
    }
}

fn show(client: &mut Client, id: &str) -> Option<String> {
    let reply = call(client, &format!("SHOW {id}"));
    let fields = reply.array()?;
    let at = fields.iter().position(|name| name.text() == Some("body"));
    fields[at.expect("SHOW has the body") + 1]
        .text()
        .map(str::to_owned)
}

#[test]
fn jobs_have_copies_on_other_nodes() {
    let secret = "--cluster-secret open-sesame --shards";
    let [a, b, c] = [1, 2, 3].map(|shards| Server::start(&format!("{secret} {shards}")));
    meet(&a, &b);
    meet(&c, &a);
    see_each_other(&[&a, &b, &c], 3);

    // A long body crosses in one piece.
    let body = "x".repeat(5 << 20);
    let mut client = a.client();
    let added = client.call_ok(&["ADDJOB", "long", &body, "10000", "REPLICATE", "3"]);
    let id = added
        .expect("it has its copies")
        .text()
        .expect("an ID")
        .to_owned();
    for server in [&b, &c] {
        assert!(show(&mut server.client(), &id) == Some(body.clone()));
    }
    let sent: u64 = a.info("stats", "bus_bytes_sent").parse().expect("a number");
    assert!(sent > 10 << 20, "{sent}");
    assert_ne!(b.info("stats", "bus_messages_received"), "0");
    assert_ne!(b.info("stats", "bus_messages_sent"), "0");
    for server in [&a, &b, &c] {
        assert!(!server.log().contains("closed a link"), "{}", server.log());
    }
}

#[test]
fn a_node_that_was_killed_is_found_again() {
    let setup = Setup::flags("--shards 2");
    let (a, b) = (setup.clone().start(), setup.clone().start());
    meet(&a, &b);
    see_each_other(&[&a, &b], 2);
    let port = b.port();
    let folder = end(b, libc::SIGKILL);
    eventually("its links are down", || {
        let mut client = a.client();
        client
            .call_ok(&["ADDJOB", "q", "x", "1", "REPLICATE", "2", "TTL", "60"])
            .is_err()
    });
    let b = setup.start_at(port, folder);
    see_each_other(&[&a, &b], 2);
    let id = add(&mut b.client(), "ADDJOB q again 1000 REPLICATE 2");
    assert_eq!(show(&mut a.client(), &id).as_deref(), Some("again"));
    assert_ne!(a.info("stats", "bus_reconnects"), "0");
}

#[test]
fn nodes_with_different_secrets_do_not_meet() {
    let a = Server::start("--shards 1 --cluster-secret one");
    let b = Server::start("--shards 1 --cluster-secret two");
    meet(&a, &b);
    for server in [&a, &b] {
        eventually("it says why", || {
            server.log().contains("the other node has another cluster-secret")
        });
        let info = call(&mut server.client(), "CLUSTER INFO");
        let text = info.text().expect("text").to_owned();
        assert!(text.contains("cluster_size:1\r\n"), "{text}");
    }
}

#[test]
fn connections_that_say_nothing_keep_no_node_out() {
    let [a, b] = [1, 1].map(|shards| Server::start(&format!("--shards {shards}")));
    let bus_port = a.port() + 10_000;
    let silent: Vec<TcpStream> = (0..400)
        .map(|_| TcpStream::connect(("127.0.0.1", bus_port)).expect("the bus listens"))
        .collect();
    meet(&b, &a);
    see_each_other(&[&a, &b], 2);
    eventually("it is told", || {
        a.log()
            .contains("refused the oldest of the connections that say nothing")
    });
    drop(silent);
}
