//! One life of several volumes, each with a pod that writes or reads.

use hostloop_test::PATIENCE;
use hostloop_test::cluster::wait_for;
use hostloop_test::front::fields::{has_finalizer, is_bound, is_ready_to_use, text};
use hostloop_test::front::objects;
use hostloop_test::walk::{FROM_SNAPSHOT, SNAPSHOT, claim_and_pod};
use serde_json::{Value, json};

use crate::site::{CLASS, Site, at};

/// The field of a claim that clones the first one.
const FROM_CLAIM: &str = "dataSource: {kind: PersistentVolumeClaim, name: original}";

/// From the first claim to the last object's end.
pub(crate) async fn life(site: &Site) {
    let class = format!("storageClassName: {CLASS}");
    let original = claim_and_pod("original", &[&class]);
    let restored = claim_and_pod("restored", &[&class, FROM_SNAPSHOT]);
    let cloned = claim_and_pod("cloned", &[&class, FROM_CLAIM]);
    let snapshot = SNAPSHOT.replace(
        "volumeSnapshotClassName: hostloop",
        &format!("volumeSnapshotClassName: {CLASS}"),
    );

    site.runs("original", &original).await;
    provisioned(site).await;
    attached(site).await;
    site.write("original", "before");

    site.cluster.apply(&snapshot);
    let taken = at("VolumeSnapshot", "original");
    site.until(&taken, "ready", is_ready_to_use).await;
    site.write("original", "after");

    site.runs("restored", &restored).await;
    site.has("restored", "before");
    site.runs("cloned", &cloned).await;
    site.has("cloned", "after");

    grown(site).await;
    site.has("original", "after");

    let all = [&*original, &*restored, &*cloned, &*snapshot].join("---\n");
    site.cluster.delete(&all);
}

/// The claim's volume has what upstream's provisioner writes.
async fn provisioned(site: &Site) {
    let (volume, driver) = (volume(site).await, site.kind.driver());
    let annotations = &volume["metadata"]["annotations"];
    assert_eq!(annotations["pv.kubernetes.io/provisioned-by"], driver);
    assert_eq!(volume["spec"]["csi"]["driver"], driver);
    let term = &volume["spec"]["nodeAffinity"]["required"]["nodeSelectorTerms"][0];
    let (key, value) = site.kind.topology(&site.cluster.node(1));
    let expected = json!([{"key": key, "operator": "In", "values": [value]}]);
    assert_eq!(term["matchExpressions"], expected);
    let attacher = format!("external-attacher/{}", site.kind.with_dashes());
    let provisioner = "external-provisioner.volume.kubernetes.io/finalizer";
    for finalizer in [provisioner, attacher.as_str()] {
        assert!(has_finalizer(&volume, finalizer), "{volume}");
    }
}

/// The attachment that the controller manager made was done by the attacher.
async fn attached(site: &Site) {
    let attachments = site.objects.list("VolumeAttachment", "").await;
    let [attachment] = &attachments[..] else {
        panic!("one volume is attached: {attachments:?}");
    };
    assert_eq!(attachment["spec"]["attacher"], site.kind.driver());
    assert_eq!(attachment["status"]["attached"], true, "{attachment}");
}

/// The claim grows under its pod.
async fn grown(site: &Site) {
    let (claim, pod) = (
        at("PersistentVolumeClaim", "original"),
        at("Pod", "original"),
    );
    site.objects.merge(&claim, objects::sized("1Gi")).await;
    let mut looks = 0_u32;
    wait_for("the claim's new size", PATIENCE, async || {
        looks += 1;
        if looks.is_multiple_of(10) {
            // Kubelet checks a pod's volumes when the pod changes, otherwise every minute.
            let look = json!({"metadata": {"annotations": {"test/look": looks.to_string()}}});
            site.objects.merge(&pod, look).await;
        }
        let now = site.objects.get(&claim).await.unwrap_or_default();
        if now["status"]["capacity"]["storage"] == "1Gi" {
            Ok(())
        } else {
            Err(site.objects.describe(&claim).await)
        }
    })
    .await;
    assert_eq!(volume(site).await["spec"]["capacity"]["storage"], "1Gi");
}

/// The volume of the first claim.
async fn volume(site: &Site) -> Value {
    let claim = at("PersistentVolumeClaim", "original");
    let claim = site.until(&claim, "bound", is_bound).await;
    let volume = at("PersistentVolume", text(&claim["spec"]["volumeName"]));
    site.until(&volume, "bound", is_bound).await
}
