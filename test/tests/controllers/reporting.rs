//! Reports about the driver's storage: its capacity for the scheduler, its health for users.

use std::collections::BTreeSet;

use hostloop_proto::csi::VolumeHealthErrorType;
use hostloop_proto::csi::volume_health::VolumeHealthEntry;
use hostloop_test::PATIENCE;
use hostloop_test::front::FrontSpec;
use hostloop_test::front::fields::{handle, name, text};
use hostloop_test::front::wait::until;
use serde_json::{Value, json};

use crate::{Rig, SELECTED_NODE};

/// Each class and node, with its capacity.
async fn room(rig: &Rig) -> BTreeSet<[String; 3]> {
    let published = |o: &Value| {
        let node = text(&o["nodeTopology"]["matchLabels"][&rig.key]);
        let fields = [text(&o["storageClassName"]), node, text(&o["capacity"])];
        fields.map(str::to_owned)
    };
    rig.capacities().await.iter().map(published).collect()
}

/// Waits until the class has these capacities on the nodes, in their order.
async fn until_room(rig: &Rig, class: &str, capacities: &[&str]) {
    let nodes = rig.nodes.iter().zip(capacities);
    let expected: BTreeSet<_> = nodes
        .map(|(node, capacity)| [class, node, capacity].map(str::to_owned))
        .collect();
    let ask = || async { (room(rig).await == expected).then_some(()) };
    if until(PATIENCE, ask).await.is_none() {
        let found = room(rig).await;
        panic!("{found:?}, not {expected:?}:\n{}", rig.log());
    }
}

/// Capacity is published for each class and segment. It follows created and deleted volumes, and
/// disappears with its class.
#[tokio::test(flavor = "multi_thread")]
async fn capacity_is_published_for_each_node() {
    let args = [
        "--enable-capacity",
        "--capacity-ownerref-level=-1",
        "--capacity-poll-interval=2s",
        "--kube-api-capacity-qps=0",
    ];
    let spec = FrontSpec::new("room", "provisioner,capacity").nodes(2);
    let rig = Rig::up(spec.driver(|o| o.capacity = 10 << 30).args(&args)).await;
    let class = &rig.late_class().await;
    until_room(&rig, class, &["10Gi", "10Gi"]).await;
    let objects = rig.capacities().await;
    let labels = json!({
        "csi.storage.k8s.io/drivername": rig.driver_name,
        "csi.storage.k8s.io/managed-by": "external-provisioner",
    });
    for object in &objects {
        assert_eq!(object["metadata"]["labels"], labels);
    }
    let claim = json!({
        "metadata": {"annotations": {SELECTED_NODE: rig.nodes[1]}},
        "spec": {"storageClassName": class, "resources": {"requests": {"storage": "4Gi"}}},
    });
    rig.bound_claim("data", claim).await;
    until_room(&rig, class, &["10Gi", "6Gi"]).await;
    // Objects that other clients delete are created again.
    for object in &objects {
        let at = rig.at("CSIStorageCapacity", name(object));
        rig.objects.delete(&at).await;
    }
    until_room(&rig, class, &["10Gi", "6Gi"]).await;
    rig.delete(rig.claim_at("data")).await;
    until_room(&rig, class, &["10Gi", "10Gi"]).await;
    rig.delete(rig.at("StorageClass", class)).await;
    until_room(&rig, class, &[]).await;
    rig.down().await;
}

/// A volume becomes unhealthy, and then healthy again.
#[tokio::test(flavor = "multi_thread")]
async fn an_unhealthy_volume_has_a_warning() {
    let args = ["--list-volumes-interval=1s", "--monitor-interval=1s"];
    let rig = Rig::up(FrontSpec::new("health", "provisioner,health").args(&args)).await;
    let volume = rig.volume("sick").await;
    rig.volume("well").await;
    let handle = handle(&volume);
    let entry = VolumeHealthEntry {
        status: VolumeHealthErrorType::Inaccessible.into(),
        reason: "Unplugged".to_owned(),
        message: "its cable is on the floor".to_owned(),
    };
    rig.driver.set_health(handle, vec![entry]);
    let at = rig.claim_at("sick");
    let words = ["its cable is on the floor"];
    rig.warned(&at, "VolumeConditionAbnormal", &words).await;
    // This API server lacks the feature gate CSIVolumeHealth.
    let says_so = || {
        let line = "the API server does not store the health of claims";
        rig.log().contains(line)
    };
    rig.until_so("a line about the feature gate", says_so).await;
    assert!(rig.get(&at).await["status"]["healthStatus"].is_null());
    rig.driver.set_health(handle, Vec::new());
    rig.noted(&at, "VolumeConditionNormal", &[]).await;
    let others = rig.objects.events(&rig.claim_at("well")).await;
    let is_about_health = |event: &(_, String, _)| event.1.starts_with("VolumeCondition");
    assert!(!others.iter().any(is_about_health), "{others:?}");
    rig.down().await;
}
