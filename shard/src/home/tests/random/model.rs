//! The rules of a home, written for plainness: one list of jobs, one of waiters, every question answered by looking at all.

use std::collections::BTreeMap;

use crate::commands::IdVerb;
use crate::commands::view::{JobState, PauseState};
use crate::message::{Manner, Patience, Ticket};

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    Added,
    Waiting,
    Nothing,
    Count(i64),
    Entered(i64, i64),
    Error(String),
    Jobs(Vec<Out>),
    Offers(Vec<(usize, usize)>),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Out {
    pub place: usize,
    pub number: usize,
    pub delivery: u32,
    pub nacks: u32,
    pub additional: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Idle,
    Queued,
    Reserved {
        ticket: Ticket,
        place: usize,
        reservation: u64,
    },
    Leased,
    /// Ready since this many events.
    Held(u64),
    Gone,
}

#[derive(Debug)]
struct Job {
    queue: usize,
    state: State,
    expires: u64,
    half_life: u64,
    retry_ms: u64,
    enters: Option<u64>,
    delivered: bool,
    entered_before: bool,
    nacks: u32,
    additional: u32,
    deliveries: u32,
}

#[derive(Debug)]
struct Waiter {
    ticket: Ticket,
    queues: Vec<(usize, usize)>,
    count: usize,
    manner: Manner,
    patience: Patience,
    waiting: bool,
    served: bool,
    watched: Vec<u64>,
    flushed: bool,
}

/// A naive home. A job's number is its place in the order of creation.
pub struct Model {
    now: u64,
    jobs: Vec<Job>,
    pauses: Vec<PauseState>,
    /// In blocking order.
    waiters: Vec<Waiter>,
    reservations: u64,
    held: u64,
    pub ends: BTreeMap<Ticket, Vec<Event>>,
    /// Two jobs fell due in the same millisecond: their order is not laid down.
    pub ambiguous: bool,
}

impl Model {
    pub fn new(now: u64, queues: usize) -> Self {
        let pauses = vec![PauseState::default(); queues];
        Self {
            now,
            jobs: vec![],
            pauses,
            waiters: vec![],
            reservations: 0,
            held: 0,
            ends: BTreeMap::new(),
            ambiguous: false,
        }
    }

    pub fn add(&mut self, queue: usize, ttl_s: u64, retry_s: u64, delay_s: u64) -> Event {
        if self.pauses[queue].input {
            return Event::Error("PAUS".to_owned());
        }
        self.jobs.push(Job {
            queue,
            state: State::Idle,
            expires: self.now + ttl_s * 1000,
            half_life: self.now + ttl_s * 500,
            retry_ms: retry_s * 1000,
            enters: (delay_s > 0).then_some(self.now + delay_s * 1000),
            delivered: false,
            entered_before: false,
            nacks: 0,
            additional: 0,
            deliveries: 0,
        });
        if delay_s == 0 {
            self.enter(self.jobs.len() - 1);
        }
        Event::Added
    }

    pub fn take(
        &mut self,
        ticket: Ticket,
        order: &[usize],
        count: usize,
        manner: Manner,
        patience: Patience,
    ) -> Event {
        let all: Vec<(usize, usize)> = order.iter().copied().enumerate().collect();
        let reserved = |queue: usize| {
            self.jobs.iter().filter_map(move |job| match job.state {
                State::Reserved { reservation, .. } if job.queue == queue => Some(reservation),
                _ => None,
            })
        };
        let mut watched = Vec::new();
        let mut queues = Vec::new();
        match patience {
            Patience::Jobs => queues = all.clone(),
            Patience::None | Patience::Try => {}
            Patience::Reserved => {
                for &(place, queue) in all.iter().filter(|(_, queue)| !self.pauses[*queue].output) {
                    let here: Vec<u64> = reserved(queue).collect();
                    if !here.is_empty() {
                        queues.push((place, queue));
                        watched.extend(here);
                    }
                }
            }
        }
        let waits = patience == Patience::Jobs || !watched.is_empty();
        let waiter = Waiter {
            ticket,
            queues,
            count,
            manner,
            patience,
            waiting: waits,
            served: false,
            watched,
            flushed: false,
        };
        let found = self.look_over(&all, count);
        if found.is_empty() {
            if waits {
                self.waiters.push(waiter);
                return Event::Waiting;
            }
            return Event::Nothing;
        }
        if manner == Manner::Deliver {
            return Event::Jobs(
                found
                    .into_iter()
                    .map(|(place, number)| self.hand_out(place, number))
                    .collect(),
            );
        }
        self.waiters.push(Waiter {
            waiting: false,
            ..waiter
        });
        self.offer(ticket, &found);
        Event::Offers(found)
    }

