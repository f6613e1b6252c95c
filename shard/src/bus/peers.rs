//! Who there is, as a shard sees it: what shard 0 published last, and the state of the shard's own links.

use smallvec::SmallVec;

use crate::bus::{BusMessage, LinkNo};
use crate::id::NodeId;
use crate::log::Holder;

/// Names a node that this one has known since it started; never given to another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PeerNo(pub u16);

/// What membership says of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PeerState {
    /// It answers.
    Alive,
    /// It has not answered for a while: `fail?`.
    Suspect,
    /// It is taken for dead: `fail`.
    Failed,
    /// It was forgotten, or reset: it is in no holder set any more.
    Gone,
}

/// A node other than this one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Peer {
    /// Its number here.
    pub no: PeerNo,
    /// Its ID.
    pub id: NodeId,
    /// Its store epoch, as it said last; 0 when it is not known yet.
    pub epoch: u64,
    /// Where its bus is.
    pub bus: (String, u16),
    /// Where its clients connect.
    pub clients: (String, u16),
    /// The machine it runs on (`host-id`), as a hash.
    pub host: u64,
    /// Its zone, as a hash; 0 when it has none.
    pub zone: u64,
    /// Whether it is there.
    pub state: PeerState,
    /// It leaves the cluster: no new copies.
    pub leaving: bool,
    /// Its memory level.
    pub memory_level: u8,
    /// It has been failed, or without its old epoch, for `repair-after`: what it held is to be copied elsewhere.
    pub lost: bool,
}

/// The cluster, as shard 0 publishes it to every shard whenever something of it changes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Topology {
    /// This node.
    pub node: NodeId,
    /// Its store epoch.
    pub epoch: u64,
    /// Its machine, as a hash.
    pub host: u64,
    /// Its zone, as a hash.
    pub zone: u64,
    /// Whether it leaves the cluster.
    pub leaving: bool,
    /// The others, by number, those that are gone included for as long as it may matter.
    pub peers: Vec<Peer>,
}

/// A shard's link to a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Link {
    /// Its name.
    pub no: LinkNo,
    /// Whether it is connected.
    pub up: bool,
    /// Round-trip time, microseconds; never 0.
    pub rtt_us: u32,
}

#[derive(Debug)]
struct Known {
    peer: Peer,
    link: Option<Link>,
    outbox: Vec<BusMessage>,
}

/// The other nodes, as one shard sees them, and what it has for them.
#[derive(Debug)]
pub struct Peers {
    /// This node.
    pub node: NodeId,
    /// Its store epoch.
    pub epoch: u64,
    /// Its machine, as a hash.
    pub host: u64,
    /// Its zone, as a hash.
    pub zone: u64,
    /// Whether it leaves the cluster.
    pub leaving: bool,
    known: Vec<Known>,
    reachable: u16,
    roomy: u16,
    any: bool,
}

impl Peers {
    /// A node alone.
    pub fn new(node: NodeId) -> Self {
        Self {
            node,
            epoch: 0,
            host: 0,
            zone: 0,
            leaving: false,
            known: Vec::new(),
            reachable: 0,
            roomy: 0,
            any: false,
        }
    }

    /// Whether any other node is known that is not gone.
    pub fn any(&self) -> bool {
        self.any
    }

    /// What shard 0 published. Links stay as they are.
    pub fn update(&mut self, topology: Topology) {
        let Topology {
            node,
            epoch,
            host,
            zone,
            leaving,
            peers,
        } = topology;
        (self.node, self.epoch, self.host, self.zone, self.leaving) = (node, epoch, host, zone, leaving);
        for peer in peers {
            let at = usize::from(peer.no.0);
            assert!(
                at <= self.known.len(),
                "peers are numbered in the order of their coming"
            );
            if at == self.known.len() {
                self.known.push(Known {
                    peer,
                    link: None,
                    outbox: Vec::new(),
                });
            } else {
                // A link tells of a new epoch sooner than membership does.
                let epoch = self.known[at].peer.epoch.max(peer.epoch);
                self.known[at].peer = Peer { epoch, ..peer };
            }
        }
        self.count();
    }

