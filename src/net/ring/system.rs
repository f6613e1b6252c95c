//! The ring as the kernel has it: operations in, completions out, and the memory that the kernel may touch in between.
//!
//! Whatever an operation points to is owned here from the moment it is queued until its completion was taken: buffers to receive into
//! ([`Pool`]), output that is sent ([`Message`]). So no caller can free it too early, and everything outside of this file and of
//! [`super::buffers`] is safe code. When a ring is dropped its operations are called off first; should the kernel keep one, the memory is
//! leaked rather than given back.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::rc::Rc;
use std::sync::atomic::{Ordering, fence};
use std::thread;
use std::time::Duration;

use io_uring::types::{CancelBuilder, Fd, SubmitArgs, Timespec};
use io_uring::{EnterFlags, IoUring, cqueue, opcode, squeue};
use rustix::event::{EventfdFlags, eventfd};

use super::buffers::{BufferCount, Lent, Pool};
use crate::net::Unsent;

/// Chunks sent by one operation at the most.
const SEND_CHUNKS: usize = 64;
/// Emptied messages kept for later ones.
const SPARE_MESSAGES: usize = 256;
/// The only group of buffers.
const GROUP: u16 = 0;
/// Completions that one turn goes on to ask for.
const MOST_COMPLETED: usize = 256;
/// How often, and how long apart, a ring that ends looks whether the kernel has let go of everything.
const END_LOOKS: usize = 1000;
const END_PAUSE: Duration = Duration::from_millis(1);

/// Sizes of a ring.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sizes {
    /// Operations queued between two system calls; more go, by one more call.
    pub(super) submissions: u32,
    /// Completions between two system calls; the kernel keeps more, at some cost.
    pub(super) completions: u32,
    /// Buffers to receive into.
    pub(super) buffers: BufferCount,
}

/// What an operation does; with the number of a socket or listener, or of a message, it is the name of the operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Accept,
    Receive,
    Send,
    Cancel,
    CancelAccept,
    Watch,
}

impl Kind {
    fn name(self, number: u32) -> u64 {
        (self as u64) << 32 | u64::from(number)
    }

    fn of(name: u64) -> (Self, u32) {
        let kind = match name >> 32 {
            0 => Self::Accept,
            1 => Self::Receive,
            2 => Self::Send,
            3 => Self::Cancel,
            4 => Self::CancelAccept,
            5 => Self::Watch,
            other => unreachable!("no operation is named {other}"),
        };
        (kind, name as u32)
    }
}

/// The end of an operation, or a step of one that goes on (`more`).
#[derive(Debug)]
pub(super) enum Completion {
    /// A listener has a connection.
    Accepted {
        listener: u32,
        result: io::Result<OwnedFd>,
        more: bool,
    },
    /// A socket has input; none: the other side sends nothing more.
    Received {
        socket: u32,
        result: io::Result<Option<Lent>>,
        more: bool,
    },
    /// The kernel took so many bytes of this output.
    Sent {
        socket: u32,
        unsent: Unsent,
        result: io::Result<usize>,
    },
    /// An operation was called off, or had ended.
    Cancelled { socket: u32 },
    /// The same for that of a listener.
    CancelledAccept { listener: u32 },
    /// What is watched became readable.
    Watched { more: bool },
}

/// Output on its way. It is boxed, since the kernel reads the header and the slices while it takes the operation.
struct Message {
    socket: u32,
    unsent: Unsent,
    slices: [libc::iovec; SEND_CHUNKS],
    header: libc::msghdr,
}

/// A ring.
pub(super) struct System {
    ring: IoUring,
    /// What the kernel has told and nobody has looked at yet.
    completed: VecDeque<cqueue::Entry>,
    pool: Rc<Pool>,
    /// Output on its way, by the number of the operation.
    messages: Vec<Option<Box<Message>>>,
    free: Vec<u32>,
    #[expect(
        clippy::vec_box,
        reason = "the boxes go to and fro between here and `messages`"
    )]
    spare: Vec<Box<Message>>,
    /// Operations that the kernel has, or will be given by the next call.
    flying: usize,
    eventfd: OwnedFd,
}

