//! A queue, and the waiters' side of it.
//!
//! A queue exists from its first job, blocking GETJOB or PAUSE until it was idle for long: nothing in it, nobody waits for
//! it, no job of the shard names it, no way of it is closed.

use std::ops::{Index, IndexMut};

use crate::clock::Mono;
use crate::commands::view::PauseState;
use crate::slot::Slot;
use crate::structures::list::List;
use crate::structures::skiplist::SkipList;
use crate::structures::slab::Slab;
use crate::structures::timers::TimerKey;
use crate::wire::Blob;

/// What a queue costs beside the heap bytes of its name: its record, its timer (24) and its share of the map (a line of
/// its own, at worst: most slots have few queues).
pub const QUEUE_BYTES: u64 = size_of::<Queue>() as u64 + 24 + 64;

/// A queue.
#[derive(Debug)]
pub struct Queue {
    /// Its name.
    pub name: Blob,
    /// Slot of the name.
    pub slot: Slot,
    /// Hash of the name, for the map and the order of scans.
    pub hash: u64,
    /// Jobs to be had, in order of creation.
    pub jobs: SkipList,
    /// Jobs offered to GETJOBs of several shards, in order of creation.
    pub reserved: SkipList,
    /// The offers of `reserved`, oldest first.
    pub offers: List,
    /// Jobs that enter when the queue is no longer paused in, in the order in which they fell due.
    pub held: List,
    /// Seats of the waiters to be served, in blocking order.
    pub waiters: SkipList,
    /// Seats of the waiters that wait only for the present reservations to end, in blocking order.
    pub watchers: List,
    /// Seats of all GETJOBs that may yet wait for it, those included that have an offer they have not claimed.
    pub seats: u32,
    /// Jobs of the shard that name it, wherever they are.
    pub members: u32,
    /// ADDJOBs that wait for copies: MAXLEN counts them.
    pub adding: u32,
    /// Jobs that other nodes were told can be taken here.
    pub advertised: u32,
    /// Of those, jobs that came since.
    pub imported: u32,
    /// Imports of the last second, about: what a busy queue asks for ahead.
    pub streamed: u32,
    /// When `streamed` was halved last.
    pub streamed_at: Mono,
    /// Other nodes have consumers for it.
    pub wanted: bool,
    /// `Federation` names it: its waiters changed, or jobs may go.
    pub tell_marked: bool,
    /// The same for exports.
    pub export_marked: bool,
    /// Which ways are closed.
    pub pause: PauseState,
    /// `Home::busy` names it: held jobs enter, or waiters are served, in steps.
    pub busy: bool,
    /// Its timer, for the collection of idle queues.
    pub timer: Option<TimerKey>,
    /// When it was created.
    pub created_at: Mono,
    /// When it was last entered or fetched from.
    pub touched_at: Mono,
    /// Jobs that entered.
    pub jobs_in: u64,
    /// Jobs handed out.
    pub jobs_out: u64,
}

impl Queue {
    /// Jobs queued, reserved ones included.
    pub fn len(&self) -> u64 {
        (self.jobs.len() + self.reserved.len()) as u64
    }

    /// Whether nothing needs it.
    pub fn is_idle(&self) -> bool {
        self.members == 0 && self.seats == 0 && !self.pause.any() && !self.busy
    }

    /// Whether a waiter is to be served.
    pub fn can_serve(&self) -> bool {
        !self.pause.output && !self.jobs.is_empty() && !self.waiters.is_empty()
    }

    /// Counts an import.
    pub fn stream(&mut self, now: Mono) {
        let seconds = now.since_ms(self.streamed_at) / 1000;
        if seconds > 0 {
            self.streamed >>= seconds.min(31);
            self.streamed_at = now;
        }
        self.streamed = self.streamed.saturating_add(1);
    }

    /// What it costs in memory.
    pub fn bytes(&self) -> u64 {
        QUEUE_BYTES + self.name.heap_bytes() as u64
    }
}

/// All queues of a shard.
#[derive(Debug, Default)]
pub struct Queues(pub Slab<Queue>);

impl Index<u32> for Queues {
    type Output = Queue;

    fn index(&self, key: u32) -> &Queue {
        &self.0[key]
    }
}

impl IndexMut<u32> for Queues {
    fn index_mut(&mut self, key: u32) -> &mut Queue {
        &mut self.0[key]
    }
}
