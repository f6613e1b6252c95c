//! Records as bytes: encoding into chunks without copying large bodies, decoding without trusting anything.
//!
//! What must hold: decoding bounds every length by the bytes that are there before it is used, gives typed errors, and never
//! panics; a record whose checksum is right and whose version, kind or payload is not known is never skipped.

use bytes::{BufMut, Bytes, BytesMut};
use rkyv::api::high::{HighSerializer, HighValidator};
use rkyv::api::low::LowSerializer;
use rkyv::bytecheck::CheckBytes;
use rkyv::rancor::Failure;
use rkyv::ser::allocator::{ArenaHandle, SubAllocator};
use rkyv::ser::writer::Buffer;
use rkyv::util::{Align, AlignedVec};
use rkyv::{Portable, Serialize};
use smallvec::SmallVec;
use thiserror::Error;

use super::record::*;
use super::together::{self, Of, Together};
use crate::commands::view::PauseState;
use crate::id::JobId;
use crate::wire::Blob;

/// Bytes of a record's header.
pub const HEADER_BYTES: usize = 24;
/// Records begin at multiples of this.
pub const ALIGNMENT: u64 = 8;
/// Bodies from this length on are written from where they are.
pub const SHARED_BODY_BYTES: usize = 4096;
/// Fixed parts up to this length are made without the heap: those of jobs that no other node holds.
const SMALL_FIXED_BYTES: usize = 128;
/// Longest record: what 32 bits of length hold, less the padding.
const MAX_RECORD_BYTES: u64 = u32::MAX as u64 - ALIGNMENT;
/// Holders of one record at the most.
const MAX_HOLDERS: usize = crate::limits::HOLDERS;

/// What stands in a log instead of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum BadRecord {
    /// Its length cannot be, or is more than the file has left.
    #[error("a record of an impossible length")]
    Length,
    /// Its bytes are not those that were written.
    #[error("a record with a wrong checksum")]
    Checksum,
    /// It was written for another place.
    #[error("a record that belongs to another place of the log")]
    Misplaced,
    /// A later server wrote it.
    #[error("a record of version {0}, which this server does not know")]
    Version(u8),
    /// A later server wrote it.
    #[error("a record of kind {0}, which this server does not know")]
    Kind(u8),
    /// Its checksum is right and its content is not.
    #[error("a record of kind {0} with an invalid payload")]
    Payload(u8),
}

impl BadRecord {
    /// Whether the checksum was right: then no disk did it.
    pub fn is_intact(self) -> bool {
        matches!(self, Self::Version(_) | Self::Kind(_) | Self::Payload(_))
    }
}

/// Bytes that a living job adds to the live bytes of the log, about: its part of a record, its name included.
pub fn image_bytes(name_bytes: usize, body_bytes: usize) -> u64 {
    let fixed = if body_bytes < SHARED_BODY_BYTES {
        size_of::<ArchivedSharingJobPayload>()
    } else {
        HEADER_BYTES + size_of::<ArchivedJobPayload>()
    };
    (fixed + name_bytes + body_bytes) as u64
}

/// How much more a job adds that another node holds too: it has a record of its own.
pub const SHARE_IMAGE_BYTES: u64 =
    (HEADER_BYTES + size_of::<ArchivedJobPayload>() + size_of::<ArchivedHolderPayload>()
        - size_of::<ArchivedSharingJobPayload>()) as u64;

/// Where a record stands, for its checksum and its header.
#[derive(Clone, Copy, Debug)]
pub struct Stand {
    /// Random number of its segment.
    pub random: u64,
    /// Its place.
    pub place: u64,
    /// Up to where the log is durable.
    pub durable: u64,
}

/// Entries of the same kind that go into one record.
#[derive(Debug)]
pub enum Group {
    Changes(Vec<StateChange>),
    Acked { ids: Vec<JobId>, holders: Vec<Holder> },
    Holders { ids: Vec<JobId>, holders: Vec<Holder> },
    Gone(Vec<JobId>),
    Jobs(Together),
}

impl Group {
    /// Takes a job in that was just added, if it goes into the same record, and that into so many bytes.
    pub fn take_job(&mut self, job: &JobRef<'_>, room: u64) -> bool {
        match self {
            Self::Jobs(together) => together.of() == Of::Added && together.take(job, room),
            _ => false,
        }
    }

