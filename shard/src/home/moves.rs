//! The only places where a job changes its list: entering its queue, being held back, offered, handed out, taken out,
//! removed. Each is constant or logarithmic time and keeps list, place, timer and counts together.
//!
//! After a job has left a queue, `settle` looks whether somebody waited only for that; callers that take a job out of a
//! queue call it once the job has arrived elsewhere.

use super::job::Job;
use super::stock::Stock;
use super::waiter::{InQueue, InWaiter, OFFER_BYTES, Offer};
use super::{Home, Place};
use crate::bus::BusMessage;
use crate::clock::{Mono, SECOND_MS};
use crate::message::{Delivered, Handed};
use crate::structures::NONE;
use crate::structures::list::{Links, List};

/// Why a job enters its queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Entry {
    /// It is new.
    New,
    /// It is new, and had to wait for copies: the log has it already.
    Copied,
    /// It came from another node, or went there in vain: the log is told by others.
    Imported,
    /// Its delay or lease ended, or it was held back.
    Plain,
    /// ENQUEUE.
    Asked,
    /// NACK.
    Nack,
    /// It was handed out and never reached its client: nothing is counted.
    Undone,
}

impl Home {
    /// The life of a stored job begins: in its queue, or with its delay.
    pub(crate) fn begin_life(&mut self, now: Mono, key: u32) {
        if self.job(key).enters_at == Mono::NEVER {
            self.enter(now, key, Entry::New);
        } else {
            self.log_added(key);
        }
    }

    #[inline]
    pub(super) fn log_added(&mut self, key: u32) {
        if !self.journal.is_on() {
            return;
        }
        let job = &self.stock.jobs[key];
        let holders = self.holders_on_record(job);
        let queue = &self.stock.queues[job.queue].name;
        let counted = self.journal.added(job, key, queue, &holders);
        self.stock.jobs[key].marks.set_counted(counted);
    }

    /// Brings an active job into its queue, and serves the next waiter.
    pub(crate) fn enter(&mut self, now: Mono, key: u32, entry: Entry) {
        if self.stock.jobs[key].is_in_a_list() {
            self.detach(key);
        }
        let Stock {
            jobs, queues, lanes, ..
        } = &mut self.stock;
        let job = &mut jobs[key];
        let queue = &mut queues[job.queue];
        match entry {
            Entry::Nack => job.nacks = job.nacks.saturating_add(1),
            Entry::Plain | Entry::Asked if job.marks.entered_before() => {
                job.additional_deliveries = job.additional_deliveries.saturating_add(1);
            }
            Entry::New | Entry::Copied | Entry::Imported | Entry::Plain | Entry::Asked | Entry::Undone => {}
        }
        if entry != Entry::Undone {
            queue.jobs_in += 1;
            queue.touched_at = now;
        }
        job.marks.set_entered_before(true);
        job.enters_at = Mono::NEVER;
        job.place = Place::Queued;
        let (queue_key, share) = (job.queue, job.share);
        queue.jobs.push_ordered(jobs, lanes, key);
        self.stock.queued += 1;
        match entry {
            Entry::New => self.log_added(key),
            Entry::Plain | Entry::Copied | Entry::Imported => {}
            Entry::Asked | Entry::Nack => self.journal.changed(&self.stock.jobs[key]),
            Entry::Undone => self.journal.brought_back(&self.stock.jobs[key]),
        }
        if share != NONE {
            self.shared_entered(now, key, entry);
        }
        if self.stock.queues[queue_key].can_serve() {
            self.serve_next(now, queue_key);
        } else {
            self.may_export(queue_key);
        }
    }

    /// Brings an active job into its queue, or holds it back while that is paused.
    pub(crate) fn enter_when_open(&mut self, now: Mono, key: u32) {
        let queue = self.stock.jobs[key].queue;
        if self.stock.queues[queue].pause.input {
            self.keep_back(key);
        } else {
            self.enter(now, key, Entry::Plain);
        }
    }

    /// Keeps an active job until its queue is no longer paused.
    pub(super) fn keep_back(&mut self, key: u32) {
        self.detach(key);
        let Stock { jobs, queues, .. } = &mut self.stock;
        jobs[key].place = Place::Held;
        jobs[key].enters_at = Mono::NEVER;
        let queue = jobs[key].queue;
        queues[queue].held.push_back(jobs, key);
    }

