//! The function's counters, and their names in `status`.

use super::head::Head;
use holdfast_nf::Counters;

/// Indexes of [`NAMES`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Count {
    /// Requests whose header section was complete and well formed.
    Requests = 0,
    /// Responses with a status of 1xx. The four counters after it are those of 2xx to
    /// 5xx.
    Responses = 1,
    /// Messages that are not HTTP/1, or ambiguous.
    Malformed = 6,
    /// Messages with a header section or chunk line above the limit, and requests with a
    /// part that is too long to judge.
    Oversized,
    /// Directions of connections that are refused from some message on.
    Refused,
    /// Segments dropped because earlier bytes or the server's SYN-ACK are missing, or
    /// because they begin before the connection's first byte.
    OutOfOrder,
    /// Segments dropped because servers may disagree on their bytes, or discard them:
    /// fragments, urgent segments, SYNs with data, and data without an acknowledgement or
    /// with one for bytes that were not sent.
    Unreadable,
    /// Connections that became a tunnel, by an upgrade or CONNECT.
    Upgraded,
    /// Connections that are not read, because they began before, or because a weak
    /// protection lost packets of theirs.
    Midstream,
    /// Connections whose responses are not read any more, because of too many outstanding
    /// requests.
    PipelineFull,
}

/// Names of counters in `status`.
pub(super) const NAMES: [&str; 14] = [
    "requests",
    "responses_1xx",
    "responses_2xx",
    "responses_3xx",
    "responses_4xx",
    "responses_5xx",
    "malformed",
    "oversized",
    "refused",
    "out_of_order",
    "unreadable",
    "upgraded",
    "midstream",
    "pipeline_full",
];

/// The class of a status code, from 0 for 1xx to 4 for 5xx. Invalid codes count as 5xx
/// (RFC 9110, section 15).
pub(super) fn class(status: u16) -> usize {
    if (100..600).contains(&status) { usize::from(status / 100 - 1) } else { 4 }
}

/// Names of one host's counters.
const PER_HOST: [&str; 6] = ["requests", "1xx", "2xx", "3xx", "4xx", "5xx"];

/// Hosts with counters of their own. Index 0 stands for all other hosts.
#[derive(Debug)]
pub(super) struct Hosts(pub(super) Vec<String>);

impl Hosts {
    /// The index of the request's host.
    pub(super) fn of(&self, head: &Head) -> usize {
        let name = head.name();
        self.0.iter().position(|host| host.as_bytes() == name).map_or(0, |at| at + 1)
    }

    /// The counters; none if no host is configured.
    pub(super) fn counters(&self) -> Counters {
        let others = (!self.0.is_empty()).then_some("other");
        let hosts = others.into_iter().chain(self.0.iter().map(String::as_str));
        Counters::new(hosts.flat_map(|host| PER_HOST.map(|what| format!("{host} {what}"))))
    }

    /// The index of a host's requests.
    pub(super) fn requests(host: usize) -> usize {
        host * PER_HOST.len()
    }

    /// The index of a host's responses of a class.
    pub(super) fn responses(host: usize, class: usize) -> usize {
        host * PER_HOST.len() + 1 + class
    }
}
