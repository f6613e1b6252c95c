//! `nodes.conf`: what a node remembers of its cluster.
//!
//! The lines of CLUSTER NODES (reference, 7.1 and 7.2), so that it can be read as the original's can, and read by it, and for what the
//! original does not have lines that begin with `vars`, which it skips:
//!
//! ```text
//! <id> <host>:<port> <flags> <ping-sent> <pong-recv> <link>
//! vars node <id> generation <n> version <n> epoch <n> bus <port> machine <hex> zone <hex>
//! vars ban <id> count <n> up-to <n>|all
//! ```
//!
//! The loader is strict: a file that was damaged, or edited wrongly, stops the start with its line, rather than a node that has forgotten
//! who it is.

use std::collections::BTreeMap;
use std::fmt::Write;

use thiserror::Error;

use super::record::{Ban, Bans, Record, is_host};
use crate::id::NodeId;
use crate::limits;
use crate::settings::BUS_PORT_DISTANCE;

/// What `nodes.conf` holds; empty before the first start.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Nodes {
    /// This node.
    pub me: Option<Record>,
    /// The others.
    pub others: Vec<Record>,
    /// Who may not be in the cluster.
    pub bans: Bans,
}

/// Why a file cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum ConfError {
    /// A line is none.
    #[error("line {line}: {why}")]
    Line {
        /// Which, from 1 on.
        line: usize,
        /// What is wrong with it.
        why: String,
    },
    /// Something is missing, or too much.
    #[error("{0}")]
    Whole(&'static str),
}

/// What a line of CLUSTER NODES tells.
#[derive(Clone, Debug)]
pub struct NodeLine<'a> {
    /// The node.
    pub id: NodeId,
    /// Its host; may be empty.
    pub host: &'a str,
    /// Port of its clients.
    pub port: u16,
    /// Its flags, in the order of the reference; none is `noflags`.
    pub flags: Vec<&'static str>,
    /// When the ping was sent that it has not answered, milliseconds since 1970; 0: none.
    pub ping_sent: u64,
    /// When it was heard last, milliseconds since 1970; 0: never.
    pub pong_received: u64,
    /// Whether there is a link to it.
    pub connected: bool,
}

impl NodeLine<'_> {
    /// Writes it with its end.
    pub fn write(&self, text: &mut String) {
        let flags = if self.flags.is_empty() {
            "noflags".to_owned()
        } else {
            self.flags.join(",")
        };
        let link = if self.connected {
            "connected"
        } else {
            "disconnected"
        };
        let Self {
            id,
            host,
            port,
            ping_sent,
            pong_received,
            ..
        } = self;
        writeln!(
            text,
            "{id} {host}:{port} {flags} {ping_sent} {pong_received} {link}"
        )
        .expect("memory takes what is written");
    }
}

/// The line about a node that `vars` hides from the original.
pub fn write_vars(record: &Record, text: &mut String) {
    let Record {
        id,
        generation,
        version,
        epoch,
        bus_port,
        machine,
        zone,
        ..
    } = record;
    writeln!(
        text,
        "vars node {id} generation {generation} version {version} epoch {epoch} bus {bus_port} machine {machine:016x} zone {zone:016x}"
    )
    .expect("memory takes what is written");
}

/// The lines of all bans.
pub fn write_bans(bans: &Bans, text: &mut String) {
    for (id, ban) in bans.iter() {
        let up_to = match ban.up_to {
            Ban::ALL => "all".to_owned(),
            generation => generation.to_string(),
        };
        writeln!(text, "vars ban {id} count {} up-to {up_to}", ban.count)
            .expect("memory takes what is written");
    }
}

/// Reads a file. An empty one is that of a node before its first start.
pub fn parse(text: &str) -> Result<Nodes, ConfError> {
    let mut reader = Reader::default();
    for (number, line) in text.lines().enumerate() {
        let line_error = |why| ConfError::Line {
            line: number + 1,
            why,
        };
        reader
            .line(line.trim_end_matches('\r'), number + 1)
            .map_err(line_error)?;
    }
    reader.end()
}

#[derive(Default)]
struct Reader {
    nodes: BTreeMap<NodeId, Record>,
    vars: BTreeMap<NodeId, (usize, Record)>,
    me: Option<NodeId>,
    bans: Bans,
}

