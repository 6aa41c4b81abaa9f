//! NodeGetVolumeHealth and NodeGetStorageHealth: the problems that [`crate::diagnose::health`]
//! finds, and what is at the paths of the request.

use std::path::{Path, PathBuf};

use hostloop_proto::csi::node_get_storage_health_response::StorageBackendHealth;
use hostloop_proto::csi::{self, VolumeHealthErrorType};

use super::{Node, Result, target_path};
use crate::csi::validate;
use crate::diagnose::health::{self, Condition};
use crate::diagnose::{Found, VolumeState};
use crate::storage::{Access, VolumeRecord};

/// An optional path of a health request; `None` if it is empty.
fn optional(field: &str, value: &str) -> Result<Option<PathBuf>> {
    match value {
        "" => Ok(None),
        given => target_path::place(&validate::path(field, given)?).map(Some),
    }
}

/// The condition of a volume, given what is at its target path.
fn at_target(found: &Found, target: &Path) -> Option<Condition> {
    let path = target.display();
    let (reason, message) = match found {
        Found::Filesystem { .. } | Found::Device { .. } => return None,
        Found::Nothing => ("NotPublished", format!("nothing is mounted at {path}")),
        Found::Stale => (
            "DeviceLost",
            format!("{path} is bound to a loop device that lost the volume"),
        ),
        Found::Foreign(what) => (
            "ForeignMount",
            format!("{what} is mounted at {path}, which is not this volume"),
        ),
    };
    Some(Condition {
        status: VolumeHealthErrorType::Inaccessible,
        reason,
        message,
    })
}

/// The condition of a volume, given what is at its staging path. A block volume shows nothing
/// there.
fn at_staging(found: &Found, staging: &Path, record: &VolumeRecord) -> Option<Condition> {
    let path = staging.display();
    let stage = record.stage.as_ref();
    let (reason, message) = match (found, stage) {
        (Found::Filesystem { .. }, _) => return None,
        (Found::Nothing, Some(stage)) if stage.capability.access == Access::Block => return None,
        (Found::Nothing, _) => ("NotStaged", format!("nothing is mounted at {path}")),
        (Found::Foreign(what), _) => (
            "ForeignStagingMount",
            format!("{what} is mounted at {path}, which is not this volume"),
        ),
        (Found::Device { .. } | Found::Stale, _) => (
            "ForeignStagingMount",
            format!("a device node is bound at {path}"),
        ),
    };
    Some(Condition {
        status: VolumeHealthErrorType::Inaccessible,
        reason,
        message,
    })
}

impl Node {
    pub(super) fn volume_health(
        &self,
        req: &csi::NodeGetVolumeHealthRequest,
    ) -> Result<csi::VolumeHealth> {
        let id = validate::required("volume_id", &req.volume_id)?;
        let target = optional("volume_publish_path", &req.volume_publish_path)?;
        let staging = optional("staging_target_path", &req.staging_target_path)?;
        let record = match self.volume(id) {
            Ok(record) => record,
            Err(e) => {
                let handle = id.parse().ok();
                let missing = handle.and_then(|id| health::of_missing_pool(&self.pools, &id));
                let entries = health::entries(vec![missing.ok_or(e)?]);
                return Ok(health::message(id, entries));
            }
        };
        let mut entries = health::volume(&self.pools, &record);
        if target.is_some() || staging.is_some() {
            let view = VolumeState::read(self.pools.kernel().as_ref(), &self.owner(&record))?;
            let mut conditions = Vec::new();
            if let Some(target) = target {
                conditions.extend(at_target(&view.at(&target), &target));
            }
            if let Some(staging) = staging {
                conditions.extend(at_staging(&view.at(&staging), &staging, &record));
            }
            entries.extend(health::entries(conditions));
        }
        Ok(health::message(id, entries))
    }

    pub(super) fn storage_health(&self) -> Vec<StorageBackendHealth> {
        health::backends(&health::storage(&self.pools))
    }
}
