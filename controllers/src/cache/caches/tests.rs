use std::collections::BTreeSet;

use kube::ResourceExt;
use parking_lot::Mutex;
use serde_json::{Value, json};

use super::*;
use crate::cache::Change;
use crate::client::Kube;
use crate::testing::{self, FakeApi};

fn claim(name: &str, node: Option<&str>) -> Value {
    let labels = node.map(|node| json!({NODE_LABEL: node}));
    json!({"apiVersion": "v1", "kind": "PersistentVolumeClaim",
           "metadata": {"name": name, "namespace": "ns", "labels": labels}})
}

fn volume(name: &str, driver: &str, handle: &str) -> PersistentVolume {
    testing::read(testing::volume(name, driver, handle))
}

#[test]
fn volumes_by_their_handles() {
    let caches = Caches::unwatched();
    let volumes = caches.volumes();
    let found = |driver: &str, handle: &str| {
        let found = caches.volumes_of(driver, handle);
        let names: Vec<_> = found.iter().map(|volume| volume.name_any()).collect();
        names.join(" ")
    };
    volumes.apply_write(volume("a", "d", "h"));
    // Two volumes share a handle, and one of them appears after the first lookup.
    assert_eq!(found("d", "h"), "a");
    volumes.apply_write(volume("b", "d", "h"));
    volumes.apply_write(volume("c", "e", "h"));
    assert_eq!(found("d", "h"), "a b");
    assert_eq!(found("e", "h"), "c");
    assert_eq!(found("d", "i"), "");
}

fn names(watch: &Store<PersistentVolumeClaim>) -> Vec<String> {
    watch.all().iter().map(|claim| claim.name_any()).collect()
}

/// Waits until it is so; the tests' clock runs by itself.
async fn until(so: impl Fn() -> bool) {
    for _ in 0..10_000 {
        if so() {
            return;
        }
        tokio::time::sleep(std::time::Duration::from_millis(5)).await;
    }
    panic!("it never came to be so");
}

#[tokio::test]
async fn a_node_is_shown_its_own() {
    let api = FakeApi::with_snapshots();
    let stop = CancellationToken::new();
    let _ended = stop.clone().drop_guard();
    let caches = Caches::of_node(crate::testing::client(&api), stop, "n1");
    caches.claims().synced().await;
    caches.volumes().synced().await;
    caches.pods().synced().await;
    caches.nodes().synced().await;
    caches.csi_nodes().synced().await;
    caches.contents().synced().await;
    caches.group_contents().synced().await;
    caches.attachments().synced().await;
    let asked: BTreeSet<String> = api.lists().into_iter().collect();
    let manager = "labelSelector=snapshot.storage.kubernetes.io/managed-by=n1";
    let expected = [
        "persistentvolumeclaims labelSelector=hostloop.csi.dev/node=n1".to_owned(),
        "persistentvolumes labelSelector=hostloop.csi.dev/node=n1".to_owned(),
        "pods fieldSelector=spec.nodeName=n1".to_owned(),
        "nodes fieldSelector=metadata.name=n1".to_owned(),
        "csinodes fieldSelector=metadata.name=n1".to_owned(),
        format!("volumesnapshotcontents {manager}"),
        format!("volumegroupsnapshotcontents {manager}"),
        "volumeattachments labelSelector=hostloop.csi.dev/node=n1".to_owned(),
    ];
    assert_eq!(asked, expected.into());
}

#[test]
fn how_kinds_are_narrowed() {
    let caches = Caches::unwatched();
    for narrowed in [by_label(&caches, "n1"), by_manager(&caches, "n1")] {
        assert!(narrowed.whole.is_all() && !narrowed.narrow.is_all());
    }
    for narrowed in [by_place(&caches, "n1"), by_name(&caches, "n1")] {
        assert!(narrowed.whole == narrowed.narrow && !narrowed.whole.is_all());
    }
    let all = everywhere(&caches, "n1");
    assert!(all.whole.is_all() && all.narrow.is_all());
    // If only the node's driver knows the owner of a content, each node watches all contents.
    let caches = caches.with_contents(true);
    assert!(by_manager(&caches, "n1").narrow.is_all());
}

#[tokio::test]
async fn watches_become_wider_and_narrower() {
    let api = FakeApi::with_snapshots();
    api.put(claim("ours", Some("n1")));
    api.put(claim("theirs", Some("n2")));
    api.put(claim("bare", None));
    let stop = CancellationToken::new();
    let _ended = stop.clone().drop_guard();
    let caches = Caches::of_node(crate::testing::client(&api), stop, "n1");
    let claims = caches.claims();
    let gone = Arc::new(Mutex::new(Vec::new()));
    let list = gone.clone();
    claims.on_change(move |change| {
        if let Change::Deleted(claim) = change {
            list.lock().push(claim.name_any());
        }
    });
    // A kind with a field selector ignores the watch scope.
    let pods = caches.pods();
    pods.synced().await;
    claims.synced().await;
    assert_eq!(
        (names(&claims), claims.is_whole()),
        (vec!["ours".to_owned()], false)
    );
    api.lists();
    caches.set_watch_scope(WatchScope::Whole);
    until(|| claims.is_whole()).await;
    assert_eq!(names(&claims), ["bare", "ours", "theirs"]);
    assert!(gone.lock().is_empty());
    // The object is deleted while the watch selects everything, so the deletion is reported.
    api.take("claims/theirs");
    caches.set_watch_scope(WatchScope::Narrow);
    until(|| names(&claims) == ["ours"]).await;
    assert!(!claims.is_whole());
    let mut gone = gone.lock().clone();
    gone.sort();
    assert_eq!(gone, ["bare", "theirs"]);
    let selector = "persistentvolumeclaims labelSelector=hostloop.csi.dev/node=n1";
    assert_eq!(api.lists(), ["persistentvolumeclaims", selector]);
}

