//! Clients that do everything at once, and a note of all that they sent and were told.
//!
//! A [`Worker`] is a connection: it sends commands in batches and notes for each when it was sent at the earliest and answered at the
//! latest. What was not answered when the connection ended may have been done or not. Which commands a worker sends
//! follows from its seed, and from what it was told.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Instant;

use tools::address::Address;
use tools::client::{Client, append_command};
use tools::reply::Reply;

use crate::support::chance::Chance;
use crate::support::{PATIENCE, jobs};

/// A moment, nanoseconds since the first.
pub type At = u64;
/// Later than all others: not answered.
pub const NEVER: At = u64::MAX;
pub const MS: At = 1_000_000;
pub const SECOND: At = 1_000 * MS;

/// The queues; the last one is paused now and then.
pub const QUEUES: [&str; 7] = ["mail", "images", "q2", "q3", "reports", "q5", "paused"];
pub const PAUSED: usize = QUEUES.len() - 1;

/// Now.
pub fn at() -> At {
    static FIRST: OnceLock<Instant> = OnceLock::new();
    let since = FIRST.get_or_init(Instant::now).elapsed();
    u64::try_from(since.as_nanos()).expect("a test ends within centuries")
}

/// A job as ADDJOB asks for it.
#[derive(Clone, Debug)]
pub struct Add {
    pub queue: usize,
    /// Begins the body; no other job has the same.
    pub tag: String,
    pub body_bytes: usize,
    pub retry_s: u64,
    pub delay_s: u64,
    /// 0: not given.
    pub ttl_s: u64,
}

impl Add {
    pub fn body(&self) -> String {
        let fill = self.body_bytes.saturating_sub(self.tag.len() + 1);
        format!("{} {}", self.tag, "x".repeat(fill))
    }

    fn command(&self) -> Vec<String> {
        let mut words = command(&["ADDJOB", QUEUES[self.queue], &self.body(), "0"]);
        words.extend(["RETRY".to_owned(), self.retry_s.to_string()]);
        for (name, value) in [("DELAY", self.delay_s), ("TTL", self.ttl_s)] {
            if value > 0 {
                words.extend([name.to_owned(), value.to_string()]);
            }
        }
        words
    }
}

/// What is done with jobs by their IDs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verb {
    Ackjob,
    Fastack,
    Deljob,
    Nack,
    Enqueue,
    Dequeue,
    Working,
}

impl Verb {
    fn word(self) -> &'static str {
        match self {
            Self::Ackjob => "ACKJOB",
            Self::Fastack => "FASTACK",
            Self::Deljob => "DELJOB",
            Self::Nack => "NACK",
            Self::Enqueue => "ENQUEUE",
            Self::Dequeue => "DEQUEUE",
            Self::Working => "WORKING",
        }
    }

    /// Whether the job is gone when it is answered.
    pub fn ends(self) -> bool {
        matches!(self, Self::Ackjob | Self::Fastack | Self::Deljob)
    }
}

/// A job as GETJOB gave it.
#[derive(Clone, Debug)]
pub struct Got {
    pub queue: String,
    pub id: String,
    pub body: Vec<u8>,
}

/// A command, and what it was answered, when it was.
#[derive(Clone, Debug)]
pub enum What {
    /// The ID; none: refused.
    Add(Add, Option<String>),
    Get {
        queues: Vec<usize>,
        count: usize,
        jobs: Vec<Got>,
    },
    /// How many it was done with.
    Ids(Verb, Vec<String>, i64),
    Pause(&'static str),
}

#[derive(Clone, Debug)]
pub struct Event {
    pub sent: At,
    pub received: At,
    pub what: What,
}

impl Event {
    pub fn is_answered(&self) -> bool {
        self.received != NEVER
    }
}

/// All that a worker noted.
#[derive(Debug, Default)]
pub struct Log {
    pub events: Vec<Event>,
    /// IDs in replies of which only a part arrived.
    pub cut: Vec<String>,
    /// Replies that no command may get.
    pub wrong: Vec<String>,
}

impl Log {
    pub fn extend(&mut self, other: Log) {
        self.events.extend(other.events);
        self.cut.extend(other.cut);
        self.wrong.extend(other.wrong);
    }
}

/// One connection after the other, with its own chance.
pub struct Worker {
    pub address: Address,
    pub chance: Chance,
    /// Begins the tags of its jobs.
    pub name: String,
    pub adds_percent: u64,
    /// The one that pauses the queue that is paused.
    pub pauses: bool,
    /// Jobs that it may do something with.
    pub known: Vec<String>,
    pub leased: Vec<String>,
    pub made: usize,
    /// Nobody asks for jobs any more: what was done with them last is certain in the end.
    pub quiet: Arc<AtomicBool>,
    pub log: Log,
}

enum End {
    /// The worker left without reading.
    Left,
    /// The server ended.
    Closed,
}

impl Worker {
    /// Works until the server ends.
    pub fn run(mut self) -> Log {
        while let Ok(mut client) = Client::connect(&self.address, PATIENCE) {
            let end = loop {
                if let Some(end) = self.exchange(&mut client) {
                    break end;
                }
            };
            if matches!(end, End::Closed) {
                break;
            }
        }
        self.log
    }

