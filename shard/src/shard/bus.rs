//! What comes over the bus, and the links of this shard.

use crate::bus::message::Place;
use crate::bus::peers::Link;
use crate::bus::{
    BusMessage, Dial, LinkEvent, LinkKind, LinkNo, PeerNo, PeerState, Sender, Topology, Traffic,
};
use crate::clock::Now;
use crate::cluster::{MEMBERSHIP_LINKS, Membership};
use crate::input::Effect;
use crate::message::Message;
use crate::shard::Shard;
use crate::slot::{ShardNo, Slot};
use crate::wire::Blob;

impl Shard {
    /// Moves what there is for some peer node to `batch`, which is empty before; over which link, or none when there is nothing more.
    pub fn take_bus(&mut self, batch: &mut Vec<BusMessage>) -> Option<LinkNo> {
        if let Some((link, bytes)) = self.membership.as_mut().and_then(Membership::take_packet) {
            batch.push(BusMessage::Packet { bytes });
            return Some(link);
        }
        self.core.home.peers.take_outbox(batch)
    }

    /// Counts what went over the links, for INFO.
    pub fn count_bus(&mut self, traffic: &Traffic) {
        self.core.stats.counters.add_bus(traffic);
    }

    /// Something happened to a link.
    pub(super) fn link_event(&mut self, now: Now, link: LinkNo, event: LinkEvent) {
        if link.0 >= MEMBERSHIP_LINKS {
            return self.with_membership(now, |membership| membership.link(now, link, event));
        }
        let no = PeerNo(link.0 as u16);
        let rtt_of = |rtt_us: u32| rtt_us.max(1);
        let peers = &mut self.core.home.peers;
        let Some(kept) = peers.link(no) else { return };
        match event {
            LinkEvent::Up {
                node, epoch, rtt_us, ..
            } if node == peers.peer(no).id => {
                let rtt_us = rtt_of(rtt_us);
                peers.set_link(
                    no,
                    Some(Link {
                        up: true,
                        rtt_us,
                        ..kept
                    }),
                );
                if peers.saw_epoch(no, epoch) {
                    self.core.home.peer_epoch_changed(now, no);
                }
                self.core.home.peer_came(now, no);
            }
            LinkEvent::Up { .. } => {}
            LinkEvent::Rtt { rtt_us } => {
                let rtt_us = rtt_of(rtt_us);
                peers.set_link(no, Some(Link { rtt_us, ..kept }));
            }
            // It is told of each attempt that failed.
            LinkEvent::Down { .. } if !kept.up => {}
            LinkEvent::Down { .. } => {
                peers.set_link(no, Some(Link { up: false, ..kept }));
                self.core.home.peer_went(now, no);
            }
        }
    }

    /// A batch of a peer.
    pub(super) fn bus_batch(&mut self, now: Now, from: Sender, messages: &mut Vec<BusMessage>) {
        if from.kind == LinkKind::Membership {
            return self.membership_batch(now, &from, messages);
        }
        let Some(no) = self.core.home.peers.find(from.node) else {
            messages.clear();
            return;
        };
        let peer = self.core.home.peers.peer(no);
        if peer.state == PeerState::Gone || from.epoch < peer.epoch {
            messages.clear();
            return;
        }
        if self.core.home.peers.saw_epoch(no, from.epoch) {
            self.core.home.peer_epoch_changed(now, no);
        }
        for message in messages.drain(..) {
            self.dispatch(now, no, from.epoch, message);
        }
    }

    /// Brings a message to the shard that handles it.
    fn dispatch(&mut self, now: Now, from: PeerNo, epoch: u64, message: BusMessage) {
        let to = match message.place() {
            Place::Home(slot) => slot.home(self.core.shards),
            Place::Shard(shard) if shard < self.core.shards => shard,
            Place::Shard(_) => return,
            Place::Here => return self.split(now, from, epoch, message),
        };
        self.bring(now, to, from, epoch, message);
    }

    fn bring(&mut self, now: Now, to: ShardNo, from: PeerNo, epoch: u64, message: BusMessage) {
        if to == self.core.shard {
            self.bus_message(now, from, epoch, message);
        } else {
            self.core.mesh.send(to, Message::Bus { from, epoch, message });
        }
    }

