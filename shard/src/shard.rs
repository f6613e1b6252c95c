//! One core's share of a node: the single entry of the server into everything that decides.
//!
//! Order of calls: any number of `connect` and `handle`, each followed by `take_effects` (performed in their order); at the
//! end of a turn a `handle(Tick)`, then `take_mesh` for every other shard. `take_output` serves `Effect::Send`. After each
//! input the same upkeep runs: ends of waiting requests, messages to itself, closing sessions.

mod buffers;
mod bus;
mod change;
mod membership;
mod report;
mod store;

use std::collections::VecDeque;

use bytes::Bytes;

use crate::clock::{Mono, Now};
use crate::cluster::Membership;
use crate::cluster::conf::Nodes;
use crate::core::{Core, Feed, Mesh, SessionTimer};
use crate::home::{Home, HomeOptions};
use crate::id::NodeId;
use crate::input::{ConnectionId, Effect, Input, Peer, Told};
use crate::limits;
use crate::log::LogBoot;
use crate::memory::Memory;
use crate::message::{Answer, Message, SessionId, Ticket};
use crate::node::{Borrower, BuffersHere, Change, Coordinator, Keeper, NodeMessage};
use crate::session::{ClientInfo, Engine, Session};
use crate::settings::Settings;
use crate::slot::ShardNo;
use crate::stats::Statistics;
use crate::structures::slab::Slab;
use crate::structures::timers::Timers;
use crate::wire::Blob;
use store::Store;

/// What a shard is made of.
#[derive(Clone, Debug)]
pub struct ShardOptions {
    /// Its number.
    pub shard: ShardNo,
    /// How many the node has.
    pub shards: u16,
    /// The node.
    pub node: NodeId,
    /// Chance for job IDs; another one for each shard.
    pub seed: [u8; 32],
    /// Chance for hash maps.
    pub hash_seed: u64,
    /// What does not change.
    pub facts: NodeFacts,
    /// What was found in the data folder.
    pub log: LogBoot,
}

/// What the node is and does not change while it runs; INFO, HELLO and CLUSTER show it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeFacts {
    /// Process ID.
    pub process_id: u32,
    /// 40 hex digits, new at each start.
    pub run_id: String,
    /// Path of the program.
    pub executable: String,
    /// Path of the configuration file, or empty.
    pub config_file: String,
    /// Operating system, as `uname` says.
    pub os: String,
    /// Version of the product.
    pub version: String,
    /// What the machine calls itself (`host-id`), or empty.
    pub machine: String,
    /// What `nodes.conf` holds; none: whoever makes the shards says which nodes there are.
    pub nodes: Option<Nodes>,
}

/// One core's share of a node.
pub struct Shard {
    core: Core,
    sessions: Slab<Session>,
    next_generation: u32,
    borrower: Borrower,
    buffers: BuffersHere,
    /// Sessions that ended since shard 0 was told.
    ended: u32,
    /// Whether the other shards were told that no session is left.
    closed: bool,
    /// How many shards have said so.
    closed_shards: u16,
    store: Store,
    /// Shard 0 only.
    membership: Option<Membership>,
    /// Scratch, kept for its capacity.
    unstarved: Vec<SessionId>,
}

