//! `shardq-cli aof` with logs that were really written, whole and harmed. Recovery, called here a second time, is the oracle: a check is
//! clean exactly when the server would start and cut nothing.

mod log;

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;

use clap::Parser;
use log::{Folder, GENERATION, Written, acked, crc32c, id, job, leased, many_jobs, paused, recover};
use proptest::collection::vec;
use proptest::prelude::*;
use serde_json::Value;
use shard::log::{
    AppendFsync, CURRENT, CURRENT_OFF, Current, Entry, EpochVerdict, FileName, SegmentHeader, TransferImage,
    TransferStage,
};
use tools::aof::{AofError, Options};

#[derive(Parser)]
struct Line {
    #[command(flatten)]
    options: Options,
}

/// Runs an action on a path: whether all is well, and what it prints.
fn run(words: &str, path: &Path) -> Result<(bool, String), AofError> {
    let words = format!("aof {words} --quiet");
    let words = words.split_ascii_whitespace().map(Into::into);
    let line = Line::parse_from(words.chain([path.as_os_str().to_owned()]));
    let mut out = Vec::new();
    let is_well = tools::aof::run(&line.options, &mut out)?;
    Ok((is_well, String::from_utf8(out).expect("text is printed")))
}

/// A check that must find something wrong, in these words.
#[track_caller]
fn assert_finds(path: &Path, line: &str) {
    let (is_well, text) = run("check", path).unwrap();
    assert!(!is_well && text.contains(line), "{line:?} is not in:\n{text}");
}

#[track_caller]
fn assert_clean(path: &Path) -> String {
    let (is_well, text) = run("check", path).unwrap();
    assert!(is_well, "{text}");
    text
}

/// A repair that must refuse, and leave every byte as it is.
#[track_caller]
fn assert_left_alone(folder: &Folder) {
    let before = folder.content();
    let (is_well, text) = run("check --repair", folder.path()).unwrap();
    assert!(!is_well && text.contains("repair: nothing was changed"), "{text}");
    assert!(folder.content() == before, "{text}");
}

fn flip(path: &Path, at: usize) {
    let mut bytes = fs::read(path).unwrap();
    bytes[at] ^= 1;
    fs::write(path, bytes).unwrap();
}

fn jobs_in(folder: &Folder, shard: u16) -> usize {
    let mut jobs = 0;
    recover(&folder.generation(), shard, &mut |entry| {
        jobs += usize::from(matches!(entry, Entry::Added(_)))
    })
    .unwrap();
    jobs
}

/// The tail of the last segment of shard 0 torn: what is behind the last whole record, as it was, and its offset.
fn tear(folder: &Folder) -> (PathBuf, usize, Vec<u8>) {
    let (path, end) = folder.used(0).last().unwrap().clone();
    flip(&path, end - 1);
    let cut = recover(&folder.generation(), 0, &mut |_| {})
        .unwrap()
        .cut
        .expect("a torn tail");
    let offset = cut.offset as usize;
    (path.clone(), offset, fs::read(&path).unwrap()[offset..].to_vec())
}

#[test]
fn a_whole_log_is_clean() {
    let folder = Folder::with_logs(2, AppendFsync::EverySecond, &many_jobs());
    assert!(folder.used(1).len() >= 3, "several segments");
    let text = assert_clean(folder.path());
    for line in [
        "names gen-3, written by 2 shards",
        "shard 1:",
        "the next start: starts and keeps everything; the store epoch may stay",
    ] {
        assert!(text.contains(line), "{line:?} is not in:\n{text}");
    }
    let text = assert_clean(&folder.generation());
    assert!(text.contains("CURRENT names it, written by 2 shards"), "{text}");
    // A segment is judged among the others of its shard.
    let text = assert_clean(&folder.used(1)[1].0);
    assert!(
        text.contains("shard 1: ")
            && text.contains("(shard 1, number 2, generation 3, 8192 bytes allocated)")
    );
    assert!(!text.contains("shard 0"), "{text}");
    let before = folder.content();
    let (is_well, text) = run("check --repair", folder.path()).unwrap();
    assert!(is_well && text.contains("repair: there is nothing to cut"));
    assert!(folder.content() == before);
}

