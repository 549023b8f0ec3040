//! The control API's types are kept as a file, so that no build needs what makes them. Here it is seen whether the file is what the .proto file gives.

const ROOT: &str = "proto";
const FILE: &str = "holdfast/control/v1/control.proto";
/// What is kept.
const KEPT: &str = "src/remote/api.rs";
/// What makes it anew.
const COMMAND: &str = "`REGENERATE=1 cargo test -p holdfast-control --test generated`";

/// What the commands print, or are told, as JSON too: serde takes them over by the names of their fields.
const OBJECTS: [&str; 29] = [
    "Applied",
    "Bfd",
    "ControlApi",
    "Election",
    "Failover",
    "Flow",
    "FlowTable",
    "Host",
    "Leader",
    "LocalStandby",
    "Mistake",
    "Network",
    "PingReply",
    "Pool",
    "Port",
    "Process",
    "Progress",
    "Refused",
    "RestoreProgress",
    "Retry",
    "Rule",
    "RuleChanges",
    "Rules",
    "ServerPool",
    "Statistic",
    "StatisticValue",
    "Status",
    "StopReply",
    "TraceStep",
];

/// The types, as they come out of the .proto file.
fn generate() -> String {
    let directory = tempfile::tempdir().unwrap();
    let descriptors = protox::compile([FILE], [ROOT]).unwrap();
    let mut builder = tonic_prost_build::configure();
    for message in OBJECTS {
        let derive = "#[derive(serde::Serialize, serde::Deserialize)] #[serde(default)]";
        builder = builder.message_attribute(format!("holdfast.control.v1.{message}"), derive);
    }
    builder
        .skip_debug(["holdfast.control.v1.File"])
        .field_attribute("holdfast.control.v1.Status.protected", "#[serde(with = \"super::protected\")]")
        .field_attribute("holdfast.control.v1.Status.control", "#[serde(skip_serializing_if = \"Option::is_none\")]")
        .field_attribute("holdfast.control.v1.Status.election", "#[serde(skip_serializing_if = \"Option::is_none\")]")
        .field_attribute("holdfast.control.v1.Pool.server", "#[serde(skip_serializing_if = \"Option::is_none\")]")
        .field_attribute("holdfast.control.v1.FlowTable.half_open", "#[serde(skip_serializing_if = \"Option::is_none\")]")
        .field_attribute("holdfast.control.v1.FlowTable.forgotten", "#[serde(skip_serializing_if = \"Option::is_none\")]")
        .field_attribute("holdfast.control.v1.Process.name", "#[serde(skip_serializing_if = \"Option::is_none\")]")
        .field_attribute("holdfast.control.v1.Process.local_standby", "#[serde(skip_serializing_if = \"Option::is_none\")]")
        .field_attribute("holdfast.control.v1.Process.retry", "#[serde(skip_serializing_if = \"Option::is_none\")]")
        .field_attribute("holdfast.control.v1.Retry.next_ms", "#[serde(skip_serializing_if = \"Option::is_none\")]")
        .field_attribute("holdfast.control.v1.Process.busy_permille", "#[serde(skip_serializing_if = \"Option::is_none\")]")
        .btree_map(".")
        .out_dir(directory.path())
        .compile_fds(descriptors)
        .unwrap();
    std::fs::read_to_string(directory.path().join("holdfast.control.v1.rs")).unwrap()
}

#[test]
fn the_types_are_those_of_the_proto_file() {
    let made = generate();
    if std::env::var_os("REGENERATE").is_some() {
        std::fs::write(KEPT, &made).unwrap();
    }
    let kept = std::fs::read_to_string(KEPT).unwrap();
    let line = kept.lines().zip(made.lines()).position(|(kept, made)| kept != made);
    let line = line.unwrap_or(kept.lines().count().min(made.lines().count())) + 1;
    assert!(kept == made, "{KEPT}:{line} is not what {ROOT}/{FILE} gives: {COMMAND} makes it anew");
}
