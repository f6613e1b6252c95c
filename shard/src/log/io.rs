//! What the log and the server say to each other: settings, I/O to perform, and how it ended.

use bytes::Bytes;
use thiserror::Error;

use super::record::Meta;
use super::writer::Segment;
use crate::clock::Now;
use crate::slot::ShardNo;

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
    /// Something is amiss and nothing is lost.
    Warning(String),
    /// The process must stop.
    Fatal(String),
}
