//! There is room for the state of some flows only.

use super::*;

/// A world of two runtimes with room for the state of two flows each. The first has so
/// many flows of one packet each.
fn world(flows: u16, plan: Plan) -> World {
    let mut world = World::new(2, plan);
    for at in 0..2 {
        world.sides[at] = Side::with_room_for(peer(at as u16), plan, 2);
    }
    for flow in 1..=flows {
        world.process(0, flow);
        world.talk();
    }
    world
}

fn state_of(world: &World, flow: u16) -> Option<u8> {
    let side = &world.sides[0];
    let slot = side.find(flow)?;
    side.flows.is_present(slot).then(|| side.flows.state(slot)[0])
}

/// A packet comes: it can be processed, or waits.
fn admit(world: &mut World, flow: u16) -> Admission {
    let now = world.now;
    let Side { flows, protection, out, .. } = world.at(0);
    let slot = flows.find(&key(flow), flows.hash(&key(flow))).expect("the flow is there").slot;
    out.begin(0, now);
    protection.admit(flows, slot)
}

/// The server hears the requests, and its answers are returned undelivered.
fn question(world: &mut World) -> Vec<(Peer, u8, Vec<u8>)> {
    world.flush(0, true);
    world.pages.flush();
    let records: Vec<_> = world
        .pages
        .records()
        .map(|(record, body)| (record.to, record.kind, body[2..].to_vec()))
        .collect();
    world.pages.clear_records();
    records
}

fn hear(world: &mut World, kind: u8, body: &[u8]) -> Result<(), DropReason> {
    let Side { flows, protection, out, .. } = world.at(0);
    protection.handle_record(flows, SERVER, kind, body, out)
}

/// Ten flows go through room for two, and each comes back when a packet comes for it.
/// Every flow goes on counting, in memory and at the server.
#[test]
fn a_state_that_is_absent_is_fetched_for_a_packet() {
    for plan in [Plan::RESCUE, AT_ONCE] {
        let mut world = world(10, plan);
        let side = &world.sides[0];
        assert_eq!(
            (side.flows.owned(), side.flows.absent()),
            (10, 9),
            "{plan:?}: room is made ahead for one"
        );
        assert_eq!(side.protection.safety(&side.flows).absent, 9);
        for round in 2..5u8 {
            for flow in 1..=10 {
                while admit(&mut world, flow) != Admission::Ready {
                    world.talk();
                }
                world.process(0, flow);
                assert_eq!(state_of(&world, flow), Some(round), "{plan:?}, flow {flow}");
                world.talk();
            }
        }
        let flows = world.pages.flows();
        let at_server = (1..=10).map(|flow| {
            flows.state(flows.find(&key(flow), flows.hash(&key(flow))).unwrap().slot)[0]
        });
        if plan == Plan::RESCUE {
            assert!(at_server.into_iter().all(|count| count == 4));
        }
        assert_eq!((world.left, world.dropped), (40, 0));
    }
}

/// A state stays resident if it changed in this batch, if the server has not acknowledged
/// it, or if its flow leaves.
#[test]
fn what_is_not_known_at_the_server_stays() {
    let mut world = world(0, Plan::RESCUE);
    for flow in [1, 2] {
        world.process(0, flow);
    }
    for _ in 0..5 {
        world.flush(0, false);
    }
    assert_eq!(world.sides[0].flows.room(), 0, "nothing has been heard");
    let Side { flows, protection, .. } = world.at(0);
    protection.make_room(flows);
    assert_eq!(flows.room(), 0);
    let mut world = self::world(2, Plan::RESCUE);
    world.talk();
    let (one, two) = (state_of(&world, 1), state_of(&world, 2));
    assert!(one.is_some() != two.is_some(), "one of them is here: {one:?} {two:?}");
    let here = if one.is_some() { 1 } else { 2 };
    let Side { flows, protection, .. } = world.at(0);
    let slot = flows.find(&key(here), flows.hash(&key(here))).unwrap().slot;
    flows.step(slot, Event::Choose);
    flows.insert(key(77), flows.hash(&key(77)), Event::Open).expect("there was room for one");
    protection.make_room(flows);
    assert_eq!((flows.room(), flows.is_present(slot)), (0, true));
}

