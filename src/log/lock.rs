//! `LOCK`: one process at a time writes the log of a folder.
//!
//! The kernel holds the lock for the process and gives it back when that ends, however it ends. The file is never
//! removed: two processes would lock two files of the same name.

use std::fs::{File, OpenOptions, TryLockError};
use std::io;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::system::FILE_MODE;

/// The name of the file.
pub const LOCK: &str = "LOCK";

/// The lock of the data folder, if it is held; all clones are the same one. The process holds it until the last is gone.
#[derive(Clone, Debug)]
pub struct FolderLock {
    wanted: PathBuf,
    held: Arc<Mutex<Option<Held>>>,
}

#[derive(Debug)]
struct Held {
    file: File,
    folder: PathBuf,
}

/// What came of an attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Taken {
    /// It is held since now.
    Now,
    /// It was held already.
    Before,
    /// Another process holds it.
    ByAnother,
}

impl FolderLock {
    /// A lock that is not held. `wanted` is the folder to lock; a relative path means another one when the working folder changes.
    pub fn new(wanted: &Path) -> Self {
        Self {
            wanted: wanted.to_owned(),
            held: Arc::default(),
        }
    }

    /// The folder that is locked; before, the one that would be.
    pub fn folder(&self) -> PathBuf {
        match &*self.lock() {
            Some(held) => held.folder.clone(),
            None => self.wanted(),
        }
    }

    /// The folder that [`take`](Self::take) locks, as an absolute path.
    pub fn wanted(&self) -> PathBuf {
        std::path::absolute(&self.wanted).unwrap_or_else(|_| self.wanted.clone())
    }

    /// Locks the folder, unless `may_take` refuses when no other process can be at work in it any more. The lock of another folder is
    /// given up.
    pub fn take(&self, may_take: impl FnOnce(&Path) -> io::Result<()>) -> io::Result<Taken> {
        let mut held = self.lock();
        let folder = std::fs::canonicalize(&self.wanted)?;
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(FILE_MODE)
            .open(folder.join(LOCK))?;
        if let Some(held) = &*held
            && is_same(&held.file, &file)?
        {
            return Ok(Taken::Before);
        }
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Ok(Taken::ByAnother),
            Err(TryLockError::Error(error)) => return Err(error),
        }
        may_take(&folder)?;
        *held = Some(Held { file, folder });
        Ok(Taken::Now)
    }

    fn lock(&self) -> MutexGuard<'_, Option<Held>> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn is_same(one: &File, other: &File) -> io::Result<bool> {
    let (one, other) = (one.metadata()?, other.metadata()?);
    Ok((one.dev(), one.ino()) == (other.dev(), other.ino()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::log::test_folder::TestFolder;

    fn take(lock: &FolderLock) -> Taken {
        lock.take(|_| Ok(())).unwrap()
    }

    /// A link to a folder stands in for the working folder: it may be led elsewhere.
    fn lead(link: &Path, to: &TestFolder) {
        if link.exists() {
            std::fs::remove_file(link).unwrap();
        }
        std::os::unix::fs::symlink(to.path(), link).unwrap();
    }

    #[test]
    fn one_holds_it_until_its_end() {
        let folder = TestFolder::new();
        let [first, second] = [(); 2].map(|()| FolderLock::new(folder.path()));
        assert_eq!(take(&first), Taken::Now);
        assert_eq!(take(&first), Taken::Before);
        assert_eq!(take(&second), Taken::ByAnother);
        assert_eq!(folder.mode(LOCK), 0o600);
        // A clone holds it, too.
        let clone = first.clone();
        drop(first);
        assert_eq!(take(&second), Taken::ByAnother);
        drop(clone);
        assert_eq!(take(&second), Taken::Now);
    }

    #[test]
    fn going_to_another_folder_gives_it_up_and_a_refusal_does_not() {
        let [a, b, links] = [(); 3].map(|()| TestFolder::new());
        let link = links.path().join("here");
        lead(&link, &a);
        let (moving, of_a, of_b) = (
            FolderLock::new(&link),
            FolderLock::new(a.path()),
            FolderLock::new(b.path()),
        );
        assert_eq!(take(&moving), Taken::Now);
        lead(&link, &b);
        let refused = moving.take(|folder| Err(io::Error::other(folder.display().to_string())));
        assert_eq!(refused.unwrap_err().to_string(), b.path().display().to_string());
        assert_eq!(take(&of_a), Taken::ByAnother);
        assert_eq!(take(&of_b), Taken::Now);
        assert_eq!(take(&moving), Taken::ByAnother);
        assert_eq!(take(&of_a), Taken::ByAnother);
        drop(of_b);
        assert_eq!(moving.folder(), a.path());
        assert_eq!(take(&moving), Taken::Now);
        assert_eq!(moving.folder(), b.path());
        assert_eq!(take(&of_a), Taken::Now);
    }

    #[test]
    fn a_folder_that_is_not_there_cannot_be_locked() {
        let folder = TestFolder::new();
        let lock = FolderLock::new(&folder.path().join("none"));
        let taken = lock.take(|_| Ok(()));
        assert_eq!(taken.unwrap_err().kind(), io::ErrorKind::NotFound);
        assert_eq!(lock.folder(), folder.path().join("none"));
    }
}
