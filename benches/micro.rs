//! Micro benches: skip list, timers, ID map, request parser, reply encoder, records of the log, steps of the state machine, mesh.
//!
//! `cargo bench --bench micro` measures; `cargo test` runs each once.

#![allow(missing_docs, reason = "criterion's macro makes a public function")]

use std::hint::black_box;

use bytes::Bytes;
use criterion::{Criterion, criterion_group, criterion_main};
use shard::clock::Now;
use shard::commands::{AddJob, IdVerb, Request};
use shard::home::{Home, HomeOptions};
use shard::id::{JobId, NodeId};
use shard::input::{Input, Peer};
use shard::log::{
    Action, AppendFsync, Done, Entry, FoundFile, JobImage, KeptPlace, Log, LogBoot, Recovered, Recovery,
    RecoveryOptions, StateChange, Thresholds, WallMs, Want, WriterOptions,
};
use shard::memory::Memory;
use shard::message::{Answer, Manner, Patience, SessionId, Take, Ticket};
use shard::settings::Settings;
use shard::shard::{NodeFacts, Shard, ShardOptions};
use shard::slot::Slot;
use shard::structures::list::{Linked, Links};
use shard::structures::scan_map::ScanMap;
use shard::structures::skiplist::{Lanes, Ordered, SkipList};
use shard::structures::timers::Timers;
use shard::wire::{Blob, Encoder, Output, Parser, RequestLimits, encode_request};
use smallvec::smallvec;

/// Elements that are there while one more comes and goes.
const CROWD: u32 = 100_000;

#[derive(Clone, Copy, Default)]
struct Element {
    links: Links,
    order: u64,
}

struct Elements(Vec<Element>);

impl Elements {
    fn new() -> Self {
        let element = |order| Element {
            order,
            ..Element::default()
        };
        Self((0..=u64::from(CROWD)).map(element).collect())
    }
}

impl Linked for Elements {
    fn links(&self, element: u32) -> &Links {
        &self.0[element as usize].links
    }

    fn links_mut(&mut self, element: u32) -> &mut Links {
        &mut self.0[element as usize].links
    }
}

impl Ordered for Elements {
    fn before(&self, a: u32, b: u32) -> bool {
        self.0[a as usize].order < self.0[b as usize].order
    }
}

fn skip_list(criterion: &mut Criterion) {
    let mut elements = Elements::new();
    let mut lanes = Lanes::new(1);
    let mut list = SkipList::new();
    (0..CROWD).for_each(|element| list.push_ordered(&mut elements, &mut lanes, element));
    let mut order = u64::from(CROWD);
    criterion.bench_function("skip list: take the head, append at the tail", |bencher| {
        bencher.iter(|| {
            let head = list
                .pop_front(&mut elements, &mut lanes)
                .expect("the crowd is there");
            order += 1;
            elements.0[head as usize].order = order;
            list.push_ordered(&mut elements, &mut lanes, head);
        });
    });
    let mut place = 0u32;
    criterion.bench_function("skip list: take from the middle, put back", |bencher| {
        bencher.iter(|| {
            place = place.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            let element = place % CROWD;
            list.remove(&mut elements, &mut lanes, element);
            list.push_ordered(&mut elements, &mut lanes, element);
        });
    });
}

fn timers(criterion: &mut Criterion) {
    let mut timers = Timers::new(0);
    (0..CROWD).for_each(|owner| {
        timers.insert(u64::from(owner) * 37, owner);
    });
    let mut deadline_ms = 0;
    criterion.bench_function("timers: insert, move, cancel", |bencher| {
        bencher.iter(|| {
            deadline_ms = (deadline_ms + 7_919) % 86_400_000;
            let timer = timers.insert(deadline_ms, 0);
            timers.reschedule(timer, deadline_ms + 300_000);
            black_box(timers.cancel(timer));
        });
    });
}

fn id_map(criterion: &mut Criterion) {
    // The odd factor spreads the low bits, which place an element.
    let hash = |element: u32| u64::from(element).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let mut map = ScanMap::default();
    (0..CROWD).for_each(|element| map.insert(hash(element), element));
    criterion.bench_function("ID map: insert, find, remove", |bencher| {
        bencher.iter(|| {
            map.insert(hash(CROWD), CROWD);
            assert_eq!(map.find(hash(CROWD), |element| element == CROWD), Some(CROWD));
            map.remove(hash(CROWD), CROWD);
        });
    });
}

