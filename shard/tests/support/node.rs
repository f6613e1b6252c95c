//! The node: shards, the mesh between them, and what the server does.

use std::collections::{BTreeMap, VecDeque};

use shard::bus::{BusMessage, LinkEvent, LinkNo, Sender, Topology};
use shard::clock::Now;
use shard::error::CommandError;
use shard::id::NodeId;
use shard::input::{ConnectionId, Effect, Input, Peer, Question, Told};
use shard::log::{DiskTask, Done, IoError, LogBoot};
use shard::message::{Message, SessionId, Ticket};
use shard::node::NodeMessage;
use shard::settings::Settings;
use shard::shard::{NodeFacts, Shard, ShardOptions};
use shard::slot::ShardNo;

use super::Client;

/// Steps after which a node that should come to rest is said to spin.
const STEPS_TO_REST: usize = 200_000;

/// Looks on from outside.
pub trait Watch {
    /// A step is about to be made.
    fn before(&mut self, now: Now, shard: ShardNo, happening: &Happening<'_>);
    /// A step was made; `sent` is what it sends to each shard.
    fn after(&mut self, now: Now, shard: ShardNo, sent: &[Vec<Message>]);
}

/// Nobody looks.
pub struct Blind;

impl Watch for Blind {
    fn before(&mut self, _: Now, _: ShardNo, _: &Happening<'_>) {}
    fn after(&mut self, _: Now, _: ShardNo, _: &[Vec<Message>]) {}
}

/// What a step is about.
pub enum Happening<'a> {
    /// A batch of another shard.
    Mesh(ShardNo, &'a [Message]),
    /// Time.
    Tick,
    /// A client's socket, or the server's own matters.
    Outside,
}

/// A direction between two shards: batches, each with its time of arrival.
#[derive(Default)]
struct Lane {
    batches: VecDeque<(u64, Vec<Message>)>,
    delay_us: u64,
}

/// The ID of nodes that are alone.
pub const ALONE: NodeId = NodeId::from_bytes([0x4f; 20]);

/// What a node is started with.
pub struct Start<'a> {
    pub node: NodeId,
    pub shards: u16,
    /// Chance for job IDs and hash maps; another one for each life.
    pub seed: u64,
    pub settings: &'a Settings,
    pub now: Now,
    /// What the data folder holds.
    pub log: LogBoot,
    pub facts: NodeFacts,
}

/// A node.
pub struct Node<W: Watch> {
    pub shards: Vec<Shard>,
    pub clients: Vec<Client>,
    pub now: Now,
    pub watch: W,
    /// Whether each step is followed by a look at the whole state.
    pub checks: bool,
    /// The server's log, and the settings it was told of.
    pub log: Vec<String>,
    /// Shards that said they are done.
    pub stopped: Vec<ShardNo>,
    /// What is to be done with files, for whoever plays the disk.
    pub tasks: Vec<(ShardNo, u64, DiskTask)>,
    /// What is to be done with links, for whoever plays the network.
    pub calls: Vec<(ShardNo, Effect)>,
    /// Batches for other nodes, and the links they are to leave on.
    pub outgoing: Vec<(ShardNo, LinkNo, Vec<BusMessage>)>,
    /// Why the process ended itself.
    pub died: Option<String>,
    /// Output that the server takes at a time.
    pub take_bytes: usize,
    lanes: Vec<Vec<Lane>>,
    of_session: BTreeMap<(ShardNo, SessionId), usize>,
    questions: VecDeque<(ShardNo, Ticket, Question)>,
    effects: Vec<Effect>,
}

impl<W: Watch> Node<W> {
    /// A node without a log.
    pub fn new(shards: u16, seed: u64, settings: &Settings, watch: W) -> Self {
        let start = Start {
            node: ALONE,
            shards,
            seed,
            settings,
            // Not zero, so that nothing mistakes an origin for an instant.
            now: Now {
                mono_us: 5_000_000,
                wall_us: 1_700_000_000_000_000,
            },
            log: LogBoot::nothing(),
            facts: NodeFacts::default(),
        };
        Self::start(start, watch)
    }

    pub fn start(start: Start<'_>, watch: W) -> Self {
        let Start {
            node: node_id,
            shards,
            seed,
            settings,
            now,
            log,
            facts,
        } = start;
        let make = |shard| {
            let mut chance = [0; 32];
            chance[..8].copy_from_slice(&seed.to_le_bytes());
            chance[8..10].copy_from_slice(&u16::to_le_bytes(shard));
            let options = ShardOptions {
                shard,
                shards,
                node: node_id,
                seed: chance,
                hash_seed: seed,
                log: log.clone(),
                facts: facts.clone(),
            };
            Shard::new(options, settings.clone(), now)
        };
        let lanes = (0..shards)
            .map(|_| (0..shards).map(|_| Lane::default()).collect())
            .collect();
        let mut node = Self {
            shards: (0..shards).map(make).collect(),
            clients: Vec::new(),
            now,
            watch,
            checks: true,
            log: Vec::new(),
            stopped: Vec::new(),
            tasks: Vec::new(),
            calls: Vec::new(),
            outgoing: Vec::new(),
            died: None,
            take_bytes: usize::MAX,
            lanes,
            of_session: BTreeMap::new(),
            questions: VecDeque::new(),
            effects: Vec::new(),
        };
        (0..shards).for_each(|shard| node.after_step(shard));
        node
    }

