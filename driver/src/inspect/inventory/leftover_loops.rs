//! Loop devices that a deleted cluster has left: their files are deleted, and no pool here knows
//! them. The kernel frees the space of such a file only after its device is detached. Another
//! cluster on this machine may still use one, so a person decides.

use std::collections::BTreeSet;
use std::path::Path;

use hostloop_report::machine::LeftoverLoop;

use crate::kernel::{Kernel, LoopInfo, loop_path};
use crate::reach::pins;
use crate::storage::{PoolId, pool_named_in};

/// The devices that may be left over. `own` are the pools of this driver.
pub fn leftover_loops<'a>(
    kernel: &dyn Kernel,
    loops: impl IntoIterator<Item = &'a LoopInfo>,
    own: &BTreeSet<PoolId>,
) -> Vec<LeftoverLoop> {
    let loops: Vec<&LoopInfo> = loops.into_iter().collect();
    // A node that shares the kernel may use a raw block volume without a claim.
    let pinned = pins::pinned(loops.iter().copied());
    let unpinned = loops
        .into_iter()
        .filter(|device| !pinned.contains(&device.minor));
    let unknown = unpinned.filter(|device| is_unknown(device, own));
    let leftover = unknown.filter_map(|device| {
        let path = loop_path(device.minor);
        // A filesystem that is mounted in any namespace belongs to a cluster that lives.
        let is_idle = matches!(kernel.is_claimed(&path), Ok(false));
        is_idle.then(|| LeftoverLoop {
            device: path,
            file: device.backing_path.clone(),
        })
    });
    leftover.collect()
}

/// True for a device over a deleted file of a pool that is not among these.
fn is_unknown(device: &LoopInfo, own: &BTreeSet<PoolId>) -> bool {
    let pool = pool_named_in(Path::new(&device.backing_path));
    device.is_deleted() && pool.is_some_and(|pool| !own.contains(&pool))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::storage::VolumeId;

    #[test]
    fn only_deleted_images_of_other_pools_count() {
        let (own, other) = (PoolId::generate(), PoolId::generate());
        let of = |path: String| LoopInfo {
            backing_path: path,
            ..LoopInfo::default()
        };
        let image = |pool| format!("/var/local/pool/volumes/{}/image", VolumeId::generate(pool));
        for (path, expected) in [
            (format!("{} (deleted)", image(other)), true),
            (format!("{} (deleted)", image(own)), false),
            (image(other), false),
            ("/var/lib/docker/image (deleted)".to_owned(), false),
        ] {
            assert_eq!(
                is_unknown(&of(path.clone()), &[own].into()),
                expected,
                "{path}"
            );
        }
    }
}
