//! Packets that are longer than the way out, and may be cut. The tests put the fragments
//! together as an end host does.

use super::{Bench, Released};
use holdfast_wire::build::{Ethernet, Ipv4};
use holdfast_wire::{DropReason, PacketPool, checksum};
use proptest::prelude::*;

/// An option that goes into every fragment (its copied flag is set): a stream identifier,
/// RFC 791, section 3.1.
const COPIED: [u8; 4] = [136, 4, 0x12, 0x34];
/// An option that stays in the first fragment: a record of the route.
const NOT_COPIED: [u8; 7] = [7, 7, 4, 0, 0, 0, 0];

/// A packet of an unknown protocol, from a client to the world.
fn packet() -> Ipv4<'static> {
    Ipv4 { id: 0x4711, ..Ipv4::new([198, 51, 100, 4], [192, 0, 2, 7], 253) }
}

fn payload(len: usize) -> Vec<u8> {
    (0..len).map(|at| (at * 7 + at / 256) as u8).collect()
}

fn frame_of(ip: &Ipv4<'_>, payload: &[u8]) -> Vec<u8> {
    let header = Ethernet::LEN + Ipv4::LEN + ip.options.len();
    let mut frame = vec![0; header];
    frame.extend_from_slice(payload);
    ip.write(&mut frame[Ethernet::LEN..]).expect("a test's header");
    Ethernet { destination: super::BOX[0], source: [2; 6], ethertype: 0x0800 }
        .write(&mut frame)
        .expect("a test's frame");
    frame
}

/// A frame's contents, with its header checked.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Piece {
    at: usize,
    more: bool,
    options: Vec<u8>,
    data: Vec<u8>,
}

fn piece(frame: &[u8], mtu: usize) -> Piece {
    assert!(frame.len() <= 14 + mtu, "{} bytes are more than the MTU {mtu}", frame.len() - 14);
    assert_eq!(frame[12..14], [8, 0]);
    let ip = &frame[14..];
    let header = (ip[0] & 15) as usize * 4;
    assert_eq!(checksum::checksum(&ip[..header]), 0, "header checksum");
    assert_eq!(u16::from_be_bytes([ip[2], ip[3]]) as usize, ip.len(), "total length");
    let field = u16::from_be_bytes([ip[6], ip[7]]);
    assert_eq!(field & 0xc000, 0, "neither the reserved flag nor DF");
    Piece {
        at: (field & 0x1fff) as usize * 8,
        more: field & 0x2000 != 0,
        options: ip[20..header].to_vec(),
        data: ip[header..].to_vec(),
    }
}

impl Bench {
    /// Releases a frame from a chain; returns the frames that leave by port 1.
    fn leaves(&mut self, bytes: &[u8]) -> Vec<Vec<u8>> {
        let mut packet = self.packet(bytes);
        packet.parse().expect("well formed");
        self.edge.handle_egress(
            Released::stateless(packet),
            self.now,
            &mut self.out,
            &mut self.pool,
        );
        self.collect_frames()
    }

    fn collect_frames(&mut self) -> Vec<Vec<u8>> {
        let mut frames = Vec::new();
        for (port, released) in self.out.transmit.drain(..) {
            let packet = released.into_inner();
            if packet.bytes()[12..14] == [8, 0] {
                assert_eq!(port, 1);
                frames.push(packet.bytes().to_vec());
            }
            self.pool.put(packet);
        }
        assert!(self.out.reinject.is_empty(), "nobody is told");
        assert_eq!(
            self.pool.free() + self.edge.held(),
            self.pool.total(),
            "a buffer is lost, or there twice"
        );
        frames
    }
}

/// A bench that knows the router, and is asking whether it is still there.
fn ready(buffers: usize) -> Bench {
    let mut bench = Bench::with_buffers(buffers);
    bench.port(1, "arp who-has 203.0.113.1 tell 203.0.113.254");
    bench.released(0, "udp 198.51.100.4:1 > 192.0.2.7:2");
    bench
}

fn pieces(frames: &[Vec<u8>], mtu: usize) -> Vec<Piece> {
    frames.iter().map(|frame| piece(frame, mtu)).collect()
}

