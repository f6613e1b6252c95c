//! Who is alive: heartbeats, and the time since the last one.

use std::collections::BTreeSet;

use super::packet::{Kind, Packet, Rumour};
use super::{Membership, Node};
use crate::bus::{PeerNo, PeerState};
use crate::clock::{Mono, Now};
use crate::id::NodeId;
use crate::input::LogLevel;
use crate::limits;

/// A shorter timeout is taken for this one: no machine answers reliably within less.
const LEAST_TIMEOUT_MS: u64 = 400;
/// Periods in a timeout: so many beats may be lost until a node is failed, half of them until it is suspect.
const PERIODS: u64 = 8;
/// Longest period: also with a long timeout a node is heard of soon.
const LONGEST_PERIOD_MS: u64 = 1_000;

impl Membership {
    pub(super) fn timeout_ms(&self) -> u64 {
        self.facts.timeout_ms.max(LEAST_TIMEOUT_MS)
    }

    fn period_ms(&self) -> u64 {
        (self.timeout_ms() / PERIODS).min(LONGEST_PERIOD_MS)
    }

    /// Time between two looks around.
    fn tick_ms(&self) -> u64 {
        self.period_ms() / 2
    }

    /// When `tick` is due; none when there is nobody to look for.
    pub fn next_deadline(&self) -> Option<Mono> {
        let is_idle = self.links.is_empty()
            && self.meets.is_empty()
            && self.resetting.is_none()
            && !self.nodes.iter().any(|node| node.state != PeerState::Gone);
        let tick =
            (self.running && !self.silent && !is_idle).then(|| self.last_tick.after_ms(self.tick_ms()));
        let again = self.save_again.filter(|_| !self.saving);
        tick.into_iter().chain(again).min()
    }

    /// Looks after all that time brings.
    pub fn tick(&mut self, now: Now) {
        if !self.running || self.silent {
            self.last_tick = now.mono();
            return self.save_when_due();
        }
        self.forgive_own_sleep(now);
        self.news.retain(|(_, until)| *until > now.mono());
        for no in self.members() {
            self.judge(now, no);
            self.beat_when_due(now, no);
        }
        self.look_after_meets(now);
        self.look_after_farewells(now);
        self.look_after_reset(now);
        self.save_when_due();
    }

    /// When this process was not running itself, the others are not to blame for their silence.
    fn forgive_own_sleep(&mut self, now: Now) {
        let gap_ms = now.mono().since_ms(self.last_tick);
        let is_idle = self.nodes.iter().all(|node| node.state == PeerState::Gone);
        if !is_idle && gap_ms > 2 * self.period_ms() {
            for node in &mut self.nodes {
                node.heard_at = node.heard_at.after_ms(gap_ms).min(now.mono());
            }
        }
        self.last_tick = now.mono();
    }

    /// A packet of a member came.
    pub(super) fn heard(&mut self, now: Now, no: PeerNo) {
        let node = self.node_mut(no);
        node.heard_at = now.mono();
        node.heard_wall_ms = now.wall_ms();
        node.beat_wall_ms = 0;
        self.set_state(now, no, PeerState::Alive);
    }

    fn judge(&mut self, now: Now, no: PeerNo) {
        let timeout_ms = self.timeout_ms();
        let node = self.node(no);
        let silence_ms = now.mono().since_ms(node.heard_at);
        let others_hear = node
            .heard_by_others_at
            .is_some_and(|at| now.mono().since_ms(at) < timeout_ms);
        let state = if silence_ms < timeout_ms / 2 {
            PeerState::Alive
        } else if silence_ms < timeout_ms || others_hear {
            PeerState::Suspect
        } else {
            PeerState::Failed
        };
        // A packet ends a failure, or others that hear it; a longer timeout does not.
        if node.state != PeerState::Failed || (state == PeerState::Suspect && others_hear) {
            self.set_state(now, no, state);
        }
        let repair_after_ms = self.facts.repair_after_ms;
        let node = self.node_mut(no);
        let lost = node
            .failed_at
            .is_some_and(|at| now.mono().since_ms(at) >= repair_after_ms);
        if lost != node.lost {
            node.lost = lost;
            self.topology_changed = true;
        }
    }

