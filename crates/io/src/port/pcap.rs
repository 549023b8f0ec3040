//! Capture files as a port: `pcap:IN,OUT` receives the frames of one file and writes
//! transmitted frames to another.
//!
//! A capture was made for other machines: unicast frames are readdressed to this port,
//! and the port answers the requests for neighbours (ARP, RFC 826; neighbour discovery,
//! RFC 4861) that no host in a file could answer. Frames come as fast as they are taken.

use super::{Port, PortError};
use holdfast_protection::Released;
use holdfast_wire::header::Mac;
use holdfast_wire::{DropCounters, DropReason, Packet, PacketPool};
use pcap_file::DataLink;
use pcap_file::pcap::{PcapPacket, PcapReader, PcapWriter};
use rustix::event::{EventfdFlags, eventfd};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use std::borrow::Cow;
use std::collections::VecDeque;
use std::fs::File;
use std::io::BufReader;
use std::time::{Duration, SystemTime};

const MTU: u16 = 1500;
/// The MAC address of every neighbour.
const NEIGHBOUR: Mac = [0x02, 0, 0, 0, 0, 0xfe];
/// Answers that wait to be received.
const ANSWERS: usize = 64;

/// Locally administered addresses, one per port of this process.
fn next_mac() -> Mac {
    use std::sync::atomic::{AtomicU8, Ordering};
    static NEXT: AtomicU8 = AtomicU8::new(1);
    [0x02, 0, 0, 0, 1, NEXT.fetch_add(1, Ordering::Relaxed)]
}

/// A capture port; see the module.
pub struct Pcap {
    name: String,
    mac: Mac,
    reader: Option<PcapReader<BufReader<File>>>,
    writer: Option<PcapWriter<File>>,
    answers: VecDeque<Vec<u8>>,
    /// Readable as long as there may be frames to receive.
    readable: OwnedFd,
    up: bool,
    drops: DropCounters,
}

impl Pcap {
    /// Opens `IN,OUT`: either may be empty, but not both.
    ///
    /// # Errors
    /// A file cannot be opened, or is not a capture of Ethernet frames.
    pub fn open(files: &str) -> Result<Pcap, PortError> {
        let unavailable =
            |file: &str, error: String| PortError::Unavailable(format!("`{file}`: {error}"));
        let (input, output) = files.split_once(',').unwrap_or((files, ""));
        if input.is_empty() && output.is_empty() {
            return Err(PortError::Unavailable(
                "`pcap:IN,OUT` names a file to read, one to write, or both".to_owned(),
            ));
        }
        if input == output {
            return Err(unavailable(input, "is read and written at the same time".to_owned()));
        }
        let reader = match input {
            "" => None,
            file => {
                let opened =
                    File::open(file).map_err(|error| unavailable(file, error.to_string()))?;
                let reader = PcapReader::new(BufReader::new(opened)).map_err(|error| {
                    unavailable(
                        file,
                        format!("no pcap file ({error}); `editcap -F pcap` converts other formats"),
                    )
                })?;
                if reader.header().datalink != DataLink::ETHERNET {
                    return Err(unavailable(
                        file,
                        format!(
                            "a capture of {:?}, not of Ethernet frames",
                            reader.header().datalink
                        ),
                    ));
                }
                Some(reader)
            }
        };
        let writer = match output {
            "" => None,
            file => {
                let made =
                    File::create(file).map_err(|error| unavailable(file, error.to_string()))?;
                Some(PcapWriter::new(made).map_err(|error| unavailable(file, error.to_string()))?)
            }
        };
        let readable =
            eventfd(u32::from(reader.is_some()), EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC)
                .map_err(|error| unavailable(files, error.to_string()))?;
        Ok(Pcap {
            name: files.to_owned(),
            mac: next_mac(),
            reader,
            writer,
            answers: VecDeque::with_capacity(ANSWERS),
            readable,
            up: true,
            drops: DropCounters::default(),
        })
    }

    fn next_frame(&mut self, packet: &mut Packet) -> Option<bool> {
        if let Some(answer) = self.answers.pop_front() {
            return Some(packet.copy_from(&answer));
        }
        match self.reader.as_mut()?.next_packet() {
            Some(Ok(read)) => {
                // A truncated frame is damaged; so are its checksums, and the chain
                // reports it.
                let fits = packet.copy_from(&read.data);
                if fits && packet.len() >= 14 && packet.bytes()[0] & 1 == 0 {
                    packet.bytes_mut()[..6].copy_from_slice(&self.mac);
                }
                Some(fits)
            }
            Some(Err(_)) => {
                // The rest of the file has no recognisable packets.
                self.drops.count(DropReason::Malformed);
                self.reader = None;
                None
            }
            None => {
                self.reader = None;
                None
            }
        }
    }

