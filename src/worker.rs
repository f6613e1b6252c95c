//! One shard's loop: it feeds the state machine with what happened and does what the state machine wants done.
//!
//! A turn: what other shards sent, always and first - what other nodes sent and what sockets have, within a budget each - upkeep -
//! output to the sockets - one batch to each node and shard. Then the loop sleeps until something rings, or the next deadline; with work
//! left it only lets the executor look at its rings now and then. It decides nothing about jobs, and never waits for anyone inside of a
//! turn: it only lets the tasks of the bus run that have something. All state is owned by this one task: there is nothing to borrow across an
//! await.

mod effects;

use std::cell::{Cell, RefCell};
use std::collections::{HashMap, VecDeque};
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::Poll;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use glommio::timer::Timer;
use shard::bus::{BusMessage, Traffic};
use shard::clock::Now;
use shard::input::{Effect, Input, Told};
use shard::log::{Done, IoError};
use shard::message::{SessionId, Ticket};
use shard::shard::Shard;
use shard::slot::ShardNo;

use crate::bell::OwnBell;
use crate::bus::{self, Bus};
use crate::config::rewrite::ConfigFile;
use crate::executor::{Heartbeat, look_at_rings, run_woken_tasks};
use crate::log::{Ahead, Files};
use crate::mesh::{Envelope, Mesh};
use crate::net::{Arrival, Event, Net};
use crate::nodes::NodesFile;
use crate::wakeup::Wakeup;

/// Socket events of one turn at the most, so that the other shards do not wait longer.
const TURN_EVENTS: usize = 256;
/// Bytes of input in one turn, above which the turn takes no more.
const TURN_BYTES: usize = 1 << 20;
/// Bytes by which the buffers of all sessions may grow in one turn, above which it takes no more: who is to be closed for them is found between
/// turns.
const TURN_GROWTH_BYTES: u64 = 4 << 20;
/// Bytes taken from a session at a time.
const OUTPUT_BYTES: usize = 256 << 10;
/// Bytes that wait for a socket, above which its session is not asked for more.
const UNSENT_HIGH_BYTES: usize = 64 << 10;
/// Rounds of output in one turn: what was sent may let a session go on, which gives output again.
const OUTPUT_ROUNDS: usize = 4;
/// Rounds of the log in one turn.
const LOG_ROUNDS: usize = 4;
/// How soon to look again while a channel of the mesh is full.
const MESH_RETRY_US: u64 = 200;
/// How long a shard whose sockets are on a ring of its own goes on without a look of the executor at its rings, each of which costs
/// about as much as a request: while the executor has timers, signals and handshakes only, and while it has calls that block.
const LOOK_PAUSE_US: u64 = 1_000;
const LOOK_SOON_US: u64 = 50;
/// How long a shard without work sleeps where only sockets and other shards wake it, before it sleeps in the executor.
const NAP_US: u64 = 1_000;
/// How long a stopped shard may take to write what is on its way.
const STOP_FLUSH_US: u64 = 2_000_000;

/// Reads both clocks of the process.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    origin: Instant,
}

impl Clock {
    /// The monotonic clock starts at 1 ms, since 0 is no time that anything could have happened at.
    pub fn start() -> Self {
        Self {
            origin: Instant::now() - Duration::from_millis(1),
        }
    }

    /// What the clocks show.
    pub fn now(self) -> Now {
        let wall = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Now {
            mono_us: u64::try_from(self.origin.elapsed().as_micros()).unwrap_or(u64::MAX),
            wall_us: u64::try_from(wall.as_micros()).unwrap_or(u64::MAX),
        }
    }
}

/// Something from outside of the sockets and the mesh.
pub enum Post {
    /// An answer to a question of the shard.
    Told(Ticket, Told),
    /// The end of a task with the log's files.
    Disk {
        /// Its number.
        id: u64,
        /// How it ended.
        result: Result<Done, IoError>,
        /// What stands behind it in the log, when it was a write.
        ahead: Option<Ahead>,
    },
    /// `nodes.conf` was written, or not.
    NodesSaved(Result<(), String>),
    /// A signal asks the node to stop.
    Stop,
}

/// Where such things wait for the loop.
#[derive(Clone)]
pub struct Posts {
    queue: Rc<RefCell<VecDeque<Post>>>,
    awaited: Rc<Cell<usize>>,
    wakeup: Arc<Wakeup>,
}

impl Posts {
    /// An empty one.
    pub fn new(wakeup: Arc<Wakeup>) -> Self {
        Self {
            queue: Rc::default(),
            awaited: Rc::default(),
            wakeup,
        }
    }

    /// Adds one and wakes the loop.
    pub fn post(&self, post: Post) {
        self.queue.borrow_mut().push_back(post);
        self.wakeup.ring();
    }

