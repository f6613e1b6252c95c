//! What clients do: random commands over a few queues and the jobs that they know.

use std::collections::BTreeMap;

use crate::support::{Chance, body, request};

/// A command that removes a job or changes its state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verb {
    Ack,
    FastAck,
    Delete,
    Nack,
    Enqueue,
    Dequeue,
    Working,
}

impl Verb {
    fn word(self) -> &'static str {
        match self {
            Self::Ack => "ACKJOB",
            Self::FastAck => "FASTACK",
            Self::Delete => "DELJOB",
            Self::Nack => "NACK",
            Self::Enqueue => "ENQUEUE",
            Self::Dequeue => "DEQUEUE",
            Self::Working => "WORKING",
        }
    }

    pub fn removes(self) -> bool {
        matches!(self, Self::Ack | Self::FastAck | Self::Delete)
    }
}

/// A command, as far as its reply is understood. Jobs go by the number in their body.
#[derive(Clone, Debug)]
pub enum Kind {
    Add(u64),
    Get {
        queues: Vec<usize>,
        counters: bool,
        waits: bool,
    },
    Jobs(Verb, Vec<u64>),
    Pause(usize, &'static str),
    Flush,
    /// CONFIG SET of this to that.
    Config(&'static str, String),
    Rewrite,
    Shutdown,
}

/// What a job is made of.
#[derive(Clone, Debug)]
pub struct Made {
    pub queue: usize,
    pub retry_s: u64,
    pub delay_s: u64,
    pub ttl_s: u64,
    pub body: Vec<u8>,
}

/// The tastes of a run.
#[derive(Clone, Copy, Debug)]
pub struct Taste {
    /// Percent of the jobs that are handed out at most once.
    pub once: u64,
    /// Percent of the GETJOBs that block.
    pub blocking: u64,
    pub pauses: u64,
    pub flushes: u64,
    pub configs: u64,
    /// `appendonly` goes off and on.
    pub switches: bool,
    pub big: u64,
}

/// Makes commands.
#[derive(Clone)]
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

    /// A command, and its bytes; `ids` are those of jobs that are known to live, the youngest last.
    pub fn command(&mut self, chance: &mut Chance, ids: &[(u64, String)]) -> (Kind, Vec<u8>) {
        let Taste {
            pauses,
            flushes,
            configs,
            ..
        } = self.taste;
        let rare = chance.below(1000) as u64;
        if rare < pauses {
            return self.pause(chance);
        }
        if rare < pauses + flushes {
            return (Kind::Flush, request(&["DEBUG", "FLUSHALL"]));
        }
        if rare < pauses + flushes + configs {
            return self.config(chance);
        }
        match chance.below(100) {
            0..40 => self.add(chance),
            40..65 => self.get(chance),
            _ if ids.is_empty() => self.add(chance),
            _ => self.jobs(chance, ids),
        }
    }

    fn add(&mut self, chance: &mut Chance) -> (Kind, Vec<u8>) {
        let number = self.next;
        self.next += 1;
        let bytes = match chance.below(1000) as u64 {
            rare if rare < self.taste.big => chance.between(5_000, 20_000),
            0..300 => chance.between(300, 2_000),
            _ => chance.between(0, 60),
        };
        let retry_s = if chance.percent(self.taste.once) {
            0
        } else {
            chance.between(1, 6)
        };
        let delay_s = if chance.percent(15) {
            chance.between(1, 4)
        } else {
            0
        };
        let ttl_s = if chance.percent(15) {
            chance.between(5, 20)
        } else {
            86_400
        };
        let made = Made {
            queue: chance.below(self.queues.len()),
            retry_s,
            delay_s,
            ttl_s,
            body: body(number, bytes as usize),
        };
        let mut words: Vec<Vec<u8>> = vec![
            b"ADDJOB".to_vec(),
            self.queues[made.queue].clone().into_bytes(),
            made.body.clone(),
            b"0".to_vec(),
        ];
        for (name, value) in [("RETRY", retry_s), ("DELAY", delay_s), ("TTL", ttl_s)] {
            if name != "DELAY" || value > 0 {
                words.extend([name.into(), value.to_string().into_bytes()]);
            }
        }
        self.made.insert(number, made);
        (Kind::Add(number), request(&words))
    }

    fn get(&mut self, chance: &mut Chance) -> (Kind, Vec<u8>) {
        let mut words = vec!["GETJOB".to_owned()];
        let waits = chance.percent(self.taste.blocking);
        if waits {
            words.extend(["TIMEOUT".into(), chance.between(1, 2_000).to_string()]);
        } else {
            words.push("NOHANG".into());
        }
        if chance.percent(50) {
            words.extend(["COUNT".into(), chance.between(1, 6).to_string()]);
        }
        let counters = chance.percent(70);
        if counters {
            words.push("WITHCOUNTERS".into());
        }
        words.push("FROM".into());
        let mut queues: Vec<usize> = (0..chance.between(1, 3))
            .map(|_| chance.below(self.queues.len()))
            .collect();
        queues.sort_unstable();
        queues.dedup();
        words.extend(queues.iter().map(|&queue| self.queues[queue].clone()));
        let kind = Kind::Get {
            queues,
            counters,
            waits,
        };
        (kind, request(&words))
    }

    fn jobs(&mut self, chance: &mut Chance, ids: &[(u64, String)]) -> (Kind, Vec<u8>) {
        let verb = *chance.pick(&[
            Verb::Ack,
            Verb::Ack,
            Verb::FastAck,
            Verb::Delete,
            Verb::Nack,
            Verb::Enqueue,
            Verb::Dequeue,
            Verb::Dequeue,
            Verb::Working,
        ]);
        let count = if verb.removes() && chance.percent(20) {
            2
        } else {
            1
        };
        let mut chosen: Vec<(u64, String)> = Vec::new();
        for _ in 0..count {
            // Mostly a young one.
            let last = if chance.percent(70) {
                ids.len().min(10)
            } else {
                ids.len()
            };
            let one = &ids[ids.len() - 1 - chance.below(last)];
            if !chosen.contains(one) {
                chosen.push(one.clone());
            }
        }
        let mut words = vec![verb.word().to_owned()];
        words.extend(chosen.iter().map(|(_, id)| id.clone()));
        let numbers = chosen.into_iter().map(|(number, _)| number).collect();
        (Kind::Jobs(verb, numbers), request(&words))
    }

    fn pause(&mut self, chance: &mut Chance) -> (Kind, Vec<u8>) {
        let queue = chance.below(self.queues.len());
        let state = *chance.pick(&["none", "none", "in", "out", "all"]);
        (
            Kind::Pause(queue, state),
            request(&["PAUSE", &self.queues[queue], state]),
        )
    }

    fn config(&mut self, chance: &mut Chance) -> (Kind, Vec<u8>) {
        let (name, value) = match chance.below(if self.taste.switches { 8 } else { 4 }) {
            0 => ("appendfsync", *chance.pick(&["always", "everysec", "no"])),
            1 => (
                "auto-aof-rewrite-percentage",
                *chance.pick(&["0", "1", "20", "100"]),
            ),
            2 => ("auto-aof-rewrite-min-size", *chance.pick(&["1kb", "64kb"])),
            3 => return (Kind::Rewrite, request(&["BGREWRITEAOF"])),
            4 | 5 => ("appendonly", "no"),
            _ => ("appendonly", "yes"),
        };
        let value = value.to_owned();
        let bytes = request(&["CONFIG", "SET", name, &value]);
        (Kind::Config(name, value), bytes)
    }
}
