//! A run: a world and its clients, from one seed.

use std::collections::{BTreeMap, VecDeque};

use shard::settings::Settings;

use crate::ledger::{Got, Ledger, Open};
use crate::load::{self, Fate, Kind, Load, Taste, Verb};
use crate::network::Path;
use crate::operator::{Operator, SETTLED_US};
use crate::support::{Chance, traces};
use crate::troubles::{Class, Troubles};
use crate::world::{HostPlan, Plan, World};

/// Whether commands about a job work through any node; else they go to the one that added or handed it out.
const ANYWHERE: bool = true;

/// Within this time nodes find each other that nothing keeps apart.
const MEETING_US: u64 = 60_000_000;

/// Troubles that a run goes through before it ends, unless its clients have no more to do.
const MOST_TROUBLES: u64 = 3;

/// Commands for which a run goes on to have them.
const MORE_COMMANDS: u64 = 800;

/// Nodes of a world.
const SIZES: &[usize] = &[1, 2, 2, 3, 3, 3, 4, 5, 7, 9];

/// A client.
pub struct Actor {
    pub host: usize,
    life: u64,
    client: usize,
    pub under_way: VecDeque<Open>,
}

/// A run.
pub struct Run {
    pub world: World,
    pub load: Load,
    pub ledger: Ledger,
    pub chance: Chance,
    pub actors: Vec<Actor>,
    pub troubles: Troubles,
    pub operator: Operator,
    /// What clients have in mind: when, what, with which job.
    todo: BTreeMap<(u64, u64), (Verb, Got)>,
    intentions: u64,
    /// Nodes that join later.
    joining: Vec<usize>,
    /// The end has come: what is fetched is acknowledged at once.
    pub ending: bool,
    lazy: bool,
    vanish: bool,
}

impl Run {
    pub fn new(seed: u64, class: Class) -> Self {
        let mut chance = Chance::new(seed);
        let count = *chance.pick(SIZES);
        let (least_us, most_us) = *chance.pick(&[(20, 50), (100, 2_000), (1_000, 8_000), (5_000, 40_000)]);
        let path = Path::whole(least_us, most_us);
        let logs = match class {
            Class::Disks => *chance.pick(&[50, 100]),
            _ => *chance.pick(&[0, 0, 0, 50, 100]),
        };
        let timeout_ms = *chance.pick(&[2_000, 5_000, 15_000]);
        let repair_after_s = *chance.pick(&[10, 30]);
        let big = *chance.pick(&[0, 0, 10]);
        let tight = chance.percent(20);
        let hosts = (0..count).map(|_| {
            let shards = chance.between(1, 4) as u16;
            let maxmemory = if tight {
                small_memory(&mut chance, shards, big > 0)
            } else {
                0
            };
            let settings = Settings {
                cluster_node_timeout_ms: timeout_ms,
                repair_after_s,
                maxmemory,
                ..settings(&mut chance, logs)
            };
            HostPlan { shards, settings }
        });
        let hosts = hosts.collect();
        let once = *chance.pick(&[0, 10, 40]);
        let plan = Plan {
            hosts,
            path,
            timeout_us: timeout_ms * 1000,
            repair_after_us: repair_after_s * 1_000_000,
            careless: once == 0,
        };
        let queues: Vec<String> = (0..chance.between(1, 5)).map(|at| format!("q{at}")).collect();
        let taste = Taste {
            once,
            blocking: *chance.pick(&[0, 20, 80]),
            most_copies: 1,
            asynchronous: *chance.pick(&[0, 10, 50]),
            meddling: *chance.pick(&[0, 0, 5, 20]),
            longest_retry_s: *chance.pick(&[3, 10, 60]),
            big,
            looks: *chance.pick(&[0, 0, 3]),
            pauses: *chance.pick(&[0, 0, 0, 3]),
            late: *chance.pick(&[0, 0, 5]),
        };
        let world = World::new(Chance::new(chance.next()), plan);
        let troubles = Troubles::new(&mut chance, class, path, &world);
        let bad_disks = matches!(class, Class::Disks | Class::All);
        Self {
            ledger: Ledger::new(queues.clone(), class == Class::Quiet, bad_disks, tight),
            operator: Operator::new(count),
            load: Load::new(queues, taste),
            world,
            actors: Vec::new(),
            troubles,
            todo: BTreeMap::new(),
            intentions: 0,
            joining: Vec::new(),
            ending: false,
            lazy: chance.percent(60),
            vanish: chance.percent(50),
            chance,
        }
    }

