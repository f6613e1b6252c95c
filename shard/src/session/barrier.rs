//! Barrier commands: those that start when everything before them is answered and hold back everything behind them.
//!
//! Such a command asks shards, the node or the server, perhaps in several rounds, and keeps what it has so far in its `Progress`.
//! Only one request to its own shard is handled in a step, so that a long command costs many short steps.

use crate::commands::view::Part;
use crate::commands::{Call, Finish, GetJob, IdVerb, Plan, Request};
use crate::core::SessionTimer;
use crate::error::CommandError;
use crate::input::{Effect, Question, Told};
use crate::limits;
use crate::message::{Answer, Manner, Message, Patience, Take, Ticket};
use crate::node::{Change, NodeMessage};
use crate::session::engine::Engine;
use crate::session::getjob::{GetJobProgress, Step};
use crate::session::progress::{self, IdsProgress, Kind, Progress, ScanProgress, Waited};
use crate::session::{Replies, Session, reply};
use crate::slot::{ShardNo, Slot};
use crate::wire::{Args, Output};
use bytes::Bytes;
use std::collections::VecDeque;

/// What became of a GETJOB that was tried on this shard first.
enum Here {
    /// It is answered.
    Done,
    /// Its answer is kept back and comes later.
    Waits(GetJob),
    /// It takes the long way.
    NotSoShort(GetJob),
}