    pub fn claim(&mut self, ticket: Ticket, numbers: &[usize]) -> Event {
        let Some(at) = self.waiters.iter().position(|waiter| waiter.ticket == ticket) else {
            self.end(ticket, Event::Nothing);
            return Event::Jobs(vec![]);
        };
        if self.waiters[at].waiting {
            return Event::Jobs(vec![]);
        }
        let mut jobs = Vec::new();
        for &number in numbers {
            match self.jobs[number].state {
                State::Reserved { ticket: whose, .. } if whose != ticket => {}
                State::Reserved { .. } if self.pauses[self.jobs[number].queue].output => {
                    self.give_back(number)
                }
                State::Reserved { place, .. } => {
                    jobs.push(self.hand_out(place, number));
                    self.settle();
                }
                _ => {}
            }
        }
        let at = self
            .waiters
            .iter()
            .position(|waiter| waiter.ticket == ticket)
            .expect("it does not wait");
        self.waiters[at].served |= !jobs.is_empty();
        if !self.waiters[at].served && self.offers_of(ticket).is_empty() {
            self.wait_on(at);
        }
        Event::Jobs(jobs)
    }

    fn wait_on(&mut self, at: usize) {
        let Waiter {
            ticket,
            count,
            patience,
            flushed,
            ..
        } = self.waiters[at];
        let found = if flushed {
            vec![]
        } else {
            self.look_over(&self.waiters[at].queues.clone(), count)
        };
        if !found.is_empty() {
            self.offer(ticket, &found);
            return self.end(ticket, Event::Offers(found));
        }
        match patience {
            _ if flushed => self.end_with_nothing(at),
            Patience::None | Patience::Try => {}
            Patience::Jobs => self.waiters[at].waiting = true,
            Patience::Reserved => {
                self.waiters[at].waiting = true;
                self.settle();
            }
        }
    }

    pub fn cancel(&mut self, ticket: Ticket) {
        let Some(at) = self.waiters.iter().position(|waiter| waiter.ticket == ticket) else {
            return;
        };
        let waiter = self.waiters.remove(at);
        let mut offers = self.offers_of(ticket);
        offers.sort();
        offers.into_iter().for_each(|(_, number)| self.give_back(number));
        if waiter.manner == Manner::Deliver {
            self.end(ticket, Event::Nothing);
        }
    }

    pub fn id(&mut self, number: usize, verb: IdVerb) -> Event {
        let job = &self.jobs[number];
        let entering = matches!(job.state, State::Idle | State::Leased | State::Held(_))
            && !(job.retry_ms == 0 && job.delivered);
        match verb {
            IdVerb::Acknowledge | IdVerb::FastAcknowledge | IdVerb::Delete | IdVerb::DeleteEverywhere => {
                let known = job.state != State::Gone;
                self.jobs[number].state = State::Gone;
                self.settle();
                Event::Count(known.into())
            }
            IdVerb::Enqueue | IdVerb::Nack if !entering => Event::Entered(0, 0),
            IdVerb::Enqueue | IdVerb::Nack if self.pauses[job.queue].input => Event::Entered(0, 1),
            IdVerb::Enqueue => {
                self.enter(number);
                Event::Entered(1, 0)
            }
            IdVerb::Nack => {
                let job = &mut self.jobs[number];
                job.nacks += 1;
                job.entered_before = false;
                self.enter(number);
                Event::Entered(1, 0)
            }
            IdVerb::Dequeue => {
                let queued = self.is_queued(number);
                if queued {
                    self.postpone(number);
                }
                Event::Count(queued.into())
            }
        }
    }

