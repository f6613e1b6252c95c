//! The receive buffers of a ring: the kernel picks one when bytes are there, so an idle connection holds none.
//!
//! One mapping holds the queue in which buffers are offered to the kernel, and the buffers behind it. A buffer is in one of three
//! hands: offered (the kernel may write it at any time), lent (a [`Lent`] reads it), or free. What was lent comes back when its `Lent` is
//! dropped, so none can be lost. Only as many are offered as are needed, the one that came back last first: so few buffers go round, and they
//! stay in the core's cache.

use std::cell::{Cell, RefCell};
use std::io;
use std::ops::Deref;
use std::ptr::{self, NonNull};
use std::rc::Rc;
use std::slice;
use std::sync::atomic::{AtomicU16, Ordering};

use io_uring::types::BufRingEntry;

/// Bytes of a buffer.
pub(super) const BUFFER_BYTES: usize = 8 << 10;
/// Buffers offered at the start.
const OFFERED_FIRST: u16 = 32;

/// How many buffers, a power of two.
#[derive(Clone, Copy, Debug)]
pub(super) struct BufferCount(pub(super) u16);

/// All buffers of a ring.
#[derive(Debug)]
pub(super) struct Pool {
    /// The mapping: the queue of offers, then the buffers.
    start: NonNull<u8>,
    count: u16,
    /// Free buffers; the last one goes first.
    free: RefCell<Vec<u16>>,
    offered: Cell<u16>,
    /// How many are to be offered.
    offer: Cell<u16>,
    tail: Cell<u16>,
}

impl Pool {
    /// Makes them, all free.
    pub(super) fn new(count: BufferCount) -> io::Result<Rc<Self>> {
        let BufferCount(count) = count;
        assert!(count.is_power_of_two(), "the kernel wants a power of two");
        // SAFETY: a new private mapping wherever the kernel likes touches no memory of ours.
        let start = unsafe {
            libc::mmap(
                ptr::null_mut(),
                mapped_bytes(count),
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
                -1,
                0,
            )
        };
        if start == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        Ok(Rc::new(Self {
            start: NonNull::new(start.cast()).expect("a mapping is not at 0"),
            count,
            free: RefCell::new((0..count).rev().collect()),
            offered: Cell::new(0),
            offer: Cell::new(OFFERED_FIRST.min(count)),
            tail: Cell::new(0),
        }))
    }

    /// Where the queue of offers is, for the kernel.
    pub(super) fn queue_address(&self) -> u64 {
        self.start.as_ptr() as u64
    }

    /// How many buffers there are.
    pub(super) fn count(&self) -> u16 {
        self.count
    }

    /// Buffers in the hands of readers.
    #[cfg(test)]
    pub(super) fn lent(&self) -> usize {
        usize::from(self.count - self.offered.get()) - self.free.borrow().len()
    }

    /// Whether the kernel has a buffer left.
    pub(super) fn has_offers(&self) -> bool {
        self.offered.get() > 0
    }

    /// Whether any is offered, or free to be.
    pub(super) fn can_offer(&self) -> bool {
        self.has_offers() || !self.free.borrow().is_empty()
    }

    /// The kernel had none left: more are to be offered from now on.
    pub(super) fn offer_more(&self) {
        self.offer.set(self.offer.get().saturating_mul(2).min(self.count));
    }

    /// Offers free buffers to the kernel, up to the number that is needed.
    pub(super) fn refill(&self) {
        let mut free = self.free.borrow_mut();
        let (mut tail, mut offered) = (self.tail.get(), self.offered.get());
        while offered < self.offer.get() {
            let Some(buffer) = free.pop() else { break };
            // SAFETY: the place is inside of the queue, which is at the start of the mapping, aligned to a page; all bytes of an entry are
            // valid ones. The kernel reads it only when the tail has passed it. Of the first entry, its last two bytes
            // are the tail; they are not set here.
            unsafe {
                let queue = self.start.cast::<BufRingEntry>();
                let entry = queue.add(usize::from(tail & (self.count - 1))).as_mut();
                entry.set_addr(self.address(buffer).as_ptr() as u64);
                entry.set_len(BUFFER_BYTES as u32);
                entry.set_bid(buffer);
            }
            tail = tail.wrapping_add(1);
            offered += 1;
        }
        if tail != self.tail.replace(tail) {
            self.offered.set(offered);
            // SAFETY: the tail lies inside of the first entry, aligned to two bytes, and the kernel reads it as an atomic.
            unsafe {
                let at = BufRingEntry::tail(self.start.as_ptr().cast()).cast_mut();
                AtomicU16::from_ptr(at).store(tail, Ordering::Release);
            }
        }
    }

    /// Takes over a buffer in which the kernel says that it has put so many bytes.
    pub(super) fn lend(pool: &Rc<Self>, buffer: u16, bytes: usize) -> Lent {
        assert!(
            buffer < pool.count && bytes <= BUFFER_BYTES,
            "the kernel fills the buffers that it was offered"
        );
        let offered = pool.offered.get().checked_sub(1);
        pool.offered.set(offered.expect("each buffer is taken once"));
        Lent {
            pool: Rc::clone(pool),
            buffer,
            bytes,
        }
    }

    fn address(&self, buffer: u16) -> NonNull<u8> {
        let at = queue_bytes(self.count) + usize::from(buffer) * BUFFER_BYTES;
        // SAFETY: the mapping has all buffers behind the queue, and this is one of them.
        unsafe { self.start.add(at) }
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        // SAFETY: it was mapped with this size. Nobody reads a buffer any more, since each `Lent` holds the pool; and the ring that
        // offered them to the kernel holds it until the kernel has given them up.
        unsafe { libc::munmap(self.start.as_ptr().cast(), mapped_bytes(self.count)) };
    }
}

/// Bytes of the queue, rounded up to buffers.
fn queue_bytes(count: u16) -> usize {
    (usize::from(count) * size_of::<BufRingEntry>()).next_multiple_of(BUFFER_BYTES)
}

fn mapped_bytes(count: u16) -> usize {
    queue_bytes(count) + usize::from(count) * BUFFER_BYTES
}

/// Received bytes, in a buffer that goes back to the ring when this is dropped.
#[derive(Debug)]
pub struct Lent {
    pool: Rc<Pool>,
    buffer: u16,
    bytes: usize,
}

impl Deref for Lent {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: these bytes of the mapping were written by the kernel, which has no hand in the buffer until this is
        // dropped; and there is one `Lent` for a buffer, since the kernel takes an offered buffer once.
        unsafe { slice::from_raw_parts(self.pool.address(self.buffer).as_ptr(), self.bytes) }
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        self.pool.free.borrow_mut().push(self.buffer);
    }
}
