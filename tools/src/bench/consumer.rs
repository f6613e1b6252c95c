//! The fetching side of a connection: rounds of acknowledgements and GETJOBs.
//!
//! A round starts with the acknowledgement of all jobs of the round before and fills up with GETJOBs; with a
//! pipeline of one they take turns. Acknowledgements come first since a GETJOB that blocks would hold back
//! what is behind it. For the same reason only the first GETJOB of a round may block: were it the second,
//! jobs fetched by the first would wait for their acknowledgement until more jobs come, at the end of a load
//! until the timeout.
//!
//! When the load is all received, a consumer acknowledges what it has and is done.

use super::board::Gains;
use super::connection::Round;
use super::error::BenchError;
use super::ledger::{Ledger, Seen};
use super::plan::Plan;
use super::scan::Event;
use crate::client::{append_bulk, append_command, append_header};

/// How long a GETJOB blocks; short, since a load ends when the last blocked consumer has been answered.
const BLOCK_MS: u32 = 100;

/// Most queues one GETJOB asks for; a consumer with more asks for them in groups, one after the other.
const QUEUES_PER_FETCH_MAX: usize = 16;

/// How a consumer works.
#[derive(Clone, Copy, Debug)]
pub struct Habits {
    /// Commands in a round.
    pub pipeline: u32,
    /// COUNT of GETJOB.
    pub count: u32,
    /// True if a round's first GETJOB blocks when there is no job; else none does, and the consumer pauses.
    pub blocks: bool,
    /// ACKJOB or FASTACK.
    pub acknowledge: &'static str,
    /// Most IDs in one acknowledgement.
    pub ack_ids_max: usize,
}

/// Fetches and acknowledges jobs of its queues.
#[derive(Debug)]
pub struct Consumer {
    habits: Habits,
    fetches: Vec<Fetch>,
    next_fetch: usize,
    unacknowledged: Ids,
    /// Acknowledgements of this round not answered yet; they are answered before its GETJOBs.
    acks_awaited: u32,
    /// True if the last GETJOBs brought nothing.
    is_starved: bool,
}

/// The GETJOB of a group of queues, prebuilt.
#[derive(Debug)]
struct Fetch {
    blocking: Vec<u8>,
    nohang: Vec<u8>,
}

/// Job IDs as bulk strings one behind the other, and where each ends.
#[derive(Debug, Default)]
struct Ids {
    bulks: Vec<u8>,
    ends: Vec<usize>,
}

impl Consumer {
    /// The consumer with this number.
    pub fn new(plan: &Plan, number: u32, habits: Habits) -> Self {
        let queues = plan.queues_of(number, plan.consumers);
        let names: Vec<Vec<u8>> = queues.iter().map(|queue| plan.queue_name(*queue)).collect();
        let fetches = names
            .chunks(QUEUES_PER_FETCH_MAX)
            .map(|group| Fetch::new(group, habits.count))
            .collect();
        let unacknowledged = Ids::default();
        Self {
            habits,
            fetches,
            next_fetch: 0,
            unacknowledged,
            acks_awaited: 0,
            is_starved: false,
        }
    }

    /// Appends the next round; `is_finished` when all jobs of the load have been received.
    pub fn next_round(&mut self, out: &mut Vec<u8>, is_finished: bool) -> Round {
        let acks = self.append_acks(out);
        self.acks_awaited = acks;
        if acks == 0 && is_finished {
            return Round::Done;
        }
        if acks == 0 && std::mem::take(&mut self.is_starved) && !self.habits.blocks {
            return Round::Pause;
        }
        let fetches = if is_finished {
            0
        } else {
            self.habits.pipeline.saturating_sub(acks)
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
            let &Event::Number(jobs) = event else {
                return Err(event.refusal(self.habits.acknowledge));
            };
            self.acks_awaited -= 1;
            gains.acknowledged += u64::try_from(jobs).map_err(|_| event.refusal(self.habits.acknowledge))?;
            return Ok(true);
        }
        match event {
            Event::Nothing => Ok(true),
            Event::Job { id, body, last } => {
                let seen = ledger.enter(body);
                gains.received.count(seen);
                self.is_starved = false;
                // Jobs of others are not ours to remove.
                if seen != Seen::Foreign {
                    self.unacknowledged.push(id);
                }
                Ok(*last)
            }
            _ => Err(event.refusal("GETJOB")),
        }
    }

