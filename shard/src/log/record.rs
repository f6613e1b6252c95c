//! What a record says, in memory ([`Entry`]) and on disk (the payloads).
//!
//! ```text
//! record   length    u32   header, fixed part, raw part; without the padding
//!          checksum  u32   CRC-32C of: random number of the segment, header without this field, fixed part, raw part
//!          durable   u64   place up to which the writer knew the log to be durable when it made this record
//!          place     u32   the record's own place in units of 8, low 32 bits
//!          fixed     u16   length of the fixed part in units of 4
//!          version   u8    1
//!          kind      u8    the table
//!          fixed part      one rkyv payload, its type by kind
//!          raw part        added, job snapshot, transfer with a job: queue name, body; added together, snapshots together: those of
//!                          all; queue: name; else nothing
//!          padding         zeros to a multiple of 8
//! ```
//!
//! A *place* counts the bytes of records over all segments: a segment's first record stands at the place where the last
//! one of the segment before ends. 8 zero bytes where a record could begin: nothing was written from there on.
//!
//! | kind | number | payload |
//! | --- | --- | --- |
//! | meta | 1 | `MetaPayload`; first in each segment, and wherever something of it changes |
//! | added | 2 | `JobPayload` |
//! | state | 3 | `StatePayload`, up to `IDS_PER_RECORD` changes |
//! | acked | 4 | `AckedPayload`, up to `IDS_PER_RECORD` IDs with the same holders |
//! | gone | 5 | `GonePayload`, up to `IDS_PER_RECORD` IDs |
//! | transfer | 6 | `TransferPayload` (`home/cluster/transfer.rs`); with a job that was taken its name and body are raw |
//! | queue | 7 | `QueuePayload` |
//! | job snapshot | 8 | `JobPayload` |
//! | queue snapshot | 9 | `QueuePayload` |
//! | acked snapshot | 10 | `AckedPayload` |
//! | transfer snapshot | 11 | `TransferPayload`; a job that is on its way stands in it |
//! | holders | 12 | `AckedPayload`: jobs and their whole set of other holders, when it changes alone |
//! | flushed | 13 | `FlushedPayload` |
//! | added together, as written before | 14 | `TogetherBeforePayload`; read only |
//! | snapshots together | 15 | `SnapshotsPayload`: job snapshots that share a record |
//! | added together | 16 | `TogetherPayload` |
//!
//! **Changing the format.** rkyv's layout follows the feature flags in `Cargo.toml` and the order of the fields here: neither changes
//! within a version. 1. Copy the payload type to a name with its version, leave it. 2. Change the new one, raise `VERSION`.
//! 3. Let `codec` read both. 4. Add bytes of the old version to `the_format_is_this` in `codec_tests`, never change those
//! that are there. A new kind takes a new number and no new version: an older server stops at it and says so.
//!
//! Times in records are those of the wall clock, so that they survive a restart: `wall_at` and `mono_at` convert.

use rkyv::{Archive, Deserialize, Serialize};

use crate::clock::{Mono, Now};
use crate::commands::view::PauseState;
use crate::id::JobId;
use crate::wire::Blob;

/// Version of the records that are written.
pub const VERSION: u8 = 1;
/// IDs of one record at the most: keeps its fixed part in the 16 bits of its length.
pub const IDS_PER_RECORD: usize = 512;

/// An instant of the wall clock in milliseconds since 1970.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct WallMs(pub u64);

impl WallMs {
    /// An instant that never comes.
    pub const NEVER: Self = Self(u64::MAX);

    /// What the wall clock will show at an instant of the monotonic one, if nobody sets it.
    pub fn wall_at(now: Now, at: Mono) -> Self {
        if at == Mono::NEVER {
            return Self::NEVER;
        }
        let (base, mono) = (now.wall_ms(), now.mono().0);
        Self(
            base.saturating_add(at.0.saturating_sub(mono))
                .saturating_sub(mono.saturating_sub(at.0)),
        )
    }

