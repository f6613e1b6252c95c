//! The decision table of recovery: what is wrong, in which segment, and whether a mark of durability covers it give what follows.

use thiserror::Error;

/// What can be wrong with a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum Wrong {
    /// Something that is no record stands where one should.
    #[error("bytes that are no record")]
    Torn,
    /// It begins behind the place where the one before ends.
    #[error("records are missing before it")]
    Gap,
    /// It begins before the place where the one before ends.
    #[error("it overlaps the segment before it")]
    Overlap,
    /// Its header is not what was written.
    #[error("a damaged header")]
    Header,
    /// It has the name of a segment and is none.
    #[error("not a segment of a log")]
    Foreign,
    /// A later server wrote its header.
    #[error("a segment of a version that this server does not know")]
    Version,
    /// It belongs to another shard, generation or number.
    #[error("a segment that belongs elsewhere")]
    Owner,
}

/// Which segment it is, among those that hold anything behind their header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Which {
    /// It holds nothing.
    Spare,
    /// The newest.
    Last,
    /// The one before: it may hold unsynced bytes, too.
    BeforeLast,
    /// All others: synced before the last one was begun.
    Older,
}

/// What follows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decision {
    /// Remove the file: it never held a record.
    Remove,
    /// Cut here, keep the bytes beside, and say so.
    Cut,
    /// Do not start.
    Stop,
}

use Decision::{Cut as C, Remove as R, Stop as S};

/// Each cell: when no mark covers the place, when one does. What is synced before it is used (headers) is never torn; a gap stands
/// at the end of the segment before, so one before the last but one lies in an older segment.
const DECISIONS: [[(Decision, Decision); 4]; 7] = [
    //            Spare   Last    BeforeLast Older
    /* Torn     */ [(S, S), (C, S), (C, S), (S, S)],
    /* Gap      */ [(S, S), (C, S), (S, S), (S, S)],
    /* Overlap  */ [(S, S), (S, S), (S, S), (S, S)],
    /* Header   */ [(R, R), (S, S), (S, S), (S, S)],
    /* Foreign  */ [(S, S), (S, S), (S, S), (S, S)],
    /* Version  */ [(S, S), (S, S), (S, S), (S, S)],
    /* Owner    */ [(S, S), (S, S), (S, S), (S, S)],
];

/// The decision table.
pub fn decide(wrong: Wrong, which: Which, covered: bool) -> Decision {
    let cell = DECISIONS[wrong as usize][which as usize];
    if covered { cell.1 } else { cell.0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WRONGS: [Wrong; 7] = [
        Wrong::Torn,
        Wrong::Gap,
        Wrong::Overlap,
        Wrong::Header,
        Wrong::Foreign,
        Wrong::Version,
        Wrong::Owner,
    ];
    const WHICH: [Which; 4] = [Which::Spare, Which::Last, Which::BeforeLast, Which::Older];

    #[test]
    fn the_table_is_complete_and_never_gives_up_what_a_mark_covers() {
        for (row, wrong) in WRONGS.into_iter().enumerate() {
            assert_eq!(wrong as usize, row);
            for (column, which) in WHICH.into_iter().enumerate() {
                assert_eq!(which as usize, column);
                let (open, covered) = (decide(wrong, which, false), decide(wrong, which, true));
                assert_ne!(covered, Decision::Cut, "{wrong:?} {which:?}");
                // A file goes without being kept only when it never held anything.
                assert_eq!(
                    open == Decision::Remove,
                    wrong == Wrong::Header && which == Which::Spare
                );
                assert!(open != Decision::Cut || matches!(which, Which::Last | Which::BeforeLast));
            }
        }
    }
}