    pub fn count(&self) -> u16 {
        self.shards.len() as u16
    }

    /// Makes one step of a shard, and does what it wants done.
    fn step(&mut self, shard: ShardNo, happening: &Happening<'_>, input: Input<'_>) {
        self.watch.before(self.now, shard, happening);
        self.shards[usize::from(shard)].handle(self.now, input);
        self.after_step(shard);
    }

    fn after_step(&mut self, shard: ShardNo) {
        let place = usize::from(shard);
        let mut effects = std::mem::take(&mut self.effects);
        self.shards[place].take_effects(&mut effects);
        if self.checks {
            self.shards[place].check();
        }
        for effect in effects.drain(..) {
            self.perform(shard, effect);
        }
        self.effects = effects;
        let mut sent: Vec<Vec<Message>> = (0..self.count()).map(|_| Vec::new()).collect();
        for to in (0..self.count()).filter(|&to| to != shard) {
            self.shards[place].take_mesh(to, &mut sent[usize::from(to)]);
        }
        self.watch.after(self.now, shard, &sent);
        for (lane, batch) in self.lanes[place]
            .iter_mut()
            .zip(sent)
            .filter(|(_, batch)| !batch.is_empty())
        {
            // In order: nothing arrives before what was sent earlier.
            let earliest = lane.batches.back().map_or(0, |(arrival, _)| *arrival);
            lane.batches
                .push_back(((self.now.mono_us + lane.delay_us).max(earliest), batch));
        }
        let mut batch = Vec::new();
        while let Some(link) = self.shards[place].take_bus(&mut batch) {
            self.outgoing.push((shard, link, std::mem::take(&mut batch)));
        }
    }

    fn perform(&mut self, shard: ShardNo, effect: Effect) {
        match effect {
            Effect::Send { session } => self.take_output(shard, session),
            Effect::Close { session } => {
                if let Some(client) = self.of_session.remove(&(shard, session)) {
                    let client = &mut self.clients[client];
                    client.open = false;
                    client.closed_by_server = true;
                }
            }
            Effect::Reading { session, on } => {
                if let Some(&client) = self.of_session.get(&(shard, session)) {
                    self.clients[client].server_reads = on;
                }
            }
            Effect::Assign {
                connection,
                client: number,
                shard: to,
            } => {
                assert_eq!(shard, 0, "shard 0 assigns connections");
                let peer = |port| Peer::Tcp(([127, 0, 0, 1], port).into());
                let (from, local) = (peer(40_000 + (number % 20_000) as u16), peer(7711));
                let session = self.shards[usize::from(to)].connect(self.now, number, from, local);
                let client = connection.0 as usize;
                let place = (to, session);
                self.clients[client].place = Some(place);
                let before = self.of_session.insert(place, client);
                assert!(before.is_none(), "a session has a name of its own");
                if to != shard {
                    self.after_step(to);
                }
            }
            Effect::Refuse { connection, reply } => {
                let client = &mut self.clients[connection.0 as usize];
                client.received.extend_from_slice(reply);
                client.open = false;
                client.closed_by_server = true;
            }
            Effect::Ask { ticket, question } => self.questions.push_back((shard, ticket, question)),
            Effect::Setting { name, value } => self.log.push(format!("setting {name} {value}")),
            Effect::Log { text, .. } => self.log.push(text),
            Effect::StopListening => self.log.push("stop listening".to_owned()),
            Effect::Stopped => self.stopped.push(shard),
            Effect::Crash => panic!("nobody asked for a crash"),
            other @ (Effect::Identity { .. }
            | Effect::Dial(_)
            | Effect::HangUp { .. }
            | Effect::SaveNodes { .. }) => self.calls.push((shard, other)),
            Effect::Disk { id, task } => self.tasks.push((shard, id, task)),
            Effect::Die { why } => self.died = self.died.take().or(Some(why)),
        }
    }

    fn take_output(&mut self, shard: ShardNo, session: SessionId) {
        let mut chunks = Vec::new();
        self.shards[usize::from(shard)].take_output(session, &mut chunks, self.take_bytes);
        if let Some(&client) = self.of_session.get(&(shard, session)) {
            chunks
                .iter()
                .for_each(|chunk| self.clients[client].leaving.extend(chunk));
        }
    }

