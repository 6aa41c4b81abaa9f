//! What of the snapshot API is installed: definitions, classes, a controller.

use std::collections::BTreeMap;

use hostloop_api_objects::constants::{GROUP_SNAPSHOT_GROUP, SNAPSHOT_GROUP};
use serde_json::Value;

use super::Choice;
use crate::manifests::{self, ObjectKey, Snapshots};

/// A CustomResourceDefinition in the cluster.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Definition {
    /// The versions that it serves.
    pub(super) versions: Vec<String>,
    /// True if `install` applied it.
    pub(super) is_ours: bool,
}

impl Definition {
    pub(super) fn of(object: &Value) -> Self {
        let versions = object["spec"]["versions"].as_array().into_iter().flatten();
        let served = versions.filter(|version| version["served"] == true);
        Definition {
            versions: served
                .filter_map(|v| v["name"].as_str())
                .map(str::to_owned)
                .collect(),
            is_ours: manifests::is_applied(object),
        }
    }

    fn serves_v1(&self) -> bool {
        self.versions.iter().any(|version| version == "v1")
    }
}

/// What of the snapshot API a cluster has.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct SnapshotApi {
    /// Definitions by name.
    pub(super) definitions: BTreeMap<String, Definition>,
    /// Signs of snapshot controllers other than hostloop.
    pub(super) controllers: Vec<String>,
    /// hostloop is the snapshot controller.
    pub(super) is_ours: bool,
}

/// What is done with the definitions.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Definitions {
    /// The definitions to create or to update.
    pub(super) apply: Vec<Value>,
    /// The number of those that exist and stay as they are.
    pub(super) kept: usize,
}

impl Definitions {
    /// Adds a definition, unless the cluster has one that another program made.
    pub(super) fn add(&mut self, object: Value, existing: Option<&Definition>) {
        if existing.is_none_or(|definition| definition.is_ours) {
            self.apply.push(object);
        } else {
            self.kept += 1;
        }
    }

    pub(super) fn applied(&self) -> impl Iterator<Item = Value> {
        self.apply.clone().into_iter()
    }
}

/// The decision about snapshots.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Decision {
    pub(super) definitions: Definitions,
    pub(super) snapshots: Snapshots,
    /// What the report says.
    pub(super) said: String,
    pub(super) warnings: Vec<String>,
}

/// Decides by the person's choice and the cluster; `None` is a cluster that nothing is known of.
/// Definitions belong to the cluster: one that another program made is never changed.
pub(super) fn decide(choice: Choice, found: Option<&SnapshotApi>) -> Decision {
    let nothing = SnapshotApi::default();
    let cluster = found.unwrap_or(&nothing);
    let is_controller = match choice {
        Choice::Yes => true,
        Choice::No => false,
        Choice::Auto => found.is_some() && (cluster.is_ours || cluster.controllers.is_empty()),
    };
    let mut decision = Decision::default();
    let mut has_v1 = BTreeMap::new();
    for object in manifests::crds() {
        let name = ObjectKey::of(&object).name;
        let existing = cluster.definitions.get(&name);
        let is_applied = match existing {
            None => is_controller,
            Some(definition) => definition.is_ours,
        };
        has_v1.insert(
            name.clone(),
            is_applied || existing.is_some_and(Definition::serves_v1),
        );
        match (is_applied, existing) {
            (true, _) => decision.definitions.apply.push(object),
            (false, None) => {}
            (false, Some(definition)) => {
                decision.definitions.kept += 1;
                if !definition.serves_v1() {
                    decision.warnings.push(too_old(&name, definition));
                }
            }
        }
    }
    decision.snapshots = Snapshots {
        class: have_v1(&has_v1, SNAPSHOT_GROUP),
        group_class: have_v1(&has_v1, GROUP_SNAPSHOT_GROUP),
        controller: is_controller,
    };
    let others = cluster.controllers.join(", ");
    decision.said = match (is_controller, others.as_str()) {
        (true, "") => "hostloop is the cluster's snapshot controller".to_owned(),
        (true, others) => {
            format!("hostloop is a snapshot controller beside {others}: one is enough")
        }
        (false, "") => "no snapshot controller".to_owned(),
        (false, others) => format!("snapshot controller: {others}"),
    };
    decision
}

/// True if all definitions of a group have v1.
fn have_v1(definitions: &BTreeMap<String, bool>, group: &str) -> bool {
    let suffix = format!(".{group}");
    definitions
        .iter()
        .filter(|(name, _)| name.ends_with(&suffix))
        .all(|(_, has_v1)| *has_v1)
}

