use std::time::Duration;

use hostloop_fake_api::FakeApi;
use serde_json::{Value, json};
use tempfile::TempDir;

use super::fake_service::{FakeService, SIZE, publish};
use super::*;
use crate::Command;
use crate::test_objects::{PATIENCE, cluster_of, parsed};

const CLAIMS: &str = "/api/v1/namespaces/demo/persistentvolumeclaims";

/// A cluster with a claim and controllers, which give new objects the status that is waited for.
fn cluster(mode: &str) -> FakeApi {
    let api = FakeApi::with_snapshots();
    for (name, driver, policy) in [
        ("a-kept", "hostloop.csi.dev", "Retain"),
        ("hostloop", "hostloop.csi.dev", "Delete"),
        ("another", "csi.example.com", "Delete"),
    ] {
        api.put(
            json!({"kind": "VolumeSnapshotClass", "metadata": {"name": name},
            "driver": driver, "deletionPolicy": policy}),
        );
    }
    for (name, driver) in [("data", "hostloop.csi.dev"), ("other", "csi.example.com")] {
        api.set(
            &format!("{CLAIMS}/{name}"),
            json!({"spec": {"volumeName": name, "volumeMode": mode, "storageClassName": "fast"}}),
        );
        api.put(
            json!({"kind": "PersistentVolume", "metadata": {"name": name},
            "spec": {"csi": {"driver": driver, "volumeHandle": format!("vol-{name}")}}}),
        );
    }
    api.set(&format!("{CLAIMS}/unbound"), json!({"spec": {}}));
    api.on_create(|object| {
        let name = object["metadata"]["name"]
            .as_str()
            .expect("a name")
            .to_owned();
        match object["kind"].as_str() {
            Some("Pod") => {
                object["status"] = json!({"phase": "Running",
                    "containerStatuses": [{"state": {"running": {}}}]});
                Vec::new()
            }
            Some("VolumeSnapshot") => {
                let given = object["spec"]["source"]["volumeSnapshotContentName"].clone();
                if given.is_string() {
                    object["status"] = json!({"readyToUse": true,
                        "boundVolumeSnapshotContentName": given});
                    return Vec::new();
                }
                let content = format!("c-{name}");
                object["status"] = json!({"readyToUse": true,
                    "boundVolumeSnapshotContentName": content});
                vec![json!({
                    "apiVersion": "snapshot.storage.k8s.io/v1", "kind": "VolumeSnapshotContent",
                    "metadata": {"name": content},
                    "spec": {"driver": "hostloop.csi.dev", "deletionPolicy": "Delete",
                        "source": {"volumeHandle": "vol-data"},
                        "volumeSnapshotRef": {"namespace": "demo", "name": name}},
                    "status": {"snapshotHandle": format!("h-{name}"), "restoreSize": SIZE},
                })]
            }
            _ => Vec::new(),
        }
    });
    api
}

/// The arguments of a command, with this directory.
fn command(words: &str, dir: &TempDir) -> Command {
    let dir = dir.path().to_str().unwrap();
    parsed(&words.replace("DIR", dir)).unwrap().command
}

/// Runs a command, and returns why it fails.
async fn outcome(api: &FakeApi, words: &str, dir: &TempDir) -> Result<(), String> {
    let cluster = cluster_of(api);
    let done = match command(words, dir) {
        Command::Backup(args) => run(&args, &cluster).await,
        Command::Restore(args) => run_restore(&args, &cluster).await,
        _ => panic!("{words}"),
    };
    done.map(drop).map_err(|error| error.to_string())
}

/// What exists besides the cluster's own objects: kind and name.
fn left(api: &FakeApi) -> Vec<String> {
    let mut left = Vec::new();
    for kind in ["pods", "volumesnapshots", "persistentvolumeclaims"] {
        let names = api.all(kind).into_iter();
        let names = names.map(|one| one["metadata"]["name"].as_str().unwrap().to_owned());
        left.extend(
            names
                .filter(|name| !["data", "other", "unbound"].contains(&name.as_str()))
                .map(|name| format!("{kind}/{name}")),
        );
    }
    left
}

fn manifest(dir: &TempDir) -> Value {
    let text = std::fs::read(dir.path().join("backup.json")).unwrap();
    serde_json::from_slice(&text).unwrap()
}

