//! Clients of a cluster: producers and consumers, each on a connection of its own, which go to another node when theirs does not answer.

use std::ops::RangeInclusive;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use tools::address::Address;
use tools::client::Client;
use tools::reply::Reply;

use super::fleet::Fleet;
use super::ledger::{Ledger, Once, Terms};
use super::support::chance::Chance;
use super::support::{PATIENCE, call, eventually, jobs};

const QUEUES: [&str; 6] = ["a", "b", "c", "d", "e", "f"];
/// How long an ADDJOB may wait for its copies, milliseconds.
const ADD_MS: u64 = 2_000;

/// What clients do.
#[derive(Clone)]
pub struct Work {
    pub producers: usize,
    pub consumers: usize,
    /// REPLICATE of the jobs, but for those of RETRY 0, which have no copies.
    pub copies: RangeInclusive<u64>,
    pub retry_s: u64,
    /// Percent of the jobs that are to be handed out at most once.
    pub once_percent: u64,
    /// Nothing happens to the nodes in the meantime.
    pub quiet: bool,
    /// How long an answer may take before the client goes elsewhere.
    pub answer: Duration,
}

impl Work {
    /// While nothing happens to the nodes.
    pub fn quiet(copies: RangeInclusive<u64>) -> Self {
        Self {
            producers: 3,
            consumers: 3,
            copies,
            retry_s: 60,
            once_percent: 20,
            quiet: true,
            answer: PATIENCE,
        }
    }

    /// While nodes are killed, stopped or parted.
    pub fn in_trouble(copies: RangeInclusive<u64>) -> Self {
        Self {
            retry_s: 2,
            quiet: false,
            ..Self::quiet(copies)
        }
    }

    /// Clients go elsewhere when they get no answer.
    pub fn impatient(self) -> Self {
        Self {
            answer: Duration::from_millis(ADD_MS + 500),
            ..self
        }
    }
}

/// The ledger that all clients of a test share.
pub type Shared = Arc<Mutex<Ledger>>;

pub fn lock(ledger: &Shared) -> MutexGuard<'_, Ledger> {
    // Who found something wrong panicked with it; that test fails anyway.
    ledger.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

/// Clients at work.
pub struct Clients {
    stop: Arc<AtomicBool>,
    added: Arc<AtomicUsize>,
    threads: Vec<JoinHandle<()>>,
}

impl Clients {
    /// Sets clients to work at these addresses.
    pub fn work(ledger: &Shared, addresses: &[Address], work: &Work, seed: u64) -> Self {
        let (stop, added) = (Arc::<AtomicBool>::default(), Arc::<AtomicUsize>::default());
        let threads: Vec<JoinHandle<()>> = (0..work.producers + work.consumers)
            .map(|number| {
                let mut worker = Worker {
                    ledger: Arc::clone(ledger),
                    addresses: addresses.to_vec(),
                    at: number % addresses.len(),
                    client: None,
                    chance: Chance::new(seed * 100 + number as u64),
                    work: work.clone(),
                };
                let (stop, added) = (Arc::clone(&stop), Arc::clone(&added));
                let produces = number < work.producers;
                std::thread::spawn(move || {
                    while !stop.load(Ordering::Relaxed) {
                        if produces {
                            worker.add();
                            added.fetch_add(1, Ordering::Relaxed);
                            // The machine is for the servers.
                            std::thread::sleep(Duration::from_millis(2));
                        } else {
                            worker.take(100);
                        }
                    }
                })
            })
            .collect();
        Self { stop, added, threads }
    }

    /// Waits until so many jobs more were added, or tried to be.
    pub fn wait_for(&self, jobs: usize) {
        let from = self.added.load(Ordering::Relaxed);
        eventually("clients add jobs", || {
            self.threads.iter().all(|thread| !thread.is_finished())
                && self.added.load(Ordering::Relaxed) >= from + jobs
        });
    }

    /// Ends their work.
    pub fn stop(self) {
        self.stop.store(true, Ordering::Relaxed);
        for thread in self.threads {
            thread.join().expect("a client found nothing wrong");
        }
    }
}

/// Clients add and take so many jobs while nothing happens: each comes once, and nothing is left.
pub fn work_quietly(fleet: &Fleet, copies: RangeInclusive<u64>, count: usize, seed: u64) {
    let ledger = Shared::default();
    let addresses = fleet.addresses(0..fleet.count());
    let clients = Clients::work(&ledger, &addresses, &Work::quiet(copies), seed);
    clients.wait_for(count);
    clients.stop();
    let said = drain(fleet, &ledger, Once::AllCome);
    println!("quiet: {said}");
}

/// Takes all that there is, on all nodes, until everything has come that must and no node has anything left; what happened, in a line.
pub fn drain(fleet: &Fleet, ledger: &Shared, once: Once) -> String {
    let addresses = fleet.addresses(0..fleet.count());
    let mut workers: Vec<Worker> = (0..fleet.count())
        .map(|at| Worker {
            ledger: Arc::clone(ledger),
            addresses: addresses.clone(),
            at,
            client: None,
            chance: Chance::new(at as u64),
            work: Work::quiet(1..=1),
        })
        .collect();
    let deadline = Instant::now() + PATIENCE;
    while !(lock(ledger).all_came(once) && fleet.is_empty()) && Instant::now() < deadline {
        for (node, worker) in workers.iter_mut().enumerate() {
            worker.go_to(node);
            worker.take(20);
        }
        if once == Once::MayBeLost && lock(ledger).all_came(once) {
            sweep_handed_out_once(fleet);
        }
    }
    if !lock(ledger).all_came(once) {
        println!("not all came:\n{}", left(fleet));
    }
    let text = lock(ledger).check(once);
    assert!(
        fleet.is_empty(),
        "all came, and something is left: {text}\n{}",
        left(fleet)
    );
    text
}

