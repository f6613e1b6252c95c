//! The sockets of a shard on a ring of its own: one system call in a turn sends what all of them have to send and brings what
//! came for any of them.
//!
//! glommio arms a poll for each receive and is interrupted by each completion. Here a socket is asked for once: a multishot accept
//! brings connections, a multishot receive brings input, until they are called off. The ring belongs to one thread, and the kernel
//! completes nothing on it but inside of that thread's calls (single issuer, deferred task run): so between two calls nothing
//! moves, and what the last one brought is all that has happened.
//!
//! ```text
//! adopt -> receiving --no buffer left--> starved --buffers came back--> receiving
//!              |  ^                         reading off: cancelled -> off --reading on--> receiving
//!              v  |
//!            input, in order -> the owner     end or failure: told behind the input, and nothing is received any more
//!
//! append -> waiting -> in flight (one message for a socket) -> taken by the kernel: told at once
//!              ^------------ the rest of a short send -----------|
//!
//! close -> shut down, operations called off -> the last of them ended: descriptor and buffers are given up
//! ```
//!
//! - **Buffers.** Received bytes are lent out ([`Lent`]) and come back by being dropped. What is lent, is bounded by the number of buffers:
//!   with none left the kernel ends receives, which are armed again when there are some; until then the senders wait.
//! - **Reading off** calls the receive off, and so does input that waits for the loop. What the kernel had brought before is still told: some
//!   fifty buffers at the most.
//! - **Sending.** A message holds its chunks until the kernel has said how much it took. A socket whose reader is slow has one message in the
//!   kernel, which goes on when there is room. Nothing is sent but inside of [`Ring::turn`], and the owner is told by [`Ring::finished`]
//!   right after it: who is closed in between knows exactly what went out.
//! - **Closing** shuts the socket down first, so that no message that is in the kernel's hands goes on.
//! - **Multishot operations end by themselves**, for want of buffers, descriptors or room for completions: whatever comes without "more" is
//!   armed again if it is still wanted. Completions that find no room are kept by the kernel and brought by the next call.
//! - **Tasks** of the bus use their sockets between the turns, also while the loop sleeps: then it is roused, to give the kernel what they left.
//! - **Sleep.** A shard without work naps on the ring first ([`Ring::nap`]). When nothing comes it sleeps in the executor, and an eventfd
//!   wakes it, by a read that is always armed there; the ring rings it only between [`Ring::may_sleep`] and [`Ring::wake`], so a shard that
//!   is awake is never interrupted.

mod buffers;
mod probe;
mod system;
#[cfg(test)]
mod tests;

use std::cell::RefCell;
use std::collections::VecDeque;
use std::io;
use std::net::Shutdown;
use std::os::fd::{AsFd, BorrowedFd, FromRawFd, IntoRawFd, OwnedFd};
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::thread;
use std::time::{Duration, Instant};

use bytes::Bytes;
use glommio::io::BufferedFile;
use glommio::timer::Timer;
use socket2::SockRef;
use tracing::warn;

use super::accept::{ARRIVALS_WAITING, ERRORS_PER_LINE, PAUSE_AFTER_ERROR};
use super::unsent::Unsent;
use crate::wakeup::{Place, Wakeup};
use buffers::BufferCount;
pub use buffers::Lent;
pub use probe::probe;
use system::{Completion, Sizes, System};

/// Enough that a busy turn needs one call; more are no error.
const SIZES: Sizes = Sizes {
    submissions: 512,
    completions: 4096,
    buffers: BufferCount(512),
};

/// How long a shard without work looks for some before it naps, and how short the nap before was to be for that. With a client that waits for
/// each answer that makes twice as many requests a second, for two thirds of the CPU each: falling asleep and waking cost more than the wait. With
/// many clients it changes nothing.
const LOOKING: Duration = Duration::from_micros(20);
const SOON: Duration = Duration::from_micros(60);
/// Buffers of a socket that may wait for the loop, above which no more is received from it until all are taken. One call may bring some thirty
/// more than that.
const INPUT_WAITING: usize = 16;

