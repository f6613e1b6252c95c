//! Replies, written straight into a session's output.
//!
//! RESP2 and RESP3 differ here in nulls and maps only; who uses a map decides for whom (`CONFIG GET` and the
//! handshake, but not SHOW, see the notes on clients). What must hold: a line (simple string or error) is one line
//! whatever a client put into it.

use super::blob::INLINE_BYTES;
use super::number::Decimal;
use super::{Blob, Output};
use crate::id::{JOB_ID_TEXT_LEN, JobId};

/// Before the text of an ID.
const ID_HEAD: &[u8; 5] = b"$40\r\n";
const _: () = assert!(JOB_ID_TEXT_LEN == 40, "the head says how long an ID is");

/// Writes the replies of one session.
pub struct Encoder<'a> {
    out: &'a mut Output,
    resp3: bool,
}

impl<'a> Encoder<'a> {
    /// An encoder for a session that speaks RESP3, or else RESP2.
    pub fn new(out: &'a mut Output, resp3: bool) -> Self {
        Self { out, resp3 }
    }

    /// Whether the session speaks RESP3.
    pub fn is_resp3(&self) -> bool {
        self.resp3
    }

    /// `+text`.
    pub fn simple(&mut self, text: impl AsRef<[u8]>) {
        self.line(b"+", text.as_ref());
    }

    /// `+id`: in one piece, since no ID can hold the end of a line.
    pub fn simple_id(&mut self, id: JobId) {
        const END: usize = 1 + JOB_ID_TEXT_LEN;
        let mut line = [0; END + 2];
        line[0] = b'+';
        line[1..END].copy_from_slice(&id.text());
        line[END..].copy_from_slice(b"\r\n");
        self.out.append(&line);
    }

    /// `-text`, where the text starts with the error's code.
    pub fn error(&mut self, text: impl AsRef<[u8]>) {
        self.line(b"-", text.as_ref());
    }

    /// `:number`.
    pub fn integer(&mut self, number: i64) {
        match u64::try_from(number) {
            Ok(number) => self.header(b':', number),
            Err(_) => self.long_header(b':', Decimal::from(number)),
        }
    }

    /// A bulk string, copied.
    pub fn bulk(&mut self, text: impl AsRef<[u8]>) {
        let text = text.as_ref();
        self.header(b'$', text.len() as u64);
        self.out.append(text);
        self.out.append(b"\r\n");
    }

    /// A bulk string with an ID.
    pub fn bulk_id(&mut self, id: JobId) {
        const END: usize = ID_HEAD.len() + JOB_ID_TEXT_LEN;
        let mut text = [0; END + 2];
        text[..ID_HEAD.len()].copy_from_slice(ID_HEAD);
        text[ID_HEAD.len()..END].copy_from_slice(&id.text());
        text[END..].copy_from_slice(b"\r\n");
        self.out.append(&text);
    }

    /// A bulk string, shared when it is large.
    pub fn blob(&mut self, blob: &Blob) {
        let Some(shared) = blob.shared() else {
            return self.bulk(blob);
        };
        self.header(b'$', shared.len() as u64);
        self.out.append_shared(shared);
        self.out.append(b"\r\n");
    }

    /// A job: the head of an array of so many items (less than ten), of which these are the first three. In one piece when both texts are
    /// short.
    pub fn job(&mut self, items: u8, queue: &Blob, id: JobId, body: &Blob) {
        let Some(short_queue) = queue.short() else {
            self.array(usize::from(items));
            self.blob(queue);
            self.bulk_id(id);
            return self.blob(body);
        };
        let mut piece = Piece::new();
        piece.put(&[b'*', b'0' + items, b'\r', b'\n']);
        piece.bulk(short_queue);
        piece.put(ID_HEAD);
        piece.put(&id.text());
        piece.put(b"\r\n");
        match body.short() {
            Some(short_body) => {
                piece.bulk(short_body);
                self.out.append(piece.bytes());
            }
            None => {
                self.out.append(piece.bytes());
                self.blob(body);
            }
        }
    }

