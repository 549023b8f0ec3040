//! The firewall's view of TCP connections.

use crate::bench::Bench;
use holdfast_wire::DropReason::StateInvalid;
use serde_json::json;

pub(crate) const CLIENT: &str = "10.0.0.2:1000 > 203.0.113.10:80";
pub(crate) const SERVER: &str = "203.0.113.10:80 > 10.0.0.2:1000";

/// A bench whose packets are named by the side that sends them.
pub(crate) struct Conversation(pub(crate) Bench);

impl Conversation {
    pub(crate) fn new() -> Conversation {
        Conversation(Bench::new(&[("firewall", json!({ "default": "allow" }))]))
    }

    /// After a handshake: the client's next byte is 101, the server's 501.
    pub(crate) fn established() -> Conversation {
        let mut talk = Conversation::new();
        talk.client("SYN seq 100");
        talk.server("SYN ACK seq 500 ack 101");
        talk.client("ACK seq 101 ack 501");
        assert_eq!(talk.0.state(), "established");
        talk
    }

    #[track_caller]
    pub(crate) fn client(&mut self, segment: &str) {
        self.0.unchanged(&format!("tcp {CLIENT} {segment}"));
    }

    #[track_caller]
    pub(crate) fn server(&mut self, segment: &str) {
        self.0.unchanged(&format!("tcp {SERVER} {segment}"));
    }

    #[track_caller]
    pub(crate) fn client_drops(&mut self, segment: &str) {
        self.0.drops(&format!("tcp {CLIENT} {segment}"), StateInvalid);
    }

    #[track_caller]
    pub(crate) fn server_drops(&mut self, segment: &str) {
        self.0.drops(&format!("tcp {SERVER} {segment}"), StateInvalid);
    }
}

/// An end may expect any sequence number from its highest acknowledgement to the end of
/// the data sent to it. No number is known before it has acknowledged a SYN, and no bound
/// goes back.
#[test]
fn what_an_end_expects_is_known() {
    let mut talk = Conversation::new();
    talk.client("SYN seq 100");
    assert_eq!(talk.0.expected(), [None, None]);
    talk.server("SYN ACK seq 500 ack 101");
    assert_eq!(talk.0.expected(), [Some((101, 101)), None]);
    talk.client("ACK PSH seq 101 ack 501 len 300");
    assert_eq!(talk.0.expected(), [Some((101, 401)), Some((501, 501))]);
    talk.server("ACK seq 501 ack 401");
    talk.server("ACK seq 501 ack 301");
    talk.client("ACK PSH seq 101 ack 501 len 300");
    assert_eq!(talk.0.expected(), [Some((401, 401)), Some((501, 501))]);
}

/// A whole connection: handshake, data both ways, both sides close; each step has its
/// state.
#[test]
pub(crate) fn a_connection_from_its_first_segment_to_its_last() {
    let mut talk = Conversation::new();
    talk.client("SYN seq 100 scale 7");
    assert_eq!(talk.0.state(), "opening");
    talk.server("SYN ACK seq 500 ack 101 scale 7");
    assert_eq!(talk.0.state(), "answered");
    talk.client("ACK seq 101 ack 501");
    assert_eq!(talk.0.state(), "established");
    talk.client("ACK PSH seq 101 ack 501 len 300");
    talk.server("ACK PSH seq 501 ack 401 len 1000");
    talk.client("FIN ACK seq 401 ack 1501");
    assert_eq!(talk.0.state(), "half-closed");
    talk.server("FIN ACK seq 1501 ack 402");
    assert_eq!(talk.0.state(), "closed");
    talk.client("ACK seq 402 ack 1502");
    assert_eq!(talk.0.state(), "closed");
    talk.0.wait(121);
    assert_eq!(talk.0.flows(), 0);
}

/// Only a lone SYN opens a connection. Every other combination of flags from an unknown
/// connection is refused, and answered unless it is a reset, and leaves no state.
#[test]
fn only_a_syn_opens() {
    let mut talk = Conversation::new();
    for flags in [
        "",
        "ACK",
        "FIN",
        "RST",
        "PSH",
        "URG",
        "SYN ACK",
        "SYN FIN",
        "SYN RST",
        "FIN PSH URG",
        "SYN ACK FIN RST PSH URG",
    ] {
        match flags.contains("RST") {
            true => talk.client_drops(flags),
            false => talk.0.rejects(&format!("tcp {CLIENT} {flags}"), StateInvalid),
        }
    }
    assert_eq!(talk.0.flows(), 0);
    talk.client("SYN PSH URG seq 9");
}

