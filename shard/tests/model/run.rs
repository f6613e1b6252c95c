//! One run: a node, a few clients and chance, from a seed.
//!
//! At each step one thing happens: bytes arrive, a batch is delivered, the kernel takes output, a timer is looked after, a
//! clock moves, a client comes or goes. In the end everything is let through and everything must come to rest.

use std::collections::{BTreeSet, VecDeque};

use shard::message::{Handed, SessionId};
use shard::settings::Settings;
use shard::slot::ShardNo;

use crate::ledger::Ledger;
use crate::load::{Command, Kind, Load, words};
use crate::replies;
use crate::support::{Chance, Node, Reply, queue_on};
use crate::witness::Witness;

/// Bytes that may be in use when no job, queue and client but one is left.
const EMPTY_BYTES: u64 = 20_000;

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
struct Actor {
    client: usize,
    sent: VecDeque<(Kind, u64)>,
}

/// What was under way when a client's connection died.
struct Died {
    session: (ShardNo, SessionId),
    unanswered: Vec<Kind>,
    partial: Vec<u8>,
}

/// A run.
pub struct Run {
    seed: u64,
    plan: Plan,
    node: Node<Witness>,
    chance: Chance,
    load: Load,
    ledger: Ledger,
    actors: Vec<Actor>,
    died: Vec<Died>,
    /// What clients read whole.
    delivered: Vec<Handed>,
    flush_open: bool,
    flushed_ever: bool,
    last_reply: Option<Reply>,
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
            88..97 => self.let_time_pass(),
            97 => self.disturb(),
            98 => self.someone_leaves(),
            _ => self.settle(),
        }
    }

    fn note(&mut self, line: String) {
        let ms = self.node.now.mono().0;
        self.node.watch.note(format!("{ms} ms: {line}"));
    }

    fn connect(&mut self) {
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

    fn send_one(&mut self, actor: usize, command: Command) {
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
        let actor = self.chance.below(self.actors.len());
        self.leave(actor);
        self.connect();
    }

    fn leave(&mut self, actor: usize) {
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
    fn settle(&mut self) {
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

    fn wait_ms(&mut self, ms: u64) {
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
    fn look(&mut self) {
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

    /// Lets everything through. Nothing may be lost, nothing may be left.
    fn finish(&mut self) {
        self.note("the end begins".to_owned());
        self.node
            .clients
            .iter_mut()
            .for_each(|client| client.kernel_takes_all = true);
        for from in 0..self.plan.shards {
            (0..self.plan.shards).for_each(|to| self.node.delay_mesh(from, to, 0));
        }
        // Longer than any TIMEOUT.
        self.wait_ms(4_000);
        if self.plan.is_exact() {
            assert_eq!(
                self.node.watch.reference.starving(),
                Vec::<String>::new(),
                "somebody waits for what is there"
            );
        }
        while !self.actors.is_empty() {
            self.leave(0);
        }
        self.wait_ms(1_000);
        if self.flush_open {
            self.ledger.flushed_until_us = self.node.now.mono_us;
        }
        if self.plan.is_exact() {
            let unfinished = self.node.watch.reference.unfinished();
            assert!(
                unfinished.is_empty(),
                "reservations and GETJOBs are left over: {unfinished:?}"
            );
            self.check_undone();
        }
        self.connect();
        let client = self.actors[0].client;
        self.node.clients[client].kernel_takes_all = true;
        self.drain();
        let lost = self.ledger.lost(self.node.now.mono_us);
        assert!(lost.is_empty(), "lost: {lost:?}");
        self.empty();
    }

    fn ask(&mut self, text: &str, kind: Kind) -> Reply {
        self.send_one(0, Command::new(&words(text), kind));
        self.settle();
        self.look();
        self.last_reply.take().expect("it is answered")
    }

    /// Receives and acknowledges all that is there.
    fn drain(&mut self) {
        let queues = self.load.queues.clone();
        for queue in &queues {
            self.ask(&format!("PAUSE {queue} none"), Kind::Pause);
        }
        // Longer than any lease or delay.
        self.wait_ms(10_000);
        for id in self.ledger.at_most_once_ids() {
            self.ask(
                &format!("ENQUEUE {id}"),
                Kind::Ids {
                    count: 1,
                    removes: Vec::new(),
                },
            );
        }
        let get = format!("GETJOB NOHANG COUNT 100 FROM {}", queues.join(" "));
        let kind = Kind::GetJob {
            count: 100,
            ends_alone: true,
            timeout_ms: 0,
            with_counters: false,
        };
        while let Reply::Array(jobs) = self.ask(&get, kind.clone()) {
            for job in jobs {
                let Reply::Bulk(id) = &job.elements()[1] else {
                    panic!("a job has an ID")
                };
                let id = String::from_utf8(id.clone()).expect("an ID is text");
                let acknowledged = self.ask(
                    &format!("ACKJOB {id}"),
                    Kind::Ids {
                        count: 1,
                        removes: Vec::new(),
                    },
                );
                assert_eq!(acknowledged, Reply::Integer(1), "{id} was handed out");
                self.ledger.drained(id);
            }
        }
        for queue in &queues {
            assert_eq!(
                self.ask(&format!("QLEN {queue}"), Kind::Length),
                Reply::Integer(0),
                "{queue} is empty"
            );
        }
    }

    /// Removes what is left, and looks whether all memory has come back.
    fn empty(&mut self) {
        let left = self.all_jobs();
        if self.plan.is_exact() {
            let expected: BTreeSet<String> = self
                .node
                .watch
                .reference
                .job_ids()
                .iter()
                .map(ToString::to_string)
                .collect();
            assert_eq!(left, expected, "left JSCAN, right the reference");
        }
        for id in left {
            self.ask(
                &format!("DELJOB {id}"),
                Kind::Ids {
                    count: 1,
                    removes: Vec::new(),
                },
            );
        }
        assert_eq!(self.all_jobs(), BTreeSet::new(), "all jobs are deleted");
        // Longer than two lives of an idle queue.
        self.wait_ms(700_000);
        let Reply::Bulk(info) = self.ask("INFO memory", Kind::Info) else {
            panic!("INFO is text")
        };
        let info = String::from_utf8(info).expect("INFO is text");
        let used = info.lines().find_map(|line| line.strip_prefix("used_memory:"));
        let used: u64 = used
            .and_then(|used| used.trim().parse().ok())
            .expect("INFO tells the memory used");
        assert!(used < EMPTY_BYTES, "{used} bytes are in use by nothing");
    }

    fn all_jobs(&mut self) -> BTreeSet<String> {
        let reply = self.ask("JSCAN 0 BUSYLOOP", Kind::Scan);
        let ids = reply.elements()[1].elements().iter();
        ids.map(|id| {
            if let Reply::Simple(id) = id {
                id.clone()
            } else {
                panic!("no ID: {id}")
            }
        })
        .collect()
    }

    /// Of what was handed out, exactly that was undone which did not reach its client.
    fn check_undone(&mut self) {
        let undone: BTreeSet<String> = self
            .node
            .watch
            .undone
            .iter()
            .map(|handed| format!("{handed:?}"))
            .collect();
        assert_eq!(
            undone.len(),
            self.node.watch.undone.len(),
            "a handing out is undone once"
        );
        for handed in &self.delivered {
            assert!(
                !undone.contains(&format!("{handed:?}")),
                "{handed:?} reached its client and was undone"
            );
        }
        for died in std::mem::take(&mut self.died) {
            for (place, kind) in died
                .unanswered
                .iter()
                .enumerate()
                .filter(|(_, kind)| kind.asks_home())
            {
                let partial = if place == 0 { died.partial.as_slice() } else { &[] };
                if self.node.watch.rest_of(died.session).next().is_none() {
                    break;
                }
                let outcome = self.node.watch.next_outcome(died.session);
                for job in outcome.jobs().filter(|_| matches!(kind, Kind::GetJob { .. })) {
                    let is_undone = undone.contains(&format!("{:?}", job.handed));
                    let id = job.handed.id;
                    if partial.is_empty() {
                        assert!(
                            is_undone,
                            "{:?} did not reach its client and was not undone",
                            job.handed
                        );
                    } else if !id.at_least_once() && contains(partial, &id.text()) {
                        assert!(!is_undone, "{id} reached its client in part and was undone");
                    }
                }
            }
        }
    }
}

fn contains(bytes: &[u8], part: &[u8]) -> bool {
    bytes.windows(part.len()).any(|window| window == part)
}