    /// Starts a group with a job that was just added, if such jobs have groups.
    pub fn start_job(job: &JobRef<'_>) -> Option<Self> {
        Together::start(Of::Added, job).map(Self::Jobs)
    }

    /// Takes an entry in, if it goes into the same record, and that into so many bytes.
    pub fn take(&mut self, entry: &Entry, room: u64) -> bool {
        match (self, entry) {
            (Self::Jobs(together), Entry::JobSnapshot(image)) => {
                return together.of() == Of::Snapshots && together.take(&image.by_ref(), room);
            }
            (Self::Changes(changes), Entry::State(change)) if changes.len() < IDS_PER_RECORD => {
                changes.push(*change);
            }
            (Self::Acked { ids, holders }, Entry::Acked(acked))
                if ids.len() < IDS_PER_RECORD && *holders == acked.holders =>
            {
                ids.push(acked.id);
            }
            (Self::Holders { ids, holders }, Entry::Holders(image))
                if ids.len() < IDS_PER_RECORD && *holders == image.holders =>
            {
                ids.push(image.id);
            }
            (Self::Gone(ids), Entry::Gone(id)) if ids.len() < IDS_PER_RECORD => ids.push(*id),
            _ => return false,
        }
        true
    }

    /// Starts a group with an entry, if its kind has groups.
    pub fn start(entry: &Entry) -> Option<Self> {
        match entry {
            Entry::State(change) => Some(Self::Changes(vec![*change])),
            Entry::Acked(acked) => Some(Self::Acked {
                ids: vec![acked.id],
                holders: acked.holders.clone(),
            }),
            Entry::Holders(image) => Some(Self::Holders {
                ids: vec![image.id],
                holders: image.holders.clone(),
            }),
            Entry::Gone(id) => Some(Self::Gone(vec![*id])),
            Entry::JobSnapshot(image) => Together::start(Of::Snapshots, &image.by_ref()).map(Self::Jobs),
            _ => None,
        }
    }
}

/// A record ready to be placed: its fixed part, and what is raw.
#[derive(Debug)]
pub struct Prepared<'a> {
    kind: Kind,
    /// It may be the whole image of something that lives: compaction has to look at it.
    is_image: bool,
    fixed: SmallVec<[u8; SMALL_FIXED_BYTES]>,
    name: &'a Blob,
    body: &'a Blob,
    /// What else is raw.
    raw: &'a [u8],
}

impl<'a> Prepared<'a> {
    pub fn group(group: &'a Group) -> Self {
        match group {
            Group::Changes(changes) => {
                let changes = changes.iter().map(change_payload).collect();
                Self::fixed(Kind::State, &StatePayload { changes })
            }
            Group::Acked { ids, holders } => Self::acked(Kind::Acked, ids, holders),
            Group::Holders { ids, holders } => Self::acked(Kind::Holders, ids, holders),
            Group::Gone(ids) => {
                let ids = ids.iter().map(|id| *id.as_bytes()).collect();
                Self::fixed(Kind::Gone, &GonePayload { ids })
            }
            Group::Jobs(together) => {
                let payload = together.payload();
                let prepared = match together.of() {
                    Of::Added => Self::fixed(Kind::Together, &payload.together),
                    Of::Snapshots => Self::fixed(Kind::SnapshotsTogether, payload),
                };
                let raw = together.raw();
                Self { raw, ..prepared }
            }
        }
    }

    pub fn entry(entry: &'a Entry) -> Self {
        let kind = entry.kind();
        match entry {
            Entry::Added(image) | Entry::JobSnapshot(image) => Self::job(kind, &image.by_ref()),
            Entry::Queue(image) | Entry::QueueSnapshot(image) => Self {
                name: &image.name,
                ..Self::fixed(kind, &queue_payload(image))
            },
            Entry::AckedSnapshot(image) => Self::acked(kind, &[image.id], &image.holders),
            Entry::Transfer(image) | Entry::TransferSnapshot(image) => Self::transfer(kind, image),
            Entry::Meta(meta) => Self::fixed(kind, &meta_payload(meta)),
            Entry::Flushed => Self::fixed(kind, &FlushedPayload { reserved: 0 }),
            Entry::State(change) => {
                let changes = vec![change_payload(change)];
                Self::fixed(kind, &StatePayload { changes })
            }
            Entry::Acked(image) => Self::acked(kind, &[image.id], &image.holders),
            Entry::Holders(image) => Self::acked(kind, &[image.id], &image.holders),
            Entry::Gone(id) => {
                let ids = vec![*id.as_bytes()];
                Self::fixed(kind, &GonePayload { ids })
            }
        }
    }

