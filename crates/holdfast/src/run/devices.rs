//! Changes of the box's devices while it runs, and messages to the operator about its
//! surroundings.

use super::ManagerProcess;
use super::guard_link::GuardLink;
pub(super) use super::lines::say;
use crate::config::{Fabric, HostEntry, NamedStatistic, Plan, Port as PortPlan};
use crate::host_check::{self, Check, Outcome};
use holdfast_control::exit::{self, Failure};
use holdfast_io::port::{self, Look, Losses, Place, Port, PortError, Ports, Udp};
use holdfast_node::edge::Liveness;
use holdfast_node::fcs::FCS_LEN;
use holdfast_node::message::Logged;
use holdfast_node::seal::SEAL_LEN;
use holdfast_wire::bfd::State;
use holdfast_wire::nsh::ENCAPSULATION_LEN;
use holdfast_wire::{BUFFER_LEN, HEADROOM, MAX_MTU, NodeId};
use std::net::SocketAddr;
use std::time::Duration;

/// Number of tries to open a port in a later incarnation, with pauses: 5 s.
const REOPEN_TRIES: u32 = 2500;
const REOPEN_PAUSE: Duration = Duration::from_millis(2);

/// Bytes around a flow's state in a message: headers of frame, record and flow actor.
const RECORD_ROOM: usize = 384;
const ETHERNET_LEN: usize = 14;

/// The failure to open a port, with the exit code that ends the box.
pub(super) fn refused(error: PortError) -> Failure {
    let code = match error {
        PortError::Unavailable(_) | PortError::Busy(_) => exit::UNAVAILABLE,
        PortError::Permission(_) => exit::PERMISSION,
    };
    Failure::new(code, error.to_string())
}

/// The warnings of `holdfast check`, one line each.
pub(super) fn warnings(plan: &Plan) -> Vec<String> {
    let line = |check: Check| match check.remedy {
        Some(remedy) => format!("warning: {}: {}; {remedy}", check.name, check.found),
        None => format!("warning: {}: {}", check.name, check.found),
    };
    let checks = host_check::host().into_iter().chain(host_check::devices(plan));
    checks.filter(|check| check.outcome == Outcome::Warn).map(line).collect()
}

/// Opens the ports, each of their devices once. The kernel may need a moment to release
/// it from an earlier manager.
pub(super) fn open(
    ports: &[PortPlan],
    incarnation: u32,
    link: &GuardLink,
) -> Result<Ports, PortError> {
    fn place(port: &PortPlan) -> Place<'_> {
        Place { device: &port.device, tags: port.tags, flow_vlans: &port.flow_vlans }
    }
    let places: Vec<Place<'_>> = ports.iter().map(place).collect();
    Ports::open(&places, |device, has_vlans| {
        open_by(&|| port::open_for(device, has_vlans), incarnation, link)
    })
}

/// Opens the ports to the other hosts, one for each network, on the host with this
/// number. `path` is the largest packet of the network on the way, if given.
pub(super) fn open_fabric(
    hosts: &[HostEntry],
    number: u16,
    path: Option<u16>,
    incarnation: u32,
    link: &GuardLink,
) -> Result<Vec<Box<dyn Port>>, PortError> {
    let networks = hosts.get(usize::from(number)).map_or(&[][..], |host| &host.fabric);
    let open_network = |(at, network): (usize, &Fabric)| match network {
        Fabric::Device(device) => open_by(&|| port::open(device), incarnation, link),
        Fabric::Udp(_) => {
            let address = |host: &HostEntry| match host.fabric.get(at) {
                Some(Fabric::Udp(address)) => Some(*address),
                _ => None,
            };
            let addresses: Vec<SocketAddr> = hosts.iter().filter_map(address).collect();
            let mut port =
                open_by(&|| Ok(Box::new(Udp::open(&addresses, number, path)?)), incarnation, link)?;
            // Managers stay where they are; hosts tell where other nodes are.
            (0..hosts.len() as u16).for_each(|host| port.place(NodeId::manager(host), Some(host)));
            Ok(port)
        }
    };
    networks.iter().enumerate().map(open_network).collect()
}