#[test]
fn a_torn_tail_is_found_cut_and_kept() {
    let folder = Folder::with_logs(2, AppendFsync::EverySecond, &many_jobs());
    let (path, offset, tail) = tear(&folder);
    let place = format!(
        "cut: {}, offset {offset}: bytes that are no record (a record with a wrong checksum)",
        path.display()
    );
    assert_finds(folder.path(), &place);
    assert_finds(&path, &place);
    let (is_well, text) = run("check --repair", folder.path()).unwrap();
    assert!(is_well, "{text}");
    let kept = FileName::of_cut(0, folder.used(0).len() as u64 - 1, offset as u64);
    let kept = folder.path().join(kept);
    assert!(text.contains(&kept.display().to_string()), "{text}");
    assert_eq!(fs::read(&kept).unwrap(), tail);
    assert_clean(folder.path());
    // The other jobs are there, the log goes on, and what was cut is not forgotten: the store epoch is a new one.
    let recovered = recover(&folder.generation(), 0, &mut |_| {}).unwrap();
    assert!(
        recovered.cut.is_none() && matches!(recovered.verdict, EpochVerdict::Renew(_)),
        "{recovered:?}"
    );
    assert_eq!((jobs_in(&folder, 0), jobs_in(&folder, 1)), (119, 120));
    let mut log = Written::begin(&folder.generation(), 0, AppendFsync::Always);
    log.append(&Entry::Added(job(200, "mail", b"later")));
    log.stop();
    assert_eq!(jobs_in(&folder, 0), 120);
    assert!(assert_clean(folder.path()).contains("the server was stopped in order"));
}

#[test]
fn a_second_cut_at_the_same_place_overwrites_nothing() {
    let folder = Folder::with_logs(1, AppendFsync::EverySecond, &many_jobs());
    let (_, offset, _) = tear(&folder);
    let name = FileName::of_cut(0, folder.used(0).len() as u64, offset as u64);
    fs::write(folder.path().join(&name), "kept before").unwrap();
    assert!(run("check --repair", folder.path()).unwrap().0);
    assert_eq!(fs::read(folder.path().join(&name)).unwrap(), b"kept before");
    assert!(folder.path().join(format!("{name}.1")).exists());
}

#[test]
fn a_log_of_which_nothing_is_left_begins_anew() {
    let folder = Folder::with_logs(1, AppendFsync::EverySecond, &[]);
    let path = folder.segment(0, 1);
    flip(&path, 70);
    assert_finds(&path, "cut: ");
    let torn = fs::read(&path).unwrap();
    // By the segment's own path: it is gone afterwards.
    let (is_well, text) = run("check --repair", &path).unwrap();
    assert!(is_well && !path.exists(), "{text}");
    let kept = folder.path().join(FileName::of_cut(0, 1, 0));
    assert_eq!(fs::read(kept).unwrap(), torn);
    let text = assert_clean(folder.path());
    assert!(text.contains("a new store epoch"), "{text}");
}

#[test]
fn what_was_confirmed_is_never_cut() {
    let folder = Folder::with_logs(1, AppendFsync::Always, &many_jobs());
    for (path, _) in folder.used(0) {
        flip(&path, 200);
        assert_finds(folder.path(), "stop: ");
        assert_finds(&path, "what was confirmed is affected");
        assert_left_alone(&folder);
        flip(&path, 200);
    }
    assert_clean(folder.path());
    // A torn tail waits when another shard stops the start.
    let folder = Folder::with_logs(2, AppendFsync::EverySecond, &many_jobs());
    tear(&folder);
    flip(&folder.used(1)[0].0, 200);
    assert_left_alone(&folder);
}

