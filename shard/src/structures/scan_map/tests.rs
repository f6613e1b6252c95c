//! The map against an ordered map, and scans that go on while the map grows and shrinks.
#![expect(clippy::disallowed_types, reason = "prop_oneof! expands to an Arc")]

use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;

use super::*;

#[derive(Default)]
struct Elements {
    of: Vec<(u64, u32)>,
    reads: Cell<usize>,
}

impl Elements {
    fn add(&mut self, hash: u64) -> u32 {
        self.of.push((hash, NONE));
        self.of.len() as u32 - 1
    }
}

impl Chained for Elements {
    fn chain(&self, element: u32) -> u32 {
        self.reads.set(self.reads.get() + 1);
        self.of[element as usize].1
    }

    fn set_chain(&mut self, element: u32, next: u32) {
        self.of[element as usize].1 = next;
    }

    fn hash(&self, element: u32) -> u64 {
        self.of[element as usize].0
    }
}

/// Spreads a number over all bits (the finalizer of splitmix64).
fn mix(number: u64) -> u64 {
    let mut mixed = number.wrapping_add(0x9e37_79b9_7f4a_7c15);
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}

fn assert_valid(map: &ScanMap, elements: &Elements) {
    let mut seen = 0;
    let mut covered = 0u128;
    for bucket in 0..map.buckets {
        let depth = map.depth_of(bucket);
        covered += 1 << (64 - depth);
        for element in map.chain_of(elements, bucket) {
            let hash = elements.hash(element);
            assert_eq!(map.bucket_of(hash), bucket);
            assert_eq!(hash & ((1 << depth) - 1), u64::from(bucket));
            seen += 1;
        }
    }
    assert_eq!(seen, map.len());
    assert!(
        map.buckets == 0 || covered == 1 << 64,
        "buckets cover all ranks once"
    );
    assert_eq!(
        map.chunks.iter().map(Vec::len).sum::<usize>(),
        map.buckets as usize
    );
    assert!(
        map.len <= map.buckets && map.len >= map.buckets / 2,
        "{} in {}",
        map.len,
        map.buckets
    );
}

#[test]
fn an_empty_map_is_small_and_owns_nothing() {
    assert_eq!(size_of::<ScanMap>(), 32);
    let mut elements = Elements::default();
    let mut map = ScanMap::new();
    (0..5000).for_each(|number| _ = elements.add(mix(number)));
    (0..5000).for_each(|element| map.insert(&mut elements, element));
    assert_valid(&map, &elements);
    (0..5000).for_each(|element| map.remove(&mut elements, element));
    assert_eq!((map.chunks.capacity(), map.buckets), (0, 0));
    assert_eq!(map.scan(&elements, 0, |_| unreachable!()), None);
    assert_eq!(map.find(&elements, 0, |_| unreachable!()), None);
}

#[test]
fn no_step_of_growing_and_shrinking_touches_many_elements() {
    const COUNT: u32 = 200_000;
    let mut elements = Elements::default();
    let mut map = ScanMap::new();
    let mut longest = 0;
    for number in 0..COUNT {
        let element = elements.add(mix(u64::from(number)));
        elements.reads.set(0);
        map.insert(&mut elements, element);
        longest = longest.max(elements.reads.get());
    }
    assert_valid(&map, &elements);
    for element in 0..COUNT {
        assert_eq!(
            map.find(&elements, mix(u64::from(element)), |other| other == element),
            Some(element)
        );
        elements.reads.set(0);
        map.remove(&mut elements, element);
        longest = longest.max(elements.reads.get());
        assert_eq!(
            map.find(&elements, mix(u64::from(element)), |other| other == element),
            None
        );
    }
    assert!(longest < 50, "{longest}");
}

#[test]
fn scan_some_stops_near_its_limit_and_reaches_all() {
    let mut elements = Elements::default();
    let mut map = ScanMap::new();
    for number in 0..10_000 {
        let element = elements.add(mix(number));
        map.insert(&mut elements, element);
    }
    let mut visited = BTreeSet::new();
    let (mut position, mut calls) = (Some(0), 0);
    while let Some(at) = position {
        let before = visited.len();
        position = map.scan_some(&elements, at, 100, |element| assert!(visited.insert(element)));
        assert!(visited.len() - before < 110);
        calls += 1;
    }
    assert_eq!(visited.len(), 10_000);
    assert!((100..400).contains(&calls), "{calls}");
}

