//! Jobs that share a record, at little more than half of the bytes that a record for each would take: those that clients just added, most of what a
//! busy log holds, and snapshots, so that what compaction writes of jobs is not more than what it read.
//!
//! Which of those that were just added go this way: all that is particular about one is what its ADDJOB said, it was never handed out. No job does
//! that another node holds. Names and bodies follow one another in the raw part; a name like that of the job before is not said again.

use super::codec::{HEADER_BYTES, SHARED_BODY_BYTES, padded};
use super::record::{
    ArchivedCountsPayload, ArchivedRunPayload, ArchivedSharingJobPayload, ArchivedSnapshotsPayload,
    ArchivedTogetherBeforePayload, ArchivedTogetherPayload, CountsPayload, DELIVERED, ENTERED_BEFORE, Entry,
    JobImage, JobRef, KeptPlace, RunPayload, SAME_NAME, SharingJobPayload, SnapshotsPayload, StateChange,
    TogetherPayload, WallMs,
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
    of: Of,
    payload: SnapshotsPayload,
    raw: Vec<u8>,
    /// The name of the last one.
    name: Blob,
}

/// Which jobs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Of {
    /// Just added, in the order of their creation stamps.
    Added,
    /// As they are now, in any order.
    Snapshots,
}

impl Together {
    /// Starts with a job, if it is one of those that go together.
    pub fn start(of: Of, job: &JobRef<'_>) -> Option<Self> {
        let mut together = Self {
            of,
            payload: SnapshotsPayload {
                together: TogetherPayload {
                    runs: Vec::new(),
                    jobs: Vec::with_capacity(JOBS_PER_RECORD),
                },
                counts: Vec::new(),
            },
            raw: Vec::new(),
            name: Blob::EMPTY,
        };
        together.take(job, u64::MAX).then_some(together)
    }

    /// Takes a job in, if it goes into the same record, and that into so many bytes.
    pub fn take(&mut self, job: &JobRef<'_>, room: u64) -> bool {
        let (state, jobs) = (&job.state, self.payload.together.jobs.len());
        let was_moved = state.nacks > 0 || state.additional_deliveries > 0 || state.deliveries > 0;
        let is_particular = match self.of {
            Of::Added => was_moved || state.delivered || !job.holders.is_empty(),
            Of::Snapshots => !job.holders.is_empty(),
        };
        let is_large = job.body.len() >= SHARED_BODY_BYTES;
        let is_full = jobs >= JOBS_PER_RECORD || self.raw.len() >= RAW_BYTES;
        let run = run_of(job).filter(|_| !(is_particular || is_large || is_full));
        let Some(run) = run.filter(|_| self.most_bytes_with(job) <= room) else {
            return false;
        };
        if was_moved {
            self.payload.counts.push(CountsPayload {
                job: jobs as u32,
                nacks: state.nacks,
                additional_deliveries: state.additional_deliveries,
                deliveries: state.deliveries,
            });
        }
        let name_bytes = if jobs > 0 && *job.queue == self.name {
            SAME_NAME
        } else {
            self.name = job.queue.clone();
            self.raw.extend_from_slice(job.queue);
            job.queue.len() as u32
        };
        self.raw.extend_from_slice(job.body);
        let TogetherPayload { runs, jobs } = &mut self.payload.together;
        match runs.last_mut() {
            Some(last)
                if RunPayload {
                    jobs: last.jobs,
                    ..run
                } == *last =>
            {
                last.jobs += 1
            }
            _ => runs.push(run),
        }
        jobs.push(SharingJobPayload {
            ctime: job.ctime,
            id: *state.id.as_bytes(),
            name_bytes,
            body_bytes: job.body.len() as u32,
        });
        true
    }

