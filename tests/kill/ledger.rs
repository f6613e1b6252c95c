//! What must hold after a server was killed and started again, by all that clients sent and were told.
//!
//! A round is what happens between two looks at all jobs ([`Found`]). The ledger knows each job as it was found at the end of the last
//! round, and reads what was done with it since. It says only what follows for certain from the times of commands and replies:
//!
//! | known | so |
//! | --- | --- |
//! | ADDJOB answered, or the job was handed out or found once | it is there, until somebody ends it or its TTL is over |
//! | ACKJOB, FASTACK, DELJOB answered, or not found once | it is never seen again |
//! | ADDJOB not answered | it is there once or not at all |
//! | RETRY 0, handed out | never handed out again, nor queued |
//! | the last command about it answered before the end, none unanswered | its state is what that made of it |
//! | handed out, RETRY above 0 | leased, if an ADDJOB of the same queue was answered behind it: its record was written before |
//! | leased, delayed, dequeued | not handed out before the end of that, unless by NACK or ENQUEUE |
//! | PAUSE answered | it holds |

use std::collections::{HashMap, HashSet};

use crate::found::{Found, Seen};
use crate::traffic::{Add, At, Event, Got, Log, MS, NEVER, PAUSED, QUEUES, SECOND, Verb, What};

/// By how much the server's idea of now may be behind a client's: it reads the clock once a turn, and may be held up in between.
const SLACK: At = 500 * MS;

/// What is known of a job's state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Queued,
    /// Not to be had until some time between the two; both `NEVER`: not by itself.
    Active(At, At),
    Unknown,
}

#[derive(Debug)]
struct Job {
    add: Add,
    /// When its ADDJOB was sent, and when it was known to be there.
    since: (At, At),
    /// At the end of the last round.
    state: State,
    nacks: u64,
}

/// What was done with a job in a round.
#[derive(Clone, Copy, Debug)]
enum Deed {
    Added,
    Got {
        recorded: bool,
    },
    /// Whether it was done: the count of the answer may leave that open.
    Id(Verb, Option<bool>),
}

#[derive(Clone, Copy, Debug)]
struct Touch {
    sent: At,
    received: At,
    deed: Deed,
}

impl Touch {
    /// NACK and ENQUEUE bring a job back before its time, whatever they were answered.
    fn releases(&self) -> bool {
        matches!(self.deed, Deed::Id(Verb::Nack | Verb::Enqueue, _))
    }

    fn ends(&self) -> bool {
        matches!(self.deed, Deed::Id(verb, _) if verb.ends())
    }

    fn overlaps(&self, from: At, to: At) -> bool {
        self.sent < to && self.received > from
    }
}

/// All that is known.
pub struct Ledger {
    jobs: HashMap<String, Job>,
    gone: HashSet<String>,
    /// RETRY 0 jobs that were handed out.
    taken: HashSet<String>,
    /// Which job has a tag.
    tags: HashMap<String, String>,
    pause: String,
    wrong: Vec<String>,
    tally: Tally,
}

/// How often something was looked at: a check that never applies is none.
#[derive(Clone, Debug, Default)]
pub struct Tally {
    pub rounds: usize,
    pub added: usize,
    pub delivered: usize,
    pub taken: usize,
    pub ended: usize,
    pub unanswered: usize,
    pub adopted: usize,
    pub states: usize,
    pub leases: usize,
    pub found: usize,
}

impl Tally {
    /// A check that never had anything to check has shown nothing.
    pub fn assert_all_happened(&self) {
        let counts = [
            self.rounds,
            self.added,
            self.delivered,
            self.taken,
            self.ended,
            self.unanswered,
            self.adopted,
            self.states,
            self.leases,
            self.found,
        ];
        assert!(counts.iter().all(|&count| count > 0), "{self:?}");
    }
}

/// What a round is about, sorted by what it concerns.
#[derive(Default)]
struct Round {
    touches: HashMap<String, Vec<Touch>>,
    /// When the last look at all jobs ended.
    looked_at: At,
    /// Unanswered ADDJOBs by tag, with when they were sent.
    open_adds: HashMap<String, (Add, At)>,
    /// Jobs that unanswered GETJOBs may have taken.
    open_gets: [usize; QUEUES.len()],
    /// Jobs that those have taken.
    handed_to_nobody: [usize; QUEUES.len()],
}