    /// A message about several slots goes to each home shard in part.
    fn split(&mut self, now: Now, from: PeerNo, epoch: u64, message: BusMessage) {
        match message {
            BusMessage::Delete { ids } => {
                // With as many shards there as here all of it belongs to this one.
                if ids
                    .iter()
                    .all(|id| id.slot().home(self.core.shards) == self.core.shard)
                {
                    return self.bus_message(now, from, epoch, BusMessage::Delete { ids });
                }
                for to in 0..self.core.shards {
                    let is_of = |id: &&crate::id::JobId| id.slot().home(self.core.shards) == to;
                    let ids: Vec<_> = ids.iter().filter(is_of).copied().collect();
                    if !ids.is_empty() {
                        self.bring(now, to, from, epoch, BusMessage::Delete { ids });
                    }
                }
            }
            BusMessage::Interest { lasting, queues } => {
                let mut of_shard = vec![Vec::new(); usize::from(self.core.shards)];
                for (queue, credit) in queues {
                    let home = Slot::of_queue(&queue).home(self.core.shards);
                    of_shard[usize::from(home)].push((queue, credit));
                }
                for (to, queues) in of_shard
                    .into_iter()
                    .enumerate()
                    .filter(|(_, queues)| !queues.is_empty())
                {
                    self.bring(
                        now,
                        to as ShardNo,
                        from,
                        epoch,
                        BusMessage::Interest { lasting, queues },
                    );
                }
            }
            _ => self.bus_message(now, from, epoch, message),
        }
    }

    /// A message for this shard.
    pub(super) fn bus_message(&mut self, now: Now, from: PeerNo, epoch: u64, message: BusMessage) {
        // The shard that received this may have a later topology than this one.
        if !self.core.home.peers.has(from) {
            return;
        }
        self.core.home.bus(now, from, epoch, message);
    }

    /// Shard 0 published the nodes that there are.
    pub(super) fn topology(&mut self, now: Now, topology: Topology) {
        let peers = &mut self.core.home.peers;
        let identity = (topology.node, topology.epoch);
        if identity != (peers.node, peers.epoch) {
            let (node, epoch) = identity;
            self.core.node_id = node;
            self.core.node_text = Blob::copy_from(&node.text());
            self.core.effects.push(Effect::Identity { node, epoch });
        }
        let before: Vec<_> = peers.all().map(|peer| (peer.bus.clone(), peer.epoch)).collect();
        let leaves = topology.leaving && !peers.leaving;
        peers.update(topology);
        self.core.home.set_node(self.core.node_id);
        let all: Vec<_> = self.core.home.peers.all().cloned().collect();
        for peer in all {
            let has_new_epoch = before
                .get(usize::from(peer.no.0))
                .is_some_and(|&(_, epoch)| epoch != 0 && epoch < peer.epoch);
            if has_new_epoch {
                self.core.home.peer_epoch_changed(now, peer.no);
            }
            let link = LinkNo(u32::from(peer.no.0));
            let is_kept = self.core.home.peers.link(peer.no).is_some();
            if peer.state == PeerState::Gone {
                if is_kept {
                    self.core.home.peers.set_link(peer.no, None);
                    self.core.effects.push(Effect::HangUp { link });
                    self.core.home.peer_went(now, peer.no);
                }
                continue;
            }
            let moved = before
                .get(usize::from(peer.no.0))
                .is_some_and(|(bus, _)| *bus != peer.bus);
            if is_kept && !moved {
                continue;
            }
            let (host, port) = peer.bus;
            let up = Link {
                no: link,
                up: false,
                rtt_us: 1000,
            };
            self.core.home.peers.set_link(peer.no, Some(up));
            self.core.effects.push(Effect::Dial(Dial {
                link,
                kind: LinkKind::Data,
                host,
                port,
                expect: Some(peer.id),
            }));
        }
        self.core.home.topology_changed(now);
        if leaves {
            for session in self.sessions_where(|_| true) {
                self.with(now, session, |engine| engine.leave());
            }
        }
    }
}
