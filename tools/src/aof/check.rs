//! `check`: what is wrong with a log, and what the server would do at its next start; with `--repair`, the cut.
//!
//! Nothing is judged here: the folders by `target`, the records by recovery and its decision table. What must hold for `--repair`: the
//! lock is held from before the log is read until the repaired one was read again; where anything stops a start, nothing is changed.

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::path::Path;

use shard::log::{
    BadHeader, Decision, Entry, EpochVerdict, FileName, Meta, Recovered, RecoveryError, SegmentHeader, Which,
};

use super::options::Check;
use super::reader::{Outcome, Progress, SegmentFile, ShardLog, header_bytes, what};
use super::target::{Found, Remark, Target, Weight};
use super::text::{show, utc_of_stamp};
use super::{AofError, lock, repair, seal};

/// What was seen of a segment.
#[derive(Clone, Copy, Debug, Default)]
struct Seen {
    records: u64,
    /// Offset behind the last record.
    end: u64,
}

/// What came of a log.
struct Checked {
    remarks: Vec<Remark>,
    seen: BTreeMap<u64, Seen>,
    /// What recovery gives, unless it stops.
    recovered: Option<Recovered>,
}

/// Checks, repairs if that was asked for, and says so; true when the server would start and cut nothing.
pub fn run(options: &Check, out: &mut dyn Write) -> Result<bool, AofError> {
    let target = Target::of(&options.common.path)?;
    let mut progress = Progress::new(options.common.quiet);
    let mut found = target.list()?;
    if !options.repair {
        note_server(&mut found);
        return Ok(report(&found, &mut progress, out)?.0 < Weight::Lost);
    }
    if let Target::Loose(path) = &target {
        return Err(AofError::Unnamed { path: show(path) });
    }
    let _held = found.root.as_deref().map(lock::take).transpose()?;
    // What was listed before the lock may have changed.
    found = target.list()?;
    let (worst, cuts) = report(&found, &mut progress, out)?;
    if worst == Weight::Stop {
        writeln!(
            out,
            "repair: nothing was changed, since no start would get past what stops it"
        )?;
        return Ok(false);
    }
    if cuts.is_empty() {
        writeln!(out, "repair: there is nothing to cut")?;
        return Ok(worst < Weight::Lost);
    }
    let aside = found.root.clone().unwrap_or_else(|| found.folder.clone());
    for (at, recovered) in cuts {
        let log = &found.logs[at];
        repair::perform(log, &found.folder, &aside, &recovered.repairs, &mut |done| {
            writeln!(out, "repair: {done}")
        })?;
        let begun = seal::write(log, &found.folder, recovered)?;
        let begun = show(&begun);
        writeln!(
            out,
            "repair: began {begun}, which makes the next start take a new store epoch"
        )?;
    }
    writeln!(out, "repair: done and synced; what is there now:")?;
    Ok(report(&target.list()?, &mut progress, out)?.0 < Weight::Lost)
}

/// A log that is written while it is read can look damaged.
fn note_server(found: &mut Found) {
    let Some(root) = &found.root else { return };
    let text = match lock::is_held(root) {
        Ok(false) => return,
        Ok(true) => "a server uses this folder now: what it writes meanwhile can look like damage".to_owned(),
        Err(error) => format!("whether a server uses this folder cannot be seen: {error}"),
    };
    found.remarks.push(Remark::new(Weight::Note, root, text));
}

/// Prints all that is found; the worst of it, and the logs that would be cut.
fn report(
    found: &Found,
    progress: &mut Progress,
    out: &mut dyn Write,
) -> Result<(Weight, Vec<(usize, Recovered)>), AofError> {
    let mut remarks = found.remarks.clone();
    let mut cuts = Vec::new();
    let mut keeps_epoch = true;
    print_remarks(&remarks, out)?;
    for (at, log) in found.logs.iter().enumerate() {
        let checked = check(log, &found.folder, progress)?;
        print_log(log, &checked, found.only, out)?;
        print_remarks(&checked.remarks, out)?;
        remarks.extend(checked.remarks);
        if let Some(recovered) = checked.recovered {
            keeps_epoch &= matches!(recovered.verdict, EpochVerdict::Keep(_));
            cuts.extend(recovered.cut.is_some().then_some((at, recovered)));
        }
    }
    let worst = remarks.iter().map(|remark| remark.weight).max();
    let worst = worst.unwrap_or(Weight::Note);
    print_verdict(found, worst, keeps_epoch, out)?;
    Ok((worst, cuts))
}

fn check(log: &ShardLog, folder: &Path, progress: &mut Progress) -> Result<Checked, AofError> {
    let mut seen: BTreeMap<u64, Seen> = BTreeMap::new();
    let outcome = log.read(progress, &mut |at, _: Vec<Entry>| {
        let segment = seen.entry(at.segment).or_default();
        segment.records += 1;
        segment.end = at.offset + at.bytes;
        Ok(())
    })?;
    Ok(Checked {
        remarks: remarks_of(log, folder, &outcome),
        seen,
        recovered: outcome.result.ok(),
    })
}