/// A pod is needed only if there is something to copy, and the API server in memory runs none.
#[tokio::test]
async fn the_second_backup_is_compared_with_the_first() {
    let (api, dir) = (cluster("Block"), tempfile::tempdir().unwrap());
    let service = FakeService::start(&api).await;
    let backup = "backup data --to DIR";
    outcome(&api, backup, &dir).await.unwrap();
    let first = manifest(&dir)["backups"][0].clone();
    let snapshot = first["volumeSnapshot"].as_str().unwrap().to_owned();
    assert_eq!(left(&api), [format!("volumesnapshots/{snapshot}")]);
    assert_eq!(service.calls(), [format!("demo/{snapshot} from 0")]);
    assert_eq!(
        (&first["base"], &first["size"]),
        (&Value::Null, &json!(SIZE))
    );
    let object = api.get(&format!("/volumesnapshots/{snapshot}")).unwrap();
    assert_eq!(object["spec"]["volumeSnapshotClassName"], "hostloop");

    outcome(&api, backup, &dir).await.unwrap();
    let second = manifest(&dir)["backups"][1].clone();
    let next = second["volumeSnapshot"].as_str().unwrap().to_owned();
    assert_eq!(second["base"], first["snapshot"]);
    assert_eq!(left(&api), [format!("volumesnapshots/{next}")]);
    assert_eq!(
        service.calls(),
        [format!("demo/{next} since h-{snapshot} from 0")]
    );

    // Its base is gone.
    service.forgets(&format!("h-{next}"));
    outcome(&api, backup, &dir).await.unwrap();
    assert_eq!(manifest(&dir)["backups"][2]["base"], Value::Null);
    outcome(&api, &format!("{backup} --full"), &dir)
        .await
        .unwrap();
    assert_eq!(manifest(&dir)["backups"][3]["base"], Value::Null);
    assert_eq!(manifest(&dir)["volume"]["handle"], "vol-data");
}

/// The name in the manifest may be a person's snapshot.
#[tokio::test]
async fn a_snapshot_that_no_backup_has_made_stays() {
    let (api, dir) = (cluster("Block"), tempfile::tempdir().unwrap());
    let _service = FakeService::start(&api).await;
    outcome(&api, "backup data --to DIR", &dir).await.unwrap();
    let mut changed = manifest(&dir);
    changed["backups"][0]["volumeSnapshot"] = json!("precious");
    std::fs::write(dir.path().join("backup.json"), changed.to_string()).unwrap();
    api.put(
        json!({"apiVersion": "snapshot.storage.k8s.io/v1", "kind": "VolumeSnapshot",
        "metadata": {"namespace": "demo", "name": "precious"}, "spec": {"source": {}}}),
    );
    outcome(&api, "backup data --to DIR", &dir).await.unwrap();
    let left = left(&api);
    assert!(
        left.contains(&"volumesnapshots/precious".to_owned()),
        "{left:?}"
    );
}

/// Both would write the same file of data.
#[tokio::test]
async fn a_directory_takes_one_backup_at_a_time() {
    if !crate::platform::DIRS_ARE_FILES {
        return;
    }
    let (api, dir) = (cluster("Block"), tempfile::tempdir().unwrap());
    let _service = FakeService::start(&api).await;
    let lock = Archive::lock(dir.path()).unwrap();
    let refused = outcome(&api, "backup data --to DIR", &dir).await;
    let refused = refused.unwrap_err();
    assert!(refused.contains("another backup into it"), "{refused}");
    assert_eq!(left(&api), [""; 0]);
    drop(lock);
    outcome(&api, "backup data --to DIR", &dir).await.unwrap();
}

/// An installation may end before the controller has written the object.
#[tokio::test]
async fn a_backup_waits_until_the_service_is_published() {
    let (api, dir) = (cluster("Block"), tempfile::tempdir().unwrap());
    publish(&api, "localhost:1", "");
    api.take("/snapshotmetadataservices/hostloop.csi.dev");
    let publishes = async {
        let mut asked: Vec<String> = Vec::new();
        while !asked.iter().any(|one| one.contains("snapshotmeta")) {
            tokio::time::sleep(Duration::from_millis(5)).await;
            asked.extend(api.log());
        }
        assert_eq!(left(&api), [""; 0], "nothing is made before");
        FakeService::start(&api).await
    };
    let backup = outcome(&api, "backup data --to DIR", &dir);
    let both = async { tokio::join!(backup, publishes) };
    let (done, service) = tokio::time::timeout(PATIENCE, both).await.unwrap();
    done.unwrap();
    assert_eq!(service.calls().len(), 1);
}

/// Makes a backup of a claim of this mode, which fails and leaves nothing.
async fn failed_backup(mode: &str, command: &str) -> (FakeApi, TempDir) {
    let (api, dir) = (cluster(mode), tempfile::tempdir().unwrap());
    let service = FakeService::start(&api).await;
    service.lists(&[(0, 4096)]);
    // Nothing answers the exec.
    let failed = outcome(&api, command, &dir).await.unwrap_err();
    assert!(failed.contains("pods/exec"), "{failed}");
    assert_eq!(left(&api), [""; 0], "{mode}");
    (api, dir)
}

