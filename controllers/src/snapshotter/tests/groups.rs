//! Checks the calls and writes for VolumeGroupSnapshotContents, in order. Also checks that single
//! snapshots do not wait for groups.

use hostloop_proto::csi;
use tonic::Status;

use super::*;
use crate::cache::Caches;
use crate::snapshots::VolumeGroupSnapshotClass;

const GROUP: &str = "volumegroupsnapshotcontents/c";
const GET_SECRET: &str = "GET namespaces/safe/secrets/key";
const CREATING: &str = names::GROUP.being_created;

fn content(more: Value) -> Value {
    let mut content = json!({
        "apiVersion": "groupsnapshot.storage.k8s.io/v1", "kind": "VolumeGroupSnapshotContent",
        "metadata": {"name": "c", "finalizers": [names::GROUP.finalizer], "annotations": {
            "groupsnapshot.storage.kubernetes.io/deletion-secret-name": "key",
            "groupsnapshot.storage.kubernetes.io/deletion-secret-namespace": "safe"}},
        "spec": {"driver": "d", "deletionPolicy": "Delete",
            "volumeGroupSnapshotClassName": "fast", "source": {"volumeHandles": ["v", "w"]},
            "volumeGroupSnapshotRef": {"name": "vgs", "namespace": "ns", "uid": "u-1"}},
    });
    json_patch::merge(&mut content, &more);
    content
}

fn deleted() -> Value {
    json!({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z",
        "annotations": {names::GROUP.being_deleted: "yes"}}})
}

fn made() -> Value {
    json!({"spec": {"source": {"volumeHandles": null, "groupSnapshotHandles":
        {"volumeGroupSnapshotHandle": "g", "volumeSnapshotHandles": ["x", "y"]}}}})
}

struct Group {
    world: World,
    events: Receiver<Event>,
    groups: Reconciler<Groups>,
}

impl Group {
    fn new(content: Value) -> Self {
        Group::within(Scope::Cluster, content)
    }

    fn within(scope: Scope, content: Value) -> Self {
        let world = World::default();
        world.put("namespaces/safe/secrets/key", secret());
        let (mut context, events) = world.context(scope, true, &all());
        context.common.extra_create_metadata = true;
        let content = world.put(GROUP, content);
        context.caches.group_contents().apply_write(read(content));
        let class: VolumeGroupSnapshotClass = read(class(json!({"pool": "p",
            "csi.storage.k8s.io/group-snapshotter-get-secret-name": "key",
            "csi.storage.k8s.io/group-snapshotter-get-secret-namespace": "safe"})));
        context.caches.group_classes().apply_write(class);
        let groups = Reconciler::<Groups>::new(Shared::new(context, options(), Part::Own));
        Group {
            world,
            events,
            groups,
        }
    }

    fn answer(&self, answer: Result<csi::VolumeGroupSnapshot, Status>) {
        self.world.groups.lock().unwrap().push_back(answer);
    }

    async fn sync(&self) -> Outcome {
        self.groups.reconcile("c").await
    }

    fn content(&self) -> Value {
        self.world.get(GROUP).expect("the content")
    }

    fn event(&mut self) -> Option<String> {
        let event = self.events.try_recv().ok()?;
        Some(format!("{}: {}", event.reason, event.message))
    }
}

fn group(ready: bool) -> csi::VolumeGroupSnapshot {
    csi::VolumeGroupSnapshot {
        group_snapshot_id: "g".to_owned(),
        snapshots: vec![snapshot(ready)],
        ready_to_use: ready,
        ..Default::default()
    }
}

#[tokio::test]
async fn one_is_made_and_polled() {
    let one = Group::new(content(json!({})));
    one.answer(Ok(group(false)));
    one.answer(Ok(group(true)));
    assert_eq!(one.sync().await, Outcome::Failed);
    let create = "CreateGroup groupsnapshot-u-1 of v,w \
                  csi.storage.k8s.io/volumegroupsnapshot/name=vgs \
                  csi.storage.k8s.io/volumegroupsnapshot/namespace=ns \
                  csi.storage.k8s.io/volumegroupsnapshotcontent/name=c pool=p with pass=open";
    let patch = |body: Value| format!("PATCH {GROUP} {body}");
    let mark = patch(json!({"metadata": {"annotations": {CREATING: "yes"}}}));
    let unmark = patch(json!({"metadata": {"annotations": {CREATING: null}}}));
    let status = json!({"volumeGroupSnapshotHandle": "g", "readyToUse": false,
        "creationTime": "1970-01-01T00:00:00Z", "volumeSnapshotInfoList": [
            {"volumeHandle": "v", "snapshotHandle": "h", "readyToUse": false,
                "restoreSize": 10}]});
    let recorded = format!("PATCH {GROUP}/status {}", json!({"status": status}));
    let expected = [
        GET_SECRET.to_owned(),
        mark,
        create.to_owned(),
        recorded,
        unmark,
    ];
    assert_eq!(one.world.happened(), expected);
    assert_eq!(one.sync().await, Outcome::Done);
    assert_eq!(one.content()["status"]["readyToUse"], true);
    one.world.happened();
    assert_eq!(one.sync().await, Outcome::Done);
    assert!(one.world.happened().is_empty());
}

