//! A snapshotter with one content. Its driver logs the calls between the requests to the API
//! server.

use std::collections::{BTreeMap, VecDeque};
use std::fmt::Write as _;
use std::sync::Arc;

use hostloop_memory_driver::{Handlers, Rpc};
use hostloop_proto::csi;
use kube::ResourceExt;
use parking_lot::Mutex;
use serde_json::{Value, json};
use tonic::Status;

use super::{ContentKind, GroupContents, Part, Reconciler, Shared, SingleContents, options, read};
use crate::api::scope::{MANAGED_BY, Scope};
use crate::client::Leadership;
use crate::controller::ObjectKey;
use crate::csi::driver::{ControllerCapability, GroupCapability, Service};
use crate::csi::{Driver, Pools};
use crate::queue::{self, Outcome};
use crate::snapshots::content::Content;
use crate::testing::{self, DRIVER, FakeApi, World, connect};

/// A kind of contents with a sample.
pub(super) trait Sample: ContentKind {
    /// The path of the content.
    const PATH: &'static str;
    const API: &'static str;
    const CONTENT: &'static str;
    /// Those parts of a content's spec that differ between the kinds.
    fn spec() -> Value;
}

impl Sample for SingleContents {
    const PATH: &'static str = "volumesnapshotcontents/c";
    const API: &'static str = "snapshot.storage.k8s.io/v1";
    const CONTENT: &'static str = "VolumeSnapshotContent";

    fn spec() -> Value {
        json!({"volumeSnapshotClassName": "fast", "source": {"volumeHandle": "v"},
            "volumeSnapshotRef": {"name": "vs", "namespace": "ns", "uid": "u-1"}})
    }
}

impl Sample for GroupContents {
    const PATH: &'static str = "volumegroupsnapshotcontents/c";
    const API: &'static str = "groupsnapshot.storage.k8s.io/v1";
    const CONTENT: &'static str = "VolumeGroupSnapshotContent";

    fn spec() -> Value {
        json!({"volumeGroupSnapshotClassName": "fast", "source": {"volumeHandles": ["v", "w"]},
            "volumeGroupSnapshotRef": {"name": "vgs", "namespace": "ns", "uid": "u-1"}})
    }
}

/// A content as the snapshot-controller creates it, with these additions.
pub(super) fn content<K: Sample>(more: &Value) -> Value {
    let keys = K::Content::KEYS;
    let mut content = json!({
        "apiVersion": K::API, "kind": K::CONTENT,
        "metadata": {"name": "c", "finalizers": [keys.finalizer], "annotations":
            {keys.secret_name: "key", keys.secret_namespace: "safe"}},
        "spec": {"driver": DRIVER, "deletionPolicy": "Delete"},
    });
    json_patch::merge(&mut content["spec"], &K::spec());
    json_patch::merge(&mut content, more);
    content
}

/// The metadata of a content that is being deleted.
pub(super) fn deleted<K: Sample>() -> Value {
    json!({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z",
        "annotations": {K::Content::KEYS.being_deleted: "yes"}}})
}

/// A class with the name that contents have.
pub(super) fn class(parameters: &Value) -> Value {
    json!({"apiVersion": SingleContents::API, "kind": "VolumeSnapshotClass", "metadata": {"name": "fast"},
        "driver": DRIVER, "deletionPolicy": "Delete", "parameters": parameters})
}

/// What differs between snapshotters.
pub(super) struct Setup {
    pub(super) scope: Scope,
    pub(super) leads: bool,
    pub(super) part: Part,
    pub(super) pools: Pools,
    pub(super) can: Vec<ControllerCapability>,
    /// The parameters of the class.
    pub(super) parameters: Value,
    /// The driver of the class.
    pub(super) driver: &'static str,
    pub(super) extra_create_metadata: bool,
}

pub(super) fn all() -> Vec<ControllerCapability> {
    vec![
        ControllerCapability::CreateDeleteSnapshot,
        ControllerCapability::ListSnapshots,
        ControllerCapability::GetVolume,
    ]
}

pub(super) struct Rig<K: ContentKind> {
    pub(super) world: World,
    pub(super) answers: Answers,
    pub(super) reconciler: Reconciler<K>,
    pub(super) queue: queue::Queue<ObjectKey>,
}

