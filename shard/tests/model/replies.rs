//! What a client must read, given what the reference says came of its request.

use shard::commands::view::JobView;
use shard::message::{Answer, Delivered};

use crate::load::Kind;
use crate::support::Reply;
use crate::witness::Outcome;

/// The reply to a command whose outcome is known.
pub fn expected(kind: &Kind, outcome: &Outcome) -> Reply {
    if let Kind::GetJob { with_counters, .. } = kind {
        let jobs: Vec<Reply> = outcome.jobs().map(|job| delivered(job, *with_counters)).collect();
        return if jobs.is_empty() {
            Reply::NullArray
        } else {
            Reply::Array(jobs)
        };
    }
    let (mut counted, mut paused) = (0, 0);
    for answer in &outcome.answers {
        match answer {
            Answer::Count(count) => counted += count,
            Answer::Entered {
                counted: more,
                paused: held,
            } => {
                counted += more;
                paused += held;
            }
            other => return single(other),
        }
    }
    if counted == 0 && paused > 0 {
        return Reply::Error("PAUSED Queue paused in input, try later".to_owned());
    }
    Reply::Integer(counted)
}

fn single(answer: &Answer) -> Reply {
    match answer {
        Answer::Error(error) => Reply::Error(error.to_string()),
        Answer::Id(id) => Reply::Simple(id.to_string()),
        Answer::Job(None) => Reply::Null,
        Answer::Job(Some(job)) => job_view(job),
        Answer::Peeked { jobs, .. } => Reply::Array(jobs.iter().map(|job| delivered(job, false)).collect()),
        Answer::Queue(None) => Reply::NullArray,
        Answer::Queue(Some(queue)) => Reply::Array(vec![
            bulk("name"),
            Reply::Bulk(queue.name.to_vec()),
            bulk("len"),
            integer(queue.length),
            bulk("age"),
            integer(queue.age_s),
            bulk("idle"),
            integer(queue.idle_s),
            bulk("blocked"),
            integer(queue.blocked),
            bulk("import-from"),
            Reply::Array(Vec::new()),
            bulk("import-rate"),
            integer(0),
            bulk("jobs-in"),
            integer(queue.jobs_in),
            bulk("jobs-out"),
            integer(queue.jobs_out),
            bulk("pause"),
            bulk(queue.pause.word()),
        ]),
        Answer::Pause(state) => Reply::Simple(state.word().to_owned()),
        other => panic!("not the end of a request: {other:?}"),
    }
}

fn delivered(job: &Delivered, with_counters: bool) -> Reply {
    let mut parts = vec![
        Reply::Bulk(job.queue.to_vec()),
        bulk(&job.handed.id.to_string()),
        Reply::Bulk(job.body.to_vec()),
    ];
    if with_counters {
        parts.extend([bulk("nacks"), integer(u64::from(job.nacks))]);
        parts.extend([
            bulk("additional-deliveries"),
            integer(u64::from(job.additional_deliveries)),
        ]);
    }
    Reply::Array(parts)
}

fn job_view(job: &JobView) -> Reply {
    let within = |ms: Option<u64>| ms.map_or(Reply::Null, integer);
    let pairs = [
        ("id", bulk(&job.id.to_string())),
        ("queue", Reply::Bulk(job.queue.to_vec())),
        ("state", bulk(job.state.word())),
        ("repl", integer(u64::from(job.replicate))),
        ("ttl", integer(job.ttl_s)),
        ("ctime", integer(job.ctime)),
        ("delay", integer(u64::from(job.delay_s))),
        ("retry", integer(u64::from(job.retry_s))),
        ("nacks", integer(u64::from(job.nacks))),
        (
            "additional-deliveries",
            integer(u64::from(job.additional_deliveries)),
        ),
        ("nodes-delivered", Reply::Array(vec![bulk(&"4f".repeat(20))])),
        ("nodes-confirmed", Reply::Array(vec![bulk(&"4f".repeat(20))])),
        ("next-requeue-within", within(job.next_requeue_ms)),
        ("next-awake-within", within(job.next_awake_ms)),
        ("body", Reply::Bulk(job.body.to_vec())),
        ("nodes-hosts", Reply::Array(vec![bulk(&"0".repeat(16))])),
    ];
    Reply::Array(
        pairs
            .into_iter()
            .flat_map(|(name, value)| [bulk(name), value])
            .collect(),
    )
}

fn bulk(text: &str) -> Reply {
    Reply::Bulk(text.as_bytes().to_vec())
}

fn integer(number: u64) -> Reply {
    Reply::Integer(number as i64)
}
