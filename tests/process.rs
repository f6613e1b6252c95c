//! The process: how it starts, from which settings, how it refuses to, and how it stops.
//!
//! Whoever starts a broker gets either a broker or one plain sentence and exit code 1, never a panic; whoever stops it gets back every
//! reply that was on its way and exit code 0.

mod support;

use std::collections::BTreeSet;
use std::fs;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::time::{Duration, Instant};

use support::wire::Wire;
use support::{PATIENCE, Server, Setup, call, eventually, free_port, read_to_end};
use tools::address::Address;
use tools::client::Client;

fn setting(client: &mut Client, name: &str) -> String {
    let reply = call(client, &format!("CONFIG GET {name}"));
    reply.array().expect("a pair")[1].text().expect("text").to_owned()
}

#[test]
fn signals_stop_in_order() {
    for signal in [libc::SIGTERM, libc::SIGINT] {
        let mut server = Server::start("--shards 2 --pidfile shardq.pid");
        let pid = fs::read_to_string(server.path("shardq.pid")).expect("the file is written");
        assert_eq!(pid.trim(), server.process_id().to_string());
        let mut client = server.client();
        let body = vec![b'x'; 1 << 20];
        for _ in 0..8 {
            client
                .call_ok(&[b"ADDJOB", &b"q"[..], &body, b"0"])
                .expect("accepted");
        }
        let mut blocked = Wire::connect(&server);
        blocked.send("GETJOB FROM none");
        eventually("it waits", || server.info("clients", "blocked_clients") == "1");
        // A reply that is larger than what the kernel holds, and under way when the signal comes.
        let mut reader = TcpStream::connect(("127.0.0.1", server.port())).expect("accepted");
        reader.set_read_timeout(Some(PATIENCE)).expect("a timeout");
        reader.write_all(b"QPEEK q 8\r\n").expect("sent");
        reader.peek(&mut [0]).expect("the reply begins");
        server.signal(signal);
        let reply = read_to_end(&mut reader);
        assert!(
            reply.starts_with(b"*8\r\n") && reply.ends_with(b"\r\n") && reply.len() > 8 << 20,
            "{} bytes",
            reply.len()
        );
        assert_eq!(blocked.read_to_end(), b"");
        let status = server.wait_exit();
        assert_eq!(status.code(), Some(0), "{}", server.log());
        assert!(
            TcpStream::connect(("127.0.0.1", server.port())).is_err(),
            "nobody listens any more"
        );
        assert!(!server.path("shardq.pid").exists());
        assert!(server.log().contains("stopped"), "{}", server.log());
    }
}

#[test]
fn shutdown_ends_every_connection() {
    let mut server = Server::start("--shards 2");
    let mut blocked: Vec<Wire> = (0..4).map(|_| Wire::connect(&server)).collect();
    for wire in &mut blocked {
        wire.send("GETJOB FROM none");
    }
    eventually("all wait", || server.info("clients", "blocked_clients") == "4");
    let mut wire = Wire::connect(&server);
    assert_eq!(
        wire.ask_to_end(b"PING\r\nSHUTDOWN NOSAVE\r\n"),
        "+PONG\r\n",
        "SHUTDOWN has no reply, and takes none away"
    );
    for wire in &mut blocked {
        assert_eq!(wire.read_to_end(), b"");
    }
    assert_eq!(server.wait_exit().code(), Some(0));
}

#[test]
fn a_port_is_taken_again_right_after_kill_9() {
    let mut server = Server::start("--shards 2");
    let port = server.port();
    for _ in 0..5 {
        let mut clients: Vec<Client> = (0..20).map(|_| server.client()).collect();
        clients.iter_mut().for_each(|client| drop(call(client, "PING")));
        server.signal(libc::SIGKILL);
        let folder = server.into_folder();
        server = Setup::flags("--shards 2").start_at(port, folder);
    }
    call(&mut server.client(), "PING");
}

