//! Leases and refusals of a partition and a server's pool.

use super::request::AGAIN;
use super::*;
use crate::Context;
use std::collections::{BTreeMap, BTreeSet};

#[test]
fn a_partition_leases_every_number_of_its_blocks_once() {
    let mut pool = PartitionPool::new(600);
    pool.grant_block(1, &[0; 4]);
    pool.grant_block(2, &[0; 4]);
    let mut seen = BTreeSet::new();
    while let Lease::Granted(number) = pool.lease(&(0..600), None) {
        assert!(seen.insert(number), "{number} was leased twice");
    }
    assert_eq!(seen, (256..600).collect::<BTreeSet<u32>>(), "the last block ends with the pool");
    assert_eq!(pool.poll_effect(), Some(PoolEffect::WantBlock), "running low asks for more");
    assert_eq!(pool.lease(&(0..600), None), Lease::Wait);
    pool.deny();
    assert_eq!(pool.lease(&(0..600), None), Lease::Exhausted);
    pool.give_back(300);
    assert_eq!(pool.lease(&(0..600), None), Lease::Granted(300));
}

#[test]
fn numbers_that_flows_still_hold_are_not_leased_from_a_granted_block() {
    let mut pool = PartitionPool::new(256);
    pool.grant_block(0, &[u64::MAX, u64::MAX, u64::MAX, u64::MAX - 2]);
    assert_eq!(pool.lease(&(0..256), None), Lease::Granted(193));
    assert!(pool.returned(5), "a flow elsewhere ended");
    assert_eq!(pool.lease(&(0..256), None), Lease::Granted(5));
}

#[test]
fn a_foreign_number_is_reported_when_adopted_and_returned_when_given_back() {
    let mut pool = PartitionPool::new(1024);
    pool.adopt(700);
    assert_eq!(pool.poll_effect(), Some(PoolEffect::Adopted(700)));
    pool.give_back(700);
    assert_eq!(pool.poll_effect(), Some(PoolEffect::Return(700)));
    assert_eq!(pool.poll_effect(), None);
}

/// The block came first, with the number of a flow elsewhere; then the flow came too. The
/// coordinator must hear of it, or it would take the number for lost with the runtime
/// that had the flow before; and if it did, the flow keeps its number.
#[test]
fn a_number_of_a_held_block_is_reported_when_adopted_and_not_freed_from_outside() {
    let mut pool = PartitionPool::new(256);
    pool.grant_block(0, &[1 << 5, 0, 0, 0]);
    pool.adopt(5);
    assert_eq!(pool.poll_effect(), Some(PoolEffect::Adopted(5)));
    assert!(pool.returned(5));
    assert!(!pool.is_free(5));
    pool.give_back(5);
    assert_eq!((pool.is_free(5), pool.available(), pool.poll_effect()), (true, 256, None));
}

/// The flow came first, then the block with its number.
#[test]
fn a_flow_keeps_its_number_when_the_block_comes_after_it() {
    for used in [[0; 4], [1 << 5, 0, 0, 0]] {
        let mut pool = PartitionPool::new(256);
        pool.adopt(5);
        pool.grant_block(0, &used);
        assert!(!pool.is_free(5));
        assert_eq!((pool.poll_effect(), pool.available()), (Some(PoolEffect::Adopted(5)), 255));
        pool.give_back(5);
        assert_eq!((pool.is_free(5), pool.available(), pool.poll_effect()), (true, 256, None));
    }
}

/// Flows with numbers of three blocks come; one goes, and the first block comes. The
/// remaining numbers are known one by one.
#[test]
fn numbers_of_several_blocks_are_told_apart() {
    let mut pool = PartitionPool::new(1024);
    for number in [300, 5, 700, 701, 6] {
        pool.adopt(number);
    }
    pool.give_back(701);
    pool.give_back(300);
    pool.grant_block(0, &[0; 4]);
    while pool.poll_effect().is_some() {}
    pool.announce();
    let mut told = BTreeSet::new();
    while let Some(PoolEffect::Adopted(number)) = pool.poll_effect() {
        told.insert(number);
    }
    assert_eq!(told, BTreeSet::from([700]), "those of block 0 are this partition's own now");
    assert!(!pool.is_free(5) && !pool.is_free(6) && pool.is_free(7));
    assert_eq!(pool.available(), BLOCK_LEN - 2);
}

