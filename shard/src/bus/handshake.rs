//! How two nodes meet on a new connection, as two machines without sockets: [`Dialer`] and [`Acceptor`].
//!
//! ```text
//! packet   magic     "shardq"
//!          version   u16   of the bus (`frame::VERSION`)
//!          kind      u8    the table
//!          reserved  1 zero
//!          length    u16   bytes behind the header
//!
//! facts    node      20    node ID
//!          epoch     u64   store epoch
//!          shard     u16   dialer: whose link it is; acceptor: who serves it
//!          shards    u16   shards of the node
//!          link      u8    1 data, 2 membership
//! ```
//!
//! | packet | kind | from | holds |
//! | --- | --- | --- | --- |
//! | hello | 1 | dialer | 32 random bytes |
//! | challenge | 2 | acceptor | 32 random bytes |
//! | proof | 3 | dialer | facts, and a code over all that was said, keyed with `cluster-secret` (HMAC-SHA-256, RFC 2104) |
//! | welcome | 4 | acceptor | the same |
//! | refused | 5 | acceptor | a number that says why; the end |
//!
//! Numbers are little-endian. The header and `refused` stay as they are in every version, so that a node of another one is refused by
//! name. What must hold: facts are believed after their code was checked, and not before; the code covers both random parts and
//! the side, so that nothing of another handshake, and nothing of one's own, can be said again; the dialer proves itself first. Without a
//! secret the key is empty: a node that has one and a node that has none do not meet.
//!
//! What the code does not do: it proves who speaks at the beginning, and does not seal what follows.

use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;
use thiserror::Error;

use super::{LinkKind, frame};
use crate::id::NodeId;
use crate::limits::MAX_SHARDS;
use crate::slot::ShardNo;

/// Bytes of a packet's header.
pub const HEADER_BYTES: usize = 12;
/// Bytes of a packet behind its header at the most.
pub const MAX_CONTENT_BYTES: usize = 128;
/// Random bytes of each side.
pub const NONCE_BYTES: usize = 32;

const MAGIC: &[u8; 6] = b"shardq";
const VERSION: u16 = frame::VERSION as u16;
const FACTS_BYTES: usize = 33;
const CODE_BYTES: usize = 32;

/// What a side says of itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Facts {
    /// Its node.
    pub node: NodeId,
    /// Its store epoch.
    pub epoch: u64,
    /// The dialer's shard, or the one that serves the link.
    pub shard: ShardNo,
    /// Shards of the node.
    pub shards: u16,
    /// What the link is for.
    pub kind: LinkKind,
}

/// Why two nodes did not meet. What the other side said before it proved itself is in none of these but as a number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum HandshakeError {
    /// Not a packet.
    #[error("what speaks there is no shardq bus")]
    Foreign,
    /// Another version.
    #[error(
        "the other node speaks version {theirs} of the bus, and this one version {VERSION}: run the same version of shardq on both"
    )]
    Version {
        /// The other's.
        theirs: u16,
    },
    /// A packet that has no place here, or with content that cannot be.
    #[error("the other node's handshake goes another way")]
    Malformed,
    /// The code is wrong.
    #[error("the other node has another cluster-secret")]
    Secret,
    /// The other side has this node's ID.
    #[error("it is this node itself, or one with a copy of its ID")]
    Myself,
    /// Another node than the one that was dialed.
    #[error("node {found} is there, and not node {expected}")]
    Unexpected {
        /// Who was to be there.
        expected: NodeId,
        /// Who is.
        found: NodeId,
    },
    /// The other side is about to start, to stop, or to take another identity.
    #[error("the other node takes no links now")]
    NotNow,
}

impl HandshakeError {
    const REASONS: [(u8, Self); 4] = [
        (1, Self::Malformed),
        (2, Self::Secret),
        (3, Self::Myself),
        (4, Self::NotNow),
    ];

    /// What the acceptor says when it ends so; nothing to one that does not speak the bus.
    pub fn refusal(self) -> Option<Vec<u8>> {
        let reason = Self::REASONS.iter().find(|&&(_, error)| error == self);
        match (self, reason) {
            (Self::Version { .. }, _) => Some(packet(Kind::Refused, &[0])),
            (_, Some(&(number, _))) => Some(packet(Kind::Refused, &[number])),
            _ => None,
        }
    }

