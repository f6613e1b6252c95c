//! The log, joined to the home: what the home's moves write, and what waits until it is written (`log.md`).
//!
//! | move | entry | what tells of it waits until it is |
//! | --- | --- | --- |
//! | ADDJOB | Added | safe |
//! | handed out, RETRY > 0 | State; left out while the log refuses it | - (but for the job's own Added) |
//! | handed out, RETRY 0 | State, and a sync is asked for | durable; under `appendfsync no` safe |
//! | brought back: its reply never reached the client | State | - |
//! | NACK, ENQUEUE, DEQUEUE, WORKING | State | safe |
//! | ACKJOB | Acked | safe |
//! | FASTACK, DELJOB | Gone | safe |
//! | expired, evicted | Gone | - |
//! | PAUSE | Queue | safe |
//! | DEBUG FLUSHALL | Flushed | safe |
//!
//! A job whose delay or lease ends writes nothing: a restart finds the same instant past. While an answer is made, `need` gathers
//! what it waits for; `Home::hold` and `Home::end` keep it back until the log has reached that. When entries fail, the
//! answers that were to tell of them become `-MISCONF`, and what they handed out goes back.

mod failure;
mod images;
mod transfers;

use std::collections::{BTreeMap, VecDeque};

use super::Home;
use super::job::Job;
use crate::bus::{BusMessage, PeerNo};
use crate::clock::{Mono, Now};
use crate::commands::addjob::AddJob;
use crate::commands::view::PauseState;
use crate::commands::{IdVerb, Request};
use crate::error::CommandError;
use crate::id::JobId;
use crate::limits::UPKEEP_STEP;
use crate::log::{
    AckedImage, AppendFsync, Done, Entry, Event, Holder, HoldersImage, Io, IoError, Log, Position,
    Thresholds, TransferName,
};
use crate::message::{Answer, Ticket};
use crate::wire::Blob;
use images::{Lives, can_populate, change, job_ref, queue_image};
use transfers::FreshTransfers;

/// What an answer waits for: all entries from the first to the last.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Need {
    first: Position,
    last: Position,
    durable: bool,
}

impl Need {
    fn of(position: Position) -> Self {
        Self {
            first: position,
            last: position,
            durable: false,
        }
    }

    /// Whether any entry from one place to another is among those that are waited for, or may be.
    pub fn touches(self, from: Position, to: Position) -> bool {
        self.first <= to && self.last >= from
    }

    fn and(self, other: Option<Self>) -> Self {
        let Some(other) = other else { return self };
        Self {
            first: self.first.min(other.first),
            last: self.last.max(other.last),
            durable: self.durable || other.durable,
        }
    }
}

/// What leaves when the log has reached it.
#[derive(Debug)]
pub enum Held {
    /// The end of a request.
    Answer(Ticket, Answer),
    /// What a peer is told.
    Bus(PeerNo, BusMessage),
    /// The sending of a job whose leaving is written: its ID, and the transfer's hop.
    Transfer(JobId, u64),
    /// A change of the node (FLUSHALL), by its number.
    Change(u64, Result<(), CommandError>),
}

#[derive(Debug)]
struct Waiting {
    /// `None`: nothing any more.
    need: Option<Need>,
    held: Held,
}

/// A job whose `added` is not safe yet.
#[derive(Clone, Copy, Debug)]
struct Fresh {
    ctime: u64,
    position: Position,
    key: u32,
}

/// How far the snapshots of a new log have come: keys of jobs, acknowledgements and queues, names of transfers.
#[derive(Clone, Copy, Debug)]
struct Populating {
    /// A first try failed: what stands in the log of it is to count for nothing.
    again: bool,
    jobs: u32,
    /// Acknowledgements that a start found in the log before: whether all are there, else up to which.
    restored: bool,
    after: Option<JobId>,
    acks: u32,
    queues: u32,
    /// Answers up to this one; `None` before the first.
    answers: Option<TransferName>,
    /// All answers are there.
    answered: bool,
}

impl Populating {
    fn from_the_start(again: bool) -> Self {
        Self {
            again,
            jobs: 0,
            restored: false,
            after: None,
            acks: 0,
            queues: 0,
            answers: None,
            answered: false,
        }
    }
}

