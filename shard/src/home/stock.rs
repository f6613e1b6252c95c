//! Where everything of a home is kept, and how it is found: all that FLUSHALL replaces at once.

use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

use super::chance::Random;
use super::cluster::collection::Ack;
use super::cluster::external::Outgoing;
use super::cluster::share::Share;
use super::cluster::transfer::Move;
use super::job::{Job, Jobs};
use super::queue::{Queue, Queues};
use super::waiter::{Offer, Seats};
use super::{Home, Place};
use crate::clock::Mono;
use crate::commands::view::PauseState;
use crate::id::JobId;
use crate::limits::{IDLE_QUEUE_MS, TEARDOWN_STEP, UPKEEP_STEP};
use crate::log::{SHARE_IMAGE_BYTES, image_bytes};
use crate::slot::{SLOTS, Slot};
use crate::structures::NONE;
use crate::structures::list::List;
use crate::structures::scan_map::ScanMap;
use crate::structures::skiplist::{Lanes, SkipList};
use crate::structures::slab::{KEY_LIMIT, Slab};
use crate::structures::timers::Timers;
use crate::wire::Blob;

/// Marks the owner of a timer as the key of a queue; the others are keys of jobs.
pub const QUEUE_TIMER: u32 = KEY_LIMIT;

/// Jobs, queues, and what ties them together.
#[derive(Debug)]
pub struct Stock {
    pub jobs: Jobs,
    pub queues: Queues,
    /// Maps of this shard's slots: slot s is at s / shards.
    pub slots: Vec<SlotMaps>,
    pub lanes: Lanes,
    pub timers: Timers<u32>,
    pub seats: Seats,
    pub seat_lanes: Lanes,
    pub offers: Slab<Offer>,
    /// What is known of the other holders of jobs.
    pub shares: Slab<Share>,
    /// Of these, those of jobs that were to have several copies, all of which lie on this node's host.
    pub on_one_host: u64,
    /// Acknowledged jobs that other nodes have not all heard of.
    pub acks: Slab<Ack>,
    /// Of these, those of jobs that nobody here ever held.
    pub dummies: usize,
    /// Jobs with RETRY 0 that go to other nodes, or were offered to them.
    pub moves: BTreeMap<JobId, Move>,
    /// When something is to be done about each.
    pub moves_due: BTreeSet<(Mono, JobId)>,
    /// Jobs that are to go to other nodes, since memory is short.
    pub outgoing: Outgoing,
    /// Timers of shares and acknowledged jobs.
    pub cluster_timers: Timers<u32>,
    /// Delivered at-most-once jobs, in the order of their handing out: what may be evicted.
    pub delivered: List,
    /// Queues with held jobs to enter or waiters to serve, each once.
    pub busy: VecDeque<u32>,
    /// The queue that was found last, or a key without meaning.
    pub recent: Cell<u32>,
    /// Jobs in their queues, reserved ones included.
    pub queued: u64,
    /// What all of it is charged with.
    pub bytes: u64,
    /// What all jobs would take in the log, if this node alone had them.
    pub log_bytes: u64,
}

/// How the jobs and queues of one slot are found.
#[derive(Debug, Default)]
pub struct SlotMaps {
    pub jobs: ScanMap,
    pub queues: ScanMap,
    pub acks: ScanMap,
}

impl Stock {
    /// What all jobs would take in the log.
    pub fn live_log_bytes(&self) -> u64 {
        self.log_bytes + self.shares.len() as u64 * SHARE_IMAGE_BYTES
    }

    pub fn new(shards: u16, seed: u64, now: Mono) -> Self {
        let slots = (0..SLOTS.div_ceil(shards)).map(|_| SlotMaps::default()).collect();
        Self {
            jobs: Jobs::default(),
            queues: Queues::default(),
            slots,
            lanes: Lanes::new(seed),
            timers: Timers::new(now.0),
            seats: Seats::default(),
            seat_lanes: Lanes::new(seed ^ 0x5ea7),
            offers: Slab::new(),
            shares: Slab::new(),
            on_one_host: 0,
            acks: Slab::new(),
            dummies: 0,
            moves: BTreeMap::new(),
            moves_due: BTreeSet::new(),
            outgoing: Outgoing::default(),
            cluster_timers: Timers::new(now.0),
            delivered: List::new(),
            busy: VecDeque::new(),
            recent: Cell::new(NONE),
            queued: 0,
            bytes: 0,
            log_bytes: 0,
        }
    }

