//! A shard's log while it runs: the writer and the circle of compaction behind one door.
//!
//! The order of calls, each turn: `append` for what happened; `compact` once; `take_io` and start what it gives; `completed`
//! for whatever ended; `take_events`; then let leave what `safe` (or `durable`) has reached. `next_deadline` says when time alone
//! brings work. An event of failure comes before anything later is reported safe.

use super::compaction::{Compaction, Live, Outcome, Thresholds};
use super::io::{AppendFsync, Done, Io, IoError, Misconf, Position, Start, WriterEvent, WriterOptions};
use super::record::{Entry, JobRef};
use super::writer::Writer;
use crate::clock::{Mono, Now};

/// What the owner of a log must be told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// `LogFailed`: the entries from the first to the last of these are not in the log.
    Failed {
        /// The first.
        from: Position,
        /// The last.
        to: Position,
        /// In the words of the system; goes behind `MISCONF`.
        reason: String,
    },
    /// The process must stop at once, with this message.
    Fatal(String),
    /// For the server's log.
    Warning(String),
}

/// A shard's log.
#[derive(Debug)]
pub struct Log {
    writer: Writer,
    compaction: Compaction,
    undone: u64,
    events: Vec<Event>,
    more: bool,
}

impl Log {
    /// A log that goes on behind what there is. Nothing may be told before it has [`started`](Self::started).
    pub fn new(options: WriterOptions, thresholds: Thresholds, start: Start) -> Self {
        Self {
            writer: Writer::new(options, start),
            compaction: Compaction::new(thresholds),
            undone: 0,
            events: Vec::new(),
            more: true,
        }
    }

    /// Takes an entry. Whoever tells of what it says waits for its position.
    pub fn append(&mut self, entry: &Entry) -> Result<Position, Misconf> {
        self.writer.append(entry)
    }

    /// Takes an `Entry::Added` whose parts stay where they are. A job that `counts` is one of this shard's own, newer than all before; the
    /// caller tells its end ([`ended`](Self::ended)).
    pub fn append_added(&mut self, job: &JobRef<'_>, counts: bool) -> Result<Position, Misconf> {
        self.writer.append_added(job, counts)
    }

    /// A job that was counted lives no more: a segment in which nothing lives goes without being read.
    pub fn ended(&mut self, ctime: u64) {
        self.writer.ended(ctime);
    }

    /// The segment in which the image of a counted job of this creation stamp stands, and how many it counts; for tests.
    pub fn counted_with(&self, ctime: u64) -> Option<(u64, u32)> {
        self.writer.counted_with(ctime)
    }

    /// Why an entry could not be taken at present: asked before a command changes anything.
    pub fn refuses(&self, entry: &Entry) -> Option<Misconf> {
        self.writer.refuses(entry)
    }

    /// The same for an entry of which only this is known: whether it frees space, and the bytes of name and body in it.
    pub fn refuses_raw(&self, frees_space: bool, raw_bytes: usize) -> Option<Misconf> {
        self.writer.refuses_raw(frees_space, raw_bytes)
    }

    /// Up to where messages may leave, under the present `appendfsync`.
    pub fn safe(&self) -> Position {
        self.writer.safe()
    }

    /// Up to where entries are synced: what the reply that hands out a RETRY 0 job waits for under `always` and `everysec`.
    pub fn durable(&self) -> Position {
        self.writer.durable()
    }

    /// A sync as soon as possible for all that was appended so far.
    pub fn request_sync(&mut self) {
        self.writer.request_sync();
    }

    /// The newest position.
    pub fn appended(&self) -> Position {
        self.writer.appended()
    }

    /// Whether the log has begun durably.
    pub fn started(&self) -> bool {
        self.writer.started()
    }

    /// Whether it makes no spare segments yet: a start holds them until every shard has begun.
    pub fn hold_spares(&mut self, holds: bool) {
        self.writer.hold_spares(holds);
    }

    /// The present `appendfsync`.
    pub fn fsync(&self) -> AppendFsync {
        self.writer.fsync()
    }

