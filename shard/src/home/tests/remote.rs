//! Commands about what other nodes have: asked for one after the other, or all at once; answers lost, doubled, late, or never.

use super::cluster::{ACTIVE, Nodes, QUEUED, copies, id_of, number};
use super::journal::Logged;
use crate::bus::message::{RemoteAnswer, RemoteRequest};
use crate::bus::{BusMessage, PeerNo};
use crate::commands::view::Said;
use crate::commands::{IdVerb, Request};
use crate::error::CommandError;
use crate::home::testing::{job, once};
use crate::id::{JobId, NodeId};
use crate::limits::{DUMMY_ACKS, REMOTE_ANSWERS, REMOTE_WORKS};
use crate::log::AppendFsync;
use crate::message::{Answer, SessionId, Ticket};
use crate::slot::Slot;
use crate::wire::Blob;

fn about(verb: IdVerb, ids: &[JobId]) -> Request {
    let ids = ids.iter().copied().collect();
    Request::Ids { verb, ids }
}

/// A job at node 0 that a consumer there has.
fn handed_out(nodes: &mut Nodes) -> JobId {
    let id = nodes.add(0, copies("q", 1)).unwrap();
    assert_eq!(nodes.scenes[0].get_one("q").handed.id, id);
    id
}

/// An ID that this node made, of a job that is nowhere.
fn unheard(node: NodeId, chance: u8) -> JobId {
    JobId::new(node, Slot::of_queue(b"q"), [chance; 18], 600, true)
}

fn entered(answer: Option<Answer>) -> (i64, i64) {
    match answer {
        Some(Answer::Entered { counted, paused }) => (counted, paused),
        other => panic!("not entered: {other:?}"),
    }
}

fn error(answer: Option<Answer>) -> String {
    match answer {
        Some(Answer::Error(error)) => error.to_string(),
        other => panic!("no error: {other:?}"),
    }
}

/// Nothing is left over of what was asked.
fn assert_quiet(nodes: &Nodes) {
    for scene in &nodes.scenes {
        assert_eq!(scene.home.remote.tickets().count(), 0);
        assert_eq!(scene.home.remote.deadline(), None);
    }
}

#[test]
fn the_node_of_the_prefix_is_asked_first_and_does_it() {
    let mut nodes = Nodes::new(3);
    let id = handed_out(&mut nodes);
    let ticket = nodes.begin(2, about(IdVerb::Nack, &[id]));
    let mut batch = Vec::new();
    let link = nodes.scenes[2].home.peers.take_outbox(&mut batch).unwrap();
    assert_eq!(link.0, u32::from(number(0, 2).0), "nobody else is asked");
    assert_eq!(batch.len(), 1);
    nodes.deliver(2, 0, batch.remove(0));
    nodes.settle();
    assert_eq!(entered(nodes.late(2, ticket)), (1, 0));
    assert_eq!(nodes.states(id), [QUEUED, None, None]);
    let shown = match nodes.ask(1, Request::Show(id)) {
        Some(Answer::Job(Some(job))) => job,
        other => panic!("{other:?}"),
    };
    assert_eq!((shown.id, shown.nacks), (id, 1));
    assert!(matches!(
        nodes.ask(1, about(IdVerb::Dequeue, &[id])),
        Some(Answer::Count(1))
    ));
    assert_eq!(nodes.states(id), [ACTIVE, None, None]);
    assert_eq!(entered(nodes.ask(1, about(IdVerb::Enqueue, &[id]))), (1, 0));
    assert_eq!(nodes.states(id), [QUEUED, None, None]);
    assert!(matches!(
        nodes.ask(2, Request::Working(id)),
        Some(Answer::Count(10))
    ));
    assert_eq!(nodes.states(id), [ACTIVE, None, None]);
    nodes.scenes[0].leap(600_000);
    let error = error(nodes.ask(2, Request::Working(id)));
    assert_eq!(error, CommandError::TooLate.to_string());
    assert_quiet(&nodes);
}

