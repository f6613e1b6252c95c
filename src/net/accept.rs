//! Listeners on glommio: one small task for each, which puts accepted connections where the loop looks. And what a connection is on its way
//! to its shard.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, IntoRawFd, OwnedFd};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use glommio::GlommioError;
use glommio::net::{AcceptedTcpStream, TcpListener};
use glommio::timer::Timer;
use tracing::warn;

use crate::executor::look_at_rings;
use crate::wakeup::Wakeup;

/// Pause after a failed accept. The usual reason is that descriptors have run out, and the connection stays
/// acceptable: without a pause the loop would spin.
pub(super) const PAUSE_AFTER_ERROR: Duration = Duration::from_millis(100);
/// Failed accepts between two lines about them in the log.
pub(super) const ERRORS_PER_LINE: u64 = 100;
/// Connections that may wait to be taken in by the loop; the others wait in the kernel's backlog.
pub(super) const ARRIVALS_WAITING: usize = 256;

/// A bound and listening socket.
#[derive(Debug)]
pub struct Listener {
    /// The socket.
    pub socket: OwnedFd,
    /// Path of a Unix socket; none for TCP.
    pub unix_path: Option<Arc<str>>,
}

/// An accepted connection that can go to any shard.
#[derive(Debug)]
pub struct Arrival {
    pub(super) socket: OwnedFd,
    pub(super) unix_path: Option<Arc<str>>,
}

/// Accepts until the task is dropped.
pub(super) async fn run(listener: Listener, arrivals: Rc<RefCell<VecDeque<Arrival>>>, wakeup: Arc<Wakeup>) {
    // SAFETY: the descriptor is a listening socket, and its owner has just given it up.
    let socket = unsafe { TcpListener::from_raw_fd(listener.socket.into_raw_fd()) };
    let mut errors = 0_u64;
    loop {
        let accepted = socket.shared_accept().await;
        match accepted.and_then(descriptor_of) {
            Ok(socket) => {
                arrivals.borrow_mut().push_back(Arrival {
                    socket,
                    unix_path: listener.unix_path.clone(),
                });
                wakeup.ring();
                while arrivals.borrow().len() >= ARRIVALS_WAITING {
                    look_at_rings().await;
                }
            }
            Err(error) => {
                if errors.is_multiple_of(ERRORS_PER_LINE) {
                    warn!("cannot accept a connection: {error}");
                }
                errors += 1;
                Timer::new(PAUSE_AFTER_ERROR).await;
            }
        }
    }
}

/// What glommio accepted, as a descriptor that is ours.
fn descriptor_of(accepted: AcceptedTcpStream) -> Result<OwnedFd, GlommioError<()>> {
    let stream = accepted.bind_to_executor();
    // SAFETY: the stream owns the descriptor, and the borrow ends before the stream does.
    let descriptor = unsafe { BorrowedFd::borrow_raw(stream.as_raw_fd()) };
    descriptor.try_clone_to_owned().map_err(io::Error::into)
}
