use k8s_openapi::api::storage::v1::{StorageClass, VolumeAttributesClass};
use serde_json::json;
use tokio_util::sync::CancellationToken;

use super::*;
use crate::cache::{Caches, Store};
use crate::snapshots::{VolumeGroupSnapshotContent, VolumeSnapshot, VolumeSnapshotContent};
use crate::testing::{FakeApi, Fault};

const ALL: [&Feature; 3] = [&MODIFYING, &SNAPSHOTS, &GROUPS];

fn served(kinds: &[&str]) -> BTreeSet<String> {
    kinds.iter().map(|kind| (*kind).to_owned()).collect()
}

#[test]
fn kinds_that_are_missing() {
    let all = [
        "volumesnapshots",
        "volumesnapshotcontents",
        "volumesnapshotclasses",
    ];
    for (listed, missing) in [
        (
            &[][..],
            "volumesnapshotclasses volumesnapshotcontents volumesnapshots",
        ),
        (&all[..1], "volumesnapshotclasses volumesnapshotcontents"),
        (
            &["volumesnapshots/status", "others"],
            "volumesnapshotclasses volumesnapshotcontents volumesnapshots",
        ),
        (&all, ""),
    ] {
        let found: Vec<_> = SNAPSHOTS.missing(&served(listed)).into_iter().collect();
        assert_eq!(found.join(" "), missing, "{listed:?}");
    }
}

