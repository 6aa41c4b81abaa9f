//! Cases of what ends: watches, namespaces, and objects in their order.

use std::time::Duration;

use futures::StreamExt;
use kube::Api;
use kube::api::{WatchEvent, WatchParams};
use kube::core::{ApiResource, DynamicObject, GroupVersionKind};
use serde_json::{Value, json};
use tokio::time::Instant;

use super::{PATIENCE, Site, version};

const NAMESPACES: &str = "/api/v1/namespaces";

fn maps(site: &Site) -> Api<DynamicObject> {
    let kind = ApiResource::from_gvk(&GroupVersionKind::gvk("", "v1", "ConfigMap"));
    Api::namespaced_with(site.client.clone(), &site.namespace, &kind)
}

pub(super) async fn a_watch_ends_in_its_time(site: &Site) {
    let (_, made) = site.map("x", json!({"labels": {"of": "ending"}})).await;
    let mut params = WatchParams::default().labels("of=ending").timeout(6);
    params.bookmarks = true;
    let maps = maps(site);
    let mut events = maps
        .watch(&params, &version(&made))
        .await
        .expect("a watch")
        .boxed();
    let all = async {
        while let Some(event) = events.next().await {
            let event = event.expect("an event");
            assert!(matches!(event, WatchEvent::Bookmark(_)), "{event:?}");
        }
    };
    tokio::time::timeout(PATIENCE, all).await.expect("an end");
}

pub(super) async fn times_are_those_of_the_clock(site: &Site) {
    let (path, made) = site
        .map("x", json!({"finalizers": ["conformance.test/f"]}))
        .await;
    let now = k8s_openapi::jiff::Timestamp::now();
    let is_now = |time: &Value| {
        let time = time.as_str().expect("a time");
        let time: k8s_openapi::jiff::Timestamp = time.parse().expect("a time");
        assert!((time.as_second() - now.as_second()).abs() < 120, "{time}");
    };
    is_now(&made["metadata"]["creationTimestamp"]);
    site.delete(&path, json!({})).await.code(200);
    let marked = site.get(&path).await.code(200);
    is_now(&marked["metadata"]["deletionTimestamp"]);
    assert_eq!(marked["metadata"]["deletionGracePeriodSeconds"], 0);
    site.merge(&path, json!({"metadata": {"finalizers": null}}))
        .await
        .code(200);
}

pub(super) async fn an_object_waits_for_what_it_owns_if_asked(site: &Site) {
    for (policy, finalizer) in [("Foreground", "foregroundDeletion"), ("Orphan", "orphan")] {
        let hold = json!({"finalizers": ["conformance.test/f"]});
        let (path, _) = site.map(&policy.to_lowercase(), hold).await;
        let marked = site
            .delete(&path, json!({"propagationPolicy": policy}))
            .await
            .code(200);
        let finalizers = marked["metadata"]["finalizers"]
            .as_array()
            .expect("finalizers");
        assert!(finalizers.contains(&json!(finalizer)), "{marked}");
        site.merge(&path, json!({"metadata": {"finalizers": null}}))
            .await
            .code(200);
    }
}

pub(super) async fn an_ending_namespace_takes_nothing_new(site: &Site) {
    let name = format!("{}-ends", site.namespace);
    let space = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}});
    let made = site.post(NAMESPACES, space).await.code(201);
    assert_eq!(made["spec"]["finalizers"], json!(["kubernetes"]));
    assert_eq!(made["status"]["phase"], "Active");
    let maps = format!("{NAMESPACES}/{name}/configmaps");
    let map = |name: &str| {
        json!({"apiVersion": "v1", "kind": "ConfigMap",
            "metadata": {"name": name, "finalizers": ["conformance.test/f"]}})
    };
    site.post(&maps, map("x")).await.code(201);
    let path = format!("{NAMESPACES}/{name}");
    let marked = site.delete(&path, json!({})).await.code(200);
    assert_eq!(marked["status"]["phase"], "Terminating");
    let refused = site.post(&maps, map("y")).await;
    let cause = refused.body["details"]["causes"][0]["reason"].clone();
    let message = refused.failed(403, "Forbidden");
    assert_eq!(cause, "NamespaceTerminating");
    assert!(
        message.ends_with("because it is being terminated"),
        "{message}"
    );
    // What is there can still change.
    let changed = json!({"metadata": {"finalizers": null}, "data": {"a": "1"}});
    site.merge(&format!("{maps}/x"), changed).await.code(200);
    let missing = format!("{NAMESPACES}/{}-missing/configmaps", site.namespace);
    let message = site.post(&missing, map("x")).await.failed(404, "NotFound");
    assert_eq!(
        message,
        format!("namespaces \"{}-missing\" not found", site.namespace)
    );
}

