//! QLEN: how many jobs a queue has.
//!
//! `QLEN queue` answers the number of its queued jobs, those included that are reserved for a GETJOB; 0 when it does not exist.

use super::{Plan, Request};
use crate::core::Core;
use crate::error::CommandError;
use crate::home::Home;
use crate::message::Answer;
use crate::session::Session;
use crate::slot::Slot;
use crate::wire::{Args, Blob};

/// Grammar.
pub fn plan(_core: &Core, _session: &Session, args: &Args<'_>) -> Result<Plan, CommandError> {
    Ok(Plan::Home {
        slot: Slot::of_queue(&args[1]),
        request: Request::Length(args.blob(1)),
    })
}

/// Counts.
pub(crate) fn apply(home: &Home, name: &Blob) -> Answer {
    Answer::Count(
        home.find_queue(name)
            .map_or(0, |queue| home.queue(queue).len() as i64),
    )
}
