//! The fake's requests in RESP: Disque's commands, and those of Redis' lists and streams.

use std::net::TcpStream;
use std::time::Duration;

use redis_protocol::resp2::decode::decode;
use redis_protocol::resp2::types::OwnedFrame;
use tools::bench::target::Target;

use super::{Added, Broker, Found, Next};

/// The first request of the input: its words, and how many bytes it took.
pub fn request(input: &[u8]) -> Option<(Vec<Vec<u8>>, usize)> {
    let (frame, length) = decode(input).expect("a valid request")?;
    Some((words(frame), length))
}

fn words(frame: OwnedFrame) -> Vec<Vec<u8>> {
    let OwnedFrame::Array(frames) = frame else {
        panic!("not an array: {frame:?}")
    };
    let word = |frame| match frame {
        OwnedFrame::BulkString(bytes) => bytes,
        other => panic!("not a bulk string: {other:?}"),
    };
    frames.into_iter().map(word).collect()
}

/// The number behind a word.
fn value(words: &[Vec<u8>], name: &[u8]) -> Option<u64> {
    let at = words.iter().position(|word| word == name)?;
    std::str::from_utf8(&words[at + 1]).unwrap().parse().ok()
}

fn behind<'a>(words: &'a [Vec<u8>], name: &[u8]) -> &'a [Vec<u8>] {
    &words[words.iter().position(|word| word == name).unwrap() + 1..]
}

fn bulk(output: &mut Vec<u8>, bytes: &[u8]) {
    output.extend(format!("${}\r\n", bytes.len()).bytes());
    output.extend(bytes);
    output.extend(b"\r\n");
}

impl Broker {
    pub(super) fn execute(&self, words: &[Vec<u8>], output: &mut Vec<u8>, stream: &mut TcpStream) -> Next {
        let number = |number: usize| format!(":{number}\r\n").into_bytes();
        match (self.target, words[0].as_slice()) {
            (_, b"INFO") => {
                let text = format!("# Server\r\nprocess_id:{}\r\n", std::process::id());
                bulk(output, text.as_bytes());
            }
            (Target::Shardq, b"ADDJOB") => return self.add_and_answer(&words[1], &words[2], output),
            (Target::Shardq, b"GETJOB") => {
                let wait = Duration::from_millis(value(words, b"TIMEOUT").unwrap_or(0));
                let count = value(words, b"COUNT").unwrap_or(1) as usize;
                let found = self.fetch(behind(words, b"FROM"), count, wait, output, stream);
                append_jobs(output, &found);
            }
            (Target::Shardq, b"ACKJOB" | b"FASTACK") => {
                output.extend(number(self.acknowledge(&words[1..], true)));
            }
            (Target::Shardq, b"QLEN") | (Target::RedisList, b"LLEN") | (Target::RedisStream, b"XLEN") => {
                output.extend(number(self.length(&words[1])));
            }
            (Target::RedisList, _) => return self.execute_list(words, output, stream),
            (Target::RedisStream, _) => return self.execute_stream(words, output, stream),
            (_, other) => append_unknown(output, other),
        }
        Next::GoOn
    }

    fn add_and_answer(&self, queue: &[u8], body: &[u8], output: &mut Vec<u8>) -> Next {
        match self.add(queue, body) {
            Added::Id(id) => match self.target {
                Target::RedisList => output.extend(b":1\r\n"),
                Target::RedisStream => bulk(output, &id),
                _ => output.extend([b"+", id.as_slice(), b"\r\n"].concat()),
            },
            Added::Refused => output.extend(b"-OOM no memory left\r\n"),
            Added::Ignored => {}
            Added::Closed => return Next::Close,
        }
        Next::GoOn
    }

