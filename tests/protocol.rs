//! What the server answers, byte for byte: every command of the table, in RESP2 and RESP3, and every kind of bad input.
//!
//! The expected bytes are those of the reference (section 1) and of what clients rely on, written out here, not taken from the server's code.
//! Requests run on two shards, so that most commands cross from one to the other. `$null` and `$nothing` stand for the
//! two nulls of RESP2 (`$-1`, `*-1`), which are one in RESP3; `$map<n>` for the head of a map, in RESP2 of a flat array.

mod support;

use std::collections::BTreeSet;

use shard::commands::table::COMMANDS;
use support::wire::Wire;
use support::{Server, eventually};

#[derive(Clone, Copy, PartialEq)]
enum Protocol {
    Resp2,
    Resp3,
}

const PROTOCOLS: [Protocol; 2] = [Protocol::Resp2, Protocol::Resp3];

/// A connection in this protocol that knows its nulls and maps.
fn connect(server: &Server, protocol: Protocol) -> Wire {
    let mut wire = Wire::connect(server);
    let is_resp3 = protocol == Protocol::Resp3;
    wire.keep("null", if is_resp3 { "_\r\n" } else { "$-1\r\n" });
    wire.keep("nothing", if is_resp3 { "_\r\n" } else { "*-1\r\n" });
    for entries in [1, 2, 4, 7] {
        let head = if is_resp3 {
            format!("%{entries}\r\n")
        } else {
            format!("*{}\r\n", entries * 2)
        };
        wire.keep(&format!("map{entries}"), &head);
    }
    let proto = if is_resp3 { 3 } else { 2 };
    let handshake = format!(
        "$map7$6\r\nserver\r\n$6\r\nshardq\r\n$7\r\nversion\r\n{{bulk}}$5\r\nproto\r\n:{proto}\r\n$2\r\nid\r\n:{{int:client}}\r\n\
         $4\r\nmode\r\n$10\r\nstandalone\r\n$4\r\nrole\r\n$6\r\nmaster\r\n$7\r\nmodules\r\n*0\r\n"
    );
    wire.check(&format!("HELLO {proto}"), &handshake);
    wire.check("CLUSTER MYID", "$40\r\n{node:node}\r\n");
    wire
}

const SYNTAX: &str = "-ERR syntax error\r\n";
const NUMBER: &str = "-ERR value is not an integer or out of range\r\n";
const BAD_ID: &str = "-BADID {line}\r\n";

/// The shape of an ID that no job has.
const NO_JOB: &str = "D-0123abcd-AAAAAAAAAAAAAAAAAAAAAAAA-05a1";

#[test]
fn every_command_answers_as_the_reference_says() {
    for protocol in PROTOCOLS {
        let server = Server::start("--shards 2 --enable-debug-command yes");
        let mut asked = BTreeSet::new();
        for section in [
            connection_commands,
            job_commands,
            queue_commands,
            scan_commands,
            node_commands,
            client_commands,
            statistics_commands,
        ] {
            let mut wire = connect(&server, protocol);
            wire.check("DEBUG FLUSHALL", "+OK\r\n");
            section(&mut wire, &server);
            asked.extend(wire.asked().iter().cloned());
        }
        asked.extend(commands_that_end_the_connection(server, protocol));
        let missing: Vec<&str> = COMMANDS
            .iter()
            .map(|spec| spec.name)
            .filter(|&name| !asked.contains(name))
            .collect();
        assert!(missing.is_empty(), "commands without a case: {missing:?}");
    }
}

fn connection_commands(wire: &mut Wire, server: &Server) {
    wire.check("PING", "+PONG\r\n");
    wire.check("ping hello", "$5\r\nhello\r\n");
    wire.check(
        "PING a b",
        "-ERR wrong number of arguments for 'ping' command\r\n",
    );
    wire.check("ECHO hello", "$5\r\nhello\r\n");
    wire.check("ECHO ''", "$0\r\n\r\n");
    wire.check("TIME", "*2\r\n{bulk}{bulk}");
    wire.check("SELECT 0", "+OK\r\n");
    wire.check("SELECT 1", "-ERR {line}\r\n");
    wire.check("AUTH secret", "-ERR {line}\r\n");
    wire.check("AUTH default secret", "+OK\r\n");
    let port = server.port();
    let nodes = format!(
        "*3\r\n:1\r\n$40\r\n$node\r\n*4\r\n$40\r\n$node\r\n$9\r\n127.0.0.1\r\n$5\r\n{port}\r\n$1\r\n1\r\n"
    );
    wire.check("HELLO", &nodes);
    wire.check("HELLO 4", "-NOPROTO unsupported protocol version\r\n");
    wire.check("HELLO x", "-ERR {line}\r\n");
    wire.check("HELLO 3 SETNAME", "-ERR {line}\r\n");
    wire.check("HELLO 3 AUTH default", "-ERR {line}\r\n");
}

