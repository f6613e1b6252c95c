//! DEBUG FLUSHALL.

use super::cluster::{Nodes, QUEUED, copies, number};
use crate::commands::Request;
use crate::home::testing::{Scene, job};
use crate::memory::Memory;
use crate::message::Answer;
use crate::message::Manner::{Deliver, Offer};
use crate::message::Patience::{Jobs, Reserved};

#[test]
fn everything_is_gone_at_once_and_torn_down_in_steps() {
    let mut scene = Scene::new();
    let ids = scene.fill(10_000, &job("q", ""));
    scene.pause("p", true, true);
    scene.home.flush(scene.now);
    assert_eq!((scene.length("q"), scene.home.memory.used()), (0, 0));
    assert!(scene.state(ids[7]).is_none() && scene.stat("p").is_none());
    assert_eq!(scene.home.counters.flushed, 10_000);
    scene.home.tick(scene.now);
    assert!(
        scene.home.next_deadline().unwrap() <= scene.now.mono(),
        "there is rubble left"
    );
    scene.add("q", "new");
    scene.settle();
    assert_eq!(scene.length("q"), 1);
}

#[test]
fn who_waits_ends_with_nothing() {
    let mut scene = Scene::new();
    scene.add("r", "");
    let (holder, ids) = scene.offered(&["r"], 1, Jobs);
    let waiting = [
        scene.wait(&["q"], 1, Deliver, Jobs),
        scene.wait(&["q"], 1, Offer, Jobs),
        scene.wait(&["r"], 1, Deliver, Reserved),
    ];
    scene.home.flush(scene.now);
    for ticket in waiting {
        assert!(matches!(scene.late(ticket).as_slice(), [Answer::Nothing]));
    }
    assert!(scene.claim(holder, &ids).is_empty());
    assert!(
        matches!(scene.late(holder).as_slice(), [Answer::Nothing]),
        "also who was about to claim"
    );
    assert_eq!(scene.home.gauges(), crate::home::Gauges::default());
}

#[test]
fn addjobs_that_wait_for_memory_get_what_was_freed() {
    let mut scene = Scene::with_memory(Memory::new(1400));
    scene.add("q", "");
    scene.add("q", "");
    let ticket = scene.ticket();
    let mut answer = scene.request_as(ticket, Request::Add(job("q", "")));
    let mut last = ticket;
    while !matches!(answer, Answer::Waiting) {
        last = scene.ticket();
        answer = scene.request_as(last, Request::Add(job("q", "")));
    }
    scene.home.flush(scene.now);
    assert!(matches!(scene.late(last).as_slice(), [Answer::Id(_)]));
    assert_eq!(scene.length("q"), 1);
}

#[test]
fn little_leaves_no_rubble() {
    let mut scene = Scene::new();
    for _ in 0..100 {
        scene.fill(3, &job("q", ""));
        scene.home.flush(scene.now);
        assert!(
            scene.home.next_deadline().is_none(),
            "nothing is left to tear down"
        );
    }
}

#[test]
fn copies_of_what_a_node_flushed_live_on_elsewhere() {
    for flushed in 0..2 {
        let mut nodes = Nodes::new(3);
        let id = nodes.add(0, copies("q", 2)).unwrap();
        let held = nodes.states(id);
        let other = (1..3).find(|&node| held[node].is_some()).unwrap();
        let flushed = [0, other][flushed];
        // As the node does it: the epoch first, and nothing in between.
        let epoch = |node| 1 + u64::from(node == flushed);
        let all: Vec<(usize, u64)> = (0..3).map(|node| (node, epoch(node))).collect();
        for node in 0..3 {
            nodes.publish(node, &all);
        }
        for node in (0..3).filter(|&node| node != flushed) {
            let now = nodes.scenes[node].now;
            nodes.scenes[node]
                .home
                .peer_epoch_changed(now, number(flushed, node));
        }
        let now = nodes.scenes[flushed].now;
        nodes.scenes[flushed].home.flush(now);
        nodes.pass(20_000);
        let states = nodes.states(id);
        let alive = states.iter().flatten().count();
        assert_eq!(alive, 2, "it was copied again: {states:?}");
        assert!(states.contains(&QUEUED), "{states:?}");
    }
}
