//! A controller and a node over two pools and the model, and short ways to call them.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use hostloop_proto::csi;
use hostloop_proto::csi::volume_capability::access_mode::Mode;
use hostloop_proto::csi::volume_capability::{AccessMode, AccessType, BlockVolume, MountVolume};
use hostloop_proto::csi::volume_content_source::{SnapshotSource, Type, VolumeSource};

use super::super::parameters::Parameters;
use super::super::{Config, Controller, Error, Result};
use crate::node::{self, Node};
use crate::pool::{PoolOptions, PoolSpec, Pools, Reserve, VolumeHandle, VolumeRecord};
use crate::sys::model::Model;

pub(super) const MI: i64 = 1 << 20;

/// What may be said when a bench is set up.
pub(super) struct Plan {
    pub(super) config: Config,
    pub(super) options: PoolOptions,
    /// No more than this can be promised in each pool, in bytes.
    pub(super) capacity_bytes: Option<u64>,
}

pub(super) struct Bench {
    pub(super) dir: tempfile::TempDir,
    pub(super) kernel: Arc<Model>,
    pub(super) controller: Controller,
    plan: Plan,
}

impl Bench {
    /// Pools "default" and "other", and nothing in them.
    pub(super) fn new() -> Bench {
        Bench::with(|_| {})
    }

    pub(super) fn with(change: impl FnOnce(&mut Plan)) -> Bench {
        let dir = tempfile::tempdir().unwrap();
        let mut plan = Plan {
            config: super::config(),
            options: PoolOptions {
                node_id: None,
                state_dir: dir.path().join("state"),
                overcommit: 1000.0,
                reserve: Reserve::Bytes(0),
                max_volume_bytes: None,
                max_freeze: Duration::from_secs(5),
            },
            capacity_bytes: None,
        };
        change(&mut plan);
        let kernel = Arc::new(Model::new());
        for pool in ["default", "other"] {
            std::fs::create_dir(dir.path().join(pool)).unwrap();
        }
        let controller = start(&dir, &kernel, &plan);
        Bench {
            dir,
            kernel,
            controller,
            plan,
        }
    }

    /// The driver ends, something happens, and it starts again.
    pub(super) fn restart(self, between: impl FnOnce(&std::path::Path)) -> Bench {
        let Bench {
            dir,
            kernel,
            controller,
            plan,
        } = self;
        drop(controller);
        between(dir.path());
        let controller = start(&dir, &kernel, &plan);
        Bench {
            dir,
            kernel,
            controller,
            plan,
        }
    }

    /// A request for 8 MiB of ext4.
    pub(super) fn request(name: &str) -> csi::CreateVolumeRequest {
        csi::CreateVolumeRequest {
            name: name.to_owned(),
            capacity_range: range(8 * MI, 0),
            volume_capabilities: vec![mount("")],
            ..csi::CreateVolumeRequest::default()
        }
    }

    pub(super) fn try_create(&self, request: csi::CreateVolumeRequest) -> Result<csi::Volume> {
        let response = self.controller.create_volume(request)?;
        Ok(response.volume.unwrap())
    }

    /// A volume as in [`Bench::request`]; its ID.
    pub(super) fn create(&self, name: &str) -> String {
        self.try_create(Bench::request(name)).unwrap().volume_id
    }

    pub(super) fn create_from(&self, name: &str, source: Type) -> Result<csi::Volume> {
        self.try_create(csi::CreateVolumeRequest {
            volume_content_source: from(source),
            ..Bench::request(name)
        })
    }

    pub(super) fn delete(&self, id: &str) -> Result<()> {
        let request = csi::DeleteVolumeRequest {
            volume_id: id.to_owned(),
            ..Default::default()
        };
        self.controller.delete_volume(request).map(drop)
    }

    pub(super) fn record(&self, id: &str) -> Arc<VolumeRecord> {
        let handle: VolumeHandle = id.parse().unwrap();
        self.controller.pools.volume(&handle).unwrap()
    }

    pub(super) fn snapshot(&self, name: &str, volume: &str) -> Result<csi::Snapshot> {
        let response = self
            .controller
            .create_snapshot(csi::CreateSnapshotRequest {
                name: name.to_owned(),
                source_volume_id: volume.to_owned(),
                ..Default::default()
            })?;
        Ok(response.snapshot.unwrap())
    }

    pub(super) fn volume_ids(&self) -> Vec<String> {
        let request = csi::ListVolumesRequest::default();
        let response = self.controller.list_volumes(request).unwrap();
        let id = |e: csi::list_volumes_response::Entry| e.volume.unwrap().volume_id;
        response.entries.into_iter().map(id).collect()
    }

