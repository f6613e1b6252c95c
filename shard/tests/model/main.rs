//! The model test: random commands, time steps, clock jumps, disconnects and mesh delays over several shards and sessions,
//! against a naive queue that must agree after every step.
//!
//! Runs whose clients live on shards without queues are exact: the [`Witness`](witness::Witness) sees all that home shards are
//! told and lets the [`Reference`](reference::Reference) do the same. In the other runs, where clients and queues share shards, the
//! [`Ledger`](ledger::Ledger) keeps watch alone. `SHARDQ_SEED` repeats one run; `SHARDQ_TEST_SCALE` makes more of them.

#[path = "../support/mod.rs"]
mod support;

mod ending;
mod ledger;
mod load;
mod reference;
mod replies;
mod run;
mod witness;

use std::collections::BTreeMap;

use run::{Plan, Run};
use support::{Chance, number_from_environment};

/// Runs at scale 1.
const RUNS: u64 = 120;

/// Where clients and queues are, and how much happens, all from the seed.
fn plan(seed: u64) -> Plan {
    let mut chance = Chance::new(seed ^ 0x91a4);
    let (shards, sessions_on, queues_on): (u16, Vec<u16>, Vec<u16>) = match chance.below(10) {
        0 => (2, vec![0], vec![1]),
        1 | 2 => (3, vec![0], vec![1, 2]),
        3 => (4, vec![0], vec![1, 2, 3]),
        4 => (3, vec![0, 1], vec![2]),
        5 | 6 => (4, vec![0, 1], vec![2, 3]),
        7 => (1, vec![0], vec![0]),
        8 => (2, vec![0, 1], vec![0, 1]),
        _ => (4, vec![0, 1, 2, 3], vec![0, 1, 2, 3]),
    };
    let clients = chance.between(1, 6) as usize;
    let steps = chance.between(200, 1200) as usize;
    let flushes = chance.percent(20);
    Plan {
        shards,
        sessions_on,
        queues_on,
        clients,
        steps,
        flushes,
    }
}

#[test]
fn shards_agree_with_a_naive_queue() {
    if let Some(seed) = number_from_environment("SHARDQ_SEED") {
        println!("{:?}", Run::new(seed, plan(seed)).run());
        return;
    }
    let runs = RUNS * number_from_environment("SHARDQ_TEST_SCALE").unwrap_or(1);
    let (mut jobs, mut seen) = (0, BTreeMap::<&str, u64>::new());
    for seed in 0..runs {
        let (added, kinds) = Run::new(seed, plan(seed)).run();
        jobs += added;
        kinds
            .into_iter()
            .for_each(|(kind, count)| *seen.entry(kind).or_default() += count);
    }
    println!("{runs} runs, {jobs} jobs, {seen:?}");
    for kind in [
        "claims granted",
        "claims refused",
        "waits",
        "late offers",
        "ends with nothing",
        "further rounds",
        "stands behind",
        "ends behind another",
    ] {
        assert!(seen.contains_key(kind), "these runs show nothing of: {kind}");
    }
}
