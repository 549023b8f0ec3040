//! Lifetimes of flows: their configuration, and the state that decides them.
//!
//! Theory of operation. TCP is tracked ([`Connection`]): a flow is established once its
//! handshake is complete, and closing once both sides have finished or one has reset it.
//! A UDP flow is answered or unanswered. Every other protocol has one timeout. Timeouts
//! count from the flow's latest packet. With the timeout goes the flow's standing
//! ([`Standing`]): where tables are nearly full, it decides which timeouts become
//! shorter.

use crate::tcp::{self, Connection, state};
use holdfast_nf::{ConfigError, Context, Direction, Expected, Packet, Standing};
use holdfast_wire::fault::{Fault, is_planted};
use holdfast_wire::header::proto;
use schemars::JsonSchema;
use serde::Deserialize;

const SECOND: u64 = 1_000_000_000;
/// The longest time-out, seconds: 30 days. A longer one is a mistake.
const MOST: u64 = 30 * 86_400;

/// Lifetimes of flows without a packet, seconds; at most 30 days.
#[derive(Debug, Clone, Copy, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Timeouts {
    /// TCP, established or half closed; 7440 by default. At least 7440 in a `nat` (RFC
    /// 5382, REQ-5).
    pub tcp_established: Option<u64>,
    /// TCP, opening; by default 120 in a `firewall`, else 240. At least 240 in a `nat`
    /// (RFC 5382, REQ-5).
    pub tcp_opening: Option<u64>,
    /// TCP, closed by both sides or reset; by default 120 in a `firewall`, else 240. At
    /// least 240 in a `nat` (RFC 5382, REQ-5; RFC 7857, section 2.2).
    pub tcp_closing: Option<u64>,
    /// UDP, answered; 300 by default. At least 120 in a `nat` (RFC 4787, REQ-5).
    pub udp: Option<u64>,
    /// UDP, not answered yet; by default 120 in a `firewall`, else 300. At least 120 in a
    /// `nat` (RFC 4787, REQ-5).
    pub udp_unanswered: Option<u64>,
    /// ICMP echo; 60 by default. At least 60 in a `nat` (RFC 5508, REQ-2).
    pub icmp: Option<u64>,
    /// Other protocols; 300 by default.
    pub other: Option<u64>,
}

/// Default and minimum of one time-out, seconds, and the RFC that asks for the minimum.
#[derive(Debug, Clone, Copy)]
struct Bounds {
    default: u64,
    least: u64,
    source: &'static str,
}

const fn any(default: u64) -> Bounds {
    Bounds { default, least: 1, source: "" }
}

/// Defaults and minimums of all time-outs of one function.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Limits {
    tcp_established: Bounds,
    tcp_opening: Bounds,
    tcp_closing: Bounds,
    udp: Bounds,
    udp_unanswered: Bounds,
    icmp: Bounds,
    other: Bounds,
}

/// Limits of time-outs in a function that protects: the firewall.
pub(crate) const FIREWALL: Limits = Limits {
    tcp_established: any(7440),
    tcp_opening: any(120),
    tcp_closing: any(120),
    udp: any(300),
    udp_unanswered: any(120),
    icmp: any(60),
    other: any(300),
};

/// Limits of time-outs in the load balancer: without its state a connection cannot go on.
pub(crate) const BALANCER: Limits =
    Limits { tcp_opening: any(240), tcp_closing: any(240), udp_unanswered: any(300), ..FIREWALL };

/// Limits of time-outs in the NAT, for which the RFCs have minimums.
pub(crate) const TRANSLATOR: Limits = Limits {
    // "the value of the 'established connection idle-timeout' MUST NOT be less than 2
    // hours 4 minutes. The value of the 'transitory connection idle-timeout' MUST NOT be
    // less than 4 minutes."
    tcp_established: Bounds { default: 7440, least: 7440, source: "RFC 5382, REQ-5" },
    tcp_opening: Bounds { default: 240, least: 240, source: "RFC 5382, REQ-5" },
    tcp_closing: Bounds { default: 240, least: 240, source: "RFC 5382, REQ-5" },
    // "A NAT UDP mapping timer MUST NOT expire in less than two minutes [...] A default
    // value of five minutes or more [...] is RECOMMENDED."
    udp: Bounds { default: 300, least: 120, source: "RFC 4787, REQ-5" },
    udp_unanswered: Bounds { default: 300, least: 120, source: "RFC 4787, REQ-5" },
    // "An ICMP Query session timer MUST NOT expire in less than 60 seconds."
    icmp: Bounds { default: 60, least: 60, source: "RFC 5508, REQ-2" },
    other: any(300),
};

/// Time-outs in force, ns.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Lifetimes {
    tcp_established: u64,
    tcp_opening: u64,
    tcp_closing: u64,
    udp: u64,
    udp_unanswered: u64,
    icmp: u64,
    other: u64,
}

fn lifetime(name: &str, seconds: Option<u64>, bounds: Bounds) -> Result<u64, ConfigError> {
    let Bounds { default, least, source } = bounds;
    let seconds = seconds.unwrap_or(if name == "udp" && is_planted(Fault::ForgetsUdpEarly) {
        least
    } else {
        default
    });
    let wrong = |text: String| Err(ConfigError::at(format!("timeouts.{name}"), text));
    if seconds < least && !is_planted(Fault::AllowsShortTimeouts) {
        let why = if source.is_empty() { String::new() } else { format!(" ({source})") };
        return wrong(format!(
            "{seconds} s is too short: `{name}` is at least {least} s{why}, and {default} s if it is left out"
        ));
    }
    if seconds > MOST {
        return wrong(format!("{seconds} s is too long: `{name}` is at most {MOST} s, 30 days"));
    }
    Ok(seconds * SECOND)
}

