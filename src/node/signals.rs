//! SIGTERM and SIGINT stop the node in order; a second SIGINT ends it at once.
//!
//! Signals come to a thread of their own, which writes a byte to a socket that shard 0 reads: the one way in which
//! something from outside of the executors reaches a loop.

use std::io::{self, Write};
use std::os::fd::{FromRawFd, IntoRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::thread;

use futures_lite::AsyncReadExt;
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use tracing::info;

use super::BootError;
use crate::worker::{Post, Posts};

/// The end of the socket that shard 0 reads.
pub(super) struct StopRequests {
    socket: OwnedFd,
}

/// Starts to watch.
pub(super) fn watch() -> Result<StopRequests, BootError> {
    start().map_err(|error| BootError::System {
        what: "cannot watch for signals".to_owned(),
        error,
    })
}

impl StopRequests {
    /// Passes requests on to the loop of this executor, for ever.
    pub(super) async fn forward(self, posts: Posts) {
        // SAFETY: the descriptor is a connected socket, and its owner has just given it up.
        let mut socket = unsafe { glommio::net::UnixStream::from_raw_fd(self.socket.into_raw_fd()) };
        let mut byte = [0];
        while let Ok(1) = socket.read(&mut byte).await {
            posts.post(Post::Stop);
        }
    }
}

fn start() -> io::Result<StopRequests> {
    let (mut to_shard, from_thread) = UnixStream::pair()?;
    let mut signals = Signals::new([SIGTERM, SIGINT])?;
    thread::Builder::new().name("signals".to_owned()).spawn(move || {
        let mut interrupts = 0;
        for signal in signals.forever() {
            interrupts += u32::from(signal == SIGINT);
            if interrupts > 1 {
                info!("second SIGINT: ends at once");
                std::process::exit(1);
            }
            info!("signal {signal}: stops in order");
            if to_shard.write_all(&[1]).is_err() {
                return;
            }
        }
    })?;
    Ok(StopRequests {
        socket: from_thread.into(),
    })
}
