//! Histories of short clusters, with all models of controllers and a user.

use std::time::Duration;

use futures::FutureExt;
use futures::future::{BoxFuture, join_all};
use hostloop_fake_api::FakeApi;
use kube::Client;
use serde_json::{Value, json};
use tokio::task::JoinHandle;
use tokio::time::sleep;

use super::attach_detach::AttachDetach;
use super::binder::Binder;
use super::ephemeral::Ephemeral;
use super::garbage::Garbage;
use super::namespaces::Namespaces;
use super::protection::Protection;
use super::scheduler::Scheduler;
use super::view::{
    SELECTED_NODE, Step, annotation, condition, is_deleting, items, name, run, text, write,
};

mod attachments;

const DRIVER: &str = "csi.example";
const NODE: &str = "topology.example/node";

/// Runs all of them until it is dropped.
async fn controllers(api: &FakeApi) {
    let client = |who: &str| api.connect(who).client();
    let all: [BoxFuture<'_, ()>; 7] = [
        run(client("persistentvolume-controller"), Binder::default()).boxed(),
        run(client("volume-protection"), Protection).boxed(),
        run(client("attachdetach-controller"), AttachDetach::default()).boxed(),
        run(client("scheduler"), Scheduler::default()).boxed(),
        run(client("garbage-collector"), Garbage).boxed(),
        run(client("namespace-controller"), Namespaces).boxed(),
        run(client("ephemeral-volume-controller"), Ephemeral).boxed(),
    ];
    join_all(all).await;
}

/// A cluster with two nodes and the controllers, and a user.
struct Cluster {
    api: FakeApi,
    user: Client,
    _controllers: JoinHandle<()>,
}

impl Cluster {
    async fn new(driver: Value) -> Cluster {
        let api = FakeApi::cluster();
        let running = api.clone();
        let controllers = tokio::spawn(async move { controllers(&running).await });
        let cluster = Cluster {
            user: api.connect("user").client(),
            api,
            _controllers: controllers,
        };
        cluster
            .make(
                "csidrivers",
                json!({"metadata": {"name": DRIVER}, "spec": driver}),
            )
            .await;
        for node in ["node-1", "node-2"] {
            let ready = json!([{"type": "Ready", "status": "True"}]);
            cluster.api.put(json!({"apiVersion": "v1", "kind": "Node",
                "metadata": {"name": node, "labels": {NODE: node}},
                "status": {"conditions": ready}}));
        }
        for (class, mode) in [("now", "Immediate"), ("later", "WaitForFirstConsumer")] {
            let class = json!({"metadata": {"name": class}, "provisioner": DRIVER,
                "volumeBindingMode": mode});
            cluster.make("storageclasses", class).await;
        }
        cluster.settle().await;
        cluster
    }

    /// Lets the controllers act.
    async fn settle(&self) {
        sleep(Duration::from_secs(40)).await;
    }

    async fn make(&self, plural: &str, mut object: Value) -> Value {
        let (version, kind) = match plural {
            "csidrivers" => ("storage.k8s.io/v1", "CSIDriver"),
            "storageclasses" => ("storage.k8s.io/v1", "StorageClass"),
            "volumeattributesclasses" => ("storage.k8s.io/v1", "VolumeAttributesClass"),
            "persistentvolumeclaims" => ("v1", "PersistentVolumeClaim"),
            "persistentvolumes" => ("v1", "PersistentVolume"),
            "pods" => ("v1", "Pod"),
            "namespaces" => ("v1", "Namespace"),
            other => panic!("{other}"),
        };
        object["apiVersion"] = json!(version);
        object["kind"] = json!(kind);
        write(&self.user, &Step::create(plural, object))
            .await
            .expect("a new object")
    }