/// Segments with no flags, all flags or contradictory flags are refused inside an
/// established connection, which goes on unharmed.
#[test]
fn impossible_flags_are_refused_inside_a_connection() {
    let mut talk = Conversation::established();
    for flags in [
        "",
        "PSH",
        "URG",
        "FIN",
        "FIN PSH URG",
        "SYN FIN",
        "SYN RST",
        "SYN ACK FIN RST PSH URG",
        "SYN FIN ACK",
        "SYN RST ACK",
    ] {
        talk.client_drops(&format!("{flags} seq 101 ack 501"));
        talk.server_drops(&format!("{flags} seq 501 ack 101"));
    }
    assert_eq!(talk.0.state(), "established");
    talk.client("ACK seq 101 ack 501 len 10");
    talk.server("ACK seq 501 ack 111 len 10");
}

/// A reset outside the window, as an attacker guesses it, is refused; a reset at the next
/// expected byte ends the connection.
#[test]
pub(crate) fn resets_must_lie_in_the_window() {
    let mut talk = Conversation::established();
    talk.server_drops("RST seq 70000");
    talk.server_drops("RST seq 4000000000");
    talk.client_drops("RST seq 66000");
    // Inside the window, but it acknowledges a number that was never sent.
    talk.server_drops("RST ACK seq 501 ack 70000");
    talk.server_drops("RST ACK seq 600 ack 3000000000");
    assert_eq!(talk.0.state(), "established");
    talk.server("RST ACK seq 600 ack 101");
    assert_eq!(talk.0.state(), "established");
    talk.server("RST seq 501");
    assert_eq!(talk.0.state(), "reset");
}

/// A refused connection: a reset that acknowledges the SYN passes, and any other is an
/// attacker's.
#[test]
fn a_syn_is_refused_by_a_reset_that_acknowledges_it() {
    let mut talk = Conversation::new();
    talk.client("SYN seq 100");
    talk.server_drops("RST ACK seq 0 ack 102");
    talk.server_drops("RST seq 0");
    assert_eq!(talk.0.state(), "opening");
    talk.server("RST ACK seq 0 ack 101");
    assert_eq!(talk.0.state(), "reset");
}

/// After a reset the client tries again from the same port at once, with a sequence
/// number below the old one.
#[test]
fn a_port_is_used_again_after_a_reset() {
    let mut talk = Conversation::new();
    talk.client("SYN seq 5000");
    talk.server("RST ACK seq 0 ack 5001");
    talk.client("SYN seq 100");
    assert_eq!(talk.0.state(), "opening");
    talk.server("SYN ACK seq 500 ack 101");
    talk.client("ACK seq 101 ack 501");
    assert_eq!(talk.0.state(), "established");
}

/// A SYN-ACK into an established connection, or a SYN of the server, is refused unless it
/// repeats the handshake's own.
#[test]
fn foreign_syns_are_refused_inside_a_connection() {
    let mut talk = Conversation::established();
    talk.server_drops("SYN seq 90000");
    talk.server_drops("SYN seq 4000000000");
    talk.server_drops("SYN ACK seq 90000 ack 101");
    talk.client_drops("SYN ACK seq 90000 ack 501");
    talk.server("SYN ACK seq 500 ack 101");
    talk.client("SYN seq 100");
    assert_eq!(talk.0.state(), "established");
}

/// SYNs and their answers are repeated as often as they are lost.
#[test]
fn a_handshake_is_sent_again() {
    let mut talk = Conversation::new();
    talk.client("SYN seq 100");
    talk.client("SYN seq 100");
    talk.client_drops("SYN seq 100 len 10");
    talk.server_drops("SYN ACK seq 500 ack 201");
    talk.server("SYN ACK seq 500 ack 101");
    talk.server("SYN ACK seq 500 ack 101");
    talk.client("SYN seq 100");
    talk.client("ACK seq 101 ack 501");
    talk.server("SYN ACK seq 500 ack 101");
    assert_eq!(talk.0.state(), "established");
}

