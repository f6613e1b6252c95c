//! A job with RETRY 0 goes from node to node as a whole (`cluster.md`, Transfers of RETRY 0 jobs). Whatever is lost, doubled, late or dies, at most one
//! node may hand it out at a time, and a crash or a cut link alone loses none.
//!
//! ```text
//! source                                             target (`taking`)
//!   in its queue         ---- TransferOffer --------->  has it room? nothing is written
//!                        <--- TransferWant ----------   a want: a number of its own for this name
//!   Away, `sent` synced  ---- Transfer, want -------->  `taken`, with the job; or `refused`
//!                        <--- TransferAnswer ---------  when that is safe; again until it is retired
//!   `gone`, or queued    ---- TransferRetire -------->  `retired`: forgotten
//!   again; synced             (TransferAsk, when no answer comes)
//! ```
//!
//! A transfer's name is the source's ID, the job's, and a *hop*: a creation stamp of the source's, which never makes one twice, so that a job
//! need not carry it. The offer shows that the link works in both directions before anything is written, and costs the job nothing: it stays in its queue
//! and may be handed out here. The *want* makes a Transfer worth something once: one that comes again when its answer was
//! retired finds no want, since the target drops it when it answers, and its numbers begin anywhere at each start of a process.
//!
//! **The source**, by what it knows of the transfer. "Ends" is: `gone` is written, the job goes. "Comes back" is: `state` is written, the job is where it
//! was. "Retires" is: TransferRetire, once everything written so far is synced.
//!
//! | | nothing of this name | Offered: in its queue | Logged: Away, not sent | Sent: Away |
//! | --- | --- | --- | --- | --- |
//! | Want | - | if it may go still: `sent`, Logged | - | a new number: Transfer again |
//! | `sent` is synced | - | - | Transfer, Sent; target out of reach or with another epoch, or the queue is closed: comes back | - |
//! | `sent` failed | - | - | comes back | - |
//! | Answer taken | retires | - | - | ends, retires |
//! | Answer refused | retires | - | - | comes back, retires |
//! | Refused | - | forgotten, the node is passed by for a while | - | - |
//! | time | - | forgotten, offered anew | - | Ask, once the target is known; its epoch is another, or it is forgotten: ends |
//! | handed out, DELJOB, ACKJOB, expired, FLUSHALL | - | as ever; a Want finds nothing | goes; not sent | goes; SetAck, Delete, Left to the target |
//! | ENQUEUE, NACK, DEQUEUE | as ever | as ever | not counted | not counted |
//! | crash | - | it is in its queue | `sent` on disk: Sent; else in its queue | Sent |
//!
//! **The target.** "Answers" is: the record is written, kept, and told when it is safe.
//!
//! | | nothing of this name | has a want out | has answered |
//! | --- | --- | --- | --- |
//! | Offer | has room: Want; else Refused | the same Want | the same answer |
//! | Transfer, this epoch, this want | - | answers taken, or refused without room | the same answer |
//! | Transfer, this epoch, no such want | has room: Want | Want | the same answer |
//! | Transfer, Ask, other epoch | - | - | - |
//! | Ask | answers refused | drops it, answers refused | the same answer |
//! | Retire | - | - | `retired`, forgotten |
//! | record failed | - | - | job and answer are undone: nobody was told |
//! | time | - | the oldest are dropped | says it again |
//! | SetAck, Delete | - | drops it: a Transfer that comes later is not taken | - |
//! | the job's life is over | - | - | `retired`, forgotten |
//! | FLUSHALL | - | - | stays: only the job goes |
//! | crash | - | gone: a Transfer asks for a new one | on disk, in one record with the job |
//!
//! Why a crash makes no second copy: *source*: Transfer leaves after the sync of `sent`, so that no later life finds the job in its queue. TransferRetire
//! leaves after the sync of whatever ended the transfer here; until then the target repeats the answer to any later life. An
//! end whose record failed is written again, and no name of that job is retired before. *Target*: `taken` holds the job too, so no crash parts them, and
//! neither is told before it is safe. What is safe is lost with the power only (`everysec`, `no`), and then the target has a
//! new store epoch: the source, which named the old one, takes the job for delivered.

