//! Many, large, slow and vanishing clients: nothing is lost, nobody else notices, and the counts are exact in the end.
//!
//! Sizes are small by default and grow with `SHARDQ_TEST_SCALE`, except where a number is the point (10,000 connections, pipelines of
//! 10,000 commands, a body of 64 MiB).

mod support;

use std::collections::BTreeSet;
use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};

use support::{PATIENCE, Server, add, call, eventually, info, jobs, read_to_end, scaled};
use tools::client::{Client, append_command};
use tools::reply::{self, Protocol, Reply};

fn connect(server: &Server) -> TcpStream {
    let stream = TcpStream::connect(("127.0.0.1", server.port())).expect("the server accepts");
    stream.set_read_timeout(Some(PATIENCE)).expect("a timeout");
    stream
}

fn request(words: &[&[u8]]) -> Vec<u8> {
    let mut bytes = Vec::new();
    append_command(&mut bytes, words);
    bytes
}

/// A request of words separated by blanks.
fn line(line: &str) -> Vec<u8> {
    let words: Vec<&[u8]> = line.split_ascii_whitespace().map(str::as_bytes).collect();
    request(&words)
}

/// Reads this many replies of RESP2.
fn read_replies(stream: &mut TcpStream, count: usize) -> Vec<Reply> {
    let (mut replies, mut arrived, mut read) = (Vec::with_capacity(count), Vec::new(), 0);
    let mut buffer = vec![0; 1 << 16];
    while replies.len() < count {
        match reply::decode(Protocol::Resp2, &arrived[read..]).expect("replies are RESP") {
            Some((reply, length)) => {
                replies.push(reply);
                read += length;
            }
            None => {
                arrived.drain(..std::mem::take(&mut read));
                let bytes = stream.read(&mut buffer).expect("replies come");
                assert!(bytes > 0, "closed after {} of {count} replies", replies.len());
                arrived.extend_from_slice(&buffer[..bytes]);
            }
        }
    }
    assert_eq!(arrived.len(), read, "bytes behind the last reply");
    replies
}

/// Writes on a thread of its own while the replies are read.
fn pipeline(stream: &mut TcpStream, requests: Vec<u8>, count: usize) -> Vec<Reply> {
    let mut writer = stream.try_clone().expect("a second handle");
    let writing = std::thread::spawn(move || writer.write_all(&requests).expect("the server reads"));
    let replies = read_replies(stream, count);
    writing.join().expect("all was written");
    replies
}

/// Raises the limit on open files as far as it goes.
fn raise_file_limit() -> u64 {
    let mut limit = libc::rlimit {
        rlim_cur: 0,
        rlim_max: 0,
    };
    // SAFETY: both calls only use the structure they are given.
    unsafe {
        assert_eq!(libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit), 0);
        limit.rlim_cur = limit.rlim_max;
        assert_eq!(libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit), 0);
    }
    limit.rlim_max
}

#[test]
fn ten_thousand_idle_connections_and_a_thousand_blocked_consumers() {
    const IDLE: usize = 10_000;
    const BLOCKED: usize = 1_000;
    const QUEUES: usize = 50;
    let files = raise_file_limit();
    assert!(
        files > (IDLE + BLOCKED + 200) as u64,
        "{files} files may be open: raise it with `ulimit -n 20000`"
    );
    let server = Server::start("--shards 2 --maxclients 12000");
    let mut control = server.client();
    let mut idle: Vec<TcpStream> = (0..IDLE).map(|_| connect(&server)).collect();
    let mut consumers: Vec<TcpStream> = (0..BLOCKED).map(|_| connect(&server)).collect();
    let all = (IDLE + BLOCKED + 1).to_string();
    eventually("all are connected", || {
        info(&mut control, "clients", "connected_clients") == all
    });
    for (number, consumer) in consumers.iter_mut().enumerate() {
        // Every other one waits on queues of several home shards.
        let queue = number % QUEUES;
        let others = if number % 2 == 0 {
            ""
        } else {
            " never-1 never-2 never-3"
        };
        consumer
            .write_all(&line(&format!("GETJOB FROM queue-{queue}{others}")))
            .expect("sent");
    }
    eventually("all consumers wait", || {
        info(&mut control, "clients", "blocked_clients") == BLOCKED.to_string()
    });
    let requests: Vec<u8> = (0..BLOCKED)
        .flat_map(|number| line(&format!("ADDJOB queue-{} {number} 0", number % QUEUES)))
        .collect();
    let mut producer = connect(&server);
    let added: BTreeSet<String> = pipeline(&mut producer, requests, BLOCKED)
        .iter()
        .map(|reply| reply.text().expect("an ID").to_owned())
        .collect();
    let mut received = BTreeSet::new();
    for (number, consumer) in consumers.iter_mut().enumerate() {
        let got = jobs(&read_replies(consumer, 1)[0]);
        assert_eq!((got.len(), &got[0].0), (1, &format!("queue-{}", number % QUEUES)));
        received.insert(got[0].1.clone());
    }
    assert_eq!(
        received, added,
        "each consumer got a job, and each job went to one"
    );
    for stream in &mut idle {
        stream.write_all(b"PING\r\n").expect("sent");
    }
    for stream in &mut idle {
        assert_eq!(read_replies(stream, 1), [Reply::Simple("PONG".to_owned())]);
    }
    drop((idle, consumers, producer));
    eventually("all are gone", || {
        info(&mut control, "clients", "connected_clients") == "1"
    });
}

