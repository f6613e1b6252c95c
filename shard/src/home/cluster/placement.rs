//! Which nodes are asked for copies: other hosts first, then other zones, and those that have room.
//!
//! All copies of a job lie on one host only as long as no node on another host can take one. What counts as a copy here: this node's, when it
//! `keeps` it, and those that others have confirmed, but for nodes that leave or are lost. A node that was asked and can be reached is likely to have one soon.

use smallvec::SmallVec;

use super::share::{Member, Others};
use crate::bus::{Peer, PeerNo, PeerState, Peers};
use crate::id::JobId;

/// Memory level from which a node is not counted on to take a copy.
const FULL: u8 = 2;

/// Where a copy is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Place {
    host: u64,
    zone: u64,
}

type Places = SmallVec<[Place; 4]>;

/// The next node to be asked for a copy of a job; none when all that could take one were asked.
///
/// Preferred in this order: a host of its own when all copies lie on one, memory to spare, a host that no holder runs on, a zone of its own, and
/// by a hash of job and node, so that copies spread. Before hosts and zones of nodes that were only asked come those of nodes that
/// have confirmed: when the first is slow, the next one asked may be its neighbour.
pub fn next(peers: &Peers, keeps: bool, others: &Others, id: &JobId) -> Option<PeerNo> {
    let (sure, likely) = (sure(peers, keeps, others), likely(peers, others));
    let has_host = |places: &Places, peer: &Peer| places.iter().any(|place| place.host == peer.host);
    let has_zone = |places: &Places, peer: &Peer| places.iter().any(|place| place.zone == peer.zone);
    let first = sure.iter().chain(&likely).next().map(|place| place.host);
    let is_together = sure.iter().chain(&likely).all(|place| Some(place.host) == first);
    let cost = |peer: &&Peer| {
        (
            is_together && Some(peer.host) == first,
            peer.memory_level > 0,
            has_host(&sure, peer),
            has_host(&likely, peer),
            has_zone(&sure, peer),
            has_zone(&likely, peer),
            super::share::rank(&peer.id, id),
        )
    };
    candidates(peers, others).min_by_key(cost).map(|peer| peer.no)
}

/// The next node to be asked on a host that has no copy yet.
pub fn next_apart(peers: &Peers, keeps: bool, others: &Others, id: &JobId) -> Option<PeerNo> {
    let sure = sure(peers, keeps, others);
    candidates(peers, others)
        .filter(|peer| sure.iter().all(|place| place.host != peer.host))
        .min_by_key(|peer| (peer.memory_level > 0, super::share::rank(&peer.id, id)))
        .map(|peer| peer.no)
}

/// Whether all copies lie on one host although a node on another one could take one.
pub fn could_be_apart(peers: &Peers, keeps: bool, others: &Others) -> bool {
    let sure = sure(peers, keeps, others);
    let Some(first) = sure.first() else { return false };
    let takes = |peer: &&Peer| peer.host != first.host && !peer.leaving && peer.memory_level < FULL;
    sure.iter().all(|place| place.host == first.host) && peers.reachable().any(|peer| takes(&peer))
}

/// Whether no confirmed copy of a job of this node is known on another host.
pub fn is_on_one_host(peers: &Peers, others: &Others) -> bool {
    let mut confirmed = others.iter().filter(|member| member.confirmed);
    confirmed.all(|member| peers.peer(member.peer).host == peers.host)
}

fn candidates<'a>(peers: &'a Peers, others: &'a Others) -> impl Iterator<Item = &'a Peer> {
    peers
        .reachable()
        .filter(|peer| !peer.leaving && !others.iter().any(|member| member.peer == peer.no))
}

fn sure(peers: &Peers, keeps: bool, others: &Others) -> Places {
    let me = keeps.then_some(Place {
        host: peers.host,
        zone: peers.zone,
    });
    let stays = |member: &&Member| {
        let peer = peers.peer(member.peer);
        member.confirmed && !peer.leaving && !peer.lost && peer.state != PeerState::Gone
    };
    me.into_iter()
        .chain(places(peers, others.iter().filter(stays)))
        .collect()
}

fn likely(peers: &Peers, others: &Others) -> Places {
    let comes = |member: &&Member| {
        !member.confirmed && !peers.peer(member.peer).leaving && peers.is_reachable(member.peer)
    };
    places(peers, others.iter().filter(comes)).collect()
}

fn places<'a>(peers: &'a Peers, members: impl Iterator<Item = &'a Member>) -> impl Iterator<Item = Place> {
    members.map(|member| {
        let Peer { host, zone, .. } = *peers.peer(member.peer);
        Place { host, zone }
    })
}
