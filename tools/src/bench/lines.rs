//! beanstalkd's replies: a line each, a job's body behind the line that tells its size.

use super::scan::{BULK_BYTES_MAX, Cursor, Event, ScanError, number, unexpected};

/// Reads the next reply: the event and the bytes it took, or `None` when it is cut off.
pub(super) fn next(mut cursor: Cursor<'_>) -> Result<Option<(Event<'_>, usize)>, ScanError> {
    let Some(line) = cursor.line()? else {
        return Ok(None);
    };
    let (word, rest) = match line.iter().position(|byte| *byte == b' ') {
        Some(blank) => (&line[..blank], &line[blank + 1..]),
        None => (line, &line[line.len()..]),
    };
    let event = match word {
        b"INSERTED" => Event::Id(rest),
        b"RESERVED" => {
            let (id, bytes) = id_and_bytes(rest)?;
            let Some(body) = cursor.bytes(bytes)? else {
                return Ok(None);
            };
            Event::Job {
                queue: 0,
                id,
                body,
                last: true,
            }
        }
        b"DELETED" => Event::Number(1),
        b"NOT_FOUND" => Event::Number(0),
        // The second tells that a job's time is nearly up, which is no job either.
        b"TIMED_OUT" | b"DEADLINE_SOON" => Event::Nothing,
        b"USING" => Event::Using,
        _ => Event::Error(line),
    };
    Ok(Some((event, cursor.position)))
}

fn id_and_bytes(rest: &[u8]) -> Result<(&[u8], usize), ScanError> {
    let blank = rest.iter().position(|byte| *byte == b' ');
    let blank = blank.ok_or_else(|| unexpected("ID and size of a job", rest))?;
    let bytes = usize::try_from(number(&rest[blank + 1..])?);
    match bytes {
        Ok(bytes) if bytes <= BULK_BYTES_MAX => Ok((&rest[..blank], bytes)),
        _ => Err(unexpected("the size of a job", rest)),
    }
}
