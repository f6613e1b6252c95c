//! What jobs do: enter, leave, be handed out, be described.

use super::*;
use crate::support::ALONE;

impl Reference {
    pub(super) fn find(&mut self, now: u64, id: &JobId) -> Option<JobId> {
        if self.jobs.get(id)?.expires_at <= now {
            self.remove(id);
            return None;
        }
        Some(*id)
    }

    pub(super) fn remove(&mut self, id: &JobId) {
        let job = self.jobs.remove(id).expect("it is there");
        if job.is_reserved() {
            self.settle(&job.queue);
        }
    }

    pub(super) fn enter(&mut self, now: u64, id: &JobId, entry: Entry) {
        self.enter_quietly(now, id, entry);
        let queue = self.jobs[id].queue.clone();
        if self.can_serve(&queue) {
            self.serve_next(now, &queue);
        }
    }

    pub(super) fn enter_quietly(&mut self, now: u64, id: &JobId, entry: Entry) {
        let job = self.jobs.get_mut(id).expect("it is there");
        match entry {
            Entry::Nack => job.nacks += 1,
            Entry::Plain => job.additional_deliveries += u32::from(job.entered_before),
            Entry::Undone => {}
        }
        if entry != Entry::Undone {
            let queue = self.queues.get_mut(&job.queue).expect("a job has its queue");
            queue.jobs_in += 1;
            queue.touched_at = now;
        }
        job.entered_before = true;
        job.enters_at = NEVER;
        job.place = Place::Queued;
    }

    pub(super) fn dequeue(&mut self, now: u64, id: &JobId) {
        let job = self.jobs.get_mut(id).expect("it is there");
        let (queue, reserved) = (job.queue.clone(), job.is_reserved());
        job.place = Place::Idle;
        self.postpone(now, id);
        if reserved {
            self.settle(&queue);
        }
    }

    pub(super) fn postpone(&mut self, now: u64, id: &JobId) {
        let job = self.jobs.get_mut(id).expect("it is there");
        if job.add.retry_s == 0 {
            return;
        }
        if job.place == Place::Held {
            job.place = Place::Idle;
        }
        job.enters_at = now + u64::from(job.add.retry_s) * 1000;
    }

    pub(super) fn hand_out(&mut self, now: u64, id: &JobId, place: u32) -> Delivered {
        let job = self.jobs.get_mut(id).expect("it is there");
        job.place = Place::Leased;
        job.delivered = true;
        job.deliveries += 1;
        job.enters_at = if job.add.retry_s == 0 {
            NEVER
        } else {
            now + u64::from(job.add.retry_s) * 1000
        };
        let queue = self.queues.get_mut(&job.queue).expect("a job has its queue");
        queue.jobs_out += 1;
        queue.touched_at = now;
        self.describe(id, place)
    }

    pub(super) fn give_back(&mut self, now: u64, id: &JobId) {
        let job = self.jobs.get_mut(id).expect("it is there");
        job.place = Place::Queued;
        let queue = job.queue.clone();
        if self.can_serve(&queue) {
            self.serve_next(now, &queue);
        }
        self.settle(&queue);
    }

    pub(super) fn describe(&self, id: &JobId, place: u32) -> Delivered {
        let job = &self.jobs[id];
        Delivered {
            place,
            queue: job.add.queue.clone(),
            handed: Handed {
                id: *id,
                delivery: job.deliveries,
            },
            body: job.add.body.clone(),
            nacks: job.nacks,
            additional_deliveries: job.additional_deliveries,
        }
    }

    pub(super) fn view(&self, now: u64, id: &JobId) -> JobView {
        let job = &self.jobs[id];
        let left_ms = job.expires_at - now;
        let retry_ms = u64::from(job.add.retry_s) * 1000;
        let next_requeue_ms = match job.place {
            Place::Held => Some(0),
            Place::Queued | Place::Reserved { .. } => (retry_ms > 0).then_some(retry_ms),
            Place::Idle | Place::Leased => {
                (job.enters_at != NEVER).then(|| job.enters_at.saturating_sub(now))
            }
        };
        let sooner = next_requeue_ms.filter(|_| !job.is_queued()).unwrap_or(NEVER);
        JobView {
            id: *id,
            queue: job.add.queue.clone(),
            state: if job.is_queued() {
                JobState::Queued
            } else {
                JobState::Active
            },
            replicate: job.add.replicate,
            ttl_s: left_ms.div_ceil(1000),
            ctime: job.ctime,
            delay_s: job.add.delay_s,
            retry_s: job.add.retry_s,
            nacks: job.nacks,
            additional_deliveries: job.additional_deliveries,
            next_requeue_ms,
            next_awake_ms: Some(left_ms.min(sooner)),
            holders: vec![HolderView {
                node: ALONE,
                host: 0,
                confirmed: true,
            }],
            body: job.add.body.clone(),
        }
    }
}
