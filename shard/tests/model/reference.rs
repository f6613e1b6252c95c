//! The naive queue: what a node's home shards should do, in one place, one thread, and with nothing but lists that are searched.
//!
//! It is told what a home shard is told, in the order in which the home shards handled it, and says what they should answer. It shares no code with
//! them but the words of the messages. Chance is not its business: the ID of a new job is taken from the real answer, and
//! where several timers of a shard fall due in one tick, their order is taken from what the shard did.

use std::collections::BTreeMap;

use shard::clock::Now;
use shard::commands::addjob::AddJob;
use shard::commands::view::{JobState, JobView, PauseState, QueueView};
use shard::commands::{IdVerb, Request};
use shard::error::CommandError;
use shard::id::JobId;
use shard::message::{Answer, Delivered, Handed, Manner, Offered, Patience, Take, Ticket};
use shard::slot::{ShardNo, Slot};
use shard::wire::Blob;

const NEVER: u64 = u64::MAX;
/// A queue that is idle for longer may be collected at any time.
const IDLE_QUEUE_MS: u64 = 300_000;

/// A GETJOB at one of its home shards.
type Asker = (ShardNo, Ticket);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    Idle,
    Queued,
    Reserved { asker: Asker, number: u64, place: u32 },
    Leased,
    Held,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Entry {
    Plain,
    Nack,
    Undone,
}

#[derive(Debug)]
struct Job {
    queue: Vec<u8>,
    ctime: u64,
    add: AddJob,
    expires_at: u64,
    enters_at: u64,
    nacks: u32,
    additional_deliveries: u32,
    deliveries: u32,
    place: Place,
    delivered: bool,
    entered_before: bool,
}

#[derive(Debug)]
struct Queue {
    pause: PauseState,
    created_at: u64,
    touched_at: u64,
    jobs_in: u64,
    jobs_out: u64,
    /// It was idle for so long that it may have been collected and made anew.
    uncertain: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Waiting,
    Offered,
    Served,
}

#[derive(Debug)]
struct Waiter {
    asker: Asker,
    take: Take,
    phase: Phase,
    /// Queues where it stands in line.
    seats: Vec<(u32, Vec<u8>)>,
    /// Queues of which it waits for reservations to end, and the last of those.
    watches: Vec<Vec<u8>>,
    last_reservation: u64,
    flushed: bool,
}

/// The naive queue.
pub struct Reference {
    shards: u16,
    jobs: BTreeMap<JobId, Job>,
    queues: BTreeMap<Vec<u8>, Queue>,
    /// In blocking order.
    waiters: Vec<Waiter>,
    last_ctime: BTreeMap<ShardNo, u64>,
    reservations: u64,
    ends: Vec<(Ticket, Answer)>,
}

impl Reference {
    pub fn new(shards: u16) -> Self {
        Self {
            shards,
            jobs: BTreeMap::new(),
            queues: BTreeMap::new(),
            waiters: Vec::new(),
            last_ctime: BTreeMap::new(),
            reservations: 0,
            ends: Vec::new(),
        }
    }

    /// What should end now, of requests that were told to wait.
    pub fn take_ends(&mut self) -> Vec<(Ticket, Answer)> {
        std::mem::take(&mut self.ends)
    }

    /// What a home shard should answer. `actual` supplies what is left to chance.
    pub fn request(&mut self, now: Now, ticket: Ticket, request: &Request, actual: &Answer) -> Answer {
        let now_ms = now.mono().0;
        match request {
            Request::Add(add) => self.add(now, add, actual),
            Request::Take(take) => {
                let home = Slot::of_queue(&take.queues[0].1).home(self.shards);
                self.take(now_ms, (home, ticket), take)
            }
            Request::Ids { verb, ids } => self.ids(now_ms, *verb, ids),
            Request::Show(id) => {
                Answer::Job(self.find(now_ms, id).map(|id| Box::new(self.view(now_ms, &id))))
            }
            Request::Working(id) => self.working(now_ms, id),
            Request::Length(queue) => Answer::Count(self.length(queue) as i64),
            Request::Peek(peek) => self.peek(now_ms, &peek.queue, peek.count),
            Request::Stat(queue) => self.stat(now_ms, queue, actual),
            Request::Pause(pause) => self.pause(now_ms, &pause.queue, pause.state),
            other => unreachable!("{other:?} is not for the reference"),
        }
    }

