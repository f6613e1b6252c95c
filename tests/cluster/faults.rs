//! Nodes that are killed, stand still, or do not hear each other, while clients work.

use super::clients::{Clients, Shared, Work, drain, work_quietly};
use super::fleet::Fleet;
use super::ledger::Once;
use super::proxy::Cut;
use super::support::scaled;

/// With three copies of each job any two of seven nodes may go, with all that they held.
#[test]
fn two_of_seven_nodes_are_killed_and_nothing_is_lost() {
    let flags = "--shards 1 --cluster-node-timeout 1000 --rejoin-wait 500";
    let mut fleet = Fleet::start(7, flags);
    work_quietly(&fleet, 1..=3, 60, 1);
    for round in 0..scaled(1) {
        let ledger = Shared::default();
        let addresses = fleet.addresses(0..7);
        let work = Work::in_trouble(3..=3);
        let clients = Clients::work(&ledger, &addresses, &work, round as u64);
        let (one, other) = (round * 2 % 7, (round * 2 + 1 + round / 7 % 5) % 7);
        clients.wait_for(100);
        fleet.kill(one);
        clients.wait_for(50);
        fleet.kill(other);
        let rest: Vec<usize> = (0..7).filter(|&node| node != one && node != other).collect();
        fleet.wait_until_failed(one, &rest);
        fleet.wait_until_failed(other, &rest);
        clients.wait_for(50);
        fleet.start_again(one);
        fleet.start_again(other);
        fleet.wait_until_whole();
        clients.wait_for(50);
        clients.stop();
        let said = drain(&fleet, &ledger, Once::MayBeLost);
        println!("killed {one} and {other}: {said}");
    }
    work_quietly(&fleet, 1..=3, 60, 2);
}

/// A process that is stopped keeps its connections, and goes on later as if nothing had been.
#[test]
fn a_node_that_stands_still_loses_nothing_and_hands_out_nothing_twice_that_may_not_be() {
    let fleet = Fleet::start(3, "--shards 2 --cluster-node-timeout 1000");
    for round in 0..scaled(1) {
        let ledger = Shared::default();
        let work = Work::in_trouble(1..=3).impatient();
        let clients = Clients::work(&ledger, &fleet.addresses(0..3), &work, round as u64);
        clients.wait_for(100);
        let node = round % 3;
        let others: Vec<usize> = (0..3).filter(|&other| other != node).collect();
        // For less than the node timeout, unless the machine is busy.
        fleet.freeze(node);
        std::thread::sleep(std::time::Duration::from_millis(400));
        fleet.thaw(node);
        clients.wait_for(50);
        // For more.
        fleet.freeze(node);
        fleet.wait_until_failed(node, &others);
        clients.wait_for(30);
        fleet.thaw(node);
        fleet.wait_until_whole();
        clients.wait_for(50);
        clients.stop();
        let said = drain(&fleet, &ledger, Once::MayBeLost);
        println!("stood still {node}: {said}");
    }
    work_quietly(&fleet, 1..=3, 60, 3);
}

/// Clients reach their nodes all the time, and nodes do not reach each other: then not even jobs of RETRY 0 may be lost.
#[test]
fn links_are_cut_and_healed_and_nothing_is_lost() {
    let flags = "--shards 2 --cluster-node-timeout 1000 --rejoin-wait 500";
    let fleet = Fleet::start_behind_proxies(3, flags);
    for round in 0..scaled(1) {
        for (number, (cut, both_ways)) in [
            (Cut::Closed, true),
            (Cut::Held, true),
            (Cut::Closed, false),
            (Cut::Held, false),
        ]
        .into_iter()
        .enumerate()
        {
            let ledger = Shared::default();
            let (node, other) = ((round + number) % 3, (round + number + 1) % 3);
            let work = Work::in_trouble(1..=2);
            let seed = (round * 4 + number) as u64;
            let clients = Clients::work(&ledger, &fleet.addresses(0..3), &work, seed);
            clients.wait_for(60);
            if both_ways {
                fleet.part(node, cut);
                let rest: Vec<usize> = (0..3).filter(|&other| other != node).collect();
                fleet.wait_until_failed(node, &rest);
            } else {
                fleet.cut(node, other, cut);
            }
            clients.wait_for(60);
            fleet.heal();
            fleet.wait_until_whole();
            clients.wait_for(60);
            clients.stop();
            let said = drain(&fleet, &ledger, Once::AllCome);
            println!("{cut:?}, both ways {both_ways}, of {node}: {said}");
        }
    }
    work_quietly(&fleet, 1..=3, 60, 4);
}