/// A client without path MTU discovery (DF clear) sends 1,500 bytes towards an MTU of
/// 1,400: two fragments arrive, in order, nobody is told.
#[test]
fn a_packet_that_may_be_cut_leaves_in_fragments() {
    let mut bench = ready(256);
    assert_eq!(
        bench.released(0, "udp 198.51.100.4:1 > 192.0.2.7:2 id=9 len=1472"),
        [
            "1< box1>host254 udp 198.51.100.4:1 > 192.0.2.7:2 ttl=63",
            "1< box1>host254 fragment 198.51.100.4 > 192.0.2.7 ttl=63 at=1376 len=104"
        ]
    );
    let data = payload(1480);
    let cut = pieces(&bench.leaves(&frame_of(&packet(), &data)), 1400);
    assert_eq!(cut[0], Piece { at: 0, more: true, options: vec![], data: data[..1376].to_vec() });
    assert_eq!(
        cut[1],
        Piece { at: 1376, more: false, options: vec![], data: data[1376..].to_vec() }
    );
    assert_eq!(cut.len(), 2);
}

/// The last fragment may be as long as the MTU, also if the MTU is no multiple of 8: no
/// packet is cut into more fragments than needed.
#[test]
fn the_last_fragment_is_as_long_as_the_mtu_allows() {
    let mut bench = ready(256);
    let lengths =
        |frames: Vec<Vec<u8>>| frames.iter().map(|frame| frame.len() - 34).collect::<Vec<_>>();
    assert_eq!(lengths(bench.leaves(&frame_of(&packet(), &payload(1380)))), [1380]);
    assert_eq!(lengths(bench.leaves(&frame_of(&packet(), &payload(1381)))), [1376, 5]);
}

/// A fragment of 1,480 bytes from the middle of a datagram, and its last one, are cut
/// again: offsets go on, only the datagram's end has MF clear.
#[test]
fn a_fragment_is_cut_again() {
    let mut bench = ready(256);
    let data = payload(1480);
    let middle = Ipv4 { fragment_offset: 2960, more_fragments: true, ..packet() };
    let cut = pieces(&bench.leaves(&frame_of(&middle, &data)), 1400);
    let summary = |cut: &[Piece]| {
        cut.iter().map(|piece| (piece.at, piece.data.len(), piece.more)).collect::<Vec<_>>()
    };
    assert_eq!(summary(&cut), [(2960, 1376, true), (2960 + 1376, 104, true)]);
    let last = Ipv4 { fragment_offset: 2960, ..packet() };
    let cut = pieces(&bench.leaves(&frame_of(&last, &data[..1479])), 1400);
    assert_eq!(summary(&cut), [(2960, 1376, true), (2960 + 1376, 103, false)]);
}

/// A packet with an option for every fragment and one for the first: each is where RFC
/// 791 wants it, padded to a whole word.
#[test]
fn options_are_in_the_fragments_that_they_are_for() {
    let mut bench = ready(256);
    let options = [&NOT_COPIED[..], &[1], &COPIED[..]].concat();
    let ip = Ipv4 { options: &options, ..packet() };
    let cut = pieces(&bench.leaves(&frame_of(&ip, &payload(1440))), 1400);
    assert_eq!(cut[0].options, options);
    assert_eq!(cut[1].options, COPIED);
    assert_eq!((cut[0].data.len(), cut[1].at, cut[1].data.len()), (1368, 1368, 72));
}

/// A sender that forbids to cut its packet is told; no router may cut an IPv6 packet, and
/// its sender is told.
#[test]
fn what_may_not_be_cut_is_told() {
    let mut bench = ready(256);
    let effects = bench.released(0, "udp 198.51.100.4:1 > 192.0.2.7:2 df len=1473");
    assert!(
        effects[0].contains("too-big mtu=1400") && effects[1] == "drop frame_too_large",
        "{effects:?}"
    );
    let effects = bench.released(0, "udp [2001:db8:a::9]:1 > [2001:db8:f::7]:2 len=1473");
    assert!(
        effects[0].contains("too-big mtu=1400") && effects[1] == "drop frame_too_large",
        "{effects:?}"
    );
}

/// The neighbour is not known yet: the packet waits whole, in one buffer, and is cut when
/// it leaves.
#[test]
fn a_packet_that_waited_for_its_neighbour_is_cut_when_it_leaves() {
    let mut bench = Bench::new();
    let data = payload(1480);
    assert!(bench.leaves(&frame_of(&packet(), &data)).is_empty());
    assert_eq!(bench.edge.held(), 1);
    let answer = super::frame(1, "arp 203.0.113.254 is-at 02:00:00:00:01:fe to=box1");
    let answer = bench.packet(&answer);
    assert!(
        bench.edge.handle_ingress(1, answer, bench.now, &mut bench.out, &mut bench.pool).is_none()
    );
    let cut = pieces(&bench.collect_frames(), 1400);
    assert_eq!(cut.iter().flat_map(|piece| piece.data.clone()).collect::<Vec<_>>(), data);
    assert_eq!(cut.len(), 2);
}

