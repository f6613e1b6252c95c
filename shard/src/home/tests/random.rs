//! Random steps taken by a home and by a naive second implementation of the same rules, which must agree on every
//! answer, every end and the state of every job.

mod model;

use std::collections::BTreeMap;

use proptest::prelude::*;

use crate::commands::view::PauseState;
use crate::commands::{AddJob, IdVerb, Pause, Request};
use crate::home::testing::{Scene, job, take};
use crate::id::JobId;
use crate::message::{Answer, Handed, Manner, Patience, Ticket};
use crate::wire::Blob;
use model::{Event, Model};

const QUEUES: [&str; 3] = ["a", "b", "c"];
const ORDERS: [&[usize]; 8] = [
    &[0],
    &[1],
    &[2],
    &[0, 1],
    &[2, 0],
    &[1, 2],
    &[0, 1, 2],
    &[2, 1, 0],
];

/// Both implementations, and what a client would know.
struct Pair {
    scene: Scene,
    model: Model,
    ids: Vec<JobId>,
    tickets: Vec<Ticket>,
    /// Offers that were made and not claimed, as a session would keep them.
    offers: BTreeMap<Ticket, Vec<usize>>,
    handed: Vec<(usize, u32)>,
}

impl Pair {
    fn new() -> Self {
        let scene = Scene::new();
        let model = Model::new(scene.now.mono().0, QUEUES.len());
        Self {
            scene,
            model,
            ids: vec![],
            tickets: vec![],
            offers: BTreeMap::new(),
            handed: vec![],
        }
    }

    fn step(&mut self, (kind, a, b): (u8, u8, u8)) {
        // Delays and leases are whole seconds: so they seldom end together.
        self.pass(1);
        match kind % 18 {
            0..4 => self.add(a, b),
            4..7 => self.take(Manner::Deliver, a, b),
            7..9 => self.take(Manner::Offer, a, b),
            9..11 => self.claim(a, b),
            11 => self.cancel(a),
            12..14 => self.ids(a, b),
            14 => self.touch_one(a, b),
            15 => self.pause(a, b),
            16 if a == 0 => self.flush(),
            _ => self.pass(u64::from(a) * 64 + u64::from(b) * u64::from(b) / 16),
        }
        if !self.model.ambiguous {
            self.compare();
        }
    }

    fn add(&mut self, a: u8, b: u8) {
        let queue = usize::from(a) % QUEUES.len();
        let number = self.ids.len() as u32;
        // Different for every job, so that leases that began together do not end together.
        let retry_s = if b.is_multiple_of(3) { 0 } else { 2 + number };
        let delay_s = if b.is_multiple_of(4) {
            1 + u32::from(a / 16)
        } else {
            0
        };
        let ttl_s = 20 + u32::from(b);
        let add = AddJob {
            retry_s,
            delay_s,
            ttl_s,
            ..job(QUEUES[queue], "")
        };
        let answer = self.scene.request(Request::Add(add));
        let expected = self
            .model
            .add(queue, u64::from(ttl_s), u64::from(retry_s), u64::from(delay_s));
        match (answer, expected) {
            (Answer::Id(id), Event::Added) => self.ids.push(id),
            (answer, expected) => assert_eq!(self.event(&answer), expected),
        }
    }

    fn take(&mut self, manner: Manner, a: u8, b: u8) {
        let order = ORDERS[usize::from(a) % ORDERS.len()];
        let queues: Vec<&str> = order.iter().map(|&queue| QUEUES[queue]).collect();
        let count = u32::from(b % 3) + 1;
        let patience =
            [Patience::Jobs, Patience::Jobs, Patience::Reserved, Patience::None][usize::from(b) / 3 % 4];
        let ticket = self.scene.ticket();
        let answer = self
            .scene
            .request_as(ticket, Request::Take(take(&queues, count, manner, patience)));
        let expected = self.model.take(ticket, order, count as usize, manner, patience);
        self.tickets.push(ticket);
        assert_eq!(self.event(&answer), expected);
        self.learn(ticket, &expected);
    }

    fn claim(&mut self, a: u8, b: u8) {
        let which = usize::from(a) % self.offers.len().max(1);
        let Some((&ticket, offers)) = self.offers.iter_mut().nth(which) else {
            return;
        };
        let some = if b.is_multiple_of(2) {
            offers.len()
        } else {
            1 + usize::from(b) % offers.len()
        };
        let claimed: Vec<usize> = offers.drain(..some).collect();
        if offers.is_empty() {
            self.offers.remove(&ticket);
        }
        let ids: Vec<JobId> = claimed.iter().map(|&number| self.ids[number]).collect();
        let answer = Answer::Jobs(self.scene.claim(ticket, &ids));
        let expected = self.model.claim(ticket, &claimed);
        assert_eq!(self.event(&answer), expected);
        self.learn(ticket, &expected);
    }

    fn cancel(&mut self, a: u8) {
        // Any of the last few, ended or not.
        let Some(&ticket) = self.tickets.iter().rev().nth(usize::from(a) % 8) else {
            return;
        };
        self.offers.remove(&ticket);
        self.scene.cancel(ticket);
        self.model.cancel(ticket);
    }

