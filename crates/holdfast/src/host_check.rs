//! `holdfast check`, the host's half: requirements of a box on this machine, and
//! remedies.
//!
//! The checks change nothing. If a fact cannot be found out, the check warns and does not
//! fail.

use crate::config::{Memory, Plan, Port};
use holdfast_control::exit;
use holdfast_io::control_transport::libfabric;
use holdfast_io::port::{Dpdk, free_huge_pages};
use rustix::fs::MemfdFlags;
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType};
use rustix::process::{PidfdFlags, getpid};
use serde::Serialize;
use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

/// The outcome of a check.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Outcome {
    /// The requirement is met.
    Ok,
    /// A box can run, but the finding deserves attention.
    Warn,
    /// A box cannot run.
    Fail,
}

/// A check.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Check {
    /// The subject.
    pub name: String,
    /// The outcome.
    pub outcome: Outcome,
    /// The finding.
    pub found: String,
    /// The remedy.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub remedy: Option<String>,
    /// Exit code if it failed.
    #[serde(skip)]
    pub code: u8,
}

impl Check {
    pub(crate) fn ok(name: impl Into<String>, found: impl Into<String>) -> Check {
        Check {
            name: name.into(),
            outcome: Outcome::Ok,
            found: found.into(),
            remedy: None,
            code: 0,
        }
    }

    pub(crate) fn warn(
        name: impl Into<String>,
        found: impl Into<String>,
        remedy: impl Into<String>,
    ) -> Check {
        Check { outcome: Outcome::Warn, remedy: Some(remedy.into()), ..Check::ok(name, found) }
    }

    pub(crate) fn fail(
        code: u8,
        name: impl Into<String>,
        found: impl Into<String>,
        remedy: impl Into<String>,
    ) -> Check {
        Check {
            outcome: Outcome::Fail,
            remedy: Some(remedy.into()),
            code,
            ..Check::ok(name, found)
        }
    }
}

/// Capabilities: bit in `CapEff`, name, true if a box cannot run without it, and purpose.
const CAPABILITIES: &[(u32, &str, bool, &str)] = &[
    (12, "CAP_NET_ADMIN", true, "setting a port promiscuous"),
    (13, "CAP_NET_RAW", true, "sending and receiving frames"),
    (39, "CAP_BPF", false, "AF_XDP only"),
];
/// Bit of CAP_SYS_ADMIN, which includes CAP_BPF (capabilities(7)).
const CAP_SYS_ADMIN: u32 = 21;
const ROOT: &str = "run as root, or `setcap cap_net_raw,cap_net_admin,cap_bpf+ep` on the binary";

/// Checks of the machine itself.
pub fn host() -> Vec<Check> {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mut checks = capabilities(&status);
    checks.push(kernel());
    checks.push(feature(
        "pidfd",
        "noticing the end of a process",
        rustix::process::pidfd_open(getpid(), PidfdFlags::empty()),
    ));
    checks.push(feature(
        "memfd",
        "memory shared with runtimes",
        rustix::fs::memfd_create("holdfast-check", MemfdFlags::CLOEXEC),
    ));
    checks.push(processes(&std::fs::read_to_string("/proc/self/mounts").unwrap_or_default()));
    checks.push(socket("AF_PACKET", AddressFamily::PACKET, true));
    checks.push(socket("AF_XDP", AddressFamily::XDP, false));
    checks.push(huge_pages(&std::fs::read_to_string("/proc/meminfo").unwrap_or_default()));
    checks
}

/// Checks the transport of a state server's control messages.
pub fn words(plan: &Plan) -> Option<Check> {
    let provider = plan.state_servers.provider.as_ref()?;
    let name = format!("state server: libfabric's `{provider}`");
    Some(match libfabric::prepare(provider) {
        Ok(()) => Check::ok(name, "there"),
        Err(why) => Check::fail(exit::UNAVAILABLE, name, "cannot be used", why),
    })
}

/// Compares this machine's memory with the need of the flows that the limits allow.
pub fn memory(plan: &Plan, needed: &Memory) -> Check {
    memory_of(plan, needed, &std::fs::read_to_string("/proc/meminfo").unwrap_or_default())
}

