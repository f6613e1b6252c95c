//! A log and its disk, from a seed: random work, a crash at a random moment, recovery, and a comparison with what had to survive.
//!
//! What is recovered must be what the entries up to some moment add up to, and that moment is never before what was told: under
//! `always` what `safe` had reached, in every mode what `durable` had reached, and when only the process died all that `safe` had reached. Bits that
//! flip may stop a start or be cut by name, never more. `SHARDQ_SEED` repeats one run; `SHARDQ_TEST_SCALE` makes more of them.

#[path = "../support/mod.rs"]
mod support;

mod disk;
mod state;

use disk::{Disk, Faults, Plant};
use shard::clock::Now;
use shard::id::JobId;
use shard::log::{
    AppendFsync, Entry, EpochVerdict, Event, FoundFile, Io, KeptPlace, Log, Position, Recovered, Recovery,
    RecoveryError, RecoveryOptions, RepairStep, Replay, Thresholds, Want, WriterOptions,
};
use state::State;
use support::{Chance, number_from_environment};

const SEGMENT_BYTES: u64 = 16 << 10;
const RESERVE: usize = 2;

/// How a life of the process ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    Kill,
    PowerLoss,
    Flips,
    Stop,
}

/// What a run tells about itself, so that a test can see that it went where it should.
#[derive(Debug, Default)]
struct Tally {
    entries: u64,
    recoveries: u64,
    cuts: u64,
    stops: u64,
    refused: u64,
    failures: u64,
    rounds: u64,
    kept: u64,
}

struct Run {
    chance: Chance,
    disk: Disk,
    mono_us: u64,
    fsync: AppendFsync,
    slow: u64,
    /// What was there when this life began.
    base: State,
    /// What happened since, and did not fail.
    history: Vec<(Position, Entry)>,
    state: State,
    /// Entries that failed, with their place in the history: the disk may have them all the same.
    ghosts: Vec<(usize, Vec<Entry>)>,
    told: Position,
    durable: Position,
    /// What had to survive the last crash.
    least: Position,
    /// The epoch of the newest life that told anybody anything.
    started_epoch: u64,
    /// At-most-once jobs that a client has been handed.
    handed: Vec<JobId>,
    handing: Vec<(Position, JobId)>,
    boot: u8,
    epoch: u64,
    tally: Tally,
}

impl Run {
    fn new(seed: u64, plant: Plant) -> Self {
        let mut chance = Chance::new(seed);
        let fsync = *chance.pick(&[AppendFsync::No, AppendFsync::EverySecond, AppendFsync::Always]);
        Self {
            disk: Disk::new(plant),
            mono_us: 1_000_000,
            fsync,
            slow: *chance.pick(&[10, 50, 100]),
            chance,
            base: State::default(),
            history: Vec::new(),
            state: State::default(),
            ghosts: Vec::new(),
            told: Position(0),
            durable: Position(0),
            least: Position(0),
            started_epoch: 0,
            handed: Vec::new(),
            handing: Vec::new(),
            boot: 1,
            epoch: 1,
            tally: Tally::default(),
        }
    }

    fn now(&self) -> Now {
        Now {
            mono_us: self.mono_us,
            wall_us: self.mono_us + 1_700_000_000_000_000,
        }
    }

    fn run(mut self, flips: bool) -> Result<Tally, String> {
        let lives = 1 + self.chance.below(4);
        for _ in 0..lives {
            let recovered = match self.recover(false)? {
                Ok(recovered) => recovered,
                Err(error) => return Err(format!("the log does not start: {error}")),
            };
            let end = self.live(recovered, flips)?;
            if end == End::Flips {
                self.check_flips()?;
                return Ok(self.tally);
            }
        }
        match self.recover(false)? {
            Ok(_) => Ok(self.tally),
            Err(error) => Err(format!("the log does not start in the end: {error}")),
        }
    }

