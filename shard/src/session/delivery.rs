//! Which jobs stand in a session's output and have not reached its client yet.
//!
//! Every job that is handed out leaves a note of where its reply stands in the output stream. The note goes when the
//! kernel has taken the reply. What is left when the connection dies is told to the home shards as undelivered: a RETRY 0
//! job when not one byte of its reply went out, any other when not all of it did (`sessions.md`, GETJOB).

use std::collections::VecDeque;

use crate::message::Handed;

/// The notes of one session, in the order of the stream.
#[derive(Debug, Default)]
pub struct Deliveries {
    notes: VecDeque<Note>,
    sent: u64,
}

#[derive(Debug)]
struct Note {
    start: u64,
    end: u64,
    handed: Handed,
}

impl Deliveries {
    /// Notes that the reply that hands out a job stands at these positions of the output stream.
    pub fn note(&mut self, start: u64, end: u64, handed: Handed) {
        assert!(start < end && self.notes.back().is_none_or(|last| last.end <= start));
        self.notes.push_back(Note { start, end, handed });
    }

    /// The kernel took `bytes` more of the stream.
    pub fn sent(&mut self, bytes: u64) {
        self.sent += bytes;
        while self.notes.front().is_some_and(|note| note.end <= self.sent) {
            self.notes.pop_front();
        }
        if self.notes.is_empty() && self.notes.capacity() > 1024 {
            self.notes = VecDeque::new();
        }
    }

    /// The connection is dead: the jobs that were not delivered.
    pub fn undelivered(&mut self) -> impl Iterator<Item = Handed> {
        let sent = self.sent;
        std::mem::take(&mut self.notes)
            .into_iter()
            .filter(move |note| note.handed.id.at_least_once() || note.start >= sent)
            .map(|note| note.handed)
    }

    /// Bytes that the notes take.
    pub fn held_bytes(&self) -> usize {
        self.notes.capacity() * size_of::<Note>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::id::{JobId, NodeId};
    use crate::slot::Slot;

    fn handed(number: u8, at_least_once: bool) -> Handed {
        let node = NodeId::from_bytes([1; 20]);
        Handed {
            id: JobId::new(node, Slot::from_number(1), [number; 18], 60, at_least_once),
            delivery: 1,
        }
    }

    #[test]
    fn what_was_sent_whole_is_delivered() {
        let mut deliveries = Deliveries::default();
        deliveries.note(0, 10, handed(1, true));
        deliveries.note(10, 20, handed(2, true));
        deliveries.sent(10);
        assert_eq!(deliveries.undelivered().collect::<Vec<_>>(), [handed(2, true)]);
    }

    #[test]
    fn one_byte_sent_delivers_an_at_most_once_job_only() {
        let mut deliveries = Deliveries::default();
        deliveries.note(5, 10, handed(1, true));
        deliveries.note(10, 20, handed(2, false));
        deliveries.note(20, 30, handed(3, false));
        deliveries.sent(9);
        deliveries.sent(2);
        assert_eq!(deliveries.undelivered().collect::<Vec<_>>(), [handed(3, false)]);
        let mut half = Deliveries::default();
        half.note(0, 10, handed(1, true));
        half.note(10, 20, handed(2, false));
        half.sent(5);
        assert_eq!(
            half.undelivered().collect::<Vec<_>>(),
            [handed(1, true), handed(2, false)]
        );
    }
}
