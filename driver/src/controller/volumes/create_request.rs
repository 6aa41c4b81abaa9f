//! Reads a CreateVolumeRequest.

use hostloop_proto::csi;
use hostloop_proto::csi::volume_content_source::Type;

use crate::controller::capability_set::CapabilitySet;
use crate::controller::parameters::{self, Class, Parameters, SettingsChange};
use crate::controller::{Config, Result, accessibility, lookup};
use crate::csi::validate::{self, Invalid, SizeRange, invalid};
use crate::storage::{SnapshotId, VolumeHandle};

/// A source, as a request names it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum RequestedSource {
    Snapshot(SnapshotId),
    Volume(VolumeHandle),
}

/// A parsed CreateVolumeRequest.
#[derive(Clone, Debug)]
pub(super) struct CreateRequest {
    pub(super) name: String,
    pub(super) range: SizeRange,
    pub(super) capabilities: CapabilitySet,
    pub(super) class: Class,
    /// Mutable parameters; class parameters fill the absent ones.
    pub(super) changes: SettingsChange,
    pub(super) parameters: Parameters,
    pub(super) mutable_parameters: Parameters,
    pub(super) source: Option<RequestedSource>,
    /// True if objects on this node satisfy `accessibility_requirements`.
    pub(super) accessible: bool,
}

impl CreateRequest {
    pub(super) fn read(req: &csi::CreateVolumeRequest, config: &Config) -> Result<CreateRequest> {
        let name = validate::name("name", &req.name)?.to_owned();
        if req.volume_capabilities.is_empty() {
            return Err(invalid("volume_capabilities", "is required").into());
        }
        let rules = &config.capabilities;
        let capabilities =
            CapabilitySet::read("volume_capabilities", &req.volume_capabilities, rules)?;
        let class = parameters::class(&req.parameters, config.unknown_parameters)?;
        Ok(CreateRequest {
            name,
            range: validate::range("capacity_range", req.capacity_range.as_ref())?,
            capabilities,
            changes: mutable(&req.mutable_parameters, config)?.or(class.changes),
            class,
            parameters: req.parameters.clone(),
            mutable_parameters: req.mutable_parameters.clone(),
            accessible: accessibility::satisfied(
                req.accessibility_requirements.as_ref(),
                &*config.topology.segments()?,
            )?,
            source: source(req.volume_content_source.as_ref())?,
        })
    }
}

fn mutable(
    parameters: &Parameters,
    config: &Config,
) -> std::result::Result<SettingsChange, Invalid> {
    if !parameters.is_empty() && !config.modify {
        return Err(invalid("mutable_parameters", "are switched off"));
    }
    parameters::mutable(parameters, &config.mutable_parameters)
}

/// Reads the source. A string that is not an ID is an unknown source.
fn source(source: Option<&csi::VolumeContentSource>) -> Result<Option<RequestedSource>> {
    const FIELD: &str = "volume_content_source";
    let Some(source) = source else {
        return Ok(None);
    };
    let named = match &source.r#type {
        None => return Err(invalid(FIELD, "names neither a snapshot nor a volume").into()),
        Some(Type::Snapshot(s)) => {
            let id = lookup::id(&format!("{FIELD}.snapshot.snapshot_id"), &s.snapshot_id)?;
            RequestedSource::Snapshot(
                id.ok_or_else(|| lookup::not_found("source snapshot", &s.snapshot_id))?,
            )
        }
        Some(Type::Volume(v)) => {
            let id = lookup::id(&format!("{FIELD}.volume.volume_id"), &v.volume_id)?;
            RequestedSource::Volume(
                id.ok_or_else(|| lookup::not_found("source volume", &v.volume_id))?,
            )
        }
    };
    Ok(Some(named))
}

#[cfg(test)]
mod tests;
