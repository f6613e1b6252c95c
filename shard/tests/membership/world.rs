//! Whole nodes of several shards, and a network that loses nothing.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use shard::bus::{BusMessage, Dial, LinkEvent, LinkNo, Sender};
use shard::clock::Now;
use shard::cluster::conf;
use shard::id::NodeId;
use shard::input::{ConnectionId, Effect, Input, Peer, Question, Told};
use shard::log::LogBoot;
use shard::message::SessionId;
use shard::settings::Settings;
use shard::shard::{NodeFacts, Shard, ShardOptions};
use shard::slot::ShardNo;
use shard::wire::encode_request;

/// Who a link connects: both sides' identities when it came up.
type Ends = ((NodeId, u64), (NodeId, u64));

struct Link {
    dial: Dial,
    up: Option<(usize, Ends)>,
}

struct Client {
    shard: usize,
    session: SessionId,
    received: Vec<u8>,
}

pub struct Node {
    shards: Vec<Shard>,
    ip: Ipv4Addr,
    pub disk: String,
    pub log: Vec<String>,
    identity: (NodeId, u64),
    links: BTreeMap<(usize, LinkNo), Link>,
    clients: Vec<Client>,
    is_up: bool,
}

pub struct World {
    pub nodes: Vec<Node>,
    now: Now,
    lives: u8,
}

const STEP_MS: u64 = 10;

impl World {
    pub fn new(shards: &[u16]) -> Self {
        let mut world = Self {
            nodes: Vec::new(),
            now: Now {
                mono_us: 1_000_000,
                wall_us: 1_700_000_000_000_000,
            },
            lives: 0,
        };
        for (at, &shards) in shards.iter().enumerate() {
            world.nodes.push(Node {
                shards: Vec::new(),
                ip: Ipv4Addr::new(10, 0, 0, at as u8 + 1),
                disk: String::new(),
                log: Vec::new(),
                identity: (NodeId::from_bytes([0; 20]), 0),
                links: BTreeMap::new(),
                clients: Vec::new(),
                is_up: false,
            });
            world.start(at, shards, Settings::default());
        }
        world
    }

    /// Starts a node with what its disk holds.
    pub fn start(&mut self, node: usize, shards: u16, settings: Settings) {
        self.lives += 1;
        let nodes = conf::parse(&self.nodes[node].disk).expect("what was saved is read");
        let id = NodeId::from_bytes([self.lives; 20]);
        let id = nodes.me.as_ref().map_or(id, |me| me.id);
        let make = |shard| {
            let options = ShardOptions {
                shard,
                shards,
                node: id,
                seed: [self.lives.wrapping_mul(16) + shard as u8; 32],
                hash_seed: 1,
                log: LogBoot::nothing(),
                facts: NodeFacts {
                    nodes: Some(nodes.clone()),
                    machine: format!("machine-{node}"),
                    ..NodeFacts::default()
                },
            };
            Shard::new(options, settings.clone(), self.now)
        };
        let made = (0..shards).map(make).collect();
        let place = &mut self.nodes[node];
        place.shards = made;
        place.is_up = true;
        for shard in 0..usize::from(shards) {
            self.after(node, shard);
        }
        self.run(STEP_MS);
    }

    pub fn kill(&mut self, node: usize) {
        let place = &mut self.nodes[node];
        place.is_up = false;
        place.shards.clear();
        place.links.clear();
        place.clients.clear();
    }

    fn step(&mut self, node: usize, shard: usize, input: Input<'_>) {
        self.now.mono_us += 1;
        self.nodes[node].shards[shard].handle(self.now, input);
        self.after(node, shard);
    }

    fn after(&mut self, node: usize, shard: usize) {
        let mut effects = Vec::new();
        self.nodes[node].shards[shard].take_effects(&mut effects);
        self.nodes[node].shards[shard].check();
        for effect in effects {
            self.perform(node, shard, effect);
        }
    }

