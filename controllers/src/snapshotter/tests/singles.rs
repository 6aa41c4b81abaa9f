//! Checks the calls and writes for VolumeSnapshotContents, in order.

use k8s_openapi::jiff::Timestamp;

use super::*;

const GET_SECRET: &str = "GET namespaces/safe/secrets/key";
const CREATE: &str = "CreateSnapshot snapshot-u-1 of v with pass=open";

fn patch(body: Value) -> String {
    format!("PATCH {CONTENT} {body}")
}

fn status(body: Value) -> String {
    format!("PATCH {CONTENT}/status {}", json!({"status": body}))
}

fn mark() -> String {
    patch(json!({"metadata": {"annotations": {CREATING: "yes"}}}))
}

fn unmark() -> String {
    patch(json!({"metadata": {"annotations": {CREATING: null}}}))
}

fn known(ready: bool) -> Value {
    json!({"snapshotHandle": "h", "creationTime": 0, "restoreSize": 10, "readyToUse": ready})
}

#[tokio::test]
async fn one_is_made() {
    let mut single = Single::new(content(json!({})));
    single.answer(Ok(snapshot(true)));
    assert_eq!(single.sync().await, Outcome::Done);
    let expected = [
        GET_SECRET.to_owned(),
        mark(),
        CREATE.to_owned(),
        status(known(true)),
        unmark(),
    ];
    assert_eq!(single.world.happened(), expected);
    assert!(
        single.content()["metadata"]["annotations"]
            .get(CREATING)
            .is_none()
    );
    assert!(single.events().is_empty());
    // Nothing is left to do.
    assert_eq!(single.sync().await, Outcome::Done);
    assert!(single.world.happened().is_empty());
}

#[tokio::test]
async fn one_that_is_not_ready_is_asked_for_again() {
    let single = Single::new(content(json!({})));
    for ready in [false, false, true] {
        single.answer(Ok(snapshot(ready)));
    }
    assert_eq!(single.sync().await, Outcome::Failed);
    assert_eq!(single.sync().await, Outcome::Failed);
    assert_eq!(single.sync().await, Outcome::Done);
    let secret = GET_SECRET.to_owned();
    let create = CREATE.to_owned();
    let expected = [
        &[
            secret.clone(),
            mark(),
            create.clone(),
            status(known(false)),
            unmark(),
        ][..],
        &[secret.clone(), mark(), create.clone(), unmark()],
        &[
            secret,
            mark(),
            create,
            status(json!({"readyToUse": true})),
            unmark(),
        ],
    ];
    assert_eq!(single.world.happened(), expected.concat());
}

#[tokio::test]
async fn parameters_and_metadata() {
    let mut class = class(json!({"pool": "p",
        "csi.storage.k8s.io/snapshotter-secret-name": "key",
        "csi.storage.k8s.io/snapshotter-secret-namespace": "safe"}));
    class["extra"] = json!(true);
    let single = Single::within(Scope::Cluster, true, &all(), content(json!({})), class);
    single.answer(Ok(snapshot(true)));
    assert_eq!(single.sync().await, Outcome::Done);
    assert!(single.world.happened().contains(&format!(
        "CreateSnapshot snapshot-u-1 of v {}pool=p with pass=open",
        "csi.storage.k8s.io/volumesnapshot/name=vs csi.storage.k8s.io/volumesnapshot/namespace=ns \
         csi.storage.k8s.io/volumesnapshotcontent/name=c "
    )));
}