fn memory_of(plan: &Plan, needed: &Memory, meminfo: &str) -> Check {
    let Memory {
        flows,
        switches,
        runtimes,
        runtime_at_most,
        state_servers,
        logs_at_most,
        buffers_at_most,
    } = *needed;
    let mut found = format!(
        "{flows} flows take {} ({} bytes each): {} at the switch, {} in {} runtimes",
        size(needed.of_flows()),
        needed.of_flows() / flows.max(1),
        size(switches),
        size(runtimes),
        plan.runtimes(),
    );
    let more = [("at the state server", state_servers), ("of packet logs", logs_at_most)];
    more.iter()
        .filter(|(_, bytes)| *bytes > 0)
        .for_each(|(what, bytes)| found += &format!(", {} {what}", size(*bytes)));
    found += &format!(
        "; one runtime at most {}; packet buffers at most {}",
        size(runtime_at_most),
        size(buffers_at_most)
    );
    let total = field(meminfo, "MemTotal").map(|kibibytes| kibibytes as usize * 1024);
    // Several hosts divide the memory in ways that depend on which of them live: each
    // needs a runtime's part at least.
    let here = if plan.hosts.is_empty() {
        needed.all()
    } else {
        switches + runtime_at_most + buffers_at_most
    };
    match total {
        Some(total) if here > total => Check::warn(
            "memory",
            format!("{found}; this machine has {}", size(total)),
            "lower `limits.flows` or `limits.buffers`",
        ),
        _ => Check::ok("memory", found),
    }
}

fn size(bytes: usize) -> String {
    match bytes {
        0..0x8000_0000 => format!("{} MiB", bytes.div_ceil(1 << 20)),
        _ => format!("{:.1} GiB", bytes as f64 / f64::from(1 << 30)),
    }
}

/// Checks of the devices that a configuration names.
pub fn devices(plan: &Plan) -> Vec<Check> {
    let addresses = kernel_addresses();
    let mut checks = Vec::new();
    for (at, Port { name: port, device, .. }) in plan.ports.iter().enumerate() {
        // A device that ports share is looked at once.
        if plan.ports[..at].iter().any(|other| other.device == *device) {
            continue;
        }
        let (driver, device) = device.split_once(':').unwrap_or(("", device));
        let name = |what: &str| format!("port {port} ({device}): {what}");
        match driver {
            "dpdk" => {
                checks.push(dpdk(name("DPDK"), Dpdk::absent(), free_huge_pages()));
                continue;
            }
            // Files are left to `run`, which reports at once those that cannot be opened.
            "pcap" => continue,
            _ => {}
        }
        let path = Path::new("/sys/class/net").join(device);
        if !path.exists() {
            checks.push(Check::fail(
                exit::UNAVAILABLE,
                name("device"),
                "not there",
                "`ip link` lists the devices that are there",
            ));
            continue;
        }
        checks.push(link(name("device"), device, &path));
        checks.push(match addresses.get(device).map(Vec::as_slice).unwrap_or_default() {
            [] => Check::ok(name("kernel addresses"), "none"),
            found => Check::warn(
                name("kernel addresses"),
                found.join(", "),
                format!(
                    "the kernel answers there as well as the box: `ip address flush dev {device}`"
                ),
            ),
        });
        checks.push(offloads(name("offloads"), device));
    }
    checks
}

/// The exit code for these checks: 0 if a box can run.
pub fn code(checks: &[Check]) -> u8 {
    let failed =
        || checks.iter().filter(|check| check.outcome == Outcome::Fail).map(|check| check.code);
    // Missing privileges come first: other checks cannot work without them.
    failed().find(|code| *code == exit::PERMISSION).or_else(|| failed().next()).unwrap_or(0)
}

fn capabilities(status: &str) -> Vec<Check> {
    let line = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    let bits = line.and_then(|text| u64::from_str_radix(text.trim(), 16).ok()).unwrap_or(0);
    let has = |bit: u32| bits & (1 << bit) != 0;
    let one = |(bit, name, is_needed, what): &(u32, &str, bool, &str)| {
        if has(*bit) || (!is_needed && has(CAP_SYS_ADMIN)) {
            Check::ok(*name, "there")
        } else if *is_needed {
            Check::fail(exit::PERMISSION, *name, format!("missing: {what} needs it"), ROOT)
        } else {
            Check::warn(
                *name,
                format!("missing: {what}"),
                "nothing to do as long as ports are AF_PACKET",
            )
        }
    };
    CAPABILITIES.iter().map(one).collect()
}