    pub fn working(&mut self, number: usize) -> Event {
        let job = &self.jobs[number];
        if job.state == State::Gone {
            return Event::Error("NOJO".to_owned());
        }
        if self.now > job.half_life {
            return Event::Error("TOOL".to_owned());
        }
        let retry_s = job.retry_ms as i64 / 1000;
        if retry_s > 0 && job.state == State::Leased {
            self.jobs[number].enters = Some(self.now + self.jobs[number].retry_ms);
        } else if retry_s > 0 {
            self.postpone(number);
        }
        Event::Count(retry_s)
    }

    pub fn undelivered(&mut self, number: usize, delivery: u32) {
        let job = &mut self.jobs[number];
        if job.state != State::Leased || job.deliveries != delivery {
            return;
        }
        job.delivered = false;
        job.entered_before = false;
        self.enter_or_hold(number);
    }

    pub fn pause(&mut self, queue: usize, state: PauseState) {
        self.pauses[queue] = state;
        if !state.input {
            let mut held: Vec<(u64, usize)> = Vec::new();
            for (number, job) in self.jobs.iter().enumerate().filter(|(_, job)| job.queue == queue) {
                if let State::Held(since) = job.state {
                    held.push((since, number));
                }
            }
            held.sort();
            held.into_iter().for_each(|(_, number)| self.queue_up(number));
        }
        self.serve(queue);
        self.settle();
    }

    pub fn pass(&mut self, ms: u64) {
        let end = self.now + ms;
        loop {
            let due = |job: &Job| match job.state {
                State::Gone => u64::MAX,
                State::Idle | State::Leased => {
                    job.enters.map_or(job.expires, |enters| enters.min(job.expires))
                }
                State::Queued | State::Reserved { .. } | State::Held(_) => job.expires,
            };
            let Some(at) = self.jobs.iter().map(due).min().filter(|&at| at <= end) else {
                break;
            };
            self.now = at;
            let now: Vec<usize> = (0..self.jobs.len())
                .filter(|&number| due(&self.jobs[number]) == at)
                .collect();
            self.ambiguous |= now.len() > 1;
            for number in now {
                if self.jobs[number].expires == at {
                    self.jobs[number].state = State::Gone;
                    self.settle();
                } else {
                    self.enter_or_hold(number);
                }
            }
        }
        self.now = end;
    }

    pub fn flush(&mut self) {
        self.jobs.iter_mut().for_each(|job| job.state = State::Gone);
        self.pauses.fill(PauseState::default());
        for at in (0..self.waiters.len()).rev() {
            self.waiters[at].flushed = true;
            self.waiters[at].watched.clear();
            if self.waiters[at].waiting {
                self.end_with_nothing(at);
            }
        }
    }

    pub fn length(&self, queue: usize) -> i64 {
        (0..self.jobs.len())
            .filter(|&number| self.jobs[number].queue == queue && self.is_queued(number))
            .count() as i64
    }

    /// State, nacks, additional deliveries, milliseconds until it is queued.
    pub fn show(&self, number: usize) -> Option<(JobState, u32, u32, Option<u64>)> {
        let job = &self.jobs[number];
        let (state, enters_in) = match job.state {
            State::Gone => return None,
            State::Queued | State::Reserved { .. } => {
                (JobState::Queued, Some(job.retry_ms).filter(|&ms| ms > 0))
            }
            State::Held(_) => (JobState::Active, Some(0)),
            State::Idle | State::Leased => (JobState::Active, job.enters.map(|at| at - self.now)),
        };
        Some((state, job.nacks, job.additional, enters_in))
    }

    fn is_queued(&self, number: usize) -> bool {
        matches!(self.jobs[number].state, State::Queued | State::Reserved { .. })
    }

    fn offers_of(&self, ticket: Ticket) -> Vec<(u64, usize)> {
        let offers = self
            .jobs
            .iter()
            .enumerate()
            .filter_map(|(number, job)| match job.state {
                State::Reserved {
                    ticket: whose,
                    reservation,
                    ..
                } if whose == ticket => Some((reservation, number)),
                _ => None,
            });
        offers.collect()
    }

    fn end(&mut self, ticket: Ticket, event: Event) {
        self.ends.entry(ticket).or_default().push(event);
    }

