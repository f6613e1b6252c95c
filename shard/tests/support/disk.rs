//! The disk of a node: a data folder with `CURRENT`, generations and their segments. It does a server's part of the work on
//! files, slowly, and with the faults of real ones.

use std::collections::BTreeMap;

use bytes::Bytes;
use shard::log::{
    Action, Current, DiskTask, Done, FileName, FoundFile, IoError, LogBoot, LogFolder, RepairStep, StartPlan,
    SwitchStep, discard_plan, plan_start, switch_off,
};
use shard::slot::ShardNo;

use super::folders::{Folders, Name, ROOT};
use super::{Chance, File, Syncing};

const CURRENT: &str = "CURRENT";
const CURRENT_OFF: &str = "CURRENT.off";
const SECTOR: usize = 512;

/// How often things fail, in percent.
#[derive(Clone, Copy, Debug, Default)]
pub struct Faults {
    pub write: u64,
    pub sync: u64,
    pub sync_folder: u64,
    pub unlink: u64,
    pub read: u64,
    pub create: u64,
    pub repair: u64,
    pub step: u64,
    /// Bytes that all files may take.
    pub capacity: Option<u64>,
}

impl Faults {
    pub fn any(&self) -> bool {
        let rates = [
            self.write,
            self.sync,
            self.sync_folder,
            self.unlink,
            self.read,
            self.create,
            self.repair,
            self.step,
        ];
        self.capacity.is_some() || rates.iter().any(|&rate| rate > 0)
    }
}

/// A mistake that the disk, or who uses it, makes on purpose.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Plant {
    None,
    /// A sync of a file says that it is done and does nothing.
    LyingSync,
    /// A sync of a folder does.
    LyingFolderSync,
    /// A write is told to be done when it is asked for.
    EarlyWrites,
    /// A start does not list the newest segment that holds anything.
    SkippedSegment,
    /// A resharding does not read the last of the old shards.
    SkippedShard,
    /// The wall clock is slow while the log is read.
    WallClock,
}

/// What a task has done when it began.
#[derive(Clone, Debug, Default)]
pub struct Begun(Option<(u64, Syncing)>);

/// The disk.
#[derive(Clone, Debug)]
pub struct Disk {
    files: BTreeMap<u64, File>,
    next_file: u64,
    folders: Folders,
    pub faults: Faults,
    pub plant: Plant,
    /// Faults that were injected.
    pub failed: u64,
    /// Segments that were unlinked.
    pub unlinked: u64,
    /// What syncs that failed may have dropped: since when, by generation and shard.
    dropped: BTreeMap<(u64, ShardNo), u64>,
}

impl Disk {
    pub fn new(plant: Plant) -> Self {
        Self {
            files: BTreeMap::new(),
            next_file: 0,
            folders: Folders::default(),
            faults: Faults::default(),
            plant,
            failed: 0,
            unlinked: 0,
            dropped: BTreeMap::new(),
        }
    }

    /// A task begins: what a sync covers is fixed.
    pub fn begin(&self, task: &DiskTask) -> Begun {
        let segment = match task {
            DiskTask::Segment(folder, Action::Sync { segment })
            | DiskTask::Repair(folder, RepairStep::Sync { segment }) => (folder, *segment),
            _ => return Begun(None),
        };
        let file = self.file_of(*segment.0, segment.1);
        Begun(Some((file, self.files[&file].begin_sync())))
    }

    /// A task ends at this moment.
    pub fn end(
        &mut self,
        chance: &mut Chance,
        moment: u64,
        task: &DiskTask,
        begun: Begun,
    ) -> Result<Done, IoError> {
        match task {
            DiskTask::Segment(folder, action) => self.act(chance, moment, *folder, action, begun),
            DiskTask::Repair(folder, step) => {
                self.fail(chance, self.faults.repair)?;
                self.repair(*folder, step, begun);
                Ok(Done::Done)
            }
            DiskTask::Generation(step) => {
                self.fail(chance, self.faults.step)?;
                self.switch(step);
                Ok(Done::Done)
            }
        }
    }