/// What the nodes still have, some of it.
fn left(fleet: &Fleet) -> String {
    let mut text = String::new();
    for node in 0..fleet.count() {
        let acked = fleet.number(node, "jobs", "acked_jobs");
        text += &format!("node {node}, {}: {acked} acked\n", fleet.id(node));
        for job in scan(fleet, node).iter().take(5) {
            text += &format!("  {}\n", job.join(" "));
        }
    }
    text
}

/// Jobs of RETRY 0 that were handed out in vain, or whose ACKJOB came to nothing, stay for the length of their lives: they are taken away.
fn sweep_handed_out_once(fleet: &Fleet) {
    for node in 0..fleet.count() {
        for job in scan(fleet, node) {
            let field = |name: &str| job.iter().skip_while(|word| *word != name).nth(1).cloned();
            let is_once = field("retry").is_some_and(|retry| retry == "0");
            if is_once && field("state").is_some_and(|state| state == "active") {
                let id = field("id").expect("a job has an ID");
                call(&mut fleet.server(node).client(), &format!("DELJOB {id}"));
            }
        }
    }
}

/// The jobs of a node, each as words.
fn scan(fleet: &Fleet, node: usize) -> Vec<Vec<String>> {
    let reply = call(
        &mut fleet.server(node).client(),
        "JSCAN 0 COUNT 100000 BUSYLOOP REPLY all",
    );
    let page = reply.array().expect("a page");
    let word = |field: &Reply| match field {
        Reply::Integer(number) => number.to_string(),
        Reply::Array(each) => format!(
            "[{}]",
            each.iter().filter_map(Reply::text).collect::<Vec<_>>().join(" ")
        ),
        field => field.text().unwrap_or("-").to_owned(),
    };
    let jobs = page[1].array().expect("jobs").iter();
    jobs.map(|job| job.array().expect("a job").iter().map(word).collect())
        .collect()
}

struct Worker {
    ledger: Shared,
    addresses: Vec<Address>,
    at: usize,
    client: Option<Client>,
    chance: Chance,
    work: Work,
}

impl Worker {
    /// An answer, unless the connection breaks; then the next one goes elsewhere.
    fn call(&mut self, line: &str) -> Option<Reply> {
        if self.client.is_none() {
            self.client = Client::connect(&self.addresses[self.at], self.work.answer).ok();
        }
        let words: Vec<&str> = line.split_ascii_whitespace().collect();
        let reply = self.client.as_mut().and_then(|client| client.call(&words).ok());
        if reply.is_none() {
            self.client = None;
            self.at = self.chance.below(self.addresses.len());
            std::thread::sleep(Duration::from_millis(10));
        }
        reply
    }

    /// Talks to this node from now on.
    fn go_to(&mut self, node: usize) {
        if self.at != node {
            (self.client, self.at) = (None, node);
        }
    }

    fn add(&mut self) {
        let once = self.chance.percent(self.work.once_percent);
        let copies = self
            .chance
            .between(*self.work.copies.start(), *self.work.copies.end());
        let terms = Terms {
            copies: if once { 1 } else { copies as usize },
            retry_s: if once { 0 } else { self.work.retry_s },
            quiet: self.work.quiet,
        };
        let body = lock(&self.ledger).adding(terms);
        let queue = self.chance.pick(&QUEUES);
        let Terms { copies, retry_s, .. } = terms;
        let line = format!("ADDJOB {queue} {body} {ADD_MS} REPLICATE {copies} RETRY {retry_s}");
        match self.call(&line) {
            Some(Reply::Simple(id)) => lock(&self.ledger).added(&body, &id),
            Some(Reply::Error(text)) if is_of_trouble(&text) && !self.work.quiet => {}
            Some(reply) => panic!("{line}: {reply:?}"),
            None => {}
        }
    }

    /// Takes what there is, or comes, within a time, and acknowledges it.
    fn take(&mut self, timeout_ms: u64) {
        let sent = Instant::now();
        let node = self.at;
        let had_client = self.client.is_some();
        let line = format!("GETJOB TIMEOUT {timeout_ms} COUNT 5 FROM {}", QUEUES.join(" "));
        let Some(reply) = self.call(&line) else {
            if had_client {
                lock(&self.ledger).broken();
            }
            return;
        };
        assert!(
            reply.error().is_none_or(|text| text.starts_with("LOADING")),
            "{line}: {reply:?}"
        );
        let mut to_acknowledge = Vec::new();
        for (_, id, body) in jobs(&reply) {
            let terms = lock(&self.ledger).delivered(&body, &id, sent, node);
            to_acknowledge.push((!terms.at_most_once(), id));
        }
        // Of a job of RETRY 0 only the node knows that handed it out.
        to_acknowledge.sort();
        for (may_go_elsewhere, id) in to_acknowledge {
            if may_go_elsewhere && self.chance.percent(10) {
                // Another node may not know the job at all.
                let node = self.chance.below(self.addresses.len());
                self.go_to(node);
            }
            match self.call(&format!("ACKJOB {id}")) {
                Some(Reply::Integer(_)) => lock(&self.ledger).acknowledged(&id),
                // The node that was killed is back, and not yet ready: the job comes again.
                Some(Reply::Error(text)) if text.starts_with("LOADING") && !self.work.quiet => {}
                Some(reply) => panic!("ACKJOB {id}: {reply:?}"),
                None => {}
            }
        }
    }
}

/// Whether an ADDJOB may end so when nodes are gone, or read their logs.
fn is_of_trouble(text: &str) -> bool {
    text.starts_with("NOREPL") || text.starts_with("LOADING")
}
