//! A shard's segments: made, written, synced, read and unlinked as its state machine asks for.
//!
//! Tasks of a shard may run beside one another, on several threads, and the shard itself writes what needs none. Only the table of open
//! descriptors is shared between them. It is not held while a file is written, synced or closed; only to open one again that was closed.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use shard::log::{Action, Current, DiskTask, Done, FIRST_RECORD, FileName, IoError, LogFolder};
use tracing::{debug, warn};

use super::generations;
use super::handles::{Handles, Key, Stored, Wanted};
use super::lock::FolderLock;
use super::system::{allocate, create_new, failed, read_at, show, sync_folder, unless_gone, write_chunks};
use super::window::Map;

/// The log's files, as a shard sees them.
#[derive(Clone, Debug)]
pub struct Files {
    root: PathBuf,
    lock: FolderLock,
    handles: Arc<Mutex<Handles>>,
}

impl Files {
    /// Those in the folder of this lock.
    pub fn new(lock: FolderLock) -> Self {
        Self {
            root: lock.folder(),
            lock,
            handles: Arc::default(),
        }
    }

    /// The same, for a task that is asked for now: its data folder is the present one, also if the next log has another before the task
    /// is performed.
    pub fn at_present(&self) -> Self {
        Self {
            root: self.lock.folder(),
            ..self.clone()
        }
    }

    /// Performs a task; it may wait for the disk.
    pub fn perform(&self, task: DiskTask) -> Result<Done, IoError> {
        match task {
            DiskTask::Segment(folder, action) => return self.act(folder, action),
            DiskTask::Repair(folder, step) => self.repair(folder, &step)?,
            DiskTask::Generation(step) => generations::perform(&self.root, &self.lock, &step)?,
        }
        Ok(Done::Done)
    }

    /// Performs a task that needs no thread that may wait: a write into a segment's window. `None`: it was not performed.
    pub fn perform_at_once(&self, task: &DiskTask) -> Option<Next> {
        let (key, offset, chunks) = as_write(task)?;
        match self.lock_handles().store(key, offset, chunks) {
            Stored::No => None,
            Stored::Yes => Some(Next::Nothing),
            Stored::NearItsEnd => Some(Next::Prepare(Ahead::behind(key, offset, chunks))),
        }
    }

    /// Whether to [`prepare`](Self::prepare) what stands behind a write that a thread has made. It is asked for once.
    pub fn asks_for(&self, ahead: &Ahead) -> bool {
        self.lock_handles().asks_for_window(ahead.key, ahead.written)
    }

    /// Prepares what stands behind a write for those to come; it may wait for the disk. Without it they go the long way, so no failure is an error.
    pub fn prepare(&self, Ahead { key, offset, written }: Ahead) {
        let wanted = self.with_handles(|handles| handles.wants_window(key, written));
        let Some(wanted) = wanted else { return };
        if self.make_ready(key, &wanted, offset) {
            let next = self.with_handles(|handles| handles.wants_next(key));
            if let Some((next, wanted)) = next {
                self.make_ready(next, &wanted, FIRST_RECORD);
            }
        }
    }

    /// Makes pages ready; whether they are the last ones of the segment.
    fn make_ready(&self, key: Key, wanted: &Wanted, offset: u64) -> bool {
        let ready = ready(wanted, offset).unwrap_or_else(|error| {
            debug!("no part of segment {:016x} is mapped: {error}", key.segment);
            None
        });
        let is_last = ready.as_ref().is_some_and(|(map, _, end)| *end == map.end());
        let unused = self.with_handles(|handles| handles.opened(key, wanted, ready));
        drop(unused);
        is_last
    }

    fn act(&self, folder: LogFolder, action: Action) -> Result<Done, IoError> {
        match action {
            Action::Create {
                segment,
                bytes,
                header,
                replaces,
            } => {
                for replaced in replaces {
                    self.with_handles(|handles| handles.replace(key(folder, replaced)));
                    self.unlink(folder, replaced)?;
                }
                self.create(folder, segment, bytes, &header)?;
            }
            Action::Write {
                segment,
                offset,
                chunks,
            } => {
                self.write(folder, segment, "write", |file| {
                    write_chunks(file, offset, &chunks)
                })?;
            }
            Action::Sync { segment } => self.sync(folder, segment, File::sync_data)?,
            Action::Read {
                segment,
                offset,
                bytes,
            } => return self.read(folder, segment, offset, bytes),
            Action::Unlink { segment } => self.unlink(folder, segment)?,
            Action::SyncFolder => sync_folder(&self.folder(folder))?,
        }
        Ok(Done::Done)
    }

    fn create(
        &self,
        folder: LogFolder,
        segment: u64,
        bytes: u64,
        header: &[u8; FIRST_RECORD as usize],
    ) -> Result<(), IoError> {
        self.unlink(folder, segment)?;
        let path = self.path(folder, segment);
        let file = create_new(&path).map_err(failed("create", &path))?;
        let made = allocate(&file, bytes)
            .map_err(failed("allocate", &path))
            .and_then(|()| fill_header(&file, header).map_err(failed("write the header of", &path)))
            .and_then(|()| sync_folder(&self.folder(folder)));
        let is_kept = made.is_ok() && self.with_handles(|handles| handles.keep(key(folder, segment), file));
        if !is_kept && let Err(error) = unless_gone(fs::remove_file(&path)) {
            warn!("cannot remove the segment {}: {error}", show(&path));
        }
        made
    }

