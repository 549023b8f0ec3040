//! A protection's own records: good ones, broken ones, and those from peers that should
//! not send any.

use crate::pair::{CROWDED, LAYOUT, Message, Pair, ROOMY, Sent, Side, key};
use crate::{require, runner};
use holdfast_protection::flows::{Event, Life, flag};
use holdfast_protection::{Commit, Epoch, Peer, kind};
use holdfast_sim::{Fault, Planted, Preset, plant};
use holdfast_wire::{DropReason, NodeId};
use proptest::prelude::*;
use proptest::sample::Index;
use std::cell::Cell;

/// Two sides that have talked about six flows, one of which has ended; nothing is under
/// way.
fn after_a_talk(preset: Preset) -> Result<Pair, String> {
    let mut pair = Pair::new(preset);
    for round in 0..3 {
        for flow in 0..6 {
            pair.process(flow);
            pair.process((flow + round) % 6);
        }
        pair.drain()?;
    }
    pair.end(4);
    pair.drain()?;
    Ok(pair)
}

/// Feeds a record that must be refused: there is a reason to count, and nothing else has
/// happened.
fn refuse(side: &mut Side, from: Peer, message: &Message) -> Result<DropReason, String> {
    match take_in_vain(side, from, message)? {
        Some(reason) => Ok(reason),
        None => Err(format!("{message:?} from {from:?} was accepted")),
    }
}

/// Feeds a record that must change nothing. Returns why it was refused, if it was.
fn take_in_vain(
    side: &mut Side,
    from: Peer,
    message: &Message,
) -> Result<Option<DropReason>, String> {
    let before = side.snapshot();
    let reason = side.take_record(from, message).err();
    let effects = side.carry_out();
    require!(
        side.snapshot() == before,
        "{message:?} from {from:?} (refused: {reason:?}) changed a flow"
    );
    let is_silent =
        effects.released.is_empty() && effects.handed.is_empty() && effects.dropped.is_empty();
    require!(
        is_silent && effects.demoted == 0 && effects.claims.is_empty(),
        "{message:?} from {from:?} (refused: {reason:?}) had effects: {effects:?}"
    );
    side.check()?;
    Ok(reason)
}

/// Records that are cut short or too long, of a kind that does not exist, or of another
/// chain's layout are refused with a reason and change nothing; so is a record that came
/// before. The good record among them is still accepted.
pub(crate) fn are_checked(preset: Preset) -> Result<(), String> {
    let pair = after_a_talk(preset)?;
    require!(pair.released > 20, "only {} packets were released", pair.released);
    let kinds: std::collections::BTreeSet<u8> =
        pair.history.iter().map(|sent| sent.message.kind).collect();
    require!(!preset.promises() || kinds.len() > 1, "records of kinds {kinds:?} only");

    // Every record is fed again, cut to each of its lengths, just before it comes whole.
    let mut sides = [Pair::new(preset), Pair::new(preset)].map(|pair| {
        let [first, second] = pair.sides;
        let _ = second.take_apart();
        first
    });
    let mut other = Side::new(preset, sides[0].me, LAYOUT ^ 1, ROOMY);
    let (left, right) = (pair.sides[0].me, pair.sides[1].me);
    // Both listen to what the second side said; one of them is of another layout.
    sides[0].set_peers(&[right]);
    other.set_peers(&[right]);
    require!(sides[0].me == left, "the listener is the first side");
    let [mut listener, spare] = sides;
    spare.take_apart()?;
    for Sent { from, message, .. } in pair.history.iter().filter(|sent| sent.to == left) {
        for len in 0..message.body.len() {
            let cut = Message { body: message.body[..len].to_vec(), ..message.clone() };
            let reason = refuse(&mut listener, *from, &cut)?;
            require!(
                reason == DropReason::Malformed,
                "a record cut to {len} bytes was refused as {reason}"
            );
        }
        let long = Message { body: [&message.body[..], &[0]].concat(), ..message.clone() };
        require!(
            refuse(&mut listener, *from, &long)? == DropReason::Malformed,
            "a long record was not called malformed"
        );
        for kind in [0, 5, 9, 31, 32, 255] {
            refuse(&mut listener, *from, &Message { kind, ..message.clone() })?;
        }
        let _ = other.take_record(*from, message);
        other.carry_out();
        let _ = listener.take_record(*from, message);
        listener.carry_out();
        refuse(&mut listener, *from, message)?;
    }
    require!(other.flows.is_empty(), "state of another layout was saved");
    require!(!preset.promises() || !listener.flows.is_empty(), "the good records were not saved");

    let garbage = (any::<u8>(), prop::collection::vec(any::<u8>(), 0..400));
    runner(512)
        .run(&(garbage, any::<bool>()), |((kind, body), known)| {
            let mut pair = after_a_talk(preset).map_err(TestCaseError::fail)?;
            let from = if known {
                pair.sides[1].me
            } else {
                Peer { node: NodeId::new(99), incarnation: 9 }
            };
            let before = pair.sides[0].snapshot();
            let result = pair.sides[0].take_record(from, &Message { kind, body });
            pair.sides[0].check().map_err(TestCaseError::fail)?;
            if result.is_err() {
                prop_assert_eq!(pair.sides[0].snapshot(), before);
            }
            Ok(())
        })
        .map_err(|error| error.to_string())
}

