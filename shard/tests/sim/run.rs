//! A run: lives of a node, one after the other, from one seed.

mod quiet;

use std::collections::{BTreeMap, VecDeque};

use shard::clock::Now;
use shard::log::StartPlan;
use shard::settings::Settings;
use shard::shard::NodeFacts;
use shard::slot::Slot;

use crate::ledger::{Ledger, Open};
use crate::load::{Kind, Load, Taste};
use crate::support::{ALONE, Birth, Chance, Disk, End, Faults, Machine, Plant, request, traces};
use crate::visit::Visitor;

/// How long a start may take, virtual time.
const START_US: u64 = 120_000_000;

/// What happened how often.
pub type Tally = BTreeMap<&'static str, u64>;

/// A client at work.
struct Actor {
    client: usize,
    under_way: VecDeque<Open>,
}

/// A run.
pub struct Run {
    chance: Chance,
    load: Load,
    ledger: Ledger,
    actors: Vec<Actor>,
    /// Clocks where the next life begins.
    now: Now,
    boot_id: u8,
    moment: u64,
    shards: u16,
    /// Of each queue: what the last ends of the node left of what was told.
    horizons: Vec<u64>,
    powerless: bool,
    pub tally: Tally,
}

impl Run {
    pub fn new(seed: u64) -> Self {
        let mut chance = Chance::new(seed);
        let queues: Vec<String> = (0..chance.between(2, 5)).map(|at| format!("q{at}")).collect();
        let taste = Taste {
            once: *chance.pick(&[10, 30, 60]),
            blocking: *chance.pick(&[0, 10, 50]),
            pauses: *chance.pick(&[0, 10, 40]),
            flushes: *chance.pick(&[0, 0, 5]),
            configs: *chance.pick(&[0, 10, 40]),
            switches: chance.percent(35),
            big: *chance.pick(&[0, 0, 10]),
        };
        Self {
            ledger: Ledger::new(queues.clone()),
            horizons: vec![u64::MAX; queues.len()],
            load: Load::new(queues, taste),
            chance,
            actors: Vec::new(),
            now: Now {
                mono_us: 5_000_000,
                wall_us: 1_700_000_000_000_000,
            },
            boot_id: 1,
            moment: 1,
            shards: 1,
            powerless: false,
            tally: Tally::new(),
        }
    }

    /// Lives of a node; what went wrong.
    pub fn run(&mut self, plant: Plant, flips: bool) -> Result<(), String> {
        let mut disk = Disk::new(plant);
        for _ in 0..self.chance.between(2, 4) {
            let mut machine = self.start(disk)?;
            self.visit(&mut machine)?;
            self.work(&mut machine)?;
            disk = self.end(machine)?;
            if flips && self.chance.percent(60) {
                return self.flipped(&disk);
            }
        }
        let mut machine = self.start(disk)?;
        self.visit(&mut machine)
    }

    fn count(&mut self, what: &'static str) {
        *self.tally.entry(what).or_default() += 1;
    }

    fn birth(&mut self) -> Birth {
        let appendonly = !(self.load.taste.switches && self.chance.percent(10));
        let appendfsync: &&str = self.chance.pick(&["always", "everysec", "everysec", "no"]);
        let settings = Settings {
            maxmemory: 0,
            appendonly,
            appendfsync,
            aof_segment_bytes: *self.chance.pick(&[8 << 10, 16 << 10, 64 << 10]),
            aof_rewrite_percentage: *self.chance.pick(&[0, 1, 20, 100]),
            aof_rewrite_min_bytes: *self.chance.pick(&[1 << 10, 32 << 10]),
            ..Settings::default()
        };
        if self.chance.percent(40) {
            self.shards = self.chance.between(1, 3) as u16;
        }
        Birth {
            node: ALONE,
            shards: self.shards,
            settings,
            now: self.now,
            boot_id: self.boot_id,
            seed: self.chance.next(),
            facts: NodeFacts::default(),
        }
    }

