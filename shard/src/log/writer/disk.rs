//! What is asked of the disk, and what follows from its answers.

use bytes::Bytes;

use super::{
    Batch, Mono, ORDINARY_SPARES, RETRY_MS, Repair, SYNC_EVERY_MS, Segment, Spare, Syncing, Trouble, Writer,
};
use crate::log::io::{Action, AppendFsync, Done, IoError, WriterEvent};

/// The largest room of a buffer that is kept for later.
const ROOM_BYTES: usize = 2 << 20;

impl Writer {
    pub(super) fn durable_place(&self) -> u64 {
        self.durable.0
    }

    pub(super) fn oldest_unsynced(&self) -> Option<&Segment> {
        // Places only grow. A segment that was sealed empty, for a record too large for it, says nothing about those before it.
        let durable = self.durable.0;
        let newest = self
            .segments
            .iter()
            .rev()
            .take_while(|segment| segment.end > durable || segment.end == segment.base);
        newest
            .filter(|segment| segment.synced.0 < segment.written.0)
            .last()
    }

    pub(super) fn segment_mut(&mut self, number: u64) -> &mut Segment {
        let found = self
            .segments
            .iter_mut()
            .rev()
            .find(|segment| segment.number == number);
        found.expect("a segment with I/O under way is one of the log's")
    }

    pub(super) fn start_write(&mut self) {
        if self.writing.is_some() || self.repair.is_some() {
            return;
        }
        let Some(batch) = self.batches.front() else { return };
        let at = self
            .segments
            .iter()
            .rposition(|segment| segment.number == batch.segment);
        let at = at.expect("a batch belongs to a segment");
        let first_of_segment = batch.start == self.segments[at].base;
        let predecessors_synced = at < 2 || self.segments[at - 2].is_synced();
        if !self.segments[at].ready || (first_of_segment && !predecessors_synced) {
            return;
        }
        let mut batch = self.batches.pop_front().expect("looked at above");
        let (segment, offset, chunks) = (batch.segment, batch.offset, batch.take_chunks());
        let io = self.push_io(Action::Write {
            segment,
            offset,
            chunks,
        });
        self.writing = Some((io, batch));
    }

    pub(super) fn start_sync(&mut self, now: Mono) {
        if self.syncing.is_some() {
            return;
        }
        let mut repairs = self
            .repair
            .as_ref()
            .filter(|repair| repair.zeroed)
            .map(|repair| repair.segment);
        let unsynced = self.oldest_unsynced().copied();
        if unsynced.is_some_and(|oldest| repairs.is_some_and(|number| oldest.number < number)) {
            repairs = None;
        }
        let oldest = match (repairs, unsynced) {
            (Some(number), _) => *self.segment_mut(number),
            (None, Some(oldest)) if self.repair.is_some() || self.sync_is_due(now, &oldest) => oldest,
            _ => return,
        };
        let io = self.push_io(Action::Sync {
            segment: oldest.number,
        });
        self.sync_started_at = now;
        self.sync_started_up_to = oldest.written.1;
        if self.due <= self.sync_started_up_to {
            self.due = self.wanted;
        }
        self.syncing = Some(Syncing {
            io,
            segment: oldest.number,
            up_to: oldest.written,
            repairs: repairs.is_some(),
        });
    }

    pub(super) fn sync_is_due(&self, now: Mono, oldest: &Segment) -> bool {
        let sealed = oldest.sealed && oldest.written.0 == oldest.end;
        let second =
            self.fsync == AppendFsync::EverySecond && now >= self.sync_started_at.after_ms(SYNC_EVERY_MS);
        // Not for what was written before: the sync that is asked for goes with what it is asked for.
        let asked = self.due > self.sync_started_up_to && self.due <= self.written;
        sealed || second || self.is_always() || asked
    }

    pub(super) fn start_creating(&mut self, now: Mono) {
        self.end_trouble();
        if self.holds_spares {
            return;
        }
        if self
            .trouble
            .as_ref()
            .is_some_and(|trouble| now < trouble.retry_at)
        {
            return;
        }
        // After a failure one at a time, until one succeeds.
        let limit = if self.trouble.is_some() { 1 } else { usize::MAX };
        while self.spares.len() < self.options.reserve + ORDINARY_SPARES && self.creating.len() < limit {
            self.create(self.options.segment_bytes, Vec::new(), false);
        }
        if let Some(trouble) = &mut self.trouble {
            trouble.retry_at = now.after_ms(RETRY_MS);
        }
    }

    pub(super) fn start_repair(&mut self, now: Mono) {
        let Some(repair) = &mut self.repair else { return };
        if repair.io.is_some() || repair.zeroed || now < repair.retry_at {
            return;
        }
        let (segment, offset, bytes) = (repair.segment, repair.offset, repair.bytes);
        let io = self.push_io(Action::Write {
            segment,
            offset,
            chunks: zeros(bytes),
        });
        self.repair.as_mut().expect("as above").io = Some(io);
    }

    pub(super) fn wrote(&mut self, batch: Batch) {
        let segment = self.segment_mut(batch.segment);
        assert_eq!(segment.written.0, batch.start, "writes complete in order");
        segment.written = (batch.end, batch.last);
        self.written = batch.last;
        if let Some(room) = batch.into_room().filter(|room| room.capacity() <= ROOM_BYTES)
            && room.capacity() > self.room.capacity()
        {
            self.room = room;
        }
    }

