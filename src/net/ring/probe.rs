//! Whether the kernel has what a ring of sockets needs: a small ring is made, and must receive a byte.

use std::io::{self, Write};
use std::os::unix::net::UnixStream;

use crate::wakeup::Place;

use super::buffers::BufferCount;
use super::system::Sizes;
use super::{Input, Ring};

/// Tries it; the error says what the kernel does not do.
pub fn probe() -> Result<(), String> {
    let sizes = Sizes {
        submissions: 4,
        completions: 8,
        buffers: BufferCount(4),
    };
    let ring = Ring::of_sizes(sizes).map_err(|error| {
        format!("the kernel makes no ring for sockets (Linux 6.1 or later does): {error}")
    })?;
    match receives(&ring) {
        Ok(true) => Ok(()),
        Ok(false) => {
            Err("the kernel receives only once when asked once (Linux 6.1 or later goes on)".to_owned())
        }
        Err(error) => Err(format!("a socket pair cannot be tried: {error}")),
    }
}

/// Whether one operation receives twice.
fn receives(ring: &Ring) -> io::Result<bool> {
    let (mut client, server) = UnixStream::pair()?;
    let owner = Place {
        index: 0,
        generation: 0,
    };
    let socket = ring.adopt(server.into(), owner);
    for _ in 0..2 {
        client.write_all(b"x")?;
        ring.turn();
        let is_received = matches!(socket.receive(), Some((Input::Bytes(bytes), false)) if *bytes == *b"x");
        if !is_received {
            return Ok(false);
        }
    }
    Ok(true)
}
