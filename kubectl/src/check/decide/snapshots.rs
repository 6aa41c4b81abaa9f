//! The snapshot API, the cluster's snapshot controller, and the driver's VolumeSnapshotClass.

use hostloop_api_objects::constants::{GROUP_SNAPSHOT_GROUP, SNAPSHOT_GROUP};

use super::{Part, join, known, leader, snapshot_controllers};
use crate::check::facts::{Facts, ServedKinds, Unknown};
use crate::check::line::{Line, names};

const KINDS: [&str; 3] = [
    "volumesnapshots",
    "volumesnapshotcontents",
    "volumesnapshotclasses",
];
const GROUP_KINDS: [&str; 3] = [
    "volumegroupsnapshots",
    "volumegroupsnapshotcontents",
    "volumegroupsnapshotclasses",
];
/// The version that hostloop uses of all of them.
const VERSION: &str = "v1";

const INSTALL: &str = "kubectl hostloop install --snapshot-controller yes";

pub(super) fn lines(facts: &Facts) -> Vec<Line> {
    let served = match known("Snapshot API", &facts.served) {
        Ok(served) => served,
        Err(line) => return vec![line],
    };
    let mut parts = vec![Ok(vec![kinds(served)])];
    // Without the kinds, nothing needs a controller or a class.
    if has_snapshots(served) {
        parts.extend([
            Ok(vec![group_kinds(served)]),
            controller(facts),
            class(facts),
        ]);
    }
    join(parts)
}

/// True if the server serves all kinds of snapshots.
pub(in crate::check) fn has_snapshots(served: &ServedKinds) -> bool {
    KINDS
        .iter()
        .all(|kind| served.has(SNAPSHOT_GROUP, kind, VERSION))
}

