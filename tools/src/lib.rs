//! Client code of shardq's tools, shared with the server's tests.
//!
//! Reading order: [`address`] (where a server is), [`client`] with [`reply`] (one blocking connection, for
//! tests and for control commands), then [`bench`] (many non-blocking connections on one thread, checked job
//! by job), [`demo`], and [`aof`] (the log on disk). Nothing here knows the server's code: a tool sees what any client sees, and
//! reads files with the crate that defines them.

pub mod address;
pub mod client;
pub mod reply;

pub mod aof;
pub mod bench;
pub mod demo;