    fn act(
        &mut self,
        chance: &mut Chance,
        moment: u64,
        folder: LogFolder,
        action: &Action,
        begun: Begun,
    ) -> Result<Done, IoError> {
        match action {
            Action::Create {
                segment,
                bytes,
                header,
                replaces,
            } => {
                self.fail(chance, self.faults.create)?;
                self.create(folder, *segment, *bytes, header, replaces)?;
            }
            Action::Write {
                segment,
                offset,
                chunks,
            } => {
                let (bytes, offset) = (chunks.concat(), *offset as usize);
                let failed = self.fail(chance, self.faults.write);
                let file = self.segment(folder, *segment);
                let part = if failed.is_err() {
                    chance.below(bytes.len() + 1)
                } else {
                    bytes.len()
                };
                file.write(offset, &bytes[..part]);
                failed?;
                file.wrote_at(moment);
            }
            Action::Sync { .. } => {
                let (file, syncing) = begun.0.expect("a sync has begun");
                if let Err(error) = self.fail(chance, self.faults.sync) {
                    // The kernel drops what it could not write.
                    if let Some(since) = self.unsynced_since(folder.generation, folder.shard) {
                        self.dropped.insert((folder.generation, folder.shard), since);
                    }
                    self.file(file).lose_power(chance);
                    return Err(error);
                }
                if self.plant != Plant::LyingSync {
                    self.file(file).end_sync(syncing);
                }
            }
            Action::Read {
                segment,
                offset,
                bytes,
            } => {
                self.fail(chance, self.faults.read)?;
                let content = &self.segment(folder, *segment).cached;
                let start = (*offset as usize).min(content.len());
                let end = (start + *bytes as usize).min(content.len());
                return Ok(Done::Read(Bytes::copy_from_slice(&content[start..end])));
            }
            Action::Unlink { segment } => {
                self.fail(chance, self.faults.unlink)?;
                self.unlinked += 1;
                self.unlink(folder, *segment);
            }
            Action::SyncFolder => {
                self.fail(chance, self.faults.sync_folder)?;
                self.sync_folder(&folder_of(folder));
            }
        }
        Ok(Done::Done)
    }

    fn create(
        &mut self,
        folder: LogFolder,
        segment: u64,
        bytes: u64,
        header: &[u8],
        replaces: &[u64],
    ) -> Result<(), IoError> {
        replaces
            .iter()
            .for_each(|&replaced| self.unlink(folder, replaced));
        let used: u64 = self.folders.now_used().map(|file| self.length(file)).sum();
        if self
            .faults
            .capacity
            .is_some_and(|capacity| used + bytes > capacity)
        {
            self.failed += 1;
            return Err(IoError::Full);
        }
        let mut content = vec![0; bytes as usize];
        content[..header.len()].copy_from_slice(header);
        self.link(name_of(folder, segment), File::holding(content));
        self.sync_folder(&folder_of(folder));
        Ok(())
    }

    fn repair(&mut self, folder: LogFolder, step: &RepairStep, begun: Begun) {
        match step {
            RepairStep::KeepAside { segment, offset, to } => {
                let tail = self.segment(folder, *segment).cached[*offset as usize..].to_vec();
                self.link((ROOT.to_owned(), to.clone()), File::holding(tail));
            }
            RepairStep::RenameAside { segment, to } => {
                let to = (ROOT.to_owned(), to.clone());
                self.folders.rename(&name_of(folder, *segment), &to);
            }
            RepairStep::SyncFolder => {
                self.sync_folder(ROOT);
                self.sync_folder(&folder_of(folder));
            }
            RepairStep::Truncate { segment, bytes } => {
                self.segment(folder, *segment).truncate(*bytes as usize)
            }
            RepairStep::Sync { .. } => {
                let (file, syncing) = begun.0.expect("a sync has begun");
                if self.plant != Plant::LyingSync {
                    self.file(file).end_sync(syncing);
                }
            }
            RepairStep::Unlink { segment } => self.unlink(folder, *segment),
        }
    }

    fn switch(&mut self, step: &SwitchStep) {
        match step {
            SwitchStep::MakeFolder(folder) => self.folders.make_folder(folder),
            SwitchStep::SyncFolder(folder) => self.sync_folder(folder),
            SwitchStep::WriteAndSync { name, text } => {
                self.link(
                    (ROOT.to_owned(), name.clone()),
                    File::holding(text.clone().into_bytes()),
                );
            }
            SwitchStep::Rename { from, to } => {
                let [from, to] = [from, to].map(|name| (ROOT.to_owned(), name.clone()));
                self.folders.rename(&from, &to);
            }
            SwitchStep::DeleteFolder(folder) => self.folders.remove_folder(folder),
        }
    }

