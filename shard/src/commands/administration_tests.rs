//! Commands of administration as a client sees them, on a node of three shards: replies byte for byte.

use super::testing::TestNode;
use crate::settings::Settings;

fn node() -> TestNode {
    TestNode::new(3, Settings::default())
}

fn guarded() -> TestNode {
    TestNode::new(
        2,
        Settings {
            requirepass: Some(b"secret".to_vec()),
            ..Settings::default()
        },
    )
}

/// A bulk string's text.
fn bulk(reply: &str) -> &str {
    let (head, text) = reply.split_once("\r\n").expect("a bulk string");
    assert_eq!(head, format!("${}", text.len() - 2), "{reply:?}");
    text.strip_suffix("\r\n").expect("a bulk string")
}

fn field<'a>(text: &'a str, name: &str) -> &'a str {
    let found = text
        .lines()
        .find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    found.unwrap_or_else(|| panic!("no {name} in {text}"))
}

#[test]
fn small_commands() {
    let mut node = node();
    let client = node.connect();
    for (request, reply) in [
        ("PING", "+PONG\r\n"),
        ("ping hello", "$5\r\nhello\r\n"),
        (
            "PING a b",
            "-ERR wrong number of arguments for 'ping' command\r\n",
        ),
        ("ECHO x", "$1\r\nx\r\n"),
        ("ECHO", "-ERR wrong number of arguments for 'echo' command\r\n"),
        ("TIME", "*2\r\n$10\r\n1700000000\r\n$1\r\n0\r\n"),
        ("SELECT 0", "+OK\r\n"),
        ("SELECT 1", "-ERR DB index is out of range\r\n"),
        ("SELECT x", "-ERR value is not an integer or out of range\r\n"),
        ("NOSUCH x", "-ERR unknown command 'NOSUCH'\r\n"),
        (
            "LOADJOB x",
            "-ERR LOADJOB is not for clients: it stands in logs only\r\n",
        ),
        (
            "BGREWRITEAOF",
            "-ERR no log is kept (appendonly no): there is nothing to rewrite\r\n",
        ),
        ("COMMAND COUNT", ":36\r\n"),
        ("CLUSTER LEAVING", "+no\r\n"),
        (
            "CLUSTER MEET 127.0.0.1 7712",
            "-ERR the node takes part in no cluster yet\r\n",
        ),
        (
            "CLUSTER FOO",
            "-ERR unknown subcommand 'FOO'. Try CLUSTER HELP.\r\n",
        ),
        ("DEBUG ERROR FOO", "-FOO\r\n"),
        (
            "DEBUG RESTART",
            "-ERR a process cannot restart itself: SHUTDOWN, and let the service manager start it again\r\n",
        ),
        ("CLIENT TRACKING OFF", "+OK\r\n"),
        ("CLIENT GETREDIR", ":-1\r\n"),
        ("CLIENT ID", ":1\r\n"),
        (
            "CLIENT MAINT_NOTIFICATIONS on",
            "-ERR unknown subcommand 'MAINT_NOTIFICATIONS'. Try CLIENT HELP.\r\n",
        ),
        ("SHUTDOWN soon", "-ERR syntax error\r\n"),
    ] {
        assert_eq!(node.ask(client, request), reply, "{request}");
    }
    let id = "ab".repeat(20);
    assert_eq!(node.ask(client, "CLUSTER MYID"), format!("$40\r\n{id}\r\n"));
    let nodes = node.ask(client, "CLUSTER NODES");
    assert_eq!(
        bulk(&nodes),
        format!("{id} 127.0.0.1:7711 myself 0 0 connected\n")
    );
    assert_eq!(
        node.ask(client, "HELLO"),
        format!(
            "*3\r\n:1\r\n$40\r\n{id}\r\n*4\r\n$40\r\n{id}\r\n$9\r\n127.0.0.1\r\n$4\r\n7711\r\n$1\r\n1\r\n"
        )
    );
    assert_eq!(node.ask(client, "QUIT"), "+OK\r\n");
    assert!(node.is_closed(client));
}

