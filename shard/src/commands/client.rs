//! CLIENT: the connections of the node, and what holds for this one.
//!
//! LIST, KILL, PAUSE and UNPAUSE are about all shards; the rest is about the connection that asks. There is one type of
//! clients, `normal`, and one user, `default`.

mod filter;
mod line;

use super::view::Part;
use super::{Call, Finish, Gather, Plan, words};
use crate::core::Core;
use crate::error::CommandError;
use crate::node::Change;
use crate::session::{Replies, Session};
use crate::wire::number::parse_i64;
use crate::wire::{Args, Blob};
pub use filter::fits;
pub use line::line;

/// Grammar.
pub fn plan(_: &Core, session: &Session, args: &Args<'_>) -> Result<Plan, CommandError> {
    match (words::lowercase(&args[1]).as_str(), args.len()) {
        ("id", 2) => Ok(Plan::Local(|call| {
            let id = call.session.client.id;
            call.reply().integer(id as i64);
            Ok(())
        })),
        ("info", 2) => Ok(Plan::Local(|call| {
            let line = line(call.session, call.now);
            call.reply().bulk(line + "\n");
            Ok(())
        })),
        ("list", _) => {
            let ask = Gather::Clients(filter::of_list(args)?);
            Ok(Plan::Gather {
                ask,
                question: None,
                finish: finish_list,
            })
        }
        ("kill", 3..) => plan_kill(session, args),
        ("pause", 3 | 4) => plan_pause(args),
        ("unpause", 2) => Ok(Plan::Change {
            change: Change::UnpauseClients,
            finish: |call, _| call.reply().simple("OK"),
        }),
        ("getname", 2) => Ok(Plan::Local(run_getname)),
        ("setname", 3) => check_name(&args[2]).map(|_| Plan::Local(run_setname)),
        ("setinfo", 4) => {
            library_field(args)?;
            Ok(Plan::Local(run_setinfo))
        }
        ("reply", 3) => {
            parse_replies(&args[2])?;
            Ok(Plan::Local(run_reply))
        }
        ("no-evict" | "no-touch", 3) => {
            parse_on_off(&args[2])?;
            Ok(Plan::Local(run_mode))
        }
        ("tracking", 3..) => plan_tracking(args),
        ("getredir", 2) => Ok(Plan::Local(|call| {
            call.reply().integer(-1);
            Ok(())
        })),
        ("help", 2) => Ok(Plan::Local(|call| {
            words::write_help(&mut call.reply(), "CLIENT", HELP);
            Ok(())
        })),
        (
            subcommand @ ("id" | "info" | "kill" | "pause" | "unpause" | "getname" | "setname" | "setinfo"
            | "reply" | "no-evict" | "no-touch" | "tracking" | "getredir" | "help"),
            _,
        ) => Err(words::arity("client", subcommand)),
        _ => Err(words::unknown_subcommand("client", args)),
    }
}

const HELP: &[(&str, &str)] = &[
    ("ID", "Tell the number of this connection."),
    ("INFO", "Describe this connection."),
    (
        "LIST [TYPE normal] [ID <id> ...]",
        "Describe the connections, one a line.",
    ),
    ("KILL <ip:port>", "End the connection of this address."),
    (
        "KILL [ID <id>] [TYPE normal] [ADDR <ip:port>] [LADDR <ip:port>] [USER default] [SKIPME yes|no]",
        "End connections.",
    ),
    (
        "PAUSE <milliseconds> [WRITE|ALL]",
        "Start no command, or none that writes, for so long.",
    ),
    ("UNPAUSE", "End a pause."),
    (
        "SETNAME <name> | GETNAME",
        "Name this connection, or tell its name.",
    ),
    (
        "SETINFO LIB-NAME|LIB-VER <value>",
        "Tell which library this client uses.",
    ),
    (
        "REPLY ON|OFF|SKIP",
        "Reply to commands, to none, or not to the next one.",
    ),
    (
        "NO-EVICT ON|OFF",
        "Whether this client is closed when client buffers take too much memory.",
    ),
    (
        "NO-TOUCH ON|OFF",
        "Accepted: commands do not touch anything's age.",
    ),
    ("TRACKING OFF", "Accepted: there is nothing to track."),
    ("GETREDIR", "Always -1: nothing is tracked."),
];

fn finish_list(call: &mut Finish<'_>) {
    let text = join_lines(std::mem::take(&mut call.parts));
    call.reply().bulk(text);
}

