//! The resumable request parser.
//!
//! A session calls [`Parser::next`] until it gives None, and runs each request before it asks for the next:
//!
//! ```text
//! let before = input;
//! match parser.next(&mut input, limits)? {
//!     None => break,                        // all used up; what was incomplete is kept
//!     Some(request) => match start(request) {
//!         Started => {}
//!         StartedAndBlocked => { parser.stash(input); break }
//!         NotYet => { parser.put_back(before); break }
//!     },
//! }
//! ```
//!
//! While it is blocked it stashes newer input unparsed; afterwards it goes on with an empty input.
//!
//! Arguments lie in one of three places: in the input (whole there: no copy), in the backlog (stashed before), or
//! in a `Partial` (came in pieces). What must hold: at most one request is given at a time; a partial request is
//! older than the backlog, and the backlog older than the input. An idle parser holds a few hundred bytes at most.

use std::ops::Index;

use bytes::Bytes;

use super::partial::Partial;
use super::whole::{self, SHORT_ARGUMENTS, Scan};
use super::{Blob, ProtocolError, RequestLimits, inline};

/// Places for this many arguments are kept from one request to the next.
const KEPT_SPANS: usize = 32;

/// Reads the requests of one connection.
#[derive(Default)]
pub struct Parser {
    /// Where the arguments are, of the request given last or of the partial one; but for a short one.
    spans: Vec<Span>,
    /// Where the arguments of a short request are: most are short, and no vector grows for them.
    short: [Span; SHORT_ARGUMENTS],
    backlog: Backlog,
    partial: Option<Box<Partial>>,
    given: Given,
    failed: Option<ProtocolError>,
}

/// What `next` gave last.
#[derive(Clone, Copy, Default)]
enum Given {
    #[default]
    Nothing,
    /// A slice of the input, from `start` on: before it may be empty requests, or the end of one.
    Input { start: usize },
    /// So many bytes at the front of the backlog.
    Backlog { bytes: usize },
    /// The partial request, whose end took so many bytes of the input.
    Partial { input_bytes: usize },
    /// The partial request was put back: it is complete and comes next.
    Returned,
}

/// What reading from a source came to.
enum Found {
    /// The last so many bytes that were read.
    Frame {
        bytes: usize,
    },
    Partial,
}

/// Where the request that was found lies.
enum Place {
    Input { start: usize },
    Backlog,
    Partial,
}

impl Parser {
    /// A parser for a new connection.
    pub fn new() -> Self {
        Self::default()
    }

