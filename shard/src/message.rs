//! What shards say to each other.
//!
//! A session lives on the shard that accepted it; a job lives on its home shard. Between the two (also when they are the
//! same shard, then without the mesh) go these messages. They are plain data. The mesh delivers them reliably and in
//! order per pair of shards; a sender never waits.
//!
//! | message | from, to | takes credit | says |
//! | --- | --- | --- | --- |
//! | Request | session's shard, home shard | one of the pair | a command, or a shard's part of one |
//! | Answer | back | returns it | the answer, or `Waiting`: it comes later |
//! | Late | back | - | the end of a request that was `Waiting` (by itself, behind another of its session, or for the log), or what a claim or cancel gave; one per waiting request |
//! | Claim | session's shard, home shard | - | hand out these of the jobs that were offered to this request |
//! | Cancel | session's shard, home shard | - | the request ends: return its offers, forget its waiter |
//! | Undelivered | session's shard, home shard | - | these were handed out and never reached the client |
//! | Bus | shard a link ends at, home shard | - | a peer's message (`bus/message.rs`) |
//! | Node | any | - | what shard 0 coordinates (`node.rs`) |
//!
//! The life of a GETJOB. All queues on one home shard: `Take` with [`Manner::Deliver`], answered `Jobs`, `Nothing` or
//! `Waiting`; a waiting one ends with `Late(Jobs)`, or with `Late(Nothing)` after a `Cancel` (timeout) - exactly one of
//! them: a cancel that finds no waiter is silent, since the jobs are on their way.
//!
//! Queues of several home shards: `Take` with [`Manner::Offer`] to each, answered `Offers`, `Nothing` or `Waiting`. What is
//! offered is reserved: still counted in QLEN, no record, no lease. The session claims in the order of the pass and
//! gets `Late(Jobs)` for each `Claim`, with fewer jobs, or none, where a claim is refused (job acked, expired, deleted,
//! dequeued, queue paused meanwhile). When it has what it wants it sends `Cancel` to every shard it asked; those give
//! the unclaimed offers back to their place and serve the next waiter. A waiter whose claim was refused whole and that has no offer
//! left waits on as before, at its place in the order.

use smallvec::SmallVec;

use crate::bus::{BusMessage, PeerNo};
use crate::commands::{Request, view};
use crate::error::CommandError;
use crate::id::{JobId, NodeId};
use crate::node::NodeMessage;
use crate::slot::ShardNo;
use crate::wire::Blob;

/// Names a session of one shard; the generation tells it from an earlier one at the same place.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SessionId {
    /// Place in the shard's table of sessions.
    pub index: u32,
    /// Which of the sessions that had this place.
    pub generation: u32,
}

/// Names one unanswered request of one session, and where its answer goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ticket {
    /// The session's shard.
    pub shard: ShardNo,
    /// The session.
    pub session: SessionId,
    /// The session's own number of the request.
    pub request: u32,
}

/// A message of the mesh. See the table at the head of this file.
#[derive(Debug)]
#[allow(missing_docs, reason = "the table at the head of the file")]
pub enum Message {
    Request {
        ticket: Ticket,
        request: Request,
    },
    Answer {
        ticket: Ticket,
        answer: Answer,
    },
    Late {
        ticket: Ticket,
        answer: Answer,
    },
    Claim {
        ticket: Ticket,
        ids: Vec<JobId>,
    },
    Cancel {
        ticket: Ticket,
    },
    Undelivered {
        jobs: Vec<Handed>,
    },
    Bus {
        from: PeerNo,
        epoch: u64,
        message: BusMessage,
    },
    Node(NodeMessage),
}

/// One handing out of a job: the job and which of its deliveries it was, so that a later one is not undone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Handed {
    /// The job.
    pub id: JobId,
    /// Its delivery counter at that time.
    pub delivery: u32,
}

/// What a home shard says to a request.
#[derive(Debug)]
#[allow(missing_docs, reason = "the fields are told with their variants")]
pub enum Answer {
    /// The end comes later, as `Message::Late`.
    Waiting,
    /// Refused; nothing was changed.
    Error(CommandError),
    /// `+OK`.
    Ok,
    /// The ID of a new job.
    Id(JobId),
    /// How many jobs a command about IDs counted, or another integer.
    Count(i64),
    /// How many IDs counted, and how many were skipped because their queue is paused: ENQUEUE, NACK.
    Entered { counted: i64, paused: i64 },
    /// GETJOB: no job, and none to wait for.
    Nothing,
    /// GETJOB: jobs handed out, in the order of the pass over the queues asked for.
    Jobs(Vec<Delivered>),
    /// GETJOB over several home shards: jobs reserved for the session, in the order of this shard's own pass.
    Offers(Vec<Offered>),
    /// SHOW: the job, when this shard holds it.
    Job(Option<Box<view::JobView>>),
    /// QPEEK: jobs, and whether more stand behind them.
    Peeked {
        jobs: Vec<Delivered>,
        next: Option<view::QueuePosition>,
    },
    /// QSTAT: the queue, when it exists.
    Queue(Option<Box<view::QueueView>>),
    /// QLEN, QSTAT, DELJOB with CLUSTER: what each node says, this one first.
    Nodes(Vec<(NodeId, view::Said)>),
    /// PAUSE: the state after the command.
    Pause(view::PauseState),
    /// QSCAN, JSCAN: a page of this shard's part.
    Page(Box<view::Page>),
    /// A shard's part of an answer about the whole node (INFO, CLIENT LIST, SLOWLOG GET, ...).
    Part(Box<view::Part>),
}

/// A job as GETJOB and QPEEK give it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Delivered {
    /// Which of the queues of the request it came from, by place in the command.
    pub place: u32,
    /// Its queue.
    pub queue: Blob,
    /// Its ID and which delivery this is.
    pub handed: Handed,
    /// Its body.
    pub body: Blob,
    /// Times it was negatively acknowledged.
    pub nacks: u32,
    /// Times it was queued again, NACKs excluded.
    pub additional_deliveries: u32,
}

/// A job reserved for a GETJOB.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Offered {
    /// Which of the queues of the request it stands in, by place in the command.
    pub place: u32,
    /// The job.
    pub id: JobId,
}

/// How a `Take` gets its jobs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Manner {
    /// All queues are here: hand out at once.
    Deliver,
    /// Other shards are asked too: reserve, and wait for the claim.
    Offer,
}

/// What a `Take` that finds no job does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Patience {
    /// Answer `Nothing`, also when all jobs are reserved: the session has some already.
    None,
    /// As `None`, for one who will ask again to wait: it does not push in where others are being served.
    Try,
    /// GETJOB NOHANG: wait only while jobs reserved at that moment are neither claimed nor returned.
    Reserved,
    /// Wait for jobs, in blocking order.
    Jobs,
}

/// A shard's part of a GETJOB.
#[derive(Clone, Debug)]
pub struct Take {
    /// Place in the command and name of each queue of this shard, in order. One named twice is waited for once,
    /// at its first place.
    pub queues: SmallVec<[(u32, Blob); 1]>,
    /// How many jobs at the most, 1 to `TAKE_STEP` (`OFFER_STEP` when offering).
    pub count: u32,
    /// Deliver or offer.
    pub manner: Manner,
    /// What to do when there is none.
    pub patience: Patience,
}
