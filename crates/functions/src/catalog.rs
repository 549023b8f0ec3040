//! The functions by name, for configuration files.

use holdfast_nf::{Built, Chain, ConfigError, Configured, Function, NetworkFunction};
use holdfast_wire::zone::Zones;
use schemars::Schema;
use serde_json::Value;
use std::sync::{Arc, PoisonError, RwLock};

type Build = fn(&Value, &Zones) -> Result<Arc<dyn Configured>, ConfigError>;

/// A function's name and its other parts.
#[derive(Clone, Copy)]
struct Entry {
    name: &'static str,
    build: Build,
    schema: fn() -> Schema,
    files: &'static [&'static str],
}

fn build_as<N: NetworkFunction>(
    config: &Value,
    zones: &Zones,
) -> Result<Arc<dyn Configured>, ConfigError> {
    // The bare name stands for a function without configuration.
    let config =
        if config.is_null() { Value::Object(serde_json::Map::new()) } else { config.clone() };
    let config =
        serde_json::from_value(config).map_err(|error| ConfigError::at("", error.to_string()))?;
    Ok(Arc::new(Built::<N>::new(config, zones)?))
}

fn entry<N: NetworkFunction>() -> Entry {
    Entry {
        name: N::NAME,
        build: build_as::<N>,
        schema: || schemars::schema_for!(N::Config),
        files: N::FILES,
    }
}

/// Functions that do not ship with Holdfast.
static ADDED: RwLock<Vec<Entry>> = RwLock::new(Vec::new());

/// Adds a function under its name in configuration files, for a program built around this
/// library. Call it before the first configuration is read.
pub fn add<N: NetworkFunction>() {
    ADDED.write().unwrap_or_else(PoisonError::into_inner).push(entry::<N>());
}

fn entries() -> Vec<Entry> {
    let shipped = [
        entry::<crate::Firewall>(),
        entry::<crate::Nat>(),
        entry::<crate::LoadBalancer>(),
        entry::<crate::Monitor>(),
        entry::<crate::Forward>(),
        entry::<crate::PacketLimit>(),
        entry::<crate::QosMarker>(),
        entry::<crate::Vlan>(),
        entry::<crate::RateLimiter>(),
        entry::<crate::Http>(),
        entry::<crate::Ips>(),
        entry::<crate::Dpi>(),
    ];
    let added = ADDED.read().unwrap_or_else(PoisonError::into_inner);
    shipped.into_iter().chain(added.iter().copied()).collect()
}

/// The names of all functions.
pub fn names() -> Vec<&'static str> {
    entries().iter().map(|entry| entry.name).collect()
}

fn find(name: &str) -> Option<Entry> {
    entries().into_iter().find(|entry| entry.name == name)
}

/// The JSON Schema of a function's configuration.
pub fn schema(name: &str) -> Option<Schema> {
    find(name).map(|entry| (entry.schema)())
}

/// The keys of a function's configuration that list files
/// ([`NetworkFunction::FILES`]).
pub fn files(name: &str) -> &'static [&'static str] {
    find(name).map_or(&[], |entry| entry.files)
}

/// Makes a function with its own shared state. Its configuration cannot name ports of the
/// box.
///
/// # Errors
/// No function has this name, or the configuration is wrong.
pub fn build(name: &str, config: &Value) -> Result<Box<dyn Function>, ConfigError> {
    configured(name, config, &Zones::default()).map(|function| function.bind())
}

/// Makes a function for a chain on these ports.
///
/// # Errors
/// No function has this name, or the configuration is wrong.
pub fn configured(
    name: &str,
    config: &Value,
    zones: &Zones,
) -> Result<Arc<dyn Configured>, ConfigError> {
    let entry = find(name).ok_or_else(|| {
        ConfigError::at("", format!("there is no function `{name}`: one of {}", names().join(", ")))
    })?;
    (entry.build)(config, zones)
}

/// Makes a chain of functions with their configurations, in order.
///
/// # Errors
/// As [`build`], with the index of the function in front of the path.
pub fn chain(functions: &[(String, Value)]) -> Result<Chain, (usize, ConfigError)> {
    let built = functions
        .iter()
        .enumerate()
        .map(|(at, (name, config))| build(name, config).map_err(|error| (at, error)));
    Ok(Chain::new(built.collect::<Result<Vec<_>, _>>()?))
}
