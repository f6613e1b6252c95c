//! Some nodes' membership, the network between them, and their disks, from one seed.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr};

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{RngCore, SeedableRng};

use crate::bus::{Dial, LinkEvent, LinkKind, LinkNo, PeerState, Sender, Topology};
use crate::clock::Now;
use crate::cluster::{Act, Facts, Membership, conf};
use crate::error::CommandError;
use crate::id::NodeId;
use crate::message::{SessionId, Ticket};

/// Time between two attempts to connect a link.
const CONNECT_MS: u64 = 50;
/// How soon a link that leads nowhere is noticed.
const LOOK_MS: u64 = 10;
const BUS_PORT: u16 = 17_711;

pub struct Link {
    dial: Dial,
    ip: Option<Ipv4Addr>,
    /// Where it ends.
    to: Option<usize>,
    tried_at: u64,
}

/// One node, whether it runs or not.
pub struct Place {
    pub machine: Option<Membership>,
    pub ip: Ipv4Addr,
    pub disk: String,
    pub disk_is_full: bool,
    pub topology: Option<Topology>,
    pub said: Vec<String>,
    /// Ends of commands.
    pub done: Vec<Result<(), CommandError>>,
    pub flushed: Vec<u64>,
    links: BTreeMap<LinkNo, Link>,
    life: u64,
}

enum Event {
    Packet { to: usize, from: Sender, bytes: Vec<u8> },
    Saved { node: usize, life: u64, text: String },
}

pub struct World {
    pub ms: u64,
    pub places: Vec<Place>,
    pub timeout_ms: u64,
    pub repair_after_ms: u64,
    /// Of a thousand packets, so many are lost.
    pub loss: u64,
    pub delay_ms: u64,
    /// Pairs that do not hear each other, in both directions.
    pub cut: BTreeSet<(usize, usize)>,
    chance: ChaCha8Rng,
    events: BTreeMap<(u64, u64), Event>,
    sequence: u64,
}

impl World {
    pub fn new(count: usize, seed: u64) -> Self {
        let mut this = Self {
            ms: 1_000,
            places: Vec::new(),
            timeout_ms: 2_000,
            repair_after_ms: 10_000,
            loss: 0,
            delay_ms: 5,
            cut: BTreeSet::new(),
            chance: ChaCha8Rng::seed_from_u64(seed),
            events: BTreeMap::new(),
            sequence: 0,
        };
        for node in 0..count {
            this.places.push(Place {
                machine: None,
                ip: Ipv4Addr::new(10, 0, 0, node as u8 + 1),
                disk: String::new(),
                disk_is_full: false,
                topology: None,
                said: Vec::new(),
                done: Vec::new(),
                flushed: Vec::new(),
                links: BTreeMap::new(),
                life: 0,
            });
            this.start(node);
        }
        this
    }

    pub fn now(&self) -> Now {
        Now {
            mono_us: self.ms * 1000,
            wall_us: (1_700_000_000_000 + self.ms) * 1000,
        }
    }

    pub fn below(&mut self, bound: u64) -> u64 {
        self.chance.next_u64() % bound.max(1)
    }

    pub fn facts(&self) -> Facts {
        Facts {
            host: String::new(),
            port: 7711,
            bus_port: BUS_PORT,
            machine: 1,
            zone: 0,
            timeout_ms: self.timeout_ms,
            repair_after_ms: self.repair_after_ms,
        }
    }

    pub fn start(&mut self, node: usize) {
        let mut seed = [0; 32];
        self.chance.fill_bytes(&mut seed);
        let nodes = conf::parse(&self.places[node].disk).expect("what was saved is read");
        let mut id = [0; 20];
        id.copy_from_slice(&seed[..20]);
        let id = nodes.me.as_ref().map_or(NodeId::from_bytes(id), |me| me.id);
        let (now, facts) = (self.now(), self.facts());
        let mut machine = Membership::new(id, nodes, facts, seed, now);
        machine.start(now, now.wall_ms());
        let place = &mut self.places[node];
        place.machine = Some(machine);
        place.topology = None;
        place.life += 1;
        self.after(node);
    }

    pub fn kill(&mut self, node: usize) {
        self.places[node].machine = None;
        self.places[node].links.clear();
    }

    pub fn id(&self, node: usize) -> NodeId {
        self.machine(node).me.id
    }

    pub fn machine(&self, node: usize) -> &Membership {
        self.places[node].machine.as_ref().expect("it runs")
    }

    fn ticket() -> Ticket {
        let session = SessionId {
            index: 0,
            generation: 0,
        };
        Ticket {
            shard: 0,
            session,
            request: 0,
        }
    }

