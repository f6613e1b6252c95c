//! Watches the messages between shards, lets the [`Reference`] take the same steps, and holds both against each other.
//!
//! It is exact when every session lives on a shard that is home to none of the queues used: then all that a home shard
//! is told goes over the mesh, in the order in which it is handled. What was answered is kept by request, so that
//! the reply a client reads can be held against what the reference says.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use shard::clock::Now;
use shard::commands::Request;
use shard::id::JobId;
use shard::message::{
    Answer, Delivered, Handed, Manner, Message, Offered, Patience, SessionId, Take, Ticket,
};
use shard::node::{Change, NodeMessage};
use shard::slot::ShardNo;

use crate::reference::Reference;
use crate::support::{Happening, Watch};

/// What a request of a client came to, by the reference.
#[derive(Debug, Default)]
pub struct Outcome {
    /// Answers of home shards, but for jobs and offers.
    pub answers: Vec<Answer>,
    /// GETJOB: what was handed out without a claim.
    pub delivered: Vec<Delivered>,
    /// GETJOB over several shards: what was claimed, in the order of the claims, and what came of it.
    claims: Vec<Claimed>,
    /// Offers that reached the session and were not claimed, each with its pass.
    offers: BTreeMap<ShardNo, Vec<(usize, Offered)>>,
    count: usize,
    /// Its present round: what belongs to an earlier one comes too late.
    round: Option<Ticket>,
    /// It was cancelled; with offers that were not claimed.
    gave_up: Option<bool>,
}

#[derive(Debug)]
struct Claimed {
    shard: ShardNo,
    id: JobId,
    jobs: Option<Vec<Delivered>>,
}

impl Outcome {
    /// The jobs of a GETJOB, in order.
    pub fn jobs(&self) -> impl Iterator<Item = &Delivered> {
        self.delivered.iter().chain(
            self.claims
                .iter()
                .filter_map(|claim| claim.jobs.as_ref()?.first()),
        )
    }

    /// Whether the session gave up although it had offers that it had not tried.
    pub fn gave_up_offers(&self) -> bool {
        self.gave_up == Some(true) && self.jobs().next().is_none()
    }

    /// The session ends its talk with the home shards, or this round of it.
    fn cancelled(&mut self) {
        let has_offers = self.offers.values().any(|offers| !offers.is_empty());
        self.gave_up.get_or_insert(has_offers);
    }

    /// The session learns of offers: the first of each queue is of the first pass, and stays so.
    fn offered(&mut self, from: ShardNo, offers: &[Offered]) {
        for (at, offer) in offers.iter().enumerate() {
            let pass = offers[..at]
                .iter()
                .filter(|before| before.place == offer.place)
                .count();
            self.offers.entry(from).or_default().push((pass, *offer));
        }
    }

    /// What is to be claimed next: the first offers in the order of the pass, as many as are missing.
    fn to_claim(&self) -> Vec<(ShardNo, JobId)> {
        let of_shard = |(&shard, offers): (&ShardNo, &Vec<(usize, Offered)>)| {
            offers
                .iter()
                .map(|&(pass, offer)| (pass, offer.place, shard, offer.id))
                .collect::<Vec<_>>()
        };
        let mut order: Vec<_> = self.offers.iter().flat_map(of_shard).collect();
        order.sort();
        let missing = self.count - self.jobs().count();
        order
            .into_iter()
            .take(missing)
            .map(|(_, _, shard, id)| (shard, id))
            .collect()
    }

    /// A session claims. It has learnt of offers one after the other in this step, and claims as soon as no shard owes it an
    /// answer: the claims must be right for what it knew at some point of the step.
    fn claimed(
        &mut self,
        claims: &BTreeSet<(ShardNo, JobId)>,
        mut learnt: VecDeque<(ShardNo, Vec<Offered>)>,
    ) {
        let mut tried = Vec::new();
        loop {
            let order = self.to_claim();
            if order.iter().copied().collect::<BTreeSet<_>>() == *claims {
                for (shard, id) in order {
                    self.claims.push(Claimed {
                        shard,
                        id,
                        jobs: None,
                    });
                    self.offers
                        .get_mut(&shard)
                        .expect("it offered")
                        .retain(|(_, offer)| offer.id != id);
                }
                break;
            }
            tried.push(order);
            let Some((from, offers)) = learnt.pop_front() else {
                panic!("these were to be claimed: one of {tried:?}; these were: {claims:?}");
            };
            self.offered(from, &offers);
        }
        for (from, offers) in learnt {
            self.offered(from, &offers);
        }
    }