fn wire(criterion: &mut Criterion) {
    let id = job_id().text();
    let mut input = Vec::new();
    encode_request(&[&b"ADDJOB"[..], b"queue", b"twelve bytes", b"0"], &mut input);
    encode_request(&[&b"GETJOB"[..], b"FROM", b"queue"], &mut input);
    encode_request(&[&b"ACKJOB"[..], &id], &mut input);
    let mut parser = Parser::new();
    criterion.bench_function("parse ADDJOB, GETJOB, ACKJOB", |bencher| {
        bencher.iter(|| {
            let mut rest = &input[..];
            while let Some(args) = parser
                .next(&mut rest, &RequestLimits::FULL)
                .expect("they are well-formed")
            {
                black_box(args.len());
            }
        });
    });
    let mut output = Output::new();
    let mut chunks = Vec::new();
    criterion.bench_function("reply to 64 times ADDJOB, GETJOB, ACKJOB", |bencher| {
        bencher.iter(|| {
            for _ in 0..64 {
                let mut encoder = Encoder::new(&mut output, false);
                encoder.simple(id);
                encoder.array(1);
                encoder.array(3);
                encoder.bulk(b"queue");
                encoder.bulk(id);
                encoder.bulk(b"twelve bytes");
                encoder.integer(1);
            }
            output.take_chunks(&mut chunks, usize::MAX);
            chunks.clear();
        });
    });
    criterion.bench_function("read and write a job ID", |bencher| {
        bencher.iter(|| black_box(JobId::parse(black_box(&id)).expect("it is well-formed").text()));
    });
}

fn job_id() -> JobId {
    let slot = Slot::of_queue(b"queue");
    JobId::new(NodeId::from_bytes([7; 20]), slot, [3; 18], 86_400, true)
}

const NOW: Now = Now {
    mono_us: 1_000_000,
    wall_us: 1_700_000_000_000_000,
};
/// Records of one write.
const TURN: usize = 64;

fn added() -> Entry {
    Entry::Added(JobImage {
        id: job_id(),
        queue: Blob::from("queue"),
        body: Blob::from("twelve bytes"),
        ctime: NOW.wall_us * 1_000,
        expires_at: WallMs(NOW.wall_ms() + 86_400_000),
        ttl_s: 86_400,
        retry_s: 300,
        delay_s: 0,
        replicate: 1,
        state: StateChange {
            id: job_id(),
            place: KeptPlace::Queued,
            entered_before: true,
            delivered: false,
            nacks: 0,
            additional_deliveries: 0,
            deliveries: 0,
            enters_at: WallMs::NEVER,
        },
        holders: Vec::new(),
    })
}

/// A log whose disk does all at once, and keeps the first segment when it is asked to.
struct Disk {
    log: Log,
    first: Option<Vec<u8>>,
}

impl Disk {
    fn new(keep: bool) -> Self {
        let options = WriterOptions {
            shard: 0,
            generation: 1,
            segment_bytes: 16 << 20,
            reserve: 1,
            fsync: AppendFsync::No,
            seed: [3; 32],
        };
        let never = Thresholds {
            percentage: 0,
            min_bytes: 0,
        };
        let start = Recovered::fresh(0).start(1, [1; 16], NOW);
        let mut this = Self {
            log: Log::new(options, never, start),
            first: keep.then(Vec::new),
        };
        while !this.log.started() {
            this.perform();
        }
        this
    }

    fn perform(&mut self) {
        let mut ios = Vec::new();
        self.log.take_io(NOW, &mut ios);
        for io in ios {
            match (&mut self.first, io.action) {
                (
                    Some(file),
                    Action::Create {
                        segment: 1, header, ..
                    },
                ) => *file = header.to_vec(),
                (
                    Some(file),
                    Action::Write {
                        segment: 1,
                        offset,
                        chunks,
                    },
                ) => {
                    file.truncate(offset as usize);
                    chunks.iter().for_each(|chunk| file.extend_from_slice(chunk));
                }
                (_, action) => drop(action),
            }
            self.log.completed(NOW, io.id, Ok(Done::Done));
        }
    }
}

fn records(criterion: &mut Criterion) {
    let entry = added();
    let mut disk = Disk::new(false);
    criterion.bench_function("records: encode and write 64 ADDJOBs", |bencher| {
        bencher.iter(|| {
            for _ in 0..TURN {
                disk.log.append(&entry).expect("there is room");
            }
            disk.perform();
        });
    });
    let mut disk = Disk::new(true);
    for _ in 0..TURN {
        disk.log.append(&entry).expect("there is room");
    }
    (0..4).for_each(|_| disk.perform());
    let file = disk.first.expect("it is kept");
    let options = RecoveryOptions {
        shard: 0,
        generation: 1,
        boot_id: [1; 16],
        may_cut: true,
    };
    let found = FoundFile {
        number: 1,
        bytes: file.len() as u64,
    };
    criterion.bench_function("records: read a segment with 64 ADDJOBs", |bencher| {
        bencher.iter(|| {
            let mut recovery = Recovery::new(options, vec![found]);
            let mut jobs = 0;
            while let Want::Read { offset, bytes, .. } = recovery.want() {
                let piece = &file[offset as usize..][..bytes as usize];
                let count = &mut |entry| jobs += usize::from(matches!(entry, Entry::Added(_)));
                recovery.supply(Ok(piece), count).expect("it is whole");
            }
            assert_eq!(jobs, TURN);
        });
    });
}

