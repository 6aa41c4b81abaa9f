//! What the API server checks and `kubectl get` shows, kind by kind.

/// A name, a type and a path.
type Column = (&'static str, &'static str, &'static str);
/// A CEL expression and what it means.
type Rule = (&'static str, &'static str);

/// What a kind's type doesn't say.
pub(super) struct Details {
    /// More served versions with the same schema. The type's own version is the storage version.
    pub(super) also_served: &'static [&'static str],
    /// Where its API was reviewed; the API server wants to know for groups under `k8s.io`.
    pub(super) approved: &'static str,
    pub(super) short_names: &'static [&'static str],
    pub(super) columns: &'static [Column],
    /// Parts that are types of Kubernetes: path and description.
    pub(super) borrowed: &'static [(&'static str, &'static str)],
    /// Paths, and the rules there.
    pub(super) rules: &'static [(&'static str, &'static [Rule])],
    /// Path, keyword and value.
    pub(super) bounds: &'static [(&'static str, &'static str, Bound)],
}

/// The value of a schema's keyword.
pub(super) enum Bound {
    Number(i64),
    Text(&'static str),
}

impl From<&Bound> for serde_json::Value {
    fn from(bound: &Bound) -> Self {
        match bound {
            Bound::Number(number) => (*number).into(),
            Bound::Text(text) => (*text).into(),
        }
    }
}

const REVIEW: &str = "https://github.com/kubernetes-csi/external-snapshotter/pull/814";
const CONTENT_REVIEW: &str = "https://github.com/kubernetes-csi/external-snapshotter/pull/955";
const GROUP_REVIEW: &str = "https://github.com/kubernetes-csi/external-snapshotter/pull/1337";

/// The group kinds' last version before v1. Backup tools still use it.
const GROUP_BETA: &[&str] = &["v1beta2"];

const AGE: Column = ("Age", "date", ".metadata.creationTimestamp");
const READY: Column = ("ReadyToUse", "boolean", ".status.readyToUse");
const CREATED: Column = ("CreationTime", "date", ".status.creationTime");
const CLASS_COLUMNS: &[Column] = &[
    ("Driver", "string", ".driver"),
    ("DeletionPolicy", "string", ".deletionPolicy"),
    AGE,
];

const FIXED: &str = "self == oldSelf";
const FIXED_SOURCE: &[Rule] = &[(FIXED, "a source can't be changed")];
const FIXED_ONCE_SET: &[Rule] = &[(FIXED, "can't be changed once set")];
const NOT_EMPTY: &[Rule] = &[(
    "size(self) > 0",
    "can't be empty: leave it out for the default class",
)];
const FULL_REFERENCE: Rule = (
    "has(self.name) && has(self.__namespace__)",
    "both name and namespace are needed",
);

/// Exactly one of two sources, and the one given stays.
macro_rules! one_source {
    ($one:literal, $other:literal) => {
        &[
            (
                concat!("has(self.", $one, ") != has(self.", $other, ")"),
                concat!("exactly one of ", $one, " and ", $other, " is needed"),
            ),
            (
                concat!("!has(oldSelf.", $one, ") || has(self.", $one, ")"),
                concat!($one, " can't be taken away"),
            ),
            (
                concat!("!has(oldSelf.", $other, ") || has(self.", $other, ")"),
                concat!($other, " can't be taken away"),
            ),
        ]
    };
}

pub(super) const SNAPSHOT: Details = Details {
    also_served: &[],
    approved: REVIEW,
    short_names: &["vs"],
    columns: &[
        READY,
        (
            "SourcePVC",
            "string",
            ".spec.source.persistentVolumeClaimName",
        ),
        (
            "SourceSnapshotContent",
            "string",
            ".spec.source.volumeSnapshotContentName",
        ),
        ("RestoreSize", "string", ".status.restoreSize"),
        ("SnapshotClass", "string", ".spec.volumeSnapshotClassName"),
        (
            "SnapshotContent",
            "string",
            ".status.boundVolumeSnapshotContentName",
        ),
        CREATED,
        AGE,
    ],
    borrowed: &[],
    rules: &[
        (
            "spec.source",
            one_source!("persistentVolumeClaimName", "volumeSnapshotContentName"),
        ),
        ("spec.source.persistentVolumeClaimName", FIXED_SOURCE),
        ("spec.source.volumeSnapshotContentName", FIXED_SOURCE),
        ("spec.volumeSnapshotClassName", NOT_EMPTY),
    ],
    bounds: &[(
        "status.restoreSize",
        "pattern",
        Bound::Text(r"^[+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([KMGTPE]i|[numkMGTPE]|[eE][+-]?[0-9]+)?$"),
    )],
};

pub(super) const SNAPSHOT_CONTENT: Details = Details {
    also_served: &[],
    approved: CONTENT_REVIEW,
    short_names: &["vsc", "vscs"],
    columns: &[
        READY,
        ("RestoreSize", "integer", ".status.restoreSize"),
        ("DeletionPolicy", "string", ".spec.deletionPolicy"),
        ("Driver", "string", ".spec.driver"),
        (
            "VolumeSnapshotClass",
            "string",
            ".spec.volumeSnapshotClassName",
        ),
        ("VolumeSnapshot", "string", ".spec.volumeSnapshotRef.name"),
        (
            "VolumeSnapshotNamespace",
            "string",
            ".spec.volumeSnapshotRef.namespace",
        ),
        AGE,
    ],
    borrowed: &[("spec.volumeSnapshotRef", "The snapshot it is bound to.")],
    rules: &[
        (
            "spec",
            &[(
                "!has(oldSelf.sourceVolumeMode) || has(self.sourceVolumeMode)",
                "sourceVolumeMode can't be taken away",
            )],
        ),
        ("spec.volumeSnapshotRef", &[FULL_REFERENCE]),
        ("spec.source", one_source!("volumeHandle", "snapshotHandle")),
        ("spec.source.volumeHandle", FIXED_SOURCE),
        ("spec.source.snapshotHandle", FIXED_SOURCE),
        ("spec.sourceVolumeMode", FIXED_ONCE_SET),
    ],
    bounds: &[("status.restoreSize", "minimum", Bound::Number(0))],
};

pub(super) const SNAPSHOT_CLASS: Details = Details {
    also_served: &[],
    approved: REVIEW,
    short_names: &["vsclass", "vsclasses"],
    columns: CLASS_COLUMNS,
    borrowed: &[],
    rules: &[],
    bounds: &[],
};

pub(super) const GROUP: Details = Details {
    also_served: GROUP_BETA,
    approved: GROUP_REVIEW,
    short_names: &["vgs"],
    columns: &[
        READY,
        (
            "VolumeGroupSnapshotClass",
            "string",
            ".spec.volumeGroupSnapshotClassName",
        ),
        (
            "VolumeGroupSnapshotContent",
            "string",
            ".status.boundVolumeGroupSnapshotContentName",
        ),
        CREATED,
        AGE,
    ],
    borrowed: &[(
        "spec.source.selector",
        "Claims in the same namespace, to be snapshotted together.",
    )],
    rules: &[
        (
            "spec.source",
            one_source!("selector", "volumeGroupSnapshotContentName"),
        ),
        ("spec.source.selector", FIXED_SOURCE),
        ("spec.source.volumeGroupSnapshotContentName", FIXED_SOURCE),
        ("spec.volumeGroupSnapshotClassName", NOT_EMPTY),
        ("status.boundVolumeGroupSnapshotContentName", FIXED_ONCE_SET),
    ],
    bounds: &[],
};

pub(super) const GROUP_CONTENT: Details = Details {
    also_served: GROUP_BETA,
    approved: GROUP_REVIEW,
    short_names: &["vgsc", "vgscs"],
    columns: &[
        READY,
        ("DeletionPolicy", "string", ".spec.deletionPolicy"),
        ("Driver", "string", ".spec.driver"),
        (
            "VolumeGroupSnapshotClass",
            "string",
            ".spec.volumeGroupSnapshotClassName",
        ),
        (
            "VolumeGroupSnapshotNamespace",
            "string",
            ".spec.volumeGroupSnapshotRef.namespace",
        ),
        (
            "VolumeGroupSnapshot",
            "string",
            ".spec.volumeGroupSnapshotRef.name",
        ),
        AGE,
    ],
    borrowed: &[(
        "spec.volumeGroupSnapshotRef",
        "The group snapshot it is bound to.",
    )],
    rules: &[
        (
            "spec.volumeGroupSnapshotRef",
            &[
                FULL_REFERENCE,
                (
                    "self.name == oldSelf.name && self.__namespace__ == oldSelf.__namespace__",
                    "name and namespace can't be changed",
                ),
                (
                    "!has(oldSelf.uid) || (has(self.uid) && self.uid == oldSelf.uid)",
                    "uid can't be changed once set",
                ),
            ],
        ),
        ("spec.driver", FIXED_ONCE_SET),
        ("spec.volumeGroupSnapshotClassName", FIXED_ONCE_SET),
        (
            "spec.source",
            one_source!("volumeHandles", "groupSnapshotHandles"),
        ),
        ("spec.source.volumeHandles", FIXED_SOURCE),
        ("spec.source.groupSnapshotHandles", FIXED_SOURCE),
        ("status.volumeGroupSnapshotHandle", FIXED_ONCE_SET),
    ],
    bounds: &[],
};

pub(super) const GROUP_CLASS: Details = Details {
    also_served: GROUP_BETA,
    approved: GROUP_REVIEW,
    short_names: &["vgsclass", "vgsclasses"],
    columns: CLASS_COLUMNS,
    borrowed: &[],
    rules: &[
        ("driver", FIXED_ONCE_SET),
        ("parameters", FIXED_ONCE_SET),
        ("deletionPolicy", FIXED_ONCE_SET),
    ],
    bounds: &[],
};
