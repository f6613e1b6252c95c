//! Copies: asked for, sent again, confirmed; those that arrive; and the ADDJOBs that wait for them.
//!
//! ```text
//! ADDJOB REPLICATE 3:  Waiting, Copy to two nodes --- Copied from both ---> its life begins, Holders to all, the reply leaves
//!                          |  again_at: Copy to who has not confirmed, and to one node more
//!                          |  fewer nodes, and REPLICATE was not given: fewer will do
//!                          +--- timeout, client gone, deleted, log failed ---> Delete to all, -NOREPL
//! ASYNC, repair:       the same beside the job's life, without a reply
//! leaving, short of memory: Copy to as many others as copies are wanted; then this node's goes (`leaving`, `external`)
//! ```

use super::placement;
use super::share::{self, Copying, Others, SHARE_BYTES, Share};
use crate::bus::message::{JobCopy, Refusal};
use crate::bus::{BusMessage, PeerNo};
use crate::clock::{Mono, Now, SECOND_MS};
use crate::error::CommandError;
use crate::home::job::{JOB_BYTES, Job, Marks, copies_kept};
use crate::home::{Entry, Home, Place};
use crate::id::JobId;
use crate::limits::{
    COPIES_OVERDRAFT_BYTES, COPY_AGAIN_MAX_MS, COPY_AGAIN_MS, EXTERNAL_TRIES, LEFT, MAX_SECONDS,
};
use crate::message::{Answer, Ticket};
use crate::plant::{self, Plant};
use crate::slot::Slot;
use crate::structures::NONE;
use crate::structures::list::Links;

/// What an ADDJOB says about its copies.
#[derive(Clone, Copy, Debug)]
pub struct Terms {
    /// Copies on other nodes.
    pub wanted: u16,
    /// Fewer will do when there are fewer nodes.
    pub may_lower: bool,
    /// How long to wait for them; 0 is for ever.
    pub timeout_ms: u64,
    /// Whether the reply waits for them.
    pub asynchronous: bool,
}

impl Home {
    /// A new job, which is in no list yet, is to be copied to other nodes.
    pub(crate) fn begin_copies(&mut self, now: Mono, key: u32, ticket: Ticket, terms: Terms) -> Answer {
        let id = self.stock.jobs[key].id;
        let share = self.add_share(now, key, true);
        let waits = !terms.asynchronous;
        let ends_at = if terms.timeout_ms == 0 || !waits {
            Mono::NEVER
        } else {
            now.after_ms(terms.timeout_ms)
        };
        self.stock.shares[share].copying = Some(Box::new(Copying {
            ticket: waits.then_some(ticket),
            wanted: terms.wanted,
            may_lower: terms.may_lower,
            ends_at,
            again_at: now,
            tries: 0,
            external: self.stock.jobs[key].marks.goes_out(),
            apart: false,
        }));
        for _ in 0..terms.wanted {
            self.ask_one_more(share);
        }
        self.send_copies(now, share);
        if !waits {
            self.begin_life(now, key);
            self.count_hosts(share);
            self.send_out(now, key);
            return Answer::Id(id);
        }
        let queue = self.stock.jobs[key].queue;
        self.stock.jobs[key].place = Place::Waiting;
        self.stock.queues[queue].adding += 1;
        self.log_added(key);
        // Its reply takes this need when it leaves.
        self.journal.take_need();
        self.adding.insert(ticket, key);
        // Nodes may have gone since the request was checked.
        self.lower_copies(now, share);
        Answer::Waiting
    }

    /// Gives a job a share.
    pub(super) fn add_share(&mut self, now: Mono, key: u32, mine: bool) -> u32 {
        assert_eq!(self.stock.jobs[key].share, NONE, "a job has one share");
        self.charge(SHARE_BYTES);
        let share = self.stock.shares.insert(Share::new(key, now, mine));
        self.stock.jobs[key].share = share;
        share
    }