/// The sockets on a ring; clones are handles of the same one.
#[derive(Clone)]
pub struct Ring(Rc<RefCell<Sockets>>);

/// One socket on a ring. It is closed when this is dropped.
pub struct RingSocket {
    ring: Ring,
    number: u32,
}

/// Something that was received.
#[derive(Debug)]
pub enum Input {
    /// Bytes.
    Bytes(Lent),
    /// The other side sends nothing more.
    End,
    /// The connection is broken.
    Failed,
}

/// An operation that goes on by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Multishot {
    /// The kernel does not have it.
    Off,
    /// It goes on.
    Armed,
    /// It was called off, and has not ended yet.
    Cancelled,
}

/// Who is told what happens to a socket.
enum Owner {
    /// The loop, by the socket's place.
    Loop(Place),
    /// A task, when it waits for input, or for output to be taken.
    Task {
        receiver: Option<Waker>,
        sender: Option<Waker>,
    },
}

struct Sockets {
    system: System,
    /// Where the loop sleeps.
    wakeup: Option<Arc<Wakeup>>,
    bell: Option<OwnedFd>,
    /// The last nap was a short one.
    comes_soon: bool,
    sockets: Vec<Option<Socket>>,
    free: Vec<u32>,
    listeners: Vec<Option<Listener>>,
    /// Sockets with input, in the order in which they are to be served.
    ready: VecDeque<Place>,
    /// Sockets of which the kernel has taken output, or refused it.
    finished: VecDeque<Place>,
    /// Tasks that are to be woken.
    to_wake: Vec<Waker>,
    /// Tasks were woken.
    has_woken: bool,
    /// Sockets with output for the next turn.
    to_send: Vec<u32>,
    /// Sockets that are not received from for want of buffers.
    starved: Vec<u32>,
}

struct Socket {
    descriptor: OwnedFd,
    owner: Owner,
    receive: Multishot,
    is_reading: bool,
    /// Nothing more is to be received.
    has_ended: bool,
    is_closing: bool,
    is_starved: bool,
    is_to_send: bool,
    /// Operations that have not ended.
    flying: u8,
    input: VecDeque<Input>,
    /// What the kernel has not been given.
    waiting: Unsent,
    /// The message that the kernel has.
    sending: Option<u32>,
    sending_bytes: usize,
    sent_bytes: usize,
    failure: Option<io::Error>,
}

struct Listener {
    descriptor: OwnedFd,
    accept: Multishot,
    is_closing: bool,
    is_paused: bool,
    flying: u8,
    accepted: VecDeque<OwnedFd>,
    errors: u64,
}

impl Ring {
    /// Makes a ring for this thread. `wakeup` is rung when a shard that sleeps has completions, and `bell` ends a nap when it becomes
    /// readable.
    pub fn new(wakeup: &Arc<Wakeup>, bell: OwnedFd) -> io::Result<Self> {
        let ring = Self::of_sizes(SIZES)?;
        ring.0.borrow_mut().wakeup = Some(Arc::clone(wakeup));
        ring.0.borrow_mut().watch(bell);
        let eventfd = ring.0.borrow().system.eventfd().try_clone()?;
        glommio::spawn_local(await_rings(eventfd, Arc::clone(wakeup))).detach();
        Ok(ring)
    }

    fn of_sizes(sizes: Sizes) -> io::Result<Self> {
        Ok(Self(Rc::new(RefCell::new(Sockets {
            system: System::new(sizes)?,
            wakeup: None,
            bell: None,
            comes_soon: false,
            sockets: Vec::new(),
            free: Vec::new(),
            listeners: Vec::new(),
            ready: VecDeque::new(),
            finished: VecDeque::new(),
            to_wake: Vec::new(),
            has_woken: false,
            to_send: Vec::new(),
            starved: Vec::new(),
        }))))
    }

    /// Accepts connections of a listening socket from now on; its number.
    pub fn listen(&self, descriptor: OwnedFd) -> usize {
        self.0.borrow_mut().listen(descriptor)
    }

