//! One phase of a bench: open connections, divide them among threads, watch, and add up.
//!
//! All connections stand before the clock starts, and the server's CPU time is read just before and just
//! after. What counts as the end is the last answer that brought something, not the moment the last blocked
//! consumer gave up.

use std::io::{self, Read, Write};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::{Duration, Instant};

use super::board::{Board, Watch};
use super::connection::{Connection, Role};
use super::consumer::{Consumer, Habits};
use super::control::Control;
use super::error::BenchError;
use super::generator::{self, Outcome, Shift};
use super::ledger::Ledger;
use super::options::Options;
use super::pace::Pace;
use super::plan::Plan;
use super::process::Process;
use super::producer::Producer;
use super::report::{Latency, OpenReport, PhaseReport, ServerUse};
use super::target::Target;
use crate::address::Socket;

/// How long a connection may take to come about, and the control connection's patience.
pub const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// Time between the decision to start an open loop and its first job: threads start in it.
const LEAD: Duration = Duration::from_millis(50);

/// How often the board is looked at.
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// What runs in a phase.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// Producers only; the jobs stay.
    Add,
    /// Consumers only, over what an add phase left.
    Drain,
    /// Producers and consumers at once.
    Both,
    /// The same in an open loop: producers at a fixed rate.
    Open,
}

impl Phase {
    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Add => "add",
            Self::Drain => "drain",
            Self::Both => "both",
            Self::Open => "open",
        }
    }

    fn adds(self) -> bool {
        self != Self::Drain
    }

    fn fetches(self, target: Target) -> bool {
        self != Self::Add && target != Target::Echo
    }
}

/// Runs a phase, whose progress stands behind `title`. `servers` are the processes of the nodes, where they can
/// be watched.
pub fn run(
    options: &Options,
    plan: &Plan,
    phase: Phase,
    title: &str,
    control: &mut Control,
    servers: &[Process],
) -> Result<PhaseReport, BenchError> {
    let fetches = phase.fetches(options.target);
    if fetches {
        control.prepare(plan)?;
    }
    let crews = open_connections(options, plan, phase)?;
    let ledger = Ledger::new(plan);
    let board = Board::default();
    let usage = || Process::usage_of(servers);
    let (generator_before, server_before) = (Process::own().usage()?, usage()?);
    let pace = pace(options, plan, phase);
    let started_at = pace.map_or_else(Instant::now, |pace| pace.started_at());
    let label = format!("{title}{}", phase.name());
    let mut watch = Watch::new(&board, label, plan.jobs, fetches).with_limits(options.stall(), options.quiet);
    let load = SharedLoad {
        plan,
        board: &board,
        ledger: &ledger,
        started_at,
        pace,
    };
    let (outcome, stalled) = run_threads(options, crews, &load, &mut watch)?;
    let (generator_after, server_after) = (Process::own().usage()?, usage()?);

    let jobs = if fetches {
        outcome.gains.received.fresh
    } else {
        outcome.gains.added
    };
    let seconds = (outcome.ended_at - started_at).as_secs_f64();
    let per_second = |number: u64| {
        if seconds > 0.0 {
            number as f64 / seconds
        } else {
            0.0
        }
    };
    let verdict = match fetches {
        true => {
            let left = control.jobs_left(plan)?;
            if left == 0 {
                control.tidy_up(plan)?;
            }
            Some(ledger.verdict(&outcome.gains.received, outcome.gains.acknowledged, left))
        }
        false => None,
    };
    Ok(PhaseReport {
        phase: phase.name().to_owned(),
        jobs,
        jobs_expected: plan.jobs,
        commands: outcome.gains.commands,
        seconds,
        jobs_per_second: per_second(jobs),
        commands_per_second: per_second(outcome.gains.commands),
        stalled,
        generator_cpu_seconds: generator_after.cpu_seconds - generator_before.cpu_seconds,
        server: server_before
            .zip(server_after)
            .map(|(before, after)| ServerUse::between(&before, &after, jobs, phase == Phase::Add)),
        add_round: Latency::of(&outcome.add_ns),
        fetch_round: Latency::of(&outcome.fetch_ns),
        open: pace.map(|_| OpenReport::of(&outcome.open)),
        verdict,
    })
}

