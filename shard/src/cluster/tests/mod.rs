//! Whole clusters of membership machines: nothing wrong may happen, and what is to happen must.

mod world;

use proptest::prelude::*;

use super::{Membership, conf};
use crate::bus::{LinkKind, PeerState, Sender};
use crate::id::NodeId;
use world::World;

fn all(world: &World) -> Vec<usize> {
    (0..world.places.len()).collect()
}

fn without(world: &World, left: &[usize]) -> Vec<usize> {
    let mut nodes = all(world);
    nodes.retain(|node| !left.contains(node));
    nodes
}

/// Nobody of `nodes` has `id` for a member.
fn nobody_knows(world: &World, nodes: &[usize], id: NodeId) -> bool {
    nodes.iter().all(|&node| world.state(node, id).is_none())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn nodes_that_are_met_become_a_full_mesh(count in 2..10usize, seed in any::<u64>(), loss in 0..200u64) {
        let mut world = World::new(count, seed);
        world.loss = loss;
        world.delay_ms = 50;
        world.join();
        // And stay one: no loss of packets makes a failed node.
        for _ in 0..20 {
            world.run(500);
            for node in all(&world) {
                let failed = world.machine(node).view().count(PeerState::Failed);
                prop_assert!(failed == 0 || loss > 100, "{}", world.show());
            }
        }
    }

    #[test]
    fn the_dead_are_failed_in_time_and_alive_again_at_another_address(count in 2..10usize, seed in any::<u64>()) {
        let mut world = World::new(count, seed);
        world.join();
        let dead = world.below(count as u64) as usize;
        let (id, others) = (world.id(dead), without(&world, &[dead]));
        world.kill(dead);
        let states = |world: &World, state| others.iter().all(|&node| world.state(node, id) == Some(state));
        let suspect_ms = world.until(1_500, "suspect", |world| states(world, PeerState::Suspect));
        let failed_ms = suspect_ms + world.until(3_000, "failed", |world| states(world, PeerState::Failed));
        prop_assert!((1_750..=2_750).contains(&failed_ms), "failed after {failed_ms} ms");
        world.until(12_000, "lost", |world| others.iter().all(|&node| {
            let topology = world.places[node].topology.as_ref().expect("it was published");
            topology.peers.iter().any(|peer| peer.id == id && peer.lost)
        }));
        world.places[dead].ip = "10.0.1.1".parse().expect("an address");
        world.start(dead);
        prop_assert_eq!(world.id(dead), id);
        let everyone = all(&world);
        world.until(2_000, "back", |world| world.is_whole(&everyone));
        for &node in &others {
            let topology = world.places[node].topology.as_ref().expect("it was published");
            let peer = topology.peers.iter().find(|peer| peer.id == id).expect("it is known");
            prop_assert_eq!(&peer.clients, &("10.0.1.1".to_owned(), 7711));
            prop_assert!(!peer.lost && peer.state == PeerState::Alive);
            prop_assert_eq!(peer.epoch, world.machine(dead).me.epoch);
        }
    }

    #[test]
    fn halves_that_were_cut_heal(count in 2..10usize, seed in any::<u64>()) {
        let mut world = World::new(count, seed);
        world.join();
        let half = 1 + world.below(count as u64 - 1) as usize;
        for one in 0..half {
            world.cut.extend((half..count).map(|other| (one, other)));
        }
        let cut = |world: &World, one: usize, other: usize| world.state(one, world.id(other)) == Some(PeerState::Failed);
        world.until(4_000, "failed", |world| {
            (0..half).all(|one| (half..count).all(|other| cut(world, one, other) && cut(world, other, one)))
        });
        let rest = world.below(100_000);
        world.run(rest);
        world.cut.clear();
        let everyone = all(&world);
        world.until(2_000, "healed", |world| world.is_whole(&everyone));
    }

    #[test]
    fn the_forgotten_are_not_called_back(count in 3..10usize, seed in any::<u64>(), loss in 0..100u64) {
        let mut world = World::new(count, seed);
        world.join();
        world.loss = loss;
        let mut gone: Vec<(usize, NodeId)> = Vec::new();
        while gone.len() + 2 < count {
            let left: Vec<usize> = gone.iter().map(|(node, _)| *node).collect();
            let there = without(&world, &left);
            let victim = there[world.below(there.len() as u64) as usize];
            let id = world.id(victim);
            let there = without(&world, &[left.as_slice(), &[victim]].concat());
            // Some are down or cut off when they go, or do not hear of it at once.
            let is_down = world.below(3) == 0;
            if is_down {
                world.kill(victim);
            } else if world.below(3) == 0 {
                world.cut.extend(there.iter().map(|&node| (node.min(victim), node.max(victim))));
            }
            let absent = (world.below(3) == 0).then(|| there[world.below(there.len() as u64) as usize]);
            if let Some(absent) = absent {
                world.kill(absent);
            }
            let by = *there.iter().find(|node| Some(**node) != absent).expect("one is there");
            world.forget(by, id);
            let pause = world.below(300);
            world.run(pause + 100);
            prop_assert_eq!(world.places[by].done.pop(), Some(Ok(())));
            if let Some(absent) = absent {
                world.start(absent);
            }
            if is_down {
                world.start(victim);
            }
            world.cut.clear();
            gone.push((victim, id));
            let pause = world.below(3_000);
            world.run(pause);
        }
        let left: Vec<usize> = gone.iter().map(|(node, _)| *node).collect();
        let there = without(&world, &left);
        world.until(10_000, "the forgotten are gone, and know it", |world| {
            gone.iter().all(|&(node, id)| {
                nobody_knows(world, &all(world), id) && world.machine(node).members().is_empty()
            })
        });
        // Whatever starts again, and however long it takes.
        for node in all(&world) {
            world.kill(node);
            world.run(100);
            world.start(node);
        }
        for _ in 0..10 {
            world.run(2_000);
            for &(_, id) in &gone {
                prop_assert!(nobody_knows(&world, &all(&world), id), "{}", world.show());
            }
        }
        world.loss = 0;
        world.until(5_000, "the others are whole", |world| world.is_whole(&there));
        // A MEET brings one back, from either side.
        let (back, _) = gone[0];
        if world.below(2) == 0 {
            world.meet(there[0], back);
        } else {
            world.meet(back, there[0]);
        }
        let mut whole = there.clone();
        whole.push(back);
        world.until(5_000, "met again", |world| world.is_whole(&whole));
        world.run(10_000);
        prop_assert!(world.is_whole(&whole), "{}", world.show());
    }

    #[test]
    fn a_flush_comes_with_a_new_epoch_that_was_saved(count in 1..5usize, seed in any::<u64>(), flushes in 1..4usize) {
        let mut world = World::new(count, seed);
        world.join();
        let before = world.machine(0).me.epoch;
        let shown = |world: &World| world.places[0].topology.as_ref().map(|topology| topology.epoch);
        for _ in 0..flushes {
            world.with(0, |machine, now, ticket| machine.flush(now, ticket));
            // Something else has the caller say the epoch that it knows.
            world.with(0, |machine, now, _| machine.start(now, before));
        }
        prop_assert_eq!(shown(&world), Some(before), "the shards flush with the epoch, not after it");
        let mut seen = before;
        for number in 1..=flushes {
            world.until(200, "flushed", |world| world.places[0].flushed.len() >= number);
            let epoch = world.places[0].flushed[number - 1];
            prop_assert!(epoch > seen, "each has an epoch of its own");
            seen = epoch;
        }
        let saved = conf::parse(&world.places[0].disk).expect("what was saved is read").me.expect("it names itself");
        prop_assert_eq!((world.places[0].flushed.len(), saved.epoch, shown(&world)), (flushes, seen, Some(seen)));
        let id = world.id(0);
        world.until(2_000, "the others know", |world| world.places[1..].iter().all(|place| {
            let topology = place.topology.as_ref().expect("it was published");
            topology.peers.iter().any(|peer| peer.id == id && peer.epoch == seen)
        }));
    }

    #[test]
    fn who_is_reset_while_it_meets_a_node_is_not_kept_there(
        seed in any::<u64>(),
        loss in 0..100u64,
        before_ms in 0..150u64,
        hard in any::<bool>(),
    ) {
        resets_while_it_meets(seed, loss, before_ms, hard);
    }

    #[test]
    fn who_is_reset_leaves_alone(count in 2..10usize, seed in any::<u64>(), loss in 0..100u64, hard in any::<bool>()) {
        let mut world = World::new(count, seed);
        world.join();
        world.loss = loss;
        let absent = (count > 2 && world.below(2) == 0).then_some(count - 1);
        if let Some(absent) = absent {
            world.kill(absent);
        }
        let (old, epoch) = (world.id(0), world.machine(0).me.epoch);
        world.with(0, |machine, now, ticket| machine.reset(now, ticket, hard));
        world.until(1_500, "reset", |world| !world.places[0].flushed.is_empty());
        prop_assert!(world.machine(0).members().is_empty());
        prop_assert!(world.machine(0).me.epoch > epoch);
        prop_assert_eq!(world.places[0].flushed.clone(), vec![world.machine(0).me.epoch]);
        prop_assert_eq!(world.id(0) == old, !hard);
        let topology = world.places[0].topology.as_ref().expect("it was published");
        prop_assert!(topology.peers.iter().all(|peer| peer.state == PeerState::Gone));
        if let Some(absent) = absent {
            world.start(absent);
        }
        let others = without(&world, &[0]);
        world.until(4_000, "the others know", |world| nobody_knows(world, &others, old));
        for node in all(&world) {
            world.kill(node);
            world.run(50);
            world.start(node);
        }
        for _ in 0..5 {
            world.run(1_000);
            prop_assert!(nobody_knows(&world, &others, old) && world.machine(0).members().is_empty(), "{}", world.show());
        }
        world.loss = 0;
        world.meet(others[0], 0);
        let everyone = all(&world);
        world.until(5_000, "met again", |world| world.is_whole(&everyone));
        world.run(5_000);
        prop_assert!(world.is_whole(&everyone), "{}", world.show());
    }

    #[test]
    fn hostile_packets_change_nothing(seed in any::<u64>(), bytes in prop::collection::vec(any::<u8>(), 0..300), member in any::<bool>()) {
        let mut world = World::new(3, seed);
        world.join();
        let node = if member { world.id(1) } else { NodeId::from_bytes([9; 20]) };
        let from = Sender { node, epoch: 0, shard: 0, kind: LinkKind::Membership, ip: None };
        let before = world.machine(0).view().ignored;
        world.with(0, |machine, now, _| machine.packet(now, &from, &bytes));
        prop_assert_eq!(world.machine(0).view().ignored, before + 1);
        world.run(1_000);
        prop_assert!(world.is_whole(&[0, 1, 2]));
    }
}

