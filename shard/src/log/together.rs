//! Jobs that clients just added, many in a record: most of what a busy log holds, at little more than half of the bytes that a record for each
//! would take.
//!
//! A job goes this way when all that is particular about it is what its ADDJOB said: it was never handed out, and no other node holds it. Names and
//! bodies follow one another in the raw part; a name like that of the job before is not said again.

use super::codec::{HEADER_BYTES, SHARED_BODY_BYTES, padded};
use super::record::{
    ArchivedNewJobPayload, ArchivedTogetherPayload, ENTERED_BEFORE, Entry, JobImage, JobRef, KeptPlace,
    NewJobPayload, SAME_NAME, StateChange, TogetherPayload, WallMs,
};
use crate::id::JobId;
use crate::wire::Blob;

/// Jobs of one record at the most: a step of compaction looks at all of them.
pub const JOBS_PER_RECORD: usize = 64;
/// Bytes of names and bodies in one record, above which it takes no more.
const RAW_BYTES: usize = 64 << 10;

/// The jobs of a record that is being made.
#[derive(Debug)]
pub struct Together {
    payload: TogetherPayload,
    raw: Vec<u8>,
    /// The name of the last one.
    name: Blob,
}

impl Together {
    /// Starts with a job, if it is one of those that go together.
    pub fn start(job: &JobRef<'_>) -> Option<Self> {
        let mut together = Self {
            payload: TogetherPayload {
                jobs: Vec::with_capacity(JOBS_PER_RECORD),
            },
            raw: Vec::new(),
            name: Blob::EMPTY,
        };
        together.take(job).then_some(together)
    }

    /// Takes a job in, if it goes into the same record.
    pub fn take(&mut self, job: &JobRef<'_>) -> bool {
        let state = &job.state;
        let was_moved = state.nacks > 0 || state.additional_deliveries > 0 || state.deliveries > 0;
        let is_particular = was_moved || state.delivered || !job.holders.is_empty();
        let is_large = job.body.len() >= SHARED_BODY_BYTES;
        let is_full = self.payload.jobs.len() >= JOBS_PER_RECORD || self.raw.len() >= RAW_BYTES;
        if is_particular || is_large || is_full {
            return false;
        }
        let name_bytes = if !self.payload.jobs.is_empty() && *job.queue == self.name {
            SAME_NAME
        } else {
            self.name = job.queue.clone();
            self.raw.extend_from_slice(job.queue);
            job.queue.len() as u32
        };
        self.raw.extend_from_slice(job.body);
        self.payload.jobs.push(NewJobPayload {
            ctime: job.ctime,
            expires_at: job.expires_at.0,
            enters_at: state.enters_at.0,
            id: *state.id.as_bytes(),
            ttl_s: job.ttl_s,
            retry_s: job.retry_s,
            delay_s: job.delay_s,
            name_bytes,
            body_bytes: job.body.len() as u32,
            replicate: job.replicate,
            place: state.place.number(),
            flags: if state.entered_before { ENTERED_BEFORE } else { 0 },
        });
        true
    }

    /// Bytes of the record if it took in this job too, at the most.
    pub fn most_bytes_with(&self, job: &JobRef<'_>) -> u64 {
        let raw = self.raw.len() + job.queue.len() + job.body.len();
        let jobs = (self.payload.jobs.len() + 1) * size_of::<ArchivedNewJobPayload>();
        padded((HEADER_BYTES + size_of::<ArchivedTogetherPayload>() + jobs + raw) as u64)
    }

    /// The fixed part.
    pub fn payload(&self) -> &TogetherPayload {
        &self.payload
    }

    /// The raw part.
    pub fn raw(&self) -> &[u8] {
        &self.raw
    }

    /// How many there are, and the creation stamps of the first and the last.
    pub fn extent(&self) -> (u32, u64, u64) {
        let jobs = &self.payload.jobs;
        let stamp = |job: Option<&NewJobPayload>| job.expect("it started with one").ctime;
        (jobs.len() as u32, stamp(jobs.first()), stamp(jobs.last()))
    }
}

/// The jobs of a record as entries; nothing when its parts do not fit each other.
pub fn read(payload: &ArchivedTogetherPayload, mut raw: &[u8], sink: &mut impl FnMut(Entry)) -> Option<()> {
    let mut name = None;
    for job in payload.jobs.iter() {
        if job.name_bytes.to_native() != SAME_NAME {
            name = Some(Blob::copy_from(cut(&mut raw, job.name_bytes.to_native())?));
        }
        let body = Blob::copy_from(cut(&mut raw, job.body_bytes.to_native())?);
        sink(Entry::Added(image(job, name.clone()?, body)?));
    }
    raw.is_empty().then_some(())
}

fn cut<'a>(raw: &mut &'a [u8], bytes: u32) -> Option<&'a [u8]> {
    let (front, rest) = raw.split_at_checked(bytes as usize)?;
    *raw = rest;
    Some(front)
}

fn image(job: &ArchivedNewJobPayload, queue: Blob, body: Blob) -> Option<JobImage> {
    let id = JobId::from_bytes(job.id);
    if job.flags & !ENTERED_BEFORE != 0 {
        return None;
    }
    Some(JobImage {
        id,
        queue,
        body,
        ctime: job.ctime.to_native(),
        expires_at: WallMs(job.expires_at.to_native()),
        ttl_s: job.ttl_s.to_native(),
        retry_s: job.retry_s.to_native(),
        delay_s: job.delay_s.to_native(),
        replicate: job.replicate.to_native(),
        state: StateChange {
            id,
            place: KeptPlace::from_number(job.place)?,
            enters_at: WallMs(job.enters_at.to_native()),
            nacks: 0,
            additional_deliveries: 0,
            deliveries: 0,
            delivered: false,
            entered_before: job.flags & ENTERED_BEFORE != 0,
        },
        holders: Vec::new(),
    })
}