    fn add(&mut self, now: Now, add: &AddJob, actual: &Answer) -> Answer {
        let now_ms = now.mono().0;
        if let Some(queue) = self.queues.get(add.queue.as_slice()) {
            if add
                .max_len
                .is_some_and(|max_len| self.length(&add.queue) >= max_len)
            {
                return Answer::Error(CommandError::MaxLen);
            }
            if queue.pause.input {
                return Answer::Error(CommandError::Paused);
            }
        }
        let Answer::Id(id) = actual else {
            panic!("an ADDJOB that should succeed was answered {actual:?}")
        };
        assert_eq!(
            id.slot(),
            Slot::of_queue(&add.queue),
            "an ID names the slot of its queue"
        );
        assert_eq!(
            id.at_least_once(),
            add.retry_s > 0,
            "an ID says how often the job is delivered"
        );
        self.find_or_create(now_ms, &add.queue);
        let last = self.last_ctime.entry(id.slot().home(self.shards)).or_default();
        *last = (now.wall_ms() * 1_000_000).max(*last + 1);
        let after = |seconds: u32| now_ms + u64::from(seconds) * 1000;
        let job = Job {
            queue: add.queue.to_vec(),
            ctime: *last,
            add: add.clone(),
            expires_at: after(add.ttl_s),
            enters_at: if add.delay_s > 0 {
                after(add.delay_s)
            } else {
                NEVER
            },
            nacks: 0,
            additional_deliveries: 0,
            deliveries: 0,
            place: Place::Idle,
            delivered: false,
            entered_before: false,
        };
        assert!(self.jobs.insert(*id, job).is_none(), "IDs are not used twice");
        if add.delay_s == 0 {
            self.enter(now_ms, id, Entry::Plain);
        }
        Answer::Id(*id)
    }

    fn take(&mut self, now: u64, asker: Asker, take: &Take) -> Answer {
        let known: Vec<(u32, Vec<u8>)> = take
            .queues
            .iter()
            .map(|(place, name)| (*place, name.to_vec()))
            .collect();
        if take.manner == Manner::Deliver {
            let jobs = self.hand_out_pass(now, &known, take.count);
            if !jobs.is_empty() {
                return Answer::Jobs(jobs);
            }
            if take.patience == Patience::None {
                return Answer::Nothing;
            }
        }
        let has_reservations = |queue: &[u8]| {
            self.jobs
                .values()
                .any(|job| job.queue == queue && job.is_reserved())
        };
        let paused_out = |queue: &[u8]| self.queues.get(queue).is_some_and(|queue| queue.pause.output);
        let seats: Vec<(u32, Vec<u8>)> = match take.patience {
            Patience::None => Vec::new(),
            Patience::Jobs => known.clone(),
            Patience::Reserved => known
                .iter()
                .filter(|(_, queue)| has_reservations(queue) && !paused_out(queue))
                .cloned()
                .collect(),
        };
        let watches: Vec<Vec<u8>> = match take.patience {
            Patience::Reserved => seats.iter().map(|(_, queue)| queue.clone()).collect(),
            _ => Vec::new(),
        };
        if take.patience == Patience::Jobs {
            take.queues
                .iter()
                .for_each(|(_, queue)| self.find_or_create(now, queue));
        }
        let last_reservation = self.reservations;
        let waiter = Waiter {
            asker,
            take: take.clone(),
            phase: Phase::Waiting,
            seats,
            watches,
            last_reservation,
            flushed: false,
        };
        self.waiters.push(waiter);
        if take.manner == Manner::Offer {
            let offers = self.offer_pass(now, &known, take.count, asker);
            if !offers.is_empty() {
                self.waiter_mut(asker).phase = Phase::Offered;
                return Answer::Offers(offers);
            }
        }
        if self.may_wait(asker) {
            return Answer::Waiting;
        }
        self.forget(asker);
        Answer::Nothing
    }