#[tokio::test]
async fn failures_by_what_they_mean() {
    for (failure, code, is_final) in [
        (Status::invalid_argument("bad"), "InvalidArgument", true),
        (Status::internal("bad"), "Internal", true),
        (Status::unavailable("bad"), "Unavailable", false),
        (Status::aborted("bad"), "Aborted", false),
        (
            Status::resource_exhausted("bad"),
            "ResourceExhausted",
            false,
        ),
        (Status::deadline_exceeded("bad"), "DeadlineExceeded", false),
    ] {
        let mut single = Single::new(content(json!({})));
        for _ in 0..3 {
            single.answer(Err(failure.clone()));
        }
        let first = format!("Failed to create snapshot: CreateSnapshot: {code}: bad");
        let later =
            format!("Failed to check and update snapshot content: CreateSnapshot: {code}: bad");
        let said = |message: &str| {
            status(json!({"readyToUse": false, "error": {"time": "now", "message": message}}))
        };
        for (message, expected) in [(&first, true), (&later, true), (&later, false)] {
            assert_eq!(single.sync().await, Outcome::Failed);
            let happened = single.world.happened();
            assert_eq!(happened.contains(&unmark()), is_final, "{happened:?}");
            assert_eq!(happened.contains(&said(message)), expected, "{happened:?}");
            let marked = single.content()["metadata"]["annotations"]
                .get(CREATING)
                .is_some();
            assert_eq!(marked, !is_final);
        }
        let events = [
            format!("SnapshotCreationFailed: {first}"),
            format!("SnapshotContentCheckandUpdateFailed: {later}"),
        ];
        assert_eq!(single.events(), events);
        // The next call succeeds, and the error is cleared.
        single.answer(Ok(snapshot(true)));
        assert_eq!(single.sync().await, Outcome::Done);
        assert_eq!(single.content()["status"], known(true));
    }
}

#[tokio::test]
async fn what_can_not_be_asked_for() {
    let bad = class(json!({"csi.storage.k8s.io/fstype": "xfs"}));
    let secretless = json!({"metadata": {"annotations":
        {"snapshot.storage.kubernetes.io/deletion-secret-name": "other"}}});
    for (more, class, message) in [
        (
            json!({"spec": {"volumeSnapshotClassName": "gone"}}),
            class(json!({})),
            "there is no VolumeSnapshotClass gone",
        ),
        (
            json!({"spec": {"volumeSnapshotClassName": null}}),
            class(json!({})),
            "c names no class to take a snapshot by",
        ),
        (
            json!({"spec": {"volumeSnapshotRef": {"uid": null}}}),
            class(json!({})),
            "c is not bound to anything a snapshot could be taken for",
        ),
        (
            json!({}),
            bad,
            "the class's parameter csi.storage.k8s.io/fstype is not known, and \
             csi.storage.k8s.io/ is reserved",
        ),
        (
            secretless,
            class(json!({})),
            "there is no secret safe/other",
        ),
    ] {
        let mut single = Single::within(Scope::Cluster, true, &all(), content(more), class);
        assert_eq!(single.sync().await, Outcome::Failed);
        let message = format!("Failed to create snapshot: {message}");
        assert_eq!(single.content()["status"]["error"]["message"], message);
        assert_eq!(
            single.events(),
            [format!("SnapshotCreationFailed: {message}")]
        );
        let happened = single.world.happened();
        assert!(!happened.contains(&mark()), "{happened:?}");
    }
}

#[tokio::test]
async fn who_leads_no_longer_leaves_them_alone() {
    for (leads, asked) in [(true, 1), (false, 0)] {
        let single = Single::within(
            Scope::Cluster,
            leads,
            &all(),
            content(json!({})),
            class(json!({})),
        );
        single.answer(Ok(snapshot(true)));
        assert_eq!(single.sync().await, Outcome::Done);
        let happened = single.world.happened();
        let calls = happened.iter().filter(|h| h.starts_with("CreateSnapshot"));
        assert_eq!(calls.count(), asked, "{happened:?}");
    }
}

#[tokio::test]
async fn others_are_left_alone() {
    let other = json!({"metadata": {"name": "fast"}, "driver": "other",
        "deletionPolicy": "Delete"});
    for (more, class) in [
        (json!({"spec": {"driver": "other"}}), class(json!({}))),
        (
            json!({"spec": {"source": {"volumeHandle": null}}}),
            class(json!({})),
        ),
        (json!({}), other),
    ] {
        let single = Single::within(Scope::Cluster, true, &all(), content(more), class);
        assert_eq!(single.sync().await, Outcome::Done);
        assert!(single.world.happened().is_empty());
    }
}

#[tokio::test]
async fn a_conflict_does_not_lose_the_answer() {
    let mut single = Single::new(content(json!({})));
    single.answer(Ok(snapshot(true)));
    *single.world.conflicts.lock().unwrap() = 2;
    assert_eq!(single.sync().await, Outcome::Done);
    let written = status(known(true));
    let get = format!("GET {CONTENT}");
    let expected = [
        GET_SECRET.to_owned(),
        mark(),
        CREATE.to_owned(),
        written.clone(),
        get.clone(),
        written.clone(),
        get,
        written,
        unmark(),
    ];
    assert_eq!(single.world.happened(), expected);
    assert!(single.events().is_empty());
}

