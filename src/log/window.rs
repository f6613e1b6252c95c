//! A stretch of a segment's file in memory: what is stored there is written, as far as the death of the process is concerned, without a
//! call of the system and without another thread.
//!
//! A write through a thread costs two changes of threads, and everything that waits for it waits for them too: under load that was
//! a third of what the log costs. A store into pages that are there waits for nothing. So a thread prepares the pages ahead
//! ([`Map::prepare`] faults them in, writable, which may wait for the disk), and the shard only copies.
//!
//! What must hold:
//! - The pages lie within the file and have space on the disk, and the file system overwrites in place: else a store could
//!   fail, and a failing store is a signal that ends the process. (So it ends, without a word, when somebody truncates a segment that is written.)
//! - No store into pages that a sync is about to write: it would take their right to be written page by page, with an interrupt of every core
//!   for each, and a store would wait in the kernel to get it back. So a window is closed before a sync (`handles.rs`); one that is opened
//!   while the sync runs has pages that the sync does not look at. The kernel writes old dirty pages by itself, so a window is used for a
//!   short time only. What is left: `sync` of the whole system, or a frozen file system, may hold up a store.

use std::fs::File;
use std::io;
use std::ptr::NonNull;
use std::sync::Arc;

use bytes::Bytes;
use rustix::fs::fstatfs;
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap, munmap};

/// Kinds of file systems, as `statfs` numbers them, that always write allocated blocks where they are: ext2 to ext4, tmpfs. (XFS copies what a backup
/// shares with it.)
const IN_PLACE: [u64; 2] = [0xEF53, 0x0102_1994];

/// Bytes that are made ready in one call: who changes the process's mappings waits for it.
const PREPARE_STEP: u64 = 64 << 10;

/// The rest of a file in memory, from some page on. See the head of this file.
#[derive(Debug)]
pub struct Map {
    start: NonNull<u8>,
    bytes: usize,
    /// Where in the file it begins.
    offset: u64,
}

// SAFETY: the memory is bound to no thread. Who shares a map only makes its pages ready; what is in them is touched through the one `Window`.
unsafe impl Send for Map {}
// SAFETY: as above.
unsafe impl Sync for Map {}

impl Map {
    /// Maps the whole pages of the file from the one with this offset on. `None`: not on this file system, or nothing is left of the file.
    pub fn new(file: &File, offset: u64) -> io::Result<Option<Self>> {
        let page = rustix::param::page_size() as u64;
        let (start, end) = (offset / page * page, file.metadata()?.len() / page * page);
        let overwrites = IN_PLACE.contains(&(fstatfs(file)?.f_type as u64));
        if end <= offset || !overwrites {
            return Ok(None);
        }
        let bytes = (end - start) as usize;
        // SAFETY: a new mapping at a place that the kernel chooses: it touches no memory that is in use.
        let mapped = unsafe {
            mmap(
                std::ptr::null_mut(),
                bytes,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::SHARED,
                file,
                start,
            )
        }?;
        Ok(Some(Self {
            start: NonNull::new(mapped.cast()).expect("the kernel maps nothing at zero"),
            bytes,
            offset: start,
        }))
    }

    /// Where in the file it ends.
    pub fn end(&self) -> u64 {
        self.offset + self.bytes as u64
    }

    /// Makes the pages with these offsets in the file writable, as far as they are mapped, and returns where those end. It may wait for the disk.
    pub fn prepare(&self, from: u64, bytes: u64) -> io::Result<u64> {
        let page = rustix::param::page_size() as u64;
        let from = (from / page * page).clamp(self.offset, self.end());
        let end = (from + bytes).next_multiple_of(page).min(self.end());
        let mut at = from;
        while at < end {
            let bytes = PREPARE_STEP.min(end - at);
            // SAFETY: the range lies within the mapping, which is ours; faulting pages in changes nothing in them.
            unsafe {
                let start = self.start.as_ptr().add((at - self.offset) as usize);
                madvise(start.cast(), bytes as usize, Advice::LinuxPopulateWrite)
            }?;
            at += bytes;
        }
        Ok(end)
    }
}

impl Drop for Map {
    fn drop(&mut self) {
        // SAFETY: this is the mapping that `new` made, and nothing refers to it any more.
        let unmapped = unsafe { munmap(self.start.as_ptr().cast(), self.bytes) };
        unmapped.expect("a mapping of our own can be given back");
    }
}