    /// The whole of it; what went wrong.
    pub fn run(&mut self) -> Result<(), String> {
        self.begin()?;
        self.work()?;
        self.end()
    }

    fn begin(&mut self) -> Result<(), String> {
        let count = self.world.hosts.len();
        for host in 0..count {
            if host > 0 && self.chance.percent(10) {
                self.joining.push(host);
                continue;
            }
            self.world.start(host);
            let us = self.chance.between(0, 300_000);
            self.pass(us)?;
        }
        let there = (count - self.joining.len()) as u64;
        self.load.taste.most_copies = there.min(4);
        self.come_together(MEETING_US)?;
        self.note_known();
        self.pass(SETTLED_US)
    }

    /// Time passes until all nodes know each other.
    pub fn come_together(&mut self, most_us: u64) -> Result<(), String> {
        let end_us = self.world.now_us() + most_us;
        while !self.is_one_cluster() {
            if self.world.now_us() > end_us {
                return Err("the nodes do not come together".to_owned());
            }
            self.operate()?;
            self.pass(500_000)?;
        }
        Ok(())
    }

    fn work(&mut self) -> Result<(), String> {
        for _ in 0..self.chance.between(2, 6) {
            self.connect();
        }
        let mut left = self.chance.between(100, 800);
        let troubles = self.chance.between(1, MOST_TROUBLES);
        // Without faults there is nothing to be waited for.
        let mut more = if self.ledger.strict { 0 } else { MORE_COMMANDS };
        while left > 0 || self.troubles.is_rolling() || (more > 0 && self.troubles.begun <= troubles) {
            let killed = self.troubles.step(
                &mut self.chance,
                &mut self.world,
                &mut self.ledger,
                self.operator.is_busy(),
            );
            for host in killed {
                self.leave_all(host);
            }
            if let Some(deed) = self.troubles.deed.take() {
                self.perform(deed);
            }
            self.operate()?;
            if self.world.up().is_empty() {
                self.pass(50_000)?;
                continue;
            }
            for _ in 0..self.chance.between(0, 3) {
                let may_send = left > 0 || more > 0;
                if left == 0 {
                    more = more.saturating_sub(1);
                }
                left = left.saturating_sub(1);
                if may_send {
                    self.send();
                }
            }
            self.disturb();
            let us = match self.chance.below(50) {
                0 => self.chance.between(200_000, 3_000_000),
                1..11 => self.chance.between(5_000, 60_000),
                11..16 if left == 0 => self.chance.between(100_000, 1_000_000),
                11..30 if self.troubles.is_long() => self.chance.between(500_000, 6_000_000),
                _ => self.chance.between(0, 3_000),
            };
            self.pass(us)?;
        }
        Ok(())
    }

    /// Clients come and go, nodes join, wall clocks jump.
    fn disturb(&mut self) {
        if self.vanish && self.chance.percent(2) && !self.actors.is_empty() {
            let at = self.chance.below(self.actors.len());
            self.leave(at);
        }
        if self.actors.len() < 3 {
            self.connect();
        }
        if self.chance.percent(1)
            && let Some(host) = self.joining.pop()
        {
            self.world.start(host);
            self.ledger.count("joins");
        }
        if self.chance.percent(1) {
            let host = self.chance.below(self.world.hosts.len());
            let us = self.chance.between(0, 7_200_000_000) as i64 - 3_600_000_000;
            // What is in a log is in terms of the wall clock.
            if !self.world.hosts[host].plan.settings.appendonly {
                self.world.jump(host, us);
            }
        }
    }

    /// Nodes that clients go to. Without faults none that has not met all others yet.
    fn open(&self) -> Vec<usize> {
        let mut up = self.world.up();
        if self.ledger.strict {
            up.retain(|&host| self.operator.is_open(host, self.world.now_us()));
        }
        up
    }

