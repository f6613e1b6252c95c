//! The log of a shard, without I/O: what is written, when, what may leave because of it, and what comes back.
//!
//! One log per shard: a series of segments, each with a header, then records. [`Log`] is what the server drives:
//! [`append`](Log::append) what happened, [`take_io`](Log::take_io), perform it, [`completed`](Log::completed);
//! what tells of a state leaves when [`safe`](Log::safe) has reached its position. [`Recovery`] is fed what the segments hold
//! and gives the entries back, what must be repaired, and whether the store epoch may stay.
//!
//! Reading order: `record` (the format) - `codec` (bytes) - `segment` (files) - `io`, `batch`, `writer` (the way out) - `compaction` (the circle) -
//! `machine` (both together) - `recovery`, `decision`, `scan` (the way back) - `generation` (folders and `CURRENT`) -
//! `disk` (what the server does with files).
//!
//! What must hold: a position that `safe` has reached survives what `appendfsync` promises to survive; a segment is unlinked
//! only when all that still lives of it is durable elsewhere; nothing is cut off a log without being named.

mod batch;
mod codec;
mod compaction;
mod decision;
mod disk;
mod generation;
mod io;
mod machine;
mod record;
mod recovery;
mod replay;
mod scan;
mod segment;
mod together;
mod writer;

#[cfg(test)]
mod codec_tests;

pub use codec::{BadRecord, SHARE_IMAGE_BYTES, image_bytes};
pub use compaction::{Live, ObjectKey, Thresholds};
pub use decision::{Decision, Which, Wrong};
pub use disk::{DiskTask, LogBoot, LogFolder};
pub use generation::{
    CURRENT, CURRENT_OFF, Current, StartPlan, SwitchStep, discard_plan, plan_start, switch_off, switch_plan,
};
pub use io::{Action, AppendFsync, Done, Io, IoError, Misconf, Position, Start, WriterOptions};
pub use machine::{Event, Log};
pub use record::{
    AckedImage, Entry, Holder, HoldersImage, JobImage, JobRef, KeptPlace, Meta, QueueImage, StateChange,
    TransferImage, TransferName, TransferStage, WallMs,
};
pub use recovery::{
    Cut, EpochVerdict, FoundFile, Judged, RecordAt, Recovered, Recovery, RecoveryError, RecoveryOptions,
    RepairStep, Want,
};
pub use replay::Replay;
pub use segment::{BadHeader, FIRST_RECORD, FileName, SegmentHeader};
pub use writer::Segment;
