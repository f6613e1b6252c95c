//! What must hold whatever the reference says, seen from the clients alone: no accepted job is lost, none of RETRY 0 is
//! handed out twice, replies come in the order of the requests.

use std::collections::{BTreeMap, BTreeSet};

use crate::load::Kind;
use crate::support::Reply;

/// An accepted job.
#[derive(Debug)]
struct Added {
    sent_us: u64,
    ttl_us: u64,
    at_most_once: bool,
}

/// What the clients know.
#[derive(Default)]
pub struct Ledger {
    added: BTreeMap<String, Added>,
    /// Jobs that somebody asked to remove.
    removed: BTreeSet<String>,
    /// Jobs whose reply a client saw the beginning of.
    seen: BTreeSet<String>,
    /// What was sent before may have been flushed.
    pub flushed_until_us: u64,
    /// Jobs received in the end.
    drained: BTreeSet<String>,
    /// Replies of which a client got the first bytes, but not the whole next ID: one job each that it was handed.
    nameless: usize,
}

impl Ledger {
    pub fn sent(&mut self, kind: &Kind) {
        if let Kind::Ids { removes, .. } = kind {
            self.removed.extend(removes.iter().cloned());
        }
    }

    /// A whole reply came to a command that was sent at `sent_us`; the IDs that it tells of.
    pub fn replied(&mut self, kind: &Kind, sent_us: u64, reply: &Reply) -> Vec<String> {
        assert!(fits(kind, reply), "the reply to {kind:?} cannot be {reply}");
        match (kind, reply) {
            (Kind::Add { ttl_s, retry_s }, Reply::Simple(id)) => {
                let added = Added {
                    sent_us,
                    ttl_us: ttl_s * 1_000_000,
                    at_most_once: *retry_s == 0,
                };
                let before = self.added.insert(id.clone(), added);
                assert!(before.is_none(), "{id} was given twice");
                vec![id.clone()]
            }
            (Kind::GetJob { .. }, Reply::Array(jobs)) => jobs.iter().map(|job| self.received(job)).collect(),
            _ => Vec::new(),
        }
    }

    fn received(&mut self, job: &Reply) -> String {
        let Reply::Bulk(id) = &job.elements()[1] else {
            panic!("a job has an ID: {job}")
        };
        let id = String::from_utf8(id.clone()).expect("an ID is text");
        self.saw(&id);
        id
    }

    /// A client read the ID of a job that was handed out to it.
    fn saw(&mut self, id: &str) {
        let again = !self.seen.insert(id.to_owned());
        let at_most_once = id.ends_with(['0', '2', '4', '6', '8', 'a', 'c', 'e']);
        assert!(!(again && at_most_once), "{id} was handed out twice");
    }

    /// A connection died, and a reply had begun; this is what its client had read of a reply to a GETJOB.
    pub fn saw_part(&mut self, bytes: &[u8], whole: usize) {
        let text = String::from_utf8_lossy(bytes);
        let mut rest = text.as_ref();
        let mut found = 0;
        while let Some(at) = rest.find("\r\nD-") {
            let id = &rest[at + 2..];
            if id.len() < 40 {
                break;
            }
            self.saw(&id[..40]);
            found += 1;
            rest = &id[40..];
        }
        assert!(found <= whole, "a client got more than COUNT jobs");
        self.nameless += 1;
    }

    /// In the end a job was received and acknowledged.
    pub fn drained(&mut self, id: String) {
        self.drained.insert(id);
    }

    pub fn at_most_once_ids(&self) -> Vec<String> {
        self.added
            .iter()
            .filter(|(_, added)| added.at_most_once)
            .map(|(id, _)| id.clone())
            .collect()
    }

    /// Everything that could be received was: what is missing?
    pub fn lost(&self, now_us: u64) -> Vec<&String> {
        // Lives are counted in whole milliseconds.
        let dead = |added: &Added| added.sent_us / 1000 * 1000 + added.ttl_us <= now_us;
        let accounted = |id: &String, added: &Added| {
            self.drained.contains(id)
                || self.removed.contains(id)
                || (added.at_most_once && self.seen.contains(id))
                || dead(added)
                || added.sent_us <= self.flushed_until_us
        };
        let missing = self.added.iter().filter(|(id, added)| !accounted(id, added));
        // A job of RETRY 0 counts as handed out with the first byte of its reply, which does not tell its name.
        let (nameless, mut lost): (Vec<_>, Vec<_>) = missing.partition(|(_, added)| added.at_most_once);
        lost.extend(nameless.into_iter().skip(self.nameless));
        lost.into_iter().map(|(id, _)| id).collect()
    }

    pub fn added(&self) -> usize {
        self.added.len()
    }
}

/// Whether a reply can be one to such a command: replies out of order would not.
fn fits(kind: &Kind, reply: &Reply) -> bool {
    match (kind, reply) {
        (Kind::Ping, Reply::Simple(text)) => text == "PONG",
        (Kind::Refused(code), Reply::Error(text)) => text.starts_with(code),
        (Kind::Add { .. }, Reply::Simple(text)) => text.starts_with("D-"),
        (Kind::Add { .. }, Reply::Error(text)) => text.starts_with("MAXLEN") || text.starts_with("PAUSED"),
        (Kind::Ids { count, .. }, Reply::Integer(number)) => (0..=*count as i64).contains(number),
        (Kind::Ids { .. }, Reply::Error(text)) => text.starts_with("PAUSED"),
        (Kind::Show, Reply::Null) => true,
        (Kind::Show, Reply::Array(all)) => all.len() == 32,
        (Kind::Working, Reply::Integer(retry_s)) => *retry_s >= 0,
        (Kind::Working, Reply::Error(text)) => text.starts_with("NOJOB") || text.starts_with("TOOLATE"),
        (Kind::Length, Reply::Integer(length)) => *length >= 0,
        (Kind::Peek, Reply::Array(_)) | (Kind::Stat, Reply::NullArray) => true,
        (Kind::Stat, Reply::Array(all)) => all.len() == 20,
        (Kind::Pause, Reply::Simple(text)) => matches!(text.as_str(), "in" | "out" | "all" | "none"),
        (
            Kind::GetJob {
                count, with_counters, ..
            },
            Reply::Array(jobs),
        ) => {
            let width = if *with_counters { 7 } else { 3 };
            (1..=*count).contains(&jobs.len()) && jobs.iter().all(|job| job.elements().len() == width)
        }
        (Kind::GetJob { .. }, Reply::NullArray) => true,
        (Kind::Flush, Reply::Simple(text)) => text == "OK",
        (Kind::Scan, Reply::Array(all)) => all.len() == 2,
        (Kind::Info, Reply::Bulk(_)) => true,
        _ => false,
    }
}
