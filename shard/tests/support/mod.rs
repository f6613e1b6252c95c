//! A whole node in one process and one thread, with virtual time: shards, mesh, sockets and clients.
//!
//! [`Node`] owns the shards and plays the server: it performs effects, carries batches between shards in order, with
//! delays, and moves both clocks. [`Client`]s send bytes cut at arbitrary places and let the "kernel" take output
//! in arbitrary pieces, or not at all. A [`Machine`] is such a node with its disk, where chance picks what happens next. Everything follows from the calls made and the seeds given, so a run repeats
//! exactly. A [`Watch`] sees every step from outside: what went in, and which messages came out.

#![allow(
    dead_code,
    unused_imports,
    reason = "each test uses its own part of the harness"
)]

mod body;
mod chance;
mod client;
mod disk;
mod file;
mod folders;
mod machine;
mod node;
mod reply;

pub use body::{body, number_of};
pub use chance::Chance;
pub use client::{Client, request};
pub use disk::{Disk, Faults, Plant};
pub use file::{File, Syncing};
pub use machine::{Birth, End, Machine};
pub use node::{ALONE, Blind, Happening, Node, Start, Watch};
pub use reply::Reply;

use std::sync::OnceLock;

use shard::slot::Slot;

/// The first of `name`, `name1`, `name2`, ... that lives on this shard.
pub fn queue_on(name: &str, shard: u16, shards: u16) -> String {
    let numbered = (1..).map(|number| format!("{name}{number}"));
    std::iter::once(name.to_owned())
        .chain(numbered)
        .find(|name| Slot::of_queue(name.as_bytes()).home(shards) == shard)
        .expect("one of them does")
}

/// Whether runs tell what happens: with `SHARDQ_TRACE=1`.
pub fn traces() -> bool {
    static TRACES: OnceLock<bool> = OnceLock::new();
    *TRACES.get_or_init(|| number_from_environment("SHARDQ_TRACE") == Some(1))
}

/// A number from the environment, for the length and the seed of a run.
#[expect(
    clippy::disallowed_methods,
    reason = "how long tests run is the caller's choice"
)]
pub fn number_from_environment(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok()?;
    Some(
        text.parse()
            .unwrap_or_else(|_| panic!("{name} is no number: {text}")),
    )
}
