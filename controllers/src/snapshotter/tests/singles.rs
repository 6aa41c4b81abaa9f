//! Checks the calls and writes for VolumeSnapshotContents, in order.

use std::time::Duration;

use hostloop_proto::status_details::no_room;
use k8s_openapi::jiff::Timestamp;
use tonic::Code;

use super::*;
use crate::csi::driver::ControllerCapability;
use crate::snapshots::content::{GROUP_HANDLE, SINGLE};
use crate::testing::Fault;

const CREATE: &str = "CreateSnapshot snapshot-u-1 of v with pass=open";
const DELETE: &str = "DeleteSnapshot h with pass=open";
const GET_CONTENT: &str = "GET volumesnapshotcontents/c";

fn given() -> Value {
    json!({"spec": {"source": {"volumeHandle": null, "snapshotHandle": "h"}}})
}

fn known(ready: bool) -> Value {
    json!({"snapshotHandle": "h", "creationTime": 0, "restoreSize": 10, "readyToUse": ready})
}

/// The log of a CreateSnapshot call with these writes of the status.
fn created(written: &[Value]) -> Vec<String> {
    let mut log = vec![
        GET_SECRET.to_owned(),
        mark::<SingleContents>(Some("yes")),
        CREATE.to_owned(),
    ];
    log.extend(written.iter().cloned().map(status::<SingleContents>));
    log.push(mark::<SingleContents>(None));
    log
}

#[tokio::test]
async fn a_snapshot_is_created() {
    let mut rig = Single::new(json!({}));
    rig.answers.single(Ok(snapshot(true)));
    assert_eq!(rig.reconcile().await, Outcome::Done);
    assert_eq!(rig.happened(), created(&[known(true)]));
    assert!(!rig.is_marked());
    assert!(rig.world.events().is_empty());
    // Nothing is left to do.
    assert_eq!(rig.reconcile().await, Outcome::Done);
    assert!(rig.happened().is_empty());
}

#[tokio::test]
async fn failures_by_code() {
    for (failure, is_final) in [
        (Status::invalid_argument("bad"), true),
        (Status::internal("bad"), true),
        (Status::unavailable("bad"), false),
        (Status::aborted("bad"), false),
        (Status::resource_exhausted("bad"), false),
        (no_room(Code::ResourceExhausted, "bad".to_owned()), true),
        (Status::deadline_exceeded("bad"), false),
    ] {
        let mut rig = Single::new(json!({}));
        let cause = format!("CreateSnapshot: {:?}: bad", failure.code());
        let first = format!("Failed to create snapshot: {cause}");
        let later = format!("Failed to check and update snapshot content: {cause}");
        // The same message is written once.
        for (message, written) in [(&first, true), (&later, true), (&later, false)] {
            rig.answers.single(Err(failure.clone()));
            assert_eq!(rig.reconcile().await, Outcome::Failed);
            let happened = rig.happened();
            let unmarked = happened.contains(&mark::<SingleContents>(None));
            assert_eq!(unmarked, is_final, "{happened:?}");
            let last = happened.last().filter(|one| one.contains("/status "));
            let last = last.is_some_and(|one| one.contains(message));
            assert_eq!(last, written, "{happened:?}");
            assert_eq!(rig.content()["status"]["error"]["message"], *message);
            let time = rig.content()["status"]["error"]["time"].clone();
            let time: Timestamp = serde_json::from_value(time).unwrap();
            assert!(
                time.duration_until(Timestamp::now()).as_secs() < 60,
                "{time}"
            );
            assert_eq!(rig.content()["status"]["readyToUse"], false);
            assert_eq!(rig.is_marked(), !is_final);
        }
        let events = [
            format!("Warning SnapshotCreationFailed: {first}"),
            format!("Warning SnapshotContentCheckandUpdateFailed: {later}"),
        ];
        assert_eq!(rig.world.events(), events);
        // The next call succeeds, and the error is cleared.
        rig.answers.single(Ok(snapshot(true)));
        assert_eq!(rig.reconcile().await, Outcome::Done);
        assert_eq!(rig.content()["status"], known(true));
    }
}

