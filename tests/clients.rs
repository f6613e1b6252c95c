//! A client library that people use, the `redis` crate, does everything that a worker and an administrator do.
//!
//! Each test runs in RESP2 and in RESP3: the library opens its connection by itself (HELLO 3, AUTH, CLIENT SETINFO), decodes by its own code,
//! and so finds what a client written by us would not.

mod support;

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use redis::{Connection, RedisResult, Value, cmd};
use support::{PATIENCE, Server, Setup, eventually};
use tools::address::Address;
use tools::client::Client;

const PROTOCOLS: [&str; 2] = ["resp2", "resp3"];

type Job = (String, String, Vec<u8>);

fn connect_as(server: &Server, user: &str, protocol: &str) -> RedisResult<Connection> {
    let url = format!("redis://{user}127.0.0.1:{}/?protocol={protocol}", server.port());
    let connection = redis::Client::open(url)?.get_connection_with_timeout(PATIENCE)?;
    connection.set_read_timeout(Some(PATIENCE))?;
    Ok(connection)
}

fn connect(server: &Server, protocol: &str) -> Connection {
    connect_as(server, "", protocol).expect("the library connects")
}

/// Runs a command given as words separated by blanks.
fn run<T: redis::FromRedisValue>(connection: &mut Connection, line: &str) -> RedisResult<T> {
    let mut words = line.split_ascii_whitespace();
    let mut command = cmd(words.next().expect("a name"));
    words.for_each(|word| {
        command.arg(word);
    });
    command.query(connection)
}

fn get<T: redis::FromRedisValue>(connection: &mut Connection, line: &str) -> T {
    run(connection, line).unwrap_or_else(|error| panic!("{line}: {error}"))
}

/// The code word of the error that a command is refused with.
fn refusal(connection: &mut Connection, line: &str) -> String {
    let error = run::<Value>(connection, line).expect_err(line);
    error.code().unwrap_or_default().to_owned()
}

/// The pairs of SHOW or QSTAT.
fn pairs(value: Vec<Value>) -> BTreeMap<String, Value> {
    let mut pairs = BTreeMap::new();
    for pair in value.chunks(2) {
        pairs.insert(
            redis::from_redis_value(&pair[0]).expect("names are text"),
            pair[1].clone(),
        );
    }
    pairs
}

/// A job of GETJOB WITHCOUNTERS.
type Counted = (String, String, Vec<u8>, String, i64, String, i64);

#[test]
fn a_job_is_added_fetched_and_acknowledged() {
    let server = Server::start("--shards 2");
    for protocol in PROTOCOLS {
        let mut connection = connect(&server, protocol);
        let body = b"\0\xff\r\nbody".as_slice();
        let mut add = cmd("ADDJOB");
        let id: String = add
            .arg("q")
            .arg(body)
            .arg(0)
            .query(&mut connection)
            .expect("accepted");
        assert_eq!(id.len(), 40);
        let jobs: Vec<Job> = get(&mut connection, "GETJOB FROM empty q");
        assert_eq!(jobs, [("q".to_owned(), id.clone(), body.to_vec())]);
        assert_eq!(get::<i64>(&mut connection, &format!("ACKJOB {id}")), 1);
        let none: Option<Vec<Job>> = get(&mut connection, "GETJOB NOHANG FROM q empty");
        assert_eq!(none, None);
        assert_eq!(get::<Value>(&mut connection, &format!("SHOW {id}")), Value::Nil);
        let hello: Vec<Value> = get(&mut connection, "HELLO");
        let node: Vec<String> = redis::from_redis_value(&hello[2]).expect("a node");
        assert!(id.starts_with(&format!("D-{}-", &node[0][..8])));
    }
}

#[test]
fn a_blocked_fetch_gets_the_job_that_comes() {
    let server = Server::start("--shards 2");
    for protocol in PROTOCOLS {
        let mut adder = connect(&server, protocol);
        let waiter = {
            let mut connection = connect(&server, protocol);
            std::thread::spawn(move || {
                get::<Vec<Job>>(&mut connection, "GETJOB TIMEOUT 50000 COUNT 3 FROM a b c d")
            })
        };
        eventually("it waits", || server.info("clients", "blocked_clients") == "1");
        let id: String = get(&mut adder, "ADDJOB c woken 0");
        let jobs = waiter.join().expect("the waiter ends well");
        assert_eq!(jobs, [("c".to_owned(), id, b"woken".to_vec())]);
    }
}

