//! A ring against plain sockets of the standard library, on one thread: what it lends comes back, and nothing is lost, doubled or left behind,
//! however small the ring, however slow or rude the other side.

mod count;

use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, Shutdown, TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicUsize, Ordering};

use rustix::event::{EventfdFlags, eventfd};

use super::*;
use count::live_bytes;

const CHUNK_BYTES: usize = 10_000;

/// A ring as the server has it.
fn ring() -> Ring {
    Ring::of_sizes(SIZES).expect("the kernel has rings for sockets")
}

/// A ring of so few places that a handful of sockets overflows it.
fn small_ring(buffers: u16) -> Ring {
    Ring::of_sizes(Sizes {
        submissions: 4,
        completions: 8,
        buffers: BufferCount(buffers),
    })
    .expect("the kernel has rings for sockets")
}

fn place(index: usize) -> Place {
    Place {
        index: index as u32,
        generation: 0,
    }
}

/// A connection: the client's end, and the other one on the ring.
fn pair(ring: &Ring, index: usize) -> (UnixStream, RingSocket) {
    let (client, server) = UnixStream::pair().expect("descriptors are free");
    (client, ring.adopt(server.into(), place(index)))
}

fn tcp_pair(ring: &Ring, index: usize) -> (TcpStream, RingSocket) {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port is free");
    let client = TcpStream::connect(listener.local_addr().unwrap()).expect("it listens");
    let (server, _) = listener.accept().expect("it was connected to");
    (client, ring.adopt(server.into(), place(index)))
}

/// Turns until this holds; the kernel does all of it within our calls, but for what travels between two sockets.
fn turn_until(ring: &Ring, what: &str, mut holds: impl FnMut() -> bool) {
    for _ in 0..100_000 {
        if holds() {
            return;
        }
        ring.nap(Duration::from_millis(1));
        ring.turn();
        while ring.finished().is_some() {}
        while ring.ready().is_some() {}
    }
    panic!("it never holds that {what}");
}

/// Takes what has come: the bytes, and whether it is the end.
fn take(socket: &RingSocket, into: &mut Vec<u8>) -> bool {
    while let Some((input, _)) = socket.receive() {
        match input {
            Input::Bytes(bytes) => into.extend_from_slice(&bytes),
            Input::End | Input::Failed => return true,
        }
    }
    false
}

fn has_come(ring: &Ring, socket: &RingSocket, expected: &[u8]) {
    let mut got = Vec::new();
    turn_until(ring, "all has come", || {
        take(socket, &mut got);
        got.len() >= expected.len()
    });
    assert!(got == expected, "it came as it was sent");
}

/// Nothing is left of any socket.
fn assert_empty(ring: &Ring) {
    turn_until(ring, "all operations have ended", || {
        ring.0.borrow().sockets.iter().all(Option::is_none)
    });
    let sockets = ring.0.borrow();
    assert_eq!(sockets.system.pool().lent(), 0, "all buffers came back");
    assert!(sockets.system.holds_no_message(), "all output was given up");
}

/// Output of which it is known when it is given up.
struct Chunk {
    bytes: Vec<u8>,
    living: Arc<AtomicUsize>,
}

impl Chunk {
    fn bytes(living: &Arc<AtomicUsize>) -> Bytes {
        living.fetch_add(1, Ordering::Relaxed);
        Bytes::from_owner(Self {
            bytes: vec![0; CHUNK_BYTES],
            living: Arc::clone(living),
        })
    }
}

