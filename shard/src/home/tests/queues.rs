//! Queues: what QSTAT tells, and when they are collected.

use crate::commands::{IdVerb, Request};
use crate::home::testing::{Scene, job, take};
use crate::message::Manner::Deliver;
use crate::message::Patience::Jobs;

#[test]
fn qstat_counts() {
    let mut scene = Scene::new();
    assert!(scene.stat("q").is_none());
    let id = scene.add("q", "");
    scene.pass(3_000);
    scene.get_one("q");
    scene.ids(IdVerb::Nack, &[id]);
    scene.ids(IdVerb::Dequeue, &[id]);
    scene.pass(2_500);
    let stat = scene.stat("q").unwrap();
    assert_eq!((stat.jobs_in, stat.jobs_out, stat.length), (2, 1, 0));
    assert_eq!((stat.age_s, stat.idle_s), (5, 2));
}

#[test]
fn an_idle_queue_is_collected_after_five_minutes() {
    let mut scene = Scene::new();
    let id = scene.add("q", "");
    scene.get_one("q");
    scene.pass(9_000);
    scene.ids(IdVerb::Acknowledge, &[id]);
    scene.pass(291_000);
    assert!(scene.stat("q").is_some());
    scene.pass(1);
    assert!(scene.stat("q").is_none());
    assert_eq!(scene.home.counters.queues_collected, 1);
}

#[test]
fn jobs_waiters_and_pause_keep_a_queue() {
    let mut scene = Scene::new();
    scene.add_with(crate::commands::AddJob {
        delay_s: 900,
        ..job("delayed", "")
    });
    let ticket = scene.wait(&["awaited"], 1, Deliver, Jobs);
    scene.pause("paused", true, false);
    scene.pass(800_000);
    ["delayed", "awaited", "paused"]
        .iter()
        .for_each(|queue| assert!(scene.stat(queue).is_some(), "{queue}"));
    scene.cancel(ticket);
    scene.pause("paused", false, false);
    scene.pass(700_000);
    ["delayed", "awaited", "paused"]
        .iter()
        .for_each(|queue| assert!(scene.stat(queue).is_none(), "{queue}"));
}

#[test]
fn a_higher_memory_level_collects_sooner() {
    let mut scene = Scene::new();
    for i in 0..2000 {
        let queue = format!("q{i}");
        let ticket = scene.ticket();
        scene.home.request(
            scene.now,
            ticket,
            Request::Take(take(&[&queue], 1, Deliver, Jobs)),
        );
        scene.home.cancel(scene.now, ticket);
    }
    scene.pass(9_000);
    scene.home.set_memory_level(1);
    scene.settle();
    assert_eq!(scene.home.gauges().queues, 2000);
    scene.pass(1_001);
    assert_eq!(scene.home.gauges().queues, 0);
    let ticket = scene.wait(&["q"], 1, Deliver, Jobs);
    scene.cancel(ticket);
    scene.pass(5_000);
    scene.home.set_memory_level(2);
    scene.settle();
    assert_eq!(scene.home.gauges().queues, 0, "it was idle for longer already");
}
