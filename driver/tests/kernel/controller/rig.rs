//! A controller and a node over one pool in a temporary directory, which goes when the rig does,
//! with everything that was attached or mounted beneath it.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use hostloop_driver::controller::{self, Controller, MetadataBlocks, Result};
use hostloop_driver::node::{self, Node};
use hostloop_driver::pool::{PoolOptions, PoolSpec, Pools, Reserve, VolumeHandle, VolumeRecord};
use hostloop_driver::sys::linux::Linux;
use hostloop_driver::sys::{Kernel, LoopInfo, file_id};
use hostloop_proto::csi;
use hostloop_proto::csi::volume_capability::{AccessMode, AccessType, BlockVolume, MountVolume};

pub(crate) const MI: i64 = 1 << 20;

pub(crate) struct Rig {
    pub(crate) controller: Controller,
    pub(crate) node: Node,
    pub(crate) kernel: Arc<Linux>,
    cleanup: Cleanup,
}

impl Rig {
    pub(crate) fn new() -> Rig {
        let kernel = Arc::new(Linux::new());
        let missing = kernel.missing();
        assert!(missing.is_empty(), "these tests need: {missing:?}");
        for (fs, offered) in kernel.filesystems() {
            assert_eq!(offered, Ok(()), "these tests need the tools of {fs}");
        }
        let dir = tempfile::tempdir().unwrap();
        let cleanup = Cleanup {
            root: dir.path().canonicalize().unwrap(),
            kernel: kernel.clone(),
            _dir: dir,
        };
        std::fs::create_dir(cleanup.root.join("pool")).unwrap();
        let spec = PoolSpec {
            name: "default".to_owned(),
            path: cleanup.root.join("pool"),
            image_bytes: None,
            preallocate: false,
            wipe: false,
            capacity_bytes: None,
            inline: false,
        };
        let options = PoolOptions {
            node_id: None,
            state_dir: cleanup.root.join("state"),
            overcommit: 100.0,
            reserve: Reserve::Bytes(0),
            max_volume_bytes: None,
            max_freeze: Duration::from_secs(10),
        };
        let pools = Pools::open(&[spec], options, kernel.clone()).unwrap();
        Rig {
            controller: Controller::new(pools.clone(), controller_config()),
            node: Node::new(pools, node_config()),
            kernel,
            cleanup,
        }
    }

    pub(crate) fn create(
        &self,
        name: &str,
        capability: &csi::VolumeCapability,
        mib: i64,
    ) -> String {
        let request = csi::CreateVolumeRequest {
            name: name.to_owned(),
            capacity_range: Some(csi::CapacityRange {
                required_bytes: mib * MI,
                limit_bytes: 0,
            }),
            volume_capabilities: vec![capability.clone()],
            ..Default::default()
        };
        let response = self.controller.create_volume(request).unwrap();
        response.volume.unwrap().volume_id
    }

    pub(crate) fn record(&self, id: &str) -> Arc<VolumeRecord> {
        let handle: VolumeHandle = id.parse().unwrap();
        self.controller.pools.volume(&handle).unwrap()
    }

    /// Where a volume's image is.
    pub(crate) fn image(&self, id: &str) -> PathBuf {
        self.cleanup
            .root
            .join("pool/volumes")
            .join(id)
            .join("image")
    }

    pub(crate) fn staging(&self, id: &str) -> PathBuf {
        let path = self.cleanup.root.join("stage").join(id);
        std::fs::create_dir_all(&path).unwrap();
        path
    }

    pub(crate) fn stage(&self, id: &str, capability: &csi::VolumeCapability) {
        let request = csi::NodeStageVolumeRequest {
            volume_id: id.to_owned(),
            staging_target_path: self.staging(id).to_str().unwrap().to_owned(),
            volume_capability: Some(capability.clone()),
            ..Default::default()
        };
        self.node.node_stage_volume(request).unwrap();
    }

    pub(crate) fn unstage(&self, id: &str) {
        let request = csi::NodeUnstageVolumeRequest {
            volume_id: id.to_owned(),
            staging_target_path: self.staging(id).to_str().unwrap().to_owned(),
        };
        self.node.node_unstage_volume(request).unwrap();
    }

    pub(crate) fn try_modify(&self, id: &str, parameters: &[(&str, &str)]) -> Result<()> {
        let entry = |(k, v): &(&str, &str)| (k.to_string(), v.to_string());
        let request = csi::ControllerModifyVolumeRequest {
            volume_id: id.to_owned(),
            mutable_parameters: parameters.iter().map(entry).collect(),
            ..Default::default()
        };
        self.controller.controller_modify_volume(request).map(drop)
    }

    pub(crate) fn modify(&self, id: &str, parameters: &[(&str, &str)]) {
        self.try_modify(id, parameters).unwrap();
    }

    /// The loop device over a volume's image.
    pub(crate) fn device(&self, id: &str) -> LoopInfo {
        let image = self.controller.pools.open_image(&self.record(id), false);
        let loops = self.kernel.loops_of(file_id(image.unwrap()).unwrap());
        loops.unwrap().remove(0)
    }

    /// The reasons of what is wrong with a volume.
    pub(crate) fn reasons(&self, id: &str) -> Vec<String> {
        let request = csi::ControllerGetVolumeHealthRequest {
            volume_id: id.to_owned(),
            ..Default::default()
        };
        let response = self
            .controller
            .controller_get_volume_health(request)
            .unwrap();
        let statuses = response.volume_health.unwrap().health_statuses;
        statuses.into_iter().map(|s| s.reason).collect()
    }
}

fn controller_config() -> controller::Config {
    controller::Config {
        metadata_blocks: MetadataBlocks::Fixed(4096),
        ..controller::Config::new("n1")
    }
}

fn node_config() -> node::Config {
    node::Config {
        report_topology: false,
        ..node::Config::new("n1")
    }
}

pub(crate) fn mount(fs: &str) -> csi::VolumeCapability {
    csi::VolumeCapability {
        access_mode: Some(AccessMode { mode: 1 }),
        access_type: Some(AccessType::Mount(MountVolume {
            fs_type: fs.to_owned(),
            ..MountVolume::default()
        })),
    }
}

pub(crate) fn block() -> csi::VolumeCapability {
    csi::VolumeCapability {
        access_mode: Some(AccessMode { mode: 1 }),
        access_type: Some(AccessType::Block(BlockVolume {})),
    }
}

struct Cleanup {
    root: PathBuf,
    kernel: Arc<Linux>,
    _dir: tempfile::TempDir,
}

impl Drop for Cleanup {
    fn drop(&mut self) {
        let beneath = |path: &Path| path.starts_with(&self.root);
        let table = self.kernel.mounts().unwrap_or_default();
        for entry in table.entries.iter().rev() {
            if beneath(&entry.mount_point) {
                let _ = self.kernel.unmount(&entry.mount_point);
            }
        }
        for info in self.kernel.loops().unwrap_or_default() {
            if beneath(Path::new(&info.backing_path)) {
                let _ = self.kernel.loop_release(&info);
            }
        }
    }
}
