//! `dpi` and its library: protocols are known, and rules about them kept, while runtimes
//! die; a crash inside the library is that of a runtime.

use crate::inspection::{Service, network, network_under, send, send_refused};
use anyhow::{Context, Result, ensure};
use holdfast_control::flows::Flows;
use holdfast_control::status::{Protected, Status};
use holdfast_lab::process::Process;
use holdfast_lab::requirements::{self, *};
use holdfast_lab::{Interrupt, programs, until};
use holdfast_tests::network::{
    CLIENT, Chain, GIVE_UP, Network, Options, PATIENT, SERVER, ip, socket,
};
use holdfast_tests::runner::{Test, light};
use holdfast_tests::said;
use holdfast_tests::standby::{LOCAL, kill_worker};
use holdfast_tests::verdict::ensure_unbroken;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::net::UdpSocket;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

pub(crate) fn tests() -> Vec<Test> {
    vec![
        light(
            "protocols_are_known_whatever_dies",
            3,
            &[NGINX, DIG, DNSMASQ],
            protocols_are_known_whatever_dies,
        ),
        light(
            "curl_and_ssh_are_known_whatever_dies",
            3,
            &[CURL, OPENSSL, SSH, SSHD],
            curl_and_ssh_are_known_whatever_dies,
        ),
        light(
            "a_standby_has_no_object_of_its_worker",
            3,
            &[],
            a_standby_has_no_object_of_its_worker,
        ),
        light(
            "a_crash_of_the_library_ends_two_runtimes_and_no_third",
            3,
            &[],
            a_crash_of_the_library_ends_two_runtimes_and_no_third,
        ),
    ]
}

const RULE: &str = "deny protocol SSH";
const BANNER: &[u8] = b"SSH-2.0-OpenSSH_9.2p1 Debian-2+deb12u7\r\n";

fn count(status: &Status, field: &str, name: &str) -> i64 {
    let fields = status.statistics.iter().filter(|known| known.name == field);
    fields.filter_map(|known| known.value(name)).sum()
}

/// Pages, names, and connections that begin as SSH does, while each runtime is killed in
/// turn. What was refused as SSH stays refused, a connection of which the handshake alone
/// had been seen is refused when its server speaks, and everything else goes on, with its
/// protocol in `flows`.
fn protocols_are_known_whatever_dies(interrupt: &Interrupt) -> Result<()> {
    let mut network = network(&format!("dpi: {{ rules: ['{RULE}'] }}"), interrupt)?;
    network.serve_web()?;
    let held = network.hold(&format!("{SERVER}:80"), 20)?;
    let (names, answer) = (socket(&format!("{SERVER}:53")), ip("198.18.0.7"));
    let server = &network.topology.server;
    let _dns = programs::dns_server(&network.lab, server, names, "holdfast.test", answer)?;
    let dig = |network: &Network| -> Result<()> {
        let found = programs::dig(&network.topology.client, names, "holdfast.test", 3)?;
        ensure!(found == [answer], "{found:?}");
        Ok(())
    };
    let mut shells = Service::new(&network, 22)?;
    let (refused, silent) = (shells.connect(&network)?, shells.connect(&network)?);
    let mut others = Service::new(&network, 81)?;
    let noise = others.connect(&network)?;
    send(&noise.0, &noise.1, b"\x01\x02\x03 of no protocol")?;
    send_refused(&network, &refused.1, &refused.0, BANNER, RULE)?;
    ensure_unbroken(&held, interrupt)?;
    network.move_and_kill(|| {
        ensure_unbroken(&held, interrupt)?;
        dig(&network)
    })?;
    send_refused(&network, &silent.1, &silent.0, BANNER, RULE)?;
    send(&noise.1, &noise.0, b"\x04\x05\x06 and more of it")?;
    send(&noise.0, &noise.1, b"\x07\x08\x09 and of that, too")?;
    let web = protocols(&network, 80)?;
    ensure!(web.len() >= 20 && web.iter().all(|name| name == "HTTP"), "{web:?}");
    let shells = protocols(&network, 22)?;
    ensure!(shells == ["SSH", "SSH"], "{shells:?}");
    let status = network.running.status()?;
    ensure!(count(&status, "inspection", "inspected") > 0, "{:?}", status.statistics);
    ensure_unbroken(&held, interrupt)?;
    drop(held);
    network.stop()
}

/// The protocols of the flows to a port of the server, as `flows` tells them.
fn protocols(network: &Network, port: u16) -> Result<Vec<String>> {
    let answer: Flows = serde_json::from_str(&network.running.ask("flows")?)?;
    let there = format!("{SERVER}:{port}\"");
    let all = answer.flows.iter().map(serde_json::to_value).collect::<Result<Vec<_>, _>>()?;
    let to_port = all.iter().filter(|flow| flow.to_string().contains(&there));
    Ok(to_port.map(|flow| flow["state"].as_str().unwrap_or_default().to_owned()).collect())
}

