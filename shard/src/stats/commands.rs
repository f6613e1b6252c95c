//! How often each command ran and how long it took: Commandstats of INFO, and LATENCY HISTOGRAM.
//!
//! Recording must cost next to nothing, so it goes by the socket input: [`CommandStats::count`] notes a command,
//! [`CommandStats::settle`] ends the input and gives each of its k commands a k-th of the time. Commands that waited for
//! another shard are recorded one by one with their own time; the time of a GETJOB that blocked is not counted.

use hdrhistogram::Histogram;

/// A command's place in the table of commands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CommandNo(pub u8);

/// Longest duration that is told apart from longer ones, as Redis: one second.
const LONGEST_NS: u64 = 1_000_000_000;
/// Bits of the histograms' precision, as Redis.
const SIGNIFICANT_DIGITS: u8 = 2;

/// Calls and time of one command.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CommandTotal {
    /// How often it ran.
    pub calls: u64,
    /// How long, together.
    pub took_ns: u64,
}

impl CommandTotal {
    /// How long, together, in microseconds.
    pub fn took_us(&self) -> u64 {
        self.took_ns / 1_000
    }
}

/// Adds the totals of another shard, place by place.
pub(super) fn add_totals(sum: &mut Vec<CommandTotal>, other: &[CommandTotal]) {
    if sum.len() < other.len() {
        sum.resize(other.len(), CommandTotal::default());
    }
    for (sum, other) in sum.iter_mut().zip(other) {
        sum.calls += other.calls;
        sum.took_ns += other.took_ns;
    }
}

/// The commands of a shard.
#[derive(Clone, Debug, Default)]
pub struct CommandStats {
    /// By number; as long as the highest number seen.
    commands: Vec<OneCommand>,
    /// Numbers of the commands of the present input.
    touched: Vec<u8>,
}

#[derive(Clone, Debug, Default)]
struct OneCommand {
    total: CommandTotal,
    /// Made at the first call: most commands are never called.
    histogram: Option<Box<Histogram<u64>>>,
    /// Calls of the present input.
    unsettled: u32,
}

impl CommandStats {
    /// A command of the present input started and ended.
    pub fn count(&mut self, command: CommandNo) {
        let one = self.one(command);
        one.unsettled += 1;
        if one.unsettled == 1 {
            self.touched.push(command.0);
        }
    }

    /// The command that started last does not end within the present input after all.
    pub fn uncount(&mut self, command: CommandNo) {
        let one = self.one(command);
        one.unsettled = one.unsettled.checked_sub(1).expect("the command was counted");
        if one.unsettled == 0 {
            self.touched.retain(|&number| number != command.0);
        }
    }

    /// How many commands the present input had so far.
    pub fn unsettled(&self) -> u64 {
        self.touched
            .iter()
            .map(|&number| u64::from(self.commands[usize::from(number)].unsettled))
            .sum()
    }

    /// The present input ends, and took so long: its commands share the time. Gives the share, in microseconds.
    pub fn settle(&mut self, elapsed_us: u64) -> u64 {
        let count = self.unsettled();
        if count == 0 {
            return 0;
        }
        let share_ns = elapsed_us.saturating_mul(1_000) / count;
        let mut touched = std::mem::take(&mut self.touched);
        for &number in &touched {
            let one = &mut self.commands[usize::from(number)];
            let calls = std::mem::take(&mut one.unsettled);
            one.record(share_ns, u64::from(calls));
        }
        touched.clear();
        self.touched = touched;
        share_ns / 1_000
    }

    /// So many of a command ended that took so long each.
    pub fn record(&mut self, command: CommandNo, elapsed_us: u64, calls: u64) {
        self.one(command).record(elapsed_us.saturating_mul(1_000), calls);
    }

    /// Calls and time of each command, by number.
    pub fn totals(&self) -> Vec<CommandTotal> {
        self.commands.iter().map(|one| one.total).collect()
    }

    /// Adds another shard's.
    pub fn add(&mut self, other: &Self) {
        for (number, theirs) in other.commands.iter().enumerate() {
            let ours = self.one(CommandNo(number as u8));
            ours.total.calls += theirs.total.calls;
            ours.total.took_ns += theirs.total.took_ns;
            match (&mut ours.histogram, &theirs.histogram) {
                (_, None) => {}
                (None, Some(histogram)) => ours.histogram = Some(histogram.clone()),
                (Some(ours), Some(theirs)) => {
                    ours.add(&**theirs).expect("all histograms have the same range")
                }
            }
        }
    }

