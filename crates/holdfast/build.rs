//! Makes the control API's types out of its .proto file, without protoc.

/// What the commands print, or are told, as JSON too: serde takes them over by the names of their fields.
const OBJECTS: [&str; 27] = [
    "Applied",
    "Bfd",
    "ControlApi",
    "Election",
    "Failover",
    "Flow",
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

fn main() -> Result<(), Box<dyn std::error::Error>> {
    const ROOT: &str = "proto";
    const FILE: &str = "holdfast/control/v1/control.proto";
    println!("cargo:rerun-if-changed={ROOT}/{FILE}");
    let descriptors = protox::compile([FILE], [ROOT])?;
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
        .field_attribute("holdfast.control.v1.Process.name", "#[serde(skip_serializing_if = \"Option::is_none\")]")
        .field_attribute("holdfast.control.v1.Process.local_standby", "#[serde(skip_serializing_if = \"Option::is_none\")]")
        .field_attribute("holdfast.control.v1.Process.busy_permille", "#[serde(skip_serializing_if = \"Option::is_none\")]")
        .btree_map(".")
        .compile_fds(descriptors)?;
    Ok(())
}