    fn ids(&mut self, a: u8, b: u8) {
        let Some(number) = self.some_job(a) else { return };
        let verbs = [
            IdVerb::Acknowledge,
            IdVerb::Nack,
            IdVerb::Enqueue,
            IdVerb::Dequeue,
            IdVerb::Nack,
            IdVerb::Delete,
        ];
        let verb = verbs[usize::from(b) % verbs.len()];
        let ids = smallvec::smallvec![self.ids[number]];
        let answer = self.scene.request(Request::Ids { verb, ids });
        let expected = self.model.id(number, verb);
        assert_eq!(self.event(&answer), expected, "{verb:?} {number}");
    }

    fn touch_one(&mut self, a: u8, b: u8) {
        if b.is_multiple_of(2) {
            let Some(number) = self.some_job(a) else { return };
            let answer = self.scene.request(Request::Working(self.ids[number]));
            assert_eq!(self.event(&answer), self.model.working(number));
        } else {
            let Some(&(number, delivery)) = self.handed.iter().rev().nth(usize::from(a) % 8) else {
                return;
            };
            self.scene.undelivered(Handed {
                id: self.ids[number],
                delivery,
            });
            self.model.undelivered(number, delivery);
        }
    }

    fn pause(&mut self, a: u8, b: u8) {
        let queue = usize::from(a) % QUEUES.len();
        let state = PauseState {
            input: b.is_multiple_of(5),
            output: b % 5 == 1,
        };
        let pause = Pause {
            queue: Blob::from(QUEUES[queue]),
            state: Some(state),
            broadcast: false,
        };
        self.scene.request(Request::Pause(pause));
        self.model.pause(queue, state);
    }

    fn pass(&mut self, ms: u64) {
        self.scene.pass(ms);
        self.model.pass(ms);
    }

    fn flush(&mut self) {
        self.scene.home.flush(self.scene.now);
        self.model.flush();
    }

    /// One of the last jobs.
    fn some_job(&self, a: u8) -> Option<usize> {
        let back = usize::from(a) % self.ids.len().clamp(1, 12);
        self.ids.len().checked_sub(1 + back)
    }

    fn compare(&mut self) {
        self.scene.settle();
        let mut expected = std::mem::take(&mut self.model.ends);
        for ticket in self.tickets.clone() {
            let ends = expected.remove(&ticket).unwrap_or_default();
            let seen: Vec<Event> = self
                .scene
                .late(ticket)
                .iter()
                .map(|answer| self.event(answer))
                .collect();
            assert_eq!(seen, ends, "ends of {ticket:?}");
            ends.iter().for_each(|end| self.learn(ticket, end));
        }
        assert!(expected.is_empty(), "{expected:?}");
        for (queue, name) in QUEUES.iter().enumerate() {
            assert_eq!(
                self.scene.length(name),
                self.model.length(queue),
                "length of {name}"
            );
        }
        for number in self.ids.len().saturating_sub(20)..self.ids.len() {
            let shown = self.scene.show(self.ids[number]);
            let shown = shown.map(|job| {
                (
                    job.state,
                    job.nacks,
                    job.additional_deliveries,
                    job.next_requeue_ms,
                )
            });
            assert_eq!(shown, self.model.show(number), "job {number}");
        }
    }

    /// What a client remembers of an answer.
    fn learn(&mut self, ticket: Ticket, event: &Event) {
        match event {
            Event::Jobs(jobs) => self
                .handed
                .extend(jobs.iter().map(|job| (job.number, job.delivery))),
            Event::Offers(offers) => {
                self.offers
                    .entry(ticket)
                    .or_default()
                    .extend(offers.iter().map(|&(_, number)| number));
            }
            Event::Nothing => _ = self.offers.remove(&ticket),
            _ => {}
        }
    }

    fn number(&self, id: JobId) -> usize {
        self.ids
            .iter()
            .position(|known| *known == id)
            .expect("a known job")
    }

    fn event(&self, answer: &Answer) -> Event {
        match answer {
            Answer::Waiting => Event::Waiting,
            Answer::Nothing => Event::Nothing,
            Answer::Count(count) => Event::Count(*count),
            Answer::Entered { counted, paused } => Event::Entered(*counted, *paused),
            Answer::Error(error) => Event::Error(error.to_string()[..4].to_owned()),
            Answer::Offers(offers) => Event::Offers(
                offers
                    .iter()
                    .map(|offer| (offer.place as usize, self.number(offer.id)))
                    .collect(),
            ),
            Answer::Jobs(jobs) => Event::Jobs(
                jobs.iter()
                    .map(|job| model::Out {
                        place: job.place as usize,
                        number: self.number(job.handed.id),
                        delivery: job.handed.delivery,
                        nacks: job.nacks,
                        additional: job.additional_deliveries,
                    })
                    .collect(),
            ),
            other => panic!("{other:?}"),
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, ..ProptestConfig::default() })]
    #[test]
    fn a_naive_home_agrees(steps in prop::collection::vec(any::<(u8, u8, u8)>(), 1..120)) {
        let mut pair = Pair::new();
        for step in steps {
            pair.step(step);
            if pair.model.ambiguous {
                break;
            }
        }
    }
}
