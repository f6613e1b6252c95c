//! Short memory: eviction, waiting for a loan, refusal.

use crate::commands::{AddJob, IdVerb, Request};
use crate::error::CommandError;
use crate::home::job::{JOB_BYTES, Job};
use crate::home::testing::{Scene, job, once};
use crate::memory::Memory;
use crate::message::Answer;

const BUDGET: u64 = 3 << 20;

fn big(queue: &str, kib: usize) -> AddJob {
    AddJob {
        body: vec![b'x'; kib << 10].as_slice().into(),
        ..job(queue, "")
    }
}

/// Adds it where there is nothing to be borrowed.
fn add(scene: &mut Scene, add: AddJob) -> Answer {
    let ticket = scene.ticket();
    match scene.request_as(ticket, Request::Add(add)) {
        Answer::Waiting => {
            scene.home.memory_lent(scene.now, true);
            scene.late(ticket).remove(0)
        }
        answer => answer,
    }
}

fn is_refused(answer: &Answer) -> bool {
    matches!(answer, Answer::Error(CommandError::OutOfMemory))
}

#[test]
fn a_job_is_144_bytes() {
    assert_eq!(size_of::<Job>(), 144);
}

#[test]
fn all_that_is_charged_is_released() {
    let mut scene = Scene::new();
    for i in 0..50 {
        scene.add_with(big(&format!("{i}{}", "x".repeat(100)), 1));
    }
    let ids: Vec<_> = (0..50)
        .flat_map(|i| scene.get(&[&format!("{i}{}", "x".repeat(100))], 1))
        .map(|job| job.handed.id)
        .collect();
    assert!(scene.home.memory.used() > 50 * (1024 + 100 + JOB_BYTES));
    scene.ids(IdVerb::Acknowledge, &ids);
    scene.pass(400_000);
    assert_eq!(scene.home.memory.used(), 0, "queues are collected too");
}

#[test]
fn a_small_budget_holds_small_jobs_by_the_thousand() {
    let mut scene = Scene::with_memory(Memory::new(BUDGET));
    let mut held = 0;
    while let Answer::Id(_) = scene.home.request(
        scene.now,
        Scene::new().ticket(),
        Request::Add(job("q", "twelve bytes")),
    ) {
        held += 1;
    }
    scene.check();
    assert!(held > 15_000, "{held}");
    assert!(scene.home.memory.used() <= BUDGET);
}

#[test]
fn delivered_at_most_once_jobs_are_evicted_oldest_first_and_nothing_else() {
    let mut scene = Scene::with_memory(Memory::new(BUDGET));
    let keep = scene.add_with(big("q", 1000));
    let first = scene.add_with(AddJob {
        retry_s: 0,
        ..big("o", 700)
    });
    let second = scene.add_with(AddJob {
        retry_s: 0,
        ..big("o", 700)
    });
    assert!(
        is_refused(&add(&mut scene, big("q", 1000))),
        "undelivered jobs are never dropped"
    );
    scene.get(&["o"], 2);
    assert!(
        is_refused(&add(&mut scene, big("q", 1000))),
        "their replies may be on their way"
    );
    scene.leap(6000);
    scene.home.set_evicts(false);
    assert!(is_refused(&add(&mut scene, big("q", 1000))), "noeviction");
    scene.home.set_evicts(true);
    assert!(matches!(add(&mut scene, big("q", 1000)), Answer::Id(_)));
    assert!(scene.state(first).is_none() && scene.state(second).is_some() && scene.state(keep).is_some());
    assert_eq!(scene.home.counters.evicted, 1);
}

