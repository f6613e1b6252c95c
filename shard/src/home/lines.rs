//! The order within a session where one of its requests has to wait here (`sessions.md`, Order within a connection).
//!
//! Overlapping requests of a session arrive in their order, and most are answered at once. Three kinds *linger*: an ADDJOB that waits for
//! memory, a NOHANG GETJOB that waits for reservations, and what waits for other nodes (`cluster/remote.rs`). What the same session asks meanwhile stands in line
//! *behind* them, but for further ADDJOBs while nothing but ADDJOBs lingers: those have an order of their own (`admission`).
//!
//! | a session's line | lingering | behind | moves on when |
//! | --- | --- | --- | --- |
//! | there is none | - | - | a request of it lingers |
//! | stands | ADDJOBs, or one other | any | the last of the lingering has ended |
//! | is ready | - | some | `tick` runs what is behind, until one lingers or none is left |
//!
//! Ready lines take turns, a request each, in bounded steps; answers leave as ends. A barrier never stands in line: it starts when
//! all before it is answered. Nor does a line wait for itself: reservations end by claims and cancels, memory by shard 0's answer.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use super::Home;
use crate::clock::Now;
use crate::commands::Request;
use crate::id::JobId;
use crate::limits::{LINE_ITEMS, UPKEEP_STEP};
use crate::message::{Answer, Manner, SessionId, Ticket};
use crate::slot::ShardNo;
use crate::wire::Blob;

/// A session, by its name in the node.
type Who = (ShardNo, SessionId);

/// The lines of a home.
#[derive(Debug, Default)]
pub struct Lines {
    of: BTreeMap<Who, Line>,
    /// Lines whose turn it is, the next one first.
    ready: VecDeque<Who>,
    /// Requests that stand behind others, and the memory charged for them.
    behind: u64,
    bytes: u64,
}

/// A session's line.
#[derive(Debug, Default)]
struct Line {
    /// Numbers of the requests that linger.
    lingering: BTreeSet<u32>,
    /// Whether what lingers is no ADDJOB: it is alone.
    alone: bool,
    /// What stands behind, the oldest first.
    behind: VecDeque<(u32, Box<Request>)>,
}

impl Line {
    /// Whether a request need not stand in it.
    fn lets_pass(&self, request: &Request) -> bool {
        matches!(request, Request::Add(_))
            && !self.alone
            && self.behind.is_empty()
            && !self.lingering.is_empty()
    }
}

impl Lines {
    pub fn any_is_ready(&self) -> bool {
        !self.ready.is_empty()
    }

    /// Requests that stand behind others.
    pub fn behind(&self) -> u64 {
        self.behind
    }

    /// Memory charged for what stands behind.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// A request waits: what its session asks from now on stands behind it.
    pub fn linger(&mut self, ticket: Ticket, alone: bool) {
        let line = self.of.entry(who(ticket)).or_default();
        assert!(
            line.lingering.is_empty() || !(alone || line.alone),
            "only ADDJOBs linger together"
        );
        line.alone = alone;
        line.lingering.insert(ticket.request);
    }

    /// A request has ended that may have lingered.
    pub fn ended(&mut self, ticket: Ticket) {
        let who = who(ticket);
        let Some(line) = self.of.get_mut(&who) else { return };
        if !line.lingering.remove(&ticket.request) || !line.lingering.is_empty() {
            return;
        }
        line.alone = false;
        self.go_on(who);
    }

    /// Nothing lingers in a line: it goes on with what stands behind, or goes.
    fn go_on(&mut self, who: Who) {
        if self.of[&who].behind.is_empty() {
            self.of.remove(&who);
        } else {
            self.ready.push_back(who);
        }
    }

    /// Whether a request has to stand in its session's line.
    #[inline]
    pub fn holds_back(&self, ticket: Ticket, request: &Request) -> bool {
        if self.of.is_empty() {
            return false;
        }
        let line = self.of.get(&who(ticket));
        line.is_some_and(|line| !line.lets_pass(request))
    }

    /// Puts a request in its session's line; the memory that it is charged with.
    fn stand(&mut self, ticket: Ticket, request: Request) -> u64 {
        let line = self
            .of
            .get_mut(&who(ticket))
            .expect("a line that holds back is there");
        assert!(!is_of_barrier(&request), "a barrier waits for all before it");
        let bytes = bytes_of(&request);
        line.behind.push_back((ticket.request, Box::new(request)));
        self.behind += 1;
        self.bytes += bytes;
        bytes
    }

    /// The request whose turn it is, and its bytes. Its line is not ready until `turn_is_over`.
    fn next(&mut self) -> Option<(Ticket, Request, u64)> {
        loop {
            let who = self.ready.pop_front()?;
            let line = self.of.get_mut(&who).expect("a line that is ready is there");
            let Some((request_no, request)) = line.behind.pop_front() else {
                // All that stood in it was withdrawn.
                self.of.remove(&who);
                continue;
            };
            let bytes = bytes_of(&request);
            self.behind -= 1;
            self.bytes -= bytes;
            return Some((ticket(who, request_no), *request, bytes));
        }
    }

