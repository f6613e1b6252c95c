//! Every task on a real folder: what it leaves, and what it says when it cannot.

use std::fs::{self, File};
use std::io::{self, ErrorKind};

use bytes::Bytes;
use shard::log::{
    Action, Current, DiskTask, Done, IoError, LogFolder, RepairStep, SwitchStep, switch_off, switch_plan,
};

use super::files::{Ahead, Files, Next};
use super::lock::FolderLock;
use super::system::{allocate, failed, write_chunks, write_zeros};
use super::test_folder::TestFolder;

const FOLDER: LogFolder = LogFolder {
    generation: 1,
    shard: 2,
};
const HEADER: [u8; 64] = *b"The header of a segment, which nobody looks into in this place..";
const SEGMENT_1: &str = "gen-1/shard-002-0000000000000001.log";

/// A data folder with one generation, and its files.
fn generation() -> (TestFolder, Files) {
    let folder = TestFolder::new();
    let files = Files::new(FolderLock::new(folder.path()));
    step(&files, SwitchStep::MakeFolder("gen-1".into())).unwrap();
    (folder, files)
}

fn act(files: &Files, action: Action) -> Result<Done, IoError> {
    files.perform(DiskTask::Segment(FOLDER, action))
}

fn repair(files: &Files, step: RepairStep) -> Result<Done, IoError> {
    files.perform(DiskTask::Repair(FOLDER, step))
}

fn step(files: &Files, step: SwitchStep) -> Result<Done, IoError> {
    files.perform(DiskTask::Generation(step))
}

fn create(files: &Files, segment: u64, bytes: u64, replaces: &[u64]) -> Result<Done, IoError> {
    act(
        files,
        Action::Create {
            segment,
            bytes,
            header: HEADER,
            replaces: replaces.to_vec(),
        },
    )
}

fn write(files: &Files, segment: u64, offset: u64, chunks: Vec<Bytes>) -> Result<Done, IoError> {
    act(
        files,
        Action::Write {
            segment,
            offset,
            chunks,
        },
    )
}

fn read(files: &Files, segment: u64, offset: u64, bytes: u64) -> Bytes {
    let read = act(
        files,
        Action::Read {
            segment,
            offset,
            bytes,
        },
    );
    match read {
        Ok(Done::Read(bytes)) => bytes,
        other => panic!("{other:?}"),
    }
}