impl Shard {
    /// A shard without sessions and jobs.
    pub fn new(options: ShardOptions, settings: Settings, now: Now) -> Self {
        let ShardOptions {
            shard,
            shards,
            node,
            seed,
            hash_seed,
            mut facts,
            log,
        } = options;
        assert!(shard < shards && shards <= limits::MAX_SHARDS);
        let maxmemory = settings.maxmemory;
        let mut acts = Vec::new();
        let mut keeper = (shard == 0).then(|| Keeper::new(shards, &log, now.wall_ms(), &mut acts));
        let nodes = facts.nodes.take().filter(|_| shard == 0);
        let epoch_before = nodes
            .as_ref()
            .and_then(|nodes| nodes.me.as_ref())
            .map(|me| me.epoch);
        if let (Some(keeper), Some(epoch)) = (&mut keeper, epoch_before) {
            keeper.not_before(epoch);
        }
        let memory = Memory::new(0);
        let mut home = Home::new(
            HomeOptions {
                shard,
                shards,
                node,
                seed,
                hash_seed,
            },
            memory,
            now,
        );
        home.set_evicts(settings.evicts());
        home.set_cluster_terms(
            settings.min_replicate,
            settings.rejoin_wait_ms,
            settings.cluster_node_timeout_ms,
        );
        let membership = nodes.map(|nodes| {
            let cluster = membership::facts(&settings, &facts);
            Membership::new(node, nodes, cluster, seed, now)
        });
        let core = Core {
            shard,
            shards,
            node_id: node,
            node_text: Blob::copy_from(&node.text()),
            facts,
            settings,
            stats: Statistics::new(shard, shards),
            home,
            mesh: Mesh::new(shards),
            timers: Timers::new(now.mono().0),
            effects: Vec::new(),
            coordinator: keeper.map(|keeper| Coordinator::new(shards, maxmemory, keeper)),
            to_self: VecDeque::new(),
            ends: VecDeque::new(),
            home_ends: Vec::new(),
            gathers: VecDeque::new(),
            later: VecDeque::new(),
            closing: Vec::new(),
            returns: VecDeque::new(),
            loading: None,
            pause: None,
            feed: Feed::default(),
            stopping: None,
            input_started_us: None,
            pause_timer: None,
            client_bytes: 0,
            marked: Vec::new(),
        };
        let mut this = Self {
            core,
            sessions: Slab::new(),
            next_generation: 0,
            borrower: Borrower::new(shards, maxmemory),
            buffers: BuffersHere::new(shards, maxmemory),
            ended: 0,
            closed: false,
            closed_shards: 0,
            store: Store::new(log, seed, now),
            membership,
            unstarved: Vec::new(),
        };
        this.balance_memory();
        this.start_store(now);
        this.start_membership(now);
        acts.into_iter().for_each(|act| this.act(act));
        this.upkeep(now);
        this
    }

    /// Makes the session of a connection that `Effect::Assign` gave to this shard. `local` is the address it came in on.
    pub fn connect(&mut self, now: Now, client: u64, peer: Peer, local: Peer) -> SessionId {
        let generation = self.next_generation;
        self.next_generation = self.next_generation.wrapping_add(1);
        let authenticated = self.core.settings.requirepass.is_none();
        let client = ClientInfo::new(client, peer, local, now.mono(), authenticated);
        let placeholder = SessionId { index: 0, generation };
        let index = self
            .sessions
            .insert(Session::new(placeholder, self.core.shard, client));
        let id = SessionId { index, generation };
        self.sessions[index].id = id;
        self.core.stats.counters.total_connections_received += 1;
        self.arm_idle_check(now, index);
        if self.core.stopping.is_some() {
            self.core.close_later(id);
            self.upkeep(now);
        }
        id
    }

    /// Handles one input. Effects are appended to what `take_effects` gives.
    pub fn handle(&mut self, now: Now, input: Input<'_>) {
        self.core.settle_durations(now);
        match input {
            Input::Accepted { connection } => self.accepted(connection),
            Input::Bytes { session, bytes } => self.received(now, session, bytes),
            Input::Sent { session, bytes } => {
                self.core.stats.counters.total_net_output_bytes += bytes as u64;
                self.with(now, session, |engine| engine.sent(bytes));
            }
            Input::HalfClosed { session } => {
                self.with(now, session, |engine| engine.half_closed());
            }
            Input::Disconnected { session } => self.end_session(now, session, false),
            Input::Mesh { from, messages } => {
                for message in messages.drain(..) {
                    self.mesh_message(now, from, message);
                }
            }
            Input::Link { link, event } => self.link_event(now, link, event),
            Input::Bus { from, messages } => self.bus_batch(now, from, messages),
            Input::NodesSaved { result } => self.nodes_saved(now, result),
            Input::Tick => self.tick(now),
            Input::Told { ticket, told } => self.told(now, ticket, told),
            Input::Disk { id, result } => self.disk_done(now, id, result),
            Input::Stop => self.core.send_node(0, NodeMessage::Stop),
        }
        self.upkeep(now);
    }

