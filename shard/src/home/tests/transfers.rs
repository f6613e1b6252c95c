//! Jobs with RETRY 0 that go from node to node: at most one may hand each out, whatever becomes of the messages about it.

use super::cluster::{ACTIVE, Nodes, QUEUED, number};
use crate::bus::BusMessage;
use crate::bus::message::Refusal;
use crate::commands::{AddJob, IdVerb};
use crate::home::testing::once;
use crate::id::JobId;
use crate::message::{Manner, Patience, Ticket};

/// From, to, what.
type Said = (usize, usize, BusMessage);

/// Delivers what there is until nothing more is said, but for what does not pass; all that was said, in order.
fn talk(nodes: &mut Nodes, mut passes: impl FnMut(&BusMessage) -> bool) -> Vec<Said> {
    let mut all = Vec::new();
    loop {
        let before = all.len();
        for from in 0..nodes.scenes.len() {
            nodes.scenes[from].settle();
            let mut batch = Vec::new();
            while let Some(link) = nodes.scenes[from].home.peers.take_outbox(&mut batch) {
                let to = link.0 as usize + usize::from(link.0 as usize >= from);
                for message in batch.drain(..) {
                    all.push((from, to, message.clone()));
                    if passes(&message) {
                        nodes.deliver(from, to, message);
                    }
                }
            }
        }
        if all.len() == before {
            return all;
        }
    }
}

fn everything(_: &BusMessage) -> bool {
    true
}

/// A job with RETRY 0 on node 0, and a consumer on node 1.
fn one_way() -> (Nodes, JobId, Ticket) {
    let mut nodes = Nodes::new(2);
    let id = nodes.add(0, once("q", "once")).unwrap();
    let ticket = nodes.scenes[1].wait(&["q"], 1, Manner::Deliver, Patience::Jobs);
    (nodes, id, ticket)
}

fn got(nodes: &mut Nodes, at: usize, ticket: Ticket) -> Vec<JobId> {
    let answers = nodes.scenes[at].late(ticket);
    let jobs = answers.into_iter().flat_map(|answer| match answer {
        crate::message::Answer::Jobs(jobs) => jobs,
        other => panic!("{other:?}"),
    });
    jobs.map(|job| job.handed.id).collect()
}

/// Transfers under way, and answers that are kept, of all nodes.
fn open(nodes: &Nodes) -> (u64, u64) {
    let gauges = nodes.scenes.iter().map(|scene| scene.home.gauges());
    gauges.fold((0, 0), |sum, of| {
        (sum.0 + of.transfers, sum.1 + of.transfer_answers)
    })
}

#[test]
fn a_job_goes_to_who_waits_elsewhere_and_leaves_nothing_behind() {
    let (mut nodes, id, ticket) = one_way();
    nodes.settle();
    assert_eq!(got(&mut nodes, 1, ticket), [id]);
    assert_eq!(nodes.states(id), [None, ACTIVE]);
    assert_eq!(open(&nodes), (0, 0));
    assert_eq!(nodes.scenes[0].home.counters.exported, 1);
    assert_eq!(nodes.scenes[1].home.counters.imported, 1);
    nodes.ids(1, IdVerb::Acknowledge, id);
    assert_eq!(nodes.states(id), [None; 2]);
}

#[test]
fn what_comes_again_later_does_nothing() {
    let (mut nodes, id, ticket) = one_way();
    let said = talk(&mut nodes, everything);
    assert!(
        said.iter()
            .any(|said| matches!(said.2, BusMessage::Transfer { .. }))
    );
    assert_eq!(got(&mut nodes, 1, ticket), [id]);
    nodes.ids(1, IdVerb::Acknowledge, id);
    nodes.settle();
    // Nobody knows the job any more. All that was said of it comes again, in its order and against it.
    let again = said.iter().chain(said.iter().rev()).chain(&said);
    for (from, to, message) in again.cloned() {
        nodes.deliver(from, to, message);
        nodes.settle();
        assert_eq!(nodes.states(id), [None; 2]);
    }
    nodes.pass(10_000);
    assert_eq!((nodes.states(id), open(&nodes)), (vec![None; 2], (0, 0)));
}