    /// No value where a bulk string could be.
    pub fn null(&mut self) {
        self.out.append(if self.resp3 {
            b"_\r\n".as_slice()
        } else {
            b"$-1\r\n"
        });
    }

    /// No value where an array could be.
    pub fn null_array(&mut self) {
        self.out.append(if self.resp3 {
            b"_\r\n".as_slice()
        } else {
            b"*-1\r\n"
        });
    }

    /// The head of an array; its items follow.
    pub fn array(&mut self, items: usize) {
        self.header(b'*', items as u64);
    }

    /// The head of a map, in RESP2 of a flat array; key and value of each entry follow.
    pub fn map(&mut self, entries: usize) {
        if self.resp3 {
            self.header(b'%', entries as u64);
        } else {
            self.array(entries * 2);
        }
    }

    /// Nearly all heads have one or two digits.
    fn header(&mut self, mark: u8, number: u64) {
        let digit = |number| b'0' + (number % 10) as u8;
        match number {
            0..10 => self.out.append(&[mark, digit(number), b'\r', b'\n']),
            10..100 => self
                .out
                .append(&[mark, digit(number / 10), digit(number), b'\r', b'\n']),
            _ => self.long_header(mark, Decimal::from(number)),
        }
    }

    fn long_header(&mut self, mark: u8, number: Decimal) {
        let digits = number.as_bytes();
        let mut line = [0; 24];
        line[0] = mark;
        line[1..][..digits.len()].copy_from_slice(digits);
        line[1 + digits.len()..][..2].copy_from_slice(b"\r\n");
        self.out.append(&line[..digits.len() + 3]);
    }

    fn line(&mut self, mark: &[u8], text: &[u8]) {
        self.out.append(mark);
        for (at, piece) in text.split(|byte| matches!(byte, b'\r' | b'\n')).enumerate() {
            if at > 0 {
                self.out.append(b" ");
            }
            self.out.append(piece);
        }
        self.out.append(b"\r\n");
    }
}

/// A part of a reply that is put together before it goes to the output. Everything in it is copied at a fixed size, which takes a fraction of
/// a copy of any size.
struct Piece {
    bytes: [u8; Self::ROOM],
    len: usize,
}

impl Piece {
    /// Of a job: head of the array, two texts with heads of up to two digits, an ID.
    const ROOM: usize = 4 + 2 * (5 + INLINE_BYTES + 2) + ID_HEAD.len() + JOB_ID_TEXT_LEN + 2;

    fn new() -> Self {
        Self {
            bytes: [0; Self::ROOM],
            len: 0,
        }
    }

    #[inline(always)]
    fn put<const N: usize>(&mut self, part: &[u8; N]) {
        self.bytes[self.len..][..N].copy_from_slice(part);
        self.len += N;
    }

    /// A bulk string: the first so many of the bytes.
    #[inline(always)]
    fn bulk(&mut self, (text, bytes): (&[u8; INLINE_BYTES], usize)) {
        let (tens, units) = (b'0' + (bytes / 10) as u8, b'0' + (bytes % 10) as u8);
        if bytes < 10 {
            self.put(&[b'$', units, b'\r', b'\n']);
        } else {
            self.put(&[b'$', tens, units, b'\r', b'\n']);
        }
        // What is behind the bytes is overwritten by what follows.
        self.put(text);
        self.len -= INLINE_BYTES - bytes;
        self.put(b"\r\n");
    }