    /// A client connects to some node that is up.
    pub fn connect(&mut self) -> Option<usize> {
        let up = self.open();
        if up.is_empty() {
            return None;
        }
        let mut host = *self.chance.pick(&up);
        if self.operator.is_leaving(host) {
            // Clients are told to go elsewhere; not all do.
            host = *self.chance.pick(&up);
        }
        Some(self.connect_to(host))
    }

    /// A client connects to this node; its place among the clients.
    pub fn connect_to(&mut self, host: usize) -> usize {
        let client = self.world.node(host).node.connect();
        self.world.stepped(host, 0);
        self.actors.push(Actor {
            host,
            life: self.world.hosts[host].life,
            client,
            under_way: VecDeque::new(),
        });
        self.actors.len() - 1
    }

    /// Some client sends a command.
    fn send(&mut self) {
        let open = self.open();
        let ready: Vec<usize> = (0..self.actors.len())
            .filter(|&at| self.actors[at].under_way.len() < 3 && open.contains(&self.actors[at].host))
            .collect();
        if ready.is_empty() {
            self.connect();
            return;
        }
        let at = *self.chance.pick(&ready);
        let ids = self.ledger.living();
        let (kind, bytes) = self.load.command(&mut self.chance, &ids);
        match &kind {
            Kind::Jobs(_, numbers) if !ANYWHERE => {
                let host = self.ledger.jobs[&numbers[0]].host;
                if let Some(at) = self.idle_actor(host) {
                    self.send_on(at, kind, &bytes);
                }
            }
            _ => self.send_on(at, kind, &bytes),
        }
    }

    /// A client sends this.
    pub fn send_on(&mut self, at: usize, kind: Kind, bytes: &[u8]) {
        let actor = &mut self.actors[at];
        if traces() {
            let text = String::from_utf8_lossy(bytes);
            let words: Vec<&str> = text.lines().skip(2).step_by(2).collect();
            let text: String = words.join(" ").chars().take(200).collect();
            let now_us = self.world.now_us();
            eprintln!("{now_us} client {}/{} sends {text}", actor.host, actor.client);
        }
        let made = match &kind {
            Kind::Add(number) => self.load.made.get(number),
            _ => None,
        };
        let open = self.ledger.sent(kind, made, actor.host, self.world.now_us());
        actor.under_way.push_back(open);
        let (host, client) = (actor.host, actor.client);
        self.world.node(host).node.send(client, bytes);
        self.world.touched(host);
    }

    /// So much time passes.
    pub fn pass(&mut self, us: u64) -> Result<(), String> {
        let end_us = self.world.now_us() + us;
        loop {
            let due = self.todo.first_key_value().map(|(key, _)| key.0);
            if due.is_some_and(|due_us| due_us <= self.world.now_us()) {
                self.do_one();
                continue;
            }
            let next_us = due.unwrap_or(u64::MAX).min(end_us);
            if self.world.event(next_us) {
                if let Some(why) = self.world.wrong.take() {
                    return Err(why);
                }
                self.read()?;
                self.bury();
            } else if next_us == end_us {
                return Ok(());
            }
        }
    }

    /// Nodes have ended themselves.
    fn bury(&mut self) {
        while let Some(&host) = self.world.fallen.last() {
            self.troubles
                .fell(&mut self.chance, &mut self.world, &mut self.ledger, host);
            self.leave_all(host);
        }
    }

    /// What somebody had in mind is done, by a client that waits for nothing.
    fn do_one(&mut self) {
        let (_, (verb, got)) = self.todo.pop_first().expect("it is due");
        let up = self.open();
        let host = if ANYWHERE && !up.is_empty() {
            *self.chance.pick(&up)
        } else {
            self.ledger.jobs[&got.number].host
        };
        if let Some(at) = self.idle_actor(host) {
            let (kind, bytes) = load::jobs(verb, &[(got.number, got.id)]);
            self.send_on(at, kind, &bytes);
        }
    }

