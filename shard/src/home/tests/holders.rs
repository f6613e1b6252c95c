//! What makes a node a holder of a job, and what it has to give away: found by the simulator of clusters.

use super::cluster::{Nodes, QUEUED, copies};
use super::journal::Logged;
use crate::bus::{BusMessage, PeerNo};
use crate::commands::{AddJob, IdVerb};
use crate::home::testing::Scene;
use crate::id::JobId;
use crate::log::AppendFsync;
use crate::message::{Manner, Patience};

/// What waits for the one peer of a node.
fn told(scene: &mut Scene) -> Vec<BusMessage> {
    let mut batch = Vec::new();
    scene.home.peers.take_outbox(&mut batch);
    batch
}

/// It said so at once: when the record failed, or the process died before, the job was taken for one that is done.
#[test]
fn an_import_is_told_of_once_the_log_has_it() {
    for fails in [false, true] {
        let mut nodes = Nodes::new(2);
        let id = nodes.add(0, copies("q", 1)).unwrap();
        let mut importer = Logged::of(nodes.scenes.pop().unwrap(), AppendFsync::EverySecond);
        importer.scene.wait(&["q"], 1, Manner::Deliver, Patience::Jobs);
        importer.settle();
        let exporter = &mut nodes.scenes[0];
        for message in told(&mut importer.scene) {
            exporter.home.bus(exporter.now, PeerNo(0), 1, message);
        }
        exporter.settle();
        let imports = told(exporter);
        assert!(matches!(imports[..], [BusMessage::Import { .. }]), "{imports:?}");
        for message in imports {
            importer.scene.home.bus(importer.scene.now, PeerNo(0), 1, message);
        }
        importer.scene.settle();
        let of_job =
            |message: &BusMessage| matches!(message, BusMessage::Queued { .. } | BusMessage::Leased { .. });
        let before = told(&mut importer.scene);
        assert!(!before.iter().any(of_job), "before it is written: {before:?}");
        if fails {
            importer.fail_write();
        } else {
            importer.write();
        }
        importer.settle();
        let after = told(&mut importer.scene);
        assert_eq!(after.iter().any(of_job), !fails, "{after:?}");
        let jobs = importer.scene.home.gauges().jobs;
        assert_eq!(
            jobs,
            u64::from(!fails),
            "{id} is a copy that the log has, or none"
        );
    }
}

/// It stayed for as long as the queue was paused.
#[test]
fn a_node_that_leaves_gives_away_what_a_pause_keeps_back() {
    let mut nodes = Nodes::new(3);
    let late = AddJob {
        delay_s: 1,
        ..copies("q", 1)
    };
    let id = nodes.add(0, late).unwrap();
    nodes
        .scenes
        .iter_mut()
        .for_each(|scene| scene.pause("q", true, false));
    nodes.pass(2_000);
    nodes.leaving = Some(0);
    (0..3).for_each(|node| nodes.publish(node, &[(0, 1), (1, 1), (2, 1)]));
    nodes.pass(3_000);
    assert_eq!(nodes.scenes[0].home.gauges().jobs, 0, "nothing is left there");
    assert!(!nodes.states(id).contains(&QUEUED), "it is kept back there too");
    nodes
        .scenes
        .iter_mut()
        .for_each(|scene| scene.pause("q", false, false));
    nodes.pass(1_000);
    assert!(nodes.states(id).contains(&QUEUED), "{:?}", nodes.states(id));
}

/// Delivers what there is, but for messages of this kind, which are lost.
fn settle_without(nodes: &mut Nodes, is_lost: fn(&BusMessage) -> bool) {
    loop {
        let mut quiet = true;
        for from in 0..nodes.scenes.len() {
            nodes.scenes[from].settle();
            let mut batch = Vec::new();
            while let Some(link) = nodes.scenes[from].home.peers.take_outbox(&mut batch) {
                quiet = false;
                let to = link.0 as usize + usize::from(link.0 as usize >= from);
                for message in batch.drain(..).filter(|message| !is_lost(message)) {
                    nodes.deliver(from, to, message);
                }
            }
        }
        if quiet {
            return;
        }
    }
}

/// The others kept the acknowledgement for as long as the job would have lived: all had answered, and the one that collects had forgotten it.
#[test]
fn a_job_ends_though_what_ends_it_was_lost() {
    let mut nodes = Nodes::new(3);
    let ids: Vec<JobId> = (0..8).map(|_| nodes.add(0, copies("q", 3)).unwrap()).collect();
    for &id in &ids {
        nodes.scenes[0].ids(IdVerb::Acknowledge, &[id]);
    }
    settle_without(&mut nodes, |message| matches!(message, BusMessage::Delete { .. }));
    assert!(nodes.acks() > 0, "some wait for it");
    nodes.pass(10_000);
    assert_eq!(nodes.acks(), 0);
}

/// A node without the job that tells of its acknowledgement was taken for the one that collects, when it was thought to be a holder, and
/// took the other for that.
#[test]
fn who_has_no_job_does_not_collect_it() {
    let mut nodes = Nodes::new(2);
    let ids: Vec<JobId> = (0..8).map(|_| nodes.add(0, copies("q", 2)).unwrap()).collect();
    nodes.scenes[1].ids(IdVerb::Delete, &ids);
    settle_without(&mut nodes, |message| matches!(message, BusMessage::Left { .. }));
    for &id in &ids {
        nodes.ids(1, IdVerb::Acknowledge, id);
    }
    nodes.settle();
    nodes.pass(10_000);
    assert_eq!((nodes.acks(), nodes.scenes[0].home.gauges().jobs), (0, 0));
}

/// The copies that were given away when there were too few nodes for all were never made up for.
#[test]
fn copies_that_a_node_took_along_are_made_again_when_there_is_a_node() {
    let all = [(0, 1), (1, 1)];
    let mut nodes = Nodes::new(2);
    let id = nodes.add(0, copies("q", 2)).unwrap();
    nodes.settle();
    nodes.leaving = Some(0);
    (0..2).for_each(|node| nodes.publish(node, &all));
    nodes.pass(3_000);
    assert_eq!(nodes.states(id), [None, QUEUED], "it is at the other alone");
    nodes.leaving = None;
    (0..2).for_each(|node| nodes.publish(node, &all));
    nodes.pass(200_000);
    assert!(nodes.states(id).iter().all(Option::is_some));
}

/// A node that left while its confirmation was still on the way was taken for a holder again; when it then forgot that it had left, its "unknown"
/// passed for an acknowledgement, and the job was lost.
#[test]
fn who_left_is_no_holder_though_its_confirmation_comes_late() {
    let mut nodes = Nodes::new(3);
    let id = nodes.add(0, copies("q", 3)).unwrap();
    nodes.settle();
    let others = |nodes: &mut Nodes| {
        let Scene { home, now, .. } = &mut nodes.scenes[0];
        let key = home.find_job(now.mono(), &id).expect("it is here");
        home.holders_on_record(home.job(key)).len()
    };
    assert_eq!(others(&mut nodes), 2);
    nodes.deliver(1, 0, BusMessage::Left { id });
    nodes.deliver(1, 0, BusMessage::Copied { id });
    assert_eq!(others(&mut nodes), 1);
}
