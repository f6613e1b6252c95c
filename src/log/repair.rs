//! What recovery found broken, put aside and cut. Bytes go to the data folder itself, where no later start takes them for
//! segments, and never over a file that is there.

use std::fs::{self, File};
use std::io::{self, Seek, SeekFrom};
use std::path::Path;

use shard::log::{IoError, LogFolder, RepairStep};
use tracing::warn;

use super::files::Files;
use super::system::{create_beside, failed, show, sync_folder};

impl Files {
    /// Performs a step of a repair.
    pub(super) fn repair(&self, folder: LogFolder, step: &RepairStep) -> Result<(), IoError> {
        match step {
            RepairStep::KeepAside { segment, offset, to } => self.aside(to, |path, file| {
                copy_from(&self.path(folder, *segment), *offset, file)
                    .map_err(failed("copy a damaged segment to", path))
            }),
            RepairStep::RenameAside { segment, to } => {
                let from = self.path(folder, *segment);
                // The empty file only keeps the name for us: renaming replaces it in one step.
                self.aside(to, |path, _| {
                    fs::rename(&from, path).map_err(failed("rename", &from))
                })?;
                self.close(folder, *segment);
                Ok(())
            }
            RepairStep::SyncFolder => sync_folder(&self.folder(folder)),
            RepairStep::Truncate { segment, bytes } => {
                self.write(folder, *segment, "cut", |file| file.set_len(*bytes))
            }
            RepairStep::Sync { segment } => self.sync(folder, *segment, File::sync_all),
            RepairStep::Unlink { segment } => self.unlink(folder, *segment),
        }
    }

    /// Fills a new file of the data folder and makes its name durable; the file is gone again when that fails.
    fn aside(
        &self,
        to: &str,
        fill: impl FnOnce(&Path, &mut File) -> Result<(), IoError>,
    ) -> Result<(), IoError> {
        let root = self.root();
        let (path, mut file) = create_beside(root, to).map_err(failed("make the file", &root.join(to)))?;
        if path != root.join(to) {
            warn!("{to} is there already: the bytes are kept in {}", show(&path));
        }
        if let Err(error) = fill(&path, &mut file) {
            if let Err(error) = fs::remove_file(&path) {
                warn!("cannot remove {}, which is of no use: {error}", show(&path));
            }
            return Err(error);
        }
        sync_folder(root)
    }
}

fn copy_from(segment: &Path, offset: u64, to: &mut File) -> io::Result<()> {
    let mut from = File::open(segment)?;
    from.seek(SeekFrom::Start(offset))?;
    io::copy(&mut from, to)?;
    to.sync_all()
}