#[test]
fn what_comes_twice_is_taken_once() {
    let (mut nodes, id, ticket) = one_way();
    let mut kept = Vec::new();
    loop {
        let mut batch = Vec::new();
        for from in 0..2 {
            nodes.scenes[from].settle();
            let mut said = Vec::new();
            while nodes.scenes[from].home.peers.take_outbox(&mut said).is_some() {
                batch.extend(said.drain(..).map(|message| (from, 1 - from, message)));
            }
        }
        if batch.is_empty() {
            break;
        }
        // The whole past comes with each step.
        kept.extend(batch);
        if kept.len() > 2_000 {
            break;
        }
        for (from, to, message) in kept.clone() {
            nodes.deliver(from, to, message);
        }
        let holders = nodes.states(id).iter().flatten().count();
        assert!(holders <= 2);
    }
    nodes.pass(20_000);
    assert_eq!(got(&mut nodes, 1, ticket), [id]);
    assert_eq!(nodes.states(id), [None, ACTIVE]);
}

#[test]
fn a_lost_job_comes_back_and_goes_again() {
    let (mut nodes, id, ticket) = one_way();
    talk(&mut nodes, |message| {
        !matches!(message, BusMessage::Transfer { .. })
    });
    assert_eq!(nodes.states(id), [ACTIVE, None]);
    assert_eq!(nodes.scenes[0].length("q"), 0, "it is in no queue");
    nodes.scenes.iter_mut().for_each(|scene| scene.leap(1_001));
    let said = talk(&mut nodes, everything);
    let asked = said
        .iter()
        .filter(|said| matches!(said.2, BusMessage::TransferAsk { .. }));
    assert_eq!(asked.count(), 1);
    nodes.pass(3_000);
    assert_eq!(got(&mut nodes, 1, ticket), [id]);
    assert_eq!(open(&nodes), (0, 0));
    assert_eq!(nodes.scenes[0].home.counters.transfers_refused, 1);
}

#[test]
fn a_late_transfer_finds_that_it_was_refused() {
    let (mut nodes, id, ticket) = one_way();
    let said = talk(&mut nodes, |message| {
        !matches!(message, BusMessage::Transfer { .. })
    });
    let is_it = |said: &Said| matches!(said.2, BusMessage::Transfer { .. });
    let late = said.into_iter().find(is_it).unwrap();
    nodes.scenes[1].cancel(ticket);
    nodes.pass(1_500);
    assert_eq!(nodes.states(id), [QUEUED, None]);
    nodes.deliver(late.0, late.1, late.2);
    nodes.settle();
    assert_eq!(nodes.states(id), [QUEUED, None]);
    assert_eq!(nodes.scenes[0].get_one("q").handed.id, id);
}

#[test]
fn a_lost_answer_is_said_again() {
    let (mut nodes, id, ticket) = one_way();
    talk(&mut nodes, |message| {
        !matches!(message, BusMessage::TransferAnswer { .. })
    });
    assert_eq!(got(&mut nodes, 1, ticket), [id]);
    assert_eq!(nodes.states(id), [ACTIVE; 2], "one sends, one has handed it out");
    assert_eq!(open(&nodes), (1, 1));
    nodes.pass(1_100);
    assert_eq!(nodes.states(id), [None, ACTIVE]);
    assert_eq!(open(&nodes), (0, 0));
}

#[test]
fn an_answer_outlives_the_job_and_a_flush() {
    let (mut nodes, id, ticket) = one_way();
    talk(&mut nodes, |message| {
        !matches!(message, BusMessage::TransferAnswer { .. })
    });
    assert_eq!(got(&mut nodes, 1, ticket), [id]);
    let now = nodes.scenes[1].now;
    nodes.scenes[1].home.flush(now);
    assert_eq!(nodes.states(id), [ACTIVE, None]);
    nodes.pass(1_100);
    assert_eq!(nodes.states(id), [None; 2], "not queued again");
}

