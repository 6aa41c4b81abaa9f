//! What is stuck, as `status` judges it, and claims that ask for more than one node.

use k8s_openapi::api::core::v1::PersistentVolumeClaim;

use super::{driver_container, flag, known};
use crate::check::facts::Facts;
use crate::check::line::{Line, names};
use crate::status::{self, ClusterFacts, VolumeRow};
use crate::verdict::{FailedCalls, Stuck, VolumePhase, attachment_stuck};
use crate::volume_objects::{VolumeObjects, is_shared, makes_shared, provisioner, title};

pub(super) fn lines(facts: &Facts) -> Vec<Line> {
    let objects = match known("Claims and volumes", &facts.objects) {
        Ok(objects) => objects,
        Err(line) => return vec![line],
    };
    let now_ns = u64::try_from(facts.now.as_nanosecond()).unwrap_or_default();
    let report = status::join(&ClusterFacts {
        objects,
        nodes: &facts.reports,
        driver: &facts.driver,
        namespace: None,
        failed_calls: &FailedCalls::default(),
        now_ns,
    });
    let skipped = objects
        .missing
        .iter()
        .map(|why| Line::skipped(format!("Not looked at: {why}")));
    let mut lines: Vec<Line> = skipped.collect();
    lines.extend(claims(&report.volumes));
    lines.extend(volumes(&report.volumes));
    let snapshots = report.snapshots.iter();
    let snapshots = snapshots.filter_map(|row| {
        let name = row.name.as_ref().or(row.content.as_ref())?;
        Some((
            in_namespace(row.namespace.as_ref(), name),
            row.stuck.as_ref()?,
        ))
    });
    let look = "kubectl hostloop status --all-namespaces";
    lines.extend(stuck(
        Line::warning,
        "VolumeSnapshots are stuck",
        snapshots,
        look,
    ));
    lines.extend(attachments(facts, objects, now_ns));
    lines.extend(multi_node(facts, objects));
    lines
}

/// A line about stuck objects: their names, the first reason, and where to look.
fn stuck<'a>(
    line: fn(String, String) -> Line,
    what: &str,
    found: impl Iterator<Item = (String, &'a Stuck)>,
    look: &str,
) -> Option<Line> {
    let found: Vec<_> = found.collect();
    let (first, Stuck { why, .. }) = found.first()?;
    let advice = format!("{first}: {why}. Look at: {look}");
    Some(line(
        format!("{what}: {}", names(found.iter().map(|(name, _)| name))),
        advice,
    ))
}

fn in_namespace(namespace: Option<&String>, name: &str) -> String {
    namespace.map_or_else(
        || name.to_owned(),
        |namespace| format!("{namespace}/{name}"),
    )
}

fn claims(rows: &[VolumeRow]) -> Vec<Line> {
    let ours: Vec<_> = rows
        .iter()
        .filter_map(|row| Some((row, row.claim.as_ref()?)))
        .collect();
    let look = "kubectl hostloop describe CLAIM -n NAMESPACE";
    let waiting = stuck_claims(&ours, false);
    let waiting = stuck(Line::warning, "Claims are stuck", waiting, look);
    let look = "kubectl hostloop status. Its volume may still be in the pool";
    let lost = stuck(
        Line::failed,
        "Claims have lost their PersistentVolume",
        stuck_claims(&ours, true),
        look,
    );
    let lines: Vec<Line> = waiting.into_iter().chain(lost).collect();
    if lines.is_empty() {
        return vec![Line::ok(format!(
            "No claim is stuck ({} of the driver)",
            ours.len()
        ))];
    }
    lines
}

/// The stuck ones of these claims: of those that have lost their volume, or of the others.
fn stuck_claims<'a>(
    claims: &[(&'a VolumeRow, &'a String)],
    is_lost: bool,
) -> impl Iterator<Item = (String, &'a Stuck)> {
    claims
        .iter()
        .filter(move |(row, _)| (row.state == VolumePhase::Lost) == is_lost)
        .filter_map(|&(row, claim)| {
            Some((
                in_namespace(row.namespace.as_ref(), claim),
                row.stuck.as_ref()?,
            ))
        })
}

