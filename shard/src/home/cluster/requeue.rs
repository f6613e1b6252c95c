//! Who of the holders queues a job, and when (`cluster.md`, Lease and requeue).
//!
//! Each holder has a deadline of its own, `enters_at`. The one that added, queued or handed out the job last (`mine`) keeps to it; the others'
//! lie a grace behind. Near it a holder asks the others who has the job; at it, it queues the job unless somebody has it: the one whose it is
//! at once, the others one grace later for each holder of lower rank. Who queues a job says so; of two that did, the lower rank wins.

use super::share::{self, Others};
use crate::bus::message::Standing;
use crate::bus::{BusMessage, PeerNo, PeerState};
use crate::clock::{Mono, Now};
use crate::home::{Entry, Home, Job, Place};
use crate::id::JobId;
use crate::limits::ASK_TRIES;
use crate::plant::{self, Plant};
use crate::structures::NONE;

impl Home {
    /// The time by which other holders' deadlines lie behind, and by which they are asked ahead, milliseconds.
    pub(super) fn grace_ms(&self, share: u32) -> u64 {
        let others = &self.stock.shares[share].others;
        let rtt_ms = others.iter().map(|member| self.peers.rtt_ms(member.peer)).max();
        super::GRACE_MS.max(4 * rtt_ms.unwrap_or(1))
    }

    /// Sets when the others are asked about a job: before its deadline comes, if it has one.
    pub(super) fn plan_question(&mut self, now: Mono, key: u32) {
        let Job {
            share,
            place,
            enters_at,
            retry_s,
            ..
        } = self.stock.jobs[key];
        if share == NONE {
            return;
        }
        let has_deadline =
            matches!(place, Place::Idle | Place::Leased) && enters_at != Mono::NEVER && retry_s > 0;
        let grace_ms = self.grace_ms(share);
        let share_ref = &mut self.stock.shares[share];
        if has_deadline && !share_ref.others.is_empty() {
            if share_ref.asked == 0 {
                share_ref.ask_at = Mono(enters_at.0.saturating_sub(grace_ms)).max(now);
            }
        } else {
            share_ref.ask_at = Mono::NEVER;
            share_ref.asked = 0;
        }
        self.arm_share(share);
    }

    /// The deadline of a job is another now.
    pub(super) fn new_deadline(&mut self, now: Mono, key: u32, enters_at: Mono, mine: bool) {
        let job = &mut self.stock.jobs[key];
        job.enters_at = enters_at;
        let share = job.share;
        self.arm(key);
        if share != NONE {
            let share = &mut self.stock.shares[share];
            (share.mine, share.ranked, share.rejoins, share.asked) = (mine, false, false, 0);
            share.others.iter_mut().for_each(|member| member.heard = false);
            self.plan_question(now, key);
        }
    }

    /// The others are asked, when it is time, a few times.
    pub(super) fn ask_again(&mut self, now: Mono, key: u32) {
        let share = &self.stock.shares[key];
        if share.ask_at > now {
            return;
        }
        let job = share.job;
        let id = self.stock.jobs[job].id;
        let wait_ms = self.grace_ms(key) / (u64::from(ASK_TRIES) + 1);
        let share = &mut self.stock.shares[key];
        share.asked += 1;
        share.ask_at = if share.asked < ASK_TRIES {
            now.after_ms(wait_ms)
        } else {
            Mono::NEVER
        };
        let open: Others = share
            .others
            .iter()
            .filter(|member| !member.heard)
            .copied()
            .collect();
        for member in open {
            let counted = if member.confirmed { member.epoch } else { 0 };
            self.say_of(job, member.peer, BusMessage::WillQueue { id, counted });
        }
        self.arm_share(key);
    }

    /// The deadline of a job has come that others may hold too: whether it enters its queue now.
    pub(in crate::home) fn enters_now(&mut self, now: Mono, key: u32) -> bool {
        let Job { share, id, .. } = self.stock.jobs[key];
        if share == NONE {
            return true;
        }
        let grace_ms = self.grace_ms(share);
        let behind = share::place(&self.stock.shares[share].others, &self.peers, &id);
        let share = &mut self.stock.shares[share];
        if share.mine || share.ranked || behind == 0 {
            return true;
        }
        share.ranked = true;
        self.stock.jobs[key].enters_at = now.after_ms(grace_ms * behind);
        false
    }