    fn execute_list(&self, words: &[Vec<u8>], output: &mut Vec<u8>, stream: &mut TcpStream) -> Next {
        match words[0].as_slice() {
            b"LPUSH" => return self.add_and_answer(&words[1], &words[2], output),
            b"BLMOVE" | b"LMOVE" => {
                assert_eq!(words[3..5], [b"RIGHT".to_vec(), b"LEFT".to_vec()]);
                let seconds = words
                    .get(5)
                    .map_or("0", |word| std::str::from_utf8(word).unwrap());
                let wait = Duration::from_secs_f64(seconds.parse().unwrap());
                let found = self.fetch(&words[1..2], 1, wait, output, stream);
                let Some((_, job)) = found.into_iter().next() else {
                    let null: &[u8] = if words.len() > 5 { b"*-1\r\n" } else { b"$-1\r\n" };
                    output.extend(null);
                    return Next::GoOn;
                };
                bulk(output, &job.1);
                let mut jobs = self.jobs.lock().unwrap();
                jobs.queues.entry(words[2].clone()).or_default().push_front(job);
            }
            b"LREM" => {
                let removed = self.remove(&words[1], &words[3]);
                output.extend(format!(":{removed}\r\n").bytes());
            }
            other => append_unknown(output, other),
        }
        Next::GoOn
    }

    /// Takes the oldest job of that body off a list: how many there were. One to forget stays.
    fn remove(&self, list: &[u8], body: &[u8]) -> usize {
        let mut jobs = self.jobs.lock().unwrap();
        let entries = jobs.queues.entry(list.to_vec()).or_default();
        let Some(at) = entries.iter().rposition(|job| job.1 == body) else {
            return 0;
        };
        let id = entries[at].0.clone();
        if !jobs.known.remove(&id) {
            return 0;
        }
        jobs.queues.get_mut(list).unwrap().remove(at);
        1
    }

    fn execute_stream(&self, words: &[Vec<u8>], output: &mut Vec<u8>, stream: &mut TcpStream) -> Next {
        match words[0].as_slice() {
            b"XGROUP" => output.extend(b"+OK\r\n"),
            b"DEL" => output.extend(b":1\r\n"),
            b"XADD" => {
                assert_eq!((words[2].as_slice(), words.len()), (b"*".as_slice(), 5));
                return self.add_and_answer(&words[1], &words[4], output);
            }
            b"XREADGROUP" => {
                let wait = Duration::from_millis(value(words, b"BLOCK").unwrap_or(0));
                let names = behind(words, b"STREAMS");
                let (names, starts) = names.split_at(names.len() / 2);
                assert!(starts.iter().all(|start| start == b">"));
                let count = value(words, b"COUNT").unwrap() as usize;
                let found = self.fetch(names, count, wait, output, stream);
                append_streams(output, names, &found);
            }
            b"XACK" => {
                let known = self.acknowledge(&words[3..], false);
                output.extend(format!(":{known}\r\n").bytes());
            }
            b"XDEL" => {
                let known = self.acknowledge(&words[2..], true);
                output.extend(format!(":{known}\r\n").bytes());
            }
            other => append_unknown(output, other),
        }
        Next::GoOn
    }
}

fn append_unknown(output: &mut Vec<u8>, command: &[u8]) {
    let command = String::from_utf8_lossy(command);
    output.extend(format!("-ERR unknown command {command}\r\n").bytes());
}

fn append_jobs(output: &mut Vec<u8>, found: &[Found]) {
    if found.is_empty() {
        output.extend(b"*-1\r\n");
        return;
    }
    output.extend(format!("*{}\r\n", found.len()).bytes());
    for (queue, (id, body)) in found {
        output.extend(b"*3\r\n");
        for bytes in [queue, id, body] {
            bulk(output, bytes);
        }
    }
}

fn append_streams(output: &mut Vec<u8>, names: &[Vec<u8>], found: &[Found]) {
    if found.is_empty() {
        output.extend(b"*-1\r\n");
        return;
    }
    let entries = |name| found.iter().filter(move |(queue, _)| queue == name);
    let named = names.iter().filter(|name| entries(*name).count() > 0);
    output.extend(format!("*{}\r\n", named.clone().count()).bytes());
    for name in named {
        output.extend(b"*2\r\n");
        bulk(output, name);
        output.extend(format!("*{}\r\n", entries(name).count()).bytes());
        for (_, (id, body)) in entries(name) {
            output.extend(b"*2\r\n");
            bulk(output, id);
            output.extend(b"*2\r\n");
            bulk(output, b"b");
            bulk(output, body);
        }
    }
}