#[test]
fn pipelines_of_ten_thousand_commands_are_answered_in_order() {
    const COMMANDS: usize = 10_000;
    for shards in [1, 2] {
        let server = Server::start(&format!("--shards {shards}"));
        let connections: Vec<_> = (0..2).map(|number| (number, connect(&server))).collect();
        std::thread::scope(|scope| {
            for (connection, mut stream) in connections {
                scope.spawn(move || ordered_pipeline(&mut stream, connection, COMMANDS));
            }
        });
        assert_eq!(server.info("all", "queued_jobs"), "0");
    }
}

/// Adds a job to one of many queues, says a number, asks an empty queue, takes the job: whose answer is whose shows at each place.
fn ordered_pipeline(stream: &mut TcpStream, connection: usize, commands: usize) {
    let mut requests = Vec::new();
    for place in 0..commands {
        let queue = format!("queue-{connection}-{}", place / 4 % 7);
        requests.extend(line(&match place % 4 {
            0 => format!("ADDJOB {queue} {place} 0"),
            1 => format!("ECHO {place}"),
            2 => format!("QLEN none-{place}"),
            _ => format!("GETJOB NOHANG FROM {queue}"),
        }));
    }
    let mut added = String::new();
    for (place, reply) in pipeline(stream, requests, commands).into_iter().enumerate() {
        match place % 4 {
            0 => {
                added = reply
                    .text()
                    .unwrap_or_else(|| panic!("at {place}: {reply:?}"))
                    .to_owned()
            }
            1 => assert_eq!(reply, Reply::Bulk(place.to_string().into_bytes())),
            2 => assert_eq!(reply, Reply::Integer(0), "at {place}"),
            _ => {
                let got = jobs(&reply);
                assert_eq!(got.len(), 1, "at {place}");
                assert_eq!(
                    (&got[0].1, &got[0].2),
                    (&added, &(place - 3).to_string().into_bytes()),
                    "at {place}"
                );
            }
        }
    }
}

#[test]
fn a_body_of_64_mib_goes_there_and_back() {
    let server = Server::start("--shards 2 --maxmemory 2gb");
    let body: Vec<u8> = (0..64_u32 << 20)
        .map(|at| (at ^ (at >> 8) ^ (at >> 16)) as u8)
        .collect();
    let mut bystander = server.client();
    // Names of both shards: in one case the body crosses from one core to the other.
    for queue in ["large-1", "large-2", "large-3"] {
        let mut stream = connect(&server);
        let replies = pipeline(
            &mut stream,
            request(&[b"ADDJOB", queue.as_bytes(), &body, b"0"]),
            1,
        );
        let id = replies[0].text().expect("an ID").to_owned();
        call(&mut bystander, "PING");
        let replies = pipeline(&mut stream, line(&format!("GETJOB FROM {queue}")), 1);
        let got = jobs(&replies[0]);
        assert_eq!(got[0].1, id);
        assert!(got[0].2 == body, "the body came back changed");
        call(&mut bystander, &format!("ACKJOB {id}"));
    }
    drop(body);
    eventually("its memory is given back", || {
        let used: u64 = info(&mut bystander, "memory", "used_memory")
            .parse()
            .expect("a number");
        used < 16 << 20
    });
}

