//! What the server is to do with files for a shard, and what it tells a shard about them at the start.
//!
//! ```text
//! dir/LOCK               held while a server runs
//! dir/CURRENT            which generation counts (`generation.rs`)
//! dir/gen-7/shard-000-0000000000000001.log ...
//! dir/<what was cut>     named by the repair that put it there, kept for people
//! ```

use super::generation::{Current, StartPlan, SwitchStep};
use super::io::Action;
use super::recovery::{FoundFile, RepairStep};
use crate::slot::ShardNo;

/// The segments of one shard in one generation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogFolder {
    /// The generation.
    pub generation: u64,
    /// The shard that wrote them, by the numbers of that generation.
    pub shard: ShardNo,
}

/// Something to be done with files; its end is reported with the number of its effect. Tasks of a shard may run beside one
/// another: what must come after something else is asked for when that has ended.
#[derive(Debug)]
pub enum DiskTask {
    /// With a segment of this folder.
    Segment(LogFolder, Action),
    /// With what recovery found there. What goes aside goes to the data folder itself, under the name that the step gives.
    Repair(LogFolder, RepairStep),
    /// With the data folder. Only shard 0 asks for these.
    Generation(SwitchStep),
}

/// What the server found in the data folder before it started the shards; the same for all of them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogBoot {
    /// What follows from it. `SwitchOff` and `Unreadable` are dealt with before the shards start.
    pub plan: StartPlan,
    /// The segments of the generation that is loaded, by the shard that wrote them.
    pub files: Vec<Vec<FoundFile>>,
    /// The highest generation whose folder is there; 0 when there is none.
    pub newest_generation: u64,
    /// The kernel's boot ID.
    pub boot_id: [u8; 16],
}

impl LogBoot {
    /// The generation that is read.
    pub fn source(&self) -> Option<Current> {
        match self.plan {
            StartPlan::Load(from) | StartPlan::Reshard { from, .. } => Some(from),
            _ => None,
        }
    }

    /// No log is kept, and none is there.
    pub fn nothing() -> Self {
        Self {
            plan: StartPlan::Nothing,
            files: Vec::new(),
            newest_generation: 0,
            boot_id: [0; 16],
        }
    }
}