/// Others need blocks. Blocks of which no number is held go back, but not the last free
/// numbers, and not a block whose flows have ended only just; what has gone is not
/// leased.
#[test]
fn blocks_that_nobody_uses_are_spared_and_enough_is_kept() {
    let mut pool = PartitionPool::new(4 * 256);
    (0..4).for_each(|block| pool.grant_block(block, &[0; 4]));
    assert_eq!(pool.lease(&(256..512), None), Lease::Granted(256));
    assert_eq!(pool.lease(&(512..768), None), Lease::Granted(512));
    pool.give_back(512);
    let spared = |pool: &mut PartitionPool| {
        pool.spare();
        std::iter::from_fn(|| pool.poll_effect()).collect::<Vec<_>>()
    };
    assert_eq!(
        spared(&mut pool),
        [PoolEffect::Spare(0), PoolEffect::Spare(3), PoolEffect::SparedAll]
    );
    assert_eq!(spared(&mut pool), [PoolEffect::Spare(2), PoolEffect::SparedAll], "it has rested");
    pool.give_back(256);
    assert_eq!(spared(&mut pool), [PoolEffect::SparedAll]);
    assert_eq!(spared(&mut pool), [PoolEffect::SparedAll], "one is kept");
    for _ in 0..256 {
        assert!(matches!(pool.lease(&(0..1024), None), Lease::Granted(256..512)));
    }
    pool.grant_block(2, &[0; 4]);
    assert_eq!(
        spared(&mut pool),
        [PoolEffect::WantBlock, PoolEffect::SparedAll],
        "it is all that is free"
    );
}

/// A number of a block here turns out to be held elsewhere.
#[test]
fn a_number_that_is_taken_after_all_is_not_leased() {
    let mut pool = PartitionPool::new(256);
    pool.grant_block(0, &[0; 4]);
    pool.taken(0);
    assert_eq!(pool.lease(&(0..256), None), Lease::Granted(1));
    pool.returned(0);
    assert!(pool.is_free(0));
}

/// A flow leaves with its number: it is free again when whoever has the flow returns it.
#[test]
fn the_number_of_a_flow_that_left_is_taken_until_it_is_returned() {
    let mut pool = PartitionPool::new(256);
    pool.grant_block(0, &[0; 4]);
    assert_eq!(pool.lease(&(0..256), None), Lease::Granted(0));
    pool.forget(0);
    assert!(!pool.is_free(0));
    pool.returned(0);
    assert!(pool.is_free(0));
}

#[test]
fn a_returned_number_rests_while_others_are_free() {
    let mut pool = PartitionPool::new(256);
    pool.grant_block(0, &[0; 4]);
    let Lease::Granted(first) = pool.lease(&(0..256), None) else { panic!("the block is free") };
    pool.give_back(first);
    for _ in 1..256 {
        assert_ne!(pool.lease(&(0..256), None), Lease::Granted(first));
    }
    assert_eq!(pool.lease(&(0..256), None), Lease::Granted(first));
}

#[test]
fn preferred_blocks_come_first_and_others_after() {
    let mut pool = PartitionPool::new(512);
    pool.grant_block(0, &[0; 4]);
    pool.grant_block(1, &[0; 4]);
    for _ in 0..256 {
        assert!(matches!(pool.lease(&(256..512), None), Lease::Granted(n) if n >= 256));
    }
    assert!(matches!(pool.lease(&(256..512), None), Lease::Granted(n) if n < 256));
}

#[test]
fn the_request_pool_waits_for_its_server_and_keeps_a_credit() {
    let mut pool = RequestPool::new(9, 2);
    assert_eq!(
        (pool.poll_effect(), pool.poll_effect(), pool.poll_effect()),
        (Some(PoolEffect::Request), Some(PoolEffect::Request), None)
    );
    assert_eq!(pool.lease(&(0..9), None), Lease::Wait);
    pool.assign(7);
    assert_eq!(pool.lease(&(0..9), None), Lease::Granted(7));
    assert_eq!(pool.poll_effect(), Some(PoolEffect::Used(7)));
    assert_eq!(pool.poll_effect(), Some(PoolEffect::Request), "the credit is filled up again");
    assert!(pool.is_held(7) && !pool.is_held(8) && !pool.is_held(u32::MAX));
    assert_eq!((pool.granted(), pool.available()), (1, 0));
    pool.give_back(7);
    pool.give_back(7);
    assert_eq!(
        (pool.poll_effect(), pool.poll_effect()),
        (Some(PoolEffect::Return(7)), None),
        "a flow ends once"
    );
    pool.deny();
    assert_eq!(pool.lease(&(0..9), None), Lease::Exhausted);
    pool.assign(3);
    assert!(pool.is_free(3));
    assert_eq!(pool.lease(&(0..9), None), Lease::Granted(3), "what was owed has come after all");
    [3, 9, 5, 5, u32::MAX].into_iter().for_each(|number| pool.assign(number));
    assert_eq!(
        (pool.available(), pool.is_free(5)),
        (1, true),
        "a server that errs does not err twice"
    );
}

