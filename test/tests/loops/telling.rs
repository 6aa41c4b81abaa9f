//! Reports about the driver's storage: its capacity for the scheduler, its health for users.

use std::collections::BTreeMap;

use hostloop_proto::csi::VolumeHealthErrorType;
use hostloop_proto::csi::volume_health::VolumeHealthEntry;
use hostloop_test::front::FrontSpec;
use hostloop_test::front::wait::{PATIENCE, until};
use serde_json::{Value, json};

use crate::Rig;

/// 10 GiB, as the objects write it.
const TEN: &str = "10Gi";
/// 6 GiB.
const SIX: &str = "6Gi";

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

/// The capacity of each class and segment.
async fn room(rig: &Rig) -> BTreeMap<(String, String), String> {
    let objects = rig.objects.list("CSIStorageCapacity", &rig.namespace).await;
    let told = |o: &Value| {
        let place = text(&o["nodeTopology"]["matchLabels"][&rig.key]).to_owned();
        let class = text(&o["storageClassName"]).to_owned();
        ((class, place), text(&o["capacity"]).to_owned())
    };
    objects.iter().map(told).collect()
}

async fn until_room(rig: &Rig, expected: &[(&str, &str, &str)]) {
    let owned = |(class, place, room): &(&str, &str, &str)| {
        (
            ((*class).to_owned(), (*place).to_owned()),
            (*room).to_owned(),
        )
    };
    let expected: BTreeMap<_, _> = expected.iter().map(owned).collect();
    let ask = || async { (room(rig).await == expected).then_some(()) };
    if until(PATIENCE, ask).await.is_none() {
        let there = room(rig).await;
        panic!("{expected:?} is not told, but {there:?}:\n{}", rig.log());
    }
}

/// Capacity is published for each class and segment. It follows created and deleted volumes, and
/// disappears with its class.
#[tokio::test(flavor = "multi_thread")]
async fn room_is_told_where_it_is() {
    let args = [
        "--enable-capacity",
        "--capacity-ownerref-level=-1",
        "--capacity-poll-interval=2s",
        "--kube-api-capacity-qps=0",
    ];
    let spec = FrontSpec::new("room", "provisioner,capacity").nodes(2);
    let rig = Rig::up(spec.driver(|o| o.capacity = 10 << 30).args(&args)).await;
    let class = format!("wait-{}", rig.name);
    let binding = json!({"volumeBindingMode": "WaitForFirstConsumer"});
    rig.class(&class, binding).await;
    let [first, second] = [&rig.nodes[0][..], &rig.nodes[1][..]];
    until_room(&rig, &[(&class, first, TEN), (&class, second, TEN)]).await;
    let objects = rig.objects.list("CSIStorageCapacity", &rig.namespace).await;
    for object in &objects {
        let labels = &object["metadata"]["labels"];
        assert_eq!(labels["csi.storage.k8s.io/drivername"], rig.driver_name);
        assert_eq!(
            labels["csi.storage.k8s.io/managed-by"],
            "external-provisioner"
        );
    }
    let claim = json!({
        "metadata": {"annotations": {
            "volume.kubernetes.io/selected-node": second,
        }},
        "spec": {"storageClassName": class, "resources": {"requests": {"storage": "4Gi"}}},
    });
    rig.claim("data", claim).await;
    rig.bound("data").await;
    until_room(&rig, &[(&class, first, TEN), (&class, second, SIX)]).await;
    // Objects that other clients delete are created again.
    for object in &objects {
        let name = text(&object["metadata"]["name"]);
        rig.objects
            .delete(&rig.at("CSIStorageCapacity", name))
            .await;
    }
    until_room(&rig, &[(&class, first, TEN), (&class, second, SIX)]).await;
    rig.delete(rig.claim_at("data")).await;
    until_room(&rig, &[(&class, first, TEN), (&class, second, TEN)]).await;
    rig.delete(rig.at("StorageClass", &class)).await;
    until_room(&rig, &[]).await;
    rig.down().await;
}

/// A volume becomes unhealthy, and then healthy again.
#[tokio::test(flavor = "multi_thread")]
async fn a_sick_volume_is_told_of() {
    let args = ["--list-volumes-interval=1s", "--monitor-interval=1s"];
    let rig = Rig::up(FrontSpec::new("health", "provisioner,health").args(&args)).await;
    for name in ["sick", "well"] {
        rig.claim(name, json!({})).await;
    }
    let (_, volume) = rig.bound("sick").await;
    rig.bound("well").await;
    let handle = text(&volume["spec"]["csi"]["volumeHandle"]);
    let entry = VolumeHealthEntry {
        status: VolumeHealthErrorType::Inaccessible.into(),
        reason: "Unplugged".to_owned(),
        message: "its cable is on the floor".to_owned(),
    };
    rig.driver.set_health(handle, vec![entry]);
    let at = rig.claim_at("sick");
    let words = ["its cable is on the floor"];
    rig.until_event(&at, "Warning", "VolumeConditionAbnormal", &words)
        .await;
    rig.driver.set_health(handle, Vec::new());
    rig.until_event(&at, "Normal", "VolumeConditionNormal", &[])
        .await;
    let others = rig.objects.events(&rig.claim_at("well")).await;
    assert!(
        others
            .iter()
            .all(|event| !event.1.starts_with("VolumeCondition")),
        "{others:?}"
    );
    rig.down().await;
}
