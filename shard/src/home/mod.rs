//! The home of slots: their jobs, queues, timers and waiters, on one shard.
//!
//! In go a [`Request`] with the ticket of who asks, a claim, a cancel or a tick; out come the answer, and later the
//! *ends*: answers to requests that were told to wait. Every end leaves through one function, `Home::end`.
//!
//! Reading order: `job`, `queue`, `waiter` (what there is) - `stock` (where it is kept) - `moves` (the only places where a job
//! changes its list) - `take`, `wait`, `claim` (GETJOB) - `admission` (memory) - `lines` (order within a session) - `journal`, `restore` (the log) - `upkeep`
//! (timers, bounded work) - `look` (QPEEK, scans) - `check` (all that must hold, at once).
//!
//! Between two calls this must hold: a queue that is not paused out and not `busy` has no waiter or no job to be had; a waiting watcher
//! has a reservation to wait for. Every step is bounded: what has more to do marks its queue `busy`, or leaves it to the
//! timers, and `next_deadline` says "now".

mod admission;
mod chance;
mod check;
mod claim;
mod cluster;
mod counters;
mod job;
mod journal;
mod lines;
mod look;
mod moves;
mod queue;
mod restore;
mod stock;
mod take;
mod upkeep;
mod wait;
mod waiter;

#[cfg(test)]
pub(crate) mod testing;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use ahash::RandomState;

pub(crate) use cluster::replication::Terms as CopyTerms;
pub use counters::{Counters, Gauges};
pub(crate) use job::{Job, Marks, Place, copies_kept};
pub use journal::{Held, Turn, thresholds};
pub(crate) use moves::Entry;
pub(crate) use queue::Queue;
pub use restore::Origin;

use crate::bus::Peers;
use crate::clock::{Mono, Now};
use crate::commands::{self, IdVerb, Request};
use crate::error::CommandError;
use crate::id::{JobId, NodeId};
use crate::memory::Memory;
use crate::message::{Answer, Delivered, Handed, Ticket};
use crate::slot::{ShardNo, Slot};
use crate::structures::slab::Slab;
use admission::Short;
use chance::Chance;
use cluster::federation::Federation;
use cluster::leaving::Leaving;
use cluster::pauses::Pauses;
use cluster::remote::Remote;
use cluster::repair::Repair;
use cluster::taking::Transfers;
use journal::Journal;
use lines::Lines;
use stock::Stock;
use upkeep::Sweep;
use waiter::{WAITER_BYTES, Waiter};

/// Jobs that the room kept for the next answer is for, at most.
const SPARE_JOBS: usize = 64;

/// What a home is made of.
#[derive(Clone, Debug)]
pub struct HomeOptions {
    /// Its shard.
    pub shard: ShardNo,
    /// How many the node has.
    pub shards: u16,
    /// The node, for the IDs of new jobs.
    pub node: NodeId,
    /// Chance for the IDs of new jobs; another one for each shard.
    pub seed: [u8; 32],
    /// Chance for the hashes of queue names; the same on all shards of the node.
    pub hash_seed: u64,
}

/// Everything of the slots of one shard.
pub struct Home {
    /// What is used of the memory lent to this shard.
    pub memory: Memory,
    /// What happened so far.
    pub counters: Counters,
    /// The other nodes, and what there is for them.
    pub peers: Peers,
    options: HomeOptions,
    hasher: RandomState,
    chance: Chance,
    /// Creation stamp of the newest job.
    last_ctime: u64,
    stock: Stock,
    waiters: Slab<Waiter>,
    tickets: BTreeMap<Ticket, u32>,
    /// Waiters so far: the blocking order.
    arrivals: u64,
    /// Reservations so far.
    reservations: u64,
    short: Short,
    lines: Lines,
    sweep: Sweep,
    /// Stocks given up by FLUSHALL, torn down in steps.
    rubble: Vec<Stock>,
    evicts: bool,
    journal: Journal,
    /// ADDJOBs that wait for copies: the job of each.
    adding: BTreeMap<Ticket, u32>,
    /// How far the walk over acknowledged jobs has come, while there is one.
    ack_sweep: Option<u32>,
    /// The same for jobs that were queued again here.
    queued_sweep: Option<u32>,
    repair: Repair,
    federation: Federation,
    leaving: Leaving,
    transfers: Transfers,
    /// Jobs dropped here lately while other nodes held them, and the order of that.
    left: BTreeSet<JobId>,
    left_order: VecDeque<JobId>,
    remote: Remote,
    pauses: Pauses,
    /// Copies, this node's included, below which no ADDJOB is content (`min-replicate`).
    pub(crate) min_replicate: u16,
    /// How long a peer that lost its memory may take to say what it still has (`rejoin-wait`), milliseconds.
    pub(crate) rejoin_wait_ms: u64,
    /// How long a node that is asked for something may take to answer (`cluster-node-timeout`), milliseconds.
    node_timeout_ms: u64,
    ends: Vec<Held>,
    /// Without jobs: the room of an answer that was written, for the next.
    spare: Vec<Delivered>,
}

