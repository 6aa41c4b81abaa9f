//! Looks at what is known of loop devices and mounts, and has the kernel confirm what a caller
//! relies on.

use std::collections::BTreeSet;
use std::path::Path;

use crate::{
    Error, FileId, LoopDevices, LoopInfo, LoopScope, LoopTable, MountEntry, MountTable, Mounts,
    Result, loop_path,
};

/// How often a look is repeated because something changed meanwhile, before it reads everything.
pub(crate) const LOOKS: usize = 3;

/// What `look` finds. It is repeated as long as it has `None`: the kernel did not confirm what it
/// found. If that does not end, `read` reads everything.
pub fn confirmed<T>(
    look: impl Fn() -> Result<Option<T>>,
    read: impl FnOnce() -> Result<T>,
) -> Result<T> {
    for _ in 0..LOOKS {
        if let Some(found) = look()? {
            return Ok(found);
        }
    }
    read()
}

/// Asks the kernel for what a caller relies on. True if the devices and mounts are still like this,
/// and these mounts (or none) are the topmost ones at these paths. If not, the next look reads them
/// again.
pub fn confirm<K: LoopDevices + Mounts + ?Sized>(
    kernel: &K,
    loops: &[&LoopInfo],
    mounts: &[&MountEntry],
    at: &[(&Path, Option<&MountEntry>)],
) -> bool {
    // Both, so that the next look reads all that has changed.
    let same_mounts = kernel.confirm_mounts(mounts, at);
    kernel.confirm_loops(loops) && same_mounts
}

/// Attached devices that are known to have this backing file, lowest minor first.
pub fn loops_of<K: LoopDevices + ?Sized>(kernel: &K, backing: FileId) -> Result<Vec<LoopInfo>> {
    confirmed_loops(kernel, LoopScope::All, |loops| {
        loops.over(backing).collect()
    })
}

/// All attached devices with this backing file. [`Error::Silent`] if there may be another one: a
/// device without a reported backing file, with `name` in its path. `name` is the part of the path
/// that no other file has: a volume's ID, or the file name of a pool's image.
pub fn loops_holding<K: LoopDevices + ?Sized>(
    kernel: &K,
    backing: FileId,
    name: &str,
) -> Result<Vec<LoopInfo>> {
    let scope = LoopScope::Image {
        directory: name,
        minors: &BTreeSet::new(),
    };
    let loops = confirmed_loops(kernel, scope, |loops| {
        let silent = loops.silent().filter(|l| l.may_hold(name));
        silent.chain(loops.over(backing)).collect()
    })?;
    match loops.iter().find(|l| l.may_hold(name)) {
        Some(silent) => Err(Error::silent(silent)),
        None => Ok(loops),
    }
}

/// The topmost mount at exactly this path.
pub fn topmost_mount<K: Mounts + ?Sized>(kernel: &K, path: &Path) -> Result<Option<MountEntry>> {
    let mut found = confirmed_mounts(kernel, Some(path), |mounts| {
        mounts.at(path).into_iter().collect()
    })?;
    Ok(found.pop())
}

/// The mounts of this loop device's filesystem, oldest first.
pub fn mounts_of_loop<K: Mounts + ?Sized>(kernel: &K, minor: u32) -> Result<Vec<MountEntry>> {
    confirmed_mounts(kernel, None, |mounts| mounts.of_loop(minor).collect())
}

/// Fails if a filesystem that could not be asked for its devices may be on this loop device.
pub fn refuse_unknown_mount<K: LoopDevices + ?Sized>(
    kernel: &K,
    mounts: &MountTable,
    minor: u32,
) -> Result<()> {
    let Some(mount) = mounts.of_any_loop().next() else {
        return Ok(());
    };
    let device = loop_path(minor);
    if !kernel.is_claimed(&device)? {
        return Ok(());
    }
    Err(Error::UnknownMount {
        device,
        mount_point: mount.mount_point.to_path_buf(),
    })
}

/// Those of the known loop devices that `wanted` selects, confirmed.
fn confirmed_loops<K: LoopDevices + ?Sized>(
    kernel: &K,
    scope: LoopScope<'_>,
    wanted: impl Fn(&LoopTable) -> Vec<&LoopInfo>,
) -> Result<Vec<LoopInfo>> {
    confirmed(
        || {
            let known = kernel.known_loops(scope)?;
            let found = wanted(&known);
            let is_same = kernel.confirm_loops(&known.old(found.iter().copied()));
            Ok(is_same.then(|| cloned(&found)))
        },
        || Ok(cloned(&wanted(&kernel.loops()?.into()))),
    )
}

/// Those of the known mounts that `wanted` selects, confirmed. With a path in `at`, `wanted`
/// selects the topmost mount there, and it is confirmed to be that.
fn confirmed_mounts<K: Mounts + ?Sized>(
    kernel: &K,
    at: Option<&Path>,
    wanted: impl Fn(&MountTable) -> Vec<&MountEntry>,
) -> Result<Vec<MountEntry>> {
    confirmed(
        || {
            let known = kernel.known_mounts()?;
            let found = wanted(&known);
            let topmost: Vec<_> = at
                .map(|path| (path, found.first().copied()))
                .into_iter()
                .collect();
            let is_same = kernel.confirm_mounts(&found, &topmost);
            Ok(is_same.then(|| cloned(&found)))
        },
        || Ok(cloned(&wanted(&kernel.mounts()?))),
    )
}

fn cloned<T: Clone>(found: &[&T]) -> Vec<T> {
    found.iter().copied().cloned().collect()
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case::nothing_changed(0, "look 1")]
    #[case::changed_once(1, "look 2")]
    #[case::changed_twice(2, "look 3")]
    #[case::never_confirmed(usize::MAX, "all")]
    fn a_look_is_repeated_until_it_is_confirmed(#[case] changes: usize, #[case] expected: &str) {
        let looks = Cell::new(0);
        let found = confirmed(
            || {
                looks.set(looks.get() + 1);
                Ok((looks.get() > changes).then(|| format!("look {}", looks.get())))
            },
            || Ok("all".to_owned()),
        );
        assert_eq!(found.unwrap(), expected);
    }

    #[test]
    fn an_error_ends_the_looks() {
        let found: Result<()> = confirmed(
            || Err(Error::errno("open", "/a", libc::EIO)),
            || panic!("nothing more is read"),
        );
        assert!(matches!(found, Err(Error::Io { .. })), "{found:?}");
    }
}
