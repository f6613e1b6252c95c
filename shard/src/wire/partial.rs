//! A request that arrives in pieces: what was received of it, and where it goes on.
//!
//! ```text
//! Count -> Length -> Body, LargeBody -> Terminator -> Length ... -> Complete
//! InlineLine ----------------------------------------------------> Complete
//! ```
//!
//! What must hold: every byte is looked at and copied a bounded number of times, however small the pieces are;
//! memory follows what was received (a large argument's buffer doubles up to its announced size, and is then
//! shared as it is).

use bytes::Bytes;

use super::request::Span;
use super::whole::{self, Cut, Next, TERMINATOR_BYTES};
use super::{LARGE_ARGUMENT_BYTES, ProtocolError, RequestLimits, inline};
use crate::limits::MAX_LINE_BYTES;

/// First size of a large argument's buffer.
const FIRST_GROWTH_BYTES: usize = 1024;

/// The received part of one request. Its spans are kept by the parser.
pub(super) struct Partial {
    stage: Stage,
    missing_arguments: usize,
    /// Bytes of the request that were read, framing included.
    read_bytes: usize,
    line: LengthLine,
    /// The arguments below `LARGE_ARGUMENT_BYTES`, one after the other; or the inline line.
    text: Vec<u8>,
    large: Vec<Bytes>,
    large_bytes: usize,
    /// The large argument under way.
    growing: Vec<u8>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Stage {
    Count,
    Length,
    /// An argument that goes to the text, from `start` on.
    Body {
        start: usize,
        missing_bytes: usize,
    },
    LargeBody {
        missing_bytes: usize,
    },
    Terminator {
        missing_bytes: usize,
    },
    InlineLine,
    Complete,
}

impl Partial {
    /// Takes over a multibulk request where the scan of `frame` stopped; the spans of the frame become spans of
    /// what is kept here.
    pub fn of_multibulk(frame: &[u8], cut: Cut, spans: &mut [Span]) -> Self {
        let mut partial = Self {
            missing_arguments: cut.missing_arguments,
            ..Self::at(Stage::Count)
        };
        partial.read_bytes = cut.at;
        for span in spans.iter_mut() {
            *span = partial.keep(span.of(frame, &[]));
        }
        match cut.next {
            Next::Count => {}
            Next::Length => partial.stage = Stage::Length,
            Next::Body(bytes) => partial.begin_body(bytes),
        }
        partial
    }

    /// An inline request of which nothing was read yet.
    pub fn of_inline() -> Self {
        Self::at(Stage::InlineLine)
    }

    /// A whole inline line whose arguments are not slices of it.
    pub fn of_quoted_line(line: &[u8], spans: &mut Vec<Span>) -> Result<Self, ProtocolError> {
        let mut partial = Self::at(Stage::Complete);
        inline::split_quoted(line, &mut partial.text, spans)?;
        Ok(partial)
    }

    /// Takes what belongs to this request off the front of `input`.
    pub fn feed(
        &mut self,
        input: &mut &[u8],
        spans: &mut Vec<Span>,
        limits: &RequestLimits,
    ) -> Result<(), ProtocolError> {
        while !self.is_complete() && !input.is_empty() {
            self.step(input, spans, limits)?;
        }
        Ok(())
    }

    /// Whether all of it is there.
    pub fn is_complete(&self) -> bool {
        self.stage == Stage::Complete
    }

    /// The small arguments and the large ones, which the spans refer to.
    pub fn parts(&self) -> (&[u8], &[Bytes]) {
        (&self.text, &self.large)
    }

    /// Memory that this request holds.
    pub fn held_bytes(&self) -> usize {
        size_of::<Self>()
            + self.text.capacity()
            + self.growing.capacity()
            + self.large_bytes
            + self.large.capacity() * size_of::<Bytes>()
    }

    fn at(stage: Stage) -> Self {
        Self {
            stage,
            missing_arguments: 0,
            read_bytes: 0,
            line: LengthLine::EMPTY,
            text: Vec::new(),
            large: Vec::new(),
            large_bytes: 0,
            growing: Vec::new(),
        }
    }

