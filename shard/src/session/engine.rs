//! Runs a session: starts its requests in order, takes in answers, writes replies.
//!
//! What may start when is `sessions.md`, "Order within a connection": a plan *overlaps* when it has one home shard and neither
//! blocks (a NOHANG GETJOB waits for reservations at most) nor goes on in steps; it starts while earlier overlapping ones are unanswered. Behind one that waits
//! at its home, what follows waits there too (`home/lines.rs`), so any overlapping request may be answered late. Every other plan is a barrier (`barrier`).

use std::collections::VecDeque;

use crate::clock::Now;
use crate::commands::{Flags, GetJob, Plan, Request, table};
use crate::core::Core;
use crate::error::CommandError;
use crate::input::{Effect, LogLevel};
use crate::limits;
use crate::message::{Answer, Manner, Patience, Take, Ticket};
use crate::node::Change;
use crate::session::{Ending, Hold, Pending, Session, reply};
use crate::slot::{ShardNo, Slot};
use crate::wire::{Args, RequestLimits};

/// Room for unanswered requests that a session keeps when it has none.
const KEPT_PENDING: usize = 64;

/// One session at work, with the rest of its shard.
pub(crate) struct Engine<'a> {
    pub now: Now,
    pub core: &'a mut Core,
    pub session: &'a mut Session,
}

/// What became of a request.
enum Started {
    Yes,
    NotYet(Hold),
}

