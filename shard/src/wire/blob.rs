//! An immutable byte string: queue names, job bodies, anything a client sent that outlives its request.
//!
//! Most are short, and a job holds two of them: up to 38 bytes stay in the value itself, without an
//! allocation; longer ones are shared, so that a clone costs a counter whatever its length. Two blobs with the
//! same bytes are equal and hash alike, whichever way they are kept, and like the slice they stand for.

use std::borrow::Borrow;
use std::cmp::Ordering;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::ops::Deref;

use bytes::Bytes;

/// Longest string kept in the value itself: what two words of tag and length leave of 40 bytes.
pub(super) const INLINE_BYTES: usize = 38;

const _: () = assert!(size_of::<Blob>() == 40);

/// An immutable, cheaply cloned byte string of 40 bytes.
#[derive(Clone)]
pub struct Blob(Kept);

#[derive(Clone)]
enum Kept {
    Inline { bytes: u8, text: [u8; INLINE_BYTES] },
    Shared(Bytes),
}

impl Blob {
    /// The empty string.
    pub const EMPTY: Self = Self(Kept::Inline {
        bytes: 0,
        text: [0; INLINE_BYTES],
    });

    /// A copy of `source`, in a buffer of its own when it is long.
    pub fn copy_from(source: &[u8]) -> Self {
        if source.len() > INLINE_BYTES {
            return Self(Kept::Shared(Bytes::copy_from_slice(source)));
        }
        let mut text = [0; INLINE_BYTES];
        text[..source.len()].copy_from_slice(source);
        Self(Kept::Inline {
            bytes: source.len() as u8,
            text,
        })
    }

    /// A copy of the first `bytes` of a text; of a short one in a longer text at a fixed size, which takes a fraction of the time.
    #[inline]
    pub(super) fn copy_front(text: &[u8], bytes: usize) -> Self {
        match text.first_chunk() {
            Some(text) if bytes <= INLINE_BYTES => Self(Kept::Inline {
                bytes: bytes as u8,
                text: *text,
            }),
            _ => Self::copy_from(&text[..bytes]),
        }
    }

    /// The bytes.
    pub fn as_slice(&self) -> &[u8] {
        match &self.0 {
            Kept::Inline { bytes, text } => &text[..usize::from(*bytes)],
            Kept::Shared(shared) => shared,
        }
    }

    /// The shared buffer, if this blob has one.
    pub fn shared(&self) -> Option<&Bytes> {
        match &self.0 {
            Kept::Inline { .. } => None,
            Kept::Shared(shared) => Some(shared),
        }
    }

    /// Its bytes with what is behind them, and their number, when they are kept in the value itself: to be copied at a fixed size.
    #[inline]
    pub fn short(&self) -> Option<(&[u8; INLINE_BYTES], usize)> {
        match &self.0 {
            Kept::Inline { bytes, text } => Some((text, usize::from(*bytes))),
            Kept::Shared(_) => None,
        }
    }

    /// Bytes on the heap, counted whole in each clone.
    pub fn heap_bytes(&self) -> usize {
        self.shared().map_or(0, Bytes::len)
    }
}

/// Shares the buffer when it is long; a short one is copied and let go.
impl From<Bytes> for Blob {
    fn from(source: Bytes) -> Self {
        if source.len() > INLINE_BYTES {
            Self(Kept::Shared(source))
        } else {
            Self::copy_from(&source)
        }
    }
}

impl From<&[u8]> for Blob {
    fn from(source: &[u8]) -> Self {
        Self::copy_from(source)
    }
}

impl From<&str> for Blob {
    fn from(source: &str) -> Self {
        Self::copy_from(source.as_bytes())
    }
}

impl Default for Blob {
    fn default() -> Self {
        Self::EMPTY
    }
}

impl Deref for Blob {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        self.as_slice()
    }
}

impl AsRef<[u8]> for Blob {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl Borrow<[u8]> for Blob {
    fn borrow(&self) -> &[u8] {
        self
    }
}

impl PartialEq for Blob {
    fn eq(&self, other: &Self) -> bool {
        self.as_slice() == other.as_slice()
    }
}

impl Eq for Blob {}

impl PartialEq<[u8]> for Blob {
    fn eq(&self, other: &[u8]) -> bool {
        self.as_slice() == other
    }
}

impl PartialOrd for Blob {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Blob {
    fn cmp(&self, other: &Self) -> Ordering {
        self.as_slice().cmp(other.as_slice())
    }
}

impl Hash for Blob {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.as_slice().hash(state);
    }
}

impl fmt::Debug for Blob {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "b\"{}\"", self.escape_ascii())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashMap;

    #[test]
    fn short_strings_stay_in_the_value() {
        for bytes in [0, 1, 37, 38, 39, 5000] {
            let source: Vec<u8> = (0..bytes).map(|at| at as u8).collect();
            let blob = Blob::copy_from(&source);
            assert_eq!(blob.as_slice(), source);
            assert_eq!(blob.heap_bytes(), if bytes <= 38 { 0 } else { bytes });
            assert_eq!(Blob::from(Bytes::from(source)), blob);
        }
        assert!(Blob::default().is_empty());
    }

    #[test]
    fn the_front_of_a_text_is_copied_whatever_is_behind_it() {
        let text = [b'x'; 100];
        for (all, bytes) in [
            (0, 0),
            (5, 5),
            (37, 5),
            (38, 38),
            (39, 38),
            (100, 1),
            (100, 39),
            (100, 100),
        ] {
            let blob = Blob::copy_front(&text[..all], bytes);
            assert_eq!(blob, Blob::copy_from(&text[..bytes]), "{bytes} of {all}");
            assert_eq!(blob.len(), bytes);
        }
    }

    #[test]
    fn long_strings_are_shared() {
        let buffer = Bytes::from(vec![7; 100]);
        let blob = Blob::from(buffer.clone());
        assert_eq!(blob.clone().as_ptr(), buffer.as_ptr());
    }

    #[test]
    fn compares_and_hashes_as_its_bytes() {
        let mut map: HashMap<Blob, u32> = HashMap::new();
        map.insert(Blob::from("queue"), 1);
        map.insert(Blob::copy_from(&[b'q'; 60]), 2);
        assert_eq!(map.get(b"queue".as_slice()), Some(&1));
        assert_eq!(map.get([b'q'; 60].as_slice()), Some(&2));
        assert!(Blob::from("a") < Blob::from("b"));
        assert!(Blob::from("a") < Blob::copy_from(&[b'a'; 39]));
        assert_eq!(format!("{:?}", Blob::from("a\n\"")), r#"b"a\n\"""#);
    }
}
