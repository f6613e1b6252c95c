//! The adding side of a connection: rounds of ADDJOB, each job with its own mark.
//!
//! The whole command is prebuilt per queue, with the producer's number in it; a round copies it as often as
//! it has jobs and writes the sequence number into each copy.

use super::board::Gains;
use super::connection::Round;
use super::error::BenchError;
use super::plan::{PRODUCER_AT, Plan, SEQUENCE_AT};
use super::scan::Event;
use crate::client::{append_bulk, append_header};

/// Adds its share of a load's jobs.
#[derive(Debug)]
pub struct Producer {
    templates: Vec<Template>,
    jobs: u32,
    next: u32,
    pipeline: u32,
}

#[derive(Debug)]
struct Template {
    command: Vec<u8>,
    /// Where the sequence number goes, if bodies are marked.
    sequence_at: Option<usize>,
}

impl Producer {
    /// The producer with this number, which adds in rounds of `pipeline`; `options` stand behind the timeout
    /// of every ADDJOB.
    pub fn new(plan: &Plan, number: u32, pipeline: u32, options: &[String]) -> Self {
        let queues = plan.queues_of(number, plan.producers);
        let templates = queues
            .iter()
            .map(|queue| Template::new(plan, number, *queue, options))
            .collect();
        Self {
            templates,
            jobs: plan.jobs_of(number),
            next: 0,
            pipeline,
        }
    }

    /// Appends the next round.
    pub fn next_round(&mut self, out: &mut Vec<u8>) -> Round {
        let jobs = self.pipeline.min(self.jobs - self.next);
        if jobs == 0 {
            return Round::Done;
        }
        for sequence in self.next..self.next + jobs {
            let template = &self.templates[sequence as usize % self.templates.len()];
            let start = out.len();
            out.extend_from_slice(&template.command);
            if let Some(at) = template.sequence_at {
                out[start + at..][..4].copy_from_slice(&sequence.to_be_bytes());
            }
        }
        self.next += jobs;
        Round::Sent(jobs)
    }

    /// Takes a reply.
    pub fn take(&mut self, event: &Event<'_>, gains: &mut Gains) -> Result<(), BenchError> {
        let Event::Id(_) = event else {
            return Err(event.refusal("ADDJOB"));
        };
        gains.added += 1;
        Ok(())
    }
}

impl Template {
    fn new(plan: &Plan, producer: u32, queue: u32, options: &[String]) -> Self {
        let mut body = plan.blank_body();
        if plan.is_marked() {
            body[PRODUCER_AT].copy_from_slice(&producer.to_be_bytes());
        }
        let mut command = Vec::new();
        append_header(&mut command, b'*', 4 + options.len());
        append_bulk(&mut command, b"ADDJOB");
        append_bulk(&mut command, &plan.queue_name(queue));
        append_bulk(&mut command, &body);
        let body_at = command.len() - body.len() - 2;
        append_bulk(&mut command, b"0");
        for option in options {
            append_bulk(&mut command, option.as_bytes());
        }
        Self {
            command,
            sequence_at: plan.is_marked().then_some(body_at + SEQUENCE_AT.start),
        }
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
            body_bytes: 13,
        };
        let mut producer = Producer::new(&plan, 0, 2, &["RETRY".into(), "5".into()]);
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
            body_bytes: 1,
        };
        let mut producer = Producer::new(&plan, 0, 1, &[]);
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
