//! Frames arrive by ports, runtimes forge frames, and time passes. No part panics and no
//! buffer is lost.

use crate::assembly::WholeBox;
use arbitrary::Arbitrary;
use holdfast_wire::NodeId;

#[derive(Debug, Arbitrary)]
enum Step {
    /// Any bytes arrive by a port.
    Arrives(u8, Vec<u8>),
    /// An IPv4 packet of a client or a server arrives by a port, so that the fuzzer need
    /// not invent one.
    Packet {
        port: u8,
        protocol: Protocol,
        host: u8,
        ends: (u16, u16),
        is_reply: bool,
        rest: Vec<u8>,
    },
    /// A runtime sends a forged frame.
    FromRuntime { number: u8, ethertype: Ethertype, destination: u8, rest: Vec<u8> },
    /// A forged frame arrives at a runtime.
    ForRuntime { number: u8, ethertype: Ethertype, source: u8, rest: Vec<u8> },
    /// Time passes, ms.
    Wait(u8),
}

#[derive(Debug, Arbitrary)]
enum Protocol {
    Icmp,
    Tcp,
    Udp,
    Other(u8),
}

#[derive(Debug, Arbitrary)]
enum Ethertype {
    Nsh,
    Fabric,
    Other(u16),
}

impl Ethertype {
    fn bytes(&self) -> [u8; 2] {
        match self {
            Ethertype::Nsh => holdfast_wire::header::ETHERTYPE_NSH.to_be_bytes(),
            Ethertype::Fabric => holdfast_wire::header::ETHERTYPE_FABRIC.to_be_bytes(),
            Ethertype::Other(number) => number.to_be_bytes(),
        }
    }
}

fn ipv4(
    port: u8,
    protocol: &Protocol,
    host: u8,
    ends: (u16, u16),
    is_reply: bool,
    rest: &[u8],
) -> Vec<u8> {
    let number = match protocol {
        Protocol::Icmp => 1,
        Protocol::Tcp => 6,
        Protocol::Udp => 17,
        Protocol::Other(number) => *number,
    };
    let (inside, outside) =
        ([10, 0, 0, 2 + host % 4], if host < 128 { [198, 51, 100, 20] } else { [203, 0, 113, 10] });
    let (source, destination) = match is_reply {
        false => (inside, outside),
        true => ([198, 51, 100, 20], [198, 51, 100, 4]),
    };
    let mut frame = vec![2, 0, 0, 0, 0, 0xb0 + port % 2, 2, 0, 0, 0, 9, host, 8, 0, 0x45, 0];
    let len = (20 + 4 + rest.len()).min(1400) as u16;
    frame.extend_from_slice(&len.to_be_bytes());
    frame.extend_from_slice(&[0, 1, 0, 0, 64, number, 0, 0]);
    frame.extend_from_slice(&source);
    frame.extend_from_slice(&destination);
    let sum = holdfast_wire::checksum::checksum(&frame[14..34]);
    frame[24..26].copy_from_slice(&sum.to_be_bytes());
    frame.extend_from_slice(&ends.0.to_be_bytes());
    frame.extend_from_slice(&ends.1.to_be_bytes());
    frame.extend_from_slice(rest);
    frame.truncate(14 + usize::from(len));
    frame
}

fn fabric(destination: u8, source: u8, ethertype: &Ethertype, rest: &[u8]) -> Vec<u8> {
    let node = |number: u8| NodeId::new(u16::from(number % 20)).mac();
    let mut frame = Vec::with_capacity(14 + rest.len());
    frame.extend_from_slice(&node(destination));
    frame.extend_from_slice(&node(source));
    frame.extend_from_slice(&ethertype.bytes());
    frame.extend_from_slice(rest);
    frame
}

pub(crate) fn run(data: &[u8]) {
    let Some(steps) = crate::structured::<Vec<Step>>(data) else { return };
    let mut whole = WholeBox::new();
    for step in steps.iter().take(64) {
        match step {
            Step::Arrives(port, bytes) => whole.arrives(*port, bytes),
            Step::Packet { port, protocol, host, ends, is_reply, rest } => {
                whole.arrives(*port, &ipv4(*port, protocol, *host, *ends, *is_reply, rest));
            }
            Step::FromRuntime { number, ethertype, destination, rest } => {
                let source = 16 + number % 2;
                whole.forged_by_runtime(*number, &fabric(*destination, source, ethertype, rest));
            }
            Step::ForRuntime { number, ethertype, source, rest } => {
                whole.forged_for_runtime(
                    *number,
                    &fabric(16 + number % 2, *source, ethertype, rest),
                );
            }
            Step::Wait(milliseconds) => whole.wait(u64::from(*milliseconds)),
        }
        whole.settle();
    }
    whole.finish();
}
