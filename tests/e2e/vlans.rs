//! Ports of several VLANs on one device: tagged, tagged twice and untagged. A VLAN switch
//! stands between the box and its clients, because kernels may have no VLAN devices.

use anyhow::{Context, Result, ensure};
use holdfast_control::status::{Port, Status};
use holdfast_lab::download::{Download, Plan};
use holdfast_lab::link::{self, Offloads};
use holdfast_lab::nginx::{Nginx, Site};
use holdfast_lab::requirements::*;
use holdfast_lab::running::RunningBox;
use holdfast_lab::{Interrupt, Lab, Namespace, Process, until};
use holdfast_tests::network::{GIVE_UP, HELD_BODY, RECOVERY_LIMIT, hold, socket};
use holdfast_tests::routers::{BIRD, Router};
use holdfast_tests::runner::{Test, light};
use holdfast_tests::verdict::ensure_unbroken;
use holdfast_tests::{TIMEOUT, binary, frames, tagger};
use std::time::Duration;

pub(crate) fn tests() -> Vec<Test> {
    vec![
        light(
            "vlans_of_one_device_by_af_xdp",
            8,
            &[NGINX, CURL, PING],
            vlans_of_one_device_by_af_xdp,
        ),
        light(
            "vlans_of_one_device_by_af_packet",
            8,
            &[NGINX, CURL, PING],
            vlans_of_one_device_by_af_packet,
        ),
        light(
            "af_xdp_is_not_used_where_it_would_not_see_tags",
            2,
            &[],
            af_xdp_is_not_used_where_it_would_not_see_tags,
        ),
        light("neighbours_in_vlans", 4, &[BIRD, PING], neighbours_in_vlans),
    ]
}

/// The web server, in VLAN 101.
const SERVER: &str = "192.0.2.1";
/// Clients in VLAN 100, in VLAN 100 within 200, and without a VLAN, with the box's
/// addresses there.
const CLIENTS: [(&str, &str, &str); 3] = [
    ("tagged", "10.1.0.10", "10.1.0.1"),
    ("twice", "10.3.0.10", "10.3.0.1"),
    ("plain", "10.4.0.10", "10.4.0.1"),
];

