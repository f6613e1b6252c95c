//! Replies compared byte for byte, with holes only for what differs from run to run.
//!
//! A [`Wire`] is a socket and nothing else: no client library could hide a wrong byte. Behind each request goes an `ECHO`, whose reply
//! marks the end, so that a byte too many is seen as well as one too few. A pattern is the expected text; its holes are
//! `{int}`, `{id}` (a job's ID, 40 bytes), `{node}` (40 hex digits), `{line}` (the rest of a line) and `{bulk}` (a whole bulk string,
//! its length checked); `{id:name}` and its like also keep the text, and `$name` in a later request or pattern stands for it.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};

use tools::client::append_command;

use super::{PATIENCE, Server, read_to_end};

const MARK: &str = "$7\r\n\u{1}mark\u{2}\u{3}\r\n";

/// A connection whose replies are bytes.
pub struct Wire {
    stream: TcpStream,
    kept: BTreeMap<String, String>,
    asked: BTreeSet<String>,
}

impl Wire {
    pub fn connect(server: &Server) -> Self {
        let stream = TcpStream::connect(("127.0.0.1", server.port())).expect("the server accepts");
        stream.set_read_timeout(Some(PATIENCE)).expect("a timeout");
        stream.set_nodelay(true).expect("an option");
        Self {
            stream,
            kept: BTreeMap::new(),
            asked: BTreeSet::new(),
        }
    }

    pub fn write(&mut self, bytes: &[u8]) {
        self.stream.write_all(bytes).expect("the server reads");
    }

    /// Sends bytes, then the mark: the bytes of all replies before the mark's.
    pub fn ask_bytes(&mut self, bytes: &[u8]) -> String {
        let mut out = bytes.to_vec();
        append_command(&mut out, &["ECHO", "\u{1}mark\u{2}\u{3}"]);
        self.write(&out);
        let mut arrived = Vec::new();
        let mut buffer = [0; 4096];
        while !arrived.ends_with(MARK.as_bytes()) {
            let count = self.stream.read(&mut buffer).unwrap_or_else(|error| {
                panic!(
                    "no end of the reply ({error}) after {:?}",
                    String::from_utf8_lossy(&arrived)
                )
            });
            assert!(count > 0, "closed after {:?}", String::from_utf8_lossy(&arrived));
            arrived.extend_from_slice(&buffer[..count]);
        }
        arrived.truncate(arrived.len() - MARK.len());
        String::from_utf8_lossy(&arrived).into_owned()
    }

    /// Sends a request of words separated by blanks: the reply's bytes. `''` is an empty word.
    pub fn ask(&mut self, line: &str) -> String {
        let bytes = self.encode(line);
        self.ask_bytes(&bytes)
    }

    /// Sends a request and checks its reply.
    pub fn check(&mut self, line: &str, pattern: &str) {
        let reply = self.ask(line);
        let pattern = self.fill(pattern);
        match compare(&pattern, &reply) {
            Ok(kept) => self.kept.extend(kept),
            Err(why) => panic!("{line}: {why}\n  expected {pattern:?}\n  got      {reply:?}"),
        }
    }

    /// Sends bytes whose answer ends the connection: all of that answer.
    pub fn ask_to_end(&mut self, bytes: &[u8]) -> String {
        self.write(bytes);
        String::from_utf8_lossy(&self.read_to_end()).into_owned()
    }

    /// Sends a request without reading.
    pub fn send(&mut self, line: &str) {
        let bytes = self.encode(line);
        self.write(&bytes);
    }

    pub fn read_exact(&mut self, length: usize) -> String {
        let mut bytes = vec![0; length];
        self.stream
            .read_exact(&mut bytes)
            .expect("the reply is that long");
        String::from_utf8_lossy(&bytes).into_owned()
    }

    /// Reads one line with its end.
    pub fn read_line(&mut self) -> String {
        let mut line = String::new();
        while !line.ends_with("\r\n") {
            line.push_str(&self.read_exact(1));
        }
        line
    }