#[tokio::test]
async fn one_made_beforehand_is_asked_about() {
    let made =
        || content(json!({"spec": {"source": {"volumeHandle": null, "snapshotHandle": "h"}}}));
    let listing = || {
        class(json!({
            "csi.storage.k8s.io/snapshotter-list-secret-name": "key",
            "csi.storage.k8s.io/snapshotter-list-secret-namespace": "safe"}))
    };
    let can = ControllerCapability::CreateDeleteSnapshot;
    let list = ControllerCapability::ListSnapshots;
    let get = ControllerCapability::GetSnapshot;
    for (can, asked, answer, expected) in [
        (
            vec![can, list],
            vec![GET_SECRET, "ListSnapshots h with pass=open"],
            Ok(snapshot(true)),
            known(true),
        ),
        (
            vec![can, get],
            vec![GET_SECRET, "GetSnapshot h"],
            Ok(snapshot(true)),
            known(true),
        ),
    ] {
        let single = Single::within(Scope::Cluster, true, &can, made(), listing());
        single.answer(answer);
        assert_eq!(single.sync().await, Outcome::Done);
        let mut happened: Vec<String> = asked.into_iter().map(str::to_owned).collect();
        happened.push(status(expected));
        assert_eq!(single.world.happened(), happened);
    }
    for can in [vec![can, list], vec![can, get]] {
        let mut single = Single::within(Scope::Cluster, true, &can, made(), listing());
        assert_eq!(single.sync().await, Outcome::Failed);
        let message = "Failed to check and update snapshot content: the driver knows no snapshot h";
        assert_eq!(single.content()["status"]["error"]["message"], message);
        let event = format!("SnapshotContentCheckandUpdateFailed: {message}");
        assert_eq!(single.events(), [event]);
    }
}

/// The driver cannot be asked about the snapshot.
#[tokio::test]
async fn one_made_beforehand_is_of_the_moment_it_is_first_seen() {
    let made = content(json!({"spec": {"source": {"volumeHandle": null, "snapshotHandle": "h"}}}));
    let can = [ControllerCapability::CreateDeleteSnapshot];
    let single = Single::within(Scope::Cluster, true, &can, made, class(json!({})));
    let before = Timestamp::now().as_nanosecond();
    assert_eq!(single.sync().await, Outcome::Done);
    let mut status = single.content()["status"].take();
    let taken = status["creationTime"].take().as_i64().unwrap();
    let now = Timestamp::now().as_nanosecond();
    assert!((before..=now).contains(&i128::from(taken)), "{taken}");
    let rest = json!({"snapshotHandle": "h", "creationTime": null, "readyToUse": true});
    assert_eq!(status, rest);
}

/// The field of the class decides. The driver may use a parameter with the same name.
#[tokio::test]
async fn a_parameter_deletion_policy_is_warned_of() {
    let class = class(json!({"deletionPolicy": "Retain"}));
    let can = all();
    let mut single = Single::within(Scope::Cluster, true, &can, content(json!({})), class);
    single.answer(Ok(snapshot(false)));
    single.answer(Ok(snapshot(true)));
    assert_eq!(single.sync().await, Outcome::Failed);
    let call = "CreateSnapshot snapshot-u-1 of v deletionPolicy=Retain with pass=open".to_owned();
    let happened = single.world.happened();
    assert!(happened.contains(&call), "{happened:?}");
    let events = single.events();
    assert_eq!(events.len(), 1, "{events:?}");
    assert!(
        events[0].starts_with("MisplacedDeletionPolicy: VolumeSnapshotClass fast"),
        "{events:?}"
    );
    assert_eq!(single.sync().await, Outcome::Done);
    assert_eq!(single.events(), [""; 0]);
}

