use serde_json::{Value, json};

use super::*;
use crate::kubectl::fake_api::FakeApi;

const NS: &str = "/api/v1/namespaces/demo";
const SNAPSHOTS: &str = "/apis/snapshot.storage.k8s.io/v1/namespaces/demo/volumesnapshots";

/// A cluster with the claim `data`, its objects, and objects of other claims.
pub(in crate::kubectl) fn cluster_with_claim() -> FakeApi {
    let api = FakeApi::default();
    api.define_snapshots();
    api.set(
        &format!("{NS}/persistentvolumeclaims/data"),
        json!({
            "metadata": {"name": "data", "namespace": "demo", "uid": "uid-claim"},
            "spec": {
                "volumeName": "pv", "storageClassName": "hostloop",
                "accessModes": ["ReadWriteOnce"], "volumeMode": "Filesystem",
            },
            "status": {"phase": "Bound", "capacity": {"storage": "1Gi"}},
        }),
    );
    api.set(
        "/api/v1/persistentvolumes/pv",
        json!({
            "metadata": {"name": "pv", "uid": "uid-pv", "labels": {"hostloop.csi.dev/node": "n1"}},
            "spec": {
                "csi": {"driver": "hostloop.csi.dev", "volumeHandle": "vol-1"},
                "persistentVolumeReclaimPolicy": "Delete",
            },
            "status": {"phase": "Bound"},
        }),
    );
    let snapshot = |name: &str, claim: &str| {
        json!({
            "metadata": {"name": name, "namespace": "demo", "uid": format!("uid-{name}")},
            "spec": {"source": {"persistentVolumeClaimName": claim}},
            "status": {"boundVolumeSnapshotContentName": format!("content-{name}")},
        })
    };
    api.items(SNAPSHOTS, json!([snapshot("s", "data"), snapshot("other", "logs")]));
    api.set(
        "/apis/snapshot.storage.k8s.io/v1/volumesnapshotcontents/content-s",
        json!({
            "metadata": {"name": "content-s", "uid": "uid-content"},
            "spec": {
                "driver": "hostloop.csi.dev", "deletionPolicy": "Delete", "source": {},
                "volumeSnapshotRef": {},
            },
            "status": {"snapshotHandle": "snap-1", "readyToUse": true},
        }),
    );
    api.set(
        "/apis/storage.k8s.io/v1/storageclasses/hostloop",
        json!({"metadata": {"name": "hostloop"}, "provisioner": "hostloop.csi.dev"}),
    );
    let pod = |name: &str, claim: &str| {
        json!({
            "metadata": {"name": name, "namespace": "demo", "uid": format!("uid-{name}")},
            "spec": {"nodeName": "n1", "containers": [], "volumes": [
                {"name": "v", "persistentVolumeClaim": {"claimName": claim}},
            ]},
            "status": {"phase": "Running"},
        })
    };
    api.items(&format!("{NS}/pods"), json!([pod("web", "data"), pod("other", "logs")]));
    let attachment = |name: &str, volume: &str| {
        json!({
            "metadata": {"name": name, "uid": format!("uid-{name}")},
            "spec": {
                "attacher": "hostloop.csi.dev", "nodeName": "n1",
                "source": {"persistentVolumeName": volume},
            },
            "status": {"attached": true},
        })
    };
    let attachments = json!([attachment("a", "pv"), attachment("b", "pv-b")]);
    api.items("/apis/storage.k8s.io/v1/volumeattachments", attachments);
    let events = json!([event("uid-web"), event("uid-claim"), event("uid-other")]);
    api.items(&format!("{NS}/events"), events);
    api.items("/api/v1/namespaces/default/events", json!([event("uid-pv")]));
    api
}

fn event(uid: &str) -> Value {
    json!({
        "metadata": {"name": uid}, "type": "Normal", "reason": "Reason", "message": "m",
        "involvedObject": {"kind": "Pod", "name": uid, "uid": uid},
    })
}

#[tokio::test]
async fn the_objects_of_a_claim_and_no_others() {
    let api = cluster_with_claim();
    let cluster = api.cluster();
    let mut objects = gather(&cluster, "data").await.unwrap();
    complete(&cluster, &mut objects).await;
    fn names<K: ResourceExt>(objects: &[K]) -> Vec<String> {
        objects.iter().map(ResourceExt::name_any).collect()
    }
    assert_eq!(objects.missing, Vec::<String>::new());
    assert!(objects.has_all_volumes);
    assert_eq!(names(&objects.claims), ["data"]);
    assert_eq!(names(&objects.volumes), ["pv"]);
    assert_eq!(names(&objects.classes), ["hostloop"]);
    assert_eq!(names(&objects.pods), ["web"]);
    assert_eq!(names(&objects.attachments), ["a"]);
    assert_eq!(names(&objects.snapshots), ["s"]);
    assert_eq!(names(&objects.contents), ["content-s"]);
    let about: Vec<_> = objects.events.iter().map(|e| e.involved_object.uid.as_deref()).collect();
    assert_eq!(about, [Some("uid-claim"), Some("uid-web"), Some("uid-pv")]);

    let subject = subject(&cluster, "data", &objects);
    for text in ["vol-1", "snap-1", "pv", "uid-claim", "uid-s", "demo/data"] {
        assert!(subject.concerns(&format!("about {text}."), None), "{text}");
    }
    for text in ["vol-2", "uid-other", "demo/logs"] {
        assert!(!subject.concerns(&format!("about {text}."), None), "{text}");
    }
}

#[tokio::test]
async fn a_claim_that_does_not_exist() {
    let api = FakeApi::default();
    let objects = gather(&api.cluster(), "data").await.unwrap();
    assert!(objects.claims.is_empty() && objects.missing.is_empty());
    assert_eq!(api.requests().len(), 1);
}

#[tokio::test]
async fn rights_that_are_missing() {
    let api = cluster_with_claim();
    api.forbid("get", "/api/v1/persistentvolumes/pv");
    let contents = "/apis/snapshot.storage.k8s.io/v1/volumesnapshotcontents";
    api.forbid("get", &format!("{contents}/content-s"));
    let objects = gather(&api.cluster(), "data").await.unwrap();
    assert!(!objects.has_all_volumes);
    assert_eq!(
        objects.missing,
        [
            "you may not get persistentvolumes in the whole cluster; ask for this right, or \
             choose another --context",
            "you may not get volumesnapshotcontents.snapshot.storage.k8s.io in the whole cluster; \
             ask for this right, or choose another --context",
        ]
    );
}