    fn claim_ended(&mut self, shard: ShardNo, jobs: &[Delivered]) {
        for claim in self
            .claims
            .iter_mut()
            .filter(|claim| claim.shard == shard && claim.jobs.is_none())
        {
            claim.jobs = Some(
                jobs.iter()
                    .filter(|job| job.handed.id == claim.id)
                    .cloned()
                    .collect(),
            );
        }
    }
}

/// Lines that a failure shows.
const HISTORY: usize = 10000;

/// What a step told a home shard.
enum Told {
    Request(Ticket, Copied),
    Claim(Ticket, Vec<JobId>),
    Cancel(Ticket),
    Undelivered(Vec<Handed>),
    Flush,
}

/// A request, as far as the reference knows it.
enum Copied {
    Known(Request),
    Other,
}

/// The witness. When it is not `exact` it only counts.
pub struct Witness {
    pub reference: Reference,
    pub exact: bool,
    /// Steps so far, newest last, for the report of a failure.
    pub history: VecDeque<String>,
    /// What was undone: a job handed out that did not reach its client.
    pub undone: Vec<Handed>,
    pub handed_out: Vec<(Ticket, Handed)>,
    pub kinds: BTreeMap<&'static str, u64>,
    outcomes: Vec<Outcome>,
    of_ticket: BTreeMap<Ticket, usize>,
    of_session: BTreeMap<(ShardNo, SessionId), VecDeque<usize>>,
    step: Step,
    /// Offers that sessions learnt of in this step.
    learnt: BTreeMap<Ticket, VecDeque<(ShardNo, Vec<Offered>)>>,
    /// Ends of ticks that belong together.
    tick_ends: Vec<(Ticket, Answer)>,
}

#[derive(Default)]
enum Step {
    #[default]
    Outside,
    Mesh(ShardNo, Vec<Told>),
    Tick,
}

impl Witness {
    pub fn new(shards: u16, exact: bool) -> Self {
        Self {
            reference: Reference::new(shards),
            exact,
            history: VecDeque::new(),
            undone: Vec::new(),
            handed_out: Vec::new(),
            kinds: BTreeMap::new(),
            outcomes: Vec::new(),
            of_ticket: BTreeMap::new(),
            of_session: BTreeMap::new(),
            step: Step::Outside,
            learnt: BTreeMap::new(),
            tick_ends: Vec::new(),
        }
    }

    pub fn note(&mut self, line: String) {
        self.history.push_back(line);
        if self.history.len() > HISTORY {
            self.history.pop_front();
        }
    }

    pub fn count(&mut self, kind: &'static str) {
        *self.kinds.entry(kind).or_default() += 1;
    }

    /// What came of the oldest request of a session that has not been asked for.
    pub fn next_outcome(&mut self, session: (ShardNo, SessionId)) -> &Outcome {
        let next = self.of_session.get_mut(&session).and_then(VecDeque::pop_front);
        &self.outcomes[next.expect("a reply has a request")]
    }

    /// What came of the requests of a session that nobody asked for.
    pub fn rest_of(&self, session: (ShardNo, SessionId)) -> impl Iterator<Item = &Outcome> {
        self.of_session
            .get(&session)
            .into_iter()
            .flatten()
            .map(|&outcome| &self.outcomes[outcome])
    }

    /// All that was due on a shard at this instant was done, in one tick or several: the reference does the same.
    pub fn ticks_ended(&mut self, now: Now, shard: ShardNo) {
        let actual = std::mem::take(&mut self.tick_ends);
        if self.exact {
            self.reference.tick(now, shard, &actual);
            self.check_ends(shard, &actual);
        }
    }

