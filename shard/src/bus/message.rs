//! The messages between nodes.
//!
//! They may be lost, doubled, reordered, late or hostile: each is checked before it touches state, and what must arrive is said again
//! until it is answered. Durations travel, never instants.
//!
//! | message | from, to | says | answered by |
//! | --- | --- | --- | --- |
//! | Packet | shard 0, shard 0 | membership (`cluster/`) | - |
//! | Copy | who adds or repairs, a new holder | keep this job | Copied, Refused, SetAck |
//! | Copied | back | it is kept, as safely as this node's `appendfsync` says | - |
//! | Refused | back | it is not | - |
//! | Holders | who added, all holders | who has it for certain, and who was asked | - |
//! | Delete | anyone, holders | the job is gone: deleted, or acknowledged everywhere | - |
//! | SetAck | who learnt of an acknowledgement, members | it is acknowledged, and these may have it | GotAck |
//! | GotAck | back, or to the member that collects | marked here too (`known`), or never heard of | Delete, when all have |
//! | Leased | deliverer, holders | it was handed out, or postponed: not before so long | - |
//! | WillQueue | holder, holders | my deadline nears: who has it? And whether I count you as one | Standing, SetAck |
//! | Standing | back | what this node knows of it | - |
//! | Queued | who queued it, holders | it is in my queue | Queued by one of a lower rank that has it in its own |
//! | Left | a holder that drops a live job, holders | I am none any more | - |
//! | Enqueue | who placed a job elsewhere, one holder | bring it into its queue | Enqueued, until it comes |
//! | Enqueued | back | done, or refused | - |
//! | Import | who has a job, who has a consumer for it | take it: both hold it | Queued or Leased to all holders |
//! | TransferOffer | who has a job with RETRY 0, one node | have you room for it? (`home/cluster/transfer.rs`) | TransferWant, Refused |
//! | TransferWant | back | I have: send it with this number | Transfer |
//! | Transfer | source, target | it is yours, if your store epoch is still this one | TransferAnswer, TransferWant |
//! | TransferAsk | source, target | was it taken? | TransferAnswer |
//! | TransferAnswer | back | it was, or never will be | TransferRetire |
//! | TransferRetire | source, target | I know: forget the answer | - |
//! | Interest | node with consumers, node | so many jobs of these queues can be taken here: from now on (`lasting`), or of those there are now | Import |
//! | Ask | home shard, home shard there | a command about a job or queue of that node, or a queue's pause state | Told |
//! | Told | back, to the ticket's shard | the answer | - |

use bytes::Bytes;

use crate::commands::IdVerb;
use crate::commands::view::{JobView, PauseState, QueueView};
use crate::id::JobId;
use crate::log::Holder;
use crate::message::Ticket;
use crate::slot::{ShardNo, Slot};
use crate::wire::Blob;

/// A message of the bus. See the table at the head of this file.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the table at the head of the file")]
pub enum BusMessage {
    Packet {
        bytes: Bytes,
    },
    Copy {
        copy: Box<JobCopy>,
        wants_answer: bool,
    },
    Copied {
        id: JobId,
    },
    Refused {
        id: JobId,
        why: Refusal,
    },
    Holders {
        id: JobId,
        members: Members,
    },
    Delete {
        ids: Vec<JobId>,
    },
    SetAck {
        id: JobId,
        members: Members,
    },
    GotAck {
        id: JobId,
        known: bool,
        members: Members,
    },
    Leased {
        id: JobId,
        left_ms: u64,
        deliveries: u32,
    },
    WillQueue {
        id: JobId,
        counted: u64,
    },
    Standing {
        id: JobId,
        standing: Standing,
    },
    Queued {
        id: JobId,
        nacks: u32,
        additional_deliveries: u32,
    },
    Left {
        id: JobId,
    },
    Enqueue {
        id: JobId,
        delay_ms: u64,
    },
    Enqueued {
        id: JobId,
        taken: bool,
    },
    Import {
        copy: Box<JobCopy>,
    },
    Interest {
        lasting: bool,
        queues: Vec<(Blob, u32)>,
    },
    TransferOffer {
        id: JobId,
        hop: u64,
        body_bytes: u64,
        queue: Blob,
    },
    TransferWant {
        id: JobId,
        hop: u64,
        want: u64,
    },
    Transfer {
        hop: u64,
        epoch: u64,
        want: u64,
        copy: Box<JobCopy>,
    },
    TransferAsk {
        id: JobId,
        hop: u64,
        epoch: u64,
    },
    TransferAnswer {
        id: JobId,
        hop: u64,
        taken: bool,
    },
    TransferRetire {
        id: JobId,
        hop: u64,
    },
    Ask {
        ticket: Ticket,
        request: RemoteRequest,
    },
    Told {
        ticket: Ticket,
        answer: RemoteAnswer,
    },
}

