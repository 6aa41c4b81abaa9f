//! The scenarios of the crash test and the ENOSPC test. Each mutating RPC has a situation to start
//! from and steps that are interrupted.

use std::fmt;

use crate::pools::PoolKind;
use crate::steps::{Name, Origin, Spec, Step};

/// A situation, and the steps that run in it.
#[derive(Clone, Copy, Debug)]
pub struct Scenario {
    /// A short description.
    pub name: &'static str,
    pub pool: PoolKind,
    /// The number of effects of the act, undisturbed. A test that walks through them must meet
    /// about as many. 0 if no test does.
    pub effects: usize,
    /// True if the driver's mounts disappear with it, as a container's do.
    pub mounts_die: bool,
    /// The steps that create the situation, undisturbed.
    pub prepare: &'static [Step],
    /// The steps that are disturbed.
    pub act: &'static [Step],
}

const EXT4: Spec = Spec::fs("ext4", 32);
const XFS: Spec = Spec::fs("xfs", 300);
const BTRFS: Spec = Spec::fs("btrfs", 128);
const BLOCK: Spec = Spec::block(32);
const THICK: Spec = EXT4.with(&[("provisioning", "thick")]);

/// CreateVolume without a source.
pub const fn create(volume: Name, spec: Spec) -> Step {
    Step::Create {
        volume,
        spec,
        from: None,
    }
}

const fn copy(volume: Name, spec: Spec, from: Origin) -> Step {
    Step::Create {
        volume,
        spec,
        from: Some(from),
    }
}

/// NodePublishVolume at the target `pod`, writable.
pub const fn publish(volume: Name) -> Step {
    Step::Publish {
        volume,
        target: "pod",
        read_only: false,
    }
}

const fn publish_read_only(volume: Name) -> Step {
    Step::Publish {
        volume,
        target: "reader",
        read_only: true,
    }
}

const fn unpublish(volume: Name, target: Name) -> Step {
    Step::Unpublish { volume, target }
}

const SNAPSHOT: Step = Step::Snapshot {
    snapshot: "s",
    volume: "v",
};
const INLINE: Step = Step::Inline {
    volume: "i",
    target: "pod",
    mib: 32,
};
const GROUP: Step = Step::Group {
    group: "g",
    volumes: &["v", "w"],
};

/// The steps that create `v`, mount it and write data into it.
macro_rules! in_use {
    ($spec:expr $(, $more:expr)* $(,)?) => {
        &[
            create("v", $spec),
            Step::Attach("v"),
            Step::Stage("v"),
            publish("v"),
            Step::Write("v"),
            $($more),*
        ]
    };
}

const fn scenario(
    name: &'static str,
    pool: PoolKind,
    effects: usize,
    prepare: &'static [Step],
    act: &'static [Step],
) -> Scenario {
    Scenario {
        name,
        pool,
        effects,
        mounts_die: true,
        prepare,
        act,
    }
}

impl fmt::Display for Scenario {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} on {}", self.name, self.pool.name())
    }
}

impl Scenario {
    const fn mounts_stay(mut self) -> Scenario {
        self.mounts_die = false;
        self
    }
}

use PoolKind::{Btrfs, Device, Ext4, Image, Xfs};

