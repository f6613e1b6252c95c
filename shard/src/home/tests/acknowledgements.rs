//! Acknowledged jobs are forgotten in the end, whatever was lost on the way.

use super::cluster::{Nodes, copies};
use crate::commands::IdVerb;
use crate::id::JobId;

#[test]
fn who_is_to_collect_and_has_forgotten_the_job_is_not_waited_for() {
    let mut nodes = Nodes::new(2);
    let ids: Vec<JobId> = (0..16).map(|_| nodes.add(0, copies("q", 2)).unwrap()).collect();
    // Node 1 marks them all, and nobody hears of it.
    nodes.cut.push((1, 0));
    for &id in &ids {
        nodes.ids(0, IdVerb::Acknowledge, id);
    }
    nodes.settle();
    // Node 0 takes node 1 for one that lost all, collects what is for it to collect, and says so in vain.
    nodes.cut.push((0, 1));
    for node in 0..2 {
        nodes.publish(node, &[(0, 1), (1, 2)]);
    }
    nodes.pass(5_000);
    let kept: Vec<u64> = nodes
        .scenes
        .iter()
        .map(|scene| scene.home.gauges().acked)
        .collect();
    assert!(
        kept[0] > 0 && kept[1] > 0 && kept[0] + kept[1] == 16,
        "each was collected by one, and the other waits for that: {kept:?}"
    );
    nodes.cut.clear();
    nodes.pass(20_000);
    assert_eq!(nodes.acks(), 0);
}
