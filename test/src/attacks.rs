//! Attacks on a node by a user who may only create pods, or only classes.

/// Attributes that a pod must not set on an inline volume: each would copy the node's files, weaken
/// its kernel or exceed its limits.
pub const INLINE_ATTRIBUTES: &[(&str, &str)] = &[
    ("mkfsOptions", "-d etc"),
    ("mkfsOptions", "-d proc"),
    ("mkfsOptions", "--rootdir var"),
    ("mkfsOptions", "-S -O ^has_journal -e panic"),
    ("mkfsOptions", "-m 0"),
    ("mountOptions", "suid,dev"),
    ("provisioning", "thick"),
    ("provisioning", "thin"),
    ("discard", "false"),
    ("directIO", "false"),
    ("readAheadKiB", "1048576"),
    ("pool", "nowhere"),
    ("kind", "default"),
];

/// Sizes of an inline volume beyond the default limit.
pub const INLINE_SIZES: &[&str] = &["1025Mi", "2Gi", "1Ti", "1Ei"];

/// `mkfsOptions` of a class, by filesystem, that read files, reach other devices, or change what
/// the kernel does about errors.
pub const MKFS_OPTIONS: &[(&str, &str)] = &[
    ("ext4", "-d etc"),
    ("ext4", "-detc"),
    ("ext4", "-m 0 -d ."),
    ("ext4", "-e panic"),
    ("ext4", "-S -O ^has_journal -e panic"),
    ("ext4", "-l badblocks"),
    ("ext4", "-z undo"),
    ("ext4", "-J device=LABEL=x"),
    ("ext4", "-E offset=4096"),
    ("ext4", "-FS"),
    ("ext4", "1000"),
    ("xfs", "-p etc/passwd"),
    ("xfs", "-d name=x"),
    ("xfs", "-l logdev=loop0"),
    ("xfs", "-c options=x"),
    ("btrfs", "--rootdir etc"),
    ("btrfs", "--rootdir=etc"),
    ("btrfs", "-retc"),
    ("btrfs", "-d raid0 loop0"),
];

/// Mount options of a class, by filesystem, that reach other devices or files, show what was never
/// written completely, or stop the node.
pub const MOUNT_OPTIONS: &[(&str, &str)] = &[
    ("xfs", "rtdev=/dev/sda"),
    ("xfs", "logdev=/dev/loop0"),
    ("xfs", "noatime,rtdev=/dev/sda"),
    ("xfs", "norecovery"),
    ("btrfs", "device=/dev/sda"),
    ("btrfs", "degraded"),
    ("btrfs", "rescue=all"),
    ("btrfs", "subvol=../../etc"),
    ("btrfs", "fatal_errors=panic"),
    ("ext4", "journal_path=/dev/sda"),
    ("ext4", "journal_dev=2049"),
    ("ext4", "usrjquota=aquota.user"),
    ("ext4", "source=/dev/sda"),
    ("ext4", "warn_on_error"),
    ("ext4", "noload"),
    ("ext4", "bind"),
    ("ext4", "loop=/dev/loop0"),
    ("ext4", "context=\"u:r:t:s0,journal_path=/dev/sda\""),
    ("ext4", "x-a=\"b,journal_path=/dev/sda,c=\""),
];