    /// A client connects; it has a place at once, or was turned away.
    pub fn connect(&mut self) -> usize {
        let client = self.clients.len();
        let fresh = Client {
            open: true,
            server_reads: true,
            kernel_takes_all: true,
            ..Client::default()
        };
        self.clients.push(fresh);
        let connection = ConnectionId(client as u64);
        self.step(0, &Happening::Outside, Input::Accepted { connection });
        client
    }

    /// A client on this shard: connects until one is, those elsewhere leave again.
    pub fn connect_to(&mut self, shard: ShardNo) -> usize {
        let mut elsewhere = Vec::new();
        let client = loop {
            let client = self.connect();
            match self.clients[client].place {
                Some((on, _)) if on == shard => break client,
                _ => elsewhere.push(client),
            }
        };
        elsewhere.into_iter().for_each(|client| self.disconnect(client));
        client
    }

    fn place(&self, client: usize) -> Option<(ShardNo, SessionId)> {
        self.clients[client].place.filter(|_| self.clients[client].open)
    }

    /// The client sends; the server reads it when `arrive` is called, or the node rests.
    pub fn send(&mut self, client: usize, bytes: &[u8]) {
        self.clients[client].unread.extend(bytes);
    }

    /// Up to `most` bytes of what a client sent reach its session; how many did.
    pub fn arrive(&mut self, client: usize, most: usize) -> usize {
        let Some((shard, session)) = self.place(client) else {
            return 0;
        };
        let place = &mut self.clients[client];
        let count = if place.server_reads {
            most.min(place.unread.len())
        } else {
            0
        };
        if count > 0 {
            let bytes: Vec<u8> = place.unread.drain(..count).collect();
            self.step(
                shard,
                &Happening::Outside,
                Input::Bytes {
                    session,
                    bytes: &bytes,
                },
            );
        }
        count
    }

    /// The kernel takes up to `most` bytes of a client's output; how many it took.
    pub fn kernel_takes(&mut self, client: usize, most: usize) -> usize {
        let Some((shard, session)) = self.place(client) else {
            return 0;
        };
        let place = &mut self.clients[client];
        let count = most.min(place.leaving.len());
        if count > 0 {
            place.received.extend(place.leaving.drain(..count));
            self.step(
                shard,
                &Happening::Outside,
                Input::Sent {
                    session,
                    bytes: count,
                },
            );
        }
        count
    }

    /// The client's connection is gone.
    pub fn disconnect(&mut self, client: usize) {
        if let Some((shard, session)) = self.place(client) {
            self.clients[client].open = false;
            self.of_session.remove(&(shard, session));
            self.step(shard, &Happening::Outside, Input::Disconnected { session });
        }
        self.clients[client].open = false;
    }

    /// The client sends no more; what it sent before has arrived.
    pub fn half_close(&mut self, client: usize) {
        while self.arrive(client, usize::MAX) > 0 {}
        if let Some((shard, session)) = self.place(client) {
            self.clients[client].half_closed = true;
            self.step(shard, &Happening::Outside, Input::HalfClosed { session });
        }
    }

    /// SIGTERM.
    pub fn stop(&mut self) {
        self.step(0, &Happening::Outside, Input::Stop);
    }

    /// A task of the disk has ended.
    pub fn disk_done(&mut self, shard: ShardNo, id: u64, result: Result<Done, IoError>) {
        self.step(shard, &Happening::Outside, Input::Disk { id, result });
    }

    /// From now on what this shard sends to that one takes so long.
    pub fn delay_mesh(&mut self, from: ShardNo, to: ShardNo, delay_us: u64) {
        self.lanes[usize::from(from)][usize::from(to)].delay_us = delay_us;
    }

    /// Something happened to a link.
    pub fn link(&mut self, shard: ShardNo, link: LinkNo, event: LinkEvent) {
        self.step(shard, &Happening::Outside, Input::Link { link, event });
    }

    /// A batch of a shard of another node.
    pub fn bus(&mut self, shard: ShardNo, from: Sender, mut messages: Vec<BusMessage>) {
        let messages = &mut messages;
        self.step(shard, &Happening::Outside, Input::Bus { from, messages });
        assert!(messages.is_empty(), "a batch is taken whole");
    }

    /// Shard 0 says to a shard which nodes there are, of a node that is told so by its tests.
    pub fn publish(&mut self, shard: ShardNo, topology: Topology) {
        let message = Message::Node(NodeMessage::Topology(Box::new(topology)));
        let messages = &mut vec![message];
        self.step(shard, &Happening::Outside, Input::Mesh { from: 0, messages });
    }

