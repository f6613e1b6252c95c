//! One non-blocking connection: its socket, its buffers, and the round it is in.
//!
//! A connection is always in one of three states: waiting for the answers of its round, paused between two
//! rounds, or done. It moves on only in [`Connection::begin`] and [`Connection::ready`], and takes the time
//! once a round: the end of one is the start of the next.
//!
//! Readiness comes by edges. A read that does not fill its buffer has emptied the socket, so it is not
//! repeated.

use std::io::{self, Read, Write};
use std::time::Instant;

use mio::net::{TcpStream, UnixStream};

use super::commands;
use super::consumer::Consumer;
use super::error::BenchError;
use super::generator::Shift;
use super::pace::Pace;
use super::producer::Producer;
use super::scan::{Event, Scanner};
use super::target::Target;
use crate::address::Socket;

/// Smallest read buffer; grows as long as reads fill it.
const INPUT_BYTES_MIN: usize = 4 * 1024;

/// A buffer is not doubled beyond this unless a single job needs it.
const INPUT_BYTES_EAGER_MAX: usize = 256 * 1024;

/// What a role wants to do next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Round {
    /// It appended commands that make so many replies.
    Sent(u32),
    /// It has nothing to ask now, and wants to be asked again after a short while.
    Pause,
    /// It has nothing to do any more.
    Done,
}

/// What a connection waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// The server.
    Waiting,
    /// The end of a pause.
    Paused,
    /// Nothing: its work is done.
    Done,
}

/// What a connection is for.
#[derive(Debug)]
pub enum Role {
    /// Adding jobs.
    Producer(Producer),
    /// Fetching and acknowledging them.
    Consumer(Consumer),
}

impl Role {
    /// What the connection says when it opens, and the lines it is answered with.
    pub fn greeting(&self, target: Target) -> (Vec<u8>, usize) {
        match self {
            Self::Producer(producer) => commands::greeting(target, producer.only_queue(), &[]),
            Self::Consumer(consumer) => commands::greeting(target, None, consumer.queues()),
        }
    }
}

/// One connection of a load.
#[derive(Debug)]
pub struct Connection {
    link: Link,
    role: Role,
    scanner: Scanner,
    input: Input,
    output: Vec<u8>,
    written: usize,
    awaited: u32,
    began_at: Instant,
    state: State,
}

impl Connection {
    /// Takes over a connected socket.
    pub fn new(socket: Socket, target: Target, role: Role) -> io::Result<Self> {
        Ok(Self {
            link: Link::new(socket)?,
            role,
            scanner: Scanner::new(target),
            input: Input::default(),
            output: Vec::new(),
            written: 0,
            awaited: 0,
            began_at: Instant::now(),
            state: State::Paused,
        })
    }

    /// For the poll to register.
    pub fn source(&mut self) -> &mut dyn mio::event::Source {
        match &mut self.link {
            Link::Tcp(stream) => stream,
            Link::Unix(stream) => stream,
        }
    }

    /// True if it waits for the server.
    pub fn is_waiting(&self) -> bool {
        self.state == State::Waiting
    }

    /// Begins the next round: at the start, and after each pause. A producer in an open loop has no rounds: it
    /// waits for its time instead.
    pub fn begin(&mut self, shift: &mut Shift<'_>, now: Instant) -> Result<State, BenchError> {
        if shift.pace.is_some()
            && let Role::Producer(producer) = &self.role
        {
            self.state = match producer.is_all_sent() && self.awaited == 0 {
                true => State::Done,
                false => State::Waiting,
            };
            return Ok(self.state);
        }
        assert!(
            self.awaited == 0 && self.written == self.output.len(),
            "a round begins when the last is over"
        );
        self.output.clear();
        self.written = 0;
        let round = match &mut self.role {
            Role::Producer(producer) => producer.next_round(&mut self.output),
            Role::Consumer(consumer) => consumer.next_round(&mut self.output, shift.is_finished()),
        };
        self.state = match round {
            Round::Sent(replies) => {
                self.awaited = replies;
                self.began_at = now;
                self.write()?;
                State::Waiting
            }
            Round::Pause => State::Paused,
            Round::Done => State::Done,
        };
        Ok(self.state)
    }

    /// When a producer's next job is due, in nanoseconds since the start; `None` if there is none.
    pub fn next_due_ns(&self, pace: &Pace) -> Option<u64> {
        match &self.role {
            Role::Producer(producer) => producer.next_due_ns(pace),
            Role::Consumer(_) => None,
        }
    }

    /// In an open loop, sends a producer's jobs that are due, whatever is unanswered: when the next one is, in
    /// nanoseconds since the start; `None` if there is none.
    pub fn send_due(
        &mut self,
        shift: &mut Shift<'_>,
        pace: &Pace,
        now_ns: u64,
    ) -> Result<Option<u64>, BenchError> {
        let Role::Producer(producer) = &mut self.role else {
            return Ok(None);
        };
        // What a slow server has not taken stays in front.
        self.output.drain(..std::mem::take(&mut self.written));
        let (sequences, replies) = producer.append_due(&mut self.output, pace, now_ns);
        self.awaited += replies;
        let next = producer.next_due_ns(pace);
        shift.jobs_sent(producer.number(), sequences, now_ns);
        self.write()?;
        Ok(next)
    }

