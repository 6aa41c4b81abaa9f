//! The objects of one claim, snapshot, group or pod, read by name where that is possible.

use k8s_openapi::api::core::v1::{Event, PersistentVolumeClaim, Pod};
use k8s_openapi::api::storage::v1::VolumeAttachment;
use kube::api::ListParams;
use kube::{Api, ResourceExt};

use super::api::{self, ApiError};
use super::cluster::Cluster;
use super::events::is_about;
use super::subject::Subject;
use super::volume_objects::{
    VolumeObjects, bound_volume, class_name, content_name, inline_volumes,
};

/// The namespace of events about objects without one.
const EVENTS_OF_CLUSTER: &str = "default";

/// Reads a claim of the namespace, its volume and its snapshots. Without the claim, the result has
/// no objects.
pub(super) async fn gather(cluster: &Cluster, name: &str) -> Result<VolumeObjects, ApiError> {
    let mut objects = VolumeObjects::unread();
    read_claim(cluster, name, &mut objects).await?;
    if objects.claims.is_empty() {
        return Ok(objects);
    }
    let snapshots = api::list_all(&cluster.own()).await;
    objects.snapshots = objects.noted_if_served(snapshots);
    objects.snapshots.retain(|snapshot| {
        snapshot.spec.source.persistent_volume_claim_name.as_deref() == Some(name)
    });
    read_contents(cluster, &mut objects).await;
    Ok(objects)
}

/// Reads a snapshot of the namespace, its content, and the claim that it was taken of. Without the
/// snapshot, the result has no objects.
pub(super) async fn gather_snapshot(
    cluster: &Cluster,
    name: &str,
) -> Result<VolumeObjects, ApiError> {
    let mut objects = VolumeObjects::unread();
    let snapshot = api::get(&cluster.own(), name).await;
    objects.snapshots = objects.noted_if_about_one_kind(snapshot.map(Vec::from_iter))?;
    let Some(snapshot) = objects.snapshots.first() else {
        return Ok(objects);
    };
    if let Some(claim) = snapshot.spec.source.persistent_volume_claim_name.clone() {
        read_claim(cluster, &claim, &mut objects).await?;
    }
    read_contents(cluster, &mut objects).await;
    Ok(objects)
}

/// Reads a group snapshot of the namespace, its snapshots and their contents. Without the group,
/// the result has no objects.
pub(super) async fn gather_group(cluster: &Cluster, name: &str) -> Result<VolumeObjects, ApiError> {
    let mut objects = VolumeObjects::unread();
    let group = api::get(&cluster.own(), name).await;
    objects.groups = objects.noted_if_about_one_kind(group.map(Vec::from_iter))?;
    if objects.groups.is_empty() {
        return Ok(objects);
    }
    let snapshots = api::list_all(&cluster.own()).await;
    objects.snapshots = objects.noted_if_served(snapshots);
    objects.snapshots.retain(|snapshot| {
        let status = snapshot.status.as_ref();
        status.and_then(|status| status.volume_group_snapshot_name.as_deref()) == Some(name)
    });
    read_contents(cluster, &mut objects).await;
    Ok(objects)
}

/// Reads a pod of the namespace. Without it, the result has no objects.
pub(super) async fn gather_pod(cluster: &Cluster, name: &str) -> Result<VolumeObjects, ApiError> {
    let mut objects = VolumeObjects::unread();
    let pod = api::get(&cluster.own(), name).await;
    objects.pods = objects.noted_if_about_one_kind(pod.map(Vec::from_iter))?;
    Ok(objects)
}

/// Reads a claim and its volume.
async fn read_claim(
    cluster: &Cluster,
    name: &str,
    objects: &mut VolumeObjects,
) -> Result<(), ApiError> {
    let claim = api::get(&cluster.own(), name).await;
    objects.claims = objects.noted_if_about_one_kind(claim.map(Vec::from_iter))?;
    if let Some(volume) = objects.claims.first().and_then(bound_volume) {
        let volume = api::get(&cluster.all(), volume).await;
        objects.has_all_volumes = volume.is_ok();
        objects.volumes = objects.noted(volume.map(Vec::from_iter));
    }
    Ok(())
}

/// Reads the contents of the snapshots.
async fn read_contents(cluster: &Cluster, objects: &mut VolumeObjects) {
    let names: Vec<String> = objects
        .snapshots
        .iter()
        .filter_map(content_name)
        .map(str::to_owned)
        .collect();
    for name in names {
        let content = api::get(&cluster.all(), &name).await;
        let refused = content.is_err();
        let content = objects.noted(content.map(Vec::from_iter));
        objects.contents.extend(content);
        // The others would be refused, too.
        if refused {
            return;
        }
    }
}