fn job_commands(wire: &mut Wire, _: &Server) {
    wire.check("ADDJOB q body 0 RETRY 7 TTL 600", "+{id:a}\r\n");
    wire.check(
        "SHOW $a",
        "*32\r\n$2\r\nid\r\n$40\r\n$a\r\n$5\r\nqueue\r\n$1\r\nq\r\n$5\r\nstate\r\n$6\r\nqueued\r\n$4\r\nrepl\r\n:1\r\n\
         $3\r\nttl\r\n:{int}\r\n$5\r\nctime\r\n:{int}\r\n$5\r\ndelay\r\n:0\r\n$5\r\nretry\r\n:7\r\n$5\r\nnacks\r\n:0\r\n\
         $21\r\nadditional-deliveries\r\n:0\r\n$15\r\nnodes-delivered\r\n*1\r\n$40\r\n$node\r\n$15\r\nnodes-confirmed\r\n*1\r\n$40\r\n$node\r\n\
         $19\r\nnext-requeue-within\r\n:7000\r\n$17\r\nnext-awake-within\r\n:{int}\r\n$4\r\nbody\r\n$4\r\nbody\r\n\
         $11\r\nnodes-hosts\r\n*1\r\n{bulk}",
    );
    wire.check(&format!("SHOW {NO_JOB}"), "$null");
    wire.check(
        "GETJOB NOHANG FROM q",
        "*1\r\n*3\r\n$1\r\nq\r\n$40\r\n$a\r\n$4\r\nbody\r\n",
    );
    wire.check("GETJOB NOHANG FROM q", "$nothing");
    wire.check("GETJOB TIMEOUT 1 FROM q other third", "$nothing");
    wire.check("WORKING $a", ":7\r\n");
    wire.check(&format!("WORKING {NO_JOB}"), "-NOJOB {line}\r\n");
    wire.check("NACK $a", ":1\r\n");
    wire.check(
        "GETJOB WITHCOUNTERS FROM q",
        "*1\r\n*7\r\n$1\r\nq\r\n$40\r\n$a\r\n$4\r\nbody\r\n$5\r\nnacks\r\n:1\r\n$21\r\nadditional-deliveries\r\n:0\r\n",
    );
    wire.check("ENQUEUE $a", ":1\r\n");
    wire.check("ENQUEUE $a", ":0\r\n");
    wire.check("QPEEK q 1", "*1\r\n*3\r\n$1\r\nq\r\n$40\r\n$a\r\n$4\r\nbody\r\n");
    wire.check("DEQUEUE $a", ":1\r\n");
    wire.check("DEQUEUE $a", ":0\r\n");
    wire.check("ENQUEUE $a", ":1\r\n");
    wire.check(
        "GETJOB NOHANG COUNT 5 WITHCOUNTERS TIMEOUT 10 FROM none q",
        "*1\r\n*7\r\n$1\r\nq\r\n$40\r\n$a\r\n$4\r\nbody\r\n$5\r\nnacks\r\n:1\r\n$21\r\nadditional-deliveries\r\n:2\r\n",
    );
    wire.check("ACKJOB $a $a", ":1\r\n");
    wire.check("ACKJOB $a", ":0\r\n");
    for queue in ["f1", "f2", "f3"] {
        wire.check(
            &format!("ADDJOB {queue} '' 0 REPLICATE 1 ASYNC MAXLEN 9 RETRY 0"),
            &format!("+{{id:{queue}}}\r\n"),
        );
    }
    wire.check("FASTACK $f1 $f2 $f1", ":2\r\n");
    wire.check(&format!("DELJOB $f3 {NO_JOB} $f1"), ":1\r\n");
    for command in ["ACKJOB", "FASTACK", "DELJOB", "ENQUEUE", "NACK", "DEQUEUE"] {
        wire.check(command, ":0\r\n");
        wire.check(&format!("{command} {NO_JOB}"), ":0\r\n");
    }
    wire.check("ADDJOB later body 0 DELAY 600 TTL 6000", "+{id:b}\r\n");
    let show = wire.ask("SHOW $b");
    assert!(
        show.contains("$5\r\nstate\r\n$6\r\nactive\r\n") && show.contains("$5\r\ndelay\r\n:600\r\n"),
        "{show:?}"
    );
    wire.check("LOADJOB x", "-ERR {line}\r\n");
    wire.check("BGREWRITEAOF", "-ERR {line}\r\n");
}

