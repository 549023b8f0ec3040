//! Bad input and bad circumstances: the box forwards correctly or drops with a reason,
//! reports errors, and leaves nothing behind.

use anyhow::{Context, Result, ensure};
use holdfast_control::status::{Port, Status};
use holdfast_lab::download::{Download, Plan};
use holdfast_lab::link::Offloads;
use holdfast_lab::process::{Process, signal_pid};
use holdfast_lab::programs;
use holdfast_lab::requirements::*;
use holdfast_lab::running::RunningBox;
use holdfast_lab::topology::HOST_DEVICE;
use holdfast_lab::{Interrupt, link, until};
use holdfast_tests::network::{
    self, CLIENT, Chain, GIVE_UP, INSIDE, Network, Options, SERVER, VIRTUAL, ip, socket,
};
use holdfast_tests::runner::{Test, alone, light};
use holdfast_tests::verdict::ensure_unbroken;
use holdfast_tests::{TIMEOUT, binary, frames};
use rustix::process::Signal;
use std::collections::BTreeSet;
use std::time::Duration;

const SETPRIV: Program = ("setpriv", "util-linux");
const PRLIMIT: Program = ("prlimit", "util-linux");

pub(crate) fn tests() -> Vec<Test> {
    vec![
        light(
            "offloads_left_on_do_not_corrupt",
            2,
            &[NGINX, CURL, PING],
            offloads_left_on_do_not_corrupt,
        ),
        light("a_missing_device_is_69", 1, &[], a_missing_device_is_69),
        light(
            "too_few_descriptors_are_no_missing_device",
            1,
            &[PRLIMIT],
            too_few_descriptors_are_no_missing_device,
        ),
        light(
            "a_deleted_device_is_used_again_when_it_is_back",
            7,
            &[PING],
            a_deleted_device_is_used_again_when_it_is_back,
        ),
        light(
            "a_removed_control_socket_stays_the_boxs",
            3,
            &[],
            a_removed_control_socket_stays_the_boxs,
        ),
        light(
            "warnings_come_before_ready_and_sighup_is_answered",
            2,
            &[],
            warnings_come_before_ready_and_sighup_is_answered,
        ),
        light("a_missing_privilege_is_77", 1, &[SETPRIV], a_missing_privilege_is_77),
        light(
            "a_bad_configuration_is_78_and_names_the_line",
            2,
            &[],
            a_bad_configuration_is_78_and_names_the_line,
        ),
        alone(
            "looks for what is left on the whole machine",
            "sigterm_leaves_nothing_behind",
            2,
            &[],
            sigterm_leaves_nothing_behind,
        ),
        alone(
            "looks for what is left on the whole machine",
            "sigterm_right_after_a_kill_leaves_nothing_behind",
            2,
            &[],
            sigterm_right_after_a_kill_leaves_nothing_behind,
        ),
        alone(
            "looks for what is left on the whole machine",
            "everybody_ends_with_a_killed_guard",
            1,
            &[],
            everybody_ends_with_a_killed_guard,
        ),
        light("the_control_socket_is_private", 1, &[], the_control_socket_is_private),
        light("a_full_table_drops_and_keeps", 1, &[NGINX], a_full_table_drops_and_keeps),
        light("an_empty_pool_drops_and_keeps", 1, &[NGINX], an_empty_pool_drops_and_keeps),
        light(
            "garbage_is_dropped_with_a_reason",
            2,
            &[NGINX, PING],
            garbage_is_dropped_with_a_reason,
        ),
    ]
}

/// A user who has not read the manual has these offloads: unfilled checksums and segments
/// of 64 KiB.
fn offloads_left_on_do_not_corrupt(interrupt: &Interrupt) -> Result<()> {
    let options = Options { offloads: Offloads::LeftOn, ..Options::protected(Chain::Balanced) };
    let mut network = Network::start(&options, interrupt)?;
    network.serve_web()?;
    let sum = network.site.add_random("some", 10_000_000)?;
    let held = network.hold(VIRTUAL, 10)?;
    let plan = Plan {
        url: format!("http://{VIRTUAL}/some"),
        bytes_per_second: None,
        stalled_after: GIVE_UP,
    };
    let outcome = Download::start(&network.topology.client, &plan)?
        .finish(Duration::from_secs(120), interrupt)?;
    ensure!(outcome.error.is_none() && outcome.sum == sum, "{outcome:?}");
    let (_echo, stream) = network.stream(5, 200)?;
    until("200 datagrams return", TIMEOUT, interrupt, || {
        Ok((stream.datagrams().returned > 200).then_some(()))
    })?;
    let datagrams = stream.finish();
    ensure!(datagrams.changed == 0 && datagrams.flows_alive == 5, "{datagrams:?}");
    ensure!(held.verify(interrupt)?.broken == 0);
    drop(held);
    network.stop()
}