fn remarks_of(log: &ShardLog, folder: &Path, outcome: &Outcome) -> Vec<Remark> {
    let mut remarks = Vec::new();
    let mut say = |weight, segment, offset: u64, text: String| {
        remarks.push(Remark {
            weight,
            place: format!("{}, offset {offset}", show(log.path(segment))),
            text,
        });
    };
    for finding in &outcome.findings {
        let (weight, follows) = match finding.decision {
            Decision::Stop if finding.covered && finding.which != Which::Spare => {
                (Weight::Stop, "what was confirmed is affected")
            }
            Decision::Stop => (Weight::Stop, "no crash of a machine does this"),
            Decision::Cut => (
                Weight::Cut,
                "a torn tail: cut from here on, and kept beside (with aof-load-truncated no, a start stops)",
            ),
            Decision::Remove => (
                Weight::Note,
                "a spare that never held a record: removed at the next start",
            ),
        };
        let text = format!("{}: {follows}", what(finding));
        say(weight, finding.segment, finding.offset, text);
    }
    if let Some(remark) = outcome
        .result
        .as_ref()
        .err()
        .and_then(|error| remark_of(log, folder, error))
    {
        remarks.push(remark);
    }
    remarks
}

/// What is not among the findings.
fn remark_of(log: &ShardLog, folder: &Path, error: &RecoveryError) -> Option<Remark> {
    let named = |file: &str| {
        let is_it = |known: &&SegmentFile| FileName::of(log.shard, known.number) == file;
        let known = log.files.iter().find(is_it).map(|known| show(&known.path));
        known.unwrap_or_else(|| show(&folder.join(file)))
    };
    let (place, text) = match error {
        RecoveryError::Damaged { .. } | RecoveryError::Torn { .. } => return None,
        RecoveryError::Future { file, offset, what } => {
            let text = format!("{what}: a later version of the server wrote it");
            (format!("{}, offset {offset}", named(file)), text)
        }
        RecoveryError::Missing { file } => (
            named(file),
            "is missing: the log says that it is still needed".into(),
        ),
        RecoveryError::Unreadable { file, offset, error } => (
            format!("{}, offset {offset}", named(file)),
            format!("cannot be read: {error}"),
        ),
    };
    Some(Remark {
        weight: Weight::Stop,
        place,
        text,
    })
}

fn print_remarks(remarks: &[Remark], out: &mut dyn Write) -> io::Result<()> {
    for remark in remarks {
        writeln!(out, "{}: {}: {}", remark.weight.word(), remark.place, remark.text)?;
    }
    Ok(())
}

fn print_log(log: &ShardLog, checked: &Checked, only: Option<u64>, out: &mut dyn Write) -> io::Result<()> {
    let records: u64 = checked.seen.values().map(|seen| seen.records).sum();
    let (shard, segments, bytes) = (log.shard, log.files.len(), log.file_bytes());
    writeln!(
        out,
        "shard {shard}: {segments} segments of {bytes} bytes, {records} records read"
    )?;
    if let Some(recovered) = &checked.recovered {
        print_meta(&recovered.meta, recovered, out)?;
    }
    for file in log
        .files
        .iter()
        .filter(|file| only.is_none_or(|only| only == file.number))
    {
        let seen = checked.seen.get(&file.number).copied().unwrap_or_default();
        print_segment(file, seen, out)?;
    }
    Ok(())
}

fn print_meta(meta: &Meta, recovered: &Recovered, out: &mut dyn Write) -> io::Result<()> {
    let (word, why) = match recovered.verdict {
        EpochVerdict::Keep(why) => ("may stay", why),
        EpochVerdict::Renew(why) => ("must be a new one", why),
    };
    let newest = utc_of_stamp(recovered.last_ctime);
    let epoch = meta.store_epoch;
    writeln!(
        out,
        "  store epoch {epoch} {word}: {why}; newest creation stamp {newest}"
    )
}

fn print_segment(file: &SegmentFile, seen: Seen, out: &mut dyn Write) -> io::Result<()> {
    let header = match header_bytes(&file.path).map(|bytes| SegmentHeader::decode(&bytes)) {
        Ok(Ok(header)) => format!(
            "shard {}, number {}, generation {}, {} bytes allocated",
            header.shard, header.number, header.generation, header.file_bytes
        ),
        Ok(Err(BadHeader::Damaged)) => "damaged header".into(),
        Ok(Err(BadHeader::Foreign)) => "no header of a segment".into(),
        Ok(Err(BadHeader::Version(version))) => format!("header of version {version}"),
        Err(error) => format!("header cannot be read: {error}"),
    };
    let records = match seen {
        Seen { records: 0, .. } => "no records".to_owned(),
        Seen { records, end } => format!("{records} records up to offset {end}"),
    };
    let (path, bytes) = (show(&file.path), file.bytes);
    writeln!(out, "  {path}: {bytes} bytes, {records} ({header})")
}

fn print_verdict(found: &Found, worst: Weight, keeps_epoch: bool, out: &mut dyn Write) -> io::Result<()> {
    let when = if found.is_off {
        "a start with this log"
    } else {
        "the next start"
    };
    let epoch = if keeps_epoch {
        "the store epoch may stay"
    } else {
        "a new store epoch"
    };
    match worst {
        Weight::Note => writeln!(out, "{when}: starts and keeps everything; {epoch}"),
        Weight::Lost => writeln!(out, "{when}: starts without what is lost, above"),
        Weight::Cut => writeln!(out, "{when}: starts and cuts what is named above, {epoch}"),
        Weight::Stop => writeln!(out, "{when}: stops because of what is named above"),
    }
}