    /// Moves the effects so far to `effects`.
    pub fn take_effects(&mut self, effects: &mut Vec<Effect>) {
        if self.core.marked.is_empty() && self.core.effects.is_empty() {
            return;
        }
        for session in self.core.marked.drain(..) {
            if let Some(place) = self
                .sessions
                .get_mut(session.index)
                .filter(|place| place.id == session)
            {
                place.output_marked = false;
                self.core.effects.push(Effect::Send { session });
            }
        }
        effects.append(&mut self.core.effects);
    }

    /// Moves what waits for shard `to` to `batch`; nothing when there is none. One batch a turn: that is where throughput comes from.
    pub fn take_mesh(&mut self, to: ShardNo, batch: &mut Vec<Message>) {
        self.core.mesh.take_outbox(to, batch);
    }

    /// What the buffers of all sessions hold, requests and replies, bytes.
    pub fn client_bytes(&self) -> u64 {
        self.core.client_bytes
    }

    /// Moves a session's output, whole chunks, up to about `max_bytes`; nothing when the session is gone or has none.
    pub fn take_output(&mut self, session: SessionId, chunks: &mut Vec<Bytes>, max_bytes: usize) {
        if let Some(place) = self
            .sessions
            .get_mut(session.index)
            .filter(|place| place.id == session)
        {
            place.output.take_chunks(chunks, max_bytes);
        }
    }

    /// When `Input::Tick` is due; `None` when only an input can bring work. Not later than now when work is left.
    pub fn next_deadline(&self) -> Option<Mono> {
        let is_busy = !self.core.later.is_empty()
            || !self.core.feed.lines.is_empty()
            || !self.core.returns.is_empty()
            || !self.core.gathers.is_empty()
            || self.core.mesh.can_unstarve()
            || self.ended > 0;
        if is_busy {
            return Some(Mono(0));
        }
        let sessions = self.core.timers.next_wakeup().map(Mono);
        let home = if self.core.loading.is_none() && !self.is_ending() {
            self.core.home.next_deadline()
        } else {
            self.core.home.log_deadline()
        };
        let membership = self.membership.as_ref().and_then(Membership::next_deadline);
        sessions.into_iter().chain(home).chain(membership).min()
    }

    /// The present settings.
    pub fn settings(&self) -> &Settings {
        &self.core.settings
    }

    /// Checks the whole state against its invariants; for tests, since it looks at every job.
    pub fn check(&self) {
        self.core.home.check();
    }

