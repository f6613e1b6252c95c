//! Tables for people: one run in full, several runs by their spread.

use std::fmt::Write;

use super::document::{Comparison, Document, Spread, Summary};
use super::report::{Load, OpenReport, Report};

/// Figures of a summary, with their heading and the number of decimals.
const COLUMNS: [(&str, &str, usize); 14] = [
    ("jobs_per_second", "jobs/s", 0),
    ("server_cpu_us_per_job", "server CPU us/job", 3),
    ("bytes_per_queued_job", "bytes/queued job", 1),
    ("server_resident_peak_bytes", "server peak bytes", 0),
    ("add_round_p50_us", "add round p50 us", 1),
    ("add_round_p99_us", "add round p99 us", 1),
    ("fetch_round_p50_us", "fetch round p50 us", 1),
    ("fetch_round_p99_us", "fetch round p99 us", 1),
    ("sent_p99_us", "due to sent p99 us", 1),
    ("answered_p50_us", "due to answered p50 us", 1),
    ("answered_p99_us", "due to answered p99 us", 1),
    ("delivered_p50_us", "due to delivered p50 us", 1),
    ("delivered_p99_us", "due to delivered p99 us", 1),
    ("delivered_p999_us", "due to delivered p99.9 us", 1),
];

impl Document {
    /// Tables for people: of a single run in full, of several their medians and spread.
    pub fn to_table(&self) -> String {
        if let [run] = self.runs.as_slice() {
            return run.to_table();
        }
        let mut out = String::new();
        let mut named: Vec<&str> = Vec::new();
        for run in &self.runs {
            if !named.contains(&run.label.as_str()) {
                named.push(&run.label);
                out.push_str(&run.heading());
            }
        }
        self.summaries
            .iter()
            .for_each(|summary| append_summary(&mut out, summary));
        self.comparisons
            .iter()
            .for_each(|comparison| append_comparison(&mut out, comparison));
        out.push('\n');
        for (number, run) in self.runs.iter().enumerate() {
            let mut verdicts = String::new();
            run.append_verdicts(&mut verdicts);
            for line in verdicts.lines().filter(|line| !line.is_empty()) {
                let _ = writeln!(out, "run {}, {}, {line}", number + 1, run.label);
            }
        }
        out
    }
}

fn append_summary(out: &mut String, summary: &Summary) {
    let Summary {
        label, phase, runs, ..
    } = summary;
    let _ = writeln!(
        out,
        "\n{:<34}{:>14}{:>14}{:>14}",
        format!("{label} {phase}, {runs} runs"),
        "median",
        "lowest",
        "highest"
    );
    for (name, heading, decimals) in COLUMNS {
        let Some(Spread { median, min, max }) = summary.figures.get(name) else {
            continue;
        };
        let _ = writeln!(
            out,
            "  {heading:<32}{median:>14.decimals$}{min:>14.decimals$}{max:>14.decimals$}"
        );
    }
}

fn append_comparison(out: &mut String, comparison: &Comparison) {
    let Comparison {
        phase,
        figure,
        first,
        second,
        pairs,
        ratio,
    } = comparison;
    let heading = COLUMNS
        .iter()
        .find(|(name, _, _)| name == figure)
        .map_or(figure.as_str(), |column| column.1);
    let _ = writeln!(out, "\n{phase}: {heading}, {first} / {second}");
    for (number, (ours, theirs, ratio)) in pairs.iter().enumerate() {
        let _ = writeln!(
            out,
            "  pair {:<4}{ours:>16.3} /{theirs:>16.3}  = {ratio:>8.3}",
            number + 1
        );
    }
    let Spread { median, min, max } = ratio;
    let _ = writeln!(out, "  median {median:.3}, lowest {min:.3}, highest {max:.3}");
}

impl Report {
    /// Tables for people.
    pub fn to_table(&self) -> String {
        let mut out = self.heading();
        out.push('\n');
        self.append_rates(&mut out);
        self.append_server(&mut out);
        self.append_latencies(&mut out);
        self.append_verdicts(&mut out);
        out
    }

    /// What was measured, in a line.
    pub(super) fn heading(&self) -> String {
        let (label, address, run) = (&self.label, &self.address, &self.run);
        let Load {
            producers,
            consumers,
            queues,
            body_bytes,
            pipeline,
            count,
            acknowledge,
            delay_seconds,
            rate,
            threads,
            ..
        } = &self.load;
        let sizes: Vec<String> = body_bytes.iter().map(usize::to_string).collect();
        let sizes = sizes.join("/");
        let mut out = format!("{label} at {address}, run {run}: ");
        let _ = write!(
            out,
            "{producers} producers, {consumers} consumers, {queues} queues, {sizes}-byte bodies, "
        );
        let _ = match rate {
            Some(rate) => write!(out, "{rate} jobs/s, "),
            None => write!(out, "pipeline {pipeline}, "),
        };
        let _ = write!(out, "count {count}, {acknowledge}, ");
        if *delay_seconds > 0 {
            let _ = write!(out, "delay {delay_seconds} s, ");
        }
        let _ = writeln!(out, "{threads} threads");
        out
    }

