//! Quiet: the disk works and nobody asks for anything. The log goes through what there is, and comes to rest.

use super::Run;
use crate::support::Faults;
use crate::support::Machine;
use crate::visit::Visitor;

/// After this time no life of a job ends any more, but for those that last a day; nobody waits, and no answer is on its way.
const SETTLE_US: u64 = 25_000_000;
/// A log that removed no segment in this time rests.
const REST_US: u64 = 5_000_000;
/// Segments that may be in the making.
const SPARE_SEGMENTS: u64 = 8;

impl Run {
    /// Lets the node be quiet; wrong is a log that is compacted for ever.
    pub(super) fn be_quiet(&mut self, machine: &mut Machine) -> Result<(), String> {
        machine.disk.faults = Faults::default();
        self.pass(machine, SETTLE_US)?;
        // The circle that is under way, and another: one that leaves the log too large is not followed by a third.
        let begun = machine.disk.unlinked;
        let most = 2 * (machine.disk.segments() + SPARE_SEGMENTS);
        let mut unlinked = u64::MAX;
        while unlinked != machine.disk.unlinked {
            unlinked = machine.disk.unlinked;
            if unlinked - begun > most {
                return Err(format!("{} segments are removed, and more", unlinked - begun));
            }
            self.pass(machine, REST_US)?;
        }
        if !machine.has_ended() && self.is_too_large(machine)? {
            self.count("circles in vain");
        }
        self.count("rests");
        Ok(())
    }

    /// Lets so much time pass, while clients read.
    fn pass(&mut self, machine: &mut Machine, us: u64) -> Result<(), String> {
        let end_us = machine.now_us() + us;
        while machine.event(end_us) {
            self.read(machine)?;
        }
        Ok(())
    }

    /// Whether the log of the only shard is larger than it should be.
    fn is_too_large(&self, machine: &mut Machine) -> Result<bool, String> {
        let settings = machine.node.shards[0].settings();
        let (percentage, min_bytes) = (settings.aof_rewrite_percentage, settings.aof_rewrite_min_bytes);
        if machine.node.count() > 1 || !machine.is_on || percentage == 0 {
            return Ok(false);
        }
        let (log_bytes, live_bytes) = Visitor::new(machine).log_size()?;
        Ok(log_bytes > min_bytes && log_bytes > live_bytes * (100 + percentage) / 100)
    }
}