    fn from_refusal(content: &[u8]) -> Self {
        let reason = Self::REASONS.iter().find(|&&(number, _)| content == [number]);
        reason.map_or(Self::Malformed, |&(_, error)| error)
    }
}

/// What follows from a packet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// Send this, and wait for the next packet.
    Say(Vec<u8>),
    /// The other side has proved itself. The first frames may come right behind its packet.
    Met {
        /// To be sent first.
        say: Vec<u8>,
        /// Who it is.
        peer: Facts,
        /// Round-trip time, microseconds, at least 1; the acceptor does not know it, and says 0.
        rtt_us: u32,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Hello = 1,
    Challenge = 2,
    Proof = 3,
    Welcome = 4,
    Refused = 5,
}

/// How many bytes follow a header; an error when it is none of this version.
pub fn content_bytes(header: &[u8; HEADER_BYTES]) -> Result<usize, HandshakeError> {
    if header[..6] != *MAGIC {
        return Err(HandshakeError::Foreign);
    }
    let theirs = u16::from_le_bytes([header[6], header[7]]);
    if theirs != VERSION {
        return Err(HandshakeError::Version { theirs });
    }
    let bytes = usize::from(u16::from_le_bytes([header[10], header[11]]));
    if bytes > MAX_CONTENT_BYTES || header[9] != 0 {
        return Err(HandshakeError::Malformed);
    }
    Ok(bytes)
}

/// The side that connected.
#[derive(Debug)]
pub struct Dialer {
    me: Facts,
    expect: Option<NodeId>,
    said: Transcript,
    sent_us: u64,
    rtt_us: Option<u64>,
}

impl Dialer {
    /// Begins: the first packet. `nonce` is random and used once.
    pub fn start(
        now_us: u64,
        me: Facts,
        expect: Option<NodeId>,
        secret: &[u8],
        nonce: [u8; NONCE_BYTES],
    ) -> (Self, Vec<u8>) {
        let hello = packet(Kind::Hello, &nonce);
        let mut said = Transcript::new(secret);
        said.add(&hello);
        let dialer = Self {
            me,
            expect,
            said,
            sent_us: now_us,
            rtt_us: None,
        };
        (dialer, hello)
    }

    /// Takes a whole packet of the other side.
    pub fn receive(&mut self, now_us: u64, packet: &[u8]) -> Result<Step, HandshakeError> {
        let (kind, content) = open(packet)?;
        let round_trip_us = now_us.saturating_sub(self.sent_us);
        match (kind, self.rtt_us) {
            (Kind::Refused, _) => Err(HandshakeError::from_refusal(content)),
            (Kind::Challenge, None) if content.len() == NONCE_BYTES => {
                self.rtt_us = Some(round_trip_us);
                self.sent_us = now_us;
                self.said.add(packet);
                Ok(Step::Say(self.said.prove(Kind::Proof, &self.me)))
            }
            (Kind::Welcome, Some(first_us)) => {
                let peer = self.said.check(Kind::Welcome, packet)?;
                self.is_wanted(&peer)?;
                let rtt_us = first_us.min(round_trip_us).clamp(1, u64::from(u32::MAX));
                Ok(Step::Met {
                    say: Vec::new(),
                    peer,
                    rtt_us: rtt_us as u32,
                })
            }
            _ => Err(HandshakeError::Malformed),
        }
    }

    fn is_wanted(&self, peer: &Facts) -> Result<(), HandshakeError> {
        let found = peer.node;
        if found == self.me.node {
            return Err(HandshakeError::Myself);
        }
        if let Some(expected) = self.expect.filter(|&expected| expected != found) {
            return Err(HandshakeError::Unexpected { expected, found });
        }
        if peer.shard != self.me.shard % peer.shards || peer.kind != self.me.kind {
            return Err(HandshakeError::Malformed);
        }
        Ok(())
    }
}

