use hostloop_fake_api::FakeApi;
use serde_json::{Value, json};

use super::*;
use crate::test_objects::{cluster_of, read};

const DRIVER: &str = "hostloop.csi.dev";

fn claim(value: Value) -> PersistentVolumeClaim {
    let mut claim: PersistentVolumeClaim = read(value);
    claim.metadata.name.get_or_insert("data".to_owned());
    claim.metadata.namespace = Some("demo".to_owned());
    claim
}

#[test]
fn claims_of_the_driver() {
    let class = |name: &str, provisioner: &str| {
        read(json!({"metadata": {"name": name}, "provisioner": provisioner}))
    };
    let volume = |name: &str, driver: &str| {
        let csi = json!({"driver": driver, "volumeHandle": "h"});
        read(json!({"metadata": {"name": name}, "spec": {"csi": csi}}))
    };
    let objects = VolumeObjects {
        classes: vec![class("ours", DRIVER), class("theirs", "other")],
        volumes: vec![volume("pv", DRIVER), volume("other-pv", "other")],
        ..VolumeObjects::default()
    };
    for (value, is_ours) in [
        (json!({"spec": {"volumeName": "pv"}}), true),
        (
            json!({"spec": {"volumeName": "other-pv", "storageClassName": "ours"}}),
            false,
        ),
        (json!({"spec": {"storageClassName": "ours"}}), true),
        (json!({"spec": {"storageClassName": "theirs"}}), false),
        (json!({"spec": {"storageClassName": "gone"}}), false),
        (json!({"spec": {}}), false),
        (
            json!({"metadata": {"annotations": {PROVISIONER: DRIVER}}}),
            true,
        ),
        (
            json!({"metadata": {"annotations": {PROVISIONER_BETA: DRIVER}}}),
            true,
        ),
        (
            json!({
                "metadata": {"annotations": {PROVISIONER: "other"}},
                "spec": {"storageClassName": "ours"},
            }),
            false,
        ),
    ] {
        let said = value.to_string();
        assert_eq!(
            objects.is_of_driver(&claim(value), DRIVER),
            is_ours,
            "{said}"
        );
    }
}

#[test]
fn pods_of_a_claim() {
    let pod = |name: &str, namespace: &str, phase: &str, volume: Value| {
        read::<Pod>(json!({
            "metadata": {"name": name, "namespace": namespace},
            "spec": {"containers": [], "volumes": [volume]},
            "status": {"phase": phase},
        }))
    };
    let by_name = |claim: &str| json!({"name": "v", "persistentVolumeClaim": {"claimName": claim}});
    let template = json!({"name": "data", "ephemeral": {}});
    let objects = VolumeObjects {
        pods: vec![
            pod("a", "demo", "Running", by_name("data")),
            pod("b", "demo", "Pending", by_name("data")),
            pod("ended", "demo", "Succeeded", by_name("data")),
            pod("other", "demo", "Running", by_name("logs")),
            pod("elsewhere", "default", "Running", by_name("data")),
            pod("web", "demo", "Running", template),
        ],
        ..VolumeObjects::default()
    };
    for (name, pods) in [
        ("data", vec!["a", "b"]),
        ("logs", vec!["other"]),
        ("web-data", vec!["web"]),
    ] {
        let claim = claim(json!({"metadata": {"name": name}}));
        let found: Vec<String> = objects
            .pods_of(&claim)
            .iter()
            .map(|p| p.name_any())
            .collect();
        assert_eq!(found, pods, "{name}");
    }
}

#[test]
fn inline_volumes_have_kubelets_handle() {
    let pod: Pod = read(json!({
        "metadata": {"name": "a", "uid": "3f1c"},
        "spec": {"containers": [], "volumes": [
            {"name": "scratch", "csi": {"driver": DRIVER}},
            {"name": "other", "csi": {"driver": "other"}},
            {"name": "claim", "persistentVolumeClaim": {"claimName": "data"}},
        ]},
    }));
    // printf '3f1cscratch' | sha256sum
    let handle = "csi-0bdb413a980ca4c0202c59773c0938aea5418fb75096413be571512bf5f0bf8d";
    let expected = vec![("scratch".to_owned(), handle.to_owned())];
    assert_eq!(inline_volumes(&pod, DRIVER), expected);
}

#[test]
fn sizes_and_sources() {
    for (value, size, source) in [
        (json!({}), None, None),
        (
            json!({"spec": {"resources": {"requests": {"storage": "1Gi"}}}}),
            Some(1 << 30),
            None,
        ),
        (
            json!({
                "spec": {
                    "resources": {"requests": {"storage": "2Gi"}},
                    "dataSource": {"kind": "VolumeSnapshot", "name": "s", "apiGroup": "g"},
                },
                "status": {"capacity": {"storage": "1Gi"}},
            }),
            Some(1 << 30),
            Some("VolumeSnapshot/s"),
        ),
        (
            json!({"spec": {
                "dataSource": {"kind": "PersistentVolumeClaim", "name": "old"},
                "dataSourceRef": {"kind": "PersistentVolumeClaim", "name": "old"},
            }}),
            None,
            Some("PersistentVolumeClaim/old"),
        ),
    ] {
        let claim = claim(value);
        assert_eq!(claim_size(&claim), size);
        assert_eq!(source_of(&claim).as_deref(), source);
    }
}

#[tokio::test]
async fn lists_without_a_right_are_notes() {
    let api = FakeApi::default();
    let ns = "/api/v1/namespaces/demo";
    api.set(&format!("{ns}/persistentvolumeclaims/data"), json!({}));
    api.hide("/api/v1/persistentvolumes", 403);
    api.hide(&format!("{ns}/events"), 403);
    let objects = VolumeObjects::gather(&cluster_of(&api), Some("demo"))
        .await
        .unwrap();
    assert_eq!(objects.claims.len(), 1);
    assert!(!objects.has_all_volumes);
    assert_eq!(
        objects.missing,
        [
            "you may not list persistentvolumes in the whole cluster; ask for this right, or \
             choose another --context",
            "you may not list events in namespace demo; ask for this right, or choose another \
             --context",
        ]
    );
}

#[tokio::test]
async fn a_server_that_fails_ends_the_command() {
    let api = FakeApi::default();
    let body = json!({"status": "Failure", "message": "no etcd", "code": 500});
    api.answer("/api/v1/persistentvolumeclaims", 500, body);
    let error = VolumeObjects::gather(&cluster_of(&api), None)
        .await
        .unwrap_err();
    assert_eq!(
        error.to_string(),
        "list persistentvolumeclaims: no etcd (HTTP 500)"
    );
    assert_eq!(api.requests().len(), 1);
}
