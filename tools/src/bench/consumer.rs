//! The fetching side of a connection: rounds of acknowledgements and fetches.
//!
//! A round starts with the acknowledgement of all jobs of the round before and fills up with fetches; with a
//! pipeline of one they take turns. Acknowledgements come first since a fetch that blocks would hold back
//! what is behind it. For the same reason only the first fetch of a round may block: were it the second,
//! jobs fetched by the first would wait for their acknowledgement until more jobs come, at the end of a load
//! until the timeout.
//!
//! A consumer whose queues do not fit into one fetch never blocks, since jobs may wait in its other queues.
//!
//! When the load is all received, a consumer acknowledges what it has and is done.

use super::board::Gains;
use super::commands::{Acks, BLOCK_MS, BLOCK_OPEN_MS, Fetch};
use super::connection::Round;
use super::error::BenchError;
use super::ledger::{Ledger, Seen};
use super::plan::Plan;
use super::scan::Event;
use super::target::Target;

/// How a consumer works.
#[derive(Clone, Copy, Debug)]
pub struct Habits {
    /// Whose jobs they are.
    pub target: Target,
    /// Commands in a round.
    pub pipeline: u32,
    /// Most jobs in one fetch.
    pub count: u32,
    /// True if a round's first fetch blocks when there is no job; else none does, and the consumer pauses.
    pub blocks: bool,
    /// True in an open loop: every round has one fetch behind its acknowledgements, since most of a pipeline
    /// would find nothing.
    pub is_paced: bool,
    /// ACKJOB or FASTACK, for Disque's protocol.
    pub acknowledge: &'static str,
    /// Most IDs in one acknowledgement.
    pub ack_ids_max: usize,
}

/// Fetches and acknowledges jobs of its queues.
#[derive(Debug)]
pub struct Consumer {
    habits: Habits,
    queues: Vec<Vec<u8>>,
    fetches: Vec<Fetch>,
    next_fetch: usize,
    acks: Acks,
    /// Acknowledgements of this round not answered yet; they are answered before its fetches.
    acks_awaited: u32,
    /// True if the last fetches brought nothing.
    is_starved: bool,
}

impl Consumer {
    /// The consumer with this number.
    pub fn new(plan: &Plan, number: u32, habits: Habits) -> Self {
        let target = habits.target;
        let queues = plan.queues_of(number, plan.consumers);
        let names: Vec<Vec<u8>> = queues.iter().map(|queue| plan.queue_name(*queue)).collect();
        let groups = names.chunks(target.queues_per_fetch_max().min(names.len()));
        let block_ms = if habits.is_paced { BLOCK_OPEN_MS } else { BLOCK_MS };
        let fetches: Vec<Fetch> = groups
            .map(|group| Fetch::new(target, plan, number, group, habits.count, block_ms))
            .collect();
        let (command, ids_max) = (habits.acknowledge, habits.ack_ids_max);
        Self {
            habits: Habits {
                blocks: habits.blocks && fetches.len() == 1,
                ..habits
            },
            fetches,
            queues: names,
            next_fetch: 0,
            acks: Acks::new(target, plan, number, &queues, command, ids_max),
            acks_awaited: 0,
            is_starved: false,
        }
    }

    /// Names of the queues it fetches from.
    pub fn queues(&self) -> &[Vec<u8>] {
        &self.queues
    }

    /// Appends the next round; `is_finished` when all jobs of the load have been received.
    pub fn next_round(&mut self, out: &mut Vec<u8>, is_finished: bool) -> Round {
        let acks = self.acks.append(out);
        self.acks_awaited = acks;
        if acks == 0 && is_finished {
            return Round::Done;
        }
        if acks == 0 && std::mem::take(&mut self.is_starved) && !self.habits.blocks {
            return Round::Pause;
        }
        let fetches = match (is_finished, self.habits.is_paced) {
            (true, _) => 0,
            (false, true) => 1,
            (false, false) => self.habits.pipeline.saturating_sub(acks),
        };
        self.append_fetches(out, fetches);
        Round::Sent(acks + fetches)
    }

