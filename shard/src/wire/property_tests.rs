//! Properties of the parser and the encoder: cuts and pauses change nothing, redis-protocol agrees, hostile bytes
//! neither panic nor fill the memory nor cost more than linear time.
//!
//! `SHARDQ_TEST_SCALE` multiplies the number of hostile cases (1 unless set).

#![allow(clippy::disallowed_types, reason = "proptest's macros use Arc")]

use proptest::collection::vec;
use proptest::prelude::*;
use redis_protocol::{resp2, resp3};

use super::*;

type Requests = Vec<Vec<Vec<u8>>>;

/// What a session does after a request: it decides by the next choice, until there are no more.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Choice {
    Run,
    /// Runs the request, and is blocked until the next piece of input.
    Block,
    /// Cannot start the request before the next piece of input.
    PutBack,
}

fn choices() -> impl Strategy<Value = Vec<Choice>> {
    vec(
        prop_oneof![Just(Choice::Run), Just(Choice::Block), Just(Choice::PutBack)],
        0..12,
    )
}

/// A session that reads its input in pieces; checks the memory that is held after each.
#[derive(Default)]
struct Reader {
    parser: Parser,
    choices: std::vec::IntoIter<Choice>,
    requests: Requests,
    received_bytes: usize,
}

impl Reader {
    fn read(&mut self, piece: &[u8]) -> Result<(), ProtocolError> {
        self.received_bytes += piece.len();
        let mut input = piece;
        // Every other round it is still blocked when input comes.
        if self.choices.len() % 2 == 1 && self.choices.next() == Some(Choice::Block) {
            self.parser.stash(input);
            return Ok(());
        }
        loop {
            let before = input;
            let Some(args) = self.parser.next(&mut input, &RequestLimits::FULL)? else {
                break;
            };
            let request: Vec<Vec<u8>> = args.iter().map(<[u8]>::to_vec).collect();
            for (at, argument) in request.iter().enumerate() {
                assert_eq!(args.blob(at).as_slice(), argument);
            }
            match self.choices.next() {
                Some(Choice::PutBack) => {
                    self.parser.put_back(before);
                    break;
                }
                Some(Choice::Block) => {
                    self.requests.push(request);
                    self.parser.stash(input);
                    break;
                }
                _ => self.requests.push(request),
            }
        }
        let held_bytes = self.parser.held_bytes();
        assert!(
            held_bytes <= 6 * self.received_bytes + 2048,
            "{held_bytes} of {}",
            self.received_bytes
        );
        Ok(())
    }
}

fn read_whole(input: &[u8]) -> (Requests, Option<ProtocolError>) {
    read_cut(input, &[], Vec::new())
}

/// Reads `input` in pieces of the given sizes, in turn.
fn read_cut(input: &[u8], pieces: &[usize], choices: Vec<Choice>) -> (Requests, Option<ProtocolError>) {
    let mut reader = Reader {
        choices: choices.into_iter(),
        ..Reader::default()
    };
    let mut sizes = pieces.iter().cycle();
    let mut rest = input;
    let result = loop {
        let (piece, later) = rest.split_at(sizes.next().copied().unwrap_or(usize::MAX).min(rest.len()));
        rest = later;
        if let Err(error) = reader.read(piece) {
            break Some(error);
        }
        if rest.is_empty() && reader.choices.len() == 0 {
            break reader.read(b"").err();
        }
        if rest.is_empty() {
            // Waits out the remaining blocks.
            reader.choices.next();
        }
    };
    (reader.requests, result)
}

fn argument() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![
        8 => vec(any::<u8>(), 0..60),
        2 => vec(prop_oneof![Just(b'\r'), Just(b'\n'), Just(b'*'), Just(b'$'), Just(b'1')], 0..20),
        1 => (0..3 * LARGE_ARGUMENT_BYTES, any::<u8>())
            .prop_map(|(bytes, start)| (0..bytes).map(|at| (at / 7) as u8 ^ start).collect()),
    ]
}

fn commands() -> impl Strategy<Value = Requests> {
    vec(vec(argument(), 1..8), 0..6)
}

fn encoded(command: &[Vec<u8>]) -> Vec<u8> {
    let mut request = Vec::new();
    encode_request(command, &mut request);
    request
}

/// An inline line that reads as this command.
fn inline(command: &[Vec<u8>]) -> Vec<u8> {
    let quoted = command.iter().map(|argument| {
        let hex: String = argument.iter().map(|byte| format!("\\x{byte:02x}")).collect();
        format!("\"{hex}\"")
    });
    let mut line = quoted.collect::<Vec<_>>().join(" ").into_bytes();
    line.push(b'\n');
    line
}

fn piece_sizes() -> impl Strategy<Value = Vec<usize>> {
    vec(prop_oneof![1..4usize, 1..40usize, 1..20_000usize], 1..8)
}

