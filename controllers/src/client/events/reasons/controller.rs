//! The events of the pod with the cluster-wide tasks.

use super::{EventReason, normal, warning};

/// The events of the pod with the cluster-wide tasks.
pub const CONTROLLER: &[EventReason] = &[
    normal(
        "Provisioning",
        "PersistentVolumeClaim",
        "The volume is being made, which takes longer than a second; or its source is of a kind \
         that something else fills volumes from",
        "Wait",
    ),
    warning(
        "ProvisioningFailed",
        "PersistentVolumeClaim",
        "Why no volume was made: no room, a parameter, a source, or what each node lacks. It is \
         tried again",
        "What the message says: free some room, correct the class or the claim",
    ),
    normal(
        "WaitingForSource",
        "PersistentVolumeClaim",
        "The claim's source is not ready yet, so no node is selected",
        "Wait for the source, or see its own events",
    ),
    normal(
        "NodeReselected",
        "PersistentVolumeClaim",
        "Another node was selected, because it has the claim's source",
        "Nothing",
    ),
    warning(
        "VolumeOfForeignClaim",
        "PersistentVolume",
        "A volume was made for a claim of another driver, and is deleted",
        "Check the node that made it: its account may be stolen",
    ),
    normal(
        "ClaimDeletePending",
        "PersistentVolumeClaim",
        "The claim stays until the named snapshots of it are taken",
        "Wait, or delete the snapshots that cannot be taken",
    ),
    warning(
        "TooLarge",
        "the object",
        "The object exceeds the memory limit of one object or of its namespace, so the controllers ignore it",
        "Remove labels or other fields of it, or of others in its namespace, or delete some",
    ),
    normal(
        "CreatingSnapshot",
        "VolumeSnapshot",
        "The snapshot's content exists, and its node takes the snapshot",
        "Wait",
    ),
    normal(
        "SnapshotCreated",
        "VolumeSnapshot",
        "The snapshot is taken",
        "Nothing",
    ),
    normal(
        "SnapshotReady",
        "VolumeSnapshot",
        "The snapshot can be restored from",
        "Nothing",
    ),
    warning(
        "SnapshotValidationError",
        "VolumeSnapshot",
        "The spec names no source, or more than one",
        "Name exactly one",
    ),
    warning(
        "SnapshotContentMissing",
        "VolumeSnapshot",
        "The content that the snapshot is bound to, or names, does not exist",
        "Restore the content, or delete the snapshot",
    ),
    warning(
        "SnapshotMisbound",
        "VolumeSnapshot",
        "The snapshot was ready, and its content is bound to another snapshot now",
        "Delete the snapshot, or correct the content",
    ),
    warning(
        "SnapshotContentMismatch",
        "VolumeSnapshot",
        "The spec names a content that was not made beforehand, or the snapshot is bound to one \
         that was",
        "Name a content that was made beforehand, or delete the snapshot",
    ),
    warning(
        "SnapshotContentMisbound",
        "VolumeSnapshot",
        "The content is bound to another snapshot",
        "Name another content, or correct its reference",
    ),
    warning(
        "GetSnapshotClassFailed",
        "VolumeSnapshot",
        "There is no class of this name",
        "Create the class, or name another",
    ),
    warning(
        "SetDefaultSnapshotClassFailed",
        "VolumeSnapshot",
        "The snapshot names no class, and the driver has none or several default classes",
        "Name a class, or mark one as the default",
    ),
    warning(
        "SnapshotContentCreationFailed",
        "VolumeSnapshot",
        "The content cannot be created: the claim is missing, unbound or not of a CSI driver, or \
         the API server refuses it",
        "What the message says",
    ),
    warning(
        "SnapshotBindFailed",
        "VolumeSnapshot",
        "The content cannot be bound to the snapshot",
        "What the API server says in the message",
    ),
    warning(
        "SnapshotStatusUpdateFailed",
        "VolumeSnapshot",
        "The API server refuses the snapshot's status",
        "What the API server says in the message",
    ),
    warning(
        "SnapshotDeletePending",
        "VolumeSnapshot, VolumeGroupSnapshot",
        "Why a deleted snapshot stays: a claim is restored from it, or it belongs to a group",
        "Wait for the restore, or delete the group",
    ),
    warning(
        "SnapshotContentObjectDeleteError",
        "VolumeSnapshot",
        "The API server refuses to delete the content",
        "What the API server says in the message",
    ),
    warning(
        "ContentValidationError",
        "VolumeSnapshotContent",
        "The spec has neither a volumeHandle nor a snapshotHandle, or both",
        "Give exactly one",
    ),
    warning(
        "SnapshotCreationFailed",
        "VolumeSnapshotContent",
        "Why the snapshot is not taken: what the driver says, or that no node works on the \
         content. It is tried again",
        "What the message says",
    ),
    normal(
        "CreatingGroupSnapshot",
        "VolumeGroupSnapshot",
        "The group's content exists, and its node takes the snapshots",
        "Wait",
    ),
    normal(
        "GroupSnapshotCreated",
        "VolumeGroupSnapshot",
        "The snapshots of the group are taken",
        "Nothing",
    ),
    normal(
        "GroupSnapshotReady",
        "VolumeGroupSnapshot",
        "The snapshots of the group can be restored from",
        "Nothing",
    ),
    warning(
        "GroupSnapshotValidationError",
        "VolumeGroupSnapshot",
        "The spec has no source, or more than one",
        "Give exactly one",
    ),
    warning(
        "GroupSnapshotContentMissing",
        "VolumeGroupSnapshot",
        "The content that the group is bound to, or names, does not exist",
        "Restore the content, or delete the group",
    ),
    warning(
        "GroupSnapshotMisbound",
        "VolumeGroupSnapshot",
        "The group was ready, and its content is bound to another group now",
        "Delete the group, or correct the content",
    ),
    warning(
        "GroupSnapshotContentMismatch",
        "VolumeGroupSnapshot",
        "The spec names a content that was not made beforehand, or the group is bound to one \
         that was",
        "Name a content that was made beforehand, or delete the group",
    ),
    warning(
        "GroupSnapshotContentMisbound",
        "VolumeGroupSnapshot",
        "The content is bound to another group",
        "Name another content, or correct its reference",
    ),
    warning(
        "GetGroupSnapshotClassFailed",
        "VolumeGroupSnapshot",
        "There is no class of this name",
        "Create the class, or name another",
    ),
    warning(
        "SetDefaultGroupSnapshotClassFailed",
        "VolumeGroupSnapshot",
        "The group names no class, and the driver has none or several default classes",
        "Name a class, or mark one as the default",
    ),
    warning(
        "GroupSnapshotContentCreationFailed",
        "VolumeGroupSnapshot",
        "The content cannot be created: the selector matches no claim, or one of another node or \
         driver; or the API server refuses it",
        "What the message says",
    ),
    warning(
        "GroupSnapshotBindFailed",
        "VolumeGroupSnapshot",
        "The content cannot be bound to the group",
        "What the API server says in the message",
    ),
    warning(
        "GroupSnapshotStatusUpdateFailed",
        "VolumeGroupSnapshot",
        "The API server refuses the group's status",
        "What the API server says in the message",
    ),
    warning(
        "GroupSnapshotContentObjectDeleteError",
        "VolumeGroupSnapshot",
        "The API server refuses to delete the content",
        "What the API server says in the message",
    ),
    warning(
        "GroupContentValidationError",
        "VolumeGroupSnapshotContent",
        "The spec has neither volumeHandles nor groupSnapshotHandles, or both",
        "Give exactly one",
    ),
    warning(
        "GroupSnapshotCreationFailed",
        "VolumeGroupSnapshotContent",
        "Why the snapshots are not taken: what the driver says, or that no node works on the \
         content. It is tried again",
        "What the message says",
    ),
    warning(
        "NodeFailed",
        "PersistentVolumeClaim",
        "The node on which pods use the volume is not ready (--enable-node-watcher)",
        "Bring the node back, or taint it as out of service",
    ),
    normal(
        "NodeRecovered",
        "PersistentVolumeClaim",
        "That node is ready again",
        "Nothing",
    ),
    normal(
        "NodeGone",
        "VolumeAttachment, PersistentVolume, VolumeSnapshotContent, VolumeGroupSnapshotContent, \
         PersistentVolumeClaim, CSIStorageCapacity",
        "What was cleaned up, because the node was deleted",
        "Nothing",
    ),
    warning(
        "NodeGone",
        "PersistentVolume, PersistentVolumeClaim",
        "The volume is gone with its node, unless the node returns",
        "Bring the node back; to do without the data, delete the claim",
    ),
    normal(
        "NodeOutOfService",
        "VolumeAttachment",
        "The volume counts as detached, because its node has the out-of-service taint",
        "Nothing",
    ),
    warning(
        "OwnerAway",
        "PersistentVolumeClaim",
        "The volume waits to be attached to a node, or detached from it: the node that has it is not \
         ready",
        "Bring that node back",
    ),
];
