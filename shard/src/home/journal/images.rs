//! What the log says of jobs and queues: their whole present state, or what changed of it; for moves, for compaction, and for a
//! new log that is to be filled.

use ahash::RandomState;

use crate::bus::Peers;
use crate::clock::{Mono, Now};
use crate::commands::view::PauseState;
use crate::home::cluster::collection::Ack;
use crate::home::cluster::pauses::Pauses;
use crate::home::cluster::repair::Repair;
use crate::home::cluster::share;
use crate::home::cluster::taking::Transfers;
use crate::home::job::Job;
use crate::home::stock::Stock;
use crate::home::{Home, Place};
use crate::limits::UPKEEP_STEP;
use crate::log::{
    AckedImage, Entry, Holder, JobRef, KeptPlace, Live, Log, ObjectKey, QueueImage, StateChange,
    TransferImage, WallMs,
};
use crate::structures::NONE;
use crate::wire::Blob;

/// Bytes that may wait to be written before the snapshots of a new log pause.
const PENDING_BYTES: u64 = 4 << 20;

impl Home {
    /// A step of the snapshots that a new log begins with.
    pub(super) fn populate(&mut self, now: Now) {
        let Some(mut at) = self.journal.populating else {
            return;
        };
        let Self {
            journal,
            stock,
            peers,
            pauses,
            transfers,
            repair,
            ..
        } = self;
        let log = journal.log.as_mut().expect("a log is populated");
        if !can_populate(log) {
            return;
        }
        if at.again && log.append(&Entry::Flushed).is_err() {
            return;
        }
        at.again = false;
        let step = UPKEEP_STEP as u32;
        if at.jobs < stock.jobs.0.high_water() {
            for (_, job) in stock.jobs.0.iter_from(at.jobs, step) {
                if log.append(&snapshot(stock, peers, repair, job, now)).is_err() {
                    return;
                }
            }
            at.jobs = at.jobs.saturating_add(step);
        } else if !at.restored {
            // Before the others, as they become such when membership is known.
            let images = repair.restored_acks(at.after, UPKEEP_STEP);
            at.restored = images.len() < UPKEEP_STEP;
            at.after = images.last().map(|last| last.id);
            for image in images {
                if log.append(&Entry::AckedSnapshot(image)).is_err() {
                    return;
                }
            }
        } else if at.acks < stock.acks.high_water() {
            for (_, ack) in stock.acks.iter_from(at.acks, step).filter(|(_, ack)| !ack.dummy) {
                if log.append(&ack_snapshot(ack, peers)).is_err() {
                    return;
                }
            }
            at.acks = at.acks.saturating_add(step);
        } else if at.queues < stock.queues.0.high_water() {
            for (_, queue) in stock.queues.0.iter_from(at.queues, step) {
                let version = pauses.version(&queue.name);
                let image = queue_image(&queue.name, queue.pause, version);
                if queue.pause.any() && log.append(&Entry::QueueSnapshot(image)).is_err() {
                    return;
                }
            }
            at.queues = at.queues.saturating_add(step);
        } else if !at.answered {
            let images = transfers.images(at.answers, UPKEEP_STEP);
            at.answered = images.len() < UPKEEP_STEP;
            at.answers = images.last().map(|last| last.name());
            for image in images {
                if log.append(&Entry::TransferSnapshot(image)).is_err() {
                    return;
                }
            }
        } else {
            for (name, version) in pauses.opened() {
                let image = queue_image(name, PauseState::default(), version);
                if log.append(&Entry::QueueSnapshot(image)).is_err() {
                    return;
                }
            }
            log.request_sync();
            journal.populated = Some(log.appended());
            journal.populating = None;
            // Jobs added before were told of: they are not undone when a record fails.
            if !std::mem::replace(&mut journal.gates, true) {
                journal.fresh.clear();
            }
            return;
        }
        journal.populating = Some(at);
    }
}

/// Whether a log takes snapshots now.
pub(super) fn can_populate(log: &Log) -> bool {
    log.started() && log.pending_bytes() <= PENDING_BYTES && log.refuses_raw(false, 0).is_none()
}

/// The home as compaction sees it.
pub(super) struct Lives<'a> {
    pub(super) stock: &'a Stock,
    pub(super) peers: &'a Peers,
    pub(super) repair: &'a Repair,
    pub(super) pauses: &'a Pauses,
    pub(super) transfers: &'a Transfers,
    pub(super) now: Now,
    pub(super) shards: u16,
    pub(super) hasher: &'a RandomState,
}

