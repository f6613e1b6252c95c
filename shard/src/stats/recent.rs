//! The first requests of the present input, cut as the slow log shows them.
//!
//! Whether they were slow is known only when the input has been handled, and its bytes are gone by then. Copying what an
//! entry would show costs less than reading the clock for each command; of a longer pipeline the rest is left out: such an
//! input is slow as a whole.

use super::slowlog::{self, pieces};
use crate::commands::redact;
use crate::commands::table::COMMANDS;
use crate::wire::{Args, Blob, Span};

/// Requests kept.
const MAX_REQUESTS: usize = 4;
/// Longest request that is kept as it was sent; of a longer one is kept what an entry shows.
const SHORT_BYTES: usize = 1024;

/// The requests.
#[derive(Debug, Default)]
pub(super) struct Recent {
    text: Vec<u8>,
    /// Where the arguments are, each in its request's part of the text.
    spans: Vec<Span>,
    requests: Vec<Request>,
    /// Requests that were kept at first: those that wait were forgotten since.
    copied: usize,
    /// Requests that were not kept.
    skipped: usize,
}

#[derive(Debug)]
struct Request {
    command: u8,
    /// Whether its arguments are cut and without secrets already.
    is_shown: bool,
    /// Where it begins in `text` and in `spans`.
    text_at: usize,
    spans_at: usize,
}

impl Recent {
    #[inline]
    pub fn keep(&mut self, command: u8, args: Args<'_>) {
        if self.copied == MAX_REQUESTS {
            self.skipped += 1;
        } else {
            self.copied += 1;
            self.copy(command, args);
        }
    }

    fn copy(&mut self, command: u8, args: Args<'_>) {
        let (text_at, spans_at) = (self.text.len(), self.spans.len());
        let short = args.as_sent(slowlog::MAX_ARGUMENTS, SHORT_BYTES);
        match short {
            Some((text, spans)) => {
                self.text.extend_from_slice(text);
                self.spans.extend_from_slice(spans);
            }
            None => self.copy_shown(command, args),
        }
        self.requests.push(Request {
            command,
            is_shown: short.is_none(),
            text_at,
            spans_at,
        });
    }

    fn copy_shown(&mut self, command: u8, args: Args<'_>) {
        let begin = self.text.len();
        for piece in shown(command, &args) {
            let start = self.text.len();
            piece.write(&mut self.text);
            self.spans
                .push(Span::text(start - begin, self.text.len() - start));
        }
    }

    pub fn forget_last(&mut self) {
        if self.skipped > 0 {
            self.skipped -= 1;
        } else if let Some(request) = self.requests.pop() {
            self.text.truncate(request.text_at);
            self.spans.truncate(request.spans_at);
        }
    }

    /// The command of the first request.
    pub fn first_command(&self) -> Option<u8> {
        self.requests.first().map(|request| request.command)
    }

    /// The arguments of each, as an entry shows them.
    pub fn requests(&self) -> impl Iterator<Item = Vec<Blob>> {
        let ends = self.requests.iter().skip(1).map(|next| next.spans_at);
        let ends = ends.chain([self.spans.len()]);
        self.requests.iter().zip(ends).map(|(request, spans_end)| {
            let spans = &self.spans[request.spans_at..spans_end];
            let args = Args::of_copy(&self.text[request.text_at..], spans);
            if request.is_shown {
                args.iter().map(Blob::copy_from).collect()
            } else {
                shown(request.command, &args).map(Blob::from).collect()
            }
        })
    }

    pub fn clear(&mut self) {
        self.text.clear();
        self.spans.clear();
        self.requests.clear();
        self.copied = 0;
        self.skipped = 0;
    }
}

/// What an entry shows of a request.
fn shown<'a>(command: u8, args: &Args<'a>) -> impl Iterator<Item = slowlog::Piece<'a>> {
    let (name, args) = (COMMANDS[usize::from(command)].name, *args);
    pieces(args.len(), move |at| redact::visible(name, |at| args.get(at), at))
}
