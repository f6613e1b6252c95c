//! The files of the log: what the shards decide about them is done here, on threads that may wait for a disk.
//!
//! The crate `shard` says what is to be written, synced, unlinked and renamed, and in which order; nothing here decides
//! about that, and no byte of a record is understood. Before the shards start, [`boot`] finds out what the data folder
//! holds; then [`Files`] performs their tasks. The data folder is the working folder of the process.
//!
//! Reading order: `boot` - `lock` - `files`, `repair`, `generations` (tasks) - `handles` (open segments) - `window` (segments in memory) -
//! `system` (calls).

mod boot;
mod files;
mod generations;
mod handles;
mod lock;
mod repair;
pub mod system;
mod window;

#[cfg(test)]
mod boot_tests;
#[cfg(test)]
mod files_tests;
#[cfg(test)]
pub(crate) mod test_folder;

pub use boot::{LogError, boot};
pub use files::{Ahead, Files, Next};
pub use handles::MOST_OPEN;
pub use lock::FolderLock;
