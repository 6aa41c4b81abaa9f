use k8s_openapi::api::core::v1::PersistentVolume;
use serde_json::{Value, json};
use tokio::sync::mpsc::Receiver;
use tonic::Status;

use super::*;
use crate::client::events::Event;
use crate::controller::queue::Outcome;
use crate::snapshots::VolumeSnapshotClass;
use world::World;

mod groups;
mod scopes;
mod singles;
mod world;

const CONTENT: &str = "volumesnapshotcontents/c";
const CREATING: &str = names::SINGLE.being_created;

fn options() -> Options {
    Options {
        snapshot_name_prefix: "snapshot".to_owned(),
        snapshot_name_uuid_length: -1,
        groupsnapshot_name_prefix: "groupsnapshot".to_owned(),
        groupsnapshot_name_uuid_length: -1,
    }
}

fn read<T: serde::de::DeserializeOwned>(value: Value) -> T {
    serde_json::from_value(value).expect("an object")
}

/// A content as the snapshot-controller creates it, with these additions.
fn content(more: Value) -> Value {
    let mut content = json!({
        "apiVersion": "snapshot.storage.k8s.io/v1", "kind": "VolumeSnapshotContent",
        "metadata": {"name": "c", "finalizers": [names::SINGLE.finalizer], "annotations": {
            "snapshot.storage.kubernetes.io/deletion-secret-name": "key",
            "snapshot.storage.kubernetes.io/deletion-secret-namespace": "safe"}},
        "spec": {"driver": "d", "deletionPolicy": "Delete", "volumeSnapshotClassName": "fast",
            "source": {"volumeHandle": "v"},
            "volumeSnapshotRef": {"name": "vs", "namespace": "ns", "uid": "u-1"}},
    });
    json_patch::merge(&mut content, &more);
    content
}

fn deleted() -> Value {
    json!({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z",
        "annotations": {names::SINGLE.being_deleted: "yes"}}})
}

fn and(mut one: Value, other: Value) -> Value {
    json_patch::merge(&mut one, &other);
    one
}

fn secret() -> Value {
    // The base64 encoding of "open".
    json!({"metadata": {"name": "key"}, "data": {"pass": "b3Blbg=="}})
}

fn class(parameters: Value) -> Value {
    json!({"metadata": {"name": "fast"}, "driver": "d", "deletionPolicy": "Delete",
        "parameters": parameters})
}

fn snapshot(ready: bool) -> hostloop_proto::csi::Snapshot {
    hostloop_proto::csi::Snapshot {
        snapshot_id: "h".to_owned(),
        source_volume_id: "v".to_owned(),
        size_bytes: 10,
        ready_to_use: ready,
        ..Default::default()
    }
}

fn all() -> [ControllerCapability; 3] {
    [
        ControllerCapability::CreateDeleteSnapshot,
        ControllerCapability::ListSnapshots,
        ControllerCapability::GetVolume,
    ]
}

/// A snapshotter with one content.
struct Single {
    world: World,
    context: Context,
    events: Receiver<Event>,
    singles: Reconciler<Singles>,
}

impl Single {
    fn new(content: Value) -> Self {
        Single::within(Scope::Cluster, true, &all(), content, class(json!({})))
    }

    fn within(
        scope: Scope,
        leads: bool,
        can: &[ControllerCapability],
        content: Value,
        class: Value,
    ) -> Self {
        let world = World::default();
        world.put("namespaces/safe/secrets/key", secret());
        let (mut context, events) = world.context(scope, leads, can);
        context.common.extra_create_metadata = class["extra"] == true;
        let content = world.put(CONTENT, content);
        context.caches.contents().apply_write(read(content));
        let class: VolumeSnapshotClass = read(class);
        context.caches.snapshot_classes().apply_write(class);
        let singles =
            Reconciler::<Singles>::new(Shared::new(context.clone(), options(), Part::Own));
        Single {
            world,
            context,
            events,
            singles,
        }
    }

    /// Sets the driver's next answer about a snapshot.
    fn answer(&self, answer: Result<hostloop_proto::csi::Snapshot, Status>) {
        self.world.singles.lock().unwrap().push_back(answer);
    }

    async fn sync(&self) -> Outcome {
        self.singles.reconcile("c").await
    }

    fn content(&self) -> Value {
        self.world.get(CONTENT).expect("the content")
    }

    fn events(&mut self) -> Vec<String> {
        let mut reported = Vec::new();
        while let Ok(event) = self.events.try_recv() {
            reported.push(format!("{}: {}", event.reason, event.message));
        }
        reported
    }
}

#[test]
fn lengths_of_names() {
    for (length, fine) in [(-1, true), (1, true), (36, true), (0, false), (-2, false)] {
        let single = Options {
            snapshot_name_uuid_length: length,
            ..options()
        };
        let group = Options {
            groupsnapshot_name_uuid_length: length,
            ..options()
        };
        assert_eq!(single.check().is_ok(), fine, "{length}");
        assert_eq!(group.check().is_ok(), fine, "{length}");
    }
    assert_eq!(options().snapshot_name_length(), None);
}

#[test]
fn flags_as_upstream_has_them() {
    #[derive(clap::Parser)]
    struct Line {
        #[command(flatten)]
        options: Options,
    }
    let parse = |line: &[&str]| <Line as clap::Parser>::try_parse_from(line).map(|l| l.options);
    let defaults = parse(&["x"]).expect("defaults");
    assert_eq!(defaults.snapshot_name_prefix, "snapshot");
    assert_eq!(defaults.groupsnapshot_name_prefix, "groupsnapshot");
    assert_eq!(defaults.snapshot_name_uuid_length, -1);
    let given = parse(&[
        "x",
        "--snapshot-name-prefix=s",
        "--snapshot-name-uuid-length=8",
        "--groupsnapshot-name-prefix=g",
        "--groupsnapshot-name-uuid-length",
        "-1",
    ])
    .expect("flags");
    assert_eq!(given.snapshot_name_length(), Some(8));
    assert_eq!(given.group_name_length(), None);
}
