//! A job, as its home shard keeps it, and the slab of all of them.
//!
//! ```text
//!                 add (delay)                  enter                   take (deliver)
//!        nothing ------------> Idle ---------------------------> Queued -----------> Leased --+
//!           |  add               ^  \ falls due, queue paused     |  ^ \                ^     |
//!           +----------------+   |   +--> Held --- cleared ---+   |  |  + take (offer)  |     |
//!                            |   |                            |   |  |  v               |     |
//!                            +---+----------------------------+-->+  +- Reserved -------+     |
//!                                | DEQUEUE, WORKING               |  cancel     claim        |
//!                                +--------------------------------+                           |
//!                                  lease ended, NACK, ENQUEUE, undelivered: enter <-----------+
//! ```
//!
//! A job of which other nodes are to have copies is `Waiting` before its life begins; one with RETRY 0 that goes to another node is `Away`. `Queued` and `Reserved` are the state `queued` of the reference (3.2), the others are `active`; an acknowledged job is
//! gone at once, unless other nodes hold it (`cluster/collection.rs`). What must hold: a job is linked in exactly the list its place names (`Idle`, `Away`, and `Leased` with a
//! RETRY, name none); it has a timer, at its next deadline or earlier.

use std::ops::{Index, IndexMut};

use crate::clock::{Mono, SECOND_MS};
use crate::commands::view::JobState;
use crate::id::JobId;
use crate::structures::list::{Linked, Links};
use crate::structures::skiplist::Ordered;
use crate::structures::slab::Slab;
use crate::structures::timers::TimerKey;
use crate::wire::Blob;

/// What a job costs beside the heap bytes of its body: its record, its timer (24), its share of the lanes of the
/// skip lists (a third of 24) and of the ID map (16).
pub const JOB_BYTES: u64 = size_of::<Job>() as u64 + 24 + 8 + 16;

const _: () = assert!(JOB_BYTES < 200, "a small job stays well under 200 bytes");

/// Where a job is. See the picture at the head of this file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// In no list: its ADDJOB waits for copies on other nodes.
    Waiting,
    /// In no list: delayed, dequeued, or postponed before it was ever handed out.
    Idle,
    /// In its queue.
    Queued,
    /// Offered to a GETJOB of several shards; it keeps its place in the order.
    Reserved,
    /// Handed out. RETRY 0: in the list of those that may be evicted.
    Leased,
    /// Ready to enter its queue, which is paused; in the queue's list of those.
    Held,
    /// In no list: RETRY 0, on its way to another node (`cluster/transfer.rs`).
    Away,
}

/// A job.
#[derive(Debug)]
pub struct Job {
    /// Its ID.
    pub id: JobId,
    /// Creation stamp, nanoseconds; unique on its shard.
    pub ctime: u64,
    /// End of its life.
    pub expires_at: Mono,
    /// When an active job enters its queue by itself: end of delay or lease. `NEVER` for all others.
    pub enters_at: Mono,
    /// Its body.
    pub body: Blob,
    /// Its place in the list that `place` names.
    pub links: Links,
    /// Key of its queue.
    pub queue: u32,
    /// Its timer; `None` only between its making and its first deadline.
    pub timer: Option<TimerKey>,
    /// While it is reserved: key of its offer. RETRY 0, handed out: when, seconds of the monotonic clock. (There is no room for both.)
    pub aside: u32,
    /// Key of what is known of its other holders, if there are any.
    pub share: u32,
    /// Time to live as asked for.
    pub ttl_s: u32,
    /// Lease time; 0 is at most once.
    pub retry_s: u32,
    /// Delay as asked for.
    pub delay_s: u32,
    /// Negative acknowledgements.
    pub nacks: u32,
    /// Times it entered its queue again, NACKs excluded.
    pub additional_deliveries: u32,
    /// Times it was handed out: tells one handing out from another.
    pub deliveries: u32,
    /// Copies asked for; a cluster has fewer nodes than this can hold.
    pub replicate: u8,
    /// Where it is.
    pub place: Place,
    /// Handed out, and that was not undone.
    pub delivered: bool,
    /// What else is to be remembered.
    pub marks: Marks,
}

/// Facts about a job, a bit each.
#[derive(Clone, Copy, Debug, Default)]
pub struct Marks(u8);

impl Marks {
    const ENTERED_BEFORE: u8 = 1;
    const COUNTED: u8 = 2;
    const GOES_OUT: u8 = 4;