    /// Runs this on a thread for blocking calls, and adds what it gives.
    fn post_result<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> T + Send + 'static,
        post: impl FnOnce(T) -> Post + 'static,
    ) {
        self.awaited.set(self.awaited.get() + 1);
        let posts = self.clone();
        glommio::spawn_local(async move {
            let result = glommio::executor().spawn_blocking(work).await;
            posts.awaited.set(posts.awaited.get() - 1);
            posts.post(post(result));
        })
        .detach();
    }

    /// Whether a thread for blocking calls is at work.
    fn are_awaited(&self) -> bool {
        self.awaited.get() > 0
    }
}

/// One shard with all that serves it.
pub struct Worker {
    shard: Shard,
    number: ShardNo,
    shards: u16,
    clock: Clock,
    net: Net,
    bus: Bus,
    mesh: Mesh,
    bell: OwnBell,
    posts: Posts,
    wakeup: Arc<Wakeup>,
    config_file: Option<ConfigFile>,
    files: Files,
    nodes_file: NodesFile,
    heartbeat: Heartbeat,
    /// Shard 0: accepted connections that the shard has not placed yet.
    waiting: HashMap<u64, Arrival>,
    next_connection: u64,
    /// Sessions with output.
    dirty: Vec<SessionId>,
    effects: Vec<Effect>,
    chunks: Vec<Bytes>,
    /// A write of the log was over as soon as it was asked for.
    wrote_at_once: bool,
    /// A batch of the bus.
    bus_batch: Vec<BusMessage>,
    /// When the executor looked at its rings last.
    looked_us: u64,
    /// When the shard stopped; writing goes on until then at the latest.
    ends_at_us: Option<u64>,
}

/// What a worker is made of.
pub struct Parts {
    /// The state machine.
    pub shard: Shard,
    /// Its number.
    pub number: ShardNo,
    /// How many there are.
    pub shards: u16,
    /// The clocks.
    pub clock: Clock,
    /// Its sockets.
    pub net: Net,
    /// Its links to other nodes.
    pub bus: Bus,
    /// Its end of the mesh.
    pub mesh: Mesh,
    /// What others ring when they have put something into the mesh.
    pub bell: OwnBell,
    /// Where others leave things for it.
    pub posts: Posts,
    /// Where it sleeps.
    pub wakeup: Arc<Wakeup>,
    /// What CONFIG REWRITE writes.
    pub config_file: Option<ConfigFile>,
    /// Its log's files.
    pub files: Files,
    /// Where shard 0 keeps what it knows of the cluster.
    pub nodes_file: NodesFile,
    /// Keeps its executor awake.
    pub heartbeat: Heartbeat,
}

impl Worker {
    /// A worker that has done nothing yet.
    pub fn new(parts: Parts) -> Self {
        Self {
            shard: parts.shard,
            number: parts.number,
            shards: parts.shards,
            clock: parts.clock,
            net: parts.net,
            bus: parts.bus,
            mesh: parts.mesh,
            bell: parts.bell,
            posts: parts.posts,
            wakeup: parts.wakeup,
            config_file: parts.config_file,
            files: parts.files,
            nodes_file: parts.nodes_file,
            heartbeat: parts.heartbeat,
            waiting: HashMap::new(),
            next_connection: 0,
            dirty: Vec::new(),
            effects: Vec::new(),
            chunks: Vec::new(),
            wrote_at_once: false,
            bus_batch: Vec::new(),
            looked_us: 0,
            ends_at_us: None,
        }
    }

    /// Turns until the shard has stopped and its output is written.
    pub async fn run(mut self) {
        loop {
            self.heartbeat.quicken();
            if !self.net.has_events() {
                self.turn_sockets();
            }
            self.run_links().await;
            self.take();
            self.send_bus();
            self.run_links().await;
            self.send();
            if self.has_ended() {
                return;
            }
            self.sleep().await;
        }
    }

    /// The first half of a turn: all that has come.
    fn take(&mut self) {
        self.wakeup.begin_turn();
        self.take_mesh();
        self.take_posts();
        self.take_bus();
        self.take_net();
        let now = self.clock.now();
        self.net.expire(now.mono_us);
        self.tick(now);
    }

    /// The second half: all that goes.
    fn send(&mut self) {
        for _ in 0..OUTPUT_ROUNDS {
            self.write_output();
            self.turn_sockets();
            if self.dirty.is_empty() {
                break;
            }
        }
        self.send_bus();
        self.send_batches();
    }

    /// Lets the tasks of links bring what they received, and put what they are to send on the ring. Without one they wait for the executor
    /// anyway.
    async fn run_links(&mut self) {
        let are_woken = self.net.has_woken() | self.bus.has_woken();
        if are_woken && self.net.has_ring() {
            run_woken_tasks().await;
        }
    }

