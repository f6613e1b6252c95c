//! Jobs go where consumers wait (`cluster.md`, Federation by interest).
//!
//! A home whose queue has waiting consumers tells the other nodes how many jobs it can take (*credit*; 0 takes it back). A home that has jobs
//! and no consumer of its own sends at once, as far as the credit goes. Both hold the job then: the importer queues it and says so to all
//! holders; the exporter queues it again unless it hears of it within a grace.
//!
//! What is told is a queue's present credit, so a message that is lost or doubled does no harm for long: all is told again to a node
//! that comes back, and a few queues at a time are told again each second, which bounds the cost of idle consumers. A queue that was
//! imported much lately asks for more than its waiters need, so that it streams. A consumer that looks without waiting (NOHANG) asks for what there is
//! at that moment, at most once a second and queue unless something comes. Jobs with RETRY 0 go in a way of their own (`transfer`).

use std::collections::{BTreeMap, BTreeSet};

use smallvec::SmallVec;

use super::share;
use crate::bus::message::{JobCopy, Refusal};
use crate::bus::{BusMessage, PeerNo, PeerState};
use crate::clock::{Mono, Now};
use crate::home::stock::Stock;
use crate::home::{Entry, Home, Job, Place};
use crate::id::JobId;
use crate::limits::{
    CREDIT, EXPORT_AGAIN_MS, EXPORT_STEP, INTERESTS, INTERESTS_AGAIN, INTERESTS_AGAIN_MS, POLL_AGAIN_MS,
    POLL_CREDIT, POLLED_QUEUES, SCAN_STEP, STREAM_SHARE,
};
use crate::message::Take;
use crate::structures::NONE;
use crate::wire::Blob;

/// What a home knows of consumers elsewhere, and has to tell of its own.
#[derive(Debug, Default)]
pub struct Federation {
    /// Queues that other nodes have consumers for, and how many jobs each can take.
    wanted: BTreeMap<Blob, SmallVec<[(PeerNo, u32); 2]>>,
    /// Queues whose waiters have changed.
    to_tell: Vec<u32>,
    /// Queues from which jobs may go.
    to_export: Vec<u32>,
    /// Queues with jobs that were imported a moment ago: when they are looked at again.
    later: BTreeSet<(Mono, u32)>,
    /// When some queues are told again, and from which on.
    again: Option<(Mono, u32)>,
    /// Queues that were looked at in vain, and when other nodes are asked again.
    polled: BTreeMap<Blob, Mono>,
    /// All queues are told to this node, from this one on.
    whole: Vec<(PeerNo, u32)>,
}

impl Home {
    /// The waiters of a queue have changed.
    #[inline]
    pub(in crate::home) fn interest_changed(&mut self, queue: u32) {
        if !self.peers.any() {
            return;
        }
        let marked = &mut self.stock.queues[queue].tell_marked;
        if !std::mem::replace(marked, true) {
            self.federation.to_tell.push(queue);
        }
    }

    /// A queue has jobs that no consumer of its own takes.
    #[inline]
    pub(in crate::home) fn may_export(&mut self, queue: u32) {
        let of = &mut self.stock.queues[queue];
        if of.wanted && !std::mem::replace(&mut of.export_marked, true) {
            self.federation.to_export.push(queue);
        }
    }

    /// A queue was made: whether other nodes have consumers for it.
    pub(in crate::home) fn is_wanted(&self, name: &Blob) -> bool {
        !self.federation.wanted.is_empty() && self.federation.wanted.contains_key(name)
    }

    /// All jobs and queues are gone.
    pub(in crate::home) fn flush_federation(&mut self) {
        self.federation.to_tell.clear();
        self.federation.to_export.clear();
        self.federation.later.clear();
    }

    /// A node came back: it is told of all waiting consumers.
    pub(super) fn tell_all_interest(&mut self, peer: PeerNo) {
        self.federation.whole.retain(|(other, _)| *other != peer);
        self.federation.whole.push((peer, 0));
    }

