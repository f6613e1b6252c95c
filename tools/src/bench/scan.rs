//! An incremental reader of just the replies a bench gets: IDs, numbers, jobs, nothing, errors.
//!
//! A general decoder costs more per job than the server under test may take, so this one allocates nothing
//! and hands out slices of the input. It is resumable: the input holds any number of replies, the last one
//! cut anywhere. The unit it waits for is one job, not a whole array of jobs, so what is scanned twice stays
//! small. Everything it does not expect is an error, never a guess.
//!
//! Redis' replies differ from Disque's in two elements only: a bulk string is a job for a list and an ID for a
//! stream, and an array of a stream holds streams, which hold their entries. What beanstalkd says is read in
//! `lines`.

use memchr::memchr;

use super::lines;
use super::target::Target;

/// Longest line (ID, number, error text, length) a server may send.
const LINE_BYTES_MAX: usize = 64 * 1024;

/// Largest bulk string a server may send, the protocol's own limit.
pub(super) const BULK_BYTES_MAX: usize = 512 * 1024 * 1024;

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
    /// beanstalkd adds to another tube from here on.
    Using,
    /// A job; `last` when the reply ends with it.
    Job {
        /// The number of its queue, where the acknowledgement needs it (streams); else 0.
        queue: u32,
        /// Its ID; a Redis list knows a job by its body.
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
#[derive(Debug)]
pub struct Scanner {
    target: Target,
    jobs_left: usize,
    /// Streams of the reply that have not begun.
    streams_left: usize,
    /// Number of the stream whose entries come.
    stream: u32,
}

impl Scanner {
    /// A scanner of a target's replies.
    pub fn new(target: Target) -> Self {
        Self {
            target,
            jobs_left: 0,
            streams_left: 0,
            stream: 0,
        }
    }

    /// Reads the next event at the start of `input`: the event and the bytes it took, or `None` when it is
    /// cut off.
    ///
    /// The caller drops the bytes taken before the next call; after `None` it calls again with more behind
    /// them.
    pub fn next<'a>(&mut self, input: &'a [u8]) -> Result<Option<(Event<'a>, usize)>, ScanError> {
        let mut cursor = Cursor { input, position: 0 };
        if self.target == Target::Beanstalkd {
            return lines::next(cursor);
        }
        if self.jobs_left > 0 || self.streams_left > 0 {
            return self.job(cursor);
        }
        if input.first() == Some(&b'$')
            && !matches!(self.target, Target::Shardq | Target::Disque)
            && !input.starts_with(b"$-")
        {
            return self.bulk(cursor);
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
        let left = if self.target == Target::RedisStream {
            &mut self.streams_left
        } else {
            &mut self.jobs_left
        };
        *left = jobs;
        let result = self.job(cursor);
        if !matches!(result, Ok(Some(_))) {
            (self.jobs_left, self.streams_left) = (0, 0);
        }
        result
    }

    /// A bulk string that is a whole reply.
    fn bulk<'a>(&self, mut cursor: Cursor<'a>) -> Result<Option<(Event<'a>, usize)>, ScanError> {
        let start = cursor.rest();
        let Some(bytes) = cursor.bulk()? else {
            return Ok(None);
        };
        let event = match self.target {
            Target::RedisList => Event::Job {
                queue: 0,
                id: bytes,
                body: bytes,
                last: true,
            },
            Target::RedisStream | Target::Echo => Event::Id(bytes),
            _ => return Err(unexpected("an ID, a number or jobs", start)),
        };
        Ok(Some((event, cursor.position)))
    }

    fn job<'a>(&mut self, cursor: Cursor<'a>) -> Result<Option<(Event<'a>, usize)>, ScanError> {
        match self.target {
            Target::Shardq | Target::Disque => self.disque_job(cursor),
            Target::RedisStream => self.entry(cursor),
            _ => Err(unexpected("no array", cursor.rest())),
        }
    }

    /// An entry of a stream, with the stream's header in front of its first one.
    fn entry<'a>(&mut self, mut cursor: Cursor<'a>) -> Result<Option<(Event<'a>, usize)>, ScanError> {
        let (mut streams, mut entries, mut stream) = (self.streams_left, self.jobs_left, self.stream);
        if entries == 0 {
            let start = cursor.rest();
            let Some(()) = cursor.array_of(2, "a stream of name and entries")? else {
                return Ok(None);
            };
            let Some(name) = cursor.bulk()? else {
                return Ok(None);
            };
            let Some(number) = cursor.header(b'*')? else {
                return Ok(None);
            };
            if number == 0 {
                return Err(unexpected("a stream with entries", start));
            }
            (streams, entries, stream) = (streams - 1, number, queue_number(name)?);
        }
        let Some(()) = cursor.array_of(2, "an entry of ID and fields")? else {
            return Ok(None);
        };
        let Some(id) = cursor.bulk()? else { return Ok(None) };
        let Some(()) = cursor.array_of(2, "one field")? else {
            return Ok(None);
        };
        let Some(_field) = cursor.bulk()? else {
            return Ok(None);
        };
        let Some(body) = cursor.bulk()? else {
            return Ok(None);
        };
        (self.streams_left, self.jobs_left, self.stream) = (streams, entries - 1, stream);
        let job = Event::Job {
            queue: stream,
            id,
            body,
            last: self.streams_left == 0 && self.jobs_left == 0,
        };
        Ok(Some((job, cursor.position)))
    }

    fn disque_job<'a>(&mut self, mut cursor: Cursor<'a>) -> Result<Option<(Event<'a>, usize)>, ScanError> {
        let Some(()) = cursor.array_of(3, "a job of queue, ID and body")? else {
            return Ok(None);
        };
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
                queue: 0,
                id,
                body,
                last: self.jobs_left == 0,
            },
            cursor.position,
        )))
    }
}