/// The part of a map that can be written.
#[derive(Debug)]
pub struct Window {
    map: Arc<Map>,
    /// Where in the file the first and last pages that are ready begin and end.
    ready: (u64, u64),
}

impl Window {
    /// A map's pages between these offsets in the file, which are ready.
    pub fn new(map: Arc<Map>, from: u64, end: u64) -> Self {
        assert!(map.offset <= from && from <= end && end <= map.end());
        let ready = (from, end);
        Self { map, ready }
    }

    /// The map, and where what is ready ends.
    pub fn map(&self) -> (&Arc<Map>, u64) {
        (&self.map, self.ready.1)
    }

    /// More pages of its map are ready: up to this offset.
    pub fn extend(&mut self, end: u64) {
        assert!(end <= self.map.end());
        self.ready.1 = self.ready.1.max(end);
    }

    /// Writes chunks one behind the other, if they lie within the window.
    pub fn store(&mut self, offset: u64, chunks: &[Bytes]) -> bool {
        let bytes: u64 = chunks.iter().map(|chunk| chunk.len() as u64).sum();
        let end = offset.checked_add(bytes);
        if offset < self.ready.0 || end.is_none_or(|end| end > self.ready.1) {
            return false;
        }
        let mut at = (offset - self.map.offset) as usize;
        for chunk in chunks {
            // SAFETY: `at + chunk.len()` is within what is ready, which is within the map; a chunk lies in memory of its own.
            unsafe {
                let to = self.map.start.as_ptr().add(at);
                std::ptr::copy_nonoverlapping(chunk.as_ptr(), to, chunk.len());
            }
            at += chunk.len();
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::FileExt;

    use super::*;
    use crate::log::system::{allocate, create_new};
    use crate::log::test_folder::TestFolder;

    fn file(folder: &TestFolder, bytes: u64) -> File {
        let file = create_new(&folder.path().join("segment")).unwrap();
        allocate(&file, bytes).unwrap();
        file
    }

    /// The test folder may lie on a file system of any kind.
    fn open(file: &File, offset: u64, bytes: u64) -> Option<Window> {
        let map = Arc::new(Map::new(file, offset).unwrap()?);
        let end = map.prepare(offset, bytes).unwrap();
        Some(Window::new(map, offset, end))
    }

    #[test]
    fn what_is_stored_is_in_the_file() {
        let folder = TestFolder::new();
        let file = file(&folder, 64 << 10);
        file.write_all_at(b"before", 4090).unwrap();
        let Some(mut window) = open(&file, 4096, 8192) else {
            return;
        };
        assert!(window.store(4096, &[Bytes::from_static(b"one"), Bytes::from_static(b"two")]));
        assert!(window.store(4102, &[Bytes::from_static(b"three")]));
        let mut read = [0; 17];
        file.read_exact_at(&mut read, 4090).unwrap();
        assert_eq!(&read, b"beforeonetwothree");
        drop(window);
        file.sync_data().unwrap();
        file.read_exact_at(&mut read, 4090).unwrap();
        assert_eq!(&read, b"beforeonetwothree");
    }

    #[test]
    fn what_lies_outside_is_not_stored() {
        let folder = TestFolder::new();
        let file = file(&folder, 64 << 10);
        let Some(mut window) = open(&file, 10_000, 10_000) else {
            return;
        };
        // To the end of the page with the last byte.
        let two = [Bytes::from_static(b"xx")];
        assert!(!window.store(9_999, &two));
        assert!(!window.store(20_479, &two));
        assert!(!window.store(u64::MAX, &two));
        assert!(window.store(10_000, &two));
        assert!(window.store(20_478, &two));
        let end = window.map().0.prepare(20_480, 1).unwrap();
        window.extend(end);
        assert_eq!(end, 24_576);
        assert!(window.store(20_479, &two));
    }

    #[test]
    fn no_window_reaches_beyond_the_file() {
        let folder = TestFolder::new();
        let file = file(&folder, 10_000);
        assert!(
            open(&file, 8192, 1 << 20).is_none(),
            "the last page is none of its own"
        );
        assert!(open(&file, 1 << 20, 4096).is_none());
        if let Some(mut window) = open(&file, 0, 1 << 20) {
            assert!(!window.store(8190, &[Bytes::from_static(b"xxx")]));
            assert!(window.store(8189, &[Bytes::from_static(b"xxx")]));
        }
    }
}
