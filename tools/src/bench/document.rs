//! All runs of a bench together: what `--json` writes and `--overlay` reads.
//!
//! Figures of one machine differ from run to run, so several runs are told by their median with the lowest
//! and the highest, and two targets by the ratio of each run to the run right behind it.

use std::collections::BTreeMap;
use std::io::Write;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::error::BenchError;
use super::options::Options;
use super::page::page;
use super::report::{Latency, PhaseReport, Report};

/// Figures that two targets are compared by: higher is better for the first, lower for the others.
const COMPARED: [&str; 4] = [
    "jobs_per_second",
    "server_cpu_us_per_job",
    "answered_p99_us",
    "delivered_p99_us",
];

/// Several runs.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Document {
    /// The runs, in their order.
    pub runs: Vec<Report>,
    /// Each target's phases over all runs.
    pub summaries: Vec<Summary>,
    /// Ratios of two targets, phase by phase.
    pub comparisons: Vec<Comparison>,
}

/// One phase of one target over all its runs.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Summary {
    /// Name of the target.
    pub label: String,
    /// Name of the phase.
    pub phase: String,
    /// Number of runs.
    pub runs: usize,
    /// Figures by name, units last.
    pub figures: BTreeMap<String, Spread>,
}

/// The same figure of several runs.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Spread {
    /// The middle one, or the mean of both.
    pub median: f64,
    /// The lowest.
    pub min: f64,
    /// The highest.
    pub max: f64,
}

impl Spread {
    /// Of all values; `None` if there are none.
    pub fn of(mut values: Vec<f64>) -> Option<Self> {
        values.sort_by(f64::total_cmp);
        let (min, max) = (*values.first()?, *values.last()?);
        let middle = values.len() / 2;
        let median = match values.len() % 2 {
            0 => f64::midpoint(values[middle - 1], values[middle]),
            _ => values[middle],
        };
        Some(Self { median, min, max })
    }
}

/// A figure of a phase on two targets, pair by pair of runs.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Comparison {
    /// Name of the phase.
    pub phase: String,
    /// Name of the figure, units last.
    pub figure: String,
    /// Name of the first target.
    pub first: String,
    /// Name of the second one.
    pub second: String,
    /// First, second, and first divided by second.
    pub pairs: Vec<(f64, f64, f64)>,
    /// The ratios of all pairs.
    pub ratio: Spread,
}

impl Document {
    /// Of runs; if there are two targets, they ran in turn.
    pub fn new(runs: Vec<Report>) -> Self {
        Self {
            summaries: summaries(&runs),
            comparisons: comparisons(&runs),
            runs,
        }
    }

    /// True if every run passed.
    pub fn passed(&self) -> bool {
        self.runs.iter().all(Report::passed)
    }

    /// As JSON.
    pub fn to_json(&self) -> String {
        serde_json::to_string_pretty(self).expect("a document has only plain values")
    }

    /// Tells the result as the options say: a table or JSON to `out`, and the files asked for.
    pub fn write(&self, options: &Options, out: &mut impl Write) -> Result<(), BenchError> {
        let is_file = |path: &&PathBuf| path.as_os_str() != "-";
        match &options.json {
            Some(path) if !is_file(&path) => writeln!(out, "{}", self.to_json())?,
            _ if self.runs.is_empty() => {}
            _ => writeln!(out, "{}", self.to_table().trim_end())?,
        }
        if let Some(path) = options.json.as_ref().filter(is_file) {
            write_file(path, &(self.to_json() + "\n"))?;
        }
        match &options.report {
            Some(path) => write_file(path, &self.to_page(&options.overlay)?),
            None => Ok(()),
        }
    }

    /// The page of plots, with the documents of these files beside this one.
    fn to_page(&self, overlay: &[PathBuf]) -> Result<String, BenchError> {
        let name = |path: &PathBuf| {
            let stem = path.file_stem().unwrap_or(path.as_os_str());
            stem.to_string_lossy().into_owned()
        };
        let read = |path: &PathBuf| Ok((name(path), Self::read(path)?));
        let others: Vec<(String, Self)> = overlay.iter().map(read).collect::<Result<_, BenchError>>()?;
        let mut documents = vec![];
        if !self.runs.is_empty() {
            documents.push(("this".to_owned(), self));
        }
        documents.extend(others.iter().map(|(name, document)| (name.clone(), document)));
        Ok(page(&documents))
    }

