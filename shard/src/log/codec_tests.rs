//! Tests of records: they come back as they went, small ones are small, and arbitrary bytes harm nobody.

use bytes::{Bytes, BytesMut};
use proptest::collection::vec;
use proptest::prelude::*;

use super::codec::*;
use super::record::*;
use crate::commands::view::PauseState;
use crate::id::JobId;
use crate::wire::Blob;

const STAND: Stand = Stand {
    random: 0x5eed_0000_1234_abcd,
    place: 8 * 1000,
    durable: 8 * 999,
};

fn state(id: u8) -> StateChange {
    StateChange {
        id: JobId::from_bytes([id; 24]),
        place: KeptPlace::Leased,
        enters_at: WallMs(1_700_000_000_123),
        nacks: 1,
        additional_deliveries: 2,
        deliveries: 3,
        delivered: true,
        entered_before: true,
    }
}

fn job(id: u8, queue: &[u8], body: &[u8]) -> JobImage {
    JobImage {
        id: JobId::from_bytes([id; 24]),
        queue: Blob::copy_from(queue),
        body: Blob::copy_from(body),
        ctime: 1_700_000_000_000_000_000,
        expires_at: WallMs(1_700_086_400_000),
        ttl_s: 86_400,
        retry_s: 60,
        delay_s: 5,
        replicate: 3,
        state: state(id),
        holders: vec![],
    }
}

fn holders() -> Vec<Holder> {
    (1..4)
        .map(|node| Holder {
            node: [node; 20],
            epoch: u64::from(node) << 40,
        })
        .collect()
}

fn examples() -> Vec<Entry> {
    let queue = QueueImage {
        name: Blob::from("mail"),
        pause: PauseState {
            input: true,
            output: false,
        },
        version: 9,
    };
    let acked = AckedImage {
        id: JobId::from_bytes([9; 24]),
        holders: holders(),
    };
    vec![
        Entry::Added(job(1, b"mail", b"Hello")),
        Entry::Added(JobImage {
            holders: holders(),
            ..job(2, b"", &[7; 5000])
        }),
        Entry::JobSnapshot(job(3, &[b'q'; 100], b"")),
        Entry::State(state(4)),
        Entry::Acked(AckedImage {
            holders: vec![],
            ..acked.clone()
        }),
        Entry::Acked(acked.clone()),
        Entry::AckedSnapshot(acked),
        Entry::Gone(JobId::from_bytes([5; 24])),
        Entry::Queue(queue.clone()),
        Entry::QueueSnapshot(queue),
        Entry::Flushed,
        Entry::Meta(Meta {
            store_epoch: 4,
            last_ctime: 5,
            boot_id: [6; 16],
            lowest_segment: 7,
            base: 8,
            always: true,
            stopped: false,
        }),
        transfer(TransferStage::SentQueued, None),
        transfer(TransferStage::Taken, Some(b"Hello")),
        transfer(TransferStage::Refused, None),
        match transfer(TransferStage::SentIdle, Some(b"on its way")) {
            Entry::Transfer(image) => Entry::TransferSnapshot(image),
            other => other,
        },
    ]
}

fn transfer(stage: TransferStage, body: Option<&[u8]>) -> Entry {
    Entry::Transfer(TransferImage {
        stage,
        node: holders()[1],
        id: JobId::from_bytes([11; 24]),
        hop: 1_700_000_000_000_000_007,
        job: body.map(|body| Box::new(job(11, b"mail", body))),
    })
}

fn encode(prepared: &Prepared) -> Vec<u8> {
    let (mut buffer, mut chunks) = (BytesMut::new(), Vec::new());
    prepared.write(STAND, &mut buffer, &mut chunks);
    chunks.push(buffer.freeze());
    chunks.concat()
}

fn decode(bytes: &[u8]) -> Result<Vec<Entry>, BadRecord> {
    match look(bytes, bytes.len() as u64, STAND.random) {
        Look::Record(record) => {
            record.stands_at(STAND.place)?;
            let mut entries = Vec::new();
            record.entries(&mut |entry| entries.push(entry)).map(|()| entries)
        }
        Look::Bad(bad) => Err(bad),
        Look::Nothing => Ok(vec![]),
        Look::Needs(bytes) => panic!("all of it is there, {bytes} wanted"),
    }
}

