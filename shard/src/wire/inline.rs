//! Inline requests: one line, split into arguments as a shell would.
//!
//! `"..."` knows `\n \r \t \b \a \xHH` and takes any other escaped byte as it is; `'...'` knows only `\'`. A closing
//! quote ends its argument and must be followed by a blank or the end. Zero-length arguments are kept, and a
//! NUL byte is a byte like any other (weakness 61 of the reference).
//!
//! A line without quotes is not copied: its arguments are slices of it.

use super::ProtocolError;
use super::request::Span;

/// The line without the CR of a CRLF.
pub(super) fn strip_return(line: &[u8]) -> &[u8] {
    line.strip_suffix(b"\r").unwrap_or(line)
}

/// Whether the arguments of this line are not just slices of it.
pub(super) fn has_quotes(line: &[u8]) -> bool {
    line.iter().any(|byte| matches!(byte, b'"' | b'\''))
}

/// The arguments of a line without quotes, as spans of it.
pub(super) fn split_plain(line: &[u8], spans: &mut Vec<Span>) {
    let mut at = 0;
    while let Some(blanks) = line[at..].iter().position(|byte| !is_blank(*byte)) {
        at += blanks;
        let bytes = line[at..]
            .iter()
            .position(|byte| is_blank(*byte))
            .unwrap_or(line.len() - at);
        spans.push(Span::text(at, bytes));
        at += bytes;
    }
}

/// The arguments of any line, appended to `text` and given as spans of it.
pub(super) fn split_quoted(
    line: &[u8],
    text: &mut Vec<u8>,
    spans: &mut Vec<Span>,
) -> Result<(), ProtocolError> {
    let mut rest = line;
    loop {
        rest = skip_blanks(rest);
        if rest.is_empty() {
            return Ok(());
        }
        let start = text.len();
        rest = take_argument(rest, text)?;
        spans.push(Span::text(start, text.len() - start));
    }
}

/// Blanks as C's `isspace` has them.
fn is_blank(byte: u8) -> bool {
    matches!(byte, b' ' | b'\t'..=b'\r')
}

fn skip_blanks(rest: &[u8]) -> &[u8] {
    let blanks = rest.iter().take_while(|byte| is_blank(**byte)).count();
    &rest[blanks..]
}

/// Reads one argument, which starts at the first byte, and gives what follows it.
fn take_argument<'a>(mut rest: &'a [u8], text: &mut Vec<u8>) -> Result<&'a [u8], ProtocolError> {
    loop {
        match rest {
            [b'"', quoted @ ..] => return take_double_quoted(quoted, text).and_then(end_of_quoted),
            [b'\'', quoted @ ..] => return take_single_quoted(quoted, text).and_then(end_of_quoted),
            [byte, after @ ..] if !is_blank(*byte) => {
                text.push(*byte);
                rest = after;
            }
            _ => return Ok(rest),
        }
    }
}

fn end_of_quoted(rest: &[u8]) -> Result<&[u8], ProtocolError> {
    match rest.first() {
        Some(byte) if !is_blank(*byte) => Err(ProtocolError::UnbalancedQuotes),
        _ => Ok(rest),
    }
}

fn take_double_quoted<'a>(mut rest: &'a [u8], text: &mut Vec<u8>) -> Result<&'a [u8], ProtocolError> {
    loop {
        let (byte, after) = match rest {
            [] => return Err(ProtocolError::UnbalancedQuotes),
            [b'"', after @ ..] => return Ok(after),
            [b'\\', b'x', high, low, after @ ..] if high.is_ascii_hexdigit() && low.is_ascii_hexdigit() => {
                (hex_digit(*high) << 4 | hex_digit(*low), after)
            }
            [b'\\', escaped, after @ ..] => (unescape(*escaped), after),
            [byte, after @ ..] => (*byte, after),
        };
        text.push(byte);
        rest = after;
    }
}

fn take_single_quoted<'a>(mut rest: &'a [u8], text: &mut Vec<u8>) -> Result<&'a [u8], ProtocolError> {
    loop {
        let (byte, after) = match rest {
            [] => return Err(ProtocolError::UnbalancedQuotes),
            [b'\'', after @ ..] => return Ok(after),
            [b'\\', b'\'', after @ ..] => (b'\'', after),
            [byte, after @ ..] => (*byte, after),
        };
        text.push(byte);
        rest = after;
    }
}

fn unescape(escaped: u8) -> u8 {
    match escaped {
        b'n' => b'\n',
        b'r' => b'\r',
        b't' => b'\t',
        b'b' => 0x08,
        b'a' => 0x07,
        other => other,
    }
}

fn hex_digit(digit: u8) -> u8 {
    match digit {
        b'0'..=b'9' => digit - b'0',
        _ => digit.to_ascii_lowercase() - b'a' + 10,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn split(line: &[u8]) -> Result<Vec<Vec<u8>>, ProtocolError> {
        let (mut text, mut spans) = (Vec::new(), Vec::new());
        split_quoted(line, &mut text, &mut spans)?;
        Ok(spans.iter().map(|span| span.of(&text, &[]).to_vec()).collect())
    }

    #[test]
    fn quoting_as_in_a_shell() {
        let cases: [(&[u8], &[&[u8]]); 14] = [
            (b"", &[]),
            (b" \t\r\x0b\x0c ", &[]),
            (b"PING", &[b"PING"]),
            (b"  a  b\tc ", &[b"a", b"b", b"c"]),
            (b"\"\" ''", &[b"", b""]),
            (b"\"a b\" 'c d'", &[b"a b", b"c d"]),
            (br#""\n\r\t\b\a\\\"\q""#, &[b"\n\r\t\x08\x07\\\"q"]),
            (br#""\x41\xfF\x4""#, &[b"A\xffx4"]),
            (br"'it\'s' '\n'", &[b"it's", b"\\n"]),
            (b"foo\"bar\"", &[b"foobar"]),
            (br"a\b", &[br"a\b"]),
            (b"a\0b \0", &[b"a\0b", b"\0"]),
            (b"\"'\" '\"'", &[b"'", b"\""]),
            (b"\xff\x80", &[b"\xff\x80"]),
        ];
        for (line, arguments) in cases {
            assert_eq!(split(line).unwrap(), arguments, "{}", line.escape_ascii());
        }
    }

    #[test]
    fn unbalanced_quotes() {
        for line in [
            "\"", "'", "\"a", "'a", "\"a\"b", "'a'b", "\"a\"'b'", r#""a\""#, r"'a\'", "x\"", "\"a\"\0",
        ] {
            assert_eq!(
                split(line.as_bytes()),
                Err(ProtocolError::UnbalancedQuotes),
                "{line}"
            );
        }
    }

    proptest! {
        #[test]
        fn plain_lines_split_alike(line in proptest::collection::vec(any::<u8>(), 0..40)) {
            prop_assume!(!has_quotes(&line));
            let mut spans = Vec::new();
            split_plain(&line, &mut spans);
            let plain: Vec<_> = spans.iter().map(|span| span.of(&line, &[]).to_vec()).collect();
            prop_assert_eq!(plain, split(&line).unwrap());
        }
    }
}
