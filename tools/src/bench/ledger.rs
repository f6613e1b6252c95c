//! Which jobs came back: a bit for every job of a load, and the verdict at the end.
//!
//! Must hold: a job is `Fresh` exactly once, whichever threads receive it, so bits are set atomically and
//! "all fresh" means "all received". A bench that cannot fail proves nothing: lost, doubled, foreign and
//! altered jobs each have a count, and the tests feed it each of them.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use serde::{Deserialize, Serialize};

use super::plan::{self, MARK_BYTES, PRODUCER_AT, Plan, SEQUENCE_AT};

/// How many missing jobs a verdict names.
const EXAMPLES_MAX: usize = 5;

/// The jobs of one load that were received.
#[derive(Debug)]
pub struct Ledger {
    blank_bodies: Vec<Vec<u8>>,
    marked: bool,
    jobs: u64,
    producers: Vec<Received>,
}

#[derive(Debug)]
struct Received {
    jobs: u32,
    bits: Vec<AtomicU64>,
}

/// What a received job is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Seen {
    /// Ours, for the first time.
    Fresh,
    /// Ours, received before.
    Doubled,
    /// Not of this load.
    Foreign,
    /// Its size or padding is not what was sent.
    Altered,
}

/// Deliveries by kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Tally {
    /// Jobs received for the first time.
    pub fresh: u64,
    /// Jobs received again.
    pub doubled: u64,
    /// Jobs not of this load.
    pub foreign: u64,
    /// Jobs whose body was changed.
    pub altered: u64,
}

impl Tally {
    /// Counts one delivery.
    pub fn count(&mut self, seen: Seen) {
        match seen {
            Seen::Fresh => self.fresh += 1,
            Seen::Doubled => self.doubled += 1,
            Seen::Foreign => self.foreign += 1,
            Seen::Altered => self.altered += 1,
        }
    }

    /// Adds another tally.
    pub fn add(&mut self, other: &Self) {
        self.fresh += other.fresh;
        self.doubled += other.doubled;
        self.foreign += other.foreign;
        self.altered += other.altered;
    }
}

impl Ledger {
    /// An empty ledger of a load.
    pub fn new(plan: &Plan) -> Self {
        let received = |producer| {
            let jobs = plan.jobs_of(producer);
            Received {
                jobs,
                bits: (0..jobs.div_ceil(64)).map(|_| AtomicU64::new(0)).collect(),
            }
        };
        let marked = plan.is_marked();
        let producers = if marked {
            (0..plan.producers).map(received).collect()
        } else {
            Vec::new()
        };
        Self {
            blank_bodies: plan.blank_bodies(),
            marked,
            jobs: plan.jobs,
            producers,
        }
    }

    /// Enters a received body. Bodies too small for a mark are all `Fresh`: they can only be counted.
    pub fn enter(&self, body: &[u8]) -> Seen {
        if !self.marked {
            let is_sent = self.blank_bodies.iter().any(|blank| blank == body);
            return if is_sent { Seen::Fresh } else { Seen::Altered };
        }
        if body.len() < MARK_BYTES {
            return Seen::Altered;
        }
        if body[..4] != self.blank_bodies[0][..4] {
            return Seen::Foreign;
        }
        let sequence = plan::number_at(body, SEQUENCE_AT);
        let producer = plan::number_at(body, PRODUCER_AT) as usize;
        let Some(received) = self.producers.get(producer).filter(|known| sequence < known.jobs) else {
            return Seen::Foreign;
        };
        let blank = &self.blank_bodies[plan::size_of(sequence, self.blank_bodies.len())];
        if body[MARK_BYTES..] != blank[MARK_BYTES..] {
            return Seen::Altered;
        }
        let bit = 1 << (sequence % 64);
        let before = received.bits[sequence as usize / 64].fetch_or(bit, Relaxed);
        if before & bit == 0 {
            Seen::Fresh
        } else {
            Seen::Doubled
        }
    }

    /// The verdict over a finished load: `tally` of all consumers, the jobs whose acknowledgement the server
    /// confirmed, and the jobs it still has queued.
    pub fn verdict(&self, tally: &Tally, acknowledged: u64, left_queued: u64) -> Verdict {
        Verdict {
            expected: self.jobs,
            marked: self.marked,
            missing: self.jobs.saturating_sub(tally.fresh),
            surplus: tally.fresh.saturating_sub(self.jobs),
            doubled: tally.doubled,
            foreign: tally.foreign,
            altered: tally.altered,
            unacknowledged: self.jobs.saturating_sub(acknowledged),
            left_queued,
            missing_examples: self.missing().take(EXAMPLES_MAX).collect(),
        }
    }

    /// The jobs not received, as producer and sequence number.
    fn missing(&self) -> impl Iterator<Item = (u32, u32)> + '_ {
        self.producers
            .iter()
            .enumerate()
            .flat_map(|(producer, received)| {
                let is_missing = |sequence: &u32| {
                    received.bits[*sequence as usize / 64].load(Relaxed) & (1 << (sequence % 64)) == 0
                };
                (0..received.jobs)
                    .filter(is_missing)
                    .map(move |sequence| (producer as u32, sequence))
            })
    }
}

/// What became of the jobs of a load.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Verdict {
    /// Jobs that were added.
    pub expected: u64,
    /// True if jobs could be told apart; else only their number was checked.
    pub marked: bool,
    /// Jobs never received.
    pub missing: u64,
    /// Jobs received beyond the expected number (bodies without a mark only).
    pub surplus: u64,
    /// Deliveries of a job that had been received before.
    pub doubled: u64,
    /// Deliveries of jobs of other loads.
    pub foreign: u64,
    /// Deliveries whose body had been changed.
    pub altered: u64,
    /// Jobs whose acknowledgement the server did not confirm.
    pub unacknowledged: u64,
    /// Jobs in the queues after everything had been acknowledged.
    pub left_queued: u64,
    /// The first missing jobs: producer and sequence number.
    pub missing_examples: Vec<(u32, u32)>,
}