fn missing(served: &ServedKinds, group: &str, kinds: &[&'static str]) -> Vec<&'static str> {
    kinds
        .iter()
        .filter(|kind| !served.has(group, kind, VERSION))
        .copied()
        .collect()
}

fn versions(served: &ServedKinds, group: &str, kinds: &[&str]) -> String {
    let all = kinds.iter().flat_map(|kind| served.versions(group, kind));
    let all: std::collections::BTreeSet<&str> = all.collect();
    all.into_iter().collect::<Vec<_>>().join(", ")
}

fn kinds(served: &ServedKinds) -> Line {
    let missing = missing(served, SNAPSHOT_GROUP, &KINDS);
    match missing.len() {
        0 => Line::ok(format!(
            "The snapshot kinds are served: {}",
            versions(served, SNAPSHOT_GROUP, &KINDS)
        )),
        n if n == KINDS.len() => Line::skipped(format!(
            "Snapshots are left out: the server does not serve {SNAPSHOT_GROUP}/{VERSION}. \
             To have them: {INSTALL}"
        )),
        _ => Line::failed(
            format!(
                "The server lacks {} of {SNAPSHOT_GROUP}/{VERSION}",
                missing.join(", ")
            ),
            format!("Install all CustomResourceDefinitions of snapshots: {INSTALL}"),
        ),
    }
}

fn group_kinds(served: &ServedKinds) -> Line {
    let missing = missing(served, GROUP_SNAPSHOT_GROUP, &GROUP_KINDS);
    let versions = versions(served, GROUP_SNAPSHOT_GROUP, &GROUP_KINDS);
    match (missing.len(), versions.as_str()) {
        (0, _) => Line::ok(format!("The group snapshot kinds are served: {versions}")),
        (3, "") => Line::skipped(format!(
            "Group snapshots are left out: the server does not serve \
             {GROUP_SNAPSHOT_GROUP}/{VERSION}"
        )),
        (3, _) => Line::skipped(format!(
            "Group snapshots are left out: the server serves {GROUP_SNAPSHOT_GROUP} as \
             {versions}, and hostloop uses {VERSION}"
        )),
        (_, _) => Line::failed(
            format!(
                "The server lacks {} of {GROUP_SNAPSHOT_GROUP}/{VERSION}",
                missing.join(", ")
            ),
            format!("Install all CustomResourceDefinitions of group snapshots: {INSTALL}"),
        ),
    }
}

fn controller(facts: &Facts) -> Part {
    let deployments = known("Snapshot controller", &facts.deployments)?;
    let found = snapshot_controllers(deployments);
    let lease = facts.snapshot_lease.as_ref().ok().and_then(Option::as_ref);
    let holder = lease.and_then(|lease| leader::state(lease, facts.now).ok());
    Ok(vec![match (found.as_slice(), holder) {
        ([one], _) => Line::ok(format!("One snapshot controller runs: {one}")),
        ([], Some(holder)) => Line::ok(format!("A snapshot controller runs: {holder}")),
        ([], None) => Line::failed(
            "No snapshot controller runs: VolumeSnapshots stay without a content",
            format!("Let hostloop be the snapshot controller: {INSTALL}"),
        ),
        (several, _) => Line::warning(
            format!(
                "{} snapshot controllers are installed: {}",
                several.len(),
                names(several)
            ),
            "One is enough. To leave snapshots to the other one: kubectl hostloop install \
             --snapshot-controller no",
        ),
    }])
}

fn class(facts: &Facts) -> Part {
    let classes = match &facts.snapshot_classes {
        Err(Unknown::NotServed(_)) => return Ok(Vec::new()),
        fact => known("VolumeSnapshotClass", fact)?,
    };
    let ours = classes.iter().filter(|class| class.driver == facts.driver);
    let ours: Vec<&str> = ours
        .filter_map(|class| class.metadata.name.as_deref())
        .collect();
    Ok(vec![if ours.is_empty() {
        Line::warning(
            format!("No VolumeSnapshotClass has the driver {}", facts.driver),
            "A VolumeSnapshot needs one. Run `kubectl hostloop install` again to create it.",
        )
    } else {
        Line::ok(format!(
            "The driver has a VolumeSnapshotClass: {}",
            names(ours)
        ))
    }])
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde_json::json;

    use super::*;
    use crate::check::decide::testing::{good, marks, object};
    use crate::check::line::Mark::{self, *};

    fn served(kinds: &[(&str, &str, &str)]) -> ServedKinds {
        let mut served = ServedKinds::default();
        for (group, kind, version) in kinds {
            served.add(group, kind, version);
        }
        served
    }

    #[rstest]
    #[case::none(&[], Skipped, "left out")]
    #[case::some(&["volumesnapshots"], Failed, "volumesnapshotcontents, volumesnapshotclasses")]
    #[case::all(&KINDS, Passed, "v1")]
    fn single(#[case] kinds: &[&str], #[case] mark: Mark, #[case] text: &str) {
        let kinds: Vec<_> = kinds
            .iter()
            .map(|kind| (SNAPSHOT_GROUP, *kind, "v1"))
            .collect();
        let line = super::kinds(&served(&kinds));
        assert_eq!(line.mark, mark);
        assert!(line.text.contains(text), "{line:?}");
    }

    #[rstest]
    #[case::none(&[], Skipped, "does not serve")]
    #[case::older(&["v1beta1", "v1beta2"], Skipped, "as v1beta1, v1beta2, and hostloop uses v1")]
    #[case::both(&["v1beta2", "v1"], Passed, "v1, v1beta2")]
    fn groups(#[case] versions: &[&str], #[case] mark: Mark, #[case] text: &str) {
        let mut served = ServedKinds::default();
        for kind in GROUP_KINDS {
            for version in versions {
                served.add(GROUP_SNAPSHOT_GROUP, kind, version);
            }
        }
        let line = group_kinds(&served);
        assert_eq!(line.mark, mark);
        assert!(line.text.contains(text), "{line:?}");
    }

    #[rstest]
    #[case::one(1, false, Passed)]
    #[case::two(2, false, Warning)]
    #[case::elsewhere(0, true, Passed)]
    #[case::none(0, false, Failed)]
    fn controllers(#[case] count: usize, #[case] leased: bool, #[case] mark: Mark) {
        let mut facts = good();
        let deployment = json!({
            "metadata": {"name": "snapshot-controller", "namespace": "kube-system"},
            "spec": {"selector": {}, "template": {"spec": {"containers":
                [{"name": "c", "image": "snapshot-controller:v8"}]}}},
        });
        facts.deployments = Ok(vec![object(deployment); count]);
        let lease = facts.lease.clone().unwrap();
        facts.snapshot_lease = Ok(lease.filter(|_| leased));
        assert_eq!(marks(&controller(&facts).unwrap()), [mark]);
    }

    #[test]
    fn a_class_of_another_driver_is_not_ours() {
        let mut facts = good();
        assert_eq!(marks(&class(&facts).unwrap()), [Passed]);
        facts.driver = "other".into();
        assert_eq!(marks(&class(&facts).unwrap()), [Warning]);
        facts.snapshot_classes = Err(Unknown::NotServed("it".into()));
        assert_eq!(class(&facts), Ok(vec![]));
    }
}
