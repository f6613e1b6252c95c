//! Shard 0 accepts the connections of other nodes, lets them prove themselves, and brings each to the shard that serves it.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::os::fd::{FromRawFd, IntoRawFd, OwnedFd};
use std::rc::Rc;
use std::time::Duration;

use futures_lite::future::or;
use glommio::Task;
use glommio::net::{AcceptedTcpStream, TcpListener};
use glommio::timer::Timer;
use shard::bus::handshake::{Acceptor, Facts, HandshakeError, Step};
use shard::slot::ShardNo;

use super::wire::Wire;
use super::{HANDSHAKE, LinkError, Shared, What, random};
use crate::net::Listener;

/// Connections that may prove themselves at a time: one more, and the oldest is given up. Who says nothing keeps no other out.
const HANDSHAKES: usize = 256;
/// Pause before another look when accepting failed: the connection stays acceptable then.
const PAUSE: Duration = Duration::from_millis(20);

/// A connection whose other side has proved itself.
#[derive(Debug)]
pub struct Visitor {
    pub(super) socket: OwnedFd,
    pub(super) peer: Facts,
    /// The store epoch that it was told.
    pub(super) told_epoch: u64,
}

impl Visitor {
    /// The shard that serves it, of so many.
    pub fn shard(&self, shards: u16) -> ShardNo {
        self.peer.shard % shards
    }
}

/// Accepts until the task is dropped.
pub(super) async fn run(listener: Listener, shared: Rc<Shared>) {
    // SAFETY: the descriptor is a listening socket, and its owner has just given it up.
    let socket = unsafe { TcpListener::from_raw_fd(listener.socket.into_raw_fd()) };
    let mut under_way: VecDeque<(u64, Task<()>)> = VecDeque::new();
    let ended = Rc::new(RefCell::new(Vec::new()));
    let mut number = 0;
    loop {
        match socket.shared_accept().await {
            Ok(stream) => {
                number += 1;
                let (of, here, ends) = (number, Rc::clone(&shared), Rc::clone(&ended));
                let task = glommio::spawn_local(async move {
                    receive(stream, &here).await;
                    ends.borrow_mut().push(of);
                });
                let over = std::mem::take(&mut *ended.borrow_mut());
                under_way.retain(|(of, _)| !over.contains(of));
                under_way.push_back((of, task));
                if under_way.len() > HANDSHAKES {
                    // To drop its task ends it.
                    under_way.pop_front();
                    shared.complain(
                        "refused the oldest of the connections that say nothing: there are too many",
                    );
                }
            }
            Err(error) => {
                shared.complain(&format!("cannot accept a connection: {error}"));
                Timer::new(PAUSE).await;
            }
        }
    }
}

async fn receive(stream: AcceptedTcpStream, shared: &Shared) {
    let wire = Wire::new(stream.bind_to_executor());
    let (_, ip) = wire.ends();
    let late = async {
        Timer::new(HANDSHAKE).await;
        Err(LinkError::Late)
    };
    match or(meet(wire, shared), late).await {
        Ok(visitor) => shared.tell(What::Visitor(visitor)),
        Err(error) => {
            let from = ip.map_or_else(|| "nowhere".to_owned(), |ip| ip.to_string());
            shared.complain(&format!("refused a connection from {from}: {error}"));
        }
    }
}

async fn meet(mut wire: Wire, shared: &Shared) -> Result<Visitor, LinkError> {
    let mut met_as = None;
    loop {
        let packet = match wire.receive_packet().await {
            Ok(packet) => packet,
            Err(LinkError::Handshake(error)) => return refuse(wire, error).await,
            Err(error) => return Err(error),
        };
        let Some(identity) = shared.identity.get() else {
            return refuse(wire, HandshakeError::NotNow).await;
        };
        if met_as.is_none() {
            let (node, epoch, nonce) = (identity.node, identity.epoch, random()?);
            let acceptor = Acceptor::new(node, epoch, shared.shards, &shared.secret, nonce);
            met_as = Some((identity, acceptor));
        }
        let (as_whom, acceptor) = met_as.as_mut().expect("it was made just now");
        if *as_whom != identity {
            return refuse(wire, HandshakeError::NotNow).await;
        }
        match acceptor.receive(&packet) {
            Ok(Step::Say(say)) => wire.send_all(say).await?,
            Ok(Step::Met { say, peer, .. }) => {
                wire.send_all(say).await?;
                return Ok(Visitor {
                    socket: wire.give_up()?,
                    peer,
                    told_epoch: identity.epoch,
                });
            }
            Err(error) => return refuse(wire, error).await,
        }
    }
}

async fn refuse(mut wire: Wire, error: HandshakeError) -> Result<Visitor, LinkError> {
    if let Some(refusal) = error.refusal() {
        wire.send_all(refusal).await?;
    }
    Err(error.into())
}