impl System {
    /// Makes one. Only this thread may use it from now on.
    pub(super) fn new(sizes: Sizes) -> io::Result<Self> {
        let ring = IoUring::builder()
            .setup_single_issuer()
            .setup_coop_taskrun()
            .setup_defer_taskrun()
            .setup_taskrun_flag()
            .setup_submit_all()
            .setup_cqsize(sizes.completions)
            .build(sizes.submissions)?;
        let pool = Pool::new(sizes.buffers)?;
        // SAFETY: the pool's queue has this many entries, and the pool is kept until the ring is gone (see `drop`).
        unsafe {
            let submitter = ring.submitter();
            submitter.register_buf_ring_with_flags(pool.queue_address(), pool.count(), GROUP, 0)?;
        }
        pool.refill();
        let eventfd = eventfd(0, EventfdFlags::CLOEXEC)?;
        ring.submitter().register_eventfd(eventfd.as_raw_fd())?;
        let mut system = Self {
            ring,
            completed: VecDeque::new(),
            pool,
            messages: Vec::new(),
            free: Vec::new(),
            spare: Vec::new(),
            flying: 0,
            eventfd,
        };
        system.set_ringing(false);
        Ok(system)
    }

    /// What becomes readable when there are completions, while it is asked for.
    pub(super) fn eventfd(&self) -> &OwnedFd {
        &self.eventfd
    }

    /// Asks the kernel to ring the eventfd at each completion, or not to.
    pub(super) fn set_ringing(&mut self, on: bool) {
        let completions = self.ring.completion();
        if on {
            completions.enable_eventfd();
        } else {
            completions.disable_eventfd();
        }
        drop(completions);
        // Who goes to sleep looks for completions after this, and the kernel looks at the flag after it has something to complete.
        fence(Ordering::SeqCst);
    }

    /// Completes something each time that it becomes readable, from now on.
    pub(super) fn watch(&mut self, descriptor: BorrowedFd<'_>) {
        let entry = opcode::PollAdd::new(Fd(descriptor.as_raw_fd()), libc::POLLIN as u32)
            .multi(true)
            .build();
        self.queue(entry, Kind::Watch.name(0));
    }

    /// Accepts connections from now on.
    pub(super) fn accept(&mut self, listener: u32, socket: BorrowedFd<'_>) {
        let entry = opcode::AcceptMulti::new(Fd(socket.as_raw_fd()))
            .flags(libc::SOCK_CLOEXEC)
            .build();
        self.queue(entry, Kind::Accept.name(listener));
    }

    /// Calls that off.
    pub(super) fn cancel_accept(&mut self, listener: u32) {
        let entry = opcode::AsyncCancel::new(Kind::Accept.name(listener)).build();
        self.queue(entry, Kind::CancelAccept.name(listener));
    }

    /// Receives from now on.
    pub(super) fn receive(&mut self, socket: u32, descriptor: BorrowedFd<'_>) {
        let entry = opcode::RecvMulti::new(Fd(descriptor.as_raw_fd()), GROUP).build();
        self.queue(entry, Kind::Receive.name(socket));
    }

    /// Calls that off.
    pub(super) fn cancel_receive(&mut self, socket: u32) {
        let entry = opcode::AsyncCancel::new(Kind::Receive.name(socket)).build();
        self.queue(entry, Kind::Cancel.name(socket));
    }

    /// Sends as much as the kernel takes; the number of the operation.
    pub(super) fn send(&mut self, socket: u32, descriptor: BorrowedFd<'_>, unsent: Unsent) -> u32 {
        let number = self.free.pop().unwrap_or_else(|| {
            self.messages.push(None);
            u32::try_from(self.messages.len() - 1).expect("there is one for each socket at the most")
        });
        let mut message = self.spare.pop().unwrap_or_else(Message::empty);
        let entry = message.load(socket, descriptor.as_raw_fd(), unsent);
        self.messages[number as usize] = Some(message);
        self.queue(entry, Kind::Send.name(number));
        number
    }

