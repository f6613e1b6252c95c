//! FORGET and RESET: the ways out of a cluster.
//!
//! FORGET bans a node in every generation and says so to all, the node too: it forgets the others then. RESET bans this node in all its
//! generations so far, waits a little until the others have confirmed that (each by a farewell), and only then forgets them: SOFT goes on
//! with the next generation, HARD with another ID. A node that did not hear of the ban still sends packets, and is turned away with a
//! farewell that tells it. (Who was not there at a HARD RESET keeps the old ID as failed, until it hears of the ban from another node.)

use std::collections::BTreeSet;

use rand_chacha::rand_core::RngCore;

use super::packet::{Kind, Packet};
use super::record::{Ban, Record};
use super::{Act, Membership, Use};
use crate::bus::{Dial, LinkKind, LinkNo, PeerNo, PeerState};
use crate::clock::{Mono, Now};
use crate::error::CommandError;
use crate::id::NodeId;
use crate::input::LogLevel;
use crate::limits;
use crate::message::Ticket;

/// How long a RESET waits for the others at the most.
const RESET_MS: u64 = 1_000;
/// How often a node that is turned away is told why.
const AGAIN_MS: u64 = 500;
/// How long a link is kept to a node that has heard why.
const KEPT_MS: u64 = 10_000;

/// A link to a node that is no member.
#[derive(Debug)]
pub(super) struct Farewell {
    pub link: LinkNo,
    pub up: bool,
    until: Mono,
    said_at: Option<Mono>,
}

/// A RESET that waits for the others.
#[derive(Debug)]
pub(super) struct Resetting {
    ticket: Ticket,
    hard: bool,
    until: Mono,
    /// Who has not confirmed.
    waits_for: BTreeSet<NodeId>,
}

impl Membership {
    /// CLUSTER FORGET.
    pub fn forget(&mut self, now: Now, ticket: Ticket, id: NodeId) {
        let error = if id == self.me.id {
            Some("a node cannot forget itself: CLUSTER RESET makes it leave".to_owned())
        } else if !self.is_member(id) {
            Some(format!("Unknown node {id}"))
        } else {
            None
        };
        if let Some(text) = error {
            let error = CommandError::other(text);
            return self.acts.push(Act::Done(ticket, Err(error)));
        }
        self.bans.set(id, Ban::ALL);
        self.banned(now, id);
        self.tell_all(now);
        self.save_for(ticket);
    }

    /// CLUSTER RESET.
    pub fn reset(&mut self, now: Now, ticket: Ticket, hard: bool) {
        if self.resetting.is_some() || self.flushing.is_some() || self.silent {
            let error = CommandError::other("the node starts, or is being reset already");
            return self.acts.push(Act::Done(ticket, Err(error)));
        }
        self.bans.set(self.me.id, self.me.generation);
        self.announce(now, self.me.id);
        let is_there = |&no: &PeerNo| self.node(no).up && self.node(no).state == PeerState::Alive;
        let waits_for = self
            .members()
            .into_iter()
            .filter(is_there)
            .map(|no| self.node(no).record.id)
            .collect();
        self.resetting = Some(Resetting {
            ticket,
            hard,
            until: now.mono().after_ms(RESET_MS),
            waits_for,
        });
        self.tell_all(now);
        self.look_after_reset(now);
    }

    /// A node knows what this one says of itself before it is reset.
    pub(super) fn reset_confirmed(&mut self, now: Now, from: NodeId, bans: &[(NodeId, Ban)]) {
        let Some(mine) = self.bans.get(self.me.id) else {
            return;
        };
        let knows = bans.iter().any(|&(of, ban)| of == self.me.id && ban >= mine);
        if let Some(resetting) = self.resetting.as_mut().filter(|_| knows) {
            resetting.waits_for.remove(&from);
            self.look_after_reset(now);
        }
    }

    pub(super) fn look_after_reset(&mut self, now: Now) {
        let is_due =
            |resetting: &mut Resetting| resetting.waits_for.is_empty() || now.mono() >= resetting.until;
        if let Some(resetting) = self.resetting.take_if(is_due) {
            self.finish_reset(now, &resetting);
        }
    }

    fn finish_reset(&mut self, now: Now, resetting: &Resetting) {
        for no in self.members() {
            self.node_mut(no).state = PeerState::Gone;
            self.node_mut(no).up = false;
            if let Some(link) = self.node_mut(no).link.take() {
                self.hang_up(link);
            }
        }
        for meet in std::mem::take(&mut self.meets) {
            self.hang_up(meet.link);
        }
        for farewell in std::mem::take(&mut self.farewells).into_values() {
            self.hang_up(farewell.link);
        }
        self.news.clear();
        self.me.generation += 1;
        self.me.version += 1;
        self.me.epoch = now.wall_ms().max(self.me.epoch + 1);
        if resetting.hard {
            let mut bytes = [0; 20];
            self.chance.fill_bytes(&mut bytes);
            self.me.id = NodeId::from_bytes(bytes);
        }
        self.tell(
            LogLevel::Warn,
            format!(
                "reset: this node is {} from now on, and knows no other",
                self.me.id
            ),
        );
        self.topology_changed = true;
        self.flush_when_saved(resetting.ticket);
    }