    /// The next complete request, or None when `input` (which is advanced) and what is kept are used up. Empty
    /// requests are skipped. After an error the connection is to be closed: the same error comes again.
    #[inline]
    pub fn next<'a, 'input: 'a>(
        &'a mut self,
        input: &mut &'input [u8],
        limits: &RequestLimits,
    ) -> Result<Option<Args<'a>>, ProtocolError> {
        let before = *input;
        match self.next_short(before, limits) {
            Some((count, bytes)) => {
                *input = &before[bytes..];
                Ok(Some(Args {
                    spans: &self.short[..count],
                    text: before,
                    large: &[],
                }))
            }
            None => self.next_of_any_kind(input, limits),
        }
    }

    /// The number of arguments and the bytes of a short request that stands whole at the front of the input, when nothing is before it.
    #[inline(never)] // so that a profile shows it: most of the parsing is here
    fn next_short(&mut self, input: &[u8], limits: &RequestLimits) -> Option<(usize, usize)> {
        let is_next = matches!(self.given, Given::Nothing | Given::Input { .. })
            && self.backlog.unread().is_empty()
            && self.partial.is_none()
            && self.failed.is_none();
        if !is_next {
            return None;
        }
        let found = whole::scan_short(input, &mut self.short, limits)?;
        self.forget_given();
        self.given = Given::Input { start: 0 };
        Some(found)
    }

    fn next_of_any_kind<'a, 'input: 'a>(
        &'a mut self,
        input: &mut &'input [u8],
        limits: &RequestLimits,
    ) -> Result<Option<Args<'a>>, ProtocolError> {
        if let Some(error) = self.failed {
            return Err(error);
        }
        let before = *input;
        match self.find(input, limits) {
            Ok(place) => Ok(place.map(|place| self.arguments(place, before))),
            Err(error) => {
                *self = Self {
                    failed: Some(error),
                    ..Self::new()
                };
                Err(error)
            }
        }
    }

    /// The request that `next` gave last could not be started: it comes again first. `before` is the input as
    /// it was before that call; all of it that is not used up is kept too.
    pub fn put_back(&mut self, before: &[u8]) {
        let unread = match self.given {
            Given::Input { start } => &before[start..],
            Given::Backlog { .. } => before,
            Given::Partial { input_bytes } => &before[input_bytes..],
            Given::Nothing | Given::Returned => panic!("no request to put back"),
        };
        self.backlog.append(unread);
        if let Given::Partial { .. } = self.given {
            self.given = Given::Returned;
        } else {
            self.given = Given::Nothing;
            self.spans.clear();
        }
    }

    /// Keeps input that must not be parsed yet, behind what is kept already. The request given last is done.
    pub fn stash(&mut self, input: &[u8]) {
        self.forget_given();
        if self.failed.is_none() {
            self.backlog.append(input);
        }
    }

    /// Memory that is held for this connection beyond the parser itself: it follows what was received.
    pub fn held_bytes(&self) -> usize {
        self.spans.capacity() * size_of::<Span>()
            + self.backlog.bytes.capacity()
            + self.partial.as_ref().map_or(0, |partial| partial.held_bytes())
    }

    fn find(&mut self, input: &mut &[u8], limits: &RequestLimits) -> Result<Option<Place>, ProtocolError> {
        if let Given::Returned = self.given {
            self.given = Given::Partial { input_bytes: 0 };
            return Ok(Some(Place::Partial));
        }
        self.forget_given();
        if !self.backlog.unread().is_empty()
            && let Some(place) = self.find_in_backlog(limits)?
        {
            return Ok(Some(place));
        }
        let input_bytes = input.len();
        let found = self.read(input, limits)?;
        let read_bytes = input_bytes - input.len();
        Ok(found.map(|found| match found {
            Found::Frame { bytes } => {
                let start = read_bytes - bytes;
                self.given = Given::Input { start };
                Place::Input { start }
            }
            Found::Partial => {
                self.given = Given::Partial {
                    input_bytes: read_bytes,
                };
                Place::Partial
            }
        }))
    }

    fn find_in_backlog(&mut self, limits: &RequestLimits) -> Result<Option<Place>, ProtocolError> {
        let mut backlog = std::mem::take(&mut self.backlog);
        let mut rest = backlog.unread();
        let found = self.read(&mut rest, limits)?;
        let unread_bytes = rest.len();
        let place = found.map(|found| match found {
            Found::Frame { bytes } => {
                backlog.keep_last(unread_bytes + bytes);
                self.given = Given::Backlog { bytes };
                Place::Backlog
            }
            Found::Partial => {
                backlog.keep_last(unread_bytes);
                self.given = Given::Partial { input_bytes: 0 };
                Place::Partial
            }
        });
        if place.is_some() {
            self.backlog = backlog;
        }
        Ok(place)
    }

    /// Reads from the front of one source until a request that is not empty is complete. None: it is used up.
    fn read(&mut self, source: &mut &[u8], limits: &RequestLimits) -> Result<Option<Found>, ProtocolError> {
        while let Some(first) = source.first() {
            if let Some(partial) = &mut self.partial {
                partial.feed(source, &mut self.spans, limits)?;
            } else {
                assert!(self.spans.is_empty(), "arguments of a request that is gone");
                let frame = *source;
                let read_bytes = match first {
                    b'*' => self.begin_multibulk(frame, limits)?,
                    _ => self.begin_inline(frame, limits)?,
                };
                *source = &frame[read_bytes..];
                if self.partial.is_none() && !self.spans.is_empty() {
                    return Ok(Some(Found::Frame { bytes: read_bytes }));
                }
            }
            if self.partial.as_ref().is_some_and(|partial| partial.is_complete()) {
                if !self.spans.is_empty() {
                    return Ok(Some(Found::Partial));
                }
                self.partial = None;
            }
        }
        Ok(None)
    }

    /// Reads a multibulk request as far as it is whole, and gives the bytes that are done with.
    fn begin_multibulk(&mut self, frame: &[u8], limits: &RequestLimits) -> Result<usize, ProtocolError> {
        match whole::scan(frame, &mut self.spans, limits)? {
            Scan::Whole(bytes) => Ok(bytes),
            Scan::Cut(cut) => {
                let read_bytes = cut.at;
                self.partial = Some(Box::new(Partial::of_multibulk(frame, cut, &mut self.spans)));
                Ok(read_bytes)
            }
        }
    }

    /// The same for an inline request.
    #[inline(never)]
    fn begin_inline(&mut self, frame: &[u8], limits: &RequestLimits) -> Result<usize, ProtocolError> {
        let Some(line_bytes) = frame
            .iter()
            .take(limits.max_inline_bytes + 1)
            .position(|byte| *byte == b'\n')
        else {
            self.partial = Some(Box::new(Partial::of_inline()));
            return Ok(0);
        };
        let line = inline::strip_return(&frame[..line_bytes]);
        if inline::has_quotes(line) {
            self.partial = Some(Box::new(Partial::of_quoted_line(line, &mut self.spans)?));
        } else {
            inline::split_plain(line, &mut self.spans);
        }
        Ok(line_bytes + 1)
    }

    /// The request given last is done with: its memory is freed.
    #[inline]
    fn forget_given(&mut self) {
        match self.given {
            Given::Nothing | Given::Returned => return,
            Given::Input { .. } => {}
            Given::Backlog { bytes } => self.backlog.skip(bytes),
            Given::Partial { .. } => self.partial = None,
        }
        self.given = Given::Nothing;
        self.spans.clear();
        self.spans.shrink_to(KEPT_SPANS);
    }

    fn arguments<'a>(&'a self, place: Place, before: &'a [u8]) -> Args<'a> {
        let (text, large) = match place {
            Place::Input { start } => (&before[start..], [].as_slice()),
            Place::Backlog => (self.backlog.unread(), [].as_slice()),
            Place::Partial => self
                .partial
                .as_ref()
                .expect("a partial request was found")
                .parts(),
        };
        Args {
            spans: &self.spans,
            text,
            large,
        }
    }
}

