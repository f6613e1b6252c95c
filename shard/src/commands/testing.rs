//! What the tests of the commands share: requests made of words, and replies as text.

use std::net::SocketAddr;

use crate::bus::{
    BusMessage, LinkEvent, LinkKind, LinkNo, Peer as Other, PeerNo, PeerState, Sender, Topology,
};
use crate::clock::Now;
use crate::id::NodeId;
use crate::input::{ConnectionId, Effect, Input, Peer, Question, Told};
use crate::message::{Message, SessionId};
use crate::node::NodeMessage;
use crate::settings::Settings;
use crate::shard::{NodeFacts, Shard, ShardOptions};
use crate::slot::ShardNo;
use crate::wire::{Args, Encoder, Output, Parser, RequestLimits, encode_request};

/// Calls `look` with the arguments of a request of these words.
pub fn with_args<T, W: AsRef<[u8]>>(words: &[W], look: impl FnOnce(Args<'_>) -> T) -> T {
    let mut request = Vec::new();
    encode_request(words, &mut request);
    let mut parser = Parser::new();
    let args = parser
        .next(&mut &request[..], &RequestLimits::FULL)
        .expect("a well-formed request");
    look(args.expect("a whole request"))
}

/// What `write` writes, in RESP2 or RESP3.
pub fn reply(resp3: bool, write: impl FnOnce(&mut Encoder<'_>)) -> String {
    let mut output = Output::new();
    write(&mut Encoder::new(&mut output, resp3));
    let mut chunks = Vec::new();
    output.take_chunks(&mut chunks, usize::MAX);
    String::from_utf8_lossy(&chunks.concat()).into_owned()
}

/// A node of some shards in one thread, with clients: what the server would be, as far as commands need it.
pub struct TestNode {
    shards: Vec<Shard>,
    now: Now,
    clients: Vec<TestClient>,
    /// Settings that the server was told of.
    pub settings: Vec<(&'static str, String)>,
    /// Lines of the server's log.
    pub log: Vec<String>,
    /// Whether the process was ended by DEBUG.
    pub crashed: bool,
    /// Shards that have stopped.
    pub stopped: usize,
    /// Messages with lines of MONITOR's feed that went from shard to shard.
    pub feed_messages: usize,
    knows_others: bool,
}

struct TestClient {
    shard: usize,
    session: SessionId,
    received: Vec<u8>,
    closed: bool,
}

impl TestNode {
    /// A node of so many shards.
    pub fn new(shards: u16, settings: Settings) -> Self {
        let now = Now {
            mono_us: 1_000_000,
            wall_us: 1_700_000_000_000_000,
        };
        let options = |shard| ShardOptions {
            shard,
            shards,
            node: NodeId::from_bytes([0xab; 20]),
            seed: [shard as u8; 32],
            hash_seed: 1,
            log: crate::log::LogBoot::nothing(),
            facts: NodeFacts {
                version: "0.1.0".to_owned(),
                ..NodeFacts::default()
            },
        };
        let mut node = Self {
            shards: (0..shards)
                .map(|shard| Shard::new(options(shard), settings.clone(), now))
                .collect(),
            now,
            clients: Vec::new(),
            settings: Vec::new(),
            log: Vec::new(),
            crashed: false,
            stopped: 0,
            feed_messages: 0,
            knows_others: false,
        };
        node.settle();
        node
    }

    /// Connects a client, to the shard that shard 0 chooses; gives its place.
    pub fn connect(&mut self) -> usize {
        let connection = ConnectionId(self.clients.len() as u64);
        self.step(0, Input::Accepted { connection });
        self.settle();
        self.clients.len() - 1
    }

    fn assign(&mut self, client: u64, shard: ShardNo) {
        let peer = Peer::Tcp(SocketAddr::from(([127, 0, 0, 1], 40_000 + client as u16)));
        let local = Peer::Tcp(SocketAddr::from(([127, 0, 0, 1], 7711)));
        let shard = usize::from(shard);
        let session = self.shards[shard].connect(self.now, client, peer, local);
        self.clients.push(TestClient {
            shard,
            session,
            received: Vec::new(),
            closed: false,
        });
    }

    /// Sends a request of these words, separated by blanks; gives all that came back.
    pub fn ask(&mut self, client: usize, request: &str) -> String {
        self.ask_words(client, &request.split(' ').collect::<Vec<_>>())
    }

    /// The same with the words as they are.
    pub fn ask_words(&mut self, client: usize, words: &[&str]) -> String {
        let mut bytes = Vec::new();
        encode_request(words, &mut bytes);
        let TestClient {
            shard,
            session,
            closed,
            ..
        } = self.clients[client];
        assert!(!closed, "the connection is closed");
        self.step(
            shard,
            Input::Bytes {
                session,
                bytes: &bytes,
            },
        );
        self.settle();
        self.received(client)
    }

    /// What has come since the last look.
    pub fn received(&mut self, client: usize) -> String {
        let received = std::mem::take(&mut self.clients[client].received);
        String::from_utf8_lossy(&received).into_owned()
    }

    /// Whether the connection was closed.
    pub fn is_closed(&self, client: usize) -> bool {
        self.clients[client].closed
    }

    /// The client goes away.
    pub fn disconnect(&mut self, client: usize) {
        let TestClient { shard, session, .. } = self.clients[client];
        self.clients[client].closed = true;
        self.step(shard, Input::Disconnected { session });
        self.settle();
    }

    /// Another node is there, with a link from every shard.
    pub fn know(&mut self, node: NodeId) {
        let other = Other {
            no: PeerNo(0),
            id: node,
            epoch: 1,
            bus: ("other".to_owned(), 1),
            clients: ("other".to_owned(), 2),
            host: 2,
            zone: 0,
            state: PeerState::Alive,
            leaving: false,
            memory_level: 0,
            lost: false,
        };
        self.knows_others = true;
        for shard in 0..self.shards.len() {
            let topology = Topology {
                node: NodeId::from_bytes([0xab; 20]),
                epoch: 1,
                host: 1,
                zone: 0,
                leaving: false,
                peers: vec![other.clone()],
            };
            let message = Message::Node(NodeMessage::Topology(Box::new(topology)));
            let messages = &mut vec![message];
            self.step(shard, Input::Mesh { from: 0, messages });
            let event = LinkEvent::Up {
                node,
                epoch: 1,
                rtt_us: 100,
                local: None,
                remote: None,
            };
            let link = LinkNo(0);
            self.step(shard, Input::Link { link, event });
        }
        self.settle();
        self.take_bus();
    }

    /// What there is for the other node.
    pub fn take_bus(&mut self) -> Vec<BusMessage> {
        let mut all = Vec::new();
        for shard in &mut self.shards {
            let mut batch = Vec::new();
            while shard.take_bus(&mut batch).is_some() {
                all.append(&mut batch);
            }
        }
        all
    }

    /// The other node says something, to shard 0.
    pub fn hear(&mut self, node: NodeId, message: BusMessage) {
        let from = Sender {
            node,
            epoch: 1,
            shard: 0,
            kind: LinkKind::Data,
            ip: None,
        };
        let messages = &mut vec![message];
        self.step(0, Input::Bus { from, messages });
        self.settle();
    }

    /// Time goes by.
    pub fn wait_ms(&mut self, ms: u64) {
        self.now.mono_us += ms * 1000;
        self.now.wall_us += ms * 1000;
        (0..self.shards.len()).for_each(|shard| self.step(shard, Input::Tick));
        self.settle();
    }

    /// Carries messages and effects until nothing is left to do at this moment.
    fn settle(&mut self) {
        for _ in 0..1_000 {
            let mut busy = false;
            for shard in 0..self.shards.len() {
                busy |= self.carry_messages(shard);
                if self.shards[shard]
                    .next_deadline()
                    .is_some_and(|deadline| deadline <= self.now.mono())
                {
                    self.step(shard, Input::Tick);
                    busy = true;
                }
            }
            if !busy {
                return;
            }
        }
        panic!("the node does not come to rest");
    }

    fn carry_messages(&mut self, from: usize) -> bool {
        let mut carried = false;
        for to in (0..self.shards.len()).filter(|to| *to != from) {
            let mut messages = Vec::new();
            self.shards[from].take_mesh(to as ShardNo, &mut messages);
            if !messages.is_empty() {
                carried = true;
                self.feed_messages += messages.iter().filter(|message| is_feed(message)).count();
                self.step(
                    to,
                    Input::Mesh {
                        from: from as ShardNo,
                        messages: &mut messages,
                    },
                );
            }
        }
        carried
    }

    fn step(&mut self, shard: usize, input: Input<'_>) {
        self.now.mono_us += 10;
        self.shards[shard].handle(self.now, input);
        let mut effects = Vec::new();
        self.shards[shard].take_effects(&mut effects);
        effects.into_iter().for_each(|effect| self.perform(shard, effect));
    }

    fn perform(&mut self, shard: usize, effect: Effect) {
        match effect {
            Effect::Send { session } => self.send(shard, session),
            Effect::Close { session } => {
                if let Some(client) = self.client_of(shard, session) {
                    client.closed = true;
                }
            }
            Effect::Ask { ticket, question } => {
                let told = match question {
                    Question::Process => Told::Process(Box::default()),
                    Question::RewriteConfig => Told::Rewritten(Ok(())),
                    Question::Folder(_) => Told::Folder(Ok(())),
                };
                self.step(shard, Input::Told { ticket, told });
            }
            Effect::Setting { name, value } => self.settings.push((name, value)),
            Effect::Log { text, .. } => self.log.push(text),
            Effect::Crash => self.crashed = true,
            Effect::Identity { .. } | Effect::Dial(_) if self.knows_others => {}
            other @ (Effect::Identity { .. }
            | Effect::Dial(_)
            | Effect::HangUp { .. }
            | Effect::SaveNodes { .. }) => {
                panic!("{other:?}: this node is alone")
            }
            Effect::Disk { task, .. } => panic!("no log was asked for: {task:?}"),
            Effect::Die { why } => panic!("{why}"),
            Effect::Stopped => self.stopped += 1,
            Effect::Assign { client, shard, .. } => self.assign(client, shard),
            Effect::Refuse { .. } => panic!("a test connects few clients"),
            Effect::Reading { .. } | Effect::StopListening => {}
        }
    }

    fn send(&mut self, shard: usize, session: SessionId) {
        let mut chunks = Vec::new();
        self.shards[shard].take_output(session, &mut chunks, usize::MAX);
        let bytes = chunks.concat();
        if let Some(client) = self.client_of(shard, session) {
            client.received.extend_from_slice(&bytes);
        }
        if !bytes.is_empty() {
            self.step(
                shard,
                Input::Sent {
                    session,
                    bytes: bytes.len(),
                },
            );
        }
    }

    fn client_of(&mut self, shard: usize, session: SessionId) -> Option<&mut TestClient> {
        self.clients
            .iter_mut()
            .find(|client| client.shard == shard && client.session == session)
    }
}

fn is_feed(message: &Message) -> bool {
    matches!(message, Message::Node(NodeMessage::Feed { .. }))
}
