//! The way out: entries become records, records batches, batches writes; syncs follow as `appendfsync` says.
//!
//! ```text
//! append -> group (IDs of one record) -> batch -> Write under way -> written -> Sync under way -> durable
//! segments:  sealed ... sealed | active | spares: created, allocated and synced ahead
//! ```
//!
//! One write is under way at a time, so all that comes meanwhile goes with the next: that is the group commit of `always`. One
//! sync is under way at a time, beside the write. What must hold: writes complete in the order of places; a segment gets its
//! first record only when the one before its predecessor is synced; after a failed write nothing is written until the bytes that it
//! may have left are zeros and synced; a failed sync is the end.

use std::collections::VecDeque;

use bytes::Bytes;
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{RngCore, SeedableRng};
use thiserror::Error;

use super::batch::Batch;
use super::codec::{Group, HEADER_BYTES, Prepared};
use super::record::{Entry, Meta};
use super::segment::{FIRST_RECORD, SegmentHeader};
use crate::clock::{Mono, Now};
use crate::slot::ShardNo;

/// Bytes that wait to be written before ordinary entries are refused.
const PENDING_BYTES: u64 = 256 << 20;
/// Spare segments beyond the reserve.
const ORDINARY_SPARES: usize = 1;
/// How long after a failure the disk is tried again.
const RETRY_MS: u64 = 1_000;
/// `everysec`.
const SYNC_EVERY_MS: u64 = 1_000;
/// Room for the meta record at the head of a segment.
const META_BYTES: u64 = HEADER_BYTES as u64 + 64;

/// The number of an entry, counted from the start of the process; an entry that failed is never safe, whatever comes later.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Position(pub u64);

/// When what was written is synced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AppendFsync {
    /// By the kernel, some time.
    No,
    /// Once a second.
    EverySecond,
    /// Before anybody is told.
    Always,
}

/// What a writer is made of.
#[derive(Clone, Debug)]
pub struct WriterOptions {
    /// Whose log it is.
    pub shard: ShardNo,
    /// Generation of the data folder.
    pub generation: u64,
    /// Bytes of a segment's file.
    pub segment_bytes: u64,
    /// Spare segments kept for what frees space.
    pub reserve: usize,
    /// The setting at the start.
    pub fsync: AppendFsync,
    /// Chance for the random numbers of segments; another one at each start.
    pub seed: [u8; 32],
}

/// Where a log goes on: what recovery found, or `Start::fresh`.
#[derive(Clone, Debug)]
pub struct Start {
    /// What the first meta record says.
    pub meta: Meta,
    /// Place behind the last record.
    pub place: u64,
    /// Above the number of every segment that ever was.
    pub next_number: u64,
    /// Segments that are there, oldest first, all of them durable.
    pub old: Vec<Segment>,
    /// When the first sync of `everysec` counts from.
    pub now: Now,
}

/// An I/O that the server is to perform; its end is reported with its number.
#[derive(Debug)]
pub struct Io {
    /// Its number.
    pub id: u64,
    /// What to do.
    pub action: Action,
}

/// What to do. Each ends with a report, also when it failed.
#[derive(Debug)]
#[allow(missing_docs, reason = "the fields are those of a file")]
pub enum Action {
    /// Unlink `replaces`, create the segment's file (an old one of that name is replaced), allocate `bytes` of zeros, write the header
    /// at 0, sync file and folder. When it fails the file is unlinked again.
    Create {
        segment: u64,
        bytes: u64,
        header: [u8; 64],
        replaces: Vec<u64>,
    },
    /// Write the chunks one behind the other, all of them.
    Write {
        segment: u64,
        offset: u64,
        chunks: Vec<Bytes>,
    },
    /// fdatasync of all writes that completed before.
    Sync { segment: u64 },
    /// Read so many bytes; the report has fewer only at the end of the file.
    Read { segment: u64, offset: u64, bytes: u64 },
    /// Unlink the segment's file.
    Unlink { segment: u64 },
    /// fsync of the folder.
    SyncFolder,
}