/// The number that a queue's name ends with.
fn queue_number(name: &[u8]) -> Result<u32, ScanError> {
    let digits = name.rsplit(|byte| *byte == b'-').next().unwrap_or_default();
    let number = self::number(digits)?;
    u32::try_from(number).map_err(|_| unexpected("a queue of the load", name))
}

/// A reader's place in bytes that may end anywhere.
pub(super) struct Cursor<'a> {
    input: &'a [u8],
    /// Bytes read.
    pub(super) position: usize,
}

impl<'a> Cursor<'a> {
    fn rest(&self) -> &'a [u8] {
        &self.input[self.position..]
    }

    /// The header of an array of just so many elements, `None` if it is cut off.
    fn array_of(&mut self, elements: usize, expected: &'static str) -> Result<Option<()>, ScanError> {
        let start = self.rest();
        match self.header(b'*')? {
            Some(number) if number == elements => Ok(Some(())),
            Some(_) => Err(unexpected(expected, start)),
            None => Ok(None),
        }
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

    /// A line without its end, `None` if it is cut off.
    pub(super) fn line(&mut self) -> Result<Option<&'a [u8]>, ScanError> {
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
        self.bytes(length)
    }

    /// So many bytes and a line end, without the line end; `None` if they are cut off.
    pub(super) fn bytes(&mut self, length: usize) -> Result<Option<&'a [u8]>, ScanError> {
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

