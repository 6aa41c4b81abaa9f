use hostloop_fake_api::{FakeApi, Fault};
use serde_json::json;

use super::*;
use crate::manifests::{Settings, Snapshots, crds};
use crate::test_objects::{cluster_of, writes};

const YES: Args = Args {
    data: false,
    crds: false,
    yes: true,
    dry_run: DryRunArgs { how: DryRun::None },
};

/// A cluster in which everything is installed.
fn installed() -> FakeApi {
    let server = FakeApi::default();
    let snapshots = Snapshots {
        class: true,
        group_class: true,
        controller: true,
    };
    let settings = Settings {
        snapshots,
        ..Settings::default()
    };
    for object in crds().into_iter().chain(settings.objects()) {
        server.put(object);
    }
    server
}

fn volume() -> Value {
    json!({"apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": "hostloop-1"},
        "spec": {"csi": {"driver": "hostloop.csi.dev", "volumeHandle": "h"},
            "claimRef": {"namespace": "shop", "name": "data"}}})
}

#[tokio::test]
async fn everything_but_the_definitions_is_removed() {
    let server = installed();
    server.put(
        json!({"apiVersion": "storage.k8s.io/v1", "kind": "StorageClass",
        "metadata": {"name": "standard"}}),
    );
    run(&YES, &cluster_of(&server)).await.unwrap();
    let removed = writes(&server);
    assert!(removed.len() > 45, "{removed:?}");
    assert!(
        removed[..4].iter().all(|write| write.contains("classes/")),
        "{removed:?}"
    );
    assert_eq!(
        removed.last().map(String::as_str),
        Some("DELETE namespaces/hostloop")
    );
    assert_eq!(server.all("storageclasses").len(), 1);
    assert_eq!(
        server.all("roles").len() + server.all("clusterroles").len(),
        0
    );
    assert_eq!(server.all("customresourcedefinitions").len(), 6);
    // Again: nothing is left to remove.
    run(&YES, &cluster_of(&server)).await.unwrap();
    assert_eq!(writes(&server), Vec::<String>::new());
}

#[tokio::test]
async fn a_dry_run_of_the_client_removes_nothing_and_asks_nothing() {
    let args = Args {
        yes: false,
        dry_run: DryRunArgs {
            how: DryRun::Client,
        },
        ..YES
    };
    let server = installed();
    run(&args, &cluster_of(&server)).await.unwrap();
    assert_eq!(writes(&server), Vec::<String>::new());
    let said = would_be_removed(&server.all("daemonsets"));
    assert_eq!(said, ["DaemonSet hostloop/hostloop would be removed"]);
    server.put(volume());
    let refused = run(&args, &cluster_of(&server)).await.unwrap_err();
    assert!(matches!(refused, Error::InUse(_)), "{refused}");
}

#[tokio::test]
async fn volumes_that_are_left_prevent_it() {
    let content = json!({"apiVersion": "snapshot.storage.k8s.io/v1", "kind": "VolumeSnapshotContent",
        "metadata": {"name": "c"}, "spec": {"driver": "hostloop.csi.dev",
            "volumeSnapshotRef": {"namespace": "shop", "name": "s"}}});
    let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p", "namespace": "shop"},
        "spec": {"containers": [], "volumes": [{"name": "v", "csi": {"driver": "hostloop.csi.dev"}}]}});
    for (object, said) in [
        (volume(), "PersistentVolume hostloop-1 of claim shop/data"),
        (content, "VolumeSnapshotContent c of shop/s"),
        (pod, "Pod shop/p with an inline volume"),
    ] {
        let server = installed();
        server.put(object);
        let error = run(&YES, &cluster_of(&server))
            .await
            .unwrap_err()
            .to_string();
        assert!(error.contains(said), "{error}");
        assert_eq!(writes(&server), Vec::<String>::new());
    }
}

#[tokio::test]
async fn definitions_are_removed_if_nothing_needs_them() {
    let args = Args { crds: true, ..YES };
    let server = installed();
    server.put(
        json!({"apiVersion": "snapshot.storage.k8s.io/v1", "kind": "VolumeSnapshotClass",
        "metadata": {"name": "of-another-driver"}, "driver": "other"}),
    );
    run(&args, &cluster_of(&server)).await.unwrap();
    let left = server.all("customresourcedefinitions");
    let names: Vec<&Value> = left
        .iter()
        .map(|object| &object["metadata"]["name"])
        .collect();
    assert_eq!(names, ["volumesnapshotclasses.snapshot.storage.k8s.io"]);
}

#[tokio::test]
async fn a_dry_run_keeps_the_definitions() {
    let args = Args {
        crds: true,
        dry_run: DryRunArgs {
            how: DryRun::Client,
        },
        ..YES
    };
    let server = FakeApi::default();
    for definition in crds() {
        server.put(definition);
    }
    run(&args, &cluster_of(&server)).await.unwrap();
    assert_eq!(writes(&server), Vec::<String>::new());
    assert_eq!(server.all("customresourcedefinitions").len(), 6);
}

/// The API server first ends what needs the definition, and so may take seconds.
#[tokio::test(start_paused = true)]
async fn a_definition_that_does_not_end_is_named() {
    let args = Args { crds: true, ..YES };
    let server = installed();
    let name = "volumesnapshots.snapshot.storage.k8s.io";
    let mut all = server.all("customresourcedefinitions");
    let position = all.iter().position(|one| one["metadata"]["name"] == name);
    let mut kept = all.remove(position.unwrap());
    kept["metadata"]["finalizers"] = json!(["customresourcecleanup.apiextensions.k8s.io"]);
    server.put(kept);
    let error = run(&args, &cluster_of(&server)).await.unwrap_err();
    assert!(
        error
            .to_string()
            .contains(&format!("CustomResourceDefinition {name} is deleted")),
        "{error}"
    );
    assert_eq!(server.all("customresourcedefinitions").len(), 1);
}

#[tokio::test]
async fn a_namespace_with_pods_of_others_stays() {
    let server = installed();
    server.put(json!({"apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": "prometheus", "namespace": "hostloop"}}));
    run(&YES, &cluster_of(&server)).await.unwrap();
    assert_eq!(server.all("namespaces").len(), 1);
    assert!(server.all("daemonsets").is_empty());
}

#[tokio::test]
async fn what_helm_installed_stays() {
    let server = installed();
    let mut daemon_set = server.all("daemonsets").remove(0);
    daemon_set["metadata"]["annotations"]["meta.helm.sh/release-name"] = json!("store");
    server.put(daemon_set);
    let error = run(&YES, &cluster_of(&server))
        .await
        .unwrap_err()
        .to_string();
    assert!(error.contains("helm uninstall store"), "{error}");
}

/// Volumes of the name that is installed would be overlooked.
#[tokio::test]
async fn another_driver_name_is_refused() {
    let server = installed();
    let cluster = Cluster {
        driver_name: "other".to_owned(),
        ..cluster_of(&server)
    };
    let error = run(&YES, &cluster).await.unwrap_err().to_string();
    assert!(error.contains("--driver-name hostloop.csi.dev"), "{error}");
    assert_eq!(writes(&server), Vec::<String>::new());
}

#[tokio::test]
async fn a_missing_right_is_named() {
    let server = installed();
    server.fault(&["DELETE"], "storageclasses", None, Fault::Refuse(403));
    let error = run(&YES, &cluster_of(&server))
        .await
        .unwrap_err()
        .to_string();
    assert!(
        error.contains("you may not delete storageclasses.storage.k8s.io in the whole"),
        "{error}"
    );
}
