//! Who a session's client is: what CLIENT LIST, CLIENT KILL and MONITOR tell of it.

use crate::clock::Mono;
use crate::input::Peer;
use crate::wire::Blob;

/// What is known of a client.
#[derive(Clone, Debug)]
pub struct ClientInfo {
    /// Its number, in the order of connections of the node; never used again.
    pub id: u64,
    /// Its address.
    pub peer: Peer,
    /// The address it reached.
    pub local: Peer,
    /// CLIENT SETNAME; empty for none.
    pub name: Blob,
    /// CLIENT SETINFO LIB-NAME.
    pub library_name: Blob,
    /// CLIENT SETINFO LIB-VER.
    pub library_version: Blob,
    /// When it connected.
    pub connected_at: Mono,
    /// When it last sent something.
    pub active_at: Mono,
    /// Whether its commands are served: no password is set, or it gave the right one.
    pub authenticated: bool,
    /// Whether it speaks RESP3.
    pub resp3: bool,
    /// CLIENT REPLY.
    pub replies: Replies,
    /// Whether it reads MONITOR's feed.
    pub monitor: bool,
    /// CLIENT NO-EVICT.
    pub no_evict: bool,
    /// CLIENT NO-TOUCH.
    pub no_touch: bool,
    /// Name of its last command.
    pub last_command: &'static str,
}

/// CLIENT REPLY.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Replies {
    /// As usual.
    On,
    /// None.
    Off,
    /// None for the next command.
    SkipNext,
}

impl ClientInfo {
    /// A client that just connected.
    pub fn new(id: u64, peer: Peer, local: Peer, now: Mono, authenticated: bool) -> Self {
        Self {
            id,
            peer,
            local,
            name: Blob::EMPTY,
            library_name: Blob::EMPTY,
            library_version: Blob::EMPTY,
            connected_at: now,
            active_at: now,
            authenticated,
            resp3: false,
            replies: Replies::On,
            monitor: false,
            no_evict: false,
            no_touch: false,
            last_command: "NULL",
        }
    }
}

impl std::fmt::Display for Peer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Tcp(address) => write!(f, "{address}"),
            Self::Unix(path) => write!(f, "{path}:0"),
        }
    }
}
