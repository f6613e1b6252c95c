//! What client connections carry: requests in, replies out.
//!
//! Requests are flat (an array of bulk strings, or an inline line), so they are read by a resumable parser of
//! our own: a request that is whole in the received bytes is handed out as slices of them, without a copy or an
//! allocation; one that is cut is kept, and costs what was received of it, never what it announced. Replies
//! are written straight into the session's output; large bodies are shared, not copied.
//!
//! What must hold: no bytes of a client can cause a panic or work that grows faster than their number; a
//! request reads the same however it was cut on its way.
//!
//! Framing and error texts follow section 1.1 of the reference; weakness 61 is absent.

mod blob;
mod encoder;
#[cfg(test)]
mod framing_tests;
pub mod glob;
mod inline;
pub mod number;
mod output;
mod partial;
#[cfg(test)]
mod property_tests;
mod request;
mod whole;

pub use blob::Blob;
pub use encoder::{Encoder, encode_request};
pub use output::Output;
pub(crate) use request::Span;
pub use request::{Args, Parser};

use crate::limits::{
    MAX_ARGUMENTS, MAX_ARGUMENTS_UNAUTHENTICATED, MAX_BULK_BYTES, MAX_BULK_BYTES_UNAUTHENTICATED,
    MAX_LINE_BYTES, MAX_REQUEST_BYTES,
};

/// Arguments of this size and above get a buffer of their own when they arrive in pieces, so that a job's body
/// is shared from there on; a smaller one is copied, because sharing it would pin its whole buffer.
pub const LARGE_ARGUMENT_BYTES: usize = 16 << 10;
/// Reply bodies of this size and above are shared with the output; copying a smaller one is cheaper.
pub const SHARED_REPLY_BYTES: usize = 4 << 10;

// A position within a request is kept in 31 bits.
const _: () = assert!(MAX_REQUEST_BYTES < 1 << 31);

/// What a session accepts at present.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RequestLimits {
    /// Most arguments of one request; at most [`MAX_ARGUMENTS`].
    pub max_arguments: usize,
    /// Longest argument; at most [`MAX_BULK_BYTES`].
    pub max_bulk_bytes: usize,
    /// Longest inline line without its end.
    pub max_inline_bytes: usize,
    /// Longest request, framing included; at most [`MAX_REQUEST_BYTES`].
    pub max_request_bytes: usize,
}

impl RequestLimits {
    /// For a session that may run commands.
    pub const FULL: Self = Self {
        max_arguments: MAX_ARGUMENTS,
        max_bulk_bytes: MAX_BULK_BYTES,
        max_inline_bytes: MAX_LINE_BYTES,
        max_request_bytes: MAX_REQUEST_BYTES,
    };
    /// For a session that has yet to authenticate.
    pub const UNAUTHENTICATED: Self = Self {
        max_arguments: MAX_ARGUMENTS_UNAUTHENTICATED,
        max_bulk_bytes: MAX_BULK_BYTES_UNAUTHENTICATED,
        ..Self::FULL
    };
}

/// The client broke the protocol: it gets the text (if [`is_answered`](Self::is_answered)) and is disconnected.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs)] // the texts say it
pub enum ProtocolError {
    #[error("Protocol error: too big inline request")]
    InlineTooBig,
    #[error("Protocol error: unbalanced quotes in request")]
    UnbalancedQuotes,
    #[error("Protocol error: too big mbulk count string")]
    CountLineTooBig,
    #[error("Protocol error: invalid multibulk length")]
    InvalidCount,
    #[error("Protocol error: unauthenticated multibulk length")]
    UnauthenticatedCount,
    #[error("Protocol error: too big bulk count string")]
    LengthLineTooBig,
    #[error("Protocol error: expected '$', got '{}'", Printable(*.0))]
    ExpectedBulk(u8),
    #[error("Protocol error: invalid bulk length")]
    InvalidLength,
    #[error("Protocol error: unauthenticated bulk length")]
    UnauthenticatedLength,
    #[error("Protocol error: too big request")]
    RequestTooBig,
}

impl ProtocolError {
    /// Whether the client is told: one that exceeds the whole request's limit is closed without a word.
    pub fn is_answered(self) -> bool {
        self != Self::RequestTooBig
    }
}

/// A client's byte in the text of an error, where a control character would break the reply's framing.
struct Printable(u8);

impl std::fmt::Display for Printable {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.0 {
            b' '..=b'~' => write!(f, "{}", char::from(self.0)),
            byte => write!(f, "\\x{byte:02x}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_texts_are_those_of_the_reference() {
        use ProtocolError::*;
        for (error, reason) in [
            (InlineTooBig, "too big inline request"),
            (UnbalancedQuotes, "unbalanced quotes in request"),
            (CountLineTooBig, "too big mbulk count string"),
            (InvalidCount, "invalid multibulk length"),
            (UnauthenticatedCount, "unauthenticated multibulk length"),
            (LengthLineTooBig, "too big bulk count string"),
            (ExpectedBulk(b'f'), "expected '$', got 'f'"),
            (ExpectedBulk(b'\r'), "expected '$', got '\\x0d'"),
            (ExpectedBulk(0xff), "expected '$', got '\\xff'"),
            (InvalidLength, "invalid bulk length"),
            (UnauthenticatedLength, "unauthenticated bulk length"),
        ] {
            assert_eq!(error.to_string(), format!("Protocol error: {reason}"));
            assert!(error.is_answered());
        }
        assert!(!RequestTooBig.is_answered());
    }
}
