//! A hash map that grows and shrinks one bucket at a time, over elements that live elsewhere and are never touched,
//! and that can be scanned while it changes.
//!
//! Linear hashing: with n buckets, an element's bucket is the low bits of its hash, as many as n needs; one bit
//! less where that bucket does not exist yet. Growth adds bucket n and splits one other into it; shrinking merges
//! the last bucket back. Each insert or removal splits or merges two buckets at most.
//!
//! A bucket is a cache line of entries, a key and the half of its hash that places it, so splits and merges read
//! lines only: to follow a key to its element is a cache miss each. More than seven entries go on in *overflow*
//! lines behind the first, all of them full, so that an insert into the most crowded bucket is as quick as any.
//!
//! The scan goes by *rank*, the hash with its bits reversed. All elements of a bucket share the low bits of their
//! hash, hence the high bits of their rank: a bucket is an interval of ranks, a split halves it, a merge joins two
//! neighbours. A position is a rank. Scanning a bucket yields its elements from the position on, and the next
//! position is the end of its interval, whatever the buckets were or will be. So an element that is there
//! throughout a scan is visited exactly once, one that comes or goes meanwhile at most once. (One that is removed
//! and comes back is a new one.)
//!
//! A bucket is short only when hashes are spread well, also against an adversary: the caller's part.

mod lines;

use super::NONE;
use lines::{Entry, Line, Lines, linked};

/// Bits at the low end of a position that are zero when a scan returns it: a cursor need not store them.
pub const POSITION_SPARE_BITS: u32 = 64 - DEPTH_MAX;

/// Bits of the hash that choose a bucket, at most: keys have no more.
const DEPTH_MAX: u32 = 31;
const _: () = assert!(POSITION_SPARE_BITS >= 12, "a cursor has 52 bits for the position");
const _: () = assert!(DEPTH_MAX <= 32, "entries keep 32 bits of the hash");

/// Elements per ten buckets above which one is split.
const SPLIT_LOAD: u64 = 45;
/// Elements per ten buckets below which two are merged: less than half, so that a split is not undone soon.
const MERGE_LOAD: u64 = 18;

/// A set of keys found by hash.
#[derive(Debug)]
pub struct ScanMap {
    /// The first line of each bucket.
    heads: Lines,
    /// The other lines of buckets, and unused ones.
    overflow: Lines,
    /// The first of the unused overflow lines, which are linked. They are given back when the map is empty.
    first_unused: u32,
    buckets: u32,
    len: u32,
}

