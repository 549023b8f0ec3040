//! A VLAN switch in a process of its own, for machines whose kernel has no VLAN devices:
//! it joins a trunk, whose frames have tags, with access devices, whose frames have none.
//! It knows tags only as bytes between a frame's addresses and its EtherType, and shares
//! no code for them with the box.

use crate::TIMEOUT;
use anyhow::{Context, Result, anyhow, ensure};
use holdfast_io::port::{self, Port};
use holdfast_lab::{Lab, Namespace, Process};
use holdfast_protection::Released;
use holdfast_wire::{MemoryPool, Packet, PacketPool};
use rustix::event::{PollFd, PollFlags, poll};
use std::collections::BTreeSet;
use std::process::ExitCode;

/// The environment variable with the process's role: the trunk and the access devices.
const ROLE: &str = "HOLDFAST_TESTS_TAGGER";
/// Frames per device and turn.
const BURST: usize = 32;
/// The line that says that the process has its devices.
const READY: &str = "ready";
/// Addresses in front of a frame's tags, bytes.
const ADDRESSES: usize = 12;

/// An access device, and the VLANs of its frames on the trunk: the first is that in which
/// its frames go there. Each is a list of identifiers from the outer to the inner.
pub type Access<'a> = (&'a str, &'a [&'a [u16]]);

/// Starts the switch in this namespace, which has the devices. It ends when the process
/// is dropped.
///
/// # Errors
/// A device cannot be opened.
pub fn start(
    lab: &Lab,
    namespace: &Namespace,
    trunk: &str,
    access: &[Access<'_>],
) -> Result<Process> {
    let vlan = |ids: &&[u16]| ids.iter().map(u16::to_string).collect::<Vec<_>>().join(".");
    let device = |(name, vlans): &Access<'_>| {
        format!(" {name}={}", vlans.iter().map(vlan).collect::<Vec<_>>().join("+"))
    };
    let mut command = namespace.command(std::env::current_exe()?);
    command.env(ROLE, format!("{trunk}{}", access.iter().map(device).collect::<String>()));
    let mut process = Process::start(command, "tagger", lab.scratch())?;
    let is_ready =
        |process: &Process| Ok(process.stdout().lines().any(|line| line == READY).then_some(()));
    process.wait_while_running("the tagger is ready", TIMEOUT, lab.interrupt(), is_ready)?;
    Ok(process)
}

/// The tags that have come by the trunk so far: each tag as the eight digits of its
/// EtherType and control word, the outer one first.
pub fn seen(process: &Process) -> BTreeSet<String> {
    let seen = process.stdout();
    seen.lines().filter_map(|line| line.strip_prefix("tags ")).map(str::to_owned).collect()
}

/// Runs this process's role and returns its exit code, if it is a switch. Must be called
/// first of all.
pub fn role() -> Option<ExitCode> {
    let role = std::env::var(ROLE).ok()?;
    let Err(error) = be_switch(&role);
    eprintln!("{error:#}");
    Some(ExitCode::FAILURE)
}

/// The bytes of these tags.
fn tags(ids: &str) -> Result<Vec<u8>> {
    let numbers = ids.split('.').filter(|id| !id.is_empty()).map(str::parse::<u16>);
    let numbers = numbers.collect::<Result<Vec<_>, _>>()?;
    let tag = |(at, id): (usize, &u16)| {
        let is_outer = at + 1 < numbers.len();
        let ethertype: u16 = if is_outer { 0x88a8 } else { 0x8100 };
        [ethertype.to_be_bytes(), id.to_be_bytes()].concat()
    };
    Ok(numbers.iter().enumerate().flat_map(tag).collect())
}

/// The bytes of a frame's tags, and of those that name VLANs the same without priorities.
/// A frame with a priority tag alone (VLAN 0) is untagged.
fn tags_of(frame: &[u8]) -> (Vec<u8>, Vec<u8>) {
    let is_tag = |bytes: &&[u8]| matches!(bytes[..2], [0x81, 0x00] | [0x88, 0xa8]);
    let all = frame.get(ADDRESSES..).unwrap_or_default().chunks_exact(4).take_while(is_tag);
    let found: Vec<u8> = all.flatten().copied().collect();
    let plain = found.chunks_exact(4).flat_map(|tag| [tag[0], tag[1], tag[2] & 0x0f, tag[3]]);
    let plain: Vec<u8> = plain.collect();
    let is_untagged = plain == [0x81, 0, 0, 0];
    (found, if is_untagged { Vec::new() } else { plain })
}

