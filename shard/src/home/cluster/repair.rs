//! Holders that are lost, and the way back after a restart (`cluster.md`, Holders and epochs).
//!
//! A peer whose store epoch is a new one has lost what it held, or some of it: for `rejoin-wait` it may say what it still has, then it leaves the
//! holder sets, and so does one that was forgotten; one that has been failed for `repair-after` stays in them and is not
//! counted. Then a walk over the shares, a bounded step at a time, finds jobs with fewer copies than were asked for, and the lowest-ranked
//! live holder of each asks other nodes. The same walk begins when a host can be reached that could not before, while there are jobs whose copies all
//! lie on one.

use std::collections::BTreeMap;
use std::ops::Bound;

use super::placement;
use super::share::{self, Others, Share};
use crate::bus::{PeerNo, PeerState};
use crate::clock::{Mono, Now};
use crate::home::{Home, Origin, Place};
use crate::id::{JobId, NodeId};
use crate::limits::{REPAIR_PAUSE_MS, REPAIR_STEP};
use crate::log::{AckedImage, Holder};
use crate::plant::{self, Plant};
use crate::structures::NONE;

/// What repair is at.
#[derive(Debug, Default)]
pub struct Repair {
    /// When the next walk begins.
    begins_at: Option<Mono>,
    /// How far the present walk has come, and when its next step is.
    walk: Option<(u32, Mono)>,
    /// Peers that were gone or lost when it was looked last.
    gone: Vec<PeerNo>,
    /// How many hosts could be reached when it was looked last.
    hosts: usize,
    /// Holders of restored jobs, until membership is known, and whether the job is kept out of its queue until then.
    jobs: BTreeMap<JobId, (Vec<Holder>, bool)>,
    /// Restored acknowledgements: whom they are to be told to, and until when.
    acks: BTreeMap<JobId, (Vec<Holder>, Mono)>,
}

impl Repair {
    /// Other holders of a job that a start found in the log, until membership is known.
    pub fn restored_holders(&self, id: &JobId) -> Option<&[Holder]> {
        self.jobs.get(id).map(|(holders, _)| holders.as_slice())
    }

    /// An acknowledgement that a start found in the log, until membership is known.
    pub fn restored_ack(&self, id: &JobId) -> Option<AckedImage> {
        let (holders, _) = self.acks.get(id)?;
        Some(AckedImage {
            id: *id,
            holders: holders.clone(),
        })
    }

    /// So many of those at the most, behind the one with this ID.
    pub fn restored_acks(&self, after: Option<JobId>, most: usize) -> Vec<AckedImage> {
        let from = after.map_or(Bound::Unbounded, Bound::Excluded);
        let ids = self.acks.range((from, Bound::Unbounded)).map(|(id, _)| id);
        ids.take(most).filter_map(|id| self.restored_ack(id)).collect()
    }
}

impl Home {
    /// A peer lost what it held, or some of it: its store epoch is a new one.
    pub fn peer_epoch_changed(&mut self, now: Now, peer: PeerNo) {
        self.journal.begin(now);
        self.forget_interest(peer);
        self.begin_transfer_sweep();
        self.plan_repair(now.mono().after_ms(self.rejoin_wait_ms));
    }

    fn plan_repair(&mut self, at: Mono) {
        let repair = &mut self.repair;
        repair.begins_at = Some(repair.begins_at.map_or(at, |before| before.max(at)));
    }

    /// Peers that were forgotten, or failed for long, since this was looked at last.
    pub(super) fn look_for_lost(&mut self, now: Mono) {
        let gone = |peer: &&crate::bus::Peer| peer.state == PeerState::Gone || peer.lost;
        let gone: Vec<PeerNo> = self.peers.all().filter(gone).map(|peer| peer.no).collect();
        if gone.iter().any(|peer| !self.repair.gone.contains(peer)) {
            self.plan_repair(now);
        }
        self.repair.gone = gone;
    }