/// Adds the claim's class, pods and attachments, and the events about all of its objects.
pub(super) async fn complete(cluster: &Cluster, objects: &mut VolumeObjects) {
    let Some(claim) = objects.claims.first().cloned() else {
        return;
    };
    if let Some(class) = class_name(&claim).filter(|class| !class.is_empty()) {
        let class = api::get(&cluster.all(), class).await;
        objects.classes = objects.noted(class.map(Vec::from_iter));
    }
    let (pods, attachments) = (cluster.own(), cluster.all());
    let (pods, attachments) = tokio::join!(api::list_all(&pods), api::list_all(&attachments));
    objects.pods = objects.noted(pods);
    objects.attachments = objects.noted(attachments);
    keep_related(objects, &claim);
    read_events(cluster, objects).await;
}

/// Reads the events about the objects.
pub(super) async fn read_events(cluster: &Cluster, objects: &mut VolumeObjects) {
    let events = api::list_all(&cluster.own()).await;
    objects.events = objects.noted(events);
    if cluster.namespace != EVENTS_OF_CLUSTER {
        let volumes = objects.volumes.iter().filter_map(ResourceExt::uid);
        let contents = objects.contents.iter().filter_map(ResourceExt::uid);
        let uids: Vec<String> = volumes.chain(contents).collect();
        for uid in uids {
            let about = ListParams::default().fields(&format!("involvedObject.uid={uid}"));
            let events: Api<Event> = cluster.namespaced(Some(EVENTS_OF_CLUSTER));
            match api::list(&events, about).await {
                Ok(events) => {
                    let own = events
                        .into_iter()
                        .filter(|event| is_about(event, Some(&uid)));
                    objects.events.extend(own);
                }
                Err(error) => {
                    objects.missing.push(error.to_string());
                    break;
                }
            }
        }
    }
    let uids: Vec<String> = (objects.claims.iter().map(ResourceExt::uid))
        .chain(objects.volumes.iter().map(ResourceExt::uid))
        .chain(objects.pods.iter().map(ResourceExt::uid))
        .chain(objects.attachments.iter().map(ResourceExt::uid))
        .chain(objects.snapshots.iter().map(ResourceExt::uid))
        .chain(objects.contents.iter().map(ResourceExt::uid))
        .chain(objects.groups.iter().map(ResourceExt::uid))
        .flatten()
        .collect();
    objects.events.retain(|event| {
        event
            .involved_object
            .uid
            .as_ref()
            .is_some_and(|uid| uids.contains(uid))
    });
}

/// Drops the pods and attachments of other claims.
fn keep_related(objects: &mut VolumeObjects, claim: &PersistentVolumeClaim) {
    let pods: Vec<Pod> = objects.pods_of(claim).into_iter().cloned().collect();
    objects.pods = pods;
    let volume = objects.volumes.first();
    let attachments = volume
        .map(|volume| objects.attachments_of(volume))
        .unwrap_or_default();
    let attachments: Vec<VolumeAttachment> = attachments.into_iter().cloned().collect();
    objects.attachments = attachments;
}

/// The names under which logs have the snapshots and their groups.
pub(super) fn snapshot_subject(objects: &VolumeObjects) -> Subject {
    let groups = objects.groups.iter();
    let subject = groups.fold(Subject::default(), Subject::with_group);
    with_snapshots(subject, objects)
}

/// The names under which logs have the inline volumes of the pods, or the one of this name.
pub(super) fn inline_subject(
    cluster: &Cluster,
    name: Option<&str>,
    objects: &VolumeObjects,
) -> Subject {
    let volumes = objects
        .pods
        .iter()
        .flat_map(|pod| inline_volumes(pod, &cluster.driver_name));
    let wanted = volumes.filter(|(volume, _)| name.is_none_or(|name| name == volume));
    wanted.fold(Subject::default(), |subject, (_, handle)| {
        subject.with_handle(&handle)
    })
}

/// The names under which logs have the claim.
pub(super) fn subject(cluster: &Cluster, name: &str, objects: &VolumeObjects) -> Subject {
    let mut subject = Subject::named(&cluster.namespace, name);
    for claim in &objects.claims {
        subject = subject.with_claim(claim);
    }
    for volume in &objects.volumes {
        subject = subject.with_volume(volume, &cluster.driver_name);
    }
    with_snapshots(subject, objects)
}

fn with_snapshots(subject: Subject, objects: &VolumeObjects) -> Subject {
    objects.snapshots.iter().fold(subject, |subject, snapshot| {
        let name = content_name(snapshot);
        let content = objects
            .contents
            .iter()
            .find(|c| c.metadata.name.as_deref() == name);
        subject.with_snapshot(snapshot, content.filter(|_| name.is_some()))
    })
}

#[cfg(test)]
pub(crate) mod tests;
