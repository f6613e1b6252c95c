//! What clients were told, and when: all that the checks know. It never looks at the node or its disk.
//!
//! Each job has a series of facts. A command that nobody else's could have crossed, and that was answered, gives a precise one; all
//! others give one that says less. After a start the state of each job must be one of its facts, from the last one that had to
//! survive on.

use std::collections::BTreeMap;

use crate::facts::{Counters, Fact, SLACK_US, Safe, Seen, State};
use crate::load::{Kind, Made, Verb};
use crate::promises::Promises;
use crate::support::{Reply, number_of};

/// How long a command may go on after its client is gone.
const MURKY_US: u64 = 2_000_000;

/// A job.
#[derive(Clone, Debug)]
pub struct Job {
    pub made: Made,
    pub id: Option<String>,
    pub facts: Vec<Fact>,
    /// Whole deliveries that left the node; what was left of it is in the facts.
    pub left: u32,
    /// It left while nothing had to be synced before.
    left_unsynced: bool,
    /// It may have been removed.
    doomed: bool,
    /// Its lease began anew while a GETJOB was under way: if that was the one that had it, it ends when its client is gone.
    lease_of_other: bool,
    /// Commands that are not answered.
    open: u32,
    /// Changes with each command and each fact.
    serial: u64,
    last_event: u64,
    touched_us: u64,
    murky_until_us: u64,
    expires_us: Option<(u64, u64)>,
    ctime: Option<u64>,
}

impl Job {
    pub fn once(&self) -> bool {
        self.made.retry_s == 0
    }

    pub fn last(&self) -> State {
        self.facts.last().expect("there is a first").state
    }

    /// `asked`: when what this tells was asked for, if its record is safe by now.
    fn push(&mut self, told: u64, asked: Option<u64>, state: State) {
        // What may have been removed may be removed yet: such a command may still be on its way.
        self.doomed |= state == State::Any;
        let state = if self.doomed && state != State::Gone {
            State::Any
        } else {
            state
        };
        self.lease_of_other = false;
        self.serial += 1;
        self.last_event = told;
        self.facts.push(Fact {
            told,
            hard: asked.map(|asked| Safe { asked, told }),
            state,
        });
    }
}

impl Job {
    /// Something may have happened to it before it was removed, as somebody learns only now.
    fn push_before_end(&mut self, told: u64) {
        let end = self.facts.pop().expect("its end is known");
        self.facts.push(Fact {
            told,
            hard: None,
            state: State::There,
        });
        self.facts.push(end);
    }
}

#[derive(Clone, Debug, Default)]
struct Queue {
    gets_open: u32,
    /// A GETJOB ended without telling what became of it.
    doubt: bool,
    /// It may have been paused in this life.
    pauses: bool,
    /// Its states, where they are known.
    facts: Vec<(Safe, Option<String>)>,
    open: u32,
    serial: u64,
}

impl Queue {
    fn push(&mut self, asked: u64, told: u64, state: Option<String>) {
        self.facts.push((Safe { asked, told }, state));
    }
}

/// A command that is under way.
#[derive(Clone, Debug)]
pub struct Open {
    pub kind: Kind,
    pub sent: u64,
    pub sent_us: u64,
    serials: Vec<u64>,
}

/// All jobs and the states of queues, as seen after a start.
#[derive(Clone, Debug, Default)]
pub struct Sight {
    pub jobs: Vec<Seen>,
    pub pauses: Vec<String>,
    pub sent_us: u64,
    pub read_us: u64,
}

/// What the clients know.
#[derive(Clone)]
pub struct Ledger {
    pub jobs: BTreeMap<u64, Job>,
    names: Vec<String>,
    queues: Vec<Queue>,
    /// The shard of each queue: what happened there is in one log, in order.
    homes: Vec<u16>,
    /// Facts whose records are on their way: shard, job, fact.
    soft: Vec<(u16, u64, usize)>,
    /// What the settings of the log promise.
    pub promises: Promises,
    /// The disk fails now and then: records may be left out.
    pub faulty: bool,
    /// Until when a FLUSHALL may go on whose client is gone.
    flushes_until_us: u64,
    /// -MISCONF was read so often.
    pub misconf: u64,
    /// Answers of commands that had reached a home.
    pub told: u64,
}

