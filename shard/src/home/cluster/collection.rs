//! Acknowledged jobs, until every holder knows.
//!
//! ```text
//! ACKJOB, job with other holders --> Ack: SetAck to all of them --- all have answered ---> Delete to all, gone
//! SetAck, job held here -----------> Ack: GotAck to the member that collects --- Delete ---> gone
//! ```
//!
//! The lowest-ranked holder that can be reached collects. A node that sent SetAck or GotAck knows; so does one that has lost what it held
//! (its store epoch is another), or never held it (`known: false`). What is not answered is said again, with backoff, until
//! the job's life is over.
//!
//! ACKJOB of an ID that is not known here makes a *dummy*: all known nodes are told with an empty member list. One that has the job is in charge from
//! then on, and the dummy goes; it goes too when all have said that they never heard of it, or have a dummy themselves. A dummy is no member,
//! is not written to the log, and there are not many (`DUMMY_ACKS`).

use super::share::{self, Member, Others};
use crate::bus::message::Members;
use crate::bus::{BusMessage, PeerNo, PeerState};
use crate::clock::{Mono, Now};
use crate::home::Home;
use crate::id::JobId;
use crate::limits::{ACK_AGAIN_MAX_MS, ACK_AGAIN_MS, DUMMY_ACKS};
use crate::plant::{self, Plant};
use crate::structures::NONE;
use crate::structures::timers::TimerKey;

/// What an acknowledged job costs: its record, its timer (24) and its place in the map (16).
pub const ACK_BYTES: u64 = size_of::<Ack>() as u64 + 24 + 16;
/// Marks the owner of a cluster timer as the key of an acknowledged job; the others are keys of shares.
pub const ACK_TIMER: u32 = crate::structures::slab::KEY_LIMIT;

/// An acknowledged job.
#[derive(Debug)]
pub struct Ack {
    /// The job.
    pub id: JobId,
    /// Who else has it, or was asked to, and who has answered.
    pub others: Others,
    /// End of the job's life: nothing is to be told after it.
    pub expires_at: Mono,
    /// When those that have not answered are told again.
    pub again_at: Mono,
    /// How often that was done.
    pub tries: u8,
    /// Nobody here ever held it: all nodes are asked.
    pub dummy: bool,
    /// Its timer.
    pub timer: Option<TimerKey>,
}

impl Home {
    /// The acknowledged job of this ID.
    pub(in crate::home) fn find_ack(&self, id: &JobId) -> Option<u32> {
        let map = &self.stock.slots[usize::from(id.slot().number() / self.options.shards)].acks;
        map.find(id.scan_hash(), |key| self.stock.acks[key].id == *id)
    }

    /// A job with other holders is acknowledged: it becomes an [`Ack`].
    pub(in crate::home) fn acknowledge_shared(&mut self, now: Mono, key: u32, from: Option<PeerNo>) -> u32 {
        let job = &self.stock.jobs[key];
        let (id, expires_at, share) = (job.id, job.expires_at, job.share);
        self.end_adding(key, share, Ok(()));
        let mut others = std::mem::take(&mut self.stock.shares[share].others);
        for member in &mut others {
            member.heard = Some(member.peer) == from;
        }
        self.journal
            .acknowledged(id, || share::recorded(&others, &self.peers));
        self.remove(key);
        self.insert_ack(now, id, others, expires_at, false)
    }

    pub(super) fn insert_ack(
        &mut self,
        now: Mono,
        id: JobId,
        others: Others,
        expires_at: Mono,
        dummy: bool,
    ) -> u32 {
        self.charge(ACK_BYTES);
        let again_at = now.after_ms(ACK_AGAIN_MS);
        let key = self.stock.acks.insert(Ack {
            id,
            others,
            expires_at,
            again_at,
            tries: 0,
            dummy,
            timer: None,
        });
        let timer = self
            .stock
            .cluster_timers
            .insert(again_at.min(expires_at).0, key | ACK_TIMER);
        self.stock.acks[key].timer = Some(timer);
        self.stock.dummies += usize::from(dummy);
        let map = usize::from(id.slot().number() / self.options.shards);
        self.stock.slots[map].acks.insert(id.scan_hash(), key);
        key
    }

