//! What goes wrong in a run, and when: bad networks, partitions, nodes that die, disks that fail; and what its operator does.
//!
//! ```text
//! calm -> bad network --------> calm ...
//!      -> partition ----------> calm ...
//!      -> disks fail -----------\
//!      -> nodes die (a burst) --+-> they start again, the network is whole, repair has its time -> calm ...
//!      -> all nodes die, one after the other: each time it starts again, and repair has its time -> calm ...
//!      -> FORGET, RESET -----------------------------------------------> repair has its time -> calm ...
//!      -> LEAVING, until nothing is left ------------------------------> repair has its time -> calm ...
//! ```

use crate::ledger::Ledger;
use crate::network::Path;
use crate::operator::Deed;
use crate::support::{Chance, End, Faults};
use crate::world::World;

/// What a run is made to go through.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    Quiet,
    Lossy,
    Partitions,
    Crashes,
    /// Disks fail and lose what was not synced.
    Disks,
    /// The operator makes nodes leave, forget each other, and resets them.
    Changes,
    All,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Calm,
    Bad,
    Parted,
    Burst,
    Rolling,
    Disks,
    Changed,
    Leaving,
    Repair,
}

/// The troubles of a run.
pub struct Troubles {
    class: Class,
    phase: Phase,
    until_us: u64,
    /// The network as it is when nothing is wrong.
    path: Path,
    /// When it became whole.
    whole_us: u64,
    /// Nodes that may be lost in a burst.
    budget: u64,
    /// Nodes still to die in this burst.
    doomed: Vec<(u64, usize)>,
    /// Nodes still to die one after the other, each once what the one before took along is made up for.
    rolling: Vec<usize>,
    /// Nodes to be started again.
    restarts: Vec<(u64, usize)>,
    /// None has died in this burst.
    first: bool,
    /// How many have begun.
    pub begun: u64,
    /// What the operator is to do now.
    pub deed: Option<Deed>,
}

impl Troubles {
    pub fn new(chance: &mut Chance, class: Class, path: Path, world: &World) -> Self {
        let most = (world.hosts.len() as u64).saturating_sub(1).clamp(1, 3);
        Self {
            class,
            phase: Phase::Calm,
            until_us: world.now_us() + chance.between(500_000, 8_000_000),
            path,
            whole_us: world.now_us(),
            budget: chance.between(1, most),
            doomed: Vec::new(),
            rolling: Vec::new(),
            restarts: Vec::new(),
            first: true,
            begun: 0,
            deed: None,
        }
    }

    /// Nothing much happens: repair has its time, or a node gives away what it has.
    pub fn is_long(&self) -> bool {
        matches!(self.phase, Phase::Repair | Phase::Leaving) || self.is_rolling()
    }

    /// Nodes die one after the other: a job that outlives all its first holders shows whether they are made up for.
    pub fn is_rolling(&self) -> bool {
        !self.rolling.is_empty()
    }

    /// When the network became whole, and nodes know each other.
    pub fn whole_us(&self) -> u64 {
        self.whole_us
    }

    /// What is due happens; the nodes that died.
    pub fn step(
        &mut self,
        chance: &mut Chance,
        world: &mut World,
        ledger: &mut Ledger,
        is_leaving: bool,
    ) -> Vec<usize> {
        let now_us = world.now_us();
        let killed = self.kill_some(chance, world, ledger);
        let (due, later) = self.restarts.iter().partition(|(due_us, _)| *due_us <= now_us);
        self.restarts = later;
        let due: Vec<(u64, usize)> = due;
        for (_, host) in due {
            world.start(host);
            ledger.count("restarts");
        }
        if now_us >= self.until_us && !(self.phase == Phase::Leaving && is_leaving) {
            self.turn(chance, world, ledger);
        }
        killed
    }

    fn kill_some(&mut self, chance: &mut Chance, world: &mut World, ledger: &mut Ledger) -> Vec<usize> {
        let now_us = world.now_us();
        let (due, later) = self.doomed.iter().partition(|(due_us, _)| *due_us <= now_us);
        self.doomed = later;
        let due: Vec<(u64, usize)> = due;
        let mut killed = Vec::new();
        for (_, host) in due {
            let end = *chance.pick(&[End::Kill, End::PowerLoss]);
            if world.kill(host, end) {
                ledger.lost_a_node(std::mem::take(&mut self.first), self.whole_us, now_us);
            }
            killed.push(host);
            self.start_again(chance, world, host);
            // Some nodes that are down are given up, and come back all the same.
            let up = world.up();
            if self.class == Class::All && chance.percent(20) && !up.is_empty() {
                let at = *chance.pick(&up);
                self.deed = Some(Deed::Forget { at, whom: host });
            }
        }
        killed
    }

