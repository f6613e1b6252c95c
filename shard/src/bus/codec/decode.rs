//! Frames as messages. Nothing that comes is believed before it is checked.

use bytes::Bytes;
use rkyv::Portable;
use rkyv::api::high::HighValidator;
use rkyv::bytecheck::CheckBytes;
use rkyv::rancor::Failure;
use rkyv::util::AlignedVec;

use super::MESSAGE_HEADER_BYTES;
use super::payload::*;
use super::words::Numbered;
use crate::bus::frame::BadFrame;
use crate::bus::message::{JobCopy, Members, Refusal, RemoteAnswer, RemoteRequest, Standing};
use crate::bus::{BusMessage, LinkKind};
use crate::commands::IdVerb;
use crate::commands::view::{HolderView, JobState, JobView, PauseState, QueueView};
use crate::id::{JobId, NodeId};
use crate::limits::{
    BUS_BATCH_BYTES, BUS_ERROR_BYTES, BUS_ITEMS, BUS_PACKET_BYTES, HOLDERS, MAX_ARGUMENTS, MAX_BULK_BYTES,
    MAX_SECONDS,
};
use crate::log::Holder;
use crate::message::{SessionId, Ticket};
use crate::slot::Slot;
use crate::wire::Blob;

/// Names and bodies from this length on may stay in the frame they came in.
const SHARED_BYTES: usize = 4096;

/// Reads batches. It keeps nothing but a buffer.
#[derive(Debug, Default)]
pub struct Decoder {
    /// The fixed part of the present message, aligned.
    fixed: AlignedVec<16>,
}

impl Decoder {
    /// Adds the messages of a batch that came over a link of this kind, in order. After an error what was added counts for nothing.
    pub fn decode(
        &mut self,
        batch: &Bytes,
        link: LinkKind,
        messages: &mut Vec<BusMessage>,
    ) -> Result<(), BadFrame> {
        let mut at = 0;
        while at < batch.len() {
            let rest = &batch[at..];
            let header: &[u8; MESSAGE_HEADER_BYTES] = rest.first_chunk().ok_or(BadFrame::MessageLength)?;
            let length = |at: usize| {
                let bytes: [u8; 4] = header[at..at + 4].try_into().expect("4 bytes");
                u32::from_le_bytes(bytes) as usize
            };
            let rest = &rest[MESSAGE_HEADER_BYTES..];
            let (fixed, rest) = rest.split_at_checked(length(4)).ok_or(BadFrame::MessageLength)?;
            let raw_bytes = length(8);
            if raw_bytes > rest.len() || header[1..4] != [0; 3] {
                return Err(BadFrame::MessageLength);
            }
            let start = batch.len() - rest.len();
            at = start + raw_bytes;
            // Many small messages take several times the room of their bytes.
            if batch.len() > BUS_BATCH_BYTES && at < batch.len() {
                return Err(BadFrame::MessageLength);
            }
            let kind = Kind::from_number(header[0])
                .filter(|&kind| (kind == Kind::Packet) == (link == LinkKind::Membership))
                .ok_or(BadFrame::MessageKind(header[0]))?;
            self.fixed.clear();
            self.fixed.extend_from_slice(fixed);
            let mut parts = Parts {
                fixed: &self.fixed,
                batch,
                at: start,
                end: at,
                foreign: None,
            };
            match read(kind, &mut parts).filter(|_| parts.at == parts.end) {
                Some(message) => messages.push(message),
                None => {
                    let wrong_slot = parts.foreign.map(BadFrame::Slot);
                    return Err(wrong_slot.unwrap_or(BadFrame::Message(header[0])));
                }
            }
        }
        Ok(())
    }
}

/// The parts of one message.
struct Parts<'a> {
    fixed: &'a AlignedVec<16>,
    batch: &'a Bytes,
    /// Where the rest of the raw part begins in the batch, and its end.
    at: usize,
    end: usize,
    /// A job that was found to have another slot than its queue.
    foreign: Option<JobId>,
}

impl<'a> Parts<'a> {
    fn fixed<A>(&self) -> Option<&'a A>
    where
        A: Portable + for<'b> CheckBytes<HighValidator<'b, Failure>>,
    {
        rkyv::access::<A, Failure>(self.fixed).ok()
    }

