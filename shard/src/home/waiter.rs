//! GETJOBs that a shard has not finished with: what they wait for, and what was offered to them.
//!
//! A [`Waiter`] has a [`Seat`] in each of its queues. A waiting one's seats stand in the queues' `waiters`, ordered by arrival; one that has offers
//! gives its seats up and takes them again, at the same place in the order, when all its claims were refused. An
//! [`Offer`] ties a reserved job to its waiter.
//!
//! | patience | manner | has | ends by |
//! | --- | --- | --- | --- |
//! | Jobs | Deliver | seats | being served, cancel |
//! | Jobs | Offer | seats or offers | cancel |
//! | Reserved | Deliver | seats, watches | being served, its reservations' end, cancel |
//! | Reserved | Offer | seats or offers, watches | its reservations' end while it has no offer, cancel |
//! | None, Try | Offer | offers | cancel |

use crate::message::{Manner, Patience, Ticket};
use crate::structures::list::{Linked, Links, List};
use crate::structures::skiplist::Ordered;
use crate::structures::slab::Slab;

/// What a waiter costs: its record and its place in the map of tickets (about 48).
pub const WAITER_BYTES: u64 = size_of::<Waiter>() as u64 + 48;
/// What a seat costs, with its share of the lanes.
pub const SEAT_BYTES: u64 = size_of::<Seat>() as u64 + 8;
/// What an offer costs.
pub const OFFER_BYTES: u64 = size_of::<Offer>() as u64;

/// What a waiter is at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// Its seats stand in the order.
    Waiting,
    /// It was offered jobs and has claimed none yet.
    Offered,
    /// It claimed jobs: it never waits again.
    Served,
}

/// A GETJOB that is not finished.
#[derive(Debug)]
pub struct Waiter {
    /// Who asks.
    pub ticket: Ticket,
    /// Deliver or offer.
    pub manner: Manner,
    /// What it waits for.
    pub patience: Patience,
    /// How many jobs at the most.
    pub count: u32,
    /// What it is at.
    pub phase: Phase,
    /// Its place in the blocking order.
    pub order: u64,
    /// Reservations up to this number existed when it came.
    pub last_reservation: u64,
    /// Queues where some of those are left.
    pub watches: u32,
    /// Its seats, one per queue, in the order of the pass.
    pub seats: Box<[u32]>,
    /// Its offers, in the order of the pass.
    pub offers: List,
    /// Its queues are gone (FLUSHALL): when its claims are refused it ends.
    pub flushed: bool,
}

impl Waiter {
    /// Whether what its session asks meanwhile stands behind it (`lines`). Behind the others there is nothing: they are barriers.
    pub fn lingers(&self) -> bool {
        self.patience == Patience::Reserved && self.manner == Manner::Deliver && self.phase == Phase::Waiting
    }
}

/// A waiter's place in one queue.
#[derive(Debug)]
pub struct Seat {
    /// Whose.
    pub waiter: u32,
    /// In which queue.
    pub queue: u32,
    /// Place of the queue in the command.
    pub place: u32,
    /// The waiter's place in the blocking order.
    pub order: u64,
    /// In the queue's `waiters`.
    pub waiting: Links,
    /// In the queue's `watchers`.
    pub watching: Links,
}

/// A job reserved for a waiter.
#[derive(Debug)]
pub struct Offer {
    /// The job.
    pub job: u32,
    /// Whose.
    pub waiter: u32,
    /// Place of the job's queue in the command.
    pub place: u32,
    /// Number of the reservation.
    pub reservation: u64,
    /// In the queue's `offers`.
    pub in_queue: Links,
    /// In the waiter's `offers`.
    pub in_waiter: Links,
}

/// The seats, as the queues' `waiters` see them.
#[derive(Debug, Default)]
pub struct Seats(pub Slab<Seat>);

impl Linked for Seats {
    fn links(&self, element: u32) -> &Links {
        &self.0[element].waiting
    }

    fn links_mut(&mut self, element: u32) -> &mut Links {
        &mut self.0[element].waiting
    }
}

impl Ordered for Seats {
    fn before(&self, a: u32, b: u32) -> bool {
        self.0[a].order < self.0[b].order
    }
}

/// The seats, as the queues' `watchers` see them.
pub struct Watching<'a>(pub &'a mut Slab<Seat>);

impl Linked for Watching<'_> {
    fn links(&self, element: u32) -> &Links {
        &self.0[element].watching
    }

    fn links_mut(&mut self, element: u32) -> &mut Links {
        &mut self.0[element].watching
    }
}

/// The offers, as the queues see them.
pub struct InQueue<'a>(pub &'a mut Slab<Offer>);

impl Linked for InQueue<'_> {
    fn links(&self, element: u32) -> &Links {
        &self.0[element].in_queue
    }

    fn links_mut(&mut self, element: u32) -> &mut Links {
        &mut self.0[element].in_queue
    }
}

/// The offers, as their waiters see them.
pub struct InWaiter<'a>(pub &'a mut Slab<Offer>);

impl Linked for InWaiter<'_> {
    fn links(&self, element: u32) -> &Links {
        &self.0[element].in_waiter
    }

    fn links_mut(&mut self, element: u32) -> &mut Links {
        &mut self.0[element].in_waiter
    }
}
