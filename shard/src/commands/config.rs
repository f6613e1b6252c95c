//! CONFIG GET pattern..., SET name value..., REWRITE, RESETSTAT, HELP: the settings while the node runs.
//!
//! GET answers names and values, a flat array in RESP2, a map in RESP3. SET changes all it names, on every shard, or
//! nothing; what has no meaning here is accepted, and the server's log says so.

use super::{Finish, Plan, words};
use crate::core::Core;
use crate::error::CommandError;
use crate::input::{Effect, LogLevel, Question, Told};
use crate::limits;
use crate::node::Change;
use crate::session::Session;
use crate::settings::{self, Settings};
use crate::wire::{Args, Encoder, glob};

/// Grammar.
pub fn plan(core: &Core, _: &Session, args: &Args<'_>) -> Result<Plan, CommandError> {
    match (words::lowercase(&args[1]).as_str(), args.len()) {
        ("get", 3..) => {
            check_patterns(args)?;
            Ok(Plan::Local(|call| {
                let found = matching(&call.core.settings, call.args);
                write_pairs(&mut call.session.encoder(), &found);
                Ok(())
            }))
        }
        ("set", 4..) if args.len().is_multiple_of(2) => {
            let pairs = checked_pairs(&core.settings, args)?;
            Ok(Plan::Change {
                change: Change::Settings(pairs),
                finish: finish_set,
            })
        }
        ("rewrite", 2) => {
            if core.facts.config_file.is_empty() {
                return Err(CommandError::other("The server is running without a config file"));
            }
            Ok(Plan::Ask {
                question: Question::RewriteConfig,
                finish: finish_rewrite,
            })
        }
        ("resetstat", 2) => Ok(Plan::Change {
            change: Change::ResetStats,
            finish: |call: &mut Finish<'_>, _| call.reply().simple("OK"),
        }),
        ("help", 2) => Ok(Plan::Local(|call| {
            words::write_help(&mut call.reply(), "CONFIG", HELP);
            Ok(())
        })),
        (subcommand @ ("get" | "set" | "rewrite" | "resetstat" | "help"), _) => {
            Err(words::arity("config", subcommand))
        }
        _ => Err(words::unknown_subcommand("config", args)),
    }
}

const HELP: &[(&str, &str)] = &[
    (
        "GET <pattern> [<pattern> ...]",
        "Show the settings whose names fit a pattern.",
    ),
    (
        "SET <name> <value> [<name> <value> ...]",
        "Change settings, all or none.",
    ),
    ("REWRITE", "Write the present settings to the configuration file."),
    ("RESETSTAT", "Reset the counters of INFO."),
];

/// Matching is done in one turn of the shard, so the work that it may be is bounded.
fn check_patterns(args: &Args<'_>) -> Result<(), CommandError> {
    words::check_number("patterns", args.len() - 2, limits::PATTERNS)?;
    args.iter().skip(2).try_for_each(words::check_pattern)
}

/// Name and value of the settings that fit one of the patterns, each once.
fn matching(settings: &Settings, args: &Args<'_>) -> Vec<(&'static str, String)> {
    settings.matching(|name| {
        args.iter()
            .skip(2)
            .any(|pattern| glob::matches(pattern, name.as_bytes()))
    })
}

fn write_pairs(out: &mut Encoder<'_>, pairs: &[(&'static str, String)]) {
    out.map(pairs.len());
    for (name, value) in pairs {
        out.bulk(name);
        out.bulk(value);
    }
}

