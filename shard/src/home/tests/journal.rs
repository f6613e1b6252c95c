//! What the log keeps back, what a failing one undoes, and what it gives back to the next home.

use std::collections::BTreeMap;

use crate::commands::pause::Pause;
use crate::commands::view::{PauseState, QueueView};
use crate::commands::{AddJob, IdVerb, Request};
use crate::error::CommandError;
use crate::home::testing::{Scene, bodies, job, once, take};
use crate::home::{Origin, Turn};
use crate::id::JobId;
use crate::log::{
    AckedImage, Action, AppendFsync, Done, Entry, FoundFile, Holder, HoldersImage, Io, IoError, Log,
    Recovered, Recovery, RecoveryOptions, Thresholds, Want, WriterOptions,
};
use crate::message::{Answer, Manner, Patience, Ticket};

/// A home with a log, and a disk that does what it is told when it is told.
pub struct Logged {
    pub scene: Scene,
    files: BTreeMap<u64, Vec<u8>>,
    under_way: Vec<Io>,
    reads: usize,
    unlinked: usize,
}

impl Logged {
    fn new(fsync: AppendFsync) -> Self {
        Self::of(Scene::new(), fsync)
    }

    pub fn of(scene: Scene, fsync: AppendFsync) -> Self {
        Self::filled(scene, fsync, false)
    }

    /// With all that there is in the log, or an empty one.
    pub fn filled(mut scene: Scene, fsync: AppendFsync, populate: bool) -> Self {
        let options = WriterOptions {
            shard: 0,
            generation: 1,
            segment_bytes: 1 << 16,
            reserve: 1,
            fsync,
            seed: [5; 32],
        };
        let thresholds = Thresholds {
            percentage: 0,
            min_bytes: 0,
        };
        let start = Recovered::fresh(0).start(1, [0; 16], scene.now);
        scene
            .home
            .begin_log(Log::new(options, thresholds, start), populate);
        let mut logged = Self {
            scene,
            files: BTreeMap::new(),
            under_way: Vec::new(),
            reads: 0,
            unlinked: 0,
        };
        // A log that is filled takes several turns.
        for _ in 0..10 {
            logged.settle();
        }
        assert!(logged.scene.home.log_is_ready());
        logged.scene.home.log_counts();
        logged
    }

    fn took(&mut self, turn: Turn) {
        assert_eq!(turn.fatal, None);
        self.under_way.extend(turn.ios);
    }

    pub fn turn(&mut self) {
        let turn = self.scene.home.log_turn(self.scene.now);
        self.took(turn);
    }

    /// Ends what is under way and is of this kind.
    fn end(&mut self, which: fn(&Action) -> bool, result: Result<(), IoError>) -> usize {
        self.turn();
        let (now, rest) = std::mem::take(&mut self.under_way)
            .into_iter()
            .partition(|io: &Io| which(&io.action));
        self.under_way = rest;
        let ended: Vec<Io> = now;
        let count = ended.len();
        for Io { id, action } in ended {
            let done = match &result {
                Ok(()) => Ok(self.perform(action)),
                Err(error) => Err(error.clone()),
            };
            let turn = self.scene.home.log_completed(self.scene.now, id, done);
            self.took(turn);
        }
        self.scene.check();
        count
    }

    pub fn write(&mut self) {
        assert!(self.end(|action| matches!(action, Action::Write { .. }), Ok(())) > 0);
    }

    pub fn sync(&mut self) {
        assert!(self.end(|action| matches!(action, Action::Sync { .. }), Ok(())) > 0);
    }

    pub fn fail_write(&mut self) {
        let full = Err(IoError::Full);
        assert!(self.end(|action| matches!(action, Action::Write { .. }), full) > 0);
    }

    /// Until the disk has nothing to do.
    pub fn settle(&mut self) {
        self.scene.home.tick(self.scene.now);
        while self.end(|_| true, Ok(())) > 0 {}
    }

