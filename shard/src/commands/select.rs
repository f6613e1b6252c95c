//! SELECT index: `+OK` for 0, the only database; clients made for Redis send it.

use super::{Call, Plan};
use crate::core::Core;
use crate::error::CommandError;
use crate::session::Session;
use crate::wire::Args;
use crate::wire::number::parse_i64;

/// Grammar.
pub fn plan(_: &Core, _: &Session, args: &Args<'_>) -> Result<Plan, CommandError> {
    match parse_i64(&args[1]) {
        None => Err(CommandError::NotAnInteger),
        Some(0) => Ok(Plan::Local(|call: &mut Call<'_>| {
            call.reply().simple("OK");
            Ok(())
        })),
        Some(_) => Err(CommandError::other("DB index is out of range")),
    }
}