    /// Reads a file of `--json`.
    pub fn read(path: &Path) -> Result<Self, BenchError> {
        let text = std::fs::read_to_string(path).and_then(|text| Ok(serde_json::from_str(&text)?));
        text.map_err(|source| BenchError::File {
            verb: "read",
            path: path.to_owned(),
            source,
        })
    }
}

fn write_file(path: &Path, text: &str) -> Result<(), BenchError> {
    std::fs::write(path, text).map_err(|source| BenchError::File {
        verb: "write",
        path: path.to_owned(),
        source,
    })
}

/// A phase's figures by name.
pub fn figures(phase: &PhaseReport) -> Vec<(String, f64)> {
    let mut figures = vec![("jobs_per_second".to_owned(), phase.jobs_per_second)];
    if let Some(server) = &phase.server {
        figures.push(("server_cpu_us_per_job".into(), server.cpu_us_per_job));
        figures.push((
            "server_resident_peak_bytes".into(),
            server.resident_peak_bytes as f64,
        ));
        figures.extend(
            server
                .bytes_per_queued_job
                .map(|bytes| ("bytes_per_queued_job".into(), bytes)),
        );
    }
    let open = phase.open.as_ref();
    let latencies = [
        ("add_round", phase.add_round.as_ref()),
        ("fetch_round", phase.fetch_round.as_ref()),
        ("sent", open.and_then(|open| open.sent.as_ref())),
        ("answered", open.and_then(|open| open.answered.as_ref())),
        ("delivered", open.and_then(|open| open.delivered.as_ref())),
    ];
    for (name, latency) in latencies {
        figures.extend(
            latency
                .into_iter()
                .flat_map(|latency| latency_figures(name, latency)),
        );
    }
    figures
}

fn latency_figures(name: &str, latency: &Latency) -> [(String, f64); 4] {
    [
        (format!("{name}_p50_us"), latency.p50_us),
        (format!("{name}_p99_us"), latency.p99_us),
        (format!("{name}_p999_us"), latency.p999_us),
        (format!("{name}_max_us"), latency.max_us),
    ]
}

fn summaries(runs: &[Report]) -> Vec<Summary> {
    type Values = BTreeMap<String, Vec<f64>>;
    let mut collected: Vec<(&str, &str, Values)> = Vec::new();
    for run in runs {
        for phase in &run.phases {
            let at = collected
                .iter()
                .position(|(label, name, _)| (*label, *name) == (&run.label, &phase.phase));
            let at = at.unwrap_or_else(|| {
                collected.push((&run.label, &phase.phase, Values::new()));
                collected.len() - 1
            });
            for (name, value) in figures(phase) {
                collected[at].2.entry(name).or_default().push(value);
            }
        }
    }
    let spreads = |values: Values| {
        let spread = |(name, values)| Some((name, Spread::of(values)?));
        values.into_iter().filter_map(spread).collect()
    };
    let summary = |(label, phase, values): (&str, &str, Values)| Summary {
        label: label.to_owned(),
        phase: phase.to_owned(),
        runs: values.get("jobs_per_second").map_or(0, Vec::len),
        figures: spreads(values),
    };
    collected.into_iter().map(summary).collect()
}

fn comparisons(runs: &[Report]) -> Vec<Comparison> {
    let Some(first) = runs.first() else { return vec![] };
    let Some(second) = runs.iter().find(|run| run.label != first.label) else {
        return vec![];
    };
    let of = |label: &str, phase: &str, figure: &str| -> Vec<f64> {
        let phases = runs
            .iter()
            .filter(|run| run.label == label)
            .flat_map(|run| &run.phases);
        let figures = phases.filter(|found| found.phase == phase).flat_map(figures);
        figures
            .filter(|(name, _)| name == figure)
            .map(|(_, value)| value)
            .collect()
    };
    let mut comparisons = Vec::new();
    for phase in &first.phases {
        for figure in COMPARED {
            let (ours, theirs) = (
                of(&first.label, &phase.phase, figure),
                of(&second.label, &phase.phase, figure),
            );
            let pairs = ours.into_iter().zip(theirs).filter(|(_, theirs)| *theirs > 0.0);
            let pairs: Vec<_> = pairs
                .map(|(ours, theirs)| (ours, theirs, ours / theirs))
                .collect();
            let ratios = pairs.iter().map(|(_, _, ratio)| *ratio).collect();
            comparisons.extend(Spread::of(ratios).map(|ratio| Comparison {
                phase: phase.phase.clone(),
                figure: figure.to_owned(),
                first: first.label.clone(),
                second: second.label.clone(),
                pairs,
                ratio,
            }));
        }
    }
    comparisons
}