#[test]
fn the_others_are_asked_one_after_the_other() {
    let mut nodes = Nodes::new(4);
    // Its maker has given it away: nodes 1 and 2 do not have it.
    let id = nodes.add(0, copies("q", 4)).unwrap();
    for node in 0..3 {
        assert!(matches!(
            nodes.ask(node, about(IdVerb::Delete, &[id])),
            Some(Answer::Count(1))
        ));
    }
    assert_eq!(nodes.states(id), [None, None, None, ACTIVE]);
    assert_eq!(entered(nodes.ask(1, about(IdVerb::Enqueue, &[id]))), (1, 0));
    assert_eq!(nodes.states(id), [None, None, None, QUEUED]);
    let asked = &nodes.scenes[1].home.counters;
    assert_eq!((asked.asked_elsewhere, asked.asked_again), (1, 0));
    assert_quiet(&nodes);
}

#[test]
fn held_nowhere_it_is_answered_as_ever() {
    let mut nodes = Nodes::new(3);
    for id in [
        unheard(id_of(0), 1),
        unheard(id_of(2), 1),
        unheard(NodeId::from_bytes([9; 20]), 1),
    ] {
        assert_eq!(entered(nodes.ask(0, about(IdVerb::Nack, &[id]))), (0, 0));
        assert!(matches!(
            nodes.ask(0, about(IdVerb::Dequeue, &[id])),
            Some(Answer::Count(0))
        ));
        assert!(matches!(nodes.ask(0, Request::Show(id)), Some(Answer::Job(None))));
        assert_eq!(
            error(nodes.ask(0, Request::Working(id))),
            CommandError::NoJob.to_string()
        );
    }
    assert_quiet(&nodes);
}

#[test]
fn what_is_here_is_done_at_once_and_the_counts_are_added() {
    let mut nodes = Nodes::new(3);
    let here = handed_out(&mut nodes);
    let there: Vec<JobId> = (1..3)
        .map(|node| nodes.add(node, job("q", "")).unwrap())
        .collect();
    for node in 1..3 {
        nodes.scenes[node].get_one("q");
    }
    let closed = nodes.add(2, job("closed", "")).unwrap();
    nodes.scenes[2].get_one("closed");
    nodes.scenes[2].pause("closed", true, false);
    let nowhere = unheard(id_of(1), 4);
    let ids = [there[0], here, nowhere, closed, there[1], there[1]];
    let ticket = nodes.begin(0, about(IdVerb::Nack, &ids));
    assert_eq!(nodes.states(here)[0], QUEUED);
    nodes.settle();
    assert_eq!(entered(nodes.late(0, ticket)), (3, 1));
    assert_quiet(&nodes);
}

#[test]
fn a_lost_question_and_a_lost_answer_are_made_good_and_nothing_is_done_twice() {
    for lost in [(1, 0), (0, 1)] {
        let mut nodes = Nodes::new(2);
        let id = handed_out(&mut nodes);
        nodes.cut.push(lost);
        let ticket = nodes.begin(1, about(IdVerb::Nack, &[id]));
        nodes.settle();
        assert!(nodes.late(1, ticket).is_none());
        assert_eq!(nodes.states(id)[0] == QUEUED, lost == (0, 1));
        if lost == (0, 1) {
            // It goes on its way before the question comes again: a second NACK would bring it back.
            nodes.scenes[0].get_one("q");
        }
        nodes.cut.clear();
        nodes.pass(250);
        assert_eq!(entered(nodes.late(1, ticket)), (1, 0));
        assert_eq!(nodes.states(id)[0], if lost == (0, 1) { ACTIVE } else { QUEUED });
        assert_eq!(nodes.scenes[0].show(id).unwrap().nacks, 1);
        assert_eq!(nodes.scenes[0].home.counters.nacked, 1);
        assert_quiet(&nodes);
    }
}

