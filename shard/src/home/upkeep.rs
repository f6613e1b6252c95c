//! What a home does by itself: timers, queues with held jobs or waiters to serve, idle queues, lines that move on, the rubble of FLUSHALL. All in
//! bounded steps; `next_deadline` says "now" as long as something is left.

use super::stock::{QUEUE_TIMER, Stock};
use super::{Home, Place};
use crate::clock::{Mono, Now};
use crate::commands::view::PauseState;
use crate::limits::{IDLE_QUEUE_MS, UPKEEP_STEP};
use crate::wire::Blob;

/// The walk over all queues that follows a rise of the memory level: where it is, when it is under way.
#[derive(Debug, Default)]
pub struct Sweep {
    at: Option<u32>,
}

impl Sweep {
    /// Starts the walk, from the beginning.
    pub fn start(&mut self) {
        self.at = Some(0);
    }
}

impl Home {
    /// Looks after everything that is due, a bounded step of each.
    pub fn tick(&mut self, now: Now) {
        self.journal.begin(now);
        self.fire_timers(now.mono());
        self.tick_cluster(now.mono());
        self.step_busy(now.mono());
        self.step_sweep(now.mono());
        if self.short.retry_is_due() {
            self.retry_short(now, false);
        }
        self.step_lines(now);
        if self.rubble.last_mut().is_some_and(Stock::tear_down) {
            self.rubble.pop();
        }
    }

    /// When `tick` is due: a time long past when work is left over, `None` when only a call can bring some.
    pub fn next_deadline(&self) -> Option<Mono> {
        let left_over = !self.stock.busy.is_empty() || self.sweep.at.is_some() || !self.rubble.is_empty();
        if left_over || self.cluster_is_busy() || self.short.retry_is_due() || self.lines.any_is_ready() {
            return Some(Mono::default());
        }
        let timers = self.stock.timers.next_wakeup().map(Mono);
        let cluster = self.stock.cluster_timers.next_wakeup().map(Mono);
        let others = cluster
            .into_iter()
            .chain(self.repair_deadline())
            .chain(self.federation_deadline())
            .chain(self.leaving_deadline())
            .chain(self.outgoing_deadline())
            .chain(self.transfers_deadline())
            .chain(self.remote.deadline());
        timers.into_iter().chain(others).chain(self.log_deadline()).min()
    }

    fn fire_timers(&mut self, now: Mono) {
        self.stock.timers.advance(now.0);
        self.stock.timers.work(UPKEEP_STEP);
        for _ in 0..UPKEEP_STEP {
            let Some((_, owner)) = self.stock.timers.pop_due() else {
                return;
            };
            if owner & QUEUE_TIMER == 0 {
                self.job_timer(now, owner);
            } else {
                self.queue_timer(now, owner & !QUEUE_TIMER);
            }
        }
    }

    fn job_timer(&mut self, now: Mono, key: u32) {
        let job = &mut self.stock.jobs[key];
        job.timer = None;
        if job.expires_at <= now {
            return self.expire(now, key);
        }
        let is_due = matches!(job.place, Place::Idle | Place::Leased) && job.enters_at <= now;
        let enters = is_due && self.enters_now(now, key);
        // Its next deadline is its expiry, or that of the wait which has just begun.
        let job = &mut self.stock.jobs[key];
        let deadline = if enters { job.expires_at } else { job.deadline() };
        job.timer = Some(self.stock.timers.insert(deadline.0, key));
        if enters {
            self.counters.requeued += u64::from(self.stock.jobs[key].place == Place::Leased);
            self.enter_when_open(now, key);
        }
    }

    fn queue_timer(&mut self, now: Mono, key: u32) {
        self.stock.queues[key].timer = None;
        if !self.collect_when_idle(now, key) {
            let due = self.idle_until(now, key);
            self.stock.queues[key].timer = Some(self.stock.timers.insert(due.0, key | QUEUE_TIMER));
        }
    }

    /// Collects a queue that has been idle for long.
    fn collect_when_idle(&mut self, now: Mono, key: u32) -> bool {
        let collect = self.stock.queues[key].is_idle() && self.idle_until(now, key) <= now;
        if collect {
            self.collect_queue(key);
        }
        collect
    }