#[test]
fn every_kind_comes_back_as_it_went() {
    for entry in examples() {
        let prepared = Prepared::entry(&entry);
        let bytes = encode(&prepared);
        assert_eq!(bytes.len() as u64, prepared.padded_bytes());
        assert_eq!(decode(&bytes), Ok(vec![entry]));
    }
}

#[test]
fn several_ids_share_a_record_in_order() {
    let entries: Vec<Entry> = (0..64).map(|id| Entry::State(state(id))).collect();
    let mut group = Group::start(&entries[0]).unwrap();
    assert!(entries[1..].iter().all(|entry| group.take(entry, 0)));
    assert!(!group.take(&Entry::Gone(JobId::from_bytes([0; 24])), 0));
    assert_eq!(decode(&encode(&Prepared::group(&group))), Ok(entries));
}

/// A job that was just added.
fn new_job(id: u8, queue: &[u8], body: &[u8]) -> JobImage {
    let image = job(id, queue, body);
    JobImage {
        state: StateChange {
            place: KeptPlace::Queued,
            enters_at: WallMs::NEVER,
            nacks: 0,
            additional_deliveries: 0,
            deliveries: 0,
            delivered: false,
            entered_before: id.is_multiple_of(2),
            ..image.state
        },
        ..image
    }
}

fn together(images: &[JobImage]) -> Group {
    let mut group = Group::start_job(&images[0].by_ref()).expect("it is new");
    for image in &images[1..] {
        assert!(group.take_job(&image.by_ref(), u64::MAX));
    }
    group
}

fn snapshots(images: &[JobImage]) -> Group {
    let mut entries = images.iter().map(|image| Entry::JobSnapshot(image.clone()));
    let mut group = Group::start(&entries.next().expect("there is one")).expect("no other node has it");
    entries.for_each(|entry| assert!(group.take(&entry, u64::MAX)));
    group
}

#[test]
fn snapshots_share_a_record_whatever_state_their_jobs_are_in() {
    let handed_out = job(1, b"mail", b"was handed out");
    let images = [
        new_job(7, b"mail", b"Hello"),
        handed_out.clone(),
        new_job(3, b"mail", b""),
        JobImage {
            queue: Blob::copy_from(b"news"),
            ..handed_out.clone()
        },
    ];
    let group = snapshots(&images);
    let prepared = Prepared::group(&group);
    let bytes = encode(&prepared);
    assert!(prepared.is_image());
    assert_eq!(
        decode(&bytes),
        Ok(images.iter().cloned().map(Entry::JobSnapshot).collect())
    );
    // Counts of a job that is not in it, and in the wrong order.
    let fixed = Prepared::group(&group);
    let with_nacks = [3, 0, 0, 0, 1, 0, 0, 0];
    let counts = bytes
        .windows(8)
        .rposition(|bytes| bytes == with_nacks)
        .expect("counts of job 3");
    for job in [4, 1, 0] {
        let mut bytes = bytes.clone();
        bytes[counts..counts + 4].copy_from_slice(&u32::to_le_bytes(job));
        sign(&mut bytes);
        assert_eq!(decode(&bytes), Err(BadRecord::Payload(15)), "{job}");
    }
    let mut group = snapshots(&images);
    let last = Entry::JobSnapshot(images[1].clone());
    assert!(!group.take(&last, fixed.padded_bytes() + 16), "no room");
    let shared = JobImage {
        holders: holders(),
        ..handed_out
    };
    assert!(Group::start(&Entry::JobSnapshot(shared)).is_none());
}

