//! What a path leads to: a data folder, the folder of one generation, or a segment; and which logs are there.
//!
//! ```text
//! dir/CURRENT or CURRENT.off, LOCK
//! dir/gen-7/shard-000-0000000000000001.log ...
//! ```
//!
//! The server's own rules decide what counts (`src/log/boot.rs`): files that are no segments are left alone, a shard without a segment
//! and a segment without a shard stop the start.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{ErrorKind, Read};
use std::path::{Path, PathBuf};

use shard::log::{CURRENT, CURRENT_OFF, Current, FileName, SegmentHeader};
use shard::slot::ShardNo;

use super::AofError;
use super::reader::{NO_HEADER, SegmentFile, ShardLog, header_bytes};
use super::text::show;

/// The file that a server locks.
pub const LOCK: &str = "LOCK";
/// `CURRENT` is one short line; whatever is longer is none.
const CURRENT_BYTES: u64 = 1 << 10;

/// What a path leads to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Target {
    /// A data folder.
    Data(PathBuf),
    /// The folder of a generation.
    Generation(PathBuf),
    /// A segment among the others of its shard.
    Segment {
        folder: PathBuf,
        shard: ShardNo,
        number: u64,
    },
    /// A file whose name is none of a segment.
    Loose(PathBuf),
}

/// How much something matters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Weight {
    /// It is as it should be, or does no harm.
    Note,
    /// What is there would not be loaded, or later be deleted.
    Lost,
    /// A start cuts.
    Cut,
    /// No start.
    Stop,
}

impl Weight {
    /// The word at the head of a line.
    pub fn word(self) -> &'static str {
        match self {
            Self::Note => "note",
            Self::Lost => "lost",
            Self::Cut => "cut",
            Self::Stop => "stop",
        }
    }
}

/// A line about what was found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Remark {
    /// How much it matters.
    pub weight: Weight,
    /// File, and offset where there is one.
    pub place: String,
    /// What it is.
    pub text: String,
}

impl Remark {
    /// About a file or folder.
    pub fn new(weight: Weight, path: &Path, text: impl Into<String>) -> Self {
        Self {
            weight,
            place: show(path),
            text: text.into(),
        }
    }
}

/// The logs that a target has.
#[derive(Debug, Default)]
pub struct Found {
    /// The data folder, if there is one.
    pub root: Option<PathBuf>,
    /// Where the segments are.
    pub folder: PathBuf,
    /// A log for each shard that has segments.
    pub logs: Vec<ShardLog>,
    /// What is to be said of folders and files.
    pub remarks: Vec<Remark>,
    /// The next start does not load this log by itself.
    pub is_off: bool,
    /// The segment that was asked for.
    pub only: Option<u64>,
}

impl Found {
    /// The logs as far as records are asked for: one segment's, or all.
    pub fn asked_logs(&self) -> Vec<ShardLog> {
        let asked = |log: &ShardLog| match self.only {
            None => log.clone(),
            Some(number) => ShardLog {
                files: log
                    .files
                    .iter()
                    .filter(|file| file.number == number)
                    .cloned()
                    .collect(),
                ..*log
            },
        };
        self.logs.iter().map(asked).collect()
    }

    fn say(&mut self, weight: Weight, path: &Path, text: impl Into<String>) {
        self.remarks.push(Remark::new(weight, path, text));
    }
}

impl Target {
    /// Looks at a path.
    pub fn of(path: &Path) -> Result<Self, AofError> {
        let metadata = fs::metadata(path).map_err(AofError::system("look at", path))?;
        if metadata.is_dir() {
            let (name, _) = place_of(path)?;
            let names = names_in(path)?;
            let has = |test: &dyn Fn(&str) -> bool| names.iter().any(|name| test(name));
            let is_segment = |name: &str| matches!(FileName::parse(name), FileName::Segment { .. });
            return if has(&|name| name == CURRENT || name == CURRENT_OFF) {
                Ok(Self::Data(path.to_owned()))
            } else if Current::generation_of(&name).is_some() || has(&is_segment) {
                Ok(Self::Generation(path.to_owned()))
            } else if has(&|name| Current::generation_of(name).is_some()) {
                Ok(Self::Data(path.to_owned()))
            } else {
                Err(AofError::NoLog { path: show(path) })
            };
        }
        // The name that was given counts, not that of what it links to.
        let given = path
            .file_name()
            .and_then(|name| name.to_str())
            .unwrap_or_default();
        Ok(match FileName::parse(given) {
            FileName::Segment { shard, number } => Self::Segment {
                folder: parent_of(path),
                shard,
                number,
            },
            FileName::Cut | FileName::Foreign => Self::Loose(path.to_owned()),
        })
    }