impl<K: Sample> Rig<K> {
    /// A snapshotter for the whole cluster.
    pub(super) fn new(more: Value) -> Self {
        Rig::with(more, |_| {})
    }

    pub(super) fn with(more: Value, change: impl FnOnce(&mut Setup)) -> Self {
        let mut setup = Setup {
            scope: Scope::Cluster,
            leads: true,
            part: Part::Own,
            pools: Pools::default(),
            can: all(),
            parameters: json!({}),
            driver: DRIVER,
            extra_create_metadata: false,
        };
        change(&mut setup);
        let (mut world, answers) = world(&setup.can);
        let context = &mut world.context;
        context.scope = setup.scope;
        context.pools = setup.pools;
        context.common.extra_create_metadata = setup.extra_create_metadata;
        if !setup.leads {
            context.leader = Leadership::elected().1;
        }
        let context = context.clone();
        let (contents, classes) = K::watches(&context.caches);
        let mut class = class(&setup.parameters);
        class["driver"] = json!(setup.driver);
        classes.apply_write(read(class));
        world.add(&contents, content::<K>(&more));
        let queue = context.queue();
        let shared = Shared::new(context, options(), setup.part);
        Rig {
            reconciler: Reconciler::new(shared, &queue),
            queue,
            answers,
            world,
        }
    }

    pub(super) async fn reconcile(&self) -> Outcome {
        self.reconciler.reconcile("c").await
    }

    /// The content in the API server, or null after its deletion.
    pub(super) fn content(&self) -> Value {
        self.world.api.get(K::PATH).unwrap_or_default()
    }

    /// Replaces the content in the API server and in the cache.
    pub(super) fn replace(&self, content: Value) {
        let (contents, _) = K::watches(&self.world.context.caches);
        self.world.add(&contents, content);
    }

    /// The label with the owner, also after the content's deletion.
    pub(super) fn owner(&self) -> Option<String> {
        let (contents, _) = K::watches(&self.world.context.caches);
        let content = contents.get("c").expect("the content");
        content.labels().get(MANAGED_BY).cloned()
    }

    /// True if the content is annotated as being created.
    pub(super) fn is_marked(&self) -> bool {
        let annotations = &self.content()["metadata"]["annotations"];
        annotations.get(K::Content::KEYS.being_created).is_some()
    }

    pub(super) fn happened(&self) -> Vec<String> {
        self.world.api.happened()
    }
}

/// The log line of a patch of the content.
pub(super) fn patch<K: Sample>(body: Value) -> String {
    format!("PATCH {} {body}", K::PATH)
}

/// The log line of a patch of the content's status.
pub(super) fn status<K: Sample>(body: Value) -> String {
    format!("PATCH {}/status {}", K::PATH, json!({"status": body}))
}

/// The log line of a write of the annotation for creation.
pub(super) fn mark<K: Sample>(value: Option<&str>) -> String {
    patch::<K>(json!({"metadata": {"annotations": {K::Content::KEYS.being_created: value}}}))
}

/// A world with a driver that has these capabilities, and its answers.
pub(super) fn world(can: &[ControllerCapability]) -> (World, Answers) {
    let mut world = World::new(can);
    let answers = Answers::default();
    world.context.driver = Arc::new(Driver::with(
        connect(&answers.handlers(&world.api)),
        DRIVER,
        &[Service::ControllerService, Service::GroupControllerService],
        can,
        &[GroupCapability::CreateDeleteGetVolumeGroupSnapshot],
    ));
    world
        .api
        .put(testing::secret("safe", "key", "pass", "open"));
    (world, answers)
}

/// Answers in order. After the last one, the call fails.
type Queue<T> = Arc<Mutex<VecDeque<Result<T, Status>>>>;

/// The driver's next answers.
#[derive(Clone, Default)]
pub(super) struct Answers {
    pub(super) singles: Queue<csi::Snapshot>,
    pub(super) groups: Queue<csi::VolumeGroupSnapshot>,
    pub(super) deletions: Queue<()>,
}

fn next<T>(answers: &Queue<T>) -> Result<T, Status> {
    let next = answers.lock().pop_front();
    next.unwrap_or_else(|| Err(Status::not_found("none such")))
}

impl Answers {
    pub(super) fn single(&self, answer: Result<csi::Snapshot, Status>) {
        self.singles.lock().push_back(answer);
    }