    /// A job was handed out: the others' deadlines begin anew, unless they are near enough.
    pub(in crate::home) fn shared_handed_out(&mut self, now: Mono, key: u32) {
        let Job {
            share,
            retry_s,
            deliveries,
            id,
            ..
        } = self.stock.jobs[key];
        let retry_ms = self.stock.jobs[key].retry_ms();
        if share == NONE || retry_s == 0 {
            return;
        }
        let told_at = self.stock.shares[share].told_at;
        let near_enough = now.since_ms(told_at) < retry_ms / 10;
        if !near_enough {
            self.stock.shares[share].told_at = now;
            let need = self.journal.last_entry();
            let to: Vec<PeerNo> = self.stock.shares[share]
                .others
                .iter()
                .map(|member| member.peer)
                .collect();
            for peer in to {
                self.say_when(
                    need,
                    peer,
                    BusMessage::Leased {
                        id,
                        left_ms: retry_ms,
                        deliveries,
                    },
                );
            }
        }
        let enters_at = self.stock.jobs[key].enters_at;
        self.new_deadline(now, key, enters_at, true);
    }

    /// A job was postponed here.
    pub(in crate::home) fn shared_postponed(&mut self, now: Mono, key: u32) {
        let Job {
            id,
            share,
            deliveries,
            enters_at,
            ..
        } = self.stock.jobs[key];
        if share == NONE {
            return;
        }
        self.stock.shares[share].told_at = now;
        let left_ms = enters_at.since_ms(now);
        let message = BusMessage::Leased {
            id,
            left_ms,
            deliveries,
        };
        self.say_to_all_of(key, &message);
        self.new_deadline(now, key, enters_at, true);
    }

    /// A job entered its queue here, not for the first time.
    pub(in crate::home) fn shared_entered(&mut self, now: Mono, key: u32, entry: Entry) {
        let Job {
            id,
            share,
            nacks,
            additional_deliveries,
            ..
        } = self.stock.jobs[key];
        if share == NONE {
            return;
        }
        let is_first = matches!(entry, Entry::New | Entry::Copied);
        let entry = &mut self.stock.shares[share];
        (entry.mine, entry.ranked, entry.rejoins, entry.asked) = (true, false, false, 0);
        entry.ask_at = Mono::NEVER;
        entry.requeued = !is_first;
        if !is_first {
            entry.told_at = now;
            let message = BusMessage::Queued {
                id,
                nacks,
                additional_deliveries,
            };
            self.say_to_all_of(key, &message);
        }
    }

    /// A step through the shares after a node came back: of two nodes that queued a job while they could not hear each other, one gives way; and
    /// jobs that wait since this node started are asked about again, since it may have been the one that was not there.
    pub(super) fn step_queued(&mut self, now: Mono) {
        let Some(from) = self.queued_sweep else { return };
        let step = crate::limits::UPKEEP_STEP as u32;
        let (mut told, mut rejoining) = (Vec::new(), Vec::new());
        for (key, share) in self.stock.shares.iter_from(from, step) {
            let Job {
                id,
                nacks,
                additional_deliveries,
                ..
            } = self.stock.jobs[share.job];
            if share.rejoins {
                rejoining.push(key);
            }
            if share.requeued && self.stock.jobs[share.job].is_queued() {
                for member in &share.others {
                    let message = BusMessage::Queued {
                        id,
                        nacks,
                        additional_deliveries,
                    };
                    told.push((share.job, member.peer, message));
                }
            }
        }
        for key in rejoining {
            let share = &mut self.stock.shares[key];
            (share.asked, share.ask_at) = (0, now);
            self.arm_share(key);
        }
        for (job, peer, message) in told {
            self.say_of(job, peer, message);
        }
        let next = from.saturating_add(step);
        self.queued_sweep = (next < self.stock.shares.high_water()).then_some(next);
    }

