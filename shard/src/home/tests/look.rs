//! QPEEK and the scans.

use std::collections::BTreeSet;

use crate::commands::view::{Page, PageItem, QueuePosition, ScanPosition};
use crate::commands::{IdVerb, Peek, Request, Scan, jscan, qscan, qscan::ScanOf};
use crate::home::testing::{Scene, bodies, job};
use crate::id::JobId;
use crate::limits::{SCAN_STEP, TAKE_STEP};
use crate::message::{Answer, Delivered, Patience};
use crate::wire::Blob;

fn peek(
    scene: &mut Scene,
    count: i64,
    after: Option<QueuePosition>,
) -> (Vec<Delivered>, Option<QueuePosition>) {
    match scene.request(Request::Peek(Peek {
        queue: Blob::from("q"),
        count,
        after,
    })) {
        Answer::Peeked { jobs, next } => (jobs, next),
        other => panic!("{other:?}"),
    }
}

fn scan(scene: &mut Scene, of: &ScanOf, position: ScanPosition, count: usize) -> Page {
    match scene.request(Request::Scan(Scan {
        of: of.clone(),
        position,
        count,
        busyloop: false,
    })) {
        Answer::Page(page) => *page,
        other => panic!("{other:?}"),
    }
}

fn scan_all(scene: &mut Scene, of: &ScanOf, count: usize) -> Vec<PageItem> {
    let (mut items, mut position) = (Vec::new(), ScanPosition(0));
    loop {
        let page = scan(scene, of, position, count);
        assert!(page.items.is_sorted_by_key(|(place, _)| *place));
        assert!(
            page.items
                .iter()
                .all(|(place, _)| *place >= position && page.next.is_none_or(|next| *place < next))
        );
        items.extend(page.items.into_iter().map(|(_, item)| item));
        match page.next {
            Some(next) => assert!(std::mem::replace(&mut position, next) < next, "it goes on"),
            None => return items,
        }
    }
}

#[test]
fn peek_looks_from_either_end_and_past_reservations() {
    let mut scene = Scene::new();
    ["1", "2", "3", "4"]
        .iter()
        .for_each(|body| _ = scene.add("q", body));
    scene.offered(&["q"], 2, Patience::Jobs);
    assert_eq!(bodies(&peek(&mut scene, 3, None).0), ["1", "2", "3"]);
    assert_eq!(bodies(&peek(&mut scene, -3, None).0), ["4", "3", "2"]);
    assert_eq!(bodies(&peek(&mut scene, i64::MIN, None).0), ["4", "3", "2", "1"]);
    assert!(peek(&mut scene, 0, None).0.is_empty());
    assert_eq!(scene.length("q"), 4);
}

#[test]
fn peek_goes_on_where_it_ended() {
    let mut scene = Scene::new();
    let many = 2 * TAKE_STEP as usize + 100;
    scene.fill(many, &job("q", ""));
    scene.offered(&["q"], 256, Patience::Jobs);
    for (count, last) in [(i64::MAX, (many - 1).to_string()), (-2000, "0".to_owned())] {
        let (mut jobs, mut next) = peek(&mut scene, count, None);
        assert_eq!(jobs.len(), TAKE_STEP as usize);
        while let Some(after) = next {
            let (more, then) = peek(&mut scene, count, Some(after));
            jobs.extend(more);
            next = then;
        }
        assert_eq!(jobs.len(), many);
        assert_eq!(bodies(&jobs).last(), Some(&last));
        assert_eq!(bodies(&jobs).iter().collect::<BTreeSet<_>>().len(), many);
    }
}

#[test]
fn a_scan_visits_everything_once() {
    let mut scene = Scene::new();
    let mut ids = BTreeSet::new();
    for i in 0..500 {
        ids.extend(scene.fill(6, &job(&format!("q{i}"), "")));
    }
    let of_jobs = ScanOf::Jobs(jscan::Filter::default());
    for count in [0, 1, 100, usize::MAX] {
        let items = scan_all(&mut scene, &of_jobs, count);
        let found: BTreeSet<JobId> = items
            .iter()
            .map(|item| match item {
                PageItem::Id(id) => *id,
                other => panic!("{other:?}"),
            })
            .collect();
        assert_eq!((items.len(), &found), (3000, &ids));
    }
    let queues = scan_all(&mut scene, &ScanOf::Queues(qscan::Filter::default()), 100);
    assert_eq!(queues.len(), 500);
}