impl Engine<'_> {
    /// Goes on with what the session holds, then with `input`, as far as its order allows.
    pub fn run(&mut self, mut input: &[u8]) {
        if self.session.held.is_some() && !input.is_empty() {
            // What it waits for will run it again.
            self.session.parser.stash(input);
            return self.end_step();
        }
        let mut parser = std::mem::take(&mut self.session.parser);
        self.session.held = None;
        loop {
            if let Some(hold) = self.must_hold() {
                parser.stash(input);
                self.hold(hold);
                break;
            }
            if !matches!(self.session.ending, None | Some(Ending::HalfClosed)) {
                break;
            }
            let limits = if self.is_let_in() {
                RequestLimits::FULL
            } else {
                RequestLimits::UNAUTHENTICATED
            };
            let before = input;
            match parser.next(&mut input, &limits) {
                Ok(None) => break,
                Ok(Some(args)) => match self.start(args) {
                    Started::Yes => {}
                    Started::NotYet(hold) => {
                        parser.put_back(before);
                        self.hold(hold);
                        break;
                    }
                },
                Err(error) => {
                    let text = if error.is_answered() {
                        error.to_string()
                    } else {
                        String::new()
                    };
                    self.session.ending = Some(Ending::Error(text));
                }
            }
        }
        self.session.parser = parser;
        self.end_step();
    }

    /// Whether its commands are served: it gave the password, or none is set any more.
    fn is_let_in(&self) -> bool {
        self.session.client.authenticated || self.core.settings.requirepass.is_none()
    }

    /// Why nothing may start now, whatever it is.
    pub(super) fn must_hold(&self) -> Option<Hold> {
        if self.session.progress.is_some() {
            Some(Hold::Order)
        } else if !self.session.has_room() {
            Some(Hold::Room)
        } else if self.session.unsent_bytes() >= limits::OUTPUT_HIGH_BYTES {
            Some(Hold::Output)
        } else {
            None
        }
    }

    fn hold(&mut self, hold: Hold) {
        self.session.held = Some(hold);
    }

    fn start(&mut self, args: Args<'_>) -> Started {
        if is_http(args.name()) {
            let client = &self.session.client.peer;
            let text = format!("closed {client}: it sent HTTP, perhaps a web page that attacks this port");
            self.core.effects.push(Effect::Log {
                level: LogLevel::Warn,
                text,
            });
            self.session.ending = Some(Ending::Error(String::new()));
            return Started::Yes;
        }
        // The plan stays where it was made: it is large, and a move is a copy.
        let (command, refusal) = self.admit(args);
        let mut planned = match (command, refusal) {
            (Some(command), None) => {
                (table::COMMANDS[usize::from(command)].plan)(self.core, self.session, &args)
            }
            (_, refusal) => Err(refusal.expect("what is no command is refused")),
        };
        let plan = match &mut planned {
            Ok(plan) => plan,
            Err(_) if !self.session.is_idle() => return Started::NotYet(Hold::Order),
            Err(error) => {
                if let Some(command) = command {
                    self.count_start(command, args);
                }
                self.reply_error(error);
                return Started::Yes;
            }
        };
        let command = command.expect("a plan has a command");
        let flags = table::COMMANDS[usize::from(command)].flags;
        if self.core.clients_are_paused(flags) && !is_unpause(plan) {
            return Started::NotYet(Hold::Paused);
        }
        let target = overlap_target(plan, self.core.shards);
        let waits_for_all = target.is_none() || (self.session.asking_nodes > 0 && !is_add(plan));
        if waits_for_all && !self.session.is_idle() {
            return Started::NotYet(Hold::Order);
        }
        if let Some(target) = target
            && target != self.core.shard
            && !self.core.mesh.has_credit(target)
        {
            self.core.mesh.wait_for_credit(target, self.session.id);
            return Started::NotYet(Hold::Credit);
        }
        self.count_start(command, args);
        match target {
            Some(target) => self.start_overlapping(command, target, plan),
            None => self.start_barrier(command, planned.expect("it was looked at"), args),
        }
        Started::Yes
    }

    /// The checks before a command's own grammar (reference, 1.2): which it is, as far as it counts, and why it is refused.
    fn admit(&self, args: Args<'_>) -> (Option<u8>, Option<CommandError>) {
        let Some(number) = table::find_renamed(&self.core.settings, args.name()) else {
            return (None, Some(table::unknown_command(args)));
        };
        let spec = &table::COMMANDS[usize::from(number)];
        if !spec.takes(args.len()) {
            return (None, Some(CommandError::Arity(spec.name.into())));
        }
        if !self.is_let_in() && !spec.flags.has(Flags::NO_AUTH) {
            return (None, Some(CommandError::NotAuthenticated));
        }
        if self.core.loading.is_some() && !spec.flags.has(Flags::LOADING) {
            return (Some(number), Some(CommandError::Loading));
        }
        (Some(number), None)
    }

    pub(super) fn count_start(&mut self, command: u8, args: Args<'_>) {
        self.session.client.last_command = table::COMMANDS[usize::from(command)].name;
        self.core
            .command_started(self.now, command, &self.session.client, args);
    }

    fn start_overlapping(&mut self, command: u8, target: ShardNo, plan: &mut Plan) {
        match plan {
            Plan::Home { request, .. } => self.overlap(command, target, request, false),
            Plan::Ids { verb, ids } => {
                let (verb, ids) = (*verb, std::mem::take(ids));
                self.overlap(command, target, &mut Request::Ids { verb, ids }, false);
            }
            Plan::GetJob(ask) => {
                let take = waits_at_once(ask);
                self.overlap(command, target, &mut Request::Take(take), ask.with_counters);
            }
            _ => unreachable!("the plan does not overlap"),
        }
    }

    /// `request` is left without what its home keeps of it.
    fn overlap(&mut self, command: u8, target: ShardNo, request: &mut Request, with_counters: bool) {
        let waits_at = request.may_wait().then_some(target);
        let asks_nodes = matches!(request, Request::Add(add) if add.replicate > 1 && !add.asynchronous);
        let suppressed = self.suppress_reply();
        let ticket = self.session.ticket(self.session.next_request());
        let answer = self.ask(target, ticket, request);
        match answer {
            Some(mut answer) if self.session.pending.is_empty() && !matches!(answer, Answer::Waiting) => {
                self.session.first_pending = self.session.first_pending.wrapping_add(1);
                self.write(suppressed, |session| {
                    reply::write_answer(session, &answer, with_counters)
                });
                self.core.home.recycle(&mut answer);
            }
            answer => {
                let answer = answer.filter(|answer| !matches!(answer, Answer::Waiting));
                self.core.stats.command_waits(command);
                let started_us = self.now.mono_us;
                let asks_nodes = asks_nodes && answer.is_none();
                self.session.asking_nodes += u32::from(asks_nodes);
                self.session.pending.push_back(Pending {
                    answer,
                    command,
                    with_counters,
                    suppressed,
                    started_us,
                    waits_at,
                    asks_nodes,
                });
            }
        }
    }

    /// Brings a request to its home shard; the answer when that is this one. It is left without what is kept of it.
    pub(super) fn ask(&mut self, target: ShardNo, ticket: Ticket, request: &mut Request) -> Option<Answer> {
        if target == self.core.shard {
            Some(self.core.home.request_in_place(self.now, ticket, request))
        } else {
            self.core.mesh.request(target, ticket, request.take());
            None
        }
    }

    /// An answer came for one of the session's requests. `first` is the one that returns the credit of the request.
    pub fn answered(&mut self, from: ShardNo, request: u32, answer: Answer, first: bool) {
        self.take_answer(from, request, answer, first);
        self.write_answered();
        self.go_on();
    }

    /// The same, for one of several: the replies are not written yet.
    pub fn take_answer(&mut self, from: ShardNo, request: u32, answer: Answer, first: bool) {
        if self
            .session
            .progress
            .as_ref()
            .is_some_and(|progress| progress.request == request)
        {
            self.absorb(from, answer, first);
            self.pump(false);
        } else if let Some(pending) = self.session.pending_mut(request) {
            if !matches!(answer, Answer::Waiting) {
                assert!(pending.answer.is_none(), "a request is answered once");
                pending.answer = Some(answer);
                let asked_nodes = std::mem::take(&mut pending.asks_nodes);
                self.session.asking_nodes -= u32::from(asked_nodes);
            }
        } else {
            self.core.return_stale(self.now, answer);
        }
    }

    /// Writes the replies of the oldest pending requests that are answered.
    pub fn write_answered(&mut self) {
        // Requests of one input took as long: they are counted together.
        let mut run: Option<(u8, u64)> = None;
        let mut calls = 0;
        while self
            .session
            .pending
            .front()
            .is_some_and(|pending| pending.answer.is_some())
        {
            let pending = self.session.pending.pop_front().expect("its front was there");
            self.session.first_pending = self.session.first_pending.wrapping_add(1);
            let answer = pending.answer.expect("it was answered");
            let this = (pending.command, pending.started_us);
            if run.is_some_and(|run| run != this) {
                self.count_late(run.take(), std::mem::take(&mut calls));
            }
            run = Some(this);
            calls += 1;
            let counters = pending.with_counters;
            self.write(pending.suppressed, |session| {
                reply::write_answer(session, &answer, counters)
            });
        }
        self.count_late(run, calls);
        if self.session.pending.is_empty() && self.session.pending.capacity() > KEPT_PENDING {
            self.session.pending = VecDeque::new();
        }
    }

    fn count_late(&mut self, run: Option<(u8, u64)>, calls: u64) {
        if let Some((command, started_us)) = run {
            let took_us = self.now.mono_us - started_us;
            self.core.commands_ended_late(self.now, command, took_us, calls);
        }
    }

    /// After an answer: the input that waited for its turn may go on.
    pub fn go_on(&mut self) {
        let goes_on = match self.session.held {
            Some(Hold::Order) => self.session.is_idle(),
            Some(Hold::Room) => self.session.has_room(),
            _ => false,
        };
        if goes_on {
            self.core.run_later(self.session);
        }
        self.end_step();
    }
}

