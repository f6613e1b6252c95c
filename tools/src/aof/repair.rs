//! Performs what recovery asks for, in its order, as the server does at its start (`src/log/repair.rs`): what is cut goes to the data
//! folder itself, never over a file that is there.

use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind, Seek, SeekFrom};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use shard::log::RepairStep;

use super::AofError;
use super::lock::give_to_owner;
use super::reader::ShardLog;
use super::seal::sync_folder;
use super::text::show;

/// Repairs a shard's log in `folder`; cut bytes go to `aside`. Says each thing it did.
pub fn perform(
    log: &ShardLog,
    folder: &Path,
    aside: &Path,
    steps: &[RepairStep],
    say: &mut dyn FnMut(String) -> io::Result<()>,
) -> Result<(), AofError> {
    for step in steps {
        if let Some(done) = perform_step(log, folder, aside, step)? {
            say(done)?;
        }
    }
    Ok(())
}

fn perform_step(
    log: &ShardLog,
    folder: &Path,
    aside: &Path,
    step: &RepairStep,
) -> Result<Option<String>, AofError> {
    match step {
        RepairStep::KeepAside { segment, offset, to } => {
            let from = log.path(*segment);
            let to = keep(from, *offset, aside, to)?;
            Ok(Some(format!(
                "kept what is cut off {} from offset {offset} on in {}",
                show(from),
                show(&to)
            )))
        }
        RepairStep::RenameAside { segment, to } => {
            let from = log.path(*segment);
            // The empty file only keeps the name for us: renaming replaces it in one step.
            let (to, _) = create_beside(aside, to)?;
            fs::rename(from, &to).map_err(AofError::system("rename", from))?;
            sync_folder(aside)?;
            Ok(Some(format!("moved {} whole to {}", show(from), show(&to))))
        }
        RepairStep::SyncFolder => sync_folder(folder).map(|()| None),
        RepairStep::Truncate { segment, bytes } => {
            let path = log.path(*segment);
            let file = OpenOptions::new().write(true).open(path);
            file.and_then(|file| file.set_len(*bytes))
                .map_err(AofError::system("cut", path))?;
            Ok(Some(format!("{} now ends at offset {bytes}", show(path))))
        }
        RepairStep::Sync { segment } => {
            let path = log.path(*segment);
            let file = File::open(path).map_err(AofError::system("open", path))?;
            file.sync_all().map_err(AofError::system("sync", path))?;
            Ok(None)
        }
        RepairStep::Unlink { segment } => {
            let path = log.path(*segment);
            fs::remove_file(path).map_err(AofError::system("unlink", path))?;
            Ok(Some(format!(
                "removed {}, which holds nothing that is needed",
                show(path)
            )))
        }
    }
}

/// Copies the bytes from `offset` on to a new file, durably.
fn keep(from: &Path, offset: u64, aside: &Path, name: &str) -> Result<PathBuf, AofError> {
    let (path, mut to) = create_beside(aside, name)?;
    let mut copy = || {
        let mut from = File::open(from)?;
        from.seek(SeekFrom::Start(offset))?;
        io::copy(&mut from, &mut to)?;
        to.sync_all()
    };
    copy().map_err(AofError::system("keep what is cut in", &path))?;
    sync_folder(aside)?;
    Ok(path)
}

/// Makes a file of this name, or of the first free one of `name.1`, `name.2` and so on.
fn create_beside(folder: &Path, name: &str) -> Result<(PathBuf, File), AofError> {
    let mut path = folder.join(name);
    let mut number = 0_u64;
    loop {
        let mut options = OpenOptions::new();
        match options
            .read(true)
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(&path)
        {
            Err(error) if error.kind() == ErrorKind::AlreadyExists => {
                number += 1;
                path = folder.join(format!("{name}.{number}"));
            }
            Err(error) => return Err(AofError::system("make the file", &path)(error)),
            Ok(file) => {
                give_to_owner(folder, &path)?;
                return Ok((path, file));
            }
        }
    }
}