/// Records from a dead incarnation or from one before it, and acknowledgements from a
/// peer that was sent nothing, are refused with a reason and change nothing.
pub(crate) fn from_strangers(preset: Preset) -> Result<(), String> {
    let mut pair = after_a_talk(preset)?;
    let (old, late) = {
        // The second side dies with records under way.
        pair.process(1);
        pair.process(7);
        pair.sides[1].flush();
        pair.settle(1)?;
        pair.fail(1)?
    };
    require!(!preset.promises() || !late.is_empty(), "nothing was under way");
    pair.drain()?;
    let history = pair.history.clone();
    let earlier = Peer { incarnation: old.incarnation - 1, ..old };
    let strangers = [old, earlier];
    let first = pair.sides[0].me;
    for Sent { message, .. } in history.iter().filter(|sent| sent.to == first) {
        for from in strangers {
            refuse(&mut pair.sides[0], from, message)?;
        }
    }
    for message in &late {
        refuse(&mut pair.sides[0], old, message)?;
    }
    // Answers to a record of ours, from a peer to which none was sent.
    let answers =
        history.iter().filter(|sent| matches!(sent.message.kind, kind::SAVED | kind::REFUSED));
    for Sent { message, .. } in answers {
        refuse(&mut pair.sides[0], Peer { node: NodeId::new(40), incarnation: 1 }, message)?;
    }
    pair.drain()?;
    let [first, second] = pair.sides;
    first.take_apart()?;
    second.take_apart()
}

/// A replica without room refuses a flow's state while the channel back to the owner is
/// full. When the channel has room again, the owner learns of the refusal before anything
/// that covers it. The packet does not leave, and the flow is not called safe.
pub(crate) fn refusals_are_told(preset: Preset) -> Result<(), String> {
    let mut pair = Pair::with(preset, CROWDED);
    // The second side opens as many flows as it has room for. The first side, which has
    // room itself, opens one more.
    for flow in 0..CROWDED as u16 {
        pair.process(flow * 2 + 1);
    }
    pair.sides[1].flush();
    pair.sides[1].carry_out();
    // The second side's own states are lost here, as in no channel: nothing may wait for
    // them, or the answer to the next record would cover them.
    let Side { protection, out, .. } = &mut pair.sides[1];
    protection.abandon(out);
    pair.sides[1].carry_out();
    pair.sides[1].set_room(0);
    let before = pair.released;
    pair.process(0);
    pair.talk()?;
    pair.sides[1].set_room(1 << 20);
    for _ in 0..3 {
        pair.talk()?;
    }
    require!(!pair.sides[0].is_settled(), "a flow without a replica was called safe");
    if preset.is_strict() {
        require!(pair.released == before, "a packet left although its state was refused");
    }
    let [first, second] = pair.sides;
    first.take_apart()?;
    second.take_apart()
}

