//! Tests of links over the loopback: buses on one executor, and what is no bus.

use std::future::Future;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use shard::bus::frame::{FrameKind, sign};
use shard::bus::handshake::{Dialer, Facts, HEADER_BYTES, NONCE_BYTES, Step, content_bytes};
use shard::bus::message::JobCopy;
use shard::id::JobId;
use shard::slot::Slot;
use shard::wire::Blob;

use super::*;
use crate::bell::Bells;
use crate::config::cpus;
use crate::executor::{self, Heartbeat};

/// How long something may take before a test fails.
const PATIENCE: Duration = Duration::from_secs(20);

/// Runs something on an executor of this thread.
pub(super) fn on_executor<T>(future: impl Future<Output = T>) -> T {
    let executor = executor::on_cpu(cpus::allowed()[0]).expect("the machine has io_uring");
    executor.run(async {
        let heartbeat = Heartbeat::start();
        heartbeat.quicken();
        future.await
    })
}

thread_local! {
    /// Whether the links of this thread's buses are on rings.
    static ON_RINGS: Cell<bool> = const { Cell::new(true) };
}

/// Runs a test twice: with the links on rings, and with glommio's sockets.
fn both_ways(test: impl AsyncFn()) {
    for on_rings in [true, false] {
        ON_RINGS.set(on_rings);
        on_executor(test());
    }
}

fn id(byte: u8) -> NodeId {
    NodeId::from_bytes([byte; 20])
}

/// A bus and all that it told.
struct Node {
    bus: Bus,
    ring: Option<Ring>,
    events: Vec<(LinkNo, LinkEvent)>,
    received: Vec<(Sender, BusMessage)>,
    visitors: Vec<Visitor>,
}

impl Node {
    fn new(byte: u8, shard: ShardNo, shards: u16, secret: &str) -> Self {
        let (wakeup, bells) = (Arc::default(), Bells::new(1).expect("descriptors are free"));
        let bell = bells.of(0).eventfd().expect("descriptors are free");
        let ring = ON_RINGS.get().then(|| Ring::new(&wakeup, bell));
        let ring = ring.map(|ring| ring.expect("the kernel has rings for sockets"));
        let mut bus = Bus::new(Parts {
            shard,
            shards,
            clock: Clock::start(),
            wakeup,
            ring: ring.clone(),
            secret: secret.as_bytes().to_vec(),
            node_timeout_ms: 0,
        });
        bus.set_identity(id(byte), u64::from(byte));
        Self {
            bus,
            ring,
            events: Vec::new(),
            received: Vec::new(),
            visitors: Vec::new(),
        }
    }

    /// Listens on a port; 0: any.
    fn listen(&mut self, port: u16) -> u16 {
        let socket = TcpListener::bind(("127.0.0.1", port)).expect("the port is free");
        let port = socket.local_addr().unwrap().port();
        self.bus.listen(vec![Listener {
            socket: socket.into(),
            unix_path: None,
        }]);
        port
    }

    fn dial(&mut self, link: u32, port: u16, expect: Option<NodeId>) {
        self.bus.dial(Dial {
            link: LinkNo(link),
            kind: LinkKind::Data,
            host: "localhost".to_owned(),
            port,
            expect,
        });
    }

    /// Takes all that happened, as the loop would.
    fn turn(&mut self) {
        self.ring.as_ref().inspect(|ring| ring.turn());
        let mut messages = Vec::new();
        while let Some(event) = self.bus.next(&mut messages) {
            match event {
                Event::Link(link, event) => self.events.push((link, event)),
                Event::Batch(from, _) => {
                    let messages = messages.drain(..);
                    self.received.extend(messages.map(|message| (from, message)));
                }
                Event::Visitor(visitor) if visitor.shard(self.bus.shared.shards) == self.bus.shared.shard => {
                    self.bus.adopt(visitor);
                }
                Event::Visitor(visitor) => self.visitors.push(visitor),
            }
        }
    }

