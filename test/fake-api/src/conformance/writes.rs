//! Cases of writes: versions, preconditions, patches, status and finalizers.

use serde_json::{Value, json};

use super::{ATTACHMENTS, JSON_PATCH, NODES, STRATEGIC, Site, version};

pub(super) async fn every_change_has_a_version_and_no_change_has_none(site: &Site) {
    let (path, made) = site.map("x", json!({})).await;
    let changed = site
        .merge(&path, json!({"data": {"a": "2"}}))
        .await
        .code(200);
    assert_ne!(version(&made), version(&changed));
    let same = json!({"data": {"a": "2"}});
    let again = site.merge(&path, same).await.code(200);
    assert_eq!(version(&changed), version(&again));
    let test = json!([{"op": "replace", "path": "/data/a", "value": "2"}]);
    let again = site.ask("PATCH", &path, JSON_PATCH, test).await.code(200);
    assert_eq!(version(&changed), version(&again));
    let again = site.put(&path, again).await.code(200);
    assert_eq!(version(&changed), version(&again));
    let gone = site
        .merge(&path, json!({"data": {"a": null, "b": "3"}}))
        .await
        .code(200);
    assert_eq!(gone["data"], json!({"b": "3"}));
    assert_ne!(version(&changed), version(&gone));
}

pub(super) async fn a_dry_run_checks_a_create_and_makes_nothing(site: &Site) {
    let (taken, _) = site.map("taken", json!({})).await;
    let (folder, name) = taken.rsplit_once('/').expect("a path");
    let dry_run = format!("{folder}?dryRun=All");
    let map =
        |name: &str| json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}});
    site.post(&dry_run, map(name))
        .await
        .failed(409, "AlreadyExists");
    let free = format!("{name}-free");
    site.post(&dry_run, map(&free)).await.code(201);
    site.get(&format!("{folder}/{free}")).await.code(404);
}

pub(super) async fn a_write_names_the_version_it_depends_on(site: &Site) {
    let (path, made) = site.map("x", json!({})).await;
    let bound = |value: &str| json!({"metadata": {"resourceVersion": version(&made)}, "data": {"a": value}});
    site.merge(&path, bound("2")).await.code(200);
    let message = site.merge(&path, bound("3")).await.failed(409, "Conflict");
    assert!(
        message.starts_with("Operation cannot be fulfilled on configmaps "),
        "{message}"
    );
    site.put(&path, made.clone()).await.failed(409, "Conflict");
    let patch = json!([
        {"op": "replace", "path": "/metadata/resourceVersion", "value": version(&made)},
        {"op": "replace", "path": "/data/a", "value": "4"},
    ]);
    site.ask("PATCH", &path, JSON_PATCH, patch)
        .await
        .failed(409, "Conflict");
    assert_eq!(site.get(&path).await.code(200)["data"]["a"], "2");
}

pub(super) async fn a_write_names_the_uid_it_depends_on(site: &Site) {
    let (path, made) = site.map("x", json!({})).await;
    let bound = |uid: &Value| json!({"metadata": {"uid": uid}, "data": {"a": "2"}});
    let other = json!("another");
    let message = site
        .merge(&path, bound(&other))
        .await
        .failed(422, "Invalid");
    assert!(message.contains("metadata.uid: Invalid value"), "{message}");
    let mut stale = bound(&other);
    stale["metadata"]["resourceVersion"] = json!("1");
    site.merge(&path, stale).await.failed(409, "Conflict");
    let mut put = made.clone();
    put["metadata"]["uid"] = other;
    site.put(&path, put).await.failed(409, "Conflict");
    let uid = &made["metadata"]["uid"];
    site.merge(&path, bound(uid)).await.code(200);
}