#[test]
fn a_password_is_asked_for() {
    let mut node = guarded();
    let client = node.connect();
    let noauth = "-NOAUTH Authentication required.\r\n";
    assert_eq!(node.ask(client, "PING"), noauth);
    assert_eq!(node.ask(client, "HELLO"), noauth);
    assert!(
        node.ask(client, "HELLO 3")
            .starts_with("-NOAUTH HELLO must be called")
    );
    assert_eq!(node.ask(client, "AUTH wrong"), "-ERR invalid password\r\n");
    let wrong = "-WRONGPASS invalid username-password pair or user is disabled.\r\n";
    assert_eq!(node.ask(client, "AUTH default wrong"), wrong);
    assert_eq!(node.ask(client, "HELLO 3 AUTH default wrong"), wrong);
    assert_eq!(node.ask(client, "PING"), noauth);
    assert_eq!(node.ask(client, "AUTH secret"), "+OK\r\n");
    assert_eq!(node.ask(client, "PING"), "+PONG\r\n");
    assert_eq!(node.ask(client, "AUTH wrong"), "-ERR invalid password\r\n");
    assert_eq!(
        node.ask(client, "PING"),
        noauth,
        "a wrong password ends an earlier authentication"
    );
    assert_eq!(node.ask(client, "AUTH default secret"), "+OK\r\n");
    assert_eq!(node.ask(client, "RESET"), "+RESET\r\n");
    assert_eq!(node.ask(client, "PING"), noauth);
    assert_eq!(node.ask(client, "QUIT"), "+OK\r\n");
}

#[test]
fn passwords_are_set_and_cleared_on_every_shard() {
    let mut node = node();
    let (one, other) = (node.connect(), node.connect());
    assert!(
        node.ask(one, "AUTH x")
            .starts_with("-ERR AUTH <password> called without any password")
    );
    assert_eq!(node.ask(one, "CONFIG SET requirepass secret"), "+OK\r\n");
    assert_eq!(
        node.ask(other, "CONFIG GET requirepass"),
        "*2\r\n$11\r\nrequirepass\r\n$6\r\nsecret\r\n"
    );
    let late = node.connect();
    assert_eq!(node.ask(late, "PING"), "-NOAUTH Authentication required.\r\n");
    assert_eq!(
        node.ask(other, "CONFIG SET requirepass"),
        "-ERR wrong number of arguments for 'config|set' command\r\n"
    );
    assert_eq!(
        node.ask_words(other, &["CONFIG", "SET", "requirepass", ""]),
        "+OK\r\n"
    );
    let later = node.connect();
    assert_eq!(node.ask(later, "PING"), "+PONG\r\n");
}

#[test]
fn the_handshake_changes_the_protocol() {
    let mut node = node();
    let client = node.connect();
    assert!(
        node.ask(client, "HELLO 3 SETNAME me")
            .starts_with("%7\r\n$6\r\nserver\r\n$6\r\nshardq\r\n")
    );
    assert_eq!(node.ask(client, "CLIENT GETNAME"), "$2\r\nme\r\n");
    assert_eq!(
        node.ask(client, "CONFIG GET save"),
        "%1\r\n$4\r\nsave\r\n$0\r\n\r\n"
    );
    assert_eq!(node.ask(client, "COMMAND INFO nosuch"), "*1\r\n_\r\n");
    assert!(
        node.ask(client, "HELLO").starts_with("*3\r\n:1\r\n"),
        "the nodes are an array in RESP3 too"
    );
    assert_eq!(
        node.ask(client, "HELLO 3 SETNAME a SETNAME"),
        "-ERR Syntax error in HELLO option 'SETNAME'\r\n"
    );
    assert_eq!(
        node.ask(client, "CLIENT GETNAME"),
        "$2\r\nme\r\n",
        "a refused handshake changes nothing"
    );
    assert!(node.ask(client, "HELLO 2").starts_with("*14\r\n"));
    assert_eq!(node.ask(client, "COMMAND INFO nosuch"), "*1\r\n$-1\r\n");
    assert_eq!(
        node.ask(client, "HELLO 4"),
        "-NOPROTO unsupported protocol version\r\n"
    );
    assert_eq!(node.ask(client, "RESET"), "+RESET\r\n");
    assert_eq!(node.ask(client, "CLIENT GETNAME"), "$-1\r\n");
}

#[test]
fn settings_change_on_every_shard_or_not_at_all() {
    let mut node = node();
    let (one, other) = (node.connect(), node.connect());
    assert_eq!(
        node.ask(one, "CONFIG SET maxmemory 3mb loglevel debug"),
        "+OK\r\n"
    );
    for told in [("maxmemory", "3145728"), ("loglevel", "debug")] {
        assert!(
            node.settings
                .iter()
                .any(|(name, value)| (*name, value.as_str()) == told),
            "{:?}",
            node.settings
        );
    }
    assert_eq!(
        node.ask(other, "CONFIG GET maxmemory"),
        "*2\r\n$9\r\nmaxmemory\r\n$7\r\n3145728\r\n"
    );
    assert!(
        node.ask(other, "CONFIG SET maxmemory 1mb port 1")
            .starts_with("-ERR CONFIG SET failed")
    );
    assert_eq!(
        node.ask(one, "CONFIG GET maxmemory"),
        "*2\r\n$9\r\nmaxmemory\r\n$7\r\n3145728\r\n"
    );
    assert_eq!(node.ask(one, "CONFIG SET hz 100"), "+OK\r\n");
    assert!(
        node.log.iter().any(|line| line.contains("'hz'")),
        "{:?}",
        node.log
    );
    assert_eq!(
        node.ask(one, "CONFIG REWRITE"),
        "-ERR The server is running without a config file\r\n"
    );
    assert_eq!(node.ask(one, "CONFIG GET nothing"), "*0\r\n");
}