fn join_lines(parts: Vec<Part>) -> String {
    let mut lines: Vec<(u64, String)> = parts
        .into_iter()
        .flat_map(|part| match part {
            Part::Clients(lines) => lines,
            _ => Vec::new(),
        })
        .collect();
    lines.sort();
    lines.into_iter().map(|(_, line)| line + "\n").collect()
}

fn plan_kill(session: &Session, args: &Args<'_>) -> Result<Plan, CommandError> {
    if args.len() == 3 {
        let change = Change::KillClients(filter::of_address(&args[2]));
        return Ok(Plan::Change {
            change,
            finish: finish_kill_address,
        });
    }
    let filter = filter::of_kill(args, session.client.id)?;
    let finish = |call: &mut Finish<'_>, killed| call.reply().integer(killed);
    Ok(Plan::Change {
        change: Change::KillClients(filter),
        finish,
    })
}

fn finish_kill_address(call: &mut Finish<'_>, killed: i64) {
    if killed > 0 {
        call.reply().simple("OK");
    } else {
        call.reply().error("ERR No such client");
    }
}

fn plan_pause(args: &Args<'_>) -> Result<Plan, CommandError> {
    let ms = parse_i64(&args[2])
        .ok_or_else(|| CommandError::other("timeout is not an integer or out of range"))?;
    let ms = u64::try_from(ms).map_err(|_| CommandError::other("timeout is negative"))?;
    let writes_only = match args.get(3) {
        Some(mode) if words::is(mode, "write") => true,
        Some(mode) if !words::is(mode, "all") => {
            return Err(CommandError::other("CLIENT PAUSE mode must be WRITE or ALL"));
        }
        _ => false,
    };
    let change = Change::PauseClients { ms, writes_only };
    Ok(Plan::Change {
        change,
        finish: |call, _| call.reply().simple("OK"),
    })
}

fn run_getname(call: &mut Call<'_>) -> Result<(), CommandError> {
    let name = call.session.client.name.clone();
    match name.is_empty() {
        true => call.reply().null(),
        false => call.reply().blob(&name),
    }
    Ok(())
}

fn run_setname(call: &mut Call<'_>) -> Result<(), CommandError> {
    call.session.client.name = check_name(&call.args[2])?;
    call.reply().simple("OK");
    Ok(())
}

/// A name of a client, also of HELLO SETNAME: printable without blanks, so that CLIENT LIST stays readable; empty for none.
pub fn check_name(name: &[u8]) -> Result<Blob, CommandError> {
    if is_printable(name) {
        Ok(Blob::copy_from(name))
    } else {
        Err(CommandError::other(
            "Client names cannot contain spaces, newlines or special characters.",
        ))
    }
}

fn is_printable(text: &[u8]) -> bool {
    text.iter().all(u8::is_ascii_graphic)
}

/// Which field of CLIENT SETINFO is meant: the name of the library (`true`), or its version.
fn library_field(args: &Args<'_>) -> Result<bool, CommandError> {
    let (is_name, field) = match words::lowercase(&args[2]).as_str() {
        "lib-name" => (true, "lib-name"),
        "lib-ver" => (false, "lib-ver"),
        _ => {
            let option = &args[2];
            let shown = String::from_utf8_lossy(&option[..option.len().min(128)]).into_owned();
            return Err(CommandError::other(format!("Unrecognized option '{shown}'")));
        }
    };
    if is_printable(&args[3]) {
        Ok(is_name)
    } else {
        Err(CommandError::other(format!(
            "{field} cannot contain spaces, newlines or special characters."
        )))
    }
}

fn run_setinfo(call: &mut Call<'_>) -> Result<(), CommandError> {
    let is_name = library_field(call.args)?;
    let client = &mut call.session.client;
    let field = if is_name {
        &mut client.library_name
    } else {
        &mut client.library_version
    };
    *field = Blob::copy_from(&call.args[3]);
    call.reply().simple("OK");
    Ok(())
}

fn parse_replies(word: &[u8]) -> Result<Replies, CommandError> {
    match words::lowercase(word).as_str() {
        "on" => Ok(Replies::On),
        "off" => Ok(Replies::Off),
        "skip" => Ok(Replies::SkipNext),
        _ => Err(CommandError::Syntax),
    }
}

