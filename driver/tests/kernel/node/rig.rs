//! A node with one pool on the machine's kernel, and everything it attached or mounted beneath a
//! temporary directory, which goes when the rig does.

use std::collections::BTreeMap;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use hostloop_driver::node::{self, Config, Node};
use hostloop_driver::pool::{
    Access, AccessMode, Capability, Error, NewVolume, PoolOptions, PoolSpec, Pools, Provisioning,
    Reserve, Settings, Source, VolumeHandle, VolumeId, VolumeRecord,
};
use hostloop_driver::request::CapabilityRules;
use hostloop_driver::sys::linux::Linux;
use hostloop_driver::sys::{FsType, Kernel, LoopInfo, LoopSpec, MkfsSpec, MountSpec, file_id};
use hostloop_proto::csi;
use hostloop_proto::csi::volume_capability::access_mode::Mode;
use hostloop_proto::csi::volume_capability::{
    AccessMode as CsiAccessMode, AccessType, BlockVolume, MountVolume,
};

pub(crate) const MI: u64 = 1 << 20;

/// What the pool stands on.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum On {
    /// The filesystem of the temporary directory.
    Here,
    /// A filesystem of its own, of this size.
    Its(FsType, u64),
}

pub(crate) struct Rig {
    pub(crate) node: Node,
    pub(crate) kernel: Arc<Linux>,
    cleanup: Cleanup,
}

impl Rig {
    pub(crate) fn new() -> Rig {
        Rig::on(On::Here)
    }

    pub(crate) fn on(on: On) -> Rig {
        let kernel = Arc::new(Linux::new());
        let missing = kernel.missing();
        assert!(missing.is_empty(), "these tests need: {missing:?}");
        for (fs, offered) in kernel.filesystems() {
            assert_eq!(offered, Ok(()), "these tests need the tools of {fs}");
        }
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().canonicalize().unwrap();
        for name in ["pool", "state", "stage", "pods"] {
            std::fs::create_dir(root.join(name)).unwrap();
        }
        let cleanup = Cleanup {
            root: root.clone(),
            kernel: kernel.clone(),
            _dir: dir,
        };
        if let On::Its(fs, bytes) = on {
            mount_new(&kernel, &root, fs, bytes);
        }
        Rig {
            node: Node::new(open(&root, kernel.clone()), config()),
            kernel,
            cleanup,
        }
    }

    /// The driver again, as if it had died and come back.
    pub(crate) fn restarted(self) -> Rig {
        self.restarted_with(open)
    }

    /// Restarts the driver while the pool can't be opened.
    pub(crate) fn restarted_without_pool(self) -> Rig {
        let rig = self.restarted_with(try_open);
        let slots = rig.node.pools.slots();
        assert!(slots.iter().all(|slot| slot.state.is_err()));
        rig
    }

    fn restarted_with(self, open: impl Fn(&Path, Arc<Linux>) -> Arc<Pools>) -> Rig {
        let Rig {
            node,
            kernel,
            cleanup,
        } = self;
        drop(node);
        Rig {
            node: Node::new(open(&cleanup.root, kernel.clone()), config()),
            kernel,
            cleanup,
        }
    }

    /// A filesystem and a raw block volume in use: at "a" with the target "p", at "b" with "q".
    pub(crate) fn both_in_use(&self) -> [VolumeId; 2] {
        let id = self.volume(on(FsType::Ext4), 16 * MI);
        let raw = self.volume(Access::Block, 8 * MI);
        self.stage(id, "a", &mount(FsType::Ext4)).unwrap();
        self.publish(id, "a", "p", &mount(FsType::Ext4), false)
            .unwrap();
        self.stage(raw, "b", &block()).unwrap();
        self.publish(raw, "b", "q", &block(), false).unwrap();
        [id, raw]
    }

    pub(crate) fn root(&self) -> &Path {
        &self.cleanup.root
    }

