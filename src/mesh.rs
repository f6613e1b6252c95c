//! The mesh between the shards of the node: batches of messages, and accepted connections on their way to their shard.
//!
//! A message here is one batch: everything that a shard has for another one at the end of a turn. Nobody waits to
//! send: when a channel is full, what was to go stays here, in order, and is offered again in the next turn; the shard is not asked
//! for more meanwhile. A small task for each peer moves what arrives to a local inbox and rings the loop. glommio wakes an executor that
//! sleeps for it; a shard that does not run its executor at the moment knows from its bell that it is to.
//!
//! glommio numbers the peers of a mesh by the order in which their executors were made, so the node makes them in the order of their
//! shards: peer number = shard number.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;
use std::sync::Arc;

use glommio::channels::channel_mesh::{Full, MeshBuilder, Senders};
use glommio::{GlommioError, ResourceType};
use shard::message::Message;
use shard::slot::ShardNo;

use crate::bell::Bells;
use crate::bus::Visitor;
use crate::net::Arrival;
use crate::wakeup::Wakeup;

/// Batches that may be on their way from one shard to another. A turn sends one, and what is behind a full
/// channel is gathered into the next batch, so few are enough.
const CHANNEL_BATCHES: usize = 16;
/// Emptied batches kept for use as outgoing ones.
const SPARE_BATCHES: usize = 64;
/// Messages for which a spare batch may have room: one that was larger is given up instead.
const SPARE_MESSAGES: usize = 4096;

/// What travels between shards.
#[derive(Debug)]
pub enum Envelope {
    /// Messages, in order.
    Batch(Vec<Message>),
    /// A connection that shard 0 accepted, with its client's number.
    Arrival {
        /// The client's number.
        client: u64,
        /// The connection.
        arrival: Arrival,
    },
    /// A connection of another node, which shard 0 accepted.
    Visitor(Visitor),
}

/// Makes the meshes of all shards of a node; clones join the same one.
pub type Builder = MeshBuilder<Envelope, Full>;

/// A builder for a node of `shards` shards.
pub fn builder(shards: u16) -> Builder {
    MeshBuilder::full(usize::from(shards), CHANNEL_BATCHES)
}

type Inbox = Rc<RefCell<VecDeque<(ShardNo, Envelope)>>>;

/// One shard's end of the mesh.
pub struct Mesh {
    /// None on a node of one shard.
    senders: Option<Senders<Envelope>>,
    bells: Bells,
    outgoing: Vec<VecDeque<Envelope>>,
    inbox: Inbox,
    spare: Vec<Vec<Message>>,
}

impl Mesh {
    /// Joins; ready when all shards have joined. Arrivals ring `wakeup`.
    pub async fn join(
        builder: Builder,
        shard: ShardNo,
        shards: u16,
        wakeup: &Arc<Wakeup>,
        bells: Bells,
    ) -> Self {
        let inbox = Inbox::default();
        let mut senders = None;
        if shards > 1 {
            let (to, mut from) = builder
                .join()
                .await
                .expect("a mesh has room for each of its shards");
            assert_eq!(
                to.peer_id(),
                usize::from(shard),
                "executors are made in shard order"
            );
            for (peer, receiver) in from.streams() {
                let peer = ShardNo::try_from(peer).expect("peers are shards");
                let (inbox, wakeup) = (Rc::clone(&inbox), Arc::clone(wakeup));
                glommio::spawn_local(async move {
                    while let Some(envelope) = receiver.recv().await {
                        inbox.borrow_mut().push_back((peer, envelope));
                        wakeup.ring();
                    }
                })
                .detach();
            }
            senders = Some(to);
        }
        Self {
            senders,
            bells,
            outgoing: (0..shards).map(|_| VecDeque::new()).collect(),
            inbox,
            spare: Vec::new(),
        }
    }

    /// The next thing that arrived, from whom.
    pub fn receive(&mut self) -> Option<(ShardNo, Envelope)> {
        self.inbox.borrow_mut().pop_front()
    }

    /// Whether something arrived.
    pub fn has_arrived(&self) -> bool {
        !self.inbox.borrow().is_empty()
    }

    /// Whether nothing is held back for that shard, so that it can be sent more.
    pub fn is_free(&self, to: ShardNo) -> bool {
        self.outgoing[usize::from(to)].is_empty()
    }

    /// Whether anything is held back because a channel was full.
    pub fn has_backlog(&self) -> bool {
        self.outgoing.iter().any(|queue| !queue.is_empty())
    }

    /// Puts something behind what is on its way to that shard; [`Mesh::flush`] sends it.
    pub fn post(&mut self, to: ShardNo, envelope: Envelope) {
        self.outgoing[usize::from(to)].push_back(envelope);
    }

    /// An empty batch.
    pub fn empty_batch(&mut self) -> Vec<Message> {
        self.spare.pop().unwrap_or_default()
    }

    /// Takes back a batch that was emptied.
    pub fn recycle(&mut self, batch: Vec<Message>) {
        assert!(batch.is_empty(), "a batch is handled whole");
        if self.spare.len() < SPARE_BATCHES && batch.capacity() <= SPARE_MESSAGES {
            self.spare.push(batch);
        }
    }

    /// Sends what waits, as far as there is room.
    pub fn flush(&mut self) {
        let Some(senders) = &self.senders else { return };
        for (peer, queue) in self.outgoing.iter_mut().enumerate() {
            let waiting = queue.len();
            while let Some(envelope) = queue.pop_front() {
                match senders.try_send_to(peer, envelope) {
                    Ok(()) => {}
                    Err(GlommioError::WouldBlock(ResourceType::Channel(envelope))) => {
                        queue.push_front(envelope);
                        break;
                    }
                    // The other shard has stopped, which it only does when the node stops: nobody needs it any more.
                    Err(GlommioError::Closed(_)) => {}
                    Err(error) => panic!("the mesh refuses a batch for shard {peer}: {error}"),
                }
            }
            if queue.len() < waiting {
                self.bells.ring(peer as ShardNo);
            }
        }
    }
}
