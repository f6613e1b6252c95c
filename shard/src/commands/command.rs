//! COMMAND, COMMAND COUNT, INFO, LIST, DOCS, GETKEYS, HELP: the table of commands, in the shape of Redis 7.
//!
//! An entry has ten fields: name, arity, flags, first key, last key, step, ACL categories, tips, key specifications,
//! subcommands. No command has keys. DOCS is a map in RESP3, a flat array in RESP2.

use super::{Call, Flags, Plan, Spec, table, words};
use crate::core::Core;
use crate::error::CommandError;
use crate::limits;
use crate::session::Session;
use crate::wire::{Args, Encoder, glob};

/// Grammar.
pub fn plan(_: &Core, _: &Session, args: &Args<'_>) -> Result<Plan, CommandError> {
    let Some(subcommand) = args.get(1) else {
        return Ok(Plan::Local(run_all));
    };
    match (words::lowercase(subcommand).as_str(), args.len()) {
        ("count", 2) => Ok(Plan::Local(|call| {
            call.reply().integer(table::COMMANDS.len() as i64);
            Ok(())
        })),
        (subcommand @ ("info" | "docs"), count) => {
            words::check_number("names", count - 2, limits::NAMES)?;
            let is_info = subcommand == "info";
            Ok(Plan::Local(if is_info { run_info } else { run_docs }))
        }
        ("list", 2 | 5) => {
            Filter::parse(args)?;
            Ok(Plan::Local(run_list))
        }
        ("list", _) => Err(CommandError::Syntax),
        ("getkeys" | "getkeysandflags", 3..) => Err(CommandError::other("The command has no key arguments")),
        ("help", 2) => Ok(Plan::Local(|call| {
            words::write_help(&mut call.reply(), "COMMAND", HELP);
            Ok(())
        })),
        (subcommand @ ("count" | "getkeys" | "help"), _) => Err(words::arity("command", subcommand)),
        _ => Err(words::unknown_subcommand("command", args)),
    }
}

const HELP: &[(&str, &str)] = &[
    ("(no subcommand)", "Describe all commands."),
    ("COUNT", "Tell how many commands there are."),
    ("INFO [<name> ...]", "Describe these commands."),
    (
        "LIST [FILTERBY MODULE <name> | ACLCAT <category> | PATTERN <pattern>]",
        "List the names of commands.",
    ),
    ("DOCS [<name> ...]", "Explain these commands, or all."),
];

fn run_all(call: &mut Call<'_>) -> Result<(), CommandError> {
    let mut out = call.reply();
    out.array(table::COMMANDS.len());
    table::COMMANDS
        .iter()
        .for_each(|spec| write_entry(&mut out, spec));
    Ok(())
}

fn run_info(call: &mut Call<'_>) -> Result<(), CommandError> {
    if call.args.len() == 2 {
        return run_all(call);
    }
    let names = call.args.iter().skip(2);
    let mut out = call.session.encoder();
    out.array(names.len());
    for name in names {
        match spec_of(name) {
            Some(spec) => write_entry(&mut out, spec),
            None => out.null(),
        }
    }
    Ok(())
}

fn run_docs(call: &mut Call<'_>) -> Result<(), CommandError> {
    let specs: Vec<&Spec> = match call.args.len() {
        2 => table::COMMANDS.iter().collect(),
        _ => call.args.iter().skip(2).filter_map(spec_of).collect(),
    };
    let mut out = call.reply();
    out.map(specs.len());
    specs.into_iter().for_each(|spec| write_docs(&mut out, spec));
    Ok(())
}

fn run_list(call: &mut Call<'_>) -> Result<(), CommandError> {
    let filter = Filter::parse(call.args)?;
    let names: Vec<&str> = table::COMMANDS
        .iter()
        .filter(|spec| filter.fits(spec))
        .map(|spec| spec.name)
        .collect();
    let mut out = call.session.encoder();
    out.array(names.len());
    names.into_iter().for_each(|name| out.bulk(name));
    Ok(())
}

fn spec_of(name: &[u8]) -> Option<&'static Spec> {
    table::find(name).map(|number| &table::COMMANDS[usize::from(number)])
}

/// FILTERBY of COMMAND LIST.
enum Filter<'a> {
    None,
    /// There are no modules.
    Module,
    Category(String),
    Pattern(&'a [u8]),
}

impl<'a> Filter<'a> {
    fn parse(args: &Args<'a>) -> Result<Self, CommandError> {
        let (Some(by), Some(kind), Some(value)) = (args.get(2), args.get(3), args.get(4)) else {
            return Ok(Self::None);
        };
        match words::lowercase(kind).as_str() {
            _ if !words::is(by, "filterby") => Err(CommandError::Syntax),
            "module" => Ok(Self::Module),
            "aclcat" => Ok(Self::Category(words::lowercase(value))),
            "pattern" => {
                words::check_pattern(value)?;
                Ok(Self::Pattern(value))
            }
            _ => Err(CommandError::Syntax),
        }
    }

    fn fits(&self, spec: &Spec) -> bool {
        match self {
            Self::None => true,
            Self::Module => false,
            Self::Category(name) => categories(spec).iter().any(|category| category[1..] == **name),
            Self::Pattern(pattern) => glob::matches(pattern, spec.name.as_bytes()),
        }
    }
}

