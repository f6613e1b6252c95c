//! What CLUSTER NODES, CLUSTER INFO and HELLO show.

use super::conf::{NodeLine, write_bans, write_vars};
use super::record::Record;
use super::{Counts, Membership, Node};
use crate::bus::PeerState;
use crate::id::NodeId;

/// The cluster as shard 0 sees it, for one answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClusterView {
    /// This node.
    pub me: NodeView,
    /// The other members.
    pub others: Vec<NodeView>,
    /// The lines of CLUSTER NODES but this node's.
    pub lines: String,
    /// Nodes that are being met.
    pub meets: u64,
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

/// A node, for HELLO.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeView {
    /// Its ID.
    pub id: NodeId,
    /// Where its clients connect; may be empty.
    pub host: String,
    /// Port of its clients; 0: none.
    pub port: u16,
    /// What is thought of it.
    pub state: PeerState,
    /// Whether it leaves.
    pub leaving: bool,
    /// Whether there is a link to it.
    pub connected: bool,
}

impl NodeView {
    fn of(record: &Record, state: PeerState, connected: bool) -> Self {
        Self {
            id: record.id,
            host: record.host.clone(),
            port: record.port,
            state,
            leaving: record.leaving,
            connected,
        }
    }

    /// HELLO's priority (reference, 1.10): the lower, the better to connect to.
    pub fn priority(&self) -> u32 {
        match self.state {
            _ if self.leaving => 100,
            PeerState::Failed | PeerState::Gone => 100,
            PeerState::Suspect => 10,
            PeerState::Alive if !self.connected => 5,
            PeerState::Alive => 1,
        }
    }
}

impl ClusterView {
    /// That of a node that knows no other and takes part in nothing.
    pub fn alone(id: NodeId, host: String, port: u16) -> Self {
        Self {
            me: NodeView {
                id,
                host,
                port,
                state: PeerState::Alive,
                leaving: false,
                connected: true,
            },
            others: Vec::new(),
            lines: String::new(),
            meets: 0,
            banned: 0,
            sent: 0,
            received: 0,
            ignored: 0,
            meets_failed: 0,
        }
    }

    /// The other members in this state.
    pub fn count(&self, state: PeerState) -> usize {
        self.others.iter().filter(|node| node.state == state).count()
    }

    /// The lines of CLUSTER NODES, this node's first.
    pub fn nodes(&self) -> String {
        let mut text = String::new();
        line_of_me(&self.me).write(&mut text);
        text.push_str(&self.lines);
        text
    }
}

impl Membership {
    /// What is to be shown.
    pub fn view(&self) -> ClusterView {
        let Counts {
            sent,
            received,
            ignored,
            meets_failed,
        } = self.counts;
        let members = || self.nodes.iter().filter(|node| node.state != PeerState::Gone);
        ClusterView {
            me: NodeView::of(&self.me, PeerState::Alive, true),
            others: members()
                .map(|node| NodeView::of(&node.record, node.state, node.up))
                .collect(),
            lines: self.lines(),
            meets: self.meets.len() as u64,
            banned: self.bans.in_force() as u64,
            sent,
            received,
            ignored,
            meets_failed,
        }
    }

    fn lines(&self) -> String {
        let mut text = String::new();
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
        let me = NodeView::of(&self.me, PeerState::Alive, true);
        line_of_me(&me).write(&mut text);
        write_vars(&self.me, &mut text);
        for node in self.nodes.iter().filter(|node| node.state != PeerState::Gone) {
            line_of(node).write(&mut text);
            write_vars(&node.record, &mut text);
        }
        write_bans(&self.bans, &mut text);
        text
    }
}

fn line_of_me(me: &NodeView) -> NodeLine<'_> {
    let mut flags = vec!["myself"];
    flags.extend(me.leaving.then_some("leaving"));
    NodeLine {
        id: me.id,
        host: &me.host,
        port: me.port,
        flags,
        ping_sent: 0,
        pong_received: 0,
        connected: true,
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
