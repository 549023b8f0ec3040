//! `docs/configuration.md` is made of the configuration's JSON Schema.
//! `HOLDFAST_REWRITE=1` writes it anew.

use holdfast::config::{self, Row};
use serde_json::{Map, Value};
use std::path::Path;

const HEAD: &str = "\
# Configuration

Every key of the configuration file, made of its JSON Schema (`holdfast check --schema`) by
`HOLDFAST_REWRITE=1 cargo test -p holdfast --test all reference`. A test compares the two.

The file is YAML. Unknown keys are refused, and a mistake is named with its place. For editors:
`holdfast check --schema > holdfast.schema.json`. Guides with examples:
[protections](protections.md), [several hosts](hosts.md), [operation](operate.md),
[etcd](etcd.md), [control API](control-api.md), [BFD](bfd.md), [VLANs](vlan.md),
[QoS marker](qos-marker.md), [rate limiter](rate-limiter.md), [HTTP](http.md), [IPS](ips.md),
[monitor](monitor.md), [DPI](dpi.md).

How a key is changed is said behind it, or once for most keys of a map: *live*, by
`holdfast apply` while the box runs, or by a *restart* of the box on all of its hosts,
which ends all flows. Then follows what the change means for flows that begin afterwards.
";

/// Columns of a line.
const WIDTH: usize = 90;

struct Reference<'a> {
    definitions: &'a Map<String, Value>,
    /// Objects that wait for their section: definition and path.
    waiting: Vec<(String, String)>,
    known: Vec<(String, String)>,
    text: String,
}

/// Breaks the text into lines. All but the first begin with `indent`.
fn wrapped(text: &str, indent: &str) -> String {
    let mut lines = vec![String::new()];
    for word in text.split_whitespace() {
        let line = lines.last_mut().expect("a line");
        let is_first = line.trim().is_empty();
        if !is_first && line.chars().count() + 1 + word.chars().count() > WIDTH {
            lines.push(format!("{indent}{word}"));
        } else if is_first {
            line.push_str(word);
        } else {
            *line += &format!(" {word}");
        }
    }
    lines.join("\n")
}

/// A description without the marks of links between items of the code.
fn description(value: &Value) -> String {
    value["description"].as_str().unwrap_or_default().replace("[`", "`").replace("`]", "`")
}

/// The place of a heading on its page.
fn anchor(heading: &str) -> String {
    heading
        .to_lowercase()
        .chars()
        .filter_map(|letter| match letter {
            ' ' => Some('-'),
            '-' | '_' => Some(letter),
            letter => letter.is_alphanumeric().then_some(letter),
        })
        .collect()
}

impl<'a> Reference<'a> {
    /// The values that the key at `path` may have, in words.
    fn kind(&mut self, value: &'a Value, path: &str) -> String {
        if let Some(name) = value["$ref"].as_str().and_then(|name| name.strip_prefix("#/$defs/")) {
            let of = &self.definitions[name];
            if name == "FunctionConfig" {
                return "[function](#functions)".to_owned();
            }
            if !of["properties"].is_object() {
                return self.kind(of, path);
            }
            let known = self.known.iter().find(|(known, _)| known == name);
            let at = known.map_or_else(|| path.to_owned(), |(_, at)| at.clone());
            if known.is_none() {
                self.known.push((name.to_owned(), at.clone()));
                self.waiting.push((name.to_owned(), at.clone()));
            }
            return format!("[map](#{})", anchor(&at));
        }
        for choice in ["anyOf", "oneOf"] {
            if let Some(choices) = value[choice].as_array() {
                let mut kept: Vec<String> = Vec::new();
                for kind in choices.iter().map(|of| self.kind(of, path)) {
                    if !kind.is_empty() && !kept.contains(&kind) {
                        kept.push(kind);
                    }
                }
                return kept.join(" or ");
            }
        }
        if let Some(word) = value["const"].as_str() {
            return format!("`{word}`");
        }
        if let Some(words) = value["enum"].as_array() {
            return words
                .iter()
                .filter_map(Value::as_str)
                .map(|word| format!("`{word}`"))
                .collect::<Vec<_>>()
                .join(" or ");
        }
        let types: Vec<&str> = match &value["type"] {
            Value::String(one) => vec![one.as_str()],
            Value::Array(several) => several.iter().filter_map(Value::as_str).collect(),
            _ => Vec::new(),
        };
        let named = types.iter().filter_map(|name| match *name {
            "string" => Some("text".to_owned()),
            "boolean" => Some("`true` or `false`".to_owned()),
            "integer" | "number" => Some(number(value)),
            "array" => Some(format!("list: {}", self.kind(&value["items"], path))),
            "object" if value["additionalProperties"].is_object() => Some(format!(
                "map from names: {}",
                self.kind(&value["additionalProperties"], &format!("{path}.NAME"))
            )),
            "object" => Some("map".to_owned()),
            _ => None,
        });
        named.collect::<Vec<_>>().join(" or ")
    }