fn too_old(name: &str, definition: &Definition) -> String {
    format!(
        "CRD {name} serves {} and not v1, so hostloop can't use it; its owner must \
         update it",
        definition.versions.join(", ")
    )
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::manifests::MANAGER;

    #[test]
    fn a_definition_of_another_program_stays() {
        let versions = vec!["v1beta1".to_owned()];
        for (is_ours, applied) in [(None, 1), (Some(true), 1), (Some(false), 0)] {
            let existing = is_ours.map(|is_ours| Definition {
                versions: versions.clone(),
                is_ours,
            });
            let mut definitions = Definitions::default();
            definitions.add(manifests::metadata_crd(), existing.as_ref());
            assert_eq!(definitions.apply.len(), applied, "{is_ours:?}");
            assert_eq!(definitions.kept, 1 - applied, "{is_ours:?}");
        }
    }

    /// Definitions that the cluster has: of single snapshots, and of groups.
    fn cluster(single: Option<(&str, bool)>, groups: Option<(&str, bool)>) -> SnapshotApi {
        let mut found = SnapshotApi::default();
        for object in manifests::crds() {
            let name = ObjectKey::of(&object).name;
            let one = if name.contains(".groupsnapshot.") {
                groups
            } else {
                single
            };
            if let Some((version, is_ours)) = one {
                let versions = vec![version.to_owned()];
                found
                    .definitions
                    .insert(name, Definition { versions, is_ours });
            }
        }
        found
    }

    const OTHER: &str = "Deployment kube-system/snapshot-controller";

    #[test]
    fn snapshots_by_choice_and_cluster() {
        let theirs = Some(("v1", false));
        let ours = Some(("v1", true));
        let old = Some(("v1beta2", false));
        let none = || Some(cluster(None, None));
        let other = |mut found: SnapshotApi| {
            found.controllers.push(OTHER.to_owned());
            Some(found)
        };
        let all = (true, true, true);
        for (choice, found, applied, (class, group_class, controller), warnings) in [
            // nothing known of the cluster
            (Choice::Auto, None, 0, (false, false, false), 0),
            (Choice::Yes, None, 6, all, 0),
            (Choice::No, None, 0, (false, false, false), 0),
            // an empty one
            (Choice::Auto, none(), 6, all, 0),
            (Choice::Yes, none(), 6, all, 0),
            (Choice::No, none(), 0, (false, false, false), 0),
            // definitions of another program
            (Choice::Auto, Some(cluster(theirs, theirs)), 0, all, 0),
            (
                Choice::No,
                Some(cluster(theirs, theirs)),
                0,
                (true, true, false),
                0,
            ),
            // ours are updated
            (Choice::Auto, Some(cluster(ours, ours)), 6, all, 0),
            (
                Choice::No,
                Some(cluster(ours, ours)),
                6,
                (true, true, false),
                0,
            ),
            // another controller, with and without groups
            (
                Choice::Auto,
                other(cluster(theirs, theirs)),
                0,
                (true, true, false),
                0,
            ),
            (
                Choice::Auto,
                other(cluster(theirs, None)),
                0,
                (true, false, false),
                0,
            ),
            (
                Choice::Auto,
                other(cluster(theirs, old)),
                0,
                (true, false, false),
                3,
            ),
            (Choice::Yes, other(cluster(theirs, None)), 3, all, 0),
            (
                Choice::Yes,
                other(cluster(theirs, old)),
                0,
                (true, false, true),
                3,
            ),
        ] {
            let decision = decide(choice, found.as_ref());
            let what = format!("{choice:?} {found:?}");
            assert_eq!(decision.definitions.apply.len(), applied, "{what}");
            assert_eq!(
                decision.snapshots,
                Snapshots {
                    class,
                    group_class,
                    controller
                },
                "{what}"
            );
            assert_eq!(decision.warnings.len(), warnings, "{what}");
        }
    }

    #[test]
    fn hostloop_stays_the_controller() {
        let mut found = cluster(None, None);
        found.is_ours = true;
        found.controllers.push(OTHER.to_owned());
        let decision = decide(Choice::Auto, Some(&found));
        assert!(decision.snapshots.controller);
        assert!(
            decision.said.ends_with("one is enough"),
            "{}",
            decision.said
        );
    }

    #[test]
    fn definitions_by_what_they_serve() {
        let object = json!({"metadata": {"managedFields": [{"manager": "other"}, {"manager": MANAGER}]},
            "spec": {"versions": [{"name": "v1beta1", "served": false}, {"name": "v1", "served": true}]}});
        let definition = Definition::of(&object);
        assert_eq!(definition.versions, ["v1"]);
        assert!(definition.is_ours);
        assert!(!Definition::of(&json!({})).is_ours);
    }
}
