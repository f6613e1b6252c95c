//! Nodes and the network between them, in virtual time: one thing happens at a time, chance picks among what may happen at an
//! instant. Each node has clocks of its own: instants of one mean nothing on another.

use shard::bus::LinkNo;
use shard::clock::Now;
use shard::cluster::conf::{self, Nodes};
use shard::id::NodeId;
use shard::input::Effect;
use shard::settings::Settings;
use shard::shard::NodeFacts;
use shard::slot::ShardNo;

use crate::network::{Arrival, Network, Path};
use crate::support::{self, Birth, Chance, Disk, End, Machine, traces};

/// Where the world's own clock begins.
const BEGIN_US: u64 = 2_000_000_000;

/// Wall clocks begin here, in 2023.
const WALL_US: u64 = 1_700_000_000_000_000;

/// Things that happen at one instant, after which the world is said to spin.
const MOST_AT_ONCE: u64 = 50_000;

/// What a world is made of.
pub struct Plan {
    /// Shards of each node, and whether it has a log.
    pub hosts: Vec<HostPlan>,
    pub path: Path,
    pub timeout_us: u64,
    pub repair_after_us: u64,
    /// With the power may go what `appendfsync no` left to the kernel; else such a node only loses its process.
    pub careless: bool,
}

/// What a node is made of.
#[derive(Clone, Debug)]
pub struct HostPlan {
    pub shards: u16,
    pub settings: Settings,
}

/// A node, up or down.
pub struct Host {
    pub plan: HostPlan,
    /// Its ID until `nodes.conf` has one.
    first_id: NodeId,
    /// What `nodes.conf` holds.
    pub nodes: Nodes,
    /// What is being written there, and until when.
    saving: Option<(u64, String)>,
    pub machine: Option<Machine>,
    disk: Option<Disk>,
    /// It has read its log, if it has one, and serves.
    serving: bool,
    /// Which life this is, or was, from 1 on.
    pub life: u64,
    boot_id: u8,
    /// The world's clock at the zero of this node's monotonic one.
    zero_us: u64,
    /// How far its wall clock is ahead of ours.
    ahead_us: i64,
    /// When something happens here next, by the world's clock.
    next_us: u64,
}

/// The nodes and the network.
pub struct World {
    pub hosts: Vec<Host>,
    pub network: Network,
    /// The node timeout.
    pub timeout_us: u64,
    pub repair_after_us: u64,
    careless: bool,
    /// Nodes whose process ended itself, since its disk failed.
    pub fallen: Vec<usize>,
    /// One ended itself though its disk did not fail.
    pub wrong: Option<String>,
    pub chance: Chance,
    at_once: u64,
    moment: u64,
}

impl World {
    /// A world whose nodes are down.
    pub fn new(mut chance: Chance, plan: Plan) -> Self {
        let count = plan.hosts.len();
        let mut network = Network::new(count, plan.path);
        network.now_us = BEGIN_US;
        let hosts = plan.hosts.into_iter().map(|plan| Host {
            plan,
            first_id: first_id(&mut chance),
            nodes: Nodes::default(),
            saving: None,
            machine: None,
            disk: Some(Disk::new(support::Plant::None)),
            serving: false,
            life: 0,
            boot_id: 0,
            zero_us: 0,
            ahead_us: 0,
            next_us: u64::MAX,
        });
        let hosts = hosts.collect();
        Self {
            hosts,
            network,
            timeout_us: plan.timeout_us,
            repair_after_us: plan.repair_after_us,
            careless: plan.careless,
            fallen: Vec::new(),
            wrong: None,
            chance,
            at_once: 0,
            moment: 0,
        }
    }

    pub fn now_us(&self) -> u64 {
        self.network.now_us
    }

    /// Nodes that serve, and know which others there are.
    pub fn up(&self) -> Vec<usize> {
        (0..self.hosts.len())
            .filter(|&host| {
                let identity = &self.network.faces[host].identity;
                self.hosts[host].serving
                    && !self.fallen.contains(&host)
                    && identity.iter().all(Option::is_some)
            })
            .collect()
    }

    /// The ID that a node has, as its `nodes.conf` says.
    pub fn id_of(&self, at: usize) -> NodeId {
        let Host { nodes, first_id, .. } = &self.hosts[at];
        nodes.me.as_ref().map_or(*first_id, |me| me.id)
    }

    pub fn node(&mut self, host: usize) -> &mut Machine {
        self.hosts[host].machine.as_mut().expect("the node is up")
    }