    /// DEBUG FLUSHALL: the node is to lose what others count on, so it takes a new store epoch. They hear of it, and the shards flush, when it has
    /// been saved: after a crash in between no log speaks for that epoch.
    pub fn flush(&mut self, now: Now, ticket: Ticket) {
        if self.resetting.is_some() || self.flushing.is_some() {
            if self.flushes.len() >= limits::CLUSTER_WAITING {
                let error = CommandError::other("too many changes of the cluster are under way, try again");
                return self.acts.push(Act::Done(ticket, Err(error)));
            }
            return self.flushes.push_back(ticket);
        }
        self.me.epoch = now.wall_ms().max(self.me.epoch + 1);
        self.changed_myself(now);
        self.flush_when_saved(ticket);
    }

    /// A flush was performed: the next FLUSHALL may begin.
    pub fn flushed(&mut self, now: Now) {
        if self.flushing.is_none()
            && self.resetting.is_none()
            && let Some(ticket) = self.flushes.pop_front()
        {
            self.flush(now, ticket);
        }
    }

    fn flush_when_saved(&mut self, ticket: Ticket) {
        self.flushing = Some((ticket, false));
        self.dirty = true;
        self.save_when_due();
    }

    /// Takes in what a member says of bans.
    pub(super) fn merge_bans(&mut self, now: Now, bans: &[(NodeId, Ban)]) {
        for &(id, ban) in bans {
            if self.bans.merge(id, ban) {
                self.banned(now, id);
            }
        }
    }

    /// The ban of a node has changed: what follows.
    pub(super) fn banned(&mut self, now: Now, id: NodeId) {
        self.dirty = true;
        self.announce(now, id);
        if id == self.me.id {
            if self.bans.bans(id, self.me.generation) && self.resetting.is_none() {
                self.tell(
                    LogLevel::Warn,
                    "this node was forgotten by its cluster: it knows no other from now on".into(),
                );
                for no in self.members() {
                    self.lose(now, no);
                }
            }
        } else if let Some(no) = self.number_of(id)
            && self.bans.bans(id, self.node(no).record.generation)
        {
            self.tell(LogLevel::Warn, format!("node {id} is forgotten"));
            self.lose(now, no);
        }
    }

    /// A node is no member any more; the link to it is kept to tell it so.
    fn lose(&mut self, now: Now, no: PeerNo) {
        let node = self.node_mut(no);
        node.state = PeerState::Gone;
        node.failed_at = None;
        let id = node.record.id;
        let (link, up) = (node.link.take(), std::mem::take(&mut node.up));
        (self.topology_changed, self.dirty) = (true, true);
        if let Some(link) = link {
            self.links.insert(link, Use::Farewell(id));
            let farewell = Farewell {
                link,
                up,
                until: now.mono().after_ms(KEPT_MS),
                said_at: None,
            };
            if let Some(before) = self.farewells.insert(id, farewell) {
                self.hang_up(before.link);
            }
            self.say_farewell(now, id);
        }
    }

    /// A packet came of a node that is no member: when there is a reason to tell, it is told.
    pub(super) fn turn_away(&mut self, now: Now, id: NodeId, sender: &Record) {
        let has_reason = self.bans.get(id).is_some() || self.bans.get(self.me.id).is_some();
        if !has_reason || sender.host.is_empty() || sender.bus_port == 0 {
            return;
        }
        if !self.farewells.contains_key(&id) {
            if self.farewells.len() >= limits::CLUSTER_NODES {
                return;
            }
            let link = self.new_link(Use::Farewell(id));
            self.acts.push(Act::Dial(Dial {
                link,
                kind: LinkKind::Membership,
                host: sender.host.clone(),
                port: sender.bus_port,
                expect: Some(id),
            }));
            let farewell = Farewell {
                link,
                up: false,
                until: now.mono().after_ms(KEPT_MS),
                said_at: None,
            };
            self.farewells.insert(id, farewell);
        }
        self.say_farewell(now, id);
    }

    /// Tells a node that it is no member, when its link is up and it was not told just now.
    pub(super) fn say_farewell(&mut self, now: Now, id: NodeId) {
        let Some(farewell) = self.farewells.get_mut(&id) else {
            return;
        };
        let is_due = farewell
            .said_at
            .is_none_or(|at| now.mono().since_ms(at) >= AGAIN_MS);
        let link = farewell.link;
        if !farewell.up || !is_due {
            return;
        }
        farewell.said_at = Some(now.mono());
        let of = |id: NodeId| self.bans.get(id).map(|ban| (id, ban));
        let packet = Packet {
            kind: Kind::Farewell,
            sender: self.me.clone(),
            rumours: Vec::new(),
            bans: of(id).into_iter().chain(of(self.me.id)).collect(),
        };
        self.post(link, &packet);
    }

    pub(super) fn look_after_farewells(&mut self, now: Now) {
        let is_over = |farewell: &Farewell| now.mono() >= farewell.until;
        let over: Vec<_> = self
            .farewells
            .iter()
            .filter(|(_, farewell)| is_over(farewell))
            .map(|(&id, farewell)| (id, farewell.link))
            .collect();
        for (id, link) in over {
            self.farewells.remove(&id);
            self.hang_up(link);
        }
    }
}
