//! Events that took as long as `latency-monitor-threshold` or longer: LATENCY HISTORY, LATEST, GRAPH, DOCTOR.
//!
//! A shard keeps up to 160 samples of each event, one a second at the most: the longest of that second. Names of events
//! are those of the original: `command` and `fast-command` (by the flag of the command), `jobs-processing` (a step
//! of timers), `eviction-cycle` (a step that freed memory).

use crate::settings::Settings;

/// Samples of an event.
pub const MAX_SAMPLES: usize = 160;

/// An event and its samples.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LatencyEvent {
    /// Its name.
    pub name: &'static str,
    /// Second since 1970, and milliseconds that it took; the oldest first.
    pub samples: Vec<(u64, u64)>,
    /// The longest ever, milliseconds.
    pub max_ms: u64,
}

/// The events of a shard.
#[derive(Debug, Default)]
pub struct LatencyMonitor {
    /// In the order of their first samples; there are few.
    events: Vec<LatencyEvent>,
}

impl LatencyMonitor {
    /// No event yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Something of this name took so long; kept when that is long enough.
    pub fn note(&mut self, settings: &Settings, name: &'static str, at_s: u64, took_us: u64) {
        let (threshold_ms, took_ms) = (settings.latency_threshold_ms, took_us / 1_000);
        if threshold_ms == 0 || took_ms < threshold_ms {
            return;
        }
        match self.events.iter_mut().find(|event| event.name == name) {
            Some(event) => event.add(at_s, took_ms),
            None => {
                self.events.push(LatencyEvent {
                    name,
                    samples: vec![(at_s, took_ms)],
                    max_ms: took_ms,
                });
            }
        }
    }

    /// A copy of all events.
    pub fn events(&self) -> Vec<LatencyEvent> {
        self.events.clone()
    }

    /// Forgets these events, or all when none is named. Gives how many there were.
    pub fn reset(&mut self, names: &[String]) -> i64 {
        let before = self.events.len();
        let named = |event: &LatencyEvent| names.iter().any(|name| name.eq_ignore_ascii_case(event.name));
        self.events.retain(|event| !names.is_empty() && !named(event));
        (before - self.events.len()) as i64
    }
}

impl LatencyEvent {
    /// The last sample.
    pub fn latest(&self) -> (u64, u64) {
        *self.samples.last().expect("an event has samples")
    }

    fn add(&mut self, at_s: u64, took_ms: u64) {
        self.max_ms = self.max_ms.max(took_ms);
        match self.samples.last_mut() {
            // A wall clock that went back writes into the last second, so that times never fall.
            Some((last_s, last_ms)) if at_s <= *last_s => *last_ms = (*last_ms).max(took_ms),
            _ => self.samples.push((at_s, took_ms)),
        }
        if self.samples.len() > MAX_SAMPLES {
            self.samples.remove(0);
        }
    }
}

/// The events of the node: those of one name become one, in the order of names.
pub fn merge_events(parts: impl IntoIterator<Item = Vec<LatencyEvent>>) -> Vec<LatencyEvent> {
    let mut all: Vec<LatencyEvent> = parts.into_iter().flatten().collect();
    all.sort_by_key(|event| event.name);
    let mut merged: Vec<LatencyEvent> = Vec::new();
    for event in all {
        match merged.last_mut().filter(|last| last.name == event.name) {
            Some(last) => {
                last.max_ms = last.max_ms.max(event.max_ms);
                last.samples.extend(event.samples);
            }
            None => merged.push(event),
        }
    }
    merged
        .iter_mut()
        .for_each(|event| event.samples = one_a_second(std::mem::take(&mut event.samples)));
    merged
}

fn one_a_second(mut samples: Vec<(u64, u64)>) -> Vec<(u64, u64)> {
    samples.sort_unstable();
    // The longest of a second comes last: keep that one.
    samples.reverse();
    samples.dedup_by_key(|(at_s, _)| *at_s);
    samples.truncate(MAX_SAMPLES);
    samples.reverse();
    samples
}

#[cfg(test)]
mod tests {
    use super::*;

    fn watching() -> Settings {
        Settings {
            latency_threshold_ms: 10,
            ..Settings::default()
        }
    }

    #[test]
    fn one_sample_a_second_the_longest() {
        let mut monitor = LatencyMonitor::new();
        for (at_s, ms) in [(100, 12), (100, 30), (100, 11), (101, 9), (102, 15), (99, 20)] {
            monitor.note(&watching(), "command", at_s, ms * 1_000);
        }
        let event = &monitor.events()[0];
        assert_eq!(event.samples, [(100, 30), (102, 20)]);
        assert_eq!((event.max_ms, event.latest()), (30, (102, 20)));
        for at_s in 0..500 {
            monitor.note(&watching(), "command", 1_000 + at_s, 10_000);
        }
        assert_eq!(monitor.events()[0].samples.len(), MAX_SAMPLES);
        assert_eq!(monitor.events()[0].latest(), (1_499, 10));
    }

    #[test]
    fn nothing_is_kept_while_it_is_off() {
        let mut monitor = LatencyMonitor::new();
        monitor.note(&Settings::default(), "command", 1, u64::MAX);
        assert!(monitor.events().is_empty());
    }

    #[test]
    fn events_are_forgotten_by_name_or_all() {
        let mut monitor = LatencyMonitor::new();
        for name in ["command", "fast-command", "eviction-cycle"] {
            monitor.note(&watching(), name, 1, 50_000);
        }
        assert_eq!(monitor.reset(&["COMMAND".to_owned(), "other".to_owned()]), 1);
        assert_eq!(monitor.reset(&[]), 2);
        assert_eq!(monitor.reset(&[]), 0);
    }

    #[test]
    fn shards_are_merged_by_name() {
        let event = |name, samples: &[(u64, u64)], max_ms| LatencyEvent {
            name,
            samples: samples.to_vec(),
            max_ms,
        };
        let merged = merge_events([
            vec![event("command", &[(5, 10), (7, 20)], 40)],
            vec![
                event("command", &[(6, 11), (7, 15)], 15),
                event("a", &[(1, 1)], 1),
            ],
        ]);
        assert_eq!(
            merged,
            [
                event("a", &[(1, 1)], 1),
                event("command", &[(5, 10), (6, 11), (7, 20)], 40)
            ]
        );
    }
}
