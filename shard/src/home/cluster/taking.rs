//! Jobs with RETRY 0 that come from other nodes: the target's side of `transfer`, whose tables say what must hold.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use super::transfer::Step;
use crate::bus::message::{JobCopy, Refusal};
use crate::bus::{BusMessage, PeerNo, PeerState};
use crate::clock::{Mono, Now};
use crate::home::cluster::share::SHARE_BYTES;
use crate::home::job::JOB_BYTES;
use crate::home::{Entry, Home, Place};
use crate::id::{JobId, NodeId};
use crate::limits::{
    COPIES_OVERDRAFT_BYTES, EXPORT_AGAIN_MS, MAX_SECONDS, TRANSFER_ANSWER_MAX_MS, TRANSFER_ANSWER_MS,
    TRANSFER_ANSWERS, TRANSFER_WANTS, UPKEEP_STEP,
};
use crate::log::{Holder, TransferImage, TransferName, TransferStage};
use crate::plant::{self, Plant};
use crate::wire::Blob;

/// What an answer costs: its record, and its places in two trees.
const ANSWER_BYTES: u64 =
    (size_of::<Answer>() + 2 * size_of::<TransferName>() + size_of::<Mono>() + 32) as u64;

/// What a home knows of transfers beside the jobs that are on their way: FLUSHALL leaves it.
#[derive(Debug)]
pub struct Transfers {
    /// Transfers that were said to be welcome, and what they are wanted by.
    wants: BTreeMap<TransferName, u64>,
    /// The same in the order of their making, and some that are gone.
    wants_order: VecDeque<(TransferName, u64)>,
    /// It starts anywhere, so that no want of an earlier process is one of this.
    next_want: u64,
    /// Answers that are not retired.
    answers: BTreeMap<TransferName, Answer>,
    due: BTreeSet<(Mono, TransferName)>,
    /// Nodes that refused something lately, and until when they are passed by.
    passed_by: BTreeMap<PeerNo, Mono>,
    /// A node came: how far the walk over all moves and answers is, which are said again now.
    sweep: Sweep,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Sweep {
    Moves(Option<JobId>),
    Answers(Option<TransferName>),
    Over,
}

/// The answer to a transfer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Answer {
    taken: bool,
    /// The source's store epoch as it was known.
    epoch: u64,
    /// When it is said again, if it is not retired.
    again_at: Mono,
    tries: u8,
    /// The end of the job's life.
    expires_at: Mono,
}

impl Transfers {
    /// None is under way.
    pub fn new(chance: [u8; 8]) -> Self {
        Self {
            wants: BTreeMap::new(),
            wants_order: VecDeque::new(),
            next_want: u64::from_le_bytes(chance),
            answers: BTreeMap::new(),
            due: BTreeSet::new(),
            passed_by: BTreeMap::new(),
            sweep: Sweep::Over,
        }
    }

    /// Answers that are not retired.
    pub fn answers(&self) -> u64 {
        self.answers.len() as u64
    }

    /// Memory charged for them.
    pub fn bytes(&self) -> u64 {
        ANSWER_BYTES * self.answers.len() as u64
    }

    /// When an answer is to be said again.
    pub fn deadline(&self) -> Option<Mono> {
        self.due.first().map(|(at, _)| *at)
    }

    pub fn is_sweeping(&self) -> bool {
        self.sweep != Sweep::Over
    }

    /// A node has no room: it is offered nothing for a while.
    pub fn pass_by(&mut self, peer: PeerNo, until: Mono) {
        self.passed_by.insert(peer, until);
    }

    /// Whether a node has refused something a moment ago.
    pub fn passes_by(&mut self, now: Mono, peer: PeerNo) -> bool {
        let until = self.passed_by.get(&peer).copied();
        if until.is_some_and(|until| until <= now) {
            self.passed_by.remove(&peer);
        }
        until.is_some_and(|until| until > now)
    }

    /// The answers behind one, at most so many, as a log keeps them.
    pub fn images(&self, behind: Option<TransferName>, most: usize) -> Vec<TransferImage> {
        let answers = self.answers_behind(behind).take(most);
        answers.map(|(name, answer)| image(name, answer)).collect()
    }

    /// An answer as a log keeps it.
    pub fn image(&self, name: &TransferName) -> Option<TransferImage> {
        let answer = self.answers.get(name)?;
        Some(image(name, answer))
    }

    fn answers_behind(&self, behind: Option<TransferName>) -> impl Iterator<Item = (&TransferName, &Answer)> {
        use std::ops::Bound::{Excluded, Unbounded};
        let from = behind.map_or(Unbounded, Excluded);
        self.answers.range((from, Unbounded))
    }

