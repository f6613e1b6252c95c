//! The network between nodes: links as shards dial them, and paths between nodes that are slow, lose, double and reorder what is
//! sent, or are cut, in one direction or both.
//!
//! A link that is cut stays connected, as TCP does: what is sent meanwhile is lost, or held until the path is whole again; when it
//! lasts, the link breaks and its dialer is told. Everything that is on its way lies in one queue, by time of arrival.

use std::collections::BTreeMap;
use std::net::IpAddr;

use shard::bus::{BusMessage, Dial, LinkEvent, LinkKind, LinkNo, Sender};
use shard::id::NodeId;
use shard::slot::ShardNo;

use crate::support::{Chance, traces};
use crate::wire;

/// Where buses listen, on every node.
pub const BUS_PORT: u16 = 17_711;

/// A link: the node and shard that dialed it, and its name there.
pub type Key = (usize, ShardNo, LinkNo);

/// What the way from one node to another does to what is sent.
#[derive(Clone, Copy, Debug)]
pub struct Path {
    pub least_us: u64,
    pub most_us: u64,
    /// Percent of the messages that are lost.
    pub lost: u64,
    /// Percent that arrive twice.
    pub doubled: u64,
    /// Percent that take a way of their own: later or earlier than their neighbours.
    pub astray: u64,
    pub cut: bool,
    /// What is sent while it is cut comes when it is whole again.
    pub holds: bool,
}

impl Path {
    pub fn whole(least_us: u64, most_us: u64) -> Self {
        Self {
            least_us,
            most_us,
            lost: 0,
            doubled: 0,
            astray: 0,
            cut: false,
            holds: false,
        }
    }
}

/// What peers see of a node: nothing while it is down.
#[derive(Clone, Debug, Default)]
pub struct Face {
    /// Which life of the node this is, from 1 on; 0 while it is down.
    pub life: u64,
    /// Who each shard says it is: ID and store epoch.
    pub identity: Vec<Option<(NodeId, u64)>>,
}

#[derive(Debug)]
enum State {
    Down,
    /// Connected to this life of this node.
    Up {
        to: usize,
        life: u64,
    },
}

#[derive(Debug)]
struct Link {
    dial: Dial,
    state: State,
    /// Changes whenever it is connected or broken.
    number: u64,
    tries: u32,
    /// Nothing arrives before what was sent earlier.
    last_arrival_us: u64,
    /// Nor is its dialer told of anything before what happened earlier.
    last_event_us: u64,
}

/// What is to happen.
pub enum Arrival {
    /// A batch reaches a node.
    Batch {
        to: usize,
        life: u64,
        shard: ShardNo,
        from: Sender,
        messages: Vec<BusMessage>,
    },
    /// A shard is told of one of its links.
    Event {
        to: usize,
        life: u64,
        shard: ShardNo,
        link: LinkNo,
        event: LinkEvent,
    },
}

enum Matter {
    Arrival(Arrival),
    Try(Key, u64),
    /// The link breaks, unless both ways are whole again.
    Overdue(Key, u64),
    Break(Key, u64, &'static str),
}

/// A batch that a cut path holds.
struct Stuck {
    key: Key,
    number: u64,
    arrival: Arrival,
}

/// The network.
pub struct Network {
    pub faces: Vec<Face>,
    paths: Vec<Vec<Path>>,
    links: BTreeMap<Key, Link>,
    matters: BTreeMap<(u64, u64), Matter>,
    stuck: BTreeMap<(usize, usize), Vec<Stuck>>,
    next: u64,
    pub now_us: u64,
    /// Messages that were sent.
    pub sent: u64,
}

/// The address of a node.
pub fn address_of(host: usize) -> String {
    format!("10.0.0.{}", host + 1)
}

impl Network {
    pub fn new(hosts: usize, path: Path) -> Self {
        Self {
            faces: vec![Face::default(); hosts],
            paths: vec![vec![path; hosts]; hosts],
            links: BTreeMap::new(),
            matters: BTreeMap::new(),
            stuck: BTreeMap::new(),
            next: 0,
            now_us: 0,
            sent: 0,
        }
    }