/// The content is deleted while the driver takes its snapshot, or before this process started.
/// After a final error nothing has to be waited for.
#[tokio::test]
async fn a_content_whose_snapshot_failed_for_good_is_deleted_at_once() {
    let marked = json!({"metadata": {"annotations": {SINGLE.being_created: "yes"}}});
    for (failure, is_final) in [
        (no_room(Code::ResourceExhausted, "full".to_owned()), true),
        (Status::internal("broken"), true),
        (Status::resource_exhausted("busy"), false),
        (Status::aborted("busy"), false),
    ] {
        let rig: Single = Rig::new(and(deleted::<SingleContents>(), marked.clone()));
        rig.answers.single(Err(failure.clone()));
        let outcome = rig.reconcile().await;
        if !is_final {
            assert_eq!(outcome, Outcome::Failed, "{failure}");
            assert!(rig.is_marked());
            continue;
        }
        assert_eq!(outcome, Outcome::RequeueAfter(Duration::ZERO), "{failure}");
        assert_eq!(rig.reconcile().await, Outcome::Done);
        assert_eq!(rig.content(), Value::Null, "{failure}");
    }
}

#[tokio::test]
async fn invalid_contents_and_classes_are_reported() {
    let class = |name: Value| json!({"spec": {"volumeSnapshotClassName": name}});
    for (more, parameters, message) in [
        (
            class(json!("gone")),
            json!({}),
            "VolumeSnapshotClass gone does not exist: create it",
        ),
        (
            class(Value::Null),
            json!({}),
            "content c names no class, which its snapshot needs",
        ),
        (
            json!({"spec": {"volumeSnapshotRef": {"uid": null}}}),
            json!({}),
            "content c is not bound to a snapshot: its reference has no UID",
        ),
        (
            json!({}),
            json!({"csi.storage.k8s.io/fstype": "xfs"}),
            "the class parameter csi.storage.k8s.io/fstype is unknown, and csi.storage.k8s.io/ is \
             a reserved prefix: correct or remove it",
        ),
        (
            json!({"metadata": {"annotations": {SINGLE.secret_name: "other"}}}),
            json!({}),
            "secret safe/other does not exist: create it",
        ),
    ] {
        let mut rig: Single = Rig::with(more, |setup| setup.parameters = parameters);
        assert_eq!(rig.reconcile().await, Outcome::Failed);
        let message = format!("Failed to create snapshot: {message}");
        assert_eq!(rig.content()["status"]["error"]["message"], message);
        let event = format!("Warning SnapshotCreationFailed: {message}");
        assert_eq!(rig.world.events(), [event]);
        assert!(
            !rig.happened()
                .contains(&mark::<SingleContents>(Some("yes")))
        );
    }
}

#[tokio::test]
async fn contents_of_others_are_left_alone() {
    type Change = fn(&mut rig::Setup);
    let cases: [(&str, Value, Change); 4] = [
        (
            "another driver's",
            json!({"spec": {"driver": "other"}}),
            |_| {},
        ),
        (
            "without a source",
            json!({"spec": {"source": {"volumeHandle": null}}}),
            |_| {},
        ),
        ("of another driver's class", json!({}), |setup| {
            setup.driver = "other";
        }),
        ("without the lead", json!({}), |setup| setup.leads = false),
    ];
    for (what, more, change) in cases {
        let rig: Single = Rig::with(more, change);
        assert_eq!(rig.reconcile().await, Outcome::Done, "{what}");
        assert_eq!(rig.happened(), [""; 0], "{what}");
    }
}

#[tokio::test]
async fn a_conflict_does_not_lose_the_answer() {
    let mut rig = Single::new(json!({}));
    rig.answers.single(Ok(snapshot(true)));
    let path = "volumesnapshotcontents/c/status";
    rig.world
        .api
        .fault(&["PATCH"], path, Some(2), Fault::Refuse(409));
    assert_eq!(rig.reconcile().await, Outcome::Done);
    let mut expected = created(&[known(true), known(true), known(true)]);
    let get = GET_CONTENT.to_owned();
    expected.insert(4, get.clone());
    expected.insert(6, get);
    assert_eq!(rig.happened(), expected);
    assert!(rig.world.events().is_empty());
}

#[tokio::test]
async fn a_pre_provisioned_snapshot_is_checked() {
    let can = ControllerCapability::CreateDeleteSnapshot;
    let (list, get) = (
        ControllerCapability::ListSnapshots,
        ControllerCapability::GetSnapshot,
    );
    for (can, asked) in [
        ([can, list], "ListSnapshots h with pass=open"),
        ([can, get], "GetSnapshot h"),
    ] {
        let rig = || -> Single {
            Rig::with(given(), |setup| {
                setup.can = can.to_vec();
                setup.parameters = json!({
                    "csi.storage.k8s.io/snapshotter-list-secret-name": "key",
                    "csi.storage.k8s.io/snapshotter-list-secret-namespace": "safe"});
            })
        };
        let found = rig();
        found.answers.single(Ok(snapshot(true)));
        assert_eq!(found.reconcile().await, Outcome::Done);
        let written = status::<SingleContents>(known(true));
        assert_eq!(found.happened(), [GET_SECRET, asked, &written]);
        let mut missing = rig();
        assert_eq!(missing.reconcile().await, Outcome::Failed);
        let message =
            "Failed to check and update snapshot content: the CSI driver has no snapshot h";
        assert_eq!(missing.content()["status"]["error"]["message"], message);
        let event = format!("Warning SnapshotContentCheckandUpdateFailed: {message}");
        assert_eq!(missing.world.events(), [event]);
    }
}

