//! A hash map that grows and shrinks one bucket at a time, over elements that live elsewhere and chain through
//! themselves, and that can be scanned while it changes.
//!
//! Linear hashing: with n buckets, an element's bucket is the low bits of its hash, as many as n needs; one bit
//! less where that bucket does not exist yet. Growth adds bucket n and splits one other into it; shrinking merges
//! the last bucket back. Each insert or removal splits or merges two buckets at most.
//!
//! The scan goes by *rank*, the hash with its bits reversed. All elements of a bucket share the low bits of their
//! hash, hence the high bits of their rank: a bucket is an interval of ranks, a split halves it, a merge joins two
//! neighbours. A position is a rank. Scanning a bucket yields its elements from the position on, and the next
//! position is the end of its interval, whatever the buckets were or will be. So an element that is there
//! throughout a scan is visited exactly once, one that comes or goes meanwhile at most once. (One that is removed
//! and comes back is a new one.)
//!
//! A chain is short only when hashes are spread well, also against an adversary: the caller's part.

use super::NONE;
use super::list::some;

/// Access to the elements of a map, by key.
pub trait Chained {
    /// The key stored by the last [`Self::set_chain`].
    fn chain(&self, element: u32) -> u32;
    /// Stores a key for the map.
    fn set_chain(&mut self, element: u32, next: u32);
    /// The element's hash, all of whose 64 bits count; it does not change while the element is in a map.
    fn hash(&self, element: u32) -> u64;
}

/// Bits at the low end of a position that are zero when a scan returns it: a cursor need not store them.
pub const POSITION_SPARE_BITS: u32 = 64 - DEPTH_MAX;

/// Bits of the hash that choose a bucket, at most: keys have no more.
const DEPTH_MAX: u32 = 31;
const _: () = assert!(POSITION_SPARE_BITS >= 12, "a cursor has 52 bits for the position");

/// Buckets per chunk, once there is more than one chunk.
const CHUNK_BUCKETS: usize = 1 << CHUNK_BITS;
const CHUNK_BITS: u32 = 10;

/// A set of elements found by hash. It must be used with the same elements throughout.
#[derive(Debug, Default)]
pub struct ScanMap {
    /// First elements of the buckets. All chunks but the last are full; none moves but the first, while it is the
    /// only one and growing.
    chunks: Vec<Vec<u32>>,
    buckets: u32,
    len: u32,
}