/// A flow that is about to leave, or to end, is fetched first.
#[test]
fn who_leaves_is_fetched() {
    let mut world = world(3, Plan::RESCUE);
    let Side { flows, protection, out, .. } = world.at(0);
    let absent = (1..=3)
        .map(|flow| flows.find(&key(flow), flows.hash(&key(flow))).unwrap().slot)
        .find(|slot| !flows.is_present(*slot));
    let slot = absent.expect("there is no room for all");
    assert!(!protection.has_drained(flows, slot, out));
    assert!(!protection.fetch(flows, slot));
    world.talk();
    let Side { flows, protection, out, .. } = world.at(0);
    assert!(core::mem::take(&mut out.loaded).contains(&slot) || flows.is_present(slot));
    assert!(protection.has_drained(flows, slot, out) || !flows.is_present(slot));
}

/// An owner dies while the server alone had most of its states: others get all flows.
#[test]
fn what_is_at_the_server_alone_outlives_its_owner() {
    let mut world = world(6, Plan::RESCUE);
    world.die(0);
    for _ in 0..60 {
        // A runtime without room is asked again later.
        world.now += 100 * MILLISECOND;
        world.talk();
    }
    assert!(
        (1..=6).all(|flow| world.owners(flow) == 1),
        "{:?}",
        (1..=6).map(|flow| world.owners(flow)).collect::<Vec<_>>()
    );
    assert_eq!(world.sides[0].flows.owned(), 6);
    for flow in 1..=6 {
        while admit(&mut world, flow) != Admission::Ready {
            world.talk();
        }
        assert_eq!(state_of(&world, flow), Some(1));
    }
}

/// Both of the server's processes end. States that only the server had are reported as
/// lost, and resident states are sent to the next server.
#[test]
fn what_was_at_the_server_alone_is_lost_with_it() {
    let mut world = world(4, Plan::RESCUE);
    assert_eq!(world.sides[0].flows.absent(), 3);
    // A lost state has been requested.
    let waiting =
        (1..=4).find(|flow| state_of(&world, *flow).is_none()).expect("there is no room for all");
    assert_eq!(admit(&mut world, waiting), Admission::Park);
    let next = Peer { incarnation: 2, ..SERVER };
    world.pages = pages();
    world.sides.truncate(1);
    world.at(0).meet(next);
    let lost = core::mem::take(&mut world.at(0).out.lost);
    assert_eq!(lost.len(), 3);
    let Side { flows, protection, out, .. } = world.at(0);
    for flow in lost {
        assert!(flows.get_owned(flow).is_some());
        protection.ended(flows, flow.slot, out);
        flows.remove(flow.slot);
    }
    assert_eq!((flows.owned(), flows.absent()), (1, 0));
    protection.flush(flows, out);
    let told: Vec<(Peer, u8)> = out.records().map(|(record, _)| (record.to, record.kind)).collect();
    assert_eq!(told, [(next, kind::STATE)]);
}

