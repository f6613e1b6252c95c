//! A barrier command under way: what it still has to ask, and what it has gathered.

use std::collections::VecDeque;

use bytes::Bytes;
use smallvec::SmallVec;

use crate::commands::view::{PageItem, Part, QueuePosition, Said, ScanPosition};
use crate::commands::{Finish, IdVerb, Peek, Request, Scan};
use crate::error::CommandError;
use crate::id::{JobId, NodeId};
use crate::input::Told;
use crate::limits;
use crate::message::Delivered;
use crate::node::Change;
use crate::session::getjob::GetJobProgress;
use crate::slot::ShardNo;

/// A barrier command under way.
pub(super) struct Progress {
    /// Its place in the command table.
    pub command: u8,
    /// When it started, on the monotonic clock.
    pub started_us: u64,
    /// Number of its present round of requests: answers to others are stale.
    pub request: u32,
    /// Whether its reply is not wanted (CLIENT REPLY).
    pub suppressed: bool,
    /// Whether it did not end in the step it started in.
    pub waited: bool,
    /// Requests of this round that are not sent yet: no credit, or the step was full.
    pub unsent: VecDeque<(ShardNo, Request)>,
    /// Requests of this round that are sent and unanswered.
    pub open: u32,
    /// What kind it is.
    pub kind: Kind,
}

/// What a barrier command gathers.
pub(super) enum Kind {
    /// IDs of several home shards, or many.
    Ids(IdsProgress),
    /// GETJOB.
    GetJob(GetJobProgress),
    /// QPEEK of more than a step.
    Peek {
        ask: Peek,
        jobs: Vec<Delivered>,
        bytes: usize,
    },
    /// QSCAN, JSCAN.
    Scan(ScanProgress),
    /// All shards and perhaps the server.
    Gather {
        parts: Vec<Option<Part>>,
        told: Waited,
        args: Vec<Bytes>,
        finish: fn(&mut Finish<'_>),
    },
    /// A change through shard 0.
    Change {
        /// The change itself, while the server is asked whether it can be.
        unasked: Option<Change>,
        args: Vec<Bytes>,
        finish: fn(&mut Finish<'_>, i64),
    },
    /// DEBUG SLEEP.
    Sleep,
}

/// What the server was asked.
pub(super) enum Waited {
    /// Nothing.
    NotAsked,
    /// It has not said.
    Asked,
    /// It said this.
    Told(Told),
}

/// IDs by home shard, in steps.
pub(super) struct IdsProgress {
    pub verb: IdVerb,
    pub counted: i64,
    pub paused: i64,
    /// DELJOB with CLUSTER: what each node says.
    pub nodes: Vec<(NodeId, Said)>,
    /// Home shards that may keep a request waiting.
    pub waits_at: Vec<ShardNo>,
    pub error: Option<CommandError>,
}

impl IdsProgress {
    pub fn new(verb: IdVerb) -> Self {
        Self {
            verb,
            counted: 0,
            paused: 0,
            nodes: Vec::new(),
            waits_at: Vec::new(),
            error: None,
        }
    }

    /// Takes in what all nodes said to a home shard. One that a shard did not list is not known to have answered all.
    pub fn absorb_nodes(&mut self, nodes: Vec<(NodeId, Said)>) {
        if self.nodes.is_empty() {
            self.nodes = nodes;
            return;
        }
        for (node, said) in &mut self.nodes {
            let more = nodes.iter().find(|(other, _)| other == node);
            said.add(more.map_or(Said::Nothing, |(_, more)| more.clone()));
        }
        for (node, _) in nodes {
            if self.nodes.iter().all(|(other, _)| *other != node) {
                self.nodes.push((node, Said::Nothing));
            }
        }
    }

    /// Requests for the home shards, each of at most `IDS_STEP` IDs and in the order given for each shard.
    pub fn requests(verb: IdVerb, ids: &[JobId], shards: u16) -> VecDeque<(ShardNo, Request)> {
        let mut of_shard: Vec<SmallVec<[JobId; 2]>> = vec![SmallVec::new(); usize::from(shards)];
        let mut requests = VecDeque::new();
        for id in ids {
            let shard = id.slot().home(shards);
            let step = &mut of_shard[usize::from(shard)];
            step.push(*id);
            if step.len() == limits::IDS_STEP {
                requests.push_back((
                    shard,
                    Request::Ids {
                        verb,
                        ids: std::mem::take(step),
                    },
                ));
            }
        }
        for (shard, ids) in of_shard
            .into_iter()
            .enumerate()
            .filter(|(_, ids)| !ids.is_empty())
        {
            requests.push_back((shard as ShardNo, Request::Ids { verb, ids }));
        }
        requests
    }
}

/// A scan: pages of the shards merged in scan order, round after round, until COUNT elements are found or all is seen.
pub(super) struct ScanProgress {
    pub ask: Scan,
    pub items: Vec<PageItem>,
    /// What the shards of this round found.
    pub found: Vec<(ScanPosition, PageItem)>,
    /// The first place that a shard of this round has not looked at.
    pub next: Option<ScanPosition>,
    pub bytes: usize,
}

impl ScanProgress {
    pub fn new(ask: Scan) -> Self {
        Self {
            ask,
            items: Vec::new(),
            found: Vec::new(),
            next: None,
            bytes: 0,
        }
    }

    /// Takes in a shard's page.
    pub fn absorb(&mut self, page: crate::commands::view::Page) {
        self.found.extend(page.items);
        self.next = match (self.next, page.next) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (a, b) => a.or(b),
        };
    }

    /// The round is complete: keeps what lies before the first unseen place. `true` when the reply is.
    pub fn end_round(&mut self) -> bool {
        let end = self.next;
        self.found
            .retain(|(position, _)| end.is_none_or(|end| *position < end));
        self.found.sort_by_key(|(position, _)| *position);
        for (_, item) in self.found.drain(..) {
            self.bytes += item_bytes(&item);
            self.items.push(item);
        }
        let full = !self.ask.busyloop && self.items.len() >= self.ask.count;
        self.next.is_none() || full || self.bytes >= limits::REPLY_BYTES
    }
}

fn item_bytes(item: &PageItem) -> usize {
    match item {
        PageItem::Queue(name) => name.len() + 16,
        PageItem::Id(_) => 48,
        PageItem::Job(job) => job.body.len() + job.queue.len() + 512,
    }
}

/// Bytes that a job takes in a reply, about.
pub(super) fn delivered_bytes(job: &Delivered) -> usize {
    job.body.len() + job.queue.len() + 96
}

/// Where the next step of a QPEEK goes on, when it needs one.
pub(super) fn peek_rest(ask: &Peek, got: usize, next: Option<QueuePosition>) -> Option<Peek> {
    let wanted = ask.count.unsigned_abs() as usize;
    let after = next?;
    let left = ask
        .count
        .saturating_sub(ask.count.signum().saturating_mul(got as i64));
    (got < wanted).then(|| Peek {
        count: left,
        after: Some(after),
        ..ask.clone()
    })
}

impl Progress {
    /// The request, as far as it is kept.
    pub fn args(&self) -> &[Bytes] {
        match &self.kind {
            Kind::Gather { args, .. } | Kind::Change { args, .. } => args,
            _ => &[],
        }
    }

