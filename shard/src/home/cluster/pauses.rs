//! Pause states across nodes (`sessions.md`, MAXLEN and PAUSE).
//!
//! Every PAUSE in a cluster gives this node's state of the queue a version. States set with BCAST go to all nodes that can be reached, and to
//! those that come later (*spread*: some at a time, each repeated until it is answered); who learns of one keeps the higher version. A queue
//! that was opened keeps its version for a while, though it is gone itself: a node that was away must not close it again.
//!
//! ```text
//! version  47 bits  one more than the highest this home has seen
//!          16 bits  of the node ID: two nodes never make the same one, nearly
//!           1 bit   set with BCAST
//! ```
//!
//! Equal versions of different states are told apart by the state, the more closed one wins: nodes agree whatever happens. 0: no version.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound::{Excluded, Unbounded};

use super::remote::{Gathered, Who};
use crate::bus::PeerNo;
use crate::bus::message::{RemoteAnswer, RemoteRequest};
use crate::clock::Mono;
use crate::commands::view::PauseState;
use crate::commands::{self, Pause};
use crate::home::Home;
use crate::id::NodeId;
use crate::limits::{PAUSES_OPEN, PAUSES_STEP, UPKEEP_STEP};
use crate::message::{Answer, Ticket};
use crate::slot::Slot;
use crate::wire::Blob;

/// Bits of a version below its counter.
const LOW_BITS: u32 = 17;
const BROADCAST: u64 = 1;
/// What a version costs beside its name: three entries of ordered maps, about.
const VERSION_BYTES: u64 = 160;

/// Versions of pause states.
#[derive(Debug, Default)]
pub struct Pauses {
    /// The highest counter seen.
    highest: u64,
    versions: BTreeMap<Blob, u64>,
    /// Of these, those of queues that are not paused.
    opened: BTreeSet<(u64, Blob)>,
    /// Memory charged for them.
    bytes: u64,
    spreads: Vec<Spread>,
}

/// A node that is told of all states that were set with BCAST.
#[derive(Debug)]
struct Spread {
    peer: PeerNo,
    /// Behind this name it goes on.
    after: Option<Blob>,
    /// States that it was told of and has not answered.
    open: u32,
}

impl Pauses {
    /// The version of a queue's state.
    pub fn version(&self, name: &[u8]) -> u64 {
        self.versions.get(name).copied().unwrap_or(0)
    }

    /// Memory charged.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Queues that are not paused, and whose version is kept.
    pub fn opened(&self) -> impl Iterator<Item = (&Blob, u64)> {
        self.opened.iter().map(|(version, name)| (name, *version))
    }

    /// A version above all that were seen.
    fn next(&mut self, node: &NodeId, broadcast: bool) -> u64 {
        self.highest = (self.highest + 1).min(u64::MAX >> LOW_BITS);
        let bytes = node.as_bytes();
        let node = u64::from(u16::from_be_bytes([bytes[0], bytes[1]]));
        self.highest << LOW_BITS | node << 1 | u64::from(broadcast)
    }

    /// Keeps the version of a queue's state; 0 forgets it. What is charged afterwards.
    fn keep(&mut self, name: &Blob, version: u64, is_open: bool) -> u64 {
        self.highest = self.highest.max(version >> LOW_BITS);
        self.forget(name);
        if version != 0 {
            self.versions.insert(name.clone(), version);
            self.bytes += version_bytes(name);
            if is_open {
                self.opened.insert((version, name.clone()));
            }
        }
        if self.opened.len() > PAUSES_OPEN
            && let Some((_, oldest)) = self.opened.first().cloned()
        {
            self.forget(&oldest);
        }
        self.bytes
    }

    fn forget(&mut self, name: &Blob) {
        if let Some(version) = self.versions.remove(name) {
            self.opened.remove(&(version, name.clone()));
            self.bytes -= version_bytes(name);
        }
    }

    /// Forgets all, or those of some slots, but not how high versions are.
    fn forget_where(&mut self, goes: impl Fn(Slot) -> bool) {
        let gone = self.versions.keys().filter(|name| goes(Slot::of_queue(name)));
        for name in gone.cloned().collect::<Vec<_>>() {
            self.forget(&name);
        }
    }

    /// Whether a node is to be told of something now.
    pub fn is_busy(&self) -> bool {
        self.spreads.iter().any(|spread| spread.open == 0)
    }
}

fn version_bytes(name: &Blob) -> u64 {
    VERSION_BYTES + name.heap_bytes() as u64
}

/// What decides between two states: the higher wins.
fn standing(version: u64, state: PauseState) -> (u64, bool, bool) {
    (version >> 1, state.input, state.output)
}