/// A page that differs from the evicted state, or a missing one, ends the flow. A page
/// that was not requested changes nothing, and records cut short are refused.
#[test]
fn answers_are_checked() {
    let mut world = world(3, Plan::RESCUE);
    let flow =
        (1..=3).find(|flow| state_of(&world, *flow).is_none()).expect("there is no room for all");
    assert_eq!(admit(&mut world, flow), Admission::Park);
    let asked = world.said.len();
    let answers = question(&mut world);
    let said: Vec<_> = world.said[asked..].to_vec();
    assert_eq!(said.iter().map(|(_, kind, _)| *kind).collect::<Vec<_>>(), [kind::PAGE]);
    let [(_, kind::PAGE_IN, page)] = &answers[..] else { panic!("{answers:?}") };
    world.begin();
    for len in 0..said[0].2.len() {
        assert_eq!(
            world.pages.handle_record(peer(0), kind::PAGE, &said[0].2[..len]),
            Err(DropReason::Malformed)
        );
    }
    for len in 0..page.len() {
        assert_eq!(hear(&mut world, kind::PAGE_IN, &page[..len]), Err(DropReason::Malformed));
    }
    assert_eq!(hear(&mut world, kind::NO_PAGE, &said[0].2[..5]), Err(DropReason::Malformed));
    let mut other = page.clone();
    // The version, behind the layout's hash, the key and the epoch.
    other[8 + 40 + 4] ^= 1;
    assert_eq!(hear(&mut world, kind::PAGE_IN, &other), Err(DropReason::ReplicaDiffers));
    assert_eq!(world.at(0).out.lost.len(), 1, "there is no other state");
    assert_eq!(
        hear(&mut world, kind::PAGE_IN, page),
        Err(DropReason::StaleDuplicate),
        "it was answered"
    );
    assert_eq!(state_of(&world, flow), None);
    world.at(0).out.lost.clear();
    // The state is requested again, and is not there any more.
    assert_eq!(admit(&mut world, flow), Admission::Park);
    world.flush(0, false);
    assert_eq!(hear(&mut world, kind::NO_PAGE, &said[0].2), Ok(()));
    assert_eq!(world.at(0).out.lost.len(), 1);
    let mut plain = World::new(1, Plan::RESCUE);
    for (kind, body) in [(kind::PAGE_IN, &page[..]), (kind::NO_PAGE, &said[0].2[..])] {
        assert_eq!(
            hear(&mut plain, kind, body),
            Err(DropReason::Malformed),
            "nothing is ever absent there"
        );
    }
}

/// Requests beyond the limit are refused, and all requests of a dead runtime.
#[test]
fn questions_are_bounded() {
    let mut world = world(1, Plan::RESCUE);
    world.begin();
    let ask =
        |world: &mut World| world.pages.handle_record(peer(0), kind::PAGE, key(500).as_bytes());
    let taken = (0..200).filter(|_| ask(&mut world) == Ok(())).count();
    assert_eq!(taken, 64);
    assert_eq!(ask(&mut world), Err(DropReason::QueueFull));
    world.pages.flush();
    let answers: Vec<u8> = world.pages.records().map(|(record, _)| record.kind).collect();
    assert_eq!(answers, [kind::NO_PAGE; 64]);
    world.pages.bury(peer(0));
    assert_eq!(ask(&mut world), Err(DropReason::Fenced));
}

/// Another runtime has the flow under a newer epoch. A runtime that requests its state is
/// told so, with the state that it needs to end the flow.
#[test]
fn who_has_been_displaced_hears_so() {
    let mut world = world(3, Plan::RESCUE);
    let flow =
        (1..=3).find(|flow| state_of(&world, *flow).is_none()).expect("there is no room for all");
    let slot = world.sides[0].find(flow).expect("its header is here");
    let (opened_at, block) = {
        let flows = world.pages.flows();
        let there =
            flows.find(&key(flow), flows.hash(&key(flow))).expect("it was written back").slot;
        (flows.header(there).opened_at, flows.block(there).to_vec())
    };
    world.process(1, flow);
    let theirs = world.sides[1].find(flow).expect("it is there");
    let Side { flows, .. } = world.at(1);
    flows.header_mut(theirs).opened_at = opened_at;
    flows.parts_mut(theirs).1.copy_from_slice(&block[size_of::<ActorHeader>()..]);
    world.flush(1, true);
    assert_eq!(admit(&mut world, flow), Admission::Park);
    world.flush(0, true);
    world.pages.flush();
    let records: Vec<_> = world
        .pages
        .records()
        .map(|(record, body)| (record.to, record.kind, body[2..].to_vec()))
        .collect();
    world.pages.clear_records();
    for (_, kind, body) in records.iter().filter(|(to, ..)| *to == peer(0)) {
        hear(&mut world, *kind, body).expect("it is a good record");
    }
    let Side { flows, out, .. } = world.at(0);
    assert_eq!(
        (flows.header(slot).life(), &out.demoted[..], out.lost.len()),
        (Life::Copy, &[slot][..], 0)
    );
    let mut demoted = flows.take_demoted();
    let (_, state) = demoted[0].parts_mut();
    assert_eq!(
        state.map(|state| state[0]),
        Some(1),
        "what the functions have to let go of is known"
    );
}