/// A shell's server, and a client's session in which each line comes back.
fn shell(network: &Network) -> Result<(Process, Child)> {
    let scratch = network.lab.scratch();
    for key in ["host", "key"] {
        let mut made = Command::new("ssh-keygen");
        made.args(["-q", "-t", "ed25519", "-N", "", "-f"]).arg(scratch.join(key));
        said(&mut made)?;
    }
    let at = scratch.display();
    let configuration = format!(
        "HostKey {at}/host\nAuthorizedKeysFile {at}/key.pub\nStrictModes no\nUsePAM no\n\
         PidFile none\nPermitRootLogin prohibit-password\nForceCommand cat\n"
    );
    fs::write(scratch.join("sshd.conf"), configuration)?;
    fs::create_dir_all("/run/sshd")?;
    // It runs itself again by its whole path.
    let program = requirements::find(SSHD.0).context("it is required")?;
    let mut served = network.topology.server.command(&program);
    served.args(["-D", "-e", "-f"]).arg(scratch.join("sshd.conf"));
    let mut server = Process::start(served, "sshd", scratch)?;
    let interrupt = network.lab.interrupt();
    server.wait_while_running("sshd listens", GIVE_UP, interrupt, |_| {
        Ok(network.topology.server.listens_tcp(22)?.then_some(()))
    })?;
    let mut session = network.topology.client.command("ssh");
    session.args(["-F", "none", "-T", "-o", "BatchMode=yes", "-o", "StrictHostKeyChecking=no"]);
    session.args(["-o", "UserKnownHostsFile=/dev/null", "-o", "LogLevel=ERROR", "-i"]);
    session.arg(scratch.join("key")).arg(format!("root@{SERVER}"));
    let client = session.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
    Ok((server, client))
}

/// `curl` gets pages by HTTPS, and a session of `ssh` goes on, while each runtime is
/// killed in turn. `flows` has the protocols, and those of the session and of the pages
/// before a death are the same after it.
fn curl_and_ssh_are_known_whatever_dies(interrupt: &Interrupt) -> Result<()> {
    let network = network("dpi: { rules: ['mark ef protocol SSH'] }", interrupt)?;
    let scratch = network.lab.scratch().to_owned();
    let mut certified = Command::new("openssl");
    certified.args(["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256"]);
    certified.args(["-nodes", "-days", "1", "-subj", "/CN=holdfast.test", "-keyout"]);
    certified.arg(scratch.join("tls.key")).arg("-out").arg(scratch.join("tls.pem"));
    said(&mut certified)?;
    let mut served = network.topology.server.command("openssl");
    served.args(["s_server", "-quiet", "-www", "-accept", "443", "-key"]);
    served.arg(scratch.join("tls.key")).arg("-cert").arg(scratch.join("tls.pem"));
    let mut https = Process::start(served, "s_server", &scratch)?;
    let server = &network.topology.server;
    https.wait_while_running("openssl listens", GIVE_UP, interrupt, |_| {
        Ok(server.listens_tcp(443)?.then_some(()))
    })?;
    let client = network.topology.client.clone();
    let page = || -> Result<()> {
        let mut got = client.command("curl");
        got.args(["-k", "-s", "-S", "--max-time", "30", &format!("https://{SERVER}/")]);
        let page = said(&mut got)?;
        ensure!(page.contains("Ciphers"), "{page}");
        Ok(())
    };
    let (_sshd, mut session) = shell(&network)?;
    let mut input = session.stdin.take().context("a pipe")?;
    let mut lines = BufReader::new(session.stdout.take().context("a pipe")?).lines();
    let mut number = 0;
    let mut echo = || -> Result<()> {
        number += 1;
        writeln!(input, "line {number}")?;
        let line = lines.next().context("the session has ended")??;
        ensure!(line == format!("line {number}"), "{line}");
        Ok(())
    };
    echo()?;
    page()?;
    network.move_and_kill(|| {
        echo()?;
        page()
    })?;
    let (pages, shells) = (protocols(&network, 443)?, protocols(&network, 22)?);
    ensure!(!pages.is_empty() && pages.iter().all(|name| name.contains("TLS")), "{pages:?}");
    ensure!(shells == ["SSH"], "{shells:?}");
    drop(input);
    ensure!(session.wait()?.success(), "the session did not end well");
    network.stop()
}