    /// A task that was under way when everything ended: a part of it may have happened.
    pub fn interrupt(&mut self, chance: &mut Chance, task: &DiskTask) {
        match task {
            DiskTask::Segment(
                folder,
                Action::Write {
                    segment,
                    offset,
                    chunks,
                },
            ) => {
                let bytes = chunks.concat();
                for at in (0..bytes.len()).step_by(SECTOR) {
                    if chance.percent(50) {
                        let part = &bytes[at..(at + SECTOR).min(bytes.len())];
                        self.segment(*folder, *segment).write(*offset as usize + at, part);
                    }
                }
            }
            DiskTask::Segment(
                folder,
                Action::Create {
                    segment,
                    bytes,
                    header,
                    ..
                },
            ) if chance.percent(50) => {
                let header: &[u8] = if chance.percent(50) {
                    header
                } else {
                    &header[..chance.below(64)]
                };
                let mut content = vec![0; *bytes as usize];
                content[..header.len()].copy_from_slice(header);
                if chance.percent(20) {
                    content.truncate(chance.below(content.len()));
                }
                self.link(name_of(*folder, *segment), File::holding(content));
            }
            DiskTask::Segment(folder, Action::Unlink { segment }) if chance.percent(50) => {
                self.unlink(*folder, *segment)
            }
            DiskTask::Generation(SwitchStep::DeleteFolder(folder)) if chance.percent(50) => {
                let files: Vec<String> = self
                    .folders
                    .files(folder)
                    .map(|(name, _)| name.to_owned())
                    .collect();
                for name in files {
                    if chance.percent(50) {
                        self.folders.unlink(&(folder.clone(), name));
                    }
                }
            }
            DiskTask::Generation(SwitchStep::WriteAndSync { name, text }) if chance.percent(50) => {
                let part = chance.below(text.len() + 1);
                let content = text.as_bytes()[..part].to_vec();
                self.link((ROOT.to_owned(), name.clone()), File::holding(content));
            }
            DiskTask::Generation(step) if chance.percent(50) => self.switch(step),
            _ => {}
        }
    }

    pub fn lose_power(&mut self, chance: &mut Chance) {
        self.folders.lose_power(chance);
        let used = self.folders.in_use();
        self.files.retain(|file, _| used.contains(file));
        self.files.values_mut().for_each(|file| file.lose_power(chance));
    }

    /// When the oldest write to the log of this shard completed that would be lost with the power. `None`: nothing would.
    pub fn unsynced_since(&self, generation: u64, shard: ShardNo) -> Option<u64> {
        let folder = Current::folder(generation);
        let of_shard = |(name, file): (&str, u64)| match FileName::parse(name) {
            FileName::Segment { shard: of, .. } if of == shard => self.files[&file].unsynced_since(),
            _ => None,
        };
        let dropped = self.dropped.get(&(generation, shard)).copied();
        self.folders
            .files(&folder)
            .filter_map(of_shard)
            .chain(dropped)
            .min()
    }

    /// The next life has a disk that works.
    pub fn forget_faults(&mut self) {
        self.faults = Faults::default();
        self.dropped.clear();
        (self.failed, self.unlinked) = (0, 0);
    }

    /// Segments of the generation that counts.
    pub fn segments(&self) -> u64 {
        let folder = Current::folder(self.current().map_or(0, |current| current.generation));
        self.folders.files(&folder).count() as u64
    }

    /// What `CURRENT` says.
    pub fn current(&self) -> Option<Current> {
        self.text(CURRENT).and_then(|text| Current::parse(&text))
    }

    /// What a server does before it starts its shards.
    pub fn boot(&mut self, appendonly: bool, shards: u16, boot_id: [u8; 16]) -> Result<LogBoot, String> {
        let names = self.folders.names();
        let plan = plan_start(&names, self.text(CURRENT).as_deref(), appendonly, shards);
        match plan {
            StartPlan::Unreadable => return Err("CURRENT, offset 0: not what was written".into()),
            StartPlan::SwitchOff => {
                switch_off().iter().for_each(|step| self.switch(step));
                return Ok(LogBoot {
                    newest_generation: self.newest_generation(),
                    ..LogBoot::nothing()
                });
            }
            StartPlan::Load(from) | StartPlan::Reshard { from, .. } => {
                let off = self.text(CURRENT_OFF).and_then(|text| Current::parse(&text));
                discard_plan(&names, from, off)
                    .iter()
                    .for_each(|step| self.switch(step));
            }
            StartPlan::Nothing | StartPlan::Fresh(_) => {}
        }
        let mut boot = LogBoot {
            plan,
            files: Vec::new(),
            newest_generation: self.newest_generation(),
            boot_id,
        };
        if let Some(from) = boot.source() {
            boot.files = (0..from.shards)
                .map(|shard| self.found(from.generation, shard))
                .collect();
            self.hide(&mut boot);
        }
        Ok(boot)
    }