    fn send(&mut self, link: u32, message: BusMessage) {
        self.bus.send(LinkNo(link), &mut vec![message]);
    }

    fn ups(&self) -> usize {
        let is_up = |(_, event): &&(LinkNo, LinkEvent)| matches!(event, LinkEvent::Up { .. });
        self.events.iter().filter(is_up).count()
    }

    /// Why links were not up, in order.
    fn downs(&self) -> Vec<&str> {
        let mut downs = Vec::new();
        for (_, event) in &self.events {
            if let LinkEvent::Down { why } = event {
                downs.push(why.as_str());
            }
        }
        downs
    }
}

/// Gives nodes their turns until a condition holds.
async fn until<const N: usize>(mut nodes: [&mut Node; N], condition: impl Fn(&[&mut Node; N]) -> bool) {
    let start = Instant::now();
    while !condition(&nodes) {
        assert!(start.elapsed() < PATIENCE, "it does not come to it");
        glommio::timer::Timer::new(Duration::from_millis(1)).await;
        nodes.iter_mut().for_each(|node| node.turn());
    }
}

/// A small message that can be told from others.
fn word(number: u64) -> BusMessage {
    let mut bytes = [7; 24];
    bytes[..8].copy_from_slice(&number.to_be_bytes());
    let id = JobId::from_bytes(bytes);
    BusMessage::Left { id }
}

fn job(body_bytes: usize) -> BusMessage {
    let queue = Blob::from("q");
    let copy = JobCopy {
        id: JobId::new(id(1), Slot::of_queue(&queue), [1; 18], 60, true),
        queue,
        body: Blob::copy_from(&vec![7; body_bytes]),
        ctime: 1,
        ttl_left_ms: 1,
        delay_left_ms: 0,
        ttl_s: 1,
        retry_s: 1,
        delay_s: 0,
        replicate: 1,
        nacks: 0,
        additional_deliveries: 0,
        deliveries: 0,
        members: shard::bus::message::Members::default(),
    };
    BusMessage::Import { copy: Box::new(copy) }
}

#[test]
fn messages_go_from_shard_to_shard() {
    both_ways(async || {
        let (mut a, mut b) = (Node::new(1, 4, 8, "secret"), Node::new(2, 0, 2, "secret"));
        let port = b.listen(0);
        a.dial(9, port, Some(id(2)));
        until([&mut a, &mut b], |[a, _]| a.ups() == 1).await;
        let (
            link,
            LinkEvent::Up {
                node,
                epoch,
                rtt_us,
                local,
                remote,
            },
        ) = a.events[0].clone()
        else {
            panic!("{:?}", a.events)
        };
        assert_eq!((link, node, epoch), (LinkNo(9), id(2), 2));
        assert!(rtt_us > 0 && local.is_some_and(|ip| ip.is_loopback()) && remote == local);

        a.send(9, word(1));
        a.send(9, job(300_000));
        a.send(9, word(2));
        until([&mut a, &mut b], |[_, b]| b.received.len() == 3).await;
        let from = b.received[0].0;
        assert_eq!(
            (from.node, from.epoch, from.shard, from.kind),
            (id(1), 1, 4, LinkKind::Data)
        );
        assert_eq!(from.ip, local);
        let messages: Vec<_> = b.received.drain(..).map(|(_, message)| message).collect();
        assert_eq!(messages, [word(1), job(300_000), word(2)]);

        let (sent, received) = (a.bus.take_traffic(), b.bus.take_traffic());
        assert_eq!((sent.messages_sent, received.messages_received), (3, 3));
        assert!(sent.bytes_sent > 300_000 && received.bytes_received > 300_000);
        assert_eq!((sent.frames_dropped, sent.reconnects), (0, 0));
    });
}