fn queue_commands(wire: &mut Wire, _: &Server) {
    for job in ["a", "b", "c"] {
        wire.check(&format!("ADDJOB q body-{job} 0"), &format!("+{{id:{job}}}\r\n"));
    }
    wire.check("QLEN q", ":3\r\n");
    wire.check("QLEN none", ":0\r\n");
    let element = |job: &str| format!("*3\r\n$1\r\nq\r\n$40\r\n${job}\r\n$6\r\nbody-{job}\r\n");
    wire.check("QPEEK q 2", &format!("*2\r\n{}{}", element("a"), element("b")));
    wire.check("QPEEK q -2", &format!("*2\r\n{}{}", element("c"), element("b")));
    wire.check("QPEEK q 0", "*0\r\n");
    wire.check("QPEEK none 5", "*0\r\n");
    wire.check("GETJOB COUNT 1 FROM q", &format!("*1\r\n{}", element("a")));
    wire.check("QSTAT none", "$nothing");
    let stat = |pause: &str| {
        format!(
            "*20\r\n$4\r\nname\r\n$1\r\nq\r\n$3\r\nlen\r\n:2\r\n$3\r\nage\r\n:{{int}}\r\n$4\r\nidle\r\n:{{int}}\r\n$7\r\nblocked\r\n:0\r\n\
             $11\r\nimport-from\r\n*0\r\n$11\r\nimport-rate\r\n:0\r\n$7\r\njobs-in\r\n:3\r\n$8\r\njobs-out\r\n:1\r\n\
             $5\r\npause\r\n${}\r\n{pause}\r\n",
            pause.len()
        )
    };
    wire.check("QSTAT q", &stat("none"));
    wire.check("PAUSE q state", "+none\r\n");
    wire.check("PAUSE q all", "+all\r\n");
    wire.check("PAUSE q in", "+in\r\n");
    wire.check("PAUSE q state bcast", "+in\r\n");
    wire.check("QSTAT q", &stat("in"));
    wire.check("ADDJOB q body 0", "-PAUSED {line}\r\n");
    wire.check("NACK $a", "-PAUSED {line}\r\n");
    wire.check("ENQUEUE $a", "-PAUSED {line}\r\n");
    wire.check("PAUSE q out", "+out\r\n");
    wire.check("GETJOB NOHANG FROM q", "$nothing");
    wire.check("PAUSE q in out", "+all\r\n");
    wire.check("PAUSE q in none out", "+out\r\n");
    wire.check("PAUSE q none", "+none\r\n");
    wire.check("PAUSE q off", SYNTAX);
    wire.check("PAUSE none none", "+none\r\n");
    wire.check("QSTAT none", "$nothing");
}

fn scan_commands(wire: &mut Wire, _: &Server) {
    wire.check("QSCAN", "*2\r\n$1\r\n0\r\n*0\r\n");
    wire.check("JSCAN", "*2\r\n$1\r\n0\r\n*0\r\n");
    wire.check("ADDJOB q one 0", "+{id:a}\r\n");
    wire.check("QSCAN", "*2\r\n$1\r\n0\r\n*1\r\n$1\r\nq\r\n");
    wire.check(
        "QSCAN 0 COUNT 10 MINLEN 1 MAXLEN 1 BUSYLOOP IMPORTRATE 0",
        "*2\r\n$1\r\n0\r\n*1\r\n$1\r\nq\r\n",
    );
    wire.check("QSCAN MINLEN 2", "*2\r\n$1\r\n0\r\n*0\r\n");
    wire.check("JSCAN", "*2\r\n$1\r\n0\r\n*1\r\n+$a\r\n");
    wire.check(
        "JSCAN 0 QUEUE q STATE queued STATE active REPLY id COUNT -1",
        "*2\r\n$1\r\n0\r\n*1\r\n+$a\r\n",
    );
    wire.check("JSCAN QUEUE q STATE active", "*2\r\n$1\r\n0\r\n*0\r\n");
    let all = wire.ask("JSCAN REPLY ALL");
    assert!(
        all.starts_with("*2\r\n$1\r\n0\r\n*1\r\n*32\r\n$2\r\nid\r\n"),
        "{all:?}"
    );
    for (request, error) in [
        ("QSCAN 1 2", SYNTAX),
        ("QSCAN COUNT", SYNTAX),
        ("QSCAN COUNT x", NUMBER),
        ("QSCAN MINLEN -1", NUMBER),
        ("QSCAN foo", "-ERR invalid cursor or option name\r\n"),
        ("QSCAN -1", "-ERR invalid cursor or option name\r\n"),
        ("JSCAN foo", "-ERR invalid cursor or option name\r\n"),
        ("JSCAN STATE foo", "-ERR {line}\r\n"),
        ("JSCAN REPLY foo", "-ERR {line}\r\n"),
        ("JSCAN QUEUE", SYNTAX),
    ] {
        wire.check(request, error);
    }
}

