//! The language of the stories.
//!
//! | line | means |
//! | --- | --- |
//! | `# words` | a remark |
//! | `3 shards`, `setting maxmemory 100000` | before anything else: what the node is made of |
//! | `alice connects`, `alice connects to shard 1` | a client comes |
//! | `alice> GETJOB FROM q@1` | she sends a command; `q@1` is a queue that lives on shard 1 |
//! | `alice> ADDJOB q body:5000 0` | `body:5000` is so many bytes |
//! | `alice+> ...` | the same, but it arrives together with her next one |
//! | `alice>> $5\r\n` | she sends these bytes |
//! | `alice< [[q@1, <job>, *]]` | her next reply; `<job>` is remembered, or the same as before; `*` is anything |
//! | `alice waits` | she is connected and has no reply |
//! | `alice is closed` | her connection was closed |
//! | `alice skips 20 replies` | they come and do not matter |
//! | `alice disconnects`, `half-closes`, `stops reading`, `reads 5 bytes`, `reads all` | |
//! | `wait 5s`, `leap 5s` | time passes, event by event or at once |
//! | `wall clock -1h` | the wall clock jumps |
//! | `mesh 0->1 takes 5ms` | from now on |
//! | `20 times alice> ADDJOB q {n} 0` | a line again and again, `{n}` counts |
//! | `SIGTERM`, `the node has stopped` | |
//!
//! After each line the node comes to rest, and every invariant is looked at after every step.

use std::collections::BTreeMap;

use shard::settings::Settings;

use crate::support::{Blind, Node, queue_on, request};

/// A story on its way.
pub struct Teller {
    shards: u16,
    settings: Settings,
    node: Option<Node<Blind>>,
    clients: BTreeMap<String, usize>,
    names: BTreeMap<String, String>,
}

impl Teller {
    /// Tells a story.
    ///
    /// # Panics
    /// At the line that is not true.
    pub fn tell(file: &str, story: &str) {
        let (clients, names) = (BTreeMap::new(), BTreeMap::new());
        let mut teller = Self {
            shards: 1,
            settings: Settings::default(),
            node: None,
            clients,
            names,
        };
        for (number, line) in story
            .lines()
            .enumerate()
            .filter(|(_, line)| !line.trim().is_empty())
        {
            if let Err(why) = teller.line(line.trim()) {
                panic!("{file}:{}: {line}\n{why}", number + 1);
            }
        }
    }

    fn line(&mut self, line: &str) -> Result<(), String> {
        if line.starts_with('#') {
            return Ok(());
        }
        if let Some((count, again)) = line.split_once(" times ") {
            let count: usize = count.parse().map_err(|_| format!("no number: {count}"))?;
            return (1..=count).try_for_each(|n| self.line(&again.replace("{n}", &n.to_string())));
        }
        let (who, rest) = line.split_once([' ', '>', '<', '+']).unwrap_or((line, ""));
        let sign = &line[who.len()..];
        if let Some(raw) = sign.strip_prefix(">> ") {
            let bytes = raw.replace("\\r", "\r").replace("\\n", "\n").replace("\\0", "\0");
            return self.send(who, self.fill(&bytes)?.as_bytes(), true);
        }
        if let Some(command) = sign.strip_prefix("> ") {
            return self.send(who, &request(&self.words(command)?), true);
        }
        if let Some(command) = sign.strip_prefix("+> ") {
            return self.send(who, &request(&self.words(command)?), false);
        }
        if let Some(pattern) = sign.strip_prefix("< ") {
            return self.expect(who, pattern);
        }
        match (who, rest) {
            (count, "shards") => {
                self.shards = count.parse().map_err(|_| format!("no number: {count}"))?;
                Ok(())
            }
            ("setting", pair) => {
                let (name, value) = pair.split_once(' ').ok_or("a setting has a value")?;
                self.settings
                    .set_initial(name, value)
                    .map(drop)
                    .map_err(|error| error.to_string())
            }
            ("wait", time) => {
                let us = duration_us(time)?;
                self.node().wait_us(us);
                Ok(())
            }
            ("leap", time) => {
                let us = duration_us(time)?;
                self.node().leap(us);
                self.rest()
            }
            ("mesh", lane) => self.mesh(lane),
            ("wall", jump) => self.wall(jump),
            ("SIGTERM", "") => {
                self.node().stop();
                self.rest()
            }
            ("the", "node has stopped") => {
                let stopped = self.node().stopped.len();
                true_or(stopped == usize::from(self.shards), || {
                    format!("{stopped} shards have")
                })
            }
            (who, "connects") => self.connect(who, None),
            (who, does) => match does.strip_prefix("connects to shard ") {
                Some(shard) => self.connect(
                    who,
                    Some(shard.parse().map_err(|_| format!("no number: {shard}"))?),
                ),
                None => self.client_does(who, does),
            },
        }
    }

