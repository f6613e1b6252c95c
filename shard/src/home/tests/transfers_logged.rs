//! Jobs with RETRY 0 that go between nodes with logs: what is said, and when it may be, across failures of the disk and restarts.

use super::cluster::{ACTIVE, Nodes, QUEUED, number};
use super::journal::Logged;
use crate::bus::BusMessage;
use crate::commands::view::JobState;
use crate::home::testing::{Scene, bodies, once};
use crate::id::JobId;
use crate::log::AppendFsync;
use crate::message::{Manner, Patience};

/// What this node alone knows of a job.
fn state(scene: &mut Scene, id: JobId) -> Option<JobState> {
    let key = scene.home.find_job(scene.now.mono(), &id)?;
    Some(scene.home.job(key).state())
}

/// Two nodes with logs, tied by hand: nothing is delivered by itself.
struct Pair(Vec<Logged>);

impl Pair {
    fn new(fsync: AppendFsync) -> Self {
        let scenes = Nodes::new(2).scenes;
        Self(scenes.into_iter().map(|scene| Logged::of(scene, fsync)).collect())
    }

    fn said(&mut self, from: usize) -> Vec<BusMessage> {
        self.0[from].scene.check();
        let mut batch = Vec::new();
        self.0[from].scene.home.peers.take_outbox(&mut batch);
        batch.retain(|message| !matches!(message, BusMessage::Interest { .. }));
        batch
    }

    fn tell(&mut self, to: usize, message: BusMessage) {
        let now = self.0[to].scene.now;
        self.0[to].scene.home.bus(now, number(1 - to, to), 1, message);
        self.0[to].scene.check();
    }

    /// All that one has to say reaches the other.
    fn pass(&mut self, from: usize) -> Vec<BusMessage> {
        let said = self.said(from);
        for message in said.clone() {
            self.tell(1 - from, message);
        }
        said
    }

    /// A job at the first node that the second wants, up to the record of its leaving.
    fn wanted(&mut self) -> JobId {
        let id = self.0[0].add(once("q", "once"));
        let key = self.0[0].scene.home.stock.job_key(1, &id).unwrap();
        let now = self.0[0].scene.now.mono();
        assert!(self.0[0].scene.home.offer_transfer(now, key, number(1, 0)));
        assert_eq!(self.pass(0).len(), 1);
        assert_eq!(self.pass(1).len(), 1);
        id
    }

    /// The same up to its arrival there, which is not written yet.
    fn sent(&mut self) -> JobId {
        let id = self.wanted();
        self.0[0].settle();
        assert!(matches!(self.pass(0)[..], [BusMessage::Transfer { .. }]));
        id
    }

    /// A node starts again with what its disk has.
    fn restart(&mut self, at: usize, fsync: AppendFsync) {
        let files = self.0[at].restart(0);
        let scene = with_peers(files, at);
        self.0[at] = Logged::filled(scene, fsync, true);
    }
}

fn with_peers(scene: Scene, at: usize) -> Scene {
    let mut nodes = Nodes::new(2);
    nodes.scenes[at] = scene;
    nodes.publish(at, &[(0, 1), (1, 1)]);
    nodes.scenes.swap_remove(at)
}

#[test]
fn a_job_leaves_when_nobody_can_forget_that_it_did() {
    for fsync in [AppendFsync::EverySecond, AppendFsync::Always, AppendFsync::No] {
        let mut pair = Pair::new(fsync);
        pair.wanted();
        assert_eq!(pair.0[0].scene.length("q"), 0);
        assert_eq!(pair.said(0), []);
        pair.0[0].write();
        if fsync != AppendFsync::No {
            assert_eq!(pair.said(0), [], "written is not synced");
            pair.0[0].sync();
        }
        let said = pair.said(0);
        assert!(matches!(said[..], [BusMessage::Transfer { .. }]), "{said:?}");
    }
}