#[test]
fn a_flush_at_the_source_forgets_the_job_and_frees_the_target() {
    let (mut nodes, id, _) = one_way();
    talk(&mut nodes, |message| {
        !matches!(message, BusMessage::TransferAnswer { .. })
    });
    let now = nodes.scenes[0].now;
    nodes.scenes[0].home.flush(now);
    nodes.pass(4_000);
    assert_eq!((nodes.states(id), open(&nodes)), (vec![None, ACTIVE], (0, 0)));
}

#[test]
fn a_target_that_lost_its_memory_may_have_handed_it_out() {
    let (mut nodes, id, _) = one_way();
    talk(&mut nodes, |message| {
        !matches!(message, BusMessage::TransferAnswer { .. })
    });
    nodes.restart(1);
    for node in 0..2 {
        nodes.publish(node, &[(0, 1), (1, 2)]);
    }
    let now = nodes.scenes[0].now;
    nodes.scenes[0].home.peer_epoch_changed(now, number(1, 0));
    nodes.settle();
    assert_eq!(nodes.states(id), [None; 2]);
    assert_eq!(nodes.scenes[0].home.counters.transfers_in_doubt, 1);
}

#[test]
fn a_target_that_is_away_is_asked_when_it_is_back() {
    let (mut nodes, id, ticket) = one_way();
    talk(&mut nodes, |message| {
        !matches!(message, BusMessage::Transfer { .. })
    });
    nodes.cut(0, 1, true);
    nodes.pass(60_000);
    assert_eq!(nodes.states(id), [ACTIVE, None], "nobody knows where it is");
    nodes.cut(0, 1, false);
    nodes.pass(1_000);
    assert_eq!(got(&mut nodes, 1, ticket), [id]);
}

#[test]
fn an_offered_job_is_still_handed_out_here() {
    let (mut nodes, id, ticket) = one_way();
    talk(&mut nodes, |message| {
        !matches!(message, BusMessage::TransferWant { .. })
    });
    assert_eq!(nodes.states(id), [QUEUED, None]);
    assert_eq!(nodes.scenes[0].length("q"), 1);
    assert_eq!(nodes.scenes[0].get_one("q").handed.id, id);
    nodes.pass(3_000);
    assert_eq!(nodes.states(id), [ACTIVE, None]);
    assert_eq!(got(&mut nodes, 1, ticket), []);
}

#[test]
fn a_paused_queue_takes_nothing_and_keeps_nobody_waiting_for_ever() {
    let (mut nodes, id, ticket) = one_way();
    nodes.scenes[1].pause("q", true, false);
    let said = talk(&mut nodes, everything);
    let refused = |said: &Said| {
        let why = Refusal::Paused;
        said.2 == BusMessage::Refused { id, why }
    };
    assert!(
        said.iter()
            .all(|said| !matches!(said.2, BusMessage::Transfer { .. }))
    );
    assert!(said.iter().any(refused) || nodes.scenes[0].length("q") == 1);
    assert_eq!(nodes.states(id), [QUEUED, None]);
    nodes.scenes[1].pause("q", false, false);
    nodes.pass(2_500);
    assert_eq!(got(&mut nodes, 1, ticket), [id]);
}

#[test]
fn a_queue_that_closes_on_the_way_refuses_for_good() {
    let (mut nodes, id, _) = one_way();
    let said = talk(&mut nodes, |message| {
        !matches!(message, BusMessage::Transfer { .. })
    });
    nodes.scenes[1].pause("q", true, false);
    nodes.scenes[0].pause("q", true, false);
    let is_it = |said: &Said| matches!(said.2, BusMessage::Transfer { .. });
    let transfer = said.into_iter().find(is_it).unwrap();
    nodes.deliver(transfer.0, transfer.1, transfer.2);
    nodes.settle();
    assert_eq!(
        nodes.states(id),
        [ACTIVE, None],
        "held back: its own is closed too"
    );
    nodes.scenes[0].pause("q", false, false);
    assert_eq!(nodes.states(id), [QUEUED, None]);
}

