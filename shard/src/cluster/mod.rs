//! Membership: which nodes there are, and which of them are alive. One machine, beside shard 0.
//!
//! It is our own, and not the crate foca (SWIM), after an honest look at it. What foca would give is the state of a node: alive, suspect,
//! down. What it would need around it outweighs that:
//! - links are a full mesh over TCP and each packet is a heartbeat, so nobody has to be probed through others, or heard of through rumours;
//! - its probe period cannot change at run time, while `cluster-node-timeout` can; it falls idle when the last live member goes, and does not heal;
//! - who is admitted, addresses, LEAVING, store epochs and bans need versions and gossip of their own in any case: a second one beside foca's;
//! - a live node that is declared down comes back under a new identity, which is what FORGET and RESET must prevent;
//! - it draws from a random generator of its own.
//!
//! # How it works
//!
//! A node has a link to each other node and says a [`Packet`] on it: what it knows of itself ([`Record`]), of some others in turns, and
//! bans. A packet of kind `Beat` is answered at once; one is sent when the other was silent for a *period*, an eighth of
//! `cluster-node-timeout`. A node that was silent for half the timeout is suspect (`fail?`), after all of it failed (`fail`), unless another
//! node has heard it within the timeout: then it stays suspect, since it is only us who cannot hear it. Any packet of it makes it alive.
//!
//! Records are made by their nodes alone; the newest wins. Nodes are admitted that were met (CLUSTER MEET, on either side), or that a
//! member names, unless they are banned. FORGET bans every generation of a node, RESET those up to its own; bans have a count, so
//! that of two the later word wins; only a MEET lifts one. Who is banned is told so (`Farewell`), and then forgets all the others.
//!
//! Nothing is said before `nodes.conf` holds the generation of this start. A write that fails is tried again every second: what waits for it
//! waits on, but for commands, which are told.
//!
//! Order of calls: `start` once, when the store epoch is known; then any number of inputs, each followed by `take_acts`, `take_packet` until
//! there is none, and `take_topology`; `tick` when `next_deadline` has come.
//!
//! Reading order: `record` - `packet` - `conf` - `members` (who there is) - `beat` (who is alive) - `meet` - `leave` (FORGET, RESET) - `view`.

mod beat;
pub mod conf;
mod leave;
mod meet;
mod members;
mod packet;
mod record;
#[cfg(test)]
mod tests;
pub mod view;

use std::collections::{BTreeMap, VecDeque};
use std::net::IpAddr;

use bytes::Bytes;
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::SeedableRng;

use crate::bus::{Dial, LinkEvent, LinkNo, PeerNo, PeerState, Sender};
use crate::clock::{Mono, Now};
use crate::error::CommandError;
use crate::id::NodeId;
use crate::input::LogLevel;
use crate::limits;
use crate::message::Ticket;
use conf::Nodes;
use leave::{Farewell, Resetting};
use meet::Meet;
use packet::{Kind, Packet};
use record::Bans;

pub use record::{Record, hash_of, is_host};

/// Links for jobs are numbered as their peers are; those of membership from here on.
pub const MEMBERSHIP_LINKS: u32 = 1 << 16;

/// When a write of `nodes.conf` that failed is tried again.
const SAVE_AGAIN_MS: u64 = 1_000;

/// What a node is besides its ID, and the settings that concern membership.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Facts {
    /// `announce-host`; empty: as the links have it.
    pub host: String,
    /// Port at which clients reach it; 0: none.
    pub port: u16,
    /// Port at which nodes reach it.
    pub bus_port: u16,
    /// `host-id`, as a hash.
    pub machine: u64,
    /// `zone`, as a hash; 0: none.
    pub zone: u64,
    /// `cluster-node-timeout`, milliseconds.
    pub timeout_ms: u64,
    /// `repair-after`, milliseconds.
    pub repair_after_ms: u64,
}

/// What is to be done.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Act {
    /// Keep a link.
    Dial(Dial),
    /// Give it up.
    HangUp(LinkNo),
    /// Replace `nodes.conf`; answered by `saved`.
    Save(String),
    /// A line for the server's log.
    Tell(LogLevel, String),
    /// A command is done.
    Done(Ticket, Result<(), CommandError>),
    /// RESET, DEBUG FLUSHALL: the node has this store epoch, and its jobs are to go. Then the command is done.
    Flush(Ticket, u64),
}