    fn ids(&mut self, now: u64, verb: IdVerb, ids: &[JobId]) -> Answer {
        let (mut counted, mut paused) = (0, 0);
        for id in ids {
            let Some(id) = self.find(now, id) else { continue };
            let job = &self.jobs[&id];
            let queued = job.is_queued();
            match verb {
                IdVerb::Acknowledge | IdVerb::FastAcknowledge | IdVerb::Delete => {
                    self.remove(&id);
                    counted += 1;
                }
                IdVerb::Dequeue if queued => {
                    self.dequeue(now, &id);
                    counted += 1;
                }
                IdVerb::Dequeue => {}
                IdVerb::Enqueue | IdVerb::Nack if queued || (job.add.retry_s == 0 && job.delivered) => {}
                IdVerb::Enqueue | IdVerb::Nack if self.queues[&job.queue].pause.input => paused += 1,
                IdVerb::Enqueue => {
                    self.enter(now, &id, Entry::Plain);
                    counted += 1;
                }
                IdVerb::Nack => {
                    self.enter(now, &id, Entry::Nack);
                    counted += 1;
                }
            }
        }
        match verb {
            IdVerb::Enqueue | IdVerb::Nack => Answer::Entered { counted, paused },
            _ => Answer::Count(counted),
        }
    }

    fn working(&mut self, now: u64, id: &JobId) -> Answer {
        let Some(id) = self.find(now, id) else {
            return Answer::Error(CommandError::NoJob);
        };
        let job = &self.jobs[&id];
        let retry_s = job.add.retry_s;
        let life_ms = u64::from(job.add.ttl_s) * 1000;
        let born_at = job.expires_at - life_ms;
        if now - born_at > life_ms / 2 {
            return Answer::Error(CommandError::TooLate);
        }
        if retry_s > 0 && job.is_queued() {
            self.dequeue(now, &id);
        } else {
            self.postpone(now, &id);
        }
        Answer::Count(i64::from(retry_s))
    }

    fn pause(&mut self, now: u64, queue: &Blob, state: Option<PauseState>) -> Answer {
        if state.is_some_and(PauseState::any) {
            self.find_or_create(now, queue);
        }
        let Some(place) = self.queues.get_mut(queue.as_slice()) else {
            return Answer::Pause(PauseState::default());
        };
        if let Some(state) = state {
            place.pause = state;
            self.opened(now, queue);
        }
        Answer::Pause(self.queues[queue.as_slice()].pause)
    }

    /// What waited for a way to open goes on: first what enters, then what leaves.
    fn opened(&mut self, now: u64, queue: &[u8]) {
        if !self.queues[queue].pause.input {
            let held = self
                .jobs
                .iter()
                .filter(|(_, job)| job.queue == queue && job.place == Place::Held);
            for id in held.map(|(id, _)| *id).collect::<Vec<_>>() {
                self.enter_quietly(now, &id, Entry::Plain);
            }
        }
        while self.can_serve(queue) && self.serve_next(now, queue) {}
    }

    fn peek(&self, now: u64, queue: &[u8], count: i64) -> Answer {
        let alive = |id: &JobId| self.jobs[id].expires_at > now;
        let mut ids: Vec<JobId> = self.queued(queue).into_iter().filter(alive).collect();
        if count < 0 {
            ids.reverse();
        }
        ids.truncate(count.unsigned_abs() as usize);
        Answer::Peeked {
            jobs: ids.iter().map(|id| self.describe(id, 0)).collect(),
            next: None,
        }
    }

    fn stat(&mut self, now: u64, name: &Blob, actual: &Answer) -> Answer {
        let name = name.as_slice();
        if matches!(actual, Answer::Queue(None)) && self.may_be_collected(now, name) {
            self.queues.remove(name);
        }
        let (length, blocked) = (self.length(name), self.waiting_at(name).count() as u64);
        let Some(queue) = self.queues.get_mut(name) else {
            return Answer::Queue(None);
        };
        if let (true, Answer::Queue(Some(actual))) = (queue.uncertain, actual) {
            (queue.jobs_in, queue.jobs_out) = (actual.jobs_in, actual.jobs_out);
            queue.created_at = now - actual.age_s * 1000;
        }
        Answer::Queue(Some(Box::new(QueueView {
            name: Blob::copy_from(name),
            length,
            age_s: (now - queue.created_at) / 1000,
            idle_s: (now - queue.touched_at) / 1000,
            blocked,
            jobs_in: queue.jobs_in,
            jobs_out: queue.jobs_out,
            pause: queue.pause,
        })))
    }

