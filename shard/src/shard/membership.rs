//! Shard 0 and the membership of its node: what goes in and out of that machine.

use crate::bus::{BusMessage, Sender};
use crate::clock::Now;
use crate::cluster::view::ClusterView;
use crate::cluster::{Act, Facts, Membership};
use crate::error::CommandError;
use crate::input::Effect;
use crate::message::Ticket;
use crate::node::{Change, ClusterChange, NodeMessage};
use crate::settings::Settings;
use crate::shard::{NodeFacts, Shard};

/// What the settings say of the node.
pub(super) fn facts(settings: &Settings, facts: &NodeFacts) -> Facts {
    let port = |announced: u64, own: u64| {
        let port = if announced > 0 { announced } else { own };
        u16::try_from(port).unwrap_or(0)
    };
    let machine = if settings.host_id.is_empty() {
        &facts.machine
    } else {
        &settings.host_id
    };
    Facts {
        host: settings.announce_host.clone(),
        port: port(settings.announce_port, settings.port),
        bus_port: port(settings.announce_bus_port, settings.bus_port()),
        machine: Facts::domain(machine),
        zone: Facts::domain(&settings.zone),
        timeout_ms: settings.cluster_node_timeout_ms,
        repair_after_ms: settings.repair_after_s.saturating_mul(1000),
    }
}

impl Shard {
    /// The node takes part in the cluster as soon as its store epoch is known.
    pub(super) fn start_membership(&mut self, now: Now) {
        if self.membership.as_ref().is_none_or(Membership::is_running) {
            return;
        }
        let keeper = self
            .core
            .coordinator
            .as_ref()
            .map(|coordinator| &coordinator.keeper);
        if let Some(epoch) = keeper.and_then(crate::node::Keeper::epoch) {
            self.with_membership(now, |membership| membership.start(now, epoch));
        }
    }

    /// Does something with the machine, and then what it wants done. Nothing on other shards.
    pub(super) fn with_membership(&mut self, now: Now, act: impl FnOnce(&mut Membership)) {
        let Some(membership) = &mut self.membership else {
            return;
        };
        act(membership);
        let mut acts = Vec::new();
        membership.take_acts(&mut acts);
        // Before the acts: whoever is told that something is done finds it so.
        if let Some(topology) = membership.take_topology() {
            for shard in 0..self.core.shards {
                let message = NodeMessage::Topology(Box::new(topology.clone()));
                self.core.send_node(shard, message);
            }
        }
        acts.into_iter().for_each(|act| self.membership_act(now, act));
    }

    fn membership_act(&mut self, now: Now, act: Act) {
        match act {
            Act::Dial(dial) => self.core.effects.push(Effect::Dial(dial)),
            Act::HangUp(link) => self.core.effects.push(Effect::HangUp { link }),
            Act::Save(text) => self.core.effects.push(Effect::SaveNodes { text }),
            Act::Tell(level, text) => self.core.effects.push(Effect::Log { level, text }),
            Act::Done(ticket, result) => {
                let result = result.map(|()| 0);
                self.core
                    .send_node(ticket.shard, NodeMessage::Changed { ticket, result });
            }
            Act::Flush(ticket, epoch) => {
                if let Some(coordinator) = &mut self.core.coordinator {
                    coordinator.keeper.set_epoch(epoch);
                }
                let (ticket, change) = (Some(ticket), Change::FlushAll);
                self.coordinate(0, NodeMessage::Ask { ticket, change });
                self.with_membership(now, |membership| membership.flushed(now));
            }
        }
    }

    /// DEBUG FLUSHALL: first the others are to know that this node loses what it holds.
    pub(super) fn flush_all(&mut self, now: Now, ticket: Ticket) {
        if self.membership.as_ref().is_some_and(Membership::is_running) {
            self.with_membership(now, |membership| membership.flush(now, ticket));
        } else {
            let (ticket, change) = (Some(ticket), Change::FlushAll);
            self.coordinate(0, NodeMessage::Ask { ticket, change });
        }
    }

    /// CLUSTER MEET, FORGET, RESET, LEAVING, SAVECONFIG.
    pub(super) fn change_cluster(&mut self, now: Now, ticket: Ticket, change: ClusterChange) {
        let mut refused = None;
        if self
            .membership
            .as_ref()
            .is_none_or(|membership| !membership.is_running())
        {
            refused = Some(Err(CommandError::other("the node takes part in no cluster yet")));
        }
        if refused.is_none() {
            self.with_membership(now, |membership| match change {
                ClusterChange::Meet { host, port, bus_port } => {
                    refused = Some(membership.meet(now, &host, port, bus_port))
                }
                ClusterChange::Forget(id) => membership.forget(now, ticket, id),
                ClusterChange::Reset { hard } => membership.reset(now, ticket, hard),
                ClusterChange::Leaving(leaving) => membership.set_leaving(now, ticket, leaving),
                ClusterChange::Save => membership.save(ticket),
            });
        }
        if let Some(result) = refused {
            let result = result.map(|()| 0);
            self.core
                .send_node(ticket.shard, NodeMessage::Changed { ticket, result });
        }
    }

    /// CONFIG SET: what concerns other nodes.
    pub(super) fn change_cluster_settings(&mut self, now: Now) {
        let settings = &self.core.settings;
        self.core.home.set_cluster_terms(
            settings.min_replicate,
            settings.rejoin_wait_ms,
            settings.cluster_node_timeout_ms,
        );
        let facts = facts(settings, &self.core.facts);
        self.with_membership(now, |membership| membership.configure(now, facts));
    }

    /// What is due. A log that begins, or is read, is looked after by inputs of many kinds: the node takes part after any of them.
    pub(super) fn membership_tick(&mut self, now: Now) {
        self.start_membership(now);
        let due = self.membership.as_ref().and_then(Membership::next_deadline);
        if due.is_some_and(|due| due <= now.mono()) {
            self.with_membership(now, |membership| membership.tick(now));
        }
    }

    /// A batch of a link for membership; one that ends at another shard is a peer's mistake.
    pub(super) fn membership_batch(&mut self, now: Now, from: &Sender, messages: &mut Vec<BusMessage>) {
        for message in messages.drain(..) {
            if let BusMessage::Packet { bytes } = message {
                self.with_membership(now, |membership| membership.packet(now, from, &bytes));
            }
        }
    }

    /// `nodes.conf` was written, or not.
    pub(super) fn nodes_saved(&mut self, now: Now, result: Result<(), String>) {
        self.with_membership(now, |membership| membership.saved(now, result));
    }

    /// What shard 0 shows of the cluster.
    pub(super) fn cluster_view(&self) -> Option<ClusterView> {
        let alone = || {
            let facts = facts(&self.core.settings, &self.core.facts);
            ClusterView::alone(self.core.node_id, facts.host, facts.port)
        };
        (self.core.shard == 0).then(|| self.membership.as_ref().map_or_else(alone, Membership::view))
    }
}