/// Another node that was known since the start.
#[derive(Debug)]
struct Node {
    record: Record,
    state: PeerState,
    /// Since when it is failed.
    failed_at: Option<Mono>,
    lost: bool,
    /// When a packet of it came last, or when it was admitted.
    heard_at: Mono,
    /// By the wall clock, milliseconds; 0: not since the start.
    heard_wall_ms: u64,
    /// When another node heard it last, as it says.
    heard_by_others_at: Option<Mono>,
    /// When it was sent a beat last.
    beat_at: Option<Mono>,
    beat_wall_ms: u64,
    link: Option<LinkNo>,
    up: bool,
}

/// What a link is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Use {
    Node(NodeId),
    Meet,
    Farewell(NodeId),
}

/// The membership of a node.
#[derive(Debug)]
pub(crate) struct Membership {
    me: Record,
    facts: Facts,
    /// Our address as the links have it.
    learnt: Option<IpAddr>,
    /// By number; those that are gone included.
    nodes: Vec<Node>,
    numbers: BTreeMap<NodeId, PeerNo>,
    bans: Bans,
    /// Nodes and bans that are said to everyone until then, before others have their turn.
    news: Vec<(NodeId, Mono)>,
    turn: usize,
    meets: Vec<Meet>,
    farewells: BTreeMap<NodeId, Farewell>,
    resetting: Option<Resetting>,
    links: BTreeMap<LinkNo, Use>,
    next_link: u32,
    running: bool,
    /// Nothing is said before `nodes.conf` was written.
    silent: bool,
    last_tick: Mono,
    dirty: bool,
    saving: bool,
    /// The last write failed: when the next is tried.
    save_again: Option<Mono>,
    /// Commands that wait for the next write of `nodes.conf`, and for the one that is under way.
    for_next_save: Vec<Ticket>,
    for_this_save: Vec<Ticket>,
    /// A RESET or FLUSHALL that is done when `nodes.conf` has been written: whether with this write.
    flushing: Option<(Ticket, bool)>,
    /// FLUSHALLs that come after it.
    flushes: VecDeque<Ticket>,
    /// Nodes that are dialed when they have been saved: whoever hears of this node is remembered by it.
    dial_after_next_save: Vec<PeerNo>,
    dial_after_this_save: Vec<PeerNo>,
    topology_changed: bool,
    acts: Vec<Act>,
    outbox: VecDeque<(LinkNo, Bytes)>,
    chance: ChaCha8Rng,
    counts: Counts,
}

/// What CLUSTER INFO counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    /// Packets sent.
    pub sent: u64,
    /// Packets received.
    pub received: u64,
    /// Packets of no use: unsound, or of a node that is not known.
    pub ignored: u64,
    /// CLUSTER MEETs that came to nothing.
    pub meets_failed: u64,
}

impl Membership {
    /// The membership of a node that starts, as `nodes.conf` has it. `id` is that of the file, or a new one.
    pub fn new(id: NodeId, nodes: Nodes, facts: Facts, seed: [u8; 32], now: Now) -> Self {
        let before = nodes.me.filter(|me| me.id == id);
        let mut chance = ChaCha8Rng::from_seed(seed);
        chance.set_stream(2);
        let me = Record {
            id,
            generation: before.as_ref().map_or(0, |me| me.generation) + 1,
            version: 1,
            host: before.as_ref().map_or_else(String::new, |me| me.host.clone()),
            port: 0,
            bus_port: 0,
            leaving: before.is_some_and(|me| me.leaving),
            epoch: 0,
            machine: 0,
            zone: 0,
            memory_level: 0,
        };
        let mut this = Self {
            me,
            facts,
            learnt: None,
            nodes: Vec::new(),
            numbers: BTreeMap::new(),
            bans: nodes.bans,
            news: Vec::new(),
            turn: 0,
            meets: Vec::new(),
            farewells: BTreeMap::new(),
            resetting: None,
            links: BTreeMap::new(),
            next_link: MEMBERSHIP_LINKS,
            running: false,
            silent: true,
            last_tick: now.mono(),
            dirty: true,
            saving: false,
            save_again: None,
            for_next_save: Vec::new(),
            for_this_save: Vec::new(),
            flushing: None,
            flushes: VecDeque::new(),
            dial_after_next_save: Vec::new(),
            dial_after_this_save: Vec::new(),
            topology_changed: true,
            acts: Vec::new(),
            outbox: VecDeque::new(),
            chance,
            counts: Counts::default(),
        };
        this.describe();
        for record in nodes.others {
            if record.id != id && !this.bans.bans(record.id, record.generation) {
                this.admit(now, record);
            }
        }
        this
    }