    /// These of the jobs that were offered are claimed.
    pub fn claim(&mut self, now: Now, asker: Asker, ids: &[JobId]) {
        let now = now.mono().0;
        let Some(waiter) = self.waiters.iter().find(|waiter| waiter.asker == asker) else {
            // It ended while the claim was on its way, and who claims waits for more than a refusal.
            return self
                .ends
                .extend([(asker.1, Answer::Jobs(Vec::new())), (asker.1, Answer::Nothing)]);
        };
        if waiter.phase == Phase::Waiting {
            return self.ends.push((asker.1, Answer::Jobs(Vec::new())));
        }
        let jobs: Vec<Delivered> = ids
            .iter()
            .filter_map(|id| self.claim_one(now, asker, id))
            .collect();
        if !jobs.is_empty() {
            self.waiter_mut(asker).phase = Phase::Served;
        }
        self.ends.push((asker.1, Answer::Jobs(jobs)));
        if self.waiter_mut(asker).phase == Phase::Offered && self.offers_of(asker).is_empty() {
            self.wait_on(now, asker);
        }
    }

    fn claim_one(&mut self, now: u64, asker: Asker, id: &JobId) -> Option<Delivered> {
        let id = self.find(now, id)?;
        let Place::Reserved {
            asker: holder, place, ..
        } = self.jobs[&id].place
        else {
            return None;
        };
        if holder != asker {
            return None;
        }
        let queue = self.jobs[&id].queue.clone();
        if self.queues[&queue].pause.output {
            self.give_back(now, &id);
            return None;
        }
        let delivered = self.hand_out(now, &id, place);
        self.settle(&queue);
        Some(delivered)
    }

    /// All its claims were refused and it has no offer left: it stands in line again, where it stood.
    fn wait_on(&mut self, now: u64, asker: Asker) {
        let waiter = self.waiter_mut(asker);
        let (seats, count, flushed) = (waiter.seats.clone(), waiter.take.count, waiter.flushed);
        if flushed {
            return self.end_with_nothing(asker);
        }
        let offers = self.offer_pass(now, &seats, count, asker);
        if !offers.is_empty() {
            return self.ends.push((asker.1, Answer::Offers(offers)));
        }
        if self.may_wait(asker) {
            self.waiter_mut(asker).phase = Phase::Waiting;
        } else if self.waiter_mut(asker).take.patience == Patience::Reserved {
            self.end_with_nothing(asker);
        }
    }

    /// A request ends.
    pub fn cancel(&mut self, now: Now, asker: Asker) {
        if !self.waiters.iter().any(|waiter| waiter.asker == asker) {
            return;
        }
        let waiter = self.waiter_mut(asker);
        waiter.phase = Phase::Served;
        let manner = waiter.take.manner;
        for id in self.offers_of(asker) {
            if matches!(self.jobs.get(&id), Some(job) if job.is_reserved_for(asker)) {
                self.give_back(now.mono().0, &id);
            }
        }
        match manner {
            Manner::Deliver => self.end_with_nothing(asker),
            Manner::Offer => self.forget(asker),
        }
    }

    /// These were handed out and did not reach their client.
    pub fn undelivered(&mut self, now: Now, jobs: &[Handed]) {
        let now = now.mono().0;
        for handed in jobs {
            let Some(id) = self.find(now, &handed.id) else {
                continue;
            };
            let job = self.jobs.get_mut(&id).expect("it was found");
            if job.place != Place::Leased || job.deliveries != handed.delivery {
                continue;
            }
            job.delivered = job.add.retry_s > 0;
            let queue = self.queues.get_mut(&job.queue).expect("a job has its queue");
            queue.jobs_out = queue.jobs_out.saturating_sub(1);
            if queue.pause.input {
                job.entered_before = false;
                job.place = Place::Held;
                job.enters_at = NEVER;
            } else {
                self.enter(now, &id, Entry::Undone);
            }
        }
    }

