//! Where files share blocks, a volume can be cloned at one instant while a pod has it as a raw block
//! device. So nothing refuses a snapshot of it alone for that. A thick volume shares no blocks.

use std::collections::BTreeSet;

use hostloop_driver::storage::Provisioning;
use serde_json::Value;

use crate::cluster::Cluster;
use crate::model::view::{group_reference, items, name, text};
use crate::oracle::advice::{said_of_group, said_of_snapshot};
use crate::oracle::objects::Objects;
use crate::{messages, trace};

/// The handles of volumes that are thick, or were.
#[derive(Default)]
pub(super) struct RawSnapshots {
    thick: BTreeSet<String>,
}

impl RawSnapshots {
    /// Notes which volumes are thick.
    pub(super) fn note(&mut self, cluster: &Cluster) {
        if !clones_for_certain(cluster) {
            return;
        }
        for machine in &cluster.machines {
            let volumes = machine.contents().volumes.into_iter();
            let thick =
                volumes.filter(|volume| volume.settings.provisioning == Provisioning::Thick);
            self.thick.extend(thick.map(|volume| volume.id.to_string()));
        }
    }

    /// Checks after a quiet time what is said about snapshots of one volume.
    pub(super) fn check(&self, cluster: &Cluster, objects: &Objects) {
        if !clones_for_certain(cluster) {
            return;
        }
        let snapshots = objects.snapshots.iter();
        for snapshot in snapshots.filter(|snapshot| group_reference(snapshot).is_none()) {
            let content = objects.content(snapshot);
            let volume = content.map(|content| text(content, "/spec/source/volumeHandle"));
            let said = said_of_snapshot(objects, snapshot);
            self.report(("snapshot", snapshot), volume, &said);
        }
        for group in objects.groups.iter().map(|group| &**group) {
            let volume = objects.group_content(group).and_then(only_volume);
            let said = said_of_group(objects, group);
            self.report(("group", group), volume, &said);
        }
    }

    fn report(&self, (noun, object): (&str, &Value), volume: Option<&str>, said: &[String]) {
        if let Some(why) = volume.and_then(|volume| self.wrong_refusal(volume, said)) {
            trace::violation(format!(
                "refused although it can be cloned: {noun} {}: {why}",
                name(object)
            ));
        }
    }

    /// What is said of a snapshot of this volume that is true of no thin one.
    fn wrong_refusal<'a>(&self, volume: &str, said: &'a [String]) -> Option<&'a String> {
        let mut refusals = said.iter().filter(|why| messages::is_about_raw_use(why));
        refusals.next().filter(|_| !self.thick.contains(volume))
    }
}

/// True if files share blocks, and nothing has failed that recovers.
fn clones_for_certain(cluster: &Cluster) -> bool {
    cluster.has_no_troubles() && cluster.machines.iter().all(|one| one.shares_blocks())
}

/// The volume of a group that has no other.
fn only_volume(content: &Value) -> Option<&str> {
    let mut volumes = items(content, "/spec/source/volumeHandles");
    let first = volumes.next()?.as_str();
    first.filter(|_| volumes.next().is_none())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn only_a_thick_volume_is_refused_as_a_raw_block_device() {
        let oracle = RawSnapshots {
            thick: BTreeSet::from(["thick".to_owned()]),
        };
        let raw = "CreateSnapshot: FailedPrecondition: the volume is in use as a raw block device, \
                   and its pool (or thick provisioning) rules out a clone";
        for (volume, said, expected) in [
            ("thin", raw, true),
            ("thick", raw, false),
            ("thin", "CreateSnapshot: ResourceExhausted: no room", false),
        ] {
            let said = ["there is no VolumeSnapshotClass none", said].map(str::to_owned);
            let found = oracle.wrong_refusal(volume, &said);
            assert_eq!(found.is_some(), expected, "{volume}: {}", said[1]);
        }
    }

    #[test]
    fn a_group_may_have_one_volume() {
        for (handles, expected) in [
            (json!(["v"]), Some("v")),
            (json!(["v", "w"]), None),
            (json!([]), None),
        ] {
            let content = json!({"spec": {"source": {"volumeHandles": handles}}});
            assert_eq!(only_volume(&content), expected, "{content}");
        }
    }
}
