//! The adding side of a connection: rounds of commands that add a job each, every job with its own mark.
//!
//! The whole command is prebuilt per queue and size, with the producer's number in it; a round copies it as often as
//! it has jobs and writes the sequence number into each copy.

use std::ops::Range;

use super::board::Gains;
use super::commands::{Add, AddSettings};
use super::connection::Round;
use super::error::BenchError;
use super::pace::Pace;
use super::plan::{self, PRODUCER_AT, Plan, SEQUENCE_AT};
use super::scan::Event;
use super::target::Target;

/// Adds its share of a load's jobs.
#[derive(Debug)]
pub struct Producer {
    target: Target,
    /// For each queue, one of each size of body.
    templates: Vec<Vec<Add>>,
    /// The queue it adds to, if that is always the same one.
    only_queue: Option<Vec<u8>>,
    is_marked: bool,
    number: u32,
    jobs: u32,
    next: u32,
    answered: u32,
    pipeline: u32,
}

impl Producer {
    /// The producer with this number, which adds in rounds of `pipeline` jobs.
    pub fn new(target: Target, plan: &Plan, number: u32, pipeline: u32, settings: AddSettings) -> Self {
        let queues = plan.queues_of(number, plan.producers);
        let mut bodies = plan.blank_bodies();
        if plan.is_marked() {
            for body in &mut bodies {
                body[PRODUCER_AT].copy_from_slice(&number.to_be_bytes());
            }
        }
        let is_only = queues.len() == 1;
        let templates = |&queue: &u32| {
            let name = plan.queue_name(queue);
            let template = |body: &Vec<u8>| Add::new(target, &name, body, settings, is_only);
            bodies.iter().map(template).collect()
        };
        Self {
            target,
            templates: queues.iter().map(templates).collect(),
            only_queue: is_only.then(|| plan.queue_name(queues[0])),
            is_marked: plan.is_marked(),
            number,
            jobs: plan.jobs_of(number),
            next: 0,
            answered: 0,
            pipeline,
        }
    }

    /// The queue it adds to, if that is always the same one.
    pub fn only_queue(&self) -> Option<&[u8]> {
        self.only_queue.as_deref()
    }

    /// Appends the next round.
    pub fn next_round(&mut self, out: &mut Vec<u8>) -> Round {
        let jobs = self.pipeline.min(self.jobs - self.next);
        if jobs == 0 {
            return Round::Done;
        }
        Round::Sent(self.append_jobs(out, jobs))
    }

    /// Its number.
    pub fn number(&self) -> u32 {
        self.number
    }

    /// Jobs whose answer came; answers come in the order of the jobs.
    pub fn answered(&self) -> u32 {
        self.answered
    }

    /// True if every job was sent.
    pub fn is_all_sent(&self) -> bool {
        self.next == self.jobs
    }

    /// When its next job is due, in nanoseconds since the start; `None` if all are sent.
    pub fn next_due_ns(&self, pace: &Pace) -> Option<u64> {
        (!self.is_all_sent()).then(|| pace.due_ns(self.number, self.next))
    }

    /// Appends the jobs that are due: their sequence numbers, and the replies they make.
    pub fn append_due(&mut self, out: &mut Vec<u8>, pace: &Pace, now_ns: u64) -> (Range<u32>, u32) {
        let due = pace.due_by(self.number, now_ns).min(self.jobs.into()) as u32;
        let first = self.next;
        let replies = self.append_jobs(out, due.saturating_sub(first));
        (first..self.next, replies)
    }

    /// Appends the next jobs: the replies they make.
    fn append_jobs(&mut self, out: &mut Vec<u8>, jobs: u32) -> u32 {
        let mut replies = 0;
        for sequence in self.next..self.next + jobs {
            let sizes = &self.templates[sequence as usize % self.templates.len()];
            let template = &sizes[plan::size_of(sequence, sizes.len())];
            let start = out.len();
            out.extend_from_slice(&template.bytes);
            if self.is_marked {
                out[start + template.body_at + SEQUENCE_AT.start..][..4]
                    .copy_from_slice(&sequence.to_be_bytes());
            }
            replies += template.replies;
        }
        self.next += jobs;
        replies
    }

    /// Takes a reply.
    pub fn take(&mut self, event: &Event<'_>, gains: &mut Gains) -> Result<(), BenchError> {
        let is_added = match (self.target, event) {
            (Target::RedisList, Event::Number(_)) => true,
            (Target::RedisList, _) => return Err(event.refusal(Add::name(self.target))),
            (_, Event::Id(_)) => true,
            (Target::Beanstalkd, Event::Using) => false,
            _ => return Err(event.refusal(Add::name(self.target))),
        };
        gains.added += u64::from(is_added);
        self.answered += u32::from(is_added);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rounds_carry_every_job_once_over_all_queues() {
        let plan = Plan {
            run: 0xAB,
            producers: 1,
            consumers: 1,
            queues: 2,
            jobs: 3,
            bodies: vec![13],
        };
        let settings = AddSettings {
            retry_s: Some(5),
            ..AddSettings::default()
        };
        let mut producer = Producer::new(Target::Shardq, &plan, 0, 2, settings);
        let (mut first, mut second) = (Vec::new(), Vec::new());
        assert_eq!(producer.next_round(&mut first), Round::Sent(2));
        assert_eq!(producer.next_round(&mut second), Round::Sent(1));
        assert_eq!(producer.next_round(&mut second), Round::Done);
        let command = |queue: u8, sequence: u8| {
            let mut bytes = b"*6\r\n$6\r\nADDJOB\r\n$16\r\nbench-000000ab-".to_vec();
            bytes.extend_from_slice(&[queue, b'\r', b'\n']);
            bytes.extend_from_slice(b"$13\r\n\0\0\0\xab\0\0\0\0\0\0\0");
            bytes.extend_from_slice(&[sequence, b'x']);
            bytes.extend_from_slice(b"\r\n$1\r\n0\r\n$5\r\nRETRY\r\n$1\r\n5\r\n");
            bytes
        };
        assert_eq!(first, [command(b'0', 0), command(b'1', 1)].concat());
        assert_eq!(second, command(b'0', 2));
    }

    #[test]
    fn an_error_is_no_job() {
        let plan = Plan {
            run: 1,
            producers: 1,
            consumers: 1,
            queues: 1,
            jobs: 1,
            bodies: vec![1],
        };
        let mut producer = Producer::new(Target::Shardq, &plan, 0, 1, AddSettings::default());
        let mut gains = Gains::default();
        let error = producer.take(&Event::Error(b"OOM full"), &mut gains).unwrap_err();
        assert_eq!(
            error.to_string(),
            "the server answered ADDJOB with an error: OOM full"
        );
        assert!(producer.take(&Event::Number(1), &mut gains).is_err());
        assert_eq!(gains.added, 0);
    }
}