use crate::bus::message::JobCopy;
use crate::bus::{BusMessage, PeerNo, PeerState};
use crate::clock::{Mono, Now};
use crate::home::cluster::share;
use crate::home::journal::Held;
use crate::home::{Entry, Home, Job, Place};
use crate::id::{JobId, NodeId};
use crate::limits::{
    TRANSFER_ASK_MAX_MS, TRANSFER_ASK_MS, TRANSFER_OFFER_MS, TRANSFER_REFUSED_MS, TRANSFERS, UPKEEP_STEP,
};
use crate::log::{Holder, TransferImage, TransferStage};
use crate::structures::NONE;

/// What a transfer costs its source: its record, and its places in two trees.
pub const MOVE_BYTES: u64 = (size_of::<Move>() + 2 * size_of::<JobId>() + size_of::<Mono>() + 32) as u64;

/// A job that goes, or is to go, to another node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Move {
    /// Part of the transfer's name.
    pub hop: u64,
    /// The target, and the store epoch that is meant.
    pub to: Holder,
    /// How far it is.
    pub step: Step,
    /// Whether it comes back to its queue, if it does.
    pub queued: bool,
    /// When something is done about it next.
    pub again_at: Mono,
    /// How often it was asked for an answer.
    pub tries: u8,
}

/// How far a transfer is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// The target was asked whether it has room; the job is where it was.
    Offered,
    /// The record waits for its sync: nothing was sent.
    Logged {
        /// What the target wants it by.
        want: u64,
    },
    /// The target may have it.
    Sent {
        /// The last want it was sent by; none since this process started.
        want: Option<u64>,
    },
}

impl Move {
    /// Whether the job has left its place.
    pub fn is_away(&self) -> bool {
        self.step != Step::Offered
    }

    /// What a record says of it.
    pub fn image(&self, id: JobId) -> TransferImage {
        TransferImage {
            stage: if self.queued {
                TransferStage::SentQueued
            } else {
                TransferStage::SentIdle
            },
            node: self.to,
            id,
            hop: self.hop,
            job: None,
        }
    }
}

impl Home {
    /// A job with RETRY 0 is offered to a node, unless it is already, or too many are on their way. Whether it was.
    pub(in crate::home) fn offer_transfer(&mut self, now: Mono, key: u32, to: PeerNo) -> bool {
        let Job { id, queue, .. } = self.stock.jobs[key];
        if self.stock.moves.len() >= TRANSFERS
            || self.stock.moves.contains_key(&id)
            || self.transfers.passes_by(now, to)
            || self.journal.refuses_change().is_some()
        {
            return false;
        }
        let hop = self.next_ctime(self.journal.now());
        let to_node = self.peers.holder(to, self.peers.peer(to).epoch);
        let again_at = now.after_ms(TRANSFER_OFFER_MS.max(4 * self.peers.rtt_ms(to)));
        self.charge(MOVE_BYTES);
        self.put_move(
            id,
            Move {
                hop,
                to: to_node,
                step: Step::Offered,
                queued: true,
                again_at,
                tries: 0,
            },
        );
        let queue = self.stock.queues[queue].name.clone();
        let body_bytes = self.stock.jobs[key].body.len() as u64;
        self.peers.send(
            to,
            BusMessage::TransferOffer {
                id,
                hop,
                body_bytes,
                queue,
            },
        );
        true
    }

    /// TransferWant: the target has room, or asks for a Transfer anew.
    pub(super) fn on_transfer_want(
        &mut self,
        now: Mono,
        from: PeerNo,
        epoch: u64,
        id: JobId,
        hop: u64,
        want: u64,
    ) {
        let Some(found) = self.move_of(from, &id, hop) else {
            return;
        };
        match found.step {
            Step::Offered => self.begin_transfer(now, from, epoch, id, want),
            Step::Logged { .. } => {}
            Step::Sent { want: last } if last != Some(want) && found.to.epoch == epoch => {
                self.send_transfer(now, id, found, want);
            }
            Step::Sent { .. } => {}
        }
    }

