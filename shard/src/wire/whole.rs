//! Reading a multibulk request that is whole in the received bytes: the hot path.
//!
//! It notes where the arguments are and copies nothing. Where the bytes end before the request does, it says
//! what comes next, and `partial.rs` goes on from there: both use the checks at the end of this file, and both
//! apply them at the same byte, so that a request reads the same however it was cut.

use super::number::parse_length;
use super::request::Span;
use super::{ProtocolError, RequestLimits};
use crate::limits::{MAX_ARGUMENTS, MAX_BULK_BYTES, MAX_LINE_BYTES};

/// The two bytes behind an argument, skipped unseen as the original does.
pub(super) const TERMINATOR_BYTES: usize = 2;

/// What a scan came to.
pub(super) enum Scan {
    /// The request is whole and has this many bytes.
    Whole(usize),
    /// The bytes end before the request does.
    Cut(Cut),
}

/// Where a scan had to stop.
pub(super) struct Cut {
    /// Bytes of the frame that are done with.
    pub at: usize,
    /// Arguments to come, the one under way included.
    pub missing_arguments: usize,
    /// What starts at `at`.
    pub next: Next,
}

/// The part of a frame that was not whole.
#[derive(Clone, Copy)]
pub(super) enum Next {
    /// The line with the number of arguments.
    Count,
    /// The line with an argument's length.
    Length,
    /// An argument of this many bytes.
    Body(usize),
}

/// Reads the frame that starts with the first byte; its arguments become spans of it.
pub(super) fn scan(
    frame: &[u8],
    spans: &mut Vec<Span>,
    limits: &RequestLimits,
) -> Result<Scan, ProtocolError> {
    let cut = |at, missing_arguments, next| {
        Ok(Scan::Cut(Cut {
            at,
            missing_arguments,
            next,
        }))
    };
    let mut short = [Span::NONE; SHORT_ARGUMENTS];
    if let Some((count, bytes)) = scan_short(frame, &mut short, limits) {
        spans.extend_from_slice(&short[..count]);
        return Ok(Scan::Whole(bytes));
    }
    let Some((line, mut at)) = find_line(frame, ProtocolError::CountLineTooBig)? else {
        return cut(0, 0, Next::Count);
    };
    for missing in (1..=argument_count(line, limits)?).rev() {
        let rest = &frame[at..];
        let (announced, line_bytes) = match short_length(rest) {
            Some(short) => short,
            None => match find_line(rest, ProtocolError::LengthLineTooBig)? {
                Some((line, line_bytes)) => (announced_bytes(line)?, line_bytes),
                None => return cut(at, missing, Next::Length),
            },
        };
        let body = at + line_bytes;
        let bytes = check_bulk_bytes(announced, body, limits)?;
        if frame.len() - body < bytes + TERMINATOR_BYTES {
            return cut(body, missing, Next::Body(bytes));
        }
        spans.push(Span::text(body, bytes));
        at = body + bytes + TERMINATOR_BYTES;
    }
    Ok(Scan::Whole(at))
}

/// Most arguments of a short request.
pub(super) const SHORT_ARGUMENTS: usize = 9;

/// Reads a request as most are: up to nine arguments of up to 99 bytes, whole, within the limits. Gives their number and the bytes
/// of the request; the first so many `spans` are theirs. `None` for any other: that is looked at step by step.
#[inline]
pub(super) fn scan_short(
    frame: &[u8],
    spans: &mut [Span; SHORT_ARGUMENTS],
    limits: &RequestLimits,
) -> Option<(usize, usize)> {
    let [b'*', count @ b'1'..=b'9', b'\r', _, ..] = *frame else {
        return None;
    };
    let count = usize::from(count - b'0');
    let mut at = 4;
    let mut longest = 0;
    for span in &mut spans[..count] {
        let (bytes, line_bytes) = short_length(frame.get(at..)?)?;
        *span = Span::short(at + line_bytes, bytes);
        at += line_bytes + bytes + TERMINATOR_BYTES;
        longest = longest.max(bytes);
    }
    let is_within_limits = at <= frame.len()
        && at <= limits.max_request_bytes
        && longest <= limits.max_bulk_bytes
        && count <= limits.max_arguments;
    is_within_limits.then_some((count, at))
}

/// The line at the start of `text` without its end, and the bytes with it. A CR ends it; the byte after the CR
/// is skipped unseen, but must be there.
fn find_line(text: &[u8], too_big: ProtocolError) -> Result<Option<(&[u8], usize)>, ProtocolError> {
    match text
        .iter()
        .take(MAX_LINE_BYTES + 1)
        .position(|byte| *byte == b'\r')
    {
        Some(end) if end + 1 < text.len() => Ok(Some((&text[..end], end + 2))),
        None if text.len() > MAX_LINE_BYTES => Err(too_big),
        _ => Ok(None),
    }
}

/// The number of arguments that a line announces; zero for an empty request.
pub(super) fn argument_count(line: &[u8], limits: &RequestLimits) -> Result<usize, ProtocolError> {
    let count = parse_length(&line[1..]).ok_or(ProtocolError::InvalidCount)?;
    let count = usize::try_from(count).unwrap_or(0);
    match count {
        _ if count > MAX_ARGUMENTS => Err(ProtocolError::InvalidCount),
        _ if count > limits.max_arguments => Err(ProtocolError::UnauthenticatedCount),
        _ => Ok(count),
    }
}

/// The length of the argument that a line announces, where the request had `read_bytes` so far.
pub(super) fn bulk_bytes(
    line: &[u8],
    read_bytes: usize,
    limits: &RequestLimits,
) -> Result<usize, ProtocolError> {
    check_bulk_bytes(announced_bytes(line)?, read_bytes, limits)
}

/// The length in a whole line of one or two digits, and the line's bytes: nearly all arguments have one, and
/// reading it this way takes half the time.
#[inline]
fn short_length(text: &[u8]) -> Option<(usize, usize)> {
    // Behind the line come two more bytes at least.
    match *text.first_chunk()? {
        [b'$', units @ b'0'..=b'9', b'\r', _, _] => Some((usize::from(units - b'0'), 4)),
        [b'$', tens @ b'1'..=b'9', units @ b'0'..=b'9', b'\r', _] => {
            Some((usize::from(tens - b'0') * 10 + usize::from(units - b'0'), 5))
        }
        _ => None,
    }
}

fn announced_bytes(line: &[u8]) -> Result<usize, ProtocolError> {
    let Some(digits) = line.strip_prefix(b"$") else {
        return Err(ProtocolError::ExpectedBulk(*line.first().unwrap_or(&b'\r')));
    };
    let bytes = parse_length(digits).and_then(|bytes| usize::try_from(bytes).ok());
    bytes.ok_or(ProtocolError::InvalidLength)
}

fn check_bulk_bytes(bytes: usize, read_bytes: usize, limits: &RequestLimits) -> Result<usize, ProtocolError> {
    if bytes > MAX_BULK_BYTES {
        Err(ProtocolError::InvalidLength)
    } else if bytes > limits.max_bulk_bytes {
        Err(ProtocolError::UnauthenticatedLength)
    } else if read_bytes + bytes + TERMINATOR_BYTES > limits.max_request_bytes {
        Err(ProtocolError::RequestTooBig)
    } else {
        Ok(bytes)
    }
}