#[test]
fn a_connection_goes_to_the_shard_that_serves_the_dialers() {
    both_ways(async || {
        let (mut a, mut b) = (Node::new(1, 5, 8, ""), Node::new(2, 0, 3, ""));
        let mut b2 = Node::new(2, 2, 3, "");
        let port = b.listen(0);
        a.dial(1, port, None);
        until([&mut a, &mut b], |[a, b]| a.ups() == 1 && b.visitors.len() == 1).await;
        // What is sent before it is there is not lost.
        a.send(1, word(5));
        let visitor = b.visitors.pop().unwrap();
        assert_eq!(visitor.shard(3), 2);
        b2.bus.adopt(visitor);
        until([&mut a, &mut b, &mut b2], |[_, _, b2]| b2.received.len() == 1).await;
        assert_eq!(b2.received[0].1, word(5));
        assert!(b.received.is_empty());
    });
}

#[test]
fn a_connection_moves_to_another_executor() {
    let (to_shard_1, visitors) = std::sync::mpsc::channel::<Visitor>();
    let shard_1 = std::thread::spawn(move || {
        on_executor(async {
            let mut b1 = Node::new(2, 1, 2, "");
            b1.bus.adopt(visitors.recv().expect("it comes"));
            until([&mut b1], |[b1]| b1.received.len() == 100).await;
            b1.received
                .into_iter()
                .map(|(_, message)| message)
                .collect::<Vec<_>>()
        })
    });
    on_executor(async {
        let (mut a, mut b) = (Node::new(1, 1, 2, ""), Node::new(2, 0, 2, ""));
        let port = b.listen(0);
        a.dial(1, port, None);
        until([&mut a, &mut b], |[a, b]| a.ups() == 1 && b.visitors.len() == 1).await;
        to_shard_1.send(b.visitors.pop().unwrap()).unwrap();
        for number in 0..100 {
            a.send(1, word(number));
            glommio::timer::Timer::new(Duration::from_micros(100)).await;
        }
        until([&mut a, &mut b], |_| shard_1.is_finished()).await;
    });
    let received = shard_1.join().expect("all came");
    assert_eq!(received, (0..100).map(word).collect::<Vec<_>>());
}

#[test]
fn unfinished_frames_are_bounded_and_all_end() {
    const LINKS: u16 = 6;
    const MOST_BYTES: usize = 4 << 20;
    let body_bytes = 3 << 20;
    both_ways(async || {
        let mut b = Node::new(2, 0, 1, "");
        b.bus.shared.unfinished.borrow_mut().most_bytes = MOST_BYTES;
        let port = b.listen(0);
        // Each sends most of a long frame, as far as it is taken, and the rest when it may.
        let may_end = Arc::new(AtomicBool::new(false));
        let threads: Vec<_> = (0..LINKS)
            .map(|shard| {
                let may_end = Arc::clone(&may_end);
                stranger(port, shard, move |mut socket| {
                    let mut frame = Vec::new();
                    Encoder::default().encode(&mut vec![job(body_bytes)], |out| frame = out.chunks.concat());
                    let most = frame.len() - 1000;
                    let mut sent = 0;
                    let pause = Duration::from_millis(20);
                    socket.set_write_timeout(Some(pause)).unwrap();
                    while !may_end.load(Ordering::Relaxed) {
                        match socket.write(&frame[sent..most]) {
                            Ok(bytes @ 1..) => sent += bytes,
                            _ => std::thread::sleep(pause),
                        }
                    }
                    socket.set_write_timeout(None).unwrap();
                    socket.write_all(&frame[sent..]).unwrap();
                    assert_eq!(drain(socket), b"");
                })
            })
            .collect();
        // Until no more is taken for a while.
        let (mut most_bytes, mut since) = (0, Instant::now());
        while most_bytes <= MOST_BYTES || since.elapsed() < Duration::from_millis(300) {
            assert!(since.elapsed() < PATIENCE, "{most_bytes}");
            glommio::timer::Timer::new(Duration::from_millis(1)).await;
            b.turn();
            let bytes = b.bus.shared.unfinished.borrow().bytes;
            if bytes > most_bytes {
                (most_bytes, since) = (bytes, Instant::now());
            }
        }
        may_end.store(true, Ordering::Relaxed);
        // One frame more than that, and what all links may have in any case.
        let bound = MOST_BYTES + body_bytes + usize::from(LINKS) * (512 << 10);
        assert!(most_bytes < bound, "{most_bytes}");
        until([&mut b], |[b]| b.received.len() == usize::from(LINKS)).await;
        assert!(b.received.iter().all(|(_, message)| *message == job(body_bytes)));
        assert_eq!(b.bus.shared.unfinished.borrow().bytes, 0);
        b.bus.set_identity(id(2), 3);
        until([&mut b], |_| threads.iter().all(|thread| thread.is_finished())).await;
        for thread in threads {
            thread.join().expect("all of it was taken");
        }
    });
}