    /// The logs that are there now.
    pub fn list(&self) -> Result<Found, AofError> {
        match self {
            Self::Data(root) => list_data(root),
            Self::Generation(folder) => list_named_folder(folder),
            Self::Segment {
                folder,
                shard,
                number,
            } => {
                let mut found = list_named_folder(folder)?;
                found.logs.retain(|log| log.shard == *shard);
                // What is said of other shards and files is not asked for.
                let path = folder.join(FileName::of(*shard, *number));
                found
                    .remarks
                    .retain(|remark| [show(&path), show(folder)].contains(&remark.place));
                found
                    .remarks
                    .retain(|remark| remark.place == show(&path) || remark.weight == Weight::Note);
                if found.logs.is_empty() && found.remarks.iter().all(|remark| remark.weight < Weight::Stop) {
                    found.say(
                        Weight::Stop,
                        &path,
                        "is all that there is of its shard, and is no segment",
                    );
                }
                found.only = Some(*number);
                Ok(found)
            }
            Self::Loose(path) => list_loose(path),
        }
    }
}

fn list_data(root: &Path) -> Result<Found, AofError> {
    let (current, off) = (read_current(root, CURRENT)?, read_current(root, CURRENT_OFF)?);
    let mut found = Found {
        root: Some(root.to_owned()),
        ..Found::default()
    };
    let (named, file) = match (&current, &off) {
        (Some(current), _) => (*current, CURRENT),
        (None, Some(off)) => (*off, CURRENT_OFF),
        (None, None) => {
            let text = "no CURRENT names it: a start with a log begins an empty one, and a later start deletes this. Look into it by its own path";
            let generations = names_in(root)?.into_iter();
            for name in generations.filter(|name| Current::generation_of(name).is_some()) {
                found.say(Weight::Lost, &root.join(name), text);
            }
            return Ok(found);
        }
    };
    let Some(named) = named else {
        let text = "is not what a server wrote, so it is not known which log counts; a start changes nothing and stops";
        found.say(Weight::Stop, &root.join(file), text);
        return Ok(found);
    };
    let folder = root.join(Current::folder(named.generation));
    let mut listed = match fs::symlink_metadata(&folder) {
        Err(error) if error.kind() == ErrorKind::NotFound => {
            let text = format!("names {}, which is not there", Current::folder(named.generation));
            found.say(Weight::Stop, &root.join(file), text);
            return Ok(found);
        }
        _ => list_folder(&folder, named.generation, Some(named.shards))?,
    };
    let text = format!(
        "names {}, written by {} shards",
        Current::folder(named.generation),
        named.shards
    );
    found.say(Weight::Note, &root.join(file), text);
    found.is_off = file == CURRENT_OFF;
    if found.is_off {
        found.say(
            Weight::Note,
            &root.join(file),
            "this log is switched off: no start loads it by itself",
        );
    }
    let kept = [Some(named), off.flatten()].map(|kept| kept.map(|kept| Current::folder(kept.generation)));
    for name in names_in(root)? {
        if Current::generation_of(&name).is_none() || kept[0].as_ref() == Some(&name) {
            continue;
        }
        let text = match kept[1].as_ref() == Some(&name) {
            true => "CURRENT.off names it: kept, and not loaded",
            false => "nothing names it: the next start with a log deletes it",
        };
        found.say(Weight::Note, &root.join(name), text);
    }
    found.folder = folder;
    found.logs = listed.logs;
    found.remarks.append(&mut listed.remarks);
    Ok(found)
}

/// A generation's folder by itself; the data folder above it says whether it counts.
fn list_named_folder(folder: &Path) -> Result<Found, AofError> {
    let (name, above) = place_of(folder)?;
    let Some(number) = Current::generation_of(&name) else {
        let mut found = list_folder(folder, generation_of_headers(folder)?, None)?;
        found.say(
            Weight::Note,
            folder,
            "is not the folder of a generation by its name: the headers of its segments say which it was",
        );
        return Ok(found);
    };
    let mut named = None;
    let mut is_data_folder = above.join(LOCK).exists();
    for file in [CURRENT, CURRENT_OFF] {
        let current = read_current(&above, file)?;
        is_data_folder |= current.is_some();
        let current = current.flatten().filter(|current| current.generation == number);
        named = named.or(current.map(|current| (file, current)));
    }
    let mut found = list_folder(folder, number, named.map(|(_, current)| current.shards))?;
    let text = match named {
        Some((file, current)) => format!("{file} names it, written by {} shards", current.shards),
        None => "neither CURRENT nor CURRENT.off names it: no start loads it".into(),
    };
    found.say(Weight::Note, folder, text);
    found.is_off = named.is_none_or(|(file, _)| file == CURRENT_OFF);
    found.root = is_data_folder.then_some(above);
    Ok(found)
}

