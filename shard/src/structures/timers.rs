//! The timers of a shard: a hierarchical timing wheel, exact to the millisecond, without a step that takes time in
//! proportion to the number of timers.
//!
//! Slots of level L are 64^L ms wide, and a level has 128 of them: twice as many as the next level's width asks
//! for. A timer sits at the lowest level whose 128 slots from now on reach its deadline. The spare half is what
//! keeps steps short: a slot of an upper level is opened one whole slot width before the first of its timers is
//! due, its list is spliced in one move onto the level's list of *migrating* timers, and [`Timers::work`] takes
//! those down to lower levels a few at a time, long before they are due. Slots of level 0 that are reached are
//! spliced, in order, onto the list of due timers, which [`Timers::pop_due`] hands out one by one.
//!
//! What must hold: no timer fires before its deadline, whatever the clock does; called at every
//! [`Timers::next_wakeup`], timers fire at their millisecond and in its order; a slot's bit is set exactly when its
//! list is not empty; after `advance`, a timer of an upper level is in a slot at least two ahead of now. After a
//! leap of the clock timers fire late, as the work allows, and those of different levels in no strict order.

use std::num::NonZeroU32;

use super::NONE;
use super::slab::Slab;

/// Names a running timer. It is void once the timer fired or was cancelled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TimerKey(NonZeroU32);

/// `now` must be below this (a hundred million years); deadlines may be anything.
pub const NOW_LIMIT_MS: u64 = 1 << 62;

const LEVELS: usize = 7;
const LEVEL_BITS: u32 = 6;
const SLOTS: u64 = 128;

/// List numbers: the slots of all levels, then the due list in the place of level 0's migrating list, then the
/// migrating lists of the upper levels.
const LISTS: usize = FIRST_MIGRATING + LEVELS;
const FIRST_MIGRATING: usize = LEVELS * SLOTS as usize;
const DUE: usize = FIRST_MIGRATING;

/// Marks a link as the number of the list that ends there. Slab keys are below it.
const END: u32 = 1 << 31;
const _: () = assert!(super::slab::KEY_LIMIT <= END && LISTS < END as usize);
const _: () = assert!(
    SLOTS == 2 << LEVEL_BITS,
    "a slot opened one width early fits the level below"
);

/// Timers, each with a small value that says whom it wakes.
#[derive(Debug)]
pub struct Timers<T: Copy> {
    now_ms: u64,
    entries: Slab<Entry<T>>,
    lists: Box<[Ends]>,
    /// For each level, bit s % 128 is set when slot s holds timers.
    occupied: [u128; LEVELS],
    /// Whether `work` may find something.
    may_migrate: bool,
}

/// Packed because the alignment of the deadline would cost 8 bytes per timer.
#[derive(Clone, Copy, Debug)]
#[repr(Rust, packed(4))]
struct Entry<T> {
    deadline_ms: u64,
    previous: u32,
    next: u32,
    owner: T,
}

/// First and last entry of a list, `NONE` when it is empty.
#[derive(Clone, Copy, Debug)]
struct Ends {
    first: u32,
    last: u32,
}

const EMPTY: Ends = Ends {
    first: NONE,
    last: NONE,
};

impl<T: Copy> Timers<T> {
    /// No timers, and a clock that stands at `now_ms`.
    pub fn new(now_ms: u64) -> Self {
        assert!(now_ms < NOW_LIMIT_MS, "the clock stands at {now_ms} ms");
        let lists = vec![EMPTY; LISTS].into_boxed_slice();
        Timers {
            now_ms,
            entries: Slab::new(),
            lists,
            occupied: [0; LEVELS],
            may_migrate: false,
        }
    }

    /// Starts a timer. One whose deadline is not after now is due at once.
    pub fn insert(&mut self, deadline_ms: u64, owner: T) -> TimerKey {
        let list = self.list_for(deadline_ms);
        let (previous, next) = self.behind_last(list);
        let entry = self.entries.insert(Entry {
            deadline_ms,
            previous,
            next,
            owner,
        });
        self.make_last(list, entry);
        TimerKey::of(entry)
    }

