//! The naive queue: what a node's home shards should do, in one place, one thread, and with nothing but lists that are searched.
//!
//! It is told what a home shard is told, in the order in which the home shards handled it, and says what they should answer. It shares no code with
//! them but the words of the messages. Chance is not its business: the ID of a new job is taken from the real answer, and
//! where several timers of a shard fall due in one tick, their order is taken from what the shard did.

mod commands;
mod lines;
mod moves;
mod talk;
mod waiting;

use std::collections::{BTreeMap, VecDeque};

use shard::clock::Now;
use shard::commands::addjob::AddJob;
use shard::commands::view::{HolderView, JobState, JobView, PauseState, QueueView};
use shard::commands::{IdVerb, Request};
use shard::error::CommandError;
use shard::id::JobId;
use shard::message::{Answer, Delivered, Handed, Manner, Offered, Patience, SessionId, Take, Ticket};
use shard::slot::{ShardNo, Slot};
use shard::wire::Blob;

const NEVER: u64 = u64::MAX;
/// A queue that is idle for longer may be collected at any time.
const IDLE_QUEUE_MS: u64 = 300_000;

use lines::{Who, who_of};

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
    /// Requests that stand behind a lingering one of their session, in order.
    behind: Vec<(Who, Ticket, Request)>,
    /// Sessions whose turn it is.
    ready: VecDeque<Who>,
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
            behind: Vec::new(),
            ready: VecDeque::new(),
            ends: Vec::new(),
        }
    }

    /// What should end now, of requests that were told to wait.
    pub fn take_ends(&mut self) -> Vec<(Ticket, Answer)> {
        std::mem::take(&mut self.ends)
    }

    /// What a home shard should answer. `actual` supplies what is left to chance.
    pub fn request(
        &mut self,
        now: Now,
        home: ShardNo,
        ticket: Ticket,
        request: Request,
        actual: &Answer,
    ) -> Answer {
        let who = who_of((home, ticket));
        if self.is_held_up(who) {
            self.behind.push((who, ticket, request));
            return Answer::Waiting;
        }
        self.perform(now, ticket, &request, actual)
    }

    fn perform(&mut self, now: Now, ticket: Ticket, request: &Request, actual: &Answer) -> Answer {
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
            .chain(self.behind.iter().map(|behind| format!("{behind:?}")))
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
