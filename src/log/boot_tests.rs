//! Starts in folders of every kind: what is told to the shards, what is changed, and what is said when it cannot be.

use std::io::ErrorKind;

use shard::log::{Current, FileName, FoundFile, LogBoot, StartPlan};

use super::boot::{LogError, boot, boot_id, remedy};
use super::lock::{FolderLock, Taken};
use super::test_folder::TestFolder;

const OLD: Current = Current {
    generation: 7,
    shards: 2,
};

/// A folder with the log of `OLD`, and other things.
fn with_log() -> TestFolder {
    let folder = TestFolder::new();
    folder.write("CURRENT", OLD.text());
    for name in ["gen-7", "gen-8", "gen-5"] {
        folder.make_folder(name);
    }
    folder.write("gen-8/half", "done");
    folder.write("gen-9", "a file");
    for (shard, number, bytes) in [(0, 2, 300), (0, 1, 200), (1, 3, 100), (0, 0x10, 64)] {
        segment(&folder, shard, number, bytes);
    }
    folder
}

fn segment(folder: &TestFolder, shard: u16, number: u64, bytes: usize) {
    folder.write(&format!("gen-7/{}", FileName::of(shard, number)), vec![0; bytes]);
}

fn start(folder: &TestFolder, appendonly: bool, shards: u16) -> Result<LogBoot, LogError> {
    boot(&FolderLock::new(folder.path()), appendonly, shards)
}

fn error(folder: &TestFolder, appendonly: bool) -> String {
    start(folder, appendonly, 2).unwrap_err().to_string()
}

fn assert_says(text: &str, parts: &[&str]) {
    for part in parts {
        assert!(text.contains(part), "{part} is not in: {text}");
    }
}

fn files_of_old() -> Vec<Vec<FoundFile>> {
    let files = |files: &[(u64, u64)]| {
        let files = files.iter();
        files
            .map(|&(number, bytes)| FoundFile { number, bytes })
            .collect()
    };
    vec![files(&[(1, 200), (2, 300), (0x10, 64)]), files(&[(3, 100)])]
}

#[test]
fn without_a_log_nothing_is_touched() {
    let folder = TestFolder::new();
    folder.make_folder("gen-3");
    let booted = start(&folder, false, 2).unwrap();
    assert_eq!(
        booted,
        LogBoot {
            newest_generation: 3,
            boot_id: booted.boot_id,
            ..LogBoot::nothing()
        }
    );
    assert_eq!(folder.names(""), ["gen-3"]);
}

#[test]
fn a_fresh_log_takes_the_next_generation_and_deletes_nothing() {
    let folder = TestFolder::new();
    for (expected, newest) in [(1, 0), (5, 4)] {
        let booted = start(&folder, true, 2).unwrap();
        let fresh = Current {
            generation: expected,
            shards: 2,
        };
        assert_eq!(booted.plan, StartPlan::Fresh(fresh));
        assert_eq!((booted.newest_generation, booted.files.len()), (newest, 0));
        assert_ne!(booted.boot_id, [0; 16]);
        if newest == 0 {
            folder.make_folder("gen-4");
        }
    }
    assert_eq!(folder.names(""), ["LOCK", "gen-4"]);
    assert_eq!(folder.mode("LOCK"), 0o600);
}

#[test]
fn a_log_is_loaded_and_what_it_does_not_name_is_deleted() {
    let folder = with_log();
    folder.write("CURRENT.off", Current { generation: 5, ..OLD }.text());
    folder.write("gen-7/notes.txt", "left alone");
    folder.write(&format!("gen-7/{}", FileName::of_cut(0, 1, 77)), "left alone");
    folder.make_folder(&format!("gen-7/{}", FileName::of(0, 99)));
    let booted = start(&folder, true, 2).unwrap();
    assert_eq!(booted.plan, StartPlan::Load(OLD));
    assert_eq!(booted.files, files_of_old());
    assert_eq!(booted.newest_generation, 9);
    assert_eq!(
        folder.names(""),
        ["CURRENT", "CURRENT.off", "LOCK", "gen-5", "gen-7", "gen-9"]
    );
    assert_eq!(folder.names("gen-7").len(), 7);
}

#[test]
fn nothing_is_deleted_when_it_is_not_known_what_was_put_aside() {
    let folder = with_log();
    folder.write("CURRENT.off", "gen-");
    assert_eq!(start(&folder, true, 2).unwrap().plan, StartPlan::Load(OLD));
    assert_eq!(
        folder.names(""),
        [
            "CURRENT",
            "CURRENT.off",
            "LOCK",
            "gen-5",
            "gen-7",
            "gen-8",
            "gen-9"
        ]
    );
}

#[test]
fn another_number_of_shards_means_another_generation() {
    let folder = with_log();
    let booted = start(&folder, true, 3).unwrap();
    let to = Current {
        generation: 10,
        shards: 3,
    };
    assert_eq!(booted.plan, StartPlan::Reshard { from: OLD, to });
    assert_eq!(booted.files, files_of_old());
    assert_eq!(folder.names(""), ["CURRENT", "LOCK", "gen-7", "gen-9"]);
}