/// Checks that packets of a port fit: `mtu` bytes, on the device with this name.
///
/// # Errors
/// A buffer cannot hold them, or the port is to have longer ones.
pub(super) fn has_mtu(port: &PortPlan, name: &str, mtu: u16) -> Result<(), Failure> {
    let device = &port.device;
    if usize::from(mtu) > MAX_MTU {
        return Err(Failure::new(
            exit::UNAVAILABLE,
            format!(
                "`{device}` has an MTU of {mtu}, and a packet buffer holds {MAX_MTU}: `ip link set {name} mtu {MAX_MTU}`, or less"
            ),
        ));
    }
    let Some(wanted) = port.mtu.filter(|wanted| *wanted > mtu) else { return Ok(()) };
    let remedy = match port.tags.ids().count() {
        2 => format!(
            " behind two tags: `ip link set {name} mtu {}`",
            usize::from(wanted) + usize::from(Ports::TWO_TAGS)
        ),
        _ => String::new(),
    };
    let text = format!("`mtu: {wanted}` is more than the {mtu} of `{device}`{remedy}");
    Err(Failure::new(exit::UNAVAILABLE, text))
}

fn open_by(
    open: &dyn Fn() -> Result<Box<dyn Port>, PortError>,
    incarnation: u32,
    link: &GuardLink,
) -> Result<Box<dyn Port>, PortError> {
    let mut tries = if incarnation == 1 { 0 } else { REOPEN_TRIES };
    loop {
        match open() {
            Err(PortError::Busy(_) | PortError::Unavailable(_)) if tries > 0 => {
                tries -= 1;
                link.beat();
                std::thread::sleep(REOPEN_PAUSE);
            }
            opened => return opened,
        }
    }
}

/// The longest frame of messages for the network between the hosts, at most `wanted`.
/// Sealed packets are longer. `path` as in [`open_fabric`].
///
/// # Errors
/// If the network cannot carry a packet of `mtu` bytes, which a chain may lengthen by
/// `added`, in its encapsulation, or a flow's state of `state` bytes in its message; or
/// if a buffer has no room for such a packet.
pub(super) fn fabric_mtu(
    port: &dyn Port,
    path: Option<u16>,
    mtu: usize,
    added: usize,
    state: usize,
    wanted: usize,
    is_sealed: bool,
) -> Result<usize, Failure> {
    let has = usize::from(path.map_or(port.mtu(), |path| port.mtu().min(path)));
    let (seal, check) = if is_sealed { (SEAL_LEN, 0) } else { (0, FCS_LEN) };
    let overhead = ENCAPSULATION_LEN + added + seal + check;
    let needs = (mtu + overhead).max(state + RECORD_ROOM + check);
    let name = port.name();
    if has < needs {
        let text = match port.driver() {
            "udp" => format!(
                "`{name}` joins the hosts and takes packets of {has} bytes; {needs} are needed: an MTU that is larger by {} on the way between the hosts (and `fabric.mtu`, if it is set), or smaller ones at the ports",
                needs - has
            ),
            _ => format!(
                "`{name}` joins the hosts and has an MTU of {has}; {needs} are needed: `ip link set {name} mtu {needs}`, or more (and `fabric.mtu`, if it is set)"
            ),
        };
        return Err(Failure::new(exit::UNAVAILABLE, text));
    }
    let most = BUFFER_LEN - HEADROOM - ETHERNET_LEN - overhead;
    if mtu > most {
        return Err(Failure::new(
            exit::UNAVAILABLE,
            format!(
                "a port has an MTU of {mtu}, and a packet buffer holds {most} as packets travel between hosts: set it to that, or less"
            ),
        ));
    }
    // The frame's own header does not count.
    Ok((has + ETHERNET_LEN - check).min(wanted))
}

