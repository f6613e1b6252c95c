//! The forms of values: how each is read and shown, and which field of [`Settings`] it fills.
//!
//! What is shown can be read back and gives the same value: CONFIG REWRITE relies on it.

use std::net::IpAddr;

use super::Settings;
use crate::cluster::Facts;
use crate::wire::number::parse_memory_bytes;

/// Seconds of `tcp-keepalive yes`.
pub(super) const KEEPALIVE_S: u64 = 300;

/// Where a value of one type is kept.
#[derive(Clone, Copy)]
pub struct Field<T: 'static> {
    pub(super) get: fn(&Settings) -> &T,
    pub(super) get_mut: fn(&mut Settings) -> &mut T,
}

impl<T> std::fmt::Debug for Field<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Field")
    }
}

/// The form of a setting's value, and where it is kept.
#[derive(Debug)]
pub enum Kind {
    /// A whole number of this range.
    Integer(Field<u64>, u64, u64),
    /// A whole number that may be negative.
    Signed(Field<i64>),
    /// Bytes, with a unit if wanted, at least so many.
    Memory(Field<u64>, u64),
    /// Permissions, octal.
    Octal(Field<u64>),
    /// `yes` or `no`.
    YesNo(Field<bool>),
    /// One of these words.
    Word(Field<&'static str>, &'static [&'static str]),
    /// Any text up to this length.
    Text(Field<String>, usize),
    /// An address or host name; empty: none.
    Host(Field<String>),
    /// IP addresses, or `*`.
    Addresses(Field<Vec<String>>),
    /// A password; empty: none.
    Password(Field<Option<Vec<u8>>>),
    /// `normal <hard> <soft> <seconds>`.
    OutputLimit(Field<OutputLimit>),
    /// Seconds, or `yes` or `no`.
    KeepAlive(Field<u64>),
    /// `<old> <new>`; can be given several times.
    Renames(Field<Vec<(String, String)>>),
    /// Only this value can be given, and why.
    Fixed(&'static str, &'static str),
    /// Looked at by whoever reads the file, never kept.
    Reader,
    /// Without a meaning: kept as it is given.
    Ignored {
        /// What it must look like.
        form: Form,
        /// What is shown when it is not given.
        default: &'static str,
    },
}

/// The form of a value that is only kept.
#[derive(Clone, Copy, Debug)]
pub enum Form {
    /// A whole number of this range.
    Integer(u64, u64),
    /// Bytes.
    Memory,
    /// `yes` or `no`.
    YesNo,
    /// One of these words.
    Word(&'static [&'static str]),
    /// Any text.
    Text,
}

/// How much output a client may leave unread before it is closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OutputLimit {
    /// More than this: at once; 0: no limit.
    pub hard_bytes: u64,
    /// More than this for `soft_s`; 0: no limit.
    pub soft_bytes: u64,
    /// See `soft_bytes`.
    pub soft_s: u64,
}

impl Kind {
    /// The form in a few words, for help.
    pub fn form(&self) -> String {
        match self {
            Self::Integer(_, min, u64::MAX) => format!("number from {min}"),
            Self::Integer(_, min, max) => format!("number {min} to {max}"),
            Self::Signed(_) => "number".to_owned(),
            Self::Memory(..) => "bytes, or with k, kb, m, mb, g, gb".to_owned(),
            Self::Octal(_) => "octal permissions".to_owned(),
            Self::YesNo(_) => "yes|no".to_owned(),
            Self::Word(_, words) => words.join("|"),
            Self::Text(..) => "text".to_owned(),
            Self::Host(_) => "address or host name".to_owned(),
            Self::Addresses(_) => "addresses".to_owned(),
            Self::Password(_) => "password".to_owned(),
            Self::OutputLimit(_) => "normal <hard> <soft> <seconds>".to_owned(),
            Self::KeepAlive(_) => "seconds, yes or no".to_owned(),
            Self::Renames(_) => "<old> <new>".to_owned(),
            Self::Fixed(value, _) => format!("only \"{value}\""),
            Self::Reader => "file".to_owned(),
            Self::Ignored { .. } => "ignored".to_owned(),
        }
    }

