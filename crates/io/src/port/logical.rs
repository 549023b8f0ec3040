//! The ports of a host, and the devices that they are on. Several ports may share a
//! device, each in a VLAN of its own.
//!
//! Theory of operation. A device is opened once. If one port alone has it, without a
//! VLAN, frames come and go as they are. Otherwise each received frame goes to the port
//! whose tags it has, without them ([`Tags::take_off`]); a frame with tags that no port
//! has is dropped and counted. A frame that leaves gets its port's tags. A port counts
//! the drops of its own frames that leave; what concerns the whole device, and frames
//! that came for no port, are counted at the device's first port.
//!
//! In: the ports' places, frames. Out: frames, by port. Never: a frame that waits from
//! one burst to the next.

use super::{Look, Losses, Port};
use holdfast_protection::Released;
use holdfast_wire::header::Mac;
use holdfast_wire::vlan::Tags;
use holdfast_wire::{DropCounters, DropReason, Packet, PacketPool};
use rustix::fd::BorrowedFd;

/// The place of a port: its device, and its VLAN there.
#[derive(Debug, Clone)]
pub struct Place<'a> {
    /// The device, as in [`open`](super::open).
    pub device: &'a str,
    /// The tags of its frames.
    pub tags: Tags,
    /// VLANs besides the port's own in which its packets may come, in place of the one in
    /// the innermost tag.
    pub flow_vlans: &'a [u16],
}

impl Place<'_> {
    fn has_vlans(&self) -> bool {
        self.tags != Tags::NONE || !self.flow_vlans.is_empty()
    }
}

/// A device with its ports.
struct Device {
    port: Box<dyn Port>,
    /// The ports' numbers, in order.
    ports: Vec<u8>,
    /// Ports by their tags, in order; none if a single port has the device as it is.
    by_tags: Vec<(Tags, u8)>,
    /// The counts of `port` that its ports have.
    counted: DropCounters,
}

/// A port.
struct Logical {
    device: usize,
    tags: Tags,
    received: Vec<Packet>,
    drops: DropCounters,
}

/// See the module.
pub struct Ports {
    devices: Vec<Device>,
    ports: Vec<Logical>,
    incoming: Vec<Packet>,
}

impl Ports {
    /// Bytes by which the largest packet of a port with two tags is shorter than its
    /// device's MTU. Devices and Linux allow for one tag beyond the MTU (IEEE 802.3,
    /// clause 3.2.7), but for a frame that begins with a service tag AF_PACKET allows
    /// nothing.
    pub const TWO_TAGS: u16 = 8;

