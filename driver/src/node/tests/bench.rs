//! A node with one pool over the model, and short ways to call it.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use hostloop_proto::csi;
use hostloop_proto::csi::volume_capability::access_mode::Mode;
use hostloop_proto::csi::volume_capability::{
    AccessMode as CsiAccessMode, AccessType, BlockVolume, MountVolume,
};

use crate::node::{Config, Node, Result};
use crate::pool::{
    Access, AccessMode, Capability, NewVolume, PoolOptions, PoolSpec, Pools, Provisioning, Reserve,
    Settings, VolumeHandle, VolumeId, VolumeRecord,
};
use crate::request::CapabilityRules;
use crate::sys::model::Model;
use crate::sys::{FileId, FsType, Kernel, MountEntry, file_id};

pub(super) const MI: u64 = 1 << 20;

pub(super) struct Bench {
    pub(super) dir: tempfile::TempDir,
    pub(super) kernel: Arc<Model>,
    pub(super) node: Node,
}

impl Bench {
    pub(super) fn new() -> Bench {
        let dir = tempfile::tempdir().expect("a temporary directory");
        for name in ["pool", "state", "stage", "pods"] {
            std::fs::create_dir(dir.path().join(name)).expect("a directory");
        }
        let kernel = Arc::new(Model::new());
        let node = Bench::start(options(dir.path()), dir.path(), kernel.clone());
        Bench { dir, kernel, node }
    }

    fn start(options: PoolOptions, dir: &Path, kernel: Arc<Model>) -> Node {
        let spec = PoolSpec {
            name: "default".to_owned(),
            path: dir.join("pool"),
            image_bytes: None,
            preallocate: false,
            wipe: false,
            capacity_bytes: None,
            inline: false,
        };
        let pools = Pools::open(&[spec], options, kernel).expect("a pool");
        let config = Config {
            capabilities: CapabilityRules {
                mount_group: true,
                ..Default::default()
            },
            ..Config::new("n1")
        };
        Node::new(pools, config)
    }

    /// A volume of 16 MiB (320 MiB for the filesystems that need it).
    pub(super) fn volume(&self, access: Access) -> VolumeId {
        let bytes = match access {
            Access::Mount { fs, .. } => (16 * MI).max(fs.minimum_bytes()),
            Access::Block => 16 * MI,
        };
        let new = NewVolume {
            name: format!("pvc-{}", uuid::Uuid::new_v4()),
            capacity_bytes: bytes,
            capabilities: vec![Capability {
                access,
                mode: AccessMode::SingleNodeWriter,
            }],
            parameters: BTreeMap::new(),
            mutable_parameters: BTreeMap::new(),
            settings: Settings {
                provisioning: Provisioning::Thin,
                discard: false,
                direct_io: true,
                read_ahead_kib: None,
            },
            mkfs_options: Vec::new(),
            source: None,
            inline: None,
        };
        let pool = self.node.pools.named(None).expect("the pool");
        let record = self.node.pools.create_volume(&pool, new);
        record.expect("a volume").id
    }

    pub(super) fn record(&self, id: VolumeId) -> Arc<VolumeRecord> {
        let record = self.node.pools.volume(&VolumeHandle::Id(id));
        record.expect("a record")
    }

    pub(super) fn image(&self, id: VolumeId) -> FileId {
        let image = self.node.pools.open_image(&self.record(id), false);
        file_id(image.expect("an image")).expect("its ID")
    }

    /// Whether its filesystem is frozen, mounted or not.
    pub(super) fn is_frozen(&self, id: VolumeId) -> bool {
        let loops = self.kernel.loops_of(self.image(id)).expect("its devices");
        loops.iter().any(|l| self.kernel.is_frozen(l.minor))
    }

    /// The driver again, as if it had died and come back.
    pub(super) fn restart(&mut self) {
        self.restart_with(options(self.dir.path()).reserve);
    }

    /// Like [`Bench::restart`], with this reserve in the pool.
    pub(super) fn restart_with(&mut self, reserve: Reserve) {
        // The old one lets go of the pool first.
        let none = Pools::open(&[], options(self.dir.path()), self.kernel.clone());
        self.node.pools = none.expect("no pools");
        let options = PoolOptions {
            reserve,
            ..options(self.dir.path())
        };
        self.node = Bench::start(options, self.dir.path(), self.kernel.clone());
    }

