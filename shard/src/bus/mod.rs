//! What nodes say to each other, and the links they say it over.
//!
//! Each shard keeps a link of its own to each peer node, and sends on that one only; what it receives comes over links that the
//! peer's shards dialed. A message is addressed by its slot: the shard that receives it brings it to the home shard (over the mesh
//! when that is another). Shard 0 keeps one more link to each node, for membership alone: a large body on the way must not delay a probe.
//!
//! Reading order: `message` (what is said) - `peers` (who there is, as a shard sees it) - `frame`, `codec` (messages as bytes) -
//! `handshake` (who is there), `keepalive` (whether it still is). `src/bus` has the sockets.

pub mod codec;
pub mod frame;
pub mod handshake;
pub mod keepalive;
pub mod message;
pub mod peers;

use std::net::IpAddr;

use crate::id::NodeId;
use crate::slot::ShardNo;

pub use message::BusMessage;
pub use peers::{Peer, PeerNo, PeerState, Peers, Topology};

/// Names a link of one shard, as long as it is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LinkNo(pub u32);

/// What a link is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LinkKind {
    /// Jobs.
    Data,
    /// Membership: shard 0 only, `BusMessage::Packet` only.
    Membership,
}

/// A link to be kept: connected, and connected again with backoff, until it is hung up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Dial {
    /// Its name.
    pub link: LinkNo,
    /// What for.
    pub kind: LinkKind,
    /// Address or host name.
    pub host: String,
    /// Bus port.
    pub port: u16,
    /// Who is to answer there; anyone when a new node is met by its address.
    pub expect: Option<NodeId>,
}

/// What happened to a link that was dialed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LinkEvent {
    /// It is connected, and both sides have proved themselves.
    Up {
        /// Who answered.
        node: NodeId,
        /// Its store epoch.
        epoch: u64,
        /// Round trip of the handshake, microseconds.
        rtt_us: u32,
        /// Our address as the connection has it.
        local: Option<IpAddr>,
        /// The other's.
        remote: Option<IpAddr>,
    },
    /// A newer round-trip time, microseconds.
    Rtt {
        /// Microseconds.
        rtt_us: u32,
    },
    /// It is not connected, for this reason; it is tried again, unless it was hung up. What was on its way may be lost.
    Down {
        /// What happened.
        why: String,
    },
}

/// What went over the bus since it was last asked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    /// Messages handed to links.
    pub messages_sent: u64,
    /// Messages received.
    pub messages_received: u64,
    /// Bytes that went to the kernel, signs of life included.
    pub bytes_sent: u64,
    /// Bytes received, signs of life included.
    pub bytes_received: u64,
    /// Frames dropped because their link was down or too much waited for it.
    pub frames_dropped: u64,
    /// Attempts to connect a link again.
    pub reconnects: u64,
}

/// Who sent a batch: proved by the handshake of the link it came over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sender {
    /// The node.
    pub node: NodeId,
    /// Its store epoch at that time.
    pub epoch: u64,
    /// Its shard.
    pub shard: ShardNo,
    /// What the link is for.
    pub kind: LinkKind,
    /// Its address as the connection has it.
    pub ip: Option<IpAddr>,
}
