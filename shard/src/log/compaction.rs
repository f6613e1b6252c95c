//! The circle: the oldest segment gives way, again and again, so that the log stays in proportion to what lives.
//!
//! ```text
//! idle -> reading: for each whole image in the segment, ask; what lives is appended once, as a snapshot, whole.
//!         A segment of which it is known that nothing in it lives is not read
//!      -> waiting: a meta record says that the next segment is the lowest; all of it durable, nobody reads the segment
//!      -> unlinking -> syncing the folder -> idle
//! ```
//!
//! Only whole images are asked for: a state record of the oldest segment belongs to an object whose image stands in the same segment
//! (then it is asked for) or in a later one, written since. What must hold: the unlink comes after the sync of all snapshots
//! and of the meta record; the next segment comes after the sync of the folder. So a `gone` never goes before what it ends.
//! When records of a round fail, the round begins again.

use std::collections::BTreeSet;

use bytes::BytesMut;

use super::codec::{Look, look};
use super::io::{Action, Done, Io, IoError, Misconf, Position};
use super::record::{Entry, TransferName, TransferStage};
use super::segment::FIRST_RECORD;
use super::writer::{Segment, Writer};
use crate::clock::Mono;
use crate::id::JobId;
use crate::plant::{self, Plant};
use crate::wire::Blob;

/// Bytes read at a time.
const READ_BYTES: u64 = 64 << 10;
/// Objects asked for in one step.
const STEP_OBJECTS: usize = 64;
/// Bytes of snapshots in one step.
const STEP_BYTES: u64 = 64 << 10;
/// Bytes that may wait to be written before compaction pauses.
const PENDING_BYTES: u64 = 4 << 20;
/// Bytes that it goes through in a millisecond, beyond those that new records ask for. A circle of a log that may be twice as long as
/// what lives goes through two bytes for each that is written meanwhile.
const PACE_BYTES_PER_MS: u64 = 16 << 10;
/// What of that may be saved up.
const PACE_MOST_BYTES: u64 = 64 << 10;
/// After a circle in vain the log grows by this share before the next.
const REST_SHARE: u64 = 8;
/// How long after a failure it goes on.
const RETRY_MS: u64 = 1_000;

/// Something that a whole image in the log stands for.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ObjectKey {
    /// A job.
    Job(JobId),
    /// A queue with a pause state.
    Queue(Blob),
    /// An acknowledgement not yet collected.
    Acked(JobId),
    /// The answer to a transfer.
    Transfer(TransferName),
}

/// The state machine, as far as compaction is concerned.
pub trait Live {
    /// The object's whole present state as a snapshot entry, or nothing when it lives no more.
    fn snapshot(&mut self, object: &ObjectKey) -> Option<Entry>;
    /// What all living objects would take in the log ([`image_bytes`](super::image_bytes)).
    fn live_bytes(&self) -> u64;
}

/// When the log is compacted by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Thresholds {
    /// `auto-aof-rewrite-percentage`: so much more than the live bytes; 0 is never.
    pub percentage: u32,
    /// This shard's share of `auto-aof-rewrite-min-size`.
    pub min_bytes: u64,
}

/// What the end of an I/O means.
#[derive(Debug)]
pub enum Outcome {
    Fine,
    Warning(String),
    Fatal(String),
}

#[derive(Debug)]
enum Phase {
    Idle,
    Reading(Box<Reading>),
    Waiting { segment: u64, position: Position },
    Unlinking { segment: u64, io: Option<u64> },
    SyncingFolder { io: u64 },
}

/// No circle begins before the log has grown to `until_bytes`, or, on a full disk, by a segment more of `dead_bytes`.
#[derive(Clone, Copy, Debug)]
struct Rest {
    until_bytes: u64,
    dead_bytes: u64,
}

#[derive(Debug)]
struct Reading {
    segment: Segment,
    /// Offset in the file of what `buffer` begins with.
    offset: u64,
    buffer: BytesMut,
    io: Option<u64>,
    asked: BTreeSet<ObjectKey>,
}

/// The circle. See the picture at the head of this file.
#[derive(Debug)]
pub struct Compaction {
    thresholds: Thresholds,
    phase: Phase,
    pace: Pace,
    /// All segments up to this one are to be compacted.
    forced: Option<u64>,
    /// The newest segment when the present circle began: behind it all is compacted already.
    circle: Option<u64>,
    /// A whole circle did not bring the log to its size.
    rest: Option<Rest>,
    pins: Vec<u64>,
    paused_until: Mono,
    /// A read of a round that was given up.
    orphan: Option<u64>,
    /// A segment that cannot be read: no round until it is forced.
    broken: bool,
    rounds: u64,
    ios: Vec<Io>,
}