/// The home's side of its log.
#[derive(Debug, Default)]
pub struct Journal {
    log: Option<Log>,
    /// Whether answers wait. In a log that is filled while clients are served they do from its last snapshot on: what was told
    /// before that is durable when the generation begins to count.
    gates: bool,
    now: Now,
    need: Option<Need>,
    /// In the order of creation.
    fresh: VecDeque<Fresh>,
    /// The same for jobs that other nodes made, in the order of their entries, and by key.
    fresh_copies: VecDeque<Fresh>,
    copies: BTreeMap<u32, Position>,
    /// What waits to be safe, and what waits to be durable, in the order of their making.
    waiting: [VecDeque<Waiting>; 2],
    transfers: FreshTransfers,
    populating: Option<Populating>,
    /// Where the snapshots of a new log end, once they are all appended.
    populated: Option<Position>,
    /// An orderly stop: nothing is written any more.
    stopped: bool,
    /// RETRY 0 jobs that were brought back while the log refused to hear of it.
    unwritten: VecDeque<JobId>,
    /// A RETRY 0 job could not be handed out since the log refused it.
    refused: Option<CommandError>,
}

/// What became of the log in a turn.
#[derive(Debug, Default)]
pub struct Turn {
    /// To be performed.
    pub ios: Vec<Io>,
    /// For the server's log.
    pub warnings: Vec<String>,
    /// The process must stop.
    pub fatal: Option<String>,
}

impl Journal {
    /// Entries of this input are of this time.
    pub fn begin(&mut self, now: Now) {
        self.now = now;
    }

    /// Whether there is a log to be told.
    #[inline]
    pub fn is_on(&self) -> bool {
        self.log.is_some()
    }

    /// A job of this shard's own is added. Whether it is to be told when the job's life ends ([`ended`](Self::ended)).
    pub fn added(&mut self, job: &Job, key: u32, queue: &Blob, holders: &[Holder]) -> bool {
        let Some(log) = self.log.as_mut().filter(|_| !self.stopped) else {
            return false;
        };
        let appended = log.append_added(&job_ref(job, queue, self.now, holders), true);
        if let Ok(position) = appended {
            let ctime = job.ctime;
            self.fresh.push_back(Fresh { ctime, position, key });
            self.must_be_safe(position);
        }
        appended.is_ok()
    }

    /// The life of a job is over that the log counts.
    pub fn ended(&mut self, ctime: u64) {
        if let Some(log) = &mut self.log {
            log.ended(ctime);
        }
    }

    /// A copy, or an import, was taken: its creation stamp is another node's.
    pub fn copied(&mut self, job: &Job, key: u32, queue: &Blob, holders: &[Holder]) {
        let Some(log) = self.log.as_mut().filter(|_| !self.stopped) else {
            return;
        };
        if let Ok(position) = log.append_added(&job_ref(job, queue, self.now, holders), false) {
            let ctime = job.ctime;
            self.copies.insert(key, position);
            self.fresh_copies.push_back(Fresh { ctime, position, key });
        }
    }

    /// What is told next waits for the `added` of this job of this node's own, when that is not safe yet.
    pub fn needs_added(&mut self, ctime: u64) {
        if let Some(position) = self.fresh_position(ctime) {
            self.must_be_safe(position);
        }
    }

    /// What is told next waits for the `added` of this job, a copy, when that is not safe yet.
    pub fn needs_copy(&mut self, key: u32) {
        if let Some(&position) = self.copies.get(&key) {
            self.must_be_safe(position);
        }
    }

    /// What is told of this job to other nodes waits for its `added`, when it is a copy and that is not safe yet.
    pub fn copy_need(&self, key: u32) -> Option<Need> {
        let position = self.copies.get(&key).filter(|_| self.gates)?;
        Some(Need::of(*position))
    }

    /// A job has other holders than before.
    pub fn holders(&mut self, id: JobId, holders: impl FnOnce() -> Vec<Holder>) {
        if self.log.is_some() {
            let holders = holders();
            self.append(&Entry::Holders(HoldersImage { id, holders }));
        }
    }

