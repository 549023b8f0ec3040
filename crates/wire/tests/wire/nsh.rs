//! The fabric's encapsulation, on and off.

use crate::frames::{kinds, packet};
use holdfast_wire::nsh::{self, Outer};
use holdfast_wire::{BUFFER_LEN, HEADROOM, Layers, MemoryPool, Meta, Network, PacketPool};
use proptest::prelude::*;

fn meta() -> impl Strategy<Value = Meta> {
    let path = (0..nsh::MAX_CHAINS, 0..16u8);
    (any::<(u64, u8, u8)>(), path, any::<(u8, u16, u32)>()).prop_map(
        |((stamp, ingress, switch), (chain, priority), (flags, epoch, commit))| Meta {
            stamp,
            ingress,
            switch,
            chain,
            priority,
            flags,
            epoch,
            commit,
        },
    )
}

proptest! {
    /// Scenario: a frame travels the fabric with any metadata and any outer header. Both
    /// come out as they went in, and the frame with them.
    #[test]
    fn all_metadata_comes_out_as_it_went_in(
        meta in meta(), destination: [u8; 6], source: [u8; 6], index: u8, frame in prop::collection::vec(any::<u8>(), 0..1600),
    ) {
        let mut pool = MemoryPool::new(1);
        let mut packet = packet(&mut pool, &frame, 0xa5);
        packet.meta = meta;
        let outer = Outer { destination, source, index };
        prop_assert!(nsh::encapsulate(&mut packet, outer));
        prop_assert_eq!(packet.len(), frame.len() + nsh::ENCAPSULATION_LEN);
        prop_assert_eq!(&packet.bytes()[nsh::ENCAPSULATION_LEN..], &frame[..]);
        // A router would not take the frame for traffic.
        prop_assert_eq!(Layers::parse(packet.bytes()).map(|layers| (layers.network, layers.ethertype)), Ok((Network::Other, 0x894f)));
        packet.meta = Meta::default();
        prop_assert_eq!(nsh::decapsulate(&mut packet), Some(outer));
        prop_assert_eq!(packet.meta, meta);
        prop_assert_eq!(packet.bytes(), &frame[..]);
        pool.put(packet);
    }

    /// Scenario: any bytes come from the fabric, most of them almost right. A refused
    /// packet is left as it was; an accepted one loses exactly the encapsulation.
    #[test]
    fn what_is_not_ours_is_left_alone(
        meta in meta(), index: u8, damage in prop::collection::vec((12usize..22, any::<u8>()), 0..3), cut in 0usize..=60,
    ) {
        let mut pool = MemoryPool::new(1);
        let mut packet = packet(&mut pool, &[0xee; 22], 0xa5);
        packet.meta = meta;
        let outer = Outer { destination: [1; 6], source: [2; 6], index };
        prop_assert!(nsh::encapsulate(&mut packet, outer));
        for (at, value) in damage {
            packet.bytes_mut()[at] = value;
        }
        packet.truncate(cut);
        packet.meta = Meta::default();
        let before = packet.bytes().to_vec();
        match nsh::decapsulate(&mut packet) {
            None => prop_assert_eq!((packet.meta, packet.bytes()), (Meta::default(), &before[..])),
            Some(_) => {
                // RFC 8300, section 2.2: version 0, 6 words; MD type 1; next protocol
                // Ethernet.
                prop_assert_eq!(&before[12..14], &[0x89, 0x4f]);
                prop_assert_eq!((before[14] >> 6, before[15] & 0x3f, before[16], before[17]), (0, 6, 1, 3));
                prop_assert_eq!(packet.bytes(), &before[nsh::ENCAPSULATION_LEN..]);
                // Only the O bit tells whether the packet is traffic.
                prop_assert_eq!(packet.meta.flags & nsh::Flags::OAM != 0, before[14] & 0x20 != 0);
            }
        }
        pool.put(packet);
    }
}

#[test]
fn the_bytes_are_those_of_rfc_8300() {
    // Scenario: one packet with a different value in every field. The bytes are written
    // out here by hand from RFC 8300, sections 2.2 to 2.4.
    let mut pool = MemoryPool::new(1);
    let mut packet = packet(&mut pool, &[0xee, 0xef], 0);
    packet.meta = Meta {
        stamp: 0x0102_0304_0506_0708,
        ingress: 9,
        switch: 10,
        chain: 0x0b0c,
        priority: 0x0d,
        flags: nsh::Flags::OAM | nsh::Flags::LEARN,
        epoch: 0x0d0e,
        commit: 0x0f10_1112,
    };
    let outer = Outer { destination: [0x21; 6], source: [0x22; 6], index: nsh::index::TO_REPLICA };
    assert!(nsh::encapsulate(&mut packet, outer));
    let expected = [
        [0x21; 6].as_slice(),
        &[0x22; 6],
        &[0x89, 0x4f],
        &[0x2f, 0xc6, 1, 3], // O bit, TTL 63, 6 words, MD type 1, Ethernet
        &[nsh::Flags::LEARN, 0xdb, 0x0c, 254],
        &[1, 2, 3, 4, 5, 6, 7, 8],
        &[9, 10, 0x0d, 0x0e],
        &[0x0f, 0x10, 0x11, 0x12],
        &[0xee, 0xef],
    ];
    assert_eq!(packet.bytes(), expected.concat());
    pool.put(packet);
}

#[test]
fn an_encapsulated_frame_of_any_kind_cut_at_any_byte() {
    // Scenario: the fabric cuts an encapsulated frame. Without the whole encapsulation it
    // is refused; otherwise what is left of the frame comes out.
    let mut pool = MemoryPool::new(1);
    for kind in kinds() {
        for cut in 0..=kind.frame.len() + nsh::ENCAPSULATION_LEN {
            let mut packet = packet(&mut pool, &kind.frame, 0);
            packet.meta.stamp = 5;
            assert!(nsh::encapsulate(
                &mut packet,
                Outer { destination: [1; 6], source: [2; 6], index: 255 }
            ));
            packet.truncate(cut);
            let inner = cut.checked_sub(nsh::ENCAPSULATION_LEN);
            assert_eq!(
                nsh::decapsulate(&mut packet).is_some(),
                inner.is_some(),
                "{} at {cut}",
                kind.name
            );
            if let Some(inner) = inner {
                assert_eq!(packet.bytes(), &kind.frame[..inner], "{} at {cut}", kind.name);
            }
            pool.put(packet);
        }
    }
}

#[test]
fn without_headroom_nothing_changes() {
    // Scenario: a packet is encapsulated again and again until its headroom is used up.
    // The first time without room it is refused, unchanged.
    let mut pool = MemoryPool::new(1);
    let mut packet = packet(&mut pool, &[7; 60], 0);
    let outer = Outer { destination: [1; 6], source: [2; 6], index: 1 };
    for _ in 0..HEADROOM / nsh::ENCAPSULATION_LEN {
        assert!(nsh::encapsulate(&mut packet, outer));
    }
    let (before, offset) = (packet.bytes().to_vec(), packet.offset());
    assert!(!nsh::encapsulate(&mut packet, outer));
    assert_eq!((packet.bytes(), packet.offset()), (&before[..], offset));
    assert!(offset < nsh::ENCAPSULATION_LEN && packet.len() < BUFFER_LEN);
    pool.put(packet);
}
