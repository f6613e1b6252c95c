//! Who there is: records, admission, links, and what the shards are told.

use std::net::IpAddr;

use super::packet::Rumour;
use super::record::Record;
use super::{Act, Membership, Node, Use, hash_of, is_host};
use crate::bus::{Dial, LinkKind, Peer, PeerNo, PeerState, Topology};
use crate::clock::Now;
use crate::id::NodeId;
use crate::input::LogLevel;
use crate::limits;

impl Membership {
    /// Whether a node is one of the cluster.
    pub(super) fn is_member(&self, id: NodeId) -> bool {
        self.number_of(id).is_some()
    }

    /// The number of a member.
    pub(super) fn number_of(&self, id: NodeId) -> Option<PeerNo> {
        let no = self.numbers.get(&id).copied()?;
        (self.node(no).state != PeerState::Gone).then_some(no)
    }

    pub(super) fn node(&self, no: PeerNo) -> &Node {
        &self.nodes[usize::from(no.0)]
    }

    pub(super) fn node_mut(&mut self, no: PeerNo) -> &mut Node {
        &mut self.nodes[usize::from(no.0)]
    }

    /// The numbers of the members.
    pub(super) fn members(&self) -> Vec<PeerNo> {
        let is_member = |(_, node): &(usize, &Node)| node.state != PeerState::Gone;
        let members = self.nodes.iter().enumerate().filter(is_member);
        members.map(|(no, _)| PeerNo(no as u16)).collect()
    }

    /// Takes a node in; `false` when there are too many.
    pub(super) fn admit(&mut self, now: Now, record: Record) -> bool {
        let id = record.id;
        let number = self.numbers.get(&id).copied();
        let is_full = self.members().len() + 1 >= limits::CLUSTER_NODES
            || (number.is_none() && self.nodes.len() >= limits::PEERS_EVER);
        if is_full {
            self.tell(
                LogLevel::Warn,
                format!("node {id} is not taken in: there are too many"),
            );
            return false;
        }
        let node = Node {
            record,
            state: PeerState::Alive,
            failed_at: None,
            lost: false,
            heard_at: now.mono(),
            heard_wall_ms: 0,
            heard_by_others_at: None,
            beat_at: None,
            beat_wall_ms: 0,
            link: None,
            up: false,
        };
        let no = number.unwrap_or(PeerNo(self.nodes.len() as u16));
        if number.is_some() {
            *self.node_mut(no) = node;
        } else {
            self.numbers.insert(id, no);
            self.nodes.push(node);
        }
        self.announce(now, id);
        (self.topology_changed, self.dirty) = (true, true);
        if let Some(farewell) = self.farewells.remove(&id) {
            self.hang_up(farewell.link);
        }
        self.dial_after_next_save.push(no);
        true
    }

    /// Keeps a link to a member, at the place where it says it is.
    pub(super) fn dial(&mut self, no: PeerNo) {
        let node = self.node(no);
        let Record {
            id,
            ref host,
            bus_port,
            ..
        } = node.record;
        if host.is_empty() || bus_port == 0 {
            return;
        }
        let host = host.clone();
        let link = node.link.unwrap_or_else(|| self.new_link(Use::Node(id)));
        self.node_mut(no).link = Some(link);
        self.acts.push(Act::Dial(Dial {
            link,
            kind: LinkKind::Membership,
            host,
            port: bus_port,
            expect: Some(id),
        }));
    }

    /// A record that came from its node, or by another one.
    pub(super) fn merge_record(&mut self, now: Now, record: Record) {
        let Some(no) = self.number_of(record.id) else {
            return;
        };
        let known = &self.node(no).record;
        if !record.is_newer_than(known) {
            return;
        }
        let moved = (&known.host, known.bus_port) != (&record.host, record.bus_port);
        let differs = {
            let same = Record {
                version: known.version,
                memory_level: known.memory_level,
                ..record.clone()
            };
            same != *known
        };
        if moved {
            let text = format!("node {} is at {}:{} now", record.id, record.host, record.bus_port);
            self.tell(LogLevel::Info, text);
        }
        if differs {
            self.announce(now, record.id);
        }
        self.dirty |= differs;
        self.topology_changed = true;
        self.node_mut(no).record = record;
        if moved && self.node(no).link.is_some() {
            self.node_mut(no).up = false;
            self.dial(no);
        } else if moved {
            self.dial_after_next_save.push(no);
        }
    }

