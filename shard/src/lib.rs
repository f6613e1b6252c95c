//! Everything that decides in shardq, without sockets, files, clocks, threads or randomness of its own.

pub mod wire;
