//! A small blocking client: one connection, commands as arrays of byte strings, replies decoded or raw.
//!
//! Made for tests and control commands, not for speed (the bench drives its own sockets). It hides nothing:
//! an error reply is a [`Reply`], bytes can be written and read as they are, and a read that times out keeps
//! what has arrived, so that the next read goes on where it stopped.

use std::io::{self, Read, Write};
use std::net::Shutdown;
use std::time::Duration;

use redis_protocol::error::RedisProtocolError;

use crate::address::{Address, Socket};
use crate::reply::{self, Protocol, Reply};

/// Smallest and largest number of bytes asked of the socket at once; in between it grows with the reply, so
/// that a large reply is not decoded from its start for every few bytes.
const READ_BYTES: std::ops::Range<usize> = 4 * 1024..4 * 1024 * 1024;

/// Why a call of the client failed. The connection is of no further use, except after
/// [`ClientError::TimedOut`].
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// No connection came about.
    #[error("cannot connect to {address}: {source}")]
    Connect {
        /// Where to.
        address: Address,
        /// The system's reason.
        source: io::Error,
    },
    /// Nothing arrived, or nothing could be sent, within the timeout.
    #[error("the server did not answer within the timeout")]
    TimedOut,
    /// The server closed the connection; what it sent before is in hand.
    #[error("the server closed the connection ({unread} bytes of an incomplete reply unread)")]
    Closed {
        /// Bytes that had arrived and did not make a whole reply.
        unread: usize,
    },
    /// The system refused a read or write.
    #[error("connection lost: {0}")]
    Io(#[source] io::Error),
    /// The server's bytes are not RESP.
    #[error("not a RESP reply: {0}")]
    Protocol(#[from] RedisProtocolError),
    /// The server answered an error where the client needs success (only HELLO and [`Client::call_ok`]).
    #[error("the server answered {command} with an error: {text}")]
    Refused {
        /// The command's first word.
        command: String,
        /// The error reply, code included.
        text: String,
    },
}

impl From<io::Error> for ClientError {
    fn from(error: io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => Self::TimedOut,
            _ => Self::Io(error),
        }
    }
}

/// One blocking connection.
#[derive(Debug)]
pub struct Client {
    socket: Socket,
    protocol: Protocol,
    /// Bytes that arrived; those before `read` have been read. They are dropped only before more arrive, so
    /// that reading many small replies does not move the rest each time.
    arrived: Vec<u8>,
    read: usize,
}

impl Client {
    /// Connects; `timeout` bounds the connect and then every single read and write.
    pub fn connect(address: &Address, timeout: Duration) -> Result<Self, ClientError> {
        let refused = |source| ClientError::Connect {
            address: address.clone(),
            source,
        };
        let socket = address.connect(timeout).map_err(refused)?;
        socket.set_timeout(Some(timeout))?;
        Ok(Self {
            socket,
            protocol: Protocol::Resp2,
            arrived: Vec::new(),
            read: 0,
        })
    }

    /// Like [`Client::connect`], then `HELLO 3`: replies are RESP3 from here on. Returns the handshake's
    /// reply too.
    pub fn connect_resp3(address: &Address, timeout: Duration) -> Result<(Self, Reply), ClientError> {
        let mut client = Self::connect(address, timeout)?;
        let hello = client.hello3()?;
        Ok((client, hello))
    }

    /// Switches the connection to RESP3 by `HELLO 3`.
    pub fn hello3(&mut self) -> Result<Reply, ClientError> {
        // A map needs RESP3's decoder; a refusal (`-ERR`) is the same in both, and the connection then stays
        // RESP2.
        let before = std::mem::replace(&mut self.protocol, Protocol::Resp3);
        let result = self.call_ok(&["HELLO", "3"]);
        if result.is_err() {
            self.protocol = before;
        }
        result
    }

    /// Sends one command and reads one reply; an error reply is a reply.
    pub fn call<A: AsRef<[u8]>>(&mut self, arguments: &[A]) -> Result<Reply, ClientError> {
        self.send(arguments)?;
        self.read_reply()
    }

    /// Like [`Client::call`], with an error reply as [`ClientError::Refused`].
    pub fn call_ok<A: AsRef<[u8]>>(&mut self, arguments: &[A]) -> Result<Reply, ClientError> {
        match self.call(arguments)? {
            Reply::Error(text) => {
                let command = arguments
                    .first()
                    .map(|word| String::from_utf8_lossy(word.as_ref()).into_owned());
                Err(ClientError::Refused {
                    command: command.unwrap_or_default(),
                    text,
                })
            }
            reply => Ok(reply),
        }
    }

    /// Sends all commands in one write, then reads as many replies.
    ///
    /// Nothing is read while it writes: a pipeline whose replies exceed the socket buffers needs `send` on
    /// one thread and `read_reply` on another, or smaller pieces.
    pub fn pipeline<A: AsRef<[u8]>, C: AsRef<[A]>>(
        &mut self,
        commands: &[C],
    ) -> Result<Vec<Reply>, ClientError> {
        let mut bytes = Vec::new();
        for command in commands {
            append_command(&mut bytes, command.as_ref());
        }
        self.write_raw(&bytes)?;
        commands.iter().map(|_| self.read_reply()).collect()
    }