    /// Does something with a node.
    pub fn with<T>(&mut self, node: usize, act: impl FnOnce(&mut Membership, Now, Ticket) -> T) -> T {
        let now = self.now();
        let machine = self.places[node].machine.as_mut().expect("it runs");
        let result = act(machine, now, Self::ticket());
        self.after(node);
        result
    }

    pub fn meet(&mut self, node: usize, other: usize) {
        let host = self.places[other].ip.to_string();
        self.with(node, |machine, now, _| {
            machine.meet(now, &host, 7711, BUS_PORT).expect("there is room")
        });
    }

    pub fn forget(&mut self, node: usize, id: NodeId) {
        self.with(node, |machine, now, ticket| machine.forget(now, ticket, id));
    }

    fn later(&mut self, after_ms: u64, event: Event) {
        self.sequence += 1;
        self.events.insert((self.ms + after_ms, self.sequence), event);
    }

    /// Does what a node wants done.
    fn after(&mut self, node: usize) {
        let mut acts = Vec::new();
        let Some(machine) = &mut self.places[node].machine else {
            return;
        };
        machine.take_acts(&mut acts);
        let topology = machine.take_topology();
        let mut packets = Vec::new();
        while let Some(packet) = machine.take_packet() {
            packets.push(packet);
        }
        if let Some(topology) = topology {
            self.check_topology(node, &topology);
            self.places[node].topology = Some(topology);
        }
        for act in acts {
            self.act(node, act);
        }
        for (link, bytes) in packets {
            let to = self.places[node].links.get(&link).and_then(|link| link.to);
            let Some(to) = to.filter(|&to| !self.is_cut(node, to)) else {
                continue;
            };
            if self.below(1000) < self.loss {
                continue;
            }
            let from = Sender {
                node: self.id(node),
                epoch: 0,
                shard: 0,
                kind: LinkKind::Membership,
                ip: Some(IpAddr::V4(self.places[node].ip)),
            };
            let bytes = bytes.to_vec();
            let delay_ms = 1 + self.below(self.delay_ms);
            self.later(delay_ms, Event::Packet { to, from, bytes });
        }
    }

    fn act(&mut self, node: usize, act: Act) {
        let place = &mut self.places[node];
        match act {
            Act::Dial(dial) => {
                let link = Link {
                    ip: dial.host.parse().ok(),
                    dial: dial.clone(),
                    to: None,
                    tried_at: 0,
                };
                place.links.insert(dial.link, link);
            }
            Act::HangUp(link) => {
                place.links.remove(&link).expect("a link is hung up once");
            }
            Act::Save(text) => {
                let life = place.life;
                let after_ms = 1 + self.below(20);
                self.later(after_ms, Event::Saved { node, life, text });
            }
            Act::Tell(_, text) => place.said.push(text),
            Act::Done(_, result) => place.done.push(result),
            Act::Flush(_, epoch) => {
                let topology = place.topology.as_ref().expect("it was published");
                assert_eq!(
                    topology.epoch, epoch,
                    "the shards know the epoch before they flush"
                );
                place.flushed.push(epoch);
                self.with(node, |machine, now, _| machine.flushed(now));
            }
        }
    }

    fn check_topology(&self, node: usize, topology: &Topology) {
        let before = self.places[node].topology.iter().flat_map(|before| &before.peers);
        for (old, new) in before.zip(&topology.peers) {
            assert_eq!(
                (old.no, old.id),
                (new.no, new.id),
                "a number is never given again"
            );
        }
        for (at, peer) in topology.peers.iter().enumerate() {
            assert_eq!(usize::from(peer.no.0), at);
            assert_ne!(peer.id, topology.node);
        }
    }

    pub fn is_cut(&self, one: usize, other: usize) -> bool {
        self.cut.contains(&(one.min(other), one.max(other)))
    }

    pub fn run(&mut self, ms: u64) {
        let end = self.ms + ms;
        while self.ms < end {
            let event = self.events.first_key_value().map_or(u64::MAX, |(key, _)| key.0);
            let tick = self
                .places
                .iter()
                .filter_map(|place| place.machine.as_ref()?.next_deadline());
            let tick = tick.min().map_or(u64::MAX, |due| due.0);
            let look = (self.ms / LOOK_MS + 1) * LOOK_MS;
            self.ms = event.min(tick).min(look).min(end).max(self.ms + 1);
            while let Some(entry) = self.events.first_entry() {
                if entry.key().0 > self.ms {
                    break;
                }
                let event = entry.remove();
                self.happen(event);
            }
            for node in 0..self.places.len() {
                if self.ms.is_multiple_of(LOOK_MS) {
                    self.keep_links(node);
                }
                let due = self.places[node]
                    .machine
                    .as_ref()
                    .and_then(Membership::next_deadline);
                if due.is_some_and(|due| due.0 <= self.ms) {
                    self.with(node, |machine, now, _| machine.tick(now));
                }
            }
        }
    }

