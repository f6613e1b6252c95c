//! All that must hold between two calls, looked at one by one: for tests and simulation, since it walks everything.

use std::collections::BTreeMap;

use super::cluster::collection::ACK_BYTES;
use super::cluster::external::OUTGOING_BYTES;
use super::cluster::share::SHARE_BYTES;
use super::cluster::transfer::MOVE_BYTES;
use super::stock::Stock;
use super::waiter::{OFFER_BYTES, Phase, SEAT_BYTES, WAITER_BYTES};
use super::{Home, Place};
use crate::clock::Mono;
use crate::message::Patience;
use crate::structures::NONE;
use crate::structures::list::{Links, List};

impl Home {
    /// Panics when something does not hold.
    pub fn check(&self) {
        self.check_jobs();
        self.check_queues();
        self.check_waiters();
        self.check_shares();
        self.check_transfers();
        self.check_lines();
        self.check_sums();
    }

    fn check_jobs(&self) {
        let Stock {
            jobs, timers, slots, ..
        } = &self.stock;
        let (shard, shards) = (self.options.shard, self.options.shards);
        for (key, job) in jobs.0.iter_from(0, jobs.0.high_water()) {
            assert_eq!(job.id.slot().home(shards), shard, "a job is at its home");
            assert_eq!(
                job.links.is_linked(),
                job.is_in_a_list(),
                "{:?} is in the list of its place",
                job.id
            );
            let deadline = timers.deadline_ms(job.timer.expect("every job has a timer"));
            assert!(deadline <= job.deadline().0, "{:?} is woken in time", job.id);
            let map = &slots[usize::from(job.id.slot().number() / shards)].jobs;
            let found = map.find(job.id.scan_hash(), |other| jobs[other].id == job.id);
            assert_eq!(found, Some(key), "a job is found by its ID");
            assert_eq!(
                self.find_queue(&self.queue(job.queue).name),
                Some(job.queue),
                "its queue exists"
            );
            assert!(
                job.retry_s == 0
                    || job.place == Place::Queued
                    || job.place == Place::Reserved
                    || job.place == Place::Held
                    || job.place == Place::Waiting
                    || job.enters_at.0 != u64::MAX,
                "{:?} comes back by itself",
                job.id
            );
        }
        self.check_counted();
        for (at, maps) in slots.iter().enumerate() {
            assert!(maps.jobs.is_empty() || (at as u16 * shards + shard) < crate::slot::SLOTS);
        }
        assert_eq!(
            slots.iter().map(|maps| maps.jobs.len()).sum::<usize>(),
            jobs.0.len()
        );
    }

    /// No segment of the log is taken for dead in which a job lives.
    fn check_counted(&self) {
        let Some(log) = self.log() else { return };
        let mut living = BTreeMap::new();
        for (_, job) in self.stock.jobs.0.iter_from(0, u32::MAX) {
            if job.marks.counted()
                && let Some((segment, counted)) = log.counted_with(job.ctime)
            {
                living.entry(segment).or_insert((0, counted)).0 += 1;
            }
        }
        for (segment, (there, counted)) in living {
            assert!(
                there <= counted,
                "segment {segment}: {there} jobs live, {counted} are counted"
            );
        }
    }

    fn check_queues(&self) {
        let keys: Vec<u32> = self
            .stock
            .queues
            .0
            .iter_from(0, u32::MAX)
            .map(|(key, _)| key)
            .collect();
        let mut queued = 0;
        for &key in &keys {
            self.check_queue(key);
            queued += self.queue(key).len();
        }
        assert_eq!(queued, self.stock.queued, "queued jobs are counted");
        assert_eq!(
            self.stock
                .slots
                .iter()
                .map(|maps| maps.queues.len())
                .sum::<usize>(),
            keys.len()
        );
        let busy = keys.iter().filter(|&&key| self.queue(key).busy).count();
        assert_eq!(self.stock.busy.len(), busy, "each busy queue is named once");
        let members: u64 = keys.iter().map(|&key| u64::from(self.queue(key).members)).sum();
        assert_eq!(
            members,
            self.stock.jobs.0.len() as u64,
            "every job is a member of its queue"
        );
    }

