//! Which arguments MONITOR and SLOWLOG show as `(redacted)`: passwords (weakness 60 of the reference).

/// What stands in place of a secret.
const REDACTED: &[u8] = b"(redacted)";

/// The argument at this place of a request to the command `name` (lowercase, as in the table), unless it is a secret.
///
/// # Panics
/// When there is no such argument.
pub fn visible<'a>(name: &str, get: impl Fn(usize) -> Option<&'a [u8]>, at: usize) -> &'a [u8] {
    if is_secret(name, &get, at) {
        REDACTED
    } else {
        get(at).expect("the argument exists")
    }
}

fn is_secret<'a>(name: &str, get: &impl Fn(usize) -> Option<&'a [u8]>, at: usize) -> bool {
    let is = |at: usize, word: &str| get(at).is_some_and(|arg| arg.eq_ignore_ascii_case(word.as_bytes()));
    match name {
        "auth" => at > 0,
        // HELLO version AUTH user password.
        "hello" => at > 2 && (is(at - 1, "auth") || is(at - 2, "auth")),
        // CONFIG SET name value [name value ...].
        "config" => {
            let is_of_secret = |at| is(at, "requirepass") || is(at, "cluster-secret");
            at > 2 && at % 2 == 1 && is(1, "set") && is_of_secret(at - 1)
        }
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(request: &[&str]) -> Vec<String> {
        let get = |at: usize| request.get(at).map(|arg| arg.as_bytes());
        let name = request[0].to_lowercase();
        (0..request.len())
            .map(|at| String::from_utf8_lossy(visible(&name, get, at)).into_owned())
            .collect()
    }

    #[test]
    fn passwords_are_hidden_and_nothing_else() {
        for (request, expected) in [
            ("AUTH secret", "AUTH (redacted)"),
            ("auth default secret", "auth (redacted) (redacted)"),
            (
                "HELLO 3 AUTH default secret SETNAME me",
                "HELLO 3 AUTH (redacted) (redacted) SETNAME me",
            ),
            (
                "HELLO 3 SETNAME me auth u p",
                "HELLO 3 SETNAME me auth (redacted) (redacted)",
            ),
            (
                "CONFIG SET requirepass secret",
                "CONFIG SET requirepass (redacted)",
            ),
            (
                "CONFIG set port 1 RequirePass secret",
                "CONFIG set port 1 RequirePass (redacted)",
            ),
            (
                "CONFIG SET cluster-secret secret",
                "CONFIG SET cluster-secret (redacted)",
            ),
            (
                "CONFIG GET requirepass requirepass",
                "CONFIG GET requirepass requirepass",
            ),
            ("ADDJOB auth secret 0", "ADDJOB auth secret 0"),
        ] {
            let request: Vec<&str> = request.split(' ').collect();
            assert_eq!(shown(&request).join(" "), expected);
        }
    }
}
