//! What a session asks behind a request of its own that waits here: done in order, and nobody else is held up.

use proptest::prelude::*;

use crate::commands::view::PauseState;
use crate::commands::{AddJob, IdVerb, Pause, Request};
use crate::home::Gauges;
use crate::home::testing::{Scene, bodies, job, once, take};
use crate::id::JobId;
use crate::limits::{IDS_STEP, LINE_ITEMS, UPKEEP_STEP};
use crate::memory::Memory;
use crate::message::Manner::Deliver;
use crate::message::Patience::{Jobs, Reserved};
use crate::message::{Answer, Ticket};
use crate::wire::Blob;

const PLENTY: u64 = 1 << 30;

/// A session at work: its requests so far.
struct Pipeline {
    tickets: Vec<Ticket>,
}

impl Pipeline {
    /// Begins with an ADDJOB for which there is no memory.
    fn behind_memory(scene: &mut Scene) -> Self {
        scene.home.memory.set_budget(0);
        let ticket = scene.ticket();
        let answer = scene.request_as(ticket, Request::Add(job("q", "first")));
        assert!(matches!(answer, Answer::Waiting));
        Self {
            tickets: vec![ticket],
        }
    }

    /// Begins with a NOHANG GETJOB of a queue whose only job is reserved for another session; that one's ticket and the job.
    fn behind_reservation(scene: &mut Scene) -> (Self, Ticket, Vec<JobId>) {
        scene.add("q", "reserved");
        let (holder, ids) = scene.offered(&["q"], 1, Jobs);
        let ticket = scene.wait(&["q"], 1, Deliver, Reserved);
        let pipeline = Self {
            tickets: vec![ticket],
        };
        (pipeline, holder, ids)
    }

    /// The next request, which stands behind the others.
    fn ask(&mut self, scene: &mut Scene, request: Request) -> Ticket {
        let last = self.tickets[self.tickets.len() - 1];
        let ticket = Ticket {
            request: last.request.wrapping_add(1),
            ..last
        };
        let answer = scene.request_as(ticket, request);
        assert!(matches!(answer, Answer::Waiting), "{answer:?}");
        self.tickets.push(ticket);
        ticket
    }

    /// How many of its requests have ended.
    fn ended(&self, scene: &mut Scene) -> usize {
        let ended = self
            .tickets
            .iter()
            .filter(|&&ticket| !scene.late(ticket).is_empty());
        ended.count()
    }
}

fn lend(scene: &mut Scene) {
    scene.home.memory.set_budget(PLENTY);
    scene.home.memory_lent(scene.now, false);
    scene.settle();
}

fn length(queue: &str) -> Request {
    Request::Length(Blob::from(queue))
}

fn nohang(queue: &str, count: u32) -> Request {
    Request::Take(take(&[queue], count, Deliver, Reserved))
}

fn ids(verb: IdVerb, ids: &[JobId]) -> Request {
    Request::Ids {
        verb,
        ids: ids.iter().copied().collect(),
    }
}

#[test]
fn what_stands_behind_an_addjob_that_waits_for_memory_follows_it() {
    let mut scene = Scene::new();
    let old = scene.add("q", "old");
    let mut alice = Pipeline::behind_memory(&mut scene);
    let counted = alice.ask(&mut scene, length("q"));
    let got = alice.ask(&mut scene, nohang("q", 2));
    let acked = alice.ask(&mut scene, ids(IdVerb::Acknowledge, &[old]));
    let shown = alice.ask(&mut scene, Request::Show(old));
    let added = alice.ask(&mut scene, Request::Add(job("q", "second")));
    let left = alice.ask(&mut scene, length("q"));
    assert_eq!(scene.length("q"), 1, "another session is not held up");
    scene.settle();
    assert_eq!(alice.ended(&mut scene), 0);
    assert_eq!(scene.home.gauges().behind, 6);
    lend(&mut scene);
    let first = scene.late(alice.tickets[0]);
    assert!(matches!(first.as_slice(), [Answer::Id(_)]));
    assert!(matches!(scene.late(counted).as_slice(), [Answer::Count(2)]));
    assert_eq!(bodies(&scene.late_jobs(got)), ["old", "first"]);
    assert!(matches!(scene.late(acked).as_slice(), [Answer::Count(1)]));
    assert!(matches!(scene.late(shown).as_slice(), [Answer::Job(None)]));
    assert!(matches!(scene.late(added).as_slice(), [Answer::Id(_)]));
    assert!(matches!(scene.late(left).as_slice(), [Answer::Count(1)]));
    assert_eq!(scene.home.gauges().behind, 0);
}

