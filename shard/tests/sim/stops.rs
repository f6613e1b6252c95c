//! Orderly stops at every moment of a switching on of the log.

use shard::clock::Now;
use shard::settings::Settings;
use shard::shard::NodeFacts;

use crate::support::Chance;
use crate::support::{ALONE, Birth, End, Machine};
use crate::support::{Disk, Plant};
use crate::visit::Visitor;

const JOBS: usize = 20;
const STOP_US: u64 = 60_000_000;

fn birth(appendonly: bool, seed: u64, now: Now) -> Birth {
    Birth {
        node: ALONE,
        shards: 2,
        settings: Settings {
            appendonly,
            appendfsync: "no",
            aof_segment_bytes: 16 << 10,
            ..Settings::default()
        },
        now,
        boot_id: u8::from(appendonly),
        seed,
        facts: NodeFacts::default(),
    }
}

/// Stops a node so many events after it was asked for a log; `None`: it stopped without one. Whether it was on before the stop.
fn stop_after(events: u64, seed: u64) -> Option<bool> {
    let now = Now {
        mono_us: 5_000_000,
        wall_us: 1_700_000_000_000_000,
    };
    let mut machine = Machine::start(Disk::new(Plant::None), &birth(false, seed, now), 1).expect("it starts");
    let queues: Vec<String> = (0..JOBS).map(|at| format!("q{at}")).collect();
    let mut visitor = Visitor::new(&mut machine);
    for queue in &queues {
        visitor
            .ask(&["ADDJOB", queue, "body", "0"])
            .expect("it is answered");
    }
    visitor.send(&["CONFIG", "SET", "appendonly", "yes"]);
    for _ in 0..events {
        machine.event(machine.now_us() + STOP_US);
    }
    let was_on = machine.is_on;
    machine.node.stop();
    machine.stepped(0);
    let end_us = machine.now_us() + STOP_US;
    while machine.event(end_us) {}
    assert!(machine.has_ended(), "it does not stop");
    let disk = machine.ends_now(End::PowerLoss, &mut Chance::new(seed));
    disk.current()?;
    let mut machine =
        Machine::start(disk, &birth(true, seed, machine.node.now), machine.moment).expect("it starts");
    let end_us = machine.now_us() + STOP_US;
    while !machine.serves() && machine.event(end_us) {}
    let renewed = machine.node.log.iter().any(|line| line.contains("store epoch"));
    assert!(!renewed, "{events} events: {:?}", machine.node.log);
    let sight = Visitor::new(&mut machine).look(&queues).expect("it is answered");
    assert_eq!(sight.jobs.len(), JOBS, "{events} events");
    Some(was_on)
}

/// Found by the simulator, when `CURRENT` was written as the node stopped: a shard that was not told yet left no mark.
#[test]
fn a_stop_while_the_log_is_switched_on_leaves_a_mark_or_no_log() {
    let stops: Vec<Option<bool>> = (0..200).map(|events| stop_after(events, events)).collect();
    for kind in [None, Some(false), Some(true)] {
        assert!(stops.contains(&kind), "no stop was like this: {kind:?}");
    }
}
