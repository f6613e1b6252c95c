//! Hostile clients at the level of `Shard::handle`: no panic, bounded memory, and nobody else notices.
//!
//! Two shards, an honest client on each, and hostile ones that send random bytes, mutated commands, huge counts and lengths,
//! cut anywhere, down to one byte at a time, and vanish when they like. `SHARDQ_TEST_SCALE` makes more of it,
//! `SHARDQ_SEED` repeats one round.

#[path = "../support/mod.rs"]
mod support;

use shard::settings::Settings;
use support::{Blind, Chance, Node, Reply, number_from_environment, request};

/// Rounds at scale 1, and hostile inputs in each.
const ROUNDS: u64 = 60;
const INPUTS: usize = 250;
/// Budget of the node.
const MAXMEMORY: u64 = 2 << 20;
/// Above the budget: what hostile clients were sending when it was used up.
const SLACK_BYTES: u64 = 2 << 20;

/// Commands to begin with. Those that stop the node are left out.
const SEEDS: &[&str] = &[
    "ADDJOB q body 0 RETRY 1 TTL 2",
    "ADDJOB q body 0 DELAY 1 REPLICATE 1 MAXLEN 100 ASYNC",
    "GETJOB TIMEOUT 20 COUNT 10 WITHCOUNTERS FROM q r s t",
    "GETJOB NOHANG FROM q r",
    "ACKJOB D-4f4f4f4f-AAAAAAAAAAAAAAAAAAAAAAAA-05a1 D-4f4f4f4f-BAAAAAAAAAAAAAAAAAAAAAAA-05a1",
    "NACK D-4f4f4f4f-AAAAAAAAAAAAAAAAAAAAAAAA-05a1",
    "ENQUEUE D-4f4f4f4f-AAAAAAAAAAAAAAAAAAAAAAAA-05a1",
    "WORKING D-4f4f4f4f-AAAAAAAAAAAAAAAAAAAAAAAA-05a1",
    "SHOW D-4f4f4f4f-AAAAAAAAAAAAAAAAAAAAAAAA-05a1",
    "QPEEK q -9223372036854775808",
    "QSTAT q",
    "QLEN q",
    "QSCAN 0 COUNT 18446744073709551615",
    "QSCAN 18446744073709551615 BUSYLOOP",
    "JSCAN 4503599627370495 REPLY all STATE queued",
    "JSCAN COUNT -1 QUEUE q",
    "PAUSE r all",
    "PAUSE r none bcast",
    "HELLO 3 SETNAME x",
    "HELLO",
    "INFO",
    "CONFIG GET *",
    "CLIENT LIST",
    "CLIENT SETNAME x",
    "CLIENT REPLY SKIP",
    "CLIENT TRACKING on",
    "COMMAND INFO addjob getjob",
    "COMMAND DOCS",
    "SLOWLOG GET -1",
    "LATENCY HISTOGRAM",
    "MONITOR",
    "RESET",
    "SELECT 0",
    "CLUSTER NODES",
    "DEBUG SLEEP 0.001",
    "TIME",
    "QUIT",
];

struct Round {
    node: Node<Blind>,
    chance: Chance,
    honest: Vec<usize>,
    hostile: Vec<usize>,
}

impl Round {
    fn new(seed: u64) -> Self {
        let mut settings = Settings {
            maxmemory: MAXMEMORY,
            ..Settings::default()
        };
        settings
            .set_initial("client-output-buffer-limit", "normal 1mb 512kb 10")
            .expect("it is a setting");
        let mut node = Node::new(2, seed, &settings, Blind);
        // The invariants of jobs and queues are the model test's; here they are looked at now and then.
        node.checks = false;
        node.rest();
        let honest = vec![node.connect(), node.connect()];
        node.rest();
        Self {
            node,
            chance: Chance::new(seed),
            honest,
            hostile: Vec::new(),
        }
    }

    fn run(&mut self) {
        for input in 0..INPUTS {
            self.attack();
            if input % 10 == 0 {
                self.honest_work();
            }
        }
        for client in self.hostile.clone() {
            self.node.disconnect(client);
        }
        self.node.wait_us(10_000_000);
        self.honest_work();
        self.node.shards.iter().for_each(shard::shard::Shard::check);
    }

    fn attack(&mut self) {
        let open = |node: &Node<Blind>, client: &usize| node.clients[*client].open;
        self.hostile.retain(|client| open(&self.node, client));
        if self.hostile.len() < 4 || (self.hostile.len() < 12 && self.chance.percent(10)) {
            let client = self.node.connect();
            self.node.clients[client].kernel_takes_all = self.chance.percent(70);
            self.hostile.push(client);
        }
        let client = *self.chance.pick(&self.hostile);
        let bytes = self.bytes();
        self.node.send(client, &bytes);
        let least = if bytes.len() < 3_000 { 1 } else { 200 };
        let piece = *self.chance.pick(&[least, 7 * least, usize::MAX, usize::MAX]);
        while self.node.arrive(client, piece) > 0 {}
        match self.chance.below(20) {
            0 => self.node.disconnect(client),
            1 => self.node.half_close(client),
            2..8 => self.node.wait_us(self.chance.between(0, 30_000)),
            _ => self.node.rest(),
        }
    }