    /// Until when a queue lives at least: when it is idle, counted from its last use; else from now.
    fn idle_until(&self, now: Mono, key: u32) -> Mono {
        let idle_ms = IDLE_QUEUE_MS[usize::from(self.memory.level().min(2))];
        let queue = &self.stock.queues[key];
        if queue.is_idle() {
            queue.touched_at.after_ms(idle_ms + 1)
        } else {
            now.after_ms(idle_ms)
        }
    }

    /// Marks a queue as one whose held jobs enter and whose waiters are served in steps.
    pub(super) fn make_busy(&mut self, key: u32) {
        let queue = &mut self.stock.queues[key];
        if !queue.busy {
            queue.busy = true;
            self.stock.busy.push_back(key);
        }
    }

    /// PAUSE: the ways of a queue are closed and opened.
    pub(crate) fn set_pause(&mut self, now: Mono, key: u32, state: PauseState, version: u64) {
        self.stock.queues[key].pause = state;
        let name = self.stock.queues[key].name.clone();
        self.keep_pause_version(&name, version, !state.any());
        self.journal.paused(&name, state, version);
        self.opened(now, key);
    }

    /// PAUSE none of a queue that does not exist. The log may know it as paused, from before a FLUSHALL whose own record is not
    /// safe, or never will be.
    pub(crate) fn stays_open(&mut self, name: &Blob, version: u64) {
        self.keep_pause_version(name, version, true);
        self.journal.paused(name, PauseState::default(), version);
    }

    /// A way of a queue was opened: what waited goes on, a first step at once.
    pub(super) fn opened(&mut self, now: Mono, key: u32) {
        let queue = &self.stock.queues[key];
        let enters = !queue.pause.input && !queue.held.is_empty();
        let serves = queue.can_serve();
        if (enters || serves) && !queue.busy {
            self.make_busy(key);
            self.step_busy(now);
        }
        self.interest_changed(key);
        self.may_export(key);
    }

    fn step_busy(&mut self, now: Mono) {
        let mut left = UPKEEP_STEP;
        // Each queue at most once per step, so that one whose first waiter cannot be served is left for the next.
        for _ in 0..self.stock.busy.len().min(UPKEEP_STEP) {
            let key = self.stock.busy.pop_front().expect("counted above");
            if self.work_on(now, key, &mut left) {
                self.stock.queues[key].busy = false;
                self.settle(key);
            } else {
                self.stock.busy.push_back(key);
            }
            if left == 0 {
                return;
            }
        }
    }

    /// Lets held jobs enter, then serves waiters; true when there is nothing more to do for now.
    fn work_on(&mut self, now: Mono, key: u32, left: &mut usize) -> bool {
        while *left > 0 {
            let queue = &self.stock.queues[key];
            let Some(held) = queue.held.first().filter(|_| !queue.pause.input) else {
                break;
            };
            *left -= 1;
            self.enter_when_open(now, held);
        }
        while *left > 0 && self.stock.queues[key].can_serve() {
            let served = self.serve_turn(now, key);
            if served == 0 {
                // Nothing but dead jobs within reach, and more behind them unless the queue is empty now.
                break;
            }
            *left = left.saturating_sub(served);
        }
        let queue = &self.stock.queues[key];
        (queue.pause.input || queue.held.is_empty()) && !queue.can_serve()
    }

    fn step_sweep(&mut self, now: Mono) {
        let Some(from) = self.sweep.at else { return };
        let step = UPKEEP_STEP as u32;
        let found: Vec<u32> = self
            .stock
            .queues
            .0
            .iter_from(from, step)
            .map(|(key, _)| key)
            .collect();
        for key in found {
            if !self.collect_when_idle(now, key) {
                self.hasten_collection(now, key);
            }
        }
        let next = from + step;
        self.sweep.at = (next < self.stock.queues.0.high_water()).then_some(next);
    }

    /// Makes the timer of a queue fit a memory level that has risen.
    fn hasten_collection(&mut self, now: Mono, key: u32) {
        let due = self.idle_until(now, key);
        let timer = self.stock.queues[key].timer.expect("every queue has a timer");
        if due.0 < self.stock.timers.deadline_ms(timer) {
            self.stock.timers.reschedule(timer, due.0);
        }
    }
}
