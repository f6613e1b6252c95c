//! What one run found: numbers for machines (`--json`) and a table for people, from the same values.
//!
//! Field names carry their units; they are what scripts read, so they stay as they are. Several runs together
//! are a `document`.

use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};

use super::ledger::Verdict;
use super::options::Options;
use super::pace::OpenTimes;
use super::process::Usage;
use super::target::Target;

/// A whole run.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Report {
    /// Name of the target in reports.
    pub label: String,
    /// The kind of server.
    pub target: Target,
    /// The server's address.
    pub address: String,
    /// Number of the run, as `--run` takes it.
    pub run: String,
    /// What was asked for.
    pub load: Load,
    /// What was found, phase by phase; ends with the first phase that failed.
    pub phases: Vec<PhaseReport>,
}

/// The settings that make figures comparable.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Load {
    /// Connections that add.
    pub producers: u32,
    /// Connections that fetch.
    pub consumers: u32,
    /// Number of queues.
    pub queues: u32,
    /// Sizes of bodies.
    pub body_bytes: Vec<usize>,
    /// Commands in a round.
    pub pipeline: u32,
    /// COUNT of GETJOB.
    pub count: u32,
    /// How jobs are acknowledged.
    pub acknowledge: String,
    /// Seconds until a job may be fetched.
    pub delay_seconds: u32,
    /// Time until a job is given out again, if it was asked for.
    pub retry_seconds: Option<u64>,
    /// Copies, if they were asked for.
    pub replicate: Option<u32>,
    /// Jobs a second of the open phase.
    pub rate: Option<u32>,
    /// Generator threads.
    pub threads: u32,
    /// CPUs the generator was pinned to.
    pub cpus: Option<Vec<usize>>,
}

impl Load {
    /// The load that options ask for.
    pub fn of(options: &Options) -> Self {
        Self {
            producers: options.producers(),
            consumers: options.consumers(),
            queues: options.queues.get(),
            body_bytes: options.body.clone(),
            pipeline: options.pipeline.get(),
            count: options.count.get(),
            acknowledge: match options.target {
                Target::Shardq | Target::Disque => options.ack.command(),
                Target::RedisList => "LREM",
                Target::RedisStream => "XACK and XDEL",
                Target::Beanstalkd => "delete",
                Target::Echo => "no acknowledgement",
            }
            .to_owned(),
            delay_seconds: options.delay,
            retry_seconds: options.retry,
            replicate: options.replicate.map(|copies| copies.get()),
            rate: options.rate.map(|rate| rate.get()),
            threads: options.threads.get(),
            cpus: options.cpu.as_ref().map(|cpus| cpus.0.clone()),
        }
    }
}

/// One phase.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct PhaseReport {
    /// `add`, `drain`, `both` or `open`.
    pub phase: String,
    /// Jobs added (add) or received for the first time.
    pub jobs: u64,
    /// Jobs there should have been.
    pub jobs_expected: u64,
    /// Commands answered.
    pub commands: u64,
    /// From the first command to the last answer that brought something.
    pub seconds: f64,
    /// Jobs per second.
    pub jobs_per_second: f64,
    /// Commands per second.
    pub commands_per_second: f64,
    /// True if it was given up because nothing moved.
    pub stalled: bool,
    /// The generator's CPU time; near `seconds` per thread, the generator was the limit.
    pub generator_cpu_seconds: f64,
    /// What the server used, where it runs on this machine.
    pub server: Option<ServerUse>,
    /// Producers' rounds.
    pub add_round: Option<Latency>,
    /// Consumers' rounds; while jobs are scarce that includes waiting for them.
    pub fetch_round: Option<Latency>,
    /// Latencies of an open loop.
    pub open: Option<OpenReport>,
    /// What became of the jobs, where they were received.
    pub verdict: Option<Verdict>,
}

impl PhaseReport {
    /// True if every job arrived, and exactly once.
    pub fn passed(&self) -> bool {
        !self.stalled && self.jobs == self.jobs_expected && self.verdict.as_ref().is_none_or(Verdict::passed)
    }
}

/// What a phase cost the server.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ServerUse {
    /// User and system time, all threads.
    pub cpu_seconds: f64,
    /// The same for one job.
    pub cpu_us_per_job: f64,
    /// Resident memory before the phase.
    pub resident_before_bytes: u64,
    /// Resident memory after it.
    pub resident_after_bytes: u64,
    /// Most resident memory the server ever had.
    pub resident_peak_bytes: u64,
    /// Growth of resident memory for each job, where jobs stayed queued.
    pub bytes_per_queued_job: Option<f64>,
}

impl ServerUse {
    /// From readings before and after a phase of `jobs`.
    pub fn between(before: &Usage, after: &Usage, jobs: u64, jobs_stay: bool) -> Self {
        let per_job = |value: f64| if jobs == 0 { 0.0 } else { value / jobs as f64 };
        let growth = after.resident_bytes as f64 - before.resident_bytes as f64;
        let cpu_seconds = after.cpu_seconds - before.cpu_seconds;
        Self {
            cpu_seconds,
            cpu_us_per_job: per_job(cpu_seconds * 1e6),
            resident_before_bytes: before.resident_bytes,
            resident_after_bytes: after.resident_bytes,
            resident_peak_bytes: after.resident_peak_bytes,
            bytes_per_queued_job: jobs_stay.then(|| per_job(growth)),
        }
    }
}

/// Latencies of an open loop, each from the time a job was due.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct OpenReport {
    /// Until it was sent: the generator's own lateness, part of all that follows.
    pub sent: Option<Latency>,
    /// Until the answer that it was added.
    pub answered: Option<Latency>,
    /// Until a consumer had it, not counting its delay.
    pub delivered: Option<Latency>,
    /// Jobs that came to a consumer before their delay had passed since they were due.
    pub early_jobs: u64,
    /// By how much at most.
    pub early_max_us: f64,
}

