//! ACKJOB: the jobs are done.
//!
//! `ACKJOB id [id ...]` answers how many were known here and not acknowledged before. On a node without peers nobody is
//! left to be told, so an acknowledged job is gone at once (reference, 5.1).

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
    ids::plan(IdVerb::Acknowledge, args)
}

/// Removes the jobs.
pub(crate) fn apply(home: &mut Home, now: Mono, ids: &[JobId]) -> Answer {
    Answer::Count(ids::count(home, now, ids, |home, job| {
        home.acknowledge(now, job);
        home.counters.acknowledged += 1;
        true
    }))
}