#[test]
fn times_of_jobs_in_one_record_are_kept_whatever_they_are() {
    let times = [0, 1, 1_699_999_999_998, 1_700_000_000_000, u64::MAX - 1, u64::MAX];
    for (enters_at, expires_at) in times
        .iter()
        .flat_map(|one| times.iter().map(move |other| (*one, *other)))
    {
        let mut image = job(1, b"mail", b"Hello");
        (image.expires_at, image.state.enters_at) = (WallMs(expires_at), WallMs(enters_at));
        let bytes = encode(&Prepared::group(&snapshots(&[image.clone(), image.clone()])));
        let entry = Entry::JobSnapshot(image);
        assert_eq!(decode(&bytes), Ok(vec![entry.clone(), entry]));
    }
    // One millisecond before it was made: in a record of its own.
    let mut image = job(1, b"mail", b"Hello");
    image.state.enters_at = WallMs(image.ctime / 1_000_000 - 1);
    assert!(Group::start(&Entry::JobSnapshot(image)).is_none());
}

#[test]
fn jobs_that_were_just_added_share_a_record_in_order() {
    let queues: [&[u8]; 6] = [b"", b"", b"mail", b"mail", b"news", b"mail"];
    let bodies: [&[u8]; 6] = [b"", b"a body", b"", b"x", &[7; 4000], b"mail"];
    let images: Vec<JobImage> = (0..6)
        .map(|at| new_job(at as u8, queues[at], bodies[at]))
        .collect();
    let group = together(&images);
    let bytes = encode(&Prepared::group(&group));
    assert_eq!(bytes.len() as u64, Prepared::group(&group).padded_bytes());
    assert_eq!(decode(&bytes), Ok(images.into_iter().map(Entry::Added).collect()));
}

#[test]
fn a_record_of_jobs_has_its_limits() {
    let image = new_job(1, b"mail", b"Hello");
    let mut group = together(std::slice::from_ref(&image));
    let with_both = {
        let both = together(&[image.clone(), image.clone()]);
        Prepared::group(&both).padded_bytes()
    };
    assert!(!group.take_job(&image.by_ref(), with_both - 8), "no room");
    for _ in 1..64 {
        assert!(group.take_job(&image.by_ref(), u64::MAX));
    }
    assert!(!group.take_job(&image.by_ref(), u64::MAX), "full");
    let mut group = together(&[new_job(1, b"", &[1; 4095])]);
    let taken = (0..64).take_while(|_| group.take_job(&new_job(1, b"", &[1; 4095]).by_ref(), u64::MAX));
    assert_eq!(taken.count(), 16, "64 KiB of bodies");
    for particular in [
        job(1, b"mail", b"was handed out"),
        new_job(1, b"mail", &[0; SHARED_BODY_BYTES]),
        JobImage {
            holders: holders(),
            ..image
        },
    ] {
        assert!(Group::start_job(&particular.by_ref()).is_none());
    }
}

#[test]
fn parts_of_jobs_that_do_not_fit_are_no_record() {
    let images = [new_job(1, b"mail", b"Hello"), new_job(2, b"mail", b"you")];
    let good = encode(&Prepared::group(&together(&images)));
    // Two runs of 40 bytes, two jobs of 40. How many the first run has; the lengths of name and body of the second job.
    let (runs, jobs) = (24, 24 + 2 * 40);
    let (run_jobs, name_bytes, body_bytes) = (runs + 16, jobs + 40 + 32, jobs + 40 + 36);
    for (at, value) in [
        (run_jobs, 0),
        (run_jobs, 2),
        (run_jobs, u32::MAX),
        (name_bytes, 1),
        (body_bytes, 2),
        (body_bytes, 4),
        (body_bytes, u32::MAX),
    ] {
        let mut bytes = good.clone();
        bytes[at..at + 4].copy_from_slice(&u32::to_le_bytes(value));
        sign(&mut bytes);
        assert_eq!(decode(&bytes), Err(BadRecord::Payload(16)), "{value} at {at}");
    }
    for (at, value) in [(runs + 34, 9), (runs + 35, 4)] {
        let mut bytes = good.clone();
        bytes[at] = value;
        sign(&mut bytes);
        assert_eq!(decode(&bytes), Err(BadRecord::Payload(16)), "byte {at}");
    }
    // The first has nothing to share the name of.
    let mut bytes = good;
    bytes[jobs + 32..jobs + 36].copy_from_slice(&u32::to_le_bytes(SAME_NAME));
    sign(&mut bytes);
    assert_eq!(decode(&bytes), Err(BadRecord::Payload(16)));
}

