//! GETJOB: jobs of queues, or wait for some.
//!
//! `GETJOB [NOHANG] [TIMEOUT ms] [COUNT n] [WITHCOUNTERS] FROM queue [queue ...]` answers up to COUNT jobs: passes over the queues from left to
//! right, one job per queue and pass. When there is none it waits, up to TIMEOUT (0 is for ever); then null. A job handed out is leased from then
//! on. A large COUNT gets fewer jobs when they come to about 2 MiB (`limits::REPLY_BYTES`). Everything behind FROM is a
//! queue. NOHANG creates no queue (weakness 42 of the reference). How it runs over shards: `message.rs`.

use smallvec::SmallVec;

use super::{Plan, words};
use crate::clock::Mono;
use crate::core::Core;
use crate::error::CommandError;
use crate::home::Home;
use crate::limits::{GETJOB_QUEUES, MAX_TIMEOUT_MS, OFFER_STEP, TAKE_STEP};
use crate::message::{Answer, Manner, Take, Ticket};
use crate::session::Session;
use crate::wire::number::parse_i64;
use crate::wire::{Args, Blob};

/// A checked GETJOB.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GetJob {
    /// The queues as given, each with its place among them; at least one.
    pub queues: SmallVec<[(u32, Blob); 1]>,
    /// How many jobs at the most; at least 1.
    pub count: u64,
    /// How long to wait; 0 is for ever.
    pub timeout_ms: u64,
    /// Do not wait for jobs.
    pub nohang: bool,
    /// Answer with the counters.
    pub with_counters: bool,
}

/// Grammar.
pub fn plan(_core: &Core, _session: &Session, args: &Args<'_>) -> Result<Plan, CommandError> {
    parse(args).map(Plan::GetJob)
}

fn parse(args: &Args<'_>) -> Result<GetJob, CommandError> {
    let mut job = GetJob {
        queues: SmallVec::new(),
        count: 1,
        timeout_ms: 0,
        nohang: false,
        with_counters: false,
    };
    let mut at = 1;
    loop {
        let word = args.get(at).ok_or(CommandError::Syntax)?;
        let value = || args.get(at + 1).ok_or(CommandError::Syntax);
        if words::is_quick(word, b"from") {
            break;
        } else if words::is_quick(word, b"nohang") {
            job.nohang = true;
        } else if words::is_quick(word, b"withcounters") {
            job.with_counters = true;
        } else if words::is_quick(word, b"timeout") {
            job.timeout_ms = at_least(0, value()?)?.min(MAX_TIMEOUT_MS);
            at += 1;
        } else if words::is_quick(word, b"count") {
            job.count = at_least(1, value()?)?;
            at += 1;
        } else {
            return Err(CommandError::Syntax);
        }
        at += 1;
    }
    let queues = at + 1..args.len();
    if queues.is_empty() {
        return Err(CommandError::Syntax);
    }
    words::check_number("queues", queues.len(), GETJOB_QUEUES)?;
    job.queues.reserve(queues.len());
    for (place, at) in queues.enumerate() {
        job.queues.push((place as u32, args.blob(at)));
    }
    Ok(job)
}

fn at_least(least: u64, text: &[u8]) -> Result<u64, CommandError> {
    let number = parse_i64(text).and_then(|number| u64::try_from(number).ok());
    number
        .filter(|&number| number >= least)
        .ok_or(CommandError::NotAnInteger)
}

/// Takes what is there, or waits.
pub(crate) fn apply(home: &mut Home, now: Mono, ticket: Ticket, take: &Take) -> Answer {
    let most = if take.manner == Manner::Offer {
        OFFER_STEP
    } else {
        TAKE_STEP
    };
    assert!(
        (1..=most).contains(&take.count),
        "a larger COUNT is served in several steps"
    );
    home.take(now, ticket, take)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::testing::with_args;

    fn parse_words(words: &str) -> Result<GetJob, CommandError> {
        let words: Vec<&str> = std::iter::once("GETJOB").chain(words.split(' ')).collect();
        with_args(&words, |args| parse(&args))
    }

    #[test]
    fn everything_behind_from_is_a_queue() {
        let get = parse_words("count 5 NOHANG TIMEOUT 100 withcounters FROM a from NOHANG a").unwrap();
        assert_eq!(
            (get.count, get.timeout_ms, get.nohang, get.with_counters),
            (5, 100, true, true)
        );
        let queues: Vec<(u32, &[u8])> = get
            .queues
            .iter()
            .map(|(place, queue)| (*place, queue.as_slice()))
            .collect();
        assert_eq!(queues, [(0, &b"a"[..]), (1, b"from"), (2, b"NOHANG"), (3, b"a")]);
        let plain = parse_words("FROM q").unwrap();
        assert_eq!(
            (plain.count, plain.timeout_ms, plain.nohang, plain.with_counters),
            (1, 0, false, false)
        );
    }

    #[test]
    fn the_number_of_queues_is_bounded() {
        let parse_queues = |queues: usize| parse_words(&format!("FROM{}", " q".repeat(queues)));
        assert_eq!(
            parse_queues(GETJOB_QUEUES).map(|get| get.queues.len()),
            Ok(GETJOB_QUEUES)
        );
        assert_eq!(
            parse_queues(GETJOB_QUEUES + 1).unwrap_err().to_string(),
            "ERR too many queues, at most 1024"
        );
    }

    #[test]
    fn what_is_refused() {
        for words in [
            "FROM",
            "q",
            "NOHANG",
            "COUNT",
            "COUNT 5",
            "TIMEOUT",
            "COUNT 1 q FROM a",
        ] {
            assert_eq!(parse_words(words), Err(CommandError::Syntax), "{words}");
        }
        for words in [
            "COUNT 0 FROM q",
            "COUNT -1 FROM q",
            "COUNT FROM q",
            "TIMEOUT -1 FROM q",
            "TIMEOUT 1.5 FROM q",
        ] {
            assert_eq!(parse_words(words), Err(CommandError::NotAnInteger), "{words}");
        }
        assert_eq!(
            parse_words("TIMEOUT 9223372036854775807 FROM q")
                .unwrap()
                .timeout_ms,
            MAX_TIMEOUT_MS
        );
    }
}