/// The pairs of a SET, tried on a copy of the settings.
fn checked_pairs(settings: &Settings, args: &Args<'_>) -> Result<Vec<(&'static str, String)>, CommandError> {
    let mut tried = settings.clone();
    let mut pairs: Vec<(&'static str, String)> = Vec::new();
    let mut words = args.iter().skip(2);
    while let (Some(name), Some(value)) = (words.next(), words.next()) {
        let name = String::from_utf8_lossy(name);
        let value = std::str::from_utf8(value).map_err(|_| {
            let shown = name.escape_default();
            let text =
                format!("CONFIG SET failed (possibly related to argument '{shown}') - argument must be text");
            CommandError::other(text)
        })?;
        let setting = tried.set(&name, value)?;
        if pairs.iter().any(|(other, _)| *other == setting.name) {
            let text = format!(
                "CONFIG SET failed (possibly related to argument '{}') - duplicate parameter",
                setting.name
            );
            return Err(CommandError::other(text));
        }
        if setting.name == "dir" && settings.appendonly {
            return Err(CommandError::other(
                "CONFIG SET failed (possibly related to argument 'dir') - the log is in the present folder: \
                 set appendonly to no first",
            ));
        }
        pairs.push((setting.name, value.to_owned()));
    }
    Ok(pairs)
}

fn finish_set(call: &mut Finish<'_>, _: i64) {
    for name in call.args.iter().skip(2).step_by(2) {
        let setting = std::str::from_utf8(name).ok().and_then(settings::find);
        if let Some((setting, why)) = setting.and_then(|setting| setting.ignored().map(|why| (setting, why)))
        {
            let text = format!("setting '{}' was changed: {why}", setting.name);
            call.core.effects.push(Effect::Log {
                level: LogLevel::Warn,
                text,
            });
        }
    }
    call.reply().simple("OK");
}

fn finish_rewrite(call: &mut Finish<'_>) {
    match call.told.take() {
        Some(Told::Rewritten(Ok(()))) => call.reply().simple("OK"),
        Some(Told::Rewritten(Err(error))) => call.reply().error(error.to_string()),
        other => unreachable!("the server was asked to rewrite, and told {other:?}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::testing::{reply, with_args};

    #[test]
    fn get_is_flat_or_a_map() {
        let found = |words: &[&str]| with_args(words, |args| matching(&Settings::default(), &args));
        let both = found(&["CONFIG", "GET", "save", "append[o]nly", "save"]);
        let body = "$10\r\nappendonly\r\n$2\r\nno\r\n$4\r\nsave\r\n$0\r\n\r\n";
        assert_eq!(
            reply(false, |out| write_pairs(out, &both)),
            format!("*4\r\n{body}")
        );
        assert_eq!(
            reply(true, |out| write_pairs(out, &both)),
            format!("%2\r\n{body}")
        );
        assert!(found(&["CONFIG", "GET", "nothing*"]).is_empty());
        assert!(found(&["CONFIG", "GET", "include"]).is_empty());
        assert!(
            found(&["CONFIG", "GET", "SAVE"]).is_empty(),
            "patterns tell upper and lower case apart"
        );
    }

    #[test]
    fn patterns_are_few_and_short() {
        let check = |patterns: &[String]| {
            let words: Vec<&str> = ["CONFIG", "GET"]
                .into_iter()
                .chain(patterns.iter().map(String::as_str))
                .collect();
            with_args(&words, |args| check_patterns(&args)).map_err(|error| error.to_string())
        };
        assert_eq!(check(&vec!["*".repeat(256); 64]), Ok(()));
        assert_eq!(
            check(&vec!["*".to_owned(); 65]),
            Err("ERR too many patterns, at most 64".to_owned())
        );
        assert_eq!(
            check(&["save".to_owned(), "[".repeat(257)]),
            Err("ERR pattern is too long, at most 256 bytes".to_owned())
        );
    }

    #[test]
    fn set_is_all_or_nothing() {
        let set = |words: &[&str]| with_args(words, |args| checked_pairs(&Settings::default(), &args));
        assert_eq!(
            set(&["CONFIG", "SET", "MAXMEMORY", "1mb", "timeout", "5"]),
            Ok(vec![("maxmemory", "1mb".to_owned()), ("timeout", "5".to_owned())])
        );
        for (words, text) in [
            (
                vec!["CONFIG", "SET", "timeout", "5", "foo", "1"],
                "ERR Unknown option or number of arguments for CONFIG SET - 'foo'",
            ),
            (
                vec!["CONFIG", "SET", "timeout", "5", "TIMEOUT", "6"],
                "ERR CONFIG SET failed (possibly related to argument 'timeout') - duplicate parameter",
            ),
            (
                vec!["CONFIG", "SET", "port", "1"],
                "ERR CONFIG SET failed (possibly related to argument 'port') - can't set immutable config",
            ),
        ] {
            assert_eq!(set(&words).unwrap_err().to_string(), text);
        }
    }
}
