//! A segment: its file's name and its header.
//!
//! ```text
//! header   magic "shardqlg", version u16, shard u16, zeros u32, number u64, generation u64, random u64, file bytes u64,
//!          zeros, CRC-32C u32 of all before: 64 bytes, little-endian. Records follow; then zeros, to the length of the file.
//! ```
//!
//! File, header and directory entry are synced before the first record. A segment's numbers only grow; the order of the
//! log is that of the numbers, its continuity shows in the places (`record.rs`).

use super::record::VERSION;
use crate::slot::ShardNo;

/// Where the first record of a segment begins: behind its header.
pub const FIRST_RECORD: u64 = 64;

const HEADER: usize = FIRST_RECORD as usize;
const MAGIC: &[u8; 8] = b"shardqlg";
const SEGMENT_VERSION: u16 = VERSION as u16;

/// What the header of a segment says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SegmentHeader {
    /// Whose log it is.
    pub shard: ShardNo,
    /// Its number.
    pub number: u64,
    /// Generation of the data folder it belongs to.
    pub generation: u64,
    /// Part of the checksum of each of its records.
    pub random: u64,
    /// Bytes that were allocated for it.
    pub file_bytes: u64,
}

/// Why bytes are no header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BadHeader {
    /// Too short, or its checksum is wrong.
    Damaged,
    /// Not one of our files.
    Foreign,
    /// A later server wrote it.
    Version(u16),
}

impl SegmentHeader {
    /// Its 64 bytes.
    pub fn encode(&self) -> [u8; HEADER] {
        let mut bytes = [0; HEADER];
        bytes[..8].copy_from_slice(MAGIC);
        bytes[8..10].copy_from_slice(&SEGMENT_VERSION.to_le_bytes());
        bytes[10..12].copy_from_slice(&self.shard.to_le_bytes());
        for (at, number) in [self.number, self.generation, self.random, self.file_bytes]
            .into_iter()
            .enumerate()
        {
            bytes[16 + 8 * at..24 + 8 * at].copy_from_slice(&number.to_le_bytes());
        }
        let sum = crc32c::crc32c(&bytes[..HEADER - 4]);
        bytes[HEADER - 4..].copy_from_slice(&sum.to_le_bytes());
        bytes
    }

    /// Reads a header.
    pub fn decode(bytes: &[u8]) -> Result<Self, BadHeader> {
        let Some(bytes) = bytes.first_chunk::<HEADER>() else {
            return Err(BadHeader::Damaged);
        };
        let sum = crc32c::crc32c(&bytes[..HEADER - 4]);
        let intact = bytes[HEADER - 4..] == sum.to_le_bytes();
        if &bytes[..8] != MAGIC {
            // A header that was written in part only: the beginning of the magic number, then zeros.
            let begun = bytes
                .iter()
                .zip(MAGIC)
                .take_while(|(byte, magic)| byte == magic)
                .count();
            let zeros = bytes[begun..].iter().all(|&byte| byte == 0);
            return Err(if zeros {
                BadHeader::Damaged
            } else {
                BadHeader::Foreign
            });
        }
        if !intact {
            return Err(BadHeader::Damaged);
        }
        let version = u16::from_le_bytes([bytes[8], bytes[9]]);
        if version != SEGMENT_VERSION {
            return Err(BadHeader::Version(version));
        }
        let number = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().expect("8 bytes"));
        Ok(Self {
            shard: u16::from_le_bytes([bytes[10], bytes[11]]),
            number: number(16),
            generation: number(24),
            random: number(32),
            file_bytes: number(40),
        })
    }
}

/// A file of a generation's folder, by its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileName {
    /// `shard-SSS-NNNNNNNNNNNNNNNN.log`, the number in hexadecimal digits.
    Segment {
        /// Whose log.
        shard: ShardNo,
        /// Its number.
        number: u64,
    },
    /// Bytes that a recovery cut off, kept beside: the name of the segment with `.cut-` and the offset behind it.
    Cut,
    /// Not ours.
    Foreign,
}

impl FileName {
    /// The name of a segment's file.
    pub fn of(shard: ShardNo, number: u64) -> String {
        format!("shard-{shard:03}-{number:016x}.log")
    }

    /// The name of the file that keeps what was cut off a segment from `offset` on.
    pub fn of_cut(shard: ShardNo, number: u64, offset: u64) -> String {
        format!("{}.cut-{offset}", Self::of(shard, number))
    }

    /// What a name says.
    pub fn parse(name: &str) -> Self {
        if let Some((segment, offset)) = name.split_once(".cut-") {
            let ours = matches!(Self::parse(segment), Self::Segment { .. }) && offset.parse::<u64>().is_ok();
            return if ours { Self::Cut } else { Self::Foreign };
        }
        let parts = name
            .strip_prefix("shard-")
            .and_then(|rest| rest.strip_suffix(".log"))
            .and_then(|rest| rest.split_once('-'));
        let numbers = parts
            .and_then(|(shard, number)| Some((shard.parse().ok()?, u64::from_str_radix(number, 16).ok()?)));
        match numbers {
            // The last number of all has no next one: nobody but a prankster made it.
            Some((shard, number)) if number < u64::MAX && Self::of(shard, number) == name => {
                Self::Segment { shard, number }
            }
            _ => Self::Foreign,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_survive_and_show_every_flipped_bit() {
        let header = SegmentHeader {
            shard: 3,
            number: 77,
            generation: 2,
            random: 0x1234_5678_9abc_def0,
            file_bytes: 1 << 24,
        };
        let bytes = header.encode();
        assert_eq!(SegmentHeader::decode(&bytes), Ok(header));
        for bit in 0..HEADER * 8 {
            let mut flipped = bytes;
            flipped[bit / 8] ^= 1 << (bit % 8);
            assert!(SegmentHeader::decode(&flipped).is_err(), "bit {bit}");
        }
        assert_eq!(SegmentHeader::decode(&bytes[..63]), Err(BadHeader::Damaged));
        assert_eq!(SegmentHeader::decode(&[0; 64]), Err(BadHeader::Damaged));
        assert_eq!(SegmentHeader::decode(&[b'x'; 64]), Err(BadHeader::Foreign));
    }

    #[test]
    fn names_are_read_back_and_others_left_alone() {
        for (shard, number) in [(0, 1), (255, u64::MAX - 1), (7, 0x10)] {
            let name = FileName::of(shard, number);
            assert_eq!(FileName::parse(&name), FileName::Segment { shard, number });
            assert_eq!(
                FileName::parse(&FileName::of_cut(shard, number, 64)),
                FileName::Cut
            );
        }
        for name in [
            "",
            "shard-1-2.log",
            "shard-001-.log",
            "notes.txt",
            "shard-000-000000000000000G.log",
            "shard-000-ffffffffffffffff.log",
            ".cut-3",
        ] {
            assert_eq!(FileName::parse(name), FileName::Foreign, "{name}");
        }
    }
}
