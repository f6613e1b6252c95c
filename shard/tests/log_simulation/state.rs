//! What entries add up to, written a second time and as simply as can be, and entries at random.

use std::collections::BTreeMap;

use shard::commands::view::PauseState;
use shard::id::JobId;
use shard::log::{
    AckedImage, Entry, Holder, JobImage, KeptPlace, Live, ObjectKey, QueueImage, StateChange, TransferImage,
    TransferName, TransferStage, WallMs,
};
use shard::wire::Blob;

use crate::support::Chance;

/// Everything that lives.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct State {
    pub jobs: BTreeMap<JobId, JobImage>,
    acked: BTreeMap<JobId, AckedImage>,
    queues: BTreeMap<Vec<u8>, QueueImage>,
    /// Jobs that are on their way to another node.
    sent: BTreeMap<JobId, TransferImage>,
    answers: BTreeMap<TransferName, TransferImage>,
}

impl State {
    pub fn apply(&mut self, entry: &Entry) {
        match entry.clone() {
            Entry::Added(job) | Entry::JobSnapshot(job) => {
                self.sent.remove(&job.id);
                self.jobs.insert(job.id, job);
            }
            Entry::State(state) => {
                self.sent.remove(&state.id);
                if let Some(job) = self.jobs.get_mut(&state.id) {
                    job.state = state;
                }
            }
            Entry::Acked(acked) | Entry::AckedSnapshot(acked) => {
                self.jobs.remove(&acked.id);
                self.sent.remove(&acked.id);
                self.acked.remove(&acked.id);
                if !acked.holders.is_empty() {
                    self.acked.insert(acked.id, acked);
                }
            }
            Entry::Holders(image) => {
                if let Some(job) = self.jobs.get_mut(&image.id) {
                    job.holders = image.holders;
                }
            }
            Entry::Gone(id) => {
                self.jobs.remove(&id);
                self.sent.remove(&id);
                self.acked.remove(&id);
            }
            Entry::Queue(queue) | Entry::QueueSnapshot(queue) => {
                _ = self.queues.insert(queue.name.to_vec(), queue);
            }
            Entry::Transfer(image) | Entry::TransferSnapshot(image) => self.transfer(image),
            Entry::Flushed => {
                *self = Self {
                    answers: std::mem::take(&mut self.answers),
                    ..Self::default()
                }
            }
            Entry::Meta(_) => {}
        }
    }

    fn transfer(&mut self, mut image: TransferImage) {
        if let Some(job) = image.job.take() {
            self.sent.remove(&job.id);
            self.jobs.insert(job.id, *job);
        }
        match image.stage {
            TransferStage::Taken | TransferStage::Refused => _ = self.answers.insert(image.name(), image),
            TransferStage::Retired => _ = self.answers.remove(&image.name()),
            _ if self.jobs.contains_key(&image.id) => _ = self.sent.insert(image.id, image),
            _ => {}
        }
    }

    /// A step of some transfer that may happen next.
    fn next_transfer(&self, chance: &mut Chance, id: JobId) -> TransferImage {
        let old = self.answers.values().next().filter(|_| chance.percent(50));
        let stages = [
            TransferStage::SentQueued,
            TransferStage::Refused,
            TransferStage::Taken,
        ];
        let stage = *chance.pick(&stages);
        let taken = (stage == TransferStage::Taken).then(|| Box::new(new_job(chance)));
        match old {
            Some(old) => TransferImage {
                stage: TransferStage::Retired,
                ..old.clone()
            },
            None => TransferImage {
                stage,
                node: Holder {
                    node: [chance.below(3) as u8; 20],
                    epoch: 1,
                },
                id: taken.as_ref().map_or(id, |job| job.id),
                hop: chance.next() >> 8,
                job: taken,
            },
        }
    }

    fn some_job(&self, chance: &mut Chance) -> Option<JobId> {
        let ids: Vec<JobId> = self.jobs.keys().copied().collect();
        (!ids.is_empty()).then(|| *chance.pick(&ids))
    }

