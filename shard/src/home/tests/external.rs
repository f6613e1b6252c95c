//! What is added while memory is short goes to nodes that have some to spare, and stays where it is when they do not take it.

use super::cluster::{ACTIVE, Nodes, QUEUED, copies, id_of};
use super::hosts::{describe, holders};
use crate::bus::PeerState;
use crate::commands::{AddJob, IdVerb, Request};
use crate::error::CommandError;
use crate::home::queue::QUEUE_BYTES;
use crate::home::testing::{once, take};
use crate::id::JobId;
use crate::message::{Answer, Manner, Patience};

/// Nodes at these memory levels, each of which knows the others' too.
fn at_levels(levels: &[u8]) -> Nodes {
    let mut nodes = Nodes::new(levels.len());
    set_levels(&mut nodes, levels);
    nodes
}

fn set_levels(nodes: &mut Nodes, levels: &[u8]) {
    for (scene, &level) in nodes.scenes.iter_mut().zip(levels) {
        scene.home.set_memory_level(level);
    }
    describe(nodes, |node, peer| peer.memory_level = levels[node]);
}

/// A node takes no copy, though the others do not know that yet.
fn fill_up(nodes: &mut Nodes, node: usize) {
    let memory = &mut nodes.scenes[node].home.memory;
    memory.charge(1);
    memory.set_budget(0);
}

fn placed(nodes: &Nodes) -> u64 {
    nodes.scenes[0].home.counters.placed_elsewhere
}

/// Each node in turn gives out what it has of a queue.
fn fetch(nodes: &mut Nodes, queue: &str) -> Vec<(usize, JobId)> {
    let mut found = Vec::new();
    for node in 0..nodes.scenes.len() {
        let jobs = nodes.scenes[node].get(&[queue], 10);
        found.extend(jobs.iter().map(|job| (node, job.handed.id)));
        nodes.settle();
    }
    found
}

fn add_late(nodes: &mut Nodes, add: AddJob, ms: u64) -> Answer {
    let ticket = nodes.begin(0, Request::Add(add));
    nodes.pass(ms);
    nodes.late(0, ticket).expect("it is answered in time")
}

#[test]
fn as_many_others_hold_a_new_job_as_it_wants_copies() {
    for (levels, replicate) in [
        (&[1, 0][..], 1),
        (&[1, 0, 0], 1),
        (&[2, 0, 0], 2),
        (&[1, 1, 0, 0], 2),
        (&[1, 0, 0, 0, 0], 3),
    ] {
        let mut nodes = at_levels(levels);
        let before = nodes.scenes[0].home.memory.used();
        let id = nodes.add(0, copies("q", replicate)).unwrap();
        assert!(
            holders(&mut nodes, id).len() >= usize::from(replicate),
            "from the reply on"
        );
        nodes.pass(1_000);
        let held = holders(&mut nodes, id);
        assert_eq!(held.len(), usize::from(replicate), "{levels:?}");
        assert!(held.iter().all(|&node| levels[node] == 0), "{held:?}");
        let states = nodes.states(id);
        assert_eq!(
            states.iter().filter(|state| **state == QUEUED).count(),
            1,
            "{states:?}"
        );
        assert_eq!(placed(&nodes), 1);
        let left = nodes.scenes[0].home.memory.used() - before;
        assert_eq!(left, QUEUE_BYTES, "only its queue is left here");
        // It lives as any other: once at a time, and until it is acknowledged, on the node that added it too.
        assert_eq!(fetch(&mut nodes, "q").len(), 1);
        nodes.ids(0, IdVerb::Acknowledge, id);
        nodes.pass(5_000);
        assert_eq!((nodes.states(id), nodes.acks()), (vec![None; levels.len()], 0));
    }
}