/// The box is out of buffers. No fragment leaves alone, because an incomplete datagram
/// only costs; one drop is counted.
#[test]
fn without_a_buffer_for_each_fragment_none_leaves() {
    let mut bench = ready(256);
    let mut taken: Vec<_> = std::iter::from_fn(|| bench.pool.take()).collect();
    bench.pool.put(taken.pop().expect("there are buffers"));
    let mut packet = bench.packet(&frame_of(&packet(), &payload(1480)));
    packet.parse().expect("well formed");
    bench.edge.handle_egress(
        Released::stateless(packet),
        bench.now,
        &mut bench.out,
        &mut bench.pool,
    );
    assert!(bench.out.transmit.is_empty() && bench.out.reinject.is_empty());
    assert_eq!(
        (bench.edge.drops().get(DropReason::ArenaEmpty), bench.edge.drops().total()),
        (1, 1)
    );
    assert_eq!(bench.pool.free(), 1);
    taken.into_iter().for_each(|packet| bench.pool.put(packet));
}

/// A port's device gets another MTU. From then on packets are cut, told and sent whole by
/// that, those that waited included.
#[test]
fn a_new_mtu_holds_at_once() {
    let mut bench = ready(256);
    let frame = frame_of(&packet(), &payload(1480));
    bench.edge.set_mtu(1, 1500);
    assert_eq!(
        bench.leaves(&frame),
        [[&[2, 0, 0, 0, 1, 254], &super::BOX[1][..], &[8, 0], &bench_hop(&frame)].concat()]
    );
    bench.edge.set_mtu(1, 576);
    assert_eq!(pieces(&bench.leaves(&frame), 576).len(), 3);
    let effects = bench.released(0, "udp 198.51.100.4:1 > 192.0.2.7:2 df len=549");
    assert!(effects[0].contains("too-big mtu=576"), "{effects:?}");
    // The port does not exist.
    bench.edge.set_mtu(9, 100);

    // Two packets wait for a neighbour while the MTU falls: one may be cut, the sender of
    // the other is told.
    assert!(
        bench.released(0, "udp 198.51.100.4:1 > 203.0.113.9:2 id=3 len=700")[0].contains("who-has")
    );
    bench.released(0, "udp 198.51.100.4:1 > 203.0.113.9:2 df len=500");
    assert_eq!(bench.edge.held(), 2);
    bench.edge.set_mtu(1, 300);
    let effects = bench.port(1, "arp 203.0.113.9 is-at 02:00:00:00:01:09 to=box1");
    assert_eq!(
        effects.iter().filter(|effect| effect.starts_with("1< box1>host9 ")).count(),
        3,
        "{effects:?}"
    );
    assert!(effects.iter().any(|effect| effect.contains("too-big mtu=300")), "{effects:?}");
}

/// The packet behind a frame's header with one hop less.
fn bench_hop(frame: &[u8]) -> Vec<u8> {
    let mut ip = frame[14..].to_vec();
    ip[8] -= 1;
    ip[10..12].fill(0);
    let sum = checksum::checksum(&ip[..20]);
    ip[10..12].copy_from_slice(&sum.to_be_bytes());
    ip
}

/// The MTU has no room for a header and 8 bytes of data: no packet can be cut to that,
/// and no sender is told a size that it cannot use.
#[test]
fn an_mtu_that_is_too_small_to_cut_to() {
    let mut bench = ready(256);
    for mtu in [0, 20, 27] {
        bench.edge.set_mtu(1, mtu);
        assert_eq!(bench.released(0, "udp 198.51.100.4:1 > 192.0.2.7:2"), ["drop frame_too_large"]);
    }
}

/// The answer to a ping that is longer than its way back is cut too, unless the ping
/// forbids it.
#[test]
fn a_long_answer_to_a_ping() {
    let mut bench = Bench::new();
    bench.edge.set_mtu(0, 1000);
    assert_eq!(
        bench.port(0, "ping 10.0.0.9 > 10.0.0.1 id=5 len=1200"),
        [
            "0< box0>host9 pong 10.0.0.1 > 10.0.0.9 ttl=64",
            "0< box0>host9 fragment 10.0.0.1 > 10.0.0.9 ttl=64 at=976 len=232"
        ]
    );
    assert_eq!(bench.port(0, "ping 10.0.0.9 > 10.0.0.1 df len=1200"), ["drop frame_too_large"]);
}

