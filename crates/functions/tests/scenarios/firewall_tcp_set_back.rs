//! The firewall's view of TCP connections that were set back: a failure has taken the
//! latest packets.

use crate::firewall_tcp::{CLIENT, Conversation, SERVER};
use holdfast_wire::DropReason::StateInvalid;

/// Packets that are forgotten when a connection is set back.
const FORGOTTEN: u32 = 10;

/// A connection's latest segments are forgotten, at any point of it: the connection goes
/// on, and does not accept every segment.
#[test]
fn a_connection_that_was_set_back_goes_on() {
    let steps: [(bool, &str); 7] = [
        (true, "SYN seq 100 scale 7"),
        (false, "SYN ACK seq 500 ack 101 scale 7"),
        (true, "ACK seq 101 ack 501"),
        (true, "ACK PSH seq 101 ack 501 len 1400"),
        (false, "ACK PSH seq 501 ack 1501 len 1400"),
        (true, "ACK PSH seq 1501 ack 1901 len 1400"),
        (false, "ACK PSH seq 1901 ack 2901 len 1400"),
    ];
    for kept in 1..steps.len() {
        let mut talk = Conversation::new();
        let mut remembered = None;
        for (at, (is_client, segment)) in steps.iter().enumerate() {
            if at == kept {
                remembered = Some(talk.0.remember());
            }
            if *is_client { talk.client(segment) } else { talk.server(segment) }
        }
        let remembered = remembered.expect("a state to go back to");
        // Without `outdated` the firewall would stick to its old state: the client
        // acknowledges data that the firewall has never seen.
        talk.0.set_back(remembered.clone(), FORGOTTEN);
        talk.client("ACK seq 2901 ack 3301");
        talk.client("ACK PSH seq 2901 ack 3301 len 1400");
        talk.server("ACK seq 3301 ack 4301");
        talk.server("ACK PSH FIN seq 3301 ack 4301 len 10");
        talk.client("ACK FIN seq 4301 ack 3312");
        assert_eq!(talk.0.state(), "closed", "after {kept} of the steps");
        // The server speaks first. A segment absurdly far away is refused: the limit is a
        // window of 65535 << 7 bytes. If only the SYN is remembered, the server's scale
        // is unknown, and the client may use nearly 1 GiB: less would cripple a
        // connection with such a window.
        talk.0.set_back(remembered, FORGOTTEN);
        talk.server_drops("ACK PSH seq 1901 ack 90000000 len 1400");
        talk.server("ACK PSH seq 1901 ack 2901 len 1400");
        talk.client("ACK seq 2901 ack 3301");
        let far = if kept == 1 { 1_500_000_000 } else { 90_000_000 };
        talk.client_drops(&format!("ACK PSH seq {far} ack 3301 len 10"));
        talk.client_drops("ACK PSH seq 2901 ack 90000000 len 10");
        talk.server_drops("ACK PSH seq 90000000 ack 2901 len 10");
        talk.server_drops("RST seq 90000000");
    }
}

