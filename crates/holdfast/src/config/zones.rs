//! How selectors call the ports by which flows come in: ports by their names, and zones, which are groups of ports.

use super::file::Config;
use super::mistake::{Mistake, listed, suggestion};
use super::source::Spot;
use super::switches::SwitchEntry;
use holdfast_wire::zone::{Zone, Zones};

/// Checks the section.
pub(super) fn check(config: &Config, root: Spot<'_>) -> Result<(), Mistake> {
    let spot = root.key("zones");
    for (name, ports) in &config.zones {
        super::clusters::name(name).map_err(|_| {
            spot.name(name).mistake("a zone's name is 1 to 48 letters, digits, `-`, `_` or `.`, and does not begin with `.`")
        })?;
        if config.ports.contains_key(name) {
            return Err(spot.name(name).mistake(format!("`{name}` is a port: its name means that port alone already")));
        }
        if ports.is_empty() {
            return Err(spot.name(name).mistake(format!("zone `{name}` needs ports, like `{name}: [lan, dmz]`")));
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

/// The names as chains on this switch have them: ports have their numbers among its own.
pub(crate) fn of_switch(config: &Config, switch: &SwitchEntry) -> Zones {
    let number = |port: &String| {
        let number = config.ports.keys().position(|name| name == port)? as u8;
        switch.ports.iter().position(|own| *own == number).map(|at| at as u8)
    };
    let ports = config.ports.keys().map(|port| (port.clone(), Zone::of(number(port))));
    let zones = config.zones.iter().map(|(name, ports)| (name.clone(), Zone::of(ports.iter().filter_map(number))));
    Zones::new(ports.chain(zones))
}
