//! Sessions: the client connections of a shard (`sessions.md`).
//!
//! A session turns received bytes into requests, requests into plans, and answers into replies in the order of the requests.
//!
//! - `engine` starts plans and takes in answers: requests with one home shard that cannot block overlap.
//! - `barrier` is for everything else: it waits for all before it and holds back all behind it; `progress` holds what such a
//!   command has gathered so far, `getjob` is the long one of them.
//! - `delivery` remembers what stands in the output and has not reached the client.
//!
//! A session that may not go on keeps its input (`held`) and is run again when what it waits for has come.

mod barrier;
mod client;
mod delivery;
mod engine;
mod getjob;
mod progress;
mod reply;
mod upkeep;

use std::collections::VecDeque;

pub use client::{ClientInfo, Replies};
pub use delivery::Deliveries;
pub(crate) use engine::Engine;

use crate::input::Peer;
use crate::limits;
use crate::message::{Answer, SessionId, Ticket};
use crate::slot::ShardNo;
use crate::structures::timers::TimerKey;
use crate::wire::{Encoder, Output, Parser};
use progress::Progress;

/// A client connection.
pub struct Session {
    /// Its name on this shard.
    pub id: SessionId,
    /// Its shard.
    pub shard: ShardNo,
    /// Who is at the other end.
    pub client: ClientInfo,
    pub(crate) parser: Parser,
    pub(crate) output: Output,
    pub(crate) deliveries: Deliveries,
    /// Overlapping requests that are unanswered, or answered behind an unanswered one; the oldest first.
    pending: VecDeque<Pending>,
    /// Number of `pending`'s first.
    first_pending: u32,
    /// The barrier command under way.
    progress: Option<Box<Progress>>,
    /// The blocking command's end.
    timer: Option<TimerKey>,
    /// The idle check (`timeout`).
    pub(crate) idle_timer: Option<TimerKey>,
    /// Runs while more output than the soft limit is unread.
    output_timer: Option<TimerKey>,
    /// Why the session does not go on with its input.
    held: Option<Hold>,
    /// Of the pending requests, unanswered ADDJOBs that may need other nodes: only ADDJOBs may overtake them.
    asking_nodes: u32,
    /// A protocol error or QUIT: once everything before it is answered, this is written and the connection closed.
    ending: Option<Ending>,
    /// Whether the server reads its socket.
    reading: bool,
    /// Whether it is in the list of those with output, or of those to be run.
    pub(crate) output_marked: bool,
    pub(crate) run_marked: bool,
    /// Where the last reply begins in the stream of output.
    last_reply_start: u64,
    /// Bytes of output that the kernel took.
    sent_bytes: u64,
    /// Bytes of buffers charged to the shard's memory.
    charged_bytes: u64,
}

/// An overlapping request.
struct Pending {
    answer: Option<Answer>,
    command: u8,
    with_counters: bool,
    suppressed: bool,
    started_us: u64,
    /// The home shard of one that it may keep waiting.
    waits_at: Option<ShardNo>,
    /// An ADDJOB that may need other nodes.
    asks_nodes: bool,
}

/// Why a session does not go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Hold {
    /// Earlier requests are unanswered, and this one is a barrier, or a barrier is under way.
    Order,
    /// Too many requests are unanswered.
    Room,
    /// No credit for a home shard.
    Credit,
    /// The client does not read its replies.
    Output,
    /// CLIENT PAUSE.
    Paused,
}

enum Ending {
    /// The client's frames make no sense.
    Error(String),
    /// QUIT and its like: the reply is written.
    Quiet,
    /// The client sends no more: what it sent is served first.
    HalfClosed,
}

impl Session {
    pub(crate) fn new(id: SessionId, shard: ShardNo, client: ClientInfo) -> Self {
        Self {
            id,
            shard,
            client,
            parser: Parser::new(),
            output: Output::new(),
            deliveries: Deliveries::default(),
            pending: VecDeque::new(),
            first_pending: 0,
            asking_nodes: 0,
            progress: None,
            timer: None,
            idle_timer: None,
            output_timer: None,
            held: None,
            ending: None,
            reading: true,
            output_marked: false,
            run_marked: false,
            last_reply_start: 0,
            sent_bytes: 0,
            charged_bytes: 0,
        }
    }

    /// Where the next reply goes, in the session's protocol.
    pub fn encoder(&mut self) -> Encoder<'_> {
        Encoder::new(&mut self.output, self.client.resp3)
    }

    /// After the present reply, close the connection.
    pub fn close_after_reply(&mut self) {
        self.ending = Some(Ending::Quiet);
    }

    /// Whether it waits in a GETJOB, or in another command whose end is not in its hands.
    pub fn is_blocked(&self) -> bool {
        self.progress
            .as_ref()
            .is_some_and(|progress| progress.is_blocked())
    }

    /// Bytes of unparsed input that it holds.
    pub fn input_bytes(&self) -> usize {
        self.parser.held_bytes()
    }

    /// Bytes of output that wait for the client.
    pub fn output_bytes(&self) -> usize {
        self.unsent_bytes()
    }

    /// Bytes of buffers that count as memory.
    pub(crate) fn charged_bytes(&self) -> u64 {
        self.charged_bytes
    }

    /// The address of the client, as CLIENT LIST shows it.
    pub fn address(&self) -> &Peer {
        &self.client.peer
    }

    /// Whether nothing that it asked for is under way.
    pub(crate) fn is_idle(&self) -> bool {
        self.pending.is_empty() && self.progress.is_none()
    }

    /// Bytes of output that the kernel has not taken, those in the server's hands included.
    fn unsent_bytes(&self) -> usize {
        self.output.produced_bytes().saturating_sub(self.sent_bytes) as usize
    }

    /// Bytes that are not sent of what stands before the last reply: limits always admit one message.
    fn unsent_before_last_reply(&self) -> u64 {
        self.last_reply_start.saturating_sub(self.sent_bytes)
    }

    /// Whether CLIENT PAUSE holds it back.
    pub(crate) fn is_paused(&self) -> bool {
        self.held == Some(Hold::Paused)
    }

    /// Whether it waits for a change of the node that it asked for itself.
    pub(crate) fn waits_for_its_change(&self) -> bool {
        self.progress
            .as_ref()
            .is_some_and(|progress| progress.is_change())
    }

    /// Whether the kernel has taken all output.
    fn all_sent(&self) -> bool {
        self.sent_bytes == self.output.produced_bytes()
    }

    /// Number of the next request.
    fn next_request(&self) -> u32 {
        self.first_pending.wrapping_add(self.pending.len() as u32)
    }

    fn ticket(&self, request: u32) -> Ticket {
        Ticket {
            shard: self.shard,
            session: self.id,
            request,
        }
    }

    /// The pending request of this number, when it is one.
    fn pending_mut(&mut self, request: u32) -> Option<&mut Pending> {
        let place = request.wrapping_sub(self.first_pending) as usize;
        self.pending.get_mut(place)
    }

    fn has_room(&self) -> bool {
        self.pending.len() < limits::SESSION_PENDING
    }
}
