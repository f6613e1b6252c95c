//! DEBUG: FLUSHALL, SLEEP, ERROR and STRUCTSIZE for tests; what ends the process only behind `enable-debug-command yes`.

use super::{Call, Finish, Plan, words};
use crate::core::Core;
use crate::error::CommandError;
use crate::input::Effect;
use crate::limits;
use crate::node::Change;
use crate::session::Session;
use crate::wire::{Args, Blob};

/// Grammar.
pub fn plan(core: &Core, _: &Session, args: &Args<'_>) -> Result<Plan, CommandError> {
    match (words::lowercase(&args[1]).as_str(), args.len()) {
        ("flushall", 2) => Ok(Plan::Change {
            change: Change::FlushAll,
            finish: |call: &mut Finish<'_>, _| call.reply().simple("OK"),
        }),
        ("sleep", 3) => Ok(Plan::Sleep {
            ms: parse_sleep_ms(&args[2])?,
        }),
        ("error", 3) => Ok(Plan::Local(|call| {
            let text = &call.args[2];
            call.session.encoder().error(text);
            Ok(())
        })),
        ("structsize", 2) => Ok(Plan::Local(run_structsize)),
        ("loadaof", 2) => Err(CommandError::other(
            "the log is loaded by a start: SHUTDOWN, and start again",
        )),
        ("segfault" | "assert" | "oom", 2) | ("crash-and-recover", 2 | 3) => {
            check_allowed(core)?;
            Ok(Plan::Local(|call| {
                call.core.effects.push(Effect::Crash);
                Ok(())
            }))
        }
        ("restart", 2 | 3) => Err(CommandError::other(
            "a process cannot restart itself: SHUTDOWN, and let the service manager start it again",
        )),
        ("help", 2) => Ok(Plan::Local(|call| {
            words::write_help(&mut call.reply(), "DEBUG", HELP);
            Ok(())
        })),
        (subcommand @ ("flushall" | "sleep" | "error" | "structsize" | "loadaof" | "help"), _) => {
            Err(words::arity("debug", subcommand))
        }
        _ => Err(words::unknown_subcommand("debug", args)),
    }
}

const HELP: &[(&str, &str)] = &[
    ("FLUSHALL", "Remove all jobs and queues."),
    ("SLEEP <seconds>", "Let this connection wait."),
    ("ERROR <text>", "Answer with this error."),
    ("STRUCTSIZE", "Tell the sizes of some structures."),
    (
        "SEGFAULT | ASSERT | OOM | CRASH-AND-RECOVER",
        "End the process at once (enable-debug-command yes).",
    ),
    (
        "RESTART",
        "Refused: starting again is the service manager's part.",
    ),
];

fn check_allowed(core: &Core) -> Result<(), CommandError> {
    if core.settings.enable_debug_command {
        Ok(())
    } else {
        Err(CommandError::other(
            "this ends the process: start the server with 'enable-debug-command yes' to allow it",
        ))
    }
}

fn parse_sleep_ms(text: &[u8]) -> Result<u64, CommandError> {
    let seconds = std::str::from_utf8(text)
        .ok()
        .and_then(|text| text.parse::<f64>().ok());
    let in_range = |seconds: &f64| (0.0..=limits::MAX_SECONDS as f64).contains(seconds);
    let seconds = seconds
        .filter(in_range)
        .ok_or_else(|| CommandError::other("value is not a valid float"))?;
    Ok((seconds * 1000.0).ceil() as u64)
}

fn run_structsize(call: &mut Call<'_>) -> Result<(), CommandError> {
    let text = format!(
        "bits:{} job:{} id:{} blob:{} session:{}",
        usize::BITS,
        size_of::<crate::home::Job>(),
        size_of::<crate::id::JobId>(),
        size_of::<Blob>(),
        size_of::<Session>()
    );
    call.reply().bulk(text);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sleep_takes_seconds_with_a_fraction() {
        assert_eq!(parse_sleep_ms(b"0"), Ok(0));
        assert_eq!(parse_sleep_ms(b"0.0501"), Ok(51));
        assert_eq!(parse_sleep_ms(b"2"), Ok(2_000));
        for text in [&b""[..], b"x", b"-1", b"nan", b"inf", b"1e99", b"\xff"] {
            assert!(parse_sleep_ms(text).is_err(), "{text:?}");
        }
    }
}
