//! What the data folder holds, found out before the shards start, and what must be done with it first.
//!
//! Nothing is changed before the folder is locked and `CURRENT` is understood. What is then deleted, put aside or left alone is
//! said in the server's log, each with its name.

use std::ffi::OsString;
use std::fs;
use std::io::{self, ErrorKind};
use std::path::Path;

use rustix::fs::Access;
use shard::log::{
    CURRENT, CURRENT_OFF, Current, FileName, FoundFile, IoError, LogBoot, StartPlan, SwitchStep,
    discard_plan, plan_start, switch_off,
};
use thiserror::Error;
use tracing::{info, warn};

use super::generations;
use super::lock::{FolderLock, LOCK, Taken};
use super::system::{read_if_there, show};

/// Where the kernel tells which boot this is.
const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";

/// Why the log keeps the server from starting; each says what mends it.
#[derive(Debug, Error)]
pub enum LogError {
    /// Another process has the folder.
    #[error(
        "another server keeps its log in {folder} (it holds the lock {folder}/{LOCK}).\n  Stop that one, or give this one a folder of its own: --dir"
    )]
    InUse { folder: String },
    /// `CURRENT` holds something else.
    #[error(
        "{folder}/{CURRENT} is not what a server wrote, so it is not known which log counts; nothing was changed.\n  \
         Look at it with `shardq-cli aof check {folder}`, or give the server another folder: --dir"
    )]
    Unreadable { folder: String },
    /// The generation is not there.
    #[error(
        "{folder}/{CURRENT} names {generation}, which is not there; what was confirmed may be in it.\n  \
         Bring the folder back. To start empty instead, rename {CURRENT} to {CURRENT_OFF}."
    )]
    MissingGeneration { folder: String, generation: String },
    /// A shard of the generation has left nothing.
    #[error(
        "{folder} holds no segment of shard {shard}; what was confirmed may be in it.\n  \
         Bring the files back. To start empty instead, rename {CURRENT} to {CURRENT_OFF}."
    )]
    MissingShard { folder: String, shard: usize },
    /// A segment belongs to no shard of the generation.
    #[error(
        "{file} belongs to a shard that its generation does not have: it has {shards}.\n  Move it elsewhere; look at it with `shardq-cli aof check {file}`"
    )]
    ForeignShard { file: String, shards: u16 },
    /// A step before the start failed.
    #[error("{0}")]
    Step(#[from] IoError),
    /// An operation of the system failed.
    #[error("cannot {what} {path}: {error}.{remedy}")]
    System {
        what: &'static str,
        path: String,
        error: io::Error,
        remedy: &'static str,
    },
}

/// Finds out what the data folder holds, does what comes before the shards, and tells them. The lock is taken when a log is kept
/// or found.
pub fn boot(lock: &FolderLock, appendonly: bool, shards: u16) -> Result<LogBoot, LogError> {
    let root = &lock.wanted();
    if !appendonly && !holds_log(root) {
        return Ok(LogBoot {
            newest_generation: newest_without_log(root),
            boot_id: boot_id(Path::new(BOOT_ID)),
            ..LogBoot::nothing()
        });
    }
    take_lock(lock)?;
    let path = root.join(CURRENT);
    let current = read_if_there(&path).map_err(system("read", &path))?;
    let found = Found::list(root)?;
    let mut plan = plan_start(&found.names, current.as_deref(), appendonly, shards);
    let mut files = Vec::new();
    match plan {
        StartPlan::Nothing => {}
        StartPlan::Unreadable => return Err(LogError::Unreadable { folder: show(root) }),
        StartPlan::SwitchOff => {
            put_aside(root, lock, current.as_deref())?;
            plan = StartPlan::Nothing;
        }
        StartPlan::Fresh(_) => warn_of_unnamed(root, &found)?,
        StartPlan::Load(from) | StartPlan::Reshard { from, .. } => {
            files = list_segments(root, from)?;
            discard(root, lock, &found, from)?;
        }
    }
    Ok(LogBoot {
        plan,
        files,
        newest_generation: newest(&found.names),
        boot_id: boot_id(Path::new(BOOT_ID)),
    })
}

/// Whether there is a log although none is to be kept. A folder that cannot be looked into is no reason to keep such a server
/// from starting.
fn holds_log(root: &Path) -> bool {
    match fs::symlink_metadata(root.join(CURRENT)) {
        Ok(_) => true,
        Err(error) if error.kind() == ErrorKind::NotFound => false,
        Err(error) => {
            warn!("cannot see whether {} holds a log: {error}", show(root));
            false
        }
    }
}

