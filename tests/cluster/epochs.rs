//! Store epochs: what a node may say that has lost nothing, or all.

use std::fs;

use super::fleet::{Fleet, text};
use super::support::{call, eventually, jobs};

fn epoch(fleet: &Fleet, node: usize) -> u64 {
    fleet.number(node, "cluster", "cluster_store_epoch")
}

fn add(fleet: &Fleet, node: usize, count: usize, copies: usize, retry_s: usize) -> Vec<String> {
    let mut client = fleet.server(node).client();
    let add = |number| {
        let line = format!("ADDJOB q body{number} 5000 REPLICATE {copies} RETRY {retry_s}");
        call(&mut client, &line).text().expect("an ID").to_owned()
    };
    (0..count).map(add).collect()
}

/// Takes and acknowledges at a node until all of these have come.
fn take_all(fleet: &Fleet, node: usize, mut ids: Vec<String>) {
    let mut client = fleet.server(node).client();
    eventually("all come", || {
        for (_, id, _) in jobs(&call(&mut client, "GETJOB TIMEOUT 200 COUNT 50 FROM q")) {
            call(&mut client, &format!("ACKJOB {id}"));
            ids.retain(|other| *other != id);
        }
        ids.is_empty()
    });
    eventually("nothing is left", || fleet.is_empty());
}

#[test]
fn a_log_that_goes_on_at_run_time_renews_no_epoch_and_repairs_nothing() {
    let flags = "--shards 2 --cluster-node-timeout 1000 --rejoin-wait 200";
    let mut fleet = Fleet::start(3, flags);
    let ids = add(&fleet, 0, 40, 2, 60);
    let before = epoch(&fleet, 0);
    for value in ["yes", "no", "yes"] {
        call(
            &mut fleet.server(0).client(),
            &format!("CONFIG SET appendonly {value}"),
        );
        let state = if value == "yes" { "on" } else { "off" };
        eventually("the log follows", || {
            fleet.server(0).info("persistence", "aof_state") == state
        });
        assert_eq!(epoch(&fleet, 0), before, "nothing was lost");
    }
    // All that lived before is in the log, so that the epoch stays over an end of the process too.
    fleet.kill(0);
    fleet.start_again_with(0, &format!("{flags} --appendonly yes"));
    fleet.wait_until_whole();
    assert_eq!(epoch(&fleet, 0), before);
    take_all(&fleet, 1, ids);
    for node in 0..3 {
        assert_eq!(fleet.number(node, "stats", "jobs_repaired"), 0);
    }
}

#[test]
fn what_one_node_flushes_lives_on_where_copies_are() {
    let flags = "--shards 2 --cluster-node-timeout 1000 --rejoin-wait 200 --appendonly yes";
    let mut fleet = Fleet::start(3, flags);
    for flushed in 0..2 {
        let ids = add(&fleet, 0, 40, 2, 1);
        let before = epoch(&fleet, flushed);
        assert_eq!(text(fleet.server(flushed), "DEBUG FLUSHALL"), "OK");
        let after = epoch(&fleet, flushed);
        assert!(after > before, "it does not say that it lost nothing");
        if flushed == 1 {
            // Nor after a restart, whose log has the flush and may have the old epoch.
            fleet.kill(1);
            fleet.start_again(1);
            fleet.wait_until_whole();
            assert!(epoch(&fleet, 1) >= after);
        }
        take_all(&fleet, 2, ids);
    }
}

#[test]
fn a_clock_that_went_back_gives_no_epoch_a_second_time() {
    let flags = "--shards 1 --cluster-node-timeout 1000";
    let mut fleet = Fleet::start(2, flags);
    let before = epoch(&fleet, 0);
    fleet.kill(0);
    // As if the node had run with a clock that was a hundred years ahead.
    let path = fleet.folder(0).path().join("nodes.conf");
    let conf = fs::read_to_string(&path).expect("it was written");
    let ahead = before + 100 * 365 * 24 * 3600 * 1000;
    let (old, new) = (format!("epoch {before} "), format!("epoch {ahead} "));
    assert_eq!(conf.matches(&old).count(), 1, "{conf}");
    fs::write(&path, conf.replace(&old, &new)).expect("the folder is ours");
    for starts in 1..=2 {
        fleet.start_again(0);
        fleet.wait_until_whole();
        assert_eq!(epoch(&fleet, 0), ahead + starts);
        fleet.kill(0);
    }
}
