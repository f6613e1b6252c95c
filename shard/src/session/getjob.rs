//! The session's side of a GETJOB that cannot be answered in one step: it blocks, asks several home shards, or wants
//! more than a step hands out.
//!
//! It goes in rounds. A round asks each home shard of the queues once (`message.rs` has the grammar of that talk). With one home
//! shard a round's jobs are handed out by the answer itself; with several they are offered, claimed in the order of the
//! pass, and the rest given back. A round that brought all it asked for is followed by another, without patience, until COUNT
//! is reached or a round brings less.
//!
//! | a shard in a round | means |
//! | --- | --- |
//! | Asked | has not answered |
//! | Nothing | has none, and keeps no waiter |
//! | Waiting | keeps the session as a waiter |
//! | Offered | keeps it as a waiter with jobs reserved |
//! | Claiming | was sent a claim and has not answered it |

use std::collections::VecDeque;

use smallvec::SmallVec;

use crate::commands::GetJob;
use crate::error::CommandError;
use crate::id::JobId;
use crate::limits;
use crate::message::{Answer, Delivered, Manner, Offered, Patience, Take};
use crate::slot::{ShardNo, Slot};
use crate::wire::Blob;

/// A GETJOB under way.
pub(super) struct GetJobProgress {
    ask: GetJob,
    shards: Vec<Asked>,
    /// Jobs handed out so far, in the order of the passes.
    jobs: Vec<Delivered>,
    bytes: usize,
    /// What was claimed in this round, in the order of the pass.
    claimed: Vec<(ShardNo, JobId)>,
    /// Jobs of this round before they are put in order.
    arrived: Vec<(ShardNo, VecDeque<Delivered>)>,
    /// How many jobs this round asked each shard for.
    round_count: u32,
    round_jobs: usize,
    /// TIMEOUT is over: take what is on its way and wait for nothing.
    expired: bool,
    /// What was to be handed out could not be, after all, and the shard has forgotten the request: it is asked again.
    again: bool,
    /// A shard refuses: the answer, unless there are jobs.
    error: Option<CommandError>,
    /// The node leaves the cluster: it keeps nobody waiting.
    leaving: bool,
    was_blocked: bool,
}

/// A home shard in the present round.
struct Asked {
    shard: ShardNo,
    queues: SmallVec<[(u32, Blob); 1]>,
    state: State,
    /// Jobs reserved here and not claimed, in the shard's order.
    offers: VecDeque<InPass>,
    was_full: bool,
}

/// An offer, and in which pass over the queues its shard made it. It stays in that pass when earlier ones are claimed.
struct InPass {
    pass: u32,
    offered: Offered,
}

/// The first offer of each queue is of the first pass, the second of the second, and so on.
fn in_passes(offers: Vec<Offered>) -> impl Iterator<Item = InPass> {
    let mut passes: SmallVec<[(u32, u32); 4]> = SmallVec::new();
    offers.into_iter().map(move |offered| {
        let pass = match passes.iter_mut().find(|(place, _)| *place == offered.place) {
            Some((_, pass)) => {
                *pass += 1;
                *pass
            }
            None => {
                passes.push((offered.place, 0));
                0
            }
        };
        InPass { pass, offered }
    })
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Asked,
    Nothing,
    Waiting,
    Offered,
    Claiming,
}

/// What the session is to do now.
pub(super) enum Step {
    /// Wait for messages.
    Wait,
    /// Send these claims.
    Claim(Vec<(ShardNo, Vec<JobId>)>),
    /// Send these cancels, then ask for the next round.
    NextRound(Vec<ShardNo>),
    /// Send these cancels, then reply with the jobs (null when there are none).
    Reply(Vec<ShardNo>),
    /// Send these cancels; the answer decides.
    Cancel(Vec<ShardNo>),
}

