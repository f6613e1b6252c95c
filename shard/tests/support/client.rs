//! A virtual client and the socket between it and its shard.

use std::collections::VecDeque;

use shard::message::SessionId;
use shard::slot::ShardNo;

use super::Reply;

/// A client.
#[derive(Debug, Default)]
pub struct Client {
    /// Its shard and session, once it has one; kept when the connection is closed.
    pub place: Option<(ShardNo, SessionId)>,
    /// Neither side closed the connection.
    pub open: bool,
    /// The server turned it away or closed the connection.
    pub closed_by_server: bool,
    /// What it sent that the server has not read: it does not read, or the network is slow.
    pub unread: VecDeque<u8>,
    /// The server reads the socket.
    pub server_reads: bool,
    /// The client sends no more.
    pub half_closed: bool,
    /// What the server took from the session and the kernel has not taken.
    pub leaving: VecDeque<u8>,
    /// All bytes that the kernel took: what the client has, or will have, read.
    pub received: Vec<u8>,
    /// Up to where `received` was read as replies.
    pub read_to: usize,
    /// The kernel takes everything at once.
    pub kernel_takes_all: bool,
}

impl Client {
    /// Its next reply, when it is whole.
    pub fn next_reply(&mut self) -> Option<Reply> {
        let rest = &self.received[self.read_to..];
        if rest.is_empty() {
            return None;
        }
        let (reply, length) = Reply::read(rest)?;
        self.read_to += length;
        Some(reply)
    }

    /// What it received of a reply that is not whole.
    pub fn partial_reply(&self) -> &[u8] {
        &self.received[self.read_to..]
    }
}

/// A request as clients send it.
pub fn request<T: AsRef<[u8]>>(words: &[T]) -> Vec<u8> {
    let mut bytes = format!("*{}\r\n", words.len()).into_bytes();
    for word in words {
        let word = word.as_ref();
        bytes.extend(format!("${}\r\n", word.len()).bytes());
        bytes.extend_from_slice(word);
        bytes.extend_from_slice(b"\r\n");
    }
    bytes
}
