//! The VLANs of ports, ports that share a device, and the VLANs that functions choose.

use super::chains::ChainPlan;
use super::mistake::Mistake;
use super::network::{Port, plain};
use super::raw::{Config, PortConfig, VlanConfig};
use super::source::Spot;
use super::switches::{self, SwitchEntry};
use holdfast_wire::vlan::{MAX_ID, Tags};

/// Reads a port's tags, and its VLANs for flows.
pub(super) fn read(port: &PortConfig, spot: Spot<'_>) -> Result<(Tags, Vec<u16>), Mistake> {
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

/// The place of a mistake about a port's VLAN.
pub(super) fn place<'s>(port: &PortConfig, spot: Spot<'s>) -> Spot<'s> {
    spot.key(if port.vlan.is_some() { "vlan" } else { "device" })
}

/// Checks that a port shares its device with none of the others, or has other frames
/// there. Each port comes with its device.
///
/// # Errors
/// The text says which port is in the way, and what would be right.
pub(super) fn share<'p>(
    (port, device): (&'p Port, &str),
    others: impl Iterator<Item = (&'p Port, &'p str)>,
) -> Result<(), String> {
    for (other, theirs) in others.filter(|(_, theirs)| plain(theirs) == plain(device)) {
        let name = &other.name;
        if theirs != device {
            return Err(format!(
                "port `{name}` has this device as `{theirs}`: ports that share a device name it alike"
            ));
        }
        let all = |port: &'p Port| {
            let flows = port.flow_vlans.iter().map(|id| port.tags.with_inner(*id));
            std::iter::once(port.tags).chain(flows)
        };
        match all(port).find(|tags| all(other).any(|taken| taken == *tags)) {
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

/// Checks that functions put packets only into VLANs that a port of their switch has.
pub(super) fn known(
    config: &Config,
    chains: &[ChainPlan],
    switches: &[SwitchEntry],
    ports: &[Port],
    root: Spot<'_>,
) -> Result<(), Mistake> {
    for ((name, number), chain) in config.chains.keys().zip(0u16..).zip(chains) {
        let switch = &switches[switches::of_chain(switches, number)];
        let has = |id: &u16| {
            let mut own = switch.ports.iter().filter_map(|at| ports.get(usize::from(*at)));
            own.any(|port| port.flow_vlans.contains(id))
        };
        for (at, function) in chain.functions.iter().enumerate() {
            if let Some(id) = function.vlans().iter().find(|id| !has(id)) {
                let spot = root.key("chains").key(name).key("functions").index(at);
                let function = function.name();
                return Err(spot.name(function).mistake(format!(
                    "{function}: no port has VLAN {id} among its `flow_vlans`, so packets in it could not leave"
                )));
            }
        }
    }
    Ok(())
}
