//! What other nodes ask about jobs and queues of this one: done like what clients ask, and never passed on.
//!
//! An Ask may come twice, since the answer may be lost. What changes something is not done again then: the last answers are remembered, by
//! the node that asked and the ticket of its question.

use std::collections::{BTreeMap, VecDeque};

use crate::bus::message::{RemoteAnswer, RemoteRequest};
use crate::bus::{BusMessage, PeerNo};
use crate::clock::{Mono, Now};
use crate::commands::{self, IdVerb};
use crate::error::CommandError;
use crate::home::Home;
use crate::id::JobId;
use crate::limits::REMOTE_ANSWERS;
use crate::message::{Answer, Ticket};

/// The last answers to what changed something.
#[derive(Debug, Default)]
pub struct Answers {
    of: BTreeMap<(PeerNo, Ticket), RemoteAnswer>,
    order: VecDeque<(PeerNo, Ticket)>,
}

impl Answers {
    /// Panics when something does not hold.
    pub fn check(&self) {
        assert_eq!(self.of.len(), self.order.len(), "each answer has its place");
        assert!(self.order.len() <= REMOTE_ANSWERS);
    }

    fn remember(&mut self, asked: (PeerNo, Ticket), answer: RemoteAnswer) {
        if self.order.len() == REMOTE_ANSWERS
            && let Some(oldest) = self.order.pop_front()
        {
            self.of.remove(&oldest);
        }
        self.of.insert(asked, answer);
        self.order.push_back(asked);
    }
}

impl Home {
    /// Ask: another node's client wants something of this one.
    pub(super) fn on_ask(&mut self, now: Now, from: PeerNo, ticket: Ticket, request: RemoteRequest) {
        let asked = (from, ticket);
        if let Some(answer) = self.remote.answers.of.get(&asked) {
            let answer = answer.clone();
            // What it tells of may not be in the log yet.
            let need = self.journal.last_entry();
            return self.say_when(need, from, BusMessage::Told { ticket, answer });
        }
        let mono = now.mono();
        let (answer, changes) = match request {
            RemoteRequest::Ids { verb, ids } => match self.answer_ids(mono, verb, &ids) {
                Some(answer) => (answer, true),
                None => return,
            },
            RemoteRequest::Show(id) => (self.answer_show(mono, id), false),
            RemoteRequest::Working(id) => (self.answer_working(mono, id), true),
            RemoteRequest::Length(queue) => (remote(commands::qlen::apply(self, &queue)), false),
            RemoteRequest::Stat(queue) => (remote(commands::qstat::apply(self, mono, &queue)), false),
            RemoteRequest::Pause {
                queue,
                pause,
                version,
            } => (self.answer_pause(mono, &queue, pause, version), false),
        };
        if changes {
            self.counters.answered_elsewhere += 1;
            self.remote.answers.remember(asked, answer.clone());
        }
        self.say(from, BusMessage::Told { ticket, answer });
    }

    /// `None` when no node would ask that.
    fn answer_ids(&mut self, now: Mono, verb: IdVerb, ids: &[JobId]) -> Option<RemoteAnswer> {
        let (shard, shards) = (self.options.shard, self.options.shards);
        let is_of_here = |id: &JobId| id.slot().home(shards) == shard;
        let is_asked = matches!(
            verb,
            IdVerb::Enqueue | IdVerb::Nack | IdVerb::Dequeue | IdVerb::Delete
        );
        if !is_asked || !ids.iter().all(is_of_here) {
            return None;
        }
        let held: Vec<bool> = ids.iter().map(|id| self.knows(now, id)).collect();
        if held.contains(&true)
            && let Some(misconf) = self.journal.refuses_ids(verb)
        {
            return Some(RemoteAnswer::Error(misconf.to_string()));
        }
        let (counted, paused) = match self.ids(now, verb, ids) {
            Answer::Count(counted) => (counted, 0),
            Answer::Entered { counted, paused } => (counted, paused),
            other => unreachable!("no answer to IDs: {other:?}"),
        };
        Some(RemoteAnswer::Ids {
            held,
            counted: counted as u32,
            paused: paused as u32,
        })
    }

    fn answer_show(&mut self, now: Mono, id: JobId) -> RemoteAnswer {
        match commands::show::apply(self, now, id) {
            Answer::Job(None) if self.find_ack(&id).is_none() => RemoteAnswer::NotHere,
            answer => remote(answer),
        }
    }

    fn answer_working(&mut self, now: Mono, id: JobId) -> RemoteAnswer {
        if !self.knows(now, &id) {
            return RemoteAnswer::NotHere;
        }
        match self.journal.refuses_change() {
            Some(misconf) => RemoteAnswer::Error(misconf.to_string()),
            None => remote(commands::working::apply(self, now, id)),
        }
    }
}

/// A client's answer as one for a node.
pub(super) fn remote(answer: Answer) -> RemoteAnswer {
    match answer {
        Answer::Count(count) => RemoteAnswer::Count(count),
        Answer::Job(job) => RemoteAnswer::Job(job),
        Answer::Queue(queue) => RemoteAnswer::Queue(queue),
        Answer::Error(error) => RemoteAnswer::Error(CommandError::to_string(&error)),
        other => unreachable!("no answer to what nodes ask: {other:?}"),
    }
}
