//! What a load sends: the commands of each target, prebuilt as far as they go.
//!
//! A producer's command is whole but for the sequence number in its body; a consumer's fetch is whole; only
//! acknowledgements are put together while the clock runs, from the IDs that came ([`Acks`]).

use super::plan::Plan;
use super::target::Target;
use crate::client::{append_bulk, append_command, append_header};

/// How long a fetch blocks in a closed loop; short, since a load ends when the last blocked consumer has been
/// answered. beanstalkd counts in seconds, and blocks for one.
pub const BLOCK_MS: u32 = 100;

/// The same in an open loop, whose consumers mostly wait: asking again should not be a load of its own.
pub const BLOCK_OPEN_MS: u32 = 1000;

/// The group that all consumers of a Redis stream belong to.
const GROUP: &str = "bench";

/// The field of a Redis stream's entry that holds the body.
const FIELD: &[u8] = b"b";

/// Seconds a job stays with its consumer on beanstalkd, where `--retry` does not say otherwise: longer than a
/// load waits for anything.
const TTR_S: u64 = 3600;

/// What every job of a load is added with.
#[derive(Clone, Copy, Debug, Default)]
pub struct AddSettings {
    /// Seconds until a job that nobody acknowledged is given out again; without it, the target's default.
    pub retry_s: Option<u64>,
    /// Copies in the cluster; without it, the target's default.
    pub replicate: Option<u32>,
    /// Seconds until a job may be fetched.
    pub delay_s: u32,
}

/// The command that adds one job.
#[derive(Debug)]
pub struct Add {
    /// The command's bytes.
    pub bytes: Vec<u8>,
    /// Where in them the body begins.
    pub body_at: usize,
    /// Replies it gets.
    pub replies: u32,
}

impl Add {
    /// The command for a queue; `is_only` if the connection adds to no other one.
    pub fn new(target: Target, queue: &[u8], body: &[u8], settings: AddSettings, is_only: bool) -> Self {
        let mut bytes = Vec::new();
        let mut replies = 1;
        let mut body_at = None;
        match target {
            Target::Shardq | Target::Disque => {
                let options = disque_options(settings);
                append_header(&mut bytes, b'*', 4 + options.len());
                append_bulk(&mut bytes, b"ADDJOB");
                append_bulk(&mut bytes, queue);
                append_bulk(&mut bytes, body);
                body_at = Some(bytes.len() - body.len() - 2);
                append_bulk(&mut bytes, b"0");
                for option in options {
                    append_bulk(&mut bytes, option.as_bytes());
                }
            }
            Target::RedisList => append_command(&mut bytes, &[b"LPUSH", queue, body]),
            Target::RedisStream => append_command(&mut bytes, &[b"XADD", queue, b"*", FIELD, body]),
            Target::Beanstalkd => {
                if !is_only {
                    bytes.extend([b"use ", queue, b"\r\n"].concat());
                    replies = 2;
                }
                let ttr = settings.retry_s.unwrap_or(TTR_S);
                bytes.extend(format!("put 0 {} {ttr} {}\r\n", settings.delay_s, body.len()).bytes());
                bytes.extend_from_slice(body);
                bytes.extend_from_slice(b"\r\n");
            }
            Target::Echo => append_bulk(&mut bytes, body),
        }
        let body_at = body_at.unwrap_or(bytes.len() - body.len() - 2);
        Self {
            bytes,
            body_at,
            replies,
        }
    }

    /// The command's name, for errors.
    pub fn name(target: Target) -> &'static str {
        match target {
            Target::Shardq | Target::Disque => "ADDJOB",
            Target::RedisList => "LPUSH",
            Target::RedisStream => "XADD",
            Target::Beanstalkd => "put",
            Target::Echo => "a bulk string",
        }
    }
}

fn disque_options(settings: AddSettings) -> Vec<String> {
    let delay = (settings.delay_s > 0).then_some(u64::from(settings.delay_s));
    let named = [
        ("DELAY", delay),
        ("RETRY", settings.retry_s),
        ("REPLICATE", settings.replicate.map(u64::from)),
    ];
    let pairs = named
        .into_iter()
        .filter_map(|(name, value)| Some([name.to_owned(), value?.to_string()]));
    pairs.flatten().collect()
}

