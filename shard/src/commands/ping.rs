//! PING [message]: `+PONG`, or the message as a bulk string.

use super::{Call, Plan};
use crate::core::Core;
use crate::error::CommandError;
use crate::session::Session;
use crate::wire::Args;

/// Grammar.
pub fn plan(_: &Core, _: &Session, args: &Args<'_>) -> Result<Plan, CommandError> {
    match args.len() {
        1 | 2 => Ok(Plan::Local(run)),
        _ => Err(CommandError::Arity("ping".into())),
    }
}

fn run(call: &mut Call<'_>) -> Result<(), CommandError> {
    match call.args.get(1) {
        Some(message) => call.session.encoder().bulk(message),
        None => call.session.encoder().simple("PONG"),
    }
    Ok(())
}