#[test]
fn info_tells_about_all_shards() {
    let mut node = node();
    let clients = [node.connect(), node.connect(), node.connect()];
    for client in clients {
        assert_eq!(node.ask(client, "PING"), "+PONG\r\n");
    }
    for queue in 0..20 {
        assert!(
            node.ask(clients[0], &format!("ADDJOB q{queue} body 0"))
                .starts_with("+D-")
        );
    }
    let reply = node.ask(clients[1], "INFO");
    let text = bulk(&reply);
    assert_eq!(field(text, "connected_clients"), "3");
    assert_eq!(field(text, "registered_jobs"), "20");
    assert_eq!(field(text, "queued_jobs"), "20");
    assert_eq!(field(text, "registered_queues"), "20");
    assert_eq!(field(text, "jobs_added"), "20");
    assert_eq!(field(text, "loading"), "0");
    assert_eq!(field(text, "total_connections_received"), "3");
    assert!(
        field(text, "used_memory")
            .parse::<u64>()
            .is_ok_and(|bytes| bytes > 2_000)
    );
    assert_eq!(
        text.matches("\r\nshard").count(),
        4,
        "a line for each shard, and how many there are"
    );
    let reply = node.ask(clients[1], "INFO commandstats");
    assert!(field(bulk(&reply), "cmdstat_addjob").starts_with("calls=20,"));
    assert!(field(bulk(&reply), "cmdstat_ping").starts_with("calls=3,"));
    assert_eq!(node.ask(clients[1], "INFO nonsense"), "$0\r\n\r\n");
    assert_eq!(node.ask(clients[1], "INFO a b"), "-ERR syntax error\r\n");
    assert_eq!(node.ask(clients[1], "CONFIG RESETSTAT"), "+OK\r\n");
    let reply = node.ask(clients[1], "INFO all");
    assert_eq!(field(bulk(&reply), "total_connections_received"), "0");
    assert_eq!(field(bulk(&reply), "registered_jobs"), "20");
    assert!(!bulk(&reply).contains("cmdstat_ping"));
}

#[test]
fn clients_are_listed_and_ended() {
    let mut node = node();
    let clients = [node.connect(), node.connect(), node.connect()];
    assert_eq!(node.ask(clients[2], "CLIENT SETNAME third"), "+OK\r\n");
    assert_eq!(node.ask(clients[2], "CLIENT SETINFO LIB-NAME lib"), "+OK\r\n");
    let reply = node.ask(clients[0], "CLIENT LIST");
    let lines: Vec<&str> = bulk(&reply).lines().collect();
    assert_eq!(lines.len(), 3);
    assert!(
        lines[2].starts_with("id=3 addr=127.0.0.1:40003 fd=-1 name=third age=0 idle=0 flags=N "),
        "{}",
        lines[2]
    );
    assert!(lines[2].ends_with(" lib-name=lib lib-ver="), "{}", lines[2]);
    let reply = node.ask(clients[0], "CLIENT LIST ID 2 9");
    assert!(bulk(&reply).starts_with("id=2 ") && bulk(&reply).lines().count() == 1);
    assert_eq!(
        node.ask(clients[0], "CLIENT KILL 127.0.0.1:1"),
        "-ERR No such client\r\n"
    );
    assert_eq!(node.ask(clients[0], "CLIENT KILL ID 9"), ":0\r\n");
    assert_eq!(node.ask(clients[0], "CLIENT KILL 127.0.0.1:40003"), "+OK\r\n");
    assert!(node.is_closed(clients[2]));
    assert_eq!(node.ask(clients[0], "CLIENT KILL TYPE normal"), ":1\r\n");
    assert!(node.is_closed(clients[1]) && !node.is_closed(clients[0]));
    let reply = node.ask(clients[0], "CLIENT LIST");
    assert_eq!(bulk(&reply).lines().count(), 1);
}

