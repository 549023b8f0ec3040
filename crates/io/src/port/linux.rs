//! A Linux interface that may go and come back: AF_XDP or AF_PACKET, opened again by
//! name.
//!
//! A driver's sockets belong to one device. After its deletion they are useless, and a
//! new device of the same name is another one. Configurations have names. The port keeps
//! the MAC address that it began with: neighbours know it.

use super::device::{self, Counters, State};
use super::losses::lose;
use super::{AfPacket, AfXdp, Look, Losses, Port, PortError};
use holdfast_protection::Released;
use holdfast_wire::header::Mac;
use holdfast_wire::{DropCounters, DropReason, Packet, PacketPool};
use rustix::fd::BorrowedFd;

/// The configured driver.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Wanted {
    /// AF_XDP if the device supports it, otherwise AF_PACKET.
    Any,
    Xdp,
    Packet,
}

/// An open device.
enum Driver {
    Xdp(Box<AfXdp>),
    Packet(Box<AfPacket>),
}

impl Driver {
    fn open(wanted: Wanted, has_vlans: bool, name: &str) -> Result<Driver, PortError> {
        // XDP does not see a tag that the device has taken off.
        let xdp = || match has_vlans && device::takes_tags_off(name) {
            true => Err(PortError::Unavailable(format!(
                "AF_XDP on `{name}`: the device takes VLAN tags off, and AF_XDP could not tell its VLANs apart: `ethtool -K {name} rxvlan off`, or `afpacket:{name}`"
            ))),
            false => AfXdp::open(name).map(|port| Driver::Xdp(Box::new(port))),
        };
        let packet = || AfPacket::open(name).map(|port| Driver::Packet(Box::new(port)));
        match wanted {
            // AF_PACKET reports the error, unless only AF_XDP fails.
            Wanted::Any => xdp().or_else(|error| match error {
                // Another program takes every frame: AF_PACKET would receive nothing.
                PortError::Busy(_) => Err(error),
                _ => packet(),
            }),
            Wanted::Xdp => xdp(),
            Wanted::Packet => packet(),
        }
    }

    fn port(&self) -> &dyn Port {
        match self {
            Driver::Xdp(port) => port.as_ref(),
            Driver::Packet(port) => port.as_ref(),
        }
    }

    fn port_mut(&mut self) -> &mut dyn Port {
        match self {
            Driver::Xdp(port) => port.as_mut(),
            Driver::Packet(port) => port.as_mut(),
        }
    }

    /// The device's index, which changes if the device is replaced.
    fn index(&self) -> u32 {
        match self {
            Driver::Xdp(port) => port.index(),
            Driver::Packet(port) => port.index(),
        }
    }

    /// Continues earlier counts.
    fn adopt(&mut self, drops: &DropCounters) {
        match self {
            Driver::Xdp(port) => port.adopt(drops),
            Driver::Packet(port) => port.adopt(drops),
        }
    }

    /// Closes the device. Returns the counts, and the device's buffers.
    fn close(self) -> (DropCounters, Vec<Packet>) {
        match self {
            Driver::Xdp(port) => (port.drops().clone(), Vec::new()),
            Driver::Packet(port) => port.close(),
        }
    }
}

/// A Linux interface; see the module.
pub(super) struct Linux {
    name: String,
    wanted: Wanted,
    has_vlans: bool,
    driver: Option<Driver>,
    driver_name: &'static str,
    mac: Mac,
    state: State,
    counters: Counters,
    /// The counts, while no driver has them.
    drops: DropCounters,
    /// Buffers of a closed driver, for the pool when it is at hand.
    stranded: Vec<Packet>,
    /// The latest reported reason why it could not be opened again.
    refusal: Option<String>,
}