impl ScanMap {
    /// An empty map, which allocates nothing.
    pub const fn new() -> Self {
        ScanMap {
            chunks: Vec::new(),
            buckets: 0,
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

    /// Adds an element. The caller makes sure that the map has none that counts as equal.
    pub fn insert(&mut self, elements: &mut impl Chained, element: u32) {
        if self.len == self.buckets {
            self.split(elements);
        }
        let bucket = self.bucket_of(elements.hash(element));
        elements.set_chain(element, self.first(bucket));
        *self.first_mut(bucket) = element;
        self.len += 1;
    }

    /// Takes an element out. Panics when it is not in the map.
    pub fn remove(&mut self, elements: &mut impl Chained, element: u32) {
        let bucket = self.bucket_of(elements.hash(element));
        let next = elements.chain(element);
        let mut at = self.first(bucket);
        if at == element {
            *self.first_mut(bucket) = next;
        } else {
            while at != NONE && elements.chain(at) != element {
                at = elements.chain(at);
            }
            assert!(at != NONE, "element {element} is not in the map");
            elements.set_chain(at, next);
        }
        elements.set_chain(element, NONE);
        self.len -= 1;
        self.shrink(elements);
    }

    /// The element with this hash for which `is_sought` is true. The closure is also asked about other elements
    /// of the bucket: it compares identities, not hashes.
    pub fn find(
        &self,
        elements: &impl Chained,
        hash: u64,
        mut is_sought: impl FnMut(u32) -> bool,
    ) -> Option<u32> {
        if self.is_empty() {
            return None;
        }
        self.chain_of(elements, self.bucket_of(hash))
            .find(|&element| is_sought(element))
    }

    /// Visits the elements of one bucket, the one whose interval holds `position`, from that rank on, in no order.
    /// Returns where to go on, or `None` at the end. A scan starts at position 0; every other `u64` is as safe.
    pub fn scan(&self, elements: &impl Chained, position: u64, mut visit: impl FnMut(u32)) -> Option<u64> {
        if self.is_empty() {
            return None;
        }
        let bucket = self.bucket_of(position.reverse_bits());
        self.chain_of(elements, bucket)
            .filter(|&element| elements.hash(element).reverse_bits() >= position)
            .for_each(&mut visit);
        let depth = self.depth_of(bucket);
        assert!(depth <= DEPTH_MAX, "positions end in {POSITION_SPARE_BITS} zeros");
        let width_less_one = u64::MAX.checked_shr(depth).expect("the depth is checked");
        (position | width_less_one).checked_add(1)
    }

    /// Scans bucket by bucket until it has visited `elements_max` or looked into as many buckets; in a map that is
    /// not empty it goes ahead by one bucket at least. The bucket that reaches the limit is finished, so a few more
    /// elements may come.
    pub fn scan_some(
        &self,
        elements: &impl Chained,
        mut position: u64,
        elements_max: usize,
        mut visit: impl FnMut(u32),
    ) -> Option<u64> {
        let mut visited = 0;
        for _ in 0..elements_max.max(1) {
            position = self.scan(elements, position, |element| {
                visited += 1;
                visit(element);
            })?;
            if visited >= elements_max {
                break;
            }
        }
        Some(position)
    }

    /// Forgets all elements, whose own links are left as they are, up to `chunks` chunks of buckets at a time; true
    /// when done. In between, nothing else may be called.
    pub fn drop_some(&mut self, chunks: usize) -> bool {
        let left = self.chunks.len().saturating_sub(chunks);
        self.chunks.truncate(left);
        if left == 0 {
            *self = ScanMap::new();
        }
        left == 0
    }

    /// Adds a bucket and moves there what belongs there.
    fn split(&mut self, elements: &mut impl Chained) {
        let added = self.buckets;
        self.push_bucket();
        if added == 0 {
            return;
        }
        let parent = parent_of(added);
        let mut at = std::mem::replace(self.first_mut(parent), NONE);
        while at != NONE {
            let next = elements.chain(at);
            let bucket = self.bucket_of(elements.hash(at));
            assert!(
                bucket == added || bucket == parent,
                "the hash of element {at} has changed"
            );
            elements.set_chain(at, self.first(bucket));
            *self.first_mut(bucket) = at;
            at = next;
        }
    }

    /// Follows a removal with up to two merges: one would fall behind a map that keeps half as many elements as
    /// buckets, and so would be left with buckets when it is empty.
    fn shrink(&mut self, elements: &mut impl Chained) {
        if self.len == 0 {
            *self = ScanMap::new();
            return;
        }
        for _ in 0..2 {
            if self.len < self.buckets / 2 {
                self.merge(elements);
            }
        }
    }

    /// Takes the last bucket away and moves its elements to the one it was split from.
    fn merge(&mut self, elements: &mut impl Chained) {
        let mut at = self.pop_bucket();
        let parent = parent_of(self.buckets);
        while at != NONE {
            let next = elements.chain(at);
            elements.set_chain(at, self.first(parent));
            *self.first_mut(parent) = at;
            at = next;
        }
    }

    fn push_bucket(&mut self) {
        assert!(
            self.buckets < 1 << DEPTH_MAX,
            "a map has at most 2^{DEPTH_MAX} buckets"
        );
        if (self.buckets as usize).is_multiple_of(CHUNK_BUCKETS) {
            // The first chunk grows with its map: most maps are small.
            let room = if self.chunks.is_empty() { 1 } else { CHUNK_BUCKETS };
            self.chunks.push(Vec::with_capacity(room));
        }
        self.chunks
            .last_mut()
            .expect("there is a chunk with room")
            .push(NONE);
        self.buckets += 1;
    }

    /// Takes the last bucket away and returns its first element.
    fn pop_bucket(&mut self) -> u32 {
        let chunk = self.chunks.last_mut().expect("there are buckets");
        let first = chunk.pop().expect("no chunk is empty");
        if chunk.is_empty() {
            self.chunks.pop();
        } else if self.chunks.len() == 1 && self.chunks[0].len() < self.chunks[0].capacity() / 4 {
            let half = self.chunks[0].capacity() / 2;
            self.chunks[0].shrink_to(half);
        }
        self.buckets -= 1;
        first
    }

    fn bucket_of(&self, hash: u64) -> u32 {
        let mask = self.buckets.next_power_of_two() - 1;
        let bucket = hash as u32 & mask;
        if bucket < self.buckets {
            bucket
        } else {
            bucket & (mask >> 1)
        }
    }

    /// How many low bits of the hash the elements of a bucket share.
    fn depth_of(&self, bucket: u32) -> u32 {
        let depth = self.buckets.next_power_of_two().trailing_zeros();
        // The bucket that would be split off this one with the last bit, if it could be.
        let sibling = bucket | (self.buckets.next_power_of_two() >> 1);
        if sibling < self.buckets { depth } else { depth - 1 }
    }

    fn first(&self, bucket: u32) -> u32 {
        self.chunks[(bucket >> CHUNK_BITS) as usize][bucket as usize % CHUNK_BUCKETS]
    }

    fn first_mut(&mut self, bucket: u32) -> &mut u32 {
        &mut self.chunks[(bucket >> CHUNK_BITS) as usize][bucket as usize % CHUNK_BUCKETS]
    }

    fn chain_of<E: Chained>(&self, elements: &E, bucket: u32) -> impl Iterator<Item = u32> {
        std::iter::successors(some(self.first(bucket)), |&element| some(elements.chain(element)))
    }
}

/// The bucket that is split to fill this one.
fn parent_of(bucket: u32) -> u32 {
    bucket & !(1 << bucket.ilog2())
}

#[cfg(test)]
mod tests;