    fn bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

/// Writes a request in the form that clients send, as an array of bulk strings.
pub fn encode_request<T: AsRef<[u8]>>(arguments: &[T], request: &mut Vec<u8>) {
    let head = |request: &mut Vec<u8>, mark, number: usize| {
        request.push(mark);
        request.extend_from_slice(Decimal::from(number).as_bytes());
        request.extend_from_slice(b"\r\n");
    };
    head(request, b'*', arguments.len());
    for argument in arguments {
        let argument = argument.as_ref();
        head(request, b'$', argument.len());
        request.extend_from_slice(argument);
        request.extend_from_slice(b"\r\n");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn encode(resp3: bool, write: impl Fn(&mut Encoder<'_>)) -> Vec<u8> {
        let mut output = Output::new();
        write(&mut Encoder::new(&mut output, resp3));
        std::iter::from_fn(|| output.pop_chunk()).flatten().collect()
    }

    #[test]
    fn replies_byte_for_byte() {
        for resp3 in [false, true] {
            let reply = |write: &dyn Fn(&mut Encoder<'_>)| encode(resp3, write);
            assert_eq!(reply(&|to| to.simple("OK")), b"+OK\r\n");
            assert_eq!(reply(&|to| to.error(b"ERR a\r\nb")), b"-ERR a  b\r\n");
            assert_eq!(reply(&|to| to.error("")), b"-\r\n");
            assert_eq!(reply(&|to| to.integer(i64::MIN)), b":-9223372036854775808\r\n");
            for (number, text) in [
                (0, &b":0\r\n"[..]),
                (9, b":9\r\n"),
                (10, b":10\r\n"),
                (99, b":99\r\n"),
            ] {
                assert_eq!(reply(&|to| to.integer(number)), text);
            }
            assert_eq!(reply(&|to| to.integer(100)), b":100\r\n");
            assert_eq!(reply(&|to| to.integer(-1)), b":-1\r\n");
            assert_eq!(reply(&|to| to.bulk(b"a\r\nb")), b"$4\r\na\r\nb\r\n");
            assert_eq!(reply(&|to| to.bulk("")), b"$0\r\n\r\n");
            assert_eq!(reply(&|to| to.blob(&Blob::from("abc"))), b"$3\r\nabc\r\n");
            assert_eq!(reply(&|to| to.array(12)), b"*12\r\n");
        }
    }

    #[test]
    fn ids_are_written_as_their_texts_are() {
        let id = JobId::from_bytes(std::array::from_fn(|at| at as u8 * 11));
        let as_text = |to: &mut Encoder<'_>| {
            to.simple(id.text());
            to.bulk(id.text());
        };
        let as_id = |to: &mut Encoder<'_>| {
            to.simple_id(id);
            to.bulk_id(id);
        };
        assert_eq!(encode(false, as_id), encode(false, as_text));
    }

    #[test]
    fn jobs_are_written_as_their_parts_are() {
        let id = JobId::from_bytes([0x5a; 24]);
        for (queue_bytes, body_bytes) in [(0, 0), (9, 10), (38, 38), (38, 39), (39, 1), (99, 5000)] {
            let queue = Blob::copy_from(&vec![b'q'; queue_bytes]);
            let body = Blob::copy_from(&vec![b'b'; body_bytes]);
            let in_parts = |to: &mut Encoder<'_>| {
                to.array(3);
                to.bulk(&queue);
                to.bulk(id.text());
                to.bulk(&body);
            };
            let written = encode(false, |to| to.job(3, &queue, id, &body));
            assert_eq!(written, encode(false, in_parts), "{queue_bytes} {body_bytes}");
        }
    }

    #[test]
    fn nulls_and_maps_differ_between_versions() {
        let all = |to: &mut Encoder<'_>| {
            to.null();
            to.null_array();
            to.map(2);
        };
        assert_eq!(encode(false, all), b"$-1\r\n*-1\r\n*4\r\n");
        assert_eq!(encode(true, all), b"_\r\n_\r\n%2\r\n");
    }

    #[test]
    fn large_blobs_are_shared() {
        let body = Blob::copy_from(&[b'x'; 5000]);
        let mut output = Output::new();
        Encoder::new(&mut output, false).blob(&body);
        assert_eq!(output.pop_chunk().unwrap(), b"$5000\r\n".as_slice());
        assert_eq!(output.pop_chunk().unwrap().as_ptr(), body.as_ptr());
        assert_eq!(output.pop_chunk().unwrap(), b"\r\n".as_slice());
    }

    #[test]
    fn requests_byte_for_byte() {
        let mut request = Vec::new();
        encode_request(&["GETJOB", "", "q"], &mut request);
        assert_eq!(request, b"*3\r\n$6\r\nGETJOB\r\n$0\r\n\r\n$1\r\nq\r\n");
    }
}