/// All scenarios, in a fixed order.
pub const SCENARIOS: &[Scenario] = &[
    // New, empty volumes.
    scenario("create ext4", Ext4, 11, &[], &[create("v", EXT4)]),
    scenario("create xfs", Xfs, 11, &[], &[create("v", XFS)]),
    scenario("create btrfs", Btrfs, 11, &[], &[create("v", BTRFS)]),
    scenario("create block", Image, 9, &[], &[create("v", BLOCK)]),
    scenario("create thick", Ext4, 11, &[], &[create("v", THICK)]),
    scenario("create thick", Xfs, 11, &[], &[create("v", THICK)]),
    // Volumes from a source.
    scenario("restore", Ext4, 12, FROM_SNAPSHOT, RESTORE),
    scenario("restore", Xfs, 11, FROM_SNAPSHOT, RESTORE),
    scenario("restore larger", Btrfs, 26, FROM_SNAPSHOT, RESTORE_LARGER),
    scenario("restore thick", Xfs, 13, FROM_SNAPSHOT, RESTORE_THICK),
    scenario("clone in use", Ext4, 20, in_use!(EXT4), CLONE),
    scenario("clone in use", Xfs, 19, in_use!(EXT4), CLONE),
    scenario("clone block", Btrfs, 12, in_use!(BLOCK), CLONE_BLOCK),
    // The first stage of a volume.
    scenario("stage ext4", Ext4, 9, ATTACHED_EXT4, STAGE),
    scenario("stage ext4, mounts stay", Xfs, 9, ATTACHED_EXT4, STAGE).mounts_stay(),
    scenario("stage xfs", Xfs, 12, ATTACHED_XFS, STAGE),
    scenario("stage btrfs", Btrfs, 9, ATTACHED_BTRFS, STAGE),
    scenario("stage block", Ext4, 8, ATTACHED_BLOCK, STAGE),
    scenario("stage thick", Ext4, 9, ATTACHED_THICK, STAGE),
    // Publishing.
    scenario(
        "publish",
        Image,
        1,
        STAGED_EXT4,
        &[Step::Attach("v"), publish("v")],
    ),
    scenario(
        "publish read-only",
        Xfs,
        2,
        in_use!(EXT4),
        &[publish_read_only("v")],
    ),
    scenario("publish block", Ext4, 2, STAGED_BLOCK, &[publish("v")]),
    scenario(
        "publish block read-only",
        Xfs,
        7,
        in_use!(BLOCK),
        &[publish_read_only("v")],
    ),
    scenario("publish inline", Ext4, 26, &[], &[INLINE]),
    scenario("publish inline, mounts stay", Device, 26, &[], &[INLINE]).mounts_stay(),
    // Changes while in use.
    scenario("expand ext4", Ext4, 24, in_use!(EXT4), EXPAND_64),
    scenario(
        "expand ext4, mounts stay",
        Image,
        23,
        in_use!(EXT4),
        EXPAND_64,
    )
    .mounts_stay(),
    scenario("expand xfs", Xfs, 9, in_use!(XFS), EXPAND_400),
    scenario("expand btrfs", Btrfs, 9, in_use!(BTRFS), EXPAND_400),
    scenario("expand block", Device, 8, in_use!(BLOCK), EXPAND_64),
    scenario("expand unused", Xfs, 7, &[create("v", EXT4)], EXPAND_64),
    scenario("modify to thick", Xfs, 8, in_use!(EXT4), TO_THICK),
    scenario("modify", Ext4, 7, in_use!(EXT4), TUNE),
    // Snapshots, with a freeze that must end.
    scenario("snapshot", Ext4, 20, in_use!(EXT4), &[SNAPSHOT]),
    scenario("snapshot", Xfs, 19, in_use!(EXT4), &[SNAPSHOT]),
    scenario("snapshot", Btrfs, 19, in_use!(BTRFS), &[SNAPSHOT]),
    scenario("snapshot of xfs", Xfs, 19, in_use!(XFS), &[SNAPSHOT]),
    scenario(
        "snapshot, mounts stay",
        Ext4,
        20,
        in_use!(EXT4),
        &[SNAPSHOT],
    )
    .mounts_stay(),
    scenario("snapshot, mounts stay", Xfs, 19, in_use!(XFS), &[SNAPSHOT]).mounts_stay(),
    scenario("snapshot of block", Image, 11, in_use!(BLOCK), &[SNAPSHOT]),
    scenario("group", Xfs, 46, TWO_IN_USE, &[GROUP]),
    scenario("group, mounts stay", Btrfs, 46, TWO_IN_USE, &[GROUP]).mounts_stay(),
    // Unpublishing, unstaging and deletion.
    scenario(
        "unpublish",
        Ext4,
        2,
        in_use!(EXT4),
        &[unpublish("v", "pod")],
    ),
    scenario(
        "unpublish, mounts stay",
        Xfs,
        2,
        in_use!(EXT4),
        &[unpublish("v", "pod")],
    )
    .mounts_stay(),
    scenario("unpublish block", Xfs, 8, READ_BLOCK, UNPUBLISH_BLOCK).mounts_stay(),
    scenario(
        "unpublish inline",
        Xfs,
        8,
        &[INLINE],
        &[unpublish("i", "pod")],
    )
    .mounts_stay(),
    scenario("unstage", Ext4, 13, STAGED_EXT4, DOWN),
    scenario("unstage, mounts stay", Xfs, 13, STAGED_EXT4, DOWN).mounts_stay(),
    scenario("unstage block, mounts stay", Ext4, 13, STAGED_BLOCK, DOWN).mounts_stay(),
    scenario(
        "delete snapshot",
        Xfs,
        6,
        FROM_SNAPSHOT,
        &[Step::DeleteSnapshot("s")],
    ),
    scenario("delete group", Xfs, 17, A_GROUP, &[Step::DeleteGroup("g")]),
    // The whole life of a volume.
    scenario("a life", Image, 78, &[], LIFE),
    scenario("a life", Ext4, 80, &[], LIFE),
    scenario("a life", Xfs, 78, &[], LIFE),
    scenario("a life, mounts stay", Device, 78, &[], LIFE).mounts_stay(),
];