    fn outcome(&mut self, ticket: Ticket) -> &mut Outcome {
        let outcome = self.of_ticket[&ticket];
        &mut self.outcomes[outcome]
    }

    /// A session sends a request: it belongs to the one before when it goes on with it.
    fn request_sent(&mut self, ticket: Ticket, request: &Request) {
        if self.of_ticket.contains_key(&ticket) {
            return;
        }
        let session = (ticket.shard, ticket.session);
        let outcomes = self.of_session.entry(session).or_default();
        if matches!(
            request,
            Request::Take(Take {
                patience: Patience::None,
                ..
            })
        ) {
            let before = *outcomes.back().expect("a GETJOB goes on that has begun");
            self.outcomes[before].offers.clear();
            self.outcomes[before].round = Some(ticket);
            self.of_ticket.insert(ticket, before);
            *self.kinds.entry("further rounds").or_default() += 1;
            return;
        }
        let count = if let Request::Take(take) = request {
            take.count as usize
        } else {
            0
        };
        outcomes.push_back(self.outcomes.len());
        self.of_ticket.insert(ticket, self.outcomes.len());
        self.outcomes.push(Outcome {
            count,
            round: Some(ticket),
            ..Outcome::default()
        });
    }

    /// What a session learns: offers may be claimed from now on.
    fn learnt(&mut self, from: ShardNo, ticket: Ticket, answer: &Answer) {
        if let Answer::Offers(offers) = answer
            && self.outcome(ticket).round == Some(ticket)
        {
            self.learnt
                .entry(ticket)
                .or_default()
                .push_back((from, offers.clone()));
        }
    }

    fn sent(&mut self, sent: &[Vec<Message>]) {
        let mut claims: BTreeMap<Ticket, BTreeSet<(ShardNo, JobId)>> = BTreeMap::new();
        let mut requests: BTreeMap<Ticket, &Request> = BTreeMap::new();
        let mut cancels: BTreeSet<Ticket> = BTreeSet::new();
        for (to, messages) in sent.iter().enumerate() {
            for message in messages {
                match message {
                    Message::Request {
                        request: Request::Scan(_) | Request::Gather(_),
                        ..
                    } => {}
                    Message::Request { ticket, request } => {
                        requests.insert(*ticket, request);
                    }
                    Message::Claim { ticket, ids } => {
                        claims
                            .entry(*ticket)
                            .or_default()
                            .extend(ids.iter().map(|id| (to as ShardNo, *id)));
                    }
                    Message::Cancel { ticket } => {
                        cancels.insert(*ticket);
                    }
                    Message::Undelivered { jobs } => self.undone.extend(jobs),
                    _ => {}
                }
            }
        }
        for ticket in cancels {
            self.outcome(ticket).cancelled();
        }
        for (ticket, claims) in claims {
            let learnt = self.learnt.remove(&ticket).unwrap_or_default();
            self.outcome(ticket).claimed(&claims, learnt);
            self.count("claims");
        }
        for (ticket, learnt) in std::mem::take(&mut self.learnt) {
            let outcome = self.outcome(ticket);
            learnt
                .iter()
                .for_each(|(from, offers)| outcome.offered(*from, offers));
        }
        // In the order of the session's commands.
        for (ticket, request) in requests {
            self.request_sent(ticket, request);
        }
    }