fn node_commands(wire: &mut Wire, server: &Server) {
    let port = server.port();
    let line = format!("$node 127.0.0.1:{port} myself 0 0 connected\n");
    let length = 40 + line.len() - "$node".len();
    wire.check("CLUSTER NODES", &format!("${length}\r\n{line}\r\n"));
    let info = "cluster_state:ok\r\ncluster_known_nodes:1\r\ncluster_reachable_nodes:0\r\ncluster_size:1\r\n\
                cluster_stats_messages_sent:0\r\ncluster_stats_messages_received:0\r\ncluster_stats_messages_ignored:0\r\n\
                cluster_alive_nodes:0\r\ncluster_suspected_nodes:0\r\ncluster_failed_nodes:0\r\ncluster_forgotten_nodes:0\r\n\
                cluster_meets_under_way:0\r\ncluster_meets_failed:0\r\n";
    wire.check("CLUSTER INFO", &format!("${}\r\n{info}\r\n", info.len()));
    wire.check("CLUSTER LEAVING", "+no\r\n");
    wire.check("CLUSTER FOO", "-ERR {line}\r\n");
    wire.check("CONFIG GET timeout", "$map1$7\r\ntimeout\r\n$1\r\n0\r\n");
    wire.check("CONFIG GET save", "$map1$4\r\nsave\r\n$0\r\n\r\n");
    wire.check("CONFIG GET appendonly", "$map1$10\r\nappendonly\r\n$2\r\nno\r\n");
    let nothing = wire.ask("CONFIG GET nothing-*");
    assert!(["*0\r\n", "%0\r\n"].contains(&nothing.as_str()), "{nothing:?}");
    wire.check("CONFIG SET timeout 100", "+OK\r\n");
    wire.check("CONFIG GET timeou?", "$map1$7\r\ntimeout\r\n$3\r\n100\r\n");
    wire.check("CONFIG SET timeout 0 maxmemory 2gb", "+OK\r\n");
    wire.check(
        "CONFIG GET maxmemory",
        "$map1$9\r\nmaxmemory\r\n$10\r\n2147483648\r\n",
    );
    for request in [
        "CONFIG SET timeout x",
        "CONFIG SET foo 1",
        "CONFIG SET port 1",
        "CONFIG SET timeout",
        "CONFIG FOO",
    ] {
        wire.check(request, "-ERR {line}\r\n");
    }
    wire.check("CONFIG SET timeout 5 maxclients none", "-ERR {line}\r\n");
    wire.check("CONFIG GET timeout", "$map1$7\r\ntimeout\r\n$1\r\n0\r\n");
    wire.check(
        "CONFIG REWRITE",
        "-ERR The server is running without a config file\r\n",
    );
    wire.check("CONFIG RESETSTAT", "+OK\r\n");
    wire.check("DEBUG SLEEP 0.01", "+OK\r\n");
    wire.check("DEBUG ERROR FOO", "-FOO\r\n");
    wire.check("DEBUG STRUCTSIZE", "{bulk}");
    wire.check("DEBUG FOO", "-ERR {line}\r\n");
    wire.check("SHUTDOWN soon", SYNTAX);
    let entry = "*10\r\n$4\r\nping\r\n:-1\r\n*2\r\n+readonly\r\n+fast\r\n:0\r\n:0\r\n:0\r\n*2\r\n+@read\r\n+@fast\r\n*0\r\n*0\r\n*0\r\n";
    wire.check("COMMAND INFO ping nothing", &format!("*2\r\n{entry}$null"));
    wire.check("COMMAND COUNT", &format!(":{}\r\n", COMMANDS.len()));
    wire.check(
        "COMMAND DOCS ping",
        "$map1$4\r\nping\r\n$map4$7\r\nsummary\r\n{bulk}$5\r\nsince\r\n{bulk}$5\r\ngroup\r\n$10\r\nconnection\r\n$9\r\narguments\r\n*0\r\n",
    );
    wire.check("COMMAND LIST FILTERBY PATTERN ackjo?", "*1\r\n$6\r\nackjob\r\n");
    let all = wire.ask("COMMAND");
    assert!(
        all.starts_with(&format!("*{}\r\n*10\r\n$4\r\nauth\r\n", COMMANDS.len())) && all.contains(entry),
        "{all:?}"
    );
}