    fn read(&self, folder: LogFolder, segment: u64, offset: u64, bytes: u64) -> Result<Done, IoError> {
        let path = self.path(folder, segment);
        let file = self.with_handles(|handles| handles.for_read(key(folder, segment), &path));
        let read = file.and_then(|file| read_at(&file, offset, bytes));
        read.map(|bytes| Done::Read(Bytes::from(bytes)))
            .map_err(failed("read", &path))
    }

    /// Changes the segment's file: a write or a cut.
    pub(super) fn write(
        &self,
        folder: LogFolder,
        segment: u64,
        what: &str,
        write: impl FnOnce(&File) -> io::Result<()>,
    ) -> Result<(), IoError> {
        let (key, path) = (key(folder, segment), self.path(folder, segment));
        let opened = self.with_handles(|handles| handles.for_write(key, &path));
        let (file, window) = opened.map_err(failed("open", &path))?;
        drop(window);
        let written = write(&file);
        self.with_handles(|handles| handles.wrote(key));
        written.map_err(failed(what, &path))
    }

    pub(super) fn sync(
        &self,
        folder: LogFolder,
        segment: u64,
        sync: impl FnOnce(&File) -> io::Result<()>,
    ) -> Result<(), IoError> {
        let (key, path) = (key(folder, segment), self.path(folder, segment));
        let opened = self.with_handles(|handles| handles.for_sync(key, &path));
        let (file, covered, window) = opened.map_err(failed("open", &path))?;
        drop(window);
        sync(&file).map_err(failed("sync", &path))?;
        self.with_handles(|handles| handles.synced(key, covered));
        Ok(())
    }

    /// Unlinks the segment's file; one that is gone already is as it should be.
    pub(super) fn unlink(&self, folder: LogFolder, segment: u64) -> Result<(), IoError> {
        let path = self.path(folder, segment);
        unless_gone(fs::remove_file(&path)).map_err(failed("unlink", &path))?;
        self.close(folder, segment);
        Ok(())
    }

    pub(super) fn close(&self, folder: LogFolder, segment: u64) {
        self.with_handles(|handles| handles.close(key(folder, segment)));
    }

    pub(super) fn root(&self) -> &Path {
        &self.root
    }

    pub(super) fn folder(&self, folder: LogFolder) -> PathBuf {
        self.root.join(Current::folder(folder.generation))
    }

    pub(super) fn path(&self, folder: LogFolder, segment: u64) -> PathBuf {
        self.folder(folder).join(FileName::of(folder.shard, segment))
    }

    /// Uses the table on a thread that may wait, and closes what goes from it after that.
    fn with_handles<T>(&self, act: impl FnOnce(&mut Handles) -> T) -> T {
        let mut handles = self.lock_handles();
        let result = act(&mut handles);
        let gone = handles.take_gone();
        drop(handles);
        drop(gone);
        result
    }

    fn lock_handles(&self) -> MutexGuard<'_, Handles> {
        self.handles.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What follows a write that was made at once.
#[derive(Debug, PartialEq, Eq)]
pub enum Next {
    /// Nothing.
    Nothing,
    /// [`Files::prepare`], on a thread that may wait.
    Prepare(Ahead),
}

/// Where a segment is written next.
#[derive(Debug, PartialEq, Eq)]
pub struct Ahead {
    key: Key,
    offset: u64,
    /// Bytes of the last write.
    written: u64,
}

impl Ahead {
    /// What stands behind a task, if that is a write.
    pub fn of(task: &DiskTask) -> Option<Self> {
        let (key, offset, chunks) = as_write(task)?;
        Some(Self::behind(key, offset, chunks))
    }

    fn behind(key: Key, offset: u64, chunks: &[Bytes]) -> Self {
        let written = chunks.iter().map(|chunk| chunk.len() as u64).sum();
        Self {
            key,
            offset: offset + written,
            written,
        }
    }
}

/// Where and what a task writes, if that is what it does.
fn as_write(task: &DiskTask) -> Option<(Key, u64, &[Bytes])> {
    match task {
        DiskTask::Segment(
            folder,
            Action::Write {
                segment,
                offset,
                chunks,
            },
        ) => Some((key(*folder, *segment), *offset, chunks)),
        _ => None,
    }
}

/// A map with pages that are ready, and where those begin and end.
fn ready(wanted: &Wanted, offset: u64) -> io::Result<Option<(Arc<Map>, u64, u64)>> {
    let (map, from) = match &wanted.behind {
        Some((map, end)) => (Arc::clone(map), *end),
        None => match Map::new(&wanted.file, offset)? {
            Some(map) => (Arc::new(map), offset),
            None => return Ok(None),
        },
    };
    let end = map.prepare(from, wanted.bytes)?;
    Ok(Some((map, from, end)))
}

fn key(folder: LogFolder, segment: u64) -> Key {
    Key { folder, segment }
}

fn fill_header(file: &File, header: &[u8; FIRST_RECORD as usize]) -> io::Result<()> {
    use std::os::unix::fs::FileExt;
    file.write_all_at(header, 0)?;
    file.sync_all()
}
