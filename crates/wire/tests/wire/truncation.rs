//! Frames that are not whole.

use crate::frames::{ENDS4, ENDS6, Kind, chain, ethernet, kinds, packet, tcp, udp, v4, v6};
use holdfast_wire::header::{ETHERTYPE_IPV4, ETHERTYPE_IPV6, ETHERTYPE_VLAN, proto};
use holdfast_wire::{FlowKey, Layers, Malformed, MemoryPool, Network, Packet, PacketPool};
use proptest::prelude::*;

/// Everything that can be learned of a packet.
type Seen =
    (Result<(), Malformed>, Layers, Option<FlowKey>, [Option<Vec<u8>>; 5], Vec<u8>, Option<u8>);

fn view<T: zerocopy::IntoBytes + zerocopy::Immutable>(view: Option<&T>) -> Option<Vec<u8>> {
    view.map(|header| header.as_bytes().to_vec())
}

/// Parses, checks that all offsets and views are inside, and returns the results.
fn look(packet: &mut Packet, what: &str) -> Seen {
    let parsed = packet.parse();
    let layers = packet.layers;
    if parsed.is_err() {
        assert_eq!(layers, Layers::default(), "{what}");
    } else {
        assert!(usize::from(layers.end) <= packet.len(), "{what}: {layers:?}");
        assert!(
            14 <= layers.l3 && layers.l3 <= layers.l4 && layers.l4 <= layers.end,
            "{what}: {layers:?}"
        );
        assert!(
            layers.v6_fragment == 0
                || (layers.l3 < layers.v6_fragment && layers.v6_fragment < layers.l4),
            "{what}"
        );
    }
    let start = packet.bytes().as_ptr() as usize;
    let inside = |place: Option<(usize, usize)>, from: u16| {
        let Some((at, len)) = place else { return };
        let range = start + usize::from(from)..=start + usize::from(layers.end);
        assert!(
            range.contains(&at) && range.contains(&(at + len)),
            "{what}: a view reaches beyond {layers:?}"
        );
    };
    inside(packet.ipv4().map(|header| (header as *const _ as usize, 20)), layers.l3);
    inside(packet.ipv6().map(|header| (header as *const _ as usize, 40)), layers.l3);
    inside(packet.tcp().map(|header| (header as *const _ as usize, 20)), layers.l4);
    inside(packet.udp().map(|header| (header as *const _ as usize, 8)), layers.l4);
    inside(packet.icmp().map(|header| (header as *const _ as usize, 8)), layers.l4);
    if layers.network != Network::Other {
        inside(Some((packet.l4().as_ptr() as usize, packet.l4().len())), layers.l4);
        let written = (packet.l4_mut().as_ptr() as usize, packet.l4_mut().len());
        assert_eq!(
            written,
            (packet.l4().as_ptr() as usize, packet.l4().len()),
            "{what}: what is written is not what is read"
        );
    }
    let views = [
        view(packet.ipv4()),
        view(packet.ipv6()),
        view(packet.tcp()),
        view(packet.udp()),
        view(packet.icmp()),
    ];
    (parsed, layers, FlowKey::of(packet), views, packet.l4().to_vec(), packet.ttl())
}

/// The results for a frame must not depend on other bytes in its buffer.
fn see(pool: &mut MemoryPool, frame: &[u8], what: &str) -> Seen {
    let mut seen = [0x00, 0x45, 0xff].map(|filler| {
        let mut packet = packet(pool, frame, filler);
        let seen = look(&mut packet, what);
        pool.put(packet);
        seen
    });
    assert_eq!(seen[0], seen[1], "{what}: bytes beyond the frame were read");
    assert_eq!(seen[1], seen[2], "{what}: bytes beyond the frame were read");
    core::mem::replace(
        &mut seen[0],
        (Ok(()), Layers::default(), None, Default::default(), Vec::new(), None),
    )
}

#[test]
fn a_whole_frame_of_every_kind_has_its_layers_where_they_were_put() {
    // Scenario: frames of every kind come in whole. Their layers are where whoever wrote
    // them put them.
    let mut pool = MemoryPool::new(1);
    for Kind { name, frame, l3, l4, protocol } in kinds() {
        let (parsed, layers, ..) = see(&mut pool, &frame, &name);
        assert_eq!(parsed, Ok(()), "{name}");
        assert_eq!((usize::from(layers.l3), usize::from(layers.end)), (l3, frame.len()), "{name}");
        assert_eq!(
            (usize::from(layers.l4), layers.protocol),
            (l4.unwrap_or(l3), protocol),
            "{name}"
        );
        assert_eq!(layers.network == Network::Other, l4.is_none(), "{name}");
    }
}

