//! The settings the server starts with: defaults < classic file < environment < flags.
//!
//! The table of settings is the shard crate's; this module only reads its sources. A mistake in any of them is fatal and named
//! with its place, since a broker that starts with other settings than the ones asked for is worse than none. The two
//! exceptions: settings without a meaning warn, and so does an environment variable that no setting belongs to, as
//! orchestrators make up variables from service names (`SHARDQ_PORT=tcp://10.0.0.1:7711` in Kubernetes).

pub mod cpus;
mod file;
mod flags;
pub mod rewrite;

use std::path::PathBuf;

use shard::settings::{SettingError, Settings, TABLE};
use thiserror::Error;

/// Prefix of environment variables: `SHARDQ_MAXMEMORY=2gb`.
const ENVIRONMENT_PREFIX: &str = "SHARDQ_";

/// What the server starts with.
#[derive(Debug)]
pub struct Config {
    /// The settings.
    pub settings: Settings,
    /// The configuration file, as an absolute path: `dir` may change the working folder.
    pub file: Option<PathBuf>,
    /// What is odd and no reason to refuse; for the log.
    pub warnings: Vec<String>,
}

/// What the command line asks for.
#[derive(Debug)]
pub enum Start {
    /// Run.
    Run(Box<Config>),
    /// Print this (help, version) and end well.
    Print(String),
}

/// Why there are no settings to start with.
#[derive(Debug, Error)]
pub enum ConfigError {
    /// The command line; the text is complete.
    #[error("{0}")]
    Usage(String),
    /// A file cannot be read.
    #[error("cannot read the configuration file {file}: {error}")]
    Unreadable {
        /// The file.
        file: String,
        /// Why.
        error: std::io::Error,
    },
    /// A value or a name is refused.
    #[error("{place}: {why}")]
    Refused {
        /// File and line, variable or flag.
        place: String,
        /// Why.
        why: String,
    },
}

/// Reads all sources. `standard_input` is read only when the file is `-`.
pub fn load(
    arguments: &[String],
    environment: &[(String, String)],
    standard_input: impl std::io::Read,
) -> Result<Start, ConfigError> {
    let flags = match flags::parse(arguments)? {
        flags::Parsed::Print(text) => return Ok(Start::Print(text)),
        flags::Parsed::Flags(flags) => flags,
    };
    let mut config = Config {
        settings: Settings::default(),
        file: None,
        warnings: Vec::new(),
    };
    if let Some(path) = &flags.file {
        config.file = file::read(path, standard_input, &mut config)?;
    }
    from_environment(environment, &mut config)?;
    for (name, value) in &flags.settings {
        config.set(name, value, &format!("--{name}"))?;
    }
    Ok(Start::Run(Box::new(config)))
}

impl Config {
    /// Sets one value; `place` names where it was given.
    fn set(&mut self, name: &str, value: &str, place: &str) -> Result<(), ConfigError> {
        match self.settings.set_initial(name, value) {
            Ok(setting) => {
                if let Some(why) = setting.ignored() {
                    self.warnings.push(format!(
                        "{place}: '{}' is accepted and has no effect: {why}",
                        setting.name
                    ));
                }
                Ok(())
            }
            Err(error) => Err(ConfigError::Refused {
                place: place.to_owned(),
                why: match error {
                    SettingError::Unknown(name) => unknown(&name),
                    bad => bad.to_string(),
                },
            }),
        }
    }
}

fn from_environment(environment: &[(String, String)], config: &mut Config) -> Result<(), ConfigError> {
    for (variable, value) in environment {
        let Some(name) = variable.strip_prefix(ENVIRONMENT_PREFIX) else {
            continue;
        };
        let name = name.to_ascii_lowercase().replace('_', "-");
        let is_made_by_kubernetes = name == "port" && value.starts_with("tcp://");
        if is_made_by_kubernetes || shard::settings::find(&name).is_none() {
            config.warnings.push(format!(
                "environment variable {variable} is not used: it is no setting"
            ));
            continue;
        }
        config.set(&name, value, &format!("environment variable {variable}"))?;
    }
    Ok(())
}