impl Compaction {
    pub fn new(thresholds: Thresholds) -> Self {
        Self {
            thresholds,
            phase: Phase::Idle,
            pace: Pace::default(),
            forced: None,
            circle: None,
            rest: None,
            pins: Vec::new(),
            paused_until: Mono(0),
            orphan: None,
            broken: false,
            rounds: 0,
            ios: Vec::new(),
        }
    }

    pub fn set_thresholds(&mut self, thresholds: Thresholds) {
        self.thresholds = thresholds;
    }

    /// All that is there now is to be compacted.
    pub fn force(&mut self, up_to: u64) {
        self.forced = Some(up_to);
        self.broken = false;
    }

    pub fn pin(&mut self, segment: u64) {
        self.pins.push(segment);
    }

    pub fn unpin(&mut self, segment: u64) {
        let at = self.pins.iter().position(|&pinned| pinned == segment);
        self.pins.swap_remove(at.expect("what is unpinned was pinned"));
    }

    /// Segments that are gone so far.
    pub fn rounds(&self) -> u64 {
        self.rounds
    }

    pub fn is_running(&self) -> bool {
        self.forced.is_some() || !matches!(self.phase, Phase::Idle)
    }

    /// When a pause ends.
    pub fn resumes_at(&self) -> Option<Mono> {
        (self.paused_until > Mono(0)).then_some(self.paused_until)
    }

    pub fn is_waiting(&self) -> bool {
        matches!(self.phase, Phase::Waiting { .. })
    }

    /// A bounded step; true when more can be done at once, an error when the oldest segment cannot be compacted.
    pub fn step(&mut self, now: Mono, writer: &mut Writer, live: &mut impl Live) -> Result<bool, String> {
        if now < self.paused_until {
            return Ok(false);
        }
        self.paused_until = Mono(0);
        match &mut self.phase {
            Phase::Idle => Ok(self.begin(writer, live)),
            Phase::Reading(_) => self.copy(now, writer, live),
            Phase::Waiting { segment, position } => {
                let (segment, position) = (*segment, *position);
                let is_durable = writer.durable() >= position || plant::active(Plant::EarlyUnlink);
                if is_durable && !self.pins.contains(&segment) {
                    writer.forget(segment);
                    self.unlink(writer, segment);
                }
                Ok(false)
            }
            Phase::Unlinking { segment, io: None } => {
                let segment = *segment;
                self.unlink(writer, segment);
                Ok(false)
            }
            Phase::Unlinking { .. } | Phase::SyncingFolder { .. } => Ok(false),
        }
    }

    /// Entries failed: what a round has appended may be among them.
    pub fn failed(&mut self, now: Mono, writer: &mut Writer) {
        if matches!(self.phase, Phase::Reading(_) | Phase::Waiting { .. }) {
            if let Phase::Reading(reading) = &self.phase {
                self.orphan = reading.io;
            }
            self.phase = Phase::Idle;
            self.paused_until = now.after_ms(RETRY_MS);
            writer.reset_lowest();
        }
    }

    pub fn take_io(&mut self, ios: &mut Vec<Io>) {
        ios.append(&mut self.ios);
    }

    /// The end of an I/O, if it is one of compaction's.
    pub fn completed(
        &mut self,
        now: Mono,
        writer: &mut Writer,
        io: u64,
        result: &Result<Done, IoError>,
    ) -> Option<Outcome> {
        if self.orphan.take_if(|orphan| *orphan == io).is_some() {
            return Some(Outcome::Fine);
        }
        match &mut self.phase {
            Phase::Reading(reading) if reading.io == Some(io) => {
                reading.io = None;
                match result {
                    Ok(Done::Read(bytes)) if !bytes.is_empty() => reading.buffer.extend_from_slice(bytes),
                    Ok(_) => return Some(Outcome::Warning(self.give_up(writer, "it ends too early"))),
                    Err(error) => return Some(Outcome::Warning(self.give_up(writer, &error.to_string()))),
                }
            }
            Phase::Unlinking { io: unlink, .. } if *unlink == Some(io) => {
                if let Err(error) = result {
                    // The next segment may not go before this one: it ends what stands here.
                    *unlink = None;
                    self.paused_until = now.after_ms(RETRY_MS);
                    return Some(Outcome::Warning(format!(
                        "a compacted segment cannot be unlinked: {error}"
                    )));
                }
                self.phase = Phase::SyncingFolder {
                    io: self.next_folder_sync(writer),
                };
            }
            Phase::SyncingFolder { io: sync } if *sync == io => {
                if let Err(error) = result {
                    return Some(Outcome::Fatal(format!(
                        "fsync of the log's folder failed: {error}"
                    )));
                }
                self.phase = Phase::Idle;
                self.rounds += 1;
                writer.room_was_made();
            }
            _ => return None,
        }
        Some(Outcome::Fine)
    }

