//! QSCAN: list the queues, a page at a time.
//!
//! `QSCAN [cursor] [COUNT n] [BUSYLOOP] [MINLEN n] [MAXLEN n] [IMPORTRATE n]` answers the next cursor, 0 at the end, and names. The cursor may stand
//! anywhere. COUNT (100) is a soft limit; 0 is one step, and a negative one is BUSYLOOP: everything, in steps. Even so
//! an answer ends at about 2 MiB (`limits::REPLY_BYTES`), with a cursor to go on from. What is there all the time is returned at
//! least once (`sessions.md`).

use super::view::ScanPosition;
use super::{Plan, jscan};
use crate::clock::Mono;
use crate::core::Core;
use crate::error::CommandError;
use crate::home::{Home, Queue};
use crate::message::Answer;
use crate::session::Session;
use crate::slot::Slot;
use crate::wire::Args;
use crate::wire::number::{parse_i64, parse_u64};

const DEFAULT_COUNT: usize = 100;

/// QSCAN or JSCAN; also a step of one.
#[derive(Clone, Debug, PartialEq)]
pub struct Scan {
    /// What is looked for.
    pub of: ScanOf,
    /// Where to go on.
    pub position: ScanPosition,
    /// How many elements make a page.
    pub count: usize,
    /// Everything in one answer.
    pub busyloop: bool,
}

/// What a scan looks for.
#[derive(Clone, Debug, PartialEq)]
pub enum ScanOf {
    /// QSCAN.
    Queues(Filter),
    /// JSCAN.
    Jobs(jscan::Filter),
}

/// Which queues.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Filter {
    /// With at least so many jobs.
    pub min_len: Option<u64>,
    /// With at most so many jobs.
    pub max_len: Option<u64>,
    /// Into which at least so many jobs a second come from other nodes.
    pub import_rate: Option<u64>,
}

impl Filter {
    /// Whether a queue is listed.
    pub(crate) fn admits(&self, queue: &Queue) -> bool {
        let length = queue.len();
        // Nothing comes from other nodes: the rate is 0.
        self.min_len.is_none_or(|least| length >= least)
            && self.max_len.is_none_or(|most| length <= most)
            && self.import_rate.is_none_or(|least| least == 0)
    }
}

impl Scan {
    /// The slot that all elements are in, when the filter says so.
    pub fn only_slot(&self) -> Option<Slot> {
        match &self.of {
            ScanOf::Queues(_) => None,
            ScanOf::Jobs(filter) => filter.slot(),
        }
    }
}

/// Grammar.
pub fn plan(_core: &Core, _session: &Session, args: &Args<'_>) -> Result<Plan, CommandError> {
    parse(args).map(Plan::Scan)
}

fn parse(args: &Args<'_>) -> Result<Scan, CommandError> {
    let mut filter = Filter::default();
    let paging = parse_words(args, |word, value| {
        let limit = match word {
            b"minlen" => &mut filter.min_len,
            b"maxlen" => &mut filter.max_len,
            b"importrate" => &mut filter.import_rate,
            _ => return Ok(false),
        };
        *limit = Some(parse_u64(value()?).ok_or(CommandError::NotAnInteger)?);
        Ok(true)
    })?;
    Ok(paging.of(ScanOf::Queues(filter)))
}

/// What both scans understand.
pub(super) struct Paging {
    cursor: Option<u64>,
    count: usize,
    busyloop: bool,
}

impl Paging {
    pub(super) fn of(self, of: ScanOf) -> Scan {
        let position = ScanPosition(self.cursor.unwrap_or(0));
        Scan {
            of,
            position,
            count: self.count,
            busyloop: self.busyloop,
        }
    }
}

/// Reads the words of a scan. `filter` is asked about each that is not common to both, in lowercase, and gets the value behind it by calling
/// its second argument; it says whether the word was its own.
pub(super) fn parse_words<'a>(
    args: &Args<'a>,
    mut filter: impl FnMut(
        &[u8],
        &mut dyn FnMut() -> Result<&'a [u8], CommandError>,
    ) -> Result<bool, CommandError>,
) -> Result<Paging, CommandError> {
    let mut paging = Paging {
        cursor: None,
        count: DEFAULT_COUNT,
        busyloop: false,
    };
    let mut words = args.iter().skip(1);
    while let Some(word) = words.next() {
        let lower = word.to_ascii_lowercase();
        let mut value = || words.next().ok_or(CommandError::Syntax);
        match lower.as_slice() {
            b"busyloop" => paging.busyloop = true,
            b"count" => {
                let count = parse_i64(value()?).ok_or(CommandError::NotAnInteger)?;
                paging.busyloop |= count < 0;
                paging.count = usize::try_from(count).unwrap_or(DEFAULT_COUNT);
            }
            other if filter(other, &mut value)? => {}
            _ if paging.cursor.is_some() => return Err(CommandError::Syntax),
            digits => {
                let cursor = parse_u64(digits);
                paging.cursor = Some(cursor.ok_or(CommandError::other("invalid cursor or option name"))?);
            }
        }
    }
    Ok(paging)
}

/// A step.
pub(crate) fn apply(home: &Home, now: Mono, scan: &Scan) -> Answer {
    Answer::Page(Box::new(home.scan(now, scan)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::testing::with_args;

    fn parse_words(words: &str) -> Result<Scan, CommandError> {
        let words: Vec<&str> = ["QSCAN"]
            .into_iter()
            .chain(words.split(' ').filter(|word| !word.is_empty()))
            .collect();
        with_args(&words, |args| parse(&args))
    }

    #[test]
    fn the_cursor_stands_anywhere() {
        for words in ["7 COUNT 5 MINLEN 2", "COUNT 5 7 MINLEN 2", "minlen 2 count 5 7"] {
            let scan = parse_words(words).unwrap();
            assert_eq!(
                (scan.position, scan.count, scan.busyloop),
                (ScanPosition(7), 5, false)
            );
            let filter = Filter {
                min_len: Some(2),
                ..Filter::default()
            };
            assert_eq!(scan.of, ScanOf::Queues(filter));
        }
        assert_eq!(
            parse_words("18446744073709551615").unwrap().position,
            ScanPosition(u64::MAX)
        );
    }

    #[test]
    fn counts() {
        let count = |words| parse_words(words).map(|scan| (scan.count, scan.busyloop));
        assert_eq!(count(""), Ok((100, false)));
        assert_eq!(count("COUNT 0"), Ok((0, false)));
        assert_eq!(count("COUNT -1"), Ok((100, true)));
        assert_eq!(count("BUSYLOOP"), Ok((100, true)));
        assert_eq!(count("COUNT x"), Err(CommandError::NotAnInteger));
    }

    #[test]
    fn what_is_refused() {
        assert_eq!(parse_words("0 0"), Err(CommandError::Syntax));
        assert_eq!(parse_words("COUNT"), Err(CommandError::Syntax));
        for words in ["nonsense", "-1", "QUEUE q"] {
            let error = parse_words(words).unwrap_err();
            assert_eq!(error.to_string(), "ERR invalid cursor or option name", "{words}");
        }
        assert_eq!(parse_words("MINLEN -1"), Err(CommandError::NotAnInteger));
    }
}
