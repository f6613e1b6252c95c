//! All nodes are killed at once, and started again with their logs: nothing that was confirmed is missing.

use std::time::Instant;

use super::clients::{Clients, Shared, Work, drain, lock, work_quietly};
use super::fleet::Fleet;
use super::ledger::{Once, Terms};
use super::support::{call, jobs, scaled};

fn all_come_back(fsync: &str, seed: u64) {
    // A node is waited for as long as it may take to start.
    let flags = format!(
        "--shards 2 --cluster-node-timeout 1000 --rejoin-wait 30000 --appendonly yes --appendfsync {fsync} \
         --aof-segment-size 65536"
    );
    let mut fleet = Fleet::start(3, &flags);
    for round in 0..scaled(1) as u64 {
        let ledger = Shared::default();
        let work = Work::in_trouble(1..=3);
        let clients = Clients::work(&ledger, &fleet.addresses(0..3), &work, seed + round);
        clients.wait_for(150);
        fleet.kill_all(&[0, 1, 2]);
        // Producers and consumers knock in the meantime.
        clients.wait_for(5);
        (0..3).for_each(|node| fleet.start_again(node));
        fleet.wait_until_whole();
        clients.wait_for(50);
        clients.stop();
        let said = drain(&fleet, &ledger, Once::MayBeLost);
        println!("{fsync}: {said}");
    }
    work_quietly(&fleet, 1..=3, 60, seed + 1000);
    what_waits_comes_once(&mut fleet);
}

/// Jobs that nobody had taken before the end, of any number of copies: those of RETRY 0 and those without copies come exactly once, and
/// their nodes say so with the epoch that they had.
fn what_waits_comes_once(fleet: &mut Fleet) {
    let ledger = Shared::default();
    for number in 0..60 {
        let copies = 1 + number % 3;
        let retry_s = if number % 4 == 0 { 0 } else { 60 };
        let terms = Terms {
            copies: if retry_s == 0 { 1 } else { copies },
            retry_s,
            // A copy may be queued too when its node hears too late that another one is.
            quiet: copies == 1 || retry_s == 0,
        };
        let body = lock(&ledger).adding(terms);
        let Terms { copies, .. } = terms;
        let line = format!("ADDJOB a {body} 5000 REPLICATE {copies} RETRY {retry_s}");
        let reply = call(&mut fleet.server(number % 3).client(), &line);
        lock(&ledger).added(&body, reply.text().expect("an ID"));
    }
    let epoch = |fleet: &Fleet, node| fleet.number(node, "cluster", "cluster_store_epoch");
    let before: Vec<u64> = (0..3).map(|node| epoch(fleet, node)).collect();
    fleet.kill_all(&[0, 1, 2]);
    (0..3).for_each(|node| fleet.start_again(node));
    fleet.wait_until_whole();
    let after: Vec<u64> = (0..3).map(|node| epoch(fleet, node)).collect();
    assert_eq!(after, before, "a killed process loses nothing of its log");
    let said = drain(fleet, &ledger, Once::AllCome);
    println!("waited: {said}");
    let mut client = fleet.server(0).client();
    let sent = Instant::now();
    let more = jobs(&call(&mut client, "GETJOB NOHANG FROM a"));
    assert!(more.is_empty(), "{more:?} {sent:?}");
}

#[test]
fn all_come_back_with_a_log_that_is_synced_always() {
    all_come_back("always", 10);
}

#[test]
fn all_come_back_with_a_log_that_is_synced_every_second() {
    all_come_back("everysec", 20);
}