    fn check_queue(&self, key: u32) {
        let Stock {
            jobs,
            queues,
            lanes,
            seats,
            seat_lanes,
            offers,
            ..
        } = &self.stock;
        let queue = &queues[key];
        queue.jobs.assert_valid(jobs, lanes);
        queue.reserved.assert_valid(jobs, lanes);
        queue.waiters.assert_valid(seats, seat_lanes);
        let are = |list: &mut dyn Iterator<Item = u32>, place| {
            list.for_each(|job| assert!(jobs[job].place == place && jobs[job].queue == key));
        };
        are(&mut queue.jobs.iter(jobs), Place::Queued);
        are(&mut queue.reserved.iter(jobs), Place::Reserved);
        are(&mut queue.held.iter(jobs), Place::Held);
        assert_eq!(
            queue.offers.len(),
            queue.reserved.len(),
            "each reserved job has an offer"
        );
        let stamps: Vec<u64> = walk(&queue.offers, |offer| offers[offer].in_queue)
            .map(|o| offers[o].reservation)
            .collect();
        assert_eq!(stamps.len(), queue.offers.len());
        assert!(stamps.is_sorted(), "offers are in order");
        assert!(queue.busy || !queue.can_serve(), "nobody waits for what is there");
        assert!(
            queue.busy || queue.pause.input || queue.held.is_empty(),
            "nothing is held back without reason"
        );
        assert!(queue.timer.is_some(), "every queue has a timer");
        for seat in walk(&queue.watchers, |seat| seats.0[seat].watching) {
            assert_eq!(seats.0[seat].queue, key);
            let last = self.waiters[seats.0[seat].waiter].last_reservation;
            assert!(
                queue.busy || stamps.first().is_some_and(|&oldest| oldest <= last),
                "a watcher watches something"
            );
        }
    }

    fn check_waiters(&self) {
        let keys: Vec<u32> = self.tickets.values().copied().collect();
        assert_eq!(keys.len(), self.waiters.len(), "every waiter has its ticket");
        let mut seats = 0;
        for key in keys {
            let waiter = &self.waiters[key];
            seats += waiter.seats.len();
            let mut watches = 0;
            for &seat in &waiter.seats {
                let seat_of = &self.stock.seats.0[seat];
                assert_eq!(seat_of.waiter, key);
                assert_eq!(
                    seat_of.waiting.is_linked(),
                    waiter.phase == Phase::Waiting,
                    "who waits is in the order"
                );
                watches += u32::from(seat_of.watching.is_linked());
            }
            assert_eq!(watches, waiter.watches, "watches are counted");
            let ended =
                waiter.phase == Phase::Waiting && waiter.patience == Patience::Reserved && watches == 0;
            assert!(!ended, "who has nothing to wait for does not wait");
            assert!(
                waiter.phase != Phase::Waiting || waiter.offers.is_empty(),
                "who has an offer does not wait"
            );
            for offer in walk(&waiter.offers, |offer| self.stock.offers[offer].in_waiter) {
                assert_eq!(self.stock.offers[offer].waiter, key, "an offer is its waiter's");
            }
        }
        assert_eq!(seats, self.stock.seats.0.len(), "every seat has its waiter");
    }

    fn check_shares(&self) {
        let Stock {
            jobs,
            shares,
            acks,
            cluster_timers,
            ..
        } = &self.stock;
        let (mut adding, mut on_one_host) = (0, 0);
        for (key, share) in shares.iter_from(0, u32::MAX) {
            on_one_host += u64::from(share.on_one_host);
            assert_eq!(jobs[share.job].share, key, "a share is its job's");
            let waits = jobs[share.job].place == Place::Waiting;
            assert_eq!(waits, share.ticket().is_some(), "a job waits for an ADDJOB");
            adding += usize::from(waits);
            let due = share
                .timer
                .map_or(u64::MAX, |timer| cluster_timers.deadline_ms(timer));
            assert!(due <= share.deadline().0, "a share is woken in time");
        }
        assert_eq!(
            self.stock.on_one_host, on_one_host,
            "jobs on one host are counted"
        );
        let shared = jobs.0.iter_from(0, u32::MAX).filter(|(_, job)| job.share != NONE);
        assert_eq!(shared.count(), shares.len(), "a job has one share at most");
        assert_eq!(self.adding.len(), adding, "each ADDJOB that waits has its job");
        let dummies = acks.iter_from(0, u32::MAX).filter(|(_, ack)| ack.dummy);
        assert_eq!(dummies.count(), self.stock.dummies, "dummies are counted");
        for (key, ack) in acks.iter_from(0, u32::MAX) {
            assert_eq!(self.find_ack(&ack.id), Some(key), "an acknowledged job is found");
            assert!(
                self.stock.job_key(self.options.shards, &ack.id).is_none(),
                "a job lives or is acknowledged"
            );
        }
    }