/// The arguments of one request, the command's name first: at least one.
#[derive(Clone, Copy)]
pub struct Args<'a> {
    spans: &'a [Span],
    text: &'a [u8],
    large: &'a [Bytes],
}

impl<'a> Args<'a> {
    /// How many there are, the name included.
    #[allow(clippy::len_without_is_empty)] // never empty
    pub fn len(&self) -> usize {
        self.spans.len()
    }

    /// The command's name, as sent.
    #[inline]
    pub fn name(&self) -> &'a [u8] {
        self.spans[0].of(self.text, self.large)
    }

    /// One argument; the name is number 0.
    #[inline]
    pub fn get(&self, at: usize) -> Option<&'a [u8]> {
        self.spans.get(at).map(|span| span.of(self.text, self.large))
    }

    /// All of them, the name first.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = &'a [u8]> + Clone + use<'a> {
        self.iter_from(0)
    }

    /// Those from number `first` on, none when there are not so many.
    pub fn iter_from(&self, first: usize) -> impl ExactSizeIterator<Item = &'a [u8]> + Clone + use<'a> {
        let Self { spans, text, large } = *self;
        let wanted = spans.get(first..).unwrap_or_default();
        wanted.iter().map(move |span| span.of(text, large))
    }

    /// The text as it was sent, up to the end of the last argument, and where the arguments are in it; `None` for a request of more arguments
    /// or bytes than these, or with a large argument.
    pub(crate) fn as_sent(&self, max_arguments: usize, max_bytes: usize) -> Option<(&'a [u8], &'a [Span])> {
        let last = self.spans.last().expect("a request has a name");
        let bytes = last.start as usize + last.bytes as usize;
        let is_short = self.large.is_empty() && self.spans.len() <= max_arguments && bytes <= max_bytes;
        is_short.then(|| (&self.text[..bytes], self.spans))
    }

    /// The request of which this is a copy.
    pub(crate) fn of_copy(text: &'a [u8], spans: &'a [Span]) -> Self {
        Self {
            spans,
            text,
            large: &[],
        }
    }

    /// One argument, to keep: copied, or shared when it was large and came in pieces. Panics if there is none.
    pub fn blob(&self, at: usize) -> Blob {
        let span = self.spans[at];
        match span.large_number() {
            Some(number) => Blob::from(self.large[number].clone()),
            None => Blob::copy_front(&self.text[span.start as usize..], span.bytes as usize),
        }
    }
}

