//! The rows of the table of claim faults in docs/faults.md.

/// Reads the disk, and not the page cache.
const READ: &str = "dd if=/data/blocks of=/dev/null bs=4k iflag=direct";
/// Reads blocks all over the disk.
const READ_ALL: &str = "dd if=/data/large of=/dev/null bs=1M iflag=direct";
pub(super) const WRITE: &str = "echo new >/data/new";
/// Writes more than a filesystem keeps for itself.
const WRITE_MUCH: &str = "dd if=/dev/zero of=/data/much bs=1M count=64 conv=fsync";

/// What the kernel says, as a pod's programs print it.
const EIO: &[&str] = &["Input/output error", "I/O error"];
const EROFS: &[&str] = &["Read-only file system"];
const ENOSPC: &[&str] = &["No space left on device"];

/// What a pod sees of a fault.
#[derive(Clone, Copy, Debug)]
pub(super) enum Seen {
    /// This command fails, and prints one of these.
    Fails(&'static str, &'static [&'static str]),
    /// Writes wait, and go on once the fault is over.
    Waits,
    /// The volume can't have the fault.
    Nothing,
}

/// How a fault ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Heals {
    /// In place, as soon as it is cleared.
    InPlace,
    /// In place if nothing was written meanwhile, which the kernel may do by itself.
    Perhaps,
    /// Once the pods are deleted.
    Restaged,
    /// In place, after its time.
    InTime,
}

/// A row of the table.
#[derive(Clone, Copy, Debug)]
pub(super) struct Row {
    pub(super) fault: &'static str,
    pub(super) fs: &'static str,
    pub(super) seen: Seen,
    pub(super) heals: Heals,
}

pub(super) const fn row(fault: &'static str, fs: &'static str, seen: Seen, heals: Heals) -> Row {
    Row {
        fault,
        fs,
        seen,
        heals,
    }
}

pub(super) const ROWS: [Row; 18] = [
    row("gone", "ext4", Seen::Fails(READ, EIO), Heals::Perhaps),
    row("gone", "xfs", Seen::Fails(READ, EIO), Heals::Perhaps),
    row("gone", "btrfs", Seen::Fails(READ, EIO), Heals::Perhaps),
    row(
        "eio-from=64Mi",
        "ext4",
        Seen::Fails(READ_ALL, EIO),
        Heals::Perhaps,
    ),
    row(
        "eio-from=64Mi",
        "xfs",
        Seen::Fails(READ_ALL, EIO),
        Heals::Perhaps,
    ),
    row(
        "eio-from=64Mi",
        "btrfs",
        Seen::Fails(READ_ALL, EIO),
        Heals::Perhaps,
    ),
    row("powercut", "ext4", Seen::Fails(READ, EIO), Heals::Restaged),
    row("powercut", "xfs", Seen::Fails(READ, EIO), Heals::Restaged),
    row("powercut", "btrfs", Seen::Fails(READ, EIO), Heals::Perhaps),
    row("frozen", "ext4", Seen::Waits, Heals::InTime),
    row("frozen", "xfs", Seen::Waits, Heals::InTime),
    row("frozen", "btrfs", Seen::Waits, Heals::InTime),
    row(
        "readonly",
        "ext4",
        Seen::Fails(WRITE, EROFS),
        Heals::Restaged,
    ),
    row("readonly", "xfs", Seen::Nothing, Heals::InPlace),
    row("readonly", "btrfs", Seen::Nothing, Heals::InPlace),
    row(
        "full",
        "ext4",
        Seen::Fails(WRITE_MUCH, ENOSPC),
        Heals::InPlace,
    ),
    row(
        "full",
        "xfs",
        Seen::Fails(WRITE_MUCH, ENOSPC),
        Heals::InPlace,
    ),
    row(
        "full",
        "btrfs",
        Seen::Fails(WRITE_MUCH, ENOSPC),
        Heals::InPlace,
    ),
];