#[tokio::test]
async fn members_of_groups_are_asked_about_with_what_made_them() {
    let member = content(json!({
        "metadata": {"annotations": {names::GROUP_MEMBER: "g"}},
        "spec": {"volumeSnapshotClassName": null},
        "status": {"snapshotHandle": "h", "volumeGroupSnapshotHandle": "g"}}));
    let single = Single::new(member);
    single.answer(Ok(snapshot(true)));
    assert_eq!(single.sync().await, Outcome::Done);
    let news = json!({"creationTime": 0, "restoreSize": 10, "readyToUse": true});
    let expected = [
        GET_SECRET.to_owned(),
        "ListSnapshots h with pass=open".to_owned(),
        status(news),
    ];
    assert_eq!(single.world.happened(), expected);
}

#[tokio::test]
async fn one_is_deleted() {
    let ready = json!({"status": {"snapshotHandle": "h", "readyToUse": true}});
    let mut single = Single::new(content(and(deleted(), ready)));
    let failure = Status::failed_precondition("in use");
    let answers = [Err(failure), Ok(())];
    single.world.deletions.lock().unwrap().extend(answers);
    assert_eq!(single.sync().await, Outcome::Failed);
    let delete = "DeleteSnapshot h with pass=open".to_owned();
    assert_eq!(
        single.world.happened(),
        [GET_SECRET.to_owned(), delete.clone()]
    );
    let event = "SnapshotDeleteError: Failed to delete snapshot: \
                 DeleteSnapshot: FailedPrecondition: in use";
    assert_eq!(single.events(), [event]);
    assert_eq!(single.sync().await, Outcome::Done);
    let path = "/metadata/finalizers/0";
    let release = json!([{"op": "test", "path": path, "value": names::SINGLE.finalizer},
        {"op": "remove", "path": path}]);
    let cleared = json!({"snapshotHandle": null, "readyToUse": null, "creationTime": null,
        "restoreSize": null});
    let expected = [
        GET_SECRET.to_owned(),
        delete,
        status(cleared),
        patch(release),
    ];
    assert_eq!(single.world.happened(), expected);
    assert_eq!(single.content()["metadata"]["finalizers"], json!([]));
}

#[tokio::test]
async fn an_unreadable_secret_blocks_deletion() {
    let more = json!({"status": {"snapshotHandle": "h"}, "metadata": {"annotations":
        {"snapshot.storage.kubernetes.io/deletion-secret-name": "gone"}}});
    let mut single = Single::new(content(and(deleted(), more)));
    assert_eq!(single.sync().await, Outcome::Failed);
    assert_eq!(
        single.world.happened(),
        ["GET namespaces/safe/secrets/gone"]
    );
    let event = "SnapshotDeleteError: Failed to get snapshot credentials: \
                 there is no secret safe/gone";
    assert_eq!(single.events(), [event]);
}

#[tokio::test]
async fn one_deleted_while_it_is_made_is_made_first() {
    let marked = json!({"metadata": {"annotations": {CREATING: "yes"}}});
    let single = Single::new(content(and(deleted(), marked)));
    single.answer(Ok(snapshot(true)));
    single.world.deletions.lock().unwrap().push_back(Ok(()));
    assert_eq!(single.sync().await, Outcome::RequeueAfter(Duration::ZERO));
    let expected = [
        GET_SECRET.to_owned(),
        CREATE.to_owned(),
        status(known(true)),
        unmark(),
    ];
    assert_eq!(single.world.happened(), expected);
    assert_eq!(single.sync().await, Outcome::Done);
    assert_eq!(single.content()["metadata"]["finalizers"], json!([]));
}

#[tokio::test]
async fn retained_contents_and_members_are_released() {
    for more in [
        json!({"spec": {"deletionPolicy": "Retain"}, "status": {"snapshotHandle": "h"}}),
        json!({"status": {"snapshotHandle": "h", "volumeGroupSnapshotHandle": "g"}}),
    ] {
        let single = Single::new(content(and(deleted(), more)));
        assert_eq!(single.sync().await, Outcome::Done);
        assert_eq!(single.world.happened().len(), 1);
        assert_eq!(single.content()["metadata"]["finalizers"], json!([]));
    }
}

#[tokio::test]
async fn an_outdated_content_is_not_begun() {
    let single = Single::new(content(json!({})));
    single.world.bump(CONTENT);
    assert_eq!(single.sync().await, Outcome::Failed);
    let expected = [GET_SECRET.to_owned(), mark()];
    assert_eq!(single.world.happened(), expected);
    assert!(single.content().get("status").is_none());
}