    /// A life of the process, from the recovered log to its end.
    fn live(&mut self, recovered: Recovered, flips: bool) -> Result<End, String> {
        let old_epoch = recovered.meta.store_epoch;
        match recovered.verdict {
            EpochVerdict::Keep(_) if old_epoch < self.started_epoch => {
                return Err(format!(
                    "epoch {old_epoch} was kept, and {} was told",
                    self.started_epoch
                ));
            }
            EpochVerdict::Keep(_) => self.epoch = old_epoch,
            EpochVerdict::Renew(_) => self.epoch = self.started_epoch.max(old_epoch) + 1,
        }
        self.tally.kept += u64::from(self.epoch == old_epoch);
        let options = WriterOptions {
            shard: 0,
            generation: 1,
            segment_bytes: SEGMENT_BYTES,
            reserve: RESERVE,
            fsync: self.fsync,
            seed: [(self.chance.next() % 256) as u8; 32],
        };
        let thresholds = Thresholds {
            percentage: 100,
            min_bytes: 2 * SEGMENT_BYTES,
        };
        let mut log = Log::new(
            options,
            thresholds,
            recovered.start(self.epoch, [self.boot; 16], self.now()),
        );
        let mut under_way: Vec<Io> = Vec::new();
        let turns = 20 + self.chance.below(400);
        let mut end = *self
            .chance
            .pick(&[End::Kill, End::PowerLoss, End::PowerLoss, End::Stop]);
        if flips && self.chance.percent(50) {
            end = End::Flips;
        }
        for turn in 0.. {
            self.disk.faults = if turn < 20 {
                Faults::default()
            } else {
                self.disk.faults
            };
            if turn == 20 && self.chance.percent(40) {
                self.disk.faults = random_faults(&mut self.chance);
            }
            if turn > turns {
                break;
            }
            if !self.turn(&mut log, &mut under_way, true)? {
                end = End::PowerLoss;
                break;
            }
        }
        if end == End::Stop && !self.stop(&mut log, &mut under_way)? {
            end = End::PowerLoss;
        }
        self.tally.rounds += log.segments_removed();
        self.crash(end, &under_way);
        Ok(end)
    }

    /// A turn: work, I/O, and what comes of it. False when the process must end.
    fn turn(&mut self, log: &mut Log, under_way: &mut Vec<Io>, work: bool) -> Result<bool, String> {
        self.mono_us += self.chance.next() % 60_000;
        if work && log.started() {
            self.work(log);
        }
        if log.started() && work {
            log.compact(self.now(), &mut self.state);
        }
        log.take_io(self.now(), under_way);
        let mut at = 0;
        while at < under_way.len() {
            if !self.chance.percent(self.slow) {
                at += 1;
                continue;
            }
            let io = under_way.remove(at);
            let result = self.disk.perform(&mut self.chance, &io.action);
            log.completed(self.now(), io.id, result);
        }
        let alive = self.events(log)?;
        if alive {
            let told = if self.disk.plant == Plant::TellsAtOnce {
                log.appended()
            } else {
                log.safe()
            };
            self.told = self.told.max(told);
            self.durable = self.durable.max(log.durable());
            if self.fsync == AppendFsync::Always && log.safe() == log.durable() {
                self.durable = self.durable.max(told);
            }
            if log.started() {
                self.started_epoch = self.epoch;
            }
            let durable = self.durable;
            let done = self.handing.extract_if(.., |(position, _)| *position <= durable);
            self.handed.extend(done.map(|(_, id)| id));
        }
        Ok(alive)
    }

    fn work(&mut self, log: &mut Log) {
        let count = self.chance.below(12);
        for _ in 0..count {
            let entry = self.state.random_entry(&mut self.chance);
            let Ok(position) = log.append(&entry) else {
                self.tally.refused += 1;
                continue;
            };
            self.tally.entries += 1;
            if let Entry::State(change) = &entry
                && self.state.jobs[&change.id].retry_s == 0
                && change.delivered
            {
                self.handing.push((position, change.id));
                log.request_sync();
            }
            self.state.apply(&entry);
            self.history.push((position, entry));
        }
        if self.chance.percent(1) {
            log.force_compaction();
        }
        if self.chance.percent(1) {
            self.fsync = *self
                .chance
                .pick(&[AppendFsync::No, AppendFsync::EverySecond, AppendFsync::Always]);
            log.set_fsync(self.fsync);
        }
        if self.chance.percent(3) {
            self.disk.faults.capacity = None;
        }
    }

    fn events(&mut self, log: &mut Log) -> Result<bool, String> {
        let mut events = Vec::new();
        log.take_events(&mut events);
        for event in events {
            match event {
                Event::Failed { from, to, .. } => self.failed(from, to)?,
                Event::Fatal(_) => return Ok(false),
                Event::Warning(_) => {}
            }
        }
        Ok(true)
    }

    fn failed(&mut self, from: Position, to: Position) -> Result<(), String> {
        self.tally.failures += 1;
        if from <= self.told && self.disk.plant != Plant::TellsAtOnce {
            return Err(format!("{from:?} failed, and {:?} was told", self.told));
        }
        let kept = self.history.partition_point(|(position, _)| *position < from);
        let ghosts = self.history.split_off(kept);
        if ghosts.iter().any(|(position, _)| *position > to) {
            return Err("something was appended between a failure and its event".into());
        }
        self.ghosts.retain(|(at, _)| *at <= kept);
        self.ghosts
            .push((kept, ghosts.into_iter().map(|(_, entry)| entry).collect()));
        self.handing.retain(|(position, _)| *position < from);
        self.state = self.base.clone();
        self.history.iter().for_each(|(_, entry)| self.state.apply(entry));
        Ok(())
    }

