//! Homes of several nodes, tied together by hand: every message arrives at once, unless its link is cut.

use crate::bus::message::Standing;
use std::collections::BTreeSet;

use crate::bus::peers::Link;
use crate::bus::{BusMessage, LinkNo, Peer, PeerNo, PeerState, Topology};
use crate::clock::Now;
use crate::commands::view::JobState;
use crate::commands::{AddJob, IdVerb, Request};
use crate::error::CommandError;
use crate::home::testing::{Scene, job, once, take};
use crate::id::{JobId, NodeId};
use crate::message::{Answer, Manner, Patience, Ticket};

/// Nodes of one shard each. Node n is peer number n for those below it, n - 1 for those above.
pub struct Nodes {
    pub scenes: Vec<Scene>,
    pub cut: Vec<(usize, usize)>,
    pub lost: usize,
    pub leaving: Option<usize>,
}

pub fn id_of(node: usize) -> NodeId {
    NodeId::from_bytes([node as u8 + 1; 20])
}

pub fn number(of: usize, at: usize) -> PeerNo {
    PeerNo(if of < at { of } else { of - 1 } as u16)
}

impl Nodes {
    pub fn new(count: usize) -> Self {
        let scenes = (0..count)
            .map(|node| Scene::of_node(id_of(node), node as u8))
            .collect();
        let mut this = Self {
            scenes,
            cut: Vec::new(),
            lost: 0,
            leaving: None,
        };
        let all: Vec<(usize, u64)> = (0..count).map(|node| (node, 1)).collect();
        (0..count).for_each(|node| this.publish(node, &all));
        this
    }

    /// Tells a node which nodes there are, with their epochs.
    pub fn publish(&mut self, at: usize, all: &[(usize, u64)]) {
        let leaves = self.leaving;
        let peers = all
            .iter()
            .filter(|(node, _)| *node != at)
            .map(|&(node, epoch)| Peer {
                no: number(node, at),
                id: id_of(node),
                epoch,
                bus: (String::new(), 1),
                clients: (String::new(), 1),
                host: node as u64,
                zone: 0,
                state: PeerState::Alive,
                leaving: leaves == Some(node),
                memory_level: 0,
                lost: false,
            });
        let topology = Topology {
            node: id_of(at),
            epoch: all[at].1,
            host: at as u64,
            zone: 0,
            leaving: leaves == Some(at),
            peers: peers.collect(),
        };
        let now = self.scenes[at].now;
        let home = &mut self.scenes[at].home;
        home.peers.update(topology);
        for node in (0..all.len()).filter(|&node| node != at) {
            let no = number(node, at);
            let link = Link {
                no: LinkNo(u32::from(no.0)),
                up: true,
                rtt_us: 500,
            };
            home.peers.set_link(no, Some(link));
        }
        home.topology_changed(now);
    }

    pub fn cut(&mut self, a: usize, b: usize, cut: bool) {
        for (from, to) in [(a, b), (b, a)] {
            self.cut.retain(|link| *link != (from, to));
            if cut {
                self.cut.push((from, to));
            }
            let no = number(to, from);
            let home = &mut self.scenes[from].home;
            let link = home.peers.link(no).unwrap();
            home.peers.set_link(no, Some(Link { up: !cut, ..link }));
            let now = self.scenes[from].now;
            if cut {
                self.scenes[from].home.peer_went(now, no);
            } else {
                self.scenes[from].home.peer_came(now, no);
            }
        }
    }

    /// Delivers what there is, until there is nothing more.
    pub fn settle(&mut self) {
        loop {
            let mut quiet = true;
            for from in 0..self.scenes.len() {
                self.scenes[from].settle();
                let mut batch = Vec::new();
                while let Some(link) = self.scenes[from].home.peers.take_outbox(&mut batch) {
                    quiet = false;
                    let to = link.0 as usize + usize::from(link.0 as usize >= from);
                    for message in batch.drain(..) {
                        self.deliver(from, to, message);
                    }
                }
            }
            if quiet {
                return;
            }
        }
    }

    pub fn deliver(&mut self, from: usize, to: usize, message: BusMessage) {
        if self.cut.contains(&(from, to)) {
            self.lost += 1;
            return;
        }
        let epoch = self.scenes[from].home.peers.epoch;
        let now = self.scenes[to].now;
        self.scenes[to].home.bus(now, number(from, to), epoch, message);
        self.scenes[to].check();
    }

    pub fn pass(&mut self, ms: u64) {
        for _ in 0..ms.div_ceil(10) {
            self.settle();
            self.scenes.iter_mut().for_each(|scene| scene.leap(10));
        }
        self.settle();
    }

