//! The sockets between nodes, behind a narrow interface: events out by [`Bus::next`], calls in.
//!
//! Connecting, accepting and the handshake go through glommio; a link that has proved itself is on the shard's ring, where it has one.
//! Each link has a small task of its own; between the tasks and the loop there are only what waits to be sent ([`dial`]), what was
//! received ([`receive`]) and one list of events. What must hold:
//!
//! - A link that is dialed is dialed again until it is hung up, and tells each time it comes or goes.
//! - Nobody's bytes reach the loop before they have proved themselves; shard 0 sees to that ([`accept`]) and brings the connection to
//!   the shard whose number is the dialer's, modulo the number of shards.
//! - What a peer sends and the loop has not taken is bounded, all unfinished frames together too, and so is what waits for a peer: then
//!   frames are dropped, and counted.

mod accept;
mod dial;
mod receive;
mod resolve;
#[cfg(test)]
mod tests;
mod wire;

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use shard::bus::codec::{Decoder, Encoder};
use shard::bus::frame::BadFrame;
use shard::bus::handshake::HandshakeError;
use shard::bus::keepalive::silence_us;
use shard::bus::{BusMessage, Dial, LinkEvent, LinkKind, LinkNo, Sender, Traffic};
use shard::id::NodeId;
use shard::slot::ShardNo;
use thiserror::Error;
use tracing::warn;

use crate::net::{Listener, Ring};
use crate::wakeup::Wakeup;
use crate::worker::Clock;
pub use accept::Visitor;
use dial::{Link, Outbox};
use receive::{Incoming, Unfinished};
use wire::Wire;

/// How long a handshake may take.
const HANDSHAKE: Duration = Duration::from_secs(3);
/// Bytes of one receive at the most.
const RECEIVE_BYTES: usize = 64 << 10;
/// Links of other nodes that a shard serves at the most: a node has one for each of its shards that this one serves.
const INCOMING: usize = 4096;
/// Pause between two lines about other nodes' mistakes.
const COMPLAINT_US: u64 = 1_000_000;

/// Something that happened.
#[derive(Debug)]
pub enum Event {
    /// To a link that this shard dialed.
    Link(LinkNo, LinkEvent),
    /// A batch came; its messages are where [`Bus::next`] was told to put them.
    Batch(Sender, usize),
    /// Shard 0: a connection has proved itself, and is to be brought to its shard.
    Visitor(Visitor),
}

/// What a bus is made of.
pub struct Parts {
    /// Whose it is.
    pub shard: ShardNo,
    /// How many shards there are.
    pub shards: u16,
    /// The clocks.
    pub clock: Clock,
    /// Where the loop sleeps.
    pub wakeup: Arc<Wakeup>,
    /// Where its links are; none: they are glommio's sockets.
    pub ring: Option<Ring>,
    /// `cluster-secret`; empty: none.
    pub secret: Vec<u8>,
    /// `cluster-node-timeout`.
    pub node_timeout_ms: u64,
}

/// The links of a shard.
pub struct Bus {
    shared: Rc<Shared>,
    listeners: Vec<glommio::Task<()>>,
    links: BTreeMap<LinkNo, Dialed>,
    generation: u64,
    incoming: BTreeMap<Dialer, (Rc<Incoming>, glommio::Task<()>)>,
    encoder: Encoder,
    decoder: Decoder,
}

/// Who this node is to others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Identity {
    node: NodeId,
    epoch: u64,
}

/// Whose link it is: node, shard, and whether it is one of membership.
type Dialer = (NodeId, ShardNo, bool);

/// A link that is to be kept.
struct Dialed {
    dial: Dial,
    generation: u64,
    outbox: Rc<Outbox>,
    /// It ends when this is dropped; none before this node knows who it is.
    _task: Option<glommio::Task<()>>,
}

/// What the tasks tell the loop.
enum What {
    Link {
        link: LinkNo,
        generation: u64,
        event: LinkEvent,
    },
    Batch(Rc<Incoming>, Bytes),
    Gone(Rc<Incoming>),
    Visitor(Visitor),
}

/// What the loop and all tasks have in common.
struct Shared {
    shard: ShardNo,
    shards: u16,
    clock: Clock,
    wakeup: Arc<Wakeup>,
    ring: Option<Ring>,
    /// Tasks of links were woken.
    has_woken: Cell<bool>,
    secret: Vec<u8>,
    identity: Cell<Option<Identity>>,
    silence_us: Cell<u64>,
    /// Membership goes first.
    urgent: RefCell<VecDeque<What>>,
    events: RefCell<VecDeque<What>>,
    traffic: RefCell<Traffic>,
    buffer: RefCell<Box<[u8]>>,
    complaints: RefCell<Complaints>,
    unfinished: RefCell<Unfinished>,
}

#[derive(Default)]
struct Complaints {
    next_us: u64,
    left_out: u64,
}