#[test]
fn a_link_comes_back_after_its_peer_died() {
    both_ways(async || {
        let (mut a, mut b) = (Node::new(1, 0, 1, ""), Node::new(2, 0, 1, ""));
        let port = b.listen(0);
        a.dial(1, port, Some(id(2)));
        until([&mut a, &mut b], |[a, _]| a.ups() == 1).await;
        drop(b);
        until([&mut a], |[a]| !a.downs().is_empty()).await;
        a.send(1, word(1));
        assert_eq!(a.bus.take_traffic().frames_dropped, 1, "lost, and counted");
        until([&mut a], |[a]| a.downs().len() > 2).await;

        let mut b = Node::new(2, 0, 1, "");
        b.listen(port);
        until([&mut a, &mut b], |[a, _]| a.ups() == 2).await;
        a.send(1, word(2));
        until([&mut a, &mut b], |[_, b]| b.received.len() == 1).await;
        assert_eq!(b.received[0].1, word(2));
        assert!(a.bus.take_traffic().reconnects > 1);
    });
}

#[test]
fn who_does_not_know_the_secret_is_refused() {
    both_ways(async || {
        let (mut a, mut b) = (Node::new(1, 0, 1, "guess"), Node::new(2, 0, 1, "secret"));
        let port = b.listen(0);
        a.dial(1, port, None);
        until([&mut a, &mut b], |[a, _]| a.downs().len() == 2).await;
        assert!(a.downs()[0].contains("cluster-secret"), "{:?}", a.downs());
        assert_eq!((a.ups(), b.bus.incoming.len()), (0, 0));
    });
}

#[test]
fn another_node_and_oneself_are_not_taken_for_the_one_dialed() {
    both_ways(async || {
        let (mut a, mut b) = (Node::new(1, 0, 1, ""), Node::new(2, 0, 1, ""));
        let (own, port) = (a.listen(0), b.listen(0));
        a.dial(1, own, None);
        a.dial(2, port, Some(id(3)));
        until([&mut a, &mut b], |[a, _]| a.downs().len() >= 4).await;
        assert!(a.downs().iter().any(|why| why.contains("this node itself")));
        assert!(a.downs().iter().any(|why| why.contains(&id(2).to_string())));
        assert_eq!(a.ups(), 0);
    });
}

#[test]
fn a_new_identity_makes_all_links_anew() {
    both_ways(async || {
        let (mut a, mut b) = (Node::new(1, 0, 1, ""), Node::new(2, 0, 1, ""));
        let (to_a, to_b) = (a.listen(0), b.listen(0));
        a.dial(1, to_b, None);
        b.dial(1, to_a, None);
        until([&mut a, &mut b], |[a, b]| a.ups() == 1 && b.ups() == 1).await;
        b.bus.set_identity(id(7), 70);
        until([&mut a, &mut b], |[a, b]| a.ups() == 2 && b.ups() == 2).await;
        assert_eq!((a.downs().len(), b.downs().len()), (1, 1));
        let Some((_, LinkEvent::Up { node, epoch, .. })) = a.events.last() else {
            panic!("{:?}", a.events)
        };
        assert_eq!((*node, *epoch), (id(7), 70));
        b.send(1, word(1));
        until([&mut a, &mut b], |[a, _]| a.received.len() == 1).await;
        assert_eq!((a.received[0].0.node, a.received[0].0.epoch), (id(7), 70));
    });
}