impl ScanMap {
    /// An empty map, which allocates nothing.
    pub const fn new() -> Self {
        ScanMap {
            heads: Lines::new(),
            overflow: Lines::new(),
            first_unused: NONE,
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
    pub fn insert(&mut self, hash: u64, key: u32) {
        if u64::from(self.len) * 10 >= u64::from(self.buckets) * SPLIT_LOAD {
            self.split();
        }
        let hash = hash as u32;
        self.push(self.bucket_of(hash), Entry { hash, key });
        self.len += 1;
    }

    /// Looks at the place of a hash without need, so that it is in the cache when it is needed. Returns something to make use of.
    pub fn look_at(&self, hash: u64) -> usize {
        if self.is_empty() {
            return 0;
        }
        self.lines_of(self.bucket_of(hash as u32))
            .next()
            .map_or(0, |line| line.entries().len())
    }

    /// Takes an element out. Panics when it is not in the map under this hash.
    pub fn remove(&mut self, hash: u64, key: u32) {
        assert!(!self.is_empty(), "key {key} is not in the map");
        let hash = hash as u32;
        self.take(self.bucket_of(hash), Entry { hash, key });
        self.len -= 1;
        if self.len == 0 {
            *self = ScanMap::new();
        } else if self.buckets > 1 && u64::from(self.len) * 10 < u64::from(self.buckets) * MERGE_LOAD {
            self.merge();
        }
    }

    /// The element with this hash for which `is_sought` is true. The closure is also asked about elements whose
    /// hashes are equal in their low half only: it compares identities, not hashes.
    pub fn find(&self, hash: u64, mut is_sought: impl FnMut(u32) -> bool) -> Option<u32> {
        if self.is_empty() {
            return None;
        }
        let hash = hash as u32;
        for line in self.lines_of(self.bucket_of(hash)) {
            for entry in line.entries() {
                if entry.hash == hash && is_sought(entry.key) {
                    return Some(entry.key);
                }
            }
        }
        None
    }

    /// Visits the elements of one bucket, the one whose interval holds `position`, from that rank on, in no order.
    /// Returns where to go on, or `None` at the end. A scan starts at position 0; every other `u64` is as safe, but
    /// of one that no scan returned only the upper half counts.
    pub fn scan(&self, position: u64, mut visit: impl FnMut(u32)) -> Option<u64> {
        if self.is_empty() {
            return None;
        }
        let first_rank = (position >> 32) as u32;
        let bucket = self.bucket_of(first_rank.reverse_bits());
        self.lines_of(bucket)
            .flat_map(Line::entries)
            .filter(|entry| entry.hash.reverse_bits() >= first_rank)
            .for_each(|entry| visit(entry.key));
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
        mut position: u64,
        elements_max: usize,
        mut visit: impl FnMut(u32),
    ) -> Option<u64> {
        let mut visited = 0;
        for _ in 0..elements_max.max(1) {
            position = self.scan(position, |key| {
                visited += 1;
                visit(key);
            })?;
            if visited >= elements_max {
                break;
            }
        }
        Some(position)
    }

    /// Forgets all elements, up to `chunks` chunks of lines at a time; true when done. In between, nothing else may
    /// be called.
    pub fn drop_some(&mut self, chunks: usize) -> bool {
        for _ in 0..chunks {
            if !self.overflow.drop_chunk() && !self.heads.drop_chunk() {
                break;
            }
        }
        let done = self.heads.len() == 0;
        if done {
            *self = ScanMap::new();
        }
        done
    }

    /// Adds a bucket and moves there what belongs there.
    fn split(&mut self) {
        assert!(
            self.buckets < 1 << DEPTH_MAX,
            "a map has at most 2^{DEPTH_MAX} buckets"
        );
        let added = self.buckets;
        self.heads.push(Line::before(NONE));
        self.buckets += 1;
        if added > 0 {
            let parent = &mut self.heads[parent_of(added)];
            let line = std::mem::replace(parent, Line::before(NONE));
            self.distribute(line);
        }
    }

    /// Takes the last bucket away and moves its elements to the one it was split from.
    fn merge(&mut self) {
        let line = self.heads.pop().expect("there are buckets");
        self.buckets -= 1;
        self.distribute(line);
    }

    /// Puts what is in a line, and in those behind it, where it belongs by now.
    fn distribute(&mut self, mut line: Line) {
        loop {
            for &entry in line.entries() {
                self.push(self.bucket_of(entry.hash), entry);
            }
            let Some(more) = linked(line.more) else { return };
            line = self.give_up(more);
        }
    }

    /// Adds an entry to the first line of a bucket. What fills it moves behind.
    fn push(&mut self, bucket: u32, entry: Entry) {
        let head = &mut self.heads[bucket];
        if head.is_full() {
            let full = *head;
            let more = self.keep(full);
            self.heads[bucket] = Line::before(more);
        }
        self.heads[bucket].push(entry);
    }

    /// Takes an entry out of a bucket, whose last one fills the gap.
    fn take(&mut self, bucket: u32, entry: Entry) {
        let last = self.heads[bucket].entries().last().copied();
        let mut line = &mut self.heads[bucket];
        loop {
            let more = linked(line.more);
            if let Some(gap) = line.entries_mut().iter_mut().find(|other| **other == entry) {
                *gap = last.expect("the first line of a bucket is the last to be empty");
                break;
            }
            let Some(more) = more else {
                panic!("key {} is not in the map", entry.key);
            };
            line = &mut self.overflow[more];
        }
        let head = &mut self.heads[bucket];
        head.pop();
        if let Some(more) = linked(head.more).filter(|_| head.is_empty()) {
            self.heads[bucket] = self.give_up(more);
        }
    }

    /// Stores an overflow line and returns its number.
    fn keep(&mut self, line: Line) -> u32 {
        if let Some(unused) = linked(self.first_unused) {
            self.first_unused = self.overflow[unused].more;
            self.overflow[unused] = line;
            return unused;
        }
        self.overflow.push(line);
        self.overflow.len() - 1
    }

    /// Takes an overflow line out.
    fn give_up(&mut self, number: u32) -> Line {
        let unused = Line::before(self.first_unused);
        self.first_unused = number;
        std::mem::replace(&mut self.overflow[number], unused)
    }

    fn bucket_of(&self, hash: u32) -> u32 {
        let mask = self.buckets.next_power_of_two() - 1;
        let bucket = hash & mask;
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

    fn lines_of(&self, bucket: u32) -> impl Iterator<Item = &Line> {
        std::iter::successors(Some(&self.heads[bucket]), |line| {
            Some(&self.overflow[linked(line.more)?])
        })
    }
}

impl Default for ScanMap {
    fn default() -> Self {
        ScanMap::new()
    }
}

/// The bucket that is split to fill this one.
fn parent_of(bucket: u32) -> u32 {
    bucket & !(1 << bucket.ilog2())
}

#[cfg(test)]
mod tests;
