//! LATENCY GRAPH and DOCTOR: samples drawn and described for people.

use std::fmt::Write;

use crate::stats::LatencyEvent;

/// Samples that a line of the graph holds.
const COLUMNS: usize = 80;
/// Lines of the graph.
const ROWS: u64 = 4;

/// A head, then the last samples as bars, then under each how long ago it was, read downward.
pub(super) fn graph(event: &LatencyEvent, now_s: u64) -> String {
    let shown = &event.samples[event.samples.len().saturating_sub(COLUMNS)..];
    let (low, high) = range(shown);
    let mut text = format!(
        "{} - high {high} ms, low {low} ms (all time high {} ms)\n{}\n",
        event.name,
        event.max_ms,
        "-".repeat(COLUMNS)
    );
    // Heights from 1 to ROWS: the lowest sample is seen too.
    let height = |ms: u64| 1 + (ms - low) * (ROWS - 1) / (high - low).max(1);
    for row in (1..=ROWS).rev() {
        let bars = shown.iter().map(|(_, ms)| bar(height(*ms), row));
        let line: String = bars.collect();
        text.push_str(line.trim_end());
        text.push('\n');
    }
    let ages: Vec<String> = shown
        .iter()
        .map(|(at_s, _)| age(now_s.saturating_sub(*at_s)))
        .collect();
    let depth = ages.iter().map(String::len).max().unwrap_or(0);
    for row in 0..depth {
        let line: String = ages
            .iter()
            .map(|age| age.chars().nth(row).unwrap_or(' '))
            .collect();
        text.push('\n');
        text.push_str(line.trim_end());
    }
    text.push('\n');
    text
}

fn bar(height: u64, row: u64) -> char {
    match height.cmp(&row) {
        std::cmp::Ordering::Less => ' ',
        std::cmp::Ordering::Equal => '#',
        std::cmp::Ordering::Greater => '|',
    }
}

fn range(samples: &[(u64, u64)]) -> (u64, u64) {
    let low = samples.iter().map(|(_, ms)| *ms).min().unwrap_or(0);
    let high = samples.iter().map(|(_, ms)| *ms).max().unwrap_or(0);
    (low, high)
}

fn age(seconds: u64) -> String {
    match seconds {
        0..60 => format!("{seconds}s"),
        60..3600 => format!("{}m", seconds / 60),
        3600..86_400 => format!("{}h", seconds / 3600),
        _ => format!("{}d", seconds / 86_400),
    }
}

/// What took long and how often, in words.
pub(super) fn doctor(events: &[LatencyEvent], threshold_ms: u64) -> String {
    if events.is_empty() {
        return if threshold_ms == 0 {
            "The latency monitor is off. CONFIG SET latency-monitor-threshold <milliseconds> starts it.\n"
                .to_owned()
        } else {
            format!("Nothing has taken {threshold_ms} ms or longer.\n")
        };
    }
    let mut text = String::new();
    for event in events {
        let count = event.samples.len() as u64;
        let mean = event.samples.iter().map(|(_, ms)| ms).sum::<u64>() / count;
        let deviation = event.samples.iter().map(|(_, ms)| ms.abs_diff(mean)).sum::<u64>() / count;
        let (first_s, last_s) = (event.samples[0].0, event.latest().0);
        let period_s = (last_s - first_s) as f64 / (count - 1).max(1) as f64;
        let written = writeln!(
            text,
            "{}: {count} samples, mean {mean} ms, mean deviation {deviation} ms, one every {period_s:.1} s, longest ever {} ms. {}",
            event.name,
            event.max_ms,
            advice(event.name)
        );
        written.expect("memory takes what is written");
    }
    text
}

fn advice(event: &str) -> &'static str {
    match event {
        "command" | "fast-command" => "SLOWLOG GET shows which commands; a busy machine slows all of them.",
        "eviction-cycle" => "Memory is used up: raise maxmemory, or acknowledge jobs sooner.",
        _ => "Many jobs fell due at once.",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_graph() {
        let event = LatencyEvent {
            name: "command",
            samples: vec![(100, 10), (160, 40), (165, 20)],
            max_ms: 90,
        };
        let expected = format!(
            "command - high 40 ms, low 10 ms (all time high 90 ms)\n{}\n #\n |\n |#\n#||\n\n115\nm0s\n s\n",
            "-".repeat(80)
        );
        assert_eq!(graph(&event, 170), expected);
    }

    #[test]
    fn a_doctor() {
        assert!(doctor(&[], 0).starts_with("The latency monitor is off."));
        assert_eq!(doctor(&[], 7), "Nothing has taken 7 ms or longer.\n");
        let event = LatencyEvent {
            name: "command",
            samples: vec![(100, 10), (110, 30)],
            max_ms: 40,
        };
        assert!(doctor(&[event], 7).starts_with(
            "command: 2 samples, mean 20 ms, mean deviation 10 ms, one every 10.0 s, longest ever 40 ms."
        ));
        assert_eq!(
            (age(59), age(60), age(7200), age(90_000)),
            ("59s".into(), "1m".into(), "2h".into(), "1d".into())
        );
    }
}