#[test]
fn a_job_whose_leaving_is_not_written_never_left() {
    let mut pair = Pair::new(AppendFsync::EverySecond);
    pair.wanted();
    pair.0[0].fail_write();
    assert_eq!(pair.0[0].scene.length("q"), 1);
    pair.0[0].scene.leap(2_000);
    pair.0[0].settle();
    assert!(
        pair.said(0)
            .iter()
            .all(|said| !matches!(said, BusMessage::Transfer { .. }))
    );
    assert_eq!(pair.0[0].restart(0).length("q"), 1);
}

#[test]
fn an_answer_waits_for_its_record_which_holds_the_job() {
    let mut pair = Pair::new(AppendFsync::EverySecond);
    let id = pair.sent();
    assert_eq!(pair.said(1), []);
    pair.0[1].fail_write();
    assert_eq!(pair.0[1].scene.length("q"), 0, "neither is there");
    assert_eq!(pair.said(1), []);
    pair.0[1].scene.leap(2_000);
    pair.0[1].settle();
    // It never was taken: whoever asks is told so.
    pair.0[0].scene.leap(1_001);
    pair.0[0].settle();
    assert!(matches!(pair.pass(0)[..], [BusMessage::TransferAsk { .. }]));
    pair.0[1].settle();
    let said = pair.pass(1);
    assert!(
        matches!(said[..], [BusMessage::TransferAnswer { taken: false, .. }]),
        "{said:?}"
    );
    assert_eq!(pair.0[0].scene.length("q"), 1);
    assert_eq!(state(&mut pair.0[0].scene, id), QUEUED);
}

#[test]
fn an_answer_that_is_said_again_waits_for_the_record_too() {
    let mut pair = Pair::new(AppendFsync::EverySecond);
    pair.sent();
    pair.0[0].scene.leap(1_001);
    pair.0[0].settle();
    assert!(matches!(pair.pass(0)[..], [BusMessage::TransferAsk { .. }]));
    // Something else is written behind the answer.
    let _later = pair.0[1].ask(crate::commands::Request::Add(once("other", "")));
    assert_eq!(pair.said(1), []);
    pair.0[1].fail_write();
    assert_eq!(pair.said(1), [], "it was undone");
}

#[test]
fn a_source_that_starts_again_asks_and_does_not_hand_out() {
    for taken in [false, true] {
        let mut pair = Pair::new(AppendFsync::Always);
        let id = pair.wanted();
        pair.0[0].settle();
        let transfer = pair.said(0).pop().unwrap();
        pair.restart(0, AppendFsync::Always);
        assert_eq!(pair.0[0].scene.length("q"), 0);
        assert_eq!(state(&mut pair.0[0].scene, id), ACTIVE);
        if taken {
            pair.tell(1, transfer);
            pair.0[1].settle();
            assert_eq!(pair.0[1].scene.length("q"), 1);
            pair.said(1);
        }
        pair.0[0].settle();
        let said = pair.pass(0);
        assert!(matches!(said[..], [BusMessage::TransferAsk { .. }]), "{said:?}");
        pair.0[1].settle();
        pair.pass(1);
        let here = pair.0[0].scene.length("q");
        assert_eq!(here + pair.0[1].scene.length("q"), 1, "one has it");
        assert_eq!(here, i64::from(!taken));
        pair.0[0].settle();
        assert!(matches!(pair.pass(0)[..], [BusMessage::TransferRetire { .. }]));
        let back = state(&mut pair.0[0].restart(0), id);
        assert_eq!(back, if taken { None } else { QUEUED });
    }
}

#[test]
fn an_answer_is_retired_when_its_end_is_synced() {
    let mut pair = Pair::new(AppendFsync::EverySecond);
    let id = pair.sent();
    pair.0[1].write();
    assert!(matches!(
        pair.pass(1)[..],
        [BusMessage::TransferAnswer { taken: true, .. }]
    ));
    assert_eq!(state(&mut pair.0[0].scene, id), None);
    pair.0[0].write();
    assert_eq!(pair.said(0), [], "a loss of power would bring the job back");
    pair.0[0].scene.leap(1_001);
    pair.0[0].sync();
    assert!(matches!(pair.said(0)[..], [BusMessage::TransferRetire { .. }]));
}

