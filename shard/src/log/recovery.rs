//! The way back: fed what the segments hold, it gives the entries in order, and says what is wrong and what follows from it.
//!
//! ```text
//! per segment:  header -> records -> zeros to the end of the file -> next
//! on damage:    no entry after it; the rest is searched for marks of durability (`scan`), in this and all later segments
//! at the end:   `decision` over (what is wrong, which segment, whether a mark covers it): go on, cut, or stop
//! ```
//!
//! The caller lists the segments of its shard, then answers each [`Want`] until there is none, then takes the result:
//! repairs to perform in their order, and where the log goes on. What must hold: entries come from an unbroken run of
//! records only; nothing that a mark covers is given up; nothing that is given up goes unnamed; memory stays in
//! proportion to the largest record that fits its file.

use bytes::{Buf, BytesMut};
use thiserror::Error;

use super::codec::{BadRecord, Intact, Look, look};
use super::decision::{Decision, Which, Wrong, decide};
use super::io::Start;
use super::record::{Entry, Meta};
use super::scan::{MarkSearch, Step};
use super::segment::{BadHeader, FIRST_RECORD, FileName, SegmentHeader};
use super::writer::Segment;
use crate::clock::Now;
use crate::slot::ShardNo;

/// Bytes asked for at a time.
const READ_BYTES: u64 = 1 << 20;

/// What recovery must know beforehand.
#[derive(Clone, Copy, Debug)]
pub struct RecoveryOptions {
    /// Whose log.
    pub shard: ShardNo,
    /// Generation of the folder.
    pub generation: u64,
    /// The kernel's boot ID now.
    pub boot_id: [u8; 16],
    /// `aof-load-truncated`: a torn tail may be cut.
    pub may_cut: bool,
}

/// A segment's file as the folder lists it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FoundFile {
    /// Its number.
    pub number: u64,
    /// Its length.
    pub bytes: u64,
}

/// What recovery wants to read next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Want {
    /// So many bytes of a segment; fewer only when the file has become shorter.
    Read {
        /// Its number.
        segment: u64,
        /// Where in the file.
        offset: u64,
        /// How many.
        bytes: u64,
    },
    /// Nothing: [`Recovery::finish`].
    Done,
}

/// Why the server does not start.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[allow(missing_docs, reason = "the text of each is its documentation")]
pub enum RecoveryError {
    #[error(
        "{file}, offset {offset}: {what}; what was confirmed is affected. Inspect it with: shardq-cli aof check {file}"
    )]
    Damaged { file: String, offset: u64, what: Wrong },
    #[error(
        "{file}, offset {offset}: {what}. A later version of the server wrote it. Inspect it with: shardq-cli aof check {file}"
    )]
    Future {
        file: String,
        offset: u64,
        what: BadRecord,
    },
    #[error(
        "{file}, offset {offset}: a torn tail, and aof-load-truncated is no. Cut it with: shardq-cli aof check --repair {file}"
    )]
    Torn { file: String, offset: u64 },
    #[error("{file} is missing: the log says that it is still needed")]
    Missing { file: String },
    #[error("{file}, offset {offset}: {error}")]
    Unreadable {
        file: String,
        offset: u64,
        error: String,
    },
}

/// A tail that was given up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cut {
    /// File name of the segment.
    pub file: String,
    /// From this offset on.
    pub offset: u64,
    /// What stood there.
    pub what: Wrong,
    /// Files of later segments that go aside whole.
    pub whole: Vec<String>,
}

/// What is to be done before the log goes on, in this order. Each ends before the next begins.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the fields are those of a file")]
pub enum RepairStep {
    /// Copy the bytes from `offset` on to a new file `to`, and sync that.
    KeepAside { segment: u64, offset: u64, to: String },
    /// Rename the segment's file.
    RenameAside { segment: u64, to: String },
    /// fsync of the folder.
    SyncFolder,
    /// Make the file end here.
    Truncate { segment: u64, bytes: u64 },
    /// fsync of the file.
    Sync { segment: u64 },
    /// Unlink a segment that is not needed.
    Unlink { segment: u64 },
}