/// How an I/O that succeeded ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Done {
    /// As asked for.
    Done,
    /// What was read.
    Read(Bytes),
}

/// Why an I/O failed.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum IoError {
    /// No space, or no quota.
    #[error("no space left on the device")]
    Full,
    /// Anything else, in the words of the system.
    #[error("{0}")]
    Other(String),
}

/// Entries cannot be taken at present; the text goes behind `MISCONF`.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{0}")]
pub struct Misconf(pub String);

/// What the owner must be told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WriterEvent {
    /// The entries from the first to the last of these are not in the log.
    Failed {
        from: Position,
        to: Position,
        reason: String,
    },
    /// The process must stop.
    Fatal(String),
}

/// A segment of the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segment {
    /// Its number.
    pub number: u64,
    /// Part of its records' checksums.
    pub random: u64,
    /// Bytes of its file.
    pub file_bytes: u64,
    /// Place of its first record.
    pub base: u64,
    /// Place behind its last record.
    pub end: u64,
    written: (u64, Position),
    synced: (u64, Position),
    sealed: bool,
    ready: bool,
}

impl Segment {
    /// A segment of an earlier process: sealed, and durable.
    pub fn old(number: u64, random: u64, file_bytes: u64, base: u64, end: u64) -> Self {
        let all = (end, Position(0));
        Self {
            number,
            random,
            file_bytes,
            base,
            end,
            written: all,
            synced: all,
            sealed: true,
            ready: true,
        }
    }

    fn new(spare: Spare, base: u64) -> Self {
        let none = (base, Position(0));
        Self {
            number: spare.number,
            random: spare.random,
            file_bytes: spare.file_bytes,
            base,
            end: base,
            written: none,
            synced: none,
            sealed: false,
            ready: spare.ready,
        }
    }

    fn room(&self) -> u64 {
        self.file_bytes - FIRST_RECORD - (self.end - self.base)
    }

    fn is_synced(&self) -> bool {
        self.sealed && self.synced.0 == self.end
    }

    fn offset_of(&self, place: u64) -> u64 {
        FIRST_RECORD + (place - self.base)
    }
}

#[derive(Clone, Copy, Debug)]
struct Spare {
    number: u64,
    random: u64,
    file_bytes: u64,
    ready: bool,
}

#[derive(Debug)]
struct Syncing {
    io: u64,
    segment: u64,
    up_to: (u64, Position),
    repairs: bool,
}

/// A write failed: these bytes are to be zeros before anything else is written.
#[derive(Debug)]
struct Repair {
    reason: String,
    segment: u64,
    offset: u64,
    bytes: u64,
    retry_at: Mono,
    io: Option<u64>,
    zeroed: bool,
}

/// Segments cannot be created.
#[derive(Debug)]
struct Trouble {
    reason: String,
    retry_at: Mono,
}

/// The way out. See the picture at the head of this file.
#[derive(Debug)]
pub struct Writer {
    options: WriterOptions,
    chance: ChaCha8Rng,
    meta: Meta,
    fsync: AppendFsync,
    relaxing: Option<(AppendFsync, Option<Position>)>,
    segments: VecDeque<Segment>,
    spares: VecDeque<Spare>,
    creating: Vec<(u64, u64)>,
    next_number: u64,
    next_io: u64,
    group: Option<(Group, Position)>,
    batches: VecDeque<Batch>,
    writing: Option<(u64, Batch)>,
    syncing: Option<Syncing>,
    appended: Position,
    written: Position,
    /// Place and position up to which everything is synced.
    durable: (u64, Position),
    wanted: Position,
    sync_started_at: Mono,
    repair: Option<Repair>,
    trouble: Option<Trouble>,
    undone: u64,
    ios: Vec<Io>,
    events: Vec<WriterEvent>,
}

