//! The table of all commands: those of the original in its order (reference, 1.3), then those that today's clients send too.
//!
//! A command's place in the table is its number in statistics and in a session's bookkeeping.

use super::{Flags, Spec};
use crate::error::CommandError;
use crate::settings::Settings;
use crate::wire::Args;

const W: Flags = Flags::WRITE;
const R: Flags = Flags::READONLY;
const M: Flags = Flags::DENYOOM;
const A: Flags = Flags::ADMIN;
const L: Flags = Flags::LOADING;
const F: Flags = Flags::FAST;
const FREE: Flags = Flags::NO_AUTH;

macro_rules! commands {
    ($($module:ident $arity:literal $first:ident $(+ $flag:ident)* : $summary:literal,)*) => {
        /// All commands.
        pub static COMMANDS: &[Spec] = &[
            $(Spec {
                name: stringify!($module),
                arity: $arity,
                flags: $first$(.and($flag))*,
                plan: super::$module::plan,
                summary: $summary,
            },)*
        ];

        const NAMES: &[&str] = &[$(stringify!($module),)*];
    };
}

commands! {
    auth -2 R + L + F + FREE: "Authenticates the connection.",
    ping -1 R + F: "Answers PONG, or the given message.",
    info -1 R + L: "Tells about the state of the node.",
    shutdown -1 A + R + L: "Stops the node.",
    monitor 1 A + R: "Shows every command that the node runs.",
    debug -2 A: "Helps to test and to debug.",
    config -2 A + R: "Shows and changes settings.",
    cluster -2 A + R: "Shows and changes the nodes of the cluster.",
    client -2 A + R: "Shows and manages client connections.",
    slowlog -2 R: "Shows the commands that took long.",
    time 1 R + F: "Tells the node's time.",
    command 0 R + L: "Describes the commands.",
    latency -2 A + R + L: "Shows what took long, and how long commands take.",
    hello -1 R + F + FREE: "Names the nodes to connect to, or chooses the protocol.",
    addjob -4 W + M + F: "Adds a job to a queue.",
    getjob -2 W + F: "Takes jobs from queues.",
    ackjob -1 W + F: "Acknowledges jobs: they are done.",
    fastack -1 W + F: "Acknowledges jobs, without certainty across nodes.",
    deljob -1 W + F: "Deletes jobs from this node, or from all.",
    show 2 R + F: "Describes a job.",
    loadjob 2 W: "Not for clients: restores a job from a log.",
    bgrewriteaof 1 A + R: "Rewrites the log.",
    qlen -2 R + F: "Tells how many jobs are queued.",
    qpeek 3 R: "Shows jobs of a queue without taking them.",
    qstat -2 R + F: "Describes a queue.",
    qscan -1 R: "Lists queues.",
    jscan -1 R: "Lists jobs.",
    enqueue -1 W + M + F: "Queues jobs again.",
    nack -1 W + M + F: "Queues jobs again whose processing failed.",
    dequeue -1 W + F: "Takes jobs out of their queues, and keeps them.",
    working 2 W + F: "Postpones the next delivery of a job.",
    pause -3 R + F: "Stops what enters or leaves a queue.",
    echo 2 R + L + F: "Answers the given message.",
    quit -1 R + L + F + FREE: "Closes the connection.",
    reset 1 R + L + F + FREE: "Sets the connection back to how it began.",
    select 2 R + L + F: "Chooses a database: there is only number 0.",
}

/// Places of the index: a power of two, more than twice the commands.
const INDEX: usize = 1 << INDEX_BITS;
const INDEX_BITS: u32 = 7;
const EMPTY: u8 = u8::MAX;
/// Longest name that fits a key.
const LONGEST: usize = 16;

/// For each hash the number of its command; a taken place moves the next one on.
const PLACES: [u8; INDEX] = index();

/// The key of each command, by its number.
const KEYS: [u128; NAMES.len()] = {
    let mut keys = [0; NAMES.len()];
    let mut number = 0;
    while number < NAMES.len() {
        assert!(is_lowercase(NAMES[number].as_bytes()), "keys tell letters apart");
        keys[number] = key(NAMES[number].as_bytes());
        number += 1;
    }
    keys
};

const fn is_lowercase(name: &[u8]) -> bool {
    match name.split_first() {
        Some((first, rest)) => first.is_ascii_lowercase() && is_lowercase(rest),
        None => true,
    }
}

const fn index() -> [u8; INDEX] {
    assert!(NAMES.len() * 2 < INDEX, "the index is to stay sparse");
    let mut places = [EMPTY; INDEX];
    let mut number = 0;
    while number < NAMES.len() {
        let mut place = hash(KEYS[number]);
        while places[place] != EMPTY {
            place = (place + 1) % INDEX;
        }
        places[place] = number as u8;
        number += 1;
    }
    places
}

