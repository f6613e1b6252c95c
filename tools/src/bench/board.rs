//! What the threads of a load tell each other: how far it is, and when to stop.
//!
//! Each generator thread collects its gains and posts them once per turn of its loop, so the shared counters
//! cost nothing per job. The thread that started the load reads them: to print progress, and to notice that
//! nothing moves.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use super::ledger::Tally;

/// Shared counters of one load.
#[derive(Debug, Default)]
pub struct Board {
    added: AtomicU64,
    fresh: AtomicU64,
    acknowledged: AtomicU64,
    stopped: AtomicBool,
}

/// What a thread achieved.
#[derive(Clone, Copy, Debug, Default)]
pub struct Gains {
    /// Jobs whose ADDJOB was answered.
    pub added: u64,
    /// Jobs received, by kind.
    pub received: Tally,
    /// Jobs the server counted as acknowledged.
    pub acknowledged: u64,
    /// Commands answered.
    pub commands: u64,
}

impl Gains {
    /// Adds what another thread, or an earlier turn, achieved.
    pub fn add(&mut self, other: &Self) {
        self.added += other.added;
        self.received.add(&other.received);
        self.acknowledged += other.acknowledged;
        self.commands += other.commands;
    }
}

impl Board {
    /// Posts the gains of one turn.
    pub fn post(&self, gains: &Gains) {
        self.added.fetch_add(gains.added, Relaxed);
        self.fresh.fetch_add(gains.received.fresh, Relaxed);
        self.acknowledged.fetch_add(gains.acknowledged, Relaxed);
    }

    /// Jobs added so far.
    pub fn added(&self) -> u64 {
        self.added.load(Relaxed)
    }

    /// Different jobs received so far.
    pub fn fresh(&self) -> u64 {
        self.fresh.load(Relaxed)
    }

    /// Makes all threads give up.
    pub fn stop(&self) {
        self.stopped.store(true, Relaxed);
    }

    /// True after [`Board::stop`].
    pub fn is_stopped(&self) -> bool {
        self.stopped.load(Relaxed)
    }

    fn moves(&self) -> u64 {
        self.added() + self.fresh() + self.acknowledged.load(Relaxed)
    }
}

/// Watches a board: prints progress each second, and tells when nothing moved for too long.
#[derive(Debug)]
pub struct Watch<'a> {
    board: &'a Board,
    label: String,
    jobs: u64,
    /// True if progress is counted in jobs received, else in jobs added.
    counts_received: bool,
    stall: Duration,
    quiet: bool,
    printed_at: Instant,
    printed_jobs: u64,
    seconds: u32,
    moved_at: Instant,
    moves: u64,
}

impl<'a> Watch<'a> {
    /// A watch over a load of `jobs` that starts now.
    pub fn new(board: &'a Board, label: String, jobs: u64, counts_received: bool) -> Self {
        let now = Instant::now();
        Self {
            board,
            label,
            jobs,
            counts_received,
            stall: Duration::MAX,
            quiet: false,
            printed_at: now,
            printed_jobs: 0,
            seconds: 0,
            moved_at: now,
            moves: 0,
        }
    }

    /// Gives up after `stall` without a move, and prints nothing when `quiet`.
    pub fn with_limits(self, stall: Duration, quiet: bool) -> Self {
        Self { stall, quiet, ..self }
    }

    /// Looks at the board, some times a second. True if the load is stalled.
    pub fn look(&mut self, now: Instant) -> bool {
        let moves = self.board.moves();
        if moves != self.moves {
            (self.moves, self.moved_at) = (moves, now);
        }
        let elapsed = now.duration_since(self.printed_at);
        if elapsed >= Duration::from_secs(1) && !self.quiet {
            self.print(elapsed, now);
        }
        now.duration_since(self.moved_at) >= self.stall
    }

    fn print(&mut self, elapsed: Duration, now: Instant) {
        let jobs = if self.counts_received {
            self.board.fresh()
        } else {
            self.board.added()
        };
        let rate = (jobs - self.printed_jobs) as f64 / elapsed.as_secs_f64();
        self.seconds += 1;
        let (label, seconds, total) = (&self.label, self.seconds, self.jobs);
        eprintln!("{label:<6} {seconds:>4} s  {jobs:>11} of {total} jobs  {rate:>11.0} jobs/s");
        (self.printed_at, self.printed_jobs) = (now, jobs);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_load_that_moves_is_not_stalled() {
        let board = Board::default();
        let mut watch = Watch::new(&board, "add".into(), 10, false).with_limits(Duration::from_secs(5), true);
        let start = Instant::now();
        assert!(!watch.look(start + Duration::from_secs(4)));
        board.post(&Gains {
            added: 1,
            ..Gains::default()
        });
        assert!(!watch.look(start + Duration::from_secs(8)));
        assert!(!watch.look(start + Duration::from_secs(12)));
        assert!(watch.look(start + Duration::from_secs(13)));
    }
}
