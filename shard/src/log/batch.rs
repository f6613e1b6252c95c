//! What is written with one call: records that follow each other in one segment.

use bytes::{Bytes, BytesMut};

use super::codec::{Prepared, Stand};
use super::io::Position;

/// Small things gather in one buffer; large bodies stand between as they are.
#[derive(Debug)]
pub struct Batch {
    /// Number of its segment.
    pub segment: u64,
    /// Offset in the segment's file.
    pub offset: u64,
    /// Place of its first record.
    pub start: u64,
    /// Place behind its last one.
    pub end: u64,
    /// First of its entries.
    pub first: Position,
    /// Last of its entries.
    pub last: Position,
    buffer: BytesMut,
    chunks: Vec<Bytes>,
    /// The last chunk, while it is written: its room is used again.
    rest: Bytes,
}

impl Batch {
    /// A batch whose small things gather in this buffer, which is empty.
    pub fn new(segment: u64, offset: u64, start: u64, first: Position, buffer: BytesMut) -> Self {
        Self {
            segment,
            offset,
            start,
            end: start,
            first,
            last: first,
            buffer,
            chunks: Vec::new(),
            rest: Bytes::new(),
        }
    }

    pub fn push(&mut self, prepared: &Prepared, random: u64, durable: u64, last: Position) {
        let place = self.end;
        prepared.write(
            Stand {
                random,
                place,
                durable,
            },
            &mut self.buffer,
            &mut self.chunks,
        );
        self.end += prepared.padded_bytes();
        self.last = last;
    }

    pub fn bytes(&self) -> u64 {
        self.end - self.start
    }

    /// What to write; the batch itself stays as a note of what is under way.
    pub fn take_chunks(&mut self) -> Vec<Bytes> {
        let mut chunks = std::mem::take(&mut self.chunks);
        let rest = std::mem::take(&mut self.buffer).freeze();
        if !rest.is_empty() {
            self.rest = rest.clone();
            chunks.push(rest);
        }
        let bytes: usize = chunks.iter().map(Bytes::len).sum();
        assert_eq!(bytes as u64, self.bytes(), "a batch is as long as its records");
        chunks
    }

    /// The room of the batch's buffer, if nobody looks at it any more.
    pub fn into_room(self) -> Option<BytesMut> {
        let mut room = self.rest.try_into_mut().ok()?;
        room.clear();
        Some(room)
    }
}