    /// Accepts no more of them.
    pub fn stop_listening(&self, listener: usize) {
        self.0.borrow_mut().close_listener(listener as u32);
    }

    /// The connection of a listener that waits longest.
    pub fn accepted(&self, listener: usize) -> Option<OwnedFd> {
        self.0.borrow_mut().accepted(listener as u32)
    }

    /// Whether any connection waits.
    pub fn has_accepted(&self) -> bool {
        let sockets = self.0.borrow();
        let mut listeners = sockets.listeners.iter().flatten();
        listeners.any(|listener| !listener.accepted.is_empty())
    }

    /// Takes in a connection and receives from it; the loop finds it by this place.
    pub fn adopt(&self, descriptor: OwnedFd, place: Place) -> RingSocket {
        self.adopt_for(descriptor, Owner::Loop(place))
    }

    /// Takes in a connection and receives from it; a task waits for it.
    pub fn adopt_for_task(&self, descriptor: OwnedFd) -> RingSocket {
        let owner = Owner::Task {
            receiver: None,
            sender: None,
        };
        self.adopt_for(descriptor, owner)
    }

    fn adopt_for(&self, descriptor: OwnedFd, owner: Owner) -> RingSocket {
        RingSocket {
            ring: self.clone(),
            number: self.0.borrow_mut().adopt(descriptor, owner),
        }
    }

    /// The socket with input that is to be served next.
    pub fn ready(&self) -> Option<Place> {
        self.0.borrow_mut().ready.pop_front()
    }

    /// Serves a socket once more, behind the others.
    pub fn serve_again(&self, owner: Place) {
        self.0.borrow_mut().ready.push_back(owner);
    }

    /// Whether any socket has input.
    pub fn has_ready(&self) -> bool {
        !self.0.borrow().ready.is_empty()
    }

    /// A socket of which output was taken or refused.
    pub fn finished(&self) -> Option<Place> {
        self.0.borrow_mut().finished.pop_front()
    }

    /// The system call of a turn: what is to be sent goes, and what happened is there.
    pub fn turn(&self) {
        let listeners = self.0.borrow_mut().turn();
        // Wakers run code of the executor.
        let mut to_wake = std::mem::take(&mut self.0.borrow_mut().to_wake);
        if !to_wake.is_empty() {
            to_wake.drain(..).for_each(Waker::wake);
            let mut sockets = self.0.borrow_mut();
            sockets.has_woken = true;
            sockets.to_wake = to_wake;
        }
        for listener in listeners {
            glommio::spawn_local(resume(Rc::downgrade(&self.0), listener)).detach();
        }
    }

    /// A task has done something while the loop may sleep, which then is to give the kernel what came of it.
    fn rouse(&self) {
        let mut sockets = self.0.borrow_mut();
        if sockets.to_send.is_empty() && !sockets.can_feed() && !sockets.system.has_queued() {
            return;
        }
        let wakeup = sockets.wakeup.clone();
        drop(sockets);
        if let Some(wakeup) = wakeup {
            wakeup.rouse();
        }
    }

    /// Whether tasks were woken since the last call.
    pub fn has_woken(&self) -> bool {
        std::mem::take(&mut self.0.borrow_mut().has_woken)
    }

    /// Sleeps on the ring itself for so long at the most, which costs less than a sleep of the executor; whether anything happened. Where
    /// something came soon the last time, it looks for a moment before it sleeps.
    pub fn nap(&self, longest: Duration) -> bool {
        let mut sockets = self.0.borrow_mut();
        let start = Instant::now();
        if sockets.comes_soon {
            while sockets.is_idle() && start.elapsed() < LOOKING.min(longest) {
                // Whoever else wants the core goes first.
                thread::yield_now();
            }
        }
        if sockets.is_idle() {
            sockets.system.wait(longest);
        }
        let has_come = !sockets.is_idle();
        sockets.comes_soon = has_come && start.elapsed() < SOON;
        has_come
    }