/// Says that there is no such setting, and which one may be meant.
fn unknown(name: &str) -> String {
    let nearest = TABLE
        .iter()
        .map(|setting| (distance(&name.to_ascii_lowercase(), setting.name), setting.name))
        .min();
    match nearest {
        Some((edits, candidate)) if edits <= name.len() / 2 => {
            format!(
                "there is no setting '{}'; did you mean '{candidate}'?",
                name.escape_default()
            )
        }
        _ => format!("there is no setting '{}'", name.escape_default()),
    }
}

/// Insertions, deletions and replacements that make one word of the other.
fn distance(from: &str, to: &str) -> usize {
    let to: Vec<char> = to.chars().collect();
    let mut row: Vec<usize> = (0..=to.len()).collect();
    for (i, a) in from.chars().enumerate() {
        let mut diagonal = std::mem::replace(&mut row[0], i + 1);
        for (j, &b) in to.iter().enumerate() {
            let replaced = diagonal + usize::from(a != b);
            diagonal = row[j + 1];
            row[j + 1] = replaced.min(diagonal + 1).min(row[j] + 1);
        }
    }
    row[to.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(line: &[&str]) -> Vec<String> {
        line.iter().map(|&word| word.to_owned()).collect()
    }

    fn run(arguments: &[&str], environment: &[(&str, &str)], input: &str) -> Result<Config, ConfigError> {
        let environment: Vec<_> = environment
            .iter()
            .map(|&(name, value)| (name.to_owned(), value.to_owned()))
            .collect();
        match load(&words(arguments), &environment, input.as_bytes())? {
            Start::Run(config) => Ok(*config),
            Start::Print(text) => panic!("{text}"),
        }
    }

    #[test]
    fn a_later_source_wins() {
        let file = "port 1\ntimeout 1\nmaxclients 1\n";
        let environment = [("SHARDQ_TIMEOUT", "2"), ("SHARDQ_MAXCLIENTS", "2")];
        let config = run(&["-", "--maxclients", "3"], &environment, file).unwrap();
        let settings = &config.settings;
        assert_eq!(
            (settings.port, settings.timeout_s, settings.maxclients),
            (1, 2, 3)
        );
        assert_eq!(config.file, None, "standard input cannot be rewritten");
    }

    #[test]
    fn a_mistake_is_named_with_its_place_and_the_nearest_name() {
        let error = run(&["-"], &[], "port 1\n\nmaxclient 3\n").unwrap_err();
        assert_eq!(
            error.to_string(),
            "standard input:3: there is no setting 'maxclient'; did you mean 'maxclients'?"
        );
        let error = run(&["-"], &[], "port many\n").unwrap_err().to_string();
        assert!(error.starts_with("standard input:1: port: "), "{error}");
        let error = run(&[], &[("SHARDQ_PORT", "x")], "").unwrap_err().to_string();
        assert!(
            error.starts_with("environment variable SHARDQ_PORT: port: "),
            "{error}"
        );
    }

    #[test]
    fn what_has_no_effect_is_said() {
        let variables = [
            ("SHARDQ_PORT", "tcp://10.0.0.1:7711"),
            ("SHARDQ_SERVICE_HOST", "10.0.0.1"),
        ];
        let config = run(&["--databases", "16"], &variables, "").unwrap();
        assert_eq!(config.settings.port, 7711);
        assert_eq!(config.warnings.len(), 3, "{:?}", config.warnings);
    }

    #[test]
    fn distances() {
        for (a, b, edits) in [
            ("", "", 0),
            ("port", "prt", 1),
            ("abc", "", 3),
            ("kitten", "sitting", 3),
        ] {
            assert_eq!((distance(a, b), distance(b, a)), (edits, edits), "{a} {b}");
        }
    }
}
