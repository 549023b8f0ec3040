//! A runtime's next incarnation takes back its flows, from snapshots at two holders. The
//! first holder has kept a flow's state from before the flow moved away and came back;
//! the other has the newest state.

use crate::spot::{SECOND, Spot, bound, datagram, frames_of, view_of};
use holdfast_functions::Forward;
use holdfast_node::channel::{Fabric, FabricConfig};
use holdfast_node::message::{Claim, Control, Grant, kind, numbered};
use holdfast_protection::flows::{ActorHeader, Life};
use holdfast_protection::{Epoch, Peer, Plan, kind as protection_kind};
use holdfast_wire::nsh::Flags;
use holdfast_wire::{DropReason, NodeId};
use zerocopy::FromBytes;

const DEAD: Peer = Peer { node: NodeId::new(16), incarnation: 1 };
const REBORN: Peer = Peer { node: NodeId::new(16), incarnation: 4 };
/// The holder of an older state, and the holder of the snapshots that count.
const EARLIER: Peer = Peer { node: NodeId::new(17), incarnation: 2 };
const LATEST: Peer = Peer { node: NodeId::new(18), incarnation: 3 };
/// The epoch of the older state, and the one under which the dead runtime had its flows.
const OLD: u32 = 4;
const NEW: u32 = 10;
/// The epoch under which the switch grants claims.
const GRANTED: u32 = 12;
/// The client's ports: the flow that has two states, and one that has only the latest.
const MOVED: u8 = 9;
const CALM: u8 = 8;

/// The next incarnation, and endpoints that speak for all other nodes.
struct World {
    reborn: Spot,
    switch: Fabric,
    coordinator: Fabric,
    earlier: Fabric,
    latest: Fabric,
    now: u64,
}

fn spot(me: Peer) -> Spot {
    Spot::new(me, vec![bound::<Forward>()], Plan::NFACTOR.build(), 8, 64)
}

impl World {
    /// The next incarnation has begun, and asked both holders.
    fn new() -> World {
        let fabric = |me| Fabric::new(me, FabricConfig::default());
        let mut world = World {
            reborn: spot(REBORN),
            switch: fabric(Peer { node: NodeId::SWITCH, incarnation: 1 }),
            coordinator: fabric(Peer { node: NodeId::COORDINATOR, incarnation: 1 }),
            earlier: fabric(EARLIER),
            latest: fabric(LATEST),
            now: SECOND,
        };
        for fabric in
            [&mut world.switch, &mut world.coordinator, &mut world.earlier, &mut world.latest]
        {
            fabric.set_peer(REBORN);
        }
        world.coordinator.send_control(REBORN.node, &view_of([REBORN, EARLIER, LATEST]));
        let order = Control::Recover { node: DEAD.node, incarnation: DEAD.incarnation };
        world.coordinator.send_control(REBORN.node, &order);
        world.carry();
        for holder in [&world.earlier, &world.latest] {
            assert!(
                holder.inbox.records().any(|(record, _)| record.kind == protection_kind::FETCH)
            );
        }
        world
    }

    /// Delivers all frames.
    fn carry(&mut self) {
        for _ in 0..4 {
            self.now += 1000;
            let now = self.now;
            let mut fabrics =
                [&mut self.switch, &mut self.coordinator, &mut self.earlier, &mut self.latest];
            let frames: Vec<_> =
                fabrics.iter_mut().flat_map(|fabric| frames_of(fabric, now)).collect();
            for frame in self.reborn.turn(&frames, now) {
                for fabric in &mut fabrics {
                    // Frames for other nodes are refused.
                    let _ = fabric.handle_frame(&frame, now);
                }
            }
        }
    }

    /// The holder sends these flows, by their client's port and epoch, and says that
    /// these are all.
    fn bring(&mut self, from: Peer, flows: &[(u8, u32)]) {
        let blocks: Vec<(u64, Vec<u8>)> =
            flows.iter().map(|(port, epoch)| self.snapshot(*port, *epoch)).collect();
        let holder = if from == EARLIER { &mut self.earlier } else { &mut self.latest };
        let mut number = 0u32;
        for (layout, block) in blocks {
            number += 1;
            let parts: [&[u8]; 4] = [&[0, 0], &number.to_be_bytes(), &layout.to_be_bytes(), &block];
            holder
                .send_parts(REBORN.node, protection_kind::RESTORED, &parts)
                .expect("there is room");
        }
        number += 1;
        let parts: [&[u8]; 3] = [&[0, 0], &number.to_be_bytes(), &DEAD.incarnation.to_be_bytes()];
        holder.send_parts(REBORN.node, protection_kind::FETCHED, &parts).expect("there is room");
        self.carry();
    }