/// Starts a box that must refuse to run; returns its exit code and its standard error.
fn refused(configuration: &str, interrupt: &Interrupt) -> Result<(Option<i32>, String)> {
    let (lab, topology) = network::cables(&Options::protected(Chain::Edge), interrupt)?;
    let mut running = RunningBox::launch(&lab, &topology.router, &binary()?, configuration)?;
    let status = running.process().wait(TIMEOUT, interrupt)?;
    Ok((status.code(), running.process().stderr()))
}

fn a_missing_device_is_69(interrupt: &Interrupt) -> Result<()> {
    let configuration = Options::protected(Chain::Edge).configuration().replace("wan0\"", "wan7\"");
    let (code, said) = refused(&configuration, interrupt)?;
    ensure!(code == Some(69) && said.contains("wan7"), "{code:?}: {said}");
    Ok(())
}

/// A box that may open hardly any files must not blame a device that is there.
fn too_few_descriptors_are_no_missing_device(interrupt: &Interrupt) -> Result<()> {
    let (lab, topology) = network::cables(&Options::protected(Chain::Edge), interrupt)?;
    let file = lab.write(
        "holdfast.yaml",
        Options { driver: "afpacket:", ..Options::protected(Chain::Edge) }.configuration(),
    )?;
    let mut command = topology.router.command("sh");
    // Standard input, output and error, and the first port's socket: no more. A
    // descriptor that this program was started with, as by `make -j`, would be one more.
    const CLOSED: &str = "exec 3>&- 4>&- 5>&- 6>&- 7>&- 8>&- 9>&-";
    command
        .args(["-c", &format!("{CLOSED}; exec prlimit --nofile=4 \"$@\""), "sh"])
        .arg(binary()?)
        .arg("run")
        .arg(file)
        .arg("--control")
        .arg(lab.scratch().join("control.sock"));
    let mut process = Process::start(command, "holdfast", lab.scratch())?;
    let status = process.wait(TIMEOUT, interrupt)?;
    let said = process.stderr();
    ensure!(status.code() == Some(69) && said.contains("Too many open files"), "{status}: {said}");
    ensure!(!said.contains("there is no device"), "{said}");
    Ok(())
}

