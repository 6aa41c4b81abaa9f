//! Claims, volumes and attachments that wait too long, and claims that ask for more than one node.

use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use k8s_openapi::api::storage::v1::VolumeAttachment;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use k8s_openapi::jiff::Timestamp;

use super::{Part, driver_container, flag, join, known};
use crate::kubectl::check::facts::Facts;
use crate::kubectl::check::line::{Line, names};
use crate::kubectl::volume_objects::{handle, provisioner, title};

/// What takes longer than this many seconds is stuck.
const STUCK: i64 = 300;

pub(super) fn lines(facts: &Facts) -> Vec<Line> {
    join([claims(facts), volumes(facts), attachments(facts), multi_node(facts)])
}

fn is_old(since: Option<Timestamp>, now: Timestamp) -> bool {
    since.is_some_and(|since| now.duration_since(since).as_secs() > STUCK)
}

fn created(meta: &ObjectMeta) -> Option<Timestamp> {
    meta.creation_timestamp.as_ref().map(|time| time.0)
}

fn deleted(meta: &ObjectMeta) -> Option<Timestamp> {
    meta.deletion_timestamp.as_ref().map(|time| time.0)
}

/// The claims that the cluster has handed to the driver.
fn of_driver<'a>(
    claims: &'a [PersistentVolumeClaim],
    driver: &str,
) -> Vec<&'a PersistentVolumeClaim> {
    claims.iter().filter(|claim| provisioner(claim) == Some(driver)).collect()
}

fn claims(facts: &Facts) -> Part {
    let ours = of_driver(known("Claims", &facts.claims)?, &facts.driver);
    let phase = |claim: &PersistentVolumeClaim, wanted: &str| {
        let status = claim.status.as_ref();
        status.and_then(|status| status.phase.as_deref()) == Some(wanted)
    };
    let find = |is_it: &dyn Fn(&PersistentVolumeClaim) -> bool| -> Vec<String> {
        ours.iter().filter(|claim| is_it(claim)).map(|claim| title(&claim.metadata)).collect()
    };
    let pending =
        find(&|claim| phase(claim, "Pending") && is_old(created(&claim.metadata), facts.now));
    let lost = find(&|claim| phase(claim, "Lost"));
    let going = find(&|claim| is_old(deleted(&claim.metadata), facts.now));
    let mut lines = Vec::new();
    if !pending.is_empty() {
        lines.push(Line::warning(
            format!("Claims wait for a volume for more than five minutes: {}", names(&pending)),
            "Their events say why: kubectl hostloop describe CLAIM -n NAMESPACE",
        ));
    }
    if !lost.is_empty() {
        lines.push(Line::failed(
            format!("Claims have lost their PersistentVolume: {}", names(&lost)),
            "The object was deleted. Its volume may still be in the pool: kubectl hostloop status",
        ));
    }
    if !going.is_empty() {
        lines.push(Line::warning(
            format!("Claims are being deleted for more than five minutes: {}", names(&going)),
            "A claim stays while a pod uses it or a clone of it is made. Look at its finalizers.",
        ));
    }
    if lines.is_empty() {
        lines.push(Line::ok(format!("No claim is stuck ({} of the driver)", ours.len())));
    }
    Ok(lines)
}

fn volumes(facts: &Facts) -> Part {
    let all = known("Volumes", &facts.volumes)?.iter();
    let ours = all.filter(|volume| handle(volume, &facts.driver).is_some());
    let stuck = |volume: &&PersistentVolume| {
        let status = volume.status.as_ref();
        let phase = status.and_then(|status| status.phase.as_deref());
        let delete = volume
            .spec
            .as_ref()
            .is_some_and(|spec| spec.persistent_volume_reclaim_policy.as_deref() == Some("Delete"));
        let since = status.and_then(|s| s.last_phase_transition_time.as_ref()).map(|time| time.0);
        let released = delete && phase == Some("Released") && is_old(since, facts.now);
        phase == Some("Failed") || released || is_old(deleted(&volume.metadata), facts.now)
    };
    let stuck: Vec<String> = ours.filter(stuck).map(|volume| title(&volume.metadata)).collect();
    Ok(match stuck.is_empty() {
        true => Vec::new(),
        false => vec![Line::failed(
            format!("PersistentVolumes can't be deleted: {}", names(&stuck)),
            "Their events say why: kubectl describe pv NAME. A volume stays while its node is \
             down or a pod has it mounted.",
        )],
    })
}

fn attachments(facts: &Facts) -> Part {
    let all = known("VolumeAttachments", &facts.attachments)?;
    let ours: Vec<_> = all.iter().filter(|a| a.spec.attacher == facts.driver).collect();
    let is_stuck = |a: &&&VolumeAttachment| {
        let attached = a.status.as_ref().is_some_and(|status| status.attached);
        match deleted(&a.metadata) {
            Some(since) => is_old(Some(since), facts.now),
            None => !attached && is_old(created(&a.metadata), facts.now),
        }
    };
    let stuck: Vec<_> = ours.iter().filter(is_stuck).collect();
    let error = stuck.iter().find_map(|a| {
        let status = a.status.as_ref()?;
        let error = status.attach_error.as_ref().or(status.detach_error.as_ref())?;
        error.message.clone()
    });
    let titles: Vec<String> = stuck.iter().map(|a| title(&a.metadata)).collect();
    Ok(match (ours.is_empty(), titles.is_empty()) {
        (true, _) => Vec::new(),
        (false, true) => {
            vec![Line::ok(format!("No VolumeAttachment is stuck ({} of the driver)", ours.len()))]
        }
        (false, false) => vec![Line::failed(
            format!(
                "VolumeAttachments wait for more than five minutes: {}{}",
                names(&titles),
                error.map(|error| format!(" ({error})")).unwrap_or_default()
            ),
            "Look at: kubectl describe volumeattachment NAME, and at the log of the node's pod.",
        )],
    })
}

/// Claims with ReadWriteMany work, but only on one node.
fn multi_node(facts: &Facts) -> Part {
    let (Ok(claims), Ok(sets)) = (&facts.claims, &facts.daemon_sets) else {
        return Ok(Vec::new());
    };
    let containers =
        sets.iter().filter_map(|set| driver_container(set.spec.as_ref()?.template.spec.as_ref()?));
    let mut flags = containers.filter_map(|container| flag(container, "reject-multi-node"));
    if flags.any(|value| value == "true") {
        return Ok(Vec::new());
    }
    let many = |claim: &&PersistentVolumeClaim| {
        let modes = claim.spec.as_ref().and_then(|spec| spec.access_modes.as_ref());
        modes.is_some_and(|modes| modes.iter().any(|mode| mode == "ReadWriteMany"))
    };
    let many = of_driver(claims, &facts.driver).into_iter().filter(many);
    let many: Vec<String> = many.map(|claim| title(&claim.metadata)).collect();
    Ok(match many.is_empty() {
        true => Vec::new(),
        false => vec![Line::warning(
            format!("Claims are ReadWriteMany: {}", names(&many)),
            "All pods of such a claim run on one node. To reject such claims, run the driver with \
             --reject-multi-node.",
        )],
    })
}

#[cfg(test)]
mod tests;