    /// When that will be on the monotonic clock; what is past is due now.
    pub fn mono_at(self, now: Now) -> Mono {
        if self == Self::NEVER {
            return Mono::NEVER;
        }
        now.mono().after_ms(self.0.saturating_sub(now.wall_ms()))
    }
}

/// Where a job is, as far as a restart is concerned.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum KeptPlace {
    /// In no queue until `enters_at`: delayed, dequeued, postponed.
    Idle,
    /// In its queue, or reserved there: queued at once after a restart.
    Queued,
    /// Handed out: back at `enters_at`, or never (RETRY 0).
    Leased,
    /// Due, and its queue was paused.
    Held,
}

impl KeptPlace {
    pub(super) fn number(self) -> u8 {
        self as u8
    }

    pub(super) fn from_number(number: u8) -> Option<Self> {
        [Self::Idle, Self::Queued, Self::Leased, Self::Held]
            .into_iter()
            .find(|place| place.number() == number)
    }
}

/// A node, in one of its store epochs, that has a copy of a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Holder {
    /// The 20 bytes of its node ID.
    pub node: [u8; 20],
    /// Its store epoch.
    pub epoch: u64,
}

/// A job with all that a restart must know of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JobImage {
    /// Its ID.
    pub id: JobId,
    /// Its queue.
    pub queue: Blob,
    /// Its body.
    pub body: Blob,
    /// Creation stamp, nanoseconds.
    pub ctime: u64,
    /// End of its life.
    pub expires_at: WallMs,
    /// Time to live as asked for.
    pub ttl_s: u32,
    /// Lease time; 0 is at most once.
    pub retry_s: u32,
    /// Delay as asked for.
    pub delay_s: u32,
    /// Copies asked for.
    pub replicate: u16,
    /// What changes during its life.
    pub state: StateChange,
    /// Who else has a copy.
    pub holders: Vec<Holder>,
}

/// A job to be written, with its texts where they are: a [`JobImage`] for the way out.
#[derive(Clone, Copy, Debug)]
pub struct JobRef<'a> {
    /// Its queue.
    pub queue: &'a Blob,
    /// Its body.
    pub body: &'a Blob,
    /// Creation stamp, nanoseconds.
    pub ctime: u64,
    /// End of its life.
    pub expires_at: WallMs,
    /// Time to live as asked for.
    pub ttl_s: u32,
    /// Lease time; 0 is at most once.
    pub retry_s: u32,
    /// Delay as asked for.
    pub delay_s: u32,
    /// Copies asked for.
    pub replicate: u16,
    /// Its ID, and what changes during its life.
    pub state: StateChange,
    /// Who else has a copy.
    pub holders: &'a [Holder],
}

impl JobImage {
    /// The same by reference.
    pub fn by_ref(&self) -> JobRef<'_> {
        assert_eq!(self.id, self.state.id, "a state is that of its job");
        JobRef {
            queue: &self.queue,
            body: &self.body,
            ctime: self.ctime,
            expires_at: self.expires_at,
            ttl_s: self.ttl_s,
            retry_s: self.retry_s,
            delay_s: self.delay_s,
            replicate: self.replicate,
            state: self.state,
            holders: &self.holders,
        }
    }
}

impl JobRef<'_> {
    /// A copy that stands for itself.
    pub fn to_image(&self) -> JobImage {
        JobImage {
            id: self.state.id,
            queue: self.queue.clone(),
            body: self.body.clone(),
            ctime: self.ctime,
            expires_at: self.expires_at,
            ttl_s: self.ttl_s,
            retry_s: self.retry_s,
            delay_s: self.delay_s,
            replicate: self.replicate,
            state: self.state,
            holders: self.holders.to_vec(),
        }
    }
}

/// The present state of a job: it replaces the one before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StateChange {
    /// The job.
    pub id: JobId,
    /// Where it is.
    pub place: KeptPlace,
    /// When it enters its queue by itself.
    pub enters_at: WallMs,
    /// Negative acknowledgements.
    pub nacks: u32,
    /// Times it entered its queue again, NACKs excluded.
    pub additional_deliveries: u32,
    /// Times it was handed out.
    pub deliveries: u32,
    /// Handed out, and that was not undone.
    pub delivered: bool,
    /// Its next entering of the queue is an additional delivery.
    pub entered_before: bool,
}