    /// Starts a node.
    pub fn start(&mut self, at: usize) {
        let now_us = self.now_us();
        let host = &mut self.hosts[at];
        host.life += 1;
        if host.life > 1 && self.chance.percent(15) {
            host.plan.shards = self.chance.between(1, 4) as u16;
        }
        if host.boot_id == 0 {
            host.boots(&mut self.chance, now_us);
        }
        let nodes = host.nodes.clone();
        let birth = Birth {
            node: nodes.me.as_ref().map_or(host.first_id, |me| me.id),
            shards: host.plan.shards,
            settings: host.plan.settings.clone(),
            now: host.clocks(now_us),
            boot_id: host.boot_id,
            seed: self.chance.next(),
            facts: NodeFacts {
                machine: format!("machine {at}"),
                nodes: Some(nodes),
                ..NodeFacts::default()
            },
        };
        let disk = host.disk.take().expect("the node is down");
        let machine = Machine::start(disk, &birth, self.moment).expect("a node starts");
        if traces() {
            eprintln!(
                "{now_us} node {at} starts, {} shards, {:?}",
                birth.shards, machine.plan
            );
        }
        host.machine = Some(machine);
        host.next_us = now_us;
        let life = host.life;
        self.network.rises(at, life, birth.shards);
        self.collect(at);
    }

    /// A node ends, without a word. Whether what it told is lost.
    pub fn kill(&mut self, at: usize, mut end: End) -> bool {
        let now_us = self.now_us();
        let host = &mut self.hosts[at];
        let machine = host.machine.take().expect("the node is up");
        let settings = &host.plan.settings;
        if settings.appendonly && settings.appendfsync == "no" && !self.careless {
            // With the power goes what nobody synced, deliveries of at-most-once jobs too: by choice.
            end = End::Kill;
        }
        if traces() {
            eprintln!("{now_us} node {at} ends: {end:?}");
        }
        let kept = settings.appendonly && (end == End::Kill || settings.appendfsync == "always");
        let mut disk = machine.ends_now(end, &mut self.chance);
        disk.forget_faults();
        host.disk = Some(disk);
        if let Some((_, text)) = host.saving.take().filter(|_| self.chance.percent(50)) {
            host.keeps(&text);
        }
        host.next_us = u64::MAX;
        host.serving = false;
        if end == End::PowerLoss {
            host.boots(&mut self.chance, now_us);
        }
        self.network.falls(&mut self.chance, at, end == End::Kill);
        self.fallen.retain(|&fallen| fallen != at);
        !kept
    }

    /// The way from one node to another changes.
    pub fn set_path(&mut self, from: usize, to: usize, path: Path) {
        self.network.set_path(&mut self.chance, from, to, path);
    }

    /// The wall clock of a node jumps.
    pub fn jump(&mut self, at: usize, us: i64) {
        let now_us = self.now_us();
        let host = &mut self.hosts[at];
        host.ahead_us += us;
        let clocks = host.clocks(now_us);
        if let Some(machine) = &mut host.machine {
            machine.node.now = clocks;
        }
    }

    /// Something happens, or time passes up to the next thing that does; false when it is this instant and nothing is left.
    pub fn event(&mut self, end_us: u64) -> bool {
        self.moment += 1;
        self.at_once += 1;
        assert!(self.at_once < MOST_AT_ONCE, "the world does not come to rest");
        let now_us = self.now_us();
        let mut due: Vec<usize> = (0..self.hosts.len())
            .filter(|&host| self.hosts[host].next_us <= now_us)
            .collect();
        let outside = self.network.next_us().is_some_and(|due_us| due_us <= now_us);
        if outside {
            due.push(usize::MAX);
        }
        if !due.is_empty() {
            match *self.chance.pick(&due) {
                usize::MAX => self.arrive(),
                host => self.host_event(host),
            }
            return true;
        }
        let hosts = self.hosts.iter().map(|host| host.next_us);
        let next_us = hosts.chain(self.network.next_us()).min().expect("there is one");
        self.leap(next_us.min(end_us));
        next_us <= end_us
    }

    fn leap(&mut self, now_us: u64) {
        if now_us > self.network.now_us {
            self.at_once = 0;
        }
        self.network.now_us = now_us;
        for host in &mut self.hosts {
            let clocks = host.clocks(now_us);
            if let Some(machine) = &mut host.machine {
                machine.node.now = clocks;
            }
        }
    }