    fn happen(&mut self, event: Event) {
        let now = self.now();
        match event {
            Event::Packet { to, from, bytes } => {
                if let Some(machine) = &mut self.places[to].machine {
                    machine.packet(now, &from, &bytes);
                    self.after(to);
                }
            }
            Event::Saved { node, life, text } => {
                if self.places[node].life == life && self.places[node].machine.is_some() {
                    let result = if self.places[node].disk_is_full {
                        Err("no space left".to_owned())
                    } else {
                        self.places[node].disk = text;
                        Ok(())
                    };
                    self.with(node, |machine, now, _| machine.saved(now, result));
                }
            }
        }
    }

    /// Connects links, and takes down those that lead nowhere.
    fn keep_links(&mut self, node: usize) {
        let links: Vec<LinkNo> = self.places[node].links.keys().copied().collect();
        for link in links {
            let Some(kept) = self.places[node].links.get(&link) else {
                continue;
            };
            let ends_at = self.answers(node, kept);
            match (kept.to, ends_at) {
                (Some(to), Ok(there)) if to == there => {}
                (None, ends_at) if self.ms >= kept.tried_at + CONNECT_MS => self.connect(node, link, ends_at),
                (Some(_), _) => {
                    self.places[node].links.get_mut(&link).expect("it is there").to = None;
                    let why = "closed".to_owned();
                    self.with(node, |machine, now, _| {
                        machine.link(now, link, LinkEvent::Down { why })
                    });
                }
                (None, _) => {}
            }
        }
    }

    fn connect(&mut self, node: usize, link: LinkNo, ends_at: Result<usize, &'static str>) {
        let kept = self.places[node].links.get_mut(&link).expect("it is there");
        kept.tried_at = self.ms;
        kept.to = ends_at.ok();
        let event = match ends_at {
            Ok(there) => LinkEvent::Up {
                node: self.id(there),
                epoch: 0,
                rtt_us: 1,
                local: Some(IpAddr::V4(self.places[node].ip)),
                remote: Some(IpAddr::V4(self.places[there].ip)),
            },
            Err(why) => LinkEvent::Down { why: why.to_owned() },
        };
        self.with(node, |machine, now, _| machine.link(now, link, event));
    }

    fn answers(&self, node: usize, Link { dial, ip, .. }: &Link) -> Result<usize, &'static str> {
        let is_there = |place: &Place| place.machine.is_some() && Some(place.ip) == *ip;
        let there = self.places.iter().position(is_there).ok_or("refused")?;
        if self.is_cut(node, there) {
            return Err("timed out");
        }
        if dial.expect.is_some_and(|id| id != self.id(there)) {
            return Err("another node is there");
        }
        Ok(there)
    }

    /// What a node thinks of another one; none when it is no member.
    pub fn state(&self, node: usize, id: NodeId) -> Option<PeerState> {
        let machine = self.machine(node);
        machine.number_of(id).map(|no| machine.node(no).state)
    }

    /// Whether each of these nodes knows exactly the others of them, alive.
    pub fn is_whole(&self, nodes: &[usize]) -> bool {
        nodes.iter().all(|&node| {
            let mut known: Vec<NodeId> = self
                .machine(node)
                .members()
                .into_iter()
                .map(|no| self.machine(node).node(no))
                .filter(|known| known.state == PeerState::Alive && known.up)
                .map(|known| known.record.id)
                .collect();
            let mut others: Vec<NodeId> = nodes
                .iter()
                .filter(|&&other| other != node)
                .map(|&other| self.id(other))
                .collect();
            known.sort();
            others.sort();
            known == others && self.machine(node).members().len() == others.len()
        })
    }

    /// Runs until it is so; how long that took, milliseconds.
    pub fn until(&mut self, most_ms: u64, what: &str, is_so: impl Fn(&Self) -> bool) -> u64 {
        let begin = self.ms;
        while !is_so(self) {
            assert!(
                self.ms - begin < most_ms,
                "not within {most_ms} ms: {what}\n{}",
                self.show()
            );
            self.run(10);
        }
        self.ms - begin
    }

    pub fn show(&self) -> String {
        let show = |place: &Place| {
            let nodes = place.machine.as_ref().map(|machine| machine.view().nodes());
            format!("{}:\n{}", place.ip, nodes.unwrap_or("down\n".into()))
        };
        self.places.iter().map(show).collect()
    }

    /// Meets all in a line, and waits until they are a cluster.
    pub fn join(&mut self) -> u64 {
        for node in 1..self.places.len() {
            let with = self.below(node as u64) as usize;
            if self.below(2) == 0 {
                self.meet(node, with);
            } else {
                self.meet(with, node);
            }
        }
        let all: Vec<usize> = (0..self.places.len()).collect();
        self.until(10_000, "a full mesh", |world| world.is_whole(&all))
    }
}