    fn check_transfers(&self) {
        let Stock {
            jobs,
            moves,
            moves_due,
            ..
        } = &self.stock;
        let away = jobs.0.iter_from(0, u32::MAX);
        let away = away.filter(|(_, job)| job.place == Place::Away);
        let mut found = 0;
        for (_, job) in away {
            assert!(job.at_most_once(), "others have copies elsewhere, and stay");
            assert!(moves[&job.id].is_away(), "what is away is on its way");
            found += 1;
        }
        assert_eq!(
            found,
            moves.values().filter(|moved| moved.is_away()).count(),
            "what is on its way is away"
        );
        let timed = moves.iter().filter(|(_, moved)| moved.again_at != Mono::NEVER);
        let timed = timed.inspect(|&(id, moved)| assert!(moves_due.contains(&(moved.again_at, *id))));
        assert_eq!(timed.count(), moves_due.len(), "each has its time");
        self.transfers.check();
        self.stock.outgoing.check();
        for (_, job) in jobs
            .0
            .iter_from(0, u32::MAX)
            .filter(|(_, job)| job.marks.goes_out())
        {
            let is_seen_to = job.place == Place::Waiting || self.stock.outgoing.has(&job.id);
            assert!(is_seen_to, "what is to go out is looked at");
        }
    }

    fn check_lines(&self) {
        let waiters = self
            .tickets
            .iter()
            .filter(|(_, key)| self.waiters[**key].lingers());
        let tickets = waiters.map(|(ticket, _)| *ticket);
        let tickets = tickets.chain(self.short.tickets()).chain(self.remote.tickets());
        self.lines.check(&tickets.collect());
        self.remote.check();
    }

    fn check_sums(&self) {
        let Stock {
            jobs,
            queues,
            timers,
            seats,
            offers,
            delivered,
            ..
        } = &self.stock;
        let job_bytes: u64 = jobs.0.iter_from(0, u32::MAX).map(|(_, job)| job.bytes()).sum();
        let queue_bytes: u64 = queues
            .0
            .iter_from(0, u32::MAX)
            .map(|(_, queue)| queue.bytes())
            .sum();
        let waiting = SEAT_BYTES * seats.0.len() as u64 + OFFER_BYTES * offers.len() as u64;
        let shared = SHARE_BYTES * self.stock.shares.len() as u64 + ACK_BYTES * self.stock.acks.len() as u64;
        let going =
            MOVE_BYTES * self.stock.moves.len() as u64 + OUTGOING_BYTES * self.stock.outgoing.len() as u64;
        assert_eq!(
            self.stock.bytes,
            job_bytes + queue_bytes + waiting + shared + going,
            "memory adds up"
        );
        // Sessions charge what they keep too.
        assert!(
            self.memory.used()
                >= self.stock.bytes
                    + WAITER_BYTES * self.waiters.len() as u64
                    + self.lines.bytes()
                    + self.pauses.bytes()
                    + self.transfers.bytes(),
            "memory adds up"
        );
        assert_eq!(timers.len(), jobs.0.len() + queues.0.len(), "a timer each");
        let once = delivered
            .iter(jobs)
            .inspect(|&job| assert!(jobs[job].at_most_once() && jobs[job].place == Place::Leased));
        assert_eq!(once.count(), delivered.len());
    }
}

/// The elements of a list whose links are found by `links`.
fn walk(list: &List, links: impl Fn(u32) -> Links) -> impl Iterator<Item = u32> {
    std::iter::successors(list.first(), move |&at| links(at).next())
}