    pub fn is_open(&self, from: usize, to: usize) -> bool {
        from == to || !self.paths[from][to].cut
    }

    /// Whether two nodes can talk to each other.
    pub fn is_open_both_ways(&self, one: usize, other: usize) -> bool {
        self.is_open(one, other) && self.is_open(other, one)
    }

    /// The way from one node to another changes. What is cut may be noticed after a while.
    pub fn set_path(&mut self, chance: &mut Chance, from: usize, to: usize, path: Path) {
        let before = std::mem::replace(&mut self.paths[from][to], path);
        if path.cut && !before.cut {
            for (key, number) in self.between(from, to) {
                let patience_us = chance.between(1_000_000, 12_000_000);
                self.at(self.now_us + patience_us, Matter::Overdue(key, number));
            }
        }
        if before.cut && !path.cut {
            for stuck in self.stuck.remove(&(from, to)).unwrap_or_default() {
                if self
                    .links
                    .get(&stuck.key)
                    .is_some_and(|link| link.number == stuck.number)
                {
                    let due_us = self.in_order(chance, stuck.key, from, to);
                    self.at(due_us, Matter::Arrival(stuck.arrival));
                }
            }
        }
        if path.least_us != before.least_us {
            for (key, _) in self.between(from, to) {
                let rtt_us = self.rtt_us(chance, from, to);
                self.tell(key, 1_000_000, LinkEvent::Rtt { rtt_us });
            }
        }
    }

    /// Links that are up between two nodes, dialed by either.
    fn between(&self, one: usize, other: usize) -> Vec<(Key, u64)> {
        let found = self.links.iter().filter_map(|(&key, link)| match link.state {
            State::Up { to, .. } if (key.0, to) == (one, other) || (key.0, to) == (other, one) => {
                Some((key, link.number))
            }
            _ => None,
        });
        found.collect()
    }

    /// A node is there, with so many shards.
    pub fn rises(&mut self, host: usize, life: u64, shards: u16) {
        self.faces[host] = Face {
            life,
            identity: vec![None; usize::from(shards)],
        };
    }

    /// A node is gone: its peers notice at once when only the process ended, else after a while.
    pub fn falls(&mut self, chance: &mut Chance, host: usize, noticed_at_once: bool) {
        self.faces[host] = Face::default();
        self.links.retain(|key, _| key.0 != host);
        let broken: Vec<(Key, u64)> = self
            .links
            .iter()
            .filter(|(_, link)| matches!(link.state, State::Up { to, .. } if to == host))
            .map(|(&key, link)| (key, link.number))
            .collect();
        for (key, number) in broken {
            let most_us = if noticed_at_once { 5_000 } else { 10_000_000 };
            let due_us = self.now_us + chance.between(0, most_us);
            self.at(due_us, Matter::Break(key, number, "the peer is gone"));
        }
    }

    /// A shard says who it is: links from and to it are made anew when it is somebody else now.
    pub fn identify(&mut self, host: usize, shard: ShardNo, identity: (NodeId, u64)) {
        let face = &mut self.faces[host];
        let before = face.identity[usize::from(shard)].replace(identity);
        if before.is_none() {
            return;
        }
        let shards = face.identity.len() as u16;
        let touched: Vec<(Key, u64)> = self
            .links
            .iter()
            .filter(|(key, link)| {
                let dialed = (key.0, key.1) == (host, shard);
                let reached = matches!(link.state, State::Up { to, .. } if to == host);
                dialed || (reached && key.1 % shards == shard)
            })
            .map(|(&key, link)| (key, link.number))
            .collect();
        for (key, number) in touched {
            self.at(self.now_us, Matter::Break(key, number, "a new identity"));
        }
    }

