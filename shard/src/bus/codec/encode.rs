//! Messages as frames.

use bytes::{Bytes, BytesMut};
use rkyv::Serialize;
use rkyv::api::high::HighSerializer;
use rkyv::rancor::Failure;
use rkyv::ser::allocator::ArenaHandle;
use rkyv::util::AlignedVec;
use smallvec::{SmallVec, smallvec};

use super::MESSAGE_HEADER_BYTES;
use super::payload::*;
use super::words::Numbered;
use crate::bus::BusMessage;
use crate::bus::frame::{FrameKind, HEADER_BYTES, write_header};
use crate::bus::message::{JobCopy, Members, RemoteAnswer, RemoteRequest, Standing};
use crate::commands::view::{HolderView, JobView, QueueView};
use crate::id::JobId;
use crate::limits::{
    BUS_BATCH_BYTES, BUS_ERROR_BYTES, BUS_ITEMS, BUS_LARGE_BYTES, BUS_PACKET_BYTES, HOLDERS,
};
use crate::log::Holder;
use crate::message::Ticket;
use crate::wire::Blob;

/// Bytes of names in one message of interest, above which the rest goes in a further one.
const NAMES_BYTES: usize = BUS_LARGE_BYTES;

/// A frame ready to be sent.
#[derive(Debug)]
pub struct OutFrame {
    /// Its bytes, in order.
    pub chunks: SmallVec<[Bytes; 2]>,
    /// How many messages are in it.
    pub messages: u32,
}

impl OutFrame {
    /// Bytes on the wire.
    pub fn bytes(&self) -> usize {
        self.chunks.iter().map(Bytes::len).sum()
    }
}

/// Makes frames of batches. It keeps nothing but its buffers.
#[derive(Debug, Default)]
pub struct Encoder {
    /// The fixed part of the present message.
    fixed: AlignedVec<16>,
    /// The present frame.
    frame: BytesMut,
    /// Messages in it.
    messages: u32,
}