    fn host_event(&mut self, at: usize) {
        let now_us = self.now_us();
        if let Some((_, text)) = self.hosts[at].saving.take_if(|(due_us, _)| *due_us <= now_us) {
            let faults = self.node(at).disk.faults;
            let fails = faults.any() && self.chance.percent(faults.create.max(20));
            if !fails {
                self.hosts[at].keeps(&text);
            }
            self.node(at).node.nodes_saved(!fails);
            return self.stepped(at, 0);
        }
        let machine = self.node(at);
        let happened = machine.happen();
        if let Some(why) = &machine.node.died {
            if machine.disk.failed == 0 {
                self.wrong = Some(format!("node {at} died: {why}"));
            }
            if !self.fallen.contains(&at) {
                self.fallen.push(at);
            }
            self.hosts[at].next_us = u64::MAX;
            return;
        }
        self.collect(at);
        let host = &mut self.hosts[at];
        if !happened {
            let next_us = host.machine.as_ref().and_then(Machine::next_us);
            host.next_us = next_us.map_or(u64::MAX, |us| us.saturating_add(host.zero_us));
            if let Some((due_us, _)) = host.saving {
                host.next_us = host.next_us.min(due_us);
            }
            // Milliseconds are rounded down.
            host.next_us = host.next_us.max(now_us + 1);
        }
    }

    /// Somebody did something with a shard.
    pub fn stepped(&mut self, at: usize, shard: ShardNo) {
        self.node(at).stepped(shard);
        self.touched(at);
    }

    /// A node has something to do now.
    pub fn touched(&mut self, at: usize) {
        self.collect(at);
        self.hosts[at].next_us = self.network.now_us;
    }

    /// What a node wants of the network.
    fn collect(&mut self, at: usize) {
        let host = &mut self.hosts[at];
        let machine = host.machine.as_mut().expect("the node is up");
        host.serving |= machine.serves();
        let node = &mut self.node(at).node;
        if node.calls.is_empty() && node.outgoing.is_empty() {
            return;
        }
        let calls = std::mem::take(&mut node.calls);
        let outgoing = std::mem::take(&mut node.outgoing);
        for (shard, link, messages) in outgoing {
            self.network.send(&mut self.chance, (at, shard, link), messages);
        }
        for (shard, call) in calls {
            self.call(at, shard, call);
        }
    }

    fn call(&mut self, at: usize, shard: ShardNo, call: Effect) {
        match call {
            Effect::Identity { node, epoch } => self.network.identify(at, shard, (node, epoch)),
            Effect::Dial(dial) => {
                let key: (usize, ShardNo, LinkNo) = (at, shard, dial.link);
                self.network.dial(key, dial);
            }
            Effect::HangUp { link } => self.network.hang_up((at, shard, link)),
            Effect::SaveNodes { text } => {
                let due_us = self.now_us() + *self.chance.pick(&[0, 200, 5_000, 40_000]);
                let before = self.hosts[at].saving.replace((due_us, text));
                assert!(before.is_none(), "one write at a time");
            }
            other => panic!("{other:?} is no matter of the network"),
        }
    }

    fn arrive(&mut self) {
        let Some(arrival) = self.network.happen(&mut self.chance) else {
            return;
        };
        match arrival {
            Arrival::Batch {
                to,
                life,
                shard,
                from,
                messages,
            } => {
                if self.lives(to, life) {
                    self.node(to).node.bus(shard, from, messages);
                    self.stepped(to, shard);
                }
            }
            Arrival::Event {
                to,
                life,
                shard,
                link,
                event,
            } => {
                if self.lives(to, life) {
                    if traces() {
                        eprintln!("{} {to}.{shard} link {link:?}: {event:?}", self.now_us());
                    }
                    self.node(to).node.link(shard, link, event);
                    self.stepped(to, shard);
                }
            }
        }
    }

    fn lives(&self, host: usize, life: u64) -> bool {
        let host = &self.hosts[host];
        host.machine.is_some() && host.life == life
    }
}

impl Host {
    /// `nodes.conf` was replaced.
    fn keeps(&mut self, text: &str) {
        self.nodes = conf::parse(text).expect("what was saved can be read");
    }

    fn boots(&mut self, chance: &mut Chance, now_us: u64) {
        self.boot_id += 1;
        self.zero_us = now_us - chance.between(5_000_000, 1_000_000_000);
    }

    fn clocks(&self, now_us: u64) -> Now {
        Now {
            mono_us: now_us - self.zero_us,
            wall_us: (WALL_US + now_us).wrapping_add_signed(self.ahead_us),
        }
    }
}

fn first_id(chance: &mut Chance) -> NodeId {
    let mut id = [0; 20];
    id.iter_mut().for_each(|byte| *byte = chance.next() as u8);
    NodeId::from_bytes(id)
}
