//! The events of the pod on each node.

use super::{EventReason, normal, warning};

/// The events of the pod on each node.
pub const NODE: &[EventReason] = &[
    normal(
        "Provisioning",
        "PersistentVolumeClaim",
        "The volume is being made, which takes longer than a second; or its source is of a kind \
         that something else fills volumes from",
        "Wait",
    ),
    normal(
        "ProvisioningSucceeded",
        "PersistentVolumeClaim",
        "The volume is made and bound to its claim",
        "Nothing",
    ),
    warning(
        "ProvisioningFailed",
        "PersistentVolumeClaim",
        "Why no volume was made: no room, a parameter, a source, or what each node lacks. It is \
         tried again",
        "What the message says: free some room, correct the class or the claim",
    ),
    normal(
        "AllPodsOnOneNode",
        "PersistentVolumeClaim",
        "Several pods may use the volume, but all of them have to be on its node",
        "Nothing, if that is enough",
    ),
    normal(
        "VolumeDelete",
        "PersistentVolume",
        "The volume is deleted once it is detached",
        "Wait for its pod to end",
    ),
    warning(
        "VolumeFailedDelete",
        "PersistentVolume",
        "Why the volume is not deleted. It is tried again",
        "What the message says",
    ),
    normal(
        "Resizing",
        "PersistentVolumeClaim",
        "The volume is being expanded",
        "Wait",
    ),
    normal(
        "FileSystemResizeRequired",
        "PersistentVolumeClaim",
        "The volume is expanded, and kubelet expands its filesystem",
        "Wait a minute",
    ),
    normal(
        "VolumeResizeSuccessful",
        "PersistentVolumeClaim",
        "The volume is expanded",
        "Nothing",
    ),
    warning(
        "VolumeResizeFailed",
        "PersistentVolumeClaim",
        "Why the volume is not expanded. It is tried again",
        "Request less, or free some space in the pool",
    ),
    normal(
        "VolumeModify",
        "PersistentVolumeClaim",
        "The attributes of the volume are being changed",
        "Wait",
    ),
    normal(
        "VolumeModifySuccessful",
        "PersistentVolumeClaim",
        "The attributes of the volume are changed",
        "Nothing",
    ),
    warning(
        "VolumeModifyFailed",
        "PersistentVolumeClaim",
        "Why the attributes are not changed: no such class, a class of another driver, or what \
         the driver says",
        "Name another VolumeAttributesClass, or correct it",
    ),
    normal(
        "VolumeModifyCanceled",
        "PersistentVolumeClaim",
        "The claim names no other VolumeAttributesClass any more",
        "Nothing",
    ),
    warning(
        "CapacityUnknown",
        "StorageClass",
        "The driver refuses the parameters of the class, so no node has room for its volumes",
        "Correct the class: delete it and create it again",
    ),
    warning(
        "TooLarge",
        "the object",
        "The object exceeds the memory limit of one object or of its namespace, so the controllers ignore it",
        "Remove labels or other fields of it, or of others in its namespace, or delete some",
    ),
    warning(
        "SnapshotCreationFailed",
        "VolumeSnapshotContent",
        "Why the snapshot is not taken: what the driver says, or that no node works on the \
         content. It is tried again",
        "What the message says",
    ),
    warning(
        "SnapshotContentCheckandUpdateFailed",
        "VolumeSnapshotContent",
        "Why the driver could not say whether the snapshot is ready. It is tried again",
        "What the message says",
    ),
    warning(
        "SnapshotDeleteError",
        "VolumeSnapshotContent",
        "Why the snapshot is not deleted. It is tried again",
        "What the message says",
    ),
    warning(
        "MisplacedDeletionPolicy",
        "VolumeSnapshotContent, VolumeGroupSnapshotContent",
        "The class has a parameter deletionPolicy, which has no effect",
        "Set the field deletionPolicy of the class",
    ),
    warning(
        "GroupSnapshotCreationFailed",
        "VolumeGroupSnapshotContent",
        "Why the snapshots are not taken: what the driver says, or that no node works on the \
         content. It is tried again",
        "What the message says",
    ),
    warning(
        "GroupSnapshotContentCheckandUpdateFailed",
        "VolumeGroupSnapshotContent",
        "Why the driver could not say whether the snapshots are ready. It is tried again",
        "What the message says",
    ),
    warning(
        "GroupSnapshotDeleteError",
        "VolumeGroupSnapshotContent",
        "Why the snapshots are not deleted. It is tried again",
        "What the message says",
    ),
    warning(
        "VolumeConditionAbnormal",
        "PersistentVolumeClaim",
        "What the driver reports to be wrong with the volume",
        "What the message says",
    ),
    normal(
        "VolumeConditionNormal",
        "PersistentVolumeClaim",
        "Nothing is wrong with the volume any more",
        "Nothing",
    ),
    normal(
        "FaultWaiting",
        "PersistentVolumeClaim",
        "The claim or its class asks for a fault, and no pod uses the volume yet",
        "Nothing",
    ),
    warning(
        "FaultInjected",
        "PersistentVolumeClaim",
        "The volume has the fault that the claim or its class asks for",
        "Remove the annotation hostloop.csi.dev/fault when it is to end, or set it to none",
    ),
    normal(
        "FaultHealed",
        "PersistentVolumeClaim",
        "The fault has ended, and the volume works again",
        "Nothing",
    ),
    warning(
        "FaultNeedsRestage",
        "PersistentVolumeClaim",
        "The fault has ended, and the volume's filesystem stays stopped",
        "Delete the pods that use the volume; to restart their containers is not enough",
    ),
    warning(
        "FaultRefused",
        "PersistentVolumeClaim",
        "Why the volume does not get the fault: faults are off, its text has a mistake, or the volume \
         can't have it",
        "What the message says",
    ),
    warning(
        "FaultFailed",
        "PersistentVolumeClaim",
        "Why the fault could not begin or end. It is tried again",
        "What the message says",
    ),
    warning(
        "StorageConditionAbnormal",
        "Node",
        "What is wrong with a pool of the node",
        "What the message says",
    ),
    normal(
        "StorageConditionNormal",
        "Node",
        "Nothing is wrong with the pools any more",
        "Nothing",
    ),
    warning(
        "OrphanedVolumes",
        "Node",
        "The node has volumes that no PersistentVolume names",
        "See kubectl hostloop status -A; delete what is not needed",
    ),
    normal(
        "OrphanDeleted",
        "Node",
        "A volume without objects was deleted, because it never held data",
        "Nothing",
    ),
    normal(
        "VolumeUnpublished",
        "Node",
        "A volume was published to the node without an attachment, and is not any more",
        "Nothing",
    ),
    warning(
        "RegistrationLost",
        "Node",
        "The cluster has lost the driver's registration or a label of the node; kubelet registers \
         the driver again",
        "Find out what removed it, if it happens again",
    ),
    warning(
        "TopologyChanged",
        "Node",
        "A label of the node has another value than the driver is registered with, so pods with \
         its volumes are not scheduled",
        "Set the label back, or restart the driver's pod if the new value is right",
    ),
];
