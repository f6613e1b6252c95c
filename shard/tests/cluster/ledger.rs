//! What clients were told, and what may be expected for it. It never looks into a node.
//!
//! All instants are the world's. What must hold while a run goes on is checked when a reply is read; what must have come in the end,
//! by [`Ledger::conclude`].

use std::collections::{BTreeMap, BTreeSet};

use crate::load::{Kind, Made, Manage, Verb};
use crate::support::{Reply, number_of};

/// Between what happens on a node and what its client reads of it, without faults, but with a slow disk.
const SLACK_US: u64 = 400_000;

/// Within this time after an instant the network carries whatever is to be carried, without faults.
const CARRIED_US: u64 = 30_000_000;

/// Within this time after it was asked for a RESET is done.
const RESET_US: u64 = 5_000_000;

/// A job that was handed out, as its client saw it.
#[derive(Clone, Copy, Debug)]
struct Delivery {
    us: u64,
    /// When an acknowledgement of it was answered.
    acked_us: Option<u64>,
}

/// A job.
#[derive(Clone, Debug)]
pub struct Job {
    pub made: Made,
    pub id: Option<String>,
    /// The node that it was added on, or handed out by, last.
    pub host: usize,
    /// The node that it was added on.
    added_at: usize,
    sent_us: u64,
    /// When ADDJOB said that it is there.
    told_us: Option<u64>,
    /// ADDJOB said that nothing was stored.
    refused: bool,
    deliveries: Vec<Delivery>,
    /// Commands that remove it, and are not answered.
    removing: u32,
    /// One of them may have worked.
    removed: bool,
    /// Commands that make it come sooner.
    hastened: u32,
    /// It was taken out of its queue.
    dequeued: bool,
    /// One node was made to drop it.
    deleted: bool,
}

impl Job {
    pub fn once(&self) -> bool {
        self.made.retry_s == 0
    }

    fn lease_us(&self) -> u64 {
        self.made.retry_s * 1_000_000
    }
}

/// A command that is under way.
#[derive(Clone, Debug)]
pub struct Open {
    pub kind: Kind,
    host: usize,
}

/// Nodes that died with all they had, one shortly after the other.
#[derive(Clone, Copy, Debug)]
struct Burst {
    /// When the network had become whole.
    whole_us: u64,
    first_us: u64,
    last_us: u64,
    nodes: u64,
}

/// A job that a client got.
#[derive(Clone, Debug)]
pub struct Got {
    pub number: u64,
    pub id: String,
    pub lease_us: u64,
}

/// What the clients know.
pub struct Ledger {
    pub jobs: BTreeMap<u64, Job>,
    names: Vec<String>,
    /// Nothing fails in this run: nobody gets a job twice that was acknowledged in time.
    pub strict: bool,
    /// Disks fail: what needs a record may be refused.
    bad_disks: bool,
    /// Memory is short on some nodes: a job may be refused for that.
    pub tight: bool,
    bursts: Vec<Burst>,
    /// Nodes that have left, with nothing on them: who, and since when they were about to go.
    emptied: Vec<(usize, u64)>,
    /// Queues that a client fetched from when it went: what it got, nobody knows.
    doubtful: BTreeSet<usize>,
    pub tally: BTreeMap<&'static str, u64>,
}

type Checked<T> = Result<T, String>;

impl Ledger {
    pub fn new(names: Vec<String>, strict: bool, bad_disks: bool, tight: bool) -> Self {
        Self {
            jobs: BTreeMap::new(),
            names,
            strict,
            bad_disks,
            tight,
            bursts: Vec::new(),
            emptied: Vec::new(),
            doubtful: BTreeSet::new(),
            tally: BTreeMap::new(),
        }
    }

    pub fn count(&mut self, what: &'static str) {
        self.count_more(what, 1);
    }

    pub fn count_more(&mut self, what: &'static str, more: u64) {
        *self.tally.entry(what).or_default() += more;
    }