    /// A node has lost its memory, or is gone: so have its consumers.
    pub(super) fn forget_interest(&mut self, peer: PeerNo) {
        for nodes in self.federation.wanted.values_mut() {
            nodes.retain(|(other, _)| *other != peer);
        }
    }

    /// When something is to be told again, or exported.
    pub(in crate::home) fn federation_deadline(&self) -> Option<Mono> {
        let federation = &self.federation;
        let has_more = !federation.to_tell.is_empty()
            || !federation.to_export.is_empty()
            || !federation.whole.is_empty();
        if has_more {
            return Some(Mono::default());
        }
        let later = federation.later.first().map(|(at, _)| *at);
        later.into_iter().chain(federation.again.map(|(at, _)| at)).min()
    }

    /// A step of telling and exporting.
    pub(super) fn step_federation(&mut self, now: Mono) {
        for queue in std::mem::take(&mut self.federation.to_tell) {
            self.tell_interest(now, queue);
        }
        self.step_whole();
        self.tell_again(now);
        while let Some(&(at, queue)) = self.federation.later.first()
            && at <= now
        {
            self.federation.later.pop_first();
            if self.stock.queues.0.get(queue).is_some() {
                self.may_export(queue);
            }
        }
        for queue in std::mem::take(&mut self.federation.to_export) {
            self.export_from(now, queue);
        }
    }

    /// How many jobs of a queue could be taken here.
    fn credit_of(&self, key: u32) -> u32 {
        let queue = &self.stock.queues[key];
        let is_closed = queue.pause.any() || self.peers.leaving || !queue.jobs.is_empty();
        if is_closed || queue.waiters.is_empty() {
            return 0;
        }
        (queue.waiters.len() as u32 + queue.streamed / STREAM_SHARE).min(CREDIT)
    }

    /// Tells all nodes what a queue can take, when that is news.
    fn tell_interest(&mut self, now: Mono, key: u32) {
        let Some(queue) = self.stock.queues.0.get_mut(key) else {
            return;
        };
        queue.tell_marked = false;
        let credit = self.credit_of(key);
        let queue = &mut self.stock.queues[key];
        let used = std::mem::take(&mut queue.imported);
        if credit == queue.advertised && used == 0 {
            return;
        }
        queue.advertised = credit;
        let name = queue.name.clone();
        let peers: SmallVec<[PeerNo; 8]> = self.peers.reachable().map(|peer| peer.no).collect();
        if credit > 0 && self.federation.again.is_none() {
            self.federation.again = Some((now.after_ms(INTERESTS_AGAIN_MS), 0));
        }
        let share = credit.div_ceil(peers.len().max(1) as u32);
        for peer in peers {
            let queues = vec![(name.clone(), share)];
            self.peers.send(
                peer,
                BusMessage::Interest {
                    lasting: true,
                    queues,
                },
            );
        }
    }

    /// The queues of this home that are told of, from a place on, at most so many; and where to go on.
    fn advertised_from(&self, from: u32, most: usize) -> (Vec<(Blob, u32)>, Option<u32>) {
        let queues = &self.stock.queues.0;
        let step = crate::limits::UPKEEP_STEP as u32;
        let mut found = Vec::new();
        for (key, queue) in queues.iter_from(from, step) {
            if queue.advertised > 0 {
                let credit = queue.advertised.saturating_sub(queue.imported);
                found.push((queue.name.clone(), credit.max(1)));
                if found.len() == most {
                    return (found, Some(key + 1));
                }
            }
        }
        let next = from.saturating_add(step);
        (found, (next < queues.high_water()).then_some(next))
    }

    /// A step of telling all to a node that came back.
    fn step_whole(&mut self) {
        let Some((peer, from)) = self.federation.whole.pop() else {
            return;
        };
        let (queues, next) = self.advertised_from(from, crate::limits::UPKEEP_STEP);
        if !queues.is_empty() {
            self.peers.send(
                peer,
                BusMessage::Interest {
                    lasting: true,
                    queues,
                },
            );
        }
        if let Some(next) = next {
            self.federation.whole.push((peer, next));
        }
    }

