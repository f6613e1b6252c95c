//! `shardq-cli aof`: looks at the log on disk while no server, or a server, uses it; cuts a torn tail when asked to.
//!
//! All reading goes through `shard::log::Recovery`, the code that the server starts with: what is shown here is what a
//! start would see. Only [`check`] with `--repair` changes anything, only under the folder's lock, and only what the server's own start would do.
//!
//! Reading order: [`options`] - `target` (what a path leads to) - `reader` (a shard's log through `Recovery`) - [`check`] with `lock`,
//! `repair` and `seal` - [`dump`] - [`stats`]; `text` has times and escapes.

pub mod check;
pub mod dump;
mod error;
mod lock;
pub mod options;
mod reader;
mod repair;
mod seal;
pub mod stats;
mod target;
mod text;

use std::io::Write;

pub use error::AofError;
pub use options::Options;

use options::Action;

/// Does what was asked for. Results go to `out`, progress and damage that is beside the point to standard error; true when nothing is wrong.
pub fn run(options: &Options, out: &mut dyn Write) -> Result<bool, AofError> {
    match &options.action {
        Action::Check(options) => check::run(options, out),
        Action::Dump(options) => dump::run(options, out),
        Action::Stats(options) => stats::run(options, out),
    }
}