impl Writer {
    /// A log that goes on behind what there is, in a new segment. It has [`started`](Self::started) when that segment's first record is durable.
    pub fn new(options: WriterOptions, start: Start) -> Self {
        assert!(
            options.segment_bytes >= FIRST_RECORD + 2 * META_BYTES,
            "a segment holds a record"
        );
        let mut writer = Self {
            chance: ChaCha8Rng::from_seed(options.seed),
            meta: Meta {
                always: options.fsync == AppendFsync::Always,
                stopped: false,
                ..start.meta
            },
            fsync: options.fsync,
            relaxing: None,
            segments: start.old.into(),
            spares: VecDeque::new(),
            creating: Vec::new(),
            next_number: start.next_number,
            next_io: 1,
            group: None,
            batches: VecDeque::new(),
            writing: None,
            syncing: None,
            appended: Position(1),
            written: Position(0),
            durable: (start.place, Position(0)),
            wanted: Position(1),
            sync_started_at: start.now.mono(),
            repair: None,
            trouble: None,
            undone: 0,
            ios: Vec::new(),
            events: Vec::new(),
            options,
        };
        writer.meta.lowest_segment = writer
            .segments
            .front()
            .map_or(writer.next_number, |oldest| oldest.number);
        writer.roll(start.place, META_BYTES);
        writer.place_meta();
        writer
    }

    /// Takes an entry. Whoever tells of what it says waits for its position.
    pub fn append(&mut self, entry: &Entry) -> Result<Position, Misconf> {
        assert!(!self.meta.stopped, "nothing follows an orderly stop");
        if let Some(misconf) = self.refuses(entry) {
            return Err(misconf);
        }
        if let Entry::Added(image) | Entry::JobSnapshot(image) = entry {
            self.meta.last_ctime = self.meta.last_ctime.max(image.ctime);
        }
        Ok(self.enter(entry))
    }

    /// Why an entry cannot be taken at present.
    pub fn refuses(&self, entry: &Entry) -> Option<Misconf> {
        if entry.frees_space() && self.pending_bytes() < 2 * PENDING_BYTES {
            return None;
        }
        if let Some(repair) = &self.repair {
            return Some(Misconf(format!("Errors writing to the log: {}", repair.reason)));
        }
        if self.pending_bytes() >= PENDING_BYTES {
            return Some(Misconf(
                "The disk is too slow for what is written to the log".into(),
            ));
        }
        let trouble = self.trouble.as_ref()?;
        let bytes = upper_bound(entry) + self.group_bytes();
        let fits = self.segments.back().is_some_and(|active| active.room() >= bytes);
        let oversize = FIRST_RECORD + META_BYTES + bytes > self.options.segment_bytes;
        if fits || (self.spares.len() > self.options.reserve && !oversize) {
            return None;
        }
        Some(Misconf(format!("The log cannot grow: {}", trouble.reason)))
    }

    /// Up to where messages may leave.
    pub fn safe(&self) -> Position {
        if self.is_always() {
            self.durable()
        } else {
            self.written
        }
    }

    /// Up to where entries survive the loss of power.
    pub fn durable(&self) -> Position {
        self.durable.1
    }

    /// A sync as soon as possible for what was appended so far, one for all that ask.
    pub fn request_sync(&mut self) {
        self.wanted = self.appended;
    }

    /// Number of the newest entry.
    pub fn appended(&self) -> Position {
        self.appended
    }

    /// Whether the first record of this process is durable: nothing may be told before.
    pub fn started(&self) -> bool {
        self.durable() >= Position(1)
    }

    /// `CONFIG SET appendfsync`. Leaving `always` takes effect when the log says so durably.
    pub fn set_fsync(&mut self, fsync: AppendFsync) {
        if fsync == AppendFsync::Always || !self.meta.always {
            self.relaxing = None;
            self.fsync = fsync;
            self.wanted = if fsync == AppendFsync::Always {
                self.appended
            } else {
                self.wanted
            };
        } else {
            self.relaxing = Some((fsync, None));
        }
    }

