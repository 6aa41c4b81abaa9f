//! A controller and a node over one pool on the machine's kernel, and short ways to call them.

use std::ops::Deref;
use std::path::PathBuf;

use hostloop_driver::controller::Result;
use hostloop_driver::kernel::linux::Linux;
use hostloop_proto::csi;

use crate::testkit::{self, map};
pub(crate) use crate::testkit::{block, mount};

pub(crate) const MI: i64 = 1 << 20;

pub(crate) struct Rig {
    rig: testkit::Rig<Linux>,
}

impl Deref for Rig {
    type Target = testkit::Rig<Linux>;

    fn deref(&self) -> &testkit::Rig<Linux> {
        &self.rig
    }
}

impl Rig {
    pub(crate) fn new() -> Rig {
        Rig {
            rig: testkit::Rig::new(),
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

    /// Where a volume's image is.
    pub(crate) fn image(&self, id: &str) -> PathBuf {
        self.root().join("pool/volumes").join(id).join("image")
    }

    pub(crate) fn stage(&self, id: &str, capability: &csi::VolumeCapability) {
        self.rig.stage(id, id, capability).unwrap();
    }

    pub(crate) fn unstage(&self, id: &str) {
        self.rig.unstage(id, id).unwrap();
    }

    pub(crate) fn try_modify(&self, id: &str, parameters: &[(&str, &str)]) -> Result<()> {
        let request = csi::ControllerModifyVolumeRequest {
            volume_id: id.to_owned(),
            mutable_parameters: map(parameters),
            ..Default::default()
        };
        self.controller.controller_modify_volume(request).map(drop)
    }

    pub(crate) fn modify(&self, id: &str, parameters: &[(&str, &str)]) {
        self.try_modify(id, parameters).unwrap();
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
