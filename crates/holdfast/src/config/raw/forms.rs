//! Values that can be written in several ways: a text or a list, a name or a map.
//! Hand-written instead of serde's `untagged`, which would report every mistake only as a
//! variant that did not match.

use super::{
    FunctionConfig, HostFabric, HostNetwork, OneOrMany, ProtectionConfig, ProtectionOptions,
    RuntimesConfig, RuntimesRange, TlsConfig, TlsFiles, UdpFabric, VlanConfig, Word,
};
use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde::de::{
    self, Deserialize, Deserializer, Error, MapAccess, SeqAccess, Visitor,
    value::MapAccessDeserializer,
};
use serde_json::Value;
use std::borrow::Cow;
use std::fmt;

/// Reads a type in each form for which it has a visitor's method; of any other it says
/// what was expected.
macro_rules! forms {
    ($type:ident: $expected:literal; $($methods:tt)*) => {
        impl<'de> Deserialize<'de> for $type {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<$type, D::Error> {
                struct Form;
                impl<'de> Visitor<'de> for Form {
                    type Value = $type;
                    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                        f.write_str($expected)
                    }
                    $($methods)*
                }
                deserializer.deserialize_any(Form)
            }
        }
    };
}

impl HostFabric {
    /// The networks, one or two.
    pub fn networks(&self) -> &[HostNetwork] {
        match self {
            HostFabric::One(network) => std::slice::from_ref(network),
            HostFabric::Two(networks) => networks,
        }
    }
}

forms! {
    HostNetwork: "a device's name, or `{ udp: ADDRESS:PORT }`,";
    fn visit_str<E: Error>(self, device: &str) -> Result<HostNetwork, E> {
        Ok(HostNetwork::Device(device.to_owned()))
    }
    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<HostNetwork, A::Error> {
        UdpFabric::deserialize(MapAccessDeserializer::new(map)).map(HostNetwork::Udp)
    }
}

forms! {
    HostFabric: "a device's name, or `{ udp: ADDRESS:PORT }`, or a list of two of these,";
    fn visit_str<E: Error>(self, device: &str) -> Result<HostFabric, E> {
        Ok(HostFabric::One(HostNetwork::Device(device.to_owned())))
    }
    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<HostFabric, A::Error> {
        UdpFabric::deserialize(MapAccessDeserializer::new(map)).map(|udp| HostFabric::One(HostNetwork::Udp(udp)))
    }
    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<HostFabric, A::Error> {
        let mut networks = Vec::new();
        while let Some(network) = list.next_element()? {
            networks.push(network);
        }
        let count = networks.len();
        let two =
            networks.try_into().map_err(|_| A::Error::custom(format!("one network or two join the hosts, not {count}")));
        two.map(HostFabric::Two)
    }
}

impl OneOrMany {
    /// All of them, in order.
    pub fn all(&self) -> Vec<&str> {
        match self {
            OneOrMany::One(text) => vec![text],
            OneOrMany::Many(texts) => texts.iter().map(String::as_str).collect(),
        }
    }
}

forms! {
    OneOrMany: "an address, or a list of addresses";
    fn visit_str<E: Error>(self, text: &str) -> Result<OneOrMany, E> {
        Ok(OneOrMany::One(text.to_owned()))
    }
    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<OneOrMany, A::Error> {
        let mut texts = Vec::new();
        while let Some(text) = list.next_element()? {
            texts.push(text);
        }
        Ok(OneOrMany::Many(texts))
    }
}

impl VlanConfig {
    /// The identifiers, the outer one first.
    pub fn ids(&self) -> &[i64] {
        match self {
            VlanConfig::One(id) => std::slice::from_ref(id),
            VlanConfig::Many(ids) => ids,
        }
    }
}

