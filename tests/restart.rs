//! The log across restarts of the real binary: in order, by kill -9, with other settings, and with a damaged disk.
//!
//! What was confirmed before is there again, what was acknowledged is not, and what cannot be trusted keeps the server from
//! starting, with a sentence that names the file.

mod support;

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;

use support::{
    Folder, Server, Setup, add, call, end, eventually, free_port, info, jobs, restart, scaled, start,
};
use tools::client::Client;

/// The setup of a server with a log of small segments.
fn with_log(shards: u16) -> Setup {
    Setup::flags(&format!(
        "--shards {shards} --appendonly yes --aof-segment-size 65536"
    ))
}

/// Starts it to fail: all output.
fn fail(setup: &Setup, folder: Folder) -> (String, Folder) {
    let mut server = setup.spawn(free_port(), folder);
    assert_eq!(server.wait_exit().code(), Some(1), "{}", server.log());
    (server.log(), server.into_folder())
}

fn assert_says(text: &str, parts: &[&str]) {
    for part in parts {
        assert!(text.contains(part), "{part} is not in:\n{text}");
    }
}

/// A field of SHOW; none when the job is not there.
fn shown(client: &mut Client, id: &str, field: &str) -> Option<String> {
    let reply = call(client, &format!("SHOW {id}"));
    let fields = reply.array()?;
    let at = fields.iter().position(|name| name.text() == Some(field));
    let value = &fields[at.expect("SHOW has the field") + 1];
    let text = value.text().map(str::to_owned);
    text.or_else(|| value.integer().map(|number| number.to_string()))
}

fn state(client: &mut Client, id: &str) -> Option<String> {
    shown(client, id, "state")
}

/// Takes all that is queued there: bodies, oldest first.
fn drain(client: &mut Client, queue: &str) -> Vec<String> {
    let mut bodies = Vec::new();
    loop {
        let some = jobs(&call(client, &format!("GETJOB NOHANG COUNT 100 FROM {queue}")));
        if some.is_empty() {
            return bodies;
        }
        for (_, id, body) in some {
            bodies.push(String::from_utf8(body).expect("text"));
            call(client, &format!("ACKJOB {id}"));
        }
    }
}

/// Segments of a shard in the folder of the generation that counts, oldest first.
fn segments(folder: &Folder, shard: u16) -> Vec<PathBuf> {
    let current = fs::read_to_string(folder.path().join("CURRENT")).expect("it is there");
    let generation = current.split(' ').next().expect("a word");
    let mut found: Vec<PathBuf> = fs::read_dir(folder.path().join(generation))
        .expect("the generation is there")
        .map(|entry| entry.expect("readable").path())
        .filter(|path| {
            path.display()
                .to_string()
                .contains(&format!("/shard-{shard:03}-"))
        })
        .collect();
    found.sort();
    found
}

/// The newest segment that holds a record, and the offset behind its last byte that is not zero.
fn newest_end(folder: &Folder, shard: u16) -> (PathBuf, u64) {
    let with_end = |path: PathBuf| {
        let bytes = fs::read(&path).expect("readable");
        let end = bytes.iter().rposition(|&byte| byte != 0).map_or(0, |at| at + 1);
        (path, end as u64)
    };
    let mut ends = segments(folder, shard).into_iter().rev().map(with_end);
    ends.find(|(_, end)| *end > 64).expect("a segment that is used")
}

fn names(folder: &Folder) -> BTreeSet<String> {
    let entries = fs::read_dir(folder.path()).expect("readable");
    entries
        .map(|entry| {
            entry
                .expect("readable")
                .file_name()
                .to_string_lossy()
                .into_owned()
        })
        .collect()
}