fn steps(criterion: &mut Criterion) {
    let options = HomeOptions {
        shard: 0,
        shards: 1,
        node: NodeId::from_bytes([7; 20]),
        seed: [1; 32],
        hash_seed: 1,
    };
    let mut home = Home::new(options, Memory::new(64 << 30), NOW);
    let ticket = Ticket {
        shard: 0,
        session: SessionId {
            index: 0,
            generation: 0,
        },
        request: 0,
    };
    let add = AddJob {
        queue: Blob::from("queue"),
        body: Blob::from("twelve bytes"),
        timeout_ms: 0,
        replicate: 1,
        lowered: false,
        may_lower: false,
        ttl_s: 86_400,
        retry_s: 300,
        delay_s: 0,
        max_len: None,
        asynchronous: false,
    };
    let take = Take {
        queues: smallvec![(0, Blob::from("queue"))],
        count: 1,
        manner: Manner::Deliver,
        patience: Patience::None,
    };
    criterion.bench_function("state machine: ADDJOB, GETJOB, ACKJOB", |bencher| {
        bencher.iter(|| {
            home.request(NOW, ticket, Request::Add(add.clone()));
            let mut answer = home.request(NOW, ticket, Request::Take(take.clone()));
            let Answer::Jobs(jobs) = &answer else {
                panic!("GETJOB answered {answer:?}");
            };
            let ids = smallvec![jobs[0].handed.id];
            home.recycle(&mut answer);
            let verb = IdVerb::Acknowledge;
            let answer = home.request(NOW, ticket, Request::Ids { verb, ids });
            assert!(matches!(answer, Answer::Count(1)), "ACKJOB answered {answer:?}");
        });
    });
}

/// A turn of each of two shards: 64 requests there, 64 answers back, a batch each way. The channels between the threads are not part of it.
fn mesh(criterion: &mut Criterion) {
    let mut shards: Vec<Shard> = (0..2)
        .map(|shard| {
            let options = ShardOptions {
                shard,
                shards: 2,
                node: NodeId::from_bytes([7; 20]),
                seed: [shard as u8; 32],
                hash_seed: 1,
                facts: NodeFacts::default(),
                log: LogBoot::nothing(),
            };
            let settings = Settings {
                maxmemory: 0,
                ..Settings::default()
            };
            Shard::new(options, settings, NOW)
        })
        .collect();
    let mut batch = Vec::new();
    let mut effects = Vec::new();
    let mut turn = |shards: &mut [Shard], input: Option<(SessionId, &[u8])>| {
        if let Some((session, bytes)) = input {
            shards[0].handle(NOW, Input::Bytes { session, bytes });
        }
        for from in [0, 1, 0] {
            shards[from].handle(NOW, Input::Tick);
            shards[from].take_effects(&mut effects);
            effects.clear();
            let (from_no, to) = (from as u16, 1 - from);
            shards[from].take_mesh(to as u16, &mut batch);
            let messages = &mut batch;
            shards[to].handle(
                NOW,
                Input::Mesh {
                    from: from_no,
                    messages,
                },
            );
        }
    };
    // A start takes some turns.
    (0..10).for_each(|_| turn(&mut shards, None));
    let session = shards[0].connect(NOW, 1, Peer::Unix("socket".into()), Peer::Unix("socket".into()));
    let queue = (0..)
        .map(|number| format!("queue{number}"))
        .find(|name| Slot::of_queue(name.as_bytes()).home(2) == 1)
        .expect("half of all queues are there");
    let mut input = Vec::new();
    (0..TURN).for_each(|_| encode_request(&["QLEN", queue.as_str()], &mut input));
    let mut chunks: Vec<Bytes> = Vec::new();
    criterion.bench_function("mesh: 64 requests to another shard and back", |bencher| {
        bencher.iter(|| {
            turn(&mut shards, Some((session, &input)));
            shards[0].take_output(session, &mut chunks, usize::MAX);
            let bytes: usize = chunks.drain(..).map(|chunk| chunk.len()).sum();
            assert_eq!(bytes, TURN * b":0\r\n".len());
            shards[0].handle(NOW, Input::Sent { session, bytes });
        });
    });
}

criterion_group!(benches, skip_list, timers, id_map, wire, records, steps, mesh);
criterion_main!(benches);
