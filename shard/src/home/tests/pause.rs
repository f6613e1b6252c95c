//! PAUSE: every way in and out, and what happens when it is opened again.

use crate::commands::view::JobState::{Active, Queued};
use crate::commands::view::PauseState;
use crate::commands::{AddJob, IdVerb, Pause, Request};
use crate::error::CommandError;
use crate::home::testing::{Scene, bodies, job, once};
use crate::limits::UPKEEP_STEP;
use crate::message::Answer;
use crate::message::Manner::Deliver;
use crate::message::Patience::Jobs;
use crate::wire::Blob;

#[test]
fn it_replaces_the_state_and_creates_a_queue_only_to_close_it() {
    let mut scene = Scene::new();
    let pause = |state| {
        Request::Pause(Pause {
            queue: Blob::from("q"),
            state,
            broadcast: true,
        })
    };
    for (state, after) in [(None, false), (Some(PauseState::default()), false)] {
        assert!(matches!(scene.request(pause(state)), Answer::Pause(now) if now.any() == after));
        assert!(scene.stat("q").is_none());
    }
    scene.pause("q", true, false);
    scene.pause("q", false, true);
    assert_eq!(
        scene.stat("q").unwrap().pause,
        PauseState {
            input: false,
            output: true
        }
    );
    assert!(matches!(scene.request(pause(None)), Answer::Pause(now) if now.output));
}

#[test]
fn paused_in_refuses_new_jobs_and_skips_ids() {
    let mut scene = Scene::new();
    let id = scene.add("q", "");
    scene.get_one("q");
    scene.pause("q", true, false);
    assert!(matches!(
        scene.request(Request::Add(job("q", ""))),
        Answer::Error(CommandError::Paused)
    ));
    for verb in [IdVerb::Enqueue, IdVerb::Nack] {
        let answer = scene.request(Request::Ids {
            verb,
            ids: smallvec::smallvec![id],
        });
        assert!(matches!(
            answer,
            Answer::Entered {
                counted: 0,
                paused: 1
            }
        ));
    }
    assert_eq!(scene.state(id), Some(Active));
}

#[test]
fn what_falls_due_while_paused_in_waits_and_enters_in_order() {
    let mut scene = Scene::new();
    let leased = scene.add("q", "leased");
    scene.get_one("q");
    let back = scene.add("q", "back");
    let handed = scene.get_one("q").handed;
    scene.add_with(AddJob {
        delay_s: 3,
        ..once("q", "delayed")
    });
    scene.pause("q", true, false);
    scene.undelivered(handed);
    scene.pass(30_000);
    assert_eq!(scene.length("q"), 0);
    assert_eq!(
        (scene.state(leased), scene.state(back)),
        (Some(Active), Some(Active))
    );
    assert_eq!(scene.show(leased).unwrap().next_requeue_ms, Some(0));
    scene.pause("q", false, false);
    let jobs = scene.get(&["q"], 9);
    assert_eq!(bodies(&jobs), ["leased", "back", "delayed"]);
    let counted: Vec<u32> = jobs.iter().map(|job| job.additional_deliveries).collect();
    assert_eq!(counted, [1, 0, 0], "what was undone or is new is not counted");
}

#[test]
fn a_held_job_can_be_ended_postponed_and_expires() {
    let mut scene = Scene::new();
    let ids = ["acked", "worked", "dead"].map(|body| scene.add("q", body));
    scene.get(&["q"], 3);
    scene.pause("q", true, false);
    scene.pass(10_000);
    scene.ids(IdVerb::Acknowledge, &ids[..1]);
    scene.request(Request::Working(ids[1]));
    assert_eq!(scene.show(ids[1]).unwrap().next_requeue_ms, Some(10_000));
    scene.pass(1_000_000);
    assert!(ids.iter().all(|id| scene.state(*id).is_none()));
    assert_eq!(scene.home.counters.expired, 2);
}

#[test]
fn paused_out_keeps_jobs_and_waiters_apart() {
    let mut scene = Scene::new();
    scene.add("q", "1");
    scene.pause("q", false, true);
    assert!(scene.get(&["q"], 1).is_empty());
    let ticket = scene.wait(&["q"], 5, Deliver, Jobs);
    let id = scene.add("q", "2");
    assert_eq!(scene.state(id), Some(Queued));
    scene.pass(1_000);
    assert!(scene.late(ticket).is_empty());
    scene.pause("q", false, false);
    assert_eq!(bodies(&scene.late_jobs(ticket)), ["1", "2"]);
}

#[test]
fn opening_both_ways_serves_in_steps_and_in_order() {
    let mut scene = Scene::new();
    let many = 3 * UPKEEP_STEP;
    scene.fill(
        many,
        &AddJob {
            delay_s: 1,
            ..job("q", "")
        },
    );
    scene.pause("q", true, true);
    scene.pass(1_000);
    let tickets: Vec<_> = (0..many).map(|_| scene.wait(&["q"], 1, Deliver, Jobs)).collect();
    scene.pause("q", false, false);
    let served = scene.home.gauges();
    assert!(
        served.waiters >= (many - UPKEEP_STEP) as u64,
        "one step at a time"
    );
    let late = scene.wait(&["q"], 1, Deliver, Jobs);
    let last = scene.add("q", "last");
    scene.settle();
    for (i, ticket) in tickets.iter().enumerate() {
        assert_eq!(bodies(&scene.late_jobs(*ticket)), [i.to_string()]);
    }
    assert_eq!(scene.late_jobs(late)[0].handed.id, last, "nobody pushed in");
}

#[test]
fn closing_again_in_between_stops_the_entering() {
    let mut scene = Scene::new();
    let many = 2 * UPKEEP_STEP;
    scene.fill(
        many,
        &AddJob {
            delay_s: 1,
            ..job("q", "")
        },
    );
    scene.pause("q", true, false);
    scene.pass(1_000);
    scene.pause("q", false, false);
    scene.pause("q", true, false);
    scene.settle();
    assert_eq!(scene.length("q"), UPKEEP_STEP as i64);
    scene.pause("q", false, false);
    scene.settle();
    assert_eq!(scene.length("q"), many as i64);
}
