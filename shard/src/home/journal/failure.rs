//! Entries that did not reach the log: what they told of is undone, or at least not told.

use std::collections::VecDeque;

use super::{Fresh, Held, Need, Populating};
use crate::bus::BusMessage;
use crate::clock::{Mono, Now};
use crate::error::CommandError;
use crate::home::waiter::Phase;
use crate::home::{Home, Place};
use crate::log::Position;
use crate::message::{Answer, Delivered, Manner, Ticket};
use crate::structures::NONE;

impl Home {
    /// These entries are not in the log: what they told of is undone, or at least not told.
    pub(super) fn log_failed(&mut self, now: Now, from: Position, to: Position, reason: &str) {
        let failed = |position: Position| from <= position && position <= to;
        if self.journal.populating.is_some() || self.journal.populated.is_some_and(failed) {
            self.journal.populating = Some(Populating::from_the_start(true));
            self.journal.populated = None;
        }
        if !self.journal.gates {
            return;
        }
        let misconf = || CommandError::Misconf(format!("Errors writing to the log: {reason}"));
        let fresh = std::mem::take(&mut self.journal.fresh);
        let (lost, kept): (VecDeque<Fresh>, _) = fresh.into_iter().partition(|fresh| failed(fresh.position));
        self.journal.fresh = kept;
        let copies = std::mem::take(&mut self.journal.fresh_copies);
        let (lost_copies, kept): (VecDeque<Fresh>, _) =
            copies.into_iter().partition(|fresh| failed(fresh.position));
        self.journal.fresh_copies = kept;
        for Fresh { ctime, key, position } in lost_copies {
            if self.journal.copies.get(&key) == Some(&position) {
                self.journal.copies.remove(&key);
            }
            if self.stock.jobs.0.get(key).is_some_and(|job| job.ctime == ctime) {
                self.remove(key);
            }
        }
        for name in self.journal.transfers.failed(failed) {
            self.forget_answer(&name);
        }
        for Fresh { ctime, key, .. } in lost {
            if self.stock.jobs.0.get(key).is_some_and(|job| job.ctime == ctime) {
                let share = self.stock.jobs[key].share;
                if share != NONE {
                    self.tell_all(share, |id| BusMessage::Delete { ids: vec![id] });
                    self.end_adding(key, share, Err(misconf()));
                }
                self.counters.added = self.counters.added.saturating_sub(1);
                self.remove(key);
            }
        }
        self.remote.log_failed(from, to, &misconf());
        for list in 0..self.journal.waiting.len() {
            for mut waiting in std::mem::take(&mut self.journal.waiting[list]) {
                let hit = waiting.need.is_some_and(|need| need.touches(from, to));
                if hit {
                    waiting.need = None;
                    match &mut waiting.held {
                        Held::Answer(ticket, Answer::Jobs(jobs)) => {
                            let (ticket, handed) = (*ticket, std::mem::take(jobs));
                            let (jobs, need) = self.still_handed_out(now, handed);
                            if jobs.is_empty() {
                                self.ends.push(Held::Answer(ticket, Answer::Jobs(jobs)));
                                self.wait_again(now.mono(), ticket);
                                continue;
                            }
                            waiting.need = need;
                            waiting.held = Held::Answer(ticket, Answer::Jobs(jobs));
                        }
                        Held::Transfer(id, hop) => {
                            let (id, hop) = (*id, *hop);
                            self.transfer_failed(now.mono(), id, hop);
                            continue;
                        }
                        // It will be asked for again, or nobody was to know.
                        Held::Bus(..) => continue,
                        Held::Answer(_, answer) => *answer = Answer::Error(misconf()),
                        Held::Change(_, result) => *result = Err(misconf()),
                    }
                }
                self.journal.waiting[list].push_back(waiting);
            }
        }
    }

    /// Of jobs whose handing out is in doubt those that may go on; the RETRY 0 ones return to their queues.
    fn still_handed_out(&mut self, now: Now, mut jobs: Vec<Delivered>) -> (Vec<Delivered>, Option<Need>) {
        let mut need: Option<Need> = None;
        jobs.retain(|delivered| {
            let handed = delivered.handed;
            let Some(key) = self.find_job(now.mono(), &handed.id) else {
                return false;
            };
            let job = &self.stock.jobs[key];
            if job.at_most_once() {
                self.put_back(now.mono(), handed);
                return false;
            }
            let is_handed_out = job.place == Place::Leased && job.deliveries == handed.delivery;
            if is_handed_out && let Some(position) = self.journal.fresh_position(job.ctime) {
                need = Some(Need::of(position).and(need));
            }
            is_handed_out
        });
        (jobs, need)
    }

    /// A claim that gave nothing after all: the request goes on as if it had been refused.
    fn wait_again(&mut self, now: Mono, ticket: Ticket) {
        if let Some(&waiter) = self.tickets.get(&ticket)
            && self.waiters[waiter].manner == Manner::Offer
        {
            self.waiters[waiter].phase = Phase::Offered;
            if self.waiters[waiter].offers.is_empty() {
                self.wait_on(now, waiter);
            }
        }
    }
}