fn client_commands(wire: &mut Wire, server: &Server) {
    wire.check("CLIENT ID", ":$client\r\n");
    wire.check("CLIENT GETNAME", "$null");
    wire.check("CLIENT SETNAME me", "+OK\r\n");
    wire.check("CLIENT GETNAME", "$2\r\nme\r\n");
    wire.check("CLIENT SETINFO LIB-NAME redis-rs", "+OK\r\n");
    wire.check("CLIENT SETINFO lib-ver 1.0", "+OK\r\n");
    wire.check("CLIENT SETINFO FOO 1", "-ERR {line}\r\n");
    let info = wire.ask("CLIENT INFO");
    let address = wire.address();
    for part in [
        format!(" addr={address} "),
        " name=me ".to_owned(),
        " lib-name=redis-rs lib-ver=1.0".to_owned(),
    ] {
        assert!(info.contains(&part), "{part} in {info:?}");
    }
    let list = wire.ask("CLIENT LIST");
    assert!(
        list.contains(&format!("id={} addr={address} ", wire.kept("client"))),
        "{list:?}"
    );
    wire.check("CLIENT NO-EVICT on", "+OK\r\n");
    wire.check("CLIENT NO-TOUCH off", "+OK\r\n");
    wire.check("CLIENT TRACKING off", "+OK\r\n");
    wire.check("CLIENT TRACKING on", "-ERR {line}\r\n");
    wire.check("CLIENT MAINT_NOTIFICATIONS on", "-ERR {line}\r\n");
    wire.check("CLIENT PAUSE 1", "+OK\r\n");
    wire.check("CLIENT PAUSE 60000 WRITE", "+OK\r\n");
    wire.check("CLIENT UNPAUSE", "+OK\r\n");
    wire.check("CLIENT REPLY ON", "+OK\r\n");
    wire.check("CLIENT KILL 127.0.0.1:1", "-ERR No such client\r\n");
    wire.check("CLIENT KILL ID 999999", ":0\r\n");
    let mut other = Wire::connect(server);
    other.check("CLIENT ID", ":{int:id}\r\n");
    let id = other.kept("id").to_owned();
    wire.check(&format!("CLIENT KILL ID {id} SKIPME no"), ":1\r\n");
    assert_eq!(other.read_to_end(), b"");
    let mut third = Wire::connect(server);
    third.send("CLIENT REPLY SKIP");
    third.check("PING skipped", "");
    third.check("PING", "+PONG\r\n");
    third.send("CLIENT REPLY OFF");
    third.send("PING");
    third.check("CLIENT REPLY ON", "+OK\r\n");
}

fn statistics_commands(wire: &mut Wire, server: &Server) {
    for request in ["INFO", "INFO server", "INFO nothing"] {
        wire.check(request, "{bulk}");
    }
    wire.check("INFO a b", SYNTAX);
    wire.check("CONFIG SET slowlog-log-slower-than -1", "+OK\r\n");
    wire.check("SLOWLOG RESET", "+OK\r\n");
    wire.check("SLOWLOG LEN", ":0\r\n");
    wire.check("SLOWLOG GET", "*0\r\n");
    wire.check("CONFIG SET slowlog-log-slower-than 0", "+OK\r\n");
    wire.check("PING slow", "$4\r\nslow\r\n");
    let slow = wire.ask("SLOWLOG GET -1");
    assert!(slow.contains("*2\r\n$4\r\nPING\r\n$4\r\nslow\r\n"), "{slow:?}");
    wire.check("LATENCY RESET", ":{int}\r\n");
    wire.check("LATENCY LATEST", "*0\r\n");
    wire.check("LATENCY HISTORY command", "*0\r\n");
    wire.check("LATENCY DOCTOR", "{bulk}");
    wire.check("LATENCY GRAPH command", "-ERR {line}\r\n");
    wire.check("CONFIG RESETSTAT", "+OK\r\n");
    wire.check("QLEN q", ":0\r\n");
    let histogram = wire.ask("LATENCY HISTOGRAM qlen");
    assert!(
        histogram.contains("$4\r\nqlen\r\n") && histogram.contains("$5\r\ncalls\r\n:1\r\n"),
        "{histogram:?}"
    );
    monitor_shows_requests_and_hides_passwords(wire, server);
    wire.send("MONITOR");
    assert_eq!(wire.read_line(), "+OK\r\n");
    wire.send("QLEN nothing-queued");
    // Its own requests are answered beside the lines of the feed.
    while wire.read_line() != ":0\r\n" {}
}