impl Home {
    /// A home without jobs.
    pub fn new(options: HomeOptions, memory: Memory, now: Now) -> Self {
        assert!(options.shard < options.shards, "a shard is one of its node's");
        let [first, second, third, fourth, ..] = options.seed;
        let mut chance = Chance::new(options.seed);
        let stock = Stock::new(options.shards, chance.seed(), now.mono());
        Self {
            memory,
            counters: Counters::default(),
            peers: Peers::new(options.node),
            hasher: RandomState::with_seeds(options.hash_seed, 0x5107, 0x9e37_79b9, 0x7f4a_7c15),
            chance,
            last_ctime: 0,
            stock,
            waiters: Slab::new(),
            tickets: BTreeMap::new(),
            arrivals: 0,
            reservations: 0,
            short: Short::default(),
            lines: Lines::default(),
            sweep: Sweep::default(),
            rubble: Vec::new(),
            evicts: true,
            journal: Journal::default(),
            adding: BTreeMap::new(),
            ack_sweep: None,
            queued_sweep: None,
            repair: Repair::default(),
            federation: Federation::default(),
            leaving: None,
            transfers: Transfers::new(options.seed[8..16].try_into().expect("8 bytes")),
            left: BTreeSet::new(),
            left_order: VecDeque::new(),
            remote: Remote::new(u32::from_be_bytes([first, second, third, fourth])),
            pauses: Pauses::default(),
            node_timeout_ms: 15_000,
            min_replicate: 1,
            rejoin_wait_ms: 5_000,
            ends: Vec::new(),
            spare: Vec::new(),
            options,
        }
    }

    /// Handles a request. `Answer::Waiting` says that its end comes later, through [`Self::take_ends`].
    pub fn request(&mut self, now: Now, ticket: Ticket, mut request: Request) -> Answer {
        self.request_in_place(now, ticket, &mut request)
    }

    /// The same for a request that stays where it is, without what is kept of it: requests are large, and a move is a copy.
    pub fn request_in_place(&mut self, now: Now, ticket: Ticket, request: &mut Request) -> Answer {
        self.journal.begin(now);
        if self.lines.holds_back(ticket, request) {
            self.stand_in_line(ticket, request.take());
            return Answer::Waiting;
        }
        if !self.journal.is_on() {
            // The answer is made where it is to be: it is large too.
            return self.serve(now, ticket, request);
        }
        let answer = self.perform(now, ticket, request);
        self.hold(ticket, answer)
    }

    /// Handles a request whose turn it is. The answer may have to wait for the log.
    fn perform(&mut self, now: Now, ticket: Ticket, request: &mut Request) -> Answer {
        match self.journal.refuses(request) {
            Some(misconf) => Answer::Error(misconf),
            None => self.serve(now, ticket, request),
        }
    }

    #[inline(always)]
    fn serve(&mut self, now: Now, ticket: Ticket, request: &mut Request) -> Answer {
        match request {
            Request::Add(add) => self.add(now, ticket, add),
            Request::Take(take) => commands::getjob::apply(self, now.mono(), ticket, take),
            Request::Ids { verb, ids } => self.ids_anywhere(now.mono(), ticket, *verb, ids),
            Request::Show(id) => self.show_anywhere(now.mono(), ticket, *id),
            Request::Working(id) => self.working_anywhere(now.mono(), ticket, *id),
            Request::Length(name) => commands::qlen::apply(self, name),
            Request::Lengths(name) => self.lengths(now.mono(), ticket, std::mem::take(name)),
            Request::Peek(peek) => commands::qpeek::apply(self, now.mono(), peek),
            Request::Stat(name) => commands::qstat::apply(self, now.mono(), name),
            Request::Stats(name) => self.stats(now.mono(), ticket, std::mem::take(name)),
            Request::Pause(pause) => self.pause(now.mono(), ticket, pause.clone()),
            Request::Scan(scan) => commands::qscan::apply(self, now.mono(), scan),
            Request::Gather(gather) => panic!("{gather:?} is answered by the shard"),
        }
    }

    /// Takes back the memory of an answer that is done with: most answers of GETJOB have one job and are written at once.
    #[inline]
    pub fn recycle(&mut self, answer: &mut Answer) {
        if let Answer::Jobs(jobs) = answer
            && jobs.capacity() <= SPARE_JOBS
        {
            jobs.clear();
            self.spare = std::mem::take(jobs);
        }
    }

    /// What a command about IDs does on this shard.
    pub fn ids(&mut self, now: Mono, verb: IdVerb, ids: &[JobId]) -> Answer {
        match verb {
            IdVerb::Acknowledge => commands::ackjob::apply(self, now, ids),
            IdVerb::FastAcknowledge => commands::fastack::apply(self, now, ids),
            IdVerb::Delete | IdVerb::DeleteEverywhere => commands::deljob::apply(self, now, ids),
            IdVerb::Enqueue => commands::enqueue::apply(self, now, ids),
            IdVerb::Nack => commands::nack::apply(self, now, ids),
            IdVerb::Dequeue => commands::dequeue::apply(self, now, ids),
        }
    }

