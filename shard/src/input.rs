//! What a shard is told and what it wants done: `handle(now, input)` in, effects out.
//!
//! The server performs effects in their order and decides nothing about jobs. What needs a turn of the outside world (a
//! rewritten file, figures of the process) comes back as an input that names its ticket.

use std::net::SocketAddr;

use crate::bus::{BusMessage, Dial, LinkEvent, LinkNo, Sender};
use crate::error::CommandError;
use crate::id::NodeId;
use crate::log::{DiskTask, Done, IoError};
use crate::message::{Message, SessionId, Ticket};
use crate::slot::ShardNo;

/// Names a connection that was accepted and has no session yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConnectionId(pub u64);

/// Where a client comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Peer {
    /// Over TCP.
    Tcp(SocketAddr),
    /// Over the Unix socket at this path.
    Unix(String),
}

/// One thing that happened.
#[derive(Debug)]
pub enum Input<'a> {
    /// Shard 0 only: a listener accepted a connection. Ends in `Effect::Assign` or `Effect::Refuse`.
    Accepted {
        /// The server's name for it.
        connection: ConnectionId,
    },
    /// An assigned connection reached its shard; `Shard::connect` is the call that makes its session.
    Bytes {
        /// Whose.
        session: SessionId,
        /// What was received; taken whole.
        bytes: &'a [u8],
    },
    /// Output of a session went to the kernel.
    Sent {
        /// Whose.
        session: SessionId,
        /// How many bytes.
        bytes: usize,
    },
    /// The client sends no more, and may still read: what it sent is served, except that nothing blocks for it.
    HalfClosed {
        /// Whose.
        session: SessionId,
    },
    /// The client closed its connection, or it failed. The session is gone after this.
    Disconnected {
        /// Whose.
        session: SessionId,
    },
    /// A batch of another shard, in the order it was sent.
    Mesh {
        /// The other shard.
        from: ShardNo,
        /// Its messages; emptied.
        messages: &'a mut Vec<Message>,
    },
    /// Something happened to a link that this shard dialed.
    Link {
        /// Which.
        link: LinkNo,
        /// What.
        event: LinkEvent,
    },
    /// A batch of a shard of another node.
    Bus {
        /// Who sent it.
        from: Sender,
        /// Its messages; emptied.
        messages: &'a mut Vec<BusMessage>,
    },
    /// Shard 0: the end of an `Effect::SaveNodes`; on an error its text.
    NodesSaved {
        /// How it ended.
        result: Result<(), String>,
    },
    /// A deadline given by `next_deadline` has come, or the turn is over: timers and upkeep are looked after.
    Tick,
    /// The server's answer to `Effect::Ask`.
    Told {
        /// Of the question.
        ticket: Ticket,
        /// The answer.
        told: Told,
    },
    /// The end of an `Effect::Disk`.
    Disk {
        /// Its number.
        id: u64,
        /// How it ended.
        result: Result<Done, IoError>,
    },
    /// SIGTERM or SIGINT (shard 0 only): stop in order.
    Stop,
}

/// What only the server knows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Question {
    /// Figures of the process, for INFO.
    Process,
    /// CONFIG REWRITE: write the present settings to the configuration file.
    RewriteConfig,
    /// CONFIG SET dir: whether this is a folder that the process may work in.
    Folder(String),
}

/// An answer to a question.
#[derive(Clone, Debug)]
pub enum Told {
    /// Figures of the process.
    Process(Box<ProcessFigures>),
    /// Whether the folder will do.
    Folder(Result<(), CommandError>),
    /// CONFIG REWRITE ended.
    Rewritten(Result<(), CommandError>),
}

/// Figures of the process that INFO shows.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ProcessFigures {
    /// Resident size, bytes.
    pub resident_bytes: u64,
    /// CPU seconds in the kernel.
    pub cpu_system_s: f64,
    /// CPU seconds outside of it.
    pub cpu_user_s: f64,
}

/// What the server is to do.
#[derive(Debug)]
pub enum Effect {
    /// The session has output: take it with `Shard::take_output`. At most once per session and step.
    Send {
        /// Whose.
        session: SessionId,
    },
    /// Close the connection. The session is gone; output that was taken and not sent may be dropped.
    Close {
        /// Whose.
        session: SessionId,
    },
    /// Stop or resume reading the socket.
    Reading {
        /// Whose.
        session: SessionId,
        /// Whether to read.
        on: bool,
    },
    /// Shard 0: bring this connection to that shard.
    Assign {
        /// The connection.
        connection: ConnectionId,
        /// The client's number, for CLIENT LIST and KILL.
        client: u64,
        /// Its shard.
        shard: ShardNo,
    },
    /// Shard 0: answer this line and close.
    Refuse {
        /// The connection.
        connection: ConnectionId,
        /// What to write before.
        reply: &'static [u8],
    },
    /// Answer with `Input::Told`.
    Ask {
        /// To be given back.
        ticket: Ticket,
        /// What is asked.
        question: Question,
    },
    /// A setting that the server acts on has changed (`loglevel`, `tcp-keepalive`, `dir`, ...).
    Setting {
        /// Its name.
        name: &'static str,
        /// Its value, as CONFIG GET shows it.
        value: String,
    },
    /// Do something with files, beside all else, and answer with `Input::Disk`; also when it failed.
    Disk {
        /// To be given back.
        id: u64,
        /// What is to be done.
        task: DiskTask,
    },
    /// Who this node is from now on, to peers: links are made anew when it changes.
    Identity {
        /// Its ID.
        node: NodeId,
        /// Its store epoch.
        epoch: u64,
    },
    /// Keep a link to another node; for a link that is there, to another place.
    Dial(Dial),
    /// A link is not needed any more. No event follows.
    HangUp {
        /// Which.
        link: LinkNo,
    },
    /// Shard 0: replace `nodes.conf` with this text, synced, and answer with `Input::NodesSaved`. One at a time.
    SaveNodes {
        /// The whole file.
        text: String,
    },
    /// A line for the server's log.
    Log {
        /// How grave.
        level: LogLevel,
        /// What happened.
        text: String,
    },
    /// Shard 0: no new connections from now on.
    StopListening,
    /// This shard is done: sessions closed, nothing left to write. The server ends its loop after writing what is on its way.
    Stopped,
    /// The log cannot be trusted: end the process at once with this message and exit code 1, and write nothing more to disk.
    Die {
        /// What happened, why, and what to do.
        why: String,
    },
    /// DEBUG SEGFAULT and its like, behind `enable-debug-command`: end the process at once.
    Crash,
}

/// How grave a line of the log is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the words are the documentation")]
pub enum LogLevel {
    Debug,
    Info,
    Warn,
    Error,
}