type Checked = Result<(), String>;

impl Ledger {
    pub fn new(names: Vec<String>) -> Self {
        let mut queue = Queue::default();
        queue.push(0, 0, Some("none".into()));
        Self {
            jobs: BTreeMap::new(),
            queues: vec![queue; names.len()],
            homes: vec![0; names.len()],
            names,
            soft: Vec::new(),
            promises: Promises::default(),
            faulty: false,
            flushes_until_us: 0,
            misconf: 0,
            told: 0,
        }
    }

    /// A node begins to serve.
    pub fn begin_life(&mut self, moment: u64, appendfsync: &str, homes: Vec<u16>) {
        self.promises = Promises::of_start(appendfsync, moment);
        self.faulty = false;
        self.flushes_until_us = 0;
        self.homes = homes;
        self.soft.clear();
    }

    /// Jobs that live as far as is known, with their IDs; the youngest last.
    pub fn living(&self) -> Vec<(u64, String)> {
        let lives = self.jobs.iter().filter(|(_, job)| job.last() != State::Gone);
        let mut lives: Vec<(u64, u64, String)> = lives
            .filter_map(|(&number, job)| Some((job.last_event, number, job.id.clone()?)))
            .collect();
        lives.sort_unstable();
        lives.into_iter().map(|(_, number, id)| (number, id)).collect()
    }

    pub fn sent(&mut self, kind: Kind, made: Option<&Made>, moment: u64, wall_us: u64) -> Open {
        let mut serials = Vec::new();
        match &kind {
            Kind::Add(number) => {
                let any = Fact {
                    told: moment,
                    hard: Some(Safe {
                        asked: moment,
                        told: moment,
                    }),
                    state: State::Any,
                };
                let job = Job {
                    made: made.expect("it was made").clone(),
                    id: None,
                    facts: vec![any],
                    left: 0,
                    left_unsynced: false,
                    doomed: wall_us <= self.flushes_until_us,
                    lease_of_other: false,
                    open: 1,
                    serial: 0,
                    last_event: moment,
                    touched_us: wall_us,
                    murky_until_us: 0,
                    expires_us: None,
                    ctime: None,
                };
                serials.push(job.serial);
                self.jobs.insert(*number, job);
            }
            Kind::Jobs(_, numbers) => {
                for number in numbers {
                    let job = self.jobs.get_mut(number).expect("it is known");
                    job.open += 1;
                    job.serial += 1;
                    job.last_event = moment;
                    job.touched_us = wall_us;
                    serials.push(job.serial);
                }
            }
            Kind::Get { queues, .. } => queues.iter().for_each(|&queue| self.queues[queue].gets_open += 1),
            Kind::Pause(queue, word) => {
                let queue = &mut self.queues[*queue];
                queue.open += 1;
                queue.serial += 1;
                queue.pauses |= *word != "none" && *word != "out";
                serials.push(queue.serial);
            }
            Kind::Config(name, value) => serials.push(self.promises.sent(name, value)),
            Kind::Flush | Kind::Rewrite | Kind::Shutdown => {}
        }
        Open {
            kind,
            sent: moment,
            sent_us: wall_us,
            serials,
        }
    }

