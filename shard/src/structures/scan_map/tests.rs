//! The map against an ordered map, and scans that go on while the map grows and shrinks.
#![expect(clippy::disallowed_types, reason = "prop_oneof! expands to an Arc")]

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;

use super::lines::{CHUNK_LINES, LINE_ENTRIES};
use super::*;

/// Spreads a number over all bits (the finalizer of splitmix64).
fn mix(number: u64) -> u64 {
    let mut mixed = number.wrapping_add(0x9e37_79b9_7f4a_7c15);
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}

/// A map of the keys `0..count`, each under the hash of its number.
fn crowd(count: u32) -> ScanMap {
    let mut map = ScanMap::new();
    (0..count).for_each(|key| map.insert(mix(key.into()), key));
    map
}

fn holds(map: &ScanMap, hash: u64, key: u32) -> bool {
    let found = map.find(hash, |other| other == key);
    assert!(found.is_none_or(|found| found == key));
    found.is_some()
}

fn bytes(map: &ScanMap) -> usize {
    map.heads.bytes() + map.overflow.bytes()
}

fn assert_valid(map: &ScanMap) {
    let mut seen = 0;
    let mut covered = 0u128;
    let mut overflow = 0;
    for bucket in 0..map.buckets {
        let depth = map.depth_of(bucket);
        covered += 1 << (64 - depth);
        let head = &map.heads[bucket];
        assert!(
            !head.entries().is_empty() || head.more == NONE,
            "it is the last to be empty"
        );
        let (mut back, mut more) = (NONE, head.more);
        while let Some(number) = some(more) {
            assert_eq!(map.overflow[number].back, back);
            (back, more) = (number, map.overflow[number].more);
            overflow += 1;
        }
        for entry in map.lines_of(bucket).flatten() {
            assert_eq!(map.bucket_of(entry.hash), bucket);
            assert_eq!(u64::from(entry.hash) & ((1 << depth) - 1), u64::from(bucket));
            seen += 1;
        }
    }
    assert_eq!(seen, map.len());
    assert!(
        map.buckets == 0 || covered == 1 << 64,
        "buckets cover all ranks once"
    );
    assert_eq!(overflow, map.overflow.len(), "every overflow line is in a bucket");
    assert_eq!(map.heads.len(), map.buckets);
    let (len, buckets) = (u64::from(map.len) * 10, u64::from(map.buckets));
    assert!(
        len < buckets * SPLIT_LOAD + 10 && len + MERGE_LOAD >= buckets * MERGE_LOAD,
        "{len} tenths in {buckets}"
    );
}

#[test]
fn an_empty_map_is_small_and_owns_nothing() {
    assert_eq!(size_of::<ScanMap>(), 56);
    assert_eq!(bytes(&ScanMap::new()), 0);
    let mut map = crowd(5000);
    assert_valid(&map);
    (0..5000).for_each(|key| map.remove(mix(key.into()), key));
    assert_eq!((bytes(&map), map.buckets), (0, 0));
    assert_eq!(map.scan(0, |_| unreachable!()), None);
    assert_eq!(map.find(0, |_| unreachable!()), None);
}

#[test]
fn an_element_costs_about_16_bytes_at_most() {
    // The load goes through all it can be between two powers of two.
    for count in [50_000u32, 60_000, 75_000, 90_000, 100_000, 1_000_000] {
        let each = bytes(&crowd(count)) as f64 / f64::from(count);
        assert!((12.0..17.0).contains(&each), "{each} bytes with {count} elements");
    }
    assert!(bytes(&crowd(1)) <= 64 + 24, "a map of one is one line");
}

#[test]
fn no_step_of_growing_and_shrinking_works_on_many_lines() {
    const COUNT: u32 = 200_000;
    let longest = |map: &ScanMap| {
        let lines = (0..map.buckets).map(|bucket| map.lines_of(bucket).count());
        lines.max().unwrap_or(0)
    };
    let mut map = ScanMap::new();
    for key in 0..COUNT {
        map.insert(mix(key.into()), key);
        if key % 10_000 == 0 {
            assert_valid(&map);
            assert!(longest(&map) <= 5, "a bucket is a few lines");
        }
    }
    for key in 0..COUNT {
        let (buckets, bytes_before) = (map.buckets, bytes(&map));
        assert!(holds(&map, mix(key.into()), key));
        map.remove(mix(key.into()), key);
        assert!(
            bytes_before - bytes(&map).min(bytes_before) < 2 * CHUNK_LINES * 65,
            "little is freed at a time"
        );
        assert!(!holds(&map, mix(key.into()), key));
        assert!(
            map.is_empty() || map.buckets + 1 >= buckets,
            "one merge at a time"
        );
        if key % 10_000 == 0 {
            assert_valid(&map);
            assert!(longest(&map) <= 5, "a bucket is a few lines");
        }
    }
}

#[test]
fn equal_hashes_stay_correct_and_crowd_one_bucket_only() {
    const CROWD: u32 = 2_000;
    let hostile = mix(99);
    let mut map = crowd(1_000);
    for key in 1_000..1_000 + CROWD {
        map.insert(hostile, key);
    }
    assert_valid(&map);
    let crowded = map.bucket_of(hostile as u32);
    for bucket in (0..map.buckets).filter(|&bucket| bucket != crowded) {
        assert!(map.lines_of(bucket).count() <= 4);
    }
    let mut visited = BTreeSet::new();
    let mut position = Some(0);
    while let Some(at) = position {
        position = map.scan(at, |key| assert!(visited.insert(key)));
    }
    assert_eq!(visited.len(), map.len());
    // From both ends to the middle.
    for nth in 0..CROWD {
        let key = 1_000
            + if nth % 2 == 0 {
                nth / 2
            } else {
                CROWD - 1 - nth / 2
            };
        assert!(holds(&map, hostile, key));
        map.remove(hostile, key);
        assert!(!holds(&map, hostile, key));
        if nth % 97 == 0 {
            assert_valid(&map);
        }
    }
    assert!((0..1_000).all(|key| holds(&map, mix(key.into()), key)));
    assert_eq!(map.len(), 1_000);
}

