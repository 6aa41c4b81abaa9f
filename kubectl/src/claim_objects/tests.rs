use hostloop_fake_api::FakeApi;

use super::*;
use crate::test_objects::{cluster_of, objects};

/// The cluster of `cluster.yaml`.
pub(crate) fn cluster_with_claim() -> FakeApi {
    let api = FakeApi::with_snapshots();
    for object in objects(include_str!("tests/cluster.yaml")) {
        api.put(object);
    }
    api
}

#[tokio::test]
async fn the_objects_of_a_claim_and_no_others() {
    let api = cluster_with_claim();
    let cluster = cluster_of(&api);
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
    let about: Vec<_> = objects
        .events
        .iter()
        .map(|e| e.involved_object.uid.as_deref())
        .collect();
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
    let objects = gather(&cluster_of(&api), "data").await.unwrap();
    assert!(objects.claims.is_empty() && objects.missing.is_empty());
    assert_eq!(api.requests().len(), 1);
}

#[tokio::test]
async fn rights_that_are_missing() {
    let api = cluster_with_claim();
    api.hide("/api/v1/persistentvolumes/pv", 403);
    let contents = "/apis/snapshot.storage.k8s.io/v1/volumesnapshotcontents";
    api.hide(&format!("{contents}/content-s"), 403);
    let objects = gather(&cluster_of(&api), "data").await.unwrap();
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
