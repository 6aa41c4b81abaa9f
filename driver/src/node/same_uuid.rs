//! Filesystems with one UUID: a copy has the UUID of its source, and both may be mounted at once.

use std::path::Path;

use super::{Error, Result};
use crate::kernel::{FsType, Probe};

/// Adds the mount option that lets the kernel mount a copy beside its source. `nouuid` turns off
/// only XFS's check for that.
pub(super) fn allow_copies(fs: FsType, options: &mut Vec<String>) {
    if fs == FsType::Xfs && !options.iter().any(|word| word == "nouuid") {
        options.push("nouuid".to_owned());
    }
}

/// Refuses to mount two btrfs filesystems with one UUID if the kernel would mix them up.
pub(super) fn refuse_twin(fs: FsType, found: &Probe) -> Result<()> {
    let uuid = match (fs, found) {
        (FsType::Btrfs, Probe::Filesystem { uuid, .. }) if !uuid.is_empty() => uuid,
        _ => return Ok(()),
    };
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let release = release.trim();
    let twin = Path::new("/sys/fs/btrfs").join(uuid).exists();
    if !twin || mounts_btrfs_twins(release) {
        return Ok(());
    }
    Err(Error::FailedPrecondition(format!(
        "a btrfs with the UUID {uuid} is mounted, of which this volume is a copy; Linux {release} \
         can't mount both, 6.7 and later can"
    )))
}

/// True if the kernel can mount two btrfs filesystems with one UUID. Linux 6.7 and later give the
/// second one a temporary UUID; older kernels mix up their devices.
fn mounts_btrfs_twins(release: &str) -> bool {
    let mut numbers = release
        .split(|c: char| !c.is_ascii_digit())
        .map_while(|n| n.parse::<u32>().ok());
    match (numbers.next(), numbers.next()) {
        (Some(major), Some(minor)) => (major, minor) >= (6, 7),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn btrfs_twins_need_linux_6_7() {
        let table = [
            ("6.18.44-fc-v669", true),
            ("6.7.0", true),
            ("6.7-rc1", true),
            ("6.6.99-generic", false),
            ("5.15.0-100-generic", false),
            ("10.0", true),
            ("", false),
            ("unknown", false),
        ];
        for (release, expected) in table {
            assert_eq!(mounts_btrfs_twins(release), expected, "{release}");
        }
    }
}
