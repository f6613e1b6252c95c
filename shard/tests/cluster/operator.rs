//! Who runs the cluster: makes nodes meet, forget and reset each other, and sends nodes away once they have given away all they had.
//!
//! ```text
//! a node knows another one not, or is not known by it --> CLUSTER MEET, again and again
//! Leave: clients go elsewhere, LEAVING yes --> at-least-once jobs there: 0 --> RESET, or it is switched off, or it stays after all
//! ```

use shard::id::{JobId, NodeId};

use crate::load::{Kind, Manage};
use crate::network::address_of;
use crate::run::Run;
use crate::support::request;

/// Between two looks at the cluster.
const LOOK_US: u64 = 500_000;

/// Within this time nodes that know each other have links.
pub const SETTLED_US: u64 = 3_000_000;

/// Between two MEETs of a node.
const MEET_AGAIN_US: u64 = 3_000_000;

/// Between two looks at a node that leaves.
const LEAVE_LOOK_US: u64 = 2_000_000;

/// By then a node that leaves has nothing left: leases and delays have ended, and what they end for has gone elsewhere.
const LEAVE_MOST_US: u64 = 240_000_000;

/// What is done to the cluster on purpose.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Deed {
    /// A node makes all forget another one.
    Forget { at: usize, whom: usize },
    /// A node is reset.
    Reset { at: usize, hard: bool },
    /// A node leaves.
    Leave { at: usize },
}

/// What becomes of a node that has given away everything.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Then {
    Reset { hard: bool },
    SwitchOff,
    Stay,
}

#[derive(Clone, Copy, Debug)]
struct Leaving {
    at: usize,
    since_us: u64,
    look_us: u64,
    then: Then,
}

/// What the operator has in mind.
#[derive(Default)]
pub struct Operator {
    look_us: u64,
    /// When each node may be made to meet another.
    meets_us: Vec<u64>,
    /// Until when each node is left alone after it was forgotten.
    apart_us: Vec<u64>,
    /// Since when each node knows all others and is known by them; never: `u64::MAX`.
    known_us: Vec<u64>,
    leaving: Option<Leaving>,
}

impl Operator {
    pub fn new(hosts: usize) -> Self {
        Self {
            meets_us: vec![0; hosts],
            apart_us: vec![0; hosts],
            known_us: vec![u64::MAX; hosts],
            ..Self::default()
        }
    }

    /// Whether a node is a whole part of the cluster.
    pub fn is_open(&self, host: usize, now_us: u64) -> bool {
        self.known_us[host].saturating_add(SETTLED_US) <= now_us
    }

    /// Whether some node is being emptied.
    pub fn is_busy(&self) -> bool {
        self.leaving.is_some()
    }

    /// Nodes that clients are not sent to.
    pub fn is_leaving(&self, host: usize) -> bool {
        self.leaving.is_some_and(|leaving| leaving.at == host)
    }
}

impl Run {
    /// Looks after the cluster, now and then.
    pub fn operate(&mut self) -> Result<(), String> {
        let now_us = self.world.now_us();
        if now_us < self.operator.look_us {
            return Ok(());
        }
        self.operator.look_us = now_us + LOOK_US;
        self.note_known();
        self.make_meet();
        self.bring_back();
        self.look_after_leaving()
    }

    /// Nodes that have left, and are still there, or there again, take part anew.
    fn bring_back(&mut self) {
        for host in self.world.up() {
            let me = &self.world.hosts[host].nodes.me;
            if me.as_ref().is_some_and(|me| me.leaving) && !self.operator.is_leaving(host) {
                self.manage(host, Manage::Leaving, &["LEAVING", "no"]);
            }
        }
    }

    /// Notes which nodes are whole parts of the cluster.
    pub fn note_known(&mut self) {
        let (now_us, up, strangers) = (self.world.now_us(), self.world.up(), self.strangers());
        for (host, known_us) in self.operator.known_us.iter_mut().enumerate() {
            let is_new = strangers.iter().any(|&(one, other)| one == host || other == host);
            // One that does not take part yet is nobody's stranger.
            *known_us = match is_new || !up.contains(&host) {
                true => u64::MAX,
                false => now_us.min(*known_us),
            };
        }
    }

    /// Pairs of nodes that are up, of which one does not know the other.
    pub fn strangers(&self) -> Vec<(usize, usize)> {
        let up = self.world.up();
        let knows = |host: usize, id: NodeId| {
            let others = &self.world.hosts[host].nodes.others;
            others.iter().any(|other| other.id == id)
        };
        let mut strangers = Vec::new();
        for &one in &up {
            for &other in up.iter().filter(|&&other| other != one) {
                if !knows(one, self.world.id_of(other)) || !knows(other, self.world.id_of(one)) {
                    strangers.push((one, other));
                }
            }
        }
        strangers
    }