    pub fn add(&mut self, node: usize, add: AddJob) -> Result<JobId, CommandError> {
        let ticket = self.scenes[node].ticket();
        let mut answer = self.scenes[node].request_as(ticket, Request::Add(add));
        if matches!(answer, Answer::Waiting) {
            self.settle();
            answer = self.scenes[node].late(ticket).pop().unwrap_or(Answer::Waiting);
        }
        match answer {
            Answer::Id(id) => Ok(id),
            Answer::Error(error) => Err(error),
            other => panic!("{other:?}"),
        }
    }

    pub fn states(&mut self, id: JobId) -> Vec<Option<JobState>> {
        let of = |scene: &mut Scene| {
            let key = scene.home.find_job(scene.now.mono(), &id)?;
            Some(scene.home.job(key).state())
        };
        self.scenes.iter_mut().map(of).collect()
    }

    pub fn ids(&mut self, node: usize, verb: IdVerb, id: JobId) -> Answer {
        let ids = [id].into_iter().collect();
        self.scenes[node].request(Request::Ids { verb, ids })
    }

    pub fn acks(&self) -> usize {
        self.scenes
            .iter()
            .map(|scene| scene.home.gauges().acked as usize)
            .sum()
    }

    /// A request whose answer may come late.
    pub fn ask(&mut self, node: usize, request: Request) -> Option<Answer> {
        let ticket = self.begin(node, request);
        self.settle();
        self.late(node, ticket)
    }

    /// The same, and nothing is delivered yet. An answer that comes at once is taken for a late one.
    pub fn begin(&mut self, node: usize, request: Request) -> Ticket {
        let ticket = self.scenes[node].ticket();
        match self.scenes[node].request_as(ticket, request) {
            Answer::Waiting => {}
            answer => self.scenes[node].said(ticket, answer),
        }
        ticket
    }

    /// How a request ended, if it has.
    pub fn late(&mut self, node: usize, ticket: Ticket) -> Option<Answer> {
        let mut answers = self.scenes[node].late(ticket);
        assert!(answers.len() <= 1, "a request is answered once: {answers:?}");
        answers.pop()
    }

    pub fn restart(&mut self, node: usize) {
        let now = self.scenes[node].now;
        self.scenes[node] = Scene::of_node(id_of(node), 100 + node as u8);
        self.scenes[node].now = Now { ..now };
    }
}

pub fn copies(queue: &str, replicate: u16) -> AddJob {
    AddJob {
        replicate,
        ..job(queue, "body")
    }
}

pub const QUEUED: Option<JobState> = Some(JobState::Queued);
pub const ACTIVE: Option<JobState> = Some(JobState::Active);

#[test]
fn a_job_is_answered_when_its_copies_are_there_and_collected_when_all_know() {
    let mut nodes = Nodes::new(3);
    let id = nodes.add(0, copies("q", 3)).unwrap();
    assert_eq!(nodes.states(id), [QUEUED, ACTIVE, ACTIVE]);
    nodes.pass(30_000);
    assert_eq!(
        nodes.states(id),
        [QUEUED, ACTIVE, ACTIVE],
        "one queued copy in quiet times"
    );
    for acker in 0..3 {
        let id = nodes.add(1, copies("q", 3)).unwrap();
        nodes.ids(acker, IdVerb::Acknowledge, id);
        nodes.settle();
        assert_eq!((nodes.states(id), nodes.acks()), (vec![None; 3], 0));
    }
}

#[test]
fn an_addjob_waits_for_its_copies_and_ends_in_time() {
    let mut nodes = Nodes::new(2);
    nodes.cut.push((1, 0));
    let add = AddJob {
        timeout_ms: 300,
        ..copies("q", 2)
    };
    let ticket = nodes.scenes[0].ticket();
    assert!(matches!(
        nodes.scenes[0].request_as(ticket, Request::Add(add)),
        Answer::Waiting
    ));
    nodes.pass(250);
    assert!(nodes.scenes[0].late(ticket).is_empty());
    assert!(nodes.lost > 2, "copies are sent again and again");
    nodes.pass(100);
    match nodes.scenes[0].late(ticket).pop() {
        Some(Answer::Error(error)) => assert_eq!(error, CommandError::ReplicationTimeout),
        other => panic!("{other:?}"),
    }
    nodes.settle();
    assert!(nodes.scenes.iter().all(|scene| scene.home.gauges().jobs == 0));
}

