//! Claims of odd sizes, which the driver rounds up: each one's own text is enough for its copies.

use hostloop_test::front::fields::{is_bound, is_ready_to_use};
use hostloop_test::front::objects::{self, Place, cloned, restored, with};
use serde_json::{Value, json};

use crate::site::{CLASS, NAMESPACE, Site, at};

/// The class, the volume mode and the request of a claim.
type Odd = (&'static str, &'static str, &'static str);

/// An XFS has 300 MiB at least, a btrfs 110, a device 4096 bytes.
const ODD: [Odd; 4] = [
    (CLASS, "Filesystem", "1"),
    ("ext4", "Filesystem", "500000000"),
    ("btrfs", "Filesystem", "100Mi"),
    (CLASS, "Block", "1"),
];

/// The size of the first claim after its expansion.
const GROWN: &str = "777777777";

/// Restores and clones volumes of odd sizes, and expands one.
pub(crate) async fn odd_sizes(site: &Site) {
    let mut made = Vec::new();
    for (n, odd) in ODD.iter().enumerate() {
        made.push(claim(site, &format!("odd-{n}"), *odd, json!({})).await);
    }
    until_bound(site, &made).await;
    for n in 0..ODD.len() {
        snapshot(site, &format!("odd-{n}")).await;
    }
    for (n, odd) in ODD.iter().enumerate() {
        let name = format!("odd-{n}");
        ready(site, &name, odd.2).await;
        made.push(claim(site, &format!("restored-{n}"), *odd, restored(&name)).await);
        made.push(claim(site, &format!("cloned-{n}"), *odd, cloned(&name)).await);
    }
    until_bound(site, &made).await;

    let (class, mode, _) = ODD[0];
    let volume = Place::of_object(&site.bound(&made[0]).await);
    site.objects.merge(&made[0], objects::sized(GROWN)).await;
    let grown = |v: &Value| v["spec"]["capacity"]["storage"] == "759552Ki";
    site.until(&volume, "larger", grown).await;
    site.objects
        .create(objects::snapshot(NAMESPACE, "grown", CLASS, "odd-0"))
        .await;
    ready(site, "grown", GROWN).await;
    let of_grown = claim(site, "of-grown", (class, mode, GROWN), restored("grown")).await;
    until_bound(site, std::slice::from_ref(&of_grown)).await;
    made.push(of_grown);

    for n in 0..ODD.len() {
        site.delete(&at("VolumeSnapshot", &format!("odd-{n}")))
            .await;
    }
    site.delete(&at("VolumeSnapshot", "grown")).await;
    for claim in made {
        let volume = Place::of_object(&site.bound(&claim).await);
        site.delete(&claim).await;
        site.until_gone(&volume).await;
    }
}

async fn claim(site: &Site, name: &str, (class, mode, size): Odd, change: Value) -> Place {
    let change = with(change, json!({"spec": {"volumeMode": mode}}));
    site.objects
        .create(objects::claim(NAMESPACE, name, class, size, change))
        .await;
    at("PersistentVolumeClaim", name)
}

async fn until_bound(site: &Site, claims: &[Place]) {
    for claim in claims {
        site.until(claim, "bound", is_bound).await;
    }
}

/// Takes a snapshot of a claim, with its name.
async fn snapshot(site: &Site, claim: &str) {
    site.objects
        .create(objects::snapshot(NAMESPACE, claim, CLASS, claim))
        .await;
}

/// Waits until a snapshot can be restored by a claim of this size.
async fn ready(site: &Site, snapshot: &str, size: &str) {
    let ready = |s: &Value| is_ready_to_use(s) && s["status"]["restoreSize"].is_string();
    let snapshot = site
        .until(&at("VolumeSnapshot", snapshot), "ready", ready)
        .await;
    assert_eq!(snapshot["status"]["restoreSize"], size);
}
