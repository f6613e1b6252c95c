//! The end of a run: everything is let through, all that is there is received and removed, and nothing may be left.

use std::collections::BTreeSet;

use crate::load::{Command, Kind, words};
use crate::run::Run;
use crate::support::Reply;

/// Bytes that may be in use when no job, queue and client but one is left.
const EMPTY_BYTES: u64 = 20_000;

impl Run {
    /// Lets everything through. Nothing may be lost, nothing may be left.
    pub(crate) fn finish(&mut self) {
        self.note("the end begins".to_owned());
        self.node
            .clients
            .iter_mut()
            .for_each(|client| client.kernel_takes_all = true);
        for from in 0..self.plan.shards {
            (0..self.plan.shards).for_each(|to| self.node.delay_mesh(from, to, 0));
        }
        // Longer than any TIMEOUT.
        self.wait_ms(4_000);
        if self.plan.is_exact() {
            assert_eq!(
                self.node.watch.reference.starving(),
                Vec::<String>::new(),
                "somebody waits for what is there"
            );
        }
        while !self.actors.is_empty() {
            self.leave(0);
        }
        self.wait_ms(1_000);
        if self.flush_open {
            self.ledger.flushed_until_us = self.node.now.mono_us;
        }
        if self.plan.is_exact() {
            let unfinished = self.node.watch.reference.unfinished();
            assert!(
                unfinished.is_empty(),
                "reservations and GETJOBs are left over: {unfinished:?}"
            );
            self.check_undone();
        }
        self.connect();
        let client = self.actors[0].client;
        self.node.clients[client].kernel_takes_all = true;
        self.drain();
        let lost = self.ledger.lost(self.node.now.mono_us);
        assert!(lost.is_empty(), "lost: {lost:?}");
        self.empty();
    }

    fn ask(&mut self, text: &str, kind: Kind) -> Reply {
        self.send_one(0, Command::new(&words(text), kind));
        self.settle();
        self.look();
        self.last_reply.take().expect("it is answered")
    }

    /// Receives and acknowledges all that is there.
    fn drain(&mut self) {
        let queues = self.load.queues.clone();
        for queue in &queues {
            self.ask(&format!("PAUSE {queue} none"), Kind::Pause);
        }
        // Longer than any lease or delay.
        self.wait_ms(10_000);
        for id in self.ledger.at_most_once_ids() {
            self.ask(
                &format!("ENQUEUE {id}"),
                Kind::Ids {
                    count: 1,
                    removes: Vec::new(),
                },
            );
        }
        let get = format!("GETJOB NOHANG COUNT 100 FROM {}", queues.join(" "));
        let kind = Kind::GetJob {
            count: 100,
            ends_alone: true,
            timeout_ms: 0,
            with_counters: false,
        };
        while let Reply::Array(jobs) = self.ask(&get, kind.clone()) {
            for job in jobs {
                let Reply::Bulk(id) = &job.elements()[1] else {
                    panic!("a job has an ID")
                };
                let id = String::from_utf8(id.clone()).expect("an ID is text");
                let acknowledged = self.ask(
                    &format!("ACKJOB {id}"),
                    Kind::Ids {
                        count: 1,
                        removes: Vec::new(),
                    },
                );
                assert_eq!(acknowledged, Reply::Integer(1), "{id} was handed out");
                self.ledger.drained(id);
            }
        }
        for queue in &queues {
            assert_eq!(
                self.ask(&format!("QLEN {queue}"), Kind::Length),
                Reply::Integer(0),
                "{queue} is empty"
            );
        }
    }

    /// Removes what is left, and looks whether all memory has come back.
    fn empty(&mut self) {
        let left = self.all_jobs();
        if self.plan.is_exact() {
            let expected: BTreeSet<String> = self
                .node
                .watch
                .reference
                .job_ids()
                .iter()
                .map(ToString::to_string)
                .collect();
            assert_eq!(left, expected, "left JSCAN, right the reference");
        }
        for id in left {
            self.ask(
                &format!("DELJOB {id}"),
                Kind::Ids {
                    count: 1,
                    removes: Vec::new(),
                },
            );
        }
        assert_eq!(self.all_jobs(), BTreeSet::new(), "all jobs are deleted");
        // Longer than two lives of an idle queue.
        self.wait_ms(700_000);
        let Reply::Bulk(info) = self.ask("INFO memory", Kind::Info) else {
            panic!("INFO is text")
        };
        let info = String::from_utf8(info).expect("INFO is text");
        let used = info.lines().find_map(|line| line.strip_prefix("used_memory:"));
        let used: u64 = used
            .and_then(|used| used.trim().parse().ok())
            .expect("INFO tells the memory used");
        assert!(used < EMPTY_BYTES, "{used} bytes are in use by nothing");
    }

    fn all_jobs(&mut self) -> BTreeSet<String> {
        let reply = self.ask("JSCAN 0 BUSYLOOP", Kind::Scan);
        let ids = reply.elements()[1].elements().iter();
        ids.map(|id| {
            if let Reply::Simple(id) = id {
                id.clone()
            } else {
                panic!("no ID: {id}")
            }
        })
        .collect()
    }

    /// Of what was handed out, exactly that was undone which did not reach its client.
    fn check_undone(&mut self) {
        let undone: BTreeSet<String> = self
            .node
            .watch
            .undone
            .iter()
            .map(|handed| format!("{handed:?}"))
            .collect();
        assert_eq!(
            undone.len(),
            self.node.watch.undone.len(),
            "a handing out is undone once"
        );
        for handed in &self.delivered {
            assert!(
                !undone.contains(&format!("{handed:?}")),
                "{handed:?} reached its client and was undone"
            );
        }
        for died in std::mem::take(&mut self.died) {
            for (place, kind) in died
                .unanswered
                .iter()
                .enumerate()
                .filter(|(_, kind)| kind.asks_home())
            {
                let partial = if place == 0 { died.partial.as_slice() } else { &[] };
                if self.node.watch.rest_of(died.session).next().is_none() {
                    break;
                }
                let outcome = self.node.watch.next_outcome(died.session);
                let jobs = outcome.jobs().filter(|_| matches!(kind, Kind::GetJob { .. }));
                for (nth, job) in jobs.enumerate() {
                    let is_undone = undone.contains(&format!("{:?}", job.handed));
                    let id = job.handed.id;
                    if partial.is_empty() {
                        assert!(
                            is_undone,
                            "{:?} did not reach its client and was not undone",
                            job.handed
                        );
                    } else if !id.at_least_once() && (nth == 0 || contains(partial, &id.text())) {
                        assert!(!is_undone, "{id} reached its client in part and was undone");
                    }
                }
            }
        }
    }
}

fn contains(bytes: &[u8], part: &[u8]) -> bool {
    bytes.windows(part.len()).any(|window| window == part)
}
