//! Replies as a client reads them, RESP2 and the parts of RESP3 that the broker writes, and as scenarios show them.

use std::fmt;

/// A reply.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reply {
    Simple(String),
    Error(String),
    Integer(i64),
    Bulk(Vec<u8>),
    Null,
    NullArray,
    Array(Vec<Reply>),
    /// RESP3.
    Map(Vec<Reply>),
}

impl Reply {
    /// The first reply of `bytes` and its length; `None` when it is not whole.
    ///
    /// # Panics
    /// When the bytes are no reply.
    pub fn read(bytes: &[u8]) -> Option<(Self, usize)> {
        let end = bytes.windows(2).position(|pair| pair == b"\r\n")?;
        let line = std::str::from_utf8(&bytes[1..end]).expect("a line of a reply is text");
        let number = || {
            line.parse::<i64>()
                .unwrap_or_else(|_| panic!("no number in a reply: {line:?}"))
        };
        let behind = end + 2;
        match bytes[0] {
            b'+' => Some((Self::Simple(line.to_owned()), behind)),
            b'-' => Some((Self::Error(line.to_owned()), behind)),
            b':' => Some((Self::Integer(number()), behind)),
            b'_' => Some((Self::Null, behind)),
            b'$' if number() == -1 => Some((Self::Null, behind)),
            b'*' if number() == -1 => Some((Self::NullArray, behind)),
            b'$' | b'=' => {
                let whole = behind + number() as usize;
                let body = bytes.get(behind..whole)?;
                let tail = bytes.get(whole..whole + 2)?;
                assert_eq!(tail, b"\r\n", "a bulk string ends with its line");
                Some((Self::Bulk(body.to_vec()), whole + 2))
            }
            b'*' => Self::read_elements(bytes, behind, number()).map(|(all, end)| (Self::Array(all), end)),
            b'%' => Self::read_elements(bytes, behind, 2 * number()).map(|(all, end)| (Self::Map(all), end)),
            other => panic!("no reply begins with {:?}: {line:?}", other as char),
        }
    }

    fn read_elements(bytes: &[u8], mut at: usize, count: i64) -> Option<(Vec<Self>, usize)> {
        let mut all = Vec::new();
        for _ in 0..count {
            if at >= bytes.len() {
                return None;
            }
            let (element, length) = Self::read(&bytes[at..])?;
            all.push(element);
            at += length;
        }
        Some((all, at))
    }

    /// Its elements, when it is an array.
    pub fn elements(&self) -> &[Reply] {
        match self {
            Self::Array(all) | Self::Map(all) => all,
            _ => &[],
        }
    }
}

impl fmt::Display for Reply {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Simple(text) => write!(f, "+{text}"),
            Self::Error(text) => write!(f, "-{text}"),
            Self::Integer(number) => write!(f, ":{number}"),
            Self::Bulk(bytes) if bytes.is_empty() => write!(f, "\"\""),
            Self::Bulk(bytes) => write!(f, "{}", bytes.escape_ascii()),
            Self::Null => write!(f, "null"),
            Self::NullArray => write!(f, "null array"),
            Self::Array(all) | Self::Map(all) => {
                let (open, close) = if matches!(self, Self::Array(_)) {
                    ('[', ']')
                } else {
                    ('{', '}')
                };
                write!(f, "{open}")?;
                for (place, element) in all.iter().enumerate() {
                    let gap = if place == 0 { "" } else { ", " };
                    write!(f, "{gap}{element}")?;
                }
                write!(f, "{close}")
            }
        }
    }
}
