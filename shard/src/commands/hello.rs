//! HELLO: the nodes to connect to. HELLO 2|3 [AUTH user password] [SETNAME name]: Redis' handshake.
//!
//! The first form answers the same flat array in both protocols: `[1, id, [id, ip, port, priority]...]`, a node each, port and
//! priority as bulk strings; this node first, then those that a client can connect to. The second changes all it asks for or nothing, and describes the server in a map.

use super::{Call, Finish, Plan, auth, client, cluster, words};
use crate::cluster::view::{ClusterView, NodeView};
use crate::core::Core;
use crate::error::CommandError;
use crate::input::Peer;
use crate::session::Session;
use crate::wire::number::parse_i64;
use crate::wire::{Args, Encoder};

/// Grammar.
pub fn plan(core: &Core, session: &Session, args: &Args<'_>) -> Result<Plan, CommandError> {
    let authenticated = session.client.authenticated || core.settings.requirepass.is_none();
    if args.len() == 1 {
        return if authenticated {
            Ok(cluster::ask(finish_nodes))
        } else {
            Err(CommandError::NotAuthenticated)
        };
    }
    let handshake = Handshake::parse(args)?;
    if handshake.auth.is_none() && !authenticated {
        return Err(CommandError::Coded(
            "NOAUTH HELLO must be called with the client already authenticated, otherwise the HELLO <proto> AUTH \
             <user> <pass> option can be used to authenticate the client and select the RESP protocol version at \
             the same time"
                .into(),
        ));
    }
    Ok(Plan::Local(run_handshake))
}

/// What the second form asks for.
#[derive(Debug, PartialEq, Eq)]
struct Handshake<'a> {
    resp3: bool,
    auth: Option<(&'a [u8], &'a [u8])>,
    name: Option<&'a [u8]>,
}

impl<'a> Handshake<'a> {
    fn parse(args: &Args<'a>) -> Result<Self, CommandError> {
        let version = args.get(1).and_then(parse_i64);
        let resp3 = match version {
            Some(2) => false,
            Some(3) => true,
            Some(_) => return Err(CommandError::Coded("NOPROTO unsupported protocol version".into())),
            None => {
                return Err(CommandError::other(
                    "Protocol version is not an integer or out of range",
                ));
            }
        };
        let mut handshake = Self {
            resp3,
            auth: None,
            name: None,
        };
        let mut rest = args.iter().skip(2);
        while let Some(option) = rest.next() {
            match words::lowercase(option).as_str() {
                "auth" => {
                    let pair = rest.next().zip(rest.next());
                    handshake.auth = Some(pair.ok_or_else(|| syntax(option))?);
                }
                "setname" => handshake.name = Some(rest.next().ok_or_else(|| syntax(option))?),
                _ => return Err(syntax(option)),
            }
        }
        Ok(handshake)
    }
}

fn syntax(option: &[u8]) -> CommandError {
    let shown = String::from_utf8_lossy(&option[..option.len().min(128)]).into_owned();
    CommandError::other(format!("Syntax error in HELLO option '{shown}'"))
}

fn run_handshake(call: &mut Call<'_>) -> Result<(), CommandError> {
    let handshake = Handshake::parse(call.args)?;
    let password = call.core.settings.requirepass.as_deref();
    if let Some((user, given)) = handshake.auth {
        auth::check_user(password, user, given)?;
    }
    let name = handshake.name.map(client::check_name).transpose()?;
    let client = &mut call.session.client;
    client.authenticated |= handshake.auth.is_some();
    client.resp3 = handshake.resp3;
    if let Some(name) = name {
        client.name = name;
    }
    let id = client.id;
    write_server(&mut call.session.encoder(), &call.core.facts.version, id);
    Ok(())
}

fn write_server(out: &mut Encoder<'_>, version: &str, client: u64) {
    let protocol = if out.is_resp3() { 3 } else { 2 };
    out.map(7);
    out.bulk("server");
    out.bulk("shardq");
    out.bulk("version");
    out.bulk(version);
    out.bulk("proto");
    out.integer(protocol);
    out.bulk("id");
    out.integer(client as i64);
    out.bulk("mode");
    out.bulk("standalone");
    out.bulk("role");
    out.bulk("master");
    out.bulk("modules");
    out.array(0);
}

fn finish_nodes(call: &mut Finish<'_>) {
    let view = cluster::view_of(call);
    write_nodes(&mut call.reply(), &view);
}

/// The address at which this client reached the node; empty when that was no address.
pub fn local_ip(session: &Session) -> String {
    match &session.client.local {
        Peer::Tcp(address) => address.ip().to_string(),
        Peer::Unix(_) => String::new(),
    }
}

