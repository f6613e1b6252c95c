//! The lock that a server holds on its data folder: whether one does, and holding it during a repair.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::ErrorKind;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, chown};
use std::path::Path;

use super::AofError;
use super::target::LOCK;
use super::text::show;

/// Keeps servers out until it is dropped.
#[derive(Debug)]
pub struct Held {
    _file: File,
}

/// Locks a data folder as a server does. The file is made when it is not there, for the owner of the folder.
pub fn take(root: &Path) -> Result<Held, AofError> {
    let path = root.join(LOCK);
    let refused = |error| AofError::system("lock", &path)(error);
    let mut options = OpenOptions::new();
    options.read(true).write(true).mode(0o600);
    let file = match options.clone().create_new(true).open(&path) {
        Ok(file) => {
            give_to_owner(root, &path)?;
            file
        }
        Err(error) if error.kind() == ErrorKind::AlreadyExists => options.open(&path).map_err(refused)?,
        Err(error) => return Err(refused(error)),
    };
    match file.try_lock() {
        Ok(()) => Ok(Held { _file: file }),
        Err(TryLockError::WouldBlock) => Err(AofError::InUse { folder: show(root) }),
        Err(TryLockError::Error(error)) => Err(refused(error)),
    }
}

/// What root makes in a server's folder must stay usable by the server.
pub fn give_to_owner(root: &Path, path: &Path) -> Result<(), AofError> {
    let owners = |path: &Path| {
        let metadata = fs::metadata(path).map_err(AofError::system("look at", path))?;
        Ok::<_, AofError>((metadata.uid(), metadata.gid()))
    };
    let ((uid, gid), made) = (owners(root)?, owners(path)?);
    if (uid, gid) == made || made.0 != 0 {
        return Ok(());
    }
    chown(path, Some(uid), Some(gid)).map_err(AofError::system("change the owner of", path))
}

/// Whether a server has the folder; an error in words when that cannot be known. The lock is not kept, and never made.
pub fn is_held(root: &Path) -> Result<bool, String> {
    let file = match File::open(root.join(LOCK)) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(false),
        opened => opened.map_err(|error| error.to_string())?,
    };
    match file.try_lock_shared() {
        Ok(()) => Ok(false),
        Err(TryLockError::WouldBlock) => Ok(true),
        Err(TryLockError::Error(error)) => Err(error.to_string()),
    }
}
