//! The client sockets of one shard, behind a narrow interface: events out by [`Net::next`], calls in.
//!
//! The loop never touches a socket and the sockets never touch a session. A socket is one on the shard's own ring ([`ring`]), or
//! glommio's ([`stream`]) where the kernel has no such rings. What must hold on both:
//!
//! - An idle connection holds no buffer: those that are received into are shared by all connections of the shard. Nothing is copied; the
//!   bytes are lent to the loop until its next call.
//! - Output is sent in the turn that brings it, all chunks together; only what the kernel does not take waits for the socket.
//! - Bytes are told as sent when the kernel has them, and never before.
//! - After the client has shut down its writing side it is still sent what it asked for.
//! - After a connection's last output its input is read away until the client closes too: the kernel answers unread input
//!   with a reset, which would take the last reply away from the client. This ends after [`LINGER_US`].

mod accept;
mod connection;
mod ring;
mod stream;
mod unsent;

use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use shard::input::Peer;
use shard::message::SessionId;

use crate::wakeup::{Place, Ready, Side, Wakeup, socket_waker};
pub use accept::{Arrival, Listener};
use connection::{Connection, Phase, Received, Socket};
pub use ring::{Input, Lent, Ring, RingSocket, probe};
use stream::Stream;
pub use unsent::Unsent;

/// Bytes of one receive at the most.
const RECEIVE_BYTES: usize = 64 << 10;
/// How long a connection that is to be closed may take to take its output and to close its side.
const LINGER_US: u64 = 2_000_000;

/// One thing that happened to a socket.
pub enum Event<'a> {
    /// A listener accepted a connection.
    Accepted(Arrival),
    /// Input of a session.
    Bytes { session: SessionId, bytes: &'a [u8] },
    /// Output of a session went to the kernel.
    Sent { session: SessionId, bytes: usize },
    /// The client sends nothing more; it may still read.
    HalfClosed { session: SessionId },
    /// The connection failed and is gone.
    Closed { session: SessionId },
}

/// The sockets of a shard.
pub struct Net {
    wakeup: Arc<Wakeup>,
    /// Where the sockets are; none: they are glommio's.
    ring: Option<Ring>,
    places: Vec<Entry>,
    free: Vec<u32>,
    /// The place of each session, by the session's index.
    sessions: Vec<Option<(u32, Place)>>,
    /// Connections with something to tell that is not about input.
    notices: VecDeque<Place>,
    arrivals: Rc<RefCell<VecDeque<Arrival>>>,
    listeners: Vec<glommio::Task<()>>,
    /// Listeners on the ring: number, path of a Unix socket.
    ring_listeners: Vec<(usize, Option<Arc<str>>)>,
    /// Connections that are being closed, in the order of their deadlines.
    lingering: VecDeque<(u64, Place)>,
    flushing: usize,
    /// What glommio's sockets receive into.
    buffer: Box<[u8]>,
    /// What the event that was told last has of the ring's buffers.
    lent: Option<Lent>,
    keepalive_s: u64,
}

struct Entry {
    generation: u32,
    connection: Option<Connection>,
}

/// What a turn of the ready list found, without the lent bytes.
enum Found {
    Bytes(SessionId, usize),
    HalfClosed(SessionId),
    Closed(SessionId),
    Sent(SessionId, usize),
}

impl Net {
    /// A shard's sockets, on this ring if there is one; the loop sleeps in `wakeup`.
    pub fn new(wakeup: Arc<Wakeup>, ring: Option<Ring>, keepalive_s: u64) -> Self {
        let buffer_bytes = if ring.is_some() { 0 } else { RECEIVE_BYTES };
        Self {
            wakeup,
            ring,
            places: Vec::new(),
            free: Vec::new(),
            sessions: Vec::new(),
            notices: VecDeque::new(),
            arrivals: Rc::default(),
            listeners: Vec::new(),
            ring_listeners: Vec::new(),
            lingering: VecDeque::new(),
            flushing: 0,
            buffer: vec![0; buffer_bytes].into_boxed_slice(),
            lent: None,
            keepalive_s,
        }
    }

    /// Accepts connections from now on. Must be called on the shard's executor.
    pub fn listen(&mut self, listeners: Vec<Listener>) {
        for listener in listeners {
            if let Some(ring) = &self.ring {
                let number = ring.listen(listener.socket);
                self.ring_listeners.push((number, listener.unix_path));
                continue;
            }
            let task = accept::run(listener, Rc::clone(&self.arrivals), Arc::clone(&self.wakeup));
            self.listeners.push(glommio::spawn_local(task));
        }
    }