    /// Those of a copy from another node: it was in its queue there.
    pub fn copied() -> Self {
        Self(Self::ENTERED_BEFORE)
    }

    /// Those of a new job, which is to go to other nodes or stays.
    pub fn added(goes_out: bool) -> Self {
        let mut marks = Self::default();
        marks.set_goes_out(goes_out);
        marks
    }

    /// Its next entering of the queue is an additional delivery.
    pub fn entered_before(self) -> bool {
        self.0 & Self::ENTERED_BEFORE != 0
    }

    /// The log counts it among what lives of the segment it was added to.
    pub fn counted(self) -> bool {
        self.0 & Self::COUNTED != 0
    }

    /// It is to go to other nodes, since memory is short (`cluster/external.rs`).
    pub fn goes_out(self) -> bool {
        self.0 & Self::GOES_OUT != 0
    }

    /// Sets or clears [`entered_before`](Self::entered_before).
    pub fn set_entered_before(&mut self, on: bool) {
        self.set(Self::ENTERED_BEFORE, on);
    }

    /// Sets or clears [`counted`](Self::counted).
    pub fn set_counted(&mut self, on: bool) {
        self.set(Self::COUNTED, on);
    }

    /// Sets or clears [`goes_out`](Self::goes_out).
    pub fn set_goes_out(&mut self, on: bool) {
        self.set(Self::GOES_OUT, on);
    }

    fn set(&mut self, bit: u8, on: bool) {
        self.0 = if on { self.0 | bit } else { self.0 & !bit };
    }
}

impl Job {
    /// Its state in the words of the reference.
    pub fn state(&self) -> JobState {
        match self.place {
            Place::Queued | Place::Reserved => JobState::Queued,
            Place::Waiting => JobState::WaitRepl,
            Place::Idle | Place::Leased | Place::Held | Place::Away => JobState::Active,
        }
    }

    /// Whether it counts as being in its queue.
    pub fn is_queued(&self) -> bool {
        matches!(self.place, Place::Queued | Place::Reserved)
    }

    /// Whether it is to be in a list.
    pub fn is_in_a_list(&self) -> bool {
        match self.place {
            Place::Idle | Place::Waiting | Place::Away => false,
            Place::Leased => self.at_most_once(),
            Place::Queued | Place::Reserved | Place::Held => true,
        }
    }

    /// RETRY 0.
    pub fn at_most_once(&self) -> bool {
        self.retry_s == 0
    }

    /// Whether ENQUEUE and NACK may bring it into its queue.
    pub fn may_enter(&self) -> bool {
        let spent = self.at_most_once() && self.delivered;
        !spent && !self.is_queued() && !matches!(self.place, Place::Waiting | Place::Away)
    }

    /// Its lease time in milliseconds.
    pub fn retry_ms(&self) -> u64 {
        u64::from(self.retry_s) * SECOND_MS
    }

    /// When its timer is due at the latest.
    pub fn deadline(&self) -> Mono {
        match self.place {
            Place::Idle | Place::Leased => self.expires_at.min(self.enters_at),
            Place::Waiting | Place::Queued | Place::Reserved | Place::Held | Place::Away => self.expires_at,
        }
    }

    /// What it costs in memory.
    pub fn bytes(&self) -> u64 {
        JOB_BYTES + self.body.heap_bytes() as u64
    }
}

/// Copies asked for, as a job keeps them.
pub fn copies_kept(replicate: u16) -> u8 {
    u8::try_from(replicate).unwrap_or(u8::MAX)
}

/// All jobs of a shard.
#[derive(Debug, Default)]
pub struct Jobs(pub Slab<Job>);

impl Index<u32> for Jobs {
    type Output = Job;

    fn index(&self, key: u32) -> &Job {
        &self.0[key]
    }
}

impl IndexMut<u32> for Jobs {
    fn index_mut(&mut self, key: u32) -> &mut Job {
        &mut self.0[key]
    }
}

impl Linked for Jobs {
    fn links(&self, element: u32) -> &Links {
        &self.0[element].links
    }

    fn links_mut(&mut self, element: u32) -> &mut Links {
        &mut self.0[element].links
    }
}

impl Ordered for Jobs {
    fn before(&self, a: u32, b: u32) -> bool {
        let (a, b) = (&self.0[a], &self.0[b]);
        (a.ctime, &a.id) < (b.ctime, &b.id)
    }
}