#[test]
fn a_frame_of_any_kind_cut_at_any_byte_is_truncated() {
    // Scenario: a link cuts a frame after any of its bytes. A cut IP packet is refused as
    // truncated, whatever its buffer held before.
    let mut pool = MemoryPool::new(1);
    for Kind { name, frame, l3, l4, .. } in kinds() {
        for cut in 0..frame.len() {
            let (parsed, ..) = see(&mut pool, &frame[..cut], &format!("{name}, cut at {cut}"));
            let is_whole = l4.is_none() && cut >= l3;
            let expected = if is_whole { Ok(()) } else { Err(Malformed::Truncated) };
            assert_eq!(parsed, expected, "{name}, cut at {cut}");
        }
    }
}

/// Makes the IP header say that the packet ends where the frame does. False if there is
/// no IP header to say so.
fn claim_whole(frame: &mut [u8], l3: usize) -> bool {
    let len = frame.len();
    match (frame.get(l3 - 2..l3).map(|bytes| u16::from_be_bytes([bytes[0], bytes[1]])), len) {
        (Some(ETHERTYPE_IPV4), len) if len >= l3 + 4 => {
            frame[l3 + 2..l3 + 4].copy_from_slice(&((len - l3) as u16).to_be_bytes());
            true
        }
        (Some(ETHERTYPE_IPV6), len) if len >= l3 + 40 => {
            frame[l3 + 4..l3 + 6].copy_from_slice(&((len - l3 - 40) as u16).to_be_bytes());
            true
        }
        _ => false,
    }
}

#[test]
fn a_packet_that_hides_its_cut_is_refused_where_a_header_is_missing() {
    // Scenario: a sender cuts a packet after any byte and adjusts the IP length. A packet
    // that lacks a part of its headers is refused; no byte beyond it is read.
    let mut pool = MemoryPool::new(1);
    for Kind { name, frame, l3, l4, protocol } in kinds() {
        for cut in l3..frame.len() {
            let mut cut_frame = frame[..cut].to_vec();
            if !claim_whole(&mut cut_frame, l3) {
                continue;
            }
            let what = format!("{name}, cut at {cut} and said to be whole");
            let (parsed, layers, key, ..) = see(&mut pool, &cut_frame, &what);
            let l4 = l4.expect("it is IP");
            if cut < l4 {
                assert!(parsed.is_err(), "{what}");
            }
            if parsed.is_ok() {
                assert_eq!(
                    (usize::from(layers.end), usize::from(layers.l4), layers.protocol),
                    (cut, l4, protocol),
                    "{what}"
                );
                assert!(key.is_none() || layers.fragment_offset == 0, "{what}");
            }
        }
    }
}

#[test]
fn padding_is_not_looked_at() {
    // Scenario: Ethernet pads short frames with whatever was in memory. No padding
    // changes what is seen of the packet.
    let mut pool = MemoryPool::new(1);
    for Kind { name, frame, l4, .. } in kinds() {
        if l4.is_none() {
            continue;
        }
        let bare = see(&mut pool, &frame, &name);
        for padding in [0x00, 0x11, 0xff] {
            let mut padded = frame.clone();
            padded.resize(frame.len() + 46, padding);
            assert_eq!(see(&mut pool, &padded, &name), bare, "{name}");
        }
    }
}

#[test]
fn tags_and_extensions_beyond_the_limit_are_too_deep() {
    // Scenario: three tags, or one extension header more than allowed. Both are refused;
    // one less is not.
    let with = |tags: usize, extensions: usize| {
        let (next, body) = chain(
            &vec![(proto::DESTINATION_OPTIONS, &[0; 6][..]); extensions],
            proto::UDP,
            &udp(&ENDS6, b""),
        );
        Layers::parse(&ethernet(ETHERTYPE_IPV6, &vec![ETHERTYPE_VLAN; tags], &v6(next, &body)))
            .map(|layers| layers.protocol)
    };
    assert_eq!(with(2, holdfast_wire::MAX_EXTENSION_HEADERS), Ok(proto::UDP));
    assert_eq!(with(3, 0), Err(Malformed::TooDeep));
    assert_eq!(with(0, holdfast_wire::MAX_EXTENSION_HEADERS + 1), Err(Malformed::TooDeep));
}