#[test]
fn a_job_stays_when_too_few_others_have_memory_to_spare() {
    for (levels, replicate, stay) in [
        (&[0, 0, 0][..], 1, &[0][..]),
        (&[1], 1, &[0]),
        (&[1, 1, 2], 1, &[0]),
        (&[1, 0, 1], 2, &[0, 1]),
        (&[2, 0, 0], 3, &[0, 1, 2]),
    ] {
        let mut nodes = Nodes::new(levels.len().max(2));
        if levels.len() > 1 {
            set_levels(&mut nodes, levels);
        } else {
            nodes.scenes[0].home.set_memory_level(1);
            nodes.cut(0, 1, true);
        }
        let id = nodes.add(0, copies("q", replicate)).unwrap();
        nodes.pass(8_000);
        assert_eq!(holders(&mut nodes, id), stay, "{levels:?}");
        assert_eq!((nodes.states(id)[0], placed(&nodes)), (QUEUED, 0));
    }
}

#[test]
fn an_asynchronous_one_is_answered_at_once_and_goes_later() {
    let mut nodes = at_levels(&[1, 0, 0]);
    let add = AddJob {
        asynchronous: true,
        ..copies("q", 2)
    };
    let answer = nodes.scenes[0].request(Request::Add(add));
    let Answer::Id(id) = answer else {
        panic!("{answer:?}")
    };
    assert_eq!(nodes.states(id), [QUEUED, None, None]);
    nodes.pass(1_000);
    assert_eq!(holders(&mut nodes, id), [1, 2]);
    assert_eq!(fetch(&mut nodes, "q").len(), 1);
}

#[test]
fn a_delay_ends_on_the_other_node() {
    for retry_s in [0, 10] {
        let mut nodes = at_levels(&[1, 0]);
        let add = AddJob {
            delay_s: 5,
            retry_s,
            ..copies("q", 1)
        };
        let id = nodes.add(0, add).unwrap();
        nodes.pass(4_800);
        assert_eq!(nodes.states(id), [None, ACTIVE]);
        nodes.pass(400);
        assert_eq!(nodes.states(id), [None, QUEUED]);
    }
}

#[test]
fn an_at_most_once_job_is_at_one_node_and_comes_once() {
    let mut nodes = at_levels(&[1, 0, 1, 0]);
    let ids: Vec<JobId> = (0..20)
        .map(|_| nodes.add(0, once("q", "body")).unwrap())
        .collect();
    nodes.pass(3_000);
    for &id in &ids {
        let held = holders(&mut nodes, id);
        assert!(held == [1] || held == [3], "{held:?}");
    }
    assert_eq!(placed(&nodes), 20);
    let mut found = fetch(&mut nodes, "q");
    nodes.pass(30_000);
    found.extend(fetch(&mut nodes, "q"));
    found.extend(fetch(&mut nodes, "q"));
    let mut came: Vec<JobId> = found.iter().map(|(_, id)| *id).collect();
    came.sort();
    let mut added = ids;
    added.sort();
    assert_eq!(came, added);
}

/// Whatever is lost on the way at whatever step: a job with RETRY 0 is handed out once in all.
#[test]
fn an_at_most_once_job_comes_once_though_its_target_goes_half_way() {
    for steps in 0..12 {
        let mut nodes = at_levels(&[1, 0]);
        let id = match nodes.scenes[0].request(Request::Add(once("q", "body"))) {
            Answer::Id(id) => id,
            other => panic!("{other:?}"),
        };
        for _ in 0..steps {
            step(&mut nodes);
        }
        nodes.cut(0, 1, true);
        let mut found = fetch(&mut nodes, "q");
        nodes.pass(3_000);
        nodes.cut(0, 1, false);
        for _ in 0..10 {
            nodes.pass(3_000);
            found.extend(fetch(&mut nodes, "q"));
        }
        let came: Vec<JobId> = found.iter().map(|(_, id)| *id).collect();
        assert_eq!(came, [id], "after {steps} steps");
    }
}

/// One batch of messages goes.
fn step(nodes: &mut Nodes) {
    for from in 0..nodes.scenes.len() {
        nodes.scenes[from].settle();
        let mut batch = Vec::new();
        if let Some(link) = nodes.scenes[from].home.peers.take_outbox(&mut batch) {
            let to = link.0 as usize + usize::from(link.0 as usize >= from);
            for message in batch {
                nodes.deliver(from, to, message);
            }
            return;
        }
    }
    nodes.scenes.iter_mut().for_each(|scene| scene.leap(30));
}

