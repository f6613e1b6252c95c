//! Patterns over names (CONFIG GET, COMMAND LIST): Redis' dialect, case-sensitive.
//!
//! `*` any bytes, `?` one byte, `[abc]`, `[a-z]`, `[^a]` one byte of a class, `\` takes the next byte as it is. A
//! class that is never closed ends with the pattern; a `\` at the very end stands for itself.
//!
//! Only the last `*` is ever tried again (whatever an earlier one could still give to its part, the last one
//! can take), so a hostile pattern costs at most pattern times text, never more. The commands
//! bound both (`limits::PATTERN_BYTES`).

/// Whether the whole of `text` fits `pattern`.
pub fn matches(pattern: &[u8], text: &[u8]) -> bool {
    let (mut at, mut read) = (0, 0);
    // After the last star: its place in the pattern, and how much of the text it has swallowed up to.
    let mut star: Option<(usize, usize)> = None;
    while read < text.len() {
        if pattern.get(at) == Some(&b'*') {
            at += 1;
            star = Some((at, read));
        } else if let Some(length) = match_one(&pattern[at..], text[read]) {
            at += length;
            read += 1;
        } else if let Some((after, swallowed)) = star {
            at = after;
            read = swallowed + 1;
            star = Some((after, read));
        } else {
            return false;
        }
    }
    pattern[at..].iter().all(|byte| *byte == b'*')
}

/// The length of the pattern's first element, if `byte` fits it.
fn match_one(pattern: &[u8], byte: u8) -> Option<usize> {
    match pattern {
        [] => None,
        [b'?', ..] => Some(1),
        [b'[', class @ ..] => match_class(class, byte).map(|length| length + 1),
        [b'\\', literal, ..] => (*literal == byte).then_some(2),
        [literal, ..] => (*literal == byte).then_some(1),
    }
}

/// The length of the class up to and with its `]`, if `byte` is in it.
fn match_class(class: &[u8], byte: u8) -> Option<usize> {
    let negated = class.first() == Some(&b'^');
    let mut at = usize::from(negated);
    let mut found = false;
    loop {
        match &class[at..] {
            [] => break,
            [b']', ..] => {
                at += 1;
                break;
            }
            [b'\\', literal, ..] => {
                found |= *literal == byte;
                at += 2;
            }
            [first, b'-', last, ..] => {
                found |= (*first.min(last)..=*first.max(last)).contains(&byte);
                at += 3;
            }
            [literal, ..] => {
                found |= *literal == byte;
                at += 1;
            }
        }
    }
    (found != negated).then_some(at)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_dialect() {
        for (pattern, text) in [
            ("", ""),
            ("*", ""),
            ("***", "abc"),
            ("a*c", "abbc"),
            ("a*c*", "abcbd"),
            ("*ab", "aab"),
            ("a?c", "abc"),
            ("[abc]x", "bx"),
            ("[a-c]", "b"),
            ("[c-a]", "b"),
            ("[^a-c]", "d"),
            (r"[\]]", "]"),
            (r"[\^a]", "^"),
            (r"\*", "*"),
            (r"a\", r"a\"),
            ("[abc", "c"),
            ("[^", "x"),
            ("[a-]", "]"),
            ("max*", "maxmemory"),
        ] {
            assert!(matches(pattern.as_bytes(), text.as_bytes()), "{pattern} {text}");
        }
        for (pattern, text) in [
            ("", "a"),
            ("?", ""),
            ("a*c", "abd"),
            ("[abc]", "d"),
            ("[^a-c]", "b"),
            (r"\*", "a"),
            (r"\?", "x"),
            ("[]a]", "a"),
            ("[", "["),
            ("A", "a"),
            ("*a", "ab"),
        ] {
            assert!(!matches(pattern.as_bytes(), text.as_bytes()), "{pattern} {text}");
        }
        assert!(matches(b"[\x80-\xff]*", b"\xfe\0"));
    }

    #[test]
    fn a_hostile_pattern_is_bounded() {
        // By naive recursion this takes longer than the universe will last.
        assert!(!matches(&b"*a".repeat(500), &[b'b'].repeat(20_000)));
        assert!(!matches(
            &[&b"*a".repeat(200)[..], b"b"].concat(),
            &[b'a'].repeat(5_000)
        ));
    }

    /// The same dialect by recursion over the pattern.
    fn naive(pattern: &[u8], text: &[u8]) -> bool {
        match (pattern, text) {
            ([b'*', rest @ ..], _) => (0..=text.len()).any(|taken| naive(rest, &text[taken..])),
            ([], _) => text.is_empty(),
            (_, []) => false,
            (_, [byte, text @ ..]) => {
                match_one(pattern, *byte).is_some_and(|length| naive(&pattern[length..], text))
            }
        }
    }

    proptest! {
        #[test]
        fn agrees_with_recursion(pattern in r"[ab*?\[\]^\\-]{0,8}", text in r"[ab\]\\-]{0,8}") {
            prop_assert_eq!(matches(pattern.as_bytes(), text.as_bytes()), naive(pattern.as_bytes(), text.as_bytes()));
        }
    }
}
