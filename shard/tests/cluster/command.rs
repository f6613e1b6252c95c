//! The simulator of clusters as a command: runs seeds of a class, with a mistake in the product or none.
//!
//! `cargo run --release -p shard --example sim -- --seed 7 --class Crashes`

#[path = "../support/mod.rs"]
mod support;

mod ending;
mod ledger;
mod load;
mod network;
mod operator;
mod run;
mod seeds;
mod troubles;
mod wire;
mod world;

use std::cell::Cell;
use std::process::ExitCode;

use seeds::{Tally, run_seeds};
use shard::plant::Plant;
use troubles::Class;

const USAGE: &str = "sim [--seed N] [--count N] [--class NAME|all] [--plant NAME]

Runs --count seeds (1), from --seed (0) on, of a class (all), and tells the first that fails, and how. SHARDQ_TRACE=1 tells what happens.";

const CLASSES: [Class; 7] = [
    Class::Quiet,
    Class::Lossy,
    Class::Partitions,
    Class::Crashes,
    Class::Disks,
    Class::Changes,
    Class::All,
];

thread_local! {
    /// What runs.
    static CURRENT: Cell<Option<(Class, u64)>> = const { Cell::new(None) };
}

struct Wanted {
    seed: u64,
    count: u64,
    classes: Vec<Class>,
    plant: Option<Plant>,
}

/// The value of this name, as `Debug` writes it, letters of either case.
fn named<T: std::fmt::Debug + Copy>(all: &[T], name: &str) -> Result<T, String> {
    let is_it = |one: &&T| format!("{one:?}").eq_ignore_ascii_case(name);
    all.iter()
        .find(is_it)
        .copied()
        .ok_or_else(|| format!("{name} is none of {all:?}"))
}

fn wanted(words: &[String]) -> Result<Wanted, String> {
    let mut wanted = Wanted {
        seed: 0,
        count: 1,
        classes: CLASSES.to_vec(),
        plant: None,
    };
    for pair in words.chunks(2) {
        let [name, value] = pair else {
            return Err(USAGE.to_owned());
        };
        let number = || value.parse().map_err(|_| format!("{value} is no number"));
        match name.as_str() {
            "--seed" => wanted.seed = number()?,
            "--count" => wanted.count = number()?,
            "--class" if value == "all" => {}
            "--class" => wanted.classes = vec![named(&CLASSES, value)?],
            "--plant" => wanted.plant = Some(named(&Plant::ALL, value)?),
            _ => return Err(USAGE.to_owned()),
        }
    }
    Ok(wanted)
}

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let Wanted {
        seed,
        count,
        classes,
        plant,
    } = match wanted(&words) {
        Ok(wanted) => wanted,
        Err(why) => {
            eprintln!("{why}");
            return ExitCode::from(2);
        }
    };
    // A release ends at a panic: whatever runs then is named before.
    let tell = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        tell(panic);
        if let Some((class, seed)) = CURRENT.get() {
            println!("{class:?}, seed {seed} panics");
        }
    }));
    let mut failed = false;
    for class in classes {
        let mut tally = Tally::new();
        let found = (seed..seed + count).find_map(|seed| {
            CURRENT.set(Some((class, seed)));
            run_seeds(class, [seed], plant, &mut tally)
        });
        println!("{class:?}, seeds {seed}..{}: {tally:?}", seed + count);
        if let Some((seed, why)) = found {
            failed = true;
            println!("{class:?}, seed {seed} fails: {why}");
        }
    }
    ExitCode::from(u8::from(failed))
}
