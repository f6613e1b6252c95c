//! MONITOR: `+OK`, then a line for every command that the node runs, on whatever shard (reference, 1.12).
//!
//! `+<seconds>.<6 digits> [<address>] "arg" "arg"...`, arguments escaped as Redis does, passwords as `(redacted)`. A
//! shard whose monitors are its first asks all others for their lines; it asks them to stop when its last one leaves.
//! Given again, MONITOR answers nothing.

use std::io::Write;

use bytes::Bytes;

use super::{Finish, Plan, redact};
use crate::clock::Now;
use crate::core::Core;
use crate::error::CommandError;
use crate::node::Change;
use crate::session::{ClientInfo, Session};
use crate::wire::Args;

/// Grammar.
pub fn plan(core: &Core, session: &Session, _: &Args<'_>) -> Result<Plan, CommandError> {
    if session.client.monitor {
        return Ok(Plan::Local(|_| Ok(())));
    }
    Ok(Plan::Change {
        change: Change::Monitor {
            shard: core.shard,
            on: true,
        },
        finish: |call: &mut Finish<'_>, _| {
            call.session.client.monitor = true;
            call.core.feed.monitors.push(call.session.id);
            call.reply().simple("OK");
        },
    })
}

/// The line about a command, as it stands in the feed: without the leading `+` and the line's end.
///
/// `client` already has the command as its last one.
pub fn line(now: Now, client: &ClientInfo, args: Args<'_>) -> Bytes {
    let mut line = Vec::with_capacity(64);
    let head = write!(
        line,
        "{}.{:06} [{}]",
        now.wall_s(),
        now.wall_us % 1_000_000,
        client.peer
    );
    head.expect("memory takes what is written");
    for at in 0..args.len() {
        line.push(b' ');
        quote(
            redact::visible(client.last_command, |at| args.get(at), at),
            &mut line,
        );
    }
    line.into()
}

/// Escapes as Redis does, so that any bytes make one printable word.
fn quote(arg: &[u8], line: &mut Vec<u8>) {
    line.push(b'"');
    for &byte in arg {
        match byte {
            b'\\' | b'"' => line.extend([b'\\', byte]),
            b'\n' => line.extend(b"\\n"),
            b'\r' => line.extend(b"\\r"),
            b'\t' => line.extend(b"\\t"),
            0x07 => line.extend(b"\\a"),
            0x08 => line.extend(b"\\b"),
            b' '..=b'~' => line.push(byte),
            _ => write!(line, "\\x{byte:02x}").expect("memory takes what is written"),
        }
    }
    line.push(b'"');
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::Mono;
    use crate::commands::table::{COMMANDS, find};
    use crate::commands::testing::with_args;
    use crate::input::Peer;

    fn shown(words: &[&[u8]]) -> String {
        let now = Now {
            mono_us: 5,
            wall_us: 1_700_000_000_000_042,
        };
        let peer = Peer::Tcp("127.0.0.1:4242".parse().expect("an address"));
        let mut client = ClientInfo::new(1, peer.clone(), peer, Mono(0), true);
        client.last_command = COMMANDS[usize::from(find(words[0]).expect("a command"))].name;
        with_args(words, |args| {
            String::from_utf8(line(now, &client, args).into()).expect("printable")
        })
    }

    #[test]
    fn lines_are_those_of_redis() {
        assert_eq!(
            shown(&[b"addjob", b"q\"\\\n\r\t\x07\x08", b"\x00\xff\x7f~", b"0"]),
            r#"1700000000.000042 [127.0.0.1:4242] "addjob" "q\"\\\n\r\t\a\b" "\x00\xff\x7f~" "0""#
        );
    }

    #[test]
    fn passwords_are_not_shown() {
        assert_eq!(
            shown(&[b"AUTH", b"secret"]),
            r#"1700000000.000042 [127.0.0.1:4242] "AUTH" "(redacted)""#
        );
    }
}