/// The side that was connected to.
#[derive(Debug)]
pub struct Acceptor {
    node: NodeId,
    epoch: u64,
    shards: u16,
    said: Transcript,
    nonce: [u8; NONCE_BYTES],
    has_challenged: bool,
}

impl Acceptor {
    /// Waits for the first packet. `nonce` is random and used once.
    pub fn new(node: NodeId, epoch: u64, shards: u16, secret: &[u8], nonce: [u8; NONCE_BYTES]) -> Self {
        Self {
            node,
            epoch,
            shards,
            said: Transcript::new(secret),
            nonce,
            has_challenged: false,
        }
    }

    /// Takes a whole packet of the other side. After an error its [`HandshakeError::refusal`] is sent.
    pub fn receive(&mut self, packet: &[u8]) -> Result<Step, HandshakeError> {
        let (kind, content) = open(packet)?;
        match (kind, self.has_challenged) {
            (Kind::Hello, false) if content.len() == NONCE_BYTES => {
                self.has_challenged = true;
                self.said.add(packet);
                let challenge = self::packet(Kind::Challenge, &self.nonce);
                self.said.add(&challenge);
                Ok(Step::Say(challenge))
            }
            (Kind::Proof, true) => {
                let peer = self.said.check(Kind::Proof, packet)?;
                if peer.node == self.node {
                    return Err(HandshakeError::Myself);
                }
                let me = Facts {
                    node: self.node,
                    epoch: self.epoch,
                    shard: peer.shard % self.shards,
                    shards: self.shards,
                    kind: peer.kind,
                };
                Ok(Step::Met {
                    say: self.said.prove(Kind::Welcome, &me),
                    peer,
                    rtt_us: 0,
                })
            }
            _ => Err(HandshakeError::Malformed),
        }
    }
}

/// All packets so far, under the key.
#[derive(Clone)]
struct Transcript(Hmac<Sha256>);

impl std::fmt::Debug for Transcript {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Transcript")
    }
}

impl Transcript {
    fn new(secret: &[u8]) -> Self {
        Self(Hmac::new_from_slice(secret).expect("a key of any length will do"))
    }

    fn add(&mut self, packet: &[u8]) {
        self.0.update(packet);
    }

    /// A packet of facts and their code; it is added.
    fn prove(&mut self, kind: Kind, facts: &Facts) -> Vec<u8> {
        let mut packet = packet(kind, &[0; FACTS_BYTES + CODE_BYTES]);
        let code_at = HEADER_BYTES + FACTS_BYTES;
        write_facts(facts, &mut packet[HEADER_BYTES..code_at]);
        let code = self.code(&packet[..code_at]).finalize().into_bytes();
        packet[code_at..].copy_from_slice(&code);
        self.add(&packet);
        packet
    }

    /// The facts of a packet whose code is right; it is added.
    fn check(&mut self, kind: Kind, packet: &[u8]) -> Result<Facts, HandshakeError> {
        let (found, content) = open(packet)?;
        if found != kind || content.len() != FACTS_BYTES + CODE_BYTES {
            return Err(HandshakeError::Malformed);
        }
        let (proved, code) = packet.split_at(HEADER_BYTES + FACTS_BYTES);
        self.code(proved)
            .verify_slice(code)
            .map_err(|_| HandshakeError::Secret)?;
        self.add(packet);
        read_facts(&content[..FACTS_BYTES]).ok_or(HandshakeError::Malformed)
    }

    /// The packet's kind is among what it is over: so neither side's code is the other's.
    fn code(&self, proved: &[u8]) -> Hmac<Sha256> {
        self.0.clone().chain_update(proved)
    }
}

fn packet(kind: Kind, content: &[u8]) -> Vec<u8> {
    assert!(content.len() <= MAX_CONTENT_BYTES);
    let mut packet = Vec::with_capacity(HEADER_BYTES + content.len());
    packet.extend_from_slice(MAGIC);
    packet.extend_from_slice(&VERSION.to_le_bytes());
    packet.extend_from_slice(&[kind as u8, 0]);
    packet.extend_from_slice(&(content.len() as u16).to_le_bytes());
    packet.extend_from_slice(content);
    packet
}

