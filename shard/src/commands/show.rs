//! SHOW: describe a job.
//!
//! `SHOW id` answers the 15 fields of section 1.7 of the reference and one of our own, or null when the job is not here. `nodes-delivered` are
//! the nodes that may have a copy, the one that answers first, and `nodes-confirmed` those of them that have it for certain, in every state of
//! the job; `nodes-hosts` are the machines of the former, in the same order, as CLUSTER's section of INFO names its own.

use super::view::{HolderView, JobView};
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
        request: Request::Show(id),
    })
}

/// Describes the job.
pub(crate) fn apply(home: &mut Home, now: Mono, id: JobId) -> Answer {
    let key = home.find_job(now, &id);
    Answer::Job(key.map(|key| Box::new(view(home, now, key))))
}

/// A job as SHOW and JSCAN describe it. A life of less than a second is shown as one second.
pub(crate) fn view(home: &Home, now: Mono, key: u32) -> JobView {
    let job = home.job(key);
    let left_ms = job.expires_at.since_ms(now);
    let next_requeue_ms = Home::enters_in_ms(now, job);
    let next_awake_ms = match job.is_queued() {
        true => left_ms,
        false => next_requeue_ms.map_or(left_ms, |ms| ms.min(left_ms)),
    };
    JobView {
        id: job.id,
        queue: home.queue(job.queue).name.clone(),
        state: job.state(),
        replicate: job.replicate.into(),
        ttl_s: left_ms.div_ceil(SECOND_MS),
        ctime: job.ctime,
        delay_s: job.delay_s,
        retry_s: job.retry_s,
        nacks: job.nacks,
        additional_deliveries: job.additional_deliveries,
        next_requeue_ms,
        next_awake_ms: Some(next_awake_ms),
        holders: holders(home, key),
        body: job.body.clone(),
    }
}

fn holders(home: &Home, key: u32) -> Vec<HolderView> {
    let me = HolderView {
        node: home.peers.node,
        host: home.peers.host,
        confirmed: true,
    };
    let others = home.others_of_job(key).iter().map(|member| {
        let peer = home.peers.peer(member.peer);
        HolderView {
            node: peer.id,
            host: peer.host,
            confirmed: member.confirmed,
        }
    });
    std::iter::once(me).chain(others).collect()
}
