//! The life of a job: delay, order, lease, counters, expiry, the commands about IDs.

use crate::commands::view::JobState::{Active, Queued};
use crate::commands::{IdVerb, Request};
use crate::error::CommandError;
use crate::home::testing::{Scene, bodies, job, once};
use crate::id::JobId;
use crate::message::{Answer, Handed};

fn working(scene: &mut Scene, id: JobId) -> Result<i64, CommandError> {
    match scene.request(Request::Working(id)) {
        Answer::Count(retry_s) => Ok(retry_s),
        Answer::Error(error) => Err(error),
        other => panic!("{other:?}"),
    }
}

#[test]
fn jobs_come_out_in_the_order_in_which_they_were_added() {
    let mut scene = Scene::new();
    (0..5).for_each(|i| _ = scene.add("q", &i.to_string()));
    assert_eq!(scene.length("q"), 5);
    assert_eq!(bodies(&scene.get(&["q"], 3)), ["0", "1", "2"]);
    assert_eq!(bodies(&scene.get(&["q"], 3)), ["3", "4"]);
    assert!(scene.get(&["q"], 3).is_empty());
}

#[test]
fn creation_stamps_grow_when_the_wall_clock_goes_back() {
    let mut scene = Scene::new();
    let first = scene.add("q", "first");
    scene.now.wall_us -= 3_600_000_000;
    let second = scene.add("q", "second");
    let stamps = [first, second].map(|id| scene.show(id).unwrap().ctime);
    assert_eq!(stamps[1], stamps[0] + 1);
    assert_eq!(bodies(&scene.get(&["q"], 2)), ["first", "second"]);
}

#[test]
fn one_job_per_queue_and_pass() {
    let mut scene = Scene::new();
    for body in ["1", "2", "3"] {
        scene.add("a", &format!("a{body}"));
        scene.add("b", &format!("b{body}"));
    }
    assert_eq!(
        bodies(&scene.get(&["b", "missing", "a"], 5)),
        ["b1", "a1", "b2", "a2", "b3"]
    );
    assert!(scene.stat("missing").is_none());
}

#[test]
fn the_lease_runs_from_the_handing_out() {
    let mut scene = Scene::new();
    let id = scene.add("q", "body");
    scene.pass(9_000);
    assert_eq!(scene.get_one("q").handed, Handed { id, delivery: 1 });
    assert_eq!(scene.state(id), Some(Active));
    scene.pass(9_999);
    assert_eq!(scene.length("q"), 0);
    scene.pass(1);
    assert_eq!(scene.length("q"), 1);
    let again = scene.get_one("q");
    assert_eq!(
        (again.handed.delivery, again.nacks, again.additional_deliveries),
        (2, 0, 1)
    );
    assert_eq!(scene.home.counters.requeued, 1);
}

#[test]
fn a_requeued_job_returns_to_its_place() {
    let mut scene = Scene::new();
    scene.add("q", "old");
    scene.get_one("q");
    scene.add("q", "new");
    scene.pass(10_000);
    assert_eq!(bodies(&scene.get(&["q"], 2)), ["old", "new"]);
}

#[test]
fn at_most_once_is_never_handed_out_again() {
    let mut scene = Scene::new();
    let id = scene.add_with(once("q", "body"));
    assert!(!id.at_least_once());
    scene.get_one("q");
    assert_eq!(scene.ids(IdVerb::Enqueue, &[id]), 0);
    assert_eq!(scene.ids(IdVerb::Nack, &[id]), 0);
    let shown = scene.show(id).unwrap();
    assert_eq!((shown.state, shown.next_requeue_ms), (Active, None));
    scene.pass(999_999);
    assert_eq!(scene.length("q"), 0);
    assert_eq!(scene.state(id), Some(Active));
    scene.pass(1);
    assert_eq!(scene.state(id), None);
    assert_eq!(scene.home.counters.expired, 0, "it had done its duty");
}

#[test]
fn life_ends_to_the_millisecond_in_whatever_state() {
    let mut scene = Scene::new();
    let queued = scene.add("q", "queued");
    let leased = scene.add("l", "leased");
    scene.get_one("l");
    let delayed = scene.add_with(crate::commands::AddJob {
        delay_s: 999,
        ..job("d", "")
    });
    scene.pass(998_999);
    scene.get_one("l");
    scene.leap(1_000);
    assert!(
        [queued, leased, delayed]
            .iter()
            .all(|id| scene.state(*id).is_some())
    );
    scene.leap(1);
    assert!(
        scene.get(&["q", "d"], 10).is_empty(),
        "also when its timer has not fired"
    );
    assert!(
        [queued, leased, delayed]
            .iter()
            .all(|id| scene.state(*id).is_none())
    );
    assert_eq!(scene.home.counters.expired, 3);
    scene.settle();
}

#[test]
fn a_delay_ends_to_the_millisecond_and_counts_no_delivery() {
    let mut scene = Scene::new();
    for add in [job("q", "many"), once("q", "one")] {
        let id = scene.add_with(crate::commands::AddJob { delay_s: 5, ..add });
        assert_eq!(scene.show(id).unwrap().next_requeue_ms, Some(5_000));
    }
    scene.pass(4_999);
    assert_eq!(scene.length("q"), 0);
    scene.pass(1);
    let jobs = scene.get(&["q"], 2);
    assert_eq!(bodies(&jobs), ["many", "one"]);
    assert!(jobs.iter().all(|job| job.additional_deliveries == 0));
}