/// The operator deletes the LAN's device under a running box, makes it again with another
/// index and MAC address, changes its MTU, and takes it down and up. The status reports
/// each change at once, and the LAN works whenever it has a device.
fn a_deleted_device_is_used_again_when_it_is_back(interrupt: &Interrupt) -> Result<()> {
    for driver in ["", "afpacket:"] {
        let options = Options { driver, ..Options::protected(Chain::Edge) };
        let mut network = Network::start(&options, interrupt)?;
        let (client, router) = (network.topology.client.clone(), network.topology.router.clone());
        let ping = || programs::ping(&client, ip(INSIDE), 10, 56, Duration::from_millis(50));
        let find = |status: Status| status.ports.into_iter().find(|port| port.name == "lan");
        let lan = |network: &Network| {
            find(network.running.status()?).context("the status has the port lan")
        };
        // The box looks at its devices periodically, not at each status query.
        let wait = |network: &Network, what: &str, wanted: fn(&Port) -> bool| {
            let is_wanted = |status: &Status| {
                status.ports.iter().any(|port| port.name == "lan" && wanted(port))
            };
            let status = network.running.wait_for(what, TIMEOUT, interrupt, is_wanted)?;
            find(status).context("the status has the port lan")
        };
        let before_pings = ping()?;
        ensure!(before_pings.received > 5, "{before_pings:?}");
        let before = lan(&network)?;
        ensure!(before.up && before.mtu == 1500 && before.received > 5, "{before:?}");

        router.ip("link del lan0")?;
        let gone = wait(&network, "the device is gone", |port| !port.up)?;
        ensure!(gone.received >= before.received, "{gone:?}");

        let ends = ((&router, "lan0"), (&client, HOST_DEVICE));
        link::veth(ends.0, ends.1, options.offloads, interrupt)?;
        link::address(&client, HOST_DEVICE, &format!("{CLIENT}/24"))?;
        link::route(&client, "default", INSIDE)?;
        let back = wait(&network, "the device is back", |port| port.up)?;
        ensure!(
            back.mac == before.mac && back.received >= gone.received,
            "{back:?} after {before:?}"
        );
        ensure!(back.driver == before.driver, "{back:?} after {before:?}");
        for (reason, count) in &gone.drops {
            ensure!(
                back.drops.get(reason) >= Some(count),
                "{reason} is forgotten: {back:?} after {gone:?}"
            );
        }
        let pings = ping()?;
        ensure!(pings.received > 5, "{driver:?}: {pings:?}");
        let (_echo, stream) = network.stream(5, 200)?;
        drop(stream);
        let said = network.running.process().stderr();
        let count = |text: &str| said.lines().filter(|line| line.ends_with(text)).count();
        ensure!(
            count("lan0 is back") == 1 && said.matches("lan0 is gone").count() == 1,
            "{driver:?}: {said}"
        );
        let after = lan(&network)?;
        ensure!(
            after.received > back.received && after.transmitted > back.transmitted,
            "{after:?} after {back:?}"
        );

        router.ip("link set lan0 mtu 1400")?;
        wait(&network, "the MTU is smaller", |port| port.mtu == 1400)?;
        router.ip("link set lan0 mtu 2000")?;
        // The port is opened again; the kernel may refuse this for a moment, because the
        // previous sockets still exist.
        wait(&network, "the port has the larger MTU", |port| port.mtu == 2000)?;
        let pings = ping()?;
        ensure!(pings.received > 5, "{driver:?}: {pings:?}");
        router.ip("link set lan0 down")?;
        wait(&network, "the port is down", |port| !port.up)?;
        router.ip("link set lan0 up")?;
        wait(&network, "the port is up again", |port| port.up)?;

        let said = network.running.process().stderr();
        let count = |text: &str| said.lines().filter(|line| line.contains(text)).count();
        ensure!(count("is 1400 now, it was 1500") == 1, "{driver:?}: {said}");
        network.stop()?;
    }
    Ok(())
}

/// A user removes the control socket, and later the lock beside it. A second box never
/// takes the name, and the first one soon answers again.
fn a_removed_control_socket_stays_the_boxs(interrupt: &Interrupt) -> Result<()> {
    let mut network = Network::start(&Options::protected(Chain::Edge), interrupt)?;
    let control = network.running.control().to_owned();
    let lock = control.with_extension("sock.lock");
    ensure!(lock.is_file(), "the lock is beside the socket");
    let pid = network.running.process().pid();
    let second = || -> Result<()> {
        let mut command = network.topology.router.command(binary()?);
        command
            .arg("run")
            .arg(network.lab.scratch().join("holdfast.yaml"))
            .arg("--control")
            .arg(&control);
        let mut process = Process::start(command, "second", network.lab.scratch())?;
        let status = process.wait(TIMEOUT, interrupt)?;
        let said = process.stderr();
        ensure!(
            status.code() == Some(69) && said.contains(&format!("process {pid}")),
            "{status}: {said}"
        );
        Ok(())
    };
    second()?;
    std::fs::remove_file(&control)?;
    second()?;
    let answers = || Ok((control.exists() && network.running.status().is_ok()).then_some(()));
    until("the box can be asked again", TIMEOUT, interrupt, answers)?;
    second()?;
    std::fs::remove_file(&control)?;
    std::fs::remove_file(&lock)?;
    until("the lock is there again", TIMEOUT, interrupt, || Ok(lock.exists().then_some(())))?;
    second()?;
    until("the box can be asked again", TIMEOUT, interrupt, answers)?;
    let status = network.running.stop(TIMEOUT, interrupt)?;
    ensure!(status.success() && !control.exists() && !lock.exists(), "{status}: something is left");
    let said = network.running.process().stderr();
    ensure!(
        said.lines().filter(|line| line.contains("was removed: it is there again")).count() == 2,
        "{said}"
    );
    Ok(())
}