impl OpenReport {
    /// From the histograms of a phase.
    pub fn of(times: &OpenTimes) -> Self {
        Self {
            sent: Latency::of(&times.sent),
            answered: Latency::of(&times.answered),
            delivered: Latency::of(&times.delivered),
            early_jobs: times.early_jobs,
            early_max_us: times.early_ns_max as f64 / 1000.0,
        }
    }

    /// True if half of the 99th percentile until the answer, or more, passed before jobs were even sent.
    pub fn is_own_lateness(&self) -> bool {
        let both = self.sent.as_ref().zip(self.answered.as_ref());
        both.is_some_and(|(sent, answered)| sent.p99_us * 2.0 >= answered.p99_us)
    }
}

/// How long something took.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Latency {
    /// How often it was measured: rounds, or jobs of an open loop.
    pub rounds: u64,
    /// Half took at most this.
    pub p50_us: f64,
    /// 99 % took at most this.
    pub p99_us: f64,
    /// 99.9 % took at most this.
    pub p999_us: f64,
    /// The longest.
    pub max_us: f64,
    /// The distribution, for plots: quantile and microseconds, in steps of a tenth of a decade of what is
    /// left beyond, and the longest as 1.
    pub curve: Vec<(f64, f64)>,
}

/// Steps of a decade in a curve, and decades.
const CURVE_STEPS: u32 = 10;
const CURVE_DECADES: u32 = 6;

impl Latency {
    /// From durations in nanoseconds; `None` if there are none.
    pub fn of(histogram: &Histogram<u64>) -> Option<Self> {
        let at = |quantile| histogram.value_at_quantile(quantile) as f64 / 1000.0;
        (!histogram.is_empty()).then(|| Self {
            rounds: histogram.len(),
            p50_us: at(0.5),
            p99_us: at(0.99),
            p999_us: at(0.999),
            max_us: histogram.max() as f64 / 1000.0,
            curve: curve(histogram),
        })
    }
}

fn curve(histogram: &Histogram<u64>) -> Vec<(f64, f64)> {
    let us = |quantile| histogram.value_at_quantile(quantile) as f64 / 1000.0;
    let steps = (0..=CURVE_STEPS * CURVE_DECADES).map(|step| -f64::from(step) / f64::from(CURVE_STEPS));
    // A quantile that fewer than one of the measured ones lie beyond tells nothing new.
    let quantiles = steps
        .map(|exponent| 1.0 - 10f64.powf(exponent))
        .take_while(|quantile| (1.0 - quantile) * histogram.len() as f64 > 0.999);
    let mut points: Vec<(f64, f64)> = quantiles.map(|quantile| (quantile, us(quantile))).collect();
    points.push((1.0, histogram.max() as f64 / 1000.0));
    points
}

impl Report {
    /// True if every phase passed.
    pub fn passed(&self) -> bool {
        self.phases.iter().all(PhaseReport::passed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn server_use_is_the_difference() {
        let usage = |cpu_seconds, resident_bytes| Usage {
            cpu_seconds,
            resident_bytes,
            resident_peak_bytes: 9_000,
        };
        let used = ServerUse::between(&usage(1.0, 1_000), &usage(3.0, 5_000), 1_000_000, true);
        assert_eq!((used.cpu_seconds, used.cpu_us_per_job), (2.0, 2.0));
        assert_eq!(used.bytes_per_queued_job, Some(0.004));
        assert_eq!(
            ServerUse::between(&usage(1.0, 1), &usage(1.0, 1), 0, false).cpu_us_per_job,
            0.0
        );
    }

    #[test]
    fn a_late_bench_is_told_from_a_slow_server() {
        let latency = |us: u64| {
            let mut histogram = Histogram::new_with_bounds(1, 1_000_000_000, 3).unwrap();
            histogram.record(us * 1000).unwrap();
            Latency::of(&histogram)
        };
        let open = |sent_us, answered_us| OpenReport {
            sent: latency(sent_us),
            answered: latency(answered_us),
            delivered: None,
            early_jobs: 0,
            early_max_us: 0.0,
        };
        assert!(open(60, 100).is_own_lateness() && !open(40, 100).is_own_lateness());
    }

    #[test]
    fn a_curve_ends_where_single_ones_are_left() {
        let mut histogram = Histogram::new_with_bounds(1, 1_000_000_000, 3).unwrap();
        for us in 1..=100u64 {
            histogram.record(us * 1000).unwrap();
        }
        let curve = Latency::of(&histogram).unwrap().curve;
        assert_eq!(
            curve.len() as u32,
            2 * CURVE_STEPS + 2,
            "two decades, their start, and the longest"
        );
        assert_eq!(curve.last().unwrap().0, 1.0);
        assert!(
            curve
                .windows(2)
                .all(|pair| pair[0].0 < pair[1].0 && pair[0].1 <= pair[1].1)
        );
    }

    #[test]
    fn latencies_come_in_microseconds() {
        let mut histogram = Histogram::new_with_bounds(1, 1_000_000_000, 3).unwrap();
        assert!(Latency::of(&histogram).is_none());
        for us in 1..=1000u64 {
            histogram.record(us * 1000).unwrap();
        }
        let latency = Latency::of(&histogram).unwrap();
        assert!((latency.p50_us - 500.0).abs() < 1.0 && (latency.p99_us - 990.0).abs() < 2.0);
        assert!((latency.max_us - 1000.0).abs() < 2.0);
    }
}