    /// The want of a transfer; the oldest one of any gives way when there are too many.
    fn want(&mut self, name: TransferName) -> u64 {
        if let Some(want) = self.wants.get(&name) {
            return *want;
        }
        self.next_want = self.next_want.wrapping_add(1);
        let want = self.next_want;
        self.wants.insert(name, want);
        self.wants_order.push_back((name, want));
        if self.wants_order.len() > TRANSFER_WANTS {
            let (oldest, want) = self.wants_order.pop_front().expect("there are many");
            if self.wants.get(&oldest) == Some(&want) {
                self.wants.remove(&oldest);
            }
        }
        want
    }

    /// A job is done with: should it still be on its way here, it is not taken.
    pub fn forget_wants(&mut self, id: &JobId) {
        self.wants.retain(|name, _| name.id != *id);
    }

    fn plan(&mut self, name: TransferName, at: Mono) {
        let answer = self.answers.get_mut(&name).expect("it is known");
        let before = std::mem::replace(&mut answer.again_at, at);
        self.due.remove(&(before, name));
        self.due.insert((at, name));
    }

    /// Panics when something does not hold.
    pub fn check(&self) {
        assert!(self.wants.len() <= self.wants_order.len() && self.wants_order.len() <= TRANSFER_WANTS);
        assert!(self.answers.len() <= TRANSFER_ANSWERS);
        assert_eq!(
            self.answers.len(),
            self.due.len(),
            "each answer is said again some time"
        );
        for (name, answer) in &self.answers {
            assert!(self.due.contains(&(answer.again_at, *name)));
            assert!(!self.wants.contains_key(name), "what is answered is not wanted");
        }
    }
}

fn image(name: &TransferName, answer: &Answer) -> TransferImage {
    TransferImage {
        stage: if answer.taken {
            TransferStage::Taken
        } else {
            TransferStage::Refused
        },
        node: Holder {
            node: name.source,
            epoch: answer.epoch,
        },
        id: name.id,
        hop: name.hop,
        job: None,
    }
}

impl Home {
    /// TransferOffer: whether this node would take a job.
    pub(super) fn on_transfer_offer(
        &mut self,
        now: Now,
        from: PeerNo,
        id: JobId,
        hop: u64,
        body_bytes: u64,
        queue: &Blob,
    ) {
        let name = self.transfer_name(from, id, hop);
        if self.transfers.answers.contains_key(&name) {
            return self.say_answer(from, name);
        }
        if self.tell_if_acked(from, &id) || queue_is_foreign(queue, &id) {
            return;
        }
        match self.refuses_transfer(now.mono(), &id, body_bytes, queue) {
            Some(why) => self.peers.send(from, BusMessage::Refused { id, why }),
            None => self.say_want(from, name),
        }
    }

    fn say_want(&mut self, to: PeerNo, name: TransferName) {
        let TransferName { id, hop, .. } = name;
        let want = self.transfers.want(name);
        self.peers.send(to, BusMessage::TransferWant { id, hop, want });
    }

    /// Why a job cannot be taken now.
    fn refuses_transfer(&mut self, now: Mono, id: &JobId, body_bytes: u64, queue: &Blob) -> Option<Refusal> {
        let is_paused = self
            .find_queue(queue)
            .is_some_and(|queue| self.stock.queues[queue].pause.input);
        let bytes = JOB_BYTES + SHARE_BYTES + queue.heap_bytes() as u64 + body_bytes;
        let raw_bytes = queue.len().saturating_add(body_bytes as usize);
        if self.peers.leaving {
            Some(Refusal::Leaving)
        } else if is_paused {
            Some(Refusal::Paused)
        } else if self.transfers.answers.len() >= TRANSFER_ANSWERS || self.find_job(now, id).is_some() {
            Some(Refusal::Busy)
        } else if !self.memory.admit(bytes.saturating_sub(COPIES_OVERDRAFT_BYTES)) {
            Some(Refusal::Memory)
        } else if self.journal.is_stopped() || self.journal.refuses_copy(raw_bytes) {
            Some(Refusal::Log)
        } else {
            None
        }
    }