    /// Opens the devices of these ports with `open`, which is told if frames of several
    /// VLANs come by the device.
    ///
    /// # Errors
    /// Those of `open`.
    ///
    /// # Panics
    /// If there are more than 255 ports, or two with the same frames.
    pub fn open<E>(
        places: &[Place<'_>],
        mut open: impl FnMut(&str, bool) -> Result<Box<dyn Port>, E>,
    ) -> Result<Ports, E> {
        assert!(places.len() <= usize::from(u8::MAX));
        let mut names: Vec<&str> = Vec::new();
        let mut all = Ports { devices: Vec::new(), ports: Vec::new(), incoming: Vec::new() };
        for (place, number) in places.iter().zip(0u8..) {
            let shares = |other: &&Place<'_>| other.device == place.device;
            let device = match names.iter().position(|name| *name == place.device) {
                Some(device) => device,
                None => {
                    let has_vlans = places.iter().filter(shares).any(Place::has_vlans);
                    names.push(place.device);
                    all.devices.push(Device {
                        port: open(place.device, has_vlans)?,
                        ports: Vec::new(),
                        by_tags: Vec::new(),
                        counted: DropCounters::default(),
                    });
                    all.devices.len() - 1
                }
            };
            all.devices[device].ports.push(number);
            let (tags, received, drops) = (place.tags, Vec::new(), DropCounters::default());
            all.ports.push(Logical { device, tags, received, drops });
        }
        for device in &mut all.devices {
            let of_device = || device.ports.iter().map(|at| (&places[usize::from(*at)], *at));
            if !of_device().any(|(place, _)| place.has_vlans()) {
                assert_eq!(device.ports.len(), 1, "two ports have a device as it is");
                continue;
            }
            device.by_tags = of_device()
                .flat_map(|(place, at)| {
                    let flows = place.flow_vlans.iter().map(|id| place.tags.with_inner(*id));
                    core::iter::once(place.tags).chain(flows).map(move |tags| (tags, at))
                })
                .collect();
            device.by_tags.sort_unstable();
            let is_same = |pair: &[(Tags, u8)]| pair[0].0 == pair[1].0;
            assert!(!device.by_tags.windows(2).any(is_same), "two ports have the same VLAN");
        }
        Ok(all)
    }

    /// The number of ports.
    pub fn len(&self) -> usize {
        self.ports.len()
    }

    /// True if there are none.
    pub fn is_empty(&self) -> bool {
        self.ports.is_empty()
    }

    /// The number of devices, which are counted from 0.
    pub fn devices(&self) -> usize {
        self.devices.len()
    }

    /// The ports on a device.
    pub fn on(&self, device: usize) -> &[u8] {
        &self.devices[device].ports
    }

    /// The device of a port.
    fn device(&self, port: usize) -> &Device {
        &self.devices[self.ports[port].device]
    }

    /// True for the port at which counts of the whole device are.
    fn is_first(&self, port: usize) -> bool {
        self.device(port).ports.first().is_some_and(|first| usize::from(*first) == port)
    }

    /// Takes up to `max` received frames from a device: see [`Ports::received`]. Returns
    /// how many came, with those for no port.
    pub fn receive(&mut self, device: usize, max: usize, pool: &mut dyn PacketPool) -> usize {
        let Device { port, ports, by_tags, counted } = &mut self.devices[device];
        let first = usize::from(ports[0]);
        if by_tags.is_empty() {
            let received = &mut self.ports[first].received;
            port.receive(max, pool, received);
            return received.len();
        }
        port.receive(max, pool, &mut self.incoming);
        let count = self.incoming.len();
        for mut packet in self.incoming.drain(..) {
            let found = Tags::read(packet.bytes()).and_then(|tags| {
                let place = by_tags.binary_search_by_key(&tags, |(tags, _)| *tags);
                place.map(|at| by_tags[at]).map_err(|_| DropReason::UnknownVlan)
            });
            match found {
                Ok((tags, at)) => {
                    tags.take_off(&mut packet);
                    self.ports[usize::from(at)].received.push(packet);
                }
                Err(reason) => {
                    self.ports[first].drops.count(reason);
                    pool.put(packet);
                }
            }
        }
        take_counts(port.as_ref(), counted, &mut self.ports[first].drops);
        count
    }

    /// The received frames of a port, to be taken before the device's next ones.
    pub fn received(&mut self, port: usize) -> &mut Vec<Packet> {
        &mut self.ports[port].received
    }

    /// Sends frames by a port. All buffers return to the pool, and unsent frames are
    /// counted. Returns the number of frames that were sent.
    pub fn transmit(
        &mut self,
        port: usize,
        frames: &mut Vec<Released<Packet>>,
        pool: &mut dyn PacketPool,
    ) -> u64 {
        let given = frames.len() as u64;
        let Logical { device, tags, drops, .. } = &mut self.ports[port];
        let Device { port, by_tags, counted, .. } = &mut self.devices[*device];
        if by_tags.is_empty() {
            let before = port.drops().total();
            port.transmit(frames, pool);
            return given.saturating_sub(port.drops().total() - before);
        }
        let before = drops.total();
        for packet in frames.extract_if(.., |frame| !frame.put_tags(*tags)) {
            drops.count(DropReason::FrameTooLarge);
            pool.put(packet.into_inner());
        }
        port.transmit(frames, pool);
        take_counts(port.as_ref(), counted, drops);
        given.saturating_sub(drops.total() - before)
    }

    /// Looks at the device of a port: see [`Port::look`]. The device's first port has the
    /// answer for all of its ports.
    pub fn look(&mut self, port: usize) -> Look {
        if !self.is_first(port) {
            return Look::Same;
        }
        let device = self.ports[port].device;
        self.devices[device].port.look()
    }

    /// Adds the losses of a port's device since the last call, at the device's first
    /// port.
    pub fn take_losses(&mut self, port: usize, into: &mut Losses) {
        if self.is_first(port) {
            let device = self.ports[port].device;
            self.devices[device].port.take_losses(into);
        }
    }

    /// The name of the port's device, for operators.
    pub fn name(&self, port: usize) -> &str {
        self.device(port).port.name()
    }

    /// The driver of the port's device.
    pub fn driver(&self, port: usize) -> &'static str {
        self.device(port).port.driver()
    }

    /// The port's MAC address, which is its device's.
    pub fn mac(&self, port: usize) -> Mac {
        self.device(port).port.mac()
    }

    /// Largest IP packet of the port, bytes.
    pub fn mtu(&self, port: usize) -> u16 {
        let mtu = self.device(port).port.mtu();
        let has_two = self.ports[port].tags.ids().count() == 2;
        if has_two { mtu.saturating_sub(Ports::TWO_TAGS) } else { mtu }
    }

