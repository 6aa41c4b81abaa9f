//! Cases of what the server completes and what it refuses.

use std::time::Duration;

use serde_json::{Value, json};

use super::{ATTACHMENTS, Answer, STRATEGIC, Site};

const VOLUMES: &str = "/api/v1/persistentvolumes";
const STORAGE: &str = "/apis/storage.k8s.io/v1";

fn claims(site: &Site) -> String {
    format!(
        "/api/v1/namespaces/{}/persistentvolumeclaims",
        site.namespace
    )
}

fn claim(site: &Site, name: &str, size: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "PersistentVolumeClaim",
        "metadata": {"name": format!("{}-{name}", site.prefix)},
        "spec": {"accessModes": ["ReadWriteOnce"], "storageClassName": "none",
            "resources": {"requests": {"storage": size}}}})
}

fn volume(site: &Site, name: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "PersistentVolume",
        "metadata": {"name": format!("{}-{}-{name}", site.namespace, site.prefix)},
        "spec": {"accessModes": ["ReadWriteOnce"], "capacity": {"storage": "1024Mi"},
            "storageClassName": "none",
            "csi": {"driver": "conformance.test", "volumeHandle": name},
            "claimRef": {"kind": "PersistentVolumeClaim", "apiVersion": "v1",
                "namespace": site.namespace, "name": "none", "uid": "none"}}})
}