    /// A command's histogram: pairs of an upper bound in microseconds and how many calls took at most as long. Bounds are
    /// about powers of two; those that add nothing are left out. `None` when it was never called.
    pub fn histogram_us(&self, command: CommandNo) -> Option<(u64, Vec<(u64, u64)>)> {
        let one = self.commands.get(usize::from(command.0))?;
        let histogram = one.histogram.as_ref()?;
        let mut buckets = Vec::new();
        let mut so_far = 0;
        for step in histogram.iter_log(1_024, 2.0) {
            so_far += step.count_since_last_iteration();
            if step.count_since_last_iteration() > 0 {
                let bound_ns = histogram.highest_equivalent(step.value_iterated_to());
                buckets.push((bound_ns / 1_000, so_far));
            }
        }
        Some((one.total.calls, buckets))
    }

    fn one(&mut self, command: CommandNo) -> &mut OneCommand {
        let number = usize::from(command.0);
        if number >= self.commands.len() {
            self.commands.resize_with(number + 1, OneCommand::default);
        }
        &mut self.commands[number]
    }
}

impl OneCommand {
    fn record(&mut self, took_ns: u64, calls: u64) {
        self.total.calls += calls;
        self.total.took_ns += took_ns.saturating_mul(calls);
        let histogram = self.histogram.get_or_insert_with(|| {
            let histogram = Histogram::new_with_bounds(1, LONGEST_NS, SIGNIFICANT_DIGITS);
            Box::new(histogram.expect("the range of the histograms is a valid one"))
        });
        histogram.saturating_record_n(took_ns.max(1), calls);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ADD: CommandNo = CommandNo(14);
    const ACK: CommandNo = CommandNo(16);

    #[test]
    fn the_commands_of_an_input_share_its_time() {
        let mut stats = CommandStats::default();
        assert_eq!(stats.settle(1_000_000), 0, "no command, no time");
        (0..3).for_each(|_| stats.count(ADD));
        stats.count(ACK);
        stats.count(ACK);
        stats.uncount(ACK);
        assert_eq!(stats.unsettled(), 4);
        assert_eq!(stats.settle(10), 2);
        assert_eq!(
            stats.totals()[14],
            CommandTotal {
                calls: 3,
                took_ns: 7_500
            }
        );
        assert_eq!(
            stats.totals()[16],
            CommandTotal {
                calls: 1,
                took_ns: 2_500
            }
        );
        assert_eq!(stats.totals()[14].took_us(), 7);
        assert_eq!(stats.settle(10), 0, "an input is settled once");
        stats.record(ACK, 100, 1);
        assert_eq!(
            stats.totals()[16],
            CommandTotal {
                calls: 2,
                took_ns: 102_500
            }
        );
    }

    #[test]
    fn histograms_are_cumulative_and_about_powers_of_two() {
        let mut stats = CommandStats::default();
        assert_eq!(stats.histogram_us(ADD), None);
        for us in [1, 3, 3, 100, 5_000_000] {
            stats.record(ADD, us, 1);
        }
        let (calls, buckets) = stats.histogram_us(ADD).expect("it was called");
        assert_eq!(calls, 5);
        assert_eq!(
            buckets.iter().map(|(_, count)| *count).collect::<Vec<_>>(),
            [1, 3, 4, 5]
        );
        let bounds: Vec<u64> = buckets.iter().map(|(bound, _)| *bound).collect();
        assert_eq!(bounds[..3], [1, 4, 131]);
        assert!(bounds[3] >= 1_000_000);
    }

    #[test]
    fn shards_add_up() {
        let (mut one, mut other) = (CommandStats::default(), CommandStats::default());
        one.record(ADD, 10, 1);
        other.record(ADD, 10, 1);
        other.record(ACK, 10, 1);
        one.add(&other);
        assert_eq!(
            one.totals()[14],
            CommandTotal {
                calls: 2,
                took_ns: 20_000
            }
        );
        assert_eq!(
            one.histogram_us(ADD)
                .map(|(calls, buckets)| (calls, buckets[0].1)),
            Some((2, 2))
        );
        assert_eq!(one.histogram_us(ACK).map(|(calls, _)| calls), Some(1));
        let mut sum = vec![CommandTotal::default()];
        add_totals(&mut sum, &other.totals());
        assert_eq!(sum, other.totals());
    }
}
