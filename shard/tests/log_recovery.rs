//! Each row of the decision table of recovery, with a log that was really written and then tampered with.

#![expect(clippy::disallowed_types, reason = "proptest's macro names Arc")]

#[path = "support/mod.rs"]
mod support;

#[path = "log_simulation/disk.rs"]
#[allow(dead_code, reason = "the simulation needs more of it")]
mod disk;
#[path = "log_simulation/state.rs"]
#[allow(dead_code, reason = "the simulation needs more of it")]
mod state;

use disk::{Disk, Plant};
use proptest::collection::vec;
use proptest::prelude::*;
use shard::clock::Now;
use shard::log::{
    AppendFsync, BadRecord, Decision, Entry, EpochVerdict, FIRST_RECORD, FoundFile, Live, Log, Meta,
    Recovered, Recovery, RecoveryError, RecoveryOptions, RepairStep, SegmentHeader, Thresholds, Want, Which,
    WriterOptions, Wrong,
};
use state::State;
use support::Chance;

const OPTIONS: RecoveryOptions = RecoveryOptions {
    shard: 0,
    generation: 1,
    boot_id: [1; 16],
    may_cut: true,
};

fn now() -> Now {
    Now {
        mono_us: 1_000_000,
        wall_us: 1_700_000_000_000_000,
    }
}

fn start_log(recovered: Recovered, fsync: AppendFsync) -> Log {
    start_log_of(8 << 10, recovered, fsync)
}

fn start_log_of(segment_bytes: u64, recovered: Recovered, fsync: AppendFsync) -> Log {
    let options = WriterOptions {
        shard: 0,
        generation: 1,
        segment_bytes,
        reserve: 1,
        fsync,
        seed: [3; 32],
    };
    let never = Thresholds {
        percentage: 0,
        min_bytes: 0,
    };
    Log::new(options, never, recovered.start(1, [1; 16], now()))
}

fn drive(log: &mut Log, disk: &mut Disk) {
    for _ in 0..20 {
        let mut ios = Vec::new();
        log.take_io(now(), &mut ios);
        for io in ios {
            let result = disk.perform(&mut Chance::new(1), &io.action);
            log.completed(now(), io.id, result);
        }
    }
}

#[test]
fn a_log_of_nothing_but_life_is_compacted_once_and_left_alone() {
    let mut disk = Disk::new(Plant::None);
    let mut log = start_log_of(2 << 10, Recovered::fresh(0), AppendFsync::EverySecond);
    let (mut chance, mut state) = (Chance::new(5), State::default());
    while state.jobs.len() < 300 {
        let entry = state.random_entry(&mut chance);
        if matches!(entry, Entry::Added(_)) {
            log.append(&entry).expect("there is room");
            state.apply(&entry);
            drive(&mut log, &mut disk);
        }
    }
    // The marks at the heads of small segments are more than one percent of them.
    log.set_thresholds(Thresholds {
        percentage: 1,
        min_bytes: 0,
    });
    let segments = disk.segments().len() as u64;
    for _ in 0..20 * segments {
        log.compact(now(), &mut state);
        drive(&mut log, &mut disk);
    }
    assert!(
        log.log_bytes() > Live::live_bytes(&state) * 101 / 100,
        "it cannot become so small"
    );
    assert!(
        (1..=2 * segments).contains(&log.segments_removed()),
        "{} of {segments} segments",
        log.segments_removed()
    );
}

/// A disk with the log of some hundred jobs over several segments.
fn written(fsync: AppendFsync) -> (Disk, u64) {
    let mut disk = Disk::new(Plant::None);
    let recovered = Recovery::new(OPTIONS, Vec::new())
        .finish()
        .expect("nothing can be wrong");
    let mut log = start_log(recovered, fsync);
    let (mut chance, state) = (Chance::new(5), State::default());
    for _ in 0..150 {
        log.append(&state.random_entry(&mut chance))
            .expect("there is room");
        drive(&mut log, &mut disk);
    }
    (disk, 150)
}

