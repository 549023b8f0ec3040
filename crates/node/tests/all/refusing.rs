//! Two runtimes, and packets of a flow that its functions refuse.

use crate::demotion::Pair;
use crate::spot::{PerPacket, accepting};
use holdfast_nf::{Context, DropReason, Packet, Verdict};
use holdfast_protection::{NfActor, NfvActor, Protection, ReleaseAt};
use holdfast_wire::nsh::Flags;

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

/// Counts packets that pass, and those that it is told to note.
struct Guard;

impl PerPacket for Guard {
    const NAME: &'static str = "guard";
    type Flow = Tally;

    fn process(packet: &mut Packet, flow: &mut Tally, _: &mut Context) -> Verdict {
        let order = packet.bytes()[42];
        flow.packets += u64::from(order == PASS || order & NOTED != 0);
        match order & !NOTED {
            DENY => Verdict::Drop(DropReason::PolicyDenied),
            REJECT => Verdict::Reject(DropReason::PolicyDenied),
            _ => Verdict::Forward,
        }
    }
}

fn pair(protection: impl Fn() -> Box<dyn Protection>) -> Pair {
    let mut pair = Pair::of(accepting::<Guard>, protection);
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
    (header.packets(), u64::from_ne_bytes(block[block.len() - 8..].try_into().expect("eight bytes")))
}

/// A flood of refused packets that change nothing costs no frame between runtimes,
/// whether their senders are told or not. A refused packet that changes something costs
/// some, and the answer to its sender waits for them.
#[test]
fn what_is_refused_and_changes_nothing_is_not_copied() {
    const FLOOD: usize = 200;
    let protections: [fn() -> Box<dyn Protection>; 4] = [
        || Box::new(NfvActor::new(ReleaseAt::Replica)),
        || Box::new(NfvActor::new(ReleaseAt::Source)),
        || Box::new(NfvActor::new(ReleaseAt::Auto)),
        || Box::new(NfActor::new(1)),
    ];
    for protection in protections {
        let mut pair = pair(protection);
        let (name, before) = (protection().name(), copy(&pair));
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
