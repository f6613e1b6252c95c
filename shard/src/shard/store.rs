//! A shard's log: read at the start, written while the shard runs, ended with it.
//!
//! | stage | leaves by |
//! | --- | --- |
//! | Off | `BeginLog` |
//! | Reading | the last log is read: `LogRead` to shard 0 |
//! | Read | `BeginLog`: repairs, then the log begins |
//! | Repairing | the last repair is done |
//! | Beginning | the log has begun and holds what it is to: `LogReady` to shard 0 |
//! | Ready | `LogCounts` |
//! | On | `EndLog`, or the end of the shard |
//!
//! Shard 0's part is `node/keeper.rs`. While a start is under way clients get `-LOADING`.

use std::collections::{BTreeMap, VecDeque};

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{RngCore, SeedableRng};

use super::Shard;
use crate::clock::{Mono, Now};
use crate::home::{Origin, Turn, thresholds};
use crate::input::{Effect, LogLevel};
use crate::limits;
use crate::log::{
    Action, AppendFsync, Cut, DiskTask, Done, EpochVerdict, IoError, Log, LogBoot, LogFolder, Position,
    Recovered, Recovery, RecoveryOptions, RepairStep, StartPlan, SwitchStep, Want, WriterOptions,
};
use crate::node::{Act, BeginLog, Change, LogRead, NodeMessage};
use crate::settings::Settings;
use crate::slot::ShardNo;
use crate::stats::{Loading, LogGauges};

/// How often the progress of a start is told.
const PROGRESS_MS: u64 = 1_000;

/// A shard's log and its way there.
#[derive(Debug)]
pub(super) struct Store {
    boot: LogBoot,
    chance: ChaCha8Rng,
    stage: Stage,
    /// Tasks of the server that have not ended.
    tasks: BTreeMap<u64, Task>,
    next_task: u64,
    /// Where the present log is.
    folder: LogFolder,
    /// Which log of this process it is: I/O of earlier ones is not its own.
    log_number: u64,
    /// Logs that were read.
    recovered: Vec<(ShardNo, Recovered)>,
    /// Bytes of logs that are read whole, and of all there are.
    read_bytes: u64,
    total_bytes: u64,
    started_at: Now,
    told_at: Mono,
    /// The shard ends, or has ended: no other log begins.
    is_over: bool,
    /// The mark of an orderly stop: the shard ends when that is durable.
    stop: Option<Position>,
    /// Why the log could not be written when it last could not.
    last_error: Option<String>,
}

#[derive(Debug)]
enum Stage {
    Off,
    Reading(ShardNo, Box<Recovery>),
    Read,
    Repairing(VecDeque<(ShardNo, RepairStep)>, BeginLog),
    Beginning,
    Ready,
    On,
}

#[derive(Debug)]
enum Task {
    Log { number: u64, io: u64 },
    Read,
    Repair,
    Step,
}

impl Store {
    pub fn new(boot: LogBoot, seed: [u8; 32], now: Now) -> Self {
        // Another stream than that of the job IDs, which has the same seed.
        let mut chance = ChaCha8Rng::from_seed(seed);
        chance.set_stream(1);
        Self {
            boot,
            chance,
            stage: Stage::Off,
            tasks: BTreeMap::new(),
            next_task: 0,
            folder: LogFolder {
                generation: 0,
                shard: 0,
            },
            log_number: 0,
            recovered: Vec::new(),
            read_bytes: 0,
            total_bytes: 0,
            started_at: now,
            told_at: now.mono(),
            is_over: false,
            stop: None,
            last_error: None,
        }
    }

    fn task(&mut self, task: Task, disk: DiskTask) -> Effect {
        self.next_task += 1;
        self.tasks.insert(self.next_task, task);
        Effect::Disk {
            id: self.next_task,
            task: disk,
        }
    }

    /// The shards of the generation that is loaded whose logs this shard reads: its own, or all of another number of shards.
    fn sources(&self, shard: ShardNo) -> std::ops::Range<ShardNo> {
        match self.boot.plan {
            StartPlan::Load(_) => shard..shard + 1,
            StartPlan::Reshard { from, .. } => 0..from.shards,
            _ => 0..0,
        }
    }

    fn source_generation(&self) -> u64 {
        self.boot.source().map_or(0, |from| from.generation)
    }