    /// The share of a job, made when there is none: then the job was this node's alone.
    pub(super) fn share_of(&mut self, now: Mono, key: u32) -> u32 {
        match self.stock.jobs[key].share {
            NONE => self.add_share(now, key, true),
            share => share,
        }
    }

    /// A job leaves this node, its share with it. An ADDJOB that waits for it ends.
    pub(in crate::home) fn drop_share(&mut self, key: u32) {
        let share = std::mem::replace(&mut self.stock.jobs[key].share, NONE);
        if share == NONE {
            return;
        }
        self.end_adding(key, share, Err(CommandError::RemovedWhileReplicating));
        let share = self.stock.shares.remove(share);
        self.stock.on_one_host -= u64::from(share.on_one_host);
        if let Some(timer) = share.timer {
            self.stock.cluster_timers.cancel(timer);
        }
        self.release(SHARE_BYTES);
    }

    /// Sets the timer of a share.
    pub(super) fn arm_share(&mut self, key: u32) {
        let share = &mut self.stock.shares[key];
        let deadline = share.deadline();
        match share.timer {
            Some(timer) if deadline.0 < self.stock.cluster_timers.deadline_ms(timer) => {
                self.stock.cluster_timers.reschedule(timer, deadline.0);
            }
            None if deadline != Mono::NEVER => {
                share.timer = Some(self.stock.cluster_timers.insert(deadline.0, key));
            }
            _ => {}
        }
    }

    /// The other holders of a job changed, or whether it lives: whether its copies all lie on one host.
    pub(super) fn count_hosts(&mut self, share: u32) {
        let entry = &mut self.stock.shares[share];
        let job = &self.stock.jobs[entry.job];
        let is_one = job.replicate > 1
            && job.place != Place::Waiting
            && placement::is_on_one_host(&self.peers, &entry.others);
        let was_one = std::mem::replace(&mut entry.on_one_host, is_one);
        self.stock.on_one_host = self.stock.on_one_host + u64::from(is_one) - u64::from(was_one);
    }

    /// The other holders of a job.
    pub(crate) fn others_of_job(&self, key: u32) -> &[share::Member] {
        match self.stock.jobs[key].share {
            NONE => &[],
            share => &self.stock.shares[share].others,
        }
    }

    /// Chooses one node more; false when there is none.
    fn ask_one_more(&mut self, share: u32) -> bool {
        let keeps = self.keeps(self.stock.shares[share].job);
        let Share {
            job, others, copying, ..
        } = &mut self.stock.shares[share];
        let id = self.stock.jobs[*job].id;
        let next = match copying {
            Some(copying) if copying.apart => placement::next_apart,
            _ => placement::next,
        };
        let Some(peer) = next(&self.peers, keeps, others, &id) else {
            return false;
        };
        share::note(others, peer, self.peers.peer(peer).epoch, false);
        true
    }

    /// Sends copies to those that were asked and have not confirmed, and says when that is done again.
    pub(super) fn send_copies(&mut self, now: Mono, key: u32) {
        let Share { job, others, .. } = &self.stock.shares[key];
        let job = *job;
        let missing: Vec<PeerNo> = others
            .iter()
            .filter(|member| !member.confirmed && self.peers.is_reachable(member.peer))
            .map(|member| member.peer)
            .collect();
        for &peer in &missing {
            let copy = Box::new(self.copy_of(now, job));
            let wants_answer = true;
            self.peers.send(peer, BusMessage::Copy { copy, wants_answer });
            self.counters.copies_sent += 1;
        }
        let rtt_ms = missing
            .iter()
            .map(|&peer| self.peers.rtt_ms(peer))
            .max()
            .unwrap_or(1);
        let share = &mut self.stock.shares[key];
        let Some(copying) = &mut share.copying else { return };
        let wait_ms = (COPY_AGAIN_MS.max(4 * rtt_ms)) << copying.tries.min(8);
        let most_ms = if copying.ticket.is_some() {
            SECOND_MS
        } else {
            COPY_AGAIN_MAX_MS
        };
        copying.again_at = now.after_ms(wait_ms.min(most_ms));
        self.arm_share(key);
    }