#[test]
fn a_large_body_is_not_copied() {
    let body = Bytes::from(vec![1; SHARED_BODY_BYTES]);
    let image = JobImage {
        body: Blob::from(body.clone()),
        ..job(1, b"q", b"")
    };
    let (mut buffer, mut chunks) = (BytesMut::new(), Vec::new());
    Prepared::entry(&Entry::Added(image)).write(STAND, &mut buffer, &mut chunks);
    assert_eq!(chunks[1].as_ptr(), body.as_ptr());
}

#[test]
fn a_job_life_takes_few_bytes() {
    let id = JobId::from_bytes([1; 24]);
    let image = new_job(1, b"mails", b"twelve bytes");
    let added = Prepared::group(&together(std::slice::from_ref(&image))).padded_bytes();
    let added_together = Prepared::group(&together(&vec![image.clone(); 64])).padded_bytes();
    let delivered = Entry::State(state(1));
    let acked = Entry::Acked(AckedImage { id, holders: vec![] });
    let alone = added + Prepared::entry(&delivered).padded_bytes() + Prepared::entry(&acked).padded_bytes();
    assert!(alone <= 300, "{alone} bytes with a record a batch");
    let mut groups = [Group::start(&delivered).unwrap(), Group::start(&acked).unwrap()];
    for _ in 1..64 {
        assert!(groups[0].take(&delivered, 0) && groups[1].take(&acked, 0));
    }
    let shared: u64 = groups
        .iter()
        .map(|group| Prepared::group(group).padded_bytes())
        .sum();
    let together = (added_together + shared).div_ceil(64);
    assert!(together <= 130, "{together} bytes at pipeline 64");
    let snapshots = Prepared::group(&snapshots(&vec![image; 64])).padded_bytes();
    assert!(
        snapshots <= added_together + 8,
        "compaction writes no more than it read: {snapshots}"
    );
    assert!(image_bytes(0, 12) * 64 <= snapshots && snapshots <= image_bytes(5, 12) * 64);
}

/// A record of kind 14, as it was written.
fn together_before<'a>(images: &[JobImage], raw: &'a [u8]) -> Prepared<'a> {
    let mut name: &[u8] = b"";
    let mut jobs = Vec::new();
    for image in images {
        let is_same = !jobs.is_empty() && name == image.queue.as_slice();
        name = image.queue.as_slice();
        jobs.push(JobBeforePayload {
            ctime: image.ctime,
            expires_at: image.expires_at.0,
            enters_at: image.state.enters_at.0,
            id: *image.id.as_bytes(),
            ttl_s: image.ttl_s,
            retry_s: image.retry_s,
            delay_s: image.delay_s,
            name_bytes: if is_same { SAME_NAME } else { name.len() as u32 },
            body_bytes: image.body.len() as u32,
            replicate: image.replicate,
            place: image.state.place.number(),
            flags: if image.state.entered_before {
                ENTERED_BEFORE
            } else {
                0
            },
        });
    }
    Prepared::together_before(&TogetherBeforePayload { jobs }, raw)
}

#[test]
fn the_format_is_this() {
    // Bytes of version 1. They never change: see the ritual in `record.rs`.
    let sum = |entry: &Entry| crc32c::crc32c(&encode(&Prepared::entry(entry)));
    let sums: Vec<u32> = examples().iter().map(sum).collect();
    assert_eq!(sums, FORMAT_1);
    let images = [
        new_job(1, b"mail", b"Hello"),
        new_job(2, b"mail", b"you"),
        new_job(3, b"news", b""),
    ];
    assert_eq!(
        crc32c::crc32c(&encode(&Prepared::group(&together(&images)))),
        TOGETHER_1
    );
    let before = encode(&together_before(&images, b"mailHelloyounews"));
    assert_eq!(crc32c::crc32c(&before), TOGETHER_BEFORE_1);
    assert_eq!(
        decode(&before),
        Ok(images.iter().cloned().map(Entry::Added).collect())
    );
    let images = [images[0].clone(), job(4, b"mail", b"moved"), images[2].clone()];
    assert_eq!(
        crc32c::crc32c(&encode(&Prepared::group(&snapshots(&images)))),
        SNAPSHOTS_1
    );
}

