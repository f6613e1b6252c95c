//! Runs a session: starts its requests in order, takes in answers, writes replies.
//!
//! What may start when is `sessions.md`, "Order within a connection": a plan *overlaps* when it has one home shard and can neither
//! block nor go on in steps; it starts while earlier overlapping ones are unanswered. Every other plan is a barrier.

use std::collections::VecDeque;

use bytes::Bytes;
use smallvec::SmallVec;

use crate::clock::Now;
use crate::commands::view::Part;
use crate::commands::{Call, Finish, Flags, GetJob, IdVerb, Plan, Request, table};
use crate::core::{Core, SessionTimer};
use crate::error::CommandError;
use crate::input::{Effect, Told};
use crate::limits;
use crate::message::{Answer, Handed, Manner, Message, Patience, Take, Ticket};
use crate::node::{Change, NodeMessage};
use crate::session::getjob::{GetJobProgress, Step};
use crate::session::progress::{self, IdsProgress, Kind, Progress, ScanProgress, Waited};
use crate::session::{Ending, Hold, Pending, Replies, Session, reply};
use crate::slot::{ShardNo, Slot};
use crate::wire::{Args, Output, RequestLimits};

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
            let limits = if self.session.client.authenticated {
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

    /// Why nothing may start now, whatever it is.
    fn must_hold(&self) -> Option<Hold> {
        if self.session.progress.is_some() || !self.session.has_room() {
            Some(Hold::Order)
        } else if self.session.output.queued_bytes() >= limits::OUTPUT_HIGH_BYTES {
            Some(Hold::Output)
        } else {
            None
        }
    }

    fn hold(&mut self, hold: Hold) {
        self.session.held = Some(hold);
        if hold == Hold::Paused {
            self.core.wait_for_unpause(self.session.id);
        }
    }

    fn start(&mut self, args: Args<'_>) -> Started {
        let (spec, plan) = match self.plan(args) {
            (spec, Ok(plan)) => (spec, plan),
            (_, Err(_)) if !self.session.is_idle() => return Started::NotYet(Hold::Order),
            (spec, Err(error)) => {
                if let Some(command) = spec {
                    self.count_start(command, args);
                }
                self.reply_error(&error);
                return Started::Yes;
            }
        };
        let command = spec.expect("a plan has a command");
        let flags = table::COMMANDS[usize::from(command)].flags;
        if self.core.clients_are_paused(flags) && !is_unpause(&plan) {
            return Started::NotYet(Hold::Paused);
        }
        let target = overlap_target(&plan, self.core.shards);
        if target.is_none() && !self.session.is_idle() {
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
            None => self.start_barrier(command, plan, args),
        }
        Started::Yes
    }

    /// Grammar and the checks before a command (reference, 1.2).
    fn plan(&self, args: Args<'_>) -> (Option<u8>, Result<Plan, CommandError>) {
        let Some(number) = table::find(args.name()) else {
            return (None, Err(table::unknown_command(args)));
        };
        let spec = &table::COMMANDS[usize::from(number)];
        let count = args.len() as i32;
        if (spec.arity > 0 && count != spec.arity) || (spec.arity < 0 && count < -spec.arity) {
            return (None, Err(CommandError::Arity(spec.name.into())));
        }
        if !self.session.client.authenticated && !spec.flags.has(Flags::NO_AUTH) {
            return (None, Err(CommandError::NotAuthenticated));
        }
        (Some(number), (spec.plan)(self.core, self.session, &args))
    }

    fn count_start(&mut self, command: u8, args: Args<'_>) {
        self.session.client.last_command = table::COMMANDS[usize::from(command)].name;
        self.core
            .command_started(self.now, command, &self.session.client, args);
    }

    fn start_overlapping(&mut self, command: u8, target: ShardNo, plan: Plan) {
        let (request, with_counters) = match plan {
            Plan::Home { request, .. } => (request, false),
            Plan::Ids { verb, ids } => (
                Request::Ids {
                    verb,
                    ids: ids.into_iter().collect(),
                },
                false,
            ),
            Plan::GetJob(ask) => {
                let counters = ask.with_counters;
                (Request::Take(take_at_once(ask)), counters)
            }
            _ => unreachable!("the plan does not overlap"),
        };
        let take_at = matches!(request, Request::Take(_)).then_some(target);
        let suppressed = self.suppress_reply();
        let ticket = self.session.ticket(self.session.next_request());
        let answer = self.ask(target, ticket, request);
        match answer {
            Some(answer) if self.session.pending.is_empty() && !matches!(answer, Answer::Waiting) => {
                self.session.first_pending = self.session.first_pending.wrapping_add(1);
                self.write(suppressed, |session, node| {
                    reply::write_answer(session, &answer, with_counters, node)
                });
            }
            answer => {
                let answer = answer.filter(|answer| !matches!(answer, Answer::Waiting));
                self.core.stats.command_waits(command);
                let started_us = self.now.mono_us;
                self.session.pending.push_back(Pending {
                    answer,
                    command,
                    with_counters,
                    suppressed,
                    started_us,
                    take_at,
                });
            }
        }
    }

    /// Brings a request to its home shard; the answer when that is this one.
    fn ask(&mut self, target: ShardNo, ticket: Ticket, request: Request) -> Option<Answer> {
        if target == self.core.shard {
            Some(self.core.home.request(self.now, ticket, request))
        } else {
            self.core.mesh.request(target, ticket, request);
            None
        }
    }

    fn start_barrier(&mut self, command: u8, plan: Plan, args: Args<'_>) {
        let mut unsent = VecDeque::new();
        let keep = |args: Args<'_>| args.iter().map(Bytes::copy_from_slice).collect::<Vec<_>>();
        let kind = match plan {
            Plan::Local(run) => return self.run_local(run, args),
            Plan::Home { slot, request } => unreachable!("{slot:?} {request:?} overlaps"),
            Plan::Ids { verb, ids } => {
                unsent = IdsProgress::requests(verb, &ids, self.core.shards);
                Kind::Ids(IdsProgress::new(verb))
            }
            Plan::GetJob(ask) => {
                if let Some(ask) = self.get_here(ask) {
                    let mut getjob = GetJobProgress::new(ask, self.core.shards);
                    unsent = take_requests(getjob.begin_round());
                    Kind::GetJob(getjob)
                } else {
                    return;
                }
            }
            Plan::Peek(ask) => {
                unsent.push_back((
                    Slot::of_queue(&ask.queue).home(self.core.shards),
                    Request::Peek(ask.clone()),
                ));
                Kind::Peek {
                    ask,
                    jobs: Vec::new(),
                    bytes: 0,
                }
            }
            Plan::Scan(ask) => {
                unsent = self.scan_requests(&ask);
                Kind::Scan(ScanProgress::new(ask))
            }
            Plan::Gather {
                ask,
                question,
                finish,
            } => {
                unsent.extend((0..self.core.shards).map(|shard| (shard, Request::Gather(ask.clone()))));
                let told = if question.is_some() {
                    Waited::Asked
                } else {
                    Waited::NotAsked
                };
                if let Some(question) = question {
                    let ticket = self.session.ticket(self.session.first_pending);
                    self.core.effects.push(Effect::Ask { ticket, question });
                }
                let parts = (0..self.core.shards).map(|_| None).collect();
                Kind::Gather {
                    parts,
                    told,
                    args: keep(args),
                    finish,
                }
            }
            Plan::Change { change, finish } => {
                let ticket = self.session.ticket(self.session.first_pending);
                self.core.send_node(
                    0,
                    NodeMessage::Ask {
                        ticket: Some(ticket),
                        change,
                    },
                );
                Kind::Change {
                    args: keep(args),
                    finish,
                }
            }
            Plan::Ask { question, finish } => {
                let ticket = self.session.ticket(self.session.first_pending);
                self.core.effects.push(Effect::Ask { ticket, question });
                Kind::Gather {
                    parts: Vec::new(),
                    told: Waited::Asked,
                    args: keep(args),
                    finish,
                }
            }
            Plan::Sleep { ms } => {
                self.arm_timer(ms);
                Kind::Sleep
            }
        };
        let suppressed = self.suppress_reply();
        let started_us = self.now.mono_us;
        let request = self.session.first_pending;
        let waited = false;
        self.session.progress = Some(Box::new(Progress {
            command,
            started_us,
            request,
            suppressed,
            waited,
            unsent,
            open: 0,
            kind,
        }));
        self.pump(true);
        if let Some(progress) = &mut self.session.progress {
            progress.waited = true;
            self.core.stats.command_waits(command);
        }
    }

    /// The short way of most GETJOBs: all queues are here, and so are jobs. Gives the command back when it is not so short.
    fn get_here(&mut self, ask: GetJob) -> Option<GetJob> {
        let here =
            |queue: &crate::wire::Blob| Slot::of_queue(queue).home(self.core.shards) == self.core.shard;
        if ask.count > u64::from(limits::TAKE_STEP) || !ask.queues.iter().all(here) {
            return Some(ask);
        }
        let queues = ask
            .queues
            .iter()
            .enumerate()
            .map(|(place, queue)| (place as u32, queue.clone()))
            .collect();
        let take = Take {
            queues,
            count: ask.count as u32,
            manner: Manner::Deliver,
            patience: Patience::None,
        };
        let ticket = self.session.ticket(self.session.first_pending);
        let answer = self.core.home.request(self.now, ticket, Request::Take(take));
        if matches!(answer, Answer::Nothing) {
            return Some(ask);
        }
        let suppressed = self.suppress_reply();
        self.session.first_pending = self.session.first_pending.wrapping_add(1);
        self.write(suppressed, |session, node| {
            reply::write_answer(session, &answer, ask.with_counters, node)
        });
        None
    }

    /// Runs a command of this shard. CLIENT REPLY decides by its state after it ran whether a reply is wanted.
    fn run_local(&mut self, run: fn(&mut Call<'_>) -> Result<(), CommandError>, args: Args<'_>) {
        let replies_before = self.session.client.replies;
        let kept = (replies_before != Replies::On)
            .then(|| std::mem::replace(&mut self.session.output, Output::new()));
        if replies_before == Replies::SkipNext {
            self.session.client.replies = Replies::On;
        }
        let mut call = Call {
            now: self.now,
            args: &args,
            session: self.session,
            core: self.core,
        };
        if let Err(error) = run(&mut call) {
            self.session.encoder().error(&error.to_string());
        }
        if let Some(kept) = kept {
            let reply = std::mem::replace(&mut self.session.output, kept);
            if replies_before == Replies::Off && self.session.client.replies == Replies::On {
                reply_chunks(reply, &mut self.session.output);
            }
        }
    }

    fn scan_requests(&self, ask: &crate::commands::Scan) -> VecDeque<(ShardNo, Request)> {
        match ask.only_slot() {
            Some(slot) => VecDeque::from([(slot.home(self.core.shards), Request::Scan(ask.clone()))]),
            None => (0..self.core.shards)
                .map(|shard| (shard, Request::Scan(ask.clone())))
                .collect(),
        }
    }

    /// Sends what the command under way has to send; takes in the answers of this shard. Only the `first` call of a
    /// step asks this shard, so that a step stays bounded: the rest goes on in the next turn.
    fn pump(&mut self, first: bool) {
        let mut may_ask_here = first;
        loop {
            let Some(progress) = self.session.progress.as_mut() else {
                return;
            };
            let Some((target, _)) = progress.unsent.front() else {
                break;
            };
            let target = *target;
            if target == self.core.shard {
                if !std::mem::take(&mut may_ask_here) {
                    self.core.run_later(self.session);
                    return;
                }
            } else if !self.core.mesh.has_credit(target) {
                self.core.mesh.wait_for_credit(target, self.session.id);
                return;
            }
            let (_, request) = progress.unsent.pop_front().expect("its front was there");
            progress.open += 1;
            let ticket = Ticket {
                shard: self.core.shard,
                session: self.session.id,
                request: progress.request,
            };
            match request {
                Request::Gather(ask) if target == self.core.shard => {
                    self.core.gather_later(target, ticket, ask)
                }
                request => {
                    if let Some(answer) = self.ask(target, ticket, request) {
                        self.absorb(target, answer, true);
                    }
                }
            }
        }
        self.finish_if_complete();
    }

    /// Goes on after a turn, a credit, or room in the output.
    pub fn resume(&mut self) {
        if self.session.progress.is_some() {
            self.pump(true);
        }
        if self.session.progress.is_none() {
            self.run(&[]);
        } else {
            self.end_step();
        }
    }

    /// An answer came for one of the session's requests. `first` is the one that returns the credit of the request.
    pub fn answered(&mut self, from: ShardNo, request: u32, answer: Answer, first: bool) {
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
                self.write_answered();
            }
        } else {
            self.core.return_stale(self.now, answer);
        }
        self.go_on();
    }

    /// Writes the replies of the oldest pending requests that are answered.
    fn write_answered(&mut self) {
        while self
            .session
            .pending
            .front()
            .is_some_and(|pending| pending.answer.is_some())
        {
            let pending = self.session.pending.pop_front().expect("its front was there");
            self.session.first_pending = self.session.first_pending.wrapping_add(1);
            let answer = pending.answer.expect("it was answered");
            self.core.command_ended_late(
                self.now,
                pending.command,
                &[],
                self.now.mono_us - pending.started_us,
            );
            let counters = pending.with_counters;
            self.write(pending.suppressed, |session, node| {
                reply::write_answer(session, &answer, counters, node)
            });
        }
    }

    /// After an answer: the input that waited for its turn may go on.
    fn go_on(&mut self) {
        let order = self.session.held == Some(Hold::Order) && self.session.progress.is_none();
        if order && (self.session.is_idle() || self.session.has_room()) {
            self.core.run_later(self.session);
        }
        self.end_step();
    }

    /// Takes an answer into the command under way.
    fn absorb(&mut self, from: ShardNo, answer: Answer, first: bool) {
        let progress = self.session.progress.as_mut().expect("a command is under way");
        if first {
            progress.open -= 1;
        }
        match &mut progress.kind {
            Kind::Ids(ids) => match answer {
                Answer::Count(counted) => ids.counted += counted,
                Answer::Entered { counted, paused } => {
                    ids.counted += counted;
                    ids.paused += paused;
                }
                Answer::Error(error) => ids.error = Some(error),
                other => unreachable!("no answer to IDs: {other:?}"),
            },
            Kind::GetJob(getjob) => {
                let step = getjob.absorb(from, answer);
                self.take_step(step);
            }
            Kind::Peek { ask, jobs, bytes } => {
                let Answer::Peeked { jobs: more, next } = answer else {
                    unreachable!("no answer to QPEEK: {answer:?}")
                };
                *bytes += more.iter().map(progress::delivered_bytes).sum::<usize>();
                jobs.extend(more);
                if let Some(rest) = progress::peek_rest(ask, jobs.len(), next)
                    && *bytes < limits::REPLY_BYTES
                {
                    progress.unsent.push_back((from, Request::Peek(rest)));
                }
            }
            Kind::Scan(scan) => {
                let Answer::Page(page) = answer else {
                    unreachable!("no answer to a scan: {answer:?}")
                };
                scan.absorb(*page);
                if progress.open == 0 && progress.unsent.is_empty() && !scan.end_round() {
                    let mut ask = scan.ask.clone();
                    ask.position = scan
                        .next
                        .take()
                        .expect("a round that is not the last has a next place");
                    scan.ask = ask.clone();
                    let requests = self.scan_requests(&ask);
                    self.session
                        .progress
                        .as_mut()
                        .expect("a command is under way")
                        .unsent = requests;
                }
            }
            Kind::Gather { parts, .. } => {
                let Answer::Part(part) = answer else {
                    unreachable!("no part: {answer:?}")
                };
                parts[usize::from(from)] = Some(*part);
            }
            Kind::Change { .. } | Kind::Sleep => unreachable!("{answer:?} for a command that asked no shard"),
        }
    }

    /// Does what a GETJOB under way wants done.
    fn take_step(&mut self, step: Step) {
        let progress = self.session.progress.as_mut().expect("a GETJOB is under way");
        let ticket = Ticket {
            shard: self.core.shard,
            session: self.session.id,
            request: progress.request,
        };
        match step {
            Step::Wait => {
                if let Kind::GetJob(getjob) = &progress.kind
                    && self.session.timer.is_none()
                    && let Some(timeout_ms) = getjob.timeout_ms().filter(|_| getjob.is_waiting())
                {
                    let spent_ms = (self.now.mono_us - progress.started_us) / 1000;
                    self.arm_timer(timeout_ms.saturating_sub(spent_ms));
                }
            }
            Step::Claim(claims) => {
                for (shard, ids) in claims {
                    self.core
                        .send_or_do(self.now, shard, Message::Claim { ticket, ids });
                }
            }
            Step::Cancel(shards) => self.cancel(ticket, &shards),
            Step::NextRound(shards) => {
                self.cancel(ticket, &shards);
                self.session.first_pending = self.session.first_pending.wrapping_add(1);
                let progress = self.session.progress.as_mut().expect("a GETJOB is under way");
                progress.request = self.session.first_pending;
                let Kind::GetJob(getjob) = &mut progress.kind else {
                    unreachable!("it is a GETJOB")
                };
                progress.unsent = take_requests(getjob.begin_round());
            }
            Step::Reply(shards) => {
                self.cancel(ticket, &shards);
                let progress = self.end_progress();
                let Kind::GetJob(getjob) = progress.kind else {
                    unreachable!("it is a GETJOB")
                };
                let counters = getjob.with_counters();
                let jobs = getjob.into_jobs();
                self.write(progress.suppressed, |session, _| {
                    if jobs.is_empty() {
                        session.encoder().null_array();
                    } else {
                        reply::write_jobs(session, &jobs, counters);
                    }
                });
            }
        }
    }

    fn cancel(&mut self, ticket: Ticket, shards: &[ShardNo]) {
        for &shard in shards {
            self.core.send_or_do(self.now, shard, Message::Cancel { ticket });
        }
    }

    /// Replies when the command under way has all it asked for. GETJOB ends by its own steps, others by messages.
    fn finish_if_complete(&mut self) {
        let Some(progress) = self.session.progress.as_ref() else {
            return;
        };
        let complete = progress.open == 0
            && progress.unsent.is_empty()
            && match &progress.kind {
                Kind::Gather { told, .. } => !matches!(told, Waited::Asked),
                Kind::Ids(_) | Kind::Peek { .. } | Kind::Scan(_) => true,
                Kind::GetJob(_) | Kind::Change { .. } | Kind::Sleep => false,
            };
        if !complete {
            return;
        }
        let progress = self.end_progress();
        let suppressed = progress.suppressed;
        match progress.kind {
            Kind::Ids(ids) => self.write(suppressed, |session, _| write_ids(session, ids)),
            Kind::Peek { jobs, .. } => {
                self.write(suppressed, |session, _| reply::write_peeked(session, &jobs))
            }
            Kind::Scan(scan) => {
                self.write(suppressed, |session, node| {
                    reply::write_page(session, scan.next, &scan.items, node)
                });
            }
            Kind::Gather {
                parts,
                told,
                args,
                finish,
            } => {
                let parts = parts
                    .into_iter()
                    .map(|part| part.expect("every shard answered"))
                    .collect();
                let told = if let Waited::Told(told) = told {
                    Some(told)
                } else {
                    None
                };
                self.finish(suppressed, parts, told, &args, finish);
            }
            Kind::GetJob(_) | Kind::Change { .. } | Kind::Sleep => unreachable!("not complete"),
        }
    }

    fn finish(
        &mut self,
        suppressed: bool,
        parts: Vec<Part>,
        told: Option<Told>,
        args: &[Bytes],
        finish: impl FnOnce(&mut Finish<'_>),
    ) {
        let kept = suppressed.then(|| std::mem::replace(&mut self.session.output, Output::new()));
        finish(&mut Finish {
            now: self.now,
            args,
            session: self.session,
            core: self.core,
            parts,
            told,
        });
        if let Some(kept) = kept {
            self.session.output = kept;
        }
    }

    /// The server answered a question of the session.
    pub fn told(&mut self, request: u32, answer: Told) {
        if let Some(progress) = self
            .session
            .progress
            .as_mut()
            .filter(|progress| progress.request == request)
            && let Kind::Gather { told, .. } = &mut progress.kind
        {
            *told = Waited::Told(answer);
            self.finish_if_complete();
        }
        self.go_on();
    }

    /// Shard 0 has changed the node for the session.
    pub fn changed(&mut self, request: u32, result: Result<i64, CommandError>) {
        let matches = self
            .session
            .progress
            .as_ref()
            .is_some_and(|progress| progress.request == request);
        if !matches {
            return;
        }
        let progress = self.end_progress();
        let Kind::Change { args, finish } = progress.kind else {
            unreachable!("it asked for a change")
        };
        match result {
            Ok(sum) => {
                self.finish(progress.suppressed, Vec::new(), None, &args, |call| {
                    finish(call, sum)
                });
            }
            Err(error) => {
                self.write(progress.suppressed, |session, _| {
                    session.encoder().error(&error.to_string())
                });
            }
        }
        self.go_on();
    }

    /// The session's timer fired: TIMEOUT of a GETJOB, or the end of a DEBUG SLEEP.
    pub fn timer_fired(&mut self) {
        self.session.timer = None;
        match self.session.progress.as_mut().map(|progress| &mut progress.kind) {
            Some(Kind::GetJob(getjob)) => {
                let step = getjob.expire();
                self.take_step(step);
            }
            Some(Kind::Sleep) => {
                let progress = self.end_progress();
                self.write(progress.suppressed, |session, _| session.encoder().simple(b"OK"));
            }
            _ => unreachable!("only GETJOB and DEBUG SLEEP have a timer"),
        }
        self.go_on();
    }

    /// Ends what is under way because the connection is gone: home shards forget its waiters, jobs that did not reach it
    /// go back.
    pub fn disconnect(&mut self) {
        let mut back: Vec<Handed> = self.session.deliveries.undelivered().collect();
        if let Some(timer) = self.session.timer.take() {
            self.core.timers.cancel(timer);
        }
        if let Some(timer) = self.session.idle_timer.take() {
            self.core.timers.cancel(timer);
        }
        if let Some(progress) = self.session.progress.take()
            && let Kind::GetJob(getjob) = &progress.kind
        {
            back.extend(getjob.handed_out().map(|job| job.handed));
            let ticket = Ticket {
                shard: self.core.shard,
                session: self.session.id,
                request: progress.request,
            };
            let unsent: SmallVec<[ShardNo; 4]> = progress.unsent.iter().map(|(shard, _)| *shard).collect();
            let kept: Vec<ShardNo> = getjob
                .kept()
                .into_iter()
                .filter(|shard| !unsent.contains(shard))
                .collect();
            self.cancel(ticket, &kept);
        }
        let pending = std::mem::take(&mut self.session.pending);
        for (place, pending) in pending.into_iter().enumerate() {
            match pending.answer {
                Some(Answer::Jobs(jobs)) => back.extend(jobs.iter().map(|job| job.handed)),
                Some(_) => {}
                None => {
                    let request = self.session.first_pending.wrapping_add(place as u32);
                    let ticket = self.session.ticket(request);
                    self.cancel(ticket, pending.take_at.as_slice());
                }
            }
        }
        self.core.give_back(self.now, back);
        self.core.memory_release(self.session.charged_bytes);
    }

    fn end_progress(&mut self) -> Box<Progress> {
        let progress = self.session.progress.take().expect("a command is under way");
        self.session.first_pending = progress.request.wrapping_add(1);
        if let Some(timer) = self.session.timer.take() {
            self.core.timers.cancel(timer);
        }
        if progress.waited {
            let asked_to_wait = matches!(&progress.kind, Kind::GetJob(getjob) if getjob.was_blocked());
            let took_us = if asked_to_wait {
                0
            } else {
                self.now.mono_us - progress.started_us
            };
            self.core
                .command_ended_late(self.now, progress.command, progress.args(), took_us);
        }
        progress
    }

    fn arm_timer(&mut self, ms: u64) {
        let deadline = self.now.mono().after_ms(ms);
        let timer = self
            .core
            .timers
            .insert(deadline.0, SessionTimer::Command(self.session.id));
        assert!(
            self.session.timer.replace(timer).is_none(),
            "one command blocks at a time"
        );
    }

    /// Whether the reply of the command that starts now is not wanted; CLIENT REPLY SKIP counts one command.
    fn suppress_reply(&mut self) -> bool {
        match self.session.client.replies {
            Replies::On => false,
            Replies::Off => true,
            Replies::SkipNext => {
                self.session.client.replies = Replies::On;
                true
            }
        }
    }

    fn reply_error(&mut self, error: &CommandError) {
        let suppressed = self.suppress_reply();
        self.write(suppressed, |session, _| {
            session.encoder().error(&error.to_string())
        });
    }

    fn write(&mut self, suppressed: bool, write: impl FnOnce(&mut Session, &crate::wire::Blob)) {
        if !suppressed {
            write(self.session, &self.core.node_text);
        }
    }

    /// The same upkeep after each step: a closing error, the output, the memory, the reading of the socket.
    fn end_step(&mut self) {
        if self.session.is_idle()
            && let Some(Ending::Error(text)) = &mut self.session.ending
            && !text.is_empty()
        {
            let text = std::mem::take(text);
            self.session.encoder().error(&format!("ERR {text}"));
        }
        let half_closed = matches!(self.session.ending, Some(Ending::HalfClosed));
        let served = self.session.is_idle() && !(half_closed && self.session.held.is_some());
        let ends = self.session.ending.is_some() && served && self.session.all_sent();
        let in_vain = half_closed && self.session.is_blocked();
        let too_much = self.session.output.queued_bytes() as u64 > self.core.output_limit();
        if ends || in_vain || too_much {
            self.core.close_later(self.session.id);
        }
        if !self.session.output.is_empty() {
            self.core.mark_output(self.session);
        }
        self.settle_memory();
        self.settle_reading();
    }

    fn settle_memory(&mut self) {
        let session = &mut *self.session;
        let bytes = (session.parser.held_bytes()
            + session.output.queued_bytes()
            + session.deliveries.held_bytes()) as u64;
        let charged = std::mem::replace(&mut session.charged_bytes, bytes);
        if bytes > charged {
            self.core.memory_charge(bytes - charged);
        } else if bytes < charged {
            self.core.memory_release(charged - bytes);
        }
    }

    fn settle_reading(&mut self) {
        let stuck = self.session.held.is_some() || self.session.ending.is_some();
        let on = !(stuck && self.session.parser.held_bytes() > limits::BACKLOG_BYTES);
        if on != self.session.reading {
            self.session.reading = on;
            self.core.effects.push(Effect::Reading {
                session: self.session.id,
                on,
            });
        }
    }

    /// MONITOR: lines of the feed.
    pub fn show_feed(&mut self, lines: &[Bytes], dropped: u64) {
        for line in lines {
            self.session.encoder().simple(line);
        }
        if dropped > 0 {
            self.session
                .encoder()
                .simple(format!("{dropped} lines were left out: too many at once").as_bytes());
        }
        self.end_step();
    }

    /// The client sends no more.
    pub fn half_closed(&mut self) {
        self.session.ending.get_or_insert(Ending::HalfClosed);
        self.end_step();
    }

    /// The node stops: what is under way is still answered, nothing is started, blocked commands end.
    pub fn stop(&mut self) {
        self.session.ending = Some(Ending::Quiet);
        if self.session.is_blocked()
            || self
                .session
                .progress
                .as_ref()
                .is_some_and(|progress| progress.waits_for_the_node())
        {
            self.core.close_later(self.session.id);
        }
        self.end_step();
    }

    /// The kernel took output.
    pub fn sent(&mut self, bytes: usize) {
        self.session.deliveries.sent(bytes as u64);
        self.session.sent_bytes += bytes as u64;
        if self.session.held == Some(Hold::Output)
            && self.session.output.queued_bytes() < limits::OUTPUT_HIGH_BYTES
        {
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
            let mut homes = ask.queues.iter().map(|queue| Slot::of_queue(queue).home(shards));
            let first = homes.next()?;
            homes.all(|home| home == first).then_some(first)
        }
        _ => None,
    }
}

fn take_at_once(ask: GetJob) -> Take {
    let queues = ask
        .queues
        .into_iter()
        .enumerate()
        .map(|(place, queue)| (place as u32, queue))
        .collect();
    Take {
        queues,
        count: ask.count as u32,
        manner: Manner::Deliver,
        patience: Patience::Reserved,
    }
}

fn take_requests(takes: VecDeque<(ShardNo, Take)>) -> VecDeque<(ShardNo, Request)> {
    takes
        .into_iter()
        .map(|(shard, take)| (shard, Request::Take(take)))
        .collect()
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

fn write_ids(session: &mut Session, ids: IdsProgress) {
    match (ids.error, ids.verb) {
        (Some(error), _) => session.encoder().error(&error.to_string()),
        (None, IdVerb::Enqueue | IdVerb::Nack) => reply::write_entered(session, ids.counted, ids.paused),
        (None, _) => session.encoder().integer(ids.counted),
    }
}

/// Moves a reply that was written aside to the output.
fn reply_chunks(mut reply: Output, output: &mut Output) {
    while let Some(chunk) = reply.pop_chunk() {
        output.append_shared(&chunk);
    }
}