/// A job on its way to another node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JobCopy {
    /// Its ID.
    pub id: JobId,
    /// Its queue.
    pub queue: Blob,
    /// Its body.
    pub body: Blob,
    /// Creation stamp, nanoseconds.
    pub ctime: u64,
    /// What is left of its life, milliseconds.
    pub ttl_left_ms: u64,
    /// What is left until it is to enter its queue (delay, lease), milliseconds; [`NEVER_MS`](Self::NEVER_MS) for one that was taken
    /// out of its queue.
    pub delay_left_ms: u64,
    /// Time to live as asked for, seconds.
    pub ttl_s: u32,
    /// Lease time, seconds; 0 is at most once.
    pub retry_s: u32,
    /// Delay as asked for, seconds.
    pub delay_s: u32,
    /// Copies asked for.
    pub replicate: u16,
    /// Negative acknowledgements.
    pub nacks: u32,
    /// Times it entered its queue again, NACKs excluded.
    pub additional_deliveries: u32,
    /// Times it was handed out.
    pub deliveries: u32,
    /// Who has it, the sender included.
    pub members: Members,
}

impl JobCopy {
    /// A job with RETRY 0 that enters its queue only when somebody asks for it.
    pub const NEVER_MS: u64 = u64::MAX;
}

/// The two parts of a job's holder set.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Members {
    /// Have it for certain.
    pub confirmed: Vec<Holder>,
    /// Were asked, and have not confirmed. Their epoch is the one known when they were asked.
    pub asked: Vec<Holder>,
}

/// Why a copy or an import is not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// No memory left.
    Memory,
    /// The node leaves the cluster.
    Leaving,
    /// Its log takes nothing.
    Log,
    /// Its queue is paused (not for copies).
    Paused,
    /// It has the job itself, or too many are on their way (offers only).
    Busy,
}

/// What a node knows of a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    /// Handed out or postponed here: so long until it comes back.
    Leased {
        /// Milliseconds.
        left_ms: u64,
    },
    /// In its queue here.
    Queued,
    /// A copy, which nobody here has.
    NotMine,
    /// Never heard of, or forgotten since it was collected.
    Unknown {
        /// What the question said: the store epoch under which the node that asked counts this one among the holders; 0 when it does not.
        /// It tells an answer from one that was given before the copy came.
        counted: u64,
    },
}

/// A command about a job or queue of another node.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the commands' names")]
pub enum RemoteRequest {
    Ids {
        verb: IdVerb,
        ids: Vec<JobId>,
    },
    Show(JobId),
    Working(JobId),
    Length(Blob),
    Stat(Blob),
    /// A state that was set with BCAST; kept there when it is the newer one.
    Pause {
        queue: Blob,
        pause: PauseState,
        version: u64,
    },
}

/// The answer to one.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "answers of the commands")]
pub enum RemoteAnswer {
    /// Which of the IDs are held here, as a bit each in order, how many counted, how many were skipped since their queue is paused.
    Ids {
        held: Vec<bool>,
        counted: u32,
        paused: u32,
    },
    Job(Option<Box<JobView>>),
    Count(i64),
    /// WORKING, SHOW: not held here.
    NotHere,
    Queue(Option<Box<QueueView>>),
    /// Refused, with this text (error code first).
    Error(String),
}

impl BusMessage {
    /// Who handles it.
    pub fn place(&self) -> Place {
        let slot = match self {
            Self::Copy { copy, .. } | Self::Import { copy } | Self::Transfer { copy, .. } => copy.id.slot(),
            Self::Copied { id }
            | Self::Refused { id, .. }
            | Self::Holders { id, .. }
            | Self::SetAck { id, .. }
            | Self::GotAck { id, .. }
            | Self::Leased { id, .. }
            | Self::WillQueue { id, .. }
            | Self::Standing { id, .. }
            | Self::Queued { id, .. }
            | Self::Left { id }
            | Self::TransferOffer { id, .. }
            | Self::TransferWant { id, .. }
            | Self::TransferAsk { id, .. }
            | Self::TransferAnswer { id, .. }
            | Self::TransferRetire { id, .. }
            | Self::Enqueue { id, .. }
            | Self::Enqueued { id, .. } => id.slot(),
            Self::Ask { request, .. } => return request.place(),
            Self::Told { ticket, .. } => return Place::Shard(ticket.shard),
            Self::Packet { .. } => return Place::Shard(0),
            Self::Delete { .. } | Self::Interest { .. } => return Place::Here,
        };
        Place::Home(slot)
    }
}

impl RemoteRequest {
    fn place(&self) -> Place {
        Place::Home(match self {
            Self::Ids { ids, .. } => match ids.first() {
                Some(id) => id.slot(),
                None => return Place::Here,
            },
            Self::Show(id) | Self::Working(id) => id.slot(),
            Self::Length(queue) | Self::Stat(queue) | Self::Pause { queue, .. } => Slot::of_queue(queue),
        })
    }
}

/// Which shard of the receiving node handles a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// The home shard of this slot.
    Home(Slot),
    /// This one; a number that the node does not have is a peer's mistake.
    Shard(ShardNo),
    /// The one it arrived at, which splits it by slot where it must.
    Here,
}