#[test]
fn every_state_of_a_job_comes_back() {
    for signal in [libc::SIGTERM, libc::SIGKILL] {
        let server = start(with_log(2));
        let mut client = server.client();
        let queued = add(&mut client, "ADDJOB q queued 0 RETRY 600");
        let leased = add(&mut client, "ADDJOB leased b 0 RETRY 600");
        let delayed = add(&mut client, "ADDJOB q delayed 0 DELAY 600 TTL 6000");
        let acked = add(&mut client, "ADDJOB acked b 0 RETRY 600");
        let deleted = add(&mut client, "ADDJOB q b 0 RETRY 600");
        let once = add(&mut client, "ADDJOB once b 0 RETRY 0");
        let waiting_once = add(&mut client, "ADDJOB once2 b 0 RETRY 0");
        let nacked = add(&mut client, "ADDJOB nacked b 0 RETRY 600");
        let dequeued = add(&mut client, "ADDJOB dequeued b 0 RETRY 600");
        for queue in ["leased", "acked", "once", "nacked"] {
            assert_eq!(jobs(&call(&mut client, &format!("GETJOB FROM {queue}"))).len(), 1);
        }
        call(&mut client, &format!("ACKJOB {acked}"));
        call(&mut client, &format!("NACK {nacked}"));
        call(&mut client, &format!("DEQUEUE {dequeued}"));
        call(&mut client, &format!("DELJOB {deleted}"));
        call(&mut client, "PAUSE held in");
        let last = add(&mut client, "ADDJOB q last 0 RETRY 600");
        // A reply that hands out a job waits for no record of that; this one does, on the same shard, and for all before it.
        add(&mut client, "ADDJOB leased b 0 DELAY 600 TTL 6000");
        let before = [&queued, &delayed, &leased, &once, &nacked, &dequeued, &last].map(|id| {
            (
                id.clone(),
                state(&mut client, id),
                shown(&mut client, id, "nacks"),
            )
        });
        drop(client);

        let server = restart(with_log(2), end(server, signal));
        let mut client = server.client();
        for (id, state_before, nacks) in &before {
            assert_eq!(&state(&mut client, id), state_before, "{id}\n{}", server.log());
            assert_eq!(&shown(&mut client, id, "nacks"), nacks, "{id}");
        }
        for gone in [&acked, &deleted] {
            assert_eq!(state(&mut client, gone), None);
        }
        assert_eq!(
            client
                .call(&["ADDJOB", "held", "b", "0"])
                .expect("a reply")
                .error(),
            Some("PAUSED Queue paused in input, try later"),
        );
        assert_eq!(drain(&mut client, "q"), ["queued", "last"]);
        assert_eq!(
            jobs(&call(&mut client, "GETJOB NOHANG FROM once leased dequeued")),
            []
        );
        let again = jobs(&call(&mut client, "GETJOB NOHANG WITHCOUNTERS FROM nacked"));
        assert_eq!(again[0].1, nacked);
        assert_eq!(
            jobs(&call(&mut client, "GETJOB NOHANG FROM once2"))[0].1,
            waiting_once
        );
        assert_eq!(server.info("persistence", "aof_enabled"), "1");
    }
}

#[test]
fn what_was_confirmed_survives_kill_9_under_load() {
    for fsync in ["no", "everysec", "always"] {
        let setup = with_log(2).argument("--appendfsync").argument(fsync);
        let mut server = start(setup.clone());
        let mut expected = BTreeSet::new();
        for round in 0..3 {
            let mut client = server.client();
            // Replies come in order: those that were read before the end are confirmed.
            let jobs_each = scaled(400);
            for number in 0..jobs_each {
                let (queue, body) = (format!("q{}", number % 7), format!("{round}-{number}"));
                client
                    .send(&["ADDJOB", &queue, &body, "0", "RETRY", "600"])
                    .expect("sent");
            }
            let confirmed = jobs_each - jobs_each / 4;
            for _ in 0..confirmed {
                let reply = client.read_reply().expect("a reply");
                expected.insert(reply.text().expect("an ID").to_owned());
            }
            server = restart(setup.clone(), end(server, libc::SIGKILL));
        }
        let mut client = server.client();
        for id in &expected {
            assert_eq!(
                state(&mut client, id).as_deref(),
                Some("queued"),
                "{fsync}\n{}",
                server.log()
            );
        }
        // What is acknowledged stays so, also when the next end comes at once.
        let acked: Vec<&String> = expected.iter().step_by(2).collect();
        for ids in acked.chunks(100) {
            let line: Vec<&str> = std::iter::once("ACKJOB")
                .chain(ids.iter().map(|id| id.as_str()))
                .collect();
            client.call_ok(&line).expect("acknowledged");
        }
        drop(client);
        let server = restart(setup, end(server, libc::SIGKILL));
        let mut client = server.client();
        for (at, id) in expected.iter().enumerate() {
            let queued = (at % 2 == 1).then(|| "queued".to_owned());
            assert_eq!(state(&mut client, id), queued, "{fsync}");
        }
    }
}