    /// Some queues are told again, in turn.
    fn tell_again(&mut self, now: Mono) {
        let Some((at, from)) = self.federation.again else {
            return;
        };
        if at > now {
            return;
        }
        let (queues, next) = self.advertised_from(from, INTERESTS_AGAIN);
        let is_over = queues.is_empty() && from == 0 && next.is_none();
        if !queues.is_empty() {
            let peers: SmallVec<[PeerNo; 8]> = self.peers.reachable().map(|peer| peer.no).collect();
            for peer in peers {
                let queues = queues.clone();
                self.peers.send(
                    peer,
                    BusMessage::Interest {
                        lasting: true,
                        queues,
                    },
                );
            }
        }
        let again = (now.after_ms(INTERESTS_AGAIN_MS), next.unwrap_or(0));
        self.federation.again = (!is_over).then_some(again);
    }

    /// Interest: another node has consumers.
    pub(super) fn on_interest(&mut self, now: Mono, from: PeerNo, lasting: bool, queues: Vec<(Blob, u32)>) {
        for (name, credit) in queues {
            if !lasting {
                self.export_now(now, &name, from, credit);
                continue;
            }
            let wanted = &mut self.federation.wanted;
            if credit > 0 && (wanted.len() < INTERESTS || wanted.contains_key(&name)) {
                let nodes = wanted.entry(name.clone()).or_default();
                nodes.retain(|(peer, _)| *peer != from);
                nodes.push((from, credit.min(CREDIT)));
            } else if let Some(nodes) = wanted.get_mut(&name) {
                nodes.retain(|(peer, _)| *peer != from);
                if nodes.is_empty() {
                    wanted.remove(&name);
                }
            }
            let is_wanted = self.federation.wanted.contains_key(&name);
            if let Some(queue) = self.find_queue(&name) {
                self.stock.queues[queue].wanted = is_wanted;
                self.may_export(queue);
            }
        }
    }

    /// Sends jobs of a queue to nodes that have consumers for them.
    fn export_from(&mut self, now: Mono, key: u32) {
        let Some(queue) = self.stock.queues.0.get_mut(key) else {
            return;
        };
        queue.export_marked = false;
        let (jobs, later) = self.exportable(now, key, EXPORT_STEP);
        let goes_on = jobs.len() == EXPORT_STEP;
        for job in jobs {
            let Some(peer) = self.take_credit(key) else {
                return;
            };
            self.send_away(now, job, peer);
        }
        if goes_on {
            self.may_export(key);
        } else if let Some(at) = later {
            self.federation.later.insert((at, key));
        }
    }

    /// Sends what there is of a queue to a node whose consumer looked in vain.
    fn export_now(&mut self, now: Mono, name: &Blob, to: PeerNo, credit: u32) {
        let Some(key) = self.find_queue(name).filter(|_| self.peers.is_reachable(to)) else {
            return;
        };
        let (jobs, _) = self.exportable(now, key, (credit as usize).min(EXPORT_STEP));
        jobs.into_iter().for_each(|job| self.send_away(now, job, to));
    }

    fn send_away(&mut self, now: Mono, job: u32, to: PeerNo) {
        if self.stock.jobs[job].at_most_once() {
            self.offer_transfer(now, job, to);
        } else {
            self.export(now, job, to);
        }
    }

    /// The first jobs of a queue that may go to another node, at most so many, and when more may. Those that stay are passed over, up to
    /// a bound: offered already, whose life is over, that came from another node a moment ago.
    fn exportable(&self, now: Mono, key: u32, most: usize) -> (Vec<u32>, Option<Mono>) {
        let Stock {
            jobs,
            queues,
            shares,
            moves,
            ..
        } = &self.stock;
        let queue = &queues[key];
        let (mut found, mut later) = (Vec::new(), None);
        if queue.pause.output || !queue.waiters.is_empty() || queue.busy {
            return (found, later);
        }
        for job in queue.jobs.iter(jobs).take(SCAN_STEP) {
            let Job {
                share,
                expires_at,
                id,
                ..
            } = jobs[job];
            let is_offered = jobs[job].at_most_once() && moves.contains_key(&id);
            if is_offered || expires_at <= now {
                continue;
            }
            let not_before = if share == NONE {
                now
            } else {
                shares[share].not_before
            };
            if not_before > now {
                later = Some(later.map_or(not_before, |at: Mono| at.min(not_before)));
                continue;
            }
            found.push(job);
            if found.len() == most {
                break;
            }
        }
        (found, later)
    }