    /// Where a volume of this ID is, or was, in the pool "default".
    pub(super) fn entry(&self, id: &str) -> PathBuf {
        self.dir.path().join("default/volumes").join(id)
    }

    /// Stages a volume as its node does.
    pub(super) fn stage(&self, id: &str, capability: csi::VolumeCapability) {
        let staging = self.dir.path().join(format!("stage-{id}"));
        std::fs::create_dir_all(&staging).unwrap();
        let request = csi::NodeStageVolumeRequest {
            volume_id: id.to_owned(),
            staging_target_path: staging.to_str().unwrap().to_owned(),
            volume_capability: Some(capability),
            ..Default::default()
        };
        self.node().node_stage_volume(request).unwrap();
        self.kernel.take_effects();
    }

    pub(super) fn node(&self) -> Node {
        let config = node::Config {
            capabilities: self.controller.config.capabilities.clone(),
            ..node::Config::new("n1")
        };
        Node::new(self.controller.pools.clone(), config)
    }
}

fn start(dir: &tempfile::TempDir, kernel: &Arc<Model>, plan: &Plan) -> Controller {
    let spec = |name: &str| PoolSpec {
        name: name.to_owned(),
        path: dir.path().join(name),
        image_bytes: None,
        preallocate: false,
        wipe: false,
        capacity_bytes: plan.capacity_bytes,
        inline: true,
    };
    let specs = [spec("default"), spec("other")];
    let pools = Pools::open(&specs, plan.options.clone(), kernel.clone()).unwrap();
    Controller::new(pools, plan.config.clone())
}

pub(super) fn range(required_bytes: i64, limit_bytes: i64) -> Option<csi::CapacityRange> {
    Some(csi::CapacityRange {
        required_bytes,
        limit_bytes,
    })
}

pub(super) fn map(entries: &[(&str, &str)]) -> Parameters {
    let entry = |(k, v): &(&str, &str)| (k.to_string(), v.to_string());
    entries.iter().map(entry).collect()
}

pub(super) fn mount(fs: &str) -> csi::VolumeCapability {
    mount_with(fs, Mode::SingleNodeWriter)
}

pub(super) fn mount_with(fs: &str, mode: Mode) -> csi::VolumeCapability {
    csi::VolumeCapability {
        access_mode: Some(AccessMode { mode: mode as i32 }),
        access_type: Some(AccessType::Mount(MountVolume {
            fs_type: fs.to_owned(),
            ..MountVolume::default()
        })),
    }
}

pub(super) fn block() -> csi::VolumeCapability {
    csi::VolumeCapability {
        access_mode: Some(AccessMode {
            mode: Mode::SingleNodeWriter as i32,
        }),
        access_type: Some(AccessType::Block(BlockVolume {})),
    }
}

pub(super) fn from(r#type: Type) -> Option<csi::VolumeContentSource> {
    Some(csi::VolumeContentSource {
        r#type: Some(r#type),
    })
}

pub(super) fn of_volume(id: &str) -> Type {
    Type::Volume(VolumeSource {
        volume_id: id.to_owned(),
    })
}

pub(super) fn of_snapshot(id: &str) -> Type {
    Type::Snapshot(SnapshotSource {
        snapshot_id: id.to_owned(),
    })
}

pub(super) fn elsewhere() -> csi::Topology {
    csi::Topology {
        segments: map(&[("t/node", "n2")]),
    }
}

pub(super) fn here() -> csi::Topology {
    csi::Topology {
        segments: map(&[("t/node", "n1")]),
    }
}

pub(super) fn required(topology: csi::Topology) -> Option<csi::TopologyRequirement> {
    Some(csi::TopologyRequirement {
        requisite: vec![topology],
        preferred: vec![],
    })
}

/// The same ID in a pool that is not here.
pub(super) fn foreign(id: &str) -> String {
    let mut parts: Vec<&str> = id.split('-').collect();
    parts[1] = "0123456789abcdef";
    parts.join("-")
}

/// The code of an answer, as the server gives it.
pub(super) fn code<T>(result: Result<T>) -> tonic::Code {
    match result {
        Ok(_) => tonic::Code::Ok,
        Err(e) => tonic::Status::from(e).code(),
    }
}

/// The field a request was refused for.
pub(super) fn field<T>(result: Result<T>) -> String {
    match result {
        Err(Error::Invalid(invalid)) => invalid.field,
        Err(e) => panic!("{e}, not INVALID_ARGUMENT"),
        Ok(_) => panic!("OK, not INVALID_ARGUMENT"),
    }
}
