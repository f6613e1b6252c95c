//! QLEN: how many jobs a queue has.
//!
//! `QLEN queue` answers the number of its queued jobs, those included that are reserved for a GETJOB; 0 when it does not exist.
//! `QLEN queue CLUSTER` answers a pair for each node that lives, this one first: its ID and the length there, null when it did not
//! answer.

use super::{Plan, Request, words};
use crate::core::Core;
use crate::error::CommandError;
use crate::home::Home;
use crate::message::Answer;
use crate::session::Session;
use crate::slot::Slot;
use crate::wire::{Args, Blob};

/// Grammar.
pub fn plan(_core: &Core, _session: &Session, args: &Args<'_>) -> Result<Plan, CommandError> {
    let queue = args.blob(1);
    Ok(Plan::Home {
        slot: Slot::of_queue(&args[1]),
        request: match words::says_cluster(args, "qlen")? {
            true => Request::Lengths(queue),
            false => Request::Length(queue),
        },
    })
}

/// Counts.
pub(crate) fn apply(home: &Home, name: &Blob) -> Answer {
    Answer::Count(
        home.find_queue(name)
            .map_or(0, |queue| home.queue(queue).len() as i64),
    )
}
