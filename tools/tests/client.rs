//! The blocking client against a server that follows a script: what it must receive, and what it then sends,
//! in pieces.

use std::io::{Read, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixListener;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use tools::address::Address;
use tools::client::{Client, ClientError};
use tools::reply::{Protocol, Reply};

const PATIENCE: Duration = Duration::from_secs(5);

/// Serves one connection: for each step reads exactly the request, then writes the pieces, 5 ms apart; then
/// closes.
fn serve(mut stream: impl Read + Write, script: &[(&str, &[&str])]) {
    for (request, pieces) in script {
        let mut received = vec![0; request.len()];
        stream.read_exact(&mut received).unwrap();
        assert_eq!(String::from_utf8_lossy(&received), *request);
        for piece in *pieces {
            stream.write_all(piece.as_bytes()).unwrap();
            thread::sleep(Duration::from_millis(5));
        }
    }
}

type Script = &'static [(&'static str, &'static [&'static str])];

fn scripted(script: Script) -> (Address, JoinHandle<()>) {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = Address::tcp("127.0.0.1", listener.local_addr().unwrap().port());
    let server = thread::spawn(move || {
        let (stream, _) = listener.accept().unwrap();
        stream.set_nodelay(true).unwrap();
        serve(stream, script);
    });
    (address, server)
}

#[test]
fn commands_and_replies_in_pieces() {
    let (address, server) = scripted(&[
        ("*1\r\n$4\r\nPING\r\n", &["+PO", "NG\r", "\n"]),
        (
            "*2\r\n$4\r\nQLEN\r\n$0\r\n\r\n*1\r\n$1\r\nx\r\n",
            &[":3\r\n-ERR unk", "nown\r\n"],
        ),
    ]);
    let mut client = Client::connect(&address, PATIENCE).unwrap();
    assert!(client.is_local());
    assert_eq!(client.call(&["PING"]).unwrap(), Reply::Simple("PONG".into()));
    let replies = client.pipeline(&[vec!["QLEN", ""], vec!["x"]]).unwrap();
    assert_eq!(replies, [Reply::Integer(3), Reply::Error("ERR unknown".into())]);
    assert!(matches!(
        client.read_reply(),
        Err(ClientError::Closed { unread: 0 })
    ));
    server.join().unwrap();
}

#[test]
fn raw_bytes_and_replies_mix() {
    let (address, server) = scripted(&[("hello\r\n", &["*-1\r\n+OK\r\n", "tail"])]);
    let mut client = Client::connect(&address, PATIENCE).unwrap();
    client.write_raw(b"hello\r\n").unwrap();
    assert_eq!(client.read_exact(5).unwrap(), b"*-1\r\n");
    assert_eq!(client.read_reply().unwrap(), Reply::Simple("OK".into()));
    client.shutdown(Shutdown::Write).unwrap();
    assert_eq!(client.read_to_close().unwrap(), b"tail");
    server.join().unwrap();
}

#[test]
fn a_timeout_loses_nothing() {
    let (address, server) = scripted(&[("a", &["$5\r\nhe"]), ("b", &["llo\r\n"])]);
    let mut client = Client::connect(&address, Duration::from_millis(50)).unwrap();
    client.write_raw(b"a").unwrap();
    assert!(matches!(client.read_reply(), Err(ClientError::TimedOut)));
    client.set_timeout(Some(PATIENCE)).unwrap();
    client.write_raw(b"b").unwrap();
    assert_eq!(client.read_reply().unwrap(), Reply::Bulk(b"hello".to_vec()));
    server.join().unwrap();
}

#[test]
fn hello_3_switches_and_a_refusal_does_not() {
    const HELLO: &str = "*2\r\n$5\r\nHELLO\r\n$1\r\n3\r\n";
    let (address, server) = scripted(&[(HELLO, &["%1\r\n+proto\r\n:3\r\n"]), ("x", &["_\r\n"])]);
    let (mut client, hello) = Client::connect_resp3(&address, PATIENCE).unwrap();
    assert_eq!(
        hello,
        Reply::Map(vec![(Reply::Simple("proto".into()), Reply::Integer(3))])
    );
    client.write_raw(b"x").unwrap();
    assert_eq!(client.read_reply().unwrap(), Reply::Null);
    server.join().unwrap();

    let (address, server) = scripted(&[(HELLO, &["-ERR no\r\n"]), ("x", &["$-1\r\n"])]);
    let mut client = Client::connect(&address, PATIENCE).unwrap();
    assert!(matches!(client.hello3(), Err(ClientError::Refused { text, .. }) if text == "ERR no"));
    assert_eq!(client.protocol(), Protocol::Resp2);
    client.write_raw(b"x").unwrap();
    assert_eq!(client.read_reply().unwrap(), Reply::Null);
    server.join().unwrap();
}

#[test]
fn unix_sockets_and_broken_replies() {
    let path = std::env::temp_dir().join(format!("shardq-client-test-{}.sock", std::process::id()));
    let _ = std::fs::remove_file(&path);
    let listener = UnixListener::bind(&path).unwrap();
    let server = thread::spawn(move || serve(listener.accept().unwrap().0, &[("x", &["what?\r\n"])]));
    let mut client = Client::connect(&Address::unix(&path), PATIENCE).unwrap();
    std::fs::remove_file(&path).unwrap();
    client.write_raw(b"x").unwrap();
    assert!(matches!(client.read_reply(), Err(ClientError::Protocol(_))));
    server.join().unwrap();
}