#[tokio::test]
async fn one_that_can_not_be_made() {
    for (failure, is_final) in [
        (Status::invalid_argument("no"), true),
        (Status::unavailable("no"), false),
    ] {
        let mut one = Group::new(content(json!({})));
        let code = failure.code();
        one.answer(Err(failure));
        assert_eq!(one.sync().await, Outcome::Failed);
        let content = one.content();
        let marked = content["metadata"]["annotations"].get(CREATING).is_some();
        assert_eq!(marked, !is_final);
        assert_eq!(content["status"]["readyToUse"], false);
        let message = format!(
            "GroupSnapshotCreationFailed: Failed to create group snapshot: \
             CreateVolumeGroupSnapshot: {code:?}: no"
        );
        assert_eq!(one.event(), Some(message));
    }
}

#[tokio::test]
async fn one_made_beforehand_is_asked_about() {
    let mut one = Group::new(content(made()));
    assert_eq!(one.sync().await, Outcome::Failed);
    let message = "GroupSnapshotContentCheckandUpdateFailed: Failed to check and update group \
                   snapshot content: the driver knows no snapshot g";
    assert_eq!(one.event().as_deref(), Some(message));
    one.world.happened();
    one.answer(Ok(group(true)));
    assert_eq!(one.sync().await, Outcome::Done);
    let happened = one.world.happened();
    assert_eq!(happened[..2], [GET_SECRET, "GetGroup g x,y with pass=open"]);
    let status = json!({"volumeGroupSnapshotHandle": "g", "readyToUse": true,
        "creationTime": "1970-01-01T00:00:00Z"});
    assert_eq!(one.content()["status"], status);
}

#[tokio::test]
async fn one_is_deleted_with_its_members() {
    let reported = json!({"status": {"volumeGroupSnapshotHandle": "g", "readyToUse": true,
        "volumeSnapshotInfoList": [{"snapshotHandle": "a"}, {"snapshotHandle": "b"}]}});
    let bare = json!({"status": {"volumeGroupSnapshotHandle": "g"}});
    for (content, members) in [
        (content(and(deleted(), reported)), "a,b"),
        (content(and(and(deleted(), made()), bare.clone())), "x,y"),
    ] {
        let one = Group::new(content);
        one.world.deletions.lock().unwrap().push_back(Ok(()));
        assert_eq!(one.sync().await, Outcome::Done);
        let happened = one.world.happened();
        let delete = format!("DeleteGroup g {members} with pass=open");
        assert_eq!(happened[..2], [GET_SECRET.to_owned(), delete]);
        assert_eq!(happened.len(), 4);
        let content = one.content();
        assert_eq!(content["metadata"]["finalizers"], json!([]));
        assert!(content["status"].get("volumeGroupSnapshotHandle").is_none());
    }
    let mut unnamed = Group::new(content(and(deleted(), bare)));
    assert_eq!(unnamed.sync().await, Outcome::Failed);
    let message = "GroupSnapshotDeleteError: Failed to delete group snapshot: \
                   c names no member of its group snapshot";
    assert_eq!(unnamed.event().as_deref(), Some(message));
}

#[tokio::test]
async fn ones_of_other_nodes() {
    let here = || Scope::Node {
        name: "n1".to_owned(),
        segments: std::collections::BTreeMap::new(),
    };
    let reported = json!({"status": {"volumeGroupSnapshotHandle": "g",
        "volumeSnapshotInfoList": [{"snapshotHandle": "a"}]}});
    let mut one = Group::within(here(), content(and(deleted(), reported)));
    assert_eq!(one.sync().await, Outcome::Failed);
    assert_eq!(
        one.world.happened(),
        [GET_SECRET, "GetGroup g a with pass=open"]
    );
    assert_eq!(one.event(), None);
    // Once this node's driver knows the group snapshot, this node owns the content.
    one.answer(Ok(group(true)));
    one.world.deletions.lock().unwrap().push_back(Ok(()));
    assert_eq!(one.sync().await, Outcome::Done);
    let label = &one.content()["metadata"]["labels"];
    assert_eq!(*label, json!({crate::cache::scope::MANAGED_BY: "n1"}));
}

#[tokio::test]
async fn single_ones_do_not_wait_for_groups() {
    let world = World::default();
    world.put("namespaces/safe/secrets/key", secret());
    world.put("volumesnapshotclasses/fast", class(json!({})));
    world.put(CONTENT, super::content(json!({})));
    world.singles.lock().unwrap().push_back(Ok(snapshot(true)));
    let (context, _events) = world.context(Scope::Cluster, true, &all());
    let caches = Caches::new(world.client(), context.stop.clone());
    let caches = Arc::new(caches);
    let context = Context { caches, ..context };
    let running = tokio::spawn(run(context.clone(), options()));
    let made = async {
        while world.get(CONTENT).expect("it")["status"]["readyToUse"] != true {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    let made = tokio::time::timeout(Duration::from_secs(20), made).await;
    made.expect("it is made");
    context.stop.cancel();
    running.await.expect("it ends").expect("well");
}
