//! Frames: how batches and signs of life stand on a link.
//!
//! ```text
//! frame    magic     "sqb"
//!          version   u8    2
//!          length    u32   bytes behind the header
//!          checksum  u32   CRC-32C of: header without this field, what is behind it
//!          kind      u8    1 batch, 2 ping, 3 pong
//!          reserved  3 zeros
//!          behind it       batch: messages (`codec`); ping, pong: a number, u64
//! ```
//!
//! Numbers are little-endian. A dialer sends batches and pings, the other side sends pongs. What must hold: a receiver keeps
//! no more than it was sent, and at most one frame; the first mistake ends the link.

use bytes::{BufMut, Bytes, BytesMut};
use thiserror::Error;

use crate::id::JobId;
use crate::limits::BUS_FRAME_BYTES;

/// Version of the frames and messages that are sent; the handshake makes sure that both sides have the same.
pub const VERSION: u8 = 2;
/// Bytes of a frame's header.
pub const HEADER_BYTES: usize = 16;
const MAGIC: [u8; 3] = *b"sqb";
/// Bytes of a sign of life behind its header.
pub const SIGN_BYTES: usize = 8;
/// Bytes kept for a frame when its header has come; more as more comes.
const FIRST_BYTES: usize = 16 << 10;

/// Why a link is closed: what its other side sent is not what it may send.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum BadFrame {
    /// No frame begins like this.
    #[error("a frame that does not begin as one")]
    Magic,
    /// Another version than the one that was agreed on.
    #[error("a frame of version {0}, which this server does not know")]
    Version(u8),
    /// Longer than any frame, or than one of its kind.
    #[error("a frame of {0} bytes, which is too long")]
    Length(u32),
    /// Its bytes are not those that were sent.
    #[error("a frame with a wrong checksum")]
    Checksum,
    /// No such kind, or not on this side of this kind of link.
    #[error("a frame of kind {0}, which has no place on this link")]
    Kind(u8),
    /// A message whose lengths are not those of its frame.
    #[error("a message whose length is not that of its frame")]
    MessageLength,
    /// A message of a kind that is not known, or has no place on this link.
    #[error("a message of kind {0}, which has no place on this link")]
    MessageKind(u8),
    /// A message whose content cannot be.
    #[error("a message of kind {0} with an invalid content")]
    Message(u8),
    /// A job whose ID carries another slot than its queue has.
    #[error("job {0}, whose queue is not of the slot in its ID")]
    Slot(JobId),
}

/// The kinds of frame, by their numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the head of the file")]
pub enum FrameKind {
    Batch = 1,
    Ping = 2,
    Pong = 3,
}

/// A frame that came, its checksum checked.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the head of the file")]
pub enum Frame {
    /// Messages, for `codec` to decode.
    Batch(Bytes),
    Ping(u64),
    Pong(u64),
}

/// A ping or pong, ready to be sent.
pub fn sign(kind: FrameKind, number: u64) -> Bytes {
    let mut frame = BytesMut::with_capacity(HEADER_BYTES + SIGN_BYTES);
    frame.put_bytes(0, HEADER_BYTES);
    frame.put_u64_le(number);
    write_header(&mut frame, kind, &[]);
    frame.freeze()
}

/// Writes the header of a frame into its place at the beginning of `frame`; `rest` is what stands in a chunk of its own behind it.
pub(super) fn write_header(frame: &mut [u8], kind: FrameKind, rest: &[u8]) {
    let bytes = frame.len() - HEADER_BYTES + rest.len();
    let length = u32::try_from(bytes)
        .ok()
        .filter(|_| bytes <= BUS_FRAME_BYTES)
        .expect("what a frame holds is bounded by what a request may be");
    frame[..3].copy_from_slice(&MAGIC);
    frame[3] = VERSION;
    frame[4..8].copy_from_slice(&length.to_le_bytes());
    frame[12] = kind as u8;
    frame[13..16].fill(0);
    let sum = crc32c::crc32c_append(sum(frame), rest);
    frame[8..12].copy_from_slice(&sum.to_le_bytes());
}

