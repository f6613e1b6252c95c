//! Instructions of each command of a job's life, from the bytes of its request to those of its reply, against those of the last time.
//!
//! Runs this program under callgrind, once for each figure and number of rounds; the difference of two numbers of rounds leaves
//! out what a start costs. Counts differ by a few in a thousand between machines (the C library chooses its `memcpy` by the
//! processor), and by more between compilers: then `write` makes the file anew.

use std::collections::BTreeMap;
use std::fs;
use std::io::ErrorKind;
use std::process::{Command, ExitCode};

/// The figures of the last time: pipeline, command and count, a line each.
const FILE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/benches/requests/instructions.txt");
const HEAD: &str = "\
# Instructions of a request: pipeline, command (-log: with a log), count.
# Made by: cargo bench --bench requests -- instructions write
";
/// Growth that fails.
const MOST_GROWTH_PERCENT: u64 = 5;
const PIPELINES: [u64; 3] = [1, 16, 64];
/// Commands, and the functions that make a round of each.
const COMMANDS: [(&str, &str); 3] = [("ADDJOB", "add"), ("GETJOB", "get"), ("ACKJOB", "acknowledge")];
/// Jobs of the shorter run of the two, and how many more the longer one has.
const JOBS: u64 = 6_400;

type Figures = BTreeMap<(u64, String), u64>;

/// Counts, shows, and compares with the file, or writes that.
pub fn check(write: bool) -> ExitCode {
    let before = if write { Figures::new() } else { known() };
    let now = match count_all() {
        Ok(now) => now,
        Err(why) => {
            eprintln!("{why}");
            return ExitCode::FAILURE;
        }
    };
    if write {
        let lines = now
            .iter()
            .map(|((pipeline, name), count)| format!("{pipeline} {name} {count}\n"));
        let text = HEAD.to_owned() + &lines.collect::<String>();
        fs::write(FILE, text).expect("the file can be written");
    }
    let mut grown = false;
    println!("pipeline  command     instructions  before");
    for ((pipeline, name), &count) in &now {
        let old = before.get(&(*pipeline, name.clone())).copied();
        let grows = old.is_some_and(|old| count * 100 > old * (100 + MOST_GROWTH_PERCENT));
        let mark = if grows { "  GROWN" } else { "" };
        let old = old.map_or("-".into(), |old| old.to_string());
        println!("{pipeline:8}  {name:10}  {count:12}  {old:>6}{mark}");
        grown |= grows;
    }
    if grown {
        eprintln!("more than {MOST_GROWTH_PERCENT} % above {FILE}");
        return ExitCode::FAILURE;
    }
    ExitCode::SUCCESS
}

/// The figures of the file.
pub fn known() -> Figures {
    let text = fs::read_to_string(FILE).expect("the file is there: `instructions write` makes it");
    let figures: Option<Figures> = text
        .lines()
        .filter(|line| !line.starts_with('#'))
        .map(|line| {
            let mut words = line.split(' ');
            let pipeline = words.next()?.parse().ok()?;
            let name = words.next()?.to_owned();
            Some(((pipeline, name), words.next()?.parse().ok()?))
        })
        .collect();
    let figures = figures.expect("each line has a pipeline, a command and a count");
    let wanted = PIPELINES.len() * (COMMANDS.len() + 1) * 2;
    assert_eq!(figures.len(), wanted, "each figure stands in {FILE}");
    figures
}

fn count_all() -> Result<Figures, String> {
    let mut figures = Figures::new();
    for pipeline in PIPELINES {
        for log in ["", "-log"] {
            let mut life = 0;
            for (command, function) in COMMANDS {
                let count = |jobs: u64| collected(&format!("life{log}"), jobs / pipeline, pipeline, function);
                let each = (count(2 * JOBS)? - count(JOBS)?) / JOBS;
                figures.insert((pipeline, format!("{command}{log}")), each);
                life += each;
            }
            figures.insert((pipeline, format!("life{log}")), life);
        }
    }
    Ok(figures)
}

/// Instructions that `function` of the bench and all it calls take in so many rounds.
fn collected(which: &str, rounds: u64, pipeline: u64, function: &str) -> Result<u64, String> {
    let program = std::env::current_exe().map_err(|error| error.to_string())?;
    let output = Command::new("valgrind")
        .args(["--tool=callgrind", "--callgrind-out-file=/dev/null"])
        .arg(format!("--toggle-collect=requests::Bench::{function}"))
        .arg(program)
        .args([which, &rounds.to_string(), &pipeline.to_string(), "--bench"])
        .output()
        .map_err(|error| match error.kind() {
            ErrorKind::NotFound => {
                "valgrind is needed: install it (`apt install valgrind`, `dnf install valgrind`)".into()
            }
            _ => format!("valgrind does not start: {error}"),
        })?;
    let text = String::from_utf8_lossy(&output.stderr);
    let count = text
        .lines()
        .find_map(|line| line.split_once("Collected :")?.1.trim().parse().ok());
    match count {
        Some(count) if output.status.success() && count > 0 => Ok(count),
        _ => Err(format!(
            "no count of {function} at {which} {rounds} {pipeline}:\n{text}"
        )),
    }
}
