//! What clients do: add jobs, fetch them, and end them in one way or another, through whatever node they are connected to.

use std::collections::BTreeMap;
use std::fmt;

use crate::support::{Chance, body, request};

/// Delays of jobs that are to outlive their first holders, seconds.
pub const LATE_S: (u64, u64) = (100, 500);

/// A command about jobs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verb {
    Ack,
    FastAck,
    Delete,
    Nack,
    Enqueue,
    Dequeue,
    Working,
    /// DELJOB ... CLUSTER.
    DeleteEverywhere,
}

impl Verb {
    fn word(self) -> &'static str {
        match self {
            Self::Ack => "ACKJOB",
            Self::FastAck => "FASTACK",
            Self::Delete | Self::DeleteEverywhere => "DELJOB",
            Self::Nack => "NACK",
            Self::Enqueue => "ENQUEUE",
            Self::Dequeue => "DEQUEUE",
            Self::Working => "WORKING",
        }
    }

    /// Nobody may count on the job after it.
    pub fn removes(self) -> bool {
        matches!(
            self,
            Self::Ack | Self::FastAck | Self::Delete | Self::DeleteEverywhere
        )
    }

    /// The job may come sooner after it, and once more.
    pub fn hastens(self) -> bool {
        matches!(self, Self::Nack | Self::Enqueue)
    }
}

/// A command, as far as its reply is understood. Jobs go by the number in their body.
#[derive(Clone, Debug)]
pub enum Kind {
    Add(u64),
    Get(Vec<usize>),
    Jobs(Verb, Vec<u64>),
    /// QLEN or QSTAT of all nodes.
    Look,
    Pause,
    Manage(Manage),
}

/// A change of the cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Manage {
    Meet,
    Forget,
    Reset,
    Leaving,
}

/// What a job is made of.
#[derive(Clone)]
pub struct Made {
    pub queue: usize,
    pub retry_s: u64,
    pub delay_s: u64,
    pub ttl_s: u64,
    pub copies: u64,
    pub asynchronous: bool,
    pub timeout_ms: u64,
    pub body: Vec<u8>,
}

impl fmt::Debug for Made {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let asynchronous = if self.asynchronous { " ASYNC" } else { "" };
        write!(
            f,
            "in q{} {} REPLICATE {} RETRY {} DELAY {} TTL {}{asynchronous}",
            self.queue, self.timeout_ms, self.copies, self.retry_s, self.delay_s, self.ttl_s
        )
    }
}

/// The tastes of a run.
#[derive(Clone, Copy, Debug)]
pub struct Taste {
    /// Percent of the jobs that are handed out at most once.
    pub once: u64,
    /// Percent of the GETJOBs that block.
    pub blocking: u64,
    /// Copies asked for, at most.
    pub most_copies: u64,
    pub asynchronous: u64,
    /// Percent of the commands that are about some job at random.
    pub meddling: u64,
    pub longest_retry_s: u64,
    pub big: u64,
    /// Percent of the commands that are QLEN or QSTAT of all nodes.
    pub looks: u64,
    /// Percent that close or open a queue, mostly on all nodes.
    pub pauses: u64,
    /// Percent of the jobs that are delayed by minutes: their first holders may die one by one before they come.
    pub late: u64,
}

/// What becomes of a job that was handed out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// This, after such a part of the lease, percent.
    Command(Verb, u64),
    /// Nothing: its client has forgotten it.
    Forgotten,
}

/// Makes commands.
pub struct Load {
    pub queues: Vec<String>,
    pub made: BTreeMap<u64, Made>,
    pub taste: Taste,
    next: u64,
}

impl Load {
    pub fn new(queues: Vec<String>, taste: Taste) -> Self {
        Self {
            queues,
            made: BTreeMap::new(),
            taste,
            next: 1,
        }
    }

    /// A command, and its bytes; `ids` are those of jobs that may live, the youngest last.
    pub fn command(&mut self, chance: &mut Chance, ids: &[(u64, String)]) -> (Kind, Vec<u8>) {
        if !ids.is_empty() && chance.percent(self.taste.meddling) {
            let verbs = [
                Verb::Enqueue,
                Verb::Dequeue,
                Verb::Working,
                Verb::Delete,
                Verb::DeleteEverywhere,
                Verb::Ack,
            ];
            let last = ids.len().min(20);
            let one = ids[ids.len() - 1 - chance.below(last)].clone();
            return jobs(*chance.pick(&verbs), &[one]);
        }
        if chance.percent(self.taste.looks) {
            let word = *chance.pick(&["QLEN", "QSTAT"]);
            let queue = chance.pick(&self.queues);
            return (Kind::Look, request(&[word, queue, "CLUSTER"]));
        }
        if chance.percent(self.taste.pauses) {
            let state = *chance.pick(&["in", "out", "all", "none", "none", "none"]);
            let queue: &String = chance.pick(&self.queues);
            let mut words = vec!["PAUSE", queue, state];
            words.extend(chance.percent(80).then_some("bcast"));
            return (Kind::Pause, request(&words));
        }
        if chance.percent(45) {
            self.add(chance)
        } else {
            self.get(chance)
        }
    }