fn resets_while_it_meets(seed: u64, loss: u64, before_ms: u64, hard: bool) {
    let mut world = World::new(4, seed);
    let (old, outsider) = (world.id(0), 3);
    world.meet(0, 1);
    world.meet(0, 2);
    world.until(4_000, "three know each other", |world| world.is_whole(&[0, 1, 2]));
    (world.loss, world.delay_ms) = (loss, 50);
    world.meet(0, outsider);
    world.run(before_ms);
    world.with(0, |machine, now, ticket| machine.reset(now, ticket, hard));
    world.until(1_500, "reset", |world| !world.places[0].flushed.is_empty());
    world.meet(1, outsider);
    world.until(
        6_000,
        "the others know each other, and not who was reset",
        |world| world.is_whole(&[1, 2, outsider]) && nobody_knows(world, &[1, 2, outsider], old),
    );
    world.run(2_000);
    assert!(nobody_knows(&world, &[1, 2, outsider], old), "{}", world.show());
}

#[test]
fn a_second_meet_that_tells_of_the_reset_undoes_the_first() {
    resets_while_it_meets(4_777_791_889_130_175_677, 48, 50, false);
}

#[test]
fn a_pair_that_alone_does_not_hear_each_other_is_suspect_and_not_failed() {
    let mut world = World::new(4, 1);
    world.join();
    world.cut.insert((0, 1));
    let (a, b) = (world.id(0), world.id(1));
    world.run(10_000);
    for _ in 0..100 {
        world.run(100);
        assert_eq!(world.state(0, b), Some(PeerState::Suspect));
        assert_eq!(world.state(1, a), Some(PeerState::Suspect));
        assert_eq!(world.state(2, a), Some(PeerState::Alive));
    }
    world.cut.clear();
    world.until(1_000, "healed", |world| world.is_whole(&[0, 1, 2, 3]));
}