    pub fn replied(&mut self, open: Open, reply: &Reply, moment: u64, wall_us: u64) -> Checked {
        if matches!(reply, Reply::Error(text) if text.starts_with("MISCONF")) {
            self.misconf += 1;
        }
        match &open.kind {
            Kind::Add(number) => self.added(*number, &open, reply, moment, wall_us)?,
            Kind::Jobs(verb, numbers) => self.changed(*verb, numbers, &open, reply, moment, wall_us)?,
            Kind::Get { queues, counters, .. } => {
                queues.iter().for_each(|&queue| self.queues[queue].gets_open -= 1);
                match reply {
                    Reply::Array(jobs) => {
                        for job in jobs {
                            self.delivered(job, *counters, &open, moment, wall_us)?;
                        }
                    }
                    Reply::NullArray => {
                        self.doubt(queues, matches!(open.kind, Kind::Get { waits: true, .. }))
                    }
                    Reply::Error(_) => self.doubt(queues, true),
                    other => return Err(format!("GETJOB got {other}")),
                }
            }
            Kind::Pause(at, _) => {
                let queue = &mut self.queues[*at];
                let alone = queue.open == 1
                    && queue.serial == open.serials[0]
                    && open.sent_us > self.flushes_until_us;
                queue.open -= 1;
                queue.serial += 1;
                match reply {
                    Reply::Simple(word) => queue.push(open.sent, moment, alone.then(|| word.clone())),
                    _ => queue.push(open.sent, moment, None),
                }
                self.harden(self.homes[*at], open.sent, moment);
            }
            Kind::Flush => self.flushed(&open, *reply == Reply::Simple("OK".into()), moment),
            Kind::Config(name, value) => {
                let done = *reply == Reply::Simple("OK".into());
                self.promises.answered(name, value, open.serials[0], done, moment);
            }
            Kind::Rewrite | Kind::Shutdown => {}
        }
        Ok(())
    }

    fn doubt(&mut self, queues: &[usize], doubt: bool) {
        queues.iter().for_each(|&queue| self.queues[queue].doubt |= doubt);
    }

    fn added(&mut self, number: u64, open: &Open, reply: &Reply, moment: u64, wall_us: u64) -> Checked {
        let job = self.jobs.get_mut(&number).expect("it was sent");
        let alone = job.open == 1 && job.serial == open.serials[0] && open.sent_us > job.murky_until_us;
        job.open -= 1;
        match reply {
            Reply::Simple(id) => {
                if job.id.get_or_insert_with(|| id.clone()) != id {
                    return Err(format!("job {number} is {id} and {:?}", job.id));
                }
                let ttl_us = job.made.ttl_s * 1_000_000;
                job.expires_us = Some((open.sent_us + ttl_us, wall_us + ttl_us));
                let delay_us = job.made.delay_s * 1_000_000;
                let state = match (alone, delay_us) {
                    (true, 0) => State::Queued(Some(Counters {
                        entered: true,
                        ..Counters::NEW
                    })),
                    (true, _) => State::Active {
                        least_us: open.sent_us + delay_us,
                        most_us: wall_us + delay_us,
                        counters: Some(Counters::NEW),
                    },
                    (false, _) if job.last() == State::Any => State::There,
                    (false, _) => job.last(),
                };
                let queue = job.made.queue;
                job.push(moment, Some(open.sent), state);
                self.told += 1;
                self.harden(self.homes[queue], open.sent, moment);
            }
            Reply::Error(text) if text.starts_with("PAUSED") => {
                job.push(moment, Some(open.sent), State::Gone)
            }
            Reply::Error(text) if text.starts_with("MISCONF") => {
                job.push(moment, Some(open.sent), State::Any);
            }
            other => return Err(format!("ADDJOB got {other}")),
        }
        Ok(())
    }