pub(super) async fn a_json_patch_tests_first(site: &Site) {
    let (path, made) = site.map("x", json!({})).await;
    let patch = |expected: &str| {
        json!([
            {"op": "test", "path": "/data/a", "value": expected},
            {"op": "replace", "path": "/data/a", "value": "2"},
        ])
    };
    let missing = json!([{"op": "remove", "path": "/data/b"}]);
    for unfit in [patch("9"), missing] {
        let answer = site.ask("PATCH", &path, JSON_PATCH, unfit).await;
        let message = answer.failed(422, "Invalid");
        assert_eq!(
            message,
            "the server rejected our request due to an error in our request"
        );
    }
    assert_eq!(version(&site.get(&path).await.code(200)), version(&made));
    let changed = site
        .ask("PATCH", &path, JSON_PATCH, patch("1"))
        .await
        .code(200);
    assert_eq!(changed["data"]["a"], "2");
}

pub(super) async fn an_update_replaces_all_but_what_the_server_sets(site: &Site) {
    let (path, made) = site.map("x", json!({"labels": {"l": "1"}})).await;
    let mut other = made.clone();
    other["data"] = json!({"b": "2"});
    other["metadata"] = json!({"name": made["metadata"]["name"]});
    // A PUT without a version applies to any version.
    let put = site.put(&path, other).await.code(200);
    assert_eq!(put["data"], json!({"b": "2"}));
    assert!(put["metadata"]["labels"].is_null(), "{put}");
    for field in ["uid", "creationTimestamp", "namespace"] {
        assert_eq!(put["metadata"][field], made["metadata"][field], "{field}");
    }
}

pub(super) async fn a_status_is_written_apart(site: &Site) {
    let name = format!("{}-{}", site.namespace, site.prefix);
    let node = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}});
    let made = site.post(NODES, node).await.code(201);
    let (path, status) = (format!("{NODES}/{name}"), format!("{NODES}/{name}/status"));
    let both = |phase: &str, unschedulable: bool| {
        json!({
            "metadata": {"labels": {"of": phase}},
            "spec": {"unschedulable": unschedulable},
            "status": {"phase": phase},
        })
    };
    let patched = site.merge(&status, both("Running", true)).await.code(200);
    assert_eq!(patched["status"]["phase"], "Running");
    assert_ne!(patched["spec"]["unschedulable"], true);
    assert_eq!(patched["metadata"]["labels"]["of"], "Running");
    let patched = site.merge(&path, both("Terminated", true)).await.code(200);
    assert_eq!(patched["status"]["phase"], "Running");
    assert_eq!(patched["spec"]["unschedulable"], true);
    assert_eq!(patched["metadata"]["labels"]["of"], "Terminated");
    let mut stale = both("Pending", false);
    stale["metadata"]["resourceVersion"] = json!(version(&made));
    site.merge(&status, stale).await.failed(409, "Conflict");
    site.delete(&path, json!({})).await.code(200);
}

pub(super) async fn a_status_leaves_the_metadata_of_some_kinds_alone(site: &Site) {
    let name = format!("{}-{}", site.namespace, site.prefix);
    let attachment = json!({"apiVersion": "storage.k8s.io/v1", "kind": "VolumeAttachment",
        "metadata": {"name": name},
        "spec": {"attacher": "conformance.test", "nodeName": "none",
            "source": {"persistentVolumeName": "none"}},
        "status": {"attached": true}});
    let made = site.post(ATTACHMENTS, attachment).await.code(201);
    assert!(made["status"]["attached"] != true, "{made}");
    let path = format!("{ATTACHMENTS}/{name}");
    let patch = json!({
        "metadata": {"labels": {"l": "1"}, "finalizers": ["conformance.test/f"], "uid": "another"},
        "status": {"attached": true},
    });
    site.merge(&format!("{path}/status"), patch.clone())
        .await
        .failed(422, "Invalid");
    let mut patch = patch;
    patch["metadata"]["uid"] = made["metadata"]["uid"].clone();
    let status = site.merge(&format!("{path}/status"), patch).await.code(200);
    assert_eq!(status["status"]["attached"], true);
    assert!(status["metadata"]["labels"].is_null(), "{status}");
    assert!(status["metadata"]["finalizers"].is_null(), "{status}");
    site.delete(&path, json!({})).await.code(200);
}

