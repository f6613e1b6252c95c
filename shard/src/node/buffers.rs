//! What client buffers may take of `maxmemory`, all together: half-sent requests and unread replies of many clients must not keep
//! everybody from adding jobs.
//!
//! Each shard tells shard 0 how much its sessions hold whenever that has changed by some. When it is too much, shard 0 lets all shards
//! measure, which walks their sessions, and the shard with the largest one closes it, and those of like size until enough is free; and so
//! on, until it is little enough. A shard's turn ends early when its sessions have come to hold much more, so that this keeps up (`Worker::take_net`).
//!
//! | together | and without the largest session | |
//! | --- | --- | --- |
//! | at most a `CLIENTS_SHARE`th of `maxmemory` | | nothing is done |
//! | at most `ONE_CLIENT_PERCENT` of `maxmemory` | at most a `CLIENTS_SHARE`th | nothing: limits in bytes admit one message, whatever its size |
//! | else | | the largest is closed |
//!
//! Who asked for CLIENT NO-EVICT is neither measured nor closed.

use crate::limits::{CLIENTS_SHARE, ONE_CLIENT_PERCENT};
use crate::node::NodeMessage;
use crate::slot::ShardNo;

/// Of how many steps of what a shard tells the limit consists; a step's error per shard is nothing beside it.
const STEPS: u64 = 16;

/// A shard's side: what it has told.
#[derive(Debug)]
pub(crate) struct BuffersHere {
    told_bytes: u64,
    /// Never told when 0.
    step_bytes: u64,
    shards: u16,
}

impl BuffersHere {
    pub fn new(shards: u16, maxmemory: u64) -> Self {
        let mut here = Self {
            told_bytes: 0,
            step_bytes: 0,
            shards,
        };
        here.set_maxmemory(maxmemory);
        here
    }

    /// CONFIG SET maxmemory.
    pub fn set_maxmemory(&mut self, maxmemory: u64) {
        let step = maxmemory / CLIENTS_SHARE / (STEPS * u64::from(self.shards));
        self.step_bytes = if maxmemory == 0 { 0 } else { step.max(1) };
    }

    /// What is to be said to shard 0, when this shard's sessions hold so much.
    pub fn changed(&mut self, bytes: u64) -> Option<NodeMessage> {
        let by = bytes.abs_diff(self.told_bytes);
        (self.step_bytes > 0 && by >= self.step_bytes).then(|| {
            self.told(bytes);
            NodeMessage::ClientBuffers { bytes }
        })
    }

    /// Shard 0 was told.
    pub fn told(&mut self, bytes: u64) {
        self.told_bytes = bytes;
    }
}

/// Shard 0's side.
#[derive(Debug)]
pub(super) struct Buffers {
    maxmemory: u64,
    /// What each shard has told.
    told_bytes: Vec<u64>,
    state: State,
}

#[derive(Debug)]
enum State {
    Idle,
    /// Shards measure: how many have not answered, the sum, and the largest session with its shard.
    Measuring(usize, u64, (u64, ShardNo)),
    /// This shard closes its largest.
    Closing(ShardNo),
}

impl Buffers {
    pub fn new(shards: u16, maxmemory: u64) -> Self {
        Self {
            maxmemory,
            told_bytes: vec![0; usize::from(shards)],
            state: State::Idle,
        }
    }

    /// CONFIG SET maxmemory.
    pub fn set_maxmemory(&mut self, maxmemory: u64, send: &mut impl FnMut(ShardNo, NodeMessage)) {
        self.maxmemory = maxmemory;
        self.measure_when_much(send);
    }

    /// A shard has told.
    pub fn told(&mut self, from: ShardNo, bytes: u64, send: &mut impl FnMut(ShardNo, NodeMessage)) {
        self.told_bytes[usize::from(from)] = bytes;
        self.measure_when_much(send);
    }

    /// A shard has done what it could to close its largest session.
    pub fn closed(&mut self, from: ShardNo, bytes: u64, send: &mut impl FnMut(ShardNo, NodeMessage)) {
        assert!(
            matches!(self.state, State::Closing(shard) if shard == from),
            "one shard closes at a time"
        );
        self.state = State::Idle;
        self.told(from, bytes, send);
    }

    /// A shard has measured.
    pub fn measured(
        &mut self,
        from: ShardNo,
        bytes: u64,
        largest: u64,
        send: &mut impl FnMut(ShardNo, NodeMessage),
    ) {
        let State::Measuring(left, sum, most) = &mut self.state else {
            unreachable!("shard {from} was not asked to measure")
        };
        *left -= 1;
        *sum += bytes;
        *most = (*most).max((largest, from));
        if *left == 0 {
            let (sum, (largest, shard)) = (*sum, *most);
            let is_too_much = self.is_too_much(sum, largest);
            self.state = if is_too_much {
                // Who is left last may hold more than the limit alone: that is found when they are measured again.
                let excess = sum.saturating_sub(self.limit_bytes() + largest);
                let bytes = largest;
                send(shard, NodeMessage::CloseLargestClients { bytes, excess });
                State::Closing(shard)
            } else {
                State::Idle
            };
        }
    }

