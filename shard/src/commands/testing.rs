//! What the tests of the commands share: requests made of words, and replies as text.

use crate::wire::{Args, Encoder, Output, Parser, RequestLimits, encode_request};

/// Calls `look` with the arguments of a request of these words.
pub fn with_args<T, W: AsRef<[u8]>>(words: &[W], look: impl FnOnce(Args<'_>) -> T) -> T {
    let mut request = Vec::new();
    encode_request(words, &mut request);
    let mut parser = Parser::new();
    let args = parser
        .next(&mut &request[..], &RequestLimits::FULL)
        .expect("a well-formed request");
    look(args.expect("a whole request"))
}

/// What `write` writes, in RESP2 or RESP3.
pub fn reply(resp3: bool, write: impl FnOnce(&mut Encoder<'_>)) -> String {
    let mut output = Output::new();
    write(&mut Encoder::new(&mut output, resp3));
    let mut chunks = Vec::new();
    output.take_chunks(&mut chunks, usize::MAX);
    String::from_utf8_lossy(&chunks.concat()).into_owned()
}
