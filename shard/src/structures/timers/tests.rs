//! The timers against an ordered map, with a clock that walks, leaps and stands still.
#![expect(clippy::disallowed_types, reason = "prop_oneof! expands to an Arc")]

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;

use super::*;

const YEAR_MS: u64 = 365 * 24 * 3600 * 1000;

/// Panics when links, list ends, bits and places do not agree.
fn assert_valid<T: Copy>(timers: &Timers<T>) {
    let mut seen = 0;
    for (list, ends) in timers.lists.iter().enumerate() {
        let end = END | list as u32;
        let (mut previous, mut at) = (end, if ends.first == NONE { end } else { ends.first });
        while at & END == 0 {
            let Entry {
                deadline_ms,
                previous: before,
                next,
                ..
            } = timers.entries[at];
            assert_eq!(before, previous);
            if list < FIRST_MIGRATING {
                let (level, slot) = (list / SLOTS as usize, list as u64 % SLOTS);
                let ahead = slot_of(deadline_ms, level) - slot_of(timers.now_ms, level);
                assert!(ahead > opens_early(level), "level {level}, {ahead} ahead");
                assert!(
                    ahead < SLOTS || level == LEVELS - 1,
                    "level {level}, {ahead} ahead"
                );
                assert!(ahead >= SLOTS || slot_of(deadline_ms, level) % SLOTS == slot || level == LEVELS - 1);
            }
            assert!(list != DUE || deadline_ms <= timers.now_ms);
            seen += 1;
            (previous, at) = (at, next);
        }
        assert_eq!(at, end);
        assert_eq!(ends.last, if previous == end { NONE } else { previous });
        if list < FIRST_MIGRATING {
            let bit = timers.occupied[list / SLOTS as usize] & bit_of(list as u64) != 0;
            assert_eq!(bit, ends.first != NONE);
        }
    }
    assert_eq!(seen, timers.len());
}

/// Advances to `now_ms` by way of every wake-up before it, and returns what fired and when.
fn run_until(timers: &mut Timers<u32>, now_ms: u64) -> Vec<(u64, u32)> {
    let mut fired = Vec::new();
    while let Some(wakeup) = timers.next_wakeup().filter(|&wakeup| wakeup <= now_ms) {
        timers.advance(wakeup);
        while timers.work(10) == 10 {}
        fired.extend(std::iter::from_fn(|| timers.pop_due()).map(|(_, owner)| (wakeup, owner)));
    }
    timers.advance(now_ms);
    fired
}

#[test]
fn a_timer_costs_24_bytes() {
    assert_eq!(size_of::<Option<Entry<u32>>>(), 24);
    assert_eq!(size_of::<Option<TimerKey>>(), 4);
}

#[test]
fn every_distance_fires_at_its_millisecond() {
    for start in [0, 1, 63, 64, 1_790_000_000_123] {
        let mut timers = Timers::new(start);
        let mut expected = BTreeSet::new();
        let powers = (0..44).map(|power| 1u64 << power);
        let distances = powers.flat_map(|power| [power - 1, power, power + 1, power * 127 / 64]);
        for (owner, distance) in (0..).zip(distances.chain([100 * YEAR_MS, 250 * YEAR_MS, 1000 * YEAR_MS])) {
            timers.insert(start + distance, owner);
            expected.insert((start + distance, owner));
        }
        assert_valid(&timers);
        let fired = run_until(&mut timers, start + 2000 * YEAR_MS);
        assert_eq!(fired, expected.into_iter().collect::<Vec<_>>());
        assert!(timers.is_empty() && timers.next_wakeup().is_none());
    }
}