    fn perform(&mut self, action: Action) -> Done {
        match action {
            Action::Create {
                segment,
                bytes,
                header,
                ..
            } => {
                let mut file = vec![0; bytes as usize];
                file[..header.len()].copy_from_slice(&header);
                self.files.insert(segment, file);
            }
            Action::Write {
                segment,
                offset,
                chunks,
            } => {
                let bytes = chunks.concat();
                let file = self.files.get_mut(&segment).expect("it was created");
                file[offset as usize..][..bytes.len()].copy_from_slice(&bytes);
            }
            Action::Sync { .. } | Action::SyncFolder => {}
            Action::Read {
                segment,
                offset,
                bytes,
            } => {
                self.reads += 1;
                let bytes = self.files[&segment][offset as usize..][..bytes as usize].to_vec();
                return Done::Read(bytes.into());
            }
            Action::Unlink { segment } => {
                self.files.remove(&segment).expect("it was there");
                self.unlinked += 1;
            }
        }
        Done::Done
    }

    pub fn ask(&mut self, request: Request) -> Ticket {
        let ticket = self.scene.ticket();
        let answer = self.scene.request_as(ticket, request);
        assert!(matches!(answer, Answer::Waiting), "{answer:?}");
        ticket
    }

    pub fn add(&mut self, add: AddJob) -> JobId {
        let ticket = self.ask(Request::Add(add));
        self.settle();
        match self.scene.late(ticket).as_slice() {
            [Answer::Id(id)] => *id,
            other => panic!("not added: {other:?}"),
        }
    }

    fn get(&mut self, queue: &str) -> Answer {
        let take = take(&[queue], 1, Manner::Deliver, Patience::None);
        self.scene.request(Request::Take(take))
    }

    /// What a start after a kill right now finds, `later_ms` later.
    pub fn restart(&self, later_ms: u64) -> Scene {
        let options = RecoveryOptions {
            shard: 0,
            generation: 1,
            boot_id: [0; 16],
            may_cut: true,
        };
        let found = self.files.iter().map(|(&number, file)| FoundFile {
            number,
            bytes: file.len() as u64,
        });
        let mut recovery = Recovery::new(options, found.collect());
        let mut scene = Scene::new();
        scene.now = self.scene.now;
        scene.leap(later_ms);
        let origin = Origin { shard: 0, shards: 1 };
        while let Want::Read {
            segment,
            offset,
            bytes,
        } = recovery.want()
        {
            let bytes = &self.files[&segment][offset as usize..][..bytes as usize];
            let (home, now) = (&mut scene.home, scene.now);
            recovery
                .supply(Ok(bytes), &mut |entry| home.restore(now, origin, entry).unwrap())
                .unwrap();
        }
        let recovered = recovery.finish().unwrap();
        scene.home.restored(scene.now, recovered.last_ctime);
        scene.settle();
        scene
    }
}

fn is_misconf(answer: &Answer) -> bool {
    matches!(answer, Answer::Error(CommandError::Misconf(_)))
}

#[test]
fn an_addjob_is_answered_when_its_record_is_written() {
    let mut logged = Logged::new(AppendFsync::EverySecond);
    let ticket = logged.ask(Request::Add(job("q", "body")));
    logged.turn();
    assert!(logged.scene.late(ticket).is_empty(), "the write is under way");
    logged.write();
    assert!(matches!(logged.scene.late(ticket).as_slice(), [Answer::Id(_)]));
}

#[test]
fn under_always_it_is_answered_when_that_is_synced() {
    let mut logged = Logged::new(AppendFsync::Always);
    let first = logged.ask(Request::Add(job("q", "1")));
    let second = logged.ask(Request::Add(job("q", "2")));
    logged.write();
    assert!(logged.scene.late(first).is_empty(), "written is not synced");
    logged.sync();
    assert_eq!(logged.scene.late(first).len(), 1);
    assert_eq!(logged.scene.late(second).len(), 1, "one sync for all that wait");
}

#[test]
fn a_leased_job_waits_for_its_own_record_only() {
    let mut logged = Logged::new(AppendFsync::EverySecond);
    logged.add(job("q", "old"));
    assert!(
        matches!(logged.get("q"), Answer::Jobs(_)),
        "nothing that it needs is missing"
    );
    logged.settle();
    let added = logged.ask(Request::Add(job("q", "new")));
    let got = logged.ask(Request::Take(take(&["q"], 1, Manner::Deliver, Patience::None)));
    logged.write();
    assert_eq!(logged.scene.late(added).len(), 1);
    assert_eq!(bodies(&logged.scene.late_jobs(got)), ["new"]);
}

