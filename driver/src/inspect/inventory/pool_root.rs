//! Finds the directory of a configured pool without mounting anything.

use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use crate::diagnose::Lost;
use crate::kernel::{Kernel, LOOP_MAJOR, LoopTable, MountEntry, MountTable};
use crate::storage::image_stat::ImageStat;
use crate::storage::{PoolKind, PoolSpec, place};

/// The kind of the configured pool.
pub fn kind(spec: &PoolSpec) -> PoolKind {
    let block = std::fs::metadata(&spec.path).is_ok_and(|m| m.file_type().is_block_device());
    match spec.image_bytes {
        Some(_) => PoolKind::Image,
        None if block => PoolKind::Device,
        None => PoolKind::Directory,
    }
}

/// The pool's image; `None` if it is missing, or if the pool is not configured as an image.
pub(super) fn image(spec: &PoolSpec) -> Option<ImageStat> {
    spec.image_bytes?;
    ImageStat::at(&spec.path.join(spec.image_name())).ok()?
}

/// Like [`root`], but reads only what it needs of the kernel's tables: nothing for a directory, and
/// no other loop device for an image.
pub(in crate::inspect) fn find(
    spec: &PoolSpec,
    state_dir: &Path,
    kernel: &dyn Kernel,
) -> Result<PathBuf, String> {
    let (mut loops, mut mounts) = (LoopTable::default(), MountTable::default());
    if kind(spec) != PoolKind::Directory {
        mounts = kernel.mounts().map_err(|error| error.to_string())?;
        let mount = mount_point(spec, state_dir)
            .ok()
            .and_then(|at| mounts.at(&at));
        if let Some(minor) = mount.and_then(MountEntry::loop_minor) {
            let device = kernel.loop_info(minor).map_err(|error| error.to_string())?;
            loops = device.into_iter().collect();
        }
    }
    root(spec, state_dir, image(spec).as_ref(), &loops, &mounts)
}

fn real(path: &Path) -> Result<PathBuf, String> {
    path.canonicalize()
        .map_err(|e| format!("{}: {e}", path.display()))
}

/// Where the driver mounts a pool in a device or image.
fn mount_point(spec: &PoolSpec, state_dir: &Path) -> Result<PathBuf, String> {
    Ok(real(state_dir)?.join("pools").join(&spec.name))
}

/// The directory of a pool, or why it can't be found. A pool in a device or image is at the
/// driver's mount point, if that device is mounted there.
pub(super) fn root(
    spec: &PoolSpec,
    state_dir: &Path,
    image: Option<&ImageStat>,
    loops: &LoopTable,
    mounts: &MountTable,
) -> Result<PathBuf, String> {
    let device = match kind(spec) {
        PoolKind::Directory => return real(&spec.path),
        PoolKind::Device => {
            let m = std::fs::metadata(&spec.path);
            let rdev = m
                .map_err(|e| format!("{}: {e}", spec.path.display()))?
                .rdev();
            (rustix::fs::major(rdev), rustix::fs::minor(rdev))
        }
        PoolKind::Image => {
            let image = image.ok_or_else(|| "its image is not there".to_owned())?;
            let on = loops.iter().find(|l| l.backing == Some(image.file));
            let on = on.ok_or_else(|| "its image is not attached: no driver runs".to_owned())?;
            (LOOP_MAJOR, on.minor)
        }
    };
    let at = mount_point(spec, state_dir)?;
    match mounts.at(&at) {
        Some(mount) if mount.device == device => Ok(at),
        Some(mount) => Err(format!("{} is mounted at {}", mount.source, at.display())),
        None => Err(format!(
            "is not mounted at {} (in this mount namespace)",
            at.display()
        )),
    }
}

/// What happened to the image of a pool that is still mounted, see [`place::lost_image`].
pub(super) fn lost_image(
    spec: &PoolSpec,
    state_dir: &Path,
    loops: &LoopTable,
    mounts: &MountTable,
) -> Option<Lost> {
    spec.image_bytes?;
    let at = mount_point(spec, state_dir).ok()?;
    let device = loops.device(mounts.at(&at)?.loop_minor()?)?;
    place::lost_image(spec, device, at)
}

/// The mount that contains a path.
pub(super) fn enclosing<'a>(mounts: &'a MountTable, path: &Path) -> Option<&'a MountEntry> {
    let above = path.ancestors();
    above.filter_map(|path| mounts.at(path)).next()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel::{FileId, LoopInfo};

    const MOUNTS: &str = "\
20 1 254:0 / / rw - ext4 /dev/vda rw
21 20 0:5 / /dev rw - devtmpfs devtmpfs rw
22 20 7:3 / /STATE/pools/fast rw - xfs /dev/loop3 rw
";

    fn table(state: &Path) -> MountTable {
        let state = state.display().to_string();
        let text = MOUNTS.replace("/STATE", &state);
        MountTable::parse(text.as_bytes()).unwrap()
    }

    fn on_loop(minor: u32, file: FileId) -> LoopInfo {
        LoopInfo {
            minor,
            backing: Some(file),
            ..LoopInfo::default()
        }
    }

    #[test]
    fn an_image_pool_is_where_its_loop_is_mounted() {
        let state = tempfile::tempdir().unwrap();
        let state = state.path().canonicalize().unwrap();
        let mounts = table(&state);
        let file = FileId { dev: 1, ino: 2 };
        let image = ImageStat {
            file,
            bytes: 1,
            allocated: 1,
            written_ns: 1,
        };
        let spec: PoolSpec = "fast=/var/lib/pools,image=1Gi".parse().unwrap();
        let find = |image: Option<&ImageStat>, loops: Vec<LoopInfo>| {
            root(&spec, &state, image, &loops.into(), &mounts)
        };
        let found = find(Some(&image), vec![on_loop(3, file)]);
        assert_eq!(found, Ok(state.join("pools/fast")));
        for (image, loops, why) in [
            (None, vec![], "image is not there"),
            (Some(&image), vec![], "not attached"),
            (
                Some(&image),
                vec![on_loop(4, file)],
                "/dev/loop3 is mounted",
            ),
        ] {
            let answer = find(image, loops).unwrap_err();
            assert!(answer.contains(why), "{answer}");
        }
        let other: PoolSpec = "slow=/var/lib/pools,image=1Gi".parse().unwrap();
        let answer = root(
            &other,
            &state,
            Some(&image),
            &vec![on_loop(4, file)].into(),
            &mounts,
        );
        assert!(answer.unwrap_err().contains("is not mounted at"));
    }

    #[test]
    fn a_path_is_on_the_nearest_mount() {
        let mounts = table(Path::new("/s"));
        for (path, source) in [
            ("/s/pools/fast/volumes", "/dev/loop3"),
            ("/s/pools/faster", "/dev/vda"),
            ("/dev/loop1", "devtmpfs"),
        ] {
            let mount = enclosing(&mounts, Path::new(path)).unwrap();
            assert_eq!(&*mount.source, source, "{path}");
        }
    }
}