    /// A job's whole record.
    pub fn job(kind: Kind, job: &JobRef<'a>) -> Self {
        Self {
            name: job.queue,
            body: job.body,
            ..Self::small(kind, &job_payload(job))
        }
    }

    /// A record of kind 14.
    #[cfg(test)]
    pub fn together_before(payload: &TogetherBeforePayload, raw: &'a [u8]) -> Self {
        Self {
            raw,
            ..Self::fixed(Kind::TogetherBefore, payload)
        }
    }

    fn acked(kind: Kind, ids: &[JobId], holders: &[Holder]) -> Self {
        let prepared = Self::fixed(kind, &acked_payload(ids, holders));
        Self {
            // An acknowledgement that nobody is to be told of any more is the end of its job.
            is_image: prepared.is_image && !holders.is_empty(),
            ..prepared
        }
    }

    fn transfer(kind: Kind, image: &'a TransferImage) -> Self {
        let is_answer = matches!(image.stage, TransferStage::Taken | TransferStage::Refused);
        let prepared = Self {
            is_image: is_answer || image.job.is_some(),
            ..Self::fixed(kind, &transfer_payload(image))
        };
        match &image.job {
            Some(job) => Self {
                name: &job.queue,
                body: &job.body,
                ..prepared
            },
            None => prepared,
        }
    }

    fn fixed<P>(kind: Kind, payload: &P) -> Self
    where
        P: for<'b> Serialize<HighSerializer<AlignedVec, ArenaHandle<'b>, Failure>>,
    {
        let bytes = rkyv::api::high::to_bytes_in::<_, Failure>(payload, AlignedVec::<16>::new())
            .expect("memory is all that this needs");
        Self::of_fixed(kind, SmallVec::from_slice(&bytes))
    }

    /// The same for a payload that is likely to be small.
    fn small<P>(kind: Kind, payload: &P) -> Self
    where
        P: for<'b> Serialize<HighSerializer<AlignedVec, ArenaHandle<'b>, Failure>>
            + for<'b> Serialize<LowSerializer<Buffer<'b>, SubAllocator<'static>, Failure>>,
    {
        let mut room = Align([0; SMALL_FIXED_BYTES]);
        let (buffer, none) = (Buffer::from(&mut *room), SubAllocator::empty());
        match rkyv::api::low::to_bytes_in_with_alloc::<_, _, Failure>(payload, buffer, none) {
            Ok(bytes) => Self::of_fixed(kind, SmallVec::from_slice(&bytes)),
            Err(Failure) => Self::fixed(kind, payload),
        }
    }

    fn of_fixed(kind: Kind, fixed: SmallVec<[u8; SMALL_FIXED_BYTES]>) -> Self {
        assert!(fixed.len().is_multiple_of(4) && fixed.len() / 4 <= usize::from(u16::MAX));
        let is_image = !matches!(
            kind,
            Kind::State | Kind::Holders | Kind::Gone | Kind::Meta | Kind::Flushed
        );
        Self {
            kind,
            is_image,
            fixed,
            name: &Blob::EMPTY,
            body: &Blob::EMPTY,
            raw: &[],
        }
    }

    fn length(&self) -> u64 {
        let bytes =
            (HEADER_BYTES + self.fixed.len() + self.name.len() + self.body.len() + self.raw.len()) as u64;
        assert!(bytes <= MAX_RECORD_BYTES, "requests are smaller than that");
        bytes
    }

    /// Whether it may be the whole image of something that lives.
    pub fn is_image(&self) -> bool {
        self.is_image
    }

    /// Bytes it takes on disk.
    pub fn padded_bytes(&self) -> u64 {
        padded(self.length())
    }

