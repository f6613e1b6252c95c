//! Names on a disk: a data folder with folders in it. A name that is made, moved or taken away is there at once for the process,
//! and for a machine that loses power only when the folder was synced, or by chance.

use std::collections::{BTreeMap, BTreeSet};

use crate::support::Chance;

/// The data folder itself.
pub const ROOT: &str = ".";

/// A name: its folder, and the name in it.
pub type Name = (String, String);

/// A change of names.
#[derive(Clone, Debug)]
pub enum Change {
    Link(Name, u64),
    Unlink(Name),
    /// Atomic, also from one folder to another.
    Rename(Name, Name, u64),
    MakeFolder(String),
    RemoveFolder(String),
}

impl Change {
    fn touches(&self, folder: &str) -> bool {
        match self {
            Self::Link(name, _) | Self::Unlink(name) => name.0 == folder,
            Self::Rename(from, to, _) => from.0 == folder || to.0 == folder,
            Self::MakeFolder(_) | Self::RemoveFolder(_) => folder == ROOT,
        }
    }
}

#[derive(Clone, Debug, Default)]
struct Tree {
    folders: BTreeSet<String>,
    files: BTreeMap<Name, u64>,
}

impl Tree {
    fn apply(&mut self, change: &Change) {
        match change {
            Change::Link(name, file) => {
                self.files.insert(name.clone(), *file);
            }
            Change::Unlink(name) => {
                self.files.remove(name);
            }
            Change::Rename(from, to, file) => {
                self.files.remove(from);
                self.files.insert(to.clone(), *file);
            }
            Change::MakeFolder(folder) => {
                self.folders.insert(folder.clone());
            }
            Change::RemoveFolder(folder) => {
                self.folders.remove(folder);
                self.files.retain(|name, _| name.0 != *folder);
            }
        }
    }
}

/// The names, as the process sees them and as they are on the disk.
#[derive(Clone, Debug, Default)]
pub struct Folders {
    cached: Tree,
    durable: Tree,
    pending: Vec<Change>,
}

impl Folders {
    pub fn change(&mut self, change: Change) {
        self.cached.apply(&change);
        self.pending.push(change);
    }

    pub fn sync(&mut self, folder: &str) {
        let pending = std::mem::take(&mut self.pending);
        let (synced, rest) = pending.into_iter().partition(|change| change.touches(folder));
        self.pending = rest;
        let synced: Vec<Change> = synced;
        synced.iter().for_each(|change| self.durable.apply(change));
    }

    pub fn lose_power(&mut self, chance: &mut Chance) {
        let kept_percent = *chance.pick(&[0, 50, 100]);
        for change in std::mem::take(&mut self.pending) {
            if chance.percent(kept_percent) {
                self.durable.apply(&change);
            }
        }
        let Tree { folders, files } = &mut self.durable;
        files.retain(|(folder, _), _| folder == ROOT || folders.contains(folder));
        self.cached = self.durable.clone();
    }

    pub fn find(&self, name: &Name) -> Option<u64> {
        self.cached.files.get(name).copied()
    }

    /// The files of a folder: name, file.
    pub fn files(&self, folder: &str) -> impl Iterator<Item = (&str, u64)> {
        self.cached
            .files
            .iter()
            .filter(move |(name, _)| name.0 == folder)
            .map(|((_, name), file)| (name.as_str(), *file))
    }

    /// The names in the data folder, files and folders.
    pub fn names(&self) -> Vec<String> {
        let files = self.files(ROOT).map(|(name, _)| name.to_owned());
        files.chain(self.cached.folders.iter().cloned()).collect()
    }

    /// All files that have a name, or may get one back.
    pub fn in_use(&self) -> BTreeSet<u64> {
        let files = self.cached.files.values().chain(self.durable.files.values());
        let pending = self.pending.iter().filter_map(|change| match change {
            Change::Link(_, file) | Change::Rename(_, _, file) => Some(file),
            _ => None,
        });
        files.chain(pending).copied().collect()
    }

    pub fn now_used(&self) -> impl Iterator<Item = u64> {
        self.cached.files.values().copied()
    }
}