impl Live for Lives<'_> {
    fn snapshot(&mut self, object: &ObjectKey) -> Option<Entry> {
        match object {
            ObjectKey::Job(id) => {
                let job = &self.stock.jobs[self.stock.job_key(self.shards, id)?];
                Some(snapshot(self.stock, self.peers, self.repair, job, self.now))
            }
            ObjectKey::Transfer(name) => self.transfers.image(name).map(Entry::TransferSnapshot),
            ObjectKey::Queue(name) => {
                let hash = self.hasher.hash_one(name.as_slice());
                let key = self.stock.queue_key(self.shards, hash, name);
                let state = key.map_or(PauseState::default(), |key| self.stock.queues[key].pause);
                let version = self.pauses.version(name);
                let lives = state.any() || version != 0;
                lives.then(|| Entry::QueueSnapshot(queue_image(name, state, version)))
            }
            ObjectKey::Acked(id) => {
                let map = &self.stock.slots[usize::from(id.slot().number() / self.shards)].acks;
                let key = map.find(id.scan_hash(), |key| self.stock.acks[key].id == *id);
                match key {
                    Some(key) => Some(ack_snapshot(&self.stock.acks[key], self.peers)),
                    None => self.repair.restored_ack(id).map(Entry::AckedSnapshot),
                }
            }
        }
    }

    fn live_bytes(&self) -> u64 {
        self.stock.live_log_bytes()
    }
}

fn snapshot(stock: &Stock, peers: &Peers, repair: &Repair, job: &Job, now: Now) -> Entry {
    let name = &stock.queues[job.queue].name;
    let holders = holders_of(stock, peers, repair, job);
    let image = job_ref(job, name, now, &holders).to_image();
    match stock.moves.get(&job.id).filter(|_| job.place == Place::Away) {
        None => Entry::JobSnapshot(image),
        Some(moved) => Entry::TransferSnapshot(TransferImage {
            job: Some(Box::new(image)),
            ..moved.image(job.id)
        }),
    }
}

fn ack_snapshot(ack: &Ack, peers: &Peers) -> Entry {
    let holders = share::recorded(&ack.others, peers);
    Entry::AckedSnapshot(AckedImage { id: ack.id, holders })
}

/// A job's other holders, as a record names them.
fn holders_of(stock: &Stock, peers: &Peers, repair: &Repair, job: &Job) -> Vec<Holder> {
    match (repair.restored_holders(&job.id), job.share) {
        (Some(holders), _) => holders.to_vec(),
        (None, NONE) => Vec::new(),
        (None, share) => share::recorded(&stock.shares[share].others, peers),
    }
}

impl Home {
    /// A job's other holders, as a record names them.
    pub(in crate::home) fn holders_on_record(&self, job: &Job) -> Vec<Holder> {
        holders_of(&self.stock, &self.peers, &self.repair, job)
    }
}

/// A job with all that a restart must know of it.
pub(super) fn job_ref<'a>(job: &'a Job, queue: &'a Blob, now: Now, holders: &'a [Holder]) -> JobRef<'a> {
    JobRef {
        queue,
        body: &job.body,
        ctime: job.ctime,
        expires_at: WallMs::wall_at(now, job.expires_at),
        ttl_s: job.ttl_s,
        retry_s: job.retry_s,
        delay_s: job.delay_s,
        replicate: job.replicate.into(),
        state: change(job, now),
        holders,
    }
}

/// A job's present state.
pub(super) fn change(job: &Job, now: Now) -> StateChange {
    StateChange {
        id: job.id,
        place: match job.place {
            // Whoever comes back to it may queue it: its client was told nothing yet.
            Place::Waiting if job.enters_at == Mono::NEVER => KeptPlace::Queued,
            // Where a job is that is away its transfer says.
            Place::Idle | Place::Waiting | Place::Away => KeptPlace::Idle,
            Place::Queued | Place::Reserved => KeptPlace::Queued,
            Place::Leased => KeptPlace::Leased,
            Place::Held => KeptPlace::Held,
        },
        enters_at: WallMs::wall_at(now, job.enters_at),
        nacks: job.nacks,
        additional_deliveries: job.additional_deliveries,
        deliveries: job.deliveries,
        delivered: job.delivered,
        entered_before: job.marks.entered_before(),
    }
}

pub(super) fn queue_image(name: &Blob, pause: PauseState, version: u64) -> QueueImage {
    QueueImage {
        name: name.clone(),
        pause,
        version,
    }
}