    /// Hands a job out: from here on its lease runs. `place` is that of its queue in the command.
    pub(super) fn hand_out(&mut self, now: Mono, key: u32, place: u32) -> Delivered {
        self.detach(key);
        let Stock {
            jobs,
            queues,
            delivered,
            ..
        } = &mut self.stock;
        let job = &mut jobs[key];
        job.place = Place::Leased;
        job.delivered = true;
        job.deliveries = job.deliveries.wrapping_add(1);
        let queue = &mut queues[job.queue];
        queue.jobs_out += 1;
        queue.touched_at = now;
        let handed = describe(job, queue.name.clone(), place);
        let share = job.share;
        if job.at_most_once() {
            job.aside = (now.0 / SECOND_MS) as u32;
            delivered.push_back(jobs, key);
        } else {
            job.enters_at = now.after_ms(job.retry_ms());
            self.arm(key);
        }
        if self.journal.is_on() {
            self.journal.handed_out(&self.stock.jobs[key], key);
        }
        if share != NONE {
            self.shared_handed_out(now, key);
        }
        self.counters.delivered += 1;
        handed
    }

    /// A job that was handed out did not reach its client. Its delivery counter tells whether that is still its latest
    /// handing out; DEQUEUE, NACK and the like have moved it elsewhere.
    pub(super) fn put_back(&mut self, now: Mono, handed: Handed) {
        let Some(key) = self.find_job(now, &handed.id) else {
            return;
        };
        let Stock { jobs, queues, .. } = &mut self.stock;
        let job = &mut jobs[key];
        if job.place != Place::Leased || job.deliveries != handed.delivery {
            return;
        }
        job.delivered = !job.at_most_once();
        let queue = &mut queues[job.queue];
        queue.jobs_out = queue.jobs_out.saturating_sub(1);
        self.counters.undelivered_returned += 1;
        if queue.pause.input {
            job.marks.set_entered_before(false);
            self.keep_back(key);
            self.journal.brought_back(&self.stock.jobs[key]);
        } else {
            self.enter(now, key, Entry::Undone);
        }
    }

    /// Reserves a queued job for a waiter.
    pub(super) fn offer(&mut self, key: u32, place: u32, waiter: u32) {
        self.charge(OFFER_BYTES);
        self.reservations += 1;
        let Stock {
            jobs,
            queues,
            lanes,
            offers,
            ..
        } = &mut self.stock;
        let queue = &mut queues[jobs[key].queue];
        assert_eq!(
            jobs[key].place,
            Place::Queued,
            "only what is to be had is offered"
        );
        queue.jobs.remove(jobs, lanes, key);
        queue.reserved.push_ordered(jobs, lanes, key);
        let offer = offers.insert(Offer {
            job: key,
            waiter,
            place,
            reservation: self.reservations,
            in_queue: Links::DETACHED,
            in_waiter: Links::DETACHED,
        });
        jobs[key].place = Place::Reserved;
        jobs[key].aside = offer;
        queue.offers.push_back(&mut InQueue(offers), offer);
        self.waiters[waiter]
            .offers
            .push_back(&mut InWaiter(offers), offer);
    }

    /// Gives a reserved job back to its place in the queue, and serves the next waiter.
    pub(super) fn give_back(&mut self, now: Mono, key: u32) {
        assert_eq!(
            self.stock.jobs[key].place,
            Place::Reserved,
            "only what is reserved is given back"
        );
        self.detach(key);
        let Stock {
            jobs, queues, lanes, ..
        } = &mut self.stock;
        let queue = jobs[key].queue;
        jobs[key].place = Place::Queued;
        queues[queue].jobs.push_ordered(jobs, lanes, key);
        self.stock.queued += 1;
        if self.stock.queues[queue].can_serve() {
            self.serve_next(now, queue);
        } else {
            self.may_export(queue);
        }
        self.settle(queue);
    }

    /// Takes a queued job out of its queue: active, and back after a full RETRY. RETRY 0 comes back by ENQUEUE only.
    pub(crate) fn dequeue(&mut self, now: Mono, key: u32) {
        self.detach(key);
        if self.job(key).at_most_once() {
            self.journal.changed(&self.stock.jobs[key]);
        }
        self.postpone(now, key);
        self.settle(self.stock.jobs[key].queue);
    }

    /// Lets an active job with a RETRY enter its queue a full RETRY from now.
    pub(crate) fn postpone(&mut self, now: Mono, key: u32) {
        let job = &self.stock.jobs[key];
        if job.at_most_once() || job.place == Place::Waiting {
            return;
        }
        if job.place == Place::Held {
            self.detach(key);
        }
        let job = &mut self.stock.jobs[key];
        job.enters_at = now.after_ms(job.retry_ms());
        self.arm(key);
        self.journal.changed(&self.stock.jobs[key]);
        self.shared_postponed(now, key);
    }