    /// A job's state changed, and nobody is told.
    pub fn noted(&mut self, job: &Job) {
        if self.log.is_some() {
            self.append(&Entry::State(change(job, self.now)));
        }
    }

    /// What the answer that is being made waits for so far.
    pub fn need(&self) -> Option<Need> {
        self.need
    }

    /// Where the last entry stands, for who tells of it.
    pub fn last_entry(&self) -> Option<Need> {
        let log = self.log.as_ref().filter(|_| self.gates)?;
        Some(Need::of(log.appended()))
    }

    /// Whether the log takes no copy of a job with so many bytes of name and body.
    pub fn refuses_copy(&self, raw_bytes: usize) -> bool {
        self.refuses_raw(false, raw_bytes).is_some()
    }

    /// A command changed a job's state.
    pub fn changed(&mut self, job: &Job) {
        if self.log.is_some()
            && let Some(position) = self.append(&Entry::State(change(job, self.now)))
        {
            self.must_be_safe(position);
        }
    }

    /// A job is handed out: its record has its new state.
    #[inline]
    pub fn handed_out(&mut self, job: &Job, key: u32) {
        if self.is_on() {
            self.log_handed_out(job, key);
        }
    }

    fn log_handed_out(&mut self, job: &Job, key: u32) {
        let log = self.log.as_mut().expect("looked at by the caller");
        let appended = log.append(&Entry::State(change(job, self.now)));
        if job.at_most_once() {
            let position = appended.expect("a RETRY 0 job is handed out only when the log takes it");
            let durable = log.fsync() != AppendFsync::No;
            if durable {
                log.request_sync();
            }
            let need = Need::of(position);
            self.must(Need { durable, ..need });
        }
        self.needs_added(job.ctime);
        self.needs_copy(key);
    }

    /// A handing out was undone.
    pub fn brought_back(&mut self, job: &Job) {
        if self.log.is_some()
            && self.append(&Entry::State(change(job, self.now))).is_none()
            && job.at_most_once()
        {
            self.unwritten.push_back(job.id);
        }
    }

    #[inline]
    pub fn acknowledged(&mut self, id: JobId, holders: impl FnOnce() -> Vec<Holder>) {
        if !self.is_on() {
            return;
        }
        let holders = holders();
        self.freed(&Entry::Acked(AckedImage { id, holders }));
    }

    /// A command removed a job.
    pub fn deleted(&mut self, id: JobId) {
        self.freed(&Entry::Gone(id));
    }

    /// A job is gone by itself: a restart comes to the same end without this entry.
    pub fn gone(&mut self, id: JobId) {
        if self.log.is_some() {
            self.append(&Entry::Gone(id));
        }
    }

    pub fn paused(&mut self, queue: &Blob, state: PauseState, version: u64) {
        if self.log.is_some()
            && let Some(position) = self.append(&Entry::Queue(queue_image(queue, state, version)))
        {
            self.must_be_safe(position);
        }
    }

    /// Why a request cannot be served at present; nothing was changed.
    #[inline]
    pub fn refuses(&self, request: &Request) -> Option<CommandError> {
        self.log.as_ref()?;
        self.log_refuses(request)
    }

    fn log_refuses(&self, request: &Request) -> Option<CommandError> {
        match request {
            Request::Add(add) => self.refuses_add(add),
            Request::Ids { verb, .. } => self.refuses_ids(*verb),
            Request::Working(_) => self.refuses_change(),
            Request::Pause(pause) if pause.state.is_some() => self.refuses_queue(pause.queue.len()),
            _ => None,
        }
    }

    /// Why a command about IDs cannot be served at present.
    pub fn refuses_ids(&self, verb: IdVerb) -> Option<CommandError> {
        match verb {
            IdVerb::Acknowledge | IdVerb::FastAcknowledge | IdVerb::Delete | IdVerb::DeleteEverywhere => {
                self.refuses_raw(true, 0)
            }
            IdVerb::Enqueue | IdVerb::Nack | IdVerb::Dequeue => self.refuses_change(),
        }
    }

    /// Why the state of a queue with so long a name cannot be changed at present.
    pub fn refuses_queue(&self, name_bytes: usize) -> Option<CommandError> {
        self.refuses_raw(false, name_bytes)
    }