/// Both sides send a SYN before either has the other's (RFC 9293, figure 7); both then
/// send a burst as large as the window allows.
#[test]
pub(crate) fn a_simultaneous_open_is_an_open() {
    let mut talk = Conversation::new();
    talk.client("SYN seq 100");
    talk.server("SYN seq 500");
    assert_eq!(talk.0.state(), "opening");
    talk.client("SYN ACK seq 100 ack 501");
    talk.server("SYN ACK seq 500 ack 101");
    assert_eq!(talk.0.state(), "answered");
    talk.client("ACK seq 101 ack 501 len 1000");
    assert_eq!(talk.0.state(), "established");
    talk.client("ACK seq 1101 ack 501 len 1000");
    talk.server("ACK seq 501 ack 101 len 1000");
    talk.server("ACK seq 1501 ack 2101 len 1000");
}

/// A side finishes and the other goes on sending for hours (RFC 9293, section 3.6): the
/// flow lives like an established one.
#[test]
fn a_half_closed_connection_carries_data_and_lives_long() {
    let mut talk = Conversation::established();
    talk.client("FIN ACK seq 101 ack 501");
    talk.0.wait(7000);
    talk.server("ACK seq 501 ack 102 len 1000");
    talk.client("ACK seq 102 ack 1501");
    talk.client("FIN ACK seq 101 ack 1501");
    assert_eq!(talk.0.state(), "half-closed");
    talk.0.wait(7000);
    talk.server("FIN ACK seq 1501 ack 102");
    talk.client("ACK seq 102 ack 1502");
    assert_eq!(talk.0.state(), "closed");
}

/// A port in TIME_WAIT is reused: a SYN above the numbers sent opens anew (RFC 9293,
/// section 3.6.1), but not the server's SYN.
#[test]
pub(crate) fn a_port_in_time_wait_is_used_again_by_a_newer_syn() {
    let mut talk = Conversation::established();
    talk.client("FIN ACK seq 101 ack 501");
    talk.server("FIN ACK seq 501 ack 102");
    talk.client("ACK seq 102 ack 502");
    talk.server_drops("SYN seq 90000");
    assert_eq!(talk.0.state(), "closed");
    talk.client("SYN seq 90000");
    assert_eq!(talk.0.state(), "opening");
    talk.server_drops("ACK seq 502 ack 102 len 1");
    talk.server("SYN ACK seq 7 ack 90001");
    talk.client("ACK seq 90001 ack 8");
    talk.0.wait(7400);
    assert_eq!(talk.0.state(), "established", "the new connection lives as long as any");
}

/// Data beyond the window, acknowledgements of unsent data and segments from long ago are
/// refused.
#[test]
pub(crate) fn segments_must_fit_both_windows() {
    let mut talk = Conversation::new();
    talk.client("SYN seq 100 win 1000");
    talk.server("SYN ACK seq 500 ack 101 win 1000");
    talk.client("ACK seq 101 ack 501 win 1000");
    talk.client("ACK seq 101 ack 501 win 1000 len 1000");
    talk.client_drops("ACK seq 1102 ack 501 win 1000 len 1");
    talk.server_drops("ACK seq 501 ack 1102 win 1000");
    talk.server("ACK seq 501 ack 1101 win 1000 len 500");
    talk.server_drops("ACK seq 4294967290 ack 1101 win 1000 len 1");
    talk.client("ACK seq 1101 ack 1001 win 1000 len 1000");
    // An acknowledgement this old can only be a blind attacker's (RFC 5961, section 5).
    talk.server_drops("ACK seq 1001 ack 4294900000 win 1000 len 1");
}

/// Windows are scaled only if both sides offered it (RFC 7323, section 2.2).
#[test]
pub(crate) fn windows_are_scaled_if_both_sides_scale() {
    for (answer, fits) in [("scale 4", true), ("", false)] {
        let mut talk = Conversation::new();
        talk.client("SYN seq 100 win 1000 scale 4");
        talk.server(&format!("SYN ACK seq 500 ack 101 win 1000 {answer}"));
        talk.client("ACK seq 101 ack 501 win 1000");
        let limit = if fits { 501 + 16 * 1000 } else { 501 + 1000 };
        talk.server(&format!("ACK seq {limit} ack 101 win 1000 len 1"));
        talk.server_drops(&format!("ACK seq {} ack 101 win 1000 len 1", limit + 1));
    }
}

