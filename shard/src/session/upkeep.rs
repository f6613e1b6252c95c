//! What follows each step of a session, and its end: output, memory, reading of the socket, closing.

use crate::core::SessionTimer;
use crate::error::CommandError;
use crate::input::Effect;
use crate::limits;
use crate::message::{Answer, Handed};
use crate::session::engine::Engine;
use crate::session::progress::Kind;
use crate::session::{Ending, Hold, Replies, Session};
use crate::slot::ShardNo;
use bytes::Bytes;

impl Engine<'_> {
    /// The kernel took output.
    pub fn sent(&mut self, bytes: usize) {
        self.session.deliveries.sent(bytes as u64);
        self.session.sent_bytes += bytes as u64;
        self.session.client.active_at = self.now.mono();
        if self.session.held == Some(Hold::Output) && self.session.unsent_bytes() < limits::OUTPUT_HIGH_BYTES
        {
            self.core.run_later(self.session);
        }
        self.end_step();
    }

    /// MONITOR: lines of the feed.
    pub fn show_feed(&mut self, lines: &[Bytes], dropped: u64) {
        for line in lines {
            self.session.last_reply_start = self.session.output.produced_bytes();
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

    /// The node stops: what is under way is still answered, nothing is started, blocked commands end without a reply.
    pub fn stop(&mut self) {
        self.session.ending = Some(Ending::Quiet);
        let waits = self
            .session
            .progress
            .as_ref()
            .is_some_and(|progress| progress.waits_for_the_node());
        if waits || self.session.is_blocked() {
            let back = self.abandon();
            self.core.give_back(self.now, back);
        }
        self.end_step();
    }

    /// Ends what is under way because the connection is gone: home shards forget its waiters, jobs that did not reach it
    /// go back.
    pub fn disconnect(&mut self) {
        let mut back: Vec<Handed> = self.session.deliveries.undelivered().collect();
        for timer in [self.session.idle_timer.take(), self.session.output_timer.take()]
            .into_iter()
            .flatten()
        {
            self.core.timers.cancel(timer);
        }
        back.extend(self.abandon());
        let pending = std::mem::take(&mut self.session.pending);
        for (place, pending) in pending.into_iter().enumerate() {
            match pending.answer {
                Some(Answer::Jobs(jobs)) => back.extend(jobs.iter().map(|job| job.handed)),
                Some(_) => {}
                None => {
                    let request = self.session.first_pending.wrapping_add(place as u32);
                    let ticket = self.session.ticket(request);
                    self.cancel(ticket, pending.waits_at.as_slice());
                }
            }
        }
        self.core.give_back(self.now, back);
        self.core.release_buffers(self.session.charged_bytes);
    }

    /// Ends the command under way without a reply: home shards forget its waiters. The jobs that it was handed already.
    fn abandon(&mut self) -> Vec<Handed> {
        if let Some(timer) = self.session.timer.take() {
            self.core.timers.cancel(timer);
        }
        let Some(progress) = self.session.progress.take() else {
            return Vec::new();
        };
        self.session.first_pending = progress.request.wrapping_add(1);
        let ticket = self.session.ticket(progress.request);
        if let Kind::Ids(ids) = &progress.kind {
            self.cancel(ticket, &ids.waits_at);
        }
        let Kind::GetJob(getjob) = &progress.kind else {
            return Vec::new();
        };
        let is_unsent = |shard: &ShardNo| progress.unsent.iter().any(|(unsent, _)| unsent == shard);
        let kept: Vec<ShardNo> = getjob
            .kept()
            .into_iter()
            .filter(|shard| !is_unsent(shard))
            .collect();
        self.cancel(ticket, &kept);
        getjob.handed_out().map(|job| job.handed).collect()
    }

    /// The same upkeep after each step: a closing error, the output, the memory, the reading of the socket.
    pub(super) fn end_step(&mut self) {
        if self.session.is_idle()
            && let Some(Ending::Error(text)) = &mut self.session.ending
            && !text.is_empty()
        {
            let text = std::mem::take(text);
            self.session.encoder().error(format!("ERR {text}"));
        }
        let half_closed = matches!(self.session.ending, Some(Ending::HalfClosed));
        let served = self.session.is_idle() && !(half_closed && self.session.held.is_some());
        let ends = self.session.ending.is_some() && served && self.session.all_sent();
        let ends_soon = matches!(self.session.ending, Some(Ending::HalfClosed | Ending::Quiet));
        let in_vain = ends_soon && self.session.is_blocked() && self.session.all_sent();
        if ends || in_vain {
            self.core.close_later(self.session.id);
        }
        self.check_output();
        if !self.session.output.is_empty() {
            self.core.mark_output(self.session);
        }
        self.settle_memory();
        self.settle_reading();
    }

    /// `client-output-buffer-limit`: closes the connection at the hard limit, or when the soft one is exceeded for too long.
    fn check_output(&mut self) {
        let unread = self.session.unsent_before_last_reply();
        let limit = &self.core.settings.output_limit;
        let over = |limit_bytes: u64| limit_bytes > 0 && unread > limit_bytes;
        if over(limit.hard_bytes) {
            return self.close_for_output();
        }
        match (over(limit.soft_bytes), self.session.output_timer) {
            (true, None) => {
                let deadline = self.now.mono().after_ms(limit.soft_s.saturating_mul(1000));
                let timer = self
                    .core
                    .timers
                    .insert(deadline.0, SessionTimer::Output(self.session.id));
                self.session.output_timer = Some(timer);
            }
            (false, Some(timer)) => {
                self.core.timers.cancel(timer);
                self.session.output_timer = None;
            }
            _ => {}
        }
    }

    /// The soft limit was exceeded all the time until now.
    pub fn output_stayed(&mut self) {
        self.session.output_timer = None;
        self.close_for_output();
    }

    fn close_for_output(&mut self) {
        self.core.stats.counters.clients_over_output_limit += 1;
        self.core.close_later(self.session.id);
    }

    pub(super) fn settle_memory(&mut self) {
        let session = &mut *self.session;
        let bytes = (session.parser.held_bytes()
            + session.unsent_bytes()
            + session.deliveries.held_bytes()
            + session
                .progress
                .as_ref()
                .map_or(0, |progress| progress.held_bytes())) as u64;
        let charged = std::mem::replace(&mut session.charged_bytes, bytes);
        if bytes > charged {
            self.core.charge_buffers(bytes - charged);
        } else if bytes < charged {
            self.core.release_buffers(charged - bytes);
        }
    }

    pub(super) fn settle_reading(&mut self) {
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

    /// Whether the reply of the command that starts now is not wanted; CLIENT REPLY SKIP counts one command.
    pub(super) fn suppress_reply(&mut self) -> bool {
        match self.session.client.replies {
            Replies::On => false,
            Replies::Off => true,
            Replies::SkipNext => {
                self.session.client.replies = Replies::On;
                true
            }
        }
    }

    pub(super) fn reply_error(&mut self, error: &CommandError) {
        let suppressed = self.suppress_reply();
        self.write(suppressed, |session| session.encoder().error(error.to_string()));
    }

    pub(super) fn write(&mut self, suppressed: bool, write: impl FnOnce(&mut Session)) {
        if !suppressed {
            self.session.last_reply_start = self.session.output.produced_bytes();
            write(self.session);
        }
    }
}