/// Why a link is not connected any more, or not at all.
#[derive(Debug, Error)]
enum LinkError {
    #[error("{0}")]
    Io(#[from] io::Error),
    #[error("cannot connect: {0}")]
    Connect(String),
    #[error(transparent)]
    Handshake(#[from] HandshakeError),
    #[error("{0}")]
    Frame(#[from] BadFrame),
    #[error("the other node closed it")]
    Ended,
    #[error("the other node does not answer")]
    Silent,
    #[error("the other node does not answer the handshake in time")]
    Late,
    #[error("the other node says what nobody asked")]
    Unasked,
}

impl Shared {
    fn now_us(&self) -> u64 {
        self.clock.now().mono_us
    }

    fn tell(&self, what: What) {
        let is_urgent = matches!(&what, What::Batch(from, _) if from.from.kind == LinkKind::Membership);
        let events = if is_urgent { &self.urgent } else { &self.events };
        events.borrow_mut().push_back(what);
        self.wakeup.ring();
    }

    fn count(&self, count: impl FnOnce(&mut Traffic)) {
        count(&mut self.traffic.borrow_mut());
    }

    /// A line about what another node does wrong; they may come as quickly as it likes, and are left out then.
    fn complain(&self, text: &str) {
        let (mut complaints, now_us) = (self.complaints.borrow_mut(), self.now_us());
        if now_us < complaints.next_us {
            complaints.left_out += 1;
            return;
        }
        complaints.next_us = now_us + COMPLAINT_US;
        match std::mem::take(&mut complaints.left_out) {
            0 => warn!("bus: {text}"),
            left_out => warn!("bus: {text} ({left_out} lines like this were left out)"),
        }
    }
}

impl Bus {
    /// A bus without links.
    pub fn new(parts: Parts) -> Self {
        Self {
            shared: Rc::new(Shared {
                shard: parts.shard,
                shards: parts.shards,
                clock: parts.clock,
                wakeup: parts.wakeup,
                ring: parts.ring,
                has_woken: Cell::default(),
                secret: parts.secret,
                identity: Cell::new(None),
                silence_us: Cell::new(silence_us(parts.node_timeout_ms)),
                urgent: RefCell::default(),
                events: RefCell::default(),
                traffic: RefCell::default(),
                buffer: RefCell::new(vec![0; RECEIVE_BYTES].into_boxed_slice()),
                complaints: RefCell::default(),
                unfinished: RefCell::default(),
            }),
            listeners: Vec::new(),
            links: BTreeMap::new(),
            generation: 0,
            incoming: BTreeMap::new(),
            encoder: Encoder::default(),
            decoder: Decoder::default(),
        }
    }

    /// Accepts connections from now on. Must be called on the shard's executor.
    pub fn listen(&mut self, listeners: Vec<Listener>) {
        for listener in listeners {
            let task = accept::run(listener, Rc::clone(&self.shared));
            self.listeners.push(glommio::spawn_local(task));
        }
    }

    /// Accepts no more connections.
    pub fn stop_listening(&mut self) {
        self.listeners.clear();
    }

    /// Another `cluster-node-timeout`.
    pub fn set_node_timeout(&mut self, node_timeout_ms: u64) {
        self.shared.silence_us.set(silence_us(node_timeout_ms));
    }

    /// Who this node is from now on; all links are made anew, and those of other nodes are closed.
    pub fn set_identity(&mut self, node: NodeId, epoch: u64) {
        self.shared.identity.set(Some(Identity { node, epoch }));
        self.incoming.retain(|_, (incoming, _)| {
            // Shard 0 may have been the first to have it.
            let is_new = incoming.told_epoch == epoch;
            if !is_new {
                incoming.close();
            }
            is_new
        });
        let dials: Vec<_> = self.links.values().map(|link| link.dial.clone()).collect();
        for dial in dials {
            let link = dial.link;
            let was_up = self.dial(dial);
            if was_up {
                let why = "this node has another identity now".to_owned();
                let generation = self.generation;
                let event = LinkEvent::Down { why };
                self.shared.tell(What::Link {
                    link,
                    generation,
                    event,
                });
            }
        }
    }

    /// Keeps a link from now on, instead of one of that name if there is one; whether that was up.
    pub fn dial(&mut self, dial: Dial) -> bool {
        self.generation += 1;
        let (generation, outbox) = (self.generation, Rc::<Outbox>::default());
        let task = self.shared.identity.get().map(|identity| {
            let link = Link {
                dial: dial.clone(),
                identity,
                generation,
                outbox: Rc::clone(&outbox),
                shared: Rc::clone(&self.shared),
            };
            glommio::spawn_local(link.keep())
        });
        let dialed = Dialed {
            dial,
            generation,
            outbox,
            _task: task,
        };
        let before = self.links.insert(dialed.dial.link, dialed);
        before.is_some_and(|before| before.outbox.is_up())
    }

    /// Keeps a link no longer.
    pub fn hang_up(&mut self, link: LinkNo) {
        self.links.remove(&link);
    }

    /// Sends a batch over a link, emptying it; what the link does not take is dropped.
    pub fn send(&mut self, link: LinkNo, batch: &mut Vec<BusMessage>) {
        let Some(dialed) = self.links.get(&link) else {
            batch.clear();
            return;
        };
        let shared = &self.shared;
        self.encoder.encode(batch, |frame| {
            let messages = u64::from(frame.messages);
            let is_admitted = dialed.outbox.admit(frame);
            shared.has_woken.set(true);
            shared.count(|traffic| {
                if is_admitted {
                    traffic.messages_sent += messages;
                } else {
                    traffic.frames_dropped += 1;
                }
            });
        });
    }

    /// Serves a connection of another node.
    pub fn adopt(&mut self, visitor: Visitor) {
        let Visitor {
            socket,
            peer,
            told_epoch,
        } = visitor;
        // It may have been on its way while this node took another identity.
        if self
            .shared
            .identity
            .get()
            .is_some_and(|identity| told_epoch < identity.epoch)
        {
            return;
        }
        let key = (peer.node, peer.shard, peer.kind == LinkKind::Membership);
        if self.incoming.len() >= INCOMING && !self.incoming.contains_key(&key) {
            self.shared
                .complain(&format!("no room for a link of node {}", peer.node));
            return;
        }
        let wire = Wire::adopt(socket, self.shared.ring.as_ref());
        let from = Sender {
            node: peer.node,
            epoch: peer.epoch,
            shard: peer.shard,
            kind: peer.kind,
            ip: wire.ends().1,
        };
        let incoming = Incoming::new(from, told_epoch);
        let task = receive::run(Rc::clone(&incoming), wire, Rc::clone(&self.shared));
        // A dialer that lost its link dials again, sometimes before this side notices.
        self.incoming.insert(key, (incoming, glommio::spawn_local(task)));
        self.shared.has_woken.set(true);
    }

    /// The next event, if anything happened. The messages of a batch are added to `messages`.
    pub fn next(&mut self, messages: &mut Vec<BusMessage>) -> Option<Event> {
        loop {
            let urgent = self.shared.urgent.borrow_mut().pop_front();
            let what = match urgent {
                Some(what) => what,
                None => self.shared.events.borrow_mut().pop_front()?,
            };
            match what {
                What::Link {
                    link,
                    generation,
                    event,
                } => {
                    let present = self.links.get(&link);
                    if present.is_some_and(|present| present.generation == generation) {
                        return Some(Event::Link(link, event));
                    }
                }
                What::Batch(incoming, batch) => {
                    self.shared.has_woken.set(true);
                    if incoming.took(batch.len()) && self.decode(&incoming, &batch, messages) {
                        return Some(Event::Batch(incoming.from, batch.len()));
                    }
                }
                What::Gone(incoming) => self.forget(&incoming),
                What::Visitor(visitor) => return Some(Event::Visitor(visitor)),
            }
        }
    }

    /// Whether [`Bus::next`] may have an event.
    pub fn has_events(&self) -> bool {
        !self.shared.events.borrow().is_empty() || !self.shared.urgent.borrow().is_empty()
    }

    /// Whether tasks of links were woken since the last call: they are to run before the loop sends, or sleeps.
    pub fn has_woken(&self) -> bool {
        self.shared.has_woken.take()
    }

    /// Whether anything waits to be sent.
    pub fn is_flushing(&self) -> bool {
        self.links.values().any(|link| link.outbox.bytes() > 0)
    }

    /// What was counted since the last call.
    pub fn take_traffic(&mut self) -> Traffic {
        self.shared.traffic.take()
    }

    /// Whether a batch is one; else its link is closed.
    fn decode(&mut self, incoming: &Rc<Incoming>, batch: &Bytes, messages: &mut Vec<BusMessage>) -> bool {
        let before = messages.len();
        match self.decoder.decode(batch, incoming.from.kind, messages) {
            Ok(()) => {
                let count = messages.len() - before;
                self.shared
                    .count(|traffic| traffic.messages_received += count as u64);
                true
            }
            Err(error) => {
                messages.truncate(before);
                incoming.close();
                let Sender { node, shard, .. } = incoming.from;
                self.shared
                    .complain(&format!("closed a link of node {node}, shard {shard}: {error}"));
                self.forget(incoming);
                false
            }
        }
    }

    fn forget(&mut self, incoming: &Rc<Incoming>) {
        let Sender {
            node, shard, kind, ..
        } = incoming.from;
        let key = (node, shard, kind == LinkKind::Membership);
        let is_present = |(present, _): &(Rc<Incoming>, _)| Rc::ptr_eq(present, incoming);
        if self.incoming.get(&key).is_some_and(is_present) {
            self.incoming.remove(&key);
        }
    }
}

/// Random bytes of the system.
fn random<const N: usize>() -> io::Result<[u8; N]> {
    let mut bytes = [0; N];
    getrandom::fill(&mut bytes).map_err(io::Error::from)?;
    Ok(bytes)
}

/// Chance for pauses: any will do.
fn chance() -> u32 {
    random().map_or(u32::MAX / 2, u32::from_le_bytes)
}
