//! BGREWRITEAOF: compacts all of the log that is there now, in steps, beside all else.
//!
//! Answers that it has started. One that is under way is not refused: what was written since goes, too. Without a log there is nothing
//! to rewrite, and it says so (the original writes a snapshot, which nothing would load).

use super::{Finish, Plan};
use crate::core::Core;
use crate::error::CommandError;
use crate::node::Change;
use crate::session::Session;
use crate::wire::Args;

/// Grammar.
pub fn plan(core: &Core, _: &Session, _: &Args<'_>) -> Result<Plan, CommandError> {
    if !core.settings.appendonly {
        return Err(CommandError::other(
            "no log is kept (appendonly no): there is nothing to rewrite",
        ));
    }
    Ok(Plan::Change {
        change: Change::RewriteLog,
        finish: |call: &mut Finish<'_>, _| {
            call.reply()
                .simple("Background append only file rewriting started");
        },
    })
}
