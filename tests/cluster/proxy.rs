//! A proxy in front of the bus of a node: the others reach it through here, so that a test can cut what they say to it, by who dialed.
//!
//! A node sends its jobs' messages over the links that it dials, and hears over those that others dial. So a cut of what one node dials to
//! another is one-way; one each way parts them. Who dials stands in the third packet of a link's handshake (`shard::bus::handshake`);
//! what comes before it passes.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, Shutdown, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU16, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::thread::JoinHandle;

use shard::bus::handshake::{HEADER_BYTES, NONCE_BYTES};

/// Where the dialer's ID begins in what it sends: behind its hello, and the header of its proof.
const NODE_AT: usize = HEADER_BYTES + NONCE_BYTES + HEADER_BYTES;
const NODE_BYTES: usize = 20;

/// How links are cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cut {
    /// They are closed, and so is every new one.
    Closed,
    /// They stay, and what is sent waits: it arrives late, when the cut is healed.
    Held,
}

/// A listener on a port of its own, and the connections that came through it.
pub struct Proxy {
    port: u16,
    shared: Arc<Shared>,
    accepts: Option<JoinHandle<()>>,
}

#[derive(Default)]
struct Shared {
    target: AtomicU16,
    ends: AtomicBool,
    links: Mutex<Links>,
    changed: Condvar,
}

#[derive(Default)]
struct Links {
    /// By the dialer's ID.
    cuts: BTreeMap<String, Cut>,
    /// Who dialed, once that is known, and both ends.
    open: BTreeMap<u64, (Option<String>, TcpStream, TcpStream)>,
    next: u64,
}

impl Proxy {
    /// A proxy that leads nowhere yet.
    pub fn new() -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("there is a free port");
        let port = listener.local_addr().expect("it is bound").port();
        let shared = Arc::<Shared>::default();
        let accepting = Arc::clone(&shared);
        let accepts = std::thread::spawn(move || accept(&listener, &accepting));
        Self {
            port,
            shared,
            accepts: Some(accepts),
        }
    }

    pub fn port(&self) -> u16 {
        self.port
    }

    /// Connections lead to this port from now on.
    pub fn lead_to(&self, port: u16) {
        self.shared.target.store(port, Ordering::Relaxed);
    }

    /// Cuts the links that this node dials.
    pub fn cut(&self, dialer: &str, cut: Cut) {
        let mut links = self.shared.lock();
        links.cuts.insert(dialer.to_owned(), cut);
        if cut == Cut::Closed {
            links.close(|of| of == Some(dialer));
        }
    }

    /// Ends all cuts.
    pub fn heal(&self) {
        self.shared.lock().cuts.clear();
        self.shared.changed.notify_all();
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.shared.ends.store(true, Ordering::Relaxed);
        self.shared.lock().close(|_| true);
        self.heal();
        // Wakes the one who accepts.
        let _ = TcpStream::connect((Ipv4Addr::LOCALHOST, self.port));
        let accepts = self.accepts.take().expect("it ends once");
        accepts.join().expect("the proxy does not panic");
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Links> {
        self.links.lock().expect("nobody panics with it")
    }

    /// Waits while what this node dialed is held.
    fn wait_while_held(&self, dialer: &str) {
        let held = |links: &mut Links| {
            links.cuts.get(dialer) == Some(&Cut::Held) && !self.ends.load(Ordering::Relaxed)
        };
        drop(
            self.changed
                .wait_while(self.lock(), held)
                .expect("nobody panics with it"),
        );
    }

    /// The dialer of a link is known now; whether the link may stay.
    fn identify(&self, link: u64, dialer: &str) -> bool {
        let mut links = self.lock();
        let is_closed = links.cuts.get(dialer) == Some(&Cut::Closed);
        if let Some((of, ..)) = links.open.get_mut(&link) {
            *of = Some(dialer.to_owned());
        }
        !is_closed
    }
}

impl Links {
    fn close(&mut self, which: impl Fn(Option<&str>) -> bool) {
        for (of, dialed, reached) in self.open.values() {
            if which(of.as_deref()) {
                // It may be closed already.
                let _ = dialed.shutdown(Shutdown::Both);
                let _ = reached.shutdown(Shutdown::Both);
            }
        }
    }
}

fn accept(listener: &TcpListener, shared: &Arc<Shared>) {
    for dialed in listener.incoming() {
        if shared.ends.load(Ordering::Relaxed) {
            return;
        }
        let Ok(dialed) = dialed else { continue };
        let port = shared.target.load(Ordering::Relaxed);
        // Nobody listens there while the node is down: then the dialer is hung up on.
        let Ok(reached) = TcpStream::connect((Ipv4Addr::LOCALHOST, port)) else {
            continue;
        };
        let shared = Arc::clone(shared);
        std::thread::spawn(move || serve(&dialed, &reached, &shared));
    }
}

fn serve(dialed: &TcpStream, reached: &TcpStream, shared: &Arc<Shared>) {
    let both = || Some((dialed.try_clone().ok()?, reached.try_clone().ok()?));
    let (Some((from, to)), Some((kept_from, kept_to))) = (both(), both()) else {
        return;
    };
    for end in [dialed, reached] {
        end.set_nodelay(true).expect("an option of a socket");
    }
    let link = {
        let mut links = shared.lock();
        links.next += 1;
        let link = links.next;
        links.open.insert(link, (None, kept_from, kept_to));
        link
    };
    let back = std::thread::spawn(move || pass(&to, &from, |_| true));
    let (mut head, mut dialer) = (Vec::new(), None);
    pass(dialed, reached, |bytes| {
        if dialer.is_none() {
            head.extend_from_slice(bytes);
            if let Some(node) = head.get(NODE_AT..NODE_AT + NODE_BYTES) {
                let id: String = node.iter().map(|byte| format!("{byte:02x}")).collect();
                let stays = shared.identify(link, &id);
                dialer = Some(id);
                if !stays {
                    return false;
                }
            }
        }
        if let Some(dialer) = &dialer {
            shared.wait_while_held(dialer);
        }
        true
    });
    for end in [dialed, reached] {
        let _ = end.shutdown(Shutdown::Both);
    }
    back.join().expect("the proxy does not panic");
    shared.lock().open.remove(&link);
}

/// Passes bytes on, if they may, until either side ends.
fn pass(mut from: &TcpStream, mut to: &TcpStream, mut may: impl FnMut(&[u8]) -> bool) {
    let mut buffer = vec![0; 64 * 1024];
    while let Ok(count) = from.read(&mut buffer) {
        if count == 0 || !may(&buffer[..count]) || to.write_all(&buffer[..count]).is_err() {
            break;
        }
    }
    let _ = to.shutdown(Shutdown::Both);
    let _ = from.shutdown(Shutdown::Both);
}
