//! CLUSTER MEET: the only way into a cluster.
//!
//! ```text
//! here                                    there
//! MEET host port   dials it, learns who it is, lifts its ban
//!                  Meet -------------->   lifts our ban, takes us in, dials us
//!                  <-------------- Beat   over its own link
//! takes it in      Tell -------------->
//! ```
//!
//! It is said again until it is done, or until the time is over: then the log says why, and CLUSTER INFO counts it.

use rand_chacha::rand_core::RngCore;

use super::packet::Kind;
use super::record::{Ban, Record};
use super::{Act, Membership, Use};
use crate::bus::{Dial, LinkKind, LinkNo};
use crate::clock::{Mono, Now};
use crate::error::CommandError;
use crate::id::NodeId;
use crate::input::LogLevel;
use crate::limits;

/// A MEET is tried for the node timeout, and at least this long.
const LEAST_MS: u64 = 5_000;
/// How often it is said again.
const AGAIN_MS: u64 = 250;

/// A MEET under way.
#[derive(Debug)]
pub(super) struct Meet {
    /// Stands for the node in CLUSTER NODES until its ID is known, as in the original.
    pub placeholder: NodeId,
    pub host: String,
    pub port: u16,
    bus_port: u16,
    pub link: LinkNo,
    pub up: bool,
    until: Mono,
    /// Who answered.
    node: Option<NodeId>,
    said_at: Mono,
    why: String,
}

impl Membership {
    /// CLUSTER MEET. One that is under way already is not begun again.
    pub fn meet(&mut self, now: Now, host: &str, port: u16, bus_port: u16) -> Result<(), CommandError> {
        let is_same = |meet: &&Meet| meet.host == host && meet.bus_port == bus_port;
        if self.meets.iter().any(|meet| is_same(&meet)) {
            return Ok(());
        }
        if self.resetting.is_some() {
            return Err(CommandError::other("the node is being reset, try again"));
        }
        if self.meets.len() >= limits::CLUSTER_WAITING {
            return Err(CommandError::other("too many nodes are being met, try again"));
        }
        if self.bans.bans(self.me.id, self.me.generation) {
            self.bans.set(self.me.id, 0);
            self.announce(now, self.me.id);
            self.dirty = true;
        }
        let mut bytes = [0; 20];
        self.chance.fill_bytes(&mut bytes);
        let link = self.new_link(Use::Meet);
        self.meets.push(Meet {
            placeholder: NodeId::from_bytes(bytes),
            host: host.to_owned(),
            port,
            bus_port,
            link,
            up: false,
            until: now.mono().after_ms(self.timeout_ms().max(LEAST_MS)),
            node: None,
            said_at: now.mono(),
            why: "nobody answers".to_owned(),
        });
        self.acts.push(Act::Dial(Dial {
            link,
            kind: LinkKind::Membership,
            host: host.to_owned(),
            port: bus_port,
            expect: None,
        }));
        self.last_tick = self.last_tick.max(now.mono());
        self.save_when_due();
        Ok(())
    }

    /// Someone is there.
    pub(super) fn meet_answered(&mut self, now: Now, link: LinkNo, node: NodeId) {
        if node == self.me.id {
            return self.meet_failed(link, "that is this node itself");
        }
        if self.bans.get(node).is_some_and(|ban| ban.up_to > 0) {
            self.bans.set(node, 0);
            self.announce(now, node);
            self.dirty = true;
        }
        let (host, port) = (self.me.host.clone(), self.me.bus_port);
        let Some(meet) = self.meets.iter_mut().find(|meet| meet.link == link) else {
            return;
        };
        meet.up = true;
        meet.node = Some(node);
        meet.why = format!("node {node} answers there, and does not reach this one at {host}:{port}");
        self.say_meet(now, link, node);
    }

    fn say_meet(&mut self, now: Now, link: LinkNo, node: NodeId) {
        let packet = self.packet_for(now, node, Kind::Meet);
        self.post(link, &packet);
    }

    /// Its link is not up.
    pub(super) fn meet_went(&mut self, link: LinkNo, why: String) {
        if let Some(meet) = self.meets.iter_mut().find(|meet| meet.link == link) {
            meet.up = false;
            meet.why = why;
        }
    }

    /// Whether a node is being met.
    pub(super) fn meets_now(&self, id: NodeId) -> bool {
        self.meets.iter().any(|meet| meet.node == Some(id))
    }

    /// A member was heard: it is met.
    pub(super) fn met(&mut self, id: NodeId) {
        while let Some(at) = self.meets.iter().position(|meet| meet.node == Some(id)) {
            let meet = self.meets.remove(at);
            self.hang_up(meet.link);
            self.tell(
                LogLevel::Info,
                format!("met node {id} at {}:{}", meet.host, meet.bus_port),
            );
        }
    }

    fn meet_failed(&mut self, link: LinkNo, why: &str) {
        let Some(at) = self.meets.iter().position(|meet| meet.link == link) else {
            return;
        };
        let meet = self.meets.remove(at);
        self.hang_up(link);
        self.counts.meets_failed += 1;
        self.tell(
            LogLevel::Warn,
            format!(
                "CLUSTER MEET of {}:{} came to nothing: {why}",
                meet.host, meet.bus_port
            ),
        );
    }

    pub(super) fn look_after_meets(&mut self, now: Now) {
        let over: Vec<_> = self
            .meets
            .iter()
            .filter(|meet| now.mono() >= meet.until)
            .map(|meet| (meet.link, meet.why.clone()))
            .collect();
        for (link, why) in over {
            self.meet_failed(link, &why);
        }
        let due = |meet: &&mut Meet| meet.up && now.mono().since_ms(meet.said_at) >= AGAIN_MS;
        let mut again = Vec::new();
        for meet in self.meets.iter_mut().filter(due) {
            meet.said_at = now.mono();
            again.extend(meet.node.map(|node| (meet.link, node)));
        }
        for (link, node) in again {
            self.say_meet(now, link, node);
        }
    }

    /// The MEET of another node: it is taken in, whatever was before.
    pub(super) fn be_met(&mut self, now: Now, sender: &Record, bans: &[(NodeId, Ban)]) {
        let id = sender.id;
        for &(of, ban) in bans {
            if of == id || (of == self.me.id && ban.up_to == 0) {
                self.dirty |= self.bans.merge(of, ban);
            }
        }
        if self.bans.bans(id, sender.generation) {
            // What a node said before it was reset, or while it is: by now it has another generation, or another ID. An earlier MEET may have
            // made it a member.
            if self.bans.get(id).is_some_and(|ban| ban.up_to != Ban::ALL) {
                return self.banned(now, id);
            }
            self.bans.set(id, 0);
            self.announce(now, id);
            self.dirty = true;
        }
        if !self.is_member(id) && self.admit(now, sender.clone()) {
            self.tell(
                LogLevel::Info,
                format!("node {id} at {}:{} met this one", sender.host, sender.bus_port),
            );
        }
    }
}