#[test]
fn the_timeout_can_change_at_run_time() {
    let mut world = World::new(2, 2);
    world.join();
    for (timeout_ms, least, most) in [(600, 500, 900), (4_000, 3_500, 5_000)] {
        world.timeout_ms = timeout_ms;
        let facts = world.facts();
        world.with(0, |machine, now, _| machine.configure(now, facts));
        world.run(1_000);
        let id = world.id(1);
        world.kill(1);
        let failed = |world: &World| world.state(0, id) == Some(PeerState::Failed);
        let took_ms = world.until(6_000, "failed", failed);
        assert!((least..=most).contains(&took_ms), "{took_ms} of {timeout_ms}");
        world.start(1);
        world.until(2_000, "back", |world| world.is_whole(&[0, 1]));
    }
}

#[test]
fn a_node_that_slept_does_not_blame_the_others() {
    let mut world = World::new(3, 3);
    world.join();
    world.places[0].said.clear();
    let before = world.ms;
    // All of them stand still: as if the machine was suspended.
    world.ms += 60_000;
    for node in 0..3 {
        world.with(node, |machine, now, _| machine.tick(now));
    }
    assert!(world.ms > before);
    world.run(2_000);
    let said = &world.places[0].said;
    assert!(!said.iter().any(|text| text.contains("failed")), "{said:?}");
}

