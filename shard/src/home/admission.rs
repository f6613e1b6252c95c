//! Whether there is memory for a new job, and what happens when there is not.
//!
//! First the ADDJOB waits until shard 0 has answered whether it can lend more; those behind it wait too, so that the
//! order of a client's ADDJOBs is that of their creation stamps. When there is no more to be lent, RETRY 0 jobs that were handed out are
//! evicted, oldest first, a bounded number per step. Else it is refused.
//!
//! What is evicted, plainly: a RETRY 0 job that was handed out at least `EVICTION_GRACE_S` ago, also when the reply that
//! carries it has not reached its client yet; such a job cannot come back when that reply is lost. A job that still stands in its queue,
//! or that has a RETRY, is never dropped.

use std::collections::BTreeMap;

use super::job::JOB_BYTES;
use super::queue::QUEUE_BYTES;
use super::{Home, Place};
use crate::clock::{Mono, Now, SECOND_MS};
use crate::commands::addjob::{self, AddJob};
use crate::error::CommandError;
use crate::limits::{EVICTION_GRACE_S, UPKEEP_STEP};
use crate::message::{Answer, Ticket};

/// ADDJOBs that wait for memory, by arrival.
#[derive(Debug, Default)]
pub struct Short {
    waiting: BTreeMap<u64, (Ticket, AddJob)>,
    tickets: BTreeMap<Ticket, u64>,
    arrivals: u64,
    bytes: u64,
    /// Memory was lent, or there is none to be had: they are to be tried again.
    retry: bool,
}

impl Short {
    pub fn len(&self) -> usize {
        self.waiting.len()
    }

    pub fn retry_is_due(&self) -> bool {
        self.retry
    }

    /// All of them.
    pub fn tickets(&self) -> impl Iterator<Item = Ticket> {
        self.tickets.keys().copied()
    }

    /// Forgets one; false when there is none.
    pub fn cancel(&mut self, ticket: Ticket) -> bool {
        let Some(arrival) = self.tickets.remove(&ticket) else {
            return false;
        };
        let (_, add) = self.waiting.remove(&arrival).expect("both maps name the same");
        self.bytes -= cost(&add);
        true
    }

    fn push_back(&mut self, ticket: Ticket, add: AddJob) {
        self.arrivals += 1;
        self.put(self.arrivals, ticket, add);
    }

    fn put(&mut self, arrival: u64, ticket: Ticket, add: AddJob) {
        self.bytes += cost(&add);
        self.waiting.insert(arrival, (ticket, add));
        let before = self.tickets.insert(ticket, arrival);
        assert!(before.is_none(), "a ticket names one request");
    }

    fn pop_front(&mut self) -> Option<(u64, Ticket, AddJob)> {
        let (arrival, (ticket, add)) = self.waiting.pop_first()?;
        self.tickets.remove(&ticket);
        self.bytes -= cost(&add);
        Some((arrival, ticket, add))
    }
}

/// Whether something fits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Room {
    Fits,
    /// Not now, but more memory may be lent.
    Later,
    Never,
}

/// What becomes of an ADDJOB.
enum Verdict {
    /// It is taken; the key of its queue, when that exists.
    Take {
        queue: Option<u32>,
    },
    /// It is to wait for memory.
    Wait,
    Refuse(CommandError),
}

impl Home {
    /// ADDJOB.
    pub(super) fn add(&mut self, now: Now, ticket: Ticket, add: &mut AddJob) -> Answer {
        if self.short.waiting.is_empty() {
            match self.judge(now.mono(), add, false) {
                Verdict::Take { queue } => return addjob::apply(self, now, ticket, queue, add),
                Verdict::Refuse(error) => return Answer::Error(error),
                Verdict::Wait => {}
            }
        }
        self.short.push_back(ticket, add.clone());
        self.lines.linger(ticket, false);
        Answer::Waiting
    }

    /// Shard 0 has answered: memory was lent, or there is none left. All that wait for memory are tried again, in order.
    /// When it was the `last` there is, those that still do not fit are refused: waiting for more would be waiting for ever.
    pub fn memory_lent(&mut self, now: Now, last: bool) {
        self.journal.begin(now);
        self.retry_short(now, last);
    }

    /// What the ADDJOBs that wait for memory need, together.
    pub fn waiting_bytes(&self) -> u64 {
        self.short.bytes
    }

    /// The memory level of the node has changed. At a higher one idle queues live shorter.
    pub fn set_memory_level(&mut self, level: u8) {
        if level > self.memory.level() {
            self.sweep.start();
        }
        self.memory.set_level(level);
    }

    /// A step through those that wait for memory.
    pub(super) fn retry_short(&mut self, now: Now, last: bool) {
        self.short.retry = true;
        for _ in 0..UPKEEP_STEP {
            let Some((arrival, ticket, mut add)) = self.short.pop_front() else {
                self.short.retry = false;
                return;
            };
            let verdict = match self.journal.refuses_add(&add) {
                Some(misconf) => Verdict::Refuse(misconf),
                None => self.judge(now.mono(), &add, last),
            };
            let answer = match verdict {
                Verdict::Take { queue } => addjob::apply(self, now, ticket, queue, &mut add),
                Verdict::Refuse(error) => Answer::Error(error),
                Verdict::Wait => {
                    self.short.put(arrival, ticket, add);
                    self.short.retry = false;
                    return;
                }
            };
            if !matches!(answer, Answer::Waiting) {
                self.end(ticket, answer);
            }
            self.lines.ended(ticket);
        }
    }

    /// Whether the job is taken. Makes room for it where that is possible.
    fn judge(&mut self, now: Mono, add: &AddJob, last: bool) -> Verdict {
        let queue = self.find_queue(&add.queue);
        if let Some(error) = queue.and_then(|queue| addjob::refusal(self.queue(queue), add)) {
            return Verdict::Refuse(error);
        }
        match self.make_room(now, cost(add), last) {
            Room::Fits => Verdict::Take { queue },
            Room::Later => Verdict::Wait,
            Room::Never => Verdict::Refuse(CommandError::OutOfMemory),
        }
    }

    /// Evicts only when nothing more can be borrowed.
    fn make_room(&mut self, now: Mono, bytes: u64, last: bool) -> Room {
        if self.memory.admit(bytes) {
            return Room::Fits;
        }
        if !last {
            return Room::Later;
        }
        for _ in 0..UPKEEP_STEP {
            let Some(oldest) = self.evictable(now) else { break };
            self.journal.gone(self.job(oldest).id);
            self.remove(oldest);
            self.counters.evicted += 1;
            if self.memory.admit(bytes) {
                return Room::Fits;
            }
        }
        Room::Never
    }

    fn evictable(&self, now: Mono) -> Option<u32> {
        let oldest = self.stock.delivered.first().filter(|_| self.evicts)?;
        self.is_spent(now, oldest).then_some(oldest)
    }

    /// Whether a RETRY 0 job was handed out, long enough ago that it will not come back.
    pub(super) fn is_spent(&self, now: Mono, key: u32) -> bool {
        let job = self.job(key);
        let age_s = ((now.0 / SECOND_MS) as u32).wrapping_sub(job.aside);
        job.at_most_once() && job.place == Place::Leased && age_s >= EVICTION_GRACE_S
    }
}

/// What a job and, were it missing, its queue would take.
fn cost(add: &AddJob) -> u64 {
    let (name, body) = (add.queue.heap_bytes() as u64, add.body.heap_bytes() as u64);
    JOB_BYTES + body + QUEUE_BYTES + name
}
