//! ACKJOB: the jobs are done.
//!
//! `ACKJOB id [id ...]` answers how many were known here and not acknowledged before. On a node without peers nobody is
//! left to be told, so an acknowledged job is gone at once (reference, 5.1). In a cluster the others are told of an ID that is not known here, and
//! it does not count (`home/cluster/collection.rs`).

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
    let mut counted = 0;
    for id in ids {
        match home.find_job(now, id) {
            Some(job) => {
                home.acknowledge(now, job);
                home.counters.acknowledged += 1;
                counted += 1;
            }
            None => home.acknowledge_unknown(now, *id),
        }
    }
    Answer::Count(counted)
}