    /// The mark of an orderly stop: the process may end when its position is durable.
    pub fn stop(&mut self) -> Position {
        self.meta.stopped = true;
        self.append_meta()
    }

    /// The oldest segment's number is from here on `lowest`; the position of the record that says so.
    pub fn raise_lowest(&mut self, lowest: u64) -> Position {
        self.meta.lowest_segment = lowest;
        self.append_meta()
    }

    /// Takes [`raise_lowest`](Self::raise_lowest) back, since its record failed.
    pub fn reset_lowest(&mut self) {
        self.meta.lowest_segment = self
            .segments
            .front()
            .map_or(self.next_number, |oldest| oldest.number);
    }

    /// The oldest segment, when nothing is written to it any more.
    pub fn oldest_sealed(&self) -> Option<Segment> {
        self.segments.front().copied().filter(|oldest| oldest.is_synced())
    }

    /// The number of the segment behind this one.
    pub fn number_behind(&self, number: u64) -> u64 {
        let behind = self.segments.iter().find(|segment| segment.number > number);
        behind.expect("only a sealed segment is asked for").number
    }

    /// Forgets the oldest segment: it is unlinked.
    pub fn forget(&mut self, number: u64) {
        let oldest = self.segments.pop_front();
        assert_eq!(
            oldest.map(|oldest| oldest.number),
            Some(number),
            "the oldest goes first"
        );
    }

    /// Bytes of all records.
    pub fn log_bytes(&self) -> u64 {
        self.segments
            .iter()
            .map(|segment| segment.end - segment.base)
            .sum()
    }

    /// Number of the segment that is written to.
    pub fn active_number(&self) -> u64 {
        self.segments
            .back()
            .map_or(self.next_number, |active| active.number)
    }

    /// Seals the active segment, when it holds anything: what compaction is forced to.
    pub fn seal(&mut self) {
        self.close_group();
        if let Some(place) = self
            .segments
            .back()
            .filter(|active| active.end > active.base)
            .map(|active| active.end)
        {
            self.roll(place, META_BYTES);
        }
    }

    /// Whether the reserve is all that is left, or the disk fails: the text of `-MISCONF`.
    pub fn misconf(&self) -> Option<Misconf> {
        let reason = self.repair.as_ref().map(|repair| &repair.reason);
        reason
            .or(self.trouble.as_ref().map(|trouble| &trouble.reason))
            .cloned()
            .map(Misconf)
    }

    /// How often the end of the log was taken back.
    pub fn undone(&self) -> u64 {
        self.undone
    }

    /// Bytes that wait to be written or are being written.
    pub fn pending_bytes(&self) -> u64 {
        let writing = self.writing.as_ref().map_or(0, |(_, batch)| batch.bytes());
        writing + self.batches.iter().map(Batch::bytes).sum::<u64>()
    }

    /// When `take_io` has something to do that nothing but time brings about.
    pub fn next_deadline(&self) -> Option<Mono> {
        let everysec = self.fsync == AppendFsync::EverySecond
            && self.syncing.is_none()
            && self.oldest_unsynced().is_some();
        let sync = everysec.then(|| self.sync_started_at.after_ms(SYNC_EVERY_MS));
        let repair = self
            .repair
            .as_ref()
            .filter(|repair| repair.io.is_none() && !repair.zeroed);
        let trouble = self.trouble.as_ref().map(|trouble| trouble.retry_at);
        [sync, repair.map(|repair| repair.retry_at), trouble]
            .into_iter()
            .flatten()
            .min()
    }

    /// What is to be done now.
    pub fn take_io(&mut self, now: Mono, ios: &mut Vec<Io>) {
        self.relax();
        self.close_group();
        self.start_repair(now);
        self.start_write();
        self.start_sync(now);
        self.start_creating(now);
        ios.append(&mut self.ios);
    }