fn without_claim(rows: &[VolumeRow]) -> impl Iterator<Item = &VolumeRow> {
    rows.iter().filter(|row| row.claim.is_none())
}

/// PersistentVolumes without a claim, and inline volumes.
fn volumes(rows: &[VolumeRow]) -> Vec<Line> {
    let volumes =
        without_claim(rows).filter_map(|row| Some((row.volume.clone()?, row.stuck.as_ref()?)));
    let look = "kubectl describe pv NAME. A volume stays while its node is down or a pod has it \
                mounted";
    let volumes = stuck(Line::failed, "PersistentVolumes are stuck", volumes, look);
    let inline = without_claim(rows).filter_map(|row| {
        Some((
            in_namespace(row.namespace.as_ref(), &row.inline_name()?),
            row.stuck.as_ref()?,
        ))
    });
    let look = "kubectl describe pod NAME -n NAMESPACE";
    let inline = stuck(Line::warning, "Inline volumes are stuck", inline, look);
    volumes.into_iter().chain(inline).collect()
}

fn attachments(facts: &Facts, objects: &VolumeObjects, now_ns: u64) -> Option<Line> {
    let ours = objects
        .attachments
        .iter()
        .filter(|a| a.spec.attacher == facts.driver);
    let count = ours.clone().count();
    let judged: Vec<_> = ours
        .filter_map(|a| Some((title(&a.metadata), attachment_stuck(a, now_ns)?)))
        .collect();
    let found = judged.iter().map(|(name, stuck)| (name.clone(), stuck));
    let look = "kubectl describe volumeattachment NAME, and the log of the node's pod";
    let line = stuck(Line::failed, "VolumeAttachments are stuck", found, look);
    if line.is_some() || count == 0 {
        return line;
    }
    Some(Line::ok(format!(
        "No VolumeAttachment is stuck ({count} of the driver)"
    )))
}

/// Claims with ReadWriteMany work, but only on one node, unless nodes share the volume.
fn multi_node(facts: &Facts, objects: &VolumeObjects) -> Vec<Line> {
    let Ok(sets) = &facts.daemon_sets else {
        return Vec::new();
    };
    let containers = sets
        .iter()
        .filter_map(|set| driver_container(set.spec.as_ref()?.template.spec.as_ref()?));
    let mut flags = containers.filter_map(|container| flag(container, "reject-multi-node"));
    if flags.any(|value| value == "true") {
        return Vec::new();
    }
    let ours = objects
        .claims
        .iter()
        .filter(|claim| provisioner(claim) == Some(facts.driver.as_str()));
    let many = ours.filter(|claim| is_for_many_nodes(claim) && !is_shared_claim(objects, claim));
    let many: Vec<String> = many.map(|claim| title(&claim.metadata)).collect();
    if many.is_empty() {
        return Vec::new();
    }
    vec![Line::warning(
        format!("Claims are ReadWriteMany: {}", names(&many)),
        "All pods of such a claim run on one node. To reject such claims, run the driver with \
         --reject-multi-node.",
    )]
}

/// True if nodes that share a kernel share the claim's volume, or will.
fn is_shared_claim(objects: &VolumeObjects, claim: &PersistentVolumeClaim) -> bool {
    match objects.volume_of(claim) {
        Some(volume) => is_shared(volume),
        None => objects.class_of(claim).is_some_and(makes_shared),
    }
}

fn is_for_many_nodes(claim: &PersistentVolumeClaim) -> bool {
    let modes = claim
        .spec
        .as_ref()
        .and_then(|spec| spec.access_modes.as_ref());
    modes.is_some_and(|modes| modes.iter().any(|mode| mode == "ReadWriteMany"))
}

#[cfg(test)]
mod tests;
