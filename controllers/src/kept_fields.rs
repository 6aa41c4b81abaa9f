//! What these controllers read of the objects that users, nodes and other controllers write.
//!
//! The client drops all other fields before it deserializes an answer, so every cache, list and
//! answer to a write has only these: a field that is not here can't be read anywhere. Labels and
//! annotations are kept by their keys. Claims keep all labels, because a group selects by any of
//! them, and nodes because topology keys are any label. Arbitrary annotations of a claim are only
//! read for a secret's name, one claim at a time ([`CLAIM_ANNOTATIONS`]).
//!
//! Other kinds are written by administrators or read one object at a time. They are kept whole.

use crate::api::constants::{
    ALLOW_MODE_CHANGE, CLASS_BETA, DELETION_SECRET_NAME, DELETION_SECRET_NAMESPACE, FAULT,
    MIGRATED_TO, MODIFY_SECRET_NAME, MODIFY_SECRET_NAMESPACE, NODE_EXPANSION_NOT_REQUIRED, NODE_ID,
    PRE_RESIZE_CAPACITY, PROVISIONED_BY, PROVISIONER, PROVISIONER_BETA,
};
use crate::api::scope::{MANAGED_BY, NODE_LABEL, SELECTED_NODE};
use crate::client::kube::Keep::{self, Members, Whole};
use crate::client::kube::KeptFields;
use crate::csi::pools;
use crate::node_endpoint;
use crate::snapshots::content::{BLOCK_VOLUMES, ContentKeys, GROUP, GROUP_HANDLE, SINGLE};

/// The most bytes of an object that a user of a namespace can write: 1,000 of the largest take
/// 16 MiB. A claim usually takes 2 KiB.
const OF_USER: usize = 16 * 1024;
/// A pod keeps little besides the names of its volumes and claims, 200 of each or so.
const OF_POD: usize = 64 * 1024;
/// CSI allows 4 KiB of secrets in a call.
const OF_SECRET: usize = 64 * 1024;
/// Objects that only controllers, nodes and administrators write.
const OF_CLUSTER: usize = 256 * 1024;
/// A content of a group names each of its volumes and snapshots.
const OF_GROUP: usize = 2 * 1024 * 1024;

/// The metadata of an object, with these members besides the usual ones.
macro_rules! metadata {
    ($($more:expr),*) => {
        ("metadata", Members(&[
            ("name", Whole),
            ("namespace", Whole),
            ("uid", Whole),
            ("resourceVersion", Whole),
            ("creationTimestamp", Whole),
            ("deletionTimestamp", Whole),
            ("finalizers", Whole),
            $($more),*
        ]))
    };
}

const SPEC: (&str, Keep) = ("spec", Whole);
const STATUS: (&str, Keep) = ("status", Whole);
const OWNERS: (&str, Keep) = ("ownerReferences", Whole);

const fn labels(keys: &'static [(&'static str, Keep)]) -> (&'static str, Keep) {
    ("labels", Members(keys))
}

const fn annotations(keys: &'static [(&'static str, Keep)]) -> (&'static str, Keep) {
    ("annotations", Members(keys))
}

/// The annotations of a content.
macro_rules! content_annotations {
    ($keys:expr $(, $more:expr)*) => {{
        const KEYS: ContentKeys = $keys;
        annotations(&[
            (KEYS.being_created, Whole),
            (KEYS.being_deleted, Whole),
            (KEYS.secret_name, Whole),
            (KEYS.secret_namespace, Whole),
            $(($more, Whole)),*
        ])
    }};
}

