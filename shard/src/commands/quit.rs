//! QUIT: `+OK`, then the connection is closed; allowed before AUTH.

use super::{Call, Plan};
use crate::core::Core;
use crate::error::CommandError;
use crate::session::Session;
use crate::wire::Args;

/// Grammar.
pub fn plan(_: &Core, _: &Session, _: &Args<'_>) -> Result<Plan, CommandError> {
    Ok(Plan::Local(|call: &mut Call<'_>| {
        call.reply().simple("OK");
        call.session.close_after_reply();
        Ok(())
    }))
}