    fn check_mesh(
        &mut self,
        now: Now,
        shard: ShardNo,
        from: ShardNo,
        told: Vec<Told>,
        sent: &[Vec<Message>],
    ) {
        let answers = sent[usize::from(from)]
            .iter()
            .filter_map(|message| match message {
                Message::Answer { ticket, answer } if !matches!(answer, Answer::Part(_)) => {
                    Some((ticket, answer))
                }
                _ => None,
            });
        let mut answers = answers.collect::<VecDeque<_>>();
        for told in told {
            match told {
                Told::Request(asked, copied) => {
                    let (ticket, actual) = answers.pop_front().expect("every request is answered at once");
                    assert_eq!(*ticket, asked, "answers come in the order of the requests");
                    if let Copied::Known(request) = copied {
                        let what = format!("{request:?} on shard {shard}");
                        let delivers = matches!(
                            &request,
                            Request::Take(Take {
                                manner: Manner::Deliver,
                                ..
                            })
                        );
                        let takes = matches!(request, Request::Take(_));
                        let expected = self.reference.request(now, shard, asked, request, actual);
                        same(&what, &expected, actual);
                        self.answered(asked, expected, takes, delivers);
                    }
                }
                Told::Claim(ticket, ids) => self.reference.claim(now, (shard, ticket), &ids),
                Told::Cancel(ticket) => self.reference.cancel(now, (shard, ticket)),
                Told::Undelivered(jobs) => self.reference.undelivered(now, &jobs),
                Told::Flush => self.reference.flush(shard),
            }
        }
        assert!(answers.is_empty(), "an answer without a request: {answers:?}");
    }

    fn answered(&mut self, ticket: Ticket, answer: Answer, takes: bool, delivers: bool) {
        match answer {
            Answer::Jobs(jobs) if delivers => self.delivered(ticket, jobs),
            Answer::Waiting if takes => self.count("waits"),
            Answer::Waiting => self.count("stands behind"),
            Answer::Offers(_) | Answer::Nothing => {}
            answer => self.outcome(ticket).answers.push(answer),
        }
    }

    fn delivered(&mut self, ticket: Ticket, jobs: Vec<Delivered>) {
        self.handed_out
            .extend(jobs.iter().map(|job| (ticket, job.handed)));
        self.outcome(ticket).delivered.extend(jobs);
    }

    /// What ended on a shard in this step, by request: the reference must say the same.
    fn check_ends(&mut self, shard: ShardNo, ends: &[(Ticket, Answer)]) {
        let mut actual: BTreeMap<Ticket, Vec<String>> = BTreeMap::new();
        for (ticket, answer) in ends {
            actual.entry(*ticket).or_default().push(format!("{answer:?}"));
        }
        let mut expected: BTreeMap<Ticket, Vec<String>> = BTreeMap::new();
        for (ticket, answer) in self.reference.take_ends() {
            expected.entry(ticket).or_default().push(format!("{answer:?}"));
            let claimed = self
                .outcome(ticket)
                .claims
                .iter()
                .any(|claim| claim.shard == shard && claim.jobs.is_none());
            match answer {
                Answer::Jobs(jobs) if claimed => {
                    self.handed_out
                        .extend(jobs.iter().map(|job| (ticket, job.handed)));
                    self.outcome(ticket).claim_ended(shard, &jobs);
                    self.count(if jobs.is_empty() {
                        "claims refused"
                    } else {
                        "claims granted"
                    });
                }
                Answer::Jobs(jobs) => self.delivered(ticket, jobs),
                Answer::Nothing => self.count("ends with nothing"),
                Answer::Offers(_) => self.count("late offers"),
                answer => {
                    self.count("ends behind another");
                    self.outcome(ticket).answers.push(answer);
                }
            }
        }
        assert_eq!(
            expected, actual,
            "what ends on shard {shard}: left the reference, right the shard"
        );
    }
}

fn lates(sent: &[Vec<Message>]) -> impl Iterator<Item = (&Ticket, &Answer)> {
    sent.iter().flatten().filter_map(|message| match message {
        Message::Late { ticket, answer } => Some((ticket, answer)),
        _ => None,
    })
}

fn same(what: &str, expected: &Answer, actual: &Answer) {
    let (expected, actual) = (format!("{expected:?}"), format!("{actual:?}"));
    assert_eq!(expected, actual, "{what}: left the reference, right the shard");
}

impl Watch for Witness {
    fn before(&mut self, now: Now, shard: ShardNo, happening: &Happening<'_>) {
        self.step = match happening {
            Happening::Outside => Step::Outside,
            Happening::Tick => Step::Tick,
            Happening::Mesh(from, messages) => {
                self.note(format!("{} ms: {from} -> {shard}: {messages:?}", now.mono().0));
                let told = messages
                    .iter()
                    .filter_map(|message| self.told(*from, message))
                    .collect();
                Step::Mesh(*from, told)
            }
        };
    }