#[test]
fn a_first_page_holds_what_there_is_up_to_count() {
    let mut scene = Scene::new();
    (0..90).for_each(|i| _ = scene.add(&format!("q{i}"), ""));
    let page = scan(
        &mut scene,
        &ScanOf::Queues(qscan::Filter::default()),
        ScanPosition(0),
        100,
    );
    assert_eq!((page.items.len(), page.next), (90, None));
    let page = scan(
        &mut scene,
        &ScanOf::Jobs(jscan::Filter::default()),
        ScanPosition(0),
        10,
    );
    assert!((10..20).contains(&page.items.len()) && page.next.is_some());
}

#[test]
fn a_step_is_bounded_though_nothing_fits() {
    let mut scene = Scene::new();
    scene.fill(5000, &job("q", ""));
    let filter = jscan::Filter {
        states: vec![crate::commands::view::JobState::Acked],
        ..Default::default()
    };
    let mut steps = 1;
    let mut page = scan(&mut scene, &ScanOf::Jobs(filter.clone()), ScanPosition(0), 100);
    while let Some(next) = page.next {
        assert!(page.items.is_empty());
        page = scan(&mut scene, &ScanOf::Jobs(filter.clone()), next, 100);
        steps += 1;
    }
    assert!(steps >= 5000 / (SCAN_STEP + 100), "{steps}");
}

#[test]
fn filters_fit() {
    let mut scene = Scene::new();
    let ids: Vec<JobId> = (0..4).map(|_| scene.add("q", "body")).collect();
    scene.add("other", "");
    scene.ids(IdVerb::Dequeue, &ids[..1]);
    let jobs = |queue: Option<&str>, states: &[&str], reply_all| {
        let states = states
            .iter()
            .map(|word| crate::commands::view::JobState::parse(word.as_bytes()).unwrap())
            .collect();
        ScanOf::Jobs(jscan::Filter {
            queue: queue.map(Blob::from),
            states,
            reply_all,
        })
    };
    assert_eq!(scan_all(&mut scene, &jobs(Some("q"), &[], false), 100).len(), 4);
    assert_eq!(
        scan_all(&mut scene, &jobs(None, &["active"], false), 100),
        [PageItem::Id(ids[0])]
    );
    assert_eq!(
        scan_all(&mut scene, &jobs(None, &["active", "queued"], false), 100).len(),
        5
    );
    let shown = scene.show(ids[0]).unwrap();
    assert_eq!(
        scan_all(&mut scene, &jobs(None, &["active"], true), 100),
        [PageItem::Job(Box::new(shown))]
    );
    let queues = |min_len, max_len, import_rate| {
        ScanOf::Queues(qscan::Filter {
            min_len,
            max_len,
            import_rate,
        })
    };
    assert_eq!(
        scan_all(&mut scene, &queues(Some(2), None, None), 100),
        [PageItem::Queue(Blob::from("q"))]
    );
    assert_eq!(
        scan_all(&mut scene, &queues(None, Some(2), Some(0)), 100),
        [PageItem::Queue(Blob::from("other"))]
    );
    assert!(scan_all(&mut scene, &queues(None, None, Some(1)), 100).is_empty());
}

#[test]
fn any_cursor_is_safe() {
    let mut scene = Scene::new();
    scene.add("q", "");
    for position in [1, 1 << 52, u64::MAX, u64::MAX >> 12, 0xdead_beef_dead_beef] {
        for queue in [None, Some(Blob::from("q"))] {
            let of = ScanOf::Jobs(jscan::Filter {
                queue,
                ..Default::default()
            });
            let page = scan(&mut scene, &of, ScanPosition(position), 100);
            assert!(page.items.len() <= 1 && page.next.is_none_or(|next| next.0 > position));
        }
    }
}
