//! Many clients, and a server that is killed again and again on the same data folder: nothing that was confirmed is lost, nothing that is
//! done comes back, and what is to be handed out at most once is.
//!
//! `traffic` is what clients do and note, `found` what the server holds after it was started again, `ledger` what must hold between
//! the two. A round: clients work, the server ends at a random moment, is started again, and is looked at; the jobs stay for
//! the next round. In the end all that may be handed out is, once, and nothing is left. `SHARDQ_SEED` gives the plan of one seed
//! again (moments differ: the machine decides them); `SHARDQ_TEST_SCALE` makes more rounds.

mod found;
mod full_disk;
mod ledger;
#[path = "../support/mod.rs"]
mod support;
mod traffic;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use found::Found;
use ledger::Ledger;
use support::chance::Chance;
use support::{
    Folder, Server, Setup, call, end, eventually, free_port, info, jobs, number_from_environment, restart,
    scaled, start,
};
use tools::client::Client;
use traffic::{Log, PAUSED, QUEUES, Worker};

/// Connections that work at the same time.
const WORKERS: usize = 6;
/// Jobs above which clients rather take than add.
const MANY_JOBS: usize = 1_500;

/// How a server is set up in a round, and how the round ends.
struct Plan {
    name: &'static str,
    rounds: usize,
    fsync: &'static str,
    /// Shards of the first round, of the second, and so on, over again.
    shards: &'static [u16],
    /// The log is switched off and on in some rounds.
    switches: bool,
}

impl Plan {
    fn setup(&self, round: usize) -> Setup {
        let shards = self.shards[round % self.shards.len()];
        Setup::flags(&format!(
            "--shards {shards} --appendonly yes --appendfsync {} --aof-segment-size 65536 \
             --auto-aof-rewrite-min-size 0",
            self.fsync
        ))
    }
}

#[test]
fn killed_under_always() {
    run(&Plan {
        name: "always",
        rounds: 12,
        fsync: "always",
        shards: &[2],
        switches: false,
    });
}

#[test]
fn killed_under_everysec() {
    run(&Plan {
        name: "everysec",
        rounds: 12,
        fsync: "everysec",
        shards: &[1],
        switches: false,
    });
}

#[test]
fn killed_under_no() {
    run(&Plan {
        name: "no",
        rounds: 12,
        fsync: "no",
        shards: &[2],
        switches: false,
    });
}

#[test]
fn killed_with_other_shards_each_time() {
    run(&Plan {
        name: "shards",
        rounds: 12,
        fsync: "everysec",
        shards: &[2, 3, 1],
        switches: false,
    });
}

#[test]
fn killed_while_the_log_goes_off_and_on() {
    run(&Plan {
        name: "switches",
        rounds: 6,
        fsync: "everysec",
        shards: &[2],
        switches: true,
    });
}

fn run(plan: &Plan) {
    let seed = number_from_environment("SHARDQ_SEED").unwrap_or_else(chosen_seed);
    eprintln!("{}: SHARDQ_SEED={seed}", plan.name);
    let mut chance = Chance::new(seed);
    let mut ledger = Ledger::new();
    let mut server = start(plan.setup(0));
    for round in 0..scaled(plan.rounds) {
        let (log, folder, ending) = play(plan, round, server, &ledger, &mut chance);
        let setup = plan.setup(round + 1);
        server = restart(setup.clone(), interrupt_start(&setup, folder, &mut chance));
        let found = Found::at(&mut server.client());
        let verdict = match ending {
            Ending::Killed => ledger.check(log, &found, false),
            Ending::Stopped => ledger.check(log, &found, true),
            Ending::WithoutLog => ledger.forget(&log, &found),
        };
        if let Err(wrong) = verdict {
            panic!(
                "{} round {round} (SHARDQ_SEED={seed}): {wrong}\n{:?}",
                plan.name,
                ledger.tally()
            );
        }
    }
    empty(plan.setup(0), server, &ledger);
    eprintln!("{}: {:?}", plan.name, ledger.tally());
    // Where the log went off there was little to look at.
    if ledger.tally().rounds >= 10 {
        ledger.tally().assert_all_happened();
    }
}

