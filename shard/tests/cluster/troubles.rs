//! What goes wrong in a run, and when: bad networks, partitions, nodes that die.
//!
//! ```text
//! calm -> bad network --------> calm ...
//!      -> partition ----------> calm ...
//!      -> nodes die (a burst) -> they start again, the network is whole, repair has its time -> calm ...
//! ```

use crate::ledger::Ledger;
use crate::network::Path;
use crate::support::{Chance, End};
use crate::world::World;

/// What a run is made to go through.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    Quiet,
    Lossy,
    Partitions,
    Crashes,
    All,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Calm,
    Bad,
    Parted,
    Burst,
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
    /// Nodes to be started again.
    restarts: Vec<(u64, usize)>,
    /// None has died in this burst.
    first: bool,
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
            restarts: Vec::new(),
            first: true,
        }
    }

    /// Nothing much happens: repair has its time.
    pub fn is_long(&self) -> bool {
        self.phase == Phase::Repair
    }

    /// What is due happens; the nodes that died.
    pub fn step(&mut self, chance: &mut Chance, world: &mut World, ledger: &mut Ledger) -> Vec<usize> {
        let now_us = world.now_us();
        let killed = self.kill_some(chance, world, ledger);
        let (due, later) = self.restarts.iter().partition(|(due_us, _)| *due_us <= now_us);
        self.restarts = later;
        let due: Vec<(u64, usize)> = due;
        for (_, host) in due {
            world.start(host);
            ledger.count("restarts");
        }
        if now_us >= self.until_us {
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
            let down_us = match chance.below(3) {
                0 => chance.between(10_000, 1_500_000),
                1 => chance.between(world.registry.timeout_us, 2 * world.registry.timeout_us),
                _ => world.registry.repair_after_us + chance.between(0, 20_000_000),
            };
            self.restarts.push((now_us + down_us, host));
        }
        killed
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
                self.phase = Phase::Repair;
                let registry = &world.registry;
                self.until_us = now_us + registry.timeout_us + registry.repair_after_us + 30_000_000;
            }
            Phase::Burst => {
                let waits = self
                    .doomed
                    .iter()
                    .chain(&self.restarts)
                    .map(|(due_us, _)| *due_us);
                self.until_us = waits.max().unwrap_or(now_us) + 1;
            }
            Phase::Repair => {
                self.phase = Phase::Calm;
                self.until_us = now_us + chance.between(1_000_000, 10_000_000);
            }
        }
    }

    fn begin(&mut self, chance: &mut Chance, world: &mut World, ledger: &mut Ledger) {
        let now_us = world.now_us();
        let next = match self.class {
            Class::Quiet => Phase::Calm,
            Class::Lossy => Phase::Bad,
            Class::Partitions => Phase::Parted,
            Class::Crashes => Phase::Burst,
            Class::All => *chance.pick(&[Phase::Bad, Phase::Parted, Phase::Burst, Phase::Burst]),
        };
        self.phase = next;
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
        }
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

    /// No trouble any more: the network is whole, and every node is up.
    pub fn end(&mut self, chance: &mut Chance, world: &mut World) {
        self.make_whole(chance, world);
        self.doomed.clear();
        self.restarts.clear();
        for host in 0..world.hosts.len() {
            if world.hosts[host].machine.is_none() {
                world.start(host);
            }
        }
    }
}