    /// Stops in order; false when the disk does not let it.
    fn stop(&mut self, log: &mut Log, under_way: &mut Vec<Io>) -> Result<bool, String> {
        self.disk.faults = Faults::default();
        self.settle(log, under_way)?;
        let position = log.stop();
        for _ in 0..1000 {
            if !self.turn(log, under_way, false)? {
                return Ok(false);
            }
            if log.durable() >= position {
                return Ok(true);
            }
        }
        Err("an orderly stop does not end".into())
    }

    /// With a disk that works again, everything is accepted and becomes safe.
    fn settle(&mut self, log: &mut Log, under_way: &mut Vec<Io>) -> Result<(), String> {
        for _ in 0..1000 {
            self.turn(log, under_way, false)?;
            // What failed is never safe; what was not told to have failed is in the history.
            let newest = self.history.last().map_or(Position(0), |(position, _)| *position);
            if log.safe() >= newest && log.misconf().is_none() {
                return Ok(());
            }
        }
        Err(format!(
            "the log does not recover: {:?}, {:?} of {:?}",
            log.misconf(),
            log.safe(),
            log.appended()
        ))
    }

    fn crash(&mut self, end: End, under_way: &[Io]) {
        for io in under_way {
            self.disk.interrupt(&mut self.chance, &io.action);
        }
        self.least = match end {
            End::Kill | End::Flips | End::Stop => self.told.max(self.durable),
            End::PowerLoss => self.durable,
        };
        if matches!(end, End::PowerLoss | End::Stop) {
            self.disk.lose_power(&mut self.chance);
            self.boot += 1;
        } else {
            self.disk.lose_process();
        }
    }

    /// Recovers, repairs (sometimes only in part, and again after the loss of power), and compares.
    fn recover(&mut self, flipped: bool) -> Result<Result<Recovered, RecoveryError>, String> {
        let mut named = false;
        loop {
            let (recovered, state) = match self.read_back() {
                Ok(found) => found,
                Err(error) => return Ok(Err(error)),
            };
            self.tally.recoveries += 1;
            self.tally.cuts += u64::from(recovered.cut.is_some());
            // Once it was named it may be cut, also when the repair itself is interrupted.
            named |= flipped && recovered.cut.is_some();
            // An epoch stays only when all that was told is there, whatever ended the last life.
            let kept = matches!(recovered.verdict, EpochVerdict::Keep(_));
            let least = if kept {
                self.told.max(self.least)
            } else {
                self.least
            };
            if !named && !self.accepts(&state, least) {
                return Err(format!(
                    "not all of {least:?} is there: {:?}, {:?}",
                    recovered.verdict, recovered.cut
                ));
            }
            if !self.disk_names_are_fine(&recovered.repairs) {
                return Err("a repair unlinks before it syncs".into());
            }
            let steps = recovered.repairs.len();
            let done = if self.chance.percent(10) {
                self.chance.below(steps + 1)
            } else {
                steps
            };
            recovered.repairs[..done]
                .iter()
                .for_each(|step| self.disk.repair(step));
            if done < steps {
                self.disk.lose_power(&mut self.chance);
                self.boot += 1;
                self.least = self.least.min(self.durable);
                continue;
            }
            self.begin_again(state);
            return Ok(Ok(recovered));
        }
    }

    fn disk_names_are_fine(&self, steps: &[RepairStep]) -> bool {
        let unlink = steps
            .iter()
            .position(|step| matches!(step, RepairStep::Unlink { .. }))
            .unwrap_or(steps.len());
        steps[unlink..]
            .iter()
            .all(|step| !matches!(step, RepairStep::Sync { .. } | RepairStep::Truncate { .. }))
    }

    fn read_back(&mut self) -> Result<(Recovered, State), RecoveryError> {
        let options = RecoveryOptions {
            shard: 0,
            generation: 1,
            boot_id: [self.boot; 16],
            may_cut: true,
        };
        let files = self
            .disk
            .segments()
            .into_iter()
            .map(|(number, bytes)| FoundFile { number, bytes })
            .collect();
        let mut recovery = Recovery::new(options, files);
        let (mut state, mut replay) = (State::default(), Replay::default());
        while let Want::Read {
            segment,
            offset,
            bytes,
        } = recovery.want()
        {
            let read = self.disk.read(segment, offset, bytes);
            recovery.supply(Ok(read), &mut |entry| {
                state.apply(&entry);
                replay.apply(entry);
            })?;
        }
        assert_eq!(replay.jobs, state.jobs, "two ways to add up the same");
        Ok((recovery.finish()?, state))
    }