    fn recovery(&self, shard: ShardNo, may_cut: bool) -> Recovery {
        let options = RecoveryOptions {
            shard,
            generation: self.source_generation(),
            boot_id: self.boot.boot_id,
            may_cut,
        };
        let files = self.boot.files.get(usize::from(shard));
        Recovery::new(options, files.cloned().unwrap_or_default())
    }
}

impl Shard {
    /// The start: there is a log to be read, to be begun, or none.
    pub(super) fn start_store(&mut self, now: Now) {
        let store = &mut self.store;
        if store.boot.plan == StartPlan::Nothing {
            return;
        }
        let sources = store.sources(self.core.shard);
        store.total_bytes = sources
            .clone()
            .filter_map(|source| store.boot.files.get(usize::from(source)))
            .flatten()
            .map(|file| file.bytes)
            .sum();
        self.core.loading = Some(Loading {
            started_s: now.wall_s(),
            total_bytes: store.total_bytes,
            loaded_bytes: 0,
        });
        if let Some(first) = sources.into_iter().next() {
            self.read_log(now, first);
        }
    }

    fn read_log(&mut self, now: Now, source: ShardNo) {
        let recovery = self.store.recovery(source, self.core.settings.aof_load_truncated);
        self.store.stage = Stage::Reading(source, Box::new(recovery));
        self.read_on(now);
    }

    /// Asks for the next bytes of the log that is read, or goes on with the next log.
    fn read_on(&mut self, now: Now) {
        let Stage::Reading(source, recovery) = &self.store.stage else {
            panic!("a log is read")
        };
        let source = *source;
        match recovery.want() {
            Want::Read {
                segment,
                offset,
                bytes,
            } => {
                let folder = LogFolder {
                    generation: self.store.source_generation(),
                    shard: source,
                };
                let action = Action::Read {
                    segment,
                    offset,
                    bytes,
                };
                let effect = self.store.task(Task::Read, DiskTask::Segment(folder, action));
                self.core.effects.push(effect);
            }
            Want::Done => self.log_is_read(now, source),
        }
    }

    fn log_is_read(&mut self, now: Now, source: ShardNo) {
        let Stage::Reading(_, recovery) = std::mem::replace(&mut self.store.stage, Stage::Read) else {
            panic!("a log is read")
        };
        self.store.read_bytes += recovery.progress().1;
        let recovered = match recovery.finish() {
            Ok(recovered) => recovered,
            Err(error) => return self.die(error.to_string()),
        };
        if let Some(cut) = &recovered.cut
            && self.repairs(source)
        {
            self.tell(LogLevel::Warn, cut_text(cut));
        }
        self.store.recovered.push((source, recovered));
        if source + 1 < self.store.sources(self.core.shard).end {
            return self.read_log(now, source + 1);
        }
        let all = &self.store.recovered;
        let renew = all.iter().find_map(|(_, recovered)| match recovered.verdict {
            EpochVerdict::Keep(_) => None,
            EpochVerdict::Renew(why) => Some(why),
        });
        let read = LogRead {
            store_epoch: all
                .iter()
                .map(|(_, recovered)| recovered.meta.store_epoch)
                .max()
                .unwrap_or(0),
            renew,
        };
        let (records, last_ctime) = all.iter().fold((0, 0), |(records, ctime), (_, recovered)| {
            (records + recovered.records, ctime.max(recovered.last_ctime))
        });
        self.core.home.restored(now, last_ctime);
        let jobs = self.core.home.gauges().jobs;
        let took_ms = now.mono().since_ms(self.store.started_at.mono());
        self.tell(
            LogLevel::Info,
            format!(
                "shard {}: {records} records read in {took_ms} ms, {jobs} jobs live",
                self.core.shard
            ),
        );
        self.core.send_node(0, NodeMessage::LogRead(read));
    }

    /// Whether this shard does what is to be done about the log of a shard of the generation before.
    fn repairs(&self, source: ShardNo) -> bool {
        source % self.core.shards == self.core.shard
    }