    /// A job as it travels.
    pub(super) fn copy_of(&self, now: Mono, key: u32) -> JobCopy {
        let job = &self.stock.jobs[key];
        let members = match job.share {
            NONE => share::members(&Others::new(), &self.peers, true),
            share => share::members(&self.stock.shares[share].others, &self.peers, true),
        };
        let enters = if job.enters_at == Mono::NEVER {
            now
        } else {
            job.enters_at
        };
        JobCopy {
            id: job.id,
            queue: self.stock.queues[job.queue].name.clone(),
            body: job.body.clone(),
            ctime: job.ctime,
            ttl_left_ms: job.expires_at.since_ms(now),
            delay_left_ms: enters.since_ms(now),
            ttl_s: job.ttl_s,
            retry_s: job.retry_s,
            delay_s: job.delay_s,
            replicate: job.replicate.into(),
            nacks: job.nacks,
            additional_deliveries: job.additional_deliveries,
            deliveries: job.deliveries,
            members,
        }
    }

    /// The time has come to send copies again: to one node more, too.
    pub(super) fn copy_again(&mut self, now: Mono, key: u32) {
        let share = &mut self.stock.shares[key];
        let job = share.job;
        let Some(copying) = &mut share.copying else { return };
        let is_over = copying.ends_at <= now;
        if !is_over && copying.again_at > now {
            return;
        }
        copying.tries += u32::from(!is_over);
        if copying.ticket.is_some() && (is_over || copying.tries > EXTERNAL_TRIES) {
            self.count_on_this_node(now, job);
        }
        let keeps = self.keeps(job);
        let share = &mut self.stock.shares[key];
        let Some(copying) = &mut share.copying else { return };
        if is_over && copying.ticket.is_some() {
            return self.give_up_adding(job, CommandError::ReplicationTimeout);
        }
        if copying.apart && !placement::could_be_apart(&self.peers, keeps, &share.others) {
            // Who could have taken it is gone.
            share.copying = None;
            return;
        }
        // Those that have gone are asked no more; a node more is asked for each time of waiting.
        self.ask_one_more(key);
        self.send_copies(now, key);
        self.lower_copies(now, key);
    }

    /// An ADDJOB that did not say how many copies it wants is content with what there can be.
    pub(super) fn lower_copies(&mut self, now: Mono, key: u32) {
        let at_most = self
            .peers
            .reachable_count()
            .max(self.min_replicate.saturating_sub(1));
        let Share { job, copying, .. } = &self.stock.shares[key];
        let (job, wanted) = (*job, copying.as_ref().map_or(0, |copying| copying.wanted));
        if wanted > self.peers.reachable_count() {
            self.count_on_this_node(now, job);
        }
        let share = &mut self.stock.shares[key];
        let Some(copying) = share.copying.as_mut().filter(|copying| copying.may_lower) else {
            return;
        };
        if copying.wanted > at_most {
            copying.wanted = at_most;
            self.counters.added_below_3_copies += 1;
        }
        self.look_at_copies(now, job);
    }

    /// Whether there are enough copies now.
    pub(super) fn look_at_copies(&mut self, now: Mono, key: u32) {
        let share_key = self.stock.jobs[key].share;
        let share = &mut self.stock.shares[share_key];
        if share
            .copying
            .as_ref()
            .is_none_or(|copying| share.confirmed() < copying.wanted)
        {
            return;
        }
        let waits = share.ticket().is_some();
        if waits {
            self.end_adding(key, share_key, Ok(()));
        }
        self.end_copying(key, share_key);
        self.tell_holders(key, share_key);
        self.journal.holders(self.stock.jobs[key].id, || {
            share::recorded(&self.stock.shares[share_key].others, &self.peers)
        });
        if waits {
            self.begin_copied_life(now, key);
        }
    }

