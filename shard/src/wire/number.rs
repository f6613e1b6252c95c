//! Numbers as clients and settings write them, and as replies print them.
//!
//! Arguments follow section 1.1 of the reference without its artefacts (weakness 61): the whole string must be
//! a number; the empty string is none, and a NUL byte ends nothing. Lengths in the framing are stricter: they
//! have exactly one spelling.

/// A signed decimal of an argument: a leading `+` or `-` and leading zeros are allowed, nothing else is.
pub fn parse_i64(text: &[u8]) -> Option<i64> {
    let (negative, digits) = match text {
        [b'-', digits @ ..] => (true, digits),
        [b'+', digits @ ..] => (false, digits),
        digits => (false, digits),
    };
    let magnitude = parse_digits(digits)?;
    if negative {
        0i64.checked_sub_unsigned(magnitude)
    } else {
        i64::try_from(magnitude).ok()
    }
}

/// An unsigned decimal of an argument: as [`parse_i64`], without a `-`.
pub fn parse_u64(text: &[u8]) -> Option<u64> {
    parse_digits(text.strip_prefix(b"+").unwrap_or(text))
}

/// A length in the framing: no `+`, no `-0`, no leading zero.
pub fn parse_length(text: &[u8]) -> Option<i64> {
    let digits = text.strip_prefix(b"-").unwrap_or(text);
    match digits {
        [b'1'..=b'9', ..] => parse_i64(text),
        [b'0'] if text.len() == 1 => Some(0),
        _ => None,
    }
}

/// An amount of memory in bytes, such as `3mb`: `k`, `m`, `g` are powers of 1000, `kb`, `mb`, `gb` powers of
/// 1024, in any case; a bare number or `b` means bytes.
pub fn parse_memory_bytes(text: &[u8]) -> Option<u64> {
    let digits = text.iter().take_while(|byte| byte.is_ascii_digit()).count();
    let (number, unit) = text.split_at(digits);
    let factor = match unit.to_ascii_lowercase().as_slice() {
        b"" | b"b" => 1,
        b"k" => 1_000,
        b"kb" => 1 << 10,
        b"m" => 1_000_000,
        b"mb" => 1 << 20,
        b"g" => 1_000_000_000,
        b"gb" => 1 << 30,
        _ => return None,
    };
    parse_digits(number)?.checked_mul(factor)
}

/// A number printed in decimal, without an allocation.
#[derive(Clone, Copy, Debug)]
pub struct Decimal {
    text: [u8; LONGEST],
    start: u8,
}

/// Characters of `i64::MIN` and of `u64::MAX`.
const LONGEST: usize = 20;

impl Decimal {
    /// The characters.
    pub fn as_bytes(&self) -> &[u8] {
        &self.text[usize::from(self.start)..]
    }

    fn push_front(&mut self, byte: u8) {
        self.start -= 1;
        self.text[usize::from(self.start)] = byte;
    }
}

impl From<u64> for Decimal {
    fn from(mut number: u64) -> Self {
        let mut decimal = Self {
            text: [0; LONGEST],
            start: LONGEST as u8,
        };
        loop {
            decimal.push_front(b'0' + (number % 10) as u8);
            number /= 10;
            if number == 0 {
                return decimal;
            }
        }
    }
}

impl From<i64> for Decimal {
    fn from(number: i64) -> Self {
        let mut decimal = Self::from(number.unsigned_abs());
        if number < 0 {
            decimal.push_front(b'-');
        }
        decimal
    }
}

impl From<usize> for Decimal {
    fn from(number: usize) -> Self {
        Self::from(number as u64)
    }
}

fn parse_digits(digits: &[u8]) -> Option<u64> {
    if digits.is_empty() {
        return None;
    }
    digits.iter().try_fold(0u64, |number, byte| {
        let digit = byte.wrapping_sub(b'0');
        if digit > 9 {
            return None;
        }
        number.checked_mul(10)?.checked_add(u64::from(digit))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn arguments_parse_whole_or_not_at_all() {
        for (text, number) in [("0", 0), ("-0", 0), ("+5", 5), ("007", 7), ("-12", -12)] {
            assert_eq!(parse_i64(text.as_bytes()), Some(number), "{text}");
        }
        assert_eq!(parse_i64(b"9223372036854775807"), Some(i64::MAX));
        assert_eq!(parse_i64(b"-9223372036854775808"), Some(i64::MIN));
        for text in [
            "",
            "+",
            "-",
            " 1",
            "1 ",
            "1\0",
            "5\0x",
            "+-1",
            "--1",
            "1.0",
            "0x1",
            "1e3",
            "9223372036854775808",
            "-9223372036854775809",
            "99999999999999999999999",
        ] {
            assert_eq!(parse_i64(text.as_bytes()), None, "{text:?}");
        }
        assert_eq!(parse_u64(b"18446744073709551615"), Some(u64::MAX));
        assert_eq!(parse_u64(b"18446744073709551616"), None);
        assert_eq!(parse_u64(b"-1"), None);
    }

    #[test]
    fn lengths_have_one_spelling() {
        assert_eq!(parse_length(b"0"), Some(0));
        assert_eq!(parse_length(b"10"), Some(10));
        assert_eq!(parse_length(b"-1"), Some(-1));
        for text in [
            "",
            "-",
            "+1",
            "01",
            "00",
            "-0",
            "-01",
            " 1",
            "1 ",
            "1\n",
            "9223372036854775808",
        ] {
            assert_eq!(parse_length(text.as_bytes()), None, "{text:?}");
        }
    }

    #[test]
    fn memory_units() {
        for (text, bytes) in [
            ("0", 0),
            ("12", 12),
            ("12b", 12),
            ("100k", 100_000),
            ("1KB", 1024),
            ("2m", 2_000_000),
            ("3mb", 3 << 20),
            ("1G", 1_000_000_000),
            ("1gB", 1 << 30),
        ] {
            assert_eq!(parse_memory_bytes(text.as_bytes()), Some(bytes), "{text}");
        }
        for text in [
            "",
            "kb",
            "-1",
            "+1",
            "1.5gb",
            "1 gb",
            "1tb",
            "1kbb",
            "18446744073709551615k",
        ] {
            assert_eq!(parse_memory_bytes(text.as_bytes()), None, "{text:?}");
        }
    }

    proptest! {
        #[test]
        fn decimals_print_as_the_standard_library_does(signed: i64, unsigned: u64) {
            for signed in [signed, 0, i64::MIN, i64::MAX] {
                let text = signed.to_string();
                let decimal = Decimal::from(signed);
                prop_assert_eq!(decimal.as_bytes(), text.as_bytes());
                prop_assert_eq!(parse_i64(text.as_bytes()), Some(signed));
                prop_assert_eq!(parse_length(text.as_bytes()), Some(signed));
            }
            for unsigned in [unsigned, u64::MAX] {
                let text = unsigned.to_string();
                let decimal = Decimal::from(unsigned);
                prop_assert_eq!(decimal.as_bytes(), text.as_bytes());
                prop_assert_eq!(parse_u64(text.as_bytes()), Some(unsigned));
            }
        }
    }
}
