//! Notes of functions about packets: when they go to the manager, and before what.

use crate::runtime::{Bench, Closing, ME};
use crate::spot::{
    Nothing, SECOND, Spot, accepting, bound, datagram, frames_of, is_released, view_of,
};
use holdfast_nf::shared::Log;
use holdfast_nf::{ConfigError, Context, NetworkFunction, Open, Opening, Packet, Verdict};
use holdfast_node::channel::{Fabric, FabricConfig};
use holdfast_node::message::{Control, Logged, kind};
use holdfast_protection::{Peer, Plan};
use holdfast_wire::NodeId;
use holdfast_wire::nsh::Flags;

const COORDINATOR: Peer = Peer { node: NodeId::COORDINATOR, incarnation: 1 };
const MANAGER: Peer = Peer { node: NodeId::MANAGER, incarnation: 1 };
const REPLICA: Peer = Peer { node: NodeId::new(17), incarnation: 4 };

holdfast_nf::shared_state! {
    struct Told {
        log: Log,
    }
}

/// Notes every flow that opens, by number.
struct Teller;

impl NetworkFunction for Teller {
    const NAME: &'static str = "teller";
    type Config = ();
    type Flow = Nothing;
    type Shared = Told;

    fn new((): ()) -> Result<Teller, ConfigError> {
        Ok(Teller)
    }

    fn shared(&self) -> Told {
        Told { log: Log::new() }
    }

    fn open(&self, packet: &Packet, shared: &mut Told, cx: &mut Opening<'_>) -> Open<Nothing> {
        let key = *cx.key();
        shared.log.note(7, &key, packet.meta.ingress, cx);
        Open::Accept(Nothing::default())
    }

    fn process(&self, _: &mut Packet, _: &mut Nothing, _: &mut Told, _: &mut Context) -> Verdict {
        Verdict::Forward
    }
}

holdfast_nf::flow_state! {
    struct Count {
        packets: u64,
    }
}

/// Counts packets, and notes each with a text of a thousand bytes.
struct Writer;

impl NetworkFunction for Writer {
    const NAME: &'static str = "writer";
    type Config = ();
    type Flow = Count;
    type Shared = Told;

    fn new((): ()) -> Result<Writer, ConfigError> {
        Ok(Writer)
    }

    fn shared(&self) -> Told {
        Told { log: Log::of_texts() }
    }

    fn open(&self, _: &Packet, _: &mut Told, _: &mut Opening<'_>) -> Open<Count> {
        Open::Accept(Count::default())
    }

    fn process(
        &self,
        packet: &mut Packet,
        flow: &mut Count,
        shared: &mut Told,
        cx: &mut Context,
    ) -> Verdict {
        flow.packets += 1;
        let key = *cx.key();
        shared.log.say((1, flow.packets), &key, packet.meta.ingress, cx, |text| {
            text.extend_from_slice(&[b'x'; 1000]);
        });
        Verdict::Forward
    }
}

/// The notes that have come to the manager.
fn notes(manager: &mut Fabric) -> Vec<Logged> {
    let mut told = Vec::new();
    for (_, body) in manager.inbox.records() {
        if let Ok(Control::Logged(packets)) = Control::decode(body) {
            told.extend(packets);
        }
    }
    manager.inbox.clear();
    told
}

/// Notes of functions about packets go to the manager with the next report, once.
#[test]
fn what_is_logged_goes_to_the_manager() {
    let mut bench = Bench::new(vec![accepting::<Closing>(), bound::<Teller>()], 64);
    bench.turn(&[]);
    bench.hear();
    let frames: Vec<Vec<u8>> = (1..=25).map(|flow| datagram(flow, 0)).collect();
    bench.send(&frames);
    bench.send(&frames);
    let mut told = Vec::new();
    for _ in 0..3 {
        bench.stamp += 2 * SECOND;
        bench.turn(&[]);
        told.append(&mut notes(&mut bench.manager));
    }
    assert_eq!(told.len(), 10);
    for (number, logged) in (1u16..).zip(told) {
        assert_eq!((logged.chain, logged.function, logged.about, logged.missed), (0, 1, 7, 0));
        assert_eq!(logged.key.source_port, number);
    }
}

