//! Secrets never show in `Debug` output, whichever message carries them and
//! whatever the message is inside of.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Debug;

use hostloop_proto::csi::v1::*;
use hostloop_proto::{FILE_DESCRIPTOR_SET, SECRET_FIELDS, snapshot_metadata};
use prost_reflect::{DescriptorPool, Kind};

const KEY: &str = "node-stage-passphrase-key";
const VALUE: &str = "correct-horse-battery-staple";

/// Messages that contain a message with secrets: the protocol has none. One
/// that appears needs a case in these tests.
const CONTAINERS: &[&str] = &[];

/// One message with secrets: its name, and how each way of printing it looks.
struct Carrier {
    message: &'static str,
    prints: fn() -> Vec<String>,
}

macro_rules! carriers {
    ($($message:ident),* $(,)?) => {
        &[$(Carrier {
            message: concat!("csi.v1.", stringify!($message)),
            prints: || prints(|message: &mut $message| message.secrets = secrets()),
        }),*]
    };
}

const CARRIERS: &[Carrier] = carriers![
    ControllerExpandVolumeRequest,
    ControllerGetVolumeHealthRequest,
    ControllerListVolumeHealthRequest,
    ControllerModifyVolumeRequest,
    ControllerPublishVolumeRequest,
    ControllerUnpublishVolumeRequest,
    CreateSnapshotRequest,
    CreateVolumeGroupSnapshotRequest,
    CreateVolumeRequest,
    DeleteSnapshotRequest,
    DeleteVolumeGroupSnapshotRequest,
    DeleteVolumeRequest,
    GetMetadataAllocatedRequest,
    GetMetadataDeltaRequest,
    GetSnapshotRequest,
    GetVolumeGroupSnapshotRequest,
    ListSnapshotsRequest,
    NodeExpandVolumeRequest,
    NodeGetStorageHealthRequest,
    NodePublishVolumeRequest,
    NodeStageVolumeRequest,
    ValidateVolumeCapabilitiesRequest,
];

/// Messages with a token.
const WITH_TOKEN: [&str; 2] = [
    "snapshotmetadata.GetMetadataAllocatedRequest",
    "snapshotmetadata.GetMetadataDeltaRequest",
];

fn secrets() -> BTreeMap<String, String> {
    BTreeMap::from([
        (KEY.to_owned(), VALUE.to_owned()),
        ("other".to_owned(), VALUE.to_owned()),
    ])
}

/// A message as itself and inside of what commonly holds one.
fn prints<M: Debug + Default>(fill: fn(&mut M)) -> Vec<String> {
    let make = || {
        let mut message = M::default();
        fill(&mut message);
        message
    };
    vec![
        format!("{:?}", make()),
        format!("{:#?}", make()),
        format!("{:?}", Some(make())),
        format!("{:?}", vec![make(), make()]),
        format!("{:?}", tonic::Request::new(make())),
    ]
}

#[test]
fn every_secret_field_is_tried() {
    let with_token = WITH_TOKEN.map(|message| (message, "security_token"));
    let tried = CARRIERS.iter().map(|c| (c.message, "secrets"));
    let tried: BTreeSet<_> = tried.chain(with_token).collect();
    let generated: BTreeSet<_> = SECRET_FIELDS.iter().copied().collect();
    assert_eq!(tried, generated);
    assert_eq!(
        CARRIERS.len() + WITH_TOKEN.len(),
        SECRET_FIELDS.len(),
        "a field is named twice"
    );
}

#[test]
fn every_listed_secret_is_redacted() {
    let listed: BTreeSet<_> = include_str!("wire/csi.v1.txt")
        .lines()
        .filter_map(|line| line.strip_prefix("message ")?.split_once(": "))
        .flat_map(|(message, fields)| fields.split(", ").map(move |field| (message, field)))
        .filter(|(_, field)| field.ends_with(" SECRET"))
        .map(|(message, field)| {
            let name = field
                .split(' ')
                .nth(1)
                .expect("a field has a number and a name");
            (format!("csi.v1.{message}"), name)
        })
        .collect();
    let generated: BTreeSet<_> = SECRET_FIELDS
        .iter()
        .filter(|(message, _)| message.starts_with("csi.v1."))
        .map(|(m, f)| (m.to_string(), *f))
        .collect();
    assert_eq!(listed, generated);
}

#[test]
fn debug_shows_only_how_many_secrets_there_are() {
    for carrier in CARRIERS {
        for print in (carrier.prints)() {
            let message = carrier.message;
            assert!(
                !print.contains(VALUE),
                "{message} shows a secret's value: {print}"
            );
            assert!(
                !print.contains(KEY),
                "{message} shows a secret's key: {print}"
            );
            assert!(
                print.contains("secrets: [redacted; 2]"),
                "{message} hides that: {print}"
            );
        }
    }
}

#[test]
fn debug_shows_no_token() {
    let allocated = prints(
        |message: &mut snapshot_metadata::GetMetadataAllocatedRequest| {
            message.security_token = VALUE.to_owned();
        },
    );
    let delta = prints(|message: &mut snapshot_metadata::GetMetadataDeltaRequest| {
        message.security_token = VALUE.to_owned();
    });
    for print in allocated.into_iter().chain(delta) {
        assert!(!print.contains(VALUE), "{print}");
        assert!(print.contains("security_token: [redacted]"), "{print}");
    }
}

#[test]
fn debug_shows_the_other_fields() {
    let request = DeleteVolumeRequest {
        volume_id: "pvc-1".to_owned(),
        secrets: secrets(),
    };
    let shown = r#"DeleteVolumeRequest { volume_id: "pvc-1", secrets: [redacted; 2] }"#;
    assert_eq!(format!("{request:?}"), shown);
}

#[test]
fn no_message_contains_one_with_secrets() {
    let pool = DescriptorPool::decode(FILE_DESCRIPTOR_SET).unwrap();
    let mut tainted: BTreeSet<_> = SECRET_FIELDS.iter().map(|(m, _)| m.to_string()).collect();
    let mut containers = BTreeSet::new();
    loop {
        let before = containers.len();
        for message in pool.all_messages() {
            let holds = |kind| matches!(kind, Kind::Message(m) if tainted.contains(m.full_name()));
            if message.fields().any(|field| holds(field.kind())) {
                containers.insert(message.full_name().to_owned());
            }
        }
        tainted.extend(containers.iter().cloned());
        if containers.len() == before {
            break;
        }
    }
    assert_eq!(
        containers.iter().map(String::as_str).collect::<Vec<_>>(),
        CONTAINERS
    );
}