    /// Jobs that may live, with their IDs; the youngest last.
    pub fn living(&self) -> Vec<(u64, String)> {
        let lives = self.jobs.iter().filter(|(_, job)| !job.removed);
        lives
            .filter_map(|(&number, job)| Some((number, job.id.clone()?)))
            .collect()
    }

    /// A node is gone with all it had; `first` when those before it are made up for.
    pub fn lost_a_node(&mut self, first: bool, whole_us: u64, now_us: u64) {
        self.count("nodes lost");
        match self.bursts.last_mut().filter(|_| !first) {
            Some(burst) => (burst.last_us, burst.nodes) = (now_us, burst.nodes + 1),
            None => self.bursts.push(Burst {
                whole_us,
                first_us: now_us,
                last_us: now_us,
                nodes: 1,
            }),
        }
    }

    /// A node is reset: it loses all it has, some time soon.
    pub fn is_reset(&mut self, whole_us: u64, now_us: u64) {
        self.bursts.push(Burst {
            whole_us,
            first_us: now_us,
            last_us: now_us + RESET_US,
            nodes: 1,
        });
    }

    /// A node has nothing left, and goes.
    pub fn is_emptied(&mut self, host: usize, now_us: u64) {
        self.count("left");
        self.emptied.push((host, now_us));
    }

    /// Whether a job came to a node when that was about to go: one that is ASYNC, or has RETRY 0, is not promised to be elsewhere.
    fn came_too_late(&self, job: &Job) -> bool {
        let is_it = |&(host, us): &(usize, u64)| {
            job.added_at == host && (us.saturating_sub(RESET_US)..us + RESET_US).contains(&job.sent_us)
        };
        (job.made.asynchronous || job.once()) && self.emptied.iter().any(is_it)
    }

    /// Whether so many holders may have died that this job is lost.
    fn may_be_lost(&self, job: &Job) -> bool {
        let told_us = job.told_us.unwrap_or(u64::MAX);
        self.bursts.iter().any(|burst| {
            // Copies of an ASYNC one may come later than its reply.
            let is_spread = !job.made.asynchronous
                || told_us.max(burst.whole_us).saturating_add(CARRIED_US) < burst.first_us;
            let copies = if is_spread { job.made.copies } else { 1 };
            job.sent_us <= burst.last_us && copies <= burst.nodes
        })
    }

    /// A client of this node sends a command.
    pub fn sent(&mut self, kind: Kind, made: Option<&Made>, host: usize, now_us: u64) -> Open {
        match &kind {
            Kind::Add(number) => {
                let job = Job {
                    made: made.expect("it was made").clone(),
                    id: None,
                    host,
                    added_at: host,
                    sent_us: now_us,
                    told_us: None,
                    refused: false,
                    deliveries: Vec::new(),
                    removing: 0,
                    removed: false,
                    hastened: 0,
                    dequeued: false,
                    deleted: false,
                };
                self.jobs.insert(*number, job);
            }
            Kind::Jobs(verb, numbers) => {
                for number in numbers {
                    let job = self.job(*number);
                    job.removing += u32::from(verb.removes());
                    job.hastened += u32::from(verb.hastens());
                    job.dequeued |= *verb == Verb::Dequeue;
                    job.deleted |= matches!(verb, Verb::Delete | Verb::DeleteEverywhere);
                }
            }
            Kind::Get(_) | Kind::Look | Kind::Pause | Kind::Manage(_) => {}
        }
        Open { kind, host }
    }

    fn job(&mut self, number: u64) -> &mut Job {
        self.jobs.get_mut(&number).expect("it was sent")
    }

