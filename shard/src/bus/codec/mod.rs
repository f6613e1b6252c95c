//! Batches of messages as frames, and back.
//!
//! What must hold: one message always fits, whatever its body; a large body is sent from where it is, and kept where it came; decoding
//! bounds every length by what is there, checks what a wrong peer could harm us with, gives errors that name what is wrong, and never
//! panics.
//!
//! Reading order: `payload` (the format) - `encode` - `decode`.

mod decode;
mod encode;
mod payload;
#[cfg(test)]
mod tests;
mod words;

pub use decode::Decoder;
pub use encode::{Encoder, OutFrame};

/// Bytes of a message before its fixed part.
const MESSAGE_HEADER_BYTES: usize = 12;
