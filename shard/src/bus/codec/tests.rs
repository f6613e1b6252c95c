//! Tests of batches: they come back as they went, and arbitrary bytes harm nobody.
#![expect(clippy::disallowed_types, reason = "prop_oneof! expands to an Arc")]

use bytes::Bytes;
use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;
use proptest::strategy::Union;

use super::payload::Kind;
use super::*;
use crate::bus::frame::{Assembler, BadFrame, Frame, HEADER_BYTES};
use crate::bus::message::{JobCopy, Members, Refusal, RemoteAnswer, RemoteRequest, Standing};
use crate::bus::{BusMessage, LinkKind};
use crate::commands::IdVerb;
use crate::commands::view::{HolderView, JobState, JobView, PauseState, QueueView};
use crate::id::{JobId, NodeId};
use crate::limits::*;
use crate::log::Holder;
use crate::message::{SessionId, Ticket};
use crate::slot::Slot;
use crate::wire::Blob;

fn encode(messages: &[BusMessage]) -> Vec<OutFrame> {
    let mut frames = Vec::new();
    Encoder::default().encode(&mut messages.to_vec(), |frame| frames.push(frame));
    frames
}

/// Puts frames together as their receiver does, and decodes them.
fn receive(bytes: &[u8], link: LinkKind) -> Result<Vec<BusMessage>, BadFrame> {
    let (mut assembler, mut messages) = (Assembler::new(BUS_FRAME_BYTES), Vec::new());
    for mut piece in bytes.chunks(60_000) {
        while !piece.is_empty() {
            if let Some(Frame::Batch(batch)) = assembler.take(&mut piece)? {
                Decoder::default().decode(&batch, link, &mut messages)?;
            }
        }
    }
    Ok(messages)
}

fn bytes_of(frames: &[OutFrame]) -> Vec<u8> {
    frames.iter().flat_map(|frame| frame.chunks.concat()).collect()
}

fn decode(batch: &[u8]) -> Result<Vec<BusMessage>, BadFrame> {
    let (batch, mut messages) = (Bytes::copy_from_slice(batch), Vec::new());
    Decoder::default()
        .decode(&batch, LinkKind::Data, &mut messages)
        .map(|()| messages)
}

fn id_of(queue: &[u8], chance: [u8; 18], at_least_once: bool) -> JobId {
    let node = NodeId::from_bytes([7; 20]);
    JobId::new(node, Slot::of_queue(queue), chance, 86_400, at_least_once)
}

fn copy(queue: &str, body: Blob) -> Box<JobCopy> {
    Box::new(JobCopy {
        id: id_of(queue.as_bytes(), [3; 18], true),
        queue: Blob::from(queue),
        body,
        ctime: 1,
        ttl_left_ms: 2,
        delay_left_ms: 3,
        ttl_s: 4,
        retry_s: 5,
        delay_s: 6,
        replicate: 7,
        nacks: 8,
        additional_deliveries: 9,
        deliveries: 10,
        members: Members::default(),
    })
}

fn ids() -> impl Strategy<Value = JobId> {
    any::<[u8; 24]>().prop_map(JobId::from_bytes)
}

fn blobs() -> impl Strategy<Value = Blob> {
    let lengths = prop_oneof![6 => 0usize..60, 1 => 4000usize..4200, 1 => 16_000usize..17_000];
    (lengths, any::<u8>()).prop_map(|(bytes, fill)| Blob::copy_from(&vec![fill; bytes]))
}

fn holders() -> impl Strategy<Value = Vec<Holder>> {
    let holder = (any::<[u8; 20]>(), any::<u64>()).prop_map(|(node, epoch)| Holder { node, epoch });
    vec(holder, 0..4)
}

fn members() -> impl Strategy<Value = Members> {
    (holders(), holders()).prop_map(|(confirmed, asked)| Members { confirmed, asked })
}