    /// Something that may happen next.
    pub fn random_entry(&self, chance: &mut Chance) -> Entry {
        let some = self.some_job(chance);
        if chance.percent(1) && chance.percent(20) {
            return Entry::Flushed;
        }
        match (chance.below(100), some) {
            (0..40, _) | (_, None) => Entry::Added(new_job(chance)),
            (40..65, Some(id)) => Entry::State(self.next_state(chance, id)),
            (65..82, Some(id)) => Entry::Acked(AckedImage {
                id,
                holders: holders(chance),
            }),
            (82..86, Some(id)) => Entry::Transfer(self.next_transfer(chance, id)),
            (86..95, Some(id)) => Entry::Gone(
                self.acked
                    .keys()
                    .next()
                    .copied()
                    .filter(|_| chance.percent(70))
                    .unwrap_or(id),
            ),
            (_, Some(_)) => Entry::Queue(QueueImage {
                name: Blob::from(*chance.pick(&[
                    "mail",
                    "images",
                    "a queue with a longer name than fits in a blob",
                ])),
                pause: PauseState {
                    input: chance.percent(50),
                    output: chance.percent(50),
                },
                version: chance.next() % 100,
            }),
        }
    }

    fn next_state(&self, chance: &mut Chance, id: JobId) -> StateChange {
        let old = self.jobs[&id].state;
        let spent = self.jobs[&id].retry_s == 0 && old.delivered;
        let places = [
            KeptPlace::Idle,
            KeptPlace::Queued,
            KeptPlace::Leased,
            KeptPlace::Held,
        ];
        let place = if spent {
            KeptPlace::Leased
        } else {
            *chance.pick(&places)
        };
        StateChange {
            place,
            enters_at: WallMs(chance.next()),
            nacks: old.nacks + 1,
            deliveries: old.deliveries + u32::from(place == KeptPlace::Leased),
            delivered: spent || place == KeptPlace::Leased,
            ..old
        }
    }
}

impl Live for State {
    fn snapshot(&mut self, object: &ObjectKey) -> Option<Entry> {
        match object {
            ObjectKey::Job(id) => {
                let job = self.jobs.get(id)?.clone();
                Some(match self.sent.get(id) {
                    None => Entry::JobSnapshot(job),
                    Some(sent) => Entry::TransferSnapshot(TransferImage {
                        job: Some(Box::new(job)),
                        ..sent.clone()
                    }),
                })
            }
            ObjectKey::Queue(name) => self
                .queues
                .get(name.as_slice())
                .cloned()
                .map(Entry::QueueSnapshot),
            ObjectKey::Transfer(name) => self.answers.get(name).cloned().map(Entry::TransferSnapshot),
            ObjectKey::Acked(id) => self.acked.get(id).cloned().map(Entry::AckedSnapshot),
        }
    }

    fn live_bytes(&self) -> u64 {
        let job = |job: &JobImage| {
            let shared = if job.holders.is_empty() {
                0
            } else {
                shard::log::SHARE_IMAGE_BYTES
            };
            shard::log::image_bytes(job.queue.len(), job.body.len()) + shared
        };
        self.jobs.values().map(job).sum::<u64>()
            + 100 * (self.acked.len() + self.queues.len() + self.sent.len() + self.answers.len()) as u64
    }
}

fn holders(chance: &mut Chance) -> Vec<Holder> {
    let count = if chance.percent(70) {
        0
    } else {
        1 + chance.below(3)
    };
    (0..count)
        .map(|node| Holder {
            node: [node as u8; 20],
            epoch: 1,
        })
        .collect()
}

fn new_job(chance: &mut Chance) -> JobImage {
    let mut id = [0; 24];
    id[..8].copy_from_slice(&chance.next().to_le_bytes());
    let id = JobId::from_bytes(id);
    let body_bytes = match chance.below(200) {
        0..150 => chance.below(60),
        150..196 => chance.below(700),
        196..199 => 4000 + chance.below(2000),
        _ => 20_000,
    };
    JobImage {
        id,
        queue: Blob::from("mail"),
        body: Blob::copy_from(&vec![(chance.next() % 256) as u8; body_bytes]),
        ctime: chance.next() >> 8,
        expires_at: WallMs(chance.next()),
        ttl_s: 100,
        retry_s: if chance.percent(30) { 0 } else { 60 },
        delay_s: 0,
        replicate: 1,
        state: StateChange {
            id,
            place: KeptPlace::Queued,
            enters_at: WallMs::NEVER,
            nacks: 0,
            additional_deliveries: 0,
            deliveries: 0,
            delivered: false,
            entered_before: true,
        },
        holders: vec![],
    }
}
