//! One thread of the load: drives its connections until all their work is done.
//!
//! Everything a round needs is prebuilt or kept in the connection, so a turn of the loop is: wait, move each
//! connection that is ready, wake those whose pause is over, post the gains. One thread makes more than the
//! server under test can take; whether that holds in a given run shows in the report, which tells the
//! generator's own CPU time.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::collections::binary_heap::PeekMut;
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use mio::{Events, Interest, Poll, Token};

use super::board::{Board, Gains};
use super::connection::{Connection, Role, State};
use super::error::BenchError;
use super::ledger::Ledger;
use super::pace::{Alarm, OpenTimes, Pace};
use super::plan::{self, PRODUCER_AT, SEQUENCE_AT};

/// How long a consumer pauses that found nothing, and how often a thread looks at the board when nothing
/// comes.
const PAUSE: Duration = Duration::from_millis(1);
const IDLE: Duration = Duration::from_millis(50);

/// Events taken from the system in one turn.
const EVENTS_PER_TURN: usize = 1024;

/// Longest round the histograms tell apart: an hour, in nanoseconds.
const ROUND_NS_MAX: u64 = 3_600_000_000_000;

/// The alarm's place in the poll, behind all connections.
const ALARM: Token = Token(usize::MAX);

/// An empty histogram of durations in nanoseconds, to three digits.
pub fn histogram() -> Histogram<u64> {
    Histogram::new_with_bounds(1, ROUND_NS_MAX, 3).expect("valid bounds")
}

/// What the connections of a thread share.
#[derive(Debug)]
pub struct Shift<'a> {
    /// The load's jobs.
    pub ledger: &'a Ledger,
    /// What this turn achieved.
    pub gains: Gains,
    /// When jobs are due, in an open loop.
    pub pace: Option<Pace>,
    /// When the last bytes were read: nanoseconds since the start of an open loop.
    read_at_ns: u64,
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
    /// Latencies of an open loop.
    pub open: OpenTimes,
    /// When the last round that added or received or acknowledged a job ended.
    pub ended_at: Instant,
}

impl Outcome {
    /// An outcome without anything.
    pub fn new(started_at: Instant) -> Self {
        Self {
            gains: Gains::default(),
            add_ns: histogram(),
            fetch_ns: histogram(),
            open: OpenTimes::default(),
            ended_at: started_at,
        }
    }

    /// Adds another thread's outcome.
    pub fn add(&mut self, other: &Self) {
        self.gains.add(&other.gains);
        self.add_ns.add(&other.add_ns).expect("equal bounds");
        self.fetch_ns.add(&other.fetch_ns).expect("equal bounds");
        self.open.add(&other.open);
        self.ended_at = self.ended_at.max(other.ended_at);
    }
}

impl<'a> Shift<'a> {
    /// The shared part of a thread's work on a load of `jobs`; with a pace, an open loop.
    pub fn new(
        board: &'a Board,
        ledger: &'a Ledger,
        jobs: u64,
        started_at: Instant,
        pace: Option<Pace>,
    ) -> Self {
        Self {
            ledger,
            gains: Gains::default(),
            pace,
            read_at_ns: 0,
            board,
            jobs,
            outcome: Outcome::new(started_at),
        }
    }

    /// True if every job of the load has been received, by whichever thread.
    pub fn is_finished(&self) -> bool {
        self.board.fresh() + self.gains.received.fresh >= self.jobs
    }

    /// Enters a round's duration; an open loop has no rounds.
    pub fn round_ended(&mut self, role: &Role, began_at: Instant, now: Instant) {
        if self.pace.is_some() {
            return;
        }
        let ns = u64::try_from((now - began_at).as_nanos()).unwrap_or(ROUND_NS_MAX);
        match role {
            Role::Producer(_) => self.outcome.add_ns.saturating_record(ns),
            Role::Consumer(_) => self.outcome.fetch_ns.saturating_record(ns),
        }
    }

    /// Takes the time of what is read next.
    pub fn note_read(&mut self) {
        if let Some(pace) = &self.pace {
            self.read_at_ns = pace.elapsed_ns(Instant::now()).unwrap_or(0);
        }
    }

    /// Enters jobs that are sent now.
    pub fn jobs_sent(&mut self, producer: u32, sequences: std::ops::Range<u32>, now_ns: u64) {
        if let Some(pace) = &self.pace {
            self.outcome.open.enter_sent(pace, producer, sequences, now_ns);
        }
    }

    /// Enters a job whose answer was read.
    pub fn job_answered(&mut self, producer: u32, sequence: u32) {
        if let Some(pace) = &self.pace {
            let times = &mut self.outcome.open;
            times.enter_answered(pace, producer, sequence, self.read_at_ns);
        }
    }

    /// Enters a body of this load that was read for the first time.
    pub fn job_delivered(&mut self, body: &[u8]) {
        if let Some(pace) = &self.pace {
            let (producer, sequence) = (
                plan::number_at(body, PRODUCER_AT),
                plan::number_at(body, SEQUENCE_AT),
            );
            let times = &mut self.outcome.open;
            times.enter_delivered(pace, producer, sequence, self.read_at_ns);
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
    let mut open = match shift.pace {
        Some(pace) => Some((
            Alarm::new(poll.registry(), ALARM)?,
            Schedule::new(pace, connections),
        )),
        None => None,
    };
    for (number, connection) in connections.iter_mut().enumerate() {
        let interest = Interest::READABLE | Interest::WRITABLE;
        poll.registry()
            .register(connection.source(), Token(number), interest)?;
        let state = connection.begin(shift, Instant::now())?;
        crew.note(number, state);
    }
    while crew.working > 0 && !shift.board.is_stopped() {
        if let Some((alarm, schedule)) = &mut open
            && let Some(due_in) = schedule.send_due(connections, shift)?
        {
            alarm.set(due_in)?;
        }
        let patience = if crew.paused.is_empty() { IDLE } else { PAUSE };
        wait(&mut poll, &mut events, patience)?;
        for event in &events {
            let number = event.token().0;
            if event.token() == ALARM || !connections[number].is_waiting() {
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

/// When each producer of an open loop is due next: nanoseconds since the start, and the connection's number.
/// Only those that are due are looked at, however many connections there are.
struct Schedule {
    pace: Pace,
    next: BinaryHeap<Reverse<(u64, usize)>>,
}

impl Schedule {
    fn new(pace: Pace, connections: &[Connection]) -> Self {
        let due = |(number, connection): (usize, &Connection)| {
            Some(Reverse((connection.next_due_ns(&pace)?, number)))
        };
        Self {
            pace,
            next: connections.iter().enumerate().filter_map(due).collect(),
        }
    }

    /// Sends what is due: how long until more is, `None` if all is sent.
    fn send_due(
        &mut self,
        connections: &mut [Connection],
        shift: &mut Shift<'_>,
    ) -> Result<Option<Duration>, BenchError> {
        let now = Instant::now();
        let Some(now_ns) = self.pace.elapsed_ns(now) else {
            return Ok(Some(self.pace.until_start(now)));
        };
        while let Some(mut top) = self.next.peek_mut() {
            let Reverse((due_ns, number)) = *top;
            if due_ns > now_ns {
                return Ok(Some(Duration::from_nanos(due_ns - now_ns)));
            }
            match connections[number].send_due(shift, &self.pace, now_ns)? {
                // Rounding may leave a job that is due just now: later, so that the others get their turn.
                Some(next_ns) => *top = Reverse((next_ns.max(now_ns + 1), number)),
                None => {
                    PeekMut::pop(top);
                }
            }
        }
        Ok(None)
    }
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