fn copies() -> impl Strategy<Value = Box<JobCopy>> {
    let times = any::<(u64, u64, u64)>();
    let seconds = 0..=MAX_SECONDS as u32;
    let settings = (seconds.clone(), seconds.clone(), seconds, any::<u16>());
    let counts = any::<(u32, u32, u32)>();
    let parts = (
        any::<[u8; 18]>(),
        blobs(),
        blobs(),
        times,
        settings,
        counts,
        members(),
    );
    parts.prop_map(|(chance, queue, body, times, settings, counts, members)| {
        let (ttl_s, retry_s, delay_s, replicate) = settings;
        Box::new(JobCopy {
            id: id_of(&queue, chance, retry_s > 0),
            queue,
            body,
            ctime: times.0,
            ttl_left_ms: times.1,
            delay_left_ms: times.2,
            ttl_s,
            retry_s,
            delay_s,
            replicate,
            nacks: counts.0,
            additional_deliveries: counts.1,
            deliveries: counts.2,
            members,
        })
    })
}

fn tickets() -> impl Strategy<Value = Ticket> {
    any::<(u16, u32, u32, u32)>().prop_map(|(shard, index, generation, request)| Ticket {
        shard,
        session: SessionId { index, generation },
        request,
    })
}

fn pauses() -> impl Strategy<Value = PauseState> {
    any::<(bool, bool)>().prop_map(|(input, output)| PauseState { input, output })
}

fn requests() -> impl Strategy<Value = RemoteRequest> {
    let verbs = prop::sample::select(vec![
        IdVerb::Acknowledge,
        IdVerb::FastAcknowledge,
        IdVerb::Delete,
        IdVerb::Enqueue,
        IdVerb::Nack,
        IdVerb::Dequeue,
    ]);
    prop_oneof![
        (verbs, vec(ids(), 0..5)).prop_map(|(verb, ids)| RemoteRequest::Ids { verb, ids }),
        ids().prop_map(RemoteRequest::Show),
        ids().prop_map(RemoteRequest::Working),
        blobs().prop_map(RemoteRequest::Length),
        blobs().prop_map(RemoteRequest::Stat),
        (blobs(), pauses(), any::<u64>()).prop_map(|(queue, pause, version)| RemoteRequest::Pause {
            queue,
            pause,
            version,
        }),
    ]
}

fn job_views() -> impl Strategy<Value = JobView> {
    let states = prop::sample::select(vec![
        JobState::WaitRepl,
        JobState::Active,
        JobState::Queued,
        JobState::Acked,
    ]);
    let numbers = any::<(u64, u64, u32, u32, u32, u32, u16)>();
    let nexts = (option::of(any::<u64>()), option::of(any::<u64>()));
    let holders = vec(any::<([u8; 20], u64, bool)>(), 0..4);
    let parts = (
        any::<([u8; 18], bool)>(),
        blobs(),
        blobs(),
        states,
        numbers,
        nexts,
        holders,
    );
    parts.prop_map(
        |((chance, again), queue, body, state, numbers, nexts, holders)| JobView {
            id: id_of(&queue, chance, again),
            queue,
            state,
            replicate: numbers.6,
            ttl_s: numbers.0,
            ctime: numbers.1,
            delay_s: numbers.2,
            retry_s: numbers.3,
            nacks: numbers.4,
            additional_deliveries: numbers.5,
            next_requeue_ms: nexts.0,
            next_awake_ms: nexts.1,
            holders: holders
                .into_iter()
                .map(|(node, host, confirmed)| HolderView {
                    node: NodeId::from_bytes(node),
                    host,
                    confirmed,
                })
                .collect(),
            body,
        },
    )
}

fn queue_views() -> impl Strategy<Value = QueueView> {
    let numbers = any::<(u64, u64, u64, u64, u64, u64)>();
    (blobs(), numbers, pauses()).prop_map(|(name, numbers, pause)| QueueView {
        name,
        length: numbers.0,
        age_s: numbers.1,
        idle_s: numbers.2,
        blocked: numbers.3,
        jobs_in: numbers.4,
        jobs_out: numbers.5,
        pause,
    })
}