    fn make_meet(&mut self) {
        let now_us = self.world.now_us();
        let Operator {
            meets_us, apart_us, ..
        } = &self.operator;
        let mut strangers = self.strangers();
        strangers.retain(|&(one, other)| {
            meets_us[one] <= now_us && apart_us[one] <= now_us && apart_us[other] <= now_us
        });
        if strangers.is_empty() {
            return;
        }
        let (one, other) = *self.chance.pick(&strangers);
        self.operator.meets_us[one] = now_us + MEET_AGAIN_US;
        self.manage(one, Manage::Meet, &["MEET", &address_of(other), "7711"]);
    }

    /// A client of this node sends CLUSTER and these words.
    fn manage(&mut self, host: usize, what: Manage, words: &[&str]) {
        if let Some(at) = self.idle_actor(host) {
            let words: Vec<&str> = ["CLUSTER"].iter().chain(words).copied().collect();
            self.send_on(at, Kind::Manage(what), &request(&words));
        }
    }

    /// All nodes are up, and each knows exactly the others.
    pub fn is_one_cluster(&self) -> bool {
        let hosts = 0..self.world.hosts.len();
        let started: Vec<usize> = hosts.filter(|&host| self.world.hosts[host].life > 0).collect();
        let knows_all = |host: usize| self.world.hosts[host].nodes.others.len() + 1 == started.len();
        self.world.up() == started
            && started.iter().all(|&host| knows_all(host))
            && self.strangers().is_empty()
    }

    /// Does what is to be done on purpose.
    pub fn perform(&mut self, deed: Deed) {
        let now_us = self.world.now_us();
        match deed {
            Deed::Forget { at, whom } => {
                self.ledger.count("forgotten");
                self.operator.apart_us[whom] = now_us + self.chance.between(500_000, 20_000_000);
                let id = self.world.id_of(whom).to_string();
                self.manage(at, Manage::Forget, &["FORGET", &id]);
            }
            Deed::Reset { at, hard } => {
                self.ledger.count("resets");
                self.ledger.is_reset(self.troubles.whole_us(), now_us);
                self.reset(at, hard);
            }
            Deed::Leave { at } => {
                self.leave_all(at);
                self.operator.leaving = Some(Leaving {
                    at,
                    since_us: now_us,
                    look_us: now_us + LEAVE_LOOK_US,
                    then: *self.chance.pick(&[
                        Then::Reset { hard: false },
                        Then::Reset { hard: true },
                        Then::SwitchOff,
                        Then::Stay,
                    ]),
                });
                self.manage(at, Manage::Leaving, &["LEAVING", "yes"]);
            }
        }
    }

    fn reset(&mut self, at: usize, hard: bool) {
        let now_us = self.world.now_us();
        self.operator.apart_us[at] = now_us + self.chance.between(0, 20_000_000);
        self.manage(at, Manage::Reset, &["RESET", if hard { "HARD" } else { "SOFT" }]);
    }

    fn look_after_leaving(&mut self) -> Result<(), String> {
        let now_us = self.world.now_us();
        let Some(leaving) = self.operator.leaving.as_mut() else {
            return Ok(());
        };
        if now_us < leaving.look_us {
            return Ok(());
        }
        leaving.look_us = now_us + LEAVE_LOOK_US;
        let me = &self.world.hosts[leaving.at].nodes.me;
        if !me.as_ref().is_some_and(|me| me.leaving) {
            // The client that was to say it may have gone before.
            leaving.since_us = now_us;
            let at = leaving.at;
            self.manage(at, Manage::Leaving, &["LEAVING", "yes"]);
            return Ok(());
        }
        let Leaving {
            at, since_us, then, ..
        } = *leaving;
        let left = self.ids_left(at)?;
        let again: Vec<&String> = left
            .iter()
            .filter(|id| JobId::parse(id.as_bytes()).is_some_and(|id| id.at_least_once()))
            .collect();
        if !left.is_empty() && now_us < since_us + LEAVE_MOST_US {
            return Ok(());
        }
        if let Some(id) = again.first() {
            let shown = self.ask(at, &["SHOW", id])?;
            return Err(format!("node {at} leaves, and has {} jobs: {shown}", again.len()));
        }
        self.operator.leaving = None;
        if !left.is_empty() {
            // Nobody takes a job with RETRY 0 into a queue that is paused: an operator who would not lose it stays.
            return Ok(());
        }
        self.ledger.is_emptied(at, self.world.now_us());
        match then {
            Then::Stay => {}
            Then::Reset { hard } => self.reset(at, hard),
            Then::SwitchOff => {
                self.leave_all(at);
                self.troubles.switch_off(&mut self.chance, &mut self.world, at);
            }
        }
        Ok(())
    }

    /// Nobody leaves any more: the end of a run.
    pub fn all_come_back(&mut self) {
        self.operator.leaving = None;
        self.operator.apart_us.fill(0);
    }
}