#[test]
fn a_meet_that_comes_to_nothing_is_told_and_counted() {
    let mut world = World::new(3, 4);
    world.kill(1);
    world.meet(0, 1);
    world.meet(0, 1);
    world.meet(0, 0);
    assert_eq!(world.machine(0).view().nodes().matches("handshake").count(), 2);
    world.run(4_000);
    assert_eq!(
        world.machine(0).view().meets,
        1,
        "a node that does not answer is tried again"
    );
    world.run(2_000);
    let view = world.machine(0).view();
    assert_eq!((view.meets, view.meets_failed, view.others.len()), (0, 2, 0));
    let said = world.places[0].said.join("\n");
    assert!(
        said.contains("refused") && said.contains("this node itself"),
        "{said}"
    );
    assert_eq!(world.machine(0).next_deadline(), None, "alone it rests");
    // One that comes up meanwhile is met.
    world.meet(0, 1);
    world.run(3_000);
    world.start(1);
    world.until(3_000, "met", |world| world.is_whole(&[0, 1]));
}

#[test]
fn a_configuration_that_cannot_be_written_is_tried_again() {
    let mut world = World::new(2, 6);
    world.join();
    // A start: it takes part when it could be written.
    world.kill(0);
    world.places[0].disk_is_full = true;
    world.start(0);
    world.run(3_000);
    assert!(world.machine(0).silent);
    let said = world.places[0].said.join("\n");
    assert_eq!(said.matches("cannot be written").count(), 1, "{said}");
    assert!(said.contains("takes no part in the cluster"), "{said}");
    world.places[0].disk_is_full = false;
    world.until(3_000, "whole", |world| world.is_whole(&[0, 1]));
    assert!(world.places[0].said.join("\n").contains("is written again"));
    // Commands are told; what they began stays begun, and is written later.
    world.places[0].disk_is_full = true;
    let other = world.id(1);
    world.forget(0, other);
    world.with(0, |machine, now, ticket| machine.flush(now, ticket));
    world.run(1_500);
    let error = world.places[0]
        .done
        .pop()
        .expect("FORGET ended")
        .expect_err("it is not safe");
    assert!(error.to_string().contains("cannot be written"), "{error}");
    assert!(
        world.places[0].flushed.is_empty(),
        "no epoch before it was written"
    );
    world.places[0].disk_is_full = false;
    world.until(1_500, "flushed", |world| world.places[0].flushed.len() == 1);
    let saved = conf::parse(&world.places[0].disk).expect("what was saved is read");
    assert!(!saved.others.iter().any(|record| record.id == other), "{saved:?}");
}