fn answers() -> impl Strategy<Value = RemoteAnswer> {
    prop_oneof![
        (vec(any::<bool>(), 0..9), any::<u32>(), any::<u32>()).prop_map(|(held, counted, paused)| {
            RemoteAnswer::Ids {
                held,
                counted,
                paused,
            }
        }),
        option::of(job_views()).prop_map(|job| RemoteAnswer::Job(job.map(Box::new))),
        any::<i64>().prop_map(RemoteAnswer::Count),
        Just(RemoteAnswer::NotHere),
        option::of(queue_views()).prop_map(|queue| RemoteAnswer::Queue(queue.map(Box::new))),
        "[A-Z]{3,9} [ -~é]{0,99}".prop_map(RemoteAnswer::Error),
    ]
}

fn standings() -> impl Strategy<Value = Standing> {
    prop_oneof![
        any::<u64>().prop_map(|left_ms| Standing::Leased { left_ms }),
        Just(Standing::Queued),
        Just(Standing::NotMine),
        any::<u64>().prop_map(|counted| Standing::Unknown { counted }),
    ]
}

/// Every kind of message of a link for jobs.
fn messages() -> impl Strategy<Value = BusMessage> {
    use BusMessage as M;
    let reasons = prop::sample::select(vec![
        Refusal::Memory,
        Refusal::Leaving,
        Refusal::Log,
        Refusal::Paused,
        Refusal::Busy,
    ]);
    let about = || (ids(), members());
    let n = any::<u32>;
    Union::new(vec![
        (copies(), any::<bool>())
            .prop_map(|(copy, wants_answer)| M::Copy { copy, wants_answer })
            .boxed(),
        ids().prop_map(|id| M::Copied { id }).boxed(),
        (ids(), reasons)
            .prop_map(|(id, why)| M::Refused { id, why })
            .boxed(),
        about()
            .prop_map(|(id, members)| M::Holders { id, members })
            .boxed(),
        vec(ids(), 1..6).prop_map(|ids| M::Delete { ids }).boxed(),
        about()
            .prop_map(|(id, members)| M::SetAck { id, members })
            .boxed(),
        (about(), any::<bool>())
            .prop_map(|((id, members), known)| M::GotAck { id, known, members })
            .boxed(),
        (ids(), any::<u64>(), n())
            .prop_map(|(id, left_ms, deliveries)| M::Leased {
                id,
                left_ms,
                deliveries,
            })
            .boxed(),
        (ids(), any::<u64>())
            .prop_map(|(id, counted)| M::WillQueue { id, counted })
            .boxed(),
        (ids(), standings())
            .prop_map(|(id, standing)| M::Standing { id, standing })
            .boxed(),
        (ids(), n(), n())
            .prop_map(|(id, nacks, additional_deliveries)| M::Queued {
                id,
                nacks,
                additional_deliveries,
            })
            .boxed(),
        ids().prop_map(|id| M::Left { id }).boxed(),
        (ids(), any::<u64>())
            .prop_map(|(id, delay_ms)| M::Enqueue { id, delay_ms })
            .boxed(),
        (ids(), any::<bool>())
            .prop_map(|(id, taken)| M::Enqueued { id, taken })
            .boxed(),
        copies().prop_map(|copy| M::Import { copy }).boxed(),
        (any::<bool>(), vec((vec(any::<u8>(), 0..60), n()), 0..6))
            .prop_map(|(lasting, queues)| M::Interest {
                lasting,
                queues: queues
                    .into_iter()
                    .map(|(name, credit)| (Blob::copy_from(&name), credit))
                    .collect(),
            })
            .boxed(),
        once_copies()
            .prop_map(|copy| M::TransferOffer {
                id: copy.id,
                hop: copy.ctime,
                body_bytes: copy.ttl_left_ms,
                queue: copy.queue,
            })
            .boxed(),
        (once_copies(), any::<(u64, u64, u64)>())
            .prop_map(|(copy, (hop, epoch, want))| M::Transfer {
                hop,
                epoch,
                want,
                copy,
            })
            .boxed(),
        (ids(), any::<(u64, u64)>())
            .prop_map(|(id, (hop, want))| M::TransferWant { id, hop, want })
            .boxed(),
        (ids(), any::<(u64, u64)>())
            .prop_map(|(id, (hop, epoch))| M::TransferAsk { id, hop, epoch })
            .boxed(),
        (ids(), any::<(u64, bool)>())
            .prop_map(|(id, (hop, taken))| M::TransferAnswer { id, hop, taken })
            .boxed(),
        (ids(), any::<u64>())
            .prop_map(|(id, hop)| M::TransferRetire { id, hop })
            .boxed(),
        (tickets(), requests())
            .prop_map(|(ticket, request)| M::Ask { ticket, request })
            .boxed(),
        (tickets(), answers())
            .prop_map(|(ticket, answer)| M::Told { ticket, answer })
            .boxed(),
    ])
}

