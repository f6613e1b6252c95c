//! Copies of a job on several hosts: when it is added, while a node is slow, after one is lost, when another comes, and when one leaves.

use super::cluster::{Nodes, copies, id_of};
use crate::bus::{Peer, PeerState, Topology};
use crate::commands::{IdVerb, Request};
use crate::id::JobId;
use crate::message::Answer;

/// Nodes on these hosts.
fn on_hosts(hosts: &[u64]) -> Nodes {
    let mut nodes = Nodes::new(hosts.len());
    describe(&mut nodes, |node, peer| peer.host = hosts[node]);
    nodes
}

/// Changes what every node knows of each, itself included.
pub fn describe(nodes: &mut Nodes, change: impl Fn(usize, &mut Peer)) {
    for at in 0..nodes.scenes.len() {
        let home = &mut nodes.scenes[at].home;
        let mut peers: Vec<Peer> = home.peers.all().cloned().collect();
        for peer in &mut peers {
            let node = (0..).find(|&node| id_of(node) == peer.id).unwrap();
            change(node, peer);
        }
        let mut me = Peer {
            id: id_of(at),
            epoch: home.peers.epoch,
            host: home.peers.host,
            leaving: home.peers.leaving,
            ..peers[0].clone()
        };
        change(at, &mut me);
        let topology = Topology {
            node: me.id,
            epoch: me.epoch,
            host: me.host,
            zone: 0,
            leaving: me.leaving,
            peers,
        };
        home.peers.update(topology);
        let now = nodes.scenes[at].now;
        nodes.scenes[at].home.topology_changed(now);
    }
}

pub fn holders(nodes: &mut Nodes, id: JobId) -> Vec<usize> {
    let states = nodes.states(id);
    (0..states.len()).filter(|&node| states[node].is_some()).collect()
}

fn on_one_host(nodes: &Nodes) -> Vec<u64> {
    let of = |scene: &crate::home::testing::Scene| scene.home.gauges().on_one_host;
    nodes.scenes.iter().map(of).collect()
}