    /// What happened.
    pub fn take_events(&mut self, events: &mut Vec<WriterEvent>) {
        events.append(&mut self.events);
    }

    /// A number for an I/O of the owner.
    pub fn io_number(&mut self) -> u64 {
        self.next_io += 1;
        self.next_io - 1
    }

    /// The end of an I/O that [`take_io`](Self::take_io) gave.
    pub fn completed(&mut self, now: Mono, io: u64, result: Result<Done, IoError>) {
        if let Some((_, batch)) = self.writing.take_if(|(writing, _)| *writing == io) {
            return match result {
                Ok(_) => self.wrote(&batch),
                Err(error) => self.write_failed(now, batch, &error),
            };
        }
        if let Some(syncing) = self.syncing.take_if(|syncing| syncing.io == io) {
            return self.synced(&syncing, result);
        }
        if self.repair.as_ref().is_some_and(|repair| repair.io == Some(io)) {
            return self.zeroed(now, result);
        }
        let creating = self.creating.iter().position(|(create, _)| *create == io);
        let creating = creating.unwrap_or_else(|| panic!("I/O {io} is not under way"));
        let (_, number) = self.creating.swap_remove(creating);
        match result {
            Ok(_) => self.created(number),
            Err(error) => self.create_failed(now, number, &error),
        }
    }

    fn is_always(&self) -> bool {
        self.fsync == AppendFsync::Always || !self.started()
    }

    fn enter(&mut self, entry: &Entry) -> Position {
        let position = Position(self.appended.0 + 1);
        let taken = self.group.as_mut().is_some_and(|(group, _)| group.take(entry));
        if !taken {
            self.close_group();
            match Group::start(entry) {
                Some(group) => self.group = Some((group, position)),
                None => self.place_record(&Prepared::entry(entry), position, position),
            }
        }
        self.appended = position;
        position
    }

    fn append_meta(&mut self) -> Position {
        self.close_group();
        self.appended = Position(self.appended.0 + 1);
        let bytes = META_BYTES;
        self.make_room(bytes);
        self.place_meta();
        self.wanted = self.appended;
        self.appended
    }

    fn close_group(&mut self) {
        if let Some((group, first)) = self.group.take() {
            self.place_record(&Prepared::group(&group), first, self.appended);
        }
    }

    fn group_bytes(&self) -> u64 {
        self.group
            .as_ref()
            .map_or(0, |(group, _)| Prepared::group(group).padded_bytes())
    }

    fn place_record(&mut self, prepared: &Prepared, first: Position, last: Position) {
        self.make_room(prepared.padded_bytes());
        if self
            .segments
            .back()
            .is_some_and(|active| active.end == active.base)
        {
            self.place_meta_at(first);
        }
        self.push(prepared, first, last);
    }

    fn place_meta(&mut self) {
        self.place_meta_at(self.appended);
    }

    fn place_meta_at(&mut self, position: Position) {
        let base = self.segments.back().expect("rolled").base;
        let prepared = Prepared::entry(&Entry::Meta(Meta { base, ..self.meta }));
        self.push(&prepared, position, position);
    }

    /// Adds a record to the last batch of the active segment.
    fn push(&mut self, prepared: &Prepared, first: Position, last: Position) {
        let durable = self.durable_place();
        let active = self.segments.back_mut().expect("rolled");
        if self
            .batches
            .back()
            .is_none_or(|batch| batch.segment != active.number)
        {
            let batch = Batch::new(active.number, active.offset_of(active.end), active.end, first);
            self.batches.push_back(batch);
        }
        let batch = self.batches.back_mut().expect("pushed above");
        batch.push(prepared, active.random, durable, last);
        active.end += prepared.padded_bytes();
        assert!(
            active.offset_of(active.end) <= active.file_bytes,
            "a record fits its segment"
        );
    }

