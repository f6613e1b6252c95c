//! One run: a node, a few clients and chance, from a seed.
//!
//! At each step one thing happens: bytes arrive, a batch is delivered, the kernel takes output, a timer is looked after, a
//! clock moves, a client comes or goes. In the end everything is let through and everything must come to rest.

use std::collections::VecDeque;

use shard::message::{Handed, SessionId};
use shard::settings::Settings;
use shard::slot::ShardNo;

use crate::ledger::Ledger;
use crate::load::{Command, Kind, Load};
use crate::replies;
use crate::support::{Chance, Node, Reply, queue_on};
use crate::witness::Witness;

/// What a run is made of.
#[derive(Clone, Debug)]
pub struct Plan {
    pub shards: u16,
    /// Shards that have clients.
    pub sessions_on: Vec<ShardNo>,
    /// Shards that have queues.
    pub queues_on: Vec<ShardNo>,
    pub clients: usize,
    pub steps: usize,
    pub flushes: bool,
}

impl Plan {
    /// Whether all that home shards are told is seen: the reference is asked only then.
    pub fn is_exact(&self) -> bool {
        self.sessions_on
            .iter()
            .all(|shard| !self.queues_on.contains(shard))
    }
}

/// A client at work.
pub(crate) struct Actor {
    pub(crate) client: usize,
    sent: VecDeque<(Kind, u64)>,
}

/// What was under way when a client's connection died.
pub(crate) struct Died {
    pub(crate) session: (ShardNo, SessionId),
    pub(crate) unanswered: Vec<Kind>,
    pub(crate) partial: Vec<u8>,
}

/// A run.
pub struct Run {
    seed: u64,
    pub(crate) plan: Plan,
    pub(crate) node: Node<Witness>,
    chance: Chance,
    pub(crate) load: Load,
    pub(crate) ledger: Ledger,
    pub(crate) actors: Vec<Actor>,
    pub(crate) died: Vec<Died>,
    /// What clients read whole.
    pub(crate) delivered: Vec<Handed>,
    pub(crate) flush_open: bool,
    flushed_ever: bool,
    pub(crate) last_reply: Option<Reply>,
}

impl Drop for Run {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("the last steps of this run:");
            self.node
                .watch
                .history
                .iter()
                .for_each(|line| eprintln!("  {line}"));
            eprintln!("to repeat it: SHARDQ_SEED={} (plan: {:?})", self.seed, self.plan);
        }
    }
}

impl Run {
    pub fn new(seed: u64, plan: Plan) -> Self {
        let mut chance = Chance::new(seed);
        let settings = Settings {
            maxmemory: 0,
            ..Settings::default()
        };
        let node = Node::new(
            plan.shards,
            seed,
            &settings,
            Witness::new(plan.shards, plan.is_exact()),
        );
        let mut queues = Vec::new();
        for &shard in &plan.queues_on {
            queues.push(queue_on("a", shard, plan.shards));
            if chance.percent(50) {
                queues.push(queue_on("b", shard, plan.shards));
            }
        }
        let load = Load::new(queues, plan.flushes);
        let mut run = Self {
            seed,
            node,
            chance,
            load,
            ledger: Ledger::default(),
            actors: Vec::new(),
            died: Vec::new(),
            delivered: Vec::new(),
            flush_open: false,
            flushed_ever: false,
            last_reply: None,
            plan,
        };
        run.settle();
        (0..run.plan.clients).for_each(|_| run.connect());
        run
    }

