//! What the configuration accepts, and what it says of mistakes.

use holdfast::config;
use proptest::prelude::*;

/// The configuration of the design and the README.
const EXAMPLE: &str = r#"cluster: edge
ports:
  inside:  { device: veth-in,  address: 10.0.0.1/24 }
  outside: { device: veth-out, address: 198.51.100.1/24, gateway: 198.51.100.254 }
chains:
  web:
    functions:
      - firewall: { rules: [ "allow tcp from 10.0.0.0/24 to any port 80,443", "allow icmp from any to any" ], default: deny }
      - nat: { pool: [ 198.51.100.4/31 ] }
    protection: nfvactor          # or { flow: …, shared: …, release: …, rebuild: … }
  rest: { functions: [ forward ], protection: none }
rules:                            # longest prefix match
  - { from: 10.0.0.0/24, proto: tcp, chain: web }
  - { chain: rest }
runtimes: { min: 2, max: 4 }
"#;

fn edited(right: &str, wrong: &str) -> String {
    assert!(EXAMPLE.contains(right), "the example has no {right:?}");
    EXAMPLE.replacen(right, wrong, 1)
}

fn said(text: &str) -> String {
    config::read("edge.yaml", text).err().map(|mistake| mistake.to_string()).unwrap_or_default()
}