/// The command that fetches jobs of a group of queues.
#[derive(Debug)]
pub struct Fetch {
    /// Waits a while for a first job.
    pub blocking: Vec<u8>,
    /// Does not.
    pub nohang: Vec<u8>,
}

impl Fetch {
    /// The fetch of `consumer`, for at most `count` jobs where the target can tell that.
    pub fn new(
        target: Target,
        plan: &Plan,
        consumer: u32,
        queues: &[Vec<u8>],
        count: u32,
        block_ms: u32,
    ) -> Self {
        match target {
            Target::Shardq | Target::Disque => Self::of_disque(queues, count, block_ms),
            Target::RedisList => {
                let work = plan.work_list_name(consumer);
                let ends: [&[u8]; 2] = [b"RIGHT", b"LEFT"];
                let seconds = format!("{}", f64::from(block_ms) / 1000.0);
                Self {
                    blocking: command(&[b"BLMOVE", &queues[0], &work, ends[0], ends[1], seconds.as_bytes()]),
                    nohang: command(&[b"LMOVE", &queues[0], &work, ends[0], ends[1]]),
                }
            }
            Target::RedisStream => Self::of_stream(consumer, queues, count, block_ms),
            Target::Beanstalkd => Self {
                blocking: format!("reserve-with-timeout {}\r\n", block_ms.div_ceil(1000)).into_bytes(),
                nohang: b"reserve-with-timeout 0\r\n".to_vec(),
            },
            Target::Echo => unreachable!("nothing is fetched from an echo"),
        }
    }

    fn of_disque(queues: &[Vec<u8>], count: u32, block_ms: u32) -> Self {
        let count = count.to_string();
        let build = |how: &[&[u8]]| {
            let fixed: [&[u8]; 3] = [b"COUNT", count.as_bytes(), b"FROM"];
            let queues = queues.iter().map(Vec::as_slice);
            let words = [b"GETJOB".as_slice()].into_iter().chain(how.iter().copied());
            command(&words.chain(fixed).chain(queues).collect::<Vec<_>>())
        };
        Self {
            blocking: build(&[b"TIMEOUT", block_ms.to_string().as_bytes()]),
            nohang: build(&[b"NOHANG"]),
        }
    }

    fn of_stream(consumer: u32, queues: &[Vec<u8>], count: u32, block_ms: u32) -> Self {
        let (name, count) = (format!("c{consumer}"), count.to_string());
        let build = |how: &[&[u8]]| {
            let mut words: Vec<&[u8]> = vec![b"XREADGROUP", b"GROUP", GROUP.as_bytes(), name.as_bytes()];
            words.extend([b"COUNT", count.as_bytes()]);
            words.extend(how);
            words.push(b"STREAMS");
            words.extend(queues.iter().map(Vec::as_slice));
            words.extend(queues.iter().map(|_| b">".as_slice()));
            command(&words)
        };
        Self {
            blocking: build(&[b"BLOCK", block_ms.to_string().as_bytes()]),
            nohang: build(&[]),
        }
    }

    /// The command's name, for errors.
    pub fn name(target: Target) -> &'static str {
        match target {
            Target::Shardq | Target::Disque => "GETJOB",
            Target::RedisList => "BLMOVE",
            Target::RedisStream => "XREADGROUP",
            Target::Beanstalkd => "reserve-with-timeout",
            Target::Echo => "nothing",
        }
    }
}

/// The command that lets consumers read a stream, from its start; it makes the stream too.
pub fn make_group(stream: &[u8]) -> [Vec<u8>; 6] {
    let words: [&[u8]; 6] = [b"XGROUP", b"CREATE", stream, GROUP.as_bytes(), b"0", b"MKSTREAM"];
    words.map(<[u8]>::to_vec)
}

