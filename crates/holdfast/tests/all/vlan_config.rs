//! Configurations with VLANs: ports that share a device, and functions that choose VLANs.

use holdfast::config::{self, Plan};
use holdfast_node::edge::EdgeConfig;

/// A box with these ports, and a chain of these functions.
fn text(ports: &[&str], function: &str) -> String {
    let ports: String = ports.iter().map(|port| format!("  {port}\n")).collect();
    format!(
        "cluster: c\nports:\n{ports}chains: {{ all: {{ functions: [{function}] }} }}\nrules: [ {{ chain: all }} ]\n"
    )
}

fn said(text: &str) -> String {
    let mistake = config::read("c.yaml", text).err().unwrap_or_else(|| panic!("accepted:\n{text}"));
    let whole = mistake.to_string();
    whole.lines().next().unwrap_or_default().trim_start_matches("c.yaml:").to_owned()
}

fn read(text: &str) -> Plan {
    config::read("c.yaml", text).unwrap_or_else(|mistake| panic!("{mistake}"))
}

const FIRST: &str = "a: { device: eth0, vlan: 100, address: 10.0.0.1/24 }";

#[test]
fn mistakes_have_their_place() {
    for (second, expected) in [
        (
            "b: { device: eth0, vlan: 100, address: 10.0.1.1/24 }",
            "4:28: port `a` has VLAN 100 of `eth0` already",
        ),
        (
            "b: { device: eth0, vlan: [100], address: 10.0.1.1/24 }",
            "4:28: port `a` has VLAN 100 of `eth0` already",
        ),
        (
            "b: { device: eth0, flow_vlans: [300, 100], address: 10.0.1.1/24 }",
            "4:16: port `a` has VLAN 100 of `eth0` already",
        ),
        (
            "b: { device: \"afpacket:eth0\", vlan: 5, address: 10.0.1.1/24 }",
            "4:39: port `a` has this device as `eth0`: ports that share a device name it alike",
        ),
        (
            "b: { device: eth1, vlan: 0, address: 10.0.1.1/24 }",
            "4:28: 0 is no VLAN: one has a number from 1 to 4094 (IEEE 802.1Q, table 9-2)",
        ),
        (
            "b: { device: eth1, vlan: 4095, address: 10.0.1.1/24 }",
            "4:28: 4095 is no VLAN: one has a number from 1 to 4094 (IEEE 802.1Q, table 9-2)",
        ),
        (
            "b: { device: eth1, vlan: [200, 70000], address: 10.0.1.1/24 }",
            "4:34: 70000 is no VLAN: one has a number from 1 to 4094 (IEEE 802.1Q, table 9-2)",
        ),
        (
            "b: { device: eth1, vlan: -1, address: 10.0.1.1/24 }",
            "4:28: -1 is no VLAN: one has a number from 1 to 4094 (IEEE 802.1Q, table 9-2)",
        ),
        (
            "b: { device: eth1, vlan: [1, 2, 3], address: 10.0.1.1/24 }",
            "4:28: a frame has two tags at most, an outer and an inner one, not 3",
        ),
        (
            "b: { device: eth1, vlan: [], address: 10.0.1.1/24 }",
            "4:28: the list is empty: a port of untagged frames has no `vlan`",
        ),
        ("b: { vlan: 5, address: 10.0.1.1/24 }", "4:3: `b` has no `device`"),
        (
            "b: { device: eth1, vlan: 5, flow_vlans: [6, 5], address: 10.0.1.1/24 }",
            "4:47: the port has VLAN 5 already",
        ),
        (
            "b: { device: eth1, flow_vlans: [0], address: 10.0.1.1/24 }",
            "4:35: 0 is no VLAN: one has a number from 1 to 4094 (IEEE 802.1Q, table 9-2)",
        ),
    ] {
        assert_eq!(said(&text(&[FIRST, second], "forward")), expected, "{second}");
    }
    let two =
        ["a: { device: eth0, address: 10.0.0.1/24 }", "b: { device: eth0, address: 10.0.1.1/24 }"];
    assert_eq!(
        said(&text(&two, "forward")),
        "4:16: port `a` has this device already: ports share one if each has another `vlan`"
    );
    // Not a number at all.
    let word = "b: { device: eth1, vlan: office, address: 10.0.1.1/24 }";
    assert!(said(&text(&[word], "forward")).contains("a VLAN's number, or a list of two"));
}

/// One device has ports of several kinds, and each keeps what is its own at the edge.
#[test]
fn ports_share_a_device() {
    let plan = read(&text(
        &[
            FIRST,
            "b: { device: eth0, vlan: 101, flow_vlans: [300], address: 10.0.1.1/24 }",
            "c: { device: eth0, vlan: [200, 100], address: 10.0.2.1/24, mtu: 1400 }",
            "d: { device: eth0, address: 10.0.3.1/24 }",
        ],
        "vlan: { classes: { one: { forward: { id: 300 } } }, default: one }",
    ));
    let ids = plan.ports.iter().map(|port| port.tags.ids().collect::<Vec<_>>());
    assert_eq!(ids.collect::<Vec<_>>(), [vec![100], vec![101], vec![200, 100], vec![]]);
    let ports = [1500, 1500, 1492, 1500].map(|mtu| ([2; 6], mtu));
    let edges = plan.edges(&ports, &[], || 1);
    let [(EdgeConfig { ports, .. }, _)] = edges.as_slice() else { panic!("one switch") };
    let mtus: Vec<u16> = ports.iter().map(|port| port.mtu).collect();
    assert_eq!(mtus, [1500, 1500, 1400, 1500]);
    assert_eq!(ports[1].flow_vlans, [300]);
}

/// A function may only choose a VLAN in which packets can leave.
#[test]
fn a_functions_vlans_are_those_of_a_port() {
    let function = "vlan: { classes: { one: { forward: { id: 300 } } }, default: one }";
    assert_eq!(
        said(&text(&[FIRST], function)),
        "4:30: vlan: no port has VLAN 300 among its `flow_vlans`, so packets in it could not leave"
    );
}

/// On another host the ports' devices have other names, and may be shared there.
#[test]
fn a_hosts_devices_are_shared_alike() {
    let hosts = |devices: &str| {
        let ports = [FIRST, "b: { device: eth1, vlan: 101, address: 10.0.1.1/24 }"];
        format!(
            "{}state: /s\nhosts: {{ one: {{ fabric: f0, devices: {devices} }}, two: {{ fabric: f0 }} }}\n",
            text(&ports, "forward")
        )
    };
    assert_eq!(read(&hosts("{ b: eth0 }")).hosts[0].devices, ["eth0", "eth0"]);
    assert!(said(&hosts("{ b: \"afxdp:eth0\" }")).contains("name it alike"));
}