/// A connection that was set back may have advanced by the forgotten packets, 65535 bytes
/// each, and have sent a window more, to the byte. The first segment of either side sets
/// the other's window anew, and then the usual bounds hold.
#[test]
fn what_was_forgotten_has_a_bound() {
    let (seen, window) = (FORGOTTEN * 65_535, 65_535);
    for (side, other, own, theirs) in [(CLIENT, SERVER, 101, 501), (SERVER, CLIENT, 501, 101)] {
        let mut talk = Conversation::established();
        let remembered = talk.0.remember();
        talk.0.set_back(remembered.clone(), FORGOTTEN);
        let farthest = own + seen + window;
        talk.0.drops(
            &format!("tcp {side} ACK seq {} ack {theirs} len 1", farthest + 1),
            StateInvalid,
        );
        talk.0.drops(&format!("tcp {side} RST seq {}", farthest + 1), StateInvalid);
        talk.0.drops(&format!("tcp {side} ACK seq {own} ack {}", theirs + seen + 1), StateInvalid);
        talk.0.unchanged(&format!("tcp {side} ACK seq {farthest} ack {theirs} len 1"));
        // As much again may be on its way, and the other side announces its present
        // limit.
        talk.0.set_back(remembered, FORGOTTEN);
        talk.0.unchanged(&format!("tcp {other} ACK seq {theirs} ack {} win 1000", own + seen));
        talk.0.drops(
            &format!("tcp {side} ACK seq {} ack {theirs} len 1", own + seen + 1001),
            StateInvalid,
        );
        talk.0.unchanged(&format!(
            "tcp {side} ACK seq {} ack {} win 500",
            own + seen,
            theirs + 5000
        ));
        talk.0.drops(
            &format!("tcp {other} ACK seq {} ack {} len 1", theirs + 5501, own + seen),
            StateInvalid,
        );
        // All forgotten data is accounted for: the next acknowledgement must cover sent
        // data, as usual.
        talk.0.drops(
            &format!("tcp {other} ACK seq {} ack {} win 1000", theirs + 5000, own + seen + 1),
            StateInvalid,
        );
        talk.0.unchanged(&format!(
            "tcp {side} ACK seq {} ack {} len 1000",
            own + seen,
            theirs + 5000
        ));
        talk.0.unchanged(&format!(
            "tcp {other} ACK seq {} ack {} win 1000",
            theirs + 5000,
            own + seen + 1000
        ));
    }
}

/// A window grew and the growth is forgotten. The first segment is far ahead, because
/// earlier segments were lost while no runtime served the flow. The receiver asks for
/// those again, and they pass.
#[test]
fn segments_that_were_lost_before_a_set_back_come_again() {
    let mut talk = Conversation::new();
    talk.client("SYN seq 100 scale 7");
    talk.server("SYN ACK seq 500 ack 101 win 1000 scale 7");
    talk.client("ACK seq 101 ack 501");
    let remembered = talk.0.remember();
    talk.0.set_back(remembered, FORGOTTEN);
    talk.client("ACK seq 5000000 ack 501 len 1000");
    talk.server("ACK seq 501 ack 101 win 60000");
    talk.client("ACK seq 101 ack 501 len 1000");
    talk.server("ACK seq 501 ack 1101 win 60000");
}

/// The answer to the SYN is forgotten, and an attacker guesses. A segment that does not
/// fit the client's known state does not set the server's either, and the connection goes
/// on.
#[test]
fn a_refused_segment_says_nothing_about_a_connection_that_was_set_back() {
    let mut talk = Conversation::new();
    talk.client("SYN seq 100 scale 7");
    let remembered = talk.0.remember();
    talk.server("SYN ACK seq 500 ack 101 scale 7");
    talk.client("ACK seq 101 ack 501 len 10");
    talk.0.set_back(remembered, FORGOTTEN);
    talk.server_drops("ACK seq 2000000000 ack 90000000 len 10");
    talk.client_drops("ACK seq 2000000000 ack 2000000000 len 10");
    assert_eq!(talk.0.state(), "opening");
    talk.server("ACK seq 501 ack 111 len 10");
    talk.client("ACK seq 111 ack 511 len 10");
    assert_eq!(talk.0.state(), "established");
}

/// SYNs crossed, and no later segment is remembered: the connection is still established.
#[test]
fn a_simultaneous_open_that_was_set_back_goes_on() {
    let mut talk = Conversation::new();
    talk.client("SYN seq 100");
    talk.server("SYN seq 500");
    let remembered = talk.0.remember();
    talk.client("SYN ACK seq 100 ack 501");
    talk.server("SYN ACK seq 500 ack 101");
    talk.client("ACK seq 101 ack 501 len 1000");
    talk.0.set_back(remembered, FORGOTTEN);
    talk.server("ACK seq 501 ack 1101 len 1000");
    talk.client("ACK seq 1101 ack 1501");
    assert_eq!(talk.0.state(), "established");
}
