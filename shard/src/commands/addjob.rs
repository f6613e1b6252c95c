//! ADDJOB: a new job.
//!
//! `ADDJOB queue body timeout-ms [REPLICATE n] [DELAY s] [RETRY s] [TTL s] [MAXLEN n] [ASYNC]` answers the job's ID. Options in any order, the
//! last of a kind counts. Checks, the first failure is the answer (reference, 1.5): options as given, timeout, at most once with copies,
//! delay against TTL, reachable nodes; then at the queue's home: MAXLEN, PAUSE, memory. RETRY 0 alone means one copy.

use super::{Plan, Request};
use crate::clock::{Mono, Now, SECOND_MS};
use crate::core::Core;
use crate::error::CommandError;
use crate::home::{CopyTerms, Home, Job, Marks, Place, Queue, copies_kept};
use crate::limits::{MAX_SECONDS, MAX_TIMEOUT_MS};
use crate::message::{Answer, Ticket};
use crate::session::Session;
use crate::slot::Slot;
use crate::structures::NONE;
use crate::structures::list::Links;
use crate::wire::number::parse_i64;
use crate::wire::{Args, Blob};

const DEFAULT_TTL_S: u32 = 86_400;
const DEFAULT_RETRY_MAX_S: u32 = 300;
/// Copies that ADDJOB asks for unless told otherwise, as far as there are nodes.
const DEFAULT_REPLICATE: u16 = 3;

/// A checked ADDJOB.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AddJob {
    /// The queue.
    pub queue: Blob,
    /// The body.
    pub body: Blob,
    /// How long to wait for copies; 0 is for ever.
    pub timeout_ms: u64,
    /// Copies.
    pub replicate: u16,
    /// REPLICATE was not given, and there are too few nodes for the default.
    pub lowered: bool,
    /// REPLICATE was not given: fewer will do when there are fewer nodes.
    pub may_lower: bool,
    /// Time to live, from its arrival at the home shard on.
    pub ttl_s: u32,
    /// Lease time; 0 is at most once.
    pub retry_s: u32,
    /// Delay before it is queued.
    pub delay_s: u32,
    /// Refuse when so many are queued.
    pub max_len: Option<u64>,
    /// Answer without waiting for copies.
    pub asynchronous: bool,
}

/// Grammar, and the checks that need no queue.
pub fn plan(core: &Core, _session: &Session, args: &Args<'_>) -> Result<Plan, CommandError> {
    // A node that leaves gives its own copy away.
    let here = u16::from(!core.home.peers.leaving);
    let nodes = Nodes {
        reachable: here + core.home.peers.reachable_count(),
        least: core.home.min_replicate,
    };
    let terms = check(args, nodes)?;
    Ok(Plan::Home {
        slot: Slot::of_queue(&args[1]),
        request: Request::Add(terms.of_job(args)),
    })
}

/// The options as given.
#[derive(Default)]
struct Options {
    replicate: Option<u16>,
    ttl_s: Option<u32>,
    retry_s: Option<u32>,
    delay_s: u32,
    max_len: Option<u64>,
    asynchronous: bool,
}

/// The checked numbers of an ADDJOB.
struct Terms {
    timeout_ms: u64,
    replicate: u16,
    lowered: bool,
    may_lower: bool,
    ttl_s: u32,
    retry_s: u32,
    delay_s: u32,
    max_len: Option<u64>,
    asynchronous: bool,
}

impl Terms {
    /// The texts are copied last, to where they stay: they are most of an ADDJOB.
    fn of_job(self, args: &Args<'_>) -> AddJob {
        AddJob {
            queue: args.blob(1),
            body: args.blob(2),
            timeout_ms: self.timeout_ms,
            replicate: self.replicate,
            lowered: self.lowered,
            may_lower: self.may_lower,
            ttl_s: self.ttl_s,
            retry_s: self.retry_s,
            delay_s: self.delay_s,
            max_len: self.max_len,
            asynchronous: self.asynchronous,
        }
    }
}

/// What limits the number of copies.
#[derive(Clone, Copy)]
struct Nodes {
    /// Nodes that can take a copy, this one included.
    reachable: u16,
    /// Copies below which no default is lowered (`min-replicate`).
    least: u16,
}

