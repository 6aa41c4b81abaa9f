//! What users and administrators do seldom: with classes, secrets, labels, mount options, and the
//! fields of claims that few claims have.

use std::fmt;

use serde::{Deserialize, Serialize};

/// Something unusual that a user or an administrator does.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", tag = "kind")]
pub(crate) enum Unusual {
    /// Creates a claim with fields that few claims have. Without a class, it names none.
    Claim {
        name: String,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        class: Option<String>,
        size: String,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        field: Option<ClaimField>,
    },
    /// Creates a claim for all that a node has left for volumes of a class.
    Rest { name: String, class: String },
    /// Makes the volume that a deleted claim has left free for other claims.
    FreeVolume { claim: String },
    /// Changes the mount options of a claim's volume.
    MountOptions { claim: String, options: Vec<String> },
    /// Creates a class in one of its versions.
    MakeClass {
        of: ClassKind,
        name: String,
        version: String,
    },
    /// Deletes a class.
    RemoveClass { of: ClassKind, name: String },
    /// Creates a secret.
    Secret { name: String },
    /// Deletes a secret.
    DeleteSecret { name: String },
    /// Sets a label of an object, or takes it away.
    Label {
        of: Labelled,
        name: String,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        value: Option<String>,
    },
    /// Reserves a node for pods that tolerate it.
    Reserve { node: String },
    /// Ends the reservation of a node.
    Release { node: String },
    /// Creates a pod that uses a claim and may run on reserved nodes, but on none that is to be retired.
    TolerantPod { name: String, claim: String },
    /// Takes the label with its node away from the content of a snapshot.
    UnlabelContent { snapshot: String },
    /// Takes the owner away from a member of a group, as tools do that make objects again: the one with
    /// this number, counted in the order of their names.
    DisownMember { group: String, number: u64 },
}

/// A field of a claim that few claims have.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) enum ClaimField {
    /// The name of the volume that this claim has or had.
    VolumeOf(String),
    /// A selector of volumes with this label.
    Selector(String),
    /// A source of a kind that hostloop does not know.
    ForeignSource(String),
}

/// A kind of classes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) enum ClassKind {
    Storage,
    Attributes,
    Snapshot,
    /// Of groups of snapshots.
    Group,
}

/// A kind of objects with labels that users set.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) enum Labelled {
    Node,
    Claim,
}

impl fmt::Display for Unusual {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Unusual::Claim {
                name,
                class,
                size,
                field,
            } => {
                write!(f, "claim {name}: {size} ")?;
                match class {
                    Some(class) => write!(f, "of class {class:?}")?,
                    None => write!(f, "without a class")?,
                }
                match field {
                    Some(ClaimField::VolumeOf(claim)) => {
                        write!(f, ", names the volume of claim {claim}")
                    }
                    Some(ClaimField::Selector(label)) => {
                        write!(f, ", selects volumes with the label {label}")
                    }
                    Some(ClaimField::ForeignSource(name)) => {
                        write!(f, ", from the foreign source {name}")
                    }
                    None => Ok(()),
                }
            }
            Unusual::Rest { name, class } => {
                write!(f, "claim {name}: all that a node has left of class {class}")
            }
            Unusual::FreeVolume { claim } => {
                write!(f, "free the volume that claim {claim} has left")
            }
            Unusual::MountOptions { claim, options } => {
                write!(f, "give the volume of claim {claim} the mount options ")?;
                write!(f, "{options:?}")
            }
            Unusual::MakeClass { of, name, version } => {
                write!(f, "create the {of} class {name} as {version:?}")
            }
            Unusual::RemoveClass { of, name } => write!(f, "delete the {of} class {name}"),
            Unusual::Secret { name } => write!(f, "create secret {name}"),
            Unusual::DeleteSecret { name } => write!(f, "delete secret {name}"),
            Unusual::Label { of, name, value } => match value {
                Some(value) => write!(f, "label {of} {name} with {value}"),
                None => write!(f, "take the label of {of} {name} away"),
            },
            Unusual::Reserve { node } => write!(f, "reserve node {node} for some pods"),
            Unusual::Release { node } => write!(f, "release node {node} for all pods"),
            Unusual::TolerantPod { name, claim } => {
                write!(f, "pod {name} with {claim}, also for reserved nodes")
            }
            Unusual::UnlabelContent { snapshot } => {
                write!(
                    f,
                    "take the node away from the content of snapshot {snapshot}"
                )
            }
            Unusual::DisownMember { group, number } => {
                write!(
                    f,
                    "take the owner away from member {number} of group {group}"
                )
            }
        }
    }
}

impl fmt::Display for ClassKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            ClassKind::Storage => "storage",
            ClassKind::Attributes => "attributes",
            ClassKind::Snapshot => "snapshot",
            ClassKind::Group => "group snapshot",
        })
    }
}

impl fmt::Display for Labelled {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Labelled::Node => "node",
            Labelled::Claim => "claim",
        })
    }
}
