//! `dump`: the records, a line for each job that a record names, as text or JSON.
//!
//! Each segment is read by itself, so that damage hides no more than the rest of its own segment; where it stands is said on standard
//! error, and the exit code is 1 then. What a dump shows behind damage a start may not take: that is what `check` is for.

use std::io::{self, Write};

use serde::{Serialize, Serializer};
use serde_json::Value;
use shard::log::{
    AckedImage, Entry, Holder, JobImage, KeptPlace, Meta, QueueImage, RecordAt, StateChange, TransferImage,
    TransferStage,
};

use super::AofError;
use super::options::Dump;
use super::reader::{Progress, damage_lines};
use super::target::Target;
use super::text::{shortened, show, utc, utc_of_stamp};

/// Prints all records; true when there is no damage.
pub fn run(options: &Dump, out: &mut dyn Write) -> Result<bool, AofError> {
    let found = Target::of(&options.common.path)?.list()?;
    let mut progress = Progress::new(options.common.quiet);
    let mut is_whole = true;
    for log in found.asked_logs() {
        for file in &log.files {
            let alone = log.alone(file);
            let path = show(&file.path);
            let outcome = alone.read(&mut progress, &mut |at, entries| {
                entries
                    .iter()
                    .try_for_each(|entry| print(&path, at, entry, options, out))
            })?;
            for line in damage_lines(&alone, &outcome) {
                is_whole = false;
                eprintln!("shardq-cli: {line}");
            }
        }
    }
    Ok(is_whole)
}

fn print(path: &str, at: RecordAt, entry: &Entry, options: &Dump, out: &mut dyn Write) -> io::Result<()> {
    let mut line = Line(vec![
        ("file", path.into()),
        ("offset", at.offset.into()),
        ("kind", kind(entry).into()),
    ]);
    line.entry(entry, options.body);
    if options.json {
        serde_json::to_writer(&mut *out, &line)?;
        return writeln!(out);
    }
    for (at, (name, value)) in line.0.iter().enumerate() {
        let space = if at == 0 { "" } else { " " };
        match value {
            Value::String(text) if at < 3 => write!(out, "{space}{text}")?,
            Value::Number(offset) if at < 3 => write!(out, "{space}{offset}")?,
            Value::String(text) if QUOTED.contains(name) => write!(out, "{space}{name}=\"{text}\"")?,
            Value::String(text) => write!(out, "{space}{name}={text}")?,
            other => write!(out, "{space}{name}={other}")?,
        }
    }
    writeln!(out)
}

/// What may hold spaces.
const QUOTED: [&str; 2] = ["queue", "body"];

/// The word for a kind of record.
pub fn kind(entry: &Entry) -> &'static str {
    match entry {
        Entry::Added(_) => "added",
        Entry::State(_) => "state",
        Entry::Acked(_) => "acked",
        Entry::Holders(_) => "holders",
        Entry::Gone(_) => "gone",
        Entry::Queue(_) => "queue",
        Entry::JobSnapshot(_) => "job-snapshot",
        Entry::QueueSnapshot(_) => "queue-snapshot",
        Entry::AckedSnapshot(_) => "acked-snapshot",
        Entry::Transfer(_) => "transfer",
        Entry::TransferSnapshot(_) => "transfer-snapshot",
        Entry::Flushed => "flushed",
        Entry::Meta(_) => "meta",
    }
}

/// The word for where a job is.
pub fn place_word(place: KeptPlace) -> &'static str {
    match place {
        KeptPlace::Idle => "idle",
        KeptPlace::Queued => "queued",
        KeptPlace::Leased => "leased",
        KeptPlace::Held => "held",
    }
}

/// The word for what happened in a transfer.
fn stage_word(stage: TransferStage) -> &'static str {
    match stage {
        TransferStage::SentQueued | TransferStage::SentIdle => "sent",
        TransferStage::Taken => "taken",
        TransferStage::Refused => "refused",
        TransferStage::Retired => "retired",
    }
}

/// A node with its store epoch.
fn node_text(holder: &Holder) -> String {
    let node: String = holder.node.iter().map(|byte| format!("{byte:02x}")).collect();
    format!("{node}:{}", holder.epoch)
}

/// What a line says, in the order in which it says it.
struct Line(Vec<(&'static str, Value)>);

impl Serialize for Line {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.0.iter().map(|(name, value)| (name, value)))
    }
}

impl Line {
    fn add(&mut self, name: &'static str, value: impl Into<Value>) {
        self.0.push((name, value.into()));
    }

    fn entry(&mut self, entry: &Entry, body_bytes: usize) {
        match entry {
            Entry::Added(image) | Entry::JobSnapshot(image) => self.job(image, body_bytes),
            Entry::State(change) => {
                self.add("id", change.id.to_string());
                self.state(change);
            }
            Entry::Acked(image) | Entry::AckedSnapshot(image) => self.acked(image),
            Entry::Holders(image) => {
                self.add("id", image.id.to_string());
                self.holders(&image.holders);
            }
            Entry::Gone(id) => self.add("id", id.to_string()),
            Entry::Transfer(image) | Entry::TransferSnapshot(image) => self.transfer(image, body_bytes),
            Entry::Queue(image) | Entry::QueueSnapshot(image) => self.queue(image),
            Entry::Flushed => {}
            Entry::Meta(meta) => self.meta(meta),
        }
    }

    fn job(&mut self, image: &JobImage, body_bytes: usize) {
        self.add("id", image.id.to_string());
        self.add("queue", image.queue.as_slice().escape_ascii().to_string());
        self.state(&image.state);
        self.add("created", utc_of_stamp(image.ctime));
        self.add("expires", utc(image.expires_at));
        self.add("ttl_s", image.ttl_s);
        self.add("retry_s", image.retry_s);
        self.add("delay_s", image.delay_s);
        self.add("replicate", image.replicate);
        self.holders(&image.holders);
        self.add("body_bytes", image.body.len());
        self.add("body", shortened(&image.body, body_bytes));
    }

    fn state(&mut self, change: &StateChange) {
        self.add("state", place_word(change.place));
        self.add("enters_queue", utc(change.enters_at));
        self.add("nacks", change.nacks);
        self.add("additional_deliveries", change.additional_deliveries);
        self.add("deliveries", change.deliveries);
        self.add("delivered", change.delivered);
    }

    fn acked(&mut self, image: &AckedImage) {
        self.add("id", image.id.to_string());
        self.holders(&image.holders);
    }

    fn holders(&mut self, holders: &[Holder]) {
        let text = |holder: &Holder| Value::from(node_text(holder));
        self.add("holders", holders.iter().map(text).collect::<Vec<Value>>());
    }

    fn transfer(&mut self, image: &TransferImage, body_bytes: usize) {
        self.add("transfer", stage_word(image.stage));
        self.add("node", node_text(&image.node));
        self.add("hop", image.hop);
        match &image.job {
            Some(job) => self.job(job, body_bytes),
            None => self.add("id", image.id.to_string()),
        }
    }

    fn queue(&mut self, image: &QueueImage) {
        self.add("queue", image.name.as_slice().escape_ascii().to_string());
        self.add("paused", image.pause.word());
        self.add("version", image.version);
    }

    fn meta(&mut self, meta: &Meta) {
        self.add("store_epoch", meta.store_epoch);
        self.add("newest_created", utc_of_stamp(meta.last_ctime));
        self.add("boot_id", format!("{:032x}", u128::from_be_bytes(meta.boot_id)));
        self.add("lowest_segment", meta.lowest_segment);
        self.add("base", meta.base);
        self.add("always", meta.always);
        self.add("stopped", meta.stopped);
    }
}