/// What a connection says when it opens, before the clock starts, and the lines it is answered with.
pub fn greeting(target: Target, adds_to: Option<&[u8]>, fetches_from: &[Vec<u8>]) -> (Vec<u8>, usize) {
    if target != Target::Beanstalkd {
        return (Vec::new(), 0);
    }
    let mut lines: Vec<Vec<u8>> = Vec::new();
    lines.extend(adds_to.map(|tube| [b"use ", tube].concat()));
    lines.extend(
        fetches_from
            .iter()
            .map(|tube| [b"watch ", tube.as_slice()].concat()),
    );
    if !fetches_from.is_empty() {
        lines.push(b"ignore default".to_vec());
    }
    let number = lines.len();
    let bytes = lines
        .into_iter()
        .flat_map(|line| [line, b"\r\n".to_vec()].concat());
    (bytes.collect(), number)
}

fn command(words: &[&[u8]]) -> Vec<u8> {
    let mut bytes = Vec::new();
    append_command(&mut bytes, words);
    bytes
}

/// Jobs to acknowledge, as bytes that a round starts with.
///
/// Where one command acknowledges many jobs, their IDs are kept by queue as bulk strings one behind the
/// other; where it acknowledges one, it is appended at once.
#[derive(Debug)]
pub struct Acks {
    target: Target,
    /// The command's words in front of the ID or IDs.
    form: Form,
    ids_max: usize,
    queues: Vec<Ids>,
    single: Vec<u8>,
    singles: u32,
}

#[derive(Debug)]
enum Form {
    /// `command ID ...`
    Disque { command: &'static str },
    /// `XACK queue group ID ...`, then `XDEL queue ID ...`
    Stream,
    /// Bytes in front of and behind one ID, which is a bulk string if `is_resp`.
    Single { before: Vec<u8>, is_resp: bool },
}

#[derive(Debug)]
struct Ids {
    number: u32,
    queue: Vec<u8>,
    bulks: Vec<u8>,
    ends: Vec<usize>,
}

impl Acks {
    /// The acknowledgements of a consumer of `queues`, at most `ids_max` jobs in one command; `command` is
    /// that of Disque's protocol.
    pub fn new(
        target: Target,
        plan: &Plan,
        consumer: u32,
        queues: &[u32],
        command: &'static str,
        ids_max: usize,
    ) -> Self {
        let form = match target {
            Target::Shardq | Target::Disque | Target::Echo => Form::Disque { command },
            Target::RedisStream => Form::Stream,
            Target::RedisList => Form::Single {
                before: list_ack_start(&plan.work_list_name(consumer)),
                is_resp: true,
            },
            Target::Beanstalkd => Form::Single {
                before: b"delete ".to_vec(),
                is_resp: false,
            },
        };
        // Only streams need to know which queue a job came from; the others report queue 0 for all.
        let kept: &[u32] = if target == Target::RedisStream {
            queues
        } else {
            &[0]
        };
        let ids = |&number: &u32| Ids {
            number,
            queue: plan.queue_name(number),
            bulks: Vec::new(),
            ends: Vec::new(),
        };
        Self {
            target,
            form,
            ids_max,
            queues: kept.iter().map(ids).collect(),
            single: Vec::new(),
            singles: 0,
        }
    }

    /// The command's name, for errors.
    pub fn name(&self) -> &'static str {
        match (self.target, &self.form) {
            (_, Form::Disque { command }) => command,
            (_, Form::Stream) => "XACK or XDEL",
            (Target::RedisList, _) => "LREM",
            _ => "delete",
        }
    }

    /// Takes a job that was fetched; false if its queue is none of the consumer's.
    pub fn push(&mut self, queue: u32, id: &[u8]) -> bool {
        if let Form::Single { before, is_resp } = &self.form {
            self.single.extend_from_slice(before);
            if *is_resp {
                append_bulk(&mut self.single, id);
            } else {
                self.single.extend_from_slice(id);
                self.single.extend_from_slice(b"\r\n");
            }
            self.singles += 1;
            return true;
        }
        let Some(ids) = self.queues.iter_mut().find(|ids| ids.number == queue) else {
            return false;
        };
        append_bulk(&mut ids.bulks, id);
        ids.ends.push(ids.bulks.len());
        true
    }

