//! A shard's log, read from files through the server's own recovery.

use std::fs::File;
use std::io::{self, ErrorKind};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use shard::log::{
    Entry, FoundFile, Judged, RecordAt, Recovered, Recovery, RecoveryError, RecoveryOptions, SegmentHeader,
    Want,
};
use shard::slot::ShardNo;

use super::text::show;

const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";
const PROGRESS_EVERY: Duration = Duration::from_secs(2);

/// A segment's file.
#[derive(Clone, Debug)]
pub struct SegmentFile {
    /// Its number.
    pub number: u64,
    /// Its length.
    pub bytes: u64,
    /// Where it is.
    pub path: PathBuf,
}

/// The segments of one shard.
#[derive(Clone, Debug)]
pub struct ShardLog {
    /// Whose log.
    pub shard: ShardNo,
    /// Generation it belongs to.
    pub generation: u64,
    /// Its segments by number.
    pub files: Vec<SegmentFile>,
}

/// What came of reading.
#[derive(Debug)]
pub struct Outcome {
    /// All that is wrong and has a place in the decision table.
    pub findings: Vec<Judged>,
    /// What the server's start would get.
    pub result: Result<Recovered, RecoveryError>,
}

impl ShardLog {
    /// Reads all of it; the entries of each whole record go to `sink`, whose error ends it.
    pub fn read(
        &self,
        progress: &mut Progress,
        sink: &mut impl FnMut(RecordAt, Vec<Entry>) -> io::Result<()>,
    ) -> io::Result<Outcome> {
        let options = RecoveryOptions {
            shard: self.shard,
            generation: self.generation,
            boot_id: boot_id(),
            may_cut: true,
        };
        let found = self.files.iter().map(|file| FoundFile {
            number: file.number,
            bytes: file.bytes,
        });
        let mut recovery = Recovery::new(options, found.collect());
        let (mut open, mut stopped, mut sunk) = (Open::default(), None, Ok(()));
        while let Want::Read {
            segment,
            offset,
            bytes,
        } = recovery.want()
        {
            let read = open.read(self.path(segment), offset, bytes);
            let supplied = match read {
                Ok(read) => recovery.supply_records(Ok(read), &mut |at, entries| {
                    if sunk.is_ok() {
                        sunk = sink(at, entries);
                    }
                }),
                Err(error) => recovery.supply_records(Err(error.to_string()), &mut |_, _| {}),
            };
            std::mem::replace(&mut sunk, Ok(()))?;
            if let Err(error) = supplied {
                stopped = Some(error);
                break;
            }
            progress.tick(self.shard, recovery.progress());
        }
        Ok(Outcome {
            findings: recovery.findings(),
            result: stopped.map_or_else(|| recovery.finish(), Err),
        })
    }

    /// The log of one segment alone, as if there were no other.
    pub fn alone(&self, file: &SegmentFile) -> Self {
        Self {
            files: vec![file.clone()],
            ..*self
        }
    }

    /// Where a segment of this log is.
    pub fn path(&self, segment: u64) -> &Path {
        let file = self.files.iter().find(|file| file.number == segment);
        &file.expect("recovery names segments that it was told of").path
    }

    /// Bytes of all its files.
    pub fn file_bytes(&self) -> u64 {
        self.files.iter().map(|file| file.bytes).sum()
    }
}

/// The file that is read at present.
#[derive(Default)]
struct Open {
    file: Option<(PathBuf, File)>,
    buffer: Vec<u8>,
}

impl Open {
    /// So many bytes, or fewer at the end of the file.
    fn read(&mut self, path: &Path, offset: u64, bytes: u64) -> io::Result<&[u8]> {
        let file = match &mut self.file {
            Some((opened, file)) if opened == path => file,
            other => &mut other.insert((path.to_owned(), File::open(path)?)).1,
        };
        self.buffer.resize(bytes as usize, 0);
        let mut filled = 0;
        while filled < self.buffer.len() {
            match file.read_at(&mut self.buffer[filled..], offset + filled as u64) {
                Ok(0) => break,
                Ok(read) => filled += read,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(&self.buffer[..filled])
    }
}

/// The first bytes of a file: those of a segment's header, or fewer.
pub fn header_bytes(path: &Path) -> io::Result<Vec<u8>> {
    let bytes = size_of_val(&SegmentHeader::encode(&NO_HEADER)) as u64;
    Ok(Open::default().read(path, 0, bytes)?.to_vec())
}

/// The header of nothing.
pub const NO_HEADER: SegmentHeader = SegmentHeader {
    shard: 0,
    number: 0,
    generation: 0,
    random: 0,
    file_bytes: 0,
};

/// The kernel's boot ID as the server reads it; one that no log has where it cannot be read.
fn boot_id() -> [u8; 16] {
    let digits = std::fs::read_to_string(BOOT_ID).map(|text| text.trim().replace('-', ""));
    let number = digits
        .ok()
        .and_then(|digits| u128::from_str_radix(&digits, 16).ok());
    number.map_or([0xff; 16], u128::to_be_bytes)
}

/// Says on standard error how far a long read has come.
#[derive(Debug)]
pub struct Progress {
    quiet: bool,
    told_at: Instant,
}

impl Progress {
    /// None for those who want none.
    pub fn new(quiet: bool) -> Self {
        Self {
            quiet,
            told_at: Instant::now(),
        }
    }

    fn tick(&mut self, shard: ShardNo, (done, all): (u64, u64)) {
        if !self.quiet && self.told_at.elapsed() >= PROGRESS_EVERY {
            self.told_at = Instant::now();
            let percent = 100.0 * done as f64 / all.max(1) as f64;
            eprintln!("shard {shard}: {percent:.0} % of {} MiB", all >> 20);
        }
    }
}

/// Damage in a log whose records are shown as far as they go, one line each; for standard error.
pub fn damage_lines(log: &ShardLog, outcome: &Outcome) -> Vec<String> {
    let judged = outcome.findings.iter().map(|finding| {
        let file = show(log.path(finding.segment));
        format!("{file}, offset {}: {}", finding.offset, what(finding))
    });
    let stopped = match &outcome.result {
        Err(RecoveryError::Future { file, offset, what }) => Some(format!("{file}, offset {offset}: {what}")),
        Err(error @ RecoveryError::Unreadable { .. }) => Some(error.to_string()),
        _ => None,
    };
    judged.chain(stopped).collect()
}

/// What is wrong, with what stands there where that is known.
pub fn what(finding: &Judged) -> String {
    match finding.record {
        Some(record) => format!("{} ({record})", finding.what),
        None => finding.what.to_string(),
    }
}