    pub(super) fn show(&self, settings: &Settings) -> String {
        match self {
            Self::Integer(field, ..) | Self::Memory(field, _) | Self::KeepAlive(field) => {
                (field.get)(settings).to_string()
            }
            Self::Signed(field) => (field.get)(settings).to_string(),
            Self::Octal(field) => format!("{:o}", (field.get)(settings)),
            Self::YesNo(field) => if *(field.get)(settings) { "yes" } else { "no" }.to_owned(),
            Self::Word(field, _) => (*(field.get)(settings)).to_owned(),
            Self::Text(field, _) | Self::Host(field) => (field.get)(settings).clone(),
            Self::Addresses(field) => (field.get)(settings).join(" "),
            Self::Password(field) => (field.get)(settings)
                .as_deref()
                .map_or_else(String::new, |bytes| String::from_utf8_lossy(bytes).into()),
            Self::OutputLimit(field) => {
                let OutputLimit {
                    hard_bytes,
                    soft_bytes,
                    soft_s,
                } = (field.get)(settings);
                format!("normal {hard_bytes} {soft_bytes} {soft_s}")
            }
            Self::Renames(field) => {
                let pairs = (field.get)(settings)
                    .iter()
                    .map(|(old, new)| format!("{old} {new}"));
                pairs.collect::<Vec<_>>().join(" ")
            }
            Self::Fixed(value, _) => (*value).to_owned(),
            Self::Reader => String::new(),
            Self::Ignored { default, .. } => (*default).to_owned(),
        }
    }

    pub(super) fn write(&self, settings: &mut Settings, text: &str) -> Result<(), String> {
        match self {
            Self::Integer(field, min, max) => *(field.get_mut)(settings) = integer(text, *min, *max)?,
            Self::Signed(field) => {
                *(field.get_mut)(settings) =
                    text.parse().map_err(|_| "argument must be a number".to_owned())?;
            }
            Self::Memory(field, min) => *(field.get_mut)(settings) = memory_of_at_least(text, *min)?,
            Self::Octal(field) => *(field.get_mut)(settings) = octal(text)?,
            Self::YesNo(field) => *(field.get_mut)(settings) = yes_no(text)?,
            Self::Word(field, words) => *(field.get_mut)(settings) = word(text, words)?,
            Self::Text(field, max) => {
                if text.len() > *max {
                    return Err(format!("argument is longer than {max} bytes"));
                }
                (field.get_mut)(settings).replace_range(.., text);
            }
            Self::Host(field) => *(field.get_mut)(settings) = host(text)?,
            Self::Addresses(field) => *(field.get_mut)(settings) = addresses(text)?,
            Self::Password(field) => *(field.get_mut)(settings) = password(text)?,
            Self::OutputLimit(field) => *(field.get_mut)(settings) = output_limit(text)?,
            Self::KeepAlive(field) => *(field.get_mut)(settings) = keepalive(text)?,
            Self::Renames(field) => add_renames((field.get_mut)(settings), text)?,
            Self::Fixed(value, why) if !text.eq_ignore_ascii_case(value) => return Err((*why).to_owned()),
            Self::Fixed(..) | Self::Reader | Self::Ignored { .. } => {}
        }
        Ok(())
    }
}

impl Form {
    /// The value as it is kept.
    pub(super) fn normal(&self, text: &str) -> Result<String, String> {
        Ok(match self {
            Self::Integer(min, max) => integer(text, *min, *max)?.to_string(),
            Self::Memory => memory(text)?.to_string(),
            Self::YesNo => if yes_no(text)? { "yes" } else { "no" }.to_owned(),
            Self::Word(words) => word(text, words)?.to_owned(),
            Self::Text => text.to_owned(),
        })
    }
}

fn integer(text: &str, min: u64, max: u64) -> Result<u64, String> {
    let number = text
        .parse::<u64>()
        .map_err(|_| "argument couldn't be parsed into an integer".to_owned())?;
    if (min..=max).contains(&number) {
        Ok(number)
    } else {
        Err(format!("argument must be between {min} and {max} inclusive"))
    }
}

/// Bytes, with a unit if wanted.
fn memory(text: &str) -> Result<u64, String> {
    let bytes = parse_memory_bytes(text.as_bytes()).filter(|&bytes| bytes <= i64::MAX as u64);
    bytes.ok_or_else(|| "argument must be a memory value".to_owned())
}

fn memory_of_at_least(text: &str, min: u64) -> Result<u64, String> {
    let bytes = memory(text)?;
    if bytes == 0 || bytes >= min {
        Ok(bytes)
    } else {
        Err(format!("argument must be 0 or at least {min} bytes"))
    }
}

fn octal(text: &str) -> Result<u64, String> {
    let permissions = u64::from_str_radix(text, 8).ok().filter(|&bits| bits <= 0o777);
    permissions.ok_or_else(|| "argument must be octal permissions, 0 to 777".to_owned())
}

fn yes_no(text: &str) -> Result<bool, String> {
    Ok(word(text, &["yes", "no"]).map_err(|_| "argument must be 'yes' or 'no'".to_owned())? == "yes")
}

fn word(text: &str, words: &'static [&'static str]) -> Result<&'static str, String> {
    let found = words.iter().find(|word| text.eq_ignore_ascii_case(word));
    found
        .copied()
        .ok_or_else(|| format!("argument must be one of: {}", words.join(", ")))
}

