//! Mistakes in the example: the text that is replaced, its replacement, and the whole
//! message. Messages are compared whole, because they are what an operator sees.

/// Mistakes anywhere but in protections, which have a [list](super::protections) of their
/// own.
pub(crate) const MISTAKES: &[(&str, &str, &str)] = &[
    (
        "cluster: edge",
        "clutser: edge",
        r"edge.yaml:1:1: there is no key `clutser` here: `cluster`, `ports`, `zones`, `routes`, `chains`, `rules`, `runtimes`, `scaling`, `clusters`, `hosts`, `switches`, `limits`, `detection`, `state_server`, `fabric`, `state`, `etcd`, `control`, `seccomp`; did you mean `cluster`?
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
        r"edge.yaml:3:32: there is no key `adress` here: `device`, `vlan`, `flow_vlans`, `address`, `gateway`, `mtu`, `reverse_path`, `bfd`; did you mean `address`?
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
        r"edge.yaml:4:22: port `inside` has this device already: ports share one if each has another `vlan`
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
        r#"edge.yaml:4:67: no port's network contains 198.51.101.254: `10.0.0.0/24`, `198.51.100.0/24`; if it is on the link of `outside` all the same, write a route in its place: `{ to: "0.0.0.0/0", via: "198.51.101.254", on: outside }`
4 |   outside: { device: veth-out, address: 198.51.100.1/24, gateway: 198.51.101.254 }
  |                                                                   ^^^^^^^^^^^^^^"#,
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
        "chains:\n",
        "routes: [{ to: \"2001:db8::/32\", via: \"fe80::1\" }]\nchains:\n",
        r#"edge.yaml:5:38: fe80::1 may be on any link: say with `on` on which port's, `inside`, `outside`
5 | routes: [{ to: "2001:db8::/32", via: "fe80::1" }]
  |                                      ^^^^^^^^^"#,
    ),
    (
        "chains:\n",
        "routes: [{ to: 192.0.2.0/24, via: 172.16.0.1 }]\nchains:\n",
        r"edge.yaml:5:35: no port's network contains 172.16.0.1: `10.0.0.0/24`, `198.51.100.0/24`; if it is on the link of one of them all the same, say with `on` on which port's
5 | routes: [{ to: 192.0.2.0/24, via: 172.16.0.1 }]
  |                                   ^^^^^^^^^^",
    ),
    (
        "chains:\n",
        "routes: [{ to: 192.0.2.0/24, via: 172.16.0.1, on: outsied }]\nchains:\n",
        r"edge.yaml:5:51: there is no port `outsied`: `inside`, `outside`; did you mean `outside`?
5 | routes: [{ to: 192.0.2.0/24, via: 172.16.0.1, on: outsied }]
  |                                                   ^^^^^^^",
    ),
    (
        "chains:\n",
        "routes: [{ to: 192.0.2.0/24, via: 10.0.0.9, on: outside }]\nchains:\n",
        r"edge.yaml:5:35: 10.0.0.9 is in a network of port `inside`, not of port `outside`
5 | routes: [{ to: 192.0.2.0/24, via: 10.0.0.9, on: outside }]
  |                                   ^^^^^^^^",
    ),
    (
        "chains:\n",
        "routes: [{ to: 192.0.2.0/24, via: 10.0.0.1, on: inside }]\nchains:\n",
        r"edge.yaml:5:35: 10.0.0.1 is the box's own address, not another router's
5 | routes: [{ to: 192.0.2.0/24, via: 10.0.0.1, on: inside }]
  |                                   ^^^^^^^^",
    ),
    (
        "chains:\n",
        "routes: [{ to: 192.0.2.0/24, via: 224.0.0.1, on: inside }]\nchains:\n",
        r"edge.yaml:5:35: 224.0.0.1 cannot be a router: it is unspecified, loopback or multicast
5 | routes: [{ to: 192.0.2.0/24, via: 224.0.0.1, on: inside }]
  |                                   ^^^^^^^^^",
    ),
    (
        "10.0.0.1/24 }\n  outside: { device: veth-out, address: 198.51.100.1/24, gateway: 198.51.100.254 }",
        "\"2001:db8::1/64\" }\n  outside: { device: veth-out, address: 198.51.100.1/24 }\nroutes: [{ to: 192.0.2.0/24, via: 172.16.0.1, on: inside }]",
        r#"edge.yaml:5:35: port `inside` has no IPv4 address from which it could ask for 172.16.0.1
5 | routes: [{ to: 192.0.2.0/24, via: 172.16.0.1, on: inside }]
  |                                   ^^^^^^^^^^"#,
    ),
    (
        "gateway: 198.51.100.254",
        "gateway: [ 198.51.100.254, \"fe80::1\" ], mtu: 1000",
        r#"edge.yaml:4:103: an MTU of 1000 is too small: at least 1280 is needed with an IPv6 address or gateway
4 |   outside: { device: veth-out, address: 198.51.100.1/24, gateway: [ 198.51.100.254, "fe80::1" ], mtu: 1000 }
  |                                                                                                       ^^^^"#,
    ),
    (
        "protection: none }",
        "protection: none, answers_ping: 198.51.100.4 }",
        r"edge.yaml:11:67: no pool or service of chain `rest` has 198.51.100.4/32: it has none
11 |   rest: { functions: [ forward ], protection: none, answers_ping: 198.51.100.4 }
   |                                                                   ^^^^^^^^^^^^",
    ),
    (
        "    protection: nfvactor ",
        "    answers_ping: [ 198.51.100.4, 198.51.100.6 ]\n    protection: nfvactor ",
        r"edge.yaml:10:35: no pool or service of chain `web` has 198.51.100.6/32: `198.51.100.4/31`
10 |     answers_ping: [ 198.51.100.4, 198.51.100.6 ]
   |                                   ^^^^^^^^^^^^",
    ),
    (
        "- nat:",
        "- nta:",
        r"edge.yaml:9:9: there is no function `nta`: `firewall`, `nat`, `load_balancer`, `monitor`, `forward`, `packet_limit`, `qos_marker`, `vlan`, `rate_limiter`, `http`, `ips`, `dpi`; did you mean `nat`?
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
        "- nat: { pool: [ 198.51.100.4/31 ], publish: [ \"tcp 198.51.100.4:22 -> 10.0.0.9:22-23\" ] }",
        r#"edge.yaml:9:78: nat: the outside ports are 1 and the inside ports 2: as many are needed
9 |       - nat: { pool: [ 198.51.100.4/31 ], publish: [ "tcp 198.51.100.4:22 -> 10.0.0.9:22-23" ] }
  |                                                                              ^^^^^^^^^^^^^^"#,
    ),
    (
        "- nat: { pool: [ 198.51.100.4/31 ] }",
        "- nat: { pool: [ 198.51.100.4/31 ] }\n      - nat: { pool: [ 198.51.100.6/31 ], limit_per_host: 100 }",
        r"edge.yaml:10:9: nat: the switch counts a source's flows as they enter the chain: only its first `nat` can limit them
10 |       - nat: { pool: [ 198.51.100.6/31 ], limit_per_host: 100 }
   |         ^^^",
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
        r"edge.yaml:9:24: nat: 198.51.100.0/31 contains 198.51.100.1, the box's own address on port `outside`, with others: name 198.51.100.1 alone, if the chain and the box are to share it
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
        "- nat: { pool: [ 198.51.100.4/31 ] }",
        "- nat: { pool: [ 224.0.0.0/30 ] }",
        r"edge.yaml:9:24: nat: 224.0.0.0/30 is no range of addresses that hosts may have: 224.0.0.0/4 is multicast
9 |       - nat: { pool: [ 224.0.0.0/30 ] }
  |                        ^^^^^^^^^^^^",
    ),
    (
        "- nat: { pool: [ 198.51.100.4/31 ] }",
        "- nat: { pool: [ 198.51.100.252/30 ] }",
        r"edge.yaml:9:24: nat: 198.51.100.252/30 contains 198.51.100.254, a router on port `outside`: the box would take that address for its own and never reach the router
9 |       - nat: { pool: [ 198.51.100.252/30 ] }
  |                        ^^^^^^^^^^^^^^^^^",
    ),
    (
        "- nat: { pool: [ 198.51.100.4/31 ] }",
        "- nat: { pool: [ 198.51.100.255 ] }",
        r"edge.yaml:9:24: nat: 198.51.100.255/32 contains 198.51.100.255, which belongs to all on the network of port `outside`
9 |       - nat: { pool: [ 198.51.100.255 ] }
  |                        ^^^^^^^^^^^^^^",
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
        "- rate_limiter: { limits: [ { per: source, rate: 10 Mbit } ] }",
        r"edge.yaml:9:56: rate_limiter: `10 Mbit` is not a rate: a whole number above zero with `bit/s`, `kbit/s`, `Mbit/s`, `Gbit/s`, `B/s`, `kB/s`, `MB/s`, `GB/s` or `packets/s`
9 |       - rate_limiter: { limits: [ { per: source, rate: 10 Mbit } ] }
  |                                                        ^^^^^^^",
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
        "- nat: { pool: [ 198.51.100.4/31 ] }",
        "- http: { rules: [ \"allow method GET\", \"deny pth /admin*\" ] }",
        r#"edge.yaml:9:52: http: unknown condition `pth`, expected one of `host`, `method`, `path`, `upgrade`; did you mean `path`?
9 |       - http: { rules: [ "allow method GET", "deny pth /admin*" ] }
  |                                                    ^^^"#,
    ),
    (
        "- nat: { pool: [ 198.51.100.4/31 ] }",
        "- ips:\n          rules:\n            - |\n              # ours\n              alert tcp any any -> any 80 (content:\"a\"; sid:1;)\n              alert tcp any any -> any 80 (content:\"a\"; dsize:>5; sid:2;)",
        r#"edge.yaml:14:57: ips: option `dsize` is not supported
14 |               alert tcp any any -> any 80 (content:"a"; dsize:>5; sid:2;)
   |                                                         ^^^^^^^^^"#,
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
        r#"edge.yaml:8:80: firewall: `allwo` is not an action: a rule begins with `allow`, `deny` or `reject`
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
        r#"edge.yaml:8:120: firewall: unknown variant `dney`, expected one of `allow`, `deny`, `reject`; did you mean `deny`?
8 |  any port 80,443", "allow icmp from any to any" ], default: dney }
  |                                                             ^^^^"#,
    ),
    (
        "[ forward ], protection: none",
        "[ forward ], protection: { preset: none, shared: state-server }",
        r"edge.yaml:11:71: no function of chain `rest` has anything that a state server could assign or add up: leave `shared` out
11 |   rest: { functions: [ forward ], protection: { preset: none, shared: state-server } }
   |                                                                       ^^^^^^^^^^^^",
    ),
    (
        "runtimes: { min: 2, max: 4 }",
        "runtimes: 2\nstate_server: { standby: local }",
        r"edge.yaml:16:1: no chain has a state server (`protection: rescue`, or `shared: state-server`): leave `state_server` out
16 | state_server: { standby: local }
   | ^^^^^^^^^^^^",
    ),
    (
        "runtimes: { min: 2, max: 4 }",
        "runtimes: 2\nstate_server: { transport: shared }",
        r"edge.yaml:16:28: unknown variant `shared`, expected one of fabric, shared-memory, libfabric
16 | state_server: { transport: shared }
   |                            ^^^^^^",
    ),
    (
        "runtimes: { min: 2, max: 4 }",
        "runtimes: 2\nstate_server: { standby: locla }",
        r"edge.yaml:16:26: unknown variant `locla`, expected one of local, none
16 | state_server: { standby: locla }
   |                          ^^^^^",
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
        "chains:\n",
        "zones: { lan: [insid] }\nchains:\n",
        r"edge.yaml:5:16: there is no port `insid`: `inside`, `outside`; did you mean `inside`?
5 | zones: { lan: [insid] }
  |                ^^^^^",
    ),
    (
        "chains:\n",
        "zones: { inside: [outside] }\nchains:\n",
        r"edge.yaml:5:10: `inside` is a port: its name means that port alone already
5 | zones: { inside: [outside] }
  |          ^^^^^^",
    ),
    (
        "chains:\n",
        "zones: { offices: [] }\nchains:\n",
        r"edge.yaml:5:10: zone `offices` needs ports, like `offices: [lan, dmz]`
5 | zones: { offices: [] }
  |          ^^^^^^^",
    ),
    (
        "proto: tcp, chain: web",
        "on: insid, chain: web",
        r"edge.yaml:13:30: unknown port or zone `insid`, expected one of `inside`, `outside`; did you mean `inside`?
13 |   - { from: 10.0.0.0/24, on: insid, chain: web }
   |                              ^^^^^",
    ),
    (
        "default: deny }",
        "default: deny, timeouts: { udp: 0 } }",
        r#"edge.yaml:8:143: firewall: 0 s is too short: `udp` is at least 1 s, and 300 s if it is left out
8 | ow icmp from any to any" ], default: deny, timeouts: { udp: 0 } }
  |                                                             ^"#,
    ),
    (
        "allow icmp from any to any",
        "allow icmp on outsid",
        r#"edge.yaml:8:94: firewall: unknown port or zone `outsid`, expected one of `inside`, `outside`; did you mean `outside`?
8 |       - firewall: { rules: [ "allow tcp from 10.0.0.0/24 to any port 80,443", "allow icmp on outsid" ], default: deny }
  |                                                                                              ^^^^^^"#,
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
        r"edge.yaml:10:17: under this protection other runtimes take over the flows of one that fails, so at least 2 are needed: `runtimes: { min: 2 }`
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
        "{ min: 2 }\nlimits: { flows: 1000, half_open_per_source: 2000 }",
        r"edge.yaml:16:46: `half_open_per_source` is between 1 and 1000, not 2000
16 | limits: { flows: 1000, half_open_per_source: 2000 }
   |                                              ^^^^",
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
        r"edge.yaml:15:1: there is no key `runtimes { min` here: `cluster`, `ports`, `zones`, `routes`, `chains`, `rules`, `runtimes`, `scaling`, `clusters`, `hosts`, `switches`, `limits`, `detection`, `state_server`, `fabric`, `state`, `etcd`, `control`, `seccomp`; is a `:` missing after `runtimes`?
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