#[test]
fn a_slow_node_is_passed_by() {
    let mut nodes = Nodes::new(3);
    // Whoever is asked first does not answer.
    let first = {
        let ticket = nodes.scenes[0].ticket();
        nodes.scenes[0].request_as(ticket, Request::Add(copies("q", 2)));
        let mut batch = Vec::new();
        let link = nodes.scenes[0].home.peers.take_outbox(&mut batch).unwrap();
        assert_eq!(batch.len(), 1);
        let first = 1 + link.0 as usize;
        nodes.cut.push((0, first));
        nodes.pass(200);
        assert!(matches!(nodes.scenes[0].late(ticket)[..], [Answer::Id(_)]));
        first
    };
    assert_eq!(nodes.scenes[first].home.gauges().jobs, 0);
    assert_eq!(nodes.scenes[3 - first].home.gauges().jobs, 1);
}

#[test]
fn a_node_that_never_got_its_copy_does_not_hold_up_the_end() {
    for seed in 0..8 {
        let mut nodes = Nodes::new(3);
        for _ in 0..seed {
            nodes.add(0, copies("q", 1)).unwrap();
        }
        let ticket = nodes.begin(0, Request::Add(copies("q", 2)));
        let mut batch = Vec::new();
        nodes.scenes[0].home.peers.take_outbox(&mut batch).unwrap();
        nodes.pass(200);
        let id = match nodes.late(0, ticket) {
            Some(Answer::Id(id)) => id,
            other => panic!("{other:?}"),
        };
        nodes.ids(0, IdVerb::Acknowledge, id);
        nodes.pass(3_000);
        assert_eq!((nodes.states(id), nodes.acks()), (vec![None; 3], 0), "{seed}");
    }
}

#[test]
fn the_lease_is_one_for_all_holders() {
    let mut nodes = Nodes::new(3);
    let id = nodes.add(0, copies("q", 3)).unwrap();
    nodes.pass(5_000);
    assert_eq!(nodes.scenes[0].get(&["q"], 1).len(), 1);
    nodes.pass(9_900);
    assert_eq!(
        nodes.states(id),
        [ACTIVE; 3],
        "the lease runs from the handing out"
    );
    nodes.pass(200);
    assert_eq!(
        nodes.states(id),
        [QUEUED, ACTIVE, ACTIVE],
        "and the deliverer queues it again"
    );
    nodes.pass(60_000);
    assert_eq!(nodes.states(id), [QUEUED, ACTIVE, ACTIVE]);
}

#[test]
fn a_holder_takes_over_when_the_deliverer_dies() {
    let mut nodes = Nodes::new(3);
    let id = nodes.add(0, copies("q", 3)).unwrap();
    nodes.cut(0, 1, true);
    nodes.cut(0, 2, true);
    nodes.pass(14_000);
    let states = nodes.states(id);
    assert_eq!(states[0], QUEUED);
    let queued = states[1..].iter().filter(|state| **state == QUEUED).count();
    assert_eq!(queued, 1, "one of the two others: {states:?}");
    nodes.cut(0, 1, false);
    nodes.cut(0, 2, false);
    nodes.pass(12_000);
    let queued = nodes.states(id).iter().filter(|state| **state == QUEUED).count();
    assert_eq!(queued, 1, "the lower rank keeps it");
}

#[test]
fn an_acknowledgement_waits_for_who_was_away() {
    let mut nodes = Nodes::new(3);
    let id = nodes.add(0, copies("q", 3)).unwrap();
    nodes.cut(0, 2, true);
    nodes.cut(1, 2, true);
    nodes.ids(0, IdVerb::Acknowledge, id);
    nodes.pass(3_000);
    assert_eq!(nodes.states(id), [None, None, ACTIVE]);
    assert_eq!(nodes.acks(), 2);
    nodes.cut(0, 2, false);
    nodes.cut(1, 2, false);
    nodes.pass(100);
    assert_eq!((nodes.states(id), nodes.acks()), (vec![None; 3], 0));
}

/// Simulator of clusters, bad networks, seeds 24 and 204.
#[test]
fn a_node_that_did_not_know_a_job_before_its_copy_came_does_not_end_it() {
    let mut nodes = Nodes::new(2);
    let id = nodes.add(0, copies("q", 2)).unwrap();
    assert_eq!(nodes.scenes[0].get(&["q"], 1).len(), 1);
    let unknown = |counted| BusMessage::Standing {
        id,
        standing: Standing::Unknown { counted },
    };
    nodes.deliver(1, 0, unknown(0));
    assert_eq!(nodes.states(id), [ACTIVE; 2], "asked before it had confirmed");
    nodes.deliver(1, 0, unknown(1));
    assert_eq!(
        nodes.states(id),
        [None, ACTIVE],
        "it had it, and has forgotten it"
    );
}