/// Pieces of the grammar in any order: frames that are nearly right.
fn tokens() -> impl Strategy<Value = Vec<u8>> {
    let token = prop_oneof![
        4 => Just(b"\r\n".to_vec()),
        2 => prop_oneof![Just(b"*1\r\n".to_vec()), Just(b"*2\r\n".to_vec()), Just(b"*1048576\r\n".to_vec())],
        2 => prop_oneof![Just(b"$0\r\n\r\n".to_vec()), Just(b"$1\r\na\r\n".to_vec()), Just(b"$20000\r\n".to_vec())],
        2 => prop_oneof![Just(b"*0\r\n".to_vec()), Just(b"*-7\r\n".to_vec()), Just(b"\n".to_vec())],
        1 => prop_oneof![Just(b"\"".to_vec()), Just(b"'".to_vec()), Just(b"\\x4".to_vec()), Just(b" ".to_vec())],
        1 => prop_oneof![Just(b"*".to_vec()), Just(b"$".to_vec()), Just(b"-".to_vec()), Just(b"\r".to_vec())],
        1 => vec(any::<u8>(), 1..30),
        1 => (1..70_000usize, any::<u8>()).prop_map(|(bytes, byte)| vec![byte; bytes]),
    ];
    vec(token, 0..24).prop_map(|tokens| tokens.concat())
}

/// Right frames with a few bytes changed.
fn mutated() -> impl Strategy<Value = Vec<u8>> {
    let changes = vec((any::<prop::sample::Index>(), any::<u8>()), 1..4);
    (commands(), changes).prop_map(|(commands, changes)| {
        let mut input: Vec<u8> = commands.iter().flat_map(|command| encoded(command)).collect();
        for (at, byte) in changes {
            if !input.is_empty() {
                let at = at.index(input.len());
                input[at] = byte;
            }
        }
        input
    })
}

#[allow(
    clippy::disallowed_methods,
    reason = "the size of a test run is its caller's choice"
)]
fn hostile_cases() -> u32 {
    let scale = std::env::var("SHARDQ_TEST_SCALE")
        .ok()
        .and_then(|scale| scale.parse().ok());
    scale.unwrap_or(1u32).saturating_mul(2000)
}

proptest! {
    #[test]
    fn cuts_and_pauses_change_nothing(
        commands in commands(), pieces in piece_sizes(), choices in choices(), inlines: u8,
    ) {
        let mut input = Vec::new();
        for (number, command) in commands.iter().enumerate() {
            let is_inline = inlines >> number & 1 == 1 && command.concat().len() < 10_000;
            input.extend(if is_inline { inline(command) } else { encoded(command) });
        }
        prop_assert_eq!(read_whole(&input), (commands.clone(), None));
        prop_assert_eq!(read_cut(&input, &pieces, choices), (commands, None));
    }

    #[test]
    fn redis_protocol_reads_the_same_requests(commands in commands(), pieces in piece_sizes()) {
        let input: Vec<u8> = commands.iter().flat_map(|command| encoded(command)).collect();
        let mut decoded = Vec::new();
        let mut rest = &input[..];
        while let Some((frame, bytes)) = resp2::decode::decode(rest).unwrap() {
            let resp2::types::OwnedFrame::Array(items) = frame else { panic!("not an array") };
            let argument = |item| match item {
                resp2::types::OwnedFrame::BulkString(argument) => argument,
                other => panic!("not a bulk string: {other:?}"),
            };
            decoded.push(items.into_iter().map(argument).collect::<Vec<_>>());
            rest = &rest[bytes..];
        }
        prop_assert_eq!(read_cut(&input, &pieces, Vec::new()), (decoded, None));
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(hostile_cases()))]

    #[test]
    fn hostile_bytes_are_read_alike_however_cut(
        input in prop_oneof![tokens(), mutated(), vec(any::<u8>(), 0..300)],
        pieces in piece_sizes(),
        choices in choices(),
    ) {
        let (requests, error) = read_whole(&input);
        prop_assert!(requests.len() <= input.len());
        prop_assert_eq!(read_cut(&input, &pieces, choices), (requests, error));
    }
}

/// A reply, as the encoder is told to write it.
#[derive(Clone, Debug)]
enum Reply {
    Simple(Vec<u8>),
    Error(String),
    Integer(i64),
    Bulk(Vec<u8>),
    Null,
    NullArray,
    Array(Vec<Reply>),
    Map(Vec<(Vec<u8>, Reply)>),
}

fn replies() -> impl Strategy<Value = Reply> {
    let flat = prop_oneof![
        vec(any::<u8>(), 0..20).prop_map(Reply::Simple),
        ".{0,20}".prop_map(Reply::Error),
        any::<i64>().prop_map(Reply::Integer),
        argument().prop_map(Reply::Bulk),
        Just(Reply::Null),
        Just(Reply::NullArray),
    ];
    flat.prop_recursive(3, 20, 5, |inner| {
        let entries = prop::collection::hash_map(vec(any::<u8>(), 0..5), inner.clone(), 0..4);
        prop_oneof![
            vec(inner, 0..5).prop_map(Reply::Array),
            entries.prop_map(|entries| Reply::Map(entries.into_iter().collect())),
        ]
    })
}

