//! DELJOB: forget the jobs on this node.
//!
//! `DELJOB id [id ...]` answers how many were here, in whatever state. `DELJOB id [id ...] CLUSTER` deletes them on all nodes that live, and
//! answers a pair for each, this one first: its ID and how many were there, null when it did not answer, or the text of its error.

use super::{IdVerb, Plan, ids, words};
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
    let last = args.len() - 1;
    match last > 1 && words::is(&args[last], "cluster") {
        true => ids::plan_until(last, IdVerb::DeleteEverywhere, args),
        false => ids::plan(IdVerb::Delete, args),
    }
}

/// Removes the jobs.
pub(crate) fn apply(home: &mut Home, now: Mono, ids: &[JobId]) -> Answer {
    Answer::Count(ids::count(home, now, ids, |home, job| {
        home.delete(job);
        home.counters.deleted += 1;
        true
    }))
}