    /// There are enough copies. When all lie on one host and a node on another one could take one, that one is asked beside the job's life.
    fn end_copying(&mut self, key: u32, share_key: u32) {
        let keeps = self.keeps(key);
        let share = &mut self.stock.shares[share_key];
        let wanted = share.confirmed() + 1;
        let job = &self.stock.jobs[key];
        if job.replicate < 2 || !placement::could_be_apart(&self.peers, keeps, &share.others) {
            share.copying = None;
            return;
        }
        let copying = share.copying.as_mut().expect("copies were on their way");
        copying.wanted = wanted;
        (copying.ticket, copying.ends_at) = (None, Mono::NEVER);
        (copying.may_lower, copying.external, copying.apart) = (false, false, true);
        let is_asked = |member: &share::Member| !member.confirmed && self.peers.is_reachable(member.peer);
        if !share.others.iter().any(is_asked) {
            // Nobody is on the way: the next is asked now.
            copying.again_at = Mono::default();
            self.arm_share(share_key);
        }
    }

    /// All holders learn who the others are. One that was asked by this node alone knows already.
    fn tell_holders(&mut self, key: u32, share: u32) {
        let others = &self.stock.shares[share].others;
        if others.len() < 2 {
            return;
        }
        let id = self.stock.jobs[key].id;
        let members = share::members(others, &self.peers, true);
        for member in others {
            let members = members.clone();
            self.peers.send(member.peer, BusMessage::Holders { id, members });
        }
    }

    /// The life of a job begins that has waited for its copies; it is in the log already.
    fn begin_copied_life(&mut self, now: Mono, key: u32) {
        let job = &mut self.stock.jobs[key];
        job.place = Place::Idle;
        self.count_hosts(self.stock.jobs[key].share);
        self.send_out(now, key);
        let job = &mut self.stock.jobs[key];
        if job.enters_at > now && job.enters_at != Mono::NEVER {
            return self.arm(key);
        }
        if self.stock.queues[job.queue].pause.input {
            self.keep_back(key);
        } else {
            self.enter(now, key, Entry::Copied);
        }
    }

    /// The ADDJOB of a job ends, if one waits.
    pub(in crate::home) fn end_adding(&mut self, key: u32, share: u32, result: Result<(), CommandError>) {
        let Some(ticket) = self.stock.shares[share]
            .copying
            .as_mut()
            .and_then(|copying| copying.ticket.take())
        else {
            return;
        };
        let Job { queue, id, ctime, .. } = self.stock.jobs[key];
        self.adding.remove(&ticket);
        self.stock.queues[queue].adding -= 1;
        match result {
            Ok(()) => {
                let others = self.journal.take_need();
                self.journal.needs_added(ctime);
                self.end(ticket, Answer::Id(id));
                self.journal.restore_need(others);
            }
            Err(error) => self.end_beside(ticket, Answer::Error(error)),
        }
    }

    /// An ADDJOB ends without success: its job goes, here and, as far as can be, elsewhere.
    pub(in crate::home) fn give_up_adding(&mut self, key: u32, error: CommandError) {
        let Job { share, id, .. } = self.stock.jobs[key];
        self.tell_all(share, |id| BusMessage::Delete { ids: vec![id] });
        self.end_adding(key, share, Err(error));
        self.journal.gone(id);
        self.counters.added = self.counters.added.saturating_sub(1);
        self.counters.copies_failed += 1;
        self.remove(key);
    }

    /// An ADDJOB whose client is gone, or that is given up: whether it was one that waits for copies.
    pub(in crate::home) fn cancel_adding(&mut self, ticket: Ticket) -> bool {
        let Some(&key) = self.adding.get(&ticket) else {
            return false;
        };
        self.give_up_adding(key, CommandError::RemovedWhileReplicating);
        true
    }