    /// The store epoch is known, for the first time or anew: the node takes part.
    pub fn start(&mut self, now: Now, epoch: u64) {
        if self.running && epoch <= self.me.epoch {
            // A later one, of a RESET or FLUSHALL, is on its way to the caller.
            return;
        }
        self.me.epoch = epoch;
        if self.running {
            self.changed_myself(now);
        } else {
            self.running = true;
            self.last_tick = now.mono();
            for node in &mut self.nodes {
                node.heard_at = now.mono();
            }
        }
        self.topology_changed = true;
        self.dirty = true;
        self.save_when_due();
    }

    /// Whether `start` was called.
    pub fn is_running(&self) -> bool {
        self.running
    }

    /// Settings may have changed.
    pub fn configure(&mut self, now: Now, facts: Facts) {
        if self.facts == facts {
            return;
        }
        self.facts = facts;
        self.describe();
        self.tick(now);
    }

    /// The node's memory level has changed.
    pub fn set_memory_level(&mut self, level: u8) {
        if self.me.memory_level != level {
            self.me.memory_level = level;
            self.me.version += 1;
        }
    }

    /// CLUSTER LEAVING yes, no.
    pub fn set_leaving(&mut self, now: Now, ticket: Ticket, leaving: bool) {
        if self.me.leaving != leaving {
            self.me.leaving = leaving;
            self.changed_myself(now);
        }
        self.save_for(ticket);
    }

    /// CLUSTER SAVECONFIG.
    pub fn save(&mut self, ticket: Ticket) {
        self.dirty = true;
        self.save_for(ticket);
    }

    /// A write of `nodes.conf` has ended.
    pub fn saved(&mut self, now: Now, result: Result<(), String>) {
        self.saving = false;
        if let Err(why) = result {
            return self.not_saved(now, &why);
        }
        if self.save_again.take().is_some() {
            let text = "the cluster's configuration is written again".to_owned();
            self.acts.push(Act::Tell(LogLevel::Info, text));
        }
        for ticket in std::mem::take(&mut self.for_this_save) {
            self.acts.push(Act::Done(ticket, Ok(())));
        }
        if let Some((ticket, _)) = self.flushing.take_if(|(_, is_in_this)| *is_in_this) {
            self.acts.push(Act::Flush(ticket, self.me.epoch));
            self.topology_changed = true;
        }
        if self.silent && self.running {
            self.silent = false;
            self.topology_changed = true;
        }
        for no in std::mem::take(&mut self.dial_after_this_save) {
            if self.node(no).state != PeerState::Gone {
                self.dial(no);
            }
        }
        self.tick(now);
        self.save_when_due();
    }

    /// A full disk, most likely: commands that wait are told, all else waits until a later write succeeds.
    fn not_saved(&mut self, now: Now, why: &str) {
        if self.save_again.is_none() {
            let silence = if self.silent {
                "; until then this node takes no part in the cluster"
            } else {
                ""
            };
            let text = format!(
                "the cluster's configuration cannot be written, and is tried again every second: {why}{silence}"
            );
            self.acts.push(Act::Tell(LogLevel::Error, text));
        }
        self.save_again = Some(now.mono().after_ms(SAVE_AGAIN_MS));
        self.dirty = true;
        let error = format!("The cluster's configuration cannot be written: {why}");
        for ticket in std::mem::take(&mut self.for_this_save) {
            self.acts
                .push(Act::Done(ticket, Err(CommandError::other(error.clone()))));
        }
        let mut dial_first = std::mem::take(&mut self.dial_after_this_save);
        dial_first.append(&mut self.dial_after_next_save);
        self.dial_after_next_save = dial_first;
        if let Some((_, is_in_this)) = &mut self.flushing {
            *is_in_this = false;
        }
    }

    /// Something happened to a link of ours.
    pub fn link(&mut self, now: Now, link: LinkNo, event: LinkEvent) {
        let Some(&used) = self.links.get(&link) else {
            return;
        };
        match event {
            LinkEvent::Up { node, local, .. } => {
                self.learn_address(now, local);
                self.link_up(now, link, used, node);
            }
            LinkEvent::Down { why } => self.link_down(link, used, why),
            LinkEvent::Rtt { .. } => {}
        }
        self.save_when_due();
    }

    fn link_up(&mut self, now: Now, link: LinkNo, used: Use, node: NodeId) {
        match used {
            Use::Node(id) if id == node => {
                let no = self.numbers[&id];
                self.nodes[usize::from(no.0)].up = true;
                self.send_to(now, no, Kind::Beat);
            }
            Use::Farewell(id) if id == node => {
                if let Some(farewell) = self.farewells.get_mut(&id) {
                    farewell.up = true;
                }
                self.say_farewell(now, id);
            }
            Use::Meet => self.meet_answered(now, link, node),
            // The bus refuses who is not expected; this is one that does not.
            Use::Node(_) | Use::Farewell(_) => {}
        }
    }

