//! Where a server listens, and how to open a socket to it.
//!
//! TCP and Unix sockets behave alike from here on: whoever holds a [`Socket`] need not know which one it is.
//! TCP sockets are opened with Nagle's algorithm off, since a delayed request would be measured as the
//! server's delay.

use std::fmt;
use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpStream, ToSocketAddrs};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::time::Duration;

/// A server's address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Address {
    /// Host name or IP address, and port.
    Tcp(String, u16),
    /// Path of a Unix socket.
    Unix(PathBuf),
}

impl Address {
    /// A TCP address.
    pub fn tcp(host: impl Into<String>, port: u16) -> Self {
        Self::Tcp(host.into(), port)
    }

    /// A Unix socket's address.
    pub fn unix(path: impl Into<PathBuf>) -> Self {
        Self::Unix(path.into())
    }

    /// Opens a blocking socket; of a host name's addresses the first that answers within `timeout` is taken.
    pub fn connect(&self, timeout: Duration) -> io::Result<Socket> {
        match self {
            Self::Tcp(host, port) => connect_tcp(host, *port, timeout).map(Socket::Tcp),
            Self::Unix(path) => UnixStream::connect(path).map(Socket::Unix),
        }
    }
}

fn connect_tcp(host: &str, port: u16, timeout: Duration) -> io::Result<TcpStream> {
    let mut last = io::Error::new(io::ErrorKind::NotFound, "the host name has no address");
    for address in (host, port).to_socket_addrs()? {
        match TcpStream::connect_timeout(&address, timeout) {
            Ok(stream) => {
                stream.set_nodelay(true)?;
                return Ok(stream);
            }
            Err(error) => last = error,
        }
    }
    Err(last)
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(host, port) if host.contains(':') => write!(f, "[{host}]:{port}"),
            Self::Tcp(host, port) => write!(f, "{host}:{port}"),
            Self::Unix(path) => write!(f, "{}", path.display()),
        }
    }
}

/// A connected stream socket.
#[derive(Debug)]
pub enum Socket {
    /// Over TCP.
    Tcp(TcpStream),
    /// Over a Unix socket.
    Unix(UnixStream),
}

impl Socket {
    /// True if the peer runs on this machine: over a Unix socket, or over TCP with the same address at both
    /// ends.
    pub fn is_local(&self) -> bool {
        match self {
            Self::Unix(_) => true,
            Self::Tcp(stream) => match (stream.local_addr(), stream.peer_addr()) {
                (Ok(local), Ok(peer)) => local.ip() == peer.ip() || peer.ip().is_loopback(),
                _ => false,
            },
        }
    }

    /// How long one read or write may wait; `None` waits for ever, zero is refused by the system.
    pub fn set_timeout(&self, timeout: Option<Duration>) -> io::Result<()> {
        match self {
            Self::Tcp(stream) => stream
                .set_read_timeout(timeout)
                .and(stream.set_write_timeout(timeout)),
            Self::Unix(stream) => stream
                .set_read_timeout(timeout)
                .and(stream.set_write_timeout(timeout)),
        }
    }

    /// Closes one or both directions.
    pub fn shutdown(&self, how: Shutdown) -> io::Result<()> {
        match self {
            Self::Tcp(stream) => stream.shutdown(how),
            Self::Unix(stream) => stream.shutdown(how),
        }
    }
}

impl Read for Socket {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Tcp(stream) => stream.read(buffer),
            Self::Unix(stream) => stream.read(buffer),
        }
    }
}

impl Write for Socket {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Self::Tcp(stream) => stream.write(bytes),
            Self::Unix(stream) => stream.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_print_as_users_write_them() {
        assert_eq!(Address::tcp("127.0.0.1", 7711).to_string(), "127.0.0.1:7711");
        assert_eq!(Address::tcp("::1", 7711).to_string(), "[::1]:7711");
        assert_eq!(Address::unix("/run/shardq.sock").to_string(), "/run/shardq.sock");
    }
}
