use super::*;

fn of(kind: &str, name: &str) -> Value {
    let group = match kind {
        "VolumeSnapshot" => Some("snapshot.storage.k8s.io"),
        _ => None,
    };
    json!({"spec": {"dataSource": {"apiGroup": group, "kind": kind, "name": name}}})
}

/// Removes the provisioner annotation, as on a new claim with late binding.
fn unasked(mut more: Value) -> Value {
    more["metadata"] = json!({"annotations": {PROVISIONER: null}});
    more
}

impl Rig {
    /// Adds the source claim `data` with a volume on this node.
    fn source_on(&self, node: &str) {
        self.claim("data", "late", json!({"spec": {"volumeName": "v"}}));
        self.volume("v", node, "h", "data");
    }

    fn snapshot(&self, name: &str, content: Option<&str>) {
        let snapshot = json!({"kind": "VolumeSnapshot",
            "metadata": {"name": name, "namespace": "shop"}, "spec": {"source": {}},
            "status": {"boundVolumeSnapshotContentName": content, "readyToUse": true}});
        self.world
            .add(&self.world.context.caches.snapshots(), snapshot);
    }

    pub(super) fn content(&self, name: &str, source: Value, labels: Value) {
        let content = json!({"kind": "VolumeSnapshotContent",
            "metadata": {"name": name, "labels": labels},
            "spec": {"driver": DRIVER, "deletionPolicy": "Delete", "source": source,
                "volumeSnapshotRef": {"name": "s", "namespace": "shop"}}});
        self.world
            .add(&self.world.context.caches.contents(), content);
    }
}

#[tokio::test]
async fn a_clone_goes_where_its_source_is() {
    let mut rig = Rig::new(&["n1", "n2"]);
    rig.room("n1", "now", 100);
    for (name, class) in [("a", "late"), ("b", "now")] {
        let more = match class {
            "late" => unasked(of("PersistentVolumeClaim", "data")),
            _ => of("PersistentVolumeClaim", "data"),
        };
        rig.claim(name, class, more);
        assert_eq!(rig.work(name).await, Outcome::Failed, "{name}");
    }
    let events = rig.world.events();
    assert_eq!(
        events[0],
        "Normal WaitingForSource: waiting for the source of the claim: PersistentVolumeClaim \
         data does not exist"
    );
    assert_eq!(events.len(), 2);
    rig.source_on("n2");
    for name in ["a", "b"] {
        assert_eq!(rig.work(name).await, Outcome::Done, "{name}");
        assert_eq!(rig.placed(name), on("n2"), "{name}");
    }
    assert!(rig.world.events().is_empty());
}

#[tokio::test]
async fn the_node_of_the_source_replaces_the_scheduler_s_choice() {
    let mut rig = Rig::new(&["n1", "n2"]);
    rig.source_on("n2");
    let mut more = of("PersistentVolumeClaim", "data");
    more["metadata"] = json!({"annotations": {SELECTED_NODE: "n1"}});
    rig.claim("a", "late", more);
    assert_eq!(rig.work("a").await, Outcome::Done);
    assert_eq!(rig.placed("a"), on("n2"));
    assert_eq!((rig.reserved("n1"), rig.reserved("n2")), (0, 10));
    let events = rig.world.events();
    assert!(
        events[0].starts_with("Normal NodeReselected: node n2 has the source"),
        "{events:?}"
    );
}

/// All nodes of a kernel can use the source, and only one of them can copy it.
#[tokio::test]
async fn a_clone_of_a_shared_volume_goes_to_the_node_that_has_it() {
    let rig = Rig::new(&["n1", "n2", "n3"]);
    rig.room("n3", "now", 5);
    for (source, handle, label, node) in [
        ("by-pool", "vol-pooln3-1", "n3", "n3"),
        ("by-label", "vol-unknown-1", "n2", "n2"),
    ] {
        rig.claim(source, "late", json!({"spec": {"volumeName": source}}));
        rig.volume(source, "n1", handle, source);
        let volume = rig.world.api.get(&format!("persistentvolumes/{source}"));
        let volume = crate::testing::shared(volume.expect("it"), "t/node", &["n1", "n2", "n3"]);
        let labels = json!({"metadata": {"labels": {NODE_LABEL: label}, "resourceVersion": null}});
        rig.world
            .add(&rig.world.context.caches.volumes(), with(volume, labels));
        let claim = format!("of-{source}");
        let mut more = of("PersistentVolumeClaim", source);
        more["metadata"] = json!({"annotations": {SELECTED_NODE: "n1"}});
        rig.claim(&claim, "late", more);
        assert_eq!(rig.work(&claim).await, Outcome::Done, "{source}");
        assert_eq!(rig.placed(&claim), on(node), "{source}");
    }
}