    /// The job leaves its place, when it may still go.
    fn begin_transfer(&mut self, now: Mono, from: PeerNo, epoch: u64, id: JobId, want: u64) {
        let Some(mut moved) = self.take_move(&id) else {
            return;
        };
        let key = self.find_job(now, &id).filter(|&key| self.may_go(key));
        let peer = self.peers.peer(from);
        let is_there = self.peers.is_reachable(from) && !peer.leaving && peer.epoch == epoch;
        let is_ready = is_there && !self.journal.is_stopped();
        let Some(key) = key.filter(|_| is_ready && self.journal.refuses_change().is_none()) else {
            return self.release(MOVE_BYTES);
        };
        moved.queued = self.stock.jobs[key].place != Place::Idle;
        moved.to.epoch = epoch;
        moved.step = Step::Logged { want };
        moved.again_at = Mono::NEVER;
        self.detach(key);
        self.stock.jobs[key].place = Place::Away;
        self.put_move(id, moved);
        self.name_target(now, key, from, epoch);
        match self.journal.sent(moved.image(id)) {
            Some(need) if !self.journal.is_met(need) => {
                let hop = moved.hop;
                self.journal.wait(need, Held::Transfer(id, hop));
            }
            _ => self.transfer_logged(id, moved.hop),
        }
    }

    /// Whether nothing leaves a job's queue.
    fn is_closed(&self, key: u32) -> bool {
        self.stock.queues[self.stock.jobs[key].queue].pause.output
    }

    /// Whether a job with RETRY 0 may go to another node now.
    pub(super) fn may_go(&self, key: u32) -> bool {
        let job = &self.stock.jobs[key];
        let leaves = self.peers.leaving && !job.delivered;
        job.at_most_once()
            && match job.place {
                Place::Queued => leaves || !self.is_closed(key),
                Place::Idle | Place::Held => leaves || (!self.keeps(key) && !job.delivered),
                Place::Waiting | Place::Reserved | Place::Leased | Place::Away => false,
            }
    }

    /// Who is told of an acknowledgement, or an end, of a job that is away.
    fn name_target(&mut self, now: Mono, key: u32, to: PeerNo, epoch: u64) {
        let share = self.share_of(now, key);
        share::note(&mut self.stock.shares[share].others, to, epoch, false);
    }

    /// Nobody can forget any more that the job is on its way: it is sent, unless its target cannot be reached now.
    pub(crate) fn transfer_logged(&mut self, id: JobId, hop: u64) {
        let now = self.journal.now().mono();
        let found = self.stock.moves.get(&id).copied();
        let Some(found) = found.filter(|found| found.hop == hop) else {
            return;
        };
        let Step::Logged { want } = found.step else { return };
        // The queue may have been closed meanwhile.
        let key = self.find_job(now, &id);
        let may_leave = self.peers.leaving || key.is_none_or(|key| !self.is_closed(key));
        let to = self.peers.find(NodeId::from_bytes(found.to.node));
        let is_there = |to: &PeerNo| {
            let peer = self.peers.peer(*to);
            self.peers.is_reachable(*to) && !peer.leaving && peer.epoch == found.to.epoch
        };
        if may_leave && to.is_some_and(|to| is_there(&to)) {
            self.send_transfer(now, id, found, want);
        } else {
            // The next tick brings it back.
            self.plan_move(&id, now);
        }
    }

    fn send_transfer(&mut self, now: Mono, id: JobId, found: Move, want: u64) {
        let to = self.peers.find(NodeId::from_bytes(found.to.node));
        let (Some(to), Some(key)) = (to, self.find_job(now, &id)) else {
            return;
        };
        let again_at = now.after_ms(TRANSFER_ASK_MS.max(4 * self.peers.rtt_ms(to)));
        let entry = self.stock.moves.get_mut(&id).expect("it is known");
        (entry.step, entry.tries) = (Step::Sent { want: Some(want) }, 0);
        self.plan_move(&id, again_at);
        let mut copy = self.copy_of(now, key);
        copy.members = Default::default();
        if !found.queued && self.stock.jobs[key].enters_at == Mono::NEVER {
            copy.delay_left_ms = JobCopy::NEVER_MS;
        }
        self.peers.send(
            to,
            BusMessage::Transfer {
                hop: found.hop,
                epoch: found.to.epoch,
                want,
                copy: Box::new(copy),
            },
        );
    }

