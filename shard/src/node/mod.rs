//! What concerns the whole node: shard 0 coordinates it.
//!
//! A change (CONFIG SET, FLUSHALL, CLIENT KILL, CLIENT PAUSE, MONITOR, shutdown) goes to shard 0, which sends it to every shard in
//! one order, waits for all of them, adds their counts and only then answers. Shard 0 also takes in new connections
//! (`maxclients`, the least busy shard), lends the memory budget in chunks, bounds what client buffers take of it (`buffers`), and keeps
//! the log's generations (`keeper`).

mod borrower;
mod buffers;
mod coordinator;
mod keeper;
mod lender;

pub(crate) use borrower::Borrower;
pub(crate) use buffers::BuffersHere;
pub(crate) use coordinator::Coordinator;
pub(crate) use keeper::{Act, Keeper};
pub use keeper::{BeginLog, LogRead};

use crate::bus::Topology;
use crate::commands::ClientFilter;
use crate::error::CommandError;
use crate::id::NodeId;
use crate::message::Ticket;
use crate::slot::ShardNo;

/// A change of the whole node.
#[derive(Clone, Debug, PartialEq)]
pub enum Change {
    /// CONFIG SET: pairs of name and value, checked before.
    Settings(Vec<(&'static str, String)>),
    /// DEBUG FLUSHALL.
    FlushAll,
    /// CLIENT KILL; counts the killed.
    KillClients(ClientFilter),
    /// CLIENT PAUSE: no command is started for so long; only extends a pause.
    PauseClients {
        /// How long.
        ms: u64,
        /// Only commands that write.
        writes_only: bool,
    },
    /// CLIENT UNPAUSE.
    UnpauseClients,
    /// A shard has its first monitor, or lost its last.
    Monitor {
        /// The shard of the monitors.
        shard: ShardNo,
        /// Whether it wants the feed.
        on: bool,
    },
    /// CONFIG RESETSTAT.
    ResetStats,
    /// SLOWLOG RESET.
    ResetSlowlog,
    /// LATENCY RESET; these events or all; counts the reset.
    ResetLatency(Vec<String>),
    /// BGREWRITEAOF.
    RewriteLog,
    /// CLUSTER: made by shard 0 alone.
    Cluster(ClusterChange),
    /// SHUTDOWN, SIGTERM.
    Shutdown {
        /// Whether the log is to have all of it, and a mark that says so.
        save: bool,
    },
}

/// A change of the cluster that a client asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ClusterChange {
    /// CLUSTER MEET.
    Meet {
        /// Address or host name.
        host: String,
        /// Port of its clients.
        port: u16,
        /// Port of its bus.
        bus_port: u16,
    },
    /// CLUSTER FORGET.
    Forget(NodeId),
    /// CLUSTER RESET.
    Reset {
        /// Whether with another ID.
        hard: bool,
    },
    /// CLUSTER LEAVING yes, no.
    Leaving(bool),
    /// CLUSTER SAVECONFIG.
    Save,
}

/// A message of the coordination.
#[derive(Debug)]
pub enum NodeMessage {
    /// To shard 0: please change. Answered by `Changed`.
    Ask {
        /// Who waits for it, if anyone.
        ticket: Option<Ticket>,
        /// The change.
        change: Change,
    },
    /// To shard 0: a signal asks the node to stop.
    Stop,
    /// From shard 0 to each: do it.
    Apply {
        /// Number of the change.
        number: u64,
        /// The change.
        change: Change,
    },
    /// Back to shard 0: done here.
    Applied {
        /// Number of the change.
        number: u64,
        /// What it counted, or why it could not be made here.
        result: Result<i64, CommandError>,
    },
    /// From shard 0 to the session's shard: done everywhere.
    Changed {
        /// Who waited.
        ticket: Ticket,
        /// Sum of the counts.
        result: Result<i64, CommandError>,
    },
    /// To shard 0: so many sessions have ended since the last one of these.
    Ended {
        /// How many.
        sessions: u32,
    },
    /// To shard 0: this shard wants so many bytes more of the memory budget.
    WantMemory {
        /// How many.
        bytes: u64,
        /// Whether an ADDJOB waits for them: worth asking the other shards.
        urgent: bool,
    },
    /// From shard 0: so many are lent; less than asked for when no more are left.
    LendMemory {
        /// How many.
        bytes: u64,
    },
    /// From shard 0: give back what is not used, another shard needs it.
    RecallMemory,
    /// To shard 0: bytes given back; `recalled` when it answers a recall.
    ReturnMemory {
        /// How many.
        bytes: u64,
        /// Whether it answers a recall.
        recalled: bool,
    },
    /// From shard 0: the memory level of the node has changed.
    MemoryLevel(u8),
    /// To shard 0: the sessions of this shard hold so many bytes in buffers.
    ClientBuffers {
        /// How many.
        bytes: u64,
    },
    /// From shard 0: measure the buffers of the sessions. Answered by `ClientsMeasured`.
    MeasureClients,
    /// To shard 0: what they hold, but for those of CLIENT NO-EVICT.
    ClientsMeasured {
        /// All together.
        bytes: u64,
        /// The session that holds most.
        largest: u64,
    },
    /// From shard 0: close the sessions that hold most, until enough is free, but none that holds much less than the largest did when it was
    /// measured. Answered by `LargestClientsClosed`.
    CloseLargestClients {
        /// What the largest held.
        bytes: u64,
        /// How much all of the node hold beyond what they may.
        excess: u64,
    },
    /// To shard 0: that was done.
    LargestClientsClosed {
        /// What the sessions of this shard hold now.
        bytes: u64,
    },
    /// From each to each, when the node stops: no session is left here, and no job that would have to go back.
    Closed,
    /// From shard 0: every shard has closed its sessions, end.
    Exit {
        /// Not before the log has all of it.
        save: bool,
    },
    /// To shard 0: this shard has read the logs that it was to read.
    LogRead(LogRead),
    /// From shard 0: begin a log.
    BeginLog(BeginLog),
    /// To shard 0: it has begun, and holds what it is to hold.
    LogReady,
    /// From shard 0: its generation counts.
    LogCounts,
    /// From shard 0: no log is kept any more.
    EndLog,
    /// From shard 0: the nodes there are.
    Topology(Box<Topology>),
    /// Lines of MONITOR for the monitors of the receiving shard.
    Feed {
        /// The lines, without line ends.
        lines: Vec<bytes::Bytes>,
        /// How many more were left out, because the feed was too much.
        dropped: u64,
    },
}
