//! What a message is on the wire: its kind, and the fixed part of each kind.
//!
//! ```text
//! message  kind      u8    the table
//!          reserved  3 zeros
//!          fixed     u32   length of the fixed part
//!          raw       u32   length of the raw part
//!          fixed part      one rkyv payload, its type by kind
//!          raw part        names and bodies, as the table says
//! ```
//!
//! | kind | number | fixed part | raw part |
//! | --- | --- | --- | --- |
//! | packet | 1 | `NothingPayload` | the packet |
//! | copy | 2 | `CopyPayload` | queue, body |
//! | copied, will queue, left | 3, 10, 13 | `IdPayload` | |
//! | refused | 4 | `RefusedPayload` | |
//! | holders, set ack, got ack | 5, 7, 8 | `MembersPayload`, `GotAckPayload` | |
//! | delete | 6 | `IdsPayload` | |
//! | leased | 9 | `LeasedPayload` | |
//! | standing | 11 | `StandingPayload` | |
//! | queued | 12 | `QueuedPayload` | |
//! | enqueue, enqueued | 14, 15 | `EnqueuePayload`, `EnqueuedPayload` | |
//! | import | 16 | `JobPayload` | queue, body |
//! | interest | 17 | `InterestPayload` | the names of the queues |
//! | ask: pause | 18 | `PausePayload` | queue |
//! | ask: ids, show, working | 19, 20, 21 | `AskIdsPayload`, `AskIdPayload` | |
//! | ask: length, stat | 22, 23 | `TicketPayload` | queue |
//! | told: ids, count, queue | 24, 26, 28 | `ToldIdsPayload`, `ToldCountPayload`, `ToldQueuePayload` | queue of the third |
//! | told: job | 25 | `ToldJobPayload` | queue, body |
//! | told: no job, no queue, not here | 29, 30, 27 | `TicketPayload` | |
//! | told: error | 31 | `TicketPayload` | the text |
//! | transfer offer | 32 | `OfferPayload` | queue |
//! | transfer | 34 | `TransferPayload` | queue, body |
//! | transfer want, ask, answer, retire | 33, 35, 36, 37 | `HopPayload` | |
//!
//! **Changing the format.** The handshake refuses a node of another `VERSION` (`frame`), so a change of what is here raises it. rkyv's
//! layout follows the feature flags in `Cargo.toml` and the order of the fields.

use rkyv::{Archive, Deserialize, Serialize};

/// Kinds of message, by their numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Packet = 1,
    Copy = 2,
    Copied = 3,
    Refused = 4,
    Holders = 5,
    Delete = 6,
    SetAck = 7,
    GotAck = 8,
    Leased = 9,
    WillQueue = 10,
    Standing = 11,
    Queued = 12,
    Left = 13,
    Enqueue = 14,
    Enqueued = 15,
    Import = 16,
    Interest = 17,
    AskPause = 18,
    AskIds = 19,
    AskShow = 20,
    AskWorking = 21,
    AskLength = 22,
    AskStat = 23,
    ToldIds = 24,
    ToldJob = 25,
    ToldCount = 26,
    ToldNotHere = 27,
    ToldQueue = 28,
    ToldNoJob = 29,
    ToldNoQueue = 30,
    ToldError = 31,
    TransferOffer = 32,
    TransferWant = 33,
    Transfer = 34,
    TransferAsk = 35,
    TransferAnswer = 36,
    TransferRetire = 37,
}

/// All kinds, by number: the first has number 1.
const KINDS: [Kind; 37] = {
    use Kind::*;
    [
        Packet,
        Copy,
        Copied,
        Refused,
        Holders,
        Delete,
        SetAck,
        GotAck,
        Leased,
        WillQueue,
        Standing,
        Queued,
        Left,
        Enqueue,
        Enqueued,
        Import,
        Interest,
        AskPause,
        AskIds,
        AskShow,
        AskWorking,
        AskLength,
        AskStat,
        ToldIds,
        ToldJob,
        ToldCount,
        ToldNotHere,
        ToldQueue,
        ToldNoJob,
        ToldNoQueue,
        ToldError,
        TransferOffer,
        TransferWant,
        Transfer,
        TransferAsk,
        TransferAnswer,
        TransferRetire,
    ]
};

const _: () = {
    let mut at = 0;
    while at < KINDS.len() {
        assert!(
            KINDS[at] as usize == at + 1,
            "kinds stand in the order of their numbers"
        );
        at += 1;
    }
};

impl Kind {
    pub fn from_number(number: u8) -> Option<Self> {
        KINDS.get(usize::from(number).checked_sub(1)?).copied()
    }
}

pub type Id = [u8; 24];

#[derive(Archive, Serialize, Deserialize)]
pub struct NothingPayload {
    /// 0: a place for what a later version wants to say.
    pub reserved: u32,
}

#[derive(Archive, Serialize, Deserialize)]
pub struct HolderPayload {
    pub node: [u8; 20],
    pub epoch: u64,
}

#[derive(Archive, Serialize, Deserialize)]
pub struct MembersPayload {
    pub id: Id,
    pub confirmed: Vec<HolderPayload>,
    pub asked: Vec<HolderPayload>,
}