    /// The job of this ID, on a shard of a node with so many.
    #[inline]
    pub fn job_key(&self, shards: u16, id: &JobId) -> Option<u32> {
        let map = &self.slots[usize::from(id.slot().number() / shards)].jobs;
        map.find(id.scan_hash(), |key| self.jobs[key].id == *id)
    }

    /// The queue of this name, whose hash is given.
    pub fn queue_key(&self, shards: u16, hash: u64, name: &[u8]) -> Option<u32> {
        let slot = Slot::of_queue(name);
        let map = &self.slots[usize::from(slot.number() / shards)].queues;
        map.find(hash, |key| self.queues[key].name.as_slice() == name)
    }

    /// Jobs with this chance in their IDs are likely to come: brings their places in the map into the cache, all at once.
    pub fn foresee(&self, map: usize, coming: &[Random]) {
        let jobs = &self.slots[map].jobs;
        let looked_at: usize = coming
            .iter()
            .map(|random| jobs.look_at(JobId::scan_hash_of(random)))
            .sum();
        std::hint::black_box(looked_at);
    }

    /// Whether dropping it all at once is a bounded step.
    pub fn is_small(&self) -> bool {
        self.jobs.0.len() + self.queues.0.len() + self.seats.0.len() + self.acks.len() < UPKEEP_STEP
    }

    /// A step of the teardown; true when nothing is left.
    pub fn tear_down(&mut self) -> bool {
        self.jobs.0.drop_some(TEARDOWN_STEP)
            && self.queues.0.drop_some(TEARDOWN_STEP)
            && self.lanes.drop_some(TEARDOWN_STEP)
            && self.timers.drop_some(TEARDOWN_STEP)
            && self.seats.0.drop_some(TEARDOWN_STEP)
            && self.seat_lanes.drop_some(TEARDOWN_STEP)
            && self.offers.drop_some(TEARDOWN_STEP)
            && self.shares.drop_some(TEARDOWN_STEP)
            && self.acks.drop_some(TEARDOWN_STEP)
            && self.cluster_timers.drop_some(TEARDOWN_STEP)
            && self.tear_down_maps()
    }

    fn tear_down_maps(&mut self) -> bool {
        for _ in 0..UPKEEP_STEP {
            let Some(last) = self.slots.last_mut() else { break };
            if !(last.jobs.drop_some(TEARDOWN_STEP)
                && last.queues.drop_some(TEARDOWN_STEP)
                && last.acks.drop_some(TEARDOWN_STEP))
            {
                break;
            }
            self.slots.pop();
        }
        self.slots.is_empty()
    }
}

impl Home {
    pub(crate) fn job(&self, key: u32) -> &Job {
        &self.stock.jobs[key]
    }

    pub(crate) fn queue(&self, key: u32) -> &Queue {
        &self.stock.queues[key]
    }

    /// The job of this ID. One whose life is over is removed here and now, whenever its timer will fire.
    #[inline]
    pub(crate) fn find_job(&mut self, now: Mono, id: &JobId) -> Option<u32> {
        let slot = id.slot();
        assert_eq!(
            slot.home(self.options.shards),
            self.options.shard,
            "a job is asked for at its home"
        );
        let key = self.stock.job_key(self.options.shards, id)?;
        if self.stock.jobs[key].expires_at <= now {
            self.expire(now, key);
            return None;
        }
        Some(key)
    }

    pub(crate) fn find_queue(&self, name: &[u8]) -> Option<u32> {
        // Who works with a queue asks for it again and again: the last one found is tried before any hashing.
        let recent = self.stock.recent.get();
        if self
            .stock
            .queues
            .0
            .get(recent)
            .is_some_and(|queue| queue.name.as_slice() == name)
        {
            return Some(recent);
        }
        let slot = self.slot_of(name);
        let found = self.find_queue_in(slot, self.hasher.hash_one(name), name)?;
        self.stock.recent.set(found);
        Some(found)
    }

    pub(crate) fn find_or_create_queue(&mut self, now: Mono, name: &Blob) -> u32 {
        self.find_queue(name)
            .unwrap_or_else(|| self.create_queue(now, name))
    }