/// The one home shard of a plan that may overlap with others; none for a barrier.
fn overlap_target(plan: &Plan, shards: u16) -> Option<ShardNo> {
    match plan {
        Plan::Home { slot, .. } => Some(slot.home(shards)),
        Plan::Ids { ids, .. } => {
            if ids.len() > limits::IDS_STEP {
                return None;
            }
            let mut homes = ids.iter().map(|id| id.slot().home(shards));
            let first = homes.next()?;
            homes.all(|home| home == first).then_some(first)
        }
        Plan::GetJob(ask) => {
            if !ask.nohang || ask.count > u64::from(limits::TAKE_STEP) {
                return None;
            }
            let mut homes = ask
                .queues
                .iter()
                .map(|(_, queue)| Slot::of_queue(queue).home(shards));
            let first = homes.next()?;
            homes.all(|home| home == first).then_some(first)
        }
        _ => None,
    }
}

fn is_add(plan: &Plan) -> bool {
    matches!(
        plan,
        Plan::Home {
            request: Request::Add(_),
            ..
        }
    )
}

fn waits_at_once(ask: &mut GetJob) -> Take {
    Take {
        queues: std::mem::take(&mut ask.queues),
        count: ask.count as u32,
        manner: Manner::Deliver,
        patience: Patience::Reserved,
    }
}

fn is_unpause(plan: &Plan) -> bool {
    matches!(
        plan,
        Plan::Change {
            change: Change::UnpauseClients,
            ..
        }
    )
}

/// Whether a request is a line of HTTP: a browser that was tricked into posting here must not run commands (as Redis does).
fn is_http(name: &[u8]) -> bool {
    name.eq_ignore_ascii_case(b"POST") || name.eq_ignore_ascii_case(b"Host:")
}
