//! What home shards and sessions tell each other about jobs, queues and the node: copies made for one answer.

use crate::cluster::view::ClusterView;
use crate::id::{JobId, NodeId};
use crate::stats;
use crate::wire::Blob;

/// States of a job, with the words of SHOW and JSCAN (reference, 3.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum JobState {
    /// ADDJOB waits for copies on other nodes.
    WaitRepl,
    /// Delayed, under lease, dequeued, or held back by a paused queue.
    Active,
    /// In its queue.
    Queued,
    /// Acknowledged, and not yet collected everywhere.
    Acked,
}

impl JobState {
    /// The word of the reference.
    pub fn word(self) -> &'static str {
        match self {
            Self::WaitRepl => "wait-repl",
            Self::Active => "active",
            Self::Queued => "queued",
            Self::Acked => "acked",
        }
    }

    /// Reads a word, in any case.
    pub fn parse(word: &[u8]) -> Option<Self> {
        [Self::WaitRepl, Self::Active, Self::Queued, Self::Acked]
            .into_iter()
            .find(|state| word.eq_ignore_ascii_case(state.word().as_bytes()))
    }
}

/// A job as SHOW and JSCAN REPLY ALL describe it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JobView {
    /// Its ID.
    pub id: JobId,
    /// Its queue.
    pub queue: Blob,
    /// Its state.
    pub state: JobState,
    /// Copies asked for.
    pub replicate: u16,
    /// Whole seconds left to live.
    pub ttl_s: u64,
    /// Creation stamp, nanoseconds.
    pub ctime: u64,
    /// Delay as asked for.
    pub delay_s: u32,
    /// Lease time; 0 is at most once.
    pub retry_s: u32,
    /// Negative acknowledgements.
    pub nacks: u32,
    /// Times queued again, NACKs excluded.
    pub additional_deliveries: u32,
    /// Milliseconds until it is queued again; for a queued job the lease that it would get now; `None` when never.
    pub next_requeue_ms: Option<u64>,
    /// Milliseconds until its next timer.
    pub next_awake_ms: Option<u64>,
    /// The nodes that may have it, the one that describes it first.
    pub holders: Vec<HolderView>,
    /// Its body.
    pub body: Blob,
}

/// A node that may have a job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HolderView {
    /// The node.
    pub node: NodeId,
    /// The machine it runs on, as a hash; 0 when it is not known.
    pub host: u64,
    /// It has the job for certain; else it was asked to take it.
    pub confirmed: bool,
}

/// Which ways of a queue are closed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PauseState {
    /// Nothing enters.
    pub input: bool,
    /// Nothing leaves.
    pub output: bool,
}

impl PauseState {
    /// The word of the reference.
    pub fn word(self) -> &'static str {
        match (self.input, self.output) {
            (false, false) => "none",
            (true, false) => "in",
            (false, true) => "out",
            (true, true) => "all",
        }
    }

    /// Whether any way is closed.
    pub fn any(self) -> bool {
        self.input || self.output
    }
}

/// A queue as QSTAT describes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QueueView {
    /// Its name.
    pub name: Blob,
    /// Jobs queued, those reserved for a GETJOB included.
    pub length: u64,
    /// Seconds since it was created.
    pub age_s: u64,
    /// Seconds since the last enqueue or fetch.
    pub idle_s: u64,
    /// Clients that wait for its jobs.
    pub blocked: u64,
    /// Enqueues.
    pub jobs_in: u64,
    /// Jobs handed out.
    pub jobs_out: u64,
    /// Its pause state.
    pub pause: PauseState,
}

/// What a node said of a queue, or did with jobs, to a command with CLUSTER.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Said {
    /// QLEN: the length; DELJOB: how many jobs were deleted.
    Count(i64),
    /// QSTAT: the queue, when it exists there.
    Queue(Option<Box<QueueView>>),
    /// It refused, with this text (error code first).
    Refused(String),
    /// It did not answer.
    Nothing,
}

impl Said {
    /// Takes in what was said to another part of the same command.
    pub fn add(&mut self, more: Self) {
        match (&mut *self, more) {
            (Self::Nothing | Self::Refused(_), _) => {}
            (Self::Count(count), Self::Count(more)) => *count = count.saturating_add(more),
            (said, more) => *said = more,
        }
    }
}

/// A place in a queue: behind the job of this creation stamp and ID.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueuePosition {
    /// Creation stamp.
    pub ctime: u64,
    /// ID.
    pub id: JobId,
}

/// A place in a scan over the node: 12 bits of slot, then 52 bits of the hash order inside the slot.
///
/// The order inside a slot is that of the bit-reversed hash (of the ID for jobs, of the name for queues), so it outlives
/// growth of the tables and another number of shards. 0 is the start; an exhausted scan has none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct ScanPosition(pub u64);

/// A shard's part of a page of QSCAN or JSCAN.
#[derive(Clone, Debug, Default)]
pub struct Page {
    /// What was found from the position asked for on, in scan order, with the place of each.
    pub items: Vec<(ScanPosition, PageItem)>,
    /// Where this shard stopped looking; `None` when it has nothing behind it.
    pub next: Option<ScanPosition>,
}

/// An element of a scan.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PageItem {
    /// QSCAN: a queue's name.
    Queue(Blob),
    /// JSCAN: an ID.
    Id(JobId),
    /// JSCAN REPLY ALL: the job.
    Job(Box<JobView>),
}

/// A shard's part of an answer about the whole node; `commands` that ask for one merge the parts.
#[derive(Debug)]
pub enum Part {
    /// INFO: counters and gauges.
    Stats(Box<stats::ShardStats>),
    /// CLIENT LIST, CLIENT INFO of others: a line each, with the client's ID to sort by.
    Clients(Vec<(u64, String)>),
    /// SLOWLOG GET: entries, newest first.
    Slow(Vec<stats::SlowEntry>),
    /// LATENCY: the samples of events.
    Latency(Vec<stats::LatencyEvent>),
    /// LATENCY HISTOGRAM, Commandstats.
    Commands(Box<stats::CommandStats>),
    /// CLUSTER NODES, CLUSTER INFO, HELLO: what shard 0 knows; nothing from the others.
    Cluster(Option<Box<ClusterView>>),
}