/// Another one each time: what one run does not meet, another may.
fn chosen_seed() -> u64 {
    use std::hash::{BuildHasher, Hasher};
    std::collections::hash_map::RandomState::new()
        .build_hasher()
        .finish()
        % 1_000_000
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Ending {
    Killed,
    Stopped,
    /// Killed while no log counted.
    WithoutLog,
}

/// A round: clients work until the server ends, at some moment.
fn play(
    plan: &Plan,
    round: usize,
    server: Server,
    ledger: &Ledger,
    chance: &mut Chance,
) -> (Log, Folder, Ending) {
    let live = ledger.live();
    let quiet = Arc::new(AtomicBool::new(false));
    let adds_percent = if live.len() > MANY_JOBS { 5 } else { 45 };
    let workers: Vec<_> = (0..WORKERS)
        .map(|number| {
            let mut chance = Chance::new(chance.next());
            let known = (0..if live.is_empty() { 0 } else { 40 }).map(|_| chance.pick(&live).clone());
            let known: BTreeSet<String> = known.collect();
            let worker = Worker {
                address: server.address(),
                name: format!("{round}.{number}"),
                adds_percent,
                pauses: number == 0,
                known: known.into_iter().collect(),
                leased: Vec::new(),
                made: 0,
                log: Log::default(),
                quiet: Arc::clone(&quiet),
                chance,
            };
            std::thread::spawn(move || worker.run())
        })
        .collect();
    let counts = disturb(plan, &server, chance);
    if chance.percent(40) {
        quiet.store(true, Ordering::Relaxed);
        wait(chance, 80);
    }
    let signal = if chance.percent(15) {
        libc::SIGTERM
    } else {
        libc::SIGKILL
    };
    let mut folder = end(server, signal);
    let mut log = Log::default();
    for worker in workers {
        log.extend(worker.join().expect("a worker ends with the server"));
    }
    let ending = match signal {
        _ if !counts && !folder.path().join("CURRENT").exists() => Ending::WithoutLog,
        libc::SIGTERM => Ending::Stopped,
        _ => Ending::Killed,
    };
    folder = forget_the_log_put_aside(folder);
    (log, folder, ending)
}

/// What an administrator may do meanwhile; how long it takes is the length of the round. Whether a log certainly counts in the end.
fn disturb(plan: &Plan, server: &Server, chance: &mut Chance) -> bool {
    let mut admin = server.client();
    wait(chance, 150);
    if chance.percent(40) {
        call(&mut admin, "BGREWRITEAOF");
        wait(chance, 150);
    }
    if !plan.switches || chance.percent(20) {
        wait(chance, 200);
        return true;
    }
    call(&mut admin, "CONFIG SET appendonly no");
    if chance.percent(20) {
        return false;
    }
    wait(chance, 50);
    call(&mut admin, "CONFIG SET appendonly yes");
    if chance.percent(30) {
        wait(chance, 20);
        return false;
    }
    eventually("the log counts", || {
        info(&mut admin, "persistence", "aof_state") == "on"
    });
    wait(chance, 100);
    true
}

fn wait(chance: &mut Chance, most_ms: u64) {
    std::thread::sleep(Duration::from_micros(chance.between(1, most_ms * 1000)));
}

/// What was put aside is of no use to any later start.
fn forget_the_log_put_aside(folder: Folder) -> Folder {
    let aside = folder.path().join("CURRENT.off");
    if aside.exists() {
        std::fs::remove_file(aside).expect("ours");
    }
    folder
}

/// In some rounds the next process is killed while it starts.
fn interrupt_start(setup: &Setup, folder: Folder, chance: &mut Chance) -> Folder {
    let mut folder = folder;
    while chance.percent(25) {
        let server = setup.spawn(free_port(), folder);
        std::thread::sleep(Duration::from_micros(chance.between(1_000, 60_000)));
        server.signal(libc::SIGKILL);
        let mut server = server;
        server.wait_exit();
        folder = server.into_folder();
    }
    folder
}

/// The end: all that may still be handed out is, once; then nothing is left, nor after another start.
fn empty(setup: Setup, server: Server, ledger: &Ledger) {
    let mut client = server.client();
    call(&mut client, &format!("PAUSE {} none", QUEUES[PAUSED]));
    check_counts(&mut client);
    check_order(&mut client, ledger);
    let found = Found::at(&mut client);
    for ids in found.jobs.keys().collect::<Vec<_>>().chunks(100) {
        let ids: Vec<&str> = ids.iter().map(|id| id.as_str()).collect();
        call(&mut client, &format!("ENQUEUE {}", ids.join(" ")));
    }
    let mut drained = BTreeSet::new();
    let take_all = format!("GETJOB NOHANG COUNT 100 FROM {}", QUEUES.join(" "));
    loop {
        let some = jobs(&call(&mut client, &take_all));
        if some.is_empty() {
            break;
        }
        let ids: Vec<&str> = some.iter().map(|(_, id, _)| id.as_str()).collect();
        call(&mut client, &format!("ACKJOB {}", ids.join(" ")));
        for id in ids {
            assert!(found.jobs.contains_key(id), "{id} was not there");
            assert!(!ledger.is_taken(id), "RETRY 0, handed out twice: {id}");
            assert!(drained.insert(id.to_owned()), "{id} is handed out after ACKJOB");
        }
    }
    for id in found.jobs.keys().filter(|id| ledger.is_deliverable(id)) {
        assert!(drained.contains(id), "{id} is there and not handed out");
    }
    // What is left are RETRY 0 jobs that were handed out, and jobs of others that ended meanwhile.
    for id in found.jobs.keys().filter(|id| !drained.contains(*id)) {
        call(&mut client, &format!("DELJOB {id}"));
    }
    assert_empty(&mut client);
    drop(client);
    let server = restart(setup, end(server, libc::SIGKILL));
    assert_empty(&mut server.client());
}

fn assert_empty(client: &mut Client) {
    assert_eq!(info(client, "jobs", "registered_jobs"), "0");
    assert_eq!(info(client, "jobs", "queued_jobs"), "0");
    for queue in QUEUES {
        assert_eq!(
            call(client, &format!("QLEN {queue}")).integer(),
            Some(0),
            "{queue}"
        );
    }
    assert_eq!(Found::at(client).jobs.len(), 0);
}

/// QLEN and INFO count what JSCAN lists. Leases and lives end meanwhile, so it may take several looks.
fn check_counts(client: &mut Client) {
    eventually("the counts agree", || {
        let found = Found::at(client);
        let agrees = |queue: &str| {
            let queued = found.jobs.values().filter(|job| job.queued && job.queue == queue);
            let length = call(client, &format!("QLEN {queue}"));
            length.integer() == Some(queued.count() as i64)
        };
        QUEUES.into_iter().all(agrees)
            && info(client, "jobs", "registered_jobs") == found.jobs.len().to_string()
    });
}

/// The order of creation outlives every restart: no job stands behind one whose ADDJOB was sent after its own was answered.
fn check_order(client: &mut Client, ledger: &Ledger) {
    for queue in QUEUES {
        let queued = jobs(&call(client, &format!("QPEEK {queue} 1000000")));
        let mut latest_sent = (0, String::new());
        for (_, id, _) in queued {
            let (sent, known) = ledger.added_between(&id).expect("it was found");
            assert!(known >= latest_sent.0, "{id} stands behind {}", latest_sent.1);
            latest_sent = latest_sent.max((sent, id));
        }
    }
}