    /// All jobs and queues of a shard are gone.
    pub fn flush(&mut self, shard: ShardNo) {
        let shards = self.shards;
        self.jobs.retain(|id, _| id.slot().home(shards) != shard);
        let here = |queue: &[u8]| Slot::of_queue(queue).home(shards) == shard;
        self.queues.retain(|queue, _| !here(queue));
        for asker in self.waiters.iter().map(|waiter| waiter.asker).collect::<Vec<_>>() {
            let waiter = self.waiter_mut(asker);
            if here(&waiter.take.queues[0].1) {
                waiter.seats.clear();
                waiter.watches.clear();
                waiter.flushed = true;
                if waiter.phase == Phase::Waiting {
                    self.end_with_nothing(asker);
                }
            }
        }
    }

    /// Time passes on a shard. `actual` is what it ended, for the order of what fell due at once.
    pub fn tick(&mut self, now: Now, shard: ShardNo, actual: &[(Ticket, Answer)]) {
        let now = now.mono().0;
        let shards = self.shards;
        let is_due = |(id, job): &(&JobId, &Job)| id.slot().home(shards) == shard && job.deadline() <= now;
        let mut due: Vec<JobId> = self.jobs.iter().filter(is_due).map(|(id, _)| *id).collect();
        let before = self.ends.len();
        while !due.is_empty() {
            // First what was served at once, then what is dead, then what nobody waits for.
            let served = due.iter().position(|id| self.is_next(id, now, before, actual));
            let dead = || {
                due.iter()
                    .position(|id| self.jobs.get(id).is_none_or(|job| job.expires_at <= now))
            };
            let id = due.remove(served.or_else(dead).unwrap_or(0));
            // What was removed on the way is gone.
            let Some(job) = self.jobs.get(&id) else { continue };
            if job.expires_at <= now {
                self.remove(&id);
            } else if self.queues[&job.queue].pause.input {
                let job = self.jobs.get_mut(&id).expect("it is there");
                job.place = Place::Held;
                job.enters_at = NEVER;
            } else {
                self.enter(now, &id, Entry::Plain);
            }
        }
    }

    /// Whether a job that enters its queue now would go to whom it actually went.
    fn is_next(&self, id: &JobId, now: u64, before: usize, actual: &[(Ticket, Answer)]) -> bool {
        let Some(job) = self.jobs.get(id).filter(|job| job.expires_at > now) else {
            return false;
        };
        let Some(waiter) = self.waiting_at(&job.queue).next() else {
            return false;
        };
        let ticket = waiter.asker.1;
        let ended = self.ends[before..]
            .iter()
            .filter(|(ended, _)| *ended == ticket)
            .count();
        let end = actual.iter().filter(|(ended, _)| *ended == ticket).nth(ended);
        match end {
            Some((_, Answer::Jobs(jobs))) => jobs.iter().any(|job| job.handed.id == *id),
            Some((_, Answer::Offers(offers))) => offers.iter().any(|offer| offer.id == *id),
            _ => false,
        }
    }

    /// When the next timer of a shard's jobs is due.
    pub fn next_deadline(&self, shard: ShardNo) -> Option<u64> {
        let here = self
            .jobs
            .iter()
            .filter(|(id, _)| id.slot().home(self.shards) == shard);
        here.map(|(_, job)| job.deadline()).min()
    }

    /// Reservations and unfinished GETJOBs: none is left when nothing is under way.
    pub fn unfinished(&self) -> Vec<String> {
        let reserved = self
            .jobs
            .iter()
            .filter(|(_, job)| job.is_reserved())
            .map(|(id, job)| format!("{id} {job:?}"));
        reserved
            .chain(self.waiters.iter().map(|waiter| format!("{waiter:?}")))
            .collect()
    }

    /// Queues of which a job is to be had while somebody stands in line for it.
    pub fn starving(&self) -> Vec<String> {
        let names = self.queues.keys().filter(|queue| self.can_serve(queue));
        names.map(|name| name.escape_ascii().to_string()).collect()
    }

