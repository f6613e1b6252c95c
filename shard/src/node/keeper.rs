//! Shard 0's part of the log: which generation counts, and when the node may serve.
//!
//! ```text
//! nothing   Off
//! fresh     MakeFolder -> every shard begins a log and fills it -> CURRENT names it -> On
//! load      every shard reads its log -> begins behind it -> On
//! reshard   every shard reads all logs -> as fresh; the old generation goes last
//! appendonly yes, at run time: as fresh, beside all else.  appendonly no: CURRENT is put aside -> Off
//! ```
//!
//! It decides for the node and performs nothing: [`Act`]s come out, `LogRead`, `LogReady` and the ends of steps go in.

use std::collections::VecDeque;

use crate::error::CommandError;
use crate::log::{Current, LogBoot, StartPlan, SwitchStep, switch_off, switch_plan};
use crate::plant::{self, Plant};

/// What is to be done next.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Act {
    /// Every shard begins a log.
    Begin(BeginLog),
    /// The generation counts: every shard serves, and answers wait for their logs.
    Count,
    /// Every shard forgets its log.
    End,
    /// The server performs this step.
    Step(SwitchStep),
    /// A change of the node that waited for the log's end has been made, or could not.
    Made(u64, Result<(), CommandError>),
    /// `appendonly` could not be changed: it goes back to this.
    Revert(bool),
    /// For the server's log.
    Tell(String),
    /// The process must stop.
    Die(String),
}

/// A log to begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BeginLog {
    /// Its generation.
    pub generation: u64,
    /// The node's store epoch.
    pub store_epoch: u64,
    /// Whether all that lives is to be written to it first.
    pub populate: bool,
}

/// What a shard found in the logs that it read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogRead {
    /// The store epoch they name.
    pub store_epoch: u64,
    /// Why it cannot stay, if so.
    pub renew: Option<&'static str>,
}

#[derive(Debug)]
enum Stage {
    Off,
    Reading {
        left: u16,
        found: LogRead,
    },
    /// Steps under way, and what follows.
    Steps(VecDeque<SwitchStep>, Then),
    /// The shards begin; then this generation is to count, unless it does already.
    Beginning {
        left: u16,
        to: Option<Current>,
    },
    On,
}

#[derive(Clone, Copy, Debug)]
enum Then {
    Begin(Current),
    Count(Current),
    End,
}

/// Which generation counts.
#[derive(Debug)]
pub(crate) struct Keeper {
    shards: u16,
    stage: Stage,
    /// What `CURRENT` names.
    current: Option<Current>,
    newest: u64,
    store_epoch: u64,
    /// The store epoch that the node had last, as others know it.
    floor: u64,
    /// What `appendonly` says.
    wanted: bool,
    /// Whether clients are served: an error is no longer one of the start.
    serves: bool,
    /// Changes that are made when the log has ended.
    waiting: Vec<u64>,
}

impl Keeper {
    /// The keeper of a node that starts. `wall_ms` makes store epochs that were never before.
    pub fn new(shards: u16, boot: &LogBoot, wall_ms: u64, acts: &mut Vec<Act>) -> Self {
        let mut keeper = Self {
            shards,
            stage: Stage::Off,
            current: None,
            newest: boot.newest_generation,
            store_epoch: wall_ms.max(1),
            floor: 0,
            wanted: false,
            serves: false,
            waiting: Vec::new(),
        };
        let found = LogRead {
            store_epoch: 0,
            renew: None,
        };
        let left = shards;
        match boot.plan {
            StartPlan::Nothing => keeper.serves = true,
            StartPlan::Fresh(to) => keeper.make(to, acts),
            StartPlan::Load(from) | StartPlan::Reshard { from, .. } => {
                keeper.current = Some(from);
                keeper.stage = Stage::Reading { left, found };
            }
            StartPlan::SwitchOff | StartPlan::Unreadable => panic!("the server deals with {:?}", boot.plan),
        }
        keeper.wanted = !matches!(boot.plan, StartPlan::Nothing);
        keeper
    }

    /// The node had this store epoch before it started: a new one is a later one, and a log that names an earlier one is not all
    /// that was confirmed since.
    pub fn not_before(&mut self, epoch: u64) {
        self.floor = epoch;
        self.store_epoch = if plant::active(Plant::SameEpoch) {
            epoch
        } else {
            self.store_epoch.max(epoch + 1)
        };
    }

    /// The store epoch, once it is known: when no log is to be read, or it was.
    pub fn epoch(&self) -> Option<u64> {
        self.serves.then_some(self.store_epoch)
    }

    /// RESET: the node has another one from now on. A log that counts goes on under its old one, so the next start renews it.
    pub fn set_epoch(&mut self, epoch: u64) {
        self.store_epoch = self.store_epoch.max(epoch);
    }