    fn found(&self, generation: u64, shard: ShardNo) -> Vec<FoundFile> {
        let of_shard = |(name, file): (&str, u64)| match FileName::parse(name) {
            FileName::Segment { shard: of, number } if of == shard => Some(FoundFile {
                number,
                bytes: self.length(file),
            }),
            _ => None,
        };
        self.folders
            .files(&Current::folder(generation))
            .filter_map(of_shard)
            .collect()
    }

    fn hide(&self, boot: &mut LogBoot) {
        let generation = boot.source().map_or(0, |from| from.generation);
        match (self.plant, boot.plan) {
            (Plant::SkippedShard, StartPlan::Reshard { .. }) => {
                boot.files.last_mut().expect("there is a shard").clear();
            }
            (Plant::SkippedSegment, _) => {
                for (shard, files) in boot.files.iter_mut().enumerate() {
                    let folder = LogFolder {
                        generation,
                        shard: shard as ShardNo,
                    };
                    let used = |file: &FoundFile| {
                        let content = &self.files[&self.file_of(folder, file.number)].cached;
                        content.iter().skip(64).any(|&byte| byte != 0)
                    };
                    if let Some(at) = files.iter().rposition(used).filter(|&at| at > 0) {
                        files.remove(at);
                    }
                }
            }
            _ => {}
        }
    }

    fn newest_generation(&self) -> u64 {
        let names = self.folders.names();
        let numbers = names
            .iter()
            .filter_map(|name| name.strip_prefix("gen-")?.parse().ok());
        numbers.max().unwrap_or(0)
    }

    /// Flips bits in segments of the generation that counts, now and then in `CURRENT`.
    pub fn flip_bits(&mut self, chance: &mut Chance, count: usize) {
        for _ in 0..count {
            let folder = self.current().map_or(0, |current| current.generation);
            let mut files: Vec<u64> = self
                .folders
                .files(&Current::folder(folder))
                .map(|(_, file)| file)
                .collect();
            if files.is_empty() || chance.percent(3) {
                files = self
                    .folders
                    .find(&(ROOT.to_owned(), CURRENT.to_owned()))
                    .into_iter()
                    .collect();
            }
            if files.is_empty() {
                return;
            }
            let file = *chance.pick(&files);
            if let Some(at) = self.files[&file].place_to_flip(chance) {
                self.file(file).flip(at, 1 << chance.below(8));
            }
        }
    }

    /// Whether what was cut off this segment is in the data folder.
    pub fn keeps_cut_of(&self, segment: &str) -> bool {
        self.folders
            .files(ROOT)
            .any(|(name, _)| name.starts_with(&format!("{segment}.cut-")))
    }

    fn text(&self, name: &str) -> Option<Vec<u8>> {
        let file = self.folders.find(&(ROOT.to_owned(), name.to_owned()))?;
        Some(self.files[&file].cached.clone())
    }

    fn sync_folder(&mut self, folder: &str) {
        if self.plant != Plant::LyingFolderSync {
            self.folders.sync(folder);
        }
    }

    fn link(&mut self, name: Name, file: File) {
        self.next_file += 1;
        self.files.insert(self.next_file, file);
        self.folders.link(&name, self.next_file);
    }

    fn unlink(&mut self, folder: LogFolder, segment: u64) {
        self.folders.unlink(&name_of(folder, segment));
    }

    fn file_of(&self, folder: LogFolder, segment: u64) -> u64 {
        let name = name_of(folder, segment);
        self.folders
            .find(&name)
            .unwrap_or_else(|| panic!("{name:?} is not there"))
    }

    fn segment(&mut self, folder: LogFolder, segment: u64) -> &mut File {
        let file = self.file_of(folder, segment);
        self.file(file)
    }

    fn file(&mut self, file: u64) -> &mut File {
        self.files.get_mut(&file).expect("a file that is named is there")
    }

    fn length(&self, file: u64) -> u64 {
        self.files[&file].cached.len() as u64
    }

    fn fail(&mut self, chance: &mut Chance, percent: u64) -> Result<(), IoError> {
        if chance.percent(percent) {
            self.failed += 1;
            return Err(if chance.percent(50) {
                IoError::Full
            } else {
                IoError::Other("injected".into())
            });
        }
        Ok(())
    }
}

fn folder_of(folder: LogFolder) -> String {
    Current::folder(folder.generation)
}

fn name_of(folder: LogFolder, segment: u64) -> Name {
    (folder_of(folder), FileName::of(folder.shard, segment))
}