impl AsRef<[u8]> for Chunk {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl Drop for Chunk {
    fn drop(&mut self) {
        self.living.fetch_sub(1, Ordering::Relaxed);
    }
}

#[test]
fn bytes_go_both_ways() {
    let ring = ring();
    for (index, text) in ["short", &"long ".repeat(100_000)].into_iter().enumerate() {
        let (mut client, socket) = tcp_pair(&ring, index);
        let (sent, mut sender) = (text.to_owned(), client.try_clone().unwrap());
        let sending = std::thread::spawn(move || sender.write_all(sent.as_bytes()));
        has_come(&ring, &socket, text.as_bytes());
        sending.join().unwrap().expect("the ring receives all of it");
        let length = text.len();
        socket.append([Bytes::from(text.to_owned()), Bytes::from_static(b"!")].into_iter());
        let receiving = std::thread::spawn(move || {
            let mut got = vec![0; length + 1];
            client.read_exact(&mut got).map(|()| got)
        });
        turn_until(&ring, "all is sent", || socket.unsent_bytes() == 0);
        let got = receiving.join().unwrap().expect("all of it comes");
        assert!(got == [text.as_bytes(), b"!"].concat());
        let mut sent = 0;
        while let Ok(bytes @ 1..) = socket.take_sent() {
            sent += bytes;
        }
        assert_eq!(sent, length + 1);
    }
    assert_empty(&ring);
}

#[test]
fn what_is_lent_comes_back_and_memory_with_it() {
    let ring = ring();
    let round = || {
        let mut connections: Vec<_> = (0..64).map(|index| pair(&ring, index)).collect();
        for (client, socket) in &mut connections {
            client.write_all(&[7; 20_000]).unwrap();
            socket.append((0..100).map(|byte| Bytes::from(vec![byte; 100])));
        }
        for (client, socket) in &mut connections {
            has_come(&ring, socket, &[7; 20_000]);
            turn_until(&ring, "all is sent", || socket.unsent_bytes() == 0);
            let mut got = [0; 10_000];
            client.read_exact(&mut got).unwrap();
        }
        drop(connections);
        assert_empty(&ring);
    };
    // Queues grow to the size that the busiest round needs, and stay so.
    let left_behind = (0..40).map(|_| {
        let before = live_bytes();
        round();
        live_bytes() - before
    });
    let late: isize = left_behind.skip(20).sum();
    assert!(
        late < 20,
        "{late} bytes are left behind by 20 rounds of 64 connections"
    );
}

#[test]
fn a_slow_reader_has_one_message_in_the_kernel_and_gets_all_in_the_end() {
    let ring = ring();
    let (mut client, socket) = pair(&ring, 0);
    let (mut other, beside) = pair(&ring, 1);
    let text: Vec<u8> = (0..4 << 20).map(|at: u32| (at >> 8) as u8).collect();
    socket.append(text.chunks(10_000).map(Bytes::copy_from_slice));
    for _ in 0..50 {
        ring.turn();
    }
    assert!(socket.unsent_bytes() > 1 << 20, "the kernel does not take it all");
    assert_eq!(socket.with(|socket| socket.flying), 2, "one receives, one sends");
    other.write_all(b"ping").unwrap();
    has_come(&ring, &beside, b"ping");
    let reading = std::thread::spawn(move || {
        let mut got = vec![0; 4 << 20];
        client.read_exact(&mut got).map(|()| got)
    });
    let mut sent = 0;
    turn_until(&ring, "all is sent", || {
        sent += socket.take_sent().expect("the reader is there");
        socket.unsent_bytes() == 0 && sent == 4 << 20
    });
    assert!(reading.join().unwrap().unwrap() == text);
}

#[test]
fn a_half_closed_connection_is_told_behind_its_input_and_can_be_sent_to() {
    let ring = ring();
    let (mut client, socket) = tcp_pair(&ring, 0);
    client.write_all(b"last words").unwrap();
    client.shutdown(Shutdown::Write).unwrap();
    let mut got = Vec::new();
    turn_until(&ring, "it ends", || take(&socket, &mut got));
    assert_eq!(got, b"last words");
    socket.append([Bytes::from_static(b"answer")].into_iter());
    turn_until(&ring, "it is sent", || socket.unsent_bytes() == 0);
    drop(socket);
    let mut answer = String::new();
    client.read_to_string(&mut answer).unwrap();
    assert_eq!(answer, "answer");
    assert_empty(&ring);
}

#[test]
fn a_connection_that_is_reset_fails() {
    let ring = ring();
    let (client, socket) = tcp_pair(&ring, 0);
    SockRef::from(&client).set_linger(Some(Duration::ZERO)).unwrap();
    drop(client);
    turn_until(&ring, "it fails", || {
        matches!(socket.receive(), Some((Input::Failed, false)))
    });
    socket.append([Bytes::from_static(b"to nobody")].into_iter());
    turn_until(&ring, "the output is refused", || socket.take_sent().is_err());
    drop(socket);
    assert_empty(&ring);
}

#[test]
fn who_is_not_read_keeps_its_bytes() {
    let ring = ring();
    let (mut client, socket) = pair(&ring, 0);
    ring.turn();
    socket.set_reading(false);
    ring.turn();
    ring.turn();
    client.write_all(b"later").unwrap();
    for _ in 0..10 {
        ring.turn();
        assert!(socket.receive().is_none());
    }
    socket.set_reading(true);
    has_come(&ring, &socket, b"later");
    // Off and on before the kernel hears of either.
    socket.set_reading(false);
    socket.set_reading(true);
    client.write_all(b"again").unwrap();
    has_come(&ring, &socket, b"again");
}

#[test]
fn a_flood_waits_in_the_kernel_until_the_loop_takes_it() {
    let ring = ring();
    let (client, socket) = pair(&ring, 0);
    client.set_nonblocking(true).unwrap();
    let mut sent = 0;
    for _ in 0..200 {
        while let Ok(bytes) = (&client).write(&[1; 4096]) {
            sent += bytes;
        }
        ring.turn();
    }
    let waiting = ring.0.borrow().system.pool().lent();
    assert!(waiting <= INPUT_WAITING + 40, "{waiting} buffers of one socket");
    drop(client);
    let mut got = Vec::new();
    turn_until(&ring, "all has come", || take(&socket, &mut got));
    assert_eq!(got.len(), sent);
}

#[test]
fn without_a_buffer_left_all_is_received_in_the_end() {
    let ring = small_ring(4);
    let mut connections: Vec<_> = (0..20).map(|index| pair(&ring, index)).collect();
    for (at, (client, _)) in connections.iter_mut().enumerate() {
        client.write_all(&[at as u8; 5_000]).unwrap();
    }
    // Whoever got a buffer keeps it for a while.
    let mut held = Vec::new();
    turn_until(&ring, "all buffers are lent", || {
        held.extend(connections.iter().filter_map(|(_, socket)| socket.receive()));
        ring.0.borrow().system.pool().lent() == 4
    });
    for _ in 0..10 {
        ring.turn();
    }
    assert!(!ring.0.borrow().starved.is_empty(), "others wait for buffers");
    assert_eq!(held.len(), 4);
    let mut total: usize = held.drain(..).map(|(input, _)| length(&input)).sum();
    turn_until(&ring, "all has come", || {
        let received = connections.iter().filter_map(|(_, socket)| socket.receive());
        total += received.map(|(input, _)| length(&input)).sum::<usize>();
        total == 20 * 5_000
    });
    connections.clear();
    assert_empty(&ring);
}

fn length(input: &Input) -> usize {
    match input {
        Input::Bytes(bytes) => bytes.len(),
        Input::End | Input::Failed => 0,
    }
}

#[test]
fn completions_that_find_no_room_are_kept_by_the_kernel() {
    let ring = small_ring(32);
    let mut connections: Vec<_> = (0..16).map(|index| pair(&ring, index)).collect();
    ring.turn();
    for (client, _) in &mut connections {
        client.write_all(b"x").unwrap();
    }
    {
        let system = &mut ring.0.borrow_mut().system;
        system.enter();
        // Nothing is queued, and a call completes more than sixteen: so this is the overflow.
        assert!(
            system.has_work(),
            "sixteen completions do not fit into eight places"
        );
    }
    for (_, socket) in &connections {
        has_come(&ring, socket, b"x");
    }
    // All are received from still.
    for (client, socket) in &mut connections {
        client.write_all(b"y").unwrap();
        has_come(&ring, socket, b"y");
    }
    connections.clear();
    assert_empty(&ring);
}

#[test]
fn more_is_queued_than_the_ring_has_places() {
    let ring = small_ring(32);
    let mut connections: Vec<_> = (0..100).map(|index| pair(&ring, index)).collect();
    for (_, socket) in &connections {
        socket.append([Bytes::from_static(b"out")].into_iter());
    }
    turn_until(&ring, "all is sent", || {
        connections.iter().all(|(_, socket)| socket.unsent_bytes() == 0)
    });
    for (client, _) in &mut connections {
        let mut got = [0; 3];
        client.read_exact(&mut got).unwrap();
        assert_eq!(&got, b"out");
    }
    connections.clear();
    assert_empty(&ring);
}

#[test]
fn a_storm_of_connections_is_taken_in_steps() {
    let ring = ring();
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port is free");
    SockRef::from(&listener).listen(1024).unwrap();
    let address = listener.local_addr().unwrap();
    let number = ring.listen(listener.into());
    let mut clients: Vec<_> = (0..600)
        .map(|_| TcpStream::connect(address).expect("the backlog has room"))
        .collect();
    for _ in 0..5 {
        ring.turn();
    }
    assert!(ring.has_accepted());
    let mut sockets = Vec::new();
    turn_until(&ring, "all are accepted", || {
        while let Some(socket) = ring.accepted(number) {
            sockets.push(ring.adopt(socket, place(sockets.len())));
        }
        sockets.len() == clients.len()
    });
    // Half of them go at once, the others speak.
    clients.truncate(300);
    for client in &mut clients {
        client.write_all(b"hello").unwrap();
    }
    let mut got = Vec::new();
    let mut ended = 0;
    turn_until(&ring, "all are heard", || {
        ended += sockets.iter().filter(|socket| take(socket, &mut got)).count();
        ended == 300 && got.len() == 300 * 5
    });
    drop(sockets);
    assert_empty(&ring);
    ring.stop_listening(number);
    turn_until(&ring, "the listener is gone", || {
        ring.0.borrow().listeners.iter().all(Option::is_none)
    });
    assert!(TcpStream::connect(address).is_err(), "nobody listens");
}

#[test]
fn closing_gives_up_what_is_on_its_way_and_tells_the_other_side() {
    let ring = ring();
    let living = Arc::default();
    let (mut client, socket) = pair(&ring, 0);
    socket.append((0..500).map(|_| Chunk::bytes(&living)));
    for _ in 0..5 {
        ring.turn();
    }
    let unsent = socket.unsent_bytes();
    assert!(unsent > 0, "the reader is slow");
    drop(socket);
    assert_empty(&ring);
    assert_eq!(
        living.load(Ordering::Relaxed),
        0,
        "chunks that somebody still holds"
    );
    let mut got = Vec::new();
    client.read_to_end(&mut got).unwrap();
    assert_eq!(
        got.len(),
        500 * CHUNK_BYTES - unsent,
        "what was told as unsent was not sent"
    );
}

#[test]
fn a_ring_that_is_dropped_gives_up_all() {
    let living = Arc::default();
    let ring = ring();
    let (client, socket) = pair(&ring, 0);
    socket.append((0..500).map(|_| Chunk::bytes(&living)));
    ring.turn();
    (&client).write_all(b"unread").unwrap();
    ring.turn();
    drop((socket, ring));
    assert_eq!(living.load(Ordering::Relaxed), 0);
    client.set_nonblocking(true).unwrap();
    let mut buffer = [0; 4096];
    let end = loop {
        match (&client).read(&mut buffer) {
            Ok(1..) => {}
            end => break end,
        }
    };
    let is_closed = matches!(&end, Ok(0))
        || end
            .as_ref()
            .is_err_and(|error| error.kind() != ErrorKind::WouldBlock);
    assert!(is_closed, "{end:?}");
}

#[test]
fn a_nap_ends_with_input_and_with_the_bell() {
    let ring = ring();
    let bell = eventfd(0, EventfdFlags::CLOEXEC).unwrap();
    ring.0.borrow_mut().watch(bell.try_clone().unwrap());
    let (mut client, socket) = pair(&ring, 0);
    ring.turn();
    assert!(!ring.nap(Duration::from_millis(1)), "nothing happens");
    let hour = Duration::from_secs(3600);
    client.write_all(b"x").unwrap();
    assert!(ring.nap(hour));
    has_come(&ring, &socket, b"x");
    for _ in 0..3 {
        rustix::io::write(&bell, &1_u64.to_ne_bytes()).unwrap();
        assert!(ring.nap(hour), "each ring is news");
        ring.turn();
    }
    assert!(!ring.nap(Duration::from_millis(1)), "nothing happens");
}

#[test]
fn the_eventfd_rings_only_for_who_sleeps() {
    let ring = ring();
    let (mut client, socket) = pair(&ring, 0);
    ring.turn();
    let rung = || {
        let eventfd = ring.0.borrow().system.eventfd().try_clone().unwrap();
        rustix::io::ioctl_fionbio(&eventfd, true).unwrap();
        rustix::io::read(&eventfd, &mut [0; 8]).is_ok()
    };
    client.write_all(b"x").unwrap();
    assert!(!rung(), "nobody sleeps");
    assert!(!ring.may_sleep(), "there is input");
    has_come(&ring, &socket, b"x");
    rung();
    assert!(ring.may_sleep());
    client.write_all(b"y").unwrap();
    assert!(rung());
    ring.wake();
    has_come(&ring, &socket, b"y");
    client.write_all(b"z").unwrap();
    assert!(!rung(), "nobody sleeps any more");
}

#[test]
fn a_loop_that_sleeps_is_roused_for_the_output_of_a_task() {
    let ring = ring();
    let wakeup = Arc::<Wakeup>::default();
    ring.0.borrow_mut().wakeup = Some(Arc::clone(&wakeup));
    let (mut client, server) = UnixStream::pair().expect("descriptors are free");
    let socket = ring.adopt_for_task(server.into());
    ring.turn();
    assert!(ring.may_sleep());
    let context = Context::from_waker(Waker::noop());
    assert!(wakeup.poll(&context).is_pending());
    socket.append([Bytes::from_static(b"ping")].into_iter());
    assert!(wakeup.poll(&context).is_ready());
    ring.turn();
    let mut got = [0; 4];
    client.read_exact(&mut got).unwrap();
    assert_eq!(&got, b"ping");
}

#[test]
fn the_kernel_passes_the_probe() {
    assert_eq!(probe(), Ok(()));
}