    pub(super) fn synced(&mut self, syncing: &Syncing, result: Result<Done, IoError>) {
        if let Err(error) = result {
            return self.events.push(WriterEvent::Fatal(format!(
                "fdatasync of the log failed: {error}"
            )));
        }
        let segment = self.segment_mut(syncing.segment);
        segment.synced = segment.synced.max(syncing.up_to);
        // Segments are synced oldest first, so all before is synced as well.
        self.durable = self.durable.max(syncing.up_to);
        if syncing.repairs {
            self.repair = None;
        }
    }

    pub(super) fn write_failed(&mut self, now: Mono, batch: Batch, error: &IoError) {
        if !self.started() {
            return self
                .events
                .push(WriterEvent::Fatal(format!("the log cannot be started: {error}")));
        }
        self.repair = Some(Repair {
            reason: error.to_string(),
            segment: batch.segment,
            offset: batch.offset,
            bytes: batch.bytes(),
            retry_at: now,
            io: None,
            zeroed: false,
        });
        let (segment, start) = (batch.segment, batch.start);
        self.batches.push_front(batch);
        self.undo(segment, start, &error.to_string());
    }

    /// Gives up all batches from this place on, and the segments behind; the log goes on here.
    pub(super) fn undo(&mut self, segment: u64, place: u64, reason: &str) {
        let kept = self
            .batches
            .iter()
            .position(|batch| batch.start >= place)
            .unwrap_or(self.batches.len());
        let dropped = self.batches.split_off(kept);
        let group = self.group.take().map(|(_, first)| first);
        let from = dropped.front().map(|batch| batch.first).or(group);
        while self.segments.back().is_some_and(|last| last.number != segment) {
            let last = self.segments.pop_back().expect("looked at");
            let Segment {
                number,
                random,
                file_bytes,
                ready,
                ..
            } = last;
            self.spares.push_front(Spare {
                number,
                random,
                file_bytes,
                ready,
            });
        }
        let active = self.segments.back_mut().expect("the segment is one of the log's");
        active.end = place;
        active.sealed = false;
        // Jobs behind it may live on whose count is gone: it counts no more, and is read instead.
        (active.uncounted, active.living, active.stamps) = (true, 0, (self.last_stamp, self.last_stamp));
        if let Some((_, position @ Some(_))) = &mut self.relaxing {
            *position = None;
        }
        self.meta.stopped = false;
        self.undone += 1;
        if let Some(from) = from {
            let (to, reason) = (self.appended, reason.to_owned());
            self.events.push(WriterEvent::Failed { from, to, reason });
        }
    }

    pub(super) fn zeroed(&mut self, now: Mono, result: Result<Done, IoError>) {
        let repair = self.repair.as_mut().expect("one is under way");
        repair.io = None;
        match result {
            Ok(_) => repair.zeroed = true,
            Err(error) => {
                repair.reason = error.to_string();
                repair.retry_at = now.after_ms(RETRY_MS);
            }
        }
    }

    pub(super) fn created(&mut self, number: u64) {
        if let Some(spare) = self.spares.iter_mut().find(|spare| spare.number == number) {
            spare.ready = true;
        } else if let Some(segment) = self
            .segments
            .iter_mut()
            .rev()
            .find(|segment| segment.number == number)
        {
            segment.ready = true;
        }
        self.end_trouble();
        // What went well once is tried again at once.
        self.room_was_made();
    }

    /// It is over when the whole reserve is there again, and more.
    fn end_trouble(&mut self) {
        if self.ready_spares() >= self.options.reserve + ORDINARY_SPARES {
            self.trouble = None;
        }
    }

    pub(super) fn create_failed(&mut self, now: Mono, number: u64, error: &IoError) {
        let (reason, retry_at) = (error.to_string(), now.after_ms(RETRY_MS));
        if self.trouble.is_none() {
            let warning = format!("The log cannot grow: {reason}");
            self.events.push(WriterEvent::Warning(warning));
        }
        self.trouble = Some(Trouble {
            reason: reason.clone(),
            retry_at,
        });
        self.spares.retain(|spare| spare.number != number);
        let Some(at) = self.segments.iter().position(|segment| segment.number == number) else {
            return;
        };
        if at == 0 || !self.started() {
            return self
                .events
                .push(WriterEvent::Fatal(format!("the log cannot be created: {reason}")));
        }
        let (before, place) = (self.segments[at - 1].number, self.segments[at].base);
        self.undo(before, place, &reason);
        self.spares.retain(|spare| spare.number != number);
    }

    pub(super) fn relax(&mut self) {
        match self.relaxing {
            Some((fsync, Some(position))) if self.durable() >= position => {
                self.fsync = fsync;
                self.relaxing = None;
            }
            Some((fsync, None)) if self.repair.is_none() && !self.meta.stopped => {
                self.meta.always = false;
                self.relaxing = Some((fsync, Some(self.append_meta())));
            }
            _ => {}
        }
    }
}

fn zeros(bytes: u64) -> Vec<Bytes> {
    static ZEROS: [u8; 1 << 16] = [0; 1 << 16];
    let whole = Bytes::from_static(&ZEROS);
    let mut chunks = vec![whole.clone(); (bytes >> 16) as usize];
    chunks.push(whole.slice(..(bytes & 0xffff) as usize));
    chunks
}