pub(super) async fn a_pod_is_assigned_once_and_ends_in_its_time(site: &Site) {
    let pods = format!("{NAMESPACES}/{}/pods", site.namespace);
    let name = format!("{}-x", site.prefix);
    let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name},
        "spec": {"automountServiceAccountToken": false,
            "schedulerName": "none", "containers": [{"name": "c", "image": "none"}]}});
    // A namespace's service account appears some time after it.
    let mut made = site.post(&pods, pod.clone()).await;
    let end = Instant::now() + PATIENCE;
    while made.code != 201 && Instant::now() < end {
        tokio::time::sleep(Duration::from_millis(200)).await;
        made = site.post(&pods, pod.clone()).await;
    }
    let made = made.code(201);
    assert_eq!(made["status"]["phase"], "Pending");
    assert_eq!(made["spec"]["terminationGracePeriodSeconds"], 30);
    assert_eq!(made["spec"]["restartPolicy"], "Always");
    let path = format!("{pods}/{name}");
    let binding = json!({"apiVersion": "v1", "kind": "Binding", "metadata": {"name": name},
        "target": {"apiVersion": "v1", "kind": "Node", "name": "conformance-none"}});
    site.post(&format!("{path}/binding"), binding.clone())
        .await
        .code(201);
    let bound = site.get(&path).await.code(200);
    assert_eq!(bound["spec"]["nodeName"], "conformance-none");
    let conditions = bound["status"]["conditions"]
        .as_array()
        .expect("conditions");
    let is_met = |one: &Value| one["type"] == "PodScheduled" && one["status"] == "True";
    assert!(conditions.iter().any(is_met), "{bound}");
    site.post(&format!("{path}/binding"), binding)
        .await
        .failed(409, "Conflict");
    site.merge(&path, json!({"spec": {"nodeName": "other"}}))
        .await
        .failed(422, "Invalid");
    let ending = site.delete(&path, json!({})).await.code(200);
    assert_eq!(ending["metadata"]["deletionGracePeriodSeconds"], 30);
    // Kubelet deletes it at last.
    site.merge(
        &format!("{path}/status"),
        json!({"status": {"message": "m"}}),
    )
    .await
    .code(200);
    site.get(&path).await.code(200);
    site.delete(&path, json!({"gracePeriodSeconds": 0}))
        .await
        .code(200);
    site.get(&path).await.failed(404, "NotFound");
}

pub(super) async fn custom_objects_count_their_changes(site: &Site) {
    let group = format!("{}-count.test", site.namespace);
    let definitions = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
    let definition = json!({"apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition", "metadata": {"name": format!("counts.{group}")},
        "spec": {"group": group, "scope": "Namespaced",
            "names": {"kind": "Count", "plural": "counts"},
            "versions": [{"name": "v1", "served": true, "storage": true,
                "subresources": {"status": {}},
                "schema": {"openAPIV3Schema":
                    {"type": "object", "x-kubernetes-preserve-unknown-fields": true}}}]}});
    site.post(definitions, definition).await.code(201);
    let counts = format!("/apis/{group}/v1/namespaces/{}/counts", site.namespace);
    let object = json!({"apiVersion": format!("{group}/v1"), "kind": "Count",
        "metadata": {"name": "x", "finalizers": ["conformance.test/f"]}, "a": 1});
    let mut made = site.post(&counts, object.clone()).await;
    let end = Instant::now() + PATIENCE;
    while made.code != 201 && Instant::now() < end {
        tokio::time::sleep(Duration::from_millis(100)).await;
        made = site.post(&counts, object.clone()).await;
    }
    assert_eq!(made.code(201)["metadata"]["generation"], 1);
    let path = format!("{counts}/x");
    for (place, change, expected) in [
        (path.clone(), json!({"metadata": {"labels": {"l": "1"}}}), 1),
        (format!("{path}/status"), json!({"status": {"b": 1}}), 1),
        (path.clone(), json!({"a": 2}), 2),
        (path.clone(), json!({"a": 2}), 2),
    ] {
        let changed = site.merge(&place, change).await.code(200);
        assert_eq!(changed["metadata"]["generation"], expected, "{changed}");
    }
    let marked = site.delete(&path, json!({})).await.code(200);
    assert_eq!(marked["metadata"]["generation"], 3);
    site.merge(&path, json!({"metadata": {"finalizers": null}}))
        .await
        .code(200);
    site.delete(&format!("{definitions}/counts.{group}"), json!({}))
        .await
        .code(200);
}