#[test]
fn missing_segments_and_shards_are_named() {
    let folder = Folder::with_logs(2, AppendFsync::Always, &many_jobs());
    let (first, second) = (folder.used(0)[0].0.clone(), folder.used(0)[1].0.clone());
    let aside = folder.path().join("aside");
    fs::rename(&first, &aside).unwrap();
    assert_finds(folder.path(), &format!("stop: {}: is missing", first.display()));
    assert_left_alone(&folder);
    fs::rename(&aside, &first).unwrap();
    fs::rename(&second, &aside).unwrap();
    assert_finds(folder.path(), "offset 64: records are missing before it");
    fs::rename(&aside, &second).unwrap();
    assert_clean(folder.path());
    for (path, _) in folder.used(1) {
        fs::remove_file(path).unwrap();
    }
    fs::remove_file(folder.segment(1, folder.used(0).len() as u64 + 1)).unwrap();
    fs::remove_file(folder.segment(1, folder.used(0).len() as u64 + 2)).unwrap();
    assert_finds(folder.path(), "holds no segment of shard 1");
    fs::copy(&first, folder.segment(7, 1)).unwrap();
    assert_finds(
        folder.path(),
        "belongs to a shard that its generation does not have: it has 2",
    );
    assert_finds(
        &folder.segment(7, 1),
        "belongs to a shard that its generation does not have: it has 2",
    );
}

#[test]
fn what_is_not_ours_is_told_apart() {
    let folder = Folder::with_logs(1, AppendFsync::Always, &many_jobs());
    fs::write(folder.generation().join("letter.txt"), "dear reader").unwrap();
    fs::create_dir(folder.segment(0, 900)).unwrap();
    let text = assert_clean(folder.path());
    assert!(
        text.contains("letter.txt: no segment of a log: left alone"),
        "{text}"
    );
    assert!(text.contains("is no file: left alone"), "{text}");
    fs::write(folder.segment(0, 500), "dear reader, ".repeat(9)).unwrap();
    assert_finds(folder.path(), "offset 0: not a segment of a log");
    assert_left_alone(&folder);
    fs::copy(&folder.used(0)[0].0, folder.segment(0, 500)).unwrap();
    assert_finds(folder.path(), "offset 0: a segment that belongs elsewhere");
}

#[test]
fn later_versions_stop_by_name() {
    let folder = Folder::with_logs(1, AppendFsync::Always, &many_jobs());
    let (path, _) = folder.used(0)[1].clone();
    let whole = fs::read(&path).unwrap();
    let mut later = whole.clone();
    later[8] = 2;
    let sum = crc32c(&later[..60]);
    later[60..64].copy_from_slice(&sum.to_le_bytes());
    fs::write(&path, &later).unwrap();
    assert_finds(
        folder.path(),
        "offset 0: a segment of a version that this server does not know",
    );
    assert_finds(&path, "(header of version 2)");
    let random = SegmentHeader::decode(&whole[..64]).unwrap().random;
    let mut later = whole.clone();
    later[64 + 22] = 2;
    let length = u32::from_le_bytes(later[64..68].try_into().unwrap()) as usize;
    let signed = [&random.to_le_bytes()[..], &later[64..68], &later[72..64 + length]].concat();
    later[68..72].copy_from_slice(&crc32c(&signed).to_le_bytes());
    fs::write(&path, &later).unwrap();
    let line = format!("stop: {}, offset 64: a record of version 2", path.display());
    assert_finds(folder.path(), &line);
    assert_left_alone(&folder);
}

#[test]
fn folders_say_which_log_counts() {
    let folder = Folder::with_logs(1, AppendFsync::Always, &many_jobs());
    let root = folder.path();
    fs::create_dir(root.join("gen-8")).unwrap();
    assert!(assert_clean(root).contains("gen-8: nothing names it: the next start with a log deletes it"));
    fs::rename(root.join(CURRENT), root.join(CURRENT_OFF)).unwrap();
    let text = assert_clean(root);
    assert!(
        text.contains("this log is switched off") && text.contains("a start with this log: starts"),
        "{text}"
    );
    fs::remove_file(root.join(CURRENT_OFF)).unwrap();
    assert_finds(root, "lost: ");
    assert!(assert_clean(&folder.generation()).contains("neither CURRENT nor CURRENT.off names it"));
    fs::write(root.join(CURRENT), "gen-3 shards 1\n").unwrap();
    assert_finds(root, "is not what a server wrote");
    let current = Current {
        generation: 77,
        shards: 1,
    };
    fs::write(root.join(CURRENT), current.text()).unwrap();
    assert_finds(root, "names gen-77, which is not there");
    // A copy under any name, and a segment alone.
    let copy = Folder::new();
    for (path, _) in folder.used(0) {
        fs::copy(&path, copy.path().join(path.file_name().unwrap())).unwrap();
    }
    assert!(assert_clean(copy.path()).contains("the headers of its segments say which it was"));
    let alone = Folder::new();
    let path = alone.path().join("some.file");
    fs::copy(&folder.used(0)[0].0, &path).unwrap();
    assert!(assert_clean(&path).contains("it is judged alone"));
    assert!(matches!(
        run("check --repair", &path),
        Err(AofError::Unnamed { .. })
    ));
    assert!(matches!(run("check", alone.path()), Err(AofError::NoLog { .. })));
    assert!(matches!(
        run("check", &root.join("none")),
        Err(AofError::System { .. })
    ));
}