    /// Another host may have come: jobs whose copies all lie on one get one there.
    pub(super) fn look_for_hosts(&mut self, now: Mono) {
        let hosts = self.peers.hosts();
        let before = std::mem::replace(&mut self.repair.hosts, hosts);
        if hosts > before && self.stock.on_one_host > 0 {
            self.plan_repair(now);
        }
    }

    /// When repair has something to do by itself.
    pub(in crate::home) fn repair_deadline(&self) -> Option<Mono> {
        let walk = self.repair.walk.map(|(_, at)| at);
        walk.into_iter().chain(self.repair.begins_at).min()
    }

    /// A step of the walk.
    pub(super) fn step_repair(&mut self, now: Mono) {
        if self.repair.begins_at.is_some_and(|at| at <= now) {
            self.repair.begins_at = None;
            self.repair.walk = Some((0, now));
        }
        let Some((from, at)) = self.repair.walk else {
            return;
        };
        if at > now {
            return;
        }
        let found: Vec<u32> = self
            .stock
            .shares
            .iter_from(from, REPAIR_STEP)
            .map(|(key, _)| key)
            .collect();
        for key in found {
            self.repair_share(now, key);
        }
        let next = from.saturating_add(REPAIR_STEP);
        let more = next < self.stock.shares.high_water();
        self.repair.walk = more.then_some((next, now.after_ms(REPAIR_PAUSE_MS)));
    }

    /// Brings a job back to the copies that were asked for.
    pub(super) fn repair_share(&mut self, now: Mono, key: u32) {
        let Share {
            job, others, copying, ..
        } = &self.stock.shares[key];
        let job_ref = &self.stock.jobs[*job];
        let (job, id, replicate) = (*job, job_ref.id, u16::from(job_ref.replicate));
        let waits = job_ref.place == Place::Waiting;
        let is_lost = |member: &share::Member| {
            let peer = self.peers.peer(member.peer);
            let lost_all = member.confirmed && peer.epoch > member.epoch;
            peer.state == PeerState::Gone || (lost_all && !plant::active(Plant::NoRepair))
        };
        let kept: Others = others.iter().filter(|member| !is_lost(member)).copied().collect();
        let counts = |member: &&share::Member| member.confirmed && !self.peers.peer(member.peer).lost;
        let confirmed = kept.iter().filter(counts).count() as u16;
        let (is_fewer, copies) = (kept.len() < others.len(), copying.is_some());
        let is_first = share::place(&kept, &self.peers, &id) == 0;
        if is_fewer {
            self.stock.shares[key].others = kept;
            self.journal.holders(id, || {
                share::recorded(&self.stock.shares[key].others, &self.peers)
            });
        }
        self.count_hosts(key);
        let is_once = self.stock.jobs[job].at_most_once();
        if !is_first || copies || waits || is_once {
            return;
        }
        let share = &self.stock.shares[key];
        let known = share.confirmed();
        if confirmed + 1 < replicate {
            self.counters.repaired += 1;
            self.copy_beside(now, job, replicate - 1 + known - confirmed, false);
        } else if replicate > 1 && placement::could_be_apart(&self.peers, self.keeps(job), &share.others) {
            self.counters.repaired += 1;
            self.copy_beside(now, job, known + 1, true);
        }
    }

    /// A record names a job's other holders.
    pub(in crate::home) fn restore_holders(&mut self, id: JobId, holders: Vec<Holder>) {
        if holders.is_empty() {
            self.repair.jobs.remove(&id);
        } else {
            self.repair.jobs.insert(id, (holders, false));
        }
    }

    /// A record says that a job is acknowledged. `expires_at` is the end of its life, when that is known.
    pub(in crate::home) fn restore_ack(
        &mut self,
        now: Mono,
        id: JobId,
        holders: Vec<Holder>,
        expires_at: Option<Mono>,
    ) {
        if !holders.is_empty() {
            let expires_at = expires_at.unwrap_or_else(|| now.after_ms(id.life_ms()));
            self.repair.acks.insert(id, (holders, expires_at));
        }
    }