    /// Transfer: a job comes.
    pub(super) fn on_transfer(&mut self, now: Now, from: PeerNo, epochs: Epochs, by: By, copy: &JobCopy) {
        let name = self.transfer_name(from, copy.id, by.hop);
        if epochs.mine != self.peers.epoch || copy.retry_s > 0 || queue_is_foreign(&copy.queue, &copy.id) {
            return;
        }
        if self.transfers.answers.contains_key(&name) {
            return self.say_answer(from, name);
        }
        let body_bytes = copy.body.len() as u64;
        let refuses = self.refuses_transfer(now.mono(), &copy.id, body_bytes, &copy.queue);
        if self.transfers.wants.get(&name) != Some(&by.want) {
            if refuses.is_none() {
                self.say_want(from, name);
            }
            return;
        }
        self.tell_if_acked(from, &copy.id);
        let is_acked = self.find_ack(&copy.id).is_some();
        let taken = match refuses {
            None if !is_acked => self.take_copy(now, copy).ok().flatten(),
            _ => None,
        };
        match taken {
            Some(key) => self.take_transfer(now, from, epochs.theirs, name, key, copy),
            None => self.refuse_transfer(now.mono(), from, epochs.theirs, name),
        }
    }

    /// The job of a transfer was made: it is written with the answer, and its life goes on here.
    fn take_transfer(
        &mut self,
        now: Now,
        from: PeerNo,
        epoch: u64,
        name: TransferName,
        key: u32,
        copy: &JobCopy,
    ) {
        let mono = now.mono();
        let queued = copy.delay_left_ms == 0;
        let job = &mut self.stock.jobs[key];
        job.marks.set_entered_before(queued);
        if !queued && copy.delay_left_ms != JobCopy::NEVER_MS {
            job.enters_at = mono.after_ms(copy.delay_left_ms.min(MAX_SECONDS * 1000));
        }
        let (queue, expires_at) = (job.queue, job.expires_at);
        let answer = self.new_answer(mono, true, epoch, expires_at);
        let job = &self.stock.jobs[key];
        self.journal.taken(
            image(&name, &answer),
            job,
            key,
            &self.stock.queues[queue].name,
            queued,
        );
        self.keep_answer(name, answer);
        self.say_answer(from, name);
        self.counters.imported += 1;
        if !queued {
            return self.arm(key);
        }
        self.polled_no_more(&copy.queue);
        let of = &mut self.stock.queues[queue];
        of.imported += 1;
        of.stream(mono);
        self.interest_changed(queue);
        self.enter(mono, key, Entry::Imported);
        if self.stock.jobs[key].place == Place::Queued {
            // Nobody waits for it any more: it rests a while before it goes on.
            let share = self.share_of(mono, key);
            self.stock.shares[share].not_before = mono.after_ms(EXPORT_AGAIN_MS);
        }
    }

    /// The final answer is no.
    fn refuse_transfer(&mut self, now: Mono, from: PeerNo, epoch: u64, name: TransferName) {
        let expires_at = now.after_ms(name.id.life_ms());
        let answer = self.new_answer(now, false, epoch, expires_at);
        let is_full = self.transfers.answers.len() >= TRANSFER_ANSWERS;
        if is_full || !self.journal.answered(image(&name, &answer)) {
            // It asks again.
            return;
        }
        self.keep_answer(name, answer);
        self.say_answer(from, name);
    }

    fn new_answer(&self, now: Mono, taken: bool, epoch: u64, expires_at: Mono) -> Answer {
        Answer {
            taken,
            epoch,
            again_at: now.after_ms(TRANSFER_ANSWER_MS),
            tries: 0,
            expires_at,
        }
    }

    fn keep_answer(&mut self, name: TransferName, answer: Answer) {
        let transfers = &mut self.transfers;
        transfers.wants.remove(&name);
        if let Some(before) = transfers.answers.insert(name, answer) {
            transfers.due.remove(&(before.again_at, name));
        } else {
            self.memory.charge(ANSWER_BYTES);
        }
        transfers.due.insert((answer.again_at, name));
    }

    /// Says what was answered, once it is safe.
    fn say_answer(&mut self, to: PeerNo, name: TransferName) {
        let TransferName { id, hop, .. } = name;
        let taken = self.transfers.answers[&name].taken;
        let need = self.journal.answers_safe();
        let taken = taken && !plant::active(Plant::WrongAnswer);
        self.say_when(need, to, BusMessage::TransferAnswer { id, hop, taken });
    }

    /// TransferAsk: what became of a transfer. One that was never seen will never be taken.
    pub(super) fn on_transfer_ask(&mut self, now: Mono, from: PeerNo, epochs: Epochs, id: JobId, hop: u64) {
        if epochs.mine != self.peers.epoch {
            return;
        }
        let name = self.transfer_name(from, id, hop);
        if self.transfers.answers.contains_key(&name) {
            self.say_answer(from, name);
        } else {
            self.refuse_transfer(now, from, epochs.theirs, name);
        }
    }

    /// TransferRetire: the source knows.
    pub(super) fn on_transfer_retire(&mut self, from: PeerNo, id: JobId, hop: u64) {
        let name = self.transfer_name(from, id, hop);
        self.retire_answer(&name);
    }