    fn client_does(&mut self, who: &str, does: &str) -> Result<(), String> {
        let client = self.client(who)?;
        let node = self.node();
        let words: Vec<&str> = does.split(' ').collect();
        match words.as_slice() {
            ["waits"] => {
                let place = &mut node.clients[client];
                let reply = place.next_reply();
                true_or(place.open && reply.is_none(), || match reply {
                    Some(reply) => format!("got {reply}"),
                    None => "the connection is closed".to_owned(),
                })?;
            }
            ["is", "closed"] => {
                let place = &mut node.clients[client];
                let reply = place.next_reply();
                true_or(!place.open && reply.is_none(), || {
                    format!("open: {}, got {reply:?}", place.open)
                })?;
            }
            ["skips", count, "replies"] => {
                for n in 0..count.parse().map_err(|_| format!("no number: {count}"))? {
                    node.clients[client]
                        .next_reply()
                        .ok_or_else(|| format!("only {n} came"))?;
                }
            }
            ["disconnects"] => node.disconnect(client),
            ["half-closes"] => node.half_close(client),
            ["stops", "reading"] => node.clients[client].kernel_takes_all = false,
            ["reads", "all"] => node.clients[client].kernel_takes_all = true,
            ["reads", count, "bytes"] => {
                let count: usize = count.parse().map_err(|_| format!("no number: {count}"))?;
                let took = node.kernel_takes(client, count);
                true_or(took == count, || format!("there were {took}"))?;
            }
            _ => return Err("the language has no such line".to_owned()),
        }
        self.rest()
    }

    fn node(&mut self) -> &mut Node<Blind> {
        self.node.get_or_insert_with(|| {
            let mut node = Node::new(self.shards, 7, &self.settings, Blind);
            node.rest();
            node
        })
    }

    fn rest(&mut self) -> Result<(), String> {
        self.node().rest();
        Ok(())
    }

    fn connect(&mut self, who: &str, shard: Option<u16>) -> Result<(), String> {
        let client = match shard {
            Some(shard) => self.node().connect_to(shard),
            None => self.node().connect(),
        };
        self.clients.insert(who.to_owned(), client);
        self.rest()
    }

    fn client(&self, who: &str) -> Result<usize, String> {
        self.clients
            .get(who)
            .copied()
            .ok_or_else(|| format!("nobody is called {who}"))
    }

    fn send(&mut self, who: &str, bytes: &[u8], arrives: bool) -> Result<(), String> {
        let client = self.client(who)?;
        self.node().send(client, bytes);
        if arrives { self.rest() } else { Ok(()) }
    }

    fn expect(&mut self, who: &str, pattern: &str) -> Result<(), String> {
        let client = self.client(who)?;
        let reply = self.node().clients[client]
            .next_reply()
            .ok_or("there is no reply")?;
        let pattern = self.queues(pattern)?;
        let mut names = self.names.clone();
        true_or(matches(&pattern, &reply.to_string(), &mut names), || {
            format!("the reply is {reply}")
        })?;
        self.names = names;
        Ok(())
    }

    fn mesh(&mut self, lane: &str) -> Result<(), String> {
        let (lane, time) = lane.split_once(" takes ").ok_or("a lane takes a time")?;
        let (from, to) = lane.split_once("->").ok_or("a lane leads from shard to shard")?;
        let number = |text: &str| text.parse().map_err(|_| format!("no number: {text}"));
        let (from, to, us) = (number(from)?, number(to)?, duration_us(time)?);
        self.node().delay_mesh(from, to, us);
        Ok(())
    }

