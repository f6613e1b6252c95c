//! Entries become records, and records find their place: groups, batches, segments, spares.

use super::{
    Batch, Entry, FIRST_RECORD, Group, META_BYTES, Meta, Prepared, RngCore, Segment, SegmentHeader, Spare,
    Writer,
};
use crate::log::io::{Action, Io, Position};
use crate::log::together::Of;

impl Writer {
    pub(super) fn enter(&mut self, entry: &Entry) -> Position {
        let position = Position(self.appended.0 + 1);
        let room = self.segments.back().map_or(0, Segment::room);
        let taken = self
            .group
            .as_mut()
            .is_some_and(|(group, _)| group.take(entry, room));
        if !taken {
            self.close_group();
            match Group::start(entry) {
                Some(group) => self.group = Some((group, position)),
                None => self.place_image(&Prepared::entry(entry), position, position),
            }
        }
        self.appended = position;
        position
    }

    pub(super) fn append_meta(&mut self) -> Position {
        self.close_group();
        self.appended = Position(self.appended.0 + 1);
        let bytes = META_BYTES;
        self.make_room(bytes);
        self.place_meta();
        self.request_sync();
        self.appended
    }

    pub(super) fn close_group(&mut self) {
        let Some((group, first)) = self.group.take() else {
            return;
        };
        let prepared = Prepared::group(&group);
        match &group {
            Group::Jobs(together) if together.of() == Of::Added => {
                self.place_record(&prepared, first, self.appended);
                let (jobs, first, last) = together.extent();
                self.count(jobs, first, last);
            }
            _ => self.place_image(&prepared, first, self.appended),
        }
    }

    pub(super) fn group_bytes(&self) -> u64 {
        self.group
            .as_ref()
            .map_or(0, |(group, _)| Prepared::group(group).padded_bytes())
    }

    fn place_image(&mut self, prepared: &Prepared, first: Position, last: Position) {
        self.place_record(prepared, first, last);
        let active = self.segments.back_mut().expect("the record stands in it");
        active.uncounted |= prepared.is_image();
    }

    pub(super) fn place_record(&mut self, prepared: &Prepared, first: Position, last: Position) {
        self.make_room(prepared.padded_bytes());
        if self
            .segments
            .back()
            .is_some_and(|active| active.end == active.base)
        {
            self.place_meta_at(first);
        }
        self.push(prepared, first, last);
    }

    pub(super) fn place_meta(&mut self) {
        self.place_meta_at(self.appended);
    }

    pub(super) fn place_meta_at(&mut self, position: Position) {
        let base = self.segments.back().expect("rolled").base;
        let entry = Entry::Meta(Meta { base, ..self.meta });
        self.push(&Prepared::entry(&entry), position, position);
    }

    /// Adds a record to the last batch of the active segment.
    pub(super) fn push(&mut self, prepared: &Prepared, first: Position, last: Position) {
        let durable = self.durable_place();
        let active = self.segments.back_mut().expect("rolled");
        if self
            .batches
            .back()
            .is_none_or(|batch| batch.segment != active.number)
        {
            let (offset, room) = (active.offset_of(active.end), std::mem::take(&mut self.room));
            let batch = Batch::new(active.number, offset, active.end, first, room);
            self.batches.push_back(batch);
        }
        let batch = self.batches.back_mut().expect("pushed above");
        batch.push(prepared, active.random, durable, last);
        active.end += prepared.padded_bytes();
        assert!(
            active.offset_of(active.end) <= active.file_bytes,
            "a record fits its segment"
        );
    }

    pub(super) fn make_room(&mut self, bytes: u64) {
        let active = self.segments.back().expect("there is one from the start");
        let head = if active.end == active.base { META_BYTES } else { 0 };
        if active.room() < bytes + head {
            self.roll(active.end, bytes);
        }
    }

    /// Goes on in the next segment, one that holds a record of so many bytes.
    pub(super) fn roll(&mut self, base: u64, bytes: u64) {
        if let Some(active) = self.segments.back_mut() {
            active.sealed = true;
        }
        let needed = FIRST_RECORD + META_BYTES + bytes;
        let spare = match self.spares.front() {
            Some(spare) if spare.file_bytes >= needed => *spare,
            _ => {
                // Spares that are too small give way to one segment that is large enough: their numbers are lower than its own.
                let replaces = self.spares.drain(..).map(|spare| spare.number).collect();
                self.create(needed.max(self.options.segment_bytes), replaces, true)
            }
        };
        self.spares.retain(|other| other.number != spare.number);
        self.segments
            .push_back(Segment::new(spare, base, self.last_stamp));
    }

    pub(super) fn create(&mut self, file_bytes: u64, replaces: Vec<u64>, first: bool) -> Spare {
        let spare = Spare {
            number: self.next_number,
            random: self.chance.next_u64(),
            file_bytes,
            ready: false,
        };
        self.next_number += 1;
        if first {
            self.spares.push_front(spare);
        } else {
            self.spares.push_back(spare);
        }
        let header = SegmentHeader {
            shard: self.options.shard,
            number: spare.number,
            generation: self.options.generation,
            random: spare.random,
            file_bytes,
        };
        let segment = spare.number;
        let io = self.push_io(Action::Create {
            segment,
            bytes: file_bytes,
            header: header.encode(),
            replaces,
        });
        self.creating.push((io, segment));
        spare
    }

    pub(super) fn push_io(&mut self, action: Action) -> u64 {
        let id = self.io_number();
        self.ios.push(Io { id, action });
        id
    }
}
