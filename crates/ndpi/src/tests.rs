//! The library itself, behind the shim.

use super::{Inspected, Library, Table, Verdict};

const PORT: u16 = 40_000;

fn library() -> &'static Library {
    Library::open().expect("nDPI is installed where its shim was built")
}

/// An IPv4 packet of a connection to port 8000, with these data.
fn packet(from_client: bool, sequence: u32, data: &[u8]) -> Vec<u8> {
    let (mut ip, total) = (vec![0x45, 0], (40 + data.len()) as u16);
    ip.extend(total.to_be_bytes());
    ip.extend([0, 1, 0x40, 0, 64, 6, 0, 0]);
    let ends = [([10, 0, 0, 2], PORT), ([10, 0, 1, 2], 8000)];
    let (source, destination) = if from_client { (ends[0], ends[1]) } else { (ends[1], ends[0]) };
    ip.extend(source.0);
    ip.extend(destination.0);
    ip.extend(source.1.to_be_bytes());
    ip.extend(destination.1.to_be_bytes());
    ip.extend(sequence.to_be_bytes());
    ip.extend([0, 0, 0, 1, 0x50, 0x18, 0x10, 0, 0, 0, 0, 0]);
    ip.extend(data);
    ip
}

fn see(table: &mut Table, flow: u64, step: u32, ip: &[u8], is_last: bool) -> Option<Verdict> {
    table.inspect(Inspected { flow, step, ms: 1000 + u64::from(step), ip, ahead: None, is_last })
}

fn number(at: u64) -> u64 {
    at.wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

/// A protocol is known by its first words, and the object of a decided flow is freed.
#[test]
fn a_protocol_is_recognised() {
    let library = library();
    let mut table = library.table(64, 1 << 20);
    let request = packet(true, 1, b"GET / HTTP/1.1\r\nHost: a.example\r\n\r\n");
    let mut found = see(&mut table, number(1), 0, &request, false).expect("a new object");
    assert_eq!((found.app, table.len()), (library.protocol("http").unwrap(), 1));
    assert_eq!(found.category, library.category("WEB").unwrap());
    let answer = packet(false, 1, b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n");
    for step in 1..80 {
        if found.is_final {
            break;
        }
        found = see(&mut table, number(1), step, &answer, false).expect("the object is there");
    }
    assert!(found.is_final);
    assert!(table.is_empty(), "the object is freed");
}

/// An object that has seen other packets than the flow is none of the flow's.
#[test]
fn an_object_goes_with_its_steps() {
    let mut table = library().table(64, 1 << 20);
    let noise = packet(true, 1, b"\x01\x02\x03 nobody knows this");
    assert!(see(&mut table, number(1), 3, &noise, false).is_none(), "it never began here");
    assert!(see(&mut table, number(1), 0, &noise, false).is_some());
    assert!(see(&mut table, number(1), 2, &noise, false).is_none(), "it has missed one");
    assert!(table.is_empty(), "and is of no use any more");
    assert!(see(&mut table, number(1), 0, &noise, false).is_some());
    assert_eq!(see(&mut table, number(1), 1, &noise, true).map(|last| last.is_final), Some(true));
    assert!(see(&mut table, number(2), 0, &noise, false).is_some());
    table.forget(number(2));
    table.forget(number(3));
    assert_eq!((table.len(), table.evicted()), (0, 0));
}

/// Neither flows nor their memory exceed the table's limits.
#[test]
fn a_table_is_bounded() {
    let noise = packet(true, 1, b"\x01\x02\x03 nobody knows this");
    let fill = |flows, bytes| {
        let mut table = library().table(flows, bytes);
        for at in 1..=1000 {
            assert!(see(&mut table, number(at), 0, &noise, false).is_some());
        }
        (table.len(), table.evicted())
    };
    let (len, evicted) = fill(1300, 8 << 20);
    assert_eq!((len, evicted), (1000, 0), "three quarters of its flows have room");
    let (len, evicted) = fill(64, 1 << 20);
    assert_eq!((len, evicted), (64, 936));
    let (len, evicted) = fill(4096, 40_000);
    assert!((10..80).contains(&len) && len as u64 + evicted == 1000, "{len}, {evicted}");
}

/// Bytes that are no packet of any protocol, of every length, end nothing.
#[test]
fn any_payload_is_taken() {
    let mut table = library().table(64, 1 << 20);
    let mut state = 1u64;
    for at in 1..2000u64 {
        let data: Vec<u8> = (0..at % 700)
            .map(|_| {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                (state >> 56) as u8
            })
            .collect();
        let ip = packet(at % 2 == 0, at as u32, &data);
        assert!(see(&mut table, number(at), 0, &ip, at % 3 == 0).is_some());
    }
}

/// Names are those of the library; the unknown protocol is number 0.
#[test]
fn names_have_numbers() {
    let library = library();
    assert_eq!(library.protocols()[0], "Unknown");
    assert_eq!(library.protocol("SSH"), library.protocol("ssh"));
    assert_eq!(library.protocols()[usize::from(library.protocol("SSH").unwrap())], "SSH");
    assert_eq!((library.protocol("nope"), library.category("")), (None, None));
    assert!(library.categories().iter().any(|name| name == "RemoteAccess"));
}
