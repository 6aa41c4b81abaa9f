//! The objects that the API server has about the driver's volumes.

use hostloop_api_objects::constants::{PROVISIONER, PROVISIONER_BETA, REACH_KERNEL};
pub(super) use hostloop_api_objects::shared_volumes::is_shared;
use hostloop_api_objects::shared_volumes::reaches_kernel;
use hostloop_api_objects::snapshots::{VolumeGroupSnapshot, VolumeSnapshot, VolumeSnapshotContent};
use hostloop_report::status::VolumeReport;
use hostloop_report::{hex, quantity};
use k8s_openapi::api::core::v1::{
    Event, ObjectReference, PersistentVolume, PersistentVolumeClaim, Pod, PodCondition, Volume,
};
use k8s_openapi::api::storage::v1::{StorageClass, VolumeAttachment};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};
use kube::ResourceExt;
use sha2::{Digest, Sha256};

use super::api::{self, ApiError};
use super::cluster::Cluster;

/// The lists. A list that the person may not read is empty, and `missing` says so.
#[derive(Debug, Default)]
pub(super) struct VolumeObjects {
    pub(super) claims: Vec<PersistentVolumeClaim>,
    pub(super) volumes: Vec<PersistentVolume>,
    pub(super) classes: Vec<StorageClass>,
    pub(super) attachments: Vec<VolumeAttachment>,
    pub(super) pods: Vec<Pod>,
    pub(super) events: Vec<Event>,
    pub(super) snapshots: Vec<VolumeSnapshot>,
    pub(super) contents: Vec<VolumeSnapshotContent>,
    /// Only read where a group is asked for.
    pub(super) groups: Vec<VolumeGroupSnapshot>,
    /// True if a volume that is not in `volumes` does not exist.
    pub(super) has_all_volumes: bool,
    /// What could not be read, a sentence each.
    pub(super) missing: Vec<String>,
}

impl VolumeObjects {
    /// No objects, before any are read.
    pub(super) fn unread() -> VolumeObjects {
        VolumeObjects {
            has_all_volumes: true,
            ..VolumeObjects::default()
        }
    }

    /// Reads the lists, in one namespace or in all.
    pub(super) async fn gather(
        cluster: &Cluster,
        namespace: Option<&str>,
    ) -> Result<VolumeObjects, ApiError> {
        let mut objects = VolumeObjects::unread();
        // Without an answer to this request, the others would only wait, too.
        let claims = api::list_all(&cluster.namespaced(namespace)).await;
        objects.claims = objects.noted_if_about_one_kind(claims)?;

        let (volumes, classes) = (cluster.all(), cluster.all());
        let (attachments, contents) = (cluster.all(), cluster.all());
        let pods = cluster.namespaced(namespace);
        let events = cluster.namespaced(namespace);
        let snapshots = cluster.namespaced(namespace);
        let (volumes, classes, attachments, contents, pods, events, snapshots) = tokio::join!(
            api::list_all(&volumes),
            api::list_all(&classes),
            api::list_all(&attachments),
            api::list_all(&contents),
            api::list_all(&pods),
            api::list_all(&events),
            api::list_all(&snapshots),
        );
        objects.has_all_volumes = volumes.is_ok();
        objects.volumes = objects.noted(volumes);
        objects.classes = objects.noted(classes);
        objects.attachments = objects.noted(attachments);
        objects.pods = objects.noted(pods);
        objects.events = objects.noted(events);
        objects.snapshots = objects.noted_if_served(snapshots);
        objects.contents = objects.noted_if_served(contents);
        Ok(objects)
    }

    /// The list, or nothing and a note.
    pub(super) fn noted<T>(&mut self, list: Result<Vec<T>, ApiError>) -> Vec<T> {
        list.unwrap_or_else(|error| {
            self.missing.push(error.to_string());
            Vec::new()
        })
    }

    /// The list, or nothing and a note if requests for other kinds may succeed.
    pub(super) fn noted_if_about_one_kind<T>(
        &mut self,
        list: Result<Vec<T>, ApiError>,
    ) -> Result<Vec<T>, ApiError> {
        match list {
            Err(error) if !error.is_about_one_kind() => Err(error),
            list => Ok(self.noted(list)),
        }
    }

    /// The list, or nothing. A cluster without the kind has no objects of it.
    pub(super) fn noted_if_served<T>(&mut self, list: Result<Vec<T>, ApiError>) -> Vec<T> {
        self.noted(api::served(list))
    }

