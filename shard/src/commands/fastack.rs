//! FASTACK: the jobs are done, and nobody is waited for.
//!
//! `FASTACK id [id ...]` answers how many were here. Other nodes are told once, best effort; on a node without peers it is ACKJOB.

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
    ids::plan(IdVerb::FastAcknowledge, args)
}

/// Removes the jobs.
pub(crate) fn apply(home: &mut Home, now: Mono, ids: &[JobId]) -> Answer {
    let unknown = home.unknown_of(now, ids);
    home.delete_elsewhere(unknown);
    Answer::Count(ids::count(home, now, ids, |home, job| {
        home.acknowledge_fast(job);
        home.counters.fast_acknowledged += 1;
        true
    }))
}