impl GetJobProgress {
    pub fn new(ask: GetJob, shards: u16, leaving: bool) -> Self {
        let mut asked: Vec<Asked> = Vec::new();
        for entry in ask.queues.iter().cloned() {
            let shard = Slot::of_queue(&entry.1).home(shards);
            match asked.iter_mut().find(|asked| asked.shard == shard) {
                Some(asked) => asked.queues.push(entry),
                None => asked.push(Asked {
                    shard,
                    queues: SmallVec::from_iter([entry]),
                    state: State::Nothing,
                    offers: VecDeque::new(),
                    was_full: false,
                }),
            }
        }
        Self {
            ask,
            shards: asked,
            jobs: Vec::new(),
            bytes: 0,
            claimed: Vec::new(),
            arrived: Vec::new(),
            round_count: 0,
            round_jobs: 0,
            expired: false,
            again: false,
            error: None,
            leaving,
            was_blocked: false,
        }
    }

    /// Whether any shard keeps it as a waiter and none owes an answer.
    pub fn is_waiting(&self) -> bool {
        self.shards.iter().any(|asked| asked.state == State::Waiting)
    }

    /// Bytes of the jobs that were handed out so far.
    pub fn held_bytes(&self) -> usize {
        self.bytes
    }

    /// Whether it had to wait for jobs.
    pub fn was_blocked(&self) -> bool {
        self.was_blocked
    }

    /// TIMEOUT in milliseconds, when it blocks and ends, and has not ended.
    pub fn timeout_ms(&self) -> Option<u64> {
        (!self.ask.nohang && self.ask.timeout_ms > 0 && !self.expired).then_some(self.ask.timeout_ms)
    }

    pub fn with_counters(&self) -> bool {
        self.ask.with_counters
    }

    /// The jobs for the reply, or the error that is the reply.
    pub fn into_jobs(self) -> Result<Vec<Delivered>, CommandError> {
        match self.error {
            Some(error) if self.jobs.is_empty() => Err(error),
            None if self.jobs.is_empty() && self.leaving && !self.ask.nohang => Err(CommandError::Leaving),
            _ => Ok(self.jobs),
        }
    }

    /// The jobs that were handed out, when the session dies before its reply.
    pub fn handed_out(&self) -> impl Iterator<Item = &Delivered> {
        self.jobs
            .iter()
            .chain(self.arrived.iter().flat_map(|(_, jobs)| jobs))
    }

    fn manner(&self) -> Manner {
        if self.shards.len() == 1 {
            Manner::Deliver
        } else {
            Manner::Offer
        }
    }

    fn wanted(&self) -> u64 {
        self.ask.count.saturating_sub(self.jobs.len() as u64)
    }

    /// The requests of a new round.
    pub fn begin_round(&mut self) -> VecDeque<(ShardNo, Take)> {
        let manner = self.manner();
        let step = if manner == Manner::Deliver {
            limits::TAKE_STEP
        } else {
            limits::OFFER_STEP
        };
        let patience = match (
            self.jobs.is_empty() && !self.expired,
            self.ask.nohang || self.leaving,
        ) {
            (false, _) => Patience::None,
            (true, true) => Patience::Reserved,
            (true, false) => Patience::Jobs,
        };
        self.again = false;
        self.round_count = self.wanted().min(u64::from(step)) as u32;
        self.round_jobs = 0;
        let count = self.round_count;
        self.shards
            .iter_mut()
            .map(|asked| {
                asked.state = State::Asked;
                asked.offers.clear();
                asked.was_full = false;
                (
                    asked.shard,
                    Take {
                        queues: asked.queues.clone(),
                        count,
                        manner,
                        patience,
                    },
                )
            })
            .collect()
    }

    /// The only shard was asked already, and keeps the answer back: as if a first round had been sent.
    pub fn began_waiting(&mut self) {
        self.begin_round();
        self.shards[0].state = State::Waiting;
    }

