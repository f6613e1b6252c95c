//! The way back: entries of a log, applied to a home that nobody uses yet. The last word about each job stands.
//!
//! Nothing is written, nobody is served. What fell due while the node was down is due at once, by its timer.

use super::job::{Job, Marks, copies_kept};
use super::stock::Stock;
use super::{Home, Place};
use crate::clock::{Mono, Now, SECOND_MS};
use crate::id::JobId;
use crate::log::{Entry, JobImage, KeptPlace, StateChange, TransferImage};
use crate::slot::{ShardNo, Slot};
use crate::structures::NONE;
use crate::structures::list::Links;

/// Whose log the entries are from.
#[derive(Clone, Copy, Debug)]
pub struct Origin {
    /// The shard that wrote them.
    pub shard: ShardNo,
    /// How many there were.
    pub shards: u16,
}

impl Home {
    /// Applies the next entry. Those about slots of other shards are passed over, when the number of shards has changed.
    pub fn restore(&mut self, now: Now, origin: Origin, entry: Entry) -> Result<(), &'static str> {
        let slot = match &entry {
            Entry::Added(image) | Entry::JobSnapshot(image) => {
                let slot = image.id.slot();
                if Slot::of_queue(&image.queue) != slot {
                    return Err("a job whose ID does not belong to its queue");
                }
                slot
            }
            Entry::State(change) => change.id.slot(),
            Entry::Acked(image) | Entry::AckedSnapshot(image) => image.id.slot(),
            Entry::Holders(image) => image.id.slot(),
            Entry::Gone(id) => id.slot(),
            Entry::Transfer(image) | Entry::TransferSnapshot(image) => {
                let is_foreign = |job: &JobImage| Slot::of_queue(&job.queue) != image.id.slot();
                if image.job.as_deref().is_some_and(is_foreign) {
                    return Err("a job whose ID does not belong to its queue");
                }
                image.id.slot()
            }
            Entry::Queue(image) | Entry::QueueSnapshot(image) => Slot::of_queue(&image.name),
            Entry::Flushed => {
                self.restore_flush(now, origin);
                return Ok(());
            }
            Entry::Meta(meta) => {
                self.last_ctime = self.last_ctime.max(meta.last_ctime);
                return Ok(());
            }
        };
        if slot.home(origin.shards) != origin.shard {
            return Err("a record of another shard");
        }
        if slot.home(self.options.shards) != self.options.shard {
            return Ok(());
        }
        match entry {
            Entry::Added(image) | Entry::JobSnapshot(image) => self.restore_job(now, image),
            Entry::State(change) => {
                if let Some(key) = self.find_job(now.mono(), &change.id) {
                    self.restore_state(now, key, &change);
                }
            }
            Entry::Holders(image) => self.restore_holders(image.id, image.holders),
            Entry::Acked(image) | Entry::AckedSnapshot(image) => {
                let life = self.restore_end(now, &image.id);
                self.restore_ack(now.mono(), image.id, image.holders, life);
            }
            Entry::Gone(id) => {
                self.restore_end(now, &id);
            }
            Entry::Transfer(image) | Entry::TransferSnapshot(image) => self.restore_transfer(now, image),
            Entry::Queue(image) | Entry::QueueSnapshot(image) => {
                let key = self.find_or_create_queue(now.mono(), &image.name);
                self.stock.queues[key].pause = image.pause;
                self.keep_pause_version(&image.name, image.version, !image.pause.any());
            }
            Entry::Flushed | Entry::Meta(_) => unreachable!("handled above"),
        }
        Ok(())
    }

    /// All entries were applied.
    pub fn restored(&mut self, now: Now, last_ctime: u64) {
        self.last_ctime = self.last_ctime.max(last_ctime);
        let queues: Vec<u32> = self
            .stock
            .queues
            .0
            .iter_from(0, u32::MAX)
            .filter(|(_, queue)| !queue.held.is_empty() && !queue.pause.input)
            .map(|(key, _)| key)
            .collect();
        self.hold_back_shared(now.mono());
        for queue in queues {
            self.opened(now.mono(), queue);
        }
        self.counters = Default::default();
    }

    fn restore_job(&mut self, now: Now, image: JobImage) {
        self.restore_holders(image.id, image.holders);
        if let Some(key) = self.find_job(now.mono(), &image.id) {
            return self.restore_state(now, key, &image.state);
        }
        let queue = self.find_or_create_queue(now.mono(), &image.queue);
        self.last_ctime = self.last_ctime.max(image.ctime);
        let key = self.insert_job(Job {
            id: image.id,
            ctime: image.ctime,
            expires_at: image.expires_at.mono_at(now),
            enters_at: image.state.enters_at.mono_at(now),
            body: image.body,
            links: Links::DETACHED,
            queue,
            timer: None,
            aside: NONE,
            share: NONE,
            ttl_s: image.ttl_s,
            retry_s: image.retry_s,
            delay_s: image.delay_s,
            nacks: 0,
            additional_deliveries: 0,
            deliveries: 0,
            replicate: copies_kept(image.replicate),
            place: Place::Idle,
            delivered: false,
            marks: Marks::default(),
        });
        self.restore_state(now, key, &image.state);
    }

    fn restore_transfer(&mut self, now: Now, mut image: TransferImage) {
        if let Some(job) = image.job.take() {
            self.restore_job(now, *job);
        }
        if image.stage.is_of_source() {
            self.restore_move(now, &image);
        } else {
            self.restore_answer(now.mono(), &image);
        }
    }

    fn restore_state(&mut self, now: Now, key: u32, change: &StateChange) {
        self.detach(key);
        let Stock {
            jobs,
            queues,
            lanes,
            delivered,
            queued,
            ..
        } = &mut self.stock;
        let job = &mut jobs[key];
        job.enters_at = change.enters_at.mono_at(now);
        job.nacks = change.nacks;
        job.additional_deliveries = change.additional_deliveries;
        job.deliveries = change.deliveries;
        job.delivered = change.delivered;
        job.marks.set_entered_before(change.entered_before);
        let queue = &mut queues[job.queue];
        match change.place {
            KeptPlace::Idle => {}
            KeptPlace::Queued => {
                job.place = Place::Queued;
                queue.jobs.push_ordered(jobs, lanes, key);
                *queued += 1;
            }
            KeptPlace::Held => {
                job.place = Place::Held;
                queue.held.push_back(jobs, key);
            }
            KeptPlace::Leased => {
                job.place = Place::Leased;
                if job.at_most_once() {
                    job.aside = (now.mono().0 / SECOND_MS) as u32;
                    delivered.push_back(jobs, key);
                }
            }
        }
        self.arm(key);
    }

    /// A job is gone; when its life would have ended.
    fn restore_end(&mut self, now: Now, id: &JobId) -> Option<Mono> {
        self.forget_restored(id);
        let key = self.find_job(now.mono(), id)?;
        let expires_at = self.stock.jobs[key].expires_at;
        self.remove(key);
        Some(expires_at)
    }

    /// What this log told of is gone; jobs of other logs stay.
    fn restore_flush(&mut self, now: Now, origin: Origin) {
        self.forget_all_restored(origin);
        if origin.shards == self.options.shards {
            return self.flush(now);
        }
        let from_there = |slot: Slot| slot.home(origin.shards) == origin.shard;
        let of_stock = |stock: &Stock| -> (Vec<u32>, Vec<u32>) {
            let jobs = stock.jobs.0.iter_from(0, u32::MAX);
            let queues = stock.queues.0.iter_from(0, u32::MAX);
            (
                jobs.filter(|(_, job)| from_there(job.id.slot()))
                    .map(|(key, _)| key)
                    .collect(),
                queues
                    .filter(|(_, queue)| from_there(queue.slot))
                    .map(|(key, _)| key)
                    .collect(),
            )
        };
        let (jobs, queues) = of_stock(&self.stock);
        jobs.into_iter().for_each(|job| self.remove(job));
        for queue in queues {
            self.stock.queues[queue].pause = Default::default();
        }
        self.forget_pause_versions(from_there);
    }
}
