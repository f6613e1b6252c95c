//! Changes of the whole node, as each shard makes them when shard 0 says so.

use crate::clock::Now;
use crate::commands::client;
use crate::core::{ClientPause, SessionTimer};
use crate::input::{Effect, LogLevel};
use crate::limits;
use crate::message::SessionId;
use crate::node::{Change, NodeMessage};
use crate::session::Session;
use crate::shard::Shard;

impl Shard {
    /// Makes a change and tells shard 0 what it counted; shutdown tells it later, when the last session is gone.
    pub(super) fn apply(&mut self, now: Now, number: u64, change: Change) {
        let count = match change {
            Change::Settings(pairs) => {
                self.change_settings(now, &pairs);
                if self.log_switch_waits(number, &pairs) {
                    return;
                }
                0
            }
            Change::FlushAll => {
                if self.core.home.log_flush(now, number) {
                    self.core.home.flush(now);
                }
                // Home says when it is done.
                return;
            }
            Change::KillClients(filter) => {
                let killed = self.sessions_where(|session| client::fits(&filter, session));
                killed.iter().for_each(|&session| self.kill(session));
                self.core.stats.counters.clients_killed += killed.len() as u64;
                killed.len() as i64
            }
            Change::PauseClients { ms, writes_only } => {
                self.pause_clients(now, ms, writes_only);
                0
            }
            Change::UnpauseClients => {
                self.end_pause(now);
                0
            }
            Change::Monitor { shard, on } => {
                self.core.feed.shards.retain(|&wants| wants != shard);
                if on {
                    self.core.feed.shards.push(shard);
                } else if shard == self.core.shard && !self.core.feed.monitors.is_empty() {
                    // A monitor came while the last one before it left.
                    let change = Change::Monitor { shard, on: true };
                    self.core.send_node(0, NodeMessage::Ask { ticket: None, change });
                }
                0
            }
            Change::ResetStats => {
                self.core.stats.reset();
                self.core.home.counters = Default::default();
                0
            }
            Change::ResetSlowlog => {
                self.core.stats.slowlog.reset();
                0
            }
            Change::ResetLatency(events) => self.core.stats.latency.reset(&events),
            Change::RewriteLog => {
                self.rewrite_log();
                0
            }
            Change::Cluster(change) => unreachable!("shard 0 makes {change:?} alone"),
            Change::Shutdown { .. } => return self.begin_stop(now, number),
        };
        let result = Ok(count);
        self.core.send_node(0, NodeMessage::Applied { number, result });
    }