    fn changed(
        &mut self,
        verb: Verb,
        numbers: &[u64],
        open: &Open,
        reply: &Reply,
        moment: u64,
        wall_us: u64,
    ) -> Checked {
        let count = match reply {
            Reply::Integer(count) => Some(*count),
            Reply::Error(text) if text.starts_with("MISCONF") => None,
            Reply::Error(_) => Some(0),
            other => return Err(format!("{verb:?} got {other}")),
        };
        for (&number, &serial) in numbers.iter().zip(&open.serials) {
            let job = self.jobs.get_mut(&number).expect("it is known");
            let alone = job.open == 1 && job.serial == serial && open.sent_us > job.murky_until_us;
            job.open -= 1;
            job.serial += 1;
            job.last_event = moment;
            let state = match count {
                _ if job.last() == State::Gone => {
                    job.push_before_end(moment);
                    continue;
                }
                None if verb.removes() => State::Any,
                None => State::There,
                Some(count) if verb.removes() && count == numbers.len() as i64 => State::Gone,
                Some(_) if verb.removes() => State::Any,
                Some(0) if verb == Verb::Working || alone => continue,
                Some(0) => State::There,
                Some(_) if verb == Verb::Working && job.once() => continue,
                Some(_) => {
                    let pauses = self.queues[job.made.queue].pauses;
                    after(verb, job, alone, pauses, open.sent_us, wall_us)
                }
            };
            let state = if state == State::There && job.last() == State::Any {
                State::Any
            } else {
                state
            };
            let safe = (state != State::There).then_some(open.sent);
            job.push(moment, safe, state);
            job.lease_of_other = verb == Verb::Working && self.queues[job.made.queue].gets_open > 0;
        }
        if count.is_some_and(|count| count > 0) {
            self.told += 1;
            let queue = self.jobs[&numbers[0]].made.queue;
            if numbers.len() == 1 && !(verb == Verb::Working && self.jobs[&numbers[0]].once()) {
                self.harden(self.homes[queue], open.sent, moment);
            }
        }
        Ok(())
    }

    /// What was told before this command was sent stands before its record in the log.
    fn harden(&mut self, shard: u16, sent: u64, moment: u64) {
        let (jobs, faulty) = (&mut self.jobs, self.faulty);
        self.soft.retain(|&(of, number, at)| {
            let facts = &mut jobs.get_mut(&number).expect("it is known").facts;
            let Some(fact) = facts.get_mut(at) else {
                return false;
            };
            let safe = of == shard && fact.told < sent;
            if safe && !faulty {
                fact.hard = Some(Safe {
                    asked: sent,
                    told: moment,
                });
            }
            !safe
        });
    }

    /// An orderly stop wrote all that was under way.
    pub fn stopped_in_order(&mut self, moment: u64) {
        (0..=u16::MAX)
            .take(8)
            .for_each(|shard| self.harden(shard, moment, moment));
    }

    fn delivered(&mut self, job: &Reply, counters: bool, open: &Open, moment: u64, wall_us: u64) -> Checked {
        let parts = job.elements();
        let (Some(Reply::Bulk(queue)), Some(Reply::Bulk(id)), Some(Reply::Bulk(body))) =
            (parts.first(), parts.get(1), parts.get(2))
        else {
            return Err(format!("no job: {job}"));
        };
        let number = self.recognize(id, queue, body)?;
        let job = self.jobs.get_mut(&number).expect("recognized");
        if job.last() == State::Gone && job.last_event < open.sent {
            return Err(format!("job {number} was handed out after it was removed"));
        }
        if let Some((_, most)) = job.expires_us
            && open.sent_us > most + SLACK_US
        {
            return Err(format!("job {number} was handed out after its life"));
        }
        if job.once() {
            job.left_unsynced |= self.promises.may_be_no();
            job.left += 1;
            if job.left > 1 {
                return Err(format!("job {number} was handed out twice"));
            }
            if job.last() != State::Gone {
                job.push(moment, Some(open.sent), State::Spent);
                return Ok(());
            }
        }
        if job.last() == State::Gone {
            job.push_before_end(moment);
            return Ok(());
        }
        let alone = job.open == 0 && job.last_event < open.sent && open.sent_us > job.murky_until_us;
        let pauses = self.queues[job.made.queue].pauses;
        let known = counters_by(job, pauses, open.sent_us, wall_us);
        let state = if alone {
            let counters = match parts {
                [_, _, _, _, Reply::Integer(nacks), _, Reply::Integer(additional)] if counters => {
                    Some(Counters {
                        nacks: *nacks as u64,
                        additional: *additional as u64,
                        entered: true,
                    })
                }
                _ => known,
            };
            let retry_us = job.made.retry_s * 1_000_000;
            State::Active {
                least_us: open.sent_us.max(job.touched_us) + retry_us,
                most_us: wall_us + retry_us,
                counters,
            }
        } else {
            State::There
        };
        // A lease's record is not waited for.
        job.push(moment, None, state);
        let (queue, at) = (job.made.queue, job.facts.len() - 1);
        if !self.faulty {
            self.soft.push((self.homes[queue], number, at));
        }
        Ok(())
    }

