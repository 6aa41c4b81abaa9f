//! How the cluster's own controllers react to a node's volumes: they bind no other driver's claim
//! to one.

use std::time::Duration;

use hostloop_test::PATIENCE;
use hostloop_test::front::objects::Place;
use hostloop_test::front::wait::until;
use kube::api::PostParams;
use serde_json::{Value, json};

use crate::installation::driver;
use crate::site::Site;
use crate::target::Target;

/// How long to watch for a forbidden binding. A normal binding takes about a second.
const WATCHED: Duration = Duration::from_secs(10);

const PROVISIONER: &str = "volume.kubernetes.io/storage-provisioner";

/// Creates a class of this driver and a claim that waits for its volume.
async fn pending_claim(site: &Site, name: &str, driver: &str) -> Value {
    let class = format!("{}-{name}", site.names.run);
    site.class(&class, driver, "Immediate").await;
    let at = site.claim(name, &class, json!({})).await;
    let handed = |claim: &Value| claim["metadata"]["annotations"][PROVISIONER].is_string();
    let claim = site.admin.until(&at, PATIENCE, handed).await;
    claim.expect("the cluster hands it to its driver")
}

/// Makes a volume for this claim as the compromised node.
async fn volume_for(site: &Site, claim: &Value) {
    let metadata = &claim["metadata"];
    let uid = metadata["uid"].as_str().expect("a UID");
    let new = site.names.new_object("persistentvolumes", Target::Own);
    let mut volume = new.expect("a node makes volumes");
    volume["metadata"]["name"] = json!(format!("hostloop-{uid}"));
    volume["spec"]["claimRef"] = json!({
        "apiVersion": "v1", "kind": "PersistentVolumeClaim", "uid": uid,
        "namespace": metadata["namespace"], "name": metadata["name"],
    });
    let volume = serde_json::from_value(volume).expect("it is an object");
    let made = site.volumes().create(&PostParams::default(), &volume).await;
    made.expect("a node may make it");
}

async fn volume_of(site: &Site, name: &str) -> Option<String> {
    let at = Place::of("PersistentVolumeClaim", &site.names.run, name);
    let claim = site.admin.get(&at).await.expect("the claim");
    claim["spec"]["volumeName"].as_str().map(str::to_owned)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_claim_of_another_driver_is_not_bound_to_a_nodes_volume() {
    let site = Site::up().await;
    let ours = pending_claim(&site, "ours", driver()).await;
    let theirs = pending_claim(&site, "theirs", "other.csi.dev").await;
    // Both volumes are written the same way, so only the policy can cause a difference.
    volume_for(&site, &theirs).await;
    volume_for(&site, &ours).await;
    let bound = || async { volume_of(&site, "ours").await };
    let bound = until(PATIENCE, bound).await;
    bound.expect("the driver's own claim is bound");
    let stolen = || async { volume_of(&site, "theirs").await };
    let stolen = until(WATCHED, stolen).await;
    assert_eq!(stolen, None, "the claim has the node's volume");
}