#[test]
fn nothing_is_repaired_under_a_server() {
    let folder = Folder::with_logs(1, AppendFsync::EverySecond, &many_jobs());
    tear(&folder);
    let server = File::create(folder.path().join("LOCK")).unwrap();
    server.try_lock().unwrap();
    let before = folder.content();
    for path in [
        folder.path().to_owned(),
        folder.generation(),
        folder.segment(0, 1),
    ] {
        let refused = run("check --repair", &path);
        assert!(matches!(refused, Err(AofError::InUse { .. })), "{refused:?}");
        assert_finds(&path, "a server uses this folder now");
    }
    assert!(folder.content() == before);
    drop(server);
    assert!(run("check --repair", folder.path()).unwrap().0);
}

/// A life of each kind.
fn lives() -> Vec<Entry> {
    vec![
        Entry::Added(job(1, "mail", b"hello \"you\"\n\xff")),
        Entry::Added(job(2, "mail", &[b'x'; 100])),
        Entry::Added(job(3, "images of a day", b"")),
        Entry::Added(job(4, "mail", b"short")),
        Entry::State(leased(1)),
        Entry::State(leased(4)),
        Entry::Acked(acked(2, 2)),
        Entry::Acked(acked(4, 0)),
        Entry::Queue(paused("mail")),
        Entry::Added(job(5, "mail", b"gone soon")),
        Entry::Gone(id(5)),
    ]
}

#[test]
fn a_dump_has_a_line_for_each_entry() {
    let folder = Folder::with_logs(1, AppendFsync::Always, &lives());
    let (is_well, text) = run("dump", folder.path()).unwrap();
    assert!(is_well);
    let path = folder.segment(0, 1).display().to_string();
    assert!(text.lines().all(|line| line.starts_with(&path)), "{text}");
    let line = |words: &[&str]| {
        assert!(
            text.lines()
                .any(|line| words.iter().all(|word| line.contains(word))),
            "{words:?} is not in:\n{text}"
        );
    };
    let first = id(1).to_string();
    line(&[" 64 meta ", "store_epoch=5", "always=true", "stopped=false"]);
    line(&[
        " added ",
        &first,
        "queue=\"mail\"",
        "state=queued",
        r#"body="hello \"you\"\n\xff""#,
    ]);
    line(&[
        "created=2023-11-14T22:13:20.001Z",
        "expires=2023-11-15T22:13:20.000Z",
        "enters_queue=never",
    ]);
    line(&[
        " state ",
        &first,
        "state=leased",
        "enters_queue=2023-11-14T22:14:20.000Z",
        "deliveries=1",
    ]);
    line(&[
        &id(2).to_string(),
        "body_bytes=100",
        &format!("body=\"{}...\"", "x".repeat(32)),
    ]);
    line(&[" queue ", "queue=\"mail\"", "paused=in", "version=4"]);
    line(&[" gone ", &id(5).to_string()]);
    let (_, json) = run("dump --json --body 5", folder.path()).unwrap();
    let lines: Vec<Value> = json
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    assert_eq!(lines.len(), text.lines().count());
    let kinds: Vec<&str> = lines.iter().filter_map(|line| line["kind"].as_str()).collect();
    assert_eq!(kinds.iter().filter(|kind| **kind == "added").count(), 5);
    let acknowledged = lines.iter().find(|line| line["kind"] == "acked").unwrap();
    assert_eq!(acknowledged["holders"].as_array().unwrap().len(), 2);
    let added = lines.iter().find(|line| line["id"] == first.as_str()).unwrap();
    assert_eq!(
        (&added["retry_s"], &added["body"]),
        (&60.into(), &"hello...".into())
    );
}