/// The checksum of a frame, as far as it is there.
fn sum(frame: &[u8]) -> u32 {
    let head = crc32c::crc32c(&frame[..8]);
    crc32c::crc32c_append(head, &frame[12..])
}

/// Puts frames together from what a socket gives.
#[derive(Debug)]
pub struct Assembler {
    /// Bytes of a batch at the most; none is taken when it is 0.
    batch_bytes: usize,
    /// What came of the frame, header included.
    frame: Vec<u8>,
}

impl Assembler {
    /// For a link whose batches have at most so many bytes; with 0 only pongs are taken, else no pongs.
    pub fn new(batch_bytes: usize) -> Self {
        Self {
            batch_bytes,
            frame: Vec::new(),
        }
    }

    /// Takes from the front of `input` what belongs to the present frame; the frame, when it is whole. After an error nothing more
    /// may be given.
    pub fn take(&mut self, input: &mut &[u8]) -> Result<Option<Frame>, BadFrame> {
        if self.frame.len() < HEADER_BYTES {
            self.fill(HEADER_BYTES, input);
            if self.frame.len() < HEADER_BYTES {
                return Ok(None);
            }
            self.look_at_header()?;
        }
        let length = HEADER_BYTES + self.length();
        self.fill(length, input);
        if self.frame.len() < length {
            return Ok(None);
        }
        self.finish().map(Some)
    }

    /// Bytes that the present frame takes here.
    pub fn held_bytes(&self) -> usize {
        self.frame.capacity()
    }

    fn fill(&mut self, up_to: usize, input: &mut &[u8]) {
        let taken = (up_to - self.frame.len()).min(input.len());
        let (now, later) = input.split_at(taken);
        *input = later;
        let wanted = self.frame.len() + taken;
        if wanted > self.frame.capacity() {
            // Twice what is there, and never more than the frame has: so a body that is kept wastes no room.
            let room = (2 * wanted).max(FIRST_BYTES).min(up_to);
            self.frame.reserve_exact(room - self.frame.len());
        }
        self.frame.extend_from_slice(now);
    }

    fn length(&self) -> usize {
        u32::from_le_bytes(self.frame[4..8].try_into().expect("4 bytes")) as usize
    }

    /// Refuses a frame before anything of it is kept.
    fn look_at_header(&self) -> Result<(), BadFrame> {
        let (header, length) = (&self.frame, self.length());
        if header[..3] != MAGIC {
            return Err(BadFrame::Magic);
        }
        if header[3] != VERSION {
            return Err(BadFrame::Version(header[3]));
        }
        let kind = header[12];
        let most = match kind {
            1 if self.batch_bytes > 0 => self.batch_bytes,
            2 if self.batch_bytes > 0 => SIGN_BYTES,
            3 if self.batch_bytes == 0 => SIGN_BYTES,
            _ => return Err(BadFrame::Kind(kind)),
        };
        if length > most || header[13..16] != [0; 3] {
            return Err(BadFrame::Length(length as u32));
        }
        Ok(())
    }

