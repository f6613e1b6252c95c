//! Ordered lists of elements that live elsewhere: a queue's jobs in order of their creation.
//!
//! ```text
//! lane 2   (head) ------------------------------> c ------------> (head)
//! lane 1   (head) ----------> b ----------------> c ------------> (head)
//! base     first ---> a ----> b ----> x ----> y -> c ---> d
//! ```
//!
//! The base is an intrusive [`List`]. Above it run express lanes, each a ring of nodes closed by a head, with a
//! quarter of the elements of the lane below, chosen by chance. The lanes of all lists of a shard live in one
//! [`Lanes`], so a list itself is 20 bytes and a short one owns nothing else.
//!
//! What must hold: base and lanes are in order; equal elements stay in the order of their arrival; a lane node's
//! element is in every lane below; the highest lane is not empty; an element's order does not change while it is
//! in a list. Chance comes from a seed given by the caller, so a run can be replayed.

use super::NONE;
use super::list::{Linked, Links, List, some};
use super::slab::Slab;

/// Access to the links and the order of elements, by key.
pub trait Ordered: Linked {
    /// Whether element `a` belongs before element `b`; false when they are equal.
    fn before(&self, a: u32, b: u32) -> bool;
}

/// Enough for 4^12 elements per list before searches get longer than the logarithm.
const LANES_MAX: usize = 12;

/// The express lanes of many lists.
#[derive(Debug)]
pub struct Lanes {
    nodes: Slab<Node>,
    random: u64,
}

/// One element in one lane, or the head of a lane, whose `element` is `NONE`.
#[derive(Debug)]
struct Node {
    previous: u32,
    next: u32,
    up: u32,
    down: u32,
    element: u32,
}

impl Lanes {
    /// No lanes yet; the seed decides which elements will be in how many.
    pub const fn new(seed: u64) -> Self {
        // Zero is the one state that xorshift cannot leave.
        let random = if seed == 0 { 0x9e37_79b9_7f4a_7c15 } else { seed };
        Lanes {
            nodes: Slab::new(),
            random,
        }
    }

    /// Number of nodes in use, for the accounting of memory.
    pub fn len(&self) -> usize {
        self.nodes.len()
    }

    /// Whether no list has a lane.
    pub fn is_empty(&self) -> bool {
        self.nodes.is_empty()
    }

    /// Drops the nodes of up to `chunks` chunks; true when nothing is left. Only for lists that are given up too.
    pub fn drop_some(&mut self, chunks: usize) -> bool {
        self.nodes.drop_some(chunks)
    }

    /// In how many lanes the next element will be: each with a chance of one in four after the one below.
    fn draw_height(&mut self) -> usize {
        // xorshift64*
        self.random ^= self.random >> 12;
        self.random ^= self.random << 25;
        self.random ^= self.random >> 27;
        let drawn = self.random.wrapping_mul(0x2545_f491_4f6c_dd1d);
        (drawn.leading_zeros() as usize / 2).min(LANES_MAX)
    }

    /// Adds a node behind `previous` in that node's lane.
    fn insert_after(&mut self, previous: u32, down: u32, element: u32) -> u32 {
        let next = self.nodes[previous].next;
        let node = self.nodes.insert(Node {
            previous,
            next,
            up: NONE,
            down,
            element,
        });
        self.nodes[previous].next = node;
        self.nodes[next].previous = node;
        if down != NONE {
            self.nodes[down].up = node;
        }
        node
    }

    /// Removes a node and those above it.
    fn remove_tower(&mut self, mut node: u32) {
        while node != NONE {
            let Node {
                previous, next, up, ..
            } = self.nodes.remove(node);
            self.nodes[previous].next = next;
            self.nodes[next].previous = previous;
            node = up;
        }
    }
}

