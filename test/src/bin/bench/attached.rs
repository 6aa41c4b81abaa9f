//! Many attached volumes.

use std::ops::Range;
use std::path::PathBuf;

use futures::StreamExt;
use hostloop_test::client::Csi;
use hostloop_test::pools::MIB;
use hostloop_test::scratch::Scratch;

use crate::bare_loop;
use crate::calls::{create, delete, publish, stage, unpublish, unstage};

/// The size of each volume.
pub(crate) const BYTES: u64 = 16 * MIB;
/// Volumes that are added or removed side by side.
const AT_ONCE: usize = 8;

/// A directory to stage a volume at, and a path to publish it at.
pub(crate) fn places(scratch: &Scratch, name: &str) -> (PathBuf, PathBuf) {
    let dir = scratch.dir(&format!("kubelet/{name}"));
    (
        scratch.dir(&format!("kubelet/{name}/staging")),
        dir.join("target"),
    )
}

/// Creates, stages and publishes a small volume for each number.
pub(crate) async fn add_volumes(csi: &Csi, scratch: &Scratch, numbers: Range<usize>) {
    for_each(numbers, |name| async move {
        let (staging, target) = places(scratch, &name);
        let id = create(csi, &name, BYTES).await;
        stage(csi, &id, &staging).await;
        publish(csi, &id, &staging, &target).await;
    })
    .await;
}

/// Unpublishes, unstages and deletes the volume of each number.
pub(crate) async fn remove_volumes(csi: &Csi, scratch: &Scratch, numbers: Range<usize>) {
    for_each(numbers, |name| async move {
        let (staging, target) = places(scratch, &name);
        // CreateVolume returns the volume that has this name.
        let id = create(csi, &name, BYTES).await;
        unpublish(csi, &id, &target).await;
        unstage(csi, &id, &staging).await;
        delete(csi, &id).await;
    })
    .await;
}

/// Runs `work` with the name of each volume, several side by side.
async fn for_each<W: Future<Output = ()>>(numbers: Range<usize>, work: impl Fn(String) -> W) {
    let names = numbers.map(|number| format!("attached-{number}"));
    futures::stream::iter(names)
        .for_each_concurrent(AT_ONCE, work)
        .await;
}

/// The loop devices that the machine has, attached or not. Dropping it removes free devices that
/// were added since: the kernel keeps them, and they slow down everything that lists loop devices.
pub(crate) struct LoopDevices(Vec<u32>);

impl LoopDevices {
    pub(crate) fn now() -> LoopDevices {
        LoopDevices(minors())
    }
}

impl Drop for LoopDevices {
    fn drop(&mut self) {
        for minor in minors().into_iter().filter(|minor| !self.0.contains(minor)) {
            // It fails if another process uses the device, which then stays.
            let _ = bare_loop::remove(minor);
        }
    }
}

fn minors() -> Vec<u32> {
    let devices = std::fs::read_dir("/sys/block")
        .expect("/sys is there")
        .flatten();
    let minor = |name: &str| name.strip_prefix("loop")?.parse().ok();
    devices
        .filter_map(|entry| minor(entry.file_name().to_str()?))
        .collect()
}
