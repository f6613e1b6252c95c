//! A slab: values under `u32` keys that stay valid, at the same place, until the value is removed.
//!
//! Entries sit in chunks of fixed size behind a vector of chunk pointers, so growth allocates one chunk and never
//! moves an entry (the vector of pointers does move, 24 bytes per 1024 entries). Vacant entries hold the free
//! list. No step takes time in proportion to the number of entries; walking and tearing down are cut into steps by
//! the caller. Chunks are not given back before the teardown: a shard that held a million jobs will again.

use std::mem;
use std::ops::{Index, IndexMut};

use super::NONE;

/// Entries per chunk.
pub const CHUNK_ENTRIES: u32 = 1 << CHUNK_BITS;
const CHUNK_BITS: u32 = 10;

/// Keys are below this, so that users may tag one with the highest bit.
pub const KEY_LIMIT: u32 = 1 << 31;

/// Values of one type under `u32` keys. A key is reused after its value was removed, latest first.
#[derive(Debug)]
pub struct Slab<T> {
    chunks: Vec<Vec<Slot<T>>>,
    first_free: u32,
    len: u32,
}

#[derive(Debug)]
enum Slot<T> {
    Occupied(T),
    Vacant { next_free: u32 },
}

impl<T> Slab<T> {
    /// An empty slab, which allocates nothing.
    pub const fn new() -> Self {
        Slab {
            chunks: Vec::new(),
            first_free: NONE,
            len: 0,
        }
    }

    /// Stores a value and returns its key.
    pub fn insert(&mut self, value: T) -> u32 {
        self.insert_with(|_| value)
    }

    /// Stores the value that is made for its key, and returns the key.
    pub fn insert_with(&mut self, make: impl FnOnce(u32) -> T) -> u32 {
        self.len += 1;
        if self.first_free == NONE {
            return self.push(make);
        }
        let key = self.first_free;
        let slot = self.slot_mut(key).expect("the free list stays inside the slab");
        let Slot::Vacant { next_free } = *slot else {
            panic!("the free list of a slab names the occupied entry {key}");
        };
        *slot = Slot::Occupied(make(key));
        self.first_free = next_free;
        key
    }

    /// Takes the value out. Panics when there is none under this key.
    #[track_caller]
    pub fn remove(&mut self, key: u32) -> T {
        let next_free = self.first_free;
        let slot = self
            .slot_mut(key)
            .filter(|slot| matches!(slot, Slot::Occupied(_)));
        let slot = slot.unwrap_or_else(|| missing(key));
        let Slot::Occupied(value) = mem::replace(slot, Slot::Vacant { next_free }) else {
            missing(key)
        };
        self.first_free = key;
        self.len -= 1;
        value
    }

    /// The value under this key, if there is one.
    pub fn get(&self, key: u32) -> Option<&T> {
        let chunk = self.chunks.get((key >> CHUNK_BITS) as usize)?;
        match chunk.get((key & (CHUNK_ENTRIES - 1)) as usize)? {
            Slot::Occupied(value) => Some(value),
            Slot::Vacant { .. } => None,
        }
    }

    /// The value under this key, to change it, if there is one.
    pub fn get_mut(&mut self, key: u32) -> Option<&mut T> {
        match self.slot_mut(key)? {
            Slot::Occupied(value) => Some(value),
            Slot::Vacant { .. } => None,
        }
    }

    /// Number of values.
    pub fn len(&self) -> usize {
        self.len as usize
    }

    /// Whether there is no value.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// All keys in use are below this.
    pub fn high_water(&self) -> u32 {
        match self.chunks.last() {
            None => 0,
            Some(last) => ((self.chunks.len() as u32 - 1) << CHUNK_BITS) + last.len() as u32,
        }
    }

    /// The values with keys in `from..from + entries`, in order of their keys. A walk over the whole slab in
    /// bounded steps continues at `from + entries` until that reaches [`Self::high_water`].
    pub fn iter_from(&self, from: u32, entries: u32) -> impl Iterator<Item = (u32, &T)> {
        let end = from.saturating_add(entries).min(self.high_water());
        (from..end).filter_map(|key| Some((key, self.get(key)?)))
    }

    /// Drops the values of up to `chunks` chunks, those with the highest keys first; true when nothing is left.
    /// Keys that were vacant before stay unused until then.
    pub fn drop_some(&mut self, chunks: usize) -> bool {
        // Part of the free list goes with the chunks, and sorting that part out would be a walk.
        self.first_free = NONE;
        for _ in 0..chunks {
            let Some(chunk) = self.chunks.pop() else { break };
            let occupied = chunk
                .iter()
                .filter(|slot| matches!(slot, Slot::Occupied(_)))
                .count();
            self.len -= occupied as u32;
        }
        if self.chunks.is_empty() {
            assert_eq!(self.len, 0, "values of a slab are counted");
            self.chunks = Vec::new();
        }
        self.chunks.is_empty()
    }

