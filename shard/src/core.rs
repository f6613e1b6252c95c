//! All of a shard but its sessions: what a command may look at and change.
//!
//! `Core` owns the home of the shard's slots, the way to other shards, the session timers, settings and statistics, and on shard 0
//! the coordinator of the node. It collects effects; `Shard` hands them to the server.

use std::collections::VecDeque;

use bytes::Bytes;

use crate::clock::{Mono, Now};
use crate::commands::view::Part;
use crate::commands::{Flags, Gather, Request, monitor};
use crate::home::{Held, Home};
use crate::id::NodeId;
use crate::input::Effect;
use crate::limits;
use crate::message::{Answer, Handed, Message, SessionId, Ticket};
use crate::node::{Change, Coordinator, NodeMessage};
use crate::session::{ClientInfo, Session};
use crate::settings::Settings;
use crate::shard::NodeFacts;
use crate::slot::ShardNo;
use crate::stats::{Gauges, Loading, ShardStats, Statistics};
use crate::structures::timers::{TimerKey, Timers};
use crate::wire::{Args, Blob};

/// All of a shard but its sessions.
pub struct Core {
    /// Its number.
    pub shard: ShardNo,
    /// How many the node has.
    pub shards: u16,
    /// The node.
    pub node_id: NodeId,
    /// The node's ID as written.
    pub node_text: Blob,
    /// What does not change while the node runs.
    pub facts: NodeFacts,
    /// The settings, the same on every shard.
    pub settings: Settings,
    /// Counters, histograms, slow log, latency events.
    pub stats: Statistics,
    /// Jobs and queues of the shard's slots.
    pub home: Home,
    /// The way to the other shards.
    pub(crate) mesh: Mesh,
    /// Timers of sessions.
    pub(crate) timers: Timers<SessionTimer>,
    /// What the server is to do.
    pub(crate) effects: Vec<Effect>,
    /// Shard 0 only.
    pub(crate) coordinator: Option<Coordinator>,
    /// Node messages of this shard to itself.
    pub(crate) to_self: VecDeque<NodeMessage>,
    /// Late answers of this shard to its own sessions.
    pub(crate) ends: VecDeque<(Ticket, Answer)>,
    /// Scratch, kept for its capacity.
    pub(crate) home_ends: Vec<Held>,
    /// Parts about this shard that its own sessions asked for.
    pub(crate) gathers: VecDeque<(ShardNo, Ticket, Gather)>,
    /// Sessions to be run in the next tick.
    pub(crate) later: VecDeque<SessionId>,
    /// Sessions to be closed at the end of this step.
    pub(crate) closing: Vec<SessionId>,
    /// Jobs that were handed out in vain and are still to be told to their home shards.
    pub(crate) returns: VecDeque<Handed>,
    /// The log is being loaded: how far.
    pub loading: Option<Loading>,
    pub(crate) pause: Option<ClientPause>,
    pub(crate) feed: Feed,
    /// The node stops: number of the change that says so.
    pub(crate) stopping: Option<u64>,
    /// When the input that is handled began, until its commands' durations are settled.
    pub(crate) input_started_us: Option<u64>,
    pub(crate) pause_timer: Option<TimerKey>,
    /// Bytes of the sessions' buffers, part of what the home's memory counts.
    pub(crate) client_bytes: u64,
    /// Sessions with their output marked, in the order of marking.
    pub(crate) marked: Vec<SessionId>,
}

/// Whose timer it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SessionTimer {
    /// The end of a blocking command.
    Command(SessionId),
    /// The idle check of a connection.
    Idle(SessionId),
    /// The client has left too much output unread for too long.
    Output(SessionId),
    /// The end of a CLIENT PAUSE.
    Pause,
    /// The node stops and has waited long enough for clients to read.
    Stop,
    /// The shard ends and has waited long enough for its log.
    LogStop,
}

/// CLIENT PAUSE.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ClientPause {
    pub until: Mono,
    pub writes_only: bool,
}

/// MONITOR: which shards have monitors, and the lines on their way.
#[derive(Debug, Default)]
pub(crate) struct Feed {
    /// Shards that want the feed.
    pub shards: Vec<ShardNo>,
    /// This shard's monitors.
    pub monitors: Vec<SessionId>,
    /// Lines of this turn.
    pub lines: Vec<Bytes>,
    pub bytes: usize,
    pub dropped: u64,
}

/// The way to the other shards: outboxes of this turn, and credits (`sessions.md`).
#[derive(Debug)]
pub(crate) struct Mesh {
    lanes: Vec<Lane>,
    starved: usize,
}

#[derive(Debug)]
struct Lane {
    outbox: Vec<Message>,
    credits: u32,
    starved: VecDeque<SessionId>,
    /// Bytes of MONITOR's lines in the outbox.
    feed_bytes: usize,
}