    /// Stops a timer and returns its owner. Panics when it is not running.
    pub fn cancel(&mut self, key: TimerKey) -> T {
        self.unlink(key.entry());
        self.entries.remove(key.entry()).owner
    }

    /// Gives a running timer another deadline.
    pub fn reschedule(&mut self, key: TimerKey, deadline_ms: u64) {
        self.unlink(key.entry());
        self.entries[key.entry()].deadline_ms = deadline_ms;
        self.place(key.entry());
    }

    /// The deadline of a running timer.
    pub fn deadline_ms(&self, key: TimerKey) -> u64 {
        self.entries[key.entry()].deadline_ms
    }

    /// Sets the clock, and finds what that makes due or migrating. Takes at most one move per slot of the wheel,
    /// whatever the number of timers and the length of the leap. A clock that goes back is left where it was.
    pub fn advance(&mut self, now_ms: u64) {
        assert!(now_ms < NOW_LIMIT_MS, "the clock stands at {now_ms} ms");
        if now_ms <= self.now_ms {
            return;
        }
        for level in 0..LEVELS {
            let reached = slot_of(now_ms, level) + opens_early(level);
            while let Some(slot) = self.first_occupied(level).filter(|&slot| slot <= reached) {
                self.splice(list_of(level, slot), FIRST_MIGRATING + level);
                self.occupied[level] &= !bit_of(slot);
                self.may_migrate |= level > 0;
            }
        }
        self.now_ms = now_ms;
    }

    /// Moves up to `budget` migrating timers to their next place and returns how many it moved: fewer than
    /// `budget` when none is left.
    pub fn work(&mut self, budget: usize) -> usize {
        if !self.may_migrate {
            return 0;
        }
        let mut moved = 0;
        // The lowest level has the least time left.
        for list in FIRST_MIGRATING + 1..LISTS {
            while moved < budget && self.lists[list].first != NONE {
                let entry = self.lists[list].first;
                self.unlink(entry);
                self.place(entry);
                moved += 1;
            }
        }
        self.may_migrate = moved == budget;
        moved
    }

    /// Takes the next due timer. Its key is void from here on.
    pub fn pop_due(&mut self) -> Option<(TimerKey, T)> {
        let entry = self.lists[DUE].first;
        if entry == NONE {
            return None;
        }
        assert!(
            self.entries[entry].deadline_ms <= self.now_ms,
            "no timer fires early"
        );
        let key = TimerKey::of(entry);
        Some((key, self.cancel(key)))
    }

    /// When `advance` is to be called next: now while something is due or migrating, else when the next slot is
    /// reached or opens; `None` without timers.
    pub fn next_wakeup(&self) -> Option<u64> {
        if self.lists[FIRST_MIGRATING..]
            .iter()
            .any(|list| list.first != NONE)
        {
            return Some(self.now_ms);
        }
        let opening = |level| Some((self.first_occupied(level)? - opens_early(level)) << shift(level));
        (0..LEVELS).filter_map(opening).min()
    }

    /// The clock, as last set.
    pub fn now_ms(&self) -> u64 {
        self.now_ms
    }

    /// Number of timers, due ones included.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether there is no timer.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Gives up all timers, up to `chunks` chunks of the slab at a time; true when done. In between, nothing else
    /// may be called.
    pub fn drop_some(&mut self, chunks: usize) -> bool {
        self.lists.fill(EMPTY);
        self.occupied = [0; LEVELS];
        self.entries.drop_some(chunks)
    }

    /// Links an entry, which is in no list, where its deadline belongs.
    fn place(&mut self, entry: u32) {
        let list = self.list_for(self.entries[entry].deadline_ms);
        let (previous, next) = self.behind_last(list);
        let links = &mut self.entries[entry];
        (links.previous, links.next) = (previous, next);
        self.make_last(list, entry);
    }