    /// So many bytes of the raw part.
    fn bytes(&mut self, bytes: usize) -> Option<Bytes> {
        let end = self.at.checked_add(bytes).filter(|&end| end <= self.end)?;
        let taken = self.batch.slice(self.at..end);
        self.at = end;
        Some(taken)
    }

    /// A name or body; in the frame's own memory when it is most of it.
    fn blob(&mut self, bytes: usize) -> Option<Blob> {
        let taken = self.bytes(bytes).filter(|_| bytes <= MAX_BULK_BYTES)?;
        let is_most = bytes >= SHARED_BYTES && bytes > self.batch.len() / 2;
        Some(if is_most {
            Blob::from(taken)
        } else {
            Blob::copy_from(&taken)
        })
    }

    /// The rest of the raw part.
    fn rest(&mut self) -> Option<Blob> {
        self.blob(self.end - self.at)
    }

    /// Queue and body of a job, whose slot is that of its queue.
    fn job(&mut self, id: JobId, name_bytes: u32) -> Option<(Blob, Blob)> {
        let queue = self.blob(name_bytes as usize)?;
        if Slot::of_queue(&queue) != id.slot() {
            self.foreign = Some(id);
            return None;
        }
        Some((queue, self.rest()?))
    }
}

fn read(kind: Kind, parts: &mut Parts<'_>) -> Option<BusMessage> {
    Some(match kind {
        Kind::Packet => {
            let payload: &ArchivedNothingPayload = parts.fixed()?;
            let bytes = parts.end - parts.at;
            (payload.reserved == 0 && bytes <= BUS_PACKET_BYTES).then_some(())?;
            // It is kept for a moment only, and most of its frame.
            let bytes = parts.bytes(bytes)?;
            BusMessage::Packet { bytes }
        }
        Kind::Copy => {
            let payload: &ArchivedCopyPayload = parts.fixed()?;
            BusMessage::Copy {
                copy: job_from(&payload.job, parts)?,
                wants_answer: payload.wants_answer,
            }
        }
        Kind::Import => BusMessage::Import {
            copy: job_from(parts.fixed()?, parts)?,
        },
        Kind::TransferOffer => offer_from(parts.fixed()?, parts)?,
        Kind::Transfer => transfer_from(parts.fixed()?, parts)?,
        Kind::Interest => interest_from(parts.fixed()?, parts)?,
        Kind::AskPause
        | Kind::AskIds
        | Kind::AskShow
        | Kind::AskWorking
        | Kind::AskLength
        | Kind::AskStat => {
            let (ticket, request) = request_from(kind, parts)?;
            BusMessage::Ask { ticket, request }
        }
        Kind::ToldIds
        | Kind::ToldJob
        | Kind::ToldCount
        | Kind::ToldNotHere
        | Kind::ToldQueue
        | Kind::ToldNoJob
        | Kind::ToldNoQueue
        | Kind::ToldError => {
            let (ticket, answer) = answer_from(kind, parts)?;
            BusMessage::Told { ticket, answer }
        }
        kind => about_job(kind, parts)?,
    })
}

