//! The framing rules of section 1.1 of the reference, byte for byte, and what a session may ask of the parser.
//! Every rule is tried whole and one byte at a time.

use super::*;

type Requests = Vec<Vec<Vec<u8>>>;

fn read_pieces<'a>(
    pieces: impl Iterator<Item = &'a [u8]>,
    limits: &RequestLimits,
) -> (Requests, Option<ProtocolError>) {
    let (mut parser, mut requests) = (Parser::new(), Vec::new());
    for mut input in pieces {
        loop {
            match parser.next(&mut input, limits) {
                Ok(Some(args)) => requests.push(args.iter().map(<[u8]>::to_vec).collect()),
                Ok(None) => break,
                Err(error) => return (requests, Some(error)),
            }
        }
        assert!(input.is_empty());
    }
    (requests, None)
}

#[track_caller]
fn check(input: &[u8], limits: &RequestLimits, requests: &[&[&[u8]]], error: Option<ProtocolError>) {
    for piece_bytes in [input.len(), 1, 2, 3] {
        let (read, failed) = read_pieces(input.chunks(piece_bytes), limits);
        assert_eq!(read, requests, "in pieces of {piece_bytes}");
        assert_eq!(failed, error, "in pieces of {piece_bytes}");
    }
}

#[track_caller]
fn reads(input: &[u8], requests: &[&[&[u8]]]) {
    check(input, &RequestLimits::FULL, requests, None);
}

#[track_caller]
fn fails(input: &[u8], error: ProtocolError) {
    check(input, &RequestLimits::FULL, &[], Some(error));
}

#[test]
fn multibulk_and_inline_follow_one_another() {
    reads(
        b"*2\r\n$4\r\nECHO\r\n$3\r\na\r\n\r\nPING\r\nPING \"a b\"\n*1\r\n$0\r\n\r\nQLEN q\n",
        &[
            &[b"ECHO", b"a\r\n"],
            &[b"PING"],
            &[b"PING", b"a b"],
            &[b""],
            &[b"QLEN", b"q"],
        ],
    );
}

#[test]
fn empty_requests_are_skipped() {
    reads(
        b"*0\r\n*-1\r\n*-9223372036854775808\r\n\r\n\n  \t\r\nPING\r\n*0\r\n",
        &[&[b"PING"]],
    );
}

#[test]
fn bytes_behind_an_argument_and_a_return_are_skipped_unseen() {
    reads(b"*2\rX$1\rYaZZ$2\r*bc$$PING\n", &[&[b"a", b"bc"], &[b"PING"]]);
}

#[test]
fn a_bare_newline_swallows_nothing() {
    reads(b"PING\nPING\nPING\n", &[&[b"PING"], &[b"PING"], &[b"PING"]]);
}

#[test]
fn zero_length_inline_arguments_are_kept() {
    reads(b"ECHO \"\"\r\n'' a\r\n", &[&[b"ECHO", b""], &[b"", b"a"]]);
}

#[test]
fn a_request_must_be_whole() {
    for input in [
        "*",
        "*1",
        "*1\r",
        "*1\r\n",
        "*1\r\n$1",
        "*1\r\n$1\r\n",
        "*1\r\n$1\r\na",
        "*1\r\n$1\r\na\r",
        "PING\r",
    ] {
        reads(input.as_bytes(), &[]);
    }
}

#[test]
fn counts_have_one_spelling() {
    for count in [
        "",
        "+1",
        "01",
        " 1",
        "1 ",
        "-",
        "-0",
        "x",
        "1048577",
        "9223372036854775808",
        &"1".repeat(60_000),
    ] {
        fails(format!("*{count}\r\n").as_bytes(), ProtocolError::InvalidCount);
    }
    // It is wrong only when it has ended.
    reads(b"*x", &[]);
    reads(b"*x\r", &[]);
    reads(b"*1048576\r\n", &[]);
}

#[test]
fn lengths_have_one_spelling() {
    for length in [
        "",
        "+1",
        "01",
        " 1",
        "1 ",
        "-1",
        "-0",
        "x",
        "536870913",
        "9223372036854775808",
    ] {
        fails(
            format!("*1\r\n${length}\r\n").as_bytes(),
            ProtocolError::InvalidLength,
        );
    }
    reads(b"*1\r\n$536870912\r\n", &[]);
}

#[test]
fn an_argument_starts_with_a_dollar() {
    fails(b"*1\r\nfoo\r\n", ProtocolError::ExpectedBulk(b'f'));
    fails(b"*1\r\n\r\n", ProtocolError::ExpectedBulk(b'\r'));
    fails(b"*2\r\n$1\r\na\r\n:1\r\n", ProtocolError::ExpectedBulk(b':'));
}

