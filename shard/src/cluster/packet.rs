//! What membership machines say to each other, as bytes.
//!
//! A packet is one byte of version and one rkyv payload. It may be hostile: what comes out of [`Packet::decode`] has sound records,
//! and lists within their limits.

use bytes::Bytes;
use rkyv::rancor::Failure;
use rkyv::util::AlignedVec;
use rkyv::{Archive, Deserialize, Serialize};

use super::record::{Ban, Record};
use crate::id::NodeId;
use crate::limits;

const VERSION: u8 = 1;
/// The payload is read where rkyv wants it.
const ALIGN: usize = 16;

/// Why a packet was sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A heartbeat that wants one back.
    Beat,
    /// That one, or news.
    Tell,
    /// CLUSTER MEET: take me in.
    Meet,
    /// You are none of us, and this is why: only the bans count.
    Farewell,
}

/// Another node, as the sender knows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rumour {
    /// What it said of itself.
    pub record: Record,
    /// Milliseconds since the sender heard from it; `NEVER` when that is too long ago to matter.
    pub silence_ms: u32,
}

impl Rumour {
    /// Not heard from.
    pub const NEVER: u32 = u32::MAX;
}

/// A packet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Packet {
    /// Why.
    pub kind: Kind,
    /// Who sent it.
    pub sender: Record,
    /// Some of the nodes it knows.
    pub rumours: Vec<Rumour>,
    /// Some of the bans it knows.
    pub bans: Vec<(NodeId, Ban)>,
}

#[derive(Archive, Serialize, Deserialize)]
struct RecordPayload {
    id: [u8; 20],
    generation: u64,
    version: u64,
    host: String,
    port: u16,
    bus_port: u16,
    leaving: bool,
    epoch: u64,
    machine: u64,
    zone: u64,
    memory_level: u8,
}

#[derive(Archive, Serialize, Deserialize)]
struct BanPayload {
    id: [u8; 20],
    count: u64,
    up_to: u64,
}

#[derive(Archive, Serialize, Deserialize)]
struct PacketPayload {
    kind: u8,
    sender: RecordPayload,
    rumours: Vec<(RecordPayload, u32)>,
    bans: Vec<BanPayload>,
}

impl Packet {
    /// As bytes.
    pub fn encode(&self) -> Bytes {
        let payload = PacketPayload {
            kind: match self.kind {
                Kind::Beat => 0,
                Kind::Tell => 1,
                Kind::Meet => 2,
                Kind::Farewell => 3,
            },
            sender: payload_of(&self.sender),
            rumours: self
                .rumours
                .iter()
                .map(|rumour| (payload_of(&rumour.record), rumour.silence_ms))
                .collect(),
            bans: self
                .bans
                .iter()
                .map(|(id, ban)| BanPayload {
                    id: *id.as_bytes(),
                    count: ban.count,
                    up_to: ban.up_to,
                })
                .collect(),
        };
        let body = rkyv::to_bytes::<Failure>(&payload).expect("memory takes what is written");
        assert!(
            body.len() < limits::PACKET_BYTES,
            "the limits of its lists bound a packet"
        );
        let mut bytes = Vec::with_capacity(1 + body.len());
        bytes.push(VERSION);
        bytes.extend_from_slice(&body);
        bytes.into()
    }

    /// From bytes; none when they are no packet of this version, or an unsound one.
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let (&version, body) = bytes.split_first()?;
        if version != VERSION || bytes.len() > limits::PACKET_BYTES {
            return None;
        }
        let mut aligned = AlignedVec::<ALIGN>::with_capacity(body.len());
        aligned.extend_from_slice(body);
        let payload: &ArchivedPacketPayload = rkyv::access::<_, Failure>(&aligned).ok()?;
        if payload.rumours.len() > limits::PACKET_NODES || payload.bans.len() > limits::PACKET_BANS {
            return None;
        }
        let rumour = |(record, silence_ms): (&ArchivedRecordPayload, u32)| {
            Some(Rumour {
                record: record_from(record)?,
                silence_ms,
            })
        };
        Some(Self {
            kind: match payload.kind {
                0 => Kind::Beat,
                1 => Kind::Tell,
                2 => Kind::Meet,
                3 => Kind::Farewell,
                _ => return None,
            },
            sender: record_from(&payload.sender)?,
            rumours: payload
                .rumours
                .iter()
                .map(|pair| rumour((&pair.0, pair.1.to_native())))
                .collect::<Option<_>>()?,
            bans: payload
                .bans
                .iter()
                .map(|ban| {
                    let (count, up_to) = (ban.count.to_native(), ban.up_to.to_native());
                    (NodeId::from_bytes(ban.id), Ban { count, up_to })
                })
                .collect(),
        })
    }
}