#[test]
fn addjobs_wait_for_a_loan_in_order_and_are_refused_when_there_is_none() {
    let mut scene = Scene::with_memory(Memory::new(1 << 20));
    let tickets: Vec<_> = [900, 900, 10, 900].map(|kib| (scene.ticket(), kib)).into();
    let answers: Vec<_> = tickets
        .iter()
        .map(|&(ticket, kib)| scene.request_as(ticket, Request::Add(big("q", kib))))
        .collect();
    assert!(matches!(
        answers.as_slice(),
        [Answer::Id(_), Answer::Waiting, Answer::Waiting, Answer::Waiting]
    ));
    assert!(scene.home.waiting_bytes() > 1810 << 10);
    scene.home.memory.set_budget(2 << 20);
    scene.home.memory_lent(scene.now, false);
    let ends: Vec<_> = tickets.iter().map(|&(ticket, _)| scene.late(ticket)).collect();
    assert!(matches!(ends[1].as_slice(), [Answer::Id(_)]) && matches!(ends[2].as_slice(), [Answer::Id(_)]));
    assert!(ends[3].is_empty());
    scene.home.memory_lent(scene.now, true);
    assert!(is_refused(&scene.late(tickets[3].0)[0]));
    assert_eq!((scene.home.waiting_bytes(), scene.home.gauges().short), (0, 0));
    assert_eq!(scene.length("q"), 3);
}

#[test]
fn a_waiting_addjob_can_be_cancelled() {
    let mut scene = Scene::with_memory(Memory::new(0));
    let ticket = scene.ticket();
    assert!(matches!(
        scene.request_as(ticket, Request::Add(once("q", ""))),
        Answer::Waiting
    ));
    scene.cancel(ticket);
    assert!(matches!(scene.late(ticket).as_slice(), [Answer::Nothing]));
    assert_eq!(scene.home.waiting_bytes(), 0);
}

#[test]
fn enqueue_and_nack_run_over_the_limit() {
    let mut scene = Scene::with_memory(Memory::new(BUDGET));
    let id = scene.add("q", "");
    scene.home.memory.set_budget(10);
    for verb in [IdVerb::Enqueue, IdVerb::Nack] {
        scene.get_one("q");
        assert_eq!(scene.ids(verb, &[id]), 1);
    }
}

#[test]
fn memory_is_borrowed_before_anything_is_evicted() {
    let mut scene = Scene::with_memory(Memory::new(1 << 20));
    let spent = scene.add_with(AddJob {
        retry_s: 0,
        ..big("o", 700)
    });
    scene.get_one("o");
    scene.leap(60_000);
    let ticket = scene.ticket();
    let answer = scene.request_as(ticket, Request::Add(big("q", 700)));
    assert!(matches!(answer, Answer::Waiting) && scene.state(spent).is_some());
    scene.home.memory.set_budget(2 << 20);
    scene.home.memory_lent(scene.now, false);
    assert!(matches!(scene.late(ticket).as_slice(), [Answer::Id(_)]));
    assert!(scene.state(spent).is_some());
    assert!(matches!(add(&mut scene, big("q", 700)), Answer::Id(_)));
    assert!(
        scene.state(spent).is_none(),
        "nothing more is lent: it is evicted"
    );
}

#[test]
fn maxlen_and_pause_are_checked_before_memory() {
    let mut scene = Scene::with_memory(Memory::new(BUDGET));
    scene.add("q", "");
    let answer = add(
        &mut scene,
        AddJob {
            max_len: Some(1),
            ..big("q", 9000)
        },
    );
    assert!(matches!(answer, Answer::Error(CommandError::MaxLen)));
    scene.offered(&["q"], 1, crate::message::Patience::Jobs);
    let answer = add(
        &mut scene,
        AddJob {
            max_len: Some(1),
            ..job("q", "")
        },
    );
    assert!(
        matches!(answer, Answer::Error(CommandError::MaxLen)),
        "reserved jobs count"
    );
    scene.get(&["q"], 1);
    assert!(matches!(
        add(
            &mut scene,
            AddJob {
                max_len: Some(2),
                ..job("q", "")
            }
        ),
        Answer::Id(_)
    ));
}
