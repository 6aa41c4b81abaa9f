//! NodeGetVolumeHealth and NodeGetStorageHealth: the problems that [`crate::health`]
//! finds, and what is at the paths of the request.

use std::path::{Path, PathBuf};

use hostloop_proto::csi;

use super::{Node, Result, target_path};
use crate::csi::validate;
use crate::diagnose::volume::{staging_problem, target_problem};
use crate::diagnose::{VolumeIdentity, VolumeState};
use crate::health::{self, Condition};
use crate::storage::Access;

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

/// What is wrong at the paths of a request. `is_raw` is true for a raw block volume.
fn at_paths(
    state: &VolumeState,
    is_raw: bool,
    target: Option<&Path>,
    staging: Option<&Path>,
) -> Vec<Condition> {
    let at_target = target.and_then(|path| target_problem(state, path));
    let at_staging = staging.and_then(|path| staging_problem(state, is_raw, path));
    let problems = at_target.into_iter().chain(at_staging);
    problems
        .filter_map(|problem| health::condition(&problem))
        .collect()
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
        let paths: Vec<&Path> = target
            .iter()
            .chain(&staging)
            .map(PathBuf::as_path)
            .collect();
        let record = match self.volume(id) {
            Ok(record) => record,
            Err(e) => {
                if let Some(condition) = health::without_record(&self.pools, id, &e) {
                    return Ok(response(id, vec![condition]));
                }
                // The node with the pool knows the rest.
                let volume = self.shared_volume(id, &[])?.ok_or(e)?;
                let state = self.state(&VolumeIdentity::unrecorded(volume), &paths)?;
                let is_raw = self.is_staged_raw(&state)?;
                let conditions = at_paths(&state, is_raw, target.as_deref(), staging.as_deref());
                return Ok(response(id, conditions));
            }
        };
        let (mut conditions, state) = health::volume(&self.pools, &record, &paths);
        if !paths.is_empty() {
            let state = match state {
                Some(state) => state,
                // What is at the paths is also known beside a pool that does not answer. To open
                // the image there might never return.
                None => self.state(&VolumeIdentity::of(&record, None), &paths)?,
            };
            let stage = record.stage.as_ref();
            let is_raw = stage.is_some_and(|stage| stage.capability.access == Access::Block);
            let at_paths = at_paths(&state, is_raw, target.as_deref(), staging.as_deref());
            conditions.extend(at_paths);
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