/// Checks that /proc shows the box's processes to one another: their memory is private
/// (`PR_SET_DUMPABLE`), so `hidepid` (proc(5)) hides them also from their own user.
fn processes(mounts: &str) -> Check {
    const NAME: &str = "/proc";
    // The last of several mounts at one place counts.
    let of_proc = |line: &&str| line.split(' ').nth(1) == Some("/proc");
    let options =
        mounts.lines().rfind(of_proc).and_then(|line| line.split(' ').nth(3)).unwrap_or_default();
    match options.split(',').find_map(|option| option.strip_prefix("hidepid=")) {
        None | Some("0" | "off") => Check::ok(NAME, "shows processes"),
        Some(how) => Check::warn(
            NAME,
            format!(
                "hides processes (hidepid={how}): a runtime that only waits for a processor cannot be told from one that hangs, and is given up after detection.hang_ms, too"
            ),
            "`mount -o remount,hidepid=0 /proc`, or a longer `detection.hang_ms` where processors are scarce",
        ),
    }
}

fn kernel() -> Check {
    let uname = rustix::system::uname();
    let release = uname.release().to_string_lossy().into_owned();
    let mut numbers = release
        .split(|character: char| !character.is_ascii_digit())
        .map_while(|text| text.parse::<u32>().ok());
    // pidfd_open came with 5.3, and is the newest system call that a box cannot do
    // without.
    match (numbers.next(), numbers.next()) {
        (Some(major), Some(minor)) if (major, minor) < (5, 3) => {
            Check::fail(exit::UNAVAILABLE, "kernel", release, "Linux 5.3 or later is needed")
        }
        _ => Check::ok("kernel", release),
    }
}

fn feature<T>(name: &str, what: &str, result: Result<T, Errno>) -> Check {
    match result {
        Ok(_) => Check::ok(name, "works"),
        Err(error) => Check::fail(
            exit::UNAVAILABLE,
            name,
            format!("{error}: {what} needs it"),
            "a newer kernel, or a container that allows it",
        ),
    }
}

fn socket(name: &str, family: AddressFamily, is_needed: bool) -> Check {
    match rustix::net::socket_with(family, SocketType::RAW, SocketFlags::CLOEXEC, None) {
        Ok(_) => Check::ok(name, "works"),
        Err(Errno::PERM | Errno::ACCESS) if is_needed => {
            Check::fail(exit::PERMISSION, name, "not permitted", ROOT)
        }
        Err(Errno::PERM | Errno::ACCESS) => Check::warn(name, "not permitted", ROOT),
        Err(error) if is_needed => {
            Check::fail(exit::UNAVAILABLE, name, error.to_string(), "a kernel with CONFIG_PACKET")
        }
        Err(error) => {
            Check::warn(name, error.to_string(), "nothing to do as long as ports are AF_PACKET")
        }
    }
}

/// A number of `/proc/meminfo`.
fn field(meminfo: &str, name: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix(name));
    line.and_then(|rest| rest.trim_start_matches(':').split_whitespace().next()?.parse().ok())
}

fn huge_pages(meminfo: &str) -> Check {
    let field = |name| field(meminfo, name);
    match (field("HugePages_Total"), field("HugePages_Free"), field("Hugepagesize")) {
        (Some(0), _, _) => Check::ok("huge pages", "none; not needed with AF_PACKET"),
        (Some(total), Some(free), Some(size)) => {
            Check::ok("huge pages", format!("{free} of {total} free, {size} KiB each"))
        }
        _ => Check::warn(
            "huge pages",
            "unknown",
            "nothing to do: they are not needed with AF_PACKET",
        ),
    }
}