    fn unlink(&mut self, writer: &mut Writer, segment: u64) {
        let io = Some(self.push_io(writer, Action::Unlink { segment }));
        self.phase = Phase::Unlinking { segment, io };
    }

    fn next_folder_sync(&mut self, writer: &mut Writer) -> u64 {
        self.push_io(writer, Action::SyncFolder)
    }

    fn push_io(&mut self, writer: &mut Writer, action: Action) -> u64 {
        let id = writer.io_number();
        self.ios.push(Io { id, action });
        id
    }

    fn give_up(&mut self, writer: &mut Writer, why: &str) -> String {
        let Phase::Reading(reading) = std::mem::replace(&mut self.phase, Phase::Idle) else {
            unreachable!("only a reading round gives up");
        };
        self.broken = true;
        self.forced = None;
        writer.reset_lowest();
        format!(
            "segment {:016x} cannot be compacted, at offset {}: {why}",
            reading.segment.number, reading.offset
        )
    }

    fn begin(&mut self, writer: &mut Writer, live: &impl Live) -> bool {
        self.forced.take_if(|up_to| writer.oldest_number() > *up_to);
        let oldest = writer.oldest_sealed();
        let live_bytes = live.live_bytes();
        let Some(segment) = oldest else { return false };
        if !(self.forced.is_some() || self.goes_on(live_bytes, segment.number, writer)) {
            return false;
        }
        if segment.is_dead() {
            self.end_reading(segment.number, writer);
            return false;
        }
        self.phase = Phase::Reading(Box::new(Reading {
            segment,
            offset: FIRST_RECORD,
            buffer: BytesMut::new(),
            io: None,
            asked: BTreeSet::new(),
        }));
        true
    }

    /// All that lives of it stands in later segments.
    fn end_reading(&mut self, segment: u64, writer: &mut Writer) {
        let position = writer.raise_lowest(writer.number_behind(segment));
        self.phase = Phase::Waiting { segment, position };
    }

    /// Whether another segment helps. A circle that went through all of the log and left it too large is not followed by another: what
    /// is left lives, and the marks at the heads of many small segments may be more than a small percentage allows.
    fn goes_on(&mut self, live_bytes: u64, oldest: u64, writer: &Writer) -> bool {
        let log_bytes = writer.log_bytes();
        let dead_bytes = log_bytes.saturating_sub(live_bytes);
        // On a full disk a segment's worth is enough to go for: acknowledgements would use up the reserve before the log is large.
        let makes_room = |rest_bytes: u64| {
            let lacks = writer.lacks_bytes();
            lacks.is_some_and(|bytes| dead_bytes >= rest_bytes + bytes)
        };
        let is_on = self.thresholds.percentage > 0 && !self.broken;
        if !(is_on && (self.is_too_large(log_bytes, live_bytes) || makes_room(0))) {
            (self.circle, self.rest) = (None, None);
            return false;
        }
        let goes_on = self.circle.is_some_and(|up_to| oldest <= up_to);
        if goes_on {
            return true;
        }
        if self.circle.is_some() && self.rest.is_none() {
            self.rest = Some(Rest {
                until_bytes: log_bytes + log_bytes / REST_SHARE,
                dead_bytes,
            });
        }
        let begins = self
            .rest
            .is_none_or(|rest| log_bytes >= rest.until_bytes || makes_room(rest.dead_bytes));
        if begins {
            (self.circle, self.rest) = (Some(writer.active_number()), None);
        }
        begins
    }

    fn is_too_large(&self, log_bytes: u64, live_bytes: u64) -> bool {
        let Thresholds {
            percentage,
            min_bytes,
        } = self.thresholds;
        let most = u128::from(live_bytes) * (100 + u128::from(percentage)) / 100;
        log_bytes > min_bytes && u128::from(log_bytes) > most
    }