    /// A flow's block and its layout, as the dead runtime sent it under this epoch.
    fn snapshot(&self, port: u8, epoch: u32) -> (u64, Vec<u8>) {
        let mut dead = spot(DEAD);
        let packet = dead.packet(&datagram(port.into(), 0), (self.now, epoch, Flags::NEW));
        dead.turn(&[packet], self.now);
        let flows = dead.runtime.flows(0).expect("a lane");
        let (slot, header) = flows.iter().next().expect("the flow was opened");
        assert_eq!(header.epoch.get(), epoch);
        (flows.layout(), flows.block(slot).to_vec())
    }

    /// The claims that the switch has got since the last call: each record's number, and
    /// the client's ports and epochs in it.
    fn claims(&mut self) -> Vec<(u32, Vec<(u8, u32)>)> {
        let records = self.switch.inbox.records().filter(|(record, _)| record.kind == kind::CLAIM);
        let claims = records.map(|(_, body)| {
            let (number, claims) = body.split_first_chunk::<4>().expect("a number");
            let claims = <[Claim]>::ref_from_bytes(claims).expect("claims");
            let port = |claim: &Claim| holdfast_wire::FlowKey::from(claim.key).source_port as u8;
            (
                u32::from_be_bytes(*number),
                claims.iter().map(|claim| (port(claim), claim.epoch().get())).collect(),
            )
        });
        let claims = claims.collect();
        self.switch.inbox.clear();
        claims
    }

    /// The one claim, of one flow.
    fn claim(&mut self, port: u8, epoch: u32) -> u32 {
        let claims = self.claims();
        assert_eq!(
            claims.iter().map(|(_, flows)| flows.clone()).collect::<Vec<_>>(),
            [vec![(port, epoch)]]
        );
        claims[0].0
    }

    fn answer(&mut self, number: u32, grant: Grant) {
        let body = [&number.to_be_bytes()[..], &grant.encode()].concat();
        self.switch.send(REBORN.node, kind::CLAIMED, &body).expect("there is room");
        self.carry();
    }

    /// The messages that the coordinator has got since the last call: that all claims
    /// wait for others, or how many flows have been recovered.
    fn told(&mut self) -> Vec<Control> {
        let records =
            self.coordinator.inbox.records().filter(|(record, _)| record.kind == kind::NUMBERED);
        let told = records
            .filter_map(|(_, body)| numbered(body).ok())
            .map(|(_, request)| request)
            .collect();
        self.coordinator.inbox.clear();
        told
    }

    fn flow(&self, port: u8) -> Option<ActorHeader> {
        let flows = self.reborn.runtime.flows(0).expect("a lane");
        flows
            .iter()
            .find(|(_, header)| header.key.source_port == u16::from(port))
            .map(|(_, header)| *header)
    }
}

/// The newest state comes while the switch is asked for the route of the older one. The
/// route is claimed again at once, as the newer state, whatever the switch answers.
/// Meanwhile the coordinator does not hear that only a sweep is left to wait for.
#[test]
fn an_answer_about_an_earlier_state_is_none_about_a_newer_one() {
    for answer in [Grant::AfterSweep, Grant::Refused] {
        let mut world = World::new();
        world.bring(EARLIER, &[(MOVED, OLD)]);
        let number = world.claim(MOVED, OLD);
        world.bring(LATEST, &[(MOVED, NEW)]);
        assert_eq!(world.claims(), [], "one claim at a time");
        world.answer(number, answer);
        let number = world.claim(MOVED, NEW);
        assert_eq!(world.told(), []);
        world.answer(number, Grant::Given { epoch: Epoch::new(GRANTED), logged: 0 });
        let header = world.flow(MOVED).expect("it is served");
        assert_eq!((header.life(), header.epoch.get()), (Life::Owned, GRANTED));
        assert_eq!(
            world.told(),
            [Control::Recovered {
                node: DEAD.node,
                incarnation: DEAD.incarnation,
                flows: 1,
                broken: 0
            }]
        );
    }
}

