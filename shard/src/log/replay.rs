//! The state that entries add up to: what `shardq-cli aof` counts, and what a resharding sorts by shard. A home may apply
//! entries as they come instead.
//!
//! An entry about a job that is not there says nothing: its job is gone, and its `gone` stands in a segment that is gone, too.

use std::collections::BTreeMap;

use super::record::{AckedImage, Entry, JobImage, Meta, QueueImage};
use crate::id::JobId;
use crate::wire::Blob;

/// What lives after all entries so far.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Replay {
    /// Jobs.
    pub jobs: BTreeMap<JobId, JobImage>,
    /// Acknowledgements not yet collected.
    pub acked: BTreeMap<JobId, AckedImage>,
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
                self.acked.remove(&image.id);
                self.jobs.insert(image.id, image);
            }
            Entry::State(change) => {
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
                if image.holders.is_empty() {
                    self.acked.remove(&image.id);
                } else {
                    self.acked.insert(image.id, image);
                }
            }
            Entry::Gone(id) => {
                self.jobs.remove(&id);
                self.acked.remove(&id);
            }
            Entry::Queue(image) | Entry::QueueSnapshot(image) => {
                self.queues.insert(image.name.clone(), image);
            }
            Entry::Flushed => {
                self.jobs.clear();
                self.acked.clear();
                self.queues.clear();
            }
            Entry::Meta(meta) => self.meta = Some(meta),
        }
    }
}