    /// A consumer that does not wait found nothing in these queues: other nodes may have something for its next try.
    pub(in crate::home) fn looked_in_vain(&mut self, now: Mono, take: &Take) {
        if !self.peers.any() || self.peers.leaving {
            return;
        }
        for (_, name) in &take.queues {
            let polled = &mut self.federation.polled;
            if polled.get(name).is_some_and(|again_at| *again_at > now) {
                continue;
            }
            if polled.len() >= POLLED_QUEUES {
                polled.retain(|_, again_at| *again_at > now);
                if polled.len() >= POLLED_QUEUES {
                    return;
                }
            }
            polled.insert(name.clone(), now.after_ms(POLL_AGAIN_MS));
            let streamed = self
                .find_queue(name)
                .map_or(0, |key| self.stock.queues[key].streamed);
            let credit = (take.count.max(POLL_CREDIT) + streamed / STREAM_SHARE).min(CREDIT);
            let peers: SmallVec<[PeerNo; 8]> = self.peers.reachable().map(|peer| peer.no).collect();
            for peer in peers {
                let (lasting, queues) = (false, vec![(name.clone(), credit)]);
                self.peers.send(peer, BusMessage::Interest { lasting, queues });
            }
        }
    }

    /// A node that can take a job of the queue: its credit is one less.
    fn take_credit(&mut self, queue: u32) -> Option<PeerNo> {
        let nodes = self.federation.wanted.get_mut(&self.stock.queues[queue].name)?;
        let peers = &self.peers;
        let at = nodes
            .iter()
            .position(|(peer, credit)| *credit > 0 && peers.is_reachable(*peer))?;
        let (peer, credit) = nodes.remove(at);
        // The next job goes to another one, if there is any.
        nodes.push((peer, credit - 1));
        Some(peer)
    }

    pub(super) fn export(&mut self, now: Mono, key: u32, to: PeerNo) {
        let copy_first = self.copy_of(now, key);
        let share = self.share_of(now, key);
        let epoch = self.peers.peer(to).epoch;
        share::note(&mut self.stock.shares[share].others, to, epoch, false);
        self.detach(key);
        let grace_ms = self.grace_ms(share);
        let job = &mut self.stock.jobs[key];
        job.enters_at = now.after_ms(grace_ms);
        // Should it come back in vain, that was no delivery.
        job.marks.set_entered_before(false);
        let (id, queue) = (job.id, job.queue);
        self.stock.queues[queue].jobs_out += 1;
        self.stock.queues[queue].touched_at = now;
        let entry = &mut self.stock.shares[share];
        (entry.mine, entry.ranked, entry.rejoins, entry.asked) = (true, false, false, 1);
        entry.ask_at = now.after_ms(grace_ms / 2);
        entry.told_at = now;
        self.arm(key);
        self.arm_share(share);
        self.journal.holders(id, || {
            share::recorded(&self.stock.shares[share].others, &self.peers)
        });
        self.counters.exported += 1;
        let copy = Box::new(JobCopy {
            delay_left_ms: 0,
            ..copy_first
        });
        self.peers.send(to, BusMessage::Import { copy });
    }