/// An ordered list. It must be used with the same elements and [`Lanes`] throughout, and emptied (or given up
/// together with them) rather than dropped.
#[derive(Debug)]
pub struct SkipList {
    base: List,
    /// Head of the lowest lane.
    bottom: u32,
    /// Head of the highest lane.
    top: u32,
}

impl SkipList {
    /// An empty list.
    pub const fn new() -> Self {
        SkipList {
            base: List::new(),
            bottom: NONE,
            top: NONE,
        }
    }

    /// Number of elements.
    pub fn len(&self) -> usize {
        self.base.len()
    }

    /// Whether there is no element.
    pub fn is_empty(&self) -> bool {
        self.base.is_empty()
    }

    /// The first element.
    pub fn first(&self) -> Option<u32> {
        self.base.first()
    }

    /// The last element.
    pub fn last(&self) -> Option<u32> {
        self.base.last()
    }

    /// The element behind one that is in a list.
    pub fn next(elements: &impl Linked, element: u32) -> Option<u32> {
        elements.links(element).next()
    }

    /// The element before one that is in a list.
    pub fn previous(elements: &impl Linked, element: u32) -> Option<u32> {
        elements.links(element).previous()
    }

    /// The elements in order.
    pub fn iter<E: Linked>(&self, elements: &E) -> impl Iterator<Item = u32> {
        self.base.iter(elements)
    }

    /// Adds an element at its place, behind those equal to it: in constant time when that is the end, else in
    /// O(log n).
    pub fn push_ordered(&mut self, elements: &mut impl Ordered, lanes: &mut Lanes, element: u32) {
        let height = lanes.draw_height();
        if self.last().is_none_or(|last| !elements.before(element, last)) {
            self.base.push_back(elements, element);
            if height > 0 {
                self.promote(elements, lanes, element, height, Path::default());
            }
            return;
        }
        let mut path = Path::default();
        let previous = self.descend(elements, lanes, &mut path, |other| {
            !elements.before(element, other)
        });
        self.base.insert_after(elements, previous, element);
        self.promote(elements, lanes, element, height, path);
    }

    /// Takes the first element out, in constant expected time.
    pub fn pop_front(&mut self, elements: &mut impl Linked, lanes: &mut Lanes) -> Option<u32> {
        let first = self.first()?;
        self.remove(elements, lanes, first);
        Some(first)
    }

    /// Takes an element out, wherever it is in this list, in constant expected time.
    pub fn remove(&mut self, elements: &mut impl Linked, lanes: &mut Lanes, element: u32) {
        let tower = elements.links(element).lane;
        self.base.remove(elements, element);
        if tower != NONE {
            lanes.remove_tower(tower);
            self.drop_empty_lanes(lanes);
        }
    }

    /// The first element for which `is_before` (the sought place) is false, in O(log n). It must be true for a
    /// first part of the list and false for the rest.
    pub fn seek(
        &self,
        elements: &impl Linked,
        lanes: &Lanes,
        is_before: impl Fn(u32) -> bool,
    ) -> Option<u32> {
        match self.descend(elements, lanes, &mut Path::default(), is_before) {
            None => self.first(),
            Some(previous) => elements.links(previous).next(),
        }
    }

    /// Panics when base and lanes do not agree. Takes time in proportion to the list: for tests and simulation.
    pub fn assert_valid(&self, elements: &impl Ordered, lanes: &Lanes) {
        let order: Vec<u32> = self.iter(elements).collect();
        assert_eq!(order.len(), self.len());
        assert!(
            order.windows(2).all(|pair| !elements.before(pair[1], pair[0])),
            "the base is in order"
        );
        let mut expected: Vec<(u32, u32)> = Vec::new();
        expected.extend(
            order
                .iter()
                .map(|&element| (element, elements.links(element).lane)),
        );
        let mut head = self.bottom;
        let mut below = NONE;
        while head != NONE {
            expected.retain(|&(_, node)| node != NONE);
            assert!(
                head != self.top || !expected.is_empty(),
                "the highest lane is not empty"
            );
            assert_eq!(lanes.nodes[head].down, below);
            let mut at = head;
            for (element, node) in &mut expected {
                assert_eq!((lanes.nodes[at].next, lanes.nodes[*node].previous), (*node, at));
                assert_eq!(lanes.nodes[*node].element, *element);
                at = *node;
                *node = lanes.nodes[at].up;
            }
            assert_eq!((lanes.nodes[at].next, lanes.nodes[head].previous), (head, at));
            below = head;
            head = lanes.nodes[head].up;
        }
        assert_eq!(below, self.top);
        assert!(
            expected.iter().all(|&(_, node)| node == NONE),
            "no element is above the highest lane"
        );
    }

