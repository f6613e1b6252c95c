//! The open loop: when each job of a load is due, and an alarm for the next one.
//!
//! In a closed loop a slow server slows its clients down, so the moments at which it was slow are asked about
//! least: coordinated omission. Here job `k` is due at `k / rate` seconds after the start whatever happens, it
//! is sent when it is due or at the first moment after, and every latency counts from then. Producers take
//! the jobs in turn, so the time a job was due follows from the producer and the sequence number in its body;
//! nothing is remembered per job.

use std::os::fd::{AsRawFd, OwnedFd};
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use mio::unix::SourceFd;
use mio::{Interest, Registry, Token};
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create, timerfd_settime,
};

use super::error::BenchError;
use super::generator::histogram;

/// The schedule of a load.
#[derive(Clone, Copy, Debug)]
pub struct Pace {
    started_at: Instant,
    ns_per_job: f64,
    producers: u64,
    delay_ns: u64,
}

impl Pace {
    /// `rate` jobs a second from `started_at` on, by so many producers; each may be fetched after `delay`.
    pub fn new(started_at: Instant, rate: f64, producers: u32, delay: Duration) -> Self {
        assert!(rate > 0.0 && producers > 0);
        Self {
            started_at,
            ns_per_job: 1e9 / rate,
            producers: producers.into(),
            delay_ns: nanoseconds(delay),
        }
    }

    /// When the first job is due.
    pub fn started_at(&self) -> Instant {
        self.started_at
    }

    /// Nanoseconds since the start, `None` before it.
    pub fn elapsed_ns(&self, now: Instant) -> Option<u64> {
        now.checked_duration_since(self.started_at).map(nanoseconds)
    }

    /// How long until the start; at least a moment.
    pub fn until_start(&self, now: Instant) -> Duration {
        self.started_at
            .saturating_duration_since(now)
            .max(Duration::from_nanos(1))
    }

    /// When a job is due, in nanoseconds since the start.
    pub fn due_ns(&self, producer: u32, sequence: u32) -> u64 {
        let job = u64::from(sequence) * self.producers + u64::from(producer);
        (job as f64 * self.ns_per_job) as u64
    }

    /// How many of a producer's jobs are due at a time.
    pub fn due_by(&self, producer: u32, elapsed_ns: u64) -> u64 {
        let jobs = (elapsed_ns as f64 / self.ns_per_job) as u64 + 1;
        jobs.saturating_sub(producer.into()).div_ceil(self.producers)
    }
}

/// Latencies of an open loop, in nanoseconds since the time a job was due.
#[derive(Debug)]
pub struct OpenTimes {
    /// Until it was sent: how late the generator itself was.
    pub sent: Histogram<u64>,
    /// Until the answer that it was added.
    pub answered: Histogram<u64>,
    /// Until a consumer had it, not counting its delay.
    pub delivered: Histogram<u64>,
    /// Jobs that came to a consumer before their delay had passed since they were due.
    pub early_jobs: u64,
    /// By how much at most, in nanoseconds.
    pub early_ns_max: u64,
}

impl Default for OpenTimes {
    fn default() -> Self {
        Self {
            sent: histogram(),
            answered: histogram(),
            delivered: histogram(),
            early_jobs: 0,
            early_ns_max: 0,
        }
    }
}

impl OpenTimes {
    /// Adds those of another thread.
    pub fn add(&mut self, other: &Self) {
        for (sum, part) in [
            (&mut self.sent, &other.sent),
            (&mut self.answered, &other.answered),
            (&mut self.delivered, &other.delivered),
        ] {
            sum.add(part).expect("equal bounds");
        }
        self.early_jobs += other.early_jobs;
        self.early_ns_max = self.early_ns_max.max(other.early_ns_max);
    }

    /// A producer's jobs were sent at `now_ns`.
    pub fn enter_sent(&mut self, pace: &Pace, producer: u32, sequences: std::ops::Range<u32>, now_ns: u64) {
        for sequence in sequences {
            let late = now_ns.saturating_sub(pace.due_ns(producer, sequence));
            self.sent.saturating_record(late);
        }
    }

    /// A job's answer came.
    pub fn enter_answered(&mut self, pace: &Pace, producer: u32, sequence: u32, now_ns: u64) {
        let latency = now_ns.saturating_sub(pace.due_ns(producer, sequence));
        self.answered.saturating_record(latency);
    }