#[test]
fn commands_on_a_job_that_is_away_change_nothing() {
    let (mut nodes, id, ticket) = one_way();
    talk(&mut nodes, |message| {
        !matches!(message, BusMessage::Transfer { .. })
    });
    let scene = &mut nodes.scenes[0];
    for verb in [IdVerb::Enqueue, IdVerb::Nack, IdVerb::Dequeue] {
        assert_eq!(scene.ids(verb, &[id]), 0, "{verb:?}");
    }
    assert_eq!((scene.length("q"), scene.state(id)), (0, ACTIVE));
    assert!(scene.get(&["q"], 1).is_empty());
    nodes.pass(3_000);
    assert_eq!(got(&mut nodes, 1, ticket), [id]);
}

#[test]
fn an_acknowledgement_follows_the_job() {
    let (mut nodes, id, ticket) = one_way();
    talk(&mut nodes, |message| {
        !matches!(message, BusMessage::TransferAnswer { .. })
    });
    assert_eq!(got(&mut nodes, 1, ticket), [id]);
    nodes.ids(0, IdVerb::Acknowledge, id);
    nodes.settle();
    assert_eq!((nodes.states(id), nodes.acks()), (vec![None; 2], 0));
    nodes.pass(4_000);
    assert_eq!(open(&nodes), (0, 0));
}

#[test]
fn a_job_that_was_acknowledged_before_it_arrives_is_not_taken() {
    for verb in [IdVerb::Acknowledge, IdVerb::FastAcknowledge] {
        let (mut nodes, id, ticket) = one_way();
        let is_transfer = |message: &BusMessage| matches!(message, BusMessage::Transfer { .. });
        let said = talk(&mut nodes, |message| !is_transfer(message));
        let late = said.iter().find(|said| is_transfer(&said.2)).expect("it went");
        nodes.ids(0, verb, id);
        nodes.settle();
        let (from, to, message) = late.clone();
        nodes.deliver(from, to, message);
        nodes.settle();
        nodes.pass(10_000);
        assert_eq!(got(&mut nodes, 1, ticket), []);
        assert_eq!((nodes.states(id), open(&nodes)), (vec![None; 2], (0, 0)));
    }
}

#[test]
fn a_job_that_is_deleted_or_expires_on_its_way_is_not_asked_about() {
    for deleted in [false, true] {
        let mut nodes = Nodes::new(2);
        let add = AddJob {
            ttl_s: 5,
            ..once("q", "")
        };
        let id = nodes.add(0, add).unwrap();
        nodes.scenes[1].wait(&["q"], 1, Manner::Deliver, Patience::Jobs);
        talk(&mut nodes, |message| {
            !matches!(
                message,
                BusMessage::TransferAnswer { .. } | BusMessage::TransferAsk { .. }
            )
        });
        if deleted {
            assert_eq!(nodes.scenes[0].ids(IdVerb::Delete, &[id]), 1);
        } else {
            nodes.scenes.iter_mut().for_each(|scene| scene.leap(5_001));
        }
        nodes.pass(4_000);
        assert_eq!(nodes.states(id)[0], None);
        assert_eq!(open(&nodes), (0, 0));
    }
}

#[test]
fn a_job_goes_back_and_forth() {
    let mut nodes = Nodes::new(2);
    let id = nodes.add(0, once("q", "")).unwrap();
    let mut said = Vec::new();
    for round in 0..4 {
        let to = 1 - round % 2;
        let ticket = nodes.scenes[to].wait(&["q"], 1, Manner::Deliver, Patience::Jobs);
        said.extend(talk(&mut nodes, everything));
        assert_eq!(got(&mut nodes, to, ticket), [id]);
        // Its client was gone: it stands in the queue there.
        let key = nodes.scenes[to].home.stock.job_key(1, &id).unwrap();
        let delivery = nodes.scenes[to].home.job(key).deliveries;
        nodes.scenes[to].undelivered(crate::message::Handed { id, delivery });
        nodes.pass(1_500);
    }
    assert_eq!(nodes.states(id), [QUEUED, None]);
    // What was said of former ways takes it nowhere.
    for (from, to, message) in said {
        nodes.deliver(from, to, message);
    }
    nodes.pass(20_000);
    assert_eq!((nodes.states(id), open(&nodes)), (vec![QUEUED, None], (0, 0)));
}