/// Messages without a raw part.
fn about_job(kind: Kind, parts: &Parts<'_>) -> Option<BusMessage> {
    Some(match kind {
        Kind::Copied => BusMessage::Copied { id: id_of(parts)? },
        Kind::WillQueue => {
            let payload: &ArchivedWillQueuePayload = parts.fixed()?;
            BusMessage::WillQueue {
                id: JobId::from_bytes(payload.id),
                counted: payload.counted.to_native(),
            }
        }
        Kind::Left => BusMessage::Left { id: id_of(parts)? },
        Kind::Refused => {
            let payload: &ArchivedRefusedPayload = parts.fixed()?;
            BusMessage::Refused {
                id: JobId::from_bytes(payload.id),
                why: Refusal::from_number(payload.why)?,
            }
        }
        Kind::Holders => {
            let (id, members) = members_from(parts.fixed()?)?;
            BusMessage::Holders { id, members }
        }
        Kind::SetAck => {
            let (id, members) = members_from(parts.fixed()?)?;
            BusMessage::SetAck { id, members }
        }
        Kind::GotAck => {
            let payload: &ArchivedGotAckPayload = parts.fixed()?;
            let (id, members) = members_from(&payload.members)?;
            BusMessage::GotAck {
                id,
                known: payload.known,
                members,
            }
        }
        Kind::Delete => {
            let payload: &ArchivedIdsPayload = parts.fixed()?;
            let ids = ids_from(&payload.ids, BUS_ITEMS)?;
            BusMessage::Delete { ids }
        }
        Kind::Leased => {
            let payload: &ArchivedLeasedPayload = parts.fixed()?;
            BusMessage::Leased {
                id: JobId::from_bytes(payload.id),
                left_ms: payload.left_ms.to_native(),
                deliveries: payload.deliveries.to_native(),
            }
        }
        Kind::Standing => {
            let payload: &ArchivedStandingPayload = parts.fixed()?;
            let standing = match (payload.standing, payload.number.to_native()) {
                (0, left_ms) => Standing::Leased { left_ms },
                (1, 0) => Standing::Queued,
                (2, 0) => Standing::NotMine,
                (3, counted) => Standing::Unknown { counted },
                _ => return None,
            };
            let id = JobId::from_bytes(payload.id);
            BusMessage::Standing { id, standing }
        }
        Kind::Queued => {
            let payload: &ArchivedQueuedPayload = parts.fixed()?;
            BusMessage::Queued {
                id: JobId::from_bytes(payload.id),
                nacks: payload.nacks.to_native(),
                additional_deliveries: payload.additional_deliveries.to_native(),
            }
        }
        Kind::Enqueue => {
            let payload: &ArchivedEnqueuePayload = parts.fixed()?;
            BusMessage::Enqueue {
                id: JobId::from_bytes(payload.id),
                delay_ms: payload.delay_ms.to_native(),
            }
        }
        Kind::Enqueued => {
            let payload: &ArchivedEnqueuedPayload = parts.fixed()?;
            BusMessage::Enqueued {
                id: JobId::from_bytes(payload.id),
                taken: payload.taken,
            }
        }
        Kind::TransferWant | Kind::TransferAsk | Kind::TransferAnswer | Kind::TransferRetire => {
            about_transfer(kind, parts.fixed()?)?
        }
        _ => unreachable!("these have a raw part"),
    })
}

fn about_transfer(kind: Kind, payload: &ArchivedHopPayload) -> Option<BusMessage> {
    let (id, hop) = (JobId::from_bytes(payload.id), payload.hop.to_native());
    Some(match (kind, payload.number.to_native()) {
        (Kind::TransferWant, want) => BusMessage::TransferWant { id, hop, want },
        (Kind::TransferAsk, epoch) => BusMessage::TransferAsk { id, hop, epoch },
        (Kind::TransferAnswer, taken @ 0..=1) => {
            let taken = taken == 1;
            BusMessage::TransferAnswer { id, hop, taken }
        }
        (Kind::TransferRetire, 0) => BusMessage::TransferRetire { id, hop },
        _ => return None,
    })
}

fn id_of(parts: &Parts<'_>) -> Option<JobId> {
    let payload: &ArchivedIdPayload = parts.fixed()?;
    Some(JobId::from_bytes(payload.id))
}

fn ids_from(ids: &[Id], most: usize) -> Option<Vec<JobId>> {
    (ids.len() <= most).then(|| ids.iter().map(|id| JobId::from_bytes(*id)).collect())
}

fn holders_from(payloads: &[ArchivedHolderPayload]) -> Option<Vec<Holder>> {
    let holder = |payload: &ArchivedHolderPayload| Holder {
        node: payload.node,
        epoch: payload.epoch.to_native(),
    };
    (payloads.len() <= HOLDERS).then(|| payloads.iter().map(holder).collect())
}

fn members_from(payload: &ArchivedMembersPayload) -> Option<(JobId, Members)> {
    let members = Members {
        confirmed: holders_from(&payload.confirmed)?,
        asked: holders_from(&payload.asked)?,
    };
    Some((JobId::from_bytes(payload.id), members))
}