#[test]
fn a_job_at_most_once_is_never_handed_out_by_two_processes() {
    let setup = with_log(2);
    let mut server = start(setup.clone());
    let total = scaled(300);
    let mut client = server.client();
    for number in 0..total {
        add(&mut client, &format!("ADDJOB q{} {number} 0 RETRY 0", number % 5));
    }
    drop(client);
    let mut handed_out = BTreeSet::new();
    for _ in 0..3 {
        let mut client = server.client();
        for _ in 0..8 {
            client
                .send(&[
                    "GETJOB", "NOHANG", "COUNT", "7", "FROM", "q0", "q1", "q2", "q3", "q4",
                ])
                .expect("sent");
        }
        for _ in 0..4 {
            for (_, id, _) in jobs(&client.read_reply().expect("a reply")) {
                assert!(handed_out.insert(id), "handed out twice");
            }
        }
        server = restart(setup.clone(), end(server, libc::SIGKILL));
    }
    let mut client = server.client();
    loop {
        let some = jobs(&call(&mut client, "GETJOB NOHANG COUNT 100 FROM q0 q1 q2 q3 q4"));
        if some.is_empty() {
            break;
        }
        for (_, id, _) in some {
            assert!(handed_out.insert(id), "handed out twice");
        }
    }
    assert!(
        handed_out.len() >= total - 3 * 4 * 7,
        "{} of {total}",
        handed_out.len()
    );
}

#[test]
fn another_number_of_shards_keeps_everything_in_order() {
    let server = start(with_log(2));
    let mut client = server.client();
    let queues: Vec<String> = (0..9).map(|number| format!("queue-{number}")).collect();
    for number in 0..30 {
        for queue in &queues {
            add(&mut client, &format!("ADDJOB {queue} {number} 0 RETRY 600"));
        }
    }
    let leased = jobs(&call(&mut client, "GETJOB FROM queue-3"));
    call(&mut client, "PAUSE queue-8 out");
    drop(client);
    let mut folder = end(server, libc::SIGKILL);
    for (shards, signal) in [(3, libc::SIGTERM), (1, libc::SIGKILL), (4, libc::SIGTERM)] {
        let server = restart(with_log(shards), folder);
        let mut client = server.client();
        assert_eq!(state(&mut client, &leased[0].1).as_deref(), Some("active"));
        assert_eq!(call(&mut client, "QLEN queue-3").integer(), Some(29));
        let generations = fs::read_dir(server.path("")).expect("readable").filter(|entry| {
            let name = entry.as_ref().expect("readable").file_name();
            name.to_string_lossy().starts_with("gen-")
        });
        assert_eq!(
            generations.count(),
            1,
            "the old generation is gone\n{}",
            server.log()
        );
        drop(client);
        folder = end(server, signal);
    }
    let server = restart(with_log(4), folder);
    let mut client = server.client();
    for (at, queue) in queues.iter().enumerate().filter(|(at, _)| *at != 8) {
        let first = if at == 3 { 1 } else { 0 };
        let expected: Vec<String> = (first..30).map(|number| number.to_string()).collect();
        assert_eq!(drain(&mut client, queue), expected, "{queue}");
    }
    assert_eq!(jobs(&call(&mut client, "GETJOB NOHANG FROM queue-8")), []);
    assert_eq!(call(&mut client, "QLEN queue-8").integer(), Some(30));
}

#[test]
fn a_second_server_on_the_same_folder_is_refused() {
    let server = start(with_log(1));
    let id = add(&mut server.client(), "ADDJOB q b 0");
    let before = names_at(&server);
    for appendonly in ["yes", "no"] {
        let (code, output) = Setup::flags(&format!("--shards 2 --appendonly {appendonly} --pidfile p"))
            .argument("--dir")
            .argument(&server.path("").display().to_string())
            .fail();
        assert_eq!(code, Some(1), "{output}");
        assert_says(&output, &["another server keeps its log in", "LOCK", "--dir"]);
        assert_eq!(names_at(&server), before);
    }
    assert_eq!(state(&mut server.client(), &id).as_deref(), Some("queued"));
    // The lock ends with its process, however that ends.
    restart(with_log(1), end(server, libc::SIGKILL));
}

fn names_at(server: &Server) -> BTreeSet<String> {
    let entries = fs::read_dir(server.path("")).expect("readable");
    entries
        .map(|entry| {
            entry
                .expect("readable")
                .file_name()
                .to_string_lossy()
                .into_owned()
        })
        .collect()
}