#[test]
fn lines_have_a_limit() {
    let line = |start: &str, bytes: usize| [start.as_bytes(), &vec![b'1'; bytes - 1]].concat();
    reads(&line("*", MAX_LINE_BYTES), &[]);
    fails(&line("*", MAX_LINE_BYTES + 1), ProtocolError::CountLineTooBig);
    fails(
        &[&line("*", MAX_LINE_BYTES)[..], b"\r\n"].concat(),
        ProtocolError::InvalidCount,
    );
    reads(&[b"*1\r\n", &line("$", MAX_LINE_BYTES)[..]].concat(), &[]);
    fails(
        &[b"*1\r\n", &line("$", MAX_LINE_BYTES + 1)[..]].concat(),
        ProtocolError::LengthLineTooBig,
    );
    let longest = line("x", MAX_LINE_BYTES);
    reads(&[&longest[..], b"\n"].concat(), &[&[&longest]]);
    fails(&line("x", MAX_LINE_BYTES + 1), ProtocolError::InlineTooBig);
    fails(
        &[&line("x", MAX_LINE_BYTES + 1), &b"\n"[..]].concat(),
        ProtocolError::InlineTooBig,
    );
}

#[test]
fn quotes_must_balance() {
    fails(b"ECHO \"a\r\n", ProtocolError::UnbalancedQuotes);
    fails(b"ECHO 'a'b\r\n", ProtocolError::UnbalancedQuotes);
}

#[test]
fn before_authentication_requests_are_small() {
    let limits = &RequestLimits::UNAUTHENTICATED;
    check(b"*10\r\n$16384\r\n", limits, &[], None);
    check(b"*11\r\n", limits, &[], Some(ProtocolError::UnauthenticatedCount));
    check(b"*1048577\r\n", limits, &[], Some(ProtocolError::InvalidCount));
    check(
        b"*1\r\n$16385\r\n",
        limits,
        &[],
        Some(ProtocolError::UnauthenticatedLength),
    );
    check(
        b"*1\r\n$536870913\r\n",
        limits,
        &[],
        Some(ProtocolError::InvalidLength),
    );
}

#[test]
fn a_whole_request_has_a_limit() {
    let limits = &RequestLimits {
        max_request_bytes: 22,
        ..RequestLimits::FULL
    };
    check(
        b"*2\r\n$3\r\nabc\r\n$3\r\nabc\r\n",
        limits,
        &[&[b"abc", b"abc"]],
        None,
    );
    check(
        b"*2\r\n$3\r\nabc\r\n$4\r\n",
        limits,
        &[],
        Some(ProtocolError::RequestTooBig),
    );
}

#[test]
fn short_requests_that_are_whole_have_the_same_limits() {
    let request = b"*2\r\n$3\r\nabc\r\n$4\r\nabcd\r\n";
    let exact = RequestLimits {
        max_arguments: 2,
        max_bulk_bytes: 4,
        max_request_bytes: request.len(),
        ..RequestLimits::FULL
    };
    check(request, &exact, &[&[b"abc", b"abcd"]], None);
    let refused = |limits, error| check(request, &limits, &[], Some(error));
    refused(
        RequestLimits {
            max_arguments: 1,
            ..exact
        },
        ProtocolError::UnauthenticatedCount,
    );
    refused(
        RequestLimits {
            max_bulk_bytes: 3,
            ..exact
        },
        ProtocolError::UnauthenticatedLength,
    );
    refused(
        RequestLimits {
            max_request_bytes: request.len() - 1,
            ..exact
        },
        ProtocolError::RequestTooBig,
    );
}

#[test]
fn requests_before_an_error_are_given_and_the_error_stays() {
    let (requests, error) = read_pieces([&b"PING\r\n*x\r\nPING\r\n"[..]].into_iter(), &RequestLimits::FULL);
    assert_eq!(requests.len(), 1);
    assert_eq!(error, Some(ProtocolError::InvalidCount));
    let mut parser = Parser::new();
    assert!(parser.next(&mut &b"*x\r\n"[..], &RequestLimits::FULL).is_err());
    parser.stash(b"PING\r\n");
    assert!(parser.next(&mut &b"PING\r\n"[..], &RequestLimits::FULL).is_err());
    assert_eq!(parser.held_bytes(), 0);
}

/// The names of all requests that come now.
fn names(parser: &mut Parser, mut input: &[u8]) -> Vec<Vec<u8>> {
    let mut names = Vec::new();
    while let Some(args) = parser.next(&mut input, &RequestLimits::FULL).unwrap() {
        names.push(args.name().to_vec());
    }
    names
}

