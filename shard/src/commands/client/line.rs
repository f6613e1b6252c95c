//! A client's line in CLIENT LIST and CLIENT INFO: the original's fields in its order, then those of Redis that fit.

use crate::clock::Now;
use crate::input::Peer;
use crate::session::{ClientInfo, Session};

/// The line, without its end.
pub fn line(session: &Session, now: Now) -> String {
    let buffers = Buffers {
        input_bytes: session.input_bytes(),
        output_bytes: session.output_bytes(),
    };
    client_line(&session.client, session.is_blocked(), buffers, now)
}

/// What waits in a session.
#[derive(Clone, Copy)]
struct Buffers {
    input_bytes: usize,
    output_bytes: usize,
}

fn client_line(client: &ClientInfo, is_blocked: bool, buffers: Buffers, now: Now) -> String {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let seconds_since = |then| now.mono().since_ms(then) / 1000;
    let Buffers {
        input_bytes,
        output_bytes,
    } = buffers;
    format!(
        "id={} addr={} fd=-1 name={} age={} idle={} flags={} qbuf={input_bytes} qbuf-free=0 obl={output_bytes} oll=0 \
         omem={output_bytes} events={} cmd={} laddr={} db=0 user=default resp={} lib-name={} lib-ver={}",
        client.id,
        client.peer,
        text(&client.name),
        seconds_since(client.connected_at),
        seconds_since(client.active_at),
        flags(client, is_blocked),
        if output_bytes > 0 { "rw" } else { "r" },
        client.last_command,
        client.local,
        if client.resp3 { 3 } else { 2 },
        text(&client.library_name),
        text(&client.library_version),
    )
}

/// O monitor, b blocked, U over the Unix socket, e not evicted, T not touching, N none of them.
fn flags(client: &ClientInfo, is_blocked: bool) -> String {
    let all = [
        (client.monitor, 'O'),
        (is_blocked, 'b'),
        (matches!(client.peer, Peer::Unix(_)), 'U'),
        (client.no_evict, 'e'),
        (client.no_touch, 'T'),
    ];
    let set: String = all
        .iter()
        .filter(|(is_set, _)| *is_set)
        .map(|(_, flag)| *flag)
        .collect();
    if set.is_empty() { "N".to_owned() } else { set }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::Mono;

    #[test]
    fn fields_of_the_original_come_first() {
        let peer = |text: &str| Peer::Tcp(text.parse().expect("an address"));
        let mut client = ClientInfo::new(
            3,
            peer("127.0.0.1:4000"),
            peer("127.0.0.1:7711"),
            Mono(1_000),
            true,
        );
        client.name = "me".into();
        client.active_at = Mono(9_500);
        client.last_command = "client";
        let now = Now {
            mono_us: 11_000_000,
            wall_us: 0,
        };
        let buffers = Buffers {
            input_bytes: 26,
            output_bytes: 0,
        };
        assert_eq!(
            client_line(&client, false, buffers, now),
            "id=3 addr=127.0.0.1:4000 fd=-1 name=me age=10 idle=1 flags=N qbuf=26 qbuf-free=0 obl=0 oll=0 omem=0 \
             events=r cmd=client laddr=127.0.0.1:7711 db=0 user=default resp=2 lib-name= lib-ver="
        );
    }

    #[test]
    fn flags_of_a_blocked_monitor() {
        let peer = Peer::Unix("/tmp/s".into());
        let mut client = ClientInfo::new(3, peer.clone(), peer, Mono(0), true);
        assert_eq!(flags(&client, false), "U");
        client.monitor = true;
        assert_eq!(flags(&client, true), "ObU");
    }
}
