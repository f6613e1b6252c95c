//! First-in-first-out lists of elements that live elsewhere, linked through the elements themselves.
//!
//! A list is 12 bytes, an element carries [`Links`] of 12 bytes, and every operation takes constant time. The same
//! links serve [`super::skiplist`], whose lowest level is such a list. An element is in at most one list per
//! `Links` it has, which is asserted; removing it from another list than its own is asserted as far as the ends of
//! the list can show it.

use super::NONE;

/// Access to the links of elements, by key.
pub trait Linked {
    /// The links of an element.
    fn links(&self, element: u32) -> &Links;
    /// The links of an element, to change them.
    fn links_mut(&mut self, element: u32) -> &mut Links;
}

/// An element's place in a list, embedded in the element.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Links {
    pub(super) previous: u32,
    pub(super) next: u32,
    /// In a skip list, the lowest of the express nodes that stand for the element.
    pub(super) lane: u32,
}

/// `Links::lane` of an element that is in no list; `NONE` there says: in a list, without express nodes.
const DETACHED: u32 = u32::MAX - 1;

impl Links {
    /// The links of an element that is in no list.
    pub const DETACHED: Links = Links {
        previous: NONE,
        next: NONE,
        lane: DETACHED,
    };

    /// Whether the element is in a list.
    pub fn is_linked(&self) -> bool {
        self.lane != DETACHED
    }

    /// The element behind this one.
    pub fn next(&self) -> Option<u32> {
        some(self.next)
    }

    /// The element before this one.
    pub fn previous(&self) -> Option<u32> {
        some(self.previous)
    }
}

impl Default for Links {
    fn default() -> Self {
        Links::DETACHED
    }
}

/// A list of elements in the order in which they were linked.
#[derive(Debug)]
pub struct List {
    first: u32,
    last: u32,
    len: u32,
}

impl List {
    /// An empty list.
    pub const fn new() -> Self {
        List {
            first: NONE,
            last: NONE,
            len: 0,
        }
    }

    /// Number of elements.
    pub fn len(&self) -> usize {
        self.len as usize
    }

    /// Whether there is no element.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The first element.
    pub fn first(&self) -> Option<u32> {
        some(self.first)
    }

    /// The last element.
    pub fn last(&self) -> Option<u32> {
        some(self.last)
    }

    /// Adds an element at the end.
    pub fn push_back(&mut self, elements: &mut impl Linked, element: u32) {
        let links = elements.links_mut(element);
        assert!(!links.is_linked(), "element {element} is in a list already");
        *links = Links {
            previous: self.last,
            next: NONE,
            lane: NONE,
        };
        match self.last {
            NONE => self.first = element,
            last => elements.links_mut(last).next = element,
        }
        self.last = element;
        self.len += 1;
    }

    /// Adds an element behind `previous`, or at the front when that is `None`.
    pub fn insert_after(&mut self, elements: &mut impl Linked, previous: Option<u32>, element: u32) {
        let next = match previous {
            None => self.first,
            Some(previous) => {
                assert!(
                    elements.links(previous).is_linked(),
                    "element {previous} is in no list"
                );
                elements.links(previous).next
            }
        };
        let previous = previous.unwrap_or(NONE);
        let links = elements.links_mut(element);
        assert!(!links.is_linked(), "element {element} is in a list already");
        *links = Links {
            previous,
            next,
            lane: NONE,
        };
        self.join(elements, previous, element);
        self.join(elements, element, next);
        self.len += 1;
    }

    /// Takes an element out, wherever it is in this list.
    pub fn remove(&mut self, elements: &mut impl Linked, element: u32) {
        let links = std::mem::take(elements.links_mut(element));
        assert!(links.is_linked(), "element {element} is in no list");
        assert_eq!(
            links.previous == NONE,
            self.first == element,
            "element {element} is in another list"
        );
        assert_eq!(
            links.next == NONE,
            self.last == element,
            "element {element} is in another list"
        );
        self.join(elements, links.previous, links.next);
        self.len -= 1;
    }

    /// Takes the first element out.
    pub fn pop_front(&mut self, elements: &mut impl Linked) -> Option<u32> {
        let first = self.first()?;
        self.remove(elements, first);
        Some(first)
    }

    /// The elements in order.
    pub fn iter<E: Linked>(&self, elements: &E) -> impl Iterator<Item = u32> {
        std::iter::successors(self.first(), |&element| elements.links(element).next())
    }

    /// Makes two elements neighbours; `NONE` stands for the end of the list on that side.
    fn join(&mut self, elements: &mut impl Linked, previous: u32, next: u32) {
        match previous {
            NONE => self.first = next,
            _ => elements.links_mut(previous).next = next,
        }
        match next {
            NONE => self.last = previous,
            _ => elements.links_mut(next).previous = previous,
        }
    }
}

impl Default for List {
    fn default() -> Self {
        List::new()
    }
}

pub(super) fn some(key: u32) -> Option<u32> {
    (key != NONE).then_some(key)
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use proptest::prelude::*;

    use super::*;

    struct Elements(Vec<Links>);

    impl Linked for Elements {
        fn links(&self, element: u32) -> &Links {
            &self.0[element as usize]
        }

        fn links_mut(&mut self, element: u32) -> &mut Links {
            &mut self.0[element as usize]
        }
    }

    #[test]
    #[should_panic(expected = "another list")]
    fn removing_from_another_list_panics() {
        let mut elements = Elements(vec![Links::default(); 2]);
        let (mut here, mut there) = (List::new(), List::new());
        here.push_back(&mut elements, 0);
        there.push_back(&mut elements, 1);
        there.remove(&mut elements, 0);
    }

    #[test]
    #[should_panic(expected = "already")]
    fn adding_twice_panics() {
        let mut elements = Elements(vec![Links::default(); 1]);
        let mut list = List::new();
        list.push_back(&mut elements, 0);
        list.push_back(&mut elements, 0);
    }

    proptest! {
        #[test]
        fn behaves_like_a_deque(steps in prop::collection::vec((0u8..6, 0u32..40), 0..400)) {
            let mut elements = Elements(vec![Links::default(); 40]);
            let mut list = List::new();
            let mut model = VecDeque::new();
            for (step, element) in steps {
                let place = model.iter().position(|&other| other == element);
                prop_assert_eq!(elements.links(element).is_linked(), place.is_some());
                match (step, place) {
                    (0, _) => prop_assert_eq!(list.pop_front(&mut elements), model.pop_front()),
                    (1 | 2, Some(place)) => {
                        list.remove(&mut elements, element);
                        model.remove(place);
                    }
                    (3, None) => {
                        list.insert_after(&mut elements, None, element);
                        model.push_front(element);
                    }
                    (4, None) if model.len() > 1 => {
                        list.insert_after(&mut elements, Some(model[0]), element);
                        model.insert(1, element);
                    }
                    (_, None) => {
                        list.push_back(&mut elements, element);
                        model.push_back(element);
                    }
                    (_, Some(_)) => {}
                }
                prop_assert_eq!(list.iter(&elements).collect::<Vec<_>>(), Vec::from(model.clone()));
                prop_assert_eq!(list.last(), model.back().copied());
                prop_assert_eq!(list.len(), model.len());
                let back = std::iter::successors(list.last(), |&at| elements.links(at).previous());
                prop_assert_eq!(back.collect::<Vec<_>>(), model.iter().rev().copied().collect::<Vec<_>>());
            }
        }
    }
}
