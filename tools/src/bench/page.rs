//! The page of `--report`: every plot of every phase, this bench's runs beside those of earlier ones.
//!
//! One file without scripts and without anything to load. A series is one target of one document; it has the
//! same colour in all plots.

use std::fmt::Write;

use super::document::{Document, Spread, Summary};
use super::plot::{Bar, Curve, bars, curves, escape};
use super::report::{Latency, PhaseReport, Report};

/// Bar plots: figure, heading, decimals.
const BARS: [(&str, &str, usize); 4] = [
    ("jobs_per_second", "Jobs per second", 0),
    ("server_cpu_us_per_job", "Server CPU per job, microseconds", 3),
    ("bytes_per_queued_job", "Server memory per queued job, bytes", 1),
    ("server_resident_peak_bytes", "Most server memory ever, bytes", 0),
];

/// Phases in the order of the page.
const PHASES: [(&str, &str); 4] = [
    ("add", "Add only"),
    ("drain", "Fetch and acknowledge only"),
    ("both", "Add, fetch and acknowledge at once"),
    ("open", "Open loop: every job sent when it is due"),
];

/// Colours of the series; those beyond start again.
const COLOURS: [&str; 8] = [
    "#3366cc", "#dc7a12", "#2a9d5c", "#b8338f", "#7a5fd0", "#c0392b", "#0a8fa8", "#8a7a1d",
];

const STYLE: &str = "body{font:15px/1.5 system-ui,sans-serif;max-width:780px;margin:2em auto;padding:0 1em;\
color:#222;background:#fff}h1{font-size:1.5em}h2{margin-top:2em;border-bottom:1px solid #ccc}\
h3{font-size:1em;margin:1.5em 0 .3em}svg{max-width:100%;height:auto}svg text{font-size:12px;fill:#444}\
.grid{stroke:#ddd}.spread{stroke:#222;stroke-width:2}polyline{fill:none!important;stroke-width:2}\
td,th{text-align:left;padding:.1em .8em .1em 0;vertical-align:top}\
.failed{color:#c0392b;font-weight:bold}.key{display:inline-block;width:1em;height:1em;vertical-align:-.15em}";

/// A latency of a phase.
type Kind = (&'static str, fn(&PhaseReport) -> Option<&Latency>);

const KINDS: [Kind; 5] = [
    ("Producers' rounds", |phase| phase.add_round.as_ref()),
    ("Consumers' rounds", |phase| phase.fetch_round.as_ref()),
    ("From due to sent: the bench's own lateness", |phase| {
        phase.open.as_ref()?.sent.as_ref()
    }),
    ("From due to the answer that the job was added", |phase| {
        phase.open.as_ref()?.answered.as_ref()
    }),
    ("From due to a consumer", |phase| {
        phase.open.as_ref()?.delivered.as_ref()
    }),
];

/// One target of one document.
struct Series<'a> {
    name: String,
    document: &'a Document,
    label: &'a str,
}

/// The page of named documents; the name tells apart what has the same label.
pub fn page(documents: &[(String, &Document)]) -> String {
    let series = series_of(documents);
    let mut out = format!(
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><title>shardq-cli bench</title>\n\
         <style>{STYLE}"
    );
    for number in 0..series.len() {
        let colour = COLOURS[number % COLOURS.len()];
        let _ = write!(
            out,
            ".s{number}{{fill:{colour};stroke:{colour};background:{colour}}}"
        );
    }
    out.push_str("</style></head><body>\n<h1>shardq-cli bench</h1>\n");
    append_series(&mut out, &series);
    append_comparisons(&mut out, documents);
    for (phase, heading) in PHASES {
        append_phase(&mut out, &series, phase, heading);
    }
    out.push_str("</body></html>\n");
    out
}

fn series_of<'a>(documents: &[(String, &'a Document)]) -> Vec<Series<'a>> {
    let mut series: Vec<Series<'a>> = Vec::new();
    for (name, document) in documents {
        let before = series.len();
        for run in &document.runs {
            if series[before..].iter().any(|known| known.label == run.label) {
                continue;
            }
            let name = match documents.len() {
                1 => run.label.clone(),
                _ => format!("{name}: {}", run.label),
            };
            let label = &run.label;
            series.push(Series {
                name,
                document,
                label,
            });
        }
    }
    series
}

impl<'a> Series<'a> {
    fn runs(&self) -> impl Iterator<Item = &'a Report> {
        let label = self.label;
        self.document.runs.iter().filter(move |run| run.label == label)
    }

    fn summary(&self, phase: &str) -> Option<&'a Summary> {
        let mut summaries = self.document.summaries.iter();
        summaries.find(|summary| summary.label == self.label && summary.phase == phase)
    }
}