    async fn claim(&self, name: &str, class: &str) -> Value {
        let spec = json!({"accessModes": ["ReadWriteOnce"], "storageClassName": class,
            "resources": {"requests": {"storage": "1Gi"}}});
        let metadata = json!({"name": name, "namespace": "default"});
        self.make(
            "persistentvolumeclaims",
            json!({"metadata": metadata, "spec": spec}),
        )
        .await
    }

    async fn pod(&self, name: &str, claim: &str) -> Value {
        let volume = json!({"name": "v", "persistentVolumeClaim": {"claimName": claim}});
        self.pod_with(name, volume).await
    }

    async fn pod_with(&self, name: &str, volume: Value) -> Value {
        let metadata = json!({"name": name, "namespace": "default"});
        self.make(
            "pods",
            json!({"metadata": metadata, "spec": {"volumes": [volume]}}),
        )
        .await
    }

    async fn volume(&self, name: &str, class: &str, size: &str, change: Value) -> Value {
        let mut spec = json!({"accessModes": ["ReadWriteOnce"], "storageClassName": class,
            "capacity": {"storage": size}, "csi": {"driver": DRIVER, "volumeHandle": name}});
        for (field, value) in change.as_object().expect("fields") {
            spec[field] = value.clone();
        }
        self.make(
            "persistentvolumes",
            json!({"metadata": {"name": name}, "spec": spec}),
        )
        .await
    }

    async fn delete(&self, plural: &str, object: &Value) {
        write(&self.user, &Step::delete(plural, object))
            .await
            .expect("a deletion");
    }

    fn get(&self, path: &str) -> Value {
        self.api
            .get(path)
            .unwrap_or_else(|| panic!("{path} is there"))
    }

    fn claim_now(&self, name: &str) -> Value {
        self.get(&format!("persistentvolumeclaims/{name}"))
    }

    /// The events about an object, as `Reason: message`.
    fn events(&self, about: &str) -> Vec<String> {
        let events = self.api.all("events");
        let events = events
            .iter()
            .filter(|event| text(event, "/involvedObject/name") == about);
        let line =
            |event: &Value| format!("{}: {}", text(event, "/reason"), text(event, "/message"));
        events.map(line).collect()
    }

