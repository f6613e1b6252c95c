//! What the commands do, one after the other.

use super::*;

impl Reference {
    pub(super) fn add(&mut self, now: Now, add: &AddJob, actual: &Answer) -> Answer {
        let now_ms = now.mono().0;
        if let Some(queue) = self.queues.get(add.queue.as_slice()) {
            if add
                .max_len
                .is_some_and(|max_len| self.length(&add.queue) >= max_len)
            {
                return Answer::Error(CommandError::MaxLen);
            }
            if queue.pause.input {
                return Answer::Error(CommandError::Paused);
            }
        }
        let Answer::Id(id) = actual else {
            panic!("an ADDJOB that should succeed was answered {actual:?}")
        };
        assert_eq!(
            id.slot(),
            Slot::of_queue(&add.queue),
            "an ID names the slot of its queue"
        );
        assert_eq!(
            id.at_least_once(),
            add.retry_s > 0,
            "an ID says how often the job is delivered"
        );
        self.find_or_create(now_ms, &add.queue);
        let last = self.last_ctime.entry(id.slot().home(self.shards)).or_default();
        *last = (now.wall_ms() * 1_000_000).max(*last + 1);
        let after = |seconds: u32| now_ms + u64::from(seconds) * 1000;
        let job = Job {
            queue: add.queue.to_vec(),
            ctime: *last,
            add: add.clone(),
            expires_at: after(add.ttl_s),
            enters_at: if add.delay_s > 0 {
                after(add.delay_s)
            } else {
                NEVER
            },
            nacks: 0,
            additional_deliveries: 0,
            deliveries: 0,
            place: Place::Idle,
            delivered: false,
            entered_before: false,
        };
        assert!(self.jobs.insert(*id, job).is_none(), "IDs are not used twice");
        if add.delay_s == 0 {
            self.enter(now_ms, id, Entry::Plain);
        }
        Answer::Id(*id)
    }

    pub(super) fn take(&mut self, now: u64, asker: Asker, take: &Take) -> Answer {
        let known: Vec<(u32, Vec<u8>)> = take
            .queues
            .iter()
            .map(|(place, name)| (*place, name.to_vec()))
            .collect();
        if take.manner == Manner::Deliver {
            let jobs = self.hand_out_pass(now, &known, take.count);
            if !jobs.is_empty() {
                return Answer::Jobs(jobs);
            }
            if matches!(take.patience, Patience::None | Patience::Try) {
                return Answer::Nothing;
            }
        }
        let has_reservations = |queue: &[u8]| {
            self.jobs
                .values()
                .any(|job| job.queue == queue && job.is_reserved())
        };
        let paused_out = |queue: &[u8]| self.queues.get(queue).is_some_and(|queue| queue.pause.output);
        let seats: Vec<(u32, Vec<u8>)> = match take.patience {
            Patience::None | Patience::Try => Vec::new(),
            Patience::Jobs => known.clone(),
            Patience::Reserved => known
                .iter()
                .filter(|(_, queue)| has_reservations(queue) && !paused_out(queue))
                .cloned()
                .collect(),
        };
        let watches: Vec<Vec<u8>> = match take.patience {
            Patience::Reserved => seats.iter().map(|(_, queue)| queue.clone()).collect(),
            _ => Vec::new(),
        };
        if take.patience == Patience::Jobs {
            take.queues
                .iter()
                .for_each(|(_, queue)| self.find_or_create(now, queue));
        }
        let last_reservation = self.reservations;
        let waiter = Waiter {
            asker,
            take: take.clone(),
            phase: Phase::Waiting,
            seats,
            watches,
            last_reservation,
            flushed: false,
        };
        self.waiters.push(waiter);
        if take.manner == Manner::Offer {
            let offers = self.offer_pass(now, &known, take.count, asker);
            if !offers.is_empty() {
                self.waiter_mut(asker).phase = Phase::Offered;
                return Answer::Offers(offers);
            }
        }
        if self.may_wait(asker) {
            return Answer::Waiting;
        }
        self.forget(asker);
        Answer::Nothing
    }

