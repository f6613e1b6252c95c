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
use crate::net::{Input, Lent, Ring, RingSocket, Unsent};

/// A connected socket, on this executor.
pub(super) struct Wire {
    socket: Socket,
    /// Another has the socket now.
    is_moved: bool,
}

enum Socket {
    /// glommio's.
    Stream(TcpStream),
    /// One on the shard's ring.
    Ring {
        socket: RingSocket,
        /// What was received and not taken, and how much of it was.
        rest: Option<(Lent, usize)>,
        /// Bytes of the output that the ring has.
        given_bytes: usize,
    },
}

impl Wire {
    /// Takes a connected socket in.
    pub(super) fn new(stream: TcpStream) -> Self {
        Self::of(Socket::Stream(stream))
    }

    /// Takes in the socket that another gave up; on this ring, if there is one.
    pub(super) fn adopt(socket: OwnedFd, ring: Option<&Ring>) -> Self {
        Self::of(match ring {
            Some(ring) => Socket::Ring {
                socket: ring.adopt_for_task(socket),
                rest: None,
                given_bytes: 0,
            },
            // SAFETY: the descriptor is a connected socket, and its owner has just given it up.
            None => Socket::Stream(unsafe { TcpStream::from_raw_fd(socket.into_raw_fd()) }),
        })
    }

    fn of(socket: Socket) -> Self {
        let wire = Self {
            socket,
            is_moved: false,
        };
        // All frames of a turn leave together, so there is nothing that waiting could gather. An error means that the other side
        // is gone already: the first receive tells.
        wire.descriptor(|socket| {
            let _ = SockRef::from(&socket).set_tcp_nodelay(true);
        });
        wire
    }

    /// The same socket on the ring, if there is one.
    pub(super) fn onto(self, ring: Option<&Ring>) -> io::Result<Self> {
        match ring {
            Some(_) => Ok(Self::adopt(self.give_up()?, ring)),
            None => Ok(self),
        }
    }

    /// Gives the socket up to another executor or ring. What the other side sent is all still there but for what was received.
    pub(super) fn give_up(mut self) -> io::Result<OwnedFd> {
        assert!(
            matches!(self.socket, Socket::Stream(_)),
            "only glommio's sockets go anywhere else"
        );
        // This executor may still watch its own descriptor for a moment.
        let socket = self.descriptor(|socket| socket.try_clone_to_owned())?;
        self.is_moved = true;
        Ok(socket)
    }

    /// The addresses of the two ends, as far as the kernel has them: this side, the other.
    pub(super) fn ends(&self) -> (Option<IpAddr>, Option<IpAddr>) {
        self.descriptor(|socket| {
            let socket = SockRef::from(&socket);
            let ip = |end: io::Result<socket2::SockAddr>| {
                let ip = end.ok()?.as_socket()?.ip();
                Some(ip.to_canonical())
            };
            (ip(socket.local_addr()), ip(socket.peer_addr()))
        })
    }

    /// Receives what is there; 0 bytes: the other side has closed.
    pub(super) fn poll_receive(
        &mut self,
        context: &mut Context<'_>,
        buffer: &mut [u8],
    ) -> Poll<io::Result<usize>> {
        match &mut self.socket {
            Socket::Stream(stream) => loop {
                match ready!(Pin::new(&mut *stream).poll_read(context, buffer)) {
                    Err(error) if error.kind() == ErrorKind::Interrupted => {}
                    received => return Poll::Ready(received),
                }
            },
            Socket::Ring { socket, rest, .. } => {
                let (bytes, taken) = match rest.take() {
                    Some(rest) => rest,
                    None => match ready!(socket.poll_receive(context)) {
                        Input::Bytes(bytes) => (bytes, 0),
                        Input::End => return Poll::Ready(Ok(0)),
                        Input::Failed => return Poll::Ready(Err(ErrorKind::ConnectionReset.into())),
                    },
                };
                let count = buffer.len().min(bytes.len() - taken);
                buffer[..count].copy_from_slice(&bytes[taken..taken + count]);
                if taken + count < bytes.len() {
                    *rest = Some((bytes, taken + count));
                }
                Poll::Ready(Ok(count))
            }
        }
    }

    /// Sends what waits, as far as the kernel takes it: how many bytes. What is left goes when the task is woken; on a ring that
    /// is all, which the next turn sends.
    pub(super) fn send(&mut self, context: &mut Context<'_>, unsent: &mut Unsent) -> io::Result<usize> {
        match &mut self.socket {
            Socket::Stream(stream) => send_by(stream, context, unsent),
            Socket::Ring {
                socket, given_bytes, ..
            } => {
                let mut all = 0;
                while let sent @ 1.. = socket.take_sent()? {
                    unsent.took(sent);
                    *given_bytes -= sent;
                    all += sent;
                }
                if *given_bytes == 0 {
                    socket.append(unsent.chunks().cloned());
                    *given_bytes = unsent.bytes();
                }
                if *given_bytes > 0 {
                    socket.wake_when_sent(context);
                }
                Ok(all)
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

    fn descriptor<T>(&self, look: impl FnOnce(BorrowedFd<'_>) -> T) -> T {
        match &self.socket {
            Socket::Stream(stream) => look(descriptor_of(stream)),
            Socket::Ring { socket, .. } => socket.descriptor(look),
        }
    }
}

fn send_by(stream: &mut TcpStream, context: &mut Context<'_>, unsent: &mut Unsent) -> io::Result<usize> {
    let mut all = 0;
    loop {
        let (sent, is_full) = unsent.send(descriptor_of(stream))?;
        all += sent;
        let Some(first) = unsent.first().filter(|_| is_full) else {
            return Ok(all);
        };
        // Arms the wait, and perhaps sends.
        match Pin::new(&mut *stream).poll_write(context, first) {
            Poll::Pending => return Ok(all),
            Poll::Ready(sent) => {
                let sent = sent?;
                unsent.took(sent);
                all += sent;
            }
        }
    }
}

fn descriptor_of(stream: &TcpStream) -> BorrowedFd<'_> {
    // SAFETY: the stream owns the descriptor, and the borrow ends before the stream does.
    unsafe { BorrowedFd::borrow_raw(stream.as_raw_fd()) }
}

impl Drop for Wire {
    fn drop(&mut self) {
        // A poll that is armed keeps the socket open until its cancellation has come through, and the other side would wait for our
        // end so long.
        if let Socket::Stream(stream) = &self.socket
            && !self.is_moved
        {
            let _ = SockRef::from(&descriptor_of(stream)).shutdown(Shutdown::Both);
        }
    }
}
