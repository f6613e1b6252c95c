//! Looking without touching: steps of QPEEK and of the scans.

use super::moves::describe;
use super::stock::Stock;
use super::{Home, Place};
use crate::clock::Mono;
use crate::commands::show;
use crate::commands::view::{Page, PageItem, QueuePosition, ScanPosition};
use crate::commands::{jscan, qpeek::Peek, qscan::Scan, qscan::ScanOf};
use crate::limits::{SCAN_STEP, TAKE_STEP};
use crate::message::{Answer, Delivered};
use crate::slot::{SLOTS, Slot};
use crate::structures::skiplist::{Ordered, SkipList};

/// Bits of a scan position that name the place inside a slot.
const PLACE_BITS: u32 = 52;
/// A rank of the maps has 64 bits, of which the low ones are spare.
const RANK_SHIFT: u32 = 64 - PLACE_BITS;

impl Home {
    /// Jobs of a queue in order, reserved ones in their place, from a position on; at most `TAKE_STEP` are looked at.
    pub(crate) fn peek(&self, now: Mono, peek: &Peek) -> Answer {
        let mut jobs: Vec<Delivered> = Vec::new();
        let Some(key) = self.find_queue(&peek.queue) else {
            return Answer::Peeked { jobs, next: None };
        };
        let queue = self.queue(key);
        let wanted = usize::try_from(peek.count.unsigned_abs()).unwrap_or(usize::MAX);
        let backward = peek.count < 0;
        let mut heads =
            [&queue.jobs, &queue.reserved].map(|list| self.peek_start(list, peek.after, backward));
        let mut last = None;
        for _ in 0..TAKE_STEP {
            if jobs.len() == wanted {
                return Answer::Peeked { jobs, next: None };
            }
            let Some(from) = self.nearest(heads, backward) else {
                return Answer::Peeked { jobs, next: None };
            };
            let job = heads[from].expect("the nearest is there");
            heads[from] = self.peek_next(job, backward);
            let job = self.job(job);
            if job.expires_at > now {
                jobs.push(describe(job, queue.name.clone(), 0));
            }
            last = Some(QueuePosition {
                ctime: job.ctime,
                id: job.id,
            });
        }
        Answer::Peeked { jobs, next: last }
    }

    fn peek_start(&self, list: &SkipList, after: Option<QueuePosition>, backward: bool) -> Option<u32> {
        let Stock { jobs, lanes, .. } = &self.stock;
        let Some(after) = after else {
            return if backward { list.last() } else { list.first() };
        };
        let after = (after.ctime, after.id);
        let stamp = |key: u32| (jobs[key].ctime, jobs[key].id);
        if backward {
            let at = list.seek(jobs, lanes, |key| stamp(key) < after);
            at.map_or(list.last(), |at| SkipList::previous(jobs, at))
        } else {
            list.seek(jobs, lanes, |key| stamp(key) <= after)
        }
    }

    fn peek_next(&self, job: u32, backward: bool) -> Option<u32> {
        let jobs = &self.stock.jobs;
        if backward {
            SkipList::previous(jobs, job)
        } else {
            SkipList::next(jobs, job)
        }
    }

    /// Which of the two lists goes on.
    fn nearest(&self, heads: [Option<u32>; 2], backward: bool) -> Option<usize> {
        match heads {
            [Some(a), Some(b)] => Some(usize::from(self.stock.jobs.before(b, a) != backward)),
            [Some(_), None] => Some(0),
            [None, Some(_)] => Some(1),
            [None, None] => None,
        }
    }

    /// What a step of QSCAN or JSCAN finds on this shard. At least what is there in one bucket is looked at.
    pub(crate) fn scan(&self, now: Mono, scan: &Scan) -> Page {
        let mut page = Page::default();
        let mut looked = 0;
        let items_max = if scan.busyloop {
            SCAN_STEP
        } else {
            scan.count.clamp(1, SCAN_STEP)
        };
        let mut position = self.scan_start(scan);
        while let Some(at) = position {
            if page.items.len() >= items_max || looked >= SCAN_STEP {
                break;
            }
            let room = (items_max - page.items.len()).min(SCAN_STEP - looked);
            let before = page.items.len();
            position = self.scan_slot(now, scan, at, room, &mut looked, &mut page);
            page.items[before..].sort_by_key(|(place, _)| *place);
        }
        page.next = position;
        page
    }