fn job_from(payload: &ArchivedJobPayload, parts: &mut Parts<'_>) -> Option<Box<JobCopy>> {
    let (id, members) = members_from(&payload.members)?;
    let seconds = |given: u32| Some(given).filter(|&given| u64::from(given) <= MAX_SECONDS);
    let retry_s = seconds(payload.retry_s.to_native())?;
    if id.at_least_once() != (retry_s > 0) {
        return None;
    }
    let (queue, body) = parts.job(id, payload.name_bytes.to_native())?;
    Some(Box::new(JobCopy {
        id,
        queue,
        body,
        ctime: payload.ctime.to_native(),
        ttl_left_ms: payload.ttl_left_ms.to_native(),
        delay_left_ms: payload.delay_left_ms.to_native(),
        ttl_s: seconds(payload.ttl_s.to_native())?,
        retry_s,
        delay_s: seconds(payload.delay_s.to_native())?,
        replicate: payload.replicate.to_native(),
        nacks: payload.nacks.to_native(),
        additional_deliveries: payload.additional_deliveries.to_native(),
        deliveries: payload.deliveries.to_native(),
        members,
    }))
}

/// Only jobs with RETRY 0 are handed on as a whole.
fn offer_from(payload: &ArchivedOfferPayload, parts: &mut Parts<'_>) -> Option<BusMessage> {
    let id = JobId::from_bytes(payload.id);
    let queue = parts.rest().filter(|_| !id.at_least_once())?;
    if Slot::of_queue(&queue) != id.slot() {
        parts.foreign = Some(id);
        return None;
    }
    Some(BusMessage::TransferOffer {
        id,
        hop: payload.hop.to_native(),
        body_bytes: payload.body_bytes.to_native(),
        queue,
    })
}

fn transfer_from(payload: &ArchivedTransferPayload, parts: &mut Parts<'_>) -> Option<BusMessage> {
    let copy = job_from(&payload.job, parts)?;
    (!copy.id.at_least_once()).then_some(())?;
    Some(BusMessage::Transfer {
        hop: payload.hop.to_native(),
        epoch: payload.epoch.to_native(),
        want: payload.want.to_native(),
        copy,
    })
}

fn interest_from(payload: &ArchivedInterestPayload, parts: &mut Parts<'_>) -> Option<BusMessage> {
    if payload.queues.len() > BUS_ITEMS {
        return None;
    }
    let mut queues = Vec::with_capacity(payload.queues.len());
    for item in payload.queues.iter() {
        let name = parts.blob(item.name_bytes.to_native() as usize)?;
        queues.push((name, item.credit.to_native()));
    }
    Some(BusMessage::Interest {
        lasting: payload.lasting,
        queues,
    })
}

fn request_from(kind: Kind, parts: &mut Parts<'_>) -> Option<(Ticket, RemoteRequest)> {
    match kind {
        Kind::AskIds => {
            let payload: &ArchivedAskIdsPayload = parts.fixed()?;
            let request = RemoteRequest::Ids {
                verb: IdVerb::from_number(payload.verb)?,
                ids: ids_from(&payload.ids, MAX_ARGUMENTS)?,
            };
            Some((ticket_from(&payload.ticket), request))
        }
        Kind::AskShow | Kind::AskWorking => {
            let payload: &ArchivedAskIdPayload = parts.fixed()?;
            let id = JobId::from_bytes(payload.id);
            let request = if kind == Kind::AskShow {
                RemoteRequest::Show(id)
            } else {
                RemoteRequest::Working(id)
            };
            Some((ticket_from(&payload.ticket), request))
        }
        Kind::AskPause => {
            let payload: &ArchivedPausePayload = parts.fixed()?;
            let request = RemoteRequest::Pause {
                queue: parts.rest()?,
                pause: PauseState {
                    input: payload.input,
                    output: payload.output,
                },
                version: payload.version.to_native(),
            };
            Some((ticket_from(&payload.ticket), request))
        }
        _ => {
            let (ticket, queue) = (ticket_from(parts.fixed()?), parts.rest()?);
            let request = if kind == Kind::AskLength {
                RemoteRequest::Length(queue)
            } else {
                RemoteRequest::Stat(queue)
            };
            Some((ticket, request))
        }
    }
}

