//! The end of a run: everything is whole again, and everything that was promised comes out and is gone.

use std::collections::BTreeSet;

use shard::id::JobId;

use crate::load::{Kind, LATE_S};
use crate::run::Run;
use crate::support::{Reply, request};

/// How long a client waits for an answer about a node.
const PATIENCE_US: u64 = 60_000_000;

/// Within this time all nodes know each other again.
const TOGETHER_US: u64 = 120_000_000;

/// How often all queues are opened, until all of them stay open.
const OPEN_TRIES: u32 = 10;

/// After this time what is left waits for the end of its delay or lease, and is asked for less often.
const HASTE_US: u64 = 60_000_000;

/// Between two looks at what is left.
const LOOK_US: u64 = 2_000_000;

/// After this time, and the longest delay, whatever was to be handed out at most once, and is still there, is acknowledged: nobody knows where
/// it went.
const ONCE_US: u64 = 100_000_000;

/// By then nothing is left.
const MOST_US: u64 = 1_200_000_000;

impl Run {
    /// What went wrong, seen from the end.
    pub fn end(&mut self) -> Result<(), String> {
        self.count_external()?;
        self.troubles.end(&mut self.chance, &mut self.world);
        // What clients still have in mind, and what they wait for.
        self.pass(5_000_000)?;
        self.forget_all();
        self.all_come_back();
        while !self.actors.is_empty() {
            self.leave(self.actors.len() - 1);
        }
        let us = self.world.timeout_us + 5_000_000;
        self.pass(us)?;
        self.come_together(TOGETHER_US)?;
        self.open_all()?;
        self.ending = true;
        // Consumers everywhere, or on one node, which all jobs have to come to: not one that may have no memory for them.
        let count = self.world.hosts.len();
        let at_one = self.chance.percent(50).then(|| self.chance.below(count));
        let at_one = at_one.filter(|&one| self.world.hosts[one].plan.settings.maxmemory == 0);
        let hosts: Vec<usize> = (0..count)
            .filter(|&host| at_one.is_none_or(|one| one == host))
            .collect();
        let begin_us = self.world.now_us();
        let late_us = if self.load.taste.late > 0 {
            LATE_S.1 * 1_000_000
        } else {
            0
        };
        let mut all_acknowledged = false;
        loop {
            let end_us = self.world.now_us() + LOOK_US;
            while self.world.now_us() < end_us {
                self.fetch_all(&hosts);
                let is_late = self.world.now_us() > begin_us + HASTE_US;
                self.pass(if is_late { 1_000_000 } else { 200_000 })?;
            }
            self.operate()?;
            let left = self.jobs_left()?;
            let now_us = self.world.now_us();
            if left.iter().sum::<u64>() == 0 {
                break;
            }
            if now_us > begin_us + late_us + ONCE_US && !std::mem::replace(&mut all_acknowledged, true) {
                self.ledger.conclude(now_us)?;
                self.acknowledge_once()?;
            }
            if now_us > begin_us + late_us + MOST_US {
                self.ledger.conclude(now_us)?;
                return Err(format!("jobs are left: {left:?}, {}", self.show_left()?));
            }
        }
        for host in &self.world.hosts {
            let machine = host.machine.as_ref().expect("all are up");
            machine.node.shards.iter().for_each(|shard| shard.check());
        }
        // The last replies may wait for a disk.
        self.pass(LOOK_US)?;
        for actor in &self.actors {
            let unanswered = actor
                .under_way
                .iter()
                .find(|open| !matches!(open.kind, Kind::Get(_)));
            if let Some(open) = unanswered {
                return Err(format!("node {} never answered {open:?}", actor.host));
            }
        }
        self.ledger.conclude(self.world.now_us())
    }

    /// No queue is paused any more: what one node says goes to all.
    fn open_all(&mut self) -> Result<(), String> {
        if self.load.taste.pauses == 0 {
            return Ok(());
        }
        for _ in 0..OPEN_TRIES {
            let mut is_open = true;
            for host in 0..self.world.hosts.len() {
                for queue in self.load.queues.clone() {
                    let state = self.ask(host, &["PAUSE", &queue, "state"])?;
                    if state != Reply::Simple("none".to_owned()) {
                        is_open = false;
                        self.ask(host, &["PAUSE", &queue, "none", "bcast"])?;
                    }
                }
            }
            if is_open {
                return Ok(());
            }
            self.pass(LOOK_US)?;
        }
        Err("queues stay paused".to_owned())
    }