    /// Visits part of a slot and returns where to go on.
    fn scan_slot(
        &self,
        now: Mono,
        scan: &Scan,
        at: ScanPosition,
        room: usize,
        looked: &mut usize,
        page: &mut Page,
    ) -> Option<ScanPosition> {
        let slot = Slot::from_number((at.0 >> PLACE_BITS) as u16);
        let rank = at.0 << RANK_SHIFT;
        let maps = &self.stock.slots[usize::from(slot.number() / self.options.shards)];
        let mut found = |hash: u64, item: Option<PageItem>| {
            *looked += 1;
            let place =
                ScanPosition(u64::from(slot.number()) << PLACE_BITS | hash.reverse_bits() >> RANK_SHIFT);
            page.items.extend(item.map(|item| (place, item)));
        };
        let next = match &scan.of {
            ScanOf::Queues(filter) => maps.queues.scan_some(rank, room, |key| {
                let queue = self.queue(key);
                found(
                    queue.hash,
                    filter.admits(queue).then(|| PageItem::Queue(queue.name.clone())),
                );
            }),
            ScanOf::Jobs(filter) => maps.jobs.scan_some(rank, room, |key| {
                found(self.job(key).id.scan_hash(), self.scan_job(now, filter, key));
            }),
        };
        match next {
            Some(rank) => Some(ScanPosition(
                u64::from(slot.number()) << PLACE_BITS | rank >> RANK_SHIFT,
            )),
            None if scan.only_slot().is_some() => None,
            None => self.slot_from(slot.number() + 1, 0),
        }
    }

    fn scan_job(&self, now: Mono, filter: &jscan::Filter, key: u32) -> Option<PageItem> {
        let job = self.job(key);
        if job.expires_at <= now || !filter.admits(job, self.queue(job.queue)) {
            return None;
        }
        Some(if filter.reply_all {
            PageItem::Job(Box::new(show::view(self, now, key)))
        } else {
            PageItem::Id(job.id)
        })
    }

    /// The first position from the one asked for on that this shard has a part in.
    fn scan_start(&self, scan: &Scan) -> Option<ScanPosition> {
        let (slot, place) = ((scan.position.0 >> PLACE_BITS) as u16, scan.position.0);
        match scan.only_slot() {
            None => self.slot_from(slot, place),
            Some(only) if only.number() < slot || only.home(self.options.shards) != self.options.shard => {
                None
            }
            Some(only) if only.number() == slot => Some(scan.position),
            Some(only) => self.slot_from(only.number(), 0),
        }
    }

    /// `place`, when `slot` is of this shard; else the start of the next slot that is.
    fn slot_from(&self, slot: u16, place: u64) -> Option<ScanPosition> {
        let (shard, shards) = (self.options.shard, self.options.shards);
        let behind = (shards + shard - slot % shards) % shards;
        let start = (u64::from(slot) << PLACE_BITS).max(place);
        match behind {
            _ if slot + behind >= SLOTS => None,
            0 => Some(ScanPosition(start)),
            _ => Some(ScanPosition(u64::from(slot + behind) << PLACE_BITS)),
        }
    }

    /// Milliseconds until an active job enters its queue; none when it never does.
    pub(crate) fn enters_in_ms(now: Mono, job: &super::Job) -> Option<u64> {
        match job.place {
            Place::Held => Some(0),
            Place::Waiting | Place::Away => None,
            Place::Queued | Place::Reserved => (!job.at_most_once()).then(|| job.retry_ms()),
            Place::Idle | Place::Leased => {
                (job.enters_at != Mono::NEVER).then(|| job.enters_at.since_ms(now))
            }
        }
    }
}
