//! Mistakes that the simulator of clusters has the product make on purpose, to prove that it sees them.
//!
//! A product has none of them: without the feature `planted` (only the tests of this crate turn it on) [`active`] is the constant
//! `false`, and what hangs on it is not compiled in.

/// A mistake.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Plant {
    /// An acknowledgement that is to be told to the other holders is not.
    LostAck,
    /// A holder says that it knows of an acknowledgement, and keeps its copy.
    HastyGotAck,
    /// A node that lost all it had since does not know of a job: that is taken for an acknowledgement.
    AnyEpoch,
    /// A holder that lost all it had still counts as one: nobody makes up for it.
    NoRepair,
    /// A copy is confirmed, and not kept.
    LostCopy,
    /// A compacted segment is unlinked before what was copied from it is durable.
    EarlyUnlink,
    /// A question who has a job is not answered.
    LostStanding,
    /// One holder is left out when it is said who they are.
    SkippedHolder,
    /// A node that leaves drops jobs that nobody else has.
    HastyLeave,
    /// A node that starts without what it had keeps its store epoch.
    SameEpoch,
    /// A node takes a job that is handed out at most once, and says that it did not.
    WrongAnswer,
}

impl Plant {
    /// All of them.
    pub const ALL: [Self; 11] = [
        Self::LostAck,
        Self::HastyGotAck,
        Self::AnyEpoch,
        Self::NoRepair,
        Self::LostCopy,
        Self::EarlyUnlink,
        Self::LostStanding,
        Self::SkippedHolder,
        Self::HastyLeave,
        Self::SameEpoch,
        Self::WrongAnswer,
    ];
}

#[cfg(feature = "planted")]
mod planted {
    use std::cell::Cell;

    use super::Plant;

    thread_local! {
        static ACTIVE: Cell<Option<Plant>> = const { Cell::new(None) };
    }

    /// Has this thread make a mistake from now on, or none.
    pub fn set(plant: Option<Plant>) {
        ACTIVE.set(plant);
    }

    /// Whether a mistake is to be made.
    pub fn active(plant: Plant) -> bool {
        ACTIVE.get() == Some(plant)
    }
}

#[cfg(feature = "planted")]
pub use planted::{active, set};

/// Whether a mistake is to be made: never.
#[cfg(not(feature = "planted"))]
pub(crate) const fn active(_: Plant) -> bool {
    false
}
