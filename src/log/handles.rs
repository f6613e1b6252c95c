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
use std::time::{Duration, Instant};

use bytes::Bytes;
use shard::log::LogFolder;

use super::window::{Map, Window};

/// Segments without unsynced writes that stay open: a segment that is written, the spares, and one that is read.
const MOST_CLEAN: usize = 6;
/// Descriptors that a shard's log has open at the most: two segments may be unsynced, and there are three tasks at a time.
pub const MOST_OPEN: u64 = MOST_CLEAN as u64 + 2 + 3;

/// Segments that were replaced and may be in the making: far more than a shard has asked for at any time.
const MOST_REPLACED: usize = 256;

/// Writes since a sync began from which on a window is worth its making: where syncs follow closely, it would be closed before it served.
const WRITES_BEFORE_WINDOW: u64 = 4;
/// Bytes of the first window after a sync. Each further one is twice as long, so that a sync never finds much more that was prepared than was
/// written.
const FIRST_WINDOW_BYTES: u64 = 32 << 10;
/// Writes like the last one that a window has room for.
const WRITES_PER_WINDOW: u64 = 4;
/// Bytes of a write above which no window is made for the next: to make pages ready costs more than to write them, and for so many bytes
/// more than the change of threads.
const LARGE_WRITE_BYTES: u64 = 48 << 10;
/// Bytes of the longest window.
const LONGEST_WINDOW_BYTES: u64 = 1 << 20;

/// So long a window is used after pages of it were made ready. The kernel writes pages that are dirty for long (30 s, unless told otherwise), and a
/// store into one that it wrote would wait in the kernel.
const READY_FOR: Duration = Duration::from_secs(2);

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
    /// What is to be closed by whoever may wait: to close a file that was unlinked frees its space.
    gone: Vec<Handle>,
}

/// An open segment.
#[derive(Debug)]
pub struct Handle {
    key: Key,
    file: Arc<File>,
    /// Writes that were begun.
    begun: u64,
    /// Writes that have ended, well or not.
    ended: u64,
    /// As many of them are covered by a sync.
    synced: u64,
    /// What a shard may write itself.
    window: Option<Window>,
    /// Bytes of the next window.
    window_bytes: u64,
    /// When pages of the window were made ready last.
    ready_at: Instant,
    /// More of the window was asked for.
    is_asked: bool,
    /// A window is being opened.
    is_opening: bool,
    /// Writes that were begun when the last sync was.
    before_sync: u64,
    /// Syncs that were begun.
    syncs: u64,
}

/// What became of a write that was to be made at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stored {
    /// It lies in no window.
    No,
    /// It is made.
    Yes,
    /// The same, and most of what is ready is used up: more is to be made ready.
    NearItsEnd,
}

/// Pages that are to be made ready.
#[derive(Debug)]
pub struct Wanted {
    /// Of this file.
    pub file: Arc<File>,
    /// Where they begin, if a window is there already: its map, and its end.
    pub behind: Option<(Arc<Map>, u64)>,
    /// So many bytes.
    pub bytes: u64,
    syncs: u64,
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

    /// Its file, for a write, whose end is told by [`wrote`](Self::wrote): it stays open until a sync covers that. Its window is to be closed.
    pub fn for_write(&mut self, key: Key, path: &Path) -> io::Result<(Arc<File>, Option<Window>)> {
        let handle = self.handle(key, path)?;
        handle.begun += 1;
        Ok((Arc::clone(&handle.file), handle.window.take()))
    }

    /// Writes into the segment's window, if it has one there.
    pub fn store(&mut self, key: Key, offset: u64, chunks: &[Bytes]) -> Stored {
        let Some(handle) = self.find(key) else {
            return Stored::No;
        };
        let Some(window) = &mut handle.window else {
            return Stored::No;
        };
        if handle.ready_at.elapsed() > READY_FOR || !window.store(offset, chunks) {
            return Stored::No;
        }
        handle.begun += 1;
        handle.ended += 1;
        let (map, end) = window.map();
        let is_last = end == map.end();
        let bytes: u64 = chunks.iter().map(|chunk| chunk.len() as u64).sum();
        if is_last || bytes > LARGE_WRITE_BYTES || handle.is_asked || end - offset > handle.window_bytes / 4 {
            Stored::Yes
        } else {
            handle.is_asked = true;
            Stored::NearItsEnd
        }
    }

    /// Whether pages behind a write of so many bytes are to be made ready, and were not asked for yet.
    pub fn asks_for_window(&mut self, key: Key, written: u64) -> bool {
        let is_small = written <= LARGE_WRITE_BYTES;
        let handle = self
            .find(key)
            .filter(|handle| is_small && handle.is_worth_it() && !handle.is_asked);
        handle.map(|handle| handle.is_asked = true).is_some()
    }

    /// What is to be made ready behind a write of so many bytes that has ended, if that is worth it. [`opened`](Self::opened) follows.
    pub fn wants_window(&mut self, key: Key, written: u64) -> Option<Wanted> {
        let handle = self.find(key)?;
        if handle.is_opening || !handle.is_worth_it() {
            handle.is_asked = handle.is_opening;
            return None;
        }
        let bytes = handle.window_bytes.max(WRITES_PER_WINDOW * written);
        let bytes = bytes.min(LONGEST_WINDOW_BYTES);
        handle.window_bytes = (2 * bytes).min(LONGEST_WINDOW_BYTES);
        handle.is_opening = true;
        let behind = handle.window.as_ref().map(Window::map);
        Some(Wanted {
            file: Arc::clone(&handle.file),
            behind: behind.map(|(map, end)| (Arc::clone(map), end)),
            bytes,
            syncs: handle.syncs,
        })
    }