struct AccessPort {
    port: Box<dyn Port>,
    /// The bytes of its frames' tags on the trunk.
    vlans: Vec<Vec<u8>>,
}

/// Replaces the tags of a frame, `old` bytes of them.
fn retag(packet: &mut Packet, old: usize, new: &[u8]) -> Result<()> {
    let frame = packet.bytes();
    let changed = [&frame[..ADDRESSES], new, &frame[ADDRESSES + old..]].concat();
    packet.clear();
    ensure!(packet.copy_from(&changed), "a frame of {} bytes", changed.len());
    Ok(())
}

#[expect(clippy::print_stdout, reason = "its standard output is read by the test")]
fn be_switch(role: &str) -> Result<std::convert::Infallible> {
    let open = |name: &str| -> Result<Box<dyn Port>> {
        port::open(&format!("afpacket:{name}")).map_err(|error| anyhow!("{name}: {error}"))
    };
    let mut words = role.split(' ');
    let mut trunk = open(words.next().context("no trunk")?)?;
    let mut access = Vec::new();
    for word in words {
        let (name, vlans) = word.split_once('=').context("no VLAN")?;
        let vlans = vlans.split('+').map(tags).collect::<Result<_>>()?;
        access.push(AccessPort { port: open(name)?, vlans });
    }
    println!("{READY}");
    let mut pool = MemoryPool::new(512);
    let (mut seen, mut frames, mut out) = (BTreeSet::new(), Vec::new(), Vec::new());
    loop {
        trunk.receive(BURST, &mut pool, &mut frames);
        let mut is_idle = frames.is_empty();
        for mut packet in frames.drain(..) {
            let (found, plain) = tags_of(packet.bytes());
            let hex: String = found.iter().map(|byte| format!("{byte:02x}")).collect();
            if seen.insert(hex.clone()) {
                println!("tags {hex}");
            }
            let Some(access) = access.iter_mut().find(|access| access.vlans.contains(&plain))
            else {
                pool.put(packet);
                continue;
            };
            retag(&mut packet, found.len(), &[])?;
            out.push(Released::stateless(packet));
            access.port.transmit(&mut out, &mut pool);
        }
        for AccessPort { port, vlans } in &mut access {
            port.receive(BURST, &mut pool, &mut frames);
            is_idle &= frames.is_empty();
            for mut packet in frames.drain(..) {
                retag(&mut packet, 0, &vlans[0])?;
                out.push(Released::stateless(packet));
            }
            trunk.transmit(&mut out, &mut pool);
        }
        if is_idle {
            let ports = std::iter::once(&trunk).chain(access.iter().map(|access| &access.port));
            let mut fds: Vec<PollFd<'_>> = ports
                .filter_map(|port| port.wait_fd())
                .map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN))
                .collect();
            let _ = poll(&mut fds, None);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_frames_tags_are_found_with_and_without_priorities() {
        let frame = |bytes: &[u8]| [&[2; ADDRESSES][..], bytes, &[8, 0, 1, 2, 3, 4]].concat();
        let qinq = tags("200.100").unwrap();
        assert_eq!(qinq, [0x88, 0xa8, 0, 200, 0x81, 0, 0, 100]);
        assert_eq!(tags_of(&frame(&qinq)), (qinq.clone(), qinq.clone()));
        let marked = [0x88, 0xa8, 0xa0, 200, 0x81, 0, 0xf0, 100];
        assert_eq!(tags_of(&frame(&marked)), (marked.to_vec(), qinq));
        assert_eq!(tags_of(&frame(&[])), (vec![], vec![]));
        assert_eq!(tags_of(&frame(&[0x81, 0, 0xa0, 0])), (vec![0x81, 0, 0xa0, 0], vec![]));
        assert!(tags("").unwrap().is_empty());
    }
}
