//! The slow log: the last commands of a shard that took at least `slowlog-log-slower-than`.
//!
//! An entry's number is unique in the node and grows in each shard: the shard's own count times the number of shards, plus
//! the shard. Arguments are cut as in the original (reference, 1.12), so that a large body is not kept here.

use std::collections::VecDeque;
use std::io::Write;

use crate::settings::Settings;
use crate::slot::ShardNo;
use crate::wire::Blob;

/// Arguments of an entry.
pub(super) const MAX_ARGUMENTS: usize = 32;
/// Bytes of an argument.
const MAX_ARGUMENT_BYTES: usize = 128;

/// An entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SlowEntry {
    /// Its number.
    pub id: u64,
    /// When it was entered, seconds since 1970.
    pub at_s: u64,
    /// How long the command took.
    pub took_us: u64,
    /// The request, cut.
    pub args: Vec<Blob>,
}

/// The entries of a shard, the newest first.
#[derive(Debug)]
pub struct SlowLog {
    entries: VecDeque<SlowEntry>,
    next_id: u64,
    shards: u16,
}

impl SlowLog {
    /// Empty.
    pub fn new(shard: ShardNo, shards: u16) -> Self {
        Self {
            entries: VecDeque::new(),
            next_id: u64::from(shard),
            shards,
        }
    }

    /// Whether a command that took so long is to be entered.
    pub fn wants(settings: &Settings, took_us: u64) -> bool {
        u64::try_from(settings.slowlog_slower_than_us).is_ok_and(|threshold_us| took_us >= threshold_us)
    }

    /// Enters a command. `args` are to be without secrets (`commands::redact`), and cut ([`pieces`]).
    pub fn enter(&mut self, settings: &Settings, at_s: u64, took_us: u64, args: Vec<Blob>) {
        let entry = SlowEntry {
            id: self.next_id,
            at_s,
            took_us,
            args,
        };
        self.next_id += u64::from(self.shards);
        self.entries.push_front(entry);
        self.entries.truncate(settings.slowlog_max_len as usize);
    }

    /// The newest entries, at most so many.
    pub fn newest(&self, count: usize) -> Vec<SlowEntry> {
        self.entries.iter().take(count).cloned().collect()
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// SLOWLOG RESET. Numbers go on.
    pub fn reset(&mut self) {
        self.entries.clear();
    }
}

/// What an entry shows of a request of `total` arguments, one after the other.
pub(super) fn pieces<'a>(
    total: usize,
    argument: impl Fn(usize) -> &'a [u8],
) -> impl Iterator<Item = Piece<'a>> {
    let kept = if total > MAX_ARGUMENTS {
        MAX_ARGUMENTS - 1
    } else {
        total
    };
    let more = (kept < total).then_some(Piece::MoreArguments(total - kept));
    (0..kept)
        .map(
            move |at| match argument(at).split_at_checked(MAX_ARGUMENT_BYTES) {
                Some((head, tail)) if !tail.is_empty() => Piece::Cut(head, tail.len()),
                _ => Piece::Whole(argument(at)),
            },
        )
        .chain(more)
}

/// An argument as an entry shows it.
pub(super) enum Piece<'a> {
    /// All of it.
    Whole(&'a [u8]),
    /// Its front, and how many bytes are left out.
    Cut(&'a [u8], usize),
    /// In place of so many arguments.
    MoreArguments(usize),
}

impl Piece<'_> {
    /// Appends it.
    pub fn write(&self, text: &mut Vec<u8>) {
        let written = match self {
            Self::Whole(whole) => text.write_all(whole),
            Self::Cut(head, more) => text
                .write_all(head)
                .and_then(|()| write!(text, "... ({more} more bytes)")),
            Self::MoreArguments(more) => write!(text, "... ({more} more arguments)"),
        };
        written.expect("memory takes what is written");
    }
}

impl From<Piece<'_>> for Blob {
    fn from(piece: Piece<'_>) -> Self {
        let mut text = Vec::new();
        piece.write(&mut text);
        Self::copy_from(&text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn enter(log: &mut SlowLog, settings: &Settings, args: &[&[u8]]) {
        let args = pieces(args.len(), |at| args[at]).map(Blob::from).collect();
        log.enter(settings, 1_700_000_000, 12_345, args);
    }

    #[test]
    fn numbers_are_unique_in_the_node_and_the_newest_come_first() {
        let settings = Settings {
            slowlog_max_len: 2,
            ..Settings::default()
        };
        let mut log = SlowLog::new(1, 4);
        for name in [b"a", b"b", b"c"] {
            enter(&mut log, &settings, &[name]);
        }
        let ids: Vec<u64> = log.newest(10).iter().map(|entry| entry.id).collect();
        assert_eq!(ids, [9, 5]);
        assert_eq!(log.newest(1).len(), 1);
        log.reset();
        assert!(log.is_empty());
        enter(&mut log, &settings, &[b"d"]);
        assert_eq!(log.newest(1)[0].id, 13);
    }

    #[test]
    fn what_is_long_is_cut() {
        let settings = Settings::default();
        let mut log = SlowLog::new(0, 1);
        let many = vec![&b"x"[..]; 40];
        enter(&mut log, &settings, &many);
        let entry = &log.newest(1)[0];
        assert_eq!(entry.args.len(), 32);
        assert_eq!(entry.args[31], Blob::from("... (9 more arguments)"));
        enter(&mut log, &settings, &vec![&b"x"[..]; 32]);
        assert_eq!(log.newest(1)[0].args[31], Blob::from("x"));
        enter(&mut log, &settings, &[&[b'y'; 128], &[b'y'; 130]]);
        let entry = &log.newest(1)[0];
        assert_eq!(entry.args[0].len(), 128);
        assert_eq!(entry.args[1][128..], *b"... (2 more bytes)");
    }

    #[test]
    fn the_threshold() {
        let settings = Settings::default();
        assert!(!SlowLog::wants(&settings, 9_999));
        assert!(SlowLog::wants(&settings, 10_000));
        let off = Settings {
            slowlog_slower_than_us: -1,
            ..Settings::default()
        };
        assert!(!SlowLog::wants(&off, u64::MAX));
    }
}
