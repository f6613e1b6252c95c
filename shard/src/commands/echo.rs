//! ECHO message: the message as a bulk string.

use super::{Call, Plan};
use crate::core::Core;
use crate::error::CommandError;
use crate::session::Session;
use crate::wire::Args;

/// Grammar.
pub fn plan(_: &Core, _: &Session, _: &Args<'_>) -> Result<Plan, CommandError> {
    Ok(Plan::Local(|call: &mut Call<'_>| {
        call.session.encoder().bulk(&call.args[1]);
        Ok(())
    }))
}