#[test]
fn a_stream_of_jobs_keeps_its_order() {
    let mut nodes = Nodes::new(2);
    let all: Vec<JobId> = (0..40).map(|_| nodes.add(0, once("q", "")).unwrap()).collect();
    let mut came = Vec::new();
    while came.len() < all.len() {
        let ticket = nodes.scenes[1].ticket();
        let ask = crate::home::testing::take(&["q"], 5, Manner::Deliver, Patience::Jobs);
        match nodes.scenes[1].request_as(ticket, crate::commands::Request::Take(ask)) {
            crate::message::Answer::Jobs(jobs) => came.extend(jobs.iter().map(|job| job.handed.id)),
            _ => {
                nodes.pass(20);
                came.extend(got(&mut nodes, 1, ticket));
            }
        }
    }
    assert_eq!(came, all);
}

#[test]
fn a_node_that_leaves_gives_away_what_is_handed_out_once() {
    let mut nodes = Nodes::new(3);
    let queued = nodes.add(0, once("q", "queued")).unwrap();
    let delayed = nodes
        .add(
            0,
            AddJob {
                delay_s: 20,
                ..once("q", "delayed")
            },
        )
        .unwrap();
    let taken_out = nodes.add(0, once("q", "taken out")).unwrap();
    nodes.ids(0, IdVerb::Dequeue, taken_out);
    let closed = nodes.add(0, once("closed", "closed")).unwrap();
    nodes.scenes[0].pause("closed", false, true);
    let spent = nodes.add(0, once("spent", "")).unwrap();
    assert_eq!(nodes.scenes[0].get_one("spent").handed.id, spent);
    nodes.leaving = Some(0);
    let all: Vec<(usize, u64)> = (0..3).map(|node| (node, 1)).collect();
    (0..3).for_each(|node| nodes.publish(node, &all));
    nodes.pass(1_000);
    let during = nodes.add(0, once("q", "during")).unwrap();
    nodes.pass(1_000);
    assert_eq!(
        nodes.states(spent),
        [ACTIVE, None, None],
        "its reply may come back"
    );
    for (id, state) in [
        (queued, QUEUED),
        (delayed, ACTIVE),
        (taken_out, ACTIVE),
        (closed, QUEUED),
        (during, QUEUED),
    ] {
        let states = nodes.states(id);
        assert_eq!(states[0], None);
        assert_eq!(states.iter().flatten().collect::<Vec<_>>(), [&state.unwrap()]);
    }
    nodes.pass(5_000);
    assert_eq!(nodes.scenes[0].home.gauges().jobs, 0);
    nodes.pass(14_000);
    assert!(nodes.states(delayed).contains(&QUEUED), "in its own time");
    assert!(nodes.states(taken_out).contains(&ACTIVE), "when it is asked for");
    assert_eq!(open(&nodes), (0, 0));
}

#[test]
fn too_little_memory_sends_nothing_away() {
    use crate::memory::Memory;
    let (mut nodes, id, _) = one_way();
    nodes.scenes[1].home.memory = Memory::new(0);
    let offer = BusMessage::TransferOffer {
        id,
        hop: 1,
        body_bytes: 64 << 20,
        queue: "q".into(),
    };
    nodes.scenes[0].settle();
    let now = nodes.scenes[1].now;
    nodes.scenes[1].home.bus(now, number(0, 1), 1, offer);
    let mut said = Vec::new();
    nodes.scenes[1].home.peers.take_outbox(&mut said);
    let why = Refusal::Memory;
    assert!(said.contains(&BusMessage::Refused { id, why }), "{said:?}");
}