    /// Says the same to all other holders of a job.
    pub(in crate::home) fn tell_all(&mut self, share: u32, message: impl Fn(JobId) -> BusMessage) {
        if share == NONE {
            return;
        }
        let Share { job, others, .. } = &self.stock.shares[share];
        let id = self.stock.jobs[*job].id;
        for member in others {
            self.peers.send(member.peer, message(id));
        }
    }

    /// Copy: another node wants this one to hold a job.
    pub(super) fn on_copy(&mut self, now: Now, from: PeerNo, epoch: u64, copy: JobCopy, wants_answer: bool) {
        let id = copy.id;
        if plant::active(Plant::LostCopy) {
            return self.peers.send(from, BusMessage::Copied { id });
        }
        if self.tell_if_acked(from, &id) {
            return;
        }
        let (key, is_new) = match self.find_job(now.mono(), &id) {
            Some(key) => (key, false),
            None => match self.take_copy(now, &copy) {
                Ok(Some(key)) => (key, true),
                Ok(None) => return,
                Err(why) => {
                    self.counters.copies_refused += 1;
                    return self.peers.send(from, BusMessage::Refused { id, why });
                }
            },
        };
        let share = self.share_of(now.mono(), key);
        let others = &mut self.stock.shares[share].others;
        share::note_all(others, &self.peers, &copy.members);
        share::note(others, from, epoch, true);
        self.count_hosts(share);
        if is_new {
            self.stock.shares[share].mine = false;
            self.log_copy(key);
        }
        self.plan_question(now.mono(), key);
        if wants_answer {
            self.journal.take_need();
            self.journal.needs_copy(key);
            self.say(from, BusMessage::Copied { id });
        }
    }

    /// Makes the job of a copy, in no list and not in the log yet; none when its life is over, or it makes no sense.
    pub(super) fn take_copy(&mut self, now: Now, copy: &JobCopy) -> Result<Option<u32>, Refusal> {
        let limit_ms = MAX_SECONDS * SECOND_MS;
        if Slot::of_queue(&copy.queue) != copy.id.slot()
            || copy.ttl_left_ms == 0
            || copy.ttl_left_ms > limit_ms
        {
            return Ok(None);
        }
        if self.peers.leaving {
            return Err(Refusal::Leaving);
        }
        let (name, body) = (copy.queue.heap_bytes() as u64, copy.body.heap_bytes() as u64);
        let bytes = JOB_BYTES + SHARE_BYTES + name + body;
        if !self.memory.admit(bytes.saturating_sub(COPIES_OVERDRAFT_BYTES)) {
            return Err(Refusal::Memory);
        }
        if self.journal.refuses_copy(copy.queue.len() + copy.body.len()) {
            return Err(Refusal::Log);
        }
        let mono = now.mono();
        let queue = self.find_or_create_queue(mono, &copy.queue);
        let lease_ms = u64::from(copy.retry_s) * SECOND_MS;
        let enters_at = match copy.retry_s {
            0 => Mono::NEVER,
            _ => mono.after_ms(copy.delay_left_ms.min(limit_ms) + lease_ms + super::GRACE_MS),
        };
        let key = self.insert_job(Job {
            id: copy.id,
            ctime: copy.ctime,
            expires_at: mono.after_ms(copy.ttl_left_ms),
            enters_at,
            body: copy.body.clone(),
            links: Links::DETACHED,
            queue,
            timer: None,
            aside: NONE,
            share: NONE,
            ttl_s: copy.ttl_s,
            retry_s: copy.retry_s,
            delay_s: copy.delay_s,
            nacks: copy.nacks,
            additional_deliveries: copy.additional_deliveries,
            deliveries: copy.deliveries,
            replicate: copies_kept(copy.replicate),
            place: Place::Idle,
            delivered: false,
            marks: Marks::copied(),
        });
        self.counters.copies_taken += 1;
        Ok(Some(key))
    }

