//! TIME: seconds since 1970 and microseconds of the second, as bulk strings.

use super::{Call, Plan};
use crate::core::Core;
use crate::error::CommandError;
use crate::session::Session;
use crate::wire::Args;

/// Grammar.
pub fn plan(_: &Core, _: &Session, _: &Args<'_>) -> Result<Plan, CommandError> {
    Ok(Plan::Local(run))
}

fn run(call: &mut Call<'_>) -> Result<(), CommandError> {
    let now = call.now;
    let mut out = call.reply();
    out.array(2);
    out.bulk(now.wall_s().to_string());
    out.bulk((now.wall_us % 1_000_000).to_string());
    Ok(())
}
