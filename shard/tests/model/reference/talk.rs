//! What follows a request: claims, cancels, jobs that come back, time.

use super::*;

impl Reference {
    /// These of the jobs that were offered are claimed.
    pub fn claim(&mut self, now: Now, asker: Asker, ids: &[JobId]) {
        let now = now.mono().0;
        let Some(waiter) = self.waiters.iter().find(|waiter| waiter.asker == asker) else {
            // It ended while the claim was on its way, and who claims waits for more than a refusal.
            return self
                .ends
                .extend([(asker.1, Answer::Jobs(Vec::new())), (asker.1, Answer::Nothing)]);
        };
        if waiter.phase == Phase::Waiting {
            return self.ends.push((asker.1, Answer::Jobs(Vec::new())));
        }
        let jobs: Vec<Delivered> = ids
            .iter()
            .filter_map(|id| self.claim_one(now, asker, id))
            .collect();
        if !jobs.is_empty() {
            self.waiter_mut(asker).phase = Phase::Served;
        }
        self.ends.push((asker.1, Answer::Jobs(jobs)));
        if self.waiter_mut(asker).phase == Phase::Offered && self.offers_of(asker).is_empty() {
            self.wait_on(now, asker);
        }
    }

    pub(super) fn claim_one(&mut self, now: u64, asker: Asker, id: &JobId) -> Option<Delivered> {
        let id = self.find(now, id)?;
        let Place::Reserved {
            asker: holder, place, ..
        } = self.jobs[&id].place
        else {
            return None;
        };
        if holder != asker {
            return None;
        }
        let queue = self.jobs[&id].queue.clone();
        if self.queues[&queue].pause.output {
            self.give_back(now, &id);
            return None;
        }
        let delivered = self.hand_out(now, &id, place);
        self.settle(&queue);
        Some(delivered)
    }

    /// All its claims were refused and it has no offer left: it stands in line again, where it stood.
    pub(super) fn wait_on(&mut self, now: u64, asker: Asker) {
        let waiter = self.waiter_mut(asker);
        let (seats, count, flushed) = (waiter.seats.clone(), waiter.take.count, waiter.flushed);
        if flushed {
            return self.end_with_nothing(asker);
        }
        let offers = self.offer_pass(now, &seats, count, asker);
        if !offers.is_empty() {
            return self.ends.push((asker.1, Answer::Offers(offers)));
        }
        if self.may_wait(asker) {
            self.waiter_mut(asker).phase = Phase::Waiting;
        } else if self.waiter_mut(asker).take.patience == Patience::Reserved {
            self.end_with_nothing(asker);
        }
    }

    /// A request ends.
    pub fn cancel(&mut self, now: Now, asker: Asker) {
        if self.withdraw(asker) {
            return self.ends.push((asker.1, Answer::Nothing));
        }
        if !self.waiters.iter().any(|waiter| waiter.asker == asker) {
            return;
        }
        let waiter = self.waiter_mut(asker);
        waiter.phase = Phase::Served;
        let manner = waiter.take.manner;
        for id in self.offers_of(asker) {
            if matches!(self.jobs.get(&id), Some(job) if job.is_reserved_for(asker)) {
                self.give_back(now.mono().0, &id);
            }
        }
        match manner {
            Manner::Deliver => self.end_with_nothing(asker),
            Manner::Offer => self.forget(asker),
        }
    }

    /// These were handed out and did not reach their client.
    pub fn undelivered(&mut self, now: Now, jobs: &[Handed]) {
        let now = now.mono().0;
        for handed in jobs {
            let Some(id) = self.find(now, &handed.id) else {
                continue;
            };
            let job = self.jobs.get_mut(&id).expect("it was found");
            if job.place != Place::Leased || job.deliveries != handed.delivery {
                continue;
            }
            job.delivered = job.add.retry_s > 0;
            let queue = self.queues.get_mut(&job.queue).expect("a job has its queue");
            queue.jobs_out = queue.jobs_out.saturating_sub(1);
            if queue.pause.input {
                job.entered_before = false;
                job.place = Place::Held;
                job.enters_at = NEVER;
            } else {
                self.enter(now, &id, Entry::Undone);
            }
        }
    }

    /// All jobs and queues of a shard are gone.
    pub fn flush(&mut self, shard: ShardNo) {
        let shards = self.shards;
        self.jobs.retain(|id, _| id.slot().home(shards) != shard);
        let here = |queue: &[u8]| Slot::of_queue(queue).home(shards) == shard;
        self.queues.retain(|queue, _| !here(queue));
        for asker in self.waiters.iter().map(|waiter| waiter.asker).collect::<Vec<_>>() {
            let waiter = self.waiter_mut(asker);
            if here(&waiter.take.queues[0].1) {
                waiter.seats.clear();
                waiter.watches.clear();
                waiter.flushed = true;
                if waiter.phase == Phase::Waiting {
                    self.end_with_nothing(asker);
                }
            }
        }
    }

    /// Time passes on a shard. `actual` is what it ended, for the order of what fell due at once.
    pub fn tick(&mut self, now: Now, shard: ShardNo, actual: &[(Ticket, Answer)]) {
        self.timers(now.mono().0, shard, actual);
        self.take_turns(now, shard, actual);
    }

    fn timers(&mut self, now: u64, shard: ShardNo, actual: &[(Ticket, Answer)]) {
        let shards = self.shards;
        let is_due = |(id, job): &(&JobId, &Job)| id.slot().home(shards) == shard && job.deadline() <= now;
        let mut due: Vec<JobId> = self.jobs.iter().filter(is_due).map(|(id, _)| *id).collect();
        let before = self.ends.len();
        while !due.is_empty() {
            // First what was served at once, then what is dead, then what nobody waits for.
            let served = due.iter().position(|id| self.is_next(id, now, before, actual));
            let dead = || {
                due.iter()
                    .position(|id| self.jobs.get(id).is_none_or(|job| job.expires_at <= now))
            };
            let id = due.remove(served.or_else(dead).unwrap_or(0));
            // What was removed on the way is gone.
            let Some(job) = self.jobs.get(&id) else { continue };
            if job.expires_at <= now {
                self.remove(&id);
            } else if self.queues[&job.queue].pause.input {
                let job = self.jobs.get_mut(&id).expect("it is there");
                job.place = Place::Held;
                job.enters_at = NEVER;
            } else {
                self.enter(now, &id, Entry::Plain);
            }
        }
    }

    /// Whether a job that enters its queue now would go to whom it actually went.
    pub(super) fn is_next(&self, id: &JobId, now: u64, before: usize, actual: &[(Ticket, Answer)]) -> bool {
        let Some(job) = self.jobs.get(id).filter(|job| job.expires_at > now) else {
            return false;
        };
        let Some(waiter) = self.waiting_at(&job.queue).next() else {
            return false;
        };
        let ticket = waiter.asker.1;
        let ended = self.ends[before..]
            .iter()
            .filter(|(ended, _)| *ended == ticket)
            .count();
        let end = actual.iter().filter(|(ended, _)| *ended == ticket).nth(ended);
        match end {
            Some((_, Answer::Jobs(jobs))) => jobs.iter().any(|job| job.handed.id == *id),
            Some((_, Answer::Offers(offers))) => offers.iter().any(|offer| offer.id == *id),
            _ => false,
        }
    }
}
