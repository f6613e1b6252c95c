//! ENQUEUE: queue the jobs now.
//!
//! `ENQUEUE id [id ...]` answers how many active jobs were queued. An at-most-once job may be queued as long as it was not handed out
//! (weakness 4 of the reference). Jobs of queues that are paused in are skipped (`sessions.md`).
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
    ids::plan(IdVerb::Enqueue, args)
}

/// Queues the jobs.
pub(crate) fn apply(home: &mut Home, now: Mono, ids: &[JobId]) -> Answer {
    ids::enter(home, now, ids, |home, job| {
        home.enter(now, job, Entry::Asked);
        home.counters.enqueued += 1;
    })
}
