//! Nodes of several shards that find each other: commands of clients in, replies out, links and `nodes.conf` played by the test.

mod world;

use shard::settings::Settings;
use world::World;

fn lines(text: &str) -> usize {
    text.lines().count()
}

#[test]
fn nodes_that_meet_hold_copies_for_each_other() {
    let mut world = World::new(&[2, 1, 3]);
    let alone = world.text(0, "CLUSTER NODES");
    assert!(
        alone.contains("10.0.0.1:7711 myself 0 0 connected") && lines(&alone) == 1,
        "{alone}"
    );
    assert!(
        world
            .ask(0, "ADDJOB q body 100 REPLICATE 2")
            .starts_with("-NOREPL")
    );
    world.join();
    for node in 0..3 {
        let nodes = world.text(node, "CLUSTER NODES");
        assert_eq!(lines(&nodes), 3, "{nodes}");
        assert_eq!(nodes.matches(" noflags 0 17").count(), 2, "{nodes}");
        assert_eq!(nodes.matches(" connected").count(), 3, "{nodes}");
        let hello = world.ask(node, "HELLO");
        assert!(hello.starts_with("*5\r\n:1\r\n"), "{hello}");
        assert_eq!(hello.matches("$1\r\n1\r\n").count(), 3, "{hello}");
        let info = world.text(node, "CLUSTER INFO");
        assert!(
            info.contains("cluster_size:3") && info.contains("cluster_reachable_nodes:2"),
            "{info}"
        );
        let info = world.text(node, "INFO cluster");
        assert!(info.contains("cluster_reachable_nodes:2"), "{info}");
        // Copies, over the shards' own links.
        for number in 0..8 {
            let reply = world.ask(node, &format!("ADDJOB q{number} body 1000 REPLICATE 3"));
            assert!(reply.starts_with("+D-"), "{reply}");
        }
    }
}

#[test]
fn a_node_that_leaves_keeps_nobody_waiting() {
    let mut world = World::new(&[2, 2]);
    world.join();
    let waiting = world.connect(1);
    assert_eq!(world.say(1, waiting, "GETJOB FROM a b"), "");
    let timed = world.connect(1);
    assert_eq!(world.say(1, timed, "GETJOB TIMEOUT 60000 FROM c"), "");
    assert_eq!(world.ask(1, "CLUSTER LEAVING"), "+no\r\n");
    assert_eq!(world.ask(1, "CLUSTER LEAVING yes"), "+OK\r\n");
    assert!(world.heard(1, waiting).starts_with("-LEAVING "));
    assert!(world.heard(1, timed).starts_with("-LEAVING "));
    assert_eq!(world.ask(1, "CLUSTER LEAVING"), "+yes\r\n");
    for queues in ["a", "a b c d"] {
        assert!(
            world
                .ask(1, &format!("GETJOB FROM {queues}"))
                .starts_with("-LEAVING ")
        );
        assert_eq!(world.ask(1, &format!("GETJOB NOHANG FROM {queues}")), "*-1\r\n");
    }
    world.run(1_500);
    let nodes = world.text(0, "CLUSTER NODES");
    assert!(nodes.contains(":7711 leaving "), "{nodes}");
    assert!(world.ask(0, "HELLO").contains("$3\r\n100\r\n"));
    // It stays so over a restart, until it is taken back.
    world.kill(1);
    world.start(1, 1, Settings::default());
    world.run(1_500);
    assert_eq!(world.ask(1, "CLUSTER LEAVING"), "+yes\r\n");
    assert_eq!(
        world.ask(1, "CLUSTER LEAVING maybe").split(' ').next(),
        Some("-ERR")
    );
    assert_eq!(world.ask(1, "CLUSTER LEAVING no"), "+OK\r\n");
    let waiting = world.connect(1);
    assert_eq!(world.say(1, waiting, "GETJOB TIMEOUT 50 FROM a"), "");
    world.run(100);
    assert_eq!(world.heard(1, waiting), "*-1\r\n");
}

#[test]
fn reset_leaves_the_cluster_and_all_jobs() {
    for kind in ["SOFT", "HARD"] {
        let mut world = World::new(&[2, 2, 1]);
        world.join();
        let before = world.text(0, "CLUSTER MYID");
        for number in 0..8 {
            world.ask(0, &format!("ADDJOB q{number} body 0 REPLICATE 1"));
        }
        assert!(world.text(0, "INFO jobs").contains("registered_jobs:8"));
        let waiting = world.connect(0);
        assert_eq!(world.say(0, waiting, "GETJOB FROM none"), "");
        assert_eq!(world.ask(0, &format!("CLUSTER RESET {kind}")), "+OK\r\n");
        assert_eq!(world.heard(0, waiting), "*-1\r\n");
        assert!(world.text(0, "INFO jobs").contains("registered_jobs:0"));
        let after = world.text(0, "CLUSTER MYID");
        assert_eq!(before == after, kind == "SOFT");
        for number in 0..8 {
            let id = world.ask(0, &format!("ADDJOB q{number} body 0"));
            assert!(id.contains(&after[..8]), "{id} of {after}");
        }
        for node in 1..3 {
            let nodes = world.text(node, "CLUSTER NODES");
            assert!(!nodes.contains(&before) && lines(&nodes) == 2, "{nodes}");
        }
        world.run(20_000);
        assert_eq!(lines(&world.text(0, "CLUSTER NODES")), 1);
        assert_eq!(lines(&world.text(1, "CLUSTER NODES")), 2);
        world.kill(0);
        world.start(0, 2, Settings::default());
        assert_eq!(world.text(0, "CLUSTER MYID"), after);
        world.join();
        for node in 0..3 {
            assert_eq!(lines(&world.text(node, "CLUSTER NODES")), 3);
        }
        assert!(world.ask(0, "ADDJOB q body 1000 REPLICATE 3").starts_with("+D-"));
    }
}

