//! A group of several volumes has none of them as a pod was writing to it as a raw block device. Such a
//! volume can't be frozen, so the group would not be of one instant. A refusal for this reason names a
//! volume that is a raw block device.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use serde_json::Value;

use crate::cluster::Cluster;
use crate::model::uses;
use crate::model::view::{is_deleting, items, name, namespace, text, uid};
use crate::oracle::advice::{said_of_group, said_of_snapshot};
use crate::oracle::objects::Objects;
use crate::{messages, trace};

/// The UID of a pod that runs, and the handle of a volume that it has as a raw block device.
type RawUse = (String, String);

/// Raw block devices in use, now and since the beginning of each group.
#[derive(Default)]
pub(super) struct RawMembers {
    /// At the last look.
    in_use: BTreeSet<RawUse>,
    /// Those that have lasted since before a group began, by the UID of its content.
    lasting: BTreeMap<String, BTreeSet<RawUse>>,
    /// The handles of all volumes that any volume object has had as block devices.
    devices: BTreeSet<String>,
}

impl RawMembers {
    /// Checks the contents of all groups, in a calm world. Elsewhere, a pod may run on a node that has
    /// stopped, or the driver may have lost what it knew of a volume.
    pub(super) fn check(
        &mut self,
        cluster: &Cluster,
        volumes: &[Arc<Value>],
        contents: &[Arc<Value>],
    ) {
        let devices = volumes.iter().filter(|volume| is_block_device(volume));
        let devices = devices.map(|volume| text(volume, "/spec/csi/volumeHandle").to_owned());
        self.devices.extend(devices);
        if !cluster.has_no_troubles() {
            return;
        }
        let in_use = raw_uses(&cluster.api.shared("pods"), volumes);
        for breach in self.follow(in_use, contents) {
            trace::violation(breach);
        }
    }

    /// Checks after a quiet time that no filesystem is called a raw block device.
    pub(super) fn are_devices(&self, cluster: &Cluster, objects: &Objects) {
        let groups = objects.groups.iter();
        let of_groups = groups.flat_map(|group| said_of_group(objects, group));
        let snapshots = objects.snapshots.iter();
        let of_snapshots = snapshots.flat_map(|snapshot| said_of_snapshot(objects, snapshot));
        let volumes = cluster.api.shared("persistentvolumes");
        for message in of_groups.chain(of_snapshots) {
            if self.is_of_filesystem(&message, &volumes) {
                trace::violation(format!("no raw block device: {message}"));
            }
        }
    }

    /// True if a message calls a volume a raw block device that has never been one.
    fn is_of_filesystem(&self, message: &str, volumes: &[Arc<Value>]) -> bool {
        messages::in_raw_use(message).is_some_and(|handle| {
            let mut all = volumes.iter();
            let is_known = all.any(|volume| text(volume, "/spec/csi/volumeHandle") == handle);
            is_known && !self.devices.contains(handle)
        })
    }

    /// Follows the raw block devices in use, and says which groups were taken of one.
    fn follow(&mut self, in_use: BTreeSet<RawUse>, contents: &[Arc<Value>]) -> Vec<String> {
        let before = std::mem::replace(&mut self.in_use, in_use);
        let mut known = std::mem::take(&mut self.lasting);
        let mut breaches = Vec::new();
        for content in contents {
            let mut lasting = known.remove(uid(content)).unwrap_or_else(|| before.clone());
            lasting.retain(|one| self.in_use.contains(one));
            if content["status"]["readyToUse"] == true {
                breaches.extend(breach(content, &lasting));
                lasting.clear();
            }
            self.lasting.insert(uid(content).to_owned(), lasting);
        }
        breaches
    }
}

fn is_block_device(volume: &Value) -> bool {
    text(volume, "/spec/volumeMode") == "Block"
}

/// The raw block devices of pods that run.
fn raw_uses(pods: &[Arc<Value>], volumes: &[Arc<Value>]) -> BTreeSet<RawUse> {
    let running = pods
        .iter()
        .filter(|pod| text(pod, "/status/phase") == "Running" && !is_deleting(pod));
    let running: Vec<&Arc<Value>> = running.collect();
    let raw = volumes.iter().filter(|volume| is_block_device(volume));
    raw.flat_map(|volume| {
        let (claim, handle) = (
            &volume["spec"]["claimRef"],
            text(volume, "/spec/csi/volumeHandle"),
        );
        let its = running.iter().filter(move |pod| {
            namespace(pod) == text(claim, "/namespace") && uses(pod, text(claim, "/name"))
        });
        its.map(move |pod| (uid(pod).to_owned(), handle.to_owned()))
    })
    .collect()
}

