//! PAUSE with BCAST: all nodes have the state, also those that were away; the newest state stays.

use super::cluster::{Nodes, QUEUED, copies, id_of};
use crate::bus::message::RemoteRequest;
use crate::bus::{BusMessage, PeerNo};
use crate::commands::view::PauseState;
use crate::commands::{Pause, Request};
use crate::home::testing::job;
use crate::limits::{PAUSES_OPEN, PAUSES_STEP};
use crate::message::{Answer, SessionId, Ticket};
use crate::wire::Blob;

const NONE: PauseState = state(false, false);
const IN: PauseState = state(true, false);
const OUT: PauseState = state(false, true);
const ALL: PauseState = state(true, true);

const fn state(input: bool, output: bool) -> PauseState {
    PauseState { input, output }
}

fn pause(queue: &str, state: PauseState, broadcast: bool) -> Request {
    Request::Pause(Pause {
        queue: Blob::from(queue),
        state: Some(state),
        broadcast,
    })
}

fn paused(answer: Option<Answer>) -> PauseState {
    match answer {
        Some(Answer::Pause(state)) => state,
        other => panic!("not paused: {other:?}"),
    }
}

fn states(nodes: &Nodes, queue: &str) -> Vec<PauseState> {
    let of = nodes.scenes.iter().map(|scene| {
        let key = scene.home.find_queue(queue.as_bytes());
        key.map_or(NONE, |key| scene.home.queue(key).pause)
    });
    of.collect()
}

#[test]
fn all_nodes_have_it_when_it_is_answered() {
    let mut nodes = Nodes::new(3);
    let ticket = nodes.begin(1, pause("q", IN, true));
    assert!(nodes.late(1, ticket).is_none());
    nodes.settle();
    assert_eq!(states(&nodes, "q"), [IN; 3]);
    assert_eq!(paused(nodes.late(1, ticket)), IN);
    assert!(nodes.add(2, copies("q", 1)).is_err());
    assert_eq!(paused(nodes.ask(2, pause("q", NONE, true))), NONE);
    assert_eq!(states(&nodes, "q"), [NONE; 3]);
    nodes.add(0, copies("q", 1)).unwrap();
}

#[test]
fn without_bcast_it_is_this_nodes_own() {
    let mut nodes = Nodes::new(2);
    assert_eq!(paused(nodes.ask(0, pause("q", OUT, false))), OUT);
    nodes.cut(0, 1, true);
    nodes.cut(0, 1, false);
    nodes.settle();
    assert_eq!(states(&nodes, "q"), [OUT, NONE]);
    assert_eq!(paused(nodes.ask(1, pause("q", IN, true))), IN);
    // The version of node 1 was the first: the state of node 0 is as new, and by its node the lower one.
    assert_eq!(states(&nodes, "q"), [IN, IN]);
    assert_eq!(paused(nodes.ask(0, pause("q", OUT, false))), OUT);
    assert_eq!(states(&nodes, "q"), [OUT, IN]);
}

#[test]
fn a_copy_is_no_entry() {
    let mut nodes = Nodes::new(2);
    nodes.ask(1, pause("q", ALL, false));
    let id = nodes.add(0, copies("q", 2)).unwrap();
    assert_eq!(nodes.states(id)[0], QUEUED);
    assert!(nodes.states(id)[1].is_some());
}

#[test]
fn who_did_not_answer_is_named_and_learns_of_it_later() {
    let mut nodes = Nodes::new(3);
    nodes.cut.push((0, 2));
    let ticket = nodes.begin(0, pause("q", IN, true));
    nodes.pass(14_900);
    assert!(nodes.late(0, ticket).is_none());
    nodes.pass(200);
    match nodes.late(0, ticket) {
        Some(Answer::Error(error)) => {
            let expected = format!("ERR paused here; no answer from {}", id_of(2));
            assert_eq!(error.to_string(), expected);
        }
        other => panic!("{other:?}"),
    }
    assert_eq!(states(&nodes, "q"), [IN, IN, NONE]);
    nodes.pass(1_000);
    nodes.cut.clear();
    nodes.pass(300);
    assert_eq!(states(&nodes, "q"), [IN; 3]);
}

