//! A folder for one test, removed in the end.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

/// A new, empty folder.
pub struct TestFolder(PathBuf);

impl TestFolder {
    pub fn new() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("shardq-log-{}-{number}", std::process::id()));
        fs::create_dir(&path).expect("process IDs and numbers make a new name");
        Self(path)
    }

    pub fn path(&self) -> &Path {
        &self.0
    }

    pub fn read(&self, name: &str) -> Vec<u8> {
        fs::read(self.0.join(name)).unwrap_or_else(|error| panic!("{name}: {error}"))
    }

    pub fn write(&self, name: &str, bytes: impl AsRef<[u8]>) {
        fs::write(self.0.join(name), bytes).unwrap_or_else(|error| panic!("{name}: {error}"));
    }

    pub fn make_folder(&self, name: &str) {
        fs::create_dir(self.0.join(name)).unwrap_or_else(|error| panic!("{name}: {error}"));
    }

    /// Names in it or in a folder of it, sorted.
    pub fn names(&self, below: &str) -> Vec<String> {
        let entries = fs::read_dir(self.0.join(below)).unwrap_or_else(|error| panic!("{below}: {error}"));
        let mut names: Vec<String> = entries
            .map(|entry| entry.expect("readable").file_name().into_string().expect("text"))
            .collect();
        names.sort();
        names
    }

    /// Permission bits.
    pub fn mode(&self, name: &str) -> u32 {
        let found = fs::metadata(self.0.join(name)).unwrap_or_else(|error| panic!("{name}: {error}"));
        found.permissions().mode() & 0o777
    }
}

impl Drop for TestFolder {
    fn drop(&mut self) {
        // What cannot be removed stays in the system's temporary folder.
        let _ = fs::remove_dir_all(&self.0);
    }
}