    fn end_with_nothing(&mut self, at: usize) {
        let waiter = self.waiters.remove(at);
        self.end(waiter.ticket, Event::Nothing);
    }

    fn postpone(&mut self, number: usize) {
        let job = &mut self.jobs[number];
        job.state = State::Idle;
        job.enters = (job.retry_ms > 0).then_some(self.now + job.retry_ms);
        self.settle();
    }

    fn enter_or_hold(&mut self, number: usize) {
        if self.pauses[self.jobs[number].queue].input {
            self.held += 1;
            self.jobs[number].state = State::Held(self.held);
            self.jobs[number].enters = None;
        } else {
            self.enter(number);
        }
    }

    fn enter(&mut self, number: usize) {
        self.queue_up(number);
        self.serve(self.jobs[number].queue);
    }

    fn queue_up(&mut self, number: usize) {
        let job = &mut self.jobs[number];
        job.additional += u32::from(job.entered_before);
        job.entered_before = true;
        job.state = State::Queued;
        job.enters = None;
    }

    fn give_back(&mut self, number: usize) {
        self.jobs[number].state = State::Queued;
        self.serve(self.jobs[number].queue);
        self.settle();
    }

    fn hand_out(&mut self, place: usize, number: usize) -> Out {
        let job = &mut self.jobs[number];
        job.state = State::Leased;
        job.delivered = true;
        job.deliveries += 1;
        job.enters = (job.retry_ms > 0).then_some(self.now + job.retry_ms);
        Out {
            place,
            number,
            delivery: job.deliveries,
            nacks: job.nacks,
            additional: job.additional,
        }
    }

    fn offer(&mut self, ticket: Ticket, found: &[(usize, usize)]) {
        for &(place, number) in found {
            self.reservations += 1;
            self.jobs[number].state = State::Reserved {
                ticket,
                place,
                reservation: self.reservations,
            };
        }
    }

    fn to_be_had(&self, queue: usize) -> Vec<usize> {
        let there = self.jobs.iter().enumerate();
        let there = there.filter(|(_, job)| job.queue == queue && job.state == State::Queued);
        if self.pauses[queue].output {
            vec![]
        } else {
            there.map(|(number, _)| number).collect()
        }
    }

    /// Places and numbers of up to `count` jobs, one per queue and pass.
    fn look_over(&self, queues: &[(usize, usize)], count: usize) -> Vec<(usize, usize)> {
        let mut found: Vec<(usize, usize, usize)> = Vec::new();
        for &(place, queue) in queues {
            let numbers = self.to_be_had(queue).into_iter().enumerate();
            found.extend(numbers.map(|(pass, number)| (pass, place, number)));
        }
        found.sort();
        found
            .into_iter()
            .take(count)
            .map(|(_, place, number)| (place, number))
            .collect()
    }

    fn serve(&mut self, queue: usize) {
        while !self.to_be_had(queue).is_empty() {
            let waits = |waiter: &Waiter| waiter.waiting && waiter.queues.iter().any(|&(_, of)| of == queue);
            let Some(at) = self.waiters.iter().position(waits) else {
                return;
            };
            let found = self.look_over(&self.waiters[at].queues.clone(), self.waiters[at].count);
            let ticket = self.waiters[at].ticket;
            if self.waiters[at].manner == Manner::Deliver {
                self.waiters.remove(at);
                let jobs = found
                    .into_iter()
                    .map(|(place, number)| self.hand_out(place, number))
                    .collect();
                self.end(ticket, Event::Jobs(jobs));
            } else {
                self.waiters[at].waiting = false;
                self.offer(ticket, &found);
                self.end(ticket, Event::Offers(found));
            }
        }
    }

    /// Ends those that waited only for reservations which are over.
    fn settle(&mut self) {
        let live: Vec<u64> = self
            .jobs
            .iter()
            .filter_map(|job| match job.state {
                State::Reserved { reservation, .. } => Some(reservation),
                _ => None,
            })
            .collect();
        for at in (0..self.waiters.len()).rev() {
            let waiter = &self.waiters[at];
            let over = !waiter
                .watched
                .iter()
                .any(|reservation| live.contains(reservation));
            if waiter.waiting && waiter.patience == Patience::Reserved && over {
                self.end_with_nothing(at);
            }
        }
    }
}
