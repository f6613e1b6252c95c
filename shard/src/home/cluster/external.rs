//! New jobs go to other nodes while this one is short of memory: above level 0 an ADDJOB asks as many others for a copy as it wants copies, and
//! this node's own is given away, as by a node that leaves (`leaving`).
//!
//! | a job here is | what happens | until |
//! | --- | --- | --- |
//! | one whose ADDJOB waits | as many other nodes as it wants copies are asked; this one counts when they cannot, or are slow | they have confirmed |
//! | held by fewer others than it wants copies (ASYNC, or this node counted) | copies | they have confirmed |
//! | queued or delayed, and enough others can be reached that have it | it goes to one of them | that one says that it has it |
//! | a copy, and enough others can be reached that have it | Left to the others | - |
//! | with a consumer, or in a queue that is paused | it waits | - |
//! | RETRY 0 | it goes as a whole (`transfer`) to one node with memory to spare | that one says that it has it |
//!
//! So at no time after the reply are there fewer holders than were asked for. A job stays for good when the memory level falls, or no node with
//! memory to spare is left for it. Only ADDJOB begins this: what came from another node is never sent on because of memory, so nothing
//! goes round in circles.

use std::collections::{BTreeMap, BTreeSet};

use super::share::{self, Member};
use crate::clock::Mono;
use crate::commands::AddJob;
use crate::home::{Home, Job, Place, Queue};
use crate::id::JobId;
use crate::limits::{EXTERNAL, EXTERNAL_AGAIN_MAX_MS, EXTERNAL_AGAIN_MS, UPKEEP_STEP};
use crate::structures::NONE;

/// What an entry of the list costs: its places in two trees.
pub const OUTGOING_BYTES: u64 = (2 * size_of::<JobId>() + 2 * size_of::<Mono>() + 32) as u64;

/// Jobs that are to go to other nodes, and when each is looked at next. One that is gone meanwhile stays in it until then.
#[derive(Debug, Default)]
pub struct Outgoing {
    /// When, and how often it was looked at.
    jobs: BTreeMap<JobId, (Mono, u8)>,
    due: BTreeSet<(Mono, JobId)>,
}

impl Outgoing {
    pub fn len(&self) -> usize {
        self.jobs.len()
    }

    pub fn has(&self, id: &JobId) -> bool {
        self.jobs.contains_key(id)
    }

    fn plan(&mut self, id: JobId, at: Mono, looks: u8) {
        if let Some((before, _)) = self.jobs.insert(id, (at, looks)) {
            self.due.remove(&(before, id));
        }
        self.due.insert((at, id));
    }

    /// The next that is due leaves the list, with how often it was looked at.
    fn pop_due(&mut self, now: Mono) -> Option<(JobId, u8)> {
        let (_, id) = self.due.first().copied().filter(|(at, _)| *at <= now)?;
        self.due.pop_first();
        let (_, looks) = self.jobs.remove(&id).expect("both trees name the same");
        Some((id, looks))
    }

    /// Panics when something does not hold.
    pub fn check(&self) {
        assert_eq!(self.jobs.len(), self.due.len(), "each has its time");
        let has_time = |(id, (at, _)): (&JobId, &(Mono, u8))| self.due.contains(&(*at, *id));
        assert!(self.jobs.iter().all(has_time), "each has its time");
    }
}

impl Home {
    /// Whether a new job is to go to other nodes: memory is short here, and enough of them have some to spare.
    pub(crate) fn goes_out(&self, queue: &Queue, add: &AddJob) -> bool {
        self.memory.level() > 0
            && !self.peers.leaving
            && self.peers.epoch != 0
            && self.peers.roomy_count() >= add.replicate
            && !queue.pause.output
            && self.stock.outgoing.len() + self.adding.len() < EXTERNAL
    }

    /// Whether this node's copy of a job is here to stay.
    pub(super) fn keeps(&self, key: u32) -> bool {
        !self.peers.leaving && !self.stock.jobs[key].marks.goes_out()
    }