    /// TransferAnswer: it was taken, or never will be.
    pub(super) fn on_transfer_answer(&mut self, now: Mono, from: PeerNo, id: JobId, hop: u64, taken: bool) {
        if let Some(found) = self.move_of(from, &id, hop) {
            if !matches!(found.step, Step::Sent { .. }) {
                return;
            }
            if let Some(key) = self.find_job(now, &id) {
                if taken {
                    self.end_transfer(now, key);
                } else {
                    self.counters.transfers_refused += 1;
                    self.transfers.pass_by(from, now.after_ms(TRANSFER_REFUSED_MS));
                    self.come_back(now, key);
                }
            }
        }
        self.retire_transfer(from, id, hop);
    }

    /// The answer need not be kept any more, once nothing can bring back the time before it.
    fn retire_transfer(&mut self, to: PeerNo, id: JobId, hop: u64) {
        if self.journal.may_retire(&id) {
            let need = self.journal.all_synced();
            self.say_when(need, to, BusMessage::TransferRetire { id, hop });
        }
    }

    /// The job is the target's now, or counts as handed out.
    fn end_transfer(&mut self, now: Mono, key: u32) {
        let Job { id, queue, .. } = self.stock.jobs[key];
        self.counters.exported += 1;
        self.counters.placed_elsewhere += u64::from(self.stock.jobs[key].marks.goes_out());
        self.stock.queues[queue].jobs_out += 1;
        self.stock.queues[queue].touched_at = now;
        self.journal.gone(id);
        self.remove(key);
    }

    /// A job that is away is where it was again.
    fn come_back(&mut self, now: Mono, key: u32) {
        let Job { id, share, queue, .. } = self.stock.jobs[key];
        let moved = self.take_move(&id).expect("it is away");
        self.release(MOVE_BYTES);
        if share != NONE
            && let Some(to) = self.peers.find(NodeId::from_bytes(moved.to.node))
        {
            let others = &mut self.stock.shares[share].others;
            others.retain(|member| member.peer != to);
        }
        self.stock.jobs[key].place = Place::Idle;
        if !moved.queued {
            self.arm(key);
            self.journal.brought_back(&self.stock.jobs[key]);
        } else if self.stock.queues[queue].pause.input {
            self.keep_back(key);
            self.journal.brought_back(&self.stock.jobs[key]);
        } else {
            self.enter(now, key, Entry::Undone);
        }
    }

    /// The record of a job's leaving is not in the log: it never left.
    pub(in crate::home) fn transfer_failed(&mut self, now: Mono, id: JobId, hop: u64) {
        let is_logged = |found: &Move| found.hop == hop && matches!(found.step, Step::Logged { .. });
        if self.stock.moves.get(&id).is_some_and(is_logged)
            && let Some(key) = self.find_job(now, &id)
        {
            self.come_back(now, key);
        }
    }

    /// A job goes that is away.
    pub(in crate::home) fn end_move(&mut self, key: u32) {
        let id = self.stock.jobs[key].id;
        self.take_move(&id).expect("what is away is on its way");
        self.release(MOVE_BYTES);
        self.journal.left(id);
    }

    /// A record says that a job is on its way. Whether it was sent nobody knows.
    pub(in crate::home) fn restore_move(&mut self, now: Now, image: &TransferImage) {
        self.last_ctime = self.last_ctime.max(image.hop);
        let Some(key) = self.find_job(now.mono(), &image.id) else {
            return;
        };
        self.detach(key);
        self.stock.jobs[key].place = Place::Away;
        self.charge(MOVE_BYTES);
        self.put_move(
            image.id,
            Move {
                hop: image.hop,
                to: image.node,
                step: Step::Sent { want: None },
                queued: image.stage == TransferStage::SentQueued,
                again_at: now.mono(),
                tries: 0,
            },
        );
    }

    /// When something is to be done about a transfer.
    pub(in crate::home) fn transfers_deadline(&self) -> Option<Mono> {
        if self.peers.epoch == 0 {
            return None;
        }
        if self.transfers.is_sweeping() {
            return Some(Mono::default());
        }
        let moves = self.stock.moves_due.first().map(|(at, _)| *at);
        moves.into_iter().chain(self.transfers.deadline()).min()
    }

    /// A step of what is due.
    pub(super) fn step_transfers(&mut self, now: Mono) {
        if self.peers.epoch == 0 {
            // Nothing is known of other nodes yet.
            return;
        }
        self.sweep_transfers(now);
        for _ in 0..UPKEEP_STEP {
            let due = self.stock.moves_due.first().copied();
            let Some((_, id)) = due.filter(|(at, _)| *at <= now) else {
                break;
            };
            self.move_timer(now, id);
        }
        self.step_answers(now);
    }

