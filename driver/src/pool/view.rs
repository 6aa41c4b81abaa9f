//! What the kernel shows of the loop devices over a pool's images, and who uses them.

use std::path::Path;

use super::Result;
use crate::sys::{FileId, Kernel, LOOP_MAJOR, LoopInfo, MountTable};

/// Loop devices and mounts, read at one time.
#[derive(Debug, Default)]
pub(super) struct View {
    pub(super) loops: Vec<LoopInfo>,
    pub(super) mounts: MountTable,
}

impl View {
    /// Reads both.
    pub(super) fn take(kernel: &dyn Kernel) -> Result<View> {
        Ok(View {
            loops: kernel.loops()?,
            mounts: kernel.mounts()?,
        })
    }

    /// Devices over this file.
    pub(super) fn over(&self, image: FileId) -> impl Iterator<Item = &LoopInfo> {
        self.loops.iter().filter(move |l| l.backing == Some(image))
    }

    /// Devices over this device (the read-only ones of raw block volumes).
    pub(super) fn over_loop(&self, minor: u32) -> impl Iterator<Item = &LoopInfo> {
        let device = rustix::fs::makedev(LOOP_MAJOR, minor);
        self.loops.iter().filter(move |l| l.backing_rdev == device)
    }

    /// Where the device's filesystem is mounted, binds included.
    pub(super) fn mounted_at(&self, minor: u32) -> Vec<&Path> {
        let mounts = self.mounts.of_loop(minor);
        mounts.map(|m| m.mount_point.as_path()).collect()
    }

    /// Where the device's node is bound, also one that is not attached any more.
    pub(super) fn bound_at(&self, minor: u32) -> Vec<&Path> {
        let bound = self.mounts.of_loop_node(minor);
        bound.map(|m| m.mount_point.as_path()).collect()
    }

    /// What uses the device, in words; nothing is an idle device.
    pub(super) fn users(&self, minor: u32) -> Vec<String> {
        let mounted = self
            .mounted_at(minor)
            .into_iter()
            .map(|p| format!("mounted at {}", p.display()));
        let bound = self
            .bound_at(minor)
            .into_iter()
            .map(|p| format!("bound at {}", p.display()));
        let over = self
            .over_loop(minor)
            .map(|l| format!("under /dev/loop{}", l.minor));
        mounted.chain(bound).chain(over).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn view() -> View {
        let mounts = "\
30 1 0:5 / /dev rw - devtmpfs devtmpfs rw
40 1 7:3 / /stage/a rw - ext4 /dev/loop3 rw
41 1 7:3 / /pod/a rw - ext4 /dev/loop3 rw
42 1 0:5 /loop4 /pod/raw rw - devtmpfs devtmpfs rw
43 1 0:5 /loop5//deleted /pod/old rw - devtmpfs devtmpfs rw
44 1 254:0 /somebody/loop4 /elsewhere rw - ext4 /dev/vda rw
45 1 0:5 /loop44 /pod/raw2 rw - devtmpfs devtmpfs rw
";
        let device = |minor, rdev| LoopInfo {
            minor,
            backing: Some(FileId {
                dev: 1,
                ino: u64::from(minor),
            }),
            backing_rdev: rdev,
            ..LoopInfo::default()
        };
        View {
            loops: vec![
                device(3, 0),
                device(6, 0),
                device(7, rustix::fs::makedev(7, 6)),
            ],
            mounts: MountTable::parse(mounts.as_bytes()).unwrap(),
        }
    }

    #[test]
    fn shows_users() {
        let view = view();
        let table: [(u32, &[&str]); 6] = [
            (3, &["mounted at /stage/a", "mounted at /pod/a"]),
            (4, &["bound at /pod/raw"]),
            (5, &["bound at /pod/old"]),
            (6, &["under /dev/loop7"]),
            (7, &[]),
            (44, &["bound at /pod/raw2"]),
        ];
        for (minor, users) in table {
            assert_eq!(view.users(minor), users, "loop{minor}");
        }
    }
}