#[test]
fn replies_can_be_turned_off() {
    let mut node = node();
    let client = node.connect();
    assert_eq!(node.ask(client, "CLIENT REPLY SKIP"), "");
    assert_eq!(node.ask(client, "PING"), "");
    assert_eq!(node.ask(client, "PING"), "+PONG\r\n");
    assert_eq!(node.ask(client, "CLIENT REPLY OFF"), "");
    assert_eq!(node.ask(client, "PING"), "");
    assert_eq!(node.ask(client, "INFO"), "");
    assert_eq!(node.ask(client, "CLIENT REPLY SKIP"), "");
    assert_eq!(node.ask(client, "PING"), "");
    assert_eq!(node.ask(client, "CLIENT REPLY ON"), "+OK\r\n");
    assert_eq!(node.ask(client, "PING"), "+PONG\r\n");
}

#[test]
fn clients_are_paused_and_unpaused() {
    let mut node = node();
    let (one, other) = (node.connect(), node.connect());
    assert_eq!(node.ask(one, "CLIENT PAUSE 100 WRITE"), "+OK\r\n");
    assert_eq!(node.ask(other, "PING"), "+PONG\r\n");
    assert_eq!(node.ask(other, "ADDJOB q b 0"), "");
    node.wait_ms(99);
    assert_eq!(node.received(other), "");
    node.wait_ms(2);
    assert!(node.received(other).starts_with("+D-"));
    assert_eq!(node.ask(one, "CLIENT PAUSE 100000"), "+OK\r\n");
    assert_eq!(node.ask(other, "PING"), "");
    assert_eq!(node.ask(one, "CLIENT UNPAUSE"), "+OK\r\n");
    assert_eq!(node.received(other), "+PONG\r\n");
}