    fn make_room(&mut self, bytes: u64) {
        let active = self.segments.back().expect("there is one from the start");
        let head = if active.end == active.base { META_BYTES } else { 0 };
        if active.room() < bytes + head {
            self.roll(active.end, bytes);
        }
    }

    /// Goes on in the next segment, one that holds a record of so many bytes.
    fn roll(&mut self, base: u64, bytes: u64) {
        if let Some(active) = self.segments.back_mut() {
            active.sealed = true;
        }
        let needed = FIRST_RECORD + META_BYTES + bytes;
        let spare = match self.spares.front() {
            Some(spare) if spare.file_bytes >= needed => *spare,
            _ => {
                // Spares that are too small give way to one segment that is large enough: their numbers are lower than its own.
                let replaces = self.spares.drain(..).map(|spare| spare.number).collect();
                self.create(needed.max(self.options.segment_bytes), replaces, true)
            }
        };
        self.spares.retain(|other| other.number != spare.number);
        self.segments.push_back(Segment::new(spare, base));
    }

    fn create(&mut self, file_bytes: u64, replaces: Vec<u64>, first: bool) -> Spare {
        let spare = Spare {
            number: self.next_number,
            random: self.chance.next_u64(),
            file_bytes,
            ready: false,
        };
        self.next_number += 1;
        if first {
            self.spares.push_front(spare);
        } else {
            self.spares.push_back(spare);
        }
        let header = SegmentHeader {
            shard: self.options.shard,
            number: spare.number,
            generation: self.options.generation,
            random: spare.random,
            file_bytes,
        };
        let segment = spare.number;
        let io = self.push_io(Action::Create {
            segment,
            bytes: file_bytes,
            header: header.encode(),
            replaces,
        });
        self.creating.push((io, segment));
        spare
    }

    fn push_io(&mut self, action: Action) -> u64 {
        let id = self.io_number();
        self.ios.push(Io { id, action });
        id
    }

    fn durable_place(&self) -> u64 {
        self.durable.0
    }

    fn oldest_unsynced(&self) -> Option<&Segment> {
        // Places only grow. A segment that was sealed empty, for a record too large for it, says nothing about those before it.
        let durable = self.durable.0;
        let newest = self
            .segments
            .iter()
            .rev()
            .take_while(|segment| segment.end > durable || segment.end == segment.base);
        newest
            .filter(|segment| segment.synced.0 < segment.written.0)
            .last()
    }

    fn segment_mut(&mut self, number: u64) -> &mut Segment {
        let found = self
            .segments
            .iter_mut()
            .rev()
            .find(|segment| segment.number == number);
        found.expect("a segment with I/O under way is one of the log's")
    }

    fn start_write(&mut self) {
        if self.writing.is_some() || self.repair.is_some() {
            return;
        }
        let Some(batch) = self.batches.front() else { return };
        let at = self
            .segments
            .iter()
            .rposition(|segment| segment.number == batch.segment);
        let at = at.expect("a batch belongs to a segment");
        let first_of_segment = batch.start == self.segments[at].base;
        let predecessors_synced = at < 2 || self.segments[at - 2].is_synced();
        if !self.segments[at].ready || (first_of_segment && !predecessors_synced) {
            return;
        }
        let mut batch = self.batches.pop_front().expect("looked at above");
        let (segment, offset, chunks) = (batch.segment, batch.offset, batch.take_chunks());
        let io = self.push_io(Action::Write {
            segment,
            offset,
            chunks,
        });
        self.writing = Some((io, batch));
    }