#[test]
fn a_node_that_has_no_room_after_all_is_done_without() {
    // REPLICATE 1: the only other one refuses; REPLICATE 2: one of two does.
    for (levels, replicate, refuse) in [(&[1, 0][..], 1, 1), (&[1, 0, 0], 2, 1), (&[1, 0, 0], 1, 1)] {
        let mut nodes = at_levels(levels);
        fill_up(&mut nodes, refuse);
        let id = nodes.add(0, copies("q", replicate)).unwrap();
        let held = holders(&mut nodes, id);
        assert!(
            held.len() >= usize::from(replicate) && !held.contains(&refuse),
            "{held:?}"
        );
        nodes.pass(20_000);
        let held = holders(&mut nodes, id);
        match (levels.len(), replicate) {
            (3, 1) => assert_eq!(held, [2], "another one takes it"),
            (_, 2) => assert_eq!(held, [0, 2], "it stays here too"),
            _ => assert_eq!(held, [0]),
        }
        assert_eq!(fetch(&mut nodes, "q").len(), 1);
    }
    // At most once: it stays in its queue, and goes when there is room.
    let mut nodes = at_levels(&[1, 0]);
    fill_up(&mut nodes, 1);
    let id = nodes.add(0, once("q", "body")).unwrap();
    nodes.pass(10_000);
    assert_eq!(nodes.states(id), [QUEUED, None]);
    nodes.scenes[1].home.memory.set_budget(1 << 40);
    nodes.pass(10_000);
    assert_eq!(nodes.states(id), [None, QUEUED]);
}

#[test]
fn what_was_to_go_stays_when_memory_is_there_again() {
    let mut nodes = at_levels(&[1, 0]);
    fill_up(&mut nodes, 1);
    let id = nodes.add(0, copies("q", 1)).unwrap();
    set_levels(&mut nodes, &[0, 0]);
    nodes.scenes[1].home.memory.set_budget(1 << 40);
    nodes.pass(20_000);
    assert_eq!(nodes.states(id)[0], QUEUED);
    assert_eq!(placed(&nodes), 0);
    let sent = nodes.scenes[0].home.counters.copies_sent;
    nodes.pass(60_000);
    assert_eq!(
        nodes.scenes[0].home.counters.copies_sent, sent,
        "nobody is asked any more"
    );
}

/// The node that a job goes to dies, with all it has, after each step of its going: as long as no second one dies, the job is there.
#[test]
fn a_node_that_dies_half_way_takes_no_job_along_that_has_another_holder() {
    for (count, replicate) in [(2, 1), (3, 1), (3, 2), (4, 2)] {
        for steps in 0..16 {
            for victim in 1..count {
                let mut levels = vec![0; count];
                levels[0] = 1;
                let mut nodes = at_levels(&levels);
                let ticket = nodes.begin(0, Request::Add(copies("q", replicate)));
                for _ in 0..steps {
                    step(&mut nodes);
                }
                die(&mut nodes, victim);
                nodes.pass(2_000);
                let answer = nodes.late(0, ticket);
                let Some(Answer::Id(id)) = answer else {
                    panic!("{answer:?}")
                };
                let held = holders(&mut nodes, id);
                let what = format!("{count} nodes, {replicate} copies, {victim} dies after {steps} steps");
                if replicate == 1 && held.is_empty() {
                    // It was at that node alone: as it had to be.
                    assert!(placed(&nodes) == 1, "{what}");
                    continue;
                }
                assert!(!held.is_empty(), "{what}");
                nodes.pass(20_000);
                let came = fetch(&mut nodes, "q");
                assert_eq!(came.len(), 1, "{what}: {:?}", nodes.states(id));
            }
        }
    }
}

