//! Mistakes in protections, in the same form as [`mistakes`](super::mistakes).

/// Mistakes in a chain's protection.
pub(crate) const MISTAKES: &[(&str, &str, &str)] = &[
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
        r"edge.yaml:10:44: a packet leaves at once, or when its flow is written back: `release: write-back` or `at-once`, or `preset: nfvactor`
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
        "protection: { preset: nfvactor, resident_flows: 500 } ",
        r"edge.yaml:10:37: only the preset `rescue` has flows whose state is not in memory: leave `resident_flows` out
10 |     protection: { preset: nfvactor, resident_flows: 500 }          # or { flow: …, shared: …, release: …, rebuild: … }
   |                                     ^^^^^^^^^^^^^^",
    ),
    (
        "protection: nfvactor ",
        "protection: { preset: rescue, resident_flows: 65536 } ",
        r"edge.yaml:10:51: a runtime has no more than 65536 flows (`limits.flows`), so all have their state in memory: leave `resident_flows` out
10 |     protection: { preset: rescue, resident_flows: 65536 }          # or { flow: …, shared: …, release: …, rebuild: … }
   |                                                   ^^^^^",
    ),
    (
        "protection: nfvactor ",
        "protection: { preset: rescue, resident_flows: 5 } ",
        r"edge.yaml:10:51: a runtime has the state of at least 16 flows in memory
10 |     protection: { preset: rescue, resident_flows: 5 }          # or { flow: …, shared: …, release: …, rebuild: … }
   |                                                   ^",
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
        r"edge.yaml:10:40: others take these flows over, and what is left in a dead runtime's memory may be given twice: `shared: partitioned` or `state-server`
10 |     protection: { flow: paged, shared: memory }          # or { flow: …, shared: …, release: …, rebuild: … }
   |                                        ^^^^^^",
    ),
    (
        "protection: nfvactor ",
        "protection: { flow: replica, release: write-back } ",
        r"edge.yaml:10:43: nothing is written back to a replica: `release: replica`, `source`, `auto` or `at-once`, or `flow: paged`
10 |     protection: { flow: replica, release: write-back }          # or { flow: …, shared: …, release: …, rebuild: … }
   |                                           ^^^^^^^^^^",
    ),
    (
        "protection: nfvactor ",
        "protection: { preset: nfvactor, release: standby } ",
        r"edge.yaml:10:46: a replica is no standby: `release: replica`, `source`, `auto` or `at-once`, or `preset: reinforce`
10 |     protection: { preset: nfvactor, release: standby }          # or { flow: …, shared: …, release: …, rebuild: … }
   |                                              ^^^^^^^",
    ),
    (
        "protection: nfvactor ",
        "protection: { preset: reinforce, shared: memory } ",
        r"edge.yaml:10:46: others take these flows over, and what is left in a dead runtime's memory may be given twice: `shared: partitioned` or `state-server`
10 |     protection: { preset: reinforce, shared: memory }          # or { flow: …, shared: …, release: …, rebuild: … }
   |                                              ^^^^^^",
    ),
    (
        "protection: nfvactor ",
        "protection: { preset: nfvactor, rebuild: replica } ",
        r"edge.yaml:10:37: the preset `nfvactor` answers `rebuild` already: leave one of them out
10 |     protection: { preset: nfvactor, rebuild: replica }          # or { flow: …, shared: …, release: …, rebuild: … }
   |                                     ^^^^^^^",
    ),
    (
        "protection: nfvactor ",
        "protection: { release: replica } ",
        r"edge.yaml:10:17: a protection has a `preset`, or says at least where `flow` state lives: `memory`, `replica`, `snapshot`, `standby`, `paged`
10 |     protection: { release: replica }          # or { flow: …, shared: …, release: …, rebuild: … }
   |                 ^",
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
        r"edge.yaml:10:37: there is no key `relase` here: `preset`, `flow`, `shared`, `release`, `rebuild`, `snapshot_every`, `unsaved_packets`, `hold_s`, `write_back_ms`, `write_back_packets`, `resident_flows`, `checkpoint_ms`, `log_mib`, `level`; did you mean `release`?
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
        r"edge.yaml:10:42: without a copy nobody says that the state is saved: `release: at-once`, or `flow: replica`
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
        "protection: { preset: nfvactor, unsaved_packets: 5 } ",
        r"edge.yaml:10:37: no packet leaves before the replica knows of it: leave `unsaved_packets` out, or `release: at-once`
10 |     protection: { preset: nfvactor, unsaved_packets: 5 }          # or { flow: …, shared: …, release: …, rebuild: … }
   |                                     ^^^^^^^^^^^^^^^",
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
];