    pub fn read_to_end(&mut self) -> Vec<u8> {
        read_to_end(&mut self.stream)
    }

    pub fn end_of_input(&self) {
        self.stream.shutdown(Shutdown::Write).expect("the socket is open");
    }

    pub fn address(&self) -> String {
        self.stream.local_addr().expect("a connected socket").to_string()
    }

    pub fn keep(&mut self, name: &str, text: &str) {
        self.kept.insert(name.to_owned(), text.to_owned());
    }

    /// The names of the commands asked so far, in lowercase.
    pub fn asked(&self) -> &BTreeSet<String> {
        &self.asked
    }

    pub fn kept(&self, name: &str) -> &str {
        &self.kept[name]
    }

    fn encode(&mut self, line: &str) -> Vec<u8> {
        let filled = self.fill(line);
        let words: Vec<&str> = filled
            .split_ascii_whitespace()
            .map(|word| if word == "''" { "" } else { word })
            .collect();
        self.asked.insert(words[0].to_lowercase());
        let mut bytes = Vec::new();
        append_command(&mut bytes, &words);
        bytes
    }

    fn fill(&self, text: &str) -> String {
        let mut filled = text.to_owned();
        // Longer names first: one may begin another.
        for (name, value) in self.kept.iter().rev() {
            filled = filled.replace(&format!("${name}"), value);
        }
        filled
    }
}

/// Compares a reply with a pattern; what the named holes took.
fn compare(pattern: &str, reply: &str) -> Result<Vec<(String, String)>, String> {
    let (mut pattern, mut rest) = (pattern, reply);
    let mut kept = Vec::new();
    loop {
        let (literal, behind) = pattern.split_once('{').unwrap_or((pattern, ""));
        let is_last = literal.len() == pattern.len();
        rest = rest.strip_prefix(literal).ok_or_else(|| {
            let same = literal
                .bytes()
                .zip(rest.bytes())
                .take_while(|(a, b)| a == b)
                .count();
            format!("differs at byte {}", reply.len() - rest.len() + same)
        })?;
        if is_last {
            return if rest.is_empty() {
                Ok(kept)
            } else {
                Err(format!("{} bytes too many", rest.len()))
            };
        }
        let (hole, next) = behind.split_once('}').expect("a hole is closed");
        let (kind, name) = hole.split_once(':').unwrap_or((hole, ""));
        let length = hole_length(kind, rest).ok_or_else(|| format!("no {kind} at {:?}", head(rest)))?;
        if !name.is_empty() {
            kept.push((name.to_owned(), rest[..length].to_owned()));
        }
        (pattern, rest) = (next, &rest[length..]);
    }
}

fn head(text: &str) -> String {
    text.chars().take(60).collect()
}

/// How many bytes at the start of `text` are a thing of this kind.
fn hole_length(kind: &str, text: &str) -> Option<usize> {
    let count = |fits: fn(u8) -> bool| text.bytes().take_while(|&byte| fits(byte)).count();
    match kind {
        "int" => Some(count(|byte| byte.is_ascii_digit())).filter(|&digits| digits > 0),
        "line" => text.find("\r\n"),
        "node" => Some(40).filter(|&length| count(|byte| byte.is_ascii_hexdigit()) == length),
        "id" => is_id(text.get(..40)?).then_some(40),
        "bulk" => {
            let digits = text.strip_prefix('$')?.split("\r\n").next()?;
            let length = digits.parse::<usize>().ok()? + digits.len() + 5;
            text.get(..length)?.ends_with("\r\n").then_some(length)
        }
        other => panic!("no such hole: {other}"),
    }
}

fn is_id(text: &str) -> bool {
    let bytes = text.as_bytes();
    let is_hex = |part: &[u8]| part.iter().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
    let is_word = |byte: &u8| byte.is_ascii_alphanumeric() || matches!(byte, b'+' | b'/');
    text.starts_with("D-")
        && is_hex(&bytes[2..10])
        && bytes[10] == b'-'
        && bytes[11..35].iter().all(is_word)
        && bytes[35] == b'-'
        && is_hex(&bytes[36..])
}