    /// Appends it to a batch: small things to `buffer`, a large body as a chunk of its own behind what was in the buffer.
    pub fn write(&self, stand: Stand, buffer: &mut BytesMut, chunks: &mut Vec<Bytes>) {
        let length = self.length();
        let padding = (padded(length) - length) as usize;
        let shared = self.body.shared().filter(|body| body.len() >= SHARED_BODY_BYTES);
        let body: &[u8] = match shared {
            Some(_) => &[],
            None if self.body.is_empty() => self.raw,
            None => self.body,
        };
        let (start, fixed_end) = (buffer.len(), HEADER_BYTES + self.fixed.len());
        let (name_end, end) = (
            fixed_end + self.name.len(),
            fixed_end + self.name.len() + body.len(),
        );
        // Zeros: with the body here, the padding is among them.
        buffer.resize(start + end + if shared.is_some() { 0 } else { padding }, 0);
        let record = &mut buffer[start..];
        record[..4].copy_from_slice(&(length as u32).to_le_bytes());
        record[8..16].copy_from_slice(&stand.durable.to_le_bytes());
        record[16..20].copy_from_slice(&short_place(stand.place).to_le_bytes());
        record[20..22].copy_from_slice(&((self.fixed.len() / 4) as u16).to_le_bytes());
        record[22] = VERSION;
        record[23] = self.kind as u8;
        record[HEADER_BYTES..fixed_end].copy_from_slice(&self.fixed);
        record[fixed_end..name_end].copy_from_slice(self.name);
        record[name_end..end].copy_from_slice(body);
        let mut sum = header_sum(stand.random, &record[..4], &record[8..end]);
        if let Some(shared) = shared {
            sum = crc32c::crc32c_append(sum, shared);
        }
        record[4..8].copy_from_slice(&sum.to_le_bytes());
        if let Some(shared) = shared {
            chunks.push(buffer.split().freeze());
            chunks.push(shared.clone());
            buffer.put_bytes(0, padding);
        }
    }
}

/// What stands at a place where a record could begin.
#[derive(Debug, PartialEq)]
pub enum Look<'a> {
    /// A record whose checksum is right.
    Record(Intact<'a>),
    /// Nothing was written here.
    Nothing,
    /// So many bytes are needed to tell.
    Needs(usize),
    /// No record.
    Bad(BadRecord),
}

/// A record whose checksum is right; its content is not looked at yet.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Intact<'a> {
    /// Up to where the log was durable when it was made.
    pub durable: u64,
    /// Bytes it takes, with padding.
    pub padded_bytes: u64,
    short_place: u32,
    version: u8,
    kind: u8,
    fixed: &'a [u8],
    raw: &'a [u8],
}

/// Whether these bytes could begin a record of this or a near version; true when there are too few of them to tell.
pub fn could_be_header(bytes: &[u8]) -> bool {
    let Some(header) = bytes.first_chunk::<HEADER_BYTES>() else {
        return true;
    };
    let durable = u64::from_le_bytes(header[8..16].try_into().expect("8 bytes"));
    let (version, kind) = (header[22], header[23]);
    durable.is_multiple_of(ALIGNMENT)
        && durable >> 48 == 0
        && (1..=8).contains(&version)
        && (1..=64).contains(&kind)
}

