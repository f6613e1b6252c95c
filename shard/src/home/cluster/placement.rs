//! Which nodes are asked for copies: other hosts first, then other zones, and those that have room.

use super::share::Others;
use crate::bus::{Peer, PeerNo, Peers};
use crate::id::JobId;

/// The next node to be asked for a copy of a job; none when all that could take one were asked.
///
/// Preferred in this order: memory to spare, a host that no holder runs on, a zone of its own, and by a hash of job and node, so
/// that copies spread.
pub fn next(peers: &Peers, others: &Others, id: &JobId) -> Option<PeerNo> {
    let is_free = |peer: &&Peer| !peer.leaving && !others.iter().any(|member| member.peer == peer.no);
    let held: Vec<&Peer> = others.iter().map(|member| peers.peer(member.peer)).collect();
    let cost = |peer: &&Peer| {
        let same_host = peer.host == peers.host || held.iter().any(|held| held.host == peer.host);
        let same_zone = peer.zone == peers.zone || held.iter().any(|held| held.zone == peer.zone);
        (
            peer.memory_level > 0,
            same_host,
            same_zone,
            super::share::rank(&peer.id, id),
        )
    };
    peers
        .reachable()
        .filter(is_free)
        .min_by_key(cost)
        .map(|peer| peer.no)
}