    /// Sends a batch and reads what it is answered.
    fn exchange(&mut self, client: &mut Client) -> Option<End> {
        let mut bytes = Vec::new();
        let mut batch = Vec::new();
        for _ in 0..self.chance.between(1, 12) {
            let (words, what) = self.choose();
            append_command(&mut bytes, &words);
            batch.push(what);
            if words[0] == "GETJOB" && words[1] == "TIMEOUT" {
                break;
            }
        }
        let sent = at();
        // What a connection left unread may be done after what the next one says: then nobody knew which PAUSE holds.
        let pauses = batch.iter().any(|what| matches!(what, What::Pause(_)));
        let leaves = self.chance.percent(1) && !pauses;
        let mut end = client.write_raw(&bytes).err().map(|_| End::Closed);
        if end.is_none() && leaves {
            end = Some(End::Left);
        }
        for mut what in batch {
            let mut received = NEVER;
            if end.is_none() {
                match client.read_reply() {
                    Ok(reply) => {
                        received = at();
                        self.note(&mut what, &reply);
                    }
                    Err(error) => {
                        if matches!(error, tools::client::ClientError::TimedOut) {
                            self.log.wrong.push(format!("no reply to {what:?}"));
                        }
                        let rest = client.read_to_close().unwrap_or_default();
                        self.log.cut.extend(ids_in(&String::from_utf8_lossy(&rest)));
                        end = Some(End::Closed);
                    }
                }
            }
            self.log.events.push(Event { sent, received, what });
        }
        end
    }

    fn choose(&mut self) -> (Vec<String>, What) {
        if self.pauses && self.chance.percent(5) {
            let state = *self.chance.pick(&["in", "out", "all", "none", "none", "none"]);
            return (command(&["PAUSE", QUEUES[PAUSED], state]), What::Pause(state));
        }
        let roll = self.chance.below(100) as u64;
        if roll < self.adds_percent {
            return self.add();
        }
        let is_quiet = self.quiet.load(Ordering::Relaxed);
        if (roll >= 92 || is_quiet && roll >= 75) && !self.known.is_empty() {
            let verbs = [
                Verb::Dequeue,
                Verb::Dequeue,
                Verb::Enqueue,
                Verb::Working,
                Verb::Nack,
                Verb::Ackjob,
            ];
            let verb = *self.chance.pick(&verbs);
            let ids = take(&mut self.chance, &mut self.known, verb);
            return by_ids(verb, ids);
        }
        if (is_quiet || roll >= 60) && !self.leased.is_empty() {
            let verb = match self.chance.below(100) {
                0..55 => Verb::Ackjob,
                55..67 => Verb::Fastack,
                67..79 => Verb::Nack,
                79..87 => Verb::Working,
                87..92 => Verb::Enqueue,
                92..95 => Verb::Dequeue,
                _ => Verb::Deljob,
            };
            let ids = take(&mut self.chance, &mut self.leased, verb);
            return by_ids(verb, ids);
        }
        if is_quiet { self.add() } else { self.get() }
    }