#[test]
fn a_job_that_is_handed_out_once_waits_for_a_sync() {
    for fsync in [AppendFsync::EverySecond, AppendFsync::Always] {
        let mut logged = Logged::new(fsync);
        logged.add(once("q", "once"));
        let got = logged.ask(Request::Take(take(&["q"], 1, Manner::Deliver, Patience::None)));
        logged.write();
        assert!(
            logged.scene.late(got).is_empty(),
            "it might be handed out again after a power loss"
        );
        logged.sync();
        assert_eq!(bodies(&logged.scene.late_jobs(got)), ["once"]);
    }
    let mut logged = Logged::new(AppendFsync::No);
    logged.add(once("q", "once"));
    let got = logged.ask(Request::Take(take(&["q"], 1, Manner::Deliver, Patience::None)));
    logged.write();
    assert_eq!(bodies(&logged.scene.late_jobs(got)), ["once"]);
}

#[test]
fn a_failed_write_undoes_the_addjob() {
    let mut logged = Logged::new(AppendFsync::EverySecond);
    let ticket = logged.ask(Request::Add(job("q", "lost")));
    logged.fail_write();
    let answers = logged.scene.late(ticket);
    assert!(is_misconf(&answers[0]), "{answers:?}");
    assert_eq!(logged.scene.length("q"), 0);
    let refused = logged.scene.request(Request::Add(job("q", "later")));
    assert!(is_misconf(&refused), "{refused:?}");
    logged.scene.leap(2_000);
    logged.settle();
    logged.add(job("q", "again"));
    assert_eq!(logged.restart(0).length("q"), 1);
}

#[test]
fn what_stands_behind_is_refused_by_the_log_of_its_own_time() {
    let mut logged = Logged::new(AppendFsync::EverySecond);
    logged.add(job("q", "reserved"));
    let (holder, ids) = logged.scene.offered(&["q"], 1, Patience::Jobs);
    let got = logged.scene.wait(&["q"], 1, Manner::Deliver, Patience::Reserved);
    let behind = |number| Ticket {
        request: got.request + number,
        ..got
    };
    let add = |body: &str| Request::Add(job("q", body));
    let answer = logged.scene.request_as(behind(1), add("refused"));
    assert!(matches!(answer, Answer::Waiting), "{answer:?}");
    let lost = logged.ask(Request::Add(job("other", "lost")));
    logged.fail_write();
    assert!(is_misconf(&logged.scene.late(lost)[0]));
    let answer = logged.scene.request_as(behind(2), Request::Length("q".into()));
    assert!(matches!(answer, Answer::Waiting), "{answer:?}");
    logged.scene.claim(holder, &ids);
    logged.settle();
    assert!(matches!(logged.scene.late(got).as_slice(), [Answer::Nothing]));
    assert!(is_misconf(&logged.scene.late(behind(1))[0]));
    assert!(matches!(
        logged.scene.late(behind(2)).as_slice(),
        [Answer::Count(0)]
    ));
}

#[test]
fn a_consumer_never_sees_a_job_that_is_not_in_the_log() {
    let mut logged = Logged::new(AppendFsync::EverySecond);
    let waiting = logged.scene.wait(&["q"], 1, Manner::Deliver, Patience::Jobs);
    let added = logged.ask(Request::Add(job("q", "lost")));
    logged.fail_write();
    assert!(is_misconf(&logged.scene.late(added)[0]));
    assert!(
        logged.scene.late_jobs(waiting).is_empty(),
        "the session is to ask again"
    );
}

#[test]
fn a_job_handed_out_once_returns_when_its_record_fails() {
    let mut logged = Logged::new(AppendFsync::EverySecond);
    let id = logged.add(once("q", "once"));
    let got = logged.ask(Request::Take(take(&["q"], 1, Manner::Deliver, Patience::None)));
    logged.fail_write();
    assert!(logged.scene.late_jobs(got).is_empty());
    assert_eq!(logged.scene.length("q"), 1);
    assert!(is_misconf(&logged.get("q")), "not while the log cannot take it");
    logged.scene.leap(2_000);
    logged.settle();
    assert_eq!(logged.restart(0).get_one("q").handed.id, id);
}