    /// Whether nothing is to be done; the eventfd rings for what happens from now on.
    pub fn may_sleep(&self) -> bool {
        self.0.borrow_mut().may_sleep()
    }

    /// Nobody sleeps any more.
    pub fn wake(&self) {
        self.0.borrow_mut().system.set_ringing(false);
    }
}

impl RingSocket {
    /// The next input, and whether there is more.
    pub fn receive(&self) -> Option<(Input, bool)> {
        let mut sockets = self.ring.0.borrow_mut();
        let socket = sockets.socket(self.number);
        let input = socket.input.pop_front()?;
        let is_last = socket.input.is_empty();
        if is_last {
            sockets.receive(self.number);
        }
        Some((input, !is_last))
    }

    /// The next input, for the task of this context.
    pub fn poll_receive(&self, context: &Context<'_>) -> Poll<Input> {
        if let Some((input, _)) = self.receive() {
            self.ring.rouse();
            return Poll::Ready(input);
        }
        self.with(|socket| {
            if let Owner::Task { receiver, .. } = &mut socket.owner {
                *receiver = Some(context.waker().clone());
            }
        });
        Poll::Pending
    }

    /// Wakes the task of this context when the kernel has taken output.
    pub fn wake_when_sent(&self, context: &Context<'_>) {
        self.with(|socket| {
            if let Owner::Task { sender, .. } = &mut socket.owner {
                *sender = Some(context.waker().clone());
            }
        });
    }

    /// Stops or resumes receiving.
    pub fn set_reading(&self, on: bool) {
        self.ring.0.borrow_mut().set_reading(self.number, on);
    }

    /// Adds output; it goes with the next [`Ring::turn`].
    pub fn append(&self, chunks: impl Iterator<Item = Bytes>) {
        let mut sockets = self.ring.0.borrow_mut();
        let socket = sockets.socket(self.number);
        chunks.for_each(|chunk| socket.waiting.push(chunk));
        let is_of_task = matches!(socket.owner, Owner::Task { .. });
        sockets.send_later(self.number);
        drop(sockets);
        if is_of_task {
            self.ring.rouse();
        }
    }

    /// Drops the output that the kernel has not been given.
    pub fn drop_output(&self) {
        self.with(|socket| socket.waiting.clear());
    }

    /// Bytes of output that the kernel has not taken.
    pub fn unsent_bytes(&self) -> usize {
        self.with(|socket| socket.waiting.bytes() + socket.sending_bytes)
    }

    /// Bytes that the kernel took since the last call, or why it takes no more.
    pub fn take_sent(&self) -> io::Result<usize> {
        self.with(|socket| match std::mem::take(&mut socket.sent_bytes) {
            0 => socket.failure.take().map_or(Ok(0), Err),
            bytes => Ok(bytes),
        })
    }

    /// Looks at the socket itself.
    pub fn descriptor<T>(&self, look: impl FnOnce(BorrowedFd<'_>) -> T) -> T {
        self.with(|socket| look(socket.descriptor.as_fd()))
    }

    fn with<T>(&self, act: impl FnOnce(&mut Socket) -> T) -> T {
        act(self.ring.0.borrow_mut().socket(self.number))
    }
}

impl Drop for RingSocket {
    fn drop(&mut self) {
        self.ring.0.borrow_mut().close(self.number);
        self.ring.rouse();
    }
}

impl Sockets {
    fn watch(&mut self, bell: OwnedFd) {
        self.system.watch(bell.as_fd());
        self.bell = Some(bell);
    }

    fn socket(&mut self, number: u32) -> &mut Socket {
        self.sockets[number as usize]
            .as_mut()
            .expect("a socket is there until it was closed and its last operation ended")
    }

