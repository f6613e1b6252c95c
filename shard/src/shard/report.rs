//! What a shard tells of itself: parts of INFO, CLIENT LIST, SLOWLOG and LATENCY, and the feed of MONITOR.

use bytes::Bytes;

use crate::clock::Now;
use crate::commands::view::Part;
use crate::commands::{Gather, client};
use crate::node::NodeMessage;
use crate::session::Session;
use crate::shard::Shard;
use crate::stats::Gauges;

impl Shard {
    /// A part of an answer about the whole node.
    pub(super) fn gather(&mut self, now: Now, ask: &Gather) -> Part {
        match ask {
            Gather::Stats => {
                let gauges = self.gauges();
                Part::Stats(Box::new(self.core.snapshot(now, gauges)))
            }
            Gather::Clients(filter) => {
                let fitting = self.sessions().filter(|session| client::fits(filter, session));
                Part::Clients(
                    fitting
                        .map(|session| (session.client.id, client::line(session, now)))
                        .collect(),
                )
            }
            Gather::Slow(count) => Part::Slow(self.core.stats.slowlog.newest(*count)),
            Gather::Latency => Part::Latency(self.core.stats.latency.events()),
            Gather::Cluster => Part::Cluster(self.cluster_view().map(Box::new)),
            Gather::Commands => Part::Commands(Box::new(self.core.stats.commands.clone())),
        }
    }

    fn sessions(&self) -> impl Iterator<Item = &Session> {
        self.sessions.iter_from(0, u32::MAX).map(|(_, session)| session)
    }

    fn gauges(&self) -> Gauges {
        let home = &self.core.home;
        let there = home.gauges();
        Gauges {
            sessions: self.sessions.len() as u64,
            blocked_sessions: self.sessions().filter(|session| session.is_blocked()).count() as u64,
            longest_output_bytes: self
                .sessions()
                .map(|s| s.output_bytes() as u64)
                .max()
                .unwrap_or(0),
            biggest_input_bytes: self.sessions().map(|s| s.input_bytes() as u64).max().unwrap_or(0),
            jobs: there.jobs,
            queues: there.queues,
            queued_jobs: there.queued,
            acked_jobs: there.acked,
            jobs_in_transfer: there.transfers,
            transfer_answers: there.transfer_answers,
            adding_jobs: there.adding,
            jobs_on_one_host: there.on_one_host,
            used_bytes: home.memory.used(),
            log: self.log_gauges(),
            ..Gauges::default()
        }
    }

    /// Sends the lines of this turn to the shards that have monitors.
    pub(super) fn flush_feed(&mut self) {
        if self.core.feed.lines.is_empty() && self.core.feed.dropped == 0 {
            return;
        }
        let (lines, dropped) = self.core.feed.take();
        let bytes = lines.iter().map(Bytes::len).sum();
        for shard in self.core.feed.shards.clone() {
            let (lines, dropped) = if self.core.mesh.admit_feed(shard, bytes) {
                (lines.clone(), dropped)
            } else {
                (Vec::new(), dropped + lines.len() as u64)
            };
            self.core.send_node(shard, NodeMessage::Feed { lines, dropped });
        }
    }

    /// Shows lines to this shard's monitors.
    pub(super) fn show_feed(&mut self, now: Now, lines: &[Bytes], dropped: u64) {
        self.core.stats.counters.monitor_lines_dropped += dropped;
        if self.core.feed.monitors.is_empty() {
            // The session that asked was gone before the node had changed.
            self.core.ask_for_no_feed();
        }
        for monitor in self.core.feed.monitors.clone() {
            self.with(now, monitor, |engine| engine.show_feed(lines, dropped));
        }
    }
}
