//! Output that waits for a socket: all of it is offered to the kernel at once, and what it takes is forgotten.

use std::collections::VecDeque;
use std::io::{self, ErrorKind, IoSlice};
use std::os::fd::BorrowedFd;

use bytes::{Buf, Bytes};
use socket2::SockRef;

/// Chunks sent by one system call at the most.
const SEND_CHUNKS: usize = 64;

/// Chunks in order.
#[derive(Debug, Default)]
pub struct Unsent {
    chunks: VecDeque<Bytes>,
    bytes: usize,
}

impl Unsent {
    /// Puts a chunk at the end.
    pub fn push(&mut self, chunk: Bytes) {
        if !chunk.is_empty() {
            self.bytes += chunk.len();
            self.chunks.push_back(chunk);
        }
    }

    /// Bytes that wait.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// The first chunk.
    pub fn first(&self) -> Option<&Bytes> {
        self.chunks.front()
    }

    /// The chunks, in order.
    pub fn chunks(&self) -> impl Iterator<Item = &Bytes> {
        self.chunks.iter()
    }

    /// Puts other output before all that is here.
    pub fn put_before(&mut self, mut first: Self) {
        if self.chunks.is_empty() {
            *self = first;
            return;
        }
        first.bytes += self.bytes;
        first.chunks.append(&mut self.chunks);
        *self = first;
    }

    /// Drops all.
    pub fn clear(&mut self) {
        self.chunks.clear();
        self.bytes = 0;
    }

    /// Sends until nothing is left or the kernel takes no more; how much it took, and whether it is full.
    pub fn send(&mut self, socket: BorrowedFd<'_>) -> io::Result<(usize, bool)> {
        let mut sent = 0;
        while !self.chunks.is_empty() {
            match self.send_once(socket) {
                Ok(bytes) => {
                    self.took(bytes);
                    sent += bytes;
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok((sent, true)),
                Err(error) => return Err(error),
            }
        }
        Ok((sent, false))
    }

    /// The kernel took bytes from the front.
    pub fn took(&mut self, bytes: usize) {
        self.bytes -= bytes;
        let mut left = bytes;
        while left > 0 {
            let chunk = self
                .chunks
                .front_mut()
                .expect("the kernel takes no more than it was given");
            let taken = left.min(chunk.len());
            chunk.advance(taken);
            left -= taken;
            if chunk.is_empty() {
                self.chunks.pop_front();
            }
        }
    }

    fn send_once(&self, socket: BorrowedFd<'_>) -> io::Result<usize> {
        let mut slices = [IoSlice::new(&[]); SEND_CHUNKS];
        let mut count = 0;
        for (slice, chunk) in slices.iter_mut().zip(&self.chunks) {
            *slice = IoSlice::new(chunk);
            count += 1;
        }
        SockRef::from(&socket)
            .send_vectored_with_flags(&slices[..count], libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL)
    }
}