#[test]
fn addjobs_overlap_until_something_else_stands_behind_them() {
    let mut scene = Scene::new();
    let mut alice = Pipeline::behind_memory(&mut scene);
    alice.ask(&mut scene, Request::Add(job("q", "second")));
    assert_eq!((scene.home.gauges().short, scene.home.gauges().behind), (2, 0));
    let counted = alice.ask(&mut scene, length("q"));
    let third = alice.ask(&mut scene, Request::Add(job("q", "third")));
    assert_eq!((scene.home.gauges().short, scene.home.gauges().behind), (2, 2));
    lend(&mut scene);
    assert!(matches!(scene.late(counted).as_slice(), [Answer::Count(2)]));
    assert!(matches!(scene.late(third).as_slice(), [Answer::Id(_)]));
}

#[test]
fn a_line_stops_at_the_next_one_that_waits() {
    let mut scene = Scene::new();
    let (mut alice, holder, claims) = Pipeline::behind_reservation(&mut scene);
    let added = alice.ask(&mut scene, Request::Add(job("q", "later")));
    let counted = alice.ask(&mut scene, length("q"));
    scene.home.memory.set_budget(0);
    scene.claim(holder, &claims);
    scene.settle();
    assert!(matches!(
        scene.late(alice.tickets[0]).as_slice(),
        [Answer::Nothing]
    ));
    assert!(scene.late(added).is_empty() && scene.late(counted).is_empty());
    assert_eq!((scene.home.gauges().short, scene.home.gauges().behind), (1, 1));
    scene.home.memory_lent(scene.now, true);
    scene.settle();
    assert!(matches!(scene.late(added).as_slice(), [Answer::Error(_)]));
    assert!(matches!(scene.late(counted).as_slice(), [Answer::Count(0)]));
}

#[test]
fn each_end_of_a_wait_for_reservations_lets_the_line_go_on() {
    type End = fn(&mut Scene, Ticket, &[JobId], Ticket);
    let ends: [(End, i64); 6] = [
        (|scene, holder, ids, _| _ = scene.claim(holder, ids), 0),
        (|scene, holder, _, _| scene.cancel(holder), 0),
        (|scene, _, ids, _| _ = scene.ids(IdVerb::Delete, ids), 0),
        (|scene, _, _, _| scene.pass(1_000_000), 0),
        (|scene, _, _, _| scene.home.flush(scene.now), 0),
        (|scene, _, _, waiter| scene.cancel(waiter), 1),
    ];
    for (number, (end, left)) in ends.into_iter().enumerate() {
        let mut scene = Scene::new();
        let (mut alice, holder, ids) = Pipeline::behind_reservation(&mut scene);
        let counted = alice.ask(&mut scene, length("q"));
        scene.settle();
        assert!(scene.late(counted).is_empty());
        end(&mut scene, holder, &ids, alice.tickets[0]);
        scene.settle();
        assert_eq!(scene.late(alice.tickets[0]).len(), 1, "end {number}");
        let late = scene.late(counted);
        assert!(
            matches!(late.as_slice(), [Answer::Count(count)] if *count == left),
            "end {number}: {late:?}"
        );
    }
}

#[test]
fn flushall_frees_memory_for_an_addjob_and_what_stands_behind_it() {
    let mut scene = Scene::with_memory(Memory::new(4_000));
    scene.add("q", &"x".repeat(3_000));
    let ticket = scene.ticket();
    let large = AddJob {
        body: Blob::from("y".repeat(3_000).as_str()),
        ..job("q", "")
    };
    assert!(matches!(
        scene.request_as(ticket, Request::Add(large)),
        Answer::Waiting
    ));
    let mut alice = Pipeline {
        tickets: vec![ticket],
    };
    let counted = alice.ask(&mut scene, length("q"));
    scene.home.flush(scene.now);
    scene.settle();
    assert!(matches!(scene.late(ticket).as_slice(), [Answer::Id(_)]));
    assert!(matches!(scene.late(counted).as_slice(), [Answer::Count(1)]));
}

