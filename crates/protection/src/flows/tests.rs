//! Slots of flows: found by either key, taken, given back.

use super::*;
use core::cell::RefCell;
use holdfast_wire::Epoch;

fn key(n: u32) -> FlowKey {
    FlowKey {
        source_port: n as u16,
        destination_port: (n >> 16) as u16,
        protocol: 17,
        ..FlowKey::default()
    }
}

fn flows() -> Flows {
    Flows::new(1000, 40, 7, 99)
}

thread_local! {
    /// Addresses and old contents of changed bytes.
    static BEFORE: RefCell<Vec<(usize, Vec<u8>)>> = const { RefCell::new(Vec::new()) };
}

/// A journal's observer can restore everything by writing the old bytes back in reverse
/// order, even if states are evicted and others take their frames.
#[test]
fn what_changes_is_told_before() {
    let mut flows = Flows::with_room_for(2, 4, 40, 7, 99);
    let insert =
        |flows: &mut Flows, n: u32| flows.insert_owned(key(n), flows.hash(&key(n))).unwrap();
    let slots = [1, 2].map(|n| insert(&mut flows, n));
    for slot in slots {
        flows.parts_mut(slot).1.fill(slot as u8 + 1);
    }
    let there = flows.block(slots[1]).to_vec();
    flows.set_journal(Journal {
        exempt: |_| {},
        before: |bytes| {
            BEFORE.with_borrow_mut(|before| before.push((bytes.as_ptr() as usize, bytes.to_vec())))
        },
        scratch: |_, _| {},
    });
    let turns: [&dyn Fn(&mut Flows); 6] = [
        &|flows| flows.header_mut(slots[0]).version = 8,
        &|flows| flows.parts_mut(slots[0]).1.fill(9),
        &|flows| flows.block_mut(slots[1])[HEADER_LEN] = 7,
        &|flows| {
            flows.set_reply(slots[0], key(10)).unwrap();
            flows.step(slots[1], Event::Copy);
            flows.overwrite(slots[1], &there).unwrap();
            flows.remove(slots[1]);
        },
        &|flows| {
            let state = flows.state(slots[0]).to_vec();
            flows.evict(slots[0]);
            let third = flows.insert_owned(key(3), flows.hash(&key(3))).unwrap();
            flows.parts_mut(third).1.fill(3);
            flows.remove(third);
            flows.header_mut(slots[0]).version = 9;
            flows.load(slots[0], &state).unwrap();
        },
        &|flows| _ = flows.insert_header(key(4), flows.hash(&key(4)), Event::Announce).unwrap(),
    ];
    for (at, turn) in turns.into_iter().enumerate() {
        let was = flows.lines.as_bytes().to_vec();
        flows.begin_turn();
        turn(&mut flows);
        let (mut undone, begin) = (flows.lines.as_bytes().to_vec(), flows.lines.as_ptr() as usize);
        assert_ne!(undone, was, "turn {at}");
        for (address, bytes) in BEFORE.take().into_iter().rev() {
            // Other entries belong to the table.
            if let Some(offset) =
                address.checked_sub(begin).filter(|offset| offset + bytes.len() <= was.len())
            {
                undone[offset..offset + bytes.len()].copy_from_slice(&bytes);
            }
        }
        assert!(undone == was, "turn {at}");
    }
}

/// A slot is reserved for an arriving flow, and the flow's state comes first, as to a
/// replica. The slot is then not empty, whatever becomes of the move.
#[test]
fn a_place_with_a_state_is_not_empty() {
    let (mut theirs, mut ours) = (flows(), flows());
    let key = key(1);
    let from = theirs.insert_owned(key, theirs.hash(&key)).unwrap();
    theirs.header_mut(from).flags = flag::DIRTY | flag::UNCONFIRMED;
    let slot = ours.insert(key, ours.hash(&key), Event::Announce).unwrap();
    ours.header_mut(slot).flags = flag::EMPTY;
    ours.overwrite(slot, theirs.block(from)).unwrap();
    assert_eq!(ours.header(slot).flags, flag::UNCONFIRMED);
    assert_eq!(ours.header(slot).life(), Life::Arriving);
}