/// A node is gone, and comes back with nothing, in a new store epoch.
fn die(nodes: &mut Nodes, victim: usize) {
    let count = nodes.scenes.len();
    for other in (0..count).filter(|&other| other != victim) {
        nodes.cut(other, victim, true);
    }
    nodes.restart(victim);
    let all: Vec<(usize, u64)> = (0..count)
        .map(|node| (node, if node == victim { 2 } else { 1 }))
        .collect();
    (0..count).for_each(|node| nodes.publish(node, &all));
    for other in (0..count).filter(|&other| other != victim) {
        nodes
            .cut
            .retain(|link| *link != (other, victim) && *link != (victim, other));
        let now = nodes.scenes[other].now;
        let peer = super::cluster::number(victim, other);
        nodes.scenes[other].home.peer_epoch_changed(now, peer);
        nodes.scenes[other].home.peer_came(now, peer);
    }
}

#[test]
fn nodes_that_cannot_be_reached_or_are_silent_are_done_without() {
    // The only other one is cut off while it is asked.
    let mut nodes = at_levels(&[1, 0]);
    let ticket = nodes.begin(0, Request::Add(copies("q", 1)));
    nodes.cut(0, 1, true);
    nodes.settle();
    let answer = nodes.late(0, ticket);
    assert!(matches!(answer, Some(Answer::Id(_))), "{answer:?}");
    // It says nothing: this node counts after a while.
    let mut nodes = at_levels(&[1, 0]);
    nodes.cut.push((1, 0));
    let answer = add_late(&mut nodes, copies("q", 1), 1_000);
    let Answer::Id(id) = answer else {
        panic!("{answer:?}")
    };
    assert_eq!(nodes.states(id)[0], QUEUED);
    // Before that its time is over, and this node is enough.
    let mut nodes = at_levels(&[1, 0, 0]);
    nodes.cut.extend([(1, 0), (2, 0)]);
    let short = |replicate| AddJob {
        timeout_ms: 20,
        ..copies("q", replicate)
    };
    assert!(matches!(add_late(&mut nodes, short(1), 100), Answer::Id(_)));
    // Or not.
    let answer = add_late(&mut nodes, short(2), 100);
    assert!(
        matches!(answer, Answer::Error(CommandError::ReplicationTimeout)),
        "{answer:?}"
    );
    assert_eq!(nodes.scenes[0].home.gauges().jobs, 1);
}

#[test]
fn a_default_number_of_copies_is_lowered_as_ever_when_nodes_go() {
    let mut nodes = at_levels(&[1, 0, 0, 0]);
    nodes.cut.extend([(0, 1), (0, 2)]);
    let add = AddJob {
        may_lower: true,
        ..copies("q", 3)
    };
    let ticket = nodes.begin(0, Request::Add(add));
    nodes.pass(30);
    assert!(nodes.late(0, ticket).is_none());
    nodes.cut(0, 1, true);
    nodes.cut(0, 2, true);
    nodes.settle();
    let answer = nodes.late(0, ticket);
    let Some(Answer::Id(id)) = answer else {
        panic!("{answer:?}")
    };
    assert_eq!(holders(&mut nodes, id), [0, 3]);
}

/// The node that added a job had no memory to remember an acknowledgement of what it does not have, told nobody, and the job came again.
#[test]
fn a_job_that_went_elsewhere_is_acknowledged_here_though_memory_is_full() {
    let mut nodes = at_levels(&[2, 0, 0]);
    let id = nodes.add(0, copies("q", 2)).unwrap();
    nodes.pass(1_000);
    assert_eq!(holders(&mut nodes, id), [1, 2]);
    fill_up(&mut nodes, 0);
    nodes.ids(0, IdVerb::Acknowledge, id);
    nodes.pass(5_000);
    assert_eq!((nodes.states(id), nodes.acks()), (vec![None; 3], 0));
}

#[test]
fn a_consumer_here_is_served_first() {
    let mut nodes = at_levels(&[1, 0]);
    let request = Request::Take(take(&["q"], 1, Manner::Deliver, Patience::Jobs));
    let ticket = nodes.begin(0, request);
    let id = nodes.add(0, copies("q", 1)).unwrap();
    let got = nodes.late(0, ticket);
    assert!(
        matches!(&got, Some(Answer::Jobs(jobs)) if jobs[0].handed.id == id),
        "{got:?}"
    );
    nodes.ids(0, IdVerb::Acknowledge, id);
    nodes.pass(5_000);
    assert_eq!((nodes.states(id), nodes.acks()), (vec![None; 2], 0));
}

