//! Slots: the 4096 parts into which queue names fall, and the shard of a node that serves each.
//!
//! A slot is the low 12 bits of CRC-32C (Castagnoli, RFC 3720) of the queue name. The hash is part of the format:
//! job IDs carry it, peers and later versions compute it, so it never changes.

/// A 12-bit number of a queue name, 0..=4095.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Slot(u16);

/// How many slots there are.
pub const SLOTS: u16 = 4096;

/// The number of a shard within its node: 0 to shards - 1. It is also its number in the mesh.
pub type ShardNo = u16;

impl Slot {
    /// The slot of a queue name.
    pub fn of_queue(name: &[u8]) -> Self {
        let hash = if name.len() > SHORT_NAME_BYTES {
            crc32c::crc32c(name)
        } else {
            crc32c_of_short(name)
        };
        Self((hash & u32::from(SLOTS - 1)) as u16)
    }

    /// A slot by its number; only the low 12 bits count.
    pub fn from_number(number: u16) -> Self {
        Self(number & (SLOTS - 1))
    }

    /// Its number, 0..=4095.
    pub fn number(self) -> u16 {
        self.0
    }

    /// The shard that is home to this slot on a node of `shards` shards.
    pub fn home(self, shards: u16) -> ShardNo {
        self.0 % shards
    }
}

/// Up to this length a table is quicker than the library, which prepares for long texts: most names are short.
const SHORT_NAME_BYTES: usize = 16;

/// What each byte does to the hash.
const BYTES: [u32; 256] = {
    /// Castagnoli's polynomial, its bits reversed.
    const POLYNOMIAL: u32 = 0x82f6_3b78;
    let mut table = [0; 256];
    let mut byte = 0;
    while byte < 256 {
        let mut hash = byte as u32;
        let mut bit = 0;
        while bit < 8 {
            hash = (hash >> 1) ^ if hash & 1 == 1 { POLYNOMIAL } else { 0 };
            bit += 1;
        }
        table[byte] = hash;
        byte += 1;
    }
    table
};

fn crc32c_of_short(name: &[u8]) -> u32 {
    !name.iter().fold(!0, |hash, &byte| {
        (hash >> 8) ^ BYTES[usize::from(hash as u8 ^ byte)]
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hash_is_the_documented_one() {
        // "123456789" is the check value of CRC-32C: 0xe3069283.
        assert_eq!(Slot::of_queue(b"123456789").number(), 0x283);
        assert_eq!(Slot::of_queue(b"").number(), 0);
    }

    #[test]
    fn short_names_are_hashed_as_long_ones_are() {
        let text: Vec<u8> = (0..=255).rev().collect();
        for start in 0..240 {
            for bytes in 0..=SHORT_NAME_BYTES {
                let name = &text[start..start + bytes];
                assert_eq!(crc32c_of_short(name), crc32c::crc32c(name), "{name:?}");
            }
        }
    }

    #[test]
    fn names_with_a_counter_spread_over_shards() {
        let mut counts = [0; 4];
        for i in 0..4000 {
            counts[Slot::of_queue(format!("queue:{i}").as_bytes()).home(4) as usize] += 1;
        }
        assert!(counts.iter().all(|&n| n > 800), "{counts:?}");
    }
}