/// A packet is handed over whose state will not come for long, if ever: the packet waits
/// alone. Other flows' packets leave as without it.
pub(crate) fn strays_hold_up_nobody(preset: Preset) -> Result<(), String> {
    let mut released = Vec::new();
    for with_strays in [false, true] {
        let mut pair = after_a_talk(preset)?;
        let before = pair.released;
        for flow in 0..6 {
            if with_strays {
                for at in 0..2 {
                    let from = pair.sides[1 - at].me;
                    pair.sides[at].take_handed(
                        from,
                        Commit::new(1 << 30),
                        b"a stray that nobody waits for",
                    );
                }
            }
            pair.process(flow);
            pair.drain()?;
        }
        released.push(pair.released - before);
        let [first, second] = pair.sides;
        first.take_apart()?;
        second.take_apart()?;
    }
    require!(
        released[0] > 3 && released[0] == released[1],
        "{released:?} packets left, without strays and with them"
    );
    Ok(())
}

/// A flow is announced to the runtime that is asked just then to hold its replica. The
/// state that comes is kept, whether the flow itself comes or not.
pub(crate) fn of_an_announced_flow(preset: Preset) -> Result<(), String> {
    let mut pair = Pair::new(preset);
    let side = &mut pair.sides[1];
    let hash = side.flows.hash(&key(0));
    let slot = side.flows.insert(key(0), hash, Event::Announce).map_err(|_| "no room")?;
    let header = side.flows.header_mut(slot);
    (header.epoch, header.flags) = (Epoch::FIRST, flag::EMPTY);
    pair.sides[0].process(0, 1);
    pair.drain()?;
    let header = pair.sides[1].flows.header(slot);
    require!(header.life() == Life::Arriving, "the flow is not expected any more");
    let is_empty = header.flags & flag::EMPTY != 0;
    require!(is_empty != preset.promises(), "there is a state, and it is called empty: {is_empty}");
    require!(!preset.promises() || pair.sides[1].count(0) == 1, "what came was not kept");
    Ok(())
}

#[derive(Debug, Clone)]
enum Step {
    Packet(u16),
    Burst(u16),
    Flush(usize),
    Record(usize),
    Handed(usize),
    LoseHanded(usize),
    End(u16),
    Fail(usize),
    Again(Index),
    Room(usize, usize),
    Talk,
    Forge(Index, usize, Index, u8),
    Garble(Index, usize, Vec<u8>),
    Shuffle(usize, Index, Index),
}

fn step(with_forgeries: bool) -> BoxedStrategy<Step> {
    let side = || 0usize..2;
    let honest = prop_oneof![
        2 => Just(Step::Talk),
        2 => (side(), prop::sample::select(vec![0, 8, 20, 300, 1 << 20, 1 << 20])).prop_map(|(at, room)| Step::Room(at, room)),
        8 => (0u16..8).prop_map(Step::Packet),
        1 => (0u16..8).prop_map(Step::Burst),
        4 => side().prop_map(Step::Flush),
        6 => side().prop_map(Step::Record),
        4 => side().prop_map(Step::Handed),
        1 => side().prop_map(Step::LoseHanded),
        1 => (0u16..8).prop_map(Step::End),
        1 => side().prop_map(Step::Fail),
        1 => any::<Index>().prop_map(Step::Again),
    ];
    if !with_forgeries {
        return honest.boxed();
    }
    prop_oneof![
        6 => honest,
        2 => (any::<Index>(), side(), any::<Index>(), any::<u8>()).prop_map(|(record, to, at, value)| Step::Forge(record, to, at, value)),
        1 => (any::<Index>(), side(), prop::collection::vec(any::<u8>(), 0..40)).prop_map(|(record, to, bytes)| Step::Garble(record, to, bytes)),
        1 => (side(), any::<Index>(), any::<Index>()).prop_map(|(at, one, other)| Step::Shuffle(at, one, other)),
    ]
    .boxed()
}