fn recover(disk: &Disk, options: RecoveryOptions) -> Result<(Recovered, u64), RecoveryError> {
    let files = disk
        .segments()
        .into_iter()
        .map(|(number, bytes)| FoundFile { number, bytes })
        .collect();
    let mut recovery = Recovery::new(options, files);
    let mut jobs = 0;
    while let Want::Read {
        segment,
        offset,
        bytes,
    } = recovery.want()
    {
        let read = disk.read(segment, offset, bytes);
        recovery.supply(Ok(read), &mut |entry| {
            jobs += u64::from(matches!(entry, Entry::Added(_)))
        })?;
    }
    Ok((recovery.finish()?, jobs))
}

/// Segments that hold records, oldest first, each with the offset behind its last byte.
fn used(disk: &Disk) -> Vec<(u64, usize)> {
    let end = |&(number, bytes): &(u64, u64)| {
        let last = disk.read(number, 0, bytes).iter().rposition(|&byte| byte != 0);
        (number, last.map_or(0, |last| last + 1))
    };
    disk.segments()
        .iter()
        .map(end)
        .filter(|(_, end)| *end > FIRST_RECORD as usize)
        .collect()
}

fn name(segment: u64) -> String {
    shard::log::FileName::of(0, segment)
}

#[test]
fn an_unharmed_log_comes_back_whole() {
    let (disk, jobs) = written(AppendFsync::EverySecond);
    assert!(used(&disk).len() >= 4, "several segments");
    let (recovered, found) = recover(&disk, OPTIONS).unwrap();
    assert_eq!((found, recovered.cut), (jobs, None));
    assert!(matches!(recovered.verdict, EpochVerdict::Keep(_)));
    let rebooted = RecoveryOptions {
        boot_id: [2; 16],
        ..OPTIONS
    };
    assert!(matches!(
        recover(&disk, rebooted).unwrap().0.verdict,
        EpochVerdict::Renew(_)
    ));
    let (disk, _) = written(AppendFsync::Always);
    assert!(matches!(
        recover(&disk, rebooted).unwrap().0.verdict,
        EpochVerdict::Keep(_)
    ));
}

#[test]
fn a_torn_tail_is_cut_and_kept() {
    let (mut disk, jobs) = written(AppendFsync::EverySecond);
    let (last, end) = *used(&disk).last().unwrap();
    disk.bytes_mut(last)[end - 1] ^= 1;
    let refused = recover(
        &disk,
        RecoveryOptions {
            may_cut: false,
            ..OPTIONS
        },
    );
    assert!(matches!(refused, Err(RecoveryError::Torn { file, .. }) if file == name(last)));
    let (recovered, found) = recover(&disk, OPTIONS).unwrap();
    assert_eq!(found, jobs - 1);
    let cut = recovered.cut.clone().expect("named");
    assert_eq!(cut.file, name(last));
    assert!(matches!(recovered.verdict, EpochVerdict::Renew(_)));
    assert!(matches!(&recovered.repairs[0], RepairStep::KeepAside { segment, .. } if *segment == last));
    recovered.repairs.iter().for_each(|step| disk.repair(step));
    let (recovered, found) = recover(&disk, OPTIONS).unwrap();
    assert_eq!((found, recovered.cut.clone()), (jobs - 1, None));
    // And it goes on from there.
    let mut log = start_log(recovered, AppendFsync::Always);
    drive(&mut log, &mut disk);
    log.append(&State::default().random_entry(&mut Chance::new(9)))
        .unwrap();
    drive(&mut log, &mut disk);
    assert_eq!(log.safe(), log.appended());
    assert_eq!(recover(&disk, OPTIONS).unwrap().1, jobs);
}

#[test]
fn damage_that_a_mark_covers_stops_the_start() {
    let (mut disk, _) = written(AppendFsync::Always);
    let used = used(&disk);
    for (segment, _) in [used[0], used[used.len() - 2], used[used.len() - 1]] {
        let at = FIRST_RECORD as usize + 30;
        disk.bytes_mut(segment)[at] ^= 0x10;
        let stopped = recover(&disk, OPTIONS);
        let Err(RecoveryError::Damaged { file, offset, .. }) = &stopped else {
            panic!("{stopped:?}");
        };
        assert_eq!((file, *offset), (&name(segment), FIRST_RECORD));
        assert!(stopped.unwrap_err().to_string().contains("shardq-cli aof check"));
        disk.bytes_mut(segment)[at] ^= 0x10;
    }
    assert!(recover(&disk, OPTIONS).is_ok());
}

