//! The simulator of clusters: nodes of several shards, each a whole one, with a network between them that loses, doubles, reorders
//! and parts, disks that fail, an operator, and clients that add, fetch and end jobs on any of them. Everything follows from a seed.
//!
//! Reading order: `network` (links, and what becomes of messages) - `world` (all of it in virtual time) - `load` (what clients do) -
//! `ledger` (what they were told, and what follows from it) - `troubles` (what goes wrong) - `operator` (who comes and goes) - `run`,
//! `ending` - `seeds` - `regressions`. `SHARDQ_SEED` repeats one run, `SHARDQ_TEST_SCALE` makes more of them, from `SHARDQ_FIRST_SEED` (0) on,
//! `SHARDQ_TRACE=1` tells what happens; `command` is the same as a command: `cargo run --release -p shard --example sim -- --help`.
//!
//! Mistakes are made in the product (`shard::plant`), to prove that the checks see them.

#[path = "../support/mod.rs"]
mod support;

mod ending;
mod ledger;
mod load;
mod network;
mod operator;
mod regressions;
mod run;
mod seeds;
mod troubles;
mod wire;
mod world;

use seeds::{Tally, run_seeds};
use shard::plant::Plant;
use support::number_from_environment;
use troubles::Class;

/// Seeds within which a mistake is found.
const FOUND_WITHIN: u64 = 300;

fn scale() -> u64 {
    number_from_environment("SHARDQ_TEST_SCALE").unwrap_or(1).max(1)
}

/// Runs of a class hold, and have seen what they are for.
fn holds(class: Class, count: u64, seen: &[&str]) {
    let only = number_from_environment("SHARDQ_SEED");
    let first = number_from_environment("SHARDQ_FIRST_SEED").unwrap_or(0);
    let seeds = only.map_or(first..first + count * scale(), |seed| seed..seed + 1);
    let mut tally = Tally::new();
    let failed = run_seeds(class, seeds.clone(), None, &mut tally);
    println!("{class:?}, seeds {seeds:?}: {tally:?}");
    assert_eq!(failed, None, "SHARDQ_SEED repeats it");
    for what in seen {
        let happened = tally.get(what).is_some_and(|&count| count > 0);
        assert!(happened || only.is_some(), "no run had: {what}");
    }
}

#[test]
fn without_faults_each_job_comes_once() {
    let seen = [
        "added",
        "acked",
        "delivered again",
        "pauses",
        "looks at all nodes",
        "once, elsewhere",
        "external",
    ];
    holds(Class::Quiet, 60, &seen);
}

#[test]
fn bad_networks_lose_nothing() {
    holds(Class::Lossy, 30, &["bad networks", "once, elsewhere", "external"]);
}

#[test]
fn partitions_lose_nothing() {
    holds(
        Class::Partitions,
        30,
        &["partitions", "once, elsewhere", "external"],
    );
}

#[test]
fn deaths_lose_nothing_that_has_copies_left() {
    holds(
        Class::Crashes,
        30,
        &[
            "nodes lost",
            "restarts",
            "nodes die in turn",
            "once, elsewhere",
            "external",
        ],
    );
}

#[test]
fn bad_disks_lose_nothing_that_has_copies_left() {
    holds(Class::Disks, 20, &["bad disks", "fell", "-MISCONF"]);
}

#[test]
fn nodes_that_come_and_go_lose_nothing() {
    holds(Class::Changes, 20, &["RESETs", "FORGETs", "left", "joins"]);
}

#[test]
fn all_at_once_lose_nothing() {
    holds(
        Class::All,
        20,
        &["nodes lost", "partitions", "bad networks", "left"],
    );
}

/// The simulator sees: each of these mistakes is found within some hundred runs.
#[test]
fn planted_mistakes_are_found() {
    let planted = [
        (Plant::LostAck, Class::Quiet),
        (Plant::HastyGotAck, Class::Quiet),
        (Plant::LostStanding, Class::Quiet),
        (Plant::SkippedHolder, Class::Quiet),
        (Plant::AnyEpoch, Class::Crashes),
        (Plant::SameEpoch, Class::Crashes),
        (Plant::WrongAnswer, Class::Quiet),
        (Plant::NoRepair, Class::Crashes),
        (Plant::LostCopy, Class::Crashes),
        (Plant::EarlyUnlink, Class::Disks),
        (Plant::HastyLeave, Class::Changes),
    ];
    for (plant, class) in planted {
        let found = run_seeds(class, 0..FOUND_WITHIN, Some(plant), &mut Tally::new());
        let (seed, why) = found.unwrap_or_else(|| panic!("{plant:?} is not seen"));
        let why: String = why.chars().take(160).collect();
        println!("{plant:?} is found at seed {seed} of {class:?}: {why}");
    }
}