    fn move_timer(&mut self, now: Mono, id: JobId) {
        let found = self.stock.moves[&id];
        let key = self.find_job(now, &id);
        match (found.step, key) {
            (Step::Offered, key) => {
                self.take_move(&id);
                self.release(MOVE_BYTES);
                if let Some(key) = key {
                    self.may_export(self.stock.jobs[key].queue);
                }
            }
            // Its life was over just now, and the move went with it.
            (Step::Logged { .. } | Step::Sent { .. }, None) => {}
            (Step::Logged { .. }, Some(key)) => self.come_back(now, key),
            (Step::Sent { .. }, Some(key)) => self.ask_target(now, key, found),
        }
    }

    /// No answer has come.
    fn ask_target(&mut self, now: Mono, key: u32, found: Move) {
        let id = self.stock.jobs[key].id;
        let to = self.peers.find(NodeId::from_bytes(found.to.node));
        let Some(to) = to else {
            // Not heard of since this node's start; it may be soon.
            return self.plan_move(&id, now.after_ms(TRANSFER_ASK_MAX_MS));
        };
        let peer = self.peers.peer(to);
        if peer.state == PeerState::Gone || peer.epoch > found.to.epoch {
            // It may have handed it out before it forgot, or was forgotten.
            self.counters.transfers_in_doubt += 1;
            return self.end_transfer(now, key);
        }
        self.name_target(now, key, to, found.to.epoch);
        let (hop, epoch) = (found.hop, found.to.epoch);
        self.peers.send(to, BusMessage::TransferAsk { id, hop, epoch });
        let wait_ms = (TRANSFER_ASK_MS << found.tries.min(16)).min(TRANSFER_ASK_MAX_MS);
        let entry = self.stock.moves.get_mut(&id).expect("it is known");
        entry.tries = entry.tries.saturating_add(1);
        self.plan_move(&id, now.after_ms(wait_ms.max(4 * self.peers.rtt_ms(to))));
    }

    /// Refused: a node that was offered a job has no room for it.
    pub(super) fn on_offer_refused(&mut self, now: Mono, from: PeerNo, id: JobId) {
        let node = *self.peers.peer(from).id.as_bytes();
        let is_offered = |found: &Move| !found.is_away() && found.to.node == node;
        if self.stock.moves.get(&id).is_some_and(is_offered) {
            self.take_move(&id);
            self.release(MOVE_BYTES);
            self.transfers.pass_by(from, now.after_ms(TRANSFER_REFUSED_MS));
            if let Some(key) = self.find_job(now, &id) {
                let queue = self.stock.jobs[key].queue;
                self.forget_interest_in(queue, from);
                self.may_export(queue);
            }
        }
    }

    /// All that is away is gone with all other jobs.
    pub(in crate::home) fn flush_transfers(&mut self) {
        let away = self.stock.moves.iter().filter(|(_, found)| found.is_away());
        let ids: Vec<JobId> = away.map(|(id, _)| *id).collect();
        for id in ids {
            self.journal.left(id);
        }
    }

    /// The transfer of this name to this node.
    fn move_of(&self, to: PeerNo, id: &JobId, hop: u64) -> Option<Move> {
        let found = self.stock.moves.get(id).copied()?;
        (found.hop == hop && found.to.node == *self.peers.peer(to).id.as_bytes()).then_some(found)
    }

    fn put_move(&mut self, id: JobId, moved: Move) {
        let before = self.stock.moves.insert(id, moved);
        assert_eq!(before, None, "a job goes one way at a time");
        if moved.again_at != Mono::NEVER {
            self.stock.moves_due.insert((moved.again_at, id));
        }
    }

    fn take_move(&mut self, id: &JobId) -> Option<Move> {
        let moved = self.stock.moves.remove(id)?;
        self.stock.moves_due.remove(&(moved.again_at, *id));
        Some(moved)
    }

    /// Something is done about a transfer at this time.
    pub(super) fn plan_move(&mut self, id: &JobId, at: Mono) {
        let moved = self.stock.moves.get_mut(id).expect("it is known");
        let before = std::mem::replace(&mut moved.again_at, at);
        self.stock.moves_due.remove(&(before, *id));
        self.stock.moves_due.insert((at, *id));
    }
}