/// Sequence numbers wrap in the middle of a connection.
#[test]
fn sequence_numbers_wrap() {
    let mut talk = Conversation::new();
    talk.client("SYN seq 4294967290");
    talk.server("SYN ACK seq 4294967295 ack 4294967291");
    talk.client("ACK seq 4294967291 ack 0");
    talk.client("ACK seq 4294967291 ack 0 len 1000");
    talk.server("ACK seq 0 ack 995 len 1000");
    talk.client("ACK seq 995 ack 1000 len 10");
    talk.server_drops("RST seq 4294900000");
    talk.server("RST seq 1000");
}

/// A keep-alive repeats the byte before the next one, and a zero window is probed with
/// the byte behind it: both pass.
#[test]
fn keep_alives_and_window_probes_pass() {
    let mut talk = Conversation::established();
    talk.server("ACK seq 501 ack 101 win 0");
    talk.client("ACK seq 100 ack 501");
    talk.client("ACK seq 101 ack 501 len 1");
    talk.server("ACK seq 500 ack 101 win 0");
}

/// TCP Fast Open (RFC 7413): the data in the SYN is not accepted. The answer acknowledges
/// the SYN alone, or there is no answer and the client repeats the SYN without data.
#[test]
fn data_in_a_syn_may_be_refused_by_the_server() {
    let mut talk = Conversation::new();
    talk.client("SYN seq 100 len 200");
    talk.client("SYN seq 100");
    talk.server_drops("SYN ACK seq 500 ack 100");
    talk.server_drops("SYN ACK seq 500 ack 302");
    talk.server("SYN ACK seq 500 ack 101");
    talk.client("ACK seq 101 ack 501 len 200");
    talk.server("ACK seq 501 ack 301");
    let mut talk = Conversation::new();
    talk.client("SYN seq 100 len 200");
    talk.server("SYN ACK seq 500 ack 301");
    talk.client("SYN seq 100 len 200");
    talk.client("ACK seq 301 ack 501");
    assert_eq!(talk.0.state(), "established");
}

/// A server refuses a connection whose SYN carried data: its reset may acknowledge the
/// SYN alone.
#[test]
fn a_reset_may_leave_out_the_data_of_a_syn() {
    let mut talk = Conversation::new();
    talk.client("SYN seq 100 len 200");
    talk.server("RST ACK seq 0 ack 101");
    assert_eq!(talk.0.state(), "reset");
}

/// A segment travels in fragments, of which only the first has a header: the
/// acknowledgement of the whole segment passes.
#[test]
fn a_fragmented_segment_is_acknowledged() {
    let mut talk = Conversation::established();
    talk.client("ACK seq 101 ack 501 len 1004 more");
    talk.0.unchanged("fragment 10.0.0.2 > 203.0.113.10 tcp offset 1024 len 500");
    talk.server("ACK seq 501 ack 1605");
    talk.client("ACK seq 1605 ack 501 len 10");
    talk.server_drops("ACK seq 501 ack 90000");
}

/// A middle that has seen only the SYN lets no data through before the other side has
/// answered.
#[test]
fn nothing_but_the_handshake_passes_before_it_is_complete() {
    let mut talk = Conversation::new();
    talk.client("SYN seq 100");
    talk.client_drops("ACK seq 101 ack 501");
    talk.client_drops("ACK PSH seq 101 ack 0 len 10");
    talk.server_drops("ACK seq 500 ack 101");
    talk.server_drops("FIN ACK seq 500 ack 101");
    assert_eq!(talk.0.state(), "opening");
}

