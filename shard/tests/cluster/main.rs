//! The simulator of clusters: nodes of several shards, each a whole one, with a network between them that loses, doubles, reorders
//! and parts, and clients that add, fetch and end jobs on any of them. Everything follows from a seed.
//!
//! Reading order: `network` (links, and what becomes of messages) - `registry` (who takes whom for dead) - `world` (all of it in virtual
//! time) - `load` (what clients do) - `ledger` (what they were told, and what follows from it) - `troubles` (what goes wrong) - `run`,
//! `ending` - `plant` (mistakes made on purpose). `SHARDQ_SEED` repeats one run, `SHARDQ_TEST_SCALE` makes more of them,
//! `SHARDQ_TRACE=1` tells what happens.

#[path = "../support/mod.rs"]
mod support;

mod ending;
mod ledger;
mod load;
mod network;
mod plant;
mod registry;
mod run;
mod troubles;
mod wire;
mod world;

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};

use plant::Plant;
use run::Run;
use support::number_from_environment;
use troubles::Class;

/// What happened how often.
type Tally = BTreeMap<&'static str, u64>;

fn scale() -> u64 {
    number_from_environment("SHARDQ_TEST_SCALE").unwrap_or(1).max(1)
}

/// Runs so many seeds; the first that fails, and how.
fn runs(class: Class, count: u64, plant: Plant, tally: &mut Tally) -> Option<(u64, String)> {
    let only = number_from_environment("SHARDQ_SEED");
    let seeds = only.map_or(0..count, |seed| seed..seed + 1);
    for seed in seeds {
        let mut run = Run::new(seed, class, plant);
        let ended = catch_unwind(AssertUnwindSafe(|| run.run()));
        for (what, count) in &run.ledger.tally {
            *tally.entry(what).or_default() += count;
        }
        *tally.entry("messages").or_default() += run.world.network.sent;
        match ended {
            Ok(Ok(())) => {}
            Ok(Err(why)) => return Some((seed, why)),
            Err(_) => return Some((seed, "it panicked".into())),
        }
    }
    None
}

/// Runs of a class hold, and have seen what they are for.
fn holds(class: Class, count: u64, seen: &[&str]) {
    let mut tally = Tally::new();
    let failed = runs(class, count * scale(), Plant::None, &mut tally);
    println!("{class:?}: {tally:?}");
    assert_eq!(failed, None, "SHARDQ_SEED repeats it");
    let whole = number_from_environment("SHARDQ_SEED").is_none();
    for what in seen {
        let happened = tally.get(what).is_some_and(|&count| count > 0);
        assert!(happened || !whole, "no run had: {what}");
    }
}

#[test]
fn without_faults_each_job_comes_once() {
    let seen = ["added", "acked", "delivered again", "once, elsewhere"];
    holds(Class::Quiet, 60, &seen);
}

#[test]
fn bad_networks_lose_nothing() {
    holds(Class::Lossy, 40, &["bad networks", "once, elsewhere"]);
}

#[test]
fn partitions_lose_nothing() {
    holds(Class::Partitions, 40, &["partitions", "once, elsewhere"]);
}

#[test]
fn deaths_lose_nothing_that_has_copies_left() {
    holds(Class::Crashes, 40, &["nodes lost", "restarts", "once, elsewhere"]);
}

#[test]
fn all_at_once_lose_nothing() {
    holds(Class::All, 20, &["nodes lost", "partitions", "bad networks"]);
}

/// The simulator sees: each of these mistakes is found within some hundred runs.
#[test]
fn planted_mistakes_are_found() {
    let planted = [
        (Plant::LostAck, Class::Quiet),
        (Plant::LostCopy, Class::Crashes),
        (Plant::EarlyDelete, Class::Crashes),
        (Plant::SameEpoch, Class::Crashes),
        (Plant::WrongAnswer, Class::Quiet),
    ];
    for (plant, class) in planted {
        let found = runs(class, 300, plant, &mut Tally::new());
        println!("{plant:?}: {found:?}");
        assert!(found.is_some(), "{plant:?} is not seen");
    }
}