#[test]
fn teardown_in_steps_leaves_a_usable_map() {
    let mut elements = Elements::default();
    let mut map = ScanMap::new();
    (0..5000).for_each(|number| _ = elements.add(mix(number)));
    (0..5000).for_each(|element| map.insert(&mut elements, element));
    assert!(!map.drop_some(4));
    assert!(map.drop_some(1));
    map.insert(&mut elements, 3);
    assert_valid(&map, &elements);
}

#[test]
#[should_panic(expected = "not in the map")]
fn removing_twice_panics() {
    let mut elements = Elements::default();
    let mut map = ScanMap::new();
    (0..3).for_each(|number| _ = elements.add(mix(number)));
    (0..3).for_each(|element| map.insert(&mut elements, element));
    map.remove(&mut elements, 1);
    map.remove(&mut elements, 1);
}

/// Well spread hashes, and ones that crowd into few buckets or agree wholly.
fn hash() -> impl Strategy<Value = u64> {
    prop_oneof![6 => any::<u64>(), 1 => 0..4u64, 1 => (0..64u64).prop_map(u64::reverse_bits)]
}

proptest! {
    #[test]
    fn behaves_like_a_map(steps in prop::collection::vec((0u8..8, hash(), any::<usize>()), 0..500)) {
        let mut elements = Elements::default();
        let mut map = ScanMap::new();
        let mut model = BTreeMap::new();
        for (turn, (step, hash, place)) in steps.into_iter().enumerate() {
            // Mostly growing, then mostly shrinking.
            let inserts = if turn % 200 < 120 { 5 } else { 2 };
            if step < inserts {
                let element = elements.add(hash);
                map.insert(&mut elements, element);
                model.insert(element, hash);
            } else if let Some(place) = place.checked_rem(model.len()) {
                let (&element, &hash) = model.iter().nth(place).expect("inside");
                prop_assert_eq!(map.find(&elements, hash, |other| other == element), Some(element));
                map.remove(&mut elements, element);
                model.remove(&element);
                prop_assert_eq!(map.find(&elements, hash, |other| other == element), None);
            }
            assert_valid(&map, &elements);
            prop_assert_eq!(map.len(), model.len());
        }
        for (&element, &hash) in &model {
            prop_assert_eq!(map.find(&elements, hash, |other| other == element), Some(element));
        }
    }

    /// Between the calls of a scan, elements come and go by the hundred; the cursor keeps 52 bits.
    #[test]
    fn a_scan_visits_exactly_once_what_stays(
        lasting in prop::collection::vec(hash(), 0..200),
        changes in prop::collection::vec((any::<bool>(), 0..300usize), 0..40),
        elements_max in 0..40usize,
        seed: u64,
    ) {
        let mut elements = Elements::default();
        let mut map = ScanMap::new();
        for &hash in &lasting {
            let element = elements.add(hash);
            map.insert(&mut elements, element);
        }
        let mut passing: Vec<u32> = Vec::new();
        let mut changes = changes.into_iter();
        let mut visits = BTreeMap::new();
        let mut position = Some(0u64);
        while let Some(at) = position {
            position = map.scan_some(&elements, at, elements_max, |element| {
                *visits.entry(element).or_insert(0) += 1;
            });
            if let Some(next) = position {
                prop_assert!(next > at);
                prop_assert_eq!(next >> 12 << 12, next);
                prop_assert_eq!(next % (1 << POSITION_SPARE_BITS), 0);
            }
            let Some((grows, count)) = changes.next() else { continue };
            for _ in 0..count {
                if grows {
                    let element = elements.add(mix(seed.wrapping_add(elements.of.len() as u64)));
                    map.insert(&mut elements, element);
                    passing.push(element);
                } else if let Some(element) = passing.pop() {
                    map.remove(&mut elements, element);
                }
            }
            assert_valid(&map, &elements);
        }
        prop_assert!(visits.values().all(|&times| times == 1));
        for element in 0..lasting.len() as u32 {
            prop_assert!(visits.contains_key(&element));
        }
    }

    /// A position may come from a client: any is answered, and yields what lies behind it.
    #[test]
    fn a_scan_from_anywhere_visits_what_is_behind(hashes in prop::collection::vec(hash(), 0..200), from: u64) {
        let mut elements = Elements::default();
        let mut map = ScanMap::new();
        for &hash in &hashes {
            let element = elements.add(hash);
            map.insert(&mut elements, element);
        }
        let mut visited = Vec::new();
        let mut position = Some(from);
        while let Some(at) = position {
            position = map.scan(&elements, at, |element| visited.push(element));
        }
        visited.sort_unstable();
        let behind = (0..).zip(&hashes).filter(|(_, hash)| hash.reverse_bits() >= from);
        prop_assert_eq!(visited, behind.map(|(element, _)| element).collect::<Vec<u32>>());
    }
}