/// The box: every client's packets get a priority on their way out, drop eligibility too,
/// and those for one server a VLAN of their own; replies to clients have another
/// priority.
fn configuration(driver: &str) -> String {
    format!(
        "cluster: vlans
ports:
  tagged: {{ device: \"{driver}trunk0\", vlan: 100, address: 10.1.0.1/24 }}
  twice:  {{ device: \"{driver}trunk0\", vlan: [200, 100], address: 10.3.0.1/24 }}
  plain:  {{ device: \"{driver}trunk0\", address: 10.4.0.1/24 }}
  wan:    {{ device: \"{driver}trunk0\", vlan: 101, flow_vlans: [300], address: 192.0.2.2/24, gateway: {SERVER} }}
zones: {{ inside: [tagged, twice, plain] }}
chains:
  office:
    functions:
      - firewall: {{ rules: [\"allow tcp on inside from any to any port 80,8081\", \"allow icmp on inside from any to any\"], default: deny }}
      - nat: {{ pool: [192.0.2.32/29], inside: [10.0.0.0/8] }}
      - vlan:
          classes:
            marked: {{ forward: {{ pcp: 5, dei: true }}, reverse: {{ pcp: 3 }} }}
            apart: {{ forward: {{ id: 300 }} }}
          rules: [\"apart tcp from any to any port 8081\"]
          default: marked
    protection: nfvactor
rules: [ {{ chain: office }} ]
runtimes: {{ min: 3, max: 3 }}
detection: {{ hang_ms: 1000 }}
"
    )
}

/// Clients, server and box around the switch. Fields are dropped in this order.
struct Trunk {
    running: RunningBox,
    tagger: Process,
    _servers: Vec<Nginx>,
    site: Site,
    clients: Vec<Namespace>,
    switch: Namespace,
    router: Namespace,
    lab: Lab,
}

impl Trunk {
    fn start(text: &str, offloads: Offloads, interrupt: &Interrupt) -> Result<Trunk> {
        let mut lab = Lab::new(interrupt.clone())?;
        let (router, switch) = (lab.namespace("box")?, lab.namespace("switch")?);
        link::silence(&router)?;
        link::silence(&switch)?;
        link::veth((&router, "trunk0"), (&switch, "trunk"), offloads, interrupt)?;
        let mut host = |name: &str, address: &str, gateway: Option<&str>| -> Result<Namespace> {
            let host = lab.namespace(name)?;
            link::veth((&switch, name), (&host, "eth0"), offloads, interrupt)?;
            link::address(&host, "eth0", &format!("{address}/24"))?;
            if let Some(gateway) = gateway {
                link::route(&host, "default", gateway)?;
            }
            Ok(host)
        };
        let server = host("server", SERVER, None)?;
        let clients = CLIENTS.map(|(name, address, gateway)| host(name, address, Some(gateway)));
        let clients = clients.into_iter().collect::<Result<Vec<_>>>()?;
        let access: [tagger::Access<'_>; 4] = [
            ("server", &[&[101], &[300]]),
            ("tagged", &[&[100]]),
            ("twice", &[&[200, 100]]),
            ("plain", &[&[]]),
        ];
        let tagger = tagger::start(&lab, &switch, "trunk", &access)?;
        let site = Site::new(&lab, "site")?;
        site.add("held", HELD_BODY)?;
        let addresses = [80, 8081].map(|port| socket(&format!("{SERVER}:{port}")));
        let servers = holdfast_lab::nginx::start_all(&lab, &server, &addresses, &site)?;
        let running = RunningBox::start(&lab, &router, &binary()?, text)?;
        Ok(Trunk { running, tagger, _servers: servers, site, clients, switch, router, lab })
    }

    fn fetch(&self, client: &Namespace, port: u16, rate: Option<u64>) -> Result<Download> {
        let url = format!("http://{SERVER}:{port}/some");
        Download::start(client, &Plan { url, bytes_per_second: rate, stalled_after: GIVE_UP })
    }

    /// Waits until these tags have come from the box.
    fn sees(&self, tags: &str) -> Result<()> {
        let what = format!("the box sends frames with the tags {tags}");
        let seen = || Ok(tagger::seen(&self.tagger).contains(tags).then_some(()));
        until(&what, TIMEOUT, self.lab.interrupt(), seen)
            .with_context(|| format!("{:?}", tagger::seen(&self.tagger)))
    }
}

fn port<'s>(status: &'s Status, name: &str) -> Result<&'s Port> {
    status.ports.iter().find(|port| port.name == name).with_context(|| format!("{status:?}"))
}

/// Offloads are off, as on a wire: AF_XDP sees tags in frames only.
fn vlans_of_one_device_by_af_xdp(interrupt: &Interrupt) -> Result<()> {
    vlans_of_one_device(("", "afxdp"), Offloads::Off, interrupt)
}

/// With offloads tags come beside the frame, packets uncut, and checksums not filled in.
fn vlans_of_one_device_by_af_packet(interrupt: &Interrupt) -> Result<()> {
    vlans_of_one_device(("afpacket:", "afpacket"), Offloads::LeftOn, interrupt)
}

fn vlans_of_one_device(
    (driver, used): (&str, &str),
    offloads: Offloads,
    interrupt: &Interrupt,
) -> Result<()> {
    let trunk = Trunk::start(&configuration(driver), offloads, interrupt)?;
    let sum = trunk.site.add_random("some", 4_000_000)?;
    // Files come whole to clients in every VLAN, while a runtime is killed; kernels at
    // both ends check the checksums.
    let downloads = trunk
        .clients
        .iter()
        .map(|client| trunk.fetch(client, 80, Some(1_000_000)))
        .collect::<Result<Vec<_>>>()?;
    let held = trunk
        .clients
        .iter()
        .map(|client| hold(client, &format!("{SERVER}:80"), 10, interrupt))
        .collect::<Result<Vec<_>>>()?;
    let victim = trunk.running.busiest(None)?;
    trunk.running.kill(&victim, true, RECOVERY_LIMIT, interrupt)?;
    for held in &held {
        ensure_unbroken(held, interrupt)?;
    }
    for download in downloads {
        let outcome = download.finish(Duration::from_secs(60), interrupt)?;
        ensure!(outcome.error.is_none() && outcome.sum == sum, "{outcome:?}");
    }
    drop(held);
    // Flows that a function has put into another VLAN of the port come through, too.
    let outcome = trunk.fetch(&trunk.clients[1], 8081, None)?.finish(TIMEOUT, interrupt)?;
    ensure!(outcome.error.is_none() && outcome.sum == sum, "{outcome:?}");
    // Priority 5 and drop eligibility, priority 3 in every VLAN and in none, and the
    // other VLAN.
    for tags in ["8100b065", "81006064", "88a860c881006064", "81006000", "8100012c"] {
        trunk.sees(tags)?;
    }
    full_packets_pass(&trunk)?;
    unknown_vlans_do_not(&trunk)?;
    let status = trunk.running.status()?;
    for (name, vlan, mtu) in
        [("tagged", &[100][..], 1500), ("twice", &[200, 100], 1492), ("plain", &[], 1500)]
    {
        let port = port(&status, name)?;
        ensure!(port.vlan == vlan && port.mtu == mtu && port.driver == used && port.up, "{port:?}");
        ensure!(port.received > 0 && port.transmitted > 0 && port.consumed > 0, "{port:?}");
    }
    let mut running = trunk.running;
    let ended = running.stop(TIMEOUT, interrupt)?;
    ensure!(ended.success(), "{ended}: {}", running.process().last_words());
    Ok(())
}

/// Packets of the whole MTU pass from one VLAN to another. Two tags leave less room: the
/// sender is told how much.
fn full_packets_pass(trunk: &Trunk) -> Result<()> {
    let ping = |client: usize, to: &str, bytes: u32| {
        let line = format!("ping -n -q -c 3 -i 0.2 -W 5 -M do -s {bytes} {to}");
        trunk.clients[client].run(&line)
    };
    for (client, to, bytes) in [
        (0, SERVER, 1472),
        (0, CLIENTS[0].2, 1472),
        (2, SERVER, 1472),
        (2, CLIENTS[0].1, 1472),
        (2, CLIENTS[1].1, 1464),
        (1, SERVER, 1464),
    ] {
        ping(client, to, bytes)?;
    }
    let refused = ping(2, CLIENTS[1].1, 1472).err().context("1500 bytes fit behind two tags")?;
    let words = format!("{refused:#}");
    ensure!(words.contains("100% packet loss"), "{words}");
    let learnt = trunk.clients[2].run(&format!("ip route get {}", CLIENTS[1].1))?;
    ensure!(learnt.contains("mtu 1492"), "{learnt}");
    Ok(())
}

/// Frames of a VLAN that no port has, and with tags that no port can have, reach nobody,
/// and are counted at the device's first port by name.
fn unknown_vlans_do_not(trunk: &Trunk) -> Result<()> {
    let counted = |status: &Status| -> Result<u64> {
        let port = port(status, "plain")?;
        Ok(port.drops.get("unknown_vlan").copied().unwrap_or(0))
    };
    let before = counted(&trunk.running.status()?)?;
    let ends = frames::Ends {
        from_mac: link::mac(&trunk.clients[0], "eth0")?,
        to_mac: link::mac(&trunk.router, "trunk0")?,
        from: (CLIENTS[0].1.parse()?, 5000),
        to: (SERVER.parse()?, 80),
    };
    let frame = ends.syn();
    let sender = frames::Sender::open(&trunk.switch, "trunk")?;
    for tags in [
        &[0x81, 0, 3, 231][..],
        &[0x88, 0xa8, 0, 100],
        &[0x88, 0xa8, 0, 200, 0x81, 0, 0, 101],
        &[0x81, 0, 0, 200, 0x81, 0, 0, 100],
        &[0x88, 0xa8, 0, 200, 0x81, 0, 0, 100, 0x81, 0, 0, 5],
    ] {
        sender.send(&[&frame[..12], tags, &frame[12..]].concat())?;
    }
    trunk
        .running
        .wait_for("unknown VLANs are counted", TIMEOUT, trunk.lab.interrupt(), |status| {
            counted(status).is_ok_and(|now| now == before + 5)
        })
        .map(drop)
}

/// A device that takes tags off received frames: AF_XDP would not see them, so AF_PACKET
/// is used, unless the configuration insists.
fn af_xdp_is_not_used_where_it_would_not_see_tags(interrupt: &Interrupt) -> Result<()> {
    let mut trunk = Trunk::start(&configuration(""), Offloads::LeftOn, interrupt)?;
    let status = trunk.running.status()?;
    ensure!(port(&status, "tagged")?.driver == "afpacket", "{status:?}");
    trunk.running.stop(TIMEOUT, interrupt)?;
    let mut refused =
        RunningBox::launch(&trunk.lab, &trunk.router, &binary()?, &configuration("afxdp:"))?;
    let ended = refused.process().wait(TIMEOUT, interrupt)?;
    ensure!(!ended.success() && refused.stderr().contains("rxvlan off"), "{}", refused.stderr());
    Ok(())
}

/// Neighbour discovery answers in a VLAN. In VLAN 100 within 200 a router speaks BFD with
/// the box, by IPv4 and by IPv6, for which each has to find the other there; the box
/// notices its death.
fn neighbours_in_vlans(interrupt: &Interrupt) -> Result<()> {
    const SIX: [(&str, &str); 2] =
        [("2001:db8:1::10", "2001:db8:1::1"), ("2001:db8:3::10", "2001:db8:3::1")];
    let mut text = configuration("afpacket:");
    for ((_, own), (_, _, four)) in SIX.iter().zip(&CLIENTS) {
        text = text.replace(
            &format!("address: {four}/24"),
            &format!("address: [{four}/24, \"{own}/64\"]"),
        );
    }
    let peers = [(CLIENTS[1].1, CLIENTS[1].2), SIX[1]];
    let bfd =
        peers.map(|(peer, _)| format!("{{ peer: \"{peer}\", interval: 500ms, multiplier: 5 }}"));
    let end = format!("{}/64\"]", SIX[1].1);
    text = text.replace(&end, &format!("{end}, bfd: [{}]", bfd.join(", ")));
    let mut trunk = Trunk::start(&text, Offloads::LeftOn, interrupt)?;
    for (client, (address, _)) in trunk.clients.iter().zip(SIX) {
        link::address(client, "eth0", &format!("{address}/64"))?;
    }
    trunk.clients[0].run(&format!("ping -n -q -c 3 -i 0.2 -W 5 {}", SIX[0].1))?;
    let mut router = Router::bird(&trunk.lab, &trunk.clients[1], "eth0", &peers, 500, None)?;
    let wait_for = |state: &str| {
        let what = format!("both sessions are {state}");
        trunk.running.wait_for(&what, TIMEOUT, interrupt, |status| {
            let bfd = port(status, "twice").map(|port| port.bfd.as_slice()).unwrap_or_default();
            bfd.len() == 2 && bfd.iter().all(|bfd| bfd.state == state)
        })
    };
    wait_for("Up")?;
    router.kill()?;
    let status = wait_for("Down")?;
    let foreign: u64 = status.ports.iter().filter_map(|port| port.drops.get("unknown_vlan")).sum();
    ensure!(foreign == 0, "{status:?}");
    trunk.running.stop(TIMEOUT, interrupt)?;
    Ok(())
}