    fn write(&mut self, frame: &[u8]) {
        if let Some(answer) = answer(frame) {
            if self.answers.len() < ANSWERS {
                self.answers.push_back(answer);
                let _ = rustix::io::write(&self.readable, &1u64.to_ne_bytes());
            }
            return;
        }
        let Some(writer) = &mut self.writer else { return };
        let timestamp =
            SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or(Duration::ZERO);
        let written = writer.write_packet(&PcapPacket {
            timestamp,
            orig_len: frame.len() as u32,
            data: Cow::Borrowed(frame),
        });
        self.up = written.is_ok();
        if written.is_err() {
            self.drops.count(DropReason::PortDown);
        }
    }
}

/// The answer to a request for a neighbour.
fn answer(frame: &[u8]) -> Option<Vec<u8>> {
    match frame.get(12..14)? {
        [0x08, 0x06] => arp_answer(frame),
        [0x86, 0xdd] => solicitation_answer(frame),
        _ => None,
    }
}

fn arp_answer(frame: &[u8]) -> Option<Vec<u8>> {
    let arp = frame.get(14..42)?;
    // Ethernet and IPv4, a request, and not for the asker's own address.
    if arp[..8] != [0, 1, 8, 0, 6, 4, 0, 1] || arp[14..18] == arp[24..28] {
        return None;
    }
    let mut reply = Vec::with_capacity(42);
    reply.extend_from_slice(&arp[8..14]);
    reply.extend_from_slice(&NEIGHBOUR);
    reply.extend_from_slice(&[8, 6, 0, 1, 8, 0, 6, 4, 0, 2]);
    reply.extend_from_slice(&NEIGHBOUR);
    reply.extend_from_slice(&arp[24..28]);
    reply.extend_from_slice(&arp[8..18]);
    Some(reply)
}

fn solicitation_answer(frame: &[u8]) -> Option<Vec<u8>> {
    let (ip, icmp) = (frame.get(14..54)?, frame.get(54..78)?);
    let target: &[u8; 16] = icmp[8..24].try_into().ok()?;
    // A solicitation (RFC 4861, section 4.3), but not duplicate address detection.
    if ip[6] != 58 || icmp[..2] != [135, 0] || ip[8..24] == [0; 16] || ip[8..24] == *target {
        return None;
    }
    let mut reply = Vec::with_capacity(86);
    reply.extend_from_slice(&frame[6..12]);
    reply.extend_from_slice(&NEIGHBOUR);
    reply.extend_from_slice(&[0x86, 0xdd, 0x60, 0, 0, 0, 0, 32, 58, 255]);
    reply.extend_from_slice(target);
    reply.extend_from_slice(&ip[8..24]);
    // An advertisement (section 4.4): solicited, override, with the target's link-layer
    // address.
    let start = reply.len();
    reply.extend_from_slice(&[136, 0, 0, 0, 0x60, 0, 0, 0]);
    reply.extend_from_slice(target);
    reply.extend_from_slice(&[2, 1]);
    reply.extend_from_slice(&NEIGHBOUR);
    let sum = holdfast_wire::checksum::transport(target, &ip[8..24], 58, &reply[start..]);
    reply[start + 2..start + 4].copy_from_slice(&sum.to_be_bytes());
    Some(reply)
}

impl Port for Pcap {
    fn name(&self) -> &str {
        &self.name
    }

    fn driver(&self) -> &'static str {
        "pcap"
    }

    fn mac(&self) -> Mac {
        self.mac
    }

    fn mtu(&self) -> u16 {
        MTU
    }

    fn is_up(&self) -> bool {
        self.up
    }

    fn receive(&mut self, max: usize, pool: &mut dyn PacketPool, into: &mut Vec<Packet>) {
        for _ in 0..max {
            let Some(mut packet) = pool.take() else { return };
            packet.clear();
            match self.next_frame(&mut packet) {
                Some(true) => into.push(packet),
                Some(false) => {
                    self.drops.count(DropReason::FrameTooLarge);
                    pool.put(packet);
                }
                None => {
                    pool.put(packet);
                    let mut count = [0u8; 8];
                    let _ = rustix::io::read(&self.readable, &mut count);
                    return;
                }
            }
        }
    }

    fn transmit(&mut self, frames: &mut Vec<Released<Packet>>, pool: &mut dyn PacketPool) {
        for frame in frames.drain(..) {
            self.write(frame.get().bytes());
            pool.put(frame.into_inner());
        }
    }

    fn wait_fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.readable.as_fd())
    }

    fn drops(&self) -> &DropCounters {
        &self.drops
    }
}