    /// A job came to a consumer.
    pub fn enter_delivered(&mut self, pace: &Pace, producer: u32, sequence: u32, now_ns: u64) {
        let due_ns = pace.due_ns(producer, sequence) + pace.delay_ns;
        self.delivered.saturating_record(now_ns.saturating_sub(due_ns));
        if now_ns < due_ns {
            self.early_jobs += 1;
            self.early_ns_max = self.early_ns_max.max(due_ns - now_ns);
        }
    }
}

/// A timer that wakes a poll. The poll's own timeout counts in milliseconds, and the system may stretch it.
#[derive(Debug)]
pub struct Alarm {
    timer: OwnedFd,
}

impl Alarm {
    /// A timer that is not set.
    pub fn new(registry: &Registry, token: Token) -> Result<Self, BenchError> {
        let timer = timerfd_create(TimerfdClockId::Monotonic, TimerfdFlags::NONBLOCK);
        let timer = timer.map_err(std::io::Error::from)?;
        registry.register(&mut SourceFd(&timer.as_raw_fd()), token, Interest::READABLE)?;
        Ok(Self { timer })
    }

    /// Wakes the poll after `wait`, which is not zero. It need not be read: setting it anew clears it.
    pub fn set(&self, wait: Duration) -> Result<(), BenchError> {
        let at = |wait: Duration| Timespec {
            tv_sec: wait.as_secs() as i64,
            tv_nsec: wait.subsec_nanos().into(),
        };
        let spec = Itimerspec {
            it_interval: at(Duration::ZERO),
            it_value: at(wait),
        };
        let result = timerfd_settime(&self.timer, TimerfdTimerFlags::empty(), &spec);
        result
            .map(|_| ())
            .map_err(|error| std::io::Error::from(error).into())
    }
}

fn nanoseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pace(rate: f64, producers: u32) -> Pace {
        Pace::new(Instant::now(), rate, producers, Duration::from_secs(2))
    }

    #[test]
    fn producers_take_the_jobs_in_turn() {
        let pace = pace(1000.0, 3);
        assert_eq!(pace.due_ns(0, 0), 0);
        assert_eq!(pace.due_ns(2, 0), 2_000_000);
        assert_eq!(pace.due_ns(0, 1), 3_000_000);
        let due = |ns| [0, 1, 2].map(|producer| pace.due_by(producer, ns));
        assert_eq!(due(0), [1, 0, 0]);
        assert_eq!(due(2_500_000), [1, 1, 1]);
        assert_eq!(due(3_500_000), [2, 1, 1]);
    }

    #[test]
    fn a_job_is_due_when_its_time_has_come() {
        for (rate, producers) in [(7.0, 1), (123_456.7, 8), (999_999.0, 50)] {
            let pace = pace(rate, producers);
            for sequence in (0..10_000).step_by(97) {
                let producer = sequence % producers;
                let due_ns = pace.due_ns(producer, sequence);
                assert!(pace.due_by(producer, due_ns + 1) > u64::from(sequence));
                let before = due_ns.saturating_sub(2);
                assert!(due_ns < 2 || pace.due_by(producer, before) <= u64::from(sequence));
            }
        }
    }

    #[test]
    fn latencies_count_from_the_time_a_job_was_due() {
        let (pace, mut times) = (pace(1000.0, 2), OpenTimes::default());
        times.enter_sent(&pace, 1, 0..2, 5_000_000);
        assert!(times.sent.min().abs_diff(2_000_000) < 10_000);
        assert!(times.sent.max().abs_diff(4_000_000) < 10_000);
        times.enter_answered(&pace, 1, 1, 5_000_000);
        assert!(times.answered.max().abs_diff(2_000_000) < 10_000);
        times.enter_delivered(&pace, 1, 1, 2_005_000_000);
        assert!(
            times.delivered.max().abs_diff(2_000_000) < 10_000,
            "the delay is no latency"
        );
        assert_eq!(times.early_jobs, 0);
        times.enter_delivered(&pace, 1, 1, 2_002_000_000);
        assert_eq!((times.early_jobs, times.early_ns_max), (1, 1_000_000));
        let mut sum = OpenTimes::default();
        sum.add(&times);
        sum.add(&times);
        assert_eq!((sum.sent.len(), sum.delivered.len(), sum.early_jobs), (4, 4, 2));
    }

    #[test]
    fn nothing_is_due_before_the_start() {
        let now = Instant::now();
        let pace = Pace::new(now + Duration::from_secs(60), 1.0, 1, Duration::ZERO);
        assert_eq!(pace.elapsed_ns(now), None);
        assert_eq!(
            pace.elapsed_ns(now + Duration::from_secs(61)),
            Some(1_000_000_000)
        );
    }
}