#[derive(Archive, Serialize, Deserialize)]
pub struct JobPayload {
    pub ctime: u64,
    pub ttl_left_ms: u64,
    pub delay_left_ms: u64,
    pub members: MembersPayload,
    pub ttl_s: u32,
    pub retry_s: u32,
    pub delay_s: u32,
    pub nacks: u32,
    pub additional_deliveries: u32,
    pub deliveries: u32,
    pub name_bytes: u32,
    pub replicate: u16,
}

#[derive(Archive, Serialize, Deserialize)]
pub struct CopyPayload {
    pub job: JobPayload,
    pub wants_answer: bool,
}

#[derive(Archive, Serialize, Deserialize)]
pub struct IdPayload {
    pub id: Id,
}

#[derive(Archive, Serialize, Deserialize)]
pub struct IdsPayload {
    pub ids: Vec<Id>,
}

#[derive(Archive, Serialize, Deserialize)]
pub struct RefusedPayload {
    pub id: Id,
    pub why: u8,
}

#[derive(Archive, Serialize, Deserialize)]
pub struct GotAckPayload {
    pub members: MembersPayload,
    pub known: bool,
}

#[derive(Archive, Serialize, Deserialize)]
pub struct LeasedPayload {
    pub left_ms: u64,
    pub id: Id,
    pub deliveries: u32,
}

#[derive(Archive, Serialize, Deserialize)]
pub struct WillQueuePayload {
    pub counted: u64,
    pub id: Id,
}

#[derive(Archive, Serialize, Deserialize)]
pub struct StandingPayload {
    /// Leased: milliseconds left; unknown: as the question counted.
    pub number: u64,
    pub id: Id,
    pub standing: u8,
}

#[derive(Archive, Serialize, Deserialize)]
pub struct QueuedPayload {
    pub id: Id,
    pub nacks: u32,
    pub additional_deliveries: u32,
}

#[derive(Archive, Serialize, Deserialize)]
pub struct EnqueuePayload {
    pub delay_ms: u64,
    pub id: Id,
}

#[derive(Archive, Serialize, Deserialize)]
pub struct EnqueuedPayload {
    pub id: Id,
    pub taken: bool,
}

#[derive(Archive, Serialize, Deserialize)]
pub struct OfferPayload {
    pub hop: u64,
    pub body_bytes: u64,
    pub id: Id,
}

#[derive(Archive, Serialize, Deserialize)]
pub struct TransferPayload {
    pub hop: u64,
    pub epoch: u64,
    pub want: u64,
    pub job: JobPayload,
}

#[derive(Archive, Serialize, Deserialize)]
pub struct HopPayload {
    pub hop: u64,
    /// Want: its number. Ask: the store epoch. Answer: 1 for taken, 0 for refused. Retire: 0.
    pub number: u64,
    pub id: Id,
}

#[derive(Archive, Serialize, Deserialize)]
pub struct InterestPayload {
    pub queues: Vec<InterestItem>,
    pub lasting: bool,
}

#[derive(Archive, Serialize, Deserialize)]
pub struct InterestItem {
    pub name_bytes: u32,
    pub credit: u32,
}

#[derive(Archive, Serialize, Deserialize)]
pub struct PausePayload {
    pub version: u64,
    pub ticket: TicketPayload,
    pub input: bool,
    pub output: bool,
}

#[derive(Archive, Serialize, Deserialize)]
pub struct TicketPayload {
    pub index: u32,
    pub generation: u32,
    pub request: u32,
    pub shard: u16,
}

#[derive(Archive, Serialize, Deserialize)]
pub struct AskIdsPayload {
    pub ticket: TicketPayload,
    pub ids: Vec<Id>,
    pub verb: u8,
}

#[derive(Archive, Serialize, Deserialize)]
pub struct AskIdPayload {
    pub ticket: TicketPayload,
    pub id: Id,
}

#[derive(Archive, Serialize, Deserialize)]
pub struct ToldIdsPayload {
    pub ticket: TicketPayload,
    pub held: Vec<bool>,
    pub counted: u32,
    pub paused: u32,
}

#[derive(Archive, Serialize, Deserialize)]
pub struct ToldCountPayload {
    pub count: i64,
    pub ticket: TicketPayload,
}

#[derive(Archive, Serialize, Deserialize)]
pub struct ToldJobPayload {
    pub ttl_s: u64,
    pub ctime: u64,
    pub next_requeue_ms: Option<u64>,
    pub next_awake_ms: Option<u64>,
    pub ticket: TicketPayload,
    pub id: Id,
    pub delay_s: u32,
    pub retry_s: u32,
    pub nacks: u32,
    pub additional_deliveries: u32,
    pub name_bytes: u32,
    pub holders: Vec<HolderViewPayload>,
    pub replicate: u16,
    pub state: u8,
}

#[derive(Archive, Serialize, Deserialize)]
pub struct HolderViewPayload {
    pub host: u64,
    pub node: [u8; 20],
    pub confirmed: bool,
}

#[derive(Archive, Serialize, Deserialize)]
pub struct ToldQueuePayload {
    pub length: u64,
    pub age_s: u64,
    pub idle_s: u64,
    pub blocked: u64,
    pub jobs_in: u64,
    pub jobs_out: u64,
    pub ticket: TicketPayload,
    pub input: bool,
    pub output: bool,
}