/// Workers are killed, and their standbys go on with the same memory, which has nothing
/// of the library's: what was decided stays, what had only shaken hands is recognised,
/// and what nDPI had begun to look at is unknown.
fn a_standby_has_no_object_of_its_worker(interrupt: &Interrupt) -> Result<()> {
    let function = format!("dpi: {{ rules: ['{RULE}', 'deny protocol Unknown'] }}");
    let network = network_under(LOCAL, &function, interrupt)?;
    let mut service = Service::new(&network, 81)?;
    let mut connect = || service.connect(&network);
    let (refused, silent, page) = (connect()?, connect()?, connect()?);
    let noise = (0..6).map(|_| connect()).collect::<Result<Vec<_>>>()?;
    send_refused(&network, &refused.1, &refused.0, BANNER, RULE)?;
    send(&page.0, &page.1, b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")?;
    for (client, server) in &noise {
        send(client, server, b"\x01\x02\x03 of no protocol")?;
    }
    for id in network.running.status()?.runtimes().map(|one| one.id).collect::<Vec<_>>() {
        let of_runtime = |status: &Status| {
            let process = status.runtime(id).context("it is there")?.clone();
            let standby = process.local_standby.context("it has a standby")?;
            Ok((process, standby))
        };
        kill_worker(&network, of_runtime, interrupt)?;
    }
    send_refused(&network, &silent.1, &silent.0, BANNER, RULE)?;
    send(&page.1, &page.0, b"HTTP/1.1 204 No Content\r\n\r\n")?;
    for (client, server) in &noise {
        send_refused(&network, server, client, b"\x04\x05", "deny protocol Unknown")?;
    }
    let status = network.running.status()?;
    ensure!(count(&status, "inspection", "cut_short") >= 6, "{:?}", status.statistics);
    ensure!(status.failovers.is_empty(), "{:?}", status.failovers);
    network.stop()
}

/// A program that runs the box with a library ahead of nDPI, which crashes on a packet.
fn crashing() -> Result<&'static str> {
    let directory = Path::new(env!("CARGO_TARGET_TMPDIR")).join("dpi");
    fs::create_dir_all(&directory)?;
    let (library, program) = (directory.join("crash.so"), directory.join("holdfast"));
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("e2e/dpi/crash.c");
    let built = Command::new("cc")
        .args(["-shared", "-fPIC", "-I/usr/include/ndpi", "-o"])
        .args([&library, &source])
        .status()?;
    ensure!(built.success(), "{} does not compile", source.display());
    let binary = holdfast_tests::binary()?;
    let (library, binary) = (library.display(), binary.display());
    fs::write(&program, format!("#!/bin/sh\nLD_PRELOAD={library} exec {binary} \"$@\"\n"))?;
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755))?;
    Ok(program.into_os_string().into_string().ok().context("a path in UTF-8")?.leak())
}

/// A datagram on which the library crashes ends the runtime that inspects it, and the one
/// that processes it again. It is then set aside, and other connections go on.
fn a_crash_of_the_library_ends_two_runtimes_and_no_third(interrupt: &Interrupt) -> Result<()> {
    let options = Options {
        protection: "{ preset: reinforce, checkpoint_ms: 10000 }",
        program: crashing()?,
        more: PATIENT,
        ..Options::protected(Chain::Plain)
    };
    let functions = "functions:\n      - dpi: {}";
    let text = options.configuration().replace("functions: [forward]", functions);
    let network = Network::start_with(&options, &text, interrupt)?;
    let mut service = Service::new(&network, 81)?;
    let other = service.connect(&network)?;
    send(&other.0, &other.1, b"hello")?;
    let server = network.topology.server.enter(|| UdpSocket::bind(format!("{SERVER}:7000")))??;
    server.set_read_timeout(Some(GIVE_UP))?;
    let client = network.topology.client.enter(|| -> Result<UdpSocket> {
        let socket = UdpSocket::bind(format!("{CLIENT}:7000"))?;
        socket.connect(format!("{SERVER}:7000"))?;
        Ok(socket)
    })??;
    // The flow is there, and nothing of it has been inspected: the heir asks the library,
    // too.
    client.send(b"")?;
    server.recv(&mut [0; 8])?;
    network.wait_protected()?;
    client.send(b"<crash!>")?;
    let set_aside = |status: &Status| {
        status.drops.get("quarantined") == Some(&1)
            && status.failovers.len() == 2
            && status.failovers.iter().all(|failover| failover.recovered_us.is_some())
            && status.protected() == Protected::Yes
    };
    network.running.wait_for("it is set aside", Duration::from_secs(60), interrupt, set_aside)?;
    send(&other.0, &other.1, b"and on")?;
    let next = service.connect(&network)?;
    send(&next.0, &next.1, b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")?;
    until("the library works", GIVE_UP, interrupt, || {
        Ok((count(&network.running.status()?, "inspection", "inspected") > 0).then_some(()))
    })?;
    ensure!(network.running.status()?.failovers.len() == 2);
    network.stop()
}