/// The driver cannot be asked about the snapshot, so the time of the first check is used.
#[tokio::test]
async fn an_unchecked_snapshot_is_from_the_time_of_the_first_check() {
    let can = vec![ControllerCapability::CreateDeleteSnapshot];
    let rig: Single = Rig::with(given(), |setup| setup.can = can);
    let before = Timestamp::now().as_nanosecond();
    assert_eq!(rig.reconcile().await, Outcome::Done);
    let mut status = rig.content()["status"].take();
    let taken = status["creationTime"].take().as_i64().unwrap();
    let now = Timestamp::now().as_nanosecond();
    assert!((before..=now).contains(&i128::from(taken)), "{taken}");
    let rest = json!({"snapshotHandle": "h", "creationTime": null, "readyToUse": true});
    assert_eq!(status, rest);
}

/// The field of the class decides. The driver may use a parameter with the same name.
#[tokio::test]
async fn a_parameter_deletion_policy_causes_one_warning() {
    let parameters = json!({"deletionPolicy": "Retain"});
    let mut rig: Single = Rig::with(json!({}), |setup| setup.parameters = parameters);
    rig.answers.single(Ok(snapshot(false)));
    rig.answers.single(Ok(snapshot(true)));
    assert_eq!(rig.reconcile().await, Outcome::Failed);
    let call = "CreateSnapshot snapshot-u-1 of v deletionPolicy=Retain with pass=open".to_owned();
    assert!(rig.happened().contains(&call));
    let events = rig.world.events();
    let expected = "Warning MisplacedDeletionPolicy: VolumeSnapshotClass fast";
    assert!(
        events.len() == 1 && events[0].starts_with(expected),
        "{events:?}"
    );
    assert_eq!(rig.reconcile().await, Outcome::Done);
    assert_eq!(rig.world.events(), [""; 0]);
}

#[tokio::test]
async fn members_of_groups_are_checked_with_the_secret_that_created_them() {
    let rig = Single::new(json!({
        "metadata": {"annotations": {GROUP_HANDLE: "g"}},
        "spec": {"volumeSnapshotClassName": null},
        "status": {"snapshotHandle": "h", "volumeGroupSnapshotHandle": "g"}}));
    rig.answers.single(Ok(snapshot(true)));
    assert_eq!(rig.reconcile().await, Outcome::Done);
    let written = json!({"creationTime": 0, "restoreSize": 10, "readyToUse": true});
    let expected = [
        GET_SECRET,
        "ListSnapshots h with pass=open",
        &status::<SingleContents>(written),
    ];
    assert_eq!(rig.happened(), expected);
}

#[tokio::test]
async fn a_snapshot_is_deleted() {
    let ready = json!({"status": {"snapshotHandle": "h", "readyToUse": true}});
    let mut rig = Single::new(and(deleted::<SingleContents>(), ready));
    rig.answers
        .deletion(Err(Status::failed_precondition("in use")));
    rig.answers.deletion(Ok(()));
    assert_eq!(rig.reconcile().await, Outcome::Failed);
    assert_eq!(rig.happened(), [GET_SECRET, GET_CONTENT, DELETE]);
    let event = "Warning SnapshotDeleteError: Failed to delete snapshot: \
                 DeleteSnapshot: FailedPrecondition: in use";
    assert_eq!(rig.world.events(), [event]);
    let (uid, path) = (
        rig.content()["metadata"]["uid"].clone(),
        "/metadata/finalizers/0",
    );
    assert_eq!(rig.reconcile().await, Outcome::Done);
    let release = json!([{"op": "test", "path": "/metadata/uid", "value": uid},
        {"op": "test", "path": path, "value": SINGLE.finalizer}, {"op": "remove", "path": path}]);
    let cleared = json!({"snapshotHandle": null, "readyToUse": null, "creationTime": null,
        "restoreSize": null});
    let expected = [
        GET_SECRET,
        GET_CONTENT,
        DELETE,
        &status::<SingleContents>(cleared),
        &patch::<SingleContents>(release),
    ];
    assert_eq!(rig.happened(), expected);
    assert!(rig.content().is_null());
}

