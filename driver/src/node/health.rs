//! NodeGetVolumeHealth and NodeGetStorageHealth: the problems that [`crate::health`]
//! finds, and what is at the paths of the request.

use std::path::{Path, PathBuf};

use hostloop_proto::csi::{self, VolumeHealthErrorType};

use super::{Node, Result, target_path};
use crate::csi::validate;
use crate::diagnose::Found;
use crate::health::{self, Condition};
use crate::storage::{Access, VolumeRecord};

/// An optional path of a health request; `None` if it is empty.
fn optional(field: &str, value: &str) -> Result<Option<PathBuf>> {
    match value {
        "" => Ok(None),
        given => target_path::place(&validate::path(field, given)?).map(Some),
    }
}

/// A reason and a message for what is wrong at the target path of a volume.
fn at_target(found: &Found, target: &Path) -> Option<(&'static str, String)> {
    let path = target.display();
    Some(match found {
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
    })
}

/// A reason and a message for what is wrong at the staging path of a volume. A block volume shows
/// nothing there.
fn at_staging(
    found: &Found,
    staging: &Path,
    record: &VolumeRecord,
) -> Option<(&'static str, String)> {
    let path = staging.display();
    let stage = record.stage.as_ref();
    Some(match (found, stage) {
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
    })
}

impl Node {
    /// NodeGetVolumeHealth: problems of a volume, on this node and at the paths of the request.
    pub fn node_get_volume_health(
        &self,
        req: csi::NodeGetVolumeHealthRequest,
    ) -> Result<csi::NodeGetVolumeHealthResponse> {
        let response = |id, conditions| csi::NodeGetVolumeHealthResponse {
            volume_health: Some(health::message(id, conditions)),
        };
        let id = validate::required("volume_id", &req.volume_id)?;
        let target = optional("volume_publish_path", &req.volume_publish_path)?;
        let staging = optional("staging_target_path", &req.staging_target_path)?;
        let record = match self.volume(id) {
            Ok(record) => record,
            Err(e) => {
                let condition = health::without_record(&self.pools, id, &e).ok_or(e)?;
                return Ok(response(id, vec![condition]));
            }
        };
        let mut conditions = health::volume(&self.pools, &record);
        if target.is_some() || staging.is_some() {
            let paths: Vec<&Path> = target
                .iter()
                .chain(&staging)
                .map(PathBuf::as_path)
                .collect();
            let view = self.look(&self.owner(&record), &paths)?;
            let wrong_target = target.and_then(|t| at_target(&view.at(&t), &t));
            let wrong_staging = staging.and_then(|s| at_staging(&view.at(&s), &s, &record));
            let wrong = wrong_target.into_iter().chain(wrong_staging);
            conditions.extend(wrong.map(|(reason, message)| Condition {
                status: VolumeHealthErrorType::Inaccessible,
                reason,
                message,
            }));
        }
        Ok(response(id, conditions))
    }

    /// NodeGetStorageHealth: problems of the pools.
    pub fn node_get_storage_health(
        &self,
        _: csi::NodeGetStorageHealthRequest,
    ) -> Result<csi::NodeGetStorageHealthResponse> {
        let backend_health = health::backends(&health::storage(&self.pools));
        Ok(csi::NodeGetStorageHealthResponse { backend_health })
    }
}