    /// ACKJOB: the job is done.
    pub(crate) fn acknowledge(&mut self, now: Mono, key: u32) {
        if self.is_shared(key) {
            let ack = self.acknowledge_shared(now, key, None);
            return self.tell_ack(ack);
        }
        self.journal.acknowledged(self.stock.jobs[key].id, Vec::new);
        self.remove(key);
    }

    /// FASTACK: the job is done; other holders are told once.
    pub(crate) fn acknowledge_fast(&mut self, key: u32) {
        let Job { id, share, .. } = self.stock.jobs[key];
        self.journal.deleted(id);
        self.tell_all(share, |id| BusMessage::Delete { ids: vec![id] });
        self.remove(key);
    }

    /// DELJOB: the job is to be forgotten here; other holders are told that this node is none any more.
    pub(crate) fn delete(&mut self, key: u32) {
        let Job { id, share, .. } = self.stock.jobs[key];
        self.journal.deleted(id);
        if self.is_shared(key) {
            self.tell_all(share, |id| BusMessage::Left { id });
            self.remember_left(id);
        }
        self.remove(key);
    }

    /// Removes a job, wherever it is. Whether the log is to know is for the caller to say, before.
    pub(super) fn remove(&mut self, key: u32) {
        let Job { queue, place, .. } = self.stock.jobs[key];
        self.detach(key);
        self.discard_job(key);
        // Not after the removal of a job that was to be had: a pass over a waiter's queues does that, and may not lose its waiter.
        if place == Place::Reserved {
            self.settle(queue);
        }
    }

    /// Removes a job whose life is over.
    pub(super) fn expire(&mut self, now: Mono, key: u32) {
        let job = &self.stock.jobs[key];
        assert!(job.expires_at <= now, "no job expires early");
        // What was handed out at most once has done its duty: there is nothing left to lose.
        if !(job.at_most_once() && job.delivered) {
            self.counters.expired += 1;
        }
        self.journal.gone(self.stock.jobs[key].id);
        self.remove(key);
    }

    /// Takes a job out of the list it is in: it is `Idle` after this, until its caller says otherwise.
    pub(super) fn detach(&mut self, key: u32) {
        if self.stock.jobs[key].place == Place::Away {
            self.end_move(key);
        }
        let Stock {
            jobs,
            queues,
            lanes,
            delivered,
            queued,
            ..
        } = &mut self.stock;
        let job = &jobs[key];
        assert_eq!(
            job.links.is_linked(),
            job.is_in_a_list(),
            "a job is in the list that its place names"
        );
        let queue = &mut queues[job.queue];
        match job.place {
            Place::Idle | Place::Waiting | Place::Away => {}
            Place::Leased if job.at_most_once() => delivered.remove(jobs, key),
            Place::Leased => {}
            Place::Held => queue.held.remove(jobs, key),
            Place::Queued => {
                queue.jobs.remove(jobs, lanes, key);
                *queued -= 1;
            }
            Place::Reserved => {
                queue.reserved.remove(jobs, lanes, key);
                *queued -= 1;
                self.end_reservation(key);
            }
        }
        self.stock.jobs[key].place = Place::Idle;
    }

    fn end_reservation(&mut self, key: u32) {
        let Stock {
            jobs, queues, offers, ..
        } = &mut self.stock;
        let offer = std::mem::replace(&mut jobs[key].aside, NONE);
        queues[jobs[key].queue].offers.remove(&mut InQueue(offers), offer);
        let from: &mut List = &mut self.waiters[offers[offer].waiter].offers;
        from.remove(&mut InWaiter(offers), offer);
        offers.remove(offer);
        self.release(OFFER_BYTES);
    }

    /// Makes the timer of a job fire no later than its deadline. One that fires early is harmless and set anew then,
    /// so a deadline that moves away costs nothing.
    pub(super) fn arm(&mut self, key: u32) {
        let Stock { jobs, timers, .. } = &mut self.stock;
        let deadline = jobs[key].deadline();
        let timer = jobs[key].timer.expect("every job has a timer");
        if deadline.0 < timers.deadline_ms(timer) {
            timers.reschedule(timer, deadline.0);
        }
    }
}

/// A job as GETJOB and QPEEK give it.
pub(super) fn describe(job: &Job, queue: crate::wire::Blob, place: u32) -> Delivered {
    Delivered {
        place,
        queue,
        handed: Handed {
            id: job.id,
            delivery: job.deliveries,
        },
        body: job.body.clone(),
        nacks: job.nacks,
        additional_deliveries: job.additional_deliveries,
    }
}
