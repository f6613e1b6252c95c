//! What brings a shard's loop back from its sleep: sockets that can go on, and everything else that has work for it.
//!
//! A socket's waker puts the socket's place on the ready list and wakes the loop, so the loop looks only at sockets that
//! can go on, however many are idle. All of this happens on the shard's own thread; the lock is there because a
//! `Waker` may be sent anywhere, and is never contended.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Wake, Waker};

/// One direction of a socket that can go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ready {
    /// The socket's place.
    pub place: Place,
    /// The direction.
    pub side: Side,
}

/// A place in the table of connections, and which of the connections that had it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// Number of the place.
    pub index: u32,
    /// Grows whenever the place is given up, so that a late wake-up is not taken for the next connection's.
    pub generation: u32,
}

/// A direction of a socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the words are the documentation")]
pub enum Side {
    Read,
    Write,
}

/// Where a loop sleeps.
#[derive(Default)]
pub struct Wakeup {
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    ready: VecDeque<Ready>,
    /// There is work that is on no ready list: a batch of the mesh, a connection, an answer.
    rung: bool,
    sleeper: Option<Waker>,
}

impl Wakeup {
    /// Wakes the loop: something was put where it looks in every turn.
    pub fn ring(&self) {
        let mut state = self.lock();
        state.rung = true;
        wake(state);
    }

    /// Wakes the loop if it sleeps in [`Wakeup::poll`]; otherwise it looks by itself before it does.
    pub fn rouse(&self) {
        let mut state = self.lock();
        if state.sleeper.is_some() {
            state.rung = true;
            wake(state);
        }
    }

    /// Puts a socket on the ready list and wakes the loop.
    pub fn push(&self, ready: Ready) {
        let mut state = self.lock();
        state.ready.push_back(ready);
        wake(state);
    }

    /// Takes the socket that is ready longest.
    pub fn pop(&self) -> Option<Ready> {
        self.lock().ready.pop_front()
    }

    /// Whether any socket is ready.
    pub fn has_ready(&self) -> bool {
        !self.lock().ready.is_empty()
    }

    /// Whether it was rung since the last turn began.
    pub fn is_rung(&self) -> bool {
        self.lock().rung
    }

    /// Forgets earlier rings: a turn that looks everywhere begins.
    pub fn begin_turn(&self) {
        self.lock().rung = false;
    }

    /// Ready when there is work; else the task is woken when there is.
    pub fn poll(&self, context: &Context<'_>) -> Poll<()> {
        let mut state = self.lock();
        if state.rung || !state.ready.is_empty() {
            return Poll::Ready(());
        }
        state.sleeper = Some(context.waker().clone());
        Poll::Pending
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Wakes outside of the lock: the waker may run code of the executor.
fn wake(mut state: MutexGuard<'_, State>) {
    let sleeper = state.sleeper.take();
    drop(state);
    if let Some(sleeper) = sleeper {
        sleeper.wake();
    }
}

/// The waker of one direction of one socket.
struct SocketWaker {
    wakeup: Arc<Wakeup>,
    ready: Ready,
}

impl Wake for SocketWaker {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.wakeup.push(self.ready);
    }
}

/// Makes the waker of one direction of the socket at `place`.
pub fn socket_waker(wakeup: &Arc<Wakeup>, place: Place, side: Side) -> Waker {
    Waker::from(Arc::new(SocketWaker {
        wakeup: Arc::clone(wakeup),
        ready: Ready { place, side },
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLACE: Place = Place {
        index: 3,
        generation: 1,
    };

    #[test]
    fn a_socket_waker_puts_its_side_on_the_list_and_wakes_the_sleeper() {
        let wakeup = Arc::new(Wakeup::default());
        let loop_wakeup = Arc::new(Wakeup::default());
        let sleeper = socket_waker(&loop_wakeup, PLACE, Side::Read);
        assert_eq!(wakeup.poll(&Context::from_waker(&sleeper)), Poll::Pending);
        socket_waker(&wakeup, PLACE, Side::Write).wake_by_ref();
        assert!(loop_wakeup.has_ready(), "the sleeper was woken");
        assert_eq!(wakeup.poll(&Context::from_waker(&sleeper)), Poll::Ready(()));
        assert_eq!(
            wakeup.pop(),
            Some(Ready {
                place: PLACE,
                side: Side::Write
            })
        );
        assert_eq!(wakeup.pop(), None);
    }

    #[test]
    fn only_a_sleeper_is_roused() {
        let wakeup = Wakeup::default();
        wakeup.rouse();
        let context = Context::from_waker(Waker::noop());
        assert_eq!(wakeup.poll(&context), Poll::Pending);
        wakeup.rouse();
        assert_eq!(wakeup.poll(&context), Poll::Ready(()));
    }

    #[test]
    fn a_ring_lasts_until_the_next_turn_begins() {
        let wakeup = Wakeup::default();
        let context = Context::from_waker(Waker::noop());
        wakeup.ring();
        assert_eq!(wakeup.poll(&context), Poll::Ready(()));
        wakeup.begin_turn();
        assert_eq!(wakeup.poll(&context), Poll::Pending);
    }
}