/// Opens all connections of a phase, dealt out to the threads in turn.
fn open_connections(
    options: &Options,
    plan: &Plan,
    phase: Phase,
) -> Result<Vec<Vec<Connection>>, BenchError> {
    let mut roles = Vec::new();
    if phase.adds() {
        let pipeline = options.pipeline.get();
        let settings = options.add_settings();
        let producer =
            |number| Role::Producer(Producer::new(options.target, plan, number, pipeline, settings));
        roles.extend((0..plan.producers).map(producer));
    }
    if phase.fetches(options.target) {
        let habits = habits(options, phase);
        roles.extend((0..plan.consumers).map(|number| Role::Consumer(Consumer::new(plan, number, habits))));
    }
    let threads = options.threads.get() as usize;
    let mut crews: Vec<Vec<Connection>> = (0..threads).map(|_| Vec::new()).collect();
    for (number, role) in roles.into_iter().enumerate() {
        let address = match role {
            Role::Producer(_) => options.address(),
            Role::Consumer(_) => options.consumer_address(),
        };
        let (hello, lines) = role.greeting(options.target);
        let connection = address.connect(CONNECT_TIMEOUT).and_then(|mut socket| {
            greet(&mut socket, &hello, lines)?;
            Connection::new(socket, options.target, role)
        });
        let refused = |source| BenchError::Connect {
            address: address.clone(),
            number: number as u32 + 1,
            source,
        };
        crews[number % threads].push(connection.map_err(refused)?);
    }
    Ok(crews)
}

/// Says what a connection says first, and reads the lines it is answered with; none of them can refuse.
fn greet(socket: &mut Socket, hello: &[u8], mut lines: usize) -> io::Result<()> {
    if lines == 0 {
        return Ok(());
    }
    socket.set_timeout(Some(CONNECT_TIMEOUT))?;
    socket.write_all(hello)?;
    let mut byte = [0];
    while lines > 0 {
        socket.read_exact(&mut byte)?;
        lines -= usize::from(byte == *b"\n");
    }
    Ok(())
}

fn habits(options: &Options, phase: Phase) -> Habits {
    Habits {
        target: options.target,
        pipeline: options.pipeline.get(),
        count: options.count.get(),
        blocks: phase != Phase::Drain,
        is_paced: phase == Phase::Open,
        acknowledge: options.ack.command(),
        ack_ids_max: options.ack_ids.map_or(usize::MAX, |ids| ids.get() as usize),
    }
}

/// When jobs are due, where they have a time.
fn pace(options: &Options, plan: &Plan, phase: Phase) -> Option<Pace> {
    let rate = options.rate.filter(|_| phase == Phase::Open)?;
    let delay = Duration::from_secs(options.delay.into());
    Some(Pace::new(
        Instant::now() + LEAD,
        rate.get().into(),
        plan.producers,
        delay,
    ))
}

/// What all threads of a load look at.
struct SharedLoad<'a> {
    plan: &'a Plan,
    board: &'a Board,
    ledger: &'a Ledger,
    started_at: Instant,
    pace: Option<Pace>,
}

/// Runs the generator's threads to their end: their outcome, and whether they were stopped because nothing
/// moved.
fn run_threads(
    options: &Options,
    crews: Vec<Vec<Connection>>,
    load: &SharedLoad<'_>,
    watch: &mut Watch<'_>,
) -> Result<(Outcome, bool), BenchError> {
    let (sender, receiver) = mpsc::channel();
    let mut left = crews.len();
    std::thread::scope(|scope| {
        for (number, crew) in crews.into_iter().enumerate() {
            let sender = sender.clone();
            scope.spawn(move || {
                let shift = Shift::new(
                    load.board,
                    load.ledger,
                    load.plan.jobs,
                    load.started_at,
                    load.pace,
                );
                let result = pin(options, number).and_then(|()| generator::drive(crew, shift));
                // The receiver waits for every thread, and outlives them.
                sender.send(result).expect("the receiver is there");
            });
        }
        drop(sender);
        let mut sum = Ok(Outcome::new(load.started_at));
        let mut stalled = false;
        while left > 0 {
            match receiver.recv_timeout(LOOK_EVERY) {
                Ok(result) => {
                    left -= 1;
                    sum = together(sum, result);
                }
                Err(RecvTimeoutError::Timeout) if watch.look(Instant::now()) => {
                    stalled = true;
                    load.board.stop();
                }
                Err(RecvTimeoutError::Timeout) => {}
                // A thread panicked; the end of the scope passes that on.
                Err(RecvTimeoutError::Disconnected) => break,
            }
        }
        sum.map(|outcome| (outcome, stalled))
    })
}

/// Both outcomes added up, or the first error.
fn together(
    sum: Result<Outcome, BenchError>,
    next: Result<Outcome, BenchError>,
) -> Result<Outcome, BenchError> {
    let mut sum = sum?;
    sum.add(&next?);
    Ok(sum)
}

/// Pins the calling thread, the `number`-th of the generator.
pub fn pin(options: &Options, number: usize) -> Result<(), BenchError> {
    let Some(cpus) = &options.cpu else { return Ok(()) };
    let cpu = cpus.0[number % cpus.0.len()];
    let mut set = rustix::thread::CpuSet::new();
    set.set(cpu);
    let result = rustix::thread::sched_setaffinity(None, &set);
    result.map_err(|error| BenchError::Pin {
        cpu,
        source: error.into(),
    })
}
