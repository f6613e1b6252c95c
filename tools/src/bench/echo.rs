//! A server that sends back what it gets: what is left of a figure when the broker does nothing.
//!
//! It runs in the bench's process, one thread per connection, so a report has no CPU time of a server for it;
//! its own counts as the generator's. Its threads end with their connections.

use std::io::{self, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::thread;

/// Bytes read at once.
const CHUNK_BYTES: usize = 64 * 1024;

/// Starts the server on a free port of the loopback: the port. Its threads run where the calling thread may
/// run now, so it is started before the generator is pinned.
pub fn start() -> io::Result<u16> {
    let listener = TcpListener::bind(("127.0.0.1", 0))?;
    let port = listener.local_addr()?.port();
    thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            thread::spawn(move || echo(stream));
        }
    });
    Ok(port)
}

/// Returns when the client is gone, which is how every connection ends.
fn echo(mut stream: TcpStream) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let mut chunk = vec![0; CHUNK_BYTES];
    loop {
        let length = stream.read(&mut chunk)?;
        if length == 0 {
            return Ok(());
        }
        stream.write_all(&chunk[..length])?;
    }
}