#[test]
fn a_doubled_question_and_a_doubled_answer_count_once() {
    let mut nodes = Nodes::new(2);
    let id = handed_out(&mut nodes);
    let ticket = nodes.begin(1, about(IdVerb::Nack, &[id]));
    let take = |nodes: &mut Nodes, from: usize| {
        let mut batch = Vec::new();
        nodes.scenes[from].home.peers.take_outbox(&mut batch);
        assert_eq!(batch.len(), 1);
        batch.remove(0)
    };
    let ask = take(&mut nodes, 1);
    nodes.deliver(1, 0, ask.clone());
    let told = take(&mut nodes, 0);
    nodes.scenes[0].get_one("q");
    nodes.deliver(1, 0, ask);
    assert_eq!(take(&mut nodes, 0), told, "the answer is the same");
    nodes.deliver(0, 1, told.clone());
    nodes.deliver(0, 1, told);
    assert_eq!(entered(nodes.late(1, ticket)), (1, 0));
    assert_eq!(nodes.states(id)[0], ACTIVE);
    assert_quiet(&nodes);
}

#[test]
fn a_node_that_does_not_answer_is_named() {
    let mut nodes = Nodes::new(3);
    let id = handed_out(&mut nodes);
    nodes.cut.extend([(0, 1), (1, 0)]);
    for request in [
        about(IdVerb::Nack, &[id]),
        Request::Show(id),
        Request::Working(id),
    ] {
        let ticket = nodes.begin(1, request);
        nodes.pass(14_900);
        assert!(nodes.late(1, ticket).is_none(), "it has its time");
        nodes.pass(300);
        assert_eq!(
            error(nodes.late(1, ticket)),
            format!(
                "ERR not held by the nodes that answered; no answer from {}",
                id_of(0)
            )
        );
    }
    // Held by another one, its silence does not matter.
    let id = nodes.add(2, job("q", "")).unwrap();
    let gone = JobId::from_bytes({
        let mut bytes = *id.as_bytes();
        bytes[..4].copy_from_slice(&[1; 4]);
        bytes
    });
    assert_ne!(id, gone);
    nodes.scenes[1].home.node_timeout_ms = 1_000;
    let ticket = nodes.begin(1, about(IdVerb::Nack, &[gone, id]));
    nodes.pass(1_100);
    assert!(error(nodes.late(1, ticket)).contains(&id_of(0).to_string()));
    let ticket = nodes.begin(1, Request::Show(id));
    nodes.settle();
    assert!(matches!(nodes.late(1, ticket), Some(Answer::Job(Some(_)))));
    assert_quiet(&nodes);
}

#[test]
fn a_link_that_falls_ends_the_waiting() {
    let mut nodes = Nodes::new(3);
    let id = nodes.add(0, copies("q", 2)).unwrap();
    let holder = (1..3).find(|&node| nodes.states(id)[node].is_some()).unwrap();
    let asker = 3 - holder;
    nodes.cut.push((asker, 0));
    let ticket = nodes.begin(asker, about(IdVerb::Enqueue, &[id]));
    nodes.settle();
    assert!(nodes.late(asker, ticket).is_none());
    nodes.cut(0, asker, true);
    nodes.settle();
    assert_eq!(
        entered(nodes.late(asker, ticket)),
        (1, 0),
        "the other holder did it"
    );
    let elsewhere = unheard(id_of(0), 7);
    assert_eq!(
        entered(nodes.ask(asker, about(IdVerb::Nack, &[elsewhere]))),
        (0, 0),
        "it is not asked"
    );
    assert_quiet(&nodes);
}