#[test]
fn a_claim_that_came_to_nothing_waits_on() {
    let mut logged = Logged::new(AppendFsync::EverySecond);
    logged.add(once("q", "once"));
    let (ticket, ids) = logged.scene.offered(&["q"], 1, Patience::Jobs);
    logged.scene.home.claim(logged.scene.now, ticket, &ids);
    assert!(logged.scene.late(ticket).is_empty());
    logged.fail_write();
    let ends = logged.scene.late(ticket);
    assert!(
        matches!(ends.as_slice(), [Answer::Jobs(jobs), end] if jobs.is_empty() && is_misconf(end)),
        "{ends:?}"
    );
}

#[test]
fn acknowledgements_go_on_while_the_log_cannot_grow() {
    let mut logged = Logged::new(AppendFsync::EverySecond);
    let id = logged.add(job("q", "done"));
    let ticket = logged.ask(Request::Add(job("q", "lost")));
    logged.fail_write();
    logged.scene.late(ticket);
    let ids = [id].into_iter().collect();
    let verb = IdVerb::Acknowledge;
    let acked = logged.ask(Request::Ids { verb, ids });
    logged.scene.leap(2_000);
    logged.settle();
    assert!(matches!(logged.scene.late(acked).as_slice(), [Answer::Count(1)]));
    assert_eq!(logged.restart(0).show(id).map(|job| job.id), None);
}

impl Logged {
    fn acknowledge(&mut self, ids: &[JobId]) {
        let (verb, ids) = (IdVerb::Acknowledge, ids.iter().copied().collect());
        self.ask(Request::Ids { verb, ids });
        self.settle();
    }

    /// Seals what there is, and compacts it.
    fn compact(&mut self) {
        self.scene
            .home
            .log_mut()
            .expect("there is one")
            .force_compaction();
        while self.scene.home.log().is_some_and(Log::is_compacting) {
            self.scene.leap(2_000);
            self.settle();
        }
    }
}

#[test]
fn a_segment_in_which_nothing_lives_goes_without_being_read() {
    let mut logged = Logged::new(AppendFsync::EverySecond);
    let ids: Vec<JobId> = (0..20).map(|_| logged.add(job("q", "x"))).collect();
    logged.acknowledge(&ids);
    logged.compact();
    assert_eq!((logged.unlinked, logged.reads), (1, 0));
    assert_eq!(logged.restart(0).home.stock.jobs.0.len(), 0);
}

#[test]
fn a_segment_in_which_a_job_lives_is_read_whoever_else_is_gone() {
    let mut logged = Logged::new(AppendFsync::EverySecond);
    let ids: Vec<JobId> = (0..20).map(|_| logged.add(job("q", "x"))).collect();
    logged.acknowledge(&ids[1..]);
    logged.compact();
    assert_eq!(logged.unlinked, 1);
    assert!(logged.reads > 0);
    assert!(logged.restart(0).show(ids[0]).is_some());
    // Its image stands in a later segment now, where snapshots are not counted: its end takes nothing from those that are.
    let later: Vec<JobId> = (0..3).map(|_| logged.add(job("q", "y"))).collect();
    logged.acknowledge(&ids[..1]);
    logged.compact();
    for id in later {
        assert!(logged.restart(0).show(id).is_some());
    }
}

#[test]
fn what_a_failed_write_undoes_counts_for_no_segment() {
    let mut logged = Logged::new(AppendFsync::EverySecond);
    let kept = logged.add(job("q", "kept"));
    for _ in 0..3 {
        let ticket = logged.ask(Request::Add(job("q", "lost")));
        logged.fail_write();
        assert!(matches!(logged.scene.late(ticket).as_slice(), [answer] if is_misconf(answer)));
        logged.scene.leap(2_000);
        logged.settle();
    }
    logged.compact();
    assert!(logged.restart(0).show(kept).is_some());
    logged.acknowledge(&[kept]);
    logged.compact();
    assert_eq!(logged.restart(0).home.stock.jobs.0.len(), 0);
}

fn pause(queue: &str, input: bool, output: bool) -> Request {
    Request::Pause(Pause {
        queue: queue.into(),
        state: Some(PauseState { input, output }),
        broadcast: false,
    })
}