impl Mesh {
    pub fn new(shards: u16) -> Self {
        let lane = || Lane {
            outbox: Vec::new(),
            credits: limits::MESH_CREDITS,
            starved: VecDeque::new(),
            feed_bytes: 0,
        };
        Self {
            lanes: (0..shards).map(|_| lane()).collect(),
            starved: 0,
        }
    }

    pub fn has_credit(&self, to: ShardNo) -> bool {
        self.lanes[usize::from(to)].credits > 0
    }

    /// Sends a request, which takes a credit.
    pub fn request(&mut self, to: ShardNo, ticket: Ticket, request: Request) {
        let lane = &mut self.lanes[usize::from(to)];
        lane.credits = lane.credits.checked_sub(1).expect("a request needs a credit");
        lane.outbox.push(Message::Request { ticket, request });
    }

    /// Sends what needs no credit.
    pub fn send(&mut self, to: ShardNo, message: Message) {
        self.lanes[usize::from(to)].outbox.push(message);
    }

    /// An answer came back.
    pub fn return_credit(&mut self, from: ShardNo) {
        let lane = &mut self.lanes[usize::from(from)];
        lane.credits += 1;
        assert!(
            lane.credits <= limits::MESH_CREDITS,
            "an answer without a request"
        );
    }

    pub fn wait_for_credit(&mut self, to: ShardNo, session: SessionId) {
        self.lanes[usize::from(to)].starved.push_back(session);
        self.starved += 1;
    }

    /// Sessions that may go on since credits came back.
    pub fn take_unstarved(&mut self, sessions: &mut Vec<SessionId>) {
        if self.starved == 0 {
            return;
        }
        for lane in &mut self.lanes {
            let count = lane.starved.len().min(lane.credits as usize);
            sessions.extend(lane.starved.drain(..count));
            self.starved -= count;
        }
    }

    /// Whether some starved session could go on.
    pub fn can_unstarve(&self) -> bool {
        self.starved > 0
            && self
                .lanes
                .iter()
                .any(|lane| lane.credits > 0 && !lane.starved.is_empty())
    }

    /// Counts lines of MONITOR that are to be sent; `false` when a shard that does not keep up has enough of them.
    pub fn admit_feed(&mut self, to: ShardNo, bytes: usize) -> bool {
        let lane = &mut self.lanes[usize::from(to)];
        let admitted = lane.feed_bytes < limits::FEED_BYTES;
        if admitted {
            lane.feed_bytes += bytes;
        }
        admitted
    }

    pub fn take_outbox(&mut self, to: ShardNo, batch: &mut Vec<Message>) {
        self.lanes[usize::from(to)].feed_bytes = 0;
        batch.append(&mut self.lanes[usize::from(to)].outbox);
    }
}

impl Core {
    /// Sends a message of the coordination, also to this shard itself.
    pub(crate) fn send_node(&mut self, to: ShardNo, message: NodeMessage) {
        if to == self.shard {
            self.to_self.push_back(message);
        } else {
            self.mesh.send(to, Message::Node(message));
        }
    }

    /// Brings what the home shard says late on its way.
    pub(crate) fn take_home_ends(&mut self) {
        if !self.home.has_ends() {
            return;
        }
        let mut ends = std::mem::take(&mut self.home_ends);
        self.home.take_ends(&mut ends);
        for end in ends.drain(..) {
            match end {
                Held::Answer(ticket, answer) if ticket.shard == self.shard => {
                    self.ends.push_back((ticket, answer));
                }
                Held::Answer(ticket, answer) => {
                    self.mesh.send(ticket.shard, Message::Late { ticket, answer });
                }
                Held::Bus(to, message) => self.home.peers.send(to, message),
                Held::Transfer(id, hop) => self.home.transfer_logged(id, hop),
                Held::Change(number, result) => {
                    let result = result.map(|()| 0);
                    self.send_node(0, NodeMessage::Applied { number, result });
                }
            }
        }
        self.home_ends = ends;
    }

    /// Sends a claim or a cancel, or does it when it is for this shard.
    pub(crate) fn send_or_do(&mut self, now: Now, to: ShardNo, message: Message) {
        if to != self.shard {
            return self.mesh.send(to, message);
        }
        match message {
            Message::Claim { ticket, ids } => {
                self.home.claim(now, ticket, &ids);
            }
            Message::Cancel { ticket } => self.home.cancel(now, ticket),
            other => unreachable!("{other:?} is not sent this way"),
        }
    }

    /// Jobs were handed out and did not reach the client: their home shards are told, in bounded steps.
    pub(crate) fn give_back(&mut self, now: Now, jobs: Vec<Handed>) {
        self.returns.extend(jobs);
        self.return_some(now);
    }

    /// A step of `give_back`.
    pub(crate) fn return_some(&mut self, now: Now) {
        if self.returns.is_empty() {
            return;
        }
        let mut of_shard: Vec<Vec<Handed>> = vec![Vec::new(); usize::from(self.shards)];
        let count = self.returns.len().min(limits::UPKEEP_STEP);
        for job in self.returns.drain(..count) {
            of_shard[usize::from(job.id.slot().home(self.shards))].push(job);
        }
        for (shard, jobs) in of_shard
            .into_iter()
            .enumerate()
            .filter(|(_, jobs)| !jobs.is_empty())
        {
            if shard == usize::from(self.shard) {
                self.home.undelivered(now, &jobs);
            } else {
                self.mesh.send(shard as ShardNo, Message::Undelivered { jobs });
            }
        }
    }