    /// Takes in what a shard said and says what to do.
    pub fn absorb(&mut self, from: ShardNo, answer: Answer) -> Step {
        let count = self.round_count as usize;
        let delivers = self.manner() == Manner::Deliver;
        let Some(asked) = self.shards.iter_mut().find(|asked| asked.shard == from) else {
            unreachable!("an answer of a shard that was not asked")
        };
        match answer {
            Answer::Waiting => {
                asked.state = State::Waiting;
                self.was_blocked = true;
            }
            Answer::Nothing => asked.state = State::Nothing,
            Answer::Error(error) => {
                asked.state = State::Nothing;
                asked.offers.clear();
                self.error = Some(error);
            }
            Answer::Offers(offers) => {
                asked.was_full |= offers.len() >= count;
                // A shard offers anew only when nothing is left of what it offered before.
                asked.offers = in_passes(offers).collect();
                if asked.state != State::Claiming {
                    asked.state = State::Offered;
                }
            }
            Answer::Jobs(jobs) if asked.state == State::Claiming => {
                // Whatever the claim gave, the shard keeps the request until it is cancelled, and may offer again.
                asked.state = if asked.offers.is_empty() {
                    State::Waiting
                } else {
                    State::Offered
                };
                self.arrived.push((from, jobs.into()));
            }
            Answer::Jobs(jobs) => {
                asked.state = State::Nothing;
                // An offering shard has said before that the request is over (FLUSHALL), when a claim crosses that.
                self.again = jobs.is_empty() && delivers;
                self.round_jobs += jobs.len();
                self.take(jobs);
            }
            other => unreachable!("no answer to a Take: {other:?}"),
        }
        self.decide()
    }

    /// TIMEOUT is over.
    pub fn expire(&mut self) -> Step {
        self.expired = true;
        self.decide()
    }

    /// The node leaves the cluster from now on.
    pub fn leave(&mut self) -> Step {
        self.leaving = true;
        self.expire()
    }

    /// Whether it blocks when there is no job.
    pub fn may_block(&self) -> bool {
        !self.ask.nohang && !self.expired
    }

    /// The session is gone: the shards that may keep a waiter or offers for it.
    pub fn kept(&self) -> Vec<ShardNo> {
        self.shards
            .iter()
            .filter(|asked| asked.state != State::Nothing)
            .map(|asked| asked.shard)
            .collect()
    }

    fn take(&mut self, jobs: Vec<Delivered>) {
        self.bytes += jobs.iter().map(super::progress::delivered_bytes).sum::<usize>();
        if self.jobs.is_empty() {
            self.jobs = jobs;
        } else {
            self.jobs.extend(jobs);
        }
    }

    fn decide(&mut self) -> Step {
        if self
            .shards
            .iter()
            .any(|asked| matches!(asked.state, State::Asked | State::Claiming))
        {
            return Step::Wait;
        }
        self.put_in_order();
        let missing = (self.round_count as usize).saturating_sub(self.round_jobs);
        let offered = self.shards.iter().any(|asked| !asked.offers.is_empty());
        if missing > 0 && offered && !(self.expired && self.round_jobs > 0) {
            return Step::Claim(self.claim(missing));
        }
        if self.again && self.jobs.is_empty() && !self.expired {
            return Step::NextRound(self.kept());
        }
        if self.round_jobs == 0 && self.jobs.is_empty() && self.is_waiting() && self.error.is_none() {
            if !self.expired {
                return Step::Wait;
            }
            if self.manner() == Manner::Deliver {
                // Jobs may be on their way: the home shard says which of the two it was.
                return Step::Cancel(self.kept());
            }
        }
        self.end_round()
    }

    fn end_round(&mut self) -> Step {
        let kept = self.kept();
        let full = match self.manner() {
            Manner::Deliver => self.round_jobs >= self.round_count as usize,
            Manner::Offer => {
                let got_all = self.round_jobs >= self.round_count as usize;
                got_all || (self.round_jobs > 0 && self.shards.iter().any(|asked| asked.was_full))
            }
        };
        if full && self.wanted() > 0 && self.bytes < limits::REPLY_BYTES {
            Step::NextRound(kept)
        } else {
            Step::Reply(kept)
        }
    }

    /// Chooses the next `missing` offers in the order of the pass: the first of each queue in the order of the command, then
    /// the second of each, and so on.
    fn claim(&mut self, missing: usize) -> Vec<(ShardNo, Vec<JobId>)> {
        let mut order: Vec<(u32, u32, ShardNo, JobId)> = Vec::new();
        for asked in &self.shards {
            let entry = |offer: &InPass| (offer.pass, offer.offered.place, asked.shard, offer.offered.id);
            order.extend(asked.offers.iter().map(entry));
        }
        order.sort_unstable_by_key(|&(pass, place, ..)| (pass, place));
        order.truncate(missing);
        let mut claims: Vec<(ShardNo, Vec<JobId>)> = Vec::new();
        for (_, _, shard, id) in order {
            self.claimed.push((shard, id));
            match claims.iter_mut().find(|(to, _)| *to == shard) {
                Some((_, ids)) => ids.push(id),
                None => claims.push((shard, vec![id])),
            }
        }
        for (shard, ids) in &claims {
            let asked = self
                .shards
                .iter_mut()
                .find(|asked| asked.shard == *shard)
                .expect("it was asked");
            let first = asked.offers.drain(..ids.len()).map(|offer| offer.offered.id);
            assert!(
                first.eq(ids.iter().copied()),
                "the order of the pass is the shard's own order"
            );
            asked.state = State::Claiming;
        }
        claims
    }