#[test]
fn a_slow_reader_is_held_back_and_then_served() {
    let server = Server::start("--shards 2");
    let mut bystander = server.client();
    let count = scaled(300);
    let text = vec![b'x'; 100_000];
    let mut slow = connect(&server);
    let mut writer = slow.try_clone().expect("a second handle");
    let requests = request(&[b"ECHO", &text]).repeat(count);
    let writing =
        std::thread::spawn(move || writer.write_all(&requests).expect("the server reads in the end"));
    let address = slow.local_addr().expect("connected").to_string();
    // It stops: nothing more is produced for it, and only so much is kept of it.
    let mut before = String::new();
    let mut same = 0;
    eventually("it is held back", || {
        call(&mut bystander, "QLEN q");
        let list = call(&mut bystander, "CLIENT LIST");
        let own = list
            .text()
            .expect("text")
            .lines()
            .find(|line| line.contains(&address))
            .expect("listed")
            .to_owned();
        let field = |name: &str| {
            let value = own
                .split(' ')
                .find_map(|field| field.strip_prefix(name))
                .expect("a field");
            value.parse::<u64>().expect("a number")
        };
        let (kept, unread) = (field("qbuf="), field("obl="));
        assert!(kept < 2 << 20 && unread < 2 << 20, "grows: {own}");
        same = if own.contains("events=rw") && before == format!("{kept} {unread}") {
            same + 1
        } else {
            0
        };
        before = format!("{kept} {unread}");
        same > 20
    });
    assert!(!writing.is_finished(), "the server took everything in");
    for reply in read_replies(&mut slow, count) {
        assert!(reply == Reply::Bulk(text.clone()));
    }
    writing.join().expect("all was written");
}

#[test]
fn who_does_not_read_is_cut_at_the_output_limit() {
    let mut setup = support::Setup::flags("--shards 2");
    for argument in ["--client-output-buffer-limit", "normal 16mb 0 0"] {
        setup = setup.argument(argument);
    }
    let server = setup.start();
    let mut bystander = server.client();
    let mut deaf = connect(&server);
    deaf.write_all(&line("MONITOR")).expect("sent");
    let word = vec![b'x'; 100 << 10];
    eventually("it is cut", || {
        for _ in 0..20 {
            bystander.call(&[&b"ECHO"[..], &word]).expect("served");
        }
        info(&mut bystander, "all", "clients_over_output_limit") == "1"
    });
    eventually("it is gone", || {
        info(&mut bystander, "clients", "connected_clients") == "1"
    });
}

/// The jobs that clients have seen, by what they were promised.
#[derive(Default)]
struct Seen {
    /// RETRY 0, every ID once.
    at_most_once: BTreeSet<String>,
    /// RETRY 1.
    at_least_once: BTreeSet<String>,
}

impl Seen {
    fn note(&mut self, reply: &Reply) -> Vec<String> {
        let mut ids = Vec::new();
        for (queue, id, _) in jobs(reply) {
            if queue.starts_with("once") {
                assert!(self.at_most_once.insert(id.clone()), "{id} was handed out twice");
            } else {
                self.at_least_once.insert(id.clone());
            }
            ids.push(id);
        }
        ids
    }

    /// Fetches and acknowledges until nothing is queued.
    fn drain(&mut self, client: &mut Client, queues: &str) {
        loop {
            let reply = call(client, &format!("GETJOB NOHANG COUNT 50 FROM {queues}"));
            let ids = self.note(&reply);
            if ids.is_empty() {
                return;
            }
            assert_eq!(
                call(client, &format!("ACKJOB {}", ids.join(" "))).integer(),
                Some(ids.len() as i64)
            );
        }
    }
}

const QUEUES: &str = "once-1 once-2 again-1 again-2";

/// Adds `count` jobs of RETRY 0 and as many of RETRY 1, over both shards' queues.
fn add_both(client: &mut Client, count: usize, body: &[u8]) -> (BTreeSet<String>, BTreeSet<String>) {
    let mut one = |kind: &str, retry: &str, number: usize| {
        let queue = format!("{kind}-{}", number % 2 + 1);
        let words: [&[u8]; 6] = [
            b"ADDJOB",
            queue.as_bytes(),
            body,
            b"0",
            b"RETRY",
            retry.as_bytes(),
        ];
        client
            .call_ok(&words)
            .expect("accepted")
            .text()
            .expect("an ID")
            .to_owned()
    };
    let once = (0..count).map(|number| one("once", "0", number)).collect();
    let again = (0..count).map(|number| one("again", "1", number)).collect();
    (once, again)
}

