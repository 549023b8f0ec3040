//! A connection whose two ends speak through a chain, HTTP for the most part.

use crate::bench::Bench;
use crate::words;
use holdfast_wire::DropReason;
use serde_json::Value;

/// An end of the connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum End {
    Client,
    Server,
}
use End::{Client, Server};

/// A connection, and the sequence numbers of the next byte of each end.
pub(crate) struct Conversation {
    pub(crate) bench: Bench,
    /// Another instance of the chain, for flows that move with every packet.
    spare: Option<Bench>,
    ends: [&'static str; 2],
    pub(crate) next: [u32; 2],
}

/// First sequence numbers of the ends: the client's wraps soon.
pub(crate) const CLIENT: u32 = u32::MAX - 40;
pub(crate) const SERVER: u32 = 7000;

/// A response with this body and its Content-Length.
pub(crate) fn ok(body: &str) -> String {
    format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{body}", body.len())
}

/// A request without a body.
pub(crate) fn get(path: &str, host: &str) -> String {
    format!("GET {path} HTTP/1.1\r\nHost: {host}\r\n\r\n")
}

impl Conversation {
    /// An established IPv4 connection.
    pub(crate) fn new(config: &Value) -> Conversation {
        let mut conversation = Conversation::silent(config);
        conversation.shake();
        conversation
    }

    /// An IPv4 connection before its first segment.
    pub(crate) fn silent(config: &Value) -> Conversation {
        Conversation::through("http", config)
    }

    /// As [`Conversation::silent`], through another function.
    pub(crate) fn through(function: &str, config: &Value) -> Conversation {
        Conversation {
            bench: Bench::new(&[(function, config.clone())]),
            spare: None,
            ends: ["10.0.0.2:1000", "203.0.113.10:80"],
            next: [CLIENT, SERVER],
        }
    }

    /// An established IPv6 connection whose state moves to another instance before every
    /// packet.
    pub(crate) fn moving(config: &Value) -> Conversation {
        let mut conversation = Conversation::silent(config);
        conversation.ends = ["[2001:db8::1]:1000", "[2001:db8::2]:80"];
        conversation.spare = Some(Bench::new(&[("http", config.clone())]));
        conversation.shake();
        conversation
    }

    /// Performs the handshake.
    pub(crate) fn shake(&mut self) {
        let [client, server] = self.next;
        self.sends(Client, "SYN", client.wrapping_sub(1), b"").expect("the SYN passes");
        self.sends(Server, "SYN ACK", server.wrapping_sub(1), b"").expect("the answer passes");
        self.sends(Client, "ACK", client, b"").expect("the handshake passes");
    }

    /// Sends a segment that acknowledges the other end's next byte.
    pub(crate) fn sends(
        &mut self,
        end: End,
        flags: &str,
        sequence: u32,
        data: &[u8],
    ) -> Result<(), DropReason> {
        if let Some(spare) = &mut self.spare {
            spare.takes_over(&mut self.bench, true);
            core::mem::swap(spare, &mut self.bench);
        }
        let frame = self.frame(end, flags, sequence, data);
        let out = self.bench.send_frame(&frame)?;
        assert_eq!(out, frame, "nothing is changed");
        Ok(())
    }

    /// The frame of such a segment.
    pub(crate) fn frame(&self, end: End, flags: &str, sequence: u32, data: &[u8]) -> Vec<u8> {
        let (from, to) = (end as usize, 1 - end as usize);
        let text = format!(
            "tcp {} > {} {flags} seq {sequence} ack {}",
            self.ends[from], self.ends[to], self.next[to]
        );
        words::carrying(&text, data)
    }

    /// Sends the next bytes of an end in one segment, whether they pass or not.
    pub(crate) fn says(&mut self, end: End, data: &[u8]) -> Result<(), DropReason> {
        let sequence = self.next[end as usize];
        self.next[end as usize] = sequence.wrapping_add(data.len() as u32);
        self.sends(end, "ACK PSH", sequence, data)
    }

    /// Sends the next bytes of the client, which must pass.
    #[track_caller]
    pub(crate) fn asks(&mut self, data: impl AsRef<[u8]>) {
        let data = data.as_ref();
        if let Err(reason) = self.says(Client, data) {
            panic!("`{}` was dropped: {reason}", String::from_utf8_lossy(data));
        }
    }

    /// Sends the next bytes of the server, which must pass.
    #[track_caller]
    pub(crate) fn answers(&mut self, data: impl AsRef<[u8]>) {
        let data = data.as_ref();
        if let Err(reason) = self.says(Server, data) {
            panic!("`{}` was dropped: {reason}", String::from_utf8_lossy(data));
        }
    }

    /// Sends the next bytes of an end, which must be dropped without an answer.
    #[track_caller]
    pub(crate) fn is_refused(&mut self, end: End, data: impl AsRef<[u8]>) {
        let data = data.as_ref();
        let said = self.says(end, data);
        let text = String::from_utf8_lossy(data);
        assert_eq!((said, self.bench.has_told()), (Err(DropReason::PolicyDenied), false), "{text}");
    }

    /// A counter, over all instances.
    pub(crate) fn count(&mut self, name: &str) -> u64 {
        let spare = self.spare.as_mut().map_or(0, |spare| spare.counter(name));
        self.bench.counter(name) + spare
    }

    /// All counters that are not 0, over all instances.
    pub(crate) fn counts(&mut self) -> Vec<(String, u64)> {
        let mut all = self.bench.counters();
        for (name, count) in self.spare.as_mut().map_or(Vec::new(), Bench::counters) {
            match all.iter_mut().find(|(other, _)| *other == name) {
                Some((_, sum)) => *sum += count,
                None => all.push((name, count)),
            }
        }
        all.sort();
        all
    }

    /// Counters in the order of their names, as text: the expectation of most scenarios.
    pub(crate) fn tally(&mut self) -> String {
        let counts = self.counts();
        let text: Vec<String> =
            counts.iter().map(|(name, count)| format!("{name} {count}")).collect();
        text.join(", ")
    }
}