    /// Calls the sending of that number off.
    pub(super) fn cancel_send(&mut self, socket: u32, number: u32) {
        let entry = opcode::AsyncCancel::new(Kind::Send.name(number)).build();
        self.queue(entry, Kind::Cancel.name(socket));
    }

    /// Whether operations are queued.
    pub(super) fn has_queued(&mut self) -> bool {
        !self.ring.submission().is_empty()
    }

    /// Whether a call would do anything: operations are queued, or completions wait in the kernel.
    pub(super) fn has_work(&mut self) -> bool {
        let queue = self.ring.submission();
        !queue.is_empty() || queue.taskrun() || queue.cq_overflow()
    }

    /// Whether nothing is to be done here or in the kernel. When the bell was set before, it rings for all that comes after.
    pub(super) fn is_idle(&mut self) -> bool {
        // The kernel marks that it has something to complete, then looks whether to ring. On x86 nothing can come in between that the
        // order of these two looks would not show; elsewhere a call makes sure.
        if cfg!(not(target_arch = "x86_64")) {
            self.enter();
        }
        self.completed.is_empty() && self.ring.completion().is_empty() && !self.has_work()
    }

    /// The system call: gives the kernel what is queued, and lets it complete what it can. It never waits.
    pub(super) fn enter(&mut self) {
        self.pool.refill();
        loop {
            let before = self.completed.len();
            let queued = self.ring.submission().len() as u32;
            let flags = EnterFlags::GETEVENTS.bits();
            // SAFETY: the queue has this many entries, each of which keeps to what `queue` asks for; no further argument is given.
            let entered = unsafe {
                let submitter = self.ring.submitter();
                submitter.enter::<libc::sigset_t>(queued, 0, flags, None)
            };
            self.collect();
            match entered.as_ref().map_err(|error| error.raw_os_error()) {
                // The kernel completes some twenty operations in a call, however many are ready.
                Ok(&taken) if taken as u32 == queued => {
                    let has_more = self.completed.len() > before && self.completed.len() < MOST_COMPLETED;
                    if !(has_more && self.ring.submission().taskrun()) {
                        return;
                    }
                }
                Ok(_) | Err(Some(libc::EINTR)) => {}
                // The kernel is short of memory, or keeps many completions: those were collected just now, and what is left is given to it
                // by the next call.
                Err(Some(libc::EAGAIN | libc::EBUSY | libc::ENOMEM)) => return,
                Err(_) => panic!("the ring refuses its operations: {entered:?}"),
            }
        }
    }

    /// The same, and waits for a completion so long.
    pub(super) fn wait(&mut self, longest: Duration) {
        let timeout = Timespec::from(longest);
        let arguments = SubmitArgs::new().timespec(&timeout);
        // An interrupted wait, or one that ends without a completion, is a short one.
        let _ = self.ring.submitter().submit_with_args(1, &arguments);
        self.collect();
    }

