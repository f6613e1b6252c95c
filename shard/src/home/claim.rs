//! Offers: claimed, refused, returned (`message.rs`, the life of a GETJOB).
//!
//! Every claim ends with the jobs it gave. A request whose claims were all refused and that has no offer left waits on at its
//! place: a new offer, or the `Nothing` of one that waited for reservations, follows behind that end.

use super::take::Manners;
use super::waiter::Phase;
use super::{Home, Place};
use crate::clock::{Mono, Now};
use crate::id::JobId;
use crate::message::{Answer, Delivered, Manner, Patience, Ticket};

impl Home {
    /// Hands out these of the jobs that were offered to a request. Its end is `Jobs`, without those that are gone.
    pub fn claim(&mut self, now: Now, ticket: Ticket, ids: &[JobId]) {
        self.journal.begin(now);
        let now = now.mono();
        let waiter = self.tickets.get(&ticket).copied();
        let Some(waiter) = waiter.filter(|&key| self.waiters[key].phase != Phase::Waiting) else {
            self.counters.claims_refused += ids.len() as u64;
            self.end(ticket, Answer::Jobs(Vec::new()));
            if waiter.is_none() {
                // It has ended with `Nothing` while the claim was on its way; who claims must not wait on.
                self.end(ticket, Answer::Nothing);
            }
            return;
        };
        let jobs: Vec<Delivered> = ids
            .iter()
            .filter_map(|id| self.claim_one(now, waiter, id))
            .collect();
        self.counters.claims_refused += (ids.len() - jobs.len()) as u64;
        if !jobs.is_empty() {
            self.waiters[waiter].phase = Phase::Served;
        }
        self.end(ticket, Answer::Jobs(jobs));
        if self.waiters[waiter].phase == Phase::Offered && self.waiters[waiter].offers.is_empty() {
            self.wait_on(now, waiter);
        }
    }

    /// Ends a request: what it was offered goes back to its place, and its waiter is forgotten. One that waits to be handed
    /// jobs, for memory or behind others, ends with `Nothing`; after offers, and when it has ended already, nothing is said.
    pub fn cancel(&mut self, now: Now, ticket: Ticket) {
        self.journal.begin(now);
        if self.short.cancel(ticket) {
            self.lines.ended(ticket);
            return self.end(ticket, Answer::Nothing);
        }
        if self.cancel_adding(ticket) {
            return;
        }
        if self.cancel_remote(ticket) {
            return self.end_beside(ticket, Answer::Nothing);
        }
        if self.withdraw(ticket) {
            return self.end(ticket, Answer::Nothing);
        }
        let Some(&waiter) = self.tickets.get(&ticket) else {
            return;
        };
        self.stand(waiter);
        self.waiters[waiter].phase = Phase::Served;
        while let Some(offer) = self.waiters[waiter].offers.first() {
            self.give_back(now.mono(), self.stock.offers[offer].job);
        }
        match self.waiters[waiter].manner {
            Manner::Deliver => self.end_with_nothing(waiter),
            Manner::Offer => self.forget(waiter),
        }
    }

    fn claim_one(&mut self, now: Mono, waiter: u32, id: &JobId) -> Option<Delivered> {
        let key = self.find_job(now, id)?;
        let job = self.job(key);
        if job.place != Place::Reserved || self.stock.offers[job.aside].waiter != waiter {
            return None;
        }
        let (queue, place) = (job.queue, self.stock.offers[job.aside].place);
        if self.queue(queue).pause.output
            || (self.job(key).at_most_once() && self.journal.refuses_change().is_some())
        {
            self.give_back(now, key);
            return None;
        }
        let delivered = self.hand_out(now, key, place);
        self.settle(queue);
        Some(delivered)
    }

    /// A waiter whose claims were refused whole and that has no offer left.
    pub(super) fn wait_on(&mut self, now: Mono, waiter: u32) {
        if self.waiters[waiter].flushed {
            return self.end_with_nothing(waiter);
        }
        let places = self.places_of(waiter);
        let offers = self.take_offers(now, &places, Manners::Queue, waiter);
        let (ticket, refusal) = (self.waiters[waiter].ticket, self.journal.take_refusal());
        if !offers.is_empty() {
            return self.end(ticket, Answer::Offers(offers));
        }
        if let Some(misconf) = refusal {
            self.forget(waiter);
            return self.end(ticket, Answer::Error(misconf));
        }
        if !self.sit(waiter) && self.waiters[waiter].patience == Patience::Reserved {
            self.end_with_nothing(waiter);
        }
    }
}
