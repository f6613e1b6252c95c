//! A hash map that grows and shrinks one bucket at a time, over elements that live elsewhere and are never touched,
//! and that can be scanned while it changes.
//!
//! Linear hashing: with n buckets, an element's bucket is the low bits of its hash, as many as n needs; one bit
//! less where that bucket does not exist yet. Growth adds bucket n and splits one other into it; shrinking merges
//! the last bucket back. Each insert or removal splits or merges two buckets at most.
//!
//! A bucket is a cache line of entries, a key and the half of its hash that places it, so splits and merges read
//! lines only: to follow a key to its element is a cache miss each. More than seven entries go on in *overflow*
//! lines behind the first, all of them full, so that an insert into the most crowded bucket is as quick as any. The
//! last overflow line moves into the place of one that is given up, so their store shrinks with the map, and a map
//! that becomes empty has little left to free.
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

use smallvec::SmallVec;

use super::NONE;
use super::list::some;
use lines::{Entry, Full, Head, Lines};

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
    heads: Lines<Head>,
    /// The other lines of all buckets.
    overflow: Lines<Full>,
    buckets: u32,
    len: u32,
}

impl ScanMap {
    /// An empty map, which allocates nothing.
    pub const fn new() -> Self {
        ScanMap {
            heads: Lines::new(),
            overflow: Lines::new(),
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
        self.heads[self.bucket_of(hash as u32)].entries().len()
    }

    /// Takes an element out. Panics when it is not in the map under this hash.
    pub fn remove(&mut self, hash: u64, key: u32) {
        let hash = hash as u32;
        let found = !self.is_empty() && self.take(self.bucket_of(hash), Entry { hash, key });
        assert!(found, "key {key} is not in the map");
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
        let mut is_it = |entry: &&Entry| entry.hash == hash && is_sought(entry.key);
        let head = &self.heads[self.bucket_of(hash)];
        let mut found = head.entries().iter().find(&mut is_it);
        let mut more = head.more;
        while let (None, Some(number)) = (found, some(more)) {
            let line = &self.overflow[number];
            found = line.entries.iter().find(&mut is_it);
            more = line.more;
        }
        found.map(|entry| entry.key)
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
            .flatten()
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
        if added == 0 {
            self.heads.push(Head::EMPTY);
            self.buckets = 1;
            return;
        }
        let parent = parent_of(added);
        let head = self.heads[parent];
        if some(head.more).is_none() {
            self.buckets += 1;
            let (stays, goes) = head.divide(|hash| self.bucket_of(hash) == parent);
            self.heads[parent] = stays;
            self.heads.push(goes);
            return;
        }
        let entries = self.take_all(parent);
        self.heads.push(Head::EMPTY);
        self.buckets += 1;
        for entry in entries {
            self.push(self.bucket_of(entry.hash), entry);
        }
    }

    /// Takes the last bucket away and moves its elements to the one it was split from.
    fn merge(&mut self) {
        let last = self.buckets - 1;
        let entries = self.take_all(last);
        self.heads.pop();
        self.buckets -= 1;
        for entry in entries {
            self.push(parent_of(last), entry);
        }
    }

    /// Adds an entry to the first line of a bucket. What fills it moves behind.
    fn push(&mut self, bucket: u32, entry: Entry) {
        let head = &mut self.heads[bucket];
        if head.is_full() {
            self.move_behind(bucket);
            self.heads[bucket].push(entry);
        } else {
            head.push(entry);
        }
    }

    /// Makes the full first line of a bucket its first overflow line.
    fn move_behind(&mut self, bucket: u32) {
        let head = &mut self.heads[bucket];
        let (number, full) = (self.overflow.len(), Full::of(head));
        *head = Head::EMPTY;
        head.more = number;
        if let Some(more) = some(full.more) {
            self.overflow[more].back = number;
        }
        self.overflow.push(full);
    }

    /// Takes the last entry of a bucket's first line out.
    fn pop(&mut self, bucket: u32) -> Option<Entry> {
        let head = &mut self.heads[bucket];
        let last = head.pop()?;
        if let Some(more) = some(head.more).filter(|_| head.entries().is_empty()) {
            let full = self.overflow[more];
            *head = Head::full(full.entries, full.more);
            if let Some(next) = some(full.more) {
                self.overflow[next].back = NONE;
            }
            self.give_up(more);
        }
        Some(last)
    }

    /// Takes an entry out of a bucket, whose first line gives its last one for the gap. False when it is not there.
    fn take(&mut self, bucket: u32, entry: Entry) -> bool {
        let head = &mut self.heads[bucket];
        let mut more = head.more;
        if more == NONE {
            return head.remove(entry);
        }
        let Some(&last) = head.entries().last() else {
            return false;
        };
        let mut found = replace(head.entries_mut(), entry, last);
        while !found {
            let Some(number) = some(more) else { return false };
            let line = &mut self.overflow[number];
            more = line.more;
            found = replace(&mut line.entries, entry, last);
        }
        self.pop(bucket);
        true
    }

    /// Takes all entries out of a bucket, line by line.
    fn take_all(&mut self, bucket: u32) -> Entries {
        let mut entries = Entries::from_slice(self.heads[bucket].take_entries());
        while let Some(number) = some(self.heads[bucket].more) {
            let line = self.overflow[number];
            entries.extend_from_slice(&line.entries);
            self.heads[bucket].more = line.more;
            if let Some(next) = some(line.more) {
                self.overflow[next].back = NONE;
            }
            self.give_up(number);
        }
        entries
    }

    /// Frees an overflow line that nothing links to any more, and moves the last one there.
    fn give_up(&mut self, number: u32) {
        let last = self.overflow.pop().expect("there is the one to free");
        if number == self.overflow.len() {
            return;
        }
        match some(last.back) {
            Some(back) => self.overflow[back].more = number,
            None => {
                let bucket = self.bucket_of(last.entries[0].hash);
                self.heads[bucket].more = number;
            }
        }
        if let Some(more) = some(last.more) {
            self.overflow[more].back = number;
        }
        self.overflow[number] = last;
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

    /// The entries of a bucket, line by line.
    fn lines_of(&self, bucket: u32) -> impl Iterator<Item = &[Entry]> {
        let head = &self.heads[bucket];
        let behind = |more: u32| Some(&self.overflow[some(more)?]);
        let overflow = std::iter::successors(behind(head.more), move |line| behind(line.more));
        std::iter::once(head.entries()).chain(overflow.map(|line| &line.entries[..]))
    }
}

impl Default for ScanMap {
    fn default() -> Self {
        ScanMap::new()
    }
}

/// The entries of one bucket; most fill a line or two.
type Entries = SmallVec<[Entry; 2 * lines::LINE_ENTRIES]>;

/// Puts another entry in the place of one; false when that is not there.
fn replace(entries: &mut [Entry], sought: Entry, other: Entry) -> bool {
    let place = entries.iter_mut().find(|entry| **entry == sought);
    place.map(|place| *place = other).is_some()
}

/// The bucket that is split to fill this one.
fn parent_of(bucket: u32) -> u32 {
    bucket & !(1 << bucket.ilog2())
}

#[cfg(test)]
mod tests;