#[test]
fn transfers_are_shown_and_counted() {
    let at = |stage, job| TransferImage {
        stage,
        node: acked(1, 1).holders[0],
        id: id(7),
        hop: 1_700_000_000_000_000_003,
        job,
    };
    let taken = Some(Box::new(job(7, "mail", b"once")));
    let entries = [
        Entry::Transfer(at(TransferStage::Taken, taken)),
        Entry::Transfer(at(TransferStage::SentQueued, None)),
    ];
    let folder = Folder::with_logs(1, AppendFsync::Always, &entries);
    let (is_well, text) = run("dump", folder.path()).unwrap();
    assert!(is_well);
    for words in [
        [" transfer ", "transfer=taken", "body=\"once\""],
        [" transfer ", "transfer=sent", "hop=1700000000000000003"],
    ] {
        let is_it = |line: &str| words.iter().all(|word| line.contains(word));
        assert!(text.lines().any(is_it), "{words:?} is not in:\n{text}");
    }
    let (_, json) = run("stats --json", folder.path()).unwrap();
    let figures: Value = serde_json::from_str(&json).unwrap();
    assert_eq!(figures["records"]["transfer"]["entries"], 2);
    assert_eq!(figures["jobs"]["all"], 1);
}

#[test]
fn a_dump_shows_what_stands_behind_damage_in_other_segments() {
    let folder = Folder::with_logs(1, AppendFsync::Always, &many_jobs());
    let used = folder.used(0);
    let all = run("dump", folder.path()).unwrap().1;
    let of = |text: &str, at: usize| {
        let path = used[at].0.display().to_string();
        text.lines().filter(|line| line.starts_with(&path)).count()
    };
    flip(&used[1].0, 64 + 500);
    let (is_well, text) = run("dump", folder.path()).unwrap();
    assert!(!is_well);
    assert!(of(&text, 1) < of(&all, 1) && of(&text, 1) > 0);
    for at in [0, 2] {
        assert_eq!(of(&text, at), of(&all, at));
        let (is_well, alone) = run("dump", &used[at].0).unwrap();
        assert!(is_well);
        assert_eq!(alone.lines().count(), of(&all, at));
    }
}

#[test]
fn stats_are_what_the_records_add_up_to() {
    let folder = Folder::with_logs(2, AppendFsync::Always, &lives());
    let figures = |folder: &Folder| -> Value {
        let (is_well, text) = run("stats --json", folder.path()).unwrap();
        assert!(is_well);
        serde_json::from_str(&text).unwrap()
    };
    let stats = figures(&folder);
    // Per shard: 1 leased, 3 queued; 2 acknowledged and to be told, 4 and 5 gone.
    assert_eq!(stats["jobs"]["all"], 4);
    assert_eq!(stats["jobs"]["by_state"]["leased"], 2);
    assert_eq!(stats["jobs"]["by_state"]["queued"], 2);
    assert_eq!(stats["jobs"]["acknowledged"], 2);
    assert_eq!(stats["jobs"]["expired_by_now"], 4);
    assert_eq!(
        (&stats["queues"][0]["jobs"], &stats["queues_with_jobs"]),
        (&2.into(), &2.into())
    );
    assert_eq!(stats["paused"][0]["state"], "in");
    assert_eq!(stats["records"]["added"]["records"], 10);
    assert_eq!(
        (&stats["store_epochs"][0], &stats["stopped_in_order"]),
        (&5.into(), &false.into())
    );
    assert_eq!(stats["oldest_created"], "2023-11-14T22:13:20.001Z");
    assert_eq!(stats["newest_created"], "2023-11-14T22:13:20.003Z");
    let live = 2 * (shard::log::image_bytes(4, 13) + shard::log::image_bytes(15, 0));
    assert_eq!(stats["live_bytes"], live);
    let dumped: u64 = (0..2).map(|shard| folder.used(shard)[0].1 as u64 - 64).sum();
    let log_bytes = stats["log_bytes"].as_u64().unwrap();
    // The last bytes of a record may be zeros.
    assert!((dumped..dumped + 64).contains(&log_bytes), "{dumped} {log_bytes}");
    for shard in 0..2 {
        Written::begin(&folder.generation(), shard, AppendFsync::Always).stop();
    }
    assert_eq!(figures(&folder)["stopped_in_order"], true);
    let (_, text) = run("stats --queues 1", folder.path()).unwrap();
    assert!(
        text.contains("2 jobs  \"images of a day\"") && !text.contains("jobs  \"mail\""),
        "{text}"
    );
    assert!(
        text.contains("stopped in order: yes") && text.contains("paused in   \"mail\""),
        "{text}"
    );
    flip(&folder.segment(0, 1), 100);
    assert!(!run("stats", folder.path()).unwrap().0);
}

