//! The chains under test.

use holdfast_nf::Chain;
use serde_json::json;

/// The functions of the chain under test.
pub(super) fn functions(flows: usize) -> [(String, serde_json::Value); 3] {
    let addresses = flows.div_ceil(64_512).next_power_of_two().max(1);
    let prefix = 32 - addresses.trailing_zeros();
    [
        (
            "firewall".to_owned(),
            json!({ "rules": ["allow udp from 10.0.0.0/8 to any port 80"], "default": "deny" }),
        ),
        // Sequential ports, not random ones: the benchmark compares two NATs' results for
        // the same packets.
        (
            "nat".to_owned(),
            json!({ "pool": [format!("198.51.0.0/{prefix}")], "inside": ["10.0.0.0/8"], "ports": "sequential" }),
        ),
        (
            "load_balancer".to_owned(),
            json!({ "virtual": "203.0.113.10:80", "protocol": "udp", "backends": ["192.0.2.11:80", "192.0.2.12:80"] }),
        ),
    ]
}

/// A chain that only counts.
pub(super) fn monitor() -> [(String, serde_json::Value); 1] {
    [("monitor".to_owned(), serde_json::Value::Null)]
}

/// The chain under test, with room for `flows` flows.
///
/// # Errors
/// Fails if there is no such chain.
pub(super) fn chain(flows: usize) -> Result<Chain, String> {
    holdfast_functions::catalog::chain(&functions(flows)).map_err(|(_, error)| error.to_string())
}

/// A function of the chain, by itself.
///
/// # Errors
/// Fails if there is no such function.
pub(super) fn function(name: &str, flows: usize) -> Result<Chain, String> {
    let only: Vec<_> =
        functions(flows).into_iter().filter(|(function, _)| function == name).collect();
    holdfast_functions::catalog::chain(&only).map_err(|(_, error)| error.to_string())
}