#[test]
fn who_vanishes_leaves_only_what_it_acknowledged() {
    let mut scene = Scene::new();
    let id = scene.add("q", "old");
    let before = scene.home.memory.used();
    let mut alice = Pipeline::behind_memory(&mut scene);
    alice.ask(&mut scene, ids(IdVerb::Acknowledge, &[id]));
    alice.ask(&mut scene, Request::Add(job("q", &"x".repeat(5_000))));
    alice.ask(&mut scene, nohang("q", 1));
    assert!(
        scene.home.memory.used() > before + 5_000,
        "what stands in line is counted"
    );
    for ticket in [0, 2, 3].map(|place: usize| alice.tickets[place]) {
        scene.cancel(ticket);
        assert!(matches!(scene.late(ticket).as_slice(), [Answer::Nothing]));
        scene.cancel(ticket);
        assert!(scene.late(ticket).is_empty(), "it is cancelled once");
    }
    scene.settle();
    assert!(matches!(
        scene.late(alice.tickets[1]).as_slice(),
        [Answer::Count(1)]
    ));
    assert!(scene.state(id).is_none());
    let queues = scene.home.gauges().queues;
    assert_eq!(
        scene.home.gauges(),
        Gauges {
            queues,
            ..Gauges::default()
        }
    );
}

#[test]
fn a_line_of_which_all_was_withdrawn_is_gone() {
    let mut scene = Scene::new();
    let mut alice = Pipeline::behind_memory(&mut scene);
    alice.ask(&mut scene, nohang("q", 1));
    scene.cancel(alice.tickets[0]);
    scene.cancel(alice.tickets[1]);
    scene.settle();
    assert_eq!(alice.ended(&mut scene), 2);
    let ticket = Ticket {
        request: alice.tickets[1].request + 1,
        ..alice.tickets[1]
    };
    assert!(matches!(scene.request_as(ticket, length("q")), Answer::Count(0)));
}

#[test]
fn lines_move_in_bounded_steps_and_take_turns() {
    let mut scene = Scene::new();
    let mut pipelines: Vec<Pipeline> = (0..2).map(|_| Pipeline::behind_memory(&mut scene)).collect();
    let many = UPKEEP_STEP;
    for pipeline in &mut pipelines {
        (0..many).for_each(|_| _ = pipeline.ask(&mut scene, length("q")));
    }
    scene.home.memory.set_budget(PLENTY);
    scene.home.memory_lent(scene.now, false);
    assert_eq!(scene.home.gauges().behind, 2 * many as u64);
    assert!(scene.home.next_deadline().unwrap() <= scene.now.mono());
    scene.home.tick(scene.now);
    for pipeline in &pipelines {
        assert_eq!(pipeline.ended(&mut scene), 1 + many / 2, "a half each");
    }
    scene.settle();
    for pipeline in &pipelines {
        assert_eq!(pipeline.ended(&mut scene), many / 2);
    }
}

#[test]
fn a_request_of_many_ids_takes_more_of_a_step() {
    let mut scene = Scene::new();
    let id = scene.add("q", "");
    let mut alice = Pipeline::behind_memory(&mut scene);
    for _ in 0..20 {
        alice.ask(&mut scene, ids(IdVerb::Nack, &[id; IDS_STEP]));
    }
    scene.home.memory.set_budget(PLENTY);
    scene.home.memory_lent(scene.now, false);
    scene.home.tick(scene.now);
    let in_a_step = UPKEEP_STEP.div_ceil(1 + IDS_STEP / LINE_ITEMS);
    assert_eq!(alice.ended(&mut scene), 1 + in_a_step);
    scene.settle();
    assert_eq!(alice.ended(&mut scene), 20 - in_a_step);
}

#[test]
fn who_blocks_or_offers_holds_nothing_up() {
    let mut scene = Scene::new();
    let blocked = scene.wait(&["q"], 1, Deliver, Jobs);
    let next = Ticket {
        request: blocked.request + 1,
        ..blocked
    };
    assert!(matches!(scene.request_as(next, length("q")), Answer::Count(0)));
}

/// What a session sends in the property below.
fn request(known: &[JobId], (kind, a): (u8, u8)) -> Request {
    let queue = ["a", "b"][usize::from(a) % 2];
    match kind % 10 {
        0..3 => Request::Add(AddJob {
            max_len: a.is_multiple_of(5).then_some(2),
            ..once(queue, &a.to_string())
        }),
        3..6 => nohang(queue, 1 + u32::from(a / 2) % 3),
        6 => length(queue),
        7 => ids(
            [IdVerb::Acknowledge, IdVerb::Dequeue, IdVerb::Enqueue][usize::from(a) % 3],
            &known[usize::from(a) % known.len()..][..1],
        ),
        8 => Request::Show(known[usize::from(a) % known.len()]),
        _ => Request::Pause(Pause {
            queue: Blob::from(queue),
            state: Some(PauseState {
                input: false,
                output: a.is_multiple_of(4),
            }),
            broadcast: false,
        }),
    }
}

