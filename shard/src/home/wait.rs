//! Waiting for jobs: who waits where, who is served when, and when a wait for reservations is over.

use std::collections::BTreeSet;

use super::stock::Stock;
use super::take::{Manners, Places};
use super::waiter::{Phase, SEAT_BYTES, Seat, WAITER_BYTES, Waiter, Watching};
use super::{Home, Queue};
use crate::clock::Mono;
use crate::message::{Answer, Manner, Patience, Take, Ticket};
use crate::structures::list::{Links, List};

impl Home {
    /// A shard's part of a GETJOB: what is there, or a waiter, in one step, so that no job slips in between.
    pub(crate) fn take(&mut self, now: Mono, ticket: Ticket, take: &Take) -> Answer {
        let known = take
            .queues
            .iter()
            .filter_map(|(place, name)| Some((*place, self.find_queue(name)?)));
        let places: Places = known.collect();
        match take.manner {
            Manner::Deliver => {
                let jobs = self.take_jobs(now, &places, take.count, manners_of(take.patience));
                let refusal = self.journal.take_refusal();
                if !jobs.is_empty() {
                    return Answer::Jobs(jobs);
                }
                if let Some(misconf) = refusal {
                    return Answer::Error(misconf);
                }
                if matches!(take.patience, Patience::None | Patience::Try) {
                    return Answer::Nothing;
                }
                let waiter = self.add_waiter(now, ticket, take, &places);
                self.wait_or_drop(now, waiter, take)
            }
            Manner::Offer => {
                let waiter = self.add_waiter(now, ticket, take, &places);
                let offers = self.take_offers(now, &places, manners_of(take.patience), waiter);
                let refusal = self.journal.take_refusal();
                if !offers.is_empty() {
                    self.waiters[waiter].phase = Phase::Offered;
                    return Answer::Offers(offers);
                }
                if let Some(misconf) = refusal {
                    self.forget(waiter);
                    return Answer::Error(misconf);
                }
                self.wait_or_drop(now, waiter, take)
            }
        }
    }

    /// Serves the first waiter of a queue with what there is in all of its queues; how many jobs that were.
    pub(super) fn serve_next(&mut self, now: Mono, queue: u32) -> usize {
        if self.stock.queues[queue].busy {
            return 0;
        }
        let served = self.serve_turn(now, queue);
        if self.stock.queues[queue].can_serve() {
            // The log let the first one have nothing: the others are to hear of that, too.
            self.make_busy(queue);
        }
        served
    }

    /// The same for a queue whose waiters are served in steps.
    pub(super) fn serve_turn(&mut self, now: Mono, queue: u32) -> usize {
        let seat = self.stock.queues[queue].waiters.first().expect("somebody waits");
        let key = self.stock.seats.0[seat].waiter;
        let places = self.places_of(key);
        let Waiter {
            ticket,
            manner,
            count,
            ..
        } = self.waiters[key];
        // This may happen while the answer to another request is made.
        let others = self.journal.take_need();
        let served = match manner {
            Manner::Deliver => {
                let jobs = self.take_jobs(now, &places, count, Manners::TurnAt(queue));
                let served = jobs.len();
                if served > 0 {
                    self.forget(key);
                    self.end(ticket, Answer::Jobs(jobs));
                }
                served
            }
            Manner::Offer => {
                let offers = self.take_offers(now, &places, Manners::TurnAt(queue), key);
                let served = offers.len();
                if served > 0 {
                    self.stand(key);
                    self.waiters[key].phase = Phase::Offered;
                    self.end(ticket, Answer::Offers(offers));
                }
                served
            }
        };
        let served = served.max(self.end_refused(key));
        self.journal.restore_need(others);
        served
    }

    /// A waiter whose turn it was and that the log let get nothing ends with the reason. How many waiters that were.
    pub(super) fn end_refused(&mut self, key: u32) -> usize {
        let Some(misconf) = self.journal.take_refusal() else {
            return 0;
        };
        if self
            .waiters
            .get(key)
            .is_none_or(|waiter| waiter.phase != Phase::Waiting)
        {
            return 0;
        }
        let ticket = self.waiters[key].ticket;
        self.forget(key);
        self.end(ticket, Answer::Error(misconf));
        1
    }

    /// Ends the wait of those that waited only for reservations of this queue that are over now.
    pub(super) fn settle(&mut self, key: u32) {
        loop {
            let Stock {
                queues,
                seats,
                offers,
                ..
            } = &mut self.stock;
            let queue = &mut queues[key];
            // While a queue is served in steps, what was returned may be on its way to a watcher.
            let Some(seat) = queue.watchers.first().filter(|_| !queue.busy) else {
                return;
            };
            let waiter = seats.0[seat].waiter;
            let last = self.waiters[waiter].last_reservation;
            if queue
                .offers
                .first()
                .is_some_and(|oldest| offers[oldest].reservation <= last)
            {
                return;
            }
            queue.watchers.remove(&mut Watching(&mut seats.0), seat);
            self.waiters[waiter].watches -= 1;
            if self.waiters[waiter].watches == 0 && self.waiters[waiter].phase == Phase::Waiting {
                self.end_with_nothing(waiter);
            }
        }
    }

    /// Ends a waiter that gets nothing more.
    pub(super) fn end_with_nothing(&mut self, key: u32) {
        let ticket = self.waiters[key].ticket;
        self.forget(key);
        self.end_beside(ticket, Answer::Nothing);
    }