    fn finish(&mut self) -> Result<Frame, BadFrame> {
        let frame = Bytes::from(std::mem::take(&mut self.frame));
        if sum(&frame).to_le_bytes() != frame[8..12] {
            return Err(BadFrame::Checksum);
        }
        let content = frame.slice(HEADER_BYTES..);
        let number = || {
            let bytes = content[..].try_into();
            bytes
                .map(u64::from_le_bytes)
                .map_err(|_| BadFrame::Length(content.len() as u32))
        };
        Ok(match frame[12] {
            1 => Frame::Batch(content),
            2 => Frame::Ping(number()?),
            _ => Frame::Pong(number()?),
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;

    fn batch(content: &[u8]) -> Vec<u8> {
        let mut frame = vec![0; HEADER_BYTES];
        frame.extend_from_slice(content);
        write_header(&mut frame, FrameKind::Batch, &[]);
        frame
    }

    /// All frames in pieces of a size, and what was left of the last one.
    fn take_all(assembler: &mut Assembler, bytes: &[u8], piece: usize) -> Result<Vec<Frame>, BadFrame> {
        let mut frames = Vec::new();
        for mut piece in bytes.chunks(piece) {
            while !piece.is_empty() {
                frames.extend(assembler.take(&mut piece)?);
            }
        }
        Ok(frames)
    }

    #[test]
    fn signs_of_life_go_where_they_belong() {
        let (ping, pong) = (sign(FrameKind::Ping, 7), sign(FrameKind::Pong, 7));
        let (mut receiver, mut dialer) = (Assembler::new(100), Assembler::new(0));
        assert_eq!(take_all(&mut receiver, &ping, 5), Ok(vec![Frame::Ping(7)]));
        assert_eq!(take_all(&mut dialer, &pong, 5), Ok(vec![Frame::Pong(7)]));
        assert_eq!(take_all(&mut receiver, &pong, 99), Err(BadFrame::Kind(3)));
        for refused in [&ping[..], &batch(b"x")] {
            let refused = take_all(&mut Assembler::new(0), refused, 99);
            assert!(matches!(refused, Err(BadFrame::Kind(_))), "{refused:?}");
        }
    }

    #[test]
    fn what_is_wrong_is_named() {
        let refused = |bytes: &[u8]| take_all(&mut Assembler::new(100), bytes, 1000).unwrap_err();
        assert_eq!(refused(b"GET / HTTP/1.1\r\n"), BadFrame::Magic);
        let mut frame = batch(b"content");
        frame[3] = VERSION + 1;
        assert_eq!(refused(&frame), BadFrame::Version(VERSION + 1));
        assert_eq!(refused(&batch(&[0; 101])), BadFrame::Length(101));
        let mut frame = batch(b"content");
        frame[20] ^= 1;
        assert_eq!(refused(&frame), BadFrame::Checksum);
        let mut short = vec![0; HEADER_BYTES + 3];
        write_header(&mut short, FrameKind::Ping, &[]);
        assert_eq!(refused(&short), BadFrame::Length(3));
    }

    #[test]
    fn a_long_length_alone_takes_no_room() {
        let mut frame = batch(&[0; 100]);
        frame[4..8].copy_from_slice(&(BUS_FRAME_BYTES as u32).to_le_bytes());
        let mut assembler = Assembler::new(BUS_FRAME_BYTES);
        assert_eq!(take_all(&mut assembler, &frame, 1000), Ok(vec![]));
        assert!(assembler.held_bytes() <= 2 * FIRST_BYTES, "{assembler:?}");
    }

    #[test]
    fn a_long_frame_takes_no_more_room_than_it_has_bytes() {
        let content = vec![7; 300_001];
        let frames = take_all(&mut Assembler::new(300_001), &batch(&content), 65_536).unwrap();
        let [Frame::Batch(kept)] = &frames[..] else {
            panic!("one frame")
        };
        assert_eq!(kept[..], content);
        let kept = kept.clone();
        drop(frames);
        let room = kept.try_into_mut().expect("nobody else has it").capacity();
        assert!(room <= 300_001 + HEADER_BYTES, "{room}");
    }

    proptest! {
        #[test]
        fn frames_come_back_whatever_the_pieces(
            contents in vec(vec(any::<u8>(), 0..300), 0..6),
            piece in 1usize..400,
        ) {
            let sent: Vec<u8> = contents.iter().flat_map(|content| batch(content)).collect();
            let expected: Vec<_> = contents.into_iter().map(|content| Frame::Batch(content.into())).collect();
            let taken = take_all(&mut Assembler::new(300), &sent, piece);
            prop_assert_eq!(taken, Ok(expected));
        }

        #[test]
        fn arbitrary_bytes_give_an_error_or_nothing(bytes in vec(any::<u8>(), 0..200), piece in 1usize..50) {
            let _ = take_all(&mut Assembler::new(100), &bytes, piece);
        }

        #[test]
        fn a_changed_frame_is_never_taken(content in vec(any::<u8>(), 0..60), at: prop::sample::Index, bit in 0u8..8) {
            let mut frame = batch(&content);
            let at = at.index(frame.len());
            frame[at] ^= 1 << bit;
            let taken = take_all(&mut Assembler::new(100), &frame, 1000);
            prop_assert!(!matches!(&taken, Ok(frames) if !frames.is_empty()), "{taken:?}");
        }
    }
}
