//! NACK: the consumer could not do the jobs; queue them again, now.
//!
//! `NACK id [id ...]` answers how many were queued. It is ENQUEUE, but counts in `nacks` rather than in `additional-deliveries`.
//!
//! The reference refuses it with -OOM when memory is used up. Here it only moves jobs, which takes no memory, so it always runs.

use super::{IdVerb, Plan, ids};
use crate::clock::Mono;
use crate::core::Core;
use crate::error::CommandError;
use crate::home::{Entry, Home};
use crate::id::JobId;
use crate::message::Answer;
use crate::session::Session;
use crate::wire::Args;

/// Grammar.
pub fn plan(_core: &Core, _session: &Session, args: &Args<'_>) -> Result<Plan, CommandError> {
    ids::plan(IdVerb::Nack, args)
}

/// Queues the jobs.
pub(crate) fn apply(home: &mut Home, now: Mono, ids: &[JobId]) -> Answer {
    ids::enter(home, now, ids, |home, job| {
        home.enter(now, job, Entry::Nack);
        home.counters.nacked += 1;
    })
}