#[test]
fn a_log_that_is_not_wanted_is_put_aside() {
    let folder = with_log();
    folder.write("CURRENT.off", Current { generation: 5, ..OLD }.text());
    let booted = start(&folder, false, 2).unwrap();
    assert_eq!(booted.plan, StartPlan::Nothing);
    assert_eq!((booted.newest_generation, booted.files.len()), (9, 0));
    assert_eq!(Current::parse(&folder.read("CURRENT.off")), Some(OLD));
    assert_eq!(
        folder.names(""),
        ["CURRENT.off", "LOCK", "gen-5", "gen-7", "gen-8", "gen-9"]
    );
    // It stays aside.
    assert_eq!(start(&folder, false, 2).unwrap().plan, StartPlan::Nothing);
    let fresh = Current {
        generation: 10,
        shards: 2,
    };
    assert_eq!(start(&folder, true, 2).unwrap().plan, StartPlan::Fresh(fresh));
    assert_eq!(folder.names("gen-7").len(), 4);
}

#[test]
fn what_cannot_be_understood_is_not_touched() {
    for appendonly in [true, false] {
        let folder = with_log();
        folder.write("CURRENT", "MANIFEST-000004\n");
        let before = folder.names("").len();
        let said = error(&folder, appendonly);
        assert_says(
            &said,
            &[
                "/CURRENT is not what a server wrote",
                "nothing was changed",
                &format!("shardq-cli aof check {}", folder.path().display()),
            ],
        );
        assert_eq!(folder.names("").len(), before + 1, "only LOCK is new");
    }
}

#[test]
fn a_second_server_is_told_who_has_the_folder() {
    let folder = with_log();
    let held = FolderLock::new(folder.path());
    assert_eq!(held.take(|_| Ok(())).unwrap(), Taken::Now);
    let before = folder.names("");
    for appendonly in [true, false] {
        let said = error(&folder, appendonly);
        assert_says(
            &said,
            &["another server", &folder.path().display().to_string(), "--dir"],
        );
    }
    assert_eq!(folder.names(""), before);
    // It may go on in its own folder.
    boot(&held, true, 2).unwrap();
}

#[test]
fn what_is_missing_is_named() {
    let folder = with_log();
    std::fs::remove_file(folder.path().join(format!("gen-7/{}", FileName::of(1, 3)))).unwrap();
    assert_says(
        &error(&folder, true),
        &["gen-7 holds no segment of shard 1", "Bring the files back"],
    );
    segment(&folder, 1, 4, 64);
    segment(&folder, 2, 4, 64);
    let foreign = FileName::of(2, 4);
    assert_says(
        &error(&folder, true),
        &[&foreign, "it has 2", "shardq-cli aof check"],
    );
    std::fs::remove_dir_all(folder.path().join("gen-7")).unwrap();
    assert_says(
        &error(&folder, true),
        &["CURRENT names gen-7, which is not there"],
    );
    folder.write("gen-7", "a file");
    assert_says(
        &error(&folder, true),
        &["cannot list the folder", "gen-7", "move it away"],
    );
    assert!(
        folder.path().join("gen-8").exists(),
        "a start that fails deletes nothing"
    );
}

#[test]
fn a_part_of_the_log_that_is_something_else_is_named() {
    for name in ["CURRENT", "LOCK"] {
        let folder = TestFolder::new();
        folder.make_folder(name);
        let path = format!("{}/{name}", folder.path().display());
        assert_says(&error(&folder, true), &[&path, "move it away"]);
    }
    let folder = TestFolder::new();
    let gone = FolderLock::new(&folder.path().join("gone"));
    let said = boot(&gone, true, 1).unwrap_err().to_string();
    assert_says(&said, &["cannot lock", "gone/LOCK", "No such file"]);
    // No log is asked for, and none can be seen.
    let booted = boot(&gone, false, 1).unwrap();
    assert_eq!(booted.plan, StartPlan::Nothing);
}

#[test]
fn errors_come_with_what_mends_them() {
    for (kind, part) in [
        (ErrorKind::PermissionDenied, "chown"),
        (ErrorKind::ReadOnlyFilesystem, "mount -o remount,rw"),
        (ErrorKind::StorageFull, "Free space"),
        (ErrorKind::NotADirectory, "move it away"),
    ] {
        assert_says(remedy(kind), &[part, "--dir"]);
    }
    assert_eq!(remedy(ErrorKind::Other), "");
}

#[test]
fn the_boot_id_is_the_kernels_or_a_random_one() {
    let folder = TestFolder::new();
    let path = folder.path().join("boot_id");
    assert_ne!(boot_id(&path), boot_id(&path), "none there");
    folder.write("boot_id", "00010203-0405-0607-0809-0a0b0c0d0eff\n");
    assert_eq!(
        boot_id(&path),
        [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 255]
    );
    for text in [
        "00010203-0405-0607-0809-0a0b0c0d0e\n",
        "",
        "+0010203-0405-0607-0809-0a0b0c0d0eff",
    ] {
        folder.write("boot_id", text);
        assert_ne!(boot_id(&path), boot_id(&path), "{text:?}");
    }
}