fn monitor_shows_requests_and_hides_passwords(wire: &mut Wire, server: &Server) {
    let mut monitor = Wire::connect(server);
    monitor.send("MONITOR");
    assert_eq!(monitor.read_line(), "+OK\r\n");
    wire.check("ADDJOB q a\\b\"c 0", "+{id}\r\n");
    wire.check("AUTH default secret-word", "+OK\r\n");
    wire.check("QLEN the-last", ":0\r\n");
    let mut lines = String::new();
    while !lines.contains("\"the-last\"") {
        lines.push_str(&monitor.read_line());
    }
    let address = wire.address();
    assert!(
        lines.contains(&format!("[{address}] \"ADDJOB\" \"q\" \"a\\\\b\\\"c\" \"0\"\r\n")),
        "{lines}"
    );
    assert!(
        lines.contains("\"AUTH\"") && !lines.contains("secret-word"),
        "{lines}"
    );
}

/// QUIT, RESET (which ends RESP3) and SHUTDOWN; the server is gone behind them.
fn commands_that_end_the_connection(mut server: Server, protocol: Protocol) -> BTreeSet<String> {
    let mut wire = connect(&server, protocol);
    wire.check("CLIENT SETNAME me", "+OK\r\n");
    wire.check("RESET", "+RESET\r\n");
    wire.check("CLIENT GETNAME", "$-1\r\n");
    wire.send("QUIT");
    assert_eq!(wire.read_to_end(), b"+OK\r\n");
    let mut asked = wire.asked().clone();
    let mut wire = connect(&server, protocol);
    wire.send("SHUTDOWN");
    assert_eq!(wire.read_to_end(), b"");
    assert_eq!(server.wait_exit().code(), Some(0));
    asked.extend(wire.asked().iter().cloned());
    asked
}

#[test]
fn bad_arguments_are_refused_and_the_connection_goes_on() {
    let server = Server::start("--shards 2");
    for protocol in PROTOCOLS {
        let mut wire = connect(&server, protocol);
        let long_number = "9".repeat(40);
        for (request, error) in [
            (
                "ADDJOB q b",
                "-ERR wrong number of arguments for 'addjob' command\r\n",
            ),
            ("ADDJOB q b x", NUMBER),
            ("ADDJOB q b ''", NUMBER),
            ("ADDJOB q b -1", "-ERR {line}\r\n"),
            ("ADDJOB q b 9223372036854775808", NUMBER),
            (&format!("ADDJOB q b {long_number}"), NUMBER),
            ("ADDJOB q b 0 RETRY", SYNTAX),
            ("ADDJOB q b 0 FOO 1", SYNTAX),
            ("ADDJOB q b 0 RETRY -1", NUMBER),
            ("ADDJOB q b 0 RETRY 1.5", NUMBER),
            ("ADDJOB q b 0 TTL 0", NUMBER),
            ("ADDJOB q b 0 TTL 99999999999999", NUMBER),
            ("ADDJOB q b 0 REPLICATE 0", NUMBER),
            ("ADDJOB q b 0 REPLICATE 65536", NUMBER),
            ("ADDJOB q b 0 MAXLEN 0", NUMBER),
            ("ADDJOB q b 0 DELAY 10 TTL 10", "-ERR {line}\r\n"),
            ("ADDJOB q b 0 RETRY 0 REPLICATE 2", "-ERR {line}\r\n"),
            (
                "GETJOB",
                "-ERR wrong number of arguments for 'getjob' command\r\n",
            ),
            ("GETJOB FROM", SYNTAX),
            ("GETJOB q", SYNTAX),
            ("GETJOB COUNT 0 FROM q", NUMBER),
            ("GETJOB COUNT x FROM q", NUMBER),
            ("GETJOB TIMEOUT -1 FROM q", NUMBER),
            ("GETJOB TIMEOUT FROM q", NUMBER),
            ("GETJOB NOHANG COUNT", SYNTAX),
            ("QPEEK q x", NUMBER),
            ("QLEN", "-ERR wrong number of arguments for 'qlen' command\r\n"),
            (
                "TIME now",
                "-ERR wrong number of arguments for 'time' command\r\n",
            ),
            ("SLOWLOG GET x", NUMBER),
            ("DEBUG SLEEP x", "-ERR {line}\r\n"),
            ("CLIENT KILL ID 0", "-ERR {line}\r\n"),
            ("FooBar x", "-ERR unknown command 'FooBar'\r\n"),
            ("''", "-ERR unknown command ''\r\n"),
        ] {
            wire.check(request, error);
        }
        wire.check("QSCAN", "*2\r\n$1\r\n0\r\n*0\r\n");
    }
}

