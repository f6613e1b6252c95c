//! SLOWLOG GET [count], LEN, RESET, HELP: the commands that took longer than `slowlog-log-slower-than`, on all shards.
//!
//! An entry is `[id, unix time, microseconds, [argument...]]`, the newest first; a negative count means all.

use super::view::Part;
use super::{Finish, Gather, Plan, words};
use crate::core::Core;
use crate::error::CommandError;
use crate::node::Change;
use crate::session::Session;
use crate::stats::SlowEntry;
use crate::wire::number::parse_i64;
use crate::wire::{Args, Encoder};

const DEFAULT_COUNT: usize = 10;

/// Grammar.
pub fn plan(_: &Core, _: &Session, args: &Args<'_>) -> Result<Plan, CommandError> {
    match (words::lowercase(&args[1]).as_str(), args.len()) {
        ("get", 2 | 3) => {
            let count = parse_count(args)?;
            Ok(Plan::Gather {
                ask: Gather::Slow(count),
                question: None,
                finish: finish_get,
            })
        }
        ("len", 2) => Ok(Plan::Gather {
            ask: Gather::Slow(usize::MAX),
            question: None,
            finish: finish_length,
        }),
        ("reset", 2) => Ok(Plan::Change {
            change: Change::ResetSlowlog,
            finish: |call: &mut Finish<'_>, _| call.reply().simple("OK"),
        }),
        ("help", 2) => Ok(Plan::Local(|call| {
            words::write_help(&mut call.reply(), "SLOWLOG", HELP);
            Ok(())
        })),
        (subcommand @ ("get" | "len" | "reset" | "help"), _) => Err(words::arity("slowlog", subcommand)),
        _ => Err(words::unknown_subcommand("slowlog", args)),
    }
}

const HELP: &[(&str, &str)] = &[
    (
        "GET [<count>]",
        "Show the newest entries (10 by default, a negative count for all): id, time, microseconds, request.",
    ),
    ("LEN", "Tell how many entries there are."),
    ("RESET", "Remove all entries."),
];

fn parse_count(args: &Args<'_>) -> Result<usize, CommandError> {
    let Some(count) = args.get(2) else {
        return Ok(DEFAULT_COUNT);
    };
    let count = parse_i64(count).ok_or(CommandError::NotAnInteger)?;
    Ok(usize::try_from(count).unwrap_or(usize::MAX))
}

fn finish_get(call: &mut Finish<'_>) {
    let count = call
        .args
        .get(2)
        .map_or(Some(DEFAULT_COUNT as i64), |count| parse_i64(count));
    let count = count
        .and_then(|count| usize::try_from(count).ok())
        .unwrap_or(usize::MAX);
    let entries = newest(std::mem::take(&mut call.parts), count);
    write_entries(&mut call.reply(), &entries);
}

fn finish_length(call: &mut Finish<'_>) {
    let length = newest(std::mem::take(&mut call.parts), usize::MAX).len();
    call.reply().integer(length as i64);
}

fn newest(parts: Vec<Part>, count: usize) -> Vec<SlowEntry> {
    let mut entries: Vec<SlowEntry> = parts
        .into_iter()
        .flat_map(|part| match part {
            Part::Slow(entries) => entries,
            _ => Vec::new(),
        })
        .collect();
    entries.sort_by_key(|entry| std::cmp::Reverse((entry.at_s, entry.id)));
    entries.truncate(count);
    entries
}

fn write_entries(out: &mut Encoder<'_>, entries: &[SlowEntry]) {
    out.array(entries.len());
    for entry in entries {
        out.array(4);
        out.integer(entry.id as i64);
        out.integer(entry.at_s as i64);
        out.integer(entry.took_us as i64);
        out.array(entry.args.len());
        entry.args.iter().for_each(|arg| out.blob(arg));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::testing::{reply, with_args};

    fn entry(id: u64, at_s: u64) -> SlowEntry {
        SlowEntry {
            id,
            at_s,
            took_us: 12,
            args: vec!["PING".into(), "x".into()],
        }
    }

    #[test]
    fn the_newest_of_all_shards_come_first() {
        let parts = || {
            vec![
                Part::Slow(vec![entry(2, 30), entry(0, 10)]),
                Part::Slow(vec![entry(1, 30)]),
            ]
        };
        let ids = |count| {
            newest(parts(), count)
                .iter()
                .map(|entry| entry.id)
                .collect::<Vec<_>>()
        };
        assert_eq!(ids(usize::MAX), [2, 1, 0]);
        assert_eq!(ids(2), [2, 1]);
    }

    #[test]
    fn an_entry_has_four_fields() {
        assert_eq!(
            reply(false, |out| write_entries(out, &[entry(5, 1_700_000_000)])),
            "*1\r\n*4\r\n:5\r\n:1700000000\r\n:12\r\n*2\r\n$4\r\nPING\r\n$1\r\nx\r\n"
        );
    }

    #[test]
    fn counts() {
        let count = |words: &[&str]| with_args(words, |args| parse_count(&args));
        assert_eq!(count(&["SLOWLOG", "GET"]), Ok(10));
        assert_eq!(count(&["SLOWLOG", "GET", "3"]), Ok(3));
        assert_eq!(count(&["SLOWLOG", "GET", "-1"]), Ok(usize::MAX));
        assert_eq!(count(&["SLOWLOG", "GET", "x"]), Err(CommandError::NotAnInteger));
    }
}
