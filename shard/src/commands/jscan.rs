//! JSCAN: list the jobs, a page at a time.
//!
//! `JSCAN [cursor] [COUNT n] [BUSYLOOP] [QUEUE q] [STATE s]... [REPLY all|id]` answers the next cursor, 0 at the end, and IDs, or with REPLY all
//! what SHOW answers for each. States are alternatives. The rest is as for QSCAN; so
//! BUSYLOOP and a large COUNT too get at most about 2 MiB (`limits::REPLY_BYTES`) at a time, then a cursor.

use super::Plan;
use super::qscan::{Scan, ScanOf, parse_words};
use super::view::JobState;
use crate::core::Core;
use crate::error::CommandError;
use crate::home::{Job, Queue};
use crate::session::Session;
use crate::slot::Slot;
use crate::wire::{Args, Blob};

/// Which jobs, and how they are shown.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Filter {
    /// Of this queue.
    pub queue: Option<Blob>,
    /// In one of these states; empty: in any.
    pub states: Vec<JobState>,
    /// Whole jobs rather than IDs.
    pub reply_all: bool,
}

impl Filter {
    /// Whether a job is listed.
    pub(crate) fn admits(&self, job: &Job, queue: &Queue) -> bool {
        let state_fits = self.states.is_empty() || self.states.contains(&job.state());
        state_fits && self.queue.as_ref().is_none_or(|name| *name == queue.name)
    }

    /// The slot of the queue that is asked for.
    pub fn slot(&self) -> Option<Slot> {
        self.queue.as_ref().map(|name| Slot::of_queue(name))
    }
}

/// Grammar.
pub fn plan(_core: &Core, _session: &Session, args: &Args<'_>) -> Result<Plan, CommandError> {
    parse(args).map(Plan::Scan)
}

fn parse(args: &Args<'_>) -> Result<Scan, CommandError> {
    let mut filter = Filter::default();
    let paging = parse_words(args, |word, value| {
        match word {
            b"queue" => filter.queue = Some(Blob::copy_from(value()?)),
            b"state" => {
                let state = JobState::parse(value()?).ok_or(CommandError::other("unknown job state"))?;
                if !filter.states.contains(&state) {
                    filter.states.push(state);
                }
            }
            b"reply" => {
                filter.reply_all = match value()?.to_ascii_lowercase().as_slice() {
                    b"all" => true,
                    b"id" => false,
                    _ => return Err(CommandError::other("REPLY is all or id")),
                };
            }
            _ => return Ok(false),
        }
        Ok(true)
    })?;
    Ok(paging.of(ScanOf::Jobs(filter)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::testing::with_args;

    fn parse_words(words: &str) -> Result<Filter, CommandError> {
        let words: Vec<&str> = ["JSCAN"].into_iter().chain(words.split(' ')).collect();
        with_args(&words, |args| parse(&args)).map(|scan| match scan.of {
            ScanOf::Jobs(filter) => filter,
            ScanOf::Queues(_) => panic!("JSCAN is about jobs"),
        })
    }

    #[test]
    fn filters() {
        let filter = parse_words("STATE queued 0 queue COUNT STATE Active state QUEUED reply ALL").unwrap();
        assert_eq!(filter.queue, Some(Blob::from("COUNT")));
        assert_eq!(filter.states, [JobState::Queued, JobState::Active]);
        assert!(filter.reply_all && !parse_words("REPLY all REPLY id").unwrap().reply_all);
    }

    #[test]
    fn what_is_refused() {
        for words in ["STATE nonsense", "REPLY both", "nonsense"] {
            assert!(
                matches!(parse_words(words), Err(CommandError::Other(_))),
                "{words}"
            );
        }
        for words in ["STATE", "QUEUE", "0 1"] {
            assert_eq!(parse_words(words), Err(CommandError::Syntax), "{words}");
        }
    }
}