impl Ledger {
    pub fn new() -> Self {
        Self {
            jobs: HashMap::new(),
            gone: HashSet::new(),
            taken: HashSet::new(),
            tags: HashMap::new(),
            pause: "none".to_owned(),
            wrong: Vec::new(),
            tally: Tally::default(),
        }
    }

    pub fn tally(&self) -> &Tally {
        &self.tally
    }

    pub fn live(&self) -> Vec<String> {
        let mut ids: Vec<String> = self.jobs.keys().cloned().collect();
        ids.sort();
        ids
    }

    /// Between which moments a job was added.
    pub fn added_between(&self, id: &str) -> Option<(At, At)> {
        self.jobs.get(id).map(|job| job.since)
    }

    /// Whether a job may certainly still be handed out: not the RETRY 0 ones that were or may have been, nor those of a short life.
    pub fn is_deliverable(&self, id: &str) -> bool {
        let is_certain = |job: &Job| job.add.retry_s > 0 || job.state != State::Active(NEVER, NEVER);
        self.jobs
            .get(id)
            .is_some_and(|job| job.add.ttl_s == 0 && is_certain(job))
    }

    /// Whether it is a RETRY 0 job that was handed out.
    pub fn is_taken(&self, id: &str) -> bool {
        self.taken.contains(id)
    }

    /// The log was off when the server ended: there is nothing.
    pub fn forget(&mut self, log: &Log, found: &Found) -> Result<(), String> {
        for event in &log.events {
            if let What::Add(_, Some(id)) = &event.what {
                self.gone.insert(id.clone());
            }
        }
        self.gone.extend(self.jobs.drain().map(|(id, _)| id));
        self.wrong.extend(log.wrong.iter().cloned());
        if !found.jobs.is_empty() {
            self.wrong
                .push("jobs came back from a log that was put aside".to_owned());
        }
        self.pause.clone_from(&found.pause);
        self.verdict()
    }

    /// A round is over: the server ended and holds this when it was started again. `orderly`: it wrote all before it ended.
    pub fn check(&mut self, mut log: Log, found: &Found, orderly: bool) -> Result<(), String> {
        self.tally.rounds += 1;
        self.wrong.append(&mut log.wrong);
        log.events.sort_by_key(|event| event.sent);
        let mut round = Round {
            looked_at: found.looked_at,
            ..Round::default()
        };
        self.enter_adds(&log, &mut round);
        self.enter_deliveries(&log, &mut round, orderly);
        self.enter_ids(&log, &mut round);
        for id in &log.cut {
            // What arrived in part was handed out.
            if self.jobs.get(id).is_some_and(|job| job.add.retry_s == 0) {
                self.take_once(id);
            }
        }
        self.adopt_found(found, &mut round);
        self.check_pause(&log, found);
        let ids = self.live();
        for id in &ids {
            let mut touches = round.touches.remove(id).unwrap_or_default();
            touches.sort_by_key(|touch| touch.sent);
            let before = self.wrong.len();
            self.check_deliveries(id, &touches, &round);
            self.check_end(id, &touches, found.jobs.get(id), &mut round);
            if self.wrong.len() > before {
                let (job, seen) = (self.jobs.get(id), found.jobs.get(id).map(short));
                let history = format!("  {id} {job:?}\n  {touches:?}\n  found {seen:?}");
                self.wrong.push(history);
            }
            self.settle(id, found.jobs.get(id));
        }
        for (queue, &lost) in round.handed_to_nobody.iter().enumerate() {
            if lost > round.open_gets[queue] {
                let open = round.open_gets[queue];
                self.wrong.push(format!(
                    "{lost} jobs of {} were handed out to nobody, {open} at most may",
                    QUEUES[queue]
                ));
            }
        }
        self.verdict()
    }

    fn verdict(&mut self) -> Result<(), String> {
        if self.wrong.is_empty() {
            return Ok(());
        }
        let count = self.wrong.len();
        self.wrong.truncate(20);
        Err(format!("{count} things are wrong:\n{}", self.wrong.join("\n")))
    }

