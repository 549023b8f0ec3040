//! The types of the control API, and the used part of etcd's, are kept as files: no build
//! needs the generator. This test compares each file with what its .proto file gives.
//! Both are in one test, so that one crate alone has the generator.

use protox::prost_reflect::prost_types::FileDescriptorProto;
use std::collections::VecDeque;
use tonic_prost_build::Builder;

/// Command that makes the files anew.
const COMMAND: &str = "`REGENERATE=1 cargo test -p holdfast-control --test generated`";

/// Fields that are not in an object of JSON while they are absent. Other absent fields
/// are null there.
const LEFT_OUT: [&str; 12] = [
    "FlowTable.forgotten",
    "FlowTable.half_open",
    "Pool.server",
    "Process.busy_permille",
    "Process.local_standby",
    "Process.name",
    "Process.retry",
    "Progress.order",
    "Retry.next_ms",
    "Status.control",
    "Status.election",
    "Status.talkers",
];

/// The control API, both sides of it. The commands print its messages as JSON too: serde
/// takes them over by the names of their fields.
fn control() -> Builder {
    let of = |field: &str| format!("holdfast.control.v1.{field}");
    let builder = tonic_prost_build::configure()
        .type_attribute(".", "#[derive(serde::Serialize, serde::Deserialize)]")
        .message_attribute(".", "#[serde(default)]")
        .skip_debug([of("File")])
        .field_attribute(of("Status.protected"), "#[serde(with = \"crate::status::protected\")]")
        .field_attribute(
            of("ListFlowsReply.next"),
            "#[serde(skip_serializing_if = \"Vec::is_empty\")]",
        )
        .field_attribute(of("Flow.values"), "#[serde(skip_serializing_if = \"Vec::is_empty\")]")
        .btree_map(".");
    let leave_out = |builder: Builder, field: &&str| {
        builder.field_attribute(of(field), "#[serde(skip_serializing_if = \"Option::is_none\")]")
    };
    LEFT_OUT.iter().fold(builder, leave_out)
}

/// The types, as they come out of the .proto file of this package below `root`, and the
/// file's comments on its fields.
fn generate(builder: Builder, root: &str, file: &str, package: &str) -> (String, String) {
    let directory = tempfile::tempdir().unwrap();
    let descriptors = protox::compile([file], [root]).unwrap();
    let fields = descriptors.file.iter().map(fields).collect();
    builder.out_dir(directory.path()).compile_fds(descriptors).unwrap();
    (std::fs::read_to_string(directory.path().join(format!("{package}.rs"))).unwrap(), fields)
}

/// The fields of what `status` and `flows` print, with the comments that `holdfast
/// explain` gives.
fn fields(file: &FileDescriptorProto) -> String {
    const HEAD: &str = "// This file is @generated from the comments of the .proto file.\n\
        \n/// A field of what the commands print.\n#[derive(Debug, Clone, Copy, PartialEq, Eq)]\
        \npub struct Field {\
        \n    /// Its name.\n    pub name: &'static str,\
        \n    /// Where it is.\n    pub kind: &'static str,\
        \n    /// Its meaning.\n    pub meaning: &'static str,\n}\n\
        \n/// All of them.\npub const FIELDS: &[Field] = &[\n";
    let mut text = HEAD.to_owned();
    let mut seen = Vec::new();
    let mut open = VecDeque::from([
        ("Status", "field of `status`".to_owned()),
        ("Flow", "field of `flows`".to_owned()),
    ]);
    while let Some((message, kind)) = open.pop_front() {
        let Some(at) = file.message_type.iter().position(|known| known.name() == message) else {
            continue;
        };
        if seen.contains(&message) {
            continue;
        }
        seen.push(message);
        for (number, field) in file.message_type[at].field.iter().enumerate() {
            let path = [4, at as i32, 2, number as i32];
            let locations = file.source_code_info.iter().flat_map(|info| &info.location);
            let comment = locations
                .filter(|location| location.path == path)
                .map(|location| location.leading_comments());
            let words: Vec<&str> = comment.flat_map(str::split_whitespace).collect();
            text += &format!(
                "    Field {{ name: {:?}, kind: {kind:?}, meaning: {:?} }},\n",
                field.name(),
                words.join(" ")
            );
            let inside = format!("{kind}, in `{}`", field.name());
            open.push_back((field.type_name().rsplit('.').next().unwrap_or(""), inside));
        }
    }
    text + "];\n"
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
    let (types, fields) = generate(control(), "proto", file, "holdfast.control.v1");
    check("src/api.rs", &types, file);
    check("src/fields.rs", &fields, file);
}

#[test]
fn the_types_of_etcd_are_those_of_the_proto_file() {
    let client = tonic_prost_build::configure().build_server(false);
    let (made, _) = generate(client, "../holdfast/proto", "etcd.proto", "etcdserverpb");
    check("../holdfast/src/run/etcd/api.rs", &made, "etcd.proto");
}