fn answer_from(kind: Kind, parts: &mut Parts<'_>) -> Option<(Ticket, RemoteAnswer)> {
    let answer = match kind {
        Kind::ToldIds => {
            let payload: &ArchivedToldIdsPayload = parts.fixed()?;
            if payload.held.len() > MAX_ARGUMENTS {
                return None;
            }
            let answer = RemoteAnswer::Ids {
                held: payload.held.to_vec(),
                counted: payload.counted.to_native(),
                paused: payload.paused.to_native(),
            };
            return Some((ticket_from(&payload.ticket), answer));
        }
        Kind::ToldJob => {
            let payload: &ArchivedToldJobPayload = parts.fixed()?;
            let job = view_from(payload, parts)?;
            let answer = RemoteAnswer::Job(Some(Box::new(job)));
            return Some((ticket_from(&payload.ticket), answer));
        }
        Kind::ToldCount => {
            let payload: &ArchivedToldCountPayload = parts.fixed()?;
            let answer = RemoteAnswer::Count(payload.count.to_native());
            return Some((ticket_from(&payload.ticket), answer));
        }
        Kind::ToldQueue => {
            let payload: &ArchivedToldQueuePayload = parts.fixed()?;
            let queue = queue_from(payload, parts.rest()?);
            let answer = RemoteAnswer::Queue(Some(Box::new(queue)));
            return Some((ticket_from(&payload.ticket), answer));
        }
        Kind::ToldNoJob => RemoteAnswer::Job(None),
        Kind::ToldNoQueue => RemoteAnswer::Queue(None),
        Kind::ToldNotHere => RemoteAnswer::NotHere,
        _ => {
            let bytes = parts.end - parts.at;
            let text = parts.bytes(bytes).filter(|_| bytes <= BUS_ERROR_BYTES)?;
            let text = std::str::from_utf8(&text).ok()?;
            // It goes to a client as one line.
            RemoteAnswer::Error(text.replace(char::is_control, "?"))
        }
    };
    Some((ticket_from(parts.fixed()?), answer))
}

fn view_from(payload: &ArchivedToldJobPayload, parts: &mut Parts<'_>) -> Option<JobView> {
    let id = JobId::from_bytes(payload.id);
    let (queue, body) = parts.job(id, payload.name_bytes.to_native())?;
    let holder = |holder: &ArchivedHolderViewPayload| HolderView {
        node: NodeId::from_bytes(holder.node),
        host: holder.host.to_native(),
        confirmed: holder.confirmed,
    };
    if payload.holders.len() > HOLDERS {
        return None;
    }
    Some(JobView {
        id,
        queue,
        state: JobState::from_number(payload.state)?,
        replicate: payload.replicate.to_native(),
        ttl_s: payload.ttl_s.to_native(),
        ctime: payload.ctime.to_native(),
        delay_s: payload.delay_s.to_native(),
        retry_s: payload.retry_s.to_native(),
        nacks: payload.nacks.to_native(),
        additional_deliveries: payload.additional_deliveries.to_native(),
        next_requeue_ms: payload.next_requeue_ms.as_ref().map(|ms| ms.to_native()),
        next_awake_ms: payload.next_awake_ms.as_ref().map(|ms| ms.to_native()),
        holders: payload.holders.iter().map(holder).collect(),
        body,
    })
}

fn queue_from(payload: &ArchivedToldQueuePayload, name: Blob) -> QueueView {
    QueueView {
        name,
        length: payload.length.to_native(),
        age_s: payload.age_s.to_native(),
        idle_s: payload.idle_s.to_native(),
        blocked: payload.blocked.to_native(),
        jobs_in: payload.jobs_in.to_native(),
        jobs_out: payload.jobs_out.to_native(),
        pause: PauseState {
            input: payload.input,
            output: payload.output,
        },
    }
}

fn ticket_from(payload: &ArchivedTicketPayload) -> Ticket {
    Ticket {
        shard: payload.shard.to_native(),
        session: SessionId {
            index: payload.index.to_native(),
            generation: payload.generation.to_native(),
        },
        request: payload.request.to_native(),
    }
}
