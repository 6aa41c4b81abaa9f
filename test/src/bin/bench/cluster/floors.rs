//! The source of a claim's volume: our provisioner, or one of the two floors.

use std::collections::HashSet;
use std::pin::pin;
use std::sync::Arc;

use futures::StreamExt;
use hostloop_test::fleet::storm::SIZE;
use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use kube::api::PostParams;
use kube::runtime::{WatchStreamExt, watcher};
use kube::{Api, Client, ResourceExt};
use serde_json::{Value, json};
use tokio::sync::Semaphore;

use super::DRIVER;
use crate::cluster::ground::{LABEL, NAMESPACE};

/// The null provisioner makes as many volumes at once as ours.
const AT_ONCE: usize = 100;

/// The source of a claim's volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum By {
    /// Our provisioner, with a driver behind it.
    Ours,
    /// A loop that writes the complete volume when the claim asks for it, and does nothing else.
    Null,
    /// Nothing: the volume was there before the claim, and names it.
    Hand,
}

impl By {
    /// All, in the order of a round.
    pub(crate) const ALL: [By; 3] = [By::Ours, By::Null, By::Hand];

    /// The class of its claims, and the beginning of their names.
    pub(crate) fn class(self) -> &'static str {
        match self {
            By::Ours => "ours",
            By::Null => "null",
            By::Hand => "hand",
        }
    }

    /// The provisioner of its class.
    pub(crate) fn provisioner(self) -> &'static str {
        match self {
            By::Ours => DRIVER,
            By::Null => "null.bench.csi.dev",
            By::Hand => "kubernetes.io/no-provisioner",
        }
    }
}

/// A volume for a future claim of this name. Its reference has every field except the UID, which
/// only the server assigns.
pub(crate) fn made_by_hand(claim: &str) -> PersistentVolume {
    let reference = json!({
        "apiVersion": "v1", "kind": "PersistentVolumeClaim", "namespace": NAMESPACE, "name": claim,
    });
    volume(By::Hand.class(), &format!("pv-{claim}"), reference)
}

/// A volume with all fields of our volumes except the finalizer, which nothing would remove.
fn volume(class: &str, name: &str, claim: Value) -> PersistentVolume {
    let driver = By::Null.provisioner();
    let volume = json!({
        "metadata": {
            "name": name,
            "labels": {LABEL: "floor"},
            "annotations": {
                "pv.kubernetes.io/provisioned-by": driver,
                "volume.kubernetes.io/provisioner-deletion-secret-name": "",
                "volume.kubernetes.io/provisioner-deletion-secret-namespace": "",
            },
        },
        "spec": {
            "accessModes": ["ReadWriteOnce"],
            "capacity": {"storage": SIZE},
            "claimRef": claim,
            "storageClassName": class,
            "persistentVolumeReclaimPolicy": "Delete",
            "volumeMode": "Filesystem",
            "nodeAffinity": {"required": {"nodeSelectorTerms": [{"matchExpressions": [
                {"key": "kubernetes.io/hostname", "operator": "In", "values": ["a-node"]},
            ]}]}},
            "csi": {
                "driver": driver, "volumeHandle": name, "fsType": "ext4",
                "volumeAttributes": {"storage.kubernetes.io/csiProvisionerIdentity": driver},
            },
        },
    });
    serde_json::from_value(volume).expect("it is a volume")
}

/// The null provisioner. It never ends.
pub(crate) async fn provision(client: Client) {
    let claims: Api<PersistentVolumeClaim> = Api::namespaced(client.clone(), NAMESPACE);
    let volumes: Api<PersistentVolume> = Api::all(client);
    let permits = Arc::new(Semaphore::new(AT_ONCE));
    let events = watcher(claims, watcher::Config::default()).default_backoff();
    let mut events = pin!(events.applied_objects());
    let mut known = HashSet::new();
    while let Some(event) = events.next().await {
        // The watch restarts by itself.
        let Ok(claim) = event else { continue };
        if !is_asked(&claim) || !known.insert(claim.uid()) {
            continue;
        }
        let reference = json!({
            "apiVersion": "v1", "kind": "PersistentVolumeClaim",
            "namespace": NAMESPACE, "name": claim.name_any(),
            "uid": claim.uid(), "resourceVersion": claim.resource_version(),
        });
        let name = format!("pvc-{}", claim.uid().unwrap_or_default());
        let class = claim
            .spec
            .as_ref()
            .and_then(|s| s.storage_class_name.as_deref());
        let volume = volume(class.unwrap_or_default(), &name, reference);
        let (volumes, permits) = (volumes.clone(), permits.clone());
        tokio::spawn(async move {
            let _permit = permits.acquire().await.expect("it is never closed");
            let made = volumes.create(&PostParams::default(), &volume).await;
            made.unwrap_or_else(|e| panic!("the null provisioner makes {name}: {e}"));
        });
    }
}

/// True if the cluster waits for the null provisioner to make this claim's volume.
fn is_asked(claim: &PersistentVolumeClaim) -> bool {
    let wanted = claim
        .annotations()
        .get("volume.kubernetes.io/storage-provisioner");
    let spec = claim.spec.as_ref();
    let bound = spec.and_then(|s| s.volume_name.as_deref()).is_some();
    !bound && wanted.is_some_and(|name| name == By::Null.provisioner())
}
