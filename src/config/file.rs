//! The classic configuration file: one `name value...` on a line, `#` comments, `include <file>`.
//!
//! A word may be quoted: in double quotes with `\n \r \t \b \a \\ \" \xHH`, in single quotes with `\'`. Several words are one value,
//! joined by blanks. An included file takes effect at its line, so what comes later wins; its path is relative to the folder
//! the server was started in, as in Redis.

use std::io::Read;
use std::path::{Path, PathBuf};

use super::{Config, ConfigError};

/// Files within files at the most: a file that includes itself ends here.
const MAX_DEPTH: usize = 16;

/// Reads a file, or `input` for `-`, into `config`; returns the absolute path of a real file.
pub(super) fn read(
    path: &str,
    mut input: impl Read,
    config: &mut Config,
) -> Result<Option<PathBuf>, ConfigError> {
    if path == "-" {
        let mut text = String::new();
        let name = "standard input";
        input
            .read_to_string(&mut text)
            .map_err(|error| unreadable(name, error))?;
        read_lines(&text, name, config, 0)?;
        return Ok(None);
    }
    let absolute = Path::new(path)
        .canonicalize()
        .map_err(|error| unreadable(path, error))?;
    read_file(path, config, 0)?;
    Ok(Some(absolute))
}

/// A line of a file.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Line {
    /// Nothing, or a comment.
    Blank,
    /// A name in lower case, and its value.
    Directive {
        /// The name.
        name: String,
        /// Its words, joined by blanks.
        value: String,
    },
}

/// Reads one line; none when its quotes are not balanced.
pub(super) fn parse_line(line: &str) -> Option<Line> {
    let line = line.trim();
    if line.is_empty() || line.starts_with('#') {
        return Some(Line::Blank);
    }
    let mut words = split_words(line)?;
    let name = words.remove(0).to_ascii_lowercase();
    Some(Line::Directive {
        name,
        value: words.join(" "),
    })
}

/// Splits a line into its words; none when its quotes are not balanced or the bytes it names are not UTF-8.
pub(super) fn split_words(line: &str) -> Option<Vec<String>> {
    let mut bytes = line.bytes().peekable();
    let mut words = Vec::new();
    loop {
        while bytes.next_if(u8::is_ascii_whitespace).is_some() {}
        let Some(&first) = bytes.peek() else {
            return Some(words);
        };
        let mut word = Vec::new();
        if matches!(first, b'"' | b'\'') {
            bytes.next();
            read_quoted(&mut bytes, first, &mut word)?;
            // A closing quote ends the word.
            if bytes.peek().is_some_and(|next| !next.is_ascii_whitespace()) {
                return None;
            }
        } else {
            while let Some(byte) = bytes.next_if(|byte| !byte.is_ascii_whitespace()) {
                word.push(byte);
            }
        }
        words.push(String::from_utf8(word).ok()?);
    }
}

fn read_quoted(bytes: &mut impl Iterator<Item = u8>, quote: u8, word: &mut Vec<u8>) -> Option<()> {
    loop {
        let byte = bytes.next()?;
        if byte == quote {
            return Some(());
        }
        if byte != b'\\' {
            word.push(byte);
            continue;
        }
        let escaped = bytes.next()?;
        if quote == b'\'' {
            if escaped != b'\'' {
                word.push(b'\\');
            }
            word.push(escaped);
            continue;
        }
        word.push(match escaped {
            b'n' => b'\n',
            b'r' => b'\r',
            b't' => b'\t',
            b'b' => 8,
            b'a' => 7,
            b'x' => {
                let digits = [bytes.next()?, bytes.next()?];
                u8::from_str_radix(std::str::from_utf8(&digits).ok()?, 16).ok()?
            }
            other => other,
        });
    }
}

fn read_file(path: &str, config: &mut Config, depth: usize) -> Result<(), ConfigError> {
    let text = std::fs::read_to_string(path).map_err(|error| unreadable(path, error))?;
    read_lines(&text, path, config, depth)
}

fn read_lines(text: &str, file: &str, config: &mut Config, depth: usize) -> Result<(), ConfigError> {
    for (index, line) in text.lines().enumerate() {
        let place = format!("{file}:{}", index + 1);
        let refused = |why: &str| ConfigError::Refused {
            place: place.clone(),
            why: why.to_owned(),
        };
        let line =
            parse_line(line).ok_or_else(|| refused("unbalanced quotes, or bytes that are not UTF-8"))?;
        match line {
            Line::Blank => {}
            Line::Directive { name, value } if name == "include" => {
                if depth == MAX_DEPTH {
                    return Err(refused("too many files include one another"));
                }
                read_file(&value, config, depth + 1)?;
            }
            Line::Directive { name, value } => config.set(&name, &value, &place)?,
        }
    }
    Ok(())
}

fn unreadable(file: &str, error: std::io::Error) -> ConfigError {
    ConfigError::Unreadable {
        file: file.to_owned(),
        error,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_and_quotes() {
        let split = |line: &str| split_words(line).map(|words| words.join("|"));
        assert_eq!(split("  a  b\tc ").as_deref(), Some("a|b|c"));
        assert_eq!(
            split(r#""a b" 'c d' "" "\x41\n\"\\""#).as_deref(),
            Some("a b|c d||A\n\"\\")
        );
        assert_eq!(split(r"'it\'s \n'").as_deref(), Some(r"it's \n"));
        for unbalanced in ["\"a", "'a", "\"a\"b", "\"\\x4", "\"\\", "\"\\xff\""] {
            assert_eq!(split(unbalanced), None, "{unbalanced}");
        }
    }

    #[test]
    fn lines() {
        assert_eq!(parse_line(" # port 1"), Some(Line::Blank));
        let directive = Line::Directive {
            name: "bind".to_owned(),
            value: "127.0.0.1 ::1".to_owned(),
        };
        assert_eq!(parse_line("BIND 127.0.0.1   ::1\r"), Some(directive));
    }

    #[test]
    fn a_file_that_includes_itself_is_refused() {
        let path = std::env::temp_dir().join(format!("shardq-include-{}.conf", std::process::id()));
        std::fs::write(&path, format!("include {}\n", path.display())).unwrap();
        let mut config = Config {
            settings: shard::settings::Settings::default(),
            file: None,
            warnings: Vec::new(),
        };
        let error = read(path.to_str().unwrap(), std::io::empty(), &mut config).unwrap_err();
        std::fs::remove_file(&path).unwrap();
        assert!(
            error.to_string().ends_with("too many files include one another"),
            "{error}"
        );
    }
}
