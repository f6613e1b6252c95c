//! What a shard's jobs, queues and waiters take of the memory that was lent to it.
//!
//! Own data is counted, in bytes, never the size of the process. Shard 0 lends the budget of the node in chunks.

/// The account of one shard.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Memory {
    used: u64,
    budget: u64,
    level: u8,
}

impl Memory {
    /// An account with a budget.
    pub fn new(budget: u64) -> Self {
        Self {
            budget,
            ..Self::default()
        }
    }

    /// Bytes in use.
    pub fn used(&self) -> u64 {
        self.used
    }

    /// Counts bytes in.
    pub fn charge(&mut self, bytes: u64) {
        self.used += bytes;
    }

    /// Counts bytes out. They were charged before.
    pub fn release(&mut self, bytes: u64) {
        self.used = self.used.checked_sub(bytes).expect("memory is released once");
    }

    /// Whether so many bytes more fit what is lent to this shard.
    pub fn admit(&self, bytes: u64) -> bool {
        self.used.saturating_add(bytes) <= self.budget
    }

    /// Bytes lent.
    pub fn budget(&self) -> u64 {
        self.budget
    }

    /// Sets what is lent.
    pub fn set_budget(&mut self, bytes: u64) {
        self.budget = bytes;
    }

    /// Memory level of the node, 0 to 2.
    pub fn level(&self) -> u8 {
        self.level
    }

    /// Sets the memory level.
    pub fn set_level(&mut self, level: u8) {
        self.level = level;
    }
}