#[test]
fn the_texts_that_clients_compare() {
    let server = Server::start("--shards 2");
    let mut wire = connect(&server, Protocol::Resp2);
    wire.check(
        "ADDJOB q b 100 REPLICATE 2",
        "-NOREPL Not enough reachable nodes for the requested replication level\r\n",
    );
    wire.check("ADDJOB q b 0 MAXLEN 1", "+{id}\r\n");
    wire.check(
        "ADDJOB q b 0 MAXLEN 1",
        "-MAXLEN Queue is already longer than the specified MAXLEN count\r\n",
    );
}

#[test]
fn malformed_ids_are_refused_before_anything_is_done() {
    let server = Server::start("--shards 2");
    let mut wire = connect(&server, Protocol::Resp2);
    wire.check("ADDJOB q b 0", "+{id:a}\r\n");
    let malformed = [
        "x".to_owned(),
        NO_JOB[1..].to_owned(),
        format!("{NO_JOB}0"),
        NO_JOB.replace("D-", "d-"),
        NO_JOB.replace("D-0", "D-g"),
        NO_JOB.replace("AA", "A*"),
        NO_JOB.replace("-05", "_05"),
        NO_JOB.replace("05a1", "05z1"),
    ];
    for id in &malformed {
        for command in ["ACKJOB", "FASTACK", "DELJOB", "ENQUEUE", "NACK", "DEQUEUE"] {
            wire.check(&format!("{command} $a {id}"), BAD_ID);
        }
        wire.check(&format!("SHOW {id}"), BAD_ID);
        wire.check(&format!("WORKING {id}"), BAD_ID);
    }
    wire.check("SHOW ''", BAD_ID);
    wire.check("QLEN q", ":1\r\n");
}

#[test]
fn checks_come_in_the_order_of_the_reference() {
    let server = Server::start("--shards 2 --requirepass secret");
    let mut wire = Wire::connect(&server);
    for (request, expected) in [
        ("FOO", "-ERR unknown command 'FOO'\r\n"),
        ("QLEN", "-ERR wrong number of arguments for 'qlen' command\r\n"),
        ("QLEN q", "-NOAUTH {line}\r\n"),
        ("ADDJOB q b x", "-NOAUTH {line}\r\n"),
        ("PING", "-NOAUTH {line}\r\n"),
        ("HELLO", "-NOAUTH {line}\r\n"),
        ("HELLO 3", "-NOAUTH {line}\r\n"),
        ("AUTH wrong", "-ERR {line}\r\n"),
        ("AUTH default wrong", "-WRONGPASS {line}\r\n"),
        ("HELLO 2 AUTH default wrong", "-WRONGPASS {line}\r\n"),
    ] {
        // The mark behind each request is refused too: replies are read as lines.
        wire.send(request);
        let line = wire.read_line();
        let head = expected.split('{').next().unwrap_or_default();
        assert!(
            line.starts_with(head) && (line == expected || expected.contains('{')),
            "{request}: {line:?}"
        );
    }
    wire.send("AUTH secret");
    assert_eq!(wire.read_line(), "+OK\r\n");
    for (request, expected) in [
        // Options before the timeout, both before what the options mean together, that before nodes, queue length and pause.
        ("ADDJOB q b x RETRY y", NUMBER),
        ("ADDJOB q b x FOO", SYNTAX),
        ("ADDJOB q b -1 RETRY 0 REPLICATE 2", "-ERR {line}\r\n"),
        ("ADDJOB q b 0 DELAY 9 TTL 9 REPLICATE 2", "-ERR {line}\r\n"),
        ("PAUSE q in", "+in\r\n"),
        ("ADDJOB q b 0 REPLICATE 2 MAXLEN 1", "-NOREPL {line}\r\n"),
        ("ADDJOB q b 0 MAXLEN 1", "-PAUSED {line}\r\n"),
        ("PAUSE q none", "+none\r\n"),
        ("ADDJOB q b 0 MAXLEN 1", "+{id}\r\n"),
        ("PAUSE q in", "+in\r\n"),
        ("ADDJOB q b 0 MAXLEN 1", "-MAXLEN {line}\r\n"),
    ] {
        wire.check(request, expected);
    }
    wire.send("QUIT");
    assert_eq!(wire.read_to_end(), b"+OK\r\n");
}