/// The manager gets the text of a packet in the packet's turn, ahead of every other
/// frame: the state that a replica gets, and the packet. A runtime that dies between two
/// frames has then said too much at the most, which the manager recognizes.
#[test]
fn texts_go_ahead_of_states_and_packets() {
    for plan in [Plan::NONE, Plan::NFVACTOR, Plan::NFVACTOR_AT_SOURCE] {
        let mut spot = Spot::new(ME, vec![bound::<Writer>()], plan.build(), 8, 64);
        let peers = [COORDINATOR, REPLICA, MANAGER];
        let mut fabrics = peers.map(|peer| Fabric::new(peer, FabricConfig::default()));
        fabrics.iter_mut().for_each(|fabric| fabric.set_peer(ME));
        // The runtime meets the replica before the manager, to which it reports.
        fabrics[1].send(ME.node, kind::CONTROL, &[]).expect("there is room");
        fabrics[0].send_control(ME.node, &view_of([ME, REPLICA]));
        for number in 0..10 {
            let now = SECOND + number;
            let mut frames = frames_of(&mut fabrics[1], now);
            frames.extend([0, 2].into_iter().flat_map(|at| frames_of(&mut fabrics[at], now)));
            if number > 0 {
                let flags = if number == 1 { Flags::NEW } else { 0 };
                frames.push(spot.packet(&datagram(1, 0), (now, 1, flags)));
            }
            let (mut told, mut shown) = (Vec::new(), false);
            for frame in spot.turn(&frames, now) {
                let to = peers.iter().position(|peer| frame[..6] == peer.node.mac());
                if let Some(at) = to {
                    let _ = fabrics[at].handle_frame(&frame, now);
                }
                shown |= is_released(&frame) || frame.len() > 100 && to == Some(1);
                told.extend(notes(&mut fabrics[2]).iter().map(|note| (note.id, shown)));
            }
            assert_eq!(shown, number > 0, "{plan:?}: it leaves, or its state");
            assert_eq!(told, if shown { vec![(number, false)] } else { vec![] }, "{plan:?}");
            fabrics[1].inbox.clear();
        }
    }
}

/// A manager that hangs has room for some texts. It is told later how many were lost.
#[test]
fn texts_without_room_are_counted() {
    const PACKETS: u64 = 3000;
    let mut bench = Bench::new(vec![bound::<Writer>()], 8);
    bench.turn(&[]);
    bench.hear();
    let (mut now, mut withheld) = (bench.stamp, Vec::new());
    for number in 0..PACKETS {
        now += SECOND / 1000;
        let flags = if number == 0 { Flags::NEW } else { 0 };
        let packet = bench.spot.packet(&datagram(1, 0), (now, 1, flags));
        let sent = bench.spot.turn(&[packet], now);
        withheld.extend(sent.into_iter().filter(|frame| frame[..6] == MANAGER.node.mac()));
    }
    for frame in withheld {
        // The same frames may have been sent several times.
        let _ = bench.manager.handle_frame(&frame, now);
    }
    let mut told = notes(&mut bench.manager);
    bench.stamp = now;
    for _ in 0..100 {
        bench.stamp += SECOND;
        bench.hear();
        bench.turn(&[]);
        told.append(&mut notes(&mut bench.manager));
    }
    let known = told.len() as u64;
    assert!((100..PACKETS / 2).contains(&known), "{known} texts had room");
    assert_eq!(told.iter().map(|note| note.missed).sum::<u64>(), 0);
    bench.send(&[datagram(1, 0)]);
    let last = notes(&mut bench.manager);
    let last: Vec<_> = last.iter().map(|note| (note.id, note.missed)).collect();
    assert_eq!(last, [(PACKETS + 1, PACKETS - known)]);
}
