//! The types of the control API, and of what is used of etcd's, are kept as files: no build needs what makes
//! them. Here it is seen whether each is what its .proto file gives. Both are in one test, so that one crate
//! alone has the generator.

use tonic_prost_build::Builder;

/// Command that makes the files anew.
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

/// The control API, both sides of it.
fn control() -> Builder {
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
}

/// The types, as they come out of the .proto file of this package below `root`.
fn generate(builder: Builder, root: &str, file: &str, package: &str) -> String {
    let directory = tempfile::tempdir().unwrap();
    let descriptors = protox::compile([file], [root]).unwrap();
    builder.out_dir(directory.path()).compile_fds(descriptors).unwrap();
    std::fs::read_to_string(directory.path().join(format!("{package}.rs"))).unwrap()
}

/// Compares what is kept with what is made, or keeps that.
fn check(kept: &str, made: &str, source: &str) {
    if std::env::var_os("REGENERATE").is_some() {
        std::fs::write(kept, made).unwrap();
    }
    let text = std::fs::read_to_string(kept).unwrap();
    let line = text.lines().zip(made.lines()).position(|(kept, made)| kept != made);
    let line = line.unwrap_or(text.lines().count().min(made.lines().count())) + 1;
    assert!(text == made, "{kept}:{line} is not what {source} gives: {COMMAND} makes it anew");
}

#[test]
fn the_types_are_those_of_the_proto_file() {
    let file = "holdfast/control/v1/control.proto";
    check("src/remote/api.rs", &generate(control(), "proto", file, "holdfast.control.v1"), file);
}

#[test]
fn the_types_of_etcd_are_those_of_the_proto_file() {
    let client = tonic_prost_build::configure().build_server(false);
    let made = generate(client, "../holdfast/proto", "etcd.proto", "etcdserverpb");
    check("../holdfast/src/run/etcd/api.rs", &made, "etcd.proto");
}
