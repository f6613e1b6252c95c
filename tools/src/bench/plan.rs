//! What a load consists of: its queues, who adds which jobs, and what a job's body says.
//!
//! A job is known by the run that made it, its producer and its sequence number within that producer: 12
//! bytes at the start of the body, all in big-endian order, with a fixed byte as padding behind. The run's
//! number is also part of the queues' names, so a load never meets the jobs of another one unless it is told
//! to (`--run`).
//!
//! ```text
//! | run: 4 | producer: 4 | sequence: 4 | padding 'x' ... |
//! ```

use std::ops::Range;

/// Bytes of a body that tell one job from all others.
pub const MARK_BYTES: usize = 12;

/// What fills a body behind its mark.
pub const PADDING: u8 = b'x';

/// One load: every number that adding and checking must agree upon.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Number of the run.
    pub run: u32,
    /// Connections that add.
    pub producers: u32,
    /// Connections that fetch.
    pub consumers: u32,
    /// Number of queues.
    pub queues: u32,
    /// Jobs of all producers together.
    pub jobs: u64,
    /// Sizes of the jobs' bodies, which take turns as [`size_of`] says; at least one.
    pub bodies: Vec<usize>,
}

impl Plan {
    /// How many jobs a producer adds: equal shares, the first ones take what is left over.
    pub fn jobs_of(&self, producer: u32) -> u32 {
        assert!(producer < self.producers);
        let producers = u64::from(self.producers);
        let share = self.jobs / producers + u64::from(u64::from(producer) < self.jobs % producers);
        u32::try_from(share).expect("checked when the plan was made")
    }

    /// True if every producer's sequence numbers fit the mark.
    pub fn fits(&self) -> bool {
        self.jobs.div_ceil(self.producers.into()) <= u32::MAX.into()
    }

    /// True if bodies carry a mark, so that jobs can be told apart.
    pub fn is_marked(&self) -> bool {
        self.bodies.iter().all(|bytes| *bytes >= MARK_BYTES)
    }

    /// A queue's name.
    pub fn queue_name(&self, queue: u32) -> Vec<u8> {
        format!("bench-{:08x}-{queue}", self.run).into_bytes()
    }

    /// The list that a consumer of Redis lists keeps its jobs in until they are acknowledged.
    pub fn work_list_name(&self, consumer: u32) -> Vec<u8> {
        format!("bench-{:08x}-work-{consumer}", self.run).into_bytes()
    }

    /// The queues of one of `members` connections: one queue each while there are enough connections, else
    /// every queue has exactly one connection.
    pub fn queues_of(&self, member: u32, members: u32) -> Vec<u32> {
        if members >= self.queues {
            return vec![member % self.queues];
        }
        (member..self.queues).step_by(members as usize).collect()
    }

    /// A body of each size, without its producer's number and sequence number.
    pub fn blank_bodies(&self) -> Vec<Vec<u8>> {
        let blank = |&bytes: &usize| {
            let mut body = vec![PADDING; bytes];
            if self.is_marked() {
                body[..4].copy_from_slice(&self.run.to_be_bytes());
            }
            body
        };
        self.bodies.iter().map(blank).collect()
    }
}

/// Which of so many sizes a job's body has. Sequence numbers are mixed up for it, since queues take turns too,
/// and each of them should get all sizes.
pub fn size_of(sequence: u32, sizes: usize) -> usize {
    if sizes == 1 {
        return 0;
    }
    (sequence.wrapping_mul(0x9E37_79B1) >> 8) as usize % sizes
}

/// Where in the mark the producer's number and the sequence number lie.
pub const PRODUCER_AT: Range<usize> = 4..8;
/// See [`PRODUCER_AT`].
pub const SEQUENCE_AT: Range<usize> = 8..12;

/// Reads a big-endian number of a mark.
pub fn number_at(body: &[u8], at: Range<usize>) -> u32 {
    u32::from_be_bytes(body[at].try_into().expect("a mark's numbers have four bytes"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan(producers: u32, queues: u32, jobs: u64) -> Plan {
        Plan {
            run: 7,
            producers,
            consumers: 1,
            queues,
            jobs,
            bodies: vec![12],
        }
    }

    #[test]
    fn shares_add_up() {
        for (producers, jobs) in [(1, 0), (3, 10), (7, 7), (8, 3), (50, 1_000_001)] {
            let plan = plan(producers, 1, jobs);
            let sum: u64 = (0..producers)
                .map(|producer| u64::from(plan.jobs_of(producer)))
                .sum();
            assert_eq!(sum, jobs);
        }
    }

    #[test]
    fn every_queue_has_a_connection() {
        for (members, queues) in [(1, 1), (1, 5), (3, 10), (10, 3), (4, 4)] {
            let plan = plan(members, queues, 1);
            let mut served: Vec<u32> = (0..members)
                .flat_map(|member| plan.queues_of(member, members))
                .collect();
            served.sort_unstable();
            served.dedup();
            assert_eq!(served, (0..queues).collect::<Vec<_>>(), "{members} connections");
        }
    }

    #[test]
    fn sequence_numbers_have_a_limit() {
        assert!(plan(2, 1, 2 * u64::from(u32::MAX)).fits());
        assert!(!plan(2, 1, 2 * u64::from(u32::MAX) + 1).fits());
    }

    #[test]
    fn every_queue_gets_every_size() {
        for (queues, sizes) in [(2, 2), (4, 2), (3, 6), (1, 5)] {
            let mut jobs = vec![0_usize; queues * sizes];
            for sequence in 0..10_000 {
                jobs[sequence as usize % queues * sizes + size_of(sequence, sizes)] += 1;
            }
            let even = 10_000 / jobs.len();
            assert!(
                jobs.iter().all(|number| number.abs_diff(even) < even / 5),
                "{jobs:?}"
            );
        }
        assert_eq!(size_of(7, 1), 0);
    }
}
