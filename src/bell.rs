//! How shards wake each other from a nap: a sleep on the ring of the sockets, of which glommio knows nothing.
//!
//! A shard with its sockets on a ring of its own sleeps there first, since that costs half of what a sleep of the executor does. What
//! reaches it by the mesh is seen by the executor only. So who has put something into the mesh rings the bell of the shard it is for: that
//! counts it, and writes to the bell's eventfd if the shard naps. The shard sees by the count that the executor is to look, also when it
//! does not sleep at all.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering, fence};

use rustix::event::{EventfdFlags, eventfd};
use shard::slot::ShardNo;
use tracing::warn;

/// The bells of all shards of a node; clones are the same ones.
#[derive(Clone, Debug)]
pub struct Bells(Arc<[Bell]>);

#[derive(Debug)]
struct Bell {
    rings: AtomicU64,
    is_napping: AtomicBool,
    eventfd: OwnedFd,
}

impl Bells {
    /// A bell for each of so many shards.
    pub fn new(shards: u16) -> io::Result<Self> {
        let bells: io::Result<Vec<Bell>> = (0..shards).map(|_| Bell::new()).collect();
        Ok(Self(bells?.into()))
    }

    /// There is something for that shard.
    pub fn ring(&self, shard: ShardNo) {
        let bell = &self.0[usize::from(shard)];
        bell.rings.fetch_add(1, Ordering::SeqCst);
        if bell.is_napping.load(Ordering::SeqCst) {
            bell.wake();
        }
    }

    /// The end of a shard's own bell.
    pub fn of(&self, shard: ShardNo) -> OwnBell {
        OwnBell {
            bells: self.clone(),
            shard: usize::from(shard),
            heard: 0,
        }
    }
}

impl Bell {
    fn new() -> io::Result<Self> {
        Ok(Self {
            rings: AtomicU64::new(0),
            is_napping: AtomicBool::new(false),
            eventfd: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?,
        })
    }

    fn wake(&self) {
        if let Err(error) = rustix::io::write(&self.eventfd, &1_u64.to_ne_bytes()) {
            // The nap ends by itself.
            warn!("cannot wake a shard: {error}");
        }
    }
}

/// A shard's own bell.
#[derive(Debug)]
pub struct OwnBell {
    bells: Bells,
    shard: usize,
    heard: u64,
}

impl OwnBell {
    /// What becomes readable when the bell is rung during a nap; it is never read, each ring is news.
    pub fn eventfd(&self) -> io::Result<OwnedFd> {
        self.bell().eventfd.try_clone()
    }

    /// Whether it was rung since [`OwnBell::hear`].
    pub fn has_rung(&self) -> bool {
        self.bell().rings.load(Ordering::SeqCst) != self.heard
    }

    /// The executor is about to look for all that it was rung for so far.
    pub fn hear(&mut self) {
        self.heard = self.bell().rings.load(Ordering::SeqCst);
    }

    /// Naps by `nap`, unless it has rung; none: it has.
    pub fn nap<T>(&self, nap: impl FnOnce() -> T) -> Option<T> {
        let bell = self.bell();
        bell.is_napping.store(true, Ordering::SeqCst);
        // Either this sees the ring, or who rings sees the nap.
        fence(Ordering::SeqCst);
        let napped = (!self.has_rung()).then(nap);
        bell.is_napping.store(false, Ordering::SeqCst);
        napped
    }

    fn bell(&self) -> &Bell {
        &self.bells.0[self.shard]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_is_rung_for_does_not_nap_until_it_has_heard() {
        let bells = Bells::new(2).unwrap();
        let (mut first, second) = (bells.of(0), bells.of(1));
        bells.ring(0);
        assert!(first.has_rung() && !second.has_rung());
        assert_eq!(first.nap(|| ()), None);
        first.hear();
        assert!(!first.has_rung());
        assert_eq!(first.nap(|| ()), Some(()));
    }

    #[test]
    fn only_a_ring_during_a_nap_is_written() {
        let bells = Bells::new(1).unwrap();
        let mut bell = bells.of(0);
        bells.ring(0);
        assert_eq!(count(&bell.eventfd().unwrap()), None, "nobody naps");
        bell.hear();
        bell.nap(|| bells.ring(0));
        assert_eq!(count(&bell.eventfd().unwrap()), Some(1));
        assert!(bell.has_rung());
    }

    fn count(eventfd: &OwnedFd) -> Option<u64> {
        let mut bytes = [0_u8; 8];
        let read = rustix::io::read(eventfd, &mut bytes);
        read.is_ok().then(|| u64::from_ne_bytes(bytes))
    }
}