    /// The request that was `next` was handled.
    fn turn_is_over(&mut self, ticket: Ticket) {
        let who = who(ticket);
        if self.of[&who].lingering.is_empty() {
            self.go_on(who);
        }
    }

    /// Takes an ADDJOB or GETJOB that stands behind others out of its line; its bytes.
    fn withdraw(&mut self, ticket: Ticket) -> Option<u64> {
        let line = self.of.get_mut(&who(ticket))?;
        let is_it = |(request_no, request): &(u32, Box<Request>)| {
            *request_no == ticket.request && matches!(**request, Request::Add(_) | Request::Take(_))
        };
        let at = line.behind.iter().position(is_it)?;
        let (_, request) = line.behind.remove(at).expect("it was found there");
        let bytes = bytes_of(&request);
        self.behind -= 1;
        self.bytes -= bytes;
        Some(bytes)
    }

    /// Panics when something does not hold. `lingers` names all requests that do.
    pub fn check(&self, lingers: &BTreeSet<Ticket>) {
        let mut named = BTreeSet::new();
        let (mut behind, mut bytes) = (0, 0);
        for (&who, line) in &self.of {
            let turns = self.ready.iter().filter(|&&ready| ready == who).count();
            assert_eq!(
                turns,
                usize::from(line.lingering.is_empty()),
                "a line waits for something, or its turn comes once"
            );
            assert!(
                line.lingering.len() <= 1 || !line.alone,
                "only ADDJOBs linger together"
            );
            named.extend(line.lingering.iter().map(|&request_no| ticket(who, request_no)));
            behind += line.behind.len() as u64;
            bytes += line
                .behind
                .iter()
                .map(|(_, request)| bytes_of(request))
                .sum::<u64>();
        }
        assert_eq!(&named, lingers, "a line knows what lingers, and nothing else");
        assert!(self.ready.iter().all(|who| self.of.contains_key(who)));
        assert_eq!(
            (behind, bytes),
            (self.behind, self.bytes),
            "what stands behind adds up"
        );
    }
}

impl Home {
    /// Makes a request wait for its turn, since one of its session lingers.
    pub(super) fn stand_in_line(&mut self, ticket: Ticket, request: Request) {
        let bytes = self.lines.stand(ticket, request);
        self.memory.charge(bytes);
    }

    /// A request ends that stands behind others, when it is one that can be taken back. Whether it was.
    pub(super) fn withdraw(&mut self, ticket: Ticket) -> bool {
        let bytes = self.lines.withdraw(ticket);
        self.memory.release(bytes.unwrap_or(0));
        bytes.is_some()
    }

    /// A step through the lines that are ready.
    pub(super) fn step_lines(&mut self, now: Now) {
        let mut left = UPKEEP_STEP;
        while left > 0 {
            let Some((ticket, mut request, bytes)) = self.lines.next() else {
                return;
            };
            self.memory.release(bytes);
            left = left.saturating_sub(weight(&request));
            let answer = self.perform(now, ticket, &mut request);
            if !matches!(answer, Answer::Waiting) {
                self.end(ticket, answer);
            }
            self.lines.turn_is_over(ticket);
        }
    }
}

fn who(ticket: Ticket) -> Who {
    (ticket.shard, ticket.session)
}

fn ticket((shard, session): Who, request: u32) -> Ticket {
    Ticket {
        shard,
        session,
        request,
    }
}

fn is_of_barrier(request: &Request) -> bool {
    match request {
        Request::Take(take) => take.manner == Manner::Offer,
        Request::Peek(_) | Request::Scan(_) | Request::Gather(_) => true,
        _ => false,
    }
}

/// What a request costs of a step, 1 for most.
fn weight(request: &Request) -> usize {
    let items = match request {
        Request::Ids { ids, .. } => ids.len(),
        Request::Take(take) => take.count as usize,
        // Opening a queue moves as many jobs as a step of upkeep does.
        Request::Pause(_) => UPKEEP_STEP,
        _ => 0,
    };
    1 + items / LINE_ITEMS
}

/// Memory that a request takes while it stands in line.
fn bytes_of(request: &Request) -> u64 {
    let heap = match request {
        Request::Add(add) => add.queue.heap_bytes() + add.body.heap_bytes(),
        Request::Take(take) => {
            let names = take
                .queues
                .iter()
                .map(|(_, queue)| queue.heap_bytes())
                .sum::<usize>();
            names + take.queues.len() * size_of::<(u32, Blob)>()
        }
        Request::Ids { ids, .. } => ids.len() * size_of::<JobId>(),
        Request::Length(queue) | Request::Lengths(queue) => queue.heap_bytes(),
        Request::Stat(queue) | Request::Stats(queue) => queue.heap_bytes(),
        Request::Pause(pause) => pause.queue.heap_bytes(),
        Request::Show(_) | Request::Working(_) => 0,
        Request::Peek(_) | Request::Scan(_) | Request::Gather(_) => {
            unreachable!("a barrier stands in no line: {request:?}")
        }
    };
    (heap + size_of::<Request>() + size_of::<(u32, Box<Request>)>()) as u64
}
