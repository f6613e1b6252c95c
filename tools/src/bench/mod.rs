//! The benchmark: a load of jobs against a running broker, measured and checked job by job.
//!
//! ```text
//! Options -> sides (one target, or two in turn) -> for each turn and side: Report -> Document -> table, JSON, page
//!
//! a phase:  board, ledger <- threads <- connections: Producer | Consumer <- commands (out), scan (in)
//! ```
//!
//! All targets share the loops: a [`Target`] is an enum that a few functions match on, and what goes out is
//! prebuilt, so a job costs the generator a copy of bytes on the way out and a scan on the way in. It shares the
//! machine with the server, and what it takes is missing there.
//!
//! Closed-loop phases send in rounds, each after all answers of the one before: they tell how much a broker can
//! take. The open loop sends every job when it is due: it tells how long jobs take at a rate that the broker
//! does take. `echo` tells how much of either is the bench's own.
//!
//! Reading order: [`options`], [`target`], [`plan`] (what a load is) and [`ledger`] (which jobs came back);
//! [`phase`] (one phase from connecting to its figures), [`generator`] (a thread's loop), [`pace`] (the open loop's
//! schedule), [`connection`] with its roles [`producer`] and [`consumer`], [`commands`] and [`scan`] (what is sent
//! and what comes back), [`control`] (questions beside the load); [`board`], [`process`], [`report`] and
//! [`document`] for the figures, `table` and `page` for their looks.
//!
//! A bench fails for two kinds of reason: it could not run ([`error::BenchError`]), or it ran and jobs were
//! missing, doubled or altered ([`Document::passed`]). Figures of a server that loses jobs are worth nothing,
//! so both end with exit code 1.

pub mod options;
pub mod plan;
pub mod target;

pub mod ledger;
pub mod phase;

pub mod board;
pub mod commands;
pub mod connection;
pub mod consumer;
pub mod control;
pub mod document;
mod echo;
pub mod error;
pub mod generator;
mod lines;
pub mod pace;
mod page;
mod plot;
pub mod process;
pub mod producer;
pub mod report;
pub mod scan;
mod table;

use std::time::{SystemTime, UNIX_EPOCH};

pub use document::Document;
pub use error::BenchError;
pub use options::Options;
pub use report::Report;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use control::Control;
use options::PhaseChoice;
use phase::Phase;
use plan::Plan;
use report::{Load, PhaseReport};
use target::Target;

/// Runs what is asked for, up to the first run that fails.
pub fn run(options: &Options) -> Result<Document, BenchError> {
    let mut sides = vec![options.clone()];
    sides.extend(options.for_compared());
    if let Some(obstacle) = sides.iter().find_map(Options::obstacle) {
        return Err(BenchError::Options(obstacle));
    }
    for side in &mut sides {
        if side.target == Target::Echo {
            (side.host, side.port) = ("127.0.0.1".into(), Some(echo::start()?));
        }
    }
    // The thread that watches shares the generator's CPUs, so that it never takes time from the server's.
    phase::pin(options, 0)?;
    raise_file_limit();
    let first = options.run.unwrap_or_else(run_from_clock);
    // Every load has a number of its own.
    let mut numbers = (0..).map(|load| first.wrapping_add(load));
    let mut runs = Vec::new();
    if options.phase() != PhaseChoice::None {
        warm_up(&sides, first)?;
        for turn in 1..=options.repeat.get() {
            for side in &sides {
                let title = match sides.len() as u32 * options.repeat.get() {
                    1 => String::new(),
                    _ => format!("{} {turn}/{}: ", side.label(), options.repeat),
                };
                runs.push(run_once(side, &title, &mut numbers)?);
                if !runs.last().is_some_and(Report::passed) {
                    return Ok(Document::new(runs));
                }
            }
        }
    }
    Ok(Document::new(runs))
}

/// Puts a load on each target that no report tells of, but whose jobs are checked like all others.
fn warm_up(sides: &[Options], first: u32) -> Result<(), BenchError> {
    for side in sides.iter().filter(|side| side.warm_up > 0) {
        let phase = match side.target {
            Target::Echo => PhaseChoice::Add,
            _ => PhaseChoice::Both,
        };
        let options = Options {
            phase: Some(phase),
            rate: None,
            jobs: side.warm_up,
            ..side.clone()
        };
        // Far from the numbers of all measured loads.
        let mut numbers = std::iter::once(first ^ (1 << 31));
        let report = run_once(&options, &format!("{} warm-up: ", side.label()), &mut numbers)?;
        if !report.passed() {
            return Err(BenchError::WarmUp {
                label: side.label().to_owned(),
                table: report.to_table(),
            });
        }
    }
    Ok(())
}

/// Runs the phases on one target, up to the first that fails. `numbers` are those of its loads.
fn run_once(
    options: &Options,
    title: &str,
    numbers: &mut impl Iterator<Item = u32>,
) -> Result<Report, BenchError> {
    let mut plan = plan(options);
    if !plan.fits() {
        return Err(BenchError::TooManyJobs);
    }
    let mut control = Control::connect(&options.endpoint(), phase::CONNECT_TIMEOUT)?;
    let mut servers = Vec::new();
    for endpoint in options.measured() {
        servers.extend(Control::connect(&endpoint, phase::CONNECT_TIMEOUT)?.process()?);
    }
    let mut phases: Vec<PhaseReport> = Vec::new();
    let mut first = None;
    for phase in phases_of(options) {
        // A drain gets what the add before it left; other phases make jobs of their own.
        if phase != Phase::Drain || phases.is_empty() {
            plan.run = numbers.next().expect("numbers do not end before the phases");
        }
        first = first.or(Some(plan.run));
        phases.push(phase::run(options, &plan, phase, title, &mut control, &servers)?);
        if !phases.last().is_some_and(PhaseReport::passed) {
            break;
        }
    }
    Ok(Report {
        label: options.label().to_owned(),
        target: options.target,
        address: options.address().to_string(),
        run: format!("{:08x}", first.unwrap_or_default()),
        load: Load::of(options),
        phases,
    })
}

fn plan(options: &Options) -> Plan {
    Plan {
        run: 0,
        producers: options.producers(),
        consumers: options.consumers(),
        queues: options.queues.get(),
        jobs: options.jobs(),
        bodies: options.body.clone(),
    }
}

fn phases_of(options: &Options) -> Vec<Phase> {
    match options.phase() {
        PhaseChoice::Add => vec![Phase::Add],
        PhaseChoice::Drain => vec![Phase::Drain],
        PhaseChoice::Both => vec![Phase::Both],
        PhaseChoice::Open => vec![Phase::Open],
        PhaseChoice::All => vec![Phase::Add, Phase::Drain, Phase::Both],
        PhaseChoice::None => vec![],
    }
}

/// A number no other run of late had: the low bits of the time in microseconds, which come again after 71
/// minutes.
fn run_from_clock() -> u32 {
    let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    since_epoch.as_micros() as u32
}

/// Allows as many connections as the system lets us. Should that be too few, the connection that fails says
/// so.
fn raise_file_limit() {
    let limit = getrlimit(Resource::Nofile);
    let _ = setrlimit(
        Resource::Nofile,
        Rlimit {
            current: limit.maximum,
            ..limit
        },
    );
}
