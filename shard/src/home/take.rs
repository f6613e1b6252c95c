//! A pass over queues: one job per queue and pass, until there are enough or a pass yields nothing (reference, 1.6).

use smallvec::SmallVec;

use super::Home;
use crate::clock::Mono;
use crate::limits::SCAN_STEP;
use crate::message::{Delivered, Offered};

/// Queues of one GETJOB that exist: place in the command, key.
pub type Places = SmallVec<[(u32, u32); 2]>;

/// Whether a pass may take from a queue whose waiters are still being served in steps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Manners {
    /// It may: the taker does not wait, so it cannot stand in the line.
    PushIn,
    /// It may not.
    Queue,
    /// It may only from this one: it is its turn.
    TurnAt(u32),
}

impl Home {
    /// Hands out up to `count` jobs.
    pub(super) fn take_jobs(
        &mut self,
        now: Mono,
        places: &Places,
        count: u32,
        manners: Manners,
    ) -> Vec<Delivered> {
        let mut jobs = std::mem::take(&mut self.spare);
        self.pass(now, places, count, manners, |home, place, job| {
            if jobs.is_empty() {
                jobs.reserve_exact(home.expected(places, count));
            }
            jobs.push(home.hand_out(now, job, place));
        });
        if jobs.is_empty() {
            self.spare = std::mem::take(&mut jobs);
        }
        jobs
    }

    /// Offers up to `count` jobs to a waiter.
    pub(super) fn take_offers(
        &mut self,
        now: Mono,
        places: &Places,
        manners: Manners,
        waiter: u32,
    ) -> Vec<Offered> {
        let mut offers = Vec::new();
        let count = self.waiters[waiter].count;
        self.pass(now, places, count, manners, |home, place, job| {
            home.offer(job, place, waiter);
            offers.push(Offered {
                place,
                id: home.job(job).id,
            });
        });
        offers
    }

    fn pass(
        &mut self,
        now: Mono,
        places: &Places,
        count: u32,
        manners: Manners,
        mut take: impl FnMut(&mut Self, u32, u32),
    ) {
        let mut taken = 0;
        let mut dead_left = SCAN_STEP;
        loop {
            let before = taken;
            for &(place, queue) in places {
                if taken == count {
                    return;
                }
                if let Some(job) = self.first_to_be_had(now, queue, manners, &mut dead_left) {
                    take(self, place, job);
                    taken += 1;
                }
            }
            if taken == before {
                return;
            }
        }
    }

    /// The first living job of a queue that may be taken from. Dead ones on the way are removed, up to a bound: behind
    /// that many the queue counts as empty until the next tick, which serves whoever waits by then.
    #[inline]
    fn first_to_be_had(
        &mut self,
        now: Mono,
        key: u32,
        manners: Manners,
        dead_left: &mut usize,
    ) -> Option<u32> {
        loop {
            let queue = &self.stock.queues[key];
            let in_line = queue.busy && !queue.waiters.is_empty();
            if queue.pause.output
                || (in_line && !matches!(manners, Manners::PushIn) && manners != Manners::TurnAt(key))
            {
                return None;
            }
            let job = queue.jobs.first()?;
            let first = &self.stock.jobs[job];
            if first.expires_at > now {
                let refused = first.at_most_once() && self.journal.refuses_hand_out();
                return (!refused).then_some(job);
            }
            if *dead_left == 0 {
                self.make_busy(key);
                return None;
            }
            *dead_left -= 1;
            self.expire(now, job);
        }
    }

    /// How many jobs a pass will take about, for the room of the answer.
    fn expected(&self, places: &Places, count: u32) -> usize {
        let there: usize = places
            .iter()
            .map(|&(_, queue)| self.stock.queues[queue].jobs.len())
            .sum();
        there.min(count as usize)
    }
}
