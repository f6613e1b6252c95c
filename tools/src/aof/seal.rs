//! What the server writes behind a cut, written here: a new segment with a meta record, made by `shard::log::Log` itself.
//!
//! A cut log that simply ended would look whole to the next start, and that would keep the store epoch although something that was
//! confirmed may be gone. This record names no boot of any kernel, so that the next start must take a new one. It also makes
//! durable what the cut left, and leaves no shard without a segment.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use shard::clock::Now;
use shard::log::{Action, AppendFsync, Done, FileName, Io, Log, Recovered, Thresholds, WriterOptions};

use super::AofError;
use super::lock::give_to_owner;
use super::reader::ShardLog;

/// No kernel has this boot ID.
const NO_BOOT: [u8; 16] = [0; 16];
/// The record takes far less.
const SEGMENT_BYTES: u64 = 4096;
const CHANCE: &str = "/dev/urandom";

/// Begins a segment behind what recovery gave, durably; where it is.
pub fn write(log: &ShardLog, folder: &Path, recovered: Recovered) -> Result<PathBuf, AofError> {
    let options = WriterOptions {
        shard: log.shard,
        generation: log.generation,
        segment_bytes: SEGMENT_BYTES,
        reserve: 0,
        fsync: AppendFsync::EverySecond,
        seed: seed().map_err(AofError::system("read", Path::new(CHANCE)))?,
    };
    let never = Thresholds {
        percentage: 0,
        min_bytes: 0,
    };
    let (epoch, now) = (recovered.meta.store_epoch, now());
    let mut writer = Log::new(options, never, recovered.start(epoch, NO_BOOT, now));
    let mut files = Files {
        folder,
        shard: log.shard,
        created: Vec::new(),
        written: None,
    };
    while !writer.started() {
        let mut ios = Vec::new();
        writer.take_io(now, &mut ios);
        assert!(!ios.is_empty(), "a log that has not started has something to do");
        for Io { id, action } in ios {
            files.perform(action)?;
            writer.completed(now, id, Ok(Done::Done));
        }
    }
    files.finish()
}

/// The files that the log asks for.
struct Files<'a> {
    folder: &'a Path,
    shard: u16,
    created: Vec<u64>,
    written: Option<u64>,
}

impl Files<'_> {
    fn perform(&mut self, action: Action) -> Result<(), AofError> {
        match action {
            Action::Create {
                segment,
                bytes,
                header,
                ..
            } => {
                let path = self.path(segment);
                let create = || {
                    let file = OpenOptions::new()
                        .write(true)
                        .create_new(true)
                        .mode(0o600)
                        .open(&path)?;
                    file.set_len(bytes)?;
                    file.write_all_at(&header, 0)?;
                    file.sync_all()
                };
                create().map_err(AofError::system("create", &path))?;
                self.created.push(segment);
                give_to_owner(self.folder, &path)?;
                sync_folder(self.folder)
            }
            Action::Write {
                segment,
                offset,
                chunks,
            } => {
                self.written = Some(segment);
                let path = self.path(segment);
                let file = OpenOptions::new().write(true).open(&path);
                let written = file.and_then(|file| file.write_all_at(&chunks.concat(), offset));
                written.map_err(AofError::system("write", &path))
            }
            Action::Sync { segment } => {
                let path = self.path(segment);
                let synced = File::open(&path).and_then(|file| file.sync_all());
                synced.map_err(AofError::system("sync", &path))
            }
            Action::SyncFolder => sync_folder(self.folder),
            Action::Read { .. } | Action::Unlink { .. } => {
                unreachable!("only compaction asks for that, and it is never called")
            }
        }
    }

    /// Spares are of no use here.
    fn finish(self) -> Result<PathBuf, AofError> {
        let written = self.written.expect("a log starts with a record");
        for spare in self.created.iter().filter(|segment| **segment != written) {
            let path = self.path(*spare);
            fs::remove_file(&path).map_err(AofError::system("unlink", &path))?;
        }
        sync_folder(self.folder)?;
        Ok(self.path(written))
    }

    fn path(&self, segment: u64) -> PathBuf {
        self.folder.join(FileName::of(self.shard, segment))
    }
}

/// Makes names in a folder durable.
pub fn sync_folder(folder: &Path) -> Result<(), AofError> {
    let synced = File::open(folder).and_then(|folder| folder.sync_all());
    synced.map_err(AofError::system("sync the folder", folder))
}

fn seed() -> io::Result<[u8; 32]> {
    let mut seed = [0; 32];
    File::open(CHANCE)?.read_exact(&mut seed)?;
    Ok(seed)
}

fn now() -> Now {
    let wall = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Now {
        mono_us: 0,
        wall_us: wall.as_micros() as u64,
    }
}