    /// Bytes of the record if it took in this job too, at the most.
    fn most_bytes_with(&self, job: &JobRef<'_>) -> u64 {
        let raw = self.raw.len() + job.queue.len() + job.body.len();
        let TogetherPayload { runs, jobs } = &self.payload.together;
        let runs = (runs.len() + 1) * size_of::<ArchivedRunPayload>();
        let jobs = (jobs.len() + 1) * size_of::<ArchivedSharingJobPayload>();
        let fixed = match self.of {
            Of::Added => size_of::<ArchivedTogetherPayload>(),
            Of::Snapshots => {
                let counts = (self.payload.counts.len() + 1) * size_of::<ArchivedCountsPayload>();
                size_of::<ArchivedSnapshotsPayload>() + counts
            }
        };
        padded((HEADER_BYTES + fixed + runs + jobs + raw) as u64)
    }

    /// Which jobs.
    pub fn of(&self) -> Of {
        self.of
    }

    /// The fixed part; that of jobs that were just added is `together` alone.
    pub fn payload(&self) -> &SnapshotsPayload {
        &self.payload
    }

    /// The raw part.
    pub fn raw(&self) -> &[u8] {
        &self.raw
    }

    /// How many there are, and the creation stamps of the first and the last.
    pub fn extent(&self) -> (u32, u64, u64) {
        let jobs = &self.payload.together.jobs;
        let stamp = |job: Option<&SharingJobPayload>| job.expect("it started with one").ctime;
        (jobs.len() as u32, stamp(jobs.first()), stamp(jobs.last()))
    }
}

/// What a job has in common with others, as a run of its own.
fn run_of(job: &JobRef<'_>) -> Option<RunPayload> {
    let flag = |is_set, flag| if is_set { flag } else { 0 };
    let state = &job.state;
    Some(RunPayload {
        expires_in: time_after(job.ctime, job.expires_at)?,
        enters_in: time_after(job.ctime, state.enters_at)?,
        jobs: 1,
        ttl_s: job.ttl_s,
        retry_s: job.retry_s,
        delay_s: job.delay_s,
        replicate: job.replicate,
        place: state.place.number(),
        flags: flag(state.entered_before, ENTERED_BEFORE) | flag(state.delivered, DELIVERED),
    })
}

/// Milliseconds from a creation stamp to an instant, which may be before it; nothing in the one case that means never.
fn time_after(ctime: u64, at: WallMs) -> Option<u64> {
    match at {
        WallMs::NEVER => Some(u64::MAX),
        at => Some(at.0.wrapping_sub(ctime / 1_000_000)).filter(|&after_ms| after_ms != u64::MAX),
    }
}

/// The way back.
fn instant(ctime: u64, after_ms: u64) -> WallMs {
    match after_ms {
        u64::MAX => WallMs::NEVER,
        after_ms => WallMs((ctime / 1_000_000).wrapping_add(after_ms)),
    }
}

/// The jobs of a record of those just added, as entries; nothing when its parts do not fit each other.
pub fn read_added(payload: &ArchivedTogetherPayload, raw: &[u8], sink: &mut impl FnMut(Entry)) -> Option<()> {
    let is_new = |image: &JobImage| !image.state.delivered;
    read(payload, raw, |_, image| {
        is_new(&image).then(|| sink(Entry::Added(image)))
    })
}

/// The same of snapshots.
pub fn read_snapshots(
    payload: &ArchivedSnapshotsPayload,
    raw: &[u8],
    sink: &mut impl FnMut(Entry),
) -> Option<()> {
    let mut counts = payload.counts.iter().peekable();
    read(&payload.together, raw, |number, mut image| {
        if let Some(counts) = counts.next_if(|counts| counts.job.to_native() == number) {
            image.state.nacks = counts.nacks.to_native();
            image.state.additional_deliveries = counts.additional_deliveries.to_native();
            image.state.deliveries = counts.deliveries.to_native();
        }
        sink(Entry::JobSnapshot(image));
        Some(())
    })?;
    counts.next().is_none().then_some(())
}