    fn adopt(&mut self, descriptor: OwnedFd, owner: Owner) -> u32 {
        let number = self.free.pop().unwrap_or_else(|| {
            self.sockets.push(None);
            u32::try_from(self.sockets.len() - 1).expect("descriptors are fewer than 2^31")
        });
        self.sockets[number as usize] = Some(Socket {
            descriptor,
            owner,
            receive: Multishot::Off,
            is_reading: true,
            has_ended: false,
            is_closing: false,
            is_starved: false,
            is_to_send: false,
            flying: 0,
            input: VecDeque::new(),
            waiting: Unsent::default(),
            sending: None,
            sending_bytes: 0,
            sent_bytes: 0,
            failure: None,
        });
        self.receive(number);
        number
    }

    /// Arms the receive, if it is wanted and off.
    fn receive(&mut self, number: u32) {
        let Self { system, sockets, .. } = self;
        let socket = sockets[number as usize]
            .as_mut()
            .expect("only what is there receives");
        let is_wanted = socket.is_reading
            && !socket.has_ended
            && !socket.is_closing
            && !socket.is_starved
            && socket.input.len() < INPUT_WAITING;
        if is_wanted && socket.receive == Multishot::Off {
            socket.receive = Multishot::Armed;
            socket.flying += 1;
            system.receive(number, socket.descriptor.as_fd());
        }
    }

    fn cancel_receive(&mut self, number: u32) {
        let socket = self.socket(number);
        if socket.receive == Multishot::Armed {
            socket.receive = Multishot::Cancelled;
            socket.flying += 1;
            self.system.cancel_receive(number);
        }
    }

    fn set_reading(&mut self, number: u32, on: bool) {
        self.socket(number).is_reading = on;
        if on {
            self.receive(number);
        } else {
            self.cancel_receive(number);
        }
    }

    /// Puts it on the list of those that send in the next turn, unless the kernel has a message of it.
    fn send_later(&mut self, number: u32) {
        let socket = self.socket(number);
        let has_output = socket.waiting.bytes() > 0 && socket.sending.is_none() && !socket.is_closing;
        if has_output && !std::mem::replace(&mut socket.is_to_send, true) {
            self.to_send.push(number);
        }
    }

    /// Gives the kernel what waits.
    fn send(&mut self, number: u32) {
        let Self { system, sockets, .. } = self;
        let Some(socket) = &mut sockets[number as usize] else {
            return;
        };
        socket.is_to_send = false;
        // The place may be another socket's by now.
        if socket.waiting.bytes() == 0 || socket.sending.is_some() || socket.is_closing {
            return;
        }
        let unsent = std::mem::take(&mut socket.waiting);
        socket.sending_bytes = unsent.bytes();
        socket.flying += 1;
        socket.sending = Some(system.send(number, socket.descriptor.as_fd(), unsent));
    }

    fn close(&mut self, number: u32) {
        let socket = self.socket(number);
        socket.is_closing = true;
        socket.input.clear();
        socket.waiting.clear();
        // An error means that the connection is gone already.
        let _ = SockRef::from(&socket.descriptor).shutdown(Shutdown::Both);
        if let Some(message) = socket.sending {
            socket.flying += 1;
            self.system.cancel_send(number, message);
        }
        self.cancel_receive(number);
        self.give_up(number);
    }

    /// Ends what was closed and has no operation left.
    fn give_up(&mut self, number: u32) {
        let socket = self.socket(number);
        if socket.is_closing && socket.flying == 0 {
            self.sockets[number as usize] = None;
            self.free.push(number);
        }
    }

    /// Listeners that have to pause.
    fn turn(&mut self) -> Vec<u32> {
        let mut to_pause = Vec::new();
        self.feed_starved();
        while let Some(number) = self.to_send.pop() {
            self.send(number);
        }
        if self.system.has_work() {
            self.system.enter();
        }
        while let Some(completion) = self.system.next() {
            match completion {
                Completion::Received { socket, result, more } => self.received(socket, result, more),
                Completion::Sent {
                    socket,
                    unsent,
                    result,
                } => self.sent(socket, unsent, result),
                Completion::Cancelled { socket } => {
                    self.socket(socket).flying -= 1;
                    self.give_up(socket);
                }
                Completion::Accepted {
                    listener,
                    result,
                    more,
                } => {
                    if self.took_connection(listener, result, more) {
                        to_pause.push(listener);
                    }
                }
                Completion::Watched { more } => {
                    if let Some(bell) = self.bell.take_if(|_| !more) {
                        self.watch(bell);
                    }
                }
                Completion::CancelledAccept { listener } => {
                    self.listener(listener).flying -= 1;
                    self.give_up_listener(listener);
                }
            }
        }
        to_pause
    }