    fn change_settings(&mut self, now: Now, pairs: &[(&'static str, String)]) {
        for (name, value) in pairs {
            // They were checked before shard 0 was asked, and every shard has the same settings.
            self.core
                .settings
                .set(name, value)
                .expect("settings are checked before they are changed");
            let value = self.core.settings.get(name).unwrap_or_default();
            self.core.effects.push(Effect::Setting { name, value });
        }
        let changed = |name: &str| pairs.iter().any(|(changed, _)| *changed == name);
        if changed("maxmemory") {
            self.change_maxmemory();
        }
        if changed("maxmemory-policy") {
            self.core.home.set_evicts(self.core.settings.evicts());
        }
        self.change_cluster_settings(now);
        if changed("timeout") {
            self.sessions_where(|_| true)
                .iter()
                .for_each(|session| self.arm_idle_check(now, session.index));
        }
        if changed("appendfsync") || pairs.iter().any(|(name, _)| name.starts_with("auto-aof-rewrite")) {
            self.change_log_settings();
        }
    }

    /// Shard 0 switches the log on or off; whether the change is made only when that is done.
    fn log_switch_waits(&mut self, number: u64, pairs: &[(&'static str, String)]) -> bool {
        let mut waits = false;
        if self.core.shard == 0 && pairs.iter().any(|(name, _)| *name == "appendonly") {
            let on = self.core.settings.appendonly;
            self.keep(|keeper, acts| waits = keeper.want(on, number, acts));
        }
        waits
    }

    fn change_maxmemory(&mut self) {
        let bytes = self.core.settings.maxmemory;
        self.borrower.set_total(bytes);
        self.buffers.set_maxmemory(bytes);
        let Some(coordinator) = self.core.coordinator.as_mut() else {
            return;
        };
        let mut sent = Vec::new();
        coordinator.set_maxmemory(bytes, &mut |to, message| sent.push((to, message)));
        sent.into_iter()
            .for_each(|(to, message)| self.core.send_node(to, message));
    }

    /// CLIENT KILL of a session; one that killed itself gets its reply first.
    fn kill(&mut self, session: SessionId) {
        let place = &mut self.sessions[session.index];
        if place.waits_for_its_change() {
            place.close_after_reply();
        } else {
            self.core.close_later(session);
        }
    }

    /// CLIENT PAUSE only extends a pause (reference, 1.12).
    fn pause_clients(&mut self, now: Now, ms: u64, writes_only: bool) {
        let until = now.mono().after_ms(ms);
        let until = self.core.pause.map_or(until, |pause| pause.until.max(until));
        let writes_only = writes_only && self.core.pause.is_none_or(|pause| pause.writes_only);
        self.core.pause = Some(ClientPause { until, writes_only });
        if let Some(timer) = self.core.pause_timer.take() {
            self.core.timers.cancel(timer);
        }
        self.core.pause_timer = Some(self.core.timers.insert(until.0, SessionTimer::Pause));
    }

    /// The end of CLIENT PAUSE, by its timer or by CLIENT UNPAUSE.
    pub(super) fn end_pause(&mut self, now: Now) {
        self.core.pause = None;
        if let Some(timer) = self.core.pause_timer.take() {
            self.core.timers.cancel(timer);
        }
        for session in self.sessions_where(Session::is_paused) {
            self.with(now, session, |engine| engine.core.run_later(engine.session));
        }
    }

    /// The node stops: what is under way is answered, clients read their last replies, connections close.
    fn begin_stop(&mut self, now: Now, number: u64) {
        assert!(self.core.stopping.replace(number).is_none(), "a node stops once");
        if self.core.shard == 0 {
            self.core.effects.push(Effect::StopListening);
            self.core.effects.push(Effect::Log {
                level: LogLevel::Info,
                text: "stopping: no new connections".into(),
            });
        }
        let deadline = now.mono().after_ms(limits::STOP_GRACE_MS);
        self.core.timers.insert(deadline.0, SessionTimer::Stop);
        for session in self.sessions_where(|_| true) {
            self.with(now, session, |engine| engine.stop());
        }
        self.close_when_empty();
    }

    /// When the node stops: tells all shards that no session is left here and no job has to go back, once.
    pub(super) fn close_when_empty(&mut self) {
        if self.core.stopping.is_some()
            && self.sessions.is_empty()
            && self.core.returns.is_empty()
            && !std::mem::replace(&mut self.closed, true)
        {
            (0..self.core.shards).for_each(|shard| self.core.send_node(shard, NodeMessage::Closed));
        }
    }

    /// A shard has no session left. With the last one nothing comes back any more: shard 0 is told.
    pub(super) fn shard_closed(&mut self) {
        self.closed_shards += 1;
        if self.closed_shards == self.core.shards {
            let number = self.core.stopping.expect("shards close when the node stops");
            let result = Ok(0);
            self.core.send_node(0, NodeMessage::Applied { number, result });
        }
    }

    pub(super) fn sessions_where(&self, fits: impl Fn(&Session) -> bool) -> Vec<SessionId> {
        self.sessions
            .iter_from(0, u32::MAX)
            .map(|(_, session)| session)
            .filter(|s| fits(s))
            .map(|s| s.id)
            .collect()
    }
}