    /// Sends one command and reads nothing.
    pub fn send<A: AsRef<[u8]>>(&mut self, arguments: &[A]) -> Result<(), ClientError> {
        let mut bytes = Vec::new();
        append_command(&mut bytes, arguments);
        self.write_raw(&bytes)
    }

    /// Reads one reply.
    pub fn read_reply(&mut self) -> Result<Reply, ClientError> {
        loop {
            let unread = &self.arrived[self.read..];
            if !unread.is_empty()
                && let Some((reply, length)) = reply::decode(self.protocol, unread)?
            {
                self.read += length;
                return Ok(reply);
            }
            self.fill()?;
        }
    }

    /// Writes bytes as they are.
    pub fn write_raw(&mut self, bytes: &[u8]) -> Result<(), ClientError> {
        Ok(self.socket.write_all(bytes)?)
    }

    /// Reads exactly `length` bytes as they are.
    pub fn read_exact(&mut self, length: usize) -> Result<Vec<u8>, ClientError> {
        while self.arrived.len() - self.read < length {
            self.fill()?;
        }
        let bytes = self.arrived[self.read..][..length].to_vec();
        self.read += length;
        Ok(bytes)
    }

    /// Reads one line as it is, without its end: beanstalkd answers in lines.
    pub fn read_line(&mut self) -> Result<String, ClientError> {
        loop {
            let unread = &self.arrived[self.read..];
            if let Some(end) = memchr::memchr(b'\n', unread) {
                let line = String::from_utf8_lossy(&unread[..end]).trim_end().to_owned();
                self.read += end + 1;
                return Ok(line);
            }
            self.fill()?;
        }
    }

    /// Reads until the server closes the connection: all bytes that came before. An orderly end and a reset
    /// both count.
    pub fn read_to_close(&mut self) -> Result<Vec<u8>, ClientError> {
        loop {
            match self.fill() {
                Ok(()) => {}
                Err(ClientError::Closed { .. }) => break,
                Err(ClientError::Io(error)) if error.kind() == io::ErrorKind::ConnectionReset => break,
                Err(error) => return Err(error),
            }
        }
        let bytes = self.arrived.split_off(self.read);
        self.arrived.clear();
        self.read = 0;
        Ok(bytes)
    }

    /// How long each read and write may wait from now on; `None` waits for ever.
    pub fn set_timeout(&self, timeout: Option<Duration>) -> Result<(), ClientError> {
        Ok(self.socket.set_timeout(timeout)?)
    }

    /// Closes one or both directions of the connection.
    pub fn shutdown(&self, how: Shutdown) -> Result<(), ClientError> {
        Ok(self.socket.shutdown(how)?)
    }

    /// True if the server runs on this machine.
    pub fn is_local(&self) -> bool {
        self.socket.is_local()
    }

    /// The protocol in which replies are decoded.
    pub fn protocol(&self) -> Protocol {
        self.protocol
    }

    fn fill(&mut self) -> Result<(), ClientError> {
        self.arrived.drain(..std::mem::take(&mut self.read));
        let before = self.arrived.len();
        let wanted = before.clamp(READ_BYTES.start, READ_BYTES.end);
        self.arrived.resize(before + wanted, 0);
        let result = loop {
            match self.socket.read(&mut self.arrived[before..]) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                result => break result,
            }
        };
        self.arrived
            .truncate(before + result.as_ref().copied().unwrap_or(0));
        match result {
            Ok(0) => Err(ClientError::Closed { unread: before }),
            Ok(_) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }
}

/// Appends a command as an array of bulk strings.
pub fn append_command<A: AsRef<[u8]>>(out: &mut Vec<u8>, arguments: &[A]) {
    append_header(out, b'*', arguments.len());
    for argument in arguments {
        append_bulk(out, argument.as_ref());
    }
}

/// Appends one bulk string.
pub fn append_bulk(out: &mut Vec<u8>, bytes: &[u8]) {
    append_header(out, b'$', bytes.len());
    out.extend_from_slice(bytes);
    out.extend_from_slice(b"\r\n");
}

/// Appends `kind`, a length and a line end: the header of an array or a bulk string.
pub fn append_header(out: &mut Vec<u8>, kind: u8, length: usize) {
    // The bench appends a header for every ID it acknowledges, so the number is not made into a string first.
    let mut digits = [0; 20];
    let (mut start, mut left) = (digits.len(), length);
    loop {
        start -= 1;
        digits[start] = b'0' + (left % 10) as u8;
        left /= 10;
        if left == 0 {
            break;
        }
    }
    out.push(kind);
    out.extend_from_slice(&digits[start..]);
    out.extend_from_slice(b"\r\n");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_hold_any_length() {
        for length in [0, 9, 10, 1_234_567, usize::MAX] {
            let mut out = Vec::new();
            append_header(&mut out, b'*', length);
            assert_eq!(out, format!("*{length}\r\n").into_bytes());
        }
    }
}
