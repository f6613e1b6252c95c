//! An incremental reader of just the replies a bench gets: IDs, numbers, jobs, nothing, errors.
//!
//! A general decoder costs more per job than the server under test may take, so this one allocates nothing
//! and hands out slices of the input. It is resumable: the input holds any number of replies, the last one
//! cut anywhere. The unit it waits for is one job, not a whole array of jobs, so what is scanned twice stays
//! small. Everything it does not expect is an error, never a guess.

use memchr::memchr;

/// Longest line (ID, number, error text, length) a server may send.
const LINE_BYTES_MAX: usize = 64 * 1024;

/// Largest bulk string a server may send, the protocol's own limit.
const BULK_BYTES_MAX: usize = 512 * 1024 * 1024;

/// Most digits of a length.
const LENGTH_DIGITS_MAX: usize = 10;

/// One reply, or one job of a reply.
#[derive(Debug, PartialEq, Eq)]
pub enum Event<'a> {
    /// `+text`: the ID of an added job.
    Id(&'a [u8]),
    /// `:n`
    Number(i64),
    /// An empty or null array: no job.
    Nothing,
    /// A job; `last` when the reply ends with it.
    Job {
        /// Its ID.
        id: &'a [u8],
        /// Its body.
        body: &'a [u8],
        /// True if the reply ends with this job.
        last: bool,
    },
    /// `-text`, without the minus sign.
    Error(&'a [u8]),
}

/// The server sent what is no reply to a bench's commands.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("unexpected bytes in a reply: expected {expected}, got {found:?}")]
pub struct ScanError {
    expected: &'static str,
    found: String,
}

/// Where in a reply the scan stands.
#[derive(Debug, Default)]
pub struct Scanner {
    jobs_left: usize,
}

impl Scanner {
    /// Reads the next event at the start of `input`: the event and the bytes it took, or `None` when it is
    /// cut off.
    ///
    /// The caller drops the bytes taken before the next call; after `None` it calls again with more behind
    /// them.
    pub fn next<'a>(&mut self, input: &'a [u8]) -> Result<Option<(Event<'a>, usize)>, ScanError> {
        let mut cursor = Cursor { input, position: 0 };
        if self.jobs_left > 0 {
            return self.job(cursor);
        }
        let Some(line) = cursor.line()? else {
            return Ok(None);
        };
        let (kind, text) = line.split_first().ok_or_else(|| unexpected("a reply", line))?;
        let event = match kind {
            b'+' => Event::Id(text),
            b'-' => Event::Error(text),
            b':' => Event::Number(number(text)?),
            b'_' if text.is_empty() => Event::Nothing,
            b'$' if text == b"-1" => Event::Nothing,
            b'*' => match number(text)? {
                -1 | 0 => Event::Nothing,
                jobs if jobs > 0 => return self.first_job(cursor, jobs as usize),
                _ => return Err(unexpected("a number of jobs", line)),
            },
            _ => return Err(unexpected("an ID, a number or jobs", line)),
        };
        Ok(Some((event, cursor.position)))
    }

    /// The array's header counts as read only together with the first job, which keeps `next` a function of
    /// one event.
    fn first_job<'a>(
        &mut self,
        cursor: Cursor<'a>,
        jobs: usize,
    ) -> Result<Option<(Event<'a>, usize)>, ScanError> {
        self.jobs_left = jobs;
        let result = self.job(cursor);
        if !matches!(result, Ok(Some(_))) {
            self.jobs_left = 0;
        }
        result
    }

    fn job<'a>(&mut self, mut cursor: Cursor<'a>) -> Result<Option<(Event<'a>, usize)>, ScanError> {
        let start = cursor.rest();
        match cursor.header(b'*')? {
            Some(3) => {}
            Some(_) => return Err(unexpected("a job of queue, ID and body", start)),
            None => return Ok(None),
        }
        let Some(_queue) = cursor.bulk()? else {
            return Ok(None);
        };
        let Some(id) = cursor.bulk()? else { return Ok(None) };
        let Some(body) = cursor.bulk()? else {
            return Ok(None);
        };
        self.jobs_left -= 1;
        Ok(Some((
            Event::Job {
                id,
                body,
                last: self.jobs_left == 0,
            },
            cursor.position,
        )))
    }
}

struct Cursor<'a> {
    input: &'a [u8],
    position: usize,
}

