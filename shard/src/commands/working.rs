//! WORKING: the consumer needs more time.
//!
//! `WORKING id` restarts the lease and answers RETRY in seconds. Refused when the job is not here (`-NOJOB`) and in the
//! second half of its life (`-TOOLATE`), counted from its arrival here (weakness 7 of the reference). A queued job is
//! taken out of its queue; but not an at-most-once one, which nothing would bring back (weakness 4).

use super::{Plan, Request, ids};
use crate::clock::{Mono, SECOND_MS};
use crate::core::Core;
use crate::error::CommandError;
use crate::home::Home;
use crate::id::JobId;
use crate::message::Answer;
use crate::session::Session;
use crate::wire::Args;

/// Grammar.
pub fn plan(_core: &Core, _session: &Session, args: &Args<'_>) -> Result<Plan, CommandError> {
    let id = ids::parse_id(&args[1])?;
    Ok(Plan::Home {
        slot: id.slot(),
        request: Request::Working(id),
    })
}

/// Restarts the lease.
pub(crate) fn apply(home: &mut Home, now: Mono, id: JobId) -> Answer {
    let Some(key) = home.find_job(now, &id) else {
        return Answer::Error(CommandError::NoJob);
    };
    let job = home.job(key);
    let (life_ms, retry_s) = (u64::from(job.ttl_s) * SECOND_MS, job.retry_s);
    let elapsed_ms = life_ms.saturating_sub(job.expires_at.since_ms(now));
    if elapsed_ms > life_ms / 2 {
        return Answer::Error(CommandError::TooLate);
    }
    if retry_s > 0 {
        if job.is_queued() {
            home.dequeue(now, key);
        } else {
            home.postpone(now, key);
        }
        home.counters.postponed += 1;
    }
    Answer::Count(i64::from(retry_s))
}
