//! What a user or the world can do.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::history::trouble::Trouble;
use crate::history::unusual::Unusual;
use crate::history::{ForeignStep, is_false};

/// What a user or the world can do.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", tag = "do")]
pub(crate) enum Action {
    /// Creates a claim, maybe with a source.
    #[serde(rename_all = "camelCase")]
    Claim {
        name: String,
        class: String,
        size: String,
        #[serde(default, skip_serializing_if = "is_false")]
        block: bool,
        mode: String,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        source: Option<Source>,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        attributes: Option<String>,
    },
    /// Deletes a claim.
    DeleteClaim { name: String },
    /// Creates a pod that uses claims.
    Pod { name: String, claims: Vec<String> },
    /// Creates a pod with an inline volume.
    InlinePod { name: String, size: String },
    /// Creates a pod with a claim that belongs to it.
    EphemeralPod {
        name: String,
        class: String,
        size: String,
    },
    /// Deletes a pod.
    DeletePod { name: String },
    /// Takes a snapshot of a claim.
    Snapshot {
        name: String,
        claim: String,
        class: String,
    },
    /// Creates a snapshot and a content for data that may not exist.
    #[serde(rename_all = "camelCase")]
    Preprovisioned {
        name: String,
        handle: String,
        policy: String,
    },
    /// Creates a group of snapshots and a content for data that does not exist.
    PreprovisionedGroup {
        name: String,
        handle: String,
        policy: String,
    },
    /// Deletes a snapshot.
    DeleteSnapshot { name: String },
    /// Deletes the content of a snapshot.
    DeleteContent { snapshot: String },
    /// Gives a claim a label. Groups select claims by their labels.
    Label { name: String, label: String },
    /// Takes a snapshot of all claims with a label, at one instant.
    Group {
        name: String,
        label: String,
        class: String,
    },
    /// Deletes a group, with its members.
    DeleteGroup { name: String },
    /// Deletes the content of a group.
    DeleteGroupContent { group: String },
    /// Deletes a member of a group: the one with this number, counted in the order of their names.
    DeleteMember { group: String, number: u64 },
    /// Creates a claim with the data of a member of a group.
    RestoreMember {
        name: String,
        group: String,
        number: u64,
        class: String,
        size: String,
    },
    /// Gives a snapshot up without its data, and creates another one of this data.
    Adopt {
        name: String,
        snapshot: String,
        policy: String,
    },
    /// Replaces the volume object that a deleted claim has left, and creates a claim for the new
    /// one.
    AdoptVolume {
        name: String,
        claim: String,
        policy: String,
        /// The new object says that another provisioner made the volume.
        #[serde(default, skip_serializing_if = "is_false")]
        elsewhere: bool,
    },
    /// Requests more of a claim, in bytes.
    Grow { name: String, by: u64 },
    /// Requests only a little more than the claim has.
    TakeBack { name: String },
    /// Selects a class of attributes.
    Attributes { name: String, class: String },
    /// Changes what happens to the data of a claim's volume.
    Reclaim { name: String, policy: String },
    /// Deletes the volume object of a claim.
    DeleteVolume { name: String },
    /// Creates a class of volumes again. Only old files have this: see [`Unusual::MakeClass`].
    Class { name: String },
    /// Deletes a class of volumes. Only old files have this: see [`Unusual::RemoveClass`].
    DeleteClass { name: String },
    /// Creates the users' namespace again.
    Namespace,
    /// Deletes the users' namespace, with all that is in it.
    DeleteNamespace,
    /// A user or an administrator does something unusual.
    Unusual { unusual: Unusual },
    /// A user of another driver does something.
    Foreign { step: ForeignStep },
    /// The world does something.
    World { trouble: Trouble },
}

/// Where the data of a new claim comes from.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) enum Source {
    Snapshot(String),
    Claim(String),
}

