//! Which nodes are asked for copies, from tables and for any cluster.

use std::collections::BTreeSet;

use proptest::prelude::*;

use super::placement::{could_be_apart, is_on_one_host, next, next_apart};
use super::share::{Others, note};
use crate::bus::peers::Link;
use crate::bus::{LinkNo, Peer, PeerNo, PeerState, Peers, Topology};
use crate::id::{JobId, NodeId};

/// A node of which only some things matter here.
fn peer(no: usize, host: u64, zone: u64) -> Peer {
    Peer {
        no: PeerNo(no as u16),
        id: NodeId::from_bytes([no as u8 + 1; 20]),
        epoch: 1,
        bus: (String::new(), 1),
        clients: (String::new(), 1),
        host,
        zone,
        state: PeerState::Alive,
        leaving: false,
        memory_level: 0,
        lost: false,
    }
}

/// A node on host 1 in zone 1, and these others; the links to all but `cut` are up.
fn cluster(others: Vec<Peer>, leaving: bool, cut: &[usize]) -> Peers {
    let node = NodeId::from_bytes([0xff; 20]);
    let mut peers = Peers::new(node);
    let count = others.len();
    peers.update(Topology {
        node,
        epoch: 1,
        host: 1,
        zone: 1,
        leaving,
        peers: others,
    });
    for no in 0..count {
        let link = Link {
            no: LinkNo(no as u32),
            up: !cut.contains(&no),
            rtt_us: 1,
        };
        peers.set_link(PeerNo(no as u16), Some(link));
    }
    peers
}

fn id(chance: u8) -> JobId {
    JobId::from_bytes([chance; 24])
}

/// Those that are asked one after the other.
fn asked(peers: &Peers, others: &mut Others, copies: usize) -> Vec<usize> {
    let mut asked = Vec::new();
    while asked.len() < copies {
        let Some(peer) = next(peers, !peers.leaving, others, &id(7)) else {
            break;
        };
        note(others, peer, 1, false);
        asked.push(usize::from(peer.0));
    }
    asked
}

fn confirm(others: &mut Others, no: usize) {
    note(others, PeerNo(no as u16), 1, true);
}

#[test]
fn other_hosts_come_first_then_other_zones() {
    let peers = vec![
        peer(0, 1, 1),
        peer(1, 1, 2),
        peer(2, 2, 1),
        peer(3, 2, 1),
        peer(4, 3, 3),
    ];
    let order = asked(&cluster(peers, false, &[]), &mut Others::new(), 9);
    assert_eq!(
        order[..2],
        [4, 2 + usize::from(order[1] == 3)],
        "a host and a zone of its own, then a host"
    );
    assert_eq!(order[4], 0, "the neighbour of all comes last");
    assert_eq!(order.len(), 5, "each is asked once");
}

#[test]
fn memory_to_spare_comes_before_hosts_unless_all_copies_would_lie_on_one() {
    let short = |peer: Peer, level| Peer {
        memory_level: level,
        ..peer
    };
    let peers = || vec![short(peer(0, 2, 0), 1), peer(1, 1, 0), short(peer(2, 3, 0), 1)];
    let order = asked(&cluster(peers(), false, &[]), &mut Others::new(), 9);
    assert_ne!(
        order[0], 1,
        "the first copy goes to another host, though memory is short there"
    );
    assert_eq!(
        order[1], 1,
        "the second where memory is not short, though on this host"
    );
    let full = vec![short(peer(0, 2, 0), 2), peer(1, 1, 0)];
    let peers = cluster(full, false, &[]);
    assert!(
        !could_be_apart(&peers, !peers.leaving, &Others::new()),
        "who is full is not waited for"
    );
}

#[test]
fn a_neighbour_of_a_slow_node_is_asked_before_a_neighbour_of_this_one() {
    let peers = vec![peer(0, 1, 0), peer(1, 2, 0), peer(2, 2, 0)];
    let mut others = Others::new();
    let peers = cluster(peers, false, &[]);
    assert_eq!(asked(&peers, &mut others, 1).len(), 1);
    let first = usize::from(others[0].peer.0);
    assert_eq!(
        asked(&peers, &mut others, 1),
        [3 - first],
        "host 2 has no copy for certain"
    );
    assert_eq!(asked(&peers, &mut others, 1), [0]);
    confirm(&mut others, 0);
    assert!(is_on_one_host(&peers, &others) && could_be_apart(&peers, !peers.leaving, &others));
    confirm(&mut others, first);
    assert!(!is_on_one_host(&peers, &others) && !could_be_apart(&peers, !peers.leaving, &others));
}

#[test]
fn holders_that_are_lost_leave_or_cannot_be_reached_do_not_stand_for_their_hosts() {
    let lost = Peer {
        lost: true,
        state: PeerState::Failed,
        ..peer(0, 2, 0)
    };
    let leaves = Peer {
        leaving: true,
        ..peer(0, 2, 0)
    };
    for (gone, confirmed, cut) in [
        (lost, true, false),
        (leaves, true, false),
        (peer(0, 2, 0), false, true),
    ] {
        let cut: &[usize] = if cut { &[0] } else { &[] };
        let peers = cluster(vec![gone, peer(1, 1, 0), peer(2, 2, 0)], false, cut);
        let mut others = Others::new();
        note(&mut others, PeerNo(0), 1, confirmed);
        assert!(could_be_apart(&peers, !peers.leaving, &others));
        assert_eq!(
            next_apart(&peers, !peers.leaving, &others, &id(1)),
            Some(PeerNo(2))
        );
        assert_eq!(
            next(&peers, !peers.leaving, &others, &id(1)),
            Some(PeerNo(2)),
            "host 2 has no copy that stays"
        );
    }
}