    /// Reads from `input`, which has at least one byte, as far as the stage goes.
    fn step(
        &mut self,
        input: &mut &[u8],
        spans: &mut Vec<Span>,
        limits: &RequestLimits,
    ) -> Result<(), ProtocolError> {
        match self.stage {
            Stage::Count => self.read_count(input, limits)?,
            Stage::Length => self.read_length(input, limits)?,
            Stage::Body { start, missing_bytes } => self.read_body(input, start, missing_bytes, spans),
            Stage::LargeBody { missing_bytes } => self.read_large_body(input, missing_bytes, spans),
            Stage::Terminator { missing_bytes } => self.skip_terminator(input, missing_bytes),
            Stage::InlineLine => self.read_inline(input, spans, limits)?,
            Stage::Complete => unreachable!("a complete request was fed"),
        }
        Ok(())
    }

    fn read_count(&mut self, input: &mut &[u8], limits: &RequestLimits) -> Result<(), ProtocolError> {
        if self.read_line(input, ProtocolError::CountLineTooBig)? {
            self.missing_arguments = whole::argument_count(self.line.text(), limits)?;
            self.begin_argument();
        }
        Ok(())
    }

    fn read_length(&mut self, input: &mut &[u8], limits: &RequestLimits) -> Result<(), ProtocolError> {
        if self.read_line(input, ProtocolError::LengthLineTooBig)? {
            let bytes = whole::bulk_bytes(self.line.text(), self.read_bytes, limits)?;
            self.begin_body(bytes);
        }
        Ok(())
    }

    fn read_line(&mut self, input: &mut &[u8], too_big: ProtocolError) -> Result<bool, ProtocolError> {
        let before = input.len();
        let ended = self.line.feed(input);
        self.read_bytes += before - input.len();
        if self.line.bytes > MAX_LINE_BYTES {
            Err(too_big)
        } else {
            Ok(ended)
        }
    }

    fn begin_argument(&mut self) {
        self.line = LengthLine::EMPTY;
        self.stage = if self.missing_arguments == 0 {
            Stage::Complete
        } else {
            Stage::Length
        };
    }

    fn begin_body(&mut self, bytes: usize) {
        self.stage = if bytes < LARGE_ARGUMENT_BYTES {
            Stage::Body {
                start: self.text.len(),
                missing_bytes: bytes,
            }
        } else {
            Stage::LargeBody { missing_bytes: bytes }
        };
    }

    fn read_body(&mut self, input: &mut &[u8], start: usize, missing_bytes: usize, spans: &mut Vec<Span>) {
        let part = self.take(input, missing_bytes);
        self.text.extend_from_slice(part);
        if part.len() < missing_bytes {
            self.stage = Stage::Body {
                start,
                missing_bytes: missing_bytes - part.len(),
            };
        } else {
            self.end_body(Span::text(start, self.text.len() - start), spans);
        }
    }

    fn read_large_body(&mut self, input: &mut &[u8], missing_bytes: usize, spans: &mut Vec<Span>) {
        let part = self.take(input, missing_bytes);
        let announced = self.growing.len() + missing_bytes;
        let needed = self.growing.len() + part.len();
        if needed > self.growing.capacity() {
            let target = announced.min(FIRST_GROWTH_BYTES.max(needed * 2));
            self.growing.reserve_exact(target - self.growing.len());
        }
        self.growing.extend_from_slice(part);
        if part.len() < missing_bytes {
            self.stage = Stage::LargeBody {
                missing_bytes: missing_bytes - part.len(),
            };
        } else {
            let body = std::mem::take(&mut self.growing);
            let span = self.keep_large(body.into());
            self.end_body(span, spans);
        }
    }

    fn end_body(&mut self, span: Span, spans: &mut Vec<Span>) {
        spans.push(span);
        self.stage = Stage::Terminator {
            missing_bytes: TERMINATOR_BYTES,
        };
    }

    fn skip_terminator(&mut self, input: &mut &[u8], missing_bytes: usize) {
        let missing_bytes = missing_bytes - self.take(input, missing_bytes).len();
        if missing_bytes > 0 {
            self.stage = Stage::Terminator { missing_bytes };
        } else {
            self.missing_arguments -= 1;
            self.begin_argument();
        }
    }