forms! {
    VlanConfig: "a VLAN's number, or a list of two";
    fn visit_u64<E: Error>(self, id: u64) -> Result<VlanConfig, E> {
        Ok(VlanConfig::One(i64::try_from(id).unwrap_or(i64::MAX)))
    }
    fn visit_i64<E: Error>(self, id: i64) -> Result<VlanConfig, E> {
        Ok(VlanConfig::One(id))
    }
    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<VlanConfig, A::Error> {
        let mut ids = Vec::new();
        while let Some(id) = list.next_element()? {
            ids.push(id);
        }
        Ok(VlanConfig::Many(ids))
    }
}

forms! {
    Word: "a word or a number";
    fn visit_str<E: Error>(self, text: &str) -> Result<Word, E> {
        Ok(Word(text.to_owned()))
    }
    fn visit_u64<E: Error>(self, number: u64) -> Result<Word, E> {
        Ok(Word(number.to_string()))
    }
    fn visit_i64<E: Error>(self, number: i64) -> Result<Word, E> {
        Ok(Word(number.to_string()))
    }
}

impl JsonSchema for Word {
    fn schema_name() -> Cow<'static, str> {
        "Word".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        schemars::json_schema!({ "type": ["string", "integer"] })
    }
}

forms! {
    FunctionConfig: "a function's name, or its name with its configuration below it";
    fn visit_str<E: Error>(self, name: &str) -> Result<FunctionConfig, E> {
        Ok(FunctionConfig { entries: vec![(name.to_owned(), Value::Null)] })
    }
    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<FunctionConfig, A::Error> {
        let mut entries = Vec::new();
        while let Some(entry) = map.next_entry()? {
            entries.push(entry);
        }
        Ok(FunctionConfig { entries })
    }
}

impl JsonSchema for FunctionConfig {
    fn schema_name() -> Cow<'static, str> {
        "FunctionConfig".into()
    }

    // The functions' own schemas are put in by `config::schema`.
    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        schemars::json_schema!({ "type": ["string", "object"] })
    }
}

forms! {
    ProtectionConfig: "a protection's name, or a map with `preset`";
    fn visit_str<E: Error>(self, name: &str) -> Result<ProtectionConfig, E> {
        Ok(ProtectionConfig::Preset(name.to_owned()))
    }
    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<ProtectionConfig, A::Error> {
        ProtectionOptions::deserialize(MapAccessDeserializer::new(map))
            .map(|options| ProtectionConfig::Options(Box::new(options)))
    }
}

forms! {
    TlsConfig: "a directory, or a map with `ca`, `certificate` and `key`";
    fn visit_str<E: Error>(self, directory: &str) -> Result<TlsConfig, E> {
        Ok(TlsConfig::Directory(directory.to_owned()))
    }
    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<TlsConfig, A::Error> {
        TlsFiles::deserialize(MapAccessDeserializer::new(map)).map(TlsConfig::Files)
    }
}

impl RuntimesConfig {
    /// As `count`, `min`, `max`.
    pub fn range(&self) -> RuntimesRange {
        match *self {
            RuntimesConfig::Count(count) => {
                RuntimesRange { count: Some(count), ..RuntimesRange::default() }
            }
            RuntimesConfig::Range(range) => range,
        }
    }
}

forms! {
    RuntimesConfig: "a number of runtimes, or a map with `min` and `max`";
    fn visit_u64<E: Error>(self, number: u64) -> Result<RuntimesConfig, E> {
        let count = u16::try_from(number).map_err(|_| E::invalid_value(de::Unexpected::Unsigned(number), &self))?;
        Ok(RuntimesConfig::Count(count))
    }
    fn visit_i64<E: Error>(self, number: i64) -> Result<RuntimesConfig, E> {
        let count = u16::try_from(number).map_err(|_| E::invalid_value(de::Unexpected::Signed(number), &self))?;
        Ok(RuntimesConfig::Count(count))
    }
    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<RuntimesConfig, A::Error> {
        RuntimesRange::deserialize(MapAccessDeserializer::new(map)).map(RuntimesConfig::Range)
    }
}