impl Linux {
    /// Opens an interface. `has_vlans` if tagged frames are to be told apart.
    ///
    /// # Errors
    /// See [`PortError`].
    pub(super) fn open(wanted: Wanted, has_vlans: bool, name: &str) -> Result<Linux, PortError> {
        let driver = Driver::open(wanted, has_vlans, name)?;
        let (driver_name, mac, mtu) =
            (driver.port().driver(), driver.port().mac(), driver.port().mtu());
        let mut port = Linux {
            name: name.to_owned(),
            wanted,
            has_vlans,
            driver_name,
            mac,
            state: State { index: driver.index(), mtu, is_up: true },
            counters: Counters::of(name),
            driver: Some(driver),
            drops: DropCounters::default(),
            stranded: Vec::new(),
            refusal: None,
        };
        // This sets whether the device is up.
        port.look();
        Ok(port)
    }

    fn close(&mut self) {
        if let Some(driver) = self.driver.take() {
            let (drops, buffers) = driver.close();
            self.drops = drops;
            self.stranded.extend(buffers);
        }
    }

    /// True if AF_XDP's frames, sized for the MTU at its opening, are too short now.
    fn is_outgrown(&self, state: State) -> bool {
        matches!(&self.driver, Some(Driver::Xdp(port)) if state.mtu > port.mtu())
    }

    fn reopen(&mut self, state: State) -> Look {
        match Driver::open(self.wanted, self.has_vlans, &self.name) {
            Ok(mut driver) => {
                driver.adopt(&self.drops);
                self.driver_name = driver.port().driver();
                // The next look finds a device that was replaced since.
                if self.state.index != driver.index() {
                    self.counters = Counters::of(&self.name);
                }
                self.state = State { index: driver.index(), ..state };
                self.driver = Some(driver);
                self.refusal = None;
                Look::Back
            }
            Err(error) => {
                self.state.is_up = false;
                let text = error.to_string();
                if self.refusal.as_ref() == Some(&text) {
                    return Look::Same;
                }
                self.refusal = Some(text);
                Look::Refused(error)
            }
        }
    }
}

impl Port for Linux {
    fn name(&self) -> &str {
        &self.name
    }