    /// `CONFIG SET appendfsync`.
    pub fn set_fsync(&mut self, fsync: AppendFsync) {
        self.writer.set_fsync(fsync);
    }

    /// `CONFIG SET` of the rewrite thresholds.
    pub fn set_thresholds(&mut self, thresholds: Thresholds) {
        self.compaction.set_thresholds(thresholds);
        self.more = true;
    }

    /// Writes the mark of an orderly stop: the process may end when its position is durable. Nothing may be appended after it, unless it fails.
    pub fn stop(&mut self) -> Position {
        self.writer.stop()
    }

    /// `BGREWRITEAOF`: all that is there now is compacted.
    pub fn force_compaction(&mut self) {
        let up_to = self.writer.active_number();
        self.writer.seal();
        self.compaction.force(up_to);
        self.more = true;
    }

    /// Whether a compaction is under way.
    pub fn is_compacting(&self) -> bool {
        self.compaction.is_running()
    }

    /// Segments that compaction has removed.
    pub fn segments_removed(&self) -> u64 {
        self.compaction.rounds()
    }

    /// A bounded step of compaction. Not after [`stop`](Self::stop).
    pub fn compact(&mut self, now: Now, live: &mut impl Live) {
        match self.compaction.step(now.mono(), &mut self.writer, live) {
            Ok(more) => self.more = more,
            Err(warning) => {
                self.more = false;
                self.events.push(Event::Warning(warning));
            }
        }
    }

    /// Somebody reads this segment: it stays until [`unpin`](Self::unpin).
    pub fn pin(&mut self, segment: u64) {
        self.compaction.pin(segment);
    }

    /// A reader of this segment is done.
    pub fn unpin(&mut self, segment: u64) {
        self.compaction.unpin(segment);
    }

    /// Why ordinary entries are, or may soon be, refused.
    pub fn misconf(&self) -> Option<Misconf> {
        self.writer.misconf()
    }

    /// Bytes of all records.
    pub fn log_bytes(&self) -> u64 {
        self.writer.log_bytes()
    }

    /// Bytes not written yet.
    pub fn pending_bytes(&self) -> u64 {
        self.writer.pending_bytes()
    }

    /// When the log is to be called although nothing happened.
    pub fn next_deadline(&self) -> Option<Mono> {
        let compaction = self.more.then_some(Mono(0)).or(self.compaction.resumes_at());
        [self.writer.next_deadline(), compaction]
            .into_iter()
            .flatten()
            .min()
    }

    /// The same for a log that is not compacted at present.
    pub fn next_deadline_of_writing(&self) -> Option<Mono> {
        self.writer.next_deadline()
    }

    /// What is to be done now.
    pub fn take_io(&mut self, now: Now, ios: &mut Vec<Io>) {
        self.writer.take_io(now.mono(), ios);
        self.compaction.take_io(ios);
    }

    /// The end of an I/O.
    pub fn completed(&mut self, now: Now, io: u64, result: Result<Done, IoError>) {
        match self
            .compaction
            .completed(now.mono(), &mut self.writer, io, &result)
        {
            Some(Outcome::Fine) => self.more = true,
            Some(Outcome::Warning(warning)) => self.events.push(Event::Warning(warning)),
            Some(Outcome::Fatal(message)) => self.events.push(Event::Fatal(message)),
            None => self.writer.completed(now.mono(), io, result),
        }
        if self.writer.undone() != self.undone {
            self.undone = self.writer.undone();
            self.compaction.failed(now.mono(), &mut self.writer);
        }
        // A round that waits for durability looks again.
        self.more |= self.compaction.is_waiting();
    }

    /// What happened, oldest first.
    pub fn take_events(&mut self, events: &mut Vec<Event>) {
        let mut written = Vec::new();
        self.writer.take_events(&mut written);
        events.extend(written.into_iter().map(|event| match event {
            WriterEvent::Failed { from, to, reason } => Event::Failed { from, to, reason },
            WriterEvent::Warning(warning) => Event::Warning(warning),
            WriterEvent::Fatal(message) => Event::Fatal(message),
        }));
        events.append(&mut self.events);
    }
}
