//! The task of one link that a shard of another node dialed: frames for the loop, and answers to pings.

use std::cell::{Cell, RefCell};
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use bytes::Bytes;
use glommio::timer::Timer;
use shard::bus::frame::{Assembler, Frame, FrameKind, sign};
use shard::bus::keepalive::idle_us;
use shard::bus::{LinkKind, Sender};
use shard::limits::{BUS_BATCH_BYTES, BUS_FRAME_BYTES};

use super::wire::Wire;
use super::{LinkError, Shared, What};
use crate::executor::look_at_rings;
use crate::net::Unsent;

/// Bytes of frames of one link that may wait for the loop; above it nothing is received.
const WAITING_BYTES: usize = 256 << 10;
/// Bytes received before the executor looks at its rings again.
const BURST_BYTES: usize = 512 << 10;

/// Bytes of unfinished frames of all links, above which only one link goes on with a long one.
const UNFINISHED_BYTES: usize = 256 << 20;

/// The unfinished frames of all links of a shard.
pub(super) struct Unfinished {
    /// Bytes that they take.
    pub(super) bytes: usize,
    /// Above this only one goes on.
    pub(super) most_bytes: usize,
    /// Which.
    ahead: Option<u64>,
    held: Vec<Waker>,
    links: u64,
}

impl Default for Unfinished {
    fn default() -> Self {
        Self {
            bytes: 0,
            most_bytes: UNFINISHED_BYTES,
            ahead: None,
            held: Vec::new(),
            links: 0,
        }
    }
}

/// A link that another node dialed, between the loop and the link's task.
pub(super) struct Incoming {
    pub(super) from: Sender,
    /// The store epoch that the other side was told.
    pub(super) told_epoch: u64,
    is_open: Cell<bool>,
    waiting_bytes: Cell<usize>,
    receiver: RefCell<Option<Waker>>,
}

impl Incoming {
    pub(super) fn new(from: Sender, told_epoch: u64) -> Rc<Self> {
        Rc::new(Self {
            from,
            told_epoch,
            is_open: Cell::new(true),
            waiting_bytes: Cell::new(0),
            receiver: RefCell::new(None),
        })
    }

    /// The loop took a frame; whether it still counts.
    pub(super) fn took(&self, bytes: usize) -> bool {
        self.waiting_bytes.set(self.waiting_bytes.get() - bytes);
        let receiver = self.receiver.take();
        if let Some(receiver) = receiver {
            receiver.wake();
        }
        self.is_open.get()
    }

    /// Nothing of it counts any more.
    pub(super) fn close(&self) {
        self.is_open.set(false);
    }
}

/// Receives until something is wrong, or the task is dropped.
pub(super) async fn run(incoming: Rc<Incoming>, wire: Wire, shared: Rc<Shared>) {
    let batch_bytes = match incoming.from.kind {
        LinkKind::Data => BUS_FRAME_BYTES,
        LinkKind::Membership => BUS_BATCH_BYTES,
    };
    let mut receiver = Receiver {
        incoming: Rc::clone(&incoming),
        wire,
        shared: Rc::clone(&shared),
        frames: Assembler::new(batch_bytes),
        answers: Unsent::default(),
        number: shared.number_link(),
        unfinished_bytes: 0,
        is_held: false,
    };
    let error = loop {
        if let Err(error) = receiver.burst().await {
            break error;
        }
        look_at_rings().await;
    };
    if !matches!(error, LinkError::Ended) {
        let Sender { node, shard, .. } = incoming.from;
        shared.complain(&format!("closed a link of node {node}, shard {shard}: {error}"));
    }
    shared.tell(What::Gone(incoming));
}

struct Receiver {
    incoming: Rc<Incoming>,
    wire: Wire,
    shared: Rc<Shared>,
    frames: Assembler,
    answers: Unsent,
    number: u64,
    /// What it has told of its unfinished frame.
    unfinished_bytes: usize,
    /// It does not receive because others' frames are too long.
    is_held: bool,
}