#[test]
fn a_flow_is_found_by_both_keys_until_it_is_removed() {
    let mut flows = flows();
    let (forward, reply) = (key(1), key(0x10001));
    let slot = flows.insert_owned(forward, flows.hash(&forward)).unwrap();
    flows.set_reply(slot, reply).unwrap();
    assert_eq!(flows.find(&forward, flows.hash(&forward)), Some(Found { slot, is_reply: false }));
    assert_eq!(flows.find(&reply, flows.hash(&reply)), Some(Found { slot, is_reply: true }));
    assert_eq!(flows.owned(), 1);
    flows.remove(slot);
    assert_eq!(flows.find(&forward, flows.hash(&forward)), None);
    assert_eq!(flows.find(&reply, flows.hash(&reply)), None);
    assert_eq!((flows.owned(), flows.len()), (0, 0));
}

/// A flow was to move here, and its runtime died. The flow's new owner makes its replica
/// here. The slot is not empty any more, and will be claimed as a replica if that owner
/// fails.
#[test]
fn a_place_that_is_overwritten_is_not_empty() {
    let (mut here, mut there) = (flows(), flows());
    let slot = there.insert_owned(key(1), there.hash(&key(1))).unwrap();
    let place = here.insert(key(1), here.hash(&key(1)), Event::Claim).unwrap();
    here.header_mut(place).flags |= flag::EMPTY | flag::WHOLE;
    here.overwrite(place, there.block(slot)).unwrap();
    assert_eq!(here.header(place).flags, flag::WHOLE);
}

/// Ten flows come, five go, three come. A search looks at ten slots at most, and finds
/// every flow there.
#[test]
fn a_search_ends_behind_the_last_slot_that_was_used() {
    let mut flows = flows();
    assert_eq!((flows.reach(), flows.iter().count()), (0, 0));
    let slots: Vec<Slot> =
        (0..10).map(|n| flows.insert_owned(key(n), flows.hash(&key(n))).unwrap()).collect();
    slots[..5].iter().for_each(|slot| flows.remove(*slot));
    for n in 10..13 {
        flows.insert(key(n), flows.hash(&key(n)), Event::Copy).unwrap();
    }
    assert_eq!((flows.reach(), flows.iter().count(), flows.len()), (10, 8, 8));
}

#[test]
fn as_many_flows_as_promised_fit_and_one_more_is_refused() {
    let mut flows = flows();
    for n in 0..1000 {
        let slot = flows.insert_owned(key(n), flows.hash(&key(n))).unwrap();
        flows.set_reply(slot, key(n + 0x10000)).unwrap();
    }
    assert_eq!(flows.insert_owned(key(5000), flows.hash(&key(5000))), Err(Full));
    for n in 0..1000 {
        assert!(flows.find(&key(n), flows.hash(&key(n))).is_some());
    }
}

#[test]
fn a_reply_key_of_another_flow_is_refused() {
    let mut flows = flows();
    flows.insert_owned(key(1), flows.hash(&key(1))).unwrap();
    let slot = flows.insert_owned(key(2), flows.hash(&key(2))).unwrap();
    assert_eq!(flows.set_reply(slot, key(1)), Err(NoReply::Taken));
}

