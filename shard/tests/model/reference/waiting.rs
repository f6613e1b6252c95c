//! What queues and waiters do: who stands where, who is served.

use super::*;

impl Reference {
    pub(super) fn find_or_create(&mut self, now: u64, name: &Blob) {
        let uncertain = self.may_be_collected(now, name);
        let fresh = Queue {
            pause: PauseState::default(),
            created_at: now,
            touched_at: now,
            jobs_in: 0,
            jobs_out: 0,
            uncertain: false,
        };
        let queue = self.queues.entry(name.to_vec()).or_insert(fresh);
        queue.uncertain |= uncertain;
    }

    pub(super) fn may_be_collected(&self, now: u64, name: &[u8]) -> bool {
        self.queues.get(name).is_some_and(|queue| {
            let used = self.jobs.values().any(|job| job.queue == name)
                || self
                    .waiters
                    .iter()
                    .any(|waiter| waiter.seats.iter().any(|(_, seat)| seat == name));
            !used && !queue.pause.any() && now - queue.touched_at > IDLE_QUEUE_MS
        })
    }

    /// Jobs that count as queued, in order.
    pub(super) fn queued(&self, queue: &[u8]) -> Vec<JobId> {
        let mut ids: Vec<(u64, JobId)> = self
            .jobs
            .iter()
            .filter(|(_, job)| job.queue == queue && job.is_queued())
            .map(|(id, job)| (job.ctime, *id))
            .collect();
        ids.sort();
        ids.into_iter().map(|(_, id)| id).collect()
    }

    pub(super) fn length(&self, queue: &[u8]) -> u64 {
        self.queued(queue).len() as u64
    }

    pub(super) fn first_to_be_had(&mut self, now: u64, queue: &[u8]) -> Option<JobId> {
        if self.queues.get(queue).is_none_or(|queue| queue.pause.output) {
            return None;
        }
        for id in self.queued(queue) {
            if self.jobs[&id].place != Place::Queued {
                continue;
            }
            if self.jobs[&id].expires_at > now {
                return Some(id);
            }
            self.remove(&id);
        }
        None
    }

    /// One job per queue and pass, until there are enough or a pass brings none.
    pub(super) fn take_pass(
        &mut self,
        now: u64,
        queues: &[(u32, Vec<u8>)],
        count: u32,
        mut take: impl FnMut(&mut Self, u32, JobId),
    ) {
        let mut taken = 0;
        loop {
            let before = taken;
            for (place, queue) in queues {
                if taken == count {
                    return;
                }
                if let Some(id) = self.first_to_be_had(now, queue) {
                    take(self, *place, id);
                    taken += 1;
                }
            }
            if taken == before {
                return;
            }
        }
    }

    pub(super) fn hand_out_pass(
        &mut self,
        now: u64,
        queues: &[(u32, Vec<u8>)],
        count: u32,
    ) -> Vec<Delivered> {
        let mut jobs = Vec::new();
        self.take_pass(now, queues, count, |this, place, id| {
            jobs.push(this.hand_out(now, &id, place))
        });
        jobs
    }

    pub(super) fn offer_pass(
        &mut self,
        now: u64,
        queues: &[(u32, Vec<u8>)],
        count: u32,
        asker: Asker,
    ) -> Vec<Offered> {
        let mut offers = Vec::new();
        self.take_pass(now, queues, count, |this, place, id| {
            this.reservations += 1;
            let number = this.reservations;
            this.jobs.get_mut(&id).expect("it is there").place = Place::Reserved { asker, number, place };
            offers.push(Offered { place, id });
        });
        offers
    }

    pub(super) fn waiting_at<'a>(&'a self, queue: &'a [u8]) -> impl Iterator<Item = &'a Waiter> {
        let sits = move |waiter: &&Waiter| waiter.seats.iter().any(|(_, seat)| seat == queue);
        self.waiters
            .iter()
            .filter(|waiter| waiter.phase == Phase::Waiting)
            .filter(sits)
    }

    pub(super) fn can_serve(&self, queue: &[u8]) -> bool {
        let open = self.queues.get(queue).is_some_and(|queue| !queue.pause.output);
        let has_jobs = || {
            self.jobs
                .values()
                .any(|job| job.queue == queue && job.place == Place::Queued)
        };
        open && has_jobs() && self.waiting_at(queue).next().is_some()
    }

    /// Serves who waits longest; whether there was anything for him.
    pub(super) fn serve_next(&mut self, now: u64, queue: &[u8]) -> bool {
        let waiter = self.waiting_at(queue).next().expect("somebody waits");
        let (asker, seats, count) = (waiter.asker, waiter.seats.clone(), waiter.take.count);
        let (answer, served) = match waiter.take.manner {
            Manner::Deliver => {
                let jobs = self.hand_out_pass(now, &seats, count);
                let served = !jobs.is_empty();
                (Answer::Jobs(jobs), served)
            }
            Manner::Offer => {
                let offers = self.offer_pass(now, &seats, count, asker);
                let served = !offers.is_empty();
                (Answer::Offers(offers), served)
            }
        };
        if served {
            match answer {
                Answer::Jobs(_) => self.forget(asker),
                _ => self.waiter_mut(asker).phase = Phase::Offered,
            }
            self.ends.push((asker.1, answer));
        }
        served
    }

    /// Ends the wait of those that waited only for reservations of this queue that are over now.
    pub(super) fn settle(&mut self, queue: &[u8]) {
        let oldest = self
            .jobs
            .values()
            .filter(|job| job.queue == queue)
            .filter_map(Job::reservation)
            .min();
        for asker in self.waiters.iter().map(|waiter| waiter.asker).collect::<Vec<_>>() {
            let waiter = self.waiter_mut(asker);
            if oldest.is_some_and(|oldest| oldest <= waiter.last_reservation) {
                continue;
            }
            let before = waiter.watches.len();
            waiter.watches.retain(|watched| watched != queue);
            if waiter.watches.len() < before && waiter.watches.is_empty() && waiter.phase == Phase::Waiting {
                self.end_with_nothing(asker);
            }
        }
    }

    pub(super) fn may_wait(&self, asker: Asker) -> bool {
        let waiter = self
            .waiters
            .iter()
            .find(|waiter| waiter.asker == asker)
            .expect("it is there");
        match waiter.take.patience {
            Patience::None | Patience::Try => false,
            Patience::Reserved => !waiter.watches.is_empty(),
            Patience::Jobs => true,
        }
    }

    pub(super) fn offers_of(&self, asker: Asker) -> Vec<JobId> {
        let mut offers: Vec<(u64, JobId)> = self
            .jobs
            .iter()
            .filter(|(_, job)| job.is_reserved_for(asker))
            .map(|(id, job)| (job.reservation().expect("it is reserved"), *id))
            .collect();
        offers.sort();
        offers.into_iter().map(|(_, id)| id).collect()
    }

    pub(super) fn waiter_mut(&mut self, asker: Asker) -> &mut Waiter {
        self.waiters
            .iter_mut()
            .find(|waiter| waiter.asker == asker)
            .expect("it is there")
    }

    pub(super) fn forget(&mut self, asker: Asker) {
        self.waiters.retain(|waiter| waiter.asker != asker);
        self.lingers_no_more(asker);
    }

    pub(super) fn end_with_nothing(&mut self, asker: Asker) {
        self.forget(asker);
        self.ends.push((asker.1, Answer::Nothing));
    }
}
