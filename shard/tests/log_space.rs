//! A log on a disk that fills up: its reserve is there for what makes room, and compaction makes room as soon as there is some to be had.

#[path = "support/mod.rs"]
mod support;

#[path = "log_simulation/disk.rs"]
#[allow(dead_code, reason = "the simulation needs more of it")]
mod disk;
#[path = "log_simulation/state.rs"]
#[allow(dead_code, reason = "the simulation needs more of it")]
mod state;

use disk::{Disk, Plant};
use shard::clock::Now;
use shard::id::JobId;
use shard::log::{
    AckedImage, AppendFsync, Entry, Event, FoundFile, Log, Recovery, RecoveryOptions, Thresholds, Want,
    WriterOptions,
};
use state::State;
use support::Chance;

const SEGMENT: u64 = 8 << 10;
const RESERVE: usize = 2;
const SEGMENTS: u64 = 40;

/// A log, its disk, and what lives in it.
struct Full {
    log: Log,
    disk: Disk,
    state: State,
    chance: Chance,
    now: Now,
}

/// A log with what the disk holds.
fn begin(disk: &mut Disk, percentage: u32, now: Now) -> Log {
    let options = RecoveryOptions {
        shard: 0,
        generation: 1,
        boot_id: [1; 16],
        may_cut: true,
    };
    let files = disk.segments().into_iter();
    let files = files.map(|(number, bytes)| FoundFile { number, bytes });
    let mut recovery = Recovery::new(options, files.collect());
    while let Want::Read {
        segment,
        offset,
        bytes,
    } = recovery.want()
    {
        let read = disk.read(segment, offset, bytes);
        recovery.supply(Ok(read), &mut |_| {}).expect("nothing is wrong");
    }
    let recovered = recovery.finish().expect("nothing is wrong");
    recovered.repairs.iter().for_each(|step| disk.repair(step));
    let options = WriterOptions {
        shard: 0,
        generation: 1,
        segment_bytes: SEGMENT,
        reserve: RESERVE,
        fsync: AppendFsync::Always,
        seed: [3; 32],
    };
    let thresholds = Thresholds {
        percentage,
        min_bytes: 0,
    };
    Log::new(options, thresholds, recovered.start(1, [1; 16], now))
}

impl Full {
    fn new(percentage: u32) -> Self {
        let now = Now {
            mono_us: 1_000_000,
            wall_us: 1_700_000_000_000_000,
        };
        let mut disk = Disk::new(Plant::None);
        disk.faults.capacity = Some(SEGMENTS * SEGMENT);
        Self {
            log: begin(&mut disk, percentage, now),
            disk,
            state: State::default(),
            chance: Chance::new(7),
            now,
        }
    }

    /// Does all that is to be done, for some milliseconds.
    fn drive(&mut self) {
        for _ in 0..20 {
            self.now.mono_us += 1_000;
            self.now.wall_us += 1_000;
            self.log.compact(self.now, &mut self.state);
            let mut ios = Vec::new();
            self.log.take_io(self.now, &mut ios);
            for io in ios {
                let result = self.disk.perform(&mut self.chance, &io.action);
                self.log.completed(self.now, io.id, result);
            }
        }
        let mut events = Vec::new();
        self.log.take_events(&mut events);
        let failed = |event: &Event| matches!(event, Event::Failed { .. } | Event::Fatal(_));
        assert!(
            !events.iter().any(failed),
            "nothing that was taken fails: {events:?}"
        );
    }

    /// Adds a job of about 100 bytes; `false`: refused.
    fn add(&mut self) -> bool {
        let mut job = loop {
            if let Entry::Added(job) = State::default().random_entry(&mut self.chance) {
                break job;
            }
        };
        job.body = "x".into();
        let entry = Entry::Added(job);
        let taken = self.log.append(&entry).is_ok();
        if taken {
            self.state.apply(&entry);
        }
        self.drive();
        taken
    }

    fn fill(&mut self) {
        while self.add() {}
        let misconf = self.log.misconf().expect("the disk is full");
        assert!(misconf.0.contains("no space left"), "{misconf:?}");
    }

    fn acknowledge(&mut self, id: JobId) {
        let holders = Vec::new();
        let entry = Entry::Acked(AckedImage { id, holders });
        self.log.append(&entry).expect("what frees space is taken");
        self.state.apply(&entry);
        self.drive();
    }

    fn ids(&self) -> Vec<JobId> {
        self.state.jobs.keys().copied().collect()
    }
}

#[test]
fn the_reserve_is_not_for_what_takes_space() {
    // Without compaction: the reserve does not grow again.
    let mut full = Full::new(0);
    full.fill();
    // An acknowledgement takes 56 bytes: so many need what is left of the active segment, and a segment of the reserve.
    for id in full.ids().into_iter().take(SEGMENT as usize / 56) {
        full.acknowledge(id);
        assert!(!full.add(), "there is no room for what frees none");
    }
}

#[test]
fn small_acknowledgements_make_room_before_they_use_up_the_reserve() {
    let mut full = Full::new(100);
    full.fill();
    let before = full.ids();
    // Their records alone would fill the reserve several times.
    let some = before.len() / 2;
    assert!(some * 56 > 2 * RESERVE * SEGMENT as usize, "{some}");
    let mut added = 0;
    for id in before.into_iter().take(some) {
        full.acknowledge(id);
        added += usize::from(full.add());
    }
    assert!(added > some / 4, "{added} of {some}");
}

#[test]
fn a_start_takes_one_segment_until_all_have_begun() {
    let mut full = Full::new(100);
    full.log.hold_spares(true);
    full.drive();
    assert!(full.log.started());
    assert_eq!(full.disk.segments().len(), 1);
    full.log.hold_spares(false);
    full.drive();
    assert_eq!(full.disk.segments().len(), 1 + RESERVE + 1);
}

#[test]
fn a_full_disk_stops_no_start_however_many_there_were() {
    let mut full = Full::new(100);
    full.fill();
    for _ in 0..50 {
        // Each process leaves a segment of which it used little.
        full.log = begin(&mut full.disk, 100, full.now);
        full.log.hold_spares(true);
        full.drive();
        assert!(full.log.started());
        full.log.hold_spares(false);
        for _ in 0..100 {
            full.drive();
        }
    }
}
