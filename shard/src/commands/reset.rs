//! RESET: the connection is as it was when it began, `+RESET` (Redis). Name, protocol, AUTH, MONITOR and the CLIENT modes.
//!
//! A monitor leaves its shard's list before the other shards hear of it, or the shard would ask for the feed again.

use super::{Call, Plan};
use crate::core::Core;
use crate::error::CommandError;
use crate::session::{Replies, Session};
use crate::wire::{Args, Blob};

/// Grammar.
pub fn plan(_: &Core, _: &Session, _: &Args<'_>) -> Result<Plan, CommandError> {
    Ok(Plan::Local(run))
}

fn run(call: &mut Call<'_>) -> Result<(), CommandError> {
    if std::mem::take(&mut call.session.client.monitor) {
        call.core.monitor_ended(call.session.id);
    }
    let client = &mut call.session.client;
    client.name = Blob::EMPTY;
    client.authenticated = call.core.settings.requirepass.is_none();
    client.resp3 = false;
    client.replies = Replies::On;
    client.no_evict = false;
    client.no_touch = false;
    call.reply().simple("RESET");
    Ok(())
}