    /// What was written at once lets sessions go on, which gives the log something to write again: that goes out with the same turn.
    fn tick(&mut self, now: Now) {
        for _ in 0..LOG_ROUNDS {
            self.wrote_at_once = false;
            self.step(now, Input::Tick);
            if !self.wrote_at_once {
                break;
            }
        }
    }

    fn take_mesh(&mut self) {
        while let Some((from, envelope)) = self.mesh.receive() {
            let now = self.clock.now();
            match envelope {
                Envelope::Batch(mut messages) => {
                    self.step(
                        now,
                        Input::Mesh {
                            from,
                            messages: &mut messages,
                        },
                    );
                    self.mesh.recycle(messages);
                }
                Envelope::Arrival { client, arrival } => {
                    self.connect(now, arrival, client);
                    self.perform_effects(now);
                }
                Envelope::Visitor(visitor) => self.bus.adopt(visitor),
            }
        }
    }

    fn take_posts(&mut self) {
        loop {
            let Some(post) = self.posts.queue.borrow_mut().pop_front() else {
                return;
            };
            let now = self.clock.now();
            match post {
                Post::Told(ticket, told) => self.step(now, Input::Told { ticket, told }),
                Post::Disk { id, result, ahead } => {
                    let ahead = ahead.filter(|ahead| result.is_ok() && self.files.asks_for(ahead));
                    self.step(now, Input::Disk { id, result });
                    if let Some(ahead) = ahead {
                        self.prepare(ahead);
                    }
                }
                Post::NodesSaved(result) => self.step(now, Input::NodesSaved { result }),
                Post::Stop => self.step(now, Input::Stop),
            }
        }
    }

    fn take_bus(&mut self) {
        let mut bytes_left = TURN_BYTES;
        let mut messages = std::mem::take(&mut self.bus_batch);
        for _ in 0..TURN_EVENTS {
            let Some(event) = self.bus.next(&mut messages) else {
                break;
            };
            let now = self.clock.now();
            match event {
                bus::Event::Link(link, event) => self.step(now, Input::Link { link, event }),
                bus::Event::Batch(from, bytes) => {
                    let messages = &mut messages;
                    self.step(now, Input::Bus { from, messages });
                    bytes_left = bytes_left.saturating_sub(bytes);
                }
                bus::Event::Visitor(visitor) => match visitor.shard(self.shards) {
                    shard if shard == self.number => self.bus.adopt(visitor),
                    shard => self.mesh.post(shard, Envelope::Visitor(visitor)),
                },
            }
            if bytes_left == 0 {
                break;
            }
        }
        self.bus_batch = messages;
    }

    /// Sends other nodes what there is for them.
    fn send_bus(&mut self) {
        while let Some(link) = self.shard.take_bus(&mut self.bus_batch) {
            self.bus.send(link, &mut self.bus_batch);
        }
        let traffic = self.bus.take_traffic();
        if traffic != Traffic::default() {
            self.shard.count_bus(&traffic);
        }
    }

    fn take_net(&mut self) {
        let mut bytes_left = TURN_BYTES;
        let most_held = self.shard.client_bytes() + TURN_GROWTH_BYTES;
        for _ in 0..TURN_EVENTS {
            let now = self.clock.now();
            let Some(event) = self.net.next() else { return };
            match event {
                Event::Bytes { session, bytes } => {
                    let taken = bytes.len();
                    self.shard.handle(now, Input::Bytes { session, bytes });
                    self.perform_effects(now);
                    bytes_left = bytes_left.saturating_sub(taken);
                    if bytes_left == 0 || self.shard.client_bytes() > most_held {
                        return;
                    }
                }
                Event::Sent { session, bytes } => {
                    self.step(now, Input::Sent { session, bytes });
                    self.dirty.push(session);
                }
                Event::Accepted(arrival) => self.accept(now, arrival),
                Event::HalfClosed { session } => self.step(now, Input::HalfClosed { session }),
                Event::Closed { session } => self.step(now, Input::Disconnected { session }),
            }
        }
    }

    /// Takes the output of sessions to the sockets.
    fn write_output(&mut self) {
        let mut dirty = std::mem::take(&mut self.dirty);
        for session in dirty.drain(..) {
            while self.net.unsent(session) <= UNSENT_HIGH_BYTES {
                self.shard.take_output(session, &mut self.chunks, OUTPUT_BYTES);
                if self.chunks.is_empty() {
                    break;
                }
                self.net.send(session, &mut self.chunks);
            }
        }
        self.dirty = dirty;
    }

