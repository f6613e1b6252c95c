//! The containers that keep every step of a shard short, however many jobs it holds.
//!
//! The standard library's maps and vectors move all of their entries when they grow; at a million entries that is
//! a stall of many milliseconds. What is here grows and shrinks a few entries at a time, and can be torn down in
//! pieces. Everything lives in a [`slab::Slab`] under a `u32` key; the other containers hold such keys and thread
//! their links through the elements, so that being in a list costs no allocation.

pub mod list;
pub mod scan_map;
pub mod skiplist;
pub mod slab;
pub mod timers;

/// The key of no element: where a link ends.
pub const NONE: u32 = u32::MAX;