    fn is_idle(&mut self) -> bool {
        self.to_send.is_empty() && !self.can_feed() && self.system.is_idle()
    }

    /// Whether a socket waits for a buffer, and there is one by now.
    fn can_feed(&self) -> bool {
        !self.starved.is_empty() && self.system.pool().can_offer()
    }

    fn may_sleep(&mut self) -> bool {
        self.system.set_ringing(true);
        let is_idle = self.is_idle();
        if !is_idle {
            self.system.set_ringing(false);
        }
        is_idle
    }

    fn received(&mut self, number: u32, result: io::Result<Option<Lent>>, more: bool) {
        let socket = self.sockets[number as usize]
            .as_mut()
            .expect("a socket outlives its operations");
        if !more {
            socket.receive = Multishot::Off;
            socket.flying -= 1;
        }
        let input = match result {
            Ok(Some(lent)) => Some(Input::Bytes(lent)),
            Ok(None) => Some(Input::End),
            Err(error) => match error.raw_os_error() {
                Some(libc::ENOBUFS) => {
                    if !socket.is_starved {
                        socket.is_starved = true;
                        self.starved.push(number);
                    }
                    None
                }
                Some(libc::ECANCELED | libc::EINTR | libc::EAGAIN) => None,
                _ => Some(Input::Failed),
            },
        };
        if let Some(input) = input.filter(|_| !socket.is_closing && !socket.has_ended) {
            socket.has_ended = !matches!(input, Input::Bytes(_));
            match &mut socket.owner {
                Owner::Loop(place) if socket.input.is_empty() => self.ready.push_back(*place),
                Owner::Loop(_) => {}
                Owner::Task { receiver, .. } => self.to_wake.extend(receiver.take()),
            }
            socket.input.push_back(input);
        }
        if more && socket.input.len() >= INPUT_WAITING {
            self.cancel_receive(number);
        }
        self.receive(number);
        self.give_up(number);
    }

    /// Arms the receives that wait for buffers.
    fn feed_starved(&mut self) {
        if self.starved.is_empty() {
            return;
        }
        self.system.pool().offer_more();
        self.system.pool().refill();
        if !self.system.pool().has_offers() {
            return;
        }
        for number in std::mem::take(&mut self.starved) {
            let Some(socket) = &mut self.sockets[number as usize] else {
                continue;
            };
            // The place may be another socket's by now, which has no need of this.
            if std::mem::take(&mut socket.is_starved) {
                self.receive(number);
            }
        }
    }

    fn sent(&mut self, number: u32, mut unsent: Unsent, result: io::Result<usize>) {
        let socket = self.sockets[number as usize]
            .as_mut()
            .expect("a socket outlives its operations");
        socket.flying -= 1;
        socket.sending = None;
        socket.sending_bytes = 0;
        if socket.is_closing {
            self.give_up(number);
            return;
        }
        match result {
            Ok(bytes) => {
                unsent.took(bytes);
                socket.sent_bytes += bytes;
                socket.waiting.put_before(unsent);
            }
            Err(error) => match error.raw_os_error() {
                Some(libc::EINTR | libc::EAGAIN) => socket.waiting.put_before(unsent),
                _ => socket.failure = Some(error),
            },
        }
        match &mut socket.owner {
            Owner::Loop(place) => self.finished.push_back(*place),
            Owner::Task { sender, .. } => self.to_wake.extend(sender.take()),
        }
        self.send_later(number);
    }

    fn listen(&mut self, descriptor: OwnedFd) -> usize {
        let number = self.listeners.len();
        self.listeners.push(Some(Listener {
            descriptor,
            accept: Multishot::Off,
            is_closing: false,
            is_paused: false,
            flying: 0,
            accepted: VecDeque::new(),
            errors: 0,
        }));
        self.accept(number as u32);
        number
    }