    /// The keys of the struct or function with this name.
    fn keys(&mut self, of: &'a Value, path: &str, name: &str) {
        // A struct of a function has the function's name before its own.
        let name = name.rsplit('.').next().unwrap_or(name);
        let properties = || of["properties"].as_object().into_iter().flatten();
        let row = |key: &str| {
            config::row(name, key).unwrap_or_else(|| panic!("`{key}` of {name} has a row"))
        };
        let change = |row: Row| format!("*{}: {}*", row.kind.word(), row.flows);
        let count = |wanted: &Row| properties().filter(|(key, _)| row(key) == *wanted).count();
        let common =
            properties().map(|(key, _)| row(key)).max_by_key(count).filter(|row| count(row) > 1);
        if let Some(row) = common {
            self.text += &wrapped(&format!("Where nothing else is said: {}.", change(row)), "");
            self.text += "\n\n";
        }
        let required: Vec<&str> =
            of["required"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
        for (key, value) in properties() {
            let below = if path.is_empty() { key.clone() } else { format!("{path}.{key}") };
            let kind = self.kind(value, &below);
            let default = match &value["default"] {
                _ if required.contains(&key.as_str()) => ", needed".to_owned(),
                Value::Number(number) => format!(", {number} without it"),
                Value::Bool(is_so) => format!(", `{is_so}` without it"),
                Value::String(word) => format!(", `{word}` without it"),
                _ => String::new(),
            };
            let about = description(value);
            let own = Some(row(key)).filter(|row| common != Some(*row));
            let change = own.map_or_else(String::new, |row| format!(" {}.", change(row)));
            self.text +=
                &wrapped(&format!("- **`{key}`** ({kind}{default}): {about}{change}"), "  ");
            self.text.push('\n');
        }
    }

    /// Writes the sections of all maps that were named, and of the maps that these name.
    fn sections(&mut self) {
        while !self.waiting.is_empty() {
            let (name, path) = self.waiting.remove(0);
            let of = &self.definitions[&name];
            self.text += &format!("\n## `{path}`\n\n");
            let about = description(of);
            if !about.is_empty() && about != "What the operator writes." {
                self.text += &wrapped(&about, "");
                self.text += "\n\n";
            }
            self.keys(of, &path, &name);
        }
    }
}

/// A number, with the range where that says something.
fn number(value: &Value) -> String {
    let natural = [255, 65_535, u64::from(u32::MAX)];
    let least = value["minimum"].as_u64().filter(|least| *least > 0);
    let most = value["maximum"].as_u64().filter(|most| !natural.contains(most));
    match (least, most) {
        (None, None) => "number".to_owned(),
        (Some(least), None) => format!("number from {least}"),
        (least, Some(most)) => format!("number from {} to {most}", least.unwrap_or(0)),
    }
}

fn reference(schema: &Value) -> String {
    let definitions = schema["$defs"].as_object().expect("definitions");
    let mut reference =
        Reference { definitions, waiting: Vec::new(), known: Vec::new(), text: HEAD.to_owned() };
    reference.text += "\n## The file\n\n";
    reference.keys(schema, "", "Config");
    reference.sections();
    reference.text += "\n## Functions\n\n";
    let about = "An entry of a chain's `functions` is a function's name, or its name with its settings below it. \
        `holdfast nf` lists them.";
    reference.text += &wrapped(about, "");
    reference.text.push('\n');
    for name in holdfast_functions::catalog::names() {
        let of = &definitions[name];
        reference.text += &format!("\n## `{name}`\n\n");
        if of["properties"].as_object().is_none_or(Map::is_empty) {
            reference.text += "It has no settings.\n";
        }
        reference.keys(of, name, name);
        reference.sections();
    }
    reference.text
}

#[test]
fn the_reference_is_the_schemas() {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/configuration.md");
    let (made, schema) = (reference(&config::schema()), config::schema());
    if std::env::var_os("HOLDFAST_REWRITE").is_some() {
        std::fs::write(&page, &made).expect("the page can be written");
    }
    let written = std::fs::read_to_string(&page).unwrap_or_default();
    let differs = made.lines().zip(written.lines()).position(|(made, written)| made != written);
    let place = differs.map_or_else(|| "its length".to_owned(), |at| format!("line {}", at + 1));
    assert!(
        made == written,
        "docs/configuration.md differs from the schema, first in {place}: HOLDFAST_REWRITE=1 writes it anew"
    );
    // Every key of the schema is on the page.
    let definitions = schema["$defs"].as_object().expect("definitions");
    let keys = definitions
        .values()
        .chain([&schema])
        .filter_map(|of| of["properties"].as_object())
        .flat_map(Map::keys);
    let missing: Vec<&String> =
        keys.filter(|key| !made.contains(&format!("**`{key}`**"))).collect();
    assert!(missing.is_empty(), "{missing:?}");
}
