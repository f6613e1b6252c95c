//! Requests through a whole shard, without sockets: bytes in, replies out, from 50 sessions in turn; without a log, and with
//! one whose disk does all at once.
//!
//! `cargo bench --bench requests` measures time. `cargo bench --bench requests -- instructions` counts instructions, which are steadier on
//! a machine that is not one's own, and fails when there are more than there were (`instructions.rs`). One part alone, for a profiler:
//! `life 400 16` or `life-log 400 16` after the `--`, that is 400 rounds of pipelines of 16; `add` instead of `life` adds and takes nothing. `cargo test` runs it small.

mod instructions;

use std::process::ExitCode;
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
/// Requests of a pipeline unless told otherwise.
const PIPELINE: usize = 64;
/// Bytes of a reply to ADDJOB: `+`, the ID, and the end of the line.
const ADD_REPLY_BYTES: usize = 43;
const ID_BYTES: usize = 40;
/// Bytes before the ID in a reply to GETJOB: three array and bulk heads, the queue's name.
const GET_ID_AT: usize = b"*1\r\n*3\r\n$5\r\nqueue\r\n$40\r\n".len();
const GET_REPLY_BYTES: usize = GET_ID_AT + ID_BYTES + b"\r\n$12\r\ntwelve bytes\r\n".len();
/// Bytes before the ID in an ACKJOB.
const ACK_ID_AT: usize = b"*2\r\n$6\r\nACKJOB\r\n$40\r\n".len();
const ACK_BYTES: usize = ACK_ID_AT + ID_BYTES + b"\r\n".len();

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args()
        .skip(1)
        .filter(|word| !word.starts_with("--"))
        .collect();
    let measure = std::env::args().any(|word| word == "--bench");
    let which = words.first().map_or("all", String::as_str);
    if which == "instructions" {
        return instructions::check(words.get(1).is_some_and(|word| word == "write"));
    }
    let number = |at: usize| words.get(at).map(|word| word.parse().expect("it is a number"));
    let rounds = number(1).unwrap_or(if measure { 20_000 } else { 20 });
    let pipeline = number(2).unwrap_or(PIPELINE);
    for (name, logs) in [("", false), ("-log", true)] {
        let with = if logs { ", logged" } else { "" };
        if which == "all" || which == format!("add{name}") {
            report(&format!("ADDJOB{with}"), rounds, pipeline, logs, Bench::add);
        }
        if which == "all" || which == format!("life{name}") {
            let what = format!("ADDJOB, GETJOB and ACKJOB{with}");
            report(&what, rounds, pipeline, logs, Bench::life);
        }
    }
    if !measure {
        instructions::known();
    }
    ExitCode::SUCCESS
}

fn report(what: &str, rounds: usize, pipeline: usize, logs: bool, round: fn(&mut Bench)) {
    let mut bench = Bench::new(pipeline, logs);
    let started = Instant::now();
    (0..rounds).for_each(|_| round(&mut bench));
    let each_ns = started.elapsed().as_nanos() / (rounds * pipeline) as u128;
    println!("{what}: {each_ns} ns for each job, {rounds} rounds of {pipeline}");
}

/// One shard, its clock, and sessions that take turns.
struct Bench {
    shard: Shard,
    now: Now,
    pipeline: usize,
    sessions: Vec<SessionId>,
    turn: usize,
    adds: Vec<u8>,
    gets: Vec<u8>,
    /// Their IDs are written anew each time.
    acknowledgements: Vec<u8>,
    /// The replies to them.
    all_counted: Vec<u8>,
    effects: Vec<Effect>,
    chunks: Vec<Bytes>,
    reply: Vec<u8>,
}

impl Bench {
    fn new(pipeline: usize, logs: bool) -> Self {
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
        let requests = |request: &[&[u8]]| {
            let mut input = Vec::new();
            (0..pipeline).for_each(|_| encode_request(request, &mut input));
            input
        };
        let mut bench = Self {
            shard,
            now,
            pipeline,
            sessions,
            turn: 0,
            adds: requests(&[b"ADDJOB", b"queue", b"twelve bytes", b"0"]),
            gets: requests(&[b"GETJOB", b"NOHANG", b"FROM", b"queue"]),
            acknowledgements: requests(&[b"ACKJOB", &[0; ID_BYTES]]),
            all_counted: b":1\r\n".repeat(pipeline),
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

    fn life(&mut self) {
        self.add();
        self.get();
        self.acknowledge();
    }

    // Not inlined: the count of instructions goes by these names.

    #[inline(never)]
    fn add(&mut self) {
        let adds = std::mem::take(&mut self.adds);
        self.ask(&adds);
        assert_eq!(self.reply.len(), self.pipeline * ADD_REPLY_BYTES);
        self.adds = adds;
    }

    #[inline(never)]
    fn get(&mut self) {
        let gets = std::mem::take(&mut self.gets);
        self.ask(&gets);
        assert_eq!(self.reply.len(), self.pipeline * GET_REPLY_BYTES);
        self.gets = gets;
    }

    #[inline(never)]
    fn acknowledge(&mut self) {
        let mut acknowledgements = std::mem::take(&mut self.acknowledgements);
        let replies = self.reply.chunks_exact(GET_REPLY_BYTES);
        for (request, reply) in acknowledgements.chunks_exact_mut(ACK_BYTES).zip(replies) {
            request[ACK_ID_AT..][..ID_BYTES].copy_from_slice(&reply[GET_ID_AT..][..ID_BYTES]);
        }
        self.ask(&acknowledgements);
        assert_eq!(self.reply, self.all_counted);
        self.acknowledgements = acknowledgements;
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
