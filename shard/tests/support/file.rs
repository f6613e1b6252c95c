//! A file on a disk that loses what was not synced, sector by sector, in any order, whole or torn.

use std::collections::{BTreeSet, VecDeque};

use super::chance::Chance;

const SECTOR: usize = 512;

/// A file: what the kernel holds, and what is on the disk.
#[derive(Clone, Debug, Default)]
pub struct File {
    pub synced: Vec<u8>,
    pub cached: Vec<u8>,
    dirty: BTreeSet<usize>,
    /// When writes completed that no sync covers, oldest first.
    unsynced: VecDeque<u64>,
}

/// What a sync that has begun covers: not what is written while it is under way.
#[derive(Clone, Debug)]
pub struct Syncing {
    sectors: Vec<(usize, Vec<u8>)>,
    writes: usize,
    length: usize,
}

impl File {
    /// A file whose content is on the disk.
    pub fn holding(content: Vec<u8>) -> Self {
        Self {
            synced: content.clone(),
            cached: content,
            ..Self::default()
        }
    }

    /// # Panics
    /// When the write goes beyond what was allocated.
    pub fn write(&mut self, offset: usize, bytes: &[u8]) {
        let end = offset + bytes.len();
        assert!(end <= self.cached.len(), "writes stay inside what was allocated");
        self.cached[offset..end].copy_from_slice(bytes);
        self.dirty.extend(offset / SECTOR..end.div_ceil(SECTOR));
    }

    /// A write completed at this moment, and waits for a sync from now on.
    pub fn wrote_at(&mut self, moment: u64) {
        self.unsynced.push_back(moment);
    }

    /// When the oldest write completed that no sync covers.
    pub fn unsynced_since(&self) -> Option<u64> {
        self.unsynced.front().copied()
    }

    pub fn truncate(&mut self, bytes: usize) {
        self.cached.truncate(bytes);
        self.dirty.retain(|sector| sector * SECTOR < bytes);
    }

    pub fn begin_sync(&self) -> Syncing {
        let sector = |&at: &usize| (at, self.sector(at).to_vec());
        Syncing {
            sectors: self.dirty.iter().map(sector).collect(),
            writes: self.unsynced.len(),
            length: self.cached.len(),
        }
    }

    pub fn end_sync(&mut self, syncing: Syncing) {
        self.synced.resize(syncing.length, 0);
        for (at, content) in syncing.sectors {
            let start = at * SECTOR;
            self.synced[start..start + content.len()].copy_from_slice(&content);
            if self.sector(at) == content {
                self.dirty.remove(&at);
            }
        }
        self.unsynced.drain(..syncing.writes);
    }

    pub fn sync(&mut self) {
        let syncing = self.begin_sync();
        self.end_sync(syncing);
    }

    /// The kernel loses what it holds; some of it was on its way to the disk.
    pub fn lose_power(&mut self, chance: &mut Chance) {
        let kept_percent = *chance.pick(&[0, 30, 70, 100]);
        for at in std::mem::take(&mut self.dirty) {
            let content = self.sector(at).to_vec();
            let start = at * SECTOR;
            if self.synced.len() < start + content.len() {
                continue;
            }
            if chance.percent(kept_percent) {
                let kept = if chance.percent(10) {
                    chance.below(content.len())
                } else {
                    content.len()
                };
                self.synced[start..start + kept].copy_from_slice(&content[..kept]);
            }
        }
        self.unsynced.clear();
        self.cached.clone_from(&self.synced);
    }

    pub fn flip(&mut self, at: usize, bit: u8) {
        self.cached[at] ^= bit;
        self.synced[at] ^= bit;
    }

    /// A place where a flipped bit tells: mostly where something stands. `None` in an empty file.
    pub fn place_to_flip(&self, chance: &mut Chance) -> Option<usize> {
        if self.cached.is_empty() {
            return None;
        }
        let used = self.cached.iter().rposition(|&byte| byte != 0).unwrap_or(0) + 1;
        let limit = if chance.percent(90) {
            used
        } else {
            self.cached.len()
        };
        Some(chance.below(limit))
    }

    fn sector(&self, at: usize) -> &[u8] {
        let start = at * SECTOR;
        &self.cached[start..self.cached.len().min(start + SECTOR)]
    }
}
