//! Commands about jobs and queues that other nodes have (`shape.md`, "an ID this node does not hold").
//!
//! ```text
//! NACK, unknown here -> Work, Question -- Ask --> the node in the ID's prefix -- Told --> not held: the next node ... held: counted
//! QLEN q CLUSTER ----> Work, a Question to each node at once ------------------ Told --> all have answered, or their time is up
//! ```
//!
//! A [`Work`] is a client's request that waits for other nodes; its session's line stands meanwhile (`lines`). A [`Question`] goes to one node at
//! a time and is repeated until that one answers, its link falls, or `cluster-node-timeout` is over. The answer names question and
//! round, so that a late or doubled one is told apart. Nobody forwards what another node asks (`answering`), so nothing goes in circles.

use std::collections::{BTreeMap, BTreeSet};

use smallvec::SmallVec;

use super::answering::Answers;
use crate::bus::message::{RemoteAnswer, RemoteRequest};
use crate::bus::{BusMessage, PeerNo, PeerState};
use crate::clock::Mono;
use crate::commands::view::{JobView, PauseState, Said};
use crate::commands::{self, IdVerb};
use crate::error::CommandError;
use crate::home::Home;
use crate::home::journal::Need;
use crate::id::{JobId, NodeId};
use crate::limits::{ASK_AGAIN_MS, REMOTE_QUESTIONS, REMOTE_WORKS, UPKEEP_STEP};
use crate::log::Position;
use crate::message::{Answer, SessionId, Ticket};
use crate::structures::slab::Slab;
use crate::wire::Blob;

/// What a home asks of other nodes, and has answered to them.
#[derive(Debug)]
pub struct Remote {
    works: Slab<Work>,
    tickets: BTreeMap<Ticket, u32>,
    questions: Slab<Question>,
    /// When each question is looked at next.
    due: BTreeSet<(Mono, u32)>,
    /// Of the newest question. It starts anywhere, so that no answer to an earlier process fits.
    generation: u32,
    pub(super) answers: Answers,
}

/// A client's request that waits for other nodes.
#[derive(Debug)]
struct Work {
    ticket: Ticket,
    /// Those that are not settled.
    questions: Vec<u32>,
    gathered: Gathered,
    /// Nodes that were asked and did not answer, where that matters.
    silent: Vec<PeerNo>,
    /// What its end waits for: the log of what was done here.
    need: Option<Need>,
    /// It ends with this, whatever was gathered.
    error: Option<CommandError>,
}

/// What a work has so far.
#[derive(Debug)]
pub(super) enum Gathered {
    /// NACK, ENQUEUE, DEQUEUE.
    Ids { verb: IdVerb, counted: i64, paused: i64 },
    /// SHOW.
    Job(Option<Box<JobView>>),
    /// WORKING: the lease time, seconds.
    Lease(Option<i64>),
    /// QLEN, QSTAT, DELJOB with CLUSTER.
    Nodes(Vec<(NodeId, Said)>),
    /// PAUSE with BCAST.
    Pause(PauseState),
}

/// A question to another node.
#[derive(Debug)]
struct Question {
    /// Whose it is; none for a pause state that a node is told after it came.
    work: Option<u32>,
    generation: u32,
    /// Who is asked at present,
    peer: PeerNo,
    /// and how many were before.
    round: u32,
    who: Who,
    /// Of IDs those that nobody held so far.
    request: RemoteRequest,
    /// Those before that did not answer.
    silent: SmallVec<[PeerNo; 1]>,
    /// When the one that is asked has not answered.
    ends_at: Mono,
    /// When it is asked again.
    again_at: Mono,
}

/// Whom a question is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Who {
    /// One node after the other, until one holds the job: `first`, then those from number `next` on.
    Search { first: Option<PeerNo>, next: u16 },
    /// One node alone, whose place among what is gathered is this.
    One { peer: PeerNo, place: usize },
}

impl Remote {
    /// Nothing is asked yet.
    pub fn new(generation: u32) -> Self {
        Self {
            works: Slab::new(),
            tickets: BTreeMap::new(),
            questions: Slab::new(),
            due: BTreeSet::new(),
            generation,
            answers: Answers::default(),
        }
    }

