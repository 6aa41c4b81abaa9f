//! Where the blocks of images are on the pool's filesystem, for `hostloop status --extents`.
//!
//! This reads only the files of these images: no record, no other volume and no list of loop
//! devices. So the answer takes the same time in a pool with thousands of volumes.

use std::os::fd::AsFd;
use std::path::{Path, PathBuf};

use hostloop_report::image_map::{ImageMap, ReportedRun};
use rustix::fs::OFlags;

use crate::inspect::inventory::{ImageStat, pool_root};
use crate::kernel::extents;
use crate::kernel::linux::Linux;
use crate::kernel::{self, file};
use crate::storage::file_names::{EntryKind, IMAGE};
use crate::storage::{PoolSpec, SnapshotId, VolumeId};

/// Further images are left out once the maps have this many runs. A run is about 60 bytes.
const MOST_RUNS: usize = 50_000;

/// Reads the maps of these volumes' and snapshots' images, each after writing the image back.
pub fn image_maps(specs: &[PoolSpec], state_dir: &Path, ids: &[String]) -> Vec<ImageMap> {
    let kernel = Linux::new();
    let roots: Vec<_> = specs
        .iter()
        .map(|spec| pool_root::find(spec, state_dir, &kernel))
        .collect();
    up_to(MOST_RUNS, ids, |id| one(&roots, id))
}

/// The maps of these images in order, until they have this many runs.
fn up_to(runs: usize, ids: &[String], read: impl Fn(&str) -> ImageMap) -> Vec<ImageMap> {
    let (mut maps, mut found) = (Vec::new(), 0);
    for id in ids {
        if found >= runs {
            break;
        }
        let map = read(id);
        found += map.extents.as_ref().map_or(0, Vec::len);
        maps.push(map);
    }
    maps
}

fn one(roots: &[Result<PathBuf, String>], id: &str) -> ImageMap {
    let (extents, problem) = match in_pools(roots, id) {
        Ok(extents) => (extents, None),
        Err(problem) => (None, Some(problem)),
    };
    ImageMap {
        id: id.to_owned(),
        extents,
        problem,
    }
}

/// Finds the image in one of the pools. A missing pool is only a problem if no other pool has the
/// image.
fn in_pools(
    roots: &[Result<PathBuf, String>],
    id: &str,
) -> Result<Option<Vec<ReportedRun>>, String> {
    let path =
        path_in_pool(id).ok_or_else(|| format!("{id} is not the ID of a volume or snapshot"))?;
    let mut missing = None;
    for root in roots {
        match root {
            Ok(root) => match beneath(root, &path) {
                Ok(extents) => return Ok(Some(extents)),
                Err(kernel::Error::NotFound { .. }) => {}
                Err(error) => return Err(error.to_string()),
            },
            Err(why) => missing = Some(why.clone()),
        }
    }
    missing.map_or(Ok(None), Err)
}

/// The path of an image in its pool. `None` for any other text, so that none leads elsewhere.
fn path_in_pool(id: &str) -> Option<PathBuf> {
    let kind = match (id.parse::<VolumeId>(), id.parse::<SnapshotId>()) {
        (Ok(_), _) => EntryKind::Volumes,
        (_, Ok(_)) => EntryKind::Snapshots,
        _ => return None,
    };
    Some(Path::new(kind.name()).join(id).join(IMAGE))
}

fn beneath(root: &Path, path: &Path) -> kernel::Result<Vec<ReportedRun>> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let pool = rustix::fs::open(root, flags, rustix::fs::Mode::empty())
        .map_err(|error| kernel::Error::io("open", root, error.into()))?;
    // O_NONBLOCK: a FIFO at the path does not block.
    let image = file::open_beneath(pool.as_fd(), path, OFlags::RDONLY | OFlags::NONBLOCK)?;
    match ImageStat::of(&image, path)? {
        Some(_) => Ok(extents::map(&image)?.into_iter().map(reported).collect()),
        None => Ok(Vec::new()),
    }
}

fn reported(run: extents::ExtentRun) -> ReportedRun {
    ReportedRun {
        offset: run.offset,
        len: run.len,
        physical: run.physical,
        shared: run.shared,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::storage::PoolId;

    #[test]
    fn only_ids_lead_to_images() {
        let pool = PoolId::generate();
        let (volume, snapshot) = (VolumeId::generate(pool), SnapshotId::generate(pool));
        for (id, path) in [
            (volume.to_string(), Some(format!("volumes/{volume}/image"))),
            (
                snapshot.to_string(),
                Some(format!("snapshots/{snapshot}/image")),
            ),
            (format!("../volumes/{volume}"), None),
            ("..".to_owned(), None),
            (String::new(), None),
        ] {
            assert_eq!(path_in_pool(&id), path.map(PathBuf::from), "{id}");
        }
    }

    #[test]
    fn images_are_left_out_once_there_are_enough_runs() {
        let run = ReportedRun {
            offset: 0,
            len: 1,
            physical: 0,
            shared: false,
        };
        let ids: Vec<String> = ["3", "none", "2", "1"].map(str::to_owned).to_vec();
        let read = |id: &str| ImageMap {
            id: id.to_owned(),
            extents: id.parse().ok().map(|runs| vec![run; runs]),
            problem: None,
        };
        for (runs, read_ones) in [(0, 0), (1, 1), (3, 1), (4, 3), (5, 3), (6, 4), (9, 4)] {
            assert_eq!(up_to(runs, &ids, read).len(), read_ones, "{runs}");
        }
    }

    #[test]
    fn an_image_that_is_gone_is_no_problem_and_a_missing_pool_is_one() {
        let directory = tempfile::tempdir().unwrap();
        let root = directory.path().to_path_buf();
        let id = VolumeId::generate(PoolId::generate()).to_string();
        let there = VolumeId::generate(PoolId::generate()).to_string();
        std::fs::create_dir_all(root.join("volumes").join(&there)).unwrap();
        std::fs::write(root.join("volumes").join(&there).join("image"), "").unwrap();
        let missing = || Err("its image is not attached".to_owned());
        for (id, roots, extents, problem) in [
            (&id, vec![Ok(root.clone())], None, None),
            (
                &id,
                vec![Ok(root.clone()), missing()],
                None,
                Some("its image is not attached"),
            ),
            (
                &there,
                vec![missing(), Ok(root.clone())],
                Some(vec![]),
                None,
            ),
        ] {
            let map = one(&roots, id);
            assert_eq!(
                (map.extents, map.problem.as_deref()),
                (extents, problem),
                "{roots:?}"
            );
        }
        assert!(
            one(&[Ok(root)], "data")
                .problem
                .unwrap()
                .contains("data is not the ID")
        );
    }
}
