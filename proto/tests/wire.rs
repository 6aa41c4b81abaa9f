//! The protocols are what peers speak: every service, call, message, field,
//! enum value, oneof and reserved number is compared with a list that was
//! written down apart from the protocol files.

use hostloop_proto::FILE_DESCRIPTOR_SET;
use prost_reflect::{
    DescriptorPool, EnumDescriptor, ExtensionDescriptor, FieldDescriptor, FileDescriptor, Kind,
    MessageDescriptor, ServiceDescriptor,
};

const CSI: &str = include_str!("wire/csi.v1.txt");
const REGISTRATION: &str = include_str!("wire/pluginregistration.txt");
const SNAPSHOT_METADATA: &str = include_str!("wire/snapshotmetadata.txt");

#[test]
fn csi_is_as_listed() {
    assert_same(CSI, &describe("csi.proto"));
}

#[test]
fn registration_is_as_listed() {
    assert_same(REGISTRATION, &describe("pluginregistration.proto"));
}

#[test]
fn changed_blocks_are_as_listed() {
    assert_same(SNAPSHOT_METADATA, &describe("snapshotmetadata.proto"));
}

/// The bytes of an answer pass from one service to the other.
#[test]
fn answers_are_those_of_csi() {
    let answers = |list: &'static str| {
        list.lines()
            .filter(|line| {
                line.starts_with("message GetMetadata") && line.contains("Response:")
                    || line.starts_with("message BlockMetadata:")
                    || line.starts_with("enum BlockMetadataType:")
            })
            .collect::<Vec<_>>()
    };
    assert_eq!(answers(SNAPSHOT_METADATA).len(), 4);
    assert_eq!(answers(SNAPSHOT_METADATA), answers(CSI));
}

#[test]
fn options_have_their_numbers() {
    let found: Vec<_> = pool()
        .all_extensions()
        .map(|option| {
            (
                option.containing_message().full_name().to_owned(),
                option.number(),
                option.name().to_owned(),
            )
        })
        .collect();
    let listed = [
        ("google.protobuf.FieldOptions", 1059, "csi_secret"),
        ("google.protobuf.ServiceOptions", 1060, "alpha_service"),
    ];
    assert_eq!(
        found,
        listed.map(|(of, number, name)| (of.to_owned(), number, name.to_owned()))
    );
}

/// Compares line by line, both ways, so that a failure names what differs.
fn assert_same(listed: &str, found: &[String]) {
    let listed: Vec<_> = listed.lines().collect();
    let missing: Vec<_> = listed
        .iter()
        .filter(|line| !found.iter().any(|f| f == *line))
        .collect();
    let extra: Vec<_> = found
        .iter()
        .filter(|line| !listed.contains(&line.as_str()))
        .collect();
    assert!(
        missing.is_empty() && extra.is_empty(),
        "missing: {missing:#?}\nextra: {extra:#?}"
    );
    assert_eq!(listed.len(), found.len(), "a line is listed twice");
}

fn pool() -> DescriptorPool {
    DescriptorPool::decode(FILE_DESCRIPTOR_SET).expect("the crate's descriptors are valid")
}

/// A protocol file in the form of the lists.
fn describe(file: &str) -> Vec<String> {
    let pool = pool();
    let file = pool
        .get_file_by_name(file)
        .expect("the file is among the descriptors");
    let secret = pool
        .get_extension_by_name("csi.v1.csi_secret")
        .expect("csi.proto declares it");
    let alpha = pool
        .get_extension_by_name("csi.v1.alpha_service")
        .expect("csi.proto declares it");

    let of_file = |other: FileDescriptor| other == file;
    let mut lines = Vec::new();
    for service in file.services() {
        lines.extend(describe_service(&service, &alpha));
    }
    for message in pool
        .all_messages()
        .filter(|m| of_file(m.parent_file()) && !m.is_map_entry())
    {
        lines.push(describe_message(&message, &secret));
    }
    for values in pool.all_enums().filter(|e| of_file(e.parent_file())) {
        lines.push(describe_enum(&values));
    }
    lines
}

fn describe_service(service: &ServiceDescriptor, alpha: &ExtensionDescriptor) -> Vec<String> {
    let is_alpha = service.options().get_extension(alpha).as_bool() == Some(true);
    let name = service.name();
    let mut lines = vec![format!(
        "service {name}:{}",
        if is_alpha { " alpha" } else { "" }
    )];
    lines.extend(service.methods().map(|call| {
        let stream = |yes| if yes { "stream " } else { "" };
        format!(
            "rpc {name}.{}: {}{} -> {}{}",
            call.name(),
            stream(call.is_client_streaming()),
            call.input().name(),
            stream(call.is_server_streaming()),
            call.output().name(),
        )
    }));
    lines
}

fn describe_message(message: &MessageDescriptor, secret: &ExtensionDescriptor) -> String {
    let fields: Vec<_> = message
        .fields()
        .map(|field| describe_field(&field, secret))
        .collect();
    let reserved = message
        .reserved_ranges()
        .flatten()
        .map(|number| number.to_string());
    line(
        "message",
        message.full_name(),
        message.package_name(),
        &fields,
        reserved.collect(),
    )
}

fn describe_field(field: &FieldDescriptor, secret: &ExtensionDescriptor) -> String {
    let mut text = format!("{} {} ", field.number(), field.name());
    if let (true, Kind::Message(entry)) = (field.is_map(), field.kind()) {
        let (key, value) = (entry.map_entry_key_field(), entry.map_entry_value_field());
        text += &format!("map<{},{}>", type_name(&key), type_name(&value));
    } else {
        text += if field.is_list() { "repeated " } else { "" };
        text += &type_name(field);
    }
    if let Some(oneof) = field.containing_oneof() {
        text += &format!(" oneof {}", oneof.name());
    }
    if field.options().get_extension(secret).as_bool() == Some(true) {
        text += " SECRET";
    }
    text
}

/// A field's type, without the package if it is that of the field.
fn type_name(field: &FieldDescriptor) -> String {
    let package = field.parent_message().package_name().to_owned();
    match field.kind() {
        Kind::Message(message) => relative(message.full_name(), &package),
        Kind::Enum(values) => relative(values.full_name(), &package),
        scalar => format!("{scalar:?}").to_lowercase(),
    }
}

fn describe_enum(values: &EnumDescriptor) -> String {
    let listed: Vec<_> = values
        .values()
        .map(|v| format!("{}={}", v.name(), v.number()))
        .collect();
    let reserved = values
        .reserved_ranges()
        .flatten()
        .map(|number| number.to_string());
    line(
        "enum",
        values.full_name(),
        values.package_name(),
        &listed,
        reserved.collect(),
    )
}

fn line(kind: &str, name: &str, package: &str, items: &[String], reserved: Vec<String>) -> String {
    let mut text = format!("{kind} {}:", relative(name, package));
    if !items.is_empty() {
        text += &format!(" {}", items.join(", "));
    }
    if !reserved.is_empty() {
        text += &format!(" | reserved {}", reserved.join(", "));
    }
    text
}

fn relative(name: &str, package: &str) -> String {
    let inside = name
        .strip_prefix(package)
        .and_then(|rest| rest.strip_prefix('.'));
    inside.unwrap_or(name).to_owned()
}
