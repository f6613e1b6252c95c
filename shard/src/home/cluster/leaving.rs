//! A node that leaves the cluster gives away what it holds: in steps, as long as it has jobs and there are nodes to take them.
//!
//! | a job here is | what happens | until |
//! | --- | --- | --- |
//! | held by fewer others than were asked for, or on one host only | copies | they have confirmed |
//! | queued | it goes to another node, as an export | that node says that it has queued it |
//! | delayed, or kept back by a pause, and this node says when it enters | Enqueue to the first of the others | it answers |
//! | a copy | Left to the others | - |
//! | with a consumer | it waits for the end of its lease | - |
//! | RETRY 0, not handed out | it goes as a whole (`transfer`) | the other node says that it has it |
//! | RETRY 0, handed out | nothing, then it is dropped: it is done with | a few seconds, in which its reply may come back |
//! | one whose ADDJOB waits | it stays | that ends |

use super::placement;
use super::share::{self, Copying};
use crate::bus::{BusMessage, PeerNo, Peers};
use crate::clock::{Mono, Now};
use crate::home::{Home, Job, Place};
use crate::id::JobId;
use crate::limits::{LEAVING_PAUSE_MS, LEAVING_STEP, MAX_SECONDS};
use crate::plant::{self, Plant};
use crate::structures::NONE;

/// How far the walk over all jobs has come, and when its next step is.
pub type Leaving = Option<(u32, Mono)>;

impl Home {
    /// A step of giving away.
    pub(super) fn step_leaving(&mut self, now: Mono) {
        if !self.peers.leaving {
            self.leaving = None;
            return;
        }
        let (from, at) = self.leaving.unwrap_or((0, now));
        if at > now {
            return;
        }
        let found: Vec<u32> = self
            .stock
            .jobs
            .0
            .iter_from(from, LEAVING_STEP)
            .map(|(key, _)| key)
            .collect();
        for key in found {
            self.give_away(now, key);
        }
        let next = from.saturating_add(LEAVING_STEP);
        let is_over = next >= self.stock.jobs.0.high_water();
        self.leaving = Some((if is_over { 0 } else { next }, now.after_ms(LEAVING_PAUSE_MS)));
    }

    /// When the next step is due.
    pub(in crate::home) fn leaving_deadline(&self) -> Option<Mono> {
        let (_, at) = self.leaving?;
        (self.peers.leaving && !self.stock.jobs.0.is_empty()).then_some(at)
    }

    /// Does what can be done now for a job whose copy here is to go.
    pub(super) fn give_away(&mut self, now: Mono, key: u32) {
        let Job {
            place,
            share,
            retry_s,
            replicate,
            id,
            ..
        } = self.stock.jobs[key];
        if retry_s == 0 {
            return self.give_away_once(now, key);
        }
        if place == Place::Waiting {
            return;
        }
        let others = if share == NONE {
            share::Others::new()
        } else {
            self.stock.shares[share].others.clone()
        };
        let stays =
            |peers: &Peers, member: &share::Member| member.confirmed && !peers.peer(member.peer).leaving;
        let confirmed = others.iter().filter(|member| stays(&self.peers, member)).count() as u16;
        let is_asked = others
            .iter()
            .any(|member| !member.confirmed && self.peers.is_reachable(member.peer));
        // As many others as were asked for, or all there are; a node that was asked once and never confirmed is asked again.
        let more = is_asked || placement::next(&self.peers, false, &others, &id).is_some();
        let is_short = confirmed < u16::from(replicate) && more;
        let is_together = replicate > 1 && placement::could_be_apart(&self.peers, false, &others);
        let known = others.iter().filter(|member| member.confirmed).count() as u16;
        if is_short {
            self.copy_beside(now, key, u16::from(replicate) + known - confirmed, false);
        } else if is_together {
            self.copy_beside(now, key, known + 1, true);
        }
        if confirmed == 0 {
            if plant::active(Plant::HastyLeave) && place == Place::Queued {
                self.remove(key);
            }
            return;
        }
        let reachable = others
            .iter()
            .filter(|member| stays(&self.peers, member))
            .map(|member| member.peer)
            .filter(|&peer| self.peers.is_reachable(peer));
        let Some(to) = reachable.min_by_key(|&peer| share::rank(&self.peers.peer(peer).id, &id)) else {
            return;
        };
        match place {
            Place::Queued => self.export(now, key, to),
            Place::Idle if self.stock.shares[share].mine => {
                let delay_ms = self.stock.jobs[key].enters_at.since_ms(now);
                self.peers.send(to, BusMessage::Enqueue { id, delay_ms });
            }
            Place::Held => self.peers.send(to, BusMessage::Enqueue { id, delay_ms: 0 }),
            Place::Idle if !is_short && !is_together => self.leave_job(key),
            Place::Idle | Place::Reserved | Place::Leased | Place::Waiting | Place::Away => {}
        }
    }