    /// Why a job cannot be added at present.
    pub fn refuses_add(&self, add: &AddJob) -> Option<CommandError> {
        self.refuses_raw(false, add.queue.len() + add.body.len())
    }

    /// Why a job's state cannot be changed at present.
    pub fn refuses_change(&self) -> Option<CommandError> {
        self.refuses_raw(false, 0)
    }

    /// Whether a RETRY 0 job may not be handed out at present; remembered until [`Self::take_refusal`].
    pub fn refuses_hand_out(&mut self) -> bool {
        self.refused = self.refuses_change();
        self.refused.is_some()
    }

    fn refuses_raw(&self, frees_space: bool, raw_bytes: usize) -> Option<CommandError> {
        let misconf = self.log.as_ref()?.refuses_raw(frees_space, raw_bytes)?;
        Some(CommandError::Misconf(misconf.0))
    }

    /// Why the last pass over queues left a RETRY 0 job where it was, if it did.
    pub fn take_refusal(&mut self) -> Option<CommandError> {
        self.refused.take()
    }

    /// What the answer that is being made waits for; the next one begins anew.
    pub fn take_need(&mut self) -> Option<Need> {
        self.need.take()
    }

    /// Goes on with an answer whose making was interrupted by that of another.
    pub fn restore_need(&mut self, need: Option<Need>) {
        self.need = need;
    }

    fn freed(&mut self, entry: &Entry) {
        if self.log.is_some()
            && let Some(position) = self.append(entry)
        {
            self.must_be_safe(position);
        }
    }

    /// A refused entry is one that its caller asked about before, or that may be left out.
    fn append(&mut self, entry: &Entry) -> Option<Position> {
        if self.stopped {
            return None;
        }
        self.log.as_mut()?.append(entry).ok()
    }

    fn must_be_safe(&mut self, position: Position) {
        self.must(Need::of(position));
    }

    fn must(&mut self, need: Need) {
        if self.gates {
            self.need = Some(need.and(self.need));
        }
    }

    /// Where the `added` of a job stands that is not safe yet.
    fn fresh_position(&self, ctime: u64) -> Option<Position> {
        let at = self
            .fresh
            .binary_search_by_key(&ctime, |fresh| fresh.ctime)
            .ok()?;
        Some(self.fresh[at].position)
    }

    pub fn is_met(&self, need: Need) -> bool {
        let Some(log) = &self.log else { return true };
        let reached = if need.durable { log.durable() } else { log.safe() };
        // What must be durable must also be told in the order of what is safe.
        need.last <= reached
    }

    pub fn wait(&mut self, need: Need, held: Held) {
        self.waiting[usize::from(need.durable)].push_back(Waiting {
            need: Some(need),
            held,
        });
    }

    /// What may leave now.
    fn release(&mut self, released: &mut Vec<Held>) {
        let safe = self.log.as_ref().map_or(Position(u64::MAX), Log::safe);
        while self.fresh.front().is_some_and(|fresh| fresh.position <= safe) {
            self.fresh.pop_front();
        }
        while let Some(fresh) = self.fresh_copies.front().filter(|fresh| fresh.position <= safe) {
            if self.copies.get(&fresh.key) == Some(&fresh.position) {
                self.copies.remove(&fresh.key);
            }
            self.fresh_copies.pop_front();
        }
        self.transfers.safe(safe);
        for list in 0..self.waiting.len() {
            while let Some(front) = self.waiting[list].front()
                && front.need.is_none_or(|need| self.is_met(need))
            {
                released.extend(self.waiting[list].pop_front().map(|waiting| waiting.held));
            }
        }
    }
}

impl Home {
    /// Keeps an answer back until the log has reached what it tells of.
    #[inline]
    pub(super) fn hold(&mut self, ticket: Ticket, answer: Answer) -> Answer {
        match self.journal.take_need() {
            Some(need) if !self.journal.is_met(need) => {
                assert!(
                    !matches!(answer, Answer::Waiting),
                    "who waits has changed nothing"
                );
                self.journal.wait(need, Held::Answer(ticket, answer));
                Answer::Waiting
            }
            _ => answer,
        }
    }