/// A look at the ports' devices, one device per turn: each look reads several files while
/// packets wait.
pub(super) struct DeviceLook {
    began_at: u64,
    /// The next device; `None` when all have been looked at.
    next: Option<usize>,
    /// Switches of ports that were not up before.
    up_again: Vec<u16>,
}

impl DeviceLook {
    /// A look that ended at this time.
    pub(super) fn done(at: u64) -> DeviceLook {
        DeviceLook { began_at: at, next: None, up_again: Vec::new() }
    }

    /// Begins a look, unless one is under way.
    pub(super) fn begin(&mut self, now: u64) {
        if self.is_over() {
            *self = DeviceLook { began_at: now, next: Some(0), up_again: Vec::new() };
        }
    }

    pub(super) fn is_over(&self) -> bool {
        self.next.is_none()
    }

    /// True if the last look began longer ago than this, ns.
    pub(super) fn is_older(&self, now: u64, interval: u64) -> bool {
        now.saturating_sub(self.began_at) > interval
    }
}

/// A function's text as a part of one line: a byte that could end it, or that a terminal
/// would act on, is escaped.
fn printable(text: &[u8]) -> String {
    let mut line = String::with_capacity(text.len());
    for byte in text {
        match byte {
            b' '..=b'~' => line.push(char::from(*byte)),
            _ => line += &format!("\\x{byte:02x}"),
        }
    }
    line
}

impl ManagerProcess {
    /// Reports that a router is heard, or is not heard any more.
    pub(super) fn say_liveness(&self, liveness: &Liveness) {
        let change = liveness.change;
        let name = self.plan.port_name(liveness.port);
        let peer = holdfast_wire::ip_addr(&liveness.peer);
        match (change.from, change.to) {
            (_, State::Up) => say(&format!("router {peer} at port {name} is alive (BFD)")),
            (State::Up, _) => say(&format!(
                "router {peer} at port {name} is not (BFD): {}",
                change.diagnostic.name()
            )),
            _ => {}
        }
    }

    /// Reports the packets that functions have noted, and writes alerts to their files.
    /// Functions limit their number.
    pub(super) fn say_logged(&mut self) {
        for Logged { chain, function, about, text, ingress, key, missed, .. } in
            self.host.hub.manager.take_logged()
        {
            let name = self.plan.chain_name(chain);
            // A function that logs rules also counts by them.
            let is_its = |known: &&NamedStatistic| {
                (known.id.chain, known.id.function) == (chain, function) && known.names.is_some()
            };
            let rule = self.plan.statistics.iter().find(is_its);
            let (its_name, rule) =
                rule.map_or(("", String::new()), |rule| (rule.function, rule.name(about as usize)));
            let what = if text.is_empty() { rule } else { printable(&text) };
            let switch = self.plan.switches.iter().find(|switch| switch.chains.contains(&chain));
            let port = switch.and_then(|switch| switch.ports.get(usize::from(ingress)));
            let port = port.map_or("", |port| self.plan.port_name(*port));
            let functions = self.plan.chains.get(usize::from(chain)).map(|chain| &chain.functions);
            let function = functions.and_then(|functions| functions.get(usize::from(function)));
            if let Some(alert) = function.and_then(|function| function.alert(about)) {
                self.alerts.write(&alert, &key, port);
            }
            let more = if missed > 0 {
                format!("; {missed} before it were not said")
            } else {
                String::new()
            };
            say(&format!("chain {name}: {its_name}: {key} at port {port}: {what}{more}"));
        }
    }