/// What a ready group breaks that was taken while these were in use.
fn breach(content: &Value, in_use: &BTreeSet<RawUse>) -> Option<String> {
    let handles = items(content, "/spec/source/volumeHandles").filter_map(Value::as_str);
    let handles: Vec<&str> = handles.collect();
    if handles.len() < 2 {
        return None;
    }
    let (pod, handle) = in_use
        .iter()
        .find(|(_, handle)| handles.contains(&handle.as_str()))?;
    Some(format!(
        "not of one instant: group content {} is ready, and pod {pod} had {handle} as a raw block \
         device meanwhile",
        name(content)
    ))
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde_json::json;

    use super::*;

    fn one(handle: &str) -> BTreeSet<RawUse> {
        BTreeSet::from([("pod".to_owned(), handle.to_owned())])
    }

    fn content(handles: &[&str], is_ready: bool) -> Arc<Value> {
        Arc::new(json!({"metadata": {"uid": "1", "name": "g"},
            "spec": {"source": {"volumeHandles": handles}}, "status": {"readyToUse": is_ready}}))
    }

    const BOTH: [&str; 2] = ["v", "w"];

    #[rstest]
    #[case::all_the_time(&BOTH, ["v", "v", "v"], 1)]
    #[case::by_itself(&["v"], ["v", "v", "v"], 0)]
    #[case::of_others(&BOTH, ["x", "x", "x"], 0)]
    #[case::since_the_group_began(&BOTH, ["", "v", "v"], 0)]
    #[case::until_the_group_was_taken(&BOTH, ["v", "v", ""], 0)]
    #[case::again(&BOTH, ["v", "", "v"], 0)]
    fn groups_of_raw_block_devices(
        #[case] handles: &[&str],
        #[case] in_use: [&str; 3],
        #[case] expected: usize,
    ) {
        let mut members = RawMembers::default();
        let [before, begun, ready] = in_use.map(one);
        assert_eq!(members.follow(before, &[]).len(), 0);
        let open = content(handles, false);
        assert_eq!(members.follow(begun, &[open]).len(), 0);
        let taken = [content(handles, true)];
        let found = members.follow(ready.clone(), &taken);
        assert_eq!(found.len(), expected, "{found:?}");
        // Once is enough.
        assert_eq!(members.follow(ready, &taken).len(), 0);
    }

    #[test]
    fn only_a_block_device_is_called_one() {
        let members = RawMembers {
            devices: BTreeSet::from(["raw".to_owned()]),
            ..RawMembers::default()
        };
        let volumes = ["raw", "mounted"];
        let volumes = volumes.map(|handle| json!({"spec": {"csi": {"volumeHandle": handle}}}));
        let volumes = volumes.map(Arc::new);
        for (message, expected) in [
            (
                "volume raw is in use as a raw block device, which can't be frozen",
                false,
            ),
            (
                "volume mounted is in use as a raw block device, which can't be frozen",
                true,
            ),
            (
                "volume gone is in use as a raw block device, which can't be frozen",
                false,
            ),
            (
                "the volume is in use as a raw block device, and its pool rules out a clone",
                false,
            ),
            ("volume mounted is in use", false),
        ] {
            let found = members.is_of_filesystem(message, &volumes);
            assert_eq!(found, expected, "{message}");
        }
    }

    #[test]
    fn a_group_may_be_ready_at_the_first_look() {
        let mut members = RawMembers::default();
        members.follow(one("v"), &[]);
        assert_eq!(members.follow(one("v"), &[content(&BOTH, true)]).len(), 1);
    }

    #[rstest]
    #[case::block("Block", "Running", "c1", true)]
    #[case::filesystem("Filesystem", "Running", "c1", false)]
    #[case::starting("Block", "Pending", "c1", false)]
    #[case::of_another("Block", "Running", "c2", false)]
    fn raw_block_devices_in_use(
        #[case] mode: &str,
        #[case] phase: &str,
        #[case] claim: &str,
        #[case] expected: bool,
    ) {
        let volume = json!({"spec": {"volumeMode": mode, "csi": {"volumeHandle": "v"},
            "claimRef": {"name": "c1", "namespace": "u"}}});
        let volumes = [json!({"name": "v0", "persistentVolumeClaim": {"claimName": claim}})];
        let pod = json!({"metadata": {"uid": "pod", "name": "p1", "namespace": "u"},
            "spec": {"volumes": volumes}, "status": {"phase": phase}});
        let found = raw_uses(&[Arc::new(pod)], &[Arc::new(volume)]);
        assert_eq!(found, if expected { one("v") } else { BTreeSet::new() });
    }
}
