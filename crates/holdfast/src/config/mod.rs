//! The configuration file: its text, and the plan made of it.
//!
//! YAML or JSON. In: text. Out: a [`Plan`], or the first [`Mistake`] with line, column,
//! the line itself, and the remedy. Never: a look at the machine (`host_check` does that;
//! only `files` and `attached` open the named files), a panic, or a guessed value.
//!
//! Two steps: [`raw`] is the text for serde; [`plan`] is the meaning, resolved by one
//! module per section. Each module takes the raw file and the results of earlier modules,
//! so arrows point one way: `raw`, `source`, `mistake` ← sections ← `plan` ← uses of a
//! plan (`files`, `memory`, `warnings`, `changes` with the table `reload_policy`).
//!
//! The parser is serde-saphyr. serde_yaml and serde_yml are no longer maintained and tell
//! a line only for some mistakes; the marked trees of saphyr and marked-yaml keep places
//! but leave typing to their user; serde-saphyr is maintained, has places in every error,
//! limits the depth and size of what it expands (a "billion laughs" is an error), refuses
//! duplicate keys, and reads YAML 1.2, where `no` is a word. Its `Spanned` cannot look
//! inside the configuration of a function, which is any value at all. Places therefore
//! come from a second pass over the events of its parser (`source.rs`), for typed values
//! and functions alike.

mod attached;
mod bfd;
mod chains;
mod changes;
mod clusters;
mod control;
mod devices;
mod etcd;
mod files;
mod hosts;
mod keys;
mod limits;
mod memory;
mod mistake;
mod names;
mod network;
mod parser;
mod plan;
mod protection;
pub mod raw;
mod reload_policy;
mod rules;
mod shared;
mod source;
mod state_server;
mod switches;
mod warnings;
mod zones;

pub use attached::attach;
pub use bfd::BfdPeer;
pub use chains::ChainPlan;
pub use changes::{Difference, Kind, Row, RuleChange, differences, rule_changes};
pub use clusters::{Cluster, DEFAULT_CLUSTER};
pub use control::{Control, ControlEntry};
pub use etcd::{Endpoint, Etcd};
pub use hosts::{Fabric, HostEntry};
pub use keys::{line as key_line, read as read_keys};
pub use limits::Limits;
pub use memory::Memory;
pub use mistake::Mistake;
pub(crate) use mistake::with_suggestion;
pub use network::Port;
pub use plan::Plan;
pub use raw::{ServerStandby, ServerTransport};
pub use reload_policy::{FUNCTION_KEYS, KEYS, Key, RULES, row};
pub use shared::{NamedPool, NamedStatistic};
pub use state_server::StateServers;
pub use switches::SwitchEntry;

use holdfast_control::MAX_FILE;
use serde_json::{Value, json};
use source::Source;

/// Reads a configuration to which the files that functions name are [attached](attach).
/// `file` is its name, for messages and for the paths in it.
///
/// # Errors
/// The first mistake.
pub fn read(file: &str, text: &str) -> Result<Plan, Mistake> {
    let (source, mut raw) = parse(file, text)?;
    attached::resolve(&mut raw, &source)?;
    Plan::resolve(source, raw)
}

/// The text for serde, and the places of its values.
fn parse(file: &str, text: &str) -> Result<(Source, raw::Config), Mistake> {
    if text.len() > MAX_FILE {
        return Err(Mistake::of_file(
            file,
            format!("longer than {} MiB: this is no configuration", MAX_FILE >> 20),
        ));
    }
    let (text, attached) = attached::split(text);
    // Some editors begin a file with a byte order mark.
    let source = Source::new(file, text.strip_prefix('\u{feff}').unwrap_or(text), attached);
    let raw =
        serde_saphyr::from_str(source.text()).map_err(|error| parser::mistake(&error, &source))?;
    Ok((source, raw))
}

/// Reads any bytes without a panic: the entry for fuzzing.
pub fn fuzz(bytes: &[u8]) {
    let _ = keys::parse(bytes);
    let mistakes = match read("fuzz", &String::from_utf8_lossy(bytes)) {
        Ok(plan) => plan.warnings(),
        Err(mistake) => vec![mistake],
    };
    for mistake in mistakes {
        assert!(!mistake.message.is_empty(), "a mistake says what it is");
        let _ = mistake.to_string();
    }
}

/// The JSON Schema of the file, the functions' own configurations included.
pub fn schema() -> Value {
    let mut schema = serde_json::to_value(schemars::schema_for!(raw::Config)).unwrap_or_default();
    let names = holdfast_functions::catalog::names();
    let mut below = serde_json::Map::new();
    for name in &names {
        let function = holdfast_functions::catalog::schema(name)
            .and_then(|schema| serde_json::to_value(schema).ok());
        let Some(mut function) = function else { continue };
        // Each function's definitions move to the file's, under distinct names.
        let definitions = function.as_object_mut().and_then(|map| map.remove("$defs"));
        function.as_object_mut().and_then(|map| map.remove("$schema"));
        rename_references(&mut function, name);
        schema["$defs"][*name] = function;
        for (key, mut definition) in
            definitions.as_ref().and_then(Value::as_object).cloned().unwrap_or_default()
        {
            rename_references(&mut definition, name);
            schema["$defs"][format!("{name}.{key}")] = definition;
        }
        below.insert(
            (*name).to_owned(),
            json!({ "anyOf": [{ "$ref": format!("#/$defs/{name}") }, { "type": "null" }] }),
        );
    }
    schema["$defs"]["FunctionConfig"] = json!({
        "description": "A function: its name, or its name with its configuration below it.",
        "anyOf": [
            { "enum": names },
            { "type": "object", "minProperties": 1, "maxProperties": 1, "additionalProperties": false, "properties": below },
        ],
    });
    schema
}

fn rename_references(value: &mut Value, function: &str) {
    match value {
        Value::Object(map) => {
            for (key, value) in map.iter_mut() {
                match value {
                    Value::String(target) if key == "$ref" => {
                        *target = target.replace("#/$defs/", &format!("#/$defs/{function}."))
                    }
                    _ => rename_references(value, function),
                }
            }
        }
        Value::Array(items) => items.iter_mut().for_each(|item| rename_references(item, function)),
        _ => {}
    }
}