    /// The requests that wait.
    pub fn tickets(&self) -> impl Iterator<Item = Ticket> {
        self.tickets.keys().copied()
    }

    /// When a question is looked at next.
    pub fn deadline(&self) -> Option<Mono> {
        self.due.first().map(|(at, _)| *at)
    }

    /// These entries are not in the log: works that were to tell of them end with this error.
    pub fn log_failed(&mut self, from: Position, to: Position, error: &CommandError) {
        for &key in self.tickets.values() {
            let work = &mut self.works[key];
            if work.need.is_some_and(|need| need.touches(from, to)) {
                work.need = None;
                work.error = Some(error.clone());
            }
        }
    }

    /// Panics when something does not hold.
    pub fn check(&self) {
        assert_eq!(self.tickets.len(), self.works.len(), "a work has its ticket");
        let mut of_works = 0;
        for (ticket, &key) in &self.tickets {
            let work = &self.works[key];
            assert_eq!(work.ticket, *ticket);
            assert!(!work.questions.is_empty(), "a work waits for something");
            of_works += work.questions.len();
            for &question in &work.questions {
                assert_eq!(
                    self.questions[question].work,
                    Some(key),
                    "a question is its work's"
                );
            }
        }
        let all = self.questions.iter_from(0, u32::MAX);
        let owned = all.filter(|(key, question)| {
            let due = question.again_at.min(question.ends_at);
            assert!(self.due.contains(&(due, *key)), "a question is looked at in time");
            question.work.is_some()
        });
        assert_eq!(owned.count(), of_works);
        assert_eq!(self.due.len(), self.questions.len());
        self.answers.check();
    }
}

impl Home {
    /// Whether a request may be brought to other nodes.
    fn may_ask(&self) -> bool {
        self.peers.any()
            && self.peers.reachable().next().is_some()
            && self.remote.works.len() < REMOTE_WORKS
            && self.remote.questions.len() < REMOTE_QUESTIONS
    }

    /// Whether this node has anything to say about a job: it holds it, or knows that it is acknowledged.
    pub(super) fn knows(&mut self, now: Mono, id: &JobId) -> bool {
        self.find_job(now, id).is_some() || self.find_ack(id).is_some()
    }

    /// A command about IDs: what is here is done at once; other nodes are asked about the rest.
    pub(in crate::home) fn ids_anywhere(
        &mut self,
        now: Mono,
        ticket: Ticket,
        verb: IdVerb,
        ids: &[JobId],
    ) -> Answer {
        match verb {
            IdVerb::Enqueue | IdVerb::Nack | IdVerb::Dequeue if self.may_ask() => {}
            IdVerb::DeleteEverywhere => return self.delete_everywhere(now, ticket, ids),
            _ => return self.ids(now, verb, ids),
        }
        let mut groups: BTreeMap<_, Vec<JobId>> = BTreeMap::new();
        for id in ids {
            if !self.knows(now, id) {
                // One question is about IDs of one slot: they have one home shard, whatever the other node's number of shards.
                let group = (id.slot().number(), self.prefix_node(id));
                groups.entry(group).or_default().push(*id);
            }
        }
        let answer = self.ids(now, verb, ids);
        let (counted, paused) = match answer {
            Answer::Count(counted) => (counted, 0),
            Answer::Entered { counted, paused } => (counted, paused),
            other => return other,
        };
        let gathered = Gathered::Ids {
            verb,
            counted,
            paused,
        };
        let searches = groups
            .into_iter()
            .map(|((_, first), ids)| (search_from(first), RemoteRequest::Ids { verb, ids }));
        self.ask_others(now, ticket, gathered, searches.collect())
    }

    /// SHOW.
    pub(in crate::home) fn show_anywhere(&mut self, now: Mono, ticket: Ticket, id: JobId) -> Answer {
        let answer = commands::show::apply(self, now, id);
        if !matches!(answer, Answer::Job(None)) || self.find_ack(&id).is_some() || !self.may_ask() {
            return answer;
        }
        let who = search_from(self.prefix_node(&id));
        let question = (who, RemoteRequest::Show(id));
        self.ask_others(now, ticket, Gathered::Job(None), vec![question])
    }