#[test]
fn delays_and_retries_keep_their_time() {
    let server = Server::start("--shards 2");
    std::thread::scope(|scope| {
        for protocol in PROTOCOLS {
            let server = &server;
            scope.spawn(move || {
                let mut connection = connect(server, protocol);
                let queue = format!("times-{protocol}");
                let start = Instant::now();
                let id: String = get(&mut connection, &format!("ADDJOB {queue} b 0 DELAY 1 RETRY 1"));
                let jobs: Vec<Job> = get(&mut connection, &format!("GETJOB FROM {queue}"));
                assert_eq!(jobs[0].1, id);
                assert!(
                    start.elapsed() >= Duration::from_millis(990),
                    "early: {:?}",
                    start.elapsed()
                );
                let fetched = Instant::now();
                let again: Vec<Counted> = get(&mut connection, &format!("GETJOB WITHCOUNTERS FROM {queue}"));
                assert_eq!((&again[0].1, again[0].4, again[0].6), (&id, 0, 1));
                // The lease began a little before the reply of the first GETJOB was here.
                assert!(
                    fetched.elapsed() >= Duration::from_millis(700),
                    "early: {:?}",
                    fetched.elapsed()
                );
            });
        }
    });
}

#[test]
fn nack_working_and_show() {
    let server = Server::start("--shards 2");
    for protocol in PROTOCOLS {
        let mut connection = connect(&server, protocol);
        let id: String = get(&mut connection, "ADDJOB q body 0 RETRY 50 TTL 5000");
        let _: Vec<Job> = get(&mut connection, "GETJOB FROM q");
        assert_eq!(get::<i64>(&mut connection, &format!("WORKING {id}")), 50);
        let show = pairs(get(&mut connection, &format!("SHOW {id}")));
        assert_eq!(show["state"], Value::BulkString(b"active".to_vec()));
        let requeue_ms: i64 = redis::from_redis_value(&show["next-requeue-within"]).expect("leased");
        assert!((20_000..=50_250).contains(&requeue_ms), "{requeue_ms}");
        assert_eq!(get::<i64>(&mut connection, &format!("NACK {id}")), 1);
        let show = pairs(get(&mut connection, &format!("SHOW {id}")));
        assert_eq!(
            (&show["state"], &show["nacks"]),
            (&Value::BulkString(b"queued".to_vec()), &Value::Int(1))
        );
        assert_eq!(get::<i64>(&mut connection, &format!("FASTACK {id}")), 1);
        assert_eq!(refusal(&mut connection, &format!("WORKING {id}")), "NOJOB");
        assert_eq!(refusal(&mut connection, "SHOW nonsense"), "BADID");
    }
}

#[test]
fn queues_are_described_and_paused() {
    let server = Server::start("--shards 3");
    for protocol in PROTOCOLS {
        let mut connection = connect(&server, protocol);
        let queue = format!("q-{protocol}");
        let ids: Vec<String> = (0..5)
            .map(|number| get(&mut connection, &format!("ADDJOB {queue} {number} 0")))
            .collect();
        let peeked: Vec<Job> = get(&mut connection, &format!("QPEEK {queue} 2"));
        assert_eq!(
            peeked.iter().map(|job| &job.1).collect::<Vec<_>>(),
            [&ids[0], &ids[1]]
        );
        let newest: Vec<Job> = get(&mut connection, &format!("QPEEK {queue} -1"));
        assert_eq!(newest[0].1, ids[4]);
        let stat = pairs(get(&mut connection, &format!("QSTAT {queue}")));
        assert_eq!(
            (&stat["len"], &stat["jobs-in"], &stat["jobs-out"]),
            (&Value::Int(5), &Value::Int(5), &Value::Int(0))
        );
        assert_eq!(
            get::<String>(&mut connection, &format!("PAUSE {queue} all")),
            "all"
        );
        assert_eq!(refusal(&mut connection, &format!("ADDJOB {queue} b 0")), "PAUSED");
        assert_eq!(
            get::<Option<Vec<Job>>>(&mut connection, &format!("GETJOB NOHANG FROM {queue}")),
            None
        );
        assert_eq!(
            get::<String>(&mut connection, &format!("PAUSE {queue} none")),
            "none"
        );
        assert_eq!(
            get::<Vec<Job>>(&mut connection, &format!("GETJOB COUNT 10 FROM {queue}")).len(),
            5
        );
        assert_eq!(get::<i64>(&mut connection, &format!("QLEN {queue}")), 0);
    }
}