/// Of jobs that are handed out at most once.
fn once_copies() -> impl Strategy<Value = Box<JobCopy>> {
    (copies(), any::<[u8; 18]>()).prop_map(|(copy, chance)| {
        let id = id_of(&copy.queue, chance, false);
        Box::new(JobCopy {
            id,
            retry_s: 0,
            ..*copy
        })
    })
}

proptest! {
    #[test]
    fn batches_come_back_as_they_went(batch in vec(messages(), 0..12)) {
        let frames = encode(&batch);
        let sent: u32 = frames.iter().map(|frame| frame.messages).sum();
        prop_assert_eq!(sent as usize, batch.len());
        prop_assert_eq!(receive(&bytes_of(&frames), LinkKind::Data), Ok(batch));
    }

    #[test]
    fn arbitrary_bytes_are_refused(batch in vec(any::<u8>(), 1..300)) {
        prop_assert!(decode(&batch).is_err());
    }

    #[test]
    fn arbitrary_parts_do_no_harm(
        kind in 0u8..40,
        fixed in vec(prop_oneof![3 => 0u8..8, 1 => any::<u8>()], 0..160),
        raw in vec(any::<u8>(), 0..60),
    ) {
        let mut batch = vec![kind, 0, 0, 0];
        batch.extend_from_slice(&(fixed.len() as u32).to_le_bytes());
        batch.extend_from_slice(&(raw.len() as u32).to_le_bytes());
        batch.extend_from_slice(&fixed);
        batch.extend_from_slice(&raw);
        if let Ok(messages) = decode(&batch) {
            // What is taken can be said again, and means the same.
            prop_assert_eq!(receive(&bytes_of(&encode(&messages)), LinkKind::Data), Ok(messages));
        }
    }

    #[test]
    fn changed_batches_do_no_harm(
        batch in vec(messages(), 1..4),
        changes in vec((any::<prop::sample::Index>(), any::<u8>()), 1..6),
        cut in option::of(any::<prop::sample::Index>()),
    ) {
        let mut bytes = bytes_of(&encode(&batch)).split_off(HEADER_BYTES);
        for (at, value) in changes {
            let at = at.index(bytes.len());
            bytes[at] = value;
        }
        if let Some(cut) = cut {
            bytes.truncate(cut.index(bytes.len()));
        }
        if let Ok(messages) = decode(&bytes) {
            prop_assert!(messages.len() <= bytes.len() / MESSAGE_HEADER_BYTES);
        }
    }
}

#[test]
fn a_turn_leaves_as_one_frame() {
    let batch: Vec<_> = (0..200)
        .map(|n| BusMessage::Copied {
            id: JobId::from_bytes([n; 24]),
        })
        .collect();
    let frames = encode(&batch);
    assert_eq!(frames.len(), 1);
    assert_eq!(frames[0].messages, 200);
    assert_eq!(frames[0].bytes(), bytes_of(&frames).len());
    assert!(encode(&[]).is_empty());
}

