//! `stats`: what the records add up to, over all shards of what was asked for.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, Write};
use std::time::{SystemTime, UNIX_EPOCH};

use serde::Serialize;
use shard::log::{
    Entry, JobImage, KeptPlace, RecordAt, Replay, SHARE_IMAGE_BYTES, TransferImage, WallMs, image_bytes,
};
use shard::wire::Blob;

use super::AofError;
use super::dump::{kind, place_word};
use super::options;
use super::reader::{Progress, ShardLog, damage_lines};
use super::target::Target;
use super::text::utc_of_stamp;

/// The figures.
#[derive(Debug, Default, Serialize)]
struct Figures {
    shards: usize,
    segments: usize,
    /// Bytes of the files, allocated and not yet used ones too.
    file_bytes: u64,
    /// Bytes of all records.
    log_bytes: u64,
    /// Bytes that records of what lives would take.
    live_bytes: u64,
    records: BTreeMap<&'static str, Records>,
    jobs: Jobs,
    queues_with_jobs: usize,
    /// Those with most jobs first.
    queues: Vec<Queue>,
    paused: Vec<Paused>,
    /// Of the living jobs.
    oldest_created: Option<String>,
    newest_created: Option<String>,
    store_epochs: BTreeSet<u64>,
    /// The last record of each shard is the mark of an orderly stop.
    stopped_in_order: bool,
    damaged: bool,
}

/// Records of one kind.
#[derive(Debug, Default, Serialize)]
struct Records {
    records: u64,
    /// Jobs, queues and so on that they name.
    entries: u64,
    bytes: u64,
}

#[derive(Debug, Default, Serialize)]
struct Jobs {
    all: u64,
    by_state: BTreeMap<&'static str, u64>,
    /// Of all, those whose life is over by now: a start drops them.
    expired_by_now: u64,
    /// Acknowledged, and other nodes must still be told.
    acknowledged: u64,
}

#[derive(Debug, Serialize)]
struct Queue {
    name: String,
    jobs: u64,
}

#[derive(Debug, Serialize)]
struct Paused {
    name: String,
    state: &'static str,
}

/// Reads all and prints the figures; true when there is no damage.
pub fn run(options: &options::Stats, out: &mut dyn Write) -> Result<bool, AofError> {
    let found = Target::of(&options.common.path)?.list()?;
    let mut progress = Progress::new(options.common.quiet);
    let mut sum = Sum::default();
    sum.figures.stopped_in_order = true;
    for log in found.asked_logs() {
        sum.shard(&log, &mut progress)?;
    }
    let figures = sum.finish(options.queues);
    if options.json {
        serde_json::to_writer(&mut *out, &figures).map_err(io::Error::from)?;
        writeln!(out)?;
    } else {
        figures.print(out)?;
    }
    Ok(!figures.damaged)
}

#[derive(Default)]
struct Sum {
    figures: Figures,
    queues: BTreeMap<Vec<u8>, u64>,
    created: Option<(u64, u64)>,
}

impl Sum {
    fn shard(&mut self, log: &ShardLog, progress: &mut Progress) -> Result<(), AofError> {
        let mut replay = Replay::default();
        let mut stopped = false;
        let records = &mut self.figures.records;
        let outcome = log.read(progress, &mut |at, entries| {
            count(records, at, &entries);
            stopped = matches!(entries.as_slice(), [Entry::Meta(meta)] if meta.stopped);
            entries
                .into_iter()
                .for_each(|entry| replay.apply(without_body(entry)));
            Ok(())
        })?;
        for line in damage_lines(log, &outcome) {
            self.figures.damaged = true;
            eprintln!("shardq-cli: {line}");
        }
        self.figures.shards += 1;
        self.figures.segments += log.files.len();
        self.figures.file_bytes += log.file_bytes();
        self.figures.stopped_in_order &= stopped;
        self.figures
            .store_epochs
            .extend(replay.meta.map(|meta| meta.store_epoch));
        self.add(&replay);
        Ok(())
    }

    fn add(&mut self, replay: &Replay) {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let now = WallMs(now.as_millis() as u64);
        let figures = &mut self.figures;
        for job in replay.jobs.values() {
            figures.jobs.all += 1;
            *figures
                .jobs
                .by_state
                .entry(place_word(job.state.place))
                .or_default() += 1;
            figures.jobs.expired_by_now += u64::from(job.expires_at <= now);
            let shared = if job.holders.is_empty() {
                0
            } else {
                SHARE_IMAGE_BYTES
            };
            figures.live_bytes += image_bytes(job.queue.len(), body_bytes(job)) + shared;
            *self.queues.entry(job.queue.to_vec()).or_default() += 1;
            let (oldest, newest) = self.created.unwrap_or((job.ctime, job.ctime));
            self.created = Some((oldest.min(job.ctime), newest.max(job.ctime)));
        }
        figures.jobs.acknowledged += replay.acked.len() as u64;
        for queue in replay.queues.values() {
            if queue.pause.input || queue.pause.output {
                figures.paused.push(Paused {
                    name: queue.name.as_slice().escape_ascii().to_string(),
                    state: queue.pause.word(),
                });
            }
        }
    }