/// An operator who has not run `check` starts a box on devices with offloads, then sends
/// SIGHUP as to other daemons.
fn warnings_come_before_ready_and_sighup_is_answered(interrupt: &Interrupt) -> Result<()> {
    let options = Options { offloads: Offloads::LeftOn, ..Options::protected(Chain::Edge) };
    let mut network = Network::start(&options, interrupt)?;
    let said = network.running.process().stderr();
    for port in ["port lan (lan0): offloads: on", "port wan (wan0): offloads: on"] {
        ensure!(
            said.lines().filter(|line| line.contains("warning:") && line.contains(port)).count()
                == 1,
            "{said}"
        );
    }
    // To every process, like a closing terminal.
    for pid in network.topology.router.pids()? {
        signal_pid(pid, Signal::HUP)?;
    }
    let answers = |process: &Process| {
        Ok(process
            .stderr()
            .contains("SIGHUP: a running box does not read its file again")
            .then_some(()))
    };
    network.running.process().wait_while_running(
        "SIGHUP is answered",
        TIMEOUT,
        interrupt,
        answers,
    )?;
    let status = network.running.status()?;
    ensure!(status.failovers.is_empty(), "a runtime ended: {:?}", status.failovers);
    network.stop()
}

fn a_missing_privilege_is_77(interrupt: &Interrupt) -> Result<()> {
    let (lab, topology) = network::cables(&Options::protected(Chain::Edge), interrupt)?;
    let file = lab.write("holdfast.yaml", Options::protected(Chain::Edge).configuration())?;
    let mut command = topology.router.command("setpriv");
    command.args(["--bounding-set=-all", "--inh-caps=-all"]).arg(binary()?);
    command.arg("run").arg(file).arg("--control").arg(lab.scratch().join("control.sock"));
    let mut process = Process::start(command, "holdfast", lab.scratch())?;
    let status = process.wait(TIMEOUT, interrupt)?;
    let said = process.stderr();
    ensure!(status.code() == Some(77), "{status}: {said}");
    ensure!(
        said.contains("CAP_NET_") || said.contains("root") || said.contains("sudo"),
        "no remedy: {said}"
    );
    Ok(())
}

fn a_bad_configuration_is_78_and_names_the_line(interrupt: &Interrupt) -> Result<()> {
    let good = Options::protected(Chain::Edge).configuration();
    // The replaced text, its replacement, and the word that the message must name.
    let mistakes = [
        ("cluster: branch", "clutser: branch", "clutser"),
        ("address: 172.20.5.1/24", "address: 172.20.5.1/33", "172.20.5.1/33"),
        ("- nat:", "- nta:", "nta"),
        ("protection: nfvactor", "protection: nfvactro", "nfvactro"),
        ("chain: office", "chain: offcie", "offcie"),
        ("min: 3", "min: three", "three"),
        ("default: deny", "default: deny\n          defualt: deny", "defualt"),
        (
            "\"allow udp from 172.20.5.0/24 to any\"",
            "\"allow upd from 172.20.5.0/24 to any\"",
            "upd",
        ),
    ];
    for (right, wrong, word) in mistakes {
        let bad = good.replacen(right, wrong, 1);
        ensure!(bad != good, "the test's own mistake {wrong:?} is not one");
        let line = 1 + bad
            .lines()
            .position(|text| text.contains(word))
            .context("the mistake is in the file")?;
        let (code, said) = refused(&bad, interrupt)?;
        ensure!(code == Some(78), "{wrong:?}: {code:?}: {said}");
        let names_line =
            [format!(":{line}:"), format!("line {line}")].iter().any(|form| said.contains(form));
        ensure!(names_line && said.contains(word), "{wrong:?} in line {line}: {said}");
    }
    Ok(())
}

/// Names that a stopped box could have left on the machine, outside of the laboratory.
fn traces() -> Result<BTreeSet<String>> {
    let mut traces = BTreeSet::new();
    for directory in ["/dev/shm", "/run/netns", "/run", "/run/holdfast", "/dev/hugepages"] {
        if let Ok(entries) = std::fs::read_dir(directory) {
            for entry in entries {
                let name = entry?.file_name().to_string_lossy().into_owned();
                // Other laboratories come and go while this test runs.
                if !name.starts_with("hf-") {
                    traces.insert(format!("{directory}/{name}"));
                }
            }
        }
    }
    let memory = std::fs::read_to_string("/proc/meminfo")?;
    traces.extend(
        memory.lines().filter(|line| line.starts_with("HugePages_Total")).map(str::to_owned),
    );
    Ok(traces)
}