    /// Sends and brings what sockets have, and tells the shard at once what the kernel took, and which connections turned out to be
    /// broken.
    fn turn_sockets(&mut self) {
        self.net.turn();
        let now = self.clock.now();
        while let Some(event) = self.net.next_about_output() {
            match event {
                Event::Sent { session, bytes } => self.step(now, Input::Sent { session, bytes }),
                Event::Closed { session } => self.step(now, Input::Disconnected { session }),
                _ => unreachable!("only events about output were asked for"),
            }
        }
    }

    /// Sends each shard what there is for it. A shard for which something is held back is not asked for more, and the loop
    /// comes back for both soon: so what was held back goes first, lest the rest be slept over.
    fn send_batches(&mut self) {
        self.mesh.flush();
        for to in (0..self.shards).filter(|&to| to != self.number) {
            if !self.mesh.is_free(to) {
                continue;
            }
            let mut batch = self.mesh.empty_batch();
            self.shard.take_mesh(to, &mut batch);
            if batch.is_empty() {
                self.mesh.recycle(batch);
            } else {
                self.mesh.post(to, Envelope::Batch(batch));
            }
        }
        self.mesh.flush();
    }

    /// Hands an input over and does what follows from it.
    fn step(&mut self, now: Now, input: Input<'_>) {
        self.shard.handle(now, input);
        self.perform_effects(now);
    }

    fn accept(&mut self, now: Now, arrival: Arrival) {
        let connection = self.next_connection;
        self.next_connection += 1;
        self.waiting.insert(connection, arrival);
        let connection = shard::input::ConnectionId(connection);
        self.step(now, Input::Accepted { connection });
    }

    fn has_ended(&self) -> bool {
        let Some(ends_at_us) = self.ends_at_us else {
            return false;
        };
        let is_written = !self.net.is_flushing() && !self.bus.is_flushing() && !self.mesh.has_backlog();
        is_written || self.clock.now().mono_us >= ends_at_us
    }

    /// Microseconds until the loop has to look again by itself.
    fn rest_us(&self, now_us: u64) -> Option<u64> {
        if self.net.has_events() || self.bus.has_events() || self.mesh.has_arrived() || !self.dirty.is_empty()
        {
            return Some(0);
        }
        let deadlines = [
            self.shard
                .next_deadline()
                .map(|deadline| deadline.0.saturating_mul(1_000)),
            self.net.deadline_us(),
            self.mesh.has_backlog().then_some(now_us + MESH_RETRY_US),
            self.ends_at_us,
        ];
        let next = deadlines.into_iter().flatten().min()?;
        Some(next.saturating_sub(now_us))
    }

    /// Sleeps until there is something to do; with work at hand, or found on the way to sleep, only lets the executor look at its rings.
    async fn sleep(&mut self) {
        self.run_links().await;
        if !self.settles_down() {
            if !self.net.has_ring() || self.is_look_due() {
                self.bell.hear();
                look_at_rings().await;
                self.looked_us = self.clock.now().mono_us;
            }
            return;
        }
        self.bell.hear();
        let rest_us = self.rest_us(self.clock.now().mono_us);
        let mut timer = rest_us.map(|rest_us| Timer::new(Duration::from_micros(rest_us)));
        poll_fn(|context| {
            if self.wakeup.poll(context).is_ready() {
                return Poll::Ready(());
            }
            match &mut timer {
                Some(timer) => Pin::new(timer).poll(context).map(|_| ()),
                None => Poll::Pending,
            }
        })
        .await;
        self.net.wake();
        self.looked_us = self.clock.now().mono_us;
    }

    /// Whether there is nothing to do, also after a nap; then the sockets wake the loop.
    fn settles_down(&mut self) -> bool {
        let rest_us = self.rest_us(self.clock.now().mono_us).unwrap_or(u64::MAX);
        if rest_us == 0 || self.wakeup.is_rung() || (self.net.has_ring() && self.is_look_due()) {
            return false;
        }
        // Only the executor sees the rest.
        let may_nap = self.net.has_ring() && !self.posts.are_awaited();
        if may_nap {
            let longest = Duration::from_micros(rest_us.min(NAP_US));
            let woken = self.bell.nap(|| self.net.nap(longest));
            if woken != Some(false) || rest_us <= NAP_US {
                return false;
            }
        }
        self.net.may_sleep()
    }

    /// Whether the executor is to look at its rings although there is work: for other shards, or for what only it sees.
    fn is_look_due(&self) -> bool {
        let pause_us = if self.posts.are_awaited() {
            LOOK_SOON_US
        } else {
            LOOK_PAUSE_US
        };
        self.bell.has_rung() || self.clock.now().mono_us >= self.looked_us + pause_us
    }
}