    /// The port's VLAN identifiers, the outer one first.
    pub fn vlan(&self, port: usize) -> impl Iterator<Item = u16> {
        self.ports[port].tags.ids()
    }

    /// False once the port's device is down or gone.
    pub fn is_up(&self, port: usize) -> bool {
        self.device(port).port.is_up()
    }

    /// The port's drops by reason.
    pub fn drops(&self, port: usize) -> &DropCounters {
        let device = self.device(port);
        if device.by_tags.is_empty() { device.port.drops() } else { &self.ports[port].drops }
    }

    /// Readable when a frame has come by the port's device.
    pub fn wait_fd(&self, port: usize) -> Option<BorrowedFd<'_>> {
        self.device(port).port.wait_fd()
    }

    /// The longest sleep between two looks for frames, ns, if a device has no descriptor.
    pub fn poll_interval(&self) -> Option<u64> {
        self.devices.iter().filter_map(|device| device.port.poll_interval()).min()
    }
}

/// Adds the counts of a device since the last time.
fn take_counts(port: &dyn Port, counted: &mut DropCounters, into: &mut DropCounters) {
    let now = port.drops();
    if now.total() == counted.total() {
        return;
    }
    for (reason, count) in now.iter() {
        into.add_count(reason, count.saturating_sub(counted.get(reason)));
    }
    counted.clone_from(now);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::port::{MemoryLink, MemoryPort};
    use holdfast_wire::MemoryPool;

    const MAC: Mac = [2, 0, 0, 0, 0, 7];

    struct Bench {
        ports: Ports,
        links: Vec<MemoryLink>,
        asked: Vec<(String, bool)>,
        pool: MemoryPool,
    }

    /// Ports by device, VLAN and VLANs for flows.
    fn bench(places: &[(&str, &[u16], &[u16])]) -> Bench {
        let places: Vec<Place<'_>> = places
            .iter()
            .map(|&(device, ids, flow_vlans)| Place {
                device,
                tags: Tags::new(ids).expect("a test's VLAN"),
                flow_vlans,
            })
            .collect();
        let (mut links, mut asked) = (Vec::new(), Vec::new());
        let ports = Ports::open(&places, |device, has_vlans| {
            asked.push((device.to_owned(), has_vlans));
            let (port, link) = MemoryPort::new(device, MAC, 1500)?;
            links.push(link);
            Ok::<Box<dyn Port>, std::io::Error>(Box::new(port))
        })
        .unwrap_or_else(|error| panic!("{error}"));
        Bench { ports, links, asked, pool: MemoryPool::new(64) }
    }

    /// A frame with these EtherTypes and control words.
    fn frame(words: &[u16]) -> Vec<u8> {
        let mut frame = vec![2; 12];
        frame.extend(words.iter().flat_map(|word| word.to_be_bytes()));
        frame.resize(60, 0);
        frame
    }

    /// EtherTypes and control words in front of IPv4.
    fn words(frame: &[u8]) -> Vec<u16> {
        let pairs = frame[12..].chunks_exact(2);
        let words = pairs.map(|pair| u16::from_be_bytes([pair[0], pair[1]]));
        words.take_while(|word| *word != 0x0800).collect()
    }

    impl Bench {
        /// Receives frames from a device; gives the ports with the tags of what they got.
        fn came(&mut self, device: usize, frames: &[&[u16]]) -> Vec<(u8, Vec<u16>)> {
            for words in frames {
                assert!(self.links[device].send(&frame(words)));
            }
            self.ports.receive(device, 64, &mut self.pool);
            let mut came = Vec::new();
            for port in self.ports.on(device).to_vec() {
                for packet in core::mem::take(self.ports.received(port.into())) {
                    came.push((port, words(packet.bytes())));
                    self.pool.put(packet);
                }
            }
            came
        }

        /// Sends a frame by a port; gives the tags that it leaves with.
        fn left(&mut self, port: usize, words_in: &[u16]) -> Vec<u16> {
            let mut packet = self.pool.take().expect("there are buffers");
            packet.clear();
            assert!(packet.copy_from(&frame(words_in)));
            let mut frames = vec![Released::stateless(packet)];
            assert_eq!(self.ports.transmit(port, &mut frames, &mut self.pool), 1);
            let device = self.ports.ports[port].device;
            words(&self.links[device].receive().expect("a frame leaves"))
        }
    }

    const IP: u16 = 0x0800;

    /// Three ports of one device, and one that has a device as it is. Each device is
    /// opened once, and is told if it has VLANs.
    #[test]
    fn frames_come_and_go_by_the_port_of_their_vlan() {
        let mut bench = bench(&[
            ("eth0", &[], &[]),
            ("eth1", &[], &[]),
            ("eth0", &[100], &[300]),
            ("eth0", &[200, 100], &[300]),
        ]);
        let asked: Vec<(&str, bool)> =
            bench.asked.iter().map(|(name, has)| (name.as_str(), *has)).collect();
        assert_eq!(asked, [("eth0", true), ("eth1", false)]);
        assert_eq!((bench.ports.on(0), bench.ports.on(1)), (&[0, 2, 3][..], &[1][..]));
        let came = bench.came(
            0,
            &[
                &[IP],
                &[0x8100, 0x6000, IP],
                &[0x8100, 100, IP],
                &[0x8100, 300, IP],
                &[0x88a8, 0xa0c8, 0x8100, 100, IP],
                &[0x88a8, 200, 0x8100, 300, IP],
                &[0x8100, 101, IP],
                &[0x88a8, 100, 0x8100, 200, IP],
                &[0x88a8, 200, IP],
            ],
        );
        let expected: [(u8, &[u16]); 6] = [
            (0, &[]),
            (0, &[0x8100, 0x6000]),
            (2, &[0x8100, 0]),
            (2, &[0x8100, 0]),
            (3, &[0x8100, 0xa000]),
            (3, &[0x8100, 0]),
        ];
        assert_eq!(came, expected.map(|(port, words)| (port, words.to_vec())));
        // Frames for no port are counted at the device's first, and nowhere else.
        assert_eq!(bench.ports.drops(0).get(DropReason::UnknownVlan), 3);
        assert!(
            (0..4).all(|port| bench.ports.drops(port).total() == if port == 0 { 3 } else { 0 })
        );
        // A device without VLANs gives frames as they are: its edge refuses them.
        assert_eq!(bench.came(1, &[&[0x8100, 100, IP]]), [(1, vec![0x8100, 100])]);
        for (port, words, leaves) in [
            (0, &[IP][..], &[][..]),
            (1, &[IP], &[]),
            (2, &[IP], &[0x8100, 100]),
            (2, &[0x8100, 0xa000, IP], &[0x8100, 0xa064]),
            (2, &[0x8100, 300, IP], &[0x8100, 300]),
            (3, &[0x8100, 0x6000, IP], &[0x88a8, 0x60c8, 0x8100, 0x6064]),
            (3, &[0x8100, 300, IP], &[0x88a8, 200, 0x8100, 300]),
        ] {
            assert_eq!(bench.left(port, words), leaves, "{port} {words:x?}");
        }
        assert_eq!(bench.pool.free(), bench.pool.total());
        assert_eq!([0, 1, 2, 3].map(|port| bench.ports.mtu(port)), [1500, 1500, 1500, 1492]);
    }

    /// Every port of the device has a tag: an untagged frame is for none of them, and one
    /// that ends in its tag is truncated.
    #[test]
    fn an_untagged_frame_needs_an_untagged_port() {
        let mut bench = bench(&[("eth0", &[100], &[])]);
        assert_eq!(bench.came(0, &[&[IP], &[0x8100, 0, IP]]), []);
        assert!(bench.links[0].send(&frame(&[0x8100, 100])[..15]));
        assert_eq!(bench.came(0, &[&[0x8100, 100, IP]]), [(0, vec![0x8100, 0])]);
        let drops = bench.ports.drops(0);
        assert_eq!((drops.get(DropReason::UnknownVlan), drops.get(DropReason::Truncated)), (2, 1));
        assert_eq!(bench.pool.free(), bench.pool.total());
    }

    /// A device that takes no frames: each port counts its own.
    #[test]
    fn a_port_counts_its_own_frames() {
        let mut bench = bench(&[("eth0", &[], &[]), ("eth0", &[100], &[])]);
        let mut sent = 0;
        for _ in 0..5000 {
            let packet = bench.pool.take().expect("there are buffers");
            sent +=
                bench.ports.transmit(1, &mut vec![Released::stateless(packet)], &mut bench.pool);
        }
        // An empty frame has no room for a tag.
        assert_eq!((sent, bench.ports.drops(1).get(DropReason::FrameTooLarge)), (0, 5000));
        let mut full = 0;
        for _ in 0..5000 {
            let mut packet = bench.pool.take().expect("there are buffers");
            assert!(packet.copy_from(&frame(&[IP])));
            let frames = &mut vec![Released::stateless(packet)];
            full += 1 - bench.ports.transmit(1, frames, &mut bench.pool);
        }
        assert!(full > 0);
        assert_eq!(bench.ports.drops(1).get(DropReason::QueueFull), full);
        assert_eq!(bench.ports.drops(0).total(), 0);
        assert_eq!(bench.pool.free(), bench.pool.total());
    }
}
