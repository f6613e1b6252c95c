//! A home with a clock in hand, for tests.

use std::collections::BTreeMap;

use smallvec::SmallVec;

use super::{Held, Home, HomeOptions};
use crate::clock::Now;
use crate::commands::addjob::AddJob;
use crate::commands::pause::Pause;
use crate::commands::view::{JobState, JobView, PauseState, QueueView};
use crate::commands::{IdVerb, Request};
use crate::error::CommandError;
use crate::id::{JobId, NodeId};
use crate::memory::Memory;
use crate::message::{Answer, Delivered, Handed, Manner, Offered, Patience, SessionId, Take, Ticket};
use crate::wire::Blob;

/// A home of one shard that starts at one second of the monotonic clock.
pub struct Scene {
    pub home: Home,
    pub now: Now,
    requests: u32,
    /// Ends that were not asked for yet.
    ends: BTreeMap<Ticket, Vec<Answer>>,
    /// How changes of the node ended, by their number.
    changes: BTreeMap<u64, Result<(), CommandError>>,
}

impl Scene {
    pub fn new() -> Self {
        Self::with_memory(Memory::new(1 << 40))
    }

    pub fn with_memory(memory: Memory) -> Self {
        let now = Now {
            mono_us: 1_000_000,
            wall_us: 1_700_000_000_000_000,
        };
        Self::with(memory, now, NodeId::from_bytes([0xab; 20]), 7)
    }

    /// One of several nodes.
    pub fn of_node(node: NodeId, seed: u8) -> Self {
        let now = Now {
            mono_us: 1_000_000,
            wall_us: 1_700_000_000_000_000,
        };
        Self::with(Memory::new(1 << 40), now, node, seed)
    }

    fn with(memory: Memory, now: Now, node: NodeId, seed: u8) -> Self {
        let options = HomeOptions {
            shard: 0,
            shards: 1,
            node,
            seed: [seed; 32],
            hash_seed: 9,
        };
        Self {
            home: Home::new(options, memory, now),
            now,
            requests: 0,
            ends: BTreeMap::new(),
            changes: BTreeMap::new(),
        }
    }

    /// Lets time pass without anything happening.
    pub fn leap(&mut self, ms: u64) {
        self.now.mono_us += ms * 1000;
        self.now.wall_us += ms * 1000;
    }

    /// Lets time pass, waking the home whenever it asks for it.
    pub fn pass(&mut self, ms: u64) {
        let end_us = self.now.mono_us + ms * 1000;
        loop {
            self.settle();
            let next = self
                .home
                .next_deadline()
                .map_or(u64::MAX, |at| at.0.saturating_mul(1000));
            let at_us = next.max(self.now.mono_us + 1000).min(end_us);
            if self.now.mono_us >= end_us {
                return;
            }
            self.now.wall_us += at_us - self.now.mono_us;
            self.now.mono_us = at_us;
        }
    }

    /// Ticks until nothing is left to do now.
    pub fn settle(&mut self) {
        for _ in 0..100_000 {
            self.home.tick(self.now);
            if self.home.next_deadline().is_none_or(|at| at > self.now.mono()) {
                return self.check();
            }
        }
        panic!("work is left for ever");
    }

    pub fn check(&mut self) {
        self.home.check();
        let mut ends = Vec::new();
        self.home.take_ends(&mut ends);
        for end in ends {
            match end {
                Held::Answer(ticket, answer) => self.ends.entry(ticket).or_default().push(answer),
                Held::Bus(to, message) => self.home.peers.send(to, message),
                Held::Transfer(id, hop) => self.home.transfer_logged(id, hop),
                Held::Change(number, result) => {
                    let twice = self.changes.insert(number, result);
                    assert!(twice.is_none(), "change {number} ends twice");
                }
            }
        }
    }

    /// Each request has a session of its own.
    pub fn ticket(&mut self) -> Ticket {
        self.requests += 1;
        let session = SessionId {
            index: self.requests,
            generation: 1,
        };
        Ticket {
            shard: 0,
            session,
            request: self.requests,
        }
    }

    pub fn request(&mut self, request: Request) -> Answer {
        let ticket = self.ticket();
        self.request_as(ticket, request)
    }

    pub fn request_as(&mut self, ticket: Ticket, request: Request) -> Answer {
        let answer = self.home.request(self.now, ticket, request);
        self.check();
        answer
    }

    /// How a change of the node ended, if it has.
    pub fn changed(&mut self, number: u64) -> Option<Result<(), CommandError>> {
        self.check();
        self.changes.remove(&number)
    }

    /// Keeps what was said to a request at once as if it had been said late.
    pub fn said(&mut self, ticket: Ticket, answer: Answer) {
        self.ends.entry(ticket).or_default().push(answer);
    }

    /// What was said late to a request so far.
    pub fn late(&mut self, ticket: Ticket) -> Vec<Answer> {
        self.check();
        self.ends.remove(&ticket).unwrap_or_default()
    }

    /// The jobs that were handed out late to a request, which is its only end.
    pub fn late_jobs(&mut self, ticket: Ticket) -> Vec<Delivered> {
        match self.late(ticket).as_slice() {
            [Answer::Jobs(jobs)] => jobs.clone(),
            other => panic!("not jobs: {other:?}"),
        }
    }

    pub fn late_offers(&mut self, ticket: Ticket) -> Vec<Offered> {
        match self.late(ticket).as_slice() {
            [Answer::Offers(offers)] => offers.clone(),
            other => panic!("not offers: {other:?}"),
        }
    }

    pub fn add(&mut self, queue: &str, body: &str) -> JobId {
        self.add_with(job(queue, body))
    }