#[test]
fn a_start_without_the_log_puts_it_aside() {
    let server = start(with_log(2));
    add(&mut server.client(), "ADDJOB q kept 0");
    let folder = end(server, libc::SIGTERM);
    let server = restart(Setup::flags("--shards 2"), folder);
    let mut client = server.client();
    assert_eq!(call(&mut client, "QLEN q").integer(), Some(0));
    assert_eq!(info(&mut client, "persistence", "aof_enabled"), "0");
    assert_says(
        &server.log(),
        &["CURRENT is now CURRENT.off", "gen-1", "shardq-cli aof"],
    );
    drop(client);
    // A later start with a log begins an empty one, and leaves that alone.
    let server = restart(with_log(2), end(server, libc::SIGTERM));
    let mut client = server.client();
    assert_eq!(call(&mut client, "QLEN q").integer(), Some(0));
    add(&mut client, "ADDJOB q new 0");
    drop(client);
    let server = restart(with_log(2), end(server, libc::SIGTERM));
    assert_eq!(drain(&mut server.client(), "q"), ["new"]);
    let folder = end(server, libc::SIGTERM);
    assert!(names(&folder).is_superset(&["CURRENT.off", "gen-1", "gen-2"].map(str::to_owned).into()));
    fs::rename(folder.path().join("CURRENT.off"), folder.path().join("CURRENT")).expect("there");
    let server = restart(with_log(2), folder);
    assert_eq!(drain(&mut server.client(), "q"), ["kept"]);
}

#[test]
fn the_log_goes_on_and_off_at_run_time() {
    let server = Server::start("--shards 2 --aof-segment-size 65536");
    let mut client = server.client();
    for number in 0..50 {
        add(&mut client, &format!("ADDJOB q{} {number} 0", number % 3));
    }
    let off = |client: &mut Client| info(client, "persistence", "aof_state");
    assert_eq!(off(&mut client), "off");
    assert!(!server.path("LOCK").exists(), "no log, no lock");
    call(&mut client, "CONFIG SET appendonly yes");
    eventually("the log counts", || off(&mut client) == "on");
    add(&mut client, "ADDJOB q0 last 0");
    let (code, output) = Setup::flags("--shards 1 --appendonly yes")
        .argument("--dir")
        .argument(&server.path("").display().to_string())
        .fail();
    assert_eq!(code, Some(1), "{output}");
    assert_says(&output, &["another server keeps its log in"]);
    drop(client);

    let server = restart(with_log(2), end(server, libc::SIGKILL));
    let mut client = server.client();
    let lengths = (0..3).map(|queue| call(&mut client, &format!("QLEN q{queue}")).integer());
    assert_eq!(lengths.collect::<Vec<_>>(), [Some(18), Some(17), Some(16)]);
    call(&mut client, "CONFIG SET appendonly no");
    assert!(server.path("CURRENT.off").exists() && !server.path("CURRENT").exists());
    add(&mut client, "ADDJOB q0 unlogged 0");
    // On again: what lives then is in it, in a generation of its own.
    call(&mut client, "CONFIG SET appendonly yes");
    eventually("the log counts", || off(&mut client) == "on");
    drop(client);
    let server = restart(with_log(2), end(server, libc::SIGKILL));
    let mut client = server.client();
    let bodies = drain(&mut client, "q0");
    assert_eq!(bodies.len(), 19);
    assert!(
        bodies.ends_with(&["last".to_owned(), "unlogged".to_owned()]),
        "{bodies:?}"
    );
}

