//! The tests of whatever goes through sockets, once more with glommio's: `support` sees the name of this binary, and says so to
//! each server. The others run with the shards' own rings.

#![allow(
    clippy::duplicate_mod,
    reason = "each brings the part of the support that it uses"
)]

#[path = "bus.rs"]
mod bus;
#[path = "clients.rs"]
mod clients;
#[path = "load.rs"]
mod load;
#[path = "protocol.rs"]
mod protocol;

mod support;

use support::Server;

#[test]
fn the_log_says_who_serves_the_sockets() {
    let server = Server::start("--shards 1");
    assert!(
        server.log().contains("sockets are served by glommio"),
        "{}",
        server.log()
    );
    let server = Server::start("--shards 1 --sockets ring");
    assert!(!server.log().contains("glommio"), "{}", server.log());
}