    fn enter_adds(&mut self, log: &Log, round: &mut Round) {
        for event in &log.events {
            let What::Add(add, id) = &event.what else { continue };
            match id {
                Some(id) => {
                    self.tally.added += 1;
                    self.enter_job(id, add, (event.sent, event.received));
                    round.touch(id, event, Deed::Added);
                }
                None if !event.is_answered() => {
                    self.tally.unanswered += 1;
                    round.open_adds.insert(add.tag.clone(), (add.clone(), event.sent));
                }
                None => {}
            }
        }
    }

    fn enter_job(&mut self, id: &str, add: &Add, since: (At, At)) {
        if let Some(other) = self.tags.insert(add.tag.clone(), id.to_owned())
            && other != id
        {
            self.wrong
                .push(format!("one ADDJOB ({}) made {other} and {id}", add.tag));
        }
        let job = Job {
            add: add.clone(),
            since,
            state: State::Unknown,
            nacks: 0,
        };
        if self.jobs.insert(id.to_owned(), job).is_some() || self.gone.contains(id) {
            self.wrong.push(format!("{id} was given twice"));
        }
    }

    /// A job was seen: it is one that we know, or that an unanswered ADDJOB made.
    fn recognise(&mut self, id: &str, queue: &str, body: &[u8], at: At, round: &mut Round) -> bool {
        if !self.jobs.contains_key(id) {
            let text = String::from_utf8_lossy(body);
            let tag = text.split(' ').next().unwrap_or_default();
            match round.open_adds.remove(tag) {
                Some((add, sent)) => {
                    self.tally.adopted += 1;
                    self.enter_job(id, &add, (sent, at));
                }
                None => {
                    let what = if self.gone.contains(id) {
                        "came back"
                    } else {
                        "was never added"
                    };
                    self.wrong.push(format!("{id} ({tag}, of {queue}) {what}"));
                    return false;
                }
            }
        }
        let add = &self.jobs[id].add;
        if QUEUES[add.queue] != queue || add.body().as_bytes() != body {
            self.wrong.push(format!("{id} is another job than {}", add.tag));
        }
        true
    }

    fn enter_deliveries(&mut self, log: &Log, round: &mut Round, orderly: bool) {
        let mut last_added = [0; QUEUES.len()];
        for event in &log.events {
            if let What::Add(add, Some(_)) = &event.what {
                last_added[add.queue] = event.sent.max(last_added[add.queue]);
            }
        }
        for event in &log.events {
            let What::Get { queues, count, jobs } = &event.what else {
                continue;
            };
            if !event.is_answered() {
                queues.iter().for_each(|&queue| round.open_gets[queue] += count);
            }
            if jobs.len() > *count {
                self.wrong.push(format!("more than COUNT: {event:?}"));
            }
            for Got { queue, id, body } in jobs {
                self.tally.delivered += 1;
                if !queues.iter().any(|&asked| QUEUES[asked] == queue) {
                    self.wrong.push(format!("{id} of {queue} was not asked for"));
                }
                if self.recognise(id, queue, body, event.received, round) {
                    let add = &self.jobs[id].add;
                    let recorded = orderly || add.retry_s == 0 || last_added[add.queue] > event.received;
                    if add.retry_s == 0 {
                        self.take_once(id);
                    }
                    round.touch(id, event, Deed::Got { recorded });
                }
            }
        }
    }

    fn take_once(&mut self, id: &str) {
        self.tally.taken += 1;
        if !self.taken.insert(id.to_owned()) {
            self.wrong.push(format!("RETRY 0, handed out twice: {id}"));
        }
    }

    fn enter_ids(&mut self, log: &Log, round: &mut Round) {
        for event in &log.events {
            if let What::Ids(verb, ids, count) = &event.what {
                let done = match (event.is_answered(), *count) {
                    (true, 0) => Some(false),
                    (true, count) if count == ids.len() as i64 => Some(true),
                    _ => None,
                };
                for id in ids {
                    self.tally.ended += usize::from(verb.ends());
                    round.touch(id, event, Deed::Id(*verb, done));
                }
            }
        }
    }

    fn adopt_found(&mut self, found: &Found, round: &mut Round) {
        for (id, seen) in &found.jobs {
            self.tally.found += 1;
            self.recognise(id, &seen.queue, &seen.body, seen.received, round);
        }
    }