    fn set_state(&mut self, now: Now, no: PeerNo, state: PeerState) {
        let node = self.node_mut(no);
        let before = std::mem::replace(&mut node.state, state);
        if before == state {
            return;
        }
        let id = node.record.id;
        node.failed_at = (state == PeerState::Failed).then(|| now.mono());
        node.lost &= state == PeerState::Failed;
        self.topology_changed = true;
        let silence_ms = now.mono().since_ms(self.node(no).heard_at);
        match (before, state) {
            (_, PeerState::Failed) => {
                self.tell(
                    LogLevel::Warn,
                    format!("node {id} is failed: silent for {silence_ms} ms"),
                );
            }
            (_, PeerState::Suspect) => {
                self.tell(
                    LogLevel::Info,
                    format!("node {id} is suspect: silent for {silence_ms} ms"),
                );
            }
            _ => self.tell(LogLevel::Info, format!("node {id} is back")),
        }
    }

    fn beat_when_due(&mut self, now: Now, no: PeerNo) {
        let node = self.node(no);
        let last = node.beat_at.max(Some(node.heard_at)).unwrap_or(Mono(0));
        if node.up && now.mono().since_ms(last) >= self.period_ms() {
            self.send_to(now, no, Kind::Beat);
        }
    }

    /// Says the news to all members.
    pub(super) fn tell_all(&mut self, now: Now) {
        for no in self.members() {
            self.send_to(now, no, Kind::Tell);
        }
    }

    /// Says something to a member, when the link to it is up.
    pub(super) fn send_to(&mut self, now: Now, no: PeerNo, kind: Kind) {
        let node = self.node(no);
        let (true, Some(link)) = (node.up, node.link) else {
            return;
        };
        if self.silent {
            return;
        }
        if kind == Kind::Beat {
            let node = self.node_mut(no);
            node.beat_at = Some(now.mono());
            if node.beat_wall_ms == 0 {
                node.beat_wall_ms = now.wall_ms();
            }
        }
        let to = self.node(no).record.id;
        let packet = self.packet_for(now, to, kind);
        self.post(link, &packet);
    }

    pub(super) fn post(&mut self, link: crate::bus::LinkNo, packet: &Packet) {
        self.counts.sent += 1;
        self.outbox.push_back((link, packet.encode()));
    }

    /// The news first, then some of the others, in turns.
    pub(super) fn packet_for(&mut self, now: Now, to: NodeId, kind: Kind) -> Packet {
        let members = self.members();
        let bans: Vec<NodeId> = self.bans.iter().map(|(id, _)| id).collect();
        self.turn = self.turn.wrapping_add(1);
        let news = self.news.iter().map(|(id, _)| *id);
        let ids = members.iter().map(|&no| self.node(no).record.id).collect();
        let nodes = self.in_turns(news.clone(), ids, limits::PACKET_NODES);
        let banned = self.in_turns(news, bans, limits::PACKET_BANS);
        let rumour = |id: &NodeId| {
            let node = self.node(self.number_of(*id)?);
            let is_told = *id != to || self.news.iter().any(|(news, _)| *news == to);
            (is_told && !node.record.host.is_empty()).then(|| Rumour {
                record: node.record.clone(),
                silence_ms: silence_of(now, node),
            })
        };
        Packet {
            kind,
            sender: self.me.clone(),
            rumours: nodes.iter().filter_map(rumour).collect(),
            bans: banned
                .iter()
                .filter_map(|&id| self.bans.get(id).map(|ban| (id, ban)))
                .collect(),
        }
    }

    /// The first ones, then as many of the rest as there is room for, from a place that moves.
    fn in_turns(
        &self,
        first: impl Iterator<Item = NodeId>,
        rest: Vec<NodeId>,
        most: usize,
    ) -> BTreeSet<NodeId> {
        let mut chosen: BTreeSet<NodeId> = first.filter(|id| rest.contains(id)).collect();
        let place = self.turn.wrapping_mul(most) % rest.len().max(1);
        for id in rest[place..].iter().chain(&rest[..place]) {
            if chosen.len() >= most {
                break;
            }
            chosen.insert(*id);
        }
        chosen
    }
}

fn silence_of(now: Now, node: &Node) -> u32 {
    if node.heard_wall_ms == 0 || node.state == PeerState::Failed {
        return Rumour::NEVER;
    }
    u32::try_from(now.mono().since_ms(node.heard_at)).unwrap_or(Rumour::NEVER)
}