    /// The last element that `is_before`; `path` receives the last such node of every lane, from the top down.
    fn descend(
        &self,
        elements: &impl Linked,
        lanes: &Lanes,
        path: &mut Path,
        is_before: impl Fn(u32) -> bool,
    ) -> Option<u32> {
        let mut at = self.top;
        let mut previous = None;
        while at != NONE {
            loop {
                let next = lanes.nodes[at].next;
                let element = lanes.nodes[next].element;
                if element == NONE || !is_before(element) {
                    break;
                }
                at = next;
            }
            path.push(at);
            previous = some(lanes.nodes[at].element);
            at = lanes.nodes[at].down;
        }
        loop {
            let next = match previous {
                None => self.first(),
                Some(previous) => elements.links(previous).next(),
            };
            match next {
                Some(next) if is_before(next) => previous = Some(next),
                _ => return previous,
            }
        }
    }

    /// Adds an element of the base to the lowest `height` lanes, behind the nodes of `path`, or at the end of each
    /// lane where the path has none. At most one lane is added: more would hold nothing but this element.
    fn promote(
        &mut self,
        elements: &mut impl Linked,
        lanes: &mut Lanes,
        element: u32,
        height: usize,
        mut path: Path,
    ) {
        let mut head = self.bottom;
        let mut below = NONE;
        for _ in 0..height {
            let added = head == NONE;
            if added {
                head = self.add_lane(lanes);
            }
            let previous = path.pop().unwrap_or(lanes.nodes[head].previous);
            let node = lanes.insert_after(previous, below, element);
            if below == NONE {
                elements.links_mut(element).lane = node;
            }
            if added {
                break;
            }
            below = node;
            head = lanes.nodes[head].up;
        }
    }

    fn add_lane(&mut self, lanes: &mut Lanes) -> u32 {
        let down = self.top;
        let head = lanes.nodes.insert(Node {
            previous: NONE,
            next: NONE,
            up: NONE,
            down,
            element: NONE,
        });
        lanes.nodes[head].previous = head;
        lanes.nodes[head].next = head;
        match down {
            NONE => self.bottom = head,
            _ => lanes.nodes[down].up = head,
        }
        self.top = head;
        head
    }

    fn drop_empty_lanes(&mut self, lanes: &mut Lanes) {
        while self.top != NONE && lanes.nodes[self.top].next == self.top {
            self.top = lanes.nodes.remove(self.top).down;
            match self.top {
                NONE => self.bottom = NONE,
                top => lanes.nodes[top].up = NONE,
            }
        }
    }
}

impl Default for SkipList {
    fn default() -> Self {
        SkipList::new()
    }
}

const _: () = assert!(size_of::<SkipList>() == 20 && size_of::<Links>() == 12);

/// A stack of lane nodes, the lowest lane on top.
#[derive(Default)]
struct Path {
    nodes: [u32; LANES_MAX],
    len: usize,
}

impl Path {
    fn push(&mut self, node: u32) {
        self.nodes[self.len] = node;
        self.len += 1;
    }

    fn pop(&mut self) -> Option<u32> {
        self.len = self.len.checked_sub(1)?;
        Some(self.nodes[self.len])
    }
}

#[cfg(test)]
mod tests;