impl Index<usize> for Args<'_> {
    type Output = [u8];

    #[inline]
    fn index(&self, at: usize) -> &[u8] {
        self.spans[at].of(self.text, self.large)
    }
}

/// Where one argument is: a piece of the text, or one of the large arguments.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Span {
    /// The top bit says that this is the number of a large argument.
    start: u32,
    bytes: u32,
}

impl Span {
    const LARGE: u32 = 1 << 31;
    /// In place of one that is not there yet.
    pub const NONE: Self = Self { start: 0, bytes: 0 };

    /// A piece of the text, at so small a place that no limit is near.
    #[inline]
    pub fn short(start: usize, bytes: usize) -> Self {
        Self {
            start: start as u32,
            bytes: bytes as u32,
        }
    }

    pub fn text(start: usize, bytes: usize) -> Self {
        assert!(start + bytes < Self::LARGE as usize, "a request beyond its limit");
        Self {
            start: start as u32,
            bytes: bytes as u32,
        }
    }

    pub fn large(number: usize) -> Self {
        assert!(number < Self::LARGE as usize, "a request beyond its limit");
        Self {
            start: Self::LARGE | number as u32,
            bytes: 0,
        }
    }

    #[inline]
    pub fn large_number(self) -> Option<usize> {
        (self.start & Self::LARGE != 0).then_some((self.start & !Self::LARGE) as usize)
    }

    #[inline]
    pub fn of<'a>(self, text: &'a [u8], large: &'a [Bytes]) -> &'a [u8] {
        match self.large_number() {
            Some(number) => &large[number],
            None => &text[self.start as usize..][..self.bytes as usize],
        }
    }
}

/// Input that waits to be parsed.
#[derive(Default)]
struct Backlog {
    bytes: Vec<u8>,
    read_bytes: usize,
}

impl Backlog {
    fn unread(&self) -> &[u8] {
        &self.bytes[self.read_bytes..]
    }

    fn append(&mut self, input: &[u8]) {
        // Moving the unread part down costs no more than reading the other did.
        if self.read_bytes >= self.bytes.len() - self.read_bytes {
            self.bytes.drain(..self.read_bytes);
            self.read_bytes = 0;
        }
        self.bytes.extend_from_slice(input);
    }

    fn skip(&mut self, bytes: usize) {
        self.read_bytes += bytes;
        if self.unread().is_empty() {
            *self = Self::default();
        }
    }

    fn keep_last(&mut self, bytes: usize) {
        self.skip(self.unread().len() - bytes);
    }
}
