//! A controller and a node over two pools and the fake kernel, and short ways to call them.

use std::ops::Deref;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use hostloop_fake_kernel::Model;
use hostloop_proto::csi;
use hostloop_proto::csi::volume_capability::access_mode::Mode;
use hostloop_proto::csi::volume_content_source::Type;

use crate::controller::{Anchors, Config, Controller, Error, Result};
use crate::storage::PoolOptions;
use crate::testkit::{Configs, Rig};
pub(crate) use crate::testkit::{
    block_as, create_request, create_request_for, create_request_with, from, map, mount_as,
    of_snapshot, of_volume, pairs, range,
};

pub(crate) const MI: i64 = 1 << 20;
pub(crate) const GI: i64 = 1 << 30;

/// Settings that a test may change before the pools are opened.
pub(crate) struct Plan {
    pub(crate) config: Config,
    pub(crate) options: PoolOptions,
    /// No more than this can be promised in each pool, in bytes.
    pub(crate) capacity_bytes: Option<u64>,
}

pub(crate) struct Bench(Rig<Model>);

impl Deref for Bench {
    type Target = Rig<Model>;

    fn deref(&self) -> &Rig<Model> {
        &self.0
    }
}

impl Bench {
    /// The pools "default" and "other", both empty.
    pub(crate) fn new() -> Bench {
        Bench::with(|_| {})
    }

    pub(crate) fn with(change: impl FnOnce(&mut Plan)) -> Bench {
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
    pub(crate) fn restart(mut self, between: impl FnOnce(&Path)) -> Bench {
        self.0.die();
        between(self.root());
        self.0.restart();
        self
    }

    /// The bench with a controller that has these anchors.
    pub(crate) fn anchored(mut self, anchors: Option<Arc<dyn Anchors>>) -> Bench {
        let Controller { pools, config, .. } = &self.0.controller;
        let controller = Controller::new(pools.clone(), config.clone());
        self.0.controller = match anchors {
            Some(anchors) => controller.with_anchors(anchors),
            None => controller,
        };
        self
    }

    /// Creates a volume as in [`create_request`] and returns its ID.
    pub(crate) fn create(&self, name: &str) -> String {
        self.created(create_request(name))
    }

    pub(crate) fn create_from(&self, name: &str, source: Type) -> Result<csi::Volume> {
        self.try_create(csi::CreateVolumeRequest {
            volume_content_source: from(source),
            ..create_request(name)
        })
    }

    pub(crate) fn publish(&self, id: &str) -> Result<()> {
        self.publish_as(id, |_| {})
    }

    pub(crate) fn publish_as(
        &self,
        id: &str,
        change: impl FnOnce(&mut csi::ControllerPublishVolumeRequest),
    ) -> Result<()> {
        let mut request = csi::ControllerPublishVolumeRequest {
            volume_id: id.to_owned(),
            node_id: "n1".to_owned(),
            volume_capability: Some(mount("")),
            ..Default::default()
        };
        change(&mut request);
        self.controller.controller_publish_volume(request).map(drop)
    }

    pub(crate) fn unpublish(&self, id: &str, node: &str) -> Result<()> {
        let request = csi::ControllerUnpublishVolumeRequest {
            volume_id: id.to_owned(),
            node_id: node.to_owned(),
            ..Default::default()
        };
        let response = self.controller.controller_unpublish_volume(request);
        response.map(drop)
    }

    pub(crate) fn volume_ids(&self) -> Vec<String> {
        let request = csi::ListVolumesRequest::default();
        let response = self.controller.list_volumes(request).unwrap();
        let id = |e: csi::list_volumes_response::Entry| e.volume.unwrap().volume_id;
        response.entries.into_iter().map(id).collect()
    }

    /// Lists snapshots by ID, by source, or both; an empty string means any.
    pub(crate) fn snapshot_ids(&self, snapshot: &str, source: &str) -> Result<Vec<String>> {
        let request = csi::ListSnapshotsRequest {
            snapshot_id: snapshot.to_owned(),
            source_volume_id: source.to_owned(),
            ..Default::default()
        };
        let response = self.controller.list_snapshots(request)?;
        let id = |e: csi::list_snapshots_response::Entry| e.snapshot.unwrap().snapshot_id;
        Ok(response.entries.into_iter().map(id).collect())
    }

    /// The available capacity, and the largest and the smallest size of a volume.
    pub(crate) fn capacity(
        &self,
        change: impl FnOnce(&mut csi::GetCapacityRequest),
    ) -> Result<(i64, i64, i64)> {
        let mut request = csi::GetCapacityRequest::default();
        change(&mut request);
        let answer = self.controller.get_capacity(request)?;
        let (largest, smallest) = (answer.maximum_volume_size, answer.minimum_volume_size);
        Ok((
            answer.available_capacity,
            largest.unwrap(),
            smallest.unwrap(),
        ))
    }

    /// The directory of a volume with this ID in the pool "default", existing or not.
    pub(crate) fn entry(&self, id: &str) -> PathBuf {
        self.root().join("default/volumes").join(id)
    }

    /// Stages a volume as its node would.
    pub(crate) fn stage(&self, id: &str) {
        self.0.stage(id, id, &mount("")).unwrap();
        self.kernel.take_effects();
    }
}

pub(crate) fn mount(fs: &str) -> csi::VolumeCapability {
    mount_as(fs, Mode::SingleNodeWriter)
}

pub(crate) fn block() -> csi::VolumeCapability {
    block_as(Mode::SingleNodeWriter)
}

/// A request for 8 MiB of ext4.
pub(crate) fn ext4_request() -> csi::CreateVolumeRequest {
    csi::CreateVolumeRequest {
        volume_capabilities: vec![mount("ext4")],
        ..create_request_with("pvc-1", "pool=default csi.storage.k8s.io/pvc/name=a")
    }
}

pub(crate) type RequestChange = fn(&mut csi::CreateVolumeRequest);

/// [`ext4_request`] with this change.
pub(crate) fn changed_request(change: RequestChange) -> csi::CreateVolumeRequest {
    let mut request = ext4_request();
    change(&mut request);
    request
}

pub(crate) fn from_volume(id: impl ToString) -> Option<csi::VolumeContentSource> {
    from(of_volume(id))
}

/// The topology with these segments: "t/node=n1" is this node, "t/node=n2" another.
pub(crate) fn place(segments: &str) -> csi::Topology {
    csi::Topology {
        segments: pairs(segments),
    }
}

/// A requirement with these requisite topologies.
pub(crate) fn required<const N: usize>(places: [&str; N]) -> Option<csi::TopologyRequirement> {
    Some(csi::TopologyRequirement {
        requisite: places.map(place).to_vec(),
        preferred: vec![],
    })
}

/// The same ID in a pool that is not on this node.
pub(crate) fn foreign(id: &str) -> String {
    let mut parts: Vec<&str> = id.split('-').collect();
    parts[1] = "0123456789abcdef";
    parts.join("-")
}

/// The gRPC code of an answer or, for an invalid request, the field that it names.
pub(crate) fn answer<T>(result: Result<T>) -> String {
    match result {
        Ok(_) => "Ok".to_owned(),
        Err(Error::Invalid(invalid)) => invalid.field,
        Err(e) => format!("{:?}", tonic::Status::from(e).code()),
    }
}

#[track_caller]
pub(crate) fn assert_answer<T>(result: Result<T>, expected: &str) {
    assert_eq!(answer(result), expected);
}