/// Checks DPDK's requirements. Its devices are not probed, because starting DPDK takes a
/// part of the machine.
fn dpdk(name: String, absent: Option<&str>, free_huge: u64) -> Check {
    match (absent, free_huge) {
        (Some(why), _) => Check::fail(exit::UNAVAILABLE, name, "not there", why),
        (None, free) if free < Dpdk::ENOUGH_HUGE => Check::warn(
            name,
            "there, but not enough huge pages are free: it works, at half the speed",
            "`sysctl vm.nr_hugepages=512`",
        ),
        (None, _) => Check::ok(name, "there, with huge pages"),
    }
}

fn link(name: String, device: &str, path: &Path) -> Check {
    let read = |file: &str| {
        std::fs::read_to_string(path.join(file))
            .map(|text| text.trim().to_owned())
            .unwrap_or_default()
    };
    // ARPHRD_ETHER.
    if read("type") != "1" {
        return Check::fail(exit::UNAVAILABLE, name, "not Ethernet", "name an Ethernet interface");
    }
    let flags = u32::from_str_radix(read("flags").trim_start_matches("0x"), 16).unwrap_or(0);
    // IFF_UP.
    if flags & 1 == 0 {
        return Check::warn(name, "down", format!("`ip link set {device} up`"));
    }
    match read("operstate").as_str() {
        state @ ("down" | "lowerlayerdown") => {
            Check::warn(name, state, "it has no carrier: look at the cable, or the other end")
        }
        _ if read("mtu").parse().is_ok_and(|mtu: usize| mtu > holdfast_wire::MAX_MTU) => {
            Check::fail(
                exit::UNAVAILABLE,
                name,
                format!("an MTU of {}, more than a packet buffer holds", read("mtu")),
                format!("`ip link set {device} mtu {}`, or less", holdfast_wire::MAX_MTU),
            )
        }
        state => Check::ok(name, format!("{state}, MTU {}", read("mtu"))),
    }
}

/// Addresses that the kernel has, by device. IPv6 link-local ones count: the kernel
/// answers for them.
fn kernel_addresses() -> BTreeMap<String, Vec<String>> {
    let mut all: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for address in nix::ifaddrs::getifaddrs().into_iter().flatten() {
        let Some(storage) = address.address else { continue };
        let text = match (storage.as_sockaddr_in(), storage.as_sockaddr_in6()) {
            (Some(v4), _) => v4.ip().to_string(),
            (_, Some(v6)) => v6.ip().to_string(),
            _ => continue,
        };
        all.entry(address.interface_name).or_default().push(text);
    }
    all
}

/// Offloads that make frames read from a device differ from those on the wire.
const OFFLOADS: &[(&str, &str)] = &[
    ("tx-checksumming", "tx"),
    ("tcp-segmentation-offload", "tso"),
    ("generic-segmentation-offload", "gso"),
    ("generic-receive-offload", "gro"),
    ("large-receive-offload", "lro"),
    ("rx-vlan-offload", "rxvlan"),
    ("tx-vlan-offload", "txvlan"),
];

fn offloads(name: String, device: &str) -> Check {
    // The device's name comes from a checked configuration, but a leading `-` would make
    // it an option.
    if device.starts_with('-') {
        return Check::warn(name, "unknown", "ethtool cannot be asked about a device of this name");
    }
    let command = |path: &str| Command::new(path).args(["-k", device]).output();
    match command("ethtool").or_else(|_| command("/usr/sbin/ethtool")) {
        Ok(output) if output.status.success() => {
            let on = offloads_on(&String::from_utf8_lossy(&output.stdout));
            if on.is_empty() {
                return Check::ok(name, "off");
            }
            let switches: Vec<String> = on.iter().map(|switch| format!("{switch} off")).collect();
            Check::warn(
                name,
                format!("on: {}", on.join(", ")),
                format!(
                    "the box undoes them in software, which costs; if nobody needs them: `ethtool -K {device} {}`",
                    switches.join(" ")
                ),
            )
        }
        Ok(_) => Check::warn(name, "unknown", format!("`ethtool -k {device}` says why")),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            Check::warn(name, "unknown: ethtool is not installed", "`apt-get install ethtool`")
        }
        Err(error) => Check::warn(
            name,
            format!("unknown: ethtool cannot be started: {error}"),
            format!("`ethtool -k {device}` shows them"),
        ),
    }
}