    pub(super) fn group(&self, answer: Result<csi::VolumeGroupSnapshot, Status>) {
        self.groups.lock().push_back(answer);
    }

    pub(super) fn deletion(&self, answer: Result<(), Status>) {
        self.deletions.lock().push_back(answer);
    }

    fn handlers(&self, api: &FakeApi) -> Handlers {
        let handlers = Handlers::default();
        let log = api.clone();
        handlers.on_unhandled(move |method| log.note(method.to_owned()));
        let on = Calls(self, &handlers, api);
        on.call(
            |asked: csi::CreateSnapshotRequest| {
                let (more, secrets) = (pairs(&asked.parameters), pairs(&asked.secrets));
                let (name, volume) = (asked.name, asked.source_volume_id);
                format!("CreateSnapshot {name} of {volume}{more} with{secrets}")
            },
            |answers| {
                let snapshot = Some(next(&answers.singles)?);
                Ok(csi::CreateSnapshotResponse { snapshot })
            },
        );
        on.call(
            |asked: csi::DeleteSnapshotRequest| {
                let secrets = pairs(&asked.secrets);
                format!("DeleteSnapshot {} with{secrets}", asked.snapshot_id)
            },
            |answers| next(&answers.deletions).map(|()| csi::DeleteSnapshotResponse {}),
        );
        on.call(
            |asked: csi::ListSnapshotsRequest| {
                let secrets = pairs(&asked.secrets);
                format!("ListSnapshots {} with{secrets}", asked.snapshot_id)
            },
            |answers| {
                let entry = |snapshot| csi::list_snapshots_response::Entry {
                    snapshot: Some(snapshot),
                };
                let found = next(&answers.singles).ok();
                Ok(csi::ListSnapshotsResponse {
                    entries: found.map(entry).into_iter().collect(),
                    ..Default::default()
                })
            },
        );
        on.call(
            |asked: csi::GetSnapshotRequest| format!("GetSnapshot {}", asked.snapshot_id),
            |answers| {
                let snapshot = Some(next(&answers.singles)?);
                Ok(csi::GetSnapshotResponse { snapshot })
            },
        );
        on.call(
            |asked: csi::CreateVolumeGroupSnapshotRequest| {
                let (more, secrets) = (pairs(&asked.parameters), pairs(&asked.secrets));
                let (name, volumes) = (asked.name, asked.source_volume_ids.join(","));
                format!("CreateGroup {name} of {volumes}{more} with{secrets}")
            },
            |answers| {
                let group_snapshot = Some(next(&answers.groups)?);
                Ok(csi::CreateVolumeGroupSnapshotResponse { group_snapshot })
            },
        );
        on.call(
            |asked: csi::DeleteVolumeGroupSnapshotRequest| {
                let (group, members) = (asked.group_snapshot_id, asked.snapshot_ids.join(","));
                format!(
                    "DeleteGroup {group} {members} with{}",
                    pairs(&asked.secrets)
                )
            },
            |answers| next(&answers.deletions).map(|()| csi::DeleteVolumeGroupSnapshotResponse {}),
        );
        on.call(
            |asked: csi::GetVolumeGroupSnapshotRequest| {
                let (group, members) = (asked.group_snapshot_id, asked.snapshot_ids.join(","));
                format!("GetGroup {group} {members} with{}", pairs(&asked.secrets))
            },
            |answers| {
                let group_snapshot = Some(next(&answers.groups)?);
                Ok(csi::GetVolumeGroupSnapshotResponse { group_snapshot })
            },
        );
        handlers
    }
}

struct Calls<'a>(&'a Answers, &'a Handlers, &'a FakeApi);

impl Calls<'_> {
    /// Logs calls of one kind as `line` describes them, and answers them.
    fn call<Q: Rpc>(
        &self,
        line: fn(Q) -> String,
        answer: fn(&Answers) -> Result<Q::Response, Status>,
    ) {
        let (answers, api) = (self.0.clone(), self.2.clone());
        self.1.on(move |asked: Q| {
            api.note(line(asked));
            answer(&answers)
        });
    }
}

fn pairs(map: &BTreeMap<String, String>) -> String {
    let mut text = String::new();
    for (key, value) in map {
        let _ = write!(text, " {key}={value}");
    }
    text
}