    pub(super) fn volume_of(&self, claim: &PersistentVolumeClaim) -> Option<&PersistentVolume> {
        let name = bound_volume(claim)?;
        self.volumes
            .iter()
            .find(|volume| volume.metadata.name.as_deref() == Some(name))
    }

    pub(super) fn class_of(&self, claim: &PersistentVolumeClaim) -> Option<&StorageClass> {
        let name = class_name(claim)?;
        self.classes
            .iter()
            .find(|class| class.metadata.name.as_deref() == Some(name))
    }

    /// True if the driver serves the claim, or is to.
    pub(super) fn is_of_driver(&self, claim: &PersistentVolumeClaim, driver: &str) -> bool {
        if let Some(volume) = self.volume_of(claim) {
            return handle(volume, driver).is_some();
        }
        match provisioner(claim) {
            Some(provisioner) => provisioner == driver,
            None => self
                .class_of(claim)
                .is_some_and(|class| class.provisioner == driver),
        }
    }

    /// The pods that use a claim and have not ended.
    pub(super) fn pods_of(&self, claim: &PersistentVolumeClaim) -> Vec<&Pod> {
        pods_of(&self.pods, claim)
    }

    pub(super) fn attachments_of(&self, volume: &PersistentVolume) -> Vec<&VolumeAttachment> {
        let name = volume.metadata.name.as_deref();
        let attachments = self.attachments.iter();
        attachments
            .filter(|a| a.spec.source.persistent_volume_name.as_deref() == name)
            .collect()
    }
}

/// An object's name, after its namespace if it has one, as `NAMESPACE/NAME`.
pub(super) fn title(meta: &ObjectMeta) -> String {
    let name = meta.name.as_deref().unwrap_or_default();
    match &meta.namespace {
        Some(namespace) => format!("{namespace}/{name}"),
        None => name.to_owned(),
    }
}

/// The driver that the cluster has handed a claim to.
pub(super) fn provisioner(claim: &PersistentVolumeClaim) -> Option<&str> {
    let annotations = claim.annotations();
    let provisioner = annotations
        .get(PROVISIONER)
        .or(annotations.get(PROVISIONER_BETA));
    provisioner.map(String::as_str)
}

/// The handle of a volume; `None` if it is another driver's.
pub(super) fn handle<'v>(volume: &'v PersistentVolume, driver: &str) -> Option<&'v str> {
    let csi = volume.spec.as_ref()?.csi.as_ref()?;
    (csi.driver == driver).then_some(&*csi.volume_handle)
}

/// True if volumes of a class can be used by all nodes that share a kernel.
pub(super) fn makes_shared(class: &StorageClass) -> bool {
    class.parameters.as_ref().is_some_and(reaches_kernel)
}

/// True for such a volume, by the report of the node with its pool.
pub(super) fn is_reported_shared(volume: &VolumeReport) -> bool {
    volume.reach.as_deref() == Some(REACH_KERNEL)
}

/// The name of the PersistentVolume that a claim is bound to, or asks for.
pub(super) fn bound_volume(claim: &PersistentVolumeClaim) -> Option<&str> {
    let name = claim.spec.as_ref()?.volume_name.as_deref()?;
    (!name.is_empty()).then_some(name)
}

/// Those of the pods that use a claim and have not ended.
pub(super) fn pods_of<'p>(pods: &'p [Pod], claim: &PersistentVolumeClaim) -> Vec<&'p Pod> {
    let using = pods.iter();
    using
        .filter(|pod| uses(pod, claim) && !has_ended(pod))
        .collect()
}

/// True if a pod uses a claim, by name or by a template of the pod.
fn uses(pod: &Pod, claim: &PersistentVolumeClaim) -> bool {
    if pod.metadata.namespace != claim.metadata.namespace {
        return false;
    }
    let (pod_name, claim_name) = (pod.name_any(), claim.name_any());
    volumes_of(pod).any(|volume| match &volume.persistent_volume_claim {
        Some(source) => source.claim_name == claim_name,
        None => volume.ephemeral.is_some() && format!("{pod_name}-{}", volume.name) == claim_name,
    })
}

fn volumes_of(pod: &Pod) -> impl Iterator<Item = &Volume> {
    let specs = pod.spec.iter();
    specs.flat_map(|spec| spec.volumes.iter().flatten())
}

