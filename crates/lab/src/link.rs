//! veth pairs, addresses and routes.

use super::namespace::{Namespace, run};
use super::wait::{Interrupt, until};
use anyhow::{Context, Result};
use std::process::Command;
use std::time::Duration;

/// Offloads that make a veth carry frames that a wire would not: unfilled checksums,
/// frames of 64 KiB, tags beside the frame.
const OFFLOADS: [&str; 6] = ["tx", "tso", "gso", "gro", "rxvlan", "txvlan"];

/// Whether a veth pair behaves like a wire.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Offloads {
    /// All off, as on a wire.
    Off,
    /// As the kernel makes them: a user who changes nothing has these.
    LeftOn,
}

/// Joins two namespaces by a veth pair that is up at both ends.
pub fn veth(
    left: (&Namespace, &str),
    right: (&Namespace, &str),
    offloads: Offloads,
    interrupt: &Interrupt,
) -> Result<()> {
    let line =
        format!("link add {} type veth peer name {} netns {}", left.1, right.1, right.0.name());
    left.0
        .ip(&line)
        .with_context(|| format!("joining {} and {}", left.0.name(), right.0.name()))?;
    for (namespace, device) in [left, right] {
        if offloads == Offloads::Off {
            let switches: Vec<&str> =
                OFFLOADS.iter().flat_map(|offload| [*offload, "off"]).collect();
            namespace.run(&format!("ethtool -K {device} {}", switches.join(" ")))?;
        }
        keep_order(namespace, device)?;
        namespace.ip(&format!("link set {device} up"))?;
    }
    for (namespace, device) in [left, right] {
        until(
            &format!("{device} in {} comes up", namespace.name()),
            Duration::from_secs(5),
            interrupt,
            || Ok((operational_state(namespace, device)? == "UP").then_some(())),
        )?;
    }
    Ok(())
}

/// Keeps the packets of a flow in order, like a wire. A veth delivers a packet on the
/// processor that sent it, so packets of a sender that changes processors overtake one
/// another. Receive packet steering brings each flow to one processor.
fn keep_order(namespace: &Namespace, device: &str) -> Result<()> {
    let processors = std::thread::available_parallelism().map_or(1, usize::from).min(31);
    let file = format!("/sys/class/net/{device}/queues/rx-0/rps_cpus");
    // A kernel without steering has no such file.
    let script = format!("[ ! -e {file} ] || echo {:x} > {file}", (1u32 << processors) - 1);
    run(namespace.command("sh").args(["-c", &script])).map(drop)
}

/// The kernel's word for the state of a device: `UP`, `DOWN`, `LOWERLAYERDOWN`, …
pub fn operational_state(namespace: &Namespace, device: &str) -> Result<String> {
    let text = run(Command::new("ip").args([
        "-n",
        namespace.name(),
        "-j",
        "link",
        "show",
        "dev",
        device,
    ]))?;
    let links: serde_json::Value =
        serde_json::from_str(&text).context("reading the output of ip -j link")?;
    Ok(links[0]["operstate"].as_str().unwrap_or("UNKNOWN").to_owned())
}

/// The MAC address of a device.
pub fn mac(namespace: &Namespace, device: &str) -> Result<[u8; 6]> {
    let text = run(Command::new("ip").args([
        "-n",
        namespace.name(),
        "-j",
        "link",
        "show",
        "dev",
        device,
    ]))?;
    let links: serde_json::Value =
        serde_json::from_str(&text).context("reading the output of ip -j link")?;
    let address = links[0]["address"].as_str().unwrap_or_default();
    read_mac(address).with_context(|| format!("{device} has no MAC address: {address:?}"))
}

/// Gives a device an address (`192.0.2.1/24`, `2001:db8::1/64`).
pub fn address(namespace: &Namespace, device: &str, prefix: &str) -> Result<()> {
    let nodad = if prefix.contains(':') { " nodad" } else { "" };
    namespace.ip(&format!("address add {prefix} dev {device}{nodad}"))
}

/// Adds a route: `default`, `203.0.113.0/24`.
pub fn route(namespace: &Namespace, destination: &str, via: &str) -> Result<()> {
    namespace.ip(&format!("route add {destination} via {via}"))
}

/// Silences the kernel in a namespace: no addresses, no forwarding, no IPv6. The box
/// brings its own.
pub fn silence(namespace: &Namespace) -> Result<()> {
    namespace.sysctl("net/ipv4/ip_forward", "0")?;
    for device in ["all", "default"] {
        namespace.sysctl(&format!("net/ipv6/conf/{device}/disable_ipv6"), "1")?;
    }
    Ok(())
}

/// The MAC address that `namespace` has learnt for a neighbour.
pub fn neighbour(namespace: &Namespace, address: &str) -> Result<[u8; 6]> {
    let text = run(Command::new("ip").args([
        "-n",
        namespace.name(),
        "-j",
        "neighbour",
        "show",
        "to",
        address,
    ]))?;
    let entries: serde_json::Value =
        serde_json::from_str(&text).context("reading the output of ip -j neighbour")?;
    read_mac(entries[0]["lladdr"].as_str().unwrap_or_default())
        .with_context(|| format!("{address} is not resolved: {text}"))
}

fn read_mac(text: &str) -> Option<[u8; 6]> {
    let bytes: Option<Vec<u8>> =
        text.split(':').map(|byte| u8::from_str_radix(byte, 16).ok()).collect();
    bytes?.try_into().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mac_address_is_six_bytes() {
        assert_eq!(read_mac("02:48:46:00:00:10"), Some([0x02, 0x48, 0x46, 0, 0, 0x10]));
        assert_eq!(read_mac("02:48:46:00:00"), None);
        assert_eq!(read_mac(""), None);
        assert_eq!(read_mac("02:48:46:00:00:zz"), None);
    }
}
