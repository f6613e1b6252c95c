//! Offers to GETJOBs of several shards: reserved, claimed, refused, returned; and who waits for that.

use crate::commands::view::JobState::{Active, Queued};
use crate::commands::{IdVerb, Request};
use crate::home::testing::{Scene, bodies, take};
use crate::message::Answer;
use crate::message::Manner::{Deliver, Offer};
use crate::message::Patience::{self, Jobs, Reserved};

#[test]
fn an_offered_job_counts_as_queued_and_is_not_to_be_had() {
    let mut scene = Scene::new();
    let id = scene.add("q", "body");
    let (ticket, ids) = scene.offered(&["q"], 5, Jobs);
    assert_eq!(ids, [id]);
    assert_eq!((scene.length("q"), scene.state(id)), (1, Some(Queued)));
    assert!(scene.get(&["q"], 1).is_empty());
    let stat = scene.stat("q").unwrap();
    assert_eq!((stat.length, stat.jobs_out), (1, 0));
    assert_eq!(bodies(&scene.claim(ticket, &ids)), ["body"]);
    assert_eq!((scene.length("q"), scene.state(id)), (0, Some(Active)));
    scene.cancel(ticket);
    assert!(scene.late(ticket).is_empty());
    assert_eq!(scene.home.gauges().waiters, 0);
}

#[test]
fn the_lease_of_an_offered_job_starts_with_the_claim() {
    let mut scene = Scene::new();
    scene.add("q", "");
    let (ticket, ids) = scene.offered(&["q"], 1, Jobs);
    scene.pass(60_000);
    scene.claim(ticket, &ids);
    scene.pass(9_999);
    assert_eq!(scene.length("q"), 0);
    scene.pass(1);
    assert_eq!(scene.length("q"), 1);
}

#[test]
fn unclaimed_offers_return_to_their_place_and_serve_the_next() {
    let mut scene = Scene::new();
    ["1", "2", "3"].iter().for_each(|body| _ = scene.add("q", body));
    let (ticket, ids) = scene.offered(&["q"], 2, Jobs);
    assert_eq!(bodies(&scene.get(&["q"], 1)), ["3"]);
    let next = scene.wait(&["q"], 1, Deliver, Jobs);
    assert_eq!(bodies(&scene.claim(ticket, &ids[1..])), ["2"]);
    scene.cancel(ticket);
    assert_eq!(bodies(&scene.late_jobs(next)), ["1"]);
    assert_eq!(scene.home.counters.delivered, 3);
}

#[test]
fn each_end_of_a_reservation_refuses_the_claim() {
    let mut scene = Scene::new();
    let acked = scene.add("q", "acked");
    let deleted = scene.add("q", "deleted");
    let dequeued = scene.add("q", "dequeued");
    let worked = scene.add("q", "worked");
    let last = scene.add("q", "last");
    let (ticket, ids) = scene.offered(&["q"], 9, Jobs);
    assert_eq!(ids.len(), 5);
    scene.ids(IdVerb::Acknowledge, &[acked]);
    scene.ids(IdVerb::Delete, &[deleted]);
    scene.ids(IdVerb::Dequeue, &[dequeued]);
    scene.request(Request::Working(worked));
    assert_eq!(scene.length("q"), 1);
    assert_eq!(bodies(&scene.claim(ticket, &ids)), ["last"]);
    assert_eq!(scene.state(last), Some(Active));
    assert_eq!(scene.home.counters.claims_refused, 4);
}

#[test]
fn a_paused_queue_refuses_claims_and_keeps_the_job() {
    let mut scene = Scene::new();
    let id = scene.add("q", "");
    let (ticket, ids) = scene.offered(&["q"], 1, Jobs);
    scene.pause("q", false, true);
    assert!(scene.claim(ticket, &ids).is_empty());
    assert_eq!(scene.state(id), Some(Queued));
    assert_eq!(scene.home.gauges().reserved, 0);
    scene.pause("q", false, false);
    assert_eq!(
        scene.late_offers(ticket)[0].id,
        id,
        "it waits on and is offered again"
    );
    assert_eq!(scene.claim(ticket, &ids).len(), 1);
}

#[test]
fn a_waiter_that_was_refused_whole_keeps_its_place_in_the_order() {
    let mut scene = Scene::new();
    let first = scene.wait(&["q"], 1, Offer, Jobs);
    let second = scene.wait(&["q"], 1, Deliver, Jobs);
    let id = scene.add("q", "gone");
    let offers = scene.late_offers(first);
    scene.ids(IdVerb::Delete, &[id]);
    assert!(scene.claim(first, &[offers[0].id]).is_empty());
    scene.add("q", "1");
    scene.add("q", "2");
    assert_eq!(scene.late_offers(first).len(), 1);
    assert_eq!(bodies(&scene.late_jobs(second)), ["2"]);
}

