//! Histories of volumes that are attached to the nodes of their pods.

use std::time::Duration;

use serde_json::{Value, json};
use tokio::time::sleep;

use super::Cluster;
use crate::model::attach_detach::{attachment_name, unique_name};
use crate::model::view::{is_deleting, items, text};

/// A cluster with a pod on a volume that is to be attached, the volume, and the path of its attachment.
async fn attaching(pod: &str) -> (Cluster, Value, String) {
    let cluster = Cluster::new(json!({"attachRequired": true})).await;
    cluster.claim("a", "now").await;
    cluster.settle().await;
    cluster.provision("a", "node-1").await;
    cluster.pod(pod, "a").await;
    cluster.settle().await;
    let volume = cluster.get("persistentvolumes/pv-a");
    let path = format!("volumeattachments/{}", attachment_name(&volume, "node-1"));
    (cluster, volume, path)
}

#[tokio::test(start_paused = true)]
async fn a_volume_is_attached_where_its_pod_is_and_detached_when_unused() {
    let (cluster, volume, path) = attaching("p").await;
    let mut attachment = cluster.get(&path);
    assert_eq!(attachment["spec"]["source"]["persistentVolumeName"], "pv-a");
    let attached = |cluster: &Cluster| {
        let node = cluster.get("nodes/node-1");
        items(&node, "/status/volumesAttached")
            .map(|one| text(one, "/name").to_owned())
            .collect::<Vec<_>>()
    };
    assert_eq!(attached(&cluster), [""; 0]);
    attachment["status"]["attached"] = json!(true);
    cluster.api.put(attachment);
    cluster.settle().await;
    assert_eq!(attached(&cluster), [unique_name(&volume)]);
    let in_use = |volumes: Value| {
        let mut node = cluster.get("nodes/node-1");
        node["status"]["volumesInUse"] = volumes;
        cluster.api.put(node);
    };
    in_use(json!([unique_name(&volume)]));
    cluster.api.take("pods/p");
    cluster.settle().await;
    assert!(!is_deleting(&cluster.get(&path)), "the node uses it");
    in_use(json!([]));
    cluster.settle().await;
    assert!(cluster.api.get(&path).is_none());
    assert_eq!(attached(&cluster), [""; 0]);
}

#[tokio::test(start_paused = true)]
async fn a_volume_leaves_a_dead_node_after_six_minutes() {
    let (cluster, volume, path) = attaching("p").await;
    let mut node = cluster.get("nodes/node-1");
    node["status"] = json!({"conditions": [{"type": "Ready", "status": "Unknown"}],
        "volumesInUse": [unique_name(&volume)]});
    cluster.api.put(node);
    cluster.api.take("pods/p");
    sleep(Duration::from_secs(300)).await;
    assert!(cluster.api.get(&path).is_some());
    sleep(Duration::from_secs(180)).await;
    assert!(cluster.api.get(&path).is_none());
}

#[tokio::test(start_paused = true)]
async fn each_pod_of_a_volume_learns_why_it_is_not_attached() {
    let (cluster, _, path) = attaching("first").await;
    let mut attachment = cluster.get(&path);
    attachment["status"]["attachError"] = json!({"message": "no"});
    cluster.api.put(attachment);
    cluster.settle().await;
    cluster.pod("second", "a").await;
    cluster.settle().await;
    let failed = "FailedAttachVolume: AttachVolume.Attach failed for volume \"pv-a\" : no";
    for pod in ["first", "second"] {
        let events = cluster.events(pod);
        assert!(events.iter().any(|event| event == failed), "{events:?}");
    }
}
