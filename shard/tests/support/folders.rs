//! Names on a disk: a data folder with folders in it. A name that is made, moved or taken away is there at once for the process,
//! and for a machine that loses power only when the folder was synced, or by chance.

use std::collections::{BTreeMap, BTreeSet};

use super::Chance;

/// The data folder itself.
pub const ROOT: &str = ".";

/// A name: its folder, and the name in it.
pub type Name = (String, String);

/// A folder is not its name: another one may have had that before.
type FolderId = u64;

const ROOT_ID: FolderId = 0;

type Place = (FolderId, String);

/// A change of names.
#[derive(Clone, Debug)]
enum Change {
    Link(Place, u64),
    Unlink(Place),
    /// Atomic, also from one folder to another.
    Rename(Place, Place, u64),
    MakeFolder(String, FolderId),
    RemoveFolder(String),
}

impl Change {
    fn touches(&self, folder: FolderId) -> bool {
        match self {
            Self::Link(place, _) | Self::Unlink(place) => place.0 == folder,
            Self::Rename(from, to, _) => from.0 == folder || to.0 == folder,
            Self::MakeFolder(..) | Self::RemoveFolder(_) => folder == ROOT_ID,
        }
    }
}

#[derive(Clone, Debug, Default)]
struct Tree {
    folders: BTreeMap<String, FolderId>,
    files: BTreeMap<Place, u64>,
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
            Change::MakeFolder(name, folder) => {
                self.folders.insert(name.clone(), *folder);
            }
            Change::RemoveFolder(name) => {
                if let Some(folder) = self.folders.remove(name) {
                    self.files.retain(|place, _| place.0 != folder);
                }
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
    made: FolderId,
}

impl Folders {
    /// A file gets a name, which another one may have had.
    pub fn link(&mut self, name: &Name, file: u64) {
        self.change(Change::Link(self.place(name), file));
    }

    pub fn unlink(&mut self, name: &Name) {
        self.change(Change::Unlink(self.place(name)));
    }

    /// # Panics
    /// When there is no such file.
    pub fn rename(&mut self, from: &Name, to: &Name) {
        let file = self.find(from).expect("what is renamed is there");
        self.change(Change::Rename(self.place(from), self.place(to), file));
    }

    /// An empty folder; an old one of that name goes.
    pub fn make_folder(&mut self, name: &str) {
        self.made += 1;
        self.remove_folder(name);
        self.change(Change::MakeFolder(name.to_owned(), self.made));
    }

    pub fn remove_folder(&mut self, name: &str) {
        self.change(Change::RemoveFolder(name.to_owned()));
    }

    fn change(&mut self, change: Change) {
        self.cached.apply(&change);
        self.pending.push(change);
    }

    fn folder(&self, name: &str) -> FolderId {
        if name == ROOT {
            return ROOT_ID;
        }
        let folder = self.cached.folders.get(name);
        *folder.unwrap_or_else(|| panic!("there is no folder {name}"))
    }

    fn place(&self, (folder, name): &Name) -> Place {
        (self.folder(folder), name.clone())
    }

    pub fn sync(&mut self, folder: &str) {
        let folder = self.folder(folder);
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
        let there: BTreeSet<FolderId> = folders.values().copied().chain([ROOT_ID]).collect();
        files.retain(|(folder, _), _| there.contains(folder));
        self.cached = self.durable.clone();
    }

    pub fn find(&self, name: &Name) -> Option<u64> {
        self.cached.files.get(&self.place(name)).copied()
    }

    /// The files of a folder: name, file. None in one that is not there.
    pub fn files(&self, folder: &str) -> impl Iterator<Item = (&str, u64)> {
        let folder = match folder {
            ROOT => Some(ROOT_ID),
            name => self.cached.folders.get(name).copied(),
        };
        self.cached
            .files
            .iter()
            .filter(move |(place, _)| Some(place.0) == folder)
            .map(|(place, file)| (place.1.as_str(), *file))
    }

    /// The names in the data folder, files and folders.
    pub fn names(&self) -> Vec<String> {
        let files = self.files(ROOT).map(|(name, _)| name.to_owned());
        files.chain(self.cached.folders.keys().cloned()).collect()
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