    fn after(&mut self, now: Now, shard: ShardNo, sent: &[Vec<Message>]) {
        let step = std::mem::take(&mut self.step);
        for (to, messages) in sent
            .iter()
            .enumerate()
            .filter(|(_, messages)| !messages.is_empty())
        {
            self.note(format!(
                "{} ms: {shard} sends to {to}: {messages:?}",
                now.mono().0
            ));
        }
        if !self.exact {
            sent.iter().flatten().for_each(|message| {
                if let Message::Undelivered { jobs } = message {
                    self.undone.extend(jobs);
                }
            });
            return;
        }
        match step {
            Step::Outside => {}
            Step::Mesh(from, told) => self.check_mesh(now, shard, from, told, sent),
            Step::Tick => {
                self.tick_ends
                    .extend(lates(sent).filter_map(|(ticket, answer)| Some((*ticket, copy(answer)?))));
                return self.sent(sent);
            }
        }
        let actual: Vec<(Ticket, Answer)> = lates(sent)
            .filter_map(|(t, answer)| Some((*t, copy(answer)?)))
            .collect();
        self.check_ends(shard, &actual);
        self.sent(sent);
    }
}

impl Witness {
    fn told(&mut self, from: ShardNo, message: &Message) -> Option<Told> {
        if !self.exact {
            return None;
        }
        Some(match message {
            Message::Request {
                request: Request::Gather(_),
                ..
            } => return None,
            Message::Request { ticket, request } => Told::Request(*ticket, copy_request(request)),
            Message::Claim { ticket, ids } => Told::Claim(*ticket, ids.clone()),
            Message::Cancel { ticket } => Told::Cancel(*ticket),
            Message::Undelivered { jobs } => Told::Undelivered(jobs.clone()),
            Message::Node(NodeMessage::Apply {
                change: Change::FlushAll,
                ..
            }) => Told::Flush,
            Message::Answer { ticket, answer } | Message::Late { ticket, answer } => {
                self.learnt(from, *ticket, answer);
                return None;
            }
            Message::Node(_) | Message::Bus { .. } => return None,
        })
    }
}

fn copy_request(request: &Request) -> Copied {
    Copied::Known(match request {
        Request::Add(add) => Request::Add(add.clone()),
        Request::Take(take) => Request::Take(take.clone()),
        Request::Ids { verb, ids } => Request::Ids {
            verb: *verb,
            ids: ids.clone(),
        },
        Request::Show(id) => Request::Show(*id),
        Request::Working(id) => Request::Working(*id),
        Request::Length(queue) => Request::Length(queue.clone()),
        Request::Peek(peek) => Request::Peek(peek.clone()),
        Request::Stat(queue) => Request::Stat(queue.clone()),
        Request::Pause(pause) => Request::Pause(pause.clone()),
        Request::Lengths(_) | Request::Stats(_) | Request::Scan(_) | Request::Gather(_) => {
            return Copied::Other;
        }
    })
}

/// An end of a request to a home shard.
fn copy(answer: &Answer) -> Option<Answer> {
    match answer {
        Answer::Jobs(jobs) => Some(Answer::Jobs(jobs.clone())),
        Answer::Offers(offers) => Some(Answer::Offers(offers.clone())),
        Answer::Nothing => Some(Answer::Nothing),
        Answer::Error(error) => Some(Answer::Error(error.clone())),
        Answer::Id(id) => Some(Answer::Id(*id)),
        Answer::Count(count) => Some(Answer::Count(*count)),
        &Answer::Entered { counted, paused } => Some(Answer::Entered { counted, paused }),
        Answer::Job(job) => Some(Answer::Job(job.clone())),
        Answer::Queue(queue) => Some(Answer::Queue(queue.clone())),
        Answer::Pause(state) => Some(Answer::Pause(*state)),
        Answer::Nodes(nodes) => Some(Answer::Nodes(nodes.clone())),
        Answer::Ok | Answer::Waiting | Answer::Peeked { .. } | Answer::Page(_) | Answer::Part(_) => None,
    }
}
