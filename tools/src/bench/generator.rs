//! One thread of the load: drives its connections until all their work is done.
//!
//! Everything a round needs is prebuilt or kept in the connection, so a turn of the loop is: wait, move each
//! connection that is ready, wake those whose pause is over, post the gains. One thread makes more than the
//! server under test can take; whether that holds in a given run shows in the report, which tells the
//! generator's own CPU time.

use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use mio::{Events, Interest, Poll, Token};

use super::board::{Board, Gains};
use super::connection::{Connection, Role, State};
use super::error::BenchError;
use super::ledger::Ledger;

/// How long a consumer pauses that found nothing, and how often a thread looks at the board when nothing
/// comes.
const PAUSE: Duration = Duration::from_millis(1);
const IDLE: Duration = Duration::from_millis(50);

/// Events taken from the system in one turn.
const EVENTS_PER_TURN: usize = 1024;

/// Longest round the histograms tell apart: an hour, in nanoseconds.
const ROUND_NS_MAX: u64 = 3_600_000_000_000;

/// What the connections of a thread share.
#[derive(Debug)]
pub struct Shift<'a> {
    /// The load's jobs.
    pub ledger: &'a Ledger,
    /// What this turn achieved.
    pub gains: Gains,
    board: &'a Board,
    jobs: u64,
    outcome: Outcome,
}

/// What a thread has to tell at the end.
#[derive(Debug)]
pub struct Outcome {
    /// All its gains.
    pub gains: Gains,
    /// Durations of producers' rounds, in nanoseconds.
    pub add_ns: Histogram<u64>,
    /// Durations of consumers' rounds, in nanoseconds.
    pub fetch_ns: Histogram<u64>,
    /// When the last round that added or received or acknowledged a job ended.
    pub ended_at: Instant,
}

impl Outcome {
    /// An outcome without anything.
    pub fn new(started_at: Instant) -> Self {
        let histogram = || Histogram::new_with_bounds(1, ROUND_NS_MAX, 3).expect("valid bounds");
        Self {
            gains: Gains::default(),
            add_ns: histogram(),
            fetch_ns: histogram(),
            ended_at: started_at,
        }
    }

    /// Adds another thread's outcome.
    pub fn add(&mut self, other: &Self) {
        self.gains.add(&other.gains);
        self.add_ns.add(&other.add_ns).expect("equal bounds");
        self.fetch_ns.add(&other.fetch_ns).expect("equal bounds");
        self.ended_at = self.ended_at.max(other.ended_at);
    }
}

impl<'a> Shift<'a> {
    /// The shared part of a thread's work on a load of `jobs`.
    pub fn new(board: &'a Board, ledger: &'a Ledger, jobs: u64, started_at: Instant) -> Self {
        Self {
            ledger,
            gains: Gains::default(),
            board,
            jobs,
            outcome: Outcome::new(started_at),
        }
    }

    /// True if every job of the load has been received, by whichever thread.
    pub fn is_finished(&self) -> bool {
        self.board.fresh() + self.gains.received.fresh >= self.jobs
    }

    /// Enters a round's duration.
    pub fn round_ended(&mut self, role: &Role, began_at: Instant, now: Instant) {
        let ns = u64::try_from((now - began_at).as_nanos()).unwrap_or(ROUND_NS_MAX);
        match role {
            Role::Producer(_) => self.outcome.add_ns.saturating_record(ns),
            Role::Consumer(_) => self.outcome.fetch_ns.saturating_record(ns),
        }
    }

    fn post(&mut self) {
        let gains = std::mem::take(&mut self.gains);
        if gains.commands == 0 {
            return;
        }
        if gains.added + gains.received.fresh + gains.acknowledged > 0 {
            self.outcome.ended_at = Instant::now();
        }
        self.board.post(&gains);
        self.outcome.gains.add(&gains);
    }
}

/// Drives connections to the end of their work, or until the board says stop. An error stops the other
/// threads too.
pub fn drive(mut connections: Vec<Connection>, mut shift: Shift<'_>) -> Result<Outcome, BenchError> {
    let board = shift.board;
    let result = turn_until_done(&mut connections, &mut shift);
    if result.is_err() {
        board.stop();
    }
    result.map(|()| shift.outcome)
}

fn turn_until_done(connections: &mut [Connection], shift: &mut Shift<'_>) -> Result<(), BenchError> {
    let mut poll = Poll::new()?;
    let mut events = Events::with_capacity(EVENTS_PER_TURN);
    let mut crew = Crew {
        working: connections.len(),
        paused: Vec::new(),
        pause_ends_at: Instant::now(),
    };
    for (number, connection) in connections.iter_mut().enumerate() {
        let interest = Interest::READABLE | Interest::WRITABLE;
        poll.registry()
            .register(connection.source(), Token(number), interest)?;
        let state = connection.begin(shift, Instant::now())?;
        crew.note(number, state);
    }
    while crew.working > 0 && !shift.board.is_stopped() {
        wait(
            &mut poll,
            &mut events,
            if crew.paused.is_empty() { IDLE } else { PAUSE },
        )?;
        for event in &events {
            let number = event.token().0;
            if !connections[number].is_waiting() {
                continue;
            }
            let state = connections[number].ready(shift)?;
            crew.note(number, state);
        }
        shift.post();
        crew.wake(connections, shift)?;
    }
    Ok(())
}

fn wait(poll: &mut Poll, events: &mut Events, timeout: Duration) -> Result<(), BenchError> {
    match poll.poll(events, Some(timeout)) {
        Err(error) if error.kind() == std::io::ErrorKind::Interrupted => Ok(()),
        result => Ok(result?),
    }
}

/// Which connections still work, and which of them pause.
struct Crew {
    working: usize,
    paused: Vec<usize>,
    pause_ends_at: Instant,
}

impl Crew {
    fn note(&mut self, number: usize, state: State) {
        match state {
            State::Waiting => {}
            State::Paused => {
                if self.paused.is_empty() {
                    self.pause_ends_at = Instant::now() + PAUSE;
                }
                self.paused.push(number);
            }
            State::Done => self.working -= 1,
        }
    }

    /// All pauses end together, at most `PAUSE` after the first of them began.
    fn wake(&mut self, connections: &mut [Connection], shift: &mut Shift<'_>) -> Result<(), BenchError> {
        if self.paused.is_empty() || Instant::now() < self.pause_ends_at {
            return Ok(());
        }
        for number in std::mem::take(&mut self.paused) {
            let state = connections[number].begin(shift, Instant::now())?;
            self.note(number, state);
        }
        Ok(())
    }
}