#[test]
fn the_first_page_of_a_scan_holds_a_hundred_over_all_shards() {
    let server = Server::start("--shards 3");
    let mut connection = connect(&server, "resp3");
    for number in 0..90 {
        let _: String = get(&mut connection, &format!("ADDJOB queue-{number} b 0"));
    }
    let (cursor, names): (String, Vec<String>) = get(&mut connection, "QSCAN");
    let distinct: BTreeSet<&String> = names.iter().collect();
    assert_eq!((cursor.as_str(), names.len(), distinct.len()), ("0", 90, 90));
    let (cursor, ids): (String, Vec<String>) = get(&mut connection, "JSCAN");
    assert_eq!((cursor.as_str(), ids.len()), ("0", 90));
}

#[test]
fn a_scan_of_many_pages_finds_everything() {
    let server = Server::start("--shards 2");
    for (protocol, command) in [("resp2", "QSCAN"), ("resp3", "JSCAN")] {
        let mut connection = connect(&server, protocol);
        let _: String = get(&mut connection, "DEBUG FLUSHALL");
        let mut pipeline = redis::pipe();
        for number in 0..1000 {
            pipeline
                .cmd("ADDJOB")
                .arg(format!("queue-{number}"))
                .arg("b")
                .arg(0);
        }
        let ids: BTreeSet<String> = pipeline.query(&mut connection).expect("accepted");
        let (mut cursor, mut found, mut pages) = ("0".to_owned(), BTreeSet::new(), 0);
        loop {
            let page: (String, Vec<String>) = get(&mut connection, &format!("{command} {cursor} COUNT 70"));
            found.extend(page.1);
            cursor = page.0;
            pages += 1;
            if cursor == "0" {
                break;
            }
        }
        assert!(pages > 5, "{command}: {pages} pages");
        let expected = if command == "JSCAN" {
            ids
        } else {
            (0..1000).map(|number| format!("queue-{number}")).collect()
        };
        assert_eq!(found, expected, "{command}");
    }
}

#[test]
fn settings_and_clients() {
    let server = Server::start("--shards 2");
    for protocol in PROTOCOLS {
        let mut connection = connect(&server, protocol);
        let save: BTreeMap<String, String> = get(&mut connection, "CONFIG GET save appendonly");
        assert_eq!(
            save,
            [("appendonly", "no"), ("save", "")]
                .map(|(a, b)| (a.to_owned(), b.to_owned()))
                .into()
        );
        let _: () = get(&mut connection, "CONFIG SET maxmemory 512mb");
        let memory: BTreeMap<String, u64> = get(&mut connection, "CONFIG GET maxmemory");
        assert_eq!(memory["maxmemory"], 512 << 20);
        // Settings hold on every shard: connections are spread over them.
        for _ in 0..4 {
            let mut other = connect(&server, protocol);
            assert_eq!(
                get::<BTreeMap<String, u64>>(&mut other, "CONFIG GET maxmemory")["maxmemory"],
                512 << 20
            );
        }
        let _: () = get(&mut connection, "CLIENT SETNAME worker-1");
        assert_eq!(get::<String>(&mut connection, "CLIENT GETNAME"), "worker-1");
        let list: String = get(&mut connection, "CLIENT LIST");
        let own = list
            .lines()
            .find(|line| line.contains("name=worker-1"))
            .expect("its line");
        let resp = if protocol == "resp3" { "resp=3" } else { "resp=2" };
        assert!(own.contains("lib-name=redis-rs") && own.contains(resp), "{own}");
        let mut victim = connect(&server, protocol);
        let id: i64 = get(&mut victim, "CLIENT ID");
        assert_eq!(get::<i64>(&mut connection, &format!("CLIENT KILL ID {id}")), 1);
        assert!(run::<Value>(&mut victim, "PING").is_err());
        let docs: Value = get(&mut connection, "COMMAND DOCS");
        assert_eq!(matches!(docs, Value::Map(_)), protocol == "resp3");
        let commands: Vec<Vec<Value>> = get(&mut connection, "COMMAND");
        assert!(commands.iter().all(|command| command.len() == 10));
        let info: redis::InfoDict = get(&mut connection, "INFO");
        assert_eq!(info.get::<u8>("loading"), Some(0));
    }
}