#[test]
fn a_node_that_forgot_its_jobs_is_replaced() {
    let mut nodes = Nodes::new(4);
    let id = nodes.add(0, copies("q", 3)).unwrap();
    let holder = (1..4).find(|&node| nodes.states(id)[node].is_some()).unwrap();
    nodes.restart(holder);
    let all: Vec<(usize, u64)> = (0..4)
        .map(|node| (node, if node == holder { 2 } else { 1 }))
        .collect();
    for node in 0..4 {
        nodes.publish(node, &all);
        if node != holder {
            let now = nodes.scenes[node].now;
            let no = number(holder, node);
            nodes.scenes[node].home.peer_epoch_changed(now, no);
        }
    }
    nodes.pass(4_000);
    assert_eq!(
        nodes.states(id).iter().flatten().count(),
        2,
        "it may say yet what it has"
    );
    nodes.pass(3_000);
    assert_eq!(nodes.states(id).iter().flatten().count(), 3);
    nodes.ids(0, IdVerb::Acknowledge, id);
    nodes.pass(100);
    assert_eq!((nodes.states(id), nodes.acks()), (vec![None; 4], 0));
}

#[test]
fn a_waiting_consumer_gets_what_is_added_elsewhere() {
    let mut nodes = Nodes::new(3);
    let ticket = nodes.scenes[2].wait(&["q"], 1, Manner::Deliver, Patience::Jobs);
    nodes.settle();
    let id = nodes.add(0, copies("q", 2)).unwrap();
    nodes.settle();
    let jobs = nodes.scenes[2].late_jobs(ticket);
    assert_eq!((jobs.len(), jobs[0].handed.id), (1, id));
    assert_eq!(jobs[0].additional_deliveries, 0);
    nodes.pass(9_000);
    assert!(
        nodes.states(id).iter().all(|state| *state != QUEUED),
        "it is leased"
    );
    nodes.ids(2, IdVerb::Acknowledge, id);
    nodes.settle();
    assert_eq!((nodes.states(id), nodes.acks()), (vec![None; 3], 0));
}

#[test]
fn jobs_that_are_there_go_to_who_begins_to_wait() {
    let mut nodes = Nodes::new(2);
    let ids: Vec<JobId> = (0..10).map(|_| nodes.add(0, copies("q", 1)).unwrap()).collect();
    let mut got = Vec::new();
    for _ in 0..10 {
        let ticket = nodes.scenes[1].ticket();
        let ask = take(&["q"], 1, Manner::Deliver, Patience::Jobs);
        match nodes.scenes[1].request_as(ticket, Request::Take(ask)) {
            Answer::Jobs(jobs) => got.push(jobs[0].handed.id),
            _ => {
                nodes.settle();
                got.push(nodes.scenes[1].late_jobs(ticket)[0].handed.id);
            }
        }
    }
    got.sort_unstable();
    let mut all = ids.clone();
    all.sort_unstable();
    assert_eq!(got, all, "each comes once");
    for id in ids {
        nodes.ids(1, IdVerb::Acknowledge, id);
    }
    nodes.settle();
    assert_eq!(nodes.scenes[0].home.gauges().jobs, 0);
    assert_eq!(nodes.acks(), 0);
}

#[test]
fn a_job_sent_in_vain_is_queued_again() {
    let mut nodes = Nodes::new(2);
    let ticket = nodes.scenes[1].wait(&["q"], 1, Manner::Deliver, Patience::Jobs);
    nodes.settle();
    nodes.cut.push((0, 1));
    let id = nodes.add(0, copies("q", 1)).unwrap();
    nodes.settle();
    assert_eq!(nodes.states(id), [ACTIVE, None]);
    nodes.pass(600);
    assert_eq!(nodes.states(id), [QUEUED, None]);
    let job = nodes.scenes[0].get_one("q");
    assert_eq!((job.handed.id, job.additional_deliveries), (id, 0));
    assert!(nodes.scenes[1].late(ticket).is_empty());
}

#[test]
fn who_waits_no_more_is_sent_nothing() {
    let mut nodes = Nodes::new(2);
    let ticket = nodes.scenes[1].wait(&["q"], 1, Manner::Deliver, Patience::Jobs);
    nodes.settle();
    nodes.scenes[1].cancel(ticket);
    nodes.settle();
    let id = nodes.add(0, copies("q", 1)).unwrap();
    nodes.settle();
    assert_eq!(nodes.states(id), [QUEUED, None]);
}

