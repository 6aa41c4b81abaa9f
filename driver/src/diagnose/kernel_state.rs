//! The kernel's state: the attached loop devices, the mount table, and the users of each device.

use crate::kernel::{
    self, Kernel, KnownLoops, LoopInfo, LoopKey, LoopScope, MountEntry, MountTable,
};

/// Loop devices and mounts at one time.
#[derive(Clone, Debug, Default)]
pub struct KernelState {
    /// All attached loop devices of the machine, lowest minor first.
    pub loops: KnownLoops,
    /// The mount table of this process's namespace.
    pub mounts: MountTable,
}

impl KernelState {
    /// Reads all of both. Mounts come first: a device that is attached and mounted meanwhile then
    /// appears as attached, not as a mount of an unknown device.
    pub fn read(kernel: &dyn Kernel) -> kernel::Result<KernelState> {
        let mounts = kernel.mounts()?;
        let loops = kernel.loops()?.into();
        Ok(KernelState { loops, mounts })
    }

    /// What is known of both, in the same order. Some details may be old, see [`kernel::confirm`],
    /// or missing, see [`kernel::LoopDevices::known_loops`].
    pub(crate) fn known(kernel: &dyn Kernel, scope: LoopScope<'_>) -> kernel::Result<KernelState> {
        let mounts = kernel.known_mounts()?;
        let loops = kernel.known_loops(scope)?;
        Ok(KernelState { loops, mounts })
    }

    /// Makes the kernel read everything again, so that the driver holds one copy of it.
    pub(crate) fn read_to_know(kernel: &dyn Kernel) -> kernel::Result<KernelState> {
        kernel.forget_mounts();
        kernel.forget_loops();
        KernelState::known(kernel, LoopScope::All)
    }

    /// This state after records have said which files stand in for images.
    pub(crate) fn with_stand_ins(&self) -> KernelState {
        let loops = self.loops.iter().map(|device| LoopInfo {
            backing: device.backing.map(kernel::image_of),
            ..device.clone()
        });
        KernelState {
            loops: loops.collect::<Vec<_>>().into(),
            mounts: self.mounts.clone(),
        }
    }

    /// The attached device with this minor.
    pub fn device(&self, minor: u32) -> Option<&LoopInfo> {
        self.loops.device(minor)
    }

    /// True if the device's node is bound anywhere, attached or not.
    pub(crate) fn is_bound(&self, minor: u32) -> bool {
        self.mounts.of_loop_node(minor).next().is_some()
    }

    /// Mounts of the device's filesystem, then binds of its node.
    pub(crate) fn mounts_of(&self, minor: u32) -> impl Iterator<Item = &MountEntry> {
        let mounts = self.mounts.of_loop(minor);
        mounts.chain(self.mounts.of_loop_node(minor))
    }

    /// Describes the users of the device: mounts of its filesystem, binds of its node, and devices
    /// over it (read-only ones of raw block volumes, pins, and kubelet's). A device that does not answer
    /// may be over it. Empty for an idle device.
    pub(crate) fn users(&self, minor: u32) -> Vec<String> {
        let mounted = self.mounts.of_loop(minor);
        let mounted = mounted.map(|m| format!("mounted at {}", m.mount_point.display()));
        let bound = self.mounts.of_loop_node(minor);
        let bound = bound.map(|m| format!("bound at {}", m.mount_point.display()));
        let over = self.loops.with(LoopKey::Below(minor));
        let over = over.map(|l| format!("under /dev/loop{}", l.minor));
        let silent = self.loops.silent();
        let silent = silent.filter(|l| l.may_be_over() == Some(minor));
        let silent = silent.map(|l| format!("perhaps under /dev/loop{}", l.minor));
        mounted.chain(bound).chain(over).chain(silent).collect()
    }

    /// Minors with nothing attached and no bind of their device node, lowest first.
    pub(crate) fn free_minors(&self) -> impl Iterator<Item = u32> {
        (0..).filter(|n| self.device(*n).is_none() && !self.is_bound(*n))
    }
}

/// True if several devices are over one image and at least one is writable. Each has its own page
/// cache, so writes through one overwrite those through another. Read-only devices alone are
/// harmless.
pub(crate) fn destroy_data<'a>(devices: impl IntoIterator<Item = &'a LoopInfo>) -> bool {
    let (mut count, mut writable) = (0, false);
    for device in devices {
        count += 1;
        writable |= !device.read_only;
    }
    count > 1 && writable
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel::FileId;

    fn state() -> KernelState {
        let mounts = "\
30 1 0:5 / /dev rw - devtmpfs devtmpfs rw
40 1 7:3 / /stage/a rw - ext4 /dev/loop3 rw
41 1 7:3 / /pod/a rw - ext4 /dev/loop3 rw
42 1 0:5 /loop4 /pod/raw rw - devtmpfs devtmpfs rw
43 1 0:5 /loop5//deleted /pod/old rw - devtmpfs devtmpfs rw
44 1 254:0 /other/loop4 /elsewhere rw - ext4 /dev/vda rw
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
        KernelState {
            loops: vec![
                device(3, 0),
                device(6, 0),
                device(7, rustix::fs::makedev(7, 6)),
            ]
            .into(),
            mounts: MountTable::parse(mounts.as_bytes()).unwrap(),
        }
    }

    #[test]
    fn shows_users() {
        let state = state();
        let table: [(u32, &[&str]); 6] = [
            (3, &["mounted at /stage/a", "mounted at /pod/a"]),
            (4, &["bound at /pod/raw"]),
            (5, &["bound at /pod/old"]),
            (6, &["under /dev/loop7"]),
            (7, &[]),
            (44, &["bound at /pod/raw2"]),
        ];
        for (minor, users) in table {
            assert_eq!(state.users(minor), users, "loop{minor}");
        }
    }

    #[test]
    fn a_device_that_does_not_answer_may_be_a_user() {
        let silent = LoopInfo {
            minor: 9,
            backing_path: "/dev/loop6".to_owned(),
            ..LoopInfo::default()
        };
        let state = KernelState {
            loops: vec![silent].into(),
            ..KernelState::default()
        };
        assert_eq!(state.users(6), ["perhaps under /dev/loop9"]);
        assert_eq!(state.users(7), [] as [&str; 0]);
    }

    #[test]
    fn a_minor_is_free_without_a_device_and_without_a_bind() {
        let state = state();
        let free: Vec<u32> = state.free_minors().take(6).collect();
        assert_eq!(free, [0, 1, 2, 8, 9, 10]);
    }

    #[test]
    fn several_devices_over_an_image_destroy_it_if_one_is_writable() {
        let device = |read_only| LoopInfo {
            read_only,
            ..LoopInfo::default()
        };
        for (read_only, expected) in [
            (&[][..], false),
            (&[false], false),
            (&[true, true], false),
            (&[true, false], true),
            (&[false, false], true),
        ] {
            let devices: Vec<_> = read_only.iter().map(|r| device(*r)).collect();
            assert_eq!(destroy_data(&devices), expected, "{read_only:?}");
        }
    }
}