    /// A job with RETRY 0 goes to some node that does not leave, or was handed out for the one time that it may be.
    fn give_away_once(&mut self, now: Mono, key: u32) {
        let id = self.stock.jobs[key].id;
        if self.is_spent(now, key) {
            self.journal.gone(id);
            self.counters.given_away += 1;
            return self.remove(key);
        }
        if self.may_go(key)
            && !self.stock.moves.contains_key(&id)
            && let Some(to) = self.next_for_once(now, key, u8::MAX)
        {
            self.offer_transfer(now, key, to);
        }
    }

    /// The node that a job with RETRY 0 is offered to next: none that refused something a moment ago, or is above this memory level.
    pub(super) fn next_for_once(&mut self, now: Mono, key: u32, most: u8) -> Option<PeerNo> {
        let mut passed_by = share::Others::new();
        let all = self.peers.reachable().map(|peer| (peer.no, peer.memory_level));
        let all: Vec<(PeerNo, u8)> = all.collect();
        for (peer, memory_level) in all {
            if memory_level > most || self.transfers.passes_by(now, peer) {
                share::note(&mut passed_by, peer, 0, false);
            }
        }
        placement::next(&self.peers, false, &passed_by, &self.stock.jobs[key].id)
    }

    /// Asks other nodes for copies beside the life of a job, so that so many others have one; `apart`: nodes on other hosts only.
    pub(super) fn copy_beside(&mut self, now: Mono, key: u32, wanted: u16, apart: bool) {
        let share = self.share_of(now, key);
        let entry = &mut self.stock.shares[share];
        if entry
            .copying
            .as_ref()
            .is_none_or(|copying| copying.apart && !apart)
        {
            entry.copying = Some(Box::new(Copying {
                ticket: None,
                wanted,
                may_lower: false,
                ends_at: Mono::NEVER,
                again_at: now,
                tries: 0,
                external: false,
                apart,
            }));
            self.arm_share(share);
        }
    }

    /// Drops a copy that others hold.
    fn leave_job(&mut self, key: u32) {
        let Job { share, id, marks, .. } = self.stock.jobs[key];
        self.tell_all(share, |id| BusMessage::Left { id });
        self.journal.gone(id);
        self.counters.given_away += u64::from(self.peers.leaving);
        self.counters.placed_elsewhere += u64::from(marks.goes_out());
        self.remember_left(id);
        self.remove(key);
    }

    /// Enqueue: a node whose copy goes hands over when a job enters its queue.
    pub(super) fn on_enqueue(&mut self, now: Now, from: PeerNo, id: JobId, delay_ms: u64) {
        if self.tell_if_acked(from, &id) {
            return;
        }
        let key = self.find_job(now.mono(), &id);
        let taken = key.is_some() && !self.peers.leaving;
        if let Some(key) = key.filter(|_| taken) {
            let Job { share, place, .. } = self.stock.jobs[key];
            if place == Place::Idle && share != NONE && !self.stock.shares[share].mine {
                let delay_ms = delay_ms.min(MAX_SECONDS * 1000);
                self.stock.jobs[key].marks.set_entered_before(false);
                self.new_deadline(now.mono(), key, now.mono().after_ms(delay_ms), true);
                self.journal.noted(&self.stock.jobs[key]);
            }
        }
        self.peers.send(from, BusMessage::Enqueued { id, taken });
    }

    /// Enqueued: it is that node's now.
    pub(super) fn on_enqueued(&mut self, now: Now, from: PeerNo, id: JobId, taken: bool) {
        let key = self.find_job(now.mono(), &id);
        let Some(key) = key.filter(|&key| taken && !self.keeps(key)) else {
            return;
        };
        let Job { share, place, .. } = self.stock.jobs[key];
        if !matches!(place, Place::Idle | Place::Held) || share == NONE {
            return;
        }
        let is_holder = |member: &share::Member| member.peer == from && member.confirmed;
        if !self.stock.shares[share].others.iter().any(is_holder) {
            return;
        }
        if place == Place::Held {
            let retry_ms = self.stock.jobs[key].retry_ms();
            self.leave_to(now.mono(), key, retry_ms);
        } else {
            self.stock.shares[share].mine = false;
        }
    }
}