    fn wall(&mut self, jump: &str) -> Result<(), String> {
        let jump = jump
            .strip_prefix("clock ")
            .ok_or("it is the wall clock that jumps")?;
        let us = duration_us(&jump[1..])?;
        let wall_us = &mut self.node().now.wall_us;
        *wall_us = if jump.starts_with('-') {
            *wall_us - us
        } else {
            *wall_us + us
        };
        Ok(())
    }

    /// The words of a command; `"of one"` keeps its blanks, `<job>` and `q@1` are filled in.
    fn words(&self, command: &str) -> Result<Vec<String>, String> {
        let mut words = Vec::new();
        for (place, part) in command.split('"').enumerate() {
            if place % 2 == 1 {
                words.push(part.to_owned());
            } else {
                words.extend(part.split_whitespace().map(str::to_owned));
            }
        }
        words.iter().map(|word| self.fill(word)).collect()
    }

    fn fill(&self, text: &str) -> Result<String, String> {
        let long = text.strip_prefix("body:").and_then(|bytes| bytes.parse().ok());
        let mut text = long.map_or_else(|| self.queues(text), |bytes| Ok("x".repeat(bytes)))?;
        for (name, value) in &self.names {
            text = text.replace(&format!("<{name}>"), value);
        }
        Ok(text)
    }

    /// `q@1` becomes a name that lives there.
    fn queues(&self, text: &str) -> Result<String, String> {
        let mut filled = String::new();
        let mut rest = text;
        while let Some(at) = rest.find('@') {
            let start = rest[..at]
                .rfind(|c: char| !c.is_ascii_alphanumeric())
                .map_or(0, |place| place + 1);
            let digits = rest[at + 1..].chars().take_while(char::is_ascii_digit).count();
            let shard: u16 = rest[at + 1..at + 1 + digits]
                .parse()
                .map_err(|_| "@ names a shard".to_owned())?;
            filled.push_str(&rest[..start]);
            filled.push_str(&queue_on(&rest[start..at], shard, self.shards));
            rest = &rest[at + 1 + digits..];
        }
        Ok(filled + rest)
    }
}

fn true_or(holds: bool, why: impl FnOnce() -> String) -> Result<(), String> {
    if holds { Ok(()) } else { Err(why()) }
}

fn duration_us(text: &str) -> Result<u64, String> {
    let digits = text.chars().take_while(char::is_ascii_digit).count();
    let number: u64 = text[..digits].parse().map_err(|_| format!("no time: {text}"))?;
    let unit_us = match &text[digits..] {
        "us" => 1,
        "ms" => 1_000,
        "s" => 1_000_000,
        "m" => 60_000_000,
        "h" => 3_600_000_000,
        "d" => 86_400_000_000,
        _ => return Err(format!("no time: {text}")),
    };
    Ok(number * unit_us)
}

/// Whether a text has the form of a pattern; remembers what `<name>`s stand for.
fn matches(pattern: &str, text: &str, names: &mut BTreeMap<String, String>) -> bool {
    if let Some(rest) = pattern.strip_prefix('*') {
        return (0..=text.len()).any(|at| {
            let mut tried = names.clone();
            let fits = text.is_char_boundary(at) && matches(rest, &text[at..], &mut tried);
            if fits {
                *names = tried;
            }
            fits
        });
    }
    if let Some((name, rest)) = pattern
        .strip_prefix('<')
        .and_then(|pattern| pattern.split_once('>'))
    {
        if let Some(known) = names.get(name).cloned() {
            return text
                .strip_prefix(&known)
                .is_some_and(|text| matches(rest, text, names));
        }
        let end = text.find([',', ' ', ']']).unwrap_or(text.len());
        names.insert(name.to_owned(), text[..end].to_owned());
        return end > 0 && matches(rest, &text[end..], names);
    }
    match (pattern.chars().next(), text.chars().next()) {
        (None, None) => true,
        (Some(a), Some(b)) if a == b => matches(&pattern[a.len_utf8()..], &text[b.len_utf8()..], names),
        _ => false,
    }
}