#[test]
fn a_unix_socket_of_a_dead_server_is_replaced_and_that_of_a_living_one_is_not() {
    let setup = Setup::flags("--shards 1 --unixsocket shardq.sock --unixsocketperm 600");
    let server = setup.clone().start();
    let port = server.port();
    let path = server.path("shardq.sock");
    assert_eq!(
        fs::metadata(&path).expect("it is there").permissions().mode() & 0o777,
        0o600
    );
    let (code, output) = Setup::flags("--shards 1")
        .argument("--unixsocket")
        .argument(&path.display().to_string())
        .fail();
    assert_eq!(code, Some(1), "{output}");
    assert!(output.contains("cannot listen on the Unix socket"), "{output}");
    server.signal(libc::SIGKILL);
    let folder = server.into_folder();
    assert!(path.exists(), "a killed server leaves its socket");
    let mut again = setup.start_at(port, folder);
    let mut client = Client::connect(&Address::unix(&path), PATIENCE).expect("it listens");
    call(&mut client, "PING");
    again.signal(libc::SIGTERM);
    again.wait_exit();
    assert!(!path.exists(), "a server that stops in order removes its socket");
}

#[test]
fn a_node_keeps_its_id_and_its_file_for_itself() {
    let server = Server::start("--shards 2");
    let port = server.port();
    let id_of = |server: &Server| {
        let reply = call(&mut server.client(), "CLUSTER MYID");
        reply.text().expect("an ID").to_owned()
    };
    let id = id_of(&server);
    let text = || fs::read_to_string(server.path("nodes.conf")).unwrap_or_default();
    eventually("nodes.conf is written", || text().contains("generation 1 "));
    assert!(text().starts_with(&id), "{id}");
    let (code, output) = Setup::flags("--shards 1")
        .argument("--dir")
        .argument(&server.path("").display().to_string())
        .fail();
    assert_eq!(code, Some(1), "{output}");
    assert!(
        output.contains("another server uses") && output.contains("--cluster-config-file"),
        "{output}"
    );
    server.signal(libc::SIGKILL);
    let server = Setup::flags("--shards 1").start_at(port, server.into_folder());
    assert_eq!(id_of(&server), id);
    let text = || fs::read_to_string(server.path("nodes.conf")).unwrap_or_default();
    eventually("the start is counted", || text().contains("generation 2 "));
    let (code, output) = Setup::flags("--shards 1").file("nodes.conf", "nonsense\n").fail();
    assert_eq!(code, Some(1), "{output}");
    assert!(
        output.contains("nodes.conf is damaged") && output.contains("line 1"),
        "{output}"
    );
    assert_no_panic(&output);
}

/// Starts that must fail, with what the message must name.
#[test]
fn bad_settings_are_named_with_their_place() {
    let file = |text: &str| Setup::flags("bad.conf --shards 1").file("bad.conf", text);
    for (setup, parts) in [
        (
            file("# comment\n\nmaxclient 3\n"),
            vec!["bad.conf:3", "maxclients"],
        ),
        (file("timeout many\n"), vec!["bad.conf:1", "timeout"]),
        (file("timeout 1\nrequirepass \"x\n"), vec!["bad.conf:2", "quotes"]),
        (file("include none.conf\n"), vec!["none.conf"]),
        (Setup::flags("none.conf"), vec!["none.conf", "No such file"]),
        (Setup::flags("--maxmemory lots"), vec!["--maxmemory", "maxmemory"]),
        (Setup::flags("--maxclient 5"), vec!["--maxclients"]),
        (Setup::flags("--shards 100000"), vec!["shards"]),
        (Setup::flags("--cpus 4000"), vec!["cpus"]),
        (Setup::flags("--dir /nowhere/at/all"), vec!["dir", "No such file"]),
        (Setup::flags("--logfile /nowhere/at/all"), vec!["/nowhere/at/all"]),
        (Setup::flags("--bind 192.0.2.1"), vec!["192.0.2.1", "--bind"]),
        (
            Setup::flags("--port 0").without_port(),
            vec!["nothing to listen on"],
        ),
        (
            Setup::default().environment("SHARDQ_TIMEOUT", "x"),
            vec!["SHARDQ_TIMEOUT"],
        ),
    ] {
        let (code, output) = setup.fail();
        assert_eq!(code, Some(1), "{output}");
        for part in parts {
            assert!(output.contains(part), "{part} is not in: {output}");
        }
        assert_no_panic(&output);
    }
}

fn assert_no_panic(output: &str) {
    for word in ["panicked", "RUST_BACKTRACE", "This is a bug"] {
        assert!(!output.contains(word), "{output}");
    }
}

