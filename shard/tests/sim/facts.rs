//! What clients may know of a job, and how that goes on by itself as time passes.

use std::fmt;

/// How much an instant may be off: what is told, and what happens, takes its time.
pub const SLACK_US: u64 = 80_000;
/// An answer may wait for a slow disk: several writes and syncs, one behind the other.
pub const SLOW_DISK_US: u64 = 2_000_000;

/// The counters of a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Counters {
    pub nacks: u64,
    pub additional: u64,
    /// Whether its next entering of the queue counts.
    pub entered: bool,
}

impl Counters {
    pub const NEW: Self = Self {
        nacks: 0,
        additional: 0,
        entered: false,
    };

    fn enters(self) -> Self {
        Self {
            additional: self.additional + u64::from(self.entered),
            entered: true,
            ..self
        }
    }
}

/// The state of a job, as far as it is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// There is no such job.
    Gone,
    /// Nothing is known, not even whether it is there.
    Any,
    /// It is there.
    There,
    Queued(Option<Counters>),
    /// Out of its queue, which it enters at an instant (wall clock) between these.
    Active {
        least_us: u64,
        most_us: u64,
        counters: Option<Counters>,
    },
    /// At most once: out of its queue, never handed out.
    Parked(Option<Counters>),
    /// At most once: handed out.
    Spent,
}

/// A state, and since when clients know of it.
#[derive(Clone, Copy, Debug)]
pub struct Fact {
    pub told: u64,
    /// Its record was safe when something was told: then, and when that was asked for.
    pub hard: Option<Safe>,
    pub state: State,
}

/// A proof that a record was safe: an answer that waited for it, or for one behind it.
#[derive(Clone, Copy, Debug)]
pub struct Safe {
    pub asked: u64,
    pub told: u64,
}

/// A job as SHOW describes it.
#[derive(Clone)]
pub struct Seen {
    pub id: String,
    pub queue: String,
    pub body: Vec<u8>,
    pub queued: bool,
    pub retry_s: u64,
    pub ctime: u64,
    pub nacks: u64,
    pub additional: u64,
    pub requeue_ms: Option<u64>,
    pub left_s: u64,
    /// When SHOW was asked for, and answered; wall clock.
    pub sent_us: u64,
    pub read_us: u64,
}

impl fmt::Debug for Seen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = if self.queued { "queued" } else { "active" };
        write!(
            f,
            "[{} of {}: {state}, nacks {}, additional {}, queued in {:?} ms, {} s left, at {}]",
            self.id, self.queue, self.nacks, self.additional, self.requeue_ms, self.left_s, self.read_us
        )
    }
}

impl Seen {
    /// When an active job enters its queue.
    pub fn enters_us(&self) -> Option<(u64, u64)> {
        let ms = self.requeue_ms.filter(|_| !self.queued)?;
        Some((self.sent_us + ms * 1000, self.read_us + ms * 1000))
    }
}

impl State {
    pub fn counters(self) -> Option<Counters> {
        match self {
            Self::Queued(counters) | Self::Active { counters, .. } | Self::Parked(counters) => counters,
            _ => None,
        }
    }

    /// What it has become between these instants, if nobody did anything.
    pub fn by(self, least_us: u64, most_us: u64) -> Self {
        let Self::Active {
            least_us: from,
            most_us: to,
            counters,
        } = self
        else {
            return self;
        };
        if most_us + SLACK_US < from {
            self
        } else if least_us > to + SLACK_US {
            Self::Queued(counters.map(Counters::enters))
        } else {
            Self::There
        }
    }

    /// Whether this is what SHOW shows. `pauses`: its queue may have kept it from entering.
    pub fn fits(self, seen: &Seen, pauses: bool) -> bool {
        let counts = |counters: Option<Counters>| {
            counters.is_none_or(|known| (known.nacks, known.additional) == (seen.nacks, seen.additional))
        };
        let now = self.by(seen.sent_us, seen.read_us);
        // A queue that is paused by now holds back, after a start, what entered it by itself before: nothing was written of that.
        let is_held = !seen.queued && seen.requeue_ms == Some(0);
        if pauses && (now != self || is_held && matches!(now, Self::Queued(_))) {
            return true;
        }
        match now {
            Self::Gone => false,
            Self::Any | Self::There => true,
            Self::Queued(counters) => seen.queued && counts(counters),
            Self::Active {
                least_us,
                most_us,
                counters,
            } => {
                let enters = seen.enters_us();
                counts(counters)
                    && enters
                        .is_some_and(|(from, to)| to + SLACK_US >= least_us && from <= most_us + SLACK_US)
            }
            Self::Parked(counters) => !seen.queued && seen.requeue_ms.is_none() && counts(counters),
            Self::Spent => !seen.queued,
        }
    }
}
