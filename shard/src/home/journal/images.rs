//! What the log says of jobs and queues: their whole present state, or what changed of it; for moves, for compaction, and for a
//! new log that is to be filled.

use ahash::RandomState;

use crate::clock::Now;
use crate::commands::view::PauseState;
use crate::home::job::Job;
use crate::home::stock::Stock;
use crate::home::{Home, Place};
use crate::limits::UPKEEP_STEP;
use crate::log::{Entry, JobRef, KeptPlace, Live, Log, ObjectKey, QueueImage, StateChange, WallMs};
use crate::wire::Blob;

/// Bytes that may wait to be written before the snapshots of a new log pause.
const PENDING_BYTES: u64 = 4 << 20;

impl Home {
    /// A step of the snapshots that a new log begins with.
    pub(super) fn populate(&mut self, now: Now) {
        let Some(mut at) = self.journal.populating else {
            return;
        };
        let Self { journal, stock, .. } = self;
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
                let name = &stock.queues[job.queue].name;
                if log
                    .append(&Entry::JobSnapshot(job_ref(job, name, now).to_image()))
                    .is_err()
                {
                    return;
                }
            }
            at.jobs = at.jobs.saturating_add(step);
        } else if at.queues < stock.queues.0.high_water() {
            for (_, queue) in stock.queues.0.iter_from(at.queues, step) {
                if queue.pause.any()
                    && log
                        .append(&Entry::QueueSnapshot(queue_image(&queue.name, queue.pause)))
                        .is_err()
                {
                    return;
                }
            }
            at.queues = at.queues.saturating_add(step);
        } else {
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
    pub(super) now: Now,
    pub(super) shards: u16,
    pub(super) hasher: &'a RandomState,
}

impl Live for Lives<'_> {
    fn snapshot(&mut self, object: &ObjectKey) -> Option<Entry> {
        match object {
            ObjectKey::Job(id) => {
                let job = &self.stock.jobs[self.stock.job_key(self.shards, id)?];
                let name = &self.stock.queues[job.queue].name;
                Some(Entry::JobSnapshot(job_ref(job, name, self.now).to_image()))
            }
            ObjectKey::Queue(name) => {
                let hash = self.hasher.hash_one(name.as_slice());
                let queue = &self.stock.queues[self.stock.queue_key(self.shards, hash, name)?];
                queue
                    .pause
                    .any()
                    .then(|| Entry::QueueSnapshot(queue_image(&queue.name, queue.pause)))
            }
            ObjectKey::Acked(_) => None,
        }
    }

    fn live_bytes(&self) -> u64 {
        self.stock.log_bytes
    }
}

/// A job with all that a restart must know of it.
pub(super) fn job_ref<'a>(job: &'a Job, queue: &'a Blob, now: Now) -> JobRef<'a> {
    JobRef {
        queue,
        body: &job.body,
        ctime: job.ctime,
        expires_at: WallMs::wall_at(now, job.expires_at),
        ttl_s: job.ttl_s,
        retry_s: job.retry_s,
        delay_s: job.delay_s,
        replicate: job.replicate,
        state: change(job, now),
        holders: &[],
    }
}

/// A job's present state.
pub(super) fn change(job: &Job, now: Now) -> StateChange {
    StateChange {
        id: job.id,
        place: match job.place {
            Place::Idle => KeptPlace::Idle,
            Place::Queued | Place::Reserved => KeptPlace::Queued,
            Place::Leased => KeptPlace::Leased,
            Place::Held => KeptPlace::Held,
        },
        enters_at: WallMs::wall_at(now, job.enters_at),
        nacks: job.nacks,
        additional_deliveries: job.additional_deliveries,
        deliveries: job.deliveries,
        delivered: job.delivered,
        entered_before: job.entered_before,
    }
}

pub(super) fn queue_image(name: &Blob, pause: PauseState) -> QueueImage {
    QueueImage {
        name: name.clone(),
        pause,
        version: 0,
    }
}