#[test]
fn an_answer_of_an_earlier_round_or_of_another_node_is_none() {
    let mut nodes = Nodes::new(3);
    let id = unheard(id_of(0), 3);
    nodes.cut.push((0, 1));
    let ticket = nodes.begin(1, about(IdVerb::Nack, &[id]));
    let mut batch = Vec::new();
    nodes.scenes[1].home.peers.take_outbox(&mut batch);
    let BusMessage::Ask { ticket: asked, .. } = batch[0].clone() else {
        panic!("{batch:?}");
    };
    let held = |held: Vec<bool>, counted| BusMessage::Told {
        ticket: asked,
        answer: RemoteAnswer::Ids {
            held,
            counted,
            paused: 0,
        },
    };
    nodes.deliver(2, 1, held(vec![true], 1));
    for wrong in [
        held(vec![true, true], 1),
        held(vec![true], 2),
        held(vec![false], 1),
    ] {
        nodes.cut.clear();
        nodes.deliver(0, 1, wrong);
    }
    for other in [
        RemoteAnswer::NotHere,
        RemoteAnswer::Count(1),
        RemoteAnswer::Job(None),
        RemoteAnswer::Queue(None),
    ] {
        let ticket = asked;
        nodes.deliver(
            0,
            1,
            BusMessage::Told {
                ticket,
                answer: other,
            },
        );
    }
    assert!(nodes.late(1, ticket).is_none());
    nodes.deliver(0, 1, held(vec![false], 0));
    assert!(nodes.late(1, ticket).is_none(), "node 2 is asked now");
    nodes.deliver(0, 1, held(vec![true], 1));
    assert!(nodes.late(1, ticket).is_none());
    nodes.settle();
    assert_eq!(entered(nodes.late(1, ticket)), (0, 0));
    nodes.deliver(0, 1, held(vec![true], 1));
    for (index, generation) in [(u32::MAX, 0), (0, 0), (7, 7)] {
        let session = SessionId { index, generation };
        let ticket = Ticket { session, ..asked };
        let answer = RemoteAnswer::NotHere;
        nodes.deliver(0, 1, BusMessage::Told { ticket, answer });
    }
}

#[test]
fn nobody_is_made_to_do_what_nodes_do_not_ask_for() {
    let mut nodes = Nodes::new(2);
    let id = nodes.add(0, job("q", "")).unwrap();
    let session = SessionId {
        index: 1,
        generation: 1,
    };
    let ticket = Ticket {
        shard: 0,
        session,
        request: 0,
    };
    for verb in [
        IdVerb::Acknowledge,
        IdVerb::FastAcknowledge,
        IdVerb::DeleteEverywhere,
    ] {
        let request = RemoteRequest::Ids { verb, ids: vec![id] };
        nodes.deliver(1, 0, BusMessage::Ask { ticket, request });
    }
    nodes.settle();
    assert_eq!(nodes.states(id)[0], QUEUED);
}

#[test]
fn a_client_that_is_gone_is_forgotten() {
    let mut nodes = Nodes::new(3);
    let id = handed_out(&mut nodes);
    nodes.cut.push((1, 0));
    let ticket = nodes.begin(1, about(IdVerb::Nack, &[id]));
    nodes.settle();
    nodes.scenes[1].cancel(ticket);
    assert_quiet(&nodes);
    assert!(matches!(nodes.late(1, ticket), Some(Answer::Nothing)));
    nodes.cut.clear();
    nodes.pass(1_000);
    assert_eq!(nodes.states(id)[0], ACTIVE, "nobody asks again");
}

#[test]
fn what_its_session_asks_next_waits_behind_it() {
    let mut nodes = Nodes::new(2);
    let id = handed_out(&mut nodes);
    let first = nodes.begin(1, about(IdVerb::Nack, &[id]));
    let second = Ticket {
        request: first.request + 1,
        ..first
    };
    let length = Request::Lengths(Blob::from("q"));
    assert!(matches!(
        nodes.scenes[1].request_as(second, length),
        Answer::Waiting
    ));
    nodes.settle();
    assert_eq!(entered(nodes.late(1, first)), (1, 0));
    let lengths = nodes.late(1, second);
    assert!(
        matches!(&lengths, Some(Answer::Nodes(nodes)) if nodes[1].1 == Said::Count(1)),
        "{lengths:?}"
    );
    assert_quiet(&nodes);
}

#[test]
fn beyond_what_can_wait_only_what_is_here_counts() {
    let mut nodes = Nodes::new(2);
    let id = handed_out(&mut nodes);
    nodes.cut.push((1, 0));
    let waiting: Vec<Ticket> = (0..REMOTE_WORKS)
        .map(|_| {
            let ticket = nodes.scenes[1].ticket();
            let now = nodes.scenes[1].now;
            let answer = nodes.scenes[1].home.request(now, ticket, Request::Show(id));
            assert!(matches!(answer, Answer::Waiting));
            ticket
        })
        .collect();
    let ticket = nodes.begin(1, about(IdVerb::Nack, &[id]));
    assert_eq!(entered(nodes.late(1, ticket)), (0, 0));
    nodes.scenes[1].cancel(waiting[0]);
    let ticket = nodes.begin(1, about(IdVerb::Nack, &[id]));
    assert!(nodes.late(1, ticket).is_none());
}