impl Verdict {
    /// True if every job came exactly once and went for good.
    pub fn passed(&self) -> bool {
        self.faults().is_empty()
    }

    /// What is wrong, in words.
    pub fn faults(&self) -> Vec<String> {
        let kinds = [
            (self.missing, "missing"),
            (self.surplus, "more than were added"),
            (self.doubled, "doubled"),
            (self.foreign, "of another load"),
            (self.altered, "altered"),
            (self.unacknowledged, "not acknowledged"),
            (self.left_queued, "still queued"),
        ];
        let wrong = kinds.iter().filter(|(jobs, _)| *jobs > 0);
        let mut faults: Vec<String> = wrong.map(|(jobs, kind)| format!("{jobs} {kind}")).collect();
        if !self.missing_examples.is_empty() {
            let named = self
                .missing_examples
                .iter()
                .map(|(producer, sequence)| format!("{producer}:{sequence}"));
            faults.push(format!(
                "first missing (producer:sequence) {}",
                named.collect::<Vec<_>>().join(" ")
            ));
        }
        faults
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan(body_bytes: usize) -> Plan {
        Plan {
            run: 7,
            producers: 3,
            consumers: 1,
            queues: 1,
            jobs: 200,
            bodies: vec![body_bytes],
        }
    }

    fn body(plan: &Plan, producer: u32, sequence: u32) -> Vec<u8> {
        let size = plan::size_of(sequence, plan.bodies.len());
        let mut body = plan.blank_bodies().swap_remove(size);
        body[PRODUCER_AT].copy_from_slice(&producer.to_be_bytes());
        body[SEQUENCE_AT].copy_from_slice(&sequence.to_be_bytes());
        body
    }

    fn enter_all_but(ledger: &Ledger, plan: &Plan, left_out: Option<(u32, u32)>) -> Tally {
        let mut tally = Tally::default();
        for producer in 0..plan.producers {
            for sequence in 0..plan.jobs_of(producer) {
                if left_out != Some((producer, sequence)) {
                    tally.count(ledger.enter(&body(plan, producer, sequence)));
                }
            }
        }
        tally
    }

    #[test]
    fn a_complete_load_passes() {
        let plan = plan(20);
        let ledger = Ledger::new(&plan);
        let tally = enter_all_but(&ledger, &plan, None);
        assert_eq!(
            tally,
            Tally {
                fresh: 200,
                ..Tally::default()
            }
        );
        assert!(ledger.verdict(&tally, 200, 0).passed());
        assert!(!ledger.verdict(&tally, 199, 0).passed());
        assert!(!ledger.verdict(&tally, 200, 1).passed());
    }

    #[test]
    fn a_lost_job_is_named() {
        let plan = plan(12);
        let ledger = Ledger::new(&plan);
        let tally = enter_all_but(&ledger, &plan, Some((2, 65)));
        let verdict = ledger.verdict(&tally, 199, 0);
        assert_eq!((verdict.missing, verdict.unacknowledged), (1, 1));
        assert_eq!(verdict.missing_examples, [(2, 65)]);
        assert!(!verdict.passed());
    }

    #[test]
    fn one_lost_and_one_doubled_do_not_cancel_out() {
        let plan = plan(12);
        let ledger = Ledger::new(&plan);
        let mut tally = enter_all_but(&ledger, &plan, Some((0, 3)));
        tally.count(ledger.enter(&body(&plan, 0, 4)));
        let verdict = ledger.verdict(&tally, 200, 0);
        assert_eq!((verdict.missing, verdict.doubled), (1, 1));
        assert!(!verdict.passed());
    }

    #[test]
    fn foreign_and_altered_bodies_are_seen() {
        let plan = plan(20);
        let ledger = Ledger::new(&plan);
        let good = body(&plan, 1, 1);
        let changed = |at: usize| {
            let mut body = good.clone();
            body[at] ^= 1;
            ledger.enter(&body)
        };
        assert_eq!(changed(3), Seen::Foreign, "another run");
        assert_eq!(changed(4), Seen::Foreign, "a producer that does not exist");
        assert_eq!(changed(8), Seen::Foreign, "a sequence number that was never sent");
        assert_eq!(changed(19), Seen::Altered);
        assert_eq!(ledger.enter(&good[..19]), Seen::Altered);
        assert_eq!(
            ledger.enter(&good),
            Seen::Fresh,
            "none of these may have set its bit"
        );
    }

    #[test]
    fn a_body_must_have_the_size_it_was_sent_with() {
        let plan = Plan {
            bodies: vec![12, 30],
            ..plan(12)
        };
        let ledger = Ledger::new(&plan);
        let long = (0..)
            .find(|sequence| body(&plan, 0, *sequence).len() == 30)
            .unwrap();
        assert_eq!(ledger.enter(&body(&plan, 0, long)[..12]), Seen::Altered);
        assert_eq!(enter_all_but(&ledger, &plan, None).fresh, 200);
    }

    #[test]
    fn small_bodies_are_counted() {
        let plan = plan(2);
        let ledger = Ledger::new(&plan);
        assert_eq!(ledger.enter(b"xx"), Seen::Fresh);
        assert_eq!(ledger.enter(b"xy"), Seen::Altered);
        let tally = Tally {
            fresh: 201,
            ..Tally::default()
        };
        assert_eq!(ledger.verdict(&tally, 201, 0).surplus, 1);
    }
}