const TOGETHER_BEFORE_1: u32 = 2549239014;
const TOGETHER_1: u32 = 330889169;
const SNAPSHOTS_1: u32 = 1726203158;

const FORMAT_1: [u32; 16] = [
    2922590346, 3064366827, 205675893, 2441719990, 1420940090, 640576819, 1791088412, 2447102562, 2104111068,
    2988434734, 2655138556, 4088924918, 4024723805, 744175515, 3642812450, 1955861464,
];

#[test]
fn later_versions_and_kinds_are_told_from_damage() {
    for (at, value, expected) in [
        (22, 2, BadRecord::Version(2)),
        (23, 17, BadRecord::Kind(17)),
        (23, 99, BadRecord::Kind(99)),
    ] {
        let mut bytes = encode(&Prepared::entry(&examples()[0]));
        bytes[at] = value;
        sign(&mut bytes);
        assert_eq!(decode(&bytes), Err(expected));
        assert!(expected.is_intact());
    }
}

/// Puts the right checksum on whatever the bytes say.
fn sign(bytes: &mut [u8]) {
    let length = u32::from_le_bytes(bytes[..4].try_into().unwrap()) as usize;
    let mut sum = crc32c::crc32c(&STAND.random.to_le_bytes());
    for part in [&bytes[..4], &bytes[8..length]] {
        sum = crc32c::crc32c_append(sum, part);
    }
    bytes[4..8].copy_from_slice(&sum.to_le_bytes());
}

#[test]
fn every_flipped_bit_is_seen() {
    for entry in examples() {
        let bytes = encode(&Prepared::entry(&entry));
        let length = u32::from_le_bytes(bytes[..4].try_into().unwrap()) as usize;
        for bit in 0..length.min(300) * 8 {
            let mut flipped = bytes.clone();
            flipped[bit / 8] ^= 1 << (bit % 8);
            assert!(decode(&flipped).is_err(), "{entry:?}, bit {bit}");
        }
    }
}

proptest! {
    #[test]
    fn arbitrary_bytes_are_no_record_and_no_panic(bytes in vec(any::<u8>(), 0..300), room in 0u64..5000) {
        let room = room.max(bytes.len() as u64);
        if let Look::Record(_) = look(&bytes, room, STAND.random) {
            prop_assert!(false, "a record out of nothing");
        }
    }

    #[test]
    fn a_signed_record_with_any_content_is_no_panic(
        which in 0usize..16, changes in vec((0usize..300, any::<u8>()), 0..20), kind in 0u8..14,
    ) {
        let mut bytes = encode(&Prepared::entry(&examples()[which]));
        for (at, value) in changes {
            let at = 20 + at % (bytes.len() - 20);
            if at != 22 { bytes[at] = value; }
        }
        bytes[23] = if kind == 0 { bytes[23] } else { kind };
        sign(&mut bytes);
        let _typed = decode(&bytes);
    }

    #[test]
    fn what_is_needed_is_bounded_by_the_file(bytes in vec(any::<u8>(), 0..40), room in 0u64..100_000) {
        let room = room.max(bytes.len() as u64);
        if let Look::Needs(needed) = look(&bytes, room, 1) {
            prop_assert!(needed as u64 <= room && needed > bytes.len());
        }
    }

    #[test]
    fn jobs_survive(queue in vec(any::<u8>(), 0..100), body in vec(any::<u8>(), 0..9000), seconds: u32, far: u64) {
        let image = JobImage { ttl_s: seconds, expires_at: WallMs(far), ..job(1, &queue, &body) };
        let entry = Entry::Added(image);
        prop_assert_eq!(decode(&encode(&Prepared::entry(&entry))), Ok(vec![entry]));
    }
}