#[test]
fn a_node_remembers_so_many_answers() {
    let mut nodes = Nodes::new(2);
    let ids = [unheard(id_of(0), 1)];
    let asker = PeerNo(0);
    for index in 0..REMOTE_ANSWERS as u32 + 10 {
        let session = SessionId { index, generation: 1 };
        let ticket = Ticket {
            shard: 0,
            session,
            request: 0,
        };
        let verb = IdVerb::Nack;
        let request = RemoteRequest::Ids {
            verb,
            ids: ids.to_vec(),
        };
        let now = nodes.scenes[0].now;
        let message = BusMessage::Ask { ticket, request };
        nodes.scenes[0].home.bus(now, asker, 1, message);
    }
    nodes.scenes[0].check();
}

fn said(answer: Option<Answer>) -> Vec<(NodeId, Said)> {
    match answer {
        Some(Answer::Nodes(nodes)) => nodes,
        other => panic!("not nodes: {other:?}"),
    }
}

#[test]
fn lengths_and_figures_of_all_nodes() {
    let mut nodes = Nodes::new(3);
    for (node, many) in [(0, 2), (2, 1)] {
        for _ in 0..many {
            nodes.add(node, job("q", "")).unwrap();
        }
    }
    let lengths = said(nodes.ask(1, Request::Lengths(Blob::from("q"))));
    let expected = [(1, 0), (0, 2), (2, 1)].map(|(node, count)| (id_of(node), Said::Count(count)));
    assert_eq!(lengths, expected, "this node first");
    let figures = said(nodes.ask(1, Request::Stats(Blob::from("q"))));
    let lengths = figures.iter().map(|(node, said)| match said {
        Said::Queue(queue) => (*node, queue.as_ref().map(|queue| queue.length)),
        other => panic!("{other:?}"),
    });
    let expected = [(1, None), (0, Some(2)), (2, Some(1))].map(|(node, length)| (id_of(node), length));
    assert_eq!(lengths.collect::<Vec<_>>(), expected);

    nodes.cut.push((2, 1));
    let ticket = nodes.begin(1, Request::Lengths(Blob::from("q")));
    nodes.pass(15_100);
    let lengths = said(nodes.late(1, ticket));
    assert_eq!(lengths[2], (id_of(2), Said::Nothing));
    assert_eq!(lengths[1], (id_of(0), Said::Count(2)));
    nodes.cut(1, 2, true);
    let lengths = said(nodes.ask(1, Request::Lengths(Blob::from("q"))));
    assert_eq!(lengths[2], (id_of(2), Said::Nothing), "at once, without a link");
    assert_quiet(&nodes);
}

#[test]
fn a_node_alone_answers_for_itself() {
    let mut nodes = Nodes::new(1);
    nodes.add(0, job("q", "")).unwrap();
    let id = nodes.add(0, job("q", "")).unwrap();
    let only = |count| vec![(id_of(0), Said::Count(count))];
    assert_eq!(said(nodes.ask(0, Request::Lengths(Blob::from("q")))), only(2));
    assert_eq!(
        said(nodes.ask(0, about(IdVerb::DeleteEverywhere, &[id]))),
        only(1)
    );
    nodes.ids(0, IdVerb::Acknowledge, unheard(id_of(0), 1));
    assert_eq!(nodes.acks(), 0);
}

