//! The simulator of a node and its disk: random work of several clients, an end at a random moment, another start, and a
//! comparison with what the clients were told. Everything follows from a seed.
//!
//! ```text
//! seed -> lives: start (sometimes disturbed) -> visit: what is there is what was told -> work -> kill, power loss, stop -> start ...
//!                                                                             \-> probes: the same with a copy of the disk, at any moment
//! ```
//!
//! Reading order: `support/machine` (the node and its disk in virtual time) - `load` (what clients do) - `facts`, `promises`, `ledger` (what
//! they know) - `visit` (what is there, and how it comes out) - `run`. `SHARDQ_SEED` repeats one run, `SHARDQ_TEST_SCALE` makes more of
//! them, from `SHARDQ_FIRST_SEED` (0) on, `SHARDQ_TRACE=1` tells what happens.

#[path = "../support/mod.rs"]
mod support;

mod facts;
mod ledger;
mod load;
mod promises;
mod run;
mod stops;
mod visit;

use std::panic::{AssertUnwindSafe, catch_unwind};

use run::{Run, Tally};
use support::{Plant, number_from_environment};

/// Runs at scale 1.
const RUNS: u64 = 200;

fn scale() -> u64 {
    number_from_environment("SHARDQ_TEST_SCALE").unwrap_or(1).max(1)
}

/// Runs so many seeds; the first that fails, and how.
fn runs(count: u64, plant: Plant, flips: bool, tally: &mut Tally) -> Option<(u64, String)> {
    let only = number_from_environment("SHARDQ_SEED");
    let first = number_from_environment("SHARDQ_FIRST_SEED").unwrap_or(0);
    let seeds = only.map_or(first..first + count, |seed| seed..seed + 1);
    for seed in seeds {
        let mut run = Run::new(seed);
        let ended = catch_unwind(AssertUnwindSafe(|| run.run(plant, flips)));
        for (what, count) in run.tally {
            *tally.entry(what).or_default() += count;
        }
        match ended {
            Ok(Ok(())) => {}
            Ok(Err(why)) => return Some((seed, why)),
            Err(_) => return Some((seed, "it panicked".into())),
        }
    }
    None
}

#[test]
fn what_clients_were_told_survives() {
    let mut tally = Tally::new();
    let failed = runs(RUNS * scale(), Plant::None, false, &mut tally);
    println!("{tally:?}");
    assert_eq!(failed, None, "SHARDQ_SEED repeats it");
    let whole = number_from_environment("SHARDQ_SEED").is_none();
    for what in [
        "-MISCONF",
        "circles in vain",
        "cut",
        "died",
        "end while beginning",
        "end while reading",
        "end while repairing",
        "end while resharding",
        "end while switching on",
        "failed writes",
        "fewer shards",
        "kills",
        "more shards",
        "rests",
    ] {
        let seen = tally.get(what).is_some_and(|&count| count > 0);
        assert!(seen || !whole, "no run had: {what}");
    }
}

/// Damage of what was synced is never lost silently: the start stops by name, or what it cuts is named and kept.
#[test]
fn flipped_bits_are_never_lost_silently() {
    let mut tally = Tally::new();
    let failed = runs(RUNS / 2 * scale(), Plant::None, true, &mut tally);
    println!("{tally:?}");
    assert_eq!(failed, None, "SHARDQ_SEED repeats it");
}

/// The simulator sees: each of these mistakes is found within some hundred runs.
#[test]
fn planted_mistakes_are_found() {
    for plant in [
        Plant::LyingSync,
        Plant::LyingFolderSync,
        Plant::EarlyWrites,
        Plant::SkippedSegment,
        Plant::SkippedShard,
        Plant::WallClock,
    ] {
        let found = runs(300, plant, false, &mut Tally::new());
        println!("{plant:?}: {found:?}");
        assert!(found.is_some(), "{plant:?} is not seen");
    }
}