#[test]
fn an_idle_consumer_costs_little_and_a_lost_word_is_made_good() {
    let mut nodes = Nodes::new(2);
    nodes.cut.push((1, 0));
    let ticket = nodes.scenes[1].wait(&["q"], 1, Manner::Deliver, Patience::Jobs);
    nodes.settle();
    assert_eq!(nodes.lost, 1, "the interest was lost");
    nodes.cut.clear();
    let id = nodes.add(0, copies("q", 1)).unwrap();
    nodes.settle();
    assert_eq!(nodes.states(id), [QUEUED, None]);
    nodes.pass(2_100);
    assert_eq!(nodes.scenes[1].late_jobs(ticket).len(), 1);
}

#[test]
fn a_node_that_leaves_gives_all_away() {
    let mut nodes = Nodes::new(4);
    let mut ids: Vec<JobId> = (0..5).map(|_| nodes.add(0, copies("q", 2)).unwrap()).collect();
    ids.push(nodes.add(0, copies("alone", 1)).unwrap());
    let delayed = AddJob {
        delay_s: 30,
        ..copies("late", 1)
    };
    let late = nodes.add(0, delayed).unwrap();
    ids.push(nodes.add(1, copies("other", 3)).unwrap());
    // More copies than nodes that stay.
    ids.push(nodes.add(0, copies("many", 4)).unwrap());
    nodes.leaving = Some(0);
    let all: Vec<(usize, u64)> = (0..4).map(|node| (node, 1)).collect();
    (0..4).for_each(|node| nodes.publish(node, &all));
    let during = nodes.add(0, copies("q", 1)).unwrap();
    ids.push(during);
    nodes.pass(3_000);
    assert_eq!(nodes.scenes[0].home.gauges().jobs, 0, "nothing is left there");
    for &id in &ids {
        let states = nodes.states(id);
        let queued = states.iter().filter(|state| **state == QUEUED).count();
        assert_eq!(queued, 1, "{id} is to be had: {states:?}");
    }
    assert_eq!(nodes.states(late).iter().flatten().count(), 1);
    nodes.pass(28_000);
    assert!(nodes.states(late).contains(&QUEUED), "in its own time");
}

#[test]
fn a_job_deleted_on_one_node_lives_on_the_others() {
    let mut nodes = Nodes::new(3);
    let id = nodes.add(0, copies("q", 3)).unwrap();
    // Nobody hears of it.
    nodes.cut.extend([(0, 1), (0, 2)]);
    nodes.ids(0, IdVerb::Delete, id);
    nodes.settle();
    nodes.cut.clear();
    nodes.pass(15_000);
    let states = nodes.states(id);
    assert_eq!(states[0], None);
    assert_eq!(
        states.iter().filter(|state| **state == QUEUED).count(),
        1,
        "{states:?}"
    );
}

#[test]
fn a_consumer_that_does_not_wait_gets_it_at_its_next_try() {
    let mut nodes = Nodes::new(3);
    let ids: BTreeSet<JobId> = (0..200).map(|_| nodes.add(0, copies("q", 1)).unwrap()).collect();
    let ask = || Request::Take(take(&["q"], 10, Manner::Deliver, Patience::Reserved));
    let mut got = BTreeSet::new();
    let mut in_vain = 0;
    while got.len() < ids.len() {
        match nodes.scenes[2].request(ask()) {
            Answer::Jobs(jobs) => jobs.iter().for_each(|job| assert!(got.insert(job.handed.id))),
            Answer::Nothing => in_vain += 1,
            other => panic!("{other:?}"),
        }
        nodes.settle();
        assert!(in_vain < 10);
    }
    assert_eq!(got, ids);
    // Nobody keeps jobs for who does not wait.
    let id = nodes.add(0, copies("q", 1)).unwrap();
    nodes.pass(5_000);
    assert_eq!(nodes.states(id), [QUEUED, None, None]);
}

#[test]
fn what_stays_holds_up_nothing_behind_it() {
    let mut nodes = Nodes::new(2);
    // Nobody answers what is asked about those.
    nodes.cut.push((1, 0));
    let stays: BTreeSet<JobId> = (0..20)
        .map(|_| nodes.scenes[0].add_with(once("q", "stays")))
        .collect();
    let id = nodes.add(0, copies("q", 1)).unwrap();
    let queues = vec![("q".into(), 50)];
    let lasting = true;
    nodes.cut.clear();
    nodes.deliver(1, 0, BusMessage::Interest { lasting, queues });
    nodes.cut.push((1, 0));
    nodes.settle();
    assert_eq!(nodes.states(id)[1], QUEUED);
    assert_eq!(nodes.scenes[0].length("q"), 20);
    assert!(stays.iter().all(|id| nodes.states(*id) == [QUEUED, None]));
}
