//! Random commands over a few queues and the jobs seen so far.

use crate::support::{Chance, request};

/// What a command is, as far as its reply is looked at.
#[derive(Clone, Debug)]
pub enum Kind {
    Ping,
    /// Refused before any shard is asked, with this code word.
    Refused(&'static str),
    Add {
        ttl_s: u64,
        retry_s: u64,
    },
    /// ACKJOB and its like; `removes` these IDs.
    Ids {
        count: usize,
        removes: Vec<String>,
    },
    Show,
    Working,
    Length,
    Peek,
    Stat,
    Pause,
    GetJob {
        count: usize,
        ends_alone: bool,
        timeout_ms: u64,
        with_counters: bool,
    },
    Flush,
    /// JSCAN of everything.
    Scan,
    Info,
}

impl Kind {
    /// Whether home shards are asked, each by a message of its own kind.
    pub fn asks_home(&self) -> bool {
        match self {
            Self::Ping | Self::Refused(_) | Self::Flush | Self::Scan | Self::Info => false,
            Self::Ids { count, .. } => *count > 0,
            _ => true,
        }
    }
}

/// A command: its bytes and its kind.
#[derive(Clone, Debug)]
pub struct Command {
    pub text: String,
    pub bytes: Vec<u8>,
    pub kind: Kind,
}

impl Command {
    pub fn new(words: &[String], kind: Kind) -> Self {
        Self {
            text: words.join(" "),
            bytes: request(words),
            kind,
        }
    }
}

/// Makes commands.
pub struct Load {
    pub queues: Vec<String>,
    /// IDs that clients have seen, newest last.
    pub ids: Vec<String>,
    /// Whether there is a FLUSHALL now and then.
    pub flushes: bool,
    bodies: u64,
}

impl Load {
    pub fn new(queues: Vec<String>, flushes: bool) -> Self {
        Self {
            queues,
            ids: Vec::new(),
            bodies: 0,
            flushes,
        }
    }

    pub fn command(&mut self, chance: &mut Chance) -> Command {
        match chance.below(100) {
            0..30 => self.add(chance),
            30..58 => self.get(chance),
            58..76 => self.ids(chance),
            76..80 => self.about_one("SHOW", Kind::Show, chance),
            80..83 => self.about_one("WORKING", Kind::Working, chance),
            83..91 => self.look(chance),
            91..95 => self.pause(chance),
            95..97 => Command::new(&words("PING"), Kind::Ping),
            97 if self.flushes && chance.percent(15) => Command::new(&words("DEBUG FLUSHALL"), Kind::Flush),
            _ => refused(chance),
        }
    }

    fn add(&mut self, chance: &mut Chance) -> Command {
        self.bodies += 1;
        let mut words = words("ADDJOB");
        let mut ttl_s = 86_400;
        words.extend([
            chance.pick(&self.queues).clone(),
            format!("body{}", self.bodies),
            "0".into(),
        ]);
        let mut option = |name: &str, value: u64| words.extend([name.to_owned(), value.to_string()]);
        if chance.percent(30) {
            ttl_s = chance.between(1, 20);
            option("TTL", ttl_s);
        }
        let retry_s = if chance.percent(25) {
            0
        } else {
            chance.between(1, 6)
        };
        option("RETRY", retry_s);
        if chance.percent(20) {
            option("DELAY", chance.between(0, 3.min(ttl_s - 1)));
        }
        if chance.percent(15) {
            option("MAXLEN", chance.between(1, 6));
        }
        if chance.percent(5) {
            words.push("async".into());
        }
        Command::new(&words, Kind::Add { ttl_s, retry_s })
    }