#[cfg(test)]
pub(super) mod tests {
    use super::super::report::{Load, ServerUse};
    use super::super::target::Target;
    use super::*;

    /// A run of one phase with the given figures.
    pub fn run(label: &str, jobs_per_second: f64, cpu_us_per_job: f64) -> Report {
        let phase = PhaseReport {
            phase: "both".into(),
            jobs: 10,
            jobs_expected: 10,
            commands: 30,
            seconds: 1.0,
            jobs_per_second,
            commands_per_second: 30.0,
            stalled: false,
            generator_cpu_seconds: 0.5,
            server: Some(ServerUse {
                cpu_seconds: 1.0,
                cpu_us_per_job,
                resident_before_bytes: 1,
                resident_after_bytes: 2,
                resident_peak_bytes: 3,
                bytes_per_queued_job: None,
            }),
            add_round: None,
            fetch_round: Some(Latency {
                rounds: 1,
                p50_us: 1.0,
                p99_us: 2.0,
                p999_us: 3.0,
                max_us: 4.0,
                curve: vec![(0.0, 1.0), (0.9, 2.0), (1.0, 4.0)],
            }),
            open: None,
            verdict: None,
        };
        let load = Load {
            producers: 1,
            consumers: 1,
            queues: 1,
            body_bytes: vec![12, 1000],
            pipeline: 1,
            count: 1,
            acknowledge: "ACKJOB".into(),
            delay_seconds: 0,
            retry_seconds: None,
            replicate: None,
            rate: None,
            threads: 1,
            cpus: None,
        };
        Report {
            label: label.into(),
            target: Target::Shardq,
            address: "127.0.0.1:1".into(),
            run: "00000001".into(),
            load,
            phases: vec![phase],
        }
    }

    #[test]
    fn a_spread_is_median_lowest_and_highest() {
        let spread = |values: &[f64]| Spread::of(values.to_vec()).map(|it| (it.median, it.min, it.max));
        assert_eq!(spread(&[3.0, 1.0, 9.0]), Some((3.0, 1.0, 9.0)));
        assert_eq!(spread(&[4.0, 1.0]), Some((2.5, 1.0, 4.0)));
        assert_eq!(spread(&[]), None);
    }

    #[test]
    fn runs_of_a_target_are_summed_up() {
        let document = Document::new(vec![
            run("a", 10.0, 2.0),
            run("a", 30.0, 1.0),
            run("a", 20.0, 9.0),
        ]);
        let [summary] = document.summaries.as_slice() else {
            panic!("one target, one phase")
        };
        assert_eq!((summary.runs, summary.label.as_str()), (3, "a"));
        assert_eq!(summary.figures["jobs_per_second"].median, 20.0);
        assert_eq!(summary.figures["server_cpu_us_per_job"].max, 9.0);
        assert_eq!(summary.figures["fetch_round_max_us"].min, 4.0);
        assert!(document.comparisons.is_empty() && document.passed());
    }

    #[test]
    fn two_targets_are_compared_pair_by_pair() {
        let runs = vec![
            run("a", 10.0, 2.0),
            run("b", 5.0, 4.0),
            run("a", 30.0, 1.0),
            run("b", 10.0, 4.0),
        ];
        let document = Document::new(runs);
        let rate = &document.comparisons[0];
        assert_eq!((rate.first.as_str(), rate.second.as_str()), ("a", "b"));
        assert_eq!(rate.pairs, [(10.0, 5.0, 2.0), (30.0, 10.0, 3.0)]);
        assert_eq!(rate.ratio.median, 2.5);
        let cpu = &document.comparisons[1];
        assert_eq!(cpu.figure, "server_cpu_us_per_job");
        assert_eq!(cpu.ratio.median, 0.375);
        assert_eq!(
            document.comparisons.len(),
            2,
            "figures that neither has are left out"
        );
    }

    #[test]
    fn a_document_reads_as_it_was_written() {
        let document = Document::new(vec![run("a", 10.0, 2.0)]);
        let again: Document = serde_json::from_str(&document.to_json()).unwrap();
        assert_eq!(again.to_json(), document.to_json());
    }
}