    /// From shard 0: what was read may be built upon.
    pub(super) fn begin_log(&mut self, now: Now, begin: BeginLog) {
        if self.store.is_over {
            return;
        }
        // A generation that is written anew needs no repair of the old one: what is cut is kept for people, and what was not synced when
        // its process died is synced, since the old one is all there is until the new one counts.
        let needed = |step: &RepairStep| {
            !begin.populate
                || matches!(
                    step,
                    RepairStep::KeepAside { .. } | RepairStep::RenameAside { .. } | RepairStep::Sync { .. }
                )
        };
        let steps = self
            .store
            .recovered
            .iter()
            .filter(|(source, _)| self.repairs(*source))
            .flat_map(|(source, recovered)| recovered.repairs.iter().map(|step| (*source, step.clone())))
            .filter(|(_, step)| needed(step))
            .collect();
        self.store.stage = Stage::Repairing(steps, begin);
        self.repair_on(now);
    }

    fn repair_on(&mut self, now: Now) {
        let generation = self.store.source_generation();
        let Stage::Repairing(steps, begin) = &mut self.store.stage else {
            panic!("a log is repaired")
        };
        let begin = *begin;
        match steps.pop_front() {
            Some((shard, step)) => {
                let folder = LogFolder { generation, shard };
                let effect = self.store.task(Task::Repair, DiskTask::Repair(folder, step));
                self.core.effects.push(effect);
            }
            None => self.open_log(now, begin),
        }
    }

    fn open_log(&mut self, now: Now, begin: BeginLog) {
        let shard = self.core.shard;
        let recovered = self.store.recovered.pop().filter(|_| !begin.populate);
        self.store.recovered.clear();
        let recovered = match recovered {
            Some((_, recovered)) => recovered,
            None => Recovered::fresh(self.core.home.last_ctime()),
        };
        let settings = &self.core.settings;
        let mut seed = [0; 32];
        self.store.chance.fill_bytes(&mut seed);
        let options = WriterOptions {
            shard,
            generation: begin.generation,
            segment_bytes: settings.aof_segment_bytes,
            reserve: limits::LOG_RESERVE_SEGMENTS,
            fsync: fsync(settings),
            seed,
        };
        let limits = self.thresholds();
        let start = recovered.start(begin.store_epoch, self.store.boot.boot_id, now);
        self.store.folder = LogFolder {
            generation: begin.generation,
            shard,
        };
        self.store.log_number += 1;
        self.store.stage = Stage::Beginning;
        self.core
            .home
            .begin_log(Log::new(options, limits, start), begin.populate);
        self.log_turn(now);
    }

    fn thresholds(&self) -> crate::log::Thresholds {
        let settings = &self.core.settings;
        thresholds(
            settings.aof_rewrite_percentage,
            settings.aof_rewrite_min_bytes,
            self.core.shards,
        )
    }

    /// From shard 0: the log's generation counts.
    pub(super) fn log_counts(&mut self) {
        if self.store.is_over {
            return;
        }
        assert!(
            matches!(self.store.stage, Stage::Ready),
            "a log counts when it is ready"
        );
        self.store.stage = Stage::On;
        self.core.home.log_counts();
        self.core.loading = None;
    }

    /// From shard 0: no log is kept any more.
    pub(super) fn end_log(&mut self) {
        self.store.stage = Stage::Off;
        self.store.log_number += 1;
        self.core.home.end_log();
        if self.store.stop.take().is_some() {
            // There is nothing left to wait for.
            self.core.effects.push(Effect::Stopped);
        }
    }

    /// The end of a task of the server.
    pub(super) fn disk_done(&mut self, now: Now, id: u64, result: Result<Done, IoError>) {
        let task = self.store.tasks.remove(&id).expect("a task ends once");
        match task {
            Task::Log { number, io } => {
                if number == self.store.log_number {
                    let turn = self.core.home.log_completed(now, io, result);
                    self.after_log(turn);
                    self.log_turn(now);
                }
            }
            Task::Read => self.was_read(now, result),
            Task::Repair => match result {
                Ok(_) => self.repair_on(now),
                Err(error) => self.die(format!("the log cannot be repaired: {error}")),
            },
            Task::Step => {
                let result = result.map(|_| ()).map_err(|error| error.to_string());
                self.keep(|keeper, acts| keeper.stepped(result, acts));
                self.start_membership(now);
            }
        }
    }