    /// Whether its end depends on others: a blocked GETJOB.
    pub fn is_blocked(&self) -> bool {
        matches!(&self.kind, Kind::GetJob(getjob) if getjob.is_waiting())
    }

    /// Bytes of jobs and other elements that it has gathered.
    pub fn held_bytes(&self) -> usize {
        match &self.kind {
            Kind::GetJob(getjob) => getjob.held_bytes(),
            Kind::Peek { bytes, .. } => *bytes,
            Kind::Scan(scan) => scan.bytes,
            _ => 0,
        }
    }

    /// Whether it waits for a change of the node.
    pub fn is_change(&self) -> bool {
        matches!(self.kind, Kind::Change { .. })
    }

    /// Whether its end may never come once the node stops: SHUTDOWN itself, DEBUG SLEEP.
    pub fn waits_for_the_node(&self) -> bool {
        matches!(self.kind, Kind::Change { .. } | Kind::Sleep)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::id::NodeId;
    use crate::slot::Slot;
    use crate::wire::Blob;

    fn rest(count: i64, got: usize) -> Option<i64> {
        let id = JobId::new(
            NodeId::from_bytes([1; 20]),
            Slot::from_number(1),
            [1; 18],
            60,
            true,
        );
        let ask = Peek {
            queue: Blob::copy_from(b"q"),
            count,
            after: None,
        };
        peek_rest(&ask, got, Some(QueuePosition { ctime: 1, id })).map(|rest| rest.count)
    }

    #[test]
    fn a_further_step_of_qpeek_asks_for_what_is_missing() {
        assert_eq!(rest(600, 512), Some(88));
        assert_eq!(rest(-600, 512), Some(-88));
        assert_eq!(rest(512, 512), None);
        assert_eq!(rest(i64::MIN, 512), Some(i64::MIN + 512));
        assert_eq!(
            peek_rest(
                &Peek {
                    queue: Blob::EMPTY,
                    count: 600,
                    after: None
                },
                3,
                None
            ),
            None
        );
    }
}