/// An acknowledged job that other nodes must still be told of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AckedImage {
    /// The job.
    pub id: JobId,
    /// Who is still to be told; nobody when the acknowledgement is the job's end.
    pub holders: Vec<Holder>,
}

/// A job's other holders, all of them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HoldersImage {
    /// The job.
    pub id: JobId,
    /// Who else has it. The top bit of the epoch marks one that was asked and has not confirmed.
    pub holders: Vec<Holder>,
}

/// Names a transfer of a RETRY 0 job, for ever.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct TransferName {
    /// The 20 bytes of the ID of the node that the job goes from.
    pub source: [u8; 20],
    /// The job.
    pub id: JobId,
    /// A stamp of that node: a later transfer of the same job from there has a higher one.
    pub hop: u64,
}

/// What happened in a transfer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum TransferStage {
    /// Here is the source: the job leaves its queue for another node.
    SentQueued,
    /// The same, of a job that was in no queue.
    SentIdle,
    /// Here is the target: the answer is that it has the job.
    Taken,
    /// The answer is that it does not have it, and never will by this transfer.
    Refused,
    /// The source knows the answer: it is forgotten.
    Retired,
}

impl TransferStage {
    pub(super) fn number(self) -> u8 {
        self as u8
    }

    pub(super) fn from_number(number: u8) -> Option<Self> {
        use TransferStage::{Refused, Retired, SentIdle, SentQueued, Taken};
        [SentQueued, SentIdle, Taken, Refused, Retired]
            .into_iter()
            .find(|stage| stage.number() == number)
    }

    /// Whether this is the node that the job goes from.
    pub fn is_of_source(self) -> bool {
        matches!(self, Self::SentQueued | Self::SentIdle)
    }
}

/// A step of a transfer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TransferImage {
    /// Which one.
    pub stage: TransferStage,
    /// The other node: the target and its store epoch, or the source and the epoch that was known of it.
    pub node: Holder,
    /// The job.
    pub id: JobId,
    /// Part of the transfer's name.
    pub hop: u64,
    /// The job as it was taken, or, in a snapshot at the source, as it is.
    pub job: Option<Box<JobImage>>,
}

impl TransferImage {
    /// The name of the transfer, at its target.
    pub fn name(&self) -> TransferName {
        TransferName {
            source: self.node.node,
            id: self.id,
            hop: self.hop,
        }
    }

    /// The newest stamp of this node, or of another, in it.
    pub(super) fn newest_stamp(&self) -> u64 {
        let ctime = self.job.as_ref().map_or(0, |job| job.ctime);
        if self.stage.is_of_source() {
            ctime.max(self.hop)
        } else {
            ctime
        }
    }
}

/// A queue's pause state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QueueImage {
    /// Its name.
    pub name: Blob,
    /// Which ways are closed.
    pub pause: PauseState,
    /// Version of the state, across nodes (`home/cluster/pauses.rs`); 0 for none.
    pub version: u64,
}

/// What the log knows of itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Meta {
    /// The node's store epoch.
    pub store_epoch: u64,
    /// Newest creation stamp of the shard.
    pub last_ctime: u64,
    /// The kernel's boot ID when the server started.
    pub boot_id: [u8; 16],
    /// Oldest segment that is still needed.
    pub lowest_segment: u64,
    /// Place of the first record of the segment this record stands in.
    pub base: u64,
    /// Since the start of the server, everything that was told had been synced (`appendfsync always`).
    pub always: bool,
    /// The last record of an orderly stop.
    pub stopped: bool,
}

