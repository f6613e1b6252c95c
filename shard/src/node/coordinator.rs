//! Shard 0's part: changes of the node in one order, new connections, the memory budget.

use std::collections::BTreeMap;

use crate::error::CommandError;
use crate::limits;
use crate::message::Ticket;
use crate::node::buffers::Buffers;
use crate::node::lender::Lender;
use crate::node::{Change, Keeper, NodeMessage};
use crate::slot::ShardNo;

/// What shard 0 keeps for the node.
#[derive(Debug)]
pub(crate) struct Coordinator {
    shards: u16,
    changes: BTreeMap<u64, UnderWay>,
    next_change: u64,
    next_client: u64,
    sessions: Vec<u32>,
    lender: Lender,
    buffers: Buffers,
    /// Which generation of the log counts.
    pub keeper: Keeper,
    stopping: bool,
}

/// A change that not every shard has made.
#[derive(Debug)]
struct UnderWay {
    /// Who waits; nobody when a signal asked.
    ticket: Option<Ticket>,
    shards_left: u16,
    sum: Result<i64, CommandError>,
    /// It is the end, and whether with the log.
    shutdown: Option<bool>,
}

impl Coordinator {
    pub fn new(shards: u16, maxmemory: u64, keeper: Keeper) -> Self {
        Self {
            shards,
            changes: BTreeMap::new(),
            next_change: 0,
            next_client: 1,
            sessions: vec![0; usize::from(shards)],
            lender: Lender::new(shards, maxmemory),
            buffers: Buffers::new(shards, maxmemory),
            keeper,
            stopping: false,
        }
    }

    /// A connection came in: its client number and its shard, the one with the fewest sessions.
    pub fn accept(&mut self, maxclients: u64) -> Option<(u64, ShardNo)> {
        let total: u64 = self.sessions.iter().map(|&sessions| u64::from(sessions)).sum();
        if total >= maxclients || self.stopping {
            return None;
        }
        let shard = (0..self.sessions.len())
            .min_by_key(|&shard| self.sessions[shard])
            .expect("a node has shards");
        self.sessions[shard] += 1;
        let client = self.next_client;
        self.next_client += 1;
        Some((client, shard as ShardNo))
    }

    /// Whether the node is about to end: it serves nobody new.
    pub fn is_stopping(&self) -> bool {
        self.stopping
    }

    /// A change was asked for: goes to every shard.
    pub fn ask(
        &mut self,
        ticket: Option<Ticket>,
        change: Change,
        send: &mut impl FnMut(ShardNo, NodeMessage),
    ) {
        if self.changes.len() >= limits::CHANGES_IN_FLIGHT && !matches!(change, Change::Shutdown { .. }) {
            let error = CommandError::other("too many changes of the node are under way, try again");
            self.answer(ticket, Err(error), send);
            return;
        }
        let shutdown = match change {
            Change::Shutdown { save } => Some(save),
            _ => None,
        };
        if shutdown.is_some() && std::mem::replace(&mut self.stopping, true) {
            return;
        }
        let number = self.next_change;
        self.next_change += 1;
        self.changes.insert(
            number,
            UnderWay {
                ticket,
                shards_left: self.shards,
                sum: Ok(0),
                shutdown,
            },
        );
        for shard in 0..self.shards {
            send(
                shard,
                NodeMessage::Apply {
                    number,
                    change: change.clone(),
                },
            );
        }
    }

    /// A shard has made a change.
    pub fn applied(
        &mut self,
        number: u64,
        result: Result<i64, CommandError>,
        send: &mut impl FnMut(ShardNo, NodeMessage),
    ) {
        let change = self
            .changes
            .get_mut(&number)
            .expect("a change is applied once per shard");
        change.sum = match (change.sum.clone(), result) {
            (Ok(sum), Ok(count)) => Ok(sum + count),
            (Err(error), _) | (Ok(_), Err(error)) => Err(error),
        };
        change.shards_left -= 1;
        if change.shards_left > 0 {
            return;
        }
        let change = self.changes.remove(&number).expect("it was there");
        if let Some(save) = change.shutdown {
            (0..self.shards).for_each(|shard| send(shard, NodeMessage::Exit { save }));
        } else {
            self.answer(change.ticket, change.sum, send);
        }
    }

    /// Sessions of a shard have ended.
    pub fn ended(&mut self, from: ShardNo, sessions: u32) {
        let count = &mut self.sessions[usize::from(from)];
        *count = count.checked_sub(sessions).expect("a session ends once");
    }

    /// A shard wants memory.
    pub fn want_memory(
        &mut self,
        from: ShardNo,
        bytes: u64,
        urgent: bool,
        send: &mut impl FnMut(ShardNo, NodeMessage),
    ) {
        self.lender.want(from, bytes, urgent, send);
    }

    /// The memory budget of the node was set anew.
    pub fn set_maxmemory(&mut self, bytes: u64, send: &mut impl FnMut(ShardNo, NodeMessage)) {
        self.lender.set_total(bytes, send);
        self.buffers.set_maxmemory(bytes, send);
    }

    /// A shard says what its sessions hold.
    pub fn client_buffers(&mut self, from: ShardNo, bytes: u64, send: &mut impl FnMut(ShardNo, NodeMessage)) {
        self.buffers.told(from, bytes, send);
    }

    /// A shard has measured its sessions.
    pub fn clients_measured(
        &mut self,
        from: ShardNo,
        bytes: u64,
        largest: u64,
        send: &mut impl FnMut(ShardNo, NodeMessage),
    ) {
        self.buffers.measured(from, bytes, largest, send);
    }

    /// A shard was asked to close its largest session.
    pub fn largest_closed(&mut self, from: ShardNo, bytes: u64, send: &mut impl FnMut(ShardNo, NodeMessage)) {
        self.buffers.closed(from, bytes, send);
    }

    /// A shard gave memory back.
    pub fn memory_returned(
        &mut self,
        from: ShardNo,
        bytes: u64,
        recalled: bool,
        send: &mut impl FnMut(ShardNo, NodeMessage),
    ) {
        self.lender.returned(from, bytes, recalled, send);
    }

    fn answer(
        &self,
        ticket: Option<Ticket>,
        result: Result<i64, CommandError>,
        send: &mut impl FnMut(ShardNo, NodeMessage),
    ) {
        if let Some(ticket) = ticket {
            send(ticket.shard, NodeMessage::Changed { ticket, result });
        }
    }
}
