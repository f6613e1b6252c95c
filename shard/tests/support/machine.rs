//! A node and its disk in virtual time: one thing happens at a time, chance picks among what may happen at an instant.

use shard::clock::Now;
use shard::id::NodeId;
use shard::log::{Action, DiskTask, Done, LogBoot, StartPlan, SwitchStep};
use shard::settings::Settings;
use shard::shard::NodeFacts;
use shard::slot::ShardNo;

use super::disk::{Begun, Disk, Plant};
use super::{Blind, Chance, Node, Start, traces};

/// Steps between two looks at the whole state: one costs as much as many steps.
const CHECK_EVERY: u64 = 16;

/// Events at one instant after which the node is said to spin.
const MOST_AT_ONCE: u64 = 20_000;

/// What a start of the node is made of.
#[derive(Clone)]
pub struct Birth {
    pub node: NodeId,
    pub shards: u16,
    pub settings: Settings,
    pub now: Now,
    pub boot_id: u8,
    pub seed: u64,
    pub facts: NodeFacts,
}

struct InFlight {
    due_us: u64,
    shard: ShardNo,
    id: u64,
    task: DiskTask,
    begun: Begun,
    /// It was told to have ended.
    told: bool,
}

/// How a life ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// kill -9: what the kernel holds stays.
    Kill,
    PowerLoss,
}

/// A node at work.
pub struct Machine {
    pub node: Node<Blind>,
    pub disk: Disk,
    pub plan: StartPlan,
    pub moment: u64,
    pub chance: Chance,
    in_flight: Vec<InFlight>,
    owed_ticks: Vec<bool>,
    delay_us: (u64, u64),
    seen_log: usize,
    /// Events since time last passed.
    at_once: u64,
    /// The log counts.
    pub is_on: bool,
    /// What the disk was last asked for.
    pub last_task: &'static str,
    /// How much the wall clock that the node sees is slow.
    slow_us: u64,
}

/// The wall clock that is slow while the log is read.
const SLOW_WALL_CLOCK_US: u64 = 20_000_000;

impl Machine {
    /// Starts a node on a disk; or why the server does not.
    pub fn start(mut disk: Disk, birth: &Birth, moment: u64) -> Result<Self, String> {
        let mut chance = Chance::new(birth.seed);
        let boot_id = [birth.boot_id; 16];
        let log: LogBoot = disk.boot(birth.settings.appendonly, birth.shards, boot_id)?;
        let plan = log.plan;
        let slow = disk.plant == Plant::WallClock && plan != StartPlan::Nothing;
        let slow_us = if slow { SLOW_WALL_CLOCK_US } else { 0 };
        let start = Start {
            node: birth.node,
            shards: birth.shards,
            seed: birth.seed,
            settings: &birth.settings,
            now: Now {
                wall_us: birth.now.wall_us - slow_us,
                ..birth.now
            },
            log,
            facts: birth.facts.clone(),
        };
        let mut node = Node::start(start, Blind);
        node.checks = false;
        for from in 0..birth.shards {
            for to in 0..birth.shards {
                node.delay_mesh(from, to, *chance.pick(&[0, 0, 100, 3_000]));
            }
        }
        let delay_us = *chance.pick(&[(0, 0), (50, 500), (100, 20_000), (5_000, 60_000)]);
        let mut machine = Self {
            node,
            disk,
            plan,
            moment,
            chance,
            in_flight: Vec::new(),
            owed_ticks: vec![true; usize::from(birth.shards)],
            delay_us,
            seen_log: 0,
            at_once: 0,
            is_on: false,
            last_task: "",
            slow_us,
        };
        machine.begin_tasks();
        Ok(machine)
    }

    pub fn now_us(&self) -> u64 {
        self.node.now.mono_us
    }

    pub fn wall_us(&self) -> u64 {
        self.node.now.wall_us + self.slow_us
    }

    /// Whether clients are served.
    pub fn serves(&self) -> bool {
        self.plan == StartPlan::Nothing || self.is_on
    }

    /// Whether the process has ended, by itself or as it was asked to.
    pub fn has_ended(&self) -> bool {
        self.node.died.is_some() || self.node.stopped.len() == self.node.shards.len()
    }

    /// The next thing happens, if there is one up to this instant; else it is this instant.
    pub fn event(&mut self, end_us: u64) -> bool {
        if self.has_ended() {
            return false;
        }
        self.at_once += 1;
        assert!(
            self.at_once < MOST_AT_ONCE,
            "the node does not come to rest: {:?}",
            self.node
                .shards
                .iter()
                .map(|shard| shard.next_deadline())
                .collect::<Vec<_>>()
        );
        if !self.happen() {
            self.at_once = 0;
            let Some(next) = self.next_us().filter(|&next| next <= end_us) else {
                let left = end_us.saturating_sub(self.now_us());
                self.node.leap(left);
                return false;
            };
            let left = next.saturating_sub(self.now_us());
            self.node.leap(left);
        }
        true
    }

    /// When something happens next by itself, unless something is left to happen at this instant.
    pub fn next_us(&self) -> Option<u64> {
        let in_flight = self.in_flight.iter().map(|task| task.due_us);
        in_flight.chain(self.node.next_event_us()).min()
    }

