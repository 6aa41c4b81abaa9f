//! NodeGetVolumeHealth and NodeGetStorageHealth: the problems that [`crate::health`]
//! finds, and what is at the paths of the request.

use std::path::{Path, PathBuf};

use hostloop_proto::csi;

use super::{Node, Result, target_path};
use crate::csi::validate;
use crate::diagnose::VolumeIdentity;
use crate::diagnose::volume::{staging_problem, target_problem};
use crate::health::{self, Condition};

/// An optional path of a health request; `None` if it is empty.
fn optional(field: &str, value: &str) -> Result<Option<PathBuf>> {
    match value {
        "" => Ok(None),
        given => target_path::place(&validate::path(field, given)?).map(Some),
    }
}

fn response(id: &str, conditions: Vec<Condition>) -> csi::NodeGetVolumeHealthResponse {
    csi::NodeGetVolumeHealthResponse {
        volume_health: Some(health::message(id, conditions)),
    }
}

impl Node {
    /// NodeGetVolumeHealth: problems of a volume, on this node and at the paths of the request.
    pub fn node_get_volume_health(
        &self,
        req: csi::NodeGetVolumeHealthRequest,
    ) -> Result<csi::NodeGetVolumeHealthResponse> {
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
        let paths: Vec<&Path> = target
            .iter()
            .chain(&staging)
            .map(PathBuf::as_path)
            .collect();
        let (mut conditions, state) = health::volume(&self.pools, &record, &paths);
        if !paths.is_empty() {
            let state = match state {
                Some(state) => state,
                // What is at the paths is also known beside a pool that does not answer. To open
                // the image there might never return.
                None => self.state(&VolumeIdentity::of(&record, None), &paths)?,
            };
            let at_target = target
                .as_deref()
                .and_then(|path| target_problem(&state, path));
            let at_staging = staging
                .as_deref()
                .and_then(|path| staging_problem(&state, &record, path));
            conditions.extend(at_target.and_then(|problem| health::condition(&problem)));
            conditions.extend(at_staging.and_then(|problem| health::condition(&problem)));
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
