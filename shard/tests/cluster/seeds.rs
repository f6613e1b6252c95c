//! Runs of many seeds.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};

use shard::plant::{self, Plant};

use crate::run::Run;
use crate::troubles::Class;

/// What happened how often.
pub type Tally = BTreeMap<&'static str, u64>;

/// Runs these seeds of a class, with a mistake in the product or none; the first that fails, and how.
pub fn run_seeds(
    class: Class,
    seeds: impl IntoIterator<Item = u64>,
    plant: Option<Plant>,
    tally: &mut Tally,
) -> Option<(u64, String)> {
    for seed in seeds {
        plant::set(plant);
        let mut run = Run::new(seed, class);
        let ended = catch_unwind(AssertUnwindSafe(|| run.run()));
        plant::set(None);
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