impl Timeouts {
    /// Lifetimes of flows in a function with these limits.
    ///
    /// # Errors
    /// The first time-out out of bounds, as `timeouts.udp`.
    pub(crate) fn within(&self, limits: &Limits) -> Result<Lifetimes, ConfigError> {
        Ok(Lifetimes {
            tcp_established: lifetime(
                "tcp_established",
                self.tcp_established,
                limits.tcp_established,
            )?,
            tcp_opening: lifetime("tcp_opening", self.tcp_opening, limits.tcp_opening)?,
            tcp_closing: lifetime("tcp_closing", self.tcp_closing, limits.tcp_closing)?,
            udp: lifetime("udp", self.udp, limits.udp)?,
            udp_unanswered: lifetime("udp_unanswered", self.udp_unanswered, limits.udp_unanswered)?,
            icmp: lifetime("icmp", self.icmp, limits.icmp)?,
            other: lifetime("other", self.other, limits.other)?,
        })
    }
}

holdfast_nf::flow_state! {
    /// The part of a flow's state that decides how long the flow lives.
    pub struct Tracked {
        /// The connection. A flow that is not TCP uses only its state:
        /// [`state::ANSWERED`] once the other side has answered.
        pub tcp: Connection,
    }
}

impl Tracked {
    /// Applies a packet that has a header, and keeps the flow for its time-out. Returns
    /// false, and does nothing, for a TCP segment that does not fit the connection. A
    /// reset that changes nothing keeps nothing, so that a connection does not live on
    /// its ends' answers to strangers ("TCP RST outbound packets sent as a response to
    /// inbound packets SHOULD NOT refresh the mapping": RFC 7857, section 7.1).
    #[inline]
    pub(crate) fn track(
        &mut self,
        packet: &Packet,
        lifetimes: &Lifetimes,
        cx: &mut Context,
    ) -> bool {
        let is_reverse = cx.direction() == Direction::Reverse;
        let is_tcp = packet.layers.protocol == proto::TCP;
        let before = self.tcp.state;
        if is_tcp && !self.tcp.track(packet, is_reverse) {
            return false;
        }
        if is_reverse && !is_tcp && self.tcp.state == state::NONE {
            self.tcp.state = state::ANSWERED;
        }
        let is_idle = is_tcp
            && self.tcp.state == before
            && tcp::is_reset(packet)
            && !is_planted(Fault::ResetsKeepMappings);
        if is_idle || is_planted(Fault::InsideKeepsNothing) && !is_reverse && self.is_answered() {
            return true;
        }
        if is_tcp
            && matches!(self.tcp.state, state::CLOSED | state::RESET)
            && !is_planted(Fault::ClosesLate)
        {
            cx.ending();
        }
        self.keep(packet.layers.protocol, lifetimes, cx);
        true
    }

    /// As [`Tracked::track`], for a function that lets everything pass. A segment that
    /// does not fit changes nothing, so a reset with a wrong number does not shorten a
    /// flow's life (RFC 7857, section 2.2). From the side that opened the flow it keeps
    /// the flow as any packet does (RFC 4787, REQ-6), unless it is a reset.
    #[inline]
    pub(crate) fn follow(&mut self, packet: &Packet, lifetimes: &Lifetimes, cx: &mut Context) {
        if !self.track(packet, lifetimes, cx)
            && cx.direction() == Direction::Forward
            && (!tcp::is_reset(packet) || is_planted(Fault::ResetsKeepMappings))
        {
            self.keep(packet.layers.protocol, lifetimes, cx);
        }
    }

    /// True if the other side has sent a packet.
    fn is_answered(&self) -> bool {
        !matches!(self.tcp.state, state::NONE | state::OPENING)
    }

    /// Keeps the flow for the time-out of its present state, and says its standing.
    #[inline]
    fn keep(&self, protocol: u8, lifetimes: &Lifetimes, cx: &mut Context) {
        cx.keep(self.lifetime(protocol, lifetimes));
        cx.stand(match self.tcp.state {
            _ if protocol != proto::TCP && !self.is_answered() => Standing::Unreplied,
            _ if protocol != proto::TCP => Standing::Answered,
            state::ESTABLISHED | state::HALF_CLOSED => Standing::Established,
            state::CLOSED | state::RESET => Standing::Closing,
            _ => Standing::HalfOpen,
        });
    }

    fn lifetime(&self, protocol: u8, lifetimes: &Lifetimes) -> u64 {
        match protocol {
            proto::TCP => match self.tcp.state {
                state::ESTABLISHED | state::HALF_CLOSED => lifetimes.tcp_established,
                state::CLOSED | state::RESET => lifetimes.tcp_closing,
                _ => lifetimes.tcp_opening,
            },
            proto::UDP if !self.is_answered() => lifetimes.udp_unanswered,
            proto::UDP => lifetimes.udp,
            proto::ICMP | proto::ICMPV6 => lifetimes.icmp,
            _ => lifetimes.other,
        }
    }

    /// The highest acknowledgement number from the receiver of segments in this
    /// direction.
    pub(crate) fn expected(&self, direction: Direction) -> Option<Expected> {
        self.tcp.expected(direction == Direction::Reverse)
    }

    /// The state in one word.
    pub(crate) fn describe(&self) -> &'static str {
        match self.tcp.state {
            state::NONE => "unanswered",
            state::OPENING => "opening",
            state::ANSWERED => "answered",
            state::ESTABLISHED => "established",
            state::HALF_CLOSED => "half-closed",
            state::CLOSED => "closed",
            _ => "reset",
        }
    }
}