#[test]
fn nothing_is_told_of_a_link_that_was_hung_up() {
    both_ways(async || {
        let (mut a, mut b) = (Node::new(1, 0, 1, ""), Node::new(2, 0, 1, ""));
        let port = b.listen(0);
        a.dial(1, port, None);
        until([&mut a, &mut b], |[a, b]| {
            a.ups() == 1 && b.bus.incoming.len() == 1
        })
        .await;
        a.bus.hang_up(LinkNo(1));
        until([&mut a, &mut b], |[_, b]| b.bus.incoming.is_empty()).await;
        assert_eq!(a.events.len(), 1);
        a.send(1, word(1));
        assert_eq!(a.bus.take_traffic().messages_sent, 0);
    });
}

#[test]
fn what_waits_for_a_link_is_bounded() {
    both_ways(async || {
        let (mut a, mut b) = (Node::new(1, 0, 1, ""), Node::new(2, 0, 1, ""));
        let port = b.listen(0);
        a.dial(1, port, None);
        until([&mut a, &mut b], |[a, b]| {
            a.ups() == 1 && b.bus.incoming.len() == 1
        })
        .await;
        a.bus.take_traffic();
        // Nobody takes what b receives, so it stops to receive.
        for _ in 0..40 {
            a.send(1, job(1 << 20));
        }
        let sent = a.bus.take_traffic();
        assert!(sent.frames_dropped > 20 && sent.messages_sent >= 16, "{sent:?}");
        let receives = || b.ring.as_ref().inspect(|ring| ring.turn());
        until([&mut a], |_| {
            receives();
            b.bus.has_events()
        })
        .await;
        let events = b.bus.shared.events.borrow().len();
        assert!(events < 4, "{events}");
        // One longer than all that may wait goes when nothing waits.
        until([&mut a, &mut b], |[_, b]| {
            b.received.len() as u64 == sent.messages_sent
        })
        .await;
        a.send(1, job(40 << 20));
        until([&mut a, &mut b], |[_, b]| {
            b.received.len() as u64 == sent.messages_sent + 1
        })
        .await;
        let (_, last) = b.received.last().unwrap();
        assert!(*last == job(40 << 20));
    });
}

/// A peer made by hand, on a thread of its own: what is done with a socket that has proved itself.
fn stranger(
    port: u16,
    shard: ShardNo,
    act: impl FnOnce(TcpStream) + Send + 'static,
) -> std::thread::JoinHandle<()> {
    std::thread::spawn(move || {
        let mut socket = TcpStream::connect(("127.0.0.1", port)).unwrap();
        let me = Facts {
            node: id(9),
            epoch: 9,
            shard,
            shards: 8,
            kind: LinkKind::Data,
        };
        let (mut dialer, mut say) = Dialer::start(0, me, None, b"", [3; NONCE_BYTES]);
        loop {
            socket.write_all(&say).unwrap();
            let mut packet = vec![0; HEADER_BYTES];
            socket.read_exact(&mut packet).unwrap();
            let content = content_bytes(packet.first_chunk().unwrap()).unwrap();
            packet.resize(HEADER_BYTES + content, 0);
            socket.read_exact(&mut packet[HEADER_BYTES..]).unwrap();
            match dialer.receive(0, &packet).unwrap() {
                Step::Say(next) => say = next,
                Step::Met { .. } => return act(socket),
            }
        }
    })
}

/// Reads until the other side closes.
fn drain(mut socket: TcpStream) -> Vec<u8> {
    let mut all = Vec::new();
    // A reset ends it, too.
    let _ = socket.read_to_end(&mut all);
    all
}