/// ON answers, OFF and SKIP do not; a SKIP while replies are off changes nothing.
fn run_reply(call: &mut Call<'_>) -> Result<(), CommandError> {
    let asked = parse_replies(&call.args[2])?;
    let is_off = call.session.client.replies == Replies::Off;
    match asked {
        Replies::SkipNext if is_off => {}
        replies => call.session.client.replies = replies,
    }
    if asked == Replies::On {
        call.reply().simple("OK");
    }
    Ok(())
}

fn parse_on_off(word: &[u8]) -> Result<bool, CommandError> {
    match words::lowercase(word).as_str() {
        "on" => Ok(true),
        "off" => Ok(false),
        _ => Err(CommandError::Syntax),
    }
}

fn run_mode(call: &mut Call<'_>) -> Result<(), CommandError> {
    let on = parse_on_off(&call.args[2])?;
    let client = &mut call.session.client;
    if words::is(&call.args[1], "no-evict") {
        client.no_evict = on;
    } else {
        client.no_touch = on;
    }
    call.reply().simple("OK");
    Ok(())
}

fn plan_tracking(args: &Args<'_>) -> Result<Plan, CommandError> {
    if parse_on_off(&args[2])? {
        return Err(CommandError::other(
            "client tracking is not supported: there are no keys to cache",
        ));
    }
    Ok(Plan::Local(|call| {
        call.reply().simple("OK");
        Ok(())
    }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::testing::with_args;

    #[test]
    fn names() {
        assert_eq!(check_name(b""), Ok(Blob::EMPTY));
        assert_eq!(check_name(b"worker-1!~"), Ok("worker-1!~".into()));
        for name in [&b"a b"[..], b"a\n", b"\xc3\xa9", b"\x7f"] {
            assert!(check_name(name).is_err(), "{name:?}");
        }
    }

    #[test]
    fn library_fields() {
        let field = |words: &[&str]| with_args(words, |args| library_field(&args));
        assert_eq!(field(&["CLIENT", "SETINFO", "LIB-NAME", "redis-py"]), Ok(true));
        assert_eq!(field(&["CLIENT", "SETINFO", "lib-ver", "8.0"]), Ok(false));
        let error = field(&["CLIENT", "SETINFO", "foo", "x"]).unwrap_err();
        assert_eq!(error.to_string(), "ERR Unrecognized option 'foo'");
        let error = field(&["CLIENT", "SETINFO", "LIB-NAME", "a b"]).unwrap_err();
        assert_eq!(
            error.to_string(),
            "ERR lib-name cannot contain spaces, newlines or special characters."
        );
    }

    #[test]
    fn pauses() {
        let pause = |words: &[&str]| {
            with_args(words, |args| match plan_pause(&args) {
                Ok(Plan::Change { change, .. }) => Ok(change),
                Ok(_) => panic!("a pause is a change"),
                Err(error) => Err(error.to_string()),
            })
        };
        let of = |ms, writes_only| Ok(Change::PauseClients { ms, writes_only });
        assert_eq!(pause(&["CLIENT", "PAUSE", "100"]), of(100, false));
        assert_eq!(pause(&["CLIENT", "PAUSE", "100", "all"]), of(100, false));
        assert_eq!(pause(&["CLIENT", "PAUSE", "0", "WRITE"]), of(0, true));
        assert_eq!(
            pause(&["CLIENT", "PAUSE", "x"]),
            Err("ERR timeout is not an integer or out of range".into())
        );
        assert_eq!(
            pause(&["CLIENT", "PAUSE", "-1"]),
            Err("ERR timeout is negative".into())
        );
        assert_eq!(
            pause(&["CLIENT", "PAUSE", "1", "READ"]),
            Err("ERR CLIENT PAUSE mode must be WRITE or ALL".into())
        );
    }

    #[test]
    fn lines_of_all_shards_are_in_the_order_of_their_numbers() {
        let line = |id: u64| (id, format!("id={id}"));
        let parts = vec![
            Part::Clients(vec![line(2), line(10)]),
            Part::Clients(vec![line(3)]),
        ];
        assert_eq!(join_lines(parts), "id=2\nid=3\nid=10\n");
        assert_eq!(join_lines(Vec::new()), "");
    }

    #[test]
    fn modes() {
        assert_eq!(parse_replies(b"Skip"), Ok(Replies::SkipNext));
        assert_eq!(parse_replies(b"x"), Err(CommandError::Syntax));
        assert_eq!(parse_on_off(b"ON"), Ok(true));
        assert_eq!(parse_on_off(b"maybe"), Err(CommandError::Syntax));
    }
}
