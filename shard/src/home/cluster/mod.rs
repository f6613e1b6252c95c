//! Jobs that other nodes hold too: what peers say, and what they are told.

use super::Home;
use crate::bus::{BusMessage, PeerNo};
use crate::clock::Now;

impl Home {
    /// A peer's message about a job or queue of this home.
    pub fn bus(&mut self, now: Now, _from: PeerNo, _epoch: u64, _message: BusMessage) {
        self.journal.begin(now);
    }

    /// The link to a peer is up.
    pub fn peer_came(&mut self, now: Now, _peer: PeerNo) {
        self.journal.begin(now);
    }

    /// The link to a peer is down.
    pub fn peer_went(&mut self, now: Now, _peer: PeerNo) {
        self.journal.begin(now);
    }

    /// A peer lost what it held, or some of it: its store epoch is a new one.
    pub fn peer_epoch_changed(&mut self, now: Now, _peer: PeerNo) {
        self.journal.begin(now);
    }

    /// Membership has changed.
    pub fn topology_changed(&mut self, now: Now) {
        self.journal.begin(now);
    }
}