    /// Continues the look at the ports' devices: which of them went, came back, or
    /// changed.
    pub(super) fn look_at_devices(&mut self, now: u64) {
        let Some(at) = self.device_look.next else { return };
        self.device_look.next = Some(at + 1);
        if at < self.ports.len() {
            return self.look_at_port(at);
        }
        if self.hosts_network.look(at - self.ports.len()) {
            return;
        }
        self.device_look.next = None;
        self.tell_links();
        // The new neighbour at the other end may never have heard of the box.
        let mut up_again = core::mem::take(&mut self.device_look.up_again);
        up_again.sort_unstable();
        up_again.dedup();
        for switch in up_again
            .into_iter()
            .filter(|switch| self.is_ready && self.host.hub.serves(*switch))
            .collect::<Vec<_>>()
        {
            self.host.announce(switch, now, &mut self.out, &mut self.arena);
            self.carry_out(now);
        }
    }

    fn look_at_port(&mut self, at: usize) {
        let found = self.ports.look(at);
        let plan = self.plan.clone();
        let PortPlan { name, device, .. } = &plan.ports[at];
        match found {
            Look::Same => {}
            Look::Gone => say(&format!(
                "port {name}: device {device} is gone; it is used again when it is back"
            )),
            Look::Back => say(&format!("port {name}: device {device} is back")),
            Look::Refused(error) => {
                say(&format!("port {name}: device {device} is back and cannot be used: {error}"))
            }
        }
        // Frames lost at a port that another host serves are not counted: that host
        // forwards them.
        match self.host.serves(at as u8) {
            true => self.ports.take_losses(at, &mut self.losses[at]),
            false => self.ports.take_losses(at, &mut Losses::new()),
        }
        let (is_up, mtu) = (self.ports.is_up(at), self.ports.mtu(at));
        let (was_up, old_mtu) = std::mem::replace(&mut self.device_states[at], (is_up, mtu));
        if is_up && !was_up {
            self.device_look.up_again.extend(self.host.switch_of(at as u8));
        }
        if mtu != old_mtu {
            say(&format!("port {name}: the MTU of device {device} is {mtu} now, it was {old_mtu}"));
            self.set_mtu(at as u8, mtu);
        }
    }

    /// Reports how many of each switch's links are up, by which several hosts decide who
    /// serves it.
    pub(super) fn tell_links(&mut self) {
        for (number, switch) in (0u16..).zip(&self.plan.switches) {
            let is_up = |port: &&u8| {
                self.device_states.get(usize::from(**port)).is_some_and(|(is_up, _)| *is_up)
            };
            let links = switch.ports.iter().filter(is_up).count() as u8;
            self.host.hub.manager.set_links(number, links);
        }
    }

    /// Sets the MTU to which the edge cuts, or for which it refuses, from now on.
    fn set_mtu(&mut self, port: u8, mtu: u16) {
        let limit =
            self.plan.ports.get(usize::from(port)).and_then(|port| port.mtu).unwrap_or(u16::MAX);
        self.host.set_mtu(port, mtu.min(limit).min(MAX_MTU as u16));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use holdfast_io::port::MemoryPort;

    /// The longest packet of a port goes from host to host in its encapsulation, sealed
    /// or with its check sequence, with the bytes that a chain has added. A network with
    /// a byte less is refused, instead of losing packets later. A message has room in
    /// front of the check sequence.
    #[test]
    fn the_network_between_hosts_has_room_for_the_longest_packet() {
        for (added, is_sealed, needs) in
            [(0, false, 1544), (4, false, 1548), (0, true, 1586), (4, true, 1590)]
        {
            let fits = |mtu: u16| {
                let (port, _) = MemoryPort::new("fabric", [2; 6], mtu)
                    .unwrap_or_else(|error| panic!("{error}"));
                fabric_mtu(&port, None, 1500, added, 300, 2400, is_sealed).ok()
            };
            let check = if is_sealed { 0 } else { FCS_LEN };
            assert_eq!(
                (fits(needs), fits(needs - 1)),
                (Some(usize::from(needs) + ETHERNET_LEN - check), None),
                "{added} {is_sealed}"
            );
        }
    }
}
