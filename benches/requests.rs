//! Requests through a whole shard, without sockets: bytes in, replies out, pipelines of 64 from 50 sessions in turn; without a log,
//! and with one whose disk does all at once.
//!
//! `cargo bench --bench requests` measures time; the number of instructions is steadier on a machine that is not one's own:
//! run the binary under `valgrind --tool=callgrind` with `add 200` and `add 400` (or `life`, `add-log`, `life-log`), and divide the difference by
//! the jobs between the two (64 a round). `cargo test` runs it small.

use std::time::Instant;

use bytes::Bytes;
use shard::clock::Now;
use shard::id::NodeId;
use shard::input::{Effect, Input, Peer};
use shard::log::{Current, Done, LogBoot, StartPlan};
use shard::message::SessionId;
use shard::settings::Settings;
use shard::shard::{NodeFacts, Shard, ShardOptions};
use shard::wire::encode_request;

const SESSIONS: usize = 50;
const PIPELINE: usize = 64;
/// Bytes of a reply to ADDJOB: `+`, the ID, and the end of the line.
const ADD_REPLY_BYTES: usize = 43;
/// Bytes before the ID in a reply to GETJOB: three array and bulk heads, the queue's name.
const ID_AT: usize = b"*1\r\n*3\r\n$5\r\nqueue\r\n$40\r\n".len();
const GET_REPLY_BYTES: usize = ID_AT + 40 + b"\r\n$12\r\ntwelve bytes\r\n".len();

fn main() {
    let words: Vec<String> = std::env::args()
        .skip(1)
        .filter(|word| !word.starts_with("--"))
        .collect();
    let measure = std::env::args().any(|word| word == "--bench");
    let rounds = match words.get(1) {
        Some(rounds) => rounds.parse().expect("the second argument is a number of rounds"),
        None if measure => 20_000,
        None => 20,
    };
    let which = words.first().map_or("all", String::as_str);
    for (name, logs) in [("", false), ("-log", true)] {
        let with = if logs { ", logged" } else { "" };
        if which == "all" || which == format!("add{name}") {
            report(&format!("ADDJOB{with}"), rounds, logs, Bench::add);
        }
        if which == "all" || which == format!("life{name}") {
            report(
                &format!("ADDJOB, GETJOB and ACKJOB{with}"),
                rounds,
                logs,
                Bench::life,
            );
        }
    }
}

fn report(what: &str, rounds: usize, logs: bool, round: fn(&mut Bench)) {
    let mut bench = Bench::new(logs);
    let started = Instant::now();
    (0..rounds).for_each(|_| round(&mut bench));
    let each_ns = started.elapsed().as_nanos() / (rounds * PIPELINE) as u128;
    println!("{what}: {each_ns} ns for each job, {rounds} rounds of {PIPELINE}");
}

/// One shard, its clock, and sessions that take turns.
struct Bench {
    shard: Shard,
    now: Now,
    sessions: Vec<SessionId>,
    turn: usize,
    adds: Vec<u8>,
    gets: Vec<u8>,
    acknowledgements: Vec<u8>,
    effects: Vec<Effect>,
    chunks: Vec<Bytes>,
    reply: Vec<u8>,
}

impl Bench {
    fn new(logs: bool) -> Self {
        let now = Now {
            mono_us: 1_000_000,
            wall_us: 1_700_000_000_000_000,
        };
        let fresh = StartPlan::Fresh(Current {
            generation: 1,
            shards: 1,
        });
        let options = ShardOptions {
            shard: 0,
            shards: 1,
            node: NodeId::from_bytes([7; 20]),
            seed: [1; 32],
            hash_seed: 1,
            facts: NodeFacts::default(),
            log: LogBoot {
                plan: if logs { fresh } else { StartPlan::Nothing },
                ..LogBoot::nothing()
            },
        };
        let settings = Settings {
            maxmemory: 0,
            appendonly: logs,
            aof_rewrite_percentage: 0,
            ..Settings::default()
        };
        let mut shard = Shard::new(options, settings, now);
        let peer = || Peer::Unix("socket".into());
        let sessions = (0..SESSIONS as u64)
            .map(|client| shard.connect(now, client, peer(), peer()))
            .collect();
        let pipeline = |request: &[&[u8]]| {
            let mut input = Vec::new();
            (0..PIPELINE).for_each(|_| encode_request(request, &mut input));
            input
        };
        let mut bench = Self {
            shard,
            now,
            sessions,
            turn: 0,
            adds: pipeline(&[b"ADDJOB", b"queue", b"twelve bytes", b"0"]),
            gets: pipeline(&[b"GETJOB", b"NOHANG", b"FROM", b"queue"]),
            acknowledgements: Vec::new(),
            effects: Vec::new(),
            chunks: Vec::new(),
            reply: Vec::new(),
        };
        // A start takes some turns.
        for _ in 0..10 {
            bench.perform();
            bench.now.mono_us += 1_000;
            bench.now.wall_us += 1_000;
            bench.shard.handle(bench.now, Input::Tick);
        }
        bench.perform();
        bench
    }

    fn add(&mut self) {
        let adds = std::mem::take(&mut self.adds);
        self.ask(&adds);
        assert_eq!(self.reply.len(), PIPELINE * ADD_REPLY_BYTES);
        self.adds = adds;
    }

    fn life(&mut self) {
        self.add();
        let gets = std::mem::take(&mut self.gets);
        self.ask(&gets);
        self.gets = gets;
        assert_eq!(self.reply.len(), PIPELINE * GET_REPLY_BYTES);
        let mut acknowledgements = std::mem::take(&mut self.acknowledgements);
        acknowledgements.clear();
        for reply in self.reply.chunks_exact(GET_REPLY_BYTES) {
            encode_request(&[b"ACKJOB", &reply[ID_AT..][..40]], &mut acknowledgements);
        }
        self.ask(&acknowledgements);
        self.acknowledgements = acknowledgements;
        assert_eq!(self.reply, b":1\r\n".repeat(PIPELINE));
    }

    /// One turn of the server: an input, its effects, a tick, the output.
    fn ask(&mut self, input: &[u8]) {
        let session = self.sessions[self.turn % SESSIONS];
        self.turn += 1;
        self.now.mono_us += 50;
        self.now.wall_us += 50;
        self.shard.handle(
            self.now,
            Input::Bytes {
                session,
                bytes: input,
            },
        );
        self.shard.take_effects(&mut self.effects);
        self.shard.handle(self.now, Input::Tick);
        self.reply.clear();
        self.perform();
    }

    /// Performs all effects and those that follow from them.
    fn perform(&mut self) {
        loop {
            self.shard.take_effects(&mut self.effects);
            let mut effects = std::mem::take(&mut self.effects);
            if effects.is_empty() {
                return;
            }
            for effect in effects.drain(..) {
                match effect {
                    Effect::Send { session } => self.send(session),
                    Effect::Disk { id, task } => {
                        drop(task);
                        let result = Ok(Done::Done);
                        self.shard.handle(self.now, Input::Disk { id, result });
                    }
                    Effect::SaveNodes { .. } => {
                        let result = Ok(());
                        self.shard.handle(self.now, Input::NodesSaved { result });
                    }
                    _ => {}
                }
            }
            self.effects = effects;
        }
    }

    fn send(&mut self, session: SessionId) {
        self.shard.take_output(session, &mut self.chunks, usize::MAX);
        let before = self.reply.len();
        self.chunks
            .drain(..)
            .for_each(|chunk| self.reply.extend_from_slice(&chunk));
        let bytes = self.reply.len() - before;
        self.shard.handle(self.now, Input::Sent { session, bytes });
    }
}
