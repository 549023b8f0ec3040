//! Any text up to its first zero byte as rules of the IPS, in the configuration and in a
//! file, and the bytes behind that as a stream. The rules are refused with an offset in
//! the text, the same in both, or match the same whether the stream is one segment or
//! many.

use etherparse::PacketBuilder;
use holdfast_functions::catalog;
use holdfast_nf::{Chain, Configured, Context, Direction, FlowKey, Position, SharedField};
use holdfast_wire::zone::Zones;
use holdfast_wire::{MemoryPool, PacketPool};
use serde_json::{Value, json};

/// Maximum length of a stream, bytes: that of one packet.
const MOST: usize = 1400;

/// A chain's block is aligned to 16 bytes.
#[repr(align(16))]
struct Block([u8; 1024]);

pub(crate) fn run(data: &[u8]) {
    let end = data.iter().position(|byte| *byte == 0).unwrap_or(data.len());
    let stream = data.get(end + 1..).unwrap_or_default();
    let text = String::from_utf8_lossy(&data[..end]);
    let read = |key: &str, rules: Value| {
        let config = json!({
            key: [rules],
            "variables": { "HOME_NET": "[10.0.0.0/8,!10.0.0.9]", "PORTS": "[80,$MORE]", "MORE": "8000:" },
            "unsupported": "skip",
            "uninspected": "pass",
        });
        catalog::configured("ips", &config, &Zones::default())
    };
    let of_file = read("rule_files", json!({ "path": "local.rules", "text": text }));
    match read("rules", json!(text)) {
        Ok(function) => {
            let offsets = |function: &dyn Configured| -> Vec<_> {
                function.warnings().iter().map(|warning| warning.offset).collect()
            };
            let of_file = of_file.unwrap_or_else(|error| panic!("{error} in a file: {text:?}"));
            assert_eq!(offsets(&*of_file), offsets(&*function), "{text:?}");
            let stream = &stream[..stream.len().min(MOST)];
            let [whole, pieces] =
                [MOST, 1 + stream.len() % 5].map(|size| found(&*function, stream, size));
            // A full table makes the outcome depend on the order of its entries.
            if let (Some(whole), Some(pieces)) = (whole, pieces) {
                assert_eq!(whole, pieces, "{text}");
            }
        }
        Err(error) => {
            let in_file = of_file.err().map(|error| error.offset);
            assert_eq!(in_file, Some(error.offset), "{error} in {text:?}");
            let offset = error.offset.unwrap_or(0);
            assert!(text.is_char_boundary(offset), "{error} at {offset} of {text:?}");
        }
    }
}

/// Names of the rules that match the stream in segments of this size. None: the flow had
/// no room, or is not inspected to its end.
fn found(function: &dyn Configured, stream: &[u8], size: usize) -> Option<Vec<String>> {
    let mut chain = Chain::new(vec![function.bind()]);
    let (mut block, mut packets, mut cx) = (Block([0; 1024]), MemoryPool::new(1), Context::new(1));
    let len = chain.layout().size;
    let mut position = Position::OPENING;
    for (number, bytes) in stream.chunks(size).enumerate() {
        let sequence = 7u32.wrapping_add((number * size) as u32);
        let builder = PacketBuilder::ethernet2([2; 6], [4; 6])
            .ipv4([10, 0, 0, 2], [203, 0, 113, 10], 64)
            .tcp(1000, 80, sequence, 1000)
            .ack(1);
        let mut frame = Vec::with_capacity(builder.size(bytes.len()));
        builder.write(&mut frame, bytes).expect("a vector takes all");
        let mut packet = packets.take().expect("the one buffer is back");
        assert!(packet.copy_from(&frame), "the frame fits a buffer");
        packet.parse().expect("etherparse makes packets");
        cx.begin(1 + number as u64, FlowKey::of(&packet)?, Direction::Forward);
        chain.run(&mut packet, &mut block.0[..len], position, &mut cx);
        packets.put(packet);
        position = Position::START;
    }
    let is_over = !matches!(chain.describe(&block.0[..len]), "" | "alerted");
    let mut names = Vec::new();
    for function in chain.functions_mut() {
        function.shared().visit(&mut |_, field| {
            if let SharedField::Counters(counters) = field {
                let seen = counters.report().filter(|(_, count)| *count > 0);
                names.extend(seen.map(|(name, _)| name.to_owned()));
            }
        });
    }
    let has_room = !names.iter().any(|name| name == "table_full" || name == "matches_not_counted");
    (has_room && !is_over).then_some(names)
}
