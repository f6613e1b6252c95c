//! The state that entries add up to: what `shardq-cli aof` counts, and what a resharding sorts by shard. A home may apply
//! entries as they come instead.
//!
//! An entry about a job that is not there says nothing: its job is gone, and its `gone` stands in a segment that is gone, too.

use std::collections::BTreeMap;

use super::record::{
    AckedImage, Entry, JobImage, Meta, QueueImage, TransferImage, TransferName, TransferStage,
};
use crate::id::JobId;
use crate::wire::Blob;

/// What lives after all entries so far.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Replay {
    /// Jobs.
    pub jobs: BTreeMap<JobId, JobImage>,
    /// Acknowledgements not yet collected.
    pub acked: BTreeMap<JobId, AckedImage>,
    /// Jobs on their way to another node; they are among the jobs, too.
    pub sent: BTreeMap<JobId, TransferImage>,
    /// Answers to transfers that are not retired.
    pub answers: BTreeMap<TransferName, TransferStage>,
    /// Queues with a pause state or a version of one.
    pub queues: BTreeMap<Blob, QueueImage>,
    /// The newest meta record.
    pub meta: Option<Meta>,
    /// Entries so far.
    pub entries: u64,
}

impl Replay {
    /// Applies the next entry.
    pub fn apply(&mut self, entry: Entry) {
        self.entries += 1;
        match entry {
            Entry::Added(image) | Entry::JobSnapshot(image) => {
                self.add(image);
            }
            Entry::State(change) => {
                self.sent.remove(&change.id);
                if let Some(job) = self.jobs.get_mut(&change.id) {
                    job.state = change;
                }
            }
            Entry::Holders(image) => {
                if let Some(job) = self.jobs.get_mut(&image.id) {
                    job.holders = image.holders;
                }
            }
            Entry::Acked(image) | Entry::AckedSnapshot(image) => {
                self.jobs.remove(&image.id);
                self.sent.remove(&image.id);
                if image.holders.is_empty() {
                    self.acked.remove(&image.id);
                } else {
                    self.acked.insert(image.id, image);
                }
            }
            Entry::Gone(id) => {
                self.jobs.remove(&id);
                self.sent.remove(&id);
                self.acked.remove(&id);
            }
            Entry::Transfer(image) | Entry::TransferSnapshot(image) => self.transfer(image),
            Entry::Queue(image) | Entry::QueueSnapshot(image) => {
                self.queues.insert(image.name.clone(), image);
            }
            Entry::Flushed => {
                self.jobs.clear();
                self.sent.clear();
                self.acked.clear();
                self.queues.clear();
            }
            Entry::Meta(meta) => self.meta = Some(meta),
        }
    }

    fn add(&mut self, image: JobImage) {
        self.acked.remove(&image.id);
        self.sent.remove(&image.id);
        self.jobs.insert(image.id, image);
    }

    fn transfer(&mut self, mut image: TransferImage) {
        if let Some(job) = image.job.take() {
            self.add(*job);
        }
        match image.stage {
            TransferStage::SentQueued | TransferStage::SentIdle => {
                if self.jobs.contains_key(&image.id) {
                    self.sent.insert(image.id, image);
                }
            }
            TransferStage::Taken | TransferStage::Refused => {
                self.answers.insert(image.name(), image.stage);
            }
            TransferStage::Retired => {
                self.answers.remove(&image.name());
            }
        }
    }
}