impl Reader {
    fn line(&mut self, line: &str, number: usize) -> Result<(), String> {
        let words: Vec<&str> = line.split(' ').collect();
        match words.as_slice() {
            [""] => Ok(()),
            ["vars", "node", id, rest @ ..] => {
                let record = vars_record(node_id(id)?, rest)?;
                match self.vars.insert(record.id, (number, record)) {
                    None => Ok(()),
                    Some(_) => Err("the node was named before".into()),
                }
            }
            ["vars", "ban", id, "count", count, "up-to", up_to] => {
                let (count, up_to) = (integer(count)?, up_to_number(up_to)?);
                let is_new = self.bans.merge(node_id(id)?, Ban { count, up_to });
                is_new
                    .then_some(())
                    .ok_or_else(|| "the ban was named before, or cannot be".into())
            }
            ["vars", "ban", ..] => Err("no ban".into()),
            // Variables of the original.
            ["vars", ..] => Ok(()),
            [id, address, flags, ping, pong, _] => {
                integer(ping)?;
                integer(pong)?;
                self.node(node_id(id)?, address, flags)
            }
            _ => Err(format!("{} words instead of 6", words.len())),
        }
    }

    fn node(&mut self, id: NodeId, address: &str, flags: &str) -> Result<(), String> {
        let (host, port) = address.rsplit_once(':').ok_or("no address")?;
        if !(host.is_empty() || is_host(host)) {
            return Err(format!("'{}' is no host", host.escape_default()));
        }
        let port: u16 = port
            .parse()
            .map_err(|_| format!("'{}' is no port", port.escape_default()))?;
        let mut record = Record {
            id,
            generation: 0,
            version: 0,
            host: host.to_owned(),
            port,
            // The original's offset; a line of our own says better.
            bus_port: port.checked_add(BUS_PORT_DISTANCE).unwrap_or(0),
            leaving: false,
            epoch: 0,
            machine: 0,
            zone: 0,
            memory_level: 0,
        };
        let mut is_member = true;
        for flag in flags.split(',') {
            match flag {
                "myself" if self.me.replace(id).is_some() => return Err("a second 'myself'".into()),
                "leaving" => record.leaving = true,
                "handshake" => is_member = false,
                "myself" | "fail?" | "fail" | "noaddr" | "noflags" => {}
                _ => return Err(format!("'{}' is no flag", flag.escape_default())),
            }
        }
        if is_member && self.nodes.insert(id, record).is_some() {
            return Err("the node was named before".into());
        }
        Ok(())
    }

    fn end(self) -> Result<Nodes, ConfError> {
        let Self {
            mut nodes,
            vars,
            me,
            bans,
        } = self;
        if nodes.is_empty() && vars.is_empty() && me.is_none() && bans.iter().next().is_none() {
            return Ok(Nodes::default());
        }
        for (id, (line, said)) in vars {
            let Some(record) = nodes.get_mut(&id) else {
                let why = "a node that no other line names".into();
                return Err(ConfError::Line { line, why });
            };
            let Record {
                host, port, leaving, ..
            } = std::mem::replace(record, said);
            (record.host, record.port, record.leaving) = (host, port, leaving);
        }
        let me = me
            .and_then(|me| nodes.remove(&me))
            .ok_or(ConfError::Whole("no line is marked 'myself'"))?;
        if nodes.len() >= limits::CLUSTER_NODES {
            return Err(ConfError::Whole("more nodes than a cluster can have"));
        }
        Ok(Nodes {
            me: Some(me),
            others: nodes.into_values().collect(),
            bans,
        })
    }
}

fn vars_record(id: NodeId, words: &[&str]) -> Result<Record, String> {
    let [
        "generation",
        generation,
        "version",
        version,
        "epoch",
        epoch,
        "bus",
        bus,
        "machine",
        machine,
        "zone",
        zone,
    ] = words
    else {
        return Err("not what is told of a node".into());
    };
    let record = Record {
        id,
        generation: integer(generation)?,
        version: integer(version)?,
        host: String::new(),
        port: 0,
        bus_port: bus.parse().map_err(|_| "no bus port")?,
        leaving: false,
        epoch: integer(epoch)?,
        machine: hex(machine)?,
        zone: hex(zone)?,
        memory_level: 0,
    };
    record
        .is_sound()
        .then_some(record)
        .ok_or_else(|| "a number that cannot be".into())
}

fn node_id(text: &str) -> Result<NodeId, String> {
    NodeId::parse(text.as_bytes()).ok_or_else(|| format!("'{}' is no node ID", text.escape_default()))
}

fn integer(text: &str) -> Result<u64, String> {
    text.parse()
        .map_err(|_| format!("'{}' is no number", text.escape_default()))
}

fn hex(text: &str) -> Result<u64, String> {
    u64::from_str_radix(text, 16).map_err(|_| format!("'{}' is no number", text.escape_default()))
}