/// Something to be remembered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Entry {
    /// A job is there: made, accepted from a peer, imported.
    Added(JobImage),
    /// A job's state changed.
    State(StateChange),
    /// A job was acknowledged. With no holders left to be told, it is gone.
    Acked(AckedImage),
    /// A job has other holders than before.
    Holders(HoldersImage),
    /// A job is gone: deleted, expired, evicted, collected, transferred.
    Gone(JobId),
    /// A step of a transfer of a RETRY 0 job.
    Transfer(TransferImage),
    /// A queue's pause state changed.
    Queue(QueueImage),
    /// A job's whole present state, from compaction or resharding.
    JobSnapshot(JobImage),
    /// A queue's present state, from compaction or resharding.
    QueueSnapshot(QueueImage),
    /// An acknowledgement not yet collected, from compaction or resharding.
    AckedSnapshot(AckedImage),
    /// A job on its way, or the answer to a transfer, from compaction or resharding.
    TransferSnapshot(TransferImage),
    /// DEBUG FLUSHALL: nothing that stands before it lives, but answers to transfers.
    Flushed,
    /// The log about itself. The writer adds these; recovery shows them.
    Meta(Meta),
}

impl Entry {
    /// Whether it may use the reserve that is kept for a full disk: it lets the log shrink.
    pub fn frees_space(&self) -> bool {
        match self {
            Self::Added(_) | Self::State(_) | Self::Holders(_) | Self::Queue(_) => false,
            Self::Transfer(image) => matches!(image.stage, TransferStage::Refused | TransferStage::Retired),
            _ => true,
        }
    }

    pub(super) fn kind(&self) -> Kind {
        match self {
            Self::Meta(_) => Kind::Meta,
            Self::Added(_) => Kind::Added,
            Self::State(_) => Kind::State,
            Self::Acked(_) => Kind::Acked,
            Self::Holders(_) => Kind::Holders,
            Self::Gone(_) => Kind::Gone,
            Self::Transfer(_) => Kind::Transfer,
            Self::Queue(_) => Kind::Queue,
            Self::JobSnapshot(_) => Kind::JobSnapshot,
            Self::QueueSnapshot(_) => Kind::QueueSnapshot,
            Self::AckedSnapshot(_) => Kind::AckedSnapshot,
            Self::TransferSnapshot(_) => Kind::TransferSnapshot,
            Self::Flushed => Kind::Flushed,
        }
    }
}

/// Kinds of record, by their numbers on disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Meta = 1,
    Added = 2,
    State = 3,
    Acked = 4,
    Gone = 5,
    Transfer = 6,
    Queue = 7,
    JobSnapshot = 8,
    QueueSnapshot = 9,
    AckedSnapshot = 10,
    TransferSnapshot = 11,
    Holders = 12,
    Flushed = 13,
    TogetherBefore = 14,
    SnapshotsTogether = 15,
    Together = 16,
}

impl Kind {
    pub fn from_number(number: u8) -> Option<Self> {
        use Kind::{
            Acked, AckedSnapshot, Added, Flushed, Gone, Holders, JobSnapshot, Meta, Queue, QueueSnapshot,
            SnapshotsTogether, State, Together, TogetherBefore, Transfer, TransferSnapshot,
        };
        let all = [
            Meta,
            Added,
            State,
            Acked,
            Gone,
            Transfer,
            Queue,
            JobSnapshot,
            QueueSnapshot,
            AckedSnapshot,
            TransferSnapshot,
            Holders,
            Flushed,
            TogetherBefore,
            SnapshotsTogether,
            Together,
        ];
        all.into_iter().find(|&kind| kind as u8 == number)
    }
}

/// Instead of a length: the name is that of the job before.
pub const SAME_NAME: u32 = u32::MAX;
pub const DELIVERED: u8 = 1;
pub const ENTERED_BEFORE: u8 = 2;
pub const CLOSED_IN: u8 = 1;
pub const CLOSED_OUT: u8 = 2;
pub const ALWAYS: u8 = 1;
pub const STOPPED: u8 = 2;

#[derive(Archive, Serialize, Deserialize)]
pub struct MetaPayload {
    pub store_epoch: u64,
    pub last_ctime: u64,
    pub boot_id: [u8; 16],
    pub lowest_segment: u64,
    pub base: u64,
    pub flags: u8,
}