/// Creates a claim that is bound to a volume of 2Gi, and returns the paths of both. Where nothing
/// binds them, this does.
async fn bound(site: &Site, name: &str, class: &str) -> (String, String) {
    let mut claim = claim(site, name, "2Gi");
    let mut volume = volume(site, name);
    let volume_name = volume["metadata"]["name"].clone();
    claim["spec"]["storageClassName"] = json!(class);
    claim["spec"]["volumeName"] = volume_name.clone();
    volume["spec"]["storageClassName"] = json!(class);
    volume["spec"]["capacity"]["storage"] = json!("2Gi");
    volume["spec"]["claimRef"] = json!({"kind": "PersistentVolumeClaim", "apiVersion": "v1",
        "namespace": site.namespace, "name": claim["metadata"]["name"]});
    site.post(VOLUMES, volume).await.code(201);
    let made = site.post(&claims(site), claim).await.code(201);
    let path = format!(
        "{}/{}",
        claims(site),
        made["metadata"]["name"].as_str().expect("a name")
    );
    for _ in 0..100 {
        let now = site.get(&path).await.code(200);
        if now["status"]["phase"] == "Bound" {
            break;
        }
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    let status = json!({"status": {"phase": "Bound", "capacity": {"storage": "2Gi"}}});
    site.ask("PATCH", &format!("{path}/status"), STRATEGIC, status)
        .await
        .code(200);
    (
        path,
        format!("{VOLUMES}/{}", volume_name.as_str().expect("a name")),
    )
}

/// Removes an object that a finalizer holds.
async fn remove(site: &Site, path: &str) {
    site.delete(path, json!({})).await;
    site.merge(path, json!({"metadata": {"finalizers": null}}))
        .await;
}

pub(super) async fn a_claim_is_completed(site: &Site) {
    let claims = claims(site);
    for (name, size, expected) in [
        ("a", "1024Mi", "1Gi"),
        ("b", "1500M", "1500M"),
        ("c", "0.5Gi", "512Mi"),
        ("d", "1", "1"),
    ] {
        let mut claim = claim(site, name, size);
        claim["status"] = json!({"phase": "Bound"});
        let made = site.post(&claims, claim).await.code(201);
        assert_eq!(made["spec"]["resources"]["requests"]["storage"], expected);
        assert_eq!(made["spec"]["volumeMode"], "Filesystem");
        assert_eq!(made["status"]["phase"], "Pending");
        assert_eq!(
            made["metadata"]["finalizers"],
            json!(["kubernetes.io/pvc-protection"])
        );
        assert!(made["metadata"]["generation"].is_null(), "{made}");
    }
    let mut clone = claim(site, "e", "1Gi");
    let source = json!({"kind": "PersistentVolumeClaim", "name": "x"});
    clone["spec"]["dataSource"] = source.clone();
    let made = site.post(&claims, clone).await.code(201);
    for field in ["dataSource", "dataSourceRef"] {
        let expected = json!({"apiGroup": null, "kind": source["kind"], "name": "x"});
        assert_eq!(made["spec"][field], expected);
    }
}

pub(super) async fn a_claim_needs_modes_and_a_size(site: &Site) {
    for change in [
        json!({"accessModes": []}),
        json!({"accessModes": ["Always"]}),
        json!({"accessModes": ["ReadWriteOncePod", "ReadWriteOnce"]}),
        json!({"resources": {"requests": {}}}),
        json!({"resources": {"requests": {"storage": "0"}}}),
        json!({"resources": {"requests": {"storage": "-1Gi"}}}),
    ] {
        let mut claim = claim(site, "x", "1Gi");
        for (field, value) in change.as_object().expect("fields") {
            claim["spec"][field] = value.clone();
        }
        site.post(&claims(site), claim).await.failed(422, "Invalid");
    }
}

pub(super) async fn a_claim_changes_only_in_size_and_class(site: &Site) {
    let made = site
        .post(&claims(site), claim(site, "x", "2Gi"))
        .await
        .code(201);
    let name = made["metadata"]["name"].as_str().expect("a name");
    let path = format!("{}/{name}", claims(site));
    let spec = |change: Value| json!({"spec": change});
    let size = |size: &str| spec(json!({"resources": {"requests": {"storage": size}}}));
    // Before it is bound, only its volume can be named, once.
    for change in [
        size("3Gi"),
        size("1Gi"),
        spec(json!({"storageClassName": "other"})),
        spec(json!({"accessModes": ["ReadWriteMany"]})),
        spec(json!({"volumeMode": "Block"})),
        spec(json!({"volumeAttributesClassName": "a"})),
    ] {
        site.merge(&path, change).await.failed(422, "Invalid");
    }
    site.merge(&path, size("2048Mi")).await.code(200);
    site.merge(&path, spec(json!({"volumeName": "v"})))
        .await
        .code(200);
    site.merge(&path, spec(json!({"volumeName": "w"})))
        .await
        .failed(422, "Invalid");
    let (path, volume) = bound(site, "y", "none").await;
    for refused in [
        size("1Gi"),
        spec(json!({"storageClassName": "other"})),
        spec(json!({"volumeMode": "Block"})),
    ] {
        site.merge(&path, refused).await.failed(422, "Invalid");
    }
    let classed = spec(json!({"volumeAttributesClassName": "a"}));
    site.merge(&path, classed).await.code(200);
    remove(site, &volume).await;
}

pub(super) async fn a_claim_grows_if_its_class_allows_it_and_not_below_its_size(site: &Site) {
    for (name, allowed) in [("fixed", false), ("elastic", true)] {
        let class = format!("{}-{}-{name}", site.namespace, site.prefix);
        let object = json!({"apiVersion": "storage.k8s.io/v1", "kind": "StorageClass",
            "metadata": {"name": class}, "provisioner": "conformance.test",
            "allowVolumeExpansion": allowed});
        site.post(&format!("{STORAGE}/storageclasses"), object)
            .await
            .code(201);
        let (path, volume) = bound(site, name, &class).await;
        let size = |size: &str| json!({"spec": {"resources": {"requests": {"storage": size}}}});
        let grown: Answer = site.merge(&path, size("4Gi")).await;
        if !allowed {
            grown.failed(403, "Forbidden");
            remove(site, &volume).await;
            continue;
        }
        grown.code(200);
        site.merge(&path, size("3Gi")).await.code(200);
        for refused in ["2Gi", "1Gi"] {
            site.merge(&path, size(refused))
                .await
                .failed(422, "Invalid");
        }
        site.merge(&path, size("2049Mi")).await.code(200);
        remove(site, &volume).await;
    }
}

pub(super) async fn a_claim_has_no_health_without_the_feature_gate(site: &Site) {
    let (path, _) = bound(site, "a", "none").await;
    let condition = json!({"status": "Degraded", "reason": "R"});
    let health = json!({"status": {"healthStatus": {"healthConditions": [condition]}}});
    let written = site
        .merge(&format!("{path}/status"), health)
        .await
        .code(200);
    assert!(written["status"]["healthStatus"].is_null(), "{written}");
    remove(site, &path).await;
}

pub(super) async fn a_volume_is_completed_and_keeps_its_source(site: &Site) {
    let object = volume(site, "x");
    let made = site.post(VOLUMES, object.clone()).await.code(201);
    assert_eq!(made["spec"]["capacity"]["storage"], "1Gi");
    assert_eq!(made["spec"]["volumeMode"], "Filesystem");
    assert_eq!(made["spec"]["persistentVolumeReclaimPolicy"], "Retain");
    assert_eq!(
        made["metadata"]["finalizers"],
        json!(["kubernetes.io/pv-protection"])
    );
    assert_eq!(made["status"]["phase"], "Pending");
    let path = format!(
        "{VOLUMES}/{}",
        made["metadata"]["name"].as_str().expect("a name")
    );
    for change in [
        json!({"csi": {"volumeHandle": "other"}}),
        json!({"volumeMode": "Block"}),
        json!({"capacity": {"storage": "0"}}),
    ] {
        site.merge(&path, json!({"spec": change}))
            .await
            .failed(422, "Invalid");
    }
    for change in [
        json!({"capacity": {"storage": "2Gi"}}),
        json!({"persistentVolumeReclaimPolicy": "Delete"}),
        json!({"mountOptions": ["noatime"]}),
    ] {
        site.merge(&path, json!({"spec": change})).await.code(200);
    }
    let mut without = object;
    without["metadata"]["name"] = json!(format!("{}-{}-y", site.namespace, site.prefix));
    without["spec"]["capacity"] = json!({});
    site.post(VOLUMES, without).await.failed(422, "Invalid");
    remove(site, &path).await;
}

pub(super) async fn classes_and_attachments_stay_as_they_are(site: &Site) {
    let name = format!("{}-{}", site.namespace, site.prefix);
    let meta = json!({"name": name});
    for (collection, object, refused, allowed) in [
        (
            format!("{STORAGE}/storageclasses"),
            json!({"apiVersion": "storage.k8s.io/v1", "kind": "StorageClass", "metadata": meta,
                "provisioner": "conformance.test", "parameters": {"a": "1"}}),
            vec![
                json!({"parameters": {"a": "2"}}),
                json!({"provisioner": "other.test"}),
                json!({"reclaimPolicy": "Retain"}),
                json!({"volumeBindingMode": "WaitForFirstConsumer"}),
            ],
            vec![
                json!({"allowVolumeExpansion": true}),
                json!({"mountOptions": ["noatime"]}),
            ],
        ),
        (
            format!("{STORAGE}/volumeattributesclasses"),
            json!({"apiVersion": "storage.k8s.io/v1", "kind": "VolumeAttributesClass",
                "metadata": meta, "driverName": "conformance.test", "parameters": {"a": "1"}}),
            vec![
                json!({"parameters": {"a": "2"}}),
                json!({"driverName": "other.test"}),
            ],
            vec![json!({"metadata": {"labels": {"l": "1"}}})],
        ),
        (
            format!("{STORAGE}/csidrivers"),
            json!({"apiVersion": "storage.k8s.io/v1", "kind": "CSIDriver", "metadata": meta,
                "spec": {}}),
            vec![
                json!({"spec": {"attachRequired": false}}),
                json!({"spec": {"volumeLifecycleModes": ["Ephemeral"]}}),
            ],
            vec![json!({"spec": {"storageCapacity": true}})],
        ),
        (
            ATTACHMENTS.to_owned(),
            json!({"apiVersion": "storage.k8s.io/v1", "kind": "VolumeAttachment",
                "metadata": meta, "spec": {"attacher": "conformance.test", "nodeName": "none",
                    "source": {"persistentVolumeName": "none"}}}),
            vec![json!({"spec": {"nodeName": "other"}})],
            vec![json!({"metadata": {"annotations": {"a": "1"}}})],
        ),
    ] {
        let made = site.post(&collection, object).await.code(201);
        if collection.ends_with("storageclasses") {
            assert_eq!(made["reclaimPolicy"], "Delete");
            assert_eq!(made["volumeBindingMode"], "Immediate");
        }
        if collection.ends_with("csidrivers") {
            let spec = &made["spec"];
            assert_eq!(
                (&spec["attachRequired"], &spec["podInfoOnMount"]),
                (&json!(true), &json!(false))
            );
            assert_eq!(spec["volumeLifecycleModes"], json!(["Persistent"]));
            assert_eq!(spec["fsGroupPolicy"], "ReadWriteOnceWithFSType");
        }
        let path = format!("{collection}/{name}");
        for change in refused {
            site.merge(&path, change).await.failed(422, "Invalid");
        }
        for change in allowed {
            site.merge(&path, change).await.code(200);
        }
        site.delete(&path, json!({})).await.code(200);
    }
}