    /// A shard wants a link.
    pub fn dial(&mut self, key: Key, dial: Dial) {
        if traces() {
            eprintln!("{} {key:?} dials {dial:?}", self.now_us);
        }
        self.next += 1;
        let number = self.next;
        let last_event_us = self.links.get(&key).map_or(0, |link| link.last_event_us);
        let link = Link {
            dial,
            state: State::Down,
            number,
            tries: 0,
            last_arrival_us: 0,
            last_event_us,
        };
        self.links.insert(key, link);
        self.at(self.now_us, Matter::Try(key, number));
    }

    pub fn hang_up(&mut self, key: Key) {
        self.links.remove(&key);
    }

    /// A shard sends a batch.
    pub fn send(&mut self, chance: &mut Chance, key: Key, messages: Vec<BusMessage>) {
        self.sent += messages.len() as u64;
        let Some((to, life, number)) = self.links.get(&key).and_then(|link| match link.state {
            State::Up { to, life } => Some((to, life, link.number)),
            State::Down => None,
        }) else {
            return;
        };
        let path = self.paths[key.0][to];
        let lost = path.cut && !path.holds;
        if traces() {
            let fate = if lost { " (lost)" } else { "" };
            for message in &messages {
                let text = format!("{message:?}");
                let text: String = text.chars().take(260).collect();
                eprintln!("{} {}.{} -> {to}{fate}: {text}", self.now_us, key.0, key.1);
            }
        }
        if lost {
            return;
        }
        let Some(from) = self.sender(key) else { return };
        let shard = key.1 % self.faces[to].identity.len().max(1) as u16;
        let batch = |messages| Arrival::Batch {
            to,
            life,
            shard,
            from,
            messages,
        };
        let mut together = Vec::new();
        for message in wire::through(from.kind, messages) {
            if chance.percent(path.lost) {
                continue;
            }
            if chance.percent(path.doubled) {
                let due_us = self.astray_us(chance, path);
                self.at(due_us, Matter::Arrival(batch(vec![message.clone()])));
            }
            if chance.percent(path.astray) {
                let due_us = self.astray_us(chance, path);
                self.at(due_us, Matter::Arrival(batch(vec![message])));
            } else {
                together.push(message);
            }
        }
        if together.is_empty() {
            return;
        }
        let arrival = batch(together);
        if path.cut {
            let stuck = Stuck { key, number, arrival };
            self.stuck.entry((key.0, to)).or_default().push(stuck);
        } else {
            let due_us = self.in_order(chance, key, key.0, to);
            self.at(due_us, Matter::Arrival(arrival));
        }
    }

    fn astray_us(&self, chance: &mut Chance, path: Path) -> u64 {
        let most_us = path.most_us + *chance.pick(&[0, 10_000, 500_000, 5_000_000]);
        self.now_us + chance.between(path.least_us / 2, most_us)
    }

    fn in_order(&mut self, chance: &mut Chance, key: Key, from: usize, to: usize) -> u64 {
        let path = self.paths[from][to];
        let link = self.links.get_mut(&key).expect("it is up");
        let due_us = self.now_us + chance.between(path.least_us, path.most_us);
        link.last_arrival_us = link.last_arrival_us.max(due_us);
        link.last_arrival_us
    }

    /// Who sends on a link.
    fn sender(&self, key: Key) -> Option<Sender> {
        let (host, shard, _) = key;
        let (node, epoch) = (*self.faces[host].identity.get(usize::from(shard))?)?;
        Some(Sender {
            node,
            epoch,
            shard,
            kind: self.links[&key].dial.kind,
            ip: address_of(host).parse::<IpAddr>().ok(),
        })
    }

    fn at(&mut self, due_us: u64, matter: Matter) {
        self.next += 1;
        self.matters.insert((due_us, self.next), matter);
    }

    /// When something happens next.
    pub fn next_us(&self) -> Option<u64> {
        self.matters.keys().next().map(|(due_us, _)| *due_us)
    }

