//! Host names to addresses, on a thread of its own: the system's resolver blocks, for seconds when a name server is away.

use std::io;
use std::net::{IpAddr, SocketAddr, ToSocketAddrs};
use std::os::fd::{FromRawFd, IntoRawFd};
use std::os::unix::net::UnixStream;
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::thread;

use futures_lite::AsyncReadExt;

type Answer = Arc<Mutex<Option<io::Result<Vec<SocketAddr>>>>>;

struct Query {
    host: String,
    port: u16,
    answer: Answer,
    /// Closed when the answer is there: a socket is how something from outside of the executors reaches one.
    done: UnixStream,
}

/// One thread for the process, started by the first name.
static RESOLVER: OnceLock<Sender<Query>> = OnceLock::new();

/// The addresses of a host; at least one. Must be called on an executor.
pub(super) async fn addresses(host: &str, port: u16) -> io::Result<Vec<SocketAddr>> {
    if let Ok(ip) = host.parse::<IpAddr>() {
        return Ok(vec![SocketAddr::new(ip, port)]);
    }
    let (ours, done) = UnixStream::pair()?;
    let answer = Answer::default();
    let query = Query {
        host: host.to_owned(),
        port,
        answer: Arc::clone(&answer),
        done,
    };
    let resolver = RESOLVER.get_or_init(start);
    resolver
        .send(query)
        .map_err(|_| io::Error::other("there is no thread to look up names"))?;
    // SAFETY: the descriptor is a connected socket, and its owner has just given it up.
    let mut ours = unsafe { glommio::net::UnixStream::from_raw_fd(ours.into_raw_fd()) };
    let _: usize = ours.read(&mut [0]).await?;
    let found = answer.lock().unwrap_or_else(PoisonError::into_inner).take();
    let found = found.unwrap_or_else(|| Err(io::Error::other("the name was not looked up")))?;
    if found.is_empty() {
        return Err(io::Error::other("the name has no address"));
    }
    Ok(found)
}

/// A resolver whose thread cannot be started refuses all queries.
fn start() -> Sender<Query> {
    let (sender, queries) = channel::<Query>();
    let started = thread::Builder::new().name("names".to_owned()).spawn(move || {
        for query in queries {
            let found = (query.host.as_str(), query.port)
                .to_socket_addrs()
                .map(Iterator::collect);
            *query.answer.lock().unwrap_or_else(PoisonError::into_inner) = Some(found);
            drop(query.done);
        }
    });
    if let Err(error) = started {
        tracing::error!("cannot start a thread to look up names: {error}");
    }
    sender
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bus::tests::on_executor;

    #[test]
    fn names_and_addresses() {
        on_executor(async {
            let found = addresses("::1", 7).await.unwrap();
            assert_eq!(found, [SocketAddr::from(([0, 0, 0, 0, 0, 0, 0, 1], 7))]);
            let found = addresses("localhost", 7).await.unwrap();
            assert!(
                found
                    .iter()
                    .all(|address| address.ip().is_loopback() && address.port() == 7)
            );
            assert!(addresses("no such host", 7).await.is_err());
        });
    }
}