    /// Starts the node, sometimes not at the first try.
    fn start(&mut self, mut disk: Disk) -> Result<Machine, String> {
        for attempt in 0.. {
            let birth = self.birth();
            let fails = attempt < 3 && self.chance.percent(10);
            if fails {
                disk.faults = faults_of_a_start(&mut self.chance);
            }
            let crash_in = (attempt < 3 && self.chance.percent(30)).then(|| self.chance.between(1, 400));
            let mut machine = match Machine::start(disk, &birth, self.moment) {
                Ok(machine) => machine,
                Err(why) => return Err(format!("does not start: {why}")),
            };
            if !birth.settings.appendonly {
                self.ledger.nothing_is_kept(self.moment);
            }
            self.serve(&mut machine, crash_in)?;
            self.moment = machine.moment;
            if !machine.has_ended() && machine.serves() {
                self.begin_life(&mut machine, &birth);
                return Ok(machine);
            }
            if let Some(why) = &machine.node.died
                && machine.disk.failed == 0
            {
                return Err(format!("the start fails: {why}"));
            }
            self.count(phase(&machine));
            if std::mem::take(&mut machine.disk.failed) > 0 {
                self.count("failing start");
            }
            let mut end = *self.chance.pick(&[End::Kill, End::PowerLoss]);
            if machine.node.died.is_some() {
                end = End::PowerLoss;
            }
            disk = self.fall(&machine, end);
        }
        unreachable!("the last attempt is not disturbed")
    }

    /// Lets a node start, up to its death.
    fn serve(&mut self, machine: &mut Machine, crash_in: Option<u64>) -> Result<(), String> {
        let end_us = machine.now_us() + START_US;
        let mut events = 0;
        while !machine.serves() {
            events += 1;
            if crash_in.is_some_and(|crash_in| events > crash_in) {
                return Ok(());
            }
            if !machine.event(end_us) {
                if machine.has_ended() {
                    return Ok(());
                }
                return Err(format!("the start does not end, {:?}", machine.plan));
            }
        }
        Ok(())
    }

    fn begin_life(&mut self, machine: &mut Machine, birth: &Birth) {
        machine.disk.faults = Faults::default();
        let had_faults = std::mem::take(&mut machine.disk.failed) > 0;
        match machine.plan {
            StartPlan::Reshard { from, to } if to.shards > from.shards => self.count("more shards"),
            StartPlan::Reshard { .. } => self.count("fewer shards"),
            StartPlan::Load(_) => self.count("loaded"),
            _ => self.count("no log"),
        }
        if machine
            .node
            .log
            .iter()
            .any(|line| line.contains("torn tail is cut"))
        {
            self.count("cut");
        }
        let homes = self.homes(birth.shards);
        self.ledger
            .begin_life(machine.moment, birth.settings.appendfsync, homes);
        // What failed while the log began may keep it from growing for a while.
        self.ledger.faulty = had_faults;
    }

    fn homes(&self, shards: u16) -> Vec<u16> {
        self.load
            .queues
            .iter()
            .map(|queue| Slot::of_queue(queue.as_bytes()).home(shards))
            .collect()
    }

    /// What is there is what was told.
    fn visit(&mut self, machine: &mut Machine) -> Result<(), String> {
        let sight = Visitor::new(machine).look(&self.load.queues)?;
        self.ledger.check(&sight, &self.horizons, self.powerless)?;
        self.moment = machine.moment;
        self.ledger.rebase(&sight, self.moment, self.powerless);
        self.horizons.fill(u64::MAX);
        self.powerless = false;
        self.count("starts");
        Ok(())
    }

    fn work(&mut self, machine: &mut Machine) -> Result<(), String> {
        for _ in 0..self.chance.between(1, 4) {
            self.connect(machine);
        }
        let mut probes = self.chance.below(3);
        let fails = self.chance.percent(30);
        let mut events_left = self.chance.between(200, 4_000);
        while events_left > 0 && !machine.has_ended() {
            if fails && self.chance.percent(3) {
                self.disturb(machine);
            }
            for _ in 0..self.chance.between(0, 3) {
                self.send(machine);
            }
            if self.chance.percent(1) {
                let at = self.chance.below(self.actors.len());
                self.leave(machine, at)?;
                self.connect(machine);
            }
            let us = match self.chance.below(50) {
                0 => self.chance.between(200_000, 3_000_000),
                1..10 => self.chance.between(5_000, 60_000),
                _ => self.chance.between(0, 3_000),
            };
            let end_us = machine.now_us() + us;
            while events_left > 0 && machine.event(end_us) {
                events_left -= 1;
                let told = self.read(machine)?;
                if probes > 0 && self.chance.percent(if told { 5 } else { 0 }) {
                    probes -= 1;
                    self.probe(machine)?;
                }
            }
            events_left = events_left.saturating_sub(1);
        }
        if self.chance.percent(10) {
            self.be_quiet(machine)?;
        }
        Ok(())
    }