    fn with(&mut self, now: Now, session: SessionId, act: impl FnOnce(&mut Engine<'_>)) -> bool {
        match self
            .sessions
            .get_mut(session.index)
            .filter(|place| place.id == session)
        {
            Some(place) => {
                act(&mut Engine {
                    now,
                    core: &mut self.core,
                    session: place,
                });
                true
            }
            None => false,
        }
    }

    fn accepted(&mut self, connection: ConnectionId) {
        let maxclients = self.core.settings.maxclients;
        let coordinator = self
            .core
            .coordinator
            .as_mut()
            .expect("shard 0 takes in connections");
        let effect = match coordinator.accept(maxclients) {
            Some((client, shard)) => Effect::Assign {
                connection,
                client,
                shard,
            },
            None if coordinator.is_stopping() => Effect::Refuse {
                connection,
                reply: b"",
            },
            None => {
                self.core.stats.counters.rejected_connections += 1;
                Effect::Refuse {
                    connection,
                    reply: b"-ERR max number of clients reached\r\n",
                }
            }
        };
        self.core.effects.push(effect);
    }

    fn received(&mut self, now: Now, session: SessionId, bytes: &[u8]) {
        self.core.stats.counters.total_net_input_bytes += bytes.len() as u64;
        self.core.begin_input(now);
        self.with(now, session, |engine| {
            engine.session.client.active_at = now.mono();
            engine.run(bytes);
        });
    }

    fn mesh_message(&mut self, now: Now, from: ShardNo, message: Message) {
        match message {
            Message::Request {
                ticket,
                request: crate::commands::Request::Gather(ask),
            } => {
                self.core.gather_later(from, ticket, ask);
            }
            Message::Request { ticket, mut request } => {
                let answer = self.core.home.request_in_place(now, ticket, &mut request);
                self.core.mesh.send(from, Message::Answer { ticket, answer });
            }
            Message::Answer { ticket, answer } => {
                self.core.mesh.return_credit(from);
                self.answered(now, from, ticket, answer, true);
            }
            Message::Late { ticket, answer } => self.answered(now, from, ticket, answer, false),
            Message::Claim { ticket, ids } => {
                self.core.home.claim(now, ticket, &ids);
            }
            Message::Cancel { ticket } => self.core.home.cancel(now, ticket),
            Message::Undelivered { jobs } => self.core.home.undelivered(now, &jobs),
            Message::Bus { from, epoch, message } => self.bus_message(now, from, epoch, message),
            Message::Node(message) => self.node_message(now, from, message),
        }
    }

    fn answered(&mut self, now: Now, from: ShardNo, ticket: Ticket, answer: Answer, first: bool) {
        assert_eq!(
            ticket.shard, self.core.shard,
            "an answer goes to the session's shard"
        );
        match self
            .sessions
            .get_mut(ticket.session.index)
            .filter(|place| place.id == ticket.session)
        {
            Some(session) => {
                Engine {
                    now,
                    core: &mut self.core,
                    session,
                }
                .answered(from, ticket.request, answer, first);
            }
            None => self.core.return_stale(now, answer),
        }
    }

    fn told(&mut self, now: Now, ticket: Ticket, told: Told) {
        self.with(now, ticket.session, |engine| engine.told(ticket.request, told));
    }

    /// Timers and what waits for its turn, each in bounded steps.
    fn tick(&mut self, now: Now) {
        self.core.timers.advance(now.mono().0);
        self.core.timers.work(limits::UPKEEP_STEP);
        for _ in 0..limits::UPKEEP_STEP {
            let Some((_, timer)) = self.core.timers.pop_due() else {
                break;
            };
            self.session_timer(now, timer);
        }
        // A home that is being restored, or whose log has ended, does nothing by itself.
        if self.core.loading.is_none() && !self.is_ending() {
            self.core.home.tick(now);
        }
        self.core.mesh.take_unstarved(&mut self.unstarved);
        for session in std::mem::take(&mut self.unstarved) {
            self.with(now, session, |engine| engine.core.run_later(engine.session));
        }
        for _ in 0..self.core.later.len() {
            let Some(session) = self.core.later.pop_front() else {
                break;
            };
            self.with(now, session, |engine| {
                engine.session.run_marked = false;
                engine.resume();
            });
        }
        self.core.return_some(now);
        self.close_when_empty();
        for _ in 0..limits::GATHERS_STEP {
            let Some((from, ticket, ask)) = self.core.gathers.pop_front() else {
                break;
            };
            let part = self.gather(now, &ask);
            self.core.send_part(from, ticket, part);
        }
        self.flush_feed();
        if self.ended > 0 {
            let sessions = std::mem::take(&mut self.ended);
            self.core.send_node(0, NodeMessage::Ended { sessions });
        }
        // Room may have come back by itself, while ADDJOBs wait for more to be lent.
        let waiting_bytes = self.core.home.waiting_bytes();
        if waiting_bytes > 0 && self.core.home.memory.admit(waiting_bytes) {
            self.core.home.memory_lent(now, false);
        }
        self.balance_memory();
        self.tell_buffers();
        self.log_turn(now);
        self.membership_tick(now);
    }

    fn balance_memory(&mut self) {
        let waiting_bytes = self.core.home.waiting_bytes();
        if let Some(message) = self.borrower.balance(&mut self.core.home.memory, waiting_bytes) {
            self.core.send_node(0, message);
        }
    }

    fn session_timer(&mut self, now: Now, timer: SessionTimer) {
        match timer {
            SessionTimer::Command(session) => {
                let alive = self.with(now, session, |engine| engine.timer_fired());
                assert!(alive, "a session that ends cancels its timers");
            }
            SessionTimer::Idle(session) => self.idle_check(now, session),
            SessionTimer::Output(session) => {
                self.with(now, session, |engine| engine.output_stayed());
            }
            SessionTimer::Pause => {
                self.core.pause_timer = None;
                self.end_pause(now);
            }
            SessionTimer::LogStop => self.stop_without_mark(),
            SessionTimer::Stop => {
                self.sessions_where(|_| true)
                    .into_iter()
                    .for_each(|session| self.core.close_later(session));
            }
        }
    }

    /// `timeout`: an idle client is closed, a blocked one is not idle.
    fn idle_check(&mut self, now: Now, session: SessionId) {
        let place = &mut self.sessions[session.index];
        assert_eq!(place.id, session, "a session that ends cancels its timers");
        place.idle_timer = None;
        let timeout_ms = self.core.settings.timeout_s.saturating_mul(1000);
        if timeout_ms == 0 {
            return;
        }
        // Not only while it blocks: a job may be on its way to it in this moment.
        if !place.is_idle() {
            place.client.active_at = now.mono();
        }
        if now.mono().since_ms(place.client.active_at) >= timeout_ms {
            self.core.stats.counters.clients_timed_out += 1;
            self.core.close_later(session);
        } else {
            self.arm_idle_check(now, session.index);
        }
    }

    fn arm_idle_check(&mut self, now: Now, index: u32) {
        let timeout_ms = self.core.settings.timeout_s.saturating_mul(1000);
        let session = &mut self.sessions[index];
        if timeout_ms == 0 || session.idle_timer.is_some() {
            return;
        }
        let deadline = session.client.active_at.after_ms(timeout_ms).max(now.mono());
        session.idle_timer = Some(
            self.core
                .timers
                .insert(deadline.0, SessionTimer::Idle(session.id)),
        );
    }

    /// After each input: ends of waiting requests, messages to itself, closing sessions, until none is left.
    fn upkeep(&mut self, now: Now) {
        loop {
            self.core.take_home_ends();
            if !self.core.ends.is_empty() {
                self.pass_on_ends(now);
            } else if let Some(message) = self.core.to_self.pop_front() {
                self.node_message(now, self.core.shard, message);
            } else if let Some(session) = self.core.closing.pop() {
                self.end_session(now, session, true);
            } else {
                return;
            }
        }
    }

    /// Late answers of this shard to its own sessions. Those to one session in a row are written together.
    fn pass_on_ends(&mut self, now: Now) {
        while let Some((ticket, answer)) = self.core.ends.pop_front() {
            let here = self.core.shard;
            assert_eq!(ticket.shard, here, "an answer goes to the session's shard");
            let place = self.sessions.get_mut(ticket.session.index);
            let Some(session) = place.filter(|place| place.id == ticket.session) else {
                self.core.return_stale(now, answer);
                continue;
            };
            let core = &mut self.core;
            let mut engine = Engine { now, core, session };
            let mut next = Some((ticket, answer));
            while let Some((ticket, answer)) = next {
                let first = matches!(answer, Answer::Part(_));
                engine.take_answer(here, ticket.request, answer, first);
                let ends = &mut engine.core.ends;
                let more = ends
                    .front()
                    .is_some_and(|(next, _)| next.session == ticket.session);
                next = more.then(|| ends.pop_front()).flatten();
            }
            engine.write_answered();
            engine.go_on();
        }
    }

    /// Ends a session: `close` when it is this side that closes the connection.
    fn end_session(&mut self, now: Now, session: SessionId, close: bool) {
        if !self.with(now, session, |engine| engine.disconnect()) {
            return;
        }
        if close {
            self.core.effects.push(Effect::Close { session });
        }
        let ended = self.sessions.remove(session.index);
        if ended.client.monitor {
            self.core.monitor_ended(session);
        }
        self.ended += 1;
        self.close_when_empty();
    }

    fn node_message(&mut self, now: Now, from: ShardNo, message: NodeMessage) {
        match message {
            NodeMessage::Apply { number, change } => {
                self.apply(now, number, change);
            }
            NodeMessage::Changed { ticket, result } => {
                self.with(now, ticket.session, |engine| {
                    engine.changed(ticket.request, result)
                });
            }
            NodeMessage::LendMemory { bytes } => {
                let last = self.borrower.lent(&mut self.core.home.memory, bytes);
                self.core.home.memory_lent(now, last);
            }
            NodeMessage::RecallMemory => {
                let message = self.borrower.recalled(&mut self.core.home.memory);
                self.core.send_node(0, message);
            }
            NodeMessage::MemoryLevel(level) => {
                self.with_membership(now, |membership| membership.set_memory_level(level));
                self.core.home.set_memory_level(level);
                self.borrower.level_changed();
            }
            NodeMessage::MeasureClients => self.measure_clients(),
            NodeMessage::CloseLargestClients { bytes, excess } => {
                self.close_largest_clients(now, bytes, excess);
            }
            NodeMessage::Feed { lines, dropped } => self.show_feed(now, &lines, dropped),
            NodeMessage::Topology(topology) => self.topology(now, *topology),
            NodeMessage::Closed => self.shard_closed(),
            NodeMessage::Exit { save } => self.end_store(now, save),
            NodeMessage::BeginLog(begin) => self.begin_log(now, begin),
            NodeMessage::LogCounts => self.log_counts(),
            NodeMessage::EndLog => self.end_log(),
            NodeMessage::LogRead(read) => self.keep(|keeper, acts| keeper.read(read, acts)),
            NodeMessage::LogReady => self.keep(|keeper, acts| keeper.ready(acts)),
            NodeMessage::Ask {
                ticket: Some(ticket),
                change: Change::Cluster(change),
            } => self.change_cluster(now, ticket, change),
            NodeMessage::Ask {
                ticket: Some(ticket),
                change: Change::FlushAll,
            } => self.flush_all(now, ticket),
            NodeMessage::Ask { .. }
            | NodeMessage::Applied { .. }
            | NodeMessage::Ended { .. }
            | NodeMessage::WantMemory { .. }
            | NodeMessage::ReturnMemory { .. }
            | NodeMessage::ClientBuffers { .. }
            | NodeMessage::ClientsMeasured { .. }
            | NodeMessage::LargestClientsClosed { .. }
            | NodeMessage::Stop => self.coordinate(from, message),
        }
    }

    /// Shard 0 only.
    pub(in crate::shard) fn coordinate(&mut self, from: ShardNo, message: NodeMessage) {
        let mut sent = Vec::new();
        let mut send = |to: ShardNo, message: NodeMessage| sent.push((to, message));
        let coordinator = self.core.coordinator.as_mut().expect("it is for shard 0");
        match message {
            NodeMessage::Ask { ticket, change } => coordinator.ask(ticket, change, &mut send),
            NodeMessage::Stop => coordinator.ask(None, Change::Shutdown { save: true }, &mut send),
            NodeMessage::Applied { number, result } => coordinator.applied(number, result, &mut send),
            NodeMessage::Ended { sessions } => coordinator.ended(from, sessions),
            NodeMessage::WantMemory { bytes, urgent } => {
                coordinator.want_memory(from, bytes, urgent, &mut send)
            }
            NodeMessage::ReturnMemory { bytes, recalled } => {
                coordinator.memory_returned(from, bytes, recalled, &mut send);
            }
            NodeMessage::ClientBuffers { bytes } => coordinator.client_buffers(from, bytes, &mut send),
            NodeMessage::ClientsMeasured { bytes, largest } => {
                coordinator.clients_measured(from, bytes, largest, &mut send);
            }
            NodeMessage::LargestClientsClosed { bytes } => {
                coordinator.largest_closed(from, bytes, &mut send);
            }
            other => unreachable!("{other:?} is not for the coordinator"),
        }
        for (to, message) in sent {
            self.core.send_node(to, message);
        }
    }
}