#[test]
fn jobs_are_deleted_everywhere() {
    let mut nodes = Nodes::new(3);
    let ids: Vec<JobId> = ["q", "other"]
        .iter()
        .map(|queue| nodes.add(0, copies(queue, 3)).unwrap())
        .collect();
    let alone = nodes.add(2, once("q", "")).unwrap();
    let all = [ids[0], ids[1], alone, ids[0], unheard(id_of(1), 1)];
    let ticket = nodes.begin(1, about(IdVerb::DeleteEverywhere, &all));
    nodes.cut.push((1, 2));
    nodes.settle();
    nodes.cut.clear();
    nodes.pass(300);
    let counts = [(1, 2), (0, 2), (2, 3)].map(|(node, count)| (id_of(node), Said::Count(count)));
    assert_eq!(said(nodes.late(1, ticket)), counts);
    assert!(nodes.scenes.iter().all(|scene| scene.home.gauges().jobs == 0));
    assert_quiet(&nodes);
}

#[test]
fn an_acknowledgement_of_an_unknown_job_finds_its_holders() {
    for copies_made in 1..=3 {
        for acker in 0..4 {
            let mut nodes = Nodes::new(4);
            let id = nodes.add(0, copies("q", copies_made)).unwrap();
            let was_known = nodes.states(id)[acker].is_some();
            let counted = nodes.ids(acker, IdVerb::Acknowledge, id);
            assert!(matches!(counted, Answer::Count(count) if count == i64::from(was_known)));
            nodes.settle();
            assert_eq!(
                (nodes.states(id), nodes.acks()),
                (vec![None; 4], 0),
                "{copies_made} {acker}"
            );
        }
    }
}

#[test]
fn an_acknowledgement_waits_for_all_nodes_until_it_is_known_to_be_in_vain() {
    let mut nodes = Nodes::new(3);
    nodes.cut(1, 2, true);
    let id = unheard(id_of(0), 2);
    nodes.ids(1, IdVerb::Acknowledge, id);
    nodes.ids(1, IdVerb::Acknowledge, id);
    nodes.ids(0, IdVerb::Acknowledge, id);
    nodes.pass(3_000);
    assert_eq!(nodes.acks(), 1, "node 2 has not said so to node 1");
    nodes.cut(1, 2, false);
    nodes.pass(100);
    assert_eq!(nodes.acks(), 0);
}

#[test]
fn two_that_know_nothing_and_a_holder_come_to_an_end() {
    for holder in 0..4 {
        let mut nodes = Nodes::new(4);
        let id = nodes.add(holder, copies("q", 1)).unwrap();
        let ackers: Vec<usize> = (0..4).filter(|&node| node != holder).collect();
        for &acker in &ackers {
            nodes.cut.extend([(acker, holder), (holder, acker)]);
            nodes.ids(acker, IdVerb::Acknowledge, id);
        }
        nodes.pass(2_000);
        assert_eq!((nodes.states(id)[holder], nodes.acks()), (QUEUED, 3));
        nodes.cut.clear();
        nodes.pass(10_000);
        assert_eq!((nodes.states(id), nodes.acks()), (vec![None; 4], 0));
    }
}

#[test]
fn only_plausible_ids_are_remembered_and_not_too_many() {
    let mut nodes = Nodes::new(2);
    nodes.cut(0, 1, true);
    let once = JobId::new(id_of(1), Slot::of_queue(b"q"), [1; 18], 600, false);
    let foreign = unheard(NodeId::from_bytes([77; 20]), 1);
    for id in [once, foreign] {
        nodes.ids(0, IdVerb::Acknowledge, id);
    }
    assert_eq!(nodes.acks(), 0);
    let now = nodes.scenes[0].now.mono();
    let home = &mut nodes.scenes[0].home;
    for number in 0..DUMMY_ACKS as u32 + 5 {
        let mut chance = [0; 18];
        chance[4..8].copy_from_slice(&number.to_be_bytes());
        let id = JobId::new(id_of(1), Slot::of_queue(b"q"), chance, 600, true);
        home.acknowledge_unknown(now, id);
    }
    assert_eq!(home.gauges().acked as usize, DUMMY_ACKS);
    assert_eq!(home.counters.dummies_refused, 5);
    nodes.pass(100);
    nodes.scenes[0].pass(13 * 60 * 1000);
    assert_eq!(nodes.acks(), 0, "their jobs' lives are over");
}

