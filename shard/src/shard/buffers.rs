//! This shard's part in bounding what client buffers take (`node/buffers.rs`).

use super::Shard;
use crate::clock::Now;
use crate::input::{Effect, LogLevel};
use crate::message::SessionId;
use crate::node::NodeMessage;

impl Shard {
    /// The turn is over: shard 0 learns what the sessions hold, when that has changed by much.
    pub(super) fn tell_buffers(&mut self) {
        if let Some(message) = self.buffers.changed(self.core.client_bytes) {
            self.core.send_node(0, message);
        }
    }

    /// Shard 0 wants to know what the sessions hold that may be closed for it.
    pub(super) fn measure_clients(&mut self) {
        let bytes = self.evictable().map(|(_, bytes)| bytes).sum();
        let largest = self.evictable().map(|(_, bytes)| bytes).max().unwrap_or(0);
        self.core
            .send_node(0, NodeMessage::ClientsMeasured { bytes, largest });
    }

    /// Closes the sessions that hold most, until so many bytes are free. None that holds less than half of what the largest did when it was
    /// measured.
    pub(super) fn close_largest_clients(&mut self, now: Now, measured_bytes: u64, excess: u64) {
        let is_large = |&(_, bytes): &(SessionId, u64)| bytes > measured_bytes / 2;
        let mut largest: Vec<_> = self.evictable().filter(is_large).collect();
        largest.sort_unstable_by_key(|&(session, bytes)| (std::cmp::Reverse(bytes), session.index));
        let mut freed = 0;
        for (session, bytes) in largest {
            if freed > 0 && freed >= excess {
                break;
            }
            freed += bytes;
            let peer = self.sessions[session.index].address();
            let text = format!(
                "closed {peer}: client buffers take too much memory, and its own {bytes} bytes are among the most"
            );
            self.core.effects.push(Effect::Log {
                level: LogLevel::Warn,
                text,
            });
            self.core.stats.counters.evicted_clients += 1;
            self.end_session(now, session, true);
        }
        let bytes = self.core.client_bytes;
        self.buffers.told(bytes);
        self.core
            .send_node(0, NodeMessage::LargestClientsClosed { bytes });
    }

    /// Sessions that may be closed for what they hold, and how much that is.
    fn evictable(&self) -> impl Iterator<Item = (SessionId, u64)> {
        let sessions = self.sessions.iter_from(0, u32::MAX).map(|(_, session)| session);
        sessions
            .filter(|session| !session.client.no_evict)
            .map(|session| (session.id, session.charged_bytes()))
    }
}