/// The API server went back to a backup in which the snapshot lives, and the cache does not show it
/// yet.
#[tokio::test]
async fn a_snapshot_stays_unless_the_api_server_says_that_it_goes() {
    let ready = json!({"status": {"snapshotHandle": "h", "readyToUse": true}});
    let lives = json!({"metadata": {"deletionTimestamp": null,
        "annotations": {SINGLE.being_deleted: null}}});
    for (what, now) in [
        ("it lives", lives),
        ("it is kept", json!({"spec": {"deletionPolicy": "Retain"}})),
        ("it is another one", json!({"metadata": {"uid": "another"}})),
        (
            "it has another handle",
            json!({"status": {"snapshotHandle": "i"}}),
        ),
    ] {
        let rig = Single::new(and(deleted::<SingleContents>(), ready.clone()));
        rig.world.api.put(and(rig.content(), now));
        assert_eq!(rig.reconcile().await, Outcome::Failed, "{what}");
        assert_eq!(rig.happened(), [GET_SECRET, GET_CONTENT], "{what}");
    }
}

/// While the driver takes the snapshot, the API server goes back to a backup without the annotation
/// of that, and the user deletes the VolumeSnapshot.
#[tokio::test]
async fn a_snapshot_is_deleted_that_the_api_server_has_forgotten() {
    for (failure, is_final) in [
        (Status::deadline_exceeded("slow"), false),
        (no_room(Code::ResourceExhausted, "full".to_owned()), true),
    ] {
        let rig = Single::new(json!({}));
        let backup = rig.content();
        rig.answers.single(Err(failure.clone()));
        assert_eq!(rig.reconcile().await, Outcome::Failed, "{failure}");
        rig.replace(and(backup, deleted::<SingleContents>()));
        rig.answers.single(Ok(snapshot(true)));
        rig.answers.deletion(Ok(()));
        rig.happened();
        for _ in 0..3 {
            rig.reconcile().await;
        }
        let happened = rig.happened();
        let is_deleted = happened.iter().any(|one| one == DELETE);
        assert_eq!(is_deleted, !is_final, "{failure}: {happened:?}");
        assert!(rig.content().is_null(), "{failure}: {happened:?}");
    }
}

/// The secret may be gone with its namespace, which waits for the snapshot.
#[tokio::test]
async fn a_missing_secret_does_not_block_deletion() {
    let more = json!({"status": {"snapshotHandle": "h"},
        "metadata": {"annotations": {SINGLE.secret_name: "gone"}}});
    let rig = Single::new(and(deleted::<SingleContents>(), more));
    rig.answers.deletion(Ok(()));
    assert_eq!(rig.reconcile().await, Outcome::Done);
    let happened = rig.happened();
    assert_eq!(happened[0], "GET safe/secrets/gone");
    assert!(happened[2].starts_with("DeleteSnapshot h"), "{happened:?}");
    assert!(rig.content().is_null());
}

/// A content without its secret. Its CreateSnapshot has no final answer yet.
fn unanswered() -> Value {
    let annotations = json!({SINGLE.being_created: "yes", SINGLE.secret_name: "gone"});
    json!({"metadata": {"annotations": annotations}})
}

/// A repeated call has to find the snapshot of the first one, so that it can be deleted.
#[tokio::test]
async fn a_missing_secret_does_not_block_the_deletion_of_a_late_snapshot() {
    let rig = Single::new(and(deleted::<SingleContents>(), unanswered()));
    rig.answers.single(Err(Status::deadline_exceeded("later")));
    rig.answers.single(Ok(snapshot(true)));
    rig.answers.deletion(Ok(()));
    assert_eq!(rig.reconcile().await, Outcome::Failed);
    assert!(rig.is_marked());
    rig.happened();
    assert_eq!(rig.reconcile().await, Outcome::RequeueAfter(Duration::ZERO));
    let calls = [
        "GET safe/secrets/gone",
        "CreateSnapshot snapshot-u-1 of v with",
    ];
    assert_eq!(rig.happened()[..2], calls);
    assert_eq!(rig.reconcile().await, Outcome::Done);
    assert!(rig.content().is_null());
    // A snapshot that is to stay waits for its secret.
    let wanted = Single::new(unanswered());
    assert_eq!(wanted.reconcile().await, Outcome::Failed);
    let calls = wanted.happened();
    assert!(!calls.iter().any(|call| call.starts_with("CreateSnapshot")));
}