    /// Puts a waiter's seats at their place in the order, when there is something to wait for.
    pub(super) fn sit(&mut self, key: u32) -> bool {
        let waiter = &mut self.waiters[key];
        let waits = match waiter.patience {
            Patience::None | Patience::Try => false,
            Patience::Reserved => waiter.watches > 0,
            Patience::Jobs => true,
        };
        if waits {
            waiter.phase = Phase::Waiting;
            let Stock {
                queues,
                seats,
                seat_lanes,
                ..
            } = &mut self.stock;
            for &seat in &waiter.seats {
                queues[seats.0[seat].queue]
                    .waiters
                    .push_ordered(seats, seat_lanes, seat);
            }
            self.tell_seats(key);
        }
        waits
    }

    /// Takes a waiter's seats out of the order.
    pub(super) fn stand(&mut self, key: u32) {
        let Stock {
            queues,
            seats,
            seat_lanes,
            ..
        } = &mut self.stock;
        for &seat in &self.waiters[key].seats {
            if seats.0[seat].waiting.is_linked() {
                queues[seats.0[seat].queue]
                    .waiters
                    .remove(seats, seat_lanes, seat);
            }
        }
        self.tell_seats(key);
    }

    /// Who waits for the queues of a waiter has changed: other nodes may want to know.
    fn tell_seats(&mut self, key: u32) {
        if !self.peers.any() {
            return;
        }
        for at in 0..self.waiters[key].seats.len() {
            let seat = self.waiters[key].seats[at];
            self.interest_changed(self.stock.seats.0[seat].queue);
        }
    }

    /// Forgets a waiter that has no offers.
    pub(super) fn forget(&mut self, key: u32) {
        assert!(
            self.waiters[key].offers.is_empty(),
            "offers are given back before"
        );
        self.stand(key);
        let seats = std::mem::take(&mut self.waiters[key].seats);
        self.release(SEAT_BYTES * seats.len() as u64);
        for &seat in &seats {
            let Stock { queues, seats, .. } = &mut self.stock;
            let queue = &mut queues[seats.0[seat].queue];
            if seats.0[seat].watching.is_linked() {
                queue.watchers.remove(&mut Watching(&mut seats.0), seat);
            }
            queue.seats -= 1;
            seats.0.remove(seat);
        }
        self.drop_waiter(key);
    }

    /// The queues of a waiter.
    pub(super) fn places_of(&self, key: u32) -> Places {
        let seats = &self.stock.seats.0;
        self.waiters[key]
            .seats
            .iter()
            .map(|&seat| (seats[seat].place, seats[seat].queue))
            .collect()
    }

    fn wait_or_drop(&mut self, now: Mono, waiter: u32, take: &Take) -> Answer {
        if self.sit(waiter) {
            let Waiter { ticket, .. } = self.waiters[waiter];
            if self.waiters[waiter].lingers() {
                self.lines.linger(ticket, true);
            }
            return Answer::Waiting;
        }
        self.forget(waiter);
        if take.patience == Patience::Reserved {
            self.looked_in_vain(now, take);
        }
        Answer::Nothing
    }

    fn add_waiter(&mut self, now: Mono, ticket: Ticket, take: &Take, known: &Places) -> u32 {
        self.memory.charge(WAITER_BYTES);
        self.arrivals += 1;
        let key = self.waiters.insert(Waiter {
            ticket,
            manner: take.manner,
            patience: take.patience,
            count: take.count,
            phase: Phase::Waiting,
            order: self.arrivals,
            last_reservation: self.reservations,
            watches: 0,
            seats: Box::default(),
            offers: List::new(),
            flushed: false,
        });
        let before = self.tickets.insert(ticket, key);
        assert!(before.is_none(), "a ticket names one request");
        let seats = match take.patience {
            Patience::None | Patience::Try => Box::default(),
            Patience::Jobs => {
                let mut seen = BTreeSet::new();
                let all = take.queues.iter();
                all.filter_map(|(place, name)| {
                    let queue = self.find_or_create_queue(now, name);
                    seen.insert(queue).then(|| self.add_seat(key, *place, queue))
                })
                .collect()
            }
            Patience::Reserved => {
                let mut seen = BTreeSet::new();
                known
                    .iter()
                    .filter(|(_, queue)| seen.insert(*queue))
                    .filter_map(|&(place, queue)| self.add_watch(key, place, queue))
                    .collect()
            }
        };
        self.waiters[key].seats = seats;
        key
    }

    fn add_seat(&mut self, waiter: u32, place: u32, queue: u32) -> u32 {
        self.charge(SEAT_BYTES);
        self.stock.queues[queue].seats += 1;
        let order = self.waiters[waiter].order;
        let (waiting, watching) = (Links::DETACHED, Links::DETACHED);
        self.stock.seats.0.insert(Seat {
            waiter,
            queue,
            place,
            order,
            waiting,
            watching,
        })
    }

    /// A seat in a queue that has reservations to wait for.
    fn add_watch(&mut self, waiter: u32, place: u32, queue: u32) -> Option<u32> {
        let Queue { offers, pause, .. } = &self.stock.queues[queue];
        if offers.is_empty() || pause.output {
            return None;
        }
        let seat = self.add_seat(waiter, place, queue);
        self.waiters[waiter].watches += 1;
        let Stock { queues, seats, .. } = &mut self.stock;
        queues[queue]
            .watchers
            .push_back(&mut Watching(&mut seats.0), seat);
        Some(seat)
    }
}

fn manners_of(patience: Patience) -> Manners {
    match patience {
        Patience::Jobs | Patience::Try => Manners::Queue,
        Patience::None | Patience::Reserved => Manners::PushIn,
    }
}