    fn perform(&mut self, node: usize, shard: usize, effect: Effect) {
        let place = &mut self.nodes[node];
        match effect {
            Effect::Send { session } => {
                let mut chunks = Vec::new();
                place.shards[shard].take_output(session, &mut chunks, usize::MAX);
                let bytes = chunks.concat();
                let is_it = |client: &&mut Client| client.shard == shard && client.session == session;
                if let Some(client) = place.clients.iter_mut().find(is_it) {
                    client.received.extend_from_slice(&bytes);
                }
                let bytes = bytes.len();
                if bytes > 0 {
                    self.step(node, shard, Input::Sent { session, bytes });
                }
            }
            Effect::Ask { ticket, question } => {
                let told = match question {
                    Question::Process => Told::Process(Box::default()),
                    other => panic!("{other:?} is not asked here"),
                };
                self.step(node, shard, Input::Told { ticket, told });
            }
            Effect::Assign {
                client, shard: home, ..
            } => {
                let peer = Peer::Tcp(SocketAddr::from(([127, 0, 0, 1], 40_000)));
                let local = Peer::Tcp(SocketAddr::from((place.ip, 7711)));
                let session = place.shards[usize::from(home)].connect(self.now, client, peer, local);
                place.clients.push(Client {
                    shard: usize::from(home),
                    session,
                    received: Vec::new(),
                });
            }
            Effect::Log { text, .. } => place.log.push(text),
            Effect::Setting { .. } | Effect::Reading { .. } => {}
            Effect::Identity { node: id, epoch } => place.identity = (id, epoch),
            Effect::Dial(dial) => {
                let link = dial.link;
                place.links.insert((shard, link), Link { dial, up: None });
            }
            Effect::HangUp { link } => {
                place
                    .links
                    .remove(&(shard, link))
                    .expect("a link is hung up once");
            }
            Effect::SaveNodes { text } => {
                assert_eq!(shard, 0);
                place.disk = text;
                self.step(node, 0, Input::NodesSaved { result: Ok(()) });
            }
            other => panic!("{other:?} is not wanted here"),
        }
    }

    /// Time goes by, in steps.
    pub fn run(&mut self, ms: u64) {
        for _ in 0..ms.div_ceil(STEP_MS) {
            self.now.mono_us += STEP_MS * 1000;
            self.now.wall_us += STEP_MS * 1000;
            self.settle();
        }
    }

    fn settle(&mut self) {
        for _ in 0..1_000 {
            let mut busy = false;
            for node in 0..self.nodes.len() {
                for shard in 0..self.nodes[node].shards.len() {
                    let due = self.nodes[node].shards[shard].next_deadline();
                    if due.is_some_and(|due| due <= self.now.mono()) {
                        self.step(node, shard, Input::Tick);
                        busy = true;
                    }
                    busy |= self.carry_mesh(node, shard);
                    busy |= self.carry_bus(node, shard);
                }
                busy |= self.keep_links(node);
            }
            if !busy {
                return;
            }
        }
        panic!("the nodes do not come to rest");
    }

    fn carry_mesh(&mut self, node: usize, from: usize) -> bool {
        let mut busy = false;
        for to in (0..self.nodes[node].shards.len()).filter(|&to| to != from) {
            let mut messages = Vec::new();
            self.nodes[node].shards[from].take_mesh(to as ShardNo, &mut messages);
            if !messages.is_empty() {
                busy = true;
                let from = from as ShardNo;
                let messages = &mut messages;
                self.step(node, to, Input::Mesh { from, messages });
            }
        }
        busy
    }

    fn carry_bus(&mut self, node: usize, shard: usize) -> bool {
        let mut busy = false;
        let mut batch: Vec<BusMessage> = Vec::new();
        while let Some(link) = self.nodes[node].shards[shard].take_bus(&mut batch) {
            busy = true;
            let mut messages = std::mem::take(&mut batch);
            let Some(Link {
                dial,
                up: Some((to, _)),
            }) = self.nodes[node].links.get(&(shard, link))
            else {
                continue;
            };
            let (id, epoch) = self.nodes[node].identity;
            let from = Sender {
                node: id,
                epoch,
                shard: shard as ShardNo,
                kind: dial.kind,
                ip: Some(IpAddr::V4(self.nodes[node].ip)),
            };
            let to = *to;
            let ends_at = shard % self.nodes[to].shards.len();
            let messages = &mut messages;
            self.step(to, ends_at, Input::Bus { from, messages });
        }
        busy
    }