/// What is known of modifying and of snapshots.
fn known(modifying: Option<&[&'static str]>, snapshots: Option<&[&'static str]>) -> KnownFeatures {
    let missing = |kinds: &[&'static str]| kinds.iter().copied().collect::<Missing>();
    KnownFeatures(vec![
        (&MODIFYING, modifying.map(missing)),
        (&SNAPSHOTS, snapshots.map(missing)),
    ])
}

#[test]
fn what_a_process_may_watch() {
    let (storage, snapshots) = ("storage.k8s.io/v1", "snapshot.storage.k8s.io/v1");
    let classes = "volumeattributesclasses";
    for (modifying, api, plural, expected) in [
        (None, storage, classes, None),
        (Some(&[classes][..]), storage, classes, Some(false)),
        (Some(&[]), storage, classes, Some(true)),
        // Every API server has these.
        (None, storage, "storageclasses", Some(true)),
        (None, "v1", "pods", Some(true)),
        // The same name in another group or version is another kind.
        (None, "storage.k8s.io/v1beta1", classes, Some(true)),
        (Some(&[]), snapshots, "volumesnapshots", None),
    ] {
        let known = known(modifying, None);
        assert_eq!(
            known.serves(api, plural),
            expected,
            "{modifying:?} {api} {plural}"
        );
    }
}

#[test]
fn one_line_says_what_is_off() {
    let classes = &["volumeattributesclasses"][..];
    let contents = &["volumesnapshotcontents"][..];
    let no_classes = "modifying volumes (no volumeattributesclasses in storage.k8s.io/v1; \
                      Kubernetes 1.34 and newer have it)";
    let no_contents = "snapshots (no volumesnapshotcontents in snapshot.storage.k8s.io/v1; their \
                       CustomResourceDefinitions bring it)";
    let off = "off, because the API server lacks kinds: ";
    let on = "on, because the API server has their kinds by now: ";
    let none: &[&str] = &[];
    for (before, now, expected) in [
        ((None, None), (None, None), vec![]),
        ((None, None), (Some(none), Some(none)), vec![]),
        (
            (None, None),
            (Some(classes), Some(none)),
            vec![format!("{off}{no_classes}")],
        ),
        (
            (None, None),
            (Some(classes), Some(contents)),
            vec![format!("{off}{no_classes}; {no_contents}")],
        ),
        (
            (None, None),
            (None, Some(contents)),
            vec![format!("{off}{no_contents}")],
        ),
        // Nothing new.
        (
            (Some(classes), Some(none)),
            (Some(classes), Some(none)),
            vec![],
        ),
        ((Some(classes), None), (Some(classes), Some(none)), vec![]),
        (
            (Some(classes), Some(contents)),
            (Some(none), Some(contents)),
            vec![format!("{on}modifying volumes")],
        ),
        (
            (Some(classes), Some(contents)),
            (Some(none), Some(none)),
            vec![format!("{on}modifying volumes, snapshots")],
        ),
    ] {
        let news = known(now.0, now.1).news(&known(before.0, before.1));
        assert_eq!(news, expected, "{before:?} {now:?}");
    }
}

/// Caches of an API server, and the task that follows its kinds.
fn caches(api: &FakeApi, stop: &CancellationToken) -> Caches {
    let served = Served::of(&ALL);
    let kube = Kube::new(crate::testing::client(api), None, Arc::default(), "test");
    let (followed, stopped) = (served.clone(), stop.clone());
    tokio::spawn(async move { stopped.run_until_cancelled(followed.follow(&kube)).await });
    Caches::new(crate::testing::client(api), stop.clone()).serving(served)
}

async fn soon<T>(what: &str, done: impl Future<Output = T>) -> T {
    let done = tokio::time::timeout(Duration::from_secs(300), done).await;
    done.unwrap_or_else(|_| panic!("{what} takes too long"))
}

async fn holds<K: Resource>(store: &Store<K>, name: &str) {
    while store.get(name).is_none() {
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

/// An older API server without classes and without snapshots: no cache waits for them, nothing asks
/// for their objects, and their kinds are found when they appear.
#[tokio::test(start_paused = true)]
async fn a_server_may_lack_kinds() {
    let api = FakeApi::with_snapshots();
    for kind in MODIFYING
        .kinds
        .iter()
        .chain(SNAPSHOTS.kinds)
        .chain(GROUPS.kinds)
    {
        api.lack(kind);
    }
    let stop = CancellationToken::new();
    let _ended = stop.clone().drop_guard();
    let caches = caches(&api, &stop);
    let (classes, contents) = (caches.attributes_classes(), caches.contents());
    let (groups, storage) = (caches.group_contents(), caches.classes());
    let all = async {
        tokio::join!(
            classes.synced(),
            contents.synced(),
            groups.synced(),
            storage.synced()
        )
    };
    soon("a list", all).await;
    assert!(classes.is_whole());
    tokio::time::sleep(Duration::from_secs(600)).await;
    let lists = api.lists();
    assert!(
        lists.iter().all(|list| list == "storageclasses"),
        "{lists:?}"
    );

    // An upgrade of the API server adds one kind, an installation the others.
    api.serve("volumeattributesclasses");
    api.put(
        json!({"apiVersion": "storage.k8s.io/v1", "kind": "VolumeAttributesClass",
                   "metadata": {"name": "fast"}, "driverName": "d"}),
    );
    soon("the class", holds(&classes, "fast")).await;
    assert!(contents.all().is_empty() && contents.trouble().is_none());
    for kind in SNAPSHOTS.kinds {
        api.serve(kind);
    }
    soon(
        "the kind",
        caches.served().wait::<VolumeSnapshotContent>(|| {}),
    )
    .await;
    soon(
        "the kind",
        caches
            .served()
            .wait::<VolumeSnapshot>(|| panic!("it is served")),
    )
    .await;
    let group = caches.served().wait::<VolumeGroupSnapshotContent>(|| {});
    assert!(
        tokio::time::timeout(Duration::from_secs(600), group)
            .await
            .is_err()
    );
}

/// Cluster-wide caches follow the same answers.
#[tokio::test(start_paused = true)]
async fn a_leader_watches_no_missing_kind_either() {
    let api = FakeApi::with_snapshots();
    SNAPSHOTS.kinds.iter().for_each(|kind| api.lack(kind));
    let stop = CancellationToken::new();
    let _ended = stop.clone().drop_guard();
    let wide = caches(&api, &stop).wide();
    let snapshots = wide.caches().snapshots();
    soon("a list", snapshots.synced()).await;
    tokio::time::sleep(Duration::from_secs(600)).await;
    assert!(api.lists().is_empty());
}

/// Without an answer nothing is known, so nothing counts as complete. Without the right to ask, the
/// list decides.
#[tokio::test(start_paused = true)]
async fn a_server_that_does_not_answer() {
    for (code, waits) in [(503, true), (403, false)] {
        let api = FakeApi::with_snapshots();
        let asked = "/apis/storage.k8s.io/v1";
        api.fault(&["GET"], asked, None, Fault::Refuse(code));
        let stop = CancellationToken::new();
        let _ended = stop.clone().drop_guard();
        let caches = caches(&api, &stop);
        let classes = caches.attributes_classes();
        let waited = tokio::time::timeout(Duration::from_secs(600), classes.synced()).await;
        assert_eq!(waited.is_err(), waits, "{code}");
        api.heal();
        soon("the list", classes.synced()).await;
    }
}

/// The process that has just made definitions does not wait for the next question.
#[tokio::test(start_paused = true)]
async fn asking_again_at_once() {
    let api = FakeApi::with_snapshots();
    GROUPS.kinds.iter().for_each(|kind| api.lack(kind));
    let stop = CancellationToken::new();
    let _ended = stop.clone().drop_guard();
    let caches = caches(&api, &stop);
    soon("a list", caches.group_contents().synced()).await;
    tokio::time::sleep(Duration::from_secs(600)).await;
    GROUPS.kinds.iter().for_each(|kind| api.serve(kind));
    let begun = tokio::time::Instant::now();
    caches.served().ask_again();
    soon(
        "the kind",
        caches.served().wait::<VolumeGroupSnapshotContent>(|| {}),
    )
    .await;
    assert!(
        begun.elapsed() < Duration::from_secs(1),
        "{:?}",
        begun.elapsed()
    );
}

#[tokio::test]
async fn other_kinds_are_always_served() {
    let nothing_known = Served::of(&ALL);
    soon(
        "the kind",
        nothing_known.wait::<StorageClass>(|| panic!("it is served")),
    )
    .await;
    let everything = Served::default();
    soon(
        "the kind",
        everything.wait::<VolumeAttributesClass>(|| panic!("it is served")),
    )
    .await;
}