    fn disturb(&mut self, machine: &mut Machine) {
        machine.disk.faults = if self.chance.percent(50) {
            Faults::default()
        } else {
            faults_of_a_life(&mut self.chance)
        };
        self.ledger.faulty |= machine.disk.faults.any();
    }

    fn connect(&mut self, machine: &mut Machine) {
        let client = machine.node.connect();
        machine.stepped(0);
        self.actors.push(Actor {
            client,
            under_way: VecDeque::new(),
        });
    }

    fn send(&mut self, machine: &mut Machine) {
        let at = self.chance.below(self.actors.len());
        let actor = &mut self.actors[at];
        if actor.under_way.len() >= 3 || !machine.node.clients[actor.client].open {
            return;
        }
        let ids = self.ledger.living();
        let (kind, bytes) = self.load.command(&mut self.chance, &ids);
        let made = match &kind {
            Kind::Add(number) => self.load.made.get(number),
            _ => None,
        };
        if traces() {
            let text = bytes.escape_ascii().to_string();
            eprintln!(
                "{} client {} sends {}",
                machine.moment,
                actor.client,
                text.chars().take(150).collect::<String>()
            );
        }
        let open = self.ledger.sent(kind, made, machine.moment, machine.wall_us());
        machine.node.send(actor.client, &bytes);
        actor.under_way.push_back(open);
    }

    /// Reads what has come; whether a whole reply has.
    fn read(&mut self, machine: &mut Machine) -> Result<bool, String> {
        let mut told = false;
        for at in 0..self.actors.len() {
            let client = self.actors[at].client;
            while let Some(reply) = machine.node.clients[client].next_reply() {
                let open = self.actors[at].under_way.pop_front();
                let open = open.ok_or_else(|| format!("client {client} got {reply} without asking"))?;
                if traces() {
                    let text = reply.to_string();
                    eprintln!(
                        "{} client {client} reads {}",
                        machine.moment,
                        text.chars().take(200).collect::<String>()
                    );
                }
                self.ledger
                    .replied(open, &reply, machine.moment, machine.wall_us())?;
                told = true;
            }
        }
        Ok(told)
    }

    fn leave(&mut self, machine: &mut Machine, at: usize) -> Result<(), String> {
        let actor = self.actors.swap_remove(at);
        let shard = machine.node.clients[actor.client]
            .place
            .map_or(0, |(shard, _)| shard);
        machine.node.disconnect(actor.client);
        machine.stepped(shard);
        abandon(&mut self.ledger, machine, &actor)
    }

    /// Starts a copy of what the disk would hold if the node ended now, and looks whether it is what was told.
    fn probe(&mut self, machine: &Machine) -> Result<(), String> {
        let end = *self.chance.pick(&[End::Kill, End::PowerLoss]);
        let mut ledger = self.ledger.clone();
        for actor in &self.actors {
            abandon(&mut ledger, machine, actor)?;
        }
        self.conclude(&mut ledger, machine);
        let mut chance = Chance::new(self.chance.next());
        let disk = machine.ends_now(end, &mut chance);
        let horizons = self.horizons_of(machine, end);
        let powerless = end == End::PowerLoss;
        let down_us = chance.between(0, 1_000_000);
        let mut birth = self.birth();
        birth.settings.appendonly = true;
        birth.now = Now {
            mono_us: 1_000_000 + chance.between(0, 1_000_000_000),
            wall_us: machine.wall_us() + down_us,
        };
        self.shards = machine.node.count();
        let mut copy = Machine::start(disk, &birth, machine.moment)?;
        self.serve(&mut copy, None)?;
        if let Some(why) = &copy.node.died {
            return Err(format!("a copy does not start: {why}"));
        }
        let mut visitor = Visitor::new(&mut copy);
        let sight = visitor.look(&self.load.queues)?;
        ledger.check(&sight, &horizons, powerless).map_err(|why| {
            format!(
                "{end:?} at {}, {:?}: {why}\n{}",
                machine.moment,
                copy.plan,
                copy.node.log.join("\n")
            )
        })?;
        self.count(if powerless {
            "probes of power loss"
        } else {
            "probes of kill"
        });
        if self.chance.percent(50) {
            ledger.rebase(&sight, copy.moment, powerless);
            Visitor::new(&mut copy).drain(&sight, &ledger, &self.load.queues)?;
            self.count("drains");
        }
        Ok(())
    }

