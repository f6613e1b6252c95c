//! Logs in temporary folders, written by `shard::log::Log` with the calls of the standard library.

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use shard::clock::Now;
use shard::commands::view::PauseState;
use shard::id::JobId;
use shard::log::{
    AckedImage, Action, AppendFsync, CURRENT, Current, Done, Entry, FileName, FoundFile, Holder, JobImage,
    KeptPlace, Log, QueueImage, Recovered, Recovery, RecoveryError, RecoveryOptions, StateChange, Thresholds,
    WallMs, Want, WriterOptions,
};
use shard::wire::Blob;

/// 14 November 2023, 22:13:20 UTC.
pub const WALL_MS: u64 = 1_700_000_000_000;
pub const GENERATION: u64 = 3;
const SEGMENT_BYTES: u64 = 8 << 10;

/// A folder, removed in the end.
pub struct Folder(PathBuf);

impl Folder {
    pub fn new() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("shardq-aof-{}-{number}", std::process::id()));
        fs::create_dir(&path).expect("process IDs and numbers make a new name");
        Self(path)
    }

    /// A data folder whose generation was written by so many shards, each with the same entries.
    pub fn with_logs(shards: u16, fsync: AppendFsync, entries: &[Entry]) -> Self {
        let folder = Self::new();
        let current = Current {
            generation: GENERATION,
            shards,
        };
        fs::write(folder.path().join(CURRENT), current.text()).unwrap();
        fs::create_dir(folder.generation()).unwrap();
        for shard in 0..shards {
            let mut log = Written::begin(&folder.generation(), shard, fsync);
            for entry in entries {
                log.append(entry);
            }
        }
        folder
    }

    pub fn path(&self) -> &Path {
        &self.0
    }

    pub fn generation(&self) -> PathBuf {
        self.0.join(Current::folder(GENERATION))
    }

    pub fn segment(&self, shard: u16, number: u64) -> PathBuf {
        self.generation().join(FileName::of(shard, number))
    }

    /// Paths of the segments of a shard, oldest first, that hold records.
    pub fn used(&self, shard: u16) -> Vec<(PathBuf, usize)> {
        let files = segments(&self.generation(), shard);
        let paths = files.iter().map(|file| self.segment(shard, file.number));
        let end = |path: PathBuf| {
            let bytes = fs::read(&path).unwrap();
            let end = bytes
                .iter()
                .rposition(|&byte| byte != 0)
                .map_or(0, |last| last + 1);
            (path, end)
        };
        paths.map(end).filter(|(_, end)| *end > 64).collect()
    }

    /// All files below, with what they hold; the lock's file is no part of a log.
    pub fn content(&self) -> BTreeMap<PathBuf, Vec<u8>> {
        let (mut content, mut folders) = (BTreeMap::new(), vec![self.0.clone()]);
        while let Some(folder) = folders.pop() {
            for entry in fs::read_dir(folder).unwrap() {
                let path = entry.unwrap().path();
                if path.is_dir() {
                    folders.push(path);
                } else if !path.ends_with("LOCK") {
                    content.insert(path.clone(), fs::read(&path).unwrap());
                }
            }
        }
        content
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        // What cannot be removed stays in the system's temporary folder.
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// A log that is written.
pub struct Written {
    folder: PathBuf,
    shard: u16,
    log: Log,
}

impl Written {
    pub fn begin(folder: &Path, shard: u16, fsync: AppendFsync) -> Self {
        let recovered = recover(folder, shard, &mut |_| {}).expect("the log is whole");
        let options = WriterOptions {
            shard,
            generation: GENERATION,
            segment_bytes: SEGMENT_BYTES,
            reserve: 1,
            fsync,
            seed: [3; 32],
        };
        let never = Thresholds {
            percentage: 0,
            min_bytes: 0,
        };
        let mut written = Self {
            folder: folder.to_owned(),
            shard,
            log: Log::new(options, never, recovered.start(5, boot_id(), now())),
        };
        written.drive();
        written
    }

    pub fn append(&mut self, entry: &Entry) {
        self.log.append(entry).expect("there is room");
        self.drive();
    }

    pub fn stop(mut self) {
        let mark = self.log.stop();
        self.drive();
        assert!(self.log.durable() >= mark);
    }

    fn drive(&mut self) {
        loop {
            let mut ios = Vec::new();
            self.log.take_io(now(), &mut ios);
            if ios.is_empty() {
                return;
            }
            for io in ios {
                self.perform(io.action);
                self.log.completed(now(), io.id, Ok(Done::Done));
            }
        }
    }

    fn perform(&self, action: Action) {
        let path = |segment| self.folder.join(FileName::of(self.shard, segment));
        match action {
            Action::Create {
                segment,
                bytes,
                header,
                replaces,
            } => {
                replaces
                    .iter()
                    .for_each(|&replaced| fs::remove_file(path(replaced)).unwrap());
                let file = File::create(path(segment)).unwrap();
                file.set_len(bytes).unwrap();
                file.write_all_at(&header, 0).unwrap();
            }
            Action::Write {
                segment,
                offset,
                chunks,
            } => {
                let file = OpenOptions::new().write(true).open(path(segment)).unwrap();
                file.write_all_at(&chunks.concat(), offset).unwrap();
            }
            Action::Sync { .. } | Action::SyncFolder => {}
            Action::Read { .. } | Action::Unlink { .. } => panic!("there is no compaction"),
        }
    }
}

fn segments(folder: &Path, shard: u16) -> Vec<FoundFile> {
    let mut files = Vec::new();
    for entry in fs::read_dir(folder).unwrap() {
        let entry = entry.unwrap();
        if let FileName::Segment { shard: of, number } =
            FileName::parse(&entry.file_name().into_string().unwrap())
            && of == shard
            && entry.metadata().unwrap().is_file()
        {
            let bytes = entry.metadata().unwrap().len();
            files.push(FoundFile { number, bytes });
        }
    }
    files.sort_by_key(|file| file.number);
    files
}

/// What the server's start would get.
pub fn recover(folder: &Path, shard: u16, sink: &mut impl FnMut(Entry)) -> Result<Recovered, RecoveryError> {
    let options = RecoveryOptions {
        shard,
        generation: GENERATION,
        boot_id: boot_id(),
        may_cut: true,
    };
    let mut recovery = Recovery::new(options, segments(folder, shard));
    while let Want::Read {
        segment,
        offset,
        bytes,
    } = recovery.want()
    {
        let file = fs::read(folder.join(FileName::of(shard, segment))).unwrap();
        let read = &file[offset as usize..(offset + bytes) as usize];
        recovery.supply(Ok(read), sink)?;
    }
    recovery.finish()
}

pub fn boot_id() -> [u8; 16] {
    let text = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap();
    let digits = text.trim().replace('-', "");
    u128::from_str_radix(&digits, 16).unwrap().to_be_bytes()
}

fn now() -> Now {
    Now {
        mono_us: 1_000_000,
        wall_us: WALL_MS * 1_000,
    }
}

pub fn id(number: u8) -> JobId {
    JobId::from_bytes([number; 24])
}

/// A queued job.
pub fn job(number: u8, queue: &str, body: &[u8]) -> JobImage {
    JobImage {
        id: id(number),
        queue: Blob::from(queue),
        body: Blob::copy_from(body),
        ctime: (WALL_MS + u64::from(number)) * 1_000_000,
        expires_at: WallMs(WALL_MS + 86_400_000),
        ttl_s: 86_400,
        retry_s: 60,
        delay_s: 0,
        replicate: 1,
        state: StateChange {
            id: id(number),
            place: KeptPlace::Queued,
            enters_at: WallMs::NEVER,
            nacks: 0,
            additional_deliveries: 0,
            deliveries: 0,
            delivered: false,
            entered_before: true,
        },
        holders: vec![],
    }
}

/// A job that was handed out.
pub fn leased(number: u8) -> StateChange {
    StateChange {
        place: KeptPlace::Leased,
        enters_at: WallMs(WALL_MS + 60_000),
        deliveries: 1,
        delivered: true,
        ..job(number, "", b"").state
    }
}

pub fn acked(number: u8, holders: u8) -> AckedImage {
    let holder = |node| Holder {
        node: [node; 20],
        epoch: 9,
    };
    AckedImage {
        id: id(number),
        holders: (0..holders).map(holder).collect(),
    }
}

pub fn paused(name: &str) -> QueueImage {
    QueueImage {
        name: Blob::from(name),
        pause: PauseState {
            input: true,
            output: false,
        },
        version: 4,
    }
}

/// Jobs enough for several segments.
pub fn many_jobs() -> Vec<Entry> {
    (1..=120)
        .map(|number| Entry::Added(job(number, "mail", &[number; 200])))
        .collect()
}

/// CRC-32C, written a second time.
pub fn crc32c(bytes: &[u8]) -> u32 {
    let step = |crc: u32, _| crc >> 1 ^ if crc & 1 == 1 { 0x82f6_3b78 } else { 0 };
    !bytes
        .iter()
        .fold(!0, |crc, &byte| (0..8).fold(crc ^ u32::from(byte), step))
}