/// Flows that come and go say so; what others need is theirs, until a flow here needs
/// some again.
#[test]
fn a_servers_pool_knows_its_flows_and_spares_its_credit() {
    let mut pool = RequestPool::new(100, 2);
    let effects =
        |pool: &mut RequestPool| core::iter::from_fn(|| pool.poll_effect()).collect::<Vec<_>>();
    pool.assign(1);
    pool.assign(2);
    effects(&mut pool);
    pool.adopt(64);
    assert!(pool.is_held(64));
    pool.forget(64);
    pool.forget(64);
    assert_eq!(effects(&mut pool), [PoolEffect::Adopted(64)]);
    assert!(pool.is_held(64), "until the flow is where it went");
    pool.settle();
    pool.settle();
    assert_eq!((effects(&mut pool), pool.is_held(64)), (vec![PoolEffect::Left(64)], false));
    pool.adopt(64);
    pool.forget(64);
    pool.adopt(64);
    pool.settle();
    assert!(pool.is_held(64), "it came back");
    pool.give_back(64);
    assert_eq!(
        effects(&mut pool),
        [PoolEffect::Adopted(64), PoolEffect::Adopted(64), PoolEffect::Return(64)]
    );
    pool.spare();
    assert_eq!(effects(&mut pool), [], "flows that wait have their turn first");
    pool.advance(1);
    assert_eq!(
        effects(&mut pool),
        [PoolEffect::Unused(1), PoolEffect::Unused(2), PoolEffect::SparedAll]
    );
    assert_eq!(
        (pool.lease(&(0..100), None), effects(&mut pool)),
        (Lease::Wait, vec![PoolEffect::Request; 2])
    );
}

/// A pool that was denied asks again for a flow that comes later: others may have some at
/// hand. Not for every packet; and what is owed is not owed twice.
#[test]
fn a_servers_pool_asks_again() {
    let mut pool = RequestPool::new(100, 2);
    let effects =
        |pool: &mut RequestPool| core::iter::from_fn(|| pool.poll_effect()).collect::<Vec<_>>();
    assert_eq!(
        (effects(&mut pool), pool.lease(&(0..100), None)),
        (vec![PoolEffect::Request; 2], Lease::Wait)
    );
    pool.advance(100);
    pool.deny();
    pool.advance(100 + AGAIN - 1);
    assert_eq!((pool.lease(&(0..100), None), effects(&mut pool)), (Lease::Exhausted, vec![]));
    pool.advance(100 + AGAIN);
    assert_eq!(
        (pool.lease(&(0..100), None), effects(&mut pool)),
        (Lease::Wait, vec![PoolEffect::Request])
    );
    assert_eq!(
        (pool.lease(&(0..100), None), effects(&mut pool)),
        (Lease::Wait, vec![]),
        "it has asked"
    );
    pool.deny();
    assert_eq!((pool.lease(&(0..100), None), effects(&mut pool)), (Lease::Exhausted, vec![]));
    [1, 2].into_iter().for_each(|number| pool.assign(number));
    assert_eq!(
        (pool.lease(&(0..100), None), pool.lease(&(0..100), None)),
        (Lease::Granted(1), Lease::Granted(2))
    );
    let used = [PoolEffect::Used(1), PoolEffect::Request, PoolEffect::Used(2), PoolEffect::Request];
    assert_eq!(effects(&mut pool), used, "all that was owed has come");
}

/// To a server that remembers nothing what flows have is said, and what is at hand for
/// them; what is missing of that is asked for anew.
#[test]
fn a_servers_pool_says_again_what_its_flows_have() {
    let mut pool = RequestPool::new(130, 2);
    [7, 129, 64].into_iter().for_each(|number| pool.assign(number));
    assert_eq!(
        (pool.lease(&(129..130), None), pool.lease(&(0..8), None)),
        (Lease::Granted(129), Lease::Granted(7))
    );
    pool.give_back(7);
    pool.adopt(3);
    pool.deny();
    pool.announce();
    let effects: Vec<PoolEffect> = core::iter::from_fn(|| pool.poll_effect()).collect();
    assert_eq!(
        effects,
        [
            PoolEffect::Adopted(3),
            PoolEffect::Adopted(129),
            PoolEffect::Adopted(64),
            PoolEffect::Request
        ]
    );
    assert_eq!(
        (pool.available(), pool.granted(), pool.lease(&(0..130), None)),
        (1, 3, Lease::Granted(64))
    );
}

