//! Why `shardq-cli aof` could not do what was asked. Damage in a log is no such error: it is a result.

use std::io;
use std::path::Path;

use super::text::show;

/// What ended it early.
#[derive(Debug, thiserror::Error)]
pub enum AofError {
    /// The system refused something about a file.
    #[error("cannot {what} {path}: {source}")]
    System {
        /// What was tried.
        what: &'static str,
        /// With which file.
        path: String,
        /// The system's reason.
        source: io::Error,
    },
    /// The folder is none of a log.
    #[error("{path} holds no log: neither CURRENT, nor CURRENT.off, nor folders gen-..., nor segments")]
    NoLog {
        /// The folder.
        path: String,
    },
    /// Another process has the lock.
    #[error("a server uses {folder} (it holds the lock {folder}/LOCK): stop it first; nothing was changed")]
    InUse {
        /// The data folder.
        folder: String,
    },
    /// A file alone is no log to repair.
    #[error("{path} has no segment's name: only a log in its folder is repaired; nothing was changed")]
    Unnamed {
        /// The file.
        path: String,
    },
    /// The results could not be written.
    #[error("cannot write the results: {0}")]
    Output(#[from] io::Error),
}

impl AofError {
    /// For `map_err`: what was tried with which file.
    pub(super) fn system(what: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self {
        move |source| Self::System {
            what,
            path: show(path),
            source,
        }
    }

    /// Whether who reads the results has seen enough.
    pub fn is_closed_pipe(&self) -> bool {
        matches!(self, Self::Output(error) if error.kind() == io::ErrorKind::BrokenPipe)
    }
}