#[test]
fn a_missing_segment_stops_the_start() {
    let (disk, _) = written(AppendFsync::Always);
    let used = used(&disk);
    for (at, &(segment, _)) in used.iter().enumerate().take(used.len() - 1) {
        let mut disk = written(AppendFsync::Always).0;
        disk.remove(segment);
        let stopped = recover(&disk, OPTIONS);
        let missing = matches!(stopped, Err(RecoveryError::Missing { .. }));
        assert!(
            if at == 0 {
                missing
            } else {
                matches!(stopped, Err(RecoveryError::Damaged { .. }))
            },
            "{at}: {stopped:?}"
        );
    }
}

#[test]
fn what_is_not_ours_stops_the_start() {
    let (mut disk, _) = written(AppendFsync::Always);
    let (segment, _) = used(&disk)[1];
    let header = SegmentHeader::decode(disk.read(segment, 0, 64)).unwrap();
    let stop = |disk: &Disk| recover(disk, OPTIONS).unwrap_err().to_string();
    disk.bytes_mut(segment)[..8].copy_from_slice(b"a letter");
    assert!(stop(&disk).contains("not a segment of a log"));
    let mut later = header.encode();
    later[8] = 2;
    let sum = crc32c(&later[..60]);
    later[60..].copy_from_slice(&sum.to_le_bytes());
    disk.bytes_mut(segment)[..64].copy_from_slice(&later);
    assert!(stop(&disk).contains("a segment of a version that this server does not know"));
    for stranger in [
        SegmentHeader { shard: 1, ..header },
        SegmentHeader {
            generation: 2,
            ..header
        },
        SegmentHeader { number: 99, ..header },
    ] {
        disk.bytes_mut(segment)[..64].copy_from_slice(&stranger.encode());
        assert!(stop(&disk).contains("a segment that belongs elsewhere"));
    }
    disk.bytes_mut(segment)[..64].copy_from_slice(&header.encode());
    disk.bytes_mut(segment)[40] ^= 1;
    assert!(stop(&disk).contains("a damaged header"));
}

#[test]
fn a_record_of_a_later_version_stops_the_start_by_name() {
    let (mut disk, _) = written(AppendFsync::Always);
    let (segment, _) = *used(&disk).last().unwrap();
    let random = SegmentHeader::decode(disk.read(segment, 0, 64)).unwrap().random;
    let start = FIRST_RECORD as usize;
    let bytes = disk.bytes_mut(segment);
    bytes[start + 22] = 2;
    sign(&mut bytes[start..], random);
    let stopped = recover(&disk, OPTIONS);
    assert!(
        matches!(stopped, Err(RecoveryError::Future { file, offset: FIRST_RECORD, .. }) if file == name(segment))
    );
}

#[test]
fn a_place_behind_which_there_is_none_is_damage() {
    let (mut disk, _) = written(AppendFsync::Always);
    let (segment, _) = used(&disk)[0];
    let random = SegmentHeader::decode(disk.read(segment, 0, 64)).unwrap().random;
    let record = &mut disk.bytes_mut(segment)[FIRST_RECORD as usize..];
    let place = u64::MAX - 7;
    record[16..20].copy_from_slice(&((place / 8) as u32).to_le_bytes());
    // The base, behind header, epoch, creation stamp, boot ID and lowest segment.
    record[24 + 40..24 + 48].copy_from_slice(&place.to_le_bytes());
    sign(record, random);
    let stopped = recover(&disk, OPTIONS);
    assert!(
        matches!(&stopped, Err(RecoveryError::Damaged { file, offset: FIRST_RECORD, .. }) if *file == name(segment)),
        "{stopped:?}"
    );
}

