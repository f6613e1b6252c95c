//! Subcommands and option words: how they are compared, and what is said about one that does not exist.

use crate::error::CommandError;
use crate::limits::PATTERN_BYTES;
use crate::wire::{Args, Encoder};

/// Whether an argument is this word, in any case.
pub fn is(arg: &[u8], word: &str) -> bool {
    arg.eq_ignore_ascii_case(word.as_bytes())
}

/// The same for a word of small letters alone, where it counts: all bytes are compared at once.
#[inline(always)]
pub fn is_quick<const N: usize>(arg: &[u8], word: &[u8; N]) -> bool {
    let differs = |arg: &[u8; N]| (0..N).fold(0, |bits, at| bits | (arg[at] | b' ') ^ word[at]);
    arg.len() == N && arg.first_chunk().is_some_and(|arg| differs(arg) == 0)
}

/// Whether a command about one queue, argument 1, says CLUSTER behind it.
pub fn says_cluster(args: &Args<'_>, command: &'static str) -> Result<bool, CommandError> {
    match args.get(2) {
        None => Ok(false),
        Some(_) if args.len() > 3 => Err(CommandError::Arity(command.into())),
        Some(word) if is(word, "cluster") => Ok(true),
        Some(_) => Err(CommandError::Syntax),
    }
}

/// An argument in lowercase, to match on; what no word can be becomes an empty one.
pub fn lowercase(arg: &[u8]) -> String {
    String::from_utf8(arg.to_ascii_lowercase()).unwrap_or_default()
}

/// The error about a subcommand (argument 1) that the command does not have.
pub fn unknown_subcommand(command: &str, args: &Args<'_>) -> CommandError {
    let asked = args.get(1).unwrap_or_default();
    let shown = String::from_utf8_lossy(&asked[..asked.len().min(128)]).into_owned();
    CommandError::other(format!(
        "unknown subcommand '{shown}'. Try {} HELP.",
        command.to_uppercase()
    ))
}

/// The error about a wrong number of arguments of a subcommand.
pub fn arity(command: &str, subcommand: &str) -> CommandError {
    CommandError::Arity(format!("{command}|{subcommand}").into())
}

/// Refuses more than `most` of what `things` names.
pub fn check_number(things: &str, number: usize, most: usize) -> Result<(), CommandError> {
    if number <= most {
        return Ok(());
    }
    Err(CommandError::other(format!("too many {things}, at most {most}")))
}

/// Refuses a pattern that would take long to match.
pub fn check_pattern(pattern: &[u8]) -> Result<(), CommandError> {
    if pattern.len() <= PATTERN_BYTES {
        return Ok(());
    }
    let text = format!("pattern is too long, at most {PATTERN_BYTES} bytes");
    Err(CommandError::other(text))
}

/// A HELP reply: a line about the command, then for each subcommand its grammar and what it does.
pub fn write_help(out: &mut Encoder<'_>, command: &str, subcommands: &[(&str, &str)]) {
    out.array(1 + 2 * (subcommands.len() + 1));
    out.simple(format!("{command} <subcommand> [<arg> ...]. Subcommands are:"));
    for (grammar, meaning) in subcommands.iter().chain(&[("HELP", "Print this help.")]) {
        out.simple(grammar);
        out.simple(format!("    {meaning}"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::testing::{reply, with_args};

    #[test]
    fn words_are_compared_in_any_case_and_whole() {
        for arg in [
            "",
            "fro",
            "from",
            "FROM",
            "fRoM",
            "froms",
            "frol",
            "&rom",
            "fro\r",
            "fr\u{4f}m",
        ] {
            assert_eq!(
                is_quick(arg.as_bytes(), b"from"),
                is(arg.as_bytes(), "from"),
                "{arg:?}"
            );
        }
    }

    #[test]
    fn an_unknown_subcommand_is_named() {
        let error = with_args(&["CONFIG", "FOO"], |args| unknown_subcommand("config", &args));
        assert_eq!(
            error.to_string(),
            "ERR unknown subcommand 'FOO'. Try CONFIG HELP."
        );
        assert_eq!(
            arity("config", "get").to_string(),
            "ERR wrong number of arguments for 'config|get' command"
        );
    }

    #[test]
    fn a_queue_may_be_followed_by_cluster() {
        let says = |words: &[&str]| with_args(words, |args| says_cluster(&args, "qlen"));
        assert_eq!(says(&["QLEN", "q"]), Ok(false));
        assert_eq!(says(&["QLEN", "q", "CLUSTER"]), Ok(true));
        assert_eq!(says(&["QLEN", "CLUSTER", "cluster"]), Ok(true));
        assert_eq!(says(&["QLEN", "q", "node"]), Err(CommandError::Syntax));
        let long = CommandError::Arity("qlen".into());
        assert_eq!(says(&["QLEN", "q", "CLUSTER", "x"]), Err(long));
    }

    #[test]
    fn help_lists_the_subcommands() {
        let help = reply(false, |out| write_help(out, "X", &[("DO <it>", "Does it.")]));
        assert_eq!(
            help,
            "*5\r\n+X <subcommand> [<arg> ...]. Subcommands are:\r\n+DO <it>\r\n+    Does it.\r\n+HELP\r\n+    Print this help.\r\n"
        );
    }
}
