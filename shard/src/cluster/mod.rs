//! Membership: which nodes there are, and which of them are alive. One machine, beside shard 0.