    fn append_rates(&self, out: &mut String) {
        row(
            out,
            &[
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
                &[
                    &phase.phase,
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
            &[
                "server",
                "CPU s",
                "CPU us/job",
                "MiB before",
                "MiB after",
                "MiB peak ever",
                "bytes/queued job",
            ],
        );
        let mebibytes = |bytes: u64| format!("{:.1}", bytes as f64 / (1024.0 * 1024.0));
        for phase in &self.phases {
            let Some(server) = &phase.server else { continue };
            row(
                out,
                &[
                    &phase.phase,
                    &format!("{:.2}", server.cpu_seconds),
                    &format!("{:.3}", server.cpu_us_per_job),
                    &mebibytes(server.resident_before_bytes),
                    &mebibytes(server.resident_after_bytes),
                    &mebibytes(server.resident_peak_bytes),
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
            &["latency", "number", "p50 us", "p99 us", "p99.9 us", "max us"],
        );
        for phase in &self.phases {
            let open = phase.open.as_ref();
            let kinds = [
                ("add round", phase.add_round.as_ref()),
                ("fetch round", phase.fetch_round.as_ref()),
                ("due to sent", open.and_then(|open| open.sent.as_ref())),
                ("due to answered", open.and_then(|open| open.answered.as_ref())),
                ("due to delivered", open.and_then(|open| open.delivered.as_ref())),
            ];
            for (kind, latency) in kinds {
                let Some(latency) = latency else { continue };
                let us = |value: f64| format!("{value:.1}");
                row(
                    out,
                    &[
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
            let (name, expected) = (&phase.phase, phase.jobs_expected);
            if phase.stalled {
                let _ = writeln!(out, "{name}: FAILED, given up because nothing moved any more");
            }
            if phase.verdict.is_none() && phase.jobs < expected {
                let _ = writeln!(
                    out,
                    "{name}: FAILED, only {} of {expected} jobs were added",
                    phase.jobs
                );
            }
            if phase.open.as_ref().is_some_and(OpenReport::is_own_lateness) {
                let _ = writeln!(
                    out,
                    "{name}: half of the latency or more is the bench's own: it was late to send (due to sent)"
                );
            }
            if let Some(open) = phase.open.as_ref().filter(|open| open.early_jobs > 0) {
                let (early, most) = (open.early_jobs, open.early_max_us);
                let _ = writeln!(
                    out,
                    "{name}: {early} jobs came before their delay was over, {most:.0} us at most"
                );
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

fn row(out: &mut String, cells: &[&str]) {
    let (first, rest) = cells.split_first().expect("a row has cells");
    let _ = write!(out, "{first:<24}");
    for cell in rest {
        let _ = write!(out, "{cell:>17}");
    }
    out.push('\n');
}

#[cfg(test)]
mod tests {
    use super::super::document::tests::run;
    use super::*;

    #[test]
    fn one_run_is_told_in_full() {
        let table = Document::new(vec![run("a", 10.0, 2.0)]).to_table();
        for part in [
            "a at 127.0.0.1:1, run 00000001: 1 producers, 1 consumers, 1 queues, 12/1000-byte bodies",
            "MiB peak ever",
            "both: fetch round",
        ] {
            assert!(table.contains(part), "{part}: {table}");
        }
    }

    #[test]
    fn several_runs_are_told_by_spread_and_ratio() {
        let runs = vec![
            run("a", 10.0, 2.0),
            run("b", 5.0, 4.0),
            run("a", 30.0, 1.0),
            run("b", 10.0, 4.0),
        ];
        let table = Document::new(runs).to_table();
        let words: Vec<&str> = table.split_whitespace().collect();
        let text = words.join(" ");
        for part in [
            "a both, 2 runs median lowest highest jobs/s 20 10 30",
            "both: jobs/s, a / b pair 1 10.000 / 5.000 = 2.000 pair 2 30.000 / 10.000 = 3.000 median 2.500",
            "both: server CPU us/job, a / b pair 1 2.000 / 4.000 = 0.500",
        ] {
            assert!(text.contains(part), "{part}: {text}");
        }
    }
}
