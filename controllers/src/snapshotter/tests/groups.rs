//! Checks the calls and writes for VolumeGroupSnapshotContents, in order. Also checks that single
//! snapshots do not wait for groups.

use hostloop_proto::csi;
use hostloop_proto::status_details::no_room;

use super::*;
use crate::cache::Caches;
use crate::snapshots::content::GROUP;

fn given() -> Value {
    json!({"spec": {"source": {"volumeHandles": null, "groupSnapshotHandles":
        {"volumeGroupSnapshotHandle": "g", "volumeSnapshotHandles": ["x", "y"]}}}})
}

fn rig(more: Value) -> Group {
    within(Scope::Cluster, more)
}

fn within(scope: Scope, more: Value) -> Group {
    Rig::with(more, |setup| {
        setup.scope = scope;
        setup.extra_create_metadata = true;
        setup.parameters = json!({"pool": "p",
            "csi.storage.k8s.io/group-snapshotter-get-secret-name": "key",
            "csi.storage.k8s.io/group-snapshotter-get-secret-namespace": "safe"});
    })
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
async fn a_group_is_created_and_polled() {
    let rig = rig(json!({}));
    rig.answers.group(Ok(group(false)));
    rig.answers.group(Ok(group(true)));
    assert_eq!(rig.reconcile().await, Outcome::Failed);
    let create = "CreateGroup groupsnapshot-u-1 of v,w \
                  csi.storage.k8s.io/volumegroupsnapshot/name=vgs \
                  csi.storage.k8s.io/volumegroupsnapshot/namespace=ns \
                  csi.storage.k8s.io/volumegroupsnapshotcontent/name=c pool=p with pass=open";
    let written = json!({"volumeGroupSnapshotHandle": "g", "readyToUse": false,
        "creationTime": "1970-01-01T00:00:00Z", "volumeSnapshotInfoList": [
            {"volumeHandle": "v", "snapshotHandle": "h", "readyToUse": false,
                "restoreSize": 10}]});
    let expected = [
        GET_SECRET.to_owned(),
        mark::<GroupContents>(Some("yes")),
        create.to_owned(),
        status::<GroupContents>(written),
        mark::<GroupContents>(None),
    ];
    assert_eq!(rig.happened(), expected);
    assert_eq!(rig.reconcile().await, Outcome::Done);
    assert_eq!(rig.content()["status"]["readyToUse"], true);
    rig.happened();
    assert_eq!(rig.reconcile().await, Outcome::Done);
    assert!(rig.happened().is_empty());
}

#[tokio::test]
async fn a_pre_provisioned_group_is_checked() {
    let mut rig = rig(given());
    assert_eq!(rig.reconcile().await, Outcome::Failed);
    let message = "Warning GroupSnapshotContentCheckandUpdateFailed: Failed to check and update \
                   group snapshot content: the CSI driver has no snapshot g";
    assert_eq!(rig.world.events(), [message]);
    rig.happened();
    rig.answers.group(Ok(group(true)));
    assert_eq!(rig.reconcile().await, Outcome::Done);
    let happened = rig.happened();
    assert_eq!(happened[..2], [GET_SECRET, "GetGroup g x,y with pass=open"]);
    let written = json!({"volumeGroupSnapshotHandle": "g", "readyToUse": true,
        "creationTime": "1970-01-01T00:00:00Z"});
    assert_eq!(rig.content()["status"], written);
}

/// Checks that a content is looked at again at once, and is gone then.
async fn assert_goes_at_once(rig: &Group) {
    let again = Outcome::RequeueAfter(std::time::Duration::ZERO);
    assert_eq!(rig.reconcile().await, again);
    assert_eq!(rig.reconcile().await, Outcome::Done);
    assert_eq!(rig.content(), Value::Null);
}

/// A group without room in the pool does not keep its content.
#[tokio::test]
async fn a_content_whose_group_failed_for_good_is_deleted_at_once() {
    let marked = json!({"metadata": {"annotations": {GROUP.being_created: "yes"}}});
    let rig = rig(and(deleted::<GroupContents>(), marked));
    let full = no_room(tonic::Code::ResourceExhausted, "full".to_owned());
    rig.answers.group(Err(full));
    assert_goes_at_once(&rig).await;
}

/// A repeated call has to find the group of the first one, so that it can be deleted.
#[tokio::test]
async fn a_missing_secret_does_not_block_the_deletion_of_a_late_group() {
    let annotations = json!({GROUP.being_created: "yes", GROUP.secret_name: "gone"});
    let more = json!({"metadata": {"annotations": annotations}});
    let rig = rig(and(deleted::<GroupContents>(), more));
    rig.answers.group(Ok(group(true)));
    rig.answers.deletion(Ok(()));
    assert_goes_at_once(&rig).await;
}

#[tokio::test]
async fn a_group_is_deleted_with_its_members() {
    let reported = json!({"status": {"volumeGroupSnapshotHandle": "g", "readyToUse": true,
        "volumeSnapshotInfoList": [{"snapshotHandle": "a"}, {"snapshotHandle": "b"}]}});
    let bare = json!({"status": {"volumeGroupSnapshotHandle": "g"}});
    for (more, members) in [(reported, "a,b"), (and(given(), bare.clone()), "x,y")] {
        let rig = rig(and(deleted::<GroupContents>(), more));
        rig.answers.deletion(Ok(()));
        assert_eq!(rig.reconcile().await, Outcome::Done);
        let happened = rig.happened();
        let delete = format!("DeleteGroup g {members} with pass=open");
        let get = "GET volumegroupsnapshotcontents/c".to_owned();
        assert_eq!(happened[..3], [GET_SECRET.to_owned(), get, delete]);
        let cleared = json!({"volumeGroupSnapshotHandle": null, "readyToUse": null,
            "creationTime": null, "error": null});
        assert_eq!(happened[3], status::<GroupContents>(cleared));
        assert_eq!(happened.len(), 5);
        assert!(rig.content().is_null());
    }
    let mut unnamed = rig(and(deleted::<GroupContents>(), bare));
    assert_eq!(unnamed.reconcile().await, Outcome::Failed);
    let message = "Warning GroupSnapshotDeleteError: Failed to delete group snapshot: \
                   content c names no member of its group snapshot";
    assert_eq!(unnamed.world.events(), [message]);
}

#[tokio::test]
async fn a_node_owns_the_groups_that_its_driver_knows() {
    let here = crate::testing::node_scope("n1", "t/node");
    let reported = json!({"status": {"volumeGroupSnapshotHandle": "g",
        "volumeSnapshotInfoList": [{"snapshotHandle": "a"}]}});
    let mut rig = within(here, and(deleted::<GroupContents>(), reported));
    assert_eq!(rig.reconcile().await, Outcome::Failed);
    let asked = [GET_SECRET, "GetGroup g a with pass=open"];
    assert_eq!(rig.happened(), asked);
    assert_eq!(rig.world.events(), [""; 0]);
    // Once this node's driver knows the group snapshot, this node owns the content.
    rig.answers.group(Ok(group(true)));
    rig.answers.deletion(Ok(()));
    assert_eq!(rig.reconcile().await, Outcome::Done);
    assert_eq!(rig.owner().as_deref(), Some("n1"));
}

#[tokio::test]
async fn single_snapshots_do_not_wait_for_groups() {
    let (world, answers) = rig::world(&rig::all());
    world.api.put(class(&json!({})));
    world.api.put(content::<SingleContents>(&json!({})));
    // The API server does not serve groups.
    world.api.hide("volumegroupsnapshotcontents", 404);
    world.api.hide("volumegroupsnapshotclasses", 404);
    answers.single(Ok(snapshot(true)));
    let mut context = world.context.clone();
    context.caches = Arc::new(Caches::new(
        crate::testing::client(&world.api),
        context.stop.clone(),
    ));
    let running = tokio::spawn(run(context.clone(), options()));
    let is_ready = || {
        let content = world.api.get("volumesnapshotcontents/c");
        content.expect("the content")["status"]["readyToUse"] == true
    };
    let created = async {
        while !is_ready() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    let created = tokio::time::timeout(Duration::from_secs(300), created).await;
    created.expect("a ready snapshot");
    context.stop.cancel();
    running.await.expect("it ends").expect("well");
}
