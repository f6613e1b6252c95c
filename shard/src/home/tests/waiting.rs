//! Blocked GETJOBs of one shard: order, count, end.

use crate::commands::{IdVerb, Request};
use crate::home::testing::{Scene, bodies, job, take};
use crate::message::Answer;
use crate::message::Manner::Deliver;
use crate::message::Patience::{self, Jobs, Reserved};

#[test]
fn waiters_are_served_in_blocking_order() {
    let mut scene = Scene::new();
    let first = scene.wait(&["q", "other"], 1, Deliver, Jobs);
    let second = scene.wait(&["q"], 1, Deliver, Jobs);
    assert_eq!(scene.stat("q").unwrap().blocked, 2);
    scene.add("q", "1");
    scene.add("q", "2");
    scene.add("q", "3");
    assert_eq!(bodies(&scene.late_jobs(first)), ["1"]);
    assert_eq!(bodies(&scene.late_jobs(second)), ["2"]);
    assert_eq!(scene.stat("other").unwrap().blocked, 0);
    assert_eq!(scene.length("q"), 1);
}

#[test]
fn a_waiter_learns_which_of_its_queues_a_job_came_from() {
    let mut scene = Scene::new();
    let ticket = scene.wait(&["a", "b"], 9, Deliver, Jobs);
    scene.add("b", "x");
    let jobs = scene.late_jobs(ticket);
    assert_eq!((jobs[0].place, &jobs[0].queue[..]), (1, &b"b"[..]));
}

#[test]
fn every_way_into_a_queue_serves_a_waiter() {
    let mut scene = Scene::new();
    let id = scene.add("q", "");
    scene.get_one("q");
    let ticket = scene.wait(&["q"], 1, Deliver, Jobs);
    scene.ids(IdVerb::Nack, &[id]);
    let handed = scene.late_jobs(ticket)[0].handed;
    let ticket = scene.wait(&["q"], 1, Deliver, Jobs);
    scene.undelivered(handed);
    assert_eq!(scene.late_jobs(ticket)[0].handed.delivery, 3);
    let ticket = scene.wait(&["q"], 1, Deliver, Jobs);
    scene.pass(10_000);
    assert_eq!(scene.late_jobs(ticket)[0].handed.delivery, 4);
    let ticket = scene.wait(&["q"], 1, Deliver, Jobs);
    scene.ids(IdVerb::Enqueue, &[id]);
    assert_eq!(scene.late_jobs(ticket)[0].handed.delivery, 5);
    let ticket = scene.wait(&["d"], 1, Deliver, Jobs);
    scene.add_with(crate::commands::AddJob {
        delay_s: 1,
        ..job("d", "late")
    });
    assert!(scene.late(ticket).is_empty());
    scene.pass(1_000);
    assert_eq!(bodies(&scene.late_jobs(ticket)), ["late"]);
}

#[test]
fn a_cancelled_wait_ends_once() {
    let mut scene = Scene::new();
    let ticket = scene.wait(&["q"], 1, Deliver, Jobs);
    scene.cancel(ticket);
    assert!(matches!(scene.late(ticket).as_slice(), [Answer::Nothing]));
    scene.add("q", "");
    assert_eq!(scene.length("q"), 1);
    let ticket = scene.wait(&["r"], 1, Deliver, Jobs);
    scene.add("r", "");
    scene.cancel(ticket);
    assert_eq!(
        scene.late_jobs(ticket).len(),
        1,
        "the jobs were on their way: the cancel is silent"
    );
}

#[test]
fn without_patience_nothing_is_created_and_nobody_waits() {
    let mut scene = Scene::new();
    for patience in [Patience::None, Reserved] {
        let answer = scene.request(Request::Take(take(&["q"], 1, Deliver, patience)));
        assert!(matches!(answer, Answer::Nothing));
    }
    assert!(scene.stat("q").is_none());
    assert_eq!(scene.home.gauges().waiters, 0);
}

#[test]
fn a_waiter_that_is_offered_again_takes_all_that_is_there() {
    let mut scene = Scene::new();
    scene.pause("q", false, true);
    ["1", "2", "3"].iter().for_each(|body| _ = scene.add("q", body));
    let first = scene.wait(&["q"], 2, Deliver, Jobs);
    let second = scene.wait(&["q"], 2, Deliver, Jobs);
    scene.pause("q", false, false);
    assert_eq!(bodies(&scene.late_jobs(first)), ["1", "2"]);
    assert_eq!(bodies(&scene.late_jobs(second)), ["3"]);
}

#[test]
fn a_queue_named_twice_is_waited_for_once() {
    let mut scene = Scene::new();
    let ticket = scene.wait(&["q", "r", "q", "q"], 2, Deliver, Jobs);
    assert_eq!(scene.stat("q").unwrap().blocked, 1);
    scene.add("q", "1");
    assert_eq!(scene.late_jobs(ticket)[0].place, 0);
    assert_eq!(scene.stat("q").unwrap().blocked, 0);
    scene.add("q", "2");
    scene.offered(&["q"], 1, Jobs);
    let ticket = scene.wait(&["q", "q"], 1, Deliver, Reserved);
    assert_eq!(scene.stat("q").unwrap().blocked, 1);
    scene.cancel(ticket);
}

#[test]
fn who_would_wait_does_not_push_in() {
    let mut scene = Scene::new();
    scene.pause("q", false, true);
    scene.fill(600, &job("q", ""));
    let waiters: Vec<_> = (0..600).map(|_| scene.wait(&["q"], 1, Deliver, Jobs)).collect();
    scene.add("q", "more");
    scene.pause("q", false, false);
    assert!(scene.late(waiters[599]).is_empty(), "they are served in steps");
    let answer = scene.request(Request::Take(take(&["q"], 2, Deliver, Patience::Try)));
    assert!(matches!(answer, Answer::Nothing), "it stands in line");
    scene.settle();
    assert_eq!(scene.late_jobs(waiters[599]).len(), 1);
    let answer = scene.request(Request::Take(take(&["q"], 2, Deliver, Patience::Try)));
    assert!(matches!(answer, Answer::Jobs(jobs) if bodies(&jobs) == ["more"]));
}