    /// Appends the commands that acknowledge all, and forgets the jobs: the replies they make.
    pub fn append(&mut self, out: &mut Vec<u8>) -> u32 {
        let mut replies = std::mem::take(&mut self.singles);
        out.extend_from_slice(&self.single);
        self.single.clear();
        for ids in &mut self.queues {
            let mut start = 0;
            for group in ids.ends.chunks(self.ids_max) {
                let (number, bulks) = (group.len(), &ids.bulks[start..group[group.len() - 1]]);
                start += bulks.len();
                replies += append_group(out, &self.form, &ids.queue, number, bulks);
            }
            ids.bulks.clear();
            ids.ends.clear();
        }
        replies
    }

    /// True if the reply with so many others behind it, itself included, counts acknowledged jobs. Streams
    /// count them twice, when they leave the group and when they leave the stream.
    pub fn counts(&self, replies_left: u32) -> bool {
        !matches!(self.form, Form::Stream) || replies_left.is_multiple_of(2)
    }
}

/// `LREM list -1`: the oldest of a consumer's jobs lies at the tail.
fn list_ack_start(list: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::new();
    append_header(&mut bytes, b'*', 4);
    for word in [b"LREM", list, b"-1"] {
        append_bulk(&mut bytes, word);
    }
    bytes
}