    /// The list where a deadline belongs; its slot counts as occupied from here on.
    fn list_for(&mut self, deadline_ms: u64) -> usize {
        if deadline_ms <= self.now_ms {
            return DUE;
        }
        let ahead = |level: usize| slot_of(deadline_ms, level) - slot_of(self.now_ms, level);
        // The lowest level that is coarse enough; its slots may lie so that they end just short of the deadline.
        let coarse = level_of(deadline_ms - self.now_ms).min(LEVELS - 1);
        let level = match ahead(coarse) < SLOTS {
            true => coarse,
            false => (coarse + 1).min(LEVELS - 1),
        };
        // What lies beyond the top level waits in its last slot and is placed anew when that opens.
        let slot = slot_of(self.now_ms, level) + ahead(level).min(SLOTS - 1);
        assert!(
            level == 0 || ahead(level) > opens_early(level),
            "the slot has opened already"
        );
        self.occupied[level] |= bit_of(slot);
        list_of(level, slot)
    }

    /// The links of an entry that comes behind the last one of a list.
    fn behind_last(&self, list: usize) -> (u32, u32) {
        let (last, end) = (self.lists[list].last, END | list as u32);
        (if last == NONE { end } else { last }, end)
    }

    /// Makes an entry that has these links the last one of the list.
    fn make_last(&mut self, list: usize, entry: u32) {
        match std::mem::replace(&mut self.lists[list].last, entry) {
            NONE => self.lists[list].first = entry,
            last => self.entries[last].next = entry,
        }
    }

    fn unlink(&mut self, entry: u32) {
        let Entry { previous, next, .. } = self.entries[entry];
        let (first, last) = (previous & END != 0, next & END != 0);
        match first {
            true => self.lists[list_at(previous)].first = if last { NONE } else { next },
            false => self.entries[previous].next = next,
        }
        match last {
            true => self.lists[list_at(next)].last = if first { NONE } else { previous },
            false => self.entries[next].previous = previous,
        }
        if first && last && list_at(next) < FIRST_MIGRATING {
            let (level, slot) = (list_at(next) / SLOTS as usize, list_at(next) as u64 % SLOTS);
            self.occupied[level] &= !bit_of(slot);
        }
    }

    /// Appends the whole of one list, which is not empty, to another.
    fn splice(&mut self, from: usize, to: usize) {
        let Ends { first, last } = std::mem::replace(&mut self.lists[from], EMPTY);
        assert!(first != NONE, "the slot is marked as occupied");
        let end = END | to as u32;
        let before = self.lists[to].last;
        self.entries[first].previous = if before == NONE { end } else { before };
        self.entries[last].next = end;
        match before {
            NONE => self.lists[to].first = first,
            _ => self.entries[before].next = first,
        }
        self.lists[to].last = last;
    }

    /// The first slot of a level, from now on, that holds timers.
    fn first_occupied(&self, level: usize) -> Option<u64> {
        let now_slot = slot_of(self.now_ms, level);
        let from_now = self.occupied[level].rotate_right((now_slot % SLOTS) as u32);
        (from_now != 0).then(|| now_slot + u64::from(from_now.trailing_zeros()))
    }
}

impl TimerKey {
    fn of(entry: u32) -> Self {
        TimerKey(NonZeroU32::MIN.saturating_add(entry))
    }

    fn entry(self) -> u32 {
        self.0.get() - 1
    }
}

fn shift(level: usize) -> u32 {
    LEVEL_BITS * level as u32
}

/// The lowest level of whose slots fewer than 128 fit into this time.
fn level_of(wait_ms: u64) -> usize {
    let bits = u64::BITS - wait_ms.leading_zeros();
    bits.saturating_sub(SLOTS.ilog2()).div_ceil(LEVEL_BITS) as usize
}

fn slot_of(time_ms: u64, level: usize) -> u64 {
    time_ms >> shift(level)
}

/// How many slot widths before its time a slot of this level opens.
fn opens_early(level: usize) -> u64 {
    u64::from(level > 0)
}

fn bit_of(slot: u64) -> u128 {
    1 << (slot % SLOTS)
}

fn list_of(level: usize, slot: u64) -> usize {
    level * SLOTS as usize + (slot % SLOTS) as usize
}

fn list_at(end: u32) -> usize {
    (end & !END) as usize
}

#[cfg(test)]
mod tests;
