//! Batches as they go over a real link: as frames, put together from pieces and decoded.

use shard::bus::codec::{Decoder, Encoder};
use shard::bus::frame::{Assembler, Frame};
use shard::bus::{BusMessage, LinkKind};
use shard::limits::BUS_FRAME_BYTES;

/// What arrives of a batch.
///
/// # Panics
/// When a node sends what nobody can read.
pub fn through(kind: LinkKind, mut messages: Vec<BusMessage>) -> Vec<BusMessage> {
    let mut bytes = Vec::new();
    Encoder::default().encode(&mut messages, |frame| bytes.extend(frame.chunks.concat()));
    let (mut assembler, mut input) = (Assembler::new(BUS_FRAME_BYTES), &bytes[..]);
    while !input.is_empty() {
        let frame = assembler.take(&mut input).expect("a frame can be read");
        if let Some(Frame::Batch(batch)) = frame {
            Decoder::default()
                .decode(&batch, kind, &mut messages)
                .expect("messages can be read");
        }
    }
    messages
}
