//! Shard 0's side of the memory budget: who has how much of `maxmemory`.
//!
//! Budget is lent in the chunks that shards ask for. When it runs out and an ADDJOB waits (`urgent`), the others are asked to give
//! back what they do not use; whoever waits gets what comes together, perhaps nothing. So a job is refused only when
//! the node as a whole has no room for it.

use std::collections::VecDeque;

use crate::node::NodeMessage;
use crate::slot::ShardNo;

/// Bytes of budget when `maxmemory` is 0: no limit.
const UNLIMITED_BYTES: u64 = 1 << 60;
/// Percent of the budget in use above which the node is at level 1, and at level 2 (reference, section 9).
const LEVEL_PERCENT: [u64; 2] = [75, 95];

/// The budget of the node.
#[derive(Debug)]
pub(super) struct Lender {
    total_bytes: u64,
    lent_bytes: Vec<u64>,
    waiting: VecDeque<(ShardNo, u64)>,
    /// Shards that have not answered the recall.
    recalling: usize,
    level: u8,
}

impl Lender {
    pub fn new(shards: u16, maxmemory: u64) -> Self {
        Self {
            total_bytes: total(maxmemory),
            lent_bytes: vec![0; usize::from(shards)],
            waiting: VecDeque::new(),
            recalling: 0,
            level: 0,
        }
    }

    /// CONFIG SET maxmemory. What is lent above a smaller budget comes back by recall.
    pub fn set_total(&mut self, maxmemory: u64, send: &mut impl FnMut(ShardNo, NodeMessage)) {
        self.total_bytes = total(maxmemory);
        if self.free_bytes() == 0 {
            self.recall(send);
        }
        self.tell_level(send);
    }

    /// A shard wants more.
    pub fn want(
        &mut self,
        from: ShardNo,
        bytes: u64,
        urgent: bool,
        send: &mut impl FnMut(ShardNo, NodeMessage),
    ) {
        // Behind a recall that is under way too: what that takes from it is added to what it wants.
        let waits = urgent && (bytes > self.free_bytes() || self.recalling > 0);
        if waits && self.lent_bytes.len() > 1 {
            self.waiting.push_back((from, bytes));
            self.recall(send);
        } else {
            self.lend(from, bytes, send);
        }
        self.tell_level(send);
    }

    /// A shard gave back.
    pub fn returned(
        &mut self,
        from: ShardNo,
        bytes: u64,
        recalled: bool,
        send: &mut impl FnMut(ShardNo, NodeMessage),
    ) {
        let lent = &mut self.lent_bytes[usize::from(from)];
        *lent = lent
            .checked_sub(bytes)
            .expect("a shard gives back what it was lent");
        if recalled {
            if let Some((_, wanted)) = self.waiting.iter_mut().find(|(shard, _)| *shard == from) {
                *wanted += bytes;
            }
            self.recalling = self.recalling.checked_sub(1).expect("a recall is answered once");
            if self.recalling == 0 {
                while let Some((shard, bytes)) = self.waiting.pop_front() {
                    self.lend(shard, bytes, send);
                }
            }
        }
        self.tell_level(send);
    }

    fn recall(&mut self, send: &mut impl FnMut(ShardNo, NodeMessage)) {
        if self.recalling == 0 {
            self.recalling = self.lent_bytes.len();
            (0..self.lent_bytes.len()).for_each(|shard| send(shard as ShardNo, NodeMessage::RecallMemory));
        }
    }

    fn lend(&mut self, to: ShardNo, bytes: u64, send: &mut impl FnMut(ShardNo, NodeMessage)) {
        let bytes = bytes.min(self.free_bytes());
        self.lent_bytes[usize::from(to)] += bytes;
        send(to, NodeMessage::LendMemory { bytes });
    }

    fn free_bytes(&self) -> u64 {
        self.total_bytes.saturating_sub(self.lent_bytes.iter().sum())
    }

    fn tell_level(&mut self, send: &mut impl FnMut(ShardNo, NodeMessage)) {
        let lent: u64 = self.lent_bytes.iter().sum();
        let level = LEVEL_PERCENT
            .iter()
            .filter(|&&percent| lent > self.total_bytes / 100 * percent)
            .count() as u8;
        if level != self.level {
            self.level = level;
            (0..self.lent_bytes.len())
                .for_each(|shard| send(shard as ShardNo, NodeMessage::MemoryLevel(level)));
        }
    }
}

fn total(maxmemory: u64) -> u64 {
    if maxmemory == 0 {
        UNLIMITED_BYTES
    } else {
        maxmemory.min(UNLIMITED_BYTES)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn collect(f: impl FnOnce(&mut dyn FnMut(ShardNo, NodeMessage))) -> Vec<(ShardNo, String)> {
        let mut sent = Vec::new();
        f(&mut |to, message| sent.push((to, format!("{message:?}"))));
        sent
    }

    #[test]
    fn an_urgent_want_gets_what_the_others_do_not_use() {
        let mut lender = Lender::new(2, 1000);
        collect(|mut send| lender.want(0, 700, false, &mut send));
        let sent = collect(|mut send| lender.want(1, 600, true, &mut send));
        assert_eq!(sent.iter().filter(|(_, text)| text == "RecallMemory").count(), 2);
        assert!(!sent.iter().any(|(_, text)| text.starts_with("Lend")), "{sent:?}");
        collect(|mut send| lender.returned(1, 0, true, &mut send));
        collect(|mut send| lender.want(0, 10, true, &mut send));
        let sent = collect(|mut send| lender.returned(0, 500, true, &mut send));
        assert!(
            sent.contains(&(1, "LendMemory { bytes: 600 }".into())),
            "{sent:?}"
        );
        assert!(
            sent.contains(&(0, "LendMemory { bytes: 200 }".into())),
            "it wanted 10 more than it had, and gave back 500: {sent:?}"
        );
    }

    #[test]
    fn never_more_is_lent_than_there_is() {
        let mut lender = Lender::new(2, 1000);
        collect(|mut send| lender.want(0, 900, false, &mut send));
        let sent = collect(|mut send| lender.want(1, 900, false, &mut send));
        assert!(
            sent.contains(&(1, "LendMemory { bytes: 100 }".into())),
            "{sent:?}"
        );
        assert!(sent.contains(&(0, "MemoryLevel(2)".into())), "{sent:?}");
        let sent = collect(|mut send| lender.returned(0, 900, false, &mut send));
        assert!(sent.contains(&(0, "MemoryLevel(0)".into())), "{sent:?}");
    }
}