/// A client gives up before any answer and tries again from the same port, with a
/// sequence number above or below. The SYN that the server answers becomes the
/// connection's.
#[test]
pub(crate) fn another_syn_on_an_unanswered_flow_is_tracked() {
    for isn in [70_000u32, 200, 50, 4_000_000_000] {
        let mut talk = Conversation::new();
        talk.client("SYN seq 100");
        talk.client(&format!("SYN seq {isn}"));
        talk.client(&format!("SYN seq {isn}"));
        assert_eq!(talk.0.state(), "opening");
        talk.server_drops(&format!("SYN ACK seq 500 ack {isn}"));
        talk.server_drops(&format!("RST ACK seq 0 ack {isn}"));
        // The server had answered the first SYN, and the answer was lost: it challenges
        // the second.
        talk.server("ACK seq 501 ack 101");
        talk.server(&format!("SYN ACK seq 500 ack {}", isn + 1));
        talk.client(&format!("ACK seq {} ack 501 len 1000", isn + 1));
        assert_eq!(talk.0.state(), "established");
        talk.server(&format!("ACK seq 501 ack {}", isn + 1001));

        let mut talk = Conversation::new();
        talk.client("SYN seq 100");
        talk.client(&format!("SYN seq {isn}"));
        talk.server("SYN ACK seq 500 ack 101");
        talk.client("ACK seq 101 ack 501");
        assert_eq!(talk.0.state(), "established", "the first one had been answered");

        let mut talk = Conversation::new();
        talk.client("SYN seq 100");
        talk.client(&format!("SYN seq {isn}"));
        talk.server(&format!("SYN ACK seq 500 ack {}", isn + 1));
        talk.server("SYN ACK seq 9000 ack 101");
        talk.client("ACK seq 101 ack 9001 len 10");
        assert_eq!(talk.0.state(), "established", "the second one was the older");

        let mut talk = Conversation::new();
        talk.client("SYN seq 100");
        talk.client(&format!("SYN seq {isn}"));
        talk.server("SYN ACK seq 500 ack 101");
        talk.server(&format!("SYN ACK seq 9000 ack {}", isn + 1));
        talk.client("ACK seq 101 ack 501 len 10");
        assert_eq!(talk.0.state(), "established", "of a server that keeps no state");
        talk.server("ACK seq 501 ack 111 len 1000");
        talk.client("ACK seq 111 ack 1501");

        let mut talk = Conversation::new();
        talk.client("SYN seq 100");
        talk.client(&format!("SYN seq {isn}"));
        talk.server(&format!("RST ACK seq 0 ack {}", isn + 1));
        assert_eq!(talk.0.state(), "reset", "the port is closed");
    }
}

/// The client has crashed and connects again from the same port (RFC 9293, section 3.5.1;
/// RFC 5961, section 4). The server challenges its SYN, the client answers with a reset,
/// and its repeated SYN opens the connection with any sequence number.
#[test]
pub(crate) fn a_crashed_client_connects_again() {
    for isn in [90_000, 4_000_000_000u32, 5000] {
        let mut talk = Conversation::established();
        talk.client("ACK seq 101 ack 501 len 300");
        talk.server("ACK seq 501 ack 401 len 1000");
        talk.client(&format!("SYN seq {isn}"));
        assert_eq!(talk.0.state(), "established");
        talk.server("ACK seq 1501 ack 401");
        talk.client_drops(&format!("RST seq {}", 400));
        talk.client("RST seq 401");
        assert_eq!(talk.0.state(), "reset");
        talk.client(&format!("SYN seq {isn}"));
        assert_eq!(talk.0.state(), "opening");
        talk.server_drops("ACK seq 1501 ack 401 len 10");
        talk.server(&format!("SYN ACK seq 7 ack {}", isn + 1));
        talk.client(&format!("ACK seq {} ack 8", isn + 1));
        assert_eq!(talk.0.state(), "established");
    }
}

/// The server has lost the connection too, or finished it unseen: it answers the new SYN
/// at once, and the answer counts.
#[test]
fn a_syn_that_the_server_accepts_opens_anew() {
    let mut talk = Conversation::established();
    talk.client("SYN seq 90000 win 1000 scale 3");
    talk.server_drops("SYN ACK seq 7 ack 90002");
    talk.server("SYN ACK seq 7 ack 90001 win 1000 scale 3");
    assert_eq!(talk.0.state(), "answered");
    talk.client_drops("ACK seq 101 ack 501 len 10");
    talk.client("ACK seq 90001 ack 8 win 1000 len 1000");
    assert_eq!(talk.0.state(), "established");
    talk.server("ACK seq 8008 ack 91001 len 1");
    talk.server_drops("ACK seq 8009 ack 91001 len 1");
    // The server's port is closed now: the refusal passes too, and the client judges it.
    let mut talk = Conversation::established();
    talk.client("SYN seq 90000");
    talk.server_drops("RST ACK seq 0 ack 90000");
    talk.server("RST ACK seq 0 ack 90001");
    assert_eq!(talk.0.state(), "established");
    talk.client("SYN seq 91000");
    talk.server("SYN ACK seq 7 ack 91001");
}