/// Looks at what begins with `bytes`; the file ends `room` bytes from there, which may be more than `bytes` holds.
pub fn look(bytes: &[u8], room: u64, random: u64) -> Look<'_> {
    let Some(start) = bytes.first_chunk::<8>() else {
        return match bytes.len() as u64 >= room {
            true if bytes.iter().all(|&byte| byte == 0) => Look::Nothing,
            true => Look::Bad(BadRecord::Length),
            false => Look::Needs(8.min(room as usize)),
        };
    };
    if *start == [0; 8] {
        return Look::Nothing;
    }
    let length = u64::from(u32::from_le_bytes([start[0], start[1], start[2], start[3]]));
    if length < HEADER_BYTES as u64 || length > MAX_RECORD_BYTES || length > room {
        return Look::Bad(BadRecord::Length);
    }
    let (Some(header), Ok(length)) = (bytes.first_chunk::<HEADER_BYTES>(), usize::try_from(length)) else {
        return Look::Needs(HEADER_BYTES);
    };
    let fixed_bytes = 4 * usize::from(u16::from_le_bytes([header[20], header[21]]));
    if fixed_bytes > length - HEADER_BYTES {
        return Look::Bad(BadRecord::Length);
    }
    let with_padding = padded(length as u64).min(room) as usize;
    if bytes.len() < with_padding {
        return Look::Needs(with_padding);
    }
    let rest = &bytes[HEADER_BYTES..length];
    let sum = header_sum(random, &header[..4], &bytes[8..length]);
    if sum.to_le_bytes() != header[4..8] {
        return Look::Bad(BadRecord::Checksum);
    }
    let (fixed, raw) = rest.split_at(fixed_bytes);
    Look::Record(Intact {
        durable: u64::from_le_bytes(header[8..16].try_into().expect("8 bytes")),
        padded_bytes: padded(length as u64),
        short_place: u32::from_le_bytes(header[16..20].try_into().expect("4 bytes")),
        version: header[22],
        kind: header[23],
        fixed,
        raw,
    })
}

impl Intact<'_> {
    /// Checks that it stands where it was written for.
    pub fn stands_at(&self, place: u64) -> Result<(), BadRecord> {
        if self.short_place == short_place(place) {
            Ok(())
        } else {
            Err(BadRecord::Misplaced)
        }
    }

    /// Reads it as entries, in order.
    pub fn entries(&self, sink: &mut impl FnMut(Entry)) -> Result<(), BadRecord> {
        if self.version != VERSION {
            return Err(BadRecord::Version(self.version));
        }
        let kind = Kind::from_number(self.kind).ok_or(BadRecord::Kind(self.kind))?;
        self.read(kind, sink).ok_or(BadRecord::Payload(self.kind))
    }

    fn read(&self, kind: Kind, sink: &mut impl FnMut(Entry)) -> Option<()> {
        let mut fixed = AlignedVec::<16>::with_capacity(self.fixed.len());
        fixed.extend_from_slice(self.fixed);
        if !matches!(
            kind,
            Kind::Added
                | Kind::JobSnapshot
                | Kind::Transfer
                | Kind::TransferSnapshot
                | Kind::Queue
                | Kind::QueueSnapshot
                | Kind::TogetherBefore
                | Kind::Together
                | Kind::SnapshotsTogether
        ) && !self.raw.is_empty()
        {
            return None;
        }
        match kind {
            Kind::Meta => sink(Entry::Meta(meta_from(access(&fixed)?)?)),
            Kind::Added => sink(Entry::Added(job_from(access(&fixed)?, self.raw)?)),
            Kind::JobSnapshot => sink(Entry::JobSnapshot(job_from(access(&fixed)?, self.raw)?)),
            Kind::TogetherBefore => together::read_before(access(&fixed)?, self.raw, sink)?,
            Kind::Together => together::read_added(access(&fixed)?, self.raw, sink)?,
            Kind::SnapshotsTogether => together::read_snapshots(access(&fixed)?, self.raw, sink)?,
            Kind::Transfer => sink(Entry::Transfer(transfer_from(access(&fixed)?, self.raw)?)),
            Kind::TransferSnapshot => {
                sink(Entry::TransferSnapshot(transfer_from(access(&fixed)?, self.raw)?));
            }
            Kind::Queue => sink(Entry::Queue(queue_from(access(&fixed)?, self.raw)?)),
            Kind::QueueSnapshot => sink(Entry::QueueSnapshot(queue_from(access(&fixed)?, self.raw)?)),
            Kind::Flushed => {
                let payload: &ArchivedFlushedPayload = access(&fixed)?;
                (payload.reserved == 0).then(|| sink(Entry::Flushed))?;
            }
            Kind::State => {
                let payload: &ArchivedStatePayload = access(&fixed)?;
                let changes: Option<Vec<_>> = payload.changes.iter().map(change_from).collect();
                changes?.into_iter().for_each(|change| sink(Entry::State(change)));
            }
            Kind::Acked | Kind::AckedSnapshot => {
                let payload: &ArchivedAckedPayload = access(&fixed)?;
                let holders = holders_from(&payload.holders)?;
                for id in payload.ids.iter() {
                    let (id, holders) = (JobId::from_bytes(*id), holders.clone());
                    let image = AckedImage { id, holders };
                    sink(if kind == Kind::Acked {
                        Entry::Acked(image)
                    } else {
                        Entry::AckedSnapshot(image)
                    });
                }
            }
            Kind::Holders => {
                let payload: &ArchivedAckedPayload = access(&fixed)?;
                let holders = holders_from(&payload.holders)?;
                for id in payload.ids.iter() {
                    let (id, holders) = (JobId::from_bytes(*id), holders.clone());
                    sink(Entry::Holders(HoldersImage { id, holders }));
                }
            }
            Kind::Gone => {
                let payload: &ArchivedGonePayload = access(&fixed)?;
                payload
                    .ids
                    .iter()
                    .for_each(|id| sink(Entry::Gone(JobId::from_bytes(*id))));
            }
        }
        Some(())
    }
}