/// A number that a flow had lately is told to such a server too: it rests there as it
/// did.
#[test]
fn a_servers_pool_remembers_what_rests() {
    let mut pool = RequestPool::new(130, 0).resting(100);
    pool.advance(1000);
    for (number, at) in [(3, 1000), (64, 1090), (129, 1090)] {
        pool.advance(at);
        pool.adopt(number);
        pool.give_back(number);
    }
    pool.advance(1101);
    pool.adopt(129);
    while pool.poll_effect().is_some() {}
    pool.announce();
    let effects: Vec<PoolEffect> = core::iter::from_fn(|| pool.poll_effect()).collect();
    let expected = [
        PoolEffect::Adopted(129),
        PoolEffect::Request,
        PoolEffect::Adopted(64),
        PoolEffect::Return(64),
    ];
    assert_eq!(effects, expected, "3 has rested");
    pool.forget(129);
    assert_eq!(pool.held(), 0, "it is where it goes");
    pool.adopt(129);
    assert_eq!(pool.held(), 1);
}

/// A partition knows the numbers of flows here, whoever has their block.
#[test]
fn a_partition_knows_what_its_flows_hold() {
    let mut pool = PartitionPool::new(600);
    pool.grant_block(2, &[1, 0, 0, 0]);
    pool.adopt(3);
    let Lease::Granted(number) = pool.lease(&(0..600), None) else { panic!("there is a block") };
    let held =
        |pool: &PartitionPool| (0..700).filter(|number| pool.is_held(*number)).collect::<Vec<_>>();
    assert_eq!(
        held(&pool),
        [3, number],
        "neither a flow's elsewhere nor what lies beyond the pool"
    );
    pool.give_back(number);
    pool.forget(3);
    assert_eq!(held(&pool), [0; 0]);
}

/// A random lease is of the numbers at hand, each once, to the last; two sequences of
/// draws give different ones, and the next number does not follow from the last.
#[test]
fn random_leases_are_of_the_numbers_at_hand() {
    let leased = |seed: u64| {
        let mut pool = PartitionPool::new(1024);
        (0..4).for_each(|block| pool.grant_block(block, &[0; 4]));
        let mut cx = Context::new(seed);
        let draws = core::iter::from_fn(|| match pool.lease(&(0..1024), Some(cx.random())) {
            Lease::Granted(number) => Some(number),
            Lease::Wait | Lease::Exhausted => None,
        });
        draws.collect::<Vec<u32>>()
    };
    let (one, other) = (leased(1), leased(2));
    assert_eq!(one.iter().copied().collect::<BTreeSet<u32>>(), (0..1024).collect());
    assert_ne!(one, other);
    let near =
        |numbers: &[u32]| numbers.windows(2).filter(|pair| pair[0].abs_diff(pair[1]) < 16).count();
    assert!(near(&one[..256]) < 40, "of 255 steps {} are short", near(&one[..256]));
    let spread: BTreeSet<u32> = one[..64].iter().map(|number| number / 64).collect();
    assert!(spread.len() >= 14, "64 leases lie in {spread:?} of 16 parts");
}

/// The preferred numbers come first at random, too, and a server's credit is used up to
/// the last.
#[test]
fn a_random_lease_is_a_preferred_one_if_there_is_any() {
    let mut pool = PartitionPool::new(1024);
    (0..4).for_each(|block| pool.grant_block(block, &[0; 4]));
    let mut credit = RequestPool::new(1024, 8);
    (0..8).for_each(|number| credit.assign(number * 100));
    let mut cx = Context::new(3);
    for at in 0..300 {
        let Lease::Granted(number) = pool.lease(&(256..512), Some(cx.random())) else {
            panic!("numbers are left")
        };
        assert_eq!((256..512).contains(&number), at < 256, "lease {at} is {number}");
    }
    let mut seen = BTreeSet::new();
    for at in 0..8 {
        let Lease::Granted(number) = credit.lease(&(300..500), Some(cx.random())) else {
            panic!("credit is left")
        };
        assert!(seen.insert(number) && (300..500).contains(&number) == (at < 2));
    }
    assert_eq!(credit.lease(&(300..500), Some(cx.random())), Lease::Wait);
}

