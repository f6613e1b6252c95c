//! Who knows whom, and who takes whom for dead: membership as the world itself plays it, from what paths are open and which nodes
//! are up.
//!
//! Each node judges for itself, by when it last could have heard of another, over a third one too. A node that starts knows all that
//! there are, under numbers of its own, and their epochs only when it hears from them.

use shard::bus::{Peer, PeerNo, PeerState, Topology};
use shard::id::NodeId;

use crate::network::{BUS_PORT, Network, address_of};
use crate::support::Chance;

/// How often nodes are looked after.
const STEP_US: u64 = 200_000;

/// What a node is to others, whoever looks.
#[derive(Clone, Debug)]
pub struct Card {
    pub id: NodeId,
    /// Store epoch; 0 before the first start.
    pub epoch: u64,
    /// Its machine.
    pub host: u64,
    pub leaving: bool,
    pub gone: bool,
    /// It was started once: others know it.
    pub came: bool,
}

/// What a node thinks of another.
#[derive(Clone, Debug)]
struct View {
    of: usize,
    state: PeerState,
    epoch: u64,
    heard_us: u64,
    failed_us: Option<u64>,
    lost: bool,
    leaving: bool,
}

/// The membership of all nodes.
pub struct Registry {
    pub cards: Vec<Card>,
    /// The node timeout.
    pub timeout_us: u64,
    pub repair_after_us: u64,
    /// Of each node that is up: what it thinks of the others, by their numbers there.
    views: Vec<Option<Vec<View>>>,
    due_us: u64,
}

impl Registry {
    pub fn new(cards: Vec<Card>, timeout_us: u64, repair_after_us: u64) -> Self {
        Self {
            views: vec![None; cards.len()],
            cards,
            timeout_us,
            repair_after_us,
            due_us: 0,
        }
    }

    pub fn next_us(&self) -> u64 {
        self.due_us
    }

    /// A node starts.
    pub fn rises(&mut self, chance: &mut Chance, host: usize, now_us: u64) {
        self.cards[host].came = true;
        let mut others: Vec<usize> = (0..self.cards.len())
            .filter(|&other| other != host && self.cards[other].came)
            .collect();
        for at in (1..others.len()).rev() {
            others.swap(at, chance.below(at + 1));
        }
        let views = others.into_iter().map(|of| self.first_view(of, now_us));
        self.views[host] = Some(views.collect());
        self.due_us = now_us;
    }

    fn first_view(&self, of: usize, now_us: u64) -> View {
        View {
            of,
            state: PeerState::Suspect,
            epoch: 0,
            heard_us: now_us.saturating_sub(self.timeout_us / 2),
            failed_us: None,
            lost: false,
            leaving: self.cards[of].leaving,
        }
    }

    pub fn falls(&mut self, host: usize) {
        self.views[host] = None;
    }

    /// All look after each other; who is to be told anew which nodes there are.
    pub fn step(&mut self, chance: &mut Chance, network: &Network) -> Vec<(usize, Topology)> {
        let now_us = network.now_us;
        self.due_us = now_us + STEP_US + chance.between(0, 50_000);
        let mut told = Vec::new();
        for host in 0..self.cards.len() {
            let Some(mut views) = self.views[host].take() else {
                continue;
            };
            let mut changed = self.meet(host, now_us, &mut views);
            for view in &mut views {
                changed |= self.look(host, view, network);
            }
            let first = network.faces[host].identity.iter().any(Option::is_none);
            if changed || first {
                told.push((host, self.topology(host, &views)));
            }
            self.views[host] = Some(views);
        }
        told
    }

    /// Nodes that came after this one started.
    fn meet(&self, host: usize, now_us: u64, views: &mut Vec<View>) -> bool {
        let known = views.len();
        for of in 0..self.cards.len() {
            let is_known = of == host || views.iter().any(|view| view.of == of);
            if self.cards[of].came && !is_known {
                views.push(self.first_view(of, now_us));
            }
        }
        views.len() > known
    }

    fn look(&self, host: usize, view: &mut View, network: &Network) -> bool {
        let now_us = network.now_us;
        let card = &self.cards[view.of];
        let before = view.clone();
        if hears(host, view.of, network) {
            view.heard_us = now_us;
            (view.epoch, view.leaving) = (card.epoch, card.leaving);
        }
        let silent_us = now_us - view.heard_us;
        view.state = match silent_us {
            _ if card.gone => PeerState::Gone,
            0 => PeerState::Alive,
            _ if silent_us >= self.timeout_us => PeerState::Failed,
            _ if silent_us >= self.timeout_us / 2 => PeerState::Suspect,
            _ => view.state,
        };
        let failed = matches!(view.state, PeerState::Failed | PeerState::Gone);
        view.failed_us = failed.then(|| view.failed_us.unwrap_or(now_us));
        view.lost = view
            .failed_us
            .is_some_and(|failed_us| now_us - failed_us >= self.repair_after_us);
        (view.state, view.epoch, view.lost, view.leaving)
            != (before.state, before.epoch, before.lost, before.leaving)
    }

    fn topology(&self, host: usize, views: &[View]) -> Topology {
        let card = &self.cards[host];
        let peer = |(no, view): (usize, &View)| Peer {
            no: PeerNo(no as u16),
            id: self.cards[view.of].id,
            epoch: view.epoch,
            bus: (address_of(view.of), BUS_PORT),
            clients: (address_of(view.of), 7711),
            host: self.cards[view.of].host,
            zone: 0,
            state: view.state,
            leaving: view.leaving,
            memory_level: 0,
            lost: view.lost,
        };
        Topology {
            node: card.id,
            epoch: card.epoch,
            host: card.host,
            zone: 0,
            leaving: card.leaving,
            peers: views.iter().enumerate().map(peer).collect(),
        }
    }
}

/// Whether a node answers another now, itself or through a third one.
fn hears(host: usize, of: usize, network: &Network) -> bool {
    let up = |host: usize| network.faces[host].life > 0;
    let open = |one, other| network.is_open_both_ways(one, other);
    let third = |third: usize| up(third) && open(host, third) && open(third, of);
    up(of) && (open(host, of) || (0..network.faces.len()).any(third))
}