#[test]
fn idle_years_take_few_wakeups() {
    let mut timers = Timers::new(0);
    timers.insert(100 * YEAR_MS, 1);
    timers.insert(u64::MAX, 2);
    let mut wakeups = 0;
    while timers.len() == 2 {
        timers.advance(timers.next_wakeup().expect("two timers"));
        timers.work(10);
        wakeups += 1;
        timers.pop_due();
    }
    assert_eq!(timers.now_ms(), 100 * YEAR_MS);
    assert!(wakeups <= LEVELS + 1, "{wakeups}");
    timers.advance(NOW_LIMIT_MS - 1);
    timers.work(10);
    assert_valid(&timers);
    assert_eq!((timers.pop_due(), timers.len()), (None, 1));
    assert!(timers.next_wakeup().is_some_and(|wakeup| wakeup >= NOW_LIMIT_MS));
}

#[test]
fn a_million_timers_of_one_slot_move_in_bounded_steps_and_fire_in_time() {
    const COUNT: u32 = 1_000_000;
    let mut timers = Timers::new(0);
    let hour_ms = 3_600_000;
    (0..COUNT).for_each(|owner| _ = timers.insert(hour_ms, owner));
    let mut fired = 0;
    while !timers.is_empty() {
        timers.advance(timers.next_wakeup().expect("there are timers"));
        assert!(timers.work(1000) <= 1000);
        for _ in 0..1000 {
            let Some((_, owner)) = timers.pop_due() else { break };
            assert_eq!((owner, timers.now_ms()), (fired, hour_ms));
            fired += 1;
        }
    }
    assert_eq!(fired, COUNT);
}

#[test]
fn slow_work_makes_timers_late_and_never_early_or_lost() {
    let mut timers = Timers::new(0);
    (0..5000u32).for_each(|owner| _ = timers.insert(10_000 + u64::from(owner), owner));
    let mut fired = BTreeSet::new();
    for now_ms in (0..).step_by(7) {
        timers.advance(now_ms);
        timers.work(3);
        while let Some((_, owner)) = timers.pop_due() {
            assert!(10_000 + u64::from(owner) <= now_ms);
            assert!(fired.insert(owner));
        }
        if timers.is_empty() {
            break;
        }
    }
    assert_eq!(fired.len(), 5000);
}

#[test]
fn teardown_in_steps_leaves_usable_timers() {
    let mut timers = Timers::new(0);
    (0..5000u64).for_each(|deadline_ms| _ = timers.insert(deadline_ms * 1000, 0u32));
    assert!(!timers.drop_some(4));
    assert!(timers.drop_some(4));
    timers.insert(5, 1);
    assert_eq!(run_until(&mut timers, 10), [(5, 1)]);
}

#[derive(Clone, Debug)]
enum Step {
    Insert {
        distance_ms: i64,
    },
    Cancel {
        place: usize,
    },
    Reschedule {
        place: usize,
        distance_ms: i64,
    },
    /// Advances by way of every wake-up, as a shard does.
    Run {
        by_ms: u64,
    },
    /// Advances at once, then works and fires a little only.
    Leap {
        by_ms: u64,
        budget: usize,
    },
}

fn span_ms() -> impl Strategy<Value = u64> {
    prop_oneof![4 => 0..200u64, 4 => 0..20_000u64, 2 => 0..10_000_000u64, 1 => 0..YEAR_MS, 1 => 0..300 * YEAR_MS]
}

fn step() -> impl Strategy<Value = Step> {
    let distance_ms = || prop_oneof![9 => span_ms().prop_map(|ms| ms as i64), 1 => -500..0i64];
    let place = any::<usize>;
    prop_oneof![
        8 => distance_ms().prop_map(|distance_ms| Step::Insert { distance_ms }),
        2 => place().prop_map(|place| Step::Cancel { place }),
        2 => (place(), distance_ms()).prop_map(|(place, distance_ms)| Step::Reschedule { place, distance_ms }),
        3 => span_ms().prop_map(|by_ms| Step::Run { by_ms }),
        3 => (span_ms(), 0..6usize).prop_map(|(by_ms, budget)| Step::Leap { by_ms, budget }),
    ]
}

/// The timers and the map from (deadline, owner) to the key that they must agree with.
struct Pair {
    timers: Timers<u32>,
    model: BTreeMap<(u64, u32), TimerKey>,
    owners: u32,
}

