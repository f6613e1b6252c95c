//! One core's share of a node: the single entry of the server into everything that decides.

use bytes::Bytes;

use crate::clock::{Mono, Now};
use crate::id::NodeId;
use crate::input::{ConnectionId, Effect, Input, Peer};
use crate::message::{Message, SessionId};
use crate::settings::Settings;
use crate::slot::ShardNo;

/// What a shard is made of.
#[derive(Clone, Debug)]
pub struct ShardOptions {
    /// Its number.
    pub shard: ShardNo,
    /// How many the node has.
    pub shards: u16,
    /// The node.
    pub node: NodeId,
    /// Chance for job IDs; another one for each shard.
    pub seed: [u8; 32],
    /// Chance for hash maps.
    pub hash_seed: u64,
    /// What does not change.
    pub facts: NodeFacts,
}

/// What the node is and does not change while it runs; INFO, HELLO and CLUSTER show it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeFacts {
    /// Process ID.
    pub process_id: u32,
    /// 40 hex digits, new at each start.
    pub run_id: String,
    /// Path of the program.
    pub executable: String,
    /// Path of the configuration file, or empty.
    pub config_file: String,
    /// Operating system, as `uname` says.
    pub os: String,
    /// Version of the product.
    pub version: String,
}

/// One core's share of a node.
pub struct Shard {
    _todo: (),
}

impl Shard {
    /// A shard without sessions and jobs.
    pub fn new(options: ShardOptions, settings: Settings, now: Now) -> Self {
        let _ = (options, settings, now);
        unimplemented!()
    }

    /// Makes the session of a connection that `Effect::Assign` gave to this shard. `local` is the address it came in on.
    pub fn connect(&mut self, now: Now, connection: ConnectionId, client: u64, peer: Peer, local: Peer) -> SessionId {
        let _ = (now, connection, client, peer, local);
        unimplemented!()
    }

    /// Handles one input. Effects are appended to what `take_effects` gives.
    pub fn handle(&mut self, now: Now, input: Input<'_>) {
        let _ = (now, input);
        unimplemented!()
    }

    /// Moves the effects so far to `effects`.
    pub fn take_effects(&mut self, effects: &mut Vec<Effect>) {
        let _ = effects;
        unimplemented!()
    }

    /// Moves what waits for shard `to` to `batch`; empty when there is nothing. One batch a turn: that is where throughput comes from.
    pub fn take_mesh(&mut self, to: ShardNo, batch: &mut Vec<Message>) {
        let _ = (to, batch);
        unimplemented!()
    }

    /// Moves a session's output, whole chunks, up to about `max_bytes`; nothing when the session is gone or has none.
    pub fn take_output(&mut self, session: SessionId, chunks: &mut Vec<Bytes>, max_bytes: usize) {
        let _ = (session, chunks, max_bytes);
        unimplemented!()
    }

    /// When `Input::Tick` is due; `None` when only an input can bring work. Never later than `Mono(now)` when work is left.
    pub fn next_deadline(&self) -> Option<Mono> {
        unimplemented!()
    }
}