    /// `nodes.conf` was written, or not.
    pub fn nodes_saved(&mut self, is_written: bool) {
        let result = if is_written {
            Ok(())
        } else {
            Err("no space left on the device".to_owned())
        };
        self.step(0, &Happening::Outside, Input::NodesSaved { result });
    }

    /// Lanes with a batch that has arrived.
    pub fn arrived(&self) -> Vec<(ShardNo, ShardNo)> {
        let mut arrived = Vec::new();
        for (from, lanes) in self.lanes.iter().enumerate() {
            for (to, lane) in lanes.iter().enumerate() {
                if lane
                    .batches
                    .front()
                    .is_some_and(|(arrival, _)| *arrival <= self.now.mono_us)
                {
                    arrived.push((from as ShardNo, to as ShardNo));
                }
            }
        }
        arrived
    }

    /// Delivers the first batch of a lane, joined with up to `more` of those that have arrived behind it.
    pub fn deliver(&mut self, from: ShardNo, to: ShardNo, more: usize) {
        let lane = &mut self.lanes[usize::from(from)][usize::from(to)];
        let (_, mut messages) = lane.batches.pop_front().expect("a batch has arrived");
        for _ in 0..more {
            if lane
                .batches
                .front()
                .is_some_and(|(arrival, _)| *arrival <= self.now.mono_us)
            {
                messages.extend(lane.batches.pop_front().expect("it is there").1);
            }
        }
        self.watch.before(self.now, to, &Happening::Mesh(from, &messages));
        self.shards[usize::from(to)].handle(
            self.now,
            Input::Mesh {
                from,
                messages: &mut messages,
            },
        );
        assert!(messages.is_empty(), "a batch is taken whole");
        self.after_step(to);
    }

    /// Whether a shard has work to do by itself now.
    pub fn is_due(&self, shard: ShardNo) -> bool {
        self.shards[usize::from(shard)]
            .next_deadline()
            .is_some_and(|deadline| deadline <= self.now.mono())
    }

    pub fn tick(&mut self, shard: ShardNo) {
        self.step(shard, &Happening::Tick, Input::Tick);
    }

    /// Answers the oldest question of a shard; whether there was one.
    pub fn answer_question(&mut self) -> bool {
        let Some((shard, ticket, question)) = self.questions.pop_front() else {
            return false;
        };
        let told = match question {
            Question::Process => Told::Process(Box::default()),
            Question::RewriteConfig => Told::Rewritten(Err(CommandError::other("no configuration file"))),
            Question::Folder(_) => Told::Folder(Ok(())),
        };
        self.step(shard, &Happening::Outside, Input::Told { ticket, told });
        true
    }

    /// Does whatever can be done without time passing, until nothing is left.
    ///
    /// # Panics
    /// When the node does not come to rest.
    pub fn rest(&mut self) {
        for _ in 0..STEPS_TO_REST {
            let mut done = self.answer_question();
            for client in 0..self.clients.len() {
                done |= self.arrive(client, usize::MAX) > 0;
                done |= self.clients[client].kernel_takes_all && self.kernel_takes(client, usize::MAX) > 0;
            }
            for (from, to) in self.arrived() {
                self.deliver(from, to, 64);
                done = true;
            }
            for shard in 0..self.count() {
                // The end of a turn: what the shard notes for it (sessions that ended, memory) is not announced by a deadline.
                let due = self.is_due(shard);
                if due || done {
                    self.tick(shard);
                }
                done |= due;
            }
            if !done {
                assert!(self.died.is_none(), "the node died: {:?}", self.died);
                assert!(self.outgoing.is_empty(), "a node alone has nobody to talk to");
                return;
            }
        }
        panic!("the node does not come to rest");
    }

    /// The next instant at which something happens by itself, in microseconds: a deadline or an arrival.
    pub fn next_event_us(&self) -> Option<u64> {
        let deadlines = self
            .shards
            .iter()
            .filter_map(|shard| shard.next_deadline())
            .map(|deadline| deadline.0.saturating_mul(1000));
        let lanes = self.lanes.iter().flatten();
        let arrivals = lanes
            .filter_map(|lane| lane.batches.front())
            .map(|(arrival, _)| *arrival);
        deadlines.chain(arrivals).min()
    }

    /// Moves both clocks forward at once, whatever lies between.
    pub fn leap(&mut self, us: u64) {
        self.now.mono_us += us;
        self.now.wall_us += us;
    }

    /// Lets so much time pass, every event at its instant.
    pub fn wait_us(&mut self, us: u64) {
        let end = self.now.mono_us + us;
        self.rest();
        while let Some(next) = self.next_event_us().filter(|&next| next <= end) {
            let step = next.saturating_sub(self.now.mono_us);
            self.leap(step);
            self.rest();
        }
        self.leap(end - self.now.mono_us);
        self.rest();
    }
}