    fn link_down(&mut self, link: LinkNo, used: Use, why: String) {
        match used {
            Use::Node(id) => {
                let no = self.numbers[&id];
                self.nodes[usize::from(no.0)].up = false;
            }
            Use::Farewell(id) => {
                if let Some(farewell) = self.farewells.get_mut(&id) {
                    farewell.up = false;
                }
            }
            Use::Meet => self.meet_went(link, why),
        }
    }

    /// A packet of a node, over its link to us.
    pub fn packet(&mut self, now: Now, from: &Sender, bytes: &[u8]) {
        self.counts.received += 1;
        let packet = Packet::decode(bytes).filter(|packet| packet.sender.id == from.node);
        let Some(packet) = packet.filter(|_| self.running && !self.silent && from.node != self.me.id) else {
            self.counts.ignored += 1;
            return;
        };
        self.hear(now, from, packet);
        self.save_when_due();
    }

    fn hear(&mut self, now: Now, from: &Sender, packet: Packet) {
        let id = from.node;
        if packet.kind == Kind::Farewell {
            if self.is_member(id) {
                self.merge_bans(now, &packet.bans);
            } else {
                self.counts.ignored += 1;
            }
            return self.reset_confirmed(now, id, &packet.bans);
        }
        self.reset_confirmed(now, id, &packet.bans);
        let mut sender = packet.sender;
        if sender.host.is_empty() {
            sender.host = from.ip.map_or_else(String::new, |ip| ip.to_string());
        }
        if packet.kind == Kind::Meet {
            self.be_met(now, &sender, &packet.bans);
        }
        if self.bans.bans(id, sender.generation) || !(self.is_member(id) || self.meets_now(id)) {
            self.counts.ignored += 1;
            return self.turn_away(now, id, &sender);
        }
        if !self.is_member(id) && !self.admit(now, sender.clone()) {
            return;
        }
        let no = self.numbers[&id];
        self.heard(now, no);
        self.met(id);
        self.merge_bans(now, &packet.bans);
        if self.node(no).record.is_newer_than(&sender) {
            // It has an old `nodes.conf`: it is told what it said before.
            self.announce(now, id);
        }
        self.merge_record(now, sender);
        for rumour in packet.rumours {
            self.merge_rumour(now, rumour);
        }
        if packet.kind != Kind::Tell && self.is_member(id) {
            self.send_to(now, no, Kind::Tell);
        }
    }

    /// Moves what is to be done to `acts`.
    pub fn take_acts(&mut self, acts: &mut Vec<Act>) {
        acts.append(&mut self.acts);
    }

    /// The next packet to send, and over which link.
    pub fn take_packet(&mut self) -> Option<(LinkNo, Bytes)> {
        self.outbox.pop_front()
    }

    fn tell(&mut self, level: LogLevel, text: String) {
        self.acts.push(Act::Tell(level, text));
    }

    fn save_for(&mut self, ticket: Ticket) {
        if self.for_next_save.len() >= limits::CLUSTER_WAITING {
            let error = CommandError::other("too many changes of the cluster are under way, try again");
            return self.acts.push(Act::Done(ticket, Err(error)));
        }
        self.dirty = true;
        self.for_next_save.push(ticket);
        self.save_when_due();
    }

    /// Has `nodes.conf` written when it has changed, one write at a time.
    fn save_when_due(&mut self) {
        let waits = self.save_again.is_some_and(|again| self.last_tick < again);
        if self.dirty && !self.saving && !waits && self.running {
            (self.dirty, self.saving) = (false, true);
            self.for_this_save.append(&mut self.for_next_save);
            self.dial_after_this_save.append(&mut self.dial_after_next_save);
            if let Some((_, is_in_this)) = &mut self.flushing {
                *is_in_this = true;
            }
            let text = self.conf_text();
            self.acts.push(Act::Save(text));
        }
    }

    fn new_link(&mut self, used: Use) -> LinkNo {
        let link = LinkNo(self.next_link);
        self.next_link = self.next_link.checked_add(1).unwrap_or(MEMBERSHIP_LINKS);
        assert!(
            self.links.insert(link, used).is_none(),
            "a link's number is not in use"
        );
        link
    }

    fn hang_up(&mut self, link: LinkNo) {
        self.links.remove(&link);
        self.outbox.retain(|(of, _)| *of != link);
        self.acts.push(Act::HangUp(link));
    }
}