fn check(args: &Args<'_>, nodes: Nodes) -> Result<Terms, CommandError> {
    let options = parse_options(args)?;
    let timeout_ms = parse_i64(&args[3]).ok_or(CommandError::NotAnInteger)?;
    let timeout_ms = u64::try_from(timeout_ms).map_err(|_| CommandError::other("timeout is negative"))?;
    let ttl_s = options.ttl_s.unwrap_or(DEFAULT_TTL_S);
    let retry_s = options
        .retry_s
        .unwrap_or((ttl_s / 10).clamp(1, DEFAULT_RETRY_MAX_S));
    if retry_s == 0 && options.replicate.is_some_and(|copies| copies > 1) {
        return Err(CommandError::other(
            "With RETRY set to 0 (at most once delivery) the only REPLICATE is 1",
        ));
    }
    if options.delay_s >= ttl_s {
        return Err(CommandError::other(
            "The specified DELAY is not smaller than TTL: the job would never be delivered",
        ));
    }
    let default = if retry_s == 0 { 1 } else { DEFAULT_REPLICATE };
    let replicate = options.replicate.unwrap_or(match retry_s {
        0 => default,
        _ => default.min(nodes.reachable).max(nodes.least),
    });
    if replicate > nodes.reachable {
        return Err(CommandError::NotEnoughNodes);
    }
    Ok(Terms {
        timeout_ms: timeout_ms.min(MAX_TIMEOUT_MS),
        replicate,
        lowered: options.replicate.is_none() && replicate < default,
        may_lower: options.replicate.is_none(),
        ttl_s,
        retry_s,
        delay_s: options.delay_s,
        max_len: options.max_len,
        asynchronous: options.asynchronous,
    })
}

fn parse_options(args: &Args<'_>) -> Result<Options, CommandError> {
    let mut options = Options::default();
    let mut words = args.iter_from(4);
    while let Some(word) = words.next() {
        if word.eq_ignore_ascii_case(b"async") {
            options.asynchronous = true;
            continue;
        }
        let is = |name: &[u8]| word.eq_ignore_ascii_case(name);
        let mut value = |least: u64, most: u64| in_range(words.next(), least, most);
        if is(b"replicate") {
            options.replicate = Some(value(1, u16::MAX.into())? as u16);
        } else if is(b"ttl") {
            options.ttl_s = Some(value(1, MAX_SECONDS)? as u32);
        } else if is(b"retry") {
            options.retry_s = Some(value(0, MAX_SECONDS)? as u32);
        } else if is(b"delay") {
            options.delay_s = value(0, MAX_SECONDS)? as u32;
        } else if is(b"maxlen") {
            options.max_len = Some(value(1, i64::MAX as u64)?);
        } else {
            return Err(CommandError::Syntax);
        }
    }
    Ok(options)
}

/// The value of an option: a syntax error when there is none.
fn in_range(value: Option<&[u8]>, least: u64, most: u64) -> Result<u64, CommandError> {
    let number = parse_i64(value.ok_or(CommandError::Syntax)?);
    let number = number.and_then(|number| u64::try_from(number).ok());
    number
        .filter(|number| (least..=most).contains(number))
        .ok_or(CommandError::NotAnInteger)
}

/// Why the queue does not take the job.
pub(crate) fn refusal(queue: &Queue, add: &AddJob) -> Option<CommandError> {
    let promised = u64::from(queue.adding);
    if add
        .max_len
        .is_some_and(|max_len| queue.len() + promised >= max_len)
    {
        Some(CommandError::MaxLen)
    } else if queue.pause.input {
        Some(CommandError::Paused)
    } else {
        None
    }
}

