//! QPEEK: look at the jobs of a queue without taking them.
//!
//! `QPEEK queue count` answers up to count jobs, oldest first; with a negative count newest first. Those that are
//! reserved for a GETJOB stand in their place. Long answers are gathered in steps.

use super::Plan;
use super::view::QueuePosition;
use crate::clock::Mono;
use crate::core::Core;
use crate::error::CommandError;
use crate::home::Home;
use crate::message::Answer;
use crate::session::Session;
use crate::wire::number::parse_i64;
use crate::wire::{Args, Blob};

/// A step of QPEEK.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Peek {
    /// The queue.
    pub queue: Blob,
    /// How many more; negative: from the newest on.
    pub count: i64,
    /// Where the last step ended: behind this job, in the direction of the walk.
    pub after: Option<QueuePosition>,
}

/// Grammar.
pub fn plan(_core: &Core, _session: &Session, args: &Args<'_>) -> Result<Plan, CommandError> {
    let count = parse_i64(&args[2]).ok_or(CommandError::NotAnInteger)?;
    Ok(Plan::Peek(Peek {
        queue: args.blob(1),
        count,
        after: None,
    }))
}

/// Looks.
pub(crate) fn apply(home: &Home, now: Mono, peek: &Peek) -> Answer {
    home.peek(now, peek)
}