    /// WORKING.
    pub(in crate::home) fn working_anywhere(&mut self, now: Mono, ticket: Ticket, id: JobId) -> Answer {
        let answer = commands::working::apply(self, now, id);
        let is_unknown = matches!(answer, Answer::Error(CommandError::NoJob)) && self.find_ack(&id).is_none();
        if !is_unknown || !self.may_ask() {
            return answer;
        }
        let who = search_from(self.prefix_node(&id));
        let question = (who, RemoteRequest::Working(id));
        self.ask_others(now, ticket, Gathered::Lease(None), vec![question])
    }

    /// QLEN with CLUSTER.
    pub(in crate::home) fn lengths(&mut self, now: Mono, ticket: Ticket, queue: Blob) -> Answer {
        let here = said(commands::qlen::apply(self, &queue));
        self.ask_all(now, ticket, here, &RemoteRequest::Length(queue))
    }

    /// QSTAT with CLUSTER.
    pub(in crate::home) fn stats(&mut self, now: Mono, ticket: Ticket, queue: Blob) -> Answer {
        let here = said(commands::qstat::apply(self, now, &queue));
        self.ask_all(now, ticket, here, &RemoteRequest::Stat(queue))
    }

    /// DELJOB with CLUSTER.
    fn delete_everywhere(&mut self, now: Mono, ticket: Ticket, ids: &[JobId]) -> Answer {
        let here = said(commands::deljob::apply(self, now, ids));
        let mut of_slot: BTreeMap<_, Vec<JobId>> = BTreeMap::new();
        for id in ids {
            of_slot.entry(id.slot().number()).or_default().push(*id);
        }
        let verb = IdVerb::Delete;
        let requests = of_slot.into_values().map(|ids| RemoteRequest::Ids { verb, ids });
        self.ask_all_these(now, ticket, here, &requests.collect::<Vec<_>>())
    }

    fn ask_all(&mut self, now: Mono, ticket: Ticket, here: Said, request: &RemoteRequest) -> Answer {
        self.ask_all_these(now, ticket, here, std::slice::from_ref(request))
    }

    /// Asks all nodes that live the same; `here` is what this one says. Those that cannot be reached have said nothing.
    fn ask_all_these(&mut self, now: Mono, ticket: Ticket, here: Said, requests: &[RemoteRequest]) -> Answer {
        let mut nodes = vec![(self.peers.node, here.clone())];
        let mut questions = Vec::new();
        let may_ask = self.may_ask();
        let live = self.peers.all().filter(|peer| peer.state == PeerState::Alive);
        for peer in live {
            let place = nodes.len();
            let asked = may_ask && self.peers.is_reachable(peer.no);
            // What is said is added to this.
            let begin = match (asked, &here) {
                (false, _) => Said::Nothing,
                (true, Said::Queue(_)) => Said::Queue(None),
                (true, _) => Said::Count(0),
            };
            nodes.push((peer.id, begin));
            let who = Who::One { peer: peer.no, place };
            questions.extend(
                requests
                    .iter()
                    .filter(|_| asked)
                    .map(|request| (who, request.clone())),
            );
        }
        self.ask_others(now, ticket, Gathered::Nodes(nodes), questions)
    }

    /// Begins a work with its questions; the answer at once when there is nobody to be asked.
    pub(super) fn ask_others(
        &mut self,
        now: Mono,
        ticket: Ticket,
        gathered: Gathered,
        questions: Vec<(Who, RemoteRequest)>,
    ) -> Answer {
        let targets: Vec<_> = questions
            .into_iter()
            .filter_map(|(mut who, request)| Some((self.next_of(&mut who)?, who, request)))
            .collect();
        if targets.is_empty() {
            return gathered.into_answer();
        }
        self.counters.asked_elsewhere += 1;
        let need = self
            .journal
            .take_need()
            .filter(|&need| !self.journal.is_met(need));
        let work = self.remote.works.insert(Work {
            ticket,
            questions: Vec::new(),
            gathered,
            silent: Vec::new(),
            need,
            error: None,
        });
        let before = self.remote.tickets.insert(ticket, work);
        assert!(before.is_none(), "a ticket names one request");
        // What its session asks here from now on waits for it.
        self.lines.linger(ticket, true);
        for (peer, who, request) in targets {
            let ends_at = now.after_ms(self.node_timeout_ms);
            self.add_question(now, Some(work), peer, who, request, ends_at);
        }
        Answer::Waiting
    }