#[test]
fn what_no_offset_can_say_is_refused() {
    // Scenario: a slice longer than offsets can count, with an IP packet in front. The
    // slice is refused rather than described wrongly.
    let mut frame = ethernet(ETHERTYPE_IPV4, &[], &v4(proto::UDP, &udp(&ENDS4, b"payload")));
    let whole = Layers::parse(&frame).expect("it is whole");
    frame.resize(65_535, 0);
    assert_eq!(Layers::parse(&frame), Ok(whole));
    frame.resize(65_536, 0);
    assert_eq!(Layers::parse(&frame), Err(Malformed::BadLength));
    assert_eq!(Layers::parse_quoted(&frame[14..]).map(|layers| layers.end), Ok(whole.end - 14));
    frame.resize(65_536 + 14, 0);
    assert_eq!(Layers::parse_quoted(&frame[14..]), Err(Malformed::BadLength));
}

#[test]
fn transport_lengths_that_contradict_the_packet_are_refused() {
    // Scenario: TCP's data offset and UDP's length take every value. Values that leave
    // out a part of the header or reach beyond the packet are refused.
    let tcp = ethernet(ETHERTYPE_IPV4, &[], &v4(proto::TCP, &tcp(&ENDS4, &[1; 8], b"four")));
    for words in 0..16u8 {
        let mut frame = tcp.clone();
        frame[34 + 12] = words << 4;
        let is_right = (5..=8).contains(&words);
        assert_eq!(
            Layers::parse(&frame).map(|_| ()),
            if is_right { Ok(()) } else { Err(Malformed::BadTransport) },
            "{words} words"
        );
    }
    let udp = ethernet(ETHERTYPE_IPV4, &[], &v4(proto::UDP, &udp(&ENDS4, b"four")));
    for len in 0..40u16 {
        let mut frame = udp.clone();
        frame[34 + 4..34 + 6].copy_from_slice(&len.to_be_bytes());
        let is_right = (8..=12).contains(&len);
        assert_eq!(
            Layers::parse(&frame).map(|_| ()),
            if is_right { Ok(()) } else { Err(Malformed::BadTransport) },
            "{len} bytes"
        );
        // A first fragment says the whole datagram's length.
        frame[14 + 6] = 0x20;
        let expected = if len < 8 { Err(Malformed::BadTransport) } else { Ok(()) };
        // The data are 12 bytes, no multiple of 8: 4 bytes of padding become the
        // packet's.
        frame.extend_from_slice(&[0; 4]);
        assert!(claim_whole(&mut frame, 14));
        assert_eq!(Layers::parse(&frame).map(|_| ()), expected, "{len} bytes of a fragment");
    }
}

#[test]
fn bytes_of_a_later_fragment_are_no_headers() {
    // Scenario: a later fragment of a datagram that begins with destination options. Its
    // bytes look like a further extension header, or a header that does not end; they are
    // data.
    for data in [[17, 0, 0, 0, 0, 0, 0, 0], [17, 255, 0, 0, 0, 0, 0, 0]] {
        let (next, body) =
            chain(&[(proto::FRAGMENT, &[0, 24, 0, 0, 0, 9])], proto::DESTINATION_OPTIONS, &data);
        let layers =
            Layers::parse(&ethernet(ETHERTYPE_IPV6, &[], &v6(next, &body))).expect("it is whole");
        assert_eq!(
            (layers.l4, layers.protocol, layers.fragment_offset),
            (62, proto::DESTINATION_OPTIONS, 24)
        );
        assert!(!layers.has_transport());
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2048))]

    /// Scenario: a frame of any kind, with bytes changed anywhere and cut anywhere. The
    /// frame parses or does not; views stay inside, and no code panics.
    #[test]
    fn a_damaged_frame_is_seen_within_its_bounds(
        kind in any::<prop::sample::Index>(),
        cut in any::<prop::sample::Index>(),
        claims in any::<bool>(),
        damage in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..4),
    ) {
        thread_local! { static KINDS: Vec<Kind> = kinds(); }
        KINDS.with(|kinds| {
            let mut pool = MemoryPool::new(1);
            let kind = &kinds[kind.index(kinds.len())];
            let mut frame = kind.frame[..=cut.index(kind.frame.len())].to_vec();
            if claims {
                claim_whole(&mut frame, kind.l3);
            }
            for (at, value) in damage {
                let at = at.index(frame.len());
                frame[at] = value;
            }
            let _ = see(&mut pool, &frame, &kind.name);
            // An error may quote any bytes.
            let _ = FlowKey::quoted(frame.get(14..).unwrap_or(&[]));
        });
    }
}