    /// The way out for the answer to a request that was told to wait, or to a claim. It waits for what the log says.
    pub(super) fn end(&mut self, ticket: Ticket, answer: Answer) {
        assert!(!matches!(answer, Answer::Waiting), "an end is the end");
        match self.journal.take_need() {
            Some(need) if !self.journal.is_met(need) => {
                self.journal.wait(need, Held::Answer(ticket, answer));
            }
            _ => self.ends.push(Held::Answer(ticket, answer)),
        }
    }

    /// An end that tells of nothing that was written, perhaps while the answer to another request is made: what that waits for stays.
    pub(super) fn end_beside(&mut self, ticket: Ticket, answer: Answer) {
        self.ends.push(Held::Answer(ticket, answer));
    }

    /// Writes from now on to this log. What it holds already is what there is, or (`populate`) it is to be filled with that.
    pub fn begin_log(&mut self, mut log: Log, populate: bool) {
        log.hold_spares(!populate);
        self.journal.log = Some(log);
        self.journal.gates = false;
        self.journal.populated = None;
        self.journal.populating = populate.then(|| Populating::from_the_start(false));
    }

    /// The log's generation counts: from now on, at the latest, answers wait for it.
    pub fn log_counts(&mut self) {
        self.journal.gates = true;
        if let Some(log) = &mut self.journal.log {
            log.hold_spares(false);
        }
    }

    /// The log ends here; what waited for it leaves.
    pub fn end_log(&mut self) {
        self.journal.log = None;
        self.journal.gates = false;
        self.journal.populating = None;
        self.journal.unwritten.clear();
        self.journal.transfers.clear();
        self.journal.release(&mut self.ends);
    }

    /// An orderly stop: what nobody was told is undone, and the log gets its last mark; its position.
    pub fn stop_log(&mut self, now: Now) -> Position {
        self.journal.begin(now);
        for list in 0..self.journal.waiting.len() {
            for waiting in std::mem::take(&mut self.journal.waiting[list]) {
                if let Held::Answer(_, Answer::Jobs(jobs)) = waiting.held {
                    jobs.iter().for_each(|job| self.put_back(now.mono(), job.handed));
                }
            }
        }
        self.journal.stopped = true;
        self.journal.log.as_mut().expect("there is a log").stop()
    }

    /// The log, while there is one.
    pub fn log(&self) -> Option<&Log> {
        self.journal.log.as_ref()
    }

    /// What all that lives would take in the log, bytes.
    pub fn log_live_bytes(&self) -> u64 {
        self.stock.live_log_bytes()
    }

    /// Answers that wait for the log.
    pub fn answers_kept_back(&self) -> u64 {
        self.journal.waiting.iter().map(|list| list.len() as u64).sum()
    }

    /// The log, for its settings and its end.
    pub fn log_mut(&mut self) -> Option<&mut Log> {
        self.journal.log.as_mut()
    }

    /// Whether the log has begun, and holds durably all that lived when it was to be filled.
    pub fn log_is_ready(&self) -> bool {
        let durable = |log: &Log| self.journal.populated.is_none_or(|end| log.durable() >= end);
        let log = self.journal.log.as_ref();
        log.is_some_and(|log| log.started() && self.journal.populating.is_none() && durable(log))
    }

    /// The end of an I/O of the log.
    pub fn log_completed(&mut self, now: Now, io: u64, result: Result<Done, IoError>) -> Turn {
        self.journal.begin(now);
        if let Some(log) = &mut self.journal.log {
            log.completed(now, io, result);
        }
        let mut turn = Turn::default();
        self.take_log_events(now, &mut turn);
        self.journal.release(&mut self.ends);
        turn
    }