/// What is told of an answer, but for IDs, which are chance.
fn told(answer: &Answer) -> String {
    match answer {
        Answer::Id(_) => "an ID".to_owned(),
        Answer::Jobs(jobs) => format!("{:?}", bodies(jobs)),
        Answer::Job(job) => format!("{:?}", job.as_ref().map(|job| job.state)),
        answer => format!("{answer:?}"),
    }
}

/// Two queues with jobs, of which another session has some reserved.
struct Stage {
    scene: Scene,
    known: Vec<JobId>,
    holders: Vec<(Ticket, Vec<JobId>)>,
}

impl Stage {
    fn new() -> Self {
        let mut scene = Scene::new();
        let mut known = Vec::new();
        for number in 0..4 {
            known.push(scene.add("a", &format!("a{number}")));
            known.push(scene.add("b", &format!("b{number}")));
        }
        let holders = (0..3).map(|_| scene.offered(&["a", "b"], 2, Jobs)).collect();
        Self {
            scene,
            known,
            holders,
        }
    }

    /// Something that is not in the session's hands.
    fn happens(&mut self, what: u8) {
        let Self { scene, holders, .. } = self;
        match what % 6 {
            0..2 => {
                scene.home.memory.set_budget(PLENTY);
                scene.home.memory_lent(scene.now, false);
            }
            2 | 3 => scene.home.memory.set_budget(0),
            _ => {
                if let Some((holder, ids)) = holders.pop() {
                    if what.is_multiple_of(2) {
                        scene.claim(holder, &ids[..1]);
                    }
                    scene.cancel(holder);
                }
            }
        }
        scene.settle();
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]
    #[test]
    fn a_pipeline_is_answered_as_if_its_commands_ran_one_after_the_other(
        commands in prop::collection::vec(any::<(u8, u8)>(), 1..30),
        before in prop::collection::vec(any::<u8>(), 0..3),
        events in prop::collection::vec(any::<u8>(), 0..12),
    ) {
        // In the end, whatever waits ends.
        let events: Vec<u8> = events.into_iter().chain([4, 4, 4, 0]).collect();
        let mut pipelined = Stage::new();
        before.iter().for_each(|&what| pipelined.happens(what));
        let first = pipelined.scene.ticket();
        let tickets = (0..).map(|number| Ticket { request: first.request.wrapping_add(number), ..first });
        let tickets: Vec<Ticket> = tickets.take(commands.len()).collect();
        let mut answers: Vec<Option<String>> = Vec::new();
        for (&ticket, &command) in tickets.iter().zip(&commands) {
            let request = request(&pipelined.known, command);
            let answer = pipelined.scene.request_as(ticket, request);
            answers.push((!matches!(answer, Answer::Waiting)).then(|| told(&answer)));
        }
        pipelined.scene.settle();
        events.iter().for_each(|&what| pipelined.happens(what));
        let answers: Vec<String> = tickets
            .iter()
            .zip(answers)
            .map(|(&ticket, at_once)| match (at_once, pipelined.scene.late(ticket).as_slice()) {
                (Some(answer), []) => answer,
                (None, [end]) => told(end),
                other => panic!("it is answered once: {other:?}"),
            })
            .collect();

        let mut one_by_one = Stage::new();
        before.iter().for_each(|&what| one_by_one.happens(what));
        let mut events = events.iter();
        let mut expected = Vec::new();
        for &command in &commands {
            let ticket = one_by_one.scene.ticket();
            let request = request(&one_by_one.known, command);
            let answer = one_by_one.scene.request_as(ticket, request);
            if !matches!(answer, Answer::Waiting) {
                expected.push(told(&answer));
                continue;
            }
            one_by_one.scene.settle();
            let end = loop {
                if let Some(end) = one_by_one.scene.late(ticket).first() {
                    break told(end);
                }
                one_by_one.happens(*events.next().expect("it ends in the end"));
            };
            expected.push(end);
        }
        prop_assert_eq!(answers, expected);
    }
}