    pub(crate) fn create(&self, new: NewVolume) -> VolumeId {
        let pool = self.node.pools.named(None).unwrap();
        self.node.pools.create_volume(&pool, new).unwrap().id
    }

    pub(crate) fn volume(&self, access: Access, bytes: u64) -> VolumeId {
        self.create(new_volume(access, bytes))
    }

    pub(crate) fn record(&self, id: VolumeId) -> Arc<VolumeRecord> {
        self.node.pools.volume(&VolumeHandle::Id(id)).unwrap()
    }

    /// The loop devices over a volume's image.
    pub(crate) fn loops(&self, id: VolumeId) -> Vec<LoopInfo> {
        let image = self.node.pools.open_image(&self.record(id), false).unwrap();
        self.kernel.loops_of(file_id(&image).unwrap()).unwrap()
    }

    pub(crate) fn staging(&self, name: &str) -> PathBuf {
        let path = self.root().join("stage").join(name);
        std::fs::create_dir_all(&path).unwrap();
        path
    }

    pub(crate) fn target(&self, name: &str) -> PathBuf {
        self.root().join("pods").join(name)
    }

    pub(crate) fn stage(
        &self,
        id: VolumeId,
        at: &str,
        cap: &csi::VolumeCapability,
    ) -> node::Result<()> {
        let req = csi::NodeStageVolumeRequest {
            volume_id: id.to_string(),
            staging_target_path: text(&self.staging(at)),
            volume_capability: Some(cap.clone()),
            ..Default::default()
        };
        self.node.node_stage_volume(req).map(drop)
    }

    pub(crate) fn unstage(&self, id: VolumeId, at: &str) -> node::Result<()> {
        let req = csi::NodeUnstageVolumeRequest {
            volume_id: id.to_string(),
            staging_target_path: text(&self.staging(at)),
        };
        self.node.node_unstage_volume(req).map(drop)
    }

    pub(crate) fn publish(
        &self,
        id: VolumeId,
        from: &str,
        to: &str,
        cap: &csi::VolumeCapability,
        readonly: bool,
    ) -> node::Result<()> {
        let req = csi::NodePublishVolumeRequest {
            volume_id: id.to_string(),
            staging_target_path: text(&self.staging(from)),
            target_path: text(&self.target(to)),
            volume_capability: Some(cap.clone()),
            readonly,
            ..Default::default()
        };
        self.node.node_publish_volume(req).map(drop)
    }

    pub(crate) fn unpublish(&self, id: VolumeId, to: &str) -> node::Result<()> {
        let req = csi::NodeUnpublishVolumeRequest {
            volume_id: id.to_string(),
            target_path: text(&self.target(to)),
        };
        self.node.node_unpublish_volume(req).map(drop)
    }

    pub(crate) fn expand(&self, id: VolumeId, at: &Path, bytes: u64) -> node::Result<u64> {
        let req = csi::NodeExpandVolumeRequest {
            volume_id: id.to_string(),
            volume_path: text(at),
            capacity_range: Some(csi::CapacityRange {
                required_bytes: bytes as i64,
                limit_bytes: 0,
            }),
            ..Default::default()
        };
        let done = self.node.node_expand_volume(req)?;
        Ok(done.capacity_bytes as u64)
    }

    pub(crate) fn stats(&self, id: VolumeId, at: &Path) -> node::Result<Vec<csi::VolumeUsage>> {
        let req = csi::NodeGetVolumeStatsRequest {
            volume_id: id.to_string(),
            volume_path: text(at),
            ..Default::default()
        };
        Ok(self.node.node_get_volume_stats(req)?.usage)
    }

    /// Where something is mounted beneath the rig, pools aside.
    pub(crate) fn mounted(&self) -> Vec<PathBuf> {
        let table = self.kernel.mounts().unwrap();
        let points = table.entries.into_iter().map(|e| e.mount_point);
        let pool = self.root().join("pool");
        points
            .filter(|p| p.starts_with(self.root()) && *p != pool)
            .collect()
    }

