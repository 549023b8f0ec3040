//! Two runtimes, and packets of a flow that its functions refuse.

use crate::demotion::Pair;
use crate::spot::{PerPacket, accepting};
use holdfast_nf::{Context, Direction, DropReason, Packet, Verdict};
use holdfast_protection::Plan;
use holdfast_wire::build::{self, Ends, Ethernet};
use holdfast_wire::header::tcp_flags::{ACK, RST, SYN};
use holdfast_wire::header::{ETHERTYPE_IPV4, proto};
use holdfast_wire::nsh::{ENCAPSULATION_LEN, Flags};
use holdfast_wire::rewrite::{End, Side, set_end};
use holdfast_wire::{FlowKey, MemoryPool, PacketPool};

/// Orders to the function, in a packet's payload.
const PASS: u8 = 0;
const DENY: u8 = 1;
const REJECT: u8 = 2;
/// Added to an order: the function counts the packet in any case.
const NOTED: u8 = 16;

holdfast_nf::flow_state! {
    struct Tally {
        packets: u64,
    }
}

/// The port of TCP servers that clients know, and the servers' own.
const KNOWN: u16 = 80;
const OWN: u16 = 8080;

/// Counts packets that pass, and packets that it is told to note. TCP is rewritten to
/// another port.
struct Guard;

impl PerPacket for Guard {
    const NAME: &'static str = "guard";
    type Flow = Tally;

    fn process(packet: &mut Packet, flow: &mut Tally, cx: &mut Context) -> Verdict {
        let order = *packet.bytes().last().expect("an order");
        if packet.tcp().is_some() {
            let key = FlowKey::of(packet).expect("a segment has a key");
            let is_set = match cx.direction() {
                Direction::Forward => {
                    set_end(packet, Side::Destination, End { address: key.destination, port: OWN })
                }
                Direction::Reverse => {
                    set_end(packet, Side::Source, End { address: key.source, port: KNOWN })
                }
            };
            assert!(is_set);
        }
        flow.packets += u64::from(order == PASS || order & NOTED != 0);
        match order & !NOTED {
            DENY => Verdict::Drop(DropReason::PolicyDenied),
            REJECT => Verdict::Reject(DropReason::PolicyDenied),
            _ => Verdict::Forward,
        }
    }
}

/// A snapshot follows every packet that changes state.
const SNAPSHOTS: Plan = Plan { snapshot_every: 1, ..Plan::NFACTOR };

fn pair(plan: Plan) -> Pair {
    let mut pair = Pair::of(accepting::<Guard>, || plan.build());
    pair.send(0, 1, 5, Flags::NEW, PASS);
    pair.advance(1);
    assert_eq!(pair.left, (1, 0));
    pair
}

/// The second runtime's copy of the flow: packets and bytes, and the function's count.
fn copy(pair: &Pair) -> ([u64; 2], u64) {
    let flows = pair.spots[1].runtime.flows(0).expect("a lane");
    let (slot, header) = flows.iter().next().expect("there is a copy");
    let block = flows.block(slot);
    (
        header.packets(),
        u64::from_ne_bytes(block[block.len() - 8..].try_into().expect("eight bytes")),
    )
}

/// A flood of refused packets that change nothing costs no frame between runtimes,
/// whether their senders are told or not. A refused packet that changes something costs
/// some, and the answer to its sender waits for them.
#[test]
fn what_is_refused_and_changes_nothing_is_not_copied() {
    const FLOOD: usize = 200;
    for plan in [Plan::NFVACTOR, Plan::NFVACTOR_AT_SOURCE, Plan::NFVACTOR_AUTO, SNAPSHOTS] {
        let mut pair = pair(plan);
        let (name, before) = (plan.name(), copy(&pair));
        for (order, answers) in [(DENY, 0), (REJECT, FLOOD)] {
            (pair.between, pair.left) = (0, (0, 0));
            (0..FLOOD).for_each(|_| pair.send(0, 1, 5, 0, order));
            assert_eq!((pair.between, pair.left), (0, (answers, answers)), "{name}, {order}");
            assert_eq!(copy(&pair), before);
        }
        for order in [DENY, REJECT] {
            (pair.between, pair.left) = (0, (0, 0));
            (0..FLOOD).for_each(|_| pair.send(0, 1, 5, 0, order | NOTED));
            assert!(pair.between >= FLOOD, "{name}, {order}: {} frames", pair.between);
            assert_eq!(pair.left.1, if order == REJECT { FLOOD } else { 0 });
        }
        assert_eq!(copy(&pair).1, before.1 + 2 * FLOOD as u64, "{name}");
        pair.send(0, 1, 5, 0, PASS);
        assert_eq!(copy(&pair).1, before.1 + 2 * FLOOD as u64 + 1, "{name}");
        pair.assert_no_buffer_lost();
    }
}

const CLIENT: ([u8; 4], u16) = ([10, 0, 0, 2], 5);
const SERVER: [u8; 4] = [192, 0, 2, 1];