#[tokio::test]
async fn what_is_not_in_sight_is_asked_for() {
    let api = FakeApi::with_snapshots();
    api.put(claim("theirs", Some("n2")));
    let kube = Kube::new(crate::testing::client(&api), None, Arc::default(), "test");
    for (watch_scope, found) in [(WatchScope::Narrow, true), (WatchScope::Whole, false)] {
        let caches = Caches::unwatched();
        let claims = caches.claims();
        if watch_scope == WatchScope::Narrow {
            claims.note_selected(Selectors::by_label(NODE_LABEL, "n1".to_owned()).narrow);
        }
        let theirs = kube.find(&claims, "ns", "theirs").await.expect("an answer");
        assert_eq!(theirs.is_some(), found, "{watch_scope:?}");
        let nothing = kube.find(&claims, "ns", "nothing").await;
        assert!(nothing.expect("an answer").is_none());
        // A direct read is not stored: the watch would not report later changes of the object.
        let read = theirs.map(|claim| (*claim).clone());
        read.into_iter().for_each(|claim| claims.apply_write(claim));
        assert!(claims.all().is_empty());
    }
}

/// The names in the reported changes.
fn reported(watch: &Store<PersistentVolumeClaim>) -> Arc<Mutex<Vec<String>>> {
    let reported = Arc::new(Mutex::new(Vec::new()));
    let list = reported.clone();
    watch.on_change(move |change| list.lock().push(change.object().name_any()));
    reported
}

fn taken(reported: &Mutex<Vec<String>>) -> Vec<String> {
    std::mem::take(&mut *reported.lock())
}

#[tokio::test]
async fn parts_that_see_everything_share_what_they_see() {
    let api = FakeApi::with_snapshots();
    api.put(claim("first", Some("n2")));
    let stop = CancellationToken::new();
    let _ended = stop.clone().drop_guard();
    let caches = Caches::of_node(crate::testing::client(&api), stop, "n1");
    let (one, other) = (caches.wide(), caches.wide());
    let claims = one.caches().claims();
    let of_one = reported(&claims);
    let of_other = reported(&other.caches().claims());
    claims.synced().await;
    assert_eq!(api.lists(), ["persistentvolumeclaims"]);
    assert_eq!(
        (taken(&of_one), taken(&of_other)),
        (vec!["first".to_owned()], vec!["first".to_owned()])
    );
    // A dropped subscriber gets no further changes, but can still read its stores.
    let by_name = claims.index(|claim| vec![claim.name_any()]);
    drop(one);
    let mut second = claim("second", None);
    second["metadata"]["resourceVersion"] = json!("999999");
    claims.apply_write(serde_json::from_value(second).expect("a claim"));
    assert_eq!(
        (taken(&of_one), taken(&of_other)),
        (vec![], vec!["second".to_owned()])
    );
    assert_eq!(by_name.get("second").len(), 1);
    assert_eq!(Arc::strong_count(&of_one), 1, "its handler is gone");
    // A new subscriber gets all known objects.
    let again = caches.wide();
    let of_again = reported(&again.caches().claims());
    assert_eq!(taken(&of_again), ["first", "second"]);
    // Dropping the last caches ends the watch. The next subscriber starts a new one.
    assert!(api.lists().is_empty());
    drop((other, again, claims, by_name));
    assert!(caches.wide.lock().upgrade().is_none());
    let late = caches.wide();
    late.caches().claims().synced().await;
    assert_eq!(api.lists(), ["persistentvolumeclaims"]);
    assert_eq!(caches.claims().all().len(), 0, "a node's own are others");
}

/// A kind that the API server cannot serve must not restart the process, as that would not help.
#[tokio::test(start_paused = true)]
async fn only_required_kinds_are_trouble() {
    let api = FakeApi::with_snapshots();
    for kind in ["volumegroupsnapshotcontents", "persistentvolumes"] {
        api.hide(&format!("/{kind}"), 500);
    }
    let stop = CancellationToken::new();
    let _ended = stop.clone().drop_guard();
    let caches = Caches::new(crate::testing::client(&api), stop);
    let (groups, volumes) = (caches.group_contents(), caches.volumes());
    while groups.trouble().is_none() || volumes.trouble().is_none() {
        tokio::time::sleep(std::time::Duration::from_millis(5)).await;
    }
    let troubles = caches.troubles();
    let kinds: Vec<_> = troubles.iter().map(|(kind, _)| *kind).collect();
    assert_eq!(kinds, ["volumes"]);
}
