//! A disk that does what disks do: sectors reach it in any order or not at all until a sync, an unlink becomes durable late, it fills
//! up, it is slow, it fails half way. It can also be told to lie, to prove that the simulation sees it.

use std::collections::BTreeMap;

use bytes::Bytes;
use shard::log::{Action, Done, FileName, IoError, RepairStep};

use crate::support::{Chance, File};

const SECTOR: usize = 512;
const SHARD: u16 = 0;

/// A mistake that the disk, or who uses it, makes on purpose.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Plant {
    None,
    /// A sync says that it is done and does nothing.
    LyingSync,
    /// A segment is unlinked as soon as compaction has read it.
    EarlyUnlink,
    /// What was appended is told at once.
    TellsAtOnce,
    /// After a failed write, writes to the segment go behind the failed place.
    WrongResume,
    /// What a failed write left is not overwritten.
    NoZeros,
}

/// How often things fail, in percent.
#[derive(Clone, Copy, Debug, Default)]
pub struct Faults {
    pub write: u64,
    pub sync: u64,
    pub unlink: u64,
    pub read: u64,
    /// Bytes that all files may take.
    pub capacity: Option<u64>,
}

/// The disk of one shard.
pub struct Disk {
    files: BTreeMap<String, File>,
    /// Unlinked, and not yet durably.
    unlinked: BTreeMap<String, File>,
    pub faults: Faults,
    pub plant: Plant,
    /// WrongResume: how far writes to a segment are off.
    shift: Option<(u64, u64)>,
    /// NoZeros: the range that is to be overwritten.
    failed: Option<(u64, u64)>,
}

impl Disk {
    pub fn new(plant: Plant) -> Self {
        Self {
            files: BTreeMap::new(),
            unlinked: BTreeMap::new(),
            faults: Faults::default(),
            plant,
            shift: None,
            failed: None,
        }
    }

    /// Numbers and lengths of the segments.
    pub fn segments(&self) -> Vec<(u64, u64)> {
        let segment = |(name, file): (&String, &File)| match FileName::parse(name) {
            FileName::Segment { number, .. } => Some((number, file.cached.len() as u64)),
            FileName::Cut => None,
            FileName::Foreign => panic!("{name} is no name of ours"),
        };
        self.files.iter().filter_map(segment).collect()
    }

    pub fn read(&self, segment: u64, offset: u64, bytes: u64) -> &[u8] {
        let file = &self.files[&name(segment)].cached;
        let start = (offset as usize).min(file.len());
        &file[start..(start + bytes as usize).min(file.len())]
    }

    /// The content of a segment, to be tampered with.
    #[allow(dead_code, reason = "the tests of recovery do that")]
    pub fn bytes_mut(&mut self, segment: u64) -> &mut Vec<u8> {
        &mut self.file(segment).cached
    }

    #[allow(dead_code, reason = "the tests of recovery do that")]
    pub fn remove(&mut self, segment: u64) {
        self.files.remove(&name(segment));
    }

    pub fn perform(&mut self, chance: &mut Chance, action: &Action) -> Result<Done, IoError> {
        match action {
            Action::Create {
                segment,
                bytes,
                header,
                replaces,
            } => self.create(*segment, *bytes, header, replaces),
            Action::Write {
                segment,
                offset,
                chunks,
            } => self.write(chance, *segment, *offset, &chunks.concat()),
            Action::Sync { segment } => {
                fail(chance, self.faults.sync, || {})?;
                if self.plant != Plant::LyingSync {
                    self.file(*segment).sync();
                }
                Ok(Done::Done)
            }
            Action::Read {
                segment,
                offset,
                bytes,
            } => {
                fail(chance, self.faults.read, || {})?;
                let read = Bytes::copy_from_slice(self.read(*segment, *offset, *bytes));
                if self.plant == Plant::EarlyUnlink {
                    self.unlinked.clear();
                    self.file(*segment).synced.fill(0);
                }
                Ok(Done::Read(read))
            }
            Action::Unlink { segment } => {
                fail(chance, self.faults.unlink, || {})?;
                let name = name(*segment);
                let file = self.files.remove(&name).expect("what is unlinked is there");
                self.unlinked.insert(name, file);
                Ok(Done::Done)
            }
            Action::SyncFolder => {
                self.unlinked.clear();
                Ok(Done::Done)
            }
        }
    }

    fn create(&mut self, segment: u64, bytes: u64, header: &[u8], replaces: &[u64]) -> Result<Done, IoError> {
        for replaced in replaces {
            self.files.remove(&name(*replaced));
        }
        let used: u64 = self.files.values().map(|file| file.cached.len() as u64).sum();
        if self
            .faults
            .capacity
            .is_some_and(|capacity| used + bytes > capacity)
        {
            return Err(IoError::Full);
        }
        let mut content = vec![0; bytes as usize];
        content[..header.len()].copy_from_slice(header);
        self.files.insert(name(segment), File::holding(content));
        self.unlinked.clear();
        Ok(Done::Done)
    }