fn up_to_number(text: &str) -> Result<u64, String> {
    if text == "all" {
        Ok(Ban::ALL)
    } else {
        integer(text)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::packet::tests::record;
    use super::*;

    fn write(nodes: &Nodes) -> String {
        let mut text = String::new();
        let me = nodes.me.iter().map(|me| (me, vec!["myself"]));
        for (record, mut flags) in me.chain(nodes.others.iter().map(|other| (other, Vec::new()))) {
            flags.extend(record.leaving.then_some("leaving"));
            NodeLine {
                id: record.id,
                host: &record.host,
                port: record.port,
                flags,
                ping_sent: 0,
                pong_received: 7,
                connected: true,
            }
            .write(&mut text);
            write_vars(record, &mut text);
        }
        write_bans(&nodes.bans, &mut text);
        text
    }

    proptest! {
        #[test]
        fn what_was_written_is_read(
            records in prop::collection::btree_map(any::<[u8; 20]>(), record(), 1..6),
            bans in prop::collection::vec((any::<[u8; 20]>(), 1..u64::MAX / 2, any::<u64>()), 0..5),
        ) {
            let mut records: Vec<Record> = records
                .into_iter()
                .map(|(id, record)| Record { id: NodeId::from_bytes(id), memory_level: 0, ..record })
                .collect();
            let mut nodes = Nodes { me: records.pop(), others: records, bans: Bans::default() };
            for (id, count, up_to) in bans {
                nodes.bans.merge(NodeId::from_bytes(id), Ban { count, up_to });
            }
            prop_assert_eq!(parse(&write(&nodes)), Ok(nodes));
        }

        #[test]
        fn no_text_does_harm(text in "(vars |node |ban |[0-9a-f]{40} |[a-z,:]{0,9} |[0-9]{1,22}|\n){0,40}") {
            if let Ok(nodes) = parse(&text) {
                prop_assert!(nodes.me.is_some() || nodes == Nodes::default());
            }
        }
    }

    #[test]
    fn a_file_of_the_original() {
        let (a, b, c) = ("a".repeat(40), "b".repeat(40), "c".repeat(40));
        let text = format!(
            "{a} :7711 myself,leaving 0 0 connected\n{b} 10.0.0.2:7712 fail? 1700000000000 1700000000001 disconnected\n\n\
             {c} 10.0.0.3:7713 handshake 0 0 connected\nvars currentEpoch 0\n"
        );
        let nodes = parse(&text).unwrap();
        let me = nodes.me.unwrap();
        assert_eq!(
            (me.id.to_string(), me.host.as_str(), me.port, me.leaving),
            (a, "", 7711, true)
        );
        assert_eq!(nodes.others.len(), 1);
        let other = &nodes.others[0];
        assert_eq!(
            (other.host.as_str(), other.port, other.bus_port),
            ("10.0.0.2", 7712, 17_712)
        );
    }

    #[test]
    fn what_is_wrong_is_said_with_its_line() {
        let (a, b) = ("a".repeat(40), "b".repeat(40));
        let me = format!("{a} h:1 myself 0 0 connected\n");
        for (text, said) in [
            (
                format!("{b} h:1 noflags 0 0 connected\n"),
                "no line is marked 'myself'",
            ),
            (format!("{me}{a} h:1\n"), "line 2: 2 words instead of 6"),
            (format!("{me}{me}"), "line 2: a second 'myself'"),
            (format!("{me}x h:1 noflags 0 0 -\n"), "line 2: 'x' is no node ID"),
            (format!("{me}{b} h noflags 0 0 -\n"), "line 2: no address"),
            (
                format!("{me}{b} h:1 nonsense 0 0 -\n"),
                "line 2: 'nonsense' is no flag",
            ),
            (format!("{me}{b} h:x noflags 0 0 -\n"), "line 2: 'x' is no port"),
            (
                format!("{me}{b} h\u{1}:1 noflags 0 0 -\n"),
                "line 2: 'h\\u{1}' is no host",
            ),
            (format!("{me}{b} h:1 noflags x 0 -\n"), "line 2: 'x' is no number"),
            (
                format!("{me}vars node {b} generation 1 version 1 epoch 1 bus 1 machine 0 zone 0\n"),
                "line 2: a node that no other line names",
            ),
            (
                format!("{me}vars node {a} generation 1\n"),
                "line 2: not what is told of a node",
            ),
            (format!("{me}vars ban {b}\n"), "line 2: no ban"),
        ] {
            assert_eq!(parse(&text).unwrap_err().to_string(), said, "{text}");
        }
        assert_eq!(parse("\n\n"), Ok(Nodes::default()));
    }
}