fn payload_of(record: &Record) -> RecordPayload {
    let record = record.clone();
    RecordPayload {
        id: *record.id.as_bytes(),
        generation: record.generation,
        version: record.version,
        host: record.host,
        port: record.port,
        bus_port: record.bus_port,
        leaving: record.leaving,
        epoch: record.epoch,
        machine: record.machine,
        zone: record.zone,
        memory_level: record.memory_level,
    }
}

fn record_from(payload: &ArchivedRecordPayload) -> Option<Record> {
    let record = Record {
        id: NodeId::from_bytes(payload.id),
        generation: payload.generation.to_native(),
        version: payload.version.to_native(),
        host: payload.host.as_str().to_owned(),
        port: payload.port.to_native(),
        bus_port: payload.bus_port.to_native(),
        leaving: payload.leaving,
        epoch: payload.epoch.to_native(),
        machine: payload.machine.to_native(),
        zone: payload.zone.to_native(),
        memory_level: payload.memory_level,
    };
    record.is_sound().then_some(record)
}

#[cfg(test)]
pub(super) mod tests {
    use proptest::prelude::*;

    use super::*;

    prop_compose! {
        pub fn record()(
            id in any::<[u8; 20]>(),
            generation in 0..u64::MAX / 2,
            version in 0..u64::MAX / 2,
            host in "([a-z0-9.:-]{1,255})?",
            (port, bus_port, leaving) in any::<(u16, u16, bool)>(),
            epoch in 0..u64::MAX / 2,
            (machine, zone, memory_level) in any::<(u64, u64, u8)>(),
        ) -> Record {
            let id = NodeId::from_bytes(id);
            Record { id, generation, version, host, port, bus_port, leaving, epoch, machine, zone, memory_level }
        }
    }

    prop_compose! {
        fn packet()(
            kind in prop::sample::select(vec![Kind::Beat, Kind::Tell, Kind::Meet, Kind::Farewell]),
            sender in record(),
            rumours in prop::collection::vec((record(), any::<u32>()), 0..=limits::PACKET_NODES),
            bans in prop::collection::vec(any::<([u8; 20], u64, u64)>(), 0..=limits::PACKET_BANS),
        ) -> Packet {
            let rumours = rumours.into_iter().map(|(record, silence_ms)| Rumour { record, silence_ms }).collect();
            let bans = bans.into_iter().map(|(id, count, up_to)| (NodeId::from_bytes(id), Ban { count, up_to })).collect();
            Packet { kind, sender, rumours, bans }
        }
    }

    proptest! {
        #[test]
        fn what_was_said_is_heard(packet in packet()) {
            prop_assert_eq!(Packet::decode(&packet.encode()), Some(packet));
        }

        #[test]
        fn bytes_that_were_changed_do_no_harm(packet in packet(), at in any::<prop::sample::Index>(), byte in any::<u8>()) {
            let mut bytes = packet.encode().to_vec();
            let at = at.index(bytes.len());
            bytes[at] = byte;
            if let Some(heard) = Packet::decode(&bytes) {
                prop_assert!(heard.sender.is_sound() && heard.rumours.iter().all(|rumour| rumour.record.is_sound()));
            }
            bytes.truncate(at);
            prop_assert_eq!(Packet::decode(&bytes), None);
        }
    }

    #[test]
    fn the_longest_packet_is_short_enough() {
        let record = Record {
            id: NodeId::from_bytes([1; 20]),
            generation: 1,
            version: 1,
            host: "x".repeat(limits::HOST_BYTES),
            port: 1,
            bus_port: 1,
            leaving: false,
            epoch: 1,
            machine: 1,
            zone: 1,
            memory_level: 0,
        };
        let rumour = Rumour {
            record: record.clone(),
            silence_ms: 0,
        };
        let mut packet = Packet {
            kind: Kind::Beat,
            sender: record.clone(),
            rumours: vec![rumour; limits::PACKET_NODES],
            bans: vec![(record.id, Ban { count: 1, up_to: 1 }); limits::PACKET_BANS],
        };
        assert_eq!(Packet::decode(&packet.encode()).as_ref(), Some(&packet));
        let mut other = packet.encode().to_vec();
        other[0] = VERSION + 1;
        assert_eq!(Packet::decode(&other), None, "another version");
        packet.sender.host = "a b".into();
        packet.rumours.clear();
        assert_eq!(Packet::decode(&packet.encode()), None, "no host");
    }
}
