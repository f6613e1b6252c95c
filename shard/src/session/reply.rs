//! Answers written as replies: the shapes of the reference (1.5 to 1.9), in either protocol.

use crate::commands::view::{JobView, PageItem, QueueView, Said, ScanPosition};
use crate::id::NodeId;
use crate::message::{Answer, Delivered};
use crate::session::Session;
use crate::wire::Encoder;

/// Writes the answer of a home shard as the reply to its request.
///
/// # Panics
/// On an answer that is not the end of a request (`Waiting`, `Offers`, parts): our own mistake.
pub(super) fn write_answer(session: &mut Session, answer: &Answer, with_counters: bool) {
    match answer {
        Answer::Error(error) => session.encoder().error(error.to_string()),
        Answer::Ok => session.encoder().simple(b"OK"),
        Answer::Id(id) => session.encoder().simple_id(*id),
        Answer::Count(count) => session.encoder().integer(*count),
        Answer::Entered { counted, paused } => write_entered(session, *counted, *paused),
        Answer::Nothing => session.encoder().null_array(),
        // NOHANG, and the log did not take what was to be handed out.
        Answer::Jobs(jobs) if jobs.is_empty() => session.encoder().null_array(),
        Answer::Jobs(jobs) => write_jobs(session, jobs, with_counters),
        Answer::Job(None) => session.encoder().null(),
        Answer::Job(Some(job)) => write_job_view(&mut session.encoder(), job),
        Answer::Queue(None) => session.encoder().null_array(),
        Answer::Queue(Some(queue)) => write_queue_view(&mut session.encoder(), queue),
        Answer::Nodes(nodes) => write_nodes(&mut session.encoder(), nodes),
        Answer::Pause(state) => session.encoder().simple(state.word().as_bytes()),
        Answer::Waiting | Answer::Offers(_) | Answer::Peeked { .. } | Answer::Page(_) | Answer::Part(_) => {
            unreachable!("not the end of a request: {answer:?}")
        }
    }
}

/// ENQUEUE and NACK: `-PAUSED` only when every ID was skipped for that (`sessions.md`).
pub(super) fn write_entered(session: &mut Session, counted: i64, paused: i64) {
    if counted == 0 && paused > 0 {
        session
            .encoder()
            .error(crate::error::CommandError::Paused.to_string());
    } else {
        session.encoder().integer(counted);
    }
}

/// Commands with CLUSTER: a pair for each node, its ID and what it says; null when it did not answer, the text of its error when it
/// refused. A queue that does not exist there is an empty array.
pub(super) fn write_nodes(out: &mut Encoder<'_>, nodes: &[(NodeId, Said)]) {
    out.array(nodes.len());
    for (node, said) in nodes {
        out.array(2);
        out.bulk(node.text());
        match said {
            Said::Count(count) => out.integer(*count),
            Said::Queue(Some(queue)) => write_queue_view(out, queue),
            Said::Queue(None) => out.array(0),
            Said::Refused(text) => out.bulk(text),
            Said::Nothing => out.null(),
        }
    }
}

/// GETJOB's array, each job noted as handed out at its place in the output.
pub(super) fn write_jobs(session: &mut Session, jobs: &[Delivered], with_counters: bool) {
    let mut start = session.output.produced_bytes();
    session.encoder().array(jobs.len());
    for job in jobs {
        write_delivered(&mut session.encoder(), job, with_counters);
        let end = session.output.produced_bytes();
        session.deliveries.note(start, end, job.handed);
        start = end;
    }
}

/// QPEEK's array: nothing is handed out.
pub(super) fn write_peeked(session: &mut Session, jobs: &[Delivered]) {
    session.encoder().array(jobs.len());
    for job in jobs {
        write_delivered(&mut session.encoder(), job, false);
    }
}

fn write_delivered(out: &mut Encoder<'_>, job: &Delivered, with_counters: bool) {
    let items = if with_counters { 7 } else { 3 };
    out.job(items, &job.queue, job.handed.id, &job.body);
    if with_counters {
        out.bulk(b"nacks");
        out.integer(i64::from(job.nacks));
        out.bulk(b"additional-deliveries");
        out.integer(i64::from(job.additional_deliveries));
    }
}