    fn check_pause(&mut self, log: &Log, found: &Found) {
        // One connection at a time says PAUSE.
        let mut pauses: Vec<(At, At, &str)> = vec![(0, 0, &self.pause)];
        for event in &log.events {
            if let What::Pause(state) = &event.what {
                pauses.push((event.sent, event.received, state));
            }
        }
        let answered = pauses.iter().rposition(|&(_, received, _)| received != NEVER);
        let may = &pauses[answered.expect("the first is")..];
        let mut wrong = Vec::new();
        if !may.iter().any(|&(_, _, state)| state == found.pause) {
            wrong.push(format!("the queue's pause is {}, not {may:?}", found.pause));
        }
        for event in &log.events {
            let (enters, leaves) = match &event.what {
                What::Add(add, Some(_)) => (add.queue == PAUSED, false),
                What::Get { jobs, .. } => (false, jobs.iter().any(|job| job.queue == QUEUES[PAUSED])),
                _ => continue,
            };
            for (at, (_, received, state)) in pauses.iter().enumerate() {
                let until = pauses.get(at + 1).map_or(NEVER, |next| next.0);
                let closed = match *state {
                    "in" => enters,
                    "out" => leaves,
                    "all" => enters || leaves,
                    _ => false,
                };
                if closed && event.sent > *received && event.received < until {
                    wrong.push(format!("in spite of PAUSE {state}: {event:?}"));
                }
            }
        }
        self.wrong.extend(wrong);
        self.pause.clone_from(&found.pause);
    }

    /// No job is handed out when it is not to be had.
    fn check_deliveries(&mut self, id: &str, touches: &[Touch], round: &Round) {
        let job = &self.jobs[id];
        // Whoever did not read its reply may have had the job until now: it returns, also if another asked for more time.
        let may_return = round.open_gets[job.add.queue] > 0;
        let (retry, delay) = (job.add.retry_s * SECOND, job.add.delay_s * SECOND);
        let is_free = |from: At, to: At| {
            touches
                .iter()
                .any(|touch| touch.releases() && touch.overlaps(from, to))
        };
        let mut wrong = Vec::new();
        for (at, got) in touches.iter().enumerate() {
            if !matches!(got.deed, Deed::Got { .. }) {
                continue;
            }
            if let State::Active(from, _) = job.state
                && got.received < from.saturating_sub(SLACK)
                && !is_free(0, got.received)
            {
                wrong.push(format!(
                    "handed out while it was leased, delayed or dequeued: {id}"
                ));
            }
            for (other_at, other) in touches.iter().enumerate() {
                let (hold, symmetric) = match other.deed {
                    Deed::Got { .. } if other_at < at => (retry, true),
                    Deed::Added => (delay, false),
                    Deed::Id(Verb::Working, _) if may_return => continue,
                    Deed::Id(Verb::Dequeue | Verb::Working, Some(true)) if retry > 0 => (retry, false),
                    Deed::Id(Verb::Dequeue, Some(true)) => (NEVER / 2, false),
                    Deed::Id(verb, _) if verb.ends() && got.sent > other.received => {
                        wrong.push(format!("handed out after its end: {id}"));
                        continue;
                    }
                    _ => continue,
                };
                let from = other.sent.min(got.sent);
                let to = other.received.max(got.received);
                if (symmetric || got.sent > other.received)
                    && (to - from) + SLACK < hold
                    && !is_free(from, to)
                {
                    wrong.push(format!("handed out again while it was held by {other:?}: {id}"));
                }
            }
        }
        self.wrong.extend(wrong);
    }

