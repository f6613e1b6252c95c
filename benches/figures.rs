//! Figures of the state machine alone, as the README gives them: full job lives a second, and the longest single step with
//! two million jobs.
//!
//! `cargo bench --bench figures` measures; `cargo test` runs the same code with small sizes. One thread, no sockets: requests go
//! straight to the home of one shard, ticks between them as in a turn of the server.

use std::hint::black_box;
use std::time::{Duration, Instant};

use shard::clock::Now;
use shard::commands::{AddJob, IdVerb, Request};
use shard::home::{Home, HomeOptions};
use shard::id::{JobId, NodeId};
use shard::memory::Memory;
use shard::message::{Answer, Manner, Patience, SessionId, Take, Ticket};
use shard::wire::Blob;
use smallvec::smallvec;

const BODY: &[u8] = b"twelve bytes";
/// Requests between two ticks: a pipeline of 64 in one turn.
const TURN: usize = 64;

fn main() {
    let measure = std::env::args().any(|argument| argument == "--bench");
    let (lives, jobs) = if measure {
        (6_000_000, 2_000_000)
    } else {
        (20_000, 20_000)
    };
    full_lives(lives);
    longest_step(jobs);
}

/// One shard and its clock.
struct Bench {
    home: Home,
    started: Instant,
    now: Now,
    queue: Blob,
}

impl Bench {
    fn new() -> Self {
        let options = HomeOptions {
            shard: 0,
            shards: 1,
            node: NodeId::from_bytes([7; 20]),
            seed: [1; 32],
            hash_seed: 1,
        };
        let now = Now {
            mono_us: 1_000_000,
            wall_us: 1_700_000_000_000_000,
        };
        let home = Home::new(options, Memory::new(64 << 30), now);
        Self {
            home,
            started: Instant::now(),
            now,
            queue: Blob::copy_from(b"queue"),
        }
    }

    /// Reads the clock, as the server does once a turn.
    fn turn(&mut self) {
        self.now.mono_us = 1_000_000 + self.started.elapsed().as_micros() as u64;
        self.home.tick(self.now);
    }

    fn ask(&mut self, request: Request) -> Answer {
        let ticket = Ticket {
            shard: 0,
            session: SessionId {
                index: 0,
                generation: 0,
            },
            request: 0,
        };
        self.home.request(self.now, ticket, request)
    }

    fn add(&mut self, delay_s: u32) -> JobId {
        let add = AddJob {
            queue: self.queue.clone(),
            body: Blob::copy_from(BODY),
            timeout_ms: 0,
            replicate: 1,
            lowered: false,
            may_lower: false,
            ttl_s: 86_400,
            retry_s: 300,
            delay_s,
            max_len: None,
            asynchronous: false,
        };
        match self.ask(Request::Add(add)) {
            Answer::Id(id) => id,
            other => panic!("ADDJOB answered {other:?}"),
        }
    }

    fn get(&mut self) -> JobId {
        let take = Take {
            queues: smallvec![(0, self.queue.clone())],
            count: 1,
            manner: Manner::Deliver,
            patience: Patience::None,
        };
        match self.ask(Request::Take(take)) {
            Answer::Jobs(jobs) => {
                let id = jobs[0].handed.id;
                self.home.recycle(&mut Answer::Jobs(jobs));
                id
            }
            other => panic!("GETJOB answered {other:?}"),
        }
    }

    fn acknowledge(&mut self, id: JobId) {
        let answer = self.ask(Request::Ids {
            verb: IdVerb::Acknowledge,
            ids: smallvec![id],
        });
        assert!(matches!(answer, Answer::Count(1)), "ACKJOB answered {answer:?}");
    }
}

/// Add, fetch and acknowledge, a turn of each.
fn full_lives(lives: usize) {
    let mut bench = Bench::new();
    let mut ids = Vec::with_capacity(TURN);
    let started = Instant::now();
    for _ in 0..lives / TURN {
        bench.turn();
        for _ in 0..TURN {
            black_box(bench.add(0));
        }
        bench.turn();
        for _ in 0..TURN {
            ids.push(bench.get());
        }
        bench.turn();
        for id in ids.drain(..) {
            bench.acknowledge(id);
        }
    }
    let elapsed = started.elapsed();
    assert_eq!(bench.home.gauges().jobs, 0);
    let lives = (lives / TURN * TURN) as f64;
    println!(
        "state machine: {:.2} million job lives a second, {:.3} us each",
        lives / elapsed.as_secs_f64() / 1e6,
        elapsed.as_secs_f64() * 1e6 / lives
    );
}

/// The longest of all steps while so many jobs are added, queued and delayed, taken, acknowledged and flushed.
fn longest_step(jobs: usize) {
    let mut bench = Bench::new();
    let mut longest = Longest::default();
    let mut ids = Vec::with_capacity(jobs / 2);
    for number in 0..jobs {
        if number % TURN == 0 {
            longest.time("tick", || bench.turn());
        }
        let delay_s = if number % 2 == 0 { 0 } else { 3600 };
        longest.time("add", || black_box(bench.add(delay_s)));
    }
    for number in 0..jobs / 2 {
        if number % TURN == 0 {
            longest.time("tick", || bench.turn());
        }
        ids.push(longest.time("take", || bench.get()));
    }
    for (number, &id) in ids.iter().enumerate() {
        if number % TURN == 0 {
            longest.time("tick", || bench.turn());
        }
        if number % 2 == 0 {
            longest.time("acknowledge", || bench.acknowledge(id));
        }
    }
    // An hour and a day later: every delayed job falls due, then every job expires.
    for jump_s in [3_700, 90_000] {
        bench.now.mono_us += jump_s * 1_000_000;
        let now_ms = bench.now.mono();
        while bench
            .home
            .next_deadline()
            .is_some_and(|deadline| deadline <= now_ms)
        {
            let now = bench.now;
            longest.time("mass tick", || bench.home.tick(now));
        }
    }
    for _ in 0..jobs {
        bench.add(0);
    }
    let now = bench.now;
    longest.time("flush", || bench.home.flush(now));
    while bench
        .home
        .next_deadline()
        .is_some_and(|deadline| deadline <= now.mono())
    {
        longest.time("teardown", || bench.home.tick(now));
    }
    println!("longest step with {jobs} jobs: {}", longest.report());
}

/// The longest time of each kind of step.
#[derive(Default)]
struct Longest(Vec<(&'static str, Duration)>);

impl Longest {
    fn time<T>(&mut self, kind: &'static str, step: impl FnOnce() -> T) -> T {
        let started = Instant::now();
        let result = step();
        let elapsed = started.elapsed();
        match self.0.iter_mut().find(|(known, _)| *known == kind) {
            Some((_, longest)) => *longest = elapsed.max(*longest),
            None => self.0.push((kind, elapsed)),
        }
        result
    }

    fn report(&self) -> String {
        let each = self
            .0
            .iter()
            .map(|(kind, longest)| format!("{kind} {:.3} ms", longest.as_secs_f64() * 1e3));
        each.collect::<Vec<_>>().join(", ")
    }
}
