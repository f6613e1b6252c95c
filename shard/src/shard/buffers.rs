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

    /// Closes the session that holds most, unless that is less than half of what it was when it was measured.
    pub(super) fn close_largest_client(&mut self, now: Now, measured_bytes: u64) {
        let largest = self.evictable().max_by_key(|&(_, bytes)| bytes);
        if let Some((session, bytes)) = largest.filter(|&(_, bytes)| bytes > measured_bytes / 2) {
            let peer = self.sessions[session.index].address();
            let text = format!(
                "closed {peer}: client buffers take too much memory, and its own {bytes} bytes are the most"
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
        self.core.send_node(0, NodeMessage::LargestClientClosed { bytes });
    }

    /// Sessions that may be closed for what they hold, and how much that is.
    fn evictable(&self) -> impl Iterator<Item = (SessionId, u64)> {
        let sessions = self.sessions.iter_from(0, u32::MAX).map(|(_, session)| session);
        sessions
            .filter(|session| !session.client.no_evict)
            .map(|session| (session.id, session.charged_bytes()))
    }
}