    /// Pause states that a node was told of after it came, and has not answered.
    pub(super) fn open_spreads(&self, peer: PeerNo) -> u32 {
        let all = self.remote.questions.iter_from(0, u32::MAX);
        all.filter(|(_, question)| question.work.is_none() && question.peer == peer)
            .count() as u32
    }

    /// Asks a node something.
    pub(super) fn add_question(
        &mut self,
        now: Mono,
        work: Option<u32>,
        peer: PeerNo,
        who: Who,
        request: RemoteRequest,
        ends_at: Mono,
    ) {
        self.remote.generation = self.remote.generation.wrapping_add(1);
        let key = self.remote.questions.insert(Question {
            work,
            generation: self.remote.generation,
            peer,
            round: 0,
            who,
            request,
            silent: SmallVec::new(),
            ends_at,
            again_at: now,
        });
        if let Some(work) = work {
            self.remote.works[work].questions.push(key);
        }
        self.pose(now, key);
    }

    /// Sends a question to the node whose turn it is.
    fn pose(&mut self, now: Mono, key: u32) {
        let question = &mut self.remote.questions[key];
        let wait_ms = ASK_AGAIN_MS.max(4 * self.peers.rtt_ms(question.peer));
        question.again_at = now.after_ms(wait_ms);
        let due = question.again_at.min(question.ends_at);
        self.remote.due.insert((due, key));
        let session = SessionId {
            index: key,
            generation: question.generation,
        };
        let ticket = Ticket {
            shard: self.options.shard,
            session,
            request: question.round,
        };
        let (peer, request) = (question.peer, question.request.clone());
        let need = question.work.and_then(|work| self.remote.works[work].need);
        self.say_when(need, peer, BusMessage::Ask { ticket, request });
    }

    /// The node whose turn it is, and the turn goes on.
    fn next_of(&self, who: &mut Who) -> Option<PeerNo> {
        match who {
            Who::One { peer, .. } => Some(*peer),
            Who::Search { first, next } => {
                let reachable = |no: &PeerNo| self.peers.is_reachable(*no);
                if *next == 0
                    && let Some(first) = first.filter(reachable)
                {
                    *next = 1;
                    return Some(first);
                }
                let from = next.saturating_sub(1);
                let mut rest = self.peers.all().map(|peer| peer.no).skip(usize::from(from));
                let found = rest.find(|no| Some(*no) != *first && reachable(no))?;
                *next = found.0 + 2;
                Some(found)
            }
        }
    }

    /// The node that made an ID, when it is another one that can be reached.
    fn prefix_node(&self, id: &JobId) -> Option<PeerNo> {
        let prefix = &id.as_bytes()[..4];
        let mut reachable = self.peers.reachable();
        reachable
            .find(|peer| &peer.id.as_bytes()[..4] == prefix)
            .map(|peer| peer.no)
    }

    /// Told: a node has answered.
    pub(super) fn on_told(&mut self, now: Mono, from: PeerNo, ticket: Ticket, answer: RemoteAnswer) {
        let key = ticket.session.index;
        let Some(question) = self.remote.questions.get_mut(key) else {
            return;
        };
        let asked = (question.generation, question.round, question.peer);
        if asked != (ticket.session.generation, ticket.request, from) {
            return;
        }
        let Some(work) = question.work else {
            // A pause state that it refuses is told again.
            return match answer {
                RemoteAnswer::Error(_) => {}
                _ => self.end_question(key),
            };
        };
        let work = &mut self.remote.works[work];
        let is_settled = match (&mut question.request, question.who, answer) {
            (_, Who::One { place, .. }, RemoteAnswer::Error(text)) => {
                match &mut work.gathered {
                    Gathered::Nodes(nodes) => nodes[place].1.add(Said::Refused(text)),
                    _ => {
                        let node = self.peers.peer(from).id;
                        let text = format!("paused here; refused by {node}: {text}");
                        work.error = Some(CommandError::other(text));
                    }
                }
                true
            }
            (_, Who::Search { .. }, RemoteAnswer::Error(text)) => {
                work.error = Some(CommandError::Coded(text.into()));
                true
            }
            (request, who, answer) => match work.gathered.take_in(request, who, answer) {
                Some(is_settled) => is_settled,
                // No answer to what was asked.
                None => return,
            },
        };
        if is_settled {
            self.end_question(key);
        } else {
            self.ask_next(now, key);
        }
    }