    /// All jobs, and the length of each queue.
    pub fn job_ids(&self) -> Vec<JobId> {
        self.jobs.keys().copied().collect()
    }

    // What jobs do.

    fn find(&mut self, now: u64, id: &JobId) -> Option<JobId> {
        if self.jobs.get(id)?.expires_at <= now {
            self.remove(id);
            return None;
        }
        Some(*id)
    }

    fn remove(&mut self, id: &JobId) {
        let job = self.jobs.remove(id).expect("it is there");
        if job.is_reserved() {
            self.settle(&job.queue);
        }
    }

    fn enter(&mut self, now: u64, id: &JobId, entry: Entry) {
        self.enter_quietly(now, id, entry);
        let queue = self.jobs[id].queue.clone();
        if self.can_serve(&queue) {
            self.serve_next(now, &queue);
        }
    }

    fn enter_quietly(&mut self, now: u64, id: &JobId, entry: Entry) {
        let job = self.jobs.get_mut(id).expect("it is there");
        match entry {
            Entry::Nack => job.nacks += 1,
            Entry::Plain => job.additional_deliveries += u32::from(job.entered_before),
            Entry::Undone => {}
        }
        if entry != Entry::Undone {
            let queue = self.queues.get_mut(&job.queue).expect("a job has its queue");
            queue.jobs_in += 1;
            queue.touched_at = now;
        }
        job.entered_before = true;
        job.enters_at = NEVER;
        job.place = Place::Queued;
    }

    fn dequeue(&mut self, now: u64, id: &JobId) {
        let job = self.jobs.get_mut(id).expect("it is there");
        let (queue, reserved) = (job.queue.clone(), job.is_reserved());
        job.place = Place::Idle;
        self.postpone(now, id);
        if reserved {
            self.settle(&queue);
        }
    }

    fn postpone(&mut self, now: u64, id: &JobId) {
        let job = self.jobs.get_mut(id).expect("it is there");
        if job.add.retry_s == 0 {
            return;
        }
        if job.place == Place::Held {
            job.place = Place::Idle;
        }
        job.enters_at = now + u64::from(job.add.retry_s) * 1000;
    }

    fn hand_out(&mut self, now: u64, id: &JobId, place: u32) -> Delivered {
        let job = self.jobs.get_mut(id).expect("it is there");
        job.place = Place::Leased;
        job.delivered = true;
        job.deliveries += 1;
        job.enters_at = if job.add.retry_s == 0 {
            NEVER
        } else {
            now + u64::from(job.add.retry_s) * 1000
        };
        let queue = self.queues.get_mut(&job.queue).expect("a job has its queue");
        queue.jobs_out += 1;
        queue.touched_at = now;
        self.describe(id, place)
    }

    fn give_back(&mut self, now: u64, id: &JobId) {
        let job = self.jobs.get_mut(id).expect("it is there");
        job.place = Place::Queued;
        let queue = job.queue.clone();
        if self.can_serve(&queue) {
            self.serve_next(now, &queue);
        }
        self.settle(&queue);
    }

    fn describe(&self, id: &JobId, place: u32) -> Delivered {
        let job = &self.jobs[id];
        Delivered {
            place,
            queue: job.add.queue.clone(),
            handed: Handed {
                id: *id,
                delivery: job.deliveries,
            },
            body: job.add.body.clone(),
            nacks: job.nacks,
            additional_deliveries: job.additional_deliveries,
        }
    }

    fn view(&self, now: u64, id: &JobId) -> JobView {
        let job = &self.jobs[id];
        let left_ms = job.expires_at - now;
        let retry_ms = u64::from(job.add.retry_s) * 1000;
        let next_requeue_ms = match job.place {
            Place::Held => Some(0),
            Place::Queued | Place::Reserved { .. } => (retry_ms > 0).then_some(retry_ms),
            Place::Idle | Place::Leased => {
                (job.enters_at != NEVER).then(|| job.enters_at.saturating_sub(now))
            }
        };
        let sooner = next_requeue_ms.filter(|_| !job.is_queued()).unwrap_or(NEVER);
        JobView {
            id: *id,
            queue: job.add.queue.clone(),
            state: if job.is_queued() {
                JobState::Queued
            } else {
                JobState::Active
            },
            replicate: job.add.replicate,
            ttl_s: left_ms.div_ceil(1000),
            ctime: job.ctime,
            delay_s: job.add.delay_s,
            retry_s: job.add.retry_s,
            nacks: job.nacks,
            additional_deliveries: job.additional_deliveries,
            next_requeue_ms,
            next_awake_ms: Some(left_ms.min(sooner)),
            body: job.add.body.clone(),
        }
    }