fn other(result: Result<Done, IoError>) -> String {
    match result {
        Err(IoError::Other(text)) => text,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_segment_lives_from_its_creation_to_its_end() {
    use std::os::unix::fs::MetadataExt;
    let (folder, files) = generation();
    assert_eq!(create(&files, 1, 1 << 20, &[]), Ok(Done::Done));
    let found = fs::metadata(folder.path().join(SEGMENT_1)).unwrap();
    assert_eq!(found.len(), 1 << 20);
    assert!(
        found.blocks() * 512 >= 1 << 20,
        "the space is there: {} blocks",
        found.blocks()
    );
    assert_eq!((folder.mode("gen-1"), folder.mode(SEGMENT_1)), (0o700, 0o600));
    let chunks = ["one", "", "two"].map(Bytes::from).to_vec();
    assert_eq!(write(&files, 1, 64, chunks), Ok(Done::Done));
    assert_eq!(act(&files, Action::Sync { segment: 1 }), Ok(Done::Done));
    assert_eq!(act(&files, Action::SyncFolder), Ok(Done::Done));
    let mut expected = HEADER.to_vec();
    expected.extend(b"onetwo");
    expected.resize(1 << 20, 0);
    assert!(folder.read(SEGMENT_1) == expected);
    assert_eq!(read(&files, 1, 60, 8), [&HEADER[60..], b"onet"].concat());
    assert_eq!(read(&files, 1, (1 << 20) - 3, 100), vec![0; 3], "less at the end");
    assert_eq!(read(&files, 1, 2 << 20, 100), "", "nothing behind it");
    assert_eq!(act(&files, Action::Unlink { segment: 1 }), Ok(Done::Done));
    assert_eq!(folder.names("gen-1"), [""; 0]);
    assert_eq!(
        act(&files, Action::Unlink { segment: 1 }),
        Ok(Done::Done),
        "gone is gone"
    );
    let error = other(write(&files, 1, 64, vec![Bytes::from_static(b"x")]));
    assert!(error.contains("open") && error.contains(SEGMENT_1), "{error}");
}

#[test]
fn a_segment_replaces_old_ones() {
    let (folder, files) = generation();
    folder.write(SEGMENT_1, "something of that name");
    create(&files, 1, 4096, &[]).unwrap();
    assert_eq!(folder.read(SEGMENT_1)[..64], HEADER);
    assert_eq!(folder.read(SEGMENT_1).len(), 4096);
    for segment in [2, 3] {
        create(&files, segment, 4096, &[]).unwrap();
    }
    create(&files, 9, 1 << 16, &[2, 3, 4]).unwrap();
    let names = ["shard-002-0000000000000001.log", "shard-002-0000000000000009.log"];
    assert_eq!(folder.names("gen-1"), names);
    // 4 was in the making when it was replaced: it is reported, and not there.
    create(&files, 4, 4096, &[]).unwrap();
    assert_eq!(folder.names("gen-1"), names);
}

#[test]
fn a_segment_that_cannot_be_made_leaves_nothing() {
    let (folder, files) = generation();
    let error = other(create(&files, 1, u64::MAX, &[]));
    assert!(error.contains("allocate") && error.contains(SEGMENT_1), "{error}");
    assert_eq!(folder.names("gen-1"), [""; 0]);
    let nowhere = LogFolder {
        generation: 7,
        ..FOLDER
    };
    let action = Action::Create {
        segment: 1,
        bytes: 4096,
        header: HEADER,
        replaces: Vec::new(),
    };
    let error = other(files.perform(DiskTask::Segment(nowhere, action)));
    assert!(
        error.contains("create") && error.contains("gen-7/shard-002-"),
        "{error}"
    );
}

#[test]
fn more_chunks_than_one_call_takes_are_written() {
    let folder = TestFolder::new();
    let file = File::create(folder.path().join("a")).unwrap();
    let mut chunks = vec![Bytes::new(); 2000];
    let mut expected = vec![0; 10];
    for number in 0..3000_u32 {
        let chunk = vec![number as u8; number as usize % 7];
        expected.extend(&chunk);
        chunks.push(Bytes::from(chunk));
    }
    write_chunks(&file, 10, &chunks).unwrap();
    assert!(folder.read("a") == expected);
}

#[test]
fn writes_that_the_system_refuses_are_errors() {
    // A device that is always full.
    let full = File::options().write(true).open("/dev/full").unwrap();
    let error = write_chunks(&full, 0, &[Bytes::from_static(b"x")]).unwrap_err();
    assert_eq!(failed("write", "/dev/full".as_ref())(error), IoError::Full);
    let folder = TestFolder::new();
    folder.write("a", "");
    let read_only = File::open(folder.path().join("a")).unwrap();
    assert!(write_chunks(&read_only, 0, &[Bytes::from_static(b"x")]).is_err());
    assert!(allocate(&read_only, 10).is_err());
}

#[test]
fn zeros_are_written_where_space_cannot_be_reserved() {
    let folder = TestFolder::new();
    let file = File::create(folder.path().join("a")).unwrap();
    write_zeros(&file, 200_000).unwrap();
    assert!(folder.read("a") == vec![0; 200_000]);
}

#[test]
fn errors_are_told_in_words() {
    for kind in [ErrorKind::StorageFull, ErrorKind::QuotaExceeded] {
        assert_eq!(failed("write", "a".as_ref())(kind.into()), IoError::Full);
    }
    for errno in [libc::ENOSPC, libc::EDQUOT] {
        assert_eq!(
            failed("write", "a".as_ref())(io::Error::from_raw_os_error(errno)),
            IoError::Full
        );
    }
    let error = failed("sync", "/x/./y".as_ref())(io::Error::from_raw_os_error(libc::EIO));
    assert!(
        error
            .to_string()
            .starts_with("cannot sync /x/y: Input/output error"),
        "{error}"
    );
}

#[test]
fn what_is_cut_off_is_kept_beside_and_never_over_something_else() {
    let (folder, files) = generation();
    create(&files, 1, 4096, &[]).unwrap();
    write(&files, 1, 64, vec![Bytes::from_static(b"good bad")]).unwrap();
    folder.write("cut", "of a friend");
    let keep = RepairStep::KeepAside {
        segment: 1,
        offset: 69,
        to: "cut".into(),
    };
    repair(&files, keep.clone()).unwrap();
    repair(&files, keep).unwrap();
    let mut bad = b"bad".to_vec();
    bad.resize(4096 - 69, 0);
    assert_eq!(folder.read("cut"), b"of a friend");
    assert!(folder.read("cut.1") == bad && folder.read("cut.2") == bad);
    assert_eq!(folder.mode("cut.1"), 0o600);
    for step in [
        RepairStep::SyncFolder,
        RepairStep::Truncate {
            segment: 1,
            bytes: 69,
        },
        RepairStep::Sync { segment: 1 },
    ] {
        assert_eq!(repair(&files, step), Ok(Done::Done));
    }
    assert_eq!(folder.read(SEGMENT_1)[64..], *b"good ");
}

#[test]
fn whole_segments_go_aside_or_away() {
    let (folder, files) = generation();
    for segment in 1..=3 {
        create(&files, segment, 100, &[]).unwrap();
    }
    folder.write("whole", "of a friend");
    let aside = |segment| RepairStep::RenameAside {
        segment,
        to: "whole".into(),
    };
    repair(&files, aside(1)).unwrap();
    repair(&files, RepairStep::Unlink { segment: 2 }).unwrap();
    assert_eq!(folder.names("gen-1"), ["shard-002-0000000000000003.log"]);
    assert_eq!(folder.read("whole"), b"of a friend");
    assert_eq!(folder.read("whole.1")[..64], HEADER);
    // What cannot be put aside leaves no empty file of that name.
    let error = other(repair(&files, aside(1)));
    assert!(error.contains("rename") && error.contains(SEGMENT_1), "{error}");
    let keep = RepairStep::KeepAside {
        segment: 1,
        offset: 0,
        to: "cut".into(),
    };
    let error = other(repair(&files, keep));
    assert!(error.contains("copy") && error.contains("cut"), "{error}");
    assert_eq!(folder.names(""), ["LOCK", "gen-1", "whole", "whole.1"]);
}

#[test]
fn a_switch_leaves_one_generation() {
    let (folder, files) = generation();
    let [old, new] = [1, 2].map(|generation| Current {
        generation,
        shards: 3,
    });
    create(&files, 1, 100, &[]).unwrap();
    for step_of_switch in switch_plan(None, old) {
        step(&files, step_of_switch).unwrap();
    }
    assert_eq!(folder.read("CURRENT"), old.text().into_bytes());
    assert_eq!(folder.mode("CURRENT"), 0o600);
    // What an attempt before this one left behind goes with all that is in it.
    folder.make_folder("gen-2");
    folder.write("gen-2/leftover", "");
    step(&files, SwitchStep::MakeFolder("gen-2".into())).unwrap();
    assert_eq!(folder.names("gen-2"), [""; 0]);
    for step_of_switch in switch_plan(Some(old), new) {
        step(&files, step_of_switch).unwrap();
    }
    assert_eq!(folder.names(""), ["CURRENT", "LOCK", "gen-2"]);
    assert_eq!(Current::parse(&folder.read("CURRENT")), Some(new));
    for step_of_switch in switch_off() {
        step(&files, step_of_switch).unwrap();
    }
    assert_eq!(folder.names(""), ["CURRENT.off", "LOCK", "gen-2"]);
    let error = other(step(
        &files,
        SwitchStep::Rename {
            from: "CURRENT".into(),
            to: "CURRENT.off".into(),
        },
    ));
    assert!(
        error.contains("rename") && error.contains("CURRENT: No such file"),
        "{error}"
    );
    let error = other(step(&files, SwitchStep::SyncFolder("gen-9".into())));
    assert!(error.contains("sync") && error.contains("gen-9"), "{error}");
}

#[test]
fn no_step_deletes_a_generation_that_is_named() {
    let (folder, files) = generation();
    let named = Current {
        generation: 1,
        shards: 3,
    };
    for (file, text) in [
        ("CURRENT", named.text()),
        ("CURRENT", "nothing that can be read".to_owned()),
        ("CURRENT.off", named.text()),
        ("CURRENT.off", "nothing that can be read".to_owned()),
    ] {
        folder.write(file, &text);
        let error = other(step(&files, SwitchStep::MakeFolder("gen-1".into())));
        assert!(
            error.contains("gen-1") && error.ends_with(&format!("{file} names it")),
            "{error}"
        );
        let deleted = step(&files, SwitchStep::DeleteFolder("gen-1".into()));
        // What people put aside stays, and keeps nobody from going on.
        assert_eq!(deleted.is_ok(), file == "CURRENT.off", "{deleted:?}");
        assert!(folder.path().join("gen-1").exists(), "{file}: {text}");
        fs::remove_file(folder.path().join(file)).unwrap();
    }
    step(&files, SwitchStep::DeleteFolder("gen-1".into())).unwrap();
    step(&files, SwitchStep::DeleteFolder("gen-1".into())).unwrap();
    assert_eq!(folder.names(""), ["LOCK"]);
}

#[test]
fn the_first_folder_takes_the_lock_or_is_refused() {
    let (folder, first) = generation();
    let second = Files::new(FolderLock::new(folder.path()));
    let make = || SwitchStep::MakeFolder("gen-2".into());
    let error = other(step(&second, make()));
    assert!(error.contains("another server keeps its log in"), "{error}");
    assert_eq!(folder.names(""), ["LOCK", "gen-1"]);
    drop(first);
    // A log that nobody serves, and that this server did not find at its start.
    folder.write("CURRENT", "");
    let error = other(step(&second, make()));
    assert!(error.contains("holds another log"), "{error}");
    assert_eq!(folder.names(""), ["CURRENT", "LOCK", "gen-1"]);
    fs::remove_file(folder.path().join("CURRENT")).unwrap();
    step(&second, make()).unwrap();
    // Now it is its own, also with a log in it.
    folder.write("CURRENT", "");
    step(&second, SwitchStep::MakeFolder("gen-3".into())).unwrap();
}

#[test]
fn a_write_and_a_sync_go_side_by_side() {
    let (folder, files) = generation();
    create(&files, 1, 1 << 20, &[]).unwrap();
    std::thread::scope(|scope| {
        let writer = scope.spawn(|| {
            for number in 0..200_u64 {
                let chunk = Bytes::from(vec![number as u8; 100]);
                write(&files, 1, 64 + number * 100, vec![chunk]).unwrap();
            }
        });
        scope.spawn(|| {
            for segment in 2..20 {
                create(&files, segment, 4096, &[]).unwrap();
            }
        });
        while !writer.is_finished() {
            act(&files, Action::Sync { segment: 1 }).unwrap();
        }
    });
    let expected: Vec<u8> = (0..200_u8).flat_map(|number| vec![number; 100]).collect();
    assert!(folder.read(SEGMENT_1)[64..64 + 20_000] == expected);
    assert_eq!(folder.names("gen-1").len(), 19);
}

#[test]
fn a_task_belongs_to_the_folder_of_its_time() {
    let [a, b, links] = [(); 3].map(|()| TestFolder::new());
    // A link to a folder stands in for the working folder: it may be led elsewhere.
    let link = links.path().join("here");
    std::os::unix::fs::symlink(a.path(), &link).unwrap();
    let files = Files::new(FolderLock::new(&link));
    let make = || SwitchStep::MakeFolder("gen-1".into());
    step(&files, make()).unwrap();
    let late = files.at_present();
    create(&late, 1, 100, &[]).unwrap();
    fs::remove_file(&link).unwrap();
    std::os::unix::fs::symlink(b.path(), &link).unwrap();
    step(&files.at_present(), make()).unwrap();
    create(&files.at_present(), 1, 100, &[]).unwrap();
    create(&late, 2, 100, &[]).unwrap();
    act(&late, Action::Unlink { segment: 1 }).unwrap();
    assert_eq!(a.names("gen-1"), ["shard-002-0000000000000002.log"]);
    assert_eq!(b.names("gen-1"), ["shard-002-0000000000000001.log"]);
    assert_eq!(b.names(""), ["LOCK", "gen-1"]);
}

/// Writes at once if that is possible, as a shard does; whether it was.
fn write_soon(files: &Files, segment: u64, offset: u64, bytes: &'static [u8]) -> bool {
    let action = Action::Write {
        segment,
        offset,
        chunks: vec![Bytes::from_static(bytes)],
    };
    let task = DiskTask::Segment(FOLDER, action);
    match files.perform_at_once(&task) {
        Some(Next::Prepare(ahead)) => files.prepare(ahead),
        Some(Next::Nothing) => {}
        None => {
            let ahead = Ahead::of(&task).unwrap();
            files.perform(task).unwrap();
            if files.asks_for(&ahead) {
                files.prepare(ahead);
            }
            return false;
        }
    }
    true
}

#[test]
fn writes_that_follow_one_another_are_made_at_once_until_a_sync() {
    let (folder, files) = generation();
    create(&files, 1, 1 << 20, &[]).unwrap();
    let mut expected = HEADER.to_vec();
    for round in 0..3 {
        let mut at_once = 0;
        for _ in 0..40 {
            let offset = expected.len() as u64;
            at_once += u32::from(write_soon(&files, 1, offset, b"a record of some bytes"));
            expected.extend_from_slice(b"a record of some bytes");
        }
        assert!(
            at_once == 36 || at_once == 0,
            "round {round}: {at_once} (0: no such file system)"
        );
        act(&files, Action::Sync { segment: 1 }).unwrap();
        assert!(folder.read(SEGMENT_1).starts_with(&expected));
    }
    let read = read(&files, 1, 64, expected.len() as u64 - 64);
    assert_eq!(&*read, &expected[64..]);
}

#[test]
fn with_a_sync_behind_each_write_none_is_made_at_once() {
    let (_folder, files) = generation();
    create(&files, 1, 1 << 20, &[]).unwrap();
    for record in 0..20 {
        assert!(!write_soon(&files, 1, 64 + 8 * record, b"8 bytes."));
        act(&files, Action::Sync { segment: 1 }).unwrap();
    }
}

#[test]
fn a_segment_is_written_to_its_last_byte_whatever_is_mapped() {
    let (folder, files) = generation();
    create(&files, 1, 10_000, &[]).unwrap();
    let mut expected = HEADER.to_vec();
    while expected.len() < 9_990 {
        write_soon(&files, 1, expected.len() as u64, b"6bytes");
        expected.extend_from_slice(b"6bytes");
    }
    let mut file = folder.read(SEGMENT_1);
    file.truncate(expected.len());
    assert_eq!(file, expected);
    act(&files, Action::Unlink { segment: 1 }).unwrap();
    let task = DiskTask::Segment(
        FOLDER,
        Action::Write {
            segment: 1,
            offset: 64,
            chunks: vec![Bytes::from_static(b"gone")],
        },
    );
    assert_eq!(files.perform_at_once(&task), None);
    assert!(files.perform(task).is_err());
}

#[test]
fn a_segment_that_is_written_at_once_is_followed_by_one_that_is_from_its_first_record_on() {
    let (_folder, files) = generation();
    create(&files, 1, 64 << 10, &[]).unwrap();
    create(&files, 2, 64 << 10, &[]).unwrap();
    let (mut offset, mut at_once) = (64, 0);
    while offset < (64 << 10) - 16 {
        at_once += u32::from(write_soon(&files, 1, offset, b"sixteen bytes..."));
        offset += 16;
    }
    let first = write_soon(&files, 2, 64, b"the first record");
    assert_eq!(first, at_once > 0, "0: no such file system");
    assert_eq!(&*read(&files, 2, 64, 16), b"the first record");
}