fn newest_without_log(root: &Path) -> u64 {
    match Found::list(root) {
        Ok(found) => newest(&found.names),
        Err(error) => {
            warn!("{error}");
            0
        }
    }
}

fn newest(names: &[String]) -> u64 {
    let generations = names.iter().filter_map(|name| Current::generation_of(name));
    generations.max().unwrap_or(0)
}

fn take_lock(lock: &FolderLock) -> Result<(), LogError> {
    let (root, taken) = (lock.wanted(), lock.take(|_| Ok(())));
    match taken.map_err(system("lock", &root.join(LOCK)))? {
        Taken::Now | Taken::Before => Ok(()),
        Taken::ByAnother => Err(LogError::InUse { folder: show(&root) }),
    }
}

/// What stands in the data folder.
struct Found {
    /// Names like those of generations, of whatever kind.
    names: Vec<String>,
    /// Those that are folders.
    folders: Vec<String>,
}

impl Found {
    fn list(root: &Path) -> Result<Self, LogError> {
        let mut found = Self {
            names: Vec::new(),
            folders: Vec::new(),
        };
        for entry in fs::read_dir(root).map_err(system("list the folder", root))? {
            let entry = entry.map_err(system("list the folder", root))?;
            // A name that is no text is none of a generation.
            let Ok(name) = entry.file_name().into_string() else {
                continue;
            };
            if Current::generation_of(&name).is_none() {
                continue;
            }
            if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                found.folders.push(name.clone());
            }
            found.names.push(name);
        }
        found.names.sort();
        found.folders.sort();
        Ok(found)
    }
}

/// The log stays where it is, under a name that no start loads by itself.
fn put_aside(root: &Path, lock: &FolderLock, current: Option<&[u8]>) -> Result<(), LogError> {
    let folder_of = |current: Current| Current::folder(current.generation);
    let before = off(root)?.map(folder_of);
    for step in switch_off() {
        generations::perform(root, lock, &step)?;
    }
    let folder = show(root);
    let generation = current
        .and_then(Current::parse)
        .map(folder_of)
        .unwrap_or_default();
    warn!(
        "appendonly is no, and {folder} holds a log: its jobs are not loaded. {CURRENT} is now {CURRENT_OFF}; the jobs stay in {generation}, \
         `shardq-cli aof check {folder}/{generation}` reads them. To load them: stop, rename {CURRENT_OFF} to {CURRENT}, start with --appendonly yes"
    );
    if let Some(before) = before.filter(|before| *before != generation) {
        warn!(
            "{CURRENT_OFF} named {before} before: nothing names that any more, and the next start with a log deletes it"
        );
    }
    Ok(())
}

/// What `CURRENT.off` names. Where it is there and does not say, no generation is ever deleted (`generations`).
fn off(root: &Path) -> Result<Option<Current>, LogError> {
    let path = root.join(CURRENT_OFF);
    let text = read_if_there(&path).map_err(system("read", &path))?;
    Ok(text.as_deref().and_then(Current::parse))
}

/// A folder that nothing names is a leftover, or the log of somebody who lost `CURRENT`.
fn warn_of_unnamed(root: &Path, found: &Found) -> Result<(), LogError> {
    let kept = off(root)?.map(|off| Current::folder(off.generation));
    for name in found.folders.iter().filter(|name| Some(*name) != kept.as_ref()) {
        warn!(
            "{} is there, and no file {CURRENT} names it: an empty log is begun, and the next start deletes {name}. \
             If it holds jobs that are wanted, stop now and move it elsewhere",
            show(&root.join(name))
        );
    }
    Ok(())
}

/// Deletes the generations that nothing names.
fn discard(root: &Path, lock: &FolderLock, found: &Found, current: Current) -> Result<(), LogError> {
    for step in discard_plan(&found.folders, current, off(root)?) {
        generations::perform(root, lock, &step)?;
    }
    for name in found.names.iter().filter(|name| !found.folders.contains(name)) {
        if *name != Current::folder(current.generation) {
            warn!("{} is no folder and is left alone", show(&root.join(name)));
        }
    }
    generations::perform(root, lock, &SwitchStep::SyncFolder(".".into()))?;
    Ok(())
}