/// The same of jobs that were just added, as they were written before.
pub fn read_before(
    payload: &ArchivedTogetherBeforePayload,
    raw: &[u8],
    sink: &mut impl FnMut(Entry),
) -> Option<()> {
    let mut texts = Texts { raw, name: None };
    for job in payload.jobs.iter() {
        let run = RunPayload {
            expires_in: 0,
            enters_in: 0,
            jobs: 1,
            ttl_s: job.ttl_s.to_native(),
            retry_s: job.retry_s.to_native(),
            delay_s: job.delay_s.to_native(),
            replicate: job.replicate.to_native(),
            place: job.place,
            flags: job.flags,
        };
        let of = (JobId::from_bytes(job.id), job.ctime.to_native());
        let times = [job.expires_at.to_native(), job.enters_at.to_native()].map(WallMs);
        let texts = texts.next(job.name_bytes.to_native(), job.body_bytes.to_native())?;
        let image = image(&run, of, times, texts)?;
        (!image.state.delivered).then(|| sink(Entry::Added(image)))?;
    }
    texts.raw.is_empty().then_some(())
}

fn read(
    payload: &ArchivedTogetherPayload,
    raw: &[u8],
    mut sink: impl FnMut(u32, JobImage) -> Option<()>,
) -> Option<()> {
    let mut texts = Texts { raw, name: None };
    let mut jobs = (0..).zip(payload.jobs.iter());
    for run in payload.runs.iter() {
        let run = RunPayload {
            expires_in: run.expires_in.to_native(),
            enters_in: run.enters_in.to_native(),
            jobs: run.jobs.to_native(),
            ttl_s: run.ttl_s.to_native(),
            retry_s: run.retry_s.to_native(),
            delay_s: run.delay_s.to_native(),
            replicate: run.replicate.to_native(),
            place: run.place,
            flags: run.flags,
        };
        for _ in 0..run.jobs {
            let (number, job) = jobs.next()?;
            let ctime = job.ctime.to_native();
            let times = [run.expires_in, run.enters_in].map(|after_ms| instant(ctime, after_ms));
            let texts = texts.next(job.name_bytes.to_native(), job.body_bytes.to_native())?;
            sink(
                number,
                image(&run, (JobId::from_bytes(job.id), ctime), times, texts)?,
            )?;
        }
    }
    (texts.raw.is_empty() && jobs.next().is_none()).then_some(())
}

/// Names and bodies, one behind the other.
struct Texts<'a> {
    raw: &'a [u8],
    /// The name of the job before.
    name: Option<Blob>,
}

impl Texts<'_> {
    /// The name and the body of the next job.
    fn next(&mut self, name_bytes: u32, body_bytes: u32) -> Option<(Blob, Blob)> {
        if name_bytes != SAME_NAME {
            self.name = Some(self.cut(name_bytes)?);
        }
        let body = self.cut(body_bytes)?;
        Some((self.name.clone()?, body))
    }

    fn cut(&mut self, bytes: u32) -> Option<Blob> {
        let (front, rest) = self.raw.split_at_checked(bytes as usize)?;
        self.raw = rest;
        Some(Blob::copy_from(front))
    }
}

/// A job of these settings, with its creation stamp, the end of its life, and when it enters its queue.
fn image(
    run: &RunPayload,
    (id, ctime): (JobId, u64),
    [expires_at, enters_at]: [WallMs; 2],
    (queue, body): (Blob, Blob),
) -> Option<JobImage> {
    if run.flags & !(ENTERED_BEFORE | DELIVERED) != 0 {
        return None;
    }
    Some(JobImage {
        id,
        queue,
        body,
        ctime,
        expires_at,
        ttl_s: run.ttl_s,
        retry_s: run.retry_s,
        delay_s: run.delay_s,
        replicate: run.replicate,
        state: StateChange {
            id,
            place: KeptPlace::from_number(run.place)?,
            enters_at,
            nacks: 0,
            additional_deliveries: 0,
            deliveries: 0,
            delivered: run.flags & DELIVERED != 0,
            entered_before: run.flags & ENTERED_BEFORE != 0,
        },
        holders: Vec::new(),
    })
}