#[test]
fn nothing_is_said_before_the_generation_is_on_disk() {
    let mut world = World::new(2, 5);
    world.join();
    world.run(100);
    let first = world.machine(0).me.generation;
    world.kill(0);
    world.start(0);
    assert_eq!(world.machine(0).me.generation, first + 1);
    assert!(world.machine(0).silent);
    world.until(100, "written", |world| !world.machine(0).silent);
    let text = &world.places[0].disk;
    assert!(text.contains(&format!("generation {} ", first + 1)), "{text}");
    // An old nodes.conf is noticed, and outdone.
    let old = world.places[0].disk.clone();
    for _ in 0..3 {
        world.kill(0);
        world.start(0);
        world.until(2_000, "whole", |world| world.is_whole(&[0, 1]));
    }
    world.run(2_000);
    world.kill(0);
    world.places[0].disk = old;
    world.start(0);
    world.run(3_000);
    assert!(world.machine(0).me.generation > first + 4);
    let known = world.machine(1).number_of(world.id(0)).expect("it is known");
    assert_eq!(world.machine(1).node(known).record, world.machine(0).me);
}

#[test]
fn what_a_node_says_of_itself_reaches_all() {
    let mut world = World::new(4, 6);
    world.join();
    world.with(0, |machine, now, ticket| machine.set_leaving(now, ticket, true));
    world.with(1, |machine, now, _| machine.start(now, u64::MAX / 4));
    world.with(2, |machine, _, _| machine.set_memory_level(2));
    let mut facts = world.facts();
    facts.host = "three.example.org".into();
    facts.zone = super::Facts::domain("west");
    world.with(3, |machine, now, _| machine.configure(now, facts.clone()));
    world.run(2_000);
    assert_eq!(world.places[0].done, [Ok(())]);
    let ids: Vec<NodeId> = all(&world).into_iter().map(|node| world.id(node)).collect();
    for node in 0..4 {
        let topology = world.places[node].topology.clone().expect("it was published");
        let peer = |other: usize| topology.peers.iter().find(|peer| peer.id == ids[other]);
        assert!(peer(0).is_none_or(|peer| peer.leaving));
        assert!(peer(1).is_none_or(|peer| peer.epoch == u64::MAX / 4));
        assert!(peer(2).is_none_or(|peer| peer.memory_level == 2));
        assert!(peer(3).is_none_or(|peer| peer.clients.0 == "three.example.org" && peer.zone == facts.zone));
    }
    let is_listed = |node: usize| world.machine(node).view().nodes().contains("leaving");
    assert!((0..4).all(is_listed));
}

#[test]
fn forget_refuses_what_it_cannot_do() {
    let mut world = World::new(2, 7);
    world.join();
    let me = world.id(0);
    for id in [me, NodeId::from_bytes([7; 20])] {
        world.forget(0, id);
        assert!(matches!(world.places[0].done.pop(), Some(Err(_))));
    }
    assert!(world.is_whole(&[0, 1]));
}

#[test]
fn a_machine_is_small_and_quiet_when_alone() {
    let mut world = World::new(1, 8);
    world.run(1_000);
    assert_eq!(world.machine(0).next_deadline(), None);
    assert_eq!(world.machine(0).view().sent, 0);
    assert!(size_of::<Membership>() < 2048);
}