/// The segments of each shard of this generation, oldest first.
fn list_segments(root: &Path, current: Current) -> Result<Vec<Vec<FoundFile>>, LogError> {
    let folder = root.join(Current::folder(current.generation));
    let entries = match fs::read_dir(&folder) {
        Err(error) if error.kind() == ErrorKind::NotFound => {
            return Err(LogError::MissingGeneration {
                folder: show(root),
                generation: Current::folder(current.generation),
            });
        }
        entries => entries.map_err(system("list the folder", &folder))?,
    };
    check_access(&folder, Access::READ_OK | Access::WRITE_OK | Access::EXEC_OK)?;
    let mut files = vec![Vec::new(); usize::from(current.shards)];
    for entry in entries {
        let entry = entry.map_err(system("list the folder", &folder))?;
        let path = entry.path();
        let Some((shard, number)) = segment_of(entry.file_name(), &path) else {
            continue;
        };
        let metadata = entry.metadata().map_err(system("look at", &path))?;
        if !metadata.is_file() {
            warn!("{} is no file and is left alone", show(&path));
            continue;
        }
        let Some(of_shard) = files.get_mut(usize::from(shard)) else {
            return Err(LogError::ForeignShard {
                file: show(&path),
                shards: current.shards,
            });
        };
        check_access(&path, Access::READ_OK | Access::WRITE_OK)?;
        of_shard.push(FoundFile {
            number,
            bytes: metadata.len(),
        });
    }
    finish(files, &folder)
}

/// Shard and number of a segment; a word about what is none.
fn segment_of(name: OsString, path: &Path) -> Option<(u16, u64)> {
    match name.into_string().as_deref().map(FileName::parse) {
        Ok(FileName::Segment { shard, number }) => Some((shard, number)),
        Ok(FileName::Cut) => None,
        Ok(FileName::Foreign) | Err(_) => {
            warn!("{} is no segment of a log and is left alone", show(path));
            None
        }
    }
}

/// A generation counts only when all of its shards have written to it.
fn finish(mut files: Vec<Vec<FoundFile>>, folder: &Path) -> Result<Vec<Vec<FoundFile>>, LogError> {
    if let Some(shard) = files.iter().position(Vec::is_empty) {
        return Err(LogError::MissingShard {
            folder: show(folder),
            shard,
        });
    }
    for of_shard in &mut files {
        of_shard.sort_by_key(|file| file.number);
    }
    let segments: usize = files.iter().map(Vec::len).sum();
    info!("{}: {segments} segments of {} shards", show(folder), files.len());
    Ok(files)
}

fn check_access(path: &Path, access: Access) -> Result<(), LogError> {
    rustix::fs::access(path, access)
        .map_err(io::Error::from)
        .map_err(system("read and write", path))
}

fn system(what: &'static str, path: &Path) -> impl FnOnce(io::Error) -> LogError {
    let path = show(path);
    move |error| LogError::System {
        what,
        path,
        remedy: remedy(error.kind()),
        error,
    }
}

/// What mends an error of the system.
pub(super) fn remedy(kind: ErrorKind) -> &'static str {
    match kind {
        ErrorKind::PermissionDenied => {
            "\n  The user that runs the server must be able to read and write everything in the folder: `chown -R` it to that user, or choose another folder: --dir"
        }
        ErrorKind::ReadOnlyFilesystem => {
            "\n  The file system is mounted read-only: `mount -o remount,rw` it, or choose another folder: --dir"
        }
        ErrorKind::StorageFull | ErrorKind::QuotaExceeded => {
            "\n  Free space on the file system, or choose another folder: --dir"
        }
        ErrorKind::NotADirectory | ErrorKind::IsADirectory => {
            "\n  Something else has the name of a part of the log: move it away, or choose another folder: --dir"
        }
        _ => "",
    }
}

/// The kernel's boot ID. A random one where it cannot be read: then every start counts as one after a restart of the machine.
pub(super) fn boot_id(path: &Path) -> [u8; 16] {
    let read = fs::read_to_string(path).map_err(|error| error.to_string());
    let parsed = read.and_then(|text| parse_boot_id(&text).ok_or_else(|| format!("it says {text:?}")));
    parsed.unwrap_or_else(|why| {
        warn!(
            "the kernel's boot ID cannot be read from {}: {why}. Each start counts as one after a restart of the machine",
            path.display()
        );
        let mut random = [0; 16];
        getrandom::fill(&mut random).expect("random numbers were to be had a moment ago");
        random
    })
}

fn parse_boot_id(text: &str) -> Option<[u8; 16]> {
    let digits: String = text.trim().chars().filter(|&c| c != '-').collect();
    let is_hexadecimal = digits.len() == 32 && digits.bytes().all(|digit| digit.is_ascii_hexdigit());
    is_hexadecimal.then_some(())?;
    let number = u128::from_str_radix(&digits, 16).ok()?;
    Some(number.to_be_bytes())
}
