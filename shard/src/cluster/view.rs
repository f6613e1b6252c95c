//! What CLUSTER NODES and INFO show.

use super::conf::{NodeLine, write_bans, write_vars};
use super::{Counts, Membership, Node};
use crate::bus::PeerState;

/// The cluster as shard 0 sees it, for one answer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ClusterView {
    /// The lines of CLUSTER NODES.
    pub nodes: String,
    /// Members, this node included.
    pub size: u64,
    /// Nodes that are being met.
    pub meets: u64,
    /// Members that are alive, without this node.
    pub alive: u64,
    /// Members that are suspect.
    pub suspect: u64,
    /// Members that are failed.
    pub failed: u64,
    /// Nodes that are banned in some generation.
    pub banned: u64,
    /// Packets of membership sent.
    pub sent: u64,
    /// Packets of membership received.
    pub received: u64,
    /// Those of them that were of no use.
    pub ignored: u64,
    /// CLUSTER MEETs that came to nothing.
    pub meets_failed: u64,
}

impl Membership {
    /// What is to be shown.
    pub fn view(&self) -> ClusterView {
        let count = |state| self.nodes.iter().filter(|node| node.state == state).count() as u64;
        let (alive, suspect, failed) = (
            count(PeerState::Alive),
            count(PeerState::Suspect),
            count(PeerState::Failed),
        );
        let Counts {
            sent,
            received,
            ignored,
            meets_failed,
        } = self.counts;
        ClusterView {
            nodes: self.nodes_text(),
            size: 1 + alive + suspect + failed,
            meets: self.meets.len() as u64,
            alive,
            suspect,
            failed,
            banned: self.bans.in_force() as u64,
            sent,
            received,
            ignored,
            meets_failed,
        }
    }

    fn nodes_text(&self) -> String {
        let mut text = String::new();
        self.my_line().write(&mut text);
        for node in self.nodes.iter().filter(|node| node.state != PeerState::Gone) {
            line_of(node).write(&mut text);
        }
        for meet in &self.meets {
            let line = NodeLine {
                id: meet.placeholder,
                host: &meet.host,
                port: meet.port,
                flags: vec!["handshake"],
                ping_sent: 0,
                pong_received: 0,
                connected: meet.up,
            };
            line.write(&mut text);
        }
        text
    }

    /// The text of `nodes.conf`.
    pub(super) fn conf_text(&self) -> String {
        let mut text = String::new();
        self.my_line().write(&mut text);
        write_vars(&self.me, &mut text);
        for node in self.nodes.iter().filter(|node| node.state != PeerState::Gone) {
            line_of(node).write(&mut text);
            write_vars(&node.record, &mut text);
        }
        write_bans(&self.bans, &mut text);
        text
    }

    fn my_line(&self) -> NodeLine<'_> {
        let mut flags = vec!["myself"];
        flags.extend(self.me.leaving.then_some("leaving"));
        NodeLine {
            id: self.me.id,
            host: &self.me.host,
            port: self.me.port,
            flags,
            ping_sent: 0,
            pong_received: 0,
            connected: true,
        }
    }
}

fn line_of(node: &Node) -> NodeLine<'_> {
    let mut flags = Vec::new();
    match node.state {
        PeerState::Suspect => flags.push("fail?"),
        PeerState::Failed => flags.push("fail"),
        PeerState::Alive | PeerState::Gone => {}
    }
    flags.extend(node.record.host.is_empty().then_some("noaddr"));
    flags.extend(node.record.leaving.then_some("leaving"));
    NodeLine {
        id: node.record.id,
        host: &node.record.host,
        port: node.record.port,
        flags,
        ping_sent: node.beat_wall_ms,
        pong_received: node.heard_wall_ms,
        connected: node.up,
    }
}
