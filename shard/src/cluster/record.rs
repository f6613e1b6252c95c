//! What a node says of itself, and who may be in the cluster.

use std::collections::BTreeMap;

use crate::id::NodeId;
use crate::limits;

/// What a node says of itself. Only the node makes it; the newest one wins wherever two meet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// The node.
    pub id: NodeId,
    /// Grows at every start and RESET.
    pub generation: u64,
    /// Grows with every change within a generation.
    pub version: u64,
    /// Where it is reached: address or host name; empty while it does not know.
    pub host: String,
    /// Port of its clients; 0: none.
    pub port: u16,
    /// Port of its bus.
    pub bus_port: u16,
    /// Whether it leaves the cluster.
    pub leaving: bool,
    /// Its store epoch; 0 while it does not know.
    pub epoch: u64,
    /// Its machine, as a hash.
    pub machine: u64,
    /// Its zone, as a hash; 0: none.
    pub zone: u64,
    /// Its memory level.
    pub memory_level: u8,
}

impl Record {
    /// Whether it is newer than another one of the same node.
    pub fn is_newer_than(&self, other: &Self) -> bool {
        (self.generation, self.version) > (other.generation, other.version)
    }

    /// Whether it can be kept: its host can stand in a line of `nodes.conf`, its numbers leave room to grow.
    pub fn is_sound(&self) -> bool {
        (self.host.is_empty() || is_host(&self.host))
            && self.generation < u64::MAX / 2
            && self.version < u64::MAX / 2
            && self.epoch < u64::MAX / 2
    }
}

/// Whether a text may be an address or host name.
pub fn is_host(text: &str) -> bool {
    let is_part = |c: u8| c.is_ascii_alphanumeric() || b".-_:%".contains(&c);
    (1..=limits::HOST_BYTES).contains(&text.len()) && text.bytes().all(is_part)
}

/// The same number for the same text on every node and in every version (FNV-1a, 64 bits); never 0.
pub fn hash_of(text: &str) -> u64 {
    let mix = |hash: u64, byte: u8| (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3);
    text.bytes().fold(0xcbf2_9ce4_8422_2325, mix).max(1)
}

/// Up to which generation a node is no member any more. Everyone may change it; the highest count wins, among equals the higher
/// generation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Ban {
    /// How often it was changed.
    pub count: u64,
    /// This generation and those before it are banned; 0: none, it was met again.
    pub up_to: u64,
}

impl Ban {
    /// Every generation.
    pub const ALL: u64 = u64::MAX;
}

/// All bans, lifted ones too: they must win over those that are still on their way.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Bans {
    of_node: BTreeMap<NodeId, Ban>,
}

impl Bans {
    /// The ban of a node.
    pub fn get(&self, id: NodeId) -> Option<Ban> {
        self.of_node.get(&id).copied()
    }

    /// Whether a generation of a node may not be in the cluster.
    pub fn bans(&self, id: NodeId, generation: u64) -> bool {
        self.get(id).is_some_and(|ban| generation <= ban.up_to)
    }

    /// Bans a node up to a generation, or lifts its ban (0).
    pub fn set(&mut self, id: NodeId, up_to: u64) {
        let count = self.get(id).map_or(0, |ban| ban.count) + 1;
        self.insert(id, Ban { count, up_to });
    }

    /// Takes in what was heard of; whether it is news.
    pub fn merge(&mut self, id: NodeId, ban: Ban) -> bool {
        let is_news = ban.count < u64::MAX / 2 && self.get(id).is_none_or(|known| ban > known);
        if is_news {
            self.insert(id, ban);
        }
        is_news
    }

    fn insert(&mut self, id: NodeId, ban: Ban) {
        if self.of_node.len() >= limits::CLUSTER_BANS && !self.of_node.contains_key(&id) {
            // The one that was changed least: most likely of a node that is long gone.
            let least = self.of_node.iter().min_by_key(|(_, ban)| ban.count);
            let least = least.map(|(&id, _)| id).expect("it is full");
            self.of_node.remove(&least);
        }
        self.of_node.insert(id, ban);
    }

    /// All of them, by node.
    pub fn iter(&self) -> impl Iterator<Item = (NodeId, Ban)> {
        self.of_node.iter().map(|(&id, &ban)| (id, ban))
    }

    /// How many nodes are banned in some generation.
    pub fn in_force(&self) -> usize {
        self.of_node.values().filter(|ban| ban.up_to > 0).count()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(number: u8) -> NodeId {
        NodeId::from_bytes([number; 20])
    }

    #[test]
    fn the_last_word_on_a_node_wins_in_any_order() {
        let words = [
            Ban { count: 1, up_to: 7 },
            Ban { count: 2, up_to: 0 },
            Ban {
                count: 2,
                up_to: Ban::ALL,
            },
            Ban { count: 3, up_to: 0 },
        ];
        for order in [[0, 1, 2, 3], [3, 2, 1, 0], [2, 3, 0, 1]] {
            let mut bans = Bans::default();
            for i in order {
                bans.merge(node(1), words[i]);
            }
            assert_eq!(bans.get(node(1)), Some(words[3]));
        }
        let mut bans = Bans::default();
        bans.set(node(1), 7);
        assert!(bans.bans(node(1), 7) && !bans.bans(node(1), 8) && !bans.bans(node(2), 1));
        assert!(!bans.merge(
            node(1),
            Ban {
                count: u64::MAX,
                up_to: 0
            }
        ));
        bans.set(node(1), 0);
        assert!(!bans.bans(node(1), 1));
        assert_eq!(bans.in_force(), 0);
    }

    #[test]
    fn bans_are_bounded() {
        let mut bans = Bans::default();
        for number in 0..limits::CLUSTER_BANS as u32 + 10 {
            let mut bytes = [0; 20];
            bytes[..4].copy_from_slice(&number.to_be_bytes());
            bans.set(NodeId::from_bytes(bytes), 1);
        }
        assert_eq!(bans.iter().count(), limits::CLUSTER_BANS);
    }

    #[test]
    fn hosts_can_stand_in_a_line() {
        for host in ["10.0.0.1", "fe80::1%eth0", "node-1.example.org"] {
            assert!(is_host(host), "{host}");
        }
        for host in ["", "a b", "a\nb", "h\u{f6}", &"x".repeat(256)] {
            assert!(!is_host(host), "{host}");
        }
        assert_eq!(hash_of("a"), 0xaf63_dc4c_8601_ec8c);
    }
}
