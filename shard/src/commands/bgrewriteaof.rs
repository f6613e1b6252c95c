//! BGREWRITEAOF: refused, there is no log to rewrite.

use super::Plan;
use crate::core::Core;
use crate::error::CommandError;
use crate::session::Session;
use crate::wire::Args;

/// Grammar.
pub fn plan(_: &Core, _: &Session, _: &Args<'_>) -> Result<Plan, CommandError> {
    Err(CommandError::other(
        "this version keeps no log: there is nothing to rewrite",
    ))
}