#[test]
fn an_offered_waiter_is_not_served_again_before_it_claims() {
    let mut scene = Scene::new();
    let first = scene.wait(&["q"], 5, Offer, Jobs);
    let one = scene.add("q", "1");
    scene.add("q", "2");
    assert_eq!(
        scene
            .late_offers(first)
            .iter()
            .map(|offer| offer.id)
            .collect::<Vec<_>>(),
        [one]
    );
    assert_eq!(bodies(&scene.get(&["q"], 1)), ["2"]);
    assert_eq!(scene.claim(first, &[one]).len(), 1);
    scene.add("q", "3");
    assert!(scene.late(first).is_empty(), "who has jobs never waits");
    assert_eq!(scene.length("q"), 1);
}

#[test]
fn a_waiter_refused_while_jobs_are_there_is_offered_them_at_once() {
    let mut scene = Scene::new();
    let id = scene.add("q", "gone");
    let (ticket, ids) = scene.offered(&["q"], 1, Jobs);
    let there = scene.add("q", "there");
    scene.ids(IdVerb::Delete, &[id]);
    assert!(scene.claim(ticket, &ids).is_empty());
    assert_eq!(scene.late_offers(ticket)[0].id, there);
}

#[test]
fn nohang_waits_for_reservations_to_be_returned() {
    let mut scene = Scene::new();
    scene.add("q", "body");
    let (holder, _) = scene.offered(&["q"], 1, Jobs);
    let ticket = scene.wait(&["q", "missing"], 1, Deliver, Reserved);
    assert!(scene.stat("missing").is_none());
    scene.cancel(holder);
    assert_eq!(bodies(&scene.late_jobs(ticket)), ["body"]);
}

#[test]
fn nohang_ends_when_the_reservations_of_then_are_claimed() {
    let mut scene = Scene::new();
    scene.add("q", "1");
    scene.add("r", "2");
    let (holder, ids) = scene.offered(&["q", "r"], 2, Jobs);
    for manner in [Deliver, Offer] {
        let ticket = scene.wait(&["q", "r"], 1, manner, Reserved);
        scene.cancel(ticket);
        assert_eq!(
            scene.late(ticket).len(),
            usize::from(manner == Deliver),
            "offers are cancelled silently"
        );
    }
    let ticket = scene.wait(&["q", "r"], 1, Deliver, Reserved);
    let offered = scene.wait(&["q"], 1, Offer, Reserved);
    scene.claim(holder, &ids[..1]);
    assert!(scene.late(ticket).is_empty());
    assert!(matches!(scene.late(offered).as_slice(), [Answer::Nothing]));
    scene.claim(holder, &ids[1..]);
    assert!(matches!(scene.late(ticket).as_slice(), [Answer::Nothing]));
}

#[test]
fn nohang_does_not_wait_for_later_reservations() {
    let mut scene = Scene::new();
    scene.add("q", "1");
    let (first, _) = scene.offered(&["q"], 1, Jobs);
    let earlier = scene.wait(&["q"], 1, Offer, Jobs);
    let ticket = scene.wait(&["q"], 1, Deliver, Reserved);
    scene.cancel(first);
    assert_eq!(
        scene.late_offers(earlier).len(),
        1,
        "returned, and reserved anew for the earlier one"
    );
    assert!(matches!(scene.late(ticket).as_slice(), [Answer::Nothing]));
}

#[test]
fn nohang_that_was_refused_ends_with_nothing() {
    let mut scene = Scene::new();
    let id = scene.add("q", "");
    let (ticket, ids) = scene.offered(&["q"], 1, Reserved);
    scene.ids(IdVerb::Delete, &[id]);
    assert!(scene.claim(ticket, &ids).is_empty());
    assert!(matches!(scene.late(ticket).as_slice(), [Answer::Nothing]));
    assert_eq!(scene.home.gauges().waiters, 0);
}

#[test]
fn a_claim_of_an_ended_request_is_refused_and_ends() {
    let mut scene = Scene::new();
    let id = scene.add("q", "");
    let ticket = scene.ticket();
    assert!(scene.claim(ticket, &[id]).is_empty());
    assert!(matches!(scene.late(ticket).as_slice(), [Answer::Nothing]));
    assert_eq!(scene.length("q"), 1);
}

#[test]
fn nothing_at_once_without_patience_though_all_is_reserved() {
    let mut scene = Scene::new();
    scene.add("q", "");
    scene.offered(&["q"], 1, Jobs);
    let answer = scene.request(Request::Take(take(&["q"], 1, Offer, Patience::None)));
    assert!(matches!(answer, Answer::Nothing));
}

#[test]
fn an_expired_reservation_ends_the_wait_for_it() {
    let mut scene = Scene::new();
    scene.add("q", "");
    let (holder, ids) = scene.offered(&["q"], 1, Jobs);
    let ticket = scene.wait(&["q"], 1, Deliver, Reserved);
    scene.pass(1_000_000);
    assert!(matches!(scene.late(ticket).as_slice(), [Answer::Nothing]));
    assert!(scene.claim(holder, &ids).is_empty());
}
