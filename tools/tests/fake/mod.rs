//! A broker in a few lines, with faults to order: what the bench's checks are tested against.
//!
//! It speaks just ADDJOB, GETJOB, ACKJOB, FASTACK, QLEN and INFO, a thread per connection, all jobs behind
//! one mutex. It reads requests with redis-protocol, so the bench's prebuilt bytes are checked by a parser
//! that is not ours.

use std::collections::{HashMap, HashSet, VecDeque};
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Condvar, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use redis_protocol::resp2::decode::decode;
use redis_protocol::resp2::types::OwnedFrame;
use tools::address::Address;

/// What goes wrong, at the job with the given number (counted from 0 in the order of arrival).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// Nothing.
    None,
    /// The job is confirmed and dropped.
    Lose(usize),
    /// The job is queued twice.
    Double(usize),
    /// The last byte of its body changes.
    Alter(usize),
    /// It is handed out, but its acknowledgement finds nothing.
    Forget(usize),
    /// ADDJOB answers an error.
    Refuse(usize),
    /// ADDJOB closes the connection.
    Close(usize),
    /// ADDJOB is never answered.
    Ignore(usize),
}

type Job = (Vec<u8>, Vec<u8>);

#[derive(Default)]
struct Jobs {
    added: usize,
    queues: HashMap<Vec<u8>, VecDeque<Job>>,
    known: HashSet<Vec<u8>>,
}

struct Broker {
    fault: Fault,
    jobs: Mutex<Jobs>,
    more: Condvar,
}

/// Starts a broker that lives as long as the test's process.
pub fn start(fault: Fault) -> Address {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let broker = Arc::new(Broker {
        fault,
        jobs: Mutex::default(),
        more: Condvar::new(),
    });
    thread::spawn(move || {
        for stream in listener.incoming() {
            let (broker, stream) = (Arc::clone(&broker), stream.unwrap());
            thread::spawn(move || broker.serve(stream));
        }
    });
    Address::tcp("127.0.0.1", port)
}

impl Broker {
    fn serve(&self, mut stream: TcpStream) {
        let (mut input, mut chunk) = (Vec::new(), vec![0; 64 * 1024]);
        loop {
            let (mut position, mut output) = (0, Vec::new());
            while let Some((frame, length)) = decode(&input[position..]).expect("a valid request") {
                position += length;
                if !self.execute(&words(frame), &mut output, &mut stream) {
                    return;
                }
            }
            input.drain(..position);
            if stream.write_all(&output).is_err() {
                return;
            }
            match stream.read(&mut chunk) {
                Ok(0) | Err(_) => return,
                Ok(length) => input.extend_from_slice(&chunk[..length]),
            }
        }
    }

    /// False if the connection is to be closed. Replies before a GETJOB that waits leave first.
    fn execute(&self, words: &[Vec<u8>], output: &mut Vec<u8>, stream: &mut TcpStream) -> bool {
        match words[0].as_slice() {
            b"ADDJOB" => return self.add(&words[1], &words[2], output),
            b"GETJOB" => self.get(words, output, stream),
            b"ACKJOB" | b"FASTACK" => {
                let mut jobs = self.jobs.lock().unwrap();
                let known = words[1..].iter().filter(|id| jobs.known.remove(*id)).count();
                output.extend(format!(":{known}\r\n").bytes());
            }
            b"QLEN" => {
                let jobs = self.jobs.lock().unwrap();
                let length = jobs.queues.get(&words[1]).map_or(0, VecDeque::len);
                output.extend(format!(":{length}\r\n").bytes());
            }
            b"INFO" => {
                let text = format!("# Server\r\nprocess_id:{}\r\n", std::process::id());
                output.extend(format!("${}\r\n{text}\r\n", text.len()).bytes());
            }
            other => {
                output.extend(format!("-ERR unknown command {}\r\n", String::from_utf8_lossy(other)).bytes())
            }
        }
        true
    }

    fn add(&self, queue: &[u8], body: &[u8], output: &mut Vec<u8>) -> bool {
        let mut jobs = self.jobs.lock().unwrap();
        let number = jobs.added;
        jobs.added += 1;
        let id = format!("D-00000000-{number:024}-05a1").into_bytes();
        let mut body = body.to_vec();
        let mut copies = 1;
        match self.fault {
            Fault::Refuse(at) if at == number => {
                output.extend(b"-OOM no memory left\r\n");
                return true;
            }
            Fault::Close(at) if at == number => return false,
            Fault::Ignore(at) if at == number => return true,
            Fault::Lose(at) if at == number => copies = 0,
            Fault::Double(at) if at == number => copies = 2,
            Fault::Alter(at) if at == number => *body.last_mut().unwrap() ^= 1,
            _ => {}
        }
        if self.fault != Fault::Forget(number) {
            jobs.known.insert(id.clone());
        }
        let entries = jobs.queues.entry(queue.to_vec()).or_default();
        entries.extend((0..copies).map(|_| (id.clone(), body.clone())));
        output.push(b'+');
        output.extend(id);
        output.extend(b"\r\n");
        self.more.notify_all();
        true
    }

    fn get(&self, words: &[Vec<u8>], output: &mut Vec<u8>, stream: &mut TcpStream) {
        let value = |name: &[u8]| {
            let at = words.iter().position(|word| word == name)?;
            std::str::from_utf8(&words[at + 1]).unwrap().parse::<u64>().ok()
        };
        let from = words.iter().position(|word| word == b"FROM").unwrap();
        let count = value(b"COUNT").unwrap_or(1) as usize;
        let deadline = Instant::now() + Duration::from_millis(value(b"TIMEOUT").unwrap_or(0));
        let mut jobs = self.jobs.lock().unwrap();
        loop {
            let found = take(&mut jobs, &words[from + 1..], count);
            let now = Instant::now();
            if !found.is_empty() || now >= deadline {
                append_jobs(output, &found);
                return;
            }
            stream.write_all(output).expect("the bench stays while it waits");
            output.clear();
            jobs = self.more.wait_timeout(jobs, deadline - now).unwrap().0;
        }
    }
}

/// Passes over the queues, one job of each in a pass, until there are enough.
fn take(jobs: &mut Jobs, queues: &[Vec<u8>], count: usize) -> Vec<(Vec<u8>, Job)> {
    let mut found = Vec::new();
    loop {
        let before = found.len();
        for queue in queues {
            let next = jobs
                .queues
                .get_mut(queue)
                .filter(|_| found.len() < count)
                .and_then(VecDeque::pop_front);
            found.extend(next.map(|job| (queue.clone(), job)));
        }
        if found.len() == before {
            return found;
        }
    }
}

fn append_jobs(output: &mut Vec<u8>, found: &[(Vec<u8>, Job)]) {
    if found.is_empty() {
        output.extend(b"*-1\r\n");
        return;
    }
    output.extend(format!("*{}\r\n", found.len()).bytes());
    for (queue, (id, body)) in found {
        output.extend(b"*3\r\n");
        for bulk in [queue, id, body] {
            output.extend(format!("${}\r\n", bulk.len()).bytes());
            output.extend(bulk);
            output.extend(b"\r\n");
        }
    }
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