    /// The number of a job whose body somebody saw.
    pub fn recognize(&mut self, id: &[u8], queue: &[u8], body: &[u8]) -> Result<u64, String> {
        let id = String::from_utf8_lossy(id).into_owned();
        let number = number_of(body).ok_or_else(|| format!("{id} has a body that nobody sent"))?;
        let job = self
            .jobs
            .get_mut(&number)
            .ok_or_else(|| format!("job {number} was never added"))?;
        if job.made.body != body || self.names[job.made.queue].as_bytes() != queue {
            return Err(format!("job {number} is not what was added"));
        }
        if *job.id.get_or_insert_with(|| id.clone()) != id {
            return Err(format!("job {number} is {id} and {:?}", job.id));
        }
        Ok(number)
    }

    fn flushed(&mut self, open: &Open, told: bool, moment: u64) {
        for job in self.jobs.values_mut().filter(|job| job.last() != State::Gone) {
            let before = job.open == 0 && job.last_event < open.sent;
            let state = if told && before { State::Gone } else { State::Any };
            job.push(moment, Some(open.sent), state);
        }
        for queue in &mut self.queues {
            let before = queue.open == 0 && queue.facts.last().is_some_and(|(safe, _)| safe.told < open.sent);
            let state = (told && before).then(|| "none".to_owned());
            queue.push(open.sent, moment, state);
            // A PAUSE under way may come before or after.
            queue.serial += 1;
        }
    }

    /// The client of a command is gone, or the node: it may have been done, or not. `partial` is what came of its reply.
    pub fn abandoned(&mut self, open: &Open, partial: &[u8], moment: u64, wall_us: u64) -> Checked {
        match &open.kind {
            Kind::Add(number) => {
                let job = self.jobs.get_mut(number).expect("it was sent");
                job.open -= 1;
                job.serial += 1;
                // It may be done at any time from its sending on, also after what others are told meanwhile.
                job.last_event = moment;
                job.murky_until_us = wall_us + MURKY_US;
            }
            Kind::Jobs(verb, numbers) => {
                for number in numbers {
                    let job = self.jobs.get_mut(number).expect("it is known");
                    job.open -= 1;
                    job.murky_until_us = wall_us + MURKY_US;
                    if job.last() == State::Gone {
                        job.push_before_end(moment);
                    } else {
                        let unknown = verb.removes() || job.last() == State::Any;
                        job.push(moment, None, if unknown { State::Any } else { State::There });
                    }
                }
            }
            Kind::Get { queues, .. } => {
                queues.iter().for_each(|&queue| self.queues[queue].gets_open -= 1);
                self.doubt(queues, true);
                self.unsure(queues, open.sent_us, moment, wall_us);
                self.left_in_part(queues, partial, moment)?;
            }
            Kind::Pause(at, _) => {
                let queue = &mut self.queues[*at];
                queue.open -= 1;
                queue.serial += 1;
                queue.push(open.sent, moment, None);
            }
            Kind::Flush => {
                self.flushed(open, false, moment);
                self.flushes_until_us = wall_us + MURKY_US;
            }
            Kind::Config(..) | Kind::Rewrite | Kind::Shutdown => {}
        }
        Ok(())
    }