    fn add(&mut self) -> (Vec<String>, What) {
        self.made += 1;
        let chance = &mut self.chance;
        let retry_s = *chance.pick(&[0, 1, 2, 600, 600, 600, 600]);
        let add = Add {
            queue: chance.below(QUEUES.len()),
            tag: format!("{}.{}", self.name, self.made),
            body_bytes: match chance.below(1000) {
                0..3 => 90_000,
                3..60 => 4_000,
                _ => chance.below(120),
            },
            retry_s,
            delay_s: if chance.percent(8) {
                chance.between(1, 2)
            } else {
                0
            },
            ttl_s: if retry_s < 3 && chance.percent(15) { 4 } else { 0 },
        };
        (add.command(), What::Add(add, None))
    }

    fn get(&mut self) -> (Vec<String>, What) {
        let first = self.chance.below(QUEUES.len());
        let queues: Vec<usize> = (0..self.chance.between(1, 3) as usize)
            .map(|more| (first + 3 * more) % QUEUES.len())
            .collect();
        let count = self.chance.between(1, 8) as usize;
        let mut words = match self.chance.below(4) {
            0 => command(&["GETJOB", "TIMEOUT", &self.chance.between(1, 40).to_string()]),
            _ => command(&["GETJOB", "NOHANG"]),
        };
        words.extend(command(&["COUNT", &count.to_string(), "FROM"]));
        words.extend(queues.iter().map(|&queue| QUEUES[queue].to_owned()));
        let jobs = Vec::new();
        (words, What::Get { queues, count, jobs })
    }

    fn note(&mut self, what: &mut What, reply: &Reply) {
        let fits = match what {
            What::Add(add, made) => match (reply.text(), reply.error()) {
                (Some(id), _) => {
                    self.known.push(id.to_owned());
                    *made = Some(id.to_owned());
                    true
                }
                (_, Some(error)) => add.queue == PAUSED && error.starts_with("PAUSED"),
                _ => false,
            },
            What::Get { jobs: got, .. } => {
                got.extend(
                    jobs(reply)
                        .into_iter()
                        .map(|(queue, id, body)| Got { queue, id, body }),
                );
                self.leased.extend(got.iter().map(|got| got.id.clone()));
                matches!(reply, Reply::Null) || !got.is_empty()
            }
            What::Ids(verb, ids, done) => match (reply.integer(), reply.error()) {
                (Some(seconds), _) if *verb == Verb::Working => {
                    *done = i64::from(seconds > 0);
                    true
                }
                (Some(number), _) => {
                    *done = number;
                    (0..=ids.len() as i64).contains(&number)
                }
                (_, Some(error)) => match verb {
                    Verb::Working => error.starts_with("NOJOB") || error.starts_with("TOOLATE"),
                    Verb::Nack | Verb::Enqueue => error.starts_with("PAUSED"),
                    _ => false,
                },
                _ => false,
            },
            What::Pause(state) => reply.text() == Some(state),
        };
        if !fits {
            self.log.wrong.push(format!("{what:?} was answered {reply:?}"));
        }
    }
}

fn command(words: &[&str]) -> Vec<String> {
    words.iter().map(|word| (*word).to_owned()).collect()
}

fn by_ids(verb: Verb, ids: Vec<String>) -> (Vec<String>, What) {
    let mut words = command(&[verb.word()]);
    words.extend(ids.iter().cloned());
    (words, What::Ids(verb, ids, 0))
}

/// Some IDs of a list, none twice. Those that the verb leaves with the worker stay in it.
fn take(chance: &mut Chance, from: &mut Vec<String>, verb: Verb) -> Vec<String> {
    let most = if verb == Verb::Working {
        1
    } else {
        chance.between(1, 4) as usize
    };
    let mut ids: Vec<String> = (0..most.min(from.len()))
        .map(|_| from.swap_remove(chance.below(from.len())))
        .collect();
    ids.sort();
    ids.dedup();
    if !verb.ends() {
        from.extend(ids.iter().cloned());
    }
    ids
}

/// Job IDs in a text, whole ones only.
fn ids_in(text: &str) -> Vec<String> {
    let starts = text.match_indices("D-").map(|(start, _)| start);
    starts
        .filter_map(|start| text.get(start..start + 40))
        .filter(|id| id.as_bytes()[10] == b'-' && id.as_bytes()[35] == b'-')
        .map(str::to_owned)
        .collect()
}
