//! What seeds have found, told so that it stays found whatever becomes of seeds.

use std::collections::VecDeque;

use shard::bus::{BusMessage, LinkEvent, LinkNo, Peer, PeerNo, PeerState, Sender, Topology};
use shard::clock::Now;
use shard::cluster::conf::Nodes;
use shard::id::NodeId;
use shard::input::Effect;
use shard::log::LogBoot;
use shard::settings::Settings;
use shard::shard::NodeFacts;

use crate::support::{Birth, Blind, Disk, Machine, Node, Plant, Start, request};

const NOW: Now = Now {
    mono_us: 5_000_000,
    wall_us: 1_700_000_000_000_000,
};

fn id(number: u8) -> NodeId {
    NodeId::from_bytes([number; 20])
}

/// A node whose log was begun anew, or read into another number of shards, never did: membership was told of its store epoch only when
/// the log that was there was read as it was.
#[test]
fn a_node_whose_log_begins_takes_part_in_the_cluster() {
    let birth = |shards| Birth {
        node: id(1),
        shards,
        settings: Settings {
            appendonly: true,
            aof_segment_bytes: 16 << 10,
            ..Settings::default()
        },
        now: NOW,
        boot_id: 1,
        seed: 7,
        facts: NodeFacts {
            nodes: Some(Nodes::default()),
            ..NodeFacts::default()
        },
    };
    let mut disk = Disk::new(Plant::None);
    for shards in [2, 3] {
        let mut machine = Machine::start(disk, &birth(shards), 1).expect("it starts");
        let end_us = machine.now_us() + 60_000_000;
        let mut calls = VecDeque::new();
        let takes_part = loop {
            calls.extend(machine.node.calls.drain(..));
            match calls.pop_front() {
                Some((_, Effect::SaveNodes { .. })) => {
                    machine.node.nodes_saved(true);
                    machine.stepped(0);
                }
                Some((_, Effect::Identity { .. })) => break true,
                Some(_) => {}
                None if machine.event(end_us) => {}
                None => break false,
            }
        };
        assert!(takes_part, "with {shards} shards: {:?}", machine.node.log);
        disk = machine.disk;
    }
}

fn topology(epoch: u64) -> Topology {
    Topology {
        node: id(1),
        epoch: 1,
        host: 1,
        zone: 0,
        leaving: false,
        peers: vec![Peer {
            no: PeerNo(0),
            id: id(2),
            epoch,
            bus: ("10.0.0.2".to_owned(), 17_711),
            clients: ("10.0.0.2".to_owned(), 7_711),
            host: 2,
            zone: 0,
            state: PeerState::Alive,
            leaving: false,
            memory_level: 0,
            lost: false,
        }],
    }
}

/// Repair began only when a link told of the new store epoch first; of the shards of a node some have their link anew before membership
/// tells, and some after it.
#[test]
fn a_holder_that_lost_all_is_made_up_for_whoever_tells_of_it_first() {
    for membership_first in [false, true] {
        let start = Start {
            node: id(1),
            shards: 1,
            seed: 1,
            settings: &Settings::default(),
            now: NOW,
            log: LogBoot::nothing(),
            facts: NodeFacts::default(),
        };
        let mut node = Node::start(start, Blind);
        let up = |epoch| LinkEvent::Up {
            node: id(2),
            epoch,
            rtt_us: 100,
            local: None,
            remote: None,
        };
        node.publish(0, topology(5));
        node.link(0, LinkNo(0), up(5));
        let client = node.connect();
        node.send(client, &request(&["ADDJOB", "q", "body", "0", "REPLICATE", "2"]));
        node.arrive(client, usize::MAX);
        let copies = |node: &mut Node<Blind>| {
            let sent = node.outgoing.drain(..).flat_map(|(_, _, messages)| messages);
            let ids = sent.filter_map(|message| match message {
                BusMessage::Copy { copy, .. } => Some(copy.id),
                _ => None,
            });
            ids.collect::<Vec<_>>()
        };
        let job = copies(&mut node)[0];
        let sender = Sender {
            node: id(2),
            epoch: 5,
            shard: 0,
            kind: shard::bus::LinkKind::Data,
            ip: None,
        };
        node.bus(0, sender, vec![BusMessage::Copied { id: job }]);
        if membership_first {
            node.publish(0, topology(6));
        }
        let why = "it starts again".to_owned();
        node.link(0, LinkNo(0), LinkEvent::Down { why });
        node.link(0, LinkNo(0), up(6));
        let mut again = Vec::new();
        for _ in 0..100 {
            node.leap(100_000);
            node.tick(0);
            again.extend(copies(&mut node));
        }
        assert!(again.contains(&job), "membership first: {membership_first}");
    }
}