#[test]
fn findings_and_places_of_records_are_told() {
    let (mut disk, jobs) = written(AppendFsync::EverySecond);
    let used = used(&disk);
    let (last, end) = *used.last().unwrap();
    disk.bytes_mut(last)[end - 1] ^= 1;
    let files = disk.segments();
    let files = files.iter().map(|&(number, bytes)| FoundFile { number, bytes });
    let mut recovery = Recovery::new(OPTIONS, files.collect());
    let (mut expected, mut added) = ((1, FIRST_RECORD, 0), 0);
    while let Want::Read {
        segment,
        offset,
        bytes,
    } = recovery.want()
    {
        let read = disk.read(segment, offset, bytes);
        let told = recovery.supply_records(Ok(read), &mut |at, entries| {
            if at.segment > expected.0 {
                expected = (at.segment, FIRST_RECORD, expected.2);
            }
            assert_eq!((at.segment, at.offset, at.place), expected);
            assert!(at.durable <= at.place);
            expected = (at.segment, at.offset + at.bytes, at.place + at.bytes);
            added += entries
                .iter()
                .filter(|entry| matches!(entry, Entry::Added(_)))
                .count();
        });
        told.unwrap();
    }
    assert_eq!(added as u64, jobs - 1);
    let findings = recovery.findings();
    let [found] = findings.as_slice() else {
        panic!("{findings:?}");
    };
    assert_eq!((found.segment, found.offset), (last, expected.1));
    assert_eq!((found.what, found.which), (Wrong::Torn, Which::Last));
    assert_eq!((found.decision, found.covered), (Decision::Cut, false));
    assert_eq!(found.record, Some(BadRecord::Checksum));
}

#[test]
fn spares_go_and_zeros_are_an_end() {
    let (mut disk, jobs) = written(AppendFsync::Always);
    let spare = disk.segments().last().unwrap().0;
    assert!(used(&disk).iter().all(|(segment, _)| *segment != spare));
    for header in [vec![], vec![0; 64], disk.read(spare, 0, 40).to_vec()] {
        *disk.bytes_mut(spare) = header;
        let (recovered, found) = recover(&disk, OPTIONS).unwrap();
        assert_eq!((found, recovered.cut), (jobs, None));
        assert!(recovered.repairs.contains(&RepairStep::Unlink { segment: spare }));
    }
}

#[test]
fn what_cannot_be_read_is_named() {
    let mut recovery = Recovery::new(
        OPTIONS,
        vec![FoundFile {
            number: 7,
            bytes: 100,
        }],
    );
    let stopped = recovery
        .supply(Err("Permission denied".into()), &mut |_| {})
        .unwrap_err();
    assert_eq!(
        stopped.to_string(),
        format!("{}, offset 0: Permission denied", name(7))
    );
}

#[test]
fn a_log_of_nothing_begins_anew() {
    let recovered = Recovery::new(OPTIONS, Vec::new()).finish().unwrap();
    assert_eq!((recovered.meta, recovered.records), (Meta::default(), 0));
    assert!(matches!(recovered.verdict, EpochVerdict::Renew(_)));
}

/// Gives a record the checksum that belongs to its bytes.
fn sign(record: &mut [u8], random: u64) {
    let length = u32::from_le_bytes(record[..4].try_into().unwrap()) as usize;
    let signed = [&random.to_le_bytes()[..], &record[..4], &record[8..length]].concat();
    record[4..8].copy_from_slice(&crc32c(&signed).to_le_bytes());
}

/// CRC-32C, written a second time.
fn crc32c(bytes: &[u8]) -> u32 {
    let step = |crc: u32, _| crc >> 1 ^ if crc & 1 == 1 { 0x82f6_3b78 } else { 0 };
    !bytes
        .iter()
        .fold(!0, |crc, &byte| (0..8).fold(crc ^ u32::from(byte), step))
}

proptest! {
    #[test]
    fn arbitrary_files_are_no_panic(
        files in vec(vec(prop_oneof![3 => Just(0u8), 2 => any::<u8>()], 0..400), 0..4), good_headers: bool,
    ) {
        let found = files.iter().enumerate().map(|(at, file)| FoundFile { number: at as u64, bytes: file.len() as u64 });
        let mut recovery = Recovery::new(OPTIONS, found.collect());
        let mut stopped = false;
        while let (Want::Read { segment, offset, bytes }, false) = (recovery.want(), stopped) {
            let mut file = files[segment as usize].clone();
            if good_headers && file.len() >= 64 {
                let header = SegmentHeader { shard: 0, number: segment, generation: 1, random: 1, file_bytes: 400 };
                file[..64].copy_from_slice(&header.encode());
            }
            let read = &file[offset as usize..(offset + bytes) as usize];
            stopped = recovery.supply(Ok(read), &mut |_| panic!("an entry out of nothing")).is_err();
        }
        if !stopped {
            let _typed = recovery.finish();
        }
    }

    #[test]
    fn a_tampered_log_stops_or_names_what_it_cuts(at in 0usize..30_000, value in 1u8..) {
        let (mut disk, jobs) = written(AppendFsync::Always);
        let used = used(&disk);
        let (segment, end) = used[at % used.len()];
        disk.bytes_mut(segment)[at % end] ^= value;
        if let Ok((recovered, found)) = recover(&disk, OPTIONS) {
            prop_assert!(recovered.cut.is_some() || found == jobs);
        }
    }
}

