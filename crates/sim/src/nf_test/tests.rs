//! Functions that are wrong in one way each, and the checks that find them; and functions
//! that ship, in which the checks find nothing.

use super::{Effort, Inserted, Suite, one};
use holdfast_functions::catalog;
use holdfast_nf::{
    ConfigError, Context, Counters, DropReason, Lease, Leased, NetworkFunction, Open, Opening,
    Packet, Pool, Table, Verdict,
};
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::process::ExitCode;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, Once};

/// The way in which a function is wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
enum Fault {
    /// No fault.
    None,
    /// Flow state has a number that is another one each time.
    StateOfChance,
    /// A packet leaves with such a number.
    PacketOfChance,
    /// A counter counts some packets only.
    CounterOfChance,
    /// Some packets are dropped, and others like them are not.
    VerdictOfChance,
    /// A flow's count stands beside its state, which has only its place there.
    StateElsewhere,
    /// A flow's second packet overwrites its lease.
    LosesLease,
    /// Entries of the table are never removed.
    KeepsEntries,
    /// A flow that has come from another instance is refused.
    RefusesMoved,
    /// A flow that has come from another instance ends the function.
    PanicsOnMoved,
}

#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct WrongConfig {
    fault: Fault,
}

enum Numbers {}

holdfast_nf::flow_state! {
    struct Remembered {
        client: [u8; 16],
        packets: u32,
        when: u32,
        place: u32,
        home: u32,
        number: Leased<Numbers>,
    }
}

holdfast_nf::shared_state! {
    struct Store {
        numbers: Pool<Numbers>,
        clients: Table<[u8; 16], u32>,
        counters: Counters,
    }
}

/// Leases a number for each flow, counts each client's flows and all packets, and marks
/// each packet with its number in its flow; or something else, by its fault.
struct Wrong {
    fault: Fault,
    id: u32,
    elsewhere: Mutex<Vec<u32>>,
}

