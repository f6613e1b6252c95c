//! Errors that a client can cause, with the code words and texts of the reference (section 1.4, `clients.md`).
//!
//! A command that fails with one of these has changed nothing.

use std::borrow::Cow;

use thiserror::Error;

/// Why a command was refused. `Display` gives the reply without its leading `-`.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[allow(missing_docs, reason = "the text of each is its documentation")]
pub enum CommandError {
    #[error("ERR syntax error")]
    Syntax,
    #[error("ERR value is not an integer or out of range")]
    NotAnInteger,
    #[error("ERR wrong number of arguments for '{0}' command")]
    Arity(Cow<'static, str>),
    #[error("NOREPL Not enough reachable nodes for the requested replication level")]
    NotEnoughNodes,
    #[error("NOREPL Timeout reached before replicating to the requested number of nodes")]
    ReplicationTimeout,
    #[error("NOREPL Job removed (expired, deleted or flushed) while it waited for replication")]
    RemovedWhileReplicating,
    #[error("PAUSED Queue paused in input, try later")]
    Paused,
    #[error("MAXLEN Queue is already longer than the specified MAXLEN count")]
    MaxLen,
    #[error("LEAVING this node is leaving the cluster, try another one")]
    Leaving,
    #[error("BADID Invalid Job ID format.")]
    BadId,
    #[error("NOJOB Job not known in the context of this node.")]
    NoJob,
    #[error(
        "TOOLATE Half of job TTL already elapsed, you are no longer allowed to postpone the next delivery."
    )]
    TooLate,
    #[error("OOM command not allowed when used memory > 'maxmemory'")]
    OutOfMemory,
    #[error("MISCONF {0}")]
    Misconf(String),
    #[error("LOADING shardq is loading its log")]
    Loading,
    #[error("NOAUTH Authentication required.")]
    NotAuthenticated,
    #[error("ERR {0}")]
    Other(Cow<'static, str>),
    /// A reply whose code word is not `ERR`.
    #[error("{0}")]
    Coded(Cow<'static, str>),
}

impl CommandError {
    /// An `ERR` with a fixed or made-up text.
    pub fn other(text: impl Into<Cow<'static, str>>) -> Self {
        Self::Other(text.into())
    }
}