impl Home {
    /// PAUSE.
    pub(in crate::home) fn pause(&mut self, now: Mono, ticket: Ticket, pause: Pause) -> Answer {
        let queue = pause.queue.clone();
        let told = pause.state.filter(|_| pause.broadcast);
        let answer = commands::pause::apply(self, now, pause);
        let (Some(pause), Answer::Pause(_)) = (told, &answer) else {
            return answer;
        };
        let request = RemoteRequest::Pause {
            version: self.pauses.version(&queue),
            queue,
            pause,
        };
        let reachable = self.peers.reachable().map(|peer| Who::One {
            peer: peer.no,
            place: 0,
        });
        let questions = reachable.map(|who| (who, request.clone())).collect();
        self.ask_others(now, ticket, Gathered::Pause(pause), questions)
    }

    /// The version of a state that a client sets.
    pub(crate) fn new_pause_version(&mut self, broadcast: bool) -> u64 {
        if broadcast || self.peers.any() {
            self.pauses.next(&self.peers.node, broadcast)
        } else {
            0
        }
    }

    /// Keeps the version of a queue's state.
    pub(in crate::home) fn keep_pause_version(&mut self, name: &Blob, version: u64, is_open: bool) {
        let before = self.pauses.bytes;
        let after = self.pauses.keep(name, version, is_open);
        self.recharge_pauses(before, after);
    }

    fn recharge_pauses(&mut self, before: u64, after: u64) {
        if after >= before {
            self.memory.charge(after - before);
        } else {
            self.memory.release(before - after);
        }
    }

    /// States of these slots are gone, with their queues.
    pub(in crate::home) fn forget_pause_versions(&mut self, goes: impl Fn(Slot) -> bool) {
        let before = self.pauses.bytes;
        self.pauses.forget_where(goes);
        self.recharge_pauses(before, self.pauses.bytes);
    }

    /// Another node's state of a queue: kept when its version is the higher one.
    pub(super) fn answer_pause(
        &mut self,
        now: Mono,
        queue: &Blob,
        pause: PauseState,
        version: u64,
    ) -> RemoteAnswer {
        if version & BROADCAST == 0 {
            return RemoteAnswer::Error("ERR this state was not set with BCAST".into());
        }
        if let Some(misconf) = self.journal.refuses_queue(queue.len()) {
            return RemoteAnswer::Error(misconf.to_string());
        }
        let key = self.find_queue(queue);
        let state = key.map(|key| self.stock.queues[key].pause).unwrap_or_default();
        let is_newer = standing(version, pause) > standing(self.pauses.version(queue), state);
        if is_newer && key.is_none() && !pause.any() {
            self.stays_open(queue, version);
        } else if is_newer {
            let key = self.find_or_create_queue(now, queue);
            self.set_pause(now, key, pause, version);
        }
        RemoteAnswer::Count(1)
    }

    /// A node came, or has not answered: it is told of all states that were set with BCAST.
    pub(super) fn spread_pauses(&mut self, peer: PeerNo) {
        self.stop_spreading(peer);
        if !self.pauses.versions.is_empty() {
            let open = self.open_spreads(peer);
            self.pauses.spreads.push(Spread {
                peer,
                after: None,
                open,
            });
        }
    }

    /// A node went.
    pub(super) fn stop_spreading(&mut self, peer: PeerNo) {
        self.pauses.spreads.retain(|spread| spread.peer != peer);
    }

    /// A node has answered that it knows a state.
    pub(super) fn was_told(&mut self, peer: PeerNo) {
        let open = self.open_spreads(peer);
        if let Some(spread) = self.pauses.spreads.iter_mut().find(|spread| spread.peer == peer) {
            spread.open = open;
        }
    }

    /// A step of telling.
    pub(super) fn step_pauses(&mut self, now: Mono) {
        let ready = self.pauses.spreads.iter().position(|spread| spread.open == 0);
        let Some(at) = ready else { return };
        let Spread { peer, after, .. } = self.pauses.spreads.swap_remove(at);
        let from = after.as_ref().map_or(Unbounded, Excluded);
        let rest = self.pauses.versions.range::<Blob, _>((from, Unbounded));
        let step: Vec<(Blob, u64)> = rest
            .take(UPKEEP_STEP)
            .map(|(name, &version)| (name.clone(), version))
            .collect();
        let told = step.iter().filter(|(_, version)| version & BROADCAST != 0);
        let told: Vec<_> = told.take(PAUSES_STEP).cloned().collect();
        let last = match told.last() {
            Some((name, _)) if told.len() == PAUSES_STEP => Some(name.clone()),
            _ => step.last().map(|(name, _)| name.clone()),
        };
        for (queue, version) in &told {
            let key = self.find_queue(queue);
            let pause = key.map(|key| self.stock.queues[key].pause).unwrap_or_default();
            let request = RemoteRequest::Pause {
                queue: queue.clone(),
                pause,
                version: *version,
            };
            let who = Who::One { peer, place: 0 };
            self.add_question(now, None, peer, who, request, Mono::NEVER);
        }
        if let Some(last) = last {
            self.pauses.spreads.push(Spread {
                peer,
                after: Some(last),
                open: told.len() as u32,
            });
        }
    }
}