#[test]
fn monitors_see_all_shards_and_no_passwords() {
    let mut node = node();
    let (monitor, other) = (node.connect(), node.connect());
    assert_eq!(node.ask(monitor, "MONITOR"), "+OK\r\n");
    assert_eq!(node.ask(other, "AUTH default secret"), "+OK\r\n");
    assert_eq!(node.ask_words(other, &["PING", "a\"b\n"]), "$4\r\na\"b\n\r\n");
    node.wait_ms(1);
    let lines = node.received(monitor);
    let lines: Vec<&str> = lines.lines().collect();
    assert!(
        lines[0].ends_with(r#" [127.0.0.1:40002] "AUTH" "(redacted)" "(redacted)""#),
        "{lines:?}"
    );
    assert!(
        lines[1].ends_with(r#" [127.0.0.1:40002] "PING" "a\"b\n""#),
        "{lines:?}"
    );
    assert!(lines[0].starts_with("+1700000000."));
    let second = node.connect();
    assert!(node.ask(second, "MONITOR").starts_with("+OK\r\n"));
    node.disconnect(second);
    let again = node.ask(monitor, "MONITOR");
    assert!(!again.contains("+OK"), "{again}");
    assert!(node.ask(monitor, "RESET").contains("+RESET\r\n"));
    node.ask(other, "PING");
    node.wait_ms(1);
    assert!(!node.received(monitor).contains("PING"));
}

#[test]
fn names_and_patterns_are_bounded() {
    let mut node = node();
    let client = node.connect();
    let many = |front: &str, count: usize| format!("{front}{}", " x".repeat(count));
    for front in ["COMMAND INFO", "COMMAND DOCS", "LATENCY HISTOGRAM"] {
        let refused = node.ask(client, &many(front, 1025));
        assert_eq!(refused, "-ERR too many names, at most 1024\r\n", "{front}");
        let answered = node.ask(client, &many(front, 1024));
        assert!(answered.starts_with('*'), "{front}: {answered}");
    }
    assert_eq!(
        node.ask(client, &many("LATENCY RESET", 1025)),
        "-ERR too many events, at most 1024\r\n"
    );
    let too_long = "-ERR pattern is too long, at most 256 bytes\r\n";
    let pattern = format!("*[{}", "a".repeat(255));
    for front in ["CONFIG GET", "COMMAND LIST FILTERBY PATTERN"] {
        assert_eq!(node.ask(client, &format!("{front} {pattern}")), too_long);
        let shorter = format!("{front} {}", &pattern[..256]);
        assert_eq!(&node.ask(client, &shorter)[..1], "*");
    }
}

#[test]
fn a_reset_of_the_last_monitor_ends_the_feed() {
    let mut node = node();
    let (monitor, other) = (node.connect(), node.connect());
    assert_eq!(node.ask(monitor, "MONITOR"), "+OK\r\n");
    node.ask(other, "PING");
    assert_eq!(node.feed_messages, 1, "the clients are on two shards");
    assert!(node.received(monitor).contains("PING"));
    assert!(node.ask(monitor, "RESET").contains("+RESET\r\n"));
    node.feed_messages = 0;
    node.ask(other, "PING");
    node.ask(other, "PING");
    assert_eq!((node.feed_messages, node.received(monitor)), (0, String::new()));
    assert_eq!(node.ask(monitor, "MONITOR"), "+OK\r\n");
    node.ask(other, "PING");
    assert!(
        node.received(monitor).contains("PING"),
        "the feed can be had again"
    );
}

#[test]
fn slow_commands_are_kept() {
    let mut node = TestNode::new(
        2,
        Settings {
            slowlog_slower_than_us: 0,
            ..Settings::default()
        },
    );
    let (one, other) = (node.connect(), node.connect());
    assert_eq!(node.ask(one, "PING one"), "$3\r\none\r\n");
    assert_eq!(node.ask(other, "AUTH default x"), "+OK\r\n");
    let entries = node.ask(one, "SLOWLOG GET 10");
    assert!(entries.contains("*2\r\n$4\r\nPING\r\n$3\r\none\r\n"), "{entries}");
    assert!(
        entries.contains("*3\r\n$4\r\nAUTH\r\n$10\r\n(redacted)\r\n"),
        "{entries}"
    );
    assert!(entries.contains("*4\r\n:"));
    assert_eq!(node.ask(other, "SLOWLOG RESET"), "+OK\r\n");
    assert_eq!(
        node.ask(other, "CONFIG SET slowlog-log-slower-than 1000000"),
        "+OK\r\n"
    );
    assert_eq!(node.ask(other, "SLOWLOG RESET"), "+OK\r\n");
    assert_eq!(node.ask(other, "SLOWLOG LEN"), ":0\r\n");
    assert_eq!(
        node.ask(other, "SLOWLOG GET x"),
        "-ERR value is not an integer or out of range\r\n"
    );
}

#[test]
fn latency_of_all_shards() {
    let mut node = node();
    let (one, other) = (node.connect(), node.connect());
    node.ask(one, "PING");
    node.ask(other, "PING");
    let histogram = node.ask(one, "LATENCY HISTOGRAM ping nosuch");
    assert!(
        histogram.starts_with("*2\r\n$4\r\nping\r\n*4\r\n$5\r\ncalls\r\n:2\r\n$14\r\nhistogram_usec\r\n*"),
        "{histogram}"
    );
    assert_eq!(node.ask(one, "LATENCY LATEST"), "*0\r\n");
    assert_eq!(node.ask(one, "LATENCY HISTORY command"), "*0\r\n");
    assert_eq!(
        node.ask(one, "LATENCY GRAPH command"),
        "-ERR No samples available for event 'command'\r\n"
    );
    assert_eq!(node.ask(one, "LATENCY RESET"), ":0\r\n");
    assert!(bulk(&node.ask(one, "LATENCY DOCTOR")).starts_with("The latency monitor is off."));
}

#[test]
fn debug_flushes_sleeps_and_crashes_only_when_allowed() {
    let mut node = node();
    let client = node.connect();
    for queue in 0..10 {
        assert!(
            node.ask(client, &format!("ADDJOB q{queue} body 0"))
                .starts_with("+D-")
        );
    }
    assert_eq!(node.ask(client, "DEBUG FLUSHALL"), "+OK\r\n");
    assert_eq!(
        field(bulk(&node.ask(client, "INFO jobs")), "registered_jobs"),
        "0"
    );
    assert_eq!(node.ask(client, "DEBUG SLEEP 0.05"), "");
    node.wait_ms(49);
    assert_eq!(node.received(client), "");
    node.wait_ms(2);
    assert_eq!(node.received(client), "+OK\r\n");
    assert!(
        node.ask(client, "DEBUG SEGFAULT")
            .contains("enable-debug-command")
    );
    assert!(!node.crashed);
    let mut node = TestNode::new(
        1,
        Settings {
            enable_debug_command: true,
            ..Settings::default()
        },
    );
    let client = node.connect();
    node.ask(client, "DEBUG SEGFAULT");
    assert!(node.crashed);
}

#[test]
fn shutdown_closes_without_a_reply() {
    let mut node = node();
    let (one, other) = (node.connect(), node.connect());
    assert_eq!(node.ask(one, "SHUTDOWN NOSAVE"), "");
    assert!(node.is_closed(one) && node.is_closed(other));
    assert_eq!(node.stopped, 3);
}