    fn start_sync(&mut self, now: Mono) {
        if self.syncing.is_some() {
            return;
        }
        let mut repairs = self
            .repair
            .as_ref()
            .filter(|repair| repair.zeroed)
            .map(|repair| repair.segment);
        let unsynced = self.oldest_unsynced().copied();
        if unsynced.is_some_and(|oldest| repairs.is_some_and(|number| oldest.number < number)) {
            repairs = None;
        }
        let oldest = match (repairs, unsynced) {
            (Some(number), _) => *self.segment_mut(number),
            (None, Some(oldest)) if self.repair.is_some() || self.sync_is_due(now, &oldest) => oldest,
            _ => return,
        };
        let io = self.push_io(Action::Sync {
            segment: oldest.number,
        });
        self.sync_started_at = now;
        self.syncing = Some(Syncing {
            io,
            segment: oldest.number,
            up_to: oldest.written,
            repairs: repairs.is_some(),
        });
    }

    fn sync_is_due(&self, now: Mono, oldest: &Segment) -> bool {
        let sealed = oldest.sealed && oldest.written.0 == oldest.end;
        let second =
            self.fsync == AppendFsync::EverySecond && now >= self.sync_started_at.after_ms(SYNC_EVERY_MS);
        sealed || second || self.is_always() || self.wanted > self.durable()
    }

    fn start_creating(&mut self, now: Mono) {
        if self
            .trouble
            .as_ref()
            .is_some_and(|trouble| now < trouble.retry_at)
        {
            return;
        }
        if self.spares.len() >= self.options.reserve + ORDINARY_SPARES {
            self.trouble = None;
        }
        // After a failure one at a time, until one succeeds.
        let limit = if self.trouble.is_some() { 1 } else { usize::MAX };
        while self.spares.len() < self.options.reserve + ORDINARY_SPARES && self.creating.len() < limit {
            self.create(self.options.segment_bytes, Vec::new(), false);
        }
        if let Some(trouble) = &mut self.trouble {
            trouble.retry_at = now.after_ms(RETRY_MS);
        }
    }

    fn start_repair(&mut self, now: Mono) {
        let Some(repair) = &mut self.repair else { return };
        if repair.io.is_some() || repair.zeroed || now < repair.retry_at {
            return;
        }
        let (segment, offset, bytes) = (repair.segment, repair.offset, repair.bytes);
        let io = self.push_io(Action::Write {
            segment,
            offset,
            chunks: zeros(bytes),
        });
        self.repair.as_mut().expect("as above").io = Some(io);
    }

    fn wrote(&mut self, batch: &Batch) {
        let segment = self.segment_mut(batch.segment);
        assert_eq!(segment.written.0, batch.start, "writes complete in order");
        segment.written = (batch.end, batch.last);
        self.written = batch.last;
    }

    fn synced(&mut self, syncing: &Syncing, result: Result<Done, IoError>) {
        if let Err(error) = result {
            return self.events.push(WriterEvent::Fatal(format!(
                "fdatasync of the log failed: {error}"
            )));
        }
        let segment = self.segment_mut(syncing.segment);
        segment.synced = segment.synced.max(syncing.up_to);
        // Segments are synced oldest first, so all before is synced as well.
        self.durable = self.durable.max(syncing.up_to);
        if syncing.repairs {
            self.repair = None;
        }
    }

    fn write_failed(&mut self, now: Mono, batch: Batch, error: &IoError) {
        if !self.started() {
            return self
                .events
                .push(WriterEvent::Fatal(format!("the log cannot be started: {error}")));
        }
        self.repair = Some(Repair {
            reason: error.to_string(),
            segment: batch.segment,
            offset: batch.offset,
            bytes: batch.bytes(),
            retry_at: now,
            io: None,
            zeroed: false,
        });
        let (segment, start) = (batch.segment, batch.start);
        self.batches.push_front(batch);
        self.undo(segment, start, &error.to_string());
    }