const FROM_SNAPSHOT: &[Step] = in_use!(EXT4, SNAPSHOT);
const RESTORE: &[Step] = &[copy("r", EXT4, Origin::Snapshot("s"))];
const RESTORE_LARGER: &[Step] = &[
    copy("r", Spec::fs("ext4", 64), Origin::Snapshot("s")),
    Step::Attach("r"),
    Step::Stage("r"),
];
const RESTORE_THICK: &[Step] = &[copy("r", THICK, Origin::Snapshot("s"))];
const CLONE: &[Step] = &[copy("c", EXT4, Origin::Volume("v"))];
const CLONE_BLOCK: &[Step] = &[copy("c", BLOCK, Origin::Volume("v"))];

const ATTACHED_EXT4: &[Step] = &[create("v", EXT4), Step::Attach("v")];
const ATTACHED_XFS: &[Step] = &[create("v", XFS), Step::Attach("v")];
const ATTACHED_BTRFS: &[Step] = &[create("v", BTRFS), Step::Attach("v")];
const ATTACHED_BLOCK: &[Step] = &[create("v", BLOCK), Step::Attach("v")];
const ATTACHED_THICK: &[Step] = &[create("v", THICK), Step::Attach("v")];
const STAGED_EXT4: &[Step] = &[create("v", EXT4), Step::Attach("v"), Step::Stage("v")];
const STAGED_BLOCK: &[Step] = &[create("v", BLOCK), Step::Attach("v"), Step::Stage("v")];
const STAGE: &[Step] = &[Step::Stage("v")];

const EXPAND_64: &[Step] = &[Step::Expand {
    volume: "v",
    mib: 64,
}];
const EXPAND_400: &[Step] = &[Step::Expand {
    volume: "v",
    mib: 400,
}];
const TO_THICK: &[Step] = &[Step::Modify {
    volume: "v",
    parameters: &[("provisioning", "thick")],
}];
const TUNE: &[Step] = &[Step::Modify {
    volume: "v",
    parameters: &[
        ("discard", "true"),
        ("directIO", "false"),
        ("readAheadKiB", "512"),
    ],
}];

const TWO_IN_USE: &[Step] = in_use!(
    EXT4,
    create("w", EXT4),
    Step::Attach("w"),
    Step::Stage("w"),
    publish("w"),
    Step::Write("w"),
);
const A_GROUP: &[Step] = &[create("v", EXT4), create("w", EXT4), GROUP];
const READ_BLOCK: &[Step] = in_use!(BLOCK, publish_read_only("v"));
const UNPUBLISH_BLOCK: &[Step] = &[unpublish("v", "reader"), unpublish("v", "pod")];
const DOWN: &[Step] = &[Step::Unstage("v"), Step::Detach("v"), Step::Delete("v")];

const LIFE: &[Step] = in_use!(
    EXT4,
    SNAPSHOT,
    copy("r", EXT4, Origin::Snapshot("s")),
    Step::DeleteSnapshot("s"),
    unpublish("v", "pod"),
    Step::Unstage("v"),
    Step::Detach("v"),
    Step::Delete("v"),
);

/// Scenarios that are long enough to be killed at any moment, and not only between two effects:
/// mkfs, and copies made byte by byte under a freeze.
pub const LONG: &[Scenario] = &[
    scenario("stage ext4", Ext4, 0, LARGE_EXT4, STAGE),
    scenario("stage xfs", Ext4, 0, LARGE_XFS, STAGE),
    scenario("stage xfs, mounts stay", Xfs, 0, LARGE_XFS, STAGE).mounts_stay(),
    scenario("stage btrfs", Xfs, 0, LARGE_BTRFS, STAGE),
    scenario(
        "create thick",
        Xfs,
        0,
        &[],
        &[create("v", Spec::fs("ext4", 512).with(THICK.parameters))],
    ),
    scenario(
        "snapshot",
        Ext4,
        0,
        in_use!(Spec::fs("ext4", 256)),
        &[SNAPSHOT],
    ),
    scenario(
        "snapshot, mounts stay",
        Ext4,
        0,
        in_use!(Spec::fs("xfs", 512)),
        &[SNAPSHOT],
    )
    .mounts_stay(),
    scenario("group, mounts stay", Btrfs, 0, TWO_IN_USE, &[GROUP]).mounts_stay(),
    scenario("restore", Ext4, 0, FROM_SNAPSHOT, RESTORE),
    scenario("a life", Device, 0, &[], LIFE),
];

const LARGE_EXT4: &[Step] = &[create("v", Spec::fs("ext4", 2048)), Step::Attach("v")];
const LARGE_XFS: &[Step] = &[create("v", Spec::fs("xfs", 2048)), Step::Attach("v")];
const LARGE_BTRFS: &[Step] = &[create("v", Spec::fs("btrfs", 2048)), Step::Attach("v")];
