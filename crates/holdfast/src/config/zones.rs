//! Names in selectors for the ports by which flows come in: ports, and zones, which are
//! groups of ports.

use super::mistake::{Mistake, listed, suggestion};
use super::names;
use super::raw::Config;
use super::source::Spot;
use holdfast_wire::zone::{Zone, Zones};

/// Checks the section.
pub(super) fn check(config: &Config, root: Spot<'_>) -> Result<(), Mistake> {
    let spot = root.key("zones");
    for (name, ports) in &config.zones {
        names::check(name, "a zone's", spot.name(name))?;
        if config.ports.contains_key(name) {
            return Err(spot
                .name(name)
                .mistake(format!("`{name}` is a port: its name means that port alone already")));
        }
        if ports.is_empty() {
            return Err(spot
                .name(name)
                .mistake(format!("zone `{name}` needs ports, like `{name}: [lan, dmz]`")));
        }
        for (at, port) in ports.iter().enumerate() {
            if !config.ports.contains_key(port) {
                let names = || config.ports.keys().map(String::as_str);
                let near = suggestion(port, names());
                let text = format!("there is no port `{port}`: {}{near}", listed(names()));
                return Err(spot.key(name).index(at).mistake(text));
            }
        }
    }
    Ok(())
}

/// The names for chains on a switch with these ports, which are numbered within the
/// switch.
pub(super) fn of_ports(config: &Config, ports: &[u8]) -> Zones {
    let number = |port: &String| {
        let number = config.ports.keys().position(|name| name == port)? as u8;
        ports.iter().position(|own| *own == number).map(|at| at as u8)
    };
    let names = config.ports.keys().map(|port| (port.clone(), Zone::of(number(port))));
    let zones = config
        .zones
        .iter()
        .map(|(name, ports)| (name.clone(), Zone::of(ports.iter().filter_map(number))));
    Zones::new(names.chain(zones))
}