#[tokio::test]
async fn a_restored_volume_goes_where_its_snapshot_is() {
    let rig = Rig::new(&["n1", "n2", "n3"]);
    rig.room("n3", "now", 5);
    rig.volume("v", "n1", "vol-x-1", "gone");
    let of_volume = || json!({"volumeHandle": "vol-x-1"});
    let existing = json!({"snapshotHandle": "snap-pooln3-1"});
    for (snapshot, source, labels, node) in [
        ("by-label", of_volume(), json!({MANAGED_BY: "n2"}), "n2"),
        ("by-volume", of_volume(), json!({}), "n1"),
        // The capacity is less than the size needed, but the driver may share blocks.
        ("made-before", existing, json!({}), "n3"),
    ] {
        let content = format!("content-{snapshot}");
        rig.snapshot(snapshot, Some(&content));
        rig.content(&content, source, labels);
        let claim = format!("claim-{snapshot}");
        rig.claim(&claim, "late", unasked(of("VolumeSnapshot", snapshot)));
        assert_eq!(rig.work(&claim).await, Outcome::Done, "{snapshot}");
        assert_eq!(rig.placed(&claim), on(node), "{snapshot}");
    }
    // No volume with this handle is bound in the namespace: it may belong to another user.
    rig.snapshot("stolen", Some("content-stolen"));
    rig.content(
        "content-stolen",
        json!({"volumeHandle": "vol-pooln3-1"}),
        json!({}),
    );
    rig.claim("thief", "now", of("VolumeSnapshot", "stolen"));
    assert_eq!(rig.work("thief").await, Outcome::Failed);
    assert_eq!(rig.node_of("thief"), None);
    rig.snapshot("unbound", None);
    rig.claim("early", "now", of("VolumeSnapshot", "unbound"));
    assert_eq!(rig.work("early").await, Outcome::Failed);
    assert_eq!(rig.node_of("early"), None);
}

#[tokio::test(start_paused = true)]
async fn a_source_on_an_unfit_node_gets_one_event_and_waits() {
    let mut rig = Rig::new(&["n1", "n2"]);
    rig.room("n1", "now", 100);
    rig.node("n2", json!({"unschedulable": true}));
    rig.source_on("n2");
    rig.claim("a", "now", of("PersistentVolumeClaim", "data"));
    for _ in 0..2 {
        assert_eq!(rig.work("a").await, Outcome::Failed);
    }
    assert_eq!(
        rig.world.events(),
        [
            "Warning ProvisioningFailed: the source of the claim is on node n2 alone, and that node \
          is cordoned: uncordon it, or name another source"
        ]
    );
    rig.node("n2", json!({}));
    assert_eq!(rig.work("a").await, Outcome::Done);
    assert_eq!(rig.placed("a"), on("n2"));
    // A node that rejected the claim is not selected again at once.
    rig.claim("a", "now", of("PersistentVolumeClaim", "data"));
    assert!(matches!(rig.work("a").await, Outcome::RetryAfter(_)));
    let events = rig.world.events();
    assert!(
        events[0].contains("that node had no room for it a moment ago"),
        "{events:?}"
    );
    tokio::time::advance(Duration::from_secs(61)).await;
    assert_eq!(rig.work("a").await, Outcome::Done);
    assert_eq!(rig.placed("a"), on("n2"));
}

#[tokio::test]
async fn a_source_on_a_deleted_node() {
    let mut rig = Rig::new(&["n1"]);
    rig.room("n1", "now", 100);
    rig.source_on("n9");
    rig.claim("a", "now", of("PersistentVolumeClaim", "data"));
    assert_eq!(rig.work("a").await, Outcome::Failed);
    let events = rig.world.events();
    assert!(
        events[0].contains("no node fits the affinity of PersistentVolume v"),
        "{events:?}"
    );
    assert!(rig.world.api.writes().is_empty());
}