fn host(text: &str) -> Result<String, String> {
    if Facts::can_announce(text) {
        Ok(text.to_owned())
    } else {
        Err(format!("'{}' is no address or host name", text.escape_default()))
    }
}

fn addresses(text: &str) -> Result<Vec<String>, String> {
    let addresses: Vec<String> = text.split_ascii_whitespace().map(str::to_owned).collect();
    match addresses
        .iter()
        .find(|address| *address != "*" && address.parse::<IpAddr>().is_err())
    {
        Some(bad) => Err(format!("'{}' is not an IP address", bad.escape_default())),
        None => Ok(addresses),
    }
}

/// At most 512 bytes (reference, 10.2).
fn password(text: &str) -> Result<Option<Vec<u8>>, String> {
    match text.len() {
        0 => Ok(None),
        1..=512 => Ok(Some(text.as_bytes().to_vec())),
        _ => Err("password is longer than 512 bytes".to_owned()),
    }
}

fn output_limit(text: &str) -> Result<OutputLimit, String> {
    let words: Vec<&str> = text.split_ascii_whitespace().collect();
    let [class, hard, soft, seconds] = words[..] else {
        return Err("argument must be: normal <hard limit> <soft limit> <soft seconds>".to_owned());
    };
    if !class.eq_ignore_ascii_case("normal") {
        return Err("the only class of clients is 'normal'".to_owned());
    }
    Ok(OutputLimit {
        hard_bytes: memory(hard)?,
        soft_bytes: memory(soft)?,
        soft_s: integer(seconds, 0, u32::MAX.into())?,
    })
}

fn keepalive(text: &str) -> Result<u64, String> {
    match yes_no(text) {
        Ok(on) => Ok(if on { KEEPALIVE_S } else { 0 }),
        Err(_) => integer(text, 0, 32_767),
    }
}

/// Pairs of an old and a new name; the new one may be missing or `""`, at the end of the text.
fn add_renames(renames: &mut Vec<(String, String)>, text: &str) -> Result<(), String> {
    let words: Vec<&str> = text.split(' ').collect();
    for pair in words.chunks(2) {
        let (old, new) = (pair[0], pair.get(1).copied().unwrap_or("").trim_matches('"'));
        if old.is_empty() && words.len() > 2 {
            return Err("argument must be pairs of an old and a new name".to_owned());
        }
        if !old.is_empty() {
            renames.retain(|(other, _)| !other.eq_ignore_ascii_case(old));
            renames.push((old.to_ascii_lowercase(), new.to_ascii_lowercase()));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_values() {
        assert_eq!(memory("2Mb"), Ok(2 << 20));
        for text in ["", "-1", "lots", "9999999999gb", "9223372036854775808"] {
            assert!(memory(text).is_err(), "{text}");
        }
    }

    #[test]
    fn output_limits() {
        let limit = OutputLimit {
            hard_bytes: 1 << 20,
            soft_bytes: 512,
            soft_s: 60,
        };
        assert_eq!(output_limit("normal 1mb 512 60"), Ok(limit));
        assert!(output_limit("replica 1 1 1").is_err());
        assert!(output_limit("normal 1 1").is_err());
        assert!(output_limit("normal 1 1 -1").is_err());
    }

    #[test]
    fn small_forms() {
        assert_eq!(octal("700"), Ok(0o700));
        assert!(octal("8").is_err());
        assert_eq!(keepalive("no"), Ok(0));
        assert_eq!(keepalive("YES"), Ok(KEEPALIVE_S));
        assert_eq!(keepalive("60"), Ok(60));
        assert_eq!(addresses("* ::1").map(|a| a.len()), Ok(2));
        assert!(addresses("example.org").is_err());
        assert!(integer("+", 0, 9).is_err());
        assert!(integer("10", 0, 9).is_err());
    }

    #[test]
    fn renames_are_gathered() {
        let mut renames = Vec::new();
        assert_eq!(add_renames(&mut renames, "CONFIG hidden"), Ok(()));
        assert_eq!(add_renames(&mut renames, "DEBUG "), Ok(()));
        assert_eq!(add_renames(&mut renames, "SHUTDOWN \"\""), Ok(()));
        let pair = |old: &str, new: &str| (old.to_owned(), new.to_owned());
        assert_eq!(
            renames,
            [pair("config", "hidden"), pair("debug", ""), pair("shutdown", "")]
        );
        assert_eq!(add_renames(&mut renames, "a \"\" b c"), Ok(()));
        assert_eq!(renames.split_off(3), [pair("a", ""), pair("b", "c")]);
        assert_eq!(add_renames(&mut renames, "config "), Ok(()));
        assert_eq!(renames.len(), 3, "the last word about a command counts");
    }
}