fn ensure_gone(network: &Network, before: &BTreeSet<String>, interrupt: &Interrupt) -> Result<()> {
    // A killed process takes a moment to vanish; memory files vanish with it.
    until("no process of the box is left", TIMEOUT, interrupt, || {
        Ok(network.topology.router.pids()?.is_empty().then_some(()))
    })?;
    let devices = network.topology.router.devices()?;
    ensure!(
        devices.iter().collect::<BTreeSet<_>>()
            == ["lo", "lan0", "wan0"].map(String::from).iter().collect(),
        "{devices:?}"
    );
    let left: Vec<String> = traces()?.difference(before).cloned().collect();
    ensure!(left.is_empty(), "left behind: {left:?}");
    Ok(())
}

fn sigterm_leaves_nothing_behind(interrupt: &Interrupt) -> Result<()> {
    let before = traces()?;
    let mut network = Network::start(&Options::protected(Chain::Edge), interrupt)?;
    let (_echo, stream) = network.stream(10, 500)?;
    network.wait_protected()?;
    ensure!(network.running.control().exists());
    let status = network.running.stop(TIMEOUT, interrupt)?;
    ensure!(status.success(), "{status}");
    ensure!(
        network.topology.router.pids()?.is_empty(),
        "processes are left when the box has ended"
    );
    ensure!(!network.running.control().exists(), "the control socket is left");
    drop(stream);
    ensure_gone(&network, &before, interrupt)?;

    // A box can start again on the same devices.
    let again = RunningBox::start(
        &network.lab,
        &network.topology.router,
        &binary()?,
        &Options::protected(Chain::Edge).configuration(),
    )?;
    let pings =
        programs::ping(&network.topology.client, ip(INSIDE), 5, 56, Duration::from_millis(10))?;
    ensure!(pings.received >= 4, "{pings:?}");
    drop(again);
    Ok(())
}

fn sigterm_right_after_a_kill_leaves_nothing_behind(interrupt: &Interrupt) -> Result<()> {
    let before = traces()?;
    let mut network = Network::start(&Options::protected(Chain::Edge), interrupt)?;
    let (_echo, _stream) = network.stream(10, 500)?;
    let victim = network.running.busiest(None)?;
    signal_pid(victim.pid, Signal::KILL)?;
    let status = network.running.stop(TIMEOUT, interrupt)?;
    ensure!(status.success(), "{status}");
    ensure!(!network.running.control().exists(), "the control socket is left");
    ensure_gone(&network, &before, interrupt)
}

/// The kernel ends the processes of a box whose guard was killed.
fn everybody_ends_with_a_killed_guard(interrupt: &Interrupt) -> Result<()> {
    let before = traces()?;
    let mut network = Network::start(&Options::protected(Chain::Edge), interrupt)?;
    let pids = network.topology.router.pids()?;
    ensure!(
        pids.len() >= 6,
        "guard, manager, coordinator and three runtimes are expected: {pids:?}"
    );
    signal_pid(network.running.process().pid(), Signal::KILL)?;
    network.running.process().wait(TIMEOUT, interrupt)?;
    ensure_gone(&network, &before, interrupt)
}

fn the_control_socket_is_private(interrupt: &Interrupt) -> Result<()> {
    use std::os::unix::fs::{FileTypeExt, PermissionsExt};
    let network = Network::start(&Options::protected(Chain::Edge), interrupt)?;
    let metadata = std::fs::metadata(network.running.control())?;
    ensure!(
        metadata.file_type().is_socket() && metadata.permissions().mode() & 0o777 == 0o600,
        "{:?}",
        metadata.permissions()
    );
    network.stop()
}

fn a_full_table_drops_and_keeps(interrupt: &Interrupt) -> Result<()> {
    let options =
        Options { more: "limits: { flows: 64 }\n", ..Options::protected(Chain::Balanced) };
    let mut network = Network::start(&options, interrupt)?;
    network.serve_web()?;
    let held = network.hold(VIRTUAL, 20)?;
    flood(&network, 2_000)?;
    let full = |status: &holdfast_control::status::Status| {
        status.dropped("route_table_full") + status.dropped("flow_table_full") > 0
    };
    network.running.wait_for("a full table is counted", TIMEOUT, interrupt, full)?;
    ensure_unbroken(&held, interrupt)?;
    drop(held);
    network.stop()
}