    /// What another node says of one.
    pub(super) fn merge_rumour(&mut self, now: Now, rumour: Rumour) {
        let Rumour { record, silence_ms } = rumour;
        let id = record.id;
        if id == self.me.id {
            return self.heard_of_myself(now, &record);
        }
        if self.bans.bans(id, record.generation) {
            return;
        }
        if self.is_member(id) {
            self.merge_record(now, record);
        } else if record.host.is_empty() || !self.admit(now, record) {
            return;
        }
        if silence_ms != Rumour::NEVER {
            let no = self.numbers[&id];
            let at = crate::clock::Mono(now.mono().0.saturating_sub(u64::from(silence_ms)));
            let node = self.node_mut(no);
            node.heard_by_others_at = node.heard_by_others_at.max(Some(at));
        }
    }

    /// The others have a newer record of this node than it has: `nodes.conf` is an old one.
    fn heard_of_myself(&mut self, now: Now, record: &Record) {
        if record.is_newer_than(&self.me) {
            self.me.generation = record.generation + 1;
            self.changed_myself(now);
        }
    }

    /// Says something of a node, or its ban, to everyone at once, and again for a while.
    pub(super) fn announce(&mut self, now: Now, id: NodeId) {
        let until = now.mono().after_ms(2 * self.timeout_ms());
        self.news.retain(|(known, _)| *known != id);
        self.news.push((id, until));
        if self.news.len() > limits::PACKET_NODES {
            self.news.remove(0);
        }
    }

    /// Something of this node is new: everyone is told.
    pub(super) fn changed_myself(&mut self, now: Now) {
        self.me.version += 1;
        (self.topology_changed, self.dirty) = (true, true);
        self.tell_all(now);
    }

    /// Makes the record say what the settings and links say.
    pub(super) fn describe(&mut self) {
        let Facts {
            host,
            port,
            bus_port,
            machine,
            zone,
            ..
        } = self.facts.clone();
        let learnt = self.learnt.map(|ip| ip.to_string());
        let host = match (host.is_empty(), learnt) {
            (false, _) => host,
            (true, Some(learnt)) => learnt,
            (true, None) => self.me.host.clone(),
        };
        let next = Record {
            host,
            port,
            bus_port,
            machine,
            zone,
            ..self.me.clone()
        };
        if next != self.me {
            self.me = next;
            self.me.version += 1;
            (self.topology_changed, self.dirty) = (true, true);
        }
    }

    /// Our address as a link has it. A loopback address gives way to any other; another one stays until the next start.
    pub(super) fn learn_address(&mut self, now: Now, local: Option<IpAddr>) {
        let Some(local) = local else { return };
        if self
            .learnt
            .is_none_or(|learnt| learnt.is_loopback() && !local.is_loopback())
        {
            self.learnt = Some(local);
            let before = self.me.version;
            self.describe();
            if self.me.version != before {
                self.tell_all(now);
            }
        }
    }

    /// What the shards are to know, when it has changed. While RESET is not on disk, nothing.
    pub fn take_topology(&mut self) -> Option<Topology> {
        if !self.running || self.flushing.is_some() || !std::mem::take(&mut self.topology_changed) {
            return None;
        }
        let peer = |(no, node): (usize, &Node)| {
            let record = node.record.clone();
            Peer {
                no: PeerNo(no as u16),
                id: record.id,
                epoch: record.epoch,
                bus: (record.host.clone(), record.bus_port),
                clients: (record.host, record.port),
                host: record.machine,
                zone: record.zone,
                state: node.state,
                leaving: record.leaving,
                memory_level: record.memory_level,
                lost: node.lost,
            }
        };
        Some(Topology {
            node: self.me.id,
            epoch: self.me.epoch,
            host: self.me.machine,
            zone: self.me.zone,
            leaving: self.me.leaving,
            peers: self.nodes.iter().enumerate().map(peer).collect(),
        })
    }
}

use super::Facts;

impl Facts {
    /// `host-id` or `zone` as the number that records carry; 0: none.
    pub fn domain(text: &str) -> u64 {
        if text.is_empty() { 0 } else { hash_of(text) }
    }

    /// Whether a text may be announced as a host.
    pub fn can_announce(host: &str) -> bool {
        host.is_empty() || is_host(host)
    }
}