/// A decimal number.
pub(super) fn number(text: &[u8]) -> Result<i64, ScanError> {
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

/// The error for bytes that are not what was expected.
pub(super) fn unexpected(expected: &'static str, found: &[u8]) -> ScanError {
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
                    queue: 0,
                    id: b"D1",
                    body: b"a\r\nb",
                    last: false
                }
            ),
            format!(
                "{:?}",
                Event::Job {
                    queue: 0,
                    id: b"D2",
                    body: b"",
                    last: true
                }
            ),
            format!("{:?}", Event::Nothing),
            format!("{:?}", Event::Error(b"OOM full")),
        ]
    }

    fn scan(target: Target, pieces: &[&[u8]]) -> Vec<String> {
        let (mut scanner, mut input, mut events) = (Scanner::new(target), Vec::new(), Vec::new());
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

    fn assert_scans(target: Target, replies: &[u8], expected: &[String]) {
        assert_eq!(scan(target, &[replies]), expected);
        for cut in 0..replies.len() {
            let pieces = [&replies[..cut], &replies[cut..]];
            assert_eq!(scan(target, &pieces), expected, "cut at {cut}");
        }
        let bytes: Vec<&[u8]> = replies.chunks(1).collect();
        assert_eq!(scan(target, &bytes), expected);
    }

    fn job(queue: u32, id: &[u8], body: &[u8], last: bool) -> String {
        let job = Event::Job {
            queue,
            id,
            body,
            last,
        };
        format!("{job:?}")
    }

    #[test]
    fn replies_come_out_whole_however_they_are_cut() {
        assert_scans(Target::Shardq, REPLIES, &expected());
    }

    #[test]
    fn a_list_gives_bodies() {
        let expected = [
            job(0, b"a\r\nb", b"a\r\nb", true),
            format!("{:?}", Event::Nothing),
            format!("{:?}", Event::Nothing),
            format!("{:?}", Event::Number(3)),
        ];
        assert_scans(
            Target::RedisList,
            b"$4\r\na\r\nb\r\n$-1\r\n*-1\r\n:3\r\n",
            &expected,
        );
    }

    fn assert_refuses(target: Target, refused: &[&[u8]]) {
        for bytes in refused {
            assert!(Scanner::new(target).next(bytes).is_err(), "{bytes:?}");
        }
    }

    #[test]
    fn streams_give_entries_with_the_number_of_their_queue() {
        let replies = b"$3\r\n1-0\r\n*2\r\n*2\r\n$4\r\nq-12\r\n*2\r\n*2\r\n$3\r\n1-0\r\n*2\r\n$1\r\nb\r\n$1\r\nx\r\n\
            *2\r\n$3\r\n1-1\r\n*2\r\n$1\r\nb\r\n$1\r\ny\r\n*2\r\n$3\r\nq-3\r\n*1\r\n*2\r\n$3\r\n2-0\r\n*2\r\n$1\r\nb\r\n$1\r\nz\r\n*-1\r\n";
        let expected = [
            format!("{:?}", Event::Id(b"1-0")),
            job(12, b"1-0", b"x", false),
            job(12, b"1-1", b"y", false),
            job(3, b"2-0", b"z", true),
            format!("{:?}", Event::Nothing),
        ];
        assert_scans(Target::RedisStream, replies, &expected);
        let refused: [&[u8]; 4] = [
            b"*1\r\n*3\r\n",
            b"*1\r\n*2\r\n$3\r\nq-1\r\n*0\r\n",
            b"*1\r\n*2\r\n$3\r\nq-1\r\n*1\r\n*3\r\n",
            b"*1\r\n*2\r\n$3\r\nabc\r\n*1\r\n",
        ];
        assert_refuses(Target::RedisStream, &refused);
    }

    #[test]
    fn beanstalkd_speaks_in_lines() {
        let replies = b"USING q\r\nINSERTED 12\r\nRESERVED 7 4\r\na\r\nb\r\nTIMED_OUT\r\nDEADLINE_SOON\r\n\
            DELETED\r\nNOT_FOUND\r\nBURIED 3\r\n";
        let expected = [
            format!("{:?}", Event::Using),
            format!("{:?}", Event::Id(b"12")),
            job(0, b"7", b"a\r\nb", true),
            format!("{:?}", Event::Nothing),
            format!("{:?}", Event::Nothing),
            format!("{:?}", Event::Number(1)),
            format!("{:?}", Event::Number(0)),
            format!("{:?}", Event::Error(b"BURIED 3")),
        ];
        assert_scans(Target::Beanstalkd, replies, &expected);
        let refused: [&[u8]; 4] = [
            b"RESERVED 7\r\n",
            b"RESERVED 7 -1\r\n",
            b"RESERVED 7 1\r\nabc",
            b"hello\n",
        ];
        assert_refuses(Target::Beanstalkd, &refused);
    }

    #[test]
    fn resp3_null_is_nothing() {
        assert_eq!(
            Scanner::new(Target::Disque).next(b"_\r\n"),
            Ok(Some((Event::Nothing, 3)))
        );
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
                Scanner::new(Target::Disque).next(bytes).is_err(),
                "{:?}",
                String::from_utf8_lossy(bytes)
            );
        }
        assert!(
            Scanner::new(Target::Disque)
                .next(&vec![b'+'; LINE_BYTES_MAX + 2])
                .is_err(),
            "a line without end"
        );
    }
}
