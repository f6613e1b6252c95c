//! `nodes.conf` on disk: one process at a time, replaced in one step.
//!
//! A new text is written to a file beside, synced, renamed over the old one, and the folder synced: a crash at any moment leaves the old
//! text or the new one. The file beside is made ahead, with room, so that a full disk does not keep a node from starting. Since the file itself is replaced, the lock is on a file of its own, `<name>.lock`, which is never removed; the kernel gives it
//! back when the process ends.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, ErrorKind, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use shard::cluster::conf::{self, Nodes};
use thiserror::Error;
use tracing::debug;

use crate::log::system::allocate;

/// Permissions of the files.
const MODE: u32 = 0o600;
/// Room that the next text has at least: some twenty nodes more.
const ROOM_BYTES: u64 = 4_096;

/// Why a node cannot use its file.
#[derive(Debug, Error)]
pub enum NodesError {
    /// Another process has it.
    #[error(
        "another server uses {0} (its lock is {0}.lock): stop it, or give this one another folder (--dir) or file (--cluster-config-file)"
    )]
    InUse(String),
    /// It holds something else.
    #[error(
        "{path} is damaged, or was edited wrongly: {error}. It names this node and its cluster; mend it, or move it away to begin as a new node"
    )]
    Damaged {
        /// Which.
        path: String,
        /// What is wrong.
        error: String,
    },
    /// The system does not let us.
    #[error("cannot {what} {path} (setting cluster-config-file): {error}")]
    Io {
        /// What was tried.
        what: &'static str,
        /// With which file.
        path: String,
        /// How it failed.
        error: io::Error,
    },
}

/// The file, locked for this process. All clones are the same one.
#[derive(Clone, Debug)]
pub struct NodesFile {
    path: PathBuf,
    _lock: Arc<File>,
}

impl NodesFile {
    /// Locks the file of this name and reads it; one that is not there is empty. The folder may be another one later: the path is kept whole.
    pub fn open(name: &str) -> Result<(Self, Nodes), NodesError> {
        let path = std::path::absolute(name).unwrap_or_else(|_| PathBuf::from(name));
        let shown = path.display().to_string();
        let failed = |what| {
            let path = shown.clone();
            move |error| NodesError::Io { what, path, error }
        };
        let lock = open_to_write(&beside(&path, "lock")).map_err(failed("lock"))?;
        match lock.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Err(NodesError::InUse(shown)),
            Err(TryLockError::Error(error)) => return Err(failed("lock")(error)),
        }
        let text = match fs::read_to_string(&path) {
            Err(error) if error.kind() == ErrorKind::NotFound => String::new(),
            read => read.map_err(failed("read"))?,
        };
        let nodes = conf::parse(&text).map_err(|error| NodesError::Damaged {
            path: shown.clone(),
            error: error.to_string(),
        })?;
        let file = Self {
            path,
            _lock: Arc::new(lock),
        };
        Ok((file, nodes))
    }

    /// Replaces the text; on an error the old one is still there, or the new one is.
    pub fn replace(&self, text: &str) -> Result<(), String> {
        let next = beside(&self.path, "new");
        let replaced = write(&next, text)
            .and_then(|()| fs::rename(&next, &self.path))
            .and_then(|()| sync_folder(&self.path));
        replaced.map_err(|error| format!("{}: {error}", self.path.display()))?;
        let room_bytes = text.len() as u64 + ROOM_BYTES;
        if let Err(error) = make_room(&next, room_bytes) {
            debug!("no room ahead for the next {}: {error}", self.path.display());
        }
        Ok(())
    }
}

/// The path with another ending.
fn beside(path: &Path, ending: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".");
    name.push(ending);
    PathBuf::from(name)
}

fn write(path: &Path, text: &str) -> io::Result<()> {
    let mut file = open_to_write(path)?;
    file.write_all(text.as_bytes())?;
    file.set_len(text.len() as u64)?;
    file.sync_all()
}

/// The file has these bytes of the disk, whatever is in them.
fn make_room(path: &Path, bytes: u64) -> io::Result<()> {
    allocate(&open_to_write(path)?, bytes)
}

/// A file with what it has, made when it is not there.
fn open_to_write(path: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options
        .write(true)
        .create(true)
        .truncate(false)
        .mode(MODE)
        .open(path)
}

fn sync_folder(path: &Path) -> io::Result<()> {
    let folder = path.parent().unwrap_or(Path::new("/"));
    File::open(folder)?.sync_all()
}

/// What the machine calls itself, the same after a restart, and another one on another machine; empty when it has no name.
pub fn machine() -> String {
    let files = [
        "/etc/machine-id",
        "/var/lib/dbus/machine-id",
        "/proc/sys/kernel/hostname",
    ];
    let names = files.iter().filter_map(|path| fs::read_to_string(path).ok());
    names
        .map(|name| name.trim().to_owned())
        .find(|name| !name.is_empty())
        .unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::log::test_folder::TestFolder;

    fn open(folder: &TestFolder) -> Result<(NodesFile, Nodes), NodesError> {
        NodesFile::open(&folder.path().join("nodes.conf").display().to_string())
    }

    fn text(digit: &str) -> String {
        format!("{} h:1 myself 0 0 connected\n", digit.repeat(40))
    }

    #[test]
    fn a_text_is_replaced_whole_and_read_again() {
        let folder = TestFolder::new();
        let (file, nodes) = open(&folder).unwrap();
        assert_eq!(nodes, Nodes::default());
        for digit in ["a", "b"] {
            file.replace(&text(digit)).unwrap();
        }
        drop(file);
        // What a crash left of an earlier write does no harm.
        fs::write(folder.path().join("nodes.conf.new"), "half a li\n".repeat(900)).unwrap();
        let (file, nodes) = open(&folder).unwrap();
        assert_eq!(nodes.me.unwrap().id.to_string(), "b".repeat(40));
        assert_eq!(folder.mode("nodes.conf"), 0o600);
        file.replace(&text("c")).unwrap();
    }

    #[test]
    fn a_second_process_is_refused() {
        let folder = TestFolder::new();
        let (file, _) = open(&folder).unwrap();
        let error = open(&folder).unwrap_err().to_string();
        assert!(
            error.contains("another server uses") && error.contains("--dir"),
            "{error}"
        );
        drop(file);
        assert!(open(&folder).is_ok());
    }

    #[test]
    fn a_damaged_file_and_a_folder_that_is_not_there_are_told() {
        let folder = TestFolder::new();
        fs::write(folder.path().join("nodes.conf"), "nonsense\n").unwrap();
        let error = open(&folder).unwrap_err().to_string();
        assert!(error.contains("line 1: 1 words instead of 6"), "{error}");
        let gone = folder.path().join("none/nodes.conf").display().to_string();
        let error = NodesFile::open(&gone).unwrap_err().to_string();
        assert!(
            error.contains("cannot lock") && error.contains("cluster-config-file"),
            "{error}"
        );
        let (file, _) = NodesFile::open(&folder.path().join("other").display().to_string()).unwrap();
        fs::create_dir(folder.path().join("other.new")).unwrap();
        assert!(file.replace("x").unwrap_err().contains("other"));
    }
}