    fn push(&mut self, make: impl FnOnce(u32) -> T) -> u32 {
        let key = self.high_water();
        assert!(key < KEY_LIMIT, "a slab has at most {KEY_LIMIT} entries");
        if key.is_multiple_of(CHUNK_ENTRIES) {
            self.chunks.push(Vec::with_capacity(CHUNK_ENTRIES as usize));
        }
        let chunk = self.chunks.last_mut().expect("there is a chunk with room");
        chunk.push(Slot::Occupied(make(key)));
        key
    }

    fn slot_mut(&mut self, key: u32) -> Option<&mut Slot<T>> {
        let chunk = self.chunks.get_mut((key >> CHUNK_BITS) as usize)?;
        chunk.get_mut((key & (CHUNK_ENTRIES - 1)) as usize)
    }
}

impl<T> Default for Slab<T> {
    fn default() -> Self {
        Slab::new()
    }
}

impl<T> Index<u32> for Slab<T> {
    type Output = T;

    #[track_caller]
    fn index(&self, key: u32) -> &T {
        self.get(key).unwrap_or_else(|| missing(key))
    }
}

impl<T> IndexMut<u32> for Slab<T> {
    #[track_caller]
    fn index_mut(&mut self, key: u32) -> &mut T {
        self.get_mut(key).unwrap_or_else(|| missing(key))
    }
}

#[cold]
#[track_caller]
fn missing(key: u32) -> ! {
    panic!("no value in the slab under key {key}")
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::rc::Rc;

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn an_entry_costs_no_more_than_an_option() {
        assert_eq!(size_of::<Slot<[u32; 5]>>(), size_of::<Option<[u32; 5]>>());
        assert_eq!(size_of::<Slot<u64>>(), size_of::<Option<u64>>());
    }

    #[test]
    fn growth_leaves_entries_in_place() {
        let mut slab = Slab::new();
        slab.insert(0u32);
        let place: *const u32 = &slab[0];
        (1..10 * CHUNK_ENTRIES).for_each(|value| assert_eq!(slab.insert(value), value));
        assert_eq!(place, &raw const slab[0]);
        assert_eq!(slab.high_water(), 10 * CHUNK_ENTRIES);
    }

    #[test]
    fn teardown_drops_every_value_and_leaves_a_usable_slab() {
        let value = Rc::new(());
        let mut slab = Slab::new();
        (0..5 * CHUNK_ENTRIES + 7).for_each(|_| _ = slab.insert(value.clone()));
        (0..3000).step_by(3).for_each(|key| drop(slab.remove(key)));
        assert!(!slab.drop_some(2));
        assert_eq!(Rc::strong_count(&value), slab.len() + 1);
        let key = slab.insert(value.clone());
        assert!(slab.get(key).is_some());
        assert!(!slab.drop_some(4));
        assert_eq!(Rc::strong_count(&value), slab.len() + 1);
        assert!(slab.drop_some(2));
        assert!(slab.is_empty());
        assert_eq!(Rc::strong_count(&value), 1);
        assert_eq!(slab.insert(value.clone()), 0);
    }

    #[test]
    #[should_panic(expected = "under key 1")]
    fn removing_twice_panics() {
        let mut slab = Slab::new();
        slab.insert('a');
        slab.insert('b');
        slab.remove(1);
        slab.remove(1);
    }

    proptest! {
        #[test]
        fn behaves_like_a_map(steps in prop::collection::vec((0u8..5, any::<u32>()), 0..4000)) {
            let mut slab = Slab::new();
            let mut model = BTreeMap::new();
            for (step, argument) in steps {
                let key = argument % (slab.high_water() + 1);
                match step {
                    0..3 => prop_assert_eq!(model.insert(slab.insert(argument), argument), None),
                    3 if model.contains_key(&key) => {
                        prop_assert_eq!(Some(slab.remove(key)), model.remove(&key));
                    }
                    _ => {
                        prop_assert_eq!(slab.get(key), model.get(&key));
                        if let Some(value) = slab.get_mut(key) {
                            *value = argument;
                            model.insert(key, argument);
                        }
                    }
                }
                prop_assert_eq!(slab.len(), model.len());
            }
            let mut walked = Vec::new();
            let mut from = 0;
            while from < slab.high_water() {
                walked.extend(slab.iter_from(from, 100).map(|(key, value)| (key, *value)));
                from += 100;
            }
            prop_assert_eq!(walked, model.into_iter().collect::<Vec<_>>());
        }
    }
}