/// The raw part of a message.
enum Raw<'a> {
    Nothing,
    Bytes(&'a [u8]),
    /// A queue and a body.
    Job(&'a Blob, &'a Blob),
    Names(&'a [(Blob, u32)]),
}

impl Encoder {
    /// Encodes messages for one peer, emptying the batch: most of the time as one frame, large messages in frames of their own. The order
    /// is kept.
    pub fn encode(&mut self, messages: &mut Vec<BusMessage>, mut sink: impl FnMut(OutFrame)) {
        for message in messages.drain(..) {
            match &message {
                BusMessage::Delete { ids } => {
                    for ids in ids.chunks(BUS_ITEMS) {
                        self.fix(&ids_payload(ids));
                        self.add(Kind::Delete, &Raw::Nothing, &mut sink);
                    }
                }
                BusMessage::Interest { lasting, queues } => self.interest(*lasting, queues, &mut sink),
                message => {
                    let (kind, raw) = self.prepare(message);
                    self.add(kind, &raw, &mut sink);
                }
            }
        }
        self.end_frame(&mut sink);
    }

    /// A list of any length: what does not fit into one message follows in others.
    fn interest(&mut self, lasting: bool, queues: &[(Blob, u32)], sink: &mut impl FnMut(OutFrame)) {
        let mut rest = queues;
        loop {
            let mut bytes = 0;
            let fits = |(name, _): &&(Blob, u32)| {
                bytes += name.len();
                bytes <= NAMES_BYTES
            };
            let count = rest.iter().take(BUS_ITEMS).take_while(fits).count();
            let (now, later) = rest.split_at(count.max(1).min(rest.len()));
            let item = |(name, credit): &(Blob, u32)| InterestItem {
                name_bytes: name.len() as u32,
                credit: *credit,
            };
            let queues = now.iter().map(item).collect();
            self.fix(&InterestPayload { queues, lasting });
            self.add(Kind::Interest, &Raw::Names(now), sink);
            rest = later;
            if rest.is_empty() {
                return;
            }
        }
    }

    /// Makes the fixed part of a message of the other kinds.
    fn prepare<'a>(&mut self, message: &'a BusMessage) -> (Kind, Raw<'a>) {
        let mut raw = Raw::Nothing;
        let kind = match message {
            BusMessage::Packet { bytes } => {
                assert!(
                    bytes.len() <= BUS_PACKET_BYTES,
                    "membership keeps its packets short"
                );
                raw = Raw::Bytes(bytes);
                self.fixed(Kind::Packet, &NothingPayload { reserved: 0 })
            }
            BusMessage::Copy { copy, wants_answer } => {
                raw = Raw::Job(&copy.queue, &copy.body);
                let (job, wants_answer) = (job_payload(copy), *wants_answer);
                self.fixed(Kind::Copy, &CopyPayload { job, wants_answer })
            }
            BusMessage::Import { copy } => {
                raw = Raw::Job(&copy.queue, &copy.body);
                self.fixed(Kind::Import, &job_payload(copy))
            }
            BusMessage::TransferOffer {
                id,
                hop,
                body_bytes,
                queue,
            } => {
                raw = Raw::Bytes(queue);
                let payload = OfferPayload {
                    hop: *hop,
                    body_bytes: *body_bytes,
                    id: *id.as_bytes(),
                };
                self.fixed(Kind::TransferOffer, &payload)
            }
            BusMessage::Transfer {
                hop,
                epoch,
                want,
                copy,
            } => {
                raw = Raw::Job(&copy.queue, &copy.body);
                let payload = TransferPayload {
                    hop: *hop,
                    epoch: *epoch,
                    want: *want,
                    job: job_payload(copy),
                };
                self.fixed(Kind::Transfer, &payload)
            }
            BusMessage::Ask { ticket, request } => return self.ask(*ticket, request),
            BusMessage::Told { ticket, answer } => return self.told(*ticket, answer),
            BusMessage::Delete { .. } | BusMessage::Interest { .. } => {
                unreachable!("these go as several messages")
            }
            message => self.about_job(message),
        };
        (kind, raw)
    }

    /// Messages without a raw part.
    fn about_job(&mut self, message: &BusMessage) -> Kind {
        match message {
            BusMessage::Copied { id } => self.fixed(Kind::Copied, &id_payload(id)),
            BusMessage::WillQueue { id, counted } => {
                let (id, counted) = (*id.as_bytes(), *counted);
                self.fixed(Kind::WillQueue, &WillQueuePayload { counted, id })
            }
            BusMessage::Left { id } => self.fixed(Kind::Left, &id_payload(id)),
            BusMessage::Refused { id, why } => {
                let (id, why) = (*id.as_bytes(), why.number());
                self.fixed(Kind::Refused, &RefusedPayload { id, why })
            }
            BusMessage::Holders { id, members } => self.fixed(Kind::Holders, &members_payload(id, members)),
            BusMessage::SetAck { id, members } => self.fixed(Kind::SetAck, &members_payload(id, members)),
            BusMessage::GotAck { id, known, members } => {
                let (members, known) = (members_payload(id, members), *known);
                self.fixed(Kind::GotAck, &GotAckPayload { members, known })
            }
            BusMessage::Leased {
                id,
                left_ms,
                deliveries,
            } => {
                let payload = LeasedPayload {
                    left_ms: *left_ms,
                    id: *id.as_bytes(),
                    deliveries: *deliveries,
                };
                self.fixed(Kind::Leased, &payload)
            }
            BusMessage::Standing { id, standing } => {
                let (standing, number) = match standing {
                    Standing::Leased { left_ms } => (0, *left_ms),
                    Standing::Queued => (1, 0),
                    Standing::NotMine => (2, 0),
                    Standing::Unknown { counted } => (3, *counted),
                };
                let payload = StandingPayload {
                    number,
                    id: *id.as_bytes(),
                    standing,
                };
                self.fixed(Kind::Standing, &payload)
            }
            BusMessage::Queued {
                id,
                nacks,
                additional_deliveries,
            } => {
                let payload = QueuedPayload {
                    id: *id.as_bytes(),
                    nacks: *nacks,
                    additional_deliveries: *additional_deliveries,
                };
                self.fixed(Kind::Queued, &payload)
            }
            BusMessage::Enqueue { id, delay_ms } => {
                let (id, delay_ms) = (*id.as_bytes(), *delay_ms);
                self.fixed(Kind::Enqueue, &EnqueuePayload { delay_ms, id })
            }
            BusMessage::Enqueued { id, taken } => {
                let (id, taken) = (*id.as_bytes(), *taken);
                self.fixed(Kind::Enqueued, &EnqueuedPayload { id, taken })
            }
            BusMessage::TransferWant { id, hop, want } => {
                self.fixed(Kind::TransferWant, &hop_payload(id, *hop, *want))
            }
            BusMessage::TransferAsk { id, hop, epoch } => {
                self.fixed(Kind::TransferAsk, &hop_payload(id, *hop, *epoch))
            }
            BusMessage::TransferAnswer { id, hop, taken } => {
                self.fixed(Kind::TransferAnswer, &hop_payload(id, *hop, u64::from(*taken)))
            }
            BusMessage::TransferRetire { id, hop } => {
                self.fixed(Kind::TransferRetire, &hop_payload(id, *hop, 0))
            }
            _ => unreachable!("these have a raw part"),
        }
    }

    fn ask<'a>(&mut self, ticket: Ticket, request: &'a RemoteRequest) -> (Kind, Raw<'a>) {
        let ticket = ticket_payload(ticket);
        let one = |ticket, id: &JobId| AskIdPayload {
            ticket,
            id: *id.as_bytes(),
        };
        match request {
            RemoteRequest::Ids { verb, ids } => {
                let IdsPayload { ids } = ids_payload(ids);
                let verb = verb.number();
                let payload = AskIdsPayload { ticket, ids, verb };
                (self.fixed(Kind::AskIds, &payload), Raw::Nothing)
            }
            RemoteRequest::Show(id) => (self.fixed(Kind::AskShow, &one(ticket, id)), Raw::Nothing),
            RemoteRequest::Working(id) => (self.fixed(Kind::AskWorking, &one(ticket, id)), Raw::Nothing),
            RemoteRequest::Length(queue) => (self.fixed(Kind::AskLength, &ticket), Raw::Bytes(queue)),
            RemoteRequest::Stat(queue) => (self.fixed(Kind::AskStat, &ticket), Raw::Bytes(queue)),
            RemoteRequest::Pause {
                queue,
                pause,
                version,
            } => {
                let payload = PausePayload {
                    version: *version,
                    ticket,
                    input: pause.input,
                    output: pause.output,
                };
                (self.fixed(Kind::AskPause, &payload), Raw::Bytes(queue))
            }
        }
    }

    fn told<'a>(&mut self, ticket: Ticket, answer: &'a RemoteAnswer) -> (Kind, Raw<'a>) {
        let ticket = ticket_payload(ticket);
        match answer {
            RemoteAnswer::Ids {
                held,
                counted,
                paused,
            } => {
                let payload = ToldIdsPayload {
                    ticket,
                    held: held.clone(),
                    counted: *counted,
                    paused: *paused,
                };
                (self.fixed(Kind::ToldIds, &payload), Raw::Nothing)
            }
            RemoteAnswer::Job(Some(job)) => {
                let kind = self.fixed(Kind::ToldJob, &view_payload(ticket, job));
                (kind, Raw::Job(&job.queue, &job.body))
            }
            RemoteAnswer::Job(None) => (self.fixed(Kind::ToldNoJob, &ticket), Raw::Nothing),
            RemoteAnswer::Count(count) => {
                let payload = ToldCountPayload {
                    count: *count,
                    ticket,
                };
                (self.fixed(Kind::ToldCount, &payload), Raw::Nothing)
            }
            RemoteAnswer::NotHere => (self.fixed(Kind::ToldNotHere, &ticket), Raw::Nothing),
            RemoteAnswer::Queue(Some(queue)) => {
                let kind = self.fixed(Kind::ToldQueue, &queue_payload(ticket, queue));
                (kind, Raw::Bytes(&queue.name))
            }
            RemoteAnswer::Queue(None) => (self.fixed(Kind::ToldNoQueue, &ticket), Raw::Nothing),
            RemoteAnswer::Error(text) => {
                let most = text.len().min(BUS_ERROR_BYTES);
                let end = (0..=most).rev().find(|&at| text.is_char_boundary(at));
                let text = &text.as_bytes()[..end.unwrap_or(0)];
                (self.fixed(Kind::ToldError, &ticket), Raw::Bytes(text))
            }
        }
    }

    fn fixed<P>(&mut self, kind: Kind, payload: &P) -> Kind
    where
        P: for<'a> Serialize<HighSerializer<AlignedVec<16>, ArenaHandle<'a>, Failure>>,
    {
        self.fix(payload);
        kind
    }

    fn fix<P>(&mut self, payload: &P)
    where
        P: for<'a> Serialize<HighSerializer<AlignedVec<16>, ArenaHandle<'a>, Failure>>,
    {
        let mut room = std::mem::take(&mut self.fixed);
        room.clear();
        self.fixed =
            rkyv::api::high::to_bytes_in::<_, Failure>(payload, room).expect("memory is all that this needs");
    }

    /// Adds a message whose fixed part is made.
    fn add(&mut self, kind: Kind, raw: &Raw<'_>, sink: &mut impl FnMut(OutFrame)) {
        let raw_bytes = raw.bytes();
        let bytes = MESSAGE_HEADER_BYTES + self.fixed.len() + raw_bytes;
        let is_large = bytes >= BUS_LARGE_BYTES;
        let held = self.frame.len().saturating_sub(HEADER_BYTES);
        if is_large || held + bytes > BUS_BATCH_BYTES {
            self.end_frame(sink);
        }
        if self.frame.is_empty() {
            self.frame.resize(HEADER_BYTES, 0);
        }
        let mut header = [0; MESSAGE_HEADER_BYTES];
        header[0] = kind as u8;
        header[4..8].copy_from_slice(&(self.fixed.len() as u32).to_le_bytes());
        header[8..].copy_from_slice(&(raw_bytes as u32).to_le_bytes());
        self.frame.extend_from_slice(&header);
        self.frame.extend_from_slice(&self.fixed);
        self.messages += 1;
        match raw {
            Raw::Nothing => {}
            Raw::Bytes(text) => self.frame.extend_from_slice(text),
            Raw::Names(queues) => queues
                .iter()
                .for_each(|(name, _)| self.frame.extend_from_slice(name)),
            Raw::Job(queue, body) => {
                self.frame.extend_from_slice(queue);
                match body.shared().filter(|body| body.len() >= BUS_LARGE_BYTES) {
                    Some(body) => return self.end_with(body.clone(), sink),
                    None => self.frame.extend_from_slice(body),
                }
            }
        }
        if is_large {
            self.end_frame(sink);
        }
    }

    fn end_frame(&mut self, sink: &mut impl FnMut(OutFrame)) {
        if self.messages > 0 {
            write_header(&mut self.frame, FrameKind::Batch, &[]);
            sink(OutFrame {
                chunks: smallvec![self.frame.split().freeze()],
                messages: std::mem::take(&mut self.messages),
            });
        }
    }

    /// Ends the frame with a body that stays where it is.
    fn end_with(&mut self, body: Bytes, sink: &mut impl FnMut(OutFrame)) {
        write_header(&mut self.frame, FrameKind::Batch, &body);
        sink(OutFrame {
            chunks: smallvec![self.frame.split().freeze(), body],
            messages: std::mem::take(&mut self.messages),
        });
    }
}