    /// The state of this shard's link to a peer.
    pub fn set_link(&mut self, no: PeerNo, link: Option<Link>) {
        let known = &mut self.known[usize::from(no.0)];
        known.link = link;
        if link.is_none_or(|link| !link.up) {
            known.outbox.clear();
        }
        self.count();
    }

    /// A peer showed a store epoch; whether it is a newer one.
    pub fn saw_epoch(&mut self, no: PeerNo, epoch: u64) -> bool {
        let peer = &mut self.known[usize::from(no.0)].peer;
        let newer = epoch > peer.epoch;
        if newer {
            peer.epoch = epoch;
        }
        newer
    }

    fn count(&mut self) {
        self.any = self.known.iter().any(|known| known.peer.state != PeerState::Gone);
        let takers = || self.reachable().filter(|peer| !peer.leaving);
        let roomy = takers().filter(|peer| peer.memory_level == 0).count() as u16;
        (self.reachable, self.roomy) = (takers().count() as u16, roomy);
    }

    /// All of them, those that are gone included.
    pub fn all(&self) -> impl Iterator<Item = &Peer> {
        self.known.iter().map(|known| &known.peer)
    }

    /// Whether a number names one of them.
    pub fn has(&self, no: PeerNo) -> bool {
        usize::from(no.0) < self.known.len()
    }

    /// One of them.
    pub fn peer(&self, no: PeerNo) -> &Peer {
        &self.known[usize::from(no.0)].peer
    }

    /// This shard's link to it.
    pub fn link(&self, no: PeerNo) -> Option<Link> {
        self.known[usize::from(no.0)].link
    }

    /// The number of a node.
    pub fn find(&self, id: NodeId) -> Option<PeerNo> {
        let known = self.known.iter().find(|known| known.peer.id == id);
        known.map(|known| known.peer.no)
    }

    /// Alive by membership, and this shard's link to it is up.
    pub fn is_reachable(&self, no: PeerNo) -> bool {
        let known = &self.known[usize::from(no.0)];
        known.peer.state == PeerState::Alive && known.link.is_some_and(|link| link.up)
    }

    /// Those that are reachable.
    pub fn reachable(&self) -> impl Iterator<Item = &Peer> {
        self.all().filter(|peer| self.is_reachable(peer.no))
    }

    /// How many could take a copy: reachable, and not leaving. This node is not counted.
    pub fn reachable_count(&self) -> u16 {
        self.reachable
    }

    /// How many of those have memory to spare.
    pub fn roomy_count(&self) -> u16 {
        self.roomy
    }

    /// How many machines there are on which a copy could be: this node's, and those of all that could take one.
    pub fn hosts(&self) -> usize {
        let mut hosts: SmallVec<[u64; 8]> = SmallVec::new();
        hosts.push(self.host);
        for peer in self.reachable().filter(|peer| !peer.leaving) {
            if !hosts.contains(&peer.host) {
                hosts.push(peer.host);
            }
        }
        hosts.len()
    }

    /// Round-trip time to a peer, milliseconds, rounded up.
    pub fn rtt_ms(&self, no: PeerNo) -> u64 {
        self.link(no)
            .map_or(1, |link| u64::from(link.rtt_us).div_ceil(1000))
    }

    /// A holder as records and messages name it.
    pub fn holder(&self, no: PeerNo, epoch: u64) -> Holder {
        Holder {
            node: *self.peer(no).id.as_bytes(),
            epoch,
        }
    }

    /// This node as a holder.
    pub fn myself(&self) -> Holder {
        Holder {
            node: *self.node.as_bytes(),
            epoch: self.epoch,
        }
    }

    /// Says something to a peer; lost when its link is down.
    pub fn send(&mut self, to: PeerNo, message: BusMessage) {
        let known = &mut self.known[usize::from(to.0)];
        if known.link.is_some_and(|link| link.up) {
            known.outbox.push(message);
        }
    }

    /// Moves what there is for some peer to `batch`; its link, or none when there is nothing more.
    pub fn take_outbox(&mut self, batch: &mut Vec<BusMessage>) -> Option<LinkNo> {
        let known = self.known.iter_mut().find(|known| !known.outbox.is_empty())?;
        std::mem::swap(batch, &mut known.outbox);
        known.link.map(|link| link.no)
    }
}
