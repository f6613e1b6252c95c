//! The segments that are open.
//!
//! A descriptor with writes that no sync covers stays open whatever happens: the kernel tells of a failed writeback once, to the
//! descriptors that are open then, and a sync through a later one might not hear of it. Others are closed when
//! newer ones take their place, since a log may have more segments than a process may open files.

use std::collections::VecDeque;
use std::fs::{File, OpenOptions};
use std::io;
use std::path::Path;
use std::sync::Arc;

use shard::log::LogFolder;

/// Segments without unsynced writes that stay open: a segment that is written, the spares, and one that is read.
const MOST_CLEAN: usize = 6;
/// Descriptors that a shard's log has open at the most: two segments may be unsynced, and there are three tasks at a time.
pub const MOST_OPEN: u64 = MOST_CLEAN as u64 + 2 + 3;

/// Segments that were replaced and may be in the making: far more than a shard has asked for at any time.
const MOST_REPLACED: usize = 256;

/// Which segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Key {
    pub folder: LogFolder,
    pub segment: u64,
}

/// The open segments of a shard, the one used last at the end.
#[derive(Debug, Default)]
pub struct Handles {
    open: Vec<Handle>,
    /// Segments that were replaced, newest last: some may be in the making.
    replaced: VecDeque<Key>,
}

#[derive(Debug)]
struct Handle {
    key: Key,
    file: Arc<File>,
    /// Writes that were begun.
    begun: u64,
    /// Writes that have ended, well or not.
    ended: u64,
    /// As many of them are covered by a sync.
    synced: u64,
}

/// Which writes a sync covers.
#[derive(Clone, Copy, Debug)]
pub struct Covered(u64);

impl Handles {
    /// Its file, for reading.
    pub fn for_read(&mut self, key: Key, path: &Path) -> io::Result<Arc<File>> {
        let handle = self.handle(key, path)?;
        Ok(Arc::clone(&handle.file))
    }

    /// Its file, for a write, whose end is told by [`wrote`](Self::wrote): it stays open until a sync covers that.
    pub fn for_write(&mut self, key: Key, path: &Path) -> io::Result<Arc<File>> {
        let handle = self.handle(key, path)?;
        handle.begun += 1;
        Ok(Arc::clone(&handle.file))
    }

    /// A write has ended, well or not.
    pub fn wrote(&mut self, key: Key) {
        if let Some(handle) = self.open.iter_mut().find(|handle| handle.key == key) {
            handle.ended += 1;
        }
    }

    /// Its file, for a sync. A write that is under way is not covered; neither are those before it then, for simplicity's sake.
    pub fn for_sync(&mut self, key: Key, path: &Path) -> io::Result<(Arc<File>, Covered)> {
        let handle = self.handle(key, path)?;
        let is_quiet = handle.ended == handle.begun;
        let covered = if is_quiet { handle.begun } else { handle.synced };
        Ok((Arc::clone(&handle.file), Covered(covered)))
    }

    /// A sync succeeded.
    pub fn synced(&mut self, key: Key, covered: Covered) {
        if let Some(handle) = self.open.iter_mut().find(|handle| handle.key == key) {
            handle.synced = handle.synced.max(covered.0);
        }
        self.close_some();
    }

    /// Keeps the file of a segment that was just made; false when it was replaced meanwhile, and must go again.
    pub fn keep(&mut self, key: Key, file: File) -> bool {
        if let Some(at) = self.replaced.iter().position(|replaced| *replaced == key) {
            self.replaced.remove(at);
            return false;
        }
        self.close(key);
        self.push(key, file);
        self.close_some();
        true
    }

    /// A segment is to go although it may be in the making.
    pub fn replace(&mut self, key: Key) {
        let is_open = self.open.iter().any(|handle| handle.key == key);
        self.close(key);
        if !is_open {
            self.replaced.push_back(key);
            if self.replaced.len() > MOST_REPLACED {
                self.replaced.pop_front();
            }
        }
    }

    /// A segment is gone.
    pub fn close(&mut self, key: Key) {
        self.open.retain(|handle| handle.key != key);
    }

    fn handle(&mut self, key: Key, path: &Path) -> io::Result<&mut Handle> {
        match self.open.iter().position(|handle| handle.key == key) {
            Some(at) => self.open[at..].rotate_left(1),
            None => {
                let file = OpenOptions::new().read(true).write(true).open(path)?;
                self.push(key, file);
            }
        }
        self.close_some();
        Ok(self.open.last_mut().expect("it was put there just now"))
    }