/// The kinds of which only a part is kept.
pub(crate) const KEPT_FIELDS: &[KeptFields] = &[
    KeptFields {
        plural: "persistentvolumeclaims",
        members: &[
            metadata!(
                ("labels", Whole),
                annotations(&[
                    (SELECTED_NODE, Whole),
                    (PROVISIONER, Whole),
                    (PROVISIONER_BETA, Whole),
                    (MIGRATED_TO, Whole),
                    (CLASS_BETA, Whole),
                    (NODE_EXPANSION_NOT_REQUIRED, Whole),
                    (FAULT, Whole),
                ])
            ),
            ("spec", Members(CLAIM_SPEC)),
            ("status", Members(CLAIM_STATUS)),
        ],
        max: OF_USER,
        blank: "",
    },
    KeptFields {
        plural: "persistentvolumes",
        members: &[
            metadata!(
                labels(&[(NODE_LABEL, Whole)]),
                annotations(&[
                    (PROVISIONED_BY, Whole),
                    (MIGRATED_TO, Whole),
                    (CLASS_BETA, Whole),
                    (DELETION_SECRET_NAME, Whole),
                    (DELETION_SECRET_NAMESPACE, Whole),
                    (MODIFY_SECRET_NAME, Whole),
                    (MODIFY_SECRET_NAMESPACE, Whole),
                    (PRE_RESIZE_CAPACITY, Whole),
                ])
            ),
            SPEC,
            STATUS,
        ],
        max: OF_CLUSTER,
        blank: "",
    },
    KeptFields {
        plural: "pods",
        members: &[
            metadata!(OWNERS),
            (
                "spec",
                Members(&[
                    ("nodeName", Whole),
                    ("volumes", Members(POD_VOLUME)),
                    ("tolerations", Whole),
                    ("nodeSelector", Whole),
                    (
                        "affinity",
                        Members(&[("nodeAffinity", Members(&[REQUIRED_NODES]))]),
                    ),
                ]),
            ),
            ("status", Members(&[("phase", Whole)])),
        ],
        max: OF_POD,
        blank: "",
    },
    KeptFields {
        plural: "nodes",
        members: &[
            metadata!(("labels", Whole)),
            (
                "spec",
                Members(&[
                    ("unschedulable", Whole),
                    (
                        "taints",
                        Members(&[("key", Whole), ("value", Whole), ("effect", Whole)]),
                    ),
                ]),
            ),
            (
                "status",
                Members(&[("conditions", Members(&[("type", Whole), ("status", Whole)]))]),
            ),
        ],
        max: OF_CLUSTER,
        blank: "",
    },
    KeptFields {
        plural: "csinodes",
        members: &[metadata!(), SPEC],
        max: OF_CLUSTER,
        blank: "",
    },
    KeptFields {
        plural: "csistoragecapacities",
        members: &[
            metadata!(
                ("labels", Whole),
                OWNERS,
                annotations(&[
                    (pools::ANNOTATION, Whole),
                    (node_endpoint::ANNOTATION, Whole)
                ])
            ),
            ("storageClassName", Whole),
            ("nodeTopology", Whole),
            ("capacity", Whole),
            ("maximumVolumeSize", Whole),
        ],
        max: OF_USER,
        blank: "",
    },
    KeptFields {
        plural: "secrets",
        members: &[metadata!(), ("data", Whole)],
        max: OF_SECRET,
        blank: "",
    },
    KeptFields {
        plural: "volumeattachments",
        members: &[
            metadata!(
                labels(&[(NODE_LABEL, Whole)]),
                annotations(&[(NODE_ID, Whole)])
            ),
            SPEC,
            STATUS,
        ],
        max: OF_CLUSTER,
        blank: "",
    },
    KeptFields {
        plural: "volumesnapshots",
        members: &[metadata!(OWNERS), SPEC, STATUS],
        max: OF_USER,
        blank: r#","spec":{"source":{}}"#,
    },
    KeptFields {
        plural: "volumesnapshotcontents",
        members: &[
            metadata!(
                labels(&[(MANAGED_BY, Whole)]),
                content_annotations!(SINGLE, GROUP_HANDLE, ALLOW_MODE_CHANGE)
            ),
            SPEC,
            STATUS,
        ],
        max: OF_CLUSTER,
        blank: r#","spec":{"volumeSnapshotRef":{},"deletionPolicy":"Retain","driver":"","source":{}}"#,
    },
    KeptFields {
        plural: "volumegroupsnapshots",
        members: &[metadata!(), SPEC, STATUS],
        max: OF_USER,
        blank: r#","spec":{"source":{}}"#,
    },
    KeptFields {
        plural: "volumegroupsnapshotcontents",
        members: &[
            metadata!(
                labels(&[(MANAGED_BY, Whole)]),
                content_annotations!(GROUP, BLOCK_VOLUMES)
            ),
            SPEC,
            STATUS,
        ],
        max: OF_GROUP,
        blank: r#","spec":{"volumeGroupSnapshotRef":{},"deletionPolicy":"Retain","driver":"","source":{}}"#,
    },
];

