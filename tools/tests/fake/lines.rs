//! The fake's requests in beanstalkd's lines.

use std::net::TcpStream;
use std::time::Duration;

use super::{Added, Broker, Next, Session};

/// The first request of the input: its words, the body of a `put`, and how many bytes it took.
pub fn request(input: &[u8]) -> Option<(Vec<String>, &[u8], usize)> {
    let end = input.windows(2).position(|bytes| bytes == b"\r\n")?;
    let line = std::str::from_utf8(&input[..end]).unwrap();
    let words: Vec<String> = line.split(' ').map(str::to_owned).collect();
    let rest = &input[end + 2..];
    if words[0] != "put" {
        return Some((words, &[], end + 2));
    }
    let length: usize = words[4].parse().unwrap();
    if rest.len() < length + 2 {
        return None;
    }
    assert_eq!(&rest[length..][..2], b"\r\n");
    Some((words, &rest[..length], end + 2 + length + 2))
}

impl Broker {
    pub(super) fn execute_line(
        &self,
        words: &[String],
        body: &[u8],
        session: &mut Session,
        output: &mut Vec<u8>,
        stream: &mut TcpStream,
    ) -> Next {
        let word = |at: usize| words[at].as_str();
        let reply = match word(0) {
            "use" => {
                session.used_tube = word(1).into();
                format!("USING {}", word(1))
            }
            "watch" => {
                session.watched_tubes.push(word(1).into());
                format!("WATCHING {}", session.watched_tubes.len())
            }
            "ignore" => {
                session.watched_tubes.retain(|tube| tube != word(1).as_bytes());
                format!("WATCHING {}", session.watched_tubes.len())
            }
            "put" => match self.add(&session.used_tube, body) {
                Added::Id(id) => format!("INSERTED {}", String::from_utf8(id).unwrap()),
                Added::Refused => "OUT_OF_MEMORY".to_owned(),
                Added::Ignored => return Next::GoOn,
                Added::Closed => return Next::Close,
            },
            "reserve-with-timeout" => {
                let wait = Duration::from_secs(word(1).parse().unwrap());
                let found = self.fetch(&session.watched_tubes, 1, wait, output, stream);
                match found.into_iter().next() {
                    None => "TIMED_OUT".to_owned(),
                    Some((_, (id, body))) => {
                        let id = String::from_utf8(id).unwrap();
                        output.extend(format!("RESERVED {id} {}\r\n", body.len()).bytes());
                        output.extend(body);
                        String::new()
                    }
                }
            }
            "delete" => match self.acknowledge(&[word(1).into()], true) {
                0 => "NOT_FOUND".to_owned(),
                _ => "DELETED".to_owned(),
            },
            "stats" => ok(&format!("---\npid: {}\n", std::process::id())),
            "stats-tube" => match self.length(word(1).as_bytes()) {
                0 => "NOT_FOUND".to_owned(),
                length => ok(&format!(
                    "---\nname: {}\ncurrent-jobs-urgent: 0\ncurrent-jobs-ready: {length}\n\
                     current-jobs-reserved: 0\ncurrent-jobs-delayed: 0\ncurrent-jobs-buried: 0\n",
                    word(1)
                )),
            },
            _ => "UNKNOWN_COMMAND".to_owned(),
        };
        output.extend(reply.bytes());
        output.extend(b"\r\n");
        Next::GoOn
    }
}

fn ok(text: &str) -> String {
    format!("OK {}\r\n{text}", text.len())
}
