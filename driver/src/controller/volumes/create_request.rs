//! Reads a CreateVolumeRequest, and compares it with an existing volume of that name.

use hostloop_proto::csi;
use hostloop_proto::csi::volume_content_source::Type;
use hostloop_terminal::humanize::exact_bytes;

use crate::controller::capability::CapabilitySet;
use crate::controller::parameters::{self, Changes, Class, Parameters};
use crate::controller::{Config, Result, accessibility, lookup};
use crate::csi::capability::own_fs;
use crate::csi::validate::{self, Invalid, Range, invalid};
use crate::storage::{SnapshotId, Source, VolumeHandle, VolumeRecord};

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
    pub(super) range: Range,
    pub(super) capabilities: CapabilitySet,
    pub(super) class: Class,
    /// Mutable parameters; class parameters fill the absent ones.
    pub(super) changes: Changes,
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
        for key in &class.ignored {
            tracing::warn!(
                key = key.as_str(),
                volume = name.as_str(),
                "ignored a parameter of a class: this driver does not have it"
            );
        }
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

    /// Compares an existing volume of this name with the request; the error says what differs
    /// ("Volume already exists but is incompatible").
    pub(super) fn fits(&self, existing: &VolumeRecord) -> std::result::Result<(), String> {
        if existing.inline.is_some() {
            return Err("is an inline volume of a pod".to_owned());
        }
        if !self.range.allows(existing.capacity_bytes) {
            let now = exact_bytes(existing.capacity_bytes);
            return Err(format!("has {now}, which capacity_range forbids"));
        }
        let requested = self.capabilities.clone().on_volume_with(own_fs(existing));
        if !requested.are(&existing.capabilities) {
            return differs("volume_capabilities");
        }
        if !parameters::same(&self.parameters, &existing.parameters) {
            return differs("parameters");
        }
        if !parameters::same(&self.mutable_parameters, &existing.mutable_parameters) {
            return differs("mutable_parameters");
        }
        if !same_source(self.source.as_ref(), existing.source.as_deref()) {
            return differs("volume_content_source");
        }
        if !self.accessible {
            return Err("is not accessible as accessibility_requirements ask".to_owned());
        }
        Ok(())
    }
}

fn mutable(parameters: &Parameters, config: &Config) -> std::result::Result<Changes, Invalid> {
    if !parameters.is_empty() && !config.modify {
        return Err(invalid("mutable_parameters", "are switched off"));
    }
    parameters::mutable(parameters, &config.mutable_parameters)
}

fn differs(what: &str) -> std::result::Result<(), String> {
    Err(format!("differs in {what}"))
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

fn same_source(named: Option<&RequestedSource>, recorded: Option<&Source>) -> bool {
    match (named, recorded) {
        (None, None) => true,
        (Some(RequestedSource::Snapshot(a)), Some(Source::Snapshot(b))) => a == b,
        (Some(RequestedSource::Volume(VolumeHandle::Id(a))), Some(Source::Volume(b))) => a == b,
        // An inline volume has two IDs and may be deleted by now, so any volume as source matches.
        (Some(RequestedSource::Volume(VolumeHandle::Inline(_))), Some(Source::Volume(_))) => true,
        _ => false,
    }
}

#[cfg(test)]
mod tests;