/// Compacts until there is nothing to do; how many segments went.
fn compact(log: &mut Log, disk: &mut Disk, state: &mut State) -> u64 {
    let before = log.segments_removed();
    for _ in 0..1_000 {
        log.compact(now(), state);
        drive(log, disk);
        if !log.is_compacting() && log.next_deadline() != Some(shard::clock::Mono(0)) {
            return log.segments_removed() - before;
        }
    }
    panic!("the circle does not end");
}

/// A job lives again after a start when the record of its end failed, and the round that counted on that end has said so already.
#[test]
fn a_segment_that_was_to_be_unlinked_is_kept_until_it_is_compacted_again() {
    let mut disk = Disk::new(Plant::None);
    let mut log = start_log(Recovered::fresh(0), AppendFsync::EverySecond);
    let (mut chance, mut state) = (Chance::new(5), State::default());
    for _ in 0..60 {
        let entry = State::default().random_entry(&mut chance);
        state.apply(&entry);
        log.append(&entry).expect("there is room");
        drive(&mut log, &mut disk);
    }
    let oldest = disk.segments()[0].0;
    // Its end is in memory only.
    state.apply(&Entry::Gone(*state.jobs.keys().next().expect("there are some")));
    log.force_compaction();
    disk.faults.unlink = 100;
    for _ in 0..20 {
        log.compact(now(), &mut state);
        drive(&mut log, &mut disk);
    }
    disk.faults.unlink = 0;
    assert!(used(&disk).iter().any(|(segment, _)| *segment == oldest));
    let (recovered, _) = recover(&disk, OPTIONS).expect("nothing is wrong");
    let steps = recovered.repairs.iter();
    let mut unlinked =
        steps.filter(|step| matches!(step, RepairStep::Unlink { segment } if *segment == oldest));
    assert_eq!(unlinked.next(), None);
    // And the circle goes on with it.
    let mut log = start_log(recovered, AppendFsync::EverySecond);
    drive(&mut log, &mut disk);
    log.force_compaction();
    compact(&mut log, &mut disk, &mut state);
    assert!(used(&disk).iter().all(|(segment, _)| *segment != oldest));
}

/// A segment that is sealed empty, for a record too large for it, is no longer there after the first repair.
#[test]
fn a_start_never_needs_a_segment_that_holds_nothing() {
    let mut disk = Disk::new(Plant::None);
    let mut log = start_log(Recovered::fresh(0), AppendFsync::EverySecond);
    let (mut chance, mut state) = (Chance::new(5), State::default());
    let mut add = |log: &mut Log, disk: &mut Disk, fits: &dyn Fn(usize) -> bool| {
        let entry = loop {
            match State::default().random_entry(&mut chance) {
                Entry::Added(job) if fits(job.body.len()) => break Entry::Added(job),
                _ => {}
            }
        };
        log.append(&entry).expect("there is room");
        drive(log, disk);
    };
    let is_small: fn(usize) -> bool = |bytes| bytes < 60;
    add(&mut log, &mut disk, &is_small);
    // Goes on in an empty segment, which is too small for what comes next.
    log.force_compaction();
    let empty = used(&disk).last().expect("the first").0 + 1;
    add(&mut log, &mut disk, &|bytes| bytes > 8_000);
    (0..3).for_each(|_| add(&mut log, &mut disk, &is_small));
    assert!(used(&disk).iter().all(|(segment, _)| *segment != empty));
    // The first goes, the empty one is there yet.
    for _ in 0..50 {
        log.compact(now(), &mut state);
        drive(&mut log, &mut disk);
        if log.segments_removed() == 1 {
            break;
        }
    }
    let (recovered, _) = recover(&disk, OPTIONS).expect("nothing is wrong");
    recovered.repairs.iter().for_each(|step| disk.repair(step));
    let again = recover(&disk, OPTIONS);
    assert!(again.is_ok(), "{:?}", again.map(|_| ()));
}