    /// ACKJOB of an ID that is not known here: the job may be at other nodes.
    pub(crate) fn acknowledge_unknown(&mut self, now: Mono, id: JobId) {
        let is_told = self.peers.any() && !self.peers.leaving && self.find_ack(&id).is_none();
        if !is_told || !id.at_least_once() || !self.is_plausible(&id) {
            return;
        }
        if self.stock.dummies >= DUMMY_ACKS || !self.memory.admit(ACK_BYTES) {
            self.counters.dummies_refused += 1;
            return self.tell_ack_once(id);
        }
        let nodes = self.peers.all().filter(|peer| peer.state != PeerState::Gone);
        let others = nodes.map(|peer| Member {
            epoch: peer.epoch,
            peer: peer.no,
            confirmed: false,
            heard: false,
        });
        let others = others.collect();
        let expires_at = now.after_ms(id.life_ms());
        let key = self.insert_ack(now, id, others, expires_at, true);
        self.counters.dummies += 1;
        self.tell_ack(key);
    }

    /// An acknowledgement that is not remembered: all that can be reached learn of it, if nothing is lost.
    fn tell_ack_once(&mut self, id: JobId) {
        let to: Vec<PeerNo> = self.peers.reachable().map(|peer| peer.no).collect();
        for peer in to {
            let members = Members::default();
            self.say(peer, BusMessage::SetAck { id, members });
        }
    }

    /// Whether an ID names a node that there is, or was.
    fn is_plausible(&self, id: &JobId) -> bool {
        let prefix = &id.as_bytes()[..4];
        let others = self.peers.all().map(|peer| &peer.id);
        let mut nodes = std::iter::once(&self.peers.node).chain(others);
        nodes.any(|node| &node.as_bytes()[..4] == prefix)
    }

    /// Of IDs those about which this node has nothing to say.
    pub(crate) fn unknown_of(&mut self, now: Mono, ids: &[JobId]) -> Vec<JobId> {
        if !self.peers.any() {
            return Vec::new();
        }
        ids.iter().filter(|id| !self.knows(now, id)).copied().collect()
    }

    /// FASTACK of IDs that are not known here: all nodes that can be reached are told, once.
    pub(crate) fn delete_elsewhere(&mut self, ids: Vec<JobId>) {
        if ids.is_empty() {
            return;
        }
        let to: Vec<PeerNo> = self.peers.reachable().map(|peer| peer.no).collect();
        for peer in to {
            self.peers.send(peer, BusMessage::Delete { ids: ids.clone() });
        }
    }

    /// Nothing more is to be told of an acknowledged job.
    fn remove_ack(&mut self, key: u32) {
        let ack = self.stock.acks.remove(key);
        let map = usize::from(ack.id.slot().number() / self.options.shards);
        self.stock.slots[map].acks.remove(ack.id.scan_hash(), key);
        if let Some(timer) = ack.timer {
            self.stock.cluster_timers.cancel(timer);
        }
        self.stock.dummies -= usize::from(ack.dummy);
        self.release(ACK_BYTES);
    }

    /// The same, and the log knows.
    fn end_ack(&mut self, key: u32) {
        let Ack { id, dummy, .. } = self.stock.acks[key];
        if !dummy {
            self.journal.gone(id);
        }
        self.remove_ack(key);
    }

    /// Who may have the job, as the others are told: a dummy knows nobody.
    fn members_of(&self, key: u32) -> Members {
        let Ack { others, dummy, .. } = &self.stock.acks[key];
        if *dummy {
            return Members::default();
        }
        share::members(others, &self.peers, true)
    }

    /// Delete came for an ID: when it was acknowledged here, it is forgotten.
    pub(super) fn forget_ack(&mut self, id: &JobId) {
        if let Some(key) = self.find_ack(id) {
            self.end_ack(key);
        }
    }

    /// ACKJOB of a job with other holders: they are told.
    pub(in crate::home) fn tell_ack(&mut self, key: u32) {
        if plant::active(Plant::LostAck) {
            return;
        }
        let members = self.members_of(key);
        let Ack { id, others, .. } = &self.stock.acks[key];
        let id = *id;
        let to: Vec<PeerNo> = others
            .iter()
            .filter(|member| !member.heard)
            .map(|member| member.peer)
            .collect();
        for peer in to {
            let members = members.clone();
            self.say(peer, BusMessage::SetAck { id, members });
        }
    }

