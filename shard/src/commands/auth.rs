//! AUTH password, AUTH user password: `+OK`, and the connection's commands are served.
//!
//! There is one user, `default`. A wrong password ends an earlier authentication (reference, 1.12). The form with a user
//! is Redis': without a password set it succeeds, and a wrong one is `-WRONGPASS`.

use super::{Call, Plan};
use crate::core::Core;
use crate::error::CommandError;
use crate::session::Session;
use crate::wire::Args;

/// Grammar.
pub fn plan(_: &Core, _: &Session, args: &Args<'_>) -> Result<Plan, CommandError> {
    match args.len() {
        2 | 3 => Ok(Plan::Local(run)),
        _ => Err(CommandError::Syntax),
    }
}

fn run(call: &mut Call<'_>) -> Result<(), CommandError> {
    let password = call.core.settings.requirepass.as_deref();
    let checked = match call.args.get(2) {
        None => check_password(password, &call.args[1]),
        Some(given) => check_user(password, &call.args[1], given),
    };
    if checked.is_ok() || password.is_some() {
        call.session.client.authenticated = checked.is_ok();
    }
    checked.map(|()| call.session.encoder().simple("OK"))
}

/// Checks the form without a user.
fn check_password(password: Option<&[u8]>, given: &[u8]) -> Result<(), CommandError> {
    match password {
        None => Err(CommandError::other(
            "AUTH <password> called without any password configured for the default user. Are you sure your \
             configuration is correct?",
        )),
        Some(password) if is_same(password, given) => Ok(()),
        Some(_) => Err(CommandError::other("invalid password")),
    }
}

/// Checks a user and a password, as AUTH and HELLO give them.
pub fn check_user(password: Option<&[u8]>, user: &[u8], given: &[u8]) -> Result<(), CommandError> {
    let fits = password.is_none_or(|password| is_same(password, given));
    if user == b"default" && fits {
        Ok(())
    } else {
        let text = "WRONGPASS invalid username-password pair or user is disabled.";
        Err(CommandError::Coded(text.into()))
    }
}

/// Compares in a time that does not tell where the two differ.
fn is_same(password: &[u8], given: &[u8]) -> bool {
    let mut differs = password.len() ^ given.len();
    for (at, &byte) in given.iter().enumerate() {
        differs |= usize::from(byte ^ password.get(at).copied().unwrap_or(0));
    }
    differs == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn passwords_are_compared_whole() {
        assert!(is_same(b"secret", b"secret"));
        for given in [&b""[..], b"secre", b"secret ", b"secret\0", b"Secret"] {
            assert!(!is_same(b"secret", given), "{given:?}");
        }
    }

    #[test]
    fn texts() {
        assert_eq!(check_password(Some(b"a"), b"a"), Ok(()));
        let wrong = check_password(Some(b"a"), b"b").expect_err("it is wrong");
        assert_eq!(wrong.to_string(), "ERR invalid password");
        let none = check_password(None, b"b").expect_err("there is none");
        assert!(
            none.to_string()
                .starts_with("ERR AUTH <password> called without any password configured")
        );
        assert_eq!(check_user(None, b"default", b"any"), Ok(()));
        assert_eq!(check_user(Some(b"a"), b"default", b"a"), Ok(()));
        for (user, given) in [(&b"default"[..], &b"b"[..]), (b"other", b"a")] {
            let wrong = check_user(Some(b"a"), user, given).expect_err("it is wrong");
            assert_eq!(
                wrong.to_string(),
                "WRONGPASS invalid username-password pair or user is disabled."
            );
        }
    }
}
