//! What a session has to send: replies in order, small ones gathered, large bodies shared.
//!
//! The encoder writes to the tail; a large body closes the tail and is queued as it is. The server takes
//! chunks from the front. Positions count all bytes ever appended, so that a session can say up to where
//! its reply must have left. An output that was taken whole holds no memory.

use std::collections::VecDeque;

use bytes::Bytes;

use super::SHARED_REPLY_BYTES;

/// A tail of this size is closed, so that it never moves as a whole when it grows.
const TAIL_BYTES: usize = 16 << 10;
/// A new tail's least size: most sessions have one short reply at a time.
const FIRST_TAIL_BYTES: usize = 128;

/// The output queue of one session.
#[derive(Default)]
pub struct Output {
    chunks: VecDeque<Bytes>,
    chunk_bytes: usize,
    tail: Vec<u8>,
    /// How long the next tail will be, about: as the last ones.
    expected_bytes: usize,
    produced_bytes: u64,
}

impl Output {
    /// An empty queue.
    pub fn new() -> Self {
        Self::default()
    }

    /// Bytes that wait to be taken.
    pub fn queued_bytes(&self) -> usize {
        self.chunk_bytes + self.tail.len()
    }

    /// Whether nothing waits to be taken.
    pub fn is_empty(&self) -> bool {
        self.queued_bytes() == 0
    }

    /// All bytes ever appended: the position in the stream behind the last one.
    pub fn produced_bytes(&self) -> u64 {
        self.produced_bytes
    }

    /// Appends a copy.
    #[inline]
    pub fn append(&mut self, part: &[u8]) {
        self.produced_bytes += part.len() as u64;
        // As a rule there is room.
        let end = self.tail.len() + part.len();
        if end <= self.tail.capacity().min(TAIL_BYTES) {
            self.tail.extend_from_slice(part);
        } else {
            self.append_in_pieces(part);
        }
    }

    fn append_in_pieces(&mut self, mut part: &[u8]) {
        loop {
            let room = TAIL_BYTES - self.tail.len();
            let (now, later) = part.split_at(part.len().min(room));
            if self.tail.capacity() == 0 {
                let expected = self.expected_bytes.max(FIRST_TAIL_BYTES);
                self.tail.reserve_exact(expected.max(now.len()));
            }
            self.tail.extend_from_slice(now);
            if later.is_empty() {
                return;
            }
            self.close_tail();
            part = later;
        }
    }

    /// Appends a body: shared when it is large, else copied.
    pub fn append_shared(&mut self, body: &Bytes) {
        if body.len() < SHARED_REPLY_BYTES {
            return self.append(body);
        }
        self.produced_bytes += body.len() as u64;
        self.close_tail();
        self.queue(body.clone());
    }

    /// Takes the first chunk.
    pub fn pop_chunk(&mut self) -> Option<Bytes> {
        let chunk = match self.chunks.pop_front() {
            Some(chunk) => {
                self.chunk_bytes -= chunk.len();
                chunk
            }
            None => self.take_tail()?,
        };
        self.release_if_empty();
        Some(chunk)
    }

    /// Takes chunks until `max_bytes` are reached, splitting the last one, and appends them to `chunks`. Gives
    /// the bytes taken.
    pub fn take_chunks(&mut self, chunks: &mut Vec<Bytes>, max_bytes: usize) -> usize {
        let mut taken = 0;
        while taken < max_bytes {
            let Some(mut chunk) = self.pop_chunk() else { break };
            if chunk.len() > max_bytes - taken {
                let rest = chunk.split_off(max_bytes - taken);
                self.chunk_bytes += rest.len();
                self.chunks.push_front(rest);
            }
            taken += chunk.len();
            chunks.push(chunk);
        }
        taken
    }

    fn close_tail(&mut self) {
        if let Some(closed) = self.take_tail() {
            self.queue(closed);
        }
    }

    fn take_tail(&mut self) -> Option<Bytes> {
        if self.tail.is_empty() {
            return None;
        }
        let closed = std::mem::take(&mut self.tail);
        // Short replies and long ones take turns: the longer ones count.
        self.expected_bytes = closed.len().max(self.expected_bytes / 2);
        Some(closed.into())
    }

    fn queue(&mut self, chunk: Bytes) {
        self.chunk_bytes += chunk.len();
        self.chunks.push_back(chunk);
    }

    /// The queue's own memory would stay with every connection that was ever busy.
    fn release_if_empty(&mut self) {
        if self.is_empty() {
            self.tail = Vec::new();
            self.chunks = VecDeque::new();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn take_all(output: &mut Output) -> Vec<u8> {
        std::iter::from_fn(|| output.pop_chunk()).flatten().collect()
    }

    #[test]
    fn large_bodies_are_shared_in_their_place() {
        let body = Bytes::from(vec![b'x'; SHARED_REPLY_BYTES]);
        let small = body.slice(1..);
        let mut output = Output::new();
        output.append(b"before");
        output.append_shared(&body);
        output.append_shared(&small);
        let mut chunks = Vec::new();
        assert_eq!(
            output.take_chunks(&mut chunks, usize::MAX),
            6 + 2 * SHARED_REPLY_BYTES - 1
        );
        assert_eq!(chunks[0], b"before".as_slice());
        assert_eq!(chunks[1].as_ptr(), body.as_ptr());
        assert_ne!(chunks[2].as_ptr(), small.as_ptr());
        assert_eq!(chunks[2], small);
    }

    #[test]
    fn an_output_that_was_taken_holds_nothing() {
        let mut output = Output::new();
        output.append(&[b'x'; 3 * TAIL_BYTES]);
        assert_eq!(output.queued_bytes(), 3 * TAIL_BYTES);
        assert_eq!(take_all(&mut output).len(), 3 * TAIL_BYTES);
        assert_eq!(output.tail.capacity() + output.chunks.capacity(), 0);
        assert_eq!(output.produced_bytes(), 3 * TAIL_BYTES as u64);
    }

    #[test]
    fn a_tail_is_closed_before_it_grows_long() {
        let mut output = Output::new();
        for _ in 0..TAIL_BYTES {
            output.append(b"four");
        }
        let mut chunks = Vec::new();
        output.take_chunks(&mut chunks, usize::MAX);
        assert_eq!(chunks.len(), 4);
    }

    proptest! {
        #[test]
        fn bytes_leave_in_order(
            steps in proptest::collection::vec((0..3u8, 0..3 * SHARED_REPLY_BYTES), 0..20),
        ) {
            let (mut output, mut appended, mut taken) = (Output::new(), Vec::new(), Vec::new());
            for (kind, bytes) in steps {
                let part: Vec<u8> = (0..bytes).map(|at| (at + appended.len()) as u8).collect();
                match kind {
                    0 => output.append(&part),
                    1 => output.append_shared(&part.clone().into()),
                    _ => {
                        let mut chunks = Vec::new();
                        let queued = output.queued_bytes();
                        prop_assert_eq!(output.take_chunks(&mut chunks, bytes), queued.min(bytes));
                        taken.extend(chunks.into_iter().flatten());
                    }
                }
                if kind < 2 {
                    appended.extend(part);
                }
                prop_assert_eq!(output.produced_bytes(), appended.len() as u64);
                prop_assert_eq!(output.queued_bytes(), appended.len() - taken.len());
            }
            taken.extend(take_all(&mut output));
            prop_assert_eq!(taken, appended);
        }
    }
}