    /// Leased: another node handed it out.
    pub(super) fn on_leased(
        &mut self,
        now: Now,
        from: PeerNo,
        epoch: u64,
        id: JobId,
        left_ms: u64,
        deliveries: u32,
    ) {
        let Some(key) = self.know(now, from, epoch, id) else {
            return;
        };
        let job = &mut self.stock.jobs[key];
        job.deliveries = job.deliveries.max(deliveries);
        match job.place {
            // Both have consumers at work on it: each lease stands, and whose ends first asks before it queues.
            Place::Leased | Place::Waiting | Place::Away => {}
            Place::Idle | Place::Queued | Place::Reserved | Place::Held => {
                self.leave_to(now.mono(), key, left_ms)
            }
        }
    }

    /// The job is another node's for so long.
    pub(super) fn leave_to(&mut self, now: Mono, key: u32, left_ms: u64) {
        let Job {
            share, place, queue, ..
        } = self.stock.jobs[key];
        let was_queued = matches!(
            place,
            Place::Queued | Place::Reserved | Place::Held | Place::Leased
        );
        if was_queued {
            self.detach(key);
            self.settle(queue);
        }
        let left_ms = left_ms.min(crate::limits::MAX_SECONDS * crate::clock::SECOND_MS);
        let enters_at = now.after_ms(left_ms + self.grace_ms(share));
        self.stock.shares[share].told_at = now;
        self.new_deadline(now, key, enters_at, false);
        if was_queued {
            self.journal.noted(&self.stock.jobs[key]);
        }
    }

    /// WillQueue: another holder's deadline nears.
    pub(super) fn on_will_queue(&mut self, now: Now, from: PeerNo, epoch: u64, id: JobId, counted: u64) {
        if self.tell_if_acked(from, &id) {
            return;
        }
        if self.left.contains(&id) && self.find_job(now.mono(), &id).is_none() {
            // It did not hear of it, or asked before it could. A job may have come back since: then it is a holder again.
            return self.peers.send(from, BusMessage::Left { id });
        }
        let standing = match self.know(now, from, epoch, id) {
            None => Standing::Unknown { counted },
            Some(key) => self.standing(now.mono(), key),
        };
        if !plant::active(Plant::LostStanding) {
            self.peers.send(from, BusMessage::Standing { id, standing });
        }
    }

    fn standing(&self, now: Mono, key: u32) -> Standing {
        let job = &self.stock.jobs[key];
        let mine = self.stock.shares[job.share].mine;
        let left_ms = job.enters_at.since_ms(now);
        match job.place {
            Place::Queued | Place::Reserved | Place::Held => Standing::Queued,
            Place::Waiting => Standing::Leased {
                left_ms: job.retry_ms(),
            },
            Place::Leased => Standing::Leased { left_ms },
            Place::Idle if mine => Standing::Leased { left_ms },
            Place::Idle | Place::Away => Standing::NotMine,
        }
    }

    /// Standing: what another node knows of a job whose deadline nears here.
    pub(super) fn on_standing(&mut self, now: Now, from: PeerNo, epoch: u64, id: JobId, standing: Standing) {
        let Some(key) = self.find_job(now.mono(), &id) else {
            return;
        };
        let Job { share, place, .. } = self.stock.jobs[key];
        if share == NONE || !matches!(place, Place::Idle | Place::Leased) {
            return;
        }
        match standing {
            Standing::Leased { left_ms } if left_ms > 0 => {
                let ends_at = self.stock.jobs[key].enters_at;
                if place == Place::Leased && now.mono().after_ms(left_ms) <= ends_at {
                    return;
                }
                self.leave_to(now.mono(), key, left_ms);
            }
            Standing::Leased { .. } | Standing::NotMine => self.is_not_there(now.mono(), key, from),
            Standing::Queued => {
                let retry_ms = self.stock.jobs[key].retry_ms();
                self.leave_to(now.mono(), key, retry_ms);
            }
            Standing::Unknown { counted } => self.is_unknown(now.mono(), key, from, epoch, counted),
        }
    }

    /// A member has said that it does not have the job in its queue or with a consumer.
    fn is_not_there(&mut self, now: Mono, key: u32, from: PeerNo) {
        let share = self.stock.jobs[key].share;
        let others = &mut self.stock.shares[share].others;
        if let Some(member) = others.iter_mut().find(|member| member.peer == from) {
            member.heard = true;
        }
        self.try_to_rejoin(now, key);
    }