    /// The segment that is written behind this one, and what is to be made ready at its start: when this one is written without threads, its
    /// successor is to be as well, from its first record on. [`opened`](Self::opened) follows.
    pub fn wants_next(&mut self, key: Key) -> Option<(Key, Wanted)> {
        let behind = |handle: &&mut Handle| {
            handle.key.folder == key.folder && handle.key.segment > key.segment && handle.begun == 0
        };
        let next = self.open.iter_mut().filter(behind);
        let next = next.min_by_key(|handle| handle.key.segment)?;
        if next.window.is_some() || next.is_opening {
            return None;
        }
        next.is_opening = true;
        next.window_bytes = LONGEST_WINDOW_BYTES;
        let wanted = Wanted {
            file: Arc::clone(&next.file),
            behind: None,
            bytes: LONGEST_WINDOW_BYTES,
            syncs: next.syncs,
        };
        Some((next.key, wanted))
    }

    /// Its pages are ready, from some offset to another, if they could be made ready. Gives back what is to be closed: when a sync came meanwhile,
    /// all of it.
    pub fn opened(
        &mut self,
        key: Key,
        wanted: &Wanted,
        ready: Option<(Arc<Map>, u64, u64)>,
    ) -> Option<Arc<Map>> {
        let ready_map = ready.as_ref().map(|(map, ..)| Arc::clone(map));
        let handle = self.find(key);
        // The key may be that of another file by now.
        let Some(handle) = handle.filter(|handle| Arc::ptr_eq(&handle.file, &wanted.file)) else {
            return ready_map;
        };
        (handle.is_opening, handle.is_asked) = (false, false);
        let (map, from, end) = ready?;
        if handle.syncs != wanted.syncs {
            return Some(map);
        }
        handle.ready_at = Instant::now();
        match &mut handle.window {
            Some(window) if Arc::ptr_eq(window.map().0, &map) => window.extend(end),
            window => *window = Some(Window::new(map, from, end)),
        }
        None
    }

    /// A write has ended, well or not.
    pub fn wrote(&mut self, key: Key) {
        if let Some(handle) = self.find(key) {
            handle.ended += 1;
        }
    }

    /// Its file, for a sync. A write that is under way is not covered; neither are those before it then, for simplicity's sake. Its window is to
    /// be closed before the sync.
    pub fn for_sync(&mut self, key: Key, path: &Path) -> io::Result<(Arc<File>, Covered, Option<Window>)> {
        let handle = self.handle(key, path)?;
        handle.syncs += 1;
        handle.before_sync = handle.begun;
        handle.window_bytes = FIRST_WINDOW_BYTES;
        let is_quiet = handle.ended == handle.begun;
        let covered = if is_quiet { handle.begun } else { handle.synced };
        Ok((Arc::clone(&handle.file), Covered(covered), handle.window.take()))
    }

    /// A sync succeeded.
    pub fn synced(&mut self, key: Key, covered: Covered) {
        if let Some(handle) = self.find(key) {
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
        let gone = self.open.extract_if(.., |handle| handle.key == key);
        self.gone.extend(gone);
    }

    /// What is to be closed, when nobody waits for this table any more.
    pub fn take_gone(&mut self) -> Vec<Handle> {
        std::mem::take(&mut self.gone)
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

    fn find(&mut self, key: Key) -> Option<&mut Handle> {
        // The one that is written was used last.
        self.open.iter_mut().rev().find(|handle| handle.key == key)
    }

    fn push(&mut self, key: Key, file: File) {
        self.open.push(Handle {
            key,
            file: Arc::new(file),
            begun: 0,
            ended: 0,
            synced: 0,
            window: None,
            window_bytes: FIRST_WINDOW_BYTES,
            ready_at: Instant::now(),
            is_asked: false,
            is_opening: false,
            before_sync: 0,
            syncs: 0,
        });
    }

    /// Closes those that nobody misses: too many clean ones, and those of a generation before the one in use, whose files may be
    /// deleted and would keep their space. The one used last stays.
    fn close_some(&mut self) {
        let Some(last) = self.open.last() else { return };
        let (last, generation) = (last.key, last.key.folder.generation);
        let clean = self.open.iter().filter(|handle| handle.is_clean()).count();
        let mut too_many = clean.saturating_sub(MOST_CLEAN);
        let gone = self.open.extract_if(.., |handle| {
            handle.is_clean() && handle.key != last && {
                let is_old = handle.key.folder.generation < generation;
                let is_too_many = too_many > 0;
                too_many = too_many.saturating_sub(1);
                is_old || is_too_many
            }
        });
        self.gone.extend(gone);
    }
}

impl Handle {
    /// Whether a window would serve before a sync closes it, as far as one can tell.
    fn is_worth_it(&self) -> bool {
        self.begun - self.before_sync >= WRITES_BEFORE_WINDOW
    }

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
            let (_, covered, _) = handles.for_sync(key(1), &path(1)).unwrap();
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
        let (_, covered, _) = handles.for_sync(key(1), &path(1)).unwrap();
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