    /// Runs to the end; how many jobs were accepted, and what happened how often.
    pub fn run(mut self) -> (usize, Vec<(&'static str, u64)>) {
        for _ in 0..self.plan.steps {
            self.step();
            self.look();
        }
        self.finish();
        let kinds = self
            .node
            .watch
            .kinds
            .iter()
            .map(|(kind, count)| (*kind, *count))
            .collect();
        (self.ledger.added(), kinds)
    }

    fn step(&mut self) {
        match self.chance.below(100) {
            0..24 => self.send(),
            24..46 => self.arrive(),
            46..70 => self.deliver(),
            70..80 => self.tick_one(),
            80..88 => self.kernel_takes(),
            88..96 => self.let_time_pass(),
            96 => self.disturb(),
            97..99 => self.someone_leaves(),
            _ => self.settle(),
        }
    }

    pub(crate) fn note(&mut self, line: String) {
        let ms = self.node.now.mono().0;
        self.node.watch.note(format!("{ms} ms: {line}"));
    }

    pub(crate) fn connect(&mut self) {
        let shard = *self.chance.pick(&self.plan.sessions_on);
        let client = self.node.connect_to(shard);
        self.node.clients[client].kernel_takes_all = self.chance.percent(60);
        self.actors.push(Actor {
            client,
            sent: VecDeque::new(),
        });
        self.note(format!("client {client} connects to shard {shard}"));
    }

    fn send(&mut self) {
        let actor = self.chance.below(self.actors.len());
        for _ in 0..self.chance.between(1, 4) {
            // Not without bound: a blocked client's commands pile up.
            if self.actors[actor].sent.len() < 30 {
                let command = self.load.command(&mut self.chance);
                self.send_one(actor, command);
            }
        }
        if self.chance.percent(60) {
            self.node.arrive(self.actors[actor].client, usize::MAX);
        }
    }

    pub(crate) fn send_one(&mut self, actor: usize, command: Command) {
        let client = self.actors[actor].client;
        self.note(format!("client {client} sends {}", command.text));
        self.ledger.sent(&command.kind);
        if matches!(command.kind, Kind::Flush) {
            self.flush_open = true;
            self.flushed_ever = true;
        }
        self.actors[actor]
            .sent
            .push_back((command.kind, self.node.now.mono_us));
        self.node.send(client, &command.bytes);
    }

    fn arrive(&mut self) {
        let client = self.actors[self.chance.below(self.actors.len())].client;
        let most = if self.chance.percent(50) {
            usize::MAX
        } else {
            self.chance.between(1, 40) as usize
        };
        self.node.arrive(client, most);
    }

    fn deliver(&mut self) {
        let arrived = self.node.arrived();
        if !arrived.is_empty() {
            let (from, to) = *self.chance.pick(&arrived);
            let more = self.chance.below(3);
            self.node.deliver(from, to, more);
        }
    }

    fn tick_one(&mut self) {
        let shard = self.chance.below(usize::from(self.plan.shards)) as ShardNo;
        self.tick(shard);
    }

    /// All that is due on a shard now.
    fn tick(&mut self, shard: ShardNo) {
        let mut ticks = 0;
        loop {
            self.node.tick(shard);
            ticks += 1;
            let next = self.node.shards[usize::from(shard)].next_deadline();
            assert!(
                ticks < 10_000,
                "shard {shard} always has something to do, next at {next:?}"
            );
            if !self.node.is_due(shard) {
                break;
            }
        }
        self.node.watch.ticks_ended(self.node.now, shard);
    }

    fn kernel_takes(&mut self) {
        let client = self.actors[self.chance.below(self.actors.len())].client;
        let most = if self.chance.percent(50) {
            usize::MAX
        } else {
            self.chance.between(1, 60) as usize
        };
        self.node.kernel_takes(client, most);
    }

    fn let_time_pass(&mut self) {
        let us = match self.chance.below(20) {
            0 => self.chance.between(100_000, 8_000_000),
            1..14 => match self.node.next_event_us() {
                Some(next) if next < self.node.now.mono_us + 2_000_000 => {
                    next.saturating_sub(self.node.now.mono_us)
                }
                _ => self.chance.between(1, 300_000),
            },
            _ => self.chance.between(1, 20_000),
        };
        self.node.leap(us);
    }

    fn disturb(&mut self) {
        match self.chance.below(3) {
            0 => {
                let wall = self.node.now.wall_us as i64 + self.chance.between(0, 20_000_000_000) as i64
                    - 10_000_000_000;
                self.node.now.wall_us = wall as u64;
            }
            1 => {
                let (from, to) = (
                    self.chance.below(self.plan.shards.into()),
                    self.chance.below(self.plan.shards.into()),
                );
                let delay_us = if self.chance.percent(30) {
                    0
                } else {
                    self.chance.between(0, 50_000)
                };
                self.node.delay_mesh(from as ShardNo, to as ShardNo, delay_us);
            }
            _ => {
                let client = self.actors[self.chance.below(self.actors.len())].client;
                self.node.clients[client].kernel_takes_all ^= true;
            }
        }
    }

    fn someone_leaves(&mut self) {
        let mut actor = self.chance.below(self.actors.len());
        let is_reading = |actor: &Actor| !self.node.clients[actor.client].leaving.is_empty();
        if let Some(reading) = self.actors.iter().position(is_reading) {
            // In the middle of a reply, more often than not.
            actor = reading;
            let client = self.actors[reading].client;
            let most = self.chance.below(self.node.clients[client].leaving.len() + 1);
            self.node.kernel_takes(client, most);
            self.look();
        }
        self.leave(actor);
        self.connect();
    }

    pub(crate) fn leave(&mut self, actor: usize) {
        let actor = self.actors.swap_remove(actor);
        self.note(format!("client {} disconnects", actor.client));
        self.node.disconnect(actor.client);
        let client = &self.node.clients[actor.client];
        let partial = client.partial_reply().to_vec();
        if let (Some((Kind::GetJob { count, .. }, _)), false) = (actor.sent.front(), partial.is_empty()) {
            self.ledger.saw_part(&partial, *count);
        }
        let session = client.place.expect("it had a session");
        self.died.push(Died {
            session,
            unanswered: actor.sent.into_iter().map(|(kind, _)| kind).collect(),
            partial,
        });
    }

    /// Does all that can be done without time passing.
    pub(crate) fn settle(&mut self) {
        for _ in 0..100_000 {
            let mut done = self.node.answer_question();
            for client in 0..self.node.clients.len() {
                done |= self.node.arrive(client, usize::MAX) > 0;
                done |= self.node.clients[client].kernel_takes_all
                    && self.node.kernel_takes(client, usize::MAX) > 0;
            }
            for (from, to) in self.node.arrived() {
                self.node.deliver(from, to, 0);
                done = true;
            }
            for shard in 0..self.plan.shards {
                if self.node.is_due(shard) || done {
                    done |= self.node.is_due(shard);
                    self.tick(shard);
                }
            }
            if !done {
                return;
            }
        }
        panic!("the node does not come to rest");
    }

    pub(crate) fn wait_ms(&mut self, ms: u64) {
        let end = self.node.now.mono_us + ms * 1000;
        self.settle();
        while let Some(next) = self.node.next_event_us().filter(|&next| next <= end) {
            self.node.leap(next.saturating_sub(self.node.now.mono_us));
            self.settle();
            self.look();
        }
        self.node.leap(end - self.node.now.mono_us);
        self.settle();
        self.look();
    }

    /// Reads replies and holds them against what they must be; looks at what must hold at any time.
    pub(crate) fn look(&mut self) {
        for actor in 0..self.actors.len() {
            let client = self.actors[actor].client;
            while let Some(reply) = self.node.clients[client].next_reply() {
                let sent = self.actors[actor].sent.pop_front();
                let (kind, sent_us) =
                    sent.unwrap_or_else(|| panic!("client {client} got {reply} without asking"));
                self.replied(client, &kind, sent_us, reply);
            }
        }
        if self.plan.is_exact() {
            for &shard in &self.plan.queues_on {
                let due = self.node.watch.reference.next_deadline(shard);
                let planned = self.node.shards[usize::from(shard)]
                    .next_deadline()
                    .map(|deadline| deadline.0);
                assert!(
                    due.is_none() || planned <= due && planned.is_some(),
                    "shard {shard} wakes at {planned:?}, {due:?} is due"
                );
            }
        }
    }

    fn replied(&mut self, client: usize, kind: &Kind, sent_us: u64, reply: Reply) {
        self.note(format!("client {client} reads {reply}"));
        let session = self.node.clients[client].place.expect("it has a session");
        if self.plan.is_exact() && kind.asks_home() {
            let outcome = self.node.watch.next_outcome(session);
            let expected = replies::expected(kind, outcome);
            assert_eq!(
                expected, reply,
                "client {client}, {kind:?}: left the reference, right the reply"
            );
            assert!(
                reply != Reply::NullArray || !outcome.gave_up_offers(),
                "null in spite of offers"
            );
            self.delivered.extend(outcome.jobs().map(|job| job.handed));
        }
        if let (
            Kind::GetJob {
                ends_alone,
                timeout_ms,
                ..
            },
            Reply::NullArray,
        ) = (kind, &reply)
        {
            assert!(*ends_alone || self.flushed_ever, "a GETJOB without end ended");
            let waited_ms = (self.node.now.mono_us - sent_us).div_ceil(1000);
            assert!(
                waited_ms >= *timeout_ms || self.flushed_ever,
                "timeout after {waited_ms} ms, not {timeout_ms}"
            );
        }
        let ids = self.ledger.replied(kind, sent_us, &reply);
        self.load.ids.extend(ids);
        self.last_reply = Some(reply);
    }
}