    fn bytes(&mut self) -> Vec<u8> {
        let chance = &mut self.chance;
        match chance.below(12) {
            0 => (0..chance.between(1, 200)).map(|_| chance.next() as u8).collect(),
            1 => announcement(chance),
            2 => many_arguments(chance),
            3 => vec![*chance.pick(b"*$\r\n0a\0\"'"); chance.between(1, 70_000) as usize],
            4..6 => format!("{}\r\n", chance.pick(SEEDS)).into_bytes(),
            6..8 => {
                let words: Vec<&str> = chance.pick(SEEDS).split(' ').collect();
                (0..chance.between(1, 30)).flat_map(|_| request(&words)).collect()
            }
            _ => {
                let mut words: Vec<Vec<u8>> = chance
                    .pick(SEEDS)
                    .split(' ')
                    .map(|word| word.as_bytes().to_vec())
                    .collect();
                mutate_words(&mut words, chance);
                let mut bytes = request(&words);
                if chance.percent(40) {
                    let at = chance.below(bytes.len());
                    bytes[at] = chance.next() as u8;
                }
                if chance.percent(10) {
                    bytes.truncate(chance.below(bytes.len()));
                }
                bytes
            }
        }
    }

    /// What honest clients ask is answered, at once and rightly, and memory is bounded.
    fn honest_work(&mut self) {
        for at in 0..self.honest.len() {
            let client = self.honest[at];
            assert_eq!(
                self.ask(client, &["PING", "still here"]),
                Reply::Bulk(b"still here".to_vec())
            );
            let queue = format!("honest{at}");
            let added = self.ask(client, &["ADDJOB", &queue, "work", "0", "RETRY", "60"]);
            if let Reply::Simple(id) = added {
                let got = self.ask(client, &["GETJOB", "NOHANG", "FROM", &queue]);
                assert_eq!(
                    got.elements()[0].elements()[1],
                    Reply::Bulk(id.clone().into_bytes())
                );
                assert_eq!(self.ask(client, &["ACKJOB", &id]), Reply::Integer(1));
            } else {
                assert!(
                    matches!(&added, Reply::Error(text) if text.starts_with("OOM")),
                    "{added}"
                );
            }
        }
        let Reply::Bulk(info) = self.ask(self.honest[0], &["INFO", "memory"]) else {
            panic!("INFO is text")
        };
        let info = String::from_utf8(info).expect("INFO is text");
        let used = info
            .lines()
            .find_map(|line| line.strip_prefix("used_memory:"))
            .expect("INFO tells the memory used");
        let used: u64 = used.trim().parse().expect("it is a number");
        assert!(used < MAXMEMORY + SLACK_BYTES, "{used} bytes are in use");
    }

    fn ask(&mut self, client: usize, words: &[&str]) -> Reply {
        self.node.send(client, &request(words));
        self.node.rest();
        let place = &mut self.node.clients[client];
        assert!(place.open, "an honest client was cut off");
        place
            .next_reply()
            .unwrap_or_else(|| panic!("an honest client is answered at once: {words:?}"))
    }
}

/// Announces far more than it sends.
fn announcement(chance: &mut Chance) -> Vec<u8> {
    let texts = [
        "*1048576\r\n",
        "*1048577\r\n",
        "*2147483647\r\n$3\r\n",
        "*-9223372036854775808\r\n",
        "*3\r\n$536870912\r\nabc",
        "*3\r\n$536870913\r\n",
        "*1\r\n$99999999999999999999\r\n",
        "*1\r\n$-1\r\n",
        "*0\r\n*0\r\n*0\r\n",
        "*2\r\n*2\r\n*2\r\n",
        "*1\r\n$4\r\nPINGxx",
        "ADDJOB \"q\\xff\\x00\" 'a\\'b' 0\r\n",
        "ADDJOB \"unbalanced\r\n",
    ];
    chance.pick(&texts).as_bytes().to_vec()
}

/// A command with very many words.
fn many_arguments(chance: &mut Chance) -> Vec<u8> {
    let name = *chance.pick(&["ACKJOB", "GETJOB", "PAUSE", "COMMAND", "CONFIG", "DEQUEUE"]);
    let word = *chance.pick(&["", "q", "FROM", "D-4f4f4f4f-AAAAAAAAAAAAAAAAAAAAAAAA-05a1"]);
    let mut words = vec![name, if name == "GETJOB" { "FROM" } else { word }];
    words.extend((0..chance.between(1, 3000)).map(|_| word));
    request(&words)
}

fn mutate_words(words: &mut Vec<Vec<u8>>, chance: &mut Chance) {
    let values: [&[u8]; 12] = [
        b"",
        b"0",
        b"-1",
        b"9223372036854775807",
        b"9223372036854775808",
        b"-9223372036854775809",
        b"\0",
        b"5\0x",
        b"FROM",
        b"q",
        b"\xff\xfe\r\n",
        b"4503599627370496",
    ];
    for _ in 0..chance.between(1, 3) {
        let at = chance.below(words.len() + 1);
        let value = chance.pick(&values).to_vec();
        match chance.below(5) {
            0 => words.insert(at, value),
            1 if words.len() > 1 => drop(words.remove(at.min(words.len() - 1))),
            2 => words.insert(at, vec![b'x'; chance.between(0, 40_000) as usize]),
            _ => {
                let last = words.len() - 1;
                words[at.min(last)] = value;
            }
        }
    }
}

#[test]
fn hostile_clients_harm_nobody() {
    if let Some(seed) = number_from_environment("SHARDQ_SEED") {
        return Round::new(seed).run();
    }
    let rounds = ROUNDS * number_from_environment("SHARDQ_TEST_SCALE").unwrap_or(1);
    for seed in 0..rounds {
        println!("SHARDQ_SEED={seed}");
        Round::new(seed).run();
    }
}