    fn conclude(&self, ledger: &mut Ledger, machine: &Machine) {
        ledger.ended(machine.moment);
        if !machine.is_on || ledger.promises.off_asked() {
            ledger.nothing_is_kept(machine.moment);
        }
    }

    fn horizons_of(&self, machine: &Machine, end: End) -> Vec<u64> {
        let shards = machine.disk.current().map_or(1, |current| current.shards);
        let homes = self.homes(shards);
        homes
            .into_iter()
            .map(|shard| machine.horizon(end, shard))
            .collect()
    }

    /// The end of a life, one way or another.
    fn end(&mut self, mut machine: Machine) -> Result<Disk, String> {
        let mut end = *self.chance.pick(&[End::Kill, End::PowerLoss]);
        if machine.node.died.is_none() && self.chance.percent(30) {
            self.stop(&mut machine)?;
        }
        if let Some(why) = machine.node.died.clone() {
            if machine.disk.failed == 0 {
                return Err(format!("the node died: {why}"));
            }
            self.count("died");
            end = End::PowerLoss;
        }
        for at in 0..self.actors.len() {
            abandon(&mut self.ledger, &machine, &self.actors[at])?;
        }
        self.actors.clear();
        let mut ledger = std::mem::replace(&mut self.ledger, Ledger::new(Vec::new()));
        self.conclude(&mut ledger, &machine);
        self.ledger = ledger;
        self.note_life(&machine, end);
        self.moment = machine.moment;
        Ok(self.fall(&machine, end))
    }

    /// SIGTERM or SHUTDOWN.
    fn stop(&mut self, machine: &mut Machine) -> Result<(), String> {
        machine.disk.faults = Faults::default();
        let saves = self.chance.percent(70);
        if self.chance.percent(50) && saves {
            machine.node.stop();
            machine.stepped(0);
        } else {
            self.connect(machine);
            let word = if saves { "NOW" } else { "NOSAVE" };
            let actor = self.actors.last_mut().expect("it has connected");
            let open = self
                .ledger
                .sent(Kind::Shutdown, None, machine.moment, machine.wall_us());
            machine.node.send(actor.client, &request(&["SHUTDOWN", word]));
            actor.under_way.push_back(open);
        }
        let end_us = machine.now_us() + 60_000_000;
        while machine.event(end_us) {
            self.read(machine)?;
        }
        if !machine.has_ended() {
            return Err("the stop does not end".into());
        }
        let mark = !machine
            .node
            .log
            .iter()
            .any(|line| line.contains("without the last mark"));
        if saves && mark && machine.is_on && machine.node.died.is_none() {
            self.ledger.stopped_in_order(machine.moment);
            self.count("orderly stops");
            let survives = self
                .horizons_of(machine, End::PowerLoss)
                .iter()
                .all(|&horizon| horizon == u64::MAX);
            if !survives {
                return Err("an orderly stop left something unsynced".into());
            }
        } else {
            self.count("stops without a mark");
        }
        Ok(())
    }

    /// The node ends now. What the disk holds then.
    fn fall(&mut self, machine: &Machine, end: End) -> Disk {
        let horizons = self.horizons_of(machine, end);
        for (known, horizon) in self.horizons.iter_mut().zip(horizons) {
            *known = (*known).min(horizon);
        }
        if end == End::PowerLoss {
            self.boot_id += 1;
            self.powerless = true;
        }
        let down_us = *self.chance.pick(&[0, 100_000, 2_000_000]);
        self.now = Now {
            mono_us: 1_000_000 + self.chance.between(0, 1_000_000_000),
            wall_us: machine.wall_us() + down_us,
        };
        let mut disk = machine.ends_now(end, &mut self.chance);
        disk.forget_faults();
        disk
    }