fn take(pair: &mut Pair, step: &Step) -> Result<(), String> {
    match step {
        Step::Packet(flow) => pair.process(*flow),
        Step::Burst(flow) => (0..9).for_each(|_| pair.process(*flow)),
        Step::Flush(at) => {
            pair.sides[*at].flush();
            pair.settle(*at)?;
        }
        Step::Record(at) => pair.deliver(*at)?,
        Step::Handed(at) => pair.deliver_handed(*at)?,
        Step::Room(at, room) => pair.sides[*at].set_room(*room),
        Step::Talk => pair.talk()?,
        Step::LoseHanded(at) => drop(pair.sides[*at].handed.pop_front()),
        Step::End(flow) => pair.end(*flow),
        Step::Fail(at) if pair.may_fail(*at) => {
            let (dead, late) = pair.fail(*at)?;
            for message in late {
                refuse(&mut pair.sides[1 - *at], dead, &message)?;
            }
        }
        Step::Fail(_) => {}
        Step::Again(which) => {
            // A record that is still under way has not come before.
            let under_way: usize = pair.sides.iter().map(|side| side.records.len()).sum();
            if under_way == 0 && !pair.history.is_empty() {
                let Sent { from, to, message } = which.get(&pair.history).clone();
                // The channel itself keeps messages for one incarnation from another.
                if let Some(side) = pair.sides.iter_mut().find(|side| side.me == to && !pair.forged)
                {
                    match message.kind {
                        // A mark that is asked for twice is answered twice.
                        kind::PASSED => _ = take_in_vain(side, from, &message)?,
                        _ => _ = refuse(side, from, &message)?,
                    }
                }
            }
        }
        Step::Forge(which, to, at, value) => {
            pair.forged = true;
            if let Some(Sent { from, mut message, .. }) =
                (!pair.history.is_empty()).then(|| which.get(&pair.history).clone())
            {
                if !message.body.is_empty() {
                    *at.get_mut(&mut message.body) ^= value;
                }
                let _ = pair.sides[*to].take_record(from, &message);
                pair.settle(*to)?;
            }
        }
        Step::Garble(which, to, bytes) => {
            pair.forged = true;
            if let Some(Sent { from, mut message, .. }) =
                (!pair.history.is_empty()).then(|| which.get(&pair.history).clone())
            {
                for (place, byte) in message.body.iter_mut().zip(bytes) {
                    *place = *byte;
                }
                let _ = pair.sides[*to].take_record(from, &message);
                pair.settle(*to)?;
            }
        }
        Step::Shuffle(at, one, other) => {
            pair.forged = true;
            let records = &mut pair.sides[*at].records;
            if !records.is_empty() {
                let (one, other) = (one.index(records.len()), other.index(records.len()));
                records.swap(one, other);
            }
        }
    }
    Ok(())
}

/// Plays random steps. Returns the number of packets released and of failures survived in
/// all cases, or the case that went wrong.
fn play(
    preset: Preset,
    planted: Planted,
    flows: usize,
    with_forgeries: bool,
) -> Result<(usize, usize), String> {
    let _planting = plant(planted);
    let released = Cell::new(0);
    let failures = Cell::new(0);
    runner(700)
        .run(&prop::collection::vec(step(with_forgeries), 1..150), |steps| {
            let mut pair = Pair::with(preset, flows);
            for step in &steps {
                let fails = matches!(step, Step::Fail(at) if pair.may_fail(*at));
                take(&mut pair, step).map_err(TestCaseError::fail)?;
                failures.set(failures.get() + usize::from(fails));
            }
            if !with_forgeries && flows == ROOMY {
                pair.drain().map_err(TestCaseError::fail)?;
            }
            released.set(released.get() + pair.released);
            for side in pair.sides {
                side.take_apart().map_err(TestCaseError::fail)?;
            }
            Ok(())
        })
        .map_err(|error| error.to_string())?;
    Ok((released.get(), failures.get()))
}

/// Packets, records, hand-overs, ends and failures in any order, with room in tables and
/// channels or without. The state behind every released packet is known to both sides,
/// and to the survivor of a failure that the protection said it would survive. Repeated
/// records are refused, and no buffer is lost. With forged, garbled and exchanged records
/// among them the protection only has to go on.
pub(crate) fn in_any_state(preset: Preset) -> Result<(), String> {
    for flows in [ROOMY, CROWDED] {
        for with_forgeries in [false, true] {
            let (released, failures) = play(preset, Planted::default(), flows, with_forgeries)?;
            require!(
                released > 1500 && failures > 250,
                "only {released} packets were released in {failures} failures"
            );
        }
    }
    let fault =
        if preset.is_strict() { Fault::ReleasesBeforeCommit } else { Fault::IgnoresInterval };
    let found = play(preset, fault.into(), ROOMY, false).is_err();
    require!(found == preset.promises(), "{fault:?} was not noticed");
    Ok(())
}