    /// The node that was asked is no holder, or has not answered: the next one's turn.
    fn ask_next(&mut self, now: Mono, key: u32) {
        let mut who = self.remote.questions[key].who;
        let next = match who {
            Who::One { .. } => None,
            Who::Search { .. } => self.next_of(&mut who),
        };
        let Some(peer) = next else {
            if let Some(work) = self.remote.questions[key].work {
                let silent = std::mem::take(&mut self.remote.questions[key].silent);
                self.remote.works[work].silent.extend(silent);
            }
            return self.end_question(key);
        };
        self.undue(key);
        let question = &mut self.remote.questions[key];
        (question.who, question.peer) = (who, peer);
        question.round = question.round.wrapping_add(1);
        question.ends_at = now.after_ms(self.node_timeout_ms);
        self.pose(now, key);
    }

    /// The node that is asked does not answer.
    fn is_silent(&mut self, now: Mono, key: u32) {
        let question = &mut self.remote.questions[key];
        question.silent.push(question.peer);
        let (peer, who) = (question.peer, question.who);
        if let Some(work) = question.work {
            match (&mut self.remote.works[work].gathered, who) {
                (Gathered::Nodes(nodes), Who::One { place, .. }) => nodes[place].1.add(Said::Nothing),
                (Gathered::Pause(_), Who::One { .. }) => self.spread_pauses(peer),
                _ => {}
            }
        }
        self.ask_next(now, key);
    }

    fn undue(&mut self, key: u32) {
        let question = &self.remote.questions[key];
        let due = question.again_at.min(question.ends_at);
        self.remote.due.remove(&(due, key));
    }

    fn end_question(&mut self, key: u32) {
        self.undue(key);
        let question = self.remote.questions.remove(key);
        let Some(work) = question.work else {
            return self.was_told(question.peer);
        };
        let questions = &mut self.remote.works[work].questions;
        questions.retain(|&other| other != key);
        if questions.is_empty() {
            self.end_work(work);
        }
    }

    fn end_work(&mut self, key: u32) {
        let work = self.remote.works.remove(key);
        self.remote.tickets.remove(&work.ticket);
        self.lines.ended(work.ticket);
        let answer = match (work.error, &work.gathered) {
            (Some(error), _) => Answer::Error(error),
            (None, Gathered::Nodes(_)) => work.gathered.into_answer(),
            (None, _) if work.silent.is_empty() => work.gathered.into_answer(),
            (None, gathered) => Answer::Error(self.no_answer(gathered, &work.silent)),
        };
        let others = self.journal.take_need();
        self.journal.restore_need(work.need);
        self.end(work.ticket, answer);
        self.journal.restore_need(others);
    }

    /// The error that names the nodes that did not answer.
    fn no_answer(&self, gathered: &Gathered, silent: &[PeerNo]) -> CommandError {
        let silent: BTreeSet<PeerNo> = silent.iter().copied().collect();
        let names: Vec<String> = silent
            .into_iter()
            .map(|peer| self.peers.peer(peer).id.to_string())
            .collect();
        let names = names.join(" ");
        CommandError::other(match gathered {
            Gathered::Pause(_) => format!("paused here; no answer from {names}"),
            _ => format!("not held by the nodes that answered; no answer from {names}"),
        })
    }

    /// The client of a request is gone. Whether it waited for other nodes.
    pub(in crate::home) fn cancel_remote(&mut self, ticket: Ticket) -> bool {
        let Some(key) = self.remote.tickets.remove(&ticket) else {
            return false;
        };
        let work = self.remote.works.remove(key);
        for question in work.questions {
            self.undue(question);
            self.remote.questions.remove(question);
        }
        self.lines.ended(ticket);
        true
    }

