//! Visits of a node that has just started: what is there, and whether it comes out as it should.

use std::collections::{BTreeMap, BTreeSet};

use crate::facts::{SLACK_US, SLOW_DISK_US, Seen};
use crate::ledger::{Ledger, Sight};
use crate::support::{Machine, Reply, number_of, request};

/// How long a visitor waits for an answer, virtual time.
const PATIENCE_US: u64 = 60_000_000;

/// A client that asks one thing after the other.
pub struct Visitor<'a> {
    machine: &'a mut Machine,
    client: usize,
    /// When the last question was asked.
    asked_us: u64,
}

impl<'a> Visitor<'a> {
    pub fn new(machine: &'a mut Machine) -> Self {
        let client = machine.node.connect();
        machine.stepped(0);
        let asked_us = machine.wall_us();
        Self {
            machine,
            client,
            asked_us,
        }
    }

    pub fn send<T: AsRef<[u8]>>(&mut self, words: &[T]) {
        self.asked_us = self.machine.wall_us();
        self.machine.node.send(self.client, &request(words));
    }

    fn reply(&mut self) -> Result<Reply, String> {
        let end_us = self.machine.now_us() + PATIENCE_US;
        loop {
            if let Some(reply) = self.machine.node.clients[self.client].next_reply() {
                return Ok(reply);
            }
            if !self.machine.event(end_us) {
                return Err(format!("no answer; died: {:?}", self.machine.node.died));
            }
        }
    }

    pub fn ask<T: AsRef<[u8]>>(&mut self, words: &[T]) -> Result<Reply, String> {
        self.send(words);
        self.reply()
    }

    /// Bytes of the logs, and of what lives in them.
    pub fn log_size(&mut self) -> Result<(u64, u64), String> {
        let info = text(&self.ask(&["INFO", "persistence"])?);
        let field = |name: &str| {
            let value = info
                .lines()
                .find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
            let number = value.and_then(|value| value.trim().parse().ok());
            number.ok_or_else(|| format!("no {name} in {info}"))
        };
        Ok((field("aof_current_size")?, field("aof_base_size")?))
    }

    /// All jobs and the states of these queues.
    pub fn look(&mut self, queues: &[String]) -> Result<Sight, String> {
        // What fell due while the node was down is due at once.
        let end_us = self.machine.now_us() + 2_000;
        while self.machine.event(end_us) {}
        let sent_us = self.machine.wall_us();
        let found = self.ask(&["JSCAN", "0", "BUSYLOOP"])?;
        let ids: Vec<String> = found
            .elements()
            .get(1)
            .map_or(&[][..], Reply::elements)
            .iter()
            .map(text)
            .collect();
        let mut sight = Sight {
            sent_us,
            ..Sight::default()
        };
        // All at once, so that hardly any time passes.
        for id in &ids {
            self.send(&["SHOW", id]);
        }
        let asked_us = self.machine.wall_us();
        for id in &ids {
            let reply = self.reply()?;
            if reply != Reply::Null {
                sight
                    .jobs
                    .push(seen(id, &reply, asked_us, self.machine.wall_us()));
            }
        }
        for queue in queues {
            let reply = self.ask(&["PAUSE", queue, "state"])?;
            sight.pauses.push(text(&reply));
        }
        sight.read_us = self.machine.wall_us();
        Ok(sight)
    }

    /// Takes out all there is, and holds it against what was seen: what, in which order, when, and not twice.
    pub fn drain(&mut self, sight: &Sight, ledger: &Ledger, queues: &[String]) -> Result<(), String> {
        for queue in queues {
            self.ask(&["PAUSE", queue, "none"])?;
        }
        let mut out = BTreeMap::new();
        for queue in queues {
            let words = ["GETJOB", "NOHANG", "COUNT", "20", "WITHCOUNTERS", "FROM", queue];
            while let Reply::Array(jobs) = self.ask(&words)? {
                self.take(&jobs, &mut out)?;
            }
        }
        check_order(sight, &out)?;
        let at_once: BTreeSet<u64> = out.keys().copied().collect();
        for seen in sight.jobs.iter().filter(|seen| seen.retry_s == 0 && !seen.queued) {
            self.ask(&["ENQUEUE", &seen.id])?;
        }
        let longest_ms = sight
            .jobs
            .iter()
            .filter_map(|seen| seen.requeue_ms)
            .max()
            .unwrap_or(0);
        let end_us = self.machine.wall_us() + longest_ms * 1000 + 200_000;
        while self.machine.wall_us() < end_us {
            let left_ms = ((end_us - self.machine.wall_us()) / 1000).max(1).to_string();
            let mut words = vec![
                "GETJOB",
                "TIMEOUT",
                &left_ms,
                "COUNT",
                "20",
                "WITHCOUNTERS",
                "FROM",
            ];
            words.extend(queues.iter().map(String::as_str));
            if let Reply::Array(jobs) = self.ask(&words)? {
                self.take(&jobs, &mut out)?;
            }
        }
        for seen in &sight.jobs {
            check_one(seen, ledger, &out, &at_once)?;
        }
        if out.len() > sight.jobs.len() {
            return Err(format!("{} jobs came out of {}", out.len(), sight.jobs.len()));
        }
        Ok(())
    }