    fn read_inline(
        &mut self,
        input: &mut &[u8],
        spans: &mut Vec<Span>,
        limits: &RequestLimits,
    ) -> Result<(), ProtocolError> {
        let newline = input.iter().position(|byte| *byte == b'\n');
        let part = self.take(input, newline.unwrap_or(input.len()));
        if self.text.len() + part.len() > limits.max_inline_bytes {
            return Err(ProtocolError::InlineTooBig);
        }
        self.text.extend_from_slice(part);
        if newline.is_none() {
            return Ok(());
        }
        self.take(input, 1);
        self.stage = Stage::Complete;
        let line = std::mem::take(&mut self.text);
        inline::split_quoted(inline::strip_return(&line), &mut self.text, spans)
    }

    fn take<'a>(&mut self, input: &mut &'a [u8], most: usize) -> &'a [u8] {
        let (part, rest) = input.split_at(most.min(input.len()));
        *input = rest;
        self.read_bytes += part.len();
        part
    }

    fn keep(&mut self, argument: &[u8]) -> Span {
        if argument.len() >= LARGE_ARGUMENT_BYTES {
            return self.keep_large(Bytes::copy_from_slice(argument));
        }
        let start = self.text.len();
        self.text.extend_from_slice(argument);
        Span::text(start, argument.len())
    }

    fn keep_large(&mut self, argument: Bytes) -> Span {
        self.large_bytes += argument.len();
        self.large.push(argument);
        Span::large(self.large.len() - 1)
    }
}

/// The line of a count or a length. All of it is counted; what a number can never reach is not kept.
struct LengthLine {
    kept: [u8; Self::KEPT_BYTES],
    bytes: usize,
    returned: bool,
}

impl LengthLine {
    /// Longer than any valid line, which has a mark and at most 20 characters.
    const KEPT_BYTES: usize = 24;
    const EMPTY: Self = Self {
        kept: [0; Self::KEPT_BYTES],
        bytes: 0,
        returned: false,
    };

    /// Takes from `input` what belongs to the line: up to a CR, and one byte behind it. True at the end.
    fn feed(&mut self, input: &mut &[u8]) -> bool {
        if !self.returned {
            let end = input.iter().position(|byte| *byte == b'\r');
            let (part, rest) = input.split_at(end.unwrap_or(input.len()));
            let room = self.kept.get_mut(self.bytes..).unwrap_or_default();
            let kept = room.len().min(part.len());
            room[..kept].copy_from_slice(&part[..kept]);
            self.bytes += part.len();
            self.returned = end.is_some();
            *input = rest.get(1..).unwrap_or_default();
        }
        if self.returned && !input.is_empty() {
            *input = &input[1..];
            return true;
        }
        false
    }

    fn text(&self) -> &[u8] {
        &self.kept[..self.bytes.min(Self::KEPT_BYTES)]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_length_line_is_counted_but_not_kept() {
        let mut line = LengthLine::EMPTY;
        for _ in 0..1000 {
            assert!(!line.feed(&mut b"12345".as_slice()));
        }
        assert!(!line.feed(&mut b"\r".as_slice()));
        let mut rest = b"\nnext".as_slice();
        assert!(line.feed(&mut rest));
        assert_eq!((line.bytes, rest), (5000, b"next".as_slice()));
        assert_eq!(line.text(), b"123451234512345123451234");
    }

    #[test]
    fn a_large_argument_grows_with_what_was_received() {
        let header = b"*1\r\n$536870912\r\n";
        let (mut partial, mut spans) = (Partial::at(Stage::Count), Vec::new());
        let mut feed = |mut input: &[u8]| {
            assert_eq!(partial.feed(&mut input, &mut spans, &RequestLimits::FULL), Ok(()));
            partial.held_bytes()
        };
        let start = feed(header);
        assert!(start < 512, "{start}");
        assert!(feed(b"x") <= start + FIRST_GROWTH_BYTES);
        assert!(feed(&[b'x'; 100_000]) <= start + 200_002);
    }
}