    /// A reply was read; the jobs that came with it.
    pub fn replied(&mut self, open: Open, reply: &Reply, now_us: u64) -> Checked<Vec<Got>> {
        let is_misconf = matches!(reply, Reply::Error(text) if text.starts_with("MISCONF"));
        if is_misconf && !self.bad_disks {
            return Err(format!("{:?} got {reply}", open.kind));
        }
        if is_misconf {
            self.count("-MISCONF");
        }
        match (open.kind, reply) {
            (Kind::Add(number), reply) => self.added(number, reply, now_us)?,
            (Kind::Get(queues), Reply::Array(jobs)) => {
                return jobs
                    .iter()
                    .map(|job| self.delivered(open.host, &queues, job, now_us))
                    .collect();
            }
            (Kind::Get(_), Reply::NullArray) => self.count("nothing"),
            (Kind::Get(_), Reply::Error(text)) if !self.strict && text.starts_with("LEAVING") => {}
            (Kind::Get(_), Reply::Error(_)) if is_misconf => {}
            (Kind::Look, Reply::Array(parts)) => {
                let is_whole = |part: &Reply| part.elements().len() == 2 && part.elements()[1] != Reply::Null;
                if self.strict && !parts.iter().all(is_whole) {
                    return Err(format!("a look at all nodes got {reply}"));
                }
                self.count("looks at all nodes");
            }
            (Kind::Pause, Reply::Simple(_)) => self.count("pauses"),
            (Kind::Pause, Reply::Error(_)) if !self.strict => {}
            (Kind::Manage(what), Reply::Simple(text)) if text == "OK" => match what {
                Manage::Meet => self.count("MEETs"),
                Manage::Forget => self.count("FORGETs"),
                Manage::Reset => self.count("RESETs"),
                Manage::Leaving => self.count("LEAVINGs"),
            },
            (Kind::Manage(_), Reply::Error(_)) if !self.strict => {}
            (Kind::Jobs(Verb::DeleteEverywhere, numbers), Reply::Array(_)) => {
                for number in numbers {
                    self.changed(Verb::DeleteEverywhere, number, now_us);
                }
            }
            (Kind::Jobs(verb, numbers), Reply::Integer(_)) => {
                for number in numbers {
                    self.changed(verb, number, now_us);
                }
            }
            (Kind::Jobs(verb, numbers), Reply::Error(text)) => {
                // WORKING of what is not there any more, or a node that knows of a job did not answer.
                let refused = is_misconf || text.starts_with("PAUSED");
                if !refused && (verb.removes() || (verb.hastens() && self.strict)) {
                    return Err(format!("{verb:?} got {text}"));
                }
                for number in numbers {
                    let job = self.job(number);
                    job.removing -= u32::from(verb.removes());
                    // Some of it may have been done.
                    job.removed |= verb.removes();
                }
            }
            (kind, other) => return Err(format!("{kind:?} got {other}")),
        }
        Ok(Vec::new())
    }

    fn added(&mut self, number: u64, reply: &Reply, now_us: u64) -> Checked<()> {
        let (strict, tight) = (self.strict, self.tight);
        let job = self.job(number);
        match reply {
            Reply::Simple(id) => {
                if job.id.get_or_insert_with(|| id.clone()) != id {
                    return Err(format!("job {number} is {id} and {:?}", job.id));
                }
                job.told_us = Some(now_us);
                let what = match job.made.copies {
                    1 => "added",
                    _ if job.made.asynchronous => "added with copies, ASYNC",
                    _ => "added with copies",
                };
                self.count(what);
            }
            Reply::Error(text) if text.starts_with("NOREPL") => {
                if strict && !(1..1000).contains(&job.made.timeout_ms) {
                    return Err(format!("job {number}, {:?}: {text}", job.made));
                }
                self.count("-NOREPL");
            }
            Reply::Error(text) if text.starts_with("LEAVING") || text.starts_with("PAUSED") => {
                job.refused = true;
            }
            Reply::Error(text) if tight && text.starts_with("OOM") => {
                job.refused = true;
                self.count("-OOM");
            }
            // Perhaps there are copies.
            Reply::Error(text) if text.starts_with("MISCONF") => {}
            other => return Err(format!("ADDJOB got {other}")),
        }
        Ok(())
    }