fn write(to: &mut Encoder<'_>, reply: &Reply) {
    match reply {
        Reply::Simple(text) => to.simple(text),
        Reply::Error(text) => to.error(text),
        Reply::Integer(number) => to.integer(*number),
        Reply::Bulk(text) => to.blob(&Blob::copy_from(text)),
        Reply::Null => to.null(),
        Reply::NullArray => to.null_array(),
        Reply::Array(items) => {
            to.array(items.len());
            items.iter().for_each(|item| write(to, item));
        }
        Reply::Map(entries) => {
            to.map(entries.len());
            for (key, value) in entries {
                to.bulk(key);
                write(to, value);
            }
        }
    }
}

fn one_line(text: &[u8]) -> Vec<u8> {
    text.iter()
        .map(|byte| {
            if matches!(byte, b'\r' | b'\n') {
                b' '
            } else {
                *byte
            }
        })
        .collect()
}

fn as_resp2(reply: &Reply) -> resp2::types::OwnedFrame {
    use resp2::types::OwnedFrame as Frame;
    match reply {
        Reply::Simple(text) => Frame::SimpleString(one_line(text)),
        Reply::Error(text) => Frame::Error(String::from_utf8(one_line(text.as_bytes())).unwrap()),
        Reply::Integer(number) => Frame::Integer(*number),
        Reply::Bulk(text) => Frame::BulkString(text.clone()),
        Reply::Null | Reply::NullArray => Frame::Null,
        Reply::Array(items) => Frame::Array(items.iter().map(as_resp2).collect()),
        Reply::Map(entries) => {
            let pair = |(key, value): &(Vec<u8>, Reply)| [Frame::BulkString(key.clone()), as_resp2(value)];
            Frame::Array(entries.iter().flat_map(pair).collect())
        }
    }
}

fn as_resp3(reply: &Reply) -> resp3::types::OwnedFrame {
    use resp3::types::OwnedFrame as Frame;
    let blob = |text: &Vec<u8>| Frame::BlobString {
        data: text.clone(),
        attributes: None,
    };
    match reply {
        Reply::Simple(text) => Frame::SimpleString {
            data: one_line(text),
            attributes: None,
        },
        Reply::Error(text) => {
            let data = String::from_utf8(one_line(text.as_bytes())).unwrap();
            Frame::SimpleError {
                data,
                attributes: None,
            }
        }
        Reply::Integer(number) => Frame::Number {
            data: *number,
            attributes: None,
        },
        Reply::Bulk(text) => blob(text),
        Reply::Null | Reply::NullArray => Frame::Null,
        Reply::Array(items) => Frame::Array {
            data: items.iter().map(as_resp3).collect(),
            attributes: None,
        },
        Reply::Map(entries) => {
            let pair = |(key, value): &(Vec<u8>, Reply)| (blob(key), as_resp3(value));
            Frame::Map {
                data: entries.iter().map(pair).collect(),
                attributes: None,
            }
        }
    }
}

fn encode(reply: &Reply, resp3: bool) -> Vec<u8> {
    let mut output = Output::new();
    write(&mut Encoder::new(&mut output, resp3), reply);
    std::iter::from_fn(|| output.pop_chunk()).flatten().collect()
}

proptest! {
    #[test]
    fn redis_protocol_reads_our_replies(reply in replies()) {
        let bytes = encode(&reply, false);
        let decoded = resp2::decode::decode(&bytes).unwrap();
        prop_assert_eq!(decoded, Some((as_resp2(&reply), bytes.len())));
        let bytes = encode(&reply, true);
        let decoded = resp3::decode::complete::decode(&bytes).unwrap();
        prop_assert_eq!(decoded, Some((as_resp3(&reply), bytes.len())));
    }
}

/// Any work per byte that grew with the bytes before it would take hours here.
#[test]
#[allow(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "the test measures time"
)]
fn single_bytes_cost_linear_time() {
    let megabyte = 1 << 20;
    let inputs = [
        encoded(&[b"ADDJOB".to_vec(), vec![b'x'; 4 * megabyte]]),
        encoded(&vec![b"a".to_vec(); megabyte / 2]),
        encoded(&vec![vec![b'x'; LARGE_ARGUMENT_BYTES - 1]; 256]),
        encoded(&[b"PING".to_vec()]).repeat(megabyte / 8),
        [&vec![b'x'; MAX_LINE_BYTES][..], b"\n"].concat().repeat(64),
        b"*0\r\n\r\n".repeat(megabyte / 2),
    ];
    let start = std::time::Instant::now();
    for input in &inputs {
        let (requests, error) = read_whole(input);
        assert_eq!(error, None);
        // One byte at a time, at once, and all of it through the backlog.
        assert!(read_cut(input, &[1], Vec::new()) == (requests.clone(), None));
        let mut reader = Reader::default();
        input.iter().for_each(|byte| reader.parser.stash(&[*byte]));
        reader.received_bytes = input.len();
        assert_eq!(reader.read(b""), Ok(()));
        assert!(reader.requests == requests);
    }
    assert!(start.elapsed().as_secs() < 60, "{:?}", start.elapsed());
}
