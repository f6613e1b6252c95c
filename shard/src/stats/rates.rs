//! What happens at present: the mean of 16 samples of 100 ms, as the original shows it.
//!
//! Samples are taken when somebody looks, at inputs and at INFO, never by a timer. When 100 ms or more have gone by
//! since the last one, their mean rate stands for all samples that were missed: exact for a busy shard, and it falls
//! to nothing on one that is idle.

/// Samples that are kept.
const SAMPLES: usize = 16;
/// Time of a sample.
const SAMPLE_US: u64 = 100_000;

/// Something for each of what is measured: a total, or an amount per second.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PerSecond {
    /// Commands.
    pub commands: u64,
    /// Bytes from clients.
    pub input_bytes: u64,
    /// Bytes to clients.
    pub output_bytes: u64,
}

impl PerSecond {
    /// Adds another shard's.
    pub fn add(&mut self, other: &Self) {
        self.commands += other.commands;
        self.input_bytes += other.input_bytes;
        self.output_bytes += other.output_bytes;
    }

    fn since(&self, earlier: &Self, elapsed_us: u64) -> Self {
        let rate = |now: u64, then: u64| {
            (u128::from(now.saturating_sub(then)) * 1_000_000 / u128::from(elapsed_us)) as u64
        };
        Self {
            commands: rate(self.commands, earlier.commands),
            input_bytes: rate(self.input_bytes, earlier.input_bytes),
            output_bytes: rate(self.output_bytes, earlier.output_bytes),
        }
    }
}

/// The samples of a shard.
#[derive(Debug, Default)]
pub struct Rates {
    samples: [PerSecond; SAMPLES],
    next: usize,
    /// When the last sample was taken, and the totals then.
    last: Option<(u64, PerSecond)>,
}

impl Rates {
    /// Takes the samples that are due. `totals` count from the start of the shard.
    pub fn observe(&mut self, mono_us: u64, totals: PerSecond) {
        let Some((last_us, last)) = self.last else {
            self.last = Some((mono_us, totals));
            return;
        };
        let elapsed_us = mono_us.saturating_sub(last_us);
        if elapsed_us < SAMPLE_US {
            return;
        }
        let rate = totals.since(&last, elapsed_us);
        for _ in 0..(elapsed_us / SAMPLE_US).min(SAMPLES as u64) {
            self.samples[self.next] = rate;
            self.next = (self.next + 1) % SAMPLES;
        }
        self.last = Some((mono_us, totals));
    }

    /// The mean of the samples.
    pub fn mean(&self) -> PerSecond {
        let mut sum = PerSecond::default();
        self.samples.iter().for_each(|sample| sum.add(sample));
        PerSecond {
            commands: sum.commands / SAMPLES as u64,
            input_bytes: sum.input_bytes / SAMPLES as u64,
            output_bytes: sum.output_bytes / SAMPLES as u64,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn totals(commands: u64) -> PerSecond {
        PerSecond {
            commands,
            input_bytes: commands * 10,
            output_bytes: 0,
        }
    }

    #[test]
    fn a_steady_load_shows_its_rate_and_an_idle_shard_none() {
        let mut rates = Rates::default();
        for step in 0..=16u64 {
            rates.observe(step * SAMPLE_US, totals(step * 50));
        }
        assert_eq!(
            rates.mean(),
            PerSecond {
                commands: 500,
                input_bytes: 5_000,
                output_bytes: 0
            }
        );
        rates.observe(24 * SAMPLE_US, totals(16 * 50));
        assert_eq!(rates.mean().commands, 250, "half of the samples saw nothing");
        rates.observe(1_000 * SAMPLE_US, totals(16 * 50));
        assert_eq!(rates.mean().commands, 0);
    }

    #[test]
    fn looking_more_often_than_a_sample_changes_nothing() {
        let mut rates = Rates::default();
        rates.observe(0, totals(0));
        for us in 1..SAMPLE_US / 1_000 {
            rates.observe(us * 1_000, totals(us));
        }
        assert_eq!(rates.mean(), PerSecond::default());
    }
}
