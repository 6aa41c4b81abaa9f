//! What this machine can show: the filesystem of the volumes, and what the pool is kept in.

use crate::sys::{FsType, Kernel};

use super::tree::Tree;
use super::world::POOL;

/// The pool's size in sizes of the first volume: all volumes of the story, with room to spare.
const POOL_FACTOR: u64 = 16;
/// The smallest pool, in bytes.
const POOL_LEAST: u64 = 1 << 30;

/// A choice, and a sentence about it where it is not the usual one.
pub(super) struct Choice<T> {
    pub(super) what: T,
    pub(super) why: Option<String>,
}

/// The filesystem that is wanted; else ext4, or one that grows in use where ext4 can't.
pub(super) fn filesystem(
    wanted: Option<FsType>,
    ext4_grows: bool,
    size: u64,
    offered: &[FsType],
) -> Choice<FsType> {
    let usual = FsType::Ext4;
    if let Some(fs) = wanted {
        return Choice {
            what: fs,
            why: None,
        };
    }
    let other = [FsType::Xfs, FsType::Btrfs]
        .into_iter()
        .find(|fs| offered.contains(fs) && fs.minimum_bytes() <= size);
    match other {
        Some(fs) if !ext4_grows => Choice {
            what: fs,
            why: Some(format!(
                "The volumes are {fs}: this process lacks CAP_SYS_RESOURCE, and without it the \
                 kernel grows no ext4 that is in use."
            )),
        },
        _ => Choice {
            what: usual,
            why: None,
        },
    }
}

/// The filesystems whose tools are there.
pub(super) fn offered(kernel: &dyn Kernel) -> Vec<FsType> {
    let offered = kernel.filesystems().into_iter();
    offered
        .filter(|(_, tools)| tools.is_ok())
        .map(|(fs, _)| fs)
        .collect()
}

/// How the pool is configured: in an image, if this machine can make its filesystem.
pub(super) fn pool(tree: &Tree, kernel: &dyn Kernel, size: u64) -> Choice<String> {
    let path = tree.pool();
    let xfs = kernel
        .filesystems()
        .into_iter()
        .find(|(fs, _)| *fs == FsType::Xfs);
    match xfs {
        Some((_, Ok(()))) => {
            let image = (size * POOL_FACTOR).max(POOL_LEAST) >> 20;
            Choice {
                what: format!("{POOL}={},image={image}Mi", path.display()),
                why: None,
            }
        }
        other => {
            let why = other.and_then(|(_, tools)| tools.err());
            let why = why.unwrap_or_else(|| "it is not offered".to_owned());
            Choice {
                what: format!("{POOL}={}", path.display()),
                why: Some(format!(
                    "The pool is a plain directory, since XFS can't be made here ({why}). Unless \
                     {} shares blocks between files, snapshots are copies.",
                    path.display()
                )),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ext4_unless_it_cannot_grow() {
        use FsType::{Btrfs, Ext4, Xfs};
        let large = 512 << 20;
        for (wanted, grows, size, offered, fs) in [
            (None, true, large, vec![Ext4, Xfs, Btrfs], Ext4),
            (None, false, large, vec![Ext4, Xfs, Btrfs], Xfs),
            (None, false, large, vec![Ext4, Btrfs], Btrfs),
            (None, false, 200 << 20, vec![Ext4, Xfs, Btrfs], Btrfs),
            (None, false, 64 << 20, vec![Ext4, Xfs, Btrfs], Ext4),
            (None, false, large, vec![Ext4], Ext4),
            (Some(Ext4), false, large, vec![Ext4, Xfs], Ext4),
            (Some(Btrfs), true, large, vec![Ext4, Xfs], Btrfs),
        ] {
            let choice = filesystem(wanted, grows, size, &offered);
            assert_eq!(choice.what, fs);
            assert_eq!(choice.why.is_some(), wanted.is_none() && fs != Ext4);
        }
    }
}