    fn write(
        &mut self,
        chance: &mut Chance,
        segment: u64,
        offset: u64,
        bytes: &[u8],
    ) -> Result<Done, IoError> {
        if self.plant == Plant::NoZeros && self.failed.take() == Some((segment, offset)) {
            return Ok(Done::Done);
        }
        let off = self
            .shift
            .filter(|shift| shift.0 == segment && self.plant == Plant::WrongResume);
        let offset = offset as usize + off.map_or(0, |shift| shift.1 as usize);
        let file = self
            .files
            .get_mut(&name(segment))
            .expect("what is written to is there");
        if offset + bytes.len() > file.cached.len() {
            return Ok(Done::Done);
        }
        let written = fail(chance, self.faults.write, || {});
        if written.is_err() {
            let part = chance.below(bytes.len() + 1);
            file.write(offset, &bytes[..part]);
            self.shift = Some((segment, bytes.len() as u64));
            self.failed = Some((segment, offset as u64));
            return written;
        }
        file.write(offset, bytes);
        Ok(Done::Done)
    }

    /// An I/O that was under way when everything ended: a part of it may have happened.
    pub fn interrupt(&mut self, chance: &mut Chance, action: &Action) {
        match action {
            Action::Write {
                segment,
                offset,
                chunks,
            } => {
                let bytes = chunks.concat();
                let file = self.file(*segment);
                for at in (0..bytes.len()).step_by(SECTOR) {
                    if chance.percent(50) {
                        file.write(*offset as usize + at, &bytes[at..(at + SECTOR).min(bytes.len())]);
                    }
                }
            }
            Action::Create {
                segment,
                bytes,
                header,
                replaces,
            } if chance.percent(50) => {
                let header: &[u8] = if chance.percent(50) {
                    header
                } else {
                    &header[..chance.below(64)]
                };
                let _full = self.create(*segment, *bytes, header, replaces);
            }
            Action::Unlink { segment } if chance.percent(50) => {
                let name = name(*segment);
                let file = self.files.remove(&name).expect("what is unlinked is there");
                self.unlinked.insert(name, file);
            }
            Action::SyncFolder if chance.percent(50) => self.unlinked.clear(),
            _ => {}
        }
    }

    pub fn lose_power(&mut self, chance: &mut Chance) {
        for (name, file) in std::mem::take(&mut self.unlinked) {
            if chance.percent(50) {
                self.files.insert(name, file);
            }
        }
        self.files.values_mut().for_each(|file| file.lose_power(chance));
    }

    /// Only the process died: what was written is in the kernel's hands.
    pub fn lose_process(&mut self) {
        self.unlinked.clear();
    }

    pub fn flip_bits(&mut self, chance: &mut Chance, count: usize) {
        for _ in 0..count {
            let names: Vec<String> = self
                .files
                .keys()
                .filter(|name| name.ends_with(".log"))
                .cloned()
                .collect();
            let file = self.files.get_mut(chance.pick(&names)).expect("picked of these");
            if let Some(at) = file.place_to_flip(chance) {
                file.flip(at, 1 << chance.below(8));
            }
        }
    }

    pub fn repair(&mut self, step: &RepairStep) {
        match step {
            RepairStep::KeepAside { segment, offset, to } => {
                let tail = self.file(*segment).cached[*offset as usize..].to_vec();
                self.files.insert(to.clone(), File::holding(tail));
            }
            RepairStep::RenameAside { segment, to } => {
                let file = self
                    .files
                    .remove(&name(*segment))
                    .expect("what is renamed is there");
                self.files.insert(to.clone(), file);
            }
            RepairStep::SyncFolder => self.unlinked.clear(),
            RepairStep::Truncate { segment, bytes } => {
                self.file(*segment).truncate(*bytes as usize);
            }
            RepairStep::Sync { segment } => self.file(*segment).sync(),
            RepairStep::Unlink { segment } => {
                let name = name(*segment);
                let file = self.files.remove(&name).expect("what is unlinked is there");
                self.unlinked.insert(name, file);
            }
        }
    }

    fn file(&mut self, segment: u64) -> &mut File {
        self.files.get_mut(&name(segment)).expect("the segment is there")
    }
}

fn name(segment: u64) -> String {
    FileName::of(SHARD, segment)
}

fn fail(chance: &mut Chance, percent: u64, before: impl FnOnce()) -> Result<Done, IoError> {
    if chance.percent(percent) {
        before();
        return Err(IoError::Other("injected".into()));
    }
    Ok(Done::Done)
}