#[test]
fn a_long_batch_becomes_several_frames() {
    let message = BusMessage::Copy {
        copy: copy("q", Blob::copy_from(&[1; 10_000])),
        wants_answer: true,
    };
    let batch = vec![message; 100];
    let frames = encode(&batch);
    assert!(frames.len() > 3);
    assert!(
        frames
            .iter()
            .all(|frame| frame.bytes() <= BUS_BATCH_BYTES + HEADER_BYTES)
    );
    assert_eq!(receive(&bytes_of(&frames), LinkKind::Data), Ok(batch));
}

#[test]
fn a_large_body_is_sent_and_kept_without_a_copy() {
    let body = Bytes::from(vec![1; BUS_LARGE_BYTES]);
    let small = BusMessage::Copied {
        id: JobId::from_bytes([1; 24]),
    };
    let large = BusMessage::Import {
        copy: copy("q", Blob::from(body.clone())),
    };
    let frames = encode(&[small.clone(), large, small]);
    assert_eq!(frames.len(), 3, "it has a frame of its own");
    assert_eq!(frames[1].chunks[1].as_ptr(), body.as_ptr());

    let batch = Bytes::from(frames[1].chunks.concat()).slice(HEADER_BYTES..);
    let mut messages = Vec::new();
    Decoder::default()
        .decode(&batch, LinkKind::Data, &mut messages)
        .unwrap();
    let [BusMessage::Import { copy }] = &messages[..] else {
        panic!("one message")
    };
    assert!(batch.as_ptr_range().contains(&copy.body.as_ptr()));
}

#[test]
fn a_small_body_does_not_hold_its_frame() {
    let message = BusMessage::Import {
        copy: copy("q", Blob::copy_from(&[1; 5000])),
    };
    let batch = Bytes::from(encode(&[message.clone(), message])[0].chunks.concat()).slice(HEADER_BYTES..);
    let mut messages = Vec::new();
    Decoder::default()
        .decode(&batch, LinkKind::Data, &mut messages)
        .unwrap();
    assert!(batch.try_into_mut().is_ok(), "nobody else has it");
}

#[test]
fn long_lists_go_as_several_messages() {
    let ids: Vec<_> = (0..10_000_u64)
        .map(|n| {
            let mut bytes = [0; 24];
            bytes[..8].copy_from_slice(&n.to_le_bytes());
            JobId::from_bytes(bytes)
        })
        .collect();
    let sent = BusMessage::Delete { ids: ids.clone() };
    let received = receive(&bytes_of(&encode(&[sent])), LinkKind::Data).unwrap();
    assert_eq!(received.len(), 3);
    let received = received.into_iter().flat_map(|message| match message {
        BusMessage::Delete { ids } => ids,
        _ => panic!("only these were sent"),
    });
    assert!(received.eq(ids));

    let mut queues: Vec<_> = (0..9_000)
        .map(|n| (Blob::from(format!("queue:{n}").as_str()), n))
        .collect();
    queues.push((Blob::copy_from(&[b'q'; 40_000]), 1));
    let sent = BusMessage::Interest {
        lasting: true,
        queues: queues.clone(),
    };
    let (mut lasting_ones, mut listed) = (Vec::new(), Vec::new());
    for message in receive(&bytes_of(&encode(&[sent])), LinkKind::Data).unwrap() {
        let BusMessage::Interest { lasting, queues } = message else {
            panic!("only these were sent")
        };
        lasting_ones.push(lasting);
        listed.extend(queues);
    }
    assert!(lasting_ones.len() > 3 && lasting_ones.iter().all(|&lasting| lasting));
    assert_eq!(listed, queues);
}