/// A single address with 768 ports, shared by three runtimes: the box opens no more flows
/// than that.
fn an_empty_pool_drops_and_keeps(interrupt: &Interrupt) -> Result<()> {
    let options = Options {
        pool: "192.0.2.32/32",
        ports: "40000-40767",
        ..Options::protected(Chain::Balanced)
    };
    let mut network = Network::start(&options, interrupt)?;
    network.serve_web()?;
    let held = network.hold(VIRTUAL, 20)?;
    flood(&network, 5_000)?;
    network.running.wait_for("an empty pool is counted", TIMEOUT, interrupt, |status| {
        status.dropped("pool_empty") > 0
    })?;
    ensure_unbroken(&held, interrupt)?;
    drop(held);
    network.stop()
}

/// Opens UDP flows, one datagram each, from ports and hosts that differ from call to
/// call.
fn flood(network: &Network, flows: u32) -> Result<()> {
    static OPENED: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(0);
    let sender = frames::Sender::open(&network.topology.client, "eth0")?;
    let from_mac = link::mac(&network.topology.client, "eth0")?;
    let to_mac = gateway_mac(network)?;
    let first = OPENED.fetch_add(flows, std::sync::atomic::Ordering::Relaxed);
    for number in first..first + flows {
        // Spread over hosts first, so that the flood does not run into a limit per host.
        let host = 20 + number % 200;
        let ends = frames::Ends {
            from_mac,
            to_mac,
            from: (
                std::net::Ipv4Addr::new(172, 20, 5, host as u8),
                2_000 + (number / 200 % 50_000) as u16,
            ),
            to: (SERVER.parse()?, 9),
        };
        // A full device queue (ENOBUFS) only slows the flood down.
        let _ = sender.send(&ends.udp(b"x"));
    }
    Ok(())
}

/// The box's MAC address as learnt by its neighbour; the box may choose which it uses.
fn gateway_mac(network: &Network) -> Result<[u8; 6]> {
    programs::ping(&network.topology.client, ip(INSIDE), 1, 56, Duration::from_millis(10))?;
    link::neighbour(&network.topology.client, INSIDE)
}

fn garbage_is_dropped_with_a_reason(interrupt: &Interrupt) -> Result<()> {
    let mut network = Network::start(&Options::protected(Chain::Balanced), interrupt)?;
    network.serve_web()?;
    let held = network.hold(VIRTUAL, 20)?;
    let before = network.running.status()?;
    let from_mac = link::mac(&network.topology.client, "eth0")?;
    let to_mac = gateway_mac(&network)?;
    let ends = |to: std::net::SocketAddr| -> Result<frames::Ends> {
        let std::net::IpAddr::V4(address) = to.ip() else { anyhow::bail!("IPv4 is expected") };
        Ok(frames::Ends {
            from_mac,
            to_mac,
            from: (CLIENT.parse()?, 40_001),
            to: (address, to.port()),
        })
    };
    let good =
        vec![ends(socket(VIRTUAL))?.syn(), ends(socket(&format!("{SERVER}:7")))?.udp(&[0x5a; 60])];
    let frames = frames::garbage(&good);
    let sender = frames::Sender::open(&network.topology.client, "eth0")?;
    let mut sent = 0_u64;
    for frame in &frames {
        sent += u64::from(sender.send(frame).is_ok());
    }
    let most = frames.len() as u64 * 9 / 10;
    ensure!(
        sent >= most,
        "the kernel refused more than a tenth of the garbage: {sent} of {} were sent",
        frames.len()
    );
    // The garbage has been handled when a ping that was sent behind it is answered.
    let pings =
        programs::ping(&network.topology.client, ip(INSIDE), 5, 56, Duration::from_millis(50))?;
    ensure!(pings.received > 0, "{pings:?}");

    ensure_unbroken(&held, interrupt)?;
    let after = network.running.status()?;
    for reason in ["truncated", "bad_version", "bad_length", "bad_checksum", "unknown_ethertype"] {
        ensure!(
            after.dropped(reason) > before.dropped(reason),
            "no {reason} among {:?}",
            after.drops
        );
    }
    let names = |status: &holdfast_control::status::Status| -> Vec<(u32, u64, u32)> {
        status
            .processes
            .iter()
            .map(|process| (process.id, process.incarnation, process.pid))
            .collect()
    };
    ensure!(
        names(&before) == names(&after) && after.failovers.is_empty(),
        "a process failed: {after:?}"
    );
    drop(held);
    network.stop()
}
