//! The small enums of messages as numbers, both ways.

use crate::bus::message::Refusal;
use crate::commands::IdVerb;
use crate::commands::view::JobState;

/// Numbers of an enum: each value's is its place.
pub(super) trait Numbered: Copy + PartialEq + 'static {
    const ALL: &'static [Self];

    fn number(self) -> u8 {
        let at = Self::ALL.iter().position(|&value| value == self);
        at.expect("all values have a place") as u8
    }

    fn from_number(number: u8) -> Option<Self> {
        Self::ALL.get(usize::from(number)).copied()
    }
}

impl Numbered for Refusal {
    const ALL: &'static [Self] = &[Self::Memory, Self::Leaving, Self::Log, Self::Paused, Self::Busy];
}

impl Numbered for IdVerb {
    const ALL: &'static [Self] = &[
        Self::Acknowledge,
        Self::FastAcknowledge,
        Self::Delete,
        Self::Enqueue,
        Self::Nack,
        Self::Dequeue,
    ];
}

impl Numbered for JobState {
    const ALL: &'static [Self] = &[Self::WaitRepl, Self::Active, Self::Queued, Self::Acked];
}