/// Names of the flags, in the order of the reference.
const FLAGS: &[(Flags, &str)] = &[
    (Flags::WRITE, "write"),
    (Flags::READONLY, "readonly"),
    (Flags::DENYOOM, "denyoom"),
    (Flags::ADMIN, "admin"),
    (Flags::LOADING, "loading"),
    (Flags::FAST, "fast"),
];

fn flag_names(spec: &Spec) -> Vec<&'static str> {
    FLAGS
        .iter()
        .filter(|(flag, _)| spec.flags.has(*flag))
        .map(|(_, name)| *name)
        .collect()
}

fn categories(spec: &Spec) -> Vec<&'static str> {
    let has = |flag| spec.flags.has(flag);
    let write = if has(Flags::WRITE) { "@write" } else { "@read" };
    let fast = if has(Flags::FAST) { "@fast" } else { "@slow" };
    let admin = has(Flags::ADMIN).then_some("@admin");
    [write, fast].into_iter().chain(admin).collect()
}

fn write_entry(out: &mut Encoder<'_>, spec: &Spec) {
    out.array(10);
    out.bulk(spec.name);
    out.integer(i64::from(spec.arity));
    let flags = flag_names(spec);
    out.array(flags.len());
    flags.into_iter().for_each(|flag| out.simple(flag));
    (0..3).for_each(|_| out.integer(0));
    let categories = categories(spec);
    out.array(categories.len());
    categories.into_iter().for_each(|category| out.simple(category));
    (0..3).for_each(|_| out.array(0));
}

fn write_docs(out: &mut Encoder<'_>, spec: &Spec) {
    out.bulk(spec.name);
    out.map(4);
    out.bulk("summary");
    out.bulk(spec.summary);
    out.bulk("since");
    out.bulk("1.0.0");
    out.bulk("group");
    out.bulk(group(spec));
    out.bulk("arguments");
    out.array(0);
}

fn group(spec: &Spec) -> &'static str {
    match spec.name {
        "auth" | "ping" | "client" | "hello" | "echo" | "quit" | "reset" | "select" => "connection",
        "cluster" => "cluster",
        "qlen" | "qpeek" | "qstat" | "qscan" | "pause" => "queues",
        "addjob" | "getjob" | "ackjob" | "fastack" | "deljob" | "show" | "jscan" | "enqueue" | "nack"
        | "dequeue" | "working" => "jobs",
        _ => "server",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::testing::{reply, with_args};

    #[test]
    fn an_entry_has_ten_fields() {
        let addjob = spec_of(b"ADDJOB").expect("a command");
        assert_eq!(
            reply(false, |out| write_entry(out, addjob)),
            "*10\r\n$6\r\naddjob\r\n:-4\r\n*3\r\n+write\r\n+denyoom\r\n+fast\r\n:0\r\n:0\r\n:0\r\n\
             *2\r\n+@write\r\n+@fast\r\n*0\r\n*0\r\n*0\r\n"
        );
    }

    #[test]
    fn docs_are_flat_or_a_map() {
        let ping = spec_of(b"ping").expect("a command");
        let body =
            "$7\r\nsummary\r\n$36\r\nAnswers PONG, or the given message.\r\n$5\r\nsince\r\n$5\r\n1.0.0\r\n\
                    $5\r\ngroup\r\n$10\r\nconnection\r\n$9\r\narguments\r\n*0\r\n"
                .replace("$36", "$35");
        assert_eq!(
            reply(false, |out| write_docs(out, ping)),
            format!("$4\r\nping\r\n*8\r\n{body}")
        );
        assert_eq!(
            reply(true, |out| write_docs(out, ping)),
            format!("$4\r\nping\r\n%4\r\n{body}")
        );
    }

    #[test]
    fn the_flags_of_the_reference() {
        for (name, flags) in [
            ("auth", "readonly loading fast"),
            ("shutdown", "readonly admin loading"),
            ("debug", "admin"),
            ("getjob", "write fast"),
            ("nack", "write denyoom fast"),
            ("pause", "readonly fast"),
        ] {
            let spec = spec_of(name.as_bytes()).expect("a command");
            assert_eq!(flag_names(spec).join(" "), flags, "{name}");
        }
    }

    #[test]
    fn lists_are_filtered() {
        let list = |words: &[&str]| {
            with_args(words, |args| {
                let filter = Filter::parse(&args)?;
                let fitting = table::COMMANDS.iter().filter(|spec| filter.fits(spec));
                Ok::<_, CommandError>(fitting.map(|spec| spec.name).collect::<Vec<_>>())
            })
        };
        assert_eq!(
            list(&["COMMAND", "LIST"]).map(|names| names.len()),
            Ok(table::COMMANDS.len())
        );
        assert_eq!(
            list(&["COMMAND", "LIST", "FILTERBY", "PATTERN", "q*"]),
            Ok(vec!["qlen", "qpeek", "qstat", "qscan", "quit"])
        );
        assert_eq!(list(&["COMMAND", "LIST", "FILTERBY", "MODULE", "x"]), Ok(vec![]));
        let admin = list(&["COMMAND", "LIST", "filterby", "aclcat", "admin"]).expect("a filter");
        assert!(admin.contains(&"config") && !admin.contains(&"ping"));
        assert_eq!(
            list(&["COMMAND", "LIST", "FILTERBY", "x", "y"]),
            Err(CommandError::Syntax)
        );
        assert_eq!(
            list(&["COMMAND", "LIST", "x", "PATTERN", "y"]),
            Err(CommandError::Syntax)
        );
    }
}