    /// The life of a job has begun that is to go to other nodes: that is seen to from now on.
    pub(crate) fn send_out(&mut self, now: Mono, key: u32) {
        let Job { id, marks, .. } = self.stock.jobs[key];
        if marks.goes_out() && !self.stock.outgoing.has(&id) {
            self.charge(OUTGOING_BYTES);
            self.stock.outgoing.plan(id, now, 0);
        }
    }

    /// When the next job is looked at.
    pub(in crate::home) fn outgoing_deadline(&self) -> Option<Mono> {
        self.stock.outgoing.due.first().map(|(at, _)| *at)
    }

    /// A step through those that are due.
    pub(super) fn step_outgoing(&mut self, now: Mono) {
        for _ in 0..UPKEEP_STEP {
            let Some((id, looks)) = self.stock.outgoing.pop_due(now) else {
                return;
            };
            if self.look_at_outgoing(now, &id) {
                let wait_ms = (EXTERNAL_AGAIN_MS << looks.min(16)).min(EXTERNAL_AGAIN_MAX_MS);
                let at = now.after_ms(wait_ms);
                self.stock.outgoing.plan(id, at, looks.saturating_add(1));
            } else {
                self.release(OUTGOING_BYTES);
            }
        }
    }

    /// Does what can be done now; false when the job is gone, or stays.
    fn look_at_outgoing(&mut self, now: Mono, id: &JobId) -> bool {
        let key = self.find_job(now, id);
        let Some(key) = key.filter(|&key| self.stock.jobs[key].marks.goes_out()) else {
            return false;
        };
        let Job { queue, place, .. } = self.stock.jobs[key];
        if place == Place::Away || self.stock.moves.contains_key(id) {
            return true;
        }
        if self.peers.leaving || self.memory.level() == 0 {
            return self.stays(now, key);
        }
        if self.stock.queues[queue].pause.any() {
            return true;
        }
        if self.stock.jobs[key].at_most_once() {
            self.send_out_once(now, key)
        } else {
            self.send_out_copy(now, key)
        }
    }

    /// A job with RETRY 0.
    fn send_out_once(&mut self, now: Mono, key: u32) -> bool {
        if self.stock.jobs[key].delivered || self.peers.roomy_count() == 0 {
            return self.stays(now, key);
        }
        if self.may_go(key)
            && let Some(to) = self.next_for_once(now, key, 0)
        {
            self.offer_transfer(now, key, to);
        }
        true
    }

    /// Any other job. It leaves when as many others have it as are to have it, and all of them can be reached.
    fn send_out_copy(&mut self, now: Mono, key: u32) -> bool {
        let Job { share, replicate, .. } = self.stock.jobs[key];
        let others = match share {
            NONE => share::Others::new(),
            share => self.stock.shares[share].others.clone(),
        };
        let sure = others
            .iter()
            .filter(|member| self.has_it_for_sure(member))
            .count() as u16;
        let wanted = u16::from(replicate).max(1);
        if sure >= wanted {
            self.give_away(now, key);
        } else if self.peers.roomy_count() < wanted {
            return self.stays(now, key);
        } else {
            let known = others.iter().filter(|member| member.confirmed).count() as u16;
            self.copy_beside(now, key, wanted + known - sure, false);
        }
        true
    }

    fn has_it_for_sure(&self, member: &Member) -> bool {
        let peer = self.peers.peer(member.peer);
        let is_whole = peer.epoch == member.epoch && !peer.leaving && !peer.lost;
        member.confirmed && is_whole && self.peers.is_reachable(member.peer)
    }

    /// The job is like all others of this node from now on.
    fn stays(&mut self, now: Mono, key: u32) -> bool {
        self.stock.jobs[key].marks.set_goes_out(false);
        self.count_on_this_node(now, key);
        false
    }

    /// This node's own copy counts for what was to lie on other nodes only.
    pub(super) fn count_on_this_node(&mut self, now: Mono, key: u32) {
        let share = self.stock.jobs[key].share;
        let share = self.stock.shares.get_mut(share).filter(|_| share != NONE);
        let copying = share.and_then(|share| share.copying.as_mut());
        if let Some(copying) = copying.filter(|copying| copying.external) {
            copying.external = false;
            copying.wanted -= 1;
            self.look_at_copies(now, key);
        }
    }
}