    fn delivered(&mut self, host: usize, queues: &[usize], reply: &Reply, now_us: u64) -> Checked<Got> {
        let [Reply::Bulk(queue), Reply::Bulk(id), Reply::Bulk(body)] = reply.elements() else {
            return Err(format!("no job: {reply}"));
        };
        let strict = self.strict;
        let id = String::from_utf8_lossy(id).into_owned();
        let number = number_of(body).filter(|number| self.jobs.contains_key(number));
        let number = number.ok_or_else(|| format!("{id} has a body that nobody sent"))?;
        let name = self.names[self.jobs[&number].made.queue].clone();
        let job = self.jobs.get_mut(&number).expect("it was looked for");
        let wrong = |what: &str| Err(format!("job {number}, {id}: {what}: {job:?}"));
        if name.as_bytes() != queue || !queues.contains(&job.made.queue) {
            return wrong("of another queue");
        }
        if job.made.body != *body {
            return wrong("with another body");
        }
        if job.id.as_ref().is_some_and(|known| *known != id) {
            return wrong("has another ID");
        }
        if job.refused {
            return wrong("was not to be stored");
        }
        if job.once() && job.deliveries.len() as u32 > job.hastened {
            return wrong("is handed out once more than once");
        }
        let late_us = if strict { 2_000_000 } else { 60_000_000 };
        let ends_us = job.told_us.unwrap_or(now_us) + job.made.ttl_s * 1_000_000 + late_us;
        if now_us > ends_us {
            return wrong("has expired");
        }
        if strict
            && job.hastened == 0
            && !job.deleted
            && let Some(last) = job.deliveries.last()
        {
            let in_time = |acked_us: u64| acked_us <= last.us + job.lease_us() / 2;
            if last.acked_us.is_some_and(in_time) {
                return wrong("comes again though it was acknowledged in time");
            }
            if now_us + SLACK_US < last.us + job.lease_us() {
                return wrong("comes again within its lease");
            }
        }
        job.id = Some(id.clone());
        let moved = job.once() && job.host != host;
        job.host = host;
        job.deliveries.push(Delivery {
            us: now_us,
            acked_us: None,
        });
        let got = Got {
            number,
            id,
            lease_us: job.lease_us(),
        };
        let again = job.deliveries.len() > 1;
        if moved {
            self.count("once, elsewhere");
        }
        self.count(if again { "delivered again" } else { "delivered" });
        Ok(got)
    }

    fn changed(&mut self, verb: Verb, number: u64, now_us: u64) {
        let job = self.job(number);
        if verb.removes() {
            job.removing -= 1;
            job.removed = true;
        }
        if matches!(verb, Verb::Ack | Verb::FastAck) {
            if let Some(last) = job.deliveries.last_mut() {
                last.acked_us.get_or_insert(now_us);
            }
            self.count("acked");
        }
    }

    /// The client of this command is gone: nobody knows what became of it.
    pub fn abandon(&mut self, open: Open) {
        match open.kind {
            Kind::Add(_) | Kind::Look | Kind::Pause | Kind::Manage(_) => {}
            Kind::Get(queues) => self.doubtful.extend(queues),
            Kind::Jobs(verb, numbers) => {
                for number in numbers {
                    let job = self.job(number);
                    job.removing -= u32::from(verb.removes());
                    job.removed |= verb.removes();
                }
            }
        }
    }

    /// Everything was fetched that there was: what was promised must have come.
    pub fn conclude(&self, now_us: u64) -> Checked<()> {
        for (number, job) in &self.jobs {
            if job.told_us.is_none() {
                continue;
            }
            // Its life began when it reached its home, not when its copies were there.
            let expired = now_us > job.sent_us + job.made.ttl_s * 1_000_000;
            let excused = job.removed
                || job.removing > 0
                || expired
                || self.may_be_lost(job)
                || self.came_too_late(job);
            if excused {
                continue;
            }
            if !job.once() {
                return Err(format!("job {number} never came, or not again: {job:?}"));
            }
            // Where nobody dies a way that is cut, or loses what is sent, takes no job.
            let doubtful = job.dequeued || self.doubtful.contains(&job.made.queue);
            if job.deliveries.is_empty() && !doubtful {
                return Err(format!("job {number} never came: {job:?}"));
            }
        }
        Ok(())
    }
}
