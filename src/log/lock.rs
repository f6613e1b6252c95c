//! `LOCK`: one process at a time writes the log of a folder.
//!
//! The kernel holds the lock for the process and gives it back when that ends, however it ends. The file is never
//! removed: two processes would lock two files of the same name.

use std::fs::{File, OpenOptions, TryLockError};
use std::io;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use super::system::FILE_MODE;

/// The name of the file.
pub const LOCK: &str = "LOCK";

/// The lock of the data folder, if it is held; all clones are the same one. The process holds it until the last is gone.
#[derive(Clone, Debug, Default)]
pub struct FolderLock(Arc<Mutex<Option<File>>>);

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
    /// Locks this folder, unless `may_take` refuses once no other process can be at work in it. The lock of another folder is given up.
    pub fn take<E: From<io::Error>>(
        &self,
        folder: &Path,
        may_take: impl FnOnce() -> Result<(), E>,
    ) -> Result<Taken, E> {
        let mut held = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(FILE_MODE)
            .open(folder.join(LOCK))?;
        if let Some(held) = &*held
            && is_same(held, &file)?
        {
            return Ok(Taken::Before);
        }
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Ok(Taken::ByAnother),
            Err(TryLockError::Error(error)) => return Err(error.into()),
        }
        may_take()?;
        *held = Some(file);
        Ok(Taken::Now)
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

    fn take(lock: &FolderLock, folder: &TestFolder) -> Taken {
        lock.take(folder.path(), || Ok::<(), io::Error>(())).unwrap()
    }

    #[test]
    fn one_holds_it_until_its_end() {
        let (folder, other) = (TestFolder::new(), TestFolder::new());
        let (first, second) = (FolderLock::default(), FolderLock::default());
        assert_eq!(take(&first, &folder), Taken::Now);
        assert_eq!(take(&first, &folder), Taken::Before);
        assert_eq!(take(&second, &folder), Taken::ByAnother);
        assert_eq!(folder.mode(LOCK), 0o600);
        // A clone holds it, too.
        let clone = first.clone();
        drop(first);
        assert_eq!(take(&second, &folder), Taken::ByAnother);
        // Going to another folder gives it up; a refusal does not.
        assert_eq!(take(&second, &other), Taken::Now);
        assert_eq!(take(&clone, &other), Taken::ByAnother);
        let third = TestFolder::new();
        let refused = clone.take(third.path(), || Err(io::Error::other("no")));
        assert_eq!(refused.unwrap_err().to_string(), "no");
        assert_eq!(take(&second, &folder), Taken::ByAnother);
        assert_eq!(take(&clone, &third), Taken::Now);
        assert_eq!(take(&second, &folder), Taken::Now);
        drop(clone);
        assert_eq!(take(&second, &third), Taken::Now);
    }

    #[test]
    fn a_folder_that_is_not_there_cannot_be_locked() {
        let folder = TestFolder::new();
        let lock = FolderLock::default();
        let taken = lock.take(&folder.path().join("none"), || Ok::<(), io::Error>(()));
        assert_eq!(taken.unwrap_err().kind(), io::ErrorKind::NotFound);
    }
}