/// True if all containers of a pod have ended: kubelet unmounts its volumes.
pub(super) fn has_ended(pod: &Pod) -> bool {
    matches!(phase(pod), "Succeeded" | "Failed")
}

pub(super) fn phase(pod: &Pod) -> &str {
    let phase = pod
        .status
        .as_ref()
        .and_then(|status| status.phase.as_deref());
    phase.unwrap_or("Unknown")
}

/// The condition of this type, if it has this status.
pub(super) fn condition<'p>(pod: &'p Pod, kind: &str, status: &str) -> Option<&'p PodCondition> {
    let mut conditions = pod.status.as_ref()?.conditions.iter().flatten();
    conditions.find(|condition| condition.type_ == kind && condition.status == status)
}

pub(super) fn is_of_daemon_set(pod: &Pod) -> bool {
    pod.owner_references()
        .iter()
        .any(|owner| owner.kind == "DaemonSet")
}

/// The inline volumes of a pod that the driver serves: the volume's name in the pod, and the handle
/// that kubelet makes from it.
pub(super) fn inline_volumes(pod: &Pod, driver: &str) -> Vec<(String, String)> {
    let uid = pod.metadata.uid.as_deref().unwrap_or_default();
    volumes_of(pod)
        .filter(|volume| volume.csi.as_ref().is_some_and(|csi| csi.driver == driver))
        .map(|volume| {
            let hash = Sha256::digest(format!("{uid}{}", volume.name));
            (volume.name.clone(), format!("csi-{}", hex(&hash)))
        })
        .collect()
}

/// The size that a claim has, or asks for.
pub(super) fn claim_size(claim: &PersistentVolumeClaim) -> Option<u64> {
    let size = present_size(claim).or_else(|| requested_size(claim))?;
    u64::try_from(quantity::bytes(&size.0)?).ok()
}

/// The size that a claim has.
pub(super) fn present_size(claim: &PersistentVolumeClaim) -> Option<&Quantity> {
    claim.status.as_ref()?.capacity.as_ref()?.get("storage")
}

/// The size that a claim asks for.
pub(super) fn requested_size(claim: &PersistentVolumeClaim) -> Option<&Quantity> {
    let resources = claim.spec.as_ref()?.resources.as_ref()?;
    resources.requests.as_ref()?.get("storage")
}

/// The class that a claim names.
pub(super) fn class_name(claim: &PersistentVolumeClaim) -> Option<&str> {
    claim.spec.as_ref()?.storage_class_name.as_deref()
}

/// The claim that a volume names.
pub(super) fn claim_ref(volume: &PersistentVolume) -> Option<&ObjectReference> {
    volume.spec.as_ref()?.claim_ref.as_ref()
}

pub(super) fn volume_phase(volume: &PersistentVolume) -> Option<&str> {
    volume.status.as_ref()?.phase.as_deref()
}

pub(super) fn volume_size(volume: &PersistentVolume) -> Option<u64> {
    let size = volume.spec.as_ref()?.capacity.as_ref()?.get("storage")?;
    u64::try_from(quantity::bytes(&size.0)?).ok()
}

/// The name of the content that a snapshot is bound to, or names.
pub(super) fn content_name(snapshot: &VolumeSnapshot) -> Option<&str> {
    let bound = snapshot.status.as_ref();
    let bound = bound.and_then(|status| status.bound_volume_snapshot_content_name.as_deref());
    bound.or(snapshot.spec.source.volume_snapshot_content_name.as_deref())
}

/// The source of a claim's content, as `VolumeSnapshot/NAME`.
pub(super) fn source_of(claim: &PersistentVolumeClaim) -> Option<String> {
    let spec = claim.spec.as_ref()?;
    let (kind, name) = match (&spec.data_source_ref, &spec.data_source) {
        (Some(source), _) => (&source.kind, &source.name),
        (None, Some(source)) => (&source.kind, &source.name),
        (None, None) => return None,
    };
    Some(format!("{kind}/{name}"))
}

/// A time in nanoseconds since the epoch.
pub(super) fn ns(time: &Time) -> u64 {
    u64::try_from(time.0.as_nanosecond()).unwrap_or(0)
}

/// When an object was created.
pub(super) fn created_ns(object: &impl ResourceExt) -> u64 {
    object.creation_timestamp().as_ref().map_or(0, ns)
}

#[cfg(test)]
mod tests;