    /// Accepts no more connections.
    pub fn stop_listening(&mut self) {
        self.listeners.clear();
        for (number, _) in self.ring_listeners.drain(..) {
            let ring = self.ring.as_ref().expect("they are its listeners");
            ring.stop_listening(number);
        }
    }

    /// Takes in a connection, which `session` makes a session for from the addresses of the two ends: client, server.
    pub fn adopt(&mut self, arrival: Arrival, session: impl FnOnce(Peer, Peer) -> SessionId) {
        let (place, peer, local) = self.place(arrival);
        let session = session(peer, local);
        let index = session.index as usize;
        if self.sessions.len() <= index {
            self.sessions.resize(index + 1, None);
        }
        self.sessions[index] = Some((session.generation, place));
        self.connection_mut(place)
            .expect("it was placed just now")
            .session = Some(session);
        if self.ring.is_none() {
            self.wakeup.push(Ready {
                place,
                side: Side::Read,
            });
        }
    }

    /// Answers a connection that gets no session, and closes it.
    pub fn refuse(&mut self, arrival: Arrival, reply: &'static [u8], now_us: u64) {
        let (place, ..) = self.place(arrival);
        let reply = (!reply.is_empty()).then_some(Bytes::from_static(reply));
        self.linger(place, reply.into_iter().collect(), now_us);
    }