    /// Whether a log counts, is being begun, or none is kept: `on`, `wait-rewrite`, `off`.
    pub fn state(&self) -> &'static str {
        match self.stage {
            Stage::Off => "off",
            Stage::On | Stage::Steps(_, Then::End) => "on",
            _ => "wait-rewrite",
        }
    }

    /// `appendonly` was set. The number of a change that must wait for the log's end is kept; `false`: it need not wait.
    pub fn want(&mut self, on: bool, change: u64, acts: &mut Vec<Act>) -> bool {
        self.wanted = on;
        let waits = !on && !matches!(self.stage, Stage::Off);
        if waits {
            self.waiting.push(change);
        }
        self.go_on(acts);
        waits
    }

    /// A shard has read what there is.
    pub fn read(&mut self, read: LogRead, acts: &mut Vec<Act>) {
        let Stage::Reading { left, found } = &mut self.stage else {
            panic!("a log is read once, at the start");
        };
        *left -= 1;
        found.store_epoch = found.store_epoch.max(read.store_epoch);
        found.renew = found.renew.or(read.renew);
        if *left > 0 {
            return;
        }
        if found.store_epoch < self.floor {
            found.renew = found
                .renew
                .or(Some("the log is older than what the node confirmed last"));
        }
        let from = self.current.expect("what is read is named by CURRENT");
        if let Some(why) = found.renew {
            self.store_epoch = self.store_epoch.max(found.store_epoch + 1);
            acts.push(Act::Tell(format!(
                "a new store epoch {}: {why}",
                self.store_epoch
            )));
        } else {
            self.store_epoch = found.store_epoch;
        }
        if from.shards == self.shards {
            self.begin(from, None, acts);
        } else {
            let to = self.next();
            self.make(to, acts);
        }
    }

    /// A shard's log has begun and holds what it is to hold.
    pub fn ready(&mut self, acts: &mut Vec<Act>) {
        let Stage::Beginning { left, to } = &mut self.stage else {
            panic!("a log begins once");
        };
        *left -= 1;
        if *left > 0 {
            return;
        }
        match *to {
            None => self.count(acts),
            Some(to) => {
                let steps = switch_plan(self.current, to).into();
                self.stage = Stage::Steps(steps, Then::Count(to));
                self.next_step(acts);
            }
        }
    }

    /// A step has ended.
    pub fn stepped(&mut self, result: Result<(), String>, acts: &mut Vec<Act>) {
        let Stage::Steps(steps, then) = &mut self.stage else {
            panic!("no step was under way");
        };
        let then = *then;
        match (result, then) {
            (Ok(()), _) => {
                steps.pop_front();
                self.next_step(acts);
            }
            (Err(why), _) if !self.serves => acts.push(Act::Die(format!("the log cannot be begun: {why}"))),
            (Err(why), Then::Begin(_)) => {
                acts.push(Act::Tell(format!("appendonly stays no: {why}")));
                self.stage = Stage::Off;
                self.wanted = false;
                acts.push(Act::Revert(false));
            }
            // Nothing has happened yet: CURRENT has its name.
            (Err(why), Then::End) if steps.len() == switch_off().len() => {
                acts.push(Act::Tell(format!("appendonly stays yes: {why}")));
                self.stage = Stage::On;
                self.wanted = true;
                let error = CommandError::other(format!("the log cannot be put aside: {why}"));
                let made = |change| Act::Made(change, Err(error.clone()));
                acts.extend(self.waiting.drain(..).map(made));
                acts.push(Act::Revert(true));
            }
            (Err(why), Then::End) => acts.push(Act::Die(format!(
                "CURRENT was renamed to CURRENT.off, and it is not known whether that lasts: {why}. Rename it back to go on with \
                 its log"
            ))),
            // Whether CURRENT names the new generation is not known: a start will find out.
            (Err(why), Then::Count(_)) => {
                acts.push(Act::Die(format!("the log cannot be switched on: {why}")))
            }
        }
    }

    fn next(&mut self) -> Current {
        self.newest += 1;
        Current {
            generation: self.newest,
            shards: self.shards,
        }
    }

    fn make(&mut self, to: Current, acts: &mut Vec<Act>) {
        self.newest = self.newest.max(to.generation);
        let steps = [SwitchStep::MakeFolder(Current::folder(to.generation))];
        self.stage = Stage::Steps(steps.into(), Then::Begin(to));
        self.next_step(acts);
    }

    fn next_step(&mut self, acts: &mut Vec<Act>) {
        let Stage::Steps(steps, then) = &self.stage else {
            unreachable!("steps are under way")
        };
        if let Some(step) = steps.front() {
            return acts.push(Act::Step(step.clone()));
        }
        match *then {
            Then::Begin(to) => self.begin(to, Some(to), acts),
            Then::Count(to) => {
                self.current = Some(to);
                self.count(acts);
            }
            Then::End => {
                self.current = None;
                self.stage = Stage::Off;
                acts.push(Act::End);
                acts.extend(self.waiting.drain(..).map(|change| Act::Made(change, Ok(()))));
                self.go_on(acts);
            }
        }
    }

    fn begin(&mut self, generation: Current, to: Option<Current>, acts: &mut Vec<Act>) {
        let left = self.shards;
        self.stage = Stage::Beginning { left, to };
        acts.push(Act::Begin(BeginLog {
            generation: generation.generation,
            store_epoch: self.store_epoch,
            populate: to.is_some(),
        }));
    }

    fn count(&mut self, acts: &mut Vec<Act>) {
        self.stage = Stage::On;
        self.serves = true;
        acts.push(Act::Count);
        self.go_on(acts);
    }

    /// Follows `appendonly`, when nothing is under way.
    fn go_on(&mut self, acts: &mut Vec<Act>) {
        match (&self.stage, self.wanted) {
            (Stage::Off, true) => {
                // Nothing was lost: all that lives goes into the log before that counts. So the store epoch stays.
                let to = self.next();
                self.make(to, acts);
            }
            (Stage::On, false) => {
                self.stage = Stage::Steps(switch_off().into(), Then::End);
                self.next_step(acts);
            }
            (Stage::Off, false) => {
                acts.extend(self.waiting.drain(..).map(|change| Act::Made(change, Ok(()))));
            }
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OLD: Current = Current {
        generation: 7,
        shards: 4,
    };

    fn boot(plan: StartPlan) -> LogBoot {
        LogBoot {
            plan,
            newest_generation: 7,
            ..LogBoot::nothing()
        }
    }

    fn keeper(shards: u16, plan: StartPlan) -> (Keeper, Vec<Act>) {
        let mut acts = Vec::new();
        let keeper = Keeper::new(shards, &boot(plan), 1000, &mut acts);
        (keeper, acts)
    }

    /// Answers steps until something else comes out.
    fn step_through(keeper: &mut Keeper, acts: &mut Vec<Act>) -> Vec<SwitchStep> {
        let mut steps = Vec::new();
        while let Some(at) = acts.iter().position(|act| matches!(act, Act::Step(_))) {
            let Act::Step(step) = acts.remove(at) else {
                unreachable!()
            };
            steps.push(step);
            keeper.stepped(Ok(()), acts);
        }
        steps
    }

    const KEEP: LogRead = LogRead {
        store_epoch: 5,
        renew: None,
    };

    #[test]
    fn a_log_that_is_loaded_counts_when_all_shards_are_behind_it() {
        let (mut keeper, mut acts) = keeper(4, StartPlan::Load(OLD));
        (0..3).for_each(|_| keeper.read(KEEP, &mut acts));
        assert!(acts.is_empty(), "one shard is still reading");
        keeper.read(KEEP, &mut acts);
        let begin = BeginLog {
            generation: 7,
            store_epoch: 5,
            populate: false,
        };
        assert_eq!(std::mem::take(&mut acts), [Act::Begin(begin)]);
        (0..4).for_each(|_| keeper.ready(&mut acts));
        assert_eq!((acts, keeper.state()), (vec![Act::Count], "on"));
    }

    #[test]
    fn one_doubtful_shard_renews_the_epoch_of_all() {
        let (mut keeper, mut acts) = keeper(2, StartPlan::Load(Current { shards: 2, ..OLD }));
        let renew = Some("a tail was cut");
        keeper.read(LogRead { renew, ..KEEP }, &mut acts);
        keeper.read(KEEP, &mut acts);
        let epoch = acts.iter().find_map(|act| match act {
            Act::Begin(begin) => Some(begin.store_epoch),
            _ => None,
        });
        assert!(epoch.is_some_and(|epoch| epoch > 5));
    }

    #[test]
    fn another_number_of_shards_makes_a_new_generation_that_counts_at_last() {
        let to = Current {
            generation: 8,
            shards: 3,
        };
        let (mut keeper, mut acts) = keeper(3, StartPlan::Reshard { from: OLD, to });
        (0..3).for_each(|_| keeper.read(KEEP, &mut acts));
        let made = step_through(&mut keeper, &mut acts);
        assert_eq!(made, [SwitchStep::MakeFolder("gen-8".into())]);
        assert!(matches!(
            acts.as_slice(),
            [Act::Begin(BeginLog { populate: true, .. })]
        ));
        acts.clear();
        (0..3).for_each(|_| keeper.ready(&mut acts));
        assert_eq!(step_through(&mut keeper, &mut acts), switch_plan(Some(OLD), to));
        assert_eq!(acts, [Act::Count]);
    }

    #[test]
    fn appendonly_goes_on_and_off_while_clients_are_served() {
        let (mut keeper, mut acts) = keeper(1, StartPlan::Nothing);
        assert!(!keeper.want(true, 1, &mut acts));
        assert_eq!(keeper.state(), "wait-rewrite");
        step_through(&mut keeper, &mut acts);
        // Off again before it was on: the change waits until it has been both.
        assert!(keeper.want(false, 2, &mut acts));
        keeper.ready(&mut acts);
        step_through(&mut keeper, &mut acts);
        assert!(acts.ends_with(&[Act::End, Act::Made(2, Ok(()))]), "{acts:?}");
        assert_eq!(keeper.state(), "off");
    }

    #[test]
    fn the_epoch_stays_when_the_log_goes_on_or_off_since_nothing_is_lost() {
        let (mut keeper, mut acts) = keeper(1, StartPlan::Nothing);
        assert_eq!(keeper.epoch(), Some(1000), "without a log: the wall clock");
        for _ in 0..2 {
            keeper.want(true, 1, &mut acts);
            step_through(&mut keeper, &mut acts);
            let begun = acts.drain(..).find_map(|act| match act {
                Act::Begin(begin) => Some(begin),
                _ => None,
            });
            assert!(begun.is_some_and(|begin| begin.store_epoch == 1000 && begin.populate));
            keeper.ready(&mut acts);
            step_through(&mut keeper, &mut acts);
            keeper.want(false, 2, &mut acts);
            step_through(&mut keeper, &mut acts);
            assert_eq!((keeper.state(), keeper.epoch()), ("off", Some(1000)));
        }
        // A flush raises it, also for the log that follows.
        keeper.set_epoch(1007);
        keeper.want(true, 3, &mut acts);
        acts.clear();
        keeper.stepped(Ok(()), &mut acts);
        assert!(matches!(
            acts[..],
            [Act::Begin(BeginLog {
                store_epoch: 1007,
                ..
            })]
        ));
    }

    #[test]
    fn no_clock_that_went_back_gives_an_epoch_that_was_before() {
        // Without a log the wall clock (1000) makes it, but never below what others have heard of.
        let (mut ahead, _) = keeper(1, StartPlan::Nothing);
        ahead.not_before(999);
        assert_eq!(ahead.epoch(), Some(1000));
        for before in [1000, 5000] {
            let (mut behind, _) = keeper(1, StartPlan::Nothing);
            behind.not_before(before);
            assert_eq!(behind.epoch(), Some(before + 1));
        }
        // The same for a log that is begun at the start.
        let (mut fresh, mut acts) = keeper(1, StartPlan::Fresh(Current { shards: 1, ..OLD }));
        fresh.not_before(5000);
        step_through(&mut fresh, &mut acts);
        assert!(matches!(
            acts[..],
            [Act::Begin(BeginLog {
                store_epoch: 5001,
                ..
            })]
        ));
        // And for one that is older than what others have heard of: it is not all that was confirmed.
        for (before, epoch) in [(4, 5), (5, 5), (6, 1000), (5000, 5001)] {
            let (mut loads, mut acts) = keeper(1, StartPlan::Load(Current { shards: 1, ..OLD }));
            loads.not_before(before);
            loads.read(KEEP, &mut acts);
            loads.ready(&mut acts);
            assert_eq!(loads.epoch(), Some(epoch), "known as {before} before");
        }
    }

    #[test]
    fn a_log_that_is_half_put_aside_is_not_gone_on_with() {
        let (mut on, mut acts) = keeper(1, StartPlan::Load(Current { shards: 1, ..OLD }));
        on.read(KEEP, &mut acts);
        on.ready(&mut acts);
        assert!(on.want(false, 1, &mut acts));
        acts.clear();
        on.stepped(Err("no permission".into()), &mut acts);
        assert!(
            acts.contains(&Act::Revert(true)),
            "CURRENT has its name: {acts:?}"
        );
        assert!(on.want(false, 2, &mut acts));
        on.stepped(Ok(()), &mut acts);
        acts.clear();
        on.stepped(Err("fsync failed".into()), &mut acts);
        assert!(
            matches!(acts.as_slice(), [Act::Die(_)]),
            "its name is gone: {acts:?}"
        );
    }

    #[test]
    fn what_cannot_be_begun_stops_a_start_and_nothing_later() {
        let (mut starting, mut acts) = keeper(1, StartPlan::Fresh(OLD));
        starting.stepped(Err("no space".into()), &mut acts);
        assert!(matches!(acts.last(), Some(Act::Die(_))));
        let (mut serving, mut acts) = keeper(1, StartPlan::Nothing);
        serving.want(true, 1, &mut acts);
        serving.stepped(Err("no space".into()), &mut acts);
        assert_eq!((acts.last(), serving.state()), (Some(&Act::Revert(false)), "off"));
    }
}