fn list_folder(folder: &Path, generation: u64, shards: Option<u16>) -> Result<Found, AofError> {
    let mut found = Found {
        folder: folder.to_owned(),
        ..Found::default()
    };
    let mut logs: BTreeMap<ShardNo, Vec<SegmentFile>> = BTreeMap::new();
    for entry in fs::read_dir(folder).map_err(AofError::system("list", folder))? {
        let entry = entry.map_err(AofError::system("list", folder))?;
        let (path, name) = (folder.join(entry.file_name()), entry.file_name());
        let (shard, number) = match name.to_str().map(FileName::parse) {
            Some(FileName::Segment { shard, number }) => (shard, number),
            Some(FileName::Cut) => {
                found.say(Weight::Note, &path, "bytes that an earlier recovery cut off");
                continue;
            }
            Some(FileName::Foreign) | None => {
                found.say(Weight::Note, &path, "no segment of a log: left alone");
                continue;
            }
        };
        let metadata = entry.metadata().map_err(AofError::system("look at", &path))?;
        if !metadata.is_file() {
            found.say(
                Weight::Note,
                &path,
                "has the name of a segment and is no file: left alone",
            );
        } else if let Some(shards) = shards.filter(|shards| shard >= *shards) {
            let text = format!("belongs to a shard that its generation does not have: it has {shards}");
            found.say(Weight::Stop, &path, text);
        } else {
            let bytes = metadata.len();
            logs.entry(shard)
                .or_default()
                .push(SegmentFile { number, bytes, path });
        }
    }
    for shard in (0..shards.unwrap_or(0)).filter(|shard| !logs.contains_key(shard)) {
        let text = format!("holds no segment of shard {shard}: all of its segments are missing");
        found.say(Weight::Stop, folder, text);
    }
    found.remarks.sort_by(|a, b| a.place.cmp(&b.place));
    found.logs = logs
        .into_iter()
        .map(|(shard, mut files)| {
            files.sort_by_key(|file| file.number);
            ShardLog {
                shard,
                generation,
                files,
            }
        })
        .collect();
    Ok(found)
}

/// The generation that most likely wrote the segments of a folder whose name does not say it.
fn generation_of_headers(folder: &Path) -> Result<u64, AofError> {
    let listed = list_folder(folder, 0, None)?;
    let files = listed.logs.iter().flat_map(|log| &log.files);
    let mut headers = files.filter_map(|file| SegmentHeader::decode(&header_bytes(&file.path).ok()?).ok());
    Ok(headers.next().map_or(0, |header| header.generation))
}

/// A file with another name: what its header says is taken for true, and it is judged alone.
fn list_loose(path: &Path) -> Result<Found, AofError> {
    let metadata = fs::metadata(path).map_err(AofError::system("look at", path))?;
    let mut found = Found {
        folder: parent_of(path),
        is_off: true,
        ..Found::default()
    };
    if !metadata.is_file() {
        found.say(Weight::Stop, path, "is no file");
        return Ok(found);
    }
    let bytes = header_bytes(path).map_err(AofError::system("read", path))?;
    let header = SegmentHeader::decode(&bytes).unwrap_or(NO_HEADER);
    found.say(
        Weight::Note,
        path,
        "has no segment's name: it is judged alone, by its header",
    );
    found.only = Some(header.number);
    found.logs.push(ShardLog {
        shard: header.shard,
        generation: header.generation,
        files: vec![SegmentFile {
            number: header.number,
            bytes: metadata.len(),
            path: path.to_owned(),
        }],
    });
    Ok(found)
}

/// What a file of a data folder says: nothing when it is not there, and nothing inside when it is not understood.
fn read_current(root: &Path, name: &str) -> Result<Option<Option<Current>>, AofError> {
    let path = root.join(name);
    let mut text = Vec::new();
    let read = match File::open(&path) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        Err(error) => Err(error),
        Ok(file) => file.take(CURRENT_BYTES).read_to_end(&mut text),
    };
    read.map_err(AofError::system("read", &path))?;
    Ok(Some(Current::parse(&text)))
}

/// The names in a folder that are text, sorted.
fn names_in(folder: &Path) -> Result<Vec<String>, AofError> {
    let mut names = Vec::new();
    for entry in fs::read_dir(folder).map_err(AofError::system("list", folder))? {
        let entry = entry.map_err(AofError::system("list", folder))?;
        names.extend(entry.file_name().into_string());
    }
    names.sort();
    Ok(names)
}

/// The name of a folder, and the folder it stands in: as it was given, or found out where that does not say it.
fn place_of(folder: &Path) -> Result<(String, PathBuf), AofError> {
    let given = folder.file_name().and_then(|name| name.to_str());
    if let Some(name) = given.filter(|name| Current::generation_of(name).is_some()) {
        return Ok((name.to_owned(), parent_of(folder)));
    }
    let whole = fs::canonicalize(folder).map_err(AofError::system("look at", folder))?;
    let name = whole
        .file_name()
        .and_then(|name| name.to_str())
        .unwrap_or_default();
    Ok((name.to_owned(), parent_of(&whole)))
}

/// The folder that a path's last name stands in.
fn parent_of(path: &Path) -> PathBuf {
    match path.parent() {
        Some(parent) if parent != Path::new("") => parent.to_owned(),
        _ => PathBuf::from("."),
    }
}
