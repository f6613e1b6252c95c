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

mod disk;
mod place;

use std::collections::VecDeque;

use bytes::BytesMut;
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{RngCore, SeedableRng};

use super::batch::Batch;
use super::codec::{Group, HEADER_BYTES, Prepared};
use super::io::{AppendFsync, Done, Io, IoError, Misconf, Position, Start, WriterEvent, WriterOptions};
use super::record::{Entry, JobImage, JobRef, Kind, Meta};
use super::segment::{FIRST_RECORD, SegmentHeader};
use crate::clock::Mono;

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
    /// Jobs whose only image stands here, and which live.
    living: u32,
    /// Those have creation stamps above the first and up to the second of these.
    stamps: (u64, u64),
    /// There are other images in it, and nobody counts what lives of those.
    uncounted: bool,
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
            living: 0,
            stamps: (0, 0),
            uncounted: true,
        }
    }

    fn new(spare: Spare, base: u64, last_stamp: u64) -> Self {
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
            living: 0,
            stamps: (last_stamp, last_stamp),
            uncounted: false,
        }
    }

    /// Whether nothing of what stands in it lives.
    pub fn is_dead(&self) -> bool {
        self.living == 0 && !self.uncounted
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
    /// An empty buffer, kept for its room.
    room: BytesMut,
    writing: Option<(u64, Batch)>,
    syncing: Option<Syncing>,
    appended: Position,
    /// Creation stamp of the last job that was counted.
    last_stamp: u64,
    written: Position,
    /// Place and position up to which everything is synced.
    durable: (u64, Position),
    /// A sync was asked for up to here; the next one starts when `due` is written.
    wanted: Position,
    due: Position,
    /// Up to where the last sync went that was started.
    sync_started_up_to: Position,
    sync_started_at: Mono,
    repair: Option<Repair>,
    trouble: Option<Trouble>,
    /// No spares are made yet.
    holds_spares: bool,
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
            room: BytesMut::new(),
            writing: None,
            syncing: None,
            appended: Position(1),
            last_stamp: 0,
            written: Position(0),
            durable: (start.place, Position(0)),
            wanted: Position(1),
            due: Position(1),
            sync_started_up_to: Position(0),
            sync_started_at: start.now.mono(),
            repair: None,
            trouble: None,
            holds_spares: false,
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
        if let Entry::Transfer(image) | Entry::TransferSnapshot(image) = entry {
            self.meta.last_ctime = self.meta.last_ctime.max(image.newest_stamp());
        }
        Ok(self.enter(entry))
    }

    /// Takes an `Entry::Added` whose parts stay where they are. A job that `counts` is one of this shard's own, newer than all before; the
    /// caller tells its end ([`ended`](Self::ended)).
    pub fn append_added(&mut self, job: &JobRef<'_>, counts: bool) -> Result<Position, Misconf> {
        assert!(!self.meta.stopped, "nothing follows an orderly stop");
        let raw_bytes = job.queue.len() + job.body.len() + 28 * job.holders.len();
        if let Some(misconf) = self.refuses_raw(false, raw_bytes) {
            return Err(misconf);
        }
        self.meta.last_ctime = self.meta.last_ctime.max(job.ctime);
        let position = Position(self.appended.0 + 1);
        let room = self.segments.back().map_or(0, Segment::room);
        let taken = counts
            && self
                .group
                .as_mut()
                .is_some_and(|(group, _)| group.take_job(job, room));
        if !taken {
            self.close_group();
            match Group::start_job(job).filter(|_| counts) {
                Some(group) => self.group = Some((group, position)),
                None => {
                    self.place_record(&Prepared::job(Kind::Added, job), position, position);
                    if counts {
                        self.count(1, job.ctime, job.ctime);
                    } else {
                        self.segments
                            .back_mut()
                            .expect("the record stands in it")
                            .uncounted = true;
                    }
                }
            }
        }
        self.appended = position;
        Ok(position)
    }

    /// So many jobs of this shard's own, with creation stamps from the first to the last, stand in the active segment.
    fn count(&mut self, jobs: u32, first: u64, last: u64) {
        assert!(first > self.last_stamp, "a shard's own jobs come in their order");
        let active = self.segments.back_mut().expect("their record stands in it");
        if active.stamps.0 == active.stamps.1 {
            active.stamps.0 = first - 1;
        }
        active.stamps.1 = last;
        active.living += jobs;
        self.last_stamp = last;
    }

    /// A job that was counted lives no more. One whose image stands elsewhere by now is counted nowhere.
    pub fn ended(&mut self, ctime: u64) {
        if let Some(at) = self.segment_with(ctime) {
            let segment = &mut self.segments[at];
            assert!(segment.living > 0, "a job ends once");
            segment.living -= 1;
        }
    }

    /// The segment with the image of a counted job, and how many it counts.
    pub fn counted_with(&self, ctime: u64) -> Option<(u64, u32)> {
        let segment = &self.segments[self.segment_with(ctime)?];
        Some((segment.number, segment.living))
    }

    fn segment_with(&self, ctime: u64) -> Option<usize> {
        let at = self.segments.partition_point(|segment| segment.stamps.1 < ctime);
        let segment = self.segments.get(at)?;
        (segment.stamps.0 < ctime).then_some(at)
    }

    /// Why an entry cannot be taken at present.
    pub fn refuses(&self, entry: &Entry) -> Option<Misconf> {
        self.refuses_raw(entry.frees_space(), raw_bytes(entry))
    }

    /// The same for an entry of which only this is known: whether it frees space, and the bytes of what is raw in it.
    pub fn refuses_raw(&self, frees_space: bool, raw_bytes: usize) -> Option<Misconf> {
        if frees_space && self.pending_bytes() < 2 * PENDING_BYTES {
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
        let bytes = upper_bound(raw_bytes) + self.group_bytes();
        // The rest of a segment of the reserve belongs to it too.
        let (ready, reserve) = (self.ready_spares(), self.options.reserve);
        let fits = ready >= reserve && self.segments.back().is_some_and(|active| active.room() >= bytes);
        let oversize = FIRST_RECORD + META_BYTES + bytes > self.options.segment_bytes;
        if fits || (ready > reserve && !oversize) {
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
        if self.due <= self.sync_started_up_to {
            self.due = self.wanted;
        }
    }

    /// Number of the newest entry.
    pub fn appended(&self) -> Position {
        self.appended
    }

    /// Whether the first record of this process is durable: nothing may be told before.
    pub fn started(&self) -> bool {
        self.durable() >= Position(1)
    }

    /// The present `appendfsync`.
    pub fn fsync(&self) -> AppendFsync {
        self.fsync
    }

    /// `CONFIG SET appendfsync`. Leaving `always` takes effect when the log says so durably.
    pub fn set_fsync(&mut self, fsync: AppendFsync) {
        if fsync == AppendFsync::Always || !self.meta.always {
            self.relaxing = None;
            self.fsync = fsync;
            if fsync == AppendFsync::Always {
                self.request_sync();
            }
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
        self.meta.lowest_segment = self.lowest_behind(0).unwrap_or(self.next_number);
    }

    /// The first segment behind this number that is needed: not one that was sealed empty, which a start takes for a spare.
    fn lowest_behind(&self, number: u64) -> Option<u64> {
        let mut behind = self.segments.iter().filter(|segment| segment.number > number);
        let needed = |segment: &&Segment| !segment.sealed || segment.end > segment.base;
        behind.find(needed).map(|segment| segment.number)
    }

    /// Number of the oldest segment.
    pub fn oldest_number(&self) -> u64 {
        self.segments.front().expect("there is one from the start").number
    }

    /// The oldest segment, when nothing is written to it any more.
    pub fn oldest_sealed(&self) -> Option<Segment> {
        self.segments.front().copied().filter(|oldest| oldest.is_synced())
    }

    /// The number of the segment behind this one that is the lowest when this one is gone.
    pub fn number_behind(&self, number: u64) -> u64 {
        let behind = self.lowest_behind(number);
        behind.expect("only a sealed segment is asked for")
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

    /// Place behind the last record.
    pub fn end_place(&self) -> u64 {
        self.segments.back().map_or(self.durable.0, |last| last.end)
    }

    /// Bytes of all records.
    pub fn log_bytes(&self) -> u64 {
        self.segments
            .iter()
            .map(|segment| segment.end - segment.base)
            .sum()
    }

    /// Makes no spares until it is told to: on a full disk the little room that there is is for the first segment of each shard.
    pub fn hold_spares(&mut self, holds: bool) {
        self.holds_spares = holds;
    }

    /// When the disk has no room for the next segments: the size of one. As many bytes that are dead make room for it.
    pub fn lacks_bytes(&self) -> Option<u64> {
        self.trouble.as_ref().map(|_| self.options.segment_bytes)
    }

    /// A segment was unlinked: there may be room for another at once.
    pub fn room_was_made(&mut self) {
        if let Some(trouble) = &mut self.trouble {
            trouble.retry_at = Mono(0);
        }
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
        // Each batch begins where the one before ends.
        let writing = self.writing.as_ref().map(|(_, batch)| batch);
        let first = writing.or(self.batches.front()).map_or(0, |batch| batch.start);
        let last = self.batches.back().or(writing).map_or(0, |batch| batch.end);
        last - first
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
                Ok(_) => self.wrote(batch),
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

    /// Spares that may be written to. One that is being created may never be.
    fn ready_spares(&self) -> usize {
        self.spares.iter().filter(|spare| spare.ready).count()
    }

    fn is_always(&self) -> bool {
        self.fsync == AppendFsync::Always || !self.started()
    }
}

/// At least as many bytes as the record of an entry takes, the head of a segment included.
fn upper_bound(raw_bytes: usize) -> u64 {
    raw_bytes as u64 + 256 + META_BYTES
}

fn raw_bytes(entry: &Entry) -> usize {
    let of_job = |image: &JobImage| image.queue.len() + image.body.len() + 28 * image.holders.len();
    match entry {
        Entry::Added(image) | Entry::JobSnapshot(image) => of_job(image),
        Entry::Transfer(image) | Entry::TransferSnapshot(image) => image.job.as_deref().map_or(0, of_job),
        Entry::Queue(image) | Entry::QueueSnapshot(image) => image.name.len(),
        Entry::Acked(image) | Entry::AckedSnapshot(image) => 28 * image.holders.len(),
        Entry::Holders(image) => 28 * image.holders.len(),
        Entry::State(_) | Entry::Gone(_) | Entry::Flushed | Entry::Meta(_) => 0,
    }
}