    fn was_read(&mut self, now: Now, result: Result<Done, IoError>) {
        let Stage::Reading(source, recovery) = &mut self.store.stage else {
            panic!("a log is read")
        };
        let origin = Origin {
            shard: *source,
            shards: self.store.boot.source().expect("a log is read").shards,
        };
        let bytes = match &result {
            Ok(Done::Read(bytes)) => Ok(bytes.as_ref()),
            Ok(Done::Done) => panic!("a read gives bytes"),
            Err(error) => Err(error.to_string()),
        };
        let (home, mut wrong) = (&mut self.core.home, None);
        let supplied = recovery.supply(bytes, &mut |entry| {
            if let Err(why) = home.restore(now, origin, entry) {
                wrong = wrong.or(Some(why));
            }
        });
        let loaded_bytes = self.store.read_bytes + recovery.progress().0;
        if let Some(loading) = &mut self.core.loading {
            loading.loaded_bytes = loaded_bytes;
        }
        if let Err(error) = supplied {
            return self.die(error.to_string());
        }
        if let Some(why) = wrong {
            return self.die(format!(
                "the log of shard {} of generation {} holds {why}. Inspect it with: shardq-cli aof check",
                origin.shard,
                self.store.source_generation()
            ));
        }
        if now.mono().since_ms(self.store.told_at) >= PROGRESS_MS {
            self.store.told_at = now.mono();
            let (shard, total) = (self.core.shard, self.store.total_bytes);
            let percent = loaded_bytes * 100 / total.max(1);
            self.tell(
                LogLevel::Info,
                format!("shard {shard}: loading, {percent} % of {total} bytes"),
            );
        }
        self.read_on(now);
    }

    /// At the end of a turn: what was written goes to disk, together.
    pub(super) fn log_turn(&mut self, now: Now) {
        let turn = self.core.home.log_turn(now);
        self.after_log(turn);
        if matches!(self.store.stage, Stage::Beginning)
            && !self.store.is_over
            && self.core.home.log_is_ready()
        {
            self.store.stage = Stage::Ready;
            self.core.send_node(0, NodeMessage::LogReady);
        }
        self.stop_when_durable();
    }

    fn after_log(&mut self, turn: Turn) {
        for io in turn.ios {
            let task = Task::Log {
                number: self.store.log_number,
                io: io.id,
            };
            let disk = DiskTask::Segment(self.store.folder, io.action);
            let effect = self.store.task(task, disk);
            self.core.effects.push(effect);
        }
        for warning in turn.warnings {
            self.store.last_error = Some(warning.clone());
            self.tell(LogLevel::Error, warning);
        }
        if let Some(why) = turn.fatal {
            self.die(why);
        }
    }

    /// CONFIG SET of what concerns the log.
    pub(super) fn change_log_settings(&mut self) {
        let (fsync, thresholds) = (fsync(&self.core.settings), self.thresholds());
        if let Some(log) = self.core.home.log_mut() {
            log.set_fsync(fsync);
            log.set_thresholds(thresholds);
        }
    }

    /// BGREWRITEAOF.
    pub(super) fn rewrite_log(&mut self) {
        if let Some(log) = self.core.home.log_mut() {
            log.force_compaction();
        }
    }

    /// Every session of the node has ended: the log gets its mark, then the shard ends. `save`: not without it.
    pub(super) fn end_store(&mut self, now: Now, save: bool) {
        self.store.is_over = true;
        // A log that is ready may be the one that CURRENT names when the process has ended.
        if !(save && matches!(self.store.stage, Stage::Ready | Stage::On)) {
            return self.core.effects.push(Effect::Stopped);
        }
        let stop = self.core.home.stop_log(now);
        self.store.stop = Some(stop);
        let deadline = now.mono().after_ms(limits::LOG_STOP_MS);
        self.core
            .timers
            .insert(deadline.0, crate::core::SessionTimer::LogStop);
        self.log_turn(now);
    }

    /// Whether the shard only waits for its log to take the last mark.
    pub(super) fn is_ending(&self) -> bool {
        self.store.stop.is_some()
    }

    fn stop_when_durable(&mut self) {
        let durable = self.core.home.log().map(Log::durable);
        if self
            .store
            .stop
            .is_some_and(|stop| durable.is_some_and(|durable| durable >= stop))
        {
            self.store.stop = None;
            self.store.stage = Stage::Off;
            self.core.effects.push(Effect::Stopped);
        }
    }

