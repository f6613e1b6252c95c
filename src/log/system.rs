//! Calls of the system that the standard library has not, and how their errors are told.

use std::fs::{File, OpenOptions};
use std::io::{self, ErrorKind, IoSlice};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use bytes::Bytes;
use rustix::fs::{FallocateFlags, fallocate};
use rustix::io::{Errno, pwritev};
use shard::log::IoError;

/// Permissions of files: whoever reads them reads jobs.
pub const FILE_MODE: u32 = 0o600;
/// Permissions of folders.
pub const FOLDER_MODE: u32 = 0o700;

/// Slices of one call at the most, the kernel's limit.
const MOST_SLICES: usize = 1024;
static ZEROS: [u8; 64 << 10] = [0; 64 << 10];

/// The error that a shard is told, for `map_err`: full disks by their own word, all else with what was tried on which file.
pub fn failed(what: &str, path: &Path) -> impl FnOnce(io::Error) -> IoError {
    move |error| match error.kind() {
        ErrorKind::StorageFull | ErrorKind::QuotaExceeded => IoError::Full,
        _ => IoError::Other(format!("cannot {what} {}: {error}", show(path))),
    }
}

/// A path as people look for it: from the root, whatever the working folder.
pub fn show(path: &Path) -> String {
    let whole = std::path::absolute(path);
    whole.as_deref().unwrap_or(path).display().to_string()
}

/// Takes the absence of a file for the end of a removal.
pub fn unless_gone(removed: io::Result<()>) -> io::Result<()> {
    match removed {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
        other => other,
    }
}

/// Makes a file that is not there yet.
pub fn create_new(path: &Path) -> io::Result<File> {
    OpenOptions::new()
        .read(true)
        .write(true)
        .create_new(true)
        .mode(FILE_MODE)
        .open(path)
}

/// Makes a file of this name, or of the first free one of `name.1`, `name.2` and so on.
pub fn create_beside(folder: &Path, name: &str) -> io::Result<(PathBuf, File)> {
    let mut path = folder.join(name);
    for number in 1_u64.. {
        match create_new(&path) {
            Err(error) if error.kind() == ErrorKind::AlreadyExists => {
                path = folder.join(format!("{name}.{number}"));
            }
            made => return made.map(|file| (path, file)),
        }
    }
    unreachable!("a folder holds fewer than 2^64 files")
}

/// Makes a file so many bytes of zeros long, with space for all of them.
pub fn allocate(file: &File, bytes: u64) -> io::Result<()> {
    loop {
        match fallocate(file, FallocateFlags::empty(), 0, bytes) {
            Ok(()) => return Ok(()),
            Err(Errno::INTR) => {}
            // The file system cannot reserve space (NFS before 4.2, some in user space): written zeros have theirs.
            Err(Errno::OPNOTSUPP | Errno::NOSYS) => return write_zeros(file, bytes),
            Err(error) => return Err(error.into()),
        }
    }
}

/// Makes a file so many bytes of written zeros long.
pub fn write_zeros(file: &File, bytes: u64) -> io::Result<()> {
    let mut written = 0;
    while written < bytes {
        let some = (bytes - written).min(ZEROS.len() as u64);
        file.write_all_at(&ZEROS[..some as usize], written)?;
        written += some;
    }
    Ok(())
}

/// Writes chunks one behind the other, all of them, as they lie.
pub fn write_chunks(file: &File, mut offset: u64, chunks: &[Bytes]) -> io::Result<()> {
    for chunks in chunks.chunks(MOST_SLICES) {
        let mut slices: Vec<IoSlice<'_>> = chunks.iter().map(|chunk| IoSlice::new(chunk)).collect();
        let mut rest = slices.as_mut_slice();
        // Drops empty chunks at the front: a write of nothing looks like one that cannot go on.
        IoSlice::advance_slices(&mut rest, 0);
        while !rest.is_empty() {
            match pwritev(file, rest, offset) {
                Ok(0) => return Err(ErrorKind::WriteZero.into()),
                Ok(written) => {
                    offset += written as u64;
                    IoSlice::advance_slices(&mut rest, written);
                }
                Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }
    Ok(())
}

/// Reads so many bytes, or up to the end of the file.
pub fn read_at(file: &File, offset: u64, bytes: u64) -> io::Result<Vec<u8>> {
    let there = file.metadata()?.len().saturating_sub(offset);
    let mut buffer = vec![0; bytes.min(there) as usize];
    let mut filled = 0;
    while filled < buffer.len() {
        match file.read_at(&mut buffer[filled..], offset + filled as u64) {
            Ok(0) => break,
            Ok(read) => filled += read,
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    buffer.truncate(filled);
    Ok(buffer)
}

/// What a file holds; none when it is not there.
pub fn read_if_there(path: &Path) -> io::Result<Option<Vec<u8>>> {
    match std::fs::read(path) {
        Ok(bytes) => Ok(Some(bytes)),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

/// Makes the names in a folder durable.
pub fn sync_folder(path: &Path) -> Result<(), IoError> {
    File::open(path)
        .and_then(|folder| folder.sync_all())
        .map_err(failed("sync the folder", path))
}