    /// The turn is over: what happened goes to disk together, and a step of compaction is made.
    pub fn log_turn(&mut self, now: Now) -> Turn {
        let mut turn = Turn::default();
        if self.journal.log.is_none() {
            return turn;
        }
        self.journal.begin(now);
        if !self.journal.stopped {
            self.write_unwritten(now.mono());
            self.populate(now);
        }
        let compacts = self.compacts();
        let Self {
            journal,
            stock,
            options,
            peers,
            pauses,
            transfers,
            repair,
            ..
        } = self;
        let (shards, hasher) = (options.shards, &self.hasher);
        let log = journal.log.as_mut().expect("there is a log");
        if compacts {
            log.compact(
                now,
                &mut Lives {
                    stock,
                    peers,
                    repair,
                    pauses,
                    transfers,
                    now,
                    shards,
                    hasher,
                },
            );
        }
        log.take_io(now, &mut turn.ios);
        self.take_log_events(now, &mut turn);
        self.journal.release(&mut self.ends);
        turn
    }

    /// When the log is to be looked after although nothing happened.
    pub fn log_deadline(&self) -> Option<Mono> {
        let log = self.journal.log.as_ref()?;
        let busy = self.journal.populating.is_some() && can_populate(log);
        let hears = |frees_space| log.refuses_raw(frees_space, 0).is_none();
        let states = !self.journal.unwritten.is_empty() && hears(false);
        let ends = !self.journal.transfers.unwritten.is_empty() && hears(true);
        let unwritten = (states || ends) && !self.journal.stopped;
        if busy || unwritten {
            return Some(Mono::default());
        }
        if self.compacts() {
            log.next_deadline()
        } else {
            log.next_deadline_of_writing()
        }
    }

    /// Not while the log is filled, nor behind its last mark.
    fn compacts(&self) -> bool {
        self.journal.populating.is_none() && !self.journal.stopped
    }

    /// FLUSHALL, in the log, before anything is flushed; the change is reported when that is safe. `false`: the log refuses it.
    pub fn log_flush(&mut self, now: Now, number: u64) -> bool {
        self.journal.begin(now);
        let position = match &mut self.journal.log {
            Some(log) => match log.append(&Entry::Flushed) {
                Ok(position) => Some(position),
                Err(misconf) => {
                    let error = CommandError::Misconf(misconf.0);
                    self.ends.push(Held::Change(number, Err(error)));
                    return false;
                }
            },
            None => None,
        };
        if let Some(populating) = &mut self.journal.populating {
            // What is there from now on writes its own entries.
            *populating = Populating {
                again: false,
                jobs: u32::MAX,
                restored: true,
                after: None,
                acks: u32::MAX,
                queues: u32::MAX,
                // These stay.
                ..*populating
            };
        }
        let change = Held::Change(number, Ok(()));
        match position.filter(|_| self.journal.gates).map(Need::of) {
            Some(need) if !self.journal.is_met(need) => self.journal.wait(need, change),
            _ => self.ends.push(change),
        }
        true
    }

    fn take_log_events(&mut self, now: Now, turn: &mut Turn) {
        let mut events = Vec::new();
        if let Some(log) = &mut self.journal.log {
            log.take_events(&mut events);
        }
        for event in events {
            match event {
                Event::Failed { from, to, reason } => {
                    turn.warnings.push(format!("Errors writing to the log: {reason}"));
                    self.log_failed(now, from, to, &reason);
                }
                Event::Fatal(message) => turn.fatal = Some(message),
                Event::Warning(warning) => turn.warnings.push(warning),
            }
        }
    }

    /// Tells the log of jobs that were brought back while it refused to hear.
    fn write_unwritten(&mut self, now: Mono) {
        let Self {
            journal,
            stock,
            options,
            ..
        } = self;
        journal.write_ends(UPKEEP_STEP, |id| stock.job_key(options.shards, id).is_some());
        for _ in 0..UPKEEP_STEP {
            let refuses = |log: &Log| log.refuses_raw(false, 0).is_some();
            if self.journal.log.as_ref().is_none_or(refuses) {
                return;
            }
            let Some(id) = self.journal.unwritten.pop_front() else {
                return;
            };
            if let Some(key) = self.find_job(now, &id) {
                self.journal
                    .append(&Entry::State(change(&self.stock.jobs[key], self.journal.now)));
            }
        }
    }
}

/// The thresholds of one shard.
pub fn thresholds(percentage: u64, min_bytes: u64, shards: u16) -> Thresholds {
    Thresholds {
        percentage: u32::try_from(percentage).unwrap_or(u32::MAX),
        min_bytes: min_bytes / u64::from(shards),
    }
}