/// An answer that is malformed, or about fewer flows than were claimed, is counted, and
/// the claim is repeated.
#[test]
fn an_answer_that_is_malformed_answers_nothing() {
    let mut world = World::new();
    world.bring(EARLIER, &[]);
    world.bring(LATEST, &[(CALM, NEW)]);
    let mut number = world.claim(CALM, NEW);
    for malformed in [&[][..], &[0; 7], &[0, 0, 0, 0, 0, 0, 0, 9], &[0; 9], &[0; 16]] {
        let before = world.reborn.runtime.drops().get(DropReason::Malformed);
        let body = [&number.to_be_bytes()[..], malformed].concat();
        world.switch.send(REBORN.node, kind::CLAIMED, &body).expect("there is room");
        world.carry();
        assert_eq!(
            world.reborn.runtime.drops().get(DropReason::Malformed),
            before + 1,
            "{malformed:?}"
        );
        assert_eq!(world.flow(CALM).map(|header| header.life()), Some(Life::Claiming));
        world.now += SECOND / 10;
        world.carry();
        let again = world.claim(CALM, NEW);
        assert_ne!(number, again);
        number = again;
    }
    world.answer(number, Grant::Given { epoch: Epoch::new(GRANTED), logged: 0 });
    assert_eq!(world.flow(CALM).map(|header| header.life()), Some(Life::Owned));
}

/// The switch's channel begins anew while a claim is on its way, and the switch does not
/// ask for its routes: the flow is claimed again.
#[test]
fn a_claim_that_is_lost_with_its_channel_is_made_again() {
    let mut world = World::new();
    world.bring(EARLIER, &[]);
    world.bring(LATEST, &[(CALM, NEW)]);
    let lost = world.claim(CALM, NEW);
    world.switch =
        Fabric::new(Peer { node: NodeId::SWITCH, incarnation: 2 }, FabricConfig::default());
    world.switch.set_peer(REBORN);
    world.switch.send(REBORN.node, kind::CLAIMED, &[0; 12]).expect("there is room");
    for _ in 0..4 {
        world.now += SECOND / 10;
        world.carry();
    }
    let number = world.claim(CALM, NEW);
    assert_ne!(number, lost);
    world.answer(number, Grant::Given { epoch: Epoch::new(GRANTED), logged: 0 });
    assert_eq!(world.flow(CALM).expect("it is served").life(), Life::Owned);
}

/// The newest state comes when the switch has answered that the older one waits for a
/// sweep, and the older one is claimed again or is about to be. Another flow waits, too.
/// The coordinator does not hear that all claims wait before the switch has answered for
/// the newest state. If the sweep came before that, the route would be given to the older
/// state.
#[test]
fn what_has_become_newer_does_not_wait_for_a_sweep() {
    for is_asked in [true, false] {
        let mut world = World::new();
        world.bring(EARLIER, &[(MOVED, OLD)]);
        let number = world.claim(MOVED, OLD);
        world.answer(number, Grant::AfterSweep);
        let mut number = world.claim(MOVED, OLD);
        if !is_asked {
            world.answer(number, Grant::AfterSweep);
        }
        world.bring(LATEST, &[(MOVED, NEW), (CALM, NEW)]);
        let calm = world.claim(CALM, NEW);
        world.answer(calm, Grant::AfterSweep);
        assert_eq!(world.told(), [], "the switch has not answered for what has become newer");
        if is_asked {
            world.answer(number, Grant::AfterSweep);
            number = world.claim(MOVED, NEW);
            world.now += 1_000_000;
            world.carry();
            let calm = world.claim(CALM, NEW);
            world.answer(calm, Grant::AfterSweep);
        } else {
            world.now += 1_000_000;
            world.carry();
            let claims = world.claims();
            assert_eq!(
                claims.iter().map(|(_, flows)| &flows[..]).collect::<Vec<_>>(),
                [[(CALM, NEW)], [(MOVED, NEW)]]
            );
            world.answer(claims[0].0, Grant::AfterSweep);
            number = claims[1].0;
        }
        assert_eq!(world.told(), [], "it has not answered yet");
        world.answer(number, Grant::Given { epoch: Epoch::new(GRANTED), logged: 0 });
        assert_eq!(world.flow(MOVED).map(|header| header.life()), Some(Life::Owned));
        world.now += 1_000_000;
        world.carry();
        let calm = world.claim(CALM, NEW);
        world.answer(calm, Grant::AfterSweep);
        let told = world.told();
        assert!(
            matches!(
                &told[..],
                [Control::Waits { node: NodeId::FIRST_RUNTIME, incarnation: 1, .. }]
            ),
            "{told:?}"
        );
        assert_eq!(world.flow(CALM).map(|header| header.life()), Some(Life::Claiming));
    }
}