impl<'a> Cursor<'a> {
    fn rest(&self) -> &'a [u8] {
        &self.input[self.position..]
    }

    /// A line of `kind` and a length. These are most lines of a job and have a few bytes each: going digit by
    /// digit is much faster than searching for their end.
    fn header(&mut self, kind: u8) -> Result<Option<usize>, ScanError> {
        let rest = self.rest();
        let Some((first, behind)) = rest.split_first() else {
            return Ok(None);
        };
        if *first != kind {
            return Err(unexpected("another kind of element", rest));
        }
        let mut length = 0;
        for (digits, byte) in behind.iter().enumerate() {
            match byte {
                b'0'..=b'9' if digits < LENGTH_DIGITS_MAX => length = length * 10 + usize::from(byte - b'0'),
                b'\r' if digits > 0 => {
                    self.position += 1 + digits + 2;
                    return match behind.get(digits + 1) {
                        Some(b'\n') => Ok(Some(length)),
                        Some(_) => Err(unexpected("LF behind CR", rest)),
                        None => Ok(None),
                    };
                }
                _ => return Err(unexpected("a length", rest)),
            }
        }
        Ok(None)
    }

    fn line(&mut self) -> Result<Option<&'a [u8]>, ScanError> {
        let rest = self.rest();
        match memchr(b'\n', rest) {
            Some(end) if end > 0 && rest[end - 1] == b'\r' => {
                self.position += end + 1;
                Ok(Some(&rest[..end - 1]))
            }
            Some(end) => Err(unexpected("a line that ends with CR LF", &rest[..end])),
            None if rest.len() > LINE_BYTES_MAX => Err(unexpected("the end of a line", rest)),
            None => Ok(None),
        }
    }

    fn bulk(&mut self) -> Result<Option<&'a [u8]>, ScanError> {
        let start = self.rest();
        let Some(length) = self.header(b'$')? else {
            return Ok(None);
        };
        if length > BULK_BYTES_MAX {
            return Err(unexpected("a bulk string's length", start));
        }
        let rest = self.rest();
        if rest.len() < length + 2 {
            return Ok(None);
        }
        if &rest[length..length + 2] != b"\r\n" {
            return Err(unexpected(
                "CR LF behind a bulk string",
                &rest[length..length + 2],
            ));
        }
        self.position += length + 2;
        Ok(Some(&rest[..length]))
    }
}

fn number(text: &[u8]) -> Result<i64, ScanError> {
    let (negative, digits) = match text.strip_prefix(b"-") {
        Some(digits) => (true, digits),
        None => (false, text),
    };
    if digits.is_empty() || digits.len() > 18 || !digits.iter().all(u8::is_ascii_digit) {
        return Err(unexpected("a number", text));
    }
    let value = digits
        .iter()
        .fold(0i64, |value, digit| value * 10 + i64::from(digit - b'0'));
    Ok(if negative { -value } else { value })
}

fn unexpected(expected: &'static str, found: &[u8]) -> ScanError {
    let shown = &found[..found.len().min(60)];
    ScanError {
        expected,
        found: String::from_utf8_lossy(shown).into_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const REPLIES: &[u8] = b"+D-1\r\n:42\r\n*-1\r\n*2\r\n*3\r\n$1\r\nq\r\n$2\r\nD1\r\n$4\r\na\r\nb\r\n\
        *3\r\n$1\r\nq\r\n$2\r\nD2\r\n$0\r\n\r\n*0\r\n-OOM full\r\n";

    fn expected() -> Vec<String> {
        vec![
            format!("{:?}", Event::Id(b"D-1")),
            format!("{:?}", Event::Number(42)),
            format!("{:?}", Event::Nothing),
            format!(
                "{:?}",
                Event::Job {
                    id: b"D1",
                    body: b"a\r\nb",
                    last: false
                }
            ),
            format!(
                "{:?}",
                Event::Job {
                    id: b"D2",
                    body: b"",
                    last: true
                }
            ),
            format!("{:?}", Event::Nothing),
            format!("{:?}", Event::Error(b"OOM full")),
        ]
    }

    fn scan(pieces: &[&[u8]]) -> Vec<String> {
        let (mut scanner, mut input, mut events) = (Scanner::default(), Vec::new(), Vec::new());
        for piece in pieces {
            input.extend_from_slice(piece);
            while let Some((event, length)) = scanner.next(&input).unwrap() {
                events.push(format!("{event:?}"));
                input.drain(..length);
            }
        }
        assert!(input.is_empty(), "nothing may be left over");
        events
    }

    #[test]
    fn replies_come_out_whole_however_they_are_cut() {
        assert_eq!(scan(&[REPLIES]), expected());
        for cut in 0..REPLIES.len() {
            assert_eq!(
                scan(&[&REPLIES[..cut], &REPLIES[cut..]]),
                expected(),
                "cut at {cut}"
            );
        }
        let bytes: Vec<&[u8]> = REPLIES.chunks(1).collect();
        assert_eq!(scan(&bytes), expected());
    }

    #[test]
    fn resp3_null_is_nothing() {
        assert_eq!(Scanner::default().next(b"_\r\n"), Ok(Some((Event::Nothing, 3))));
    }

    #[test]
    fn what_is_no_reply_is_refused() {
        let refused: [&[u8]; 12] = [
            b"\r\n",
            b"hello\r\n",
            b":12x\r\n",
            b":\r\n",
            b"+D-1\n",
            b"*-2\r\n",
            b"*1\r\n*2\r\n",
            b"*1\r\n*3\r\n$-5\r\n",
            b"*1\r\n*3\r\n:1\r\n",
            b"*1\r\n*3\rx",
            b"*1\r\n*3\r\n$99999999999",
            b"*1\r\n*3\r\n$1\r\nqXX$1\r\n",
        ];
        for bytes in refused {
            assert!(
                Scanner::default().next(bytes).is_err(),
                "{:?}",
                String::from_utf8_lossy(bytes)
            );
        }
        assert!(
            Scanner::default().next(&vec![b'+'; LINE_BYTES_MAX + 2]).is_err(),
            "a line without end"
        );
    }
}