    /// After a restart: when all have answered that are not failed, nobody is waited for. The link to another one may not be up yet.
    pub(super) fn try_to_rejoin(&mut self, now: Mono, key: u32) {
        let Job { share, id, .. } = self.stock.jobs[key];
        let entry = &self.stock.shares[share];
        let is_open = |member: &share::Member| {
            let state = self.peers.peer(member.peer).state;
            !member.heard && matches!(state, PeerState::Alive | PeerState::Suspect)
        };
        if !entry.rejoins || entry.others.iter().any(is_open) {
            return;
        }
        let behind = share::place(&entry.others, &self.peers, &id);
        let grace_ms = self.grace_ms(share);
        let entry = &mut self.stock.shares[share];
        (entry.rejoins, entry.ranked) = (false, true);
        self.stock.jobs[key].enters_at = now.after_ms(grace_ms * behind);
        self.arm(key);
    }

    /// A member has never heard of the job, or has forgotten it.
    fn is_unknown(&mut self, now: Mono, key: u32, from: PeerNo, epoch: u64, counted: u64) {
        let Job { share, id, .. } = self.stock.jobs[key];
        let others = &self.stock.shares[share].others;
        let member = others.iter().find(|member| member.peer == from);
        match member.copied() {
            Some(member) if member.confirmed && plant::active(Plant::AnyEpoch) => {
                self.journal.gone(id);
                self.remove(key);
            }
            // The question, or this answer, is older than the copy that it has now.
            Some(member) if member.confirmed && (member.epoch > epoch || counted != member.epoch) => {}
            Some(member) if member.confirmed && member.epoch == epoch => {
                // It had the job and has lost nothing since: the job was acknowledged and collected.
                self.journal.gone(id);
                self.counters.collected_late += 1;
                self.remove(key);
            }
            Some(member) if member.confirmed => {
                self.stock.shares[share].others.retain(|other| other.peer != from);
                self.count_hosts(share);
                self.journal.holders(id, || {
                    share::recorded(&self.stock.shares[share].others, &self.peers)
                });
                self.try_to_rejoin(now, key);
            }
            Some(_) => self.is_not_there(now, key, from),
            None => {}
        }
    }

    /// Queued: another holder has it in its queue.
    pub(super) fn on_queued(&mut self, now: Now, from: PeerNo, epoch: u64, id: JobId, counts: (u32, u32)) {
        if self.tell_if_acked(from, &id) {
            return;
        }
        let Some(key) = self.know(now, from, epoch, id) else {
            return;
        };
        let job = &mut self.stock.jobs[key];
        job.nacks = job.nacks.max(counts.0);
        job.additional_deliveries = job.additional_deliveries.max(counts.1);
        let (retry_ms, enters_at, deliveries) = (job.retry_ms(), job.enters_at, job.deliveries);
        let (nacks, additional_deliveries) = (job.nacks, job.additional_deliveries);
        match job.place {
            Place::Waiting | Place::Away => {}
            Place::Leased => {
                let left_ms = enters_at.since_ms(now.mono());
                self.say_of(
                    key,
                    from,
                    BusMessage::Leased {
                        id,
                        left_ms,
                        deliveries,
                    },
                );
            }
            Place::Idle => self.leave_to(now.mono(), key, retry_ms),
            Place::Queued | Place::Reserved | Place::Held => {
                let theirs = share::rank(&self.peers.peer(from).id, &id);
                if theirs < share::rank(&self.peers.node, &id) {
                    self.leave_to(now.mono(), key, retry_ms);
                } else {
                    self.say_of(
                        key,
                        from,
                        BusMessage::Queued {
                            id,
                            nacks,
                            additional_deliveries,
                        },
                    );
                }
            }
        }
    }

    /// The job that a holder speaks of, with that node among its holders. At-most-once jobs are in one place only: nothing is said of them.
    fn know(&mut self, now: Now, from: PeerNo, epoch: u64, id: JobId) -> Option<u32> {
        let key = self.find_job(now.mono(), &id)?;
        if self.stock.jobs[key].at_most_once() {
            return None;
        }
        let share = self.share_of(now.mono(), key);
        if share::note(&mut self.stock.shares[share].others, from, epoch, true) {
            self.count_hosts(share);
        }
        Some(key)
    }
}
