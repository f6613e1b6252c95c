//! Commands about what other nodes have, as a client sees them: replies byte for byte.

use super::testing::TestNode;
use crate::bus::BusMessage;
use crate::bus::message::{RemoteAnswer, RemoteRequest};
use crate::commands::IdVerb;
use crate::id::{JobId, NodeId};
use crate::message::Ticket;
use crate::settings::Settings;
use crate::slot::Slot;

const OTHER: NodeId = NodeId::from_bytes([0xcd; 20]);

fn node() -> TestNode {
    TestNode::new(3, Settings::default())
}

fn pair(node: u8, said: &str) -> String {
    format!("*2\r\n$40\r\n{}\r\n{said}", format!("{node:02x}").repeat(20))
}

/// IDs of the other node whose home shards differ.
fn ids_of_other(many: u8) -> Vec<JobId> {
    let of = |number: u8| {
        let queue = format!("queue {number}");
        JobId::new(OTHER, Slot::of_queue(queue.as_bytes()), [number; 18], 600, true)
    };
    (0..many).map(of).collect()
}

fn text(ids: &[JobId]) -> String {
    let ids: Vec<String> = ids.iter().map(JobId::to_string).collect();
    ids.join(" ")
}

/// What the other node is asked.
fn asked(node: &mut TestNode) -> Vec<(Ticket, RemoteRequest)> {
    let all = node.take_bus().into_iter();
    let asks = all.filter_map(|message| match message {
        BusMessage::Ask { ticket, request } => Some((ticket, request)),
        _ => None,
    });
    asks.collect()
}

/// The other node holds all that it is asked about, and each counts.
fn hold_all(node: &mut TestNode) -> usize {
    let asked = asked(node);
    for (ticket, request) in &asked {
        let RemoteRequest::Ids { ids, .. } = request else {
            panic!("{request:?}");
        };
        let answer = RemoteAnswer::Ids {
            held: vec![true; ids.len()],
            counted: ids.len() as u32,
            paused: 0,
        };
        let ticket = *ticket;
        node.hear(OTHER, BusMessage::Told { ticket, answer });
    }
    asked.len()
}

#[test]
fn a_node_alone_is_the_cluster() {
    let mut node = node();
    let client = node.connect();
    let id = node.ask(client, "ADDJOB q body 0");
    let id = id.trim_start_matches('+').trim_end();
    assert_eq!(
        node.ask(client, "QLEN q CLUSTER"),
        format!("*1\r\n{}", pair(0xab, ":1\r\n"))
    );
    assert_eq!(
        node.ask(client, "QSTAT none cluster"),
        format!("*1\r\n{}", pair(0xab, "*0\r\n"))
    );
    let figures = node.ask(client, "QSTAT q");
    assert_eq!(
        node.ask(client, "QSTAT q CLUSTER"),
        format!("*1\r\n{}", pair(0xab, &figures))
    );
    assert_eq!(
        node.ask(client, &format!("DELJOB {id} CLUSTER")),
        format!("*1\r\n{}", pair(0xab, ":1\r\n"))
    );
    assert_eq!(
        node.ask(client, "DELJOB CLUSTER"),
        "-BADID Invalid Job ID format.\r\n"
    );
    assert_eq!(
        node.ask(client, &format!("DELJOB CLUSTER {id}")),
        "-BADID Invalid Job ID format.\r\n"
    );
    assert_eq!(node.ask(client, "QLEN q NODE"), "-ERR syntax error\r\n");
    assert_eq!(
        node.ask(client, "QSTAT q CLUSTER x"),
        "-ERR wrong number of arguments for 'qstat' command\r\n"
    );
    assert_eq!(node.ask(client, "PAUSE q in bcast"), "+in\r\n");
}

#[test]
fn who_did_not_answer_is_null() {
    for hello in [None, Some("HELLO 3")] {
        let mut node = node();
        let client = node.connect();
        if let Some(hello) = hello {
            node.ask(client, hello);
        }
        node.know(OTHER);
        assert_eq!(node.ask(client, "QLEN q CLUSTER"), "");
        assert_eq!(asked(&mut node).len(), 1);
        node.wait_ms(15_001);
        let null = if hello.is_some() { "_\r\n" } else { "$-1\r\n" };
        let expected = format!("*2\r\n{}{}", pair(0xab, ":0\r\n"), pair(0xcd, null));
        assert_eq!(node.received(client), expected);
        assert_eq!(node.ask(client, "PAUSE q in bcast"), "");
        node.wait_ms(15_001);
        let id = "cd".repeat(20);
        assert_eq!(
            node.received(client),
            format!("-ERR paused here; no answer from {id}\r\n")
        );
    }
}

#[test]
fn ids_of_all_shards_come_together() {
    let mut node = node();
    let client = node.connect();
    node.know(OTHER);
    let ids = ids_of_other(7);
    assert_eq!(node.ask(client, &format!("NACK {}", text(&ids))), "");
    assert_eq!(hold_all(&mut node), 7, "a question for each slot");
    assert_eq!(node.received(client), ":7\r\n");
    assert_eq!(node.ask(client, &format!("DELJOB {} CLUSTER", text(&ids))), "");
    hold_all(&mut node);
    let expected = format!("*2\r\n{}{}", pair(0xab, ":0\r\n"), pair(0xcd, ":7\r\n"));
    assert_eq!(node.received(client), expected);
}

#[test]
fn replies_keep_their_order_and_a_client_that_is_gone_asks_no_more() {
    let mut node = node();
    let client = node.connect();
    node.know(OTHER);
    for ids in [ids_of_other(1), ids_of_other(5)] {
        let client = node.connect();
        assert_eq!(node.ask(client, &format!("DEQUEUE {}", text(&ids))), "");
        assert_eq!(asked(&mut node).len(), ids.len());
        node.wait_ms(250);
        assert_eq!(asked(&mut node).len(), ids.len(), "asked again");
        node.disconnect(client);
        node.wait_ms(500);
        assert_eq!(asked(&mut node).len(), 0);
    }
    let id = ids_of_other(1)[0];
    assert_eq!(node.ask(client, &format!("NACK {id}")), "");
    assert_eq!(node.ask(client, "QLEN q"), "");
    assert_eq!(node.ask(client, &format!("SHOW {id}")), "");
    let first = asked(&mut node);
    assert!(
        matches!(&first[0].1, RemoteRequest::Ids { verb: IdVerb::Nack, ids } if ids[..] == [id]),
        "{first:?}"
    );
    let answer = RemoteAnswer::Ids {
        held: vec![false],
        counted: 0,
        paused: 0,
    };
    let ticket = first[0].0;
    node.hear(OTHER, BusMessage::Told { ticket, answer });
    let second = asked(&mut node);
    assert_eq!(second.len(), 1, "SHOW was behind: {second:?}");
    let (ticket, answer) = (second[0].0, RemoteAnswer::NotHere);
    node.hear(OTHER, BusMessage::Told { ticket, answer });
    assert_eq!(node.received(client), ":0\r\n:0\r\n$-1\r\n");
}