    /// Jobs of these queues may have been handed out to somebody who did not live to tell.
    fn unsure(&mut self, queues: &[usize], since_us: u64, moment: u64, wall_us: u64) {
        for job in self
            .jobs
            .values_mut()
            .filter(|job| queues.contains(&job.made.queue))
        {
            let last = job.last();
            let is_active = matches!(last.by(since_us, wall_us + MURKY_US), State::Active { .. });
            let elsewhere = is_active && !job.lease_of_other;
            if last == State::Gone {
                job.push_before_end(moment);
            } else if !elsewhere && !matches!(last, State::Any | State::Spent) {
                job.push(moment, None, State::There);
            }
            job.murky_until_us = wall_us + MURKY_US;
        }
    }

    /// A job of at most once has left when its whole body has, also in a reply that was cut off.
    fn left_in_part(&mut self, queues: &[usize], partial: &[u8], moment: u64) -> Checked {
        let unsynced = self.promises.may_be_no();
        for (number, job) in &mut self.jobs {
            let body = job.made.body.as_slice();
            let whole = job.once()
                && queues.contains(&job.made.queue)
                && partial.windows(body.len()).any(|window| window == body);
            if whole {
                job.left += 1;
                job.left_unsynced |= unsynced;
                if job.left > 1 {
                    return Err(format!("job {number} was handed out twice"));
                }
                job.push(moment, Some(moment), State::Spent);
            }
        }
        Ok(())
    }

    /// No log was kept when the node ended, or it is not known whether one was.
    pub fn nothing_is_kept(&mut self, moment: u64) {
        self.jobs
            .values_mut()
            .for_each(|job| job.push(moment, Some(moment), State::Any));
        self.queues
            .iter_mut()
            .for_each(|queue| queue.push(moment, moment, None));
    }

    /// The node ended. At most once jobs that somebody might have been handed are in doubt.
    pub fn ended(&mut self, moment: u64) {
        for job in self.jobs.values_mut().filter(|job| job.once()) {
            let queue = &self.queues[job.made.queue];
            let doubt = queue.doubt || self.faulty;
            if doubt && !matches!(job.last(), State::Gone | State::Any | State::Spent) {
                job.push(moment, None, State::There);
            }
        }
    }

    /// Holds what there is against what clients were told. `horizons`: up to which moment all that was told of a queue survives
    /// the end of the node whatever `appendfsync` says. `powerless`: the power was lost.
    pub fn check(&mut self, sight: &Sight, horizons: &[u64], powerless: bool) -> Checked {
        let mut seen = BTreeMap::new();
        for there in &sight.jobs {
            let number = self.recognize(there.id.as_bytes(), there.queue.as_bytes(), &there.body)?;
            if seen.insert(number, there).is_some() {
                return Err(format!("job {number} is there twice"));
            }
        }
        let always = self.promises.always_since();
        let survives = |safe: Safe, queue: usize| {
            safe.told <= horizons[queue] || always.is_some_and(|since| safe.asked >= since)
        };
        for (number, job) in &mut self.jobs {
            let queue = job.made.queue;
            let firm = |fact: &Fact| fact.hard.is_some_and(|safe| survives(safe, queue));
            let first = job.facts.iter().rposition(firm).unwrap_or(0);
            let may = &job.facts[first..];
            let told = || {
                format!(
                    "job {number} of {} ({:?}, RETRY {}), what is told at {} survives, and from {always:?} on: {may:?}",
                    self.names[queue], job.id, job.made.retry_s, horizons[queue]
                )
            };
            let Some(there) = seen.get(number) else {
                let dead = job
                    .expires_us
                    .is_none_or(|(least, _)| sight.read_us + SLACK_US >= least);
                let may_be_gone = may
                    .iter()
                    .any(|fact| matches!(fact.state, State::Gone | State::Any));
                if !may_be_gone && !dead {
                    return Err(format!("lost: {}", told()));
                }
                continue;
            };
            if !may
                .iter()
                .any(|fact| fact.state.fits(there, self.queues[queue].pauses))
            {
                return Err(format!("{there:?} is not what was told: {}", told()));
            }
            if job
                .expires_us
                .is_some_and(|(_, most)| sight.sent_us > most + SLACK_US)
            {
                return Err(format!("outlives its end: {}", told()));
            }
            if *job.ctime.get_or_insert(there.ctime) != there.ctime {
                return Err(format!("another creation stamp: {there:?}, {}", told()));
            }
            if job.once() && there.queued && job.left > 0 && !(powerless && job.left_unsynced) {
                return Err(format!(
                    "it left already, and is to be had again: {there:?}, {}",
                    told()
                ));
            }
        }
        for (at, (queue, state)) in self.queues.iter().zip(&sight.pauses).enumerate() {
            let first = queue.facts.iter().rposition(|(safe, _)| survives(*safe, at));
            let may = &queue.facts[first.unwrap_or(0)..];
            if !may
                .iter()
                .any(|(_, known)| known.as_ref().is_none_or(|known| known == state))
            {
                return Err(format!("{} is paused {state}: {may:?}", self.names[at]));
            }
        }
        Ok(())
    }