    fn driver(&self) -> &'static str {
        self.driver_name
    }

    fn mac(&self) -> Mac {
        self.mac
    }

    fn mtu(&self) -> u16 {
        self.state.mtu
    }

    fn is_up(&self) -> bool {
        self.driver.is_some() && self.state.is_up
    }

    fn look(&mut self) -> Look {
        let state = match device::state(&self.name) {
            Ok(Some(state)) => state,
            Ok(None) => {
                self.state.is_up = false;
                let was_there = self.driver.is_some();
                self.close();
                return if was_there { Look::Gone } else { Look::Same };
            }
            // An unknown state (no free descriptor) counts as unchanged.
            Err(_) => return Look::Same,
        };
        let is_same = self.driver.is_some() && state.index == self.state.index;
        if is_same && !self.is_outgrown(state) {
            self.state = state;
            return Look::Same;
        }
        // The old sockets and the old program go first: a device has one program.
        self.close();
        match self.reopen(state) {
            Look::Back if is_same => Look::Same,
            found => found,
        }
    }

    fn receive(&mut self, max: usize, pool: &mut dyn PacketPool, into: &mut Vec<Packet>) {
        for packet in self.stranded.drain(..) {
            pool.put(packet);
        }
        if let Some(driver) = &mut self.driver {
            driver.port_mut().receive(max, pool, into);
        }
    }

    fn transmit(&mut self, frames: &mut Vec<Released<Packet>>, pool: &mut dyn PacketPool) {
        match &mut self.driver {
            Some(driver) => driver.port_mut().transmit(frames, pool),
            None => {
                for frame in frames.drain(..) {
                    self.drops.count(DropReason::PortDown);
                    pool.put(frame.into_inner());
                }
            }
        }
    }

    fn wait_fd(&self) -> Option<BorrowedFd<'_>> {
        self.driver.as_ref().and_then(|driver| driver.port().wait_fd())
    }

    fn drops(&self) -> &DropCounters {
        self.driver.as_ref().map_or(&self.drops, |driver| driver.port().drops())
    }

    fn take_losses(&mut self, into: &mut Losses) {
        if let Some(driver) = &mut self.driver {
            // The device is read first: it counts a socket's frame later than the socket
            // does.
            let found = self.counters.look(&self.name);
            let mut own = Losses::new();
            driver.port_mut().take_losses(&mut own);
            self.counters.add(found, AfXdp::lost_at_sockets(&own), into);
            own.into_iter().for_each(|(loss, count)| lose(into, loss, count));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::port::Loss;
    use holdfast_wire::MemoryPool;

    /// A device goes, and the buffers for its next frames with it. The pool gets them
    /// back, and frames for it are counted, on top of the earlier counts. A look finds
    /// that the device is there after all, and continues counting.
    #[test]
    fn a_closed_device_keeps_no_buffers_and_no_counts() {
        let mut port = match Linux::open(Wanted::Packet, false, "lo") {
            Ok(port) => port,
            Err(PortError::Permission(why)) => return eprintln!("SKIPPED: {why}"),
            Err(error) => panic!("{error}"),
        };
        let mut pool = MemoryPool::new(64);
        let mut frames = Vec::new();
        let into = |port: &mut Linux, pool: &mut MemoryPool| {
            let mut received = Vec::new();
            port.receive(64, pool, &mut received);
            received.into_iter().for_each(|packet| pool.put(packet));
        };
        // The driver keeps buffers ready, unless as many frames came: others use the
        // loopback device, too.
        while pool.free() == 64 {
            into(&mut port, &mut pool);
        }
        port.close();
        assert!(!port.is_up() && port.wait_fd().is_none());
        into(&mut port, &mut pool);
        assert_eq!(pool.free(), 64);
        for count in 1..=2 {
            frames.push(Released::stateless(pool.take().expect("the pool is full")));
            port.transmit(&mut frames, &mut pool);
            assert_eq!((port.drops().get(DropReason::PortDown), pool.free()), (count, 64));
        }
        let found = port.look();
        assert!(matches!(found, Look::Back), "{found:?}");
        assert!(port.is_up() && port.wait_fd().is_some());
        assert_eq!(port.drops().get(DropReason::PortDown), 2);
        assert!(matches!(port.look(), Look::Same));
    }

    /// More frames come than the socket has room for, and no process takes them: each
    /// frame is received or among the losses, and a loss is reported once.
    #[test]
    fn what_the_kernel_lost_is_counted() {
        const SENT: u64 = 6000;
        let mut port = match Linux::open(Wanted::Packet, false, "lo") {
            Ok(port) => port,
            Err(PortError::Permission(why)) => return eprintln!("SKIPPED: {why}"),
            Err(error) => panic!("{error}"),
        };
        let mut losses = Losses::new();
        let socket = std::net::UdpSocket::bind("127.0.0.1:0").expect("a port is free");
        for _ in 0..SENT {
            socket.send_to(&[0; 8000], "127.0.0.1:9").expect("the kernel takes it");
        }
        port.take_losses(&mut losses);
        let lost = losses.get(&Loss::PacketSocketFull).copied().unwrap_or(0);
        let (mut pool, mut received, mut count) = (MemoryPool::new(64), Vec::new(), 0);
        loop {
            let before = (count, port.drops().get(DropReason::FrameTooLarge));
            port.receive(64, &mut pool, &mut received);
            count += received.len() as u64;
            received.drain(..).for_each(|packet| pool.put(packet));
            if before == (count, port.drops().get(DropReason::FrameTooLarge)) {
                break;
            }
        }
        let taken = count + port.drops().get(DropReason::FrameTooLarge);
        assert!(lost > 0 && taken + lost >= SENT, "{taken} taken, {losses:?}");
        losses.clear();
        port.take_losses(&mut losses);
        assert!(
            losses.get(&Loss::PacketSocketFull).is_none_or(|again| *again < lost),
            "{losses:?}"
        );
    }
}
