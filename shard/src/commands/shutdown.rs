//! SHUTDOWN [NOSAVE] [NOW] [FORCE]: stops the node in order. No reply: the connection closes.
//!
//! The words are those of Redis and of the original. `SAVE` and `REWRITE-AOF` ask for what this version cannot do, keep the
//! jobs on disk: they are refused, rather than to lose jobs that somebody meant to keep.

use super::{Finish, Plan, words};
use crate::core::Core;
use crate::error::CommandError;
use crate::node::Change;
use crate::session::Session;
use crate::wire::Args;

/// Grammar.
pub fn plan(_: &Core, _: &Session, args: &Args<'_>) -> Result<Plan, CommandError> {
    parse(args)?;
    Ok(Plan::Change {
        change: Change::Shutdown,
        finish: |_: &mut Finish<'_>, _| {},
    })
}

fn parse(args: &Args<'_>) -> Result<(), CommandError> {
    for word in args.iter().skip(1) {
        match words::lowercase(word).as_str() {
            "nosave" | "now" | "force" => {}
            "save" | "rewrite-aof" => {
                return Err(CommandError::other(
                    "this version keeps no log: jobs cannot be saved. SHUTDOWN NOSAVE stops without",
                ));
            }
            "abort" if args.len() == 2 => return Err(CommandError::other("No shutdown in progress.")),
            _ => return Err(CommandError::Syntax),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::testing::with_args;

    #[test]
    fn grammar() {
        let ask = |request: &str| {
            let words: Vec<&str> = request.split(' ').collect();
            with_args(&words, |args| parse(&args))
        };
        for request in [
            "SHUTDOWN",
            "SHUTDOWN nosave",
            "SHUTDOWN NOW FORCE",
            "SHUTDOWN NOSAVE NOW",
        ] {
            assert_eq!(ask(request), Ok(()), "{request}");
        }
        assert_eq!(ask("SHUTDOWN soon"), Err(CommandError::Syntax));
        assert_eq!(ask("SHUTDOWN NOW ABORT"), Err(CommandError::Syntax));
        for request in ["SHUTDOWN SAVE", "SHUTDOWN REWRITE-AOF", "SHUTDOWN ABORT"] {
            assert!(matches!(ask(request), Err(CommandError::Other(_))), "{request}");
        }
    }
}