    /// Provisions a claim on its node, as a driver's controller does.
    async fn provision(&self, claim: &str, node: &str) {
        let claim = self.claim_now(claim);
        let reference = json!({"kind": "PersistentVolumeClaim", "apiVersion": "v1",
            "namespace": "default", "name": name(&claim), "uid": claim["metadata"]["uid"]});
        let affinity = json!({"required": {"nodeSelectorTerms": [{"matchExpressions":
            [{"key": NODE, "operator": "In", "values": [node]}]}]}});
        let change = json!({"claimRef": reference, "nodeAffinity": affinity,
            "persistentVolumeReclaimPolicy": "Delete"});
        let class = text(&claim, "/spec/storageClassName");
        self.volume(&format!("pv-{}", name(&claim)), class, "1Gi", change)
            .await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_claim_is_provisioned_bound_and_released() {
    let cluster = Cluster::new(json!({})).await;
    let claim = cluster.claim("a", "now").await;
    cluster.settle().await;
    let asked = cluster.claim_now("a");
    assert_eq!(
        annotation(&asked, "volume.kubernetes.io/storage-provisioner"),
        Some(DRIVER)
    );
    assert!(cluster.events("a")[0].starts_with("ExternalProvisioning: Waiting for a volume"));
    cluster.provision("a", "node-1").await;
    cluster.settle().await;
    let bound = cluster.claim_now("a");
    assert_eq!(bound["status"]["phase"], "Bound");
    assert_eq!(bound["status"]["capacity"]["storage"], "1Gi");
    assert_eq!(bound["spec"]["volumeName"], "pv-a");
    assert_eq!(
        cluster.get("persistentvolumes/pv-a")["status"]["phase"],
        "Bound"
    );
    cluster.delete("persistentvolumeclaims", &claim).await;
    cluster.settle().await;
    assert!(cluster.api.get("persistentvolumeclaims/a").is_none());
    assert_eq!(
        cluster.get("persistentvolumes/pv-a")["status"]["phase"],
        "Released"
    );
}

#[tokio::test(start_paused = true)]
async fn the_smallest_volume_that_suits_is_bound() {
    let cluster = Cluster::new(json!({})).await;
    for (name, size) in [("large", "9Gi"), ("small", "512Mi"), ("right", "2Gi")] {
        cluster.volume(name, "static", size, json!({})).await;
    }
    cluster.settle().await;
    cluster.claim("a", "static").await;
    cluster.settle().await;
    let bound = cluster.claim_now("a");
    assert_eq!(bound["spec"]["volumeName"], "right");
    assert_eq!(bound["status"]["capacity"]["storage"], "2Gi");
    // Its volume is gone, and the claim is lost.
    cluster.api.take("persistentvolumes/right");
    cluster.settle().await;
    assert_eq!(cluster.claim_now("a")["status"]["phase"], "Lost");
    assert!(
        cluster
            .events("a")
            .iter()
            .any(|event| event.starts_with("ClaimLost"))
    );
}

#[tokio::test(start_paused = true)]
async fn a_claim_that_grows_waits_for_a_resizer() {
    let cluster = Cluster::new(json!({})).await;
    cluster.claim("a", "now").await;
    cluster.settle().await;
    cluster.provision("a", "node-1").await;
    cluster.settle().await;
    let waits = "ExternalExpanding: waiting for an external controller to expand this PVC";
    assert!(!cluster.events("a").contains(&waits.to_owned()));
    let mut grown = cluster.claim_now("a");
    grown["spec"]["resources"]["requests"]["storage"] = json!("2Gi");
    cluster.api.put(grown);
    cluster.settle().await;
    assert!(
        cluster.events("a").contains(&waits.to_owned()),
        "{:?}",
        cluster.events("a")
    );
    assert_eq!(
        cluster.claim_now("a")["status"]["capacity"]["storage"],
        "1Gi"
    );
}

#[tokio::test(start_paused = true)]
async fn a_bound_claim_says_whether_no_pod_needs_it() {
    let cluster = Cluster::new(json!({})).await;
    cluster.claim("a", "now").await;
    cluster.settle().await;
    assert_eq!(condition(&cluster.claim_now("a"), "Unused"), None);
    cluster.provision("a", "node-1").await;
    cluster.settle().await;
    assert_eq!(condition(&cluster.claim_now("a"), "Unused"), Some("True"));
    cluster.pod("p", "a").await;
    cluster.settle().await;
    assert_eq!(condition(&cluster.claim_now("a"), "Unused"), Some("False"));
    let mut ended = cluster.get("pods/p");
    ended["status"] = json!({"phase": "Succeeded"});
    cluster.api.put(ended);
    cluster.settle().await;
    assert_eq!(condition(&cluster.claim_now("a"), "Unused"), Some("True"));
}

#[tokio::test(start_paused = true)]
async fn a_volume_that_names_a_claim_is_kept_for_it() {
    let cluster = Cluster::new(json!({})).await;
    let reference = json!({"claimRef": {"namespace": "default", "name": "b"}});
    cluster.volume("kept", "static", "1Gi", reference).await;
    cluster.settle().await;
    assert_eq!(
        cluster.get("persistentvolumes/kept")["status"]["phase"],
        "Available"
    );
    cluster.claim("a", "static").await;
    cluster.claim("b", "static").await;
    cluster.settle().await;
    assert_eq!(cluster.claim_now("a")["status"]["phase"], "Pending");
    assert_eq!(cluster.claim_now("b")["spec"]["volumeName"], "kept");
    let volume = cluster.get("persistentvolumes/kept");
    assert_eq!(
        volume["spec"]["claimRef"]["uid"],
        cluster.claim_now("b")["metadata"]["uid"]
    );
    assert_eq!(
        annotation(&volume, "pv.kubernetes.io/bound-by-controller"),
        None
    );
}

#[tokio::test(start_paused = true)]
async fn a_claim_waits_for_its_pod_and_the_pod_for_its_volume() {
    let cluster = Cluster::new(json!({})).await;
    cluster.claim("a", "later").await;
    cluster.settle().await;
    let waits = "WaitForFirstConsumer: waiting for first consumer to be created before binding";
    assert_eq!(cluster.events("a"), [waits]);
    let pod = cluster.pod("p", "a").await;
    cluster.settle().await;
    let selected = cluster.claim_now("a");
    let node = annotation(&selected, SELECTED_NODE).expect("a node");
    assert!(text(&cluster.get("pods/p"), "/spec/nodeName").is_empty());
    cluster.provision("a", node).await;
    cluster.settle().await;
    assert_eq!(cluster.get("pods/p")["spec"]["nodeName"], node);
    // The claim stays until its pod is gone.
    cluster.delete("persistentvolumeclaims", &selected).await;
    cluster.settle().await;
    assert!(is_deleting(&cluster.claim_now("a")));
    cluster.delete("pods", &pod).await;
    cluster.settle().await;
    assert!(
        is_deleting(&cluster.claim_now("a")),
        "the pod has 30 seconds, and no kubelet ends it"
    );
    cluster.api.take("pods/p");
    cluster.settle().await;
    assert!(cluster.api.get("persistentvolumeclaims/a").is_none());
}

#[tokio::test(start_paused = true)]
async fn a_pod_goes_where_there_is_room() {
    let cluster = Cluster::new(json!({"storageCapacity": true})).await;
    cluster.claim("a", "later").await;
    cluster.pod("p", "a").await;
    cluster.settle().await;
    let why =
        "FailedScheduling: 0/2 nodes are available: 2 node(s) did not have enough free storage.";
    assert_eq!(cluster.events("p"), [why]);
    let condition = &cluster.get("pods/p")["status"]["conditions"][0];
    assert_eq!(
        (&condition["status"], &condition["reason"]),
        (&json!("False"), &json!("Unschedulable"))
    );
    for (node, capacity) in [("node-1", "1023Mi"), ("node-2", "1Gi")] {
        cluster.api.put(
            json!({"apiVersion": "storage.k8s.io/v1", "kind": "CSIStorageCapacity",
            "metadata": {"name": node, "namespace": "kube-system"}, "storageClassName": "later",
            "nodeTopology": {"matchLabels": {NODE: node}}, "capacity": capacity}),
        );
    }
    cluster.settle().await;
    let claim = cluster.claim_now("a");
    assert_eq!(annotation(&claim, SELECTED_NODE), Some("node-2"));
    // The provisioner takes the node back: the scheduler looks again.
    let back = json!({"metadata": {"annotations": {SELECTED_NODE: null}}});
    write(
        &cluster.user,
        &Step::merge("persistentvolumeclaims", &claim, back),
    )
    .await
    .expect("a change");
    cluster.settle().await;
    let failed = "FailedScheduling: binding volumes: provisioning failed for PVC \"a\"";
    assert!(
        cluster.events("p").contains(&failed.to_owned()),
        "{:?}",
        cluster.events("p")
    );
    let claim = cluster.claim_now("a");
    assert_eq!(annotation(&claim, SELECTED_NODE), Some("node-2"));
}

#[tokio::test(start_paused = true)]
async fn a_pod_with_an_unbound_immediate_claim_waits() {
    let cluster = Cluster::new(json!({})).await;
    cluster.pod("p", "a").await;
    cluster.settle().await;
    cluster.claim("a", "now").await;
    cluster.settle().await;
    let none = "FailedScheduling: 0/2 nodes are available: ";
    let expected = [
        format!("{none}persistentvolumeclaim \"a\" not found."),
        format!("{none}pod has unbound immediate PersistentVolumeClaims."),
    ];
    assert_eq!(cluster.events("p"), expected);
    let cordon = |is_cordoned: bool| {
        let mut node = cluster.get("nodes/node-2");
        node["spec"]["unschedulable"] = json!(is_cordoned);
        cluster.api.put(node);
    };
    cordon(true);
    cluster.provision("a", "node-2").await;
    cluster.settle().await;
    let far = "1 node(s) didn't match PersistentVolume's node affinity";
    let expected = format!("{none}{far}, 1 node(s) were unschedulable.");
    assert_eq!(cluster.events("p").last(), Some(&expected));
    cordon(false);
    cluster.settle().await;
    assert_eq!(cluster.get("pods/p")["spec"]["nodeName"], "node-2");
}

/// The scheduler looks for all claims of a pod before it says that one has no volume.
#[tokio::test(start_paused = true)]
async fn a_missing_claim_is_named_before_an_unbound_one() {
    let cluster = Cluster::new(json!({})).await;
    cluster.claim("a", "now").await;
    let volumes = ["a", "b"]
        .map(|claim| json!({"name": claim, "persistentVolumeClaim": {"claimName": claim}}));
    let metadata = json!({"name": "p", "namespace": "default"});
    let pod = json!({"metadata": metadata, "spec": {"volumes": volumes}});
    cluster.make("pods", pod).await;
    cluster.settle().await;
    let missing = "persistentvolumeclaim \"b\" not found.";
    let expected = format!("FailedScheduling: 0/2 nodes are available: {missing}");
    assert_eq!(cluster.events("p"), [expected]);
}

#[tokio::test(start_paused = true)]
async fn a_pods_ephemeral_claim_comes_and_goes_with_it() {
    let cluster = Cluster::new(json!({})).await;
    let spec = json!({"accessModes": ["ReadWriteOnce"], "storageClassName": "later",
        "resources": {"requests": {"storage": "1Gi"}}});
    let template = json!({"metadata": {"labels": {"l": "1"}}, "spec": spec});
    let volume = json!({"name": "v", "ephemeral": {"volumeClaimTemplate": template}});
    let pod = cluster.pod_with("p", volume).await;
    cluster.settle().await;
    let claim = cluster.claim_now("p-v");
    assert_eq!(claim["metadata"]["labels"]["l"], "1");
    assert_eq!(
        claim["metadata"]["ownerReferences"][0]["uid"],
        pod["metadata"]["uid"]
    );
    assert!(annotation(&claim, SELECTED_NODE).is_some());
    cluster.delete("pods", &pod).await;
    cluster.settle().await;
    assert!(cluster.api.get("persistentvolumeclaims/p-v").is_none());
}

#[tokio::test(start_paused = true)]
async fn what_a_pod_owns_goes_before_it_or_stays_if_its_deletion_says_so() {
    for (policy, stays) in [("Foreground", false), ("Orphan", true)] {
        let cluster = Cluster::new(json!({})).await;
        let spec = json!({"accessModes": ["ReadWriteOnce"], "storageClassName": "later",
            "resources": {"requests": {"storage": "1Gi"}}});
        let volume = json!({"name": "v", "ephemeral": {"volumeClaimTemplate": {"spec": spec}}});
        let pod = cluster.pod_with("p", volume).await;
        cluster.settle().await;
        let mut claim = cluster.claim_now("p-v");
        claim["metadata"]["finalizers"] = json!(["example.com/held"]);
        cluster.api.put(claim);
        let mut step = Step::delete("pods", &pod);
        step.body["propagationPolicy"] = json!(policy);
        write(&cluster.user, &step).await.expect("a deletion");
        cluster.settle().await;
        let claim = cluster.claim_now("p-v");
        assert_eq!(
            (is_deleting(&claim), cluster.api.get("pods/p").is_none()),
            (!stays, stays)
        );
        assert_eq!(
            items(&claim, "/metadata/ownerReferences").count(),
            usize::from(!stays)
        );
        cluster.api.take("persistentvolumeclaims/p-v");
        cluster.settle().await;
        assert!(cluster.api.get("pods/p").is_none());
    }
}

#[tokio::test(start_paused = true)]
async fn a_namespace_takes_all_with_it_and_pods_first() {
    let cluster = Cluster::new(json!({})).await;
    let space = cluster
        .make("namespaces", json!({"metadata": {"name": "s"}}))
        .await;
    let metadata = |name: &str| {
        json!({"name": name, "namespace": "s",
        "finalizers": ["example.com/held"]})
    };
    let spec = json!({"accessModes": ["ReadWriteOnce"], "storageClassName": "later",
        "resources": {"requests": {"storage": "1Gi"}}});
    cluster
        .make(
            "persistentvolumeclaims",
            json!({"metadata": metadata("a"), "spec": spec}),
        )
        .await;
    cluster
        .make("pods", json!({"metadata": metadata("p"), "spec": {}}))
        .await;
    cluster.delete("namespaces", &space).await;
    cluster.settle().await;
    assert!(is_deleting(&cluster.get("s/pods/p")));
    assert!(!is_deleting(&cluster.claim_now("a")), "pods go first");
    cluster.api.take("s/pods/p");
    cluster.settle().await;
    assert!(is_deleting(&cluster.claim_now("a")));
    assert!(cluster.api.get("namespaces/s").is_some());
    cluster.api.take("persistentvolumeclaims/a");
    cluster.settle().await;
    assert!(cluster.api.get("namespaces/s").is_none());
}

#[tokio::test(start_paused = true)]
async fn an_attributes_class_stays_while_a_claim_names_it() {
    const CLASSES: &str = "volumeattributesclasses";
    let cluster = Cluster::new(json!({})).await;
    let class = json!({"metadata": {"name": "fast"}, "driverName": DRIVER});
    let class = cluster.make(CLASSES, class).await;
    let spec = json!({"accessModes": ["ReadWriteOnce"], "storageClassName": "none",
        "volumeAttributesClassName": "fast", "resources": {"requests": {"storage": "1Gi"}}});
    let claim = json!({"metadata": {"name": "a", "namespace": "default"}, "spec": spec});
    let claim = cluster.make("persistentvolumeclaims", claim).await;
    cluster.settle().await;
    cluster.delete(CLASSES, &class).await;
    cluster.settle().await;
    assert!(is_deleting(&cluster.get("volumeattributesclasses/fast")));
    cluster.delete("persistentvolumeclaims", &claim).await;
    cluster.settle().await;
    assert!(cluster.api.get("volumeattributesclasses/fast").is_none());
}

#[tokio::test(start_paused = true)]
async fn the_controllers_outlive_outages_ends_and_forgotten_versions() {
    let cluster = Cluster::new(json!({})).await;
    cluster.api.go_away();
    sleep(Duration::from_secs(10)).await;
    cluster.api.come_back();
    cluster.claim("a", "now").await;
    cluster.api.end_watches();
    cluster.api.compact();
    cluster.settle().await;
    let claim = cluster.claim_now("a");
    assert_eq!(
        annotation(&claim, "volume.kubernetes.io/storage-provisioner"),
        Some(DRIVER)
    );
}

#[tokio::test(start_paused = true)]
async fn at_rest_the_controllers_write_nothing() {
    let cluster = Cluster::new(json!({"attachRequired": true})).await;
    cluster.claim("a", "later").await;
    cluster.claim("b", "nowhere").await;
    cluster.pod("p", "b").await;
    cluster.volume("static", "none", "1Gi", json!({})).await;
    sleep(Duration::from_secs(600)).await;
    cluster.api.writes();
    sleep(Duration::from_secs(3600)).await;
    assert_eq!(cluster.api.writes(), [""; 0]);
}