#[derive(Archive, Serialize, Deserialize)]
pub struct JobPayload {
    pub ctime: u64,
    pub expires_at: u64,
    pub state: ChangePayload,
    pub ttl_s: u32,
    pub retry_s: u32,
    pub delay_s: u32,
    pub name_bytes: u32,
    pub holders: Vec<HolderPayload>,
    pub replicate: u16,
}

/// Kind 14, which no server writes any more.
#[derive(Archive, Serialize, Deserialize)]
pub struct TogetherBeforePayload {
    pub jobs: Vec<JobBeforePayload>,
}

#[derive(Archive, Serialize, Deserialize)]
pub struct JobBeforePayload {
    pub ctime: u64,
    pub expires_at: u64,
    pub enters_at: u64,
    pub id: [u8; 24],
    pub ttl_s: u32,
    pub retry_s: u32,
    pub delay_s: u32,
    pub name_bytes: u32,
    pub body_bytes: u32,
    pub replicate: u16,
    pub place: u8,
    pub flags: u8,
}

#[derive(Archive, Serialize, Deserialize, Debug)]
pub struct TogetherPayload {
    /// What so many jobs, one behind the other, have in common.
    pub runs: Vec<RunPayload>,
    pub jobs: Vec<SharingJobPayload>,
}

#[derive(Archive, Serialize, Deserialize, Debug, PartialEq, Eq)]
pub struct RunPayload {
    /// Milliseconds from the creation stamp; `u64::MAX`: never. So of the next.
    pub expires_in: u64,
    pub enters_in: u64,
    pub jobs: u32,
    pub ttl_s: u32,
    pub retry_s: u32,
    pub delay_s: u32,
    pub replicate: u16,
    pub place: u8,
    pub flags: u8,
}

#[derive(Archive, Serialize, Deserialize, Debug)]
pub struct SharingJobPayload {
    pub ctime: u64,
    pub id: [u8; 24],
    pub name_bytes: u32,
    pub body_bytes: u32,
}

#[derive(Archive, Serialize, Deserialize, Debug)]
pub struct SnapshotsPayload {
    pub together: TogetherPayload,
    /// Of those jobs whose counts are not all 0, in order.
    pub counts: Vec<CountsPayload>,
}

#[derive(Archive, Serialize, Deserialize, Debug)]
pub struct CountsPayload {
    /// Which of the jobs.
    pub job: u32,
    pub nacks: u32,
    pub additional_deliveries: u32,
    pub deliveries: u32,
}

#[derive(Archive, Serialize, Deserialize)]
pub struct HolderPayload {
    pub node: [u8; 20],
    pub epoch: u64,
}

#[derive(Archive, Serialize, Deserialize)]
pub struct StatePayload {
    pub changes: Vec<ChangePayload>,
}

#[derive(Archive, Serialize, Deserialize)]
pub struct ChangePayload {
    pub enters_at: u64,
    pub id: [u8; 24],
    pub nacks: u32,
    pub additional_deliveries: u32,
    pub deliveries: u32,
    pub place: u8,
    pub flags: u8,
}

#[derive(Archive, Serialize, Deserialize)]
pub struct AckedPayload {
    pub ids: Vec<[u8; 24]>,
    pub holders: Vec<HolderPayload>,
}

#[derive(Archive, Serialize, Deserialize)]
pub struct GonePayload {
    pub ids: Vec<[u8; 24]>,
}

#[derive(Archive, Serialize, Deserialize)]
pub struct TransferPayload {
    pub epoch: u64,
    pub hop: u64,
    pub id: [u8; 24],
    pub node: [u8; 20],
    pub stage: u8,
    pub job: Option<JobPayload>,
}

#[derive(Archive, Serialize, Deserialize)]
pub struct QueuePayload {
    pub version: u64,
    pub closed: u8,
}

#[derive(Archive, Serialize, Deserialize)]
pub struct FlushedPayload {
    /// 0: a place for what a later version wants to say.
    pub reserved: u64,
}
