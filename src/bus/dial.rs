//! The task of one link that this shard dialed: connect, prove, send and ping until it breaks, and again.

use std::cell::{Cell, RefCell};
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use futures_lite::future::or;
use glommio::net::TcpStream;
use glommio::timer::Timer;
use shard::bus::codec::OutFrame;
use shard::bus::frame::{Assembler, Frame, FrameKind, sign};
use shard::bus::handshake::{Dialer, Facts, Step};
use shard::bus::keepalive::{Backoff, KeepAlive};
use shard::bus::{Dial, LinkEvent};
use tracing::{debug, info};

use super::wire::Wire;
use super::{HANDSHAKE, Identity, LinkError, Shared, What, chance, resolve};
use crate::net::Unsent;

/// Bytes that wait for a link, above which what comes is dropped: it is said again, or asked for.
const OUTBOX_BYTES: usize = 16 << 20;
/// How long connecting may take.
const CONNECT: Duration = Duration::from_secs(3);

/// What waits for a link to be sent, between the loop and the link's task.
#[derive(Default)]
pub(super) struct Outbox {
    waiting: RefCell<Unsent>,
    is_up: Cell<bool>,
    sender: RefCell<Option<Waker>>,
}

impl Outbox {
    /// Takes a frame in, unless the link is down or too much waits already: so one always goes in when nothing waits.
    pub(super) fn admit(&self, frame: OutFrame) -> bool {
        let mut waiting = self.waiting.borrow_mut();
        if !self.is_up.get() || waiting.bytes() >= OUTBOX_BYTES {
            return false;
        }
        frame.chunks.into_iter().for_each(|chunk| waiting.push(chunk));
        drop(waiting);
        let sender = self.sender.take();
        if let Some(sender) = sender {
            sender.wake();
        }
        true
    }

    /// Whether its link is connected.
    pub(super) fn is_up(&self) -> bool {
        self.is_up.get()
    }

    /// Bytes that wait.
    pub(super) fn bytes(&self) -> usize {
        self.waiting.borrow().bytes()
    }

    fn set_up(&self, is_up: bool) {
        self.is_up.set(is_up);
        // Part of a frame may have been sent.
        self.waiting.borrow_mut().clear();
    }
}

/// A link that is kept.
pub(super) struct Link {
    pub(super) dial: Dial,
    pub(super) identity: Identity,
    /// Tells it from an earlier one of that name.
    pub(super) generation: u64,
    pub(super) outbox: Rc<Outbox>,
    pub(super) shared: Rc<Shared>,
}

/// A connected wire, and who is at its end.
struct Met {
    wire: Wire,
    peer: Facts,
    rtt_us: u32,
}

impl Link {
    /// Keeps it until the task is dropped.
    pub(super) async fn keep(self) {
        let mut backoff = Backoff::default();
        let mut told = String::new();
        loop {
            let why = match self.connect().await {
                Ok(met) => {
                    backoff.reset();
                    self.is_up(&met);
                    let error = self.talk(met).await;
                    self.outbox.set_up(false);
                    format!("the link to {} is down: {error}", self.place())
                }
                Err(error) => format!("cannot reach {}: {error}", self.place()),
            };
            if why != told {
                info!("bus: {why}");
                told.clone_from(&why);
            }
            self.tell(LinkEvent::Down { why });
            Timer::new(Duration::from_millis(backoff.next_ms(chance()))).await;
            self.shared.count(|traffic| traffic.reconnects += 1);
        }
    }

    fn place(&self) -> String {
        format!("{}:{}", self.dial.host, self.dial.port)
    }

    fn tell(&self, event: LinkEvent) {
        self.shared.tell(What::Link {
            link: self.dial.link,
            generation: self.generation,
            event,
        });
    }

    fn is_up(&self, met: &Met) {
        debug!("bus: connected to {}, node {}", self.place(), met.peer.node);
        let (local, remote) = met.wire.ends();
        self.outbox.set_up(true);
        self.tell(LinkEvent::Up {
            node: met.peer.node,
            epoch: met.peer.epoch,
            rtt_us: met.rtt_us,
            local,
            remote,
        });
    }

