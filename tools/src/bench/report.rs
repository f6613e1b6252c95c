//! What a bench found: numbers for machines (`--json`) and a table for people, from the same values.
//!
//! Field names carry their units; they are what scripts read, so they stay as they are.

use std::fmt::Write;

use hdrhistogram::Histogram;
use serde::Serialize;

use super::ledger::Verdict;
use super::process::Usage;

/// A whole run.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
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
#[derive(Clone, Debug, Serialize)]
pub struct Load {
    /// Connections that add.
    pub producers: u32,
    /// Connections that fetch.
    pub consumers: u32,
    /// Number of queues.
    pub queues: u32,
    /// Size of a body.
    pub body_bytes: usize,
    /// Commands in a round.
    pub pipeline: u32,
    /// COUNT of GETJOB.
    pub count: u32,
    /// The acknowledging command.
    pub acknowledge: &'static str,
    /// Generator threads.
    pub threads: u32,
}

/// One phase.
#[derive(Clone, Debug, Serialize)]
pub struct PhaseReport {
    /// `add`, `drain` or `both`.
    pub phase: &'static str,
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
#[derive(Clone, Debug, Serialize)]
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

/// How long rounds took.
#[derive(Clone, Debug, Serialize)]
pub struct Latency {
    /// Number of rounds.
    pub rounds: u64,
    /// Half of the rounds took at most this.
    pub p50_us: f64,
    /// 99 % took at most this.
    pub p99_us: f64,
    /// 99.9 % took at most this.
    pub p999_us: f64,
    /// The longest.
    pub max_us: f64,
}

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
        })
    }
}

impl Report {
    /// True if every phase passed.
    pub fn passed(&self) -> bool {
        self.phases.iter().all(PhaseReport::passed)
    }

    /// One JSON document.
    pub fn to_json(&self) -> String {
        serde_json::to_string_pretty(self).expect("a report has only plain values")
    }

    /// Tables for people.
    pub fn to_table(&self) -> String {
        let load = &self.load;
        let mut out = format!(
            "{}, run {}: {} producers, {} consumers, {} queues, {}-byte bodies, pipeline {}, count {}, {}, {} threads\n\n",
            self.address,
            self.run,
            load.producers,
            load.consumers,
            load.queues,
            load.body_bytes,
            load.pipeline,
            load.count,
            load.acknowledge,
            load.threads,
        );
        self.append_rates(&mut out);
        self.append_server(&mut out);
        self.append_latencies(&mut out);
        self.append_verdicts(&mut out);
        out
    }

    fn append_rates(&self, out: &mut String) {
        row(
            out,
            [
                "phase",
                "jobs",
                "seconds",
                "jobs/s",
                "commands/s",
                "generator CPU s",
            ],
        );
        for phase in &self.phases {
            row(
                out,
                [
                    phase.phase,
                    &phase.jobs.to_string(),
                    &format!("{:.3}", phase.seconds),
                    &format!("{:.0}", phase.jobs_per_second),
                    &format!("{:.0}", phase.commands_per_second),
                    &format!("{:.2}", phase.generator_cpu_seconds),
                ],
            );
        }
    }

    fn append_server(&self, out: &mut String) {
        if self.phases.iter().all(|phase| phase.server.is_none()) {
            out.push_str(
                "\nThe server's CPU time and memory are unknown: it does not run on this machine.\n",
            );
            return;
        }
        out.push('\n');
        row(
            out,
            [
                "server",
                "CPU s",
                "CPU us/job",
                "MiB before",
                "MiB after",
                "bytes/queued job",
            ],
        );
        let mebibytes = |bytes: u64| format!("{:.1}", bytes as f64 / (1024.0 * 1024.0));
        for phase in &self.phases {
            let Some(server) = &phase.server else { continue };
            row(
                out,
                [
                    phase.phase,
                    &format!("{:.2}", server.cpu_seconds),
                    &format!("{:.3}", server.cpu_us_per_job),
                    &mebibytes(server.resident_before_bytes),
                    &mebibytes(server.resident_after_bytes),
                    &server
                        .bytes_per_queued_job
                        .map_or("-".into(), |bytes| format!("{bytes:.1}")),
                ],
            );
        }
    }

    fn append_latencies(&self, out: &mut String) {
        out.push('\n');
        row(
            out,
            ["rounds", "number", "p50 us", "p99 us", "p99.9 us", "max us"],
        );
        for phase in &self.phases {
            for (kind, latency) in [("add", &phase.add_round), ("fetch", &phase.fetch_round)] {
                let Some(latency) = latency else { continue };
                let us = |value: f64| format!("{value:.1}");
                row(
                    out,
                    [
                        &format!("{}: {kind}", phase.phase),
                        &latency.rounds.to_string(),
                        &us(latency.p50_us),
                        &us(latency.p99_us),
                        &us(latency.p999_us),
                        &us(latency.max_us),
                    ],
                );
            }
        }
    }

    fn append_verdicts(&self, out: &mut String) {
        out.push('\n');
        for phase in &self.phases {
            let (name, expected) = (phase.phase, phase.jobs_expected);
            if phase.stalled {
                let _ = writeln!(out, "{name}: FAILED, given up because nothing moved any more");
            }
            let Some(verdict) = &phase.verdict else { continue };
            let _ = match (verdict.passed(), verdict.marked) {
                (true, true) => writeln!(out, "{name}: all {expected} jobs came, each exactly once"),
                (true, false) => {
                    writeln!(
                        out,
                        "{name}: {expected} jobs came (bodies too small to tell them apart)"
                    )
                }
                (false, _) => {
                    writeln!(
                        out,
                        "{name}: FAILED, of {expected} jobs: {}",
                        verdict.faults().join(", ")
                    )
                }
            };
        }
    }
}

fn row(out: &mut String, cells: [&str; 6]) {
    let [first, rest @ ..] = cells;
    let _ = write!(out, "{first:<14}");
    for cell in rest {
        let _ = write!(out, "{cell:>17}");
    }
    out.push('\n');
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