/// Three flows share room for two states. A flow whose state is evicted keeps its header
/// and its keys, and the state comes back. Slots that are used again keep count of their
/// uses.
#[test]
fn a_state_may_be_absent() {
    let mut flows = Flows::with_room_for(2, 3, 40, 7, 99);
    let insert = |flows: &mut Flows, n: u32| flows.insert_owned(key(n), flows.hash(&key(n)));
    let slots = [1, 2].map(|n| insert(&mut flows, n).unwrap());
    for (slot, n) in slots.into_iter().zip([10, 20]) {
        flows.parts_mut(slot).1.fill(n);
        flows.set_reply(slot, key(u32::from(n))).unwrap();
    }
    assert_eq!(insert(&mut flows, 3), Err(Full), "nobody's state has gone");
    assert_eq!(flows.find(&key(3), flows.hash(&key(3))), None);
    let kept = flows.state(slots[0]).to_vec();
    flows.header_mut(slots[0]).version = 8;
    flows.evict(slots[0]);
    assert_eq!((flows.room(), flows.absent(), flows.len(), flows.owned()), (1, 1, 2, 2));
    let third = insert(&mut flows, 3).unwrap();
    assert_eq!(flows.state(third), [0; 40], "nothing is left of the one before");
    assert_eq!(
        (flows.is_present(slots[0]), flows.is_present(third), flows.room()),
        (false, true, 0)
    );
    assert_eq!(flows.load(slots[0], &kept), Err(Full));
    flows.header_mut(slots[0]).last_stamp = 77;
    flows.remove(slots[1]);
    flows.load(slots[0], &kept).unwrap();
    let header = flows.header(slots[0]);
    assert_eq!(
        (header.version, header.last_stamp, header.key, header.reply),
        (8, 77, key(1), key(10))
    );
    assert_eq!(flows.state(slots[0]), [10; 40]);
    assert_eq!(
        flows.find(&key(10), flows.hash(&key(10))),
        Some(Found { slot: slots[0], is_reply: true })
    );
    let generation = flows.header(slots[1]).generation;
    let first = flows.reference(third);
    assert!(flows.get_owned(first).is_some_and(|header| header.key == key(3)));
    flows.remove(third);
    assert!(flows.get(first).is_none() && flows.reference(third) == first);
    let again = insert(&mut flows, 4).unwrap();
    assert_eq!((again, flows.header(again).generation), (third, 2));
    assert!(flows.get(first).is_none() && flows.get_mut(first).is_none());
    assert!(flows.get(flows.reference(again)).is_some_and(|header| header.key == key(4)));
    flows.evict(again);
    flows.remove(again);
    assert_eq!(
        (flows.header(slots[1]).generation, flows.room(), flows.absent()),
        (generation, 1, 0)
    );
}

#[test]
fn state_that_arrives_keeps_what_is_local() {
    let mut here = flows();
    let mut there = flows();
    let slot = there.insert_owned(key(1), there.hash(&key(1))).unwrap();
    there.set_reply(slot, key(3)).unwrap();
    there.parts_mut(slot).1[7] = 42;
    there.header_mut(slot).version = 9;
    let copy = here.insert(key(1), here.hash(&key(1)), Event::Copy).unwrap();
    here.overwrite(copy, there.block(slot)).unwrap();
    assert_eq!(here.state(copy)[7], 42);
    assert_eq!((here.header(copy).life(), here.header(copy).version), (Life::Copy, 9));
    assert!(here.find(&key(3), here.hash(&key(3))).is_some());
}

/// Two flows have one reply key, as a copy and its rival do, or as both do after one
/// moved here. A packet carries the epoch of the flow that is meant.
#[test]
fn of_flows_with_one_reply_key_the_epoch_says_which() {
    let mut flows = flows();
    let slots = [(1, 70), (2, 71)].map(|(n, epoch)| {
        let slot = flows.insert_owned(key(n), flows.hash(&key(n))).unwrap();
        flows.header_mut(slot).epoch = Epoch::new(epoch);
        flows.place_reply(slot, key(10)).unwrap();
        slot
    });
    let hash = flows.hash(&key(10));
    for (slot, epoch) in slots.into_iter().zip([70, 71]) {
        let found = Some(Found { slot, is_reply: true });
        assert_eq!(flows.find_meant(&key(10), hash, epoch), found);
        for likely in
            slots.map(|slot| Some(Found { slot, is_reply: true })).into_iter().chain([None])
        {
            assert_eq!(flows.find_likely(&key(10), hash, Epoch::new(epoch.into()), likely), found);
        }
    }
    // An unknown epoch means a flow that has not been told its own yet, if there is one.
    assert!(flows.is_shared(&key(10)));
    for slot in slots {
        flows.step(slot, Event::Copy);
        flows.step(slot, Event::Announce);
        assert_eq!(flows.find_meant(&key(10), hash, 5), Some(Found { slot, is_reply: true }));
        flows.step(slot, Event::Arrive);
    }
    // A flow with this forward key precedes flows with this reply key.
    assert!(flows.find_meant(&key(10), hash, 5).is_some_and(|found| found.is_reply));
    let own = flows.insert_owned(key(10), hash).unwrap();
    assert_eq!(flows.find(&key(10), hash), Some(Found { slot: own, is_reply: false }));
    flows.remove(slots[0]);
    assert_eq!(
        flows.find_meant(&key(10), hash, 71),
        Some(Found { slot: slots[1], is_reply: true })
    );
    assert!(!flows.is_shared(&key(10)));
}
