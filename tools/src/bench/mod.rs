//! The benchmark: a load of jobs against a running server, measured and checked job by job.
//!
//! Reading order: [`options`], [`plan`] (what a load is) and [`ledger`] (which jobs came back); [`phase`]
//! (one phase from connecting to its figures), [`generator`] (a thread's loop), `connection` with its roles
//! `producer` and `consumer`, and [`scan`] (the replies); [`board`], [`process`] and [`report`] for the
//! figures.
//!
//! A bench fails for two kinds of reason: it could not run ([`error::BenchError`]), or it ran and jobs were
//! missing, doubled or altered ([`Report::passed`]). Figures of a server that loses jobs are worth nothing,
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
pub mod error;
pub mod generator;
mod lines;
pub mod process;
pub mod producer;
pub mod report;
pub mod scan;

use std::time::{SystemTime, UNIX_EPOCH};

pub use error::BenchError;
pub use options::Options;
pub use report::Report;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use control::Control;
use options::PhaseChoice;
use phase::Phase;
use plan::Plan;
use report::{Load, PhaseReport};

/// Runs the phases asked for, up to the first that fails.
pub fn run(options: &Options) -> Result<Report, BenchError> {
    let run = options.run.unwrap_or_else(run_from_clock);
    let plan = Plan {
        run,
        producers: options.producers(),
        consumers: options.consumers(),
        queues: options.queues.get(),
        jobs: options.jobs,
        body_bytes: options.body,
    };
    if !plan.fits() {
        return Err(BenchError::TooManyJobs);
    }
    if let Some(obstacle) = options.target.obstacle(options) {
        return Err(BenchError::Options(obstacle));
    }
    // The thread that watches shares the generator's CPUs, so that it never takes time from the server's.
    phase::pin(options, 0)?;
    raise_file_limit();
    let mut control = Control::connect(&options.endpoint(), phase::CONNECT_TIMEOUT)?;
    let mut servers = Vec::new();
    for endpoint in options.measured() {
        servers.extend(Control::connect(&endpoint, phase::CONNECT_TIMEOUT)?.process()?);
    }
    let mut report = Report {
        address: options.address().to_string(),
        run: format!("{run:08x}"),
        load: load(options),
        phases: vec![],
    };
    for (phase, load) in phases(options.phase) {
        let plan = Plan {
            run: run.wrapping_add(load),
            ..plan.clone()
        };
        report
            .phases
            .push(phase::run(options, &plan, phase, &mut control, &servers)?);
        if !report.phases.last().is_some_and(PhaseReport::passed) {
            break;
        }
    }
    Ok(report)
}

/// Phases in their order, each with the number of its load: a drain gets what the add before it left, other
/// phases make jobs of their own.
fn phases(choice: PhaseChoice) -> Vec<(Phase, u32)> {
    match choice {
        PhaseChoice::Add => vec![(Phase::Add, 0)],
        PhaseChoice::Drain => vec![(Phase::Drain, 0)],
        PhaseChoice::Both => vec![(Phase::Both, 0)],
        PhaseChoice::All => vec![(Phase::Add, 0), (Phase::Drain, 0), (Phase::Both, 1)],
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

fn load(options: &Options) -> Load {
    Load {
        producers: options.producers(),
        consumers: options.consumers(),
        queues: options.queues.get(),
        body_bytes: options.body,
        pipeline: options.pipeline.get(),
        count: options.count.get(),
        acknowledge: options.ack.command(),
        threads: options.threads.get(),
    }
}