    fn append_acks(&mut self, out: &mut Vec<u8>) -> u32 {
        let ids = &mut self.unacknowledged;
        let (mut acks, mut start) = (0, 0);
        for group in ids.ends.chunks(self.habits.ack_ids_max) {
            let end = group[group.len() - 1];
            append_header(out, b'*', 1 + group.len());
            append_bulk(out, self.habits.acknowledge.as_bytes());
            out.extend_from_slice(&ids.bulks[start..end]);
            start = end;
            acks += 1;
        }
        ids.bulks.clear();
        ids.ends.clear();
        acks
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

impl Fetch {
    fn new(queues: &[Vec<u8>], count: u32) -> Self {
        let command = |how: &[&str]| {
            let count = count.to_string();
            let mut words: Vec<&[u8]> = vec![b"GETJOB"];
            words.extend(how.iter().map(|word| word.as_bytes()));
            words.extend([b"COUNT".as_slice(), count.as_bytes(), b"FROM"]);
            words.extend(queues.iter().map(Vec::as_slice));
            let mut bytes = Vec::new();
            append_command(&mut bytes, &words);
            bytes
        };
        Self {
            blocking: command(&["TIMEOUT", &BLOCK_MS.to_string()]),
            nohang: command(&["NOHANG"]),
        }
    }
}

impl Ids {
    fn push(&mut self, id: &[u8]) {
        append_bulk(&mut self.bulks, id);
        self.ends.push(self.bulks.len());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLAN: Plan = Plan {
        run: 1,
        producers: 1,
        consumers: 1,
        queues: 1,
        jobs: 100,
        body_bytes: 1,
    };

    fn consumer(pipeline: u32, blocks: bool, ack_ids_max: usize) -> (Consumer, Ledger, Gains) {
        let habits = Habits {
            pipeline,
            count: 2,
            blocks,
            acknowledge: "FASTACK",
            ack_ids_max,
        };
        (
            Consumer::new(&PLAN, 0, habits),
            Ledger::new(&PLAN),
            Gains::default(),
        )
    }

    fn commands(bytes: &[u8]) -> String {
        let text = String::from_utf8(bytes.to_vec()).unwrap();
        let words = text
            .split("\r\n")
            .filter(|word| !word.starts_with('$') && !word.is_empty());
        words
            .map(|word| if word.starts_with('*') { "|" } else { word })
            .collect::<Vec<_>>()
            .join(" ")
    }

    #[test]
    fn a_round_acknowledges_then_fetches_and_only_its_first_fetch_blocks() {
        let (mut consumer, ledger, mut gains) = consumer(3, true, usize::MAX);
        let mut out = Vec::new();
        assert_eq!(consumer.next_round(&mut out, false), Round::Sent(3));
        let blocking = "| GETJOB TIMEOUT 100 COUNT 2 FROM bench-00000001-0";
        let nohang = "| GETJOB NOHANG COUNT 2 FROM bench-00000001-0";
        assert_eq!(commands(&out), [blocking, nohang, nohang].join(" "));
        for (id, last) in [(b"D1", false), (b"D2", true)] {
            let job = Event::Job { id, body: b"x", last };
            assert_eq!(consumer.take(&job, &ledger, &mut gains).unwrap(), last);
        }
        assert!(consumer.take(&Event::Nothing, &ledger, &mut gains).unwrap());
        out.clear();
        assert_eq!(consumer.next_round(&mut out, false), Round::Sent(3));
        assert_eq!(commands(&out), ["| FASTACK D1 D2", blocking, nohang].join(" "));
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
        assert_eq!(commands(&out), "| FASTACK D1");
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
        assert_eq!(commands(&out), "| FASTACK D1 | FASTACK D2");
        assert!(
            consumer.take(&Event::Nothing, &ledger, &mut gains).is_err(),
            "no answer to FASTACK"
        );
        consumer.take(&Event::Number(1), &ledger, &mut gains).unwrap();
        consumer.take(&Event::Number(1), &ledger, &mut gains).unwrap();
        assert_eq!(consumer.next_round(&mut out, true), Round::Done);
    }
}