    /// Whether this is what there was at some moment, at or after what was told.
    fn accepts(&self, found: &State, least: Position) -> bool {
        let mut state = self.base.clone();
        for at in 0..=self.history.len() {
            let complete = self.history.get(at).is_none_or(|(position, _)| *position > least);
            if complete && (state == *found || self.is_ghost(at, &state, found)) {
                let spent = |id: &JobId| {
                    found
                        .jobs
                        .get(id)
                        .is_none_or(|job| job.state.place != KeptPlace::Queued)
                };
                return self.handed.iter().all(spent);
            }
            if let Some((_, entry)) = self.history.get(at) {
                state.apply(entry);
            }
        }
        false
    }

    fn is_ghost(&self, at: usize, state: &State, found: &State) -> bool {
        self.ghosts
            .iter()
            .filter(|(place, _)| *place == at)
            .any(|(_, entries)| {
                let mut state = state.clone();
                entries.iter().any(|entry| {
                    state.apply(entry);
                    state == *found
                })
            })
    }

    /// What was recovered is where the next life begins.
    fn begin_again(&mut self, state: State) {
        self.base = state.clone();
        self.state = state;
        self.history.clear();
        self.ghosts.clear();
        self.told = Position(0);
        self.durable = Position(0);
        self.least = Position(0);
        self.handing.clear();
    }

    fn check_flips(&mut self) -> Result<(), String> {
        let count = 1 + self.chance.below(3);
        self.disk.flip_bits(&mut self.chance, count);
        if self.recover(true)?.is_err() {
            self.tally.stops += 1;
        }
        Ok(())
    }
}

fn random_faults(chance: &mut Chance) -> Faults {
    Faults {
        write: *chance.pick(&[0, 0, 3, 20]),
        sync: *chance.pick(&[0, 0, 0, 1]),
        unlink: *chance.pick(&[0, 0, 30]),
        read: *chance.pick(&[0, 0, 5]),
        capacity: (*chance.pick(&[None, Some(8), Some(12)])).map(|segments| segments * SEGMENT_BYTES),
    }
}

/// Runs so many seeds; the first that fails, and how.
fn runs(count: u64, plant: Plant, flips: bool, tally: &mut Tally) -> Option<(u64, String)> {
    let only = number_from_environment("SHARDQ_SEED");
    let seeds = only.map_or(1..count + 1, |seed| seed..seed + 1);
    for seed in seeds {
        match Run::new(seed, plant).run(flips) {
            Ok(run) => {
                tally.entries += run.entries;
                tally.recoveries += run.recoveries;
                tally.cuts += run.cuts;
                tally.stops += run.stops;
                tally.refused += run.refused;
                tally.failures += run.failures;
                tally.rounds += run.rounds;
                tally.kept += run.kept;
            }
            Err(error) => return Some((seed, error)),
        }
    }
    None
}

fn scale() -> u64 {
    number_from_environment("SHARDQ_TEST_SCALE").unwrap_or(1).max(1)
}

#[test]
fn what_was_told_survives() {
    let mut tally = Tally::default();
    let failed = runs(400 * scale(), Plant::None, false, &mut tally);
    assert_eq!(failed, None, "SHARDQ_SEED repeats it");
    println!("{tally:?}");
    let Tally {
        cuts,
        refused,
        failures,
        rounds,
        kept,
        ..
    } = tally;
    let everything = [cuts, refused, failures, rounds, kept];
    assert!(number_from_environment("SHARDQ_SEED").is_some() || everything.iter().all(|&count| count > 0));
}

#[test]
fn flipped_bits_are_never_lost_silently() {
    let mut tally = Tally::default();
    let failed = runs(400 * scale(), Plant::None, true, &mut tally);
    assert_eq!(failed, None, "SHARDQ_SEED repeats it");
    println!("{tally:?}");
    assert!(number_from_environment("SHARDQ_SEED").is_some() || tally.stops > 0);
}

/// A simulation that sees nothing proves nothing.
#[test]
fn planted_mistakes_are_found() {
    let plants = [
        Plant::LyingSync,
        Plant::EarlyUnlink,
        Plant::TellsAtOnce,
        Plant::WrongResume,
        Plant::NoZeros,
    ];
    for plant in plants {
        let found = runs(400 * scale(), plant, false, &mut Tally::default());
        println!("{plant:?}: {found:?}");
        assert!(found.is_some(), "{plant:?} was not seen");
    }
}

#[test]
fn the_same_seed_gives_the_same_run() {
    let tally = |seed| {
        Run::new(seed, Plant::None)
            .run(false)
            .map(|tally| format!("{tally:?}"))
    };
    assert_eq!(tally(7), tally(7));
}
