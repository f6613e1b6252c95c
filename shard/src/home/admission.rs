//! Whether there is memory for a new job, and what happens when there is not.
//!
//! First delivered at-most-once jobs are evicted, oldest first, a bounded number per step: nobody can ever get them
//! again. Then, when another shard may have memory to spare, the ADDJOB waits until shard 0 has answered; those behind it wait
//! too, so that the order of a client's ADDJOBs is that of their creation stamps. Else it is refused. A job that may still be
//! delivered is never dropped.

use std::collections::BTreeMap;

use super::Home;
use super::job::JOB_BYTES;
use super::queue::QUEUE_BYTES;
use crate::clock::Now;
use crate::commands::addjob::{self, AddJob};
use crate::error::CommandError;
use crate::limits::UPKEEP_STEP;
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

impl Home {
    /// ADDJOB.
    pub(super) fn add(&mut self, now: Now, ticket: Ticket, add: AddJob) -> Answer {
        if self.short.waiting.is_empty() {
            match self.try_add(now, add) {
                Ok(answer) => return answer,
                Err(add) => self.short.push_back(ticket, add),
            }
        } else {
            self.short.push_back(ticket, add);
        }
        Answer::Waiting
    }

    /// Shard 0 has answered: memory was lent, or there is none left. All that wait for memory are tried again, in order.
    pub fn memory_lent(&mut self, now: Now) {
        self.retry_short(now);
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
    pub(super) fn retry_short(&mut self, now: Now) {
        self.short.retry = true;
        for _ in 0..UPKEEP_STEP {
            let Some((arrival, ticket, add)) = self.short.pop_front() else {
                self.short.retry = false;
                return;
            };
            match self.try_add(now, add) {
                Ok(answer) => self.end(ticket, answer),
                Err(add) => {
                    self.short.put(arrival, ticket, add);
                    self.short.retry = false;
                    return;
                }
            }
        }
    }

    /// Whether a command that adds nothing new but is refused when memory is used up may run.
    pub(crate) fn is_out_of_memory(&self) -> bool {
        !self.memory.admit(0) && !self.memory.may_borrow()
    }

    /// Adds the job, or says why not; gives it back when it is to wait for memory.
    fn try_add(&mut self, now: Now, add: AddJob) -> Result<Answer, AddJob> {
        let queue = self.find_queue(&add.queue);
        if let Some(error) = queue.and_then(|queue| addjob::refusal(self.queue(queue), &add)) {
            return Ok(Answer::Error(error));
        }
        match self.make_room(cost(&add)) {
            Room::Fits => Ok(Answer::Id(addjob::apply(self, now, queue, add))),
            Room::Later => Err(add),
            Room::Never => Ok(Answer::Error(CommandError::OutOfMemory)),
        }
    }

    fn make_room(&mut self, bytes: u64) -> Room {
        for _ in 0..UPKEEP_STEP {
            if self.memory.admit(bytes) {
                return Room::Fits;
            }
            let Some(oldest) = self.stock.delivered.first().filter(|_| self.evicts) else {
                break;
            };
            self.remove(oldest);
            self.counters.evicted += 1;
        }
        if self.memory.admit(bytes) {
            Room::Fits
        } else if self.memory.may_borrow() {
            Room::Later
        } else {
            Room::Never
        }
    }
}

/// What a job and, were it missing, its queue would take.
fn cost(add: &AddJob) -> u64 {
    let (name, body) = (add.queue.heap_bytes() as u64, add.body.heap_bytes() as u64);
    JOB_BYTES + body + QUEUE_BYTES + name
}
