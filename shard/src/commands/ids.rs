//! What the commands about IDs have in common: all IDs are checked before anything is done (reference, 1.4), and each is
//! handled on its own, in order, doubles too.

use smallvec::SmallVec;

use super::{IdVerb, Plan};
use crate::clock::Mono;
use crate::error::CommandError;
use crate::home::Home;
use crate::id::JobId;
use crate::message::Answer;
use crate::wire::Args;

/// `name id [id ...]`.
pub(super) fn plan(verb: IdVerb, args: &Args<'_>) -> Result<Plan, CommandError> {
    plan_until(args.len(), verb, args)
}

/// The same, whose IDs end before an argument.
pub(super) fn plan_until(end: usize, verb: IdVerb, args: &Args<'_>) -> Result<Plan, CommandError> {
    let mut ids = SmallVec::new();
    for text in args.iter_from(1).take(end.saturating_sub(1)) {
        ids.push(parse_id(text)?);
    }
    Ok(Plan::Ids { verb, ids })
}

/// One well-formed ID.
pub(super) fn parse_id(text: &[u8]) -> Result<JobId, CommandError> {
    JobId::parse(text).ok_or(CommandError::BadId)
}

/// Does something with each job that is here; counts those it was done with.
pub(super) fn count(
    home: &mut Home,
    now: Mono,
    ids: &[JobId],
    mut each: impl FnMut(&mut Home, u32) -> bool,
) -> i64 {
    let mut counted = 0;
    for id in ids {
        if let Some(job) = home.find_job(now, id) {
            counted += i64::from(each(home, job));
        }
    }
    counted
}

/// ENQUEUE and NACK: `each` brings a job into its queue. IDs of queues that are paused in are skipped.
pub(super) fn enter(
    home: &mut Home,
    now: Mono,
    ids: &[JobId],
    mut each: impl FnMut(&mut Home, u32),
) -> Answer {
    let mut paused = 0;
    let counted = count(home, now, ids, |home, key| {
        let job = home.job(key);
        if !job.may_enter() {
            return false;
        }
        if home.queue(job.queue).pause.input {
            paused += 1;
            return false;
        }
        each(home, key);
        true
    });
    Answer::Entered { counted, paused }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::testing::with_args;
    use crate::id::NodeId;
    use crate::slot::Slot;

    #[test]
    fn one_bad_id_refuses_all_and_doubles_are_kept() {
        let id = JobId::new(
            NodeId::from_bytes([1; 20]),
            Slot::from_number(5),
            [3; 18],
            60,
            true,
        );
        let text = id.to_string();
        let planned = |words: &[&str]| with_args(words, |args| plan(IdVerb::Nack, &args));
        match planned(&["NACK", &text, &text]) {
            Ok(Plan::Ids {
                verb: IdVerb::Nack,
                ids,
            }) => assert_eq!(ids[..], [id, id]),
            _ => panic!("not planned"),
        }
        assert_eq!(
            planned(&["NACK", &text, "D-bad"]).err(),
            Some(CommandError::BadId)
        );
    }
}