/// Options as in RFC 791, and those of them that are copied into later fragments, without
/// padding.
fn options() -> impl Strategy<Value = (Vec<u8>, Vec<u8>)> {
    // The kinds with a meaning for the edge are left out: source routes, and those of one
    // byte.
    let one = (2u8..=255, 0usize..9)
        .prop_filter("no source route", |(kind, _)| ![131, 137].contains(kind));
    let one = prop_oneof![1 => Just(vec![1u8]), 3 => one.prop_map(|(kind, len)| [vec![kind, len as u8 + 2], vec![kind ^ 0x55; len]].concat())];
    prop::collection::vec(one, 0..6).prop_map(|all| {
        let mut options = Vec::new();
        let mut copied = Vec::new();
        for option in all {
            if options.len() + option.len() <= 40 {
                if option[0] >= 0x80 {
                    copied.extend_from_slice(&option);
                }
                options.extend(option);
            }
        }
        options.resize(options.len().next_multiple_of(4), 0);
        (options, copied)
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    /// Any packet, itself a fragment or not, through any two MTUs one after the other: it
    /// can be put together to what it was, in order and without an overlap, in as few
    /// fragments as there can be; or, without buffers, none leaves.
    #[test]
    fn what_leaves_is_what_came(
        len in 0usize..2400, (options, copied) in options(), mtus in (68u16..1500, 68u16..1500), buffers in 1usize..100,
        at in 0u16..4000, is_fragment in any::<bool>(), more in any::<bool>(),
    ) {
        let at = at * 8 * u16::from(is_fragment);
        let more = more && is_fragment;
        let len = if more { len.next_multiple_of(8).max(8) } else { len.max(1) };
        let data = payload(len);
        let ip = Ipv4 { options: &options, fragment_offset: at, more_fragments: more, ..packet() };
        let mut bench = ready(buffers + 1);
        let mut packets = vec![frame_of(&ip, &data)];
        for mtu in [mtus.0, mtus.1] {
            bench.edge.set_mtu(1, mtu);
            let before = bench.edge.drops().get(DropReason::ArenaEmpty);
            let mut frames = Vec::new();
            for packet in &packets {
                let cut = bench.leaves(packet);
                let pieces = pieces(&cut, mtu.into());
                let (last, others) = match pieces.split_last() {
                    Some(all) => all,
                    None => {
                        prop_assert!(bench.edge.drops().get(DropReason::ArenaEmpty) > before);
                        // With enough buffers there would have been more fragments than
                        // there were buffers.
                        let mut rich = ready(512);
                        rich.edge.set_mtu(1, mtu);
                        prop_assert!(rich.leaves(packet).len() > buffers + 1);
                        return Ok(());
                    }
                };
                for piece in others {
                    // Each fragment is as long as the MTU allows, in units of 8.
                    prop_assert_eq!(piece.data.len(), (usize::from(mtu) - 20 - piece.options.len()) & !7);
                }
                let room = usize::from(mtu) - 20 - others.last().map_or(0, |piece| piece.options.len());
                prop_assert!(others.is_empty() || last.data.len() + others[others.len() - 1].data.len() > room);
                frames.extend(cut);
            }
            packets = frames;
        }
        let all = pieces(&packets, mtus.1.into());
        let mut next = usize::from(at);
        for (number, piece) in all.iter().enumerate() {
            prop_assert_eq!(piece.at, next);
            next += piece.data.len();
            prop_assert_eq!(piece.more, more || number + 1 < all.len());
            if number == 0 {
                prop_assert_eq!(&piece.options, &options);
            } else {
                prop_assert_eq!(piece.options.len(), copied.len().next_multiple_of(4));
                prop_assert!(piece.options.starts_with(&copied) && piece.options[copied.len()..].iter().all(|&byte| byte == 0));
            }
        }
        prop_assert_eq!(all.iter().flat_map(|piece| piece.data.clone()).collect::<Vec<_>>(), data);
        for frame in &packets {
            prop_assert_eq!(&frame[18..20], &[0x47, 0x11]);
            prop_assert_eq!(&frame[26..34], &[198, 51, 100, 4, 192, 0, 2, 7]);
        }
    }
}