#[test]
fn packets_have_their_own_link() {
    let packet = BusMessage::Packet {
        bytes: Bytes::from(vec![5; BUS_PACKET_BYTES]),
    };
    let bytes = bytes_of(&encode(std::slice::from_ref(&packet)));
    assert_eq!(receive(&bytes, LinkKind::Membership), Ok(vec![packet]));
    assert_eq!(receive(&bytes, LinkKind::Data), Err(BadFrame::MessageKind(1)));
    let other = bytes_of(&encode(&[small()]));
    let refused = receive(&other, LinkKind::Membership);
    assert_eq!(refused, Err(BadFrame::MessageKind(Kind::Left as u8)));
}

#[test]
fn what_is_wrong_is_named() {
    let refused = |message: BusMessage| {
        let bytes = bytes_of(&encode(&[message]));
        receive(&bytes, LinkKind::Data).unwrap_err()
    };
    let job = |change: &dyn Fn(&mut JobCopy)| {
        let mut copy = copy("mail", Blob::from("Hello"));
        change(&mut copy);
        BusMessage::Import { copy }
    };
    let id = copy("mail", Blob::EMPTY).id;
    let import = BadFrame::Message(Kind::Import as u8);
    let wrong_queue = refused(job(&|copy| copy.queue = Blob::from("post")));
    assert_eq!(wrong_queue, BadFrame::Slot(id));
    assert!(wrong_queue.to_string().contains(&id.to_string()));
    assert_eq!(refused(job(&|copy| copy.retry_s = 0)), import);
    assert_eq!(refused(job(&|copy| copy.ttl_s = u32::MAX)), import);
    let again = BusMessage::Transfer {
        hop: 1,
        epoch: 2,
        want: 3,
        copy: copy("mail", Blob::EMPTY),
    };
    let transfer = BadFrame::Message(Kind::Transfer as u8);
    assert_eq!(refused(again), transfer, "only RETRY 0 goes as a whole");
    let (hop, body_bytes) = (1, 2);
    let offer = |id, queue| BusMessage::TransferOffer {
        id,
        hop,
        body_bytes,
        queue,
    };
    let once = id_of(b"mail", [3; 18], false);
    let foreign = refused(offer(once, Blob::from("post")));
    assert_eq!(foreign, BadFrame::Slot(once));
    let not_once = refused(offer(id, Blob::from("mail")));
    assert_eq!(not_once, BadFrame::Message(Kind::TransferOffer as u8));
    assert_eq!(decode(&[0; 12]), Err(BadFrame::MessageKind(0)));
    assert_eq!(decode(&[99; 3]), Err(BadFrame::MessageLength));
}

#[test]
fn many_messages_in_one_long_frame_are_refused() {
    let message = bytes_of(&encode(&[small()])).split_off(HEADER_BYTES);
    let count = BUS_BATCH_BYTES / message.len() + 1;
    assert_eq!(decode(&message.repeat(count)), Err(BadFrame::MessageLength));
    assert!(decode(&message.repeat(count - 1)).is_ok());
}

#[test]
fn an_error_of_any_length_is_told_as_one_line() {
    let ticket = Ticket {
        shard: 1,
        session: SessionId {
            index: 2,
            generation: 3,
        },
        request: 4,
    };
    let told = |text: String| {
        let answer = RemoteAnswer::Error(text);
        let bytes = bytes_of(&encode(&[BusMessage::Told { ticket, answer }]));
        match receive(&bytes, LinkKind::Data).expect("it is told").pop() {
            Some(BusMessage::Told {
                answer: RemoteAnswer::Error(text),
                ..
            }) => text,
            other => panic!("{other:?}"),
        }
    };
    let long = "é".repeat(BUS_ERROR_BYTES);
    assert_eq!(told(format!("x{long}")).len(), BUS_ERROR_BYTES - 1);
    assert_eq!(told("ERR no\r\n+OK".to_owned()), "ERR no??+OK");
}

fn small() -> BusMessage {
    BusMessage::Left {
        id: JobId::from_bytes([7; 24]),
    }
}