    /// A node is down for a while.
    fn start_again(&mut self, chance: &mut Chance, world: &World, host: usize) {
        let down_us = match chance.below(3) {
            0 => chance.between(10_000, 1_500_000),
            1 => chance.between(world.timeout_us, 2 * world.timeout_us),
            _ => world.repair_after_us + chance.between(0, 20_000_000),
        };
        self.restarts.push((world.now_us() + down_us, host));
    }

    /// A node that nothing is lost with ends.
    pub fn switch_off(&mut self, chance: &mut Chance, world: &mut World, host: usize) {
        world.kill(host, End::PowerLoss);
        self.start_again(chance, world, host);
    }

    /// A node has ended itself, since a sync of its disk failed: what no sync had covered is lost.
    pub fn fell(&mut self, chance: &mut Chance, world: &mut World, ledger: &mut Ledger, host: usize) {
        ledger.count("fell");
        if world.kill(host, End::PowerLoss) {
            ledger.lost_a_node(std::mem::take(&mut self.first), self.whole_us, world.now_us());
        }
        self.start_again(chance, world, host);
    }

    fn turn(&mut self, chance: &mut Chance, world: &mut World, ledger: &mut Ledger) {
        let now_us = world.now_us();
        match self.phase {
            Phase::Calm => self.begin(chance, world, ledger),
            Phase::Bad | Phase::Parted => {
                self.make_whole(chance, world);
                self.phase = Phase::Calm;
                self.until_us = now_us + chance.between(1_000_000, 15_000_000);
            }
            Phase::Burst if self.doomed.is_empty() && self.restarts.is_empty() => {
                self.make_whole(chance, world);
                self.repair(world);
            }
            Phase::Changed | Phase::Leaving if self.restarts.is_empty() => self.repair(world),
            Phase::Disks => {
                self.make_disks_whole(world);
                self.phase = Phase::Burst;
            }
            Phase::Burst | Phase::Rolling | Phase::Changed | Phase::Leaving => {
                let waits = self
                    .doomed
                    .iter()
                    .chain(&self.restarts)
                    .map(|(due_us, _)| *due_us);
                self.until_us = waits.max().unwrap_or(now_us) + 1;
            }
            Phase::Repair if self.is_rolling() => self.roll(chance, world),
            Phase::Repair => {
                self.phase = Phase::Calm;
                self.until_us = now_us + chance.between(1_000_000, 10_000_000);
            }
        }
    }

    /// All is done: what is missing is to be made up for.
    fn repair(&mut self, world: &World) {
        self.whole_us = world.now_us();
        self.phase = Phase::Repair;
        self.until_us = world.now_us() + world.timeout_us + world.repair_after_us + 30_000_000;
    }

    fn begin(&mut self, chance: &mut Chance, world: &mut World, ledger: &mut Ledger) {
        let now_us = world.now_us();
        let next = match self.class {
            Class::Quiet => Phase::Calm,
            Class::Lossy => Phase::Bad,
            Class::Partitions => Phase::Parted,
            Class::Crashes => *chance.pick(&[Phase::Burst, Phase::Burst, Phase::Rolling]),
            Class::Disks => *chance.pick(&[Phase::Disks, Phase::Burst]),
            Class::Changes => *chance.pick(&[Phase::Changed, Phase::Leaving]),
            Class::All => *chance.pick(&[
                Phase::Bad,
                Phase::Parted,
                Phase::Burst,
                Phase::Burst,
                Phase::Rolling,
                Phase::Disks,
                Phase::Changed,
                Phase::Leaving,
            ]),
        };
        self.phase = next;
        self.begun += 1;
        self.until_us = now_us;
        match next {
            Phase::Calm | Phase::Repair => self.until_us = u64::MAX,
            Phase::Bad => {
                ledger.count("bad networks");
                self.spoil(chance, world);
                self.until_us += chance.between(2_000_000, 40_000_000);
            }
            Phase::Parted => {
                ledger.count("partitions");
                self.part(chance, world);
                self.until_us += *chance.pick(&[300_000, 3_000_000, 20_000_000, 60_000_000]);
            }
            Phase::Burst => {
                self.first = true;
                self.doom(chance, world);
                if self.class == Class::All && chance.percent(30) {
                    self.part(chance, world);
                    self.until_us += chance.between(0, 20_000_000);
                }
            }
            Phase::Rolling => {
                ledger.count("nodes die in turn");
                self.rolling = world.up();
                self.roll(chance, world);
            }
            Phase::Disks => {
                self.first = true;
                ledger.count("bad disks");
                self.spoil_disks(chance, world);
                self.until_us += chance.between(1_000_000, 20_000_000);
            }
            Phase::Changed => self.deed = self.change_nodes(chance, world),
            Phase::Leaving => {
                let up = world.up();
                self.deed = (up.len() > 1).then(|| Deed::Leave {
                    at: *chance.pick(&up),
                });
            }
        }
    }