#[test]
fn a_job_that_came_back_is_held_here_again() {
    let mut nodes = at_levels(&[1, 0]);
    let id = nodes
        .add(
            0,
            AddJob {
                retry_s: 2,
                ..copies("q", 1)
            },
        )
        .unwrap();
    nodes.pass(1_000);
    assert_eq!(nodes.states(id), [None, QUEUED]);
    let request = Request::Take(take(&["q"], 1, Manner::Deliver, Patience::Jobs));
    let ticket = nodes.begin(0, request);
    nodes.pass(500);
    let got = nodes.late(0, ticket);
    assert!(
        matches!(&got, Some(Answer::Jobs(jobs)) if jobs[0].handed.id == id),
        "{got:?}"
    );
    // The lease ends on both: one queues it, the other believes that.
    nodes.pass(10_000);
    let states = nodes.states(id);
    assert_eq!(
        states.iter().filter(|state| **state == QUEUED).count(),
        1,
        "{states:?}"
    );
    assert_eq!(fetch(&mut nodes, "q").len(), 1);
}

#[test]
fn a_paused_queue_keeps_its_jobs_until_it_is_open() {
    let mut nodes = at_levels(&[1, 0]);
    let late = AddJob {
        delay_s: 1,
        ..copies("q", 1)
    };
    let id = nodes.add(0, late).unwrap();
    nodes.scenes[0].pause("q", true, false);
    nodes.pass(3_000);
    assert!(nodes.states(id)[0].is_some());
    nodes.scenes[0].pause("q", false, true);
    let stays = nodes.add(0, once("q", "body")).unwrap();
    nodes.pass(8_000);
    assert_eq!(nodes.states(stays), [QUEUED, None], "closed: it was not to go");
    nodes.scenes[0].pause("q", false, false);
    nodes.pass(8_000);
    assert_eq!(nodes.states(id), [None, QUEUED]);
}

#[test]
fn a_flush_ends_all_that_was_to_go() {
    let mut nodes = at_levels(&[1, 0]);
    fill_up(&mut nodes, 1);
    for _ in 0..300 {
        nodes.add(0, copies("q", 1)).unwrap();
        nodes.add(0, once("q", "body")).unwrap();
    }
    let now = nodes.scenes[0].now;
    nodes.scenes[0].home.flush(now);
    nodes.pass(10_000);
    let home = &nodes.scenes[0].home;
    assert_eq!((home.gauges().jobs, home.memory.used()), (0, 0));
}

/// It had no reason to wait for a node that is about to go.
#[test]
fn nodes_that_leave_or_are_lost_are_not_counted_on() {
    let mut nodes = at_levels(&[1, 0, 0]);
    describe(&mut nodes, |node, peer| {
        peer.memory_level = u8::from(node == 0);
        peer.leaving = node == 1;
    });
    let id = nodes.add(0, copies("q", 2)).unwrap();
    nodes.pass(3_000);
    assert_eq!(holders(&mut nodes, id), [0, 2]);
    let mut nodes = at_levels(&[1, 0, 0]);
    let id = nodes.begin(0, Request::Add(copies("q", 2)));
    step(&mut nodes);
    nodes.cut(0, 1, true);
    nodes.cut(2, 1, true);
    describe(&mut nodes, |node, peer| {
        peer.memory_level = u8::from(node == 0);
        if node == 1 {
            (peer.state, peer.lost) = (PeerState::Failed, true);
        }
    });
    nodes.pass(3_000);
    let answer = nodes.late(0, id);
    let Some(Answer::Id(id)) = answer else {
        panic!("{answer:?}")
    };
    let held: Vec<usize> = holders(&mut nodes, id)
        .into_iter()
        .filter(|&node| node != 1)
        .collect();
    assert_eq!(held, [0, 2], "{:?} is lost", id_of(1));
}
