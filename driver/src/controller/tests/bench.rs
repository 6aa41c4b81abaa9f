//! A controller and a node over two pools and the fake kernel, and short ways to call them.

use std::ops::Deref;
use std::path::{Path, PathBuf};

use hostloop_proto::csi;
use hostloop_proto::csi::volume_capability::access_mode::Mode;
use hostloop_proto::csi::volume_content_source::{SnapshotSource, Type, VolumeSource};

use super::super::{Config, Error, Result};
use crate::kernel::fake::Model;
use crate::node::Node;
use crate::storage::PoolOptions;
pub(super) use crate::testkit::map;
use crate::testkit::{Configs, Rig, block_as, mount_as};

pub(super) const MI: i64 = 1 << 20;

/// Settings that a test may change before the pools are opened.
pub(super) struct Plan {
    pub(super) config: Config,
    pub(super) options: PoolOptions,
    /// No more than this can be promised in each pool, in bytes.
    pub(super) capacity_bytes: Option<u64>,
}

pub(super) struct Bench(Rig<Model>);

impl Deref for Bench {
    type Target = Rig<Model>;

    fn deref(&self) -> &Rig<Model> {
        &self.0
    }
}

impl Bench {
    /// The pools "default" and "other", both empty.
    pub(super) fn new() -> Bench {
        Bench::with(|_| {})
    }

    pub(super) fn with(change: impl FnOnce(&mut Plan)) -> Bench {
        let mut site = Rig::site(&["default=DIR/default,inline", "other=DIR/other,inline"]);
        let mut configs = Configs::default();
        let mut plan = Plan {
            config: configs.controller,
            options: site.options.clone(),
            capacity_bytes: None,
        };
        change(&mut plan);
        site.options = plan.options;
        for spec in &mut site.specs {
            spec.capacity_bytes = plan.capacity_bytes;
        }
        configs.node.capabilities = plan.config.capabilities.clone();
        configs.controller = plan.config;
        Bench(Rig::over(site, configs))
    }

    /// Stops the driver, runs a closure, and starts the driver again.
    pub(super) fn restart(mut self, between: impl FnOnce(&Path)) -> Bench {
        self.0.die();
        between(self.root());
        self.0.restart();
        self
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

    /// Creates a volume as in [`Bench::request`] and returns its ID.
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

    /// The directory of a volume with this ID in the pool "default", existing or not.
    pub(super) fn entry(&self, id: &str) -> PathBuf {
        self.root().join("default/volumes").join(id)
    }

    /// Stages a volume as its node would.
    pub(super) fn stage(&self, id: &str, capability: csi::VolumeCapability) {
        self.0.stage(id, id, &capability).unwrap();
        self.kernel.take_effects();
    }

    pub(super) fn node(&self) -> &Node {
        &self.node
    }
}

pub(super) fn range(required_bytes: i64, limit_bytes: i64) -> Option<csi::CapacityRange> {
    Some(csi::CapacityRange {
        required_bytes,
        limit_bytes,
    })
}

pub(super) fn mount(fs: &str) -> csi::VolumeCapability {
    mount_as(fs, Mode::SingleNodeWriter)
}

pub(super) fn mount_with(fs: &str, mode: Mode) -> csi::VolumeCapability {
    mount_as(fs, mode)
}

pub(super) fn block() -> csi::VolumeCapability {
    block_as(Mode::SingleNodeWriter)
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

/// The same ID in a pool that is not on this node.
pub(super) fn foreign(id: &str) -> String {
    let mut parts: Vec<&str> = id.split('-').collect();
    parts[1] = "0123456789abcdef";
    parts.join("-")
}

/// The gRPC code of an answer.
pub(super) fn code<T>(result: Result<T>) -> tonic::Code {
    match result {
        Ok(_) => tonic::Code::Ok,
        Err(e) => tonic::Status::from(e).code(),
    }
}

/// The field that a refused request names.
pub(super) fn field<T>(result: Result<T>) -> String {
    match result {
        Err(Error::Invalid(invalid)) => invalid.field,
        Err(e) => panic!("{e}, not INVALID_ARGUMENT"),
        Ok(_) => panic!("OK, not INVALID_ARGUMENT"),
    }
}

#[track_caller]
pub(super) fn assert_code<T>(answer: Result<T>, expected: tonic::Code) {
    assert_eq!(code(answer), expected);
}

#[track_caller]
pub(super) fn assert_field<T>(answer: Result<T>, expected: &str) {
    assert_eq!(field(answer), expected);
}