    /// Gives up all batches from this place on, and the segments behind; the log goes on here.
    fn undo(&mut self, segment: u64, place: u64, reason: &str) {
        let kept = self
            .batches
            .iter()
            .position(|batch| batch.start >= place)
            .unwrap_or(self.batches.len());
        let dropped = self.batches.split_off(kept);
        let group = self.group.take().map(|(_, first)| first);
        let from = dropped.front().map(|batch| batch.first).or(group);
        while let Some(last) = self.segments.pop_back_if(|last| last.number != segment) {
            let Segment {
                number,
                random,
                file_bytes,
                ready,
                ..
            } = last;
            self.spares.push_front(Spare {
                number,
                random,
                file_bytes,
                ready,
            });
        }
        let active = self.segments.back_mut().expect("the segment is one of the log's");
        active.end = place;
        active.sealed = false;
        if let Some((_, position @ Some(_))) = &mut self.relaxing {
            *position = None;
        }
        self.meta.stopped = false;
        self.undone += 1;
        if let Some(from) = from {
            let (to, reason) = (self.appended, reason.to_owned());
            self.events.push(WriterEvent::Failed { from, to, reason });
        }
    }

    fn zeroed(&mut self, now: Mono, result: Result<Done, IoError>) {
        let repair = self.repair.as_mut().expect("one is under way");
        repair.io = None;
        match result {
            Ok(_) => repair.zeroed = true,
            Err(error) => {
                repair.reason = error.to_string();
                repair.retry_at = now.after_ms(RETRY_MS);
            }
        }
    }

    fn created(&mut self, number: u64) {
        self.trouble = None;
        if let Some(spare) = self.spares.iter_mut().find(|spare| spare.number == number) {
            spare.ready = true;
        } else if let Some(segment) = self
            .segments
            .iter_mut()
            .rev()
            .find(|segment| segment.number == number)
        {
            segment.ready = true;
        }
    }

    fn create_failed(&mut self, now: Mono, number: u64, error: &IoError) {
        let (reason, retry_at) = (error.to_string(), now.after_ms(RETRY_MS));
        self.trouble = Some(Trouble {
            reason: reason.clone(),
            retry_at,
        });
        self.spares.retain(|spare| spare.number != number);
        let Some(at) = self.segments.iter().position(|segment| segment.number == number) else {
            return;
        };
        if at == 0 || !self.started() {
            return self
                .events
                .push(WriterEvent::Fatal(format!("the log cannot be created: {reason}")));
        }
        let (before, place) = (self.segments[at - 1].number, self.segments[at].base);
        self.undo(before, place, &reason);
        self.spares.retain(|spare| spare.number != number);
    }

    fn relax(&mut self) {
        match self.relaxing {
            Some((fsync, Some(position))) if self.durable() >= position => {
                self.fsync = fsync;
                self.relaxing = None;
            }
            Some((fsync, None)) if self.repair.is_none() && !self.meta.stopped => {
                self.meta.always = false;
                self.relaxing = Some((fsync, Some(self.append_meta())));
            }
            _ => {}
        }
    }
}

/// At least as many bytes as the record of an entry takes, the head of a segment included.
fn upper_bound(entry: &Entry) -> u64 {
    let raw = match entry {
        Entry::Added(image) | Entry::JobSnapshot(image) => {
            image.queue.len() + image.body.len() + 28 * image.holders.len()
        }
        Entry::Queue(image) | Entry::QueueSnapshot(image) => image.name.len(),
        Entry::Acked(image) | Entry::AckedSnapshot(image) => 28 * image.holders.len(),
        Entry::State(_) | Entry::Gone(_) | Entry::Flushed | Entry::Meta(_) => 0,
    };
    raw as u64 + 256 + META_BYTES
}

fn zeros(bytes: u64) -> Vec<Bytes> {
    static ZEROS: [u8; 1 << 16] = [0; 1 << 16];
    let whole = Bytes::from_static(&ZEROS);
    let mut chunks = vec![whole.clone(); (bytes >> 16) as usize];
    chunks.push(whole.slice(..(bytes & 0xffff) as usize));
    chunks
}