    fn find_queue_in(&self, slot: Slot, hash: u64, name: &[u8]) -> Option<u32> {
        let Stock { queues, slots, .. } = &self.stock;
        let map = &slots[usize::from(slot.number() / self.options.shards)].queues;
        map.find(hash, |key| queues[key].name.as_slice() == name)
    }

    /// Makes a queue that does not exist yet.
    pub(crate) fn create_queue(&mut self, now: Mono, name: &Blob) -> u32 {
        let slot = self.slot_of(name);
        let queue = Queue {
            name: name.clone(),
            slot,
            hash: self.hasher.hash_one(name.as_slice()),
            jobs: SkipList::new(),
            reserved: SkipList::new(),
            offers: List::new(),
            held: List::new(),
            waiters: SkipList::new(),
            watchers: List::new(),
            seats: 0,
            members: 0,
            adding: 0,
            advertised: 0,
            imported: 0,
            streamed: 0,
            streamed_at: now,
            wanted: self.is_wanted(name),
            tell_marked: false,
            export_marked: false,
            pause: PauseState::default(),
            busy: false,
            timer: None,
            created_at: now,
            touched_at: now,
            jobs_in: 0,
            jobs_out: 0,
        };
        self.charge(queue.bytes());
        let idle_ms = IDLE_QUEUE_MS[usize::from(self.memory.level().min(2))];
        let Stock {
            queues,
            slots,
            timers,
            ..
        } = &mut self.stock;
        let key = queues.0.insert(queue);
        queues[key].timer = Some(timers.insert(now.after_ms(idle_ms).0, key | QUEUE_TIMER));
        slots[usize::from(slot.number() / self.options.shards)]
            .queues
            .insert(queues[key].hash, key);
        key
    }

    /// Removes a queue that nothing needs and whose timer has fired.
    pub(super) fn collect_queue(&mut self, key: u32) {
        assert!(self.queue(key).is_idle(), "only an idle queue is collected");
        let slot = self.queue(key).slot;
        let Stock {
            queues,
            slots,
            timers,
            ..
        } = &mut self.stock;
        slots[usize::from(slot.number() / self.options.shards)]
            .queues
            .remove(queues[key].hash, key);
        let queue = queues.0.remove(key);
        if let Some(timer) = queue.timer {
            timers.cancel(timer);
        }
        self.release(queue.bytes());
        self.counters.queues_collected += 1;
    }

    /// Stores a new job, in no list yet.
    #[inline]
    pub(crate) fn insert_job(&mut self, mut job: Job) -> u32 {
        assert_eq!(job.place, Place::Idle, "a new job is in no list");
        self.charge(job.bytes());
        let map = usize::from(job.id.slot().number() / self.options.shards);
        let (hash, deadline) = (job.id.scan_hash(), job.deadline());
        let Stock {
            jobs,
            queues,
            slots,
            timers,
            log_bytes,
            ..
        } = &mut self.stock;
        queues[job.queue].members += 1;
        *log_bytes += image_bytes(queues[job.queue].name.len(), job.body.len());
        let key = jobs.0.insert_with(|key| {
            job.timer = Some(timers.insert(deadline.0, key));
            job
        });
        slots[map].jobs.insert(hash, key);
        key
    }

    /// Gives up a job that is in no list.
    pub(super) fn discard_job(&mut self, key: u32) {
        self.drop_share(key);
        let Stock {
            jobs,
            queues,
            slots,
            timers,
            log_bytes,
            ..
        } = &mut self.stock;
        let map = usize::from(jobs[key].id.slot().number() / self.options.shards);
        slots[map].jobs.remove(jobs[key].id.scan_hash(), key);
        let job = jobs.0.remove(key);
        assert!(!job.links.is_linked(), "a discarded job is in no list");
        if job.marks.counted() {
            self.journal.ended(job.ctime);
        }
        if let Some(timer) = job.timer {
            timers.cancel(timer);
        }
        queues[job.queue].members -= 1;
        *log_bytes -= image_bytes(queues[job.queue].name.len(), job.body.len());
        self.release(job.bytes());
    }

    pub(super) fn charge(&mut self, bytes: u64) {
        self.memory.charge(bytes);
        self.stock.bytes += bytes;
    }

    pub(super) fn release(&mut self, bytes: u64) {
        self.memory.release(bytes);
        self.stock.bytes -= bytes;
    }
}