    fn listener(&mut self, number: u32) -> &mut Listener {
        self.listeners[number as usize]
            .as_mut()
            .expect("a listener is there until it was closed and its last operation ended")
    }

    /// Arms the accept, if it is wanted and off.
    fn accept(&mut self, number: u32) {
        let Self {
            system, listeners, ..
        } = self;
        let listener = listeners[number as usize]
            .as_mut()
            .expect("only what is there accepts");
        let is_wanted =
            !listener.is_closing && !listener.is_paused && listener.accepted.len() < ARRIVALS_WAITING;
        if is_wanted && listener.accept == Multishot::Off {
            listener.accept = Multishot::Armed;
            listener.flying += 1;
            system.accept(number, listener.descriptor.as_fd());
        }
    }

    fn cancel_accept(&mut self, number: u32) {
        let listener = self.listener(number);
        if listener.accept == Multishot::Armed {
            listener.accept = Multishot::Cancelled;
            listener.flying += 1;
            self.system.cancel_accept(number);
        }
    }

    /// Whether to pause.
    fn took_connection(&mut self, number: u32, result: io::Result<OwnedFd>, more: bool) -> bool {
        let listener = self.listener(number);
        if !more {
            listener.accept = Multishot::Off;
            listener.flying -= 1;
        }
        match result {
            // Nobody listens any more: the connection is closed.
            _ if listener.is_closing => {}
            Ok(connection) => listener.accepted.push_back(connection),
            Err(error) if error.raw_os_error() == Some(libc::ECANCELED) => {}
            Err(error) => {
                if listener.errors.is_multiple_of(ERRORS_PER_LINE) {
                    warn!("cannot accept a connection: {error}");
                }
                listener.errors += 1;
                listener.is_paused = true;
                self.give_up_listener(number);
                return true;
            }
        }
        if listener.accepted.len() >= ARRIVALS_WAITING {
            self.cancel_accept(number);
        }
        self.accept(number);
        self.give_up_listener(number);
        false
    }

    fn accepted(&mut self, number: u32) -> Option<OwnedFd> {
        let connection = self.listeners[number as usize].as_mut()?.accepted.pop_front()?;
        self.accept(number);
        Some(connection)
    }

    fn close_listener(&mut self, number: u32) {
        let listener = self.listener(number);
        listener.is_closing = true;
        listener.accepted.clear();
        // Who connects now is refused at once, though the kernel may hold the socket for a moment.
        let _ = SockRef::from(&listener.descriptor).shutdown(Shutdown::Both);
        self.cancel_accept(number);
        self.give_up_listener(number);
    }

    fn give_up_listener(&mut self, number: u32) {
        let listener = self.listener(number);
        if listener.is_closing && listener.flying == 0 {
            self.listeners[number as usize] = None;
        }
    }
}

/// Lets a listener accept again after a pause.
async fn resume(sockets: Weak<RefCell<Sockets>>, listener: u32) {
    Timer::new(PAUSE_AFTER_ERROR).await;
    let Some(ring) = sockets.upgrade().map(Ring) else {
        return;
    };
    let mut sockets = ring.0.borrow_mut();
    if let Some(paused) = &mut sockets.listeners[listener as usize] {
        paused.is_paused = false;
        sockets.accept(listener);
    }
    drop(sockets);
    ring.rouse();
}

/// Rings the loop whenever the ring has rung.
async fn await_rings(eventfd: OwnedFd, wakeup: Arc<Wakeup>) {
    // SAFETY: the descriptor is open, and its owner has just given it up.
    let file = unsafe { BufferedFile::from_raw_fd(eventfd.into_raw_fd()) };
    loop {
        match file.read_at(0, size_of::<u64>()).await {
            Ok(_) => wakeup.ring(),
            Err(error) => panic!("the eventfd of the ring cannot be read: {error}"),
        }
    }
}