/// Fetches until every RETRY 1 job has come; then says what became of the others: every one was seen, or is kept as handed out.
fn settle(server: &Server, mut seen: Seen, once: &BTreeSet<String>, again: &BTreeSet<String>) {
    let mut client = server.client();
    eventually("every RETRY 1 job comes back", || {
        seen.drain(&mut client, QUEUES);
        seen.at_least_once.is_superset(again)
    });
    assert_eq!(&seen.at_least_once, again, "and no other");
    assert!(seen.at_most_once.is_subset(once));
    eventually("all is acknowledged or handed out", || {
        seen.drain(&mut client, QUEUES);
        info(&mut client, "all", "queued_jobs") == "0"
            && info(&mut client, "jobs", "registered_jobs")
                == (once.len() - seen.at_most_once.len()).to_string()
    });
    let (_, left) = scan_all(&mut client);
    let handed_out: BTreeSet<String> = once.difference(&seen.at_most_once).cloned().collect();
    assert_eq!(left, handed_out, "what is left went to clients that vanished");
    eventually("no client is left", || {
        info(&mut client, "clients", "connected_clients") == "1"
    });
    assert_eq!(info(&mut client, "clients", "blocked_clients"), "0");
}

fn scan_all(client: &mut Client) -> (String, BTreeSet<String>) {
    let reply = call(client, "JSCAN BUSYLOOP");
    let page = reply.array().expect("a page");
    let ids = page[1]
        .array()
        .expect("elements")
        .iter()
        .map(|id| id.text().expect("an ID").to_owned());
    (page[0].text().expect("a cursor").to_owned(), ids.collect())
}

#[test]
fn clients_that_vanish_within_a_request_add_nothing() {
    let server = Server::start("--shards 2");
    let whole = line("ADDJOB half body 0");
    for cut in 0..whole.len() {
        let mut stream = connect(&server);
        stream.write_all(&whole[..cut]).expect("sent");
        if cut % 2 == 0 {
            stream.shutdown(Shutdown::Write).expect("open");
            assert_eq!(read_to_end(&mut stream), b"", "cut at {cut}");
        }
    }
    let mut client = server.client();
    eventually("all are gone", || {
        info(&mut client, "clients", "connected_clients") == "1"
    });
    assert_eq!(call(&mut client, "QLEN half"), Reply::Integer(0));
    assert_eq!(info(&mut client, "jobs", "registered_jobs"), "0");
}

#[test]
fn clients_that_vanish_behind_their_requests_have_added() {
    let server = Server::start("--shards 2");
    let (clients, each) = (scaled(50), 40);
    for number in 0..clients {
        let mut stream = connect(&server);
        let requests: Vec<u8> = (0..each)
            .flat_map(|job| line(&format!("ADDJOB left-{} {number} 0", job % 4)))
            .collect();
        stream.write_all(&requests).expect("sent");
        // An orderly end: everything before it counts. Nobody reads the replies.
        stream.shutdown(Shutdown::Write).expect("open");
        if number % 2 == 0 {
            assert!(read_to_end(&mut stream).ends_with(b"\r\n"));
        } else {
            // The kernel takes the replies; the connection ends once the server has ended it.
            eventually("the server ends it", || stream.peek(&mut [0]).is_ok());
        }
    }
    let mut client = server.client();
    let expected = (clients.div_ceil(2) * each) as i64;
    eventually("what was read to the end was added", || {
        let lengths = (0..4).map(|queue| {
            call(&mut client, &format!("QLEN left-{queue}"))
                .integer()
                .expect("a number")
        });
        lengths.sum::<i64>() >= expected
    });
    eventually("all are gone", || {
        info(&mut client, "clients", "connected_clients") == "1"
    });
    let registered: i64 = info(&mut client, "jobs", "registered_jobs")
        .parse()
        .expect("a number");
    let queued: i64 = info(&mut client, "all", "queued_jobs").parse().expect("a number");
    let added: i64 = info(&mut client, "all", "jobs_added").parse().expect("a number");
    assert_eq!((registered, queued), (added, added), "counts agree");
    assert!(added <= (clients * each) as i64);
}