    /// From now on what there is now is what is known.
    pub fn rebase(&mut self, sight: &Sight, moment: u64, powerless: bool) {
        let seen: BTreeMap<u64, &Seen> = sight
            .jobs
            .iter()
            .filter_map(|seen| Some((number_of(&seen.body)?, seen)))
            .collect();
        for (number, job) in &mut self.jobs {
            if powerless && job.left_unsynced {
                // That it left may be forgotten.
                job.left = 0;
            }
            let state = match seen.get(number) {
                None => State::Gone,
                Some(seen) => rebased(job, seen),
            };
            if let Some(seen) = seen.get(number).filter(|_| job.expires_us.is_none()) {
                let least_us = sight.sent_us + seen.left_s.saturating_sub(1) * 1_000_000;
                job.expires_us = Some((least_us, sight.read_us + seen.left_s * 1_000_000));
            }
            job.facts.clear();
            job.doomed = false;
            job.push(moment, Some(moment), state);
            (job.open, job.murky_until_us, job.left_unsynced) = (0, 0, false);
        }
        for (queue, state) in self.queues.iter_mut().zip(&sight.pauses) {
            *queue = Queue {
                pauses: state != "none" && state != "out",
                serial: queue.serial + 1,
                ..Queue::default()
            };
            queue.push(moment, moment, Some(state.clone()));
        }
    }
}

/// The state of a job after a command that counted it.
fn after(verb: Verb, job: &Job, alone: bool, pauses: bool, sent_us: u64, wall_us: u64) -> State {
    if !alone {
        return State::There;
    }
    let counters = counters_by(job, pauses, sent_us, wall_us);
    let retry_us = job.made.retry_s * 1_000_000;
    match verb {
        Verb::Nack => State::Queued(counters.map(|counters| Counters {
            nacks: counters.nacks + 1,
            entered: true,
            ..counters
        })),
        Verb::Enqueue => State::Queued(counters.map(|counters| Counters {
            additional: counters.additional + u64::from(counters.entered),
            entered: true,
            ..counters
        })),
        _ if job.once() => State::Parked(counters),
        _ => State::Active {
            least_us: sent_us + retry_us,
            most_us: wall_us + retry_us,
            counters,
        },
    }
}

/// The counters of a job between these instants. A queue that `pauses` may keep it from entering.
fn counters_by(job: &Job, pauses: bool, least_us: u64, most_us: u64) -> Option<Counters> {
    let now = job.last().by(least_us, most_us);
    now.counters().filter(|_| !pauses || now == job.last())
}

fn rebased(job: &Job, seen: &Seen) -> State {
    let counters = |entered: Option<bool>| {
        entered.map(|entered| Counters {
            nacks: seen.nacks,
            additional: seen.additional,
            entered,
        })
    };
    if seen.queued {
        return State::Queued(counters(Some(true)));
    }
    let surely = job.made.delay_s == 0 || seen.nacks + seen.additional > 0;
    match seen.enters_us() {
        Some((least_us, most_us)) => State::Active {
            least_us,
            most_us: most_us + 1_000,
            counters: counters(surely.then_some(true)),
        },
        None if job.left > 0 => State::Spent,
        None => State::There,
    }
}