#[test]
fn copies_go_to_other_hosts_and_show_tells_which() {
    let hosts = [1, 1, 1, 2, 2];
    for _ in 0..20 {
        let mut nodes = on_hosts(&hosts);
        let id = nodes.add(0, copies("q", 2)).unwrap();
        let held = holders(&mut nodes, id);
        assert!(held.len() == 2 && held[1] >= 3, "{held:?}");
        assert_eq!(on_one_host(&nodes), [0; 5]);
        for &at in &held {
            let shown = nodes.scenes[at].show(id).unwrap().holders;
            assert_eq!(shown[0].node, id_of(at), "the one that answers comes first");
            let mut all: Vec<_> = shown
                .iter()
                .map(|holder| (holder.node, holder.host, holder.confirmed))
                .collect();
            all.sort();
            let expected = held.iter().map(|&node| (id_of(node), hosts[node], true));
            assert_eq!(all, expected.collect::<Vec<_>>());
        }
        // Who does not have it says the same.
        let far = (1..5).find(|node| !held.contains(node)).unwrap();
        match nodes.ask(far, Request::Show(id)) {
            Some(Answer::Job(Some(job))) => assert_eq!(job.holders.len(), 2),
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn a_slow_host_holds_up_no_reply_and_gets_its_copy_afterwards() {
    let mut nodes = on_hosts(&[1, 1, 2]);
    nodes.cut.push((0, 2));
    let ticket = nodes.begin(0, Request::Add(copies("q", 2)));
    nodes.settle();
    let shown = |nodes: &mut Nodes, id| nodes.scenes[0].show(id).unwrap().holders;
    nodes.pass(200);
    let id = match nodes.late(0, ticket) {
        Some(Answer::Id(id)) => id,
        other => panic!("{other:?}"),
    };
    assert_eq!(holders(&mut nodes, id), [0, 1]);
    assert_eq!(on_one_host(&nodes), [1, 1, 0]);
    let asked: Vec<_> = shown(&mut nodes, id)
        .iter()
        .map(|holder| holder.confirmed)
        .collect();
    assert_eq!(asked, [true, false, true], "the slow one may have it");
    nodes.cut.clear();
    nodes.pass(12_000);
    assert_eq!(holders(&mut nodes, id), [0, 1, 2]);
    assert_eq!(on_one_host(&nodes), [0; 3]);
    nodes.ids(2, IdVerb::Acknowledge, id);
    nodes.pass(1000);
    assert_eq!((holders(&mut nodes, id), nodes.acks()), (vec![], 0));
}

#[test]
fn a_host_that_goes_while_it_is_asked_is_not_waited_for() {
    let mut nodes = on_hosts(&[1, 1, 2]);
    nodes.cut.push((0, 2));
    let id = nodes.begin(0, Request::Add(copies("q", 2)));
    nodes.pass(200);
    let Some(Answer::Id(id)) = nodes.late(0, id) else {
        panic!("one copy is enough")
    };
    nodes.cut(0, 2, true);
    nodes.cut(1, 2, true);
    nodes.pass(20_000);
    let sent = nodes.scenes[0].home.counters.copies_sent;
    nodes.pass(60_000);
    assert_eq!(nodes.scenes[0].home.counters.copies_sent, sent);
    assert_eq!(holders(&mut nodes, id), [0, 1]);
    // It comes back: the copy that was missing is made.
    nodes.cut(0, 2, false);
    nodes.cut(1, 2, false);
    nodes.pass(12_000);
    assert_eq!(holders(&mut nodes, id), [0, 1, 2]);
}

#[test]
fn a_host_that_comes_gets_a_copy_of_what_lay_on_one() {
    let mut nodes = on_hosts(&[1, 1, 2, 2]);
    for other in [2, 3] {
        nodes.cut(0, other, true);
        nodes.cut(1, other, true);
    }
    let id = nodes.add(0, copies("q", 2)).unwrap();
    assert_eq!(on_one_host(&nodes), [1, 1, 0, 0]);
    for other in [2, 3] {
        nodes.cut(0, other, false);
        nodes.cut(1, other, false);
    }
    nodes.pass(2_000);
    let held = holders(&mut nodes, id);
    assert!(held.len() == 3 && held[2] >= 2, "one of the other host: {held:?}");
    assert_eq!(on_one_host(&nodes), [0; 4]);
}

#[test]
fn repair_makes_up_for_a_lost_host() {
    for once in 0..10 {
        let mut nodes = on_hosts(&[1, 2, 1, 1, 2]);
        (0..once).for_each(|_| drop(nodes.add(0, copies("other", 1))));
        let id = nodes.add(0, copies("q", 2)).unwrap();
        let lost = holders(&mut nodes, id)[1];
        for other in (0..5).filter(|&other| other != lost) {
            nodes.cut(lost, other, true);
        }
        describe(&mut nodes, |node, peer| {
            peer.host = [1, 2, 1, 1, 2][node];
            if node == lost {
                (peer.state, peer.lost) = (PeerState::Failed, true);
            }
        });
        nodes.pass(2_000);
        let held = holders(&mut nodes, id);
        assert!(held.contains(&(5 - lost)), "the other one of host 2: {held:?}");
    }
}

#[test]
fn a_node_that_leaves_leaves_copies_on_two_hosts() {
    let hosts = [1, 2, 1, 2, 2];
    let mut nodes = on_hosts(&hosts);
    let ids: Vec<JobId> = (0..20).map(|_| nodes.add(0, copies("q", 2)).unwrap()).collect();
    describe(&mut nodes, |node, peer| peer.leaving = node == 0);
    nodes.pass(20_000);
    assert_eq!(nodes.scenes[0].home.gauges().jobs, 0, "it gave all away");
    for id in ids {
        let held = holders(&mut nodes, id);
        let on: std::collections::BTreeSet<u64> = held.iter().map(|&node| hosts[node]).collect();
        assert_eq!(on.len(), 2, "{held:?}");
    }
}

/// A node that was asked for a copy while the job was added, and never confirmed, was waited for and asked no more.
#[test]
fn a_node_leaves_although_another_never_confirmed() {
    let mut nodes = on_hosts(&[1, 1, 1, 1]);
    nodes.cut.push((0, 3));
    for _ in 0..8 {
        let added = nodes.begin(0, Request::Add(copies("q", 3)));
        nodes.pass(500);
        assert!(
            matches!(nodes.late(0, added), Some(Answer::Id(_))),
            "the others have it"
        );
    }
    nodes.cut.clear();
    describe(&mut nodes, |node, peer| peer.leaving = node == 0);
    nodes.pass(60_000);
    let held = |nodes: &Nodes, node: usize| nodes.scenes[node].home.gauges().jobs;
    assert_eq!(held(&nodes, 0), 0);
    assert_eq!([1, 2, 3].map(|node| held(&nodes, node)), [8; 3]);
}