    /// Something of what may happen at this instant happens; whether there was anything.
    pub fn happen(&mut self) -> bool {
        self.moment += 1;
        let arrived = self.node.arrived();
        let due: Vec<usize> = (0..self.in_flight.len())
            .filter(|&at| self.in_flight[at].due_us <= self.node.now.mono_us)
            .collect();
        let ticks: Vec<ShardNo> = (0..self.node.count())
            .filter(|&shard| self.owed_ticks[usize::from(shard)] || self.node.is_due(shard))
            .collect();
        let clients: Vec<usize> = (0..self.node.clients.len())
            .filter(|&client| {
                let client = &self.node.clients[client];
                let sends = client.server_reads && !client.unread.is_empty();
                client.open && (sends || !client.leaving.is_empty())
            })
            .collect();
        let kinds = [arrived.len(), due.len(), ticks.len(), clients.len()];
        if kinds.iter().sum::<usize>() == 0 {
            let answered = self.node.answer_question();
            self.owed_ticks.fill(answered);
            return answered;
        }
        let mut kind = self.chance.below(4);
        while kinds[kind] == 0 {
            kind = (kind + 1) % 4;
        }
        match kind {
            0 => {
                let (from, to) = *self.chance.pick(&arrived);
                let more = self.chance.below(4);
                self.node.deliver(from, to, more);
                self.stepped(to);
            }
            1 => {
                let at = *self.chance.pick(&due);
                self.end_task(at);
            }
            2 => {
                let shard = *self.chance.pick(&ticks);
                self.owed_ticks[usize::from(shard)] = false;
                self.node.tick(shard);
                self.looked_after(shard);
            }
            _ => {
                let client = *self.chance.pick(&clients);
                let shard = self.node.clients[client].place.map_or(0, |(shard, _)| shard);
                let most = if self.chance.percent(80) {
                    usize::MAX
                } else {
                    self.chance.between(1, 60) as usize
                };
                let takes = !self.node.clients[client].leaving.is_empty() && self.chance.percent(60);
                if takes || self.node.clients[client].unread.is_empty() {
                    self.node.kernel_takes(client, most);
                } else {
                    self.node.arrive(client, most);
                }
                self.stepped(shard);
            }
        }
        true
    }

    fn end_task(&mut self, at: usize) {
        let InFlight {
            shard,
            id,
            task,
            begun,
            told,
            ..
        } = self.in_flight.remove(at);
        let result = self.disk.end(&mut self.chance, self.moment, &task, begun);
        if traces() {
            let text = format!("{task:?}");
            eprintln!(
                "{} shard {shard} #{id} {} -> {}",
                self.moment,
                text.chars().take(140).collect::<String>(),
                format!("{result:?}").chars().take(30).collect::<String>()
            );
        }
        if !told {
            self.node.disk_done(shard, id, result);
            self.stepped(shard);
        }
    }

    /// A client or somebody else did something with the node.
    pub fn stepped(&mut self, shard: ShardNo) {
        self.owed_ticks[usize::from(shard)] = true;
        self.looked_after(shard);
    }

    fn looked_after(&mut self, shard: ShardNo) {
        // Not in the middle of a log that is read.
        if self.serves() && self.moment.is_multiple_of(CHECK_EVERY) {
            self.node.shards[usize::from(shard)].check();
        }
        for line in &self.node.log[self.seen_log..] {
            match line.as_str() {
                "the log is on" => self.is_on = true,
                line if line.starts_with("the log is off") => self.is_on = false,
                _ => {}
            }
        }
        if traces() {
            for line in &self.node.log[self.seen_log..] {
                eprintln!("{} log: {line}", self.moment);
            }
        }
        if self.is_on {
            self.node.now.wall_us += std::mem::take(&mut self.slow_us);
        }
        self.seen_log = self.node.log.len();
        self.begin_tasks();
    }

    fn begin_tasks(&mut self) {
        if self.node.died.is_some() {
            // The process ends before it does anything of that.
            self.node.tasks.clear();
        }
        for (shard, id, task) in std::mem::take(&mut self.node.tasks) {
            self.last_task = kind_of(&task);
            let begun = self.disk.begin(&task);
            let (least, most) = self.delay_us;
            let due_us = self.now_us() + self.chance.between(least, most);
            let early = self.disk.plant == Plant::EarlyWrites
                && matches!(&task, DiskTask::Segment(_, Action::Write { .. }));
            self.in_flight.push(InFlight {
                due_us: due_us + if early { 40_000 } else { 0 },
                shard,
                id,
                task,
                begun,
                told: early,
            });
            if early {
                self.node.disk_done(shard, id, Ok(Done::Done));
                self.stepped(shard);
            }
        }
    }

    /// What the disk holds when it ends now. The disk of this machine stays as it is.
    pub fn ends_now(&self, end: End, chance: &mut Chance) -> Disk {
        let mut disk = self.disk.clone();
        disk.faults = Default::default();
        for InFlight { task, .. } in &self.in_flight {
            disk.interrupt(chance, task);
        }
        if end == End::PowerLoss {
            disk.lose_power(chance);
        }
        disk
    }

    /// Up to which moment all that a shard told survives the loss of power, whatever `appendfsync` says.
    pub fn horizon(&self, end: End, shard: ShardNo) -> u64 {
        let Some(current) = self.disk.current().filter(|_| end == End::PowerLoss) else {
            return u64::MAX;
        };
        self.disk
            .unsynced_since(current.generation, shard)
            .map_or(u64::MAX, |moment| moment - 1)
    }
}

fn kind_of(task: &DiskTask) -> &'static str {
    match task {
        DiskTask::Segment(_, Action::Read { .. }) => "read",
        DiskTask::Segment(_, Action::Create { .. }) => "create",
        DiskTask::Segment(_, Action::Write { .. }) => "write",
        DiskTask::Segment(_, Action::Sync { .. }) => "sync",
        DiskTask::Segment(_, Action::Unlink { .. } | Action::SyncFolder) => "unlink",
        DiskTask::Repair(..) => "repair",
        DiskTask::Generation(SwitchStep::MakeFolder(_)) => "make folder",
        DiskTask::Generation(SwitchStep::DeleteFolder(_)) => "delete folder",
        DiskTask::Generation(_) => "switch",
    }
}