    /// An answer came for a request that nobody waits for: jobs that it hands out go back.
    pub(crate) fn return_stale(&mut self, now: Now, answer: Answer) {
        if let Answer::Jobs(jobs) = answer {
            self.give_back(now, jobs.iter().map(|job| job.handed).collect());
        }
    }

    /// The session is run again in the next tick.
    pub(crate) fn run_later(&mut self, session: &mut Session) {
        if !std::mem::replace(&mut session.run_marked, true) {
            self.later.push_back(session.id);
        }
    }

    /// The session has output for the server to take.
    pub(crate) fn mark_output(&mut self, session: &mut Session) {
        if !std::mem::replace(&mut session.output_marked, true) {
            self.marked.push(session.id);
        }
    }

    /// The session ends with this step. Saying so twice does no harm.
    pub(crate) fn close_later(&mut self, session: SessionId) {
        self.closing.push(session);
    }

    /// Whether CLIENT PAUSE holds back a command of these flags.
    pub(crate) fn clients_are_paused(&self, flags: Flags) -> bool {
        self.pause
            .is_some_and(|pause| !pause.writes_only || flags.has(Flags::WRITE))
    }

    pub(crate) fn gather_later(&mut self, from: ShardNo, ticket: Ticket, ask: Gather) {
        self.gathers.push_back((from, ticket, ask));
    }

    /// A part about this shard was made.
    pub(crate) fn send_part(&mut self, to: ShardNo, ticket: Ticket, part: Part) {
        let answer = Answer::Part(Box::new(part));
        if to == self.shard {
            self.ends.push_back((ticket, answer));
        } else {
            self.mesh.send(to, Message::Answer { ticket, answer });
        }
    }

    /// A command starts: it is counted, and shown to the monitors.
    pub(crate) fn command_started(&mut self, now: Now, command: u8, client: &ClientInfo, args: Args<'_>) {
        self.stats.command_started(command, args);
        if !self.feed.shards.is_empty() {
            self.feed.add(monitor::line(now, client, args));
        }
    }

    /// A command that waited has ended.
    pub(crate) fn command_ended_late(&mut self, now: Now, command: u8, args: &[Bytes], took_us: u64) {
        self.stats
            .command_ended_late(&self.settings, now, command, args, took_us, 1);
    }

    /// So many of a command that waited have ended, and took as long.
    pub(crate) fn commands_ended_late(&mut self, now: Now, command: u8, took_us: u64, calls: u64) {
        self.stats
            .command_ended_late(&self.settings, now, command, &[], took_us, calls);
    }

    /// An input of a socket is handled from now on.
    pub(crate) fn begin_input(&mut self, now: Now) {
        self.input_started_us = Some(now.mono_us);
        self.stats.observe(now, self.home.memory.used());
    }

    /// The commands of the last input get their share of the time since it began.
    pub(crate) fn settle_durations(&mut self, now: Now) {
        if let Some(started_us) = self.input_started_us.take() {
            self.stats
                .settle(&self.settings, now, now.mono_us.saturating_sub(started_us));
        }
    }

    pub(crate) fn snapshot(&mut self, now: Now, gauges: Gauges) -> ShardStats {
        self.stats.snapshot(now, gauges, &self.home.counters)
    }

    /// A monitor is gone; the other shards are told with the last.
    pub(crate) fn monitor_ended(&mut self, session: SessionId) {
        self.feed.monitors.retain(|&monitor| monitor != session);
        if self.feed.monitors.is_empty() {
            self.ask_for_no_feed();
        }
    }

    pub(crate) fn ask_for_no_feed(&mut self) {
        let change = Change::Monitor {
            shard: self.shard,
            on: false,
        };
        self.send_node(0, NodeMessage::Ask { ticket: None, change });
    }

    /// A session's buffers grow.
    pub(crate) fn charge_buffers(&mut self, bytes: u64) {
        self.client_bytes += bytes;
        self.home.memory.charge(bytes);
    }

    /// A session's buffers shrink.
    pub(crate) fn release_buffers(&mut self, bytes: u64) {
        self.client_bytes -= bytes;
        self.home.memory.release(bytes);
    }
}

impl Feed {
    fn add(&mut self, line: Bytes) {
        if self.bytes + line.len() > limits::FEED_BYTES {
            self.dropped += 1;
        } else {
            self.bytes += line.len();
            self.lines.push(line);
        }
    }

    /// The lines of this turn, and how many were left out.
    pub fn take(&mut self) -> (Vec<Bytes>, u64) {
        self.bytes = 0;
        (std::mem::take(&mut self.lines), std::mem::take(&mut self.dropped))
    }
}