    fn keep_links(&mut self, node: usize) -> bool {
        let mut busy = false;
        let keys: Vec<_> = self.nodes[node].links.keys().copied().collect();
        for (shard, link) in keys {
            let Some(kept) = self.nodes[node].links.get(&(shard, link)) else {
                continue;
            };
            let ends = self.ends_of(node, &kept.dial);
            if kept.up == ends {
                continue;
            }
            busy = true;
            let was_up = kept.up.is_some();
            let event = match ends.filter(|_| !was_up) {
                Some((to, _)) => LinkEvent::Up {
                    node: self.nodes[to].identity.0,
                    epoch: self.nodes[to].identity.1,
                    rtt_us: 100,
                    local: Some(IpAddr::V4(self.nodes[node].ip)),
                    remote: Some(IpAddr::V4(self.nodes[to].ip)),
                },
                None => LinkEvent::Down {
                    why: "refused".to_owned(),
                },
            };
            let kept = self.nodes[node]
                .links
                .get_mut(&(shard, link))
                .expect("it is there");
            kept.up = if was_up { None } else { ends };
            self.step(node, shard, Input::Link { link, event });
        }
        busy
    }

    fn ends_of(&self, node: usize, dial: &Dial) -> Option<(usize, Ends)> {
        let is_there = |other: &Node| other.is_up && other.ip.to_string() == dial.host;
        let to = self
            .nodes
            .iter()
            .position(is_there)
            .filter(|_| dial.port == 17_711)?;
        let other = self.nodes[to].identity;
        dial.expect
            .is_none_or(|id| id == other.0)
            .then_some((to, (self.nodes[node].identity, other)))
    }

    /// Connects a client, to the shard that the node chooses.
    pub fn connect(&mut self, node: usize) -> usize {
        let connection = ConnectionId(0);
        self.step(node, 0, Input::Accepted { connection });
        self.settle();
        self.nodes[node].clients.len() - 1
    }

    /// Sends words to a node over a client; what came back at once.
    pub fn say(&mut self, node: usize, client: usize, request: &str) -> String {
        let words: Vec<&str> = request.split(' ').collect();
        let mut bytes = Vec::new();
        encode_request(&words, &mut bytes);
        let Client { shard, session, .. } = self.nodes[node].clients[client];
        let bytes = &bytes;
        self.step(node, shard, Input::Bytes { session, bytes });
        self.settle();
        self.heard(node, client)
    }

    pub fn heard(&mut self, node: usize, client: usize) -> String {
        let received = std::mem::take(&mut self.nodes[node].clients[client].received);
        String::from_utf8(received).expect("replies are text here")
    }

    /// The same over a client of its own, with up to two seconds for the answer.
    pub fn ask(&mut self, node: usize, request: &str) -> String {
        let client = self.connect(node);
        let mut reply = self.say(node, client, request);
        for _ in 0..200 {
            if !reply.is_empty() {
                break;
            }
            self.run(STEP_MS);
            reply = self.heard(node, client);
        }
        reply
    }

    /// The text of a bulk string.
    pub fn text(&mut self, node: usize, request: &str) -> String {
        let reply = self.ask(node, request);
        let (head, text) = reply.split_once("\r\n").expect("a bulk string");
        assert!(head.starts_with('$'), "{reply}");
        text.trim_end_matches("\r\n").to_owned()
    }

    /// Makes all nodes one cluster.
    pub fn join(&mut self) {
        for node in 1..self.nodes.len() {
            assert_eq!(
                self.ask(0, &format!("CLUSTER MEET 10.0.0.{} 7711", node + 1)),
                "+OK\r\n"
            );
        }
        self.run(1_000);
    }
}