/// The driver may refuse a call for lack of its secret, although the snapshot exists.
#[tokio::test]
async fn a_failure_without_the_secret_is_final_if_it_is_not_about_the_secret() {
    for (failure, is_final) in [
        (Status::not_found("no volume"), true),
        (Status::failed_precondition("not frozen"), true),
        (no_room(Code::ResourceExhausted, "full".to_owned()), true),
        (Status::invalid_argument("no key"), false),
        (Status::unauthenticated("no key"), false),
        (Status::permission_denied("no key"), false),
        (Status::internal("no key"), false),
        (Status::unknown("no key"), false),
    ] {
        let rig = Single::new(and(deleted::<SingleContents>(), unanswered()));
        rig.answers.single(Err(failure.clone()));
        let outcome = rig.reconcile().await;
        assert_eq!(rig.is_marked(), !is_final, "{failure}");
        if is_final {
            assert_eq!(outcome, Outcome::RequeueAfter(Duration::ZERO), "{failure}");
            continue;
        }
        assert_eq!(outcome, Outcome::Failed, "{failure}");
        let message = "Failed to create snapshot: secret safe/gone does not exist: create it";
        assert_eq!(rig.content()["status"]["error"]["message"], message);
    }
}

#[tokio::test]
async fn an_unreadable_secret_blocks_deletion() {
    let mut rig = Single::new(and(
        deleted::<SingleContents>(),
        json!({"status": {"snapshotHandle": "h"}}),
    ));
    rig.world
        .api
        .fault(&["GET"], "safe/secrets/key", None, Fault::Refuse(403));
    assert_eq!(rig.reconcile().await, Outcome::Failed);
    assert!(!rig.content().is_null());
    let event = rig.world.events().pop().expect("an event");
    assert!(
        event.contains("Failed to get snapshot credentials"),
        "{event}"
    );
}

#[tokio::test]
async fn retained_contents_and_members_are_released() {
    for more in [
        json!({"spec": {"deletionPolicy": "Retain"}, "status": {"snapshotHandle": "h"}}),
        json!({"status": {"snapshotHandle": "h", "volumeGroupSnapshotHandle": "g"}}),
    ] {
        let rig = Single::new(and(deleted::<SingleContents>(), more));
        assert_eq!(rig.reconcile().await, Outcome::Done);
        assert_eq!(rig.happened().len(), 1);
        assert!(rig.content().is_null());
    }
}

#[tokio::test]
async fn an_outdated_content_is_not_begun() {
    let rig = Single::new(json!({}));
    rig.world.api.put(rig.content());
    assert_eq!(rig.reconcile().await, Outcome::Failed);
    let expected = [GET_SECRET.to_owned(), mark::<SingleContents>(Some("yes"))];
    assert_eq!(rig.happened(), expected);
    assert!(rig.content().get("status").is_none());
}

#[tokio::test(start_paused = true)]
async fn a_snapshot_without_room_is_tried_again_when_there_is_room() {
    for (failure, woken) in [
        (no_room(Code::ResourceExhausted, "no room".to_owned()), true),
        (Status::resource_exhausted("full half-way"), false),
        (Status::internal("broken"), false),
    ] {
        let rig = Single::new(json!({}));
        let context = rig.world.context.clone();
        tokio::spawn(context.freed.clone().pace(context.stop.clone()));
        rig.answers.single(Err(failure));
        assert_eq!(rig.reconcile().await, Outcome::Failed);
        context.room_freed();
        tokio::time::sleep(std::time::Duration::from_millis(1)).await;
        assert_eq!(rig.queue.depth(), usize::from(woken));
        rig.answers.single(Ok(snapshot(true)));
        assert_eq!(rig.reconcile().await, Outcome::Done);
        assert_eq!(rig.reconciler.for_room.len(), 0);
    }
}

#[tokio::test]
async fn a_class_wakes_the_contents_that_may_wait_for_it() {
    let rig = Single::new(json!({}));
    let of = |class: &str| -> Vec<_> {
        rig.reconciler
            .of_class(class)
            .map(|key| key.name().to_owned())
            .collect()
    };
    assert_eq!(of("fast"), ["c"]);
    assert_eq!(of("other"), [""; 0]);
    rig.answers.single(Ok(snapshot(true)));
    assert_eq!(rig.reconcile().await, Outcome::Done);
    assert_eq!(of("fast"), [""; 0], "it is ready");
}