#[test]
fn a_node_that_was_away_learns_what_it_missed() {
    let mut nodes = Nodes::new(3);
    let many = 2 * PAUSES_STEP + 10;
    let name = |number: usize| format!("q{number}");
    nodes.ask(2, pause("was closed", ALL, true));
    nodes.cut(0, 2, true);
    nodes.cut(1, 2, true);
    for number in 0..many {
        nodes.ask(0, pause(&name(number), IN, true));
        nodes.ask(1, pause(&format!("own{number}"), IN, false));
    }
    nodes.ask(1, pause("was closed", NONE, true));
    // It is forgotten that the queue was ever there.
    (0..2).for_each(|node| nodes.scenes[node].pass(700_000));
    assert_eq!(nodes.scenes[1].home.find_queue(b"was closed"), None);
    assert_eq!(states(&nodes, "was closed"), [NONE, NONE, ALL]);
    // Some of what it is told is lost.
    nodes.cut(0, 2, false);
    nodes.cut(1, 2, false);
    nodes.cut.push((2, 0));
    nodes.settle();
    nodes.cut.clear();
    nodes.pass(1_000);
    assert_eq!(states(&nodes, "was closed"), [NONE; 3]);
    for number in 0..many {
        assert_eq!(states(&nodes, &name(number)), [IN; 3]);
        assert_eq!(states(&nodes, &format!("own{number}")), [NONE, IN, NONE]);
    }
    let idle = |nodes: &Nodes| {
        nodes
            .scenes
            .iter()
            .all(|scene| scene.home.remote.deadline().is_none())
    };
    assert!(idle(&nodes), "nothing is asked for ever");
}

#[test]
fn of_two_at_once_all_keep_the_same() {
    for (first, second) in [(IN, OUT), (OUT, IN), (ALL, NONE), (NONE, ALL)] {
        let mut nodes = Nodes::new(4);
        nodes.ask(3, pause("q", ALL, true));
        let tickets = [
            (0, nodes.begin(0, pause("q", first, true))),
            (2, nodes.begin(2, pause("q", second, true))),
        ];
        nodes.settle();
        let kept = states(&nodes, "q");
        assert!(kept.iter().all(|state| *state == kept[0]), "{kept:?}");
        for (node, ticket) in tickets {
            assert!(matches!(nodes.late(node, ticket), Some(Answer::Pause(_))));
        }
    }
}

#[test]
fn a_waiting_job_enters_when_another_node_opens_its_queue() {
    let mut nodes = Nodes::new(2);
    nodes.ask(1, pause("q", OUT, true));
    let ticket = nodes.scenes[0].wait(
        &["q"],
        1,
        crate::message::Manner::Deliver,
        crate::message::Patience::Jobs,
    );
    nodes.add(0, job("q", "")).unwrap();
    nodes.settle();
    assert!(nodes.scenes[0].late(ticket).is_empty());
    nodes.ask(1, pause("q", NONE, true));
    assert_eq!(nodes.scenes[0].late_jobs(ticket).len(), 1);
}

#[test]
fn versions_of_opened_queues_are_bounded_and_flushed() {
    let mut nodes = Nodes::new(2);
    let used = nodes.scenes[0].home.memory.used();
    for number in 0..PAUSES_OPEN + 10 {
        let ticket = nodes.scenes[0].ticket();
        let now = nodes.scenes[0].now;
        let name = format!("a queue with a name so long that it has a place of its own: {number}");
        let answer = nodes.scenes[0]
            .home
            .request(now, ticket, pause(&name, NONE, false));
        assert!(matches!(answer, Answer::Pause(NONE)));
    }
    let now = nodes.scenes[0].now;
    let home = &mut nodes.scenes[0].home;
    assert_eq!(home.pauses.opened().count(), PAUSES_OPEN);
    assert!(home.pauses.bytes() > PAUSES_OPEN as u64 * 60);
    home.flush(now);
    assert_eq!(nodes.scenes[0].home.pauses.opened().count(), 0);
    nodes.scenes[0].check();
    assert_eq!(nodes.scenes[0].home.memory.used(), used);
}

#[test]
fn the_highest_version_of_a_hostile_node_stops_nobody() {
    let mut nodes = Nodes::new(2);
    let session = SessionId {
        index: 0,
        generation: 0,
    };
    let ticket = Ticket {
        shard: 0,
        session,
        request: 0,
    };
    for version in [u64::MAX, 0, u64::MAX - 1] {
        let request = RemoteRequest::Pause {
            queue: Blob::from("q"),
            pause: IN,
            version,
        };
        nodes.deliver(1, 0, BusMessage::Ask { ticket, request });
    }
    assert_eq!(states(&nodes, "q")[0], IN);
    assert_eq!(paused(nodes.ask(0, pause("q", ALL, true))), ALL);
    assert_eq!(paused(nodes.ask(0, pause("q", NONE, true))), NONE);
    assert_eq!(nodes.scenes[0].home.peers.peer(PeerNo(0)).id, id_of(1));
}