    /// A node asks about, or tells of, a job that is acknowledged here: it is told so. Whether it is.
    pub(super) fn tell_if_acked(&mut self, peer: PeerNo, id: &JobId) -> bool {
        let Some(key) = self.find_ack(id) else {
            return false;
        };
        let epoch = self.peers.peer(peer).epoch;
        let others = &mut self.stock.acks[key].others;
        share::note(others, peer, epoch, true);
        let members = self.members_of(key);
        self.say(peer, BusMessage::SetAck { id: *id, members });
        true
    }

    /// SetAck: the job is acknowledged.
    pub(super) fn on_set_ack(&mut self, now: Now, from: PeerNo, epoch: u64, id: JobId, members: &Members) {
        if plant::active(Plant::HastyGotAck) {
            let (known, members) = (true, members.clone());
            return self.say(from, BusMessage::GotAck { id, known, members });
        }
        let is_of_dummy = members.confirmed.is_empty();
        if let Some(key) = self.find_ack(&id).filter(|&key| self.stock.acks[key].dummy) {
            if is_of_dummy {
                self.heard(key, from);
                self.try_to_collect(key);
            } else {
                // That node is in charge.
                self.remove_ack(key);
            }
        }
        let ack = self.find_ack(&id).filter(|&key| !self.stock.acks[key].dummy);
        let (key, is_new) = match (ack, self.find_job(now.mono(), &id)) {
            (Some(key), _) => (key, false),
            (None, Some(job)) => {
                let share = self.share_of(now.mono(), job);
                if !is_of_dummy {
                    share::note(&mut self.stock.shares[share].others, from, epoch, true);
                }
                self.counters.acknowledged_elsewhere += 1;
                (self.acknowledge_shared(now.mono(), job, Some(from)), true)
            }
            (None, None) => {
                // Should it be on its way as a whole, it comes too late.
                self.transfers.forget_wants(&id);
                let members = Members::default();
                return self.say(
                    from,
                    BusMessage::GotAck {
                        id,
                        known: false,
                        members,
                    },
                );
            }
        };
        let ack = &mut self.stock.acks[key];
        share::note_all(&mut ack.others, &self.peers, members);
        self.heard(key, from);
        if is_of_dummy {
            // It does not have the job, so it is not for it to collect; nor has it anything to wait for any more.
            let others = &mut self.stock.acks[key].others;
            others.retain(|member| member.peer != from);
            let members = self.members_of(key);
            let known = true;
            self.say(from, BusMessage::GotAck { id, known, members });
        }
        if self.try_to_collect(key) {
            return;
        }
        let ack = &self.stock.acks[key];
        let collector = self.collector(&ack.others, &id);
        let members = share::members(&ack.others, &self.peers, true);
        match collector {
            None if is_new => self.tell_ack(key),
            None => {}
            Some(collector) => {
                // Who tells it again has not heard from the one that collects.
                if !is_new && !is_of_dummy && collector != from {
                    let members = members.clone();
                    self.say(
                        from,
                        BusMessage::GotAck {
                            id,
                            known: true,
                            members,
                        },
                    );
                }
                self.say(
                    collector,
                    BusMessage::GotAck {
                        id,
                        known: true,
                        members,
                    },
                );
            }
        }
    }

    /// GotAck: a node has marked the job, or never heard of it.
    pub(super) fn on_got_ack(
        &mut self,
        now: Now,
        from: PeerNo,
        epoch: u64,
        id: JobId,
        known: bool,
        members: &Members,
    ) {
        let Some(key) = self.find_ack(&id) else {
            if known {
                // Marks the job when it is here; else it was collected, and who waits for this node to do that learns so.
                self.on_set_ack(now, from, epoch, id, members);
            }
            return;
        };
        let ack = &mut self.stock.acks[key];
        if ack.dummy && known {
            // That node is in charge now.
            return self.remove_ack(key);
        }
        share::note_all(&mut ack.others, &self.peers, members);
        if !known && !ack.dummy {
            // It does not have the job, so it is not for it to collect. Should its copy still be on the way, it will ask before it queues it.
            ack.others.retain(|member| member.peer != from);
        }
        self.heard(key, from);
        self.try_to_collect(key);
    }

