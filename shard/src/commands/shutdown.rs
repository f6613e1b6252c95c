//! SHUTDOWN [NOSAVE] [NOW] [FORCE]: stops the node in order. No reply: the connection closes.
//!
//! The words are those of Redis and of the original. A log that is on is written to its end, whatever is asked for, except with
//! NOSAVE: then the next start finds what a crash would have left. Without a log `SAVE` and `REWRITE-AOF` are refused, rather than
//! to lose jobs that somebody meant to keep.

use super::{Finish, Plan, words};
use crate::core::Core;
use crate::error::CommandError;
use crate::node::Change;
use crate::session::Session;
use crate::wire::Args;

/// Grammar.
pub fn plan(core: &Core, _: &Session, args: &Args<'_>) -> Result<Plan, CommandError> {
    let save = parse(args, core.settings.appendonly)?;
    Ok(Plan::Change {
        change: Change::Shutdown { save },
        finish: |_: &mut Finish<'_>, _| {},
    })
}

/// Whether the log is written to its end.
fn parse(args: &Args<'_>, logs: bool) -> Result<bool, CommandError> {
    let mut save = true;
    for word in args.iter().skip(1) {
        match words::lowercase(word).as_str() {
            "nosave" => save = false,
            "now" | "force" => {}
            "save" | "rewrite-aof" if logs => {}
            "save" | "rewrite-aof" => {
                return Err(CommandError::other(
                    "no log is kept (appendonly no): jobs cannot be saved. SHUTDOWN NOSAVE stops without",
                ));
            }
            "abort" if args.len() == 2 => return Err(CommandError::other("No shutdown in progress.")),
            _ => return Err(CommandError::Syntax),
        }
    }
    Ok(save)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::testing::with_args;

    #[test]
    fn grammar() {
        let ask = |request: &str| {
            let words: Vec<&str> = request.split(' ').collect();
            with_args(&words, |args| parse(&args, false))
        };
        for request in [
            "SHUTDOWN",
            "SHUTDOWN nosave",
            "SHUTDOWN NOW FORCE",
            "SHUTDOWN NOSAVE NOW",
        ] {
            let save = !request.to_lowercase().contains("nosave");
            assert_eq!(ask(request), Ok(save), "{request}");
        }
        assert_eq!(ask("SHUTDOWN soon"), Err(CommandError::Syntax));
        assert_eq!(ask("SHUTDOWN NOW ABORT"), Err(CommandError::Syntax));
        for request in ["SHUTDOWN SAVE", "SHUTDOWN REWRITE-AOF", "SHUTDOWN ABORT"] {
            assert!(matches!(ask(request), Err(CommandError::Other(_))), "{request}");
        }
        let with_log = with_args(&["SHUTDOWN", "SAVE"], |args| parse(&args, true));
        assert_eq!(with_log, Ok(true));
    }
}