impl Shared {
    fn number_link(&self) -> u64 {
        let mut unfinished = self.unfinished.borrow_mut();
        unfinished.links += 1;
        unfinished.links
    }
}

impl Drop for Receiver {
    fn drop(&mut self) {
        self.note_unfinished(0);
    }
}

impl Receiver {
    /// Receives for a while.
    async fn burst(&mut self) -> Result<(), LinkError> {
        let mut bytes = 0;
        while bytes < BURST_BYTES {
            let idle = Duration::from_micros(idle_us(self.shared.silence_us.get()));
            let mut timer = Timer::new(idle);
            bytes += poll_fn(|context| match self.poll(context) {
                Poll::Pending if Pin::new(&mut timer).poll(context).is_pending() => Poll::Pending,
                Poll::Pending if self.is_held => Poll::Ready(Ok(0)),
                Poll::Pending => Poll::Ready(Err(LinkError::Silent)),
                received => received,
            })
            .await?;
        }
        Ok(())
    }

    /// Receives once, unless too much waits for the loop or for the other side.
    fn poll(&mut self, context: &mut Context<'_>) -> Poll<Result<usize, LinkError>> {
        self.wire.send(context, &mut self.answers)?;
        if self.answers.bytes() > 0 {
            return Poll::Pending;
        }
        if self.incoming.waiting_bytes.get() >= WAITING_BYTES {
            *self.incoming.receiver.borrow_mut() = Some(context.waker().clone());
            return Poll::Pending;
        }
        self.is_held = !self.may_go_on(context);
        if self.is_held {
            return Poll::Pending;
        }
        let shared = Rc::clone(&self.shared);
        let mut buffer = shared.buffer.borrow_mut();
        let Poll::Ready(received) = self.wire.poll_receive(context, &mut buffer) else {
            return Poll::Pending;
        };
        let received = received?;
        if received == 0 {
            return Poll::Ready(Err(LinkError::Ended));
        }
        self.shared
            .count(|traffic| traffic.bytes_received += received as u64);
        let mut bytes = &buffer[..received];
        while !bytes.is_empty() {
            match self.frames.take(&mut bytes)? {
                Some(Frame::Batch(batch)) => self.bring(batch),
                Some(Frame::Ping(number)) => self.answers.push(sign(FrameKind::Pong, number)),
                Some(Frame::Pong(_)) => return Poll::Ready(Err(LinkError::Unasked)),
                None => {}
            }
        }
        self.note_unfinished(self.frames.held_bytes());
        self.wire.send(context, &mut self.answers)?;
        Poll::Ready(Ok(received))
    }

    /// Whether there is room for more of its frame; if not, its task is woken when there may be.
    fn may_go_on(&self, context: &Context<'_>) -> bool {
        let mut unfinished = self.shared.unfinished.borrow_mut();
        if self.unfinished_bytes <= BUS_BATCH_BYTES || unfinished.bytes < unfinished.most_bytes {
            return true;
        }
        let goes = *unfinished.ahead.get_or_insert(self.number) == self.number;
        if !goes {
            unfinished.held.push(context.waker().clone());
        }
        goes
    }

    fn note_unfinished(&mut self, bytes: usize) {
        let mut unfinished = self.shared.unfinished.borrow_mut();
        unfinished.bytes = unfinished.bytes + bytes - self.unfinished_bytes;
        let is_less = bytes < self.unfinished_bytes;
        self.unfinished_bytes = bytes;
        if !is_less {
            return;
        }
        if unfinished.ahead == Some(self.number) {
            unfinished.ahead = None;
        }
        let held = std::mem::take(&mut unfinished.held);
        drop(unfinished);
        held.into_iter().for_each(Waker::wake);
    }

    fn bring(&self, batch: Bytes) {
        let waiting = &self.incoming.waiting_bytes;
        waiting.set(waiting.get() + batch.len());
        self.shared.tell(What::Batch(Rc::clone(&self.incoming), batch));
    }
}