    /// A copy is written to the log.
    pub(super) fn log_copy(&mut self, key: u32) {
        if self.journal.is_on() {
            let job = &self.stock.jobs[key];
            let holders = self.holders_on_record(job);
            self.journal
                .copied(job, key, &self.stock.queues[job.queue].name, &holders);
        }
    }

    /// Copied: a node has it.
    pub(super) fn on_copied(&mut self, now: Now, from: PeerNo, epoch: u64, id: JobId) {
        if self.tell_if_acked(from, &id) {
            return;
        }
        let Some(key) = self.find_job(now.mono(), &id) else {
            return;
        };
        let share = self.share_of(now.mono(), key);
        // Who is not among those that were asked has left since: what it says is old.
        let others = &mut self.stock.shares[share].others;
        let is_asked = others.iter().any(|member| member.peer == from);
        if is_asked && share::note(others, from, epoch, true) {
            self.count_hosts(share);
            self.look_at_copies(now.mono(), key);
        }
    }

    /// Refused: another node is asked at once.
    pub(super) fn on_refused(&mut self, now: Now, from: PeerNo, id: JobId) {
        let Some(key) = self.find_job(now.mono(), &id) else {
            return;
        };
        let share = self.stock.jobs[key].share;
        if share == NONE {
            return;
        }
        let is_asked = |member: &share::Member| member.peer == from && !member.confirmed;
        if self.stock.shares[share].others.iter().any(is_asked) && self.stock.shares[share].copying.is_some()
        {
            // The one that refused stays among those that were asked until another is found, so that it is not asked again.
            let found = self.ask_one_more(share);
            if found {
                self.stock.shares[share].others.retain(|member| !is_asked(member));
                self.send_copies(now.mono(), share);
            } else {
                self.count_on_this_node(now.mono(), key);
            }
        }
    }

    /// Holders: who else has it.
    pub(super) fn on_holders(&mut self, now: Now, id: JobId, members: &crate::bus::message::Members) {
        let Some(key) = self.find_job(now.mono(), &id) else {
            return;
        };
        let share = self.share_of(now.mono(), key);
        if share::note_all(&mut self.stock.shares[share].others, &self.peers, members) {
            self.count_hosts(share);
            self.journal.holders(id, || {
                share::recorded(&self.stock.shares[share].others, &self.peers)
            });
        }
        self.plan_question(now.mono(), key);
    }

    /// Remembers that a job was dropped here while others hold it: "unknown" would mean that it is done.
    pub(in crate::home) fn remember_left(&mut self, id: JobId) {
        if self.left.insert(id) {
            self.left_order.push_back(id);
            if self.left_order.len() > LEFT {
                let oldest = self.left_order.pop_front().expect("there are many");
                self.left.remove(&oldest);
            }
        }
    }

    /// A holder is none any more.
    pub(super) fn on_left(&mut self, now: Now, from: PeerNo, id: JobId) {
        let Some(key) = self.find_job(now.mono(), &id) else {
            return;
        };
        let share = self.stock.jobs[key].share;
        if share != NONE {
            self.stock.shares[share]
                .others
                .retain(|member| member.peer != from);
            self.count_hosts(share);
            self.journal.holders(id, || {
                share::recorded(&self.stock.shares[share].others, &self.peers)
            });
            // There may have been too few other nodes for another copy; there will be one.
            if self.peers.peer(from).leaving {
                self.repair_share(now.mono(), share);
            }
        }
    }

    /// Delete: the job is gone everywhere.
    pub(super) fn on_delete(&mut self, now: Now, ids: &[JobId]) {
        for id in ids {
            self.forget_ack(id);
            self.transfers.forget_wants(id);
            if let Some(key) = self.find_job(now.mono(), id) {
                self.journal.gone(*id);
                self.remove(key);
            }
        }
    }
}