#[tokio::test]
async fn a_backup_that_fails_leaves_nothing() {
    for mode in ["Block", "Filesystem"] {
        let (api, dir) = failed_backup(mode, "backup data --to DIR").await;
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
        let contents = api.all("volumesnapshotcontents");
        let annotation = &contents[0]["metadata"]["annotations"]["snapshot.storage.kubernetes.io/allow-volume-mode-change"];
        assert_eq!(annotation == "true", mode == "Filesystem");
        let made: Vec<String> = api
            .log()
            .into_iter()
            .filter(|one| one.starts_with("POST"))
            .collect();
        assert_eq!(made.len(), 4, "snapshot, token, claim and pod: {made:?}");
    }
}

/// The claim's namespace has the snapshot, and the other one all that has the bytes.
#[tokio::test]
async fn the_bytes_are_read_in_the_other_namespace() {
    for mode in ["Block", "Filesystem"] {
        let (api, _dir) = failed_backup(mode, "backup data --to DIR --via vault").await;
        let made: Vec<String> = api
            .log()
            .into_iter()
            .filter_map(|one| {
                let (kind, _) = one.strip_prefix("POST ")?.rsplit_once('/')?;
                Some(kind.to_owned())
            })
            .collect();
        let expected = [
            "demo/volumesnapshots",
            "demo/serviceaccounts/backup",
            "vault/volumesnapshots",
            "volumesnapshotcontents",
            "vault/persistentvolumeclaims",
            "vault/pods",
        ];
        assert_eq!(made, expected, "{mode}");
        // The content of the claim's namespace allows no other mode.
        let contents = api.all("volumesnapshotcontents");
        assert_eq!(contents.len(), 1, "{contents:?}");
        assert_eq!(contents[0]["metadata"]["annotations"], Value::Null);
    }
}

#[tokio::test]
async fn claims_that_cannot_be_backed_up() {
    let (api, dir) = (cluster("Block"), tempfile::tempdir().unwrap());
    publish(&api, "localhost:1", "");
    api.take("/snapshotmetadataservices/hostloop.csi.dev");
    for (words, says) in [
        (
            "backup none --to DIR",
            "claim none is not in namespace demo",
        ),
        ("backup unbound --to DIR", "wait until it is bound"),
        (
            "backup other --to DIR",
            "not one of driver hostloop.csi.dev",
        ),
        (
            "backup data --to DIR --timeout 0",
            "there is no SnapshotMetadataService",
        ),
        ("restore DIR --claim new", "has no backup"),
    ] {
        let refused = outcome(&api, words, &dir).await.unwrap_err();
        assert!(refused.contains(says), "{words}: {refused}");
        assert_eq!(left(&api), [""; 0], "{words}");
    }
}

#[tokio::test]
async fn a_filesystem_without_the_right_is_refused_by_name() {
    let (api, dir) = (cluster("Filesystem"), tempfile::tempdir().unwrap());
    let service = FakeService::start(&api).await;
    service.lists(&[(0, 4096)]);
    api.fault(
        &["PATCH"],
        "volumesnapshotcontents",
        None,
        hostloop_fake_api::Fault::Refuse(403),
    );
    let refused = outcome(&api, "backup data --to DIR", &dir)
        .await
        .unwrap_err();
    assert!(
        refused.contains("which an administrator allows"),
        "{refused}"
    );
    assert!(
        refused.contains("patch volumesnapshotcontents"),
        "{refused}"
    );
    assert_eq!(left(&api), [""; 0]);
}

#[tokio::test]
async fn a_restore_makes_a_new_claim_or_nothing() {
    let (api, dir) = (cluster("Block"), tempfile::tempdir().unwrap());
    FakeService::start(&api).await;
    outcome(&api, "backup data --to DIR", &dir).await.unwrap();
    let snapshots = left(&api);
    for (words, says) in [
        ("restore DIR --claim data", "claim data exists"),
        // Nothing answers the exec.
        ("restore DIR --claim new", "pods/exec"),
    ] {
        let refused = outcome(&api, words, &dir).await.unwrap_err();
        assert!(refused.contains(says), "{words}: {refused}");
        assert_eq!(left(&api), snapshots, "{words}");
    }
    let changed = dir.path().join("00001.data");
    std::fs::write(changed, "x").unwrap();
    let refused = outcome(&api, "restore DIR --claim new", &dir).await;
    assert!(refused.unwrap_err().contains("checksum"));
}