/// Makes the job, which takes the body, and queues it unless it is delayed, or its copies are waited for. `queue` is the key of its queue, when that exists.
pub(crate) fn apply(
    home: &mut Home,
    now: Now,
    ticket: Ticket,
    queue: Option<u32>,
    add: &mut AddJob,
) -> Answer {
    let queue = queue.unwrap_or_else(|| home.create_queue(now.mono(), &add.queue));
    let goes_out = home.goes_out(home.queue(queue), add);
    let id = home.new_id(home.queue(queue).slot, add.ttl_s, add.retry_s > 0);
    let after = |seconds: u32| now.mono().after_ms(u64::from(seconds) * SECOND_MS);
    home.counters.added += 1;
    home.counters.added_below_3_copies += u64::from(add.lowered);
    let delayed = add.delay_s > 0;
    let ctime = home.next_ctime(now);
    let job = home.insert_job(Job {
        id,
        ctime,
        expires_at: after(add.ttl_s),
        enters_at: if delayed { after(add.delay_s) } else { Mono::NEVER },
        body: std::mem::take(&mut add.body),
        links: Links::DETACHED,
        queue,
        timer: None,
        aside: NONE,
        share: NONE,
        ttl_s: add.ttl_s,
        retry_s: add.retry_s,
        delay_s: add.delay_s,
        nacks: 0,
        additional_deliveries: 0,
        deliveries: 0,
        replicate: copies_kept(add.replicate),
        place: Place::Idle,
        delivered: false,
        marks: Marks::added(goes_out),
    });
    let leaves = (home.peers.leaving || goes_out) && add.retry_s > 0;
    if add.replicate > 1 || leaves {
        let terms = CopyTerms {
            wanted: add.replicate - u16::from(!leaves),
            may_lower: add.may_lower,
            timeout_ms: add.timeout_ms,
            asynchronous: add.asynchronous,
        };
        return home.begin_copies(now.mono(), job, ticket, terms);
    }
    home.begin_life(now.mono(), job);
    home.send_out(now.mono(), job);
    Answer::Id(id)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::testing::with_args;

    fn parse(args: &Args<'_>, reachable: u16) -> Result<AddJob, CommandError> {
        check(args, Nodes { reachable, least: 1 }).map(|terms| terms.of_job(args))
    }

    fn parse_words(options: &str) -> Result<AddJob, CommandError> {
        let words: Vec<&str> = ["ADDJOB", "q", "body"]
            .into_iter()
            .chain(options.split(' '))
            .collect();
        with_args(&words, |args| parse(&args, 1))
    }

    fn is_err(options: &str) -> bool {
        matches!(
            parse_words(options),
            Err(CommandError::Other(_) | CommandError::NotAnInteger)
        )
    }

    #[test]
    fn defaults() {
        let add = parse_words("0").unwrap();
        assert_eq!((add.ttl_s, add.retry_s, add.delay_s), (86_400, 300, 0));
        assert_eq!((add.replicate, add.lowered, add.max_len), (1, true, None));
        assert_eq!(parse_words("0 TTL 95").unwrap().retry_s, 9);
        assert_eq!(parse_words("0 TTL 9").unwrap().retry_s, 1);
        let once = parse_words("0 RETRY 0").unwrap();
        assert_eq!(
            (once.replicate, once.lowered),
            (1, false),
            "at most once means one copy"
        );
    }

    #[test]
    fn options_in_any_order_and_the_last_counts() {
        let add = parse_words("5 async retry 7 MAXLEN 3 TTL 5 Delay 2 ttl 90 REPLICATE 1").unwrap();
        assert_eq!((add.timeout_ms, add.retry_s, add.max_len), (5, 7, Some(3)));
        assert_eq!((add.ttl_s, add.delay_s), (90, 2));
        assert!(add.asynchronous && !add.lowered);
    }

    #[test]
    fn syntax_errors() {
        for options in ["0 TTL", "0 NONSENSE", "0 ASYNC REPLICATE", "0 TTL 5 5"] {
            assert_eq!(parse_words(options), Err(CommandError::Syntax), "{options}");
        }
    }

    #[test]
    fn numbers_are_checked_at_both_ends() {
        for options in [
            "-1",
            "x",
            "",
            "0 TTL 0",
            "0 TTL -5",
            "0 RETRY -1",
            "0 DELAY -1",
            "0 MAXLEN 0",
            "0 REPLICATE 0",
            "0 REPLICATE 65536",
            "0 TTL 4294967295",
            "0 RETRY 4294967296",
            "0 DELAY 9223372036854775808",
            "0 TTL 10 DELAY 10",
            "0 RETRY 0 REPLICATE 2",
        ] {
            assert!(is_err(options), "{options}: {:?}", parse_words(options));
        }
        assert_eq!(
            parse_words(&format!("0 TTL {MAX_SECONDS}")).unwrap().ttl_s as u64,
            MAX_SECONDS
        );
        assert_eq!(
            parse_words("9223372036854775807").unwrap().timeout_ms,
            MAX_TIMEOUT_MS
        );
    }

    #[test]
    fn the_first_failing_check_is_the_answer() {
        assert_eq!(
            parse_words("x TTL"),
            Err(CommandError::Syntax),
            "options before the timeout"
        );
        assert!(
            is_err("0 RETRY 0 REPLICATE 3"),
            "at most once with copies before reachable nodes"
        );
        assert!(
            is_err("0 REPLICATE 3 TTL 5 DELAY 5"),
            "delay before reachable nodes"
        );
        assert_eq!(parse_words("0 REPLICATE 3"), Err(CommandError::NotEnoughNodes));
    }

    #[test]
    fn no_default_goes_below_the_least_number_of_copies() {
        let copies = |words: &[&str], reachable, least| {
            with_args(words, |args| check(&args, Nodes { reachable, least })).map(|terms| terms.replicate)
        };
        let plain = ["ADDJOB", "q", "b", "0"];
        assert_eq!(copies(&plain, 1, 2), Err(CommandError::NotEnoughNodes));
        assert_eq!(copies(&plain, 2, 2), Ok(2));
        assert_eq!(copies(&plain, 9, 5), Ok(5));
        let given = ["ADDJOB", "q", "b", "0", "REPLICATE", "1"];
        assert_eq!(copies(&given, 1, 2), Ok(1), "what is asked for counts");
        let once = ["ADDJOB", "q", "b", "0", "RETRY", "0"];
        assert_eq!(copies(&once, 1, 2), Ok(1));
    }

    #[test]
    fn the_default_of_copies_follows_the_nodes() {
        let copies =
            |reachable| with_args(&["ADDJOB", "q", "b", "0"], |args| parse(&args, reachable)).unwrap();
        assert_eq!((copies(2).replicate, copies(2).lowered), (2, true));
        assert_eq!((copies(9).replicate, copies(9).lowered), (3, false));
    }
}