/// A segment with these numbers, whose data is an order.
fn segment(
    is_reply: bool,
    flags: u8,
    (sequence, acknowledgement): (u32, u32),
    order: u8,
) -> Vec<u8> {
    let (client, server) = (CLIENT.1, if is_reply { OWN } else { KNOWN });
    let (from, to, source, destination) = if is_reply {
        (SERVER, CLIENT.0, server, client)
    } else {
        (CLIENT.0, SERVER, client, server)
    };
    let l4 = Ethernet::LEN + build::Ipv4::LEN;
    let mut frame = vec![0; l4 + build::Tcp::LEN + 1];
    *frame.last_mut().expect("an order") = order;
    let tcp =
        build::Tcp { sequence, acknowledgement, ..build::Tcp::new(source, destination, flags) };
    tcp.write(&mut frame[l4..], &Ends::V4(from, to)).expect("it fits");
    build::Ipv4::new(from, to, proto::TCP).write(&mut frame[Ethernet::LEN..]).expect("it fits");
    Ethernet { destination: [2; 6], source: [4; 6], ethertype: ETHERTYPE_IPV4 }
        .write(&mut frame)
        .expect("it fits");
    frame
}

/// A segment that left: whether it goes back to its sender, its ports, flags and numbers.
type Leaving = (bool, (u16, u16), u8, (u32, u32));

/// Segments that left since the last call.
fn left(pair: &mut Pair) -> Vec<Leaving> {
    let mut pool = MemoryPool::new(1);
    let mut read = |frame: Vec<u8>| {
        let mut packet = pool.take().expect("a buffer");
        assert!(packet.copy_from(&frame[ENCAPSULATION_LEN..]));
        packet.parse().expect("a packet leaves");
        assert_eq!(packet.is_intact(), Some(true));
        let tcp = *packet.tcp().expect("it is TCP");
        pool.put(packet);
        let numbers = (tcp.sequence.get(), tcp.acknowledgement.get());
        (
            frame[18] & Flags::TURNED != 0,
            (tcp.source.get(), tcp.destination.get()),
            tcp.flags,
            numbers,
        )
    };
    let mut left: Vec<_> = pair.released.drain(..).map(&mut read).collect();
    left.sort_unstable();
    left
}

/// A segment of a connection is refused, in either direction. The segment goes back to
/// its sender as the sender knows it, and the receiver gets a reset in its place, as the
/// receiver knows the connection. Neither leaves before the flow's state is safe. The
/// refusal of a segment that opens no flow is told to its sender alone.
#[test]
fn both_ends_of_a_refused_connection_are_reset() {
    for plan in [
        Plan::NONE,
        Plan::NFVACTOR,
        Plan::NFVACTOR_AT_SOURCE,
        Plan::NFVACTOR_AUTO,
        SNAPSHOTS,
        Plan::REINFORCE,
    ] {
        let name = plan.name();
        for note in [0, NOTED] {
            let mut pair = Pair::of(accepting::<Guard>, || plan.build());
            pair.send_frame(0, &segment(false, SYN, (7, 0), PASS), 5, Flags::NEW);
            pair.advance(1);
            pair.send_frame(0, &segment(true, SYN | ACK, (90, 8), PASS), 5, 0);
            pair.advance(1);
            assert_eq!(left(&mut pair).len(), 2, "{name}");
            for (is_reply, flags, numbers) in
                [(false, ACK, (8, 91)), (true, ACK, (91, 9)), (false, RST, (9, 0))]
            {
                pair.send_frame(0, &segment(is_reply, flags, numbers, REJECT | note), 5, 0);
                pair.advance(1);
                let (back, ahead) = match is_reply {
                    false => ((CLIENT.1, KNOWN), (CLIENT.1, OWN)),
                    true => ((OWN, CLIENT.1), (KNOWN, CLIENT.1)),
                };
                let expected = [(false, ahead, RST | flags, numbers), (true, back, flags, numbers)];
                assert_eq!(left(&mut pair), expected, "{name}, {note}");
            }
            pair.assert_no_buffer_lost();
        }
    }
}

/// A flood of segments is refused. Each goes back to the edge, which has a limit of its
/// own. Their receiver gets a thousand resets, and no more until time has passed.
#[test]
fn resets_to_receivers_are_so_many_a_second() {
    let mut pair = Pair::of(accepting::<Guard>, || Plan::NONE.build());
    pair.send_frame(0, &segment(false, SYN, (7, 0), PASS), 5, Flags::NEW);
    pair.send_frame(0, &segment(true, SYN | ACK, (90, 8), PASS), 5, 0);
    left(&mut pair);
    for _ in 0..1100 {
        pair.send_frame(0, &segment(false, ACK, (8, 91), REJECT), 5, 0);
    }
    let (back, ahead): (Vec<Leaving>, Vec<Leaving>) =
        left(&mut pair).into_iter().partition(|(is_back, ..)| *is_back);
    assert_eq!((back.len(), ahead.len()), (1100, 1000));
    pair.assert_no_buffer_lost();
}