    fn retire_answer(&mut self, name: &TransferName) {
        if let Some(answer) = self.forget_answer(name) {
            self.journal.retired(TransferImage {
                stage: TransferStage::Retired,
                ..image(name, &answer)
            });
        }
    }

    /// An answer is kept no more; nothing is written.
    pub(in crate::home) fn forget_answer(&mut self, name: &TransferName) -> Option<Answer> {
        let answer = self.transfers.answers.remove(name)?;
        self.transfers.due.remove(&(answer.again_at, *name));
        self.memory.release(ANSWER_BYTES);
        Some(answer)
    }

    /// A record says what was answered.
    pub(in crate::home) fn restore_answer(&mut self, now: Mono, image: &TransferImage) {
        let name = image.name();
        if image.stage == TransferStage::Retired {
            self.forget_answer(&name);
            return;
        }
        let taken = image.stage == TransferStage::Taken;
        let expires_at = now.after_ms(image.id.life_ms());
        let answer = self.new_answer(now, taken, image.node.epoch, expires_at);
        self.keep_answer(name, answer);
    }

    /// A node came: what was not answered, or not retired, is said again now and not at the end of a long wait.
    pub(super) fn begin_transfer_sweep(&mut self) {
        self.transfers.sweep = Sweep::Moves(None);
    }

    /// A step of that.
    pub(super) fn sweep_transfers(&mut self, now: Mono) {
        use std::ops::Bound::{Excluded, Unbounded};
        match self.transfers.sweep {
            Sweep::Over => {}
            Sweep::Moves(behind) => {
                let from = behind.map_or(Unbounded, Excluded);
                let found: Vec<(JobId, bool)> = self
                    .stock
                    .moves
                    .range((from, Unbounded))
                    .take(UPKEEP_STEP)
                    .map(|(id, found)| (*id, matches!(found.step, Step::Sent { .. })))
                    .collect();
                for (id, _) in found.iter().filter(|(_, sent)| *sent) {
                    self.stock.moves.get_mut(id).expect("it was found").tries = 0;
                    self.plan_move(id, now);
                }
                self.transfers.sweep = match found.last() {
                    Some((id, _)) if found.len() == UPKEEP_STEP => Sweep::Moves(Some(*id)),
                    _ => Sweep::Answers(None),
                };
            }
            Sweep::Answers(behind) => {
                let answers = self.transfers.answers_behind(behind).take(UPKEEP_STEP);
                let found: Vec<TransferName> = answers.map(|(name, _)| *name).collect();
                for &name in &found {
                    self.transfers.answers.get_mut(&name).expect("it was found").tries = 0;
                    self.transfers.plan(name, now);
                }
                self.transfers.sweep = match found.last() {
                    Some(name) if found.len() == UPKEEP_STEP => Sweep::Answers(Some(*name)),
                    _ => Sweep::Over,
                };
            }
        }
    }

    /// Says answers again that nobody has retired.
    pub(super) fn step_answers(&mut self, now: Mono) {
        for _ in 0..UPKEEP_STEP {
            let due = self.transfers.due.first().copied();
            let Some((_, name)) = due.filter(|(at, _)| *at <= now) else {
                return;
            };
            let source = self.peers.find(NodeId::from_bytes(name.source));
            let source = source.filter(|&source| self.peers.peer(source).state != PeerState::Gone);
            let answer = self.transfers.answers.get_mut(&name).expect("each has its time");
            // Its source keeps no job longer than that either.
            if answer.expires_at <= now {
                self.retire_answer(&name);
                continue;
            }
            let wait_ms = (TRANSFER_ANSWER_MS << answer.tries.min(16)).min(TRANSFER_ANSWER_MAX_MS);
            answer.tries = answer.tries.saturating_add(1);
            self.transfers.plan(name, now.after_ms(wait_ms));
            if let Some(source) = source {
                self.say_answer(source, name);
            }
        }
    }

    fn transfer_name(&self, from: PeerNo, id: JobId, hop: u64) -> TransferName {
        TransferName {
            source: *self.peers.peer(from).id.as_bytes(),
            id,
            hop,
        }
    }
}

/// Store epochs that a message names, or comes with.
#[derive(Clone, Copy, Debug)]
pub(super) struct Epochs {
    /// Of the node that sent it.
    pub theirs: u64,
    /// That it means of this node.
    pub mine: u64,
}

/// Which transfer a job comes by.
#[derive(Clone, Copy, Debug)]
pub(super) struct By {
    pub hop: u64,
    pub want: u64,
}

fn queue_is_foreign(queue: &Blob, id: &JobId) -> bool {
    crate::slot::Slot::of_queue(queue) != id.slot()
}