    /// The staging path of a name; kubelet makes the directory.
    pub(super) fn staging(&self, name: &str) -> PathBuf {
        let path = self.dir.path().join("stage").join(name);
        std::fs::create_dir_all(&path).expect("a staging directory");
        path
    }

    pub(super) fn target(&self, name: &str) -> PathBuf {
        self.dir.path().join("pods").join(name)
    }

    pub(super) fn stage(&self, id: VolumeId, at: &str, cap: &csi::VolumeCapability) -> Result<()> {
        let req = csi::NodeStageVolumeRequest {
            volume_id: id.to_string(),
            staging_target_path: text(&self.staging(at)),
            volume_capability: Some(cap.clone()),
            ..Default::default()
        };
        self.node.node_stage_volume(req).map(drop)
    }

    pub(super) fn unstage(&self, id: VolumeId, at: &str) -> Result<()> {
        let req = csi::NodeUnstageVolumeRequest {
            volume_id: id.to_string(),
            staging_target_path: text(&self.staging(at)),
        };
        self.node.node_unstage_volume(req).map(drop)
    }

    pub(super) fn publish(
        &self,
        id: VolumeId,
        from: &str,
        to: &str,
        cap: &csi::VolumeCapability,
        readonly: bool,
    ) -> Result<()> {
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

    pub(super) fn unpublish(&self, id: VolumeId, to: &str) -> Result<()> {
        let req = csi::NodeUnpublishVolumeRequest {
            volume_id: id.to_string(),
            target_path: text(&self.target(to)),
        };
        self.node.node_unpublish_volume(req).map(drop)
    }

    /// Paths where something is mounted, in the kernel's order.
    pub(super) fn mounted(&self) -> Vec<PathBuf> {
        let mounts = self.kernel.mounts().expect("the mount table");
        let points = mounts.entries.into_iter().map(|e| e.mount_point);
        points.filter(|p| p.starts_with(self.dir.path())).collect()
    }

    /// The mount at a target.
    pub(super) fn mount_at(&self, target: &str) -> MountEntry {
        let table = self.kernel.mounts().expect("the mount table");
        table.at(&self.target(target)).expect("a mount").clone()
    }

    /// The loop device that is bound at a target.
    pub(super) fn node_at(&self, target: &str) -> Option<u32> {
        let mounts = self.kernel.mounts().expect("the mount table");
        mounts.at(&self.target(target))?.loop_node
    }

    pub(super) fn attached(&self) -> usize {
        self.kernel.loops().expect("the loop table").len()
    }

    /// Nothing of the volume is left in kernel, record and targets.
    #[track_caller]
    pub(super) fn assert_clean(&self, id: VolumeId, after: &str) {
        assert_eq!(self.mounted(), Vec::<PathBuf>::new(), "{after}");
        assert_eq!(self.attached(), 0, "{after}");
        assert_eq!(self.record(id).stage, None, "{after}");
        let left = std::fs::read_dir(self.dir.path().join("pods")).expect("a directory");
        assert_eq!(left.count(), 0, "{after}");
    }
}

fn options(dir: &Path) -> PoolOptions {
    PoolOptions {
        node_id: None,
        state_dir: dir.join("state"),
        overcommit: 100.0,
        reserve: Reserve::Bytes(0),
        max_volume_bytes: None,
        max_freeze: Duration::from_secs(10),
    }
}

pub(super) fn text(path: &Path) -> String {
    path.to_str().expect("a path in UTF-8").to_owned()
}

pub(super) fn ext4() -> Access {
    Access::Mount {
        fs: FsType::Ext4,
        flags: Vec::new(),
        group: None,
    }
}

/// A mount capability in CSI's words.
pub(super) fn mount(fs: &str, mode: Mode) -> csi::VolumeCapability {
    csi::VolumeCapability {
        access_mode: Some(CsiAccessMode { mode: mode.into() }),
        access_type: Some(AccessType::Mount(MountVolume {
            fs_type: fs.to_owned(),
            ..Default::default()
        })),
    }
}

/// A block capability in CSI's words.
pub(super) fn block(mode: Mode) -> csi::VolumeCapability {
    csi::VolumeCapability {
        access_mode: Some(CsiAccessMode { mode: mode.into() }),
        access_type: Some(AccessType::Block(BlockVolume {})),
    }
}
