//! What may still stand behind damage: the newest mark of durability among the records that are whole.
//!
//! Records are looked for at every place where one could begin and what stands there could be a header: of 500 million places in
//! random bytes one passes. A body full of made-up headers could still make this slow, so the bytes that go through
//! checksums in vain have a limit; beyond it the answer is "unknown", and the start stops rather than cut.

use super::codec::{ALIGNMENT, BadRecord, Look, could_be_header, look};

/// So many times the bytes of the file may go through checksums.
const PASSES: u64 = 16;

/// A search through the rest of a segment.
#[derive(Debug)]
pub struct MarkSearch {
    budget: u64,
    /// The highest mark so far.
    pub mark: u64,
    /// Any byte that is not zero.
    pub anything: bool,
    /// The search was given up.
    pub unknown: bool,
}

/// What a step of the search wants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// These bytes are done with.
    Skip(usize),
    /// So many bytes are needed.
    Needs(usize),
}

impl MarkSearch {
    pub fn new(file_bytes: u64) -> Self {
        let budget = PASSES.saturating_mul(file_bytes);
        Self {
            budget,
            mark: 0,
            anything: false,
            unknown: false,
        }
    }

    /// Looks at what begins with `bytes`; `random` is unknown when the header is damaged.
    pub fn step(&mut self, bytes: &[u8], room: u64, random: Option<u64>) -> Step {
        let zeros = bytes.iter().position(|&byte| byte != 0).unwrap_or(bytes.len());
        self.anything |= zeros < bytes.len();
        let aligned = zeros - zeros % ALIGNMENT as usize;
        let (Some(random), false) = (random, self.unknown) else {
            return Step::Skip(bytes.len());
        };
        if aligned > 0 {
            return Step::Skip(aligned);
        }
        if !could_be_header(bytes) {
            return Step::Skip(ALIGNMENT as usize);
        }
        let looked = look(bytes, room, random);
        match looked {
            Look::Record(record) => {
                self.mark = self.mark.max(record.durable);
                Step::Skip((record.padded_bytes as usize).min(bytes.len()))
            }
            Look::Needs(needed) => Step::Needs(needed),
            Look::Nothing | Look::Bad(_) => {
                let length = bytes
                    .first_chunk()
                    .map_or(0, |length| u64::from(u32::from_le_bytes(*length)));
                let spent = if looked == Look::Bad(BadRecord::Checksum) {
                    length
                } else {
                    0
                };
                match self.budget.checked_sub(spent) {
                    Some(left) => self.budget = left,
                    None => self.unknown = true,
                }
                Step::Skip(bytes.len().min(ALIGNMENT as usize))
            }
        }
    }
}
