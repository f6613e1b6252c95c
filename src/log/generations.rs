//! The data folder: `CURRENT`, and a folder for each generation.
//!
//! What must hold whatever is asked for: the generation that `CURRENT` names is never deleted, nor the one that `CURRENT.off` keeps for people.

use std::fs::{self, DirBuilder};
use std::io::{self, ErrorKind, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::Path;

use shard::log::{CURRENT, CURRENT_OFF, Current, IoError, SwitchStep};
use tracing::{info, warn};

use super::lock::{FolderLock, LOCK, Taken};
use super::system::{FILE_MODE, FOLDER_MODE, failed, read_if_there, show, sync_folder};

/// Performs a step in the data folder `root`, which is locked. Only the making of a folder locks first what is then the data folder.
pub fn perform(root: &Path, lock: &FolderLock, step: &SwitchStep) -> Result<(), IoError> {
    match step {
        SwitchStep::MakeFolder(name) => {
            take_lock(lock)?;
            make_folder(&lock.folder(), name)
        }
        SwitchStep::SyncFolder(name) => sync_folder(&root.join(name)),
        SwitchStep::WriteAndSync { name, text } => write_and_sync(&root.join(name), text),
        SwitchStep::Rename { from, to } => {
            let path = root.join(from);
            fs::rename(&path, root.join(to)).map_err(failed("rename", &path))
        }
        SwitchStep::DeleteFolder(name) => delete_folder(root, name),
    }
}

/// A folder that was not locked at the start may have got a log since, or be another one than that of the start.
fn take_lock(lock: &FolderLock) -> Result<(), IoError> {
    let taken = lock.take(|folder| match fs::symlink_metadata(folder.join(CURRENT)) {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
        Err(error) => Err(error),
        Ok(_) => Err(io::Error::other(format!(
            "it holds another log, which its file {CURRENT} names: choose an empty folder, or start the server in this one"
        ))),
    });
    match taken {
        Ok(Taken::Now | Taken::Before) => Ok(()),
        Ok(Taken::ByAnother) => Err(IoError::Other(format!(
            "another server keeps its log in {} (it holds the lock {LOCK}): choose another folder",
            show(&lock.wanted())
        ))),
        Err(error) => Err(failed("keep a log in", &lock.wanted())(error)),
    }
}

fn make_folder(root: &Path, name: &str) -> Result<(), IoError> {
    let path = root.join(name);
    if fs::symlink_metadata(&path).is_ok() {
        if let Some(file) = named_by(root, name)? {
            return Err(IoError::Other(format!(
                "cannot make the folder {}: it is there, and {file} names it",
                show(&path)
            )));
        }
        remove(&path)?;
        info!("{} deleted: a leftover of an earlier attempt", show(&path));
    }
    DirBuilder::new()
        .mode(FOLDER_MODE)
        .create(&path)
        .map_err(failed("make the folder", &path))
}

fn delete_folder(root: &Path, name: &str) -> Result<(), IoError> {
    let path = root.join(name);
    match named_by(root, name)? {
        Some(CURRENT_OFF) => {
            warn!(
                "{} is left alone: {CURRENT_OFF} names it, or cannot be understood",
                show(&path)
            );
            return Ok(());
        }
        Some(file) => {
            return Err(IoError::Other(format!(
                "cannot delete the folder {}: {file} names it",
                show(&path)
            )));
        }
        None => {}
    }
    remove(&path)?;
    info!("{} deleted: {CURRENT} does not name it", show(&path));
    Ok(())
}

/// The file that names this generation, or might.
fn named_by(root: &Path, name: &str) -> Result<Option<&'static str>, IoError> {
    for file in [CURRENT, CURRENT_OFF] {
        let path = root.join(file);
        let text = read_if_there(&path).map_err(failed("read", &path))?;
        let is_named = text.is_some_and(|text| {
            Current::parse(&text).is_none_or(|current| Current::folder(current.generation) == name)
        });
        if is_named {
            return Ok(Some(file));
        }
    }
    Ok(None)
}

fn remove(path: &Path) -> Result<(), IoError> {
    match fs::remove_dir_all(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
        removed => removed.map_err(failed("delete the folder", path)),
    }
}

fn write_and_sync(path: &Path, text: &str) -> Result<(), IoError> {
    let write = || {
        let mut file = fs::OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(true)
            .mode(FILE_MODE)
            .open(path)?;
        file.write_all(text.as_bytes())?;
        file.sync_all()
    };
    write().map_err(failed("write", path))
}