const CLAIM_SPEC: &[(&str, Keep)] = &[
    ("accessModes", Whole),
    ("dataSource", Whole),
    ("dataSourceRef", Whole),
    (
        "resources",
        Members(&[("requests", Members(&[("storage", Whole)]))]),
    ),
    // Only whether there is one.
    ("selector", Members(&[])),
    ("storageClassName", Whole),
    ("volumeAttributesClassName", Whole),
    ("volumeMode", Whole),
    ("volumeName", Whole),
];

/// All but the health, which has up to 16 messages of 1 KiB: with them, a claim would be left out.
const CLAIM_STATUS: &[(&str, Keep)] = &[
    ("accessModes", Whole),
    ("allocatedResourceStatuses", Whole),
    ("allocatedResources", Whole),
    ("capacity", Whole),
    ("conditions", Whole),
    ("currentVolumeAttributesClassName", Whole),
    ("modifyVolumeStatus", Whole),
    ("phase", Whole),
];

const REQUIRED_NODES: (&str, Keep) = ("requiredDuringSchedulingIgnoredDuringExecution", Whole);

const POD_VOLUME: &[(&str, Keep)] = &[
    ("name", Whole),
    ("persistentVolumeClaim", Members(&[("claimName", Whole)])),
    // Only whether there is one.
    ("ephemeral", Members(&[])),
];

/// All annotations of a claim: the API server allows 256 KiB.
pub(crate) const CLAIM_ANNOTATIONS: KeptFields = KeptFields {
    plural: "persistentvolumeclaims",
    members: &[metadata!(("annotations", Whole))],
    max: 4 * 1024 * 1024,
    blank: "",
};

/// The volume of a claim, and its health.
pub(crate) const CLAIM_HEALTH: KeptFields = KeptFields {
    plural: "persistentvolumeclaims",
    members: &[
        (
            "metadata",
            Members(&[
                ("name", Whole),
                ("namespace", Whole),
                ("uid", Whole),
                ("resourceVersion", Whole),
            ]),
        ),
        ("spec", Members(&[("volumeName", Whole)])),
        (
            "status",
            Members(&[
                ("phase", Whole),
                (
                    "healthStatus",
                    Members(&[(
                        "healthConditions",
                        Members(&[("status", Whole), ("reason", Whole), ("message", Whole)]),
                    )]),
                ),
            ]),
        ),
    ],
    max: OF_CLUSTER,
    blank: "",
};

/// The driver and the handle of a PersistentVolume. The API server limits no other field's length.
/// If they were kept, one node could make a PersistentVolume that is too large to be known, and the
/// lists of all nodes would fail.
pub(crate) const HANDLES: KeptFields = KeptFields {
    plural: "persistentvolumes",
    members: &[
        (
            "metadata",
            Members(&[("name", Whole), ("uid", Whole), ("resourceVersion", Whole)]),
        ),
        (
            "spec",
            Members(&[(
                "csi",
                Members(&[("driver", Whole), ("volumeHandle", Whole)]),
            )]),
        ),
    ],
    max: OF_CLUSTER,
    blank: "",
};

/// The metadata of an object of any kind that is too large to be kept.
pub(crate) const METADATA: KeptFields = KeptFields {
    plural: "",
    members: &[metadata!()],
    max: OF_CLUSTER,
    blank: "",
};

#[cfg(test)]
mod tests;
