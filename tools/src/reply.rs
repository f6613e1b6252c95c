//! What a server answers, decoded: one type for RESP2 and RESP3.
//!
//! Decoding is redis-protocol's, an implementation that is not ours, so that a test which reads replies with
//! it also checks the server's encoder. Two things get lost on the way, by the nature of that library's
//! frames: RESP2's two nulls (`$-1` and `*-1`) become one, and the entries of a map come in no particular
//! order. Tests that care about those read raw bytes instead ([`crate::client::Client::read_exact`]).

use redis_protocol::error::RedisProtocolError;
use redis_protocol::{resp2, resp3};

/// A decoded reply.
#[derive(Clone, Debug, PartialEq)]
pub enum Reply {
    /// `+text`
    Simple(String),
    /// `-CODE text`, without the minus sign; also RESP3's blob errors.
    Error(String),
    /// `:n`
    Integer(i64),
    /// A bulk string, or RESP3's verbatim string without its format.
    Bulk(Vec<u8>),
    /// `$-1`, `*-1` or `_`.
    Null,
    /// An array, or RESP3's set.
    Array(Vec<Reply>),
    /// RESP3's map, in no particular order.
    Map(Vec<(Reply, Reply)>),
    /// RESP3's out-of-band message.
    Push(Vec<Reply>),
    /// RESP3's boolean.
    Boolean(bool),
    /// RESP3's floating point number.
    Double(f64),
    /// RESP3's number of any size, as digits.
    BigNumber(String),
}

/// The protocol of a connection's replies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protocol {
    /// What every connection starts with.
    Resp2,
    /// After `HELLO 3`.
    Resp3,
}

/// Decodes one reply at the start of `input`: the reply and its length, or `None` when more bytes are needed.
pub fn decode(protocol: Protocol, input: &[u8]) -> Result<Option<(Reply, usize)>, RedisProtocolError> {
    match protocol {
        Protocol::Resp2 => Ok(resp2::decode::decode(input)?.map(|(frame, length)| (frame.into(), length))),
        Protocol::Resp3 => {
            let decoded = resp3::decode::complete::decode(input)?;
            Ok(decoded.map(|(frame, length)| (frame.into(), length)))
        }
    }
}

impl Reply {
    /// The text of an error reply.
    pub fn error(&self) -> Option<&str> {
        match self {
            Self::Error(text) => Some(text),
            _ => None,
        }
    }

    /// The number of an integer reply.
    pub fn integer(&self) -> Option<i64> {
        match self {
            Self::Integer(number) => Some(*number),
            _ => None,
        }
    }

    /// The bytes of a simple or bulk string.
    pub fn bytes(&self) -> Option<&[u8]> {
        match self {
            Self::Simple(text) => Some(text.as_bytes()),
            Self::Bulk(bytes) => Some(bytes),
            _ => None,
        }
    }

    /// A simple or bulk string as text, if it is UTF-8.
    pub fn text(&self) -> Option<&str> {
        self.bytes().and_then(|bytes| std::str::from_utf8(bytes).ok())
    }

    /// The elements of an array.
    pub fn array(&self) -> Option<&[Reply]> {
        match self {
            Self::Array(elements) => Some(elements),
            _ => None,
        }
    }
}

fn text_of(bytes: Vec<u8>) -> String {
    String::from_utf8(bytes).unwrap_or_else(|error| String::from_utf8_lossy(error.as_bytes()).into_owned())
}

fn all<F: Into<Reply>>(frames: impl IntoIterator<Item = F>) -> Vec<Reply> {
    frames.into_iter().map(Into::into).collect()
}

impl From<resp2::types::OwnedFrame> for Reply {
    fn from(frame: resp2::types::OwnedFrame) -> Self {
        use resp2::types::OwnedFrame as Frame;
        match frame {
            Frame::SimpleString(text) => Self::Simple(text_of(text)),
            Frame::Error(text) => Self::Error(text),
            Frame::Integer(number) => Self::Integer(number),
            Frame::BulkString(bytes) => Self::Bulk(bytes),
            Frame::Array(frames) => Self::Array(all(frames)),
            Frame::Null => Self::Null,
        }
    }
}

impl From<resp3::types::OwnedFrame> for Reply {
    fn from(frame: resp3::types::OwnedFrame) -> Self {
        use resp3::types::OwnedFrame as Frame;
        match frame {
            Frame::SimpleString { data, .. } => Self::Simple(text_of(data)),
            Frame::SimpleError { data, .. } => Self::Error(data),
            Frame::BlobError { data, .. } => Self::Error(text_of(data)),
            Frame::Number { data, .. } => Self::Integer(data),
            Frame::BlobString { data, .. } | Frame::VerbatimString { data, .. } => Self::Bulk(data),
            Frame::ChunkedString(data) => Self::Bulk(data),
            Frame::Null => Self::Null,
            Frame::Array { data, .. } => Self::Array(all(data)),
            Frame::Set { data, .. } => Self::Array(all(data)),
            Frame::Push { data, .. } => Self::Push(all(data)),
            Frame::Map { data, .. } => Self::Map(
                data.into_iter()
                    .map(|(key, value)| (key.into(), value.into()))
                    .collect(),
            ),
            Frame::Boolean { data, .. } => Self::Boolean(data),
            Frame::Double { data, .. } => Self::Double(data),
            Frame::BigNumber { data, .. } => Self::BigNumber(text_of(data)),
            // A request, never a reply; shown as what it is rather than hidden.
            Frame::Hello { .. } => Self::Error("the server sent a HELLO request".into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_prefix_of_a_reply_needs_more() {
        let bytes = b"*3\r\n$1\r\nq\r\n:-5\r\n*-1\r\n";
        for cut in 0..bytes.len() {
            assert_eq!(
                decode(Protocol::Resp2, &bytes[..cut]).unwrap(),
                None,
                "cut at {cut}"
            );
        }
        let reply = Reply::Array(vec![Reply::Bulk(b"q".to_vec()), Reply::Integer(-5), Reply::Null]);
        assert_eq!(
            decode(Protocol::Resp2, bytes).unwrap(),
            Some((reply, bytes.len()))
        );
    }

    #[test]
    fn resp3_kinds_are_kept_apart() {
        let bytes = b"*5\r\n_\r\n#t\r\n,1.5\r\n%1\r\n+a\r\n:1\r\n-ERR no\r\n";
        let (reply, length) = decode(Protocol::Resp3, bytes).unwrap().unwrap();
        assert_eq!(length, bytes.len());
        let map = Reply::Map(vec![(Reply::Simple("a".into()), Reply::Integer(1))]);
        let error = Reply::Error("ERR no".into());
        assert_eq!(
            reply,
            Reply::Array(vec![
                Reply::Null,
                Reply::Boolean(true),
                Reply::Double(1.5),
                map,
                error
            ])
        );
    }

    #[test]
    fn what_is_no_reply_is_an_error() {
        assert!(decode(Protocol::Resp2, b"hello\r\n").is_err());
    }
}