#[test]
fn a_queue_is_told_to_be_open_when_the_log_says_so_whatever_became_of_a_flush() {
    for fails in [false, true] {
        let mut logged = Logged::new(AppendFsync::EverySecond);
        logged.ask(pause("q", true, true));
        logged.settle();
        let now = logged.scene.now;
        assert!(logged.scene.home.log_flush(now, 1));
        logged.scene.home.flush(now);
        if fails {
            logged.fail_write();
            let misconf = logged.scene.changed(1);
            assert!(
                matches!(misconf, Some(Err(CommandError::Misconf(_)))),
                "{misconf:?}"
            );
            logged.scene.leap(2_000);
            logged.settle();
            assert!(logged.restart(0).stat("q").unwrap().pause.any());
        }
        // The queue does not exist, and yet this waits.
        let opened = logged.ask(pause("q", false, false));
        logged.write();
        assert!(matches!(logged.scene.late(opened).as_slice(), [Answer::Pause(now)] if !now.any()));
        let open = |queue: QueueView| !queue.pause.any();
        assert!(logged.restart(0).stat("q").is_none_or(open));
    }
}

#[test]
fn every_state_comes_back_as_it_was() {
    let mut logged = Logged::new(AppendFsync::EverySecond);
    let ids: Vec<JobId> = (0..8)
        .map(|number| logged.add(job("q", &number.to_string())))
        .collect();
    let delayed = logged.add(AddJob {
        delay_s: 100,
        ..job("q", "delayed")
    });
    let spent = logged.add(once("once", "spent"));
    let kept = logged.add(once("kept", "kept"));
    let act = |logged: &mut Logged, verb, id: JobId| {
        let ids = [id].into_iter().collect();
        logged.ask(Request::Ids { verb, ids });
        logged.settle();
    };
    for _ in 0..4 {
        logged.get("q");
    }
    logged.get("once");
    logged.settle();
    act(&mut logged, IdVerb::Acknowledge, ids[0]);
    act(&mut logged, IdVerb::Nack, ids[1]);
    act(&mut logged, IdVerb::Dequeue, ids[4]);
    act(&mut logged, IdVerb::Delete, ids[5]);
    logged.ask(pause("kept", false, true));
    logged.settle();
    let mut back = logged.restart(3_000);
    logged.scene.leap(3_000);
    logged.settle();
    for id in ids.iter().chain([&delayed, &spent, &kept]) {
        let (before, after) = (logged.scene.show(*id), back.show(*id));
        assert_eq!(before, after, "{id:?}");
    }
    assert_eq!(bodies(&back.get(&["q"], 10)), ["1", "6", "7"]);
    assert!(back.get(&["once"], 1).is_empty(), "never twice");
    assert!(back.get(&["kept"], 1).is_empty(), "the pause is kept");
    back.pass(7_000);
    assert_eq!(
        bodies(&back.get(&["q"], 10)),
        ["2", "3", "4"],
        "leases end when they would have"
    );
}

/// A start with another number of shards writes all to a new log before anything is known of other nodes.
#[test]
fn what_other_nodes_are_to_be_told_is_in_a_log_that_is_written_before_they_are_known() {
    let mut logged = Logged::new(AppendFsync::EverySecond);
    let ids: Vec<JobId> = (0..2).map(|_| logged.add(job("q", "x"))).collect();
    let mut scene = logged.restart(0);
    let holders = vec![Holder {
        node: [9; 20],
        epoch: 5,
    }];
    let origin = Origin { shard: 0, shards: 1 };
    let held = HoldersImage {
        id: ids[0],
        holders: holders.clone(),
    };
    let acked = AckedImage {
        id: ids[1],
        holders: holders.clone(),
    };
    for entry in [Entry::Holders(held), Entry::Acked(acked.clone())] {
        scene.home.restore(scene.now, origin, entry).unwrap();
    }
    let mut again = Logged::filled(scene, AppendFsync::EverySecond, true);
    for _ in 0..2 {
        let repair = &again.restart(0).home.repair;
        assert_eq!(repair.restored_holders(&ids[0]), Some(holders.as_slice()));
        assert_eq!(repair.restored_ack(&ids[1]), Some(acked.clone()));
        again.compact();
    }
}
