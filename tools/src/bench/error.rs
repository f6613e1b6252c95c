//! Why a bench could not run to its end. Jobs lost or doubled are no such error: they are a result.

use std::io;
use std::path::PathBuf;

use super::scan::ScanError;
use crate::address::Address;
use crate::client::ClientError;

/// What ended a bench early.
#[derive(Debug, thiserror::Error)]
pub enum BenchError {
    /// The options ask for what cannot be, or not on this target.
    #[error("{0}")]
    Options(String),
    /// Jobs were lost or doubled before anything was measured.
    #[error("the warm-up of {label} failed:\n{table}")]
    WarmUp {
        /// Name of the target.
        label: String,
        /// The table of its report.
        table: String,
    },
    /// A file of a report could not be read or written.
    #[error("cannot {verb} {path}: {source}")]
    File {
        /// What was to be done.
        verb: &'static str,
        /// The file.
        path: PathBuf,
        /// The reason.
        source: io::Error,
    },
    /// The control connection failed, most often because no server is there.
    #[error(transparent)]
    Control(#[from] ClientError),
    /// A load connection could not be opened.
    #[error("cannot open connection {number} to {address}: {source}")]
    Connect {
        /// Where to.
        address: Address,
        /// How many were open before, plus one.
        number: u32,
        /// The system's reason.
        source: io::Error,
    },
    /// The server answered an error.
    #[error("the server answered {command} with an error: {text}")]
    Refused {
        /// The command.
        command: &'static str,
        /// The error reply, code included.
        text: String,
    },
    /// The server answered what the command cannot answer.
    #[error("the server's answer to {command} makes no sense: {found}")]
    Unexpected {
        /// The command.
        command: &'static str,
        /// The answer.
        found: String,
    },
    /// The server's bytes are not those of a reply.
    #[error(transparent)]
    Scan(#[from] ScanError),
    /// The server closed a load connection.
    #[error("the server closed a connection in the middle of the load")]
    Closed,
    /// The system refused a read, a write or a wait.
    #[error("connection lost: {0}")]
    Io(#[from] io::Error),
    /// A thread could not be pinned.
    #[error("cannot pin a thread to CPU {cpu}: {source}")]
    Pin {
        /// The CPU's number.
        cpu: usize,
        /// The system's reason.
        source: io::Error,
    },
    /// Sequence numbers have 32 bits.
    #[error("too many jobs for one producer: use more --producers or fewer --jobs")]
    TooManyJobs,
}