    /// The next event, if anything happened.
    pub fn next(&mut self) -> Option<Event<'_>> {
        self.lent = None;
        if let Some(arrival) = self.next_arrival() {
            return Some(Event::Accepted(arrival));
        }
        let found = match self.next_notice() {
            Some(found) => found,
            None => self.next_ready()?,
        };
        Some(self.event(found))
    }

    /// The next event about output (sent, failed): what follows from [`Net::send`] without looking at a socket.
    pub fn next_about_output(&mut self) -> Option<Event<'_>> {
        let found = self.next_notice()?;
        Some(self.event(found))
    }

    /// Whether [`Net::next`] may have an event.
    pub fn has_events(&self) -> bool {
        let is_ring_ready = |ring: &Ring| ring.has_ready() || ring.has_accepted();
        !self.notices.is_empty()
            || !self.arrivals.borrow().is_empty()
            || self
                .ring
                .as_ref()
                .map_or_else(|| self.wakeup.has_ready(), is_ring_ready)
    }

    /// Sends what was given to [`Net::send`], with one system call for all sockets, and brings what happened meanwhile. What the kernel took
    /// is to be asked for by [`Net::next_about_output`] before the shard does anything else. Without a ring all of that is done already.
    pub fn turn(&mut self) {
        let Some(ring) = &self.ring else { return };
        ring.turn();
        while let Some(place) = self.ring.as_ref().and_then(Ring::finished) {
            self.flush(place);
        }
    }

    /// Whether the loop may sleep: nothing has happened, and `wakeup` is rung when something does.
    pub fn may_sleep(&self) -> bool {
        self.ring.as_ref().is_none_or(Ring::may_sleep)
    }

    /// Sleeps where only sockets wake it, for so long at the most; whether anything happened.
    pub fn nap(&self, longest: Duration) -> bool {
        self.ring.as_ref().is_some_and(|ring| ring.nap(longest))
    }

    /// The loop sleeps no more.
    pub fn wake(&self) {
        if let Some(ring) = &self.ring {
            ring.wake();
        }
    }

    /// Whether tasks that wait for sockets of the ring were woken since the last call.
    pub fn has_woken(&self) -> bool {
        self.ring.as_ref().is_some_and(Ring::has_woken)
    }

    /// Whether what happens to sockets is seen without the executor.
    pub fn has_ring(&self) -> bool {
        self.ring.is_some()
    }

    /// Sends output of a session: at once what the kernel takes, or all with the next [`Net::turn`].
    pub fn send(&mut self, session: SessionId, chunks: &mut Vec<Bytes>) {
        let Some(place) = self.place_of(session) else {
            chunks.clear();
            return;
        };
        let connection = self
            .connection_mut(place)
            .expect("a session's place has its connection");
        connection.append(chunks.drain(..));
        self.flush(place);
    }

    /// Bytes that were given to [`Net::send`] and not taken by the kernel.
    pub fn unsent(&self, session: SessionId) -> usize {
        self.place_of(session)
            .and_then(|place| self.connection(place))
            .map_or(0, Connection::unsent_bytes)
    }

    /// Stops or resumes reading.
    pub fn set_reading(&mut self, session: SessionId, on: bool) {
        let Some(place) = self.place_of(session) else {
            return;
        };
        let connection = self
            .connection_mut(place)
            .expect("a session's place has its connection");
        if connection.set_reading(on) {
            self.wakeup.push(Ready {
                place,
                side: Side::Read,
            });
        }
    }

    /// Closes the connection of a session that is gone, and drops what waits to be sent: a session that wants its output
    /// delivered closes when all of it was told as sent.
    pub fn close(&mut self, session: SessionId, now_us: u64) {
        let Some(place) = self.place_of(session) else {
            return;
        };
        self.forget_session(session);
        if self
            .connection(place)
            .is_some_and(|connection| connection.unsent_bytes() == 0)
        {
            self.linger(place, Vec::new(), now_us);
        } else {
            self.remove(place);
        }
    }

    /// Sets the keepalive of all connections, and of those to come.
    pub fn set_keepalive(&mut self, keepalive_s: u64) {
        self.keepalive_s = keepalive_s;
        for entry in &self.places {
            if let Some(connection) = &entry.connection {
                connection.set_keepalive(keepalive_s);
            }
        }
    }

    /// Ends connections that linger too long.
    pub fn expire(&mut self, now_us: u64) {
        while let Some(&(deadline_us, place)) = self.lingering.front() {
            let is_gone = self.connection_mut(place).is_none();
            if !is_gone && deadline_us > now_us {
                break;
            }
            self.lingering.pop_front();
            self.remove(place);
        }
    }

    /// When [`Net::expire`] is due.
    pub fn deadline_us(&self) -> Option<u64> {
        self.lingering.front().map(|&(deadline_us, _)| deadline_us)
    }

    /// Whether connections without a session still have output to send.
    pub fn is_flushing(&self) -> bool {
        self.flushing > 0
    }

    fn event(&self, found: Found) -> Event<'_> {
        match found {
            Found::Bytes(session, bytes) => Event::Bytes {
                session,
                bytes: match &self.lent {
                    Some(lent) => lent,
                    None => &self.buffer[..bytes],
                },
            },
            Found::HalfClosed(session) => Event::HalfClosed { session },
            Found::Closed(session) => Event::Closed { session },
            Found::Sent(session, bytes) => Event::Sent { session, bytes },
        }
    }

    fn next_arrival(&mut self) -> Option<Arrival> {
        let Some(ring) = &self.ring else {
            return self.arrivals.borrow_mut().pop_front();
        };
        self.ring_listeners.iter().find_map(|(number, unix_path)| {
            let socket = ring.accepted(*number)?;
            let unix_path = unix_path.clone();
            Some(Arrival { socket, unix_path })
        })
    }

    fn next_notice(&mut self) -> Option<Found> {
        while let Some(place) = self.notices.pop_front() {
            let Some(connection) = self.connection_mut(place) else {
                continue;
            };
            connection.is_noticed = false;
            let Some(session) = connection.session else {
                continue;
            };
            let sent = connection.take_sent();
            if sent > 0 {
                if connection.phase == Phase::Failed {
                    self.notice(place);
                }
                return Some(Found::Sent(session, sent));
            }
            if connection.phase == Phase::Failed {
                self.forget_session(session);
                self.remove(place);
                return Some(Found::Closed(session));
            }
        }
        None
    }

    fn next_ready(&mut self) -> Option<Found> {
        loop {
            let Ready { place, side } = match &self.ring {
                Some(ring) => Ready {
                    place: ring.ready()?,
                    side: Side::Read,
                },
                None => self.wakeup.pop()?,
            };
            let entry = &mut self.places[place.index as usize];
            let Some(connection) = entry
                .connection
                .as_mut()
                .filter(|_| entry.generation == place.generation)
            else {
                continue;
            };
            if side == Side::Write {
                connection.set_writable();
                self.flush(place);
                match self.next_notice() {
                    Some(found) => return Some(found),
                    None => continue,
                }
            }
            let received = connection.receive(&mut self.buffer);
            match &self.ring {
                Some(ring) if matches!(received, Received::Lent { more: true, .. }) => {
                    ring.serve_again(place)
                }
                None if matches!(received, Received::Bytes { more: true, .. }) => {
                    self.wakeup.push(Ready { place, side });
                }
                _ => {}
            }
            match (received, connection.session) {
                (Received::Nothing, _) | (Received::Bytes { .. } | Received::Lent { .. }, None) => {}
                (Received::Bytes { bytes, .. }, Some(session)) => return Some(Found::Bytes(session, bytes)),
                (Received::Lent { bytes, .. }, Some(session)) => {
                    let count = bytes.len();
                    self.lent = Some(bytes);
                    return Some(Found::Bytes(session, count));
                }
                (Received::End, Some(session)) => return Some(Found::HalfClosed(session)),
                (Received::End, None) => self.end_of_lingering(place),
                (Received::Failed, Some(_)) => self.fail(place),
                (Received::Failed, None) => self.remove(place),
            }
        }
    }

    fn place(&mut self, arrival: Arrival) -> (Place, Peer, Peer) {
        let index = self.free.pop().unwrap_or_else(|| {
            self.places.push(Entry {
                generation: 0,
                connection: None,
            });
            u32::try_from(self.places.len() - 1).expect("descriptors are fewer than 2^31")
        });
        let entry = &mut self.places[index as usize];
        let place = Place {
            index,
            generation: entry.generation,
        };
        let Arrival { socket, unix_path } = arrival;
        let socket = match &self.ring {
            Some(ring) => Socket::Ring(ring.adopt(socket, place)),
            None => {
                let wakers = [Side::Read, Side::Write].map(|side| socket_waker(&self.wakeup, place, side));
                Socket::Stream(Stream::new(socket, wakers))
            }
        };
        let (connection, peer, local) = Connection::new(socket, unix_path.as_deref(), self.keepalive_s);
        let before = entry.connection.replace(connection);
        assert!(before.is_none(), "a free place holds no connection");
        (place, peer, local)
    }

    fn linger(&mut self, place: Place, flush: Vec<Bytes>, now_us: u64) {
        let connection = self
            .connection_mut(place)
            .expect("only a placed connection lingers");
        if connection.phase == Phase::Failed {
            self.remove(place);
            return;
        }
        connection.phase = Phase::Flushing;
        connection.session = None;
        connection.append(flush.into_iter());
        if connection.set_reading(true) {
            self.wakeup.push(Ready {
                place,
                side: Side::Read,
            });
        }
        self.flushing += 1;
        self.lingering.push_back((now_us + LINGER_US, place));
        self.flush(place);
    }

    /// Sends what waits, as far as the kernel takes it.
    fn flush(&mut self, place: Place) {
        let Some(connection) = self.connection_mut(place) else {
            return;
        };
        match connection.flush() {
            Ok(()) if connection.phase == Phase::Flushing => {
                if connection.unsent_bytes() == 0 {
                    connection.phase = Phase::Draining;
                    connection.shut_down_writing();
                    let ended = connection.has_ended();
                    self.flushing -= 1;
                    if ended {
                        self.remove(place);
                    }
                }
            }
            Ok(()) => {
                if connection.has_sent() {
                    self.notice(place);
                }
            }
            Err(_) if connection.session.is_some() => self.fail(place),
            Err(_) => self.remove(place),
        }
    }

    /// The client of a lingering connection has closed its side: nothing is left to read away.
    fn end_of_lingering(&mut self, place: Place) {
        let phase = self.connection_mut(place).map(|connection| connection.phase);
        if phase == Some(Phase::Draining) {
            self.remove(place);
        }
    }

    fn fail(&mut self, place: Place) {
        if let Some(connection) = self.connection_mut(place) {
            connection.fail();
            self.notice(place);
        }
    }

    fn notice(&mut self, place: Place) {
        let connection = self.connection_mut(place).expect("notices are about connections");
        if !std::mem::replace(&mut connection.is_noticed, true) {
            self.notices.push_back(place);
        }
    }

    fn remove(&mut self, place: Place) {
        let entry = &mut self.places[place.index as usize];
        if entry.generation != place.generation {
            return;
        }
        if let Some(connection) = entry.connection.take() {
            if connection.phase == Phase::Flushing {
                self.flushing -= 1;
            }
            entry.generation = entry.generation.wrapping_add(1);
            self.free.push(place.index);
        }
    }

    fn forget_session(&mut self, session: SessionId) {
        self.sessions[session.index as usize] = None;
    }

    fn place_of(&self, session: SessionId) -> Option<Place> {
        let (generation, place) = (*self.sessions.get(session.index as usize)?)?;
        (generation == session.generation).then_some(place)
    }

    fn connection(&self, place: Place) -> Option<&Connection> {
        let entry = &self.places[place.index as usize];
        if entry.generation == place.generation {
            entry.connection.as_ref()
        } else {
            None
        }
    }

    fn connection_mut(&mut self, place: Place) -> Option<&mut Connection> {
        let entry = &mut self.places[place.index as usize];
        if entry.generation == place.generation {
            entry.connection.as_mut()
        } else {
            None
        }
    }
}
