//! The function `vlan`: the tag of each direction, and that no other byte of a packet
//! changes.

use crate::bench::Bench;
use holdfast_functions::catalog;
use holdfast_nf::ConfigError;
use holdfast_wire::zone::Zones;
use serde_json::{Value, json};
use std::collections::BTreeSet;

fn function(config: Value) -> Bench {
    Bench::new(&[("vlan", config)])
}

const THERE: &str = "udp 10.0.0.2:5 > 203.0.113.10:53 len 9";
const BACK: &str = "udp 203.0.113.10:53 > 10.0.0.2:5 len 1";

/// VLAN 300, priority 5 and drop eligibility.
const WHOLE: u16 = 5 << 13 | 1 << 12 | 300;

/// The first rule that matches decides for the whole flow, each direction has its own
/// tag, and later fragments get it too.
#[test]
fn a_flows_packets_leave_with_the_tags_of_its_class() {
    let mut bench = function(json!({
        "classes": {
            "apart": { "forward": { "id": 300, "pcp": 5, "dei": true }, "reverse": { "pcp": 3 } },
            "there": { "forward": { "pcp": 1 } },
        },
        "rules": ["apart udp from any to any port 53", "there tcp"],
    }));
    for _ in 0..2 {
        bench.becomes(THERE, &format!("{THERE} tag {WHOLE}"));
        bench.becomes(BACK, &format!("{BACK} tag {}", 3 << 13));
    }
    let (six, back) =
        ("udp [2001:db8::1]:9 > [2001:db8::2]:53", "udp [2001:db8::2]:53 > [2001:db8::1]:9");
    bench.becomes(six, &format!("{six} tag {WHOLE}"));
    bench.becomes(back, &format!("{back} tag {}", 3 << 13));
    let tcp = "tcp 10.0.0.2:5 > 203.0.113.10:80 SYN";
    bench.becomes(tcp, &format!("{tcp} tag {}", 1 << 13));
    bench.unchanged("tcp 203.0.113.10:80 > 10.0.0.2:5 SYN ACK");
    bench.unchanged("icmp 10.0.0.2 > 203.0.113.10 echo id 3");
    let first = "udp 10.0.0.2:6 > 203.0.113.10:53 len 16 more";
    bench.becomes(first, &format!("{first} tag {WHOLE}"));
    let later = "fragment 10.0.0.2 > 203.0.113.10 udp offset 24 len 8";
    bench.becomes(later, &format!("{later} tag {WHOLE}"));
}

/// A tag that an earlier function has put on keeps what is not said. VLAN 0 is the port's
/// own, and a tag can be taken off.
#[test]
fn an_earlier_tag_is_changed_or_taken_off() {
    for (tag, before, after) in [
        (json!({ "id": 301 }), WHOLE, Some(WHOLE & 0xf000 | 301)),
        (json!({ "id": 0 }), WHOLE, Some(WHOLE & 0xf000)),
        (json!({ "pcp": 2 }), WHOLE, Some(WHOLE & 0x1fff | 2 << 13)),
        (json!({ "dei": false }), WHOLE, Some(WHOLE & !(1 << 12))),
        (json!({ "keep": true }), WHOLE, Some(300)),
        (json!({ "pop": true }), WHOLE, None),
    ] {
        let mut bench =
            function(json!({ "classes": { "one": { "forward": tag } }, "default": "one" }));
        let after = after.map_or(String::new(), |tag| format!(" tag {tag}"));
        bench.becomes(&format!("{THERE} tag {before}"), &format!("{THERE}{after}"));
        bench.unchanged(&format!("{BACK} tag {before}"));
    }
    // A packet without a tag passes a class that takes tags off.
    let mut bench =
        function(json!({ "classes": { "one": { "forward": { "pop": true } } }, "default": "one" }));
    bench.unchanged(THERE);
}

/// The priority that a packet came in with is in its metadata, because routing takes the
/// tag off.
#[test]
fn a_packet_may_keep_the_priority_that_it_came_in_with() {
    let class = json!({ "forward": { "keep": true, "id": 300 }, "reverse": { "keep": true } });
    let mut bench = function(json!({ "classes": { "one": class }, "default": "one" }));
    for priority in 0..16u8 {
        bench.priority = priority;
        let control = u16::from(priority) << 12;
        bench.becomes(THERE, &format!("{THERE} tag {}", control | 300));
        bench.becomes(BACK, &format!("{BACK} tag {control}"));
    }
}

/// The box is told which VLANs the function may choose, and that frames grow.
#[test]
fn the_function_says_what_it_may_do() {
    let of = |config: Value| {
        let function = catalog::configured("vlan", &config, &Zones::default());
        let function = function.unwrap_or_else(|error| panic!("{error}"));
        (function.vlans(), function.added_bytes())
    };
    let class = json!({ "forward": { "id": 300 }, "reverse": { "id": 4094, "pcp": 1 } });
    let own = json!({ "forward": { "id": 0 } });
    let both = json!({ "classes": { "one": class, "own": own }, "default": "one" });
    assert_eq!(of(both), (BTreeSet::from([300, 4094]), 4));
    let pop = json!({ "classes": { "one": { "forward": { "pop": true } } }, "default": "one" });
    assert_eq!(of(pop), (BTreeSet::new(), 0));
}

#[test]
fn mistakes_are_named_with_their_place() {
    let one = |tag: Value| json!({ "classes": { "a": { "forward": tag } }, "default": "a" });
    for (config, path, message) in [
        (
            json!({ "classes": {}, "default": "a" }),
            "classes",
            "there must be at least one class, like { video: { forward: { pcp: 4 } } }",
        ),
        (
            json!({ "classes": { "a": {} }, "default": "a" }),
            "classes.a",
            "a class says something about `forward`, `reverse` or both",
        ),
        (
            one(json!({})),
            "classes.a.forward",
            "nothing is said about the tag: `id`, `pcp`, `dei`, `keep` or `pop`",
        ),
        (
            one(json!({ "id": 4095 })),
            "classes.a.forward.id",
            "4095 is no VLAN: a number up to 4094, or 0 for the port's own",
        ),
        (
            one(json!({ "pcp": 8 })),
            "classes.a.forward.pcp",
            "8 is not a priority of 802.1Q: a number from 0 to 7",
        ),
        (
            one(json!({ "pop": true, "id": 5 })),
            "classes.a.forward.pop",
            "a tag that is taken off has no VLAN and no priority",
        ),
        (
            one(json!({ "keep": true, "dei": false })),
            "classes.a.forward.keep",
            "the priority is the packet's own, or it is `pcp` and `dei`: leave one out",
        ),
        (
            json!({ "classes": { "a": { "reverse": { "pcp": 1 } } } }),
            "",
            "neither `rules` nor a `default` puts a flow into a class",
        ),
        (
            json!({ "classes": { "a": { "reverse": { "pcp": 1 } } }, "default": "b" }),
            "default",
            "unknown class `b`, expected one of `a`",
        ),
    ] {
        let error =
            catalog::build("vlan", &config).err().unwrap_or_else(|| panic!("{config} is refused"));
        let (path, message) = (path.to_owned(), message.to_owned());
        assert_eq!(error, ConfigError { path, message, offset: None }, "{config}");
    }
}