#[test]
fn a_fast_acknowledgement_of_an_unknown_job_goes_to_all_once() {
    let mut nodes = Nodes::new(3);
    let ids: Vec<JobId> = (0..5).map(|_| nodes.add(0, copies("q", 1)).unwrap()).collect();
    assert!(matches!(
        nodes.ask(1, about(IdVerb::FastAcknowledge, &ids)),
        Some(Answer::Count(0))
    ));
    assert_eq!((nodes.scenes[0].home.gauges().jobs, nodes.acks()), (0, 0));
    let ticket = nodes.begin(1, about(IdVerb::FastAcknowledge, &ids));
    assert!(matches!(nodes.late(1, ticket), Some(Answer::Count(0))));
    let mut batch = Vec::new();
    for _ in 0..2 {
        nodes.scenes[1].home.peers.take_outbox(&mut batch).unwrap();
        assert_eq!(
            std::mem::take(&mut batch),
            [BusMessage::Delete { ids: ids.clone() }]
        );
    }
}

/// A node with a log, that knows one other, and a ticket of that one.
fn logged() -> (Logged, Ticket) {
    let scene = Nodes::new(2).scenes.swap_remove(0);
    let session = SessionId {
        index: 1,
        generation: 1,
    };
    let ticket = Ticket {
        shard: 0,
        session,
        request: 0,
    };
    (Logged::of(scene, AppendFsync::EverySecond), ticket)
}

fn outbox(logged: &mut Logged) -> Vec<BusMessage> {
    logged.scene.check();
    let mut batch = Vec::new();
    logged.scene.home.peers.take_outbox(&mut batch);
    batch
}

#[test]
fn what_another_node_is_told_waits_for_the_log() {
    let (mut logged, ticket) = logged();
    let id = logged.add(job("q", ""));
    logged.scene.get_one("q");
    logged.settle();
    outbox(&mut logged);
    for _ in 0..2 {
        let request = RemoteRequest::Ids {
            verb: IdVerb::Nack,
            ids: vec![id],
        };
        let (now, ask) = (logged.scene.now, BusMessage::Ask { ticket, request });
        logged.scene.home.bus(now, PeerNo(0), 1, ask);
        assert_eq!(logged.scene.home.counters.nacked, 1);
        assert_eq!(outbox(&mut logged), [], "also the second time");
    }
    logged.write();
    let told = outbox(&mut logged);
    assert_eq!(told.len(), 2, "{told:?}");
    let answer = RemoteAnswer::Ids {
        held: vec![true],
        counted: 1,
        paused: 0,
    };
    assert!(told.iter().all(|told| *told
        == BusMessage::Told {
            ticket,
            answer: answer.clone()
        }));
}

#[test]
fn what_is_done_here_waits_for_the_log_though_others_have_answered() {
    for fails in [false, true] {
        let (mut logged, _) = logged();
        let here = logged.add(job("q", ""));
        logged.scene.get_one("q");
        logged.settle();
        outbox(&mut logged);
        let there = unheard(id_of(1), 1);
        let ticket = logged.ask(about(IdVerb::Nack, &[here, there]));
        assert_eq!(outbox(&mut logged), [], "the question waits too");
        if fails {
            logged.fail_write();
            logged.scene.leap(250);
            logged.scene.home.tick(logged.scene.now);
        } else {
            logged.write();
        }
        let asked = outbox(&mut logged);
        let Some(BusMessage::Ask { ticket: question, .. }) = asked.last() else {
            panic!("{asked:?}");
        };
        let told = BusMessage::Told {
            ticket: *question,
            answer: RemoteAnswer::Ids {
                held: vec![true],
                counted: 1,
                paused: 0,
            },
        };
        let now = logged.scene.now;
        logged.scene.home.bus(now, PeerNo(0), 1, told);
        let ended = logged.scene.late(ticket).pop();
        if fails {
            assert!(error(ended).starts_with("MISCONF"));
        } else {
            assert_eq!(entered(ended), (2, 0));
        }
    }
}