#[test]
fn a_node_that_leaves_does_not_stand_for_its_own_host() {
    let peers = cluster(vec![peer(0, 2, 0), peer(1, 2, 0), peer(2, 1, 0)], true, &[]);
    let mut others = Others::new();
    confirm(&mut others, 0);
    assert!(could_be_apart(&peers, !peers.leaving, &others));
    assert_eq!(
        next(&peers, !peers.leaving, &others, &id(1)),
        Some(PeerNo(2)),
        "its own host is free when it is gone"
    );
}

fn nodes() -> impl Strategy<Value = (Vec<Peer>, bool, Vec<usize>)> {
    let node = (1..5_u64, 0..3_u64, 0..3_u8, any::<bool>(), any::<bool>());
    let nodes = prop::collection::vec(node, 0..9);
    (nodes, any::<bool>(), prop::collection::vec(0..9_usize, 0..3)).prop_map(|(nodes, leaving, cut)| {
        let node = |(no, (host, zone, memory_level, leaving, lost))| Peer {
            memory_level,
            leaving: leaving && lost,
            ..peer(no, host, zone)
        };
        (nodes.into_iter().enumerate().map(node).collect(), leaving, cut)
    })
}

proptest! {
    #[test]
    fn copies_never_all_lie_on_one_host_while_another_could_take_one(
        (peers, leaving, cut) in nodes(), copies in 1..5_usize, chance: u8,
    ) {
        let peers = cluster(peers, leaving, &cut);
        let mut others = Others::new();
        let mut hosts: BTreeSet<u64> = (!leaving).then_some(1).into_iter().collect();
        for _ in 0..copies {
            let Some(no) = next(&peers, !peers.leaving, &others, &id(chance)) else { break };
            let chosen = peers.peer(no);
            prop_assert!(!chosen.leaving && peers.is_reachable(no));
            prop_assert!(others.iter().all(|member| member.peer != no), "nobody is asked twice");
            note(&mut others, no, 1, false);
            note(&mut others, no, 1, true);
            hosts.insert(chosen.host);
        }
        let there = |peer: &&Peer| !peer.leaving;
        let all: BTreeSet<u64> = peers.reachable().filter(there).map(|peer| peer.host)
            .chain((!leaving).then_some(1)).collect();
        let holders = others.len() + usize::from(!leaving);
        prop_assert!(hosts.len() > 1 || all.len() < 2 || holders < 2, "{hosts:?} of {all:?}");
        prop_assert!(others.len() == copies || next(&peers, !peers.leaving, &others, &id(chance)).is_none());
    }

    #[test]
    fn with_memory_everywhere_as_many_hosts_have_a_copy_as_can(
        (peers, _, cut) in nodes(), copies in 1..5_usize, chance: u8,
    ) {
        let peers: Vec<Peer> = peers.into_iter().map(|peer| Peer { memory_level: 0, leaving: false, ..peer }).collect();
        let peers = cluster(peers, false, &cut);
        let mut others = Others::new();
        while others.len() < copies {
            let Some(no) = next(&peers, !peers.leaving, &others, &id(chance)) else { break };
            note(&mut others, no, 1, false);
        }
        let hosts = |of: &mut dyn Iterator<Item = PeerNo>| {
            of.map(|no| peers.peer(no).host).chain([1]).collect::<BTreeSet<u64>>().len()
        };
        let held = hosts(&mut others.iter().map(|member| member.peer));
        let all = hosts(&mut peers.reachable().map(|peer| peer.no));
        prop_assert_eq!(held, all.min(others.len() + 1));
    }

    #[test]
    fn who_is_asked_to_be_apart_is_apart((peers, leaving, cut) in nodes(), held: Vec<bool>, chance: u8) {
        let count = peers.len();
        let peers = cluster(peers, leaving, &cut);
        let mut others = Others::new();
        for no in (0..count).filter(|&no| held.get(no) == Some(&true)) {
            confirm(&mut others, no);
        }
        let stays = |no: PeerNo| !peers.peer(no).leaving;
        let mut hosts: BTreeSet<u64> = others.iter().map(|member| member.peer).filter(|&no| stays(no))
            .map(|no| peers.peer(no).host).collect();
        hosts.extend((!leaving).then_some(1));
        if let Some(no) = next_apart(&peers, !peers.leaving, &others, &id(chance)) {
            prop_assert!(!hosts.contains(&peers.peer(no).host));
        }
        if could_be_apart(&peers, !peers.leaving, &others) {
            prop_assert_eq!(hosts.len(), 1);
            prop_assert!(next_apart(&peers, !peers.leaving, &others, &id(chance)).is_some());
        }
    }
}