    /// The socket may be read or written.
    pub fn ready(&mut self, shift: &mut Shift<'_>) -> Result<State, BenchError> {
        loop {
            self.write()?;
            let Some(filled) = self.input.fill(&mut self.link)? else {
                return Ok(self.state);
            };
            shift.note_read();
            self.scan(shift)?;
            if self.awaited == 0 {
                let now = Instant::now();
                shift.round_ended(&self.role, self.began_at, now);
                if self.begin(shift, now)? != State::Waiting {
                    return Ok(self.state);
                }
            }
            if !filled {
                return Ok(self.state);
            }
        }
    }

    fn write(&mut self) -> Result<(), BenchError> {
        while self.written < self.output.len() {
            match self.link.write(&self.output[self.written..]) {
                Ok(0) => return Err(BenchError::Closed),
                Ok(length) => self.written += length,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(lost(error)),
            }
        }
        Ok(())
    }

    fn scan(&mut self, shift: &mut Shift<'_>) -> Result<(), BenchError> {
        while let Some((event, length)) = self.scanner.next(self.input.unread())? {
            if self.awaited == 0 {
                return Err(BenchError::Unexpected {
                    command: "nothing",
                    found: format!("{event:?}"),
                });
            }
            let is_whole = match &mut self.role {
                Role::Producer(producer) => {
                    let before = producer.answered();
                    producer.take(&event, &mut shift.gains)?;
                    if producer.answered() > before {
                        shift.job_answered(producer.number(), before);
                    }
                    true
                }
                Role::Consumer(consumer) => {
                    let before = shift.gains.received.fresh;
                    let is_whole = consumer.take(&event, shift.ledger, &mut shift.gains)?;
                    if let Event::Job { body, .. } = event
                        && shift.gains.received.fresh > before
                    {
                        shift.job_delivered(body);
                    }
                    is_whole
                }
            };
            self.awaited -= u32::from(is_whole);
            shift.gains.commands += u64::from(is_whole);
            self.input.advance(length);
        }
        Ok(())
    }
}

impl Event<'_> {
    /// The error for an event that is no success of `command`.
    pub fn refusal(&self, command: &'static str) -> BenchError {
        match self {
            Event::Error(text) => BenchError::Refused {
                command,
                text: String::from_utf8_lossy(text).into_owned(),
            },
            other => BenchError::Unexpected {
                command,
                found: format!("{other:?}"),
            },
        }
    }
}

fn lost(error: io::Error) -> BenchError {
    match error.kind() {
        io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe => BenchError::Closed,
        _ => BenchError::Io(error),
    }
}

#[derive(Debug)]
enum Link {
    Tcp(TcpStream),
    Unix(UnixStream),
}

impl Link {
    fn new(socket: Socket) -> io::Result<Self> {
        match socket {
            Socket::Tcp(stream) => {
                stream.set_nonblocking(true)?;
                Ok(Self::Tcp(TcpStream::from_std(stream)))
            }
            Socket::Unix(stream) => {
                stream.set_nonblocking(true)?;
                Ok(Self::Unix(UnixStream::from_std(stream)))
            }
        }
    }

    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Self::Tcp(stream) => stream.write(bytes),
            Self::Unix(stream) => stream.write(bytes),
        }
    }

    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Tcp(stream) => stream.read(buffer),
            Self::Unix(stream) => stream.read(buffer),
        }
    }
}

/// Bytes received: `buffer[read..filled]` are those not scanned yet.
#[derive(Debug, Default)]
struct Input {
    buffer: Vec<u8>,
    read: usize,
    filled: usize,
}

impl Input {
    fn unread(&self) -> &[u8] {
        &self.buffer[self.read..self.filled]
    }

    fn advance(&mut self, length: usize) {
        self.read += length;
    }

    /// Reads once: `None` if there was nothing, else whether the buffer was filled to its end.
    fn fill(&mut self, link: &mut Link) -> Result<Option<bool>, BenchError> {
        self.make_room();
        loop {
            match link.read(&mut self.buffer[self.filled..]) {
                Ok(0) => return Err(BenchError::Closed),
                Ok(length) => {
                    self.filled += length;
                    return Ok(Some(self.filled == self.buffer.len()));
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(None),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(lost(error)),
            }
        }
    }

    fn make_room(&mut self) {
        let was_full = self.filled == self.buffer.len();
        if self.read > 0 {
            self.buffer.copy_within(self.read..self.filled, 0);
            self.filled -= self.read;
            self.read = 0;
        }
        let is_full = self.filled == self.buffer.len();
        if is_full || (was_full && self.buffer.len() < INPUT_BYTES_EAGER_MAX) {
            self.buffer
                .resize((self.buffer.len() * 2).max(INPUT_BYTES_MIN), 0);
        }
    }
}
