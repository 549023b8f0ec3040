//! A whole box, without a privilege or a device: a capture goes through firewall and NAT,
//! and comes out as another capture.

use etherparse::{NetSlice, PacketBuilder, SlicedPacket, TransportSlice};
use pcap_file::pcap::{PcapPacket, PcapReader, PcapWriter};
use serde_json::Value;
use std::collections::BTreeSet;
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Flows, one packet each: no more than may wait while the gateway is asked for its
/// address.
const FLOWS: u16 = 200;
const LIMIT: Duration = Duration::from_secs(60);

/// The box, which ends with the test.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn write_capture(path: &Path) {
    let mut writer = PcapWriter::new(File::create(path).unwrap()).unwrap();
    let mut add = |protocol: &str, port: u16| {
        let mut frame = Vec::new();
        let builder = PacketBuilder::ethernet2([2, 0, 0, 0, 0, 9], [2, 0, 0, 0, 0, 8]).ipv4(
            [10, 0, 0, 2],
            [203, 0, 113, 9],
            64,
        );
        match protocol {
            "udp" => builder.udp(port, 53).write(&mut frame, b"a question").unwrap(),
            _ => builder.tcp(port, 25, 1, 1024).syn().write(&mut frame, b"").unwrap(),
        }
        writer
            .write_packet(&PcapPacket::new(Duration::from_secs(1), frame.len() as u32, &frame))
            .unwrap();
    };
    for port in 0..FLOWS {
        add("udp", 4000 + port);
    }
    add("tcp", 4000);
}

/// Source ports of the translated datagrams; everything in them is checked.
fn translated(path: &Path) -> Vec<u16> {
    let mut reader = PcapReader::new(File::open(path).unwrap()).unwrap();
    let mut ports = Vec::new();
    while let Some(Ok(packet)) = reader.next_packet() {
        let packet = SlicedPacket::from_ethernet(&packet.data).expect("what leaves is well formed");
        let (Some(NetSlice::Ipv4(ip)), Some(TransportSlice::Udp(udp))) =
            (packet.net, packet.transport)
        else {
            continue;
        };
        let header = ip.header();
        assert_eq!(
            (header.source(), header.destination(), header.ttl()),
            ([198, 51, 100, 4], [203, 0, 113, 9], 63)
        );
        assert_eq!(header.header_checksum(), header.to_header().calc_header_checksum());
        assert_eq!((udp.destination_port(), udp.payload()), (53, &b"a question"[..]));
        let sum = udp
            .to_header()
            .calc_checksum_ipv4_raw(header.source(), header.destination(), udp.payload())
            .unwrap();
        assert_eq!(udp.checksum(), sum);
        ports.push(udp.source_port());
    }
    ports
}

/// Every datagram that the firewall allows leaves once, translated, each flow with a port
/// of its own. A denied datagram does not leave. No datagram is lost while the box
/// starts, because the box reads its ports only when it is ready.
#[test]
fn a_capture_goes_through_the_box() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    write_capture(&path("in.pcap"));
    let configuration = format!(
        "cluster: captures\nports:\n  inside: {{ device: \"pcap:{}\", address: 10.0.0.1/24 }}\n  \
         outside: {{ device: \"pcap:,{}\", address: 198.51.100.1/24, gateway: 198.51.100.254 }}\n\
         chains:\n  web:\n    functions:\n      - firewall: {{ rules: [\"allow udp from 10.0.0.0/24\"], default: deny }}\n      \
         - nat: {{ pool: [198.51.100.4] }}\n    protection: nfvactor\nrules: [{{ chain: web }}]\nruntimes: {{ min: 2 }}\nlimits: {{ flows: 4096 }}\n",
        path("in.pcap").display(),
        path("out.pcap").display()
    );
    std::fs::write(path("box.yaml"), configuration).unwrap();
    let binary = env!("CARGO_BIN_EXE_holdfast");
    let mut command = Command::new(binary);
    command
        .arg("run")
        .arg(path("box.yaml"))
        .arg("--control")
        .arg(path("box.sock"))
        .stdout(Stdio::piped())
        .stderr(Stdio::null());
    let mut running = Running(command.spawn().unwrap());
    let mut said = String::new();
    BufReader::new(running.0.stdout.take().unwrap()).read_line(&mut said).unwrap();
    assert!(said.starts_with("ready"), "{said}");

    let status = || -> Value {
        let output = Command::new(binary)
            .args(["status", "--json", "--control"])
            .arg(path("box.sock"))
            .output()
            .unwrap();
        serde_json::from_slice(&output.stdout).unwrap()
    };
    let started = Instant::now();
    while translated(&path("out.pcap")).len() < usize::from(FLOWS) {
        assert!(started.elapsed() < LIMIT, "{}", status());
        std::thread::yield_now();
    }
    // A runtime reports its drops with its next report.
    let status = loop {
        let status = status();
        if status["drops"]["policy_denied"] == 1 {
            break status;
        }
        assert!(started.elapsed() < LIMIT, "{status}");
    };
    assert_eq!(status["ports"][0]["received"], u64::from(FLOWS) + 1, "{status}");
    let pid = rustix::process::Pid::from_child(&running.0);
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
    assert!(running.0.wait().unwrap().success());
    let ports = translated(&path("out.pcap"));
    assert_eq!(ports.len(), usize::from(FLOWS), "each once");
    assert_eq!(
        ports.iter().collect::<BTreeSet<_>>().len(),
        ports.len(),
        "each flow has a port of its own"
    );
}