    fn push(&mut self, key: Key, file: File) {
        self.open.push(Handle {
            key,
            file: Arc::new(file),
            begun: 0,
            ended: 0,
            synced: 0,
        });
    }

    /// Closes those that nobody misses: too many clean ones, and those of a generation before the one in use, whose files may be
    /// deleted and would keep their space. The one used last stays.
    fn close_some(&mut self) {
        let Some(last) = self.open.last() else { return };
        let (last, generation) = (last.key, last.key.folder.generation);
        let clean = self.open.iter().filter(|handle| handle.is_clean()).count();
        let mut too_many = clean.saturating_sub(MOST_CLEAN);
        self.open.retain(|handle| {
            let goes = handle.is_clean() && handle.key != last && {
                let is_old = handle.key.folder.generation < generation;
                let is_too_many = too_many > 0;
                too_many = too_many.saturating_sub(1);
                is_old || is_too_many
            };
            !goes
        });
    }
}

impl Handle {
    fn is_clean(&self) -> bool {
        self.begun == self.synced
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::log::test_folder::TestFolder;

    const FOLDER: LogFolder = LogFolder {
        generation: 1,
        shard: 0,
    };

    fn key(segment: u64) -> Key {
        Key {
            folder: FOLDER,
            segment,
        }
    }

    fn open(handles: &Handles) -> Vec<u64> {
        handles.open.iter().map(|handle| handle.key.segment).collect()
    }

    #[test]
    fn unsynced_segments_stay_open_and_the_others_are_few() {
        let folder = TestFolder::new();
        let path = |segment: u64| {
            let path = folder.path().join(segment.to_string());
            std::fs::write(&path, "").unwrap();
            path
        };
        let mut handles = Handles::default();
        handles.for_write(key(1), &path(1)).unwrap();
        for segment in 2..20 {
            handles.for_read(key(segment), &path(segment)).unwrap();
        }
        assert_eq!(open(&handles), [1, 14, 15, 16, 17, 18, 19]);
        let read_others = |handles: &mut Handles| {
            for segment in 2..20 {
                handles.for_read(key(segment), &path(segment)).unwrap();
            }
        };
        let sync = |handles: &mut Handles| {
            let (_, covered) = handles.for_sync(key(1), &path(1)).unwrap();
            handles.synced(key(1), covered);
        };
        sync(&mut handles);
        read_others(&mut handles);
        assert_eq!(
            open(&handles),
            [1, 14, 15, 16, 17, 18, 19],
            "a write under way is not covered"
        );
        handles.wrote(key(1));
        let (_, covered) = handles.for_sync(key(1), &path(1)).unwrap();
        handles.for_write(key(1), &path(1)).unwrap();
        handles.wrote(key(1));
        handles.synced(key(1), covered);
        read_others(&mut handles);
        assert_eq!(
            open(&handles),
            [1, 14, 15, 16, 17, 18, 19],
            "a later write is not covered"
        );
        sync(&mut handles);
        assert_eq!(open(&handles), [15, 16, 17, 18, 19, 1]);
        handles.for_read(key(20), &path(20)).unwrap();
        handles.for_read(key(16), &path(16)).unwrap();
        assert_eq!(open(&handles), [17, 18, 19, 1, 20, 16]);
        handles.close(key(1));
        assert_eq!(open(&handles), [17, 18, 19, 20, 16]);
        assert!(handles.for_read(key(99), &folder.path().join("99")).is_err());
    }

    #[test]
    fn older_generations_are_closed_when_a_newer_one_is_used() {
        let folder = TestFolder::new();
        let path = folder.path().join("a");
        std::fs::write(&path, "").unwrap();
        let newer = Key {
            folder: LogFolder {
                generation: 2,
                ..FOLDER
            },
            segment: 7,
        };
        let mut handles = Handles::default();
        handles.for_read(key(1), &path).unwrap();
        handles.for_write(key(2), &path).unwrap();
        handles.for_write(newer, &path).unwrap();
        assert_eq!(open(&handles), [2, 7], "what is not synced stays");
    }

    #[test]
    fn a_segment_that_is_replaced_in_the_making_is_not_kept() {
        let folder = TestFolder::new();
        let file = || File::create(folder.path().join("a")).unwrap();
        let mut handles = Handles::default();
        assert!(handles.keep(key(1), file()));
        handles.replace(key(1));
        handles.replace(key(2));
        assert_eq!(open(&handles), [0; 0]);
        assert!(!handles.keep(key(2), file()));
        assert!(handles.keep(key(3), file()));
        assert_eq!(open(&handles), [3]);
        assert!(handles.replaced.is_empty());
    }
}