pub(super) async fn conditions_are_merged_by_type(site: &Site) {
    let claims = format!(
        "/api/v1/namespaces/{}/persistentvolumeclaims",
        site.namespace
    );
    let claim = json!({"apiVersion": "v1", "kind": "PersistentVolumeClaim",
        "metadata": {"name": site.prefix},
        "spec": {"accessModes": ["ReadWriteOnce"], "storageClassName": "none",
            "resources": {"requests": {"storage": "1Gi"}}}});
    site.post(&claims, claim).await.code(201);
    let path = format!("{claims}/{}", site.prefix);
    let status = format!("{path}/status");
    let condition = |kind: &str, status: &str| {
        json!({"type": kind, "status": status, "lastProbeTime": null,
            "lastTransitionTime": null})
    };
    for (given, expected) in [
        (vec![condition("Resizing", "True")], "Resizing=True"),
        (
            vec![condition("FileSystemResizePending", "True")],
            "FileSystemResizePending=True Resizing=True",
        ),
        (
            vec![condition("Resizing", "False")],
            "FileSystemResizePending=True Resizing=False",
        ),
        (
            vec![json!({"$patch": "delete", "type": "Resizing"})],
            "FileSystemResizePending=True",
        ),
        (
            vec![
                json!({"$patch": "replace"}),
                condition("ModifyingVolume", "True"),
            ],
            "ModifyingVolume=True",
        ),
    ] {
        let patch = json!({"status": {"conditions": given}});
        let patched = site.ask("PATCH", &status, STRATEGIC, patch).await.code(200);
        let conditions = patched["status"]["conditions"]
            .as_array()
            .expect("conditions");
        let mut conditions: Vec<_> = conditions
            .iter()
            .map(|one| format!("{}={}", one["type"], one["status"]).replace('"', ""))
            .collect();
        conditions.sort();
        assert_eq!(conditions.join(" "), expected);
    }
    site.delete(&path, json!({})).await.code(200);
}

pub(super) async fn a_delete_minds_its_preconditions(site: &Site) {
    let (path, made) = site.map("x", json!({})).await;
    let only = |field: &str, value: &Value| json!({"preconditions": {field: value}});
    for (field, wrong) in [("uid", "another"), ("resourceVersion", "1")] {
        let refused = site.delete(&path, only(field, &json!(wrong))).await;
        refused.failed(409, "Conflict");
    }
    let version = &made["metadata"]["resourceVersion"];
    site.delete(&path, only("resourceVersion", version))
        .await
        .code(200);
    site.get(&path).await.failed(404, "NotFound");
}

pub(super) async fn an_object_goes_with_its_last_finalizer(site: &Site) {
    let finalizers = json!({"finalizers": ["conformance.test/a", "conformance.test/b"]});
    let (path, made) = site.map("x", finalizers).await;
    assert!(made["metadata"]["deletionTimestamp"].is_null());
    site.delete(&path, json!({})).await.code(200);
    let marked = site.get(&path).await.code(200);
    assert!(
        marked["metadata"]["deletionTimestamp"].is_string(),
        "{marked}"
    );
    assert_ne!(version(&made), version(&marked));
    site.delete(&path, json!({})).await.code(200);
    let again = site.get(&path).await.code(200);
    assert_eq!(version(&marked), version(&again));
    let set = |list: Value| json!({"metadata": {"finalizers": list}});
    let more = json!(["conformance.test/a", "conformance.test/c"]);
    site.merge(&path, set(more)).await.failed(422, "Invalid");
    // A patch can't remove the deletion timestamp.
    let one =
        json!({"metadata": {"finalizers": ["conformance.test/b"], "deletionTimestamp": null}});
    let one = site.merge(&path, one).await.code(200);
    assert!(one["metadata"]["deletionTimestamp"].is_string(), "{one}");
    let last = site.merge(&path, set(Value::Null)).await.code(200);
    assert_eq!(version(&last), version(&one), "that of what was read");
    site.get(&path).await.failed(404, "NotFound");
}
