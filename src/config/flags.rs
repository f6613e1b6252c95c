//! The command line: `shardq [file | -] [--name value...]`, a flag for each setting of the table.

use clap::error::ErrorKind;
use clap::{Arg, ArgAction, Command};
use shard::settings::{Kind, Setting, TABLE};

use super::ConfigError;

/// What the command line says.
pub(super) struct Flags {
    /// The configuration file, or `-`.
    pub(super) file: Option<String>,
    /// Names and values, in the order given.
    pub(super) settings: Vec<(&'static str, String)>,
}

pub(super) enum Parsed {
    Flags(Flags),
    /// Help or version.
    Print(String),
}

/// Reads the arguments after the program's name.
pub(super) fn parse(arguments: &[String]) -> Result<Parsed, ConfigError> {
    let line = std::iter::once("shardq").chain(arguments.iter().map(String::as_str));
    let matches = match command().try_get_matches_from(line) {
        Ok(matches) => matches,
        Err(error) => {
            let text = error.render().to_string();
            let is_print = matches!(error.kind(), ErrorKind::DisplayHelp | ErrorKind::DisplayVersion);
            return if is_print {
                Ok(Parsed::Print(text))
            } else {
                Err(ConfigError::Usage(text.trim_end().to_owned()))
            };
        }
    };
    let mut settings = Vec::new();
    for setting in TABLE.iter().filter(|setting| is_flag(setting)) {
        let Some(occurrences) = matches.get_occurrences::<String>(setting.name) else {
            continue;
        };
        for values in occurrences {
            let words: Vec<&str> = values.map(String::as_str).collect();
            settings.push((setting.name, words.join(" ")));
        }
    }
    Ok(Parsed::Flags(Flags {
        file: matches.get_one::<String>("file").cloned(),
        settings,
    }))
}

/// `include` belongs into a file.
fn is_flag(setting: &Setting) -> bool {
    !matches!(setting.kind, Kind::Reader)
}

fn command() -> Command {
    let command = Command::new("shardq")
        .version(env!("CARGO_PKG_VERSION"))
        .disable_version_flag(true)
        .about("A thread-per-core job-queue broker that speaks Disque's protocol")
        .after_help(
            "Settings come from, later ones winning: defaults, the file, the environment (SHARDQ_MAXMEMORY for \
             --maxmemory), flags.\nExample: shardq --port 7711 --shards 2 --maxmemory 2gb",
        )
        .arg(
            Arg::new("file")
                .value_name("FILE")
                .help("Configuration file of lines `name value`, or - for standard input"),
        )
        .arg(
            Arg::new("version")
                .short('v')
                .long("version")
                .action(ArgAction::Version)
                .help("Print version"),
        );
    TABLE
        .iter()
        .filter(|setting| is_flag(setting))
        .fold(command, |command, setting| command.arg(flag(setting)))
}

fn flag(setting: &'static Setting) -> Arg {
    let default = setting.default_value();
    let mut help = setting.meaning.to_owned();
    if !default.is_empty() {
        help.push_str(&format!(" [default: {default}]"));
    }
    Arg::new(setting.name)
        .long(setting.name)
        .value_name(setting.kind.form().replace(['<', '>'], ""))
        .num_args(1..)
        .allow_negative_numbers(true)
        .action(ArgAction::Append)
        .help_heading(if setting.ignored().is_some() {
            "Accepted without effect"
        } else {
            "Settings"
        })
        .help(help)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn flags(line: &[&str]) -> Flags {
        let line: Vec<String> = line.iter().map(|&word| word.to_owned()).collect();
        match parse(&line).unwrap() {
            Parsed::Flags(flags) => flags,
            Parsed::Print(text) => panic!("{text}"),
        }
    }

    #[test]
    fn both_styles_of_values() {
        let flags = flags(&[
            "a.conf",
            "--bind",
            "127.0.0.1",
            "::1",
            "--port=7",
            "--slowlog-log-slower-than",
            "-1",
            "--requirepass",
            "",
        ]);
        assert_eq!(flags.file.as_deref(), Some("a.conf"));
        let mut settings = flags.settings;
        settings.sort_unstable();
        let expected = [
            ("bind", "127.0.0.1 ::1"),
            ("port", "7"),
            ("requirepass", ""),
            ("slowlog-log-slower-than", "-1"),
        ];
        assert_eq!(settings, expected.map(|(name, value)| (name, value.to_owned())));
    }

    #[test]
    fn help_explains_every_setting() {
        let Ok(Parsed::Print(help)) = parse(&["--help".to_owned()]) else {
            panic!("no help")
        };
        for setting in TABLE.iter().filter(|setting| is_flag(setting)) {
            assert!(help.contains(&format!("--{}", setting.name)), "{}", setting.name);
        }
        let Ok(Parsed::Print(version)) = parse(&["-v".to_owned()]) else {
            panic!("no version")
        };
        assert_eq!(version.trim(), concat!("shardq ", env!("CARGO_PKG_VERSION")));
    }

    #[test]
    fn a_misspelt_flag_is_refused_with_the_right_one() {
        let Err(error) = parse(&["--maxclient".to_owned(), "3".to_owned()]) else {
            panic!("accepted")
        };
        assert!(error.to_string().contains("--maxclients"), "{error}");
    }
}