#[test]
fn nack_and_enqueue_count_on_their_own() {
    let mut scene = Scene::new();
    let id = scene.add("q", "body");
    assert_eq!(scene.ids(IdVerb::Nack, &[id]), 0, "it is queued");
    scene.get_one("q");
    assert_eq!(scene.ids(IdVerb::Nack, &[id, id]), 1);
    scene.get_one("q");
    assert_eq!(scene.ids(IdVerb::Enqueue, &[id]), 1);
    let job = scene.get_one("q");
    assert_eq!(
        (job.nacks, job.additional_deliveries, job.handed.delivery),
        (1, 1, 3)
    );
}

#[test]
fn a_dequeued_job_returns_after_a_full_retry_and_at_most_once_by_enqueue() {
    let mut scene = Scene::new();
    let many = scene.add("q", "many");
    let one = scene.add_with(once("q", "one"));
    scene.pass(8_000);
    assert_eq!(scene.ids(IdVerb::Dequeue, &[many, one, many]), 2);
    assert_eq!(
        (scene.state(many), scene.state(one)),
        (Some(Active), Some(Active))
    );
    scene.pass(9_999);
    assert_eq!(scene.length("q"), 0);
    scene.pass(1);
    assert_eq!(bodies(&scene.get(&["q"], 2)), ["many"]);
    assert_eq!(scene.ids(IdVerb::Enqueue, &[one]), 1);
    assert_eq!(scene.get_one("q").additional_deliveries, 1);
}

#[test]
fn acknowledged_deleted_and_fast_acknowledged_jobs_are_gone() {
    let mut scene = Scene::new();
    for verb in [IdVerb::Acknowledge, IdVerb::FastAcknowledge, IdVerb::Delete] {
        let ids = [scene.add("q", ""), scene.add("q", "")];
        let leased = scene.get_one("q").handed.id;
        assert_eq!(scene.ids(verb, &[ids[0], ids[1], leased]), 2);
        assert_eq!(scene.ids(verb, &ids), 0);
        assert_eq!(scene.length("q"), 0);
    }
    let counters = &scene.home.counters;
    assert_eq!(
        [
            counters.acknowledged,
            counters.fast_acknowledged,
            counters.deleted
        ],
        [2; 3]
    );
    scene.pass(20_000);
    assert_eq!(scene.length("q"), 0);
}

#[test]
fn working_restarts_the_lease_until_half_of_the_life_is_over() {
    let mut scene = Scene::new();
    let id = scene.add("q", "");
    let once_id = scene.add_with(once("o", ""));
    scene.get_one("q");
    scene.pass(9_000);
    assert_eq!(working(&mut scene, id), Ok(10));
    scene.pass(9_999);
    assert_eq!(scene.length("q"), 0);
    scene.pass(1);
    assert_eq!(scene.length("q"), 1);
    assert_eq!(working(&mut scene, id), Ok(10));
    assert_eq!(scene.length("q"), 0, "taken out of its queue");
    assert_eq!(working(&mut scene, once_id), Ok(0));
    assert_eq!(scene.state(once_id), Some(Queued), "nothing would bring it back");
    scene.leap(500_000 - 19_000);
    assert_eq!(working(&mut scene, id), Ok(10));
    scene.leap(1);
    assert_eq!(working(&mut scene, id), Err(CommandError::TooLate));
    scene.ids(IdVerb::Delete, &[id]);
    assert_eq!(working(&mut scene, id), Err(CommandError::NoJob));
}

#[test]
fn what_never_reached_the_client_returns_uncounted() {
    let mut scene = Scene::new();
    let many = scene.add("q", "many");
    let one = scene.add_with(once("q", "one"));
    let jobs = scene.get(&["q"], 2);
    jobs.iter().for_each(|job| scene.undelivered(job.handed));
    assert_eq!(
        (scene.state(many), scene.state(one)),
        (Some(Queued), Some(Queued))
    );
    let stat = scene.stat("q").unwrap();
    assert_eq!((stat.jobs_in, stat.jobs_out), (2, 0));
    let again = scene.get(&["q"], 2);
    assert!(
        again
            .iter()
            .all(|job| job.additional_deliveries == 0 && job.nacks == 0)
    );
    jobs.iter().for_each(|job| scene.undelivered(job.handed));
    assert_eq!(scene.length("q"), 0, "that is an earlier handing out");
    scene.ids(IdVerb::Nack, &[many]);
    scene.ids(IdVerb::Dequeue, &[many]);
    scene.undelivered(again[0].handed);
    assert_eq!(
        scene.state(many),
        Some(Active),
        "the client had it: it was dequeued since"
    );
    assert_eq!(scene.home.counters.undelivered_returned, 2);
}

#[test]
fn show_tells_when_a_job_is_due() {
    let mut scene = Scene::new();
    let id = scene.add("q", "body");
    scene.leap(500);
    let queued = scene.show(id).unwrap();
    assert_eq!(
        (queued.ttl_s, queued.next_requeue_ms, queued.next_awake_ms),
        (1000, Some(10_000), Some(999_500))
    );
    scene.get_one("q");
    scene.leap(1_500);
    let leased = scene.show(id).unwrap();
    assert_eq!(
        (leased.ttl_s, leased.next_requeue_ms, leased.next_awake_ms),
        (998, Some(8_500), Some(8_500))
    );
    assert_eq!(
        (leased.retry_s, leased.delay_s, leased.replicate, &leased.body[..]),
        (10, 0, 1, &b"body"[..])
    );
}

#[test]
fn many_jobs_that_expire_together_are_removed_in_steps() {
    let mut scene = Scene::new();
    scene.fill(3000, &job("q", ""));
    scene.leap(1_000_000);
    scene.home.tick(scene.now);
    let left = scene.home.gauges().jobs;
    assert!(left >= 3000 - crate::limits::UPKEEP_STEP as u64, "{left}");
    assert!(scene.home.next_deadline().unwrap() <= scene.now.mono());
    scene.settle();
    assert_eq!(scene.home.gauges().jobs, 0);
}