    /// A job is where it is to be.
    fn check_end(&mut self, id: &str, touches: &[Touch], seen: Option<&Seen>, round: &mut Round) {
        let job = &self.jobs[id];
        let Some(seen) = seen else {
            let ttl = job.add.ttl_s * SECOND;
            let is_over = ttl > 0 && round.looked_at + SLACK >= job.since.0 + ttl;
            if !is_over && !touches.iter().any(Touch::ends) {
                self.wrong.push(format!("lost: {id}"));
            }
            return;
        };
        if touches
            .iter()
            .any(|touch| touch.ends() && touch.received != NEVER)
        {
            self.wrong.push(format!("came back after its end: {id}"));
        }
        if self.taken.contains(id) && seen.queued {
            self.wrong
                .push(format!("RETRY 0, handed out, and queued again: {id}"));
        }
        let nacked = |sure: bool| {
            let is = |touch: &&Touch| match touch.deed {
                Deed::Id(Verb::Nack, done) => done == Some(true) || (!sure && done.is_none()),
                _ => false,
            };
            job.nacks + touches.iter().filter(is).count() as u64
        };
        if !(nacked(true)..=nacked(false)).contains(&seen.nacks) {
            self.wrong.push(format!("{} NACKs: {id}", seen.nacks));
        }
        if job.add.queue == PAUSED {
            return;
        }
        let due_at = seen.requeued_in_ms.map(|ms| seen.sent + ms * MS);
        let has_open = round.open_gets[job.add.queue] > 0;
        match state_after(job, touches, has_open) {
            State::Unknown => {}
            State::Queued => {
                self.tally.states += 1;
                let is_due = due_at.is_some_and(|due| due <= seen.received + SLACK);
                if !seen.queued && !is_due {
                    round.handed_to_nobody[job.add.queue] += 1;
                    if !has_open {
                        self.wrong.push(format!("queued, and now active: {id}"));
                    }
                }
            }
            State::Active(from, _) if seen.received + SLACK >= from => {}
            State::Active(from, to) => {
                self.tally.states += 1;
                self.tally.leases += usize::from(from != NEVER);
                let fits = match due_at {
                    None => from == NEVER,
                    Some(due) => {
                        let due_at_most = due + (seen.received - seen.sent);
                        from <= due_at_most + SLACK && due <= to.saturating_add(SLACK)
                    }
                };
                if seen.queued || !fits {
                    self.wrong
                        .push(format!("active until {from} to {to}, and now not: {id}"));
                }
            }
        }
    }

    fn settle(&mut self, id: &str, seen: Option<&Seen>) {
        let Some(seen) = seen else {
            self.jobs.remove(id);
            self.gone.insert(id.to_owned());
            return;
        };
        let job = self.jobs.get_mut(id).expect("it is known");
        job.nacks = seen.nacks;
        job.state = match seen.requeued_in_ms {
            _ if seen.queued => State::Queued,
            Some(ms) => State::Active(seen.sent + ms * MS, seen.received + ms * MS),
            None => State::Active(NEVER, NEVER),
        };
    }
}

impl Round {
    fn touch(&mut self, id: &str, event: &Event, deed: Deed) {
        let touch = Touch {
            sent: event.sent,
            received: event.received,
            deed,
        };
        self.touches.entry(id.to_owned()).or_default().push(touch);
    }
}

/// What the last thing that was done with a job made of it, if that is certain. `may_return`: it may have been with somebody who
/// did not read the reply; more time for that one ends with its connection.
fn state_after(job: &Job, touches: &[Touch], may_return: bool) -> State {
    let Some((last, before)) = touches.split_last() else {
        return job.state;
    };
    if last.received == NEVER || before.iter().any(|touch| touch.received > last.sent) {
        return State::Unknown;
    }
    let for_s = |seconds: u64| match seconds {
        0 => State::Active(NEVER, NEVER),
        _ => State::Active(last.sent + seconds * SECOND, last.received + seconds * SECOND),
    };
    match last.deed {
        Deed::Added if job.add.delay_s == 0 => State::Queued,
        Deed::Added => for_s(job.add.delay_s),
        Deed::Got { recorded: true } => for_s(job.add.retry_s),
        Deed::Id(Verb::Nack | Verb::Enqueue, Some(true)) => State::Queued,
        Deed::Id(Verb::Dequeue, Some(true)) => for_s(job.add.retry_s),
        Deed::Id(Verb::Working, Some(true)) if !may_return => for_s(job.add.retry_s),
        _ => State::Unknown,
    }
}

/// What is of interest of a job that was found; not its body.
fn short(seen: &Seen) -> (At, At, bool, Option<u64>, u64) {
    (
        seen.sent,
        seen.received,
        seen.queued,
        seen.requeued_in_ms,
        seen.nacks,
    )
}
