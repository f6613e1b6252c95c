//! One client's socket: receiving, sending, and what waits to be sent.
//!
//! glommio's stream tries each operation at once and arms a poll on the ring only when it would block; a waker of ours
//! is then called. It is used for Unix sockets too: it only receives, sends and polls by descriptor. The stream cannot
//! send several chunks in one system call, so that is done beside it, and the stream only waits.

use std::io::{self, ErrorKind};
use std::net::{Ipv4Addr, Shutdown, SocketAddr};
use std::os::fd::{AsRawFd, BorrowedFd};
use std::pin::Pin;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use bytes::Bytes;
use futures_lite::io::{AsyncRead, AsyncWrite};
use glommio::net::TcpStream;
use shard::input::Peer;
use shard::message::SessionId;
use socket2::{SockRef, TcpKeepalive};

use super::accept::Arrival;
use super::unsent::Unsent;

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
    /// The client has shut down its writing side.
    End,
    /// The connection is broken.
    Failed,
}

pub(super) struct Connection {
    stream: TcpStream,
    /// Whose it is; none when it only lingers.
    pub(super) session: Option<SessionId>,
    pub(super) phase: Phase,
    /// It stands in the list of notices.
    pub(super) is_noticed: bool,
    /// The kernel takes no output; the write waker is armed.
    pub(super) is_blocked: bool,
    is_tcp: bool,
    is_reading: bool,
    /// It became readable while it was not read.
    is_readable: bool,
    has_ended: bool,
    unsent: Unsent,
    sent_bytes: usize,
    read_waker: Waker,
    write_waker: Waker,
}

impl Connection {
    /// Takes in an accepted socket; also its two ends: client, server.
    pub(super) fn new(arrival: Arrival, wakers: [Waker; 2], keepalive_s: u64) -> (Self, Peer, Peer) {
        let [read_waker, write_waker] = wakers;
        let stream = arrival.stream.bind_to_executor();
        let connection = Self {
            stream,
            session: None,
            phase: Phase::Open,
            is_noticed: false,
            is_blocked: false,
            is_tcp: arrival.unix_path.is_none(),
            is_reading: true,
            is_readable: false,
            has_ended: false,
            unsent: Unsent::default(),
            sent_bytes: 0,
            read_waker,
            write_waker,
        };
        let (peer, local) = match arrival.unix_path {
            Some(path) => (Peer::Unix(path.to_string()), Peer::Unix(path.to_string())),
            None => connection.tcp_ends(),
        };
        if connection.is_tcp {
            // All replies of a turn leave together, so there is nothing that waiting could gather. An error
            // means that the client is gone already: the first receive tells.
            let _ = SockRef::from(&connection.descriptor()).set_tcp_nodelay(true);
            connection.set_keepalive(keepalive_s);
        }
        (connection, peer, local)
    }

    pub(super) fn unsent_bytes(&self) -> usize {
        self.unsent.bytes()
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

    /// Receives what is there, unless reading is off.
    pub(super) fn receive(&mut self, buffer: &mut [u8]) -> Received {
        if !self.is_reading {
            self.is_readable = true;
            return Received::Nothing;
        }
        if self.has_ended || self.phase == Phase::Failed {
            return Received::Nothing;
        }
        let mut context = Context::from_waker(&self.read_waker);
        match Pin::new(&mut self.stream).poll_read(&mut context, buffer) {
            Poll::Pending => Received::Nothing,
            Poll::Ready(Ok(0)) => {
                self.has_ended = true;
                Received::End
            }
            Poll::Ready(Ok(bytes)) if bytes == buffer.len() => Received::Bytes { bytes, more: true },
            Poll::Ready(Ok(bytes)) => {
                // A short receive has armed the next poll already; this only leaves our waker with it.
                let again = Pin::new(&mut self.stream).poll_read(&mut context, &mut []);
                assert!(
                    again.is_pending(),
                    "a poll that was armed just now has not come back"
                );
                Received::Bytes { bytes, more: false }
            }
            Poll::Ready(Err(error)) if error.kind() == ErrorKind::Interrupted => {
                Received::Bytes { bytes: 0, more: true }
            }
            Poll::Ready(Err(_)) => Received::Failed,
        }
    }

    /// Stops or resumes reading; true when it is to be put on the ready list.
    pub(super) fn set_reading(&mut self, on: bool) -> bool {
        self.is_reading = on;
        on && std::mem::take(&mut self.is_readable)
    }

    /// Adds output.
    pub(super) fn append(&mut self, chunks: impl Iterator<Item = Bytes>) {
        if self.phase == Phase::Failed {
            return;
        }
        chunks.for_each(|chunk| self.unsent.push(chunk));
    }

    /// Sends what waits, until the kernel takes no more.
    pub(super) fn flush(&mut self) -> io::Result<()> {
        while self.unsent.bytes() > 0 && !self.is_blocked {
            // SAFETY: as in `descriptor`, whose borrow would be of all of the connection.
            let socket = unsafe { BorrowedFd::borrow_raw(self.stream.as_raw_fd()) };
            let (sent, is_full) = self.unsent.send(socket)?;
            self.sent_bytes += sent;
            if is_full {
                self.wait_until_writable()?;
            }
        }
        Ok(())
    }

    /// Tells the client that nothing more comes.
    pub(super) fn shut_down_writing(&self) {
        // An error means that the client is gone, which the next receive tells.
        let _ = SockRef::from(&self.descriptor()).shutdown(Shutdown::Write);
    }

    /// Marks it as broken: nothing is read or sent any more.
    pub(super) fn fail(&mut self) {
        self.phase = Phase::Failed;
        self.unsent.clear();
    }

    /// Probes a silent client after `keepalive_s` seconds, three times at a third of it; 0: never.
    pub(super) fn set_keepalive(&self, keepalive_s: u64) {
        if !self.is_tcp {
            return;
        }
        let descriptor = self.descriptor();
        let socket = SockRef::from(&descriptor);
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
    }

    fn wait_until_writable(&mut self) -> io::Result<()> {
        let mut context = Context::from_waker(&self.write_waker);
        let first = self.unsent.first().expect("only output waits for the socket");
        match Pin::new(&mut self.stream).poll_write(&mut context, first) {
            Poll::Pending => self.is_blocked = true,
            Poll::Ready(sent) => {
                let sent = sent?;
                self.unsent.took(sent);
                self.sent_bytes += sent;
            }
        }
        Ok(())
    }

    fn tcp_ends(&self) -> (Peer, Peer) {
        // A client that is gone already has no address; its session ends with the first receive.
        let unknown = SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0));
        let descriptor = self.descriptor();
        let socket = SockRef::from(&descriptor);
        let address = |end: io::Result<socket2::SockAddr>| end.ok().and_then(|end| end.as_socket());
        (
            Peer::Tcp(address(socket.peer_addr()).unwrap_or(unknown)),
            Peer::Tcp(address(socket.local_addr()).unwrap_or(unknown)),
        )
    }

    fn descriptor(&self) -> BorrowedFd<'_> {
        // SAFETY: the stream owns the descriptor, and the borrow ends before the stream does.
        unsafe { BorrowedFd::borrow_raw(self.stream.as_raw_fd()) }
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        // A poll that is armed keeps the socket open until its cancellation has come through, and the client would wait
        // for our end so long.
        let _ = SockRef::from(&self.descriptor()).shutdown(Shutdown::Both);
    }
}
