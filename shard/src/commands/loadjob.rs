//! LOADJOB: in the original a record of the log; refused to clients, as there.

use super::Plan;
use crate::core::Core;
use crate::error::CommandError;
use crate::session::Session;
use crate::wire::Args;

/// Grammar.
pub fn plan(_: &Core, _: &Session, _: &Args<'_>) -> Result<Plan, CommandError> {
    Err(CommandError::other(
        "LOADJOB is not for clients: it stands in logs only",
    ))
}