/// A small pool is busy: whatever is given back, in order or at random, comes again only
/// when half of what was free before has been leased; the very last one comes at once.
#[test]
fn a_number_that_was_given_back_is_not_the_next() {
    for is_random in [false, true] {
        for (blocks, held) in [(1u32, 200u32), (1, 250), (2, 500), (4, 1000), (1, 254)] {
            let size = blocks * BLOCK_LEN;
            let mut pool = PartitionPool::new(size);
            (0..blocks).for_each(|block| pool.grant_block(block, &[0; 4]));
            let mut cx = Context::new(u64::from(held));
            let mut lease = |pool: &mut PartitionPool| {
                let random = is_random.then(|| cx.random());
                match pool.lease(&(0..size), random) {
                    Lease::Granted(number) => number,
                    other => panic!("{other:?}"),
                }
            };
            let mut flows: VecDeque<u32> = (0..held).map(|_| lease(&mut pool)).collect();
            let mut given_back: BTreeMap<u32, u32> = BTreeMap::new();
            let mut shortest = u32::MAX;
            for turn in 0..20 * size {
                let at = cx_index(turn, flows.len());
                let number = flows.swap_remove_back(at).unwrap();
                pool.give_back(number);
                given_back.insert(number, turn);
                let number = lease(&mut pool);
                flows.push_back(number);
                if let Some(before) = given_back.remove(&number) {
                    shortest = shortest.min(turn - before);
                }
            }
            // Per block half of those that are free there rest; one more is on its way.
            assert!(
                shortest >= 1,
                "{is_random}: of {size} with {held} held one came after {shortest} others"
            );
            if blocks == 1 {
                assert!(
                    shortest >= (size - held) / 2,
                    "{is_random}: of {size} with {held} held after {shortest}"
                );
            }
        }
    }
    let mut pool = PartitionPool::new(1);
    pool.grant_block(0, &[0; 4]);
    for _ in 0..3 {
        assert_eq!(pool.lease(&(0..1), Some(7)), Lease::Granted(0));
        pool.give_back(0);
    }
}

/// An index below `count` that differs from turn to turn, and reaches every one in the
/// end.
fn cx_index(turn: u32, count: usize) -> usize {
    (turn.wrapping_mul(2_654_435_761) >> 7) as usize % count
}

/// Flows were lost, nobody knows which numbers they had: the others say what they have,
/// and the rest is given back; what a flow has that has left, and may not have come where
/// it went, stays.
#[test]
fn what_no_flow_names_is_given_back() {
    for is_served in [false, true] {
        let mut pool = Numbers::new(256);
        if is_served {
            pool.attach(Box::new(RequestPool::new(256, 4)));
            (0..4).for_each(|number| pool.backend().assign(number));
        } else {
            pool.backend().grant_block(0, &[0; 4]);
        }
        let numbers: Vec<u32> = (0..4)
            .map(|_| match pool.lease(&(0..256), None) {
                Lease::Granted(number) => number,
                other => panic!("{other:?}"),
            })
            .collect();
        pool.follow(numbers[3], FlowEvent::Departed);
        core::iter::from_fn(|| pool.backend().poll_effect()).for_each(drop);
        pool.begin_recount();
        pool.follow(numbers[0], FlowEvent::Arrived);
        // A flow that has just come.
        pool.follow(200, FlowEvent::Arrived);
        pool.follow(numbers[2], FlowEvent::Arrived);
        pool.end_recount();
        let is_held: Vec<bool> =
            numbers.iter().chain(&[200]).map(|number| pool.backend().is_held(*number)).collect();
        assert_eq!(is_held, [true, false, true, is_served, true], "{is_served}");
        let effects: Vec<PoolEffect> =
            core::iter::from_fn(|| pool.backend().poll_effect()).collect();
        assert!(effects.contains(&PoolEffect::Adopted(200)), "{effects:?}");
        assert!(
            !effects.contains(&PoolEffect::Adopted(numbers[0])),
            "that is nothing new: {effects:?}"
        );
        assert_eq!(effects.contains(&PoolEffect::Return(numbers[1])), is_served, "{effects:?}");
        // Recounting is over.
        pool.follow(numbers[0], FlowEvent::Arrived);
        assert!(
            core::iter::from_fn(|| pool.backend().poll_effect())
                .any(|effect| effect == PoolEffect::Adopted(numbers[0]))
        );
    }
}
