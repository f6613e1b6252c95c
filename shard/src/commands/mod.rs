//! The commands, a file each: what it does, its type, its grammar, what it does to the state.
//!
//! A request is turned into a [`Plan`] by its command's `plan` (grammar; nothing is changed yet); the session engine (`session/`)
//! starts the plan when its place in the order of the connection has come (`sessions.md`): at once for what has one
//! home shard and cannot block, else when everything earlier is answered.

pub mod ackjob;
pub mod addjob;
#[cfg(test)]
mod administration_tests;
#[cfg(test)]
mod anywhere_tests;
pub mod auth;
pub mod bgrewriteaof;
pub mod client;
pub mod cluster;
pub mod command;
pub mod config;
pub mod debug;
pub mod deljob;
pub mod dequeue;
pub mod echo;
pub mod enqueue;
pub mod fastack;
pub mod getjob;
pub mod hello;
mod ids;
pub mod info;
pub mod jscan;
pub mod latency;
pub mod loadjob;
pub mod monitor;
pub mod nack;
pub mod pause;
pub mod ping;
pub mod qlen;
pub mod qpeek;
pub mod qscan;
pub mod qstat;
pub mod quit;
pub mod redact;
pub mod reset;
pub mod select;
pub mod show;
pub mod shutdown;
pub mod slowlog;
pub mod table;
#[cfg(test)]
pub(crate) mod testing;
pub mod time;
pub mod view;
pub mod words;
pub mod working;

pub use self::{addjob::AddJob, getjob::GetJob, pause::Pause, qpeek::Peek, qscan::Scan};

use bytes::Bytes;
use smallvec::SmallVec;

use crate::clock::Now;
use crate::core::Core;
use crate::error::CommandError;
use crate::id::JobId;
use crate::input::{Question, Told};
use crate::message::Take;
use crate::node::Change;
use crate::session::Session;
use crate::slot::Slot;
use crate::wire::{Args, Blob, Encoder};

/// A command of the table.
pub struct Spec {
    /// Its name, lowercase.
    pub name: &'static str,
    /// Arity as COMMAND shows it: n arguments with the name, or at least -n; 0 is any number, -1 at least the name.
    pub arity: i32,
    /// Flags as COMMAND shows them.
    pub flags: Flags,
    /// Grammar: what the request asks for.
    pub plan: fn(&Core, &Session, &Args<'_>) -> Result<Plan, CommandError>,
    /// One line for COMMAND DOCS.
    pub summary: &'static str,
}

impl Spec {
    /// Whether its arity admits so many arguments, the name included.
    pub fn takes(&self, arguments: usize) -> bool {
        let least = self.arity.unsigned_abs() as usize;
        arguments == least || self.arity == 0 || (self.arity < 0 && arguments > least)
    }
}

/// Flags of a command (reference, 1.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Flags(pub u8);

impl Flags {
    /// w
    pub const WRITE: Self = Self(1);
    /// r
    pub const READONLY: Self = Self(2);
    /// m: refused when memory is used up
    pub const DENYOOM: Self = Self(4);
    /// a
    pub const ADMIN: Self = Self(8);
    /// l: served while the log is loaded
    pub const LOADING: Self = Self(16);
    /// F
    pub const FAST: Self = Self(32);
    /// Served before AUTH; not shown by COMMAND.
    pub const NO_AUTH: Self = Self(64);