#[test]
fn later_sources_of_settings_win() {
    let file = "timeout 1000\nslowlog-max-len 5\nmaxclients 300\nhz 20\n";
    let server = Setup::flags("shardq.conf --shards 2 --maxclients 500")
        .file("shardq.conf", file)
        .environment("SHARDQ_SLOWLOG_MAX_LEN", "6")
        .environment("SHARDQ_MAXCLIENTS", "400")
        .environment("SHARDQ_NOTHING", "1")
        .start();
    let mut client = server.client();
    assert_eq!(setting(&mut client, "timeout"), "1000");
    assert_eq!(setting(&mut client, "slowlog-max-len"), "6");
    assert_eq!(setting(&mut client, "maxclients"), "500");
    assert_eq!(setting(&mut client, "hz"), "20");
    let log = server.log();
    assert!(
        log.contains("'hz' is accepted and has no effect") && log.contains("SHARDQ_NOTHING"),
        "{log}"
    );
}

#[test]
fn config_rewrite_keeps_comments_and_finds_the_file_again() {
    let text = "# about this node\ntimeout   1000\n\n# where to run\ndir ..\nmaxclients 300\n";
    let server = Setup::flags("shardq.conf --shards 2")
        .file("shardq.conf", text)
        .start();
    let mut client = server.client();
    call(&mut client, "CONFIG SET maxclients 301");
    call(&mut client, "CONFIG SET dir /");
    call(&mut client, "CONFIG REWRITE");
    let rewritten = fs::read_to_string(server.path("shardq.conf")).expect("it is where it was");
    let kept = "# about this node\ntimeout   1000\n\n# where to run\ndir /\nmaxclients 301\n";
    assert!(rewritten.starts_with(kept), "{rewritten}");
    let leftovers: Vec<_> = fs::read_dir(server.path(""))
        .expect("a folder")
        .filter(|entry| {
            entry
                .as_ref()
                .is_ok_and(|entry| entry.file_name().to_string_lossy().contains(".tmp"))
        })
        .collect();
    assert!(leftovers.is_empty(), "{leftovers:?}");
    // It starts again from what was written, with its own port in it.
    drop(client);
    let port = server.port();
    server.signal(libc::SIGTERM);
    let folder = server.into_folder();
    let again = Setup::flags("shardq.conf").without_port().start_at(port, folder);
    let mut client = again.client();
    assert_eq!(
        (setting(&mut client, "maxclients"), setting(&mut client, "shards")),
        ("301".to_owned(), "2".to_owned())
    );
}

#[test]
fn the_level_and_the_file_of_the_log() {
    let mut server = Setup::flags("--shards 1 --logfile server.log").start();
    let mut client = server.client();
    assert_eq!(setting(&mut client, "loglevel"), "notice");
    call(&mut client, "CONFIG SET hz 50");
    eventually("a warning is logged", || {
        server.log().contains("'hz' was changed")
    });
    call(&mut client, "CONFIG SET loglevel warning");
    assert_eq!(setting(&mut client, "loglevel"), "warning");
    server.signal(libc::SIGTERM);
    assert_eq!(server.wait_exit().code(), Some(0));
    let log = fs::read_to_string(server.path("server.log")).expect("the log");
    assert!(log.contains(" ready on ") && !log.contains("stopped"), "{log}");
}

#[test]
fn a_port_in_use_is_said() {
    // The first port may be taken between the look and the bind.
    let (listener, port) = (0..20)
        .find_map(|_| {
            let port = free_port();
            TcpListener::bind(("127.0.0.1", port))
                .ok()
                .map(|listener| (listener, port))
        })
        .expect("a free port");
    let (code, output) = Setup::flags("--shards 1")
        .argument("--port")
        .argument(&port.to_string())
        .without_port()
        .fail();
    assert_eq!(code, Some(1));
    assert!(
        output.contains(&format!("cannot listen on 127.0.0.1:{port}"))
            && output.contains("Another process listens"),
        "{output}"
    );
    assert_no_panic(&output);
    drop(listener);
}

#[test]
fn a_client_port_without_a_bus_port_above_it_is_said() {
    let (code, output) = Setup::flags("--shards 1 --port 64999").without_port().fail();
    assert_eq!(code, Some(1));
    assert!(output.contains("--bus-port"), "{output}");
    assert_no_panic(&output);
}