    /// These were handed out and never reached their client: those that nothing happened to since are put back.
    pub fn undelivered(&mut self, now: Now, jobs: &[Handed]) {
        self.journal.begin(now);
        for handed in jobs {
            self.put_back(now.mono(), *handed);
        }
    }

    /// Whether there are ends to be taken.
    pub fn has_ends(&self) -> bool {
        !self.ends.is_empty()
    }

    /// Moves the ends so far to `ends`.
    pub fn take_ends(&mut self, ends: &mut Vec<Held>) {
        ends.append(&mut self.ends);
    }

    /// Whether delivered at-most-once jobs may be evicted when memory is short (`maxmemory-policy`).
    pub fn set_evicts(&mut self, evicts: bool) {
        self.evicts = evicts;
    }

    /// The settings `min-replicate`, and `rejoin-wait` and `cluster-node-timeout` in milliseconds.
    pub fn set_cluster_terms(&mut self, min_replicate: u64, rejoin_wait_ms: u64, node_timeout_ms: u64) {
        self.node_timeout_ms = node_timeout_ms;
        self.min_replicate = u16::try_from(min_replicate).unwrap_or(u16::MAX);
        self.rejoin_wait_ms = rejoin_wait_ms;
    }

    /// The node has another ID from now on.
    pub fn set_node(&mut self, node: NodeId) {
        self.options.node = node;
    }

    /// What there is at present.
    pub fn gauges(&self) -> Gauges {
        Gauges {
            jobs: self.stock.jobs.0.len() as u64,
            acked: self.stock.acks.len() as u64,
            transfers: self.stock.moves.values().filter(|moved| moved.is_away()).count() as u64,
            transfer_answers: self.transfers.answers(),
            adding: self.adding.len() as u64,
            on_one_host: self.stock.on_one_host,
            queued: self.stock.queued,
            delivered_at_most_once: self.stock.delivered.len() as u64,
            queues: self.stock.queues.0.len() as u64,
            waiters: self.waiters.len() as u64,
            short: self.short.len() as u64,
            behind: self.lines.behind(),
            reserved: self.stock.offers.len() as u64,
        }
    }

    /// DEBUG FLUSHALL: all jobs and queues are gone, pause states included; waiting GETJOBs end with `Nothing`.
    pub fn flush(&mut self, now: Now) {
        self.counters.flushed += self.stock.jobs.0.len() as u64;
        for key in self.adding.values().copied().collect::<Vec<_>>() {
            let share = self.stock.jobs[key].share;
            self.end_adding(key, share, Err(CommandError::RemovedWhileReplicating));
        }
        self.ack_sweep = None;
        self.queued_sweep = None;
        self.flush_federation();
        self.flush_transfers();
        self.forget_pause_versions(|_| true);
        let seed = self.chance.seed();
        let old = std::mem::replace(&mut self.stock, Stock::new(self.options.shards, seed, now.mono()));
        self.memory.release(old.bytes);
        // A small one goes at once: each has its maps of slots, and FLUSHALLs may come faster than the teardown goes.
        if !old.is_small() {
            self.rubble.push(old);
        }
        self.sweep = Sweep::default();
        let waiters: Vec<u32> = self.tickets.values().copied().collect();
        for waiter in waiters {
            self.flush_waiter(waiter);
        }
        self.retry_short(now, false);
    }

    fn flush_waiter(&mut self, key: u32) {
        let waiter = &mut self.waiters[key];
        waiter.seats = Box::default();
        waiter.offers = Default::default();
        waiter.watches = 0;
        waiter.flushed = true;
        if waiter.phase == waiter::Phase::Waiting {
            let ticket = waiter.ticket;
            self.drop_waiter(key);
            self.end_beside(ticket, Answer::Nothing);
        }
    }

    fn drop_waiter(&mut self, key: u32) {
        let waiter = self.waiters.remove(key);
        self.tickets.remove(&waiter.ticket);
        self.lines.ended(waiter.ticket);
        self.memory.release(WAITER_BYTES);
    }

    fn slot_of(&self, name: &[u8]) -> Slot {
        let slot = Slot::of_queue(name);
        assert_eq!(
            slot.home(self.options.shards),
            self.options.shard,
            "a queue is asked for at its home"
        );
        slot
    }

    /// The ID of a new job in this slot.
    pub(crate) fn new_id(&mut self, slot: Slot, ttl_s: u32, at_least_once: bool) -> JobId {
        let map = usize::from(slot.number() / self.options.shards);
        let random = self.chance.take(|coming| self.stock.foresee(map, coming));
        JobId::new(self.options.node, slot, random, u64::from(ttl_s), at_least_once)
    }

    /// The newest creation stamp.
    pub fn last_ctime(&self) -> u64 {
        self.last_ctime
    }

    /// The creation stamp of a new job: it never goes back, whatever the wall clock does.
    pub(crate) fn next_ctime(&mut self, now: Now) -> u64 {
        self.last_ctime = (now.wall_ms() * 1_000_000).max(self.last_ctime + 1);
        self.last_ctime
    }
}