    /// Adds many jobs, numbered from 0, with one check at the end.
    pub fn fill(&mut self, many: usize, add: &AddJob) -> Vec<JobId> {
        let ids = (0..many).map(|number| {
            let ticket = self.ticket();
            let body = Blob::from(number.to_string().as_str());
            let add = AddJob { body, ..add.clone() };
            match self.home.request(self.now, ticket, Request::Add(add)) {
                Answer::Id(id) => id,
                other => panic!("not added: {other:?}"),
            }
        });
        let ids = ids.collect();
        self.check();
        ids
    }

    pub fn add_with(&mut self, add: AddJob) -> JobId {
        match self.request(Request::Add(add)) {
            Answer::Id(id) => id,
            other => panic!("not added: {other:?}"),
        }
    }

    /// GETJOB on this shard alone.
    pub fn get(&mut self, queues: &[&str], count: u32) -> Vec<Delivered> {
        match self.request(Request::Take(take(
            queues,
            count,
            Manner::Deliver,
            Patience::None,
        ))) {
            Answer::Jobs(jobs) => jobs,
            Answer::Nothing => Vec::new(),
            other => panic!("not jobs: {other:?}"),
        }
    }

    pub fn get_one(&mut self, queue: &str) -> Delivered {
        let mut jobs = self.get(&[queue], 1);
        assert_eq!(jobs.len(), 1, "{queue} has a job");
        jobs.remove(0)
    }

    /// A GETJOB that has to wait.
    pub fn wait(&mut self, queues: &[&str], count: u32, manner: Manner, patience: Patience) -> Ticket {
        let ticket = self.ticket();
        let answer = self.request_as(ticket, Request::Take(take(queues, count, manner, patience)));
        assert!(matches!(answer, Answer::Waiting), "{answer:?}");
        ticket
    }

    /// A GETJOB of several shards that is offered jobs at once.
    pub fn offered(&mut self, queues: &[&str], count: u32, patience: Patience) -> (Ticket, Vec<JobId>) {
        let ticket = self.ticket();
        match self.request_as(
            ticket,
            Request::Take(take(queues, count, Manner::Offer, patience)),
        ) {
            Answer::Offers(offers) => (ticket, offers.iter().map(|offer| offer.id).collect()),
            other => panic!("not offered: {other:?}"),
        }
    }

    pub fn claim(&mut self, ticket: Ticket, ids: &[JobId]) -> Vec<Delivered> {
        let earlier = self.ends.get(&ticket).map_or(0, Vec::len);
        self.home.claim(self.now, ticket, ids);
        self.check();
        let ends = self.ends.get_mut(&ticket).expect("a claim ends");
        match ends.remove(earlier) {
            Answer::Jobs(jobs) => jobs,
            other => panic!("not jobs: {other:?}"),
        }
    }

    pub fn cancel(&mut self, ticket: Ticket) {
        self.home.cancel(self.now, ticket);
        self.check();
    }

    pub fn undelivered(&mut self, handed: Handed) {
        self.home.undelivered(self.now, &[handed]);
        self.check();
    }

    pub fn ids(&mut self, verb: IdVerb, ids: &[JobId]) -> i64 {
        match self.request(Request::Ids {
            verb,
            ids: SmallVec::from_slice(ids),
        }) {
            Answer::Count(count) | Answer::Entered { counted: count, .. } => count,
            other => panic!("not a count: {other:?}"),
        }
    }

    pub fn length(&mut self, queue: &str) -> i64 {
        match self.request(Request::Length(Blob::from(queue))) {
            Answer::Count(count) => count,
            other => panic!("not a count: {other:?}"),
        }
    }

    pub fn show(&mut self, id: JobId) -> Option<JobView> {
        match self.request(Request::Show(id)) {
            Answer::Job(job) => job.map(|job| *job),
            other => panic!("not a job: {other:?}"),
        }
    }

    pub fn state(&mut self, id: JobId) -> Option<JobState> {
        self.show(id).map(|job| job.state)
    }

    pub fn stat(&mut self, queue: &str) -> Option<QueueView> {
        match self.request(Request::Stat(Blob::from(queue))) {
            Answer::Queue(queue) => queue.map(|queue| *queue),
            other => panic!("not a queue: {other:?}"),
        }
    }

    pub fn pause(&mut self, queue: &str, input: bool, output: bool) {
        let state = PauseState { input, output };
        let pause = Pause {
            queue: Blob::from(queue),
            state: Some(state),
            broadcast: false,
        };
        assert!(matches!(self.request(Request::Pause(pause)), Answer::Pause(now) if now == state));
    }
}

/// An ADDJOB with a TTL of 1000 s and a RETRY of 10 s.
pub fn job(queue: &str, body: &str) -> AddJob {
    AddJob {
        queue: Blob::from(queue),
        body: Blob::from(body),
        timeout_ms: 0,
        replicate: 1,
        lowered: false,
        may_lower: false,
        ttl_s: 1000,
        retry_s: 10,
        delay_s: 0,
        max_len: None,
        asynchronous: false,
    }
}

/// The same, at most once.
pub fn once(queue: &str, body: &str) -> AddJob {
    AddJob {
        retry_s: 0,
        ..job(queue, body)
    }
}

pub fn take(queues: &[&str], count: u32, manner: Manner, patience: Patience) -> Take {
    let queues = queues
        .iter()
        .enumerate()
        .map(|(place, name)| (place as u32, Blob::from(*name)))
        .collect();
    Take {
        queues,
        count,
        manner,
        patience,
    }
}

/// The bodies of jobs.
pub fn bodies(jobs: &[Delivered]) -> Vec<String> {
    jobs.iter()
        .map(|job| String::from_utf8_lossy(&job.body).into_owned())
        .collect()
}
