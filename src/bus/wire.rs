//! One connected socket of the bus: receiving, sending what waits, and the packets of a handshake.

use std::future::poll_fn;
use std::io::{self, ErrorKind};
use std::net::{IpAddr, Shutdown};
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, IntoRawFd, OwnedFd};
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use futures_lite::io::{AsyncRead, AsyncWrite};
use glommio::net::TcpStream;
use shard::bus::handshake::{HEADER_BYTES, content_bytes};
use socket2::SockRef;

use super::LinkError;
use crate::net::Unsent;

/// A connected socket, on this executor.
pub(super) struct Wire {
    stream: TcpStream,
    /// Another executor has the socket now.
    is_moved: bool,
}

impl Wire {
    /// Takes a connected socket in.
    pub(super) fn new(stream: TcpStream) -> Self {
        let wire = Self {
            stream,
            is_moved: false,
        };
        // All frames of a turn leave together, so there is nothing that waiting could gather. An error means that the other side
        // is gone already: the first receive tells.
        let _ = SockRef::from(&wire.descriptor()).set_tcp_nodelay(true);
        wire
    }

    /// Takes in the socket that another executor gave up.
    pub(super) fn adopt(socket: OwnedFd) -> Self {
        // SAFETY: the descriptor is a connected socket, and its owner has just given it up.
        Self::new(unsafe { TcpStream::from_raw_fd(socket.into_raw_fd()) })
    }

    /// Gives the socket up to another executor. What the other side sent is all still there but for what was received.
    pub(super) fn give_up(mut self) -> io::Result<OwnedFd> {
        // This executor may still watch its own descriptor for a moment.
        let socket = self.descriptor().try_clone_to_owned()?;
        self.is_moved = true;
        Ok(socket)
    }

    /// The addresses of the two ends, as far as the kernel has them: this side, the other.
    pub(super) fn ends(&self) -> (Option<IpAddr>, Option<IpAddr>) {
        let descriptor = self.descriptor();
        let socket = SockRef::from(&descriptor);
        let ip = |end: io::Result<socket2::SockAddr>| {
            let ip = end.ok()?.as_socket()?.ip();
            Some(ip.to_canonical())
        };
        (ip(socket.local_addr()), ip(socket.peer_addr()))
    }

    /// Receives what is there; 0 bytes: the other side has closed.
    pub(super) fn poll_receive(
        &mut self,
        context: &mut Context<'_>,
        buffer: &mut [u8],
    ) -> Poll<io::Result<usize>> {
        loop {
            match ready!(Pin::new(&mut self.stream).poll_read(context, buffer)) {
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                received => return Poll::Ready(received),
            }
        }
    }

    /// Sends what waits, as far as the kernel takes it: how many bytes. What is left goes when the task is woken.
    pub(super) fn send(&mut self, context: &mut Context<'_>, unsent: &mut Unsent) -> io::Result<usize> {
        let mut all = 0;
        loop {
            let (sent, is_full) = unsent.send(self.descriptor())?;
            all += sent;
            let Some(first) = unsent.first().filter(|_| is_full) else {
                return Ok(all);
            };
            // Arms the wait, and perhaps sends.
            match Pin::new(&mut self.stream).poll_write(context, first) {
                Poll::Pending => return Ok(all),
                Poll::Ready(sent) => {
                    let sent = sent?;
                    unsent.took(sent);
                    all += sent;
                }
            }
        }
    }

    /// Sends all of it.
    pub(super) async fn send_all(&mut self, bytes: Vec<u8>) -> io::Result<()> {
        let mut unsent = Unsent::default();
        unsent.push(Bytes::from(bytes));
        poll_fn(|context| match self.send(context, &mut unsent) {
            Ok(_) if unsent.bytes() > 0 => Poll::Pending,
            sent => Poll::Ready(sent.map(|_| ())),
        })
        .await
    }

    /// Receives a packet of a handshake, and not a byte more.
    pub(super) async fn receive_packet(&mut self) -> Result<Vec<u8>, LinkError> {
        let mut packet = vec![0; HEADER_BYTES];
        self.receive_exactly(&mut packet).await?;
        let header: &[u8; HEADER_BYTES] = packet.first_chunk().expect("it has this length");
        let content = content_bytes(header)?;
        packet.resize(HEADER_BYTES + content, 0);
        self.receive_exactly(&mut packet[HEADER_BYTES..]).await?;
        Ok(packet)
    }

    async fn receive_exactly(&mut self, buffer: &mut [u8]) -> Result<(), LinkError> {
        let mut filled = 0;
        while filled < buffer.len() {
            let received = poll_fn(|context| self.poll_receive(context, &mut buffer[filled..])).await?;
            if received == 0 {
                return Err(LinkError::Ended);
            }
            filled += received;
        }
        Ok(())
    }

    fn descriptor(&self) -> BorrowedFd<'_> {
        // SAFETY: the stream owns the descriptor, and the borrow ends before the stream does.
        unsafe { BorrowedFd::borrow_raw(self.stream.as_raw_fd()) }
    }
}

impl Drop for Wire {
    fn drop(&mut self) {
        // A poll that is armed keeps the socket open until its cancellation has come through, and the other side would wait for our
        // end so long.
        if !self.is_moved {
            let _ = SockRef::from(&self.descriptor()).shutdown(Shutdown::Both);
        }
    }
}