/// An attacker sends SYNs in the client's name: the connection goes on in the same
/// windows, with the same lifetime.
#[test]
pub(crate) fn a_spoofed_syn_changes_nothing() {
    let mut talk = Conversation::established();
    for isn in [90_000u32, 150, 4_000_000_000] {
        talk.client(&format!("SYN seq {isn}"));
        talk.server("ACK seq 501 ack 101");
        talk.server_drops("RST seq 90001");
        talk.server_drops("RST ACK seq 0 ack 102");
        talk.client_drops(&format!("ACK seq {} ack 501 len 1", 101 + 65_535 + 2));
    }
    assert_eq!(talk.0.state(), "established");
    talk.0.wait(7000);
    talk.client("ACK seq 101 ack 501 len 10");
    talk.server("ACK seq 501 ack 111 len 10");
    // The offered SYN no longer counts.
    talk.server_drops("SYN ACK seq 7 ack 4000000001");
}

/// The box does not know a connection that the server still has, as after a restart. The
/// server answers the client's SYN with an acknowledgement of the old connection, the
/// client resets that (RFC 9293, section 3.5.1, figure 9), and its SYN stands.
#[test]
pub(crate) fn a_challenge_answers_a_syn() {
    for old in [4000u32, 101_000, 3_000_000_000] {
        let mut talk = Conversation::new();
        talk.client("SYN seq 100");
        talk.server_drops(&format!("ACK seq 777 ack {old} len 1"));
        talk.server_drops(&format!("FIN ACK seq 777 ack {old}"));
        talk.server(&format!("ACK seq 777 ack {old}"));
        talk.client(&format!("RST seq {old}"));
        assert_eq!(talk.0.state(), "opening");
        talk.client("SYN seq 100");
        talk.server("SYN ACK seq 500 ack 101");
        talk.client("ACK seq 101 ack 501");
        assert_eq!(talk.0.state(), "established");
    }
}

/// An attacker's SYN in the server's name comes first: the server's own answer, and its
/// refusal, still count.
#[test]
fn a_syn_that_crosses_keeps_no_answer_out() {
    let mut talk = Conversation::new();
    talk.client("SYN seq 100");
    talk.server("SYN seq 90000");
    talk.server("SYN ACK seq 500 ack 101");
    talk.client("ACK seq 101 ack 501 len 10");
    assert_eq!(talk.0.state(), "established");
    let mut talk = Conversation::new();
    talk.client("SYN seq 100");
    talk.server("SYN seq 90000");
    talk.server("RST ACK seq 0 ack 101");
    assert_eq!(talk.0.state(), "reset");
    // The SYN had been sent twice, and meanwhile the port was opened.
    talk.server_drops("SYN ACK seq 500 ack 102");
    let mut talk = Conversation::new();
    talk.client("SYN seq 100");
    talk.server("RST ACK seq 0 ack 101");
    talk.server("RST ACK seq 0 ack 101");
    talk.server("SYN ACK seq 500 ack 101");
    talk.client("ACK seq 101 ack 501");
    assert_eq!(talk.0.state(), "established");
}

