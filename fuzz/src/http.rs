//! Arbitrary bytes as a conversation of HTTP. The same messages are counted and refused,
//! however the bytes are cut into segments.
//!
//! A zero byte ends one end's turn and begins the other's; the client begins.

use holdfast_functions::catalog;
use holdfast_nf::{Chain, Context, Direction, Outcome, Position, SharedField};
use holdfast_wire::{FlowKey, MemoryPool, PacketPool, checksum};
use serde_json::json;

/// Maximum number of bytes of a conversation.
const MOST: usize = 2048;

/// Memory for the function's state, with the alignment that chains require.
#[repr(align(16))]
struct Block([u8; 1024]);

/// A chain with one established connection.
struct Conversation {
    chain: Chain,
    block: Block,
    pool: MemoryPool,
    cx: Context,
    next: [u32; 2],
    refused: [u32; 2],
}

impl Conversation {
    fn new() -> Conversation {
        let config = json!({
            "rules": ["deny path /evil*", "reject host *.test method PUT|TRACE", "deny upgrade"],
            "hosts": ["a.example"],
            "header_bytes": 512,
        });
        let http = catalog::build("http", &config).expect("it is right");
        let mut conversation = Conversation {
            chain: Chain::new(vec![http]),
            block: Block([0; 1024]),
            pool: MemoryPool::new(1),
            cx: Context::new(1),
            next: [u32::MAX - 100, u32::MAX],
            refused: [0; 2],
        };
        for (is_reply, flags) in [(false, 2), (true, 0x12)] {
            conversation.send(is_reply, flags, &[]);
        }
        conversation
    }

    /// Sends the next bytes of an end, or its part of the handshake if `data` is empty.
    fn send(&mut self, is_reply: bool, flags: u8, data: &[u8]) {
        let (from, to) = (usize::from(is_reply), usize::from(!is_reply));
        let mut ends = [[10, 0, 0, 2], [203, 0, 113, 10]];
        let mut ports = [1000u16.to_be_bytes(), 80u16.to_be_bytes()];
        if is_reply {
            ends.reverse();
            ports.reverse();
        }
        let sequence = self.next[from].wrapping_sub(u32::from(data.is_empty()));
        let mut segment = [ports.concat(), sequence.to_be_bytes().to_vec()].concat();
        segment.extend(self.next[to].to_be_bytes());
        segment.extend([0x50, flags, 0xff, 0xff, 0, 0, 0, 0]);
        segment.extend(data);
        let sum = checksum::transport(&ends[0], &ends[1], 6, &segment);
        segment[16..18].copy_from_slice(&sum.to_be_bytes());
        let len = (20 + segment.len()) as u16;
        let mut frame = vec![2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 8, 0, 0x45, 0];
        frame.extend(len.to_be_bytes());
        frame.extend([0, 0, 0x40, 0, 64, 6, 0, 0]);
        frame.extend(ends.concat());
        frame.extend(segment);
        let mut packet = self.pool.take().expect("there is one");
        assert!(packet.copy_from(&frame) && packet.parse().is_ok());
        let direction = if is_reply { Direction::Reverse } else { Direction::Forward };
        self.cx.begin(1, FlowKey::of(&packet).expect("it is TCP"), direction);
        let position = if flags == 2 { Position::OPENING } else { Position::START };
        let size = self.chain.layout().size;
        let outcome =
            self.chain.run(&mut packet, &mut self.block.0[..size], position, &mut self.cx);
        self.refused[from] += u32::from(outcome != Outcome::Forward);
        assert_eq!(packet.bytes(), frame, "nothing is changed");
        self.pool.put(packet);
        self.next[from] = self.next[from].wrapping_add(data.len() as u32);
    }

    /// The counters, the connection's state, and true for each end that is refused.
    fn outcome(&mut self) -> (Vec<u64>, &'static str, [bool; 2]) {
        let mut counts = Vec::new();
        for function in self.chain.functions_mut() {
            function.shared().visit(&mut |_, field| {
                if let SharedField::Counters(counters) = field {
                    counts.extend(counters.report().map(|(_, count)| count));
                }
            });
        }
        let size = self.chain.layout().size;
        let word = self.chain.describe(&self.block.0[..size]);
        (counts, word, self.refused.map(|refused| refused > 0))
    }
}

pub(crate) fn run(data: &[u8]) {
    let data = &data[..data.len().min(MOST)];
    let (mut whole, mut cut) = (Conversation::new(), Conversation::new());
    for (turn, bytes) in data.split(|byte| *byte == 0).enumerate() {
        let is_reply = turn % 2 == 1;
        for part in bytes.chunks(1400) {
            whole.send(is_reply, 0x18, part);
        }
        for part in bytes.chunks(7) {
            cut.send(is_reply, 0x18, part);
        }
        assert_eq!(whole.outcome(), cut.outcome());
    }
}
