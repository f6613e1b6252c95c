//! A client's socket as glommio's stream: receiving, sending, and what waits to be sent.
//!
//! glommio's stream tries each operation at once and arms a poll on its ring only when it would block; a waker of ours
//! is then called. It is used for Unix sockets too: it only receives, sends and polls by descriptor. The stream cannot
//! send several chunks in one system call, so that is done beside it, and the stream only waits.

use std::io::{self, ErrorKind};
use std::net::Shutdown;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, IntoRawFd, OwnedFd};
use std::pin::Pin;
use std::task::{Context, Poll, Waker};

use bytes::Bytes;
use futures_lite::io::{AsyncRead, AsyncWrite};
use glommio::net::TcpStream;
use socket2::SockRef;

use super::connection::Received;
use super::unsent::Unsent;

pub(super) struct Stream {
    stream: TcpStream,
    /// The kernel takes no output; the write waker is armed.
    is_blocked: bool,
    is_reading: bool,
    /// It became readable while it was not read.
    is_readable: bool,
    unsent: Unsent,
    read_waker: Waker,
    write_waker: Waker,
}

impl Stream {
    /// Takes in a connected socket; the wakers are for reading and for writing.
    pub(super) fn new(socket: OwnedFd, wakers: [Waker; 2]) -> Self {
        let [read_waker, write_waker] = wakers;
        Self {
            // SAFETY: the descriptor is a connected socket, and its owner has just given it up.
            stream: unsafe { TcpStream::from_raw_fd(socket.into_raw_fd()) },
            is_blocked: false,
            is_reading: true,
            is_readable: false,
            unsent: Unsent::default(),
            read_waker,
            write_waker,
        }
    }

    pub(super) fn unsent_bytes(&self) -> usize {
        self.unsent.bytes()
    }

    /// Receives what is there, unless reading is off.
    pub(super) fn receive(&mut self, buffer: &mut [u8]) -> Received {
        if !self.is_reading {
            self.is_readable = true;
            return Received::Nothing;
        }
        let mut context = Context::from_waker(&self.read_waker);
        match Pin::new(&mut self.stream).poll_read(&mut context, buffer) {
            Poll::Pending => Received::Nothing,
            Poll::Ready(Ok(0)) => Received::End,
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
        chunks.for_each(|chunk| self.unsent.push(chunk));
    }

    /// Drops what waits to be sent.
    pub(super) fn drop_output(&mut self) {
        self.unsent.clear();
    }

    /// The kernel takes output again.
    pub(super) fn set_writable(&mut self) {
        self.is_blocked = false;
    }

    /// Sends what waits, until the kernel takes no more; what it took is added to `sent_bytes`.
    pub(super) fn flush(&mut self, sent_bytes: &mut usize) -> io::Result<()> {
        while self.unsent.bytes() > 0 && !self.is_blocked {
            // SAFETY: as in `descriptor`, whose borrow would be of all of the stream.
            let socket = unsafe { BorrowedFd::borrow_raw(self.stream.as_raw_fd()) };
            let (sent, is_full) = self.unsent.send(socket)?;
            *sent_bytes += sent;
            if is_full {
                *sent_bytes += self.wait_until_writable()?;
            }
        }
        Ok(())
    }

    /// Arms the wait, and perhaps sends.
    fn wait_until_writable(&mut self) -> io::Result<usize> {
        let mut context = Context::from_waker(&self.write_waker);
        let first = self.unsent.first().expect("only output waits for the socket");
        match Pin::new(&mut self.stream).poll_write(&mut context, first) {
            Poll::Pending => {
                self.is_blocked = true;
                Ok(0)
            }
            Poll::Ready(sent) => {
                let sent = sent?;
                self.unsent.took(sent);
                Ok(sent)
            }
        }
    }

    pub(super) fn descriptor(&self) -> BorrowedFd<'_> {
        // SAFETY: the stream owns the descriptor, and the borrow ends before the stream does.
        unsafe { BorrowedFd::borrow_raw(self.stream.as_raw_fd()) }
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        // A poll that is armed keeps the socket open until its cancellation has come through, and the client would wait
        // for our end so long.
        let _ = SockRef::from(&self.descriptor()).shutdown(Shutdown::Both);
    }
}