/// This node, then the others whose clients' address is known.
fn write_nodes(out: &mut Encoder<'_>, view: &ClusterView) {
    let is_dialable = |node: &&NodeView| !node.host.is_empty() && node.port > 0;
    let others: Vec<_> = view.others.iter().filter(is_dialable).collect();
    out.array(2 + 1 + others.len());
    out.integer(1);
    out.bulk(view.me.id.text());
    for node in std::iter::once(&view.me).chain(others) {
        out.array(4);
        out.bulk(node.id.text());
        out.bulk(&node.host);
        out.bulk(node.port.to_string());
        out.bulk(node.priority().to_string());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bus::PeerState;
    use crate::commands::testing::{reply, with_args};
    use crate::id::NodeId;

    #[test]
    fn the_nodes_look_the_same_in_both_protocols() {
        let id = |number: u8| NodeId::from_bytes([number; 20]);
        let mut view = ClusterView::alone(id(1), "127.0.0.1".into(), 7711);
        let node = |number: u8, host: &str, state, leaving, connected| NodeView {
            id: id(number),
            host: host.to_owned(),
            port: 7712,
            state,
            leaving,
            connected,
        };
        view.others = vec![
            node(2, "b", PeerState::Alive, false, true),
            node(3, "c", PeerState::Alive, false, false),
            node(4, "d", PeerState::Suspect, false, false),
            node(5, "e", PeerState::Failed, false, false),
            node(6, "f", PeerState::Alive, true, true),
            // Nobody could connect to it.
            node(7, "", PeerState::Alive, false, true),
        ];
        let first = "*8\r\n:1\r\n$40\r\n0101010101010101010101010101010101010101\r\n*4\r\n$40\r\n\
                     0101010101010101010101010101010101010101\r\n$9\r\n127.0.0.1\r\n$4\r\n7711\r\n$1\r\n1\r\n";
        for resp3 in [false, true] {
            let nodes = reply(resp3, |out| write_nodes(out, &view));
            assert!(nodes.starts_with(first), "{nodes}");
            let priorities: Vec<&str> = nodes[first.len()..]
                .split("*4\r\n")
                .filter_map(|node| node.lines().nth(7))
                .collect();
            assert_eq!(priorities, ["1", "5", "10", "100", "100"]);
        }
    }

    #[test]
    fn the_server_is_a_map() {
        let body = "$6\r\nserver\r\n$6\r\nshardq\r\n$7\r\nversion\r\n$5\r\n0.1.0\r\n$5\r\nproto\r\n:P\r\n$2\r\nid\r\n:7\r\n\
                    $4\r\nmode\r\n$10\r\nstandalone\r\n$4\r\nrole\r\n$6\r\nmaster\r\n$7\r\nmodules\r\n*0\r\n";
        let write = |out: &mut Encoder<'_>| write_server(out, "0.1.0", 7);
        assert_eq!(
            reply(false, write),
            format!("*14\r\n{}", body.replace(":P", ":2"))
        );
        assert_eq!(reply(true, write), format!("%7\r\n{}", body.replace(":P", ":3")));
    }

    #[test]
    fn grammar() {
        let ask = |request: &str, check: &dyn Fn(Result<Handshake<'_>, CommandError>)| {
            let words: Vec<&str> = request.split(' ').collect();
            with_args(&words, |args| check(Handshake::parse(&args)));
        };
        let full = Handshake {
            resp3: true,
            auth: Some((b"default", b"pw")),
            name: Some(b"me"),
        };
        ask("HELLO 3 setname me AUTH default pw", &|asked| {
            assert_eq!(asked.as_ref(), Ok(&full))
        });
        let plain = Handshake {
            resp3: false,
            auth: None,
            name: None,
        };
        ask("HELLO 2", &|asked| assert_eq!(asked.as_ref(), Ok(&plain)));
        for (request, text) in [
            ("HELLO 4", "NOPROTO unsupported protocol version"),
            (
                "HELLO x",
                "ERR Protocol version is not an integer or out of range",
            ),
            ("HELLO 3 AUTH default", "ERR Syntax error in HELLO option 'AUTH'"),
            ("HELLO 3 SETNAME", "ERR Syntax error in HELLO option 'SETNAME'"),
            ("HELLO 3 FOO", "ERR Syntax error in HELLO option 'FOO'"),
        ] {
            ask(request, &|asked| assert_eq!(asked.unwrap_err().to_string(), text));
        }
    }
}