    /// Takes the next completion.
    pub(super) fn next(&mut self) -> Option<Completion> {
        let entry = self.completed.pop_front()?;
        let more = cqueue::more(entry.flags());
        self.flying -= usize::from(!more);
        let (kind, number) = Kind::of(entry.user_data());
        let result = match u32::try_from(entry.result()) {
            Ok(result) => Ok(result),
            Err(_) => Err(io::Error::from_raw_os_error(-entry.result())),
        };
        let lent = |bytes: usize| {
            let buffer = cqueue::buffer_select(entry.flags());
            buffer.map(|buffer| Pool::lend(&self.pool, buffer, bytes))
        };
        Some(match kind {
            Kind::Accept => Completion::Accepted {
                listener: number,
                // SAFETY: an accepted connection is a new descriptor, which is nobody else's.
                result: result.map(|descriptor| unsafe { OwnedFd::from_raw_fd(descriptor as RawFd) }),
                more,
            },
            Kind::Receive => {
                // A buffer may come with an error or the end, too, and goes back at once.
                let lent = lent(result.as_ref().map_or(0, |&bytes| bytes as usize));
                Completion::Received {
                    socket: number,
                    result: result.map(|bytes| lent.filter(|_| bytes > 0)),
                    more,
                }
            }
            Kind::Send => {
                let mut message = self.messages[number as usize]
                    .take()
                    .expect("a message is sent once");
                self.free.push(number);
                let (socket, unsent) = (message.socket, std::mem::take(&mut message.unsent));
                if self.spare.len() < SPARE_MESSAGES {
                    self.spare.push(message);
                }
                Completion::Sent {
                    socket,
                    unsent,
                    result: result.map(|bytes| bytes as usize),
                }
            }
            Kind::Cancel => Completion::Cancelled { socket: number },
            Kind::CancelAccept => Completion::CancelledAccept { listener: number },
            Kind::Watch => Completion::Watched { more },
        })
    }

    /// The buffers.
    pub(super) fn pool(&self) -> &Pool {
        &self.pool
    }

    /// Whether no output is on its way.
    #[cfg(test)]
    pub(super) fn holds_no_message(&self) -> bool {
        self.messages.iter().all(Option::is_none)
    }

    fn queue(&mut self, entry: squeue::Entry, name: u64) {
        let entry = entry.user_data(name);
        self.flying += 1;
        // SAFETY: what the entry points to stays until its completion: the pool as long as the ring, a message in `messages`.
        while unsafe { self.ring.submission().push(&entry) }.is_err() {
            self.enter();
        }
    }

    fn collect(&mut self) {
        self.completed.extend(self.ring.completion());
    }
}

impl Drop for System {
    fn drop(&mut self) {
        // Without an answer to this the looks below find that operations are left.
        let _ = self
            .ring
            .submitter()
            .register_sync_cancel(None, CancelBuilder::any());
        for _ in 0..END_LOOKS {
            self.enter();
            while self.next().is_some() {}
            if self.flying == 0 {
                return;
            }
            thread::sleep(END_PAUSE);
        }
        std::mem::forget(std::mem::take(&mut self.messages));
        std::mem::forget(Rc::clone(&self.pool));
    }
}

impl Message {
    fn empty() -> Box<Self> {
        let nothing = libc::iovec {
            iov_base: std::ptr::null_mut(),
            iov_len: 0,
        };
        // SAFETY: all-zero bytes are a header that points to nothing.
        let header = unsafe { std::mem::zeroed() };
        Box::new(Self {
            socket: 0,
            unsent: Unsent::default(),
            slices: [nothing; SEND_CHUNKS],
            header,
        })
    }

    /// Takes output in; the operation that sends it, which is to be given up before the message is.
    fn load(self: &mut Box<Self>, socket: u32, descriptor: RawFd, unsent: Unsent) -> squeue::Entry {
        self.socket = socket;
        self.unsent = unsent;
        let mut count = 0;
        for (slice, chunk) in self.slices.iter_mut().zip(self.unsent.chunks()) {
            slice.iov_base = chunk.as_ptr().cast_mut().cast();
            slice.iov_len = chunk.len();
            count += 1;
        }
        if count == 1 {
            let first = self.slices[0];
            let bytes = u32::try_from(first.iov_len).unwrap_or(u32::MAX);
            return opcode::Send::new(Fd(descriptor), first.iov_base.cast(), bytes)
                .flags(libc::MSG_NOSIGNAL)
                .build();
        }
        self.header.msg_iov = self.slices.as_mut_ptr();
        self.header.msg_iovlen = count;
        opcode::SendMsg::new(Fd(descriptor), &raw const self.header)
            .flags(libc::MSG_NOSIGNAL as u32)
            .build()
    }
}
