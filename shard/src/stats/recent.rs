//! The first requests of the present input, cut as the slow log shows them.
//!
//! Whether they were slow is known only when the input has been handled, and its bytes are gone by then. Copying what an
//! entry would show costs less than reading the clock for each command; of a longer pipeline the rest is left out: such an
//! input is slow as a whole.

use smallvec::SmallVec;

use super::slowlog::pieces;
use crate::commands::redact;
use crate::commands::table::COMMANDS;
use crate::wire::{Args, Blob};

/// Requests kept.
const MAX_REQUESTS: usize = 4;

/// The requests.
#[derive(Debug, Default)]
pub(super) struct Recent {
    text: Vec<u8>,
    requests: Vec<Request>,
    /// Requests that were kept at first: those that wait were forgotten since.
    copied: usize,
    /// Requests that were not kept.
    skipped: usize,
}

#[derive(Debug)]
struct Request {
    command: u8,
    /// Where each argument ends in `text`.
    ends: SmallVec<[u32; 8]>,
    start: u32,
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
        let name = COMMANDS[usize::from(command)].name;
        let start = self.text.len() as u32;
        let mut ends = SmallVec::new();
        for piece in pieces(args.len(), |at| redact::visible(name, |at| args.get(at), at)) {
            piece.write(&mut self.text);
            ends.push(self.text.len() as u32);
        }
        self.requests.push(Request { command, ends, start });
    }

    pub fn forget_last(&mut self) {
        if self.skipped > 0 {
            self.skipped -= 1;
        } else if let Some(request) = self.requests.pop() {
            self.text.truncate(request.start as usize);
        }
    }

    /// The command of the first request.
    pub fn first_command(&self) -> Option<u8> {
        self.requests.first().map(|request| request.command)
    }

    /// The arguments of each.
    pub fn requests(&self) -> impl Iterator<Item = Vec<Blob>> {
        self.requests.iter().map(|request| {
            let starts = std::iter::once(&request.start).chain(&request.ends);
            starts
                .zip(&request.ends)
                .map(|(&start, &end)| self.text[start as usize..end as usize].into())
                .collect()
        })
    }

    pub fn clear(&mut self) {
        self.text.clear();
        self.requests.clear();
        self.copied = 0;
        self.skipped = 0;
    }
}