    // What queues and waiters do.

    fn find_or_create(&mut self, now: u64, name: &Blob) {
        let uncertain = self.may_be_collected(now, name);
        let fresh = Queue {
            pause: PauseState::default(),
            created_at: now,
            touched_at: now,
            jobs_in: 0,
            jobs_out: 0,
            uncertain: false,
        };
        let queue = self.queues.entry(name.to_vec()).or_insert(fresh);
        queue.uncertain |= uncertain;
    }

    fn may_be_collected(&self, now: u64, name: &[u8]) -> bool {
        self.queues.get(name).is_some_and(|queue| {
            let used = self.jobs.values().any(|job| job.queue == name)
                || self
                    .waiters
                    .iter()
                    .any(|waiter| waiter.seats.iter().any(|(_, seat)| seat == name));
            !used && !queue.pause.any() && now - queue.touched_at > IDLE_QUEUE_MS
        })
    }

    /// Jobs that count as queued, in order.
    fn queued(&self, queue: &[u8]) -> Vec<JobId> {
        let mut ids: Vec<(u64, JobId)> = self
            .jobs
            .iter()
            .filter(|(_, job)| job.queue == queue && job.is_queued())
            .map(|(id, job)| (job.ctime, *id))
            .collect();
        ids.sort();
        ids.into_iter().map(|(_, id)| id).collect()
    }

    fn length(&self, queue: &[u8]) -> u64 {
        self.queued(queue).len() as u64
    }

    fn first_to_be_had(&mut self, now: u64, queue: &[u8]) -> Option<JobId> {
        if self.queues.get(queue).is_none_or(|queue| queue.pause.output) {
            return None;
        }
        for id in self.queued(queue) {
            if self.jobs[&id].place != Place::Queued {
                continue;
            }
            if self.jobs[&id].expires_at > now {
                return Some(id);
            }
            self.remove(&id);
        }
        None
    }

    /// One job per queue and pass, until there are enough or a pass brings none.
    fn take_pass(
        &mut self,
        now: u64,
        queues: &[(u32, Vec<u8>)],
        count: u32,
        mut take: impl FnMut(&mut Self, u32, JobId),
    ) {
        let mut taken = 0;
        loop {
            let before = taken;
            for (place, queue) in queues {
                if taken == count {
                    return;
                }
                if let Some(id) = self.first_to_be_had(now, queue) {
                    take(self, *place, id);
                    taken += 1;
                }
            }
            if taken == before {
                return;
            }
        }
    }

    fn hand_out_pass(&mut self, now: u64, queues: &[(u32, Vec<u8>)], count: u32) -> Vec<Delivered> {
        let mut jobs = Vec::new();
        self.take_pass(now, queues, count, |this, place, id| {
            jobs.push(this.hand_out(now, &id, place))
        });
        jobs
    }

    fn offer_pass(&mut self, now: u64, queues: &[(u32, Vec<u8>)], count: u32, asker: Asker) -> Vec<Offered> {
        let mut offers = Vec::new();
        self.take_pass(now, queues, count, |this, place, id| {
            this.reservations += 1;
            let number = this.reservations;
            this.jobs.get_mut(&id).expect("it is there").place = Place::Reserved { asker, number, place };
            offers.push(Offered { place, id });
        });
        offers
    }

    fn waiting_at<'a>(&'a self, queue: &'a [u8]) -> impl Iterator<Item = &'a Waiter> {
        let sits = move |waiter: &&Waiter| waiter.seats.iter().any(|(_, seat)| seat == queue);
        self.waiters
            .iter()
            .filter(|waiter| waiter.phase == Phase::Waiting)
            .filter(sits)
    }