    /// Puts the claimed jobs that arrived in the order in which they were claimed.
    fn put_in_order(&mut self) {
        if self.claimed.is_empty() {
            return;
        }
        let mut arrived = std::mem::take(&mut self.arrived);
        let mut jobs = Vec::new();
        for (shard, id) in std::mem::take(&mut self.claimed) {
            let next = arrived
                .iter_mut()
                .find(|(from, rest)| *from == shard && rest.front().is_some_and(|job| job.handed.id == id));
            if let Some((_, rest)) = next {
                jobs.extend(rest.pop_front());
            }
        }
        assert!(
            arrived.iter().all(|(_, rest)| rest.is_empty()),
            "jobs arrived that were not claimed"
        );
        self.round_jobs += jobs.len();
        self.take(jobs);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::id::NodeId;
    use crate::message::Handed;

    fn queue_on(shard: ShardNo) -> Blob {
        let names = (0..).map(|number| Blob::from(format!("q{number}").as_str()));
        names
            .into_iter()
            .find(|name| Slot::of_queue(name).home(2) == shard)
            .expect("names are many")
    }

    fn id(number: u8) -> JobId {
        JobId::new(
            NodeId::from_bytes([1; 20]),
            Slot::from_number(1),
            [number; 18],
            60,
            true,
        )
    }

    fn offers(place: u32, numbers: &[u8]) -> Answer {
        Answer::Offers(
            numbers
                .iter()
                .map(|&number| Offered {
                    place,
                    id: id(number),
                })
                .collect(),
        )
    }

    fn delivered(place: u32, number: u8) -> Delivered {
        Delivered {
            place,
            queue: Blob::EMPTY,
            handed: Handed {
                id: id(number),
                delivery: 1,
            },
            body: Blob::EMPTY,
            nacks: 0,
            additional_deliveries: 0,
        }
    }

    fn claims(step: Step) -> Vec<(ShardNo, Vec<JobId>)> {
        match step {
            Step::Claim(claims) => claims,
            _ => panic!("a claim was due"),
        }
    }

    #[test]
    fn what_a_shard_offers_anew_replaces_what_it_offered_before() {
        let ask = GetJob {
            queues: [(0, queue_on(1)), (1, queue_on(0))].into_iter().collect(),
            count: 3,
            timeout_ms: 0,
            nohang: false,
            with_counters: false,
        };
        let mut getjob = GetJobProgress::new(ask, 2, false);
        getjob.begin_round();
        assert!(matches!(getjob.absorb(1, offers(0, &[10, 11, 12])), Step::Wait));
        let first = claims(getjob.absorb(0, offers(1, &[20, 21])));
        assert_eq!(first, [(1, vec![id(10), id(11)]), (0, vec![id(20)])]);
        // All that shard 1 had offered is gone meanwhile; it refuses the claim and offers other jobs.
        assert!(matches!(getjob.absorb(1, Answer::Jobs(Vec::new())), Step::Wait));
        assert!(matches!(getjob.absorb(1, offers(0, &[30, 31, 32])), Step::Wait));
        let second = claims(getjob.absorb(0, Answer::Jobs(vec![delivered(1, 20)])));
        assert_eq!(
            second,
            [(1, vec![id(30), id(31)])],
            "an offer stays in the pass it was made in"
        );
        let last = getjob.absorb(1, Answer::Jobs(vec![delivered(0, 30), delivered(0, 31)]));
        assert!(matches!(last, Step::Reply(_)));
        let ids: Vec<JobId> = getjob
            .into_jobs()
            .unwrap()
            .iter()
            .map(|job| job.handed.id)
            .collect();
        assert_eq!(ids, [id(20), id(30), id(31)]);
    }
}