/// The payload of a fixed part, checked.
fn access<A>(fixed: &AlignedVec<16>) -> Option<&A>
where
    A: Portable + for<'a> CheckBytes<HighValidator<'a, Failure>>,
{
    rkyv::access::<A, Failure>(fixed).ok()
}

/// Rounded up to where the next record may begin.
pub fn padded(bytes: u64) -> u64 {
    bytes.next_multiple_of(ALIGNMENT)
}

fn short_place(place: u64) -> u32 {
    (place / ALIGNMENT) as u32
}

/// The checksum of a record: of its length, and of what stands behind the checksum, as far as that is at hand.
fn header_sum(random: u64, length: &[u8], rest: &[u8]) -> u32 {
    let mut head = [0; 12];
    head[..8].copy_from_slice(&random.to_le_bytes());
    head[8..].copy_from_slice(length);
    crc32c::crc32c_append(crc32c::crc32c(&head), rest)
}

fn change_payload(change: &StateChange) -> ChangePayload {
    ChangePayload {
        enters_at: change.enters_at.0,
        id: *change.id.as_bytes(),
        nacks: change.nacks,
        additional_deliveries: change.additional_deliveries,
        deliveries: change.deliveries,
        place: change.place.number(),
        flags: flag(change.delivered, DELIVERED) | flag(change.entered_before, ENTERED_BEFORE),
    }
}

fn change_from(payload: &ArchivedChangePayload) -> Option<StateChange> {
    let [delivered, entered_before] = flags_from(payload.flags, [DELIVERED, ENTERED_BEFORE])?;
    Some(StateChange {
        id: JobId::from_bytes(payload.id),
        place: KeptPlace::from_number(payload.place)?,
        enters_at: WallMs(payload.enters_at.to_native()),
        nacks: payload.nacks.to_native(),
        additional_deliveries: payload.additional_deliveries.to_native(),
        deliveries: payload.deliveries.to_native(),
        delivered,
        entered_before,
    })
}

fn job_payload(job: &JobRef<'_>) -> JobPayload {
    JobPayload {
        ctime: job.ctime,
        expires_at: job.expires_at.0,
        state: change_payload(&job.state),
        ttl_s: job.ttl_s,
        retry_s: job.retry_s,
        delay_s: job.delay_s,
        name_bytes: job.queue.len() as u32,
        holders: holder_payloads(job.holders),
        replicate: job.replicate,
    }
}

fn job_from(payload: &ArchivedJobPayload, raw: &[u8]) -> Option<JobImage> {
    let (name, body) = raw.split_at_checked(payload.name_bytes.to_native() as usize)?;
    let state = change_from(&payload.state)?;
    Some(JobImage {
        id: state.id,
        queue: Blob::copy_from(name),
        body: Blob::copy_from(body),
        ctime: payload.ctime.to_native(),
        expires_at: WallMs(payload.expires_at.to_native()),
        ttl_s: payload.ttl_s.to_native(),
        retry_s: payload.retry_s.to_native(),
        delay_s: payload.delay_s.to_native(),
        replicate: payload.replicate.to_native(),
        state,
        holders: holders_from(&payload.holders)?,
    })
}