/// SHOW: 16 pairs in one flat array, in RESP3 too (`clients.md`); those of the original come first.
fn write_job_view(out: &mut Encoder<'_>, job: &JobView) {
    out.array(32);
    out.bulk(b"id");
    out.bulk_id(job.id);
    out.bulk(b"queue");
    out.blob(&job.queue);
    out.bulk(b"state");
    out.bulk(job.state.word().as_bytes());
    let pair = |out: &mut Encoder<'_>, name: &str, value: u64| {
        out.bulk(name.as_bytes());
        out.integer(value.min(i64::MAX as u64) as i64);
    };
    pair(out, "repl", u64::from(job.replicate));
    pair(out, "ttl", job.ttl_s);
    pair(out, "ctime", job.ctime);
    pair(out, "delay", u64::from(job.delay_s));
    pair(out, "retry", u64::from(job.retry_s));
    pair(out, "nacks", u64::from(job.nacks));
    pair(out, "additional-deliveries", u64::from(job.additional_deliveries));
    out.bulk(b"nodes-delivered");
    write_each(out, &job.holders, |holder| holder.node.text());
    let confirmed: Vec<_> = job.holders.iter().filter(|holder| holder.confirmed).collect();
    out.bulk(b"nodes-confirmed");
    write_each(out, &confirmed, |holder| holder.node.text());
    for (name, ms) in [
        ("next-requeue-within", job.next_requeue_ms),
        ("next-awake-within", job.next_awake_ms),
    ] {
        out.bulk(name.as_bytes());
        match ms {
            Some(ms) => out.integer(ms.min(i64::MAX as u64) as i64),
            None => out.null(),
        }
    }
    out.bulk(b"body");
    out.blob(&job.body);
    out.bulk(b"nodes-hosts");
    write_each(out, &job.holders, |holder| format!("{:016x}", holder.host));
}

/// An array of texts.
fn write_each<T, S: AsRef<[u8]>>(out: &mut Encoder<'_>, of: &[T], text: impl Fn(&T) -> S) {
    out.array(of.len());
    of.iter().for_each(|one| out.bulk(text(one)));
}

/// QSTAT: 10 pairs in one flat array, in RESP3 too.
fn write_queue_view(out: &mut Encoder<'_>, queue: &QueueView) {
    out.array(20);
    out.bulk(b"name");
    out.blob(&queue.name);
    let pair = |out: &mut Encoder<'_>, name: &str, value: u64| {
        out.bulk(name.as_bytes());
        out.integer(value.min(i64::MAX as u64) as i64);
    };
    pair(out, "len", queue.length);
    pair(out, "age", queue.age_s);
    pair(out, "idle", queue.idle_s);
    pair(out, "blocked", queue.blocked);
    out.bulk(b"import-from");
    out.array(0);
    pair(out, "import-rate", 0);
    pair(out, "jobs-in", queue.jobs_in);
    pair(out, "jobs-out", queue.jobs_out);
    out.bulk(b"pause");
    out.bulk(queue.pause.word().as_bytes());
}

/// QSCAN and JSCAN: the cursor as a bulk string, then the elements.
pub(super) fn write_page(session: &mut Session, next: Option<ScanPosition>, items: &[PageItem]) {
    let mut out = session.encoder();
    out.array(2);
    out.bulk(next.map_or(0, |position| position.0).to_string().as_bytes());
    out.array(items.len());
    for item in items {
        match item {
            PageItem::Queue(name) => out.blob(name),
            PageItem::Id(id) => out.simple_id(*id),
            PageItem::Job(job) => write_job_view(&mut out, job),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::testing::reply;
    use crate::commands::view::PauseState;
    use crate::wire::Blob;

    #[test]
    fn what_each_node_says() {
        let queue = QueueView {
            name: Blob::from("q"),
            length: 3,
            age_s: 1,
            idle_s: 2,
            blocked: 0,
            jobs_in: 5,
            jobs_out: 4,
            pause: PauseState::default(),
        };
        let said = [
            Said::Count(7),
            Said::Queue(Some(Box::new(queue))),
            Said::Queue(None),
            Said::Refused("MISCONF disk full".to_owned()),
            Said::Nothing,
        ];
        let nodes: Vec<(NodeId, Said)> = (1..)
            .map(|number| NodeId::from_bytes([number; 20]))
            .zip(said)
            .collect();
        let id = |number: u8| format!("*2\r\n$40\r\n{}\r\n", format!("{number:02x}").repeat(20));
        let figures = "*20\r\n$4\r\nname\r\n$1\r\nq\r\n$3\r\nlen\r\n:3\r\n$3\r\nage\r\n:1\r\n$4\r\nidle\r\n:2\r\n\
                       $7\r\nblocked\r\n:0\r\n$11\r\nimport-from\r\n*0\r\n$11\r\nimport-rate\r\n:0\r\n$7\r\njobs-in\r\n:5\r\n\
                       $8\r\njobs-out\r\n:4\r\n$5\r\npause\r\n$4\r\nnone\r\n";
        for (resp3, null) in [(false, "$-1\r\n"), (true, "_\r\n")] {
            let written = reply(resp3, |out| write_nodes(out, &nodes));
            let expected = [
                "*5\r\n".to_owned(),
                id(1) + ":7\r\n",
                id(2) + figures,
                id(3) + "*0\r\n",
                id(4) + "$17\r\nMISCONF disk full\r\n",
                id(5) + null,
            ];
            assert_eq!(written, expected.concat());
        }
    }
}