    fn get(&mut self, chance: &mut Chance) -> Command {
        let mut words = words("GETJOB");
        let mut push = |word: &str| words.push(word.to_owned());
        let nohang = chance.percent(40);
        let (mut timeout_ms, mut count) = (0, 1);
        if nohang {
            push("NOHANG");
        } else if chance.percent(80) {
            timeout_ms = chance.between(1, 3000);
            push("TIMEOUT");
            push(&timeout_ms.to_string());
        }
        if chance.percent(50) {
            count = chance.between(1, 7);
            push("COUNT");
            push(&count.to_string());
        }
        let with_counters = chance.percent(30);
        if with_counters {
            push("WITHCOUNTERS");
        }
        push("FROM");
        for _ in 0..chance.between(1, 4) {
            let queue = chance.pick(&self.queues);
            if !words.contains(queue) {
                words.push(queue.clone());
            }
        }
        let ends_alone = nohang || timeout_ms > 0;
        Command::new(
            &words,
            Kind::GetJob {
                count: count as usize,
                ends_alone,
                timeout_ms,
                with_counters,
            },
        )
    }

    fn ids(&mut self, chance: &mut Chance) -> Command {
        let names = [
            "ACKJOB", "FASTACK", "DELJOB", "ENQUEUE", "NACK", "DEQUEUE", "ACKJOB", "NACK", "DEQUEUE",
        ];
        let name = *chance.pick(&names);
        let mut words = words(name);
        let count = chance.between(0, 5);
        words.extend((0..count).filter_map(|_| self.id(chance)));
        let removes = if matches!(name, "ACKJOB" | "FASTACK" | "DELJOB") {
            words[1..].to_vec()
        } else {
            Vec::new()
        };
        let kind = Kind::Ids {
            count: words.len() - 1,
            removes,
        };
        Command::new(&words, kind)
    }

    fn id(&self, chance: &mut Chance) -> Option<String> {
        // Mostly a young one.
        let last = self.ids.len().min(12);
        match chance.below(10) {
            0 => Some("D-4f4f4f4f-".to_owned() + &self.ids.first()?[11..33] + "AA-0001"),
            1 => self.ids.get(chance.below(self.ids.len().max(1))).cloned(),
            _ => self
                .ids
                .get(self.ids.len().checked_sub(1 + chance.below(last.max(1)))?)
                .cloned(),
        }
    }

    fn about_one(&mut self, name: &str, kind: Kind, chance: &mut Chance) -> Command {
        match self.id(chance) {
            Some(id) => Command::new(&[name.to_owned(), id], kind),
            None => refused(chance),
        }
    }

    fn look(&mut self, chance: &mut Chance) -> Command {
        let queue = chance.pick(&self.queues).clone();
        match chance.below(3) {
            0 => Command::new(&["QLEN".to_owned(), queue], Kind::Length),
            1 => Command::new(&["QSTAT".to_owned(), queue], Kind::Stat),
            _ => {
                let count = chance.between(0, 8) as i64 - 4;
                Command::new(&["QPEEK".to_owned(), queue, count.to_string()], Kind::Peek)
            }
        }
    }

    fn pause(&mut self, chance: &mut Chance) -> Command {
        let queue = chance.pick(&self.queues).clone();
        let state = ["none", "in", "out", "all", "state", "none", "none"];
        Command::new(
            &["PAUSE".to_owned(), queue, (*chance.pick(&state)).to_owned()],
            Kind::Pause,
        )
    }
}

fn refused(chance: &mut Chance) -> Command {
    let (text, code) = *chance.pick(&[
        ("ACKJOB nonsense", "BADID"),
        ("QLEN", "ERR"),
        ("ADDJOB q b notanumber", "ERR"),
        ("GETJOB FROM", "ERR"),
        ("ADDJOB q b 0 DELAY 5 TTL 5", "ERR"),
        ("ADDJOB q b 0 REPLICATE 2", "NOREPL"),
        ("NOSUCHCOMMAND x", "ERR"),
    ]);
    Command::new(&words(text), Kind::Refused(code))
}

pub fn words(text: &str) -> Vec<String> {
    text.split_whitespace().map(str::to_owned).collect()
}