    pub fn add(&mut self, chance: &mut Chance) -> (Kind, Vec<u8>) {
        let number = self.next;
        self.next += 1;
        let bytes = if chance.percent(self.taste.big) {
            chance.between(1_000, 20_000)
        } else {
            chance.between(0, 60)
        };
        let once = chance.percent(self.taste.once);
        let copies = chance.between(1, self.taste.most_copies);
        let longest_retry_s = self.taste.longest_retry_s;
        let short = |chance: &mut Chance, least, most| {
            if chance.percent(15) {
                chance.between(least, most)
            } else {
                0
            }
        };
        let is_late = chance.percent(self.taste.late);
        let made = Made {
            queue: chance.below(self.queues.len()),
            retry_s: if once {
                0
            } else {
                chance.between(1, longest_retry_s)
            },
            delay_s: if is_late {
                chance.between(LATE_S.0, LATE_S.1)
            } else {
                short(chance, 1, 4)
            },
            ttl_s: match short(chance, 10, 40) {
                ttl_s if ttl_s > 0 && !is_late => ttl_s,
                _ => 86_400,
            },
            copies: if once { 1 } else { copies },
            asynchronous: chance.percent(self.taste.asynchronous),
            timeout_ms: *chance.pick(&[0, 0, 100, 1_000, 5_000]),
            body: body(number, bytes as usize),
        };
        let mut words: Vec<Vec<u8>> = vec![
            b"ADDJOB".to_vec(),
            self.queues[made.queue].clone().into_bytes(),
            made.body.clone(),
            made.timeout_ms.to_string().into_bytes(),
        ];
        let options = [
            ("RETRY", made.retry_s),
            ("REPLICATE", made.copies),
            ("DELAY", made.delay_s),
            ("TTL", made.ttl_s),
        ];
        for (name, value) in options {
            words.extend([name.into(), value.to_string().into_bytes()]);
        }
        if made.asynchronous {
            words.push(b"ASYNC".to_vec());
        }
        self.made.insert(number, made);
        (Kind::Add(number), request(&words))
    }

    fn get(&mut self, chance: &mut Chance) -> (Kind, Vec<u8>) {
        let timeout_ms = chance
            .percent(self.taste.blocking)
            .then(|| chance.between(1, 3_000));
        let mut queues: Vec<usize> = (0..chance.between(1, 3))
            .map(|_| chance.below(self.queues.len()))
            .collect();
        queues.sort_unstable();
        queues.dedup();
        self.get_from(queues, timeout_ms, chance.between(1, 6))
    }

    /// GETJOB of these queues; it does not block unless it has a timeout.
    pub fn get_from(&self, queues: Vec<usize>, timeout_ms: Option<u64>, count: u64) -> (Kind, Vec<u8>) {
        let mut words = vec!["GETJOB".to_owned()];
        match timeout_ms {
            Some(timeout_ms) => words.extend(["TIMEOUT".into(), timeout_ms.to_string()]),
            None => words.push("NOHANG".into()),
        }
        words.extend(["COUNT".into(), count.to_string(), "FROM".into()]);
        words.extend(queues.iter().map(|&queue| self.queues[queue].clone()));
        (Kind::Get(queues), request(&words))
    }

    /// What becomes of a job that a client got.
    pub fn fate(&self, chance: &mut Chance, lazy: bool) -> Fate {
        match chance.below(100) {
            0..60 => Fate::Command(Verb::Ack, chance.between(0, 45)),
            60..80 => Fate::Command(Verb::FastAck, chance.between(0, 45)),
            _ if !lazy => Fate::Command(Verb::Ack, 0),
            80..86 => Fate::Command(Verb::Nack, chance.between(0, 90)),
            86..92 => Fate::Command(Verb::Ack, chance.between(50, 150)),
            92..95 => Fate::Command(Verb::Working, chance.between(0, 90)),
            _ => Fate::Forgotten,
        }
    }
}

/// A command about these jobs.
pub fn jobs(verb: Verb, chosen: &[(u64, String)]) -> (Kind, Vec<u8>) {
    let mut words = vec![verb.word().to_owned()];
    words.extend(chosen.iter().map(|(_, id)| id.clone()));
    words.extend((verb == Verb::DeleteEverywhere).then(|| "CLUSTER".to_owned()));
    let numbers = chosen.iter().map(|(number, _)| *number).collect();
    (Kind::Jobs(verb, numbers), request(&words))
}