    /// A client of each of these nodes asks for jobs; what comes is acknowledged at once, somewhere.
    fn fetch_all(&mut self, hosts: &[usize]) {
        let queues: Vec<usize> = (0..self.load.queues.len()).collect();
        for &host in hosts {
            let found = self.actors.iter().position(|actor| actor.host == host);
            let at = found.unwrap_or_else(|| self.connect_to(host));
            if self.actors[at].under_way.is_empty() {
                let (kind, bytes) = self.load.get_from(queues.clone(), Some(1_000), 20);
                self.send_on(at, kind, &bytes);
            }
        }
    }

    /// What an operator asks, whose connection is not closed where memory is short.
    pub fn ask(&mut self, host: usize, words: &[&str]) -> Result<Reply, String> {
        let node = &mut self.world.node(host).node;
        let client = node.connect();
        let stays = request(&["CLIENT", "NO-EVICT", "on"]);
        node.send(client, &[stays, request(words)].concat());
        let mut is_first = true;
        self.world.stepped(host, 0);
        let end_us = self.world.now_us() + PATIENCE_US;
        loop {
            if let Some(reply) = self.world.node(host).node.clients[client].next_reply() {
                if std::mem::take(&mut is_first) {
                    continue;
                }
                self.world.node(host).node.disconnect(client);
                self.world.touched(host);
                return Ok(reply);
            }
            if !self.world.event(end_us) {
                return Err(format!("node {host} does not answer {words:?}"));
            }
        }
    }

    /// Numbers of a section of INFO.
    fn info<const N: usize>(
        &mut self,
        host: usize,
        section: &str,
        names: [&str; N],
    ) -> Result<[u64; N], String> {
        let Reply::Bulk(text) = self.ask(host, &["INFO", section])? else {
            return Err("INFO is a text".to_owned());
        };
        let text = String::from_utf8_lossy(&text).into_owned();
        let number = |name: &str| -> Option<u64> {
            let mut lines = text.lines();
            lines.find_map(|line| line.strip_prefix(name)?.parse().ok())
        };
        let numbers: Option<Vec<u64>> = names.iter().map(|name| number(name)).collect();
        let numbers = numbers.ok_or_else(|| format!("INFO {section} has {names:?}"))?;
        Ok(numbers.try_into().expect("one for each"))
    }

    /// Counts the jobs that went to other nodes since memory was short, as far as those that added them live.
    fn count_external(&mut self) -> Result<(), String> {
        for host in self.world.up() {
            let [placed] = self.info(host, "stats", ["jobs_placed_elsewhere:"])?;
            self.ledger.count_more("external", placed);
        }
        Ok(())
    }

    /// Jobs that each node has, in whatever state, those included whose acknowledgement is not known everywhere.
    fn jobs_left(&mut self) -> Result<Vec<u64>, String> {
        let mut left = Vec::new();
        for host in 0..self.world.hosts.len() {
            let [jobs, acked] = self.info(host, "jobs", ["registered_jobs:", "acked_jobs:"])?;
            left.push(jobs + acked);
        }
        Ok(left)
    }

    pub fn ids_left(&mut self, host: usize) -> Result<Vec<String>, String> {
        let found = self.ask(host, &["JSCAN", "0", "BUSYLOOP"])?;
        let ids = found.elements().get(1).map_or(&[][..], Reply::elements);
        let text = |id: &Reply| match id {
            Reply::Simple(text) => Ok(text.clone()),
            Reply::Bulk(text) => Ok(String::from_utf8_lossy(text).into_owned()),
            other => Err(format!("no ID: {other}")),
        };
        ids.iter().map(text).collect()
    }

    fn acknowledge_once(&mut self) -> Result<(), String> {
        for host in 0..self.world.hosts.len() {
            let ids = self.ids_left(host)?;
            let once = |id: &String| JobId::parse(id.as_bytes()).is_some_and(|id| !id.at_least_once());
            for id in ids.into_iter().filter(once) {
                self.ask(host, &["ACKJOB", &id])?;
            }
        }
        Ok(())
    }

    /// The first few jobs that are left, as their nodes show them.
    fn show_left(&mut self) -> Result<String, String> {
        let mut shown = BTreeSet::new();
        for host in 0..self.world.hosts.len() {
            for id in self.ids_left(host)?.into_iter().take(2) {
                let reply = self.ask(host, &["SHOW", &id])?;
                shown.insert(format!("node {host}: {reply}"));
            }
        }
        Ok(shown.into_iter().collect::<Vec<_>>().join("; "))
    }
}