#[test]
fn find_is_asked_about_equal_hashes_only() {
    let map = crowd(10_000);
    let mut asked = Vec::new();
    assert_eq!(
        map.find(mix(17), |key| {
            asked.push(key);
            false
        }),
        None
    );
    assert_eq!(asked, [17]);
}

#[test]
fn scan_some_stops_near_its_limit_and_reaches_all() {
    let map = crowd(10_000);
    let mut visited = BTreeSet::new();
    let (mut position, mut calls) = (Some(0), 0);
    while let Some(at) = position {
        let before = visited.len();
        position = map.scan_some(at, 100, |key| assert!(visited.insert(key)));
        assert!(visited.len() - before < 100 + 4 * LINE_ENTRIES);
        calls += 1;
    }
    assert_eq!(visited.len(), 10_000);
    assert!((80..=100).contains(&calls), "{calls}");
}

#[test]
fn teardown_in_steps_leaves_a_usable_map() {
    let mut map = crowd(5000);
    assert!(!map.drop_some(2));
    assert!(map.drop_some(20));
    map.insert(3, 3);
    assert_valid(&map);
    assert!(holds(&map, 3, 3));
}

#[test]
#[should_panic(expected = "not in the map")]
fn removing_twice_panics() {
    let mut map = crowd(3);
    map.remove(mix(1), 1);
    map.remove(mix(1), 1);
}

#[test]
#[should_panic(expected = "not in the map")]
fn removing_under_another_hash_panics() {
    crowd(1).remove(mix(1), 0);
}

/// Well spread hashes, and ones that crowd into few buckets or agree wholly.
fn hash() -> impl Strategy<Value = u64> {
    prop_oneof![
        6 => any::<u64>(),
        1 => 0..4u64,
        1 => (0..64u32).prop_map(|rank| u64::from(rank.reverse_bits())),
        1 => (0..64u64).prop_map(u64::reverse_bits),
    ]
}

proptest! {
    #[test]
    fn behaves_like_a_map(steps in prop::collection::vec((0u8..8, hash(), any::<usize>()), 0..800)) {
        let mut map = ScanMap::new();
        let mut model = BTreeMap::new();
        for (turn, (step, hash, place)) in (0..).zip(steps) {
            // Mostly growing, then mostly shrinking.
            let inserts = if turn % 300 < 180 { 6 } else { 1 };
            if step < inserts {
                map.insert(hash, turn);
                model.insert(turn, hash);
            } else if let Some(place) = place.checked_rem(model.len()) {
                let (&key, &hash) = model.iter().nth(place).expect("inside");
                prop_assert!(holds(&map, hash, key));
                map.remove(hash, key);
                model.remove(&key);
                prop_assert!(!holds(&map, hash, key));
            }
            assert_valid(&map);
            prop_assert_eq!(map.len(), model.len());
        }
        for (&key, &hash) in &model {
            prop_assert!(holds(&map, hash, key));
        }
    }

    /// Between the calls of a scan, elements come and go by the hundred; the cursor keeps 52 bits.
    #[test]
    fn a_scan_visits_exactly_once_what_stays(
        lasting in prop::collection::vec(hash(), 0..400),
        changes in prop::collection::vec((any::<bool>(), 0..1500u32), 0..40),
        elements_max in 0..40usize,
        seed: u64,
    ) {
        let mut map = ScanMap::new();
        for (key, &hash) in (0..).zip(&lasting) {
            map.insert(hash, key);
        }
        let passing_hash = |key: u32| mix(seed.wrapping_add(key.into()));
        let mut passing: Vec<u32> = Vec::new();
        let mut next_key = lasting.len() as u32;
        let mut changes = changes.into_iter();
        let mut visits = BTreeMap::new();
        let mut position = Some(0u64);
        while let Some(at) = position {
            position = map.scan_some(at, elements_max, |key| {
                *visits.entry(key).or_insert(0) += 1;
            });
            if let Some(next) = position {
                prop_assert!(next > at);
                prop_assert_eq!(next >> 12 << 12, next);
                prop_assert_eq!(next % (1 << POSITION_SPARE_BITS), 0);
            }
            let Some((grows, count)) = changes.next() else { continue };
            for _ in 0..count {
                if grows {
                    map.insert(passing_hash(next_key), next_key);
                    passing.push(next_key);
                    next_key += 1;
                } else if let Some(key) = passing.pop() {
                    map.remove(passing_hash(key), key);
                }
            }
            assert_valid(&map);
        }
        prop_assert!(visits.values().all(|&times| times == 1));
        for key in 0..lasting.len() as u32 {
            prop_assert!(visits.contains_key(&key));
        }
    }

    /// A position may come from a client: any is answered, and yields what lies behind it.
    #[test]
    fn a_scan_from_anywhere_visits_what_is_behind(hashes in prop::collection::vec(hash(), 0..200), from: u64) {
        let mut map = ScanMap::new();
        for (key, &hash) in (0..).zip(&hashes) {
            map.insert(hash, key);
        }
        let mut visited = Vec::new();
        let mut position = Some(from);
        while let Some(at) = position {
            position = map.scan(at, |key| visited.push(key));
        }
        visited.sort_unstable();
        let behind = (0..).zip(&hashes).filter(|(_, hash)| hash.reverse_bits() >> 32 >= from >> 32);
        prop_assert_eq!(visited, behind.map(|(key, _)| key).collect::<Vec<u32>>());
    }
}