/// A flow moves here while there is no room. Its state waits here and is not requested,
/// and the flow does not count as safe before it has been written back.
#[test]
fn a_state_that_finds_no_room_waits() {
    let mut world = world(2, Plan::RESCUE);
    let Side { flows, protection, .. } = world.at(0);
    let other =
        flows.insert(key(77), flows.hash(&key(77)), Event::Open).expect("room was made for one");
    let slot =
        flows.insert_header(key(50), flows.hash(&key(50)), Event::Open).expect("there is a slot");
    flows.step(slot, Event::Serve);
    protection.arrived(flows, slot, peer(1));
    protection.keep_aside(flows, slot, &[9; 8]);
    // A moving flow is not evicted, so no other room is made.
    let here = (1..=2).find_map(|flow| {
        flows.find(&key(flow), flows.hash(&key(flow))).filter(|found| flows.is_present(found.slot))
    });
    flows.step(here.expect("one is here").slot, Event::Choose);
    assert_eq!(admit(&mut world, 50), Admission::Park);
    let said = world.said.len();
    world.talk();
    assert!(
        world.said[said..].iter().all(|(_, kind, _)| *kind != kind::PAGE),
        "nobody else has it"
    );
    let Side { flows, protection, .. } = world.at(0);
    assert_eq!((protection.aside(), protection.safety(flows).resynchronising), (1, true));
    let mut seen = Vec::new();
    protection.visit_aside(&mut |flow, state| seen.push((flow.slot, state[0])));
    assert_eq!(seen, [(slot, 9)]);
    flows.remove(other);
    world.talk();
    let Side { flows, protection, out, .. } = world.at(0);
    assert!(out.loaded.contains(&slot));
    assert_eq!((protection.aside(), protection.safety(flows).resynchronising), (0, false));
    let pages = world.pages.flows();
    let there = pages.find(&key(50), pages.hash(&key(50))).expect("it was written back").slot;
    assert_eq!(pages.state(there)[0], 9);
}

/// Earlier flows get room first. New flows leave room for the states on their way, and
/// half of the rest.
#[test]
fn new_flows_leave_room_to_those_that_wait() {
    let mut paging = super::super::paging::Paging::new(8);
    let mut flows = Flows::with_room_for(2, 8, 8, LAYOUT, SEED);
    assert_eq!(paging.reserved(10), 0);
    for flow in 0..6 {
        let slot = flows.insert_header(key(flow), flows.hash(&key(flow)), Event::Open).unwrap();
        flows.step(slot, Event::Serve);
        assert!(!paging.use_of(&mut flows, slot), "it is away");
        assert!(!paging.use_of(&mut flows, slot), "it is wanted once");
    }
    assert_eq!((paging.reserved(4), paging.reserved(100)), (2, 3));
    let mut out = Outbox::default();
    out.set_peers([(SERVER, ROOM)].into_iter());
    let mut shares = [Share::default()];
    shares[0].server = Some(SERVER);
    paging.ask(&flows, &mut shares, &mut out);
    assert!(!shares[0].is_full);
    assert_eq!(out.records().count(), 2, "as many as there is room for");
    assert_eq!((paging.reserved(2), paging.reserved(10)), (2, 4));
}