    /// The log did not take its last mark in time.
    pub(super) fn stop_without_mark(&mut self) {
        if self.store.stop.take().is_some() {
            let reason = self
                .store
                .last_error
                .clone()
                .unwrap_or_else(|| "the disk is too slow".into());
            self.tell(
                LogLevel::Error,
                format!("stopping without the last mark in the log, the next start will take it for a crash: {reason}"),
            );
            self.core.effects.push(Effect::Stopped);
        }
    }

    /// What INFO shows of it.
    pub(super) fn log_gauges(&self) -> LogGauges {
        let keeper = self
            .core
            .coordinator
            .as_ref()
            .map(|coordinator| &coordinator.keeper);
        let home = &self.core.home;
        let gauges = LogGauges {
            state: keeper.map(crate::node::Keeper::state),
            loading: self.core.loading,
            live_bytes: home.log_live_bytes(),
            ..LogGauges::default()
        };
        let Some(log) = home.log() else { return gauges };
        LogGauges {
            bytes: log.log_bytes(),
            pending_bytes: log.pending_bytes(),
            compacting: u64::from(log.is_compacting()),
            segments_removed: log.segments_removed(),
            failing: u64::from(log.misconf().is_some()),
            waiting_answers: home.answers_kept_back(),
            ..gauges
        }
    }

    /// Shard 0: what its keeper wants done.
    pub(super) fn keep(&mut self, ask: impl FnOnce(&mut crate::node::Keeper, &mut Vec<Act>)) {
        let mut acts = Vec::new();
        let coordinator = self.core.coordinator.as_mut().expect("it is for shard 0");
        ask(&mut coordinator.keeper, &mut acts);
        for act in acts {
            self.act(act);
        }
    }

    pub(super) fn act(&mut self, act: Act) {
        let to_all = |message: fn() -> NodeMessage, this: &mut Self| {
            (0..this.core.shards).for_each(|shard| this.core.send_node(shard, message()));
        };
        match act {
            Act::Begin(begin) => {
                (0..self.core.shards)
                    .for_each(|shard| self.core.send_node(shard, NodeMessage::BeginLog(begin)));
            }
            Act::Count => {
                to_all(|| NodeMessage::LogCounts, self);
                self.tell(LogLevel::Info, "the log is on".into());
            }
            Act::End => {
                to_all(|| NodeMessage::EndLog, self);
                self.tell(
                    LogLevel::Warn,
                    "the log is off and put aside as CURRENT.off: no start will load it by itself, shardq-cli aof reads it".into(),
                );
            }
            Act::Step(step) => self.perform_step(step),
            Act::Made(number, result) => {
                let result = result.map(|()| 0);
                self.core.send_node(0, NodeMessage::Applied { number, result });
            }
            Act::Revert(on) => {
                let value = if on { "yes" } else { "no" }.to_owned();
                let change = Change::Settings(vec![("appendonly", value)]);
                self.core.send_node(0, NodeMessage::Ask { ticket: None, change });
            }
            Act::Tell(text) => self.tell(LogLevel::Warn, text),
            Act::Die(why) => self.die(why),
        }
    }

    fn perform_step(&mut self, step: SwitchStep) {
        let effect = self.store.task(Task::Step, DiskTask::Generation(step));
        self.core.effects.push(effect);
    }

    fn tell(&mut self, level: LogLevel, text: String) {
        self.core.effects.push(Effect::Log { level, text });
    }

    fn die(&mut self, why: String) {
        self.core.effects.push(Effect::Die { why });
    }
}

/// When what was written is synced, as the settings say.
fn fsync(settings: &Settings) -> AppendFsync {
    match settings.appendfsync {
        "always" => AppendFsync::Always,
        "no" => AppendFsync::No,
        _ => AppendFsync::EverySecond,
    }
}

fn cut_text(cut: &Cut) -> String {
    let whole = if cut.whole.is_empty() {
        String::new()
    } else {
        format!(" and all of {}", cut.whole.join(", "))
    };
    format!(
        "{}, offset {}: {}; a torn tail is cut from there on{whole}. Nothing that was confirmed as synced is affected; the bytes are kept beside.",
        cut.file, cut.offset, cut.what
    )
}