    /// Its device is gone, in a moment: somebody may be looking at all devices just now, or a child
    /// of another test have inherited it until it runs its program.
    #[track_caller]
    pub(crate) fn assert_detached(&self, id: VolumeId) {
        for _ in 0..100 {
            if self.loops(id).is_empty() {
                break;
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        assert_eq!(self.loops(id), Vec::new());
    }

    /// Nothing of the volume is left but its record and image.
    #[track_caller]
    pub(crate) fn assert_clean(&self, id: VolumeId) {
        assert_eq!(self.mounted(), Vec::<PathBuf>::new());
        self.assert_detached(id);
        assert_eq!(self.record(id).stage, None);
        let left: Vec<_> = std::fs::read_dir(self.root().join("pods"))
            .unwrap()
            .map(|e| e.unwrap().file_name())
            .collect();
        assert!(left.is_empty(), "{left:?}");
    }
}

fn open(root: &Path, kernel: Arc<Linux>) -> Arc<Pools> {
    let pools = try_open(root, kernel);
    for slot in pools.slots() {
        assert_eq!(slot.state.err(), None, "the pool opens");
    }
    pools
}

fn try_open(root: &Path, kernel: Arc<Linux>) -> Arc<Pools> {
    let spec = PoolSpec {
        name: "default".to_owned(),
        path: root.join("pool"),
        image_bytes: None,
        preallocate: false,
        wipe: false,
        capacity_bytes: None,
        inline: false,
    };
    let options = PoolOptions {
        node_id: None,
        state_dir: root.join("state"),
        overcommit: 1000.0,
        reserve: Reserve::Bytes(0),
        max_volume_bytes: None,
        max_freeze: Duration::from_secs(10),
    };
    let open = || Pools::open(std::slice::from_ref(&spec), options.clone(), kernel.clone());
    // A child of another test may have inherited the old lock until it runs its program.
    let locked = |opened: &Result<Arc<Pools>, Error>| match opened {
        Ok(pools) => {
            let missing = pools.complete().err().map(|e| e.to_string());
            missing.is_some_and(|why| why.contains("another process"))
        }
        Err(e) => matches!(e, Error::Locked { .. }),
    };
    let mut opened = open();
    for _ in 0..100 {
        if !locked(&opened) {
            break;
        }
        std::thread::sleep(Duration::from_millis(20));
        opened = open();
    }
    opened.unwrap()
}

fn config() -> Config {
    Config {
        capabilities: CapabilityRules {
            mount_group: true,
            ..Default::default()
        },
        ..Config::new("n1")
    }
}

/// A filesystem in a file, mounted where the pool is to be.
fn mount_new(kernel: &Linux, root: &Path, fs: FsType, bytes: u64) {
    let path = root.join("pool.img");
    let image = File::options()
        .read(true)
        .write(true)
        .create_new(true)
        .open(path)
        .unwrap();
    image.set_len(bytes).unwrap();
    let device = kernel
        .loop_attach(&LoopSpec {
            backing: &image,
            label: "hostloop-test",
            read_only: false,
            direct_io: true,
            autoclear: true,
            minor: None,
        })
        .unwrap();
    kernel
        .mkfs(&MkfsSpec {
            device: &device.path(),
            fs,
            options: &[],
            discard: true,
            uuid: None,
            force: false,
        })
        .unwrap();
    kernel
        .mount(&MountSpec {
            device: &device.path(),
            target: &root.join("pool"),
            fs,
            read_only: false,
            options: &[],
        })
        .unwrap();
}

/// Everything beneath the directory is unmounted and detached, whatever the test left.
struct Cleanup {
    root: PathBuf,
    kernel: Arc<Linux>,
    _dir: tempfile::TempDir,
}

impl Drop for Cleanup {
    fn drop(&mut self) {
        let beneath = |path: &Path| path.starts_with(&self.root);
        let devices = || {
            let loops = self.kernel.loops().unwrap_or_default();
            let ours: Vec<_> = loops
                .iter()
                .filter(|l| beneath(Path::new(&l.backing_path)))
                .map(|l| l.minor)
                .collect();
            let over = |l: &LoopInfo| ours.iter().any(|m| l.backing_rdev == rdev(*m));
            let mut all: Vec<_> = loops
                .iter()
                .filter(|l| ours.contains(&l.minor) || over(l))
                .cloned()
                .collect();
            // The ones over others first.
            all.sort_by_key(|l| (l.backing_rdev == 0, std::cmp::Reverse(l.minor)));
            all
        };
        // A device can hold a mount, and a mount a device.
        for _ in 0..2 {
            let table = self.kernel.mounts().unwrap_or_default();
            for entry in table.entries.iter().rev() {
                if beneath(&entry.mount_point) {
                    if let Ok(dir) = File::open(&entry.mount_point) {
                        let _ = self.kernel.thaw(&dir);
                    }
                    let _ = self.kernel.unmount(&entry.mount_point);
                }
            }
            for info in devices() {
                let _ = self.kernel.loop_release(&info);
            }
        }
    }
}

pub(crate) fn rdev(minor: u32) -> u64 {
    rustix::fs::makedev(7, minor)
}

pub(crate) fn text(path: &Path) -> String {
    path.to_str().unwrap().to_owned()
}

pub(crate) fn on(fs: FsType) -> Access {
    Access::Mount {
        fs,
        flags: Vec::new(),
        group: None,
    }
}

pub(crate) fn new_volume(access: Access, bytes: u64) -> NewVolume {
    let floor = match access {
        Access::Mount { fs, .. } => fs.minimum_bytes(),
        Access::Block => 0,
    };
    NewVolume {
        name: format!("pvc-{}", uuid::Uuid::new_v4()),
        capacity_bytes: bytes.max(floor),
        capabilities: vec![Capability {
            access,
            mode: AccessMode::SingleNodeMultiWriter,
        }],
        parameters: BTreeMap::new(),
        mutable_parameters: BTreeMap::new(),
        settings: Settings {
            provisioning: Provisioning::Thin,
            discard: true,
            direct_io: true,
            read_ahead_kib: Some(64),
        },
        mkfs_options: Vec::new(),
        source: None,
        inline: None,
    }
}

pub(crate) fn copy_of(source: Source, access: Access, bytes: u64) -> NewVolume {
    NewVolume {
        source: Some(source),
        ..new_volume(access, bytes)
    }
}

pub(crate) fn mount(fs: FsType) -> csi::VolumeCapability {
    csi::VolumeCapability {
        access_mode: Some(CsiAccessMode {
            mode: Mode::SingleNodeMultiWriter.into(),
        }),
        access_type: Some(AccessType::Mount(MountVolume {
            fs_type: fs.to_string(),
            ..Default::default()
        })),
    }
}

pub(crate) fn block() -> csi::VolumeCapability {
    csi::VolumeCapability {
        access_mode: Some(CsiAccessMode {
            mode: Mode::SingleNodeMultiWriter.into(),
        }),
        access_type: Some(AccessType::Block(BlockVolume {})),
    }
}

/// Bytes that tell where they are from.
pub(crate) fn pattern(seed: u8, len: usize) -> Vec<u8> {
    (0..len)
        .map(|i| (i as u8).wrapping_mul(31).wrapping_add(seed))
        .collect()
}

/// Writes a file with such bytes, and has them on the device.
pub(crate) fn write(at: &Path, seed: u8, len: usize) {
    let file = File::create(at).unwrap();
    file.write_all_at(&pattern(seed, len), 0).unwrap();
    file.sync_all().unwrap();
}

#[track_caller]
pub(crate) fn assert_written(at: &Path, seed: u8, len: usize) {
    let read = std::fs::read(at).unwrap();
    assert!(read == pattern(seed, len), "{} changed", at.display());
}
