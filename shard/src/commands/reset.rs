//! RESET: the connection is as it was when it began, `+RESET` (Redis). Name, protocol, AUTH, MONITOR and the CLIENT modes.

use super::{Call, Finish, Plan, monitor};
use crate::core::Core;
use crate::error::CommandError;
use crate::session::{Replies, Session};
use crate::wire::{Args, Blob};

/// Grammar.
pub fn plan(core: &Core, session: &Session, _: &Args<'_>) -> Result<Plan, CommandError> {
    match monitor::change_without(core, session) {
        Some(change) => Ok(Plan::Change {
            change,
            finish: |call: &mut Finish<'_>, _| reset(call.core, call.session),
        }),
        None => Ok(Plan::Local(|call: &mut Call<'_>| {
            reset(call.core, call.session);
            Ok(())
        })),
    }
}

fn reset(core: &mut Core, session: &mut Session) {
    monitor::leave(core, session);
    let client = &mut session.client;
    client.name = Blob::EMPTY;
    client.authenticated = core.settings.requirepass.is_none();
    client.resp3 = false;
    client.replies = Replies::On;
    client.no_evict = false;
    client.no_touch = false;
    session.encoder().simple("RESET");
}