    fn finish(self, most_queues: usize) -> Figures {
        let mut figures = self.figures;
        let mut queues: Vec<(Vec<u8>, u64)> = self.queues.into_iter().collect();
        figures.queues_with_jobs = queues.len();
        queues.sort_by(|a, b| b.1.cmp(&a.1).then_with(|| a.0.cmp(&b.0)));
        let named = queues.into_iter().take(most_queues).map(|(name, jobs)| Queue {
            name: name.escape_ascii().to_string(),
            jobs,
        });
        figures.queues = named.collect();
        figures.paused.sort_by(|a, b| a.name.cmp(&b.name));
        figures.oldest_created = self.created.map(|(oldest, _)| utc_of_stamp(oldest));
        figures.newest_created = self.created.map(|(_, newest)| utc_of_stamp(newest));
        figures.log_bytes = figures.records.values().map(|records| records.bytes).sum();
        figures.stopped_in_order &= figures.shards > 0;
        for place in [
            KeptPlace::Idle,
            KeptPlace::Queued,
            KeptPlace::Leased,
            KeptPlace::Held,
        ] {
            figures.jobs.by_state.entry(place_word(place)).or_default();
        }
        figures
    }
}

fn count(records: &mut BTreeMap<&'static str, Records>, at: RecordAt, entries: &[Entry]) {
    // A record that names nothing has no kind to be counted under; no server writes one.
    let kind = entries.first().map_or("empty", kind);
    let counted = records.entry(kind).or_default();
    counted.records += 1;
    counted.entries += entries.len() as u64;
    counted.bytes += at.bytes;
}

/// The entry with the length of its job's body in place of the body: so many bodies need not fit into memory.
fn without_body(entry: Entry) -> Entry {
    let shorten = |image: JobImage| JobImage {
        body: Blob::copy_from(&(image.body.len() as u64).to_le_bytes()),
        ..image
    };
    let of_transfer = |image: TransferImage| TransferImage {
        job: image.job.map(|job| Box::new(shorten(*job))),
        ..image
    };
    match entry {
        Entry::Added(image) => Entry::Added(shorten(image)),
        Entry::JobSnapshot(image) => Entry::JobSnapshot(shorten(image)),
        Entry::Transfer(image) => Entry::Transfer(of_transfer(image)),
        Entry::TransferSnapshot(image) => Entry::TransferSnapshot(of_transfer(image)),
        other => other,
    }
}

fn body_bytes(job: &JobImage) -> usize {
    let length = job.body.as_slice().try_into();
    u64::from_le_bytes(length.expect("written by without_body")) as usize
}

impl Figures {
    fn print(&self, out: &mut dyn Write) -> io::Result<()> {
        let (shards, segments, file_bytes) = (self.shards, self.segments, self.file_bytes);
        writeln!(
            out,
            "{shards} shards, {segments} segments, {file_bytes} bytes of files"
        )?;
        writeln!(
            out,
            "records          {:>12} bytes, {} of them live",
            self.log_bytes, self.live_bytes
        )?;
        for (kind, counted) in &self.records {
            let Records {
                records,
                entries,
                bytes,
            } = counted;
            writeln!(
                out,
                "  {kind:<14} {bytes:>12} bytes {records:>10} records {entries:>10} entries"
            )?;
        }
        let jobs = &self.jobs;
        writeln!(
            out,
            "living jobs      {:>12}, {} of them expired by now",
            jobs.all, jobs.expired_by_now
        )?;
        for (state, count) in &jobs.by_state {
            writeln!(out, "  {state:<14} {count:>12}")?;
        }
        writeln!(out, "acknowledged, to be told to others: {}", jobs.acknowledged)?;
        writeln!(out, "queues with jobs {:>12}", self.queues_with_jobs)?;
        for queue in &self.queues {
            writeln!(out, "  {:>12} jobs  \"{}\"", queue.jobs, queue.name)?;
        }
        for paused in &self.paused {
            writeln!(out, "paused {:<4} \"{}\"", paused.state, paused.name)?;
        }
        if let (Some(oldest), Some(newest)) = (&self.oldest_created, &self.newest_created) {
            writeln!(out, "created from {oldest} to {newest}")?;
        }
        let epochs: Vec<String> = self.store_epochs.iter().map(u64::to_string).collect();
        writeln!(out, "store epoch {}", epochs.join(", "))?;
        let stopped = if self.stopped_in_order { "yes" } else { "no" };
        writeln!(out, "stopped in order: {stopped}")
    }
}
