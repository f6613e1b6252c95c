//! Micro benches: skip list, timers, ID map, request parser, reply encoder, mesh outbox.
//!
//! `cargo bench --bench micro` measures; `cargo test` runs each once.

#![allow(missing_docs, reason = "criterion's macro makes a public function")]

use std::hint::black_box;

use criterion::{Criterion, criterion_group, criterion_main};
use shard::id::{JobId, NodeId};
use shard::slot::Slot;
use shard::structures::list::{Linked, Links};
use shard::structures::scan_map::ScanMap;
use shard::structures::skiplist::{Lanes, Ordered, SkipList};
use shard::structures::timers::Timers;
use shard::wire::{Encoder, Output, Parser, RequestLimits, encode_request};

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
    let id = JobId::new(
        NodeId::from_bytes([7; 20]),
        Slot::of_queue(b"queue"),
        [3; 18],
        86_400,
        true,
    )
    .text();
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

criterion_group!(benches, skip_list, timers, id_map, wire);
criterion_main!(benches);