impl Raw<'_> {
    fn bytes(&self) -> usize {
        match self {
            Self::Nothing => 0,
            Self::Bytes(text) => text.len(),
            Self::Job(queue, body) => queue.len() + body.len(),
            Self::Names(queues) => queues.iter().map(|(name, _)| name.len()).sum(),
        }
    }
}

fn id_payload(id: &JobId) -> IdPayload {
    IdPayload { id: *id.as_bytes() }
}

fn hop_payload(id: &JobId, hop: u64, number: u64) -> HopPayload {
    HopPayload {
        hop,
        number,
        id: *id.as_bytes(),
    }
}

fn ids_payload(ids: &[JobId]) -> IdsPayload {
    IdsPayload {
        ids: ids.iter().map(|id| *id.as_bytes()).collect(),
    }
}

fn members_payload(id: &JobId, members: &Members) -> MembersPayload {
    // A set can only be longer when it was made up, so that nothing is lost with its end.
    let payloads = |holders: &[Holder]| {
        let payload = |holder: &Holder| HolderPayload {
            node: holder.node,
            epoch: holder.epoch,
        };
        holders.iter().take(HOLDERS).map(payload).collect()
    };
    MembersPayload {
        id: *id.as_bytes(),
        confirmed: payloads(&members.confirmed),
        asked: payloads(&members.asked),
    }
}

