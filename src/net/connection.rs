//! One client's connection: where it is in its life, and its socket, which is glommio's or one on the ring.

use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::os::fd::BorrowedFd;
use std::time::Duration;

use bytes::Bytes;
use shard::input::Peer;
use shard::message::SessionId;
use socket2::{SockRef, TcpKeepalive};

use super::ring::{self, Lent, RingSocket};
use super::stream::Stream;

/// Probes of a silent peer before it counts as dead.
const KEEPALIVE_PROBES: u32 = 3;

/// Where a connection is in its life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    /// It has a session.
    Open,
    /// It failed; its session is still to be told.
    Failed,
    /// No session any more; the rest of the output is sent.
    Flushing,
    /// All is sent; the client's last input is read away until it closes.
    Draining,
}

/// What a receive gave.
pub(super) enum Received {
    /// Not now.
    Nothing,
    /// This many bytes; perhaps there are `more`.
    Bytes { bytes: usize, more: bool },
    /// Bytes in a buffer of the ring; perhaps there are `more`.
    Lent { bytes: Lent, more: bool },
    /// The client has shut down its writing side.
    End,
    /// The connection is broken.
    Failed,
}

/// Its socket.
pub(super) enum Socket {
    /// glommio's.
    Stream(Stream),
    /// One on the shard's ring.
    Ring(RingSocket),
}

pub(super) struct Connection {
    socket: Socket,
    /// Whose it is; none when it only lingers.
    pub(super) session: Option<SessionId>,
    pub(super) phase: Phase,
    /// It stands in the list of notices.
    pub(super) is_noticed: bool,
    is_tcp: bool,
    has_ended: bool,
    sent_bytes: usize,
}

impl Connection {
    /// Takes in an accepted socket; also its two ends: client, server.
    pub(super) fn new(socket: Socket, unix_path: Option<&str>, keepalive_s: u64) -> (Self, Peer, Peer) {
        let connection = Self {
            socket,
            session: None,
            phase: Phase::Open,
            is_noticed: false,
            is_tcp: unix_path.is_none(),
            has_ended: false,
            sent_bytes: 0,
        };
        let (peer, local) = match unix_path {
            Some(path) => (Peer::Unix(path.to_owned()), Peer::Unix(path.to_owned())),
            None => connection.tcp_ends(),
        };
        if connection.is_tcp {
            // All replies of a turn leave together, so there is nothing that waiting could gather. An error
            // means that the client is gone already: the first receive tells.
            connection.descriptor(|socket| {
                let _ = SockRef::from(&socket).set_tcp_nodelay(true);
            });
            connection.set_keepalive(keepalive_s);
        }
        (connection, peer, local)
    }

    pub(super) fn unsent_bytes(&self) -> usize {
        match &self.socket {
            Socket::Stream(stream) => stream.unsent_bytes(),
            Socket::Ring(socket) => socket.unsent_bytes(),
        }
    }

    pub(super) fn has_sent(&self) -> bool {
        self.sent_bytes > 0
    }

    pub(super) fn has_ended(&self) -> bool {
        self.has_ended
    }

    /// Bytes that went to the kernel since the last call.
    pub(super) fn take_sent(&mut self) -> usize {
        std::mem::take(&mut self.sent_bytes)
    }

    /// Receives what is there, unless reading is off. `buffer` is for sockets that have none of their own.
    pub(super) fn receive(&mut self, buffer: &mut [u8]) -> Received {
        if self.has_ended || self.phase == Phase::Failed {
            return Received::Nothing;
        }
        let received = match &mut self.socket {
            Socket::Stream(stream) => stream.receive(buffer),
            Socket::Ring(socket) => match socket.receive() {
                None => Received::Nothing,
                Some((ring::Input::Bytes(bytes), more)) => Received::Lent { bytes, more },
                Some((ring::Input::End, _)) => Received::End,
                Some((ring::Input::Failed, _)) => Received::Failed,
            },
        };
        self.has_ended = matches!(received, Received::End);
        received
    }

    /// Stops or resumes reading; true when it is to be put on the ready list.
    pub(super) fn set_reading(&mut self, on: bool) -> bool {
        match &mut self.socket {
            Socket::Stream(stream) => stream.set_reading(on),
            Socket::Ring(socket) => {
                socket.set_reading(on);
                false
            }
        }
    }

    /// Adds output.
    pub(super) fn append(&mut self, chunks: impl Iterator<Item = Bytes>) {
        if self.phase == Phase::Failed {
            return;
        }
        match &mut self.socket {
            Socket::Stream(stream) => stream.append(chunks),
            Socket::Ring(socket) => socket.append(chunks),
        }
    }

    /// The kernel takes output again.
    pub(super) fn set_writable(&mut self) {
        if let Socket::Stream(stream) = &mut self.socket {
            stream.set_writable();
        }
    }

    /// Sends what waits, until the kernel takes no more; on a ring, only looks at what it has sent.
    pub(super) fn flush(&mut self) -> io::Result<()> {
        match &mut self.socket {
            Socket::Stream(stream) => stream.flush(&mut self.sent_bytes),
            Socket::Ring(socket) => {
                self.sent_bytes += socket.take_sent()?;
                Ok(())
            }
        }
    }

    /// Tells the client that nothing more comes.
    pub(super) fn shut_down_writing(&self) {
        // An error means that the client is gone, which the next receive tells.
        self.descriptor(|socket| {
            let _ = SockRef::from(&socket).shutdown(std::net::Shutdown::Write);
        });
    }

    /// Marks it as broken: nothing is read or sent any more.
    pub(super) fn fail(&mut self) {
        self.phase = Phase::Failed;
        match &mut self.socket {
            Socket::Stream(stream) => stream.drop_output(),
            Socket::Ring(socket) => socket.drop_output(),
        }
    }

    /// Probes a silent client after `keepalive_s` seconds, three times at a third of it; 0: never.
    pub(super) fn set_keepalive(&self, keepalive_s: u64) {
        if !self.is_tcp {
            return;
        }
        self.descriptor(|socket| {
            let socket = SockRef::from(&socket);
            // As for the options above, only a socket that is gone refuses.
            let _ = if keepalive_s == 0 {
                socket.set_keepalive(false)
            } else {
                let probes = TcpKeepalive::new()
                    .with_time(Duration::from_secs(keepalive_s))
                    .with_interval(Duration::from_secs((keepalive_s / 3).max(1)))
                    .with_retries(KEEPALIVE_PROBES);
                socket.set_tcp_keepalive(&probes)
            };
        });
    }

    fn tcp_ends(&self) -> (Peer, Peer) {
        // A client that is gone already has no address; its session ends with the first receive.
        let unknown = SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0));
        self.descriptor(|socket| {
            let socket = SockRef::from(&socket);
            let address = |end: io::Result<socket2::SockAddr>| end.ok().and_then(|end| end.as_socket());
            (
                Peer::Tcp(address(socket.peer_addr()).unwrap_or(unknown)),
                Peer::Tcp(address(socket.local_addr()).unwrap_or(unknown)),
            )
        })
    }

    fn descriptor<T>(&self, look: impl FnOnce(BorrowedFd<'_>) -> T) -> T {
        match &self.socket {
            Socket::Stream(stream) => look(stream.descriptor()),
            Socket::Ring(socket) => socket.descriptor(look),
        }
    }
}