/// Something that is wrong, and what follows from it: for tools that show all of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Judged {
    /// Number of the segment.
    pub segment: u64,
    /// Offset in its file.
    pub offset: u64,
    /// What is wrong.
    pub what: Wrong,
    /// What stands there instead of a record, where that is known.
    pub record: Option<BadRecord>,
    /// Which segment it is.
    pub which: Which,
    /// A later record says that the place had been synced, or it cannot be known that none does.
    pub covered: bool,
    /// What the table says.
    pub decision: Decision,
}

/// Where a record stands that recovery took.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecordAt {
    /// Number of its segment.
    pub segment: u64,
    /// Offset in the segment's file.
    pub offset: u64,
    /// Bytes it takes, with padding.
    pub bytes: u64,
    /// Its place in the whole log.
    pub place: u64,
    /// Place up to which the log was known to be durable when it was made.
    pub durable: u64,
}

/// Whether nothing that was confirmed can be missing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EpochVerdict {
    /// The store epoch may stay, if that of all shards may.
    Keep(&'static str),
    /// A new one is needed.
    Renew(&'static str),
}

/// What came of it.
#[derive(Clone, Debug)]
pub struct Recovered {
    /// The newest meta record; the default when there was none.
    pub meta: Meta,
    /// Newest creation stamp that was seen.
    pub last_ctime: u64,
    /// What was cut.
    pub cut: Option<Cut>,
    /// What to do before the log goes on.
    pub repairs: Vec<RepairStep>,
    /// What becomes of the store epoch.
    pub verdict: EpochVerdict,
    /// Records read.
    pub records: u64,
    place: u64,
    next_number: u64,
    old: Vec<Segment>,
}

impl Recovered {
    /// What comes of no segments at all, for a shard whose newest creation stamp is this.
    pub fn fresh(last_ctime: u64) -> Self {
        Self {
            meta: Meta::default(),
            last_ctime,
            cut: None,
            repairs: Vec::new(),
            verdict: EpochVerdict::Renew("there was no log"),
            records: 0,
            place: 0,
            next_number: 1,
            old: Vec::new(),
        }
    }

    /// Where the writer goes on, once the repairs are done.
    pub fn start(self, store_epoch: u64, boot_id: [u8; 16], now: Now) -> Start {
        let meta = Meta {
            store_epoch,
            boot_id,
            last_ctime: self.last_ctime,
            ..self.meta
        };
        Start {
            meta,
            place: self.place,
            next_number: self.next_number,
            old: self.old,
            now,
        }
    }
}

#[derive(Debug)]
enum Mode {
    Header,
    Records {
        random: u64,
    },
    /// Zeros from here to the end of the file.
    Zeros {
        random: u64,
    },
    Search(MarkSearch, Option<u64>),
}

/// What is known of a segment.
#[derive(Clone, Copy, Debug, Default)]
struct Seen {
    random: u64,
    base: Option<u64>,
    /// Offset behind the last record that was taken.
    end_offset: u64,
    /// It holds something behind its header.
    used: bool,
}

#[derive(Clone, Copy, Debug)]
struct Finding {
    wrong: Wrong,
    record: Option<BadRecord>,
    file: usize,
    offset: u64,
    place: u64,
}

/// A recovery under way.
#[derive(Debug)]
pub struct Recovery {
    options: RecoveryOptions,
    files: Vec<FoundFile>,
    seen: Vec<Seen>,
    at: usize,
    mode: Mode,
    buffer: BytesMut,
    /// Offset in the file of what `buffer` begins with.
    offset: u64,
    needs: u64,
    place: Option<u64>,
    findings: Vec<Finding>,
    mark: u64,
    mark_unknown: bool,
    meta: Option<Meta>,
    last_was_stop: bool,
    last_ctime: u64,
    records: u64,
}

impl Recovery {
    /// A recovery of these segments.
    pub fn new(options: RecoveryOptions, mut files: Vec<FoundFile>) -> Self {
        files.sort_by_key(|file| file.number);
        Self {
            options,
            seen: vec![Seen::default(); files.len()],
            files,
            at: 0,
            mode: Mode::Header,
            buffer: BytesMut::new(),
            offset: 0,
            needs: FIRST_RECORD,
            place: None,
            findings: Vec::new(),
            mark: 0,
            mark_unknown: false,
            meta: None,
            last_was_stop: false,
            last_ctime: 0,
            records: 0,
        }
    }

    /// What to read next.
    pub fn want(&self) -> Want {
        let Some(file) = self.files.get(self.at) else {
            return Want::Done;
        };
        let have = self.buffer.len() as u64;
        let offset = self.offset + have;
        let bytes = self
            .needs
            .saturating_sub(have)
            .max(READ_BYTES)
            .min(file.bytes.saturating_sub(offset));
        Want::Read {
            segment: file.number,
            offset,
            bytes,
        }
    }

    /// How much is read, of how much: for the progress in the log and INFO.
    pub fn progress(&self) -> (u64, u64) {
        let done: u64 = self.files[..self.at].iter().map(|file| file.bytes).sum();
        (done + self.offset, self.files.iter().map(|file| file.bytes).sum())
    }

    /// What was read; entries go to `sink` in order.
    pub fn supply(
        &mut self,
        bytes: Result<&[u8], String>,
        sink: &mut impl FnMut(Entry),
    ) -> Result<(), RecoveryError> {
        self.supply_records(bytes, &mut |_, entries| entries.into_iter().for_each(&mut *sink))
    }

    /// The same, with the entries of each record together and where it stands.
    pub fn supply_records(
        &mut self,
        bytes: Result<&[u8], String>,
        sink: &mut impl FnMut(RecordAt, Vec<Entry>),
    ) -> Result<(), RecoveryError> {
        let Want::Read {
            bytes: asked, offset, ..
        } = self.want()
        else {
            panic!("nothing was asked for");
        };
        let bytes = match bytes {
            Ok(bytes) => bytes,
            Err(error) => {
                return Err(RecoveryError::Unreadable {
                    file: self.file_name(self.at),
                    offset,
                    error,
                });
            }
        };
        assert!(bytes.len() as u64 <= asked, "more than was asked for");
        if (bytes.len() as u64) < asked {
            self.files[self.at].bytes = offset + bytes.len() as u64;
        }
        self.buffer.extend_from_slice(bytes);
        while self.step(sink)? {}
        Ok(())
    }

    /// The result, when nothing is wanted any more.
    pub fn finish(self) -> Result<Recovered, RecoveryError> {
        assert_eq!(self.want(), Want::Done, "all of it is read first");
        let cut = self.judge()?;
        self.check_lowest()?;
        Ok(self.conclude(cut))
    }

    /// All that was found so far and what follows from it, oldest segment first; final when nothing is wanted any more.
    pub fn findings(&self) -> Vec<Judged> {
        self.findings.iter().map(|finding| self.judged(finding)).collect()
    }

    /// A step in the current file; false when more must be read, or all is.
    fn step(&mut self, sink: &mut impl FnMut(RecordAt, Vec<Entry>)) -> Result<bool, RecoveryError> {
        let Some(file) = self.files.get(self.at) else {
            return Ok(false);
        };
        let room = file.bytes.saturating_sub(self.offset);
        let whole = self.buffer.len() as u64 >= room;
        match &mut self.mode {
            Mode::Header if self.buffer.len() as u64 >= FIRST_RECORD || whole => self.header(),
            Mode::Header => return Ok(self.need(FIRST_RECORD)),
            Mode::Records { random } => {
                let random = *random;
                return self.record(random, room, sink);
            }
            Mode::Zeros { random } => {
                let random = *random;
                let zeros = self.buffer.iter().position(|&byte| byte != 0);
                if zeros.is_some() {
                    let (offset, place) = (self.seen[self.at].end_offset, self.place.unwrap_or(0));
                    self.found(Wrong::Torn, offset, place, Some(random));
                } else {
                    self.skip(self.buffer.len());
                    return Ok(self.next_file_if(whole));
                }
            }
            Mode::Search(search, random) => {
                if self.buffer.is_empty() {
                    return Ok(self.next_file_if(whole));
                }
                match search.step(&self.buffer, room, *random) {
                    Step::Skip(bytes) => self.skip(bytes),
                    Step::Needs(bytes) => return Ok(self.need(bytes as u64)),
                }
            }
        }
        Ok(true)
    }

    fn need(&mut self, bytes: u64) -> bool {
        self.needs = bytes;
        false
    }

    fn skip(&mut self, bytes: usize) {
        self.buffer.advance(bytes);
        self.offset += bytes as u64;
        self.needs = 1;
    }

    fn next_file_if(&mut self, whole: bool) -> bool {
        if whole {
            if let Mode::Search(search, _) = &self.mode {
                self.mark = self.mark.max(search.mark);
                self.mark_unknown |= search.unknown;
                self.seen[self.at].used |= search.anything;
            }
            self.at += 1;
            self.mode = Mode::Header;
            self.buffer.clear();
            self.offset = 0;
            self.needs = FIRST_RECORD;
        } else {
            self.needs = 1;
        }
        whole
    }

    fn header(&mut self) {
        let file = self.files[self.at];
        let header = SegmentHeader::decode(&self.buffer);
        self.seen[self.at].end_offset = FIRST_RECORD;
        let wrong = match &header {
            Ok(header) => {
                self.seen[self.at].random = header.random;
                let RecoveryOptions {
                    shard, generation, ..
                } = self.options;
                let expected = (shard, generation, file.number);
                ((header.shard, header.generation, header.number) != expected).then_some(Wrong::Owner)
            }
            Err(BadHeader::Damaged) => Some(Wrong::Header),
            Err(BadHeader::Foreign) => Some(Wrong::Foreign),
            Err(BadHeader::Version(_)) => Some(Wrong::Version),
        };
        self.skip(self.buffer.len().min(FIRST_RECORD as usize));
        let random = header.ok().map(|header| header.random);
        match (wrong, random) {
            (Some(wrong), _) => self.found(wrong, 0, self.place.unwrap_or(0), random),
            (None, _) if self.is_broken() => self.mode = Mode::Search(MarkSearch::new(file.bytes), random),
            (None, random) => {
                self.mode = Mode::Records {
                    random: random.expect("a good header has one"),
                }
            }
        }
    }

    /// Whether the run of records has ended. A spare whose header was never written does not end it.
    fn is_broken(&self) -> bool {
        let ends = |finding: &Finding| finding.wrong != Wrong::Header || self.seen[finding.file].used;
        self.findings.iter().any(ends)
    }

    fn found(&mut self, wrong: Wrong, offset: u64, place: u64, random: Option<u64>) {
        self.findings.push(Finding {
            wrong,
            record: None,
            file: self.at,
            offset,
            place,
        });
        self.mode = Mode::Search(MarkSearch::new(self.files[self.at].bytes), random);
    }

    fn record(
        &mut self,
        random: u64,
        room: u64,
        sink: &mut impl FnMut(RecordAt, Vec<Entry>),
    ) -> Result<bool, RecoveryError> {
        let buffer = std::mem::take(&mut self.buffer);
        let looked = look(&buffer, room, random);
        let go_on = match looked {
            Look::Nothing => {
                self.mode = Mode::Zeros { random };
                Ok(true)
            }
            Look::Needs(bytes) => Ok(self.need(bytes as u64)),
            Look::Bad(record) => {
                self.found(Wrong::Torn, self.offset, self.place.unwrap_or(0), Some(random));
                self.name_record(record);
                Ok(true)
            }
            Look::Record(record) => self.take(&record, random, sink).map(|()| true),
        };
        let taken = match looked {
            Look::Record(record) if matches!(self.mode, Mode::Records { .. }) => {
                (record.padded_bytes as usize).min(buffer.len())
            }
            _ => 0,
        };
        self.buffer = buffer;
        if taken > 0 {
            self.skip(taken);
            self.seen[self.at].end_offset = self.offset;
        }
        go_on
    }

    /// Takes a record whose checksum is right, or finds that it may not stand here.
    fn take(
        &mut self,
        record: &Intact<'_>,
        random: u64,
        sink: &mut impl FnMut(RecordAt, Vec<Entry>),
    ) -> Result<(), RecoveryError> {
        self.seen[self.at].used = true;
        let mut entries = Vec::new();
        if let Err(what) = record.entries(&mut |entry| entries.push(entry)) {
            return Err(RecoveryError::Future {
                file: self.file_name(self.at),
                offset: self.offset,
                what,
            });
        }
        if self.offset == FIRST_RECORD {
            let base = match entries.as_slice() {
                [Entry::Meta(meta)] => meta.base,
                _ => {
                    self.found(Wrong::Torn, self.offset, self.place.unwrap_or(0), Some(random));
                    return Ok(());
                }
            };
            let expected = self.place.unwrap_or(base);
            if base != expected {
                let wrong = if base > expected {
                    Wrong::Gap
                } else {
                    Wrong::Overlap
                };
                self.found(wrong, self.offset, expected.min(base), Some(random));
                return Ok(());
            }
            self.place = Some(base);
            self.seen[self.at].base = Some(base);
        }
        let place = self.place.expect("the first record of a segment names it");
        // Only bytes made up by somebody name a place behind which there is none.
        let end = place.checked_add(record.padded_bytes);
        let (Ok(()), Some(end)) = (record.stands_at(place), end) else {
            self.found(Wrong::Torn, self.offset, place, Some(random));
            self.name_record(BadRecord::Misplaced);
            return Ok(());
        };
        self.mark = self.mark.max(record.durable);
        self.place = Some(end);
        self.records += 1;
        self.note(&entries);
        let at = RecordAt {
            segment: self.files[self.at].number,
            offset: self.offset,
            bytes: record.padded_bytes,
            place,
            durable: record.durable,
        };
        sink(at, entries);
        Ok(())
    }

    /// Says what the newest finding is about.
    fn name_record(&mut self, record: BadRecord) {
        let newest = self.findings.last_mut().expect("it was just found");
        newest.record = Some(record);
    }

    fn note(&mut self, entries: &[Entry]) {
        self.last_was_stop = false;
        for entry in entries {
            match entry {
                Entry::Meta(meta) => {
                    self.meta = Some(*meta);
                    self.last_was_stop = meta.stopped;
                    self.last_ctime = self.last_ctime.max(meta.last_ctime);
                }
                Entry::Added(image) | Entry::JobSnapshot(image) => {
                    self.last_ctime = self.last_ctime.max(image.ctime);
                }
                _ => {}
            }
        }
    }

    fn which(&self, file: usize) -> Which {
        if !self.seen[file].used {
            return Which::Spare;
        }
        match self.seen[file + 1..].iter().filter(|seen| seen.used).count() {
            0 => Which::Last,
            1 => Which::BeforeLast,
            _ => Which::Older,
        }
    }

    fn judged(&self, finding: &Finding) -> Judged {
        let which = self.which(finding.file);
        let covered = self.mark_unknown || self.mark > finding.place;
        Judged {
            segment: self.files[finding.file].number,
            offset: finding.offset,
            what: finding.wrong,
            record: finding.record,
            which,
            covered,
            decision: decide(finding.wrong, which, covered),
        }
    }

    /// What the table says to everything that was found; the first cut, if it comes to that.
    fn judge(&self) -> Result<Option<Finding>, RecoveryError> {
        let mut cut = None;
        for finding in &self.findings {
            let (file, offset) = (self.file_name(finding.file), finding.offset);
            match self.judged(finding).decision {
                Decision::Stop => {
                    return Err(RecoveryError::Damaged {
                        file,
                        offset,
                        what: finding.wrong,
                    });
                }
                Decision::Cut if !self.options.may_cut => return Err(RecoveryError::Torn { file, offset }),
                Decision::Cut => cut = cut.or(Some(*finding)),
                Decision::Remove => {}
            }
        }
        Ok(cut)
    }

    /// The oldest segment that is still needed must be there.
    fn check_lowest(&self) -> Result<(), RecoveryError> {
        let lowest = self.meta.map(|meta| meta.lowest_segment);
        match lowest.filter(|lowest| self.files.iter().all(|file| file.number != *lowest)) {
            Some(lowest) => Err(RecoveryError::Missing {
                file: FileName::of(self.options.shard, lowest),
            }),
            None => Ok(()),
        }
    }

    fn conclude(self, cut: Option<Finding>) -> Recovered {
        let verdict = self.verdict(cut.is_some());
        let mut old = Vec::new();
        // Also one that was to be unlinked: what lives again since the end of it failed to be written has its only record there.
        for (file, seen) in self.files.iter().zip(&self.seen) {
            let Some(base) = seen.base else { continue };
            let end = base + (seen.end_offset - FIRST_RECORD);
            old.push(Segment::old(file.number, seen.random, seen.end_offset, base, end));
        }
        Recovered {
            meta: self.meta.unwrap_or_default(),
            last_ctime: self.last_ctime,
            cut: cut.map(|cut| self.describe(cut)),
            repairs: self.repairs(cut),
            verdict,
            records: self.records,
            place: self.place.unwrap_or(0),
            next_number: self.files.last().map_or(1, |newest| newest.number + 1),
            old,
        }
    }

    fn verdict(&self, cut: bool) -> EpochVerdict {
        match self.meta {
            None => EpochVerdict::Renew("there was no log"),
            Some(_) if cut => EpochVerdict::Renew("a torn tail was cut"),
            Some(_) if self.last_was_stop => EpochVerdict::Keep("the server was stopped in order"),
            Some(meta) if meta.boot_id == self.options.boot_id => {
                EpochVerdict::Keep("only the process ended")
            }
            Some(meta) if meta.always => EpochVerdict::Keep("everything was synced before it was told"),
            Some(_) => EpochVerdict::Renew("the machine was restarted, and the newest writes may be missing"),
        }
    }

    fn describe(&self, cut: Finding) -> Cut {
        let later = cut.file + 1..self.files.len();
        Cut {
            file: self.file_name(cut.file),
            offset: cut.offset,
            what: cut.wrong,
            whole: later
                .filter(|&at| self.seen[at].used)
                .map(|at| self.file_name(at))
                .collect(),
        }
    }

    /// Bytes go aside before they are cut; all is synced before anything is unlinked.
    fn repairs(&self, cut: Option<Finding>) -> Vec<RepairStep> {
        let shard = self.options.shard;
        let mut steps = Vec::new();
        if let Some(cut) = cut {
            for at in (cut.file..self.files.len())
                .rev()
                .filter(|&at| self.seen[at].used)
            {
                let segment = self.files[at].number;
                let whole = at > cut.file || self.seen[at].base.is_none();
                let offset = if whole { 0 } else { cut.offset };
                let to = FileName::of_cut(shard, segment, offset);
                steps.push(if whole {
                    RepairStep::RenameAside { segment, to }
                } else {
                    RepairStep::KeepAside { segment, offset, to }
                });
                steps.push(RepairStep::SyncFolder);
            }
        }
        let kept: Vec<usize> = (0..self.files.len())
            .filter(|&at| self.seen[at].base.is_some())
            .collect();
        // Older ones were synced before these were begun.
        for &at in kept.iter().skip(kept.len().saturating_sub(2)) {
            let (segment, bytes) = (self.files[at].number, self.seen[at].end_offset);
            if bytes < self.files[at].bytes {
                steps.push(RepairStep::Truncate { segment, bytes });
            }
            steps.push(RepairStep::Sync { segment });
        }
        let gone = (0..self.files.len()).filter(|&at| !self.seen[at].used);
        let before = steps.len();
        steps.extend(gone.map(|at| RepairStep::Unlink {
            segment: self.files[at].number,
        }));
        if steps.len() > before {
            steps.push(RepairStep::SyncFolder);
        }
        steps
    }

    fn file_name(&self, at: usize) -> String {
        FileName::of(self.options.shard, self.files[at].number)
    }
}
