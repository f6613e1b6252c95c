//! Job IDs and node IDs.
//!
//! A job ID is written as 40 characters, `D-` node `-` random `-` ttl: 8 hex digits of the creating node's ID, 24
//! characters of the base64 alphabet, and 4 hex digits of the time to live in minutes whose lowest bit says whether
//! the job is delivered at least once (1) or at most once (0). The first two of the 24 characters are the slot of the
//! queue, so an ID alone leads to its home shard; the other 132 bits are random. In memory an ID is its 24 bytes.
//! (Reference, section 2; unlike the original, the alphabets are checked.)

use std::fmt;

use crate::slot::Slot;

/// Length of a written job ID.
pub const JOB_ID_TEXT_LEN: usize = 40;

const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
const HEX: &[u8; 16] = b"0123456789abcdef";
/// The two digits of each byte.
const HEX_PAIRS: [[u8; 2]; 256] = {
    let mut pairs = [[0; 2]; 256];
    let mut byte = 0;
    while byte < 256 {
        pairs[byte] = [HEX[byte >> 4], HEX[byte & 0x0f]];
        byte += 1;
    }
    pairs
};
const NOT_A_DIGIT: u8 = 0xff;
const BASE64_VALUES: [u8; 256] = values_of(ALPHABET);
const HEX_VALUES: [u8; 256] = values_of(HEX);

const fn values_of(alphabet: &[u8]) -> [u8; 256] {
    let mut values = [NOT_A_DIGIT; 256];
    let mut i = 0;
    while i < alphabet.len() {
        values[alphabet[i] as usize] = i as u8;
        i += 1;
    }
    values
}

/// A job ID: 4 bytes of the node's ID, 18 of slot and chance, 2 of time to live.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct JobId([u8; 24]);

impl JobId {
    /// Makes the ID of a new job. `random` supplies the chance; its first 12 bits give way to the slot.
    pub fn new(node: NodeId, slot: Slot, random: [u8; 18], ttl_s: u64, at_least_once: bool) -> Self {
        let mut bytes = [0; 24];
        bytes[..4].copy_from_slice(&node.0[..4]);
        bytes[4..22].copy_from_slice(&random);
        bytes[4] = (slot.number() >> 4) as u8;
        bytes[5] = ((slot.number() << 4) as u8) | (bytes[5] & 0x0f);
        let minutes = (ttl_s / 60).min(0xffff) as u16;
        bytes[22..].copy_from_slice(&((minutes & !1) | u16::from(at_least_once)).to_be_bytes());
        Self(bytes)
    }

    /// Reads a written ID; `None` when length, separators or alphabets are wrong.
    pub fn parse(text: &[u8]) -> Option<Self> {
        let text: &[u8; JOB_ID_TEXT_LEN] = text.try_into().ok()?;
        if text[0] != b'D' || text[1] != b'-' || text[10] != b'-' || text[35] != b'-' {
            return None;
        }
        let mut bytes = [0; 24];
        let mut bad = 0;
        for (byte, pair) in bytes[..4].iter_mut().zip(text[2..10].chunks_exact(2)) {
            bad |= decode_hex(pair, byte);
        }
        for (three, four) in bytes[4..22].chunks_exact_mut(3).zip(text[11..35].chunks_exact(4)) {
            let mut bits = 0u32;
            for &c in four {
                let value = BASE64_VALUES[c as usize];
                bad |= value & 0xc0;
                bits = bits << 6 | u32::from(value);
            }
            three.copy_from_slice(&bits.to_be_bytes()[1..]);
        }
        for (byte, pair) in bytes[22..].iter_mut().zip(text[36..].chunks_exact(2)) {
            bad |= decode_hex(pair, byte);
        }
        (bad == 0).then_some(Self(bytes))
    }

    /// An ID by its 24 bytes.
    pub fn from_bytes(bytes: [u8; 24]) -> Self {
        Self(bytes)
    }

    /// Its 24 bytes.
    pub fn as_bytes(&self) -> &[u8; 24] {
        &self.0
    }

    /// Its 40 characters.
    pub fn text(&self) -> [u8; JOB_ID_TEXT_LEN] {
        let mut text = [b'-'; JOB_ID_TEXT_LEN];
        text[0] = b'D';
        encode_hex(&self.0[..4], &mut text[2..10]);
        for (from, eight) in [4, 10, 16].into_iter().zip(text[11..35].chunks_exact_mut(8)) {
            // The six bytes from there on are the low 48 bits; of the two before them nothing is used.
            let bits = u64::from_be_bytes(self.0[from - 2..from + 6].try_into().expect("eight bytes"));
            for (i, c) in eight.iter_mut().enumerate() {
                *c = ALPHABET[(bits >> (42 - 6 * i) & 0x3f) as usize];
            }
        }
        encode_hex(&self.0[22..], &mut text[36..]);
        text
    }

    /// The slot of the job's queue.
    pub fn slot(&self) -> Slot {
        Slot::from_number(u16::from(self.0[4]) << 4 | u16::from(self.0[5]) >> 4)
    }

    /// 64 of the random bits, for the ID map: the same on every node, whatever its number of shards.
    pub fn scan_hash(&self) -> u64 {
        Self::scan_hash_of(
            self.0[4..22]
                .try_into()
                .expect("18 bytes lie between node and time to live"),
        )
    }