#[test]
fn a_paused_client_waits_and_goes_on() {
    let server = Server::start("--shards 2");
    for protocol in PROTOCOLS {
        let mut connection = connect(&server, protocol);
        let _: () = get(&mut connection, "CLIENT PAUSE 100000 WRITE");
        let writer = {
            let mut other = connect(&server, protocol);
            std::thread::spawn(move || get::<String>(&mut other, "ADDJOB paused b 0"))
        };
        // What does not write goes on; the writer's command waits unstarted.
        assert_eq!(get::<i64>(&mut connection, "QLEN paused"), 0);
        assert!(!writer.is_finished());
        let _: () = get(&mut connection, "CLIENT UNPAUSE");
        writer.join().expect("it is served");
        let _: Vec<Job> = get(&mut connection, "GETJOB FROM paused");
    }
}

#[test]
fn a_monitor_sees_the_commands_of_all_shards() {
    let server = Server::start("--shards 2");
    let mut monitor = server.client();
    assert_eq!(
        monitor.call_ok(&["MONITOR"]).expect("it monitors").text(),
        Some("OK")
    );
    let mut expected = BTreeSet::new();
    let mut connections: Vec<Connection> = Vec::new();
    for number in 0..6 {
        let mut connection = connect(&server, PROTOCOLS[number % 2]);
        let _: i64 = get(&mut connection, &format!("QLEN seen-{number}"));
        expected.insert(format!("\"QLEN\" \"seen-{number}\""));
        connections.push(connection);
    }
    while !expected.is_empty() {
        let line = monitor.read_reply().expect("a line");
        let line = line.text().expect("text").to_owned();
        expected.retain(|wanted| !line.ends_with(wanted));
    }
}

#[test]
fn a_password_is_set_and_cleared_at_run_time() {
    let server = Server::start("--shards 2");
    for protocol in PROTOCOLS {
        let mut admin = connect(&server, protocol);
        let _: () = get(&mut admin, "CONFIG SET requirepass secret");
        let refused =
            connect_as(&server, "", protocol).and_then(|mut other| run::<Value>(&mut other, "QLEN q"));
        assert_eq!(refused.expect_err("no password").code(), Some("NOAUTH"));
        assert!(connect_as(&server, ":wrong@", protocol).is_err());
        for user in [":secret@", "default:secret@"] {
            let mut other = connect_as(&server, user, protocol).expect("the right password");
            assert_eq!(get::<i64>(&mut other, "QLEN q"), 0);
        }
        let password: BTreeMap<String, String> = get(&mut admin, "CONFIG GET requirepass");
        assert_eq!(password["requirepass"], "secret");
        assert!(
            cmd("CONFIG")
                .arg("SET")
                .arg("requirepass")
                .arg("")
                .exec(&mut admin)
                .is_ok()
        );
        let mut other = connect(&server, protocol);
        assert_eq!(get::<i64>(&mut other, "QLEN q"), 0);
    }
}

#[test]
fn one_handshake_authenticates_and_names() {
    let server = Server::start("--shards 2 --requirepass secret");
    let mut client = server.client();
    let hello = client
        .call_ok(&["HELLO", "2", "AUTH", "default", "secret", "SETNAME", "me"])
        .expect("let in");
    assert_eq!(hello.array().map(<[_]>::len), Some(14));
    assert_eq!(
        client.call_ok(&["CLIENT", "GETNAME"]).expect("named").text(),
        Some("me")
    );
    let mut client = server.client();
    assert!(client.hello3().is_err(), "HELLO 3 alone is refused");
    client.call_ok(&["AUTH", "default", "secret"]).expect("let in");
    client.hello3().expect("RESP3 now");
    assert!(
        client
            .call_ok(&["SHOW", "D-0123abcd-AAAAAAAAAAAAAAAAAAAAAAAA-05a1"])
            .expect("a null")
            == tools::reply::Reply::Null
    );
}

#[test]
fn the_unix_socket_serves_like_the_port() {
    let server = Setup::flags("--shards 2 --unixsocket shardq.sock --unixsocketperm 700").start();
    let path = server.path("shardq.sock");
    for protocol in PROTOCOLS {
        let url = format!("redis+unix://{}?protocol={protocol}", path.display());
        let client = redis::Client::open(url).expect("an address of the library");
        let mut connection = client.get_connection().expect("it connects");
        let id: String = get(&mut connection, "ADDJOB q b 0");
        let mut over_tcp = connect(&server, protocol);
        assert_eq!(get::<Vec<Job>>(&mut over_tcp, "GETJOB FROM q")[0].1, id);
        let info: String = get(&mut connection, "CLIENT INFO");
        assert!(info.contains("flags=U"), "{info}");
    }
    let mut client = Client::connect(&Address::unix(&path), PATIENCE).expect("it connects");
    client.call_ok(&["PING"]).expect("served");
}