/// Another number each time, in all of the process.
fn chance() -> u32 {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

impl NetworkFunction for Wrong {
    const NAME: &'static str = "wrong";
    type Config = WrongConfig;
    type Flow = Remembered;
    type Shared = Store;

    fn new(config: WrongConfig) -> Result<Wrong, ConfigError> {
        Ok(Wrong { fault: config.fault, id: chance(), elsewhere: Mutex::new(Vec::new()) })
    }

    fn shared(&self) -> Store {
        let counters = Counters::new(["packets"]);
        Store { numbers: Pool::new(2048), clients: Table::new(1024), counters }
    }

    fn open(&self, _packet: &Packet, shared: &mut Store, cx: &mut Opening<'_>) -> Open<Remembered> {
        let client = cx.key().source;
        let number = match shared.numbers.lease(cx) {
            Lease::Granted(number) => number,
            Lease::Wait => return Open::Wait,
            Lease::Exhausted => return Open::Drop(DropReason::PoolEmpty),
        };
        if !shared.clients.update(client, 0, |flows| *flows += 1) {
            return Open::Drop(DropReason::QuotaExceeded);
        }
        let mut elsewhere = self.elsewhere.lock().expect("nobody panics with it");
        elsewhere.push(0);
        let place =
            if self.fault == Fault::StateElsewhere { elsewhere.len() as u32 - 1 } else { 0 };
        let home = if self.refuses() { self.id } else { 0 };
        Open::Accept(Remembered { client, number, place, home, ..Remembered::default() })
    }

    fn process(
        &self,
        packet: &mut Packet,
        flow: &mut Remembered,
        shared: &mut Store,
        _cx: &mut Context,
    ) -> Verdict {
        flow.packets += 1;
        shared.counters.add(0, 1);
        let mut mark = flow.packets;
        match self.fault {
            Fault::StateOfChance => flow.when = chance(),
            Fault::PacketOfChance => mark = chance(),
            Fault::CounterOfChance => shared.counters.add(0, u64::from(chance() % 2)),
            Fault::VerdictOfChance if chance().is_multiple_of(7) => {
                return Verdict::Drop(DropReason::FunctionDenied);
            }
            Fault::StateElsewhere => {
                let mut elsewhere = self.elsewhere.lock().expect("nobody panics with it");
                let count = elsewhere.get_mut(flow.place as usize);
                mark = count.map_or(0, |count| {
                    *count += 1;
                    *count
                });
            }
            Fault::LosesLease if flow.packets == 2 => flow.number = Leased::default(),
            Fault::PanicsOnMoved if flow.home != self.id => panic!("this flow is not from here"),
            Fault::RefusesMoved if flow.home != self.id => {
                return Verdict::Drop(DropReason::FunctionDenied);
            }
            _ => {}
        }
        // The identification of a packet that is not to be fragmented means nothing (RFC
        // 6864, section 4.1). A world's checkers need the IPv4 header's checksum.
        if let Some(header) = packet.ipv4_mut().filter(|_| self.fault == Fault::PacketOfChance) {
            header.id = (mark as u16).into();
        }
        if let Some(header) = packet.ipv4_mut().filter(|_| self.fault == Fault::StateElsewhere) {
            header.id = (mark as u16).into();
        }
        Verdict::Forward
    }

    fn expire(&self, flow: &Remembered, shared: &mut Store) {
        if self.fault != Fault::KeepsEntries {
            shared.clients.update_or_remove(&flow.client, |flows| {
                *flows -= 1;
                *flows > 0
            });
        }
    }
}

impl Wrong {
    fn refuses(&self) -> bool {
        matches!(self.fault, Fault::RefusesMoved | Fault::PanicsOnMoved)
    }
}

const SHORT: Effort = Effort { packets: 3000, every: 1009, seed: 1 };

fn add() {
    static ADDED: Once = Once::new();
    ADDED.call_once(catalog::add::<Wrong>);
}

fn found(fault: &str, check: &str) -> Result<(), String> {
    add();
    let config = json!({ "fault": fault });
    one(Inserted { name: "wrong".to_owned(), config }, check, SHORT)
}

#[track_caller]
fn finds(fault: &str, check: &str, text: &str) {
    let said = found(fault, check).expect_err(check);
    assert!(said.contains(text), "{said}");
}

const ON_THE_BENCH: [&str; 3] = ["determinism", "state", "leaks"];

/// The function is right but for its faults.
#[test]
fn nothing_is_found_in_a_function_that_is_right() {
    let in_worlds = ["kill/nfvactor_at_replica", "migrate/reinforce+state_server"];
    for check in ON_THE_BENCH.into_iter().chain(in_worlds) {
        assert_eq!(found("none", check), Ok(()), "{check}");
    }
}

#[test]
fn determinism_names_what_differs() {
    finds("state_of_chance", "determinism", "field `when` of the flow's state");
    finds("packet_of_chance", "determinism", "byte 19 of the frame");
    finds("counter_of_chance", "determinism", "counter `packets`");
    finds("verdict_of_chance", "determinism", "`function_denied`");
}

#[test]
fn state_that_is_not_all_of_a_flow_is_found() {
    finds("state_elsewhere", "state", "byte 19 of the frame");
    finds("refuses_moved", "state", "it passes, and is dropped as `function_denied`");
}

#[test]
fn leaks_are_found() {
    finds("loses_lease", "leaks", "`numbers` of `wrong`");
    finds("keeps_entries", "leaks", "`clients` of `wrong`");
}

/// A flow is refused by the runtime that has recovered it, or to which it was moved.
#[test]
fn worlds_find_a_function_that_its_flows_cannot_leave() {
    for disturbance in ["kill", "migrate"] {
        for protection in ["nfvactor_at_replica", "nfactor", "reinforce", "rescue+state_server"] {
            finds("refuses_moved", &format!("{disturbance}/{protection}"), "do not finish");
        }
    }
    finds("panics_on_moved", "kill/nfvactor_at_source", "panicked");
}

/// Every function that ships passes on the bench.
#[test]
fn functions_that_ship_pass() {
    let rows: [(&str, Value); 12] = [
        ("firewall", json!({ "default": "allow" })),
        ("nat", json!({ "pool": ["198.51.100.4"], "inside": ["10.0.0.0/8"] })),
        (
            "load_balancer",
            json!({ "virtual": "203.0.113.10:80", "backends": ["198.51.100.11:80", "198.51.100.12:80"] }),
        ),
        ("monitor", json!({})),
        ("packet_limit", json!({ "packets": 9 })),
        ("qos_marker", json!({ "classes": { "one": { "dscp": "ef" } }, "default": "one" })),
        ("rate_limiter", json!({ "limits": [{ "per": "flow", "rate": "1 kB/s" }] })),
        ("forward", json!({})),
        ("vlan", json!({ "classes": { "one": { "forward": { "pcp": 3 } } }, "default": "one" })),
        ("http", json!({})),
        ("dpi", json!({})),
        ("ips", json!({ "rules": ["alert ip any any -> any any (content:\"GET\"; sid:1;)"] })),
    ];
    // Another test may have added its function.
    let shipped = catalog::names().into_iter().filter(|name| *name != "wrong");
    assert_eq!(rows.iter().map(|(name, _)| *name).collect::<BTreeSet<_>>(), shipped.collect());
    for (name, config) in rows {
        for check in ON_THE_BENCH {
            let function = Inserted { name: name.to_owned(), config: config.clone() };
            assert_eq!(one(function, check, SHORT), Ok(()), "{name}/{check}");
        }
    }
}

/// A configuration that the function does not accept, and one that lets nothing pass, are
/// found before anything else.
#[test]
fn a_configuration_is_needed_with_which_something_passes() {
    let said = |config| {
        let function = Inserted { name: "packet_limit".to_owned(), config };
        one(function, "kill/none", SHORT).expect_err("it cannot be tested so")
    };
    assert!(said(json!({ "packets": 0 })).contains("at `packets`"));
    assert!(said(json!({ "packets": 3 })).contains("nothing has failed yet"));
}

/// A suite takes a test program's arguments. Its exit code tells whether all is well.
#[test]
fn a_suite_is_a_test_program() {
    add();
    let run = |arguments: &[&str]| {
        // Its results are not those of this program.
        let usual = ["nf test", "--logfile", "/dev/null", "--packets", "500"];
        let all = usual.iter().chain(arguments).copied();
        Suite::default().run(all)
    };
    let wrong = |fault: &str| format!("--function=wrong={{\"fault\":\"{fault}\"}}");
    assert_eq!(run(&[&wrong("none"), "determinism"]), ExitCode::SUCCESS);
    assert_ne!(run(&[&wrong("state_of_chance"), "determinism"]), ExitCode::SUCCESS);
    assert_eq!(run(&[&wrong("state_of_chance"), "leaks"]), ExitCode::SUCCESS);
    assert_ne!(run(&["determinism"]), ExitCode::SUCCESS, "no function is named");
    assert_ne!(run(&["--function", "wrnog", "determinism"]), ExitCode::SUCCESS);
    assert_ne!(run(&[&wrong("none"), "determinisn"]), ExitCode::SUCCESS, "no check is meant");
}