/// A port in TIME_WAIT is reused with a lower sequence number, which time stamps may
/// allow (RFC 6191). The server decides: it accepts, or it acknowledges the old
/// connection's end, which the client resets.
#[test]
pub(crate) fn a_port_in_time_wait_is_used_again_by_a_lower_syn() {
    let closed = || {
        let mut talk = Conversation::established();
        talk.client("FIN ACK seq 101 ack 501");
        talk.server("FIN ACK seq 501 ack 102");
        talk.client("ACK seq 102 ack 502");
        talk
    };
    let mut talk = closed();
    talk.client("SYN seq 50");
    assert_eq!(talk.0.state(), "opening");
    talk.server("SYN ACK seq 7 ack 51");
    talk.client("ACK seq 51 ack 8");
    talk.0.wait(7400);
    assert_eq!(talk.0.state(), "established", "the new connection lives as long as any");
    let mut talk = closed();
    talk.client("SYN seq 50");
    talk.server("ACK seq 502 ack 102");
    talk.client("RST seq 102");
    talk.client("SYN seq 50");
    assert_eq!(talk.0.state(), "opening");
    // The connection's own late SYN opens nothing, and does not prolong the flow.
    let mut talk = closed();
    talk.client("SYN seq 100");
    assert_eq!(talk.0.state(), "closed");
    talk.0.wait(121);
    assert_eq!(talk.0.flows(), 0);
}

/// A server without state (SYN cookies, RFC 4987, section 3.6) answers a repeated SYN
/// with another sequence number: the client accepts either.
#[test]
pub(crate) fn a_second_answer_with_another_number() {
    for second in [60_000u32, 100, 3_000_000_000] {
        for taken in [500, second] {
            let mut talk = Conversation::new();
            talk.client("SYN seq 100");
            talk.server("SYN ACK seq 500 ack 101");
            talk.client("SYN seq 100");
            talk.server(&format!("SYN ACK seq {second} ack 101"));
            assert_eq!(talk.0.state(), "answered");
            talk.client(&format!("ACK seq 101 ack {} len 1000", taken + 1));
            assert_eq!(talk.0.state(), "established");
            talk.server(&format!("ACK seq {} ack 1101 len 1000", taken + 1));
            talk.client(&format!("ACK seq 1101 ack {}", taken + 1001));
            talk.server_drops(&format!("SYN ACK seq {} ack 101", second + 9000));
        }
    }
}

/// A reset inside the window, but not at the next expected byte, is for the receiver to
/// challenge (RFC 5961, section 3.2): it passes, and the connection's state stays. The
/// sender of a real reset answers the challenge with an exact one.
#[test]
pub(crate) fn a_reset_that_is_not_exact_ends_nothing() {
    let mut talk = Conversation::established();
    talk.client("ACK seq 101 ack 501 len 100");
    talk.server("ACK seq 501 ack 201");
    for inexact in [700, 30_000, 501 + 65_000] {
        talk.server(&format!("RST seq {inexact}"));
        talk.client(&format!("RST seq {inexact}"));
    }
    // A reset that the receiver would not even challenge does not pass.
    talk.client_drops("RST seq 200");
    talk.server_drops("RST seq 500");
    assert_eq!(talk.0.state(), "established");
    talk.0.wait(7000);
    talk.client("ACK seq 201 ack 501");
    talk.server("RST seq 501");
    assert_eq!(talk.0.state(), "reset");
}

/// An attacker has guessed the exact number, but the receiver knew better: new data from
/// the side that seemed to reset prove it.
#[test]
pub(crate) fn data_after_a_reset_prove_that_the_connection_lives() {
    let mut talk = Conversation::established();
    talk.server("ACK seq 501 ack 101 len 100");
    talk.server("RST seq 601");
    assert_eq!(talk.0.state(), "reset");
    // Segments that were on their way.
    talk.server("ACK seq 501 ack 101 len 100");
    talk.client("ACK seq 101 ack 601 len 100");
    assert_eq!(talk.0.state(), "reset");
    talk.server("ACK seq 601 ack 201 len 100");
    assert_eq!(talk.0.state(), "established");
    talk.0.wait(7000);
    talk.client("ACK seq 201 ack 701");
}

/// A connection is established when each side's SYN is acknowledged: a server that goes
/// on talking without the client does not establish it.
#[test]
pub(crate) fn a_handshake_is_complete_when_both_have_answered() {
    let mut talk = Conversation::new();
    talk.client("SYN seq 100");
    talk.server("SYN ACK seq 500 ack 101");
    talk.server("ACK seq 501 ack 101 len 10");
    talk.server("FIN ACK seq 511 ack 101");
    assert_eq!(talk.0.state(), "answered");
    talk.0.wait(121);
    assert_eq!(talk.0.flows(), 0);
}