    /// A client of this node that waits for nothing; none when the node is down.
    pub fn idle_actor(&mut self, host: usize) -> Option<usize> {
        let is_idle = |actor: &Actor| actor.host == host && actor.under_way.is_empty();
        if let Some(at) = self.actors.iter().position(is_idle) {
            return Some(at);
        }
        let is_up = self.world.up().contains(&host);
        is_up.then(|| self.connect_to(host))
    }

    /// Nobody has anything in mind any more.
    pub fn forget_all(&mut self) {
        self.todo.clear();
    }

    pub fn intend(&mut self, delay_us: u64, verb: Verb, got: Got) {
        self.intentions += 1;
        let key = (self.world.now_us() + delay_us, self.intentions);
        self.todo.insert(key, (verb, got));
    }

    /// Clients read what has come.
    fn read(&mut self) -> Result<(), String> {
        for at in (0..self.actors.len()).rev() {
            let (host, client) = (self.actors[at].host, self.actors[at].client);
            loop {
                let end = &mut self.world.node(host).node.clients[client];
                let Some(reply) = end.next_reply() else {
                    if end.closed_by_server {
                        self.turned_out(at)?;
                    }
                    break;
                };
                let now_us = self.world.now_us();
                if traces() {
                    let text: String = reply.to_string().chars().take(300).collect();
                    eprintln!("{now_us} client {host}/{client} reads {text}");
                }
                let open = self.actors[at].under_way.pop_front();
                let open = open.ok_or_else(|| format!("client {client} got {reply} without asking"))?;
                for got in self.ledger.replied(open, &reply, now_us)? {
                    self.decide(got);
                }
            }
        }
        Ok(())
    }

    /// A node has closed the connection of a client, which it may do where memory is short.
    fn turned_out(&mut self, at: usize) -> Result<(), String> {
        let Actor { host, client, .. } = self.actors[at];
        if !self.ledger.tight {
            return Err(format!("client {host}/{client} was turned out"));
        }
        self.ledger.count("turned out");
        self.leave(at);
        Ok(())
    }

    fn decide(&mut self, got: Got) {
        if self.ending {
            self.intend(0, Verb::Ack, got);
            return;
        }
        match self.load.fate(&mut self.chance, self.lazy) {
            Fate::Forgotten => {}
            Fate::Command(verb, percent) => self.intend(got.lease_us * percent / 100, verb, got),
        }
    }

    /// A client goes, with whatever it has under way.
    pub fn leave(&mut self, at: usize) {
        let actor = self.actors.swap_remove(at);
        let host = &self.world.hosts[actor.host];
        if host.life == actor.life && host.machine.is_some() {
            let machine = self.world.node(actor.host);
            let shard = machine.node.clients[actor.client]
                .place
                .map_or(0, |(shard, _)| shard);
            machine.node.disconnect(actor.client);
            self.world.stepped(actor.host, shard);
        }
        for open in actor.under_way {
            self.ledger.abandon(open);
        }
    }

    /// A node is gone, and the connections to it.
    pub fn leave_all(&mut self, host: usize) {
        for at in (0..self.actors.len()).rev() {
            if self.actors[at].host == host {
                self.leave(at);
            }
        }
    }
}

/// The settings of a node, which has a log so often, percent.
fn settings(chance: &mut Chance, logs: u64) -> Settings {
    Settings {
        appendonly: chance.percent(logs),
        appendfsync: chance.pick::<&str>(&["always", "everysec", "no"]),
        aof_segment_bytes: *chance.pick(&[8 << 10, 64 << 10]),
        aof_rewrite_min_bytes: *chance.pick(&[1 << 10, 64 << 10]),
        ..Settings::default()
    }
}

/// `maxmemory` of a node in a world where it is short on some: a few of the chunks of 16 KiB in which shards borrow it. Buffers of clients
/// who send large jobs must fit a part of it.
fn small_memory(chance: &mut Chance, shards: u16, large: bool) -> u64 {
    let least = if large { 400_000 } else { 24_000 };
    *chance.pick(&[0, 0, least, 2 * least, 4 * least]) * u64::from(shards)
}