#[test]
fn inline_commands() {
    let server = Server::start("--shards 2");
    let mut wire = Wire::connect(&server);
    for (line, expected) in [
        ("PING\r\n", "+PONG\r\n"),
        ("ping\n", "+PONG\r\n"),
        ("\r\n  \r\n", ""),
        ("  ECHO   two\t\r\n", "$3\r\ntwo\r\n"),
        ("ECHO \"a b\\n\\x41\\\"\"\r\n", "$6\r\na b\nA\"\r\n"),
        ("ECHO 'it\\'s \\n'\r\n", "$7\r\nit's \\n\r\n"),
        ("*0\r\n*-5\r\n", ""),
        (
            "*1\r\n$4\r\nPING\r\nECHO x\r\n*2\r\n$4\r\nECHO\r\n$2\r\n\r\n\r\n",
            "+PONG\r\n$1\r\nx\r\n$2\r\n\r\n\r\n",
        ),
    ] {
        assert_eq!(wire.ask_bytes(line.as_bytes()), expected, "{line:?}");
    }
}

#[test]
fn malformed_frames_end_their_own_connection_only() {
    let server = Server::start("--shards 2");
    let mut bystander = Wire::connect(&server);
    let too_long = "x".repeat(65_540);
    for (bytes, reason) in [
        ("*x\r\n", "invalid multibulk length"),
        ("*1048577\r\n", "invalid multibulk length"),
        ("*+1\r\n", "invalid multibulk length"),
        ("*01\r\n", "invalid multibulk length"),
        ("*1\r\n+PING\r\n", "expected '$', got '+'"),
        ("*1\r\n$-1\r\n", "invalid bulk length"),
        ("*1\r\n$x\r\n", "invalid bulk length"),
        ("*1\r\n$536870913\r\n", "invalid bulk length"),
        ("*1\r\n$99999999999999999999999\r\n", "invalid bulk length"),
        ("ECHO \"x\r\n", "unbalanced quotes in request"),
        ("ECHO 'x\r\n", "unbalanced quotes in request"),
        (&too_long, "too big inline request"),
        (&format!("*{too_long}"), "too big mbulk count string"),
        (&format!("*1\r\n${too_long}"), "too big bulk count string"),
    ] {
        let mut wire = Wire::connect(&server);
        // What came before is answered first, also by another shard.
        let head: String = (0..8).map(|number| format!("QLEN q{number}\r\n")).collect();
        let answer = wire.ask_to_end(format!("{head}{bytes}").as_bytes());
        let expected = format!("{}-ERR Protocol error: {reason}\r\n", ":0\r\n".repeat(8));
        let shown: String = bytes.chars().take(40).collect();
        assert_eq!(answer, expected, "{shown:?}");
    }
    bystander.check("PING", "+PONG\r\n");
    let open = || server.info("clients", "connected_clients");
    eventually("only the bystander and the one that asks are left", || {
        open() == "2"
    });
}

#[test]
fn requests_may_come_a_byte_at_a_time() {
    let server = Server::start("--shards 2");
    let mut wire = Wire::connect(&server);
    let request = b"*4\r\n$6\r\nADDJOB\r\n$1\r\nq\r\n$5\r\nab\r\nc\r\n$1\r\n0\r\nQLEN q\r\n";
    for byte in request {
        wire.write(&[*byte]);
    }
    let reply = wire.ask_bytes(b"");
    assert!(
        reply.starts_with("+D-") && reply.ends_with("\r\n:1\r\n"),
        "{reply:?}"
    );
    wire.check(
        "QPEEK q 1",
        "*1\r\n*3\r\n$1\r\nq\r\n$40\r\n{id}\r\n$5\r\nab\r\nc\r\n",
    );
}

#[test]
fn names_and_bodies_are_any_bytes() {
    let server = Server::start("--shards 3");
    let mut client = server.client();
    let bodies: [&[u8]; 4] = [b"", b"\0\xff\r\n$5\r\n", &[7; 100_000], "ü".as_bytes()];
    for body in bodies {
        let queue = [b"q\0\r\n", &body[..body.len().min(50)]].concat();
        client
            .call_ok(&[b"ADDJOB", &queue[..], body, b"0"])
            .expect("accepted");
        let reply = client.call_ok(&[b"GETJOB", &b"FROM"[..], &queue]).expect("there");
        let job = reply.array().expect("jobs")[0].array().expect("a job");
        assert_eq!((job[0].bytes(), job[2].bytes()), (Some(&queue[..]), Some(body)));
    }
}