#[test]
fn a_request_that_was_put_back_comes_again_before_all_others() {
    let mut parser = Parser::new();
    for (first, second) in [
        ("A\r\nB\r\nC", "\r\nD\r\n"),
        ("*1\r\n$1\r", "\nA\r\nB\r\nC\r\nD\r\n"),
    ] {
        // From the input or, where it was cut, from what was kept.
        let held = names(&mut parser, &first.as_bytes()[..first.len().min(7)]);
        let rest = [&first.as_bytes()[first.len().min(7)..], second.as_bytes()].concat();
        let mut input = &rest[..];
        let mut given = held;
        for _ in 0..3 {
            let before = input;
            let name = parser
                .next(&mut input, &RequestLimits::FULL)
                .unwrap()
                .unwrap()
                .name()
                .to_vec();
            parser.put_back(before);
            input = b"";
            let again = parser
                .next(&mut input, &RequestLimits::FULL)
                .unwrap()
                .unwrap()
                .name()
                .to_vec();
            assert_eq!(name, again);
            parser.put_back(input);
        }
        parser.stash(b"E\r\n");
        given.extend(names(&mut parser, b"F\r\n"));
        assert_eq!(given.concat(), b"ABCDEF");
    }
}

#[test]
fn what_came_before_a_request_is_not_put_back_with_it() {
    let mut parser = Parser::new();
    // The end of an empty request would read as an inline one.
    assert!(names(&mut parser, b"*").is_empty());
    let before = b"0\r\nA\r\nB\r\n";
    assert!(
        parser
            .next(&mut &before[..], &RequestLimits::FULL)
            .unwrap()
            .is_some()
    );
    parser.put_back(before);
    assert_eq!(names(&mut parser, b"C\r\n").concat(), b"ABC");
}

#[test]
fn input_that_was_stashed_comes_before_newer_input() {
    let mut parser = Parser::new();
    assert!(names(&mut parser, b"*1\r\n$1").is_empty());
    parser.stash(b"\r\nA\r\nB\r\n*1\r\n");
    parser.stash(b"$1\r\n");
    assert_eq!(names(&mut parser, b"C\r\nD\r\n").concat(), b"ABCD");
    assert!(parser.held_bytes() <= 512);
}

#[test]
fn arguments_of_a_whole_request_are_slices_of_the_input() {
    let request = b"*2\r\n$4\r\nQLEN\r\n$1\r\nq\r\n";
    let mut input = &request[..];
    let mut parser = Parser::new();
    let args = parser.next(&mut input, &RequestLimits::FULL).unwrap().unwrap();
    assert_eq!(args.len(), 2);
    assert_eq!(args.name().as_ptr(), request[8..].as_ptr());
    assert_eq!(args[1].as_ptr(), request[18..].as_ptr());
    assert_eq!(args.get(2), None);
    assert_eq!(args.blob(1), Blob::from("q"));
}

#[test]
fn a_large_argument_that_came_in_pieces_is_shared() {
    let mut request = Vec::new();
    encode_request(
        &[&b"ADDJOB"[..], &[b'x'; LARGE_ARGUMENT_BYTES], &[b'y'; 100]],
        &mut request,
    );
    let mut parser = Parser::new();
    assert!(names(&mut parser, &request[..1000]).is_empty());
    let args = parser.next(&mut &request[1000..], &RequestLimits::FULL).unwrap();
    let args = args.expect("the request is whole");
    assert_eq!(args.blob(1).as_ptr(), args[1].as_ptr());
    assert_ne!(args.blob(2).as_ptr(), args[2].as_ptr());
    assert_eq!(args.blob(2), Blob::copy_from(&[b'y'; 100]));
}

#[test]
fn what_was_announced_costs_nothing() {
    let mut parser = Parser::new();
    // Of these 72 are the places of the arguments of a short request.
    assert!(size_of::<Parser>() <= 168);
    assert_eq!(parser.held_bytes(), 0);
    assert!(names(&mut parser, b"*1048576\r\n$536870912\r\n").is_empty());
    assert!(parser.held_bytes() <= 256, "{}", parser.held_bytes());
}

#[test]
fn an_idle_parser_holds_little() {
    let mut parser = Parser::new();
    let mut request = Vec::new();
    encode_request(&[[b'x'; 50]; 5000], &mut request);
    assert_eq!(names(&mut parser, &request).len(), 1);
    assert!(names(&mut parser, &request[..100_000]).is_empty());
    assert_eq!(names(&mut parser, &request[100_000..]).len(), 1);
    parser.stash(&request);
    assert_eq!(names(&mut parser, b"").len(), 1);
    assert!(parser.held_bytes() <= 256, "{}", parser.held_bytes());
}