impl Pair {
    fn deadline_ms(&self, distance_ms: i64) -> u64 {
        self.timers.now_ms().saturating_add_signed(distance_ms)
    }

    fn chosen(&self, place: usize) -> Option<(u64, u32)> {
        let place = place.checked_rem(self.model.len())?;
        self.model.keys().nth(place).copied()
    }

    fn apply(&mut self, step: Step) {
        match step {
            Step::Insert { distance_ms } => {
                let (deadline_ms, owner) = (self.deadline_ms(distance_ms), self.owners);
                self.owners += 1;
                self.model
                    .insert((deadline_ms, owner), self.timers.insert(deadline_ms, owner));
            }
            Step::Cancel { place } => {
                let Some(chosen) = self.chosen(place) else { return };
                let key = self.model.remove(&chosen).expect("it was chosen from the model");
                assert_eq!(self.timers.deadline_ms(key), chosen.0);
                assert_eq!(self.timers.cancel(key), chosen.1);
            }
            Step::Reschedule { place, distance_ms } => {
                let Some(chosen) = self.chosen(place) else { return };
                let key = self.model.remove(&chosen).expect("it was chosen from the model");
                let deadline_ms = self.deadline_ms(distance_ms);
                self.timers.reschedule(key, deadline_ms);
                self.model.insert((deadline_ms, chosen.1), key);
            }
            Step::Run { by_ms } => {
                let until_ms = self.timers.now_ms() + by_ms;
                self.settle();
                self.run(until_ms);
            }
            Step::Leap { by_ms, budget } => {
                self.timers.advance(self.timers.now_ms() + by_ms);
                self.timers.work(budget);
                for _ in 0..budget {
                    let Some((key, owner)) = self.timers.pop_due() else {
                        break;
                    };
                    self.expect_due(key, owner);
                }
            }
        }
    }

    /// Finishes what a leap left behind; nothing that is due may remain.
    fn settle(&mut self) {
        while self.timers.work(4) == 4 {}
        while let Some((key, owner)) = self.timers.pop_due() {
            self.expect_due(key, owner);
        }
        assert!(
            self.model
                .keys()
                .all(|&(deadline_ms, _)| deadline_ms > self.timers.now_ms())
        );
    }

    /// From a settled state, every timer fires at its millisecond.
    fn run(&mut self, until_ms: u64) {
        while let Some(wakeup) = self.timers.next_wakeup().filter(|&wakeup| wakeup <= until_ms) {
            assert!(wakeup > self.timers.now_ms());
            self.timers.advance(wakeup);
            while self.timers.work(4) == 4 {}
            while let Some((key, owner)) = self.timers.pop_due() {
                assert_eq!(self.model.remove(&(wakeup, owner)), Some(key));
            }
        }
        self.timers.advance(until_ms);
        self.settle();
    }

    fn expect_due(&mut self, key: TimerKey, owner: u32) {
        let found = self.model.iter().find(|((_, other), _)| *other == owner);
        let (&(deadline_ms, owner), &expected) = found.expect("a timer fires once");
        assert_eq!(key, expected);
        assert!(deadline_ms <= self.timers.now_ms(), "{deadline_ms} fired early");
        self.model.remove(&(deadline_ms, owner));
    }
}

proptest! {
    #[test]
    fn behaves_like_an_ordered_map(start in 0..1u64 << 42, steps in prop::collection::vec(step(), 0..150)) {
        let mut pair = Pair { timers: Timers::new(start), model: BTreeMap::new(), owners: 0 };
        for step in steps {
            pair.apply(step);
            assert_valid(&pair.timers);
            prop_assert_eq!(pair.timers.len(), pair.model.len());
            prop_assert_eq!(pair.timers.next_wakeup().is_some(), !pair.model.is_empty());
            if let (Some(wakeup), Some((&(first_ms, _), _))) =
                (pair.timers.next_wakeup(), pair.model.first_key_value())
            {
                prop_assert!(wakeup <= first_ms.max(pair.timers.now_ms()));
            }
        }
    }
}