/// The offloads that are on and may be changed, in `ethtool -k`'s output.
fn offloads_on(text: &str) -> Vec<&'static str> {
    let is_on = |feature: &str| {
        text.lines()
            .filter_map(|line| line.trim().split_once(':'))
            .any(|(name, value)| name == feature && value.trim() == "on")
    };
    OFFLOADS.iter().filter(|(feature, _)| is_on(feature)).map(|(_, switch)| *switch).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_capabilities_are_named_with_a_remedy() {
        let outcomes =
            |line: &str| capabilities(line).iter().map(|check| check.outcome).collect::<Vec<_>>();
        assert_eq!(outcomes("CapEff:\t000001ffffffffff\n"), [Outcome::Ok; 3]);
        assert_eq!(
            outcomes("CapEff:\t00000000a80425fb\n"),
            [Outcome::Fail, Outcome::Ok, Outcome::Warn],
            "a plain container"
        );
        assert_eq!(
            outcomes("CapEff:\t0000000000203000\n"),
            [Outcome::Ok; 3],
            "CAP_SYS_ADMIN includes CAP_BPF"
        );
        let checks = capabilities("");
        assert_eq!(code(&checks), exit::PERMISSION);
        assert!(checks.iter().all(|check| check.outcome == Outcome::Ok || check.remedy.is_some()));
    }

    #[test]
    fn a_proc_that_hides_processes_is_warned_of() {
        let outcome = |options: &str| {
            let check = processes(&format!(
                "/dev/vda / ext4 rw 0 0\nproc /proc proc {options} 0 0\nproc /srv/proc proc rw,hidepid=2 0 0\n"
            ));
            (check.outcome, check.remedy.is_some())
        };
        for shows in ["rw,nosuid", "rw,hidepid=0", "rw,hidepid=off,gid=4"] {
            assert_eq!(outcome(shows), (Outcome::Ok, false), "{shows}");
        }
        for hides in ["rw,nosuid,hidepid=2", "rw,hidepid=invisible", "rw,gid=4,hidepid=ptraceable"]
        {
            assert_eq!(outcome(hides), (Outcome::Warn, true), "{hides}");
        }
        assert_eq!(processes("").outcome, Outcome::Ok);
        let mounted_over = "proc /proc proc rw,hidepid=2 0 0\nproc /proc proc rw 0 0\n";
        assert_eq!(processes(mounted_over).outcome, Outcome::Ok);
    }

    #[test]
    fn the_exit_code_is_the_privileges_first() {
        let missing = Check::fail(exit::UNAVAILABLE, "a", "b", "c");
        let refused = Check::fail(exit::PERMISSION, "a", "b", "c");
        assert_eq!(code(&[Check::ok("a", "b"), Check::warn("a", "b", "c")]), 0);
        assert_eq!(code(std::slice::from_ref(&missing)), exit::UNAVAILABLE);
        assert_eq!(code(&[missing, refused]), exit::PERMISSION);
    }

    #[test]
    fn ethtools_output_is_read() {
        let text = "Features for veth-in:\nrx-checksumming: on\ntx-checksumming: on\n\ttx-checksum-ip-generic: on\ngeneric-receive-offload: off\n\
                    rx-vlan-offload: on [fixed]\ntcp-segmentation-offload: on\n";
        assert_eq!(offloads_on(text), ["tx", "tso"]);
        assert!(offloads_on("").is_empty());
    }

    #[test]
    fn huge_pages_are_information_only() {
        assert!(
            huge_pages("HugePages_Total:       0\nHugePages_Free: 0\nHugepagesize: 2048 kB\n")
                .found
                .starts_with("none")
        );
        let some = huge_pages(
            "HugePages_Total:     512\nHugePages_Free:      500\nHugepagesize:       2048 kB\n",
        );
        assert_eq!(
            (some.outcome, some.found.as_str()),
            (Outcome::Ok, "500 of 512 free, 2048 KiB each")
        );
        assert_eq!(huge_pages("").outcome, Outcome::Warn);
    }

    #[test]
    fn dpdk_that_was_not_built_in_fails_and_small_pages_are_a_warning() {
        let check = |absent, free| dpdk("x".to_owned(), absent, free);
        let absent = check(Some("install libdpdk-dev"), 1 << 30);
        assert_eq!((absent.outcome, absent.code), (Outcome::Fail, exit::UNAVAILABLE));
        assert_eq!(absent.remedy.as_deref(), Some("install libdpdk-dev"));
        assert_eq!(check(None, 0).outcome, Outcome::Warn);
        assert_eq!(check(None, 1 << 30).outcome, Outcome::Ok);
    }

    /// The check reports memory by part and warns if the machine has less. The check
    /// compares with the machine's total memory, not with what is free at present.
    #[test]
    fn more_than_the_machine_has_is_warned_of() {
        let check = |flows: u64, protection: &str, kibibytes: u64| {
            let text = format!(
                "cluster: a\nports: {{ x: {{ device: eth0, address: 10.0.0.1/24 }} }}\nchains: {{ c: {{ functions: [forward], protection: {protection} }} }}\n\
                 rules: [{{ chain: c }}]\nlimits: {{ flows: {flows}, buffers: 16384 }}\n"
            );
            let plan =
                crate::config::read("f", &text).unwrap_or_else(|mistake| panic!("{mistake}"));
            memory_of(
                &plan,
                &Memory::of(&plan),
                &format!("MemTotal:  {kibibytes} kB\nMemFree: 1 kB\n"),
            )
        };
        let (with, without) =
            (check(1_000_000, "nfvactor", 1 << 20), check(1_000_000, "none", 1 << 20));
        assert_eq!(
            (with.outcome, without.outcome),
            (Outcome::Ok, Outcome::Ok),
            "{with:?} {without:?}"
        );
        assert_eq!(
            with.found,
            "1000000 flows take 771 MiB (808 bytes each): 275 MiB at the switch, 496 MiB in 3 runtimes; one runtime at most 496 MiB; packet buffers at most 43 MiB"
        );
        assert!(
            without.found.contains("248 MiB in 3 runtimes"),
            "a copy takes as much as its flow: {}",
            without.found
        );
        let warned = check(10_000_000, "nfvactor", 1 << 20);
        assert_eq!(warned.outcome, Outcome::Warn);
        assert!(
            warned.found.ends_with("; this machine has 1024 MiB") && warned.remedy.is_some(),
            "{warned:?}"
        );
    }

    /// Ports that are not Linux interfaces: they are not looked for among the interfaces.
    #[test]
    fn what_is_no_linux_interface_is_not_looked_for_among_them() {
        let text = "cluster: a\nports:\n  x: { device: \"dpdk:net_ring0\", address: 10.0.0.1/24 }\n  y: { device: \"pcap:a,b\", address: 10.0.1.1/24 }\n\
                    chains: { c: { functions: [forward] } }\nrules: [{ chain: c }]\n";
        let checks =
            devices(&crate::config::read("f", text).unwrap_or_else(|mistake| panic!("{mistake}")));
        assert_eq!(
            checks.iter().map(|check| check.name.as_str()).collect::<Vec<_>>(),
            ["port x (net_ring0): DPDK"]
        );
    }

    #[test]
    fn a_device_that_is_not_there_fails_and_others_are_looked_at() {
        let text = "cluster: a\nports:\n  x: { device: no-such-dev, address: 10.0.0.1/24 }\n  y: { device: lo, address: 10.0.1.1/24 }\n\
                    chains: { c: { functions: [forward] } }\nrules: [{ chain: c }]\n";
        let checks =
            devices(&crate::config::read("f", text).unwrap_or_else(|mistake| panic!("{mistake}")));
        assert_eq!(
            (checks[0].outcome, checks[0].name.as_str()),
            (Outcome::Fail, "port x (no-such-dev): device")
        );
        assert_eq!(
            (checks[1].outcome, checks[1].found.as_str()),
            (Outcome::Fail, "not Ethernet"),
            "loopback is no port"
        );
        assert_eq!(code(&checks), exit::UNAVAILABLE);
    }

    #[test]
    fn every_check_of_this_machine_has_a_finding_and_a_remedy_if_it_is_not_ok() {
        for check in host() {
            assert!(!check.found.is_empty(), "{check:?}");
            assert!(check.outcome == Outcome::Ok || check.remedy.is_some(), "{check:?}");
        }
    }
}