fn append_group(out: &mut Vec<u8>, form: &Form, queue: &[u8], number: usize, bulks: &[u8]) -> u32 {
    let mut append = |words: &[&[u8]]| {
        append_header(out, b'*', words.len() + number);
        for word in words {
            append_bulk(out, word);
        }
        out.extend_from_slice(bulks);
    };
    match form {
        Form::Disque { command } => {
            append(&[command.as_bytes()]);
            1
        }
        Form::Stream => {
            append(&[b"XACK", queue, GROUP.as_bytes()]);
            append(&[b"XDEL", queue]);
            2
        }
        Form::Single { .. } => unreachable!("single acknowledgements are appended as they come"),
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    fn load() -> Plan {
        Plan {
            run: 1,
            producers: 1,
            consumers: 1,
            queues: 12,
            jobs: 100,
            bodies: vec![2],
        }
    }

    /// Requests as people write them, each behind a bar.
    pub fn text(bytes: &[u8]) -> String {
        let text = String::from_utf8(bytes.to_vec()).unwrap();
        let words = text
            .split("\r\n")
            .filter(|word| !word.starts_with('$') && !word.is_empty());
        words
            .map(|word| if word.starts_with('*') { "|" } else { word })
            .collect::<Vec<_>>()
            .join(" ")
    }

    #[test]
    fn a_job_is_added_as_each_target_wants_it() {
        let settings = AddSettings {
            retry_s: Some(5),
            replicate: Some(2),
            delay_s: 3,
        };
        let add = |target, settings, is_only| {
            let add = Add::new(target, b"q", b"xx", settings, is_only);
            assert_eq!(&add.bytes[add.body_at..][..4], b"xx\r\n", "{target:?}");
            (text(&add.bytes), add.replies)
        };
        let disque = "| ADDJOB q xx 0 DELAY 3 RETRY 5 REPLICATE 2";
        assert_eq!(add(Target::Disque, settings, true), (disque.into(), 1));
        let none = AddSettings::default();
        assert_eq!(add(Target::Shardq, none, false), ("| ADDJOB q xx 0".into(), 1));
        assert_eq!(add(Target::RedisList, none, false), ("| LPUSH q xx".into(), 1));
        let with_star = Add::new(Target::RedisStream, b"q", b"xx", none, true).bytes;
        assert_eq!(
            with_star,
            b"*5\r\n$4\r\nXADD\r\n$1\r\nq\r\n$1\r\n*\r\n$1\r\nb\r\n$2\r\nxx\r\n"
        );
        assert_eq!(
            add(Target::Beanstalkd, settings, true),
            ("put 0 3 5 2 xx".into(), 1)
        );
        assert_eq!(
            add(Target::Beanstalkd, none, false),
            ("use q put 0 0 3600 2 xx".into(), 2)
        );
    }

    #[test]
    fn a_fetch_waits_or_does_not() {
        let fetch = |target, queues: &[&str]| {
            let queues: Vec<Vec<u8>> = queues.iter().map(|name| name.as_bytes().to_vec()).collect();
            let fetch = Fetch::new(target, &load(), 7, &queues, 4, BLOCK_MS);
            (text(&fetch.blocking), text(&fetch.nohang))
        };
        let both = |blocking: &str, nohang: &str| (blocking.to_owned(), nohang.to_owned());
        assert_eq!(
            fetch(Target::Shardq, &["q", "r"]),
            both(
                "| GETJOB TIMEOUT 100 COUNT 4 FROM q r",
                "| GETJOB NOHANG COUNT 4 FROM q r"
            )
        );
        assert_eq!(
            fetch(Target::RedisList, &["q"]),
            both(
                "| BLMOVE q bench-00000001-work-7 RIGHT LEFT 0.1",
                "| LMOVE q bench-00000001-work-7 RIGHT LEFT"
            )
        );
        assert_eq!(
            fetch(Target::RedisStream, &["q", "r"]),
            both(
                "| XREADGROUP GROUP bench c7 COUNT 4 BLOCK 100 STREAMS q r > >",
                "| XREADGROUP GROUP bench c7 COUNT 4 STREAMS q r > >"
            )
        );
        let (tubes, _) = greeting(Target::Beanstalkd, None, &[b"q".to_vec(), b"r".to_vec()]);
        assert_eq!(text(&tubes), "watch q watch r ignore default");
        assert_eq!(
            greeting(Target::Beanstalkd, Some(b"q"), &[]),
            (b"use q\r\n".to_vec(), 1)
        );
        assert_eq!(greeting(Target::Shardq, Some(b"q"), &[]), (vec![], 0));
    }

    #[test]
    fn acknowledgements_name_every_job_once() {
        let acks = |target| {
            let mut acks = Acks::new(target, &load(), 7, &[3, 9], "ACKJOB", 2);
            let mut out = Vec::new();
            let queue = |number| if target == Target::RedisStream { number } else { 0 };
            for (number, id) in [(3, b"D1"), (9, b"D2"), (3, b"D3"), (3, b"D4")] {
                assert!(acks.push(queue(number), id));
            }
            let replies = acks.append(&mut out);
            assert_eq!(acks.append(&mut out), 0, "they are named once");
            (text(&out), replies)
        };
        let shardq = "| ACKJOB D1 D2 | ACKJOB D3 D4";
        assert_eq!(acks(Target::Shardq), (shardq.into(), 2));
        let (list, replies) = acks(Target::RedisList);
        assert!(
            list.starts_with("| LREM bench-00000001-work-7 -1 D1 | LREM"),
            "{list}"
        );
        assert_eq!(replies, 4);
        assert_eq!(
            acks(Target::Beanstalkd),
            ("delete D1 delete D2 delete D3 delete D4".into(), 4)
        );
        let (three, nine) = ("bench-00000001-3", "bench-00000001-9");
        let stream = [
            format!("| XACK {three} bench D1 D3 | XDEL {three} D1 D3"),
            format!("| XACK {three} bench D4 | XDEL {three} D4"),
            format!("| XACK {nine} bench D2 | XDEL {nine} D2"),
        ];
        assert_eq!(acks(Target::RedisStream), (stream.join(" "), 6));
        let mut acks = Acks::new(Target::RedisStream, &load(), 7, &[3], "ACKJOB", 2);
        assert!(!acks.push(4, b"D1"), "a queue that was not asked for");
        assert!(
            acks.counts(2) && !acks.counts(1),
            "XACK counts, XDEL does not again"
        );
    }
}
