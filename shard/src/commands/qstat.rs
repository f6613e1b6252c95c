//! QSTAT: describe a queue.
//!
//! `QSTAT queue` answers the ten fields of section 1.9 of the reference, or null when the queue does not exist. A queue exists from its
//! first job on, also when that is delayed, and as long as one of its jobs lives here. `QSTAT queue CLUSTER` answers a pair for each node that
//! lives, this one first: its ID and the fields there; an empty array when the queue does not exist there, null when it did not answer.

use super::view::QueueView;
use super::{Plan, Request, words};
use crate::clock::{Mono, SECOND_MS};
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
        request: match words::says_cluster(args, "qstat")? {
            true => Request::Stats(queue),
            false => Request::Stat(queue),
        },
    })
}

/// Describes the queue.
pub(crate) fn apply(home: &Home, now: Mono, name: &Blob) -> Answer {
    Answer::Queue(home.find_queue(name).map(|key| {
        let queue = home.queue(key);
        Box::new(QueueView {
            name: queue.name.clone(),
            length: queue.len(),
            age_s: now.since_ms(queue.created_at) / SECOND_MS,
            idle_s: now.since_ms(queue.touched_at) / SECOND_MS,
            blocked: queue.waiters.len() as u64,
            jobs_in: queue.jobs_in,
            jobs_out: queue.jobs_out,
            pause: queue.pause,
        })
    }))
}
