//! Answers about packets that chains have rejected: receivers, kinds, rates.

use super::frames::{describe, frame};
use super::{Bench, Released, SECOND};
use holdfast_wire::header::tcp_flags;
use holdfast_wire::nsh::Flags;

const FIN: u8 = tcp_flags::FIN;
const SYN: u8 = tcp_flags::SYN;
const RST: u8 = tcp_flags::RST;
const ACK: u8 = tcp_flags::ACK;

impl Bench {
    /// Refuses a frame in words, which had come in by a port.
    fn refused(&mut self, ingress: u8, words: &str) -> Vec<String> {
        self.refused_bytes(ingress, &frame(ingress, words))
    }

    fn refused_bytes(&mut self, ingress: u8, bytes: &[u8]) -> Vec<String> {
        let mut packet = self.packet(bytes);
        (packet.meta.ingress, packet.meta.flags) = (ingress, Flags::TURNED);
        packet.parse().expect("what came in is well formed");
        self.edge.handle_egress(
            Released::stateless(packet),
            self.now,
            &mut self.out,
            &mut self.pool,
        );
        self.effects(Vec::new())
    }
}

/// A segment without ACK gets a reset that acknowledges all of it, SYN and FIN included.
/// A segment with ACK gets a reset at the number that it acknowledges (RFC 9293, section
/// 3.10.7.1). The reset comes from the segment's destination, by the port and to the
/// station that the segment came from.
#[test]
fn a_segment_gets_a_reset_in_sequence() {
    let mut bench = Bench::new();
    for (flags, len, answer) in [
        (SYN, 0, "flags=20 seq=0 ack=2"),
        (SYN, 5, "flags=20 seq=0 ack=7"),
        (FIN, 5, "flags=20 seq=0 ack=7"),
        (SYN | FIN, 0, "flags=20 seq=0 ack=3"),
        (0, 16, "flags=20 seq=0 ack=17"),
        (SYN | ACK, 0, "flags=4 seq=77 ack=0"),
        (ACK, 1400, "flags=4 seq=77 ack=0"),
        (FIN | ACK, 0, "flags=4 seq=77 ack=0"),
    ] {
        assert_eq!(
            bench.refused(
                0,
                &format!(
                    "tcp 10.0.0.9:1000 > 198.51.100.4:80 flags={flags} ack=77 len={len} ttl=3 df"
                )
            ),
            [format!("0< box0>host9 reset 198.51.100.4:80 > 10.0.0.9:1000 ttl=64 {answer}")]
        );
        assert_eq!(
            bench.refused(
                1,
                &format!(
                    "tcp [2001:db8:f::7]:1000 > [2001:db8:a::9]:80 flags={flags} ack=77 len={len}"
                )
            ),
            [format!(
                "1< box1>host7 reset [2001:db8:a::9]:80 > [2001:db8:f::7]:1000 ttl=64 {answer}"
            )]
        );
    }
    // The acknowledgement wraps around.
    let mut last = frame(0, "tcp 10.0.0.9:1 > 198.51.100.4:80 len=0");
    last[38..42].fill(0xff);
    let sum = last[50..52].iter().fold(0u16, |sum, byte| sum << 8 | u16::from(*byte));
    let sum = holdfast_wire::checksum::Delta::new().bytes(&[0, 0, 0, 1], &[0xff; 4]).apply(sum);
    last[50..52].copy_from_slice(&sum.to_be_bytes());
    assert_eq!(
        bench.refused_bytes(0, &last),
        ["0< box0>host9 reset 198.51.100.4:80 > 10.0.0.9:1 ttl=64 flags=20 seq=0 ack=0"]
    );
}

/// All other packets get an ICMP error, with their own headers in it: "communication
/// administratively prohibited", 3/13 (RFC 1812, section 5.2.7.1) or 1/1 (RFC 4443,
/// section 3.1).
#[test]
fn everything_else_gets_an_icmp_error() {
    let mut bench = Bench::new();
    for (words, quoted) in [
        ("udp 10.0.0.9:5 > 192.0.2.7:53", "udp 10.0.0.9:5 > 192.0.2.7:53 ttl=64"),
        ("ping 10.0.0.9 > 192.0.2.7", "ping 10.0.0.9 > 192.0.2.7 ttl=64"),
        ("proto 10.0.0.9 > 192.0.2.7 ttl=9", "proto-253 10.0.0.9 > 192.0.2.7 ttl=9"),
        ("udp 10.0.0.9:5 > 192.0.2.7:53 more id=6", "udp 10.0.0.9:5 > 192.0.2.7:53 ttl=64"),
    ] {
        let expected = format!("0< box0>host9 admin 10.0.0.1 > 10.0.0.9 ttl=64 about [{quoted}]");
        assert_eq!(bench.refused(0, words), [expected]);
    }
    let quoted = "udp [2001:db8:f::7]:5 > [2001:db8:a::9]:53 ttl=64";
    let expected =
        format!("1< box1>host7 admin 2001:db8:b::1 > 2001:db8:f::7 ttl=64 about [{quoted}]");
    assert_eq!(bench.refused(1, "udp [2001:db8:f::7]:5 > [2001:db8:a::9]:53"), [expected]);
}

