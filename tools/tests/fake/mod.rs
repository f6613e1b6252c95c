//! A broker in a few lines, with faults to order: what the bench's checks are tested against.
//!
//! It speaks just what the bench says to each of its targets (`resp` for Disque's protocol and for Redis, `lines`
//! for beanstalkd), a thread per connection, all jobs behind one mutex. It reads requests with redis-protocol,
//! so the bench's prebuilt bytes are checked by a parser that is not ours.

mod lines;
mod resp;

use std::collections::{HashMap, HashSet, VecDeque};
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Condvar, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use tools::address::Address;
use tools::bench::target::Target;

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
    /// The command that adds it answers an error.
    Refuse(usize),
    /// The command that adds it closes the connection.
    Close(usize),
    /// The command that adds it is never answered.
    Ignore(usize),
    /// The command that adds it takes [`PAUSE`], and all of its connection wait behind it.
    Pause(usize),
}

/// How long [`Fault::Pause`] takes.
pub const PAUSE: Duration = Duration::from_millis(500);

/// ID and body.
type Job = (Vec<u8>, Vec<u8>);

/// A job with its queue's name.
type Found = (Vec<u8>, Job);

#[derive(Default)]
struct Jobs {
    added: usize,
    queues: HashMap<Vec<u8>, VecDeque<Job>>,
    known: HashSet<Vec<u8>>,
}

struct Broker {
    target: Target,
    fault: Fault,
    jobs: Mutex<Jobs>,
    more: Condvar,
}

/// What becomes of an attempt to add a job.
enum Added {
    Id(Vec<u8>),
    Refused,
    Closed,
    Ignored,
}

/// What a request leads to.
#[derive(PartialEq, Eq)]
enum Next {
    GoOn,
    Close,
}

/// What one connection has said of itself.
struct Session {
    used_tube: Vec<u8>,
    watched_tubes: Vec<Vec<u8>>,
}

/// Starts a broker of Disque's protocol that lives as long as the test's process.
pub fn start(fault: Fault) -> Address {
    start_as(Target::Shardq, fault)
}

/// The same for any target's protocol.
pub fn start_as(target: Target, fault: Fault) -> Address {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let broker = Arc::new(Broker {
        target,
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
        let mut session = Session {
            used_tube: b"default".to_vec(),
            watched_tubes: vec![b"default".to_vec()],
        };
        loop {
            let (mut position, mut output) = (0, Vec::new());
            loop {
                let rest = &input[position..];
                let next = match self.target {
                    Target::Beanstalkd => lines::request(rest).map(|(words, body, length)| {
                        position += length;
                        self.execute_line(&words, body, &mut session, &mut output, &mut stream)
                    }),
                    _ => resp::request(rest).map(|(words, length)| {
                        position += length;
                        self.execute(&words, &mut output, &mut stream)
                    }),
                };
                match next {
                    None => break,
                    Some(Next::GoOn) => {}
                    Some(Next::Close) => return,
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

    fn add(&self, queue: &[u8], body: &[u8]) -> Added {
        if let Fault::Pause(at) = self.fault
            && self.jobs.lock().unwrap().added == at
        {
            thread::sleep(PAUSE);
        }
        let mut jobs = self.jobs.lock().unwrap();
        let number = jobs.added;
        jobs.added += 1;
        let id = match self.target {
            Target::Beanstalkd => format!("{number}"),
            Target::RedisStream => format!("{number}-0"),
            _ => format!("D-00000000-{number:024}-05a1"),
        };
        let id = id.into_bytes();
        let mut body = body.to_vec();
        let mut copies = 1;
        match self.fault {
            Fault::Refuse(at) if at == number => return Added::Refused,
            Fault::Close(at) if at == number => return Added::Closed,
            Fault::Ignore(at) if at == number => return Added::Ignored,
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
        self.more.notify_all();
        Added::Id(id)
    }

    /// Up to `count` jobs of the queues; waits for a first one. Replies before a fetch that waits leave first.
    fn fetch(
        &self,
        queues: &[Vec<u8>],
        count: usize,
        wait: Duration,
        output: &mut Vec<u8>,
        stream: &mut TcpStream,
    ) -> Vec<Found> {
        let deadline = Instant::now() + wait;
        let mut jobs = self.jobs.lock().unwrap();
        loop {
            let found = jobs.take(queues, count);
            let now = Instant::now();
            if !found.is_empty() || now >= deadline {
                return found;
            }
            stream.write_all(output).expect("the bench stays while it waits");
            output.clear();
            jobs = self.more.wait_timeout(jobs, deadline - now).unwrap().0;
        }
    }

    /// How many of these jobs it knew; `forgets` if it knows them no more then.
    fn acknowledge(&self, ids: &[Vec<u8>], forgets: bool) -> usize {
        let mut jobs = self.jobs.lock().unwrap();
        let mut is_known = |id: &&Vec<u8>| match forgets {
            true => jobs.known.remove(*id),
            false => jobs.known.contains(*id),
        };
        ids.iter().filter(|id| is_known(id)).count()
    }

    fn length(&self, queue: &[u8]) -> usize {
        let jobs = self.jobs.lock().unwrap();
        jobs.queues.get(queue).map_or(0, VecDeque::len)
    }
}

impl Jobs {
    /// Passes over the queues, one job of each in a pass, until there are enough.
    fn take(&mut self, queues: &[Vec<u8>], count: usize) -> Vec<Found> {
        let mut found = Vec::new();
        loop {
            let before = found.len();
            for queue in queues {
                let next = self
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
}