fn job_payload(job: &JobCopy) -> JobPayload {
    JobPayload {
        ctime: job.ctime,
        ttl_left_ms: job.ttl_left_ms,
        delay_left_ms: job.delay_left_ms,
        members: members_payload(&job.id, &job.members),
        ttl_s: job.ttl_s,
        retry_s: job.retry_s,
        delay_s: job.delay_s,
        nacks: job.nacks,
        additional_deliveries: job.additional_deliveries,
        deliveries: job.deliveries,
        name_bytes: job.queue.len() as u32,
        replicate: job.replicate,
    }
}

fn view_payload(ticket: TicketPayload, job: &JobView) -> ToldJobPayload {
    let holder = |holder: &HolderView| HolderViewPayload {
        host: holder.host,
        node: *holder.node.as_bytes(),
        confirmed: holder.confirmed,
    };
    ToldJobPayload {
        ttl_s: job.ttl_s,
        ctime: job.ctime,
        next_requeue_ms: job.next_requeue_ms,
        next_awake_ms: job.next_awake_ms,
        ticket,
        id: *job.id.as_bytes(),
        delay_s: job.delay_s,
        retry_s: job.retry_s,
        nacks: job.nacks,
        additional_deliveries: job.additional_deliveries,
        name_bytes: job.queue.len() as u32,
        holders: job.holders.iter().take(HOLDERS).map(holder).collect(),
        replicate: job.replicate,
        state: job.state.number(),
    }
}

fn queue_payload(ticket: TicketPayload, queue: &QueueView) -> ToldQueuePayload {
    ToldQueuePayload {
        length: queue.length,
        age_s: queue.age_s,
        idle_s: queue.idle_s,
        blocked: queue.blocked,
        jobs_in: queue.jobs_in,
        jobs_out: queue.jobs_out,
        ticket,
        input: queue.pause.input,
        output: queue.pause.output,
    }
}

fn ticket_payload(ticket: Ticket) -> TicketPayload {
    TicketPayload {
        index: ticket.session.index,
        generation: ticket.session.generation,
        request: ticket.request,
        shard: ticket.shard,
    }
}