    /// Copies what lives of the next records.
    fn copy(&mut self, now: Mono, writer: &mut Writer, live: &mut impl Live) -> Result<bool, String> {
        let Phase::Reading(reading) = &mut self.phase else {
            unreachable!("asked for by `step`");
        };
        if reading.io.is_some() || writer.pending_bytes() > PENDING_BYTES {
            return Ok(false);
        }
        if !self.pace.allows(now, writer.end_place()) {
            self.paused_until = now.after_ms(1);
            return Ok(false);
        }
        let (before, end) = (reading.offset, writer.end_place());
        let copied = reading.copy_some(writer, live);
        self.pace.went(reading.offset - before, writer.end_place() - end);
        match copied {
            Ok(Progress::More) => return Ok(true),
            Ok(Progress::Needs(action)) => {
                let io = self.push_io(writer, action);
                let Phase::Reading(reading) = &mut self.phase else {
                    unreachable!("as above")
                };
                reading.io = Some(io);
            }
            Ok(Progress::Whole) => {
                let segment = reading.segment.number;
                self.end_reading(segment, writer);
            }
            Ok(Progress::Broken) => return Err(self.give_up(writer, "it is damaged")),
            // Not even the reserve has room: acknowledgements make some, or somebody does.
            Err(_) => self.paused_until = now.after_ms(RETRY_MS),
        }
        Ok(false)
    }
}

/// How fast it may go, so that requests find the shard free: by time, and by what is written beside it.
#[derive(Debug, Default)]
struct Pace {
    at: Mono,
    /// Where the log ended, own snapshots included.
    end: u64,
    bytes: u64,
}

impl Pace {
    fn allows(&mut self, now: Mono, end: u64) -> bool {
        let by_time = now.since_ms(self.at).saturating_mul(PACE_BYTES_PER_MS);
        // A log whose last records failed ends earlier than it did.
        let by_growth = 2 * end.saturating_sub(self.end);
        let most = PACE_MOST_BYTES.max(by_growth);
        self.bytes = (self.bytes.saturating_add(by_time).saturating_add(by_growth)).min(most);
        (self.at, self.end) = (now, end);
        self.bytes > 0
    }

    fn went(&mut self, through: u64, written: u64) {
        self.bytes = self.bytes.saturating_sub(through);
        self.end += written;
    }
}

enum Progress {
    More,
    Needs(Action),
    Whole,
    Broken,
}

impl Reading {
    fn copy_some(&mut self, writer: &mut Writer, live: &mut impl Live) -> Result<Progress, Misconf> {
        let end = FIRST_RECORD + (self.segment.end - self.segment.base);
        let log_bytes = writer.log_bytes();
        // A record that names nothing counts as well.
        let mut looked_at = 0;
        while looked_at < STEP_OBJECTS {
            if self.offset == end {
                return Ok(Progress::Whole);
            }
            let room = end - self.offset;
            let record = match look(&self.buffer, room, self.segment.random) {
                Look::Record(record) => record,
                Look::Needs(bytes) => return Ok(self.read(end, bytes as u64)),
                Look::Nothing | Look::Bad(_) => return Ok(Progress::Broken),
            };
            let bytes = record.padded_bytes;
            let mut keys = Vec::new();
            if record.entries(&mut |entry| keys_of(&entry, &mut keys)).is_err() {
                return Ok(Progress::Broken);
            }
            looked_at += keys.len().max(1);
            for key in keys {
                if self.asked.contains(&key) {
                    continue;
                }
                // What is dead stays dead: it may be asked for again.
                if let Some(snapshot) = live.snapshot(&key) {
                    writer.append(&snapshot)?;
                    self.asked.insert(key);
                }
            }
            self.skip(bytes);
            if writer.log_bytes() - log_bytes > STEP_BYTES {
                break;
            }
        }
        Ok(Progress::More)
    }

    fn skip(&mut self, bytes: u64) {
        let _read = self.buffer.split_to(bytes as usize);
        self.offset += bytes;
    }

    fn read(&self, end: u64, at_least: u64) -> Progress {
        let have = self.buffer.len() as u64;
        let offset = self.offset + have;
        let bytes = (at_least - have).max(READ_BYTES.min(end - offset));
        Progress::Needs(Action::Read {
            segment: self.segment.number,
            offset,
            bytes,
        })
    }
}

/// The objects of a whole image.
fn keys_of(entry: &Entry, keys: &mut Vec<ObjectKey>) {
    match entry {
        Entry::Added(image) | Entry::JobSnapshot(image) => keys.push(ObjectKey::Job(image.id)),
        Entry::Queue(image) | Entry::QueueSnapshot(image) => keys.push(ObjectKey::Queue(image.name.clone())),
        Entry::Acked(image) | Entry::AckedSnapshot(image) if !image.holders.is_empty() => {
            keys.push(ObjectKey::Acked(image.id));
        }
        Entry::Transfer(image) | Entry::TransferSnapshot(image) => {
            keys.extend(image.job.as_ref().map(|job| ObjectKey::Job(job.id)));
            if matches!(image.stage, TransferStage::Taken | TransferStage::Refused) {
                keys.push(ObjectKey::Transfer(image.name()));
            }
        }
        _ => {}
    }
}