#[test]
fn blocked_clients_that_vanish_take_no_job() {
    let server = Server::start("--shards 2");
    let mut client = server.client();
    let count = scaled(100);
    let blocked: Vec<TcpStream> = (0..count)
        .map(|number| {
            let mut stream = connect(&server);
            let queues = if number % 2 == 0 { QUEUES } else { "once-1" };
            stream
                .write_all(&line(&format!("GETJOB FROM {queues}")))
                .expect("sent");
            stream
        })
        .collect();
    eventually("all wait", || {
        info(&mut client, "clients", "blocked_clients") == count.to_string()
    });
    drop(blocked);
    eventually("none waits", || {
        info(&mut client, "clients", "blocked_clients") == "0"
    });
    let (once, again) = add_both(&mut client, count, b"body");
    let mut seen = Seen::default();
    seen.drain(&mut client, QUEUES);
    assert_eq!(
        (&seen.at_most_once, &seen.at_least_once),
        (&once, &again),
        "all of them are there at once"
    );
    drop(client);
    settle(&server, seen, &once, &again);
}

#[test]
fn clients_that_vanish_while_they_are_served_lose_nothing() {
    let server = Server::start("--shards 2");
    let mut client = server.client();
    let count = scaled(200);
    let blocked: Vec<TcpStream> = (0..count)
        .map(|_| {
            let mut stream = connect(&server);
            stream
                .write_all(&line(&format!("GETJOB COUNT 2 FROM {QUEUES}")))
                .expect("sent");
            stream
        })
        .collect();
    eventually("all wait", || {
        info(&mut client, "clients", "blocked_clients") == count.to_string()
    });
    // Half of them vanish while jobs come.
    let (vanishing, staying): (Vec<_>, Vec<_>) = blocked
        .into_iter()
        .enumerate()
        .partition(|(number, _)| number % 2 == 0);
    let closing = std::thread::spawn(move || vanishing.into_iter().for_each(drop));
    let (once, again) = add_both(&mut client, count, b"body");
    closing.join().expect("all are closed");
    let mut seen = Seen::default();
    for (_, mut stream) in staying {
        // One that got nothing so far gets a null when it says that it will send no more, or is closed.
        stream.shutdown(Shutdown::Write).expect("open");
        let bytes = read_to_end(&mut stream);
        if let Some((reply, _)) = reply::decode(Protocol::Resp2, &bytes).expect("RESP") {
            let ids = seen.note(&reply);
            if !ids.is_empty() {
                call(&mut client, &format!("ACKJOB {}", ids.join(" ")));
            }
        }
    }
    drop(client);
    settle(&server, seen, &once, &again);
}

#[test]
fn clients_that_vanish_with_a_big_reply_unread_give_back_what_was_not_sent() {
    let server = Server::start("--shards 2 --maxmemory 2gb");
    let mut client = server.client();
    // Far more than the kernel takes for one connection.
    let body = vec![b'x'; 1 << 20];
    let (once, again) = add_both(&mut client, 30, &body);
    let mut half_served = connect(&server);
    half_served
        .write_all(&line(&format!("GETJOB COUNT 100 FROM {QUEUES}")))
        .expect("sent");
    let mut head = [0; 5];
    half_served.read_exact(&mut head).expect("the reply begins");
    assert_eq!(&head, b"*60\r\n");
    drop(half_served);
    // The kernel takes some; the lease of a RETRY 1 job may have ended before.
    eventually("the jobs that were not sent are back", || {
        let returned = info(&mut client, "all", "jobs_returned");
        returned.parse::<usize>().expect("a number") > 15
    });
    drop(client);
    settle(&server, Seen::default(), &once, &again);
}

#[test]
fn memory_counts_what_came_not_what_was_announced() {
    let server = Server::start("--shards 2 --maxmemory 64mb");
    let announced: Vec<TcpStream> = (0..100)
        .map(|_| {
            let mut stream = connect(&server);
            stream
                .write_all(b"*4\r\n$6\r\nADDJOB\r\n$1\r\nq\r\n$536870912\r\nabc")
                .expect("sent");
            stream
        })
        .collect();
    let mut client = server.client();
    eventually("all are connected", || {
        info(&mut client, "clients", "connected_clients") == "101"
    });
    add(&mut client, "ADDJOB q body 0");
    drop(announced);
    eventually("all are gone", || {
        info(&mut client, "clients", "connected_clients") == "1"
    });
}
