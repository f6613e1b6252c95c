//! Times, bytes and paths as people read them. Nothing here fails, whatever the numbers: they come from files.

use std::path::Path;

use shard::log::WallMs;

const DAYS_OF_400_YEARS: u64 = 146_097;

/// An instant in UTC, to the millisecond; `never` for the one that never comes.
pub fn utc(at: WallMs) -> String {
    if at == WallMs::NEVER {
        return "never".into();
    }
    let (seconds, ms) = (at.0 / 1_000, at.0 % 1_000);
    let (year, month, day) = date(seconds / 86_400);
    let (hour, minute, second) = (seconds / 3_600 % 24, seconds / 60 % 60, seconds % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{ms:03}Z")
}

/// The same for a creation stamp in nanoseconds.
pub fn utc_of_stamp(ctime: u64) -> String {
    utc(WallMs(ctime / 1_000_000))
}

/// Year, month and day of a day counted from 1 January 1970.
fn date(days: u64) -> (u64, u64, u64) {
    let mut year = 1970 + 400 * (days / DAYS_OF_400_YEARS);
    let mut rest = days % DAYS_OF_400_YEARS;
    while rest >= 365 + leap_day(year) {
        rest -= 365 + leap_day(year);
        year += 1;
    }
    let months = [31, 28 + leap_day(year), 31, 30, 31, 30, 31, 31, 30, 31, 30, 31];
    let mut month = 0;
    while rest >= months[month] {
        rest -= months[month];
        month += 1;
    }
    (year, month as u64 + 1, rest + 1)
}

fn leap_day(year: u64) -> u64 {
    let is_leap = year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400));
    u64::from(is_leap)
}

/// The first bytes, with escapes for all that is not printable ASCII, and how many there are if that is not all.
pub fn shortened(bytes: &[u8], most: usize) -> String {
    let shown = bytes.get(..most).unwrap_or(bytes);
    let more = if shown.len() < bytes.len() { "..." } else { "" };
    format!("{}{more}", shown.escape_ascii())
}

/// A path on one line, whatever bytes it has.
pub fn show(path: &Path) -> String {
    let text = path.display().to_string();
    if text.contains(char::is_control) {
        return text.escape_default().to_string();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn instants_are_those_of_the_calendar() {
        let cases = [
            (0, "1970-01-01T00:00:00.000Z"),
            (951_782_400_000, "2000-02-29T00:00:00.000Z"),
            (1_700_000_000_123, "2023-11-14T22:13:20.123Z"),
            (4_107_542_399_999, "2100-02-28T23:59:59.999Z"),
            (4_107_542_400_000, "2100-03-01T00:00:00.000Z"),
            (253_402_300_799_999, "9999-12-31T23:59:59.999Z"),
            (u64::MAX, "never"),
        ];
        for (ms, text) in cases {
            assert_eq!(utc(WallMs(ms)), text);
        }
        assert!(utc(WallMs(u64::MAX - 1)).starts_with("58455"));
        assert_eq!(
            utc_of_stamp(1_700_000_000_123_456_789),
            "2023-11-14T22:13:20.123Z"
        );
    }

    #[test]
    fn bytes_are_shortened_and_escaped() {
        assert_eq!(shortened(b"a\n\xff\"", 10), r#"a\n\xff\""#);
        assert_eq!(shortened(b"abcdef", 3), "abc...");
        assert_eq!(shortened(b"abc", 3), "abc");
        assert_eq!(show(Path::new("a\nb")), r"a\nb");
    }
}
