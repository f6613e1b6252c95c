//! Jobs that other nodes hold too: what peers say, and what they are told (`cluster.md`).
//!
//! Reading order: `share` (what is known of the other holders) - `placement`, `replication` (copies) - `requeue` (who queues a job, and when)
//! - `collection` (acknowledgements) - `federation` (jobs go to consumers)
//! - `transfer`, `taking` (the same for jobs with RETRY 0) - `repair` (holders that are lost, and the way back after a restart) - `leaving` (all is given away), `external` (what is new, when memory is short) - `remote`, `answering` (commands about
//!   what other nodes have) - `pauses` (pause states across nodes).

mod answering;
pub mod collection;
pub mod external;
pub mod federation;
pub mod leaving;
pub mod pauses;
mod placement;
#[cfg(test)]
mod placement_tests;
pub mod remote;
pub mod repair;
pub mod replication;
mod requeue;
pub mod share;
pub mod taking;
pub mod transfer;

use super::Home;
use crate::bus::{BusMessage, PeerNo};
use crate::clock::{Mono, Now};
use crate::home::journal::{Held, Need};
use crate::limits::UPKEEP_STEP;
use collection::ACK_TIMER;
use taking::{By, Epochs};

/// By how much the deadlines of holders lie apart at least, milliseconds.
pub const GRACE_MS: u64 = 500;

impl Home {
    /// A peer's message about a job or queue of this home.
    pub fn bus(&mut self, now: Now, from: PeerNo, epoch: u64, message: BusMessage) {
        self.journal.begin(now);
        match message {
            BusMessage::Copy { copy, wants_answer } => self.on_copy(now, from, epoch, *copy, wants_answer),
            BusMessage::Copied { id } => self.on_copied(now, from, epoch, id),
            BusMessage::Refused { id, .. } => {
                self.on_refused(now, from, id);
                self.on_import_refused(now, from, id);
                self.on_offer_refused(now.mono(), from, id);
            }
            BusMessage::Holders { id, members } => self.on_holders(now, id, &members),
            BusMessage::Delete { ids } => self.on_delete(now, &ids),
            BusMessage::SetAck { id, members } => self.on_set_ack(now, from, epoch, id, &members),
            BusMessage::GotAck { id, known, members } => {
                self.on_got_ack(now, from, epoch, id, known, &members)
            }
            BusMessage::Leased {
                id,
                left_ms,
                deliveries,
            } => {
                self.on_leased(now, from, epoch, id, left_ms, deliveries);
            }
            BusMessage::WillQueue { id, counted } => self.on_will_queue(now, from, epoch, id, counted),
            BusMessage::Standing { id, standing } => self.on_standing(now, from, epoch, id, standing),
            BusMessage::Queued {
                id,
                nacks,
                additional_deliveries,
            } => {
                self.on_queued(now, from, epoch, id, (nacks, additional_deliveries));
            }
            BusMessage::Enqueue { id, delay_ms } => self.on_enqueue(now, from, id, delay_ms),
            BusMessage::Enqueued { id, taken } => self.on_enqueued(now, from, id, taken),
            BusMessage::Import { copy } => {
                let id = copy.id;
                self.on_import(now, from, epoch, *copy);
                self.count_hosts_of(now.mono(), &id);
            }
            BusMessage::Interest { lasting, queues } => self.on_interest(now.mono(), from, lasting, queues),
            BusMessage::Left { id } => self.on_left(now, from, id),
            BusMessage::TransferOffer {
                id,
                hop,
                body_bytes,
                queue,
            } => self.on_transfer_offer(now, from, id, hop, body_bytes, &queue),
            BusMessage::TransferWant { id, hop, want } => {
                self.on_transfer_want(now.mono(), from, epoch, id, hop, want);
            }
            BusMessage::Transfer {
                hop,
                epoch: mine,
                want,
                copy,
            } => {
                let (theirs, by) = (epoch, By { hop, want });
                self.on_transfer(now, from, Epochs { theirs, mine }, by, &copy);
            }
            BusMessage::TransferAsk { id, hop, epoch: mine } => {
                let theirs = epoch;
                self.on_transfer_ask(now.mono(), from, Epochs { theirs, mine }, id, hop);
            }
            BusMessage::TransferAnswer { id, hop, taken } => {
                self.on_transfer_answer(now.mono(), from, id, hop, taken);
            }
            BusMessage::TransferRetire { id, hop } => self.on_transfer_retire(from, id, hop),
            BusMessage::Ask { ticket, request } => self.on_ask(now, from, ticket, request),
            BusMessage::Told { ticket, answer } => self.on_told(now.mono(), from, ticket, answer),
            _ => {}
        }
        // What was written for a peer holds up no client's answer.
        self.journal.take_need();
    }

