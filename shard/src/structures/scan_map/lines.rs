//! The lines of a scan map, each one cache line of seven entries, and the store that keeps them in chunks.
//!
//! A store grows and shrinks at its end, a chunk at a time: no line moves but those of the first chunk, while it is
//! the only one and growing, since most maps are small.

use std::ops::{Index, IndexMut};

use crate::structures::NONE;

/// Lines per chunk, once there is more than one chunk. 32 KiB: smaller ones waste less, but the allocator puts all that
/// were freed since the last allocation in order at the next one: a millisecond when a map of two million elements
/// shrinks 8 KiB at a time, half of that with these.
pub const CHUNK_LINES: usize = 1 << CHUNK_BITS;
const CHUNK_BITS: u32 = 9;

/// What a line has room for: two words of a cache line are left for its length and its link.
pub const LINE_ENTRIES: usize = 7;

const _: () = assert!(
    size_of::<Head>() == 64 && size_of::<Full>() == 64,
    "a line is a cache line"
);

/// An element, as far as the map knows it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Entry {
    /// The low half of its hash.
    pub hash: u32,
    pub key: u32,
}

/// The first line of a bucket: up to seven entries.
#[derive(Clone, Copy, Debug)]
#[repr(align(64))]
pub struct Head {
    entries: [Entry; LINE_ENTRIES],
    len: u32,
    /// Number of the overflow line behind it.
    pub more: u32,
}

/// An overflow line: seven entries.
#[derive(Clone, Copy, Debug)]
#[repr(align(64))]
pub struct Full {
    pub entries: [Entry; LINE_ENTRIES],
    /// Number of the overflow line before it; `NONE` when that is the head of the bucket.
    pub back: u32,
    /// Number of the overflow line behind it.
    pub more: u32,
}

impl Head {
    /// A line without entries and with nothing behind it.
    pub const EMPTY: Self = Head {
        entries: [Entry { hash: 0, key: 0 }; LINE_ENTRIES],
        len: 0,
        more: NONE,
    };

    pub const fn full(entries: [Entry; LINE_ENTRIES], more: u32) -> Self {
        let len = LINE_ENTRIES as u32;
        Head { entries, len, more }
    }

    pub fn entries(&self) -> &[Entry] {
        &self.entries[..self.len as usize]
    }

    pub fn entries_mut(&mut self) -> &mut [Entry] {
        &mut self.entries[..self.len as usize]
    }

    /// Whether it has no room for another entry.
    pub fn is_full(&self) -> bool {
        self.len as usize == LINE_ENTRIES
    }

    /// Two lines with nothing behind them: the entries whose hashes `stays` is true for, and the others.
    pub fn divide(&self, stays: impl Fn(u32) -> bool) -> (Self, Self) {
        let (mut staying, mut going) = (Self::EMPTY, Self::EMPTY);
        for &entry in self.entries() {
            match stays(entry.hash) {
                true => staying.push(entry),
                false => going.push(entry),
            }
        }
        (staying, going)
    }

    /// Adds an entry to a line that is not full.
    pub fn push(&mut self, entry: Entry) {
        self.entries[self.len as usize] = entry;
        self.len += 1;
    }

    /// Takes an entry out of a line with nothing behind it; false when it is not there.
    pub fn remove(&mut self, entry: Entry) -> bool {
        let Some(place) = self.entries().iter().position(|other| *other == entry) else {
            return false;
        };
        self.len -= 1;
        self.entries[place] = self.entries[self.len as usize];
        true
    }

    /// Takes all entries out.
    pub fn take_entries(&mut self) -> &[Entry] {
        let len = std::mem::take(&mut self.len);
        &self.entries[..len as usize]
    }

    /// Takes the last entry out.
    pub fn pop(&mut self) -> Option<Entry> {
        let last = *self.entries().last()?;
        self.len -= 1;
        Some(last)
    }
}

impl Full {
    /// What a head that is full becomes as the first overflow line of its bucket.
    pub fn of(head: &Head) -> Self {
        assert!(head.is_full(), "overflow lines are full");
        Full {
            entries: head.entries,
            back: NONE,
            more: head.more,
        }
    }
}

/// Lines by number, from 0 on. All chunks but the last are full, none is empty.
#[derive(Debug)]
pub struct Lines<T>(Vec<Vec<T>>);

impl<T> Lines<T> {
    /// None, and no allocation.
    pub const fn new() -> Self {
        Lines(Vec::new())
    }

    /// How many there are.
    pub fn len(&self) -> u32 {
        match self.0.last() {
            None => 0,
            Some(last) => ((self.0.len() - 1) * CHUNK_LINES + last.len()) as u32,
        }
    }

    pub fn push(&mut self, line: T) {
        match self.0.last_mut() {
            Some(last) if last.len() < CHUNK_LINES => last.push(line),
            Some(_) => self.0.push(chunk(CHUNK_LINES, line)),
            None => {
                self.0.reserve_exact(1);
                self.0.push(chunk(1, line));
            }
        }
    }

    /// Takes the last line away.
    pub fn pop(&mut self) -> Option<T> {
        let last = self.0.last_mut()?;
        let line = last.pop().expect("no chunk is empty");
        if last.is_empty() {
            self.0.pop();
        } else if self.0.len() == 1 && self.0[0].len() < self.0[0].capacity() / 4 {
            let half = self.0[0].capacity() / 2;
            self.0[0].shrink_to(half);
        }
        Some(line)
    }

    /// Gives the last chunk back; false when there is none.
    pub fn drop_chunk(&mut self) -> bool {
        self.0.pop().is_some()
    }

    #[cfg(test)]
    pub fn bytes(&self) -> usize {
        let lines: usize = self.0.iter().map(Vec::capacity).sum();
        lines * size_of::<T>() + self.0.capacity() * size_of::<Vec<T>>()
    }
}

impl<T> Index<u32> for Lines<T> {
    type Output = T;

    fn index(&self, number: u32) -> &T {
        &self.0[(number >> CHUNK_BITS) as usize][number as usize % CHUNK_LINES]
    }
}

impl<T> IndexMut<u32> for Lines<T> {
    fn index_mut(&mut self, number: u32) -> &mut T {
        &mut self.0[(number >> CHUNK_BITS) as usize][number as usize % CHUNK_LINES]
    }
}

fn chunk<T>(room: usize, first: T) -> Vec<T> {
    let mut chunk = Vec::with_capacity(room);
    chunk.push(first);
    chunk
}