#[test]
fn garbage_closes_its_own_connection_and_no_other() {
    both_ways(async || {
        let (mut a, mut b) = (Node::new(1, 0, 1, ""), Node::new(2, 0, 1, ""));
        let port = b.listen(0);
        a.dial(1, port, None);
        until([&mut a, &mut b], |[a, _]| a.ups() == 1).await;
        let threads = [
            // Before a word of the handshake.
            std::thread::spawn(move || {
                let mut socket = TcpStream::connect(("127.0.0.1", port)).unwrap();
                socket.write_all(b"GET / HTTP/1.1\r\nHost: here\r\n\r\n").unwrap();
                assert_eq!(drain(socket), b"");
            }),
            // No frame, and a frame whose content is none.
            stranger(port, 1, |mut socket| {
                socket.write_all(&[0xff; 100]).unwrap();
                assert_eq!(drain(socket), b"");
            }),
            stranger(port, 2, |mut socket| {
                let mut frame = sign(FrameKind::Ping, 1).to_vec();
                frame[12] = FrameKind::Batch as u8;
                let sum = crc32c::crc32c_append(crc32c::crc32c(&frame[..8]), &frame[12..]);
                frame[8..12].copy_from_slice(&sum.to_le_bytes());
                socket.write_all(&frame).unwrap();
                assert_eq!(drain(socket), b"");
            }),
            // A ping is answered, a pong was not asked for.
            stranger(port, 3, |mut socket| {
                socket.write_all(&sign(FrameKind::Ping, 5)).unwrap();
                let mut pong = sign(FrameKind::Pong, 5).to_vec();
                let expected = pong.clone();
                socket.read_exact(&mut pong).unwrap();
                assert_eq!(pong, expected);
                socket.write_all(&pong).unwrap();
                assert_eq!(drain(socket), b"");
            }),
        ];
        until([&mut a, &mut b], |_| {
            threads.iter().all(|thread| thread.is_finished())
        })
        .await;
        for thread in threads {
            thread.join().expect("it was closed");
        }
        a.send(1, word(1));
        until([&mut a, &mut b], |[_, b]| {
            b.received.len() == 1 && b.bus.incoming.len() == 1
        })
        .await;
        assert!(a.downs().is_empty());
    });
}

#[test]
fn a_peer_that_does_not_answer_pings_is_given_up() {
    both_ways(async || {
        let mut a = Node::new(1, 0, 1, "");
        // It accepts, and says nothing, not even in a handshake.
        let mute = TcpListener::bind("127.0.0.1:0").unwrap();
        a.dial(1, mute.local_addr().unwrap().port(), None);
        until([&mut a], |[a]| !a.downs().is_empty()).await;
        assert!(a.downs()[0].contains("in time"), "{:?}", a.downs());
        a.bus.hang_up(LinkNo(1));
        a.events.clear();

        // It takes part in a handshake, and then says nothing more.
        let mut b = Node::new(2, 0, 2, "");
        let port = b.listen(0);
        let mut a = Node::new(1, 1, 2, "");
        a.dial(1, port, None);
        // Shard 1 of b never takes its visitor.
        until([&mut a, &mut b], |[a, b]| a.ups() == 1 && b.visitors.len() == 1).await;
        until([&mut a, &mut b], |[a, _]| !a.downs().is_empty()).await;
        assert!(a.downs()[0].contains("does not answer"), "{:?}", a.downs());
    });
}

#[test]
fn a_link_that_is_dialed_twice_is_served_once() {
    both_ways(async || {
        let mut b = Node::new(2, 0, 1, "");
        let port = b.listen(0);
        let first = stranger(port, 0, |socket| assert_eq!(drain(socket), b""));
        until([&mut b], |[b]| b.bus.incoming.len() == 1).await;
        let second = stranger(port, 0, |mut socket| {
            let mut batch = vec![word(7)];
            Encoder::default().encode(&mut batch, |frame| {
                socket.write_all(&frame.chunks.concat()).unwrap();
            });
        });
        until([&mut b], |[b]| b.received.len() == 1 && first.is_finished()).await;
        first.join().expect("it was closed");
        second.join().expect("it was served");
        until([&mut b], |[b]| b.bus.incoming.is_empty()).await;
    });
}