    /// The next thing that is due; `None` when it was a matter of the network's own, or when nothing is.
    pub fn happen(&mut self, chance: &mut Chance) -> Option<Arrival> {
        let entry = self.matters.first_entry()?;
        if entry.key().0 > self.now_us {
            return None;
        }
        match entry.remove() {
            Matter::Arrival(arrival) => return Some(arrival),
            Matter::Try(key, number) if self.is_current(key, number) => self.try_to_connect(chance, key),
            Matter::Overdue(key, number) if self.is_current(key, number) => {
                let State::Up { to, .. } = self.links[&key].state else {
                    return None;
                };
                if !self.is_open_both_ways(key.0, to) {
                    self.break_link(chance, key, "nothing was heard");
                }
            }
            Matter::Break(key, number, why) if self.is_current(key, number) => {
                self.break_link(chance, key, why)
            }
            _ => {}
        }
        None
    }

    fn is_current(&self, key: Key, number: u64) -> bool {
        self.links.get(&key).is_some_and(|link| link.number == number)
    }

    fn try_to_connect(&mut self, chance: &mut Chance, key: Key) {
        let dial = self.links[&key].dial.clone();
        let reached = (0..self.faces.len())
            .find(|&host| address_of(host) == dial.host && dial.port == BUS_PORT && self.faces[host].life > 0)
            .filter(|&to| self.is_open_both_ways(key.0, to));
        let met = reached.and_then(|to| {
            let identity = &self.faces[to].identity;
            let shard = match dial.kind {
                LinkKind::Data => key.1 % identity.len() as u16,
                LinkKind::Membership => 0,
            };
            Some((to, identity[usize::from(shard)]?))
        });
        let met = met.filter(|(_, (node, _))| dial.expect.is_none_or(|expected| expected == *node));
        let link = self.links.get_mut(&key).expect("it is current");
        let Some((to, (node, epoch))) = met else {
            link.tries += 1;
            let number = link.number;
            let backoff_us = chance.between(50_000, 100_000 << link.tries.min(4));
            if link.tries == 1 || chance.percent(20) {
                let why = "no connection".to_owned();
                self.tell(key, 0, LinkEvent::Down { why });
            }
            self.at(self.now_us + backoff_us, Matter::Try(key, number));
            return;
        };
        self.next += 1;
        link.number = self.next;
        link.tries = 0;
        link.state = State::Up {
            to,
            life: self.faces[to].life,
        };
        let rtt_us = self.rtt_us(chance, key.0, to);
        let ip = |host| address_of(host).parse().ok();
        let event = LinkEvent::Up {
            node,
            epoch,
            rtt_us,
            local: ip(key.0),
            remote: ip(to),
        };
        self.tell(key, u64::from(rtt_us), event);
    }

    fn break_link(&mut self, chance: &mut Chance, key: Key, why: &str) {
        self.next += 1;
        let number = self.next;
        let link = self.links.get_mut(&key).expect("it is current");
        link.number = number;
        link.state = State::Down;
        self.tell(key, 0, LinkEvent::Down { why: why.to_owned() });
        let backoff_us = chance.between(0, 200_000);
        self.at(self.now_us + backoff_us, Matter::Try(key, number));
    }

    fn rtt_us(&self, chance: &mut Chance, one: usize, other: usize) -> u32 {
        let mut one_way = |path: Path| chance.between(path.least_us, path.most_us);
        (one_way(self.paths[one][other]) + one_way(self.paths[other][one])) as u32
    }

    /// The dialer of a link is told something, after so long.
    fn tell(&mut self, key: Key, delay_us: u64, event: LinkEvent) {
        let (to, shard, link_no) = key;
        let life = self.faces[to].life;
        let due_us = self.now_us + delay_us;
        let link = self.links.get_mut(&key).expect("it is there");
        link.last_event_us = link.last_event_us.max(due_us);
        let due_us = link.last_event_us;
        self.at(
            due_us,
            Matter::Arrival(Arrival::Event {
                to,
                life,
                shard,
                link: link_no,
                event,
            }),
        );
    }
}