#[test]
fn a_torn_tail_is_cut_and_kept() {
    let setup = with_log(1).argument("--appendfsync").argument("no");
    let server = start(setup.clone());
    let ids: Vec<String> = (0..20)
        .map(|number| add(&mut server.client(), &format!("ADDJOB q {number} 0")))
        .collect();
    let folder = end(server, libc::SIGKILL);
    let (segment, end_offset) = newest_end(&folder, 0);
    let file = fs::OpenOptions::new().write(true).open(&segment).expect("ours");
    let garbage = b"half of a record that power took away";
    let torn_at = end_offset.next_multiple_of(64);
    file.write_all_at(garbage, torn_at).expect("written");
    let setup_strict = setup.clone().argument("--aof-load-truncated").argument("no");
    let (output, folder) = fail(&setup_strict, folder);
    let name = segment
        .file_name()
        .expect("a file")
        .to_string_lossy()
        .into_owned();
    assert_says(&output, &["a torn tail", &name, "shardq-cli aof check"]);
    assert!(
        fs::read(&segment).expect("still there").ends_with(&[0]),
        "nothing was cut"
    );

    let server = restart(setup.clone(), folder);
    let mut client = server.client();
    for id in &ids {
        assert_eq!(
            state(&mut client, id).as_deref(),
            Some("queued"),
            "{}",
            server.log()
        );
    }
    assert_says(&server.log(), &["cut", &name, "a new store epoch"]);
    drop(client);
    let folder = end(server, libc::SIGTERM);
    let kept = names(&folder)
        .into_iter()
        .find(|kept| kept.starts_with(&format!("{name}.cut-")));
    let kept = fs::read(folder.path().join(kept.expect("what was cut is kept"))).expect("readable");
    assert!(kept.windows(garbage.len()).any(|window| window == garbage));
    // The next start finds nothing wrong.
    let server = restart(setup, folder);
    assert_eq!(call(&mut server.client(), "QLEN q").integer(), Some(20));
    assert!(!server.log().contains("cut"), "{}", server.log());
}

#[test]
fn damage_of_what_was_confirmed_stops_the_start() {
    let server = start(with_log(1));
    let mut client = server.client();
    let body = "x".repeat(1000);
    for _ in 0..200 {
        add(&mut client, &format!("ADDJOB q {body} 0"));
    }
    drop(client);
    let folder = end(server, libc::SIGTERM);
    let oldest = segments(&folder, 0).remove(0);
    let file = fs::OpenOptions::new().write(true).open(&oldest).expect("ours");
    file.write_all_at(b"damaged", 5000).expect("written");
    let before = names(&folder);
    let (output, folder) = fail(&with_log(1), folder);
    let name = oldest.file_name().expect("a file").to_string_lossy().into_owned();
    assert_says(
        &output,
        &[&name, "what was confirmed is affected", "shardq-cli aof check"],
    );
    assert_eq!(names(&folder), before, "nothing is put aside");
    // The same when the file is gone.
    fs::remove_file(&oldest).expect("ours");
    let (output, _) = fail(&with_log(1), folder);
    assert_says(&output, &[&name, "missing"]);
}

#[test]
fn a_folder_that_is_not_understood_is_left_alone() {
    let server = start(with_log(1));
    add(&mut server.client(), "ADDJOB q kept 0");
    let folder = end(server, libc::SIGTERM);
    let current = folder.path().join("CURRENT");
    let text = fs::read_to_string(&current).expect("it is there");
    fs::write(&current, text.replace("shards 1", "shards 2")).expect("ours");
    for setup in [with_log(1), Setup::flags("--shards 1")] {
        let folder = Folder::new();
        let dir = current.parent().expect("a folder").display().to_string();
        let (output, _) = fail(&setup.argument("--dir").argument(&dir), folder);
        assert_says(
            &output,
            &["CURRENT is not what a server wrote", "shardq-cli aof check"],
        );
    }
    fs::write(&current, text).expect("ours");
    fs::create_dir(folder.path().join("gen-9")).expect("ours");
    fs::write(folder.path().join("gen-1/notes.txt"), "mine").expect("ours");
    let server = restart(with_log(1), folder);
    assert_eq!(drain(&mut server.client(), "q"), ["kept"]);
    assert_says(
        &server.log(),
        &["gen-9 deleted", "notes.txt is no segment of a log"],
    );
    assert!(server.path("gen-1/notes.txt").exists());
}

#[test]
fn acknowledged_jobs_give_their_space_back() {
    let setup = with_log(1).argument("--auto-aof-rewrite-min-size").argument("0");
    let server = start(setup.clone());
    let mut client = server.client();
    let kept = add(&mut client, "ADDJOB kept b 0 RETRY 600");
    let body = "x".repeat(4000);
    for _ in 0..scaled(500) {
        let id = add(&mut client, &format!("ADDJOB q {body} 0 RETRY 600"));
        call(&mut client, &format!("ACKJOB {id}"));
    }
    eventually("old segments are gone", || {
        server.info("persistence", "aof_segments_removed") != "0"
    });
    drop(client);
    let server = restart(setup, end(server, libc::SIGKILL));
    let mut client = server.client();
    assert_eq!(state(&mut client, &kept).as_deref(), Some("queued"));
    assert_eq!(call(&mut client, "QLEN q").integer(), Some(0));
}