/// Kind and content of a whole packet.
fn open(packet: &[u8]) -> Result<(Kind, &[u8]), HandshakeError> {
    let header: &[u8; HEADER_BYTES] = packet.first_chunk().ok_or(HandshakeError::Malformed)?;
    let content = &packet[HEADER_BYTES..];
    if content_bytes(header)? != content.len() {
        return Err(HandshakeError::Malformed);
    }
    let kinds = [
        Kind::Hello,
        Kind::Challenge,
        Kind::Proof,
        Kind::Welcome,
        Kind::Refused,
    ];
    let kind = kinds.into_iter().find(|&kind| kind as u8 == header[8]);
    Ok((kind.ok_or(HandshakeError::Malformed)?, content))
}

fn write_facts(facts: &Facts, to: &mut [u8]) {
    to[..20].copy_from_slice(facts.node.as_bytes());
    to[20..28].copy_from_slice(&facts.epoch.to_le_bytes());
    to[28..30].copy_from_slice(&facts.shard.to_le_bytes());
    to[30..32].copy_from_slice(&facts.shards.to_le_bytes());
    to[32] = match facts.kind {
        LinkKind::Data => 1,
        LinkKind::Membership => 2,
    };
}

fn read_facts(from: &[u8]) -> Option<Facts> {
    let facts = Facts {
        node: NodeId::from_bytes(from[..20].try_into().ok()?),
        epoch: u64::from_le_bytes(from[20..28].try_into().ok()?),
        shard: u16::from_le_bytes(from[28..30].try_into().ok()?),
        shards: u16::from_le_bytes(from[30..32].try_into().ok()?),
        kind: match from[32] {
            1 => LinkKind::Data,
            2 => LinkKind::Membership,
            _ => return None,
        },
    };
    let is_shard = facts.shard < facts.shards && facts.shards <= MAX_SHARDS;
    let is_of_kind = facts.kind == LinkKind::Data || facts.shard == 0;
    (is_shard && is_of_kind).then_some(facts)
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;

    fn node(byte: u8) -> NodeId {
        NodeId::from_bytes([byte; 20])
    }

    const ME: u8 = 1;
    const OTHER: u8 = 2;

    fn facts(shard: u16, kind: LinkKind) -> Facts {
        Facts {
            node: node(ME),
            epoch: 77,
            shard,
            shards: 8,
            kind,
        }
    }

    fn acceptor(id: u8, secret: &str) -> Acceptor {
        Acceptor::new(node(id), 99, 3, secret.as_bytes(), [5; NONCE_BYTES])
    }

    fn dialer(shard: u16, expect: Option<u8>, secret: &str) -> (Dialer, Vec<u8>) {
        let me = facts(shard, LinkKind::Data);
        Dialer::start(1000, me, expect.map(node), secret.as_bytes(), [4; NONCE_BYTES])
    }

    /// What each side comes to when they talk.
    fn talk(
        (mut dialer, mut packet): (Dialer, Vec<u8>),
        acceptor: &mut Acceptor,
    ) -> (
        Result<Facts, HandshakeError>,
        Result<(Facts, u32), HandshakeError>,
    ) {
        let mut now_us = 1000;
        let mut accepted = None;
        loop {
            now_us += 300;
            packet = match acceptor.receive(&packet) {
                Ok(Step::Say(answer)) => answer,
                Ok(Step::Met { say, peer, .. }) => {
                    accepted = Some(Ok(peer));
                    say
                }
                Err(error) => {
                    accepted = Some(Err(error));
                    error.refusal().expect("it is told why")
                }
            };
            packet = match dialer.receive(now_us, &packet) {
                Ok(Step::Say(answer)) => answer,
                Ok(Step::Met { say, peer, rtt_us }) => {
                    assert!(say.is_empty());
                    return (accepted.expect("it came first"), Ok((peer, rtt_us)));
                }
                Err(error) => return (accepted.expect("it came first"), Err(error)),
            };
        }
    }

    #[test]
    fn two_nodes_with_the_same_secret_meet() {
        for secret in ["", "open sesame"] {
            let (accepted, dialed) = talk(dialer(7, Some(OTHER), secret), &mut acceptor(OTHER, secret));
            assert_eq!(accepted, Ok(facts(7, LinkKind::Data)));
            let other = Facts {
                node: node(OTHER),
                epoch: 99,
                shard: 1,
                shards: 3,
                kind: LinkKind::Data,
            };
            assert_eq!(dialed, Ok((other, 300)), "who serves it, and the round trip");
        }
    }

    #[test]
    fn who_has_another_secret_is_refused() {
        for (mine, other) in [("one", "two"), ("one", ""), ("", "two")] {
            let (accepted, dialed) = talk(dialer(0, None, mine), &mut acceptor(OTHER, other));
            assert_eq!(accepted, Err(HandshakeError::Secret));
            assert_eq!(dialed, Err(HandshakeError::Secret));
        }
    }

    #[test]
    fn an_acceptor_that_does_not_know_the_secret_is_not_believed() {
        // It lets anyone in, as one would who does not know what the dialer's code should be.
        let (mut dialer, hello) = dialer(0, None, "open sesame");
        let mut impostor = Transcript::new(b"guess");
        let challenge = packet(Kind::Challenge, &[6; NONCE_BYTES]);
        impostor.add(&hello);
        impostor.add(&challenge);
        let Ok(Step::Say(proof)) = dialer.receive(2000, &challenge) else {
            panic!("a challenge is answered")
        };
        impostor.add(&proof);
        let welcome = impostor.prove(Kind::Welcome, &facts(0, LinkKind::Data));
        assert_eq!(dialer.receive(3000, &welcome), Err(HandshakeError::Secret));
        // Nor one that says the dialer's own code again.
        let mut echo = proof.clone();
        assert_eq!(dialer.receive(3000, &echo), Err(HandshakeError::Malformed));
        echo[8] = Kind::Welcome as u8;
        assert_eq!(dialer.receive(3000, &echo), Err(HandshakeError::Secret));
    }

    #[test]
    fn a_proof_is_of_no_use_to_another_acceptor() {
        let (mut dialer, hello) = dialer(0, None, "open sesame");
        let mut first = acceptor(OTHER, "open sesame");
        let Ok(Step::Say(challenge)) = first.receive(&hello) else {
            panic!("a hello is answered")
        };
        let Ok(Step::Say(proof)) = dialer.receive(2000, &challenge) else {
            panic!("a challenge is answered")
        };
        let mut second = acceptor(OTHER, "open sesame");
        second.nonce = [9; NONCE_BYTES];
        assert!(second.receive(&hello).is_ok());
        assert_eq!(second.receive(&proof), Err(HandshakeError::Secret));
        assert!(first.receive(&proof).is_ok());
    }

    #[test]
    fn a_node_knows_itself() {
        let (accepted, dialed) = talk(dialer(0, None, ""), &mut acceptor(ME, ""));
        assert_eq!(accepted, Err(HandshakeError::Myself));
        assert_eq!(dialed, Err(HandshakeError::Myself));
    }

    #[test]
    fn another_node_than_the_one_dialed_is_named() {
        let (accepted, dialed) = talk(dialer(0, Some(9), ""), &mut acceptor(OTHER, ""));
        assert!(accepted.is_ok());
        let Err(error) = dialed else { panic!("not met") };
        let text = error.to_string();
        assert!(
            text.contains(&node(9).to_string()) && text.contains(&node(OTHER).to_string()),
            "{text}"
        );
    }

    #[test]
    fn another_version_is_refused_by_name_on_both_sides() {
        let (mut dialer, mut hello) = dialer(0, None, "");
        hello[6..8].copy_from_slice(&7_u16.to_le_bytes());
        let error = acceptor(OTHER, "").receive(&hello).unwrap_err();
        assert_eq!(error, HandshakeError::Version { theirs: 7 });
        let ours = format!("version {VERSION}");
        assert!(error.to_string().contains("version 7") && error.to_string().contains(&ours));
        let mut refusal = error.refusal().unwrap();
        refusal[6..8].copy_from_slice(&3_u16.to_le_bytes());
        assert_eq!(
            dialer.receive(2000, &refusal),
            Err(HandshakeError::Version { theirs: 3 })
        );
    }

    #[test]
    fn a_refusal_says_why() {
        for error in [
            HandshakeError::Malformed,
            HandshakeError::Secret,
            HandshakeError::Myself,
            HandshakeError::NotNow,
        ] {
            let (mut dialer, _) = dialer(0, None, "");
            assert_eq!(dialer.receive(2000, &error.refusal().unwrap()), Err(error));
        }
        assert_eq!(HandshakeError::Foreign.refusal(), None);
    }

    #[test]
    fn what_is_no_bus_is_seen_at_once() {
        assert_eq!(
            content_bytes(b"GET / HTTP/1"),
            Err(HandshakeError::Foreign),
            "before more is read"
        );
        let mut long = [0; HEADER_BYTES];
        long.copy_from_slice(&packet(Kind::Hello, &[])[..]);
        long[10..].copy_from_slice(&u16::MAX.to_le_bytes());
        assert_eq!(content_bytes(&long), Err(HandshakeError::Malformed));
    }

    #[test]
    fn facts_that_cannot_be_are_refused_though_their_code_is_right() {
        let good = facts(7, LinkKind::Data);
        for bad in [
            Facts { shard: 8, ..good },
            Facts {
                shard: 0,
                shards: 0,
                ..good
            },
            Facts {
                shards: MAX_SHARDS + 1,
                ..good
            },
            Facts {
                kind: LinkKind::Membership,
                ..good
            },
        ] {
            let start = Dialer::start(0, bad, None, b"", [1; NONCE_BYTES]);
            let (accepted, _) = talk(start, &mut acceptor(OTHER, ""));
            assert_eq!(accepted, Err(HandshakeError::Malformed), "{bad:?}");
        }
    }

    proptest! {
        #[test]
        fn arbitrary_packets_are_refused(
            kind in 0u8..8,
            content in vec(any::<u8>(), 0..200),
            challenged: bool,
        ) {
            let mut packet = packet(Kind::Hello, &[]);
            packet[8] = kind;
            packet[10..].copy_from_slice(&(content.len() as u16).to_le_bytes());
            packet.extend_from_slice(&content);
            let (mut dialer, hello) = dialer(0, None, "open sesame");
            let mut acceptor = acceptor(OTHER, "open sesame");
            if challenged {
                let Ok(Step::Say(challenge)) = acceptor.receive(&hello) else { panic!("a hello is answered") };
                prop_assert!(dialer.receive(2000, &challenge).is_ok());
            }
            let met = [acceptor.receive(&packet), dialer.receive(3000, &packet)];
            prop_assert!(!met.iter().any(|step| matches!(step, Ok(Step::Met { .. }))), "{met:?}");
        }

        #[test]
        fn a_changed_packet_lets_nobody_in(which in 0usize..4, at: prop::sample::Index, bit in 0u8..8) {
            let (mut dialer, mut packet) = dialer(0, None, "open sesame");
            let mut acceptor = acceptor(OTHER, "open sesame");
            let change = |number: usize, packet: &mut Vec<u8>| {
                if number == which {
                    let at = at.index(packet.len());
                    packet[at] ^= 1 << bit;
                }
            };
            let mut has_met = (false, false);
            for round in 0..2 {
                change(2 * round, &mut packet);
                packet = match acceptor.receive(&packet) {
                    Ok(Step::Say(say)) => say,
                    Ok(Step::Met { say, .. }) => {
                        has_met.0 = true;
                        say
                    }
                    Err(_) => break,
                };
                change(2 * round + 1, &mut packet);
                packet = match dialer.receive(2000, &packet) {
                    Ok(Step::Say(say)) => say,
                    Ok(Step::Met { .. }) => {
                        has_met.1 = true;
                        break;
                    }
                    Err(_) => break,
                };
            }
            // The acceptor is through before the last packet goes.
            prop_assert_eq!(has_met, (which == 3, false));
        }
    }
}