    fn heard(&mut self, key: u32, from: PeerNo) {
        let others = &mut self.stock.acks[key].others;
        if let Some(member) = others.iter_mut().find(|member| member.peer == from) {
            member.heard = true;
        }
    }

    /// The one that is to collect, and has answered, is told again: what it said then may have been lost, or it has forgotten the job.
    fn tell_collector(&mut self, key: u32) {
        let Ack {
            id, others, dummy, ..
        } = &self.stock.acks[key];
        let (id, known) = (*id, true);
        let has_answered = |peer: &PeerNo| others.iter().any(|member| member.peer == *peer && member.heard);
        let collector = self.collector(others, &id).filter(has_answered);
        if let Some(collector) = collector.filter(|_| !dummy) {
            let members = self.members_of(key);
            self.say(collector, BusMessage::GotAck { id, known, members });
        }
    }

    /// The member that collects, when that is another node: the lowest-ranked that can be reached.
    fn collector(&self, others: &Others, id: &JobId) -> Option<PeerNo> {
        let mine = share::rank(&self.peers.node, id);
        let rank = |peer: PeerNo| share::rank(&self.peers.peer(peer).id, id);
        let live = others
            .iter()
            .map(|member| member.peer)
            .filter(|&peer| self.peers.is_reachable(peer));
        live.min_by_key(|&peer| rank(peer))
            .filter(|&peer| rank(peer) < mine)
    }

    /// Whether nothing is to be waited for from this member: it has answered, is no node of the cluster any more, or has lost its jobs.
    fn is_settled(&self, member: &Member, dummy: bool) -> bool {
        let peer = self.peers.peer(member.peer);
        member.heard || peer.state == PeerState::Gone || (!dummy && peer.epoch > member.epoch)
    }

    /// Ends an acknowledged job when all know of it, and it is for this node to say so.
    fn try_to_collect(&mut self, key: u32) -> bool {
        let ack = &self.stock.acks[key];
        let all_know = ack.others.iter().all(|member| self.is_settled(member, ack.dummy));
        if !all_know || (!ack.dummy && self.collector(&ack.others, &ack.id).is_some()) {
            return false;
        }
        let id = ack.id;
        if !ack.dummy {
            self.counters.collected += 1;
            for member in &ack.others {
                self.peers.send(member.peer, BusMessage::Delete { ids: vec![id] });
            }
        }
        self.end_ack(key);
        true
    }

    /// The timer of an acknowledged job.
    pub(super) fn ack_timer(&mut self, now: Mono, key: u32) {
        let ack = &mut self.stock.acks[key];
        ack.timer = None;
        if ack.expires_at <= now {
            return self.end_ack(key);
        }
        if ack.again_at <= now {
            ack.tries = ack.tries.saturating_add(1);
            let wait_ms = (ACK_AGAIN_MS << ack.tries.min(16)).min(ACK_AGAIN_MAX_MS);
            ack.again_at = now.after_ms(wait_ms);
            if self.try_to_collect(key) {
                return;
            }
            self.tell_ack(key);
            self.tell_collector(key);
        }
        let ack = &self.stock.acks[key];
        let due = ack.again_at.min(ack.expires_at);
        let timer = self.stock.cluster_timers.insert(due.0, key | ACK_TIMER);
        self.stock.acks[key].timer = Some(timer);
    }

    /// A step through the acknowledged jobs after a node came back: what it is to be told is told now, not at the end of a long backoff.
    pub(super) fn step_acks(&mut self, now: Mono) {
        let Some(from) = self.ack_sweep else { return };
        let step = crate::limits::UPKEEP_STEP as u32;
        let found: Vec<u32> = self
            .stock
            .acks
            .iter_from(from, step)
            .map(|(key, _)| key)
            .collect();
        for key in found {
            let ack = &mut self.stock.acks[key];
            ack.tries = 0;
            ack.again_at = now;
            let timer = ack.timer.expect("an acknowledged job has a timer");
            self.stock.cluster_timers.reschedule(timer, now.0);
        }
        let next = from.saturating_add(step);
        self.ack_sweep = (next < self.stock.acks.high_water()).then_some(next);
    }

    /// Whether a job has other holders.
    pub(in crate::home) fn is_shared(&self, key: u32) -> bool {
        let share = self.stock.jobs[key].share;
        share != NONE && !self.stock.shares[share].others.is_empty()
    }
}