/// A tag that a function has put on a packet is not on its answer.
#[test]
fn a_tag_is_not_the_answers() {
    let mut bench = Bench::new();
    for (words, answer) in [
        (
            "tcp 10.0.0.9:1 > 192.0.2.7:80 len=0 vlan=24576",
            "reset 192.0.2.7:80 > 10.0.0.9:1 ttl=64 flags=20 seq=0 ack=2",
        ),
        (
            "udp 10.0.0.9:1 > 192.0.2.7:8 vlan=5",
            "admin 10.0.0.1 > 10.0.0.9 ttl=64 about [udp 10.0.0.9:1 > 192.0.2.7:8 ttl=64]",
        ),
    ] {
        assert_eq!(bench.refused(0, words), [format!("0< box0>host9 {answer}")]);
    }
}

/// Resets and errors are not answered; nor are later fragments, packets to many, packets
/// from unusable addresses, and segments that are damaged or incomplete.
#[test]
fn what_gets_no_answer() {
    let mut bench = Bench::new();
    let mut silent =
        |ingress: u8, words: &str| assert!(bench.refused(ingress, words).is_empty(), "{words}");
    for flags in [RST, RST | ACK, RST | SYN] {
        silent(0, &format!("tcp 10.0.0.9:1 > 192.0.2.7:80 flags={flags}"));
        silent(1, &format!("tcp [2001:db8:f::7]:1 > [2001:db8:a::9]:80 flags={flags}"));
    }
    silent(0, "tcp 10.0.0.9:1 > 192.0.2.7:80 badl4");
    silent(0, "tcp 10.0.0.9:1 > 192.0.2.7:80 more id=5 len=20");
    silent(0, "udp 10.0.0.9:1 > 192.0.2.7:80 at=32 id=5");
    silent(1, "udp [2001:db8:f::7]:1 > [2001:db8:a::9]:2 at=32 id=5");
    silent(0, "udp 10.0.0.9:1 > 224.0.0.5:80");
    silent(0, "udp 10.0.0.9:1 > 255.255.255.255:80");
    silent(1, "udp 192.0.2.7:1 > 10.0.0.255:80");
    silent(0, "tcp 10.0.0.9:1 > 10.0.0.255:80");
    silent(0, "udp 10.0.0.9:1 > 192.0.2.7:80 to=all");
    silent(0, "udp 0.0.0.0:1 > 192.0.2.7:80");
    silent(0, "udp 224.0.0.5:1 > 192.0.2.7:80");
    silent(0, "udp 10.0.0.255:1 > 192.0.2.7:80");
    silent(0, "tcp 127.0.0.1:1 > 192.0.2.7:80");
    silent(0, "udp [::1]:1 > [2001:db8:f::7]:80");
    silent(1, "udp [2001:db8:f::7]:1 > [ff05::2]:80");
    // Sources that are the box's own: nothing comes in from them.
    silent(0, "udp 10.0.0.1:1 > 192.0.2.7:80");
    silent(0, "udp 198.51.100.4:1 > 192.0.2.7:80");
    // An ingress port that does not exist.
    assert!(bench.refused_bytes(7, &frame(0, "udp 10.0.0.9:1 > 192.0.2.7:80")).is_empty());
    assert!(bench.refused(0, "udp 10.0.0.9:1 > 192.0.2.7:80").len() == 1);
}

/// The box's own error about a packet is not answered, whichever chain refuses it.
#[test]
fn an_error_gets_no_answer() {
    let mut bench = Bench::new();
    let packet = bench.packet(&frame(0, "udp 10.0.0.9:5 > 192.0.2.7:53 ttl=1"));
    assert!(
        bench.edge.handle_ingress(0, packet, bench.now, &mut bench.out, &mut bench.pool).is_none()
    );
    let (_, error) = bench.out.transmit.pop().expect("the sender is told");
    let mut error = error.into_inner();
    let words = describe(error.bytes());
    assert!(words.contains("time-exceeded"), "{words}");
    (error.meta.ingress, error.meta.flags) = (1, Flags::TURNED);
    bench.edge.handle_egress(
        Released::stateless(error),
        bench.now,
        &mut bench.out,
        &mut bench.pool,
    );
    assert!(bench.effects(Vec::new()).iter().all(|effect| effect.contains("drop ttl_exceeded")));
}

/// Answers come at 1000 a second and no more; further ones are dropped in silence. Other
/// errors have their own rate.
#[test]
fn there_are_so_many_answers_a_second() {
    let mut bench = Bench::new();
    let words = "tcp 10.0.0.9:1 > 192.0.2.7:80 len=0";
    let flood =
        |bench: &mut Bench| (0..3000).filter(|_| !bench.refused(0, words).is_empty()).count();
    assert_eq!(flood(&mut bench), 1000);
    assert_eq!(
        bench.port(0, "udp 10.0.0.9:5 > 192.0.2.7:33434 ttl=1").len(),
        2,
        "an error, and its reason"
    );
    bench.wait(SECOND / 2);
    assert_eq!(flood(&mut bench), 500);
}