/// What each series is, and whether its jobs all came.
fn append_series(out: &mut String, series: &[Series<'_>]) {
    out.push_str("<table>\n");
    for (number, one) in series.iter().enumerate() {
        let verdict = match one.runs().all(Report::passed) {
            true => "every job came, exactly once",
            false => "<span class=\"failed\">FAILED: jobs were missing or doubled</span>",
        };
        let load = one.runs().next().map(Report::heading).unwrap_or_default();
        let (name, runs) = (escape(&one.name), one.runs().count());
        let _ = writeln!(
            out,
            "<tr><td><span class=\"key s{number}\"></span> {name}</td><td>{}<br>runs: {runs}; {verdict}</td></tr>",
            escape(load.trim_end())
        );
    }
    out.push_str("</table>\n");
}

fn append_comparisons(out: &mut String, documents: &[(String, &Document)]) {
    let comparisons = || documents.iter().flat_map(|(_, document)| &document.comparisons);
    if comparisons().next().is_none() {
        return;
    }
    out.push_str("<h2>Ratios, pair by pair</h2>\n<table><tr><th>phase</th><th>figure</th><th>ratio</th>");
    out.push_str("<th>median</th><th>lowest</th><th>highest</th></tr>\n");
    for comparison in comparisons() {
        let Spread { median, min, max } = comparison.ratio;
        let _ = writeln!(
            out,
            "<tr><td>{}</td><td>{}</td><td>{} / {}</td><td>{median:.3}</td><td>{min:.3}</td><td>{max:.3}</td></tr>",
            escape(&comparison.phase),
            escape(&comparison.figure),
            escape(&comparison.first),
            escape(&comparison.second),
        );
    }
    out.push_str("</table>\n");
}

/// The plots of a phase, those that have anything to show.
fn append_phase(out: &mut String, series: &[Series<'_>], phase: &str, heading: &str) {
    if series.iter().all(|one| one.summary(phase).is_none()) {
        return;
    }
    let _ = writeln!(out, "<h2>{heading}</h2>");
    for (figure, title, decimals) in BARS {
        let bar = |(number, one): (usize, &Series<'_>)| {
            let spread = *one.summary(phase)?.figures.get(figure)?;
            Some(Bar {
                name: one.name.clone(),
                series: number,
                spread,
            })
        };
        let found: Vec<Bar> = series.iter().enumerate().filter_map(bar).collect();
        if !found.is_empty() {
            let _ = writeln!(out, "<h3>{title}</h3>\n{}", bars(&found, decimals));
        }
    }
    for (title, latency) in KINDS {
        let found = curves_of(series, phase, latency);
        if !found.is_empty() {
            let _ = writeln!(out, "<h3>{title}, by percentile</h3>\n{}", curves(&found));
        }
    }
}

/// A line for every run.
fn curves_of(
    series: &[Series<'_>],
    phase: &str,
    latency: fn(&PhaseReport) -> Option<&Latency>,
) -> Vec<Curve> {
    let mut found = Vec::new();
    for (number, one) in series.iter().enumerate() {
        let phases = one
            .runs()
            .flat_map(|run| &run.phases)
            .filter(|it| it.phase == phase);
        for latency in phases.filter_map(latency) {
            found.push(Curve {
                name: format!(
                    "{}: p50 {:.1} us, p99 {:.1} us, p99.9 {:.1} us, longest {:.1} us",
                    one.name, latency.p50_us, latency.p99_us, latency.p999_us, latency.max_us
                ),
                series: number,
                points: latency.curve.clone(),
                number: latency.rounds,
            });
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::super::document::tests::run;
    use super::*;

    #[test]
    fn a_page_shows_every_series_and_run() {
        let now = Document::new(vec![
            run("a", 10.0, 2.0),
            run("b<", 5.0, 4.0),
            run("a", 30.0, 1.0),
        ]);
        let before = Document::new(vec![run("a", 7.0, 3.0)]);
        let page = page(&[("now".into(), &now), ("before".into(), &before)]);
        for name in ["now: a", "now: b&lt;", "before: a"] {
            assert!(page.contains(name), "{name}");
        }
        assert_eq!(page.matches("<polyline").count(), 4, "a line for every run");
        assert_eq!(page.matches("<rect").count(), 9, "three series in three plots");
        assert!(page.contains("Ratios, pair by pair") && page.contains("a / b&lt;"));
        for absent in ["<script", "http", "src=", "Open loop", "FAILED"] {
            assert!(!page.contains(absent), "{absent}");
        }
    }

    #[test]
    fn a_failure_is_told() {
        let mut failed = run("a", 10.0, 2.0);
        failed.phases[0].stalled = true;
        let document = Document::new(vec![failed]);
        assert!(page(&[("now".into(), &document)]).contains("FAILED"));
    }
}
