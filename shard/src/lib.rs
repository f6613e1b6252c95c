//! Everything that decides in shardq, without sockets, files, clocks, threads or randomness of its own.
//!
//! [`Shard`](shard::Shard) is one core's share of a node: `handle(now, input)` in, [`Effect`](input::Effect)s out, `next_deadline()` for the
//! wake-up. Reading order: `slot`, `id` (what leads where) - `message` (what shards say to each other) - `home` (jobs and
//! queues) - `commands` - `session` (clients) - `node` (what shard 0 coordinates) - `shard` (the loop's one entry).

pub mod bus;
pub mod clock;
pub mod cluster;
pub mod commands;
pub mod core;
pub mod error;
pub mod home;
pub mod id;
pub mod input;
pub mod limits;
pub mod log;
pub mod memory;
pub mod message;
pub mod node;
pub mod plant;
pub mod session;
pub mod settings;
pub mod shard;
pub mod slot;
pub mod stats;
pub mod structures;
pub mod wire;