    /// Takes one event of a reply; true if the reply ends with it.
    pub fn take(
        &mut self,
        event: &Event<'_>,
        ledger: &Ledger,
        gains: &mut Gains,
    ) -> Result<bool, BenchError> {
        if self.acks_awaited > 0 {
            self.take_ack(event, gains)?;
            return Ok(true);
        }
        match event {
            Event::Nothing => Ok(true),
            Event::Job {
                queue,
                id,
                body,
                last,
            } => {
                let seen = ledger.enter(body);
                gains.received.count(seen);
                self.is_starved = false;
                // Jobs of others are not ours to remove.
                if seen != Seen::Foreign && !self.acks.push(*queue, id) {
                    return Err(event.refusal(Fetch::name(self.habits.target)));
                }
                Ok(*last)
            }
            _ => Err(event.refusal(Fetch::name(self.habits.target))),
        }
    }

    fn take_ack(&mut self, event: &Event<'_>, gains: &mut Gains) -> Result<(), BenchError> {
        let &Event::Number(jobs) = event else {
            return Err(event.refusal(self.acks.name()));
        };
        let jobs = u64::try_from(jobs).map_err(|_| event.refusal(self.acks.name()))?;
        if self.acks.counts(self.acks_awaited) {
            gains.acknowledged += jobs;
        }
        self.acks_awaited -= 1;
        Ok(())
    }

    fn append_fetches(&mut self, out: &mut Vec<u8>, fetches: u32) {
        for number in 0..fetches {
            let fetch = &self.fetches[self.next_fetch];
            self.next_fetch = (self.next_fetch + 1) % self.fetches.len();
            let may_block = number == 0 && self.habits.blocks;
            out.extend_from_slice(if may_block { &fetch.blocking } else { &fetch.nohang });
        }
        self.is_starved = fetches > 0;
    }
}

#[cfg(test)]
mod tests {
    use super::super::commands::tests::text;
    use super::*;

    fn load() -> Plan {
        Plan {
            run: 1,
            producers: 1,
            consumers: 1,
            queues: 1,
            jobs: 100,
            bodies: vec![1],
        }
    }

    fn consumer(pipeline: u32, blocks: bool, ack_ids_max: usize) -> (Consumer, Ledger, Gains) {
        let habits = Habits {
            target: Target::Shardq,
            pipeline,
            count: 2,
            blocks,
            is_paced: false,
            acknowledge: "FASTACK",
            ack_ids_max,
        };
        (
            Consumer::new(&load(), 0, habits),
            Ledger::new(&load()),
            Gains::default(),
        )
    }

    #[test]
    fn a_round_acknowledges_then_fetches_and_only_its_first_fetch_blocks() {
        let (mut consumer, ledger, mut gains) = consumer(3, true, usize::MAX);
        let mut out = Vec::new();
        assert_eq!(consumer.next_round(&mut out, false), Round::Sent(3));
        let blocking = "| GETJOB TIMEOUT 100 COUNT 2 FROM bench-00000001-0";
        let nohang = "| GETJOB NOHANG COUNT 2 FROM bench-00000001-0";
        assert_eq!(text(&out), [blocking, nohang, nohang].join(" "));
        for (id, last) in [(b"D1", false), (b"D2", true)] {
            let job = Event::Job {
                queue: 0,
                id,
                body: b"x",
                last,
            };
            assert_eq!(consumer.take(&job, &ledger, &mut gains).unwrap(), last);
        }
        assert!(consumer.take(&Event::Nothing, &ledger, &mut gains).unwrap());
        out.clear();
        assert_eq!(consumer.next_round(&mut out, false), Round::Sent(3));
        assert_eq!(text(&out), ["| FASTACK D1 D2", blocking, nohang].join(" "));
        assert!(consumer.take(&Event::Number(2), &ledger, &mut gains).unwrap());
        assert_eq!((gains.received.fresh, gains.acknowledged), (2, 2));
    }