/// What is replaced, by what, and all that is said about it: the messages are compared whole, because they are what an operator sees.
const MISTAKES: &[(&str, &str, &str)] = &[
    (
        "cluster: edge",
        "clutser: edge",
        r"edge.yaml:1:1: there is no key `clutser` here: `cluster`, `ports`, `routes`, `chains`, `rules`, `runtimes`, `scaling`, `clusters`, `hosts`, `switches`, `limits`, `detection`, `fabric`, `state`, `etcd`, `control`; did you mean `cluster`?
1 | clutser: edge
  | ^^^^^^^",
    ),
    (
        "cluster: edge\n",
        "",
        r"edge.yaml:1:1: the file has no `cluster`
1 | ports:
  | ^",
    ),
    (
        "cluster: edge",
        "cluster: ../edge",
        r"edge.yaml:1:10: a cluster's name is 1 to 48 letters, digits, `-`, `_` or `.`, and does not begin with `.`
1 | cluster: ../edge
  |          ^^^^^^^",
    ),
    (
        "cluster: edge",
        "cluster: edge\ncluster: edge",
        r"edge.yaml:2:1: the key `cluster` comes twice
2 | cluster: edge
  | ^^^^^^^",
    ),
    (
        "address: 10.0.0.1/24",
        "adress: 10.0.0.1/24",
        r"edge.yaml:3:32: there is no key `adress` here: `device`, `address`, `gateway`, `mtu`, `bfd`; did you mean `address`?
3 |   inside:  { device: veth-in,  adress: 10.0.0.1/24 }
  |                                ^^^^^^",
    ),
    (
        ", address: 198.51.100.1/24",
        "",
        r"edge.yaml:4:3: `outside` has no `address`
4 |   outside: { device: veth-out, gateway: 198.51.100.254 }
  |   ^^^^^^^",
    ),
    (
        "address: 10.0.0.1/24",
        "address: 10.0.0.1/33",
        r"edge.yaml:3:50: the prefix length of `10.0.0.1/33` is not between 0 and 32
3 |   inside:  { device: veth-in,  address: 10.0.0.1/33 }
  |                                                  ^^",
    ),
    (
        "address: 10.0.0.1/24",
        "address: 10.0.0.1",
        r"edge.yaml:3:41: `10.0.0.1` has no prefix length: an address is written like 10.0.0.1/24
3 |   inside:  { device: veth-in,  address: 10.0.0.1 }
  |                                         ^^^^^^^^",
    ),
    (
        "address: 10.0.0.1/24",
        "address: []",
        r"edge.yaml:3:3: port `inside` needs an address, like `address: 10.0.0.1/24`
3 |   inside:  { device: veth-in,  address: [] }
  |   ^^^^^^",
    ),
    (
        "address: 10.0.0.1/24",
        "address: 10.0.0.0/24",
        r"edge.yaml:3:41: `10.0.0.0/24` cannot be a port's address: it is the network's own address
3 |   inside:  { device: veth-in,  address: 10.0.0.0/24 }
  |                                         ^^^^^^^^^^^",
    ),
    (
        "address: 10.0.0.1/24",
        "address: [10.0.0.1/24, 198.51.100.9/25]",
        r"edge.yaml:4:41: the network of 198.51.100.1/24 overlaps 198.51.100.0/25 of port `inside`
4 |   outside: { device: veth-out, address: 198.51.100.1/24, gateway: 198.51.100.254 }
  |                                         ^^^^^^^^^^^^^^^",
    ),
    (
        "address: 10.0.0.1/24",
        "address: {a: b}",
        r"edge.yaml:3:41: an address, or a list of addresses is expected here, not map
3 |   inside:  { device: veth-in,  address: {a: b} }
  |                                         ^",
    ),
    (
        "address: 10.0.0.1/24",
        "address: 10",
        r"edge.yaml:3:41: an address, or a list of addresses is expected here, not integer `10`
3 |   inside:  { device: veth-in,  address: 10 }
  |                                         ^^",
    ),
    (
        "device: veth-out",
        "device: veth-in",
        r"edge.yaml:4:22: port `inside` has this device already
4 |   outside: { device: veth-in, address: 198.51.100.1/24, gateway: 198.51.100.254 }
  |                      ^^^^^^^",
    ),
    (
        "device: veth-out",
        "device: \"dpdk:\"",
        r#"edge.yaml:4:22: `dpdk:DEVICE` names a network card, like `dpdk:0000:01:00.0`, or one of DPDK's virtual devices
4 |   outside: { device: "dpdk:", address: 198.51.100.1/24, gateway: 198.51.100.254 }
  |                      ^^^^^^^"#,
    ),
    (
        "device: veth-out",
        "device: \"a very long name\"",
        r#"edge.yaml:4:22: `a very long name` is not the name of a Linux interface: 1 to 15 characters, as `ip link` lists them
4 |   outside: { device: "a very long name", address: 198.51.100.1/24, gateway: 198.51.100.254 }
  |                      ^^^^^^^^^^^^^^^^^^"#,
    ),
    (
        "gateway: 198.51.100.254",
        "gateway: 198.51.101.254",
        r"edge.yaml:4:67: no port's network contains 198.51.101.254: `10.0.0.0/24`, `198.51.100.0/24`
4 |   outside: { device: veth-out, address: 198.51.100.1/24, gateway: 198.51.101.254 }
  |                                                                   ^^^^^^^^^^^^^^",
    ),
    (
        "gateway: 198.51.100.254",
        "gateway: 10.0.0.9",
        r"edge.yaml:4:67: the gateway 10.0.0.9 is in a network of port `inside`, not of port `outside`
4 |   outside: { device: veth-out, address: 198.51.100.1/24, gateway: 10.0.0.9 }
  |                                                                   ^^^^^^^^",
    ),
    (
        "address: 10.0.0.1/24",
        "address: 10.0.0.1/24, gateway: 10.0.0.9",
        r"edge.yaml:4:67: port `inside` has an IPv4 gateway already: use `routes` for all but one
4 |   outside: { device: veth-out, address: 198.51.100.1/24, gateway: 198.51.100.254 }
  |                                                                   ^^^^^^^^^^^^^^",
    ),
    (
        "gateway: 198.51.100.254",
        "gateway: 198.51.100.1",
        r"edge.yaml:4:67: 198.51.100.1 is the box's own address, not another router's
4 |   outside: { device: veth-out, address: 198.51.100.1/24, gateway: 198.51.100.1 }
  |                                                                   ^^^^^^^^^^^^",
    ),
    (
        "gateway: 198.51.100.254",
        "mtu: 20",
        r"edge.yaml:4:63: an MTU of 20 is too small: at least 68 is needed
4 |   outside: { device: veth-out, address: 198.51.100.1/24, mtu: 20 }
  |                                                               ^^",
    ),
    (
        "chains:\n",
        "routes:\n  - { to: 10.0.0.0/24, via: 198.51.100.9 }\nchains:\n",
        r"edge.yaml:6:11: 10.0.0.0/24 is connected to port `inside` itself: it needs no route
6 |   - { to: 10.0.0.0/24, via: 198.51.100.9 }
  |           ^^^^^^^^^^^",
    ),
    (
        "chains:\n",
        "routes:\n  - { to: 192.0.2.1/24, via: 198.51.100.9 }\nchains:\n",
        r"edge.yaml:6:11: `192.0.2.1/24` has bits set beyond its length; did you mean `192.0.2.0/24`?
6 |   - { to: 192.0.2.1/24, via: 198.51.100.9 }
  |           ^^^^^^^^^^^^",
    ),
    (
        "chains:\n",
        "routes: [{ to: \"2001:db8::/32\", via: 198.51.100.9 }]\nchains:\n",
        r#"edge.yaml:5:38: 2001:db8::/32 and its next router 198.51.100.9 are of different address families
5 | routes: [{ to: "2001:db8::/32", via: 198.51.100.9 }]
  |                                      ^^^^^^^^^^^^"#,
    ),
    (
        "- nat:",
        "- nta:",
        r"edge.yaml:9:9: there is no function `nta`: `firewall`, `nat`, `load_balancer`, `monitor`, `forward`, `packet_limit`, `qos_marker`; did you mean `nat`?
9 |       - nta: { pool: [ 198.51.100.4/31 ] }
  |         ^^^",
    ),
    (
        "- nat: { pool: [ 198.51.100.4/31 ] }",
        "- nat:\n        pool: [ 198.51.100.4/31 ]",
        r"edge.yaml:10:9: `pool` stands beside `nat`, not below it: indent it further, or write `nat: { … }`
10 |         pool: [ 198.51.100.4/31 ]
   |         ^^^^",
    ),
    (
        "- nat: { pool: [ 198.51.100.4/31 ] }",
        "- nat: { pool: [ 198.51.100.5/31 ] }",
        r"edge.yaml:9:24: nat: `198.51.100.5/31` has bits set beyond its length; did you mean `198.51.100.4/31`?
9 |       - nat: { pool: [ 198.51.100.5/31 ] }
  |                        ^^^^^^^^^^^^^^^",
    ),
    (
        "- nat: { pool: [ 198.51.100.4/31 ] }",
        "- nat",
        r"edge.yaml:9:9: nat: missing field `pool`
9 |       - nat
  |         ^^^",
    ),
    (
        "- nat: { pool: [ 198.51.100.4/31 ] }",
        "- nat: { pool: [ 198.51.100.0/31 ] }",
        r"edge.yaml:9:24: nat: 198.51.100.0/31 contains 198.51.100.1, the box's own address on port `outside`: what is sent there never reaches a chain
9 |       - nat: { pool: [ 198.51.100.0/31 ] }
  |                        ^^^^^^^^^^^^^^^",
    ),
    (
        "- nat: { pool: [ 198.51.100.4/31 ] }",
        "- nat: { pool: [ 198.51.100.254 ] }",
        r"edge.yaml:9:24: nat: 198.51.100.254/32 contains 198.51.100.254, a router on port `outside`: the box would take that address for its own and never reach the router
9 |       - nat: { pool: [ 198.51.100.254 ] }
  |                        ^^^^^^^^^^^^^^",
    ),
    (
        "chains:\n  web:",
        "routes:\n  - { to: 203.0.113.0/24, via: 198.51.100.5 }\nchains:\n  web:",
        r"edge.yaml:11:24: nat: 198.51.100.4/31 contains 198.51.100.5, a router on port `outside`: the box would take that address for its own and never reach the router
11 |       - nat: { pool: [ 198.51.100.4/31 ] }
   |                        ^^^^^^^^^^^^^^^",
    ),
    (
        "[ forward ]",
        "[ nat: { pool: [ 198.51.100.5 ] } ]",
        r"edge.yaml:9:24: nat: 198.51.100.4/31 overlaps 198.51.100.5/32 of `nat` in chain `rest`
9 |       - nat: { pool: [ 198.51.100.4/31 ] }
  |                        ^^^^^^^^^^^^^^^",
    ),
    (
        "- nat: { pool: [ 198.51.100.4/31 ] }",
        "- qos_marker: { classes: { voice: { dscp: ef }, bulk: { reverse: { dscp: cs9 } } }, default: voice }",
        r"edge.yaml:9:80: qos_marker: `cs9` is not the name of a DSCP: `df`, `cs0` to `cs7`, `af11` to `af43`, `ef`, `va`, `le`, or a number from 0 to 63
9 |       - qos_marker: { classes: { voice: { dscp: ef }, bulk: { reverse: { dscp: cs9 } } }, default: voice }
  |                                                                                ^^^",
    ),
    (
        "- nat: { pool: [ 198.51.100.4/31 ] }",
        "- qos_marker: { classes: { voice: { dscp: ef }, bulk: { dscp: -1 } }, default: voice }",
        r"edge.yaml:9:69: qos_marker: -1 is not a DSCP: a number from 0 to 63, six bits without those of ECN
9 |       - qos_marker: { classes: { voice: { dscp: ef }, bulk: { dscp: -1 } }, default: voice }
  |                                                                     ^^",
    ),
    (
        "- nat: { pool: [ 198.51.100.4/31 ] }",
        "- qos_marker: { classes: { voice: { dscp: ef } }, rules: [ \"voise udp to any port 5060\" ] }",
        r#"edge.yaml:9:67: qos_marker: unknown class `voise`, expected one of `voice`; did you mean `voice`?
9 |       - qos_marker: { classes: { voice: { dscp: ef } }, rules: [ "voise udp to any port 5060" ] }
  |                                                                   ^^^^^"#,
    ),
    (
        "- nat: { pool: [ 198.51.100.4/31 ] }",
        "- qos_marker: { classes: { a: { demote: { to: b, after_packets: 9 } }, b: { demote: { to: a, after_bytes: 9 } } }, default: a }",
        r"edge.yaml:9:53: qos_marker: from there a flow would come back to `a`
9 |       - qos_marker: { classes: { a: { demote: { to: b, after_packets: 9 } }, b: { demote: { to: a, after_bytes: 9 } } },
  |                                                     ^",
    ),
    (
        "[ forward ]",
        "[]",
        r"edge.yaml:11:11: chain `rest` has no function: `forward` lets everything pass
11 |   rest: { functions: [], protection: none }
   |           ^^^^^^^^^",
    ),
    (
        "[ forward ]",
        "forward",
        r"edge.yaml:11:22: a list is expected here, like `[ … ]`
11 |   rest: { functions: forward, protection: none }
   |                      ^^^^^^^",
    ),
    (
        "allow icmp from",
        "allwo icmp from",
        r#"edge.yaml:8:80: firewall: `allwo` is not an action: a rule begins with `allow` or `deny`
8 |       - firewall: { rules: [ "allow tcp from 10.0.0.0/24 to any port 80,443", "allwo icmp from any to any" ], default: d
  |                                                                                ^^^^^"#,
    ),
    (
        "80,443",
        "80,44300000",
        r#"edge.yaml:8:73: firewall: `44300000` is not a port from 0 to 65535
8 |       - firewall: { rules: [ "allow tcp from 10.0.0.0/24 to any port 80,44300000", "allow icmp from any to any" ], defau
  |                                                                         ^^^^^^^^"#,
    ),
    (
        "default: deny",
        "defualt: deny",
        r#"edge.yaml:8:111: firewall: unknown field `defualt`, expected one of `rules`, `default`, `timeouts`; did you mean `default`?
8 |       - firewall: { rules: [ "allow tcp from 10.0.0.0/24 to any port 80,443", "allow icmp from any to any" ], defualt: d
  |                                                                                                               ^^^^^^^"#,
    ),
    (
        "default: deny",
        "default: dney",
        r#"edge.yaml:8:120: firewall: unknown variant `dney`, expected `allow` or `deny`; did you mean `deny`?
8 |  any port 80,443", "allow icmp from any to any" ], default: dney }
  |                                                             ^^^^"#,
    ),
    (
        "protection: nfvactor ",
        "protection: nfvactro ",
        r"edge.yaml:10:17: there is no protection `nfvactro`: `none`, `nfactor`, `nfvactor`, `reinforce`, `rescue`; did you mean `nfvactor`?
10 |     protection: nfvactro          # or { flow: …, shared: …, release: …, rebuild: … }
   |                 ^^^^^^^^",
    ),
    (
        "protection: nfvactor ",
        "protection: dal ",
        r"edge.yaml:10:17: the protection `dal` is not available in this version: `none`, `nfactor`, `nfvactor`, `reinforce`, `rescue`
10 |     protection: dal          # or { flow: …, shared: …, release: …, rebuild: … }
   |                 ^^^",
    ),
    (
        "protection: nfvactor ",
        "protection: { preset: rescue, release: source } ",
        r"edge.yaml:10:44: with `rescue` a packet leaves at once, or when its flow is written back: `release` is `at-once` or `write-back`
10 |     protection: { preset: rescue, release: source }          # or { flow: …, shared: …, release: …, rebuild: … }
   |                                            ^^^^^^",
    ),
    (
        "protection: nfvactor ",
        "protection: { preset: rescue, write_back_ms: 5 } ",
        r"edge.yaml:10:35: packets wait for the write-back, so it is never put off: leave `write_back_ms` out, or `release: at-once`
10 |     protection: { preset: rescue, write_back_ms: 5 }          # or { flow: …, shared: …, release: …, rebuild: … }
   |                                   ^^^^^^^^^^^^^",
    ),
    (
        "protection: nfvactor ",
        "protection: { preset: nfvactor, write_back_packets: 5 } ",
        r"edge.yaml:10:37: only the preset `rescue` writes back: leave `write_back_packets` out
10 |     protection: { preset: nfvactor, write_back_packets: 5 }          # or { flow: …, shared: …, release: …, rebuild: … }
   |                                     ^^^^^^^^^^^^^^^^^^",
    ),
    (
        "protection: nfvactor ",
        "protection: { flow: paged, release: at-once, write_back_packets: 0 } ",
        r"edge.yaml:10:70: a flow is written back after 1 packet or more
10 |     protection: { flow: paged, release: at-once, write_back_packets: 0 }          # or { flow: …, shared: …, release: …,
   |                                                                      ^",
    ),
    (
        "protection: nfvactor ",
        "protection: { preset: rescue, release: at-once, write_back_ms: 0 } ",
        r"edge.yaml:10:68: flows are written back every 1 to 10000 milliseconds
10 |     protection: { preset: rescue, release: at-once, write_back_ms: 0 }          # or { flow: …, shared: …, release: …, r
   |                                                                    ^",
    ),
    (
        "protection: nfvactor ",
        "protection: { flow: paged, rebuild: replica } ",
        r"edge.yaml:10:41: what is lost comes back from the pages at the state server: `rebuild: pages`
10 |     protection: { flow: paged, rebuild: replica }          # or { flow: …, shared: …, release: …, rebuild: … }
   |                                         ^^^^^^^",
    ),
    (
        "protection: nfvactor ",
        "protection: { flow: paged, shared: memory } ",
        r"edge.yaml:10:40: flows that others get need `shared: state-server` or `partitioned`: what is left in a dead runtime's memory may be given twice
10 |     protection: { flow: paged, shared: memory }          # or { flow: …, shared: …, release: …, rebuild: … }
   |                                        ^^^^^^",
    ),
    (
        "protection: nfvactor ",
        "protection: { flow: replica, release: write-back } ",
        r"edge.yaml:10:43: nothing is written back to a replica: `release: replica`, or `flow: paged`
10 |     protection: { flow: replica, release: write-back }          # or { flow: …, shared: …, release: …, rebuild: … }
   |                                           ^^^^^^^^^^",
    ),
    (
        "protection: nfvactor ",
        "protection: { preset: nfvactor, release: sorce } ",
        r"edge.yaml:10:46: `sorce` is no answer to `release`: `at-once`, `replica`, `source`, `auto`, `standby`, `write-back`; did you mean `source`?
10 |     protection: { preset: nfvactor, release: sorce }          # or { flow: …, shared: …, release: …, rebuild: … }
   |                                              ^^^^^",
    ),
    (
        "protection: nfvactor ",
        "protection: { preset: nfvactor, relase: source } ",
        r"edge.yaml:10:37: there is no key `relase` here: `preset`, `flow`, `shared`, `release`, `rebuild`, `snapshot_every`, `hold_s`, `write_back_ms`, `write_back_packets`, `checkpoint_ms`, `log_mib`, `level`; did you mean `release`?
10 |     protection: { preset: nfvactor, relase: source }          # or { flow: …, shared: …, release: …, rebuild: … }
   |                                     ^^^^^^",
    ),
    (
        "protection: nfvactor ",
        "protection: { preset: nfvactor, hold_s: 5 } ",
        r"edge.yaml:10:37: only with `shared: state-server` do numbers rest: leave `hold_s` out
10 |     protection: { preset: nfvactor, hold_s: 5 }          # or { flow: …, shared: …, release: …, rebuild: … }
   |                                     ^^^^^^",
    ),
    (
        "protection: nfvactor ",
        "protection: { preset: nfvactor, shared: state-server, hold_s: 5000 } ",
        r"edge.yaml:10:67: a number rests for between 0 and 3600 seconds
10 |     protection: { preset: nfvactor, shared: state-server, hold_s: 5000 }          # or { flow: …, shared: …, release: …,
   |                                                                   ^^^^",
    ),
    (
        "protection: nfvactor ",
        "protection: { flow: dal, release: stable } ",
        r"edge.yaml:10:25: `flow: dal` is not available in this version: `memory`, `replica`, `snapshot`, `standby`, `paged`
10 |     protection: { flow: dal, release: stable }          # or { flow: …, shared: …, release: …, rebuild: … }
   |                         ^^^",
    ),
    (
        "protection: nfvactor ",
        "protection: { flow: memory, release: replica } ",
        r"edge.yaml:10:42: without a replica nobody says that the state is saved: `flow: replica`, or `release: at-once`
10 |     protection: { flow: memory, release: replica }          # or { flow: …, shared: …, release: …, rebuild: … }
   |                                          ^^^^^^^",
    ),
    (
        "protection: nfvactor ",
        "protection: { preset: nfactor, snapshot_every: 0 } ",
        r"edge.yaml:10:52: a snapshot is due after 1 packet or more
10 |     protection: { preset: nfactor, snapshot_every: 0 }          # or { flow: …, shared: …, release: …, rebuild: … }
   |                                                    ^",
    ),
    (
        "protection: nfvactor ",
        "protection: { preset: nfvactor, snapshot_every: 5 } ",
        r"edge.yaml:10:37: only the preset `nfactor` has snapshots: leave `snapshot_every` out
10 |     protection: { preset: nfvactor, snapshot_every: 5 }          # or { flow: …, shared: …, release: …, rebuild: … }
   |                                     ^^^^^^^^^^^^^^",
    ),
    (
        "protection: nfvactor ",
        "protection: { flow: snapshot, release: source } ",
        r"edge.yaml:10:44: a snapshot is older than what it would have to hold back: `release: at-once`, or `flow: replica`
10 |     protection: { flow: snapshot, release: source }          # or { flow: …, shared: …, release: …, rebuild: … }
   |                                            ^^^^^^",
    ),
    (
        "protection: nfvactor ",
        "protection: { preset: reinforce, level: lokal } ",
        r"edge.yaml:10:45: `lokal` is no level: `local`, `remote`, `local+remote`; did you mean `local`?
10 |     protection: { preset: reinforce, level: lokal }          # or { flow: …, shared: …, release: …, rebuild: … }
   |                                             ^^^^^",
    ),
    (
        "protection: nfvactor ",
        "protection: { preset: nfvactor, level: local } ",
        r"edge.yaml:10:37: only the preset `reinforce` has levels: leave `level` out
10 |     protection: { preset: nfvactor, level: local }          # or { flow: …, shared: …, release: …, rebuild: … }
   |                                     ^^^^^",
    ),
    (
        "protection: nfvactor ",
        "protection: { preset: reinforce, level: local, checkpoint_ms: 5 } ",
        r"edge.yaml:10:52: a local standby shares its runtime's memory and needs neither log nor checkpoints: leave `checkpoint_ms` out
10 |     protection: { preset: reinforce, level: local, checkpoint_ms: 5 }          # or { flow: …, shared: …, release: …, re
   |                                                    ^^^^^^^^^^^^^",
    ),
    (
        "protection: nfvactor ",
        "protection: { preset: reinforce, level: local, log_mib: 5 } ",
        r"edge.yaml:10:52: a local standby shares its runtime's memory and needs neither log nor checkpoints: leave `log_mib` out
10 |     protection: { preset: reinforce, level: local, log_mib: 5 }          # or { flow: …, shared: …, release: …, rebuild:
   |                                                    ^^^^^^^",
    ),
    (
        "protection: nfvactor ",
        "protection: 7 ",
        r"edge.yaml:10:17: a protection's name, or a map with `preset` is expected here, not integer `7`
10 |     protection: 7          # or { flow: …, shared: …, release: …, rebuild: … }
   |                 ^",
    ),
    (
        "from: 10.0.0.0/24, proto",
        "from: 10.0.0.1/24, proto",
        r"edge.yaml:13:13: `10.0.0.1/24` has bits set beyond its length; did you mean `10.0.0.0/24`?
13 |   - { from: 10.0.0.1/24, proto: tcp, chain: web }
   |             ^^^^^^^^^^^",
    ),
    (
        "proto: tcp",
        "proto: tpc",
        r"edge.yaml:13:33: `tpc` is not a protocol: one of any, ip, tcp, udp, icmp, or a number; did you mean `tcp`?
13 |   - { from: 10.0.0.0/24, proto: tpc, chain: web }
   |                                 ^^^",
    ),
    (
        "proto: tcp",
        "proto: icmp, ports: 80",
        r"edge.yaml:13:46: `icmp` has no ports
13 |   - { from: 10.0.0.0/24, proto: icmp, ports: 80, chain: web }
   |                                              ^^",
    ),
    (
        "proto: tcp",
        "proto: tcp, ports: \"80-70\"",
        r#"edge.yaml:13:46: `80-70` ends before it begins; did you mean `70-80`?
13 |   - { from: 10.0.0.0/24, proto: tcp, ports: "80-70", chain: web }
   |                                              ^^^^^"#,
    ),
    (
        "from: 10.0.0.0/24, proto: tcp",
        "from: 10.0.0.0/24, to: \"2001:db8::/32\"",
        r#"edge.yaml:13:30: 10.0.0.0/24 and 2001:db8::/32 are of different address families: nothing would match
13 |   - { from: 10.0.0.0/24, to: "2001:db8::/32", chain: web }
   |                              ^^^^^^^^^^^^^^^"#,
    ),
    (
        "chain: web",
        "chain: wbe",
        r"edge.yaml:13:45: there is no chain `wbe`: `rest`, `web`; did you mean `web`?
13 |   - { from: 10.0.0.0/24, proto: tcp, chain: wbe }
   |                                             ^^^",
    ),
    (
        "- { chain: rest }",
        "- { chain: rest }\n  - { chain: web }",
        r"edge.yaml:15:5: rule 2 matches exactly the same packets (any from any to any): this one never would
15 |   - { chain: web }
   |     ^",
    ),
    (
        "{ min: 2, max: 4 }",
        "{ min: 4, max: 2 }",
        r"edge.yaml:15:26: `max` is 2, less than `min`, which is 4
15 | runtimes: { min: 4, max: 2 }
   |                          ^",
    ),
    (
        "{ min: 2, max: 4 }",
        "{ min: three }",
        r"edge.yaml:15:18: `three` is not a whole number from 0 to 65535
15 | runtimes: { min: three }
   |                  ^^^^^",
    ),
    (
        "{ min: 2, max: 4 }",
        "{ min: 2, count: 4 }",
        r"edge.yaml:15:21: `count` says exactly how many: leave out `min` and `max`
15 | runtimes: { min: 2, count: 4 }
   |                     ^^^^^",
    ),
    (
        "{ min: 2, max: 4 }",
        "1",
        r"edge.yaml:10:17: this protection keeps each flow's replica on another runtime, so at least 2 are needed: `runtimes: { min: 2 }`
10 |     protection: nfvactor          # or { flow: …, shared: …, release: …, rebuild: … }
   |                 ^^^^^^^^",
    ),
    (
        "{ min: 2, max: 4 }",
        "99999999",
        r"edge.yaml:15:11: a number of runtimes, or a map with `min` and `max` is expected here, not integer `99999999`
15 | runtimes: 99999999
   |           ^^^^^^^^",
    ),
    (
        "{ min: 2, max: 4 }",
        "{ min: 2 }\nlimits: { flows: 0 }",
        r"edge.yaml:16:18: `flows` is between 1 and 16000000, not 0
16 | limits: { flows: 0 }
   |                  ^",
    ),
    (
        "{ min: 2, max: 4 }",
        "{ min: 2 }\ndetection: { heartbeat_ms: 200 }",
        r"edge.yaml:16:12: a runtime must have 4 heartbeats' time to be heard: `hang_ms` is at least 800 with `heartbeat_ms` 200, not 500
16 | detection: { heartbeat_ms: 200 }
   |            ^",
    ),
    (
        "{ min: 2, max: 4 }",
        "{ min: 2 }\ndetection: { hang_ms: -1 }",
        r"edge.yaml:16:23: `-1` is not a whole number from 0 to 18446744073709551615
16 | detection: { hang_ms: -1 }
   |                       ^^",
    ),
    (
        "{ min: 2, max: 4 }",
        "{ min: 2 }\nstate: holdfast",
        r"edge.yaml:16:8: `state` is a directory's path from the root, like /var/lib/holdfast
16 | state: holdfast
   |        ^^^^^^^^",
    ),
    (
        "runtimes: {",
        "runtimes {",
        r"edge.yaml:15:1: there is no key `runtimes { min` here: `cluster`, `ports`, `routes`, `chains`, `rules`, `runtimes`, `scaling`, `clusters`, `hosts`, `switches`, `limits`, `detection`, `fabric`, `state`, `etcd`, `control`; is a `:` missing after `runtimes`?
15 | runtimes { min: 2, max: 4 }
   | ^^^^^^^^^^^^^^",
    ),
    (
        "  inside:  {",
        "\tinside:  {",
        r"edge.yaml:3:2: tabs disallowed within this context (block indentation)
3 |  inside:  { device: veth-in,  address: 10.0.0.1/24 }
  |  ^",
    ),
    (
        "- { chain: rest }",
        "- { chain: rest",
        r"edge.yaml:14:5: unclosed bracket '{'
14 |   - { chain: rest
   |     ^",
    ),
];

#[test]
fn every_mistake_is_named_with_its_place_and_what_would_be_right() {
    for (right, wrong, expected) in MISTAKES {
        assert_eq!(said(&edited(right, wrong)), *expected, "\n{right:?} -> {wrong:?}");
    }
}

#[test]
fn the_example_of_the_design_is_read_as_it_is_meant() {
    let checked = config::read("edge.yaml", EXAMPLE).unwrap_or_else(|mistake| panic!("{mistake}"));
    assert_eq!(checked.config.cluster, "edge");
    assert_eq!(checked.ports, [("inside".into(), "veth-in".into()), ("outside".into(), "veth-out".into())]);
    assert_eq!(checked.addresses[1], [("198.51.100.1".parse().unwrap(), 24)]);
    let [default] = checked.routes.as_slice() else { panic!("{:?}", checked.routes) };
    assert_eq!((default.prefix.to_string().as_str(), default.port), ("0.0.0.0/0", 1));
    assert_eq!(default.gateway, Some("198.51.100.254".parse().unwrap()));
    let rules: Vec<(String, u16)> = checked.rules.iter().map(|rule| (rule.selector.to_string(), rule.chain)).collect();
    assert_eq!(rules, [("tcp from 10.0.0.0/24 to any".into(), 1), ("any from any to any".into(), 0)]);
    assert_eq!(checked.runtimes(), 2);
    assert_eq!(checked.switches[0].owned.iter().map(ToString::to_string).collect::<Vec<_>>(), ["198.51.100.4/31"]);

    let chains = config::chains("edge.yaml", EXAMPLE, &checked.config).unwrap_or_else(|mistake| panic!("{mistake}"));
    let functions: Vec<(&str, Vec<&str>)> =
        chains.iter().map(|built| (built.name.as_str(), built.chain.functions().iter().map(|f| f.name()).collect())).collect();
    assert_eq!(functions, [("rest", vec!["forward"]), ("web", vec!["firewall", "nat"])]);
}

#[test]
fn the_demos_boxes_are_right() {
    use holdfast::demo::{ELASTIC, HOSTS, PROTECTED, UNPROTECTED};
    let elastic = PROTECTED.replace("{ min: 3, max: 3 }", "{ min: 2, max: 3 }") + ELASTIC;
    let hosts = PROTECTED.to_owned() + &HOSTS.replace("STATE", "/state");
    for text in [PROTECTED, UNPROTECTED, &elastic, &hosts] {
        assert_eq!(said(text), "");
    }
    assert!(elastic.contains("{ min: 2, max: 3 }"));
}

#[test]
fn json_is_accepted() {
    let text = r#"{ "cluster": "a", "ports": { "x": { "device": "eth0", "address": ["10.0.0.1/24", "10.0.0.2/24", "2001:db8::1/64"],
        "gateway": ["10.0.0.9", "2001:db8::9"] } }, "chains": { "c": { "functions": ["forward"] } },
        "rules": [{ "proto": 47, "chain": "c" }, { "proto": "udp", "port": 53, "chain": "c" }], "runtimes": { "count": 1 } }"#;
    let checked = config::read("edge.json", text).unwrap_or_else(|mistake| panic!("{mistake}"));
    assert_eq!((checked.addresses[0].len(), checked.routes.len(), checked.runtimes()), (3, 2, 1));
    let rules: Vec<String> = checked.rules.iter().map(|rule| rule.selector.to_string()).collect();
    assert_eq!(rules, ["proto-47 from any to any", "udp from any to any port 53"]);
}

#[test]
fn other_ways_to_say_the_same_are_understood() {
    let same = [
        ("{ min: 2, max: 4 }", "2"),
        ("{ min: 2, max: 4 }", "{ count: 2 }"),
        ("protection: nfvactor ", "protection: { preset: nfvactor, release: source } "),
        ("protection: nfvactor ", "protection: { preset: nfvactor, release: auto } "),
        ("protection: nfvactor ", "protection: { flow: replica, release: auto } "),
        ("protection: nfvactor ", "protection: { flow: replica, shared: partitioned, release: source, rebuild: replica } "),
        ("protection: nfvactor ", "protection: { flow: memory, release: at-once } "),
        ("protection: nfvactor ", "protection: { preset: nfvactor, shared: state-server } "),
        ("protection: nfvactor ", "protection: rescue "),
        ("protection: nfvactor ", "protection: { preset: rescue, shared: partitioned } "),
        ("protection: nfvactor ", "protection: { preset: rescue, release: at-once, write_back_packets: 5, hold_s: 7 } "),
        ("protection: nfvactor ", "protection: { flow: paged } "),
        (
            "protection: nfvactor ",
            "protection: { flow: paged, shared: partitioned, release: at-once, rebuild: pages, write_back_ms: 5 } ",
        ),
        ("protection: nfvactor ", "protection: { flow: memory, shared: state-server, hold_s: 0 } "),
        ("protection: nfvactor ", "protection: { preset: reinforce, level: local, shared: state-server, hold_s: 3600 } "),
        ("protection: none", "protection: { preset: none }"),
        ("protection: nfvactor ", "protection: nfactor "),
        ("protection: nfvactor ", "protection: { preset: nfactor, release: at-once, snapshot_every: 25 } "),
        ("protection: nfvactor ", "protection: { flow: snapshot, release: at-once, rebuild: snapshots, snapshot_every: 1 } "),
        ("- nat: { pool: [ 198.51.100.4/31 ] }", "- nat:\n          pool: [ 198.51.100.4/31 ]"),
        ("[ forward ]", "[ forward: {} ]"),
        ("gateway: 198.51.100.254", "gateway: [198.51.100.254], mtu: 1400"),
        ("device: veth-out", "device: \"afpacket:veth-out\""),
        ("device: veth-out", "device: \"dpdk:0000:01:00.0\""),
        ("device: veth-out", "device: \"dpdk:net_pcap0,rx_pcap=in.pcap,tx_pcap=out.pcap\""),
        ("cluster: edge", "\u{feff}cluster: edge"),
    ];
    for (one, other) in same {
        assert_eq!(said(&edited(one, other)), "", "{other}");
    }
}

#[test]
fn a_mistake_in_what_an_anchor_names_is_shown_where_it_is_written() {
    let text = EXAMPLE.replace("cluster: edge", "cluster: &net 10.0.0.1").replace("from: 10.0.0.0/24", "from: *net");
    let checked = config::read("edge.yaml", &text);
    assert!(checked.is_ok(), "an alias is the text that it names");
    let text = EXAMPLE.replace("cluster: edge", "cluster: &net nowhere").replace("from: 10.0.0.0/24", "from: *net");
    let mistake = config::read("edge.yaml", &text).err().expect("this is no prefix");
    assert_eq!((mistake.line, mistake.text.as_str()), (1, "cluster: &net nowhere"));
}

#[test]
fn whole_files_that_are_none() {
    let bomb = "cluster: a\nrules: [&a [x,x,x,x,x,x,x,x,x], &b [*a,*a,*a,*a,*a,*a,*a,*a,*a], &c [*b,*b,*b,*b,*b,*b,*b,*b,*b]]\n";
    let cases = [
        ("", "edge.yaml: the file is empty"),
        ("# nothing", "edge.yaml: the file is empty"),
        ("- a", "edge.yaml:1:1: keys with values are expected here, like `key: value`\n1 | - a\n  | ^"),
    ];
    for (text, expected) in cases {
        assert_eq!(said(text), expected);
    }
    assert!(said(&format!("{EXAMPLE}---\n{EXAMPLE}")).starts_with("edge.yaml:17:1: a second document begins here"));
    assert!(said(&"[".repeat(200_000)).contains("limit"));
    assert!(!said(bomb).is_empty());
    assert!(said(&"#".repeat(config::MAX_FILE + 1)).contains("longer than 4 MiB"));
}

/// Every `$ref` in a schema.
fn references(value: &serde_json::Value, into: &mut Vec<String>) {
    match value {
        serde_json::Value::Object(map) => {
            into.extend(map.get("$ref").and_then(|target| target.as_str()).map(str::to_owned));
            map.values().for_each(|value| references(value, into));
        }
        serde_json::Value::Array(items) => items.iter().for_each(|item| references(item, into)),
        _ => {}
    }
}

#[test]
fn the_schema_knows_every_key_and_every_function_and_is_closed() {
    let schema = config::schema();
    let properties = schema["properties"].as_object().expect("an object has properties");
    let expected = [
        "chains",
        "cluster",
        "clusters",
        "control",
        "detection",
        "etcd",
        "fabric",
        "hosts",
        "limits",
        "ports",
        "routes",
        "rules",
        "runtimes",
        "scaling",
        "state",
        "switches",
    ];
    assert_eq!(properties.keys().map(String::as_str).collect::<std::collections::BTreeSet<_>>(), expected.into());
    let scaling = &schema["$defs"]["ScalingConfig"];
    assert_eq!(scaling["additionalProperties"], false);
    assert_eq!(scaling["properties"]["busy_percent"]["maximum"], 100);
    assert_eq!(scaling["properties"].as_object().map(serde_json::Map::len), Some(6), "{scaling}");
    let functions = &schema["$defs"]["FunctionConfig"]["anyOf"][1]["properties"];
    for name in holdfast_functions::catalog::names() {
        assert!(functions[name].is_object(), "{name}");
    }
    let mut targets = Vec::new();
    references(&schema, &mut targets);
    assert!(targets.len() > 10, "{targets:?}");
    for target in targets {
        let pointer = target.strip_prefix('#').expect("a reference stays in the file");
        assert!(schema.pointer(pointer).is_some(), "{target} leads nowhere");
    }
}

proptest! {
    #[test]
    fn no_bytes_make_it_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
        config::fuzz(&bytes);
    }

    #[test]
    fn no_damage_to_a_right_file_makes_it_panic(
        cuts in proptest::collection::vec((any::<prop::sample::Index>(), any::<prop::sample::Index>(), 0usize..12, any::<char>()), 1..6),
    ) {
        let mut text: Vec<char> = EXAMPLE.chars().collect();
        for (at, from, len, other) in cuts {
            let at = at.index(text.len());
            match len {
                0 => text[at] = other,
                // A piece of the file where it does not belong.
                1..=6 => {
                    let from = from.index(text.len());
                    let piece: Vec<char> = text[from..text.len().min(from + len * 4)].to_vec();
                    text.splice(at..at, piece);
                }
                _ => {
                    let end = text.len().min(at + len);
                    text.drain(at..end);
                }
            }
        }
        config::fuzz(text.into_iter().collect::<String>().as_bytes());
    }
}
