//! A shard's side of the memory budget: asks for a chunk before the last one is used up, gives back what it does not need.
//!
//! At most one question is under way. A shard that was refused asks again only when an ADDJOB waits, or the node's memory level
//! falls.

use crate::memory::Memory;
use crate::node::NodeMessage;

const MIN_CHUNK_BYTES: u64 = 16 << 10;
const MAX_CHUNK_BYTES: u64 = 4 << 20;

/// What a shard has asked for.
#[derive(Debug)]
pub(crate) struct Borrower {
    chunk_bytes: u64,
    shards: u16,
    /// How much, and whether the other shards are asked too.
    asked: Option<(u64, bool)>,
    refused: bool,
}

impl Borrower {
    pub fn new(shards: u16, maxmemory: u64) -> Self {
        let mut borrower = Self {
            chunk_bytes: 0,
            shards,
            asked: None,
            refused: false,
        };
        borrower.set_total(maxmemory);
        borrower
    }

    /// CONFIG SET maxmemory.
    pub fn set_total(&mut self, maxmemory: u64) {
        let share = maxmemory / (16 * u64::from(self.shards));
        self.chunk_bytes = if maxmemory == 0 {
            MAX_CHUNK_BYTES
        } else {
            share.clamp(MIN_CHUNK_BYTES, MAX_CHUNK_BYTES)
        };
        self.refused = false;
    }

    /// What is to be said to shard 0 now. `waiting_bytes` is what ADDJOBs wait for.
    pub fn balance(&mut self, memory: &mut Memory, waiting_bytes: u64) -> Option<NodeMessage> {
        if self.asked.is_some() {
            return None;
        }
        let (used, budget) = (memory.used(), memory.budget());
        let urgent = waiting_bytes > 0 && !memory.admit(waiting_bytes);
        let low = used + self.chunk_bytes / 2 > budget && !self.refused;
        if urgent || low {
            let bytes = (used + waiting_bytes + self.chunk_bytes) - budget.min(used + waiting_bytes);
            self.asked = Some((bytes, urgent));
            return Some(NodeMessage::WantMemory { bytes, urgent });
        }
        let surplus = budget.saturating_sub(used + 2 * self.chunk_bytes);
        (surplus > self.chunk_bytes).then(|| give(memory, surplus, false))
    }

    /// Shard 0 lent. `true` when that was the last there is: the other shards have given what they do not use.
    pub fn lent(&mut self, memory: &mut Memory, bytes: u64) -> bool {
        let (asked, urgent) = self.asked.take().expect("memory is lent to those who ask");
        self.refused = bytes < asked;
        memory.set_budget(memory.budget() + bytes);
        self.refused && urgent
    }

    /// Shard 0 wants back what is not used. When it is asked for more at this time, it is asked for that too, on both sides.
    pub fn recalled(&mut self, memory: &mut Memory) -> NodeMessage {
        let unused = memory.budget().saturating_sub(memory.used());
        self.refused = true;
        if let Some((asked, true)) = &mut self.asked {
            *asked += unused;
        }
        give(memory, unused, true)
    }

    /// The node's memory level changed.
    pub fn level_changed(&mut self) {
        self.refused = false;
    }
}

fn give(memory: &mut Memory, bytes: u64, recalled: bool) -> NodeMessage {
    memory.set_budget(memory.budget() - bytes);
    NodeMessage::ReturnMemory { bytes, recalled }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_asks_ahead_once_and_gives_back_a_surplus() {
        let mut memory = Memory::new(0);
        let mut borrower = Borrower::new(2, 1 << 20);
        let Some(NodeMessage::WantMemory { bytes, urgent: false }) = borrower.balance(&mut memory, 0) else {
            panic!()
        };
        assert!(
            borrower.balance(&mut memory, 0).is_none(),
            "one question at a time"
        );
        assert!(!borrower.lent(&mut memory, bytes));
        assert!(borrower.balance(&mut memory, 0).is_none());
        memory.charge(500_000);
        let Some(NodeMessage::WantMemory { bytes, .. }) = borrower.balance(&mut memory, 0) else {
            panic!()
        };
        borrower.lent(&mut memory, bytes);
        assert!(memory.admit(1));
        memory.release(500_000);
        assert!(matches!(
            borrower.balance(&mut memory, 0),
            Some(NodeMessage::ReturnMemory { .. })
        ));
        assert!(borrower.balance(&mut memory, 0).is_none());
    }

    #[test]
    fn a_refused_shard_asks_again_only_when_a_job_waits() {
        let mut memory = Memory::new(0);
        let mut borrower = Borrower::new(2, 1 << 20);
        borrower.balance(&mut memory, 0);
        assert!(!borrower.lent(&mut memory, 0), "the other shards were not asked");
        assert!(borrower.balance(&mut memory, 0).is_none());
        assert!(matches!(
            borrower.balance(&mut memory, 100),
            Some(NodeMessage::WantMemory { urgent: true, .. })
        ));
        assert!(borrower.lent(&mut memory, 0), "there is none left");
    }

    #[test]
    fn what_was_recalled_since_it_asked_is_not_taken_for_a_loan() {
        let mut memory = Memory::new(200_000);
        memory.charge(150_000);
        let mut borrower = Borrower::new(2, 1 << 20);
        let Some(NodeMessage::WantMemory { bytes, urgent: true }) = borrower.balance(&mut memory, 100_000)
        else {
            panic!()
        };
        borrower.recalled(&mut memory);
        assert_eq!(memory.budget(), 150_000);
        assert!(
            borrower.lent(&mut memory, bytes),
            "it has less than it needs, and there is no more"
        );
    }
}