    #[test]
    fn a_pipeline_of_one_alternates() {
        let (mut consumer, ledger, mut gains) = consumer(1, false, usize::MAX);
        let mut out = Vec::new();
        assert_eq!(consumer.next_round(&mut out, false), Round::Sent(1));
        consumer
            .take(
                &Event::Job {
                    queue: 0,
                    id: b"D1",
                    body: b"x",
                    last: true,
                },
                &ledger,
                &mut gains,
            )
            .unwrap();
        out.clear();
        assert_eq!(consumer.next_round(&mut out, false), Round::Sent(1));
        assert_eq!(text(&out), "| FASTACK D1");
        consumer.take(&Event::Number(1), &ledger, &mut gains).unwrap();
        assert_eq!(consumer.next_round(&mut out, false), Round::Sent(1));
        consumer.take(&Event::Nothing, &ledger, &mut gains).unwrap();
        assert_eq!(consumer.next_round(&mut out, false), Round::Pause);
        assert_eq!(
            consumer.next_round(&mut out, false),
            Round::Sent(1),
            "after the pause it asks again"
        );
    }

    #[test]
    fn a_finished_consumer_acknowledges_and_leaves() {
        let (mut consumer, ledger, mut gains) = consumer(2, true, 1);
        let mut out = Vec::new();
        consumer.next_round(&mut out, false);
        for id in [b"D1", b"D2"] {
            consumer
                .take(
                    &Event::Job {
                        queue: 0,
                        id,
                        body: b"x",
                        last: true,
                    },
                    &ledger,
                    &mut gains,
                )
                .unwrap();
        }
        out.clear();
        assert_eq!(consumer.next_round(&mut out, true), Round::Sent(2));
        assert_eq!(text(&out), "| FASTACK D1 | FASTACK D2");
        assert!(
            consumer.take(&Event::Nothing, &ledger, &mut gains).is_err(),
            "no answer to FASTACK"
        );
        consumer.take(&Event::Number(1), &ledger, &mut gains).unwrap();
        consumer.take(&Event::Number(1), &ledger, &mut gains).unwrap();
        assert_eq!(consumer.next_round(&mut out, true), Round::Done);
    }

    #[test]
    fn in_an_open_loop_one_fetch_stands_behind_the_acknowledgements() {
        let habits = Habits {
            is_paced: true,
            ..consumer(16, true, usize::MAX).0.habits
        };
        let (mut consumer, ledger) = (Consumer::new(&load(), 0, habits), Ledger::new(&load()));
        let (mut out, mut gains) = (Vec::new(), Gains::default());
        let fetch = "| GETJOB TIMEOUT 1000 COUNT 2 FROM bench-00000001-0";
        assert_eq!(consumer.next_round(&mut out, false), Round::Sent(1));
        assert_eq!(text(&out), fetch);
        let job = Event::Job {
            queue: 0,
            id: b"D1",
            body: b"x",
            last: true,
        };
        consumer.take(&job, &ledger, &mut gains).unwrap();
        out.clear();
        assert_eq!(consumer.next_round(&mut out, false), Round::Sent(2));
        assert_eq!(text(&out), format!("| FASTACK D1 {fetch}"));
    }

    #[test]
    fn a_consumer_of_many_queues_takes_turns_and_never_blocks() {
        let plan = Plan { queues: 3, ..load() };
        let habits = Habits {
            target: Target::RedisList,
            pipeline: 4,
            count: 1,
            blocks: true,
            is_paced: false,
            acknowledge: "ACKJOB",
            ack_ids_max: usize::MAX,
        };
        let mut consumer = Consumer::new(&plan, 0, habits);
        let mut out = Vec::new();
        assert_eq!(consumer.next_round(&mut out, false), Round::Sent(4));
        let asked = text(&out);
        let of = |queue: u32| format!("| LMOVE bench-00000001-{queue} bench-00000001-work-0 RIGHT LEFT");
        assert_eq!(asked, [of(0), of(1), of(2), of(0)].join(" "));
    }
}
