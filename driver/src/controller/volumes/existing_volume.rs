//! Decides whether an existing volume is the one that a CreateVolumeRequest of its name asks for.

use hostloop_terminal::humanize::exact_bytes;

use super::create_request::{CreateRequest, RequestedSource};
use crate::controller::parameters;
use crate::csi::capability::own_fs;
use crate::storage::{Source, VolumeHandle, VolumeRecord};

impl CreateRequest {
    /// Compares an existing volume of this name with the request; the error says what differs
    /// ("Volume already exists but is incompatible").
    pub(super) fn fits(&self, existing: &VolumeRecord) -> Result<(), String> {
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

fn differs(what: &str) -> Result<(), String> {
    Err(format!("differs in {what}"))
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
