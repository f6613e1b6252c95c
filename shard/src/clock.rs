//! Time as an argument.
//!
//! The server reads its two clocks and hands both to every step: timers run on the monotonic one, so a wall clock
//! that jumps expires nothing and delays nothing; the wall clock only stamps what people read and what is kept
//! across restarts (creation stamps, the log). Instants are milliseconds; the microseconds of `Now` serve TIME,
//! the slow log and the latency histograms.

/// Milliseconds of one second.
pub const SECOND_MS: u64 = 1_000;

/// An instant of the monotonic clock, in milliseconds since an origin of the process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Mono(pub u64);

impl Mono {
    /// An instant that never comes.
    pub const NEVER: Self = Self(u64::MAX);

    /// This instant and `ms` milliseconds; the far end is [`Mono::NEVER`].
    pub fn after_ms(self, ms: u64) -> Self {
        Self(self.0.saturating_add(ms))
    }

    /// Milliseconds from `earlier` to this instant; zero when it is not later.
    pub fn since_ms(self, earlier: Self) -> u64 {
        self.0.saturating_sub(earlier.0)
    }
}

/// What the clocks showed when the server handed over an input.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Now {
    /// Monotonic clock, microseconds since an origin of the process.
    pub mono_us: u64,
    /// Wall clock, microseconds since 1970-01-01 UTC.
    pub wall_us: u64,
}

impl Now {
    /// The monotonic instant, in milliseconds.
    pub fn mono(self) -> Mono {
        Mono(self.mono_us / 1_000)
    }

    /// Wall clock in milliseconds since 1970.
    pub fn wall_ms(self) -> u64 {
        self.wall_us / 1_000
    }

    /// Wall clock in whole seconds since 1970.
    pub fn wall_s(self) -> u64 {
        self.wall_us / 1_000_000
    }
}
