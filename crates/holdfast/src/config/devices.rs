//! Devices: their names, the VLANs of ports on them, and the ports that share one.

use super::mistake::{Mistake, suggestion};
use super::raw::{PortConfig, VlanConfig};
use super::source::Spot;
use holdfast_wire::vlan::{MAX_ID, Tags};

/// Longest name of a Linux interface (IFNAMSIZ without its zero).
const MAX_DEVICE: usize = 15;
/// Drivers that a device may name; `holdfast_io::port::open` opens them.
const DRIVERS: &[&str] = &["afxdp", "afpacket", "dpdk", "pcap"];

/// A port's place on a device.
pub(super) struct Place<'a> {
    pub(super) port: &'a str,
    pub(super) device: &'a str,
    pub(super) tags: Tags,
    pub(super) flow_vlans: &'a [u16],
}

impl Place<'_> {
    /// The tags of all frames that are the port's.
    fn all(&self) -> impl Iterator<Item = Tags> {
        let flows = self.flow_vlans.iter().map(|id| self.tags.with_inner(*id));
        std::iter::once(self.tags).chain(flows)
    }
}

/// The device without its driver.
pub(super) fn plain(device: &str) -> &str {
    device.split_once(':').map_or(device, |(_, name)| name)
}

/// Checks the name of a device, with a driver in front or without.
///
/// # Errors
/// The text says what is wrong.
pub(super) fn name(text: &str) -> Result<&str, String> {
    let driver = text.split_once(':').map(|(driver, _)| driver);
    if let Some(driver) = driver.filter(|driver| !DRIVERS.contains(driver)) {
        let guess = suggestion(driver, DRIVERS.iter().copied());
        return Err(format!("there is no port driver `{driver}`: name a Linux interface{guess}"));
    }
    let name = plain(text);
    if driver == Some("pcap") {
        return match name.trim_matches(',') {
            "" => Err("`pcap:IN,OUT` names a file to read, one to write, or both".to_owned()),
            _ => Ok(text),
        };
    }
    if driver == Some("dpdk") {
        return match name {
            "" => {
                Err("`dpdk:DEVICE` names a network card, like `dpdk:0000:01:00.0`, or one of DPDK's virtual devices".to_owned())
            }
            _ => Ok(text),
        };
    }
    if matches!(name, "" | "." | "..")
        || name.len() > MAX_DEVICE
        || name.chars().any(|c| c.is_whitespace() || c.is_control() || c == '/')
    {
        return Err(format!(
            "`{}` is not the name of a Linux interface: 1 to {MAX_DEVICE} characters, as `ip link` lists them",
            name.escape_debug()
        ));
    }
    Ok(text)
}

/// Reads a port's tags, and its VLANs for flows.
pub(super) fn vlan(port: &PortConfig, spot: Spot<'_>) -> Result<(Tags, Vec<u16>), Mistake> {
    let spot_of = |at: usize| match &port.vlan {
        Some(VlanConfig::Many(_)) => spot.key("vlan").index(at),
        _ => spot.key("vlan"),
    };
    let written = port.vlan.as_ref().map_or(&[][..], VlanConfig::ids);
    let ids = written.iter().enumerate().map(|(at, id)| identifier(*id, spot_of(at)));
    let ids = ids.collect::<Result<Vec<_>, _>>()?;
    if port.vlan.is_some() && ids.is_empty() {
        return Err(spot
            .key("vlan")
            .mistake("the list is empty: a port of untagged frames has no `vlan`"));
    }
    let tags = Tags::new(&ids).ok_or_else(|| {
        spot.key("vlan").mistake(format!(
            "a frame has two tags at most, an outer and an inner one, not {}",
            ids.len()
        ))
    })?;
    let mut flow_vlans = Vec::new();
    for (at, id) in port.flow_vlans.iter().enumerate() {
        let spot = spot.key("flow_vlans").index(at);
        let id = identifier(*id, spot)?;
        if tags.with_inner(id) == tags || flow_vlans.contains(&id) {
            return Err(spot.mistake(format!("the port has VLAN {id} already")));
        }
        flow_vlans.push(id);
    }
    Ok((tags, flow_vlans))
}

fn identifier(id: i64, spot: Spot<'_>) -> Result<u16, Mistake> {
    let known = u16::try_from(id).ok().filter(|id| (1..=MAX_ID).contains(id));
    known.ok_or_else(|| {
        spot.mistake(format!(
            "{id} is no VLAN: one has a number from 1 to {MAX_ID} (IEEE 802.1Q, table 9-2)"
        ))
    })
}

/// Checks that a port shares its device with none of the others, or has other frames
/// there.
///
/// # Errors
/// The text says which port is in the way, and what would be right.
pub(super) fn share<'a>(
    place: &Place<'_>,
    others: impl Iterator<Item = Place<'a>>,
) -> Result<(), String> {
    let device = place.device;
    for other in others.filter(|other| plain(other.device) == plain(device)) {
        let name = other.port;
        if other.device != device {
            return Err(format!(
                "port `{name}` has this device as `{}`: ports that share a device name it alike",
                other.device
            ));
        }
        match place.all().find(|tags| other.all().any(|taken| taken == *tags)) {
            Some(Tags::NONE) => {
                return Err(format!(
                    "port `{name}` has this device already: ports share one if each has another `vlan`"
                ));
            }
            Some(tags) => {
                return Err(format!("port `{name}` has VLAN {tags} of `{device}` already"));
            }
            None => {}
        }
    }
    Ok(())
}