    /// Questions to nodes that cannot be reached any more go to the next one.
    pub(super) fn pass_by_unreachable(&mut self, now: Mono) {
        let all = self.remote.questions.iter_from(0, u32::MAX);
        let gone: Vec<u32> = all
            .filter(|(_, question)| {
                let is_up = self.peers.link(question.peer).is_some_and(|link| link.up);
                let is_waited_for = question.work.is_some();
                !is_up || (is_waited_for && !self.peers.is_reachable(question.peer))
            })
            .map(|(key, _)| key)
            .collect();
        gone.into_iter().for_each(|key| self.is_silent(now, key));
    }

    /// A step through the questions that are due.
    pub(super) fn step_remote(&mut self, now: Mono) {
        for _ in 0..UPKEEP_STEP {
            let due = self.remote.due.first().copied();
            let Some((_, key)) = due.filter(|(at, _)| *at <= now) else {
                return;
            };
            if self.remote.questions[key].ends_at <= now {
                self.is_silent(now, key);
            } else {
                self.undue(key);
                self.counters.asked_again += 1;
                self.pose(now, key);
            }
        }
    }
}

impl Gathered {
    /// Takes in an answer: whether its question is settled; none when it answers another question.
    fn take_in(&mut self, request: &mut RemoteRequest, who: Who, answer: RemoteAnswer) -> Option<bool> {
        match (self, request, answer) {
            (
                Self::Ids { counted, paused, .. },
                RemoteRequest::Ids { ids, .. },
                RemoteAnswer::Ids {
                    held,
                    counted: more,
                    paused: skipped,
                },
            ) => {
                let known = held.iter().filter(|held| **held).count() as u64;
                if held.len() != ids.len() || u64::from(more) + u64::from(skipped) > known {
                    return None;
                }
                *counted += i64::from(more);
                *paused += i64::from(skipped);
                let mut held = held.into_iter();
                ids.retain(|_| held.next() == Some(false));
                Some(ids.is_empty())
            }
            (Self::Job(found), RemoteRequest::Show(id), RemoteAnswer::Job(job)) => {
                if job.as_ref().is_some_and(|job| job.id != *id) {
                    return None;
                }
                *found = job;
                Some(true)
            }
            (Self::Lease(lease), RemoteRequest::Working(_), RemoteAnswer::Count(seconds)) => {
                *lease = Some(seconds);
                Some(true)
            }
            (Self::Job(_) | Self::Lease(_), _, RemoteAnswer::NotHere) => Some(false),
            (Self::Nodes(nodes), request, answer) => {
                let Who::One { place, .. } = who else { return None };
                let said = match (request, answer) {
                    (RemoteRequest::Length(_), RemoteAnswer::Count(count)) => Said::Count(count),
                    (RemoteRequest::Stat(_), RemoteAnswer::Queue(queue)) => Said::Queue(queue),
                    (RemoteRequest::Ids { .. }, RemoteAnswer::Ids { counted, .. }) => {
                        Said::Count(counted.into())
                    }
                    _ => return None,
                };
                nodes[place].1.add(said);
                Some(true)
            }
            (Self::Pause(_), RemoteRequest::Pause { .. }, RemoteAnswer::Count(_)) => Some(true),
            _ => None,
        }
    }

    fn into_answer(self) -> Answer {
        match self {
            Self::Ids {
                verb: IdVerb::Dequeue,
                counted,
                ..
            } => Answer::Count(counted),
            Self::Ids { counted, paused, .. } => Answer::Entered { counted, paused },
            Self::Job(job) => Answer::Job(job),
            Self::Lease(Some(seconds)) => Answer::Count(seconds),
            Self::Lease(None) => Answer::Error(CommandError::NoJob),
            Self::Nodes(nodes) => Answer::Nodes(nodes),
            Self::Pause(state) => Answer::Pause(state),
        }
    }
}

fn search_from(first: Option<PeerNo>) -> Who {
    Who::Search { first, next: 0 }
}

/// What this node says of itself among others.
fn said(answer: Answer) -> Said {
    match answer {
        Answer::Count(count) => Said::Count(count),
        Answer::Queue(queue) => Said::Queue(queue),
        other => unreachable!("no answer about a queue or to DELJOB: {other:?}"),
    }
}