    /// The [`scan_hash`](Self::scan_hash) of the ID that is made of this chance.
    pub fn scan_hash_of(random: &[u8; 18]) -> u64 {
        u64::from_be_bytes(random[2..10].try_into().expect("eight bytes"))
    }

    /// The time to live that it tells, as far as it does, in milliseconds: at least two minutes, at most 45 days.
    pub fn life_ms(&self) -> u64 {
        let minutes = u64::from(u16::from_be_bytes([self.0[22], self.0[23]]) & !1);
        (minutes + 2) * 60_000
    }

    /// Whether the job it names may be delivered more than once (RETRY above 0).
    pub fn at_least_once(&self) -> bool {
        self.0[23] & 1 == 1
    }
}

impl fmt::Display for JobId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.text().iter().try_for_each(|&c| write!(f, "{}", c as char))
    }
}

impl fmt::Debug for JobId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// The ID of a node: 20 random bytes, written as 40 hex digits.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NodeId([u8; 20]);

impl NodeId {
    /// An ID by its bytes.
    pub const fn from_bytes(bytes: [u8; 20]) -> Self {
        Self(bytes)
    }

    /// Its 20 bytes.
    pub fn as_bytes(&self) -> &[u8; 20] {
        &self.0
    }

    /// Reads 40 lowercase hex digits.
    pub fn parse(text: &[u8]) -> Option<Self> {
        let text: &[u8; 40] = text.try_into().ok()?;
        let mut bytes = [0; 20];
        let mut bad = 0;
        for (byte, pair) in bytes.iter_mut().zip(text.chunks_exact(2)) {
            bad |= decode_hex(pair, byte);
        }
        (bad == 0).then_some(Self(bytes))
    }

    /// Its 40 hex digits.
    pub fn text(&self) -> [u8; 40] {
        let mut text = [0; 40];
        encode_hex(&self.0, &mut text);
        text
    }
}

impl fmt::Display for NodeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.text().iter().try_for_each(|&c| write!(f, "{}", c as char))
    }
}

impl fmt::Debug for NodeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Writes two digits a byte. `text` holds exactly twice as many.
fn encode_hex(bytes: &[u8], text: &mut [u8]) {
    for (byte, pair) in bytes.iter().zip(text.chunks_exact_mut(2)) {
        pair.copy_from_slice(&HEX_PAIRS[usize::from(*byte)]);
    }
}

/// Reads one byte of two digits; the result is not zero when one of them is none.
fn decode_hex(pair: &[u8], byte: &mut u8) -> u8 {
    let (high, low) = (HEX_VALUES[pair[0] as usize], HEX_VALUES[pair[1] as usize]);
    *byte = high << 4 | (low & 0x0f);
    (high | low) & 0xf0
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn node() -> NodeId {
        NodeId::parse(b"4f0b19aa00112233445566778899aabbccddeeff").unwrap()
    }

    #[test]
    fn a_written_id_has_the_shape_of_the_original() {
        let id = JobId::new(node(), Slot::of_queue(b"q"), [0xa5; 18], 86_400, true);
        let text = String::from_utf8(id.text().to_vec()).unwrap();
        assert!(text.starts_with("D-4f0b19aa-"), "{text}");
        assert!(text.ends_with("-05a1"), "{text}");
        let once = JobId::new(node(), Slot::of_queue(b"q"), [0xa5; 18], 10, false);
        assert!(once.text().ends_with(b"-0000"));
        assert!(
            JobId::new(node(), Slot::of_queue(b"q"), [0; 18], u64::MAX, true)
                .text()
                .ends_with(b"-ffff")
        );
    }

    #[test]
    fn malformed_ids_are_refused() {
        let good = JobId::new(node(), Slot::of_queue(b"q"), [7; 18], 60, true).text();
        assert!(JobId::parse(&good).is_some());
        for at in 0..JOB_ID_TEXT_LEN {
            for bad in [b' ', 0, b'!', 0xff, b'G' + 32] {
                let mut text = good;
                text[at] = bad;
                let base64_digit = (11..35).contains(&at) && bad.is_ascii_alphanumeric();
                assert_eq!(JobId::parse(&text).is_some(), base64_digit, "{at} {bad}");
            }
        }
        assert!(JobId::parse(&good[..39]).is_none());
        assert!(JobId::parse(b"").is_none());
    }

    proptest! {
        #[test]
        fn ids_survive_writing_and_reading(random: [u8; 18], slot in 0u16..4096, ttl: u64, once: bool) {
            let id = JobId::new(node(), Slot::from_number(slot), random, ttl, !once);
            prop_assert_eq!(JobId::parse(&id.text()), Some(id));
            prop_assert_eq!(id.slot().number(), slot);
            prop_assert_eq!(id.at_least_once(), !once);
        }

        #[test]
        fn whatever_parses_is_written_the_same(text in "D-[0-9a-f]{8}-[A-Za-z0-9+/]{24}-[0-9a-f]{4}") {
            let id = JobId::parse(text.as_bytes()).unwrap();
            prop_assert_eq!(id.text().to_vec(), text.as_bytes().to_vec());
        }
    }
}