    /// All of both.
    pub const fn and(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// Whether all of `other` are set.
    pub const fn has(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }
}

/// What a request comes to.
pub enum Plan {
    /// Done on the session's shard at once. `run` writes the reply; on an error nothing was written.
    Local(fn(&mut Call<'_>) -> Result<(), CommandError>),
    /// One home shard, and no blocking: may overlap with earlier ones.
    Home {
        /// Whose home shard.
        slot: Slot,
        /// What it is asked.
        request: Request,
    },
    /// IDs, each for its home shard; the counts are added.
    Ids {
        /// What to do with each.
        verb: IdVerb,
        /// The IDs, all well-formed, in order, doubles kept.
        ids: SmallVec<[JobId; 2]>,
    },
    /// GETJOB.
    GetJob(GetJob),
    /// QPEEK.
    Peek(Peek),
    /// QSCAN, JSCAN.
    Scan(Scan),
    /// Every shard is asked; `finish` merges the parts, in the order of the shards, and writes the reply.
    Gather {
        /// What each is asked.
        ask: Gather,
        /// What the server is asked too.
        question: Option<Question>,
        /// Merges and replies.
        finish: fn(&mut Finish<'_>),
    },
    /// A change of the whole node through shard 0; the reply is `+OK`, or what `finish` makes of the sum of the shards' counts.
    Change {
        /// The change.
        change: Change,
        /// Writes the reply, given the sum.
        finish: fn(&mut Finish<'_>, i64),
    },
    /// The server is asked; `finish` writes the reply.
    Ask {
        /// The question.
        question: Question,
        /// Writes the reply.
        finish: fn(&mut Finish<'_>),
    },
    /// The connection's other commands wait this long, then `+OK`: DEBUG SLEEP.
    Sleep {
        /// Milliseconds.
        ms: u64,
    },
}

/// A command that runs on its session's shard.
pub struct Call<'a> {
    /// The time.
    pub now: Now,
    /// The request, the name at 0.
    pub args: &'a Args<'a>,
    /// Who asks.
    pub session: &'a mut Session,
    /// Everything else of this shard.
    pub core: &'a mut Core,
}

impl Call<'_> {
    /// Where the reply goes, in the session's protocol.
    pub fn reply(&mut self) -> Encoder<'_> {
        self.session.encoder()
    }
}

/// The end of a command whose answer came from elsewhere.
pub struct Finish<'a> {
    /// The time.
    pub now: Now,
    /// The request, the name at 0.
    pub args: &'a [Bytes],
    /// Who asked.
    pub session: &'a mut Session,
    /// Everything else of this shard.
    pub core: &'a mut Core,
    /// The shards' parts, in order; empty when none was asked.
    pub parts: Vec<view::Part>,
    /// What the server said; `None` when it was not asked.
    pub told: Option<Told>,
}

impl Finish<'_> {
    /// Where the reply goes, in the session's protocol.
    pub fn reply(&mut self) -> Encoder<'_> {
        self.session.encoder()
    }
}

/// What a home shard is asked.
#[derive(Debug)]
pub enum Request {
    /// ADDJOB.
    Add(AddJob),
    /// A shard's part of a GETJOB.
    Take(Take),
    /// A shard's part of ACKJOB, FASTACK, DELJOB, ENQUEUE, NACK, DEQUEUE; at most `IDS_STEP` of them.
    Ids {
        /// What to do with each.
        verb: IdVerb,
        /// All of this shard.
        ids: SmallVec<[JobId; 2]>,
    },
    /// SHOW.
    Show(JobId),
    /// WORKING.
    Working(JobId),
    /// QLEN.
    Length(Blob),
    /// QLEN with CLUSTER.
    Lengths(Blob),
    /// A step of QPEEK.
    Peek(Peek),
    /// QSTAT.
    Stat(Blob),
    /// QSTAT with CLUSTER.
    Stats(Blob),
    /// PAUSE.
    Pause(Pause),
    /// A step of QSCAN or JSCAN over this shard's slots.
    Scan(Scan),
    /// A part of an answer about the whole node; answered by the shard, not by its `Home`.
    Gather(Gather),
}

impl Request {
    /// Takes it from its place; what is left there asks for nothing that matters.
    pub(crate) fn take(&mut self) -> Self {
        std::mem::replace(self, Self::Length(Blob::EMPTY))
    }

    /// Whether its home may keep it waiting: for jobs, memory, copies or other nodes.
    pub(crate) fn may_wait(&self) -> bool {
        match self {
            Self::Add(_) | Self::Take(_) => true,
            Self::Ids { verb, .. } => verb.may_wait(),
            Self::Show(_) | Self::Working(_) | Self::Lengths(_) | Self::Stats(_) => true,
            Self::Pause(pause) => pause.broadcast,
            Self::Length(_) | Self::Stat(_) | Self::Peek(_) | Self::Scan(_) | Self::Gather(_) => false,
        }
    }
}

/// What is done with each ID of a command about IDs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the commands' names")]
pub enum IdVerb {
    Acknowledge,
    FastAcknowledge,
    Delete,
    /// DELJOB with CLUSTER. Nodes ask each other for `Delete`.
    DeleteEverywhere,
    Enqueue,
    Nack,
    Dequeue,
}

impl IdVerb {
    /// Whether other nodes may be asked and waited for.
    pub(crate) fn may_wait(self) -> bool {
        match self {
            Self::DeleteEverywhere | Self::Enqueue | Self::Nack | Self::Dequeue => true,
            Self::Acknowledge | Self::FastAcknowledge | Self::Delete => false,
        }
    }
}

/// What every shard is asked for an answer about the whole node.
#[derive(Clone, Debug, PartialEq)]
pub enum Gather {
    /// Counters and gauges: `Part::Stats`.
    Stats,
    /// Lines of CLIENT LIST: `Part::Clients`.
    Clients(ClientFilter),
    /// Slow log entries, at most so many: `Part::Slow`.
    Slow(usize),
    /// Latency events: `Part::Latency`.
    Latency,
    /// Per-command statistics and histograms: `Part::Commands`.
    Commands,
    /// The cluster: `Part::Cluster`.
    Cluster,
}

/// Which clients CLIENT LIST shows or CLIENT KILL ends. All that is given must fit.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ClientFilter {
    /// These client IDs (any of them), in order.
    pub ids: Vec<u64>,
    /// This address, as CLIENT LIST shows it.
    pub addr: Option<String>,
    /// This address of ours, as CLIENT LIST shows it.
    pub laddr: Option<String>,
    /// Not this client.
    pub skip: Option<u64>,
}