    fn limit_bytes(&self) -> u64 {
        if self.maxmemory == 0 {
            u64::MAX
        } else {
            self.maxmemory / CLIENTS_SHARE
        }
    }

    fn is_too_much(&self, sum: u64, largest: u64) -> bool {
        let for_one = self.maxmemory / 100 * ONE_CLIENT_PERCENT;
        let limit = self.limit_bytes();
        sum > limit && (sum - largest > limit || sum > for_one)
    }

    fn measure_when_much(&mut self, send: &mut impl FnMut(ShardNo, NodeMessage)) {
        let sum: u64 = self.told_bytes.iter().sum();
        if matches!(self.state, State::Idle) && sum > self.limit_bytes() {
            let shards = self.told_bytes.len();
            self.state = State::Measuring(shards, 0, (0, 0));
            (0..shards).for_each(|shard| send(shard as ShardNo, NodeMessage::MeasureClients));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    type Sent = Vec<(ShardNo, String)>;

    fn collect(f: impl FnOnce(&mut dyn FnMut(ShardNo, NodeMessage))) -> Sent {
        let mut sent = Vec::new();
        f(&mut |to, message| sent.push((to, format!("{message:?}"))));
        sent
    }

    /// What follows when two shards hold so much, and the largest of their sessions so much.
    fn measure(maxmemory: u64, bytes: [u64; 2], largest: [u64; 2]) -> Sent {
        let mut buffers = Buffers::new(2, maxmemory);
        let mut asked = Vec::new();
        for shard in [0, 1] {
            asked.extend(collect(|mut send| {
                buffers.told(shard, bytes[usize::from(shard)], &mut send);
            }));
        }
        if asked.is_empty() {
            return asked;
        }
        assert_eq!(asked.len(), 2, "each measures once: {asked:?}");
        let mut sent = Vec::new();
        for shard in [0, 1] {
            let at = usize::from(shard);
            sent.extend(collect(|mut send| {
                buffers.measured(shard, bytes[at], largest[at], &mut send);
            }));
        }
        sent
    }

    #[test]
    fn the_largest_of_the_node_is_closed_when_all_hold_too_much() {
        let close = vec![(1, "CloseLargestClients { bytes: 120, excess: 30 }".to_owned())];
        assert_eq!(measure(1000, [200, 200], [100, 120]), close);
        assert!(measure(1000, [200, 50], [100, 50]).is_empty());
        assert!(
            measure(0, [u64::MAX / 4, u64::MAX / 4], [1, 1]).is_empty(),
            "no limit"
        );
    }

    #[test]
    fn one_large_message_is_let_through() {
        assert!(measure(1000, [600, 50], [600, 50]).is_empty());
        assert!(
            measure(1000, [700, 240], [700, 10])[0].1.starts_with("Close"),
            "but not one so large"
        );
        assert!(
            measure(1000, [600, 100], [400, 100])[0].1.starts_with("Close"),
            "nor two of them"
        );
    }

    #[test]
    fn it_goes_on_until_it_is_little_enough() {
        let mut buffers = Buffers::new(1, 1000);
        assert_eq!(collect(|mut send| buffers.told(0, 900, &mut send)).len(), 1);
        assert!(
            collect(|mut send| buffers.told(0, 950, &mut send)).is_empty(),
            "it is being measured"
        );
        assert_eq!(
            collect(|mut send| buffers.measured(0, 950, 500, &mut send)).len(),
            1
        );
        assert!(collect(|mut send| buffers.told(0, 960, &mut send)).is_empty());
        assert_eq!(
            collect(|mut send| buffers.closed(0, 460, &mut send)),
            [(0, "MeasureClients".to_owned())]
        );
        assert!(collect(|mut send| buffers.measured(0, 240, 240, &mut send)).is_empty());
        assert!(collect(|mut send| buffers.told(0, 240, &mut send)).is_empty());
    }

    #[test]
    fn a_shard_tells_of_changes_worth_telling() {
        let mut here = BuffersHere::new(2, 128 << 10);
        assert!(here.changed(1023).is_none());
        assert!(matches!(
            here.changed(1024),
            Some(NodeMessage::ClientBuffers { bytes: 1024 })
        ));
        assert!(here.changed(1).is_none());
        assert!(here.changed(0).is_some());
        here.set_maxmemory(0);
        assert!(here.changed(1 << 40).is_none());
    }
}