    fn can_serve(&self, queue: &[u8]) -> bool {
        let open = self.queues.get(queue).is_some_and(|queue| !queue.pause.output);
        let has_jobs = || {
            self.jobs
                .values()
                .any(|job| job.queue == queue && job.place == Place::Queued)
        };
        open && has_jobs() && self.waiting_at(queue).next().is_some()
    }

    /// Serves who waits longest; whether there was anything for him.
    fn serve_next(&mut self, now: u64, queue: &[u8]) -> bool {
        let waiter = self.waiting_at(queue).next().expect("somebody waits");
        let (asker, seats, count) = (waiter.asker, waiter.seats.clone(), waiter.take.count);
        let (answer, served) = match waiter.take.manner {
            Manner::Deliver => {
                let jobs = self.hand_out_pass(now, &seats, count);
                let served = !jobs.is_empty();
                (Answer::Jobs(jobs), served)
            }
            Manner::Offer => {
                let offers = self.offer_pass(now, &seats, count, asker);
                let served = !offers.is_empty();
                (Answer::Offers(offers), served)
            }
        };
        if served {
            match answer {
                Answer::Jobs(_) => self.forget(asker),
                _ => self.waiter_mut(asker).phase = Phase::Offered,
            }
            self.ends.push((asker.1, answer));
        }
        served
    }

    /// Ends the wait of those that waited only for reservations of this queue that are over now.
    fn settle(&mut self, queue: &[u8]) {
        let oldest = self
            .jobs
            .values()
            .filter(|job| job.queue == queue)
            .filter_map(Job::reservation)
            .min();
        for asker in self.waiters.iter().map(|waiter| waiter.asker).collect::<Vec<_>>() {
            let waiter = self.waiter_mut(asker);
            if oldest.is_some_and(|oldest| oldest <= waiter.last_reservation) {
                continue;
            }
            let before = waiter.watches.len();
            waiter.watches.retain(|watched| watched != queue);
            if waiter.watches.len() < before && waiter.watches.is_empty() && waiter.phase == Phase::Waiting {
                self.end_with_nothing(asker);
            }
        }
    }

    fn may_wait(&self, asker: Asker) -> bool {
        let waiter = self
            .waiters
            .iter()
            .find(|waiter| waiter.asker == asker)
            .expect("it is there");
        match waiter.take.patience {
            Patience::None => false,
            Patience::Reserved => !waiter.watches.is_empty(),
            Patience::Jobs => true,
        }
    }

    fn offers_of(&self, asker: Asker) -> Vec<JobId> {
        let mut offers: Vec<(u64, JobId)> = self
            .jobs
            .iter()
            .filter(|(_, job)| job.is_reserved_for(asker))
            .map(|(id, job)| (job.reservation().expect("it is reserved"), *id))
            .collect();
        offers.sort();
        offers.into_iter().map(|(_, id)| id).collect()
    }

    fn waiter_mut(&mut self, asker: Asker) -> &mut Waiter {
        self.waiters
            .iter_mut()
            .find(|waiter| waiter.asker == asker)
            .expect("it is there")
    }

    fn forget(&mut self, asker: Asker) {
        self.waiters.retain(|waiter| waiter.asker != asker);
    }

    fn end_with_nothing(&mut self, asker: Asker) {
        self.forget(asker);
        self.ends.push((asker.1, Answer::Nothing));
    }
}

impl Job {
    fn is_queued(&self) -> bool {
        matches!(self.place, Place::Queued | Place::Reserved { .. })
    }

    fn is_reserved(&self) -> bool {
        matches!(self.place, Place::Reserved { .. })
    }

    fn is_reserved_for(&self, asker: Asker) -> bool {
        matches!(self.place, Place::Reserved { asker: holder, .. } if holder == asker)
    }

    fn reservation(&self) -> Option<u64> {
        match self.place {
            Place::Reserved { number, .. } => Some(number),
            _ => None,
        }
    }

    fn deadline(&self) -> u64 {
        match self.place {
            Place::Idle | Place::Leased => self.expires_at.min(self.enters_at),
            Place::Queued | Place::Reserved { .. } | Place::Held => self.expires_at,
        }
    }
}