impl fmt::Display for Action {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Action::Claim {
                name,
                class,
                size,
                block,
                mode,
                source,
                attributes,
            } => {
                write!(f, "claim {name}: {size} of class {class}, {mode}")?;
                if *block {
                    write!(f, ", as a block device")?;
                }
                match source {
                    Some(Source::Snapshot(source)) => write!(f, ", from snapshot {source}")?,
                    Some(Source::Claim(source)) => write!(f, ", from claim {source}")?,
                    None => {}
                }
                attributes
                    .iter()
                    .try_for_each(|class| write!(f, ", attributes {class}"))
            }
            Action::DeleteClaim { name } => write!(f, "delete claim {name}"),
            Action::Pod { name, claims } => write!(f, "pod {name} with {}", claims.join(" and ")),
            Action::InlinePod { name, size } => {
                write!(f, "pod {name} with an inline volume of {size}")
            }
            Action::EphemeralPod { name, class, size } => {
                write!(
                    f,
                    "pod {name} with a claim of its own: {size} of class {class}"
                )
            }
            Action::DeletePod { name } => write!(f, "delete pod {name}"),
            Action::Snapshot { name, claim, class } => {
                write!(f, "snapshot {name} of claim {claim}, class {class}")
            }
            Action::Preprovisioned {
                name,
                handle,
                policy,
            } => {
                write!(
                    f,
                    "snapshot {name} of the existing data {handle:?}, {policy}"
                )
            }
            Action::PreprovisionedGroup {
                name,
                handle,
                policy,
            } => {
                write!(f, "group {name} of the existing data {handle:?}, {policy}")
            }
            Action::DeleteSnapshot { name } => write!(f, "delete snapshot {name}"),
            Action::DeleteContent { snapshot } => {
                write!(f, "delete the content of snapshot {snapshot}")
            }
            Action::Label { name, label } => write!(f, "give claim {name} the label {label}"),
            Action::Group { name, label, class } => {
                write!(
                    f,
                    "group {name} of all claims with label {label}, class {class}"
                )
            }
            Action::DeleteGroup { name } => write!(f, "delete group {name}"),
            Action::DeleteGroupContent { group } => {
                write!(f, "delete the content of group {group}")
            }
            Action::DeleteMember { group, number } => {
                write!(f, "delete member {number} of group {group}")
            }
            Action::RestoreMember {
                name,
                group,
                number,
                class,
                size,
            } => write!(
                f,
                "claim {name}: {size} of class {class}, from member {number} of group {group}"
            ),
            Action::Adopt {
                name,
                snapshot,
                policy,
            } => write!(
                f,
                "give snapshot {snapshot} up, and take its data over as {name}, {policy}"
            ),
            Action::AdoptVolume {
                name,
                claim,
                policy,
                elsewhere,
            } => {
                write!(
                    f,
                    "take the volume that claim {claim} has left over as claim {name}, {policy}"
                )?;
                if *elsewhere {
                    write!(f, ", as another provisioner's")?;
                }
                Ok(())
            }
            Action::Grow { name, by } => write!(f, "grow claim {name} by {by} bytes"),
            Action::TakeBack { name } => {
                write!(f, "take the growth of claim {name} back as far as possible")
            }
            Action::Attributes { name, class } => {
                write!(f, "give claim {name} the attributes {class}")
            }
            Action::Reclaim { name, policy } => {
                write!(f, "set the volume of claim {name} to {policy}")
            }
            Action::DeleteVolume { name } => write!(f, "delete the volume object of claim {name}"),
            Action::Class { name } => write!(f, "create class {name} again"),
            Action::DeleteClass { name } => write!(f, "delete class {name}"),
            Action::Namespace => f.write_str("create the namespace again"),
            Action::DeleteNamespace => f.write_str("delete the namespace"),
            Action::Unusual { unusual } => fmt::Display::fmt(unusual, f),
            Action::Foreign { step } => fmt::Display::fmt(step, f),
            Action::World { trouble } => fmt::Display::fmt(trouble, f),
        }
    }
}