    pub(super) fn ids(&mut self, now: u64, verb: IdVerb, ids: &[JobId]) -> Answer {
        let (mut counted, mut paused) = (0, 0);
        for id in ids {
            let Some(id) = self.find(now, id) else { continue };
            let job = &self.jobs[&id];
            let queued = job.is_queued();
            match verb {
                IdVerb::Acknowledge | IdVerb::FastAcknowledge | IdVerb::Delete | IdVerb::DeleteEverywhere => {
                    self.remove(&id);
                    counted += 1;
                }
                IdVerb::Dequeue if queued => {
                    self.dequeue(now, &id);
                    counted += 1;
                }
                IdVerb::Dequeue => {}
                IdVerb::Enqueue | IdVerb::Nack if queued || (job.add.retry_s == 0 && job.delivered) => {}
                IdVerb::Enqueue | IdVerb::Nack if self.queues[&job.queue].pause.input => paused += 1,
                IdVerb::Enqueue => {
                    self.enter(now, &id, Entry::Plain);
                    counted += 1;
                }
                IdVerb::Nack => {
                    self.enter(now, &id, Entry::Nack);
                    counted += 1;
                }
            }
        }
        match verb {
            IdVerb::Enqueue | IdVerb::Nack => Answer::Entered { counted, paused },
            _ => Answer::Count(counted),
        }
    }

    pub(super) fn working(&mut self, now: u64, id: &JobId) -> Answer {
        let Some(id) = self.find(now, id) else {
            return Answer::Error(CommandError::NoJob);
        };
        let job = &self.jobs[&id];
        let retry_s = job.add.retry_s;
        let life_ms = u64::from(job.add.ttl_s) * 1000;
        let born_at = job.expires_at - life_ms;
        if now - born_at > life_ms / 2 {
            return Answer::Error(CommandError::TooLate);
        }
        if retry_s > 0 && job.is_queued() {
            self.dequeue(now, &id);
        } else {
            self.postpone(now, &id);
        }
        Answer::Count(i64::from(retry_s))
    }

    pub(super) fn pause(&mut self, now: u64, queue: &Blob, state: Option<PauseState>) -> Answer {
        if state.is_some_and(PauseState::any) {
            self.find_or_create(now, queue);
        }
        let Some(place) = self.queues.get_mut(queue.as_slice()) else {
            return Answer::Pause(PauseState::default());
        };
        if let Some(state) = state {
            place.pause = state;
            self.opened(now, queue);
        }
        Answer::Pause(self.queues[queue.as_slice()].pause)
    }

    /// What waited for a way to open goes on: first what enters, then what leaves.
    pub(super) fn opened(&mut self, now: u64, queue: &[u8]) {
        if !self.queues[queue].pause.input {
            let held = self
                .jobs
                .iter()
                .filter(|(_, job)| job.queue == queue && job.place == Place::Held);
            for id in held.map(|(id, _)| *id).collect::<Vec<_>>() {
                self.enter_quietly(now, &id, Entry::Plain);
            }
        }
        while self.can_serve(queue) && self.serve_next(now, queue) {}
    }

    pub(super) fn peek(&self, now: u64, queue: &[u8], count: i64) -> Answer {
        let alive = |id: &JobId| self.jobs[id].expires_at > now;
        let mut ids: Vec<JobId> = self.queued(queue).into_iter().filter(alive).collect();
        if count < 0 {
            ids.reverse();
        }
        ids.truncate(count.unsigned_abs() as usize);
        Answer::Peeked {
            jobs: ids.iter().map(|id| self.describe(id, 0)).collect(),
            next: None,
        }
    }

    pub(super) fn stat(&mut self, now: u64, name: &Blob, actual: &Answer) -> Answer {
        let name = name.as_slice();
        if matches!(actual, Answer::Queue(None)) && self.may_be_collected(now, name) {
            self.queues.remove(name);
        }
        let (length, blocked) = (self.length(name), self.waiting_at(name).count() as u64);
        let Some(queue) = self.queues.get_mut(name) else {
            return Answer::Queue(None);
        };
        if let (true, Answer::Queue(Some(actual))) = (queue.uncertain, actual) {
            (queue.jobs_in, queue.jobs_out) = (actual.jobs_in, actual.jobs_out);
            queue.created_at = now - actual.age_s * 1000;
        }
        Answer::Queue(Some(Box::new(QueueView {
            name: Blob::copy_from(name),
            length,
            age_s: (now - queue.created_at) / 1000,
            idle_s: (now - queue.touched_at) / 1000,
            blocked,
            jobs_in: queue.jobs_in,
            jobs_out: queue.jobs_out,
            pause: queue.pause,
        })))
    }
}