#[test]
fn exit_codes_are_for_scripts() {
    let folder = Folder::with_logs(1, AppendFsync::EverySecond, &many_jobs());
    let exit = |words: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_shardq-cli"));
        let output = command
            .arg("aof")
            .args(words)
            .arg(folder.path())
            .output()
            .unwrap();
        output.status.code()
    };
    assert_eq!(exit(&["check"]), Some(0));
    assert_eq!(exit(&["dump", "--json"]), Some(0));
    tear(&folder);
    for words in ["check", "dump", "stats"] {
        assert_eq!(exit(&[words]), Some(1), "{words}");
    }
    assert_eq!(exit(&["check", "--repair"]), Some(0));
    for words in ["check", "dump", "stats"] {
        assert_eq!(exit(&[words]), Some(0), "{words}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn arbitrary_files_are_no_panic(
        files in vec(vec(prop_oneof![3 => Just(0u8), 2 => any::<u8>()], 0..400), 1..4), good_headers: bool,
        current in vec(any::<u8>(), 0..40), name in "(shard-00[01]-[0-9a-f]{16}\\.log|gen-[0-9]{1,20}|[a-z.]{1,9})",
    ) {
        let folder = Folder::new();
        fs::write(folder.path().join(CURRENT), Current { generation: GENERATION, shards: 1 }.text()).unwrap();
        fs::create_dir(folder.generation()).unwrap();
        for (at, file) in files.iter().enumerate() {
            let (number, mut file) = (at as u64 + 1, file.clone());
            if good_headers && file.len() >= 64 {
                let header = SegmentHeader { shard: 0, number, generation: GENERATION, random: 1, file_bytes: 400 };
                file[..64].copy_from_slice(&header.encode());
            }
            fs::write(folder.segment(0, number), file).unwrap();
        }
        if name != "." && name != ".." {
            fs::write(folder.generation().join(name), &files[0]).unwrap();
        }
        for path in [folder.path().to_owned(), folder.generation(), folder.segment(0, 1)] {
            for words in ["check", "dump", "dump --json", "stats", "stats --json"] {
                run(words, &path).unwrap();
            }
        }
        fs::write(folder.path().join(CURRENT), current).unwrap();
        assert_finds(folder.path(), "is not what a server wrote");
    }

    #[test]
    fn a_check_says_what_recovery_says(at in 0usize..30_000, value in 1u8.., always: bool) {
        let fsync = if always { AppendFsync::Always } else { AppendFsync::EverySecond };
        let folder = Folder::with_logs(1, fsync, &many_jobs());
        let used = folder.used(0);
        let (path, end) = &used[at % used.len()];
        let mut bytes = fs::read(path).unwrap();
        bytes[at % end] ^= value;
        fs::write(path, bytes).unwrap();
        let recovered = recover(&folder.generation(), 0, &mut |_| {});
        let (is_well, text) = run("check", folder.path()).unwrap();
        let expected = recovered.as_ref().map(|recovered| recovered.cut.is_none()).unwrap_or(false);
        prop_assert_eq!(is_well, expected, "{}", text);
        let before = folder.content();
        let is_repaired = run("check --repair", folder.path()).unwrap().0;
        prop_assert_eq!(is_repaired, recovered.is_ok());
        if recovered.is_ok() {
            assert_clean(folder.path());
        } else {
            prop_assert!(folder.content() == before);
        }
    }
}