    fn note_life(&mut self, machine: &Machine, end: End) {
        self.count(match end {
            End::Kill => "kills",
            End::PowerLoss => "power losses",
        });
        let ledger = (self.ledger.misconf, self.ledger.told);
        let log = &machine.node.log;
        let count = |what: &str| log.iter().filter(|line| line.contains(what)).count() as u64;
        for (what, count) in [
            ("-MISCONF", ledger.0),
            ("told", ledger.1),
            ("failed writes", count("Errors writing to the log")),
            ("switched on", count("the log is on").saturating_sub(1)),
            ("switched off", count("the log is off")),
            ("segments unlinked", machine.disk.unlinked),
        ] {
            let total = self.tally.entry(what).or_default();
            *total = if what == "-MISCONF" || what == "told" {
                count
            } else {
                *total + count
            };
        }
        if !machine.is_on && machine.node.shards[0].settings().appendonly {
            self.count("end while switching on");
        }
    }

    /// Bits have flipped: the start names what is wrong, or what it cut, or nothing is missing.
    fn flipped(&mut self, disk: &Disk) -> Result<(), String> {
        let mut disk = disk.clone();
        let count = 1 + self.chance.below(3);
        disk.flip_bits(&mut self.chance, count);
        let mut birth = self.birth();
        birth.settings.appendonly = true;
        self.count("flips");
        let names = |why: &str| (why.contains("shard-") || why.contains("CURRENT")) && why.contains("offset");
        let mut machine = match Machine::start(disk, &birth, self.moment) {
            Ok(machine) => machine,
            Err(why) if names(&why) => {
                self.count("flips that stop a start");
                return Ok(());
            }
            Err(why) => return Err(format!("does not say where: {why}")),
        };
        self.serve(&mut machine, None)?;
        if let Some(why) = &machine.node.died {
            self.count("flips that stop a start");
            let missing = why.contains("is missing") && why.contains("shard-");
            return if names(why) || missing {
                Ok(())
            } else {
                Err(format!("does not say where: {why}"))
            };
        }
        let cuts: Vec<String> = machine
            .node
            .log
            .iter()
            .filter(|line| line.contains("torn tail is cut"))
            .cloned()
            .collect();
        let sight = Visitor::new(&mut machine).look(&self.load.queues)?;
        for line in &cuts {
            self.count("flips that are cut");
            if !names(line) {
                return Err(format!("does not say where: {line}"));
            }
            let file = line.split(',').next().unwrap_or_default();
            if !machine.disk.keeps_cut_of(file) {
                return Err(format!("what was cut is not kept: {line}"));
            }
        }
        match self.ledger.check(&sight, &self.horizons, self.powerless) {
            Err(why) if cuts.is_empty() => Err(format!("silently: {why}")),
            _ => Ok(()),
        }
    }
}

/// What was under way for a client ends without an answer.
fn abandon(ledger: &mut Ledger, machine: &Machine, actor: &Actor) -> Result<(), String> {
    for (at, open) in actor.under_way.iter().enumerate() {
        let partial = if at == 0 {
            machine.node.clients[actor.client].partial_reply()
        } else {
            &[]
        };
        ledger.abandoned(open, partial, machine.moment, machine.wall_us())?;
    }
    Ok(())
}

/// In which phase of its start a node ended.
fn phase(machine: &Machine) -> &'static str {
    match (machine.last_task, machine.plan) {
        ("read", _) => "end while reading",
        ("repair", _) => "end while repairing",
        (_, StartPlan::Reshard { .. }) => "end while resharding",
        _ => "end while beginning",
    }
}

fn faults_of_a_start(chance: &mut Chance) -> Faults {
    let some = |chance: &mut Chance| *chance.pick(&[0, 0, 10]);
    Faults {
        write: some(chance),
        sync: some(chance),
        read: some(chance),
        create: some(chance),
        repair: some(chance),
        step: some(chance),
        ..Faults::default()
    }
}

fn faults_of_a_life(chance: &mut Chance) -> Faults {
    Faults {
        write: *chance.pick(&[0, 5, 30]),
        sync: *chance.pick(&[0, 0, 0, 1]),
        sync_folder: *chance.pick(&[0, 0, 0, 2]),
        unlink: *chance.pick(&[0, 30]),
        read: *chance.pick(&[0, 5]),
        create: *chance.pick(&[0, 30]),
        step: *chance.pick(&[0, 0, 20]),
        repair: 0,
        capacity: *chance.pick(&[None, Some(40 << 10), Some(200 << 10)]),
    }
}
