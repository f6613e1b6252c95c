//! DEQUEUE: take the jobs out of their queue, without handing them out.
//!
//! `DEQUEUE id [id ...]` answers how many were queued. They are active then and return after RETRY, counted from now; an
//! at-most-once job returns when ENQUEUE asks for it. A job that was reserved for a GETJOB is no longer.

use super::{IdVerb, Plan, ids};
use crate::clock::Mono;
use crate::core::Core;
use crate::error::CommandError;
use crate::home::Home;
use crate::id::JobId;
use crate::message::Answer;
use crate::session::Session;
use crate::wire::Args;

/// Grammar.
pub fn plan(_core: &Core, _session: &Session, args: &Args<'_>) -> Result<Plan, CommandError> {
    ids::plan(IdVerb::Dequeue, args)
}

/// Takes the jobs out.
pub(crate) fn apply(home: &mut Home, now: Mono, ids: &[JobId]) -> Answer {
    Answer::Count(ids::count(home, now, ids, |home, job| {
        let queued = home.job(job).is_queued();
        if queued {
            home.dequeue(now, job);
            home.counters.dequeued += 1;
        }
        queued
    }))
}
