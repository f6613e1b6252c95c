//! MONITOR: `+OK`, then a line for every command that the node runs, on whatever shard (reference, 1.12).
//!
//! `+<seconds>.<6 digits> [<address>] "arg" "arg"...`, arguments escaped as Redis does, passwords as `(redacted)`. A
//! shard whose monitors are its first asks all others for their lines; it asks them to stop when its last one leaves.
//! Given again, MONITOR answers nothing.
//!
//! A request larger than the feed passes on in a turn is shown cut, as ` (N more bytes)` behind an argument and ` (N more
//! arguments)` at the end say: escaping it whole would build a line of four times its size to throw it away.

use std::io::Write;

use bytes::Bytes;

use super::{Finish, Plan, redact};
use crate::clock::Now;
use crate::core::Core;
use crate::error::CommandError;
use crate::input::Peer;
use crate::limits;
use crate::node::Change;
use crate::session::{ClientInfo, Session};
use crate::wire::Args;

/// Arguments shown of a request that is cut.
const CUT_ARGUMENTS: usize = 32;
/// Bytes shown of each argument of a request that is cut.
const CUT_ARGUMENT_BYTES: usize = 1 << 10;

// Each byte may take four.
const _: () = assert!(CUT_ARGUMENTS * CUT_ARGUMENT_BYTES * 4 < limits::FEED_BYTES / 2);

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
    write!(line, "{}.{:06} [", now.wall_s(), now.wall_us % 1_000_000)
        .and_then(|()| match &client.peer {
            Peer::Unix(path) => write!(line, "unix:{path}]"),
            peer => write!(line, "{peer}]"),
        })
        .expect("memory takes what is written");
    let visible = |at| redact::visible(client.last_command, |at| args.get(at), at);
    if least_bytes(&args) <= limits::FEED_BYTES {
        (0..args.len()).for_each(|at| quote(visible(at), &mut line));
    } else {
        quote_cut(args.len(), visible, &mut line);
    }
    line.into()
}

/// What the arguments take in a line at the least: a blank and two quotes each, and no byte escaped.
fn least_bytes(args: &Args<'_>) -> usize {
    args.iter().map(|arg| arg.len() + 3).sum()
}

/// The arguments of a request too large for the feed: the first ones, the front of each.
fn quote_cut<'a>(total: usize, visible: impl Fn(usize) -> &'a [u8], line: &mut Vec<u8>) {
    let shown = total.min(CUT_ARGUMENTS);
    for arg in (0..shown).map(visible) {
        let (front, rest) = arg.split_at(arg.len().min(CUT_ARGUMENT_BYTES));
        quote(front, line);
        write_more(rest.len(), "bytes", line);
    }
    write_more(total - shown, "arguments", line);
}

/// Outside of the quotes, so that it cannot be taken for a part of the request.
fn write_more(number: usize, what: &str, line: &mut Vec<u8>) {
    if number > 0 {
        write!(line, " ({number} more {what})").expect("memory takes what is written");
    }
}

/// A blank, then the argument escaped as Redis does, so that any bytes make one printable word.
fn quote(arg: &[u8], line: &mut Vec<u8>) {
    line.extend(b" \"");
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

    fn shown(words: &[&[u8]]) -> String {
        shown_from(Peer::Tcp("127.0.0.1:4242".parse().expect("an address")), words)
    }

    fn shown_from(peer: Peer, words: &[&[u8]]) -> String {
        let now = Now {
            mono_us: 5,
            wall_us: 1_700_000_000_000_042,
        };
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

    #[test]
    fn the_unix_socket_is_named() {
        assert_eq!(
            shown_from(Peer::Unix("/run/s.sock".into()), &[b"PING"]),
            r#"1700000000.000042 [unix:/run/s.sock] "PING""#
        );
    }

    #[test]
    fn what_is_larger_than_the_feed_is_cut() {
        let body = vec![0; limits::FEED_BYTES];
        let line = shown(&[b"ADDJOB", b"q", &body, b"0"]);
        let front = r"\x00".repeat(CUT_ARGUMENT_BYTES);
        let more = limits::FEED_BYTES - CUT_ARGUMENT_BYTES;
        let expected = format!(r#" "ADDJOB" "q" "{front}" ({more} more bytes) "0""#);
        assert_eq!(line.split_once(']').expect("an address").1, expected);

        let many = vec![&b"GETJOB"[..]; limits::FEED_BYTES / 9 + 1];
        let line = shown(&many);
        let more = format!(r#" "GETJOB" ({} more arguments)"#, many.len() - CUT_ARGUMENTS);
        assert!(line.ends_with(&more), "{line}");

        let fits = vec![b'x'; limits::FEED_BYTES - 3 - 7];
        assert!(!shown(&[b"ECHO", &fits]).contains("more"));
    }
}