#[test]
fn strangers_at_the_bus_port_are_closed_and_harm_nobody() {
    let server = Server::start("--shards 2");
    for garbage in [&b"PING\r\nPING\r\nPING\r\n"[..], &[0; 4096], &[0xff; 12]] {
        let mut socket = TcpStream::connect(("127.0.0.1", server.port() + 10_000)).expect("the bus listens");
        socket.write_all(garbage).expect("the kernel takes it");
        // Nothing is said to it, and a reset is an end, too.
        assert!(!matches!(socket.read(&mut [0; 100]), Ok(1..)));
    }
    eventually("the log says so", || {
        server.log().contains("refused a connection")
    });
    call(&mut server.client(), "PING");
}

#[test]
fn clients_above_the_limit_are_refused_with_a_word() {
    let server = Server::start("--shards 2 --maxclients 3");
    let mut clients: Vec<Client> = (0..3).map(|_| server.client()).collect();
    clients.iter_mut().for_each(|client| drop(call(client, "PING")));
    for _ in 0..3 {
        let mut refused = TcpStream::connect(("127.0.0.1", server.port())).expect("the kernel connects");
        refused.set_read_timeout(Some(PATIENCE)).expect("a timeout");
        assert_eq!(
            read_to_end(&mut refused),
            b"-ERR max number of clients reached\r\n"
        );
    }
    assert_eq!(
        support::info(&mut clients[0], "stats", "rejected_connections"),
        "3"
    );
    clients.pop();
    eventually("the place is free again", || {
        let mut next = server.client();
        next.call(&["PING"])
            .is_ok_and(|reply| reply.text() == Some("PONG"))
    });
    call(&mut clients[0], "CONFIG SET maxclients 100");
    let mut more: Vec<Client> = (0..20).map(|_| server.client()).collect();
    more.iter_mut().for_each(|client| drop(call(client, "PING")));
}

#[test]
fn idle_clients_are_closed_and_blocked_ones_are_not() {
    let server = Server::start("--shards 2 --timeout 1");
    let mut blocked: Vec<Client> = (0..4).map(|_| server.client()).collect();
    for client in &mut blocked {
        client.send(&["GETJOB", "FROM", "q", "r", "s"]).expect("sent");
    }
    for _ in 0..2 {
        let start = Instant::now();
        let mut idle = Wire::connect(&server);
        idle.check("PING", "+PONG\r\n");
        assert_eq!(idle.read_to_end(), b"");
        assert!(
            start.elapsed() >= Duration::from_millis(900),
            "early: {:?}",
            start.elapsed()
        );
    }
    // Who waits longest is not known here: the connections are spread over the shards.
    let mut producer = server.client();
    let added: BTreeSet<String> = (0..4)
        .map(|_| support::add(&mut producer, "ADDJOB r b 0"))
        .collect();
    let received = blocked.iter_mut().map(|client| {
        let reply = client.read_reply().expect("still connected");
        support::jobs(&reply)[0].1.clone()
    });
    assert_eq!(received.collect::<BTreeSet<String>>(), added);
}

#[test]
fn limits_that_are_too_low_are_said_with_their_remedy() {
    for (resource, value, parts) in [
        (
            libc::RLIMIT_MEMLOCK,
            64 << 10,
            ["locked memory", "ulimit -l unlimited"],
        ),
        (libc::RLIMIT_NOFILE, 32, ["files may be open", "ulimit -n"]),
    ] {
        let (code, output) = Setup::flags("--shards 1").limit(resource, value).fail();
        assert_eq!(code, Some(1), "{output}");
        for part in parts {
            assert!(output.contains(part), "{part} is not in: {output}");
        }
        assert_no_panic(&output);
    }
}

#[test]
fn few_files_lower_the_number_of_clients() {
    let server = Setup::flags("--shards 1").limit(libc::RLIMIT_NOFILE, 132).start();
    assert_eq!(setting(&mut server.client(), "maxclients"), "100");
    assert!(
        server.log().contains("maxclients is lowered from 10000 to 100"),
        "{}",
        server.log()
    );
    // All of them fit, and the next one is told.
    let mut clients: Vec<Client> = Vec::new();
    eventually("the first client is gone", || {
        server.info("clients", "connected_clients") == "1"
    });
    for _ in 0..99 {
        let mut client = server.client();
        call(&mut client, "PING");
        clients.push(client);
    }
}

#[test]
fn help_and_version() {
    for (flag, part) in [
        ("--help", "--maxmemory"),
        ("--version", env!("CARGO_PKG_VERSION")),
        ("-v", "shardq"),
    ] {
        let (code, output) = Setup::flags(flag).without_port().fail();
        assert_eq!(code, Some(0));
        assert!(output.contains(part), "{output}");
    }
}