    /// Tries the host's addresses in turn; the last failure.
    async fn connect(&self) -> Result<Met, LinkError> {
        let mut failure = LinkError::Ended;
        for address in resolve::addresses(&self.dial.host, self.dial.port).await? {
            let met = match TcpStream::connect_timeout(address, CONNECT).await {
                Ok(stream) => {
                    let late = async {
                        Timer::new(HANDSHAKE).await;
                        Err(LinkError::Late)
                    };
                    or(self.meet(Wire::new(stream)), late).await
                }
                Err(error) => Err(LinkError::Connect(error.to_string())),
            };
            match met {
                Ok(met) => return Ok(met),
                Err(error) => failure = error,
            }
        }
        Err(failure)
    }

    async fn meet(&self, mut wire: Wire) -> Result<Met, LinkError> {
        let me = Facts {
            node: self.identity.node,
            epoch: self.identity.epoch,
            shard: self.shared.shard,
            shards: self.shared.shards,
            kind: self.dial.kind,
        };
        let nonce = super::random()?;
        let now_us = self.shared.now_us();
        let (mut dialer, mut say) = Dialer::start(now_us, me, self.dial.expect, &self.shared.secret, nonce);
        loop {
            wire.send_all(say).await?;
            let packet = wire.receive_packet().await?;
            match dialer.receive(self.shared.now_us(), &packet)? {
                Step::Say(next) => say = next,
                Step::Met { peer, rtt_us, .. } => return Ok(Met { wire, peer, rtt_us }),
            }
        }
    }

    /// Sends what there is and pings, until something is wrong.
    async fn talk(&self, met: Met) -> LinkError {
        let wire = match met.wire.onto(self.shared.ring.as_ref()) {
            Ok(wire) => wire,
            Err(error) => return error.into(),
        };
        let mut talk = Talk {
            link: self,
            wire,
            alive: KeepAlive::new(self.shared.now_us(), self.shared.silence_us.get(), met.rtt_us),
            signs: Assembler::new(0),
            timer: None,
        };
        poll_fn(|context| talk.poll(context)).await
    }
}

/// A connected link.
struct Talk<'a> {
    link: &'a Link,
    wire: Wire,
    alive: KeepAlive,
    signs: Assembler,
    /// The next look at the clock, and when it is due.
    timer: Option<(u64, Timer)>,
}

impl Talk<'_> {
    fn poll(&mut self, context: &mut Context<'_>) -> Poll<LinkError> {
        let shared = &self.link.shared;
        *self.link.outbox.sender.borrow_mut() = Some(context.waker().clone());
        loop {
            let now_us = shared.now_us();
            self.alive.set_silence(shared.silence_us.get());
            if let Err(error) = self.receive(context, now_us) {
                return Poll::Ready(error);
            }
            let mut waiting = self.link.outbox.waiting.borrow_mut();
            if let Some(number) = self.alive.ping(now_us) {
                waiting.push(sign(FrameKind::Ping, number));
            }
            match self.wire.send(context, &mut waiting) {
                Ok(0) => {}
                Ok(bytes) => {
                    self.alive.took_output(now_us);
                    shared.count(|traffic| traffic.bytes_sent += bytes as u64);
                }
                Err(error) => return Poll::Ready(error.into()),
            }
            if self.alive.is_silent(now_us) {
                return Poll::Ready(LinkError::Silent);
            }
            // A timer that is due too early only looks too early.
            let due_us = self.alive.deadline_us();
            if self.timer.as_ref().is_none_or(|(at_us, _)| *at_us > due_us) {
                let rest = Duration::from_micros(due_us.saturating_sub(now_us).max(1));
                self.timer = Some((due_us, Timer::new(rest)));
            }
            let (_, timer) = self.timer.as_mut().expect("it was set just now");
            if Pin::new(timer).poll(context).is_pending() {
                return Poll::Pending;
            }
            self.timer = None;
        }
    }

    /// Takes the answers to pings; whoever sends more than that is no peer.
    fn receive(&mut self, context: &mut Context<'_>, now_us: u64) -> Result<(), LinkError> {
        let mut buffer = [0; 64];
        while let Poll::Ready(received) = self.wire.poll_receive(context, &mut buffer) {
            let received = received?;
            if received == 0 {
                return Err(LinkError::Ended);
            }
            let mut bytes = &buffer[..received];
            while !bytes.is_empty() {
                let Some(frame) = self.signs.take(&mut bytes)? else {
                    continue;
                };
                let Frame::Pong(number) = frame else {
                    return Err(LinkError::Unasked);
                };
                if !self.alive.awaits(number) {
                    return Err(LinkError::Unasked);
                }
                if let Some(rtt_us) = self.alive.pong(now_us, number) {
                    self.link.tell(LinkEvent::Rtt { rtt_us });
                }
            }
        }
        Ok(())
    }
}