#[test]
fn forget_takes_a_node_from_all() {
    let mut world = World::new(&[1, 2, 1]);
    world.join();
    let id = world.text(2, "CLUSTER MYID");
    for wrong in ["x".to_owned(), "f".repeat(40), world.text(0, "CLUSTER MYID")] {
        assert!(
            world
                .ask(0, &format!("CLUSTER FORGET {wrong}"))
                .starts_with("-ERR ")
        );
    }
    assert_eq!(world.ask(0, &format!("CLUSTER FORGET {id}")), "+OK\r\n");
    world.run(1_000);
    for node in 0..2 {
        assert!(!world.text(node, "CLUSTER NODES").contains(&id));
        assert!(
            world.nodes[node]
                .disk
                .contains(&format!("vars ban {id} count 1 up-to all"))
        );
    }
    assert_eq!(lines(&world.text(2, "CLUSTER NODES")), 1);
    assert!(
        world.nodes[2]
            .log
            .iter()
            .any(|line| line.contains("forgotten by its cluster"))
    );
    assert!(
        world
            .text(0, "CLUSTER INFO")
            .contains("cluster_forgotten_nodes:1")
    );
    assert_eq!(world.ask(2, "CLUSTER MEET 10.0.0.2 7711"), "+OK\r\n");
    world.run(1_000);
    assert_eq!(lines(&world.text(0, "CLUSTER NODES")), 3);
}

#[test]
fn a_dead_node_fails_within_the_timeout_and_comes_back_with_its_id_and_a_new_epoch() {
    let mut world = World::new(&[2, 2]);
    world.join();
    for node in 0..2 {
        assert_eq!(world.ask(node, "CONFIG SET cluster-node-timeout 2000"), "+OK\r\n");
    }
    let id = world.text(1, "CLUSTER MYID");
    world.kill(1);
    world.run(1_500);
    assert!(world.text(0, "CLUSTER NODES").contains(" fail? "));
    assert!(world.ask(0, "HELLO").contains("$2\r\n10\r\n"));
    world.run(1_000);
    assert!(world.text(0, "CLUSTER NODES").contains(" fail "));
    assert!(world.ask(0, "HELLO").contains("$3\r\n100\r\n"));
    assert!(world.text(0, "CLUSTER INFO").contains("cluster_state:degraded"));
    assert!(
        world
            .ask(0, "ADDJOB q body 100 REPLICATE 2")
            .starts_with("-NOREPL")
    );
    world.start(1, 3, Settings::default());
    world.run(1_000);
    assert_eq!(world.text(1, "CLUSTER MYID"), id);
    let nodes = world.text(0, "CLUSTER NODES");
    assert!(nodes.contains(&format!("{id} 10.0.0.2:7711 noflags")), "{nodes}");
    assert!(world.text(0, "CLUSTER INFO").contains("cluster_state:ok"));
    assert!(world.ask(0, "ADDJOB q body 1000 REPLICATE 2").starts_with("+D-"));
}

#[test]
fn meet_is_answered_at_once_and_its_failure_told() {
    let mut world = World::new(&[2]);
    assert_eq!(world.ask(0, "CLUSTER MEET 10.0.0.9 7711"), "+OK\r\n");
    assert_eq!(world.ask(0, "CLUSTER MEET 10.0.0.1 7711"), "+OK\r\n");
    let nodes = world.text(0, "CLUSTER NODES");
    assert!(
        nodes.contains("10.0.0.9:7711 handshake 0 0 disconnected"),
        "{nodes}"
    );
    world.run(16_000);
    assert_eq!(lines(&world.text(0, "CLUSTER NODES")), 1);
    assert!(world.text(0, "CLUSTER INFO").contains("cluster_meets_failed:2"));
    let log = world.nodes[0].log.join("\n");
    assert!(
        log.contains("10.0.0.9:17711 came to nothing: nobody answers"),
        "{log}"
    );
    assert!(log.contains("that is this node itself"), "{log}");
    assert_eq!(world.ask(0, "CLUSTER SAVECONFIG"), "+OK\r\n");
}

#[test]
fn what_is_announced_is_shown_everywhere() {
    let mut world = World::new(&[1, 1]);
    world.join();
    assert_eq!(
        world.ask(
            0,
            "CONFIG SET announce-host broker.example.org announce-port 1234"
        ),
        "+OK\r\n"
    );
    world.run(1_000);
    for node in 0..2 {
        let hello = world.ask(node, "HELLO");
        assert!(hello.contains("broker.example.org\r\n$4\r\n1234"), "{hello}");
    }
    assert!(world.ask(0, "CONFIG SET announce-host a/b").starts_with("-ERR "));
}