/// A name as a number: filled up with spaces, capital letters made small. Names are letters alone, and a text of the same length
/// as a name has the same key only when it is that name in some case.
const fn key(name: &[u8]) -> u128 {
    let mut text = [b' '; LONGEST];
    text.split_at_mut(name.len()).0.copy_from_slice(name);
    u128::from_le_bytes(text) | u128::from_le_bytes([b' '; LONGEST])
}

/// The same, of two words that may overlap instead of a copy: nearly all names have four letters or more.
fn key_by_words(name: &[u8]) -> u128 {
    let text = match (name.first_chunk(), name.last_chunk()) {
        (Some(first), Some(last)) => {
            let (first, last) = (u64::from_le_bytes(*first), u64::from_le_bytes(*last));
            u128::from(first) | u128::from(last) << (8 * (name.len() - 8))
        }
        _ => match (name.first_chunk(), name.last_chunk()) {
            (Some(first), Some(last)) => {
                let (first, last) = (u32::from_le_bytes(*first), u32::from_le_bytes(*last));
                u128::from(u64::from(first) | u64::from(last) << (8 * (name.len() - 4)))
            }
            _ => return key(name),
        },
    };
    text | u128::from_le_bytes([b' '; LONGEST])
}

const fn hash(key: u128) -> usize {
    let folded = key as u64 ^ (key >> 64) as u64;
    (folded.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> (u64::BITS - INDEX_BITS)) as usize
}

/// The number of the command of this name, in any case.
pub fn find(name: &[u8]) -> Option<u8> {
    if name.len() > LONGEST {
        return None;
    }
    let key = key_by_words(name);
    let mut place = hash(key);
    while PLACES[place] != EMPTY {
        let number = usize::from(PLACES[place]);
        if KEYS[number] == key && NAMES[number].len() == name.len() {
            return Some(PLACES[place]);
        }
        place = (place + 1) % INDEX;
    }
    None
}

/// The same on a node that may have given commands other names (`rename-command`).
pub fn find_renamed(settings: &Settings, name: &[u8]) -> Option<u8> {
    let renamed = &settings.renamed_commands;
    if renamed.is_empty() {
        return find(name);
    }
    let is_new = |new: &str| !new.is_empty() && new.as_bytes().eq_ignore_ascii_case(name);
    if let Some((old, _)) = renamed.iter().find(|(_, new)| is_new(new)) {
        return find(old.as_bytes());
    }
    let is_taken_away = renamed
        .iter()
        .any(|(old, _)| old.as_bytes().eq_ignore_ascii_case(name));
    if is_taken_away { None } else { find(name) }
}

/// The error about a request whose name is none.
pub fn unknown_command(args: Args<'_>) -> CommandError {
    let name = args.name();
    let shown = String::from_utf8_lossy(&name[..name.len().min(128)]).into_owned();
    CommandError::other(format!("unknown command '{shown}'"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::testing::with_args;

    #[test]
    fn every_command_is_found_in_any_case_and_nothing_else_is() {
        for (number, spec) in COMMANDS.iter().enumerate() {
            assert_eq!(find(spec.name.as_bytes()), Some(number as u8));
            assert_eq!(find(spec.name.to_uppercase().as_bytes()), Some(number as u8));
        }
        for name in [
            "",
            "get",
            "addjobs",
            "addjo",
            "ADDJOB\0",
            "ping ",
            "bgrewriteaof ",
            "bgrewriteaofbgrewriteaof",
            "pin\u{1a}",
            "@ddjob",
        ] {
            assert_eq!(find(name.as_bytes()), None, "{name:?}");
        }
    }

    #[test]
    fn the_originals_come_first() {
        assert_eq!(COMMANDS[0].name, "auth");
        assert_eq!(COMMANDS[31].name, "pause");
        assert_eq!(COMMANDS[32].name, "echo");
        assert!(COMMANDS.iter().all(|spec| spec.summary.ends_with('.')));
    }

    #[test]
    fn commands_can_be_renamed_and_taken_away() {
        let mut settings = Settings::default();
        assert_eq!(find_renamed(&settings, b"CONFIG"), find(b"config"));
        for value in ["CONFIG hidden", "DEBUG "] {
            settings
                .set_initial("rename-command", value)
                .expect("a value of the setting");
        }
        assert_eq!(find_renamed(&settings, b"config"), None);
        assert_eq!(find_renamed(&settings, b"HIDDEN"), find(b"config"));
        assert_eq!(find_renamed(&settings, b"debug"), None);
        assert_eq!(find_renamed(&settings, b""), None);
        assert_eq!(find_renamed(&settings, b"ping"), find(b"ping"));
    }

    #[test]
    fn unknown_names_are_shown_as_sent() {
        let error = with_args(&["FooBar", "x"], unknown_command);
        assert_eq!(error.to_string(), "ERR unknown command 'FooBar'");
    }
}