    fn change_nodes(&mut self, chance: &mut Chance, world: &mut World) -> Option<Deed> {
        let up = world.up();
        let at = *up.get(chance.below(up.len().max(1)))?;
        if chance.percent(50) {
            return Some(Deed::Reset {
                at,
                hard: chance.percent(50),
            });
        }
        let whom = *chance.pick(&up);
        (at != whom).then_some(Deed::Forget { at, whom })
    }

    /// Some disks fail now and then. A failed sync ends a process, and no more of them may end than may be lost.
    fn spoil_disks(&mut self, chance: &mut Chance, world: &mut World) {
        let mut up = world.up();
        for _ in 0..self.budget {
            if up.is_empty() {
                return;
            }
            let host = up.swap_remove(chance.below(up.len()));
            let syncs = world.hosts[host].plan.settings.appendfsync != "no";
            world.node(host).disk.faults = Faults {
                write: *chance.pick(&[0, 5, 30]),
                sync: if syncs { *chance.pick(&[0, 0, 2]) } else { 0 },
                unlink: *chance.pick(&[0, 30]),
                read: *chance.pick(&[0, 5]),
                create: *chance.pick(&[0, 30]),
                capacity: *chance.pick(&[None, Some(40 << 10), Some(200 << 10)]),
                ..Faults::default()
            };
        }
    }

    /// The next of those that die one after the other does.
    fn roll(&mut self, chance: &mut Chance, world: &World) {
        self.first = true;
        let host = self.rolling.swap_remove(chance.below(self.rolling.len()));
        if world.hosts[host].machine.is_some() {
            self.doomed
                .push((world.now_us() + chance.between(0, 3_000_000), host));
        }
        self.phase = Phase::Burst;
        self.until_us = world.now_us();
    }

    fn doom(&mut self, chance: &mut Chance, world: &World) {
        let mut up = world.up();
        let count = chance.between(1, self.budget);
        for _ in 0..count {
            if up.is_empty() {
                break;
            }
            let host = up.swap_remove(chance.below(up.len()));
            self.doomed
                .push((world.now_us() + chance.between(0, 3_000_000), host));
        }
    }

    /// All or some of the ways lose, double, mix up and delay messages.
    fn spoil(&mut self, chance: &mut Chance, world: &mut World) {
        let share = *chance.pick(&[20, 50, 100]);
        let (lost, doubled, astray) = (
            *chance.pick(&[0, 2, 10, 30]),
            *chance.pick(&[0, 5, 30]),
            *chance.pick(&[0, 5, 30]),
        );
        let slow = *chance.pick(&[1, 1, 10, 100]);
        self.change(chance, world, |chance, path| {
            if chance.percent(share) {
                path.least_us *= slow;
                path.most_us = (path.most_us * slow).min(2_000_000);
                path.least_us = path.least_us.min(path.most_us);
                (path.lost, path.doubled, path.astray) = (lost, doubled, astray);
            }
        });
    }

    /// Two halves, one node alone, or some ways in one direction only.
    fn part(&mut self, chance: &mut Chance, world: &mut World) {
        let hosts = world.hosts.len();
        let side: Vec<bool> = (0..hosts).map(|_| chance.percent(50)).collect();
        let lone = chance.below(hosts);
        let (manner, one_way, holds) = (chance.below(3), chance.percent(30), chance.percent(50));
        for from in 0..hosts {
            for to in 0..hosts {
                let apart = match manner {
                    0 => side[from] != side[to],
                    1 => (from == lone) != (to == lone),
                    _ => chance.percent(25),
                };
                let cut = apart && from != to && !(one_way && from > to);
                let path = Path {
                    cut,
                    holds,
                    ..self.path
                };
                world.set_path(from, to, path);
            }
        }
    }

    fn change(&self, chance: &mut Chance, world: &mut World, mut how: impl FnMut(&mut Chance, &mut Path)) {
        let hosts = world.hosts.len();
        for from in 0..hosts {
            for to in 0..hosts {
                let mut path = self.path;
                how(chance, &mut path);
                world.set_path(from, to, path);
            }
        }
    }

    fn make_whole(&mut self, chance: &mut Chance, world: &mut World) {
        self.change(chance, world, |_, _| {});
        self.whole_us = world.now_us();
    }

    fn make_disks_whole(&self, world: &mut World) {
        for machine in world.hosts.iter_mut().filter_map(|host| host.machine.as_mut()) {
            machine.disk.faults = Faults::default();
        }
    }

    /// No trouble any more: the network is whole, and every node is up.
    pub fn end(&mut self, chance: &mut Chance, world: &mut World) {
        self.make_whole(chance, world);
        self.doomed.clear();
        self.rolling.clear();
        self.restarts.clear();
        self.make_disks_whole(world);
        for host in 0..world.hosts.len() {
            if world.hosts[host].machine.is_none() {
                world.start(host);
            }
        }
    }
}