impl Engine<'_> {
    // Apart, so that the many kinds of barriers do not burden what goes on all the time.
    #[inline(never)]
    pub(super) fn start_barrier(&mut self, command: u8, plan: Plan, args: Args<'_>) {
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
                let (ask, waits) = match self.get_here(ask) {
                    Here::Done => return,
                    Here::Waits(ask) => (ask, true),
                    Here::NotSoShort(ask) => (ask, false),
                };
                let mut getjob = GetJobProgress::new(ask, self.core.shards, self.core.home.peers.leaving);
                if waits {
                    getjob.began_waiting();
                } else {
                    unsent = take_requests(getjob.begin_round());
                }
                Kind::GetJob(getjob)
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
                let unasked = self.ask_for_change(change);
                Kind::Change {
                    unasked,
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

    /// The short way of most GETJOBs: all queues are here, and so are jobs.
    fn get_here(&mut self, ask: GetJob) -> Here {
        let here = |(_, queue): &(u32, crate::wire::Blob)| {
            Slot::of_queue(queue).home(self.core.shards) == self.core.shard
        };
        if ask.count > u64::from(limits::TAKE_STEP) || !ask.queues.iter().all(here) {
            return Here::NotSoShort(ask);
        }
        let take = Take {
            queues: ask.queues.clone(),
            count: ask.count as u32,
            manner: Manner::Deliver,
            patience: if ask.nohang { Patience::None } else { Patience::Try },
        };
        let ticket = self.session.ticket(self.session.first_pending);
        let mut answer = self.core.home.request(self.now, ticket, Request::Take(take));
        match answer {
            Answer::Nothing => return Here::NotSoShort(ask),
            Answer::Waiting => return Here::Waits(ask),
            _ => {}
        }
        let suppressed = self.suppress_reply();
        self.session.first_pending = self.session.first_pending.wrapping_add(1);
        self.write(suppressed, |session| {
            reply::write_answer(session, &answer, ask.with_counters)
        });
        self.core.home.recycle(&mut answer);
        Here::Done
    }

    /// Runs a command of this shard. CLIENT REPLY decides by its state after it ran whether a reply is wanted.
    pub(super) fn run_local(&mut self, run: fn(&mut Call<'_>) -> Result<(), CommandError>, args: Args<'_>) {
        let replies_before = self.session.client.replies;
        let kept = (replies_before != Replies::On)
            .then(|| std::mem::replace(&mut self.session.output, Output::new()));
        if replies_before == Replies::SkipNext {
            self.session.client.replies = Replies::On;
        }
        self.session.last_reply_start = self.session.output.produced_bytes();
        let mut call = Call {
            now: self.now,
            args: &args,
            session: self.session,
            core: self.core,
        };
        if let Err(error) = run(&mut call) {
            self.session.encoder().error(error.to_string());
        }
        if let Some(kept) = kept {
            let reply = std::mem::replace(&mut self.session.output, kept);
            if replies_before == Replies::Off && self.session.client.replies == Replies::On {
                reply_chunks(reply, &mut self.session.output);
            }
        }
    }

    pub(super) fn scan_requests(&self, ask: &crate::commands::Scan) -> VecDeque<(ShardNo, Request)> {
        match ask.only_slot() {
            Some(slot) => VecDeque::from([(slot.home(self.core.shards), Request::Scan(ask.clone()))]),
            None => (0..self.core.shards)
                .map(|shard| (shard, Request::Scan(ask.clone())))
                .collect(),
        }
    }

    /// Sends what the command under way has to send; takes in the answers of this shard. Only the `first` call of a
    /// step asks this shard, so that a step stays bounded: the rest goes on in the next turn.
    pub(super) fn pump(&mut self, first: bool) {
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
                mut request => {
                    if let Some(answer) = self.ask(target, ticket, &mut request) {
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

    /// Takes an answer into the command under way.
    pub(super) fn absorb(&mut self, from: ShardNo, answer: Answer, first: bool) {
        let progress = self.session.progress.as_mut().expect("a command is under way");
        // IDs are answered late when the log holds the answer back; GETJOB counts for itself.
        let ends = match progress.kind {
            Kind::Ids(_) => !matches!(answer, Answer::Waiting),
            _ => first,
        };
        if ends {
            progress.open -= 1;
        }
        match &mut progress.kind {
            Kind::Ids(ids) => match answer {
                Answer::Waiting if ids.waits_at.contains(&from) => {}
                Answer::Waiting => ids.waits_at.push(from),
                Answer::Count(counted) => ids.counted += counted,
                Answer::Entered { counted, paused } => {
                    ids.counted += counted;
                    ids.paused += paused;
                }
                Answer::Nodes(nodes) => ids.absorb_nodes(nodes),
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
    pub(super) fn take_step(&mut self, step: Step) {
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
                self.write(progress.suppressed, |session| match jobs {
                    Err(error) => session.encoder().error(error.to_string()),
                    Ok(jobs) if jobs.is_empty() => session.encoder().null_array(),
                    Ok(jobs) => reply::write_jobs(session, &jobs, counters),
                });
            }
        }
    }

    pub(super) fn cancel(&mut self, ticket: Ticket, shards: &[ShardNo]) {
        for &shard in shards {
            self.core.send_or_do(self.now, shard, Message::Cancel { ticket });
        }
    }

    /// Replies when the command under way has all it asked for. GETJOB ends by its own steps, others by messages.
    pub(super) fn finish_if_complete(&mut self) {
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
            Kind::Ids(ids) => self.write(suppressed, |session| write_ids(session, ids)),
            Kind::Peek { jobs, .. } => self.write(suppressed, |session| reply::write_peeked(session, &jobs)),
            Kind::Scan(scan) => {
                self.write(suppressed, |session| {
                    reply::write_page(session, scan.next, &scan.items)
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

    pub(super) fn finish(
        &mut self,
        suppressed: bool,
        parts: Vec<Part>,
        told: Option<Told>,
        args: &[Bytes],
        finish: impl FnOnce(&mut Finish<'_>),
    ) {
        let kept = suppressed.then(|| std::mem::replace(&mut self.session.output, Output::new()));
        self.session.last_reply_start = self.session.output.produced_bytes();
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
        let progress = self
            .session
            .progress
            .as_mut()
            .filter(|progress| progress.request == request);
        match (progress.map(|progress| &mut progress.kind), answer) {
            (Some(Kind::Gather { told, .. }), answer) => {
                *told = Waited::Told(answer);
                self.finish_if_complete();
            }
            (Some(Kind::Change { .. }), Told::Folder(result)) => self.folder_looked_at(result),
            _ => {}
        }
        self.go_on();
    }

    /// Asks shard 0 for a change. One that the server must look at first is given back: it is asked for when the server has
    /// agreed.
    fn ask_for_change(&mut self, change: Change) -> Option<Change> {
        let ticket = self.session.ticket(self.session.first_pending);
        if let Change::Settings(pairs) = &change
            && let Some((_, folder)) = pairs.iter().find(|(name, _)| *name == "dir")
        {
            let question = Question::Folder(folder.clone());
            self.core.effects.push(Effect::Ask { ticket, question });
            return Some(change);
        }
        let ticket = Some(ticket);
        self.core.send_node(0, NodeMessage::Ask { ticket, change });
        None
    }

    /// The server has looked at the folder that is to be set.
    fn folder_looked_at(&mut self, result: Result<(), CommandError>) {
        let progress = self.session.progress.as_mut().expect("a change is under way");
        let Kind::Change { unasked, .. } = &mut progress.kind else {
            unreachable!("it is a change")
        };
        let change = unasked.take().expect("the server is asked once");
        match result {
            Ok(()) => {
                let ticket = Some(self.session.ticket(self.session.first_pending));
                self.core.send_node(0, NodeMessage::Ask { ticket, change });
            }
            Err(error) => {
                let suppressed = self.end_progress().suppressed;
                self.write(suppressed, |session| session.encoder().error(error.to_string()));
            }
        }
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
        let Kind::Change { args, finish, .. } = progress.kind else {
            unreachable!("it asked for a change")
        };
        match result {
            Ok(sum) => {
                self.finish(progress.suppressed, Vec::new(), None, &args, |call| {
                    finish(call, sum)
                });
            }
            Err(error) => {
                self.write(progress.suppressed, |session| {
                    session.encoder().error(error.to_string())
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
                self.write(progress.suppressed, |session| session.encoder().simple(b"OK"));
            }
            _ => unreachable!("only GETJOB and DEBUG SLEEP have a timer"),
        }
        self.go_on();
    }

    /// The node leaves the cluster: a GETJOB that blocks, or would, ends.
    pub fn leave(&mut self) {
        let Some(Kind::GetJob(getjob)) = self.session.progress.as_mut().map(|progress| &mut progress.kind)
        else {
            return;
        };
        if !getjob.may_block() {
            return;
        }
        let step = getjob.leave();
        if let Some(timer) = self.session.timer.take() {
            self.core.timers.cancel(timer);
        }
        self.take_step(step);
        self.go_on();
    }

    pub(super) fn end_progress(&mut self) -> Box<Progress> {
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

    pub(super) fn arm_timer(&mut self, ms: u64) {
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
}

fn take_requests(takes: VecDeque<(ShardNo, Take)>) -> VecDeque<(ShardNo, Request)> {
    takes
        .into_iter()
        .map(|(shard, take)| (shard, Request::Take(take)))
        .collect()
}

fn write_ids(session: &mut Session, ids: IdsProgress) {
    match (ids.error, ids.verb) {
        (Some(error), _) => session.encoder().error(error.to_string()),
        (None, IdVerb::Enqueue | IdVerb::Nack) => reply::write_entered(session, ids.counted, ids.paused),
        (None, IdVerb::DeleteEverywhere) => reply::write_nodes(&mut session.encoder(), &ids.nodes),
        (None, _) => session.encoder().integer(ids.counted),
    }
}

/// Moves a reply that was written aside to the output.
fn reply_chunks(mut reply: Output, output: &mut Output) {
    while let Some(chunk) = reply.pop_chunk() {
        output.append_shared(&chunk);
    }
}