    /// Says something to a peer once the log has reached what it tells of.
    pub(super) fn say(&mut self, to: PeerNo, message: BusMessage) {
        let need = self.journal.need();
        self.say_when(need, to, message);
    }

    /// Says something of a job that makes this node a holder of it there: once the log has its copy.
    pub(super) fn say_of(&mut self, key: u32, to: PeerNo, message: BusMessage) {
        let need = self.journal.copy_need(key);
        self.say_when(need, to, message);
    }

    /// The same to all other holders.
    pub(super) fn say_to_all_of(&mut self, key: u32, message: &BusMessage) {
        let share = self.stock.jobs[key].share;
        for at in 0..self.stock.shares[share].others.len() {
            let to = self.stock.shares[share].others[at].peer;
            self.say_of(key, to, message.clone());
        }
    }

    pub(super) fn say_when(&mut self, need: Option<Need>, to: PeerNo, message: BusMessage) {
        match need.filter(|&need| !self.journal.is_met(need)) {
            Some(need) => self.journal.wait(need, Held::Bus(to, message)),
            None => self.peers.send(to, message),
        }
    }

    /// Timers of shares and of acknowledged jobs, and walks over them, a bounded step of each.
    pub(super) fn tick_cluster(&mut self, now: Mono) {
        self.stock.cluster_timers.advance(now.0);
        self.stock.cluster_timers.work(UPKEEP_STEP);
        for _ in 0..UPKEEP_STEP {
            let Some((_, owner)) = self.stock.cluster_timers.pop_due() else {
                break;
            };
            if owner & ACK_TIMER == 0 {
                self.share_timer(now, owner);
            } else {
                self.ack_timer(now, owner & !ACK_TIMER);
            }
        }
        self.step_acks(now);
        self.step_queued(now);
        self.step_repair(now);
        self.step_federation(now);
        self.step_transfers(now);
        self.step_leaving(now);
        self.step_outgoing(now);
        self.step_remote(now);
        self.step_pauses(now);
        self.journal.take_need();
    }

    fn share_timer(&mut self, now: Mono, key: u32) {
        self.stock.shares[key].timer = None;
        self.ask_again(now, key);
        self.copy_again(now, key);
        if self.stock.shares.get(key).is_some() {
            self.arm_share(key);
        }
    }

    /// Whether `tick_cluster` has something left to do at once.
    pub(super) fn cluster_is_busy(&self) -> bool {
        self.ack_sweep.is_some() || self.queued_sweep.is_some() || self.pauses.is_busy()
    }

    /// The link to a peer is up.
    pub fn peer_came(&mut self, now: Now, peer: PeerNo) {
        self.journal.begin(now);
        self.look_for_hosts(now.mono());
        self.tell_all_interest(peer);
        self.ack_sweep = Some(0);
        self.queued_sweep = Some(0);
        self.begin_transfer_sweep();
        self.spread_pauses(peer);
    }

    /// The link to a peer is down.
    pub fn peer_went(&mut self, now: Now, peer: PeerNo) {
        self.journal.begin(now);
        self.look_for_hosts(now.mono());
        self.lower_all(now.mono());
        self.pass_by_unreachable(now.mono());
        self.stop_spreading(peer);
    }

    /// Membership has changed.
    pub fn topology_changed(&mut self, now: Now) {
        self.journal.begin(now);
        self.options.node = self.peers.node;
        self.resolve_holders(now.mono());
        self.lower_all(now.mono());
        self.look_for_lost(now.mono());
        self.look_for_hosts(now.mono());
        self.begin_transfer_sweep();
        self.forget_gone_interests();
        self.pass_by_unreachable(now.mono());
    }

    /// ADDJOBs that did not say how many copies they want are content with those that there can be now.
    fn lower_all(&mut self, now: Mono) {
        let waiting: Vec<u32> = self.adding.values().copied().collect();
        for key in waiting {
            if let Some(job) = self.stock.jobs.0.get(key) {
                self.lower_copies(now, job.share);
            }
        }
    }
}