    fn take(&mut self, jobs: &[Reply], out: &mut BTreeMap<u64, Out>) -> Result<(), String> {
        let (at_us, asked_us) = (self.machine.wall_us(), self.asked_us);
        let mut words = vec!["FASTACK".to_owned()];
        for job in jobs {
            let [_, id, Reply::Bulk(body), _, nacks, _, additional] = job.elements() else {
                return Err(format!("no job: {job}"));
            };
            let number = number_of(body).ok_or_else(|| format!("a body that nobody sent: {job}"))?;
            let taken = Out {
                at_us,
                asked_us,
                order: out.len(),
                body: body.clone(),
                counters: (integer(nacks), integer(additional)),
            };
            if out.insert(number, taken).is_some() {
                return Err(format!("job {number} came out twice"));
            }
            words.push(text(id));
        }
        // Their lives may end before they are acknowledged; the ID tells of a TTL of a day.
        let lives_long = |id: &&String| id.ends_with("-05a0") || id.ends_with("-05a1");
        let short_lived = jobs.len() - words[1..].iter().filter(lives_long).count();
        match self.ask(&words)? {
            Reply::Integer(count)
                if count <= jobs.len() as i64 && count >= (jobs.len() - short_lived) as i64 =>
            {
                Ok(())
            }
            other => Err(format!("FASTACK of {} jobs got {other}", jobs.len())),
        }
    }
}

struct Out {
    at_us: u64,
    asked_us: u64,
    order: usize,
    body: Vec<u8>,
    counters: (u64, u64),
}

/// What was queued at the start comes out in the order of creation.
fn check_order(sight: &Sight, out: &BTreeMap<u64, Out>) -> Result<(), String> {
    let mut queued: Vec<&Seen> = sight.jobs.iter().filter(|seen| seen.queued).collect();
    queued.sort_by_key(|seen| (&seen.queue, seen.ctime));
    for pair in queued.windows(2).filter(|pair| pair[0].queue == pair[1].queue) {
        let order = |seen: &Seen| Some(out.get(&number_of(&seen.body)?)?.order);
        if let (Some(first), Some(second)) = (order(pair[0]), order(pair[1]))
            && first > second
        {
            return Err(format!("{:?} came out before {:?}", pair[1], pair[0]));
        }
    }
    Ok(())
}

fn check_one(
    seen: &Seen,
    ledger: &Ledger,
    out: &BTreeMap<u64, Out>,
    at_once: &BTreeSet<u64>,
) -> Result<(), String> {
    let number = number_of(&seen.body).ok_or("a body that nobody sent")?;
    let job = &ledger.jobs[&number];
    let Some(out) = out.get(&number) else {
        let may_stay = seen.retry_s == 0 && !seen.queued;
        let dies = seen.left_s * 1000 <= seen.requeue_ms.unwrap_or(0) + 2_000;
        return if may_stay || dies {
            Ok(())
        } else {
            Err(format!("{seen:?} never came out"))
        };
    };
    if out.body != seen.body {
        return Err(format!("{seen:?} came out with another body"));
    }
    if job.once() && job.left > 0 {
        return Err(format!("{seen:?} left already, and came out again"));
    }
    if seen.queued && !at_once.contains(&number) {
        return Err(format!("{seen:?} did not come out at once"));
    }
    if let Some((least, most)) = seen.enters_us().filter(|_| !job.once())
        && !(least..=most.max(out.asked_us) + 3 * SLACK_US + SLOW_DISK_US).contains(&(out.at_us + SLACK_US))
        // A job held back enters when its queue is opened.
        && seen.requeue_ms != Some(0)
    {
        return Err(format!("{seen:?} came out at {}", out.at_us));
    }
    let (nacks, additional) = out.counters;
    let entered = additional.wrapping_sub(seen.additional);
    if nacks != seen.nacks || entered > u64::from(!seen.queued) {
        return Err(format!("{seen:?} came out with counters {:?}", out.counters));
    }
    Ok(())
}

fn seen(id: &str, reply: &Reply, sent_us: u64, read_us: u64) -> Seen {
    let parts = reply.elements();
    let field = |name: &str| {
        let at = parts
            .chunks(2)
            .position(|pair| pair[0] == Reply::Bulk(name.as_bytes().to_vec()));
        &parts[2 * at.expect("SHOW has this field") + 1]
    };
    let bytes = |name| match field(name) {
        Reply::Bulk(bytes) => bytes.clone(),
        other => panic!("{name} is {other}"),
    };
    let requeue_ms = match field("next-requeue-within") {
        Reply::Integer(ms) => Some(*ms as u64),
        _ => None,
    };
    Seen {
        id: id.to_owned(),
        queue: String::from_utf8(bytes("queue")).expect("our queues are text"),
        body: bytes("body"),
        queued: bytes("state") == b"queued",
        retry_s: integer(field("retry")),
        ctime: integer(field("ctime")),
        nacks: integer(field("nacks")),
        additional: integer(field("additional-deliveries")),
        requeue_ms,
        left_s: integer(field("ttl")),
        sent_us,
        read_us,
    }
}

fn integer(reply: &Reply) -> u64 {
    match reply {
        Reply::Integer(number) => *number as u64,
        other => panic!("no number: {other}"),
    }
}

fn text(reply: &Reply) -> String {
    match reply {
        Reply::Simple(text) => text.clone(),
        Reply::Bulk(bytes) => String::from_utf8_lossy(bytes).into_owned(),
        other => panic!("no text: {other}"),
    }
}
