//! The skip list against an ordered map, and the lengths of its searches.
#![expect(clippy::disallowed_types, reason = "prop_oneof! expands to an Arc")]

use std::cell::Cell;
use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;

#[derive(Default)]
struct Elements {
    of: Vec<(u32, Links)>,
    comparisons: Cell<usize>,
}

impl Elements {
    fn add(&mut self, order: u32) -> u32 {
        self.of.push((order, Links::default()));
        self.of.len() as u32 - 1
    }

    fn order(&self, element: u32) -> u32 {
        self.comparisons.set(self.comparisons.get() + 1);
        self.of[element as usize].0
    }
}

impl Linked for Elements {
    fn links(&self, element: u32) -> &Links {
        &self.of[element as usize].1
    }

    fn links_mut(&mut self, element: u32) -> &mut Links {
        &mut self.of[element as usize].1
    }
}

impl Ordered for Elements {
    fn before(&self, a: u32, b: u32) -> bool {
        self.order(a) < self.order(b)
    }
}

#[test]
fn an_empty_list_leaves_no_lanes() {
    let mut elements = Elements::default();
    let mut lanes = Lanes::new(7);
    let mut list = SkipList::new();
    for order in 0..2000 {
        let element = elements.add(order * 7919 % 2000);
        list.push_ordered(&mut elements, &mut lanes, element);
    }
    list.assert_valid(&elements, &lanes);
    let per_element = lanes.len() as f64 / 2000.0;
    assert!(
        (0.28..0.39).contains(&per_element),
        "1/4 + 1/16 + ... of {per_element}"
    );
    for order in 0..2000 {
        let first = list.pop_front(&mut elements, &mut lanes).expect("an element");
        assert_eq!(elements.order(first), order);
    }
    assert_eq!(list.pop_front(&mut elements, &mut lanes), None);
    assert!(lanes.is_empty());
}

#[test]
fn appending_compares_once_and_searching_takes_logarithmic_time() {
    let mut elements = Elements::default();
    let mut lanes = Lanes::new(1);
    let mut list = SkipList::new();
    const COUNT: u32 = 100_000;
    for order in 0..COUNT {
        let element = elements.add(order * 2);
        list.push_ordered(&mut elements, &mut lanes, element);
    }
    assert!(elements.comparisons.get() <= 2 * COUNT as usize);

    let (mut total, mut longest) = (0, 0);
    for place in (0..COUNT).step_by(97) {
        elements.comparisons.set(0);
        let found = list.seek(&elements, &lanes, |element| {
            elements.order(element) < place * 2 - place % 2
        });
        assert_eq!(found, Some(place));
        total += elements.comparisons.get();
        longest = longest.max(elements.comparisons.get());
    }
    let mean = total / (COUNT as usize / 97);
    assert!(mean < 40 && longest < 150, "mean {mean}, longest {longest}");
}

#[test]
fn a_seed_replays_the_same_lanes() {
    let heights = |seed| {
        let mut lanes = Lanes::new(seed);
        (0..100).map(|_| lanes.draw_height()).collect::<Vec<_>>()
    };
    assert_eq!(heights(3), heights(3));
    assert_ne!(heights(3), heights(4));
    assert_ne!(heights(0), vec![LANES_MAX; 100]);
}

#[derive(Clone, Debug)]
enum Step {
    Push { list: usize, order: u32 },
    PopFront { list: usize },
    Remove { list: usize, place: usize },
    Seek { list: usize, order: u32 },
}

fn step() -> impl Strategy<Value = Step> {
    let list = || 0usize..2;
    prop_oneof![
        6 => (list(), 0u32..200).prop_map(|(list, order)| Step::Push { list, order }),
        3 => list().prop_map(|list| Step::Push { list, order: 200 }),
        2 => list().prop_map(|list| Step::PopFront { list }),
        4 => (list(), any::<usize>()).prop_map(|(list, place)| Step::Remove { list, place }),
        2 => (list(), 0u32..220).prop_map(|(list, order)| Step::Seek { list, order }),
    ]
}

proptest! {
    /// Two lists that share their lanes, each against a map from (order, arrival) to the element.
    #[test]
    fn behaves_like_an_ordered_map(seed: u64, steps in prop::collection::vec(step(), 0..600)) {
        let mut elements = Elements::default();
        let mut lanes = Lanes::new(seed);
        let mut lists = [SkipList::new(), SkipList::new()];
        let mut models = [BTreeMap::new(), BTreeMap::new()];
        for step in steps {
            match step {
                Step::Push { list, order } => {
                    let element = elements.add(order);
                    lists[list].push_ordered(&mut elements, &mut lanes, element);
                    models[list].insert((order, element), element);
                }
                Step::PopFront { list } => {
                    let popped = lists[list].pop_front(&mut elements, &mut lanes);
                    prop_assert_eq!(popped, models[list].pop_first().map(|(_, element)| element));
                }
                Step::Remove { list, place } if !models[list].is_empty() => {
                    let place = place % models[list].len();
                    let key = *models[list].keys().nth(place).expect("inside");
                    lists[list].remove(&mut elements, &mut lanes, key.1);
                    models[list].remove(&key);
                    prop_assert!(!elements.links(key.1).is_linked());
                }
                Step::Remove { .. } => {}
                Step::Seek { list, order } => {
                    let found = lists[list].seek(&elements, &lanes, |other| elements.order(other) < order);
                    let expected = models[list].range((order, 0)..).next();
                    prop_assert_eq!(found, expected.map(|(_, &element)| element));
                }
            }
            for (list, model) in lists.iter().zip(&models) {
                let order: Vec<u32> = model.values().copied().collect();
                prop_assert_eq!(list.iter(&elements).collect::<Vec<_>>(), order);
                prop_assert_eq!(list.last(), model.values().last().copied());
                list.assert_valid(&elements, &lanes);
            }
        }
    }
}