#[test]
fn an_end_that_was_not_written_is_written_again_before_the_answer_is_retired() {
    let mut pair = Pair::new(AppendFsync::Always);
    let id = pair.sent();
    pair.0[1].settle();
    let answer = pair.pass(1).pop().unwrap();
    pair.0[0].fail_write();
    assert_eq!(pair.said(0), []);
    // It is asked again meanwhile.
    pair.tell(0, answer.clone());
    assert_eq!(pair.said(0), []);
    assert_eq!(
        state(&mut pair.0[0].restart(0), id),
        ACTIVE,
        "the log does not know"
    );
    pair.0[0].scene.leap(2_000);
    pair.0[0].settle();
    assert_eq!(state(&mut pair.0[0].restart(0), id), None);
    pair.tell(0, answer);
    pair.0[0].settle();
    assert!(matches!(pair.said(0)[..], [BusMessage::TransferRetire { .. }]));
}

#[test]
fn a_target_that_starts_again_knows_its_answers() {
    for flushed in [false, true] {
        let mut pair = Pair::new(AppendFsync::Always);
        let id = pair.sent();
        pair.0[1].settle();
        pair.said(1);
        if flushed {
            let now = pair.0[1].scene.now;
            assert!(pair.0[1].scene.home.log_flush(now, 1));
            pair.0[1].scene.home.flush(now);
            pair.0[1].settle();
        }
        pair.restart(1, AppendFsync::Always);
        assert_eq!(pair.0[1].scene.length("q"), i64::from(!flushed));
        pair.0[0].scene.leap(1_001);
        pair.0[0].settle();
        pair.said(1);
        assert!(matches!(pair.pass(0)[..], [BusMessage::TransferAsk { .. }]));
        pair.0[1].settle();
        let said = pair.pass(1);
        let taken = |said: &BusMessage| matches!(said, BusMessage::TransferAnswer { taken: true, .. });
        assert!(said.iter().any(taken), "{said:?}");
        assert_eq!(state(&mut pair.0[0].scene, id), None);
        pair.0[0].settle();
        pair.pass(0);
        pair.0[1].settle();
        assert_eq!(pair.0[1].scene.home.gauges().transfer_answers, 0);
        let back = pair.0[1].restart(0);
        assert_eq!(back.home.gauges().transfer_answers, 0, "retired for good");
    }
}

#[test]
fn a_transfer_to_an_earlier_process_asks_for_a_new_want() {
    let mut pair = Pair::new(AppendFsync::Always);
    pair.wanted();
    pair.0[0].settle();
    let transfer = pair.said(0);
    pair.restart(1, AppendFsync::Always);
    pair.said(1);
    transfer.into_iter().for_each(|message| pair.tell(1, message));
    assert_eq!(pair.0[1].scene.length("q"), 0);
    assert!(matches!(pair.pass(1)[..], [BusMessage::TransferWant { .. }]));
    assert!(matches!(pair.pass(0)[..], [BusMessage::Transfer { .. }]));
    pair.0[1].settle();
    assert_eq!(pair.0[1].scene.length("q"), 1);
}

#[test]
fn a_handed_out_job_waits_for_the_record_of_its_coming() {
    let mut pair = Pair::new(AppendFsync::EverySecond);
    let waits = pair.0[1].scene.wait(&["q"], 1, Manner::Deliver, Patience::Jobs);
    pair.sent();
    pair.0[1].write();
    assert!(pair.0[1].scene.late(waits).is_empty(), "it waits for the sync");
    pair.0[1].sync();
    assert_eq!(bodies(&pair.0[1].scene.late_jobs(waits)), ["once"]);
    let back = pair.0[1].restart(0);
    assert_eq!(back.home.gauges().delivered_at_most_once, 1);
    assert_eq!(back.home.gauges().transfer_answers, 1);
}