fn transfer_payload(image: &TransferImage) -> TransferPayload {
    TransferPayload {
        epoch: image.node.epoch,
        hop: image.hop,
        id: *image.id.as_bytes(),
        node: image.node.node,
        stage: image.stage.number(),
        job: image.job.as_ref().map(|job| job_payload(&job.by_ref())),
    }
}

fn transfer_from(payload: &ArchivedTransferPayload, raw: &[u8]) -> Option<TransferImage> {
    let job = match payload.job.as_ref() {
        Some(job) => Some(Box::new(job_from(job, raw)?)),
        None => None,
    };
    let id = JobId::from_bytes(payload.id);
    let is_whole = match &job {
        Some(job) => job.id == id,
        None => raw.is_empty(),
    };
    is_whole.then_some(())?;
    Some(TransferImage {
        stage: TransferStage::from_number(payload.stage)?,
        node: Holder {
            node: payload.node,
            epoch: payload.epoch.to_native(),
        },
        id,
        hop: payload.hop.to_native(),
        job,
    })
}

fn acked_payload(ids: &[JobId], holders: &[Holder]) -> AckedPayload {
    AckedPayload {
        ids: ids.iter().map(|id| *id.as_bytes()).collect(),
        holders: holder_payloads(holders),
    }
}

fn holder_payloads(holders: &[Holder]) -> Vec<HolderPayload> {
    assert!(holders.len() <= MAX_HOLDERS, "a cluster has fewer nodes");
    let payload = |holder: &Holder| HolderPayload {
        node: holder.node,
        epoch: holder.epoch,
    };
    holders.iter().map(payload).collect()
}

fn holders_from(payloads: &[ArchivedHolderPayload]) -> Option<Vec<Holder>> {
    let holder = |payload: &ArchivedHolderPayload| Holder {
        node: payload.node,
        epoch: payload.epoch.to_native(),
    };
    (payloads.len() <= MAX_HOLDERS).then(|| payloads.iter().map(holder).collect())
}

fn queue_payload(image: &QueueImage) -> QueuePayload {
    QueuePayload {
        version: image.version,
        closed: flag(image.pause.input, CLOSED_IN) | flag(image.pause.output, CLOSED_OUT),
    }
}

fn queue_from(payload: &ArchivedQueuePayload, raw: &[u8]) -> Option<QueueImage> {
    let [input, output] = flags_from(payload.closed, [CLOSED_IN, CLOSED_OUT])?;
    Some(QueueImage {
        name: Blob::copy_from(raw),
        pause: PauseState { input, output },
        version: payload.version.to_native(),
    })
}

fn meta_payload(meta: &Meta) -> MetaPayload {
    MetaPayload {
        store_epoch: meta.store_epoch,
        last_ctime: meta.last_ctime,
        boot_id: meta.boot_id,
        lowest_segment: meta.lowest_segment,
        base: meta.base,
        flags: flag(meta.always, ALWAYS) | flag(meta.stopped, STOPPED),
    }
}

fn meta_from(payload: &ArchivedMetaPayload) -> Option<Meta> {
    let [always, stopped] = flags_from(payload.flags, [ALWAYS, STOPPED])?;
    Some(Meta {
        store_epoch: payload.store_epoch.to_native(),
        last_ctime: payload.last_ctime.to_native(),
        boot_id: payload.boot_id,
        lowest_segment: payload.lowest_segment.to_native(),
        base: payload.base.to_native(),
        always,
        stopped,
    })
}

fn flag(set: bool, bit: u8) -> u8 {
    if set { bit } else { 0 }
}

/// Two flags; a third one is none of ours.
fn flags_from(flags: u8, bits: [u8; 2]) -> Option<[bool; 2]> {
    (flags & !(bits[0] | bits[1]) == 0).then(|| bits.map(|bit| flags & bit != 0))
}

const _: () = {
    assert!(size_of::<ArchivedChangePayload>() == 48);
    assert!(size_of::<ArchivedJobPayload>() == 96);
    assert!(IDS_PER_RECORD * size_of::<ArchivedChangePayload>() < 4 * u16::MAX as usize);
    assert!(MAX_HOLDERS * size_of::<ArchivedHolderPayload>() < 2 * u16::MAX as usize);
};
