//! What transfers of RETRY 0 jobs write, and what waits for it (`cluster/transfer.rs`).
//!
//! | entry | who | what tells of it waits until it is |
//! | --- | --- | --- |
//! | Transfer, sent | source | durable; a sync is asked for (under `appendfsync no`: safe) |
//! | Transfer, taken, with the job; refused | target | safe |
//! | Gone, State: the end of a transfer | source | durable (under `no`: safe): only then its answer may be retired |
//! | Transfer, retired | target | - |

use std::collections::VecDeque;

use super::images::job_ref;
use super::{Fresh, Journal, Need};
use crate::clock::Now;
use crate::home::job::Job;
use crate::id::JobId;
use crate::log::{AppendFsync, Entry, KeptPlace, Log, Position, TransferImage, TransferName};
use crate::wire::Blob;

/// Entries of transfers that are not safe yet, each kind in order.
#[derive(Debug, Default)]
pub(super) struct FreshTransfers {
    answers: VecDeque<(Position, TransferName)>,
    ends: VecDeque<(Position, JobId)>,
    /// Jobs that were on their way and are gone, of which the log does not know. It is told as soon as it hears.
    pub(super) unwritten: VecDeque<JobId>,
}

impl FreshTransfers {
    /// All up to here is safe.
    pub(super) fn safe(&mut self, safe: Position) {
        while self
            .answers
            .front()
            .is_some_and(|(position, _)| *position <= safe)
        {
            self.answers.pop_front();
        }
        while self.ends.front().is_some_and(|(position, _)| *position <= safe) {
            self.ends.pop_front();
        }
    }

    /// These entries failed: the answers among them. Ends among them are to be written again.
    pub(super) fn failed(&mut self, failed: impl Fn(Position) -> bool) -> Vec<TransferName> {
        let lost = self.ends.iter().filter(|(position, _)| failed(*position));
        self.unwritten.extend(lost.map(|(_, id)| *id));
        self.ends.retain(|(position, _)| !failed(*position));
        let lost = self.answers.iter().filter(|(position, _)| failed(*position));
        let lost = lost.map(|(_, name)| *name).collect();
        self.answers.retain(|(position, _)| !failed(*position));
        lost
    }

    /// The log ends.
    pub(super) fn clear(&mut self) {
        *self = Self::default();
    }
}

impl Journal {
    /// The time of the present input.
    pub fn now(&self) -> Now {
        self.now
    }

    /// A job leaves for another node: what its sending waits for.
    pub fn sent(&mut self, image: TransferImage) -> Option<Need> {
        let position = self.append(&Entry::Transfer(image))?;
        let log = self.log.as_mut().filter(|_| self.gates)?;
        let durable = log.fsync() != AppendFsync::No;
        if durable {
            log.request_sync();
        }
        Some(Need {
            durable,
            ..Need::of(position)
        })
    }

    /// A job was taken from another node: it and the answer are one entry. `queued`: it enters its queue next.
    pub fn taken(&mut self, mut image: TransferImage, job: &Job, key: u32, queue: &Blob, queued: bool) {
        if self.log.is_none() {
            return;
        }
        let name = image.name();
        let mut whole = job_ref(job, queue, self.now, &[]).to_image();
        if queued {
            whole.state.place = KeptPlace::Queued;
        }
        image.job = Some(Box::new(whole));
        if let Some(position) = self.append(&Entry::Transfer(image)) {
            let ctime = job.ctime;
            self.copies.insert(key, position);
            self.fresh_copies.push_back(Fresh { ctime, position, key });
            self.transfers.answers.push_back((position, name));
        }
    }

    /// A transfer was refused for good; whether the log has heard.
    pub fn answered(&mut self, image: TransferImage) -> bool {
        if self.log.is_none() {
            return true;
        }
        let name = image.name();
        let position = self.append(&Entry::Transfer(image));
        self.transfers
            .answers
            .extend(position.map(|position| (position, name)));
        position.is_some()
    }

    /// An answer is forgotten.
    pub fn retired(&mut self, image: TransferImage) {
        if self.log.is_some() {
            self.append(&Entry::Transfer(image));
        }
    }

    /// A job that was on its way is gone, and the newest entry says so. Should it fail, it is written again.
    pub fn left(&mut self, id: JobId) {
        let Some(log) = self.log.as_ref().filter(|_| !self.stopped) else {
            return;
        };
        if log.refuses_raw(true, 0).is_some() {
            self.transfers.unwritten.push_back(id);
        } else {
            self.transfers.ends.push_back((log.appended(), id));
        }
    }

    /// Whether no later life can take up a transfer of this job again that is over, once all that was written is synced.
    pub fn may_retire(&self, id: &JobId) -> bool {
        !self.stopped && !self.transfers.unwritten.contains(id)
    }

    /// What waits for the sync of all that was written so far, ends of transfers in particular: when one fails, nothing is told.
    pub fn all_synced(&self) -> Option<Need> {
        let durable = self.log.as_ref().map(Log::fsync) != Some(AppendFsync::No);
        let need = self.last_entry()?;
        let first = self
            .transfers
            .ends
            .front()
            .map_or(need.first, |(first, _)| *first);
        Some(Need {
            first,
            durable,
            ..need
        })
    }

    /// What an answer to a transfer waits for, also when it is said again: all answers that are not safe yet.
    pub fn answers_safe(&self) -> Option<Need> {
        let (first, _) = *self.transfers.answers.front()?;
        Some(Need {
            first,
            ..self.last_entry()?
        })
    }

    /// Nothing is written any more: no transfer may begin, or be answered.
    pub fn is_stopped(&self) -> bool {
        self.stopped
    }

    /// The log hears again of ends that failed. `lives`: the job is here again.
    pub(super) fn write_ends(&mut self, most: usize, lives: impl Fn(&JobId) -> bool) {
        for _ in 0..most {
            let refuses = |log: &Log| log.refuses_raw(true, 0).is_some();
            if self.log.as_ref().is_none_or(refuses) {
                return;
            }
            let Some(id) = self.transfers.unwritten.pop_front() else {
                return;
            };
            if !lives(&id)
                && let Some(position) = self.append(&Entry::Gone(id))
            {
                self.transfers.ends.push_back((position, id));
            }
        }
    }
}