    /// A record says that a job is gone.
    pub(in crate::home) fn forget_restored(&mut self, id: &JobId) {
        self.repair.jobs.remove(id);
        self.repair.acks.remove(id);
    }

    /// A record says that all of a shard's log is gone.
    pub(in crate::home) fn forget_all_restored(&mut self, origin: Origin) {
        let stays = |id: &JobId| id.slot().home(origin.shards) != origin.shard;
        self.repair.jobs.retain(|id, _| stays(id));
        self.repair.acks.retain(|id, _| stays(id));
    }

    /// All records were read. Jobs that others hold too are not queued before those were asked.
    pub(in crate::home) fn hold_back_shared(&mut self, now: Mono) {
        let ids: Vec<JobId> = self.repair.jobs.keys().copied().collect();
        for id in ids {
            if let Some(key) = self.find_job(now, &id) {
                let is_held = self.hold_back(now, key);
                if let Some(kept) = self.repair.jobs.get_mut(&id) {
                    kept.1 = is_held;
                }
            }
        }
        if self.peers.epoch != 0 {
            self.resolve_holders(now);
        }
    }

    /// Keeps a restored job out of its queue for `rejoin-wait`, if that is where it would be.
    fn hold_back(&mut self, now: Mono, key: u32) -> bool {
        let job = &self.stock.jobs[key];
        let is_out = matches!(job.place, Place::Idle | Place::Leased) && job.enters_at > now;
        if is_out || job.at_most_once() {
            return false;
        }
        self.detach(key);
        self.stock.jobs[key].enters_at = now.after_ms(self.rejoin_wait_ms);
        self.arm(key);
        true
    }

    /// Membership is known: holders of restored jobs get their numbers, and are asked.
    pub(super) fn resolve_holders(&mut self, now: Mono) {
        for (id, (holders, expires_at)) in std::mem::take(&mut self.repair.acks) {
            let others = self.others_of(&holders);
            if self.find_ack(&id).is_none() && self.find_job(now, &id).is_none() {
                let ack = self.insert_ack(now, id, others, expires_at, false);
                self.tell_ack(ack);
            }
        }
        for (id, (holders, is_held)) in std::mem::take(&mut self.repair.jobs) {
            let others = self.others_of(&holders);
            let Some(key) = self.find_job(now, &id) else {
                continue;
            };
            if others.is_empty() {
                // Nobody is left to be asked.
                if is_held {
                    self.stock.jobs[key].enters_at = now;
                    self.arm(key);
                }
                continue;
            }
            let share = self.share_of(now, key);
            self.stock.shares[share].others = others;
            self.count_hosts(share);
            self.rejoin(now, key, is_held);
        }
    }

    /// The same as `count_hosts` for a job that may not be here.
    pub(super) fn count_hosts_of(&mut self, now: Mono, id: &JobId) {
        let share = self
            .find_job(now, id)
            .map_or(NONE, |key| self.stock.jobs[key].share);
        if share != NONE {
            self.count_hosts(share);
        }
    }

    fn others_of(&self, holders: &[Holder]) -> Others {
        let mut others = Others::new();
        for holder in holders {
            if let Some(peer) = self.peers.find(NodeId::from_bytes(holder.node)) {
                let confirmed = holder.epoch & share::ASKED == 0;
                share::note(&mut others, peer, holder.epoch & !share::ASKED, confirmed);
            }
        }
        others
    }

    /// A job that this node had before its restart waits until the others have said what became of it.
    fn rejoin(&mut self, now: Mono, key: u32, is_held: bool) {
        if self.stock.jobs[key].at_most_once() {
            return;
        }
        let share_key = self.stock.jobs[key].share;
        assert_ne!(share_key, NONE, "a job that rejoins has other holders");
        let share = &mut self.stock.shares[share_key];
        (share.mine, share.rejoins, share.ask_at) = (false, is_held, now);
        self.arm_share(share_key);
    }
}