    /// Import: a job for a consumer here.
    pub(super) fn on_import(&mut self, now: Now, from: PeerNo, epoch: u64, copy: JobCopy) {
        let id = copy.id;
        if self.tell_if_acked(from, &id) || copy.retry_s == 0 {
            return;
        }
        if self
            .find_queue(&copy.queue)
            .is_some_and(|queue| self.stock.queues[queue].pause.input)
        {
            let why = Refusal::Paused;
            return self.peers.send(from, BusMessage::Refused { id, why });
        }
        let (key, is_new) = match self.find_job(now.mono(), &id) {
            Some(key) => (key, false),
            None => match self.take_copy(now, &copy) {
                Ok(Some(key)) => (key, true),
                Ok(None) => return,
                Err(why) => return self.peers.send(from, BusMessage::Refused { id, why }),
            },
        };
        let mono = now.mono();
        let share = self.share_of(mono, key);
        let others = &mut self.stock.shares[share].others;
        share::note_all(others, &self.peers, &copy.members);
        share::note(others, from, epoch, true);
        if is_new {
            self.log_copy(key);
        } else {
            self.journal.holders(id, || {
                share::recorded(&self.stock.shares[share].others, &self.peers)
            });
        }
        let job = &self.stock.jobs[key];
        let (place, queue) = (job.place, job.queue);
        let (nacks, additional_deliveries, deliveries) =
            (job.nacks, job.additional_deliveries, job.deliveries);
        match place {
            Place::Idle => {
                self.counters.imported += 1;
                self.polled_no_more(&copy.queue);
                let of = &mut self.stock.queues[queue];
                of.imported += 1;
                of.stream(mono);
                self.interest_changed(queue);
                self.stock.shares[share].not_before = mono.after_ms(EXPORT_AGAIN_MS);
                self.enter(mono, key, Entry::Imported);
            }
            Place::Leased => {
                let left_ms = self.stock.jobs[key].enters_at.since_ms(mono);
                self.say_of(
                    key,
                    from,
                    BusMessage::Leased {
                        id,
                        left_ms,
                        deliveries,
                    },
                );
            }
            Place::Waiting | Place::Queued | Place::Reserved | Place::Held | Place::Away => {
                let message = BusMessage::Queued {
                    id,
                    nacks,
                    additional_deliveries,
                };
                self.say_of(key, from, message);
            }
        }
    }

    /// An import was refused: the job is queued again here, and that node is asked no more until it says so.
    pub(super) fn on_import_refused(&mut self, now: Now, from: PeerNo, id: JobId) {
        let Some(key) = self.find_job(now.mono(), &id) else {
            return;
        };
        let Job {
            share, place, queue, ..
        } = self.stock.jobs[key];
        let is_once = self.stock.jobs[key].at_most_once();
        if is_once || share == NONE || place != Place::Idle || !self.stock.shares[share].mine {
            return;
        }
        self.forget_interest_in(queue, from);
        let is_asked = |member: &share::Member| member.peer == from && !member.confirmed;
        let others = &mut self.stock.shares[share].others;
        if others.iter().any(is_asked) {
            others.retain(|member| !is_asked(member));
            self.enter_back(now.mono(), key);
        }
    }

    /// A node is asked no more to take jobs of a queue, until it says that it can.
    pub(super) fn forget_interest_in(&mut self, queue: u32, peer: PeerNo) {
        let name = &self.stock.queues[queue].name;
        if let Some(nodes) = self.federation.wanted.get_mut(name) {
            nodes.retain(|(other, _)| *other != peer);
        }
    }

    /// Who looks in vain the next time asks again at once.
    pub(super) fn polled_no_more(&mut self, queue: &Blob) {
        self.federation.polled.remove(queue);
    }

    /// A job that went to another node in vain is queued again, as if it had never left.
    fn enter_back(&mut self, now: Mono, key: u32) {
        if self.stock.queues[self.stock.jobs[key].queue].pause.input {
            self.keep_back(key);
        } else {
            self.enter(now, key, Entry::Imported);
        }
    }

    /// Interests of nodes that are gone are forgotten.
    pub(super) fn forget_gone_interests(&mut self) {
        let gone: Vec<PeerNo> = self
            .peers
            .all()
            .filter(|peer| peer.state == PeerState::Gone)
            .map(|peer| peer.no)
            .collect();
        gone.into_iter().for_each(|peer| self.forget_interest(peer));
    }
}
